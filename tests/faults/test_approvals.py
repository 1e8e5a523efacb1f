"""Questions that are open when the Gateway dies: they stay open, the run waits on, and nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from tests.faults.kill_schedules import CONNECTION_LOST
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.model_server import Call, ModelServer, Reply


@pytest.fixture
def asking(tmp_path: Path, models: ModelServer) -> ForkedGateway:
    config = model_config(models.base_url, models.api_key, tools={"exec": {"host": "gateway", "ask": "always"}})
    return ForkedGateway(tmp_path / "state", config)


async def asked(client: WireClient, models: ModelServer, command: str) -> str:
    """The id of the question that the run ``try`` waits for."""
    models.queue(Reply("", calls=[Call("exec", {"command": command})]), Reply("it has ended"))
    await client.call("chat.send", {"sessionKey": "main", "message": "please", "idempotencyKey": "try"})
    return (await client.event(lambda event, payload: event == "question.opened"))["payload"]["id"]


async def ended(client: WireClient, models: ModelServer) -> str:
    """What the model was told as the result of the call."""
    assert (await client.call("agent.wait", {"runId": "try", "timeoutMs": 50_000}))["status"] == "ok"
    return json.dumps(models.requests[-1].body["messages"][-1])


@pytest.mark.parametrize(("answer", "runs"), [("allow-once", True), ("deny", False)])
async def test_a_question_outlives_the_gateway_and_its_command_runs_once(
    asking: ForkedGateway, models: ModelServer, tmp_path: Path, answer: str, runs: bool
) -> None:
    effects = tmp_path / "effects"
    async with asking:
        async with asking.client() as client:
            id = await asked(client, models, f"echo once >> {effects}; echo ran")
        asking.kill()
        await asking.start()
        async with asking.client() as client:
            (question,) = (await client.call("question.list", {}))["questions"]
            assert (question["id"], question["state"], question["runId"]) == (id, "open", "try")
            await client.call("exec.approval.resolve", {"id": id, "decision": answer})
            told = await ended(client, models)
            history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
            assert text_of({"message": history[-1]}) == "it has ended"
            with pytest.raises(RequestFailed, match="is no longer open: it was answered"):
                await client.call("question.answer", {"id": id, "answer": "allow-once"})
        asking.kill()
        await asking.start()
        async with asking.client() as client:
            assert (await client.call("question.list", {}))["questions"] == []
    assert ("user-denied" in told) is not runs
    assert (effects.read_text() if effects.exists() else "") == ("once\n" if runs else "")
    assert len(models.requests) == 2


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
        asking.kill()
        await asking.start()
        async with asking.client() as client:
            told = await ended(client, models)
    assert "Interrupted: the Gateway stopped while this call was running. It was not repeated" in told
    assert effects.read_text() == "once\n"


@pytest.mark.parametrize("point", ["question.opened", "question.ended", "question.acted"])
async def test_a_death_at_each_step_runs_the_command_at_most_once_and_never_without_an_answer(
    models: ModelServer, tmp_path: Path, point: str
) -> None:
    effects = tmp_path / "effects"
    config = model_config(models.base_url, models.api_key, tools={"exec": {"host": "gateway", "ask": "always"}})
    asking = ForkedGateway(tmp_path / "state", config)
    plan = json.dumps([{"at": point, "do": "kill", "hit": 1}])
    asking.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": plan}
    async with asking:
        models.queue(Reply("", calls=[Call("exec", {"command": f"echo once >> {effects}"})]), Reply("it has ended"))
        with contextlib.suppress(*CONNECTION_LOST):
            async with asking.client() as client:
                await client.call("chat.send", {"sessionKey": "main", "message": "please", "idempotencyKey": "try"})
                id = (await client.event(lambda event, payload: event == "question.opened"))["payload"]["id"]
                await client.call("question.answer", {"id": id, "answer": "allow-once"})
                await client.call("agent.wait", {"runId": "try", "timeoutMs": 50_000})
        assert not effects.exists()
        with contextlib.suppress(AssertionError):
            asking.kill()
        asking.env |= {"OPENCLAW_FAULT_PLAN": "[]"}
        await asking.start()
        async with asking.client() as client:
            for question in (await client.call("question.list", {}))["questions"]:
                assert not effects.exists()
                await client.call("question.answer", {"id": question["id"], "answer": "allow-once"})
            await ended(client, models)
    assert (effects.read_text() if effects.exists() else "") in ("", "once\n")
