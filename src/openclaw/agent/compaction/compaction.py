"""Compaction: the older part of a conversation is replaced in the prompt by a summary.

``compact`` makes one, as its ``CompactionJob`` says. The summary is appended to the transcript as an entry. The
messages stay in the file. A compaction makes the prompt smaller or appends nothing. It makes at most three model calls.
If they fail and the prompt must shrink, the summary is made without a model. A session has one compaction at a time: a
run that needs room waits for the summary that is being written, and lends it the session's lock.

Extensions add hooks with ``api.on(name, function)``, see ``extensions/api.py``. A function may be plain or async. These
are the names:

``session_before_compact``  It may return ``Cancel()`` or its own ``CompactionResult``. The first answer counts.
``session_compact``         It is called after an entry was appended.
``before_compaction``       It is called before a summary is made. Its result is ignored.
``after_compaction``        It is called after every compaction, also after one that failed.
``before_content_leaves``   It is awaited before messages leave the prompt, so that it can save what must last.

``session_before_compact`` may also return ``{"cancel": True, "reason": ...}`` or ``{"compaction": {"summary": ...}}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from openclaw.agent.compaction.summary import (
    CALL_TIMEOUT_S,
    MOST_CALLS,
    FileOps,
    Summariser,
    SummaryFailed,
    SummaryTask,
    needs_of,
    tool_failures,
    without_file_lists,
    without_model,
)
from openclaw.agent.prepare import Prepared
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.budget import BilledCalls, RunBill
from openclaw.agent.window.tokens import (
    PromptBudget,
    TokenMeasure,
    context_estimate,
    message_tokens,
    prompt_size,
    prompt_tokens,
    text_tokens,
)
from openclaw.agent.window.window import DoesNotFit, Pin, check_room, open_turn, pinned_block, pins_of, unpinned
from openclaw.config.schema import Config
from openclaw.events import CompactionEnded, CompactionStarted, Event
from openclaw.messages import Message, ToolResultMessage, UserMessage
from openclaw.models.base import Model, ModelError
from openclaw.models.errors import is_unknown_refusal, named_counts
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.tree import fields_of
from openclaw.storage.transcripts import Context, Transcript
from openclaw.worker_thread import finish_in_thread, release_later, with_many

log = logging.getLogger("openclaw.agent.compaction")
T = TypeVar("T")

CompactionReason: TypeAlias = Literal["threshold", "overflow", "manual"]
SMALLEST_KEPT = 64
SMALLEST_SUMMARY = 256
KEPT_SLACK = 1.2
"""The kept messages may exceed ``maxHistoryShare`` by this factor."""
TOO_SMALL = "Nothing to compact (session too small)"
ALREADY = "Already compacted"
CANCELLED = "Compaction cancelled"
BUSY = "a compaction of this session is already under way"
MOST_RECOVERIES = 3
"""How often a run shrinks its prompt and asks again, if the provider refuses it each time."""
STILL_TOO_LARGE = (
    "The conversation does not fit the model's window, and condensing it did not help. Start over with /new, or "
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
    """The part of the window that stays free."""
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
        """A prompt above this size is condensed."""
        return self.window - self.reserve


def compaction_threshold(config: Config, window: int) -> int:
    """The size above which a prompt is condensed. The reserve is at least its floor and at most half the window."""
    return window - min(_wanted_reserve(config), window // 2)


def _wanted_reserve(config: Config) -> int:
    agent = config.agents.defaults.compaction
    reserve = agent.reserve_tokens if agent.reserve_tokens is not None else config.compaction.reserve_tokens
    return max(reserve, agent.reserve_tokens_floor)


def compaction_settings(config: Config, window: int, overhead: int = 0) -> CompactionSettings:
    """The settings for a model's window. ``overhead`` is the size of the system prompt and the tools."""
    agent, general = config.agents.defaults.compaction, config.compaction
    wanted_reserve, reserve = _wanted_reserve(config), window - compaction_threshold(config, window)
    warning = ""
    if wanted_reserve > reserve:
        half = f"half of the model's window ({window})"
        warning = f"compaction.reserveTokens ({wanted_reserve}) is more than {half}; {reserve} is used"
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
    # Places where the kept messages may begin: the nearest one at or after the place that is looked at.
    index: int | None = None
    kept_tokens = 0
    for position in range(len(messages) - 1, start - 1, -1):
        valid = not isinstance(messages[position], ToolResultMessage)
        if valid:
            index = position
        kept_tokens += message_tokens(messages[position])
        # If only tool results follow, the message that made the calls is kept with them.
        if kept_tokens >= keep_tokens and index is not None:
            break
    if index is None:
        return Cut(start)
    if isinstance(messages[index], UserMessage):
        return Cut(index)
    before = (position for position in range(index - 1, start - 1, -1) if isinstance(messages[position], UserMessage))
    return Cut(index, next(before, None))


