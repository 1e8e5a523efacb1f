"""Answers that the output limit cuts, through a real Gateway."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tests.support import stored
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

HEAD = 'Here:\n```json\n[\n  {"id": 1, "name": "one"},\n  {"id": 2, "na'
TAIL = 'me": "two"}\n]\n```\nThat is all.'


async def test_a_cut_answer_is_continued_and_shown_as_one(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(
        Reply(text=HEAD, stop="length"),
        Reply(text='```json\n  {"id": 2, "na' + TAIL[:20], stop="length"),
        Reply(text=TAIL[20:]),
    )
    async with gateway.client() as client:
        run_id = str(uuid.uuid4())
        final = await client.chat("list them", run_id=run_id)
        assert text_of(final) == HEAD + TAIL
        streamed = [e["payload"]["data"] for e in client.of_run(run_id) if e["payload"].get("stream") == "assistant"]
        assert "".join(data["delta"] for data in streamed) == HEAD + TAIL
        assert streamed[-1]["text"] == HEAD + TAIL
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert [message["role"] for message in history["messages"]] == ["user", "assistant"]
        [answer] = [message for message in history["messages"] if message["role"] == "assistant"]
        assert answer["content"] == [{"type": "text", "text": HEAD + TAIL}]
        counts = [
            entry["message"]["usage"]["input"]
            for entry in gateway.transcript(history["sessionId"])
            if entry.get("message", {}).get("role") == "assistant"
        ]
        assert answer["usage"]["input"] == sum(counts) and len(counts) == 3
        public = await client.call("chat.history", {"sessionKey": "main", "format": "messages"})
        assert public["messages"][-1]["content"] == [{"type": "text", "text": HEAD + TAIL}]
        kept = [entry for entry in gateway.transcript(history["sessionId"]) if entry["type"] == "custom_message"]
        assert [entry["display"] for entry in kept] == [False, False]
        models.reply("Good.")
        assert text_of(await client.chat("thanks")) == "Good."
        assert not any(request.error for request in models.requests)


async def test_the_number_of_continuations_is_bounded(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["maxLengthContinuations"] = 1
    models.queue(*(Reply(text=f"part {number}. ", stop="length") for number in range(5)))
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert text_of(await client.chat("go")) == "part 0. part 1."
        assert len(models.requests) == 2
        await client.chat("/status")
        models.forget()
        await client.chat("more [[reply:Enough.]]")
        history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
        said = [m["content"][0]["text"].strip() for m in history if m["role"] == "assistant"]
        assert said[0] == "part 0. part 1." and said[1].startswith("🦞") and said[2:] == ["Enough."]


async def test_a_call_that_was_cut_is_never_run_and_the_model_is_told(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    start = {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {}}}
    block = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
    half = {"type": "input_json_delta", "partial_json": '{"path": "a.txt", "content": "xxx'}
    events = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": half},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    raw = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    models.queue(Reply(raw=raw), Reply(text="Then not."))
    async with gateway.client() as client:
        assert text_of(await client.chat("write a long file")) == "Then not."
        told = json.dumps(models.requests[-1].body["messages"][-1])
        assert "write" in told
        assert "not run" in told
        assert not list(gateway.state_dir.rglob("a.txt"))
        # The last one may look whole; those before it are.
        calls = [Call("write", {"path": f"{name}.txt", "content": "x"}) for name in ("b", "a")]
        models.queue(Reply(text="I write both.", calls=calls, stop="length"), Reply(text="Only one."))
        assert text_of(await client.chat("again")) == "Only one."
        assert list(gateway.state_dir.rglob("b.txt")) and not list(gateway.state_dir.rglob("a.txt"))
        assert "not run" in json.dumps(models.requests[-1].body["messages"][-1])


async def test_after_a_power_cut_between_two_parts_the_answer_is_finished(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    models.queue(Reply(text="one two ", stop="length"), Reply(text="lost", sleep_ms=60_000))
    run_id = str(uuid.uuid4())
    gateway = await ForkedGateway(tmp_path / "state", config).start()
    async with gateway.client() as client:
        await client.call("chat.send", {"sessionKey": "main", "message": "count", "idempotencyKey": run_id})
        await models.wait_for_requests(2)
        gateway.kill()
    models.forget()
    models.reply("three")
    async with ForkedGateway(tmp_path / "state", None) as again, again.client() as client:
        await client.call("agent.wait", {"runId": run_id, "timeoutMs": 50_000})
        history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
        assert [m["content"][0]["text"] for m in history if m["role"] == "assistant"] == ["one two three"]
    [row] = stored.ledger(again, "SELECT result FROM messages")
    assert json.loads(row["result"])["text"] == "one two three"


async def test_reasoning_cut_by_the_limit_stays_hidden_in_both_parts(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply(text="<think>first half", stop="length"), Reply(text=" second half</think>Answer."))
    async with gateway.client() as client:
        assert text_of(await client.chat("think hard")) == "Answer."
        seen = json.dumps([client.events, await client.call("chat.history", {"sessionKey": "main"})])
        assert "half" not in seen
        assert "think>" not in seen
