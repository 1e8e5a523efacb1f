"""What is special about PostgreSQL: its migrations, its transactions, and what happens when it is away."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from openclaw.messages import Route, TextBlock, UserMessage
from openclaw.storage.disk_errors import StorageError, describe_failure, is_storage_failure, refusal_text
from openclaw.storage.errors import StorageRefused
from openclaw.storage.postgres import database
from openclaw.storage.postgres.database import (
    PostgresDatabase,
    StaleWriter,
    StorageUnreachable,
    host_urls,
    shown_url,
    storage_error,
)
from openclaw.storage.postgres.session_store import PostgresSessionStore
from openclaw.storage.postgres.transcript import PostgresTranscriptStore
from openclaw.storage.transcripts import TranscriptRef
from tests.storage.conformance.messages import message
from tests.storage.conformance.stores import PostgresStores
from tests.storage.still_clock import StillClock
from tests.support.postgres import (
    USER,
    PostgresServer,
    ServerPair,
    needs_postgres,
    new_schema,
    postgres_server,
    shared_schema,
)

MAIN = "agent:main:main"
REF = TranscriptRef(agent_id="main", session_id="s")


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "message": UserMessage(content=[TextBlock(text=text)], timestamp=1)}


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[PostgresStores]:
    opened = PostgresStores(StillClock(), tmp_path, postgres_server().url, shared_schema(), begin_empty=True)
    await opened.open()
    yield opened
    await opened.close()


async def test_gateways_that_start_together_make_the_tables_once() -> None:
    url, schema = postgres_server().url, new_schema()
    opened = await asyncio.gather(*(PostgresDatabase.open(url, schema=schema, pool_size=2) for _ in range(4)))
    assert await opened[0].value("SELECT steps FROM schema_version") == len(database.STEPS)
    for one in opened:
        await one.close()


async def test_tables_of_a_newer_version_are_refused_and_left_alone() -> None:
    url, schema = postgres_server().url, new_schema()
    database = await PostgresDatabase.open(url, schema=schema)
    await database.write("UPDATE schema_version SET steps = 99")
    with pytest.raises(StorageRefused, match="newer version"):
        await PostgresDatabase.open(url, schema=schema)
    assert await database.value("SELECT steps FROM schema_version") == 99
    await database.close()


async def test_message_and_session_are_written_together_or_not_at_all(
    stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, written = await stores.sessions.write("main", MAIN, lambda _: {"sessionId": "s1"})
    with pytest.raises(TypeError):
        await stores.ledger.accept(message(route=Route(to=cast(str, object()))), after=written)
    assert await stores.database.value("SELECT count(*) FROM sessions") == 0
    assert await stores.sessions.get("main", MAIN) == entry, "it is still to be written"
    await stores.ledger.accept(message(), after=written)
    assert await stores.database.value("SELECT count(*) FROM sessions") == 1


async def test_an_answer_and_the_end_of_its_message_are_written_together_or_not_at_all(stores: PostgresStores) -> None:
    row, _ = await stores.ledger.accept(message(), step="running")
    transcript = await stores.transcripts.open(REF)
    assert transcript is not None
    await transcript.append(user("one"))
    with pytest.raises(TypeError):
        await stores.ledger.finish(row.id, "answered", result={"not": object()}, written=transcript)
    ended = await stores.ledger.get(row.id)
    assert ended is not None and ended.state == "running"
    await stores.ledger.finish(row.id, "answered", written=transcript)
    lines = await stores.database.value("SELECT count(*) FROM entries")
    assert lines == 2, "the header and the message"


async def test_a_writer_that_knows_less_than_the_database_writes_nothing(stores: PostgresStores) -> None:
    ours = await stores.transcripts.open(REF)
    assert ours is not None
    await ours.append(user("one"), durable=True)
    theirs = await PostgresTranscriptStore(stores.database, "/nowhere", clock=stores.clock).open(REF)
    assert theirs is not None
    await theirs.append(user("theirs"), durable=True)
    with pytest.raises(StaleWriter):
        await ours.append(user("ours"), durable=True)
    assert await stores.database.value("SELECT count(*) FROM entries") == 3


async def test_a_session_that_another_gateway_changed_is_changed_from_what_it_is_now(stores: PostgresStores) -> None:
    other = await PostgresSessionStore.open(stores.database)
    await stores.sessions.update("main", MAIN, lambda _: {"sessionId": "s1", "n": 1})
    await other.update("main", MAIN, lambda entry: {**(entry or {}), "n": 2})
    await stores.sessions.update("main", MAIN, lambda entry: {**(entry or {}), "m": (entry or {}).get("n")})
    assert await stores.sessions.get("main", MAIN) == {"sessionId": "s1", "n": 2, "m": 2}


def lose_confirmations(stores: PostgresStores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks after each commit, before the server can say that it was done."""
    real = stores.database._once

    async def lost(*given: Any) -> Any:
        await real(*given)
        raise StorageUnreachable(ConnectionResetError("gone"))

    monkeypatch.setattr(stores.database, "_once", lost)


