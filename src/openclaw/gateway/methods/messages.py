"""``messages.*``, ``outbox.*`` and ``send``: what became of a message, what waits to be delivered, and sending one.

``messages.*`` tells of every message from acceptance to its end, as facts and in plain words. ``outbox.*`` is about
the parts of replies that wait for their delivery or were given up. ``send`` writes to somebody on a channel without the
agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from openclaw.config.agents import user_zone
from openclaw.gateway.messenger import MessageToSend, SendRefused
from openclaw.gateway.server.frames import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.inbound.held import Waiting
from openclaw.messages import Route
from openclaw.protocol.messages import (
    AnsweringMessage,
    MessageDelivery,
    MessageList,
    MessageView,
    OutboxPage,
    OutboxPartView,
    PartsDropped,
    PartsRetried,
    RejectedView,
    SentMessageView,
    StateChangeView,
    ToolCallView,
    WhyReport,
)
from openclaw.runs.delivery_report import delivery_text
from openclaw.runs.history import LONGEST_NUMBER, MessageHistory, answered_by, find_message, load_history
from openclaw.runs.reasons import reason_text
from openclaw.runs.run import LONGEST_CHAIN
from openclaw.runs.why import explain_message, explain_rejected, summary
from openclaw.sessions.keys import key_problem, shown_key
from openclaw.sessions.prompt_prefix import typed_text
from openclaw.sessions.reset import previous_sessions
from openclaw.storage.message_ledger import (
    Ledger,
    LedgerRow,
    MessageState,
    OutboxRow,
    PartState,
    Reason,
    RejectedMessage,
)
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.transcripts import TranscriptRef
from openclaw.text import clipped

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.session_directory import SessionDirectory
    from openclaw.inbound.held import Held
    from openclaw.runs.runs import Runs

methods = MethodTable()
LAST_MESSAGES = 10
EARLIER_LOOKED_AT = 500
LONGEST_TEXT = 2_000
LONGEST_ARGUMENTS = 2_000
MOST_WARNINGS = 5
SHOWN_OF_PART = 300
"""The characters of a part that a list shows."""
MOST_PARTS = 500
_STATES: dict[str, tuple[PartState, ...]] = {
    "open": ("pending", "sending", "dead"),
    "waiting": ("pending", "sending"),
    "dead": ("dead",),
    "sent": ("sent",),
}


class MessagesList(Params):
    session_key: NonEmpty | None = None
    state: MessageState | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50


@methods.add("messages.list", MessagesList)
async def list_messages(call: MethodCall, params: MessagesList) -> MessageList:
    """The accepted messages, newest first."""
    key = None if params.session_key is None else call.gateway.directory.target(params.session_key).key
    rows = await call.gateway.runtime.stores.ledger.recent(session_key=key, state=params.state, limit=params.limit)
    listed = [row_view(row) for row in rows]
    if key is None and params.state is None:
        # What waits for more words of its sender has no session and no number yet.
        waiting = await call.gateway.pipeline.held.waiting()
        listed = [*(held_view(held) for held in reversed(waiting)), *listed][: params.limit]
    return MessageList(call.gateway.runtime.clock.now_ms(), listed)


class MessagesGet(Params):
    id: Annotated[int, msgspec.Meta(ge=1, lt=10**LONGEST_NUMBER)] | None = None
    run_id: NonEmpty | None = None


@methods.add("messages.get", MessagesGet)
async def get(call: MethodCall, params: MessagesGet) -> MessageView:
    """One accepted message with its changes, tool calls and deliveries."""
    ledger = call.gateway.runtime.stores.ledger
    if params.run_id is not None and params.id is None:
        row = await ledger.by_run(params.run_id)
    elif params.id is not None and params.run_id is None:
        row = await ledger.get(params.id)
    else:
        raise MethodError("Provide either id or runId (not both)")
    if row is None:
        raise MethodError(f"No message found: {params.run_id or params.id}")
    return history_view(await load_history(call.gateway.runtime, row))


def text_of(row: LedgerRow) -> str:
    """The message as its sender wrote it."""
    return clipped(row.body.written or typed_text(row.body.prompt or ""), LONGEST_TEXT)


def row_view(row: LedgerRow) -> MessageView:
    result = row.result or {}
    return MessageView(
        id=row.id,
        run_id=row.run_id,
        session_key=shown_key(row.session_key),
        session_id=row.session_id,
        agent_id=row.agent_id,
        source=row.source,
        channel=row.route.channel or None,
        state=row.state,
        reason=reason_text(row.reason),
        attempts=row.attempts,
        accepted_at=row.accepted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        text=text_of(row),
        model=result.get("model"),
        answered_by=answered_by(row),
        message_ids=row.body.message_ids,
        reply=clipped(result["text"], LONGEST_TEXT) if isinstance(result.get("text"), str) else None,
    )


def held_view(waiting: Waiting) -> MessageView:
    """Return a message that is held. It has neither a number nor a session yet."""
    inbound = waiting.inbound
    return MessageView(
        id=None,
        run_id=None,
        session_key=None,
        session_id=None,
        agent_id=None,
        source=waiting.channel,
        channel=waiting.channel,
        state="held",
        reason=waiting.words(),
        attempts=waiting.held.attempts,
        accepted_at=inbound.timestamp_ms if inbound else None,
        started_at=None,
        ended_at=None,
        text=clipped(inbound.text, LONGEST_TEXT) if inbound else "",
        model=None,
        answered_by=None,
        message_ids=[waiting.message_id],
        reply=None,
    )


def history_view(history: MessageHistory) -> MessageView:
    """Return a message with its changes, tool calls and deliveries."""
    view = row_view(history.row)
    view.changes = [StateChangeView(change.at, change.state, reason_text(change.reason)) for change in history.changes]
    view.tool_calls = [
        ToolCallView(
            id=call.call_id,
            name=call.name,
            ok=call.ok,
            started_at=call.started_at,
            finished_at=call.finished_at,
            arguments=clipped(call.arguments, LONGEST_ARGUMENTS),
        )
        for call in history.tool_calls
    ]
    view.deliveries = [MessageDelivery(**_delivery_fields(part), message_id=part.message_id) for part in history.outbox]
    return view


def _delivery_fields(part: OutboxRow) -> dict[str, Any]:
    """Return the fields of ``DeliveryView``."""
    return {
        "part": part.part,
        "channel": part.channel,
        "state": part.state,
        "attempts": part.attempts,
        "created_at": part.created_at,
        "next_at": part.next_at or None,
        "error": delivery_text(part),
        "possibly_duplicate": part.doubts > 0,
    }


# Why


class MessagesWhy(Params):
    ref: NonEmpty
    """A ledger id, a run id or its beginning, a session key, a session id or a label."""


@methods.add("messages.why", MessagesWhy)
async def why(call: MethodCall, params: MessagesWhy) -> WhyReport:
    """What became of a message, a run or the messages of a session, in plain words."""
    gateway = call.gateway
    lookup = WhyLookup(gateway.runtime, gateway.runs, gateway.directory, gateway.pipeline.held)
    return await lookup.explain(params.ref)


class WhyLookup:
    """Finds what a reference means, and explains it."""

    def __init__(self, runtime: Runtime, runs: Runs, directory: SessionDirectory, held: Held) -> None:
        self._runtime = runtime
        self._runs = runs
        self._directory = directory
        self._held = held
        self._ledger = runtime.stores.ledger
        self._now_ms = runtime.clock.now_ms()
        self._zone = user_zone(runtime.config.current)

    async def explain(self, ref: str) -> WhyReport:
        """Return the facts and the history of a message or a session.

        A message goes by its ledger id, its run id, the beginning of its run id or its channel's id, even if it was
        rejected. A session goes by its key, id or label. Raise ``MethodError`` if the name fits nothing, or more than
        one run.
        """
        report, name = WhyReport(ts=self._now_ms, ref=ref, kind="message", story=[]), ref.strip()
        row = await find_message(self._ledger, name)
        if row is None:
            if await self._explain_session(report, name) or await self._explain_held(report, name):
                return report
            if notes := await self._ledger.rejected([name]):
                report.kind, report.story = "turnedAway", explain_rejected(notes, self._zone)
                report.turned_away = [_rejected_view(note) for note in notes]
                return report
            row = await self._by_prefix(name)
        history = await load_history(self._runtime, row)
        report.message, report.story = history_view(history), explain_message(self._runtime, self._runs, history)
        report.story += await self._damage(row.agent_id, row.session_key, row.session_id)
        if (answering := await self._answering(row)) is not None:
            history = await load_history(self._runtime, answering)
            story = explain_message(self._runtime, self._runs, history)
            report.answered_by = AnsweringMessage(history_view(history), story)
        return report

    async def _answering(self, row: LedgerRow) -> LedgerRow | None:
        """Return the message whose run answered this one, or None if it has a run of its own."""
        answering: LedgerRow | None = None
        for _ in range(LONGEST_CHAIN):
            by = answered_by(answering or row)
            following = await self._ledger.by_run(by) if by else None
            if following is None:
                break
            answering = following
        return answering

    async def _explain_held(self, report: WhyReport, name: str) -> bool:
        """Explain a message that was received and not accepted yet."""
        for waiting in await self._held.waiting() if name else ():
            if name in (waiting.held.key, waiting.message_id):
                attempts = waiting.held.attempts
                tries = f" {attempts} Gateways have tried since it came." if attempts > 1 else ""
                report.message = held_view(waiting)
                report.story = [
                    f"Received from {waiting.channel} and kept; no run has begun: {waiting.words()}.{tries}"
                ]
                return True
        return False

    async def _by_prefix(self, name: str) -> LedgerRow:
        rows = await self._ledger.runs_beginning(name, 6) if name else []
        if not rows:
            raise MethodError(
                f'Nothing is known of "{clipped(name, 81)}": no message, run, session or label has this name. '
                "`openclaw why main` lists the last messages of the main session."
            )
        if len(rows) > 1:
            ids = ", ".join(clipped(row.run_id, 81) for row in rows[:5]) + (", …" if len(rows) > 5 else "")
            raise MethodError(f'"{clipped(name, 81)}" is how several runs begin: {ids}. Give more of the one you mean.')
        return rows[0]

    async def _explain_session(self, report: WhyReport, name: str) -> bool:
        """Explain the last messages of a session, of an earlier session of its key, or of a deleted one."""
        if not name:
            return False
        session = await self._directory.find(name)
        if session is not None:
            rows = await self._ledger.recent(session_key=session.key, limit=LAST_MESSAGES)
            self._add_session(report, session.key, session.entry["sessionId"], rows)
            report.story += await self._damage(session.agent_id, session.key, session.entry["sessionId"])
            return True
        for row in (await self._runtime.stores.sessions.select(SessionQuery(ever=frozenset({name})))).rows:
            if any(previous.session_id == name for previous in previous_sessions(row.entry)):
                rows = await self._ledger.recent(session_key=row.key, limit=EARLIER_LOOKED_AT)
                rows = [message for message in rows if message.session_id == name][:LAST_MESSAGES]
                self._add_session(report, row.key, name, rows)
                return True
        if key_problem(name):
            return False
        deleted = self._directory.target(name).key
        rows = await self._ledger.recent(session_key=deleted, limit=LAST_MESSAGES)
        if rows:
            self._add_session(report, deleted, rows[0].session_id, rows)
        return bool(rows)

    def _add_session(self, report: WhyReport, key: str, session_id: str, rows: list[LedgerRow]) -> None:
        """Add the messages of a session, the oldest first."""
        report.kind, report.session_key, report.session_id = "session", shown_key(key), session_id
        report.messages = [row_view(row) for row in reversed(rows)]
        report.story = [summary(row, text_of(row), self._now_ms, self._zone) for row in reversed(rows)]
        if not report.story:
            report.story = [f"No message of session {shown_key(key)} is on record."]

    async def _damage(self, agent_id: str, session_key: str, session_id: str) -> list[str]:
        """Report what is damaged in the transcript of a session."""
        stores = self._runtime.stores
        entry = await stores.sessions.get(agent_id, session_key)
        file = entry.get("sessionFile") if entry is not None and entry["sessionId"] == session_id else None
        ref = TranscriptRef(agent_id=agent_id, session_id=session_id, file=file)
        path = await stores.transcripts.locate(ref) if session_id else None
        if path is None or not path.endswith(".jsonl"):
            # Opening a compressed one would decompress it. It was sound when it was compressed.
            return []
        transcript = await stores.transcripts.open(ref, create=False)
        if transcript is None or not transcript.warnings:
            return []
        damage = "; ".join(transcript.warnings[:MOST_WARNINGS])
        return [f"The transcript of its session is damaged, and what cannot be read was left out: {damage}."]


def _rejected_view(note: RejectedMessage) -> RejectedView:
    return RejectedView(
        message_id=note.message_id,
        channel=note.channel,
        chat=note.chat or None,
        sender=note.sender or None,
        code=note.code,
        reason=reason_text(Reason(note.code, note.detail)),
        count=note.count,
        first_at=note.first_at,
        last_at=note.last_at,
    )


# The outbox


class OutboxList(Params):
    state: Literal["open", "waiting", "dead", "sent"] = "open"
    """``open`` is everything that was not delivered."""
    channel: NonEmpty | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTS)] = 100


@methods.add("outbox.list", OutboxList)
async def list_outbox(call: MethodCall, params: OutboxList) -> OutboxPage:
    """The parts of replies, newest first."""
    ledger = call.gateway.runtime.stores.ledger
    rows = await ledger.outbox_parts(_STATES[params.state], channel=params.channel, limit=params.limit)
    now_ms, waiting = call.gateway.runtime.clock.now_ms(), await ledger.outbox_depth()
    return OutboxPage(now_ms, waiting, [_part_view(row) for row in rows])


def _part_view(row: OutboxRow) -> OutboxPartView:
    payload = row.payload
    return OutboxPartView(
        **_delivery_fields(row),
        id=row.id,
        message_id=row.ledger_id,
        run_id=row.run_id,
        account_id=row.route.account_id,
        to=row.route.to or None,
        act=payload.get("act", "send"),
        text=clipped(str(payload.get("text") or ""), SHOWN_OF_PART),
        media=len(payload.get("media") or ()),
    )


class OutboxChoice(Params):
    ids: Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], msgspec.Meta(max_length=MOST_PARTS)] = []
    """The ids of parts."""
    run_id: NonEmpty | None = None
    """All parts of the message with this run id."""
    all: bool = False
    """Every part that the method can be used on."""


@methods.add("outbox.retry", OutboxChoice)
async def retry(call: MethodCall, params: OutboxChoice) -> PartsRetried:
    """Retry parts that were given up."""
    rows = await _chosen(call.gateway.runtime.stores.ledger, params, "dead")
    return PartsRetried(True, await call.gateway.channel_services.delivery.again(rows))


@methods.add("outbox.drop", OutboxChoice)
async def drop(call: MethodCall, params: OutboxChoice) -> PartsDropped:
    """Give up waiting parts. One that is being sent this moment is not dropped."""
    rows = await _chosen(call.gateway.runtime.stores.ledger, params, "pending")
    return PartsDropped(True, await call.gateway.channel_services.delivery.drop(rows))


async def _chosen(ledger: Ledger, params: OutboxChoice, state: PartState) -> list[OutboxRow]:
    if not (params.ids or params.run_id or params.all):
        raise MethodError("name parts by ids, a message by runId, or all")
    if params.run_id:
        row = await ledger.by_run(params.run_id)
        if row is None:
            raise MethodError(f"no message has the run id {params.run_id}")
        parts = [part for part in await ledger.outbox_of(row.id) if part.state == state]
    else:
        parts = await ledger.outbox_parts((state,), limit=MOST_PARTS)
    if params.ids:
        parts = [part for part in parts if part.id in params.ids]
        if missing := set(params.ids) - {part.id for part in parts}:
            word = "was given up" if state == "dead" else "waits"
            raise MethodError(f"no part {', '.join(map(str, sorted(missing)))} {word}; see outbox.list")
    return parts


# Sending


class SendParams(Params):
    to: NonEmpty
    message: str
    idempotency_key: NonEmpty
    media_url: str | None = None
    media_urls: list[str] | None = None
    gif_playback: bool | None = None
    channel: str | None = None
    account_id: str | None = None
    session_key: str | None = None


@methods.add("send", SendParams)
async def send(call: MethodCall, params: SendParams) -> SentMessageView:
    """Store the message, then send it. It goes out even after a crash, and one key never sends twice."""
    gateway = call.gateway
    row, message = await gateway.runtime.stores.ledger.by_run(params.idempotency_key), None
    if row is None or row.source != "send":
        try:
            message = await _message_to_send(gateway, params)
        except SendRefused as refused:
            raise MethodError(str(refused)) from None
        row, new = await gateway.messenger.post(message)
        message = message if new else None
    outcome = await gateway.messenger.delivery_outcome(row)
    if outcome.error:
        payload = {**outcome.answer, "status": "error", "summary": outcome.error}
        raise MethodError(outcome.error, code="UNAVAILABLE", payload=payload)
    if message is not None:
        await gateway.messenger.open_session(message.session)
        await gateway.messenger.write_to_transcript(message)
    return msgspec.convert(outcome.answer, SentMessageView)


async def _message_to_send(gateway: Gateway, params: SendParams) -> MessageToSend:
    running = gateway.messenger.account_for(params.channel, params.account_id)
    route = Route(channel=running.kind.id, to=params.to.strip(), account_id=running.account.id)
    target = gateway.messenger.session_for(running, params.to)
    if params.session_key:
        target = gateway.directory.target(params.session_key)
    gateway.directory.check_send_policy(target, await gateway.directory.entry(target), channel=running.kind.id)
    addresses = [*([params.media_url] if params.media_url else []), *(params.media_urls or [])]
    media = await gateway.messenger.fetched_media(addresses, running)
    if not params.message.strip() and not media:
        raise MethodError("message or mediaUrl required")
    return MessageToSend(
        run_id=params.idempotency_key,
        source="send",
        agent_id=target.agent_id,
        session_key=target.key,
        route=route,
        text=params.message,
        media=tuple(media),
    )
