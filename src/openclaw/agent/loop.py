"""The agent loop: stream an answer, run its tool calls, listen for new words from the user, repeat.

It knows no storage, no channel and no vendor: whoever runs it is told of everything that happens, in order. What is to
be shown is told in passing; for what must last the loop waits until it is kept, before it goes on to the next call.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Literal, Protocol

import msgspec

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.agent.continuation import AnswerPart, GrowingAnswer, told_of_cut_call
from openclaw.clock import Clock
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    ContinuationAsked,
    Event,
    RetryScheduled,
    RunEnded,
    RunStarted,
    Speech,
    SteeringInjected,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
    ToolUpdated,
    Unsaid,
)
from openclaw.messages import (
    AssistantBlock,
    AssistantMessage,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from openclaw.models.base import Heard, Model, ModelError, ModelRequest, StreamEvent, Text, Thinking
from openclaw.outbound.reasoning import AnswerText, Piece
from openclaw.outbound.visible import SpeechStream
from openclaw.tools.arguments import InvalidArguments, validate_arguments
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult

FAILED = ("error", "aborted")
"""Reasons to stop of a message that the model does not get to read again."""
SKIPPED_FOR_USER = "Skipped due to queued user message."
REFUSED = (
    "The model's provider refused the request, and refused it again in its simplest form. Nothing is lost: write "
    "again, choose another model with /model, or begin anew with /new. The provider said: {error}"
)


class Steered(msgspec.Struct, frozen=True):
    message: UserMessage
    token: str


class SteeringInbox(Protocol):
    """Where messages that arrive during a run wait. Both polls take what they return."""

    def waiting(self) -> bool:
        """Asked after each tool: whether there is something to take. It stays there until it can be told."""
        ...

    def steering(self) -> list[Steered]:
        """Polled before the first call, and after each answer and its tools."""
        ...

    def follow_ups(self) -> list[Steered]:
        """Polled when the run would otherwise end."""
        ...


class NoInbox:
    def waiting(self) -> bool:
        return False

    def steering(self) -> list[Steered]:
        return []

    def follow_ups(self) -> list[Steered]:
        return []


async def _forget(event: Event) -> None:
    """Does nothing: for a run of which nothing is kept."""


class LoopOptions(msgspec.Struct, kw_only=True):
    model: Model
    ask: Callable[[ModelRequest, Heard], Awaitable[AssistantMessage]]
    """The model's whole answer; what it says on the way is heard as it comes."""
    request: Callable[[list[Message]], ModelRequest]
    """Builds the next request from everything said so far; the place for hygiene and pruning."""
    tools: Mapping[str, Tool]
    tool_context: Callable[[ToolCall, Callable[[ToolResult], None]], ToolContext]
    """Makes the context of one call. The second argument is called with the tool's progress."""
    clock: Clock
    abort: AbortSignal
    show: Callable[[Event], None] = lambda event: None
    """Called with events that only a watcher needs: beginnings, deltas, a tool's progress, a coming retry."""
    keep: Callable[[Event], Awaitable[None]] = _forget
    """Called with events that belong to the conversation. The loop waits until they are kept."""
    inbox: SteeringInbox = NoInbox()
    retry_delay_ms: Callable[[int, ModelError], int | None] = lambda attempt, error: None
    """The wait before retry number ``attempt`` (from 1), or None to give up."""
    max_retries: int = 3
    simplify: Callable[[ModelError], bool] = lambda error: False
    """Asked when a provider refused a request as malformed: True when the next one will be plainer."""
    client_tools: frozenset[str] = frozenset()
    """Tools that the caller of the Gateway runs itself: a call to one ends the run, its result comes later."""
    speech: Callable[[], SpeechStream] = SpeechStream
    """Tells what of the model's words is for people."""
    max_continuations: int = 0
    """How often the model is asked for the rest of one answer that the output limit cut."""


async def run_loop(messages: list[Message], options: LoopOptions) -> RunEnded:
    """Runs until the model has nothing more to do. Extends ``messages`` in place."""
    talk = _Conversation(messages, options)
    options.show(RunStarted(options.clock.now_ms()))
    reply = GrowingAnswer.resumed(messages, options.speech, options.max_continuations)
    if reply.parts and isinstance(messages[-1], AssistantMessage):
        await talk.ask_for_more(messages[-1], reply)
    pending = options.inbox.steering() if not reply.parts else []
    while True:
        for steered in pending:
            talk.add(steered.message)
            await options.keep(SteeringInjected(steered.message, steered.token))
        pending = []
        ended = await _answer(talk, reply)
        answer = ended.message
        if answer.stop_reason in FAILED:
            return talk.over(answer.stop_reason, _text_or_none(answer.error_message))
        if ended.continues:
            await talk.ask_for_more(answer, reply)
            continue
        calls = answer.tool_calls
        if calls and any(call.name in options.client_tools for call in calls):
            # Those that are ours are run, those of the caller stay open.
            await _run_tools([call for call in calls if call.name not in options.client_tools], talk)
            return talk.over("ok")
        if calls:
            await _run_tools(calls, talk)
            if options.abort.aborted:
                return talk.over("aborted", options.abort.reason)
            if (note := told_of_cut_call(answer, options.clock.now_ms())) is not None:
                talk.add(note)
                await options.keep(ContinuationAsked(note, 1))
        pending = options.inbox.steering()
        if not calls and not pending:
            pending = options.inbox.follow_ups()
            if not pending:
                return talk.over("ok")
        reply = GrowingAnswer(options.speech, options.max_continuations)


