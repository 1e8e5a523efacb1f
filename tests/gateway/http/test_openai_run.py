"""Following a run: pieces as they come, a bound on what a slow caller may cost, requests that meet in one session."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from openclaw.agent.run import RunResult
from openclaw.events import AssistantEnded, AssistantStarted, Event, TextDelta
from openclaw.gateway.http.openai_run import Ask, Following, SlowReader
from openclaw.gateway.server.broadcast import MAX_BUFFERED_BYTES
from openclaw.messages import AssistantMessage, TextBlock, Usage
from openclaw.runs.dispatcher import Submission
from openclaw.runs.run_index import RunRecord
from openclaw.storage.base import NO_REASON, LedgerRow, MessageBody
from tests.gateway.http.served import Served, served

package = pytest.mark.asyncio(loop_scope="package")


def record() -> RunRecord:
    row = LedgerRow(
        id=1,
        run_id=str(uuid.uuid4()),
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:x",
        session_id="s",
        source="openai",
        route={},
        body=MessageBody(),
        state="accepted",
        reason=NO_REASON,
        attempts=0,
        accepted_at=0,
        started_at=None,
        ended_at=None,
        result=None,
    )
    return RunRecord(row)


def follow(run: RunRecord) -> Following:
    ask = Ask(source="openai", run_id=run.run_id, agent_id="main", said=[], no_message="")
    following = Following(cast(Any, SimpleNamespace(leaving=asyncio.Event())), ask)
    following.begin(Submission(run.row, True, False, run))
    return following


def tell(run: RunRecord, *events: Event) -> None:
    for event in events:
        run.tell(event)


def ended(text: str, **usage: int) -> AssistantEnded:
    return AssistantEnded(AssistantMessage(content=[TextBlock(text=text)], usage=Usage(**usage)))


async def test_usage_is_the_sum_of_all_model_calls() -> None:
    run = record()
    following = follow(run)
    tell(run, AssistantStarted(), TextDelta("a"), ended("a", input=10, output=1, cache_read=5))
    tell(run, AssistantStarted(), TextDelta("b"), ended("b", input=20, output=2))
    run.end("ok", 0, None, RunResult(outcome="ok", texts=["a", "b"]))
    ending = await following.ending()
    assert ending.usage is not None
    assert (ending.usage.input, ending.usage.output, ending.usage.cache_read) == (30, 3, 5)
    assert ending.text == "a\n\nb"
    assert [piece async for piece in following.text(10)] == ["a\n\nb"]


async def test_silence_gives_an_empty_piece_to_keep_the_line_open() -> None:
    run = record()
    following = follow(run)
    pieces: list[str] = []
    async for piece in following.text(0.001):
        pieces.append(piece)
        if len(pieces) == 1:
            tell(run, TextDelta("late"))
            run.end("ok", 0, None, RunResult(outcome="ok", texts=["late"]))
    assert pieces == ["", "late"]


async def test_a_caller_that_does_not_read_is_given_up_within_bounds() -> None:
    run = record()
    following = follow(run)
    for _ in range(50):
        tell(run, TextDelta("x" * 100_000))
    assert sum(len(part) for part in following._unread) <= MAX_BUFFERED_BYTES + 100_000
    with pytest.raises(SlowReader):
        async for _ in following.text(10):
            pass


async def test_leaving_takes_the_follower_off_the_run() -> None:
    run = record()
    following = follow(run)
    following.leave()
    assert run.listeners == []
    following.leave()


@package
async def test_requests_that_meet_in_one_session_each_get_their_own_answer(gateway: Served) -> None:
    user = str(uuid.uuid4())

    async def one(number: int) -> str:
        message = {"role": "user", "content": f"[[sleep:20]][[reply:answer {number}]]"}
        _, answer = await gateway.post("/v1/chat/completions", {"messages": [message], "user": user})
        return answer["choices"][0]["message"]["content"]

    assert await asyncio.gather(*(one(number) for number in range(5))) == [f"answer {n}" for n in range(5)]


@package
async def test_a_session_that_may_not_be_sent_to_is_refused(gateway: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hi [[reply:ok]]"}], "user": "muted"}
    await gateway.post("/v1/chat/completions", body)
    await gateway.rpc("sessions.patch", {"key": "agent:main:openai-user:muted", "sendPolicy": "deny"})
    status, answer = await gateway.post("/v1/chat/completions", body)
    assert status == 403
    assert answer["error"]["message"] == "send blocked by session policy"


async def test_endpoints_are_off_unless_switched_on(tmp_path: Path) -> None:
    async with served(tmp_path, {}) as closed:
        for path in ("/v1/chat/completions", "/v1/responses"):
            status, answer = await closed.post(path, {"messages": [], "model": "openclaw", "input": "hi"})
            assert status == 404
            assert "gateway.http.endpoints." in answer["error"]["message"]
        assert closed.model.requests == type(closed.model.requests)()
