"""What the ledgers in SQLite and in PostgreSQL have in common: their columns, their rows as records, and the questions
that both databases are asked in the same words.

A column has the name of its field; only a ``Reason`` takes two columns, ``code`` and ``detail``. In a statement each
``?`` stands for the next of its values.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import uuid
from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from zlib import crc32

import msgspec

from openclaw.clock import Clock
from openclaw.json_text import encode
from openclaw.messages import Route
from openclaw.storage import faults
from openclaw.storage.errors import UnknownMessage
from openclaw.storage.message_ledger import (
    END_STATES,
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
    PendingMessage,
    Reason,
    ReasonCode,
    RejectedMessage,
    SessionName,
    StateChange,
    ToolCallRow,
)
from openclaw.storage.questions import Question

LOOKED_THROUGH = 20_000
"""How many of the latest messages a search by state or by the channel's id may read."""
MOST_REJECTED = 5_000
"""How many rejected messages are stored."""
PRUNE_EVERY = 64
"""One in so many look-ups of an unknown key removes keys that are too old. The others write nothing."""

MOST_PENDING = 50_000
"""How many pending messages of all conversations are stored, at most. The oldest are deleted first."""
_PENDING, _AFTER_PENDING = "pending|", "pending}"
"""The key of a pending message begins with the first, and is less than the second. No channel has this name."""

