"""The agent's work on one accepted message: its preparation, its beginning, its loop and its account.

``perform_run`` in ``runs/perform.py`` calls the steps in this order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Self

import msgspec

from openclaw.agent.abort import Aborted
from openclaw.agent.compaction.compaction import (
    STILL_TOO_LARGE,
    CompactionOutcome,
    CompactionReason,
    OverflowRecovery,
    compacted_at,
    job_for,
)
from openclaw.agent.compaction.memory_flush import flush, is_due
from openclaw.agent.compaction.summary import WAITED_FOR_S
from openclaw.agent.continuation import is_failed
from openclaw.agent.loop import LoopOptions, run_loop
from openclaw.agent.model_choice import choose_model
from openclaw.agent.model_notices import ModelNotices
from openclaw.agent.plan import renewed_facts
from openclaw.agent.prepare import Prepared, most_continuations, prepare
from openclaw.agent.prompt.system_prompt import FACTS_END
from openclaw.agent.recorder import ActiveRun, Recorder, entry_id, open_transcript
from openclaw.agent.repeated_calls import RepeatedCalls
from openclaw.agent.run_result import LengthCut, RunAccount, RunEnd, RunResult
from openclaw.agent.runtime import Runtime
from openclaw.agent.tool_context import tool_context
from openclaw.agent.tool_set import opener_of, policies_of
from openclaw.agent.window.tokens import reported_prompt
from openclaw.agent.window.window import DoesNotFit, check_room
from openclaw.config.agents import agent_config, heartbeat_config
from openclaw.messages import AssistantMessage, ImageBlock, Message
from openclaw.models.base import CLI_API, Counted, Model, ModelError, ModelRequest, OnEvent, StreamEvent, has_price
from openclaw.models.calls import Candidates, NextStep, failed_model, models_asked
from openclaw.models.catalogue import UnknownModel
from openclaw.models.errors import all_failed_text, error_text, is_overflow, is_silent_overflow
from openclaw.outbound.answer_filter import SpeechRules
from openclaw.outbound.reply import usage_footer
from openclaw.outbound.reply_files import Files, reply_files, size_limit
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import is_subagent
from openclaw.sessions.reset import QUIET_SOURCES, touched
from openclaw.storage import faults
from openclaw.storage.transcripts import Transcript
from openclaw.tools.policy import allowed_tools
from openclaw.worker_thread import with_many

STOPPED_BY_HAND = ("stop", "rpc")
"""Abort reasons that the next turn reports to the model. An abort by a next message explains itself."""
LONGEST_SILENCE = 0.75
"""The part of the time left that a silent model may use up if there are others. They share the run's time."""


class Rejected(Exception):
    """The run cannot ask a model. The text says why."""


