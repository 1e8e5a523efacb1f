"""Detects a model that calls the same tool with the same arguments and gets the same result, again and again.

Only the pair of call and result counts, so waiting for something that changes is never taken for a loop.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import msgspec

from openclaw.config.schema.tools import LoopDetection
from openclaw.messages import TextBlock, ToolResultMessage

MOST_REMEMBERED = 4096
"""Different pairs that are remembered in one run. More are forgotten together."""


class RepeatedCalls:
    """The pairs of call and result in one run."""

    def __init__(self, settings: LoopDetection) -> None:
        self._settings = settings
        self._total: Counter[bytes] = Counter()
        """How often each pair came in this run."""
        self._since_progress: Counter[bytes] = Counter()
        """How often each pair came since the last pair that was new."""
        self.notice: str | None = None
        """Why the run ends, once a pair has come too often."""

    def note(self, message: ToolResultMessage, arguments: dict[str, Any]) -> ToolResultMessage:
        """Count a call with its result. Returns the result, with a sentence about the repetition if there is one."""
        settings = self._settings
        if not settings.enabled:
            return message
        if len(self._total) >= MOST_REMEMBERED:
            self._total.clear()
        pair = _digest(message, arguments)
        if pair not in self._total:
            self._since_progress.clear()
        self._total[pair] += 1
        self._since_progress[pair] += 1
        limits = settings.by_tool.get(message.tool_name)
        warn_at = (limits and limits.warning_threshold) or settings.warning_threshold
        stop_at = (limits and limits.critical_threshold) or settings.critical_threshold
        if self._since_progress[pair] >= stop_at and self.notice is None:
            self.notice = (
                f"Stopped: the agent called {message.tool_name} {self._since_progress[pair]} times with the same "
                "arguments and got the same result each time. Write again to continue, for example with a hint."
            )
        if (count := self._total[pair]) < warn_at:
            return message
        sentence = (
            f"[This call has given the same result {count} times. Do not repeat it: try something else, or say what "
            "keeps you from finishing.]"
        )
        return msgspec.structs.replace(message, content=[*message.content, TextBlock(text=sentence)])


def _digest(message: ToolResultMessage, arguments: dict[str, Any]) -> bytes:
    pair = (message.tool_name, arguments, message.content, message.is_error)
    return hashlib.sha256(msgspec.json.encode(pair, order="sorted")).digest()
