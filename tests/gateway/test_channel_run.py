"""The typing sign: shown while a run works, gone when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from openclaw.agent.run_result import RunResult
from openclaw.channels.base import Capabilities
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
from openclaw.messages import AssistantMessage, Route
from openclaw.runs.run import Run, RunAbsorbed, RunBegan, RunFinished, RunStopping
from openclaw.storage.message_ledger import AbortReason, LedgerRow
from tests.support.clock import HeldClock


class Sign:
    """A run on a channel, and what the channel is told to show."""

    def __init__(self, mode: TypingMode, *, outlasts_reply: bool = False) -> None:
        self.clock = HeldClock()
        self.shown: list[bool] = []
        self.platform = asyncio.Event()
        """The platform answers while it is set."""
        self.platform.set()
        self.delivered = asyncio.Event()
        self.woken = 0
        key, route = "agent:main:main", Route(channel="signal")
        row = SimpleNamespace(id=1, run_id="r1", agent_id="main", session_key=key, route=route)
        self.run = Run(cast(LedgerRow, row))
        config = Config(session=Session(typing_mode=mode, typing_interval_seconds=6))
        capabilities = Capabilities(typing=True, typing_outlasts_reply=outlasts_reply)
        account = SimpleNamespace(kind=SimpleNamespace(capabilities=capabilities))
        channels = SimpleNamespace(typing=self.show, find=lambda channel, account_id: account)
        delivery = SimpleNamespace(wake=self.wake, wait=self.wait)
        services = SimpleNamespace(clock=self.clock, channels=channels, delivery=delivery, ledger=None)
        self.channel_run = ChannelRun(self.run, cast(ChannelServices, services), config)

    async def show(self, channel: str, route: Any, on: bool) -> None:
        await self.platform.wait()
        self.shown.append(on)

    async def wait(self, ledger_id: int, timeout_s: float) -> list[Any]:
        await self.delivered.wait()
        return []

    def wake(self) -> None:
        self.woken += 1

    def finish(self, *, said: str = "Hello") -> None:
        self.run.end("ok", 0, result=RunResult(outcome="ok", said=[Spoken(said)] if said else []))
        self.channel_run.event(RunFinished())

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def after(self, *events: Event) -> list[bool]:
        self.channel_run.event(RunBegan())
        for event in events:
            self.channel_run.event(event)
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
    sign.channel_run.event(TOOL)
    await sign.settle()
    assert sign.shown[-1] is True
    sign.finish()


@pytest.mark.parametrize(
    ("end", "taken_down"),
    [
        (lambda sign: sign.finish(), False),
        (lambda sign: sign.finish(said=""), True),
        (lambda sign: sign.channel_run.event(RunAbsorbed(sign.run)), False),
        (lambda sign: sign.channel_run.event(RunStopping(AbortReason.STOP)), True),
    ],
)
async def test_the_end_of_the_run_is_the_end_of_the_sign(end: Callable[[Sign], None], taken_down: bool) -> None:
    sign = Sign("instant")
    await sign.after()
    end(sign)
    late: list[Callable[[], None]] = [lambda: sign.channel_run.event(RunBegan()), lambda: sign.channel_run.event(TOOL)]
    for call in late:
        call()
    sign.clock.advance(60)
    await sign.settle()
    assert sign.shown == [True, False] if taken_down else sign.shown == [True]


async def test_a_run_that_ends_while_the_sign_is_being_shown_does_not_cancel_it() -> None:
    sign = Sign("instant")
    sign.platform.clear()
    await sign.after()
    sign.finish()
    sign.platform.set()
    await sign.settle()
    assert sign.shown == [True]
    # The reply may have overtaken the sign, so the sign is ended as well.
    sign.delivered.set()
    await sign.settle()
    assert sign.shown == [True, False]


async def test_a_sign_that_outlasts_a_reply_is_removed_after_the_delivery() -> None:
    sign = Sign("instant", outlasts_reply=True)
    await sign.after()
    sign.finish()
    await sign.settle()
    assert sign.shown == [True]
    sign.delivered.set()
    await sign.settle()
    assert sign.shown == [True, False]


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