async def test_lines_whose_commit_was_not_confirmed_are_not_written_twice(
    stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript = await stores.transcripts.open(REF)
    assert transcript is not None
    for number in range(2):
        lose_confirmations(stores, monkeypatch)
        with pytest.raises(StorageUnreachable):
            await transcript.append(user(f"unconfirmed {number}"), durable=True)
        monkeypatch.undo()
        await transcript.append(user(f"after {number}"), durable=True)
    again = await stores.another_reader().open(REF)
    assert again is not None
    assert [entry.id for entry in await again.path_entries()] == [entry.id for entry in await transcript.path_entries()]
    assert len(again) == 4


async def test_a_message_whose_commit_was_not_confirmed_is_new_when_it_comes_again(
    stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writing = await stores.sessions.write("main", MAIN, lambda _: {"sessionId": "s1"})
    lose_confirmations(stores, monkeypatch)
    with pytest.raises(StorageUnreachable):
        await stores.ledger.accept(message(), after=writing)
    monkeypatch.undo()
    assert [(await stores.ledger.accept(message(), after=writing))[1] for _ in range(2)] == [True, False]
    stores.clock.now += 1
    lose_confirmations(stores, monkeypatch)
    with pytest.raises(StorageUnreachable):
        await stores.ledger.accept(message())
    monkeypatch.undo()
    assert not (await stores.ledger.accept(message()))[1], "it was accepted long before"
    entry = await stores.sessions.update("main", MAIN, lambda entry: {**(entry or {}), "n": 1})
    assert entry == {"sessionId": "s1", "n": 1}


async def test_a_server_that_stops_is_reported_and_everything_goes_on_when_it_is_back(tmp_path: Path) -> None:
    server = PostgresServer(needs_postgres())
    try:
        stores = PostgresStores(StillClock(), tmp_path, server.url, new_schema())
        await stores.open()
        transcript = await stores.transcripts.open(REF)
        assert transcript is not None
        await transcript.append(user("one"), durable=True)
        await asyncio.to_thread(server.stop)
        with pytest.raises(StorageUnreachable) as refused:
            await stores.ledger.accept(message())
        assert is_storage_failure(refused.value) and "database" in describe_failure(refused.value)
        with pytest.raises(StorageUnreachable):
            await transcript.append(user("two"))
        with pytest.raises(StorageUnreachable):
            await transcript.sync()
        await asyncio.to_thread(server.start)
        await transcript.sync()
        row, new = await stores.ledger.accept(message())
        assert new and [one.id for one in await stores.ledger.unfinished()] == [row.id]
        again = await stores.another_reader().open(REF)
        assert again is not None and len(again) == 2
        await stores.close()
    finally:
        server.remove()


PASSING = {
    "08006": errno.ENOTCONN,  # connection_failure
    "25006": errno.ENOTCONN,  # read_only_sql_transaction
    "40001": errno.EBUSY,  # serialization_failure
    "40P01": errno.EBUSY,  # deadlock_detected
    "40003": errno.ENOTCONN,  # statement_completion_unknown
    "53100": errno.ENOSPC,  # disk_full
    "53200": errno.ENOMEM,  # out_of_memory
    "53300": errno.ENOTCONN,  # too_many_connections
    "55P03": errno.EBUSY,  # lock_not_available
    "57014": errno.ENOTCONN,  # query_canceled
    "57P01": errno.ENOTCONN,  # admin_shutdown
    "57P03": errno.ENOTCONN,  # cannot_connect_now
    "58030": errno.EIO,  # io_error
}


@pytest.mark.parametrize(("state", "number"), PASSING.items())
def test_a_passing_error_of_the_server_is_told_by_its_sqlstate(state: str, number: int) -> None:
    error = storage_error(asyncpg.PostgresError.new({"C": state, "M": "no"}))
    assert isinstance(error, StorageError) and error.errno == number and is_storage_failure(error)


@pytest.mark.parametrize("state", ["23505", "42501", "42P01", "P0001", "XX000"])
def test_any_other_error_of_the_server_has_its_reason_and_is_not_known_to_pass(state: str) -> None:
    error = storage_error(asyncpg.PostgresError.new({"C": state, "M": "not like this"}))
    assert isinstance(error, StorageError) and not is_storage_failure(error)
    text = refusal_text(error)
    assert text is not None and "not like this" in text and state in text


HOSTS = {
    "postgresql://u:p@a/db": ["postgresql://u:p@a/db"],
    "postgresql://u:p@a:1,b:2/db?x=1": ["postgresql://u:p@a:1/db?x=1", "postgresql://u:p@b:2/db?x=1"],
    "postgresql://[::1]:1,b/db": ["postgresql://[::1]:1/db", "postgresql://b/db"],
    "postgresql:///db?host=/a,/b": ["postgresql:///db?host=/a", "postgresql:///db?host=/b"],
    "postgresql:///db?host=a,b&port=1,2": ["postgresql:///db?host=a&port=1", "postgresql:///db?host=b&port=2"],
    "postgresql:///db?host=a,b&port=1": ["postgresql:///db?host=a&port=1", "postgresql:///db?host=b&port=1"],
}


@pytest.mark.parametrize(("url", "urls"), HOSTS.items())
def test_an_address_with_several_hosts_is_an_address_for_each(url: str, urls: list[str]) -> None:
    assert host_urls(url) == urls


def test_an_address_is_shown_without_its_password_and_with_all_its_hosts() -> None:
    assert shown_url("postgresql://u:p@a:1,b:2/db", "s") == "postgresql://a:1,b:2/db#s"


async def test_the_server_that_takes_writes_is_found_whichever_place_it_has() -> None:
    pair = await asyncio.to_thread(lambda: ServerPair(needs_postgres()))
    try:
        dead, standby, primary = "/nowhere", pair.standby.folder, pair.primary.folder
        for hosts in (f"{primary},{standby}", f"{standby},{primary}", f"{dead},{standby},{primary}"):
            opened = await PostgresDatabase.open(f"postgresql://{USER}@/postgres?host={hosts}", schema=new_schema())
            assert await opened.value("SHOW transaction_read_only") == "off"
            await opened.close()
        with pytest.raises(StorageUnreachable, match="read-only"):
            await PostgresDatabase.open(f"postgresql://{USER}@/postgres?host={dead},{standby}")
    finally:
        await asyncio.to_thread(pair.remove)


async def test_no_connection_to_a_server_that_became_read_only_is_used_again() -> None:
    opened = await PostgresDatabase.open(postgres_server().url, schema=new_schema(), pool_size=4)

    async def pids() -> set[int]:
        return set(await asyncio.gather(*(opened.value("SELECT pg_backend_pid() FROM pg_sleep(0.05)") for _ in "1234")))

    async def read_only(connection: Any) -> None:
        await connection.execute("SET LOCAL transaction_read_only = on; CREATE TABLE t (n int)")

    before = await pids()
    assert len(before) == 4
    with pytest.raises(StorageUnreachable, match="read-only"):
        await opened.transact(read_only)
    assert not before & await pids()
    await opened.close()
