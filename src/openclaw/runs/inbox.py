"""Words that reach a run while it works, and the moment after which it takes no more."""

from __future__ import annotations

from collections import deque

from openclaw.agent.loop import Steered
from openclaw.messages import UserMessage
from openclaw.runs.record import RunRecord


class RunInbox:
    """Handed to the loop; the lane puts steered messages in, one is taken at each poll."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RunRecord, UserMessage]] = deque()
        self.open = True
        """False once the loop has asked for the last time: what comes later needs a run of its own."""

    def put(self, record: RunRecord, message: UserMessage) -> bool:
        if not self.open:
            return False
        self._waiting.append((record, message))
        return True

    def waiting(self) -> bool:
        return bool(self._waiting)

    def steering(self) -> list[Steered]:
        if not self._waiting:
            return []
        record, message = self._waiting.popleft()
        return [Steered(message, record.run_id)]

    def follow_ups(self) -> list[Steered]:
        taken = self.steering()
        self.open = bool(taken)
        return taken

    def close(self) -> list[RunRecord]:
        """Ends the inbox and gives back what the run never took."""
        self.open = False
        left = [record for record, _ in self._waiting]
        self._waiting.clear()
        return left