class AgentRun:
    """The agent's side of one run. It is used once."""

    def __init__(
        self, run: ActiveRun, runtime: Runtime, transcript: Transcript, images: Sequence[ImageBlock] = ()
    ) -> None:
        """``images`` came with the message."""
        self._run = run
        self._runtime = runtime
        self._images = images
        self._recorder = Recorder(run, runtime, transcript, images)
        self._began_ms = runtime.clock.now_ms()
        self.prepared: Prepared | None = None
        """None until the run knows its model and prompt. Another model continues with another one."""

    @classmethod
    async def open(cls, run: ActiveRun, runtime: Runtime, session_id: str, images: Sequence[ImageBlock] = ()) -> Self:
        """Open the transcript of the session and make the run."""
        transcript = await open_transcript(runtime, run.row.agent_id, run.row.session_key, session_id)
        return cls(run, runtime, transcript, images)

    @property
    def transcript(self) -> Transcript:
        """The run's transcript. It must be on disk before the end of the run is recorded."""
        return self._recorder.transcript

    # The steps of a run

    async def prepare(self) -> Passes:
        """Choose the model and prepare its prompt. Raises ``Rejected`` without a model or a sandbox."""
        try:
            candidates = await self._choose()
            prepared = await self._prepare(candidates)
        except ModelError as problem:
            raise Rejected(str(problem)) from problem
        if (sandbox := prepared.workplace.sandbox) is not None:
            skills = prepared.workplace.snapshot.skills
            folders = [str(Path(skill.path).parent) for skill in skills.skills]
            if (refusal := await sandbox.refusal(folders, skills)) is not None:
                raise Rejected(refusal)
        return Passes(self._run, self._runtime, self._recorder, candidates, prepared, self._prepare)

    async def begin(self, passes: Passes) -> RunEnd | None:
        """Store the user's message. Returns the end of the run if a restart interrupted it after its answer."""
        runtime, recorder, prepared = self._runtime, self._recorder, passes.prepared
        if self._run.row.attempts == 0 and is_due(runtime, prepared):
            began = runtime.clock.monotonic()
            await flush(runtime, recorder.transcript, prepared, self._run.abort, recorder.bill)
            passes.time_used_s = runtime.clock.monotonic() - began
        return await recorder.begin(prepared, prepared.most_continuations)

    async def account(self, end: RunEnd, passes: Passes) -> RunResult:
        """Update the session's entry: what the run used, and in ``totalTokens`` the size of its last prompt."""
        row, runtime, recorder, prepared = self._run.row, self._runtime, self._recorder, passes.prepared
        model, usage, now = prepared.model, recorder.usage, runtime.clock.now_ms()
        request = await recorder.log.record(runtime.prompting.reports)
        spent = recorder.bill.spent
        report = await runtime.prompting.reports.persist(prepared.report)
        footer = ""

        def change(entry: SessionEntry | None) -> SessionEntry | None:
            nonlocal footer
            if entry is None or row.source in QUIET_SOURCES:
                # A session that was deleted during the run stays deleted, and a heartbeat changes nothing of the chat.
                return entry
            entry["updatedAt"] = touched(entry, now, row.source)
            entry["systemSent"] = True
            entry["abortedLastRun"] = end.outcome == "aborted" and end.error in STOPPED_BY_HAND
            entry["modelProvider"], entry["model"] = model.provider, model.id
            passes.notices.note_in(entry)
            entry["contextTokens"] = model.context_window
            if model.api == CLI_API:
                # A program has a prompt of its own, so that what it saw is not known.
                entry.pop("systemPromptReport", None)
            else:
                entry["systemPromptReport"] = report
            if mode := entry.get("responseUsage"):
                footer = usage_footer(mode, spent, row.session_key, priced=has_price(model.cost))
            if usage is not None and usage.total_tokens:
                run = spent or usage
                entry["inputTokens"], entry["outputTokens"] = run.input, run.output
                entry["cacheRead"], entry["cacheWrite"] = run.cache_read, run.cache_write
                entry["totalTokens"] = reported_prompt(usage, model.context_window)
            return entry

        sessions = runtime.stores.sessions
        await recorder.until_written(lambda: sessions.update(row.agent_id, row.session_key, change, durable=False))
        failures = passes.candidates.failures
        if end.failure is not None and end.failure.kind != "overflow":
            asked = models_asked([*failures, failed_model(model, end.failure)])
            error = all_failed_text(asked, end.failure) if len(asked) > 1 else error_text(end.failure)
            end = msgspec.structs.replace(end, error=error)
        account = RunAccount(
            provider=model.provider,
            model=model.id,
            usage=usage,
            spent=spent,
            report=prepared.report,
            request=request,
            failures=failures,
            time_limit_s=round(prepared.timeout_s or 0),
            length_cut=LengthCut(recorder.continuations, prepared.most_continuations, recorder.is_cut),
            footer=footer,
        )
        return await self._result(end, account)

    async def reject(self, problem: str, outcome: Literal["error", "aborted"] = "error") -> RunResult:
        """End the message without a model call. The transcript says why, unless the answer is already there."""
        row, model = self._run.row, self.prepared and self.prepared.model
        most = most_continuations(row.body, row.source, model, self._runtime.config.current)
        end = await self._recorder.begin(None, most)
        return await self._result(end or await self._recorder.reject(problem, outcome), RunAccount())

    def stopped(self, reason: str) -> RunResult:
        """End a run that was stopped while it waited for a full disk."""
        self._recorder.discard_answers()
        return self._recorder.result(RunEnd("aborted", reason), RunAccount(), self._duration_ms)

    def close(self) -> None:
        """Release what the run reserved of the budget."""
        self._recorder.paid.written()

    async def _result(self, end: RunEnd, account: RunAccount) -> RunResult:
        await self._recorder.settle()
        return self._recorder.result(end, account, self._duration_ms)

    @property
    def _duration_ms(self) -> int:
        return self._runtime.clock.now_ms() - self._began_ms

    # What the steps share

    async def _choose(self) -> Candidates:
        """Choose the models to ask. A model that is cooling down is skipped. Raises ``ModelError``."""
        row, runtime, body = self._run.row, self._runtime, self._run.row.body
        entry = await runtime.stores.sessions.get(row.agent_id, row.session_key) or SessionEntry(
            sessionId=self.transcript.session_id
        )
        pictures = bool(self._images)
        try:
            chosen = choose_model(runtime, row.agent_id, entry, body)
            candidates = runtime.models.failover.candidates(row.agent_id, chosen, pictures=pictures)
        except UnknownModel as unknown:
            if body.model:
                raise  # The message names a model that does not exist.
            candidates = await runtime.models.failover.instead_of(unknown, row.agent_id, pictures=pictures)
        await candidates.begin()
        return candidates

    async def _prepare(self, candidates: Candidates) -> Prepared:
        """Prepare the run for the model that is to be asked now."""
        row = self._run.row
        self.prepared = await prepare(
            self._runtime,
            row.agent_id,
            row.session_key,
            self.transcript.session_id,
            row.body,
            source=row.source,
            chosen=candidates.current,
        )
        return self.prepared

    async def store_files(self, addresses: Sequence[str], voice: bool, *, skip: int = 0) -> Files:
        """Store the files that an answer names. A session without ``read`` sends none of its own."""
        if not addresses:
            return Files()
        row, runtime, opener = self._run.row, self._runtime, None
        config = runtime.config.current
        if (prepared := self.prepared) is not None:
            policies = policies_of(
                row.agent_id,
                prepared.model,
                config,
                sandbox=prepared.workplace.sandbox,
                subagent=is_subagent(row.session_key),
            )
            if allowed_tools(["read"], policies):
                opener = await opener_of(runtime, row.agent_id, row.session_key, prepared.turn.entry)
                opener = prepared.workplace.guarded(opener)
        limit = size_limit(config, row.route.channel, row.route.account_id)
        files = await reply_files(addresses, runtime.stores.blobs, opener, limit, skip=skip)
        return files.spoken() if voice else files


