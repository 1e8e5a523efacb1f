"""The ``input`` of a Responses request: items in order, pictures by address, files as text for the system prompt."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from openclaw.config.schema.gateway import ResponseFiles
from openclaw.gateway.http.openai_common import Refused
from openclaw.gateway.http.openai_images import base64_bytes, data_url_bytes, fetched
from openclaw.gateway.http.openai_prompt import Said

MAX_FILES = 20
_SUFFIXES = {
    "txt": "text/plain",
    "md": "text/markdown",
    "html": "text/html",
    "htm": "text/html",
    "csv": "text/csv",
    "json": "application/json",
    "pdf": "application/pdf",
}
_closing = re.compile(r"<(?=/file\b)", re.IGNORECASE)


class InputFile(msgspec.Struct, kw_only=True):
    name: str
    data: str | None = None
    """Base64, or a ``data:`` address."""
    mime: str | None = None
    url: str | None = None


class Spoken(msgspec.Struct, kw_only=True):
    system: list[str] = []
    said: list[Said] = []
    files: list[InputFile] = []


def conversation(given: str | list[dict[str, Any]]) -> Spoken:
    """Raises ``Refused`` with the place of the first item that cannot be used."""
    if isinstance(given, str):
        return Spoken(said=[Said(role="user", text=given)])
    spoken = Spoken(system=[], said=[], files=[])
    names: dict[str, str] = {}
    for index, item in enumerate(given):
        _add_item(item, f"input.{index}", spoken, names)
    return spoken


def _add_item(item: dict[str, Any], path: str, spoken: Spoken, names: dict[str, str]) -> None:
    match item:
        case {"type": "function_call_output", "call_id": str(call_id)}:
            text, _ = _parts(item.get("output"), f"{path}.output", spoken)
            spoken.said.append(Said(role="tool", text=text, name=names.get(call_id, ""), call_id=call_id))
        case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
            names[call_id] = name
            text = f"[called {name}({item.get('arguments', '')})]"
            spoken.said.append(Said(role="assistant", text=text, calls=[call_id]))
        case {"type": "reasoning" | "item_reference"}:
            pass
        case {"role": str(role)} if item.get("type", "message") == "message":
            _add_message(role, item.get("content"), path, spoken)
        case _:
            raise Refused(f"{path}: items of type {str(item.get('type'))[:40]!r} are not supported")


def _add_message(role: str, content: Any, path: str, spoken: Spoken) -> None:
    text, images = _parts(content, f"{path}.content", spoken)
    match role:
        case "system" | "developer":
            spoken.system += [text] if text.strip() else []
        case "user":
            spoken.said.append(Said(role="user", text=text, images=images))
        case "assistant":
            spoken.said.append(Said(role="assistant", text=text))
        case _:
            raise Refused(f"{path}.role: unknown role {role[:40]!r}")


def _parts(content: Any, path: str, spoken: Spoken) -> tuple[str, list[str]]:
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise Refused(f"{path}: must be text or a list of parts")
    texts: list[str] = []
    images: list[str] = []
    for index, part in enumerate(content):
        match part:
            case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "input_image"}:
                images.append(_image(part, f"{path}.{index}"))
            case {"type": "input_file"}:
                spoken.files.append(_file(part, f"{path}.{index}"))
            case _:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise Refused(f"{path}.{index}: parts of type {str(kind)[:40]!r} are not supported")
    return "\n".join(texts), images


def _image(part: dict[str, Any], path: str) -> str:
    match part:
        case {"image_url": str(url)} | {"image_url": {"url": str(url)}} | {"source": {"type": "url", "url": str(url)}}:
            return url
        case {"source": {"type": "base64", "media_type": str(mime), "data": str(data)}}:
            return f"data:{mime};base64,{data}"
        case _:
            raise Refused(f"{path}: give the image as image_url (a data URL or an address)")


def _file(part: dict[str, Any], path: str) -> InputFile:
    source: Any = part.get("source")
    name: Any = part.get("filename") or (source.get("filename") if isinstance(source, dict) else None) or "file"
    match part:
        case {"file_data": str(data)}:
            return InputFile(name=str(name), data=data)
        case {"file_url": str(url)} | {"source": {"type": "url", "url": str(url)}}:
            return InputFile(name=str(name), url=url)
        case {"source": {"type": "base64", "data": str(data)}}:
            mime = source.get("media_type")
            return InputFile(name=str(name), data=data, mime=mime if isinstance(mime, str) else None)
        case _:
            raise Refused(f"{path}: give the file as file_data (base64) or file_url")


async def file_blocks(files: list[InputFile], limits: ResponseFiles) -> list[str]:
    """Each file as a marked block of text; raises ``Refused`` for the first that cannot be read."""
    if len(files) > MAX_FILES:
        raise Refused(f"at most {MAX_FILES} files can be passed in one request")
    return [await _block(file, number, limits) for number, file in enumerate(files, 1)]


async def _block(file: InputFile, number: int, limits: ResponseFiles) -> str:
    what = f"file {number}"
    mime = file.mime
    if file.url is not None and file.url[:5].lower() != "data:":
        data = await fetched(file.url, limits, what)
        name = file.name if file.name != "file" else file.url.partition("?")[0].rsplit("/", 1)[-1]
    else:
        source, name = file.url or file.data or "", file.name
        if source[:5].lower() == "data:":
            data, mime = data_url_bytes(source, limits.max_bytes, what)
        else:
            data = base64_bytes(source, limits.max_bytes, what)
    mime = (mime or _SUFFIXES.get(name.rpartition(".")[2].lower(), "text/plain")).lower()
    if data.startswith(b"%PDF-") or mime == "application/pdf":
        raise Refused(f"{what}: PDF files cannot be read yet; send their text instead")
    if mime not in limits.allowed_mimes:
        raise Refused(f"{what}: the type {mime} is not one of {', '.join(limits.allowed_mimes)}")
    text = data.decode("utf-8", "replace")
    if "\x00" in text:
        raise Refused(f"{what}: the content is not text")
    return _marked(name, text[: limits.max_chars], len(text) > limits.max_chars)


def _marked(name: str, text: str, cut: bool) -> str:
    """The content cannot end its own block and pass for something else."""
    shown = "".join(char for char in name if char.isprintable() and char not in '"<>&')[:200] or "file"
    note = "\n[cut here: the file is longer]" if cut else ""
    return f'<file name="{shown}">\n{_closing.sub("&lt;", text)}{note}\n</file>'
