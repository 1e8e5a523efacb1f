"""One run: rebuild the context, call the loop, store each message as it ends, account for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

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
from openclaw.agent.hooks import CompactionReason
from openclaw.agent.loop import LoopOptions, SteeringInbox, run_loop
from openclaw.agent.prepare import Prepared, exec_overrides, prepare
from openclaw.agent.recorder import LoopRecorder, Recorder, entry_id, open_transcript
from openclaw.agent.result import RunResult
from openclaw.agent.run_settings import agent_settings
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.billed_calls import RunBill
from openclaw.agent.spend.budget import check_budget
from openclaw.agent.window.tokens import reported_prompt
from openclaw.agent.window.window import DoesNotFit
from openclaw.events import Event, Spoken
from openclaw.messages import AssistantMessage, ImageBlock, Message, ToolCall, Usage
from openclaw.models.base import Heard, ModelError, ModelRequest
from openclaw.models.cost import added, has_price
from openclaw.models.errors import error_text
from openclaw.models.retry import next_retry_ms
from openclaw.outbound.usage_text import usage_footer
from openclaw.outbound.visible import SpeechStream
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import touched
from openclaw.storage import faults
from openclaw.storage.base import Context, LedgerRow, Transcript
from openclaw.storage.disk_errors import DiskWait
from openclaw.tools.base import ToolContext, ToolResult
from openclaw.tools.exec.settings import ExecOverrides

log = logging.getLogger("openclaw.agents.run")

STOPPED_BY_HAND = ("stop", "rpc")
"""Reasons of an abort that the next message should know of; one that came from a next message explains itself."""


class AgentRun:
    """Runs one accepted message to its end. The dispatcher makes one for each message and uses it once."""

    def __init__(
        self,
        row: LedgerRow,
        runtime: Runtime,
        *,
        session_id: str,
        abort: AbortSignal,
        inbox: SteeringInbox,
        emit: Callable[[Event], None],
        images: Sequence[ImageBlock] = (),
        came: float | None = None,
        disk: DiskWait | None = None,
        asks: Callable[[], None] = lambda: None,
    ) -> None:
        """``session_id`` names the transcript the run writes to; ``images`` came with the message.

        ``came`` is explained at ``prepare``. ``asks`` is called each time the model is about to be asked.
        """
        self._row = row
        self._runtime = runtime
        self._session_id = session_id
        self._abort = abort
        self._inbox = inbox
        self._emit = emit
        self._images = images
        self._came = came
        self._disk = disk
        self._asks = asks
        self.prepared: Prepared | None = None
        """Set once the run knows its model and prompt."""
        self._failure: ModelError | None = None
        """The last error of a model call."""
        self._spent: Usage | None = None
        self._recorder: Recorder

    @property
    def written(self) -> Transcript:
        """The run's transcript. It must be on disk before the end of the run is recorded."""
        return self._recorder.transcript

    async def execute(self) -> RunResult:
        """Runs the message to its end. What goes wrong is part of the result; the message is kept in any case."""
        began = self._runtime.clock.now_ms()
        await self._open()
        try:
            result = await self._run()
            await self._recorder.settle()
        except Aborted as stopped:
            # Stopped while it waited for a disk that takes nothing. The loop handles every other stop itself.
            result = RunResult(outcome="aborted", error=str(stopped))
        result.session_id = self.written.session_id
        result.duration_ms = self._runtime.clock.now_ms() - began
        return result

    async def give_up(self, why: str) -> RunResult:
        """Ends the message without a model. The transcript says why, unless the answer was already there."""
        await self._open()
        result = await self._refuse(why)
        await self._recorder.settle()
        result.session_id = self.written.session_id
        return result

    async def _open(self) -> None:
        row, runtime = self._row, self._runtime
        transcript = await open_transcript(runtime, row.agent_id, row.session_key, self._session_id)
        self._recorder = Recorder(row, self._images, runtime, transcript, self._abort, self._disk)

    async def _run(self) -> RunResult:
        """Prepare, begin, loop, account."""
        row, runtime, recorder = self._row, self._runtime, self._recorder
        try:
            prepared = self.prepared = await prepare(
                runtime, row.agent_id, row.session_key, self._session_id, row.body, source=row.source, came=self._came
            )
        except ModelError as problem:
            return await self._refuse(str(problem))
        if row.attempts == 0 and is_due(runtime, prepared):
            await flush(runtime, recorder.transcript, prepared, self._abort, self._bill)
        result = await recorder.begin(prepared, self._continuations)
        if result is None:
            result = await self._answer(prepared)
        result.provider, result.model = prepared.model.provider, prepared.model.id
        result.report = prepared.report
        result.request = await recorder.log.record(runtime.reports, runtime.blobs)
        await self._account(result, prepared)
        if result.error and self._failure is not None and result.error == str(self._failure):
            result.error = error_text(self._failure)
        return result

    async def _refuse(self, problem: str) -> RunResult:
        """Ends the run without a model call, e.g. because no model of that name is known."""
        found = await self._recorder.begin(self.prepared, self._continuations)
        if found is not None:
            return found
        now = self._runtime.clock.now_ms()
        notice = AssistantMessage(content=[], stop_reason="error", error_message=problem, timestamp=now)
        await self._recorder.append(notice)
        return RunResult(outcome="error", error=problem, final=notice)

    async def _answer(self, prepared: Prepared) -> RunResult:
        """Runs the loop. A prompt that turns out too large is condensed and sent once more, never twice."""
        transcript = self._recorder.transcript
        context = transcript.context()
        prepared.remember(context.memo)
        if not prepared.window.fits(context.messages):
            try:
                prepared.window.check_room()
            except DoesNotFit as problem:
                return await self._refuse(str(problem))
            # What still does not fit when it is condensed is shortened in memory.
            if self._runtime.config.current.compaction.enabled:
                await compact(self._compaction(prepared, "threshold"))
                context = transcript.context()
        prepared.window.begin(context.messages)
        first = await self._loop(prepared, context)
        silent = first.outcome == "ok" and silently_overflowed(first.final, prepared)
        if not silent and not overflowed(first.error, self._failure):
            return first
        answer_id = entry_id(self._row.run_id, self._recorder.step - 1)
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

    def _compaction(self, prepared: Prepared, reason: CompactionReason) -> CompactionJob:
        return CompactionJob(
            runtime=self._runtime,
            agent_id=prepared.agent_id,
            session_key=prepared.session_key,
            transcript=self._recorder.transcript,
            model=summary_model(self._runtime, prepared.model),
            budget=prepared.window.budget,
            settings=settings_for(prepared, self._runtime),
            reason=reason,
            urgent=True,
            in_run=True,
            waiting=self._abort.waiting,
            emit=self._emit,
            will_retry=reason == "overflow",
            timeout_s=WAITED_FOR_S,
            bill=self._bill,
        )

    @property
    def _bill(self) -> RunBill:
        # Made when asked for: kept, it would be a reference cycle that holds the transcript in memory after the run.
        return RunBill(self._note_spent, lambda: self._spent)

    def _note_spent(self, usage: Usage) -> None:
        self._spent = added(self._spent, usage)

    async def _loop(self, prepared: Prepared, context: Context) -> RunResult:
        self._recorder.log.know(context)
        prepared.remember(context.memo)
        # A copy: the loop extends it, the transcript's own list follows by append.
        messages = list(context.messages)
        await prepared.cleaner.prepare(messages)
        with_reasoning = (prepared.body.reasoning or prepared.entry.get("reasoningLevel")) == "on"
        events = LoopRecorder(
            prepared, self._recorder, messages, emit=self._emit, spent=self._note_spent, with_reasoning=with_reasoning
        )
        deadlines = self._runtime.deadlines
        if prepared.timeout_s is not None:
            deadlines.set(self._abort, prepared.timeout_s)
        try:
            ended = await run_loop(messages, self._options(prepared, events))
        finally:
            deadlines.clear(self._abort)
        result, outcome = events.result, cast("Any", ended.outcome)
        result.outcome, result.error = outcome, ended.error
        result.usage = result.final.usage if result.final else None
        return result

    @property
    def _continuations(self) -> int:
        """None when the caller chose the length, or where the answer is likely not to be shown."""
        if self._row.body.max_tokens is not None or self._row.source == "heartbeat":
            return 0
        return self._runtime.config.current.agents.defaults.max_length_continuations

    def _options(self, prepared: Prepared, events: LoopRecorder) -> LoopOptions:
        runtime, retry, defaults = self._runtime, prepared.retry, self._runtime.config.current.agents.defaults
        speech = partial(SpeechStream, only_final=prepared.prompt.framing)
        if prepared.source == "heartbeat":
            speech = partial(speech, ack_max_chars=defaults.heartbeat.ack_max_chars)

        def delay(attempt: int, error: ModelError) -> int | None:
            self._failure = error
            return next_retry_ms(error, attempt, retry)

        def request(messages: list[Message]) -> ModelRequest:
            built, window = prepared.request(messages), prepared.window
            pruned = window.pruner.count if window.pruner else 0
            self._recorder.log.note(built, runtime.clock.now_ms(), shortened=window.shortened, pruned=pruned)
            return built

        return LoopOptions(
            model=prepared.model,
            ask=self._call_model,
            request=request,
            tools=prepared.prompt.tools,
            tool_context=partial(self._tool_context, prepared),
            clock=runtime.clock,
            abort=self._abort,
            show=events.show,
            keep=events.keep,
            inbox=self._inbox,
            client_tools=frozenset(spec.name for spec in prepared.body.client_tools),
            retry_delay_ms=delay,
            max_retries=retry.max_retries if retry.enabled else 0,
            simplify=lambda error: prepared.simplify(error, runtime.clock.now_ms()),
            speech=speech,
            max_continuations=self._continuations,
        )

    def _tool_context(self, prepared: Prepared, call: ToolCall, update: Callable[[ToolResult], None]) -> ToolContext:
        runtime, run_id, key = self._runtime, self._row.run_id, prepared.session_key

        def notify(text: str) -> None:
            runtime.notes.add(key, text)

        async def overrides() -> ExecOverrides | None:
            entry = await runtime.sessions.get(prepared.agent_id, key)
            return exec_overrides(prepared.body, entry, runtime.config.current.agents.defaults.elevated_default)

        return ToolContext(
            agent_id=prepared.agent_id,
            session_key=key,
            workspace=prepared.workspace,
            run_id=run_id,
            call_id=call.id,
            model_sees_images="image" in prepared.model.input,
            env=prepared.skill_env,
            update=update,
            notify=notify,
            wake=partial(runtime.wake, run_id) if runtime.wake is not None else notify,
            exec_overrides=overrides,
        )

    def _call_model(self, request: ModelRequest, heard: Heard) -> Awaitable[AssistantMessage]:
        faults.point("model.call")
        self._asks()
        if agent_settings(self._row.agent_id, self._runtime).limited:
            return self._within_budget(request, heard)
        return self._runtime.call_model(request, self._row.agent_id, heard)

    async def _within_budget(self, request: ModelRequest, heard: Heard) -> AssistantMessage:
        runtime, row = self._runtime, self._row
        await check_budget(runtime, row.agent_id, row.session_key, Path(self.written.path), self._spent)
        return await runtime.call_model(request, row.agent_id, heard)

    async def _account(self, result: RunResult, prepared: Prepared) -> None:
        """Statistics of the session: what the run used, except ``totalTokens``, the size of its last prompt."""
        usage, now = result.usage, self._runtime.clock.now_ms()
        result.spent = spent = self._spent
        report = await self._runtime.reports.keep(prepared.report, self._runtime.blobs)

        def change(entry: SessionEntry | None) -> SessionEntry | None:
            if entry is None:
                return None  # Deleted meanwhile: late events do not bring a session back.
            entry["updatedAt"] = touched(entry, now, self._row.source)
            entry["systemSent"] = True
            entry["abortedLastRun"] = result.outcome == "aborted" and result.error in STOPPED_BY_HAND
            entry["modelProvider"], entry["model"] = prepared.model.provider, prepared.model.id
            entry["contextTokens"] = prepared.model.context_window
            entry["systemPromptReport"] = report
            if footer := entry.get("responseUsage"):
                priced = has_price(prepared.model.cost)
                result.footer = usage_footer(footer, spent, self._row.session_key, priced=priced)
            if usage is not None and usage.total_tokens:
                run = spent or usage
                entry["inputTokens"], entry["outputTokens"] = run.input, run.output
                entry["cacheRead"], entry["cacheWrite"] = run.cache_read, run.cache_write
                entry["totalTokens"] = reported_prompt(usage, prepared.model.context_window)
            return entry

        sessions, row = self._runtime.sessions, self._row
        await self._recorder.kept(lambda: sessions.update(row.agent_id, row.session_key, change, durable=False))
