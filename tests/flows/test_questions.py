"""Questions to people: asked once, answered once on any surface, and the run continues with the answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw.tools.exec.approvals import ApprovalRequest, approval_question
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_script import Call, Reply
from tests.support.model_server import ModelServer


def runs(models: ModelServer, command: str, end: str = "done") -> None:
    models.queue(Reply(calls=[Call("exec", {"command": command})]), Reply(text=end))


async def opened(client: WireClient) -> dict[str, Any]:
    return (await client.event(lambda event, payload: event == "question.opened"))["payload"]


async def test_a_command_runs_in_its_own_call_once_a_person_allows_it(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        runs(models, "echo ran")
        turn = asyncio.create_task(client.chat("try"))
        question = await opened(client)
        assert [option["value"] for option in question["options"]] == ["allow-once", "allow-always", "deny"]
        listed = (await client.call("question.list", {}))["questions"]
        assert [one["id"] for one in listed] == [question["id"]]
        answered = await client.call("question.answer", {"id": question["id"][:8], "answer": "1"})
        assert answered["question"]["answer"] == "allow-once"
        assert text_of(await turn) == "done"
        assert "ran" in str(models.requests[-1].body["messages"][-1])
        with pytest.raises(RequestFailed, match="no longer open: it was answered"):
            await client.call("question.answer", {"id": question["id"], "answer": "deny"})
        assert (await client.call("question.list", {}))["questions"] == []


CAPS = ["tool-events", "tool-output", "delta-events"]
DECIDE = {"question": "Which colour?", "options": ["red", "blue"], "default": "blue"}


async def test_an_agent_asks_and_goes_on_with_the_answer_given_in_the_chat(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        models.queue(Reply(calls=[Call("ask_user", DECIDE)]), Reply(text="painted"), Reply(text="hello to you"))
        turn = asyncio.create_task(client.chat("paint"))
        question = await opened(client)
        assert ([one["label"] for one in question["options"]], question["default"]) == (["red", "blue"], "blue")
        other = asyncio.create_task(client.chat("hello, by the way"))  # Not an answer, so it waits.
        assert text_of(await client.chat("2")) == "✅ Answered: blue"
        assert text_of(await turn) == "painted"
        await other
        told = str([request.body["messages"] for request in models.requests])
        assert "The answer" in told and "blue" in told


async def test_a_question_that_nobody_answers_goes_on_with_its_default(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        short = {**DECIDE, "timeoutSeconds": 0.05}
        models.queue(Reply(calls=[Call("ask_user", short)]), Reply(text="painted"))
        assert text_of(await client.chat("paint")) == "painted"
        assert "Go on with the default: blue" in str(models.requests[-1].body["messages"][-1])


async def test_stop_withdraws_the_question_of_its_run(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        models.queue(Reply(calls=[Call("ask_user", DECIDE)]))
        turn = asyncio.create_task(client.chat("paint", run_id="paint"))
        question = await opened(client)
        await client.call("chat.abort", {"sessionKey": "main", "runId": "paint"})
        assert (await turn)["state"] == "aborted"
        closed = await client.event(lambda event, payload: event == "question.closed")
        assert (closed["payload"]["id"], closed["payload"]["state"]) == (question["id"], "withdrawn")


async def test_a_call_that_waits_says_so_and_the_run_holds_no_slot(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key, agents={"defaults": {"maxConcurrent": 1}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client(caps=CAPS) as client:
        models.queue(Reply(calls=[Call("ask_user", DECIDE)]), Reply(text="other"), Reply(text="painted"))
        turn = asyncio.create_task(client.chat("paint"))
        question = await opened(client)
        assert text_of(await client.chat("hello", "agent:main:other")) == "other"
        await client.call("question.answer", {"id": question["id"], "answer": "red"})
        assert text_of(await turn) == "painted"
        phases = [
            (frame["payload"]["data"]["phase"], frame["payload"]["data"].get("status"))
            for frame in client.events
            if frame["event"] == "agent" and frame["payload"]["stream"] == "tool"
        ]
        assert phases == [("start", None), ("waiting", None), ("running", None), ("result", "done")]


async def test_a_thousand_questions_may_be_open(gateway: InProcessGateway) -> None:
    desk = gateway.gateway.runtime.tools.questions
    for number in range(1_000):
        await desk.ask(approval_question(ApprovalRequest(command=f"echo {number}")))
    async with gateway.client() as client:
        assert text_of(await client.chat("hello")) == "ok"
        assert len((await client.call("question.list", {}))["questions"]) == 1_000


async def test_message_send_asks_nobody_in_a_pipe_and_says_how_to_answer(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("/exec ask=always")
        runs(models, "echo ran", end="all done")
        asked = await gateway.command("message", "send", "try")
        assert (asked.returncode, asked.stdout) == (3, "")
        assert "May I run this command?" in asked.stderr and "echo ran" in asked.stderr
        (question,) = (await client.call("question.list", {}))["questions"]
        assert f"openclaw questions answer {question['id'][:8]} allow-once" in asked.stderr
        assert question["id"][:8] in (await gateway.command("questions")).stdout
        answered = await gateway.command("questions", "answer", question["id"][:8], "allow-once")
        assert answered.stdout == f"Answered {question['id'][:8]}: allow-once\n"
        late = await gateway.command("questions", "answer", question["id"][:8], "deny")
        assert late.returncode == 1 and "no longer open: it was answered" in late.stderr
        await client.call("agent.wait", {"runId": question["runId"], "timeoutMs": 50_000})
        for flag, result in (("--yes", "ran"), ("--no", "user-denied")):
            runs(models, "echo ran", end="all done")
            done = await gateway.command("message", "send", flag, "try")
            assert (done.returncode, done.stdout) == (0, "all done\n"), done.stderr
            assert result in str(models.requests[-1].body["messages"][-1])
        both = await gateway.command("message", "send", "--yes", "--no", "try")
        assert both.returncode == 2
