"""Stopping a run: a signal that interrupts it, but only where it waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from types import TracebackType
from typing import Self

from openclaw.storage.message_ledger import AbortReason


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
        self._deadline: asyncio.TimerHandle | None = None

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

    def set_deadline(self, seconds: float) -> None:
        """Aborts the run when its time is up."""
        self.clear_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort, AbortReason.TIMEOUT)

    def clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @contextlib.contextmanager
    def deadline_paused(self) -> Generator[None]:
        """Within it, the run's time does not pass."""
        left = self.time_left
        self.clear_deadline()
        try:
            yield
        finally:
            if left is not None:
                self.set_deadline(left)

    @property
    def time_left(self) -> float | None:
        """The seconds until the run's deadline. None: it has none."""
        return None if self._deadline is None else self._deadline.when() - asyncio.get_running_loop().time()

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
