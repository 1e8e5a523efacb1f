"""One run: rebuild the context, call the loop, store each message as it ends, account for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.agent.compaction.compaction import (
    STILL_TOO_LARGE,
    CompactionJob,
    after_overflow,
    compact,
    overflowed,
    settings_for,
    silently_overflowed,
    summary_model,
    without_answer,
)
from openclaw.agent.compaction.memory_flush import flush, is_due
from openclaw.agent.compaction.summary import WAITED_FOR_S
from openclaw.agent.hooks import Reason
from openclaw.agent.loop import LoopOptions, SteeringInbox, run_loop
from openclaw.agent.prepare import Prepared, exec_overrides, prepare
from openclaw.agent.recorder import Minutes, RunEntries, entry_id, open_transcript
from openclaw.agent.result import RunResult
from openclaw.agent.run_settings import agent_settings
from openclaw.agent.runtime import Runtime, Turn
from openclaw.agent.spend.billed_calls import RunBill
from openclaw.agent.spend.budget import check_budget
from openclaw.agent.window.tokens import reported_prompt
from openclaw.agent.window.window import DoesNotFit
from openclaw.events import Event, Spoken
from openclaw.messages import AssistantMessage, Message, ToolCall, Usage
from openclaw.models.base import Heard, ModelError, ModelRequest
from openclaw.models.cost import added, has_price
from openclaw.models.errors import error_text
from openclaw.models.retry import next_retry_ms
from openclaw.outbound.usage_text import usage_footer
from openclaw.outbound.visible import SpeechStream
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import touched
from openclaw.storage import faults
from openclaw.storage.base import Context, Transcript
from openclaw.storage.disk_errors import DiskWait
from openclaw.tools.base import ToolContext, ToolResult
from openclaw.tools.exec.settings import ExecOverrides

log = logging.getLogger("openclaw.agents.run")

STOPPED_BY_HAND = ("stop", "rpc")
"""Reasons of an abort that the next message should know of; one that came from a next message explains itself."""

T = TypeVar("T")


class AgentRun:
    """Drives one turn of one session. Made by the session's lane, used once."""

    def __init__(
        self,
        turn: Turn,
        runtime: Runtime,
        *,
        abort: AbortSignal,
        inbox: SteeringInbox,
        emit: Callable[[Event], None],
        disk: DiskWait | None = None,
        asks: Callable[[], None] = lambda: None,
    ) -> None:
        """``asks`` is called when the model is."""
        self._turn = turn
        self._runtime = runtime
        self._abort = abort
        self._inbox = inbox
        self._emit = emit
        self._disk = disk
        self._asks = asks
        self.prepared: Prepared | None = None
        """Set once the run knows its model and prompt."""
        self._failure: ModelError | None = None
        self._spent: Usage | None = None
        self._entries: RunEntries

    @property
    def written(self) -> Transcript:
        """Where the turn went; whoever records its end sees to it that this is on disk before."""
        return self._entries.transcript

    async def execute(self) -> RunResult:
        """Runs the turn to its end. What goes wrong is part of the result, and the message is kept in any case."""
        began = self._runtime.clock.now_ms()
        await self._open()
        try:
            try:
                prepared = self.prepared = await prepare(self._turn, self._runtime)
            except ModelError as problem:
                result = await self._refuse(str(problem))
            else:
                result = await self._run(prepared)
                if result.error and self._failure is not None and result.error == str(self._failure):
                    result.error = error_text(self._failure)
            await self._entries.settle()
        except Aborted as stopped:
            # Stopped while it waited for a disk that takes nothing; anywhere else the loop sees to it.
            result = RunResult(outcome="aborted", error=str(stopped))
        result.session_id = self._entries.transcript.session_id
        result.duration_ms = self._runtime.clock.now_ms() - began
        return result

    async def give_up(self, why: str) -> RunResult:
        """Ends the message without a model. The transcript says why, unless the answer was already there."""
        await self._open()
        result = await self._refuse(why)
        await self._entries.settle()
        result.session_id = self._entries.transcript.session_id
        return result

    async def _open(self) -> None:
        transcript = await open_transcript(self._turn, self._runtime)
        self._entries = RunEntries(self._turn, self._runtime, transcript, self._abort, self._disk)

    async def _run(self, prepared: Prepared) -> RunResult:
        entries = self._entries
        if is_due(self._runtime, self._turn, prepared):
            await flush(self._runtime, self._turn, entries.transcript, prepared, self._abort, self._purse)
        result = await entries.begin(prepared, self._continuations)
        if result is None:
            result = await self._answer(prepared)
        result.provider, result.model = prepared.model.provider, prepared.model.id
        result.report = prepared.report
        result.request = await entries.log.record(self._runtime.reports, self._runtime.blobs)
        await self._account(result, prepared)
        return result

    async def _refuse(self, problem: str) -> RunResult:
        """No model is called, e.g. because none of that name is known."""
        found = await self._entries.begin(self.prepared, self._continuations)
        if found is not None:
            return found
        now = self._runtime.clock.now_ms()
        notice = AssistantMessage(content=[], stop_reason="error", error_message=problem, timestamp=now)
        await self._entries.append(notice)
        return RunResult(outcome="error", error=problem, final=notice)

    async def _answer(self, prepared: Prepared) -> RunResult:
        """Runs the loop. A prompt that turns out too large is condensed and sent once more, never twice."""
        transcript = self._entries.transcript
        context = transcript.context()
        prepared.remember(context.memo)
        if not prepared.view.fits(context.messages):
            try:
                prepared.view.check_room()
            except DoesNotFit as problem:
                return await self._refuse(str(problem))
            # What still does not fit when it is condensed is shortened in memory.
            if self._runtime.config.current.compaction.enabled:
                await compact(self._compaction(prepared, "threshold"))
                context = transcript.context()
        prepared.view.begin(context.messages)
        first = await self._loop(prepared, context)
        silent = first.outcome == "ok" and silently_overflowed(first.final, prepared)
        if not silent and not overflowed(first.error, self._failure):
            return first
        answer_id = entry_id(self._turn.run_id, self._entries.step - 1)
        if silent:
            await without_answer(transcript, answer_id)
        outcome = await after_overflow(self._compaction(prepared, "overflow"), prepared)
        if silent and (outcome is None or outcome.status != "compacted"):
            transcript.branch(answer_id)
            return first
        said = first.texts[:-1] if silent and isinstance(first.speech, Spoken) else first.texts
        self._failure = None
        result = await self._loop(prepared, transcript.context())
        result.texts = [*said, *result.texts]
        if overflowed(result.error, self._failure):
            result.error = STILL_TOO_LARGE.format(error=result.error)
        return result

    def _compaction(self, prepared: Prepared, reason: Reason) -> CompactionJob:
        return CompactionJob(
            runtime=self._runtime,
            agent_id=self._turn.agent_id,
            session_key=self._turn.session_key,
            transcript=self._entries.transcript,
            model=summary_model(self._runtime, prepared.model),
            budget=prepared.view.budget,
            settings=settings_for(prepared, self._runtime),
            reason=reason,
            urgent=True,
            in_run=True,
            waiting=self._abort.waiting,
            emit=self._emit,
            will_retry=reason == "overflow",
            timeout_s=WAITED_FOR_S,
            purse=self._purse,
        )

    @property
    def _purse(self) -> RunBill:
        # Made when asked for: kept, it would be a ring that holds the transcript in memory after the run.
        return RunBill(self._note_spent, lambda: self._spent)

    def _note_spent(self, usage: Usage) -> None:
        self._spent = added(self._spent, usage)

    async def _loop(self, prepared: Prepared, context: Context) -> RunResult:
        entries = self._entries
        entries.log.know(context)
        prepared.remember(context.memo)
        # A copy: the loop extends it, the transcript's own list follows by append.
        messages = list(context.messages)
        await prepared.cleaner.prepare(messages)
        with_reasoning = self._shows_reasoning(prepared)
        minutes = Minutes(
            prepared, entries, messages, emit=self._emit, spent=self._note_spent, with_reasoning=with_reasoning
        )
        deadlines = self._runtime.deadlines
        if prepared.timeout_s is not None:
            deadlines.set(self._abort, prepared.timeout_s)
        try:
            ended = await run_loop(messages, self._options(prepared, minutes))
        finally:
            deadlines.clear(self._abort)
        result, outcome = minutes.result, cast("Any", ended.outcome)
        result.outcome, result.error = outcome, ended.error
        result.usage = result.final.usage if result.final else None
        return result

    @property
    def _continuations(self) -> int:
        """None when the caller chose the length, or where the answer is likely not to be shown."""
        if self._turn.max_tokens is not None or self._turn.source == "heartbeat":
            return 0
        return self._runtime.config.current.agents.defaults.max_length_continuations

    def _shows_reasoning(self, prepared: Prepared) -> bool:
        return (self._turn.reasoning or prepared.entry.get("reasoningLevel")) == "on"

    def _speech(self, prepared: Prepared) -> Callable[[], SpeechStream]:
        if self._turn.source != "heartbeat":
            return partial(SpeechStream, only_final=prepared.framing)
        beat = self._runtime.config.current.agents.defaults.heartbeat
        return partial(SpeechStream, only_final=prepared.framing, ack_max_chars=beat.ack_max_chars)

    def _options(self, prepared: Prepared, minutes: Minutes) -> LoopOptions:
        settings, client_tools = prepared.retry, self._turn.client_tools

        def delay(attempt: int, error: ModelError) -> int | None:
            self._failure = error
            return next_retry_ms(error, attempt, settings)

        def request(messages: list[Message]) -> ModelRequest:
            built, view = prepared.request(messages), prepared.view
            pruned = view.pruner.count if view.pruner else 0
            self._entries.log.note(built, self._runtime.clock.now_ms(), shortened=view.shortened, pruned=pruned)
            return built

        return LoopOptions(
            model=prepared.model,
            ask=self._call_model,
            request=request,
            tools=prepared.tools,
            tool_context=partial(self._tool_context, prepared),
            clock=self._runtime.clock,
            abort=self._abort,
            show=minutes.show,
            keep=minutes.keep,
            inbox=self._inbox,
            client_tools=frozenset(spec.name for spec in client_tools) if client_tools else frozenset(),
            retry_delay_ms=delay,
            max_retries=settings.max_retries if settings.enabled else 0,
            simplify=lambda error: prepared.simplify(error, self._runtime.clock.now_ms()),
            speech=self._speech(prepared),
            max_continuations=self._continuations,
        )

    def _tool_context(self, prepared: Prepared, call: ToolCall, update: Callable[[ToolResult], None]) -> ToolContext:
        return ToolContext(
            agent_id=self._turn.agent_id,
            session_key=self._turn.session_key,
            workspace=prepared.workspace,
            run_id=self._turn.run_id,
            call_id=call.id,
            model_sees_images="image" in prepared.model.input,
            env=prepared.skill_env,
            update=update,
            notify=lambda text: self._runtime.notes.add(self._turn.session_key, text),
            wake=self._wake,
            exec=self._exec_overrides,
        )

    async def _exec_overrides(self) -> ExecOverrides | None:
        entry = await self._runtime.sessions.get(self._turn.agent_id, self._turn.session_key)
        return exec_overrides(self._turn.exec, entry, self._runtime.config.current.agents.defaults.elevated_default)

    def _wake(self, text: str) -> None:
        if self._runtime.wake is not None:
            self._runtime.wake(self._turn.run_id, text)
        else:
            self._runtime.notes.add(self._turn.session_key, text)

    def _call_model(self, request: ModelRequest, heard: Heard) -> Awaitable[AssistantMessage]:
        faults.point("model.call")
        self._asks()
        if agent_settings(self._turn.agent_id, self._runtime).limited:
            return self._within_budget(request, heard)
        return self._runtime.call_model(request, self._turn.agent_id, heard)

    async def _within_budget(self, request: ModelRequest, heard: Heard) -> AssistantMessage:
        runtime, turn = self._runtime, self._turn
        await check_budget(runtime, turn.agent_id, turn.session_key, Path(self.written.path), self._spent)
        return await runtime.call_model(request, turn.agent_id, heard)

    async def _account(self, result: RunResult, prepared: Prepared) -> None:
        """Statistics of the session: what the run used, except ``totalTokens``, the size of its last prompt."""
        usage, now = result.usage, self._runtime.clock.now_ms()
        result.spent = spent = self._spent
        report = await self._runtime.reports.keep(prepared.report, self._runtime.blobs)

        def change(entry: SessionEntry | None) -> SessionEntry | None:
            if entry is None:
                return None  # Deleted meanwhile: late events do not bring a session back.
            entry["updatedAt"] = touched(entry, now, self._turn.source)
            entry["systemSent"] = True
            entry["abortedLastRun"] = result.outcome == "aborted" and result.error in STOPPED_BY_HAND
            entry["modelProvider"], entry["model"] = prepared.model.provider, prepared.model.id
            entry["contextTokens"] = prepared.context_window
            entry["systemPromptReport"] = report
            if footer := entry.get("responseUsage"):
                priced = has_price(prepared.model.cost)
                result.footer = usage_footer(footer, spent, self._turn.session_key, priced=priced)
            if usage is not None and usage.total_tokens:
                run = spent or usage
                entry["inputTokens"], entry["outputTokens"] = run.input, run.output
                entry["cacheRead"], entry["cacheWrite"] = run.cache_read, run.cache_write
                entry["totalTokens"] = reported_prompt(usage, prepared.context_window)
            return entry

        sessions, turn = self._runtime.sessions, self._turn
        await self._entries.kept(lambda: sessions.update(turn.agent_id, turn.session_key, change, durable=False))
