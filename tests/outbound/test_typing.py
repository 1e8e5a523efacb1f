"""The typing sign: shown while a run works, gone when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openclaw.events import AssistantEnded, AssistantStarted, Event, Silent, TextDelta, ThinkingDelta, ToolStarted
from openclaw.messages import AssistantMessage
from openclaw.outbound.typing import TTL_S, Typing, TypingMode
from tests.support.clock import HeldClock


class Sign:
    def __init__(self, mode: TypingMode) -> None:
        self.clock = HeldClock()
        self.shown: list[bool] = []
        self.typing = Typing(self.clock, self.show, mode=mode, interval_s=6)

    async def show(self, on: bool) -> None:
        self.shown.append(on)

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def after(self, *events: Event) -> list[bool]:
        self.typing.started()
        for event in events:
            self.typing.event(event)
        await self.settle()
        return self.shown


START, TEXT, THOUGHT = AssistantStarted(), TextDelta("Hello"), ThinkingDelta("hm")
TOOL = ToolStarted("c1", "read", {})


@pytest.mark.parametrize(
    ("mode", "events", "shows"),
    [
        ("instant", [], True),
        ("message", [], False),
        ("message", [START, THOUGHT], False),
        ("message", [START, TEXT], True),
        ("message", [START, AssistantEnded(AssistantMessage(content=[]), Silent("NO_REPLY"))], False),
        ("message", [TOOL], True),
        ("thinking", [START, THOUGHT], True),
        ("thinking", [START, TEXT], True),
        ("thinking", [], False),
        ("never", [START, TEXT, THOUGHT, TOOL], False),
    ],
)
async def test_the_sign_starts_as_the_mode_says(mode: TypingMode, events: list[Any], shows: bool) -> None:
    sign = Sign(mode)
    assert bool(await sign.after(*events)) is shows
    sign.typing.ended(reply_follows=True)


async def test_the_sign_is_refreshed_and_goes_out_when_the_run_gives_no_sign_of_life() -> None:
    sign = Sign("instant")
    await sign.after()
    for _ in range(int(TTL_S // 6) + 1):
        sign.clock.advance(6)
        await sign.settle()
    assert sign.shown.count(True) == TTL_S // 6
    assert sign.shown[-1] is False
    sign.typing.event(TOOL)
    await sign.settle()
    assert sign.shown[-1] is True
    sign.typing.ended(reply_follows=True)


@pytest.mark.parametrize(("reply_follows", "taken_down"), [(True, False), (False, True)])
async def test_the_end_of_the_run_is_the_end_of_the_sign(reply_follows: bool, taken_down: bool) -> None:
    sign = Sign("instant")
    await sign.after()
    sign.typing.ended(reply_follows=reply_follows)
    late: list[Callable[[], None]] = [sign.typing.started, lambda: sign.typing.event(TOOL)]
    for call in late:
        call()
    sign.clock.advance(60)
    await sign.settle()
    assert sign.shown == [True, False] if taken_down else sign.shown == [True]


async def test_a_sign_that_was_never_shown_is_not_taken_down() -> None:
    sign = Sign("message")
    await sign.after(START, THOUGHT)
    sign.typing.ended(reply_follows=False)
    await sign.settle()
    assert sign.shown == []