_NOT_STORED = ("dedupe_keys", "pending")
"""The fields of ``Accept`` that have no column."""
_ACCEPT_FIELDS = tuple(name for name in Accept.__struct_fields__ if name not in _NOT_STORED)
_accept_values = attrgetter(*_ACCEPT_FIELDS)
ACCEPT_COLUMNS = (*_ACCEPT_FIELDS, "accepted_at", "state", "code", "detail", "attempts", "started_at")
"""The columns of a message that are written when it is accepted."""
_JSON_COLUMNS = frozenset({"route", "body"})
_MESSAGE_COLUMNS = (
    *(name for name in LedgerRow.__struct_fields__ if name not in (*_NOT_STORED, "reason")),
    "code",
    "detail",
)
SELECT_MESSAGES = f"SELECT {', '.join(_MESSAGE_COLUMNS)} FROM messages"
_SELECT_PARTS = f"SELECT {', '.join(OutboxRow.__struct_fields__)} FROM outbox"
_LATEST = f"id > (SELECT coalesce(max(id), 0) FROM messages) - {LOOKED_THROUGH}"
SEND_AGAIN = "UPDATE outbox SET state = 'pending', doubts = doubts + 1, error = '' WHERE state = 'sending'"
"""A part that was being sent when its Gateway went away may have arrived. The delivery decides, given its doubts."""
_ADD_PART = (
    "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
    " SELECT id, run_id, (SELECT coalesce(max(part) + 1, 0) FROM outbox WHERE ledger_id = messages.id),"
    " ?, route, ?, 'pending', ? FROM messages WHERE id = ? AND ended_at IS NULL"
)
_QUESTION, _ACTED = "question", "acted"
_decode_question = msgspec.json.Decoder(Question).decode
_decode_body = msgspec.json.Decoder(MessageBody).decode
_decode_route = msgspec.json.Decoder(Route).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class SqlLedger(abc.ABC):
    """The part of ``Ledger`` that is the same SQL in both databases: what takes one statement.

    ``FileLedger`` and ``PostgresLedger`` add what takes several, such as the acceptance and the end of a message.
    """

    _as_inserted: str
    """The column that tells in which order the rows of ``tool_calls`` and ``jobs`` were inserted."""
    _bytes_within: str
    """The name of the function that finds bytes in a column: the column and the bytes are its arguments."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @abc.abstractmethod
    async def _rows(self, statement: str, *values: Any) -> Sequence[Any]:
        """Does one statement and returns its rows."""
        ...

    @abc.abstractmethod
    async def _write(self, statement: str, *values: Any) -> int:
        """Does one statement and returns how many rows it changed."""
        ...

    @abc.abstractmethod
    async def _write_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> list[int]:
        """Does the statement with each of the rows, in one transaction. Returns how many rows each time changed."""
        ...

    # Messages

    async def by_run(self, run_id: str) -> LedgerRow | None:
        return next(iter(await self._messages("WHERE run_id = ?", run_id)), None)

    async def get(self, ledger_id: int) -> LedgerRow | None:
        # A caller may ask for any number, and the databases refuse larger ones.
        return next(iter(await self._messages("WHERE id = ?", ledger_id)), None) if 0 < ledger_id < 2**63 else None

    async def history(self, ledger_id: int) -> list[StateChange]:
        select = "SELECT at, state, code, detail FROM story WHERE ledger_id = ? ORDER BY step"
        rows = await self._rows(select, ledger_id)
        return [StateChange(at=at, state=state, reason=reason_of(code, detail)) for at, state, code, detail in rows]

    async def unfinished(self, session: SessionName | None = None) -> list[LedgerRow]:
        if session is None:
            return await self._messages("WHERE ended_at IS NULL ORDER BY id")
        of_session = "WHERE ended_at IS NULL AND agent_id = ? AND session_key = ? ORDER BY id"
        return await self._messages(of_session, *session)

    async def recent(
        self, *, session_key: str | None = None, state: MessageState | None = None, limit: int = 50
    ) -> list[LedgerRow]:
        criteria = {"session_key": session_key, "state": state}
        filters = {name: value for name, value in criteria.items() if value is not None}
        # Without a bound, the search for a rare state would read every message.
        tests = [*(f"{name} = ?" for name in filters), *([_LATEST] if state is not None else [])]
        return await self._messages(f"{_where(tests)}ORDER BY id DESC LIMIT ?", *filters.values(), max(0, limit))

    async def runs_beginning(self, prefix: str, limit: int = 10) -> list[LedgerRow]:
        # LIKE would neither use the index nor distinguish capitals.
        condition = "WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT ?"
        return await self._messages(condition, prefix, f"{prefix}\U0010ffff", max(0, limit))

    async def by_message_id(self, message_id: str) -> list[LedgerRow]:
        # The id is looked for as bytes first, so that only few bodies are decoded.
        condition = f"WHERE {_LATEST} AND {self._bytes_within}(body, ?) > 0 ORDER BY id DESC LIMIT 50"
        rows = await self._messages(condition, encode(message_id))
        return [row for row in rows if message_id in row.body.message_ids]

    async def rejected(self, message_ids: Sequence[str]) -> list[RejectedMessage]:
        names = RejectedMessage.__struct_fields__
        select = f"SELECT {', '.join(names)} FROM turned_away WHERE {_among('message_id', message_ids)}"
        rows = await self._rows(f"{select} ORDER BY first_at, step", *message_ids)
        return [msgspec.convert(dict(zip(names, row, strict=True)), RejectedMessage) for row in rows]

    async def tool_calls(self, ledger_id: int) -> list[ToolCallRow]:
        names = ToolCallRow.__struct_fields__
        select = f"SELECT {', '.join(names)} FROM tool_calls WHERE ledger_id = ? ORDER BY {self._as_inserted}"
        calls = [ToolCallRow(**dict(zip(names, row, strict=True))) for row in await self._rows(select, ledger_id)]
        for call in calls:
            call.ok = None if call.ok is None else bool(call.ok)
        return calls

    # Held messages. Those of groups that wait for a message to the agent are in the same table.

    async def hold(self, key: str, message: bytes) -> None:
        await self._write("INSERT INTO held (key, message) VALUES (?, ?) ON CONFLICT DO NOTHING", key, message)

    async def update_held(self, key: str, message: bytes) -> None:
        await self._write("UPDATE held SET message = ? WHERE key = ?", message, key)

    async def held(self) -> list[HeldMessage]:
        others = "SELECT key, message, attempts FROM held WHERE key < ? OR key >= ? ORDER BY step"
        rows = await self._rows(others, _PENDING, _AFTER_PENDING)
        return [HeldMessage(key=key, message=message, attempts=attempts) for key, message, attempts in rows]

    async def count_held_attempt(self, key: str) -> None:
        await self._write("UPDATE held SET attempts = attempts + 1 WHERE key = ?", key)

    async def release_held(self, keys: Sequence[str]) -> None:
        await self._write(f"DELETE FROM held WHERE {_among('key', keys)}", *keys)

    async def pending(self, position: str, limit: int) -> list[PendingMessage]:
        newest = "SELECT step, message FROM held WHERE key >= ? AND key < ? ORDER BY step DESC LIMIT ?"
        rows = await self._rows(newest, *_pending_keys(position), max(0, limit))
        return [PendingMessage(step, bytes(message)) for step, message in reversed(rows)]

    # Jobs

    async def job_put(self, job: JobRow) -> None:
        names = JobRow.__struct_fields__
        values = [encode(job.state) if name == "state" else getattr(job, name) for name in names]
        replaced = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
        insert = f"INSERT INTO jobs ({', '.join(names)}) VALUES ({_marks(names)})"
        await self._write(f"{insert} ON CONFLICT (id) DO UPDATE SET {replaced}", *values)

    async def job(self, job_id: str) -> JobRow | None:
        return next(iter(await self._jobs("WHERE id = ?", job_id)), None)

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
        criteria = {"kind": kind, "owner_key": owner_key, "run_id": run_id, "trace": trace}
        filters = {name: value for name, value in criteria.items() if value is not None}
        tests = [f"{name} = ?" for name in filters]
        if kind is None:
            tests.append(f"kind <> '{_QUESTION}'")
        if ended is not None:
            tests.append(f"ended_at IS {'NOT ' if ended else ''}NULL")
        order = f"ORDER BY created_at DESC, {self._as_inserted} DESC LIMIT ?"
        return (await self._jobs(f"{_where(tests)}{order}", *filters.values(), max(0, limit)))[::-1]

    async def _jobs(self, condition: str, *values: Any) -> list[JobRow]:
        names = JobRow.__struct_fields__
        rows = await self._rows(f"SELECT {', '.join(names)} FROM jobs {condition}", *values)
        records = [dict(zip(names, row, strict=True)) for row in rows]
        return [JobRow(**{**fields, "state": msgspec.json.decode(fields["state"])}) for fields in records]

    # Questions. They are rows of ``jobs``, because another table would not fit on the first page of the file, which the
    # rescue of a damaged one needs whole. ``trace`` is ``acted`` once what the answer allowed has begun.

    async def question_open(self, question: Question) -> bool:
        names = JobRow.__struct_fields__
        job = JobRow(
            id=question.id,
            kind=_QUESTION,
            owner_key=question.session_key,
            run_id=question.run_id,
            trace="",
            state={},
            created_at=question.created_at,
        )
        values = [encode(question) if name == "state" else getattr(job, name) for name in names]
        insert = f"INSERT INTO jobs ({', '.join(names)}) VALUES ({_marks(names)}) ON CONFLICT DO NOTHING"
        inserted = await self._write(insert, *values)
        faults.point("question.opened")
        return bool(inserted)

    async def question_end(self, question: Question) -> bool:
        ended = await self._write(
            f"UPDATE jobs SET state = ?, ended_at = ? WHERE id = ? AND kind = '{_QUESTION}' AND ended_at IS NULL",
            *(encode(question), question.ended_at, question.id),
        )
        faults.point("question.ended")
        return bool(ended)

    async def question_act(self, question_id: str) -> bool:
        acted = await self._write(
            f"UPDATE jobs SET trace = '{_ACTED}' WHERE id = ? AND kind = '{_QUESTION}' AND trace = ''", question_id
        )
        faults.point("question.acted")
        return bool(acted)

    async def question_acted(self, question_id: str) -> bool:
        job = await self.job(question_id)
        return job is not None and job.trace == _ACTED

    async def question(self, question_id: str) -> Question | None:
        found = await self._questions(f"WHERE id = ? AND kind = '{_QUESTION}'", question_id)
        return next(iter(found), None)

    async def questions(
        self, *, is_open: bool | None = None, run_id: str | None = None, prefix: str = "", limit: int = 10_000
    ) -> list[Question]:
        tests, values = [f"kind = '{_QUESTION}'"], list[Any]()
        if run_id is not None:
            tests, values = [*tests, "run_id = ?"], [*values, run_id]
        if prefix:
            tests, values = [*tests, "id >= ? AND id < ?"], [*values, prefix, f"{prefix}\U0010ffff"]
        if is_open is not None:
            tests.append(f"ended_at IS {'' if is_open else 'NOT '}NULL")
        order = f"ORDER BY created_at DESC, {self._as_inserted} DESC LIMIT ?"
        return (await self._questions(f"{_where(tests)}{order}", *values, max(0, limit)))[::-1]

    async def _questions(self, condition: str, *values: Any) -> list[Question]:
        questions: list[Question] = []
        for (state,) in await self._rows(f"SELECT state FROM jobs {condition}", *values):
            # A damaged row is skipped, so that the others can be read.
            with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
                questions.append(_decode_question(state))
        return questions

    # Outbox

    async def outbox_add(self, ledger_id: int, parts: Sequence[OutboxPart]) -> bool:
        now = self._clock.now_ms()
        added = await self._write_each(
            _ADD_PART, [(part.channel, encode(part.payload), now, ledger_id) for part in parts]
        )
        faults.point("outbox.added")
        return all(added)

    async def outbox_due(self, now_ms: int, limit: int = 100) -> list[OutboxRow]:
        oldest = "SELECT min(id) FROM outbox WHERE state = 'pending' GROUP BY destination"
        due = f"WHERE id IN ({oldest}) AND next_at <= ? ORDER BY next_at, id LIMIT ?"
        return await self._parts(due, now_ms, max(0, limit))

    async def outbox_waiting(self, outbox_id: int, limit: int = 100) -> list[OutboxRow]:
        same = "destination = (SELECT destination FROM outbox WHERE id = ?)"
        waiting = f"WHERE state = 'pending' AND {same} ORDER BY id LIMIT ?"
        return await self._parts(waiting, outbox_id, max(0, limit))

    async def outbox_depth(self) -> int:
        ((depth,),) = await self._rows("SELECT count(*) FROM outbox WHERE state = 'pending'")
        return depth

    async def outbox_of(self, ledger_id: int) -> list[OutboxRow]:
        return await self._parts("WHERE ledger_id = ? ORDER BY part", ledger_id)

    async def outbox_parts(
        self, states: Sequence[PartState], *, channel: str | None = None, limit: int = 100
    ) -> list[OutboxRow]:
        tests = [_among("state", states), *(["channel = ?"] if channel is not None else [])]
        values = [*states, *([channel] if channel is not None else [])]
        return await self._parts(f"{_where(tests)}ORDER BY id DESC LIMIT ?", *values, max(0, limit))

    async def outbox_retry(self, outbox_ids: Sequence[int]) -> int:
        return await self._write(
            "UPDATE outbox SET state = 'pending', attempts = 0, answered_errors = 0, next_at = 0, error = '',"
            " code = '', created_at = ?, doubts = CASE WHEN doubts > 0 THEN 1 ELSE 0 END"
            f" WHERE state = 'dead' AND {_among('id', outbox_ids)}",
            *(self._clock.now_ms(), *outbox_ids),
        )

    async def outbox_mark(
        self,
        outbox_id: int,
        state: PartState,
        *,
        next_at: int = 0,
        error: str = "",
        doubts: int = 0,
        answered_errors: int = 0,
        code: DeliveryCode = DeliveryCode.NONE,
        message_id: str = "",
    ) -> bool:
        only_open = "" if state == "sent" else " AND state NOT IN ('sent', 'dead')"
        marked = await self._write(
            "UPDATE outbox SET state = ?, attempts = attempts + ?, next_at = ?, error = ?, doubts = ?,"
            f" answered_errors = ?, code = ?, message_id = ? WHERE id = ?{only_open}",
            *(state, int(state == "sending"), next_at, error, doubts, answered_errors, code, message_id, outbox_id),
        )
        if not marked:
            if state != "sent" and await self._rows("SELECT 1 FROM outbox WHERE id = ?", outbox_id):
                return False
            raise UnknownMessage(f"the outbox has no part {outbox_id}")
        faults.point(f"outbox.{state}")
        return True

    async def _messages(self, condition: str, *values: Any) -> list[LedgerRow]:
        return [message_of(row) for row in await self._rows(f"{SELECT_MESSAGES} {condition}", *values)]

    async def _parts(self, condition: str, *values: Any) -> list[OutboxRow]:
        return [_part_of(row) for row in await self._rows(f"{_SELECT_PARTS} {condition}", *values)]


def _where(tests: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(tests)} " if tests else ""


def _among(column: str, values: Sequence[Any]) -> str:
    # PostgreSQL does not take an empty list.
    return f"{column} IN ({_marks(values)})" if values else "1 = 0"


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


# Rules of both ledgers


def check_end(ledger_id: int, state: MessageState, parts: Sequence[OutboxPart]) -> None:
    """Refuses a step where an end is meant, and parts that cannot be told apart."""
    if state not in END_STATES:
        raise ValueError(f"'{state}' does not end a message: use advance")
    if len({part.part for part in parts}) < len(parts):
        raise ValueError(f"message {ledger_id}: two parts to deliver have the same number")


def absorbed_result(reason: Reason, run_id: str) -> dict[str, Any] | None:
    """Return the result of a message that another run absorbs. A collected one is answered there."""
    return {"answeredBy": run_id} if reason.code is ReasonCode.COLLECTED else None


def is_time_to_prune(key: str) -> bool:
    return crc32(key.encode(errors="replace")) % PRUNE_EVERY == 0


# Rows


def accept_values(message: Accept, step: FirstStep | None, reason: Reason, now: int) -> list[Any]:
    """Returns the values of ``ACCEPT_COLUMNS``."""
    values = zip(_ACCEPT_FIELDS, _accept_values(message), strict=True)
    columns = [encode(value) if name in _JSON_COLUMNS else value for name, value in values]
    begun = step == "running"
    return [*columns, now, step or "accepted", reason.code, reason.detail, int(begun), now if begun else None]


def add_pending(position: str, message_id: str, message: bytes, keep: int) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the statements of ``ChannelMemory.add_pending`` with their values."""
    first, end = _pending_keys(position)
    return [
        (
            "INSERT INTO held (key, message) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET message = excluded.message",
            (first + (message_id or uuid.uuid4().hex), message),
        ),
        (
            "DELETE FROM held WHERE key >= ? AND key < ? AND step <="
            " (SELECT step FROM held WHERE key >= ? AND key < ? ORDER BY step DESC LIMIT 1 OFFSET ?)",
            (first, end, first, end, keep),
        ),
        (
            "DELETE FROM held WHERE key >= ? AND key < ? AND step <= (SELECT max(step) FROM held) - ?",
            (_PENDING, _AFTER_PENDING, MOST_PENDING),
        ),
    ]