# Records


class SessionLock(Protocol):
    """Calls a function while the session's lock is held, and returns its result."""

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T: ...

    def lend(self) -> contextlib.AbstractContextManager[None]:
        """Let the functions run under the caller's own lock. The caller must hold it."""
        ...

    @property
    def borrowed(self) -> bool:
        """Whether a function runs under a lock that was lent."""
        ...


class HeldLock:
    """The lock of a compaction whose caller holds the session's lock."""

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()

    @contextlib.contextmanager
    def lend(self) -> Generator[None]:
        yield

    @property
    def borrowed(self) -> bool:
        return False


class BorrowedLock:
    """The lock of a compaction beside the session's runs: ``exclusively`` acquires it, or a run lends its own."""

    def __init__(self, exclusively: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
        self._exclusively = exclusively
        self._lent = asyncio.Event()
        self.borrowed = False

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        acquired, released = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            acquired.set()
            await released.wait()

        turn = asyncio.ensure_future(self._exclusively(hold))
        either = [asyncio.ensure_future(event.wait()) for event in (acquired, self._lent)]
        try:
            await asyncio.wait([turn, *either], return_when=asyncio.FIRST_COMPLETED)
            if turn.done():
                turn.result()  # It raises, because ``hold`` has not been released.
            self.borrowed = not acquired.is_set()
            return await work()
        finally:
            self.borrowed = False
            # A turn that comes later finds nothing to do.
            released.set()
            for task in (turn, *either):
                task.cancel()

    @contextlib.contextmanager
    def lend(self) -> Generator[None]:
        self._lent.set()
        try:
            yield
        finally:
            self._lent.clear()


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
    exclusively: SessionLock = HeldLock()
    """The session's lock. The hooks before the compaction and the writing of the entry need it.

    The summary is made outside.
    """
    waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Surrounds the wait for a model or a hook, so that an abort can end it."""
    emit: Callable[[Event], None] = lambda event: None
    will_retry: bool = False
    """True if the run repeats its model call after a successful compaction. The final event says so."""
    most_calls: int = MOST_CALLS
    """The most model calls for the summary. With none the summary is made without a model."""
    calls: int = 0
    """The model calls that were made for it so far."""
    timeout_s: float = CALL_TIMEOUT_S
    bill: RunBill | None = None
    """That of the run that waits for this compaction."""

    def summariser(self, purpose: str = "compaction") -> Summariser:
        calls = BilledCalls(
            self.runtime,
            self.agent_id,
            self.session_key,
            self.transcript,
            purpose,
            bill=self.bill,
            most_calls=self.most_calls,
        )
        return Summariser(
            calls,
            self.model,
            self.settings.reserve,
            density=self.budget.density,
            most_calls=self.most_calls,
            most_pieces=1 if self.urgent else MOST_CALLS,
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
    density: float
    """The model's tokens for each estimated token of this conversation."""
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


# Planning


async def make_plan(job: CompactionJob) -> CompactionPlan:
    """Decides what is condensed and what is kept. Raises ``NothingToDo``."""
    transcript = job.transcript
    context = transcript.context()
    # The compaction that a run waited for may have been planned before there were as many messages as now.
    if context.compaction_id is not None and transcript.leaf_id == context.compaction_id and not job.urgent:
        raise NothingToDo(ALREADY)
    entry = await transcript.entry(context.compaction_id) if context.compaction_id is not None else None
    pins = await pins_of(transcript)
    return await finish_in_thread(lambda: _plan(job, context, fields_of(entry.raw) if entry is not None else {}, pins))


def _plan(job: CompactionJob, context: Context, previous: dict[str, Any], pins: list[Pin]) -> CompactionPlan:
    """Blocking, because a conversation may be long. ``previous`` is the entry of the last compaction."""
    messages, start = context.messages, 0 if context.compaction_id is None else 1
    sizes = [prompt_size(message) for message in messages]
    tokens_before = tokens_now(context)
    density = _density(job.budget, sum(sizes), tokens_before)
    cut = _choose_cut(job, messages, sizes, start, density)
    if cut.index <= start:
        # What OpenClaw itself said since, such as the answer to /compact, is not among these messages.
        is_new = any(message.timestamp > compacted_at(context) for message in messages)
        raise NothingToDo(ALREADY if start and not is_new else TOO_SMALL)
    leaving, leaving_tokens = messages[start : cut.index], sum(sizes[start : cut.index])
    if job.reason == "threshold" and leaving_tokens * density < job.settings.window // 50:
        raise NothingToDo("what could be condensed is too little to help")
    files = _files(previous)
    files.take(leaving)
    kept_tokens = round(sum(sizes[cut.index :]) * density)
    taken = kept_tokens + text_tokens(pinned_block([pin.text for pin in pins]))
    summary = str(previous.get("summary") or "")
    return CompactionPlan(
        first_kept_id=context.entry_ids[cut.index],
        compaction_id=context.compaction_id,
        task=_task(job, context, cut, start, summary, taken, density),
        kept_tokens=kept_tokens,
        tokens_before=tokens_before,
        files=files,
        density=density,
        failures=tool_failures(leaving) if job.settings.safeguard else "",
        pins=pins,
    )


def _density(budget: PromptBudget, estimated: int, tokens: int) -> float:
    """The tokens for each estimated token of the messages. The provider's count of this conversation decides."""
    return max(budget.density, (tokens - budget.overhead) / max(1, estimated))


def _choose_cut(job: CompactionJob, messages: list[Message], sizes: list[int], start: int, density: float) -> Cut:
    """The cut for ``settings.keep``, or for less if too much would be kept or an urgent job would condense nothing.

    The turn that has no answer yet is kept whole, however long it is: the question, the calls and their results. The
    last turn that was answered is divided only if the job is urgent or ``settings.most_kept`` asks for it.
    """
    # The summary needs its room too, and an urgent job must not keep what fills the next prompt again.
    most = min(job.settings.most_kept or job.settings.window, (job.settings.limit - job.budget.overhead) // 2)
    turn = open_turn(messages, start)
    last = turn
    if not job.urgent and not job.settings.safeguard and turn == len(messages):
        last = open_turn(messages[:-1], start)
    keep = job.settings.keep
    cut = find_cut(messages, keep, start)
    while keep > 1 and cut.index < last:
        too_much = sum(sizes[cut.index : turn]) * density > most
        if not too_much and not (job.urgent and cut.index <= start):
            break
        keep //= 2
        cut = find_cut(messages, keep, start)
        if cut.index > last:
            cut = Cut(last)
    return Cut(turn) if cut.index > turn else cut


def tokens_now(context: Context) -> int:
    """The size of the conversation: the provider's last count, plus estimates for the messages since."""
    return context_estimate(context.messages, compacted_at(context))


def compacted_at(context: Context) -> int:
    """The time of the last compaction, or -1. The counts in answers from before are no longer true."""
    return context.messages[0].timestamp if context.compaction_id is not None and context.messages else -1


def _task(
    job: CompactionJob, context: Context, cut: Cut, start: int, previous: str, taken: int, density: float
) -> SummaryTask:
    """Blocking, because the search for the needed lines may take long. ``taken``: the size of all that is kept."""
    end = cut.index if cut.turn_start is None else cut.turn_start
    history, prefix = context.messages[start:end], context.messages[end : cut.index]
    previous = unpinned(without_file_lists(previous)).strip()
    room = job.settings.limit - job.budget.overhead - taken
    replaced = sum(message_tokens(message) for message in (*history, *prefix)) + text_tokens(previous)
    return SummaryTask(
        history=history,
        prefix=prefix,
        previous=previous,
        instructions="\n".join(text for text in (job.settings.instructions, job.instructions) if text),
        replaced_tokens=_true_size(replaced, density),
        most_tokens=max(SMALLEST_SUMMARY, min(job.settings.reserve, room // 2)),
        needs=needs_of(previous, (*history, *prefix)),
    )


def _true_size(estimated: int, density: float) -> int:
    """The size of text that a summary is compared with. A short text may have far more tokens than the estimate says.

    A long one has too, but its summary is probably in the same language, so that the two are compared as estimated.
    """
    return max(estimated, min(round(estimated * density), SMALLEST_SUMMARY))


def _files(previous: dict[str, Any]) -> FileOps:
    """The files that the previous compaction lists, unless a hook made it."""
    details = previous.get("details")
    if previous.get("fromHook") or not isinstance(details, dict):
        return FileOps()
    lists = [details.get(name) for name in ("readFiles", "modifiedFiles")]
    read, modified = ({str(path) for path in paths} if isinstance(paths, list) else set[str]() for paths in lists)
    return FileOps(read=read, modified=modified)


# Carrying out


class UnderWay:
    """A compaction of this moment."""

    def __init__(self, job: CompactionJob, task: asyncio.Task[Any]) -> None:
        self._job = job
        self._task = task
        self._ended = asyncio.Event()
        self._outcome: CompactionOutcome | None = None

    async def run(self) -> CompactionOutcome:
        messages = list(self._job.transcript.context().messages)
        try:
            self._outcome = await _compact(self._job)
            return self._outcome
        finally:
            release_later(messages)
            self._ended.set()

    async def finish_for(self, job: CompactionJob) -> CompactionOutcome | None:
        """Wait until this compaction has ended, for a run that needs room and holds the session's lock.

        Returns its outcome, or None if it took too long and was cancelled. ``job`` may then make only the calls that
        this compaction has left, and none after a long wait.
        """
        lock, ended = self._job.exclusively, asyncio.ensure_future(self._ended.wait())
        late = False
        try:
            with lock.lend(), job.waiting():
                await asyncio.wait([ended], timeout=job.timeout_s)
            late = not self._ended.is_set()
        finally:
            ended.cancel()
            # A run that was stopped leaves the summary to be finished, but not under the lock that it gives back.
            if late or lock.borrowed:
                self._task.cancel()
                await self._ended.wait()
        job.most_calls = max(0, job.most_calls - self._job.calls) if self._outcome is not None else 0
        return self._outcome

    @property
    def calls(self) -> int:
        return self._job.calls


class CompactionsUnderWay:
    """The compactions of this moment. A session has at most one."""

    def __init__(self) -> None:
        self._by_session: dict[str, UnderWay] = {}

    def of(self, session_key: str) -> UnderWay | None:
        return self._by_session.get(session_key)

    async def run(self, job: CompactionJob) -> CompactionOutcome:
        task = asyncio.current_task()
        assert task is not None
        self._by_session[job.session_key] = under_way = UnderWay(job, task)
        try:
            return await under_way.run()
        finally:
            del self._by_session[job.session_key]


async def compact(job: CompactionJob) -> CompactionOutcome:
    """Makes one compaction. Errors are part of the outcome; only cancellation is raised.

    If a compaction of the session is under way, a run waits for its summary. It makes its own only if that failed, or
    if the prompt still does not fit.
    """
    compacting = job.runtime.prompting.compacting
    other = compacting.of(job.session_key)
    if other is None:
        return await compacting.run(job)
    if not job.in_run:
        return CompactionOutcome(status="skipped", reason=BUSY)
    outcome = await other.finish_for(job)
    if outcome is not None and outcome.status == "compacted":
        messages = job.transcript.context().messages
        if await with_many(len(messages), lambda: prompt_tokens(messages)) <= job.budget.room:
            return outcome
    outcome = await compacting.run(job)
    outcome.calls += other.calls
    return outcome


async def _compact(job: CompactionJob) -> CompactionOutcome:
    hooks = job.runtime.prompting.hooks
    session: dict[str, Any] = {
        "agent_id": job.agent_id,
        "session_key": job.session_key,
        "session_id": job.transcript.session_id,
        "reason": job.reason,
    }
    leaf = job.transcript.leaf_id
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
        if job.transcript.leaf_id != leaf:  # A hook may have written to the transcript.
            plan = await make_plan(job)
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
    await hooks.notify_after(
        Compacted(
            **session,
            entry_id=outcome.entry_id,
            from_hook=outcome.method == "hook",
            error=outcome.reason if outcome.status == "failed" else "",
        )
    )
    return outcome


async def _carry_out(job: CompactionJob, plan: CompactionPlan) -> CompactionOutcome:
    answer = await job.runtime.prompting.hooks.ask_before(
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
        try:
            with job.waiting():
                text = await summariser.summarise(plan.task)
        finally:
            job.calls = summariser.calls
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
        summary=text.strip() + plan.failures + plan.files.block() + pinned_block([pin.text for pin in plan.pins]),
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
    problem = await job.exclusively(lambda: _append(job, plan, result, outcome))
    return outcome if problem is None else CompactionOutcome(status="failed", reason=problem, calls=outcome.calls)


async def _append(
    job: CompactionJob, plan: CompactionPlan, result: CompactionResult, outcome: CompactionOutcome
) -> str | None:
    """Returns why the summary is not appended: the branch has changed, or the prompt would not be smaller."""
    transcript = job.transcript
    entry = await job.runtime.stores.sessions.get(job.agent_id, job.session_key)
    if entry is None or entry["sessionId"] != transcript.session_id:
        return "the session was replaced meanwhile"
    context = transcript.context()
    kept_id = result.first_kept_entry_id
    leaving_tokens = await with_many(len(context.messages), lambda: _tokens_before(context, kept_id))
    if context.compaction_id != plan.compaction_id or leaving_tokens is None:
        return "the conversation took another course meanwhile"
    summary = result.summary
    summary += pinned_block([pin.text for pin in plan.pins if pin.text not in summary])
    before, after = _true_size(leaving_tokens, plan.density), text_tokens(summary)
    if after >= before:
        return f"condensing would not make it smaller ({before} tokens, then {after})"
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
    return None


def _tokens_before(context: Context, entry_id: str) -> int | None:
    """The size of the messages before an entry. None if it is not part of the context."""
    if entry_id not in context.entry_ids:
        return None
    return prompt_tokens(context.messages[: context.entry_ids.index(entry_id)])


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

    entry = await runtime.stores.sessions.update(agent_id, session_key, change, durable=False)
    return entry.get("compactionCount", 0) if entry is not None else 0


# What runs and commands use


def settings_for(prepared: Prepared, runtime: Runtime) -> CompactionSettings:
    budget = prepared.window.budget
    return compaction_settings(runtime.config.current, budget.window, budget.overhead)


def job_for(runtime: Runtime, prepared: Prepared, transcript: Transcript, reason: CompactionReason) -> CompactionJob:
    """The compaction of a prepared session. The caller sets what is not as usual."""
    return CompactionJob(
        runtime=runtime,
        agent_id=prepared.turn.agent_id,
        session_key=prepared.turn.session_key,
        transcript=transcript,
        model=_summary_model(runtime, prepared.model),
        budget=prepared.window.budget,
        settings=settings_for(prepared, runtime),
        reason=reason,
    )


def _summary_model(runtime: Runtime, otherwise: Model) -> Model:
    """The model that writes summaries: the configured one, or ``otherwise`` if none is configured or it is unknown."""
    name = runtime.config.current.agents.defaults.compaction.model
    if not name:
        return otherwise
    try:
        return runtime.models.catalogue().resolve(name)
    except ModelError as unknown:
        log.warning("agents.defaults.compaction.model: %s", unknown)
        return otherwise


class OverflowRecovery:
    """Makes the prompt of one run smaller, after the provider refused it or cut it.

    An answer in between ends a recovery; the next refusal begins another one. A recovery makes at most ``MOST_CALLS``
    calls for summaries.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._window = prepared.window
        self._answers = 0
        self._attempts = 0
        self._calls = 0
        self._named: int | None = None
        """The refused prompt as the provider counted it."""
        self._count: int | None = None
        """The same, if only its room for the answer was too large."""
        self._suspected: ModelError | None = None
        """A refusal that nobody knows, and that is treated as an overflow. There is one in a run at most."""
        self._before: tuple[TokenMeasure, int] | None = None
        """The measure before that refusal, and how many prompts the model had answered."""

    def suspects(self, error: ModelError) -> bool:
        """Return True if a refusal with unknown words may mean that the prompt is too large. That is tried once.

        A second such refusal says that the size was not the problem, so that the estimate goes back.
        """
        if not is_unknown_refusal(error):
            return False
        if self._before is not None:
            before, answers = self._before
            if self._window.answers == answers:
                self._window.clear(before)
            self._before = None
        if self._suspected is not None or not self._window.is_large:
            return False
        self._suspected = error
        return True

    def is_suspected(self, failure: ModelError | None) -> bool:
        """Whether this failure is the refusal that ``suspects`` was true of."""
        return failure is not None and failure is self._suspected

    def may_go_on(self, error: str | None) -> bool:
        """Whether to try once more. ``error`` is the refusal; None: the prompt was cut, and its answer is worthless."""
        self._answers += error is None
        if self._window.answers > self._answers:
            self._answers, self._attempts, self._calls, self._named = self._window.answers, 0, 0, None
        self._attempts += 1
        named, before = named_counts(error or "").prompt, self._named
        if named is not None and named == before:
            return False  # The prompt is smaller, but the provider does not count it so.
        self._named = named
        # A refusal without words may mean something else.
        most = 1 if error is None or "(no body)" in error else MOST_RECOVERIES
        return self._attempts <= most

    def refused(self, error: str, *, suspected: bool = False) -> str | None:
        """Corrects the estimate, which was too low. Returns why nothing can help, if that is clear now.

        Numbers in a refusal that is only ``suspected`` to be an overflow may mean anything, so they are not read.
        """
        if suspected:
            self._before = self._window.suspect(), self._window.answers
            return None
        counts = self._window.was_too_large(error)
        self._count = (
            counts.prompt if counts.prompt is not None and counts.prompt < self._window.budget.window else None
        )
        try:
            check_room(self._window.budget)
        except DoesNotFit as problem:
            return str(problem)
        return None

    async def compact(self, job: CompactionJob) -> CompactionOutcome | None:
        """Condenses the conversation, unless that is switched off or the provider counts less than the threshold."""
        count, self._count = self._count, None
        if not job.settings.enabled or (count is not None and count <= job.settings.limit):
            return None
        job.most_calls = MOST_CALLS - self._calls
        outcome = await compact(job)
        self._calls += outcome.calls
        return outcome


# Hooks

LONGEST_HOOK_S = 60.0
LONGEST_FLUSH_S = 600.0
"""A ``before_content_leaves`` hook may call a model and therefore gets more time."""


class BeforeCompact(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    session_key: str
    session_id: str
    reason: CompactionReason
    first_kept_entry_id: str
    tokens_before: int
    messages: list[Message]
    """The messages that the summary replaces, oldest first. A hook must not change them."""
    previous_summary: str = ""
    instructions: str = ""


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A summary and where the kept messages begin. The Gateway or a hook makes it."""

    summary: str
    first_kept_entry_id: str
    tokens_before: int = 0
    details: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True):
    why: str = ""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    session_key: str
    session_id: str
    reason: CompactionReason
    entry_id: str | None
    """The appended entry; None if nothing was appended."""
    from_hook: bool = False
    error: str = ""


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """Messages are about to leave the prompt of this session.

    The session is locked while the hook runs. A hook that needs the model calls it directly; a queued turn would wait
    for the hook.
    """

    agent_id: str
    session_key: str
    session_id: str
    reason: CompactionReason
    in_run: bool
    """True if a run waits for this compaction because its prompt does not fit."""


HookAnswer: TypeAlias = Cancel | CompactionResult | None
NAMES = frozenset(
    {"session_before_compact", "session_compact", "before_compaction", "after_compaction", "before_content_leaves"}
)
"""The names that ``CompactionHooks.on`` accepts. Each is an attribute of ``CompactionHooks``."""
BeforeHook: TypeAlias = Callable[[BeforeCompact], Awaitable[HookAnswer]]
TellHook: TypeAlias = Callable[[BeforeCompact], Awaitable[None]]
AfterHook: TypeAlias = Callable[[Compacted], Awaitable[None]]
LeavingHook: TypeAlias = Callable[[Leaving], Awaitable[Any]]


class CompactionHooks:
    """The registered hooks, by name. A hook that fails or takes too long is logged and skipped."""

    def __init__(self) -> None:
        self.session_before_compact: list[BeforeHook] = []
        self.before_compaction: list[TellHook] = []
        self.session_compact: list[AfterHook] = []
        self.after_compaction: list[AfterHook] = []
        self.before_content_leaves: list[LeavingHook] = []
        self._leaving: set[str] = set()

    def on(self, name: str, function: Callable[[Any], Any]) -> None:
        if name not in NAMES:
            raise ValueError(f"there is no hook {name!r}; there are {', '.join(sorted(NAMES))}")
        getattr(self, name).append(function)

    async def ask_before(self, about: BeforeCompact) -> HookAnswer:
        for tell in self.before_compaction:
            await _guarded(tell, about, LONGEST_HOOK_S)
        for hook in self.session_before_compact:
            answer = await _guarded(lambda about, hook=hook: _answer(hook, about), about, LONGEST_HOOK_S)
            if answer is not None:
                return answer
        return None

    async def notify_after(self, what: Compacted) -> None:
        for hook in (*(self.session_compact if what.entry_id else ()), *self.after_compaction):
            await _guarded(hook, what, LONGEST_HOOK_S)

    async def content_leaves(self, leaving: Leaving) -> None:
        """Calls the hooks. Does nothing for a compaction that one of these hooks itself causes in the same session."""
        if leaving.session_key in self._leaving:
            return
        self._leaving.add(leaving.session_key)
        try:
            for hook in self.before_content_leaves:
                await _guarded(hook, leaving, LONGEST_FLUSH_S)
        finally:
            self._leaving.discard(leaving.session_key)


async def _answer(hook: BeforeHook, about: BeforeCompact) -> HookAnswer:
    """Calls the hook and converts a returned dict. Raises ``TypeError`` for a return value of another form."""
    answer: Any = hook(about)
    answer = await answer if inspect.isawaitable(answer) else answer
    if answer is None or isinstance(answer, Cancel | CompactionResult):
        return answer
    if isinstance(answer, dict) and answer.get("cancel"):
        return Cancel(str(answer.get("reason") or ""))
    made = answer.get("compaction") if isinstance(answer, dict) else None
    if not isinstance(made, dict) or not str(made.get("summary") or "").strip():
        raise TypeError(f"session_before_compact returned neither a cancellation nor a summary: {answer!r:.200}")
    return CompactionResult(
        summary=str(made["summary"]),
        first_kept_entry_id=str(made.get("firstKeptEntryId") or about.first_kept_entry_id),
        tokens_before=about.tokens_before,
        details=made["details"] if isinstance(made.get("details"), dict) else {},
    )


async def _guarded(hook: Callable[[Any], Awaitable[Any]], about: Any, longest_s: float) -> Any:
    """Calls the hook with a time limit. Logs an error and returns None if it fails."""
    try:
        async with asyncio.timeout(longest_s):
            answer: Any = hook(about)
            return await answer if inspect.isawaitable(answer) else answer
    except Exception:
        log.exception("a hook failed for session %s", about.session_key)
        return None
