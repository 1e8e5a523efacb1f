"""The agent loop: stream an answer, run its tool calls, listen for new words from the user, repeat.

A pure function over messages that yields events. It knows no storage, no channel and no vendor: the caller stores each
message when its event arrives, before the loop goes on to the next model call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.agent.continuation import Part, Reply, told_of_cut_call
from openclaw.agent.tool_calls import call_tool, not_run
from openclaw.clock import Clock
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    ContinuationAsked,
    Event,
    RetryScheduled,
    RunEnded,
    RunStarted,
    SteeringInjected,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
    ToolUpdated,
    Unsaid,
)
from openclaw.messages import AssistantBlock, AssistantMessage, Message, TextBlock, ThinkingBlock, ToolCall, UserMessage
from openclaw.models.base import Done, Model, ModelError, ModelRequest, StreamEvent, Text, Thinking
from openclaw.outbound.reasoning import Piece, Said
from openclaw.outbound.visible import SpeechStream
from openclaw.tools.base import Tool, ToolContext, ToolResult

SKIPPED_FOR_USER = "Skipped due to queued user message."
REFUSED = (
    "The model's provider refused the request, and refused it again in its simplest form. Nothing is lost: write "
    "again, choose another model with /model, or begin anew with /new. The provider said: {error}"
)


class Steered(msgspec.Struct, frozen=True):
    message: UserMessage
    token: str


class Inbox(Protocol):
    """Where messages that arrive during a run wait. Both polls take what they return."""

    def steering(self) -> list[Steered]:
        """Polled before the first call, after each tool and after each answer."""
        ...

    def follow_ups(self) -> list[Steered]:
        """Polled when the run would otherwise end."""
        ...


class NoInbox:
    def steering(self) -> list[Steered]:
        return []

    def follow_ups(self) -> list[Steered]:
        return []


class LoopOptions(msgspec.Struct, kw_only=True):
    model: Model
    stream: Callable[[ModelRequest], AsyncIterator[StreamEvent]]
    request: Callable[[list[Message]], ModelRequest]
    """Builds the next request from everything said so far; the place for hygiene and pruning."""
    tools: Mapping[str, Tool]
    tool_context: ToolContext
    clock: Clock
    abort: AbortSignal
    inbox: Inbox = NoInbox()
    retry_delay_ms: Callable[[int, ModelError], int | None] = lambda attempt, error: None
    """The wait before retry number ``attempt`` (from 1), or None to give up."""
    max_retries: int = 3
    simplify: Callable[[ModelError], bool] = lambda error: False
    """Asked when a provider refused a request as malformed: True when the next one will be plainer."""
    client_tools: frozenset[str] = frozenset()
    """Tools that the caller of the Gateway runs itself: a call to one ends the run, its result comes later."""
    tool_update: Callable[[ToolUpdated], None] = lambda update: None
    """Progress of a running tool: shown, never stored, so it does not wait for the loop's next event."""
    speech: Callable[[], SpeechStream] = SpeechStream
    """Tells what of the model's words is for people."""
    max_continuations: int = 0
    """How often the model is asked for the rest of one answer that the output limit cut."""


