"""The preview of a compaction, its undo, and the return to an earlier point of the conversation.

They only append to the transcript or move its branch. No stored entry changes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from openclaw.agent.compaction.compaction import CompactionJob, NothingToDo, count_compaction, make_plan
from openclaw.agent.compaction.summary import FileOps, SummaryFailed, excerpts
from openclaw.agent.window.tokens import message_tokens, text_tokens
from openclaw.messages import Message, ToolResultMessage
from openclaw.sessions.tree import fields_of, is_notice, message_of
from openclaw.storage.base import Transcript

log = logging.getLogger("openclaw.agents.compaction")

UNDO = "openclaw.compaction-undo"
TAKEN_BACK = "(The condensed version was taken back; everything that was said follows word for word.)"
NOTHING_TO_UNDO = "There is no compaction to take back."
MOST_TOKENS = 2048
"""The longest summary of a branch."""
PREAMBLE = "The person tried another way from this point and then came back to it.\nWhat happened there:\n\n"


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
    details = fields.get("details")
    kept: dict[str, Any] = details if isinstance(details, dict) else {}
    return {
        "type": "compaction",
        "summary": str(fields.get("summary") or TAKEN_BACK),
        "firstKeptEntryId": str(fields.get("firstKeptEntryId") or first),
        "tokensBefore": int(fields_of((await transcript.entry(undone)).raw).get("tokensBefore") or 0),  # type: ignore[union-attr]
        "details": {
            "undoOf": undone,
            **{name: kept[name] for name in ("readFiles", "modifiedFiles", "pins") if name in kept},
        },
    }


async def go_back(job: CompactionJob, target: str | None, *, summarise: bool = True) -> str:
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
    text = await _summary(job, messages) if summarise and messages else ""
    await transcript.branch(target)
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
    return text or excerpts(messages, MOST_TOKENS * 2)


async def _left_behind(transcript: Transcript, target: str | None) -> list[Message]:
    """The messages between the last common entry of both branches and the leaf that is left, oldest first."""
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
            if message is not None and not is_notice(own, message):
                messages.append(message)
    return messages


def _newest(messages: Sequence[Message], budget: int) -> list[Message]:
    """The newest messages that fit the budget, without tool results."""
    kept: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, ToolResultMessage):
            continue
        budget -= message_tokens(message)
        if budget < 0:
            break
        kept.append(message)
    return kept[::-1]
