"""One run: it prepares the request, stores the user's message, runs the loop and updates the session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from openclaw.agent.abort import Aborted, AbortSignal
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
from openclaw.agent.loop import LoopOptions, SteeringInbox, run_loop
from openclaw.agent.prepare import UNSEEN_SOURCES, Prepared, choose_model, prepare, tool_context
from openclaw.agent.recorder import Recorder, RunResult, entry_id, open_transcript
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.budget import BilledEmbeddings, PaidCalls, Payer
from openclaw.agent.tool_set import opener_of, policies_of
from openclaw.agent.window.tokens import reported_prompt
from openclaw.agent.window.window import DoesNotFit, check_room
from openclaw.config.agents import heartbeat_config
from openclaw.events import AssistantEnded, DemoModelAnswers, Event, ModelSwitched, Spoken, TextDelta
from openclaw.messages import AssistantMessage, ImageBlock, Message
from openclaw.models.base import CLI_API, Counted, Model, ModelError, ModelRequest, OnEvent, StreamEvent, has_price
from openclaw.models.calls import Candidates, NextStep, failed_model, models_asked
from openclaw.models.catalogue import UnknownModel
from openclaw.models.catalogue_data import is_demo
from openclaw.models.errors import all_failed_text, error_text, is_overflow, is_silent_overflow
from openclaw.outbound.answer_filter import SpeechStream
from openclaw.outbound.reply import usage_footer
from openclaw.outbound.reply_files import Files, reply_files, size_limit
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import is_subagent
from openclaw.sessions.reset import QUIET_SOURCES, touched
from openclaw.storage import faults
from openclaw.storage.disk_errors import DiskWait
from openclaw.storage.message_ledger import LedgerRow
from openclaw.storage.transcripts import Context, Transcript
from openclaw.tools.policy import allowed_tools
from openclaw.worker_thread import with_many

log = logging.getLogger("openclaw.agent.run")

LONGEST_SILENCE = 0.75
"""The part of the time left that a silent model may use up if there are others. They share the run's time."""
STOPPED_BY_HAND = ("stop", "rpc")
"""Abort reasons that the next turn is told about. An abort by a next message explains itself."""


