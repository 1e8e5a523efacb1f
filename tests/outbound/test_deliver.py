"""The outbox worker on a real ledger: order, retries, doubt, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw.messages import Route
from openclaw.outbound.deliver import FOR_EVER, LONGEST_RETRY_AFTER_S, PART_EXPIRY_MS, Delivery
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.message_ledger import Accept, DeliveryCode, MessageBody, OutboxPart, OutboxRow
from tests.support.clock import HeldClock


class Watched:
    """Something that can be waited for."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


class WatchedClock(HeldClock, Watched):
    def __init__(self) -> None:
        HeldClock.__init__(self)
        Watched.__init__(self)
        self.sleeps = 0
        self.jump_ms = 0
        """How far someone has set the wall clock."""

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.changed.set()
        await super().sleep(seconds)


class Wire(Watched):
    """An outlet whose channels do what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[str, str, str]] = []
        """(channel, to, text) in order of arrival."""
        self.parts: list[OutgoingMessage] = []
        self.keys: list[str] = []
        self.down: set[str] = set()
        self.silent: set[str] = set()
        """Channels whose platform answers no question."""
        self.asked = 0
        self.keyed: set[str] = set()
        self.failures: dict[str, list[SendFailed]] = {}
        self.hanging: dict[str, asyncio.Event] = {}
        self.most_at_once = self._at_once = 0

    def ready(self, channel: str, route: Route) -> bool:
        return channel not in self.down

    def idempotent(self, channel: str) -> bool:
        return channel in self.keyed

    async def answers(self, channel: str, route: Route) -> bool:
        self.asked += 1
        return channel not in self.silent

    async def send(self, channel: str, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self.changed.set()
        try:
            if channel in self.hanging:
                await self.hanging[channel].wait()
            if waiting := self.failures.get(channel):
                raise waiting.pop(0)
            await asyncio.sleep(0)
            self.got.append((channel, route.to, message.text))
            self.parts.append(message)
            self.keys.append(key)
            return SendReceipt(message_id=f"id-{len(self.got)}")
        finally:
            self._at_once -= 1
            self.changed.set()

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.got]


class Bench:
    def __init__(self, state: Path, ledger: FileLedger, clock: WatchedClock) -> None:
        self.state = state
        self.clock = clock
        self.wire = Wire()
        self.use(ledger)

    def use(self, ledger: FileLedger) -> None:
        self.ledger = ledger
        self.delivery = Delivery(ledger, self.wire, self.clock, chance=lambda: 0.5, max_attempts=3)

    async def post(self, run_id: str, *texts: str, channel: str = "signal", to: str = "ann") -> int:
        accept = Accept(
            run_id=run_id,
            dedupe_key="",
            agent_id="main",
            session_key="agent:main:main",
            session_id="s",
            source="test",
            route=Route(channel=channel, to=to),
            body=MessageBody(),
        )
        parts = [OutboxPart(part=n, channel=channel, payload={"text": text}) for n, text in enumerate(texts)]
        row, _ = await self.ledger.post(accept, parts)
        return row.id

    async def round(self) -> None:
        await self.delivery.deliver_due()
        await self.delivery.drain()

    async def states(self, ledger_id: int) -> list[str]:
        return [row.state for row in await self.ledger.outbox_of(ledger_id)]

    async def crash(self) -> None:
        """The process is gone; the next one opens the same ledger."""
        await self.ledger.close()
        self.use(await FileLedger.open(str(self.state), clock=self.clock))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    clock = WatchedClock()
    made = Bench(tmp_path, await FileLedger.open(str(tmp_path), clock=clock), clock)
    yield made
    await made.ledger.close()


async def test_parts_arrive_in_order_and_are_marked_sent_with_their_id(bench: Bench) -> None:
    message = await bench.post("r1", "one", "two", "three")
    await bench.round()
    assert bench.wire.texts == ["one", "two", "three"]
    assert bench.wire.keys == ["r1:0", "r1:1", "r1:2"]
    rows = await bench.ledger.outbox_of(message)
    assert [(row.state, row.message_id) for row in rows] == [("sent", "id-1"), ("sent", "id-2"), ("sent", "id-3")]
    await bench.round()
    assert len(bench.wire.got) == 3


async def test_a_failed_part_is_tried_again_later_and_holds_back_what_follows(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("busy")]
    await bench.post("r1", "one", "two")
    await bench.post("r2", "three")
    await bench.round()
    await bench.post("r3", "four")
    await bench.round()
    assert bench.wire.texts == []
    bench.clock.advance(2)
    await bench.round()
    assert bench.wire.texts == ["one", "two", "three", "four"]


async def test_order_is_kept_over_a_restart_while_a_part_waits(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("busy")]
    await bench.post("r1", "one")
    await bench.round()
    await bench.crash()
    await bench.post("r2", "two")
    worker = asyncio.create_task(bench.delivery.run())
    try:
        await bench.clock.until(lambda: bench.clock.sleeps > 0)
        assert bench.wire.texts == []
        bench.clock.advance(2)
        bench.delivery.wake()
        await bench.wire.until(lambda: len(bench.wire.got) == 2)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert bench.wire.texts == ["one", "two"]


async def test_a_long_outbox_keeps_its_order_through_failures_and_restarts(bench: Bench) -> None:
    """More parts wait than the worker reads at once."""
    texts = [f"{reply}.{part}" for reply in range(1, 131) for part in range(5)]
    for reply in range(0, len(texts), 5):
        await bench.post(f"r{reply}", *texts[reply : reply + 5])
    bench.wire.failures["signal"] = [SendFailed("busy"), SendFailed("busy"), SendFailed("refused", reached=False)]
    for _ in range(8):
        await bench.round()
        await bench.crash()
        bench.clock.advance(30)
    assert bench.wire.texts == texts


async def test_a_given_up_message_is_given_up_as_a_whole_in_a_long_outbox(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw.outbound.deliver.BATCH", 2)
    bench.wire.failures["signal"] = [SendFailed("no such person", permanent=True)]
    first, second = await bench.post("r1", *"abcde"), await bench.post("r2", *"fgh")
    await bench.round()
    assert await bench.states(first) == ["dead"] * 5
    assert await bench.states(second) == ["sent"] * 3


async def test_a_long_outbox_of_a_channel_that_is_down_expires_as_a_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw.outbound.deliver.BATCH", 2)
    bench.wire.down.add("signal")
    message = await bench.post("r1", *"abcde")
    bench.clock.advance(PART_EXPIRY_MS / 1000)
    young = await bench.post("r2", "f")
    await bench.round()
    assert await bench.states(message) == ["dead"] * 5
    assert await bench.states(young) == ["pending"]


async def test_other_conversations_go_on_while_one_waits(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("busy")]
    await bench.post("r1", "stuck", to="ann")
    await bench.post("r2", "free", to="bob")
    await bench.round()
    assert bench.wire.got == [("signal", "bob", "free")]


async def test_a_channel_that_hangs_does_not_block_the_others(bench: Bench) -> None:
    bench.wire.hanging["signal"] = asyncio.Event()
    for number in range(20):
        await bench.post(f"s{number}", "hangs", to=f"peer{number}")
    await bench.post("i1", "flows", channel="irc")
    await bench.delivery.deliver_due()
    await bench.wire.until(lambda: bool(bench.wire.got))
    assert bench.wire.got == [("irc", "ann", "flows")]
    assert bench.wire.most_at_once <= 5
    bench.wire.hanging.pop("signal").set()
    for _ in range(6):
        await bench.round()
    assert len(bench.wire.got) == 21


async def test_a_channel_that_is_down_is_waited_for_without_using_up_tries(bench: Bench) -> None:
    bench.wire.down.add("signal")
    message = await bench.post("r1", "late")
    for _ in range(10):
        await bench.round()
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.attempts) == ("pending", 0)
    bench.wire.down.clear()
    await bench.round()
    assert bench.wire.texts == ["late"]


async def test_what_nobody_could_deliver_for_a_day_is_dead_and_says_why(bench: Bench) -> None:
    bench.wire.down.add("signal")
    message = await bench.post("r1", "stale")
    bench.clock.advance(PART_EXPIRY_MS / 1000)
    await bench.round()
    (row,) = await bench.ledger.outbox_of(message)
    assert row.state == "dead" and row.error.startswith("expired")
    bench.wire.down.clear()
    await bench.round()
    assert bench.wire.got == []


async def test_a_refusal_for_good_ends_the_message_but_not_the_next_one(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("no such person", permanent=True)]
    first = await bench.post("r1", "one", "two")
    second = await bench.post("r2", "three")
    await bench.round()
    assert await bench.states(first) == ["dead", "dead"]
    assert await bench.states(second) == ["sent"]
    assert bench.wire.texts == ["three"]


async def test_tries_the_platform_answered_are_counted(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("busy") for _ in range(5)]
    message = await bench.post("r1", "one")
    for _ in range(4):
        await bench.round()
        bench.clock.advance(400)
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.attempts) == ("dead", 3)
    assert "given up after 3 tries: busy" in row.error


async def test_a_server_that_cannot_be_reached_is_not_given_up_before_the_part_expires(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("refused", reached=False) for _ in range(20)]
    message = await bench.post("r1", "one")
    for _ in range(21):
        await bench.round()
        bench.clock.advance(400)
    assert await bench.states(message) == ["sent"]


async def test_the_wait_a_server_asks_for_is_kept(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("slow down", retry_after_s=120)]
    await bench.post("r1", "one")
    await bench.round()
    bench.clock.advance(100)
    await bench.round()
    assert bench.wire.got == []
    bench.clock.advance(40)
    await bench.round()
    assert bench.wire.texts == ["one"]


@pytest.mark.parametrize("maybe_sent", [True, False])
async def test_an_answered_error_is_retried_within_seconds(bench: Bench, maybe_sent: bool) -> None:
    """The platform answers, so there is no silence to wait out. Where the part may have arrived, the retry says so."""
    bench.delivery = Delivery(bench.ledger, bench.wire, bench.clock)
    failures = [SendFailed("HTTP 503", maybe_sent=maybe_sent) for _ in range(4)]
    bench.wire.failures["signal"] = failures
    message = await bench.post("r1", "one")
    for pause_s in (1, 5, 20, 60):
        await bench.round()
        left = len(failures)
        bench.clock.advance(pause_s - 0.1)
        await bench.round()
        assert (len(failures), bench.wire.got) == (left, []), f"it waits {pause_s} s"
        bench.clock.advance(0.1)
    await bench.round()
    assert [(part.text, part.possibly_duplicate) for part in bench.wire.parts] == [("one", maybe_sent)]
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.answered_errors, bench.wire.asked) == ("sent", 4, 0)
    assert row.code is (DeliveryCode.REPEATED if maybe_sent else DeliveryCode.NONE)


async def test_an_error_that_answers_after_a_silence_ends_the_long_pauses(bench: Bench) -> None:
    silence = SendFailed("no answer", reached=False, maybe_sent=True)
    bench.wire.failures["signal"] = [silence, silence, SendFailed("HTTP 503", maybe_sent=True)]
    message = await bench.post("r1", "one")
    await bench.round()
    bench.clock.advance(2)
    await bench.round()
    bench.clock.advance(301)
    await bench.round()
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.doubts, row.code) == ("pending", 1, DeliveryCode.ANSWERED_ERROR)
    bench.clock.advance(1)
    await bench.round()
    assert [part.possibly_duplicate for part in bench.wire.parts] == [True]


async def test_attempts_that_reached_nobody_do_not_count_as_answered(bench: Bench) -> None:
    """A platform that was away for minutes and then answers 503 for a moment costs no reply."""
    away = [SendFailed("refused", reached=False) for _ in range(12)]
    bench.wire.failures["signal"] = [*away, SendFailed("starting"), SendFailed("starting")]
    message = await bench.post("r1", "one")
    for _ in range(15):
        await bench.round()
        bench.clock.advance(400)
    assert await bench.states(message) == ["sent"]


@pytest.mark.parametrize(
    ("asked_s", "waited_s"), [(0.2, 1), (30, 30), (1200, 1200), (1_000_000, LONGEST_RETRY_AFTER_S)]
)
async def test_a_platform_is_not_asked_before_the_time_it_names(bench: Bench, asked_s: float, waited_s: float) -> None:
    bench.delivery = Delivery(bench.ledger, bench.wire, bench.clock, chance=lambda: 0.0)
    bench.wire.failures["signal"] = [SendFailed("HTTP 503", maybe_sent=True, retry_after_s=asked_s)]
    await bench.post("r1", "one")
    await bench.round()
    bench.clock.advance(waited_s - 0.1)
    await bench.round()
    assert bench.wire.got == []
    bench.clock.advance(0.1)
    await bench.round()
    assert bench.wire.texts == ["one"]


async def test_a_part_cut_short_by_a_crash_is_sent_again_marked_as_possible_duplicate(bench: Bench) -> None:
    message = await bench.post("r1", "one", "two")
    (first, _) = await bench.ledger.outbox_of(message)
    await bench.ledger.outbox_mark(first.id, "sending")
    await bench.crash()
    await bench.round()
    assert [(part.text, part.possibly_duplicate) for part in bench.wire.parts] == [("one", True), ("two", False)]
    rows = await bench.ledger.outbox_of(message)
    assert (rows[0].code, rows[0].doubts) == (DeliveryCode.REPEATED, 1) and rows[1].code is DeliveryCode.NONE


async def test_where_the_platform_knows_keys_nothing_is_in_doubt(bench: Bench) -> None:
    bench.wire.keyed.add("signal")
    message = await bench.post("r1", "one")
    (row,) = await bench.ledger.outbox_of(message)
    await bench.ledger.outbox_mark(row.id, "sending")
    await bench.crash()
    await bench.round()
    assert (bench.wire.parts[0].possibly_duplicate, bench.wire.keys) == (False, ["r1:0"])
    (row,) = await bench.ledger.outbox_of(message)
    assert row.error == ""


async def test_a_server_that_stays_silent_for_minutes_costs_no_reply_and_one_repeat(bench: Bench) -> None:
    """Nothing is sent again before the platform answers a question; then it is sent once, marked."""
    bench.wire.failures["signal"] = [SendFailed("no answer", reached=False, maybe_sent=True)]
    bench.wire.silent.add("signal")
    message = await bench.post("r1", "one")
    for _ in range(60):
        await bench.round()
        bench.clock.advance(30)
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.attempts, row.doubts, row.code) == ("pending", 1, 1, DeliveryCode.UNANSWERED)
    assert bench.wire.asked > 30
    bench.wire.silent.clear()
    await bench.round()
    assert [(part.text, part.possibly_duplicate) for part in bench.wire.parts] == [("one", True)]
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.code, row.doubts) == ("sent", DeliveryCode.REPEATED, 1)


async def test_a_silence_survives_a_restart_and_ends_only_after_a_day(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("no answer", reached=False, maybe_sent=True)]
    bench.wire.silent.add("signal")
    message = await bench.post("r1", "one")
    await bench.round()
    await bench.crash()
    bench.clock.advance(23 * 3600)
    await bench.round()
    assert await bench.states(message) == ["pending"]
    bench.clock.advance(3600)
    await bench.round()
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.code, row.error) == ("dead", DeliveryCode.GIVEN_UP, "expired: no answer")
    assert bench.wire.got == []


async def test_a_server_that_answers_everything_but_sends_gets_few_copies_in_a_day(bench: Bench) -> None:
    sends = [SendFailed("no answer", reached=False, maybe_sent=True) for _ in range(1000)]
    bench.wire.failures["signal"] = sends
    message = await bench.post("r1", "one")
    for _ in range(24 * 60 - 2):
        await bench.round()
        bench.clock.advance(60)
    assert await bench.states(message) == ["pending"]
    assert 3 < 1000 - len(sends) < 20


async def test_a_part_that_brings_the_gateway_down_three_times_is_not_sent_again(bench: Bench) -> None:
    message = await bench.post("r1", "one")
    (row,) = await bench.ledger.outbox_of(message)
    for crash in (1, 2, 3):
        await bench.ledger.outbox_mark(row.id, "sending", error=row.error, doubts=row.doubts)
        await bench.crash()
        (row,) = await bench.ledger.outbox_of(message)
        assert row.doubts == crash
    await bench.round()
    (row,) = await bench.ledger.outbox_of(message)
    assert (row.state, row.code, row.doubts, bench.wire.got) == ("dead", DeliveryCode.GIVEN_UP, 3, [])


async def test_a_refusal_after_a_doubt_does_not_say_that_it_never_arrived(bench: Bench) -> None:
    bench.wire.failures["signal"] = [
        SendFailed("no answer", maybe_sent=True),
        SendFailed("no such person", permanent=True),
    ]
    message = await bench.post("r1", "one")
    for _ in range(2):
        await bench.round()
        bench.clock.advance(30)
    (row,) = await bench.ledger.outbox_of(message)
    assert row.state == "dead" and row.doubts == 1 and row.error == "no such person"


async def test_doubt_is_remembered_through_later_failures(bench: Bench) -> None:
    bench.wire.failures["signal"] = [
        SendFailed("no answer", maybe_sent=True),
        SendFailed("refused", reached=False),
    ]
    await bench.post("r1", "one")
    for _ in range(3):
        await bench.round()
        bench.clock.advance(30)
    assert [part.possibly_duplicate for part in bench.wire.parts] == [True]


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize("jump", [-DAY_MS, DAY_MS])
async def test_a_wall_clock_that_jumps_neither_delays_nor_expires_what_waits(bench: Bench, jump: int) -> None:
    bench.wire.failures["signal"] = [SendFailed("busy")]
    first = await bench.post("r1", "one")
    await bench.round()
    bench.clock.jump_ms = jump
    second = await bench.post("r2", "two", to="bob")
    bench.clock.advance(2)
    await bench.round()
    assert (await bench.states(first), await bench.states(second)) == (["sent"], ["sent"])


async def test_a_clock_that_was_a_day_ahead_before_the_restart_does_not_hold_a_part_for_a_day(bench: Bench) -> None:
    bench.clock.jump_ms = DAY_MS
    await bench.crash()
    bench.wire.failures["signal"] = [SendFailed("busy")]
    await bench.post("r1", "one")
    await bench.round()
    bench.clock.jump_ms = 0
    await bench.crash()
    worker = asyncio.create_task(bench.delivery.run())
    try:
        await bench.clock.until(lambda: bench.clock.sleeps > 0)
        bench.clock.advance(LONGEST_RETRY_AFTER_S + 1)
        await bench.wire.until(lambda: bench.wire.texts == ["one"])
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def test_a_payload_nobody_can_read_is_dead_at_once(bench: Bench) -> None:
    accept = Accept(
        run_id="r1",
        dedupe_key="",
        agent_id="main",
        session_key="k",
        session_id="s",
        source="t",
        body=MessageBody(),
        route=Route(channel="signal", to="ann"),
    )
    row, _ = await bench.ledger.post(accept, [OutboxPart(part=0, channel="signal", payload={"text": 7})])
    await bench.round()
    assert await bench.states(row.id) == ["dead"]


async def test_the_worker_sleeps_until_woken_or_due(bench: Bench) -> None:
    worker = asyncio.create_task(bench.delivery.run())
    try:
        await bench.post("r1", "one")
        bench.delivery.wake()
        await bench.wire.until(lambda: bench.wire.texts == ["one"])
        bench.wire.failures["signal"] = [SendFailed("busy")]
        await bench.post("r2", "two")
        bench.delivery.wake()
        await bench.wire.until(lambda: not bench.wire.failures["signal"])
        while bench.wire.texts != ["one", "two"]:
            asleep = bench.clock.sleeps
            bench.clock.advance(31)
            await bench.clock.until(lambda seen=asleep: bench.clock.sleeps > seen)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await bench.delivery.stop()


async def test_a_part_that_becomes_due_while_the_worker_looks_is_not_slept_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.wire.failures["signal"] = [SendFailed("busy")]
    await bench.post("r1", "one")
    await bench.round()
    read, late = bench.ledger.outbox_due, [2.0]

    async def read_slowly(until_ms: int, limit: int) -> list[OutboxRow]:
        rows = await read(until_ms, limit)
        if until_ms < FOR_EVER and late:
            bench.clock.advance(late.pop())
        return rows

    monkeypatch.setattr(bench.ledger, "outbox_due", read_slowly)
    worker = asyncio.create_task(bench.delivery.run())
    try:
        await bench.wire.until(lambda: bench.wire.texts == ["one"])
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await bench.delivery.stop()


async def test_stopping_lets_a_send_on_the_wire_finish(bench: Bench) -> None:
    bench.wire.hanging["signal"] = asyncio.Event()
    message = await bench.post("r1", "one")
    await bench.delivery.deliver_due()
    stopping = asyncio.create_task(bench.delivery.stop())
    await asyncio.sleep(0)
    bench.wire.hanging["signal"].set()
    await stopping
    assert await bench.states(message) == ["sent"]


@pytest.mark.parametrize("ticks", range(10))
async def test_the_worker_can_be_cancelled_at_any_moment_of_waking_up(bench: Bench, ticks: int) -> None:
    worker = asyncio.create_task(bench.delivery.run())
    await bench.clock.until(lambda: bench.clock.sleeps > 0)
    bench.delivery.wake()
    for _ in range(ticks):
        await asyncio.sleep(0)
    worker.cancel()
    await asyncio.wait([worker], timeout=60)
    assert worker.cancelled()


async def test_a_part_that_was_given_up_can_be_tried_again_although_it_is_old(bench: Bench) -> None:
    bench.wire.failures["signal"] = [SendFailed("no such person", permanent=True)]
    message = await bench.post("r1", "one", "two")
    await bench.round()
    assert await bench.states(message) == ["dead", "dead"]
    bench.clock.advance(3 * 24 * 3600)
    assert await bench.delivery.again(await bench.ledger.outbox_of(message)) == 2
    await bench.round()
    assert bench.wire.texts == ["one", "two"] and await bench.states(message) == ["sent", "sent"]
    assert await bench.delivery.again(await bench.ledger.outbox_of(message)) == 0, "what was sent is not sent again"


async def test_a_part_that_was_dropped_is_not_sent_even_when_a_worker_had_read_it(bench: Bench) -> None:
    bench.wire.hanging["signal"] = asyncio.Event()
    message = await bench.post("r1", "one", "two")
    await bench.delivery.deliver_due()
    await bench.wire.until(lambda: bench.wire.most_at_once > 0)
    first, second = await bench.ledger.outbox_of(message)
    assert first.state == "sending"
    assert await bench.delivery.drop([first, second]) == 1
    bench.wire.hanging["signal"].set()
    await bench.delivery.drain()
    await bench.round()
    assert bench.wire.texts == ["one"] and await bench.states(message) == ["sent", "dead"]
    (dead,) = await bench.ledger.outbox_parts(("dead",))
    assert (dead.id, dead.code) == (second.id, DeliveryCode.DROPPED)


async def test_a_part_that_was_dropped_stays_dropped_when_the_one_before_it_is_tried_again(bench: Bench) -> None:
    bench.wire.hanging["signal"] = asyncio.Event()
    bench.wire.failures["signal"] = [SendFailed("busy")]
    message = await bench.post("r1", "one", "two")
    await bench.delivery.deliver_due()
    await bench.wire.until(lambda: bench.wire.most_at_once > 0)
    assert await bench.delivery.drop((await bench.ledger.outbox_of(message))[1:]) == 1
    bench.wire.hanging["signal"].set()
    await bench.delivery.drain()
    assert await bench.states(message) == ["pending", "dead"]
    await bench.crash()
    bench.clock.advance(60)
    await bench.round()
    assert bench.wire.texts == ["one"] and await bench.states(message) == ["sent", "dead"]


async def test_a_part_that_is_dropped_while_it_is_being_sent_is_not_tried_again(bench: Bench) -> None:
    bench.wire.hanging["signal"] = asyncio.Event()
    bench.wire.failures["signal"] = [SendFailed("busy")]
    message = await bench.post("r1", "one")
    rows = await bench.ledger.outbox_of(message)
    await bench.delivery.deliver_due()
    await bench.wire.until(lambda: bench.wire.most_at_once > 0)
    assert await bench.delivery.drop(rows) == 1, "it was read before the worker began with it"
    bench.wire.hanging["signal"].set()
    await bench.delivery.drain()
    bench.clock.advance(60)
    await bench.round()
    assert bench.wire.texts == [] and await bench.states(message) == ["dead"]


async def test_a_disk_that_fails_for_longer_than_a_pause_leaves_the_conversation_in_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.wire.failures["signal"] = [SendFailed("busy")]
    message = await bench.post("r1", "one", "two")
    mark, full = bench.ledger.outbox_mark, True

    async def refused(part: int, state: Any, **more: Any) -> bool:
        if state == "pending" and full:
            raise OSError(28, "No space left on device")
        return await mark(part, state, **more)

    monkeypatch.setattr(bench.ledger, "outbox_mark", refused)
    await bench.delivery.deliver_due()
    await bench.clock.until(lambda: bench.clock.sleeps > 0)
    bench.clock.advance(0.1)
    full = False
    bench.clock.advance(60)
    await bench.delivery.deliver_due()
    await bench.delivery.drain()
    await bench.round()
    assert bench.wire.texts == ["one", "two"] and await bench.states(message) == ["sent", "sent"]
