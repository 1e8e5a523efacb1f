"""Sessions whose tools run in a sandbox, through the product's own doors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from openclaw.agent.tool_set import sandbox_of, tools_for
from openclaw.inbound.attachments import within_reach
from openclaw.inbound.message import Inbound, Media, Peer, Sender
from openclaw.rights import OWNER_CALLER
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, is_subagent
from openclaw.tools.sandbox.launch import PLACES
from tests.support.gateway import TOKEN, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer
from tests.tools.sandbox.support import needs_bubblewrap

pytestmark = pytest.mark.asyncio
OTHER = "agent:main:other"


def config_of(models: ModelServer, sandbox: dict[str, Any], **sections: Any) -> dict[str, Any]:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["sandbox"] = sandbox
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    return config


def tool_results(models: ModelServer) -> list[str]:
    """The tool results of the last request that had some. A sub-agent's request may have come after it."""
    found: list[str] = []
    for request in reversed(models.requests):
        for message in request.body["messages"]:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] == "tool_result":
                    told = block["content"]
                    found.append(told if isinstance(told, str) else "".join(one.get("text", "") for one in told))
        if found:
            break
    return found


async def called(client: WireClient, models: ModelServer, tool: str, arguments: dict[str, Any], key: str) -> str:
    """What the model was told after it called a tool."""
    send = client.chat_as_requester if is_subagent(key) else client.chat
    await send(f"go [[tool:{tool} {json.dumps(arguments)}]][[next]][[reply:done]]", key)
    return tool_results(models)[-1]


async def invoke(gateway: InProcessGateway, tool: str, args: dict[str, Any], key: str = "main") -> Any:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        body = {"tool": tool, "args": args, "sessionKey": key}
        async with http.post(f"{gateway.url}/tools/invoke", json=body) as response:
            return await response.json()


async def test_non_main_sessions_run_inside_and_the_main_one_does_not(tmp_path: Path, models: ModelServer) -> None:
    needs_bubblewrap()
    config = config_of(models, {"mode": "non-main"})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        workspace = gateway.state_dir / "workspace"
        look = {"command": f"pwd; ls {gateway.state_dir}/openclaw.json"}
        assert await called(client, models, "exec", look, "main") == f"{workspace}\n{gateway.state_dir}/openclaw.json"
        said = await called(client, models, "exec", look, OTHER)
        assert "/workspace\n" in said and "No such file" in said
        await called(client, models, "write", {"path": "/workspace/a.txt", "content": "inside"}, OTHER)
        (made,) = (gateway.state_dir / "sandboxes").glob("*/a.txt")
        assert made.read_text() == "inside" and not (workspace / "a.txt").exists()
        system = models.requests[-1].body["system"][0]["text"]
        assert "## Sandbox\nYour commands and file tools run in a sandbox." in system
        assert "Your working directory is: /workspace" in system or "/workspace" in system
        assert str(gateway.state_dir) not in system
        assert "Runtime: direct" in text_of(await client.chat("/status"))
        assert "Runtime: bubblewrap/non-main" in text_of(await client.chat("/status", OTHER))
        shown = text_of(await client.chat("/context list", OTHER))
        assert "Sandbox: mode=non-main sandboxed=true" in shown


async def test_a_run_whose_sandbox_cannot_be_had_is_refused_and_says_what_to_install(
    tmp_path: Path, models: ModelServer
) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("sh", "ls", "touch"):
        (tmp_path / "bin" / program).symlink_to(f"/bin/{program}")
    config = config_of(models, {"mode": "all"})
    env = {"PATH": str(tmp_path / "bin")}
    async with InProcessGateway(tmp_path / "state", config, env) as gateway, gateway.client() as client:
        asked = len(models.requests)
        final = await client.chat(f'go [[tool:exec {{"command": "touch {tmp_path}/leak"}}]][[next]][[reply:done]]')
        shown = json.dumps(final)
        assert "must run in a sandbox" in shown and "apt install bubblewrap" in shown
        assert len(models.requests) == asked and not (tmp_path / "leak").exists()
        answer = await invoke(gateway, "exec", {"command": f"touch {tmp_path}/leak"})
        assert not answer["ok"] and "apt install bubblewrap" in answer["error"]["message"]
        assert not (tmp_path / "leak").exists()


