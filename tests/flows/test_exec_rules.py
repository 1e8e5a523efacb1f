"""``/exec``, ``/elevated`` and ``/approve``, from the chat to the command that runs or does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply

RUN = '[[tool:exec {"command": "echo made > made.txt && echo done"}]][[next]][[reply:seen]]'


def made(gateway: InProcessGateway) -> bool:
    return (gateway.state_dir / "workspace" / "made.txt").exists()


def last_result(models: ModelServer) -> str:
    return json.dumps(models.requests[-1].body["messages"][-1])


async def said(client: WireClient, text: str, key: str = "main") -> str:
    return text_of(await client.chat(text, key))


async def question(client: WireClient) -> dict[str, Any]:
    return (await client.event(lambda event, payload: event == "exec.approval.requested"))["payload"]


async def follow_up(client: WireClient, text: str) -> dict[str, Any]:
    def matches(event: str, payload: Any) -> bool:
        return event == "chat" and payload["state"] == "final" and text in text_of(payload)

    return (await client.event(matches))["payload"]


@pytest.fixture
async def trusting(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    tools = {"elevated": {"allowFrom": {"webchat": ["*"]}}, "exec": {"host": "gateway"}}
    config = model_config(models.base_url, models.api_key, tools=tools)
    async with InProcessGateway(tmp_path / "state", config) as process:
        yield process


async def test_security_deny_forbids_commands_in_that_session_only(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        assert await said(client, "/exec security=deny") == "⚙️ Exec defaults set (security=deny)."
        await client.chat(f"try {RUN}")
        assert "exec is denied (security=deny)" in last_result(models)
        assert not made(gateway)
        overview = await said(client, "/exec")
        assert "security=deny" in overview
        await client.chat(f"try {RUN}", "agent:main:other")
        assert made(gateway)
        assert await said(client, "/exec security=full") == "⚙️ Exec defaults set (security=full)."
        await client.chat(f"try {RUN}")
        assert "exec is denied" not in last_result(models)


async def test_a_no_counts_for_the_run_that_is_under_way(gateway: InProcessGateway, models: ModelServer) -> None:
    slow = '[[tool:exec {"command": "touch begun; until test -e go; do sleep 0.05; done"}]][[next]]'
    async with gateway.client() as client:
        start = {"sessionKey": "main", "message": f"{slow}{RUN}", "idempotencyKey": "slow"}
        await client.call("chat.send", start)
        async with asyncio.timeout(60):
            while not (gateway.state_dir / "workspace" / "begun").exists():
                await asyncio.sleep(0.02)
        assert "security=deny" in await said(client, "/exec security=deny")
        (gateway.state_dir / "workspace" / "go").touch()
        assert text_of(await client.ending("slow")) == "seen"
        assert "exec is denied" in last_result(models)
        assert not made(gateway)


async def test_messages_with_other_rules_for_commands_do_not_share_a_run(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("first", hold=held, hold_after=0))
    async with gateway.client() as client:
        await client.chat("/queue collect debounce:0")
        for name, text in (("one", "one"), ("two", f"/exec security=deny {RUN}"), ("three", "three")):
            await client.call("chat.send", {"sessionKey": "main", "message": text, "idempotencyKey": name})
        await models.wait_for_requests(1)
        held.set()
        assert text_of(await client.ending("two")) == "seen"
        assert text_of(await client.ending("three")) == "ok"
        assert not made(gateway)


async def test_an_inline_deny_counts_for_that_message_only(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat(f"/exec security=deny try {RUN}")
        assert "exec is denied" in last_result(models)
        assert not made(gateway)
        await client.chat(f"try {RUN}")
        assert made(gateway)


async def test_a_host_that_is_not_there_is_said_to_be_missing(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("/exec host=node node=attic")
        await client.chat(f"try {RUN}")
        assert "no node" in last_result(models)
        assert "attic" in last_result(models)
        assert not made(gateway)


async def test_a_command_is_asked_about_and_runs_after_the_yes(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        turn = asyncio.create_task(client.chat(f"try {RUN}", run_id="try"))
        asked = await question(client)
        assert asked["request"]["command"].startswith("echo made")
        assert asked["request"]["sessionKey"] == "agent:main:main"
        assert asked["expiresAtMs"] - asked["createdAtMs"] == 120_000
        assert not made(gateway)
        answer = await said(client, f"/approve {asked['id'][:8]} allow-once")
        assert "allowed once" in answer
        assert text_of(await turn) == "seen"
        assert made(gateway)
        assert "done" in last_result(models)
        resolved = await client.event(lambda event, payload: event == "exec.approval.resolved")
        assert (resolved["payload"]["id"], resolved["payload"]["decision"]) == (asked["id"], "allow-once")
        again = await said(client, f"/approve {asked['id'][:8]} deny")
        assert "no longer open: it was answered" in again


async def test_a_no_is_final_and_the_next_turn_hears_of_it(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        turn = asyncio.create_task(client.chat(f"/exec ask=always try {RUN}"))
        asked = await question(client)
        await client.call("exec.approval.resolve", {"id": asked["id"], "decision": "deny"})
        await turn
        assert "user-denied" in last_result(models)
        assert not made(gateway)


async def test_stop_takes_the_question_back(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        turn = asyncio.create_task(client.chat(f"/exec ask=always try {RUN}"))
        asked = await question(client)
        await client.call("chat.send", {"sessionKey": "main", "message": "/stop", "idempotencyKey": "stop"})
        assert (await turn)["state"] == "aborted"
        with pytest.raises(RequestFailed, match="no longer open: it was withdrawn"):
            await client.call("exec.approval.resolve", {"id": asked["id"], "decision": "allow-once"})
        assert not made(gateway)


async def test_what_was_allowed_for_good_survives_a_restart(
    tmp_path: Path, models: ModelServer, trusting: InProcessGateway
) -> None:
    look = '[[tool:exec {"command": "id"}]][[next]][[reply:seen]]'
    async with trusting.client() as client:
        turn = asyncio.create_task(client.chat(f"look {look}"))
        asked = await question(client)
        await client.chat(f"/approve always {asked['id'][:8]}")
        await turn
    await trusting.stop()
    await trusting.start()
    async with trusting.client() as client:
        await client.chat(f"look {look}")
        assert "uid=" in last_result(models)
        stored = await client.call("exec.approvals.get", {})
        assert stored["exists"]
        assert stored["file"]["agents"]["main"]["allowlist"][0]["pattern"].endswith("/id")


async def test_elevated_full_runs_without_asking_and_off_asks_again(
    trusting: InProcessGateway, models: ModelServer
) -> None:
    async with trusting.client() as client:
        assert "set to full" in await said(client, "/elevated full")
        assert "elevated:full" in await said(client, "/status")
        await client.chat(f"try {RUN}")
        assert made(trusting)
        (trusting.state_dir / "workspace" / "made.txt").unlink()
        assert "disabled" in await said(client, "/elevated off")
        turn = asyncio.create_task(client.chat(f"try {RUN}"))
        await client.call("exec.approval.resolve", {"id": (await question(client))["id"], "decision": "deny"})
        await turn
        await client.chat(f"/elevated full try {RUN}")
        assert made(trusting)


async def test_elevated_is_closed_to_senders_who_are_not_listed(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        assert (await said(client, "/elevated full")).startswith("elevated is not available right now (runtime=direct)")
        # A level somebody else stored does not help a sender without permission.
        await client.call("sessions.patch", {"key": "main", "elevatedLevel": "full", "execHost": "gateway"})
        turn = asyncio.create_task(client.chat(f"try {RUN}"))
        await client.call("exec.approval.resolve", {"id": (await question(client))["id"], "decision": "deny"})
        await turn
        assert not made(gateway)


async def test_another_program_can_ask_and_gets_the_decision(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        waiting = await client.send("exec.approval.request", {"command": "rm -rf x", "id": "mine"})
        assert (await question(client))["id"] == "mine"
        with pytest.raises(RequestFailed, match="approval id already pending"):
            await client.call("exec.approval.request", {"command": "x", "id": "mine"})
        with pytest.raises(RequestFailed, match="invalid decision"):
            await client.call("exec.approval.resolve", {"id": "mine", "decision": "perhaps"})
        assert await client.call("exec.approval.resolve", {"id": "mine", "decision": "allow-always"}) == {"ok": True}
        assert (await client.answer(waiting))["decision"] == "allow-always"
        silent = await client.call("exec.approval.request", {"command": "x", "timeoutMs": 1})
        assert silent["decision"] is None


async def test_only_clients_with_the_scope_may_see_and_decide(gateway: InProcessGateway) -> None:
    scopes = ["operator.read", "operator.write"]
    async with gateway.client() as owner, gateway.client(scopes=scopes) as other:
        turn = asyncio.create_task(owner.chat(f"/exec ask=always try {RUN}"))
        asked = await question(owner)
        with pytest.raises(RequestFailed, match="missing scope"):
            await other.call("exec.approval.resolve", {"id": asked["id"], "decision": "allow-once"})
        assert "operator.approvals" in await said(other, f"/approve {asked['id']} allow-once")
        assert not [frame for frame in other.events if frame["event"].startswith(("exec.approval", "question"))]
        await owner.call("question.answer", {"id": asked["id"], "answer": "no"})
        await turn
        assert not made(gateway)


async def test_a_session_rule_holds_for_tools_called_over_http(gateway: InProcessGateway) -> None:
    import aiohttp

    from tests.support.gateway import TOKEN

    async with gateway.client() as client, aiohttp.ClientSession() as http:
        await client.chat("/exec security=deny")
        body = {"tool": "exec", "args": {"command": "echo x"}, "sessionKey": "main"}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with http.post(f"{gateway.url}/tools/invoke", json=body, headers=headers) as answer:
            assert "exec is denied" in (await answer.json())["error"]["message"]


async def test_a_stored_credential_is_used_when_the_session_names_it(tmp_path: Path, models: ModelServer) -> None:
    state = tmp_path / "state"
    folder = state / "agents" / "main" / "agent"
    folder.mkdir(parents=True)
    profiles = {
        "mock:work": {"type": "api_key", "provider": "mock", "key": models.api_key},
        "mock:old": {"type": "token", "provider": "mock", "token": "gone-000000", "expires": 1},
    }
    (folder / "auth-profiles.json").write_text(json.dumps({"version": 1, "profiles": profiles}))
    config = model_config(models.base_url, "wrong-key-000000")
    config["retry"] = {"enabled": False}
    async with InProcessGateway(state, config) as gateway, gateway.client() as client:
        assert (await client.chat("hello"))["state"] == "final"  # The wrong key gives way to the stored one.
        refused = await said(client, "/model mock/mock-1@mock:play")
        assert '"mock:play" is not stored for mock' in refused
        assert "mock:work" in refused
        assert text_of(await client.chat("/model mock/mock-1@mock:work hello")) == "ok"
        assert "mock:work" in await said(client, "/model mock/mock-1@mock:work")
        assert text_of(await client.chat("hello")) == "ok"
        assert "profile mock:work" in await said(client, "/status")
        (folder / "auth-profiles.json").write_text(json.dumps({"version": 1, "profiles": {}}))
        ended = await client.chat("hello")
        assert ended["state"] == "error"
        assert '"mock:work" is not stored any more' in ended["errorMessage"]


async def test_the_rules_file_can_be_read_and_replaced(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        before = await client.call("exec.approvals.get", {})
        assert (before["exists"], before["file"]) == (False, {"version": 1, "defaults": {}, "agents": {}})
        after = await client.call("exec.approvals.set", {"file": {"version": 1, "defaults": {"security": "deny"}}})
        assert after["file"]["defaults"] == {"security": "deny"}
        with pytest.raises(RequestFailed, match="base hash required"):
            await client.call("exec.approvals.set", {"file": {"version": 1}})
        with pytest.raises(RequestFailed, match=r"Invalid enum value 'sometimes' - at `\$.defaults.security`"):
            file = {"version": 1, "defaults": {"security": "sometimes"}}
            await client.call("exec.approvals.set", {"file": file, "baseHash": after["hash"]})
        await client.chat(f"try {RUN}")
        assert not made(gateway)
