"""What the two OpenAI endpoints share: a request becomes a run, and the run is followed to its end.

An endpoint reads its own JSON into an ``Ask``, calls ``start``, and lets ``answer`` write what the run says in its
``AnswerForm``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec.structs import replace

from openclaw.agent.continuation import replies
from openclaw.agent.run import entry_id
from openclaw.config.agents import default_agent_id
from openclaw.config.schema.gateway import ChatCompletionsEndpoint, ResponseFiles, ResponseImages, ResponsesEndpoint
from openclaw.events import AssistantEnded, AssistantStarted, ModelSwitched, Spoken, TextDelta
from openclaw.gateway.http.common import RequestRefused, json_response, read_json
from openclaw.gateway.server import frames
from openclaw.gateway.server.events import MAX_BUFFERED_BYTES
from openclaw.gateway.server.registry import MethodError
from openclaw.gateway.session_directory import refuse_subagent
from openclaw.inbound.attachments import Image
from openclaw.inbound.incoming import Facts, Incoming, current_session
from openclaw.inbound.pipeline import Accepted
from openclaw.inbound.prompt_text import with_history
from openclaw.messages import (
    AssistantMessage,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from openclaw.models.base import added
from openclaw.models.errors import switch_text
from openclaw.models.thinking import parse_level
from openclaw.outbound.answer_filter import speech_of
from openclaw.outbound.reply_files import file_lines
from openclaw.outbound.session_preview import message_of
from openclaw.paths import normalize_agent_id
from openclaw.pictures import ImageProblem, fit_image, off_loop, sniff_image
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch
from openclaw.runs.accept import Submission
from openclaw.runs.queue_settings import QueueOverrides
from openclaw.runs.reasons import reason_text
from openclaw.runs.run import Run, RunEvent
from openclaw.sessions.entry import BLOCKED
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.message_ledger import LedgerRow, MessageBody, ReasonCode
from openclaw.storage.transcripts import TranscriptRef
from openclaw.untrusted_text import disarmed, disarmed_name

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

T = TypeVar("T")
KNOWN_ENTRIES = 64
"""The number of newest entries that are read to see what of a conversation the session already holds."""
MAX_NAMED_RUNS = 8
MAX_WAITING = 100
"""The number of requests that may wait for one session. More are refused."""
BROKE_OFF = "The answer broke off here and begins anew."
MAX_USER_CHARS = 256
MAX_TOOLS = 128
MAX_IMAGES = 20
MAX_FILES = 20
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
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL_ID = re.compile(r"call_([A-Za-z0-9_-]{22})([0-9a-f]{8})")
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*(?P<base64>;base64)?,", re.IGNORECASE)
_SUFFIXES = {
    "txt": "text/plain",
    "md": "text/markdown",
    "html": "text/html",
    "htm": "text/html",
    "csv": "text/csv",
    "json": "application/json",
    "pdf": "application/pdf",
}
_closing = re.compile(r"<(?=/file\b)", re.IGNORECASE)


# What a request asks for


class Ask(msgspec.Struct, kw_only=True):
    """What a request asks for, without its session and its pictures."""

    source: str
    """``openai`` or ``openresponses``. The name of its session begins with it."""
    model: str
    """It may name the agent."""
    said: list[Said]
    no_message: str
    """The error text when there is nothing to answer."""
    system: str = ""
    tools: list[ToolSpec] = []
    tool_choice: Any = None
    """As the client wrote it."""
    max_tokens: int | None = None
    effort: str | None = None
    """How hard the model is to think, as the client wrote it."""
    user: str | None = None
    """The name of the caller's own session."""
    previous_run: str | None = None
    """The run of the conversation that the request says it continues."""


class Said(msgspec.Struct, kw_only=True):
    """One message of the request, or one item of its input."""

    role: Literal["user", "assistant", "tool"]
    text: str
    images: list[str] = []
    """The addresses of pictures, mostly ``data:`` ones."""
    name: str = ""
    """The name of the tool whose output this is, where the caller tells it."""
    call_id: str = ""
    calls: list[str] = []
    """The ids of the calls that an assistant's message makes."""


