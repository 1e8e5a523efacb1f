"""Several agents on one Gateway, each with its own files, sessions and messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import stored
from tests.support.gateway import RequestFailed, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer


async def test_an_agent_is_added_talks_from_its_own_workspace_and_is_deleted(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        made = await client.call("agents.create", {"name": "Work Horse", "emoji": "🐎"})
        assert made["agentId"] == "work-horse"
        assert "Name: Work Horse" in (Path(made["workspace"]) / "IDENTITY.md").read_text()
        listed = await client.call("agents.list", {})
        assert (listed["defaultId"], [agent["id"] for agent in listed["agents"]]) == ("main", ["main", "work-horse"])
        files = {"agentId": "work-horse", "name": "AGENTS.md", "content": "Neigh first."}
        saved = (await client.call("agents.files.set", files))["file"]
        assert (saved["name"], saved["missing"], saved["content"]) == ("AGENTS.md", False, "Neigh first.")
        await client.chat("hello", "agent:work-horse:main")
        await client.chat("hello", "main")
        with pytest.raises(RequestFailed, match='unknown agent id "ghost"; there are: main, work-horse'):
            await client.call("chat.send", {"sessionKey": "agent:ghost:main", "message": "x", "idempotencyKey": "g"})
        assert "Neigh first." in json.dumps(models.requests[0].body["system"])
        assert "Neigh first." not in json.dumps(models.requests[1].body["system"])
        await client.call("agents.bind", {"agentId": "work-horse", "channel": "signal"})
        gone = await client.call("agents.delete", {"agentId": "work-horse"})
        assert gone["removedBindings"] == 1
        assert not Path(made["workspace"]).exists()
        if gateway.storage is None:
            assert list((gateway.state_dir / "trash").rglob("*.jsonl"))
            assert "agent:work-horse:main" in next((gateway.state_dir / "trash").rglob("sessions.json")).read_text()
        else:
            assert [".jsonl.deleted." in name for name in stored.transcripts(gateway, "work-horse")] == [True]
        listed = await client.call("sessions.list", {})
        assert [row["key"] for row in listed["sessions"]] == ["agent:main:main"]
        await client.chat("still here", "main")
    await gateway.stop()
    assert not (gateway.state_dir / "agents" / "work-horse").exists()


async def test_what_must_not_be_done_to_agents_is_refused(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for method, params, words in (
            ("agents.create", {"name": "main"}, '"main" is reserved'),
            ("agents.delete", {"agentId": "main"}, '"main" cannot be deleted'),
            ("agents.delete", {"agentId": "ghost"}, 'unknown agent id "ghost"'),
            ("agent", {"agentId": "ghost", "message": "x", "idempotencyKey": "1"}, 'unknown agent id "ghost"'),
            ("agents.files.get", {"agentId": "main", "name": "../openclaw.json"}, "unsupported file"),
        ):
            with pytest.raises(RequestFailed, match=words):
                await client.call(method, params)


async def test_agents_of_an_included_file_are_changed_there_only(tmp_path: Path, models: ModelServer) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "agents.json5").write_text("{ list: [{ id: 'main' }, { id: 'helper' }] }")
    config = model_config(models.base_url, models.api_key)
    config["agents"]["$include"] = "agents.json5"
    async with InProcessGateway(state, config) as gateway, gateway.client() as client:
        saved = {"agentId": "helper", "name": "AGENTS.md", "content": "Help."}
        await client.call("agents.files.set", saved)
        for method, params in (("agents.delete", {}), ("agents.update", {"name": "Other"})):
            with pytest.raises(RequestFailed, match='"helper" is listed in a file that the configuration includes'):
                await client.call(method, {"agentId": "helper", **params})
        kept = await client.call("agents.files.get", {"agentId": "helper", "name": "AGENTS.md"})
        assert kept["file"]["content"] == "Help."
        await client.call("agents.create", {"name": "Third"})
        listed = await client.call("agents.list", {})
        assert [agent["id"] for agent in listed["agents"]] == ["main", "helper", "third"]
        await client.call("agents.delete", {"agentId": "third"})
        listed = await client.call("agents.list", {})
        assert [agent["id"] for agent in listed["agents"]] == ["main", "helper"]


async def test_a_file_of_2026_9_keeps_its_form_when_agents_are_changed(tmp_path: Path, models: ModelServer) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    config = model_config(models.base_url, models.api_key)
    config["agents"]["entries"] = {"main": {"tools": {"deny": ["exec"]}}, "helper": {"name": "Hel"}}
    async with InProcessGateway(state, config) as gateway, gateway.client() as client:
        await client.call("agents.create", {"name": "Third"})
        await client.call("agents.update", {"agentId": "helper", "name": "Helper"})
        listed = await client.call("agents.list", {})
        assert [agent["id"] for agent in listed["agents"]] == ["main", "helper", "third"]
        await client.call("agents.delete", {"agentId": "third"})
        agents = json.loads((state / "openclaw.json").read_text())["agents"]
        assert agents["entries"] == {"main": {"tools": {"deny": ["exec"]}}, "helper": {"name": "Helper"}}
        assert "list" not in agents


async def test_an_agent_is_not_added_to_a_file_that_someone_else_has_just_changed(gateway: InProcessGateway) -> None:
    file = gateway.state_dir / "openclaw.json"
    async with gateway.client() as client:
        file.write_text("// mine\n" + file.read_text())
        with pytest.raises(RequestFailed, match="config changed since last load") as failed:
            await client.call("agents.create", {"name": "Late"})
    assert failed.value.code == "INVALID_REQUEST"
    assert "Late" not in file.read_text()


async def test_the_command_line_adds_binds_and_deletes(gateway: InProcessGateway) -> None:
    async def run(*args: str) -> str:
        done = await gateway.command("agents", *args)
        done.check_returncode()
        return done.stdout

    assert json.loads(await run("add", "Beta", "--bind", "signal:work", "--json"))["agentId"] == "beta"
    assert "beta (Beta)" in await run("list")
    assert json.loads(await run("bind", "beta", "signal", "--peer", "group:g1", "--json"))["added"] is True
    assert json.loads(await run("delete", "beta", "--force", "--json"))["removedBindings"] == 2
