"""A node that has lost one session, and still counts as a node, writes nothing more to that session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from openclaw.cluster.claims import ClaimOwner, session_name
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.message_ledger import LedgerRow, MessageBody, OutboxPart
from openclaw.storage.postgres.database import ClaimEpoch, ClaimLost, Statement
from openclaw.storage.postgres.ledger import PostgresLedger
from openclaw.storage.postgres.session_store import PostgresSessionStore
from openclaw.storage.postgres.transcript import PostgresTranscriptStore
from openclaw.storage.transcripts import Transcript, TranscriptRef
from tests.storage.conformance.messages import message
from tests.storage.still_clock import StillClock

from .one_node import MakeNode, OneNode, until

KEY = "agent:main:main"
MAIN = session_name("main", KEY)
TABLES = ("sessions", "transcripts", "entries", "messages", "story", "tool_calls", "outbox")


class WritingNode:
    """A node with its stores. It owns the main session, and a message is under way there."""

    def __init__(self, node: OneNode, folder: Path) -> None:
        self.node = node
        self._folder = folder
        self.transcript: Transcript
        self.row: LedgerRow

    async def begin(self) -> None:
        database, clock = self.node.database, StillClock()

        def claim_of(agent_id: str, key: str) -> ClaimEpoch:
            name = session_name(agent_id, key)
            return ClaimEpoch(name, self.node.claims.epoch(name))

        self.sessions = await PostgresSessionStore.open(database, claim_of)
        self.transcripts = PostgresTranscriptStore(
            database, str(self._folder), clock=clock, claim_of=self.sessions.transcript_claim
        )
        self.ledger = await PostgresLedger.open(database, clock=clock, only_reads=True, claim_of=claim_of)
        await self.node.claims.claim(MAIN)
        await self.sessions.update("main", KEY, lambda _: SessionEntry(sessionId="s", updatedAt=1))
        opened = await self.transcripts.open(TranscriptRef(agent_id="main", session_id="s"))
        assert opened is not None
        self.transcript = opened
        await self.say("one")
        self.row, _ = await self.ledger.accept(message(1), step="running")
        await self.ledger.tool_started(self.row.id, "c1", "exec", "{}")

    async def say(self, text: str) -> None:
        await self.transcript.append({"type": "message", "message": {"role": "user", "content": text}})

    async def say_soon(self, text: str) -> None:
        entry = {"type": "message", "message": {"role": "user", "content": text}}
        await self.transcript.append_all({"e-soon": entry}, soon=True)

    async def books(self) -> dict[str, list[Any]]:
        return {table: await self.node.database.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}


Write: TypeAlias = Callable[[WritingNode], Awaitable[Any]]


async def _finish_with_lines(one: WritingNode) -> None:
    await one.say_soon("the answer")
    part = OutboxPart(part=0, channel="telegram", payload={"text": "the answer"})
    await one.ledger.finish(one.row.id, "answered", outbox=[part], written=one.transcript)


def labelled(entry: SessionEntry | None) -> SessionEntry:
    return SessionEntry(**{**(entry or {}), "label": "mine"})  # type: ignore[typeddict-item]


WRITES: dict[str, Write] = {
    "a line": lambda one: one.say("two"),
    "a label": lambda one: one.transcript.label(one.transcript.leaf_id or "", "here"),
    "an answer": _finish_with_lines,
    "an end": lambda one: one.ledger.finish(one.row.id, "silent"),
    "a step": lambda one: one.ledger.advance(one.row.id, "queued"),
    "a step of a message that another process accepted": lambda one: PostgresLedger(
        one.node.database, StillClock(), lambda agent, key: ClaimEpoch(session_name(agent, key), 0)
    ).advance(one.row.id, "queued"),
    "other words": lambda one: one.ledger.absorb(one.row.id, {}, body=MessageBody(text="other")),
    "a tool call": lambda one: one.ledger.tool_started(one.row.id, "c2", "exec", "{}"),
    "the end of a tool call": lambda one: one.ledger.tool_finished(one.row.id, "c1", True),
    "a message": lambda one: one.ledger.accept(message(2)),
    "the session": lambda one: one.sessions.update("main", KEY, labelled),
}


@pytest.fixture
async def pair(node: MakeNode, tmp_path: Path) -> AsyncIterator[tuple[WritingNode, OneNode]]:
    first, second = WritingNode(await node(), tmp_path), await node()
    await first.begin()
    yield first, second


async def give_away(owner: WritingNode, to: OneNode) -> None:
    """Gives the session to a node behind the back of its owner, as a mistake in the hand-over would."""
    await to.database.write("DELETE FROM claims WHERE name = $1", MAIN)
    await to.database.write("INSERT INTO claims (name, node) VALUES ($1, $2)", MAIN, to.id)
    assert owner.node.claims.owns(MAIN), "it does not know yet"


@pytest.mark.parametrize("name", WRITES)
async def test_a_live_node_that_lost_a_session_writes_nothing_to_it(
    pair: tuple[WritingNode, OneNode], name: str
) -> None:
    owner, other = pair
    await give_away(owner, other)
    before = await owner.books()
    with pytest.raises(ClaimLost):
        await WRITES[name](owner)
    assert await owner.books() == before
    assert not owner.node.claims.owns(MAIN) and not owner.node.membership.fenced
    await owner.node.claims.claim(session_name("main", "agent:main:other"))
    await owner.ledger.accept(message(3, session_key="agent:main:other"))


async def test_every_one_of_these_writes_is_made_by_the_owner(pair: tuple[WritingNode, OneNode]) -> None:
    owner, _ = pair
    for name, write in WRITES.items():
        before = await owner.books()
        if name not in ("an end", "a step of a message that another process accepted"):
            await write(owner)
            assert await owner.books() != before, name
        if name == "an answer":
            owner.row, _ = await owner.ledger.accept(message(9), step="running")
            await owner.ledger.tool_started(owner.row.id, "c1", "exec", "{}")


async def test_what_was_begun_under_an_earlier_claim_is_not_written_under_a_later_one(
    pair: tuple[WritingNode, OneNode],
) -> None:
    owner, other = pair
    await give_away(owner, other)
    await other.database.write("DELETE FROM claims WHERE name = $1", MAIN)
    owner.node.claims._held.clear()
    assert (await owner.node.claims.claim(MAIN)).mine
    with pytest.raises(ClaimLost):
        await owner.ledger.finish(owner.row.id, "answered")
    assert (await owner.node.claims.claim(MAIN)).mine
    (left,) = await owner.ledger.unfinished(("main", KEY))  # The new claim takes it up.
    assert await owner.ledger.finish(left.id, "answered")


async def test_a_session_is_let_go_after_the_writes_that_are_under_way(pair: tuple[WritingNode, OneNode]) -> None:
    owner, other = pair
    connection = await owner.node.database.connect()
    writing = connection.transaction()
    await writing.start()
    await connection.execute("UPDATE messages SET detail = 'under way'")
    statement = Statement()
    statement.only_with(ClaimEpoch(MAIN, owner.node.claims.epoch(MAIN)))
    await statement.check(connection)
    going = asyncio.create_task(owner.node.claims.release(MAIN))
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND query LIKE 'DELETE FROM claims%'"
    )
    async with asyncio.timeout(60):
        while not await other.database.value(waiting):
            await asyncio.sleep(0.01)
    assert await other.claims.claim(MAIN) == ClaimOwner(owner.node.id, False)
    await writing.commit()
    await going
    other.claims.forget_owner(MAIN)
    assert (await other.claims.claim(MAIN)).mine
    assert await other.database.value("SELECT detail FROM messages") == "under way", "the next owner reads it"
    await connection.close()


async def test_who_is_told_that_a_name_is_its_own_owns_it_at_that_moment(node: MakeNode) -> None:
    a, b = await node(), await node()
    await until(lambda: b.id in a.membership.peers)
    ended = False

    async def let_go() -> None:
        while not ended:
            await a.claims.release(MAIN)
            await asyncio.sleep(0.002)

    letting_go = asyncio.create_task(let_go())
    for _ in range(50):
        owner = await a.claims.claim(MAIN)
        assert not owner.mine or (a.claims.owns(MAIN) and MAIN not in a.claims._changing)
        await asyncio.sleep(0)
    ended = True
    await letting_go
