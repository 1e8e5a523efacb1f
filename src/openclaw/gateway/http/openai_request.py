"""The request that both OpenAI endpoints read: its messages, tools, pictures and files, and the prompt they make.

An endpoint decodes its own JSON into an ``Ask``; ``openai_run`` runs it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec.structs import replace

from openclaw.config.schema.gateway import ChatCompletionsEndpoint, ResponseFiles, ResponseImages, ResponsesEndpoint
from openclaw.gateway.http.common import RequestRefused, read_json
from openclaw.inbound.attachments import Image
from openclaw.inbound.prompt_text import with_history
from openclaw.messages import (
    AssistantMessage,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from openclaw.pictures import ImageProblem, fit_image, off_loop, sniff_image
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch
from openclaw.untrusted_text import disarmed, disarmed_name

T = TypeVar("T")
MAX_TOOLS = 128
MAX_IMAGES = 20
MAX_FILES = 20
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL_ID = re.compile(r"call_([A-Za-z0-9_-]{22})([0-9a-f]{8})")
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*(?P<base64>;base64)?,", re.IGNORECASE)
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


class Ask(msgspec.Struct, kw_only=True):
    """A request, without its session and its pictures."""

    source: str
    """``openai`` or ``openresponses``. The name of its session begins with it."""
    model: str
    """It may name the agent."""
    messages: list[InputMessage]
    no_message: str
    """The error text when there is nothing to answer."""
    system: str = ""
    tools: list[ToolSpec] = []
    tool_choice: Any = None
    """As the client wrote it."""
    max_tokens: int | None = None
    effort: str | None = None
    """How hard the model is to think, as the client wrote it."""
    user: str | None = None
    """The name of the caller's own session."""
    previous_run: str | None = None
    """The run of the conversation that the request says it continues."""


class InputMessage(msgspec.Struct, kw_only=True):
    """One message of the request, or one item of its input."""

    role: Literal["user", "assistant", "tool"]
    text: str
    images: list[str] = []
    """The addresses of pictures, mostly ``data:`` ones."""
    name: str = ""
    """The name of the tool whose output this is, if the caller names it."""
    call_id: str = ""
    calls: list[str] = []
    """The ids of the calls that an assistant's message makes."""


async def read_request(
    request: web.BaseRequest,
    endpoint: ChatCompletionsEndpoint | ResponsesEndpoint,
    name: str,
    shape: type[T],
) -> T:
    """Reads the body. Raises ``RequestRefused``, also when the endpoint is switched off."""
    if not endpoint.enabled:
        hint = f"enable it with gateway.http.endpoints.{name}.enabled"
        raise RequestRefused(f"no such endpoint: {request.path} ({hint})", status=404)
    return await read_json(request, endpoint.max_body_bytes, shape)


def tool_spec(path: str, kind: str, name: str | None, description: str | None, parameters: Any) -> ToolSpec:
    if kind != "function":
        raise RequestRefused(f'{path}.type: only "function" tools can be passed to the agent, not {kind!r}')
    if not name or not _TOOL_NAME.fullmatch(name):
        raise RequestRefused(f"{path}.name: must be 1 to 64 letters, digits, underscores or hyphens")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestRefused(f"{path}.parameters: must be a JSON Schema object")
    schema: dict[str, Any] = parameters or {"type": "object", "properties": {}}
    return ToolSpec(name=name, description=description or "", parameters=schema)


def chosen_tools(choice: Any, tools: list[ToolSpec]) -> tuple[list[ToolSpec], Any]:
    """Returns the tools to offer and the neutral form of ``tool_choice``. Raises ``RequestRefused``."""
    names = [tool.name for tool in tools]
    if len(names) > MAX_TOOLS:
        raise RequestRefused(f"tools: at most {MAX_TOOLS} may be passed")
    if len(set(names)) < len(names):
        raise RequestRefused(f"tools: the name {next(name for name in names if names.count(name) > 1)!r} is used twice")
    match choice:
        case None | "auto":
            return tools, None
        case "none":
            return [], None
        case "required":
            if not tools:
                raise RequestRefused("Error: tool_choice=required but no tools were provided")
            return tools, "required"
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            if name not in names:
                raise RequestRefused(f"Error: tool_choice names {name!r}, which is not among the tools")
            return tools, {"name": name}
        case _:
            raise RequestRefused('tool_choice: must be "auto", "none", "required" or name one function')


# The prompt that a conversation makes for a session


class Prompt(msgspec.Struct, kw_only=True):
    """The new part of the conversation, for its session."""

    text: str
    images: list[str]
    tool_outputs: list[ToolResultMessage]
    continues: bool
    """The session holds what came before, so the prompt leaves it out."""


class NoMessage(ValueError):
    """There is nothing to answer."""


