"""From an accepted message to the end of its run: queue modes, steering, stopping, and what a restart takes up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.gateway import Gateway
from openclaw.messages import Route, ToolCall
from openclaw.models.base import ModelError
from openclaw.runs.accept import Submission
from openclaw.runs.queue_settings import QueueSettings
from openclaw.runs.recovery import EXPIRY_MS
from openclaw.runs.runs import Runs
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import Accept, LedgerRow, MessageBody
from tests.support.clock import HeldClock, until
from tests.support.gateway_in_process import gateway_parts
from tests.support.scripted_model import Answer, ScriptedModel

KEY = "agent:main:main"
FOLLOWUP = QueueSettings(mode="followup")
COLLECT = QueueSettings(mode="collect", debounce_ms=1000)
STEER = QueueSettings(mode="steer")


class Stage:
    """`Runs` on real stores, the model it asks, and the clock both live by."""

    def __init__(self, gateway: Gateway, model: ScriptedModel, clock: HeldClock) -> None:
        self.gateway = gateway
        self.runs: Runs = gateway.runs
        self.model = model
        self.clock = clock

    async def send(
        self, name: str, settings: QueueSettings = FOLLOWUP, *, key: str = KEY, route: Route | None = None
    ) -> Submission:
        """A message whose text is its name."""
        message = Accept(
            run_id=name,
            dedupe_key=f"webchat|{name}",
            agent_id="main",
            session_key=key,
            session_id="11111111-1111-4111-8111-111111111111",
            source="webchat",
            route=route or Route(channel="webchat"),
            body=MessageBody(prompt=name),
        )
        return await self.runs.submit(message, settings)

    async def end(self, name: str) -> LedgerRow:
        """The row of a message whose run has ended."""
        await self.runs.index.wait(name, 10)
        row = await self.gateway.runtime.stores.ledger.by_run(name)
        assert row is not None
        return row

    async def states(self, *names: str) -> list[str]:
        return [(await self.end(name)).state for name in names]


@asynccontextmanager
async def stage(state: Path, model: ScriptedModel, clock: HeldClock, **config: Any) -> AsyncGenerator[Stage]:
    async with gateway_parts(state, model, clock=clock, **config) as gateway:
        yield Stage(gateway, model, clock)


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
async def on(tmp_path: Path, model: ScriptedModel, clock: HeldClock) -> AsyncGenerator[Stage]:
    async with stage(tmp_path / "state", model, clock) as made:
        yield made


async def test_a_message_is_answered_and_its_row_says_so(on: Stage) -> None:
    on.model.queue("Hello.")
    sent = await on.send("hi")
    assert (sent.new, sent.queued) == (True, False)
    row = await on.end("hi")
    assert (row.state, row.attempts, (row.result or {})["text"]) == ("answered", 1, "Hello.")
    assert (await on.runs.index.wait("hi", 0)).status == "ok"
    assert not on.runs.occupied(KEY)


async def test_a_known_id_starts_nothing(on: Stage) -> None:
    await on.send("hi")
    await on.end("hi")
    again = await on.send("hi")
    assert (again.new, again.queued, again.row.state) == (False, False, "answered")
    assert len(on.model.requests) == 1


async def test_followups_wait_for_their_turn_in_the_order_they_came(on: Stage) -> None:
    hold = on.model.held()
    assert not (await on.send("one")).queued
    await on.model.asked(1)
    assert (await on.send("two")).queued and (await on.send("three")).queued
    assert [run.run_id for run in on.runs.waiting(KEY)] == ["two", "three"]
    hold.set()
    assert await on.states("one", "two", "three") == ["answered"] * 3
    assert [on.model.prompts(number)[-1] for number in range(3)] == ["one", "two", "three"]


async def test_sessions_do_not_wait_for_each_other(on: Stage) -> None:
    hold = on.model.held()
    await on.send("one")
    await on.model.asked(1)
    await on.send("other", key="agent:main:other")
    assert (await on.end("other")).state == "answered"
    assert on.runs.busy() == 1
    hold.set()
    await on.end("one")


async def test_collected_messages_become_one_turn_after_a_pause(on: Stage) -> None:
    hold = on.model.held()
    await on.send("one", COLLECT)
    await on.model.asked(1)
    await on.send("two", COLLECT)
    on.clock.advance(0.6)
    await on.send("three", COLLECT)
    hold.set()
    await on.end("one")
    on.clock.advance(0.6)
    await asyncio.sleep(0.02)
    assert len(on.model.requests) == 1, "the person has not paused long enough"
    on.clock.advance(0.4)
    assert await on.states("two", "three") == ["superseded", "answered"]
    asked = on.model.prompts()[-1]
    assert asked.startswith("[Queued messages while agent was busy]")
    assert asked.index("two") < asked.index("three")
    assert ((await on.end("two")).result or {})["answeredBy"] == "three"
    assert len(on.model.requests) == 2


async def test_messages_for_different_places_are_not_collected_into_one_answer(on: Stage) -> None:
    hold = on.model.held()
    await on.send("one", COLLECT)
    await on.model.asked(1)
    await on.send("ann", COLLECT, route=Route(channel="webchat", to="ann"))
    await on.send("bob", COLLECT, route=Route(channel="webchat", to="bob"))
    on.clock.advance(2)
    hold.set()
    assert await on.states("ann", "bob") == ["answered", "answered"]
    for number, name in ((1, "ann"), (2, "bob")):
        asked = on.model.prompts(number)[-1]
        assert asked == f"[Queued messages while agent was busy]\n\n---\nQueued #1\n{name}"


async def test_a_steered_message_is_taken_into_the_run_after_its_tool_calls(on: Stage) -> None:
    hold = asyncio.Event()
    on.model.queue(Answer("looking", calls=[ToolCall(id="c1", name="read", arguments={"path": "a.txt"})], hold=hold))
    await on.send("one", STEER)
    await on.model.asked(1)
    assert (await on.send("rather b", STEER)).queued
    hold.set()
    assert await on.states("one", "rather b") == ["answered", "superseded"]
    assert on.model.prompts()[-1].endswith("rather b")
    assert ((await on.end("rather b")).result or {})["answeredBy"] == "one"
    assert len(on.model.requests) == 2


async def test_what_is_steered_into_the_last_words_of_a_run_gets_a_turn(on: Stage) -> None:
    hold = on.model.held("the end")
    await on.send("one", STEER)
    await on.model.asked(1)
    await on.send("two", STEER)
    hold.set()
    states = await on.states("one", "two")
    assert states[0] == "answered" and states[1] in ("answered", "superseded")
    assert on.model.prompts()[-1].endswith("two")


async def test_steer_backlog_also_gives_the_message_a_turn_of_its_own(on: Stage) -> None:
    hold = asyncio.Event()
    on.model.queue(Answer("looking", calls=[ToolCall(id="c1", name="read", arguments={"path": "a.txt"})], hold=hold))
    await on.send("one", STEER)
    await on.model.asked(1)
    await on.send("two", QueueSettings(mode="steer-backlog"))
    hold.set()
    assert await on.states("one", "two", "two:backlog") == ["answered", "superseded", "answered"]
    assert len(on.model.requests) == 3


async def test_steer_backlog_steers_every_message_and_gives_each_a_turn(on: Stage) -> None:
    hold, backlog = asyncio.Event(), QueueSettings(mode="steer-backlog", debounce_ms=0)
    on.model.queue(Answer("looking", calls=[ToolCall(id="c1", name="read", arguments={"path": "a.txt"})], hold=hold))
    await on.send("one", STEER)
    await on.model.asked(1)
    for name in ("two", "three", "four"):
        assert (await on.send(name, backlog)).queued
    hold.set()
    assert await on.states("one", "two", "three", "four") == ["answered", *["superseded"] * 3]
    assert await on.states("two:backlog", "three:backlog", "four:backlog") == ["answered"] * 3
    assert on.model.prompts(3) == ["one", "two", "three", "four"]
    assert on.model.prompts() == ["one", "two", "three", "four", "two", "three", "four"]


async def test_steer_backlog_answers_once_what_the_run_did_not_take_in(on: Stage) -> None:
    on.model.held()
    await on.send("one", STEER)
    await on.model.asked(1)
    await on.send("two", QueueSettings(mode="steer-backlog", debounce_ms=0))
    await on.runs.abort(KEY, "one")
    assert await on.states("one", "two", "two:backlog") == ["superseded", "answered", "superseded"]
    assert len(on.model.requests) == 2


async def test_interrupting_stops_the_run_and_goes_next(on: Stage) -> None:
    on.model.held()
    await on.send("one")
    await on.model.asked(1)
    await on.send("now", QueueSettings(mode="interrupt"))
    assert (await on.end("now")).state == "answered"
    assert (await on.end("one")).state == "superseded"


async def test_a_full_queue_lets_the_oldest_go_and_tells_the_agent_their_beginnings_in_a_turn_of_its_own(
    on: Stage,
) -> None:
    settings = QueueSettings(mode="followup", cap=2, drop="summarize")
    hold = on.model.held()
    await on.send("zero", settings)
    await on.model.asked(1)
    for text in ("one", "two", "three", "four"):
        await on.send(text, settings)
    hold.set()
    assert await on.states("one", "two", "three", "four") == ["superseded", "superseded", "answered", "answered"]
    told = "[Queue overflow] Dropped 2 messages due to cap.\nSummary:\n- one\n- two"
    assert on.model.prompts()[1:] == [told, "three", "four"]


async def test_a_stop_while_the_agent_is_told_of_dropped_messages_stops_what_waits_too(on: Stage) -> None:
    settings = QueueSettings(mode="followup", cap=1, drop="summarize")
    hold = on.model.held()
    await on.send("one", settings)
    await on.model.asked(1)
    await on.send("two", settings)
    await on.send("three", settings)
    on.model.held()
    hold.set()
    await on.model.asked(2)
    await on.runs.abort(KEY)
    assert await on.states("three:overflow", "three") == ["superseded", "superseded"]
    assert len(on.model.requests) == 2


async def test_what_was_dropped_is_told_once_although_a_crash_came_between(on: Stage) -> None:
    settings = QueueSettings(mode="followup", cap=1, drop="summarize")
    await on.send("three:overflow")
    assert await on.states("three:overflow") == ["answered"]
    hold = on.model.held()
    await on.send("one", settings)
    await on.model.asked(2)
    await on.send("two", settings)
    await on.send("three", settings)
    hold.set()
    assert await on.states("three") == ["answered"]
    assert on.model.prompts()[1:] == ["one", "three"]


async def test_a_full_queue_that_keeps_the_old_refuses_the_new(on: Stage) -> None:
    settings = QueueSettings(mode="followup", cap=1, drop="new")
    hold = on.model.held()
    await on.send("one", settings)
    await on.model.asked(1)
    await on.send("two", settings)
    await on.send("three", settings)
    assert (await on.end("three")).state == "failed"
    hold.set()
    assert (await on.end("two")).state == "answered"


async def test_a_full_queue_refuses_the_new_one_that_cannot_be_steered_past_those_that_wait(on: Stage) -> None:
    hold = on.model.held()
    await on.send("one", QueueSettings(mode="followup", cap=1, drop="new"))
    await on.model.asked(1)
    await on.send("two", QueueSettings(mode="followup", cap=1, drop="new"))
    await on.send("three", QueueSettings(mode="steer", cap=1, drop="new"))
    assert (await on.end("three")).state == "failed"
    hold.set()
    assert (await on.end("two")).state == "answered"


async def test_aborting_stops_what_runs_and_what_waits(on: Stage) -> None:
    on.model.held("never said")
    for name in ("one", "two", "three"):
        await on.send(name)
    await on.model.asked(1)
    assert await on.runs.abort(KEY, "two") == ["two"]
    assert await on.runs.abort(KEY) == ["one", "three"]
    assert (await on.runs.index.wait("one", 10)).status == "error"
    for name in ("two", "three"):
        await on.end(name)
    await until(lambda: not on.runs.occupied(KEY))
    assert await on.runs.abort(KEY) == []
    assert len(on.model.requests) == 1
    await on.send("four")
    assert (await on.end("four")).state == "answered"


async def test_a_promoted_message_goes_next(on: Stage) -> None:
    hold = on.model.held()
    for name in ("one", "two", "three"):
        await on.send(name)
    await on.model.asked(1)
    assert on.runs.promote(KEY, "three") and not on.runs.promote(KEY, "one")
    hold.set()
    await on.states("two", "three")
    assert [on.model.prompts(number)[-1] for number in range(3)] == ["one", "three", "two"]


async def test_housekeeping_waits_for_the_run_before_it_and_keeps_those_after_it_waiting(on: Stage) -> None:
    done: list[str] = []

    async def keep_house() -> None:
        done.append(f"after {len(on.model.requests)}")
        await asyncio.sleep(0.01)

    hold = on.model.held()
    await on.send("one")
    await on.model.asked(1)
    keeping = asyncio.create_task(on.runs.exclusively(KEY, keep_house))
    await asyncio.sleep(0)
    await on.send("two")
    assert not done
    hold.set()
    await keeping
    await on.end("two")
    assert done == ["after 1"]


async def test_only_so_many_runs_at_a_time(tmp_path: Path, model: ScriptedModel, clock: HeldClock) -> None:
    agents = {"defaults": {"model": "mock/mock-1", "maxConcurrent": 2}}
    async with stage(tmp_path / "state", model, clock, agents=agents) as on:
        holds = [model.held() for _ in range(3)]
        for number in range(3):
            await on.send(f"m{number}", key=f"agent:main:s{number}")
        await model.asked(2)
        await asyncio.sleep(0.02)
        assert len(model.requests) == 2
        for hold in holds:
            hold.set()
        assert await on.states("m0", "m1", "m2") == ["answered"] * 3


async def test_a_model_that_refuses_ends_the_message_once_with_its_words(on: Stage) -> None:
    on.model.queue(Answer(error=ModelError("the key was revoked", kind="auth")))
    await on.send("hi")
    row = await on.end("hi")
    assert row.state == "failed" and "the key was revoked" in row.reason.detail
    assert (await on.runs.index.wait("hi", 0)).status == "error"


# After a restart


async def test_what_had_begun_goes_on_first_and_what_waited_follows(
    tmp_path: Path, model: ScriptedModel, clock: HeldClock
) -> None:
    followup = {"messages": {"queue": {"mode": "followup"}}}
    async with stage(tmp_path / "state", model, clock, **followup) as on:
        model.held()
        for name in ("one", "two", "three"):
            await on.send(name)
        await model.asked(1)
    model.queue("1", "2", "3")
    async with stage(tmp_path / "state", model, clock) as on:
        assert await on.runs.find_unfinished() == 3
        assert not on.model.requests[1:], "nothing runs before the Gateway listens"
        on.runs.start_unfinished()
        assert await on.states("one", "two", "three") == ["answered"] * 3
        assert [((await on.end(name)).result or {})["text"] for name in ("one", "two", "three")] == ["1", "2", "3"]
    assert [model.prompts(number)[-1] for number in (1, 2, 3)] == ["one", "two", "three"]


async def test_what_waited_is_collected_after_a_restart_but_not_what_had_begun(
    tmp_path: Path, model: ScriptedModel, clock: HeldClock
) -> None:
    async with stage(tmp_path / "state", model, clock) as on:
        model.held()
        for name in ("one", "two", "three"):
            await on.send(name, COLLECT)
        await model.asked(1)
    async with stage(tmp_path / "state", model, clock) as on:
        await on.runs.find_unfinished()
        on.runs.start_unfinished()
        assert (await on.end("one")).state == "answered"
        clock.advance(1)
        assert await on.states("two", "three") == ["superseded", "answered"]
    assert model.prompts(1)[-1] == "one"
    assert model.prompts(2)[-1].startswith("[Queued messages while agent was busy]")


async def test_a_message_sent_after_a_restart_waits_behind_what_was_left(
    tmp_path: Path, model: ScriptedModel, clock: HeldClock
) -> None:
    async with stage(tmp_path / "state", model, clock) as on:
        model.held()
        await on.send("old")
        await model.asked(1)
    hold = model.held()
    async with stage(tmp_path / "state", model, clock) as on:
        await on.runs.find_unfinished()
        assert (await on.send("new")).queued
        on.runs.start_unfinished()
        await model.asked(2)
        hold.set()
        assert await on.states("old", "new") == ["answered", "answered"]
    assert [model.prompts(number)[-1] for number in (1, 2)] == ["old", "new"]


async def test_what_is_a_day_old_is_not_run_but_ends_with_a_notice(
    tmp_path: Path, model: ScriptedModel, clock: HeldClock
) -> None:
    async with stage(tmp_path / "state", model, clock) as on:
        model.held()
        await on.send("old")
        await model.asked(1)
    clock.advance(EXPIRY_MS / 1000 + 1)
    async with stage(tmp_path / "state", model, clock) as on:
        await on.runs.find_unfinished()
        on.runs.start_unfinished()
        row = await on.end("old")
        assert row.state == "expired"
        assert (await on.runs.index.wait("old", 0)).status == "error"
    assert len(model.requests) == 1


async def test_stopping_in_the_middle_costs_a_message_no_try(
    tmp_path: Path, model: ScriptedModel, clock: HeldClock
) -> None:
    for number in itertools.count(1):
        model.held()
        async with stage(tmp_path / "state", model, clock) as on:
            await on.runs.find_unfinished()
            on.runs.start_unfinished()
            if number == 1:
                await on.send("hi")
            await model.asked(number)
        if number == 5:
            break
    model.queue("at last")
    async with stage(tmp_path / "state", model, clock) as on:
        await on.runs.find_unfinished()
        on.runs.start_unfinished()
        row = await on.end("hi")
        assert (row.state, (row.result or {})["text"]) == ("answered", "at last")


async def test_who_waits_for_a_session_that_another_node_took_over_is_told(on: Stage) -> None:
    on.model.held()
    await on.send("one")
    await on.model.asked(1)

    async def keep_house() -> None:
        raise AssertionError("another node owns the session")

    keeping = asyncio.create_task(on.runs.exclusively(KEY, keep_house))
    await asyncio.sleep(0)
    on.runs.drop_session(KEY)
    with pytest.raises(Fenced):
        await asyncio.wait_for(keeping, 10)


async def test_a_steered_message_of_a_session_that_was_lost_and_comes_back_is_answered(on: Stage) -> None:
    on.model.held()
    await on.send("one")
    await on.model.asked(1)
    await on.send("two", STEER)
    on.runs.drop_session(KEY)
    assert await on.runs.find_unfinished(session=("main", KEY)) == 2
    on.runs.start_unfinished(KEY)
    assert (await on.end("one")).state == "answered"
    on.clock.advance(60)
    assert (await on.end("two")).state == "answered"
