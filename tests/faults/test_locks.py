"""Storage that refuses for a while: a locked ledger, a lock time-out, a server that fails over to its standby.

The run that could not write its end writes it later, senders learn the reason, and every message ends once.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from openclaw.storage.files import ledger, ledger_db
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.postgres import ServerPair, needs_postgres, new_schema, postgres_server, stored_rows


def message(key: str, session: str = "main") -> dict[str, Any]:
    return {"sessionKey": session, "message": f"{key} [[reply:done {key}]]", "idempotencyKey": key}


async def why(client: WireClient, key: str) -> str:
    return "\n".join((await client.call("messages.why", {"ref": key}))["story"])


async def sent_at_last(client: WireClient, key: str, session: str = "main") -> str:
    """Sends a message until it is accepted, and returns what the first refusal said."""
    first = ""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.call("chat.send", message(key, session))
                return first
            except RequestFailed as refused:
                first = first or str(refused)
                await asyncio.sleep(0.05)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the Gateway wait a moment for a lock instead of five seconds."""
    for module in (ledger, ledger_db):
        monkeypatch.setattr(module, "BUSY_TIMEOUT_MS", 20)


async def test_a_run_ends_after_another_program_has_unlocked_the_ledger(
    tmp_path: Path, models: ModelServer, impatient: None
) -> None:
    held = asyncio.Event()
    models.queue(Reply("the answer", hold=held, hold_after=1))
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    async with gateway, gateway.client() as client:
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(1)
        with locked(tmp_path / "state" / "ledger.db"):
            held.set()
            with pytest.raises(RequestFailed, match="locked by another program"):
                await client.call("chat.send", message("b", "other"))
            async with asyncio.timeout(30):
                while "database is locked" not in await why(client, "a"):
                    await asyncio.sleep(0.02)
            assert "locked" in (await client.call("health"))["waitsForStorage"][0]
        assert text_of(await client.ending("a")) == "the answer"
        assert "waitsForStorage" not in await client.call("health")
        assert text_of(await client.chat("b [[reply:done b]]", "other", run_id="b")) == "done b"
        rows = await gateway.gateway.runtime.stores.ledger.recent()
        assert [row.state for row in rows] == ["answered"] * 2


async def test_a_run_ends_after_a_lock_time_out_of_the_database(tmp_path: Path, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("the answer", hold=held, hold_after=1))
    storage = {"url": f"{postgres_server().url}&lock_timeout=100", "schema": new_schema()}
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key, storage=storage))
    async with gateway, gateway.client() as client:
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(1)
        other = await asyncpg.connect(storage["url"], server_settings={"search_path": storage["schema"]})
        async with other.transaction():
            await other.execute("LOCK TABLE messages IN SHARE MODE")
            held.set()
            with pytest.raises(RequestFailed, match=r"locked by another program: .*lock timeout"):
                await client.call("chat.send", message("b", "other"))
            async with asyncio.timeout(30):
                while "lock timeout" not in await why(client, "a"):
                    await asyncio.sleep(0.02)
        await other.close()
        assert text_of(await client.ending("a")) == "the answer"
        await sent_at_last(client, "b", "other")
        assert (await client.call("agent.wait", {"runId": "b", "timeoutMs": 30_000}))["status"] == "ok"


@pytest.fixture
async def servers() -> AsyncIterator[ServerPair]:
    programs = needs_postgres()
    started = await asyncio.to_thread(lambda: ServerPair(programs))
    yield started
    await asyncio.to_thread(started.remove)


async def test_a_run_ends_at_the_standby_after_a_failover(
    tmp_path: Path, models: ModelServer, servers: ServerPair
) -> None:
    """The standby answers, and takes no writes, for longer than any pause between two tries."""
    held = asyncio.Event()
    models.queue(Reply("the answer", hold=held, hold_after=1))
    storage = {"url": servers.url, "schema": new_schema()}
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key, storage=storage))
    async with gateway, gateway.client() as client:
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(1)
        await asyncio.to_thread(servers.die)
        failing = asyncio.create_task(asyncio.to_thread(servers.take_over, 3.0))
        held.set()
        refusal = await sent_at_last(client, "b", "other")
        assert "cannot reach its database" in refusal and "internal error" not in refusal
        await failing
        assert (await client.call("agent.wait", {"runId": "a", "timeoutMs": 30_000}))["status"] == "ok"
        assert (await client.call("agent.wait", {"runId": "b", "timeoutMs": 30_000}))["status"] == "ok"
    rows = stored_rows(storage, "SELECT run_id, state FROM messages ORDER BY run_id")
    assert rows == [{"run_id": "a", "state": "answered"}, {"run_id": "b", "state": "answered"}]


async def test_a_server_that_refuses_writes_for_a_while_is_dropped_and_found_again(
    tmp_path: Path, models: ModelServer, servers: ServerPair
) -> None:
    """The connections stay open. Each is dropped at its first refused write (SQLSTATE 25006)."""
    storage = {"url": servers.url, "schema": new_schema()}
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key, storage=storage))
    async with gateway, gateway.client() as client:
        assert text_of(await client.chat("a [[reply:done a]]")) == "done a"
        other = await asyncpg.connect(servers.url)
        await other.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await other.execute("SELECT pg_reload_conf()")
        with pytest.raises(RequestFailed, match="read-only"):
            while True:
                await client.call("chat.send", message("b"))
                await asyncio.sleep(0.02)
        await other.execute("SET transaction_read_only = off")
        await other.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await other.execute("SELECT pg_reload_conf()")
        await other.close()
        await sent_at_last(client, "b")
        assert (await client.call("agent.wait", {"runId": "b", "timeoutMs": 30_000}))["status"] == "ok"
