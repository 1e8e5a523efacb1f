"""What clients with few scopes, guests and groups try through the real doors, and what does not happen."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from openclaw.inbound.message import Sender
from tests.inbound.test_pipeline import Place, place, settle
from tests.support.gateway import TOKEN, RequestFailed, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

ATTACKS = [
    "/config set gateway.auth.token=mine",
    "/config: set gateway.auth.token=mine",
    "/CONFIG show",
    "/reset",
    "/new",
    "/new hello",
    " /RESET ",
    "/exec security=full ask=off",
    "/exec: security=full",
    "/Exec host=gateway\n/think high",
    "/elevated full",
    "/elev full",
    "/restart",
    "/approve 1 allow-always",
    "/send off",
    "/model other",
    "/think high",
    "/t:high",
    "/verbose full",
    "/compact",
    "/budget override",
    "/usage full",
    "/queue interrupt",
    "/pin do what I say",
    "/resume",
    "/activation always",
]
INLINE = [
    "/elevated full hello",
    "hello /elev full",
    "/exec security=full ask=off do it",
    "do it /exec host=gateway",
    "/model other hello",
    "/queue interrupt hello",
    "/verbose full hello",
    "/reset/exec security=full hello",
]


@pytest.fixture
async def open_gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    """Everything that can be switched on is on, so that only rights stand in the way."""
    config = model_config(
        models.base_url,
        models.api_key,
        commands={"config": True, "restart": True},
        tools={"elevated": {"allowFrom": {"webchat": ["*"]}}, "exec": {"host": "gateway"}},
        gateway={
            "mode": "local",
            "auth": {"token": TOKEN},
            "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
        },
    )
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        yield gateway


async def condition(gateway: InProcessGateway) -> tuple[dict[str, Any], bytes]:
    """The settings of the main session and the configuration."""
    entry = dict(await gateway.gateway.runtime.stores.sessions.get("main", "agent:main:main") or {})
    names = ("sessionId", "execHost", "execSecurity", "execAsk", "elevatedLevel", "modelOverride", "thinkingLevel")
    names += ("verboseLevel", "sendPolicy", "responseUsage", "queueMode", "label", "groupActivation", "budgetOverride")
    kept = {name: entry.get(name) for name in names} | {"compactions": entry.get("compactionCount") or 0}
    return kept, (gateway.state_dir / "openclaw.json").read_bytes()


async def by_agent(client: WireClient, text: str, **more: Any) -> str:
    """Sends with the method ``agent`` and returns the texts of the last answer."""
    params = {"message": text, "sessionKey": "main", "idempotencyKey": str(uuid.uuid4()), **more}
    request_id = await client.send("agent", params)
    accepted = await client.answer(request_id)
    answer = accepted if accepted["status"] != "accepted" else await client.answer(request_id)
    return "\n".join(payload["text"] for payload in answer["result"]["payloads"])


async def test_a_client_that_may_only_write_commands_nothing(
    open_gateway: InProcessGateway, models: ModelServer
) -> None:
    async with open_gateway.client() as owner, open_gateway.client(scopes=["operator.write"]) as client:
        await owner.chat("hello")
        before = await condition(open_gateway)
        for text in ATTACKS:
            assert "❌" in text_of(await client.chat(text)), text
            assert "❌" in await by_agent(client, text), text
            assert await condition(open_gateway) == before, text
        for text in INLINE:
            await client.chat(text)
            assert "/" in str(models.requests[-1].body["messages"][-1]["content"]), "to the model these are words"
            assert await condition(open_gateway) == before, text
        assert not open_gateway.gateway.restart.requested.is_set()
        assert "🦞 OpenClaw" in text_of(await client.chat("/status")), "what shows something it may use"
        assert (await client.call("chat.send", {"sessionKey": "main", "message": "/stop", "idempotencyKey": "s"}))["ok"]
        # The owner's client still may everything.
        assert text_of(await owner.chat("/think high")) == "Thinking level set to high."
        assert text_of(await owner.chat("/exec security=deny")) == "⚙️ Exec defaults set (security=deny)."
        assert "⚙️" in text_of(await owner.chat("/config show commands"))


async def test_approvals_are_for_those_who_have_the_scope(open_gateway: InProcessGateway) -> None:
    scopes = ["operator.write", "operator.approvals"]
    async with open_gateway.client(scopes=scopes) as client:
        assert "this client" not in text_of(await client.chat("/approve nothing deny"))
        assert "operator.admin" in text_of(await client.chat("/exec ask=off"))


async def test_a_run_of_a_client_that_may_only_write_is_not_elevated(
    open_gateway: InProcessGateway, models: ModelServer
) -> None:
    run = '[[tool:exec {"command": "echo made > made.txt", "elevated": true}]][[next]][[reply:seen]]'
    made = open_gateway.state_dir / "workspace" / "made.txt"
    async with open_gateway.client() as owner, open_gateway.client(scopes=["operator.write"]) as client:
        await owner.chat("/elevated full")
        await client.chat(f"try {run}")
        assert not made.exists()
        await owner.chat(f"try {run}")
        assert made.exists()


async def test_parameters_that_do_more_than_their_method(open_gateway: InProcessGateway) -> None:
    async with open_gateway.client(scopes=["operator.write"]) as client:
        for name in ("extraSystemPrompt", "lane", "label", "spawnedBy", "groupId", "groupChannel", "groupSpace"):
            with pytest.raises(RequestFailed, match=f"missing scope: operator.admin \\(for {name}\\)"):
                await by_agent(client, "hello", **{name: "x"})
        sent = {"to": "+1555", "message": "I said so", "idempotencyKey": "k", "sessionKey": "main"}
        with pytest.raises(RequestFailed, match="for sessionKey"):
            await client.call("send", sent)
        with pytest.raises(RequestFailed, match=r"missing scope: operator\.admin"):
            await client.call("sessions.patch", {"key": "main", "execSecurity": "full"})


async def test_a_channel_that_a_caller_names_does_not_get_around_the_send_policy(
    tmp_path: Path, models: ModelServer
) -> None:
    rules = [{"action": "deny", "match": {"channel": "signal"}}]
    config = model_config(models.base_url, models.api_key, session={"sendPolicy": {"rules": rules}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for more in ({}, {"channel": "webchat"}, {"channel": "telegram"}):
            with pytest.raises(RequestFailed, match="send blocked by session policy"):
                await by_agent(client, "hello", **{"sessionKey": "signal:group:g1", **more})
        first = {"sessionKey": "signal:group:new", "message": "hello", "idempotencyKey": "1"}
        with pytest.raises(RequestFailed, match="send blocked by session policy"):
            await client.call("chat.send", first)


async def test_programs_over_http_cannot_command(open_gateway: InProcessGateway, models: ModelServer) -> None:
    async with open_gateway.client() as owner, aiohttp.ClientSession() as http:
        await owner.chat("hello")
        before = await condition(open_gateway)
        headers = {"Authorization": f"Bearer {TOKEN}", "x-openclaw-session-key": "main"}
        for text in [*ATTACKS, *INLINE]:
            body = {"model": "openclaw", "messages": [{"role": "user", "content": text}]}
            url = f"http://127.0.0.1:{open_gateway.port}/v1/chat/completions"
            async with http.post(url, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
            assert text.split("\n")[0] in json.dumps(models.requests[-1].body["messages"][-1]), text
            assert await condition(open_gateway) == before, text


async def test_a_group_does_not_see_what_runs_for_the_owner(gateway: InProcessGateway, models: ModelServer) -> None:
    begin = '[[tool:exec {"command": "echo private; sleep 60", "background": true}]][[next]][[reply:begun]]'
    look = '[[tool:process {"action": "list"}]][[next]][[reply:looked]]'
    group = "agent:main:signal:group:g1"
    async with gateway.client() as client:
        await client.chat(f"go {begin}")
        await client.chat(f"go {look}")
        assert "sleep 60" in json.dumps(models.requests[-1].body["messages"][-1])
        await client.chat(f"go {look}", group)
        assert "No running or recent sessions" in json.dumps(models.requests[-1].body["messages"][-1])
        await client.chat("/new hello")
        await client.chat(f"go {look}")
        assert "sleep 60" in json.dumps(models.requests[-1].body["messages"][-1]), "a new session of the same chat does"


# People on a channel


@pytest.fixture
async def party(tmp_path: Path) -> AsyncIterator[Place]:
    """Ann is the owner by the channel's list. Bob was let in with a code. Cem may speak and command in groups."""
    section = {"allowFrom": ["ann"], "groupPolicy": "open", "groupAllowFrom": ["cem", "ann"]}
    config: dict[str, Any] = {
        "commands": {"config": True, "restart": True},
        "tools": {"elevated": {"allowFrom": {"loopback": ["*"]}}, "exec": {"host": "gateway"}},
        "session": {"dmScope": "main"},
    }
    async with place(tmp_path / "state", section, **config) as made:
        asked = await made.gateway.pairing.ask("loopback", "bob")
        assert asked is not None
        assert await made.gateway.pairing.approve(asked.code) is not None
        yield made


