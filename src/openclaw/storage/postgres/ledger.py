"""``Ledger`` in PostgreSQL. A call is one transaction, together with the transcript and the session it belongs to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from openclaw.clock import Clock
from openclaw.json_text import encode
from openclaw.storage import faults
from openclaw.storage.base import (
    END_STATES,
    NO_REASON,
    Accept,
    DeliveryCode,
    FirstStep,
    HeldMessage,
    JobRow,
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxPart,
    OutboxRow,
    PartState,
    Reason,
    ReasonCode,
    SessionName,
    StateChange,
    ToolCallRow,
    Transcript,
    TurnedAway,
    Writing,
)
from openclaw.storage.ledger_rows import (
    ACCEPT_COLUMNS,
    SELECT_MESSAGES,
    SELECT_PARTS,
    SELECT_TOOL_CALLS,
    accept_fields,
    accept_values,
    message_of,
    part_of,
    reason_of,
    tool_call_of,
)
from openclaw.storage.postgres.database import (
    ClaimEpoch,
    PostgresDatabase,
    Statement,
    StorageUnreachable,
    changed,
    without_nul,
)
from openclaw.storage.postgres.session_store import PendingWrite
from openclaw.storage.postgres.transcript import PostgresTranscript

if TYPE_CHECKING:
    from openclaw.storage.postgres.database import Connection

T = TypeVar("T")
LOOKED_THROUGH = 20_000
"""How many of the latest messages a search by state or by the channel's id may read."""
MOST_TURNED_AWAY = 5_000
MOST_DOUBTFUL = 1_000
MOST_CLAIMS = 50_000
_COLUMNS = (*ACCEPT_COLUMNS, "accepted_at", "state", "code", "detail", "attempts", "started_at")
_ACCEPT = f"INSERT INTO messages ({', '.join(_COLUMNS)}) SELECT {', '.join('?' for _ in _COLUMNS)}"
_END = "UPDATE messages SET state = ?, code = ?, detail = ?, ended_at = ?, result = ? WHERE id = ? AND ended_at IS NULL"
_PARTS = (
    "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
    " SELECT ended.id, ended.run_id, part.number, part.channel, ended.route, part.payload, 'pending', ? FROM ended,"
    " unnest(?::integer[], ?::text[], ?::bytea[]) WITH ORDINALITY AS part (number, channel, payload, place)"
    " ORDER BY part.place"
)
_TOOL_CALL = "INSERT INTO tool_calls (ledger_id, call_id, name, arguments, started_at) SELECT ?, ?, ?, ?, ?"
_ADD_PART = (
    "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
    " SELECT id, run_id, (SELECT coalesce(max(part) + 1, 0) FROM outbox WHERE ledger_id = messages.id),"
    " $2, route, $3, 'pending', $4 FROM messages WHERE id = $1 AND ended_at IS NULL"
)
_SEEN = "ON CONFLICT (key) DO UPDATE SET at = EXCLUDED.at, step = DEFAULT"


