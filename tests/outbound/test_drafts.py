"""Drafts: what is shown of a reply while it is being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openclaw.events import AssistantStarted, TextDelta, ThinkingDelta
from openclaw.outbound.blocks import BlockChunker
from openclaw.outbound.stream import LONGEST, DraftStream


class HeldClock:
    """Every sleep lasts until it is released."""

    def __init__(self) -> None:
        self.sleeping: list[asyncio.Event] = []

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self.sleeping.append(over)
        await over.wait()

    async def pass_on(self) -> None:
        for over in self.sleeping:
            over.set()
        self.sleeping.clear()
        for _ in range(10):
            await asyncio.sleep(0)


def stream(
    clock: HeldClock, shown: list[str], *, works: Callable[[str], bool] = lambda text: True, **more: object
) -> DraftStream:
    async def show(text: str) -> bool:
        shown.append(text)
        return works(text)

    return DraftStream(clock, show, **more)


async def test_only_the_newest_state_is_shown_and_the_end_takes_it_away() -> None:
    clock, shown = HeldClock(), list[str]()
    draft = stream(clock, shown)
    draft.event(AssistantStarted())
    draft.event(TextDelta("One"))
    await clock.pass_on()
    for word in (" two", " three", " four"):
        draft.event(TextDelta(word))
    await clock.pass_on()
    assert shown == ["One", "One two three four"]
    ended = asyncio.create_task(draft.end())
    await clock.pass_on()
    await asyncio.wait_for(ended, 30)
    draft.event(TextDelta("late"))
    await clock.pass_on()
    assert shown == ["One", "One two three four", ""]


async def test_reasoning_is_shown_until_the_answer_begins() -> None:
    clock, shown = HeldClock(), list[str]()
    draft = stream(clock, shown, with_reasoning=lambda: True)
    draft.event(AssistantStarted())
    draft.event(ThinkingDelta("Let me think"))
    await clock.pass_on()
    draft.event(TextDelta("Answer"))
    await clock.pass_on()
    assert shown == ["Reasoning:\n_Let me think_", "Answer"]
    ended = asyncio.create_task(draft.end())
    await clock.pass_on()
    await asyncio.wait_for(ended, 30)


async def test_in_block_mode_a_draft_grows_by_pieces() -> None:
    clock, shown = HeldClock(), list[str]()
    draft = stream(clock, shown, chunker=BlockChunker(5, 40))
    draft.event(AssistantStarted())
    for word in ("First para", "graph.\n\nSecond", " one.\n\nThird"):
        draft.event(TextDelta(word))
        await clock.pass_on()
    assert shown[-1].startswith("First paragraph.\n\nSecond")
    assert all(not text.endswith("para") for text in shown)
    ended = asyncio.create_task(draft.end())
    await clock.pass_on()
    await asyncio.wait_for(ended, 30)


async def test_a_channel_that_cannot_is_not_asked_again_and_a_long_draft_ends() -> None:
    clock, shown = HeldClock(), list[str]()
    draft = stream(clock, shown, works=lambda text: False)
    draft.event(AssistantStarted())
    draft.event(TextDelta("One"))
    await clock.pass_on()
    draft.event(TextDelta(" two"))
    await clock.pass_on()
    await asyncio.wait_for(draft.end(), 30)
    assert shown == ["One"]
    long = stream(clock, shown)
    long.event(AssistantStarted())
    long.event(TextDelta("x" * (LONGEST + 1)))
    await clock.pass_on()
    await asyncio.wait_for(long.end(), 30)
    assert shown == ["One"]
