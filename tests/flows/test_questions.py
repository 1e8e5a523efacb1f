"""Questions to people: asked once, answered once on any surface, and the run continues with the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.gateway import RequestFailed, WireClient, text_of
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