async def read_request(
    request: web.BaseRequest,
    endpoint: ChatCompletionsEndpoint | ResponsesEndpoint,
    name: str,
    shape: type[T],
) -> T:
    """Reads the body. Raises ``RequestRefused``, also when the endpoint is switched off."""
    if not endpoint.enabled:
        hint = f"enable it with gateway.http.endpoints.{name}.enabled"
        raise RequestRefused(f"no such endpoint: {request.path} ({hint})", status=404)
    return await read_json(request, endpoint.max_body_bytes, shape)


def tool_spec(path: str, kind: str, name: str | None, description: str | None, parameters: Any) -> ToolSpec:
    if kind != "function":
        raise RequestRefused(f'{path}.type: only "function" tools can be passed to the agent, not {kind!r}')
    if not name or not _TOOL_NAME.fullmatch(name):
        raise RequestRefused(f"{path}.name: must be 1 to 64 letters, digits, underscores or hyphens")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestRefused(f"{path}.parameters: must be a JSON Schema object")
    schema: dict[str, Any] = parameters or {"type": "object", "properties": {}}
    return ToolSpec(name=name, description=description or "", parameters=schema)


def chosen_tools(choice: Any, tools: list[ToolSpec]) -> tuple[list[ToolSpec], Any]:
    """Returns the tools to offer and the neutral form of ``tool_choice``. Raises ``RequestRefused``."""
    names = [tool.name for tool in tools]
    if len(names) > MAX_TOOLS:
        raise RequestRefused(f"tools: at most {MAX_TOOLS} may be passed")
    if len(set(names)) < len(names):
        raise RequestRefused(f"tools: the name {next(name for name in names if names.count(name) > 1)!r} is used twice")
    match choice:
        case None | "auto":
            return tools, None
        case "none":
            return [], None
        case "required":
            if not tools:
                raise RequestRefused("Error: tool_choice=required but no tools were provided")
            return tools, "required"
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            if name not in names:
                raise RequestRefused(f"Error: tool_choice names {name!r}, which is not among the tools")
            return tools, {"name": name}
        case _:
            raise RequestRefused('tool_choice: must be "auto", "none", "required" or name one function')


def run_id_for(request: web.BaseRequest, prefix: str) -> str:
    """Returns a new id. The same ``Idempotency-Key`` always gives the same id."""
    # A header may hold bytes that are no text.
    key = request.headers.get("idempotency-key", "").strip().encode("utf-8", "backslashreplace").decode()
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"openclaw {prefix} {key}") if key else uuid.uuid4())


def named_agent(gateway: Gateway, request: web.BaseRequest, model: str) -> str:
    """Returns the agent that the header names, else the one that the model names, else the default agent."""
    headers = request.headers
    named = headers.get("x-openclaw-agent-id", "").strip() or headers.get("x-openclaw-agent", "").strip()
    if named:
        return normalize_agent_id(named)
    match = _MODEL_AGENT.fullmatch(model.strip())
    return normalize_agent_id(match[1]) if match else default_agent_id(gateway.runtime.config.current)


def named_session(gateway: Gateway, request: web.BaseRequest, ask: Ask, agent_id: str) -> SessionRef | None:
    """Returns the session that the header or ``user`` names, or None. Raises ``RequestRefused`` for unknown agents."""
    try:
        gateway.directory.require_agent(agent_id)
        key, user = request.headers.get("x-openclaw-session-key", "").strip(), (ask.user or "").strip().lower()
        if not key and user:
            if len(user) > MAX_USER_CHARS or not user.isprintable():
                raise RequestRefused(f"user: must be printable text of at most {MAX_USER_CHARS} characters")
            key = f"agent:{agent_id}:{ask.source}-user:{user}"
        if not key:
            return None
        try:
            target = gateway.directory.target(key, agent_id)
            gateway.directory.refuse_reserved(target, key)
            refuse_subagent(target, key)
        except MethodError as error:
            raise RequestRefused(str(error)) from None
        gateway.directory.require_agent(target.agent_id)
    except MethodError as error:
        raise RequestRefused(str(error), status=404) from None
    return target


# Its run


