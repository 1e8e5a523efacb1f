"""What a restart makes of unfinished messages: taken up where they were, closed when hopeless, never twice."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw.clock import SystemClock
from openclaw.config.store import ConfigStore
from openclaw.gateway.assemble import close_gateway, open_gateway
from openclaw.messages import Route
from openclaw.storage.message_ledger import Accept, MessageBody
from tests.faults.lives import died, lives_to_the_end, plan, wait
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.submit import submit

Make = Callable[..., ForkedGateway]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def make(tmp_path: Path, models: ModelServer) -> Make:
    def gateway(**queue: Any) -> ForkedGateway:
        config = model_config(models.base_url, models.api_key, messages={"queue": {"mode": "followup", **queue}})
        return ForkedGateway(tmp_path / "state", config)

    return gateway


async def send(client: WireClient, key: str, text: str | None = None, **more: Any) -> dict[str, Any]:
    params = {"sessionKey": "main", "message": text or key, "idempotencyKey": key, **more}
    return await client.call("chat.send", params)


async def send_to_its_death(gateway: ForkedGateway, client: WireClient, key: str) -> None:
    """It may die before or after it acknowledges the message."""
    await client.send("chat.send", {"sessionKey": "main", "message": key, "idempotencyKey": key})
    await died(gateway)


async def roles(client: WireClient) -> list[str]:
    return [message["role"] for message in (await client.call("chat.history", {"sessionKey": "main"}))["messages"]]


@pytest.mark.parametrize(
    ("point", "told", "effects"),
    [
        ("tool.before", "Not run: the Gateway stopped before this call began.", 0),
        ("tool.noted", "Interrupted: the Gateway stopped while this call was running.", 0),
        ("tool.ran", "Interrupted: the Gateway stopped while this call was running.", 1),
    ],
)
async def test_an_interrupted_tool_call_is_reported_to_the_model_and_not_repeated(
    make: Make, models: ModelServer, tmp_path: Path, point: str, told: str, effects: int
) -> None:
    file = tmp_path / "effects"
    models.queue(Reply("", calls=[Call("exec", {"command": f"echo once >> {file}"})]), Reply("checked"))
    gateway = make()
    plan(gateway, {"at": point, "do": "kill"})
    async with gateway:
        async with gateway.client() as client:
            await send_to_its_death(gateway, client, "a")
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "ok"
            assert await roles(client) == ["user", "assistant", "toolResult", "assistant"]
    assert told in json.dumps(models.requests[1].body["messages"][-1])
    assert len(models.requests) == 2
    assert (file.read_text().count("once") if file.exists() else 0) == effects


async def test_a_call_whose_result_was_kept_is_not_told_as_interrupted(make: Make, models: ModelServer) -> None:
    models.queue(Reply("", calls=[Call("exec", {"command": "true"})]), Reply("done"))
    gateway = make()
    plan(gateway, {"at": "tool.stored", "do": "kill"})
    async with gateway:
        async with gateway.client() as client:
            await send_to_its_death(gateway, client, "a")
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "ok"
            story = (await client.call("messages.why", {"ref": "a"}))["story"]
            (call,) = (await client.call("messages.get", {"runId": "a"}))["toolCalls"]
    assert "It called exec once." in story
    assert call["ok"]
    assert call["finishedAt"]


async def test_the_same_key_and_agent_wait_find_the_resumed_run(make: Make, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0), Reply("resumed", hold=held, hold_after=1))
    async with make() as gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await models.wait_for_requests(1)
        gateway.kill()
        await gateway.start()
        async with gateway.client() as client:
            assert (await send(client, "a"))["status"] == "in_flight"
            waiting = await client.send("agent.wait", {"runId": "a", "timeoutMs": 50_000})
            held.set()
            assert (await client.answer(waiting))["status"] == "ok"
            assert text_of(await client.ending("a")) == "resumed"
            assert (await send(client, "a"))["status"] == "ok"


async def test_text_streamed_before_the_kill_is_not_in_the_history_twice(make: Make, models: ModelServer) -> None:
    models.queue(Reply("one two three four", hold=asyncio.Event(), hold_after=2), Reply("one two three four"))
    async with make() as gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await client.event(lambda event, payload: event == "agent" and payload["stream"] == "assistant")
        gateway.kill()
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "ok"
            messages = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
    assert [message["content"][0]["text"] for message in messages] == ["a", "one two three four"]


async def test_a_message_that_keeps_bringing_the_gateway_down_is_given_up_with_one_notice(
    make: Make, models: ModelServer
) -> None:
    gateway = make()
    plan(gateway, {"at": "model.call", "do": "kill"})
    async with gateway:
        async with gateway.client() as client:
            await send_to_its_death(gateway, client, "a")
        for _ in range(2):
            try:
                await gateway.start()
            except AssertionError:
                pass  # It may die before it says that it is ready.
            await died(gateway)
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            ended = await wait(client, "a")
            assert ended["status"] == "error"
            assert "stopped 3 times while working on this message" in ended["error"]
            with pytest.raises(RequestFailed, match="given up"):
                await send(client, "a")
            assert text_of(await client.chat("b [[reply:done b]]")) == "done b"
            messages = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert "given up" in messages[1]["errorMessage"]


async def test_being_told_to_stop_is_not_held_against_a_message(make: Make, models: ModelServer) -> None:
    # All answers are there before the first start: a Gateway may ask again before its start is seen here.
    models.queue(*[Reply("never", hold=asyncio.Event(), hold_after=0)] * 5, Reply("at last"))
    async with make() as gateway:
        for life in range(5):
            async with gateway.client() as client:
                if not life:
                    await send(client, "a")
                await models.wait_for_requests(life + 1)
            assert await gateway.stop() == 0
            await gateway.start()
        await models.wait_for_requests(6)
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "ok"
            story = (await client.call("messages.why", {"ref": "a"}))["story"]
    assert any(line.startswith("The Gateway stopped 5 times while it worked on it") for line in story), story
    assert not any("It waited" in line for line in story), story


async def test_a_message_that_cannot_even_be_given_up_is_closed(make: Make, models: ModelServer) -> None:
    """Dying at the start of every run: in the end the message is closed without being touched."""
    gateway = make()
    plan(gateway, {"at": "run.start", "do": "kill"})
    async with gateway:
        async with gateway.client() as client:
            await send_to_its_death(gateway, client, "a")
        lives = 1
        while not await lives_to_the_end(gateway, "a"):
            lives += 1
            assert lives < 8, "the message still brings the Gateway down"
        gateway.kill()
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "error"
            assert text_of(await client.chat("b [[reply:done b]]")) == "done b"
    assert all("a\n" not in json.dumps(request.body["messages"]) for request in models.requests)


async def test_words_steered_into_a_run_are_answered_once_though_it_died(
    make: Make, models: ModelServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    models.queue(Reply("", calls=[Call("exec", {"command": command})]), Reply("heard both"))
    gateway = make(mode="steer")
    plan(gateway, {"at": "steer.after", "do": "kill"})
    async with gateway:
        async with gateway.client() as client:
            await client.call("sessions.patch", {"key": "main", "verboseLevel": "on"})
            await send(client, "a")
            await client.event(lambda event, payload: event == "agent" and payload["stream"] == "tool")
            await send(client, "b")
            gate.touch()
            await died(gateway)
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "ok"
            assert (await wait(client, "b"))["status"] == "ok"
            assert await roles(client) == ["user", "assistant", "toolResult", "user", "assistant"]
    assert len(models.requests) == 2


async def test_what_was_collected_keeps_its_pictures_and_its_answer_over_a_kill(
    make: Make, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0), Reply("both"))
    gateway = make(mode="collect", debounceMs=0)
    plan(gateway, {"at": "absorb.after", "do": "kill"})
    picture = [{"type": "image", "mimeType": "image/png", "content": PIXEL}]
    assert base64.b64decode(PIXEL).startswith(b"\x89PNG")
    async with gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await models.wait_for_requests(1)
            await send(client, "b", attachments=picture)
            await send(client, "c")
            held.set()
            await died(gateway)
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "c"))["status"] == "ok"
            assert (await wait(client, "b"))["status"] == "ok", "it was answered with c"
    asked = models.requests[1].body["messages"][-1]["content"]
    assert [block["type"] for block in asked].count("image") == 1
    assert "[message_id: b]" in json.dumps(asked) and "[message_id: c]" in json.dumps(asked)


async def test_what_was_left_unfinished_comes_before_what_is_sent_while_the_gateway_starts(
    make: Make, models: ModelServer, tmp_path: Path
) -> None:
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0))
    async with make() as gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await models.wait_for_requests(1)
            await send(client, "b")
        gateway.kill()
    models.forget()
    config = ConfigStore(str(tmp_path / "state" / "openclaw.json"), SystemClock(), os.environ)
    config.load_or_create()
    again = await open_gateway(str(tmp_path / "state"), config, SystemClock(), {"HOME": str(tmp_path)})
    try:
        assert await again.runs.find_unfinished() == 2
        assert (await submit(again, "c", "c")).queued
        again.runs.start_unfinished()
        for key in ("a", "b", "c"):
            assert (await again.runs.index.wait(key, 15)).status == "ok"
        rows = await again.runtime.stores.ledger.recent(session_key="agent:main:main")
    finally:
        await close_gateway(again)
    assert [row.attempts for row in sorted(rows, key=lambda row: row.id)] == [2, 1, 1]
    assert len(models.requests) == 4
    texts = [json.dumps(request.body["messages"][-1]) for request in list(models.requests)[1:]]
    assert [next(key for key in "abc" if f"message_id: {key}" in text or f'"{key}"' in text) for text in texts] == [
        "a",
        "b",
        "c",
    ]


async def test_words_taken_in_before_the_kill_are_not_put_before_the_model_again(
    make: Make, models: ModelServer, tmp_path: Path
) -> None:
    """``b`` is in the transcript but its end was lost; a new message must not push it into the resumed run again."""
    gate = tmp_path / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    held = asyncio.Event()
    models.queue(
        Reply("", calls=[Call("exec", {"command": command})]), Reply("heard", hold=held, hold_after=0), Reply("and c")
    )
    gateway = make(mode="steer")
    plan(gateway, {"at": "steer.after", "do": "kill"})
    async with gateway:
        async with gateway.client() as client:
            await client.call("sessions.patch", {"key": "main", "verboseLevel": "on"})
            await send(client, "a")
            await client.event(lambda event, payload: event == "agent" and payload["stream"] == "tool")
            await send(client, "b")
            gate.touch()
            await died(gateway)
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            await models.wait_for_requests(2)
            await send(client, "c")
            held.set()
            for key in ("a", "b", "c"):
                assert (await wait(client, key))["status"] == "ok"
    assert [json.dumps(request.body["messages"]).count("[message_id: b]") for request in models.requests] == [0, 1, 1]
    assert json.dumps(models.requests[2].body["messages"][-1]).count("[message_id: c]") == 1


async def test_a_run_that_ends_while_its_name_is_looked_up_is_not_waited_for_in_vain(
    make: Make, models: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``a`` was collected into ``b`` before the restart: whoever asks for ``a`` waits for ``b``."""
    make()  # Writes the configuration.
    held = asyncio.Event()
    models.queue(Reply("both", hold=held, hold_after=0))
    config = ConfigStore(str(tmp_path / "state" / "openclaw.json"), SystemClock(), os.environ)
    config.load_or_create()
    gateway = await open_gateway(str(tmp_path / "state"), config, SystemClock(), {"HOME": str(tmp_path)})
    fields: dict[str, Any] = {"agent_id": "main", "session_key": "agent:main:main", "source": "webchat"}
    try:
        await gateway.runs.find_unfinished()
        gateway.runs.start_unfinished()
        accept = Accept(
            run_id="a", dedupe_key="", session_id="s", route=Route(), body=MessageBody(prompt="a"), **fields
        )
        row, _ = await gateway.runtime.stores.ledger.accept(accept)
        await gateway.runtime.stores.ledger.finish(row.id, "superseded", result={"answeredBy": "b"})
        await submit(gateway, "b", "b")
        run = gateway.runs.index.get("b")
        assert run is not None
        look_up, looked_up = gateway.runtime.stores.ledger.by_run, 0

        async def slowly(run_id: str) -> Any:
            nonlocal looked_up
            looked_up += 1
            if looked_up == 2:
                held.set()
                await run.wait()
            return await look_up(run_id)

        monkeypatch.setattr(gateway.runtime.stores.ledger, "by_run", slowly)
        assert (await gateway.runs.index.wait("a", 10)).status == "ok"
        assert looked_up >= 2
    finally:
        await close_gateway(gateway)