async def run_loop(messages: list[Message], options: LoopOptions) -> AsyncIterator[Event]:
    """Runs until the model has nothing more to do. Extends ``messages`` in place; exactly one RunEnded comes last."""
    added: list[Message] = []
    outcome, error = "ok", None
    yield RunStarted(options.clock.now_ms())
    try:
        reply = Reply.resumed(messages, options.speech, options.max_continuations)
        if reply.parts and isinstance(messages[-1], AssistantMessage):
            yield _ask_for_more(messages[-1], reply, messages, added, options)
        pending = options.inbox.steering() if not reply.parts else []
        while True:
            for steered in pending:
                _add(messages, added, steered.message)
                yield SteeringInjected(steered.message, steered.token)
            answer: AssistantMessage | None = None
            goes_on = False
            async for event in _answer(messages, options, reply):
                if isinstance(event, AssistantEnded):
                    answer, goes_on = event.message, event.continues
                    if answer.stop_reason not in ("error", "aborted"):
                        messages.append(answer)
                    added.append(answer)
                yield event
            assert answer is not None
            if answer.stop_reason in ("error", "aborted"):
                outcome, error = answer.stop_reason, _text_or_none(answer.error_message)
                break
            pending = []
            if goes_on:
                yield _ask_for_more(answer, reply, messages, added, options)
                continue
            reply = Reply(options.speech, options.max_continuations)
            calls = answer.tool_calls
            if calls and any(call.name in options.client_tools for call in calls):
                async for event in _hand_over(calls, options):
                    if isinstance(event, ToolEnded):
                        _add(messages, added, event.message)
                    yield event
                break
            if calls:
                async for event in _run_tools(calls, options, pending):
                    if isinstance(event, ToolEnded):
                        _add(messages, added, event.message)
                    yield event
                if options.abort.aborted:
                    outcome, error = "aborted", options.abort.reason
                    break
                if (note := told_of_cut_call(answer, options.clock.now_ms())) is not None:
                    _add(messages, added, note)
                    yield ContinuationAsked(note, 1)
            pending = pending or options.inbox.steering()
            if not calls and not pending:
                pending = options.inbox.follow_ups()
                if not pending:
                    break
    except Aborted as stopped:
        outcome, error = "aborted", str(stopped)
    yield RunEnded(outcome, error, added)


def _add(messages: list[Message], added: list[Message], message: Message) -> None:
    messages.append(message)
    added.append(message)


def _ask_for_more(
    cut: AssistantMessage, reply: Reply, messages: list[Message], added: list[Message], options: LoopOptions
) -> ContinuationAsked:
    request = reply.request(cut, options.clock.now_ms())
    _add(messages, added, request)
    return ContinuationAsked(request, reply.parts)


async def _answer(messages: list[Message], options: LoopOptions, reply: Reply) -> AsyncIterator[Event]:
    """One assistant message, with retries; failed attempts are reported as messages of their own."""
    attempt = 0
    simplified = False
    while True:
        request = options.request(messages)
        failure: ModelError | None = None
        so_far = _Partial(options)
        part = reply.begin()
        for event in _beginning(reply, part, first_attempt=attempt == 0 and not simplified):
            yield event
        stream = options.stream(request)
        try:
            while True:
                with options.abort.waiting():
                    event = await anext(stream, None)
                match event:
                    case Text(delta):
                        so_far.text(delta)
                        for piece in part.feed(delta):
                            yield _delta(piece)
                    case Thinking(delta):
                        so_far.thinking(delta)
                        yield ThinkingDelta(delta)
                    case Done(message):
                        for event in _ending(message, part, reply):
                            yield event
                        return
                    case None:
                        raise ModelError("The model's stream ended without a final event.", kind="network")
                    case _:
                        pass
        except Aborted as stopped:
            for piece in part.close(complete=False):
                yield _delta(piece)
            yield AssistantEnded(so_far.message("aborted", str(stopped)), part.speech.outcome)
            return
        except ModelError as error:
            failure = error
        finally:
            await _close(stream)
        # A model that is not there (404) does not come back for a plainer request.
        malformed = failure.kind == "format" and failure.status != 404
        if malformed and options.simplify(failure):
            simplified = True
            yield AssistantEnded(so_far.message("error", str(failure), failure.partial), continues=True)
            yield RetryScheduled(1, 1, 0, str(failure))
            continue
        attempt += 1
        why = REFUSED.format(error=failure) if malformed and simplified else str(failure)
        delay = options.retry_delay_ms(attempt, failure) if attempt <= options.max_retries else None
        speech = reply.heard() if delay is None else Unsaid()
        yield AssistantEnded(so_far.message("error", why, failure.partial), speech, continues=delay is not None)
        if delay is None:
            return
        yield RetryScheduled(attempt, options.max_retries, delay, str(failure))
        try:
            with options.abort.waiting():
                await options.clock.sleep(delay / 1000)
        except Aborted as stopped:
            yield AssistantStarted()
            yield AssistantEnded(_Partial(options).message("aborted", str(stopped)), reply.heard())
            return