async def start(
    gateway: Gateway, request: web.BaseRequest, ask: Ask, limits: ResponseImages, max_url_parts: int = MAX_URL_PARTS
) -> Following:
    """Hands the message in and returns once it is on disk. A caller that hangs up meanwhile does not stop it.

    Raises ``RequestRefused``, for example for a picture that cannot be used.
    """
    tools, choice = chosen_tools(ask.tool_choice, ask.tools)
    run_id = run_id_for(request, ask.source)
    target, prompt = await find_session(gateway, request, ask, run_id)
    images = await read_pictures(prompt.images, limits, max_url_parts)
    entry = await gateway.directory.entry(target)
    origin = {"provider": ask.source, "surface": "http", "chatType": "direct"}
    message = Incoming(
        facts=Facts(session=target),
        text=prompt.text,
        door="program",
        run_id=run_id,
        source=ask.source,
        route={"channel": "internal", "sessionKey": target.key},
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
    following = Following(gateway, run_id, {tool.name for tool in tools})

    async def begin() -> None:
        result = await gateway.pipeline.process(message)
        if not isinstance(result, Accepted):
            raise RequestRefused(BLOCKED, status=403, kind="forbidden")
        following.begin(result.submission)

    try:
        await asyncio.shield(gateway.spawn(begin()))
    except BaseException:
        following.leave()
        raise
    return following


async def find_session(gateway: Gateway, request: web.BaseRequest, ask: Ask, run_id: str) -> tuple[SessionRef, Prompt]:
    """Finds the session: the named one, else the one that this conversation continues, else a new one.

    Returns it together with the prompt that it gets. Raises ``RequestRefused``.
    """
    agent_id = named_agent(gateway, request, ask.model)
    explicit = named_session(gateway, request, ask, agent_id)
    now = gateway.runtime.clock.now_ms()
    try:
        if explicit is not None:
            # An expired session gives way before the prompt is made, because the prompt depends on what it holds.
            _, rotation = await current_session(Facts(session=explicit), gateway.runtime, gateway.runs)
            if rotation is not None:
                gateway.notices.announce(explicit, rotation)
            # Words of a user alone need no context, so the transcript is read only for anything else.
            known = await _newest(gateway, explicit) if any(one.role != "user" for one in ask.said) else []
            return explicit, compose(ask.said, known, now)
        runs = [*([ask.previous_run] if ask.previous_run else []), *runs_named(ask.said)]
        for earlier in runs[:MAX_NAMED_RUNS]:
            row = await gateway.runtime.stores.ledger.by_run(earlier)
            if row is None or row.agent_id != agent_id or row.source != ask.source:
                continue
            target = SessionRef(row.agent_id, row.session_key)
            known = await _newest(gateway, target)
            prompt = compose(ask.said, known, now)
            if prompt.continues and known:
                return target, prompt
        target = gateway.directory.target(f"agent:{agent_id}:{ask.source}:{run_id}", agent_id)
        return target, compose(ask.said, [], now)
    except NoMessage:
        raise RequestRefused(ask.no_message) from None


async def _newest(gateway: Gateway, target: SessionRef) -> list[Message]:
    entry = await gateway.directory.entry(target)
    if entry is None:
        return []
    entries = await gateway.runtime.stores.transcripts.tail(transcript_ref(target.agent_id, entry), KNOWN_ENTRIES)
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
    """The caller reads more slowly than the run speaks. The run goes on without it."""


class Following:
    """One run as the caller of an HTTP request sees it: first the growing text, then the ending.

    It is made before the message is handed in, so that it hears all of a run on another node.
    """

    def __init__(self, gateway: Gateway, run_id: str, tools: Collection[str]) -> None:
        """``tools`` are the names of the tools that the client carries out itself."""
        self.run_id = run_id
        self._gateway = gateway
        self._tools = tools
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
        """Why the text begins anew, for a caller that has read the beginning of a message that failed."""
        self._usage: Usage | None = None
        self._wake = asyncio.Event()
        if gateway.cluster is not None:
            gateway.cluster.relay.follow(run_id, self._heard_elsewhere)

    def begin(self, submission: Submission) -> None:
        """Attaches to the run. It is called before a new run can say anything. An earlier run is only waited for."""
        self._row, self._run = submission.row, submission.run
        if not submission.new:
            # Of a run on another node the rest of a message may have been heard meanwhile. The end has the whole.
            self.leave()
            self._unread, self._size, self._spoke = [], 0, False
        elif self._run is not None:
            self._unfollow = self._run.follow(self._event)

    def _heard_elsewhere(self, delta: str, begins: bool) -> None:
        if self._run is None:
            if begins:
                self._event(AssistantStarted())
            self._event(TextDelta(delta))

    def leave(self) -> None:
        if self._gateway.cluster is not None:
            self._gateway.cluster.relay.unfollow(self.run_id, self._heard_elsewhere)
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
        # The record knows nothing of an end at another node, so the index is asked.
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._gateway.runs.index.wait(self.run_id, None)),
            asyncio.ensure_future(self._gateway.leaving.wait()),
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
            return await self._stored_ending(await self._gateway.runtime.stores.ledger.by_run(row.run_id) or row)
        result = run.result
        if run.state != "ok" or result is None:
            error = run.error or "the run failed"
            if run.state == "aborted":
                error = f"the run was stopped before it was done ({run.error or 'stop'})"
            ended = await self._gateway.runtime.stores.ledger.by_run(self.run_id)
            return RunEnding(error=error, status=_failure_status(ended), usage=self._usage)
        return self._ok([_with_files(one) for one in result.said], result.final, self._usage or result.usage)

    async def _stored_ending(self, row: LedgerRow) -> RunEnding:
        """Reads the ending from the transcript, for a run that ended earlier or at another node."""
        if row.state not in ("answered", "silent"):
            return RunEnding(error=reason_text(row.reason) or row.state, status=_failure_status(row))
        answers = await _answers_of(self._gateway, row)
        usage: Usage | None = None
        for answer in answers:
            usage = added(usage, answer.usage)
        good = [answer for answer in answers if answer.stop_reason not in ("error", "aborted")]
        said = [speech_of(text) for text in replies(good)]
        texts = [_with_files(one) for one in said if isinstance(one, Spoken)]
        texts = texts if said else [str((row.result or {}).get("text") or "")]
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
    """A message that found too many others waiting was not taken, so the caller may send it again."""
    return 429 if row is not None and row.reason.code == ReasonCode.QUEUE_FULL else 500


