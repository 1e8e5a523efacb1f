"""What the stores found damaged or missing, and what they did about it. The log says it, and the owner is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("openclaw.storage.repairs")

MOST_KEPT = 50


class Repairs:
    """Collects sentences, from any thread. ``changed`` is called after each one."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.changed = changed
        self._untold: list[str] = []
        self._guard = threading.Lock()

    def note(self, text: str) -> None:
        log.error("%s", text)
        with self._guard:
            self._untold = [*self._untold, text][-MOST_KEPT:]
        self.changed()

    def take(self) -> list[str]:
        """Returns what the owner was not told yet, and forgets it."""
        with self._guard:
            untold, self._untold = self._untold, []
        return untold
