"""Short notes that wait for a session's next run: a node woke up, a process ended, a restart happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime, tzinfo

from openclaw.clock import Clock

MAX_PER_SESSION = 20
MAX_SESSIONS = 1000
MAX_TEXT = 4000


class SystemEvents:
    def __init__(self, clock: Clock, zone: Callable[[], tzinfo | None] = lambda: None) -> None:
        self._clock = clock
        self._zone = zone
        self._queues: dict[str, deque[tuple[int, str]]] = {}

    def add(self, session_key: str, text: str) -> None:
        """Queues a note; the same one twice in a row counts once, and the oldest gives way when there are too many."""
        text = " ".join(text.split())[:MAX_TEXT]
        queue = self._queues.setdefault(session_key, deque(maxlen=MAX_PER_SESSION))
        if not text or (queue and queue[-1][1] == text):
            return
        queue.append((self._clock.now_ms(), text))
        while len(self._queues) > MAX_SESSIONS:
            del self._queues[next(iter(self._queues))]

    def peek(self, session_key: str) -> list[str]:
        return [text for _, text in self._queues.get(session_key, ())]

    def drain(self, session_key: str) -> list[str]:
        """The notes as lines for the next prompt; they are gone afterwards."""
        return [self._line(at, text) for at, text in self._queues.pop(session_key, ())]

    def _line(self, at_ms: int, text: str) -> str:
        moment = datetime.fromtimestamp(at_ms / 1000, self._zone()).astimezone(self._zone())
        return f"System: [{moment:%Y-%m-%d %H:%M:%S %Z}] {text}"