class _Conversation:
    """The conversation, as the run adds to it."""

    def __init__(self, messages: list[Message], options: LoopOptions) -> None:
        self.messages = messages
        self.options = options
        self.added: list[Message] = []

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.added.append(message)

    async def end(self, message: AssistantMessage, speech: Speech, *, continues: bool = False) -> AssistantEnded:
        if message.stop_reason not in FAILED:
            self.messages.append(message)
        self.added.append(message)
        ended = AssistantEnded(message, speech, continues)
        await self.options.keep(ended)
        return ended

    async def ask_for_more(self, cut: AssistantMessage, reply: GrowingAnswer) -> None:
        request = reply.request(cut, self.options.clock.now_ms())
        self.add(request)
        await self.options.keep(ContinuationAsked(request, reply.parts))

    def over(self, outcome: str, error: str | None = None) -> RunEnded:
        return RunEnded(outcome, error, self.added)


async def _answer(talk: _Conversation, reply: GrowingAnswer) -> AssistantEnded:
    """One assistant message, with retries; failed attempts are kept as messages of their own."""
    options = talk.options
    attempt = 0
    simplified = False
    while True:
        request = options.request(talk.messages)
        so_far: list[Text | Thinking] = []
        part = reply.begin()
        _show_beginning(reply, part, options, first_attempt=attempt == 0 and not simplified)
        try:
            message = await _ask(request, part, so_far, options)
        except Aborted as stopped:
            _show(part.close(complete=False), options)
            return await talk.end(_broken_off(so_far, "aborted", str(stopped), options), part.speech.outcome)
        except ModelError as error:
            failure = error
        else:
            return await _end(message, part, reply, talk)
        # A model that is not there (404) does not come back for a plainer request.
        malformed = failure.kind == "format" and failure.status != 404
        if malformed and options.simplify(failure):
            simplified = True
            failed = _broken_off(so_far, "error", str(failure), options, failure.partial)
            await talk.end(failed, Unsaid(), continues=True)
            options.show(RetryScheduled(1, 1, 0, str(failure)))
            continue
        attempt += 1
        why = REFUSED.format(error=failure) if malformed and simplified else str(failure)
        failed = _broken_off(so_far, "error", why, options, failure.partial)
        delay = options.retry_delay_ms(attempt, failure) if attempt <= options.max_retries else None
        if delay is None:
            return await talk.end(failed, reply.heard())
        await talk.end(failed, Unsaid(), continues=True)
        options.show(RetryScheduled(attempt, options.max_retries, delay, str(failure)))
        try:
            with options.abort.waiting():
                await options.clock.sleep(delay / 1000)
        except Aborted as stopped:
            options.show(AssistantStarted())
            return await talk.end(_broken_off([], "aborted", str(stopped), options), reply.heard())


async def _ask(
    request: ModelRequest, part: AnswerPart, so_far: list[Text | Thinking], options: LoopOptions
) -> AssistantMessage:
    """The message as the provider ends it; what it says on the way is shown and put into ``so_far`` as it comes."""
    abort = options.abort

    def heard(event: StreamEvent) -> None:
        if type(event) is Text:
            so_far.append(event)
            _show(part.feed(event.delta), options)
        elif type(event) is Thinking:
            so_far.append(event)
            options.show(ThinkingDelta(event.delta))
        if abort.reason is not None:
            raise Aborted(abort.reason)  # By someone who was shown this.

    with abort.waiting():
        return await options.ask(request, heard)


def _show_beginning(reply: GrowingAnswer, part: AnswerPart, options: LoopOptions, *, first_attempt: bool) -> None:
    """A continuation goes on where the part before ended; only a new attempt shows that part again."""
    if reply.parts and first_attempt:
        return
    options.show(AssistantStarted())
    if reply.parts and part.said_before:
        options.show(TextDelta(part.said_before))


