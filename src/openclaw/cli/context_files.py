"""Files given with a message: text goes in after the message, labelled with its path; images are attached."""

from __future__ import annotations

import os
import re

from openclaw.cli.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_CHARS = 200_000
MAX_IMAGE_BYTES = 5_000_000
MAX_TEXT_BYTES = 4 * (MAX_CHARS + 2)
"""Enough to see that a text is too long: a character takes at most four bytes."""
_IMAGE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


def with_context(text: str, files: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """The message with its context blocks, and the attachments."""
    parts, attachments = [text], []
    for path in files:
        data = _read(path)
        mime = image_type(data)
        if mime:
            attachments.append(_attachment(path, mime, data))
        else:
            parts.append(_block(path, _decoded(path, data)))
    return "\n\n".join(parts), attachments


def image_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for signature, mime in _IMAGE_SIGNATURES if data.startswith(signature)), None)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max(MAX_TEXT_BYTES, MAX_IMAGE_BYTES) + 1)
    except FileNotFoundError:
        raise UserError(f"Context file not found: {path}") from None
    except IsADirectoryError:
        raise UserError(f"Context path is a directory, give a file: {path}") from None
    except OSError as error:
        raise UserError(f"Cannot read the context file {path}: {error.strerror}") from error


def _decoded(path: str, data: bytes) -> str:
    try:
        return data[:MAX_TEXT_BYTES].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) > MAX_TEXT_BYTES and error.start >= MAX_TEXT_BYTES - 3:
            return data[: error.start].decode("utf-8-sig")
        raise UserError(
            f"Context file is neither UTF-8 text nor a known image (png, jpeg, gif, webp): {path}"
        ) from None


def _block(path: str, text: str) -> str:
    if len(text) > MAX_CHARS:
        text = f"{text[:MAX_CHARS]}\n[… cut here: the file is longer than {MAX_CHARS} characters]"
    # A fence longer than any in the file, so that the file cannot end its own block.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    newline = "" if text.endswith("\n") else "\n"
    return f"{_label(path)}:\n{fence}\n{text}{newline}{fence}"


def _label(path: str) -> str:
    """As seen from here; a file that is somewhere else keeps the path it was given with."""
    seen = os.path.relpath(path)
    return path if seen.split(os.sep, 1)[0] == os.pardir else seen


def _attachment(path: str, mime: str, data: bytes) -> dict[str, Any]:
    import binascii

    if len(data) > MAX_IMAGE_BYTES:
        raise UserError(f"Image too large: {path} has more than {MAX_IMAGE_BYTES} bytes")
    content = binascii.b2a_base64(data, newline=False).decode()
    return {"type": "image", "mimeType": mime, "fileName": os.path.basename(path), "content": content}
