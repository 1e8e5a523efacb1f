"""Questions about commands that are open when the Gateway dies: closed in so many words, and nothing runs twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.model_server import Call, ModelServer, Reply


@pytest.fixture
def asking(tmp_path: Path, models: ModelServer) -> ForkedGateway:
    config = model_config(models.base_url, models.api_key, tools={"exec": {"host": "gateway", "ask": "always"}})
    return ForkedGateway(tmp_path / "state", config)


async def asked(client: WireClient, models: ModelServer, command: str) -> str:
    """The id of the question; the conversation has gone on."""
    models.queue(Reply("", calls=[Call("exec", {"command": command})]), Reply("I have asked"))
    assert text_of(await client.chat("please")) == "I have asked"
    return (await client.event(lambda event, payload: event == "exec.approval.requested"))["payload"]["id"]


async def told_after_restart(client: WireClient, models: ModelServer, requests: int) -> str:
    """What the model was told, after it has answered."""
    await models.wait_for_requests(requests)
    listed: list[dict[str, Any]] = (await client.call("messages.list", {"limit": 1}))["messages"]
    assert (await client.call("agent.wait", {"runId": listed[0]["runId"], "timeoutMs": 50_000}))["status"] == "ok"
    return json.dumps(models.requests[-1].body["messages"][-1])


async def test_a_question_that_a_restart_closes_is_told_once_and_answered_clearly(
    asking: ForkedGateway, models: ModelServer, tmp_path: Path
) -> None:
    async with asking:
        async with asking.client() as client:
            id = await asked(client, models, f"touch {tmp_path / 'ran'}")
        models.queue(Reply("it was not run"))
        asking.kill()
        await asking.start()
        async with asking.client() as client:
            told = await told_after_restart(client, models, 3)
            assert f"Exec denied (gateway id={id}, gateway-restarted)" in told
            history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
            assert text_of({"message": history[-1]}) == "it was not run"
        asking.kill()
        await asking.start()
        async with asking.client() as client:
            with pytest.raises(RequestFailed, match=f"approval {id[:8]} is no longer open: the Gateway was restarted"):
                await client.call("exec.approval.resolve", {"id": id, "decision": "allow-once"})
            said = text_of(await client.chat(f"/approve {id[:8]} allow-once"))
            assert "the Gateway was restarted while it waited" in said
            with pytest.raises(RequestFailed, match="unknown approval id"):
                await client.call("exec.approval.resolve", {"id": "00000000-none", "decision": "deny"})
    assert len(models.requests) == 3
    assert not (tmp_path / "ran").exists()


async def test_a_command_that_was_allowed_and_running_is_told_as_interrupted(
    asking: ForkedGateway, models: ModelServer, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    async with asking:
        async with asking.client() as client:
            id = await asked(client, models, f"echo once >> {effects}; sleep 30")
            await client.call("exec.approval.resolve", {"id": id, "decision": "allow-once"})
            async with asyncio.timeout(60):
                while not effects.exists():
                    await asyncio.sleep(0.02)
        models.queue(Reply("I shall look"))
        asking.kill()
        await asking.start()
        async with asking.client() as client:
            told = await told_after_restart(client, models, 3)
    assert f"Exec interrupted (gateway id={id}, gateway-restarted)" in told
    assert "It was not repeated" in told
    assert effects.read_text() == "once\n"


async def test_what_was_decided_is_not_told_again(asking: ForkedGateway, models: ModelServer) -> None:
    async with asking:
        async with asking.client() as client:
            id = await asked(client, models, "true")
            await client.call("exec.approval.resolve", {"id": id, "decision": "deny"})
            async with asyncio.timeout(60):
                while id in (asking.state_dir / "exec-pending.json").read_text():
                    await asyncio.sleep(0.02)
        asking.kill()
        await asking.start()
        async with asking.client() as client:
            assert len((await client.call("messages.list", {}))["messages"]) == 1
            with pytest.raises(RequestFailed, match="unknown approval id"):
                await client.call("exec.approval.resolve", {"id": id, "decision": "allow-once"})


async def test_a_damaged_list_of_questions_does_not_keep_the_gateway_from_starting(asking: ForkedGateway) -> None:
    (asking.state_dir / "exec-pending.json").write_text('[{"id": 7')
    async with asking, asking.client() as client:
        assert (await client.call("health"))["ok"]
