"""Pictures that others made: opened within bounds of memory, turned upright, and made small enough.

``smaller_picture`` makes one small enough for a channel, ``fit_image`` for a model. ``sniff`` and ``content_type`` tell
what a file is by its first bytes, because names and claims of others may be wrong. ``with_named_pictures`` loads the
pictures that a message names.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from openclaw.messages import ImageBlock, TextBlock, UserBlock, UserMessage, user_text
from openclaw.path_opener import PathOpener, PathRefused

if TYPE_CHECKING:
    from PIL.Image import Image


MAX_SOURCE_BYTES = 64 * 1024 * 1024
MAX_DECODED_BYTES = 140_000_000
"""The memory for one picture: 35 million plain pixels, or half as many with transparency. 90 KB can need more."""
MAX_JPEG_PIXELS = 89_000_000
"""The most pixels of a JPEG that can be decoded at a fraction of its size, as cameras make them."""
_SMALL_PIXELS = 4_000_000
_one_large = threading.Lock()
"""Held while a large picture is decoded, so that many need no more memory than one."""
_threads = ThreadPoolExecutor(2, "pictures")
_WEBP_BYTES = 16
"""The bytes that the library needs for each pixel of a WebP picture."""
_ORIENTATION = 0x0112
_LYING = (5, 6, 7, 8)
"""The orientations whose width is the height of the upright picture."""
_Result = TypeVar("_Result")
SHRINKABLE = frozenset({"image/jpeg", "image/png", "image/webp"})
"""Types encoded again if too large. An animation would lose its movement."""
_SIDES = (2048, 1536, 1280, 1024, 800)
_QUALITIES = (80, 70, 60, 50, 40)


class ImageProblem(Exception):
    """The picture cannot be shown. The message tells the model why."""


async def off_loop(work: Callable[[], _Result]) -> _Result:
    """Does slow work on pictures in threads of its own, so that many pictures keep no other work waiting."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


@contextmanager
def opened_picture(data: bytes, mime_type: str) -> Generator[Image]:
    """Open a picture without decoding it. Raises ``ImageProblem``, also for what goes wrong while it is used.

    The size is read from the header, and a picture that would need too much memory is never decoded.
    """
    from PIL import Image, UnidentifiedImageError

    if len(data) > MAX_SOURCE_BYTES:
        raise ImageProblem(f"the file has {len(data)} bytes, more than the {MAX_SOURCE_BYTES} an image may have")
    if mime_type == "image/webp":
        # The library allocates memory when it opens such a file.
        _check_pixels(*_webp_size(data), MAX_DECODED_BYTES // _WEBP_BYTES)
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "GIF", "WEBP")) as opened:
            width, height = opened.size
            _check_pixels(width, height, _most_pixels(opened))
            with _one_large if width * height > _SMALL_PIXELS else nullcontext():
                yield opened
    except UnidentifiedImageError:
        # Its own message contains a memory address, which would change the prompt from start to start.
        raise ImageProblem("the picture cannot be decoded (it is not an image of a known kind)") from None
    except (
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
        MemoryError,
        OSError,
        ValueError,
        SyntaxError,
    ) as error:
        raise ImageProblem(f"the picture cannot be decoded ({error})") from None


def smaller_picture(data: bytes, mime_type: str, limit: int) -> tuple[bytes, str]:
    """Return the picture encoded again with at most ``limit`` bytes, and its type. Blocks; slow for large pictures.

    A picture that one can see through stays PNG if that is small enough. Raises ``ImageProblem``.
    """
    if mime_type not in SHRINKABLE:
        raise ImageProblem("a picture of this kind is not made smaller")
    with opened_picture(data, mime_type) as opened:
        whole = scaled(opened, _SIDES[0])
    clear = whole.mode == "RGBA" and whole.getchannel("A").getextrema() != (255, 255)
    if clear:
        for side in _SIDES:
            if len(made := encoded(_within(whole, side), "PNG")) <= limit:
                return made, "image/png"
    whole = flattened(whole)
    for side in _SIDES:
        small = _within(whole, side)
        for quality in _QUALITIES:
            if len(made := encoded(small, "JPEG", quality)) <= limit:
                return made, "image/jpeg"
    raise ImageProblem("the picture stays too large however far it is reduced")


