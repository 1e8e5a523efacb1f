"""The agent loop: it streams an answer, runs the tool calls, accepts new messages of the user, and repeats.

The loop writes to no store, speaks to no channel and knows no vendor. It reports everything that happens to its caller,
in order: events that are only displayed go to an ``EventSink``, those that belong to the conversation to an
``EntryStore``, which persists them before the loop continues. A ``ModelPort`` asks the model.

If the output limit cuts an answer, the loop asks for the rest and joins the parts to one text. What the rest says again
is removed, a code fence stays open across the cut, and a tool call that was cut is asked for again. An ``AbortSignal``
stops the loop where it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, Protocol

import msgspec

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.agent.continuation import AnswerPart, GrowingAnswer, cut_call_notice
from openclaw.agent.repeated_calls import RepeatedCalls
from openclaw.clock import Clock
from openclaw.config.schema.tools import LoopDetection
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
    FAILED_STOPS,
    AssistantBlock,
    AssistantMessage,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from openclaw.models.base import Counted, Model, ModelError, ModelRequest, OnEvent, StreamEvent, Text, Thinking
from openclaw.models.calls import HandOver, NextStep, TryAgain
from openclaw.outbound.answer_filter import AnswerText, Piece, SpeechRules
from openclaw.path_opener import PathRefused
from openclaw.tools.arguments import InvalidArguments, unknown_tool, validate_arguments, with_example
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult, runs_parallel

log = logging.getLogger("openclaw.agent.tools")

EMPTY: Mapping[str, Any] = {}
MOST_TOGETHER = 8
"""Calls that run at the same time."""
SKIPPED_FOR_USER = "Skipped due to queued user message."
REFUSED = (
    "The model's provider refused the request, and refused it again in its simplest form. Nothing is lost: write "
    "again, choose another model with /model, or start a new session with /new. The provider said: {error}"
)


class Steered(msgspec.Struct, frozen=True):
    """A message that arrived while the run was working."""

    message: UserMessage
    token: str
    """The run id under which the message was accepted."""


class SteeringInbox(Protocol):
    """Holds the messages that arrive during a run. ``steering`` and ``follow_ups`` remove what they return."""

    def waiting(self) -> bool:
        """Whether a message waits. The loop asks after each tool; the message stays in the inbox."""
        ...

    def steering(self) -> list[Steered]:
        """The loop calls this before the first model call, and after each answer and its tools."""
        ...

    def follow_ups(self) -> list[Steered]:
        """The loop calls this when the run would otherwise end."""
        ...


class NoInbox:
    """An inbox that is always empty."""

    def waiting(self) -> bool:
        return False

    def steering(self) -> list[Steered]:
        return []

    def follow_ups(self) -> list[Steered]:
        return []


class ModelPort(Protocol):
    """Asks a model, and decides what follows a failed call."""

    @property
    def model(self) -> Model: ...

    @property
    def thinking(self) -> str: ...

    async def request(self, messages: list[Message]) -> ModelRequest:
        """Build the next request from all messages so far."""
        ...

    async def ask(self, request: ModelRequest, on_event: OnEvent) -> AssistantMessage:
        """Call the model and return its whole answer. Stream events go to ``on_event`` as they arrive."""
        ...

    async def after_failure(self, error: ModelError, attempt: int) -> NextStep:
        """Decide whether to retry. ``attempt`` counts the failures with one key, from 1."""
        ...

    def change_after_refusal(self, error: ModelError) -> bool:
        """Change the next request after a provider rejected one as malformed. Return whether it is worth sending."""
        ...


class EntryStore(Protocol):
    """Persists the events that belong to the conversation."""

    async def store(self, event: Event) -> None:
        """Store the event. The loop continues once this returns."""
        ...


class EventSink(Protocol):
    """Gets the events that are only displayed: beginnings, deltas, a tool's progress, a coming retry."""

    def emit(self, event: Event) -> None: ...


class NoSink:
    """Displays nothing."""

    def emit(self, event: Event) -> None:
        return


class LoopOptions(msgspec.Struct, kw_only=True):
    """Everything the loop gets from its caller besides the messages."""

    port: ModelPort
    tools: Mapping[str, Tool]
    tool_context: ToolContext
    """The context of every tool call. The loop adds the call's id and the way to report its progress."""
    clock: Clock
    abort: AbortSignal
    entries: EntryStore
    events: EventSink = NoSink()
    inbox: SteeringInbox = NoInbox()
    client_tools: frozenset[str] = frozenset()
    """Tools that the caller of the Gateway runs itself. A call to one ends the run; its result comes later."""
    open_calls: Sequence[ToolCall] = ()
    """The calls of the last answer that have no result yet, with which a run resumes after a restart."""
    waiting_calls: frozenset[str] = frozenset()
    """The ids of those of them that had begun and waited for a person."""
    speech: SpeechRules = SpeechRules()
    """Separates the text for people from the rest of the model's output."""
    repeats: RepeatedCalls = msgspec.field(default_factory=lambda: RepeatedCalls(LoopDetection()))
    """Counts the calls that repeat themselves. All passes of a run share it."""
    max_continuations: int = 0
    """How often the model is asked for the rest of one answer that the output limit cut."""


