"""The run behind a request of an OpenAI endpoint: its session, its start, and its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from aiohttp import web

from openclaw.agent.continuation import replies
from openclaw.agent.recorder import entry_id
from openclaw.agent.runtime import Runtime
from openclaw.config.agents import default_agent_id
from openclaw.config.schema.gateway import ResponseImages
from openclaw.events import AssistantEnded, AssistantStarted, ModelSwitched, Spoken, TextDelta
from openclaw.gateway.http.common import RequestRefused, json_response
from openclaw.gateway.http.openai_request import (
    Ask,
    NoMessage,
    Prompt,
    chosen_tools,
    compose,
    public_call_id,
    read_pictures,
    runs_named,
)
from openclaw.gateway.server import frames
from openclaw.gateway.server.events import MAX_BUFFERED_BYTES
from openclaw.gateway.server.registry import MethodError
from openclaw.gateway.session_directory import SessionDirectory, refuse_subagent
from openclaw.inbound.incoming import Facts, Incoming, current_session
from openclaw.inbound.notices import Notices
from openclaw.inbound.pipeline import Accepted, Pipeline
from openclaw.messages import (
    AssistantMessage,
    Message,
    Route,
    Usage,
)
from openclaw.models.base import added
from openclaw.models.errors import switch_text
from openclaw.models.thinking import parse_level
from openclaw.outbound.answer_filter import speech_of
from openclaw.outbound.reply_files import file_lines
from openclaw.outbound.session_preview import message_of
from openclaw.paths import normalize_agent_id
from openclaw.runs.accept import Submission
from openclaw.runs.queue_settings import QueueOverrides
from openclaw.runs.reasons import reason_text
from openclaw.runs.run import Run, RunEvent, RunIndex
from openclaw.runs.runs import Runs
from openclaw.sessions.entry import BLOCKED
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.message_ledger import Ledger, LedgerRow, MessageBody, ReasonCode
from openclaw.storage.transcripts import TranscriptRef, TranscriptStore

if TYPE_CHECKING:
    from openclaw.gateway.cluster.single import Cluster

KNOWN_ENTRIES = 64
"""The number of newest entries that are read to see what of a conversation the session already holds."""
MAX_NAMED_RUNS = 8
MAX_WAITING = 100
"""The number of requests that may wait for one session. More are refused."""
BROKE_OFF = "The answer broke off here and begins again."
MAX_USER_CHARS = 256
MAX_URL_PARTS = 8
NO_RETRY = {"x-should-retry": "false"}
"""The header of a failed answer to an accepted message. Without it OpenAI's clients send the message again."""
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
"""A comment line is sent this often, so that proxies do not cut a stream while a tool runs."""
DONE = b"data: [DONE]\n\n"
NOTHING_SAID = "No response from OpenClaw."
STOPPING = (
    "The Gateway is stopping. The message is kept and will be answered when it runs again: ask again with the same "
    "Idempotency-Key, or look in the session."
)
_MODEL_AGENT = re.compile(r"(?:openclaw[:/]|agent:)([a-z0-9][a-z0-9_-]{0,63})", re.IGNORECASE)


def run_id_for(request: web.BaseRequest, prefix: str) -> str:
    """Returns a new id. The same ``Idempotency-Key`` always gives the same id."""
    # A header may hold bytes that are no text.
    key = request.headers.get("idempotency-key", "").strip().encode("utf-8", "backslashreplace").decode()
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"openclaw {prefix} {key}") if key else uuid.uuid4())