def _within(image: Image, side: int) -> Image:
    small = image.copy()
    small.thumbnail((side, side))
    return small


def scaled(image: Image, side: int) -> Image:
    """Return a copy that is upright, with no side longer than ``side``, as RGB or, if one can see through it, RGBA."""
    orientation = image.getexif().get(_ORIENTATION, 1)
    width, height = image.size
    fit = min(1.0, side / max(width, height))
    largest = max(1, round(width * fit)), max(1, round(height * fit))
    image.draft("RGB", largest)  # A JPEG is decoded at the smallest size that is large enough.
    mode = "RGBA" if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info else "RGB"
    # It is made small before it is turned, so that only one copy has its full size.
    return _upright((image if image.mode == mode else image.convert(mode)).resize(largest), orientation)


def upright_size(image: Image) -> tuple[int, int]:
    width, height = image.size
    return (height, width) if image.getexif().get(_ORIENTATION, 1) in _LYING else (width, height)


def flattened(image: Image) -> Image:
    """Return the picture on white, without transparency."""
    if image.mode != "RGBA":
        return image
    from PIL import Image as images

    flat = images.new("RGB", image.size, "white")
    flat.paste(image, mask=image.getchannel("A"))
    return flat


def _check_pixels(width: int, height: int, most: int) -> None:
    if width * height > most:
        raise ImageProblem(f"{width}x{height} is more than {most} pixels")


def _most_pixels(image: Image) -> int:
    """How many pixels a picture of this kind may have."""
    if image.format == "JPEG" and not image.info.get("progressive"):
        return MAX_JPEG_PIXELS  # It is decoded at a fraction of its size, without memory for the whole.
    if image.format == "WEBP":
        return MAX_DECODED_BYTES // _WEBP_BYTES
    plain = image.mode in ("RGB", "L", "1") and "transparency" not in image.info
    return MAX_DECODED_BYTES // (4 if plain else 8)


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def _upright(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    turn = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(orientation)
    return image if turn is None else image.transpose(turn)


def encoded(image: Image, kind: str, quality: int | None = None) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({} if quality is None else {"quality": quality}))
    return buffer.getvalue()


# For models

MAX_SIDE = 2000
MAX_BASE64_BYTES = int(4.5 * 1024 * 1024)
"""Providers refuse 5 MB of base64 text."""
_SCALES = (1.0, 0.75, 0.5, 0.35, 0.25)
_MODEL_QUALITIES = (85, 70, 55, 40)


class FittedImage(msgspec.Struct, frozen=True):
    block: ImageBlock
    note: str = ""
    """Says how the picture differs from the file. Empty if it does not."""


def fit_image(data: bytes, mime_type: str, max_side: int = MAX_SIDE) -> FittedImage:
    """Fit the picture into ``max_side`` and ``MAX_BASE64_BYTES``. Blocks; slow for large pictures.

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
    """Return the smaller of PNG and good JPEG first. If both are too large, JPEGs of lower and lower quality."""
    png = encoded(image, "PNG"), "image/png"
    flat = flattened(image)
    jpeg = encoded(flat, "JPEG", _MODEL_QUALITIES[0]), "image/jpeg"
    best: list[tuple[bytes, str]] = sorted([png, jpeg], key=lambda encoding: len(encoding[0]))
    if _base64_length(len(best[0][0])) <= MAX_BASE64_BYTES:
        return best
    return [(encoded(flat, "JPEG", quality), "image/jpeg") for quality in _MODEL_QUALITIES[1:]]


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


# What a file is

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"#!AMR", "audio/amr"),
    (b"%PDF-", "application/pdf"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_MP4_AUDIO = (b"M4A ", b"M4B ")
_MP4_PICTURES = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "image/heif"),
    **dict.fromkeys((b"avif", b"avis"), "image/avif"),
}
"""Pictures in the container of films, as telephones make them."""
SEEN_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The pictures that models can read."""
_UNKNOWN = "application/octet-stream"


def sniff_image(head: bytes) -> str | None:
    """Return the MIME type of a picture that models can read. None if it is none."""
    result = sniff(head)
    return result if result in SEEN_PICTURES else None


