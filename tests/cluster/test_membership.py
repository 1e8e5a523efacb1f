"""Nodes of one cluster: every name has one owner, and a node that was given up writes nothing more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw.cluster.claims import SCHEDULER, ClaimOwner, SoleClaims, session_name
from openclaw.storage.errors import Fenced, StorageRefused
from openclaw.storage.postgres import database
from openclaw.storage.postgres.database import PostgresDatabase, StorageUnreachable
from tests.support.postgres import postgres_server

from .one_node import MakeNode, until

MAIN = session_name("main", "agent:main:main")


async def test_a_name_has_one_owner_and_others_learn_who_it_is(node: MakeNode) -> None:
    a, b = await node(), await node()
    owners = await asyncio.gather(*(one.claims.claim(MAIN) for one in (a, b, a, b)))
    (owner,) = {one.node for one in owners}
    assert owner in (a.id, b.id) and [one.mine for one in owners] == [owner == a.id, owner == b.id] * 2
    mine, other = (a, b) if owner == a.id else (b, a)
    assert mine.claims.owns(MAIN) and not other.claims.owns(MAIN)
    assert mine.gained == [MAIN] and other.gained == []
    before = mine.claims.epoch(MAIN)
    assert before > 0 and other.claims.epoch(MAIN) == 0
    await mine.claims.release(MAIN)
    assert mine.lost == [MAIN] and await other.claims.owner(MAIN) is None
    other.claims.forget_owner(MAIN)
    assert await other.claims.claim(MAIN) == ClaimOwner(other.id, True)
    assert other.claims.epoch(MAIN) > before


async def test_a_node_that_dies_is_taken_over_and_cannot_write_any_more(node: MakeNode) -> None:
    a, b = await node(), await node()
    await a.claims.claim(MAIN)
    await a.claims.want(SCHEDULER)
    await b.claims.want(SCHEDULER)
    assert a.claims.owns(SCHEDULER) and not b.claims.owns(SCHEDULER)
    a.die()
    await until(lambda: b.claims.owns(SCHEDULER))
    assert await b.claims.claim(MAIN) == ClaimOwner(b.id, True)
    with pytest.raises(Fenced):
        await a.database.write("INSERT INTO documents (name, data) VALUES ('note', '')")
    assert a.membership.fenced
    assert await b.database.value("SELECT count(*) FROM documents") == 0
    await b.database.write("INSERT INTO documents (name, data) VALUES ('note', '')")


async def test_a_node_that_stands_still_keeps_its_sessions_until_its_lease_is_over(node: MakeNode) -> None:
    a, b = await node(lease_s=5.0), await node(lease_s=5.0)
    await a.claims.claim(MAIN)
    # An open transaction of the node that stands still must not delay the others.
    connection = await a.database.connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO documents (name, data) VALUES ('half', '')")
    a.pause()
    await b.database.write("UPDATE nodes SET lease_until = now() - interval '1 s' WHERE id = $1", a.id)
    await until(lambda: a.id not in b.membership.peers)
    assert await b.claims.claim(MAIN) == ClaimOwner(b.id, True)
    assert await b.database.value("SELECT count(*) FROM documents") == 0
    with pytest.raises(Fenced):
        await a.database.write("UPDATE sessions SET version = version")
    connection.terminate()


async def test_every_table_that_nodes_write_is_fenced(node: MakeNode) -> None:
    a = await node()
    rows = await a.database.rows("SELECT tablename FROM pg_tables WHERE schemaname = $1", a.database.schema)
    await a.database.write("UPDATE nodes SET state = 'dead', ended_at = now() WHERE id = $1", a.id)
    open_tables: set[str] = set()
    for (table,) in rows:
        try:
            await a.database.write(f"DELETE FROM {table} WHERE false")
            open_tables.add(table)
        except Fenced:
            pass
    assert open_tables == {"nodes", "secrets", "schema_version"}


async def test_a_node_that_leaves_hands_everything_on(node: MakeNode) -> None:
    a, b = await node(), await node()
    await until(lambda: b.id in a.membership.peers)
    await a.claims.want(SCHEDULER)
    await b.claims.want(SCHEDULER)
    await a.membership.drain()
    assert await a.claims.claim(MAIN) == ClaimOwner(b.id, False), "a node that leaves names another one"
    await a.claims.unwant(SCHEDULER)
    assert a.lost == [SCHEDULER]
    await until(lambda: b.claims.owns(SCHEDULER))
    await a.membership.leave()
    await until(lambda: not b.membership.peers)


async def test_what_is_given_back_while_it_is_claimed_does_not_stay(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await node(), await node()
    asks, goes_on, rows = asyncio.Event(), asyncio.Event(), a.database.rows

    async def slow(statement: str, *values: object) -> object:
        asks.set()
        await goes_on.wait()
        return await rows(statement, *values)

    monkeypatch.setattr(a.database, "rows", slow)
    wanting = asyncio.create_task(a.claims.want(SCHEDULER))
    await asks.wait()
    await a.claims.unwant(SCHEDULER)
    goes_on.set()
    await wanting
    assert not a.claims.owns(SCHEDULER)
    await b.claims.want(SCHEDULER)
    assert b.claims.owns(SCHEDULER)


async def test_a_tool_that_copies_everything_keeps_gateways_away(
    node: MakeNode, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_S", 0.2)
    tool = await PostgresDatabase.open(postgres_server().url, schema=schema)
    a = await node()
    with pytest.raises(StorageRefused, match="a Gateway uses"):
        await tool.lock_out_gateways()
    await tool.write("INSERT INTO documents (name, data) VALUES ('by a tool', '')")
    await a.membership.leave()
    await tool.close()


async def test_with_files_the_only_node_owns_everything() -> None:
    claims, heard = SoleClaims(), list[str]()

    async def hear(name: str) -> None:
        heard.append(name)

    claims.on_gained(SCHEDULER, hear)
    await claims.want(SCHEDULER)
    await claims.want(SCHEDULER)
    assert heard == [SCHEDULER] and claims.owns(MAIN) and (await claims.claim(MAIN)).mine


async def test_a_claim_whose_answer_was_lost_is_known_at_the_next_try(node: MakeNode) -> None:
    a = await node()
    await a.database.write("INSERT INTO claims (name, node) VALUES ($1, $2)", SCHEDULER, a.id)
    assert not a.claims.owns(SCHEDULER)
    await asyncio.gather(a.claims.want(SCHEDULER), a.claims.try_wanted(), a.claims.claim(SCHEDULER))
    assert a.claims.owns(SCHEDULER) and a.gained == [SCHEDULER]


async def test_a_session_whose_claim_was_not_confirmed_is_gained_although_nobody_asks_again(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await node()
    ask = a.database.row

    async def cut(*given: Any) -> None:
        await ask(*given)
        raise StorageUnreachable(ConnectionError("cut"))

    monkeypatch.setattr(a.database, "row", cut)
    with pytest.raises(StorageUnreachable):
        await a.claims.claim(MAIN)
    assert not a.claims.owns(MAIN) and await a.claims.owner(MAIN) == a.id
    await a.claims.regain()
    assert a.claims.owns(MAIN) and a.gained == [MAIN]


async def test_a_session_that_could_not_be_taken_up_is_tried_again_and_those_beside_it_stay(node: MakeNode) -> None:
    a, other, failures = await node(), session_name("main", "agent:main:other"), [OSError("locked")]

    async def take_up(name: str) -> None:
        if name == MAIN and failures:
            raise failures.pop()

    a.claims.on_gained("", take_up)
    with pytest.raises(OSError, match="locked"):
        await a.claims.claim_free([MAIN, other])
    assert a.claims.owns(other) and not a.claims.owns(MAIN)
    await a.claims.regain()
    assert a.claims.owns(MAIN)
