"""Silence and reasoning through a real Gateway: what any client, channel view or history gets to see."""

from __future__ import annotations

import json
import uuid

from tests.support import stored
from tests.support.gateway import WireClient, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

SECRET = "the vault is 4711"


async def shown(client: WireClient, run_id: str) -> str:
    """Everything a client saw of a run, and the history views."""
    stored = await client.call("chat.history", {"sessionKey": "main"})
    public = await client.call("chat.history", {"sessionKey": "main", "format": "messages"})
    rows = await client.call("sessions.list", {"includeLastMessage": True, "includeDerivedTitles": True})
    answers = [m for m in stored["messages"] + public["messages"] if m["role"] == "assistant"]
    return json.dumps([client.of_run(run_id), answers, rows])


async def test_a_silent_answer_ends_the_run_without_a_word(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply(text="NO_REPLY", delay_ms=1))
    async with gateway.client() as client:
        run_id = str(uuid.uuid4())
        final = await client.chat("are you there?", run_id=run_id)
        assert final["state"] == "final"
        assert "message" not in final
        seen = await shown(client, run_id)
        assert "NO_" not in seen
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert [message["role"] for message in history["messages"]] == ["user"]
        waited = await client.call("agent.wait", {"runId": run_id, "timeoutMs": 50_000})
        assert waited["status"] == "ok"
        kept = json.dumps(gateway.transcript(history["sessionId"]))
        assert "NO_REPLY" in kept


async def test_the_ledger_knows_silence_from_an_answer(gateway: InProcessGateway, models: ModelServer) -> None:
    models.reply("NO_REPLY")
    async with gateway.client() as client:
        await client.chat("psst")
    assert "silent" in [row["state"] for row in stored.ledger(gateway, "SELECT state FROM messages")]


async def test_reasoning_in_tags_is_kept_and_never_shown(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply(text=f"<think>{SECRET}</think>\n\nHello there. NO_REPLY", delay_ms=1))
    async with gateway.client() as client:
        run_id = str(uuid.uuid4())
        final = await client.chat("hi", run_id=run_id)
        assert text_of(final) == "Hello there."
        seen = await shown(client, run_id)
        assert "Hello there." in seen
        for hidden in ("4711", "think>", "NO_"):
            assert hidden not in seen
        session_id = (await client.call("chat.history", {"sessionKey": "main"}))["sessionId"]
        answer = gateway.transcript(session_id)[-1]["message"]
        assert answer["content"][0] == {"type": "thinking", "thinking": SECRET}
        models.reply("Still here.")
        assert text_of(await client.chat("and now?")) == "Still here."


async def test_reasoning_is_shown_with_the_answer_when_the_session_asks_for_it(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("/reasoning on")
        run_id = str(uuid.uuid4())
        models.queue(Reply(text="<think>two\nlines</think>Done.", delay_ms=1))
        final = await client.chat("go", run_id=run_id)
        assert text_of(final) == "Done."
        assert final["message"]["content"][0] == {"type": "thinking", "thinking": "two\nlines"}
        models.reply("<think>again</think>Once more.")
        answer = await client.send("agent", {"message": "again", "sessionKey": "main", "idempotencyKey": "reasons-1"})
        await client.answer(answer)
        payloads = (await client.answer(answer))["result"]["payloads"]
        assert [payload["text"] for payload in payloads] == ["Reasoning:\n_again_", "Once more."]


async def test_reasoning_can_be_followed_while_it_is_thought(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("/reasoning stream")
        run_id = str(uuid.uuid4())
        models.queue(Reply(text="<think>step one, step two</think>Done.", delay_ms=1))
        final = await client.chat("go", run_id=run_id)
        assert final["message"]["content"] == [{"type": "text", "text": "Done."}]
        thoughts = [e["payload"]["data"] for e in client.of_run(run_id) if e["payload"].get("stream") == "thinking"]
        assert "".join(data["delta"] for data in thoughts) == "step one, step two"
        assert thoughts[-1]["text"] == "step one, step two"


async def test_an_answer_without_words_gives_a_notice_and_words_before_a_tool_count(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        models.queue(Reply(text="<think>hm</think>"))
        assert "without a word" in text_of(await client.chat("hello?"))
        models.queue(Reply(text="It is 42.", calls=[Call("read", {"path": "x"})]), Reply(text="NO_REPLY"))
        run_id = str(uuid.uuid4())
        final = await client.chat("what is it?", run_id=run_id)
        assert "message" not in final
        seen = await shown(client, run_id)
        assert "It is 42." in seen
        assert "NO_" not in seen
