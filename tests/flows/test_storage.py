"""The same Gateway on PostgreSQL: what is said is kept in the database, and survives what a file survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.postgres import PostgresServer, needs_postgres, storage_for


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    state = tmp_path / "state"
    config = model_config(models.base_url, models.api_key, storage=storage_for(state))
    async with InProcessGateway(state, config) as gateway:
        yield gateway


async def test_a_conversation_is_kept_in_the_database_and_goes_on_after_a_restart(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply(calls=[Call("read", {"path": "note.txt"})]), Reply("It says hello."))
    (gateway.state_dir / "workspace").mkdir(exist_ok=True)
    (gateway.state_dir / "workspace" / "note.txt").write_text("hello")
    async with gateway.client() as client:
        assert text_of(await client.chat("read the note", run_id="r1")) == "It says hello."
        listed = await client.call("sessions.list", {"limit": 5})
        assert listed["path"].startswith("postgresql://") and "@" not in listed["path"]
    await gateway.stop()
    await gateway.start()
    async with gateway.client() as client:
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert [message["role"] for message in history["messages"]] == ["user", "assistant", "toolResult", "assistant"]
        assert text_of(await client.chat("again [[reply:Yes.]]", run_id="r2")) == "Yes."
        exported = await client.call("sessions.export", {"key": "main", "format": "raw"})
        found = await client.call("sessions.search", {"query": "note"})
        usage = await client.call("sessions.usage", {})
        why = await client.call("messages.why", {"ref": "r1"})
    (row,) = [one for one in listed["sessions"] if one["kind"] == "direct"]
    assert [json.loads(line) for line in exported["items"]] == gateway.transcript(row["sessionId"])
    assert found["results"] and found["results"][0]["sessionKey"] == row["key"]
    assert usage["totals"]["totalTokens"] > 0 and why["message"]["state"] == "answered"
    files = {path.name for path in gateway.state_dir.rglob("*") if path.is_file()}
    assert not [name for name in files if name.endswith(".jsonl") or name in ("ledger.db", "sessions.json")]


async def test_what_is_sent_in_one_breath_keeps_its_order(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply("never said", hold=asyncio.Event(), hold_after=0))
    async with gateway.client() as client:
        await client.send("chat.send", {"sessionKey": "main", "message": "hello", "idempotencyKey": "h"})
        assert (await client.call("chat.abort", {"sessionKey": "main"}))["runIds"] == ["h"]


async def test_the_sessions_of_a_deleted_agent_are_gone(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.call("agents.create", {"name": "helper"})
        await client.chat("hello", "agent:helper:main")
        await client.chat("hello", "main")
        await client.call("agents.delete", {"agentId": "helper"})
        listed = await client.call("sessions.list", {})
        assert [row["key"] for row in listed["sessions"]] == ["agent:main:main"]
        assert gateway.gateway.directory.agent_ids() == ["main"]


async def test_a_killed_gateway_answers_once_what_it_had_accepted(tmp_path: Path, models: ModelServer) -> None:
    state = tmp_path / "state"
    config = model_config(models.base_url, models.api_key, storage=storage_for(state))
    held = asyncio.Event()
    models.queue(Reply("never heard", hold=held, hold_after=0), Reply("Here I am."))
    async with ForkedGateway(state, config) as gateway:
        async with gateway.client() as client:
            sent = {"sessionKey": "main", "message": "are you there?", "idempotencyKey": "r1"}
            await client.call("chat.send", sent)
            await models.wait_for_requests(1)
        gateway.kill()
        held.set()
        await gateway.start()
        async with gateway.client() as client:
            ended = await client.call("agent.wait", {"runId": "r1", "timeoutMs": 50_000})
            assert ended["status"] == "ok"
            again = await client.call("chat.send", sent)
            assert again["runId"] == "r1"
            history = await client.call("chat.history", {"sessionKey": "main"})
    said = [(message["role"], text_of({"message": message})) for message in history["messages"]]
    assert [role for role, _ in said] == ["user", "assistant"] and said[1][1] == "Here I am."
    assert len(models.requests) == 2


async def test_messages_are_refused_with_the_reason_while_the_database_is_away(
    tmp_path: Path, models: ModelServer
) -> None:
    server = PostgresServer(needs_postgres())
    try:
        config = model_config(models.base_url, models.api_key, storage={"url": server.url})
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            held = asyncio.Event()
            models.queue(Reply("1", hold=held, hold_after=0))
            await client.call("chat.send", {"sessionKey": "main", "message": "one", "idempotencyKey": "r1"})
            await models.wait_for_requests(1)
            await asyncio.to_thread(server.stop)
            held.set()
            await models.wait_until_idle()
            with pytest.raises(RequestFailed, match="cannot reach its database"):
                await client.call("chat.send", {"sessionKey": "main", "message": "two", "idempotencyKey": "r2"})
            await asyncio.to_thread(server.start)
            assert text_of(await client.ending("r1")) == "1", "the run waited"
            assert text_of(await client.chat("two [[reply:2]]", run_id="r2")) == "2"
            history = await client.call("chat.history", {"sessionKey": "main"})
            assert [message["role"] for message in history["messages"]] == ["user", "assistant"] * 2
    finally:
        server.remove()


async def test_a_second_gateway_on_the_same_schema_sees_the_same_sessions(
    gateway: InProcessGateway, tmp_path: Path, models: ModelServer
) -> None:
    config = model_config(models.base_url, models.api_key, storage=storage_for(gateway.state_dir))
    async with InProcessGateway(tmp_path / "second" / "state", config) as second:
        async with gateway.client() as client:
            assert text_of(await client.chat("hello [[reply:Hi.]]")) == "Hi."
        async with second.client() as client:
            history = await client.call("chat.history", {"sessionKey": "main"})
    assert [message["role"] for message in history["messages"]] == ["user", "assistant"]
