"""A link in a workspace brings nothing from outside into a prompt, a skill list, a memory search or a client."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gateway import RequestFailed, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

CANARY = "canary-5b1f0c-token"
SKILL = f"---\nname: stolen\ndescription: {CANARY}\n---\n"
BOOTSTRAP = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "HEARTBEAT.md", "BOOTSTRAP.md", "MEMORY.md")


def link(target: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    name.symlink_to(target)


def hard_link(target: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    os.link(target, name)


def behind_a_folder(target: Path, name: Path) -> None:
    """A relative link through a folder that is a link itself."""
    (name.parent / "inner").unlink(missing_ok=True)
    (name.parent / "inner").symlink_to(os.path.relpath(target.parent, name.parent))
    name.unlink(missing_ok=True)
    name.symlink_to(f"inner/{target.name}")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "one").mkdir(parents=True)
    (folder / "secret.md").write_text(f"Token: {CANARY}")
    (folder / "one" / "SKILL.md").write_text(SKILL)
    return folder


def seen(models: ModelServer) -> str:
    return json.dumps([request.body for request in models.requests])


@pytest.mark.parametrize("make", [link, hard_link, behind_a_folder])
async def test_bootstrap_files_that_lead_out_are_not_in_the_prompt(
    tmp_path: Path, models: ModelServer, outside: Path, make: Callable[[Path, Path], None]
) -> None:
    workspace = tmp_path / "state" / "workspace"
    workspace.mkdir(parents=True)
    for name in BOOTSTRAP:
        make(outside / "secret.md", workspace / name)
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("hello")
        assert CANARY not in seen(models)
        assert "[NOT READ] SOUL.md" in seen(models)
        for name in BOOTSTRAP:
            with pytest.raises(RequestFailed, match=r"leaves the workspace|hard link"):
                await client.call("agents.files.get", {"agentId": "main", "name": name})
        listed = await client.call("agents.files.list", {"agentId": "main"})
        assert all(file["missing"] for file in listed["files"])
        identity = await client.call("agent.identity.get", {"agentId": "main"})
        assert CANARY not in json.dumps(identity)


@pytest.mark.parametrize("where", ["skills", "skills/one", "skills/group/one", "skills/one/SKILL.md"])
async def test_skills_that_lead_out_are_not_listed_and_not_read(
    tmp_path: Path, models: ModelServer, outside: Path, where: str
) -> None:
    workspace = tmp_path / "state" / "workspace"
    (workspace / where).parent.mkdir(parents=True)
    targets = {"skills": outside, "skills/one/SKILL.md": outside / "one" / "SKILL.md"}
    (workspace / where).symlink_to(targets.get(where, outside / "one"))
    config = model_config(models.base_url, models.api_key)
    read = [f'[[tool:read {{"path": "{path}"}}]][[next]]' for path in ("skills/one/SKILL.md", outside / "secret.md")]
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat(f"look {''.join(read)}[[reply:done]]")
        assert CANARY not in seen(models)
        status = await client.call("skills.status", {})
        assert CANARY not in json.dumps(status)


@pytest.mark.parametrize("where", ["memory", "memory/notes.md", "memory/sub", "MEMORY.md"])
async def test_notes_that_lead_out_are_not_searched(
    tmp_path: Path, models: ModelServer, outside: Path, where: str
) -> None:
    workspace = tmp_path / "state" / "workspace"
    (workspace / where).parent.mkdir(parents=True, exist_ok=True)
    (workspace / where).symlink_to(outside / "secret.md" if where.endswith(".md") else outside)
    config = model_config(models.base_url, models.api_key)
    calls = [
        '[[tool:memory_search {"query": "Token canary"}]][[next]]',
        *(f'[[tool:memory_get {{"path": "{path}"}}]][[next]]' for path in (where, f"{where}/secret.md")),
    ]
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat(f"look {''.join(calls)}[[reply:done]]")
        assert len(models.requests) == 4
        assert CANARY not in seen(models)


async def test_creating_an_agent_does_not_write_through_a_link(
    tmp_path: Path, models: ModelServer, outside: Path
) -> None:
    home = tmp_path / "home-of-two"
    home.mkdir()
    (home / "IDENTITY.md").symlink_to(outside / "secret.md")
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        with pytest.raises(RequestFailed, match="leaves the workspace"):
            await client.call("agents.create", {"name": "two", "workspace": str(home)})
    assert (outside / "secret.md").read_text() == f"Token: {CANARY}"
