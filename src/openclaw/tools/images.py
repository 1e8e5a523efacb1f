"""Prepares images for a model: recognises them by their first bytes and shrinks them to the providers' limits."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import msgspec

from openclaw.messages import ImageBlock

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 2000
MAX_BASE64_BYTES = int(4.5 * 1024 * 1024)
"""Providers refuse 5 MB of base64 text."""
MAX_SOURCE_BYTES = 64 * 1024 * 1024
MAX_SOURCE_PIXELS = 100_000_000
_SCALES = (1.0, 0.75, 0.5, 0.35, 0.25)
_QUALITIES = (85, 70, 55, 40)


class ImageProblem(Exception):
    """The picture cannot be shown. The message tells the model why."""


class FittedImage(msgspec.Struct, frozen=True):
    block: ImageBlock
    note: str = ""
    """Says how the picture differs from the file. Empty if it does not."""


def sniff_image(head: bytes) -> str | None:
    """The MIME type by magic number, because file names may be wrong. None if it is not an image."""
    if head.startswith(b"\xff\xd8\xff") and head[3:4] != b"\xf7":
        return "image/jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def fit_image(data: bytes, mime_type: str, max_side: int = MAX_SIDE) -> FittedImage:
    """Fits the picture into ``max_side`` and ``MAX_BASE64_BYTES``. Blocks, and is slow for large pictures."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(data) > MAX_SOURCE_BYTES:
        raise ImageProblem(f"the file has {len(data)} bytes, more than the {MAX_SOURCE_BYTES} an image may have")
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "GIF", "WEBP")) as opened:
            width, height = opened.size
            if width * height > MAX_SOURCE_PIXELS:
                raise ImageProblem(f"{width}x{height} is more than {MAX_SOURCE_PIXELS} pixels")
            if max(width, height) <= max_side and _base64_length(len(data)) <= MAX_BASE64_BYTES:
                # The picture is decoded to its end, because providers refuse a request with a truncated picture.
                opened.load()
                return FittedImage(_block(data, mime_type))
            upright = ImageOps.exif_transpose(opened)
            return _shrink(upright, upright.size, max_side)
    except UnidentifiedImageError:
        # Its own message contains a memory address, which would change the prompt from start to start.
        raise ImageProblem("the picture cannot be decoded (it is not an image of a known kind)") from None
    except (Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise ImageProblem(f"the picture cannot be decoded ({error})") from None


def _shrink(image: Image, original: tuple[int, int], max_side: int) -> FittedImage:
    fit = min(1.0, max_side / max(original))
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    for scale in _SCALES:
        size = max(1, round(original[0] * fit * scale)), max(1, round(original[1] * fit * scale))
        small = image.convert("RGBA" if has_alpha else "RGB").resize(size)
        for data, mime_type in _encodings(small):
            if _base64_length(len(data)) <= MAX_BASE64_BYTES:
                return FittedImage(_block(data, mime_type), _note(original, size))
    raise ImageProblem("the picture stays too large however far it is reduced")


def _encodings(image: Image) -> list[tuple[bytes, str]]:
    """The smaller of PNG and good JPEG first. If both are too large, JPEGs of lower and lower quality."""
    png = _encoded(image, "PNG"), "image/png"
    flat = image
    if image.mode == "RGBA":
        from PIL import Image as images

        flat = images.new("RGB", image.size, "white")
        flat.paste(image, mask=image.getchannel("A"))
    jpeg = _encoded(flat, "JPEG", _QUALITIES[0]), "image/jpeg"
    best: list[tuple[bytes, str]] = sorted([png, jpeg], key=lambda encoding: len(encoding[0]))
    if _base64_length(len(best[0][0])) <= MAX_BASE64_BYTES:
        return best
    return [(_encoded(flat, "JPEG", quality), "image/jpeg") for quality in _QUALITIES[1:]]


def _encoded(image: Image, kind: str, quality: int | None = None) -> bytes:
    buffer = io.BytesIO()
    if quality is None:
        image.save(buffer, kind)
    else:
        image.save(buffer, kind, quality=quality)
    return buffer.getvalue()


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
