"""Every ledger call of a message's life raises every kind of error, and every message still gets one end.

``RULES`` has a row for each method of the ledger. A new method without a row fails the first test.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from openclaw.cluster.claims import SoleClaims
from openclaw.gateway.gateway import Gateway
from openclaw.messages import (
    AssistantMessage,
    Route,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    user_text,
)
from openclaw.models.base import ModelRequest, OnEvent, Text
from openclaw.runs.queue_settings import QueueSettings
from openclaw.storage.disk_errors import UNKNOWN_TRIES, StorageError
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.message_ledger import END_STATES, Accept, JobRow, Ledger, LedgerRow, MessageBody
from openclaw.storage.questions import Question
from openclaw.teamwork.send import Jobs
from tests.support.clock import HastyClock
from tests.support.gateway import RequestFailed, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway, gateway_parts
from tests.support.loopback_channel import Loopback
from tests.support.model_server import ModelServer
from tests.support.postgres import new_schema, postgres_server
from tests.support.scripted_model import ScriptedModel

Rule: TypeAlias = Literal["tried again", "refused", "left out", "question", "job", "approval"]
RULES: dict[str, Rule] = {
    # The sender learns that the message was not stored, and sends it again.
    **dict.fromkeys(("accept", "post", "hold", "seen"), "refused"),
    # The call is made again until it succeeds.
    **dict.fromkeys(("advance", "finish", "absorb", "tool_started", "tool_finished", "tool_calls"), "tried again"),
    **dict.fromkeys(("history", "unfinished", "held", "release_held"), "tried again"),
    **dict.fromkeys(("outbox_due", "outbox_waiting", "outbox_mark", "outbox_of"), "tried again"),
    **dict.fromkeys(("outbox_add", "outbox_reclaim"), "tried again"),
    # The message does not depend on it.
    **dict.fromkeys(("count_held_attempt", "note_rejected"), "left out"),
    # Somebody asks about messages, changes one that waits, or the Gateway cleans up. No message waits for it.
    **dict.fromkeys(("by_run", "get", "recent", "by_message_id", "rejected", "runs_beginning"), "question"),
    **dict.fromkeys(("prune", "update_held", "outbox_depth", "outbox_parts", "outbox_retry", "close"), "question"),
    # A message of a group is not accepted then, and comes again. Nobody writes in a group here.
    **dict.fromkeys(("add_pending", "pending"), "question"),
    # The end of a question that another end came before is looked up.
    "question": "question",
    # A call that needs a person's answer may fail of it, and what was allowed never begins twice.
    **dict.fromkeys(("question_open", "question_end", "question_act", "question_acted", "questions"), "approval"),
    # Jobs have ends of their own.
    **dict.fromkeys(("job", "jobs", "job_put"), "job"),
}
LIFE = [name for name, rule in RULES.items() if rule not in ("question", "job", "approval")]
APPROVAL = [name for name, rule in RULES.items() if rule == "approval"]
KEY = "agent:main:main"


def ledger_methods() -> set[str]:
    return {name for part in Ledger.__mro__ for name, value in vars(part).items() if _is_method(name, value)}


def _is_method(name: str, value: object) -> bool:
    return not name.startswith("_") and callable(value)


def test_every_method_of_the_ledger_has_a_rule() -> None:
    assert ledger_methods() == set(RULES)


class Unknown(Exception):
    """An error that no code names."""


KINDS: dict[str, Callable[[str], Exception]] = {
    "unknown": Unknown,
    # The code catches some errors of these types and means others.
    "value": ValueError,
    "key": KeyError,
    "os": OSError,
    "timeout": TimeoutError,
    # Known to pass.
    "locked": lambda problem: StorageError(problem, errno.EBUSY),
}
REFUSED = (Unknown, ValueError, KeyError, OSError)


class Failing:
    """Makes one method of a ledger raise, the first times that it is called."""

    def __init__(self, method: str, times: int, kind: str = "unknown") -> None:
        self.method = method
        self.error = KINDS[kind]
        self.left = times
        self.hits = 0

    def watch(self, ledger: Ledger) -> None:
        call: Callable[..., Awaitable[Any]] = getattr(ledger, self.method)

        async def failing(*args: Any, **named: Any) -> Any:
            if self.left > 0:
                self.left, self.hits = self.left - 1, self.hits + 1
                raise self.error(f"{self.method} failed")
            return await call(*args, **named)

        setattr(ledger, self.method, failing)


class WillingModel(ScriptedModel):
    """Says ``done``. A prompt with ``look`` makes it call a tool first, and one with ``hold`` makes it wait."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.holds = 0

    async def answer(self, request: ModelRequest, agent_id: str, on_event: OnEvent) -> AssistantMessage:
        self.requests.append(request)
        last = next(one for one in reversed(request.messages) if isinstance(one, UserMessage))
        looked = isinstance(request.messages[-1], ToolResultMessage)
        if "hold" in user_text(last) and not looked:
            self.holds += 1
            await self.go_on.wait()
        calls = [ToolCall(id=f"c{len(request.messages)}", name="read", arguments={"path": "a.txt"})]
        if "run" in user_text(last):
            calls = [ToolCall(id="c1", name="exec", arguments={"command": "echo ran >> ran.txt"})]
        asked = calls if {"look", "run"} & {*user_text(last).split()} and not looked else []
        on_event(Text("done"))
        return AssistantMessage(
            content=[TextBlock(text="done"), *asked],
            provider=request.model.provider,
            model=request.model.id,
            stop_reason="toolUse" if asked else "stop",
            usage=Usage(input=100, output=10, total_tokens=110),
        )


