"""Compaction: the older part of a conversation becomes one added entry; no byte of the transcript changes.

A pass either leaves a strictly smaller prompt behind or appends nothing. At most three model calls are made; when they
give no summary and the prompt must shrink, one is put together without a model.
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
    Summary,
    SummaryFailed,
    SummaryTask,
    tool_failures,
    without_file_lists,
    without_model,
)
from openclaw.agent.hooks import BeforeCompact, Cancel, Compacted, Compaction, Leaving, Reason
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

SMALLEST_KEPT = 64
KEPT_SLACK = 1.2
"""How far the share of the window that history may take can be exceeded before more of it is condensed."""


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    window: int
    reserve: int
    """Tokens kept free; beyond ``window - reserve`` history is condensed."""
    keep: int
    """Tokens of recent messages kept word for word."""
    enabled: bool = True
    instructions: str = ""
    """Added to every request for a summary."""
    warning: str = ""
    """What the configuration asked for and could not have."""
    safeguard: bool = False
    """Parts are smaller, failed tools are listed, and a summariser that fails does not prevent the compaction."""
    most_kept: int | None = None
    """With ``safeguard``: what is kept is cut further until it is no larger."""

    @property
    def limit(self) -> int:
        return self.window - self.reserve


def history_limit(config: Config, window: int) -> int:
    """Beyond these tokens history is condensed: the reserve is raised by its floor and bounded by half the window."""
    return window - min(_wanted_reserve(config), window // 2)


def _wanted_reserve(config: Config) -> int:
    agent = config.agents.defaults.compaction
    reserve = agent.reserve_tokens if agent.reserve_tokens is not None else config.compaction.reserve_tokens
    return max(reserve, agent.reserve_tokens_floor)


def compaction_settings(config: Config, window: int, overhead: int = 0) -> CompactionSettings:
    """Effective numbers; what is kept leaves room."""
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


class Cut(msgspec.Struct, frozen=True):
    index: int
    """The first message that is kept."""
    turn_start: int | None = None
    """Set when the cut goes through a turn: where that turn began."""


def find_cut(messages: Sequence[Message], keep_tokens: int, start: int = 0) -> Cut:
    """Keeps about ``keep_tokens`` from the end; never separates a tool result from its call.

    ``start``: messages before it (an earlier summary) are not part of the question.
    """
    valid = [place for place in range(start, len(messages)) if not isinstance(messages[place], ToolResultMessage)]
    if not valid:
        return Cut(start)
    index, kept = valid[0], 0
    for place in range(len(messages) - 1, start - 1, -1):
        kept += message_tokens(messages[place])
        if kept >= keep_tokens:
            # The end may be results without an answer yet: then the message that made the calls is kept with them.
            index = next((candidate for candidate in valid if candidate >= place), valid[-1])
            break
    return Cut(index, _turn_start(messages, index, start))


def _turn_start(messages: Sequence[Message], index: int, start: int) -> int | None:
    if isinstance(messages[index], UserMessage):
        return None
    for place in range(index - 1, start - 1, -1):
        if isinstance(messages[place], UserMessage):
            return place
    return None


log = logging.getLogger("openclaw.agents.compaction")

TOO_SMALL = "Nothing to compact (session too small)"
ALREADY = "Already compacted"
CANCELLED = "Compaction cancelled"
SMALLEST_SUMMARY = 256
_FAILED: dict[Reason, str] = {
    "threshold": "Auto-compaction failed",
    "overflow": "Context overflow recovery failed",
    "manual": "Compaction failed",
}


async def at_once(work: Callable[[], Awaitable[Any]]) -> Any:
    """For callers that own the session already."""
    return await work()


class CompactionJob(msgspec.Struct, kw_only=True):
    """One compaction of one session: who asks, why, and with which numbers."""

    runtime: Runtime
    agent_id: str
    session_key: str
    transcript: Transcript
    model: Model
    """Writes the summary."""
    budget: PromptBudget
    settings: CompactionSettings
    reason: Reason
    instructions: str = ""
    urgent: bool = False
    """The next prompt does not fit: if no summary can be had, one is made without a model."""
    in_run: bool = False
    exclusively: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]] = at_once
    """Waits for the session's turn; only the entry is written inside, never a model asked."""
    waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Marks the wait for the model, so that it can be stopped."""
    emit: Callable[[Event], None] = lambda event: None
    will_retry: bool = False
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
    first_kept_id: str
    compaction_id: str | None
    """The compaction before; a plan made for another state of the branch is not carried out."""
    task: SummaryTask
    kept_tokens: int
    tokens_before: int
    files: FileOps
    failures: str
    """Tools that failed, as the summary lists them; empty where it does not."""
    pins: list[Pin]


class CompactionOutcome(msgspec.Struct, kw_only=True):
    status: Literal["compacted", "skipped", "failed"]
    reason: str = ""
    entry_id: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    """Estimated size of the next prompt."""
    count: int = 0
    """Compactions of the session so far."""
    calls: int = 0
    method: Literal["summary", "trim", "hook"] = "summary"


class NothingToDo(Exception):
    """Why there is nothing to condense."""


class OutOfDate(Exception):
    """The branch changed while the summary was made."""


# Planning


async def make_plan(job: CompactionJob) -> CompactionPlan:
    """Decides what is condensed and what is kept. Raises ``NothingToDo``."""
    transcript = job.transcript
    context = transcript.context()
    if context.compaction_id is not None and transcript.leaf_id == context.compaction_id:
        raise NothingToDo(ALREADY)
    start = 0 if context.compaction_id is None else 1
    cut = choose_cut(context.messages, start, job.settings.keep, urgent=job.urgent, most=_most_kept(job))
    if cut.index <= start:
        raise NothingToDo(TOO_SMALL)
    leaving = context.messages[start : cut.index]
    if job.reason == "threshold" and prompt_tokens(leaving) < job.settings.window // 50:
        raise NothingToDo("what could be condensed is too little to help")
    previous = await _previous(transcript, context)
    files = _files(previous)
    files.take(leaving)
    pins = await pins_of(transcript)
    kept = context.messages[cut.index :]
    return CompactionPlan(
        first_kept_id=context.entry_ids[cut.index],
        compaction_id=context.compaction_id,
        task=await asyncio.to_thread(_task, job, context, cut, start, previous, prompt_tokens(kept)),
        kept_tokens=prompt_tokens(kept),
        tokens_before=tokens_now(context),
        files=files,
        failures=tool_failures(leaving) if job.settings.safeguard else "",
        pins=pins,
    )


def choose_cut(messages: list[Message], start: int, keep: int, *, urgent: bool, most: int | None = None) -> Cut:
    """When the prompt must shrink, less is kept rather than nothing condensed; and never more than ``most``."""
    cut = find_cut(messages, keep, start)
    while keep > 1 and ((urgent and cut.index <= start) or _too_much(messages, cut, most)):
        keep //= 2
        cut = find_cut(messages, keep, start)
    return cut


def _most_kept(job: CompactionJob) -> int | None:
    """Where the next prompt does not fit, one old message must not fill it again."""
    return job.settings.most_kept or (max(1, job.budget.room) if job.urgent else None)


def _too_much(messages: list[Message], cut: Cut, most: int | None) -> bool:
    """Words that wait for their answer do not count: they stay, however long they are."""
    end = len(messages) - (bool(messages) and isinstance(messages[-1], UserMessage))
    return most is not None and prompt_tokens(messages[cut.index : end]) > most


def tokens_now(context: Context) -> int:
    """The conversation's size: as the provider last counted it, estimates for what came since."""
    since = context.messages[0].timestamp if context.compaction_id is not None and context.messages else -1
    return context_estimate(context.messages, since)


