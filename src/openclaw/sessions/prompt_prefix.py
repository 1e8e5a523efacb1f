"""What the Gateway puts before a person's words in a prompt, and how views take it off again."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from datetime import datetime, tzinfo

from openclaw.clock import Clock
from openclaw.foreign_text import disarmed
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

GREETING_MARK = "A new session was started via /new or /reset"
"""Begins what the agent is told where a person only asked for a new session: nobody typed it."""


def is_internal(text: str) -> bool:
    """Whether the Gateway wrote a user message for the model alone. Older transcripts have no mark that says so.

    It is the greeting of a new session, or lines of the Gateway that nobody's words follow.
    """
    if not text.startswith(("System: [", GREETING_MARK)):
        return False
    told = _SYSTEM_LINES.match(text)
    if told is None and _SYSTEM_LINE.match(text) is not None:
        return True
    return text.startswith(GREETING_MARK, told.end() if told else 0)


def as_typed(message: UserMessage, text: str) -> str:
    """What the person typed. ``text`` is the text of the message or of its text block."""
    return without_wrappers(text) if message.written is None else message.written


def without_wrappers(text: str) -> str:
    """What the person typed: without stamp or channel envelope, message-id lines, and what was told in front of it."""
    if text.startswith("System: [") and (told := _SYSTEM_LINES.match(text)) is not None:
        text = text[told.end() :]
    if text.startswith(ABORT_NOTE):
        text = text[len(ABORT_NOTE) :].lstrip()
    plain = _MESSAGE_ID_LINE.sub("", text) if "[message_id: " in text else text
    match = STAMPED.match(plain)
    return (plain[match.end() :].lstrip() if match else plain).rstrip("\n")


MAX_PER_SESSION = 20
MAX_SESSIONS = 1000
MAX_TEXT = 4000


class SessionNotes:
    """The waiting notes of every session. They live in memory only."""

    def __init__(self, clock: Clock, zone: Callable[[], tzinfo | None] = lambda: None) -> None:
        self._clock = clock
        self._zone = zone
        self._queues: dict[str, deque[tuple[int, str]]] = {}

    def add(self, session_key: str, text: str) -> None:
        """Queues a note. A note equal to the one before it is ignored; a full queue loses its oldest note."""
        text = disarmed(" ".join(text.split())[:MAX_TEXT])
        queue = self._queues.setdefault(session_key, deque(maxlen=MAX_PER_SESSION))
        if not text or (queue and queue[-1][1] == text):
            return
        queue.append((self._clock.now_ms(), text))
        while len(self._queues) > MAX_SESSIONS:
            del self._queues[next(iter(self._queues))]

    def peek(self, session_key: str) -> list[str]:
        """Returns the waiting notes of a session and keeps them."""
        return [text for _, text in self._queues.get(session_key, ())]

    def drain(self, session_key: str) -> list[str]:
        """Removes the waiting notes of a session and returns them as lines for the prompt."""
        return [system_line(text, at, self._zone()) for at, text in self._queues.pop(session_key, ())]


def system_line(text: str, at_ms: int, zone: tzinfo | None) -> str:
    """``System: [2026-11-15 18:22:19 UTC] text``: how the Gateway itself speaks in a prompt."""
    moment = datetime.fromtimestamp(at_ms / 1000, zone).astimezone(zone)
    return f"System: [{moment:%Y-%m-%d %H:%M:%S %Z}] {text}"
