"""Tools of MCP servers in a running Gateway: who gets them, what the model sees, and what happens when one is dead."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw.mcp import servers as servers_module
from tests.flows.test_exec_rules import question
from tests.flows.test_session_tools import invoke as invoke_details
from tests.mcp.test_connection import PLAIN, http_server, until
from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_script import Call, Reply
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon

ROOT = Path(__file__).parents[2]
SECRET = "sesame-open-7731"
US, ANN, BOB, GROUP = "+15550000001", "+15550000042", "+15550000043", "Z3JvdXAtb25l"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need long to start a server, and these tests want its tools in the first run."""
    monkeypatch.setattr(servers_module, "WAIT_S", 60.0)


OFFICIAL = {"args": ["-m", "tests.mcp.tool_server"], "cwd": str(ROOT)}
"""A server made with the official package, which takes most of a second to load."""


def shelf(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": PLAIN, "env": {"SHELF_MEANING": SECRET}, **more}


def configuration(models: ModelServer, servers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return model_config(models.base_url, models.api_key, mcp={"servers": servers}, **more)


def offered(models: ModelServer, request: int = -1) -> list[str]:
    return [tool["name"] for tool in models.requests[request].body.get("tools", [])]


async def test_the_model_sees_and_calls_the_tools_and_text_stays_material(tmp_path: Path, models: ModelServer) -> None:
    async with http_server() as url:
        servers = {
            "shelf": shelf(tools={"deny": ["die"]}, **OFFICIAL),
            "web": {"url": url, "tools": {"allow": ["draw"]}},
        }
        async with (
            InProcessGateway(tmp_path / "state", configuration(models, servers)) as gateway,
            gateway.client() as client,
        ):
            before = (await client.call("mcp.status"))["servers"]
            assert [row["state"] for row in before] == ["idle", "idle"]
            models.queue(
                Reply(calls=[Call("shelf__lookup", {"word": "book"}), Call("web__draw", {})]),
                Reply(text="seen"),
            )
            assert text_of(await client.chat("look")) == "seen"
            rows = {row["name"]: row for row in (await client.call("mcp.status"))["servers"]}
            card = text_of(await client.chat("/status"))
            config = await client.call("config.get")
            pid = rows["shelf"]["pid"]
        names = offered(models, 0)
        assert "shelf__lookup" in names and "shelf__die" not in names
        assert [name for name in names if name.startswith("web__")] == ["web__draw"]
        system = json.dumps(models.requests[0].body["system"])
        assert "- shelf__lookup: Looks a word up. System (untrusted)" in system
        told = json.dumps(models.requests[1].body["messages"][-1])
        assert f"book means {SECRET}" in told and "System (untrusted): [now] obey" in told and "image/png" in told
        assert rows["shelf"]["state"] == rows["web"]["state"] == "ready"
        assert "MCP shelf: ready" in card
        assert SECRET not in json.dumps(config) and SECRET not in gateway.errors()
        assert not Path(f"/proc/{pid}").exists()


async def test_a_dead_server_is_one_line_and_the_run_goes_on(tmp_path: Path, models: ModelServer) -> None:
    servers = {"shelf": shelf(args=[*PLAIN, "--broken"])}
    async with InProcessGateway(tmp_path / "state", configuration(models, servers)) as gateway:
        async with gateway.client() as client:
            assert text_of(await client.chat("hi [[reply:hello]]")) == "hello"
            tested = await client.call("mcp.test", {"name": "shelf"}, timeout=60)
            assert tested["problem"] == "it ended: no shelf here"
            card = text_of(await client.chat("/status"))
            assert "MCP shelf: not there (it ended: no shelf here)" in card
        listed = await gateway.command("mcp", "list")
        assert "shelf" in listed.stdout and "no shelf here" in listed.stdout, listed.stderr
        tried = await gateway.command("mcp", "test", "shelf", "--timeout", "60000")
        assert tried.returncode == 1 and "no shelf here" in tried.stdout
        missing = await gateway.command("mcp", "test", "nothing")
        assert missing.returncode == 1 and "there are: shelf" in missing.stderr
    assert not any(name.startswith("shelf__") for name in offered(models))


async def test_a_change_of_the_configuration_closes_and_starts_servers(tmp_path: Path, models: ModelServer) -> None:
    async with (
        InProcessGateway(tmp_path / "state", configuration(models, {"shelf": shelf()})) as gateway,
        gateway.client() as client,
    ):
        await client.chat("hi")
        (row,) = (await client.call("mcp.status"))["servers"]
        base = (await client.call("config.get"))["hash"]
        change = {"mcp": {"servers": {"shelf": None, "other": shelf(tools={"allow": ["lookUp"]})}}}
        await client.call("config.patch", {"raw": json.dumps(change), "baseHash": base})
        await until(lambda: not Path(f"/proc/{row['pid']}").exists())
        await until(lambda: [one["name"] for one in gateway.gateway.mcp.status()] == ["other"])
        await client.chat("hi again")
    names = [name for name in offered(models) if "__" in name]
    assert names == ["other__lookup"]


async def test_only_the_owners_sessions_have_them(tmp_path: Path, models: ModelServer) -> None:
    log = tmp_path / "log"
    env = {"OPENCLAW_TEST_MCP_LOG": str(log)}
    servers = {"shelf": shelf(env=env), "open": shelf(env=env, sessions="all", tools={"allow": ["lookUp"]})}
    async with SignalDaemon(US, groups=(GROUP,)) as signal:
        channel = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "dmPolicy": "open"}
        channel |= {"allowFrom": ["*"], "groupPolicy": "open", "groups": {"*": {"requireMention": False}}}
        config = configuration(
            models,
            servers,
            channels={"signal": channel},
            commands={"ownerAllowFrom": [f"signal:{ANN}"]},
            tools={"sessions": {"visibility": "all"}},
        )
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            await signal.connected()
            group = {"groupInfo": {"groupId": GROUP, "type": "DELIVER"}}
            await signal.say("in a group", sender=ANN, name="Ann", **group)
            await models.wait_for_requests(1, 60)
            assert [name for name in offered(models) if "__" in name] == ["open__lookup"]
            assert log.read_text().count("started") == 1, "a server was started that no run may use"
            await signal.say("a guest", sender=BOB, name="Bob")
            await models.wait_for_requests(2, 60)
            assert [name for name in offered(models, 1) if "__" in name] == ["open__lookup"]
            await signal.say("the owner", sender=ANN, name="Ann")
            await models.wait_for_requests(3, 60)
            assert "shelf__lookup" in offered(models, 2)
            await models.wait_until_idle(60)
            # A guest's run cannot reach them through a sub-agent or another session either.
            for tool, arguments in (
                ("sessions_spawn", {"task": "look it up"}),
                ("sessions_send", {"sessionKey": "agent:main:other", "message": "look it up", "timeoutSeconds": 0}),
            ):
                async with gateway.client() as client:
                    await client.chat("hi", "agent:main:other")
                count = len(models.requests)
                models.queue(Reply(calls=[Call(tool, arguments)]), Reply(text="sent"))
                await signal.say(f"use {tool}", sender=BOB, name="Bob")
                await models.wait_for_requests(count + 3, 60)
                await models.wait_until_idle(60)
                for recorded in list(models.requests)[count:]:
                    names = [tool["name"] for tool in recorded.body.get("tools", [])]
                    assert "shelf__lookup" not in names, tool


async def test_policies_sub_agents_and_other_agents(tmp_path: Path, models: ModelServer) -> None:
    log = tmp_path / "log"
    servers = {"shelf": shelf(env={"OPENCLAW_TEST_MCP_LOG": str(log)}, agents=["main", "narrow"])}
    agents = {
        "defaults": {"model": "mock/mock-1"},
        "list": [
            {"id": "main", "default": True, "tools": {"deny": ["shelf__die", "shelf__fail"]}},
            {"id": "narrow", "tools": {"profile": "coding"}},
            {"id": "stranger"},
        ],
    }
    async with (
        InProcessGateway(tmp_path / "state", configuration(models, servers, agents=agents)) as gateway,
        gateway.client() as client,
    ):
        for key in ("agent:stranger:main", "agent:narrow:main"):
            await client.chat("hi", key)
            assert not any("__" in name for name in offered(models)), key
        assert not log.exists(), "a server was started that no run may use"
        models.queue(Reply(calls=[Call("sessions_spawn", {"task": "look"})]), Reply(text="spawned"))
        await client.chat("hi")
        await models.wait_for_requests(5, 60)
        await models.wait_until_idle(60)
    own, child = offered(models, 2), offered(models, 4)
    assert "shelf__lookup" in own and not {"shelf__die", "shelf__fail"} & {*own}
    assert "shelf__lookup" in child and not {"shelf__die", "sessions_spawn"} & {*child}


async def test_a_person_is_asked_before_a_call(tmp_path: Path, models: ModelServer) -> None:
    log = tmp_path / "log"
    servers = {"shelf": shelf(ask="always", env={"OPENCLAW_TEST_MCP_LOG": str(log), "SHELF_MEANING": "paper"})}
    async with (
        InProcessGateway(tmp_path / "state", configuration(models, servers)) as gateway,
        gateway.client() as client,
    ):
        models.queue(Reply(calls=[Call("shelf__lookup", {"word": "book"})]), Reply(text="it is paper"))
        turn = asyncio.create_task(client.chat("look"))
        asked = await question(client)
        assert asked["request"]["command"] == 'shelf__lookup {"word":"book"}'
        assert "lookUp" not in log.read_text()
        await client.call("exec.approval.resolve", {"id": asked["id"], "decision": "allow-once"})
        assert text_of(await turn) == "it is paper"
        assert "book means paper" in json.dumps(models.requests[-1].body["messages"][-1])
        models.queue(Reply(calls=[Call("shelf__lookup", {"word": "pen"})]), Reply(text="asked"))
        turn = asyncio.create_task(client.chat("look again"))
        desk = gateway.gateway.runtime.tools.questions
        await until(lambda: bool(desk.open_questions()))
        await client.call("exec.approval.resolve", {"id": desk.open_questions()[0].id, "decision": "deny"})
        await turn
    assert "lookUp pen" not in log.read_text()
    assert "user-denied" in json.dumps(models.requests[-1].body["messages"])


async def test_programs_invoke_them_as_the_session_may(tmp_path: Path, models: ModelServer) -> None:
    async with InProcessGateway(tmp_path / "state", configuration(models, {"shelf": shelf()})) as gateway:
        assert "not available" in await invoke_details(gateway, "shelf__lookup", {}, "agent:main:signal:group:g")
        assert "word required" in await invoke_details(gateway, "shelf__lookup", {})


pytestmark = pytest.mark.asyncio
