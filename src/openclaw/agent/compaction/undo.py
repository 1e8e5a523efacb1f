"""Taking the last compaction back, and saying beforehand what one would do. Both leave every stored byte as it is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from openclaw.agent.compaction.compaction import CompactionJob, NothingToDo, count_compaction, make_plan
from openclaw.agent.compaction.summary import FileOps, SummaryFailed, digest
from openclaw.agent.window.tokens import message_tokens, text_tokens
from openclaw.messages import Message, ToolResultMessage
from openclaw.sessions.tree import fields_of, message_of
from openclaw.storage.base import Transcript

UNDO = "openclaw.compaction-undo"
TAKEN_BACK = "(The condensed version was taken back; everything that was said follows word for word.)"
NOTHING_TO_UNDO = "There is no compaction to take back."


async def preview(job: CompactionJob) -> str:
    """What a compaction would do now, without asking a model."""
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
    """Brings the messages back that the last compaction condensed; returns the size of the prompt afterwards.

    Called by whoever owns the session. With nothing said since, the branch continues before the compaction. Otherwise
    an entry is added that keeps everything from where the view before had begun. Raises ``NothingToDo``.
    """
    transcript = job.transcript
    context = transcript.context()
    last = await transcript.entry(context.compaction_id) if context.compaction_id is not None else None
    if last is None or fields_of(last.raw).get("details", {}).get("undoOf"):
        raise NothingToDo(NOTHING_TO_UNDO)
    if transcript.leaf_id == last.id:
        transcript.branch(last.parent_id)
        note = {"text": "Compaction taken back", "undoOf": last.id}
        await transcript.append({"type": "custom", "customType": UNDO, "display": True, "data": note}, durable=True)
    else:
        await transcript.append(await _everything_again(transcript, last.id), durable=True)
    tokens = job.budget.size(transcript.context().messages)
    await count_compaction(job.runtime, job.agent_id, job.session_key, transcript, tokens, add=0)
    return tokens


async def _everything_again(transcript: Transcript, undone: str) -> dict[str, Any]:
    """An entry under which the window begins where it began before the compaction that is taken back."""
    parents = {own: (parent, kind) for own, parent, kind in transcript.tree()}
    first, before = undone, None
    at = parents[undone][0]
    while at is not None and at in parents:
        first = at
        if parents[at][1] == "compaction":
            before = await transcript.entry(at)
            break
        at = parents[at][0]
    fields = fields_of(before.raw) if before is not None else {}
    return {
        "type": "compaction",
        "summary": str(fields.get("summary") or TAKEN_BACK),
        "firstKeptEntryId": str(fields.get("firstKeptEntryId") or first),
        "tokensBefore": int(fields_of((await transcript.entry(undone)).raw).get("tokensBefore") or 0),  # type: ignore[union-attr]
        "details": {"undoOf": undone, **_carried(fields)},
    }


def _carried(fields: dict[str, Any]) -> dict[str, Any]:
    details = fields.get("details")
    kept = details if isinstance(details, dict) else {}
    return {name: kept[name] for name in ("readFiles", "modifiedFiles", "pins") if name in kept}


log = logging.getLogger("openclaw.agents.compaction")

MOST_TOKENS = 2048
PREAMBLE = "The person tried another way from this point and then came back to it.\nWhat happened there:\n\n"


async def go_back(job: CompactionJob, target: str | None, *, summarise: bool = True) -> str:
    """Moves the branch to ``target`` (None: before the first entry) and appends what the left branch held.

    Returns the new entry's id. Called by whoever owns the session. KeyError: there is no such entry.
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
    text = await _summary(job, messages) if summarise and messages else ""
    transcript.branch(target)
    read, modified = files.lists()
    fields = {
        "type": "branch_summary",
        "fromId": target or "root",
        "summary": f"{PREAMBLE}{text}{files.block()}" if text else "",
        "details": {"readFiles": read, "modifiedFiles": modified},
    }
    return await transcript.append(fields, durable=True)


async def _summary(job: CompactionJob, messages: Sequence[Message]) -> str:
    summariser = job.summariser("branch summary")
    try:
        with job.waiting():
            text = await summariser.branch(messages, MOST_TOKENS)
    except SummaryFailed as failed:
        log.warning("branch summary of %s: %s", job.session_key, failed)
        text = ""
    return text or digest(messages, MOST_TOKENS * 2)


async def _left_behind(transcript: Transcript, target: str | None) -> list[Message]:
    """What was said from the deepest point both branches share to the leaf that is left, oldest first."""
    parents = {own: (parent, kind) for own, parent, kind in transcript.tree()}
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
            if message is not None:
                messages.append(message)
    return messages


def _newest(messages: Sequence[Message], budget: int) -> list[Message]:
    """Tool results are skipped; the newest that fit."""
    kept: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, ToolResultMessage):
            continue
        budget -= message_tokens(message)
        if budget < 0:
            break
        kept.append(message)
    return kept[::-1]