def sniff(head: bytes) -> str | None:
    """Return the MIME type of a picture, sound, film or PDF. None if the first bytes do not tell."""
    if head.startswith(b"\xff\xd8\xff") and head[3:4] != b"\xf7":
        return "image/jpeg"
    for beginning, mime in _BEGINNINGS:
        if head.startswith(beginning):
            return mime
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return "audio/mp4" if head[8:12] in _MP4_AUDIO else _MP4_PICTURES.get(head[8:12], "video/mp4")
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    if head[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xfa"):
        return "audio/mpeg"
    return None


def content_type(data: bytes, claimed: str) -> str:
    """The MIME type of a file. What its content does not tell is believed, but a picture is known by its content.

    A film whose sender says that it is sound stays sound: the same containers hold both.
    """
    mime = claimed.partition(";")[0].strip().lower()
    result = sniff(data)
    if result is not None:
        same_container = result in ("video/mp4", "video/webm", "audio/ogg", "video/x-matroska")
        return mime if same_container and mime.startswith(("audio/", "video/")) else result
    return _UNKNOWN if mime.startswith("image/") or "/" not in mime else mime


# Pictures that a message names

MOST_PICTURES = 10
"""The most pictures that are loaded for one message. The agent can read the others with its tool."""
LONGEST_TEXT = 200_000
"""Pictures are not looked for in a longer text."""
_ENDING = r"\.(?:png|jpe?g|gif|webp)"
_ANY = re.compile(_ENDING, re.IGNORECASE)
_START = r"(?:file://|(?:~|\.{1,2})?/(?!/))"
_PATH = re.compile(
    # A note of an attachment, whose path may hold blanks.
    rf"\[media attached(?: \d+/\d+)?: (?P<note>{_START}[^\n\]|]{{1,1000}}?{_ENDING})(?=[\s\]|(])"
    # In quotes.
    rf"|(?P<quote>[\"'`])(?P<quoted>{_START}[^\n\"'`]{{1,1000}}?{_ENDING})(?P=quote)"
    # As a word of its own.
    rf"|(?<![\w/.:~@-])(?P<word>{_START}[^\s\"'`()\[\]<>|]{{1,1000}}?{_ENDING})(?![\w/-]|\.\w)",
    re.IGNORECASE,
)


def named_pictures(text: str) -> list[str]:
    """Return the paths of pictures on this machine that the text names, in its order, each once."""
    if len(text) > LONGEST_TEXT or _ANY.search(text) is None:
        return []
    matches = [_as_path(match["note"] or match["quoted"] or match["word"]) for match in _PATH.finditer(text)]
    return list(dict.fromkeys(path for path in matches if path))[:MOST_PICTURES]


def _as_path(written: str) -> str:
    if not written.lower().startswith("file:"):
        return "" if "://" in written else written
    parts = urlsplit(written)
    return unquote(parts.path) if parts.netloc in ("", "localhost") else ""


async def with_named_pictures(message: UserMessage, opener: PathOpener) -> UserMessage:
    """Return the message with the pictures that it names. The same object if it names none."""
    paths = named_pictures(user_text(message))
    if not paths:
        return message
    blocks: list[UserBlock] = (
        [TextBlock(text=message.content)] if isinstance(message.content, str) else list(message.content)
    )
    attached = {block.data for block in blocks if isinstance(block, ImageBlock)}
    loaded = await off_loop(lambda: _load(paths, opener, attached))
    return msgspec.structs.replace(message, content=[*blocks, *loaded]) if loaded else message


def _load(paths: Sequence[str], opener: PathOpener, known: set[str]) -> list[ImageBlock]:
    """Load the pictures, except those whose data is in ``known``. Adds the data of the loaded ones to it."""
    loaded: list[ImageBlock] = []
    for path in paths:
        try:
            with opener.open_read(path) as file:
                data = file.read(MAX_SOURCE_BYTES + 1)
            mime_type = sniff_image(data)
            if mime_type is None or base64.b64encode(data).decode() in known:
                continue
            block = fit_image(data, mime_type).block
        except (PathRefused, ImageProblem, OSError):
            continue
        if block.data not in known:
            known.add(block.data)
            loaded.append(block)
    return loaded