@pytest.mark.parametrize("backend", ["docker", "podman"])
async def test_an_engine_that_does_not_answer_refuses_the_run(
    tmp_path: Path, models: ModelServer, backend: str
) -> None:
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin" / backend
    engine.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n")
    engine.chmod(0o755)
    config = config_of(models, {"mode": "all", "backend": backend})
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    async with InProcessGateway(tmp_path / "state", config, env) as gateway, gateway.client() as client:
        shown = json.dumps(await client.chat("hello"))
        assert f"{backend} does not answer (Cannot connect to the daemon)" in shown


async def test_a_child_of_a_sandboxed_session_is_sandboxed_whatever_its_agent_is(
    tmp_path: Path, models: ModelServer
) -> None:
    needs_bubblewrap()
    config = config_of(models, {"mode": "off", "workspaceAccess": "rw"})
    strict = {"mode": "all", "workspaceAccess": "none", "scope": "session"}
    config["agents"]["list"] = [{"id": "main", "default": True}, {"id": "strict", "sandbox": strict}]
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        child, orphan = "agent:main:subagent:1", "agent:main:subagent:2"
        sessions = gateway.gateway.runtime.stores.sessions
        entry = SessionEntry(sessionId="11111111-1111-4111-8111-111111111111", spawnedBy="agent:strict:main")
        await sessions.update("main", child, lambda _: entry)
        look = {"command": f"pwd; cat {gateway.state_dir}/openclaw.json; ls /agent"}
        said = await called(client, models, "exec", look, child)
        assert "/workspace\n" in said and "No such file" in said
        assert await called(client, models, "exec", {"command": "pwd"}, orphan) != "/workspace"


async def test_a_sub_agent_that_a_sandboxed_session_starts_is_told_of_its_sandbox(
    tmp_path: Path, models: ModelServer
) -> None:
    needs_bubblewrap()
    config = config_of(models, {"mode": "off"})
    strict = {"id": "strict", "sandbox": {"mode": "all"}, "subagents": {"allowAgents": ["*"]}}
    config["agents"]["list"] = [{"id": "main", "default": True}, strict]
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        said = await called(
            client, models, "sessions_spawn", {"task": "count the birds", "agentId": "main"}, "agent:strict:main"
        )
        child = json.loads(said)["childSessionKey"]
        assert child.startswith("agent:main:subagent:")
        async with asyncio.timeout(60):
            while not (
                theirs := [one for one in models.requests if "count the birds" in str(one.body["messages"][:1])]
            ):
                await asyncio.sleep(0.02)
        assert "run in a sandbox" in str(theirs[0].body["system"])


async def test_tools_that_the_sandbox_keeps_away_are_named_with_the_keys_that_change_it(
    tmp_path: Path, models: ModelServer
) -> None:
    needs_bubblewrap()
    rules = {"sandbox": {"tools": {"deny": ["process"]}}}
    config = config_of(models, {"mode": "all", "workspaceAccess": "ro"}, tools=rules)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        said = await called(client, models, "process", {"action": "list"}, "main")
        assert "blocked by the sandbox" in said and "tools.sandbox.tools.allow" in said
        said = await called(client, models, "write", {"path": "x", "content": "y"}, "main")
        assert "may only read the workspace" in said
        offered = {tool["name"] for tool in models.requests[-1].body["tools"]}
        assert {"exec", "read", "sessions_list"} <= offered
        assert not offered & {"process", "write", "edit", "memory_search", "agents_list"}