async def test_a_stop_that_was_answered_holds_after_a_crash(make: Make, models: ModelServer, tmp_path: Path) -> None:
    """The disk takes no transcript line, so the stopped run cannot end before the Gateway dies."""
    full, effects = tmp_path / "full", tmp_path / "effects"
    late = Reply("", calls=[Call("exec", {"command": f"echo once >> {effects}"})], hold=asyncio.Event())
    models.queue(late, Reply("", calls=[Call("exec", {"command": f"echo again >> {effects}"})]), Reply("done"))
    gateway = make()
    plan(gateway, {"at": "write", "path": "*.jsonl", "do": "ENOSPC", "while": str(full)})
    async with gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await send(client, "b")
            await send(client, "c", "/queue drop 1")
            await models.wait_for_requests(1)
            full.touch()
            stopped = await client.call("chat.abort", {"sessionKey": "main"})
            assert stopped["aborted"] and stopped["runIds"] == ["a"]
        gateway.kill()
        full.unlink()
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "error"
            assert (await wait(client, "b"))["status"] == "error"
            story = await client.call("messages.why", {"ref": "a"})
    assert "stopped" in json.dumps(story)
    assert len(models.requests) == 1
    assert not effects.exists()


async def test_a_call_that_the_transcript_has_lost_is_told_as_interrupted(make: Make, models: ModelServer) -> None:
    models.queue(Reply("", calls=[Call("exec", {"command": "true"})]), Reply("checked"))
    gateway = make()
    plan(gateway, {"at": "tool.noted", "do": "kill"})
    async with gateway:
        async with gateway.client() as client:
            await send_to_its_death(gateway, client, "a")
        (transcript,) = gateway.state_dir.glob("agents/main/sessions/*.jsonl")
        lines = transcript.read_text().splitlines(keepends=True)
        assert '"toolCall"' in lines[-1]
        transcript.write_text("".join(lines[:-1]))
        plan(gateway)
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "ok"
            assert await roles(client) == ["user", "assistant", "toolResult", "assistant"]
    assert "Interrupted: the Gateway stopped" in json.dumps(models.requests[1].body["messages"][-1])


