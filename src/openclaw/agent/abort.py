"""Stopping a run: by hand where it waits, or when its time is up."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

from openclaw.storage.base import AbortReason


class Aborted(Exception):
    """Raised at the await that was interrupted. The reason is in ``args[0]``."""


class AbortSignal:
    """Interrupts a run, but only where it waits. Everything between two waits is finished.

    The loop marks each wait for a model, a tool or a pause with ``with signal.waiting():``. ``abort`` cancels that
    wait. If the run is between two waits, it takes effect at the next one. All code inside such a block can be
    cancelled.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._task: asyncio.Task[object] | None = None

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def abort(self, reason: str) -> bool:
        """Aborts the run. True for the first call. Later reasons do not replace the first."""
        if self.reason is not None:
            return False
        self.reason = reason
        if self._task is not None and self._task is asyncio.current_task():
            # The run aborts itself inside a wait. A cancellation now would hit its next await, whatever that is.
            asyncio.get_running_loop().call_soon(self._interrupt)
        else:
            self._interrupt()
        return True

    def _interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def waiting(self) -> Self:
        return self

    def __enter__(self) -> None:
        if self.reason is not None:
            raise Aborted(self.reason)
        self._task = asyncio.current_task()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            return
        # A cancellation that is not ours (the Gateway stops) must stay a cancellation.
        if self.reason is not None and task is not None and task.uncancel() == 0:
            raise Aborted(self.reason) from None


class Deadlines:
    """Aborts runs that take too long. One timer serves all runs, because nearly every run ends in time."""

    def __init__(self) -> None:
        self._due: dict[AbortSignal, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf

    def set(self, signal: AbortSignal, seconds: float) -> None:
        due = asyncio.get_running_loop().time() + seconds
        self._due[signal] = due
        if due < self._wakes_at:
            self._wake_at(due)

    def left(self, signal: AbortSignal) -> float | None:
        """The seconds until the run's deadline. None: it has none."""
        due = self._due.get(signal)
        return None if due is None else due - asyncio.get_running_loop().time()

    def clear(self, signal: AbortSignal) -> None:
        """Removes the run's deadline. The timer stays and finds nothing to do."""
        self._due.pop(signal, None)

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wakes_at = asyncio.get_running_loop().call_at(due, self._look), due

    def _look(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        now = asyncio.get_running_loop().time()
        for signal in [signal for signal, due in self._due.items() if due <= now]:
            del self._due[signal]
            signal.abort(AbortReason.TIMEOUT)
        if self._due:
            self._wake_at(min(self._due.values()))
