"""What the Gateway puts before a person's words in a prompt, and how views take it off again."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

from openclaw.messages import UserMessage

STAMPED = re.compile(r"^\[[^\]]*\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}[^\]]*\]")
_MESSAGE_ID_LINE = re.compile(r"^[ \t]*\[message_id: [^\]]*\][ \t]*$\n?", re.MULTILINE)
_SYSTEM_LINE = re.compile(r"System: \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [^\]\n]*\]")
_SYSTEM_LINES = re.compile(r"(?:System: \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [^\]\n]*\][^\n]*\n)+\n(?=.)", re.DOTALL)


ABORT_NOTE = (
    "Note: the person stopped the previous run. Take up that work only if it is clear that they still want it; "
    "otherwise ask."
)
"""Begins the first message after a run was stopped."""

HISTORY_MARKER = "[Chat messages since your last reply - for context]"
CURRENT_MARKER = "[Current message - respond to this]"

COLLECTED = "[Queued messages while agent was busy]"
"""Begins the prompt of messages that are answered together."""
_QUEUED = re.compile(r"^---\nQueued #\d+\n", re.MULTILINE)

GREETING_MARK = "A new session was started via /new or /reset"
"""Begins the prompt of a session that a person began without a message. Nobody typed it."""


def is_internal(text: str) -> bool:
    """Whether the Gateway wrote a user message for the model alone. Older transcripts have no mark that says so.

    It is the greeting of a new session, or lines of the Gateway that nobody's words follow.
    """
    if not text.startswith(("System: [", GREETING_MARK)):
        return False
    lines = _SYSTEM_LINES.match(text)
    if lines is None and _SYSTEM_LINE.match(text) is not None:
        return True
    return text.startswith(GREETING_MARK, lines.end() if lines else 0)


def as_typed(message: UserMessage, text: str) -> str:
    """What the person typed. ``text`` is the text of the message or of its text block."""
    return without_wrappers(text) if message.written is None else message.written


def without_wrappers(text: str) -> str:
    """What the person typed: without stamp or channel envelope, message-id lines, and what was told in front of it."""
    if text.startswith("System: [") and (lines := _SYSTEM_LINES.match(text)) is not None:
        text = text[lines.end() :]
    if text.startswith(ABORT_NOTE):
        text = text[len(ABORT_NOTE) :].lstrip()
    plain = _MESSAGE_ID_LINE.sub("", text) if "[message_id: " in text else text
    match = STAMPED.match(plain)
    return (plain[match.end() :].lstrip() if match else plain).rstrip("\n")


def typed_text(prompt: str) -> str:
    """What people typed, in one message or in several that are answered together."""
    if not prompt.startswith(COLLECTED):
        return without_wrappers(prompt)
    return "\n\n".join(without_wrappers(part.strip()) for part in _QUEUED.split(prompt)[1:])


def newest_text(prompt: str) -> str:
    """Return the text of the message itself, without the messages of others that came with it as context."""
    return without_wrappers(prompt.rpartition(f"{CURRENT_MARKER}\n")[2])


def system_line(text: str, at_ms: int, zone: tzinfo | None) -> str:
    """``System: [2026-11-15 18:22:19 UTC] text``: how the Gateway itself speaks in a prompt."""
    moment = datetime.fromtimestamp(at_ms / 1000, zone).astimezone(zone)
    return f"System: [{moment:%Y-%m-%d %H:%M:%S %Z}] {text}"
