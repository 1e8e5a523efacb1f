"""Pictures that a message names by their path."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from openclaw.agent.prompt_images import MOST_PICTURES, named_pictures, with_named_pictures
from openclaw.messages import ImageBlock, TextBlock, UserMessage
from openclaw.tools.opener import PathOpener


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


def picture(path: Path, size: tuple[int, int] = (8, 8), color: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


async def test_a_picture_is_kept_with_the_message_and_made_small(tmp_path: Path) -> None:
    picture(tmp_path / "big.png", (4000, 100))
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
    picture(outside / "a.png")
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
    data = picture(tmp_path / "a.png")
    attached = ImageBlock(data=base64.b64encode(data).decode(), mime_type="image/png")
    message = UserMessage(content=[TextBlock(text=f"[media attached: {tmp_path}/a.png]"), attached], timestamp=1)
    assert await with_named_pictures(message, PathOpener(tmp_path, confine=False)) is message
