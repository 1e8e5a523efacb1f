"""The typing sign: shown while a run works, gone when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from openclaw.agent.recorder import RunResult
from openclaw.config.schema import Config
from openclaw.config.schema.messages import Session, TypingMode
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    Event,
    Silent,
    Spoken,
    TextDelta,
    ThinkingDelta,
    ToolStarted,
)
from openclaw.gateway.channels import TTL_S, ChannelRun, ChannelServices
from openclaw.messages import AssistantMessage
from openclaw.runs.queue import RunRecord
from openclaw.storage.base import AbortReason, LedgerRow
from tests.support.clock import HeldClock


class Sign:
    """A run on a channel, and what the channel is told to show."""

    def __init__(self, mode: TypingMode) -> None:
        self.clock = HeldClock()
        self.shown: list[bool] = []
        self.woken = 0
        key, route = "agent:main:main", {"channel": "signal"}
        row = SimpleNamespace(run_id="r1", agent_id="main", session_key=key, route=route)
        self.record = RunRecord(cast(LedgerRow, row))
        config = Config(session=Session(typing_mode=mode, typing_interval_seconds=6))
        channels = SimpleNamespace(typing=self.show, find=lambda channel, account: None)
        delivery = SimpleNamespace(wake=self.wake)
        services = SimpleNamespace(clock=self.clock, channels=channels, delivery=delivery, ledger=None)
        self.run = ChannelRun(self.record, cast(ChannelServices, services), config)

    async def show(self, channel: str, route: Any, on: bool) -> None:
        self.shown.append(on)

    def wake(self) -> None:
        self.woken += 1

    def finish(self, *, said: str = "Hello") -> None:
        self.record.end("ok", 0, result=RunResult(outcome="ok", said=[Spoken(said)] if said else []))
        self.run.finished()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def after(self, *events: Event) -> list[bool]:
        self.run.started()
        for event in events:
            self.run.event(event)
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
    sign.finish()


async def test_the_sign_is_refreshed_and_goes_out_when_the_run_gives_no_sign_of_life() -> None:
    sign = Sign("instant")
    await sign.after()
    for _ in range(int(TTL_S // 6) + 1):
        sign.clock.advance(6)
        await sign.settle()
    assert sign.shown.count(True) == TTL_S // 6
    assert sign.shown[-1] is False
    sign.run.event(TOOL)
    await sign.settle()
    assert sign.shown[-1] is True
    sign.finish()


@pytest.mark.parametrize(
    ("end", "taken_down"),
    [
        (lambda sign: sign.finish(), False),
        (lambda sign: sign.finish(said=""), True),
        (lambda sign: sign.run.absorbed("r2"), False),
        (lambda sign: sign.run.aborted(AbortReason.STOP), True),
    ],
)
async def test_the_end_of_the_run_is_the_end_of_the_sign(end: Callable[[Sign], None], taken_down: bool) -> None:
    sign = Sign("instant")
    await sign.after()
    end(sign)
    late: list[Callable[[], None]] = [sign.run.started, lambda: sign.run.event(TOOL)]
    for call in late:
        call()
    sign.clock.advance(60)
    await sign.settle()
    assert sign.shown == [True, False] if taken_down else sign.shown == [True]


async def test_a_sign_that_was_never_shown_is_not_taken_down() -> None:
    sign = Sign("message")
    await sign.after(START, THOUGHT)
    sign.finish(said="")
    await sign.settle()
    assert sign.shown == []


async def test_the_end_of_the_run_wakes_the_delivery() -> None:
    sign = Sign("never")
    await sign.after(START, TEXT)
    assert sign.woken == 0
    sign.finish()
    assert sign.woken == 1
