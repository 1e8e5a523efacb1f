"""Files that a power cut left empty, cut or full of zeros: the Gateway starts, works with the copies and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(len(data)),
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) * 2 // 3],
}
JOB = {
    "name": "Brief", "schedule": {"kind": "cron", "expr": "0 7 * * *"}, "sessionTarget": "isolated",
    "payload": {"kind": "agentTurn", "message": "hello"}, "delivery": {"mode": "none"},
}  # fmt: skip


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.mark.files_only("the files themselves are damaged")
@pytest.mark.parametrize("damage", DAMAGE)
async def test_every_document_comes_back_from_its_copy(tmp_path: Path, models: ModelServer, damage: str) -> None:
    """Every JSON file with a copy is damaged, so that a reader that is added later is in the table by itself."""
    state = tmp_path / "state"
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(state, config) as gateway, gateway.client() as client:
        await client.chat("before [[reply:one]]")
        await client.call("cron.add", JOB)
        await client.call("system-event", {"text": "the door is open"})
        rules = await client.call("exec.approvals.get", {})
        file = {"version": 1, "agents": {"main": {"security": "deny"}}}
        await client.call("exec.approvals.set", {"file": file, "baseHash": rules["hash"]})
    copies = [copy for copy in state.rglob("*.json.bak") if copy.name not in ("openclaw.json.bak", "sessions.json.bak")]
    damaged = {copy.with_suffix("") for copy in copies}
    assert {path.name for path in damaged} >= {"jobs.json", "exec-approvals.json", "system-events.json"}
    before = {path: path.read_bytes() for path in damaged}
    for path in damaged:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    async with InProcessGateway(state, config) as gateway, gateway.client() as client:
        assert [job["name"] for job in (await client.call("cron.list", {}))["jobs"]] == ["Brief"]
        assert (await client.call("exec.approvals.get", {}))["file"]["agents"]["main"]["security"] == "deny"
        assert text_of(await client.chat("after [[reply:two]]")) == "two"
        async with asyncio.timeout(60):
            while "was damaged" not in str(await client.call("chat.history", {"sessionKey": "main"})):
                await asyncio.sleep(0.01)
    for path, data in before.items():
        found = path.read_bytes()
        assert found == data or path.name in ("jobs.json", "heartbeat.json", "system-events.json"), path
        assert found.strip(b"\0 \n"), path
