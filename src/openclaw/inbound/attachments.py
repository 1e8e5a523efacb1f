"""Files that come with a message through the Gateway."""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

MAX_BYTES = 5_000_000
_DATA_URL = re.compile(r"^data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Attachment(msgspec.Struct, rename="camel", kw_only=True):
    type: str | None = None
    mime_type: str | None = None
    file_name: str | None = None
    content: str | None = None


class Image(msgspec.Struct, frozen=True):
    data: bytes
    mime_type: str


class BadAttachment(ValueError):
    pass


def read_images(attachments: list[Attachment]) -> tuple[list[Image], list[str]]:
    """The pictures, and a warning for each attachment that is not one. Broken or oversized content raises."""
    images: list[Image] = []
    warnings: list[str] = []
    for number, attachment in enumerate(attachments, 1):
        name = attachment.file_name or attachment.type or f"attachment-{number}"
        data = _decoded(attachment.content or "", name)
        mime = sniff_image(data)
        if mime is None:
            warnings.append(f"attachment {name}: only images are passed on to the model; dropped")
            continue
        images.append(Image(data, mime))
    return images, warnings


def _decoded(content: str, name: str) -> bytes:
    text = _DATA_URL.sub("", content.strip())
    if not text:
        raise BadAttachment(f"attachment {name}: content must be base64 text")
    if len(text) * 3 // 4 > MAX_BYTES + 3:
        raise BadAttachment(f"attachment {name}: exceeds size limit ({len(text) * 3 // 4} > {MAX_BYTES} bytes)")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadAttachment(f"attachment {name}: invalid base64 content") from None
    if len(data) > MAX_BYTES:
        raise BadAttachment(f"attachment {name}: exceeds size limit ({len(data)} > {MAX_BYTES} bytes)")
    return data


def sniff_image(data: bytes) -> str | None:
    """The type by content, never by what the sender claims."""
    for signature, mime in _SIGNATURES:
        if data.startswith(signature):
            return mime
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None
