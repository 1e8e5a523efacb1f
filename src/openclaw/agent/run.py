"""One run: rebuild the context, call the loop, store each message as it ends, account for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.agent.budget import budget_of, is_limited, within_budget
from openclaw.agent.compaction import Job
from openclaw.agent.compaction_summary import WAITED_FOR_S
from openclaw.agent.continuation import parts_at_end, unfinished
from openclaw.agent.exec_wish import exec_wish
from openclaw.agent.fit import DoesNotFit
from openclaw.agent.hooks import Reason
from openclaw.agent.loop import Inbox, LoopOptions, run_loop
from openclaw.agent.make_room import (
    STILL_TOO_LARGE,
    after_overflow,
    before_prompt,
    overflowed,
    settings_for,
    silently_overflowed,
    summary_model,
    without_answer,
)
from openclaw.agent.memory_flush import flush_if_due
from openclaw.agent.preparation import Preparation, prepare, workspace_of
from openclaw.agent.prompt_images import with_pictures
from openclaw.agent.request_log import RequestLog
from openclaw.agent.result import RunResult, note_speech, result_of
from openclaw.agent.resume import INTERRUPTED, NOT_STARTED, entry_id, found_end, next_step
from openclaw.agent.runtime import Runtime, Turn
from openclaw.agent.tokens import reported_prompt
from openclaw.agent.tool_calls import not_run
from openclaw.agent.tool_output import stored_result
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    ContinuationAsked,
    Event,
    RunEnded,
    Spoken,
    SteeringInjected,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from openclaw.messages import (
    AssistantMessage,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    user_text,
)
from openclaw.models.base import Model, ModelError, ModelRequest, StreamEvent
from openclaw.models.compat import reasons_in_tags
from openclaw.models.cost import added, has_price
from openclaw.models.retry import next_retry_ms
from openclaw.outbound.footer import usage_footer
from openclaw.outbound.visible import SpeechStream
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.freshness import touched
from openclaw.storage import faults
from openclaw.storage.base import Transcript, TranscriptRef
from openclaw.storage.trouble import DiskWait, until_written
from openclaw.tools.base import ToolContext
from openclaw.tools.exec_terms import ExecWish

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
        inbox: Inbox,
        emit: Callable[[Event], None],
        disk: DiskWait | None = None,
    ) -> None:
        self._turn = turn
        self._runtime = runtime
        self._abort = abort
        self._inbox = inbox
        self._emit = emit
        self._disk = disk
        self._step = 0
        self.prepared: Preparation | None = None
        """Set once the run knows its model and prompt."""
        self._failure: ModelError | None = None
        self._spent: Usage | None = None
        self._log = RequestLog()
        self._path = Path()
        self._background: set[asyncio.Future[None]] = set()

    async def execute(self) -> RunResult:
        """Runs the turn to its end. What goes wrong is part of the result, and the message is kept in any case."""
        began = self._runtime.clock.now_ms()
        transcript = await self._open()
        try:
            try:
                prepared = self.prepared = await prepare(self._turn, self._runtime)
            except ModelError as problem:
                result = await self._refuse(transcript, str(problem))
            else:
                result = await self._run(transcript, prepared)
            await self._sync(transcript)
        except Aborted as stopped:
            # Stopped while it waited for a disk that takes nothing; anywhere else the loop sees to it.
            result = RunResult(outcome="aborted", error=str(stopped))
        result.session_id = transcript.session_id
        result.duration_ms = self._runtime.clock.now_ms() - began
        return result

    async def give_up(self, why: str) -> RunResult:
        """Ends the message without a model. The transcript says why, unless the answer was already there."""
        transcript = await self._open()
        result = await self._refuse(transcript, why)
        await self._sync(transcript)
        result.session_id = transcript.session_id
        return result

    async def _sync(self, transcript: Transcript) -> None:
        faults.point("sync.before")
        await self._kept(transcript.sync)
        faults.point("sync.after")
        if self._background:
            # Notes for a later reader; a run does not fail for want of one.
            await asyncio.gather(*self._background, return_exceptions=True)

    async def _kept(self, write: Callable[[], Awaitable[T]]) -> T:
        """A disk that takes nothing pauses the run instead of ending it, until someone stops it or its time is up."""
        return await until_written(write, self._pause, self._disk)

    async def _pause(self, seconds: float) -> None:
        with self._abort.waiting():
            await self._runtime.clock.sleep(seconds)

    async def _run(self, transcript: Transcript, prepared: Preparation) -> RunResult:
        await self._record_model(transcript, prepared)
        await flush_if_due(self._runtime, self._turn, transcript, prepared, self._abort, self._note_spent)
        result = await self._store_prompt(transcript)
        if result is None:
            result = await self._answer(transcript, prepared)
        result.provider, result.model = prepared.model.provider, prepared.model.id
        result.report = prepared.report
        result.request = await self._log.record(self._runtime.reports, self._runtime.blobs)
        await self._account(result, prepared)
        return result

    async def _refuse(self, transcript: Transcript, problem: str) -> RunResult:
        """No model is called, e.g. because none of that name is known."""
        found = await self._store_prompt(transcript)
        if found is not None:
            return found
        now = self._runtime.clock.now_ms()
        notice = AssistantMessage(content=[], stop_reason="error", error_message=problem, timestamp=now)
        await self._append(transcript, notice)
        return RunResult(outcome="error", error=problem, final=notice)

    async def _open(self) -> Transcript:
        entry = await self._runtime.sessions.get(self._turn.agent_id, self._turn.session_key)
        ref = TranscriptRef(
            agent_id=self._turn.agent_id,
            session_id=self._turn.session_id,
            file=entry.get("sessionFile") if entry and entry["sessionId"] == self._turn.session_id else None,
        )
        workspace = workspace_of(self._turn, self._runtime)
        transcript = await self._runtime.transcripts.open(ref, cwd=str(workspace))
        assert transcript is not None
        self._path = Path(transcript.path)
        for warning in transcript.warnings:
            log.warning("transcript %s: %s", transcript.path, warning)
        return transcript

    async def _record_model(self, transcript: Transcript, prepared: Preparation) -> None:
        """Notes a change of model or thinking level, as other readers of these files expect."""
        context, model = transcript.context(), prepared.model
        if context.model != (model.provider, model.id):
            data = {
                "timestamp": self._runtime.clock.now_ms(),
                "provider": model.provider,
                "modelApi": model.api,
                "modelId": model.id,
            }
            snapshot = {"type": "custom", "customType": "model-snapshot", "data": data}
            change = {"type": "model_change", "provider": model.provider, "modelId": model.id}
            await self._add(transcript, change, "model")
            await self._add(transcript, snapshot, "snapshot")
        if len(transcript) <= 2 or context.thinking_level != prepared.thinking:
            change = {"type": "thinking_level_change", "thinkingLevel": prepared.thinking}
            await self._add(transcript, change, "thinking")

    async def _store_prompt(self, transcript: Transcript) -> RunResult | None:
        """Appends the user's message, or, after a restart, finds how far this run had come.

        Returns the result when the answer was already complete and only its bookkeeping was lost.
        """
        for place, output in enumerate(self._turn.tool_outputs):
            await self._add(transcript, {"type": "message", "message": output}, f"output {place}")
        self._step = next_step(self._turn.run_id, transcript, began=self._turn.resumed)
        if self._step == 0:
            if not self._turn.prompt and not self._turn.images:
                return None
            notes = self._runtime.notes.drain(self._turn.session_key)
            text = "\n".join([*notes, "", self._turn.prompt]) if notes else self._turn.prompt
            blocks = [TextBlock(text=text), *self._turn.images]
            message = UserMessage(content=blocks, timestamp=self._runtime.clock.now_ms())
            message = await with_pictures(message, self.prepared, self._turn.source)
            faults.point("user.before")
            await self._append(transcript, message)
            faults.point("user.after")
            return None
        context = transcript.context()
        found = found_end(self._turn.run_id, self._step, context)
        if found is not None:
            if not found.own:
                return RunResult(outcome="ok", taken_in=True)
            if unfinished(context.messages, self._continuations):
                return None
            return result_of(found.answer, parts_at_end(context.messages))
        asked = await self._close_open_calls(transcript, context.messages)
        return None if asked is None else result_of(asked)

    async def _close_open_calls(self, transcript: Transcript, messages: list[Message]) -> AssistantMessage | None:
        """A call without a result is not repeated: the model is told that it was interrupted.

        Calls that the caller runs stay open; a message that made one had ended the run, and is returned.
        """
        answered: set[str] = set()
        open_calls: list[ToolCall] = []
        asked: AssistantMessage | None = None
        for message in reversed(messages):
            if isinstance(message, ToolResultMessage):
                answered.add(message.tool_call_id)
            elif isinstance(message, AssistantMessage):
                if message.stop_reason not in ("error", "aborted"):
                    asked = message
                    open_calls = [call for call in message.tool_calls if call.id not in answered]
                break
            else:
                break
        if not open_calls:
            return None
        theirs = {spec.name for spec in self._turn.client_tools}
        started = {row.call_id for row in await self._runtime.ledger.tool_calls(self._turn.ledger_id)}
        for call in open_calls:
            if call.name in theirs:
                continue
            why = INTERRUPTED if call.id in started else NOT_STARTED
            await self._append(transcript, not_run(call, why, self._runtime.clock.now_ms()))
        return asked if any(call.name in theirs for call in open_calls) else None

    async def _answer(self, transcript: Transcript, prepared: Preparation) -> RunResult:
        """Runs the loop. A prompt that turns out too large is condensed and sent once more, never twice."""
        try:
            prepared.view.check_room()
        except DoesNotFit as problem:
            return await self._refuse(transcript, str(problem))
        prepared.remember(transcript.context().memo)
        await before_prompt(self._compaction(transcript, prepared, "threshold"), prepared)
        prepared.view.begin(transcript.context().messages)
        first = await self._loop(transcript, prepared)
        silent = first.outcome == "ok" and silently_overflowed(first.final, prepared)
        if not silent and not overflowed(first.error, self._failure):
            return first
        answer_id = entry_id(self._turn.run_id, self._step - 1)
        if silent:
            await without_answer(transcript, answer_id)
        outcome = await after_overflow(self._compaction(transcript, prepared, "overflow"), prepared)
        if silent and (outcome is None or outcome.status != "compacted"):
            transcript.branch(answer_id)
            return first
        said = first.texts[:-1] if silent and isinstance(first.speech, Spoken) else first.texts
        self._failure = None
        result = await self._loop(transcript, prepared)
        result.texts = [*said, *result.texts]
        if overflowed(result.error, self._failure):
            result.error = STILL_TOO_LARGE.format(error=result.error)
        return result

    def _compaction(self, transcript: Transcript, prepared: Preparation, reason: Reason) -> Job:
        return Job(
            runtime=self._runtime,
            agent_id=self._turn.agent_id,
            session_key=self._turn.session_key,
            transcript=transcript,
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
            spent=self._note_spent,
            run=lambda: self._spent,
        )

    def _note_spent(self, usage: Usage) -> None:
        self._spent = added(self._spent, usage)

    async def _loop(self, transcript: Transcript, prepared: Preparation) -> RunResult:
        result = RunResult(outcome="ok")
        thoughts: list[str] = []
        ended: RunEnded | None = None
        timer = self._start_timer(prepared)
        # A copy: the loop extends it, the transcript's own list follows by append.
        context = transcript.context()
        messages = list(context.messages)
        self._log.know(context)
        prepared.remember(context.memo)
        await prepared.cleaner.prepare(messages)
        try:
            async for event in run_loop(messages, self._options(prepared)):
                match event:
                    case AssistantStarted():
                        thoughts.clear()
                    case ThinkingDelta(delta):
                        thoughts.append(delta)
                    case AssistantEnded(message, speech, continues):
                        result.final = message
                        self._note_spent(message.usage)
                        prepared.view.learn(message)
                        faults.point("answer.before")
                        await self._append(transcript, message)
                        faults.point("answer.after")
                        if not continues:
                            note_speech(result, speech, "".join(thoughts) if self._shows_reasoning(prepared) else "")
                    case ContinuationAsked(message):
                        await self._note_continuation(transcript, message)
                        await prepared.cleaner.prepare([message])
                    case ToolStarted(call_id, name, arguments):
                        await self._note_start(call_id, name, msgspec.json.encode(arguments).decode())
                    case ToolEnded(message):
                        event = await self._store_result(transcript, event)
                        if messages[-1] is message:
                            # The model reads what was kept, now as in every later turn.
                            messages[-1] = event.message
                        await prepared.cleaner.prepare([event.message])
                    case SteeringInjected(message, token):
                        message = messages[-1] = await with_pictures(message, prepared)
                        await self._append(transcript, message, own_id=token)
                        await prepared.cleaner.prepare([message])
                    case RunEnded():
                        ended = event
                        continue
                    case _:
                        pass
                self._emit(event)
        finally:
            if timer is not None:
                timer.cancel()
        assert ended is not None
        outcome: Any = ended.outcome
        result.outcome, result.error = outcome, ended.error
        result.usage = result.final.usage if result.final else None
        return result

    async def _note_continuation(self, transcript: Transcript, message: UserMessage) -> None:
        """In the transcript, because the model reads it in later turns too; nobody else does."""
        fields = {
            "type": "custom_message",
            "customType": "continuation",
            "content": user_text(message),
            "display": False,
        }
        await self._add(transcript, fields, f"continue {self._step}")
        self._log.skip()

    @property
    def _continuations(self) -> int:
        """None when the caller chose the length, or where the answer is likely not to be shown."""
        if self._turn.max_tokens is not None or self._turn.source == "heartbeat":
            return 0
        return self._runtime.config.current.agents.defaults.max_length_continuations

    def _shows_reasoning(self, prepared: Preparation) -> bool:
        return (self._turn.reasoning or prepared.entry.get("reasoningLevel")) == "on"

    def _speech(self, model: Model) -> SpeechStream:
        beat = self._runtime.config.current.agents.defaults.heartbeat
        return SpeechStream(
            only_final=reasons_in_tags(model),
            ack_max_chars=beat.ack_max_chars if self._turn.source == "heartbeat" else None,
        )

    def _start_timer(self, prepared: Preparation) -> asyncio.TimerHandle | None:
        if prepared.timeout_s is None:
            return None
        return asyncio.get_running_loop().call_later(prepared.timeout_s, self._abort.abort, "timeout")

    def _options(self, prepared: Preparation) -> LoopOptions:
        settings = prepared.retry

        def delay(attempt: int, error: ModelError) -> int | None:
            self._failure = error
            return next_retry_ms(error, attempt, settings)

        def request(messages: list[Message]) -> ModelRequest:
            built, view = prepared.request(messages), prepared.view
            pruned = view.pruner.count if view.pruner else 0
            self._log.note(built, self._runtime.clock.now_ms(), shortened=view.shortened, pruned=pruned)
            return built

        return LoopOptions(
            model=prepared.model,
            stream=self._call_model,
            request=request,
            tools=prepared.tools,
            tool_context=ToolContext(
                agent_id=self._turn.agent_id,
                session_key=self._turn.session_key,
                workspace=Path(prepared.workspace),
                run_id=self._turn.run_id,
                model_sees_images="image" in prepared.model.input,
                env=prepared.skill_env,
                notify=lambda text: self._runtime.notes.add(self._turn.session_key, text),
                wake=self._wake,
                exec=self._exec_wish,
            ),
            clock=self._runtime.clock,
            abort=self._abort,
            inbox=self._inbox,
            client_tools=frozenset(spec.name for spec in self._turn.client_tools),
            retry_delay_ms=delay,
            max_retries=settings.max_retries if settings.enabled else 0,
            simplify=lambda error: prepared.simplify(error, self._runtime.clock.now_ms()),
            tool_update=self._emit,
            speech=lambda: self._speech(prepared.model),
            max_continuations=self._continuations,
        )

    async def _exec_wish(self) -> ExecWish | None:
        entry = await self._runtime.sessions.get(self._turn.agent_id, self._turn.session_key)
        return exec_wish(self._turn.exec, entry, self._runtime.config.current.agents.defaults.elevated_default)

    def _wake(self, text: str) -> None:
        if self._runtime.wake is not None:
            self._runtime.wake(self._turn.run_id, text)
        else:
            self._runtime.notes.add(self._turn.session_key, text)

    def _call_model(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        faults.point("model.call")
        runtime, turn = self._runtime, self._turn
        if is_limited(budget_of(runtime.config.current, turn.agent_id)):
            return within_budget(request, runtime, turn.agent_id, turn.session_key, self._path, self._spent)
        return runtime.call_model(request, turn.agent_id)

    async def _note_start(self, call_id: str, name: str, arguments: str) -> None:
        """On disk before the tool runs: after a crash the call is known to have begun, and is not made again."""
        faults.point("tool.before")
        ledger, ledger_id = self._runtime.ledger, self._turn.ledger_id
        await self._kept(lambda: ledger.tool_started(ledger_id, call_id, name, arguments))
        faults.point("tool.noted")

    async def _store_result(self, transcript: Transcript, event: ToolEnded) -> ToolEnded:
        faults.point("tool.ran")
        message = await self._kept(lambda: stored_result(event.message, self._runtime.blobs, self._runtime.state_dir))
        await self._append(transcript, message)
        faults.point("tool.stored")
        finished = self._runtime.ledger.tool_finished(self._turn.ledger_id, message.tool_call_id, not event.failed)
        task = asyncio.ensure_future(finished)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return ToolEnded(message, event.arguments, event.failed)

    async def _append(self, transcript: Transcript, message: Message, own_id: str | None = None) -> None:
        """``own_id``: the run id a steered message was accepted under; its entry belongs to that id, not to ours."""
        fields = {"type": "message", "message": message}
        if own_id is not None:
            await self._kept(lambda: transcript.append(fields, entry_id=entry_id(own_id, 0)))
            self._log.name(message, entry_id(own_id, 0))
            faults.point("steer.after")
            return
        await self._add(transcript, fields, self._step)
        self._log.name(message, entry_id(self._turn.run_id, self._step))
        self._step += 1

    async def _add(self, transcript: Transcript, fields: dict[str, Any], step: int | str) -> None:
        await self._kept(lambda: transcript.append(fields, entry_id=entry_id(self._turn.run_id, step)))

    async def _account(self, result: RunResult, prepared: Preparation) -> None:
        """Statistics of the session: what the run used, except ``totalTokens``, the size of its last prompt."""
        usage, now = result.usage, self._runtime.clock.now_ms()
        result.spent = spent = self._spent
        report = await self._runtime.reports.keep(prepared.report, prepared.shared_report, self._runtime.blobs)

        def change(entry: SessionEntry | None) -> SessionEntry | None:
            if entry is None:
                return None  # Deleted meanwhile: late events do not bring a session back.
            entry["updatedAt"] = touched(entry, now, self._turn.source)
            entry["systemSent"] = True
            entry["abortedLastRun"] = result.outcome == "aborted" and result.error in STOPPED_BY_HAND
            entry["modelProvider"], entry["model"] = prepared.model.provider, prepared.model.id
            entry["contextTokens"] = prepared.context_window
            entry["systemPromptReport"] = report
            result.footer = usage_footer(
                entry.get("responseUsage"), spent, self._turn.session_key, priced=has_price(prepared.model.cost)
            )
            if usage is not None and usage.total_tokens:
                run = spent or usage
                entry["inputTokens"], entry["outputTokens"] = run.input, run.output
                entry["cacheRead"], entry["cacheWrite"] = run.cache_read, run.cache_write
                entry["totalTokens"] = reported_prompt(usage, prepared.context_window)
            return entry

        sessions, turn = self._runtime.sessions, self._turn
        await self._kept(lambda: sessions.update(turn.agent_id, turn.session_key, change, durable=False))