async def run_loop(messages: list[Message], options: LoopOptions) -> RunEnded:
    """Runs until the model has nothing more to do. Extends ``messages`` in place."""
    return await _Loop(messages, options).run()


class _Loop:
    """One run of the loop over one list of messages."""

    def __init__(self, messages: list[Message], options: LoopOptions) -> None:
        self._messages = messages
        self._options = options
        self._added: list[Message] = []
        self._failure: ModelError | None = None

    async def run(self) -> RunEnded:
        options, messages = self._options, self._messages
        options.events.emit(RunStarted(options.clock.now_ms(), options.port.model.ref, options.port.thinking))
        answer = GrowingAnswer.resumed(messages, options.speech, options.max_continuations)
        if answer.parts and isinstance(messages[-1], AssistantMessage):
            await self._ask_for_more(messages[-1], answer)
        if options.open_calls:
            await self._run_tools(options.open_calls)
            if options.abort.aborted:
                return self._over("aborted", options.abort.reason)
        pending = options.inbox.steering() if not answer.parts else []
        while True:
            for steered in pending:
                self._add(steered.message)
                await options.entries.store(SteeringInjected(steered.message, steered.token))
            pending = []
            ended = await self._next_answer(answer)
            message = ended.message
            if message.stop_reason == "error" or message.stop_reason == "aborted":
                error = message.error_message
                return self._over(message.stop_reason, error if isinstance(error, str) else None)
            if ended.continues:
                await self._ask_for_more(message, answer)
                continue
            calls = message.tool_calls
            if any(call.name in options.client_tools for call in calls):
                # The agent's own calls are run. The caller's calls stay open.
                await self._run_tools([call for call in calls if call.name not in options.client_tools])
                return self._over("ok")
            if calls:
                await self._run_tools(calls)
                if options.abort.aborted:
                    return self._over("aborted", options.abort.reason)
                if (stopped := options.repeats.notice) is not None:
                    await self._add_answer(self._failed([], "error", stopped), Unsaid())
                    return self._over("error", stopped)
                if (notice := cut_call_notice(message, options.clock.now_ms())) is not None:
                    self._add(notice)
                    await options.entries.store(ContinuationAsked(notice, 1))
            pending = options.inbox.steering()
            if not calls and not pending:
                pending = options.inbox.follow_ups()
                if not pending:
                    return self._over("ok")
            answer = GrowingAnswer(options.speech, options.max_continuations)

    async def _next_answer(self, answer: GrowingAnswer) -> AssistantEnded:
        """Gets one assistant message, with retries. Each failed attempt is stored as a message of its own."""
        options = self._options
        attempt = 0
        refused_before = again = False
        while True:
            request = await options.port.request(self._messages)
            streamed: list[Text | Thinking | Counted] = []
            part = answer.begin()
            # The first part begins a message for people. A later part goes on in it, and only a second attempt at that
            # part begins another one, which shows the parts before again.
            if not answer.parts or again:
                options.events.emit(AssistantStarted())
                self._show(part.shown_before)
            try:
                message = await self._ask(request, part, streamed)
            except Aborted as stopped:
                self._show(part.close(complete=False))
                return await self._add_answer(self._failed(streamed, "aborted", str(stopped)), part.speech.outcome)
            except ModelError as error:
                failure = error
            else:
                return await self._complete(message, part, answer)
            # A model that does not exist (404) is not found with a plainer request either.
            malformed = failure.kind == "format" and failure.status != 404
            again = True
            if malformed and options.port.change_after_refusal(failure):
                refused_before = True
                failed = self._failed(streamed, "error", str(failure), failure.partial)
                await self._add_answer(failed, Unsaid(), continues=True)
                options.events.emit(RetryScheduled(1, 0, str(failure)))
                continue
            attempt += 1
            in_vain = malformed and refused_before
            failed = self._failed(
                streamed, "error", REFUSED.format(error=failure) if in_vain else str(failure), failure.partial
            )
            match await options.port.after_failure(failure, attempt):
                case None:
                    self._failure = None if in_vain else failure
                    return await self._add_answer(failed, answer.speech_so_far())
                case HandOver():
                    return await self._add_answer(failed, Unsaid(), continues=True)
                case TryAgain(delay_ms, other_key):
                    await self._add_answer(failed, Unsaid(), continues=True)
                    options.events.emit(RetryScheduled(attempt, delay_ms, str(failure)))
                    attempt = 0 if other_key else attempt
            if not delay_ms:
                continue
            try:
                with options.abort.waiting():
                    await options.clock.sleep(delay_ms / 1000)
            except Aborted as stopped:
                options.events.emit(AssistantStarted())
                return await self._add_answer(self._failed([], "aborted", str(stopped)), answer.speech_so_far())

    async def _ask(
        self, request: ModelRequest, part: AnswerPart, streamed: list[Text | Thinking | Counted]
    ) -> AssistantMessage:
        """Returns the whole message. Shows each delta as it arrives and adds it to ``streamed``."""
        options, abort = self._options, self._options.abort

        def on_event(event: StreamEvent) -> None:
            if type(event) is Text:
                streamed.append(event)
                # Silence, reasoning and repeated words are held back; what is left is for people.
                self._show(part.feed(event.delta))
            elif type(event) is Thinking:
                streamed.append(event)
                options.events.emit(ThinkingDelta(event.delta))
            elif type(event) is Counted:
                streamed.append(event)
            if abort.reason is not None:
                # Whoever was shown this event has stopped the run.
                raise Aborted(abort.reason)

        with abort.waiting():
            return await options.port.ask(request, on_event)

    async def _complete(self, message: AssistantMessage, part: AnswerPart, answer: GrowingAnswer) -> AssistantEnded:
        """Shows the text that was held back, and adds the finished message in the form in which it is stored."""
        if not part.received and message.text:
            self._show(part.feed(message.text))
        stored = part.speech.stored(message, part.before, thinking=part.thinking)
        if answer.goes_on(message, part):
            self._show(part.pause())
            answer.add(part)
            return await self._add_answer(stored, Unsaid(), continues=True)
        self._show(part.close(complete=True))
        return await self._add_answer(stored, part.speech.outcome)

    async def _add_answer(
        self, message: AssistantMessage, speech: Speech, *, continues: bool = False
    ) -> AssistantEnded:
        if message.stop_reason not in FAILED_STOPS:
            self._messages.append(message)
        self._added.append(message)
        ended = AssistantEnded(message, speech, continues)
        await self._options.entries.store(ended)
        return ended

    def _failed(
        self,
        streamed: list[Text | Thinking | Counted],
        stop_reason: Literal["error", "aborted"],
        why: str,
        partial: AssistantMessage | None = None,
    ) -> AssistantMessage:
        """The message of an attempt that failed: ``partial`` if the provider gave it, else what was streamed."""
        model = self._options.port.model
        content: list[AssistantBlock] = []
        if partial is not None:
            # The calls of a failed message are never run, and calls without results must not be stored.
            content = [block for block in partial.content if not isinstance(block, ToolCall)]
        else:
            deltas = [event for event in streamed if not isinstance(event, Counted)]
            for kind, events in groupby(deltas, type):
                text = "".join(event.delta for event in events)
                content.append(TextBlock(text=text) if kind is Text else ThinkingBlock(thinking=text))
        base = partial or AssistantMessage(content=[], api=model.api, provider=model.provider, model=model.id)
        if partial is None and (counted := [event for event in streamed if isinstance(event, Counted)]):
            base.usage = counted[-1].usage
        return msgspec.structs.replace(
            base,
            content=content,
            stop_reason=stop_reason,
            error_message=why,
            timestamp=base.timestamp or self._options.clock.now_ms(),
        )

    async def _run_tools(self, calls: Sequence[ToolCall]) -> None:
        """Runs the calls in order. A new message or an abort skips the rest. Every call gets a result.

        Neighbouring calls that change nothing run together. Their results keep the order of the calls.
        """
        options = self._options
        interrupted = False
        for batch in self._batches(calls):
            if options.abort.aborted:
                why = f"Not run: the run was stopped ({options.abort.reason})."
                results = [refused(call, why, options.clock) for call in batch]
            elif interrupted:
                results = [refused(call, SKIPPED_FOR_USER, options.clock) for call in batch]
            else:
                for call in batch:
                    await options.entries.store(ToolStarted(call.id, call.name, call.arguments))
                results = await self._run_batch(batch)
            for ended in results:
                message = options.repeats.note(ended.message, ended.arguments)
                self._add(message)
                await options.entries.store(msgspec.structs.replace(ended, message=message))
            interrupted = interrupted or options.inbox.waiting()

    def _batches(self, calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
        """Group the calls into those that run together, in their order."""
        batches: list[list[ToolCall]] = []
        together = False
        for call in calls:
            tool = self._options.tools.get(call.name)
            alone = tool is None or not runs_parallel(tool, call.arguments)
            if together and not alone and len(batches[-1]) < MOST_TOGETHER:
                batches[-1].append(call)
            else:
                batches.append([call])
            together = not alone
        return batches

    async def _run_batch(self, calls: list[ToolCall]) -> list[ToolEnded]:
        """Runs the calls at the same time. An abort stops those that have not ended."""
        tasks: list[asyncio.Task[ToolEnded]] = []
        try:
            with self._options.abort.waiting():
                if len(calls) == 1:
                    return [await self._call(calls[0])]
                tasks = [asyncio.create_task(self._call(call)) for call in calls]
                await asyncio.wait(tasks)
                return [task.result() for task in tasks]
        except Aborted as stopped:
            await _cancelled(tasks)
            why = f"Stopped while running ({stopped})."
            ended = {call.id: task.result() for call, task in zip(calls, tasks, strict=False) if not task.cancelled()}
            return [ended.get(call.id) or refused(call, why, self._options.clock) for call in calls]
        except asyncio.CancelledError:
            await _cancelled(tasks)
            raise

    async def _call(self, call: ToolCall) -> ToolEnded:
        options = self._options

        def update(result: ToolResult) -> None:
            options.events.emit(ToolUpdated(call.id, call.name, call.arguments, result))

        resumed = call.id in options.waiting_calls
        context = msgspec.structs.replace(options.tool_context, call_id=call.id, update=update, resumed=resumed)
        return await call_tool(call, options.tools, context, options.clock)

    async def _ask_for_more(self, cut: AssistantMessage, answer: GrowingAnswer) -> None:
        request = answer.request(cut, self._options.clock.now_ms())
        self._add(request)
        await self._options.entries.store(ContinuationAsked(request, answer.parts))

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._added.append(message)

    def _show(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if type(piece) is AnswerText:
                self._options.events.emit(TextDelta(piece.text, piece.reply_to, piece.media, piece.voice))
            else:
                self._options.events.emit(ThinkingDelta(piece.text))

    def _over(self, outcome: Literal["ok", "error", "aborted"], error: str | None = None) -> RunEnded:
        return RunEnded(outcome, error, self._added, self._failure)


async def _cancelled(tasks: list[asyncio.Task[ToolEnded]]) -> None:
    """Cancel the tasks and wait until they have cleaned up."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def call_tool(call: ToolCall, tools: Mapping[str, Tool], context: ToolContext, clock: Clock) -> ToolEnded:
    """Runs one call. Every failure is a result that the model can read. Only a cancellation is raised."""
    tool = tools.get(call.name)
    if tool is None:
        reason = context.why_missing(call.name) if context.why_missing else None
        return refused(call, reason or unknown_tool(call.name, tools.keys()), clock)
    try:
        arguments = validate_arguments(tool.spec, call.arguments)
    except InvalidArguments as invalid:
        return refused(call, with_example(str(invalid), tool, call.arguments), clock)
    try:
        result = await tool.run(arguments, context)
    except InvalidArguments as invalid:
        result = error_result(call.name, with_example(str(invalid), tool, call.arguments))
    except ToolError as failure:
        result = error_result(call.name, str(failure), failure.details)
    except PathRefused as failure:
        result = error_result(call.name, str(failure))
    except Exception as failure:
        log.exception("tool %s failed in run %s of %s", call.name, context.run_id, context.session_key)
        result = error_result(call.name, f"{type(failure).__name__}: {failure}")
    message = ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=result.content,
        details=result.details,
        is_error=result.failed,
        timestamp=clock.now_ms(),
    )
    return ToolEnded(message, call.arguments, result.failed)


def error_result(tool: str, error: str, more: Mapping[str, Any] = EMPTY) -> ToolResult:
    """The result of a tool that failed: a sentence for the model, and the details that clients know."""
    return ToolResult(
        content=[TextBlock(text=error)], details={"status": "error", "tool": tool, "error": error, **more}
    )


def refused(call: ToolCall, why: str, clock: Clock) -> ToolEnded:
    return ToolEnded(not_run(call, why, clock.now_ms()), call.arguments, True)


def not_run(call: ToolCall, why: str, now_ms: int) -> ToolResultMessage:
    """The result of a call that was not run, or not to its end."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=[TextBlock(text=why)],
        is_error=True,
        timestamp=now_ms,
    )
