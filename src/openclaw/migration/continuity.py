"""Whether conversations continue: what the model would be sent next, here and by the version that wrote them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from openclaw.clock import Clock
from openclaw.sessions.tree import COMPACTION_INTRO, fields_of
from openclaw.storage.files.import_sessions import found_sessions, legacy_store_key
from openclaw.storage.files.newer_state import FoundSession, Unreadable
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.transcripts import TranscriptRef

Part: TypeAlias = tuple[Any, ...]
"""A message in a form that both versions share: role, the call it answers, and its text, calls and pictures."""


class Difference(msgspec.Struct, kw_only=True, rename="camel"):
    """A session whose next request would not be the one that the other version would have sent."""

    key: str
    session_id: str
    detail: str


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def _canonical(message: Mapping[str, Any]) -> Part | None:
    """What of a stored message reaches a model, in a form that both versions share. None for notices to people."""
    if message.get("role") == "assistant" and message.get("model") == "gateway-injected":
        return None
    parts: list[Any] = []
    for block in _blocks(message.get("content")):
        match block.get("type"):
            case "text" if block.get("text"):
                parts.append(("text", block["text"]))
            case "toolCall":
                parts.append(
                    ("call", block.get("id"), block.get("name"), json.dumps(block.get("arguments"), sort_keys=True))
                )
            case "image":
                parts.append(("image",))
            case _:
                pass
    return (message.get("role"), message.get("toolCallId"), tuple(parts))


def their_request(lines: Iterable[bytes]) -> list[Part]:
    """The conversation that the other version would send: the active branch, from its last compaction or reset on."""
    entries: dict[str, dict[str, Any]] = {}
    leaf: str | None = None
    for line in lines:
        fields = fields_of(line)
        own = fields.get("id")
        if fields.get("type") == "session" or not isinstance(own, str):
            continue
        if fields.get("type") == "leaf":
            target = fields.get("targetId")
            leaf = target if target is None or target in entries else leaf
            continue
        entries[own] = {**fields, "parentId": fields.get("parentId", leaf)}
        if fields.get("appendMode") != "side":
            leaf = own
    path: list[dict[str, Any]] = []
    seen: set[str] = set()
    while leaf is not None and leaf in entries and leaf not in seen:
        seen.add(leaf)
        path.append(entries[leaf])
        leaf = entries[leaf]["parentId"]
    path.reverse()
    cut = max((at for at, entry in enumerate(path) if entry.get("type") in ("compaction", "reset")), default=None)
    request: list[Part] = []
    if cut is not None:
        ids = [str(entry["id"]) for entry in path]
        first = path[cut].get("firstKeptEntryId")
        kept = path[ids.index(first) : cut] if first in ids[:cut] else []
        if path[cut]["type"] == "compaction":
            request.append(("summary", str(path[cut].get("summary") or "")))
        path = [*kept, *path[cut + 1 :]]
    for entry in path:
        if entry.get("type") == "message" and isinstance(entry.get("message"), dict):
            message = _canonical(entry["message"])
        elif entry.get("type") == "custom_message":
            message = _canonical({"role": "user", "content": entry.get("content")})
        else:
            message = None
        if message is not None:
            request.append(message)
    return request


def our_request(messages: Sequence[Any], *, compacted: bool) -> list[Part]:
    """The conversation that we would send, in the form of ``their_request``."""
    request: list[Part] = []
    for number, message in enumerate(messages):
        fields = cast("dict[str, Any]", msgspec.to_builtins(message))
        if number == 0 and compacted:
            text = "".join(str(block.get("text")) for block in _blocks(fields.get("content")))
            summary = text.removeprefix(f"{COMPACTION_INTRO}\n\n<summary>\n").removesuffix("\n</summary>")
            request.append(("summary", summary))
        elif (canonical := _canonical(fields)) is not None:
            request.append(canonical)
    return request


async def check_continuity(folder: Path, state: Path, clock: Clock) -> AsyncIterator[Difference | None]:
    """Compare each current session, and yield its difference or None. A session that went on here is not compared."""
    transcripts = FileTranscriptStore(str(state), clock=clock)
    try:
        with found_sessions(folder) as (sessions, _):
            for session in sessions:
                if session.current:
                    yield await _difference(session, transcripts)
    finally:
        await transcripts.close()


async def _difference(session: FoundSession, transcripts: FileTranscriptStore) -> Difference | None:
    key = legacy_store_key(session.agent_id, session.key or session.session_id)

    def differs(detail: str) -> Difference:
        return Difference(key=key, session_id=session.session_id, detail=detail)

    try:
        theirs = await asyncio.to_thread(lambda: their_request(session.lines()))
        ref = TranscriptRef(agent_id=session.agent_id, session_id=session.session_id)
        transcript = await transcripts.open(ref, create=False)
    except (Unreadable, OSError, ValueError) as problem:
        return differs(str(problem))
    if transcript is None:
        return differs("there is no transcript of it here") if theirs else None
    if transcript.leaf_id is not None and not transcript.leaf_id.startswith("import-"):
        return None  # It went on here, or the folder is one of ours.
    context = transcript.context()
    messages, compaction = context.messages, context.compaction_id
    if compaction is not None and compaction.startswith("import-"):
        messages, compaction = messages[1:], None  # The import says so of a reset, after which there is no summary.
    ours = our_request(messages, compacted=compaction is not None)
    if ours == theirs:
        return None
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        if one != other:
            return differs(f"message {number + 1} of {len(theirs)} differs: {_shown(one)} there, {_shown(other)} here")
    return differs(f"{len(theirs)} messages there, {len(ours)} here")


def _shown(message: Part) -> str:
    text = repr(message)
    return text if len(text) <= 80 else f"{text[:79]}…"
