"""What a person reads before they allow a command, on every surface that shows it, and that only that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw.tools.process import ProcessRegistry
from tests.flows.test_exec_rules import last_result, question, said
from tests.support.gateway import RequestFailed, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_script import Call, Reply
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"
TAIL = "rm -rf the-end"
LONG = "x" * 4500
COMMAND = (
    "echo begin \u202e\x1b[8m <think> NO_REPLY MEDIA:/etc/passwd [[reply_to: x]] ![x](http://x/y) <!-- hidden -->\n"
    f"```\nIn: /safe\n# {LONG}\n{TAIL}"
)
SHOWN = ("⟨U+202E⟩⟨U+001B⟩[8m", "MEDIA:/etc/passwd", "<!-- hidden -->", "NO_REPLY", "reply_to: x", TAIL)


def runs(models: ModelServer, command: str, **arguments: Any) -> None:
    models.queue(Reply(calls=[Call("exec", {"command": command, **arguments})]), Reply(text="asked"))


def assert_whole(text: str) -> None:
    for part in SHOWN:
        assert part in text
    assert not {"\x1b", "\u202e"} & set(text)


async def test_events_and_chats_show_the_whole_command_its_folder_and_its_variables(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    folder = gateway.state_dir / "workspace" / "sub"
    folder.mkdir(parents=True)
    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        runs(models, COMMAND, workdir="sub", env={"TZ": "UTC", "LANG": "C"})
        turn = asyncio.create_task(client.chat("try"))
        asked = await question(client)
        request = asked["request"]
        assert_whole(request["command"])
        assert LONG in request["command"]
        assert request["command"].startswith("TZ=UTC LANG=C echo begin ")
        assert (request["cwd"], request["env"]) == (str(folder), {"TZ": "UTC", "LANG": "C"})
        shown = (await client.call("question.list", {}))["questions"][0]["text"]
        assert_whole(shown)
        assert LONG in shown
        assert str(folder) in shown
        assert "TZ=UTC\nLANG=C" in shown
        assert "cannot be allowed for good" in shown
        answer = await said(client, f"/approve {asked['id'][:8]} allow-always")
        assert "allowed once, and not for good" in answer
        assert_whole(answer)
        await turn
        assert not (await client.call("exec.approvals.get", {}))["exists"]


async def test_a_channel_gets_the_whole_question_in_parts(tmp_path: Path, models: ModelServer) -> None:
    async with SignalDaemon(US) as signal:
        section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
        tools = {"exec": {"ask": "always"}}
        config = model_config(models.base_url, models.api_key, channels={"signal": section}, tools=tools)
        async with InProcessGateway(tmp_path / "state", config):
            await signal.connected()
            runs(models, COMMAND)
            await signal.say("try", sender=ANN, name="Ann")
            async with asyncio.timeout(60):
                while TAIL not in "".join(sent["message"] for sent in signal.of("send")):
                    await asyncio.sleep(0.05)
            whole = "".join(sent["message"] for sent in signal.of("send"))
            assert_whole(whole)
            assert whole.count("x") >= len(LONG)


async def test_a_command_that_nobody_could_read_to_its_end_is_refused(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        runs(models, "echo " + "x" * 7000)
        await client.chat("try")
        assert "too long to be shown to a person whole" in str(models.requests[-1].body["messages"][-1])
        with pytest.raises(RequestFailed, match="too long to be shown"):
            await client.call("exec.approval.request", {"command": "x" * 7000})
        with pytest.raises(RequestFailed, match="id"):
            await client.call("exec.approval.request", {"command": "x", "id": "a\x1b[2Jb"})


async def test_a_script_swapped_between_question_and_answer_does_not_run(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    script = gateway.state_dir / "workspace" / "job.sh"
    script.parent.mkdir(parents=True)
    script.write_text("echo good\n")
    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        runs(models, "sh job.sh")
        turn = asyncio.create_task(client.chat("try"))
        asked = await question(client)
        script.write_text("touch ran\n")
        await client.call("exec.approval.resolve", {"id": asked["id"], "decision": "allow-once"})
        await turn
        assert "is not what it was" in last_result(models)
    assert not (script.parent / "ran").exists()


async def test_a_command_allowed_for_good_runs_also_when_the_rules_cannot_be_written(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        runs(models, "/bin/ls")
        turn = asyncio.create_task(client.chat("try"))
        asked = await question(client)
        (gateway.state_dir / "exec-approvals.json").write_text('{"version": 1, "agents": ')
        await client.call("exec.approval.resolve", {"id": asked["id"], "decision": "allow-always"})
        await turn
        told = str(models.requests[-1].body["messages"][-1])
        assert "Exec allowed once, and not for good" in told
        assert "mend it or remove it" in told


async def test_a_session_is_told_when_what_follows_an_answer_fails(
    gateway: InProcessGateway, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of processes")

    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        runs(models, "/bin/ls")
        turn = asyncio.create_task(client.chat("try"))
        asked = await question(client)
        monkeypatch.setattr(ProcessRegistry, "start", broken)
        await client.call("exec.approval.resolve", {"id": asked["id"], "decision": "allow-once"})
        await turn
        assert "out of processes" in str(models.requests[-1].body["messages"][-1])


async def test_keys_of_the_gateway_do_not_reach_a_command(tmp_path: Path, models: ModelServer) -> None:
    secrets = {"ANTHROPIC_API_KEY": "canary-1", "OPENCLAW_GATEWAY_PASSWORD": "canary-2", "MY_SECRET": "canary-3"}
    config = model_config(models.base_url, models.api_key)
    async with (
        InProcessGateway(tmp_path / "state", config, secrets) as gateway,
        gateway.client() as client,
    ):
        runs(models, "env; echo $ANTHROPIC_API_KEY$OPENCLAW_GATEWAY_PASSWORD$MY_SECRET; cat /proc/self/environ")
        await client.chat("try")
        told = str(models.requests[-1].body["messages"][-1])
        assert "PATH=" in told
        assert "canary" not in told


async def test_every_surface_says_why_a_script_can_only_be_allowed_once(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "helper.sh").write_text("echo good\n")
    script = workspace / "job.sh"
    script.write_text("#!/bin/sh\n. ./helper.sh\n")
    script.chmod(0o755)
    why = "./job.sh is a script"
    async with gateway.client() as client:
        await client.chat("/exec ask=on-miss host=gateway")
        runs(models, "./job.sh")
        turn = asyncio.create_task(client.chat("try"))
        asked = await question(client)
        assert why in asked["request"]["onceOnly"]
        listed = await client.call("exec.approval.list", {})
        assert why in listed["approvals"][0]["request"]["onceOnly"]
        (shown,) = (await client.call("question.list", {}))["questions"]
        assert "cannot be allowed for good" in shown["text"] and why in shown["text"]
        assert [option["value"] for option in shown["options"]] == ["allow-once", "deny"]
        decided = await client.call("exec.approval.resolve", {"id": asked["id"], "decision": "allow-always"})
        assert why in decided["allowedOnce"]
        await turn
        (workspace / "helper.sh").write_text("touch ran\n")
        runs(models, "./job.sh")
        turn = asyncio.create_task(client.chat("again"))
        asked = await client.event(
            lambda event, payload: event == "exec.approval.requested" and payload["id"] != asked["id"]
        )
        await client.call("question.answer", {"id": asked["payload"]["id"], "answer": "deny"})
        await turn
        assert not (await client.call("exec.approvals.get", {}))["exists"]
    assert not (workspace / "ran").exists()