class Passes:
    """Runs the loop until a model has answered or none is left."""

    def __init__(
        self,
        run: ActiveRun,
        runtime: Runtime,
        recorder: Recorder,
        candidates: Candidates,
        prepared: Prepared,
        prepare_again: Callable[[Candidates], Awaitable[Prepared]],
    ) -> None:
        """``prepare_again`` prepares the run for another model."""
        self._run = run
        self._runtime = runtime
        self._recorder = recorder
        self._transcript = recorder.transcript
        self._prepare_again = prepare_again
        self.candidates = candidates
        self.prepared = prepared
        """For the model that is asked now."""
        self.notices = ModelNotices(prepared, candidates)
        config = runtime.config.current
        agent = agent_config(config, run.row.agent_id)
        own = agent.tools.loop_detection if agent and agent.tools else None
        self._repeats = RepeatedCalls(own or config.tools.loop_detection)
        self.time_used_s = 0.0
        """The part of the run's time that was used before."""

    async def run(self) -> RunEnd:
        """Answer with one model after the other, within the run's time limit."""
        if (limit_s := self.prepared.timeout_s) is not None:
            self._run.abort.set_deadline(limit_s - self.time_used_s)
        try:
            while True:
                model = self.candidates.current
                end = await self._answer_within_window()
                if self.candidates.current is model:
                    return end
                self.prepared = await self._prepare_again(self.candidates)
                await self._recorder.note_model(self.prepared)
        finally:
            self._run.abort.clear_deadline()

    async def _answer_within_window(self) -> RunEnd:
        """Run the loop. Each time the prompt turns out too large, make it smaller and continue."""
        prepared, transcript, recorder = self.prepared, self._transcript, self._recorder
        recovery = OverflowRecovery(prepared)
        if (end := await self._make_room(prepared, recovery)) is not None:
            return end
        prepared.window.begin(transcript.context().messages)
        while True:
            port = RunModel(self._run, self._runtime, recorder, self.candidates, prepared, recovery)
            end = await self._pass(port, prepared)
            final, failure = recorder.final, port.failure
            # A provider may cut a prompt that is too large and answer it without an error.
            silent = (
                end.outcome == "ok" and final is not None and is_silent_overflow(final, prepared.model.context_window)
            )
            suspected = recovery.is_suspected(failure)
            refused = end.error is not None and (
                suspected or (failure is not None and failure.kind == "overflow") or is_overflow(end.error)
            )
            if not silent and not refused:
                return end
            if not recovery.may_go_on(end.error):
                return msgspec.structs.replace(end, error=end.error and STILL_TOO_LARGE.format(error=end.error))
            answer_id = entry_id(self._run.row.run_id, recorder.step - 1)
            if silent:
                # The answer leaves the branch. Its entry stays in the file.
                if (entry := await transcript.entry(answer_id)) is not None:
                    await transcript.branch(entry.parent_id)
            elif (problem := recovery.refused(end.error or "", suspected=suspected)) is not None:
                return await recorder.reject(problem)
            outcome = await self._compact(recovery, prepared, "overflow")
            if silent and (outcome is None or outcome.status != "compacted"):
                await transcript.branch(answer_id)
                return end
            if silent:
                recorder.retract_answer()

    async def _make_room(self, prepared: Prepared, recovery: OverflowRecovery) -> RunEnd | None:
        """Compact a conversation that does not fit. Returns the end of the run if nothing could make it fit."""
        window, context = prepared.window, self._transcript.context()
        prepared.requests.use_cache(context.branch_cache)
        await window.count(context.messages)
        window.recall(context.messages, compacted_at(context))
        if window.fits(context.messages):
            return None
        try:
            check_room(window.budget)
        except DoesNotFit as problem:
            return await self._recorder.reject(str(problem))
        # If the messages do not fit after a compaction either, the window shortens them in memory.
        if self._runtime.config.current.compaction.enabled:
            await self._compact(recovery, prepared, "threshold")
        return None

    async def _compact(
        self, recovery: OverflowRecovery, prepared: Prepared, reason: CompactionReason
    ) -> CompactionOutcome | None:
        """Compact the conversation. Returns None if that is not needed, or if the run was stopped."""
        job = job_for(self._runtime, prepared, self._transcript, reason)
        job.urgent = job.in_run = True
        job.waiting, job.emit, job.bill = self._run.abort.waiting, self._run.emit, self._recorder.bill
        job.will_retry, job.timeout_s = reason == "overflow", WAITED_FOR_S
        try:
            outcome = await recovery.compact(job)
        except Aborted:
            return None
        # The results of the plan tool may now be part of the summary.
        turn, template = prepared.turn, prepared.requests.template
        entry = await self._runtime.stores.sessions.get(turn.agent_id, turn.session_key)
        template.turn_facts = renewed_facts(template.turn_facts, entry, FACTS_END)
        return outcome

    async def _pass(self, port: RunModel, prepared: Prepared) -> RunEnd:
        """Run the loop once over the messages of the transcript."""
        runtime, recorder, context = self._runtime, self._recorder, self._transcript.context()
        recorder.log.know(context)
        prepared.requests.use_cache(context.branch_cache)
        # The loop extends its list itself. The transcript's own list grows with each append.
        messages = list(context.messages)
        # Attempts that failed are not part of the answer, which may go on where its last part was cut.
        while messages and is_failed(messages[-1]):
            messages.pop()
        await prepared.requests.cleaner.prepare(prepared.window.recent(messages))
        recorder.start_pass(prepared, messages)
        turn, ack_max_chars = prepared.turn, None
        if turn.source == "heartbeat":
            ack_max_chars = heartbeat_config(runtime.config.current, turn.agent_id).ack_max_chars
        open_calls, waiting_calls = recorder.take_open_calls()
        options = LoopOptions(
            port=port,
            tools=runtime.extensions.watched(prepared.prompt.tools),
            tool_context=tool_context(runtime, prepared, self._run, recorder.embeddings),
            open_calls=open_calls,
            waiting_calls=waiting_calls,
            clock=runtime.clock,
            abort=self._run.abort,
            entries=recorder,
            events=self.notices.sink(prepared, recorder),
            inbox=self._run.inbox,
            client_tools=frozenset(spec.name for spec in turn.body.client_tools),
            speech=SpeechRules(prepared.prompt.framing, ack_max_chars),
            repeats=self._repeats,
            max_continuations=prepared.most_continuations,
        )
        ended = await run_loop(messages, options)
        return RunEnd(ended.outcome, ended.error, ended.failure)