class OpenAiRuns:
    """Starts the runs of both endpoints."""

    def __init__(
        self,
        runtime: Runtime,
        directory: SessionDirectory,
        runs: Runs,
        pipeline: Pipeline,
        notices: Notices,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        leaving: asyncio.Event,
        cluster: Cluster,
    ) -> None:
        self._runtime = runtime
        self._directory = directory
        self._runs = runs
        self._pipeline = pipeline
        self._notices = notices
        self._spawn = spawn
        self._leaving = leaving
        self._cluster = cluster

    async def start(
        self, request: web.BaseRequest, ask: Ask, limits: ResponseImages, max_url_parts: int = MAX_URL_PARTS
    ) -> Following:
        """Submit the message and return once it is on disk. A caller that hangs up meanwhile does not stop it.

        Raises ``RequestRefused``, for example for a picture that cannot be used.
        """
        tools, choice = chosen_tools(ask.tool_choice, ask.tools)
        run_id = run_id_for(request, ask.source)
        target, prompt = await self._find_session(request, ask, run_id)
        images = await read_pictures(prompt.images, limits, max_url_parts)
        entry = await self._directory.entry(target)
        origin = {"provider": ask.source, "surface": "http", "chatType": "direct"}
        message = Incoming(
            facts=Facts(session=target),
            text=prompt.text,
            door="program",
            run_id=run_id,
            source=ask.source,
            route=Route(channel="internal", session_key=target.key),
            reads_commands=False,
            body=MessageBody(
                thinking=parse_level(ask.effort or ""),
                extra_system_prompt=ask.system,
                client_tools=tools,
                tool_outputs=prompt.tool_outputs,
                tool_choice=choice,
                max_tokens=ask.max_tokens,
            ),
            images=images,
            # The request gets a run of its own in every queue mode, because the caller waits for this very answer.
            queue=QueueOverrides(mode="followup", debounce_ms=0, cap=MAX_WAITING, drop="new"),
            entry_fields={"chatType": "direct", "origin": origin} if entry is None else {},
        )
        following = Following(
            run_id,
            {tool.name for tool in tools},
            index=self._runs.index,
            leaving=self._leaving,
            cluster=self._cluster,
            ledger=self._runtime.stores.ledger,
            transcripts=self._runtime.stores.transcripts,
        )

        async def begin() -> None:
            result = await self._pipeline.process(message)
            if not isinstance(result, Accepted):
                raise RequestRefused(BLOCKED, status=403, kind="forbidden")
            following.begin(result.submission)

        try:
            await asyncio.shield(self._spawn(begin()))
        except BaseException:
            following.leave()
            raise
        return following

    async def _find_session(self, request: web.BaseRequest, ask: Ask, run_id: str) -> tuple[SessionRef, Prompt]:
        """Find the session: the named one, else the one that this conversation continues, else a new one.

        Returns it together with the prompt that it gets. Raises ``RequestRefused``.
        """
        agent_id = self._named_agent(request, ask.model)
        explicit = self._named_session(request, ask, agent_id)
        now = self._runtime.clock.now_ms()
        try:
            if explicit is not None:
                # An expired session gives way before the prompt is made, because the prompt depends on what it holds.
                _, rotation = await current_session(Facts(session=explicit), self._runtime, self._runs)
                if rotation is not None:
                    self._notices.announce(explicit, rotation)
                # Messages of a user alone need no context, so the transcript is read only for anything else.
                needs_context = any(message.role != "user" for message in ask.messages)
                stored = await self._newest(explicit) if needs_context else []
                return explicit, compose(ask.messages, stored, now)
            runs = [*([ask.previous_run] if ask.previous_run else []), *runs_named(ask.messages)]
            for earlier in runs[:MAX_NAMED_RUNS]:
                row = await self._runtime.stores.ledger.by_run(earlier)
                if row is None or row.agent_id != agent_id or row.source != ask.source:
                    continue
                target = SessionRef(row.agent_id, row.session_key)
                stored = await self._newest(target)
                prompt = compose(ask.messages, stored, now)
                if prompt.continues and stored:
                    return target, prompt
            target = self._directory.target(f"agent:{agent_id}:{ask.source}:{run_id}", agent_id)
            return target, compose(ask.messages, [], now)
        except NoMessage:
            raise RequestRefused(ask.no_message) from None

    def _named_agent(self, request: web.BaseRequest, model: str) -> str:
        """Returns the agent that the header names, else the one that the model names, else the default agent."""
        headers = request.headers
        if agent := headers.get("x-openclaw-agent-id", "").strip() or headers.get("x-openclaw-agent", "").strip():
            return normalize_agent_id(agent)
        match = _MODEL_AGENT.fullmatch(model.strip())
        return normalize_agent_id(match[1]) if match else default_agent_id(self._runtime.config.current)

    def _named_session(self, request: web.BaseRequest, ask: Ask, agent_id: str) -> SessionRef | None:
        """Return the session that the header or ``user`` names, or None. Raises ``RequestRefused``."""
        try:
            self._directory.require_agent(agent_id)
            key, user = request.headers.get("x-openclaw-session-key", "").strip(), (ask.user or "").strip().lower()
            if not key and user:
                if len(user) > MAX_USER_CHARS or not user.isprintable():
                    raise RequestRefused(f"user: must be printable text of at most {MAX_USER_CHARS} characters")
                key = f"agent:{agent_id}:{ask.source}-user:{user}"
            if not key:
                return None
            try:
                target = self._directory.target(key, agent_id)
                self._directory.refuse_reserved(target, key)
                refuse_subagent(target, key)
            except MethodError as error:
                raise RequestRefused(str(error)) from None
            self._directory.require_agent(target.agent_id)
        except MethodError as error:
            raise RequestRefused(str(error), status=404) from None
        return target

    async def _newest(self, target: SessionRef) -> list[Message]:
        entry = await self._directory.entry(target)
        if entry is None:
            return []
        entries = await self._runtime.stores.transcripts.tail(transcript_ref(target.agent_id, entry), KNOWN_ENTRIES)
        return [message for entry in entries if (message := message_of(entry)) is not None]


class ClientCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that the client is asked to make."""

    id: str
    name: str
    arguments: str
    """The arguments as JSON."""


class RunEnding(msgspec.Struct, kw_only=True):
    """How a run ended, as the endpoints report it."""

    error: str | None = None
    status: int = 500
    """The HTTP status of an answer that holds only the error."""
    text: str = ""
    calls: list[ClientCall] = []
    cut: bool = False
    """The answer reached its length limit."""
    usage: Usage | None = None
    """The tokens of all model calls of the run. None when they are no longer known."""

    @property
    def shown(self) -> str:
        """What the client is shown. An answer that only calls tools may be empty."""
        return self.text or ("" if self.calls else NOTHING_SAID)


class SlowReader(Exception):
    """The caller reads more slowly than the run speaks. The run continues without it."""


class Following:
    """One run as the caller of an HTTP request sees it: first the growing text, then the ending.

    It is made before the message is submitted, so that it receives all of a run on another node.
    """

    def __init__(
        self,
        run_id: str,
        tools: Collection[str],
        *,
        index: RunIndex,
        leaving: asyncio.Event,
        cluster: Cluster,
        ledger: Ledger,
        transcripts: TranscriptStore,
    ) -> None:
        """``tools`` are the names of the tools that the client carries out itself."""
        self.run_id = run_id
        self._tools = tools
        self._index = index
        self._leaving = leaving
        self._cluster = cluster
        self._ledger = ledger
        self._transcripts = transcripts
        self._row: LedgerRow | None = None
        self._run: Run | None = None
        self._unfollow: Callable[[], None] = lambda: None
        self._unread: list[str] = []
        self._size = 0
        self._spoke = False
        self._speaking = False
        """The message that arrives has text."""
        self._breaks = False
        self._broke_off = ""
        """Why the text begins again, for a caller that has read the beginning of a message that failed."""
        self._usage: Usage | None = None
        self._wake = asyncio.Event()
        cluster.relay.follow(run_id, self._remote_text)

    def begin(self, submission: Submission) -> None:
        """Attach to the run, before a new run can emit anything. An earlier run is only waited for."""
        self._row, self._run = submission.row, submission.run
        if not submission.new:
            # The rest of a message of a run on another node may have arrived meanwhile. The end has the whole.
            self.leave()
            self._unread, self._size, self._spoke = [], 0, False
        elif self._run is not None:
            self._unfollow = self._run.follow(self._event)

    def _remote_text(self, delta: str, begins: bool) -> None:
        if self._run is None:
            if begins:
                self._event(AssistantStarted())
            self._event(TextDelta(delta))

    def leave(self) -> None:
        self._cluster.relay.unfollow(self.run_id, self._remote_text)
        self._unfollow()

    def _event(self, event: RunEvent) -> None:
        match event:
            case TextDelta("", _, _):
                pass
            case TextDelta(delta):
                if self._breaks:
                    delta = f"\n\n[{self._broke_off}]\n\n{delta}" if self._broke_off else f"\n\n{delta}"
                    self._breaks, self._broke_off = False, ""
                self._spoke = self._speaking = True
                if self._size <= MAX_BUFFERED_BYTES:
                    self._unread.append(delta)
                    self._size += len(delta)
                self._wake.set()
            case AssistantStarted():
                self._breaks, self._speaking = self._spoke, False
            case ModelSwitched(chosen, active, reason) if self._broke_off:
                self._broke_off = f"{BROKE_OFF} {switch_text(chosen, active, reason)}"
            case AssistantEnded(message, speech):
                self._usage = added(self._usage, message.usage)
                if isinstance(speech, Spoken) and speech.media:
                    self._event(TextDelta(("\n\n" if self._speaking else "") + file_lines(speech.media)))
                if self._speaking and message.stop_reason == "error":
                    self._broke_off = BROKE_OFF
            case _:
                pass

    async def text(self, keep_alive_s: float) -> AsyncGenerator[str, None]:
        """Yields the pieces of the answer as they come, and an empty piece after each ``keep_alive_s`` of silence."""
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

    async def _ended(self) -> bool:
        """Waits for the end of the run. Returns False when the Gateway stops before."""
        # The record does not learn of an end at another node, so the index is asked.
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._index.wait(self.run_id, None)),
            asyncio.ensure_future(self._leaving.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[0].done()
        finally:
            for wait in waits:
                wait.cancel()

    async def ending(self) -> RunEnding:
        """Waits for the end of the run and returns its result."""
        if not await self._ended():
            return RunEnding(error=STOPPING, status=503, usage=self._usage)
        run, row = self._run, self._row
        if run is None or not run.ended:
            assert row is not None
            return await self._stored_ending(await self._ledger.by_run(row.run_id) or row)
        result = run.result
        if run.state != "ok" or result is None:
            error = run.error or "the run failed"
            if run.state == "aborted":
                error = f"the run was stopped before it was done ({run.error or 'stop'})"
            ended = await self._ledger.by_run(self.run_id)
            return RunEnding(error=error, status=_failure_status(ended), usage=self._usage)
        usage = self._usage or result.account.usage
        return self._ok([_with_files(spoken) for spoken in result.said], result.final, usage)

    async def _stored_ending(self, row: LedgerRow) -> RunEnding:
        """Reads the ending from the transcript, for a run that ended earlier or at another node."""
        if row.state not in ("answered", "silent"):
            return RunEnding(error=reason_text(row.reason) or row.state, status=_failure_status(row))
        answers = await _answers_of(self._transcripts, row)
        usage: Usage | None = None
        for answer in answers:
            usage = added(usage, answer.usage)
        good = [answer for answer in answers if answer.stop_reason not in ("error", "aborted")]
        speeches = [speech_of(text) for text in replies(good)]
        texts = [_with_files(speech) for speech in speeches if isinstance(speech, Spoken)]
        texts = texts if speeches else [str((row.result or {}).get("text") or "")]
        return self._ok(texts, good[-1] if good else None, usage)

    def _ok(self, texts: Sequence[str], final: AssistantMessage | None, usage: Usage | None) -> RunEnding:
        return RunEnding(
            text="\n\n".join(text for text in texts if text.strip()),
            calls=[
                ClientCall(
                    id=public_call_id(self.run_id, call.id),
                    name=call.name,
                    arguments=msgspec.json.encode(call.arguments).decode(),
                )
                for call in (final.tool_calls if final else ())
                if call.name in self._tools
            ],
            cut=final is not None and final.stop_reason == "length",
            usage=usage,
        )


def _failure_status(row: LedgerRow | None) -> int:
    """Return 429 for a message that was not accepted because too many wait: the caller may send it again."""
    return 429 if row is not None and row.reason.code == ReasonCode.QUEUE_FULL else 500


async def _answers_of(transcripts: TranscriptStore, row: LedgerRow) -> list[AssistantMessage]:
    """Return the answers of the model in a run. The ids of its entries follow from the run's id."""
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.session_id)
    transcript = await transcripts.open(ref, create=False)
    answers: list[AssistantMessage] = []
    step = 0
    while transcript is not None and (entry := await transcript.entry(entry_id(row.run_id, step))) is not None:
        if isinstance(message := message_of(entry), AssistantMessage):
            answers.append(message)
        step += 1
    return answers