async def _answers_of(gateway: Gateway, row: LedgerRow) -> list[AssistantMessage]:
    """Returns what the model said in a run. The ids of its entries follow from the run's id."""
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.session_id)
    transcript = await gateway.runtime.stores.transcripts.open(ref, create=False)
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
        said = ""
        async with aclosing(following.text(KEEP_ALIVE_S)) as pieces:
            async for piece in pieces:
                said += piece
                await response.write(b"".join(form.text(piece)) if piece else KEEP_ALIVE)
        ending = await following.ending()
        # Of a run on another node the last words may come with its end only.
        if said and len(ending.text) > len(said) and ending.text.startswith(said):
            await response.write(b"".join(form.text(ending.text[len(said) :])))
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


# What the conversation of a request means for a session


class Prompt(msgspec.Struct, kw_only=True):
    """What a session is told."""

    text: str
    images: list[str]
    tool_outputs: list[ToolResultMessage]
    continues: bool
    """The session holds what came before, so the prompt leaves it out."""


class NoMessage(ValueError):
    """There is nothing to answer."""


def compose(said: Sequence[Said], known: Sequence[Message], now_ms: int) -> Prompt:
    """Makes the prompt for a session whose newest messages are ``known``. Raises ``NoMessage``."""
    said = _up_to_current(said)
    place = max((index for index, one in enumerate(said) if one.role == "assistant"), default=-1) + 1
    earlier, new = said[:place], said[place:]
    calls, answered = _last_calls(known)
    matched = {id(one): call for one in new if (call := _call_of(one, calls)) is not None}
    outputs = [
        ToolResultMessage(
            tool_call_id=call.id, tool_name=call.name, content=[TextBlock(text=one.text)], timestamp=now_ms
        )
        for one in new
        if (call := matched.get(id(one))) is not None and call.id not in answered
    ]
    continues = bool(matched) or not earlier or _is_last_answer(earlier[-1].text, known)
    # An output holds text alone, so its pictures come as words of their own after it.
    pictures = {place: replace(one, text="") for one in new if (place := id(one)) in matched and one.images}
    rest = [pictures.get(id(one), one) for one in (new if continues else said) if id(one) not in matched or one.images]
    return Prompt(
        text=_wrapped(rest),
        images=[image for one in rest for image in one.images],
        tool_outputs=outputs,
        continues=continues,
    )


def _up_to_current(said: Sequence[Said]) -> list[Said]:
    """Cuts the conversation after the last message of the user or of a tool. Raises ``NoMessage``."""
    usable = [one for one in said if one.text.strip() or one.images or one.role == "tool"]
    current = max((index for index, one in enumerate(usable) if one.role != "assistant"), default=None)
    if current is None:
        raise NoMessage
    return usable[: current + 1]