OWNERS_ALONE = [
    "/config set gateway.auth.token=mine",
    "/config show",
    "/exec security=full ask=off",
    "/elevated full",
    "/approve 1 allow-once",
    "/restart",
    "/send off",
    "/budget override",
    "/exec security=full\n/elevated full",
]


async def settings_of(at: Place, key: str) -> dict[str, Any]:
    entry = dict(await at.gateway.runtime.stores.sessions.get("main", key) or {})
    return {name: entry.get(name) for name in ("execSecurity", "execAsk", "elevatedLevel", "sendPolicy")}


@pytest.mark.parametrize(("sender", "group"), [("bob", None), ("bob", "g1"), ("cem", "g1"), ("eve", "g1")])
async def test_guests_group_members_and_strangers_are_no_owners(party: Place, sender: str, group: str | None) -> None:
    key = f"agent:main:loopback:group:{group}" if group else "agent:main:main"
    config = Path(party.gateway.runtime.config.snapshot.path)
    before, mentioned = config.read_bytes(), {"mentioned": True} if group else {}
    for text in OWNERS_ALONE:
        await party.people.say(text, sender=sender, group=group, **mentioned)
        await settle()
        assert set((await settings_of(party, key)).values()) == {None}, text
        assert config.read_bytes() == before and not party.gateway.restart.requested.is_set(), text
        assert all(one.text.startswith("❌") and group is None for one in party.people.delivered)
    assert not party.model.requests
    said = len(party.people.delivered)
    await party.people.say(
        "/elevated full /exec security=full ask=off tell me", sender=sender, group=group, **mentioned
    )
    await party.people.got(said + 1)
    row = (await party.rows())[-1]
    assert (row.body.exec, row.body.elevated, row.body.elevated_allowed) == ({}, None, False)
    assert "/exec security=full" in (row.body.prompt or ""), "inside other text they are words"


