"""A request of an OpenAI client as a run: taken in like any other message, and followed from its words to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.agent.continuation import replies
from openclaw.agent.run import entry_id
from openclaw.events import AssistantEnded, AssistantStarted, Event, TextDelta
from openclaw.gateway.http.openai_common import Refused, stateless_target
from openclaw.gateway.http.openai_prompt import (
    NoMessage,
    Prompt,
    Said,
    compose,
    public_call_id,
    refers_back,
    runs_named,
)
from openclaw.gateway.server.broadcast import MAX_BUFFERED_BYTES
from openclaw.gateway.server.registry import MethodError
from openclaw.gateway.targets import Target, check_send_policy, entry_of, transcript_ref
from openclaw.gateway.webchat import fresh_session
from openclaw.inbound.attachments import Image
from openclaw.inbound.commands.context import Hints
from openclaw.inbound.intake import Incoming, take_in
from openclaw.messages import AssistantMessage, Message, ToolCall, ToolSpec, Usage, decode_message
from openclaw.outbound.visible import visible_text
from openclaw.runs.dispatcher import Submission
from openclaw.runs.queue import QueueWish
from openclaw.runs.run_index import RunRecord
from openclaw.runs.why_text import reason_text
from openclaw.storage.base import LedgerRow, TranscriptRef

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

KNOWN_ENTRIES = 64
"""How far back a session is read to see what of a conversation it already holds."""
MAX_NAMED_RUNS = 8
MAX_WAITING = 100
"""Requests that may wait for one session; more are refused."""
WAIT_LIMIT_S = 24 * 3600
NOTHING_SAID = "No response from OpenClaw."
STOPPING = (
    "The Gateway is stopping. The message is kept and will be answered when it runs again: ask again with the same "
    "Idempotency-Key, or look in the session."
)


class Ask(msgspec.Struct, kw_only=True):
    """A request after all its checks, without its session and its pictures."""

    source: str
    """``openai`` or ``openresponses``: also the beginning of its session's name."""
    run_id: str
    agent_id: str
    said: list[Said]
    no_message: str
    """The error when there is nothing to answer."""
    system: str = ""
    tools: list[ToolSpec] = []
    tool_choice: Any = None
    max_tokens: int | None = None
    thinking: str | None = None
    previous_run: str | None = None
    """A run of the conversation that this request says it continues."""


class Seat(msgspec.Struct, kw_only=True):
    """Where a request goes and what is said there."""

    target: Target
    prompt: Prompt


async def find_seat(gateway: Gateway, ask: Ask, explicit: Target | None) -> Seat:
    """The named session; else the one whose calls or answer this conversation continues; else a new one."""
    now = gateway.runtime.clock.now_ms()
    try:
        if explicit is not None:
            await fresh_session(gateway, explicit)
            known = await _newest(gateway, explicit) if refers_back(ask.said) else []
            return Seat(target=explicit, prompt=compose(ask.said, known, now))
        runs = [*([ask.previous_run] if ask.previous_run else []), *runs_named(ask.said)]
        for run_id in runs[:MAX_NAMED_RUNS]:
            row = await gateway.runtime.ledger.by_run(run_id)
            if row is None or row.agent_id != ask.agent_id or row.source != ask.source:
                continue
            target = Target(row.agent_id, row.session_key)
            known = await _newest(gateway, target)
            prompt = compose(ask.said, known, now)
            if prompt.continues and known:
                return Seat(target=target, prompt=prompt)
        target = stateless_target(gateway, agent_id=ask.agent_id, prefix=ask.source, run_id=ask.run_id)
        return Seat(target=target, prompt=compose(ask.said, [], now))
    except NoMessage:
        raise Refused(ask.no_message) from None


class _Line(msgspec.Struct):
    message: msgspec.Raw = msgspec.Raw(b"")


_line = msgspec.json.Decoder(_Line)


