"""Going back to an earlier point of a conversation without losing what happened since: a summary of the branch left."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from openclaw.agent.compaction import Job
from openclaw.agent.compaction_summary import SummaryFailed
from openclaw.agent.compaction_text import FileOps, digest
from openclaw.agent.tokens import message_tokens
from openclaw.messages import Message, ToolResultMessage
from openclaw.sessions.tree import message_of
from openclaw.storage.base import Transcript

log = logging.getLogger("openclaw.agents.compaction")

MOST_TOKENS = 2048
PREAMBLE = "The person tried another way from this point and then came back to it.\nWhat happened there:\n\n"


async def go_back(job: Job, target: str | None, *, summarise: bool = True) -> str:
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


async def _summary(job: Job, messages: Sequence[Message]) -> str:
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