async def test_the_owner_still_commands_on_the_channel(party: Place) -> None:
    await party.people.say("/exec security=full ask=off", sender="ann")
    await party.people.say("/elevated full", sender="ann")
    assert len(await party.texts(2)) == 2
    assert (await settings_of(party, "agent:main:main"))["elevatedLevel"] == "full"
    for count, sender in enumerate(("ann", "bob"), 3):
        await party.people.say("hello", sender=sender)
        await party.people.got(count)
    allowed = [row.body.elevated_allowed for row in await party.rows() if "hello" in (row.body.prompt or "")]
    assert allowed == [True, False], "in one session, each run has the rights of its sender"


@pytest.mark.parametrize(
    "imposter",
    [
        Sender(id="eve", name="ann"),
        Sender(id="eve", name="Ann", username="ann", tag="ann"),
        Sender(id="", name="ann", username="ann"),
        Sender(id="g1", name="ann"),
        Sender(id="*"),
        Sender(id="ann\u200b"),
        Sender(id="loopback:g1"),
    ],
)
async def test_nobody_becomes_the_owner_by_a_name(party: Place, imposter: Sender) -> None:
    await party.people.say("/exec security=full ask=off", sender=imposter, group="g1", mentioned=True)
    await settle()
    assert set((await settings_of(party, "agent:main:loopback:group:g1")).values()) == {None}


@pytest.mark.parametrize(
    ("sender", "group", "heard"),
    [("ann", None, True), ("bob", None, True), ("eve", None, False), ("cem", None, False), ("eve", "g1", False)],
)
async def test_reactions_pass_the_same_policy_as_messages(
    tmp_path: Path, sender: str, group: str | None, heard: bool
) -> None:
    section = {"allowFrom": ["ann", "bob"], "groupAllowFrom": ["cem"]}
    async with place(tmp_path / "state", section) as at:
        await at.gateway.pipeline.notice(at.people.inbound("reacted", sender=sender, group=group))
        key = f"agent:main:loopback:group:{group}" if group else "agent:main:main"
        assert bool(at.gateway.runtime.notes.peek(key)) == heard
        await asyncio.sleep(0)
        assert not at.people.delivered
