"""One run on real stores: what it asks the model, what it leaves in the transcript, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from openclaw.agent.abort import AbortSignal
from openclaw.agent.run import AgentRun
from openclaw.agent.run_result import RunResult
from openclaw.events import TextDelta
from openclaw.gateway.gateway import Gateway
from openclaw.messages import AssistantMessage, Message, Route, ToolCall, ToolResultMessage, UserMessage, user_text
from openclaw.models.base import ModelError
from openclaw.runs.perform import perform_run
from openclaw.runs.run import Run, RunEvent
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.message_ledger import Accept, MessageBody
from openclaw.storage.transcripts import TranscriptRef
from tests.support.clock import HeldClock, until
from tests.support.gateway_in_process import gateway_parts
from tests.support.scripted_model import Answer, ScriptedModel

KEY = "agent:main:main"
SESSION_ID = "11111111-1111-4111-8111-111111111111"


class Session:
    """One session, whose messages are run here without `Runs`."""

    def __init__(self, gateway: Gateway, model: ScriptedModel, clock: HeldClock) -> None:
        self.gateway = gateway
        self.model = model
        self.clock = clock
        self.abort = AbortSignal()
        self.events: list[RunEvent] = []

    async def run(self, prompt: str, *, run_id: str = "r", give_up: str | None = None, **body: Any) -> RunResult:
        message = Accept(
            run_id=run_id,
            dedupe_key=f"webchat|{run_id}",
            agent_id="main",
            session_key=KEY,
            session_id=SESSION_ID,
            source="webchat",
            route=Route(channel="webchat"),
            body=MessageBody(prompt=prompt, **body),
        )
        row, _ = await self.gateway.runtime.stores.ledger.accept(message)
        run = Run(row)
        run.abort = self.abort
        run.follow(self.events.append)
        agent = await AgentRun.open(run, self.gateway.runtime, SESSION_ID)
        return await (perform_run(agent) if give_up is None else agent.reject(give_up))

    async def messages(self) -> list[Message]:
        found = await self.gateway.runtime.stores.transcripts.open(
            TranscriptRef(agent_id="main", session_id=SESSION_ID)
        )
        assert found is not None
        return list(found.context().messages)


@pytest.fixture
async def session(tmp_path: Path) -> AsyncGenerator[Session]:
    model, clock = ScriptedModel(), HeldClock()
    async with gateway_parts(tmp_path / "state", model, clock=clock) as gateway:
        begun = SessionEntry(sessionId=SESSION_ID, updatedAt=clock.now_ms())
        await gateway.runtime.stores.sessions.update("main", KEY, lambda _: begun)
        yield Session(gateway, model, clock)


async def test_an_answer_is_in_the_transcript_and_accounted_for(session: Session) -> None:
    session.model.queue("Hello.")
    result = await session.run("hi")
    assert (result.outcome, result.texts, result.account.model) == ("ok", ["Hello."], "mock-1")
    assert result.account.spent is not None and result.account.spent.total_tokens == 110
    user, answer = await session.messages()
    assert isinstance(user, UserMessage) and user_text(user) == "hi"
    assert isinstance(answer, AssistantMessage) and answer.text == "Hello."
    entry = await session.gateway.runtime.stores.sessions.get("main", KEY)
    assert entry is not None and entry["totalTokens"] == 100


async def test_the_next_run_sees_the_one_before(session: Session) -> None:
    await session.run("first", run_id="one")
    await session.run("second", run_id="two")
    assert session.model.prompts() == ["first", "second"]
    assert session.model.requests[0].system == session.model.requests[1].system, "the cached part has changed"


async def test_each_message_is_stored_before_the_model_is_asked_again(session: Session) -> None:
    hold = asyncio.Event()
    session.model.queue(
        Answer("looking", calls=[ToolCall(id="c1", name="read", arguments={"path": "missing.txt"})]),
        Answer("It is not there.", hold=hold),
    )
    running = asyncio.create_task(session.run("look"))
    await session.model.asked(2)
    kinds = [type(message) for message in await session.messages()]
    assert kinds == [UserMessage, AssistantMessage, ToolResultMessage]
    hold.set()
    assert (await running).texts == ["looking", "It is not there."]
    (call,) = await session.gateway.runtime.stores.ledger.tool_calls(1)
    assert (call.name, call.ok) == ("read", False)


async def test_what_the_message_asks_for_counts_for_its_run(session: Session) -> None:
    await session.run("hi", max_tokens=77, extra_system_prompt="Speak like a pirate.")
    request = session.model.requests[0]
    assert request.max_tokens == 77
    assert "Speak like a pirate." in request.system + request.system_suffix


async def test_a_model_that_is_overloaded_is_asked_again_after_a_pause(session: Session) -> None:
    session.model.queue(Answer(error=ModelError("Overloaded", kind="overloaded", retryable=True)), "at last")
    running = asyncio.create_task(session.run("hi"))
    await session.model.asked(1)

    def asked_again() -> bool:
        session.clock.advance(1)
        return len(session.model.requests) == 2

    await until(asked_again)
    assert (await running).texts == ["at last"]


async def test_a_model_that_refuses_ends_the_run_and_keeps_the_message(session: Session) -> None:
    session.model.queue(Answer(error=ModelError("the key was revoked", kind="auth")))
    result = await session.run("hi")
    assert result.outcome == "error" and "the key was revoked" in (result.error or "")
    assert user_text((await session.messages())[0]) == "hi"  # type: ignore[arg-type]


async def test_a_model_nobody_knows_is_named_and_nothing_is_asked(session: Session) -> None:
    result = await session.run("hi", model="nowhere/ghost")
    assert result.outcome == "error" and "ghost" in (result.error or "")
    assert not session.model.requests


async def test_a_run_that_is_stopped_keeps_what_was_said(session: Session) -> None:
    session.model.held("half of it")
    running = asyncio.create_task(session.run("hi"))
    await until(lambda: any(isinstance(event, TextDelta) for event in session.events))
    session.abort.abort("rpc")
    result = await running
    assert (result.outcome, result.final and result.final.text) == ("aborted", "half ")


async def test_models_that_stay_silent_share_the_time_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, clock, passed_s = ScriptedModel(), HeldClock(), 0.0
    loop = asyncio.get_running_loop()
    real_time = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_time() + passed_s)
    vendors = {
        name: {"baseUrl": "http://127.0.0.1:9", "apiKey": "k", "api": "anthropic-messages", "models": [{"id": "m"}]}
        for name in ("one", "two", "three")
    }
    names = {"primary": "one/m", "fallbacks": ["two/m", "three/m"]}
    agents = {"defaults": {"model": names, "timeoutSeconds": 1000}}
    async with gateway_parts(
        tmp_path / "state", model, clock=clock, agents=agents, models={"providers": vendors}
    ) as gateway:
        begun = SessionEntry(sessionId=SESSION_ID, updatedAt=clock.now_ms())
        await gateway.runtime.stores.sessions.update("main", KEY, lambda _: begun)
        for _ in vendors:
            model.held("")
        running = asyncio.create_task(Session(gateway, model, clock).run("hi"))
        for number, allowed_s in enumerate((750.0, 187.5, 62.5), 1):
            await model.asked(number)
            passed_s += allowed_s
        result = await asyncio.wait_for(running, 60)
    assert [request.model.provider for request in model.requests] == ["one", "two", "three"]
    assert (result.outcome, result.error, result.account.time_limit_s) == ("aborted", "timeout", 1000)


async def nearly_full(session: Session) -> None:
    """The session has said something and is so long that the agent is asked for notes before the next answer."""
    await session.run("first", run_id="one")
    full = {"totalTokens": 190_000}
    await session.gateway.runtime.stores.sessions.update(
        "main", KEY, lambda entry: SessionEntry(**{**(entry or {}), **full})
    )


async def test_the_time_for_notes_is_part_of_the_time_of_the_run(session: Session) -> None:
    await nearly_full(session)
    notes, answer = session.model.held("NO_REPLY"), session.model.held("Yes.")
    running = asyncio.create_task(session.run("second", run_id="two", timeout_seconds=1000))
    await session.model.asked(2)
    session.clock.advance(400)
    notes.set()
    await session.model.asked(3)
    assert 0 < (session.abort.time_left or 0) <= 600
    answer.set()
    assert (await running).texts == ["Yes."]


async def test_a_run_that_is_stopped_while_notes_are_written_keeps_the_message(session: Session) -> None:
    await nearly_full(session)
    session.model.held("")
    running = asyncio.create_task(session.run("second", run_id="two"))
    await session.model.asked(2)
    assert "memory/" in session.model.prompts()[-1], "the agent is asked for notes"
    session.abort.abort("stop")
    result = await running
    assert (result.outcome, result.error) == ("aborted", "stop")
    assert [user_text(one) for one in await session.messages() if isinstance(one, UserMessage)] == ["first", "second"]


async def test_a_run_that_is_stopped_during_a_compaction_ends_like_any_other(session: Session) -> None:
    for number in range(4):
        await session.run("much was said " * 4_000, run_id=f"earlier {number}")
    session.model.queue(Answer(error=ModelError("prompt is too long: 1 > 0", kind="overflow")))
    session.model.held("")
    running = asyncio.create_task(session.run("hi", run_id="last", timeout_seconds=1000))
    await session.model.asked(6)
    assert session.abort.time_left is not None, "the run's time goes on"
    session.abort.abort("stop")
    result = await running
    assert (result.outcome, result.error, result.account.time_limit_s) == ("aborted", "stop", 1000)
    entry = await session.gateway.runtime.stores.sessions.get("main", KEY)
    assert entry is not None and entry.get("abortedLastRun")


async def test_giving_up_tells_why_without_asking_a_model(session: Session) -> None:
    result = await session.run("hi", give_up="The Gateway stopped three times while it worked on this.")
    assert result.outcome == "error" and not session.model.requests
    user, answer = await session.messages()
    assert user_text(user) == "hi"  # type: ignore[arg-type]
    assert isinstance(answer, AssistantMessage) and "three times" in (answer.error_message or "")


async def test_a_run_taken_up_again_after_its_answer_was_stored_asks_nothing(session: Session) -> None:
    session.model.queue("Hello.")
    await session.run("hi")
    await session.gateway.runtime.stores.ledger.advance(1, "running", session_id=SESSION_ID)
    again = await session.run("hi")
    assert (again.outcome, again.texts) == ("ok", ["Hello."])
    assert len(session.model.requests) == 1
    assert len(await session.messages()) == 2


async def test_a_call_whose_end_a_crash_lost_is_noted_as_the_tool_reported_it(session: Session) -> None:
    ledger = session.gateway.runtime.stores.ledger

    async def lost(*_: object) -> None:
        """The process dies before this write."""

    session.model.queue(Answer(calls=[ToolCall(id="c1", name="read", arguments={"path": "missing.txt"})]))
    session.model.held()
    with patch.object(ledger, "tool_finished", lost):
        running = asyncio.create_task(session.run("look"))
        await session.model.asked(2)
        running.cancel()
        await asyncio.wait([running])
    assert [call.ok for call in await ledger.tool_calls(1)] == [None]
    await ledger.advance(1, "running", session_id=SESSION_ID)
    await session.run("look")
    assert [call.ok for call in await ledger.tool_calls(1)] == [False]


async def test_a_damaged_line_is_told_once_and_not_at_every_turn(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    transcripts = session.gateway.runtime.stores.transcripts
    path = Path(transcripts.default_path(TranscriptRef(agent_id="main", session_id=SESSION_ID)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"type":"session","version":3,"id":"s","timestamp":"t","cwd":"/"}\n{"type":"mess\n')
    for number in range(3):
        await session.run("hi", run_id=f"r{number}")
    assert len([line for line in caplog.messages if "was passed over" in line]) == 1
