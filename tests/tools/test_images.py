"""Pictures are measured before they are decoded, so that a small file cannot take the memory of the machine."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from openclaw import pictures
from openclaw.pictures import MAX_DECODED_BYTES, MAX_JPEG_PIXELS, ImageProblem, fit_image, smaller_picture, sniff_image


def png(width: int, height: int) -> bytes:
    """A PNG of this size that holds no pixels: who decodes it has not looked at its size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff" + frame + b";"


def webp(width: int, height: int, kind: str) -> bytes:
    if kind == "VP8X":
        body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == "VP8L":
        body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + bytes(5)
    else:
        body = b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + bytes(10)
    chunk = kind.encode() + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def jpeg(width: int, height: int, *, progressive: bool) -> bytes:
    """A JPEG whose header says another size than its content has."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG", progressive=progressive)
    data = bytearray(buffer.getvalue())
    place = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("PNG", png(10_000, 10_000)),
        ("PNG, one side", png(2_000_000_000, 1)),
        ("GIF", gif(60_000, 60_000)),
        ("WebP, extended", webp(16_000_000, 16_000_000, "VP8X")),
        ("WebP, lossless", webp(16_383, 16_383, "VP8L")),
        ("WebP, lossy", webp(16_383, 16_383, "VP8 ")),
        ("JPEG", jpeg(65_500, 65_500, progressive=False)),
        ("JPEG, progressive", jpeg(6001, 6000, progressive=True)),
    ],
)
def test_a_small_file_with_many_pixels_is_never_decoded(
    name: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(*_: object, **__: object) -> None:
        raise AssertionError(f"{name} was decoded")

    monkeypatch.setattr(Image.Image, "load", decoded)
    monkeypatch.setattr(pictures, "_shrink", decoded)
    mime = sniff_image(data)
    assert mime is not None
    with pytest.raises(ImageProblem, match="pixels"):
        fit_image(data, mime)
    if mime != "image/gif":
        with pytest.raises(ImageProblem, match="pixels"):
            smaller_picture(data, mime, 10)


def test_photographs_of_phones_are_still_taken() -> None:
    """Two hundred megapixels are not, but what cameras make by default is: 12, 24 and 50."""
    assert MAX_JPEG_PIXELS > 50_000_000 and MAX_DECODED_BYTES / 4 > 24_500_000
    buffer = io.BytesIO()
    Image.new("RGB", (8000, 6000), "red").save(buffer, "JPEG")
    fitted = fit_image(buffer.getvalue(), "image/jpeg")
    assert "original 8000x6000, displayed at 2000x1500" in fitted.note


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_that_is_made_small_stands_upright(orientation: int) -> None:
    image = Image.new("RGB", (40, 20), "blue")
    image.paste("red", (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.resize((4000, 2000)).save(buffer, "JPEG", exif=exif)
    fitted = fit_image(buffer.getvalue(), "image/jpeg", 400)
    assert ("original 2000x4000" if orientation > 4 else "original 4000x2000") in fitted.note
    import base64

    shown = Image.open(io.BytesIO(base64.b64decode(fitted.block.data))).convert("RGB")
    red_at = {
        1: (100, 50),
        2: (300, 50),
        3: (300, 50),
        4: (100, 50),
        5: (50, 100),
        6: (50, 100),
        7: (50, 300),
        8: (50, 300),
    }
    pixel = shown.getpixel(red_at[orientation])
    assert isinstance(pixel, tuple) and pixel[0] > 200 > 100 > pixel[2]
