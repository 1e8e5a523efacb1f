"""A client that comes back gets what it missed: in order, once, and only what it may see."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.clock import SystemClock
from openclaw.events import AssistantEnded, AssistantStarted, Spoken, TextDelta, ThinkingDelta
from openclaw.gateway.server.events import CHUNK_BYTES, Backlog, Broadcaster, Client, KeptEvent, RunStream, catch_up
from openclaw.messages import AssistantMessage, Route
from openclaw.runs.run import Run
from openclaw.storage.message_ledger import NO_REASON, LedgerRow, MessageBody
from tests.gateway.server.test_broadcast import INFO, Recorder
from tests.gateway.support import Running
from tests.support.clock import HeldClock


class SlowRecorder(Recorder):
    """Has a full buffer after every write until the test lets it drain."""

    def __init__(self) -> None:
        super().__init__()
        self.drained = asyncio.Event()
        self.asked = asyncio.Event()

    def write(self, packed: bytes) -> None:
        super().write(packed)
        self.buffered += len(packed)

    async def until_read(self) -> None:
        pass

    async def room(self) -> None:
        self.asked.set()
        await self.drained.wait()
        self.drained.clear()
        self.buffered = 0


def client(sink: Recorder | None = None, *, caps: tuple[str, ...] = (), **identity: Any) -> tuple[Client, Recorder]:
    sink = sink or Recorder()
    who: dict[str, Any] = {"role": "operator", "scopes": frozenset({"operator.admin"}), **identity}
    return Client(sink, conn_id="a", caps=frozenset(caps), client_info=INFO, is_local=True, **who), sink


def received(sink: Recorder) -> list[dict[str, Any]]:
    return [json.loads(frame) for packed in sink.written for frame in packed[1:-1].split(b"><")]


def numbers(sink: Recorder) -> list[int]:
    return [frame["seq"] for frame in received(sink)]


async def test_missed_events_come_in_order_and_live_ones_follow() -> None:
    broadcaster = Broadcaster()
    for index in range(5):
        broadcaster.publish("chat", {"n": index})
    made, sink = client()
    broadcaster.add(made)
    assert await catch_up(broadcaster, made, 2) == 3
    broadcaster.publish("chat", {"n": 5})
    assert [(frame["seq"], frame["payload"]["n"]) for frame in received(sink)] == [(3, 2), (4, 3), (5, 4), (6, 5)]


async def test_a_replayed_frame_is_the_frame_that_was_sent() -> None:
    broadcaster = Broadcaster()
    there, first = client()
    broadcaster.add(there)
    broadcaster.publish("presence", {"presence": []}, state_version={"presence": 2, "health": 1})
    back, second = client()
    broadcaster.add(back)
    await catch_up(broadcaster, back, 0)
    assert first.written == second.written


async def test_scopes_are_checked_again() -> None:
    broadcaster = Broadcaster()
    broadcaster.publish("device.pair.requested", {"requestId": "r"})
    broadcaster.publish("tick", {})
    broadcaster.publish("exec.approval.requested", {})
    made, sink = client(scopes=frozenset({"operator.read"}))
    broadcaster.add(made)
    assert await catch_up(broadcaster, made, 0) == 1
    assert numbers(sink) == [2]


async def test_filters_are_asked_again() -> None:
    broadcaster = Broadcaster()
    for key in ("one", "two"):
        broadcaster.publish("chat", {"sessionKey": key})
    made, sink = client()
    made.event_filter = lambda _event, payload: payload["sessionKey"] == "two"
    broadcaster.add(made)
    assert await catch_up(broadcaster, made, 0) == 1
    assert numbers(sink) == [2]


@pytest.mark.parametrize(
    ("caps", "texts"),
    [
        (("delta-events",), [{"delta": "Hel"}, {"delta": "lo"}, {"text": "Bye", "delta": "Bye"}]),
        (
            (),
            [{"text": "Hel", "delta": "Hel"}, {"text": "Hello", "delta": "lo"}, {"text": "Bye", "delta": "Bye"}],
        ),
    ],
)
async def test_text_that_grew_while_nobody_listened_is_told_as_it_was(
    caps: tuple[str, ...], texts: list[dict[str, str]]
) -> None:
    """The whole text of each moment, although it is put together only now, long after the message has ended."""
    broadcaster = Broadcaster()
    stream = RunStream(new_run(), broadcaster, StepClock(), lambda: "off")
    for event in (TextDelta("Hel"), TextDelta("lo"), AssistantStarted(), TextDelta("Bye")):
        stream.event(event)
    made, sink = client(caps=caps)
    broadcaster.add(made)
    await catch_up(broadcaster, made, 0)
    assert [frame["payload"]["data"] for frame in received(sink) if frame["event"] == "agent"] == texts


async def test_long_reasoning_is_sent_less_often_as_it_grows() -> None:
    broadcaster, clock = Broadcaster(), HeldClock()
    made, sink = client()
    broadcaster.add(made)
    run = new_run()
    run.reasoning = "stream"
    stream = RunStream(run, broadcaster, clock, lambda: "off")
    stream.event(AssistantStarted())
    for _ in range(1_000):
        stream.event(ThinkingDelta("hm, " * 50))
        clock.advance(0.05)
    stream.event(AssistantEnded(AssistantMessage(content=[]), Spoken("yes")))
    thoughts = [frame["payload"]["data"] for frame in received(sink) if frame["payload"].get("stream") == "thinking"]
    assert thoughts[-1]["text"] == "".join(one["delta"] for one in thoughts) == "hm, " * 50_000
    assert sum(len(one["text"]) for one in thoughts) < 10 * 200_000


class StepClock(SystemClock):
    """A second passes at every look, so that nothing is coalesced."""

    def __init__(self) -> None:
        self._now = 100.0

    def monotonic(self) -> float:
        self._now += 1
        return self._now


def new_run() -> Run:
    return Run(
        LedgerRow(
            id=1,
            run_id="r",
            dedupe_key="",
            agent_id="main",
            session_key="agent:main:main",
            session_id="s",
            source="webchat",
            route=Route(),
            body=MessageBody(),
            state="running",
            reason=NO_REASON,
            attempts=1,
            accepted_at=0,
            started_at=0,
            ended_at=None,
            result=None,
        )
    )


async def test_what_happens_while_a_slow_client_catches_up_comes_after_what_it_missed() -> None:
    broadcaster = Broadcaster()
    large = "x" * CHUNK_BYTES
    for _ in range(3):
        broadcaster.publish("chat", {"text": large})
    sink = SlowRecorder()
    made, _ = client(sink)
    broadcaster.add(made)
    catching_up = asyncio.create_task(catch_up(broadcaster, made, 0))
    await sink.asked.wait()
    assert numbers(sink) == [1], "one chunk, then the client gets time to read"
    broadcaster.publish("chat", {"live": True})
    assert numbers(sink) == [1]
    for _ in range(3):
        sink.drained.set()
        sink.asked.clear()
        done, _ = await asyncio.wait(
            {catching_up, asyncio.create_task(sink.asked.wait())}, return_when="FIRST_COMPLETED"
        )
        if catching_up in done:
            break
    assert await catching_up == 4
    broadcaster.publish("tick", {}, drop_if_slow=True)
    assert numbers(sink) == [1, 2, 3, 4, 5]


async def test_a_client_too_slow_even_for_the_backlog_learns_of_the_gap() -> None:
    broadcaster = Broadcaster()
    broadcaster.backlog = Backlog(max_frames=2)
    broadcaster.publish("chat", {"text": "x" * CHUNK_BYTES})
    sink = SlowRecorder()
    made, _ = client(sink)
    broadcaster.add(made)
    catching_up = asyncio.create_task(catch_up(broadcaster, made, 0))
    await sink.asked.wait()
    for _ in range(3):
        broadcaster.publish("chat", {})
    sink.drained.set()
    assert await catching_up is None
    broadcaster.publish("chat", {})
    assert numbers(sink) == [1, 5], "live again all the same"


async def test_targeted_events_are_not_replayed() -> None:
    broadcaster = Broadcaster()
    broadcaster.send_to(["gone"], "agent", {"stream": "tool"})
    made, sink = client()
    broadcaster.add(made)
    assert await catch_up(broadcaster, made, 0) == 0
    assert sink.written == []


@given(
    sizes=st.lists(st.integers(0, 300), max_size=40),
    max_frames=st.integers(1, 12),
    max_bytes=st.integers(1, 3_000),
    after=st.integers(0, 45),
)
def test_the_backlog_is_bounded_and_never_hides_a_gap(
    sizes: list[int], max_frames: int, max_bytes: int, after: int
) -> None:
    backlog, newest = Backlog(max_frames, max_bytes), len(sizes)
    for seq, size in enumerate(sizes, start=1):
        backlog.keep(KeptEvent(seq, "chat", b"x" * size))
    assert len(backlog) <= max_frames
    assert sum(len(kept.frame) for kept in backlog.after(0, 100)) <= max_bytes
    if backlog.covers(after, newest):
        assert [kept.seq for kept in backlog.after(after, 100)] == list(range(after + 1, newest + 1))
    else:
        assert after > newest or len(backlog) < newest - after


# Through a real connection


async def replay(socket: Any, after: int, epoch: str | None = None) -> dict[str, Any]:
    params = {"afterSeq": after} if epoch is None else {"afterSeq": after, "epoch": epoch}
    answer = await socket.call("events.replay", params)
    assert answer["ok"], answer
    return answer["payload"]


def seqs(socket: Any, event: str) -> list[int]:
    return [frame["seq"] for frame in socket.unread if frame.get("event") == event]


async def test_a_client_that_reconnects_gets_what_it_missed(running: Running) -> None:
    publish = running.gateway.broadcaster.publish
    async with running.client() as socket:
        publish("chat", {"n": 1})
        last = (await socket.event("chat"))["seq"]
        epoch = socket.hello["server"]["epoch"]
    publish("chat", {"n": 2})
    publish("chat", {"n": 3})
    async with running.client() as socket:
        assert socket.hello["server"]["epoch"] == epoch
        assert socket.hello["server"]["seq"] >= last + 2
        answer = await replay(socket, last, epoch)
        assert answer["ok"] is True
        assert (answer["epoch"], answer["replayed"]) == (epoch, answer["seq"] - last)
        assert [frame["payload"]["n"] for frame in socket.unread if frame.get("event") == "chat"] == [2, 3]


async def test_a_client_that_asks_for_it_gets_nothing_before_its_replay(running: Running) -> None:
    publish = running.gateway.broadcaster.publish
    async with running.client(caps=["event-replay"]) as socket:
        publish("chat", {"n": 1})
        assert (await socket.call("health"))["ok"]
        assert seqs(socket, "chat") == []
        await replay(socket, socket.hello["server"]["seq"], socket.hello["server"]["epoch"])
        assert len(seqs(socket, "chat")) == 1
        publish("chat", {"n": 2})
        await socket.until(lambda frame: frame.get("event") == "chat" and frame["payload"]["n"] == 2)


async def test_numbers_of_another_start_are_a_gap_and_the_client_is_live(running: Running) -> None:
    async with running.client(caps=["event-replay"]) as socket:
        answer = await replay(socket, 1, "another-epoch")
        assert (answer["ok"], answer["gap"]) == (False, True)
        assert answer["reason"] == "the Gateway was restarted since"
        running.gateway.broadcaster.publish("chat", {})
        await socket.event("chat")


@pytest.mark.parametrize("after", [0, 10**6])
async def test_numbers_that_are_gone_or_never_were_are_a_gap(running: Running, after: int) -> None:
    running.gateway.broadcaster.backlog = Backlog(max_frames=2)
    for _ in range(3):
        running.gateway.broadcaster.publish("chat", {})
    async with running.client() as socket:
        answer = await replay(socket, after)
        assert (answer["gap"], answer["epoch"]) == (True, socket.hello["server"]["epoch"])


async def test_a_call_without_a_stream_is_told_to_use_one(running: Running) -> None:
    _, answer = await running.rpc("events.replay", {"afterSeq": 0})
    assert answer["error"]["message"] == "events.replay needs a connection that receives events, such as a WebSocket"


async def test_a_long_absence_is_made_up_without_losing_the_connection(running: Running) -> None:
    """More than a client's buffer may hold: the replay waits for the reader instead of dropping it."""
    broadcaster = running.gateway.broadcaster
    broadcaster.backlog = Backlog(max_bytes=64 * 1024 * 1024)
    began = broadcaster.seq
    for _ in range(60):
        broadcaster.publish("chat", {"text": "x" * 100_000})
    async with running.client() as socket:
        answer = await replay(socket, began)
        assert answer["replayed"] == answer["seq"] - began
        assert seqs(socket, "chat") == list(range(began + 1, began + 61))
