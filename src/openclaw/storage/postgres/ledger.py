"""``Ledger`` in PostgreSQL. A call is one transaction, together with the transcript and the session it belongs to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw.clock import Clock
from openclaw.json_text import encode
from openclaw.messages import Route
from openclaw.storage.disk_errors import StorageError
from openclaw.storage.errors import MessageEnded, UnknownMessage
from openclaw.storage.message_ledger import (
    END_STATES,
    NO_REASON,
    Accept,
    FirstStep,
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxPart,
    Reason,
    RejectedMessage,
    SessionName,
)
from openclaw.storage.postgres.database import (
    ClaimEpoch,
    PostgresDatabase,
    Statement,
    changed,
    numbered,
    without_nul,
)
from openclaw.storage.postgres.session_store import PendingWrite
from openclaw.storage.postgres.transcript import PostgresTranscript
from openclaw.storage.sessions import Writing
from openclaw.storage.sql_ledger import (
    ACCEPT_COLUMNS,
    MOST_REJECTED,
    SELECT_MESSAGES,
    SEND_AGAIN,
    SqlLedger,
    absorbed_result,
    accept_values,
    accepted_row,
    add_pending,
    check_end,
    decode_route,
    is_time_to_prune,
    message_of,
)
from openclaw.storage.transcripts import Transcript

if TYPE_CHECKING:
    from openclaw.storage.postgres.database import Connection

T = TypeVar("T")
MOST_DOUBTFUL = 1_000
MOST_CLAIMS = 50_000
_ACCEPT = f"INSERT INTO messages ({', '.join(ACCEPT_COLUMNS)}) SELECT {', '.join('?' * len(ACCEPT_COLUMNS))}"
_END = "UPDATE messages SET state = ?, code = ?, detail = ?, ended_at = ?, result = ? WHERE id = ? AND ended_at IS NULL"
_PARTS = (
    "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
    " SELECT ended.id, ended.run_id, part.number, part.channel, ended.route, part.payload, 'pending', ? FROM ended,"
    " unnest(?::integer[], ?::text[], ?::bytea[]) WITH ORDINALITY AS part (number, channel, payload, place)"
    " ORDER BY part.place"
)
_TOOL_CALL = "INSERT INTO tool_calls (ledger_id, call_id, name, arguments, started_at) SELECT ?, ?, ?, ?, ?"
_SEEN = "ON CONFLICT (key) DO UPDATE SET at = EXCLUDED.at, step = DEFAULT"


class PostgresLedger(SqlLedger):
    """``claim_of`` tells the claim under which this node writes to a session: the agent and the session key.

    What happens to a message is written under the claim of its session only. Tools that are no node have none.
    """

    _as_inserted = "step"
    _bytes_within = "pg_catalog.position"

    def __init__(
        self, database: PostgresDatabase, clock: Clock, claim_of: Callable[[str, str], ClaimEpoch] | None = None
    ) -> None:
        super().__init__(clock)
        self._database = database
        self._claim_of = claim_of
        self._claims: OrderedDict[int, ClaimEpoch] = OrderedDict()
        """The claims under which unfinished messages were accepted or resumed here."""
        self._doubtful: dict[tuple[str, int], None] = {}
        """The runs of messages whose commit was not confirmed, and when they were to be accepted.

        If one comes again and was accepted at that time, it is new.
        """

    @classmethod
    async def open(
        cls,
        database: PostgresDatabase,
        *,
        clock: Clock,
        only_reads: bool = False,
        claim_of: Callable[[str, str], ClaimEpoch] | None = None,
    ) -> PostgresLedger:
        """Opens the ledger. A part that was being sent becomes pending again, with one doubt more.

        With ``only_reads`` nothing is changed, because another Gateway may be sending it.
        """
        if not only_reads:
            await database.write(SEND_AGAIN)
        return cls(database, clock, claim_of)

    async def accept(
        self,
        message: Accept,
        *,
        step: FirstStep | None = None,
        reason: Reason = NO_REASON,
        after: Writing | None = None,
    ) -> tuple[LedgerRow, bool]:
        now = self._clock.now_ms()

        async def work(connection: Connection, statement: Statement) -> tuple[LedgerRow, bool]:
            claim = self._claim_of(message.agent_id, message.session_key) if self._claim_of is not None else None
            statement.only_with(claim)
            row, new = await _accept(connection, statement, message, step, reason, now)
            self._remember_claim(row.id, claim)
            return row, new

        try:
            row, new = await self._together(work, after)
        except StorageError:
            self._doubtful[message.run_id, now] = None
            for oldest in list(self._doubtful)[: len(self._doubtful) - MOST_DOUBTFUL]:
                del self._doubtful[oldest]
            raise
        if not new and (row.run_id, row.accepted_at) in self._doubtful:
            del self._doubtful[row.run_id, row.accepted_at]
            return row, True
        return row, new

    async def advance(
        self, ledger_id: int, state: MessageState, reason: Reason = NO_REASON, *, session_id: str | None = None
    ) -> None:
        if state in END_STATES:
            raise ValueError(f"'{state}' ends a message: use finish")
        now, starting = self._clock.now_ms(), state == "running"
        noted = (reason.code, without_nul(reason.detail))

        async def work(connection: Connection) -> None:
            if ended := await _end_of(connection, self._owned(ledger_id), ledger_id):
                raise MessageEnded(f"message {ledger_id} has ended ({ended}) and cannot become '{state}'")
            await connection.execute(
                "UPDATE messages SET state = $2, code = $3, detail = $4, attempts = attempts + $5,"
                " session_id = coalesce($6, session_id),"
                " started_at = CASE WHEN $7 THEN coalesce(started_at, $8) ELSE started_at END WHERE id = $1",
                *(ledger_id, state, *noted, int(starting), session_id, starting, now),
            )
            await connection.execute(
                "INSERT INTO story (ledger_id, step, at, state, code, detail)"
                " SELECT $1, coalesce(max(step), 0) + 1, $2, $3, $4, $5 FROM story WHERE ledger_id = $1",
                *(ledger_id, now, state, *noted),
            )

        await self._database.transact(work)

    async def finish(
        self,
        ledger_id: int,
        state: MessageState,
        *,
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
        outbox: Sequence[OutboxPart] = (),
        written: Transcript | None = None,
    ) -> bool:
        check_end(ledger_id, state, outbox)
        now = self._clock.now_ms()

        async def work(connection: Connection, statement: Statement) -> bool:
            self._owned(ledger_id, statement)
            return await _finish(connection, statement, ledger_id, state, reason, result, outbox, now)

        ended = await self._together(work, written)
        self._claims.pop(ledger_id, None)
        return ended

    async def post(
        self,
        message: Accept,
        outbox: Sequence[OutboxPart],
        *,
        state: MessageState = "answered",
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
    ) -> tuple[LedgerRow, bool]:
        check_end(0, state, outbox)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> tuple[LedgerRow, bool]:
            row, new = await _accept(connection, Statement(), message, None, NO_REASON, now)
            if new:
                await _finish(connection, Statement(), row.id, state, reason, result, outbox, now)
                row = message_of(await _one(connection, f"{SELECT_MESSAGES} WHERE id = $1", row.id))
            return row, new

        return await self._database.transact(work)

    async def absorb(self, into: int, others: Mapping[int, Reason], *, body: MessageBody) -> None:
        now = self._clock.now_ms()

        async def work(connection: Connection) -> None:
            if ended := await _end_of(connection, self._owned(into), into):
                raise MessageEnded(f"message {into} has ended ({ended}) and can take no other in")
            changing = "UPDATE messages SET body = $2 WHERE id = $1 RETURNING run_id"
            run_id = str(await connection.fetchval(changing, into, encode(body)))
            for other, reason in others.items():
                result = absorbed_result(reason, run_id)
                await _finish(connection, Statement(), other, "superseded", reason, result, (), now)

        await self._database.transact(work)

    async def seen(self, key: str, ttl_ms: int, keep: int, *, remember: bool = True) -> bool:
        if not key:
            return False
        now, name = self._clock.now_ms(), without_nul(key)

        async def work(connection: Connection) -> bool:
            # Redeliveries that arrive together wait for each other, so that one of them is new.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('openclaw-seen/' || $1, 0))", name)
            at = await connection.fetchval("SELECT at FROM seen WHERE key = $1", name)
            is_known = at is not None and now - at < ttl_ms
            if is_known or remember:
                await connection.execute(f"INSERT INTO seen (key, at) VALUES ($1, $2) {_SEEN}", name, now)
            if not is_known and (remember or is_time_to_prune(key)):
                await connection.execute("DELETE FROM seen WHERE at <= $1", now - ttl_ms)
                newest_to_go = "SELECT step FROM seen ORDER BY step DESC LIMIT 1 OFFSET $1"
                await connection.execute(f"DELETE FROM seen WHERE step <= ({newest_to_go})", max(0, keep))
            return is_known

        return await self._database.transact(work)

    async def tool_started(
        self, ledger_id: int, call_id: str, name: str, arguments: str, *, written: Transcript | None = None
    ) -> None:
        values = (ledger_id, without_nul(call_id), without_nul(name), without_nul(arguments), self._clock.now_ms())

        async def work(connection: Connection, statement: Statement) -> None:
            self._owned(ledger_id, statement)
            statement.add("noted", f"{_TOOL_CALL}{statement.where} ON CONFLICT DO NOTHING", *values)
            await statement.run(connection, "1")

        await self._together(work, written)

    async def tool_finished(self, ledger_id: int, call_id: str, ok: bool) -> None:
        values = (self._clock.now_ms(), ok, ledger_id, without_nul(call_id))

        async def work(connection: Connection, statement: Statement) -> None:
            self._owned(ledger_id, statement)
            update = "UPDATE tool_calls SET finished_at = ?, ok = ? WHERE ledger_id = ? AND call_id = ?"
            statement.add("noted", update, *values)
            await statement.run(connection, "1")

        await self._together(work, None)

    async def unfinished(self, session: SessionName | None = None) -> list[LedgerRow]:
        claim = self._claim_of(*session) if session is not None and self._claim_of is not None else None
        rows = await super().unfinished(session)
        for row in rows:
            self._remember_claim(row.id, claim)
        return rows

    async def unowned(self, limit: int) -> list[SessionName]:
        """Returns sessions that have messages without an end, and that no node owns.

        Each node gets them in another order, so that those who ask together take different ones.
        """
        rows = await self._database.rows(
            "SELECT agent_id, session_key FROM messages WHERE ended_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM claims WHERE name = 'session:' || agent_id || ':' || session_key)"
            " GROUP BY agent_id, session_key ORDER BY hashtext($2 || session_key) LIMIT $1",
            *(limit, self._database.node),
        )
        return [(agent, key) for agent, key in rows]

    async def note_rejected(self, note: RejectedMessage) -> None:
        names = [without_nul(name) for name in (note.message_id, note.channel, note.chat)]
        now = self._clock.now_ms()

        async def work(connection: Connection) -> None:
            again = await connection.fetchval(
                "INSERT INTO turned_away (message_id, channel, chat, code, sender, detail, count, first_at, last_at)"
                " VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $7) ON CONFLICT (message_id, channel, chat, code)"
                " DO UPDATE SET count = turned_away.count + 1, last_at = $7 RETURNING count",
                *(*names, note.code, without_nul(note.sender), without_nul(note.detail), now),
            )
            if again == 1:
                newest_to_go = "SELECT step FROM turned_away ORDER BY step DESC LIMIT 1 OFFSET $1"
                await connection.execute(f"DELETE FROM turned_away WHERE step <= ({newest_to_go})", MOST_REJECTED)

        await self._database.transact(work)

    async def add_pending(self, position: str, message_id: str, message: bytes, *, keep: int) -> None:
        statements = add_pending(position, message_id, message, keep)

        async def work(connection: Connection) -> None:
            for statement, values in statements:
                await connection.execute(numbered(statement), *map(_column, values))

        await self._database.transact(work)

    async def outbox_reclaim(self, channel: str, mine: Callable[[Route], bool]) -> None:
        select = "SELECT id, route FROM outbox WHERE state = 'sending' AND channel = $1"
        rows = await self._database.rows(select, channel)
        part_ids = [row["id"] for row in rows if mine(decode_route(row["route"]))]
        if part_ids:
            await self._database.write(f"{SEND_AGAIN} AND id = ANY ($1)", part_ids)

    async def prune(self, before_ms: int, *, most: int = 200) -> int:
        async def work(connection: Connection) -> int:
            undelivered = "SELECT 1 FROM outbox WHERE ledger_id = messages.id AND state IN ('pending', 'sending')"
            rows = await connection.fetch(
                "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE ended_at < $1"
                f" AND NOT EXISTS ({undelivered}) LIMIT $2) RETURNING id",
                *(before_ms, most),
            )
            gone = [row[0] for row in rows]
            for table in ("story", "tool_calls", "outbox"):
                await connection.execute(f"DELETE FROM {table} WHERE ledger_id = ANY ($1)", gone)
            await connection.execute("DELETE FROM jobs WHERE ended_at < $1", before_ms)
            return len(gone)

        return await self._database.transact(work)

    def _remember_claim(self, ledger_id: int, claim: ClaimEpoch | None) -> None:
        if claim is not None and claim.epoch:
            self._claims[ledger_id] = claim
            while len(self._claims) > MOST_CLAIMS:
                self._claims.popitem(last=False)

    def _owned(self, ledger_id: int, statement: Statement | None = None) -> Statement:
        """Lets a statement write only while this node owns the session of the message."""
        statement = statement or Statement()
        if (claim := self._claims.get(ledger_id)) is not None:
            statement.only_with(claim)
        elif self._claim_of is not None:
            statement.only_with_message(ledger_id)
        return statement

    async def close(self) -> None:
        """Nothing is kept open here. Whoever opened the database closes it."""

    async def _rows(self, statement: str, *values: Any) -> Sequence[Any]:
        return await self._database.rows(numbered(statement), *map(_column, values))

    async def _write(self, statement: str, *values: Any) -> int:
        return await self._database.write(numbered(statement), *map(_column, values))

    async def _write_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> list[int]:
        async def work(connection: Connection) -> list[int]:
            made = numbered(statement)
            return [changed(await connection.execute(made, *map(_column, row))) for row in rows]

        return await self._database.transact(work)

    async def _together(
        self, work: Callable[[Connection, Statement], Awaitable[T]], written: Writing | Transcript | None
    ) -> T:
        """Does the work in one statement with what must be written before it."""
        if isinstance(written, PostgresTranscript | PendingWrite):
            return await self._database.once(work, written)
        if written is not None:
            await written.sync()
        return await self._database.once(work)


async def _accept(
    connection: Connection, statement: Statement, message: Accept, step: FirstStep | None, reason: Reason, now: int
) -> tuple[LedgerRow, bool]:
    values = map(_column, accept_values(message, step, reason, now))
    accept = f"{_ACCEPT}{statement.where} ON CONFLICT DO NOTHING RETURNING id"
    statement.add("accepted", accept, *values)
    if keys := list(dict.fromkeys(without_nul(key) for key in message.dedupe_keys if key)):
        remember = f"INSERT INTO seen (key, at) SELECT key, ? FROM unnest(?::text[]) AS key{statement.where} {_SEEN}"
        statement.add("remembered", remember, now, keys)
        statement.add("release_held", f"DELETE FROM held WHERE key = ANY(?::text[]){statement.also}", keys)
    if message.pending:
        release = f"DELETE FROM held WHERE step = ANY(?::bigint[]) AND EXISTS (SELECT FROM accepted){statement.also}"
        statement.add("told", release, list(message.pending))
    ledger_id = (await statement.run(connection, "(SELECT id FROM accepted)"))[0]
    if ledger_id is not None:
        return accepted_row(message, ledger_id, now), True
    existing = await connection.fetchrow(f"{SELECT_MESSAGES} WHERE run_id = $1", without_nul(message.run_id))
    if existing is None:
        by_key = f"{SELECT_MESSAGES} WHERE dedupe_key = $1 AND dedupe_key <> ''"
        existing = await _one(connection, by_key, without_nul(message.dedupe_key))
    return message_of(existing), False


async def _finish(
    connection: Connection,
    statement: Statement,
    ledger_id: int,
    state: MessageState,
    reason: Reason,
    result: dict[str, Any] | None,
    parts: Sequence[OutboxPart],
    now: int,
) -> bool:
    stored = None if result is None else encode(result)
    noted = (state, reason.code, without_nul(reason.detail), now, stored, ledger_id)
    statement.add("ended", f"{_END}{statement.also} RETURNING id, run_id, route", *noted)
    if parts:
        columns = ([part.part for part in parts], [part.channel for part in parts])
        statement.add("parts", _PARTS, now, *columns, [encode(part.payload) for part in parts])
    if (await statement.run(connection, "(SELECT id FROM ended)"))[0] is None:
        await _end_of(connection, Statement(), ledger_id)  # Raises if the message does not exist.
        return False
    return True


async def _end_of(connection: Connection, statement: Statement, ledger_id: int) -> str | None:
    """Returns how the message has ended, and locks it."""
    statement.add("found", "SELECT state, ended_at FROM messages WHERE id = ? FOR UPDATE", ledger_id)
    state, ended_at = (await statement.run(connection, "(SELECT state FROM found), (SELECT ended_at FROM found)"))[:2]
    if state is None:
        raise UnknownMessage(f"the ledger has no message {ledger_id}")
    return state if ended_at is not None else None


async def _one(connection: Connection, statement: str, *values: Any) -> Any:
    row = await connection.fetchrow(statement, *values)
    if row is None:
        raise LookupError("the message has just been removed")
    return row


def _column(value: Any) -> Any:
    """A value as a column takes it."""
    return without_nul(value) if isinstance(value, str) else value