class RunModel:
    """The ``ModelPort`` of one pass of the loop."""

    def __init__(
        self,
        run: ActiveRun,
        runtime: Runtime,
        recorder: Recorder,
        candidates: Candidates,
        prepared: Prepared,
        recovery: OverflowRecovery,
    ) -> None:
        self._run = run
        self._runtime = runtime
        self._recorder = recorder
        self._candidates = candidates
        self._prepared = prepared
        self._recovery = recovery
        self.failure: ModelError | None = None
        """The last error of a call."""

    @property
    def model(self) -> Model:
        return self._prepared.model

    @property
    def thinking(self) -> str:
        return self._prepared.thinking

    async def request(self, messages: list[Message]) -> ModelRequest:
        request, window = await self._prepared.requests.build(messages), self._prepared.window
        note = partial(
            self._recorder.log.note,
            request,
            self._runtime.clock.now_ms(),
            shortened=window.shortened,
            pruned=window.pruner.count if window.pruner else 0,
            first=window.first,
        )
        await with_many(len(request.messages), note)
        return request

    async def ask(self, request: ModelRequest, on_event: OnEvent) -> AssistantMessage:
        """Call the model, as far as the budget allows it (``PaidCalls.ask``).

        If another model could answer, one that stays silent fails before the run's time is up.
        """
        faults.point("model.call")
        self._run.note_model_call()
        left, limited, paid = self._run.abort.time_left, self._recorder.log.limit_output, self._recorder.paid
        if left is None or not self._candidates.has_others:
            return await paid.ask(request, on_event, limited)
        silent = True

        def watch(event: StreamEvent) -> None:
            nonlocal silent
            if silent and type(event) is not Counted:
                silent = False
                timer.reschedule(None)
            on_event(event)

        timer = asyncio.timeout(left * LONGEST_SILENCE)
        try:
            async with timer:
                return await paid.ask(request, watch, limited)
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"{request.model.ref} gave no answer within {left * LONGEST_SILENCE:.0f} s."
            raise ModelError(text, kind="timeout", retryable=True) from None

    async def after_failure(self, error: ModelError, attempt: int) -> NextStep:
        self.failure = error
        if self._recovery.suspects(error):
            return None  # The prompt is made smaller before another model is asked or the person is notified.
        return await self._candidates.next_step(error, attempt, self._runtime.config.current.retry)

    def change_after_refusal(self, error: ModelError) -> bool:
        return self._prepared.requests.change_after_refusal(error, self._runtime.clock.now_ms())
