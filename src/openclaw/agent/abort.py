"""Stopping a run at whatever it is waiting for."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from types import TracebackType
from typing import Self


class AbortReason(StrEnum):
    """Who stopped a run. Clients see these values."""

    RPC = "rpc"
    STOP = "stop"
    RESET = "reset"
    DELETE = "delete"
    INTERRUPT = "interrupt"
    """A newer message takes its place."""
    TIMEOUT = "timeout"
    REMOVED = "removed"
    """A person took the message out of the queue."""


class Aborted(Exception):
    """Raised at the await that was interrupted; the reason is in ``args[0]``."""


class AbortSignal:
    """Interrupts the one await a run is in, and only there: bookkeeping between two awaits is never torn apart.

    The loop marks each wait on a model, a tool or a pause with ``with signal.waiting():``. ``abort`` cancels that
    wait, or, when the run is between two of them, takes effect at the next. What happens within one that is no waiting
    must not need to be finished.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._task: asyncio.Task[object] | None = None

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def abort(self, reason: str) -> bool:
        """True for the first call; later reasons do not replace the first."""
        if self.reason is not None:
            return False
        self.reason = reason
        if self._task is not None and self._task is asyncio.current_task():
            # The run stops itself in the middle of a wait; cancelled now, it would be torn at whatever it awaits next.
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
        # A cancellation that is not ours (the Gateway stops) must go on as one.
        if self.reason is not None and task is not None and task.uncancel() == 0:
            raise Aborted(self.reason) from None