async def _end(
    message: AssistantMessage, part: AnswerPart, reply: GrowingAnswer, talk: _Conversation
) -> AssistantEnded:
    """Shows what was held back, and keeps the finished message as it is to be stored."""
    if not part.received and message.text:
        _show(part.feed(message.text), talk.options)
    stored = part.speech.stored(message, part.before, thinking=part.thinking)
    if reply.goes_on(message, part):
        _show(part.pause(), talk.options)
        reply.keep(part)
        return await talk.end(stored, Unsaid(), continues=True)
    _show(part.close(complete=True), talk.options)
    return await talk.end(stored, part.speech.outcome)


def _show(pieces: Iterable[Piece], options: LoopOptions) -> None:
    for piece in pieces:
        options.show(TextDelta(piece.text) if type(piece) is AnswerText else ThinkingDelta(piece.text))


async def _run_tools(calls: list[ToolCall], talk: _Conversation) -> None:
    """Runs the calls in order. Words from the user or an abort skip the rest: each still gets its result."""
    options = talk.options
    interrupted = False
    for call in calls:
        if options.abort.aborted:
            ended = _skip(call, f"Not run: the run was stopped ({options.abort.reason}).", options)
        elif interrupted:
            ended = _skip(call, SKIPPED_FOR_USER, options)
        else:
            await options.keep(ToolStarted(call.id, call.name, call.arguments))
            context = options.tool_context(call, partial(_show_progress, call, options.show))
            ended = await call_tool(call, options.tools, context, options.abort, options.clock)
        talk.add(ended.message)
        await options.keep(ended)
        interrupted = interrupted or options.inbox.waiting()


def _show_progress(call: ToolCall, show: Callable[[Event], None], result: ToolResult) -> None:
    show(ToolUpdated(call.id, call.name, call.arguments, result))


def _skip(call: ToolCall, why: str, options: LoopOptions) -> ToolEnded:
    return ToolEnded(not_run(call, why, options.clock.now_ms()), call.arguments, True)


def _broken_off(
    so_far: list[Text | Thinking],
    stop_reason: Literal["error", "aborted"],
    why: str,
    options: LoopOptions,
    known: AssistantMessage | None = None,
) -> AssistantMessage:
    """A message that is never finished, from what was streamed of it, or what is ``known`` of it otherwise."""
    model = options.model
    content: list[AssistantBlock] = []
    if known is not None:
        # Calls of a failed message are never run; keeping them would leave calls without results.
        content = [block for block in known.content if not isinstance(block, ToolCall)]
    else:
        for kind, events in groupby(so_far, type):
            text = "".join(event.delta for event in events)
            content.append(TextBlock(text=text) if kind is Text else ThinkingBlock(thinking=text))
    base = known or AssistantMessage(content=[], api=model.api, provider=model.provider, model=model.id)
    return msgspec.structs.replace(
        base,
        content=content,
        stop_reason=stop_reason,
        error_message=why,
        timestamp=base.timestamp or options.clock.now_ms(),
    )


def _text_or_none(value: str | msgspec.UnsetType) -> str | None:
    return value if isinstance(value, str) else None


log = logging.getLogger("openclaw.agents.tools")


async def call_tool(
    call: ToolCall,
    tools: Mapping[str, Tool],
    context: ToolContext,
    abort: AbortSignal,
    clock: Clock,
) -> ToolEnded:
    """Never raises: an unknown tool, bad arguments, a failure and an abort are all results the model can read."""
    tool = tools.get(call.name)
    if tool is None:
        return _ended(call, not_run(call, f"Tool {call.name} not found", clock.now_ms()), True)
    try:
        arguments = validate_arguments(tool.spec, call.arguments)
    except InvalidArguments as invalid:
        return _ended(call, not_run(call, str(invalid), clock.now_ms()), True)
    try:
        with abort.waiting():
            result = await tool.run(arguments, context)
    except Aborted as stopped:
        message = not_run(call, f"Stopped while running ({stopped}).", clock.now_ms())
        return _ended(call, message, True)
    except ToolError as failure:
        result = error_result(call.name, str(failure))
    except Exception as failure:
        log.exception("tool %s failed in run %s of %s", call.name, context.run_id, context.session_key)
        result = error_result(call.name, f"{type(failure).__name__}: {failure}")
    message = ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=result.content,
        details=result.details,
        timestamp=clock.now_ms(),
    )
    return _ended(call, message, result.failed)


def error_result(tool: str, error: str) -> ToolResult:
    """The shape existing clients know a failed tool by: the same JSON as text and as details."""
    details: dict[str, Any] = {"status": "error", "tool": tool, "error": error}
    text = msgspec.json.format(msgspec.json.encode(details), indent=2).decode()
    return ToolResult(content=[TextBlock(text=text)], details=details)


def not_run(call: ToolCall, why: str, now_ms: int) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=[TextBlock(text=why)],
        is_error=True,
        timestamp=now_ms,
    )


def _ended(call: ToolCall, message: ToolResultMessage, failed: bool) -> ToolEnded:
    return ToolEnded(message, call.arguments, failed)
