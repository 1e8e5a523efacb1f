"""The agent loop: it streams an answer, runs the tool calls, takes in new messages of the user, and repeats.

The loop writes to no store, speaks to no channel and knows no vendor. It reports everything that happens to its caller,
in order. Events for ``show`` are only displayed. Events for ``store`` belong to the conversation, and the loop waits
until they are stored.

If the output limit cuts an answer, the loop asks for the rest and joins the parts to one text. What the rest says again
is removed, a code fence stays open across the cut, and a tool call that was cut is asked for again. An ``AbortSignal``
stops the loop where it waits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import groupby
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import msgspec

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
from openclaw.outbound.answer_filter import AnswerText, Piece, SpeechStream
from openclaw.path_opener import PathRefused
from openclaw.storage.message_ledger import AbortReason
from openclaw.tools.base import InvalidArguments, Tool, ToolContext, ToolError, ToolResult, validate_arguments

log = logging.getLogger("openclaw.agent.tools")

SKIPPED_FOR_USER = "Skipped due to queued user message."
REFUSED = (
    "The model's provider refused the request, and refused it again in its simplest form. Nothing is lost: write "
    "again, choose another model with /model, or begin anew with /new. The provider said: {error}"
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


async def _give_up(error: ModelError, attempt: int) -> NextStep:
    """The default of ``LoopOptions.after_failure``."""
    return None


async def _discard(event: Event) -> None:
    """The default of ``LoopOptions.store``: nothing is stored."""


class LoopOptions(msgspec.Struct, kw_only=True):
    """Everything the loop gets from its caller besides the messages."""

    model: Model
    thinking: str = ""
    ask: Callable[[ModelRequest, OnEvent], Awaitable[AssistantMessage]]
    """Calls the model and returns its whole answer. Stream events go to the callback as they arrive.

    In a run this is ``AgentRun._ask_model``.
    """
    request: Callable[[list[Message]], Awaitable[ModelRequest]]
    """Builds the next request from all messages so far. It cleans and prunes them."""
    tools: Mapping[str, Tool]
    tool_context: Callable[[ToolCall, Callable[[ToolResult], None]], ToolContext]
    """Makes the context of one call. The tool reports its progress through the second argument."""
    clock: Clock
    abort: AbortSignal
    show: Callable[[Event], None] = lambda event: None
    """Gets the events that are only displayed: beginnings, deltas, a tool's progress, a coming retry."""
    store: Callable[[Event], Awaitable[None]] = _discard
    """Gets the events that belong to the conversation. The loop waits until they are stored."""
    inbox: SteeringInbox = NoInbox()
    after_failure: Callable[[ModelError, int], Awaitable[NextStep]] = _give_up
    """Decides what follows a failed call. The number counts the failures with one key, from 1."""
    on_refusal: Callable[[ModelError], bool] = lambda error: False
    """Called when a provider refuses a request as malformed. True: the next request is different, so ask again."""
    client_tools: frozenset[str] = frozenset()
    """Tools that the caller of the Gateway runs itself. A call to one ends the run; its result comes later."""
    speech: Callable[[], SpeechStream] = SpeechStream
    """Makes the stream that separates the words for people from the rest of the model's output."""
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
        options.show(RunStarted(options.clock.now_ms(), options.model.ref, options.thinking))
        answer = GrowingAnswer.resumed(messages, options.speech, options.max_continuations)
        if answer.parts and isinstance(messages[-1], AssistantMessage):
            await self._ask_for_more(messages[-1], answer)
        pending = options.inbox.steering() if not answer.parts else []
        while True:
            for steered in pending:
                self._add(steered.message)
                await options.store(SteeringInjected(steered.message, steered.token))
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
                if (notice := cut_call_notice(message, options.clock.now_ms())) is not None:
                    self._add(notice)
                    await options.store(ContinuationAsked(notice, 1))
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
            request = await options.request(self._messages)
            streamed: list[Text | Thinking | Counted] = []
            part = answer.begin()
            # The first part begins a message for people. A later part goes on in it, and only a second attempt at that
            # part begins another one, which shows the parts before again.
            if not answer.parts or again:
                options.show(AssistantStarted())
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
            if malformed and options.on_refusal(failure):
                refused_before = True
                failed = self._failed(streamed, "error", str(failure), failure.partial)
                await self._add_answer(failed, Unsaid(), continues=True)
                options.show(RetryScheduled(1, 0, str(failure)))
                continue
            attempt += 1
            in_vain = malformed and refused_before
            failed = self._failed(
                streamed, "error", REFUSED.format(error=failure) if in_vain else str(failure), failure.partial
            )
            match await options.after_failure(failure, attempt):
                case None:
                    self._failure = None if in_vain else failure
                    return await self._add_answer(failed, answer.speech_so_far())
                case HandOver():
                    return await self._add_answer(failed, Unsaid(), continues=True)
                case TryAgain(delay_ms, other_key):
                    await self._add_answer(failed, Unsaid(), continues=True)
                    options.show(RetryScheduled(attempt, delay_ms, str(failure)))
                    attempt = 0 if other_key else attempt
            if not delay_ms:
                continue
            try:
                with options.abort.waiting():
                    await options.clock.sleep(delay_ms / 1000)
            except Aborted as stopped:
                options.show(AssistantStarted())
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
                options.show(ThinkingDelta(event.delta))
            elif type(event) is Counted:
                streamed.append(event)
            if abort.reason is not None:
                # Whoever was shown this event has stopped the run.
                raise Aborted(abort.reason)

        with abort.waiting():
            return await options.ask(request, on_event)

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
        await self._options.store(ended)
        return ended

    def _failed(
        self,
        streamed: list[Text | Thinking | Counted],
        stop_reason: Literal["error", "aborted"],
        why: str,
        partial: AssistantMessage | None = None,
    ) -> AssistantMessage:
        """The message of an attempt that failed: ``partial`` if the provider gave it, else what was streamed."""
        model = self._options.model
        content: list[AssistantBlock] = []
        if partial is not None:
            # The calls of a failed message are never run, and calls without results must not be stored.
            content = [block for block in partial.content if not isinstance(block, ToolCall)]
        else:
            said = [event for event in streamed if not isinstance(event, Counted)]
            for kind, events in groupby(said, type):
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

    async def _run_tools(self, calls: list[ToolCall]) -> None:
        """Runs the calls in order. A new message or an abort skips the rest. Every call gets a result."""
        options = self._options
        interrupted = False
        for call in calls:
            if options.abort.aborted:
                ended = refused(call, f"Not run: the run was stopped ({options.abort.reason}).", options.clock)
            elif interrupted:
                ended = refused(call, SKIPPED_FOR_USER, options.clock)
            else:
                await options.store(ToolStarted(call.id, call.name, call.arguments))

                def update(result: ToolResult, call: ToolCall = call) -> None:
                    options.show(ToolUpdated(call.id, call.name, call.arguments, result))

                context = options.tool_context(call, update)
                ended = await call_tool(call, options.tools, context, options.abort, options.clock)
            self._add(ended.message)
            await options.store(ended)
            interrupted = interrupted or options.inbox.waiting()

    async def _ask_for_more(self, cut: AssistantMessage, answer: GrowingAnswer) -> None:
        request = answer.request(cut, self._options.clock.now_ms())
        self._add(request)
        await self._options.store(ContinuationAsked(request, answer.parts))

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._added.append(message)

    def _show(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if type(piece) is AnswerText:
                self._options.show(TextDelta(piece.text, piece.reply_to, piece.media, piece.voice))
            else:
                self._options.show(ThinkingDelta(piece.text))

    def _over(self, outcome: Literal["ok", "error", "aborted"], error: str | None = None) -> RunEnded:
        return RunEnded(outcome, error, self._added, self._failure)


async def call_tool(
    call: ToolCall,
    tools: Mapping[str, Tool],
    context: ToolContext,
    abort: AbortSignal,
    clock: Clock,
) -> ToolEnded:
    """Runs one call. It never raises: every failure, and an abort, is a result that the model can read."""
    tool = tools.get(call.name)
    if tool is None:
        known = context.why_missing(call.name) if context.why_missing else None
        return refused(call, known or f"Tool {call.name} not found", clock)
    try:
        arguments = validate_arguments(tool.spec, call.arguments)
    except InvalidArguments as invalid:
        return refused(call, str(invalid), clock)
    try:
        with abort.waiting():
            result = await tool.run(arguments, context)
    except Aborted as stopped:
        return refused(call, f"Stopped while running ({stopped}).", clock)
    except (ToolError, PathRefused) as failure:
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
    return ToolEnded(message, call.arguments, result.failed)


def error_result(tool: str, error: str) -> ToolResult:
    """The result of a tool that failed. Clients know this shape: the same JSON as text and as details."""
    details: dict[str, Any] = {"status": "error", "tool": tool, "error": error}
    text = msgspec.json.format(msgspec.json.encode(details), indent=2).decode()
    return ToolResult(content=[TextBlock(text=text)], details=details)


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


# Stopping


class Aborted(Exception):
    """Raised at the await that was interrupted. The reason is in ``args[0]``."""


class AbortSignal:
    """Interrupts a run, but only where it waits. Everything between two waits is finished.

    The loop marks each wait for a model, a tool or a pause with ``with signal.waiting():``. ``abort`` cancels that
    wait. If the run is between two waits, it takes effect at the next one. All code inside such a block can be
    cancelled.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._task: asyncio.Task[object] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def abort(self, reason: str) -> bool:
        """Aborts the run. True for the first call. Later reasons do not replace the first."""
        if self.reason is not None:
            return False
        self.reason = reason
        if self._task is not None and self._task is asyncio.current_task():
            # The run aborts itself inside a wait. A cancellation now would hit its next await, whatever that is.
            asyncio.get_running_loop().call_soon(self._interrupt)
        else:
            self._interrupt()
        return True

    def set_deadline(self, seconds: float) -> None:
        """Aborts the run when its time is up."""
        self.clear_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort, AbortReason.TIMEOUT)

    def clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @property
    def time_left(self) -> float | None:
        """The seconds until the run's deadline. None: it has none."""
        return None if self._deadline is None else self._deadline.when() - asyncio.get_running_loop().time()

    def _interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def waiting(self) -> Self:
        return self

    def __enter__(self) -> None:
        if self.reason is not None:
            raise Aborted(self.reason)
        self._task = asyncio.current_task()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            return
        # A cancellation that is not ours (the Gateway stops) must stay a cancellation.
        if self.reason is not None and task is not None and task.uncancel() == 0:
            raise Aborted(self.reason) from None


# An answer in several parts

CONTINUE = "[Cut off by the output limit]"
"""Every request to go on begins with this. After a restart the parts of an answer are recognised by it."""
LONGEST_OVERLAP = 4000
LEAST_OVERLAP = 16
"""A shorter repetition may be a coincidence. Removing it would lose words."""
LEAST_LINE = 6
"""The same limit for a continuation that begins its unfinished last line again."""
_SHOWN_TAIL = 160
_SENTENCE_END = re.compile(r"[.!?…。！？]['\"’”»)\]*_]{0,3}\s*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_FENCE_AGAIN = re.compile(r"\s{0,8}(`{3,}|~{3,})[ \t]*([^\s`~][^\n`~]{0,40})\n")
_MAYBE_FENCE_AGAIN = re.compile(r"\s{0,8}(?:`{0,12}|~{0,12})(?:[ \t]*[^\s`~][^\n`~]{0,40})?\Z")


class AnswerPart:
    """The part of an answer that is arriving. ``feed`` and ``close`` return what is shown to people."""

    def __init__(self, before: str, speech: SpeechStream) -> None:
        self.before = before
        self.speech = speech
        self.shown_before: list[Piece] = []
        """What people saw of the parts before."""
        self.thinking = False
        """The part begins in the middle of the model's reasoning."""
        self.received = False
        """Some text of the part has arrived."""
        self._overlap: OverlapRemover | None = None
        self._added: list[str] = []
        if before:
            self.shown_before = [piece for piece in speech.feed(before) if isinstance(piece, AnswerText)]
            self.thinking, self._overlap = speech.thinking, OverlapRemover(before)

    def feed(self, delta: str) -> list[Piece]:
        self.received = True
        return self._add(self._overlap.feed(delta) if self._overlap else delta)

    def pause(self) -> list[Piece]:
        """Ends the part. Another part of the answer follows."""
        return self._add(self._overlap.close()) if self._overlap else []

    def close(self, *, complete: bool) -> list[Piece]:
        """Ends the part and the answer."""
        return [*self.pause(), *self.speech.close(complete=complete)]

    @property
    def added(self) -> str:
        """The text that the part adds to the answer."""
        return "".join(self._added)

    def _add(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._added.append(text)
        return self.speech.feed(text)


class GrowingAnswer:
    """One answer, in one part or several. ``limit``: how often the model may be asked to go on."""

    def __init__(self, speech: Callable[[], SpeechStream], limit: int) -> None:
        self._speech = speech
        self._limit = limit
        self._text = ""
        self.parts = 0
        """The number of finished parts that were cut."""

    @classmethod
    def resumed(cls, messages: Sequence[Message], speech: Callable[[], SpeechStream], limit: int) -> GrowingAnswer:
        """The answer at the end of ``messages`` if it was cut, else a new one. A restart may have interrupted it."""
        answer = cls(speech, limit)
        if messages and (is_request(messages[-1]) or unfinished(messages, limit)):
            chain = parts_at_end(messages)
            answer._text, answer.parts = joined(chain), len(chain)
        return answer

    def begin(self) -> AnswerPart:
        """The next part. A second call makes another attempt at the same part."""
        return AnswerPart(self._text, self._speech())

    def goes_on(self, message: AssistantMessage, part: AnswerPart) -> bool:
        """Whether the model should be asked for the rest. After tool calls it is asked again anyway."""
        return _has_more(message) and self.parts < self._limit and not part.speech.silent

    def add(self, part: AnswerPart) -> None:
        """Adds a part that was cut to the answer."""
        self._text += part.added
        self.parts += 1

    def speech_so_far(self) -> Speech:
        """What the finished parts say to people."""
        part = self.begin()
        part.close(complete=True)
        return part.speech.outcome

    def request(self, message: AssistantMessage, now_ms: int) -> UserMessage:
        """Asks the model to go on after ``message``, which was cut."""
        if (notice := cut_call_notice(message, now_ms)) is not None:
            return notice
        tail = json.dumps(self._text[-_SHOWN_TAIL:], ensure_ascii=False)
        text = (
            f"{CONTINUE} Your answer broke off after {tail}. Write only what comes next, starting with the very next "
            "character. Repeat nothing, do not comment on the break, and open no code block that is still open."
        )
        return UserMessage(content=[TextBlock(text=text)], timestamp=now_ms)


def cut_call_notice(message: AssistantMessage, now_ms: int) -> UserMessage | None:
    """Tells the model that the limit cut one of its calls, which was not run. None: no call was cut."""
    note = cut_call(message)
    if note is None:
        return None
    text = (
        f"{CONTINUE} {note} It was not run. If it is still needed make it again, with shorter arguments: "
        "write long content in several steps."
    )
    return UserMessage(content=[TextBlock(text=text)], timestamp=now_ms)


def unfinished(messages: Sequence[Message], limit: int) -> bool:
    """Whether the last answer was cut and the model may still be asked for the rest."""
    last = messages[-1] if messages else None
    return isinstance(last, AssistantMessage) and _has_more(last) and len(parts_at_end(messages)) <= limit


def _has_more(message: AssistantMessage) -> bool:
    """Whether the message was cut and has text or a cut call. A message of reasoning alone would be cut again."""
    return (
        message.stop_reason == "length" and not message.tool_calls and bool(message.text.strip() or cut_call(message))
    )


def is_failed(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason in FAILED_STOPS


def is_cut(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason == "length"


def cut_call(message: AssistantMessage) -> str | None:
    """The provider adapter's note about a call that the limit cut. The call is not part of the message."""
    note = message.error_message
    return note if message.stop_reason == "length" and isinstance(note, str) and note else None


def is_request(message: Message) -> bool:
    """Whether the message asks the model to go on."""
    if not isinstance(message, UserMessage):
        return False
    text = message.content
    if not isinstance(text, str):
        first = text[0] if text else None
        text = first.text if isinstance(first, TextBlock) else ""
    return text.startswith(CONTINUE)


def parts_at_end(messages: Sequence[Message]) -> list[AssistantMessage]:
    """The messages that make up the last answer. Failed attempts and a request to go on at the very end are ignored."""
    said = (message for message in reversed(messages) if not is_failed(message))
    message = next(said, None)
    if message is not None and is_request(message):
        message = next(said, None)
    parts: list[AssistantMessage] = []
    while isinstance(message, AssistantMessage) and (not parts or (is_cut(message) and not message.tool_calls)):
        parts.insert(0, message)
        request = next(said, None)
        message = next(said, None) if request is not None and is_request(request) else None
    return parts


def replies(answers: Sequence[AssistantMessage]) -> list[str]:
    """The texts of a run's messages. The parts of one answer are joined."""
    texts: list[str] = []
    goes_on = False
    for answer in answers:
        if goes_on:
            texts[-1] = join(texts[-1], answer.text)
        else:
            texts.append(answer.text)
        goes_on = is_cut(answer) and not answer.tool_calls
    return texts


def joined(parts: Sequence[AssistantMessage]) -> str:
    """The text of an answer in several parts."""
    return reduce(join, (part.text for part in parts), "")


class OverlapRemover:
    """Removes what a continuation repeats of the text before the break.

    Whole lines and whole sentences that come again are kept, because an answer may repeat them on purpose. So is a
    pattern that goes on, such as a row of zeros. ``feed`` holds text back until it is clear how much is repeated.
    """

    def __init__(self, before: str) -> None:
        self._done = not before
        self._before = before[-2 * LONGEST_OVERLAP - 2 :]
        self._tail = before[-LONGEST_OVERLAP:]
        self._line = before[before.rfind("\n") + 1 :]
        self._fence = open_fence(before)
        self._held = ""

    def feed(self, delta: str) -> str:
        if self._done:
            return delta
        self._held += delta
        return self._decide(last=False)

    def close(self) -> str:
        return "" if self._done else self._decide(last=True)

    def _decide(self, *, last: bool) -> str:
        after = self._held
        if self._fence is not None and not last and len(after) < 80 and _MAYBE_FENCE_AGAIN.match(after):
            return ""
        if not last and after in self._tail:
            return ""
        again = _FENCE_AGAIN.match(after) if self._fence is not None else None
        if again is not None and self._fence == (again[1][0], again[2].strip()):
            # The code block is open already, so its first line can only be a repetition.
            if size := self._overlap(after, again.end()):
                return self._decided(after[size:])
            after = after[again.end() :]
            if not last and after in self._tail:
                return ""
        size = self._overlap(after)
        repeated, rest = after[:size], after[size:]
        if not last and self._needs_more(repeated, rest):
            return ""
        return self._decided(after if self._may_go_on_with(repeated, rest) else rest)

    def _decided(self, text: str) -> str:
        self._done, self._held = True, ""
        return text

    def _overlap(self, after: str, least: int = LEAST_OVERLAP) -> int:
        """The number of characters at the beginning of ``after`` that are also the end of the text before."""
        for size in range(min(len(after), len(self._tail)), LEAST_LINE - 1, -1):
            again = after[:size]
            if self._tail.endswith(again) and (size >= least or again in (self._line, self._line.lstrip())):
                return size
        return 0

    def _needs_more(self, again: str, rest: str) -> bool:
        """Whether only the text that follows ``rest`` tells whether ``again`` is meant."""
        first = again.split("\n", 1)[0]
        return bool(self._line) and "\n" in again and len(rest) < len(first) and first.startswith(rest)

    def _may_go_on_with(self, again: str, rest: str) -> bool:
        """Whether the answer may repeat ``again`` on purpose, so that it is not an overlap of the break."""
        head = self._before[: len(self._before) - len(again)]
        periodic = 0 < (again + again).find(again, 1) <= len(again) // 2
        return (
            periodic or head.endswith(again) or self._are_lines(head, again, rest) or self._are_sentences(head, again)
        )

    def _are_lines(self, head: str, again: str, rest: str) -> bool:
        """Whether ``again`` is whole lines that follow equal lines."""
        if again.startswith("\n") and self._line:
            return not rest or rest.startswith("\n")
        # At a break inside a line, equal lines go on if the first of them began like the unfinished one. Other lines
        # may begin like it too (indentation, list markers, keys), so the same line has to come once more.
        start, first = head.removesuffix(self._line), again.split("\n", 1)[0]
        if "\n" not in again or not head.endswith(self._line) or (start and not start.endswith("\n")):
            return False
        return not self._line or rest.startswith(first) or first.startswith(rest)

    def _are_sentences(self, head: str, again: str) -> bool:
        """Whether ``again`` is whole sentences that follow equal sentences. Code has no sentences."""
        if self._fence is not None or not _SENTENCE_END.search(again):
            return False
        if head and not head.endswith("\n") and not _SENTENCE_END.search(head):
            return False
        # Full-width punctuation is not followed by a space.
        return again[-1].isspace() or again[0].isspace() or not again[-1].isascii()


def join(before: str, after: str) -> str:
    """Both texts as one, without what ``after`` repeats."""
    remover = OverlapRemover(before)
    return before + remover.feed(after) + remover.close()


def open_fence(text: str) -> tuple[str, str] | None:
    """The marker and the language of the code block in which the text ends. None: it does not end in one."""
    opened: tuple[str, int, str] | None = None
    for line in text.split("\n"):
        if (found := _FENCE.match(line)) is None:
            continue
        marker, length = found[1][0], len(found[1])
        if opened is None:
            opened = (marker, length, found[2].strip())
        elif opened[0] == marker and length >= opened[1]:
            opened = None
    return (opened[0], opened[2]) if opened else None