async def test_only_an_allowed_elevated_command_leaves_the_sandbox(tmp_path: Path, models: ModelServer) -> None:
    needs_bubblewrap()
    config = config_of(models, {"mode": "all"}, tools={"elevated": {"enabled": False}, "exec": {"host": "gateway"}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert await called(client, models, "exec", {"command": "pwd"}, "main") == "/workspace"
        for arguments in ({"host": "gateway"}, {"host": "node"}, {"elevated": True}):
            said = await called(client, models, "exec", {"command": f"touch {tmp_path}/leak", **arguments}, "main")
            assert "not allowed" in said or "not available" in said
        await client.chat("/exec host=gateway security=full ask=off")
        assert await called(client, models, "exec", {"command": "pwd"}, "main") == "/workspace"
        assert not (tmp_path / "leak").exists()


async def test_skills_can_be_read_where_the_prompt_says(tmp_path: Path, models: ModelServer) -> None:
    needs_bubblewrap()
    state = tmp_path / "state"
    for place, name in ((state / "workspace" / "skills", "baking"), (state / "skills", "cooking")):
        (place / name).mkdir(parents=True)
        (place / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: about {name}\n---\nknow {name}\n")
    config = config_of(models, {"mode": "all"})
    async with InProcessGateway(state, config) as gateway, gateway.client() as client:
        await client.chat("hello")
        system = models.requests[-1].body["system"][0]["text"]
        assert "/workspace/skills/baking/SKILL.md" in system
        for name in ("baking", "cooking"):
            location = next(
                part.partition("</location>")[0] for part in system.split("<location>")[1:] if f"/{name}/" in part[:200]
            )
            assert f"know {name}" in await called(client, models, "read", {"path": location}, "main")
            assert f"know {name}" in await called(client, models, "exec", {"command": f"cat {location}"}, "main")


async def test_every_tool_of_the_gateway_has_a_place_in_a_sandbox(tmp_path: Path, models: ModelServer) -> None:
    """A new tool must be told to run inside, or to be harmless on the host; see ``tools/sandbox/launch.py``."""
    async with InProcessGateway(tmp_path / "state", config_of(models, {"mode": "off"})) as gateway:
        runtime = gateway.gateway.runtime
        config = runtime.config.current
        model = runtime.models.catalogue().default_for(config, "main")
        everything = await tools_for(
            runtime, SessionRef("main", "agent:main:main"), model, caller=OWNER_CALLER, sandbox=None
        )
        assert [tool.spec.name for tool in everything if tool.spec.name not in PLACES] == []


@pytest.mark.parametrize("mode", ["off", "non-main", "all"])
@pytest.mark.parametrize("key", ["agent:main:main", OTHER])
async def test_every_tool_in_every_mode_runs_inside_is_denied_or_is_declared_harmless(
    tmp_path: Path, models: ModelServer, mode: str, key: str
) -> None:
    rules = {"sandbox": {"tools": {"allow": ["*"], "deny": []}}}
    async with InProcessGateway(tmp_path / "state", config_of(models, {"mode": mode}, tools=rules)) as gateway:
        runtime = gateway.gateway.runtime
        config = runtime.config.current
        model = runtime.models.catalogue().default_for(config, "main")
        sandbox = await sandbox_of(runtime, "main", key, None)
        assert (sandbox is not None) is (mode == "all" or (mode == "non-main" and key == OTHER))
        for tool in await tools_for(runtime, SessionRef("main", key), model, caller=OWNER_CALLER, sandbox=sandbox):
            if sandbox is None or PLACES[tool.spec.name] == "host":
                continue
            held = vars(tool)
            opener = held.get("opener") or held.get("_opener")
            if tool.spec.name == "process":
                continue  # It sees only commands that exec started for the same session.
            assert opener is sandbox.opener or held.get("_sandbox") is sandbox, tool.spec.name


async def test_an_approved_command_runs_inside_too(tmp_path: Path, models: ModelServer) -> None:
    needs_bubblewrap()
    config = config_of(models, {"mode": "all"}, tools={"exec": {"ask": "always"}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        command = f"ls {gateway.state_dir}"
        turn = asyncio.create_task(called(client, models, "exec", {"command": command}, "main"))
        asked = await client.event(lambda event, payload: event == "exec.approval.requested")
        await client.chat(f"/approve {asked['payload']['id'][:8]} allow-once")
        prompt = await turn
        assert "No such file or directory" in prompt and "openclaw.json" not in prompt


async def test_files_that_come_with_a_message_are_put_where_the_sessions_tools_are(
    tmp_path: Path, models: ModelServer
) -> None:
    async with InProcessGateway(tmp_path / "state", config_of(models, {"mode": "non-main"})) as gateway:
        runtime = gateway.gateway.runtime
        blob = await runtime.stores.blobs.put(b"words")
        media = Media(mime_type="text/plain", file_name="a.txt", blob=blob)
        inbound = Inbound(
            channel="signal", peer=Peer(kind="group", id="g"), sender=Sender(id="+1"), to="g", media=(media,)
        )
        placed = await within_reach(runtime, inbound, SessionRef("main", OTHER), None)
        (path,) = [one.path for one in placed.media]
        sandbox = await sandbox_of(runtime, "main", OTHER, None)
        assert sandbox is not None and path is not None
        assert (sandbox.plan.folder / path).read_bytes() == b"words"
        assert not (gateway.state_dir / "workspace" / path).exists()


async def test_the_owner_is_not_told_that_a_sandboxed_session_runs_directly(
    tmp_path: Path, models: ModelServer
) -> None:
    config = config_of(models, {"mode": "non-main"})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert "Runtime is direct" in text_of(await client.chat("/elevated off"))
        assert "Runtime is direct" not in text_of(await client.chat("/elevated off", OTHER))
