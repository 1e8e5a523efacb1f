"""What the model is told, through a real Gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, RequestFailed, model_config
from tests.support.model_server import ModelServer


def system_blocks(models: ModelServer, number: int = -1) -> list[str]:
    return [block["text"] for block in models.requests[number].body["system"]]


async def test_the_first_message_finds_a_furnished_workspace_and_the_prompt_stays_the_same_bytes(
    tmp_path: Path, models: ModelServer
) -> None:
    process = GatewayProcess(tmp_path / "state", model_config(models.base_url, models.api_key))
    async with process as gateway, gateway.client() as client:
        await client.chat("hello [[reply:hi]]")
        await client.chat("and again [[reply:hi]]")
        first, second = system_blocks(models, -2), system_blocks(models, -1)
        assert first[0] == second[0]
        assert "This workspace is new: follow BOOTSTRAP.md" in first[0]
        assert "<name>skill-writer</name>" in first[0]
        (tmp_path / "state" / "workspace" / "BOOTSTRAP.md").unlink()
        await client.chat("once more [[reply:hi]]")
        assert "This workspace is new" not in system_blocks(models)[0]


async def test_the_report_of_a_run_counts_files_skills_and_tools(tmp_path: Path, models: ModelServer) -> None:
    workspace = tmp_path / "state" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "AGENTS.md").write_text("x" * 30_000)
    process = GatewayProcess(tmp_path / "state", model_config(models.base_url, models.api_key))
    async with process as gateway, gateway.client() as client:

        async def report(number: int) -> dict[str, Any]:
            request = await client.send("agent", {"message": "hi [[reply:yes]]", "idempotencyKey": f"run-{number}"})
            await client.answer(request)
            return (await client.answer(request))["result"]["meta"]["systemPromptReport"]

        first = await report(1)
        sent = system_blocks(models)
        assert first["systemPrompt"]["chars"] == sum(map(len, sent))
        names = [entry["name"] for entry in first["skills"]["entries"]]
        assert "skill-writer" in names
        assert [file["truncated"] for file in first["injectedWorkspaceFiles"][:2]] == [True, False]
        assert first["warnings"][0].startswith("AGENTS.md is too long")
        assert "warnings" not in await report(2)


async def test_skills_status_lists_the_skills_of_an_agent(tmp_path: Path, models: ModelServer) -> None:
    folder = tmp_path / "state" / "workspace" / "skills" / "mine"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: mine\ndescription: My own\n---\nDo it.\n")
    process = GatewayProcess(tmp_path / "state", model_config(models.base_url, models.api_key))
    async with process as gateway, gateway.client() as client:
        status = await client.call("skills.status", {})
        mine = next(row for row in status["skills"] if row["name"] == "mine")
        assert (mine["source"], mine["eligible"], mine["bundled"]) == ("openclaw-workspace", True, False)
        assert mine["baseDir"] == str(folder)
        assert mine["missing"] == {"bins": [], "anyBins": [], "env": [], "config": [], "os": []}
        with pytest.raises(RequestFailed, match='unknown agent id "nobody"'):
            await client.call("skills.status", {"agentId": "nobody"})


async def test_a_file_that_is_too_long_is_named_in_the_chat_once(gateway: GatewayProcess) -> None:
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "TOOLS.md").write_text("x" * 30_000)
    async with gateway.client() as client:
        for name in ("one", "two"):
            await client.chat("hello", run_id=name)
        told = await client.event(lambda event, payload: event == "chat" and payload["runId"].startswith("notice-one-"))
        assert "TOOLS.md" in json.dumps(told["payload"])
        assert not [frame for frame in client.events if "notice-two-" in json.dumps(frame)]
