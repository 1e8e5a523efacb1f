"""One event, many clients."""

import asyncio
from typing import Any

import msgspec

from openclaw.gateway.server.connection import TICK_INTERVAL_MS
from openclaw.gateway.server.events import Broadcaster, Client, ClientInfo, field_of
from tests.gateway.support import Running, running_gateway
from tests.support.clock import HeldClock

INFO = ClientInfo(id="test", version="1", platform="linux", mode="test")


class Recorder:
    """A sink that keeps the very objects it was given."""

    def __init__(self) -> None:
        self.buffered = 0
        self.written: list[bytes] = []
        self.closed_with: tuple[int, str] | None = None

    @staticmethod
    def pack(frame: bytes) -> bytes:
        return b"<" + frame + b">"

    def write(self, packed: bytes) -> None:
        self.written.append(packed)

    async def until_read(self) -> None:
        pass

    async def room(self) -> None:
        pass

    def close(self, code: int, reason: str) -> None:
        self.closed_with = (code, reason)

    async def closed(self, code: int, reason: str) -> None:
        self.close(code, reason)


def client(name: str, *, caps: set[str] | None = None, **more: Any) -> tuple[Client, Recorder]:
    sink = Recorder()
    identity: dict[str, Any] = {"role": "operator", "scopes": frozenset({"operator.admin"}), **more}
    return Client(sink, conn_id=name, caps=frozenset(caps or ()), client_info=INFO, is_local=True, **identity), sink


def test_an_event_is_encoded_once_and_shared_byte_for_byte() -> None:
    broadcaster = Broadcaster()
    sinks: list[Recorder] = []
    for index in range(3):
        made, sink = client(str(index))
        broadcaster.add(made)
        sinks.append(sink)
    broadcaster.publish("chat", {"runId": "r", "state": "final"})
    assert sinks[0].written == [b'<{"type":"event","event":"chat","payload":{"runId":"r","state":"final"},"seq":1}>']
    assert sinks[0].written[0] is sinks[1].written[0] is sinks[2].written[0]


def test_the_sequence_counts_broadcasts_even_without_listeners() -> None:
    broadcaster = Broadcaster()
    broadcaster.publish("tick", {})
    made, sink = client("a")
    broadcaster.add(made)
    broadcaster.publish("tick", {}, state_version={"presence": 1, "health": 2})
    assert sink.written[0].endswith(b'"seq":2,"stateVersion":{"presence":1,"health":2}}>')


def test_clients_with_delta_events_get_increments_under_the_same_number() -> None:
    broadcaster = Broadcaster()
    plain, plain_sink = client("plain")
    delta, delta_sink = client("delta", caps={"delta-events"})
    broadcaster.add(plain)
    broadcaster.add(delta)
    broadcaster.publish_variants("agent", {"text": "hello"}, {"delta": "lo"})
    assert plain_sink.written == [b'<{"type":"event","event":"agent","payload":{"text":"hello"},"seq":1}>']
    assert delta_sink.written == [b'<{"type":"event","event":"agent","payload":{"delta":"lo"},"seq":1}>']


def test_a_whole_text_nobody_needs_is_never_made() -> None:
    broadcaster = Broadcaster()
    delta, sink = client("delta", caps={"delta-events"})
    broadcaster.add(delta)
    made: list[str] = []

    def full() -> dict[str, Any]:
        made.append("full")
        return {}

    broadcaster.publish_variants("agent", full, {"delta": "x"})
    broadcaster.publish_variants("agent", full, {"delta": "y"})
    assert made == []
    assert len(sink.written) == 2


def test_targeted_events_have_no_number_and_skip_the_absent() -> None:
    broadcaster = Broadcaster()
    made, sink = client("a")
    made.event_filter = lambda _event, _payload: False
    broadcaster.add(made)
    broadcaster.send_to(["gone", "a"], "agent", {"stream": "tool"})
    assert sink.written == [b'<{"type":"event","event":"agent","payload":{"stream":"tool"}}>']
    assert broadcaster.seq == 0


def test_a_full_buffer_drops_what_may_be_dropped_and_closes_for_the_rest() -> None:
    made, sink = client("slow")
    broadcaster = Broadcaster()
    broadcaster.add(made)
    sink.buffered = 1_572_864
    broadcaster.publish("chat", {})
    assert len(sink.written) == 1, "the limit itself is still allowed"
    sink.buffered += 1
    broadcaster.publish("tick", {}, drop_if_slow=True)
    assert (made.dropped, sink.closed_with) == (1, None)
    broadcaster.publish("chat", {})
    broadcaster.publish("chat", {})
    assert sink.closed_with == (1008, "slow consumer")
    assert len(sink.written) == 1


def test_filters_see_records_by_their_names_on_the_wire() -> None:
    class Payload(msgspec.Struct, rename="camel"):
        run_id: str

    assert field_of(Payload(run_id="r"), "runId") == "r"
    assert field_of({"runId": "r"}, "runId") == "r"
    assert field_of({"runId": "r"}, "state") is None
    assert field_of(None, "runId") is None


async def test_a_hundred_clients_get_the_same_frames_in_the_same_order(running: Running) -> None:
    async def listen(ready: asyncio.Barrier) -> list[str]:
        async with running.client() as socket:
            await ready.wait()
            await socket.event("first")
            seen: list[str] = []
            while True:
                message = await socket.ws.receive()
                if '"event":"stop"' in message.data:
                    return seen
                if '"event":"count"' in message.data:
                    seen.append(message.data)

    ready = asyncio.Barrier(101)
    clients = [asyncio.create_task(listen(ready)) for _ in range(100)]
    await ready.wait()
    publish = running.gateway.broadcaster.publish
    publish("first", {})
    for index in range(100):
        publish("count", {"n": index})
        if index % 10 == 0:
            await asyncio.sleep(0)
    publish("stop", {})
    results = await asyncio.gather(*clients)
    assert len(results[0]) == 100
    assert all(result == results[0] for result in results)


async def test_ticks_come_at_the_advertised_interval(tmp_path: Any) -> None:
    clock = HeldClock()
    async with running_gateway(tmp_path, clock=clock) as running, running.client() as socket:
        clock.advance(TICK_INTERVAL_MS / 1000)
        tick = await socket.event("tick")
        assert tick["payload"] == {"ts": clock.now_ms()}


async def test_stopping_says_so_and_closes_with_service_restart(running: Running) -> None:
    async with running.client() as socket:
        await running.server.stop("gateway restarting", 1500)
        shutdown = await socket.event("shutdown")
        assert shutdown["payload"] == {"reason": "gateway restarting", "restartExpectedMs": 1500}
        assert await socket.closed() == (1012, "service restart")
