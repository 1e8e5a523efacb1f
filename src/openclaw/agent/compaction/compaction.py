"""Compaction: the older part of a conversation is replaced in the prompt by a summary.

The summary is appended to the transcript as an entry; the messages stay in the file. A compaction makes the prompt
smaller or appends nothing. It makes at most three model calls. If they fail and the prompt must shrink, the summary is
made without a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from openclaw.agent.compaction.check import needs_of
from openclaw.agent.compaction.pins import Pin, forgotten, pinned_block, pins_of, unpinned
from openclaw.agent.compaction.summary import (
    CALL_TIMEOUT_S,
    FileOps,
    Summariser,
    SummaryFailed,
    SummaryTask,
    tool_failures,
    without_file_lists,
    without_model,
)
from openclaw.agent.hooks import BeforeCompact, Cancel, Compacted, CompactionReason, CompactionResult, Leaving
from openclaw.agent.prepare import Prepared
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.billed_calls import NO_BILL, BilledCalls, RunBill
from openclaw.agent.window.tokens import PromptBudget, context_estimate, message_tokens, prompt_tokens, text_tokens
from openclaw.config.schema import Config
from openclaw.events import CompactionEnded, CompactionStarted, Event
from openclaw.messages import AssistantMessage, Message, ToolResultMessage, UserMessage
from openclaw.models.base import Model, ModelError
from openclaw.models.errors import is_overflow, is_silent_overflow
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.tree import fields_of
from openclaw.storage.base import Context, Transcript

log = logging.getLogger("openclaw.agents.compaction")

SMALLEST_KEPT = 64
SMALLEST_SUMMARY = 256
KEPT_SLACK = 1.2
"""The kept messages may exceed ``maxHistoryShare`` by this factor."""
TOO_SMALL = "Nothing to compact (session too small)"
ALREADY = "Already compacted"
CANCELLED = "Compaction cancelled"
STILL_TOO_LARGE = (
    "The conversation does not fit the model's window, and condensing it once did not help. Start over with /new, or "
    "choose a model with a larger window with /model. ({error})"
)
_FAILED: dict[CompactionReason, str] = {
    "threshold": "Auto-compaction failed",
    "overflow": "Context overflow recovery failed",
    "manual": "Compaction failed",
}


# Settings


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effective numbers for one model. All sizes are in tokens."""

    window: int
    reserve: int
    """The part of the window that stays free. A prompt above ``window - reserve`` is condensed."""
    keep: int
    """The size of the recent messages that are kept word for word."""
    enabled: bool = True
    instructions: str = ""
    """A text that is added to every request for a summary."""
    warning: str = ""
    """Why a configured value is not used; empty if all are."""
    safeguard: bool = False
    """Summarises in smaller parts, lists failed tools, and compacts without a model if the model fails."""
    most_kept: int | None = None
    """The most that is kept; set with ``safeguard``."""

    @property
    def limit(self) -> int:
        return self.window - self.reserve


