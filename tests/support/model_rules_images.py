"""Pictures that make a vendor refuse the whole request: wrong label, broken off, too large, too many."""

from __future__ import annotations

import base64
import binascii
import functools
import io
import re
from collections.abc import Iterator
from typing import Any

from PIL import Image

from tests.support.model_rules import check

_DATA_URL = re.compile(r"data:(image/\w+);base64,(.*)", re.DOTALL)
MOST = 100
MOST_BYTES = 5 * 1024 * 1024
LONGEST_SIDE = 8000
LONGEST_SIDE_OF_MANY = 2000
MANY = 20


def check_images(body: Any) -> None:
    images = list(_images(body))
    check(len(images) <= MOST, f"too many images: {len(images)}")
    longest = LONGEST_SIDE_OF_MANY if len(images) > MANY else LONGEST_SIDE
    for mime_type, data in images:
        check(len(data) <= MOST_BYTES, f"image exceeds 5 MB maximum: {len(data)} bytes > {MOST_BYTES} bytes")
        kind, side = _opened(data)
        check(kind is not None, "Could not process image")
        check(kind == mime_type, f"Image does not match the provided media type {mime_type}")
        check(side <= longest, f"At least one of the image dimensions exceed max allowed size: {longest} pixels")


def _images(value: Any) -> Iterator[tuple[str, str]]:
    match value:
        case {"type": "image", "source": {"media_type": str(mime_type), "data": str(data)}}:
            yield mime_type, data
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
            match = _DATA_URL.fullmatch(url)
            check(match, "Invalid image URL")
            assert match is not None
            yield match.group(1), match.group(2)
        case dict():
            for item in value.values():
                yield from _images(item)
        case list():
            for item in value:
                yield from _images(item)
        case _:
            pass


@functools.lru_cache(maxsize=256)
def _opened(data: str) -> tuple[str | None, int]:
    try:
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
            image.load()
            return f"image/{str(image.format).lower()}", max(image.size)
    except (binascii.Error, ValueError, OSError, SyntaxError):
        return None, 0
