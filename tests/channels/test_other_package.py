"""A channel that another package brings: installed as a package of its own, and driven through a running Gateway."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.channels.base import ChannelKinds
from openclaw.config.load import parse_config
from tests.support.gateway import GatewayProcess, model_config
from tests.support.model_server import ModelServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "folder-channel"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed package."""
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(EXAMPLE)], check=True, timeout=300)
    return target


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


async def test_people_talk_through_a_channel_of_another_package(
    tmp_path: Path, models: ModelServer, installed: Path
) -> None:
    mailbox = tmp_path / "mailbox"
    config = model_config(
        models.base_url, models.api_key, channels={"folder": {"path": str(mailbox), "allowFrom": ["ann"]}}
    )
    async with GatewayProcess(tmp_path / "state", config, env={"PYTHONPATH": str(installed)}) as gateway:
        async with gateway.client() as client, asyncio.timeout(60):
            while not (await client.call("channels.status"))["channelAccounts"]["folder"][0]["connected"]:
                await asyncio.sleep(0.02)
        (mailbox / "in" / "m1.json").write_text(json.dumps({"from": "ann", "text": "hi [[reply:Hello Ann]]"}))
        async with asyncio.timeout(60):
            while not (replies := list((mailbox / "out").glob("*.json"))):
                await asyncio.sleep(0.02)
    assert json.loads(replies[0].read_text()) == {"to": "ann", "text": "Hello Ann"}
    assert not list((mailbox / "in").iterdir()), "what was taken in is gone from the platform"


def test_a_section_without_a_package_is_told_and_stops_nobody() -> None:
    config = parse_config("openclaw.json", "{ channels: { pigeon: { enabled: true } } }", {}).config
    (kind,) = ChannelKinds({}).configured(config)
    (account,) = kind.accounts(config)
    assert account.problem == "no installed package brings a channel called pigeon"


def test_a_section_that_is_off_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("it was looked for"))
    config = parse_config("openclaw.json", "{ channels: { pigeon: { enabled: false } } }", {}).config
    assert ChannelKinds({}).configured(config) == []
