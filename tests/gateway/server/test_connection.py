"""Frames after the handshake: strictness, hostile input, slow readers."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.gateway.server import connection
from openclaw.gateway.server.events import MAX_BUFFERED_BYTES
from openclaw.gateway.server.frames import Params
from openclaw.gateway.server.registry import MethodCall, MethodError
from tests.gateway.support import Running, allow_test_methods


@pytest.fixture
def extra_methods(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods of this file."""
    names = ("boom", "twice", "fail", "wait", "open", "large")
    allow_test_methods(monkeypatch, *(f"test.{name}" for name in names))
    methods = running.gateway.methods

    class Wait(Params):
        name: str

    gates: dict[str, asyncio.Event] = {}

    @methods.add("test.boom")
    async def boom(_call: MethodCall) -> Any:
        raise RuntimeError("a bug")

    @methods.add("test.twice")
    async def twice(call: MethodCall) -> Any:
        call.respond({"status": "accepted"})
        return {"status": "ok"}

    @methods.add("test.fail")
    async def fail(_call: MethodCall) -> Any:
        raise MethodError("no luck", code="UNAVAILABLE", details={"why": 1}, payload={"runId": "x"}, retryable=True)

    @methods.add("test.wait", Wait)
    async def wait(_call: MethodCall, params: Wait) -> Any:
        await gates.setdefault(params.name, asyncio.Event()).wait()
        return params.name

    @methods.add("test.open", Wait)
    async def open_gate(_call: MethodCall, params: Wait) -> Any:
        gates.setdefault(params.name, asyncio.Event()).set()
        return None

    @methods.add("test.large")
    async def large(_call: MethodCall) -> Any:
        return "x" * (3 * 1024 * 1024)


async def test_garbage_is_ignored_and_a_bad_request_is_answered(running: Running) -> None:
    async with running.client() as socket:
        await socket.send("garbage")
        await socket.send({"type": "req"})
        answer = await socket.answer("invalid")
        assert answer["error"]["code"] == "INVALID_REQUEST"
        assert answer["error"]["message"].startswith("invalid request frame: must have required property 'id'")
        assert (await socket.call("health"))["ok"]
        assert not [frame for frame in socket.unread if frame["type"] == "res"]


async def test_an_unknown_property_of_a_frame_is_refused_under_its_own_id(running: Running) -> None:
    async with running.client() as socket:
        await socket.send({"type": "req", "id": "7", "method": "health", "extra": 1})
        answer = await socket.answer("7")
        assert answer["error"]["message"] == "invalid request frame: at root: unexpected property 'extra'"


async def test_a_giant_frame_closes_only_its_own_connection(running: Running) -> None:
    async with running.client() as other, running.client() as socket:
        await socket.send({"type": "req", "id": "1", "method": "health", "params": {"x": "y" * 600 * 1024}})
        assert (await socket.closed())[0] == 1009
        assert (await other.call("health"))["ok"]


@pytest.mark.parametrize("size", [1 << 20, 24 << 20])
async def test_who_sends_far_too_much_still_learns_why_it_was_shown_the_door(running: Running, size: int) -> None:
    async with running.client() as socket:
        await socket.send({"type": "req", "id": "1", "method": "health", "params": {"x": "y" * size}})
        assert await socket.closed() == (1009, "a frame may have 524288 bytes")


async def test_half_a_surrogate_pair_does_not_leave_a_request_unanswered(running: Running) -> None:
    async with running.client() as socket:
        await socket.send('{"type":"req","id":"1","method":"system-event","params":{"text":"cut \\ud83d"}}')
        assert (await socket.answer("1"))["payload"] == {"ok": True}


@pytest.mark.parametrize("text", ["[" * 200_000, '{"type":"req","id":"1","method":"health","params":' + "[" * 100_000])
async def test_deep_nesting_is_just_not_json(running: Running, text: str) -> None:
    async with running.client() as socket:
        await socket.send(text)
        assert (await socket.call("health"))["ok"]


@pytest.mark.usefixtures("extra_methods")
async def test_a_bug_in_a_handler_is_an_answer_not_a_dead_socket(running: Running) -> None:
    async with running.client() as socket:
        answer = await socket.call("test.boom")
        assert answer["error"] == {"code": "UNAVAILABLE", "message": "internal error (see logs)"}
        assert (await socket.call("health"))["ok"]


@pytest.mark.usefixtures("extra_methods")
async def test_a_method_may_answer_twice_on_one_id(running: Running) -> None:
    async with running.client() as socket:
        await socket.send({"type": "req", "id": "a", "method": "test.twice"})
        assert (await socket.answer("a"))["payload"] == {"status": "accepted"}
        assert (await socket.answer("a"))["payload"] == {"status": "ok"}