def _wrapped(said: Sequence[Said]) -> str:
    if not said:
        return ""
    *earlier, current = said
    if not earlier:
        return disarmed(current.text, of_owner=True)
    history = "\n".join(_labelled(one) for one in earlier)
    return with_history(history, _labelled(current))


def _labelled(one: Said) -> str:
    """``User: text``. The further lines of a text are indented, so that none of them can begin with such a label."""
    tool = disarmed_name(one.name or one.call_id or "unknown")
    labels = {"user": "User", "assistant": "Assistant", "tool": f"Tool:{tool}"}
    pictures = f"{len(one.images)} attached" if len(one.images) > 1 else "attached"
    said = "\n  ".join(disarmed(one.text).splitlines())
    text = " ".join(part for part in (said, f"[image {pictures}]" if one.images else "") if part)
    return f"{labels[one.role]}: {text}"


def _last_calls(known: Sequence[Message]) -> tuple[list[ToolCall], set[str]]:
    """Returns the calls of the last message that did not fail, and the ids of those that have a result."""
    answered: set[str] = set()
    for message in reversed(known):
        if isinstance(message, ToolResultMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, UserMessage):
            break
        elif message.stop_reason not in ("error", "aborted"):
            return message.tool_calls, answered
    return [], answered


def _call_of(one: Said, calls: Sequence[ToolCall]) -> ToolCall | None:
    if one.role != "tool" or not one.call_id:
        return None
    ours = _CALL_ID.fullmatch(one.call_id)
    return next((call for call in calls if call.id == one.call_id or (ours and _digest(call.id) == ours[2])), None)


def _is_last_answer(text: str, known: Sequence[Message]) -> bool:
    """Whether the session answered this text last. A run with tools may have answered in several messages."""
    texts: list[str] = []
    for message in reversed(known):
        if isinstance(message, UserMessage):
            break
        if isinstance(message, AssistantMessage) and message.stop_reason not in ("error", "aborted"):
            texts.insert(0, message.text)
    said = text.split()
    return bool(said) and said in (" ".join(texts).split(), texts[-1].split() if texts else [])


# Tool calls that the client makes


def public_call_id(run_id: str, call_id: str) -> str:
    """Returns the id that the client gets. It names the run, and so the session, that waits for the output.

    A stateless client sends nothing but this id, and the vendors' own ids do not name the run.
    """
    run = base64.urlsafe_b64encode(uuid.UUID(run_id).bytes).decode().rstrip("=")
    return f"call_{run}{_digest(call_id)}"


def run_of(public_id: str) -> str | None:
    """Returns the run that made the call, or None when the id is not ours."""
    match = _CALL_ID.fullmatch(public_id)
    if match is None:
        return None
    try:
        return str(uuid.UUID(bytes=base64.urlsafe_b64decode(match[1] + "==")))
    except (ValueError, binascii.Error):
        return None


def runs_named(said: Sequence[Said]) -> list[str]:
    """Returns the runs whose calls the conversation mentions, newest first."""
    ids = [call_id for one in reversed(said) for call_id in (one.call_id, *one.calls) if call_id]
    return list(dict.fromkeys(run for call_id in ids if (run := run_of(call_id)) is not None))


def _digest(call_id: str) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:8]


# Pictures and files


async def read_pictures(urls: list[str], limits: ResponseImages, max_url_parts: int) -> list[Image]:
    """Reads the pictures at these addresses, in order. Raises ``RequestRefused`` for the first that cannot be used."""
    if len(urls) > MAX_IMAGES:
        raise RequestRefused(f"at most {MAX_IMAGES} images can be passed in one request")
    check_url_parts(sum(not url.startswith("data:") for url in urls), max_url_parts)
    return [await _picture(url, number, limits) for number, url in enumerate(urls, 1)]


async def _picture(url: str, number: int, limits: ResponseImages) -> Image:
    what = f"image {number}"
    if _is_data_url(url):
        data, _ = await off_loop(lambda: _decoded(url, limits.max_bytes, what))
    else:
        data = await _fetched(url, limits, what)
    mime = sniff_image(data[:16])
    if mime is None or mime not in limits.allowed_mimes:
        kinds = ", ".join(limits.allowed_mimes)
        raise RequestRefused(f"{what}: the content is not one of {kinds}")
    try:
        fitted = await off_loop(lambda: fit_image(data, mime))
    except ImageProblem as problem:
        raise RequestRefused(f"{what}: {problem}") from None
    return Image(base64.b64decode(fitted.block.data), fitted.block.mime_type)