def _beginning(reply: Reply, part: Part, *, first_attempt: bool) -> list[Event]:
    """A continuation goes on where the part before ended; only a new attempt shows that part again."""
    if not reply.parts:
        return [AssistantStarted()]
    if first_attempt:
        return []
    return [AssistantStarted(), *([TextDelta(part.said_before)] if part.said_before else [])]


def _ending(message: AssistantMessage, part: Part, reply: Reply) -> list[Event]:
    """What was held back, and the finished message as it will be stored."""
    pieces = [] if part.received or not message.text else part.feed(message.text)
    stored = part.speech.stored(message, part.before, thinking=part.thinking)
    if reply.goes_on(message, part):
        pieces += part.pause()
        reply.keep(part)
        return [*map(_delta, pieces), AssistantEnded(stored, Unsaid(), continues=True)]
    pieces += part.close(complete=True)
    return [*map(_delta, pieces), AssistantEnded(stored, part.speech.outcome)]


def _delta(piece: Piece) -> TextDelta | ThinkingDelta:
    return TextDelta(piece.text) if isinstance(piece, Said) else ThinkingDelta(piece.text)


async def _run_tools(calls: list[ToolCall], options: LoopOptions, steered: list[Steered]) -> AsyncIterator[Event]:
    """Runs the calls in order. Words from the user or an abort skip the rest: each still gets its result."""
    for call in calls:
        if options.abort.aborted:
            yield _skip(call, f"Not run: the run was stopped ({options.abort.reason}).", options)
            continue
        if steered:
            yield _skip(call, SKIPPED_FOR_USER, options)
            continue
        yield ToolStarted(call.id, call.name, call.arguments)
        context = msgspec.structs.replace(
            options.tool_context, call_id=call.id, update=partial(_forward, call, options.tool_update)
        )
        yield await call_tool(call, options.tools, context, options.abort, options.clock)
        steered.extend(options.inbox.steering())


async def _hand_over(calls: list[ToolCall], options: LoopOptions) -> AsyncIterator[Event]:
    """Runs the calls that are ours and leaves those of the caller open."""
    async for event in _run_tools([call for call in calls if call.name not in options.client_tools], options, []):
        yield event


def _forward(call: ToolCall, send: Callable[[ToolUpdated], None], result: ToolResult) -> None:
    send(ToolUpdated(call.id, call.name, call.arguments, result))


def _skip(call: ToolCall, why: str, options: LoopOptions) -> ToolEnded:
    return ToolEnded(not_run(call, why, options.clock.now_ms()), call.arguments, True)


class _Partial:
    """What has been streamed of a message so far, should it never be finished."""

    def __init__(self, options: LoopOptions) -> None:
        self._options = options
        self._parts: list[tuple[str, list[str]]] = []

    def text(self, delta: str) -> None:
        self._collect("text", delta)

    def thinking(self, delta: str) -> None:
        self._collect("thinking", delta)

    def _collect(self, kind: str, delta: str) -> None:
        if not self._parts or self._parts[-1][0] != kind:
            self._parts.append((kind, []))
        self._parts[-1][1].append(delta)

    def message(self, stop_reason: Any, why: str, known: AssistantMessage | None = None) -> AssistantMessage:
        model = self._options.model
        content: list[AssistantBlock] = [
            TextBlock(text="".join(parts)) if kind == "text" else ThinkingBlock(thinking="".join(parts))
            for kind, parts in self._parts
        ]
        if known is not None:
            # Calls of a failed message are never run; keeping them would leave calls without results.
            content = [block for block in known.content if not isinstance(block, ToolCall)]
        base = known or AssistantMessage(content=[], api=model.api, provider=model.provider, model=model.id)
        return msgspec.structs.replace(
            base,
            content=content,
            stop_reason=stop_reason,
            error_message=why,
            timestamp=base.timestamp or self._options.clock.now_ms(),
        )


async def _close(stream: AsyncIterator[StreamEvent]) -> None:
    """Closes the provider's connection now rather than when the garbage collector finds it."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def _text_or_none(value: str | msgspec.UnsetType) -> str | None:
    return value if isinstance(value, str) else None