@pytest.mark.usefixtures("extra_methods")
async def test_an_error_may_carry_a_payload_and_details(running: Running) -> None:
    async with running.client() as socket:
        answer = await socket.call("test.fail")
        assert answer["payload"] == {"runId": "x"}
        expected = {"code": "UNAVAILABLE", "message": "no luck", "details": {"why": 1}, "retryable": True}
        assert answer["error"] == expected


@pytest.mark.usefixtures("extra_methods")
async def test_a_waiting_call_does_not_hold_up_the_next(running: Running) -> None:
    async with running.client() as socket:
        await socket.send({"type": "req", "id": "slow", "method": "test.wait", "params": {"name": "a"}})
        assert (await socket.call("health"))["ok"]
        assert (await socket.call("test.open", {"name": "a"})) == {
            "type": "res",
            "id": "r3",
            "ok": True,
            "payload": None,
        }
        assert (await socket.answer("slow"))["payload"] == "a"


@pytest.mark.usefixtures("extra_methods")
async def test_answers_larger_than_the_buffer_reach_a_client_that_asked_for_several(running: Running) -> None:
    async with running.client() as socket:
        for id in "abc":
            await socket.send({"type": "req", "id": id, "method": "test.large"})
        for id in "abc":
            assert len((await socket.answer(id))["payload"]) == 3 * 1024 * 1024


def frame_strategy() -> st.SearchStrategy[str]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    )
    names = st.sampled_from(["health", "status", "config.set", "logs.tail", "device.token.rotate", "nope", ""])
    requests = st.fixed_dictionaries(
        {"type": st.just("req"), "id": st.text(max_size=5) | scalars, "method": names | scalars},
        optional={"params": values, "x": scalars},
    )
    return (requests | values).map(json.dumps) | st.text()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(frame_strategy(), max_size=5))
async def test_no_frame_kills_the_connection(running: Running, frames: list[str]) -> None:
    async with running.client() as socket:
        for frame in frames:
            await socket.send(frame)
        assert (await socket.call("health"))["ok"]


BIG = {"text": "x" * 60_000}
ENOUGH = MAX_BUFFERED_BYTES * 6 // 60_000
"""Events that fill a client's buffer and the kernel's several times over."""


async def test_a_client_that_never_reads_is_closed_as_a_slow_consumer(running: Running) -> None:
    async with running.client() as good, running.client() as slow:
        await slow.call("health")
        slow.ws._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        for _ in range(ENOUGH):
            running.gateway.broadcaster.publish("chat", BIG)
            await good.event("chat")
        left = [client for client in running.gateway.broadcaster.clients.values() if not client.closing]
        assert len(left) == 1
        slow.ws._response.connection.transport.resume_reading()  # type: ignore[union-attr]
        assert await slow.closed() == (1008, "slow consumer")


async def test_events_that_may_be_dropped_leave_a_visible_gap_and_the_connection(running: Running) -> None:
    async with running.client() as slow:
        await slow.event("presence")
        await slow.event("health")
        slow.ws._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        for _ in range(ENOUGH):
            running.gateway.broadcaster.publish("chat", BIG, drop_if_slow=True)
            await asyncio.sleep(0)
        client = next(iter(running.gateway.broadcaster.clients.values()))
        assert client.dropped > 0
        assert client.sink.buffered < MAX_BUFFERED_BYTES + 70_000
        slow.ws._response.connection.transport.resume_reading()  # type: ignore[union-attr]
        assert (await slow.call("system-presence"))["ok"]
        running.gateway.broadcaster.publish("after", {})
        after = await slow.event("after")
        seqs = [*(frame["seq"] for frame in slow.unread if "seq" in frame), after["seq"]]
        assert seqs == sorted(seqs)
        assert after["seq"] - seqs[0] + 1 == len(seqs) + client.dropped


async def test_what_a_client_asked_for_is_done_although_it_leaves(running: Running) -> None:
    async with running.client() as socket:
        await socket.send({"type": "req", "id": "1", "method": "system-event", "params": {"text": "noted"}})
    while running.gateway.broadcaster.clients:
        await running.rpc("health")
    assert running.gateway.runtime.notes.peek("agent:main:main") == ["noted"]


@pytest.mark.usefixtures("extra_methods")
async def test_a_client_with_too_many_unanswered_calls_is_read_again_once_one_is_answered(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_CALLS_IN_FLIGHT", 2)
    async with running.client() as busy, running.client() as other:
        for number in (1, 2, 3):
            await busy.send(
                {"type": "req", "id": f"w{number}", "method": "test.wait", "params": {"name": f"g{number}"}}
            )
        await other.call("test.open", {"name": "g3"})
        await other.call("test.open", {"name": "g2"})
        answered = [frame["id"] for frame in [await busy.until(is_answer), await busy.until(is_answer)]]
        await other.call("test.open", {"name": "g1"})
        answered.append((await busy.until(is_answer))["id"])
    assert answered == ["w2", "w3", "w1"], "the third was not begun before the second had ended"


def is_answer(frame: dict[str, Any]) -> bool:
    return frame["type"] == "res"