async def test_what_a_full_queue_dropped_is_told_after_a_crash_too(make: Make, models: ModelServer) -> None:
    models.queue(Reply("late", hold=asyncio.Event()), Reply("late answer"), Reply("answer"))
    gateway = make(cap=1, drop="summarize")
    async with gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await models.wait_for_requests(1)
            await send(client, "b", "the words of b")
            await send(client, "c")
            assert (await wait(client, "b"))["status"] == "error"
        gateway.kill()
        await gateway.start()
        async with gateway.client() as client:
            assert (await wait(client, "c"))["status"] == "ok"
    prompt = json.dumps(models.requests[-2].body["messages"][-1])
    assert "Dropped 1 message due to cap" in prompt and "the words of b" in prompt


@pytest.mark.parametrize("command", ["/status", "/compact", "/think high"])
async def test_a_command_that_was_acknowledged_has_its_one_end_after_a_crash(
    make: Make, models: ModelServer, command: str
) -> None:
    models.queue(Reply("hello"), Reply("a summary", hold=asyncio.Event()))
    gateway = make()
    async with gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await wait(client, "a")
            assert (await send(client, "b", command))["status"] == "started"
            gateway.kill()
        await gateway.start()
        async with gateway.client() as client:
            with contextlib.suppress(RequestFailed):  # A redelivery is told that the command was interrupted.
                assert (await send(client, "b", command))["status"] in ("ok", "in_flight")
            assert (await wait(client, "b"))["status"] in ("ok", "error")
            story = await client.call("messages.why", {"ref": "b"})
    assert "command" in json.dumps(story)
    assert len(models.requests) <= (2 if command == "/compact" else 1)