class PostgresLedger:
    """``claim_of`` tells the claim under which this node writes to a session: the agent and the session key.

    What happens to a message is written under the claim of its session only. Tools that are no node have none.
    """

    def __init__(
        self, database: PostgresDatabase, clock: Clock, claim_of: Callable[[str, str], ClaimEpoch] | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._claim_of = claim_of
        self._claims: OrderedDict[int, ClaimEpoch] = OrderedDict()
        """The claims under which unfinished messages were accepted or taken up here."""
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
            await database.write(
                "UPDATE outbox SET state = 'pending', doubts = doubts + 1, error = '' WHERE state = 'sending'"
            )
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
        except StorageUnreachable:
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
                raise ValueError(f"message {ledger_id} has ended ({ended}) and cannot become '{state}'")
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
        if state not in END_STATES:
            raise ValueError(f"'{state}' does not end a message: use advance")
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
        now = self._clock.now_ms()

        async def work(connection: Connection) -> tuple[LedgerRow, bool]:
            row, new = await _accept(connection, Statement(), message, None, NO_REASON, now)
            if new:
                await _finish(connection, Statement(), row.id, state, reason, result, outbox, now)
                row = message_of(tuple(await _one(connection, f"{SELECT_MESSAGES} WHERE id = $1", row.id)))
            return row, new

        return await self._database.transact(work)

    async def absorb(self, into: int, others: Mapping[int, Reason], *, body: MessageBody) -> None:
        now = self._clock.now_ms()

        async def work(connection: Connection) -> None:
            if ended := await _end_of(connection, self._owned(into), into):
                raise ValueError(f"message {into} has ended ({ended}) and can take no other in")
            changing = "UPDATE messages SET body = $2 WHERE id = $1 RETURNING run_id"
            run_id = await connection.fetchval(changing, into, encode(body))
            for other, reason in others.items():
                result = {"answeredBy": run_id} if reason.code is ReasonCode.COLLECTED else None
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
            known = at is not None and now - at < ttl_ms
            if known or remember:
                await connection.execute(f"INSERT INTO seen (key, at) VALUES ($1, $2) {_SEEN}", name, now)
            if not known and remember:
                await connection.execute("DELETE FROM seen WHERE at <= $1", now - ttl_ms)
                newest_to_go = "SELECT step FROM seen ORDER BY step DESC LIMIT 1 OFFSET $1"
                await connection.execute(f"DELETE FROM seen WHERE step <= ({newest_to_go})", max(0, keep))
            return known

        return await self._database.transact(work)

    async def hold(self, key: str, message: bytes) -> None:
        insert = "INSERT INTO held (key, message) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        await self._database.write(insert, without_nul(key), message)

    async def held(self) -> list[HeldMessage]:
        rows = await self._database.rows("SELECT key, message, attempts FROM held ORDER BY step")
        return [HeldMessage(key=key, message=message, attempts=attempts) for key, message, attempts in rows]

    async def held_tried(self, key: str) -> None:
        await self._database.write("UPDATE held SET attempts = attempts + 1 WHERE key = $1", without_nul(key))

    async def let_go(self, keys: Sequence[str]) -> None:
        await self._database.write("DELETE FROM held WHERE key = ANY ($1)", [without_nul(key) for key in keys])

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

    async def tool_calls(self, ledger_id: int) -> list[ToolCallRow]:
        rows = await self._database.rows(f"{SELECT_TOOL_CALLS} WHERE ledger_id = $1 ORDER BY step", ledger_id)
        return [tool_call_of(tuple(row)) for row in rows]

    async def by_run(self, run_id: str) -> LedgerRow | None:
        return next(iter(await self._messages("WHERE run_id = $1", without_nul(run_id))), None)

    async def get(self, ledger_id: int) -> LedgerRow | None:
        return next(iter(await self._messages("WHERE id = $1", ledger_id)), None) if 0 < ledger_id < 2**63 else None

    async def story(self, ledger_id: int) -> list[StateChange]:
        rows = await self._database.rows(
            "SELECT at, state, code, detail FROM story WHERE ledger_id = $1 ORDER BY step", ledger_id
        )
        return [StateChange(at=at, state=state, reason=reason_of(code, detail)) for at, state, code, detail in rows]

    async def unfinished(self, session: SessionName | None = None) -> list[LedgerRow]:
        if session is None:
            return await self._messages("WHERE ended_at IS NULL ORDER BY id")
        claim = self._claim_of(*session) if self._claim_of is not None else None
        of_session = "WHERE ended_at IS NULL AND agent_id = $1 AND session_key = $2 ORDER BY id"
        found = await self._messages(of_session, *map(without_nul, session))
        for row in found:
            self._remember_claim(row.id, claim)
        return found

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

    async def recent(
        self, *, session_key: str | None = None, state: MessageState | None = None, limit: int = 50
    ) -> list[LedgerRow]:
        tests: list[str] = []
        values: list[Any] = [max(0, limit)]
        if session_key is not None:
            values.append(without_nul(session_key))
            tests.append(f"session_key = ${len(values)}")
        if state is not None:
            # Without a bound, the search for a rare state would read every message.
            values += [state, LOOKED_THROUGH]
            tests.append(f"state = ${len(values) - 1}")
            tests.append(f"id > (SELECT coalesce(max(id), 0) FROM messages) - ${len(values)}::bigint")
        where = f"WHERE {' AND '.join(tests)}" if tests else ""
        return await self._messages(f"{where} ORDER BY id DESC LIMIT $1", *values)

    async def runs_beginning(self, prefix: str, limit: int = 10) -> list[LedgerRow]:
        condition = "WHERE run_id >= $1 AND run_id < $2 ORDER BY run_id LIMIT $3"
        name = without_nul(prefix)
        return await self._messages(condition, name, f"{name}\U0010ffff", max(0, limit))

    async def by_message_id(self, message_id: str) -> LedgerRow | None:
        latest = "id > (SELECT coalesce(max(id), 0) FROM messages) - $1::bigint"
        condition = f"WHERE {latest} AND position($2::bytea IN body) > 0 ORDER BY id DESC LIMIT 50"
        rows = await self._messages(condition, LOOKED_THROUGH, encode(message_id))
        return next((row for row in rows if message_id in row.body.message_ids), None)

    async def turn_away(self, note: TurnedAway) -> None:
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
                await connection.execute(f"DELETE FROM turned_away WHERE step <= ({newest_to_go})", MOST_TURNED_AWAY)

        await self._database.transact(work)

    async def turned_away(self, message_ids: Sequence[str]) -> list[TurnedAway]:
        names = TurnedAway.__struct_fields__
        select = f"SELECT {', '.join(names)} FROM turned_away WHERE message_id = ANY ($1) ORDER BY first_at, step"
        rows = await self._database.rows(select, [without_nul(one) for one in message_ids])
        return [msgspec.convert(dict(row), TurnedAway) for row in rows]

    async def job_put(self, job: JobRow) -> None:
        names = JobRow.__struct_fields__
        values = [encode(job.state) if name == "state" else getattr(job, name) for name in names]
        marks = ", ".join(f"${number}" for number in range(1, len(names) + 1))
        replaced = ", ".join(f"{name} = EXCLUDED.{name}" for name in names if name != "id")
        insert = f"INSERT INTO jobs ({', '.join(names)}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {replaced}"
        await self._database.write(insert, *values)

    async def job(self, job_id: str) -> JobRow | None:
        return next(iter(await self._jobs("WHERE id = $1", without_nul(job_id))), None)

    async def jobs(
        self,
        *,
        kind: str | None = None,
        owner_key: str | None = None,
        run_id: str | None = None,
        trace: str | None = None,
        ended: bool | None = None,
        limit: int = 1000,
    ) -> list[JobRow]:
        asked = {"kind": kind, "owner_key": owner_key, "run_id": run_id, "trace": trace}
        given = {name: without_nul(value) for name, value in asked.items() if value is not None}
        tests = [f"{name} = ${number}" for number, name in enumerate(given, start=2)]
        if ended is not None:
            tests.append(f"ended_at IS {'NOT ' if ended else ''}NULL")
        where = f"WHERE {' AND '.join(tests)} " if tests else ""
        return await self._jobs(f"{where}ORDER BY created_at, step LIMIT $1", max(0, limit), *given.values())

    async def _jobs(self, condition: str, *values: Any) -> list[JobRow]:
        names = ", ".join(JobRow.__struct_fields__)
        rows = await self._database.rows(f"SELECT {names} FROM jobs {condition}", *values)
        return [JobRow(**{**dict(row), "state": msgspec.json.decode(row["state"])}) for row in rows]

    async def outbox_due(self, now_ms: int, limit: int = 100) -> list[OutboxRow]:
        return await self._parts(
            "WHERE state = 'pending' AND next_at <= $1 ORDER BY next_at, id LIMIT $2", now_ms, max(0, limit)
        )

    async def outbox_depth(self) -> int:
        return await self._database.value("SELECT count(*) FROM outbox WHERE state = 'pending'")

    async def outbox_of(self, ledger_id: int) -> list[OutboxRow]:
        return await self._parts("WHERE ledger_id = $1 ORDER BY part", ledger_id)

    async def outbox_parts(
        self, states: Sequence[PartState], *, channel: str | None = None, limit: int = 100
    ) -> list[OutboxRow]:
        wanted = "WHERE state = ANY ($1) AND ($2::text IS NULL OR channel = $2) ORDER BY id DESC LIMIT $3"
        return await self._parts(wanted, list(states), channel, max(0, limit))

    async def outbox_again(self, outbox_ids: Sequence[int]) -> int:
        return await self._database.write(
            "UPDATE outbox SET state = 'pending', attempts = 0, next_at = 0, error = '', doubts = least(doubts, 1),"
            " code = '', created_at = $1 WHERE state = 'dead' AND id = ANY ($2)",
            *(self._clock.now_ms(), list(outbox_ids)),
        )

    async def outbox_add(self, ledger_id: int, parts: Sequence[OutboxPart]) -> bool:
        now = self._clock.now_ms()

        async def work(connection: Connection) -> bool:
            added = [
                changed(await connection.execute(_ADD_PART, ledger_id, part.channel, encode(part.payload), now))
                for part in parts
            ]
            return all(added)

        stored = await self._database.transact(work)
        faults.point("outbox.added")
        return stored

    async def outbox_take_back(self, channel: str, mine: Callable[[dict[str, Any]], bool]) -> None:
        select = "SELECT id, route FROM outbox WHERE state = 'sending' AND channel = $1"
        rows = await self._database.rows(select, channel)
        found = [row["id"] for row in rows if mine(msgspec.json.decode(row["route"]))]
        if found:
            await self._database.write(
                "UPDATE outbox SET state = 'pending', doubts = doubts + 1, error = ''"
                " WHERE state = 'sending' AND id = ANY ($1)",
                found,
            )

    async def outbox_mark(
        self,
        outbox_id: int,
        state: Literal["pending", "sending", "sent", "dead"],
        *,
        next_at: int = 0,
        error: str = "",
        doubts: int = 0,
        code: DeliveryCode = DeliveryCode.NONE,
        message_id: str = "",
    ) -> bool:
        values = (state, int(state == "sending"), next_at, without_nul(error), doubts, code, without_nul(message_id))
        marked = await self._database.write(
            "UPDATE outbox SET state = $2, attempts = attempts + $3, next_at = $4, error = $5, doubts = $6, code = $7,"
            " message_id = $8 WHERE id = $1" + (" AND state NOT IN ('sent', 'dead')" if state == "sending" else ""),
            *(outbox_id, *values),
        )
        if not marked:
            if state == "sending" and await self._database.value("SELECT 1 FROM outbox WHERE id = $1", outbox_id):
                return False
            raise KeyError(f"the outbox has no part {outbox_id}")
        faults.point(f"outbox.{state}")
        return True

    async def prune(self, before_ms: int, *, most: int = 200) -> int:
        async def work(connection: Connection) -> int:
            undelivered = "SELECT 1 FROM outbox WHERE ledger_id = messages.id AND state IN ('pending', 'sending')"
            rows = await connection.fetch(
                "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE ended_at IS NOT NULL AND ended_at < $1"
                f" AND NOT EXISTS ({undelivered}) LIMIT $2) RETURNING id",
                *(before_ms, most),
            )
            gone = [row[0] for row in rows]
            for table in ("story", "tool_calls", "outbox"):
                await connection.execute(f"DELETE FROM {table} WHERE ledger_id = ANY ($1)", gone)
            await connection.execute("DELETE FROM jobs WHERE ended_at IS NOT NULL AND ended_at < $1", before_ms)
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

    async def _messages(self, condition: str, *values: Any) -> list[LedgerRow]:
        rows = await self._database.rows(f"{SELECT_MESSAGES} {condition}", *values)
        return [message_of(tuple(row)) for row in rows]

    async def _parts(self, condition: str, *values: Any) -> list[OutboxRow]:
        return [part_of(tuple(row)) for row in await self._database.rows(f"{SELECT_PARTS} {condition}", *values)]

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
    begun = step == "running"
    given = [without_nul(value) if isinstance(value, str) else value for value in accept_values(message)]
    first = (now, step or "accepted", reason.code, without_nul(reason.detail), int(begun), now if begun else None)
    accept = f"{_ACCEPT}{statement.where} ON CONFLICT DO NOTHING RETURNING id"
    statement.add("accepted", accept, *given, *first)
    if keys := list(dict.fromkeys(without_nul(key) for key in message.dedupe_keys if key)):
        remember = f"INSERT INTO seen (key, at) SELECT key, ? FROM unnest(?::text[]) AS key{statement.where} {_SEEN}"
        statement.add("remembered", remember, now, keys)
    ledger_id = (await statement.run(connection, "(SELECT id FROM accepted)"))[0]
    if ledger_id is not None:
        fields = dict(zip(ACCEPT_COLUMNS, accept_fields(message), strict=True))
        return LedgerRow(id=ledger_id, accepted_at=now, **fields), True
    known = await connection.fetchrow(f"{SELECT_MESSAGES} WHERE run_id = $1", without_nul(message.run_id))
    if known is None:
        by_key = f"{SELECT_MESSAGES} WHERE dedupe_key = $1 AND dedupe_key <> ''"
        known = await _one(connection, by_key, without_nul(message.dedupe_key))
    return message_of(tuple(known)), False


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
    if len({part.part for part in parts}) < len(parts):
        raise ValueError(f"message {ledger_id}: two parts to deliver have the same number")
    stored = None if result is None else encode(result)
    noted = (state, reason.code, without_nul(reason.detail), now, stored, ledger_id)
    statement.add("ended", f"{_END}{statement.also} RETURNING id, run_id, route", *noted)
    if parts:
        columns = ([part.part for part in parts], [part.channel for part in parts])
        statement.add("parts", _PARTS, now, *columns, [encode(part.payload) for part in parts])
    if (await statement.run(connection, "(SELECT id FROM ended)"))[0] is None:
        await _end_of(connection, Statement(), ledger_id)  # Raises when there is no such message.
        return False
    return True


async def _end_of(connection: Connection, statement: Statement, ledger_id: int) -> str | None:
    """Returns how the message has ended, and locks it."""
    statement.add("found", "SELECT state, ended_at FROM messages WHERE id = ? FOR UPDATE", ledger_id)
    state, ended_at = (await statement.run(connection, "(SELECT state FROM found), (SELECT ended_at FROM found)"))[:2]
    if state is None:
        raise KeyError(f"the ledger has no message {ledger_id}")
    return state if ended_at is not None else None


async def _one(connection: Connection, statement: str, *values: Any) -> Any:
    row = await connection.fetchrow(statement, *values)
    if row is None:
        raise LookupError("the message has just been removed")
    return row
