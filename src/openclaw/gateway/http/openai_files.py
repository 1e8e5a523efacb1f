"""The pictures and files of a request to an OpenAI-style endpoint: sent along or fetched, checked, and read."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

import msgspec

from openclaw.config.schema.gateway import ResponseFiles, ResponseImages
from openclaw.file_types import sniff_image
from openclaw.foreign_text import disarmed, disarmed_name
from openclaw.gateway.http.common import RequestRefused
from openclaw.inbound.attachments import Image
from openclaw.pictures import ImageProblem, fit_image, off_loop
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch

MAX_IMAGES = 20
MAX_URL_PARTS = 8
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*(?P<base64>;base64)?,", re.IGNORECASE)
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


async def read_pictures(urls: list[str], limits: ResponseImages, max_url_parts: int) -> list[Image]:
    """Reads the pictures at these addresses, in order. Raises ``RequestRefused`` for the first that cannot be used."""
    if len(urls) > MAX_IMAGES:
        raise RequestRefused(f"at most {MAX_IMAGES} images can be passed in one request")
    check_url_parts(sum(not url.startswith("data:") for url in urls), max_url_parts)
    return [await _picture(url, number, limits) for number, url in enumerate(urls, 1)]


def check_url_parts(count: int, most: int) -> None:
    if count > most:
        raise RequestRefused(f"at most {most} parts can be fetched by URL in one request")


async def _picture(url: str, number: int, limits: ResponseImages) -> Image:
    what = f"image {number}"
    if url[:5].lower() == "data:":
        data, _ = await off_loop(lambda: data_url_bytes(url, limits.max_bytes, what))
    else:
        data = await fetched(url, limits, what)
    mime = sniff_image(data[:16])
    if mime is None or mime not in limits.allowed_mimes:
        kinds = ", ".join(limits.allowed_mimes)
        raise RequestRefused(f"{what}: the content is not one of {kinds}")
    try:
        fitted = await off_loop(lambda: fit_image(data, mime))
    except ImageProblem as problem:
        raise RequestRefused(f"{what}: {problem}") from None
    return Image(base64.b64decode(fitted.block.data), fitted.block.mime_type)


def data_url_bytes(url: str, max_bytes: int, what: str) -> tuple[bytes, str]:
    """Returns the content of a ``data:`` address and the type that it claims."""
    match = _DATA_URL.match(url)
    if match is None:
        raise RequestRefused(f"{what}: the data URL is malformed; it begins with data:<type>;base64,")
    mime = (match["mime"] or "text/plain").lower()
    content = url[match.end() :]
    if match["base64"]:
        return base64_bytes(content, max_bytes, what), mime
    if len(content) > 3 * max_bytes:
        raise RequestRefused(f"{what}: larger than {max_bytes} bytes")
    return _within(unquote_to_bytes(content), max_bytes, what), mime


def base64_bytes(text: str, max_bytes: int, what: str) -> bytes:
    if len(text) * 3 // 4 > max_bytes + 3:
        raise RequestRefused(f"{what}: larger than {max_bytes} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestRefused(f"{what}: invalid base64 content") from None
    return _within(data, max_bytes, what)


def _within(data: bytes, max_bytes: int, what: str) -> bytes:
    if len(data) > max_bytes:
        raise RequestRefused(f"{what}: larger than {max_bytes} bytes")
    return data


async def fetched(url: str, limits: ResponseImages | ResponseFiles, what: str) -> bytes:
    if not limits.allow_url:
        raise RequestRefused(f"{what}: fetching by URL is switched off here; send the content as a data URL")
    allowed = None if limits.url_allowlist is None else tuple(limits.url_allowlist)
    bounds = FetchLimits(
        max_bytes=limits.max_bytes,
        max_redirects=limits.max_redirects,
        timeout_s=limits.timeout_ms / 1000,
        hosts=allowed,
    )
    try:
        return await fetch(url, bounds)
    except FetchRefused as refused:
        raise RequestRefused(f"{what}: {refused}") from None


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
    mime = file.mime
    if file.url is not None and file.url[:5].lower() != "data:":
        data = await fetched(file.url, limits, what)
        name = file.name if file.name != "file" else file.url.partition("?")[0].rsplit("/", 1)[-1]
    else:
        source, name = file.url or file.data or "", file.name
        if source[:5].lower() == "data:":
            data, mime = await off_loop(lambda: data_url_bytes(source, limits.max_bytes, what))
        else:
            data = await off_loop(lambda: base64_bytes(source, limits.max_bytes, what))
    mime = (mime or _SUFFIXES.get(name.rpartition(".")[2].lower(), "text/plain")).lower()
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