def history_limit(config: Config, window: int) -> int:
    """The size above which a prompt is condensed. The reserve is at least its floor and at most half the window."""
    return window - min(_wanted_reserve(config), window // 2)


def _wanted_reserve(config: Config) -> int:
    agent = config.agents.defaults.compaction
    reserve = agent.reserve_tokens if agent.reserve_tokens is not None else config.compaction.reserve_tokens
    return max(reserve, agent.reserve_tokens_floor)


def compaction_settings(config: Config, window: int, overhead: int = 0) -> CompactionSettings:
    """The settings for a model's window. ``overhead`` is the size of the system prompt and the tools."""
    agent, general = config.agents.defaults.compaction, config.compaction
    wanted, reserve = _wanted_reserve(config), window - history_limit(config, window)
    warning = ""
    if wanted > reserve:
        warning = (
            f"compaction.reserveTokens ({wanted}) is more than half of the model's window ({window}); {reserve} is used"
        )
    keep = agent.keep_recent_tokens or general.keep_recent_tokens
    room = window - reserve - overhead
    safeguard = agent.mode == "safeguard"
    if safeguard:
        keep = min(keep, int(window * agent.max_history_share))
    return CompactionSettings(
        window=window,
        reserve=reserve,
        keep=max(SMALLEST_KEPT, min(keep, room // 2)),
        enabled=general.enabled,
        instructions=(agent.custom_instructions or "").strip(),
        warning=warning,
        safeguard=safeguard,
        most_kept=int(window * agent.max_history_share * KEPT_SLACK) if safeguard else None,
    )


def should_compact(context_tokens: int, window: int, reserve: int) -> bool:
    return context_tokens > window - reserve


# Where to cut


class Cut(msgspec.Struct, frozen=True):
    """Where the kept messages begin."""

    index: int
    """The index of the first message that is kept."""
    turn_start: int | None = None
    """The index at which the turn begins that the cut divides; None if it divides no turn."""


def find_cut(messages: Sequence[Message], keep_tokens: int, start: int = 0) -> Cut:
    """Keeps about ``keep_tokens`` from the end, and never separates a tool result from its call.

    Messages before ``start`` (an earlier summary) are ignored.
    """
    valid = [place for place in range(start, len(messages)) if not isinstance(messages[place], ToolResultMessage)]
    if not valid:
        return Cut(start)
    index, kept = valid[0], 0
    for place in range(len(messages) - 1, start - 1, -1):
        kept += message_tokens(messages[place])
        if kept >= keep_tokens:
            # If only tool results follow, the message that made the calls is kept with them.
            index = next((candidate for candidate in valid if candidate >= place), valid[-1])
            break
    if isinstance(messages[index], UserMessage):
        return Cut(index)
    before = (place for place in range(index - 1, start - 1, -1) if isinstance(messages[place], UserMessage))
    return Cut(index, next(before, None))


# Records


async def _at_once(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


class CompactionJob(msgspec.Struct, kw_only=True):
    """All that a compaction of one session needs to know."""

    runtime: Runtime
    agent_id: str
    session_key: str
    transcript: Transcript
    model: Model
    """The model that writes the summary."""
    budget: PromptBudget
    settings: CompactionSettings
    reason: CompactionReason
    instructions: str = ""
    """What the person asks the summary to stress."""
    urgent: bool = False
    """True if the next prompt does not fit. If the model fails, the summary is then made without it."""
    in_run: bool = False
    """True if a run waits for this compaction."""
    exclusively: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]] = _at_once
    """Calls a function while it holds the session's lock. The default is for callers that hold it already.

    The hooks before the compaction and the writing of the entry use it. The summary is made outside.
    """
    waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Surrounds the wait for a model or a hook, so that an abort can end it."""
    emit: Callable[[Event], None] = lambda event: None
    will_retry: bool = False
    """True if the run repeats its model call after a successful compaction. The final event says so."""
    timeout_s: float = CALL_TIMEOUT_S
    bill: RunBill = NO_BILL

    def summariser(self, purpose: str = "compaction") -> Summariser:
        calls = BilledCalls(self.runtime, self.agent_id, self.session_key, self.transcript, purpose, bill=self.bill)
        return Summariser(
            calls.ask,
            self.model,
            self.settings.reserve,
            scale=self.runtime.scales.of(self.model).value,
            timeout_s=self.timeout_s,
            small_parts=self.settings.safeguard,
        )


class CompactionPlan(msgspec.Struct, kw_only=True):
    """What a compaction will condense and keep."""

    first_kept_id: str
    compaction_id: str | None
    """The compaction on which the plan is based. If there is another one by now, the plan is dropped."""
    task: SummaryTask
    kept_tokens: int
    tokens_before: int
    files: FileOps
    failures: str
    """The section about failed tools that follows the summary; empty without ``safeguard``."""
    pins: list[Pin]


class CompactionOutcome(msgspec.Struct, kw_only=True):
    """What a compaction did."""

    status: Literal["compacted", "skipped", "failed"]
    reason: str = ""
    """Why it was skipped or failed, in words for people."""
    entry_id: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    """The estimated size of the next prompt."""
    count: int = 0
    """The number of compactions in this session so far."""
    calls: int = 0
    """The number of model calls."""
    method: Literal["summary", "trim", "hook"] = "summary"
    """Who made the summary: the model, the fallback without a model, or a hook."""


class NothingToDo(Exception):
    """There is nothing to condense. The text says why."""


class CommitRefused(Exception):
    """The summary cannot be appended, because the branch has changed or the prompt would not be smaller."""


# Planning


async def make_plan(job: CompactionJob) -> CompactionPlan:
    """Decides what is condensed and what is kept. Raises ``NothingToDo``."""
    transcript = job.transcript
    context = transcript.context()
    if context.compaction_id is not None and transcript.leaf_id == context.compaction_id:
        raise NothingToDo(ALREADY)
    start = 0 if context.compaction_id is None else 1
    cut = _choose_cut(job, context.messages, start)
    if cut.index <= start:
        raise NothingToDo(TOO_SMALL)
    leaving = context.messages[start : cut.index]
    if job.reason == "threshold" and prompt_tokens(leaving) < job.settings.window // 50:
        raise NothingToDo("what could be condensed is too little to help")
    entry = await transcript.entry(context.compaction_id) if context.compaction_id is not None else None
    previous = fields_of(entry.raw) if entry is not None else {}
    files = _files(previous)
    files.take(leaving)
    pins = await pins_of(transcript)
    kept_tokens = prompt_tokens(context.messages[cut.index :])
    return CompactionPlan(
        first_kept_id=context.entry_ids[cut.index],
        compaction_id=context.compaction_id,
        task=await asyncio.to_thread(_task, job, context, cut, start, str(previous.get("summary") or ""), kept_tokens),
        kept_tokens=kept_tokens,
        tokens_before=tokens_now(context),
        files=files,
        failures=tool_failures(leaving) if job.settings.safeguard else "",
        pins=pins,
    )


def _choose_cut(job: CompactionJob, messages: list[Message], start: int) -> Cut:
    """The cut for ``settings.keep``, or for less if too much would be kept or an urgent job would condense nothing."""
    # An urgent job must not keep one old message that fills the next prompt again.
    most = job.settings.most_kept or (max(1, job.budget.room) if job.urgent else None)
    # A last message that waits for its answer is kept, however long it is. It does not count.
    end = len(messages) - (bool(messages) and isinstance(messages[-1], UserMessage))
    keep = job.settings.keep
    cut = find_cut(messages, keep, start)
    while keep > 1 and (
        (job.urgent and cut.index <= start) or (most is not None and prompt_tokens(messages[cut.index : end]) > most)
    ):
        keep //= 2
        cut = find_cut(messages, keep, start)
    return cut


def tokens_now(context: Context) -> int:
    """The size of the conversation: the provider's last count, plus estimates for the messages since."""
    since = context.messages[0].timestamp if context.compaction_id is not None and context.messages else -1
    return context_estimate(context.messages, since)


def _task(job: CompactionJob, context: Context, cut: Cut, start: int, previous: str, kept_tokens: int) -> SummaryTask:
    """Blocking, because the search for the needed lines may take long."""
    end = cut.index if cut.turn_start is None else cut.turn_start
    history, prefix = context.messages[start:end], context.messages[end : cut.index]
    previous = unpinned(without_file_lists(previous)).strip()
    room = job.settings.limit - job.budget.overhead - kept_tokens
    return SummaryTask(
        history=history,
        prefix=prefix,
        previous=previous,
        instructions="\n".join(text for text in (job.settings.instructions, job.instructions) if text),
        replaced_tokens=sum(message_tokens(message) for message in (*history, *prefix)) + text_tokens(previous),
        most_tokens=max(SMALLEST_SUMMARY, min(job.settings.reserve, room // 2)),
        needs=needs_of(previous, (*history, *prefix)),
    )


def _files(previous: dict[str, Any]) -> FileOps:
    """The files that the previous compaction lists, unless a hook made it."""
    details = previous.get("details")
    if previous.get("fromHook") or not isinstance(details, dict):
        return FileOps()
    lists = [details.get(name) for name in ("readFiles", "modifiedFiles")]
    read, modified = ({str(path) for path in found} if isinstance(found, list) else set[str]() for found in lists)
    return FileOps(read=read, modified=modified)


# Carrying out


async def compact(job: CompactionJob) -> CompactionOutcome:
    """Makes one compaction. Errors are part of the outcome; only cancellation is raised."""
    hooks = job.runtime.hooks
    session: dict[str, Any] = {
        "agent_id": job.agent_id,
        "session_key": job.session_key,
        "session_id": job.transcript.session_id,
        "reason": job.reason,
    }
    try:
        plan = await make_plan(job)
    except NothingToDo as nothing:
        return CompactionOutcome(status="skipped", reason=str(nothing))
    if hooks.before_content_leaves:
        with job.waiting():
            await job.exclusively(lambda: hooks.content_leaves(Leaving(**session, in_run=job.in_run)))
    job.emit(CompactionStarted(job.reason))
    outcome = CompactionOutcome(status="failed", reason=CANCELLED)
    try:
        plan = await make_plan(job)  # A hook may have written to the transcript.
        outcome = await _carry_out(job, plan)
    except NothingToDo as nothing:
        outcome = CompactionOutcome(status="skipped", reason=str(nothing))
    finally:
        retry = job.will_retry and outcome.status == "compacted"
        error = f"{_FAILED[job.reason]}: {outcome.reason}" if outcome.status == "failed" else None
        job.emit(
            CompactionEnded(
                job.reason, outcome.entry_id, retry, error, outcome.count, outcome.tokens_before, outcome.tokens_after
            )
        )
    await hooks.tell_after(
        Compacted(
            **session,
            entry_id=outcome.entry_id,
            from_hook=outcome.method == "hook",
            error=outcome.reason if outcome.status == "failed" else "",
        )
    )
    return outcome


async def _carry_out(job: CompactionJob, plan: CompactionPlan) -> CompactionOutcome:
    answer = await job.runtime.hooks.ask_before(
        BeforeCompact(
            agent_id=job.agent_id,
            session_key=job.session_key,
            session_id=job.transcript.session_id,
            reason=job.reason,
            first_kept_entry_id=plan.first_kept_id,
            tokens_before=plan.tokens_before,
            messages=[*plan.task.history, *plan.task.prefix],
            previous_summary=plan.task.previous,
            instructions=plan.task.instructions,
        )
    )
    if isinstance(answer, Cancel):
        return CompactionOutcome(status="skipped", reason=answer.why or CANCELLED)
    if answer is not None:
        return await _commit(job, plan, answer, CompactionOutcome(status="compacted", method="hook"))
    can_trim = job.urgent or job.settings.safeguard
    summariser = job.summariser()
    try:
        if not job.model.tools:
            raise SummaryFailed(f"{job.model.ref} is too small to write summaries")
        with job.waiting():
            text = await summariser.summarise(plan.task)
    except SummaryFailed as failed:
        log.warning("compaction of %s: %s", job.session_key, failed)
        if not can_trim and job.model.tools:
            return CompactionOutcome(status="failed", reason=str(failed), calls=summariser.calls)
        text = None
    for why in summariser.refused:
        log.info("compaction of %s: a summary was refused: %s", job.session_key, why)
    if text is not None:
        outcome = await _commit_text(job, plan, text, "summary", summariser.calls)
        if outcome.status != "failed" or not can_trim:
            return outcome
    return await _commit_text(job, plan, without_model(plan.task), "trim", summariser.calls)


async def _commit_text(
    job: CompactionJob, plan: CompactionPlan, text: str, method: Literal["summary", "trim"], calls: int
) -> CompactionOutcome:
    """Commits a summary with the lists of files and failures and the pinned texts."""
    read, modified = plan.files.lists()
    result = CompactionResult(
        summary=text.strip() + plan.failures + plan.files.block() + pinned_block(plan.pins),
        first_kept_entry_id=plan.first_kept_id,
        tokens_before=plan.tokens_before,
        details={"readFiles": read, "modifiedFiles": modified, "method": method, "modelCalls": calls},
    )
    return await _commit(job, plan, result, CompactionOutcome(status="compacted", method=method, calls=calls))


async def _commit(
    job: CompactionJob, plan: CompactionPlan, result: CompactionResult, outcome: CompactionOutcome
) -> CompactionOutcome:
    """Appends the entry under the session's lock and completes the outcome. If it is refused, the outcome is failed."""
    outcome.tokens_before = plan.tokens_before
    try:
        await job.exclusively(lambda: _append(job, plan, result, outcome))
    except CommitRefused as problem:
        return CompactionOutcome(status="failed", reason=str(problem), calls=outcome.calls)
    return outcome


async def _append(
    job: CompactionJob, plan: CompactionPlan, result: CompactionResult, outcome: CompactionOutcome
) -> None:
    transcript = job.transcript
    entry = await job.runtime.sessions.get(job.agent_id, job.session_key)
    if entry is None or entry["sessionId"] != transcript.session_id:
        raise CommitRefused("the session was replaced meanwhile")
    context = transcript.context()
    kept_id = result.first_kept_entry_id
    if context.compaction_id != plan.compaction_id or kept_id not in context.entry_ids:
        raise CommitRefused("the conversation took another course meanwhile")
    summary = result.summary
    if lost_pins := forgotten(plan.pins, summary):
        summary += pinned_block(lost_pins)
    kept = context.messages[context.entry_ids.index(kept_id) :]
    before, after = prompt_tokens(context.messages), text_tokens(summary) + prompt_tokens(kept)
    if after >= before:
        raise CommitRefused(f"condensing would not make the conversation smaller ({before} tokens, then {after})")
    fields: dict[str, Any] = {
        "type": "compaction",
        "summary": summary,
        "firstKeptEntryId": kept_id,
        "tokensBefore": plan.tokens_before,
        "details": {**result.details, **({"pins": plan.pins} if plan.pins else {})},
    }
    if outcome.method == "hook":
        fields["fromHook"] = True
    outcome.entry_id = await transcript.append(fields, durable=True)
    outcome.tokens_after = job.budget.size(transcript.context().messages)
    outcome.count = await count_compaction(job.runtime, job.agent_id, job.session_key, transcript, outcome.tokens_after)


async def count_compaction(
    runtime: Runtime, agent_id: str, session_key: str, transcript: Transcript, tokens_after: int, add: int = 1
) -> int:
    """Adds to the session's number of compactions, stores the new prompt size, and returns the number."""

    def change(entry: SessionEntry | None) -> SessionEntry | None:
        if entry is None or entry["sessionId"] != transcript.session_id:
            return entry
        entry["compactionCount"] = entry.get("compactionCount", 0) + add
        entry["totalTokens"] = tokens_after
        for name in ("inputTokens", "outputTokens", "cacheRead", "cacheWrite"):
            entry.pop(name, None)
        return entry

    entry = await runtime.sessions.update(agent_id, session_key, change, durable=False)
    return entry.get("compactionCount", 0) if entry is not None else 0


# What runs and commands use


def settings_for(prepared: Prepared, runtime: Runtime) -> CompactionSettings:
    budget = prepared.window.budget
    overhead = round(budget.overhead * budget.scale)
    return compaction_settings(runtime.config.current, prepared.model.context_window, overhead)


def summary_model(runtime: Runtime, otherwise: Model) -> Model:
    """The model that writes summaries: the configured one, or ``otherwise`` if none is configured or it is unknown."""
    name = runtime.config.current.agents.defaults.compaction.model
    if not name:
        return otherwise
    try:
        return runtime.catalogue().resolve(name)
    except ModelError as unknown:
        log.warning("agents.defaults.compaction.model: %s", unknown)
        return otherwise


def overflowed(error: str | None, failure: ModelError | None) -> bool:
    """Whether a run failed because its prompt was too large for the model."""
    return error is not None and ((failure is not None and failure.kind == "overflow") or is_overflow(error))


def silently_overflowed(final: AssistantMessage | None, prepared: Prepared) -> bool:
    """Whether the provider answered a prompt that was larger than the window, after cutting it without an error."""
    return final is not None and is_silent_overflow(final, prepared.model.context_window)


async def after_overflow(job: CompactionJob, prepared: Prepared) -> CompactionOutcome | None:
    """Corrects the token estimate, which was too low, and compacts if that is enabled."""
    prepared.window.was_too_large()
    job.budget = prepared.window.budget
    return await compact(job) if job.settings.enabled else None


async def without_answer(transcript: Transcript, answer_id: str) -> None:
    """Takes an answer off the branch, because the provider had cut the prompt. The entry stays in the file."""
    entry = await transcript.entry(answer_id)
    if entry is not None:
        transcript.branch(entry.parent_id)
