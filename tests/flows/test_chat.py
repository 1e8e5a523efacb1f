"""A person talks to a session through a real Gateway."""

from __future__ import annotations

import asyncio
import base64
import json
from itertools import pairwise

import pytest

from tests.support import stored
from tests.support.gateway import RequestFailed, WireClient, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_a_message_is_answered_and_both_are_on_disk_in_the_documented_format(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        final = await client.chat("hello [[reply:Hi there.]]", run_id="run-1")
    assert text_of(final) == "Hi there."
    await gateway.stop()  # The rows of sessions are at most a second behind; a stop writes them at once.
    entry = stored.sessions(gateway)["agent:main:main"]
    lines = gateway.transcript(entry["sessionId"])
    header, *entries = lines
    assert (header["type"], header["version"], header["id"]) == ("session", 3, entry["sessionId"])
    assert header["cwd"] == str(gateway.state_dir / "workspace")
    assert [line["parentId"] for line in entries] == [None, *[line["id"] for line in entries[:-1]]]
    user, assistant = (line["message"] for line in entries if line["type"] == "message")
    assert user["content"][0]["text"].startswith("[")
    assert user["content"][0]["text"].endswith("] hello [[reply:Hi there.]]\n[message_id: run-1]")
    assert assistant["content"] == [{"type": "text", "text": "Hi there."}]
    assert (assistant["provider"], assistant["model"], assistant["stopReason"]) == ("mock", "mock-1", "stop")
    assert entry["totalTokens"] == assistant["usage"]["input"] > 0


async def test_the_user_message_is_in_the_transcript_before_the_model_is_asked(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("late", hold=held, hold_after=0))
    async with gateway.client() as client:
        await client.call("chat.send", {"sessionKey": "main", "message": "first words", "idempotencyKey": "r"})
        await models.wait_for_requests(1)
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert [message["role"] for message in history["messages"]] == ["user"]
        assert history["thinkingLevel"] == "off" and "verboseLevel" not in history
        held.set()
        assert text_of(await client.ending("r")) == "late"


async def test_the_model_sees_the_whole_conversation_and_the_prompt_is_never_stored(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    (gateway.state_dir / "workspace").mkdir(exist_ok=True)
    (gateway.state_dir / "workspace" / "AGENTS.md").write_text("Always speak like a pirate.")
    async with gateway.client() as client:
        await client.chat("one [[reply:first]]")
        await client.chat("two [[reply:second]]")
        history = await client.call("chat.history", {"sessionKey": "main"})
    first, second = models.requests[0].body, models.requests[1].body
    system = json.dumps(first["system"])
    assert "Always speak like a pirate." in system
    assert "read" in system
    assert {"read", "write", "edit", "exec", "process"} <= {tool["name"] for tool in first["tools"]}
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"][0]["text"] == "first"
    assert "pirate" not in json.dumps(history)
    assert "pirate" not in json.dumps(gateway.transcript(history["sessionId"]))


async def test_the_cached_part_of_the_prompt_is_the_same_bytes_from_turn_to_turn(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("one")
        await client.chat("two")
    first, second = (request.body["system"] for request in models.requests)
    assert first[0] == second[0]
    assert first[0]["cache_control"] == {"type": "ephemeral"}


async def test_history_in_the_public_shape_pairs_calls_and_results(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply("Looking.", calls=[Call("exec", {"command": "echo hi"})]))
    async with gateway.client() as client:
        await client.chat("go")
        asked = {"sessionKey": "main", "format": "messages"}
        history = await client.call("chat.history", asked)
        for limit, left in ((4, 4), (3, 3), (2, 1), (1, 1)):
            end = (await client.call("chat.history", {**asked, "limit": limit}))["messages"]
            assert end == history["messages"][-left:], "a result is not shown without its call"
    user, assistant, result, final = history["messages"]
    call = assistant["content"][1]
    assert user == {"role": "user", "content": [{"type": "text", "text": "go"}]}
    assert assistant["content"][0] == {"type": "text", "text": "Looking."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "exec", {"command": "echo hi"})
    assert result["content"] == [{"type": "tool_result", "tool_use_id": call["id"], "content": "hi"}]
    assert final["content"] == [{"type": "text", "text": "ok"}]


async def test_deltas_repeat_the_text_so_far_and_clients_that_ask_get_increments(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as old, gateway.client(caps=("delta-events",)) as new:
        final = await old.chat("[[tokens:400]]", run_id="r")
        await new.ending("r")
        cumulative = [
            frame["payload"]["data"]["text"]
            for frame in old.of_run("r")
            if frame["payload"].get("stream") == "assistant"
        ]
        increments = [
            frame["payload"]["data"] for frame in new.of_run("r") if frame["payload"].get("stream") == "assistant"
        ]
    assert all(later.startswith(earlier) for earlier, later in pairwise(cumulative))
    assert cumulative[-1].strip() == text_of(final)
    assert all("text" not in data for data in increments)
    assert "".join(data["delta"] for data in increments).strip() == text_of(final)


async def test_every_client_sees_the_same_sequence_numbers_without_gaps(gateway: InProcessGateway) -> None:
    async with gateway.client() as first, gateway.client(caps=("delta-events",)) as second:
        await first.chat("[[tokens:100]]", run_id="r")
        await second.ending("r")
        for client in (first, second):
            numbers = [frame["seq"] for frame in client.events if "seq" in frame]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_the_same_idempotency_key_runs_once(gateway: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("once", hold=held, hold_after=0))
    send = {"sessionKey": "main", "message": "hi", "idempotencyKey": "idem-1"}
    async with gateway.client() as client:
        assert await client.call("chat.send", send) == {"runId": "idem-1", "status": "started"}
        assert await client.call("chat.send", send) == {"runId": "idem-1", "status": "in_flight"}
        held.set()
        await client.ending("idem-1")
        assert await client.call("chat.send", send) == {"runId": "idem-1", "status": "ok"}
    assert len(models.requests) == 1


async def test_a_repeated_agent_call_gets_the_latest_of_its_two_answers(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("once", hold=held, hold_after=0))
    asked = {"sessionKey": "main", "message": "hi", "idempotencyKey": "idem-2"}
    async with gateway.client() as client:
        first = await client.send("agent", asked)
        accepted = await client.answer(first)
        again = await client.send("agent", asked)
        assert await client.answer(again) == accepted, "it runs: the same first answer"
        held.set()
        ended = await client.answer(first)
        assert ended["result"]["payloads"] == [{"text": "once", "mediaUrl": None}]
        assert await client.answer(again) == ended
        assert await client.call("agent", asked) == ended, "it has ended: its end at once"
        models.queue(Reply(status=401, message="no"))
        failing = await client.send("agent", {**asked, "idempotencyKey": "idem-3"})
        assert (await client.answer(failing))["status"] == "accepted"
        with pytest.raises(RequestFailed):
            await client.answer(failing)
        with pytest.raises(RequestFailed) as failed:
            await client.call("agent", {**asked, "idempotencyKey": "idem-3"})
        assert failed.value.payload["status"] == "error"
    assert len(models.requests) == 2


async def test_sessions_run_side_by_side(gateway: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    for _ in range(5):
        models.queue(Reply("x", hold=held, hold_after=0))
    async with gateway.client() as client:
        for number in range(5):
            params = {"sessionKey": f"s{number}", "message": "hi", "idempotencyKey": f"r{number}"}
            await client.call("chat.send", params)
        await models.wait_for_requests(5)
        held.set()
        for number in range(5):
            assert text_of(await client.ending(f"r{number}")) == "x"


async def test_aborting_keeps_the_partial_text_and_says_who_stopped_it(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply("so far so good and on", hold=asyncio.Event(), hold_after=3))
    async with gateway.client() as client:
        await client.call("chat.send", {"sessionKey": "main", "message": "hi", "idempotencyKey": "slow"})
        await client.event(lambda event, payload: event == "agent" and payload["stream"] == "assistant")
        with pytest.raises(RequestFailed, match="runId does not match sessionKey"):
            await client.call("chat.abort", {"sessionKey": "agent:main:other", "runId": "slow"})
        answer = await client.call("chat.abort", {"sessionKey": "main", "runId": "slow"})
        assert answer == {"ok": True, "aborted": True, "runIds": ["slow"]}
        assert (await client.ending("slow"))["stopReason"] == "rpc"
        again = await client.chat("next [[reply:after abort]]")
        assert text_of(again) == "after abort"
        history = await client.call("chat.history", {"sessionKey": "main"})
    stopped = history["messages"][1]
    assert stopped["stopReason"] == "aborted"
    assert stopped["content"][0]["text"].startswith("so far")


async def test_the_word_stop_stops_the_run(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0))
    async with gateway.client() as client:
        await client.call("chat.send", {"sessionKey": "main", "message": "hi", "idempotencyKey": "r"})
        await models.wait_for_requests(1)
        answer = await client.call("chat.send", {"sessionKey": "main", "message": " STOP ", "idempotencyKey": "s"})
        assert answer == {"ok": True, "aborted": True, "runIds": ["r"]}
        assert (await client.ending("r"))["stopReason"] == "stop"


async def test_pictures_reach_the_model(gateway: InProcessGateway, models: ModelServer) -> None:
    attachment = {
        "type": "image",
        "mimeType": "image/png",
        "fileName": "a.png",
        "content": base64.b64encode(PNG).decode(),
    }
    async with gateway.client() as client:
        await client.chat("what is this?", attachments=[attachment])
        with pytest.raises(RequestFailed, match=r"Error: attachment a\.png: invalid base64 content"):
            await client.chat("and this?", attachments=[{**attachment, "content": "@@@"}])
    content = models.requests[0].body["messages"][0]["content"]
    assert [block["type"] for block in content] == ["text", "image", "text"], "the last: facts of the turn"
    assert base64.b64decode(content[1]["source"]["data"]) == PNG


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(status=401, message="invalid x-api-key"), "x-api-key"),
        (Reply(status=400, message="something odd"), "something odd"),
        (Reply(raw=b"HTTP nonsense, not an event stream\n\n"), ""),
    ],
)
async def test_a_model_that_refuses_gives_one_notice_and_the_session_goes_on(
    gateway: InProcessGateway, models: ModelServer, reply: Reply, words: str
) -> None:
    for _ in range(4):
        models.queue(reply)
    async with gateway.client() as client:
        ended = await client.chat("hello", run_id="r")
        assert ended["state"] == "error"
        assert words in ended["errorMessage"]
        assert len([frame for frame in client.of_run("r") if frame["payload"].get("state") == "error"]) == 1
        models.forget()
        assert text_of(await client.chat("again [[reply:fine]]")) == "fine"
        history = await client.call("chat.history", {"sessionKey": "main"})
    assert history["messages"][0]["content"][0]["text"] == "hello"


async def test_an_overloaded_model_is_asked_again(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply(status=529, message="Overloaded"), Reply(status=503, message="x"), Reply("at last"))
    async with gateway.client() as client:
        assert text_of(await client.chat("hello")) == "at last"
    assert len(models.requests) == 3


async def test_a_stream_that_breaks_off_is_retried_and_what_came_stays_visible(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply("half of it", clean_cut=True, cut_after=600), Reply("whole"))
    async with gateway.client() as client:
        assert text_of(await client.chat("hello")) == "whole"
        history = await client.call("chat.history", {"sessionKey": "main"})
    assert [message.get("stopReason") for message in history["messages"]] == [None, "error", "stop"]


async def test_bad_requests_name_every_problem(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for method, params, words in (
            (
                "chat.send",
                {"sessionKey": "main"},
                "invalid chat.send params: must have required property 'message'; "
                "must have required property 'idempotencyKey'",
            ),
            ("sessions.list", {"bogus": 1}, "invalid sessions.list params: at root: unexpected property 'bogus'"),
            (
                "chat.send",
                {"sessionKey": "main", "message": " ", "idempotencyKey": "x"},
                "message or attachment required",
            ),
            ("nope.method", {}, "unknown method: nope.method"),
        ):
            with pytest.raises(RequestFailed) as failed:
                await client.call(method, params)
            assert str(failed.value) == words
            assert failed.value.code == "INVALID_REQUEST"


async def test_injected_messages_appear_in_the_chat_without_a_model(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        with pytest.raises(RequestFailed, match="session not found"):
            await client.call("chat.inject", {"sessionKey": "main", "message": "note"})
        await client.chat("hi")
        answer = await client.call("chat.inject", {"sessionKey": "main", "message": "Deployed.", "label": "Ops"})
        frame = await client.event(
            lambda event, payload: event == "chat" and payload["runId"] == f"inject-{answer['messageId']}"
        )
        history = await client.call("chat.history", {"sessionKey": "main"})
    assert text_of(frame["payload"]) == "[Ops]\n\nDeployed."
    assert (history["messages"][-1]["provider"], history["messages"][-1]["model"]) == ("openclaw", "gateway-injected")


async def test_tool_events_go_only_to_the_asker_and_as_detailed_as_the_session_wants(gateway: InProcessGateway) -> None:
    async def tool_frames(client: WireClient, run_id: str) -> list[dict[str, object]]:
        return [frame for frame in client.of_run(run_id) if frame["payload"].get("stream") == "tool"]

    script = 'go [[tool:exec {"command":"echo hi"}]][[next]][[reply:done]]'
    async with gateway.client() as asker, gateway.client() as other:
        await asker.chat(script, run_id="off")
        assert not await tool_frames(asker, "off")
        for level in ("on", "full"):
            await asker.call("sessions.patch", {"key": "main", "verboseLevel": level})
            await asker.chat(script, run_id=level)
            await other.ending(level)
            assert not await tool_frames(other, level)
            started, ended = await tool_frames(asker, level)
            assert "seq" not in started
            assert started["payload"]["data"]["args"] == {"command": "echo hi"}  # type: ignore[index]
            data = ended["payload"]["data"]  # type: ignore[index]
            assert (data["meta"], data["isError"], "result" in data) == ("echo hi", False, level == "full")


async def test_our_own_clients_learn_why_a_tool_failed_at_every_verbosity(gateway: InProcessGateway) -> None:
    script = 'go [[tool:read {"path":"nowhere.txt"}]][[next]][[reply:done]]'
    async with gateway.client(caps=("tool-events", "delta-events")) as client:
        await client.chat(script, run_id="failing")
        frames = [frame["payload"] for frame in client.of_run("failing") if frame["payload"].get("stream") == "tool"]
        ended = frames[-1]["data"]
        assert ended["isError"] and "nowhere.txt" in str(ended["result"])
