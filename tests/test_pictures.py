"""Pictures that are too large for a channel are made smaller, within bounds of memory. Named ones are loaded."""

from __future__ import annotations

import base64
import io
import random
from pathlib import Path

import pytest
from PIL import Image

from openclaw.messages import ImageBlock, TextBlock, UserMessage
from openclaw.path_opener import PathOpener
from openclaw.pictures import MOST_PICTURES, ImageProblem, named_pictures, smaller_picture, with_named_pictures


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


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("look at /tmp/a.png please", ["/tmp/a.png"]),
        ("./a.PNG, ../b.jpeg and ~/c.webp.", ["./a.PNG", "../b.jpeg", "~/c.webp"]),
        ("file:///tmp/my%20cat.gif!", ["/tmp/my cat.gif"]),
        ("file://localhost/tmp/a.png", ["/tmp/a.png"]),
        ("see '/tmp/my cat.jpg' or `/tmp/b.png`", ["/tmp/my cat.jpg", "/tmp/b.png"]),
        ("[media attached: /tmp/in bound.jpg (image/jpeg) | https://x.example/i.jpg]", ["/tmp/in bound.jpg"]),
        (
            "[media attached: 2 files]\n[media attached 1/2: /m/a.png (image/png)]\n[media attached 2/2: /m/b.png]",
            ["/m/a.png", "/m/b.png"],
        ),
        ("(/tmp/a.png) [/tmp/a.png] /tmp/a.png", ["/tmp/a.png"]),
        ("https://example.com/a.png //cdn/x.png", []),
        ("file://server/share/a.png", []),
        ("photo.png has no folder, nor has [media attached: photo.png]", []),
        ("/tmp/a.png.bak and /tmp/a.pngs and /tmp/a.png/b", []),
        ("mail me@/tmp/a.png", []),
        ("nothing here", []),
    ],
)
def test_paths_are_found_and_addresses_are_not(text: str, paths: list[str]) -> None:
    assert named_pictures(text) == paths


def test_a_message_names_so_many_pictures_at_most() -> None:
    assert len(named_pictures(" ".join(f"/tmp/{number}.png" for number in range(50)))) == MOST_PICTURES


def write_picture(path: Path, size: tuple[int, int] = (8, 8), color: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


async def test_a_picture_is_kept_with_the_message_and_made_small(tmp_path: Path) -> None:
    write_picture(tmp_path / "big.png", (4000, 100))
    opener = PathOpener(tmp_path, confine=False)
    shown = await with_named_pictures(UserMessage(content="what is ./big.png ?", timestamp=1), opener)
    text, image = shown.content
    assert isinstance(text, TextBlock) and isinstance(image, ImageBlock)
    with Image.open(io.BytesIO(base64.b64decode(image.data))) as opened:
        assert max(opened.size) == 2000


async def test_what_the_agent_may_not_read_is_not_shown(tmp_path: Path) -> None:
    inside, outside = tmp_path / "work", tmp_path / "other"
    inside.mkdir()
    outside.mkdir()
    write_picture(outside / "a.png")
    (inside / "link.png").symlink_to(outside / "a.png")
    message = UserMessage(content=f"{outside / 'a.png'} ../other/a.png ./link.png", timestamp=1)
    assert await with_named_pictures(message, PathOpener(inside, confine=True)) is message
    assert len((await with_named_pictures(message, PathOpener(inside, confine=False))).content) == 2, (
        "one picture by three names is shown once"
    )


async def test_files_that_are_no_pictures_or_are_not_there_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "fake.png").write_text("not a picture")
    (tmp_path / "half.png").write_bytes(b"\x89PNG\r\n\x1a\n1234")
    (tmp_path / "folder.png").mkdir()
    message = UserMessage(content="./fake.png ./half.png ./folder.png ./gone.png", timestamp=1)
    assert await with_named_pictures(message, PathOpener(tmp_path, confine=False)) is message


async def test_a_picture_that_came_attached_is_not_shown_twice(tmp_path: Path) -> None:
    data = write_picture(tmp_path / "a.png")
    attached = ImageBlock(data=base64.b64encode(data).decode(), mime_type="image/png")
    message = UserMessage(content=[TextBlock(text=f"[media attached: {tmp_path}/a.png]"), attached], timestamp=1)
    assert await with_named_pictures(message, PathOpener(tmp_path, confine=False)) is message
