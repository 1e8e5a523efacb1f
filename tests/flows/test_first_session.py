"""BOOTSTRAP.md is for the first session of a new workspace, and `/context` names the files that could not be read."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon

US, ANN, GROUP = "+15550000001", "+15550000042", "Z3JvdXAtb25l"
NEW = "This workspace is new: follow BOOTSTRAP.md"
FIRST_LINE = "# BOOTSTRAP.md - your first conversation"


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US, groups=(GROUP,)) as daemon:
        yield daemon


def system(models: ModelServer, number: int = -1) -> str:
    return "\n".join(block["text"] for block in models.requests[number].body["system"])


def is_shown(models: ModelServer) -> bool:
    text = system(models)
    assert (NEW in text) == (FIRST_LINE in text)
    return NEW in text


async def context_row(client: WireClient, name: str, key: str = "main") -> str:
    answer = text_of(await client.chat("/context list", session_key=key))
    return next(line for line in answer.splitlines() if line.startswith(f"- {name}:"))


async def test_bootstrap_is_shown_until_the_first_session_ends_and_in_no_other(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:hi]]")
        assert is_shown(models)
        await client.chat("me too [[reply:hi]]", session_key="agent:main:other")
        assert not is_shown(models)
        row = await context_row(client, "BOOTSTRAP.md", "agent:main:other")
        assert row.startswith("- BOOTSTRAP.md: OK | raw ") and row.endswith("| injected 0 chars (~0 tok)")
        assert "raw 0" not in row
        await client.chat("again [[reply:hi]]")
        assert is_shown(models)
        assert not (await context_row(client, "BOOTSTRAP.md")).endswith("injected 0 chars (~0 tok)")
        await client.call("sessions.reset", {"key": "main"})
        await client.chat("a new start [[reply:hi]]")
        assert not is_shown(models)


async def test_bootstrap_that_the_agent_removed_keeps_its_row(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:hi]]")
        (gateway.state_dir / "workspace" / "BOOTSTRAP.md").unlink()
        await client.chat("again [[reply:hi]]")
        assert "BOOTSTRAP.md" not in system(models)
        row = await context_row(client, "BOOTSTRAP.md")
    assert row == "- BOOTSTRAP.md: OK | raw 0 chars (~0 tok) | injected 0 chars (~0 tok)"


async def test_context_before_the_first_message_does_not_use_up_the_first_session(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await context_row(client, "BOOTSTRAP.md", "agent:main:curious")
        await client.chat("hello [[reply:hi]]")
        assert is_shown(models)


async def test_the_first_session_is_known_after_a_kill(gateway_process: ForkedGateway, models: ModelServer) -> None:
    async with gateway_process.client() as client:
        await client.chat("hello [[reply:hi]]")
    gateway_process.kill()
    await gateway_process.start()
    async with gateway_process.client() as client:
        await client.chat("somebody else [[reply:hi]]", session_key="agent:main:other")
        assert not is_shown(models)
        await client.chat("me again [[reply:hi]]")
        assert is_shown(models)


async def test_two_agents_with_one_workspace_have_one_first_session(tmp_path: Path, models: ModelServer) -> None:
    shared = str(tmp_path / "shared")
    agents: dict[str, Any] = {"list": [{"id": "main", "workspace": shared}, {"id": "ops", "workspace": shared}]}
    config = model_config(models.base_url, models.api_key)
    config["agents"] = {**config.get("agents", {}), **agents}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("hello [[reply:hi]]")
        assert is_shown(models)
        await client.chat("hello [[reply:hi]]", session_key="agent:ops:main")
        assert not is_shown(models)


async def test_a_group_is_never_shown_bootstrap_even_if_it_writes_first(
    tmp_path: Path, models: ModelServer, signal: SignalDaemon
) -> None:
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "groupPolicy": "open"}
    config = model_config(models.base_url, models.api_key, channels={"signal": section})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await signal.connected()
        info = {"groupId": GROUP, "type": "DELIVER"}
        await signal.deliver(signal.message("hello [[reply:hi]]", sender=ANN, name="Ann", groupInfo=info))
        await signal.called("send")
        assert not is_shown(models)
        await client.chat("hello [[reply:hi]]")
        assert is_shown(models)


@pytest.mark.files_only("Gateways that share a database each have a folder of their own")
async def test_a_workspace_that_was_deleted_and_made_again_is_new(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    workspace = gateway.state_dir / "workspace"
    async with gateway.client() as client:
        await client.chat("hello [[reply:hi]]")
        workspace.rename(workspace.with_name("old"))
        await client.call("sessions.reset", {"key": "main"})
        await client.chat("hello [[reply:hi]]")
        assert is_shown(models)


@pytest.mark.parametrize("name", ["SOUL.md", "BOOTSTRAP.md", "MEMORY.md"])
async def test_a_file_that_cannot_be_read_is_named_with_its_reason_until_it_can(
    gateway: InProcessGateway, models: ModelServer, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.WARNING)
    path = gateway.state_dir / "workspace" / name
    path.mkdir(parents=True)
    async with gateway.client() as client:
        await client.chat("hello [[reply:hi]]")
        assert f"[NOT READ] {name}" in system(models)
        row = await context_row(client, name)
        assert row.startswith(f"- {name}: NOT READ | raw 0 | injected 0 | ") and "is a directory" in row.lower()
        logged = [record.getMessage() for record in caplog.records if name in record.getMessage()]
        assert len(logged) == 1 and "is a directory" in logged[0].lower()
        await client.chat("again [[reply:hi]]")
        assert len([record for record in caplog.records if name in record.getMessage()]) == 1
        path.rmdir()
        path.write_text("readable now")
        await client.chat("again [[reply:hi]]")
        assert "readable now" in system(models)
        assert (await context_row(client, name)).startswith(f"- {name}: OK | raw 12 chars")
