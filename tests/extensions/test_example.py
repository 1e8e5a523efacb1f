"""The example plugin, installed as a package of its own and driven through a running Gateway."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.flows.conftest import models
from tests.support.gateway import TOKEN, RequestFailed, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_script import Call, Reply
from tests.support.model_server import ModelServer

__all__ = ["models"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "dice-plugin"
LIMIT_S = 60


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the example is installed into with pip, as into an environment of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(folder), str(EXAMPLE)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("dice_plugin", None)


def configuration(models: ModelServer, **plugins: Any) -> dict[str, Any]:
    config = model_config(models.base_url, models.api_key, plugins=plugins)
    echo = {"baseUrl": "http://127.0.0.1:9", "apiKey": "none", "api": "dice/echo", "models": [{"id": "say"}]}
    config["models"]["providers"]["parrot"] = echo
    return config


DICE = {"entries": {"dice": {"enabled": True, "config": {"seed": 7}}}}


@pytest.mark.usefixtures("installed")
async def test_every_point_works_through_the_gateway(tmp_path: Path, models: ModelServer) -> None:
    async with (
        InProcessGateway(tmp_path / "state", configuration(models, **DICE)) as gateway,
        gateway.client() as client,
    ):
        models.queue(Reply(calls=[Call("dice", {"sides": 6})]), Reply(text="rolled"))
        assert text_of(await client.chat("roll")) == "rolled"
        first = models.requests[0].body
        system = json.dumps(first["system"])
        assert "dice" in [tool["name"] for tool in first["tools"]]
        assert "- dice: Roll a die" in system and "## Dice\\nWhen somebody wants chance" in system
        assert "The die shows" in json.dumps(models.requests[1].body["messages"][-1])
        models.queue(Reply(calls=[Call("dice", {"sides": 5000})]), Reply(text="refused"))
        await client.chat("roll a big one")
        assert "does not allow this call: at most 1000 sides" in json.dumps(models.requests[3].body["messages"][-1])
        count = len(models.requests)
        assert text_of(await client.chat("/dice 20")).endswith("of 20")
        assert "/dice [sides] — Roll a die." in text_of(await client.chat("/commands"))
        assert text_of(await client.chat("flip a coin")) in ("Heads.", "Tails.")
        assert len(models.requests) == count, "a model was asked about what an extension answered"
        assert text_of(await client.chat("hello /model parrot/say", "agent:main:parrot")).startswith("echo: ")
        counts = await client.call("dice.counts")
        assert counts["received"] >= 5 and counts["sent"] >= 3
        async with aiohttp.ClientSession() as http:
            where = f"{gateway.url}/extensions/dice/counts"
            async with http.get(where) as refused:
                assert refused.status == 401
            async with http.get(where, headers={"Authorization": f"Bearer {TOKEN}"}) as answered:
                assert (await answered.json())["received"] >= 5
        listed = await gateway.command("plugins", "list")
        assert "✓ dice: loaded (openclaw-dice 1.0.0)" in listed.stdout, listed.stderr
        shown = await gateway.command("plugins", "info", "dice")
        for part in ("tool dice (all)", "command /dice (read)", "hook message_received", "model protocol dice/echo"):
            assert part in shown.stdout
        async with gateway.client(scopes=["operator.pairing"]) as other:
            with pytest.raises(RequestFailed, match="missing scope"):
                await other.call("dice.counts")
        state = gateway.gateway.runtime.extensions.extensions[0]
        assert (state.failures, state.last_failure) == (0, "")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "plugins",
    [
        {},
        {"entries": {"dice": {}}},
        {"entries": {"dice": {"enabled": False}}, "allow": ["dice"]},
        {"entries": {"dice": {"enabled": True}}, "deny": ["dice"]},
        {"entries": {"dice": {"enabled": True}}, "allow": ["other"]},
        {"entries": {"dice": {"enabled": True}}, "enabled": False},
    ],
)
async def test_it_is_not_even_imported_unless_the_configuration_names_it(
    tmp_path: Path, models: ModelServer, plugins: dict[str, Any]
) -> None:
    sys.modules.pop("dice_plugin", None)
    async with InProcessGateway(tmp_path / "state", configuration(models, **plugins)) as gateway:
        assert "dice_plugin" not in sys.modules
        assert not gateway.gateway.runtime.extensions.tools
        async with gateway.client() as client:
            (row,) = (await client.call("plugins.list"))["plugins"]
            assert row["state"] == "off" and row["problem"]
            assert row["lastFailure"] == "" and "last_failure" not in row


async def test_an_allow_list_names_it_too(tmp_path: Path, models: ModelServer, installed: Path) -> None:
    async with InProcessGateway(tmp_path / "state", configuration(models, allow=["dice"])) as gateway:
        assert [one.state for one in gateway.gateway.runtime.extensions.extensions] == ["loaded"]


async def test_it_is_not_loaded_from_a_workspace(tmp_path: Path, models: ModelServer, installed: Path) -> None:
    config = configuration(models, **DICE)
    config["agents"]["defaults"]["workspace"] = str(installed)
    sys.modules.pop("dice_plugin", None)
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        (dice,) = gateway.gateway.runtime.extensions.extensions
        assert dice.state == "failed" and "agents can write in" in dice.problem
        assert "dice_plugin" not in sys.modules
        checked = await gateway.command("doctor")
        assert "the extension dice cannot be used" in checked.stdout or "not loaded" in checked.stdout


async def test_hooks_that_nobody_waits_for_end_with_the_gateway(tmp_path: Path, models: ModelServer) -> None:
    plugin = tmp_path / "slow.py"
    plugin.write_text(
        "import asyncio\n"
        "async def wait(about):\n    await asyncio.sleep(3600)\n"
        "def register(api):\n    api.on('message_received', wait)\n"
    )
    config = configuration(models, load={"paths": [str(plugin)]})
    async with asyncio.timeout(LIMIT_S):
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            assert text_of(await client.chat("hi [[reply:hello]]")) == "hello"
