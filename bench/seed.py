"""State directories as they look after years of use: many sessions, a very long transcript."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

STAMP = "2026-01-01T12:00:00.000Z"
STAMP_MS = 1_767_268_800_000
WORDS = "the quick brown fox jumps over the lazy dog and keeps on running through the long winter night "


def session_entry(number: int, session_id: str) -> dict[str, Any]:
    return {
        "sessionId": session_id,
        # Of today, or the next message would begin a new session in its place.
        "updatedAt": int(time.time() * 1000) - number,
        "systemSent": True,
        "abortedLastRun": False,
        "chatType": "direct",
        "deliveryContext": {"channel": "webchat"},
        "lastChannel": "webchat",
        "origin": {"provider": "webchat", "surface": "webchat", "chatType": "direct"},
        "modelProvider": "mock",
        "model": "mock-1",
        "contextTokens": 200_000,
        "inputTokens": 1200 + number,
        "outputTokens": 300,
        "totalTokens": 1500,
        "displayName": f"Conversation number {number}",
    }


def many_sessions(sessions_dir: Path, count: int) -> None:
    """A store with that many sessions; they have no transcripts yet."""
    entries = {f"agent:main:old-{number}": session_entry(number, str(uuid.uuid4())) for number in range(count)}
    write_store(sessions_dir, entries)


def write_store(sessions_dir: Path, entries: dict[str, Any]) -> None:
    sessions_dir.mkdir(parents=True, exist_ok=True)
    (sessions_dir / "sessions.json").write_text(json.dumps(entries))


def long_transcript(path: Path, session_id: str, messages: int, size: int, *, keep: int) -> None:
    """``messages`` messages of ``size`` bytes each, then a compaction that keeps the last ``keep`` of them.

    Without a compaction if ``keep`` is 0.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (WORDS * (size // len(WORDS) + 1))[: size - 450]
    head = {"type": "session", "version": 3, "id": session_id, "timestamp": STAMP, "cwd": str(path.parent)}
    lines = [json.dumps(head)]
    parent: str | None = None
    for number in range(messages):
        own = f"{number:08x}"
        message = user(text) if number % 2 == 0 else assistant(text)
        entry = {"type": "message", "id": own, "parentId": parent, "timestamp": STAMP, "message": message}
        lines.append(json.dumps(entry))
        parent = own
    compaction = {
        "type": "compaction",
        "id": "c0000001",
        "parentId": parent,
        "timestamp": STAMP,
        "summary": "Everything that was said before.",
        "firstKeptEntryId": f"{messages - keep:08x}",
        "tokensBefore": 150_000,
    }
    if keep:
        lines.append(json.dumps(compaction))
    path.write_text("\n".join(lines) + "\n")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": STAMP_MS}


def assistant(text: str) -> dict[str, Any]:
    cost = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
    usage = {"input": 100, "output": 20, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 120, "cost": cost}
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "api": "anthropic-messages",
        "provider": "mock",
        "model": "mock-1",
        "usage": usage,
        "stopReason": "stop",
        "timestamp": STAMP_MS,
    }