class InputFile(msgspec.Struct, kw_only=True):
    name: str
    data: str | None = None
    """The content as Base64 or as a ``data:`` address."""
    mime: str | None = None
    url: str | None = None


async def file_blocks(files: list[InputFile], limits: ResponseFiles) -> list[str]:
    """Returns each file as a marked block of text. Raises ``RequestRefused`` for the first that cannot be read."""
    if len(files) > MAX_FILES:
        raise RequestRefused(f"at most {MAX_FILES} files can be passed in one request")
    return [await _block(file, number, limits) for number, file in enumerate(files, 1)]


async def _block(file: InputFile, number: int, limits: ResponseFiles) -> str:
    what = f"file {number}"
    claimed, name, source = file.mime, file.name, file.url or file.data or ""
    if file.url is not None and not _is_data_url(file.url):
        data = await _fetched(file.url, limits, what)
        name = name if name != "file" else file.url.partition("?")[0].rsplit("/", 1)[-1]
    else:
        data, mime = await off_loop(lambda: _decoded(source, limits.max_bytes, what))
        claimed = mime or claimed
    mime = (claimed or _SUFFIXES.get(name.rpartition(".")[2].lower(), "text/plain")).lower()
    if data.startswith(b"%PDF-") or mime == "application/pdf":
        raise RequestRefused(f"{what}: PDF files cannot be read yet; send their text instead")
    if mime not in limits.allowed_mimes:
        raise RequestRefused(f"{what}: the type {mime} is not one of {', '.join(limits.allowed_mimes)}")
    text = data.decode("utf-8", "replace")
    if "\x00" in text:
        raise RequestRefused(f"{what}: the content is not text")
    return _marked(name, text[: limits.max_chars], len(text) > limits.max_chars)


def _marked(name: str, text: str, cut: bool) -> str:
    """Wraps the text of a file in a ``<file>`` block. The text cannot close the block itself."""
    shown = "".join(char for char in disarmed_name(name) if char.isprintable() and char not in '"<>&')[:200] or "file"
    note = "\n[cut here: the file is longer]" if cut else ""
    return f'<file name="{shown}">\n{_closing.sub("&lt;", disarmed(text))}{note}\n</file>'


def check_url_parts(count: int, most: int) -> None:
    if count > most:
        raise RequestRefused(f"at most {most} parts can be fetched by URL in one request")


def _decoded(source: str, max_bytes: int, what: str) -> tuple[bytes, str | None]:
    """Returns the content of a ``data:`` address or of Base64 text, and the type that the address claims."""
    mime, is_base64, too_large = None, True, RequestRefused(f"{what}: larger than {max_bytes} bytes")
    if _is_data_url(source):
        match = _DATA_URL.match(source)
        if match is None:
            raise RequestRefused(f"{what}: the data URL is malformed; it begins with data:<type>;base64,")
        mime, is_base64 = (match["mime"] or "text/plain").lower(), bool(match["base64"])
        source = source[match.end() :]
    # What is certainly too large is not decoded.
    if (len(source) * 3 // 4 - 3 if is_base64 else len(source) // 3) > max_bytes:
        raise too_large
    try:
        data = base64.b64decode(source, validate=True) if is_base64 else unquote_to_bytes(source)
    except (binascii.Error, ValueError):
        raise RequestRefused(f"{what}: invalid base64 content") from None
    if len(data) > max_bytes:
        raise too_large
    return data, mime


def _is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


async def _fetched(url: str, limits: ResponseImages | ResponseFiles, what: str) -> bytes:
    if not limits.allow_url:
        raise RequestRefused(f"{what}: fetching by URL is switched off here; send the content as a data URL")
    bounds = FetchLimits(
        max_bytes=limits.max_bytes,
        max_redirects=limits.max_redirects,
        timeout_s=limits.timeout_ms / 1000,
        hosts=None if limits.url_allowlist is None else tuple(limits.url_allowlist),
    )
    try:
        return await fetch(url, bounds)
    except FetchRefused as refused:
        raise RequestRefused(f"{what}: {refused}") from None
