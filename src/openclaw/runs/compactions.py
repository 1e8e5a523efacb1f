"""Compactions that run beside a session's runs, after an answer or because a person asked: preview, undo and return.

The session goes on answering while the summary is written. Only adding the summary waits for the session's turn. New
messages come after the part that is summarized, so the summary stays valid. An undo, and the return to an earlier point
of the conversation, only append to the transcript or move its branch. No stored entry changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from openclaw.agent.compaction.compaction import (
    BUSY,
    BorrowedLock,
    CompactionJob,
    CompactionOutcome,
    CompactionReason,
    NothingToDo,
    compact,
    compaction_threshold,
    count_compaction,
    job_for,
    make_plan,
    settings_for,
    tokens_now,
)
from openclaw.agent.compaction.summary import FileOps, SummaryFailed, excerpts
from openclaw.agent.prepare import Prepared, prepare
from openclaw.agent.request_log import parents_of
from openclaw.agent.runtime import Runtime
from openclaw.agent.window.tokens import context_tokens, message_tokens, text_tokens
from openclaw.agent.window.window import Pin, add_pin, pin_room, pins_of, remove_pin
from openclaw.events import Event
from openclaw.messages import AssistantMessage, Message, ToolResultMessage
from openclaw.models.base import ModelError
from openclaw.sessions.reset import home_of, transcript_ref
from openclaw.sessions.tree import fields_of, is_notice, message_of
from openclaw.storage.transcripts import Transcript

log = logging.getLogger("openclaw.runs.compaction")
T = TypeVar("T")

FIRST_PAUSE_MS = 60_000
LONGEST_PAUSE_MS = 30 * 60_000
SESSIONS_REMEMBERED = 1_000
UNDO = "openclaw.compaction-undo"
TAKEN_BACK = "(The condensed version was taken back; everything that was said follows word for word.)"
NOTHING_TO_UNDO = "No compaction can be undone."
MOST_TOKENS = 2048
"""The longest summary of a branch."""
PREAMBLE = "The person tried another way from this point and then came back to it.\nWhat happened there:\n\n"


class Exclusively(Protocol):
    def __call__(self, session_key: str, work: Callable[[], Awaitable[T]]) -> Awaitable[T]: ...


class Compactions:
    """The compactions of all sessions that no run waits for, and the changes of a session's branch."""

    def __init__(self, runtime: Runtime, exclusively: Exclusively) -> None:
        self._runtime = runtime
        self._exclusively = exclusively
        self._tasks: dict[str, asyncio.Task[CompactionOutcome]] = {}
        self._pause = CoolDown()
        self._warned: set[str] = set()

    # After a run

    def after_run(self, prepared: Prepared, final: AssistantMessage | None, emit: Callable[[Event], None]) -> None:
        """Starts a compaction if the context window is full, and returns at once."""
        used = context_tokens(final.usage) if final is not None else 0
        limit = compaction_threshold(self._runtime.config.current, prepared.window.budget.window)
        key, settings = prepared.turn.session_key, settings_for(prepared, self._runtime)
        if 0 < used <= limit and not prepared.window.shortened:
            self._pause.has_room(key)
            return
        if settings.warning and settings.warning not in self._warned:
            self._warned.add(settings.warning)
            log.warning("%s", settings.warning)
        if key not in self._tasks:
            self._start(key, self._if_due(prepared, emit))

    async def _if_due(self, prepared: Prepared, emit: Callable[[Event], None]) -> CompactionOutcome:
        transcript = await self._open(prepared.turn.agent_id, prepared.turn.session_key)
        if transcript is None or transcript.session_id != prepared.turn.session_id:
            return CompactionOutcome(status="skipped", reason="the session is gone")
        job = self._job(prepared, transcript, "threshold")
        job.emit = emit
        context = transcript.context()
        last = next((m for m in reversed(context.messages) if isinstance(m, AssistantMessage)), None)
        if not job.settings.enabled or last is None or last.stop_reason in ("error", "aborted"):
            return CompactionOutcome(status="skipped")
        tokens, key, clock = tokens_now(context), prepared.turn.session_key, self._runtime.clock
        if tokens <= job.settings.limit and not prepared.window.shortened:
            self._pause.has_room(key)
            return CompactionOutcome(status="skipped")
        if self._pause.resting(key, clock.now_ms(), tokens):
            return CompactionOutcome(status="skipped", reason="a compaction failed or was undone not long ago")
        try:
            outcome = await compact(job)
        except Exception:
            self._pause.failed(key, clock.now_ms(), tokens, job.settings.window)
            raise
        if outcome.status == "compacted" and outcome.tokens_after <= job.settings.limit:
            self._pause.has_room(key)
        elif outcome.status != "skipped":
            self._pause.failed(key, clock.now_ms(), outcome.tokens_after or tokens, job.settings.window)
        return outcome

    # On request

    async def compact_now(self, agent_id: str, session_key: str, instructions: str = "") -> CompactionOutcome:
        """Compacts the session for ``/compact``. The session's runs go on meanwhile."""
        if session_key in self._tasks:
            return CompactionOutcome(status="skipped", reason=BUSY)

        async def work() -> CompactionOutcome:
            job = await self._job_for(agent_id, session_key)
            if job is None:
                return CompactionOutcome(status="skipped", reason="there is no conversation yet")
            job.instructions = instructions.strip()
            return await compact(job)

        try:
            outcome = await self._start(session_key, work())
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return CompactionOutcome(status="failed", reason="Compaction cancelled")
        except ModelError as problem:
            return CompactionOutcome(status="failed", reason=str(problem))
        if outcome.status == "compacted":
            self._pause.end(session_key)
        return outcome

    async def preview(self, agent_id: str, session_key: str) -> str:
        job = await self._job_for(agent_id, session_key)
        return "There is no conversation yet." if job is None else await preview(job)

    async def undo(self, agent_id: str, session_key: str) -> int:
        """Undoes the last compaction. Returns the tokens of the next prompt. Raises ``NothingToDo``."""
        job = await self._job_for(agent_id, session_key)
        if job is None:
            raise NothingToDo("There is no conversation yet.")
        self.cancel(session_key)
        tokens = await self._exclusively(session_key, lambda: undo(job))
        # The person wants the whole history, so no automatic compaction follows for a while.
        self._pause.undone(session_key, self._runtime.clock.now_ms())
        return tokens

    async def rewind(self, agent_id: str, session_key: str, target: str | None, *, summarise: bool) -> str:
        """Goes on from an earlier entry. With ``summarise``, the context gets a summary of the entries left behind.

        Raises ``KeyError`` for an unknown entry, and ``NothingToDo`` in an empty session.
        """
        job = await self._job_for(agent_id, session_key)
        if job is None:
            raise NothingToDo("There is no conversation yet.")
        self.cancel(session_key)
        return await self._exclusively(session_key, lambda: rewind(job, target, summarise=summarise))

    def cancel(self, session_key: str) -> bool:
        task = self._tasks.get(session_key)
        return task.cancel() if task is not None else False

    # Pins

    async def pins(self, agent_id: str, session_key: str) -> list[Pin]:
        transcript = await self._open(agent_id, session_key)
        return [] if transcript is None else await pins_of(transcript)

    async def pin(self, agent_id: str, session_key: str, text: str) -> Pin:
        """Adds a pin. Raises ``PinRefused`` and, if the session has no model to ask, ``ModelError``."""

        async def add(transcript: Transcript) -> Pin:
            prepared = await prepare(self._runtime, agent_id, session_key, transcript.session_id)
            return await add_pin(transcript, text, pin_room(prepared.window.budget))

        return await self._on_transcript(agent_id, session_key, add)

    async def unpin(self, agent_id: str, session_key: str, number: int) -> Pin:
        """Removes a pin by its place in the list, from 1. Raises ``PinRefused``."""
        return await self._on_transcript(agent_id, session_key, lambda transcript: remove_pin(transcript, number))

    async def _on_transcript(self, agent_id: str, key: str, work: Callable[[Transcript], Awaitable[Pin]]) -> Pin:
        async def owned() -> Pin:
            transcript = await self._open(agent_id, key, create=True)
            assert transcript is not None
            return await work(transcript)

        return await self._exclusively(key, owned)

    # Tasks and jobs

    def _start(self, key: str, work: Awaitable[CompactionOutcome]) -> asyncio.Task[CompactionOutcome]:
        async def settle() -> CompactionOutcome:
            try:
                return await work
            except (asyncio.CancelledError, ModelError):
                raise
            except Exception as error:
                log.exception("compaction of %s failed", key)
                return CompactionOutcome(status="failed", reason=f"something went wrong inside the Gateway: {error}")

        def ended(task: asyncio.Task[CompactionOutcome]) -> None:
            if self._tasks.get(key) is task:
                del self._tasks[key]
            if not task.cancelled():
                task.exception()

        task = asyncio.create_task(settle(), name=f"compaction {key}")
        self._tasks[key] = task
        task.add_done_callback(ended)
        return task

    def _job(self, prepared: Prepared, transcript: Transcript, reason: CompactionReason) -> CompactionJob:
        job = job_for(self._runtime, prepared, transcript, reason)
        job.exclusively = BorrowedLock(partial(self._exclusively, prepared.turn.session_key))
        return job

    async def _job_for(self, agent_id: str, key: str) -> CompactionJob | None:
        """Return the compaction that a person asks for, or None in an empty session."""
        transcript = await self._open(agent_id, key)
        if transcript is None:
            return None
        prepared = await prepare(self._runtime, agent_id, key, transcript.session_id)
        return self._job(prepared, transcript, "manual")

    async def _open(self, agent_id: str, key: str, *, create: bool = False) -> Transcript | None:
        entry = await self._runtime.stores.sessions.get(agent_id, key)
        if entry is None:
            return None
        ref, home = transcript_ref(agent_id, entry), home_of(self._runtime, agent_id)
        return await self._runtime.stores.transcripts.open(ref, cwd=home, create=create)

    async def stop(self) -> None:
        """Cancels the compactions. A later run starts them again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Until when a session is not compacted by itself."""

    until_ms: int
    length_ms: int
    again_at: int | None
    """The size of a prompt that ends the pause early, in tokens; None after an undo, which nothing ends early."""


