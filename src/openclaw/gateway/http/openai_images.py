"""Pictures and files of a request: decoded or fetched within the configured limits, made to fit a model."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from openclaw.config.schema.gateway import ResponseFiles, ResponseImages
from openclaw.gateway.http.openai_common import Refused
from openclaw.gateway.http.remote_file import FetchLimits, FetchRefused, fetch
from openclaw.inbound.attachments import Image
from openclaw.tools.images import ImageProblem, fit_image, sniff_image

MAX_IMAGES = 20
MAX_URL_PARTS = 8
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*(?P<base64>;base64)?,", re.IGNORECASE)


async def read_pictures(urls: list[str], limits: ResponseImages, max_url_parts: int = MAX_URL_PARTS) -> list[Image]:
    """The pictures behind these addresses, in order; raises ``Refused`` for the first that cannot be used."""
    if len(urls) > MAX_IMAGES:
        raise Refused(f"at most {MAX_IMAGES} images can be passed in one request")
    check_url_parts(sum(not url.startswith("data:") for url in urls), max_url_parts)
    return [await _picture(url, number, limits) for number, url in enumerate(urls, 1)]


def check_url_parts(count: int, most: int) -> None:
    if count > most:
        raise Refused(f"at most {most} parts can be fetched by URL in one request")


async def _picture(url: str, number: int, limits: ResponseImages) -> Image:
    what = f"image {number}"
    if url[:5].lower() == "data:":
        data, _ = data_url_bytes(url, limits.max_bytes, what)
    else:
        data = await fetched(url, limits, what)
    mime = sniff_image(data[:16])
    if mime is None or mime not in limits.allowed_mimes:
        kinds = ", ".join(limits.allowed_mimes)
        raise Refused(f"{what}: the content is not one of {kinds}")
    try:
        fitted = await asyncio.to_thread(fit_image, data, mime)
    except ImageProblem as problem:
        raise Refused(f"{what}: {problem}") from None
    return Image(base64.b64decode(fitted.block.data), fitted.block.mime_type)


def data_url_bytes(url: str, max_bytes: int, what: str) -> tuple[bytes, str]:
    """The content of a ``data:`` address and the type it claims."""
    match = _DATA_URL.match(url)
    if match is None:
        raise Refused(f"{what}: the data URL is malformed; it begins with data:<type>;base64,")
    mime = (match["mime"] or "text/plain").lower()
    content = url[match.end() :]
    if match["base64"]:
        return base64_bytes(content, max_bytes, what), mime
    if len(content) > 3 * max_bytes:
        raise Refused(f"{what}: larger than {max_bytes} bytes")
    return _within(unquote_to_bytes(content), max_bytes, what), mime


def base64_bytes(text: str, max_bytes: int, what: str) -> bytes:
    if len(text) * 3 // 4 > max_bytes + 3:
        raise Refused(f"{what}: larger than {max_bytes} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(f"{what}: invalid base64 content") from None
    return _within(data, max_bytes, what)


def _within(data: bytes, max_bytes: int, what: str) -> bytes:
    if len(data) > max_bytes:
        raise Refused(f"{what}: larger than {max_bytes} bytes")
    return data


async def fetched(url: str, limits: ResponseImages | ResponseFiles, what: str) -> bytes:
    if not limits.allow_url:
        raise Refused(f"{what}: fetching by URL is switched off here; send the content as a data URL")
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
        raise Refused(f"{what}: {refused}") from None
