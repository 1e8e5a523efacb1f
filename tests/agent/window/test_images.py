"""Pictures a provider would refuse become smaller, get their right label, or give way to a sentence."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from openclaw.agent.window import history_cleaner
from openclaw.agent.window.history_cleaner import (
    IMAGES_STEP,
    MOST_IMAGES,
    OLDER_IMAGE,
    HistoryCleaner,
    Hygiene,
    ImageCache,
    newest_images,
)
from openclaw.messages import ImageBlock, Message, TextBlock, ToolResultMessage, UserMessage
from openclaw.models.base import Model
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
