"""Prepares images for a model: recognises them by their first bytes and shrinks them to the providers' limits."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

from openclaw.messages import ImageBlock
from openclaw.pictures import (
    MAX_SOURCE_BYTES,
    ImageProblem,
    encoded,
    flattened,
    off_loop,
    opened_picture,
    scaled,
    upright_size,
)

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MAX_BASE64_BYTES", "MAX_SIDE", "MAX_SOURCE_BYTES", "FittedImage", "ImageProblem", "fit_image", "off_loop"]

MAX_SIDE = 2000
MAX_BASE64_BYTES = int(4.5 * 1024 * 1024)
"""Providers refuse 5 MB of base64 text."""
_SCALES = (1.0, 0.75, 0.5, 0.35, 0.25)
_QUALITIES = (85, 70, 55, 40)


class FittedImage(msgspec.Struct, frozen=True):
    block: ImageBlock
    note: str = ""
    """Says how the picture differs from the file. Empty if it does not."""


def fit_image(data: bytes, mime_type: str, max_side: int = MAX_SIDE) -> FittedImage:
    """Fits the picture into ``max_side`` and ``MAX_BASE64_BYTES``. Blocks, and is slow for large pictures.

    The size is read from the header, and a picture that would need too much memory is never decoded.
    """
    with opened_picture(data, mime_type) as opened:
        if max(opened.size) <= max_side and _base64_length(len(data)) <= MAX_BASE64_BYTES:
            # The picture is decoded to its end, because providers refuse a request with a truncated picture.
            opened.load()
            return FittedImage(_block(data, mime_type))
        return _shrink(opened, max_side)


def _shrink(image: Image, max_side: int) -> FittedImage:
    original = upright_size(image)
    fitted = scaled(image, max_side)
    for scale in _SCALES:
        size = max(1, round(fitted.width * scale)), max(1, round(fitted.height * scale))
        small = fitted if size == fitted.size else fitted.resize(size)
        for data, mime_type in _encodings(small):
            if _base64_length(len(data)) <= MAX_BASE64_BYTES:
                return FittedImage(_block(data, mime_type), _note(original, size))
    raise ImageProblem("the picture stays too large however far it is reduced")


def _encodings(image: Image) -> list[tuple[bytes, str]]:
    """The smaller of PNG and good JPEG first. If both are too large, JPEGs of lower and lower quality."""
    png = encoded(image, "PNG"), "image/png"
    flat = flattened(image)
    jpeg = encoded(flat, "JPEG", _QUALITIES[0]), "image/jpeg"
    best: list[tuple[bytes, str]] = sorted([png, jpeg], key=lambda encoding: len(encoding[0]))
    if _base64_length(len(best[0][0])) <= MAX_BASE64_BYTES:
        return best
    return [(encoded(flat, "JPEG", quality), "image/jpeg") for quality in _QUALITIES[1:]]


def _note(original: tuple[int, int], shown: tuple[int, int]) -> str:
    if original == shown:
        return f"[Image re-encoded to save space; size {shown[0]}x{shown[1]} unchanged.]"
    factor = original[0] / shown[0]
    return (
        f"[Image: original {original[0]}x{original[1]}, displayed at {shown[0]}x{shown[1]}. "
        f"Multiply coordinates by {factor:.2f} to map to the original.]"
    )


def _block(data: bytes, mime_type: str) -> ImageBlock:
    return ImageBlock(data=base64.b64encode(data).decode("ascii"), mime_type=mime_type)


def _base64_length(size: int) -> int:
    return (size + 2) // 3 * 4
