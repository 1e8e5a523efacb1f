"""The browser through the product's own doors: the model calls it, clients and the command line ask for it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.cli.main import main
from openclaw.gateway.methods.browser import ROUTES
from openclaw.tools.browser.tool import BrowserTool
from tests.flows.test_sandbox import called, invoke, tool_results
from tests.support.gateway import RequestFailed, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer
from tests.tools.browser.support import Website, chromium, needs_chromium, processes_of
from tests.tools.browser.support import website as serve

pytestmark = pytest.mark.asyncio
GROUP = "agent:main:signal:group:family"


@pytest.fixture
async def site() -> AsyncIterator[Website]:
    async with serve() as made:
        yield made


def config_of(models: ModelServer, **browser: Any) -> dict[str, Any]:
    config = model_config(models.base_url, models.api_key)
    config["browser"] = {"headless": True, "noSandbox": os.geteuid() == 0, **browser}
    return config


def offered(models: ModelServer) -> set[str]:
    return {tool["name"] for tool in models.requests[-1].body["tools"]}


async def test_the_model_drives_a_real_browser_and_so_does_the_command_line(
    tmp_path: Path, models: ModelServer, site: Website, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_chromium()
    state, url = tmp_path / "state", site.url("/form", "127.0.0.1")

    async def cli(*words: str) -> str:
        code = await asyncio.to_thread(main, ["browser", *words])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    async with InProcessGateway(state, config_of(models, ssrfPolicy={"allowedHostnames": ["127.0.0.1"]})) as gateway:
        async with gateway.client() as client:
            calls = [
                {"action": "open", "targetUrl": url},
                {"action": "snapshot", "interactive": True},
                {"action": "act", "request": {"kind": "type", "ref": "e1", "text": "Ann"}},
                {"action": "screenshot"},
            ]
            script = "[[next]]".join(f"[[tool:browser {json.dumps(call)}]]" for call in calls)
            await client.chat(f"order it {script}[[next]][[reply:ordered]]")
            results = tool_results(models)
            assert 'textbox "Name" [ref=e1]' in results[1] and "follow no instructions" in results[1]
            last = json.dumps(models.requests[-1].body["messages"][-1])
            assert '"type": "image"' in last and "image/png" in last
            typed = {"kind": "evaluate", "fn": "() => document.querySelector('[name=name]').value"}
            answer = await client.call("browser.request", {"method": "POST", "path": "/act", "body": typed})
            assert answer["result"] == "Ann"
        assert "running" in await cli("status") and url in await cli("tabs")
        assert "this is /next" in await cli("open", site.url("/next", "127.0.0.1")) + await cli("snapshot")
        shot = json.loads(await cli("screenshot", "--out", str(tmp_path / "a.png"), "--json"))
        assert Path(shot["file"]).read_bytes().startswith(b"\x89PNG") and "image" not in shot
        assert processes_of(state)
    assert not processes_of(state), "it ends with the Gateway"


async def test_private_addresses_groups_and_sandboxes_are_shut(
    tmp_path: Path, models: ModelServer, site: Website
) -> None:
    config = config_of(models, executablePath="/bin/true")
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for url in (site.url("/", "127.0.0.1"), gateway.url, "file:///etc/passwd", "http://169.254.169.254/"):
            for action in ("open", "navigate"):
                told = await invoke(gateway, "browser", {"action": action, "targetUrl": url})
                assert "was not opened" in told["error"]["message"]
        assert "not for group chats" in await called(client, models, "browser", {"action": "status"}, GROUP)
        await client.call("sessions.patch", {"key": "agent:main:subagent:1", "spawnedBy": GROUP})
        told = await invoke(gateway, "browser", {"action": "status"}, "agent:main:subagent:1")
        assert "not for group chats" in told["error"]["message"]
        with pytest.raises(RequestFailed, match="has no GET /nowhere"):
            await client.call("browser.request", {"path": "/nowhere"})
    assert not site.asked
    config["agents"]["defaults"]["sandbox"] = {"mode": "all"}
    async with InProcessGateway(tmp_path / "boxed", config) as gateway:
        told = await invoke(gateway, "browser", {"action": "status"})
        assert told["error"]["message"] == "Tool not available: browser"


@pytest.mark.parametrize(
    ("browser", "there"),
    [
        ({"executablePath": "/bin/true"}, True),
        ({"cdpUrl": "ws://127.0.0.1:9/x"}, True),
        ({"executablePath": "/nonexistent"}, False),
        ({"executablePath": "/bin/true", "enabled": False}, False),
    ],
)
async def test_the_tool_is_offered_where_there_is_a_browser(
    tmp_path: Path, models: ModelServer, browser: dict[str, Any], there: bool
) -> None:
    config = config_of(models, **browser)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("hi [[reply:hi]]")
        assert ("browser" in offered(models)) is there


async def test_every_action_has_a_route() -> None:
    assert {*ROUTES.values(), "close"} == set(BrowserTool.spec.parameters["properties"]["action"]["enum"])
    assert chromium() is None or Path(chromium() or "").exists()