async def _newest(gateway: Gateway, target: Target) -> list[Message]:
    entry = await entry_of(gateway, target)
    if entry is None:
        return []
    entries = await gateway.runtime.transcripts.tail(transcript_ref(target, entry), KNOWN_ENTRIES)
    raws = [_line.decode(entry.raw).message for entry in entries if entry.type == "message"]
    return [message for raw in raws if (message := decode_message(raw)) is not None]


async def start(gateway: Gateway, ask: Ask, seat: Seat, images: list[Image]) -> Following:
    """Returns once the message is on disk. A caller that hangs up meanwhile does not undo it."""
    entry = await entry_of(gateway, seat.target)
    try:
        check_send_policy(gateway, seat.target, entry)
    except MethodError as error:
        raise Refused(str(error), status=403, kind="forbidden") from None
    origin = {"provider": ask.source, "surface": "http", "chatType": "direct"}
    message = Incoming(
        run_id=ask.run_id,
        agent_id=seat.target.agent_id,
        session_key=seat.target.key,
        source=ask.source,
        route={"channel": "internal", "sessionKey": seat.target.key},
        prompt=seat.prompt.text,
        images=images,
        thinking=ask.thinking,
        extra_system_prompt=ask.system,
        client_tools=ask.tools,
        tool_outputs=seat.prompt.tool_outputs,
        tool_choice=ask.tool_choice,
        max_tokens=ask.max_tokens,
        # Its own run, whatever the session's queue mode: the caller waits for the answer to this very request.
        hints=Hints(queue=QueueWish(mode="followup", debounce_ms=0, cap=MAX_WAITING, drop="new")),
        entry_fields={"chatType": "direct", "origin": origin} if entry is None else {},
    )
    following = Following(gateway, ask)

    async def begin() -> None:
        following.begin(await take_in(message, gateway.runtime, gateway.dispatcher))

    await asyncio.shield(gateway.spawn(begin()))
    return following


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call the caller is asked to make."""

    id: str
    name: str
    arguments: str
    """JSON."""


class Ending(msgspec.Struct, kw_only=True):
    error: str | None = None
    status: int = 500
    """Of an answer that is nothing but the error."""
    text: str = ""
    calls: list[Call] = []
    cut: bool = False
    """The answer ran into its length limit."""
    usage: Usage | None = None
    """Tokens of all model calls of the run; None when they are no longer known."""


class SlowReader(Exception):
    """The caller reads too slowly for what is being said; the run goes on without it."""


class Following:
    """One run as the caller of an HTTP request sees it: the text as it grows, then its end."""

    def __init__(self, gateway: Gateway, ask: Ask) -> None:
        self._gateway = gateway
        self._ask = ask
        self._row: LedgerRow | None = None
        self._record: RunRecord | None = None
        self._live = False
        self._unread: list[str] = []
        self._size = 0
        self._spoke = False
        self._breaks = False
        self._usage: Usage | None = None
        self._wake = asyncio.Event()

    def begin(self, submission: Submission) -> None:
        """Called before the run can have said anything; a run that was there already is only waited for."""
        self._row, self._record, self._live = submission.row, submission.record, submission.new
        if self._live and self._record is not None:
            self._record.listeners.append(self._event)

    def leave(self) -> None:
        if self._record is not None and self._event in self._record.listeners:
            self._record.listeners.remove(self._event)

    def _event(self, event: Event) -> None:
        match event:
            case TextDelta(delta):
                if self._breaks:
                    delta = f"\n\n{delta}"
                    self._breaks = False
                self._spoke = True
                if self._size <= MAX_BUFFERED_BYTES:
                    self._unread.append(delta)
                    self._size += len(delta)
                self._wake.set()
            case AssistantStarted():
                self._breaks = self._spoke
            case AssistantEnded(message):
                self._usage = _sum(self._usage, message.usage)
            case _:
                pass

    async def text(self, keep_alive_s: float) -> AsyncGenerator[str, None]:
        """Pieces of the answer as they come; an empty piece when nothing came for that long."""
        ended = asyncio.ensure_future(self._ended())
        ended.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                if self._size > MAX_BUFFERED_BYTES:
                    raise SlowReader
                done = ended.done()
                piece, self._unread, self._size = "".join(self._unread), [], 0
                if piece:
                    yield piece
                    continue
                if done:
                    return
                self._wake.clear()
                try:
                    async with asyncio.timeout(keep_alive_s):
                        await self._wake.wait()
                except TimeoutError:
                    yield ""
        finally:
            ended.cancel()

    @property
    def spoke(self) -> bool:
        """Whether any text has been streamed."""
        return self._spoke

    async def _ended(self) -> bool:
        """False: the Gateway stops before the run is over."""
        run_id = self._row.run_id if self._row is not None else ""
        over = self._record.wait() if self._record is not None else self._gateway.dispatcher.wait(run_id, WAIT_LIMIT_S)
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(over),
            asyncio.ensure_future(self._gateway.leaving.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[0].done()
        finally:
            for wait in waits:
                wait.cancel()

    async def ending(self) -> Ending:
        """Waits for the run's end."""
        if not await self._ended():
            return Ending(error=STOPPING, status=503, usage=self._usage)
        record, row = self._record, self._row
        if record is None:
            assert row is not None
            return await self._stored_ending(await self._gateway.runtime.ledger.by_run(row.run_id) or row)
        result = record.result
        if record.state != "ok" or result is None:
            return Ending(error=_why(record), usage=self._usage)
        return self._ok(result.texts, result.final, self._usage or result.usage)

    async def _stored_ending(self, row: LedgerRow) -> Ending:
        """Of a run that ended before this Gateway started, or long ago: read back from its transcript."""
        if row.state not in ("answered", "silent"):
            return Ending(error=reason_text(row.reason) or row.state)
        answers = await _answers_of(self._gateway, row)
        usage: Usage | None = None
        for answer in answers:
            usage = _sum(usage, answer.usage)
        good = [answer for answer in answers if answer.stop_reason not in ("error", "aborted")]
        texts = [visible_text(text) for text in replies(good)] or [str((row.result or {}).get("text") or "")]
        return self._ok(texts, good[-1] if good else None, usage)

    def _ok(self, texts: Sequence[str], final: AssistantMessage | None, usage: Usage | None) -> Ending:
        names = {tool.name for tool in self._ask.tools}
        calls = [call for call in final.tool_calls if call.name in names] if final else []
        return Ending(
            text="\n\n".join(text for text in texts if text.strip()),
            calls=[_call(self._ask.run_id, call) for call in calls],
            cut=final is not None and final.stop_reason == "length",
            usage=usage,
        )