class CoolDown:
    """The pause of a session after compactions that failed, or after one that was undone.

    After the first failure there is none: the next turn that needs room tries again. It grows with each further
    failure, and ends early when half of the room that was left then has been used up.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, Pause] = {}

    def resting(self, session_key: str, now_ms: int, tokens: int) -> bool:
        """Whether a session with a prompt of ``tokens`` is left alone."""
        pause = self._pauses.get(session_key)
        return pause is not None and now_ms < pause.until_ms and (pause.again_at is None or tokens < pause.again_at)

    def failed(self, session_key: str, now_ms: int, tokens: int, window: int) -> None:
        before = self._pauses.pop(session_key, None)
        if before is None:
            self._put(session_key, Pause(until_ms=now_ms, length_ms=0, again_at=0))
            return
        length = min(max(FIRST_PAUSE_MS, before.length_ms * 2), LONGEST_PAUSE_MS)
        again_at = tokens + max(1, (window - tokens) // 2)
        self._put(session_key, Pause(until_ms=now_ms + length, length_ms=length, again_at=again_at))

    def undone(self, session_key: str, now_ms: int) -> None:
        length = LONGEST_PAUSE_MS
        self._put(session_key, Pause(until_ms=now_ms + length, length_ms=length, again_at=None))

    def has_room(self, session_key: str) -> None:
        """Forget the failures of a session that is no longer full."""
        pause = self._pauses.get(session_key)
        if pause is not None and pause.again_at is not None:
            del self._pauses[session_key]

    def end(self, session_key: str) -> None:
        """Forget everything: a person asked for a compaction."""
        self._pauses.pop(session_key, None)

    def _put(self, session_key: str, pause: Pause) -> None:
        self._pauses[session_key] = pause
        while len(self._pauses) > SESSIONS_REMEMBERED:
            del self._pauses[next(iter(self._pauses))]


async def preview(job: CompactionJob) -> str:
    """Says what a compaction would do now. It calls no model."""
    try:
        plan = await make_plan(job)
    except NothingToDo as nothing:
        return str(nothing)
    task = plan.task
    leaving = len(task.history) + len(task.prefix)
    kept = len(job.transcript.context().messages) - leaving - (1 if plan.compaction_id else 0)
    read, modified = plan.files.lists()
    lines = [
        f"🧹 A compaction now would condense {leaving} messages (about {task.replaced_tokens} tokens) into a summary "
        f"of at most {task.most_tokens} tokens and keep the last {kept} as they are (about {plan.kept_tokens} tokens).",
        f"Lines that would be kept if the summary left them out: {len(task.needs)}.",
    ]
    if task.prefix:
        lines.append(
            f"The newest turn is long: its first {len(task.prefix)} messages would be summarised by themselves."
        )
    if task.previous:
        lines.append(
            f"The summary from before (about {text_tokens(task.previous)} tokens) would be brought up to date."
        )
    if read or modified:
        lines.append(f"Files noted: {len(read)} read, {len(modified)} changed.")
    lines += [f"📌 Stays word for word: {' '.join(pin.text.split())[:80]}" for pin in plan.pins]
    return "\n".join(lines)


async def undo(job: CompactionJob) -> int:
    """Brings back the messages that the last compaction condensed, and returns the new size of the prompt.

    If nothing was said since the compaction, the branch continues before it. Otherwise another compaction entry is
    appended, which keeps all messages that the prompt had before. Raises ``NothingToDo``. The caller must hold the
    session's lock.
    """
    transcript = job.transcript
    context = transcript.context()
    last = await transcript.entry(context.compaction_id) if context.compaction_id is not None else None
    if last is None or fields_of(last.raw).get("details", {}).get("undoOf"):
        raise NothingToDo(NOTHING_TO_UNDO)
    if transcript.leaf_id == last.id:
        await transcript.branch(last.parent_id)
        note = {"text": "Compaction taken back", "undoOf": last.id}
        await transcript.append({"type": "custom", "customType": UNDO, "display": True, "data": note}, durable=True)
    else:
        await transcript.append(await _everything_again(transcript, last.id), durable=True)
    tokens = job.budget.size(transcript.context().messages)
    await count_compaction(job.runtime, job.agent_id, job.session_key, transcript, tokens, add=0)
    return tokens


async def _everything_again(transcript: Transcript, undone: str) -> dict[str, Any]:
    """A compaction entry with which the prompt begins where it began before the compaction ``undone``."""
    parents = await parents_of(transcript)
    first, before = undone, None
    at = parents[undone][0]
    while at is not None and at in parents:
        first = at
        if parents[at][1] == "compaction":
            before = await transcript.entry(at)
            break
        at = parents[at][0]
    fields = fields_of(before.raw) if before is not None else {}
    details = fields.get("details")
    messages: dict[str, Any] = details if isinstance(details, dict) else {}
    return {
        "type": "compaction",
        "summary": str(fields.get("summary") or TAKEN_BACK),
        "firstKeptEntryId": str(fields.get("firstKeptEntryId") or first),
        "tokensBefore": int(fields_of((await transcript.entry(undone)).raw).get("tokensBefore") or 0),  # type: ignore[union-attr]
        "details": {
            "undoOf": undone,
            **{name: messages[name] for name in ("readFiles", "modifiedFiles", "pins") if name in messages},
        },
    }


async def rewind(job: CompactionJob, target: str | None, *, summarise: bool = True) -> str:
    """Moves the branch to the entry ``target`` and appends a summary of the branch that is left.

    None as ``target`` means before the first entry. Returns the id of the new entry. Raises ``KeyError`` if there is no
    entry ``target``. The caller must hold the session's lock.
    """
    transcript = job.transcript
    if target is not None and target not in transcript:
        raise KeyError(target)
    left = await _left_behind(transcript, target)
    window = job.settings.window
    reserve = min(job.runtime.config.current.branch_summary.reserve_tokens, window // 2)
    messages = _newest(left, window - reserve)
    files = FileOps()
    files.take(left)
    text = ""
    if summarise and messages:
        try:
            with job.waiting():
                text = await job.summariser("branch summary").branch(messages, MOST_TOKENS)
        except SummaryFailed as failed:
            log.warning("branch summary of %s: %s", job.session_key, failed)
        text = text or excerpts(messages, MOST_TOKENS * 2)
    await transcript.branch(target)
    read, modified = files.lists()
    fields = {
        "type": "branch_summary",
        "fromId": target or "root",
        "summary": f"{PREAMBLE}{text}{files.block()}" if text else "",
        "details": {"readFiles": read, "modifiedFiles": modified},
    }
    return await transcript.append(fields, durable=True)


async def _left_behind(transcript: Transcript, target: str | None) -> list[Message]:
    """The messages between the last common entry of both branches and the leaf that is left, oldest first."""
    parents = await parents_of(transcript)
    shared: set[str] = set()
    at = target
    while at is not None and at in parents:
        shared.add(at)
        at = parents[at][0]
    ids: list[str] = []
    at = transcript.leaf_id
    while at is not None and at in parents and at not in shared:
        ids.append(at)
        at = parents[at][0]
    messages: list[Message] = []
    for own in reversed(ids):
        if parents[own][1] in ("message", "custom_message", "branch_summary"):
            entry = await transcript.entry(own)
            message = message_of(entry.type, entry.raw) if entry is not None else None
            if message is not None and not is_notice(own, message):
                messages.append(message)
    return messages


def _newest(messages: Sequence[Message], budget: int) -> list[Message]:
    """The newest messages that fit the budget, without tool results."""
    newest: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, ToolResultMessage):
            continue
        budget -= message_tokens(message)
        if budget < 0:
            break
        newest.append(message)
    return newest[::-1]
