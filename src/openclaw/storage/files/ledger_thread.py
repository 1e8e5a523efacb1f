"""One thread that owns the ledger's connection. Operations that wait together are committed together."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from openclaw.storage import faults
from openclaw.storage.files.disk import AppendFile
from openclaw.storage.files.gathering import Gathering
from openclaw.storage.files.ledger_schema import LedgerError, open_ledger

Result = TypeVar("Result")


class Apart(Exception):
    """One of several operations is not as the others: they have to be done one after the other."""


class Joint(msgspec.Struct):
    """An operation that can be done in one statement with others of its kind, in whatever order with other kinds.

    The interpreter is handed from thread to thread around every statement, which costs more than the statement.
    """

    def __call__(self, db: sqlite3.Connection) -> Any:
        raise NotImplementedError

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[Any]) -> list[Any]:
        """The result of each. Raises ``Apart`` when one of them would not do what most do."""
        raise NotImplementedError


Operation: TypeAlias = Callable[[sqlite3.Connection], Any]
_Job: TypeAlias = tuple[Operation, "asyncio.Future[Any]"]
_MOST_TOGETHER = 16
"""Everyone whose operation was committed goes on at the same moment: more at once would stall the event loop."""
_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
}


class LedgerThread:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._asked: Gathering[_Job] = Gathering(self._jobs.put)
        self._thread: threading.Thread | None = None

    async def start(self, now_ms: int) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread = threading.Thread(target=self._work, args=(now_ms, opened), name="openclaw-ledger", daemon=True)
        self._thread.start()
        await opened

    async def run(
        self, operation: Callable[[sqlite3.Connection], Result], *, after: AppendFile | None = None
    ) -> Result:
        """The operation's result, once what it wrote is on disk.

        ``after``: a file that must be on disk before. One thread hands over to the other: the loop is asked once.
        """
        if self._thread is None:
            raise LedgerError(f"the ledger {self._path} is closed")
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if after is not None and not after.is_durable:
            return await after.sync_into(done, lambda: self._jobs.put([(operation, done)]))
        self._asked.add((operation, done))
        return await done

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.now()
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    # In the thread

    def _work(self, now_ms: int, opened: asyncio.Future[None]) -> None:
        try:
            connection = open_ledger(self._path, now_ms)
        except (OSError, sqlite3.Error) as error:
            _settle([(opened, None, error)])
            return
        _settle([(opened, None, None)])
        with contextlib.closing(connection):
            for jobs in self._batches():
                _settle(self._commit_together(connection, jobs))

    def _batches(self) -> Iterator[list[_Job]]:
        """What is committed together, in the order it was asked for, until the ledger is closed."""
        waiting: list[_Job] = []
        while (asked := self._jobs.get()) is not None:
            waiting += asked
            while len(waiting) >= _MOST_TOGETHER or (waiting and self._jobs.empty()):
                yield waiting[:_MOST_TOGETHER]
                del waiting[:_MOST_TOGETHER]
        if waiting:
            yield waiting

    def _commit_together(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
        """All in one transaction. When the database refuses one, each gets a transaction of its own."""
        try:
            try:
                return self._transact(connection, jobs, _jointly)
            except Apart:
                return self._transact(connection, jobs, _one_by_one)
        except sqlite3.Error as error:
            if len(jobs) == 1:
                return [(jobs[0][1], None, self._explain(error))]
        except Exception as error:
            # The thread outlives every operation; whoever asked is told what went wrong.
            if len(jobs) == 1:
                return [(jobs[0][1], None, error)]
        return [outcome for job in jobs for outcome in self._commit_together(connection, [job])]

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job], perform: _Perform) -> list[_Outcome]:
        changes = connection.total_changes
        try:
            connection.execute("BEGIN")
            outcomes = perform(connection, jobs)
            self._commit(connection, written=connection.total_changes != changes)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            raise
        return outcomes

    def _commit(self, connection: sqlite3.Connection, *, written: bool) -> None:
        if written:
            faults.point("commit.before")
            faults.write(self._path)
        connection.execute("COMMIT")
        if written:
            faults.point("commit.after")

    def _explain(self, error: sqlite3.Error) -> LedgerError:
        explained = LedgerError(f"the ledger {self._path} could not be written or read: {error}")
        # So that whoever asked can tell a disk that is full for now from a mistake.
        explained.errno = _ERRNO.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        return explained


_Outcome: TypeAlias = "tuple[asyncio.Future[Any], Any, BaseException | None]"
_Perform: TypeAlias = Callable[[sqlite3.Connection, list[_Job]], list[_Outcome]]


def _jointly(connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for joint, neighbours in groupby(jobs, lambda job: isinstance(job[0], Joint)):
        run = list(neighbours)
        outcomes += _in_few_statements(connection, run) if joint and len(run) > 1 else _one_by_one(connection, run)
    return outcomes


def _in_few_statements(connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
    kinds: dict[type[Any], list[Any]] = {}
    for operation, _ in jobs:
        kinds.setdefault(type(operation), []).append(operation)
    results = {kind: iter(kind.together(connection, operations)) for kind, operations in kinds.items()}
    return [(done, next(results[type(operation)]), None) for operation, done in jobs]


def _one_by_one(connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for operation, done in jobs:
        before = connection.total_changes
        try:
            outcomes.append((done, operation(connection), None))
        except (ValueError, LookupError) as refusal:
            # Refused before it wrote anything, the others are not touched; otherwise it all goes back.
            if connection.total_changes != before:
                raise
            outcomes.append((done, None, refusal))
    return outcomes


def _settle(outcomes: list[_Outcome]) -> None:
    def tell() -> None:
        for future, result, error in outcomes:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    # A closed loop has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        outcomes[0][0].get_loop().call_soon_threadsafe(tell)
