"""Pictures a provider would refuse become smaller, get their right label, or give way to a sentence."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from openclaw.agent.window import history_cleaner
from openclaw.agent.window.history_cleaner import (
    IMAGES_STEP,
    MOST_IMAGES,
    MOST_PICTURES,
    OLDER_IMAGE,
    HistoryCleaner,
    Hygiene,
    ImageCache,
    named_pictures,
    newest_images,
    with_named_pictures,
)
from openclaw.messages import ImageBlock, Message, TextBlock, ToolResultMessage, UserMessage
from openclaw.models.base import Model
from openclaw.opener import PathOpener
from tests.models.histories import picture

MODEL = Model(provider="mock", id="mock-1", input=("text", "image"))
GOOD = picture(8, 8, "PNG")


def side(block: object) -> int:
    assert isinstance(block, ImageBlock)
    with Image.open(io.BytesIO(base64.b64decode(block.data))) as image:
        return max(image.size)


def test_a_good_picture_stays_the_same_object() -> None:
    block = ImageBlock(data=GOOD, mime_type="image/png")
    assert ImageCache().shown(block) is block


def test_a_wrong_label_is_corrected_by_content() -> None:
    data = picture(8, 8, "JPEG")
    assert ImageCache().shown(ImageBlock(data=data, mime_type="image/png")) == ImageBlock(
        data=data, mime_type="image/jpeg"
    )


def test_line_breaks_in_the_data_are_taken_out() -> None:
    wrapped = "\n".join(GOOD[start : start + 20] for start in range(0, len(GOOD), 20))
    assert ImageCache().shown(ImageBlock(data=wrapped, mime_type="image/png")) == ImageBlock(
        data=GOOD, mime_type="image/png"
    )


@pytest.mark.parametrize(("limit", "longest"), [(None, 2000), (600, 600), (9000, 2000)])
async def test_a_large_picture_is_scaled_to_what_is_configured_and_allowed(limit: int | None, longest: int) -> None:
    message = UserMessage(content=[ImageBlock(data=picture(3000, 30, "PNG"), mime_type="image/png")])
    cleaner = HistoryCleaner(Hygiene(), MODEL, "s", 0, max_image_side=limit)
    await cleaner.prepare([message])
    assert side(cleaner.clean([message])[0].content[0]) == longest
    assert side(message.content[0]) == 3000, "what is stored stays as it was"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "empty"),
        ("[missing]", "damaged"),
        (base64.b64encode(b"no picture at all").decode(), "not supported"),
        (GOOD[:60], "cannot be decoded"),
        (picture(300, 300, "JPEG")[:400], "cannot be decoded"),
    ],
)
def test_a_picture_that_cannot_be_sent_is_a_sentence(data: str, why: str) -> None:
    shown = ImageCache().shown(ImageBlock(data=data, mime_type="image/png"))
    assert isinstance(shown, TextBlock)
    assert why in shown.text


async def test_each_picture_is_worked_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = history_cleaner.fitted_image

    def counted(block: ImageBlock, max_side: int) -> object:
        seen.append(block.data)
        return real(block, max_side)

    monkeypatch.setattr(history_cleaner, "fitted_image", counted)
    shelf = ImageCache()
    message = ToolResultMessage(tool_call_id="c", tool_name="t", content=[ImageBlock(data=GOOD, mime_type="image/png")])
    await shelf.prepare([message, message])
    await shelf.prepare([message])
    shelf.shown(ImageBlock(data=GOOD, mime_type="image/png"))
    assert seen == [GOOD]


def test_the_shelf_does_not_grow_without_end() -> None:
    shelf = ImageCache(most_bytes=2000)
    for number in range(20):
        shelf.shown(ImageBlock(data=picture(8 + number, 8, "JPEG"), mime_type="image/png"))
    assert shelf.kept_bytes <= 2000


def test_of_many_pictures_the_newest_are_sent_and_the_rest_changes_in_steps() -> None:
    block = ImageBlock(data=GOOD, mime_type="image/png")

    def left_out(count: int) -> int:
        history: list[Message] = [UserMessage(content=[block, TextBlock(text="x")]) for _ in range(count)]
        shown = [message.content[0] for message in newest_images(history)]
        texts = [part for part in shown if isinstance(part, TextBlock)]
        assert all(part.text == OLDER_IMAGE for part in texts)
        assert shown[: len(texts)] == texts
        return len(texts)

    assert left_out(MOST_IMAGES) == 0
    assert {left_out(MOST_IMAGES + extra) for extra in range(1, IMAGES_STEP + 1)} == {IMAGES_STEP}


def test_pictures_of_one_request_stay_within_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_cleaner, "MOST_IMAGE_BYTES", 3 * len(GOOD))
    monkeypatch.setattr(history_cleaner, "BYTES_STEP", 1)
    block = ImageBlock(data=GOOD, mime_type="image/png")
    shown = newest_images([UserMessage(content=[block] * 5)])[0].content
    assert [isinstance(part, ImageBlock) for part in shown] == [False, False, True, True, True]


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