def compose(messages: Sequence[InputMessage], stored: Sequence[Message], now_ms: int) -> Prompt:
    """Makes the prompt for a session whose newest messages are ``stored``. Raises ``NoMessage``."""
    messages = _up_to_current(messages)
    split = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=-1) + 1
    earlier, new = messages[:split], messages[split:]
    calls, answered = _last_calls(stored)
    matched = {id(message): call for message in new if (call := _call_of(message, calls)) is not None}
    outputs = [
        ToolResultMessage(
            tool_call_id=call.id, tool_name=call.name, content=[TextBlock(text=message.text)], timestamp=now_ms
        )
        for message in new
        if (call := matched.get(id(message))) is not None and call.id not in answered
    ]
    continues = bool(matched) or not earlier or _is_last_answer(earlier[-1].text, stored)
    rest: list[InputMessage] = []
    for message in new if continues else messages:
        if id(message) not in matched:
            rest.append(message)
        elif message.images:
            # An output holds text alone, so its pictures follow it as a message.
            rest.append(replace(message, text=""))
    return Prompt(
        text=_wrapped(rest),
        images=[image for message in rest for image in message.images],
        tool_outputs=outputs,
        continues=continues,
    )


def _up_to_current(messages: Sequence[InputMessage]) -> list[InputMessage]:
    """Cuts the conversation after the last message of the user or of a tool. Raises ``NoMessage``."""
    usable = [message for message in messages if message.text.strip() or message.images or message.role == "tool"]
    current = max((index for index, message in enumerate(usable) if message.role != "assistant"), default=None)
    if current is None:
        raise NoMessage
    return usable[: current + 1]


def _wrapped(messages: Sequence[InputMessage]) -> str:
    if not messages:
        return ""
    *earlier, current = messages
    if not earlier:
        return disarmed(current.text, of_owner=True)
    history = "\n".join(map(_labelled, earlier))
    return with_history(history, _labelled(current))


def _labelled(message: InputMessage) -> str:
    """Return ``User: text``. Further lines of a text are indented, so that none of them can forge a label."""
    tool = disarmed_name(message.name or message.call_id or "unknown")
    labels = {"user": "User", "assistant": "Assistant", "tool": f"Tool:{tool}"}
    pictures = f"{len(message.images)} attached" if len(message.images) > 1 else "attached"
    indented = "\n  ".join(disarmed(message.text).splitlines())
    text = " ".join(part for part in (indented, f"[image {pictures}]" if message.images else "") if part)
    return f"{labels[message.role]}: {text}"


def _last_calls(stored: Sequence[Message]) -> tuple[list[ToolCall], set[str]]:
    """Returns the calls of the last message that did not fail, and the ids of those that have a result."""
    answered: set[str] = set()
    for message in reversed(stored):
        if isinstance(message, ToolResultMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, UserMessage):
            break
        elif message.stop_reason not in ("error", "aborted"):
            return message.tool_calls, answered
    return [], answered


def _call_of(message: InputMessage, calls: Sequence[ToolCall]) -> ToolCall | None:
    if message.role != "tool" or not message.call_id:
        return None
    ours = _CALL_ID.fullmatch(message.call_id)
    return next((call for call in calls if call.id == message.call_id or (ours and _digest(call.id) == ours[2])), None)


def _is_last_answer(text: str, stored: Sequence[Message]) -> bool:
    """Whether the session answered this text last. A run with tools may have answered in several messages."""
    texts: list[str] = []
    for message in reversed(stored):
        if isinstance(message, UserMessage):
            break
        if isinstance(message, AssistantMessage) and message.stop_reason not in ("error", "aborted"):
            texts.insert(0, message.text)
    words = text.split()
    return bool(words) and words in (" ".join(texts).split(), texts[-1].split() if texts else [])


# Tool calls that the client makes


def public_call_id(run_id: str, call_id: str) -> str:
    """Returns the id that the client gets. It names the run, and so the session, that waits for the output.

    A stateless client sends nothing but this id, and the vendors' own ids do not name the run.
    """
    run = base64.urlsafe_b64encode(uuid.UUID(run_id).bytes).decode().rstrip("=")
    return f"call_{run}{_digest(call_id)}"


def run_of(public_id: str) -> str | None:
    """Returns the run that made the call, or None when the id is not ours."""
    match = _CALL_ID.fullmatch(public_id)
    if match is None:
        return None
    try:
        return str(uuid.UUID(bytes=base64.urlsafe_b64decode(match[1] + "==")))
    except (ValueError, binascii.Error):
        return None


def runs_named(messages: Sequence[InputMessage]) -> list[str]:
    """Returns the runs whose calls the conversation mentions, newest first."""
    ids = [call_id for message in reversed(messages) for call_id in (message.call_id, *message.calls) if call_id]
    return list(dict.fromkeys(run for call_id in ids if (run := run_of(call_id)) is not None))


def _digest(call_id: str) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:8]


# Pictures and files


async def read_pictures(urls: list[str], limits: ResponseImages, max_url_parts: int) -> list[Image]:
    """Reads the pictures at these addresses, in order. Raises ``RequestRefused`` for the first that cannot be used."""
    if len(urls) > MAX_IMAGES:
        raise RequestRefused(f"at most {MAX_IMAGES} images can be passed in one request")
    check_url_parts(sum(not url.startswith("data:") for url in urls), max_url_parts)
    return [await _picture(url, number, limits) for number, url in enumerate(urls, 1)]


