"""``chat.view`` and what else the web page asks for: a conversation in pieces, the queue, entries, commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw.messages import ToolCall
from tests.support.gateway import RequestFailed, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.scripted_model import Answer, ScriptedModel

KEY = "agent:main:main"


async def started(folder: Path, model: ScriptedModel, **config: Any) -> InProcessGateway:
    gateway = InProcessGateway(folder / "state", model_config("http://127.0.0.1:9", **config))
    await gateway.start()
    gateway.gateway.runtime.models.calls.call = model.answer
    return gateway


async def ask(client: Any, method: str, **params: Any) -> Any:
    return await client.call(method, params)


async def say(client: Any, text: str, number: int) -> None:
    await ask(client, "chat.send", sessionKey="main", message=text, idempotencyKey=f"run-{number}")
    await ask(client, "agent.wait", runId=f"run-{number}", timeoutMs=30_000)


def texts(view: dict[str, Any]) -> list[str]:
    return [message["content"][0].get("text", "") for message in view["messages"]]


async def test_a_conversation_comes_in_pieces_that_meet(tmp_path: Path) -> None:
    gateway = await started(tmp_path, ScriptedModel())
    try:
        async with gateway.client() as client:
            empty = await ask(client, "chat.view", sessionKey="main")
            assert (empty["sessionKey"], empty["messages"], empty["run"], empty["waiting"]) == (KEY, [], None, [])
            for number in range(5):
                await say(client, f"question {number}", number)
            newest = await ask(client, "chat.view", sessionKey="main", limit=4)
            assert texts(newest) == ["question 3", "ok", "question 4", "ok"] and newest["more"]
            first = newest["messages"][0]["__openclaw"]["id"]
            older = await ask(client, "chat.view", sessionKey="main", limit=4, before=first)
            assert texts(older) == ["question 1", "ok", "question 2", "ok"]
            oldest = await ask(
                client, "chat.view", sessionKey="main", limit=4, before=older["messages"][0]["__openclaw"]["id"]
            )
            assert texts(oldest) == ["question 0", "ok"] and not oldest["more"]
            assert (await ask(client, "chat.view", sessionKey="main", before="no-such-entry"))["messages"] == []
    finally:
        await gateway.stop()


async def test_a_waiting_message_gets_other_words_and_keeps_its_place(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.held("never heard")
    gateway = await started(tmp_path, model)
    try:
        async with gateway.client() as client:
            await ask(client, "chat.send", sessionKey="main", message="begin", idempotencyKey="one")
            await model.asked(1)
            for run, text in (("two", "a mitsake"), ("three", "the last")):
                await ask(client, "chat.send", sessionKey="main", message=text, idempotencyKey=run)
            changed = {"sessionKey": "main", "message": "no <mistake>"}
            assert (await ask(client, "chat.reword", runId="two", **changed))["reworded"]
            assert not (await ask(client, "chat.reword", runId="one", **changed))["reworded"], "it is running"
            with pytest.raises(RequestFailed, match="a command cannot"):
                await ask(client, "chat.reword", sessionKey="main", runId="two", message="/new")
            view = await ask(client, "chat.view", sessionKey="main")
            assert [one["text"] for one in view["waiting"]] == ["no <mistake>", "the last"]
            assert (await ask(client, "messages.get", runId="two"))["text"] == "no <mistake>"
        row = await gateway.gateway.runtime.stores.ledger.by_run("two")
        assert row is not None and "mitsake" not in (row.body.prompt or "")
    finally:
        await gateway.stop()


async def test_nobody_puts_other_words_under_the_rules_that_the_owner_gave_a_message(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.held("never heard")
    gateway = await started(tmp_path, model, tools={"elevated": {"allowFrom": {"webchat": ["*"]}}})
    try:
        async with gateway.client() as owner, gateway.client(scopes=["operator.write"]) as writer:
            await ask(owner, "chat.send", sessionKey="main", message="begin", idempotencyKey="one")
            await model.asked(1)
            loose = {"two": "/exec security=full ask=off tidy up", "three": "/elevated full tidy up", "four": "tidy up"}
            for run, text in loose.items():
                await ask(owner, "chat.send", sessionKey="main", message=text, idempotencyKey=run)
            await ask(writer, "chat.send", sessionKey="main", message="mine", idempotencyKey="five")
            other = {"sessionKey": "main", "message": "delete everything"}
            for run in loose:
                with pytest.raises(RequestFailed, match=r"missing scope: operator\.admin"):
                    await ask(writer, "chat.reword", runId=run, **other)
            assert (await ask(writer, "chat.reword", runId="five", **other))["reworded"]
            assert (await ask(owner, "chat.reword", runId="two", **other))["reworded"]
    finally:
        await gateway.stop()


async def test_what_runs_and_what_waits_is_in_the_view_and_can_be_dropped(tmp_path: Path) -> None:
    model = ScriptedModel()
    hold = model.held("half of it is said, half is not")
    gateway = await started(tmp_path, model)
    try:
        async with gateway.client() as client:
            await ask(client, "chat.send", sessionKey="main", message="begin", idempotencyKey="one")
            await model.asked(1)
            await ask(client, "chat.send", sessionKey="main", message="and then", idempotencyKey="two")
            view = await ask(client, "chat.view", sessionKey="main")
            assert view["run"]["runId"] == "one"
            assert [(one["runId"], one["text"]) for one in view["waiting"]] == [("two", "and then")]
            assert not (await ask(client, "chat.drop", sessionKey="main", runId="one"))["dropped"], "it is running"
            assert (await ask(client, "chat.drop", sessionKey="main", runId="two"))["dropped"]
            assert (await client.ending("two"))["stopReason"] == "stop", "a code that clients know, and no sentence"
            assert (await ask(client, "chat.view", sessionKey="main"))["waiting"] == []
            why = await ask(client, "messages.why", ref="two")
            assert why["message"]["state"] == "superseded"
            hold.set()
            await ask(client, "agent.wait", runId="one", timeoutMs=30_000)
            assert (await ask(client, "chat.view", sessionKey="main"))["run"] is None
    finally:
        await gateway.stop()


async def test_long_output_is_left_out_of_the_view_and_whole_in_its_entry(tmp_path: Path) -> None:
    call = ToolCall(id="c1", name="exec", arguments={"command": "seq 1 4000"})
    gateway = await started(tmp_path, ScriptedModel(Answer("I count.", calls=[call]), "Counted."))
    try:
        async with gateway.client() as client:
            await say(client, "count", 1)
            view = await ask(client, "chat.view", sessionKey="main")
            result = next(one for one in view["messages"] if one["role"] == "toolResult")
            block = result["content"][0]
            assert len(block["text"]) <= 4_000 < block["omitted"]
            ids = [result["__openclaw"]["id"], "no-such-entry"]
            raw = await ask(client, "sessions.entries", key="main", ids=ids, raw=True)
            assert len(raw["entries"]) == 1 and "\\n4000" in raw["entries"][0]["raw"]
            seen = await ask(client, "sessions.entries", key="main", ids=ids)
            assert seen["entries"][0]["role"] == "tool" and seen["entries"][0]["text"].startswith("1 2 3")
    finally:
        await gateway.stop()


async def test_the_commands_of_the_palette(tmp_path: Path) -> None:
    gateway = await started(tmp_path, ScriptedModel())
    try:
        async with gateway.client() as client:
            listed = (await ask(client, "chat.commands"))["commands"]
            assert {"status", "new", "stop"} <= {one["name"] for one in listed}
            assert all(one["help"] for one in listed)
    finally:
        await gateway.stop()


async def test_an_agent_call_is_answered_although_another_node_went_on_with_its_run(tmp_path: Path) -> None:
    model = ScriptedModel()
    gateway = await started(tmp_path, model)
    parts = gateway.gateway
    try:
        async with gateway.client() as client:
            model.held()
            sent = await client.send("agent", {"message": "hi", "sessionKey": "main", "idempotencyKey": "r1"})
            assert (await client.answer(sent))["status"] == "accepted"
            await model.asked(1)
            parts.runs.drop_session(KEY)
            # What this node sees of the other one: the end in the ledger, and that it is told of it.
            row = await parts.runtime.stores.ledger.by_run("r1")
            assert row is not None
            await parts.runtime.stores.ledger.finish(row.id, "answered", result={"text": "said elsewhere"})
            parts.runs.index.wake_waiters("r1")
            assert (await client.answer(sent))["result"]["payloads"][0]["text"] == "said elsewhere"
    finally:
        await gateway.stop()
