"""What a list of conversations is made of: marks of the owner, versions of messages, forks, and the queue's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.gateway.methods.sessions import message_versions
from tests.gateway.methods.test_chat_view import ask, say, started, texts
from tests.support.gateway import RequestFailed
from tests.support.scripted_model import ScriptedModel


async def listed(client: Any, **params: Any) -> list[str]:
    answer = await ask(client, "sessions.list", **params)
    return [row["key"].rpartition(":")[2] for row in answer["sessions"]]


async def test_a_conversation_is_pinned_archived_and_brought_back_by_a_message(tmp_path: Path) -> None:
    gateway = await started(tmp_path, ScriptedModel())
    try:
        async with gateway.client() as client:
            for name in ("garden", "letter"):
                await ask(client, "chat.send", sessionKey=name, message="hello", idempotencyKey=name)
                await ask(client, "agent.wait", runId=name, timeoutMs=30_000)
            before = (await ask(client, "sessions.list"))["sessions"][0]["updatedAt"]
            await ask(client, "sessions.patch", key="garden", pinned=True)
            assert await listed(client, pinned=True) == ["garden"] and await listed(client, pinned=False) == ["letter"]
            await ask(client, "sessions.patch", key="letter", archived=True, read=True)
            assert await listed(client, archived=False) == ["garden"] and await listed(client, archived=True) == [
                "letter"
            ]
            row = (await ask(client, "sessions.list", archived=True))["sessions"][0]
            assert row["updatedAt"] <= before, "a mark is no activity"
            assert row["readAt"] >= row["updatedAt"] and row["archivedAt"] >= row["updatedAt"]
            await ask(client, "chat.send", sessionKey="letter", message="one more thing", idempotencyKey="again")
            await ask(client, "agent.wait", runId="again", timeoutMs=30_000)
            assert await listed(client, archived=False) == ["letter", "garden"]
            await ask(client, "sessions.patch", key="garden", pinned=False)
            assert await listed(client, pinned=True) == []
    finally:
        await gateway.stop()


async def test_an_edited_message_has_versions_and_each_can_be_shown_again(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.queue("Four.", "Seven.", "Six.")
    gateway = await started(tmp_path, model)
    try:
        async with gateway.client() as client:
            await say(client, "Two and two?", 1)
            await say(client, "Tree and three?", 2)
            assert (await ask(client, "sessions.versions", key="main"))["messages"] == []
            wrong = (await ask(client, "chat.view", sessionKey="main"))["messages"][2]["__openclaw"]
            await ask(client, "sessions.branch", key="main", entryId=wrong["parentId"], summarize=False)
            await say(client, "Three and three?", 3)
            [edited] = (await ask(client, "sessions.versions", key="main"))["messages"]
            assert [one["entryId"] for one in edited["versions"]] == [wrong["id"], edited["entryId"]]
            first = edited["versions"][0]["leafId"]
            await ask(client, "sessions.branch", key="main", entryId=first, summarize=False)
            assert texts(await ask(client, "chat.view", sessionKey="main"))[-1] == "Seven."
            [shown] = (await ask(client, "sessions.versions", key="main"))["messages"]
            assert shown["entryId"] == wrong["id"] and len(shown["versions"]) == 2
    finally:
        await gateway.stop()


async def test_a_fork_begins_with_the_conversation_up_to_an_entry_and_leaves_the_original(tmp_path: Path) -> None:
    gateway = await started(tmp_path, ScriptedModel())
    try:
        async with gateway.client() as client:
            for number in range(3):
                await say(client, f"question {number}", number)
            view = await ask(client, "chat.view", sessionKey="main")
            second = view["messages"][3]["__openclaw"]["id"]
            await ask(client, "sessions.patch", key="main", elevatedLevel="on", thinkingLevel="low")
            fork = await ask(client, "sessions.fork", key="main", entryId=second, to="agent:main:chat-copy")
            assert fork["key"] == "agent:main:chat-copy"
            copied = await ask(client, "chat.view", sessionKey=fork["key"])
            assert texts(copied) == ["question 0", "ok", "question 1", "ok"]
            [row] = (await ask(client, "sessions.list", search="chat-copy"))["sessions"]
            assert "elevatedLevel" not in row, "a fork gets no rights that were given to the original"
            assert len(texts(await ask(client, "chat.view", sessionKey="main"))) == 6
            with pytest.raises(RequestFailed, match="exists already"):
                await ask(client, "sessions.fork", key="main", to="agent:main:chat-copy")
            with pytest.raises(RequestFailed, match="No entry found"):
                await ask(client, "sessions.fork", key="main", entryId="nowhere")
    finally:
        await gateway.stop()


async def test_a_waiting_message_is_answered_now(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.held("never heard")
    model.queue("The urgent answer.", "The patient answer.")
    gateway = await started(tmp_path, model, messages={"queue": {"mode": "followup"}})
    try:
        async with gateway.client() as client:
            await ask(client, "chat.send", sessionKey="main", message="begin", idempotencyKey="one")
            await model.asked(1)
            for run, text in (("two", "patient"), ("three", "urgent")):
                await ask(client, "chat.send", sessionKey="main", message=text, idempotencyKey=run)
            assert not (await ask(client, "chat.promote", sessionKey="main", runId="nowhere"))["promoted"]
            assert (await ask(client, "chat.promote", sessionKey="main", runId="three"))["promoted"]
            for run in ("one", "two", "three"):
                await ask(client, "agent.wait", runId=run, timeoutMs=30_000)
            said = texts(await ask(client, "chat.view", sessionKey="main"))
            assert said.index("urgent") < said.index("patient")
            assert said[said.index("urgent") + 1] == "The urgent answer."
    finally:
        await gateway.stop()


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["message", "label", "branch_summary"])), max_size=30))
def test_versions_are_messages_that_follow_the_same_message(shape: list[tuple[int, str]]) -> None:
    tree: list[tuple[str, str | None, str]] = []
    for number, (parent, kind) in enumerate(shape):
        tree.append((f"e{number}", f"e{parent % number}" if number and parent % (number + 1) else None, kind))
    leaf = tree[-1][0] if tree else None
    parents = {id: parent for id, parent, _ in tree}
    kinds = {id: kind for id, _, kind in tree}

    def message_above(id: str) -> str | None:
        above = parents[id]
        while above is not None and kinds[above] != "message":
            above = parents[above]
        return above

    for message in message_versions(tree, leaf):
        options = [one.entry_id for one in message.versions]
        assert message.entry_id in options and len(set(options)) == len(options) > 1
        assert len({message_above(one) for one in options}) == 1
        assert all(kinds[one] == "message" for one in options)
        for one in message.versions:
            at: str | None = one.leaf_id
            while at is not None and at != one.entry_id:
                at = parents[at]
            assert at == one.entry_id, "the leaf lies below its version"