async def _picture(url: str, number: int, limits: ResponseImages) -> Image:
    what = f"image {number}"
    if _is_data_url(url):
        data, _ = await off_loop(lambda: _decoded(url, limits.max_bytes, what))
    else:
        data = await _fetched(url, limits, what)
    mime = sniff_image(data[:16])
    if mime is None or mime not in limits.allowed_mimes:
        kinds = ", ".join(limits.allowed_mimes)
        raise RequestRefused(f"{what}: the content is not one of {kinds}")
    try:
        fitted = await off_loop(lambda: fit_image(data, mime))
    except ImageProblem as problem:
        raise RequestRefused(f"{what}: {problem}") from None
    return Image(base64.b64decode(fitted.block.data), fitted.block.mime_type)


class InputFile(msgspec.Struct, kw_only=True):
    name: str
    data: str | None = None
    """The content as Base64 or as a ``data:`` address."""
    mime: str | None = None
    url: str | None = None


async def file_blocks(files: list[InputFile], limits: ResponseFiles) -> list[str]:
    """Returns each file as a marked block of text. Raises ``RequestRefused`` for the first that cannot be read."""
    if len(files) > MAX_FILES:
        raise RequestRefused(f"at most {MAX_FILES} files can be passed in one request")
    return [await _block(file, number, limits) for number, file in enumerate(files, 1)]


async def _block(file: InputFile, number: int, limits: ResponseFiles) -> str:
    what = f"file {number}"
    claimed, name, source = file.mime, file.name, file.url or file.data or ""
    if file.url is not None and not _is_data_url(file.url):
        data = await _fetched(file.url, limits, what)
        name = name if name != "file" else file.url.partition("?")[0].rsplit("/", 1)[-1]
    else:
        data, mime = await off_loop(lambda: _decoded(source, limits.max_bytes, what))
        claimed = mime or claimed
    mime = (claimed or _SUFFIXES.get(name.rpartition(".")[2].lower(), "text/plain")).lower()
    if data.startswith(b"%PDF-") or mime == "application/pdf":
        raise RequestRefused(f"{what}: PDF files cannot be read yet; send their text instead")
    if mime not in limits.allowed_mimes:
        raise RequestRefused(f"{what}: the type {mime} is not one of {', '.join(limits.allowed_mimes)}")
    text = data.decode("utf-8", "replace")
    if "\x00" in text:
        raise RequestRefused(f"{what}: the content is not text")
    return _marked(name, text[: limits.max_chars], len(text) > limits.max_chars)


def _marked(name: str, text: str, cut: bool) -> str:
    """Wraps the text of a file in a ``<file>`` block. The text cannot close the block itself."""
    shown = "".join(char for char in disarmed_name(name) if char.isprintable() and char not in '"<>&')[:200] or "file"
    note = "\n[cut here: the file is longer]" if cut else ""
    return f'<file name="{shown}">\n{_closing.sub("&lt;", disarmed(text))}{note}\n</file>'


def check_url_parts(count: int, most: int) -> None:
    if count > most:
        raise RequestRefused(f"at most {most} parts can be fetched by URL in one request")


def _decoded(source: str, max_bytes: int, what: str) -> tuple[bytes, str | None]:
    """Returns the content of a ``data:`` address or of Base64 text, and the type that the address claims."""
    mime, is_base64, too_large = None, True, RequestRefused(f"{what}: larger than {max_bytes} bytes")
    if _is_data_url(source):
        match = _DATA_URL.match(source)
        if match is None:
            raise RequestRefused(f"{what}: the data URL is malformed; it begins with data:<type>;base64,")
        mime, is_base64 = (match["mime"] or "text/plain").lower(), bool(match["base64"])
        source = source[match.end() :]
    # What is certainly too large is not decoded.
    if (len(source) * 3 // 4 - 3 if is_base64 else len(source) // 3) > max_bytes:
        raise too_large
    try:
        data = base64.b64decode(source, validate=True) if is_base64 else unquote_to_bytes(source)
    except (binascii.Error, ValueError):
        raise RequestRefused(f"{what}: invalid base64 content") from None
    if len(data) > max_bytes:
        raise too_large
    return data, mime


def _is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


async def _fetched(url: str, limits: ResponseImages | ResponseFiles, what: str) -> bytes:
    if not limits.allow_url:
        raise RequestRefused(f"{what}: fetching by URL is switched off here; send the content as a data URL")
    bounds = FetchLimits(
        max_bytes=limits.max_bytes,
        max_redirects=limits.max_redirects,
        timeout_s=limits.timeout_ms / 1000,
        hosts=None if limits.url_allowlist is None else tuple(limits.url_allowlist),
    )
    try:
        return await fetch(url, bounds)
    except FetchRefused as refused:
        raise RequestRefused(f"{what}: {refused}") from None
