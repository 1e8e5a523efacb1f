"""Keys: what the Gateway has, what only this terminal has, how one is stored, and whether they work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer
from tests.support.tmux import Tmux, need_tmux


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["anthropic"] = {"baseUrl": models.base_url}
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        yield gateway


async def openclaw(gateway: InProcessGateway, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openclaw", *words]
    return await asyncio.to_thread(
        subprocess.run, command, env={**gateway.env, **env}, capture_output=True, text=True, timeout=60
    )


async def report(gateway: InProcessGateway, *words: str, **env: str) -> dict[str, Any]:
    return json.loads((await openclaw(gateway, "models", "status", "--json", *words, **env)).stdout)


async def test_a_key_that_only_the_terminal_has_is_told_and_can_be_stored(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    variable = {"ANTHROPIC_API_KEY": models.api_key}
    told = await report(gateway, **variable)
    assert told["resolvedDefault"] == told["gateway"]["defaultModel"] == "mock/mock-1"
    assert [offer["variable"] for offer in told["notInGateway"]] == ["ANTHROPIC_API_KEY"]
    text = (await openclaw(gateway, "models", "status", **variable)).stdout
    assert "ANTHROPIC_API_KEY is set in this terminal, but the Gateway was started without it." in text
    assert "Default model of the Gateway: mock/mock-1" in text
    words = ("models", "auth", "add", "--provider", "anthropic", "--from-env", "ANTHROPIC_API_KEY", "--json")
    assert json.loads((await openclaw(gateway, *words, **variable)).stdout)["profile"] == "anthropic:default"
    path = gateway.state_dir / "agents" / "main" / "agent" / "auth-profiles.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["profiles"]["anthropic:default"]["key"] == models.api_key
    told = await report(gateway, "--probe", **variable)
    assert told["notInGateway"] == []
    (row,) = (row for row in told["gateway"]["providers"] if row["provider"] == "anthropic")
    assert [(key["id"], key["source"]) for key in row["keys"]] == [("anthropic:default", "profile")]
    assert {result["key"]["id"]: result["ok"] for result in told["probe"]}["anthropic:default"] is True
    assert models.api_key not in json.dumps(told)
    removed = await openclaw(gateway, "models", "auth", "remove", "--provider", "anthropic")
    assert removed.stdout == "The key anthropic:default is forgotten.\n"
    assert len((await report(gateway, **variable))["notInGateway"]) == 1


async def test_a_key_that_does_not_work_is_named(gateway: InProcessGateway, models: ModelServer) -> None:
    added = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "openclaw", "models", "auth", "add", "--provider", "anthropic", "--profile", "a:old"],
        env=gateway.env,
        input="sk-revoked\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert added.returncode == 0 and "Stored as a:old" in added.stdout
    done = await openclaw(gateway, "models", "status", "--probe", "--probe-provider", "anthropic")
    assert done.returncode == 1
    assert "with a:old: does not work" in done.stdout and "sk-revoked" not in done.stdout
    fine = await openclaw(gateway, "models", "status", "--probe", "--probe-provider", "mock")
    assert fine.returncode == 0 and ": works (" in fine.stdout
    unknown = await openclaw(gateway, "models", "status", "--probe", "--probe-provider", "nobody")
    assert unknown.returncode == 1 and "the Gateway has no key for nobody" in unknown.stderr


async def test_what_is_no_key_is_not_stored(gateway: InProcessGateway) -> None:
    words = ("models", "auth", "add", "--provider", "anthropic", "--from-env", "NOT_A_KEY")
    refused = await openclaw(gateway, *words, NOT_A_KEY="two words")
    assert refused.returncode == 1 and "That is not a key" in refused.stderr
    missing = await openclaw(gateway, *words)
    assert missing.returncode == 1 and "NOT_A_KEY is not set here" in missing.stderr


async def test_a_person_is_asked_and_the_next_message_is_answered_with_the_key(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    need_tmux()
    env = {**gateway.env, "ANTHROPIC_API_KEY": models.api_key}
    with tempfile.TemporaryDirectory(prefix="keys") as folder:
        async with Tmux(Path(folder), env, "models", "status") as terminal:
            await terminal.shows("The Gateway does not have your Anthropic key", "[Y/n]")
            await terminal.press("Enter")
            await terminal.shows("Stored as anthropic:default", "mock/mock-1 answers.")
    assert (await report(gateway, ANTHROPIC_API_KEY=models.api_key))["notInGateway"] == []
