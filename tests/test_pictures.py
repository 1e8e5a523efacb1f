"""Pictures that are too large for a channel are made smaller, within bounds of memory."""

from __future__ import annotations

import io
import random

import pytest
from PIL import Image

from openclaw.pictures import ImageProblem, smaller_picture


def noisy(size: tuple[int, int], mode: str = "RGB", kind: str = "JPEG", **more: object) -> bytes:
    """A picture that cannot be packed well."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    image = Image.frombytes(mode, size, random.Random(1).randbytes(size[0] * size[1] * bands))
    buffer = io.BytesIO()
    image.save(buffer, kind, **more)
    return buffer.getvalue()


def read(data: bytes) -> tuple[str | None, tuple[int, int]]:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image.format, image.size


@pytest.mark.parametrize(("mode", "kind", "mime"), [("RGB", "JPEG", "image/jpeg"), ("RGB", "PNG", "image/png")])
def test_a_large_picture_is_encoded_anew_and_keeps_its_shape(mode: str, kind: str, mime: str) -> None:
    data, limit = noisy((1600, 1200), mode, kind), 600_000
    assert len(data) > limit
    made, became = smaller_picture(data, mime, limit)
    shown, (width, height) = read(made)
    assert (became, shown, len(made) <= limit) == ("image/jpeg", "JPEG", True)
    assert abs(width / height - 4 / 3) < 0.02 and width >= 400


def test_what_one_can_see_through_stays_so_where_it_fits() -> None:
    data = noisy((1000, 600), "RGBA", "PNG")
    made, became = smaller_picture(data, "image/png", 1_600_000)
    assert (became, read(made)[0]) == ("image/png", "PNG")
    made, became = smaller_picture(data, "image/png", 150_000)
    assert (became, len(made) <= 150_000) == ("image/jpeg", True)


def test_a_picture_that_a_camera_turned_is_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    made, _ = smaller_picture(noisy((900, 600), exif=exif), "image/jpeg", 150_000)
    width, height = read(made)[1]
    assert height > width


@pytest.mark.parametrize(
    ("data", "mime", "why"),
    [
        (b"GIF89a" + b"x" * 100, "image/gif", "not made smaller"),
        (b"\xff\xd8\xff\xe0nothing", "image/jpeg", "cannot be decoded"),
        (noisy((64, 64)), "image/jpeg", "stays too large"),
    ],
)
def test_what_cannot_be_made_smaller_says_why(data: bytes, mime: str, why: str) -> None:
    with pytest.raises(ImageProblem, match=why):
        smaller_picture(data, mime, 50)