class AgentRun:
    """Runs one accepted message to its end. `Runs` makes one for each message and uses it once."""

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
        disk: DiskWait | None = None,
        on_model_call: Callable[[], None] = lambda: None,
    ) -> None:
        """``session_id`` names the transcript that the run writes to. ``images`` came with the message.

        ``on_model_call`` is called before each model call.
        """
        self._row = row
        self._runtime = runtime
        self._session_id = session_id
        self._abort = abort
        self._inbox = inbox
        self._emit = emit
        self._images = images
        self._disk = disk
        self._on_model_call = on_model_call
        self.prepared: Prepared | None = None
        """Set when the run knows its model and prompt. It is another one when another model goes on."""
        self._candidates: Candidates
        self._told: tuple[str, str] | None = None
        """The models that the person was last told of (see ``told_of``)."""
        self._demo_told = False
        """Whether the person knows that the demo model answers."""
        self._failure: ModelError | None = None
        """The last error of a model call."""
        self._recorder: Recorder
        self._paid: PaidCalls
        self._embeddings: BilledEmbeddings

    @property
    def transcript(self) -> Transcript:
        """The run's transcript. It must be on disk before the end of the run is recorded."""
        return self._recorder.transcript

    async def execute(self) -> RunResult:
        """Runs the message to its end. A failure is part of the result. The message is stored in any case."""
        began = self._runtime.clock.now_ms()
        await self._open()
        try:
            result = await self._run()
            await self._recorder.settle()
        except Aborted as stopped:
            # The run was stopped while it waited for a full disk. The loop handles every other abort itself.
            result = RunResult(outcome="aborted", error=str(stopped))
        finally:
            self._paid.written()
        self._recorder.recall_into(result)
        result.session_id = self.transcript.session_id
        result.duration_ms = self._runtime.clock.now_ms() - began
        return result

    async def give_up(self, why: str, outcome: Literal["error", "aborted"] = "error") -> RunResult:
        """Ends the message without a model call. The transcript says why, unless the answer is already there."""
        await self._open()
        result = await self._refuse(why, outcome)
        await self._recorder.settle()
        self._recorder.recall_into(result)
        result.session_id = self.transcript.session_id
        return result

    async def files_of(self, addresses: Sequence[str], voice: bool, *, skip: int = 0) -> Files:
        """Files that an answer names, stored. A session without ``read`` sends none of its own."""
        if not addresses:
            return Files()
        row, runtime, opener = self._row, self._runtime, None
        config = runtime.config.current
        if (prepared := self.prepared) is not None:
            policies = policies_of(
                row.agent_id,
                prepared.model,
                config,
                sandbox=prepared.sandbox,
                subagent=is_subagent(row.session_key),
            )
            if allowed_tools(["read"], policies):
                opener = await opener_of(runtime, row.agent_id, row.session_key, prepared.entry)
                opener = opener if prepared.owner_files is None else opener.guarded(prepared.owner_files)
        limit = size_limit(config, row.route.channel, row.route.account_id)
        files = await reply_files(addresses, runtime.stores.blobs, opener, limit, skip=skip)
        return files.spoken() if voice else files

    async def _open(self) -> None:
        row, runtime = self._row, self._runtime
        transcript = await open_transcript(runtime, row.agent_id, row.session_key, self._session_id)
        recorder = Recorder(row, self._images, runtime, transcript, self._abort, self._disk, self._emit)
        path = Path(transcript.path)
        payer = Payer(agent_id=row.agent_id, session_key=row.session_key, transcript=path, bill=recorder.bill)
        self._recorder, self._paid = recorder, PaidCalls(runtime, payer)
        self._embeddings = BilledEmbeddings(runtime, payer, transcript.append)

    async def _run(self) -> RunResult:
        """Prepares, begins, answers and accounts."""
        row, runtime, recorder = self._row, self._runtime, self._recorder
        try:
            prepared = await self._prepare(await self._choose())
        except ModelError as problem:
            return await self._refuse(str(problem))
        if (sandbox := prepared.sandbox) is not None:
            skills = prepared.snapshot.skills
            folders = [str(Path(skill.path).parent) for skill in skills.skills]
            if (refusal := await sandbox.refusal(folders, skills)) is not None:
                return await self._refuse(refusal)
        entry, model = prepared.entry, prepared.model
        self._told = told_of(entry)
        self._demo_told = (entry.get("modelProvider"), entry.get("model")) == (model.provider, model.id)
        began = runtime.clock.monotonic()
        if row.attempts == 0 and is_due(runtime, prepared):
            await flush(runtime, recorder.transcript, prepared, self._abort, recorder.bill)
        flushed_s = runtime.clock.monotonic() - began
        result = await recorder.begin(prepared, self._max_continuations)
        if result is None:
            if prepared.timeout_s is not None:
                self._abort.set_deadline(prepared.timeout_s - flushed_s)
            try:
                result, prepared = await self._ask_models(prepared)
            finally:
                self._abort.clear_deadline()
        result.provider, result.model = prepared.model.provider, prepared.model.id
        result.report, result.failures = prepared.report, self._candidates.failures
        result.request = await recorder.log.record(runtime.prompting.reports)
        result.time_limit_s = round(prepared.timeout_s or 0)
        result.continuations, result.most_continuations = recorder.continuations, self._max_continuations
        await self._account(result, prepared)
        failure = result.failure
        if isinstance(failure, ModelError) and failure.kind != "overflow":
            asked = models_asked([*result.failures, failed_model(prepared.model, failure)])
            result.error = all_failed_text(asked, failure) if len(asked) > 1 else error_text(failure)
        return result

    async def _choose(self) -> Model:
        """The model to begin with: the chosen one, or one in its place if it rests. Raises ``ModelError``."""
        row, runtime, body = self._row, self._runtime, self._row.body
        entry = await runtime.stores.sessions.get(row.agent_id, row.session_key) or SessionEntry(
            sessionId=self._session_id
        )
        pictures = bool(self._images)
        try:
            chosen = choose_model(runtime, row.agent_id, entry, body)
            self._candidates = runtime.models.failover.candidates(row.agent_id, chosen, pictures=pictures)
        except UnknownModel as unknown:
            if body.model:
                raise  # Who asks for a model by its name learns that there is none.
            self._candidates = await runtime.models.failover.instead_of(unknown, row.agent_id, pictures=pictures)
        return await self._candidates.begin()

    async def _prepare(self, model: Model) -> Prepared:
        row = self._row
        self.prepared = await prepare(
            self._runtime,
            row.agent_id,
            row.session_key,
            self._session_id,
            row.body,
            source=row.source,
            chosen=model,
        )
        return self.prepared

    async def _ask_models(self, prepared: Prepared) -> tuple[RunResult, Prepared]:
        """Answers with one model after the other, until one of them answers or none is left."""
        said: list[Spoken] = []
        while True:
            model = self._candidates.current
            result = await self._answer_within_window(prepared)
            result.said = [*said, *result.said]
            if self._candidates.current is model:
                return result, prepared
            said = result.said
            prepared = await self._prepare(self._candidates.current)
            await self._recorder.note_model(prepared)

    async def _refuse(self, problem: str, outcome: Literal["error", "aborted"] = "error") -> RunResult:
        """Stores the user's message and ends the run without a model call, e.g. because the model is unknown."""
        found = await self._recorder.begin(None, self._max_continuations)
        return found or await self._recorder.refuse(problem, outcome)

    @property
    def _max_continuations(self) -> int:
        """0 if the caller chose the length of the answer, or if the answer is probably not shown.

        A model that is too small for tools repeats itself when it is asked for more.
        """
        small = self.prepared is not None and not self.prepared.model.tools
        if small or self._row.body.max_tokens is not None or self._row.source == "heartbeat":
            return 0
        return self._runtime.config.current.agents.defaults.max_length_continuations

    async def _answer_within_window(self, prepared: Prepared) -> RunResult:
        """Runs the loop. Each time the prompt turns out too large, it is made smaller and the loop goes on."""
        transcript, window = self.transcript, prepared.window
        recovery = OverflowRecovery(prepared)
        if (ended := await self._make_room(prepared, recovery)) is not None:
            return ended
        window.begin(transcript.context().messages)
        said: list[Spoken] = []
        while True:
            result = await self._loop(prepared, transcript.context(), recovery)
            final, failure = result.final, self._failure
            # A provider may cut a prompt that is too large and answer it without an error.
            silent = (
                result.outcome == "ok"
                and final is not None
                and is_silent_overflow(final, prepared.model.context_window)
            )
            suspected = recovery.is_suspected(failure)
            refused = result.error is not None and (
                suspected or (failure is not None and failure.kind == "overflow") or is_overflow(result.error)
            )
            answers = [*said, *result.said]
            if not silent and not refused:
                result.said = answers
                return result
            if not recovery.may_go_on(result.error):
                result.said, result.error = answers, result.error and STILL_TOO_LARGE.format(error=result.error)
                return result
            answer_id = entry_id(self._row.run_id, self._recorder.step - 1)
            if silent:
                # The answer leaves the branch. Its entry stays in the file.
                if (entry := await transcript.entry(answer_id)) is not None:
                    await transcript.branch(entry.parent_id)
            elif (problem := recovery.refused(result.error or "", suspected=suspected)) is not None:
                result = await self._recorder.refuse(problem)
                result.said = answers
                return result
            outcome = await self._compact(recovery, prepared, "overflow")
            if silent and (outcome is None or outcome.status != "compacted"):
                await transcript.branch(answer_id)
                result.said = answers
                return result
            said = answers[:-1] if silent and isinstance(result.speech, Spoken) else answers
            self._failure = None

    async def _make_room(self, prepared: Prepared, recovery: OverflowRecovery) -> RunResult | None:
        """Condenses a conversation that does not fit. Returns the end of the run if nothing could make it fit."""
        window, context = prepared.window, self.transcript.context()
        prepared.use_cache(context.branch_cache)
        await window.count(context.messages)
        window.recall(context.messages, compacted_at(context))
        if window.fits(context.messages):
            return None
        try:
            check_room(window.budget)
        except DoesNotFit as problem:
            return await self._recorder.refuse(str(problem))
        # If the messages do not fit after a compaction either, the window shortens them in memory.
        if self._runtime.config.current.compaction.enabled:
            await self._compact(recovery, prepared, "threshold")
        return None

    async def _compact(
        self, recovery: OverflowRecovery, prepared: Prepared, reason: CompactionReason
    ) -> CompactionOutcome | None:
        """Condenses the conversation. None: it was not needed, or the run was stopped, which the loop then notes."""
        job = job_for(self._runtime, prepared, self.transcript, reason)
        job.urgent = job.in_run = True
        job.waiting, job.emit, job.bill = self._abort.waiting, self._emit, self._recorder.bill
        job.will_retry, job.timeout_s = reason == "overflow", WAITED_FOR_S
        try:
            return await recovery.compact(job)
        except Aborted:
            return None

    async def _loop(self, prepared: Prepared, context: Context, recovery: OverflowRecovery) -> RunResult:
        """Runs the loop once over the messages of ``context``."""
        runtime, recorder = self._runtime, self._recorder
        recorder.log.know(context)
        prepared.use_cache(context.branch_cache)
        # The loop extends its list itself. The transcript's own list grows with each append.
        messages = list(context.messages)
        # Attempts that failed are not part of the answer, which may go on where its last part was cut.
        while messages and is_failed(messages[-1]):
            messages.pop()
        await prepared.cleaner.prepare(prepared.window.recent(messages))
        recorder.start_loop(prepared, messages)
        speech = partial(SpeechStream, only_final=prepared.prompt.framing)
        if prepared.source == "heartbeat":
            speech = partial(
                speech, ack_max_chars=heartbeat_config(runtime.config.current, prepared.agent_id).ack_max_chars
            )

        async def after_failure(error: ModelError, attempt: int) -> NextStep:
            self._failure = error
            if recovery.suspects(error):
                return None  # The prompt is made smaller before another model is asked or the person is told.
            return await self._candidates.next_step(error, attempt, runtime.config.current.retry)

        async def store(event: Event) -> None:
            await recorder.store(event)
            if isinstance(event, AssistantEnded):
                self._paid.written()

        async def request(messages: list[Message]) -> ModelRequest:
            built, window = await prepared.request(messages), prepared.window
            note = partial(
                recorder.log.note,
                built,
                runtime.clock.now_ms(),
                shortened=window.shortened,
                pruned=window.pruner.count if window.pruner else 0,
                first=window.first,
            )
            await with_many(len(built.messages), note)
            return built

        options = LoopOptions(
            model=prepared.model,
            thinking=prepared.thinking,
            ask=self._ask_model,
            request=request,
            tools=runtime.extensions.watched(prepared.prompt.tools),
            tool_context=partial(tool_context, runtime, prepared, self._row.run_id, pay=self._embeddings),
            clock=runtime.clock,
            abort=self._abort,
            show=self._make_show(prepared),
            store=store,
            inbox=self._inbox,
            client_tools=frozenset(spec.name for spec in prepared.body.client_tools),
            after_failure=after_failure,
            on_refusal=lambda error: prepared.change_after_refusal(error, runtime.clock.now_ms()),
            speech=speech,
            max_continuations=self._max_continuations,
        )
        ended = await run_loop(messages, options)
        result = recorder.result
        result.outcome, result.error, result.failure = ended.outcome, ended.error, ended.failure
        result.usage = result.final.usage if result.final else None
        return result

    def _make_show(self, prepared: Prepared) -> Callable[[Event], None]:
        """Returns the function that shows events.

        It says before the first words that another model answers, if the person does not know it.
        """
        show = self._recorder.show_with_reasoning if prepared.with_reasoning else self._emit
        chosen, active = self._candidates.chosen, prepared.model.ref
        now = (chosen, active) if active != chosen else None
        # A person who chose another model meanwhile knows that it answers.
        known = now == self._told or (now is None and self._told is not None and self._told[0] != chosen)
        if is_demo(prepared.model) and not (self._demo_told or prepared.source in UNSEEN_SOURCES):
            self._demo_told = True
            show(DemoModelAnswers(prepared.model.name))
        if known or prepared.source in UNSEEN_SOURCES or self._candidates.for_pictures:
            return show

        def tell_first(event: Event) -> None:
            if type(event) is TextDelta and self._told != now:
                self._told = now
                show(ModelSwitched(chosen, active, self._candidates.reason()))
            show(event)

        return tell_first

    async def _ask_model(self, request: ModelRequest, on_event: OnEvent) -> AssistantMessage:
        """Calls the model, as far as the budget allows it (``PaidCalls.ask``).

        If another model could answer, one that stays silent fails before the run's time is up.
        """
        faults.point("model.call")
        self._on_model_call()
        left, limited = self._abort.time_left, self._recorder.log.limit_output
        if left is None or not self._candidates.has_others:
            return await self._paid.ask(request, on_event, limited)
        silent = True

        def heard(event: StreamEvent) -> None:
            nonlocal silent
            if silent and type(event) is not Counted:
                silent = False
                timer.reschedule(None)
            on_event(event)

        timer = asyncio.timeout(left * LONGEST_SILENCE)
        try:
            async with timer:
                return await self._paid.ask(request, heard, limited)
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"{request.model.ref} gave no answer within {left * LONGEST_SILENCE:.0f} s."
            raise ModelError(text, kind="timeout", retryable=True) from None

    async def _account(self, result: RunResult, prepared: Prepared) -> None:
        """Updates the session's entry: what the run used, and in ``totalTokens`` the size of its last prompt."""
        row, runtime, model = self._row, self._runtime, prepared.model
        usage, now = result.usage, runtime.clock.now_ms()
        result.spent = spent = self._recorder.bill.spent
        report = await runtime.prompting.reports.keep(prepared.report)

        def change(entry: SessionEntry | None) -> SessionEntry | None:
            if entry is None or row.source in QUIET_SOURCES:
                # A session that was deleted during the run stays deleted, and a heartbeat changes nothing of the chat.
                return entry
            entry["updatedAt"] = touched(entry, now, row.source)
            entry["systemSent"] = True
            entry["abortedLastRun"] = result.outcome == "aborted" and result.error in STOPPED_BY_HAND
            entry["modelProvider"], entry["model"] = model.provider, model.id
            if self._told is None:
                for name in ("fallbackNoticeSelectedModel", "fallbackNoticeActiveModel", "fallbackNoticeReason"):
                    entry.pop(name, None)
            elif self._told != told_of(entry):
                entry["fallbackNoticeSelectedModel"], entry["fallbackNoticeActiveModel"] = self._told
                entry["fallbackNoticeReason"] = self._candidates.reason()
            entry["contextTokens"] = model.context_window
            if model.api == CLI_API:
                # A program has a prompt of its own, so that what it saw is not known.
                entry.pop("systemPromptReport", None)
            else:
                entry["systemPromptReport"] = report
            if footer := entry.get("responseUsage"):
                result.footer = usage_footer(footer, spent, row.session_key, priced=has_price(model.cost))
            if usage is not None and usage.total_tokens:
                run = spent or usage
                entry["inputTokens"], entry["outputTokens"] = run.input, run.output
                entry["cacheRead"], entry["cacheWrite"] = run.cache_read, run.cache_write
                entry["totalTokens"] = reported_prompt(usage, model.context_window)
            return entry

        sessions = runtime.stores.sessions
        await self._recorder.until_written(
            lambda: sessions.update(row.agent_id, row.session_key, change, durable=False)
        )


def told_of(entry: SessionEntry) -> tuple[str, str] | None:
    """The models that the person was last told of: the chosen one, and the one that answers in its place.

    None: as far as the person knows, the chosen model answers itself.
    """
    chosen, active = entry.get("fallbackNoticeSelectedModel"), entry.get("fallbackNoticeActiveModel")
    return (chosen, active) if chosen and active else None