def _why(record: RunRecord) -> str:
    if record.state == "aborted":
        return f"the run was stopped before it was done ({record.error or 'stop'})"
    return record.error or "the run failed"


async def _answers_of(gateway: Gateway, row: LedgerRow) -> list[AssistantMessage]:
    """What the model said in a run: its entries have ids that follow from the run's."""
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.session_id)
    transcript = await gateway.runtime.transcripts.open(ref, create=False)
    answers: list[AssistantMessage] = []
    step = 0
    while transcript is not None and (entry := await transcript.entry(entry_id(row.run_id, step))) is not None:
        message = decode_message(_line.decode(entry.raw).message)
        if isinstance(message, AssistantMessage):
            answers.append(message)
        step += 1
    return answers


def _call(run_id: str, call: ToolCall) -> Call:
    arguments = msgspec.json.encode(call.arguments).decode()
    return Call(id=public_call_id(run_id, call.id), name=call.name, arguments=arguments)


def _sum(total: Usage | None, more: Usage) -> Usage:
    total = total or Usage()
    return Usage(
        input=total.input + more.input,
        output=total.output + more.output,
        cache_read=total.cache_read + more.cache_read,
        cache_write=total.cache_write + more.cache_write,
        total_tokens=total.total_tokens + more.total_tokens,
    )