def _pending_keys(position: str) -> tuple[str, str]:
    """Return how the keys of a conversation's pending messages begin, and what is greater than all of them.

    The place is hashed, because it may contain any character.
    """
    digest = hashlib.sha256(position.encode("utf-8", "replace")).hexdigest()
    return f"{_PENDING}{digest}|", f"{_PENDING}{digest}}}"


def accepted_row(message: Accept, ledger_id: int, now: int) -> LedgerRow:
    """Returns the row of a message that was just accepted, before its first step."""
    fields = dict(zip(_ACCEPT_FIELDS, _accept_values(message), strict=True))
    return LedgerRow(id=ledger_id, accepted_at=now, **fields)


def message_of(row: Any) -> LedgerRow:
    """Convert a row to a message. Damaged columns are read as empty, so that other messages stay readable."""
    fields = dict(zip(_MESSAGE_COLUMNS, row, strict=True))
    reason, result = reason_of(fields.pop("code"), fields.pop("detail")), fields["result"]
    fields["route"] = decode_route(fields["route"])
    fields["result"] = None if result is None else _object(result)
    try:
        fields["body"] = _decode_body(fields["body"])
    except (msgspec.MsgspecError, UnicodeError):
        fields["body"] = MessageBody()
    return LedgerRow(reason=reason, **fields)


def decode_route(raw: bytes) -> Route:
    """Return the stored route; an empty one if it is damaged. Nulls and unknown keys of other versions are ignored."""
    try:
        return _decode_route(raw)
    except (msgspec.MsgspecError, UnicodeError):
        fields = {name: value for name, value in (_object(raw) or {}).items() if value is not None}
    try:
        return msgspec.convert(fields, Route)
    except msgspec.ValidationError:
        return Route()


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        return _decode_object(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def reason_of(code: str, detail: str) -> Reason:
    """A code written by a newer version is read as ``other``."""
    try:
        return Reason(ReasonCode(code), detail)
    except ValueError:
        return Reason(ReasonCode.OTHER, detail or code)


def _part_of(row: Any) -> OutboxRow:
    """Makes a part of a row. One whose payload is damaged cannot be sent, and ends with that reason."""
    fields = dict(zip(OutboxRow.__struct_fields__, row, strict=True))
    fields["route"] = decode_route(fields["route"])
    payload = _object(fields["payload"])
    fields["payload"] = {"text": None} if payload is None else payload
    codes = frozenset(DeliveryCode)
    fields["code"] = DeliveryCode(fields["code"]) if fields["code"] in codes else DeliveryCode.NONE
    return OutboxRow(**fields)