def _with_files(answer: Spoken) -> str:
    """An answer as text alone."""
    return "\n\n".join(part for part in (answer.text, file_lines(answer.media)) if part)


# The answer


class AnswerForm(Protocol):
    """The JSON in which an endpoint answers: whole, or as the events of a stream."""

    def whole(self, ending: RunEnding) -> Any: ...

    def failed(self, ending: RunEnding) -> Any:
        """The whole answer of a run that failed."""
        ...

    def begin(self) -> list[bytes]: ...

    def text(self, piece: str) -> list[bytes]: ...

    def end(self, ending: RunEnding) -> list[bytes]:
        """The last events, also of a run that failed."""
        ...


async def answer(request: web.BaseRequest, following: Following, form: AnswerForm, stream: bool) -> web.StreamResponse:
    """Answers with what the run says. A caller that hangs up does not end the run."""
    try:
        if stream:
            return await _stream(request, following, form)
        ending = await following.ending()
        if ending.error is not None:
            headers = NO_RETRY if ending.status != 429 else {}
            return json_response(form.failed(ending), status=ending.status, headers=headers)
        return json_response(form.whole(ending))
    finally:
        following.leave()


async def _stream(request: web.BaseRequest, following: Following, form: AnswerForm) -> web.StreamResponse:
    """Sends the answer as it grows. Each write waits until the caller reads."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", **headers})
    try:
        writer = await response.prepare(request)
        assert writer is not None
        writer.send_headers()
        await response.write(b"".join(form.begin()))
        sent = ""
        async with aclosing(following.text(KEEP_ALIVE_S)) as pieces:
            async for piece in pieces:
                sent += piece
                await response.write(b"".join(form.text(piece)) if piece else KEEP_ALIVE)
        ending = await following.ending()
        # The last words of a run on another node may come only with its end.
        if sent and len(ending.text) > len(sent) and ending.text.startswith(sent):
            await response.write(b"".join(form.text(ending.text[len(sent) :])))
        await response.write(b"".join(form.end(ending)))
        await response.write(DONE)
        await response.write_eof()
    except (SlowReader, ConnectionError):
        # The connection is broken, so that the caller does not take the part it has for the whole.
        if request.transport is not None:
            request.transport.abort()
    return response


def sse_event(data: Any, name: str | None = None) -> bytes:
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + frames.encode(data) + b"\n\n"