class Life:
    """A Gateway with people on a channel, which is closed and opened again in the middle of what they said."""

    def __init__(self, state: Path, failing: Failing, storage: dict[str, Any]) -> None:
        self.state = state
        self.failing = failing
        self.storage = storage
        self.people = Loopback()
        self.clock = HastyClock()
        self.accepted: set[str] = set()

    @asynccontextmanager
    async def gateway(self) -> AsyncGenerator[tuple[Gateway, WillingModel]]:
        model = WillingModel()
        parts = gateway_parts(
            self.state,
            model,
            clock=self.clock,
            channel=self.people,
            channels={self.people.id: {"allowFrom": ["ann"], "blockStreaming": True}},
            commands={"ownerAllowFrom": ["loopback:ann"]},
            messages={"inbound": {"byChannel": {"loopback": 500}}},
            agents={"defaults": {"verboseDefault": "on"}},
            **self.storage,
        )
        async with parts as gateway:
            self.failing.watch(gateway.runtime.stores.ledger)
            await _until_done(lambda: gateway.cluster.find_unfinished(gateway.runs, after_orderly_stop=False))
            await _until_done(lambda: gateway.cluster.start("ws://127.0.0.1:9"))
            await gateway.pipeline.recover()
            await _until_done(gateway.runtime.tools.questions.load)
            gateway.runs.start_unfinished()
            await gateway.channel_services.start()
            await self.people.until(lambda: bool(self.people.lives))
            yield gateway, model

    async def say(self, text: str, sender: str = "ann") -> None:
        """A person writes on the channel, and the platform delivers it until the Gateway takes it."""
        inbound = self.people.inbound(text, sender=sender)
        await _until_done(lambda: self.people.lives["default"].context.receive(inbound))

    async def send(self, gateway: Gateway, name: str, mode: Any, **settings: Any) -> None:
        """A client sends a message until it is accepted."""
        await _until_done(lambda: gateway.runtime.stores.claims.claim(f"session:main:{KEY}"))
        asked = QueueSettings(mode=mode, debounce_ms=100, **settings)
        await _until_done(lambda: gateway.runs.submit(client_message(name), asked))
        self.accepted.add(name)


def client_message(name: str) -> Accept:
    return Accept(
        run_id=name,
        dedupe_key=f"webchat|{name}",
        agent_id="main",
        session_key=KEY,
        session_id="11111111-1111-4111-8111-111111111111",
        source="webchat",
        route=Route(channel="webchat"),
        body=MessageBody(prompt=name),
    )