def _task(
    job: CompactionJob, context: Context, cut: Cut, start: int, previous: dict[str, Any], kept: int
) -> SummaryTask:
    end = cut.index if cut.turn_start is None else cut.turn_start
    history, prefix = context.messages[start:end], context.messages[end : cut.index]
    before = unpinned(without_file_lists(str(previous.get("summary") or ""))).strip()
    replaced = sum(message_tokens(message) for message in (*history, *prefix)) + text_tokens(before)
    room = job.settings.limit - job.budget.overhead - kept
    most = max(SMALLEST_SUMMARY, min(job.settings.reserve, room // 2))
    focus = "\n".join(text for text in (job.settings.instructions, job.instructions) if text)
    return SummaryTask(
        history=history,
        prefix=prefix,
        previous=before,
        instructions=focus,
        replaced_tokens=replaced,
        most_tokens=most,
        needs=needs_of(before, (*history, *prefix)),
    )


async def _previous(transcript: Transcript, context: Context) -> dict[str, Any]:
    entry = await transcript.entry(context.compaction_id) if context.compaction_id is not None else None
    return fields_of(entry.raw) if entry is not None else {}


def _files(previous: dict[str, Any]) -> FileOps:
    details = previous.get("details")
    if previous.get("fromHook") or not isinstance(details, dict):
        return FileOps()
    lists = [details.get(name) for name in ("readFiles", "modifiedFiles")]
    read, modified = ({str(path) for path in found} if isinstance(found, list) else set[str]() for found in lists)
    return FileOps(read=read, modified=modified)


# Carrying out


async def compact(job: CompactionJob) -> CompactionOutcome:
    """One pass. What goes wrong is part of the outcome; only cancellation is raised."""
    hooks = job.runtime.hooks
    session_id = job.transcript.session_id
    try:
        plan = await make_plan(job)
    except NothingToDo as nothing:
        return CompactionOutcome(status="skipped", reason=str(nothing))
    leaving = Leaving(
        agent_id=job.agent_id,
        session_key=job.session_key,
        session_id=session_id,
        reason=job.reason,
        in_run=job.in_run,
    )
    if hooks.before_content_leaves:
        with job.waiting():
            await job.exclusively(lambda: hooks.content_leaves(leaving))
    job.emit(CompactionStarted(job.reason))
    outcome = CompactionOutcome(status="failed", reason=CANCELLED)
    try:
        plan = await make_plan(job)  # The hook may have written to the transcript.
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
            agent_id=job.agent_id,
            session_key=job.session_key,
            session_id=session_id,
            reason=job.reason,
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
    made = await _summary(job, plan)
    if isinstance(made, CompactionOutcome):
        return made
    compaction, outcome = made
    done = await _commit(job, plan, compaction, outcome)
    if done.status == "failed" and outcome.method == "summary" and (job.urgent or job.settings.safeguard):
        trim = _compaction(plan, without_model(plan.task), "trim", outcome.calls)
        return await _commit(job, plan, trim, CompactionOutcome(status="compacted", method="trim", calls=outcome.calls))
    return done


async def _summary(
    job: CompactionJob, plan: CompactionPlan
) -> tuple[Compaction, CompactionOutcome] | CompactionOutcome:
    summariser = job.summariser()
    method: Literal["summary", "trim"] = "summary"
    try:
        if not job.model.tools:
            raise SummaryFailed(f"{job.model.ref} is too small to write summaries")
        with job.waiting():
            made = await summariser.summarise(plan.task)
    except SummaryFailed as failed:
        log.warning("compaction of %s: %s", job.session_key, failed)
        if not job.urgent and not job.settings.safeguard and job.model.tools:
            return CompactionOutcome(status="failed", reason=str(failed), calls=summariser.calls)
        made = Summary(text=without_model(plan.task), calls=summariser.calls, refused=summariser.refused)
        method = "trim"
    for why in made.refused:
        log.info("compaction of %s: a summary was refused: %s", job.session_key, why)
    compaction = _compaction(plan, made.text, method, made.calls)
    return compaction, CompactionOutcome(status="compacted", method=method, calls=made.calls)


def _compaction(plan: CompactionPlan, summary: str, method: str, calls: int) -> Compaction:
    read, modified = plan.files.lists()
    details = {"readFiles": read, "modifiedFiles": modified, "method": method, "modelCalls": calls}
    return Compaction(
        summary=summary.strip() + plan.failures + plan.files.block() + pinned_block(plan.pins),
        first_kept_entry_id=plan.first_kept_id,
        tokens_before=plan.tokens_before,
        details=details,
    )


async def _commit(
    job: CompactionJob, plan: CompactionPlan, compaction: Compaction, outcome: CompactionOutcome
) -> CompactionOutcome:
    """Writes the entry when it is the session's turn, if it still fits the branch and makes the prompt smaller."""
    outcome.tokens_before = plan.tokens_before
    try:
        await job.exclusively(lambda: _append(job, plan, compaction, outcome))
    except OutOfDate as problem:
        return CompactionOutcome(status="failed", reason=str(problem), calls=outcome.calls)
    return outcome


async def _append(job: CompactionJob, plan: CompactionPlan, compaction: Compaction, outcome: CompactionOutcome) -> None:
    transcript = job.transcript
    entry = await job.runtime.sessions.get(job.agent_id, job.session_key)
    if entry is None or entry["sessionId"] != transcript.session_id:
        raise OutOfDate("the session was replaced meanwhile")
    context = transcript.context()
    kept_id = compaction.first_kept_entry_id
    if context.compaction_id != plan.compaction_id or kept_id not in context.entry_ids:
        raise OutOfDate("the conversation took another course meanwhile")
    summary = compaction.summary
    if lost_pins := forgotten(plan.pins, summary):
        summary += pinned_block(lost_pins)
    kept = context.messages[context.entry_ids.index(kept_id) :]
    before, after = prompt_tokens(context.messages), text_tokens(summary) + prompt_tokens(kept)
    if after >= before:
        raise OutOfDate(f"condensing would not make the conversation smaller ({before} tokens, then {after})")
    fields: dict[str, Any] = {
        "type": "compaction",
        "summary": summary,
        "firstKeptEntryId": kept_id,
        "tokensBefore": plan.tokens_before,
        "details": {**compaction.details, **({"pins": plan.pins} if plan.pins else {})},
    }
    if outcome.method == "hook":
        fields["fromHook"] = True
    outcome.entry_id = await transcript.append(fields, durable=True)
    outcome.tokens_after = job.budget.size(transcript.context().messages)
    outcome.count = await count_compaction(job.runtime, job.agent_id, job.session_key, transcript, outcome.tokens_after)


async def count_compaction(
    runtime: Runtime, agent_id: str, session_key: str, transcript: Transcript, tokens_after: int, add: int = 1
) -> int:
    """Appended entries are counted, and the size of the next prompt is what it is now."""

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


STILL_TOO_LARGE = (
    "The conversation does not fit the model's window, and condensing it once did not help. Start over with /new, or "
    "choose a model with a larger window with /model. ({error})"
)


def settings_for(prepared: Prepared, runtime: Runtime) -> CompactionSettings:
    budget = prepared.window.budget
    overhead = round(budget.overhead * budget.scale)
    return compaction_settings(runtime.config.current, prepared.model.context_window, overhead)


def summary_model(runtime: Runtime, otherwise: Model) -> Model:
    """The model that writes summaries; the session's own unless another is configured and known."""
    name = runtime.config.current.agents.defaults.compaction.model
    if not name:
        return otherwise
    try:
        return runtime.catalogue().resolve(name)
    except ModelError as unknown:
        log.warning("agents.defaults.compaction.model: %s", unknown)
        return otherwise


def overflowed(error: str | None, failure: ModelError | None) -> bool:
    return error is not None and ((failure is not None and failure.kind == "overflow") or is_overflow(error))


def silently_overflowed(final: AssistantMessage | None, prepared: Prepared) -> bool:
    return final is not None and is_silent_overflow(final, prepared.model.context_window)


async def after_overflow(job: CompactionJob, prepared: Prepared) -> CompactionOutcome | None:
    """The estimate was wrong: it is corrected, and the conversation condensed."""
    prepared.window.was_too_large()
    job.budget = prepared.window.budget
    return await compact(job) if job.settings.enabled else None


async def without_answer(transcript: Transcript, answer_id: str) -> None:
    """Takes an answer off the branch that the model gave to a prompt it had cut without a word."""
    entry = await transcript.entry(answer_id)
    if entry is not None:
        transcript.branch(entry.parent_id)