async def _until_done(work: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(*REFUSED):
                await work()
                return
            await asyncio.sleep(0.01)


async def _all_ended(gateway: Gateway, count: int) -> list[LedgerRow]:
    ledger = gateway.runtime.stores.ledger
    async with asyncio.timeout(60):
        while True:
            rows = await _read(lambda: ledger.recent(limit=200))
            parts = await _read(lambda: ledger.outbox_parts(["pending", "sending"]))
            if len(rows) >= count and all(row.ended_at for row in rows) and not parts:
                return rows
            await asyncio.sleep(0.02)


async def _read(question: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        with contextlib.suppress(*REFUSED):
            return await question()


async def live(life: Life) -> list[LedgerRow]:
    """Accept, queue, collect, steer, drop, refuse, stop, call a tool, carry out a command, restart twice, deliver."""
    async with life.gateway() as (gateway, model):
        await life.say("look at this")
        await life.say("/status")
        await life.say("let me in", "eve")
        await life.send(gateway, "hold-1", "followup")
        await _until_done(lambda: _held(model, 1))
        await life.send(gateway, "steered", "steer")
        await life.send(gateway, "again", "steer-backlog")
        for name in ("c1", "c2", "c3"):
            await life.send(gateway, name, "collect", cap=3)
        await life.send(gateway, "refused", "collect", cap=1, drop="new")
        await life.send(gateway, "stopped", "followup")
        await _until_done(lambda: gateway.runs.abort(KEY, "stopped"))
        model.go_on.set()
        await _all_ended(gateway, 8)
        model.go_on.clear()
        await life.send(gateway, "look hold-2", "followup")
        await _until_done(lambda: _held(model, 2))
        await life.send(gateway, "waits", "followup")
        await life.say("and this")
        left = life.people.inbound("left behind")
        await _until_done(lambda: gateway.pipeline.held.persist(left))
    for _ in range(2):
        async with life.gateway() as (gateway, model):
            await _until_done(lambda model=model: _held(model, 1))
    async with life.gateway() as (gateway, model):
        model.go_on.set()
        await life.send(gateway, "last", "interrupt")
        rows = await _all_ended(gateway, len(life.accepted) + 5)
        life.failing.left = 0
        for row in rows:
            states = [change.state for change in await gateway.runtime.stores.ledger.history(row.id)]
            assert sum(state in END_STATES for state in states) == 1, f"{row.run_id}: {states}"
        assert life.accepted <= {row.run_id for row in rows}
        return rows


async def _held(model: WillingModel, count: int) -> None:
    if model.holds < count:
        raise Unknown("not yet")


TIMES = 3
LONG = 2 * UNKNOWN_TRIES + 5
"""So often that an end cannot be written as it should be, and then not with a notice."""
CASES = [
    *((method, TIMES, kind, "files") for method in LIFE for kind in KINDS),
    *((method, TIMES, "unknown", "postgres") for method in LIFE),
    *((method, LONG, "unknown", store) for method in ("finish", "advance") for store in ("files", "postgres")),
]


@pytest.mark.parametrize(("method", "times", "kind", "store"), CASES)
async def test_every_message_gets_one_end(tmp_path: Path, method: str, times: int, kind: str, store: str) -> None:
    storage = {"storage": {"url": postgres_server().url, "schema": new_schema()}} if store == "postgres" else {}
    life = Life(tmp_path / "state", Failing(method, times, kind), storage)
    rows = await live(life)
    only_nodes = method == "outbox_reclaim" and store == "files"  # Nobody else can have been sending a part.
    assert life.failing.hits or only_nodes, f"no message's life calls {method}"
    failed = {row.run_id: row.reason.detail for row in rows if row.state == "failed" and row.run_id != "refused"}
    assert not failed or times == LONG, f"a short failure of {method} ended messages: {failed}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", APPROVAL)
@pytest.mark.parametrize("store", ["files", "postgres"])
async def test_a_run_that_asks_a_person_gets_one_end(tmp_path: Path, method: str, kind: str, store: str) -> None:
    storage: dict[str, Any] = {"tools": {"exec": {"host": "gateway", "ask": "always"}}}
    if store == "postgres":
        storage["storage"] = {"url": postgres_server().url, "schema": new_schema()}
    life = Life(tmp_path / "state", Failing(method, 1, kind), storage)
    ran = tmp_path / "state" / "workspace" / "ran.txt"
    async with life.gateway() as (gateway, _):
        await life.send(gateway, "run it", "followup")
        await _asked_or_ended(gateway)
        assert not ran.exists()
    async with life.gateway() as (gateway, _):
        for question in await _asked_or_ended(gateway):
            await _until_done(lambda id=question.id: gateway.runtime.tools.questions.answer(id, "allow-once"))
        (row,) = await _all_ended(gateway, 1)
        assert life.failing.hits, f"no approval calls {method}"
        states = [change.state for change in await gateway.runtime.stores.ledger.history(row.id)]
        assert (row.state, sum(state in END_STATES for state in states)) == ("answered", 1)
    begins = method not in ("question_open", "question_act")
    assert (ran.read_text() if ran.exists() else "") == ("ran\n" if begins else "")


async def _asked_or_ended(gateway: Gateway) -> list[Question]:
    """The open questions, once there are any or the run has ended."""
    async with asyncio.timeout(60):
        while True:
            rows = await _read(lambda: gateway.runtime.stores.ledger.recent(limit=200))
            questions = gateway.runtime.tools.questions.open_questions()
            if questions or all(row.ended_at for row in rows):
                return questions
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sender_learns_why_a_message_was_refused(tmp_path: Path, kind: str) -> None:
    async with ModelServer() as models:
        gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
        async with gateway, gateway.client() as client:
            Failing("accept", 1, kind).watch(gateway.gateway.runtime.stores.ledger)
            with pytest.raises(RequestFailed, match=r"not done: .*accept failed.*try again"):
                await client.chat("hello [[reply:done]]", run_id="a")
            assert text_of(await client.chat("hello [[reply:done]]", run_id="a")) == "done"


@pytest.mark.parametrize("comes_again", [False, True])
@pytest.mark.parametrize("store", ["files", "postgres"])
async def test_a_message_that_was_stored_although_its_sender_was_refused_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, comes_again: bool
) -> None:
    storage = {"storage": {"url": postgres_server().url, "schema": new_schema()}} if store == "postgres" else {}
    life, failures = Life(tmp_path / "state", Failing("accept", 0), storage), [Unknown("the answer was lost")]
    async with life.gateway() as (gateway, model):
        ledger = gateway.runtime.stores.ledger
        accept = ledger.accept

        async def lost(*args: Any, **named: Any) -> Any:
            accepted = await accept(*args, **named)
            if failures:
                raise failures.pop()
            return accepted

        monkeypatch.setattr(ledger, "accept", lost)
        await gateway.runtime.stores.claims.claim(f"session:main:{KEY}")
        with pytest.raises(StorageError, match="the answer was lost"):
            await gateway.runs.submit(client_message("a"))
        if comes_again:
            await life.send(gateway, "a", "followup")
        rows = await _all_ended(gateway, 1)
        assert [(row.run_id, row.state) for row in rows] == [("a", "answered")]
        assert len(model.requests) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [TIMES, LONG])
async def test_a_job_gets_its_end(tmp_path: Path, kind: str, times: int) -> None:
    clock = HastyClock()
    ledger = await FileLedger.open(str(tmp_path), clock=clock)
    jobs, carried = Jobs(ledger, clock, SoleClaims()), list[str]()
    job = JobRow(id="j", kind="test", owner_key=KEY, run_id="r", trace="t", state={}, created_at=clock.now_ms())

    async def carry_on(job: JobRow) -> None:
        await jobs.save(job)
        carried.append(job.id)

    jobs.add_kind("test", carry_on)
    await jobs.save(job)
    Failing("job_put", times, kind).watch(ledger)
    assert await jobs.resume() == 1
    async with asyncio.timeout(60):
        while await ledger.jobs(ended=False):
            await asyncio.sleep(0.01)
    assert carried == ["j"]
    await jobs.close()
    await ledger.close()
