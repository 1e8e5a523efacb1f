"""Shows the typing sign while a run works, and ends it with the run or after a time without activity."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from openclaw.clock import Clock
from openclaw.events import Event, TextDelta, ThinkingDelta, ToolStarted, ToolUpdated

TypingMode: TypeAlias = Literal["never", "instant", "thinking", "message"]
TTL_S = 120.0
"""The sign ends when the run shows no activity for this long."""


class Typing:
    """The typing sign of one run. After the run has ended, the sign is not shown again."""

    def __init__(
        self, clock: Clock, show: Callable[[bool], Awaitable[None]], *, mode: TypingMode, interval_s: float
    ) -> None:
        self._clock = clock
        self._show = show
        self._mode: TypingMode = mode
        self._interval_s = interval_s
        self._active_at = 0.0
        self._sealed = mode == "never"
        self._task: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None

    def started(self) -> None:
        if self._mode == "instant":
            self._active()

    def event(self, event: Event) -> None:
        match event:
            case TextDelta():
                # Text that may turn out to be silence does not come as an event.
                self._active()
            case ThinkingDelta() if self._mode == "thinking":
                self._active()
            case ToolStarted() | ToolUpdated():
                self._active()
            case _:
                pass

    def ended(self, *, reply_follows: bool) -> None:
        """Ends the sign. A reply ends it by itself, so it is only removed if no reply follows."""
        if self._sealed:
            return
        self._sealed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            if not reply_follows:
                self._last = asyncio.create_task(self._remove_sign(task))

    def _active(self) -> None:
        self._active_at = self._clock.monotonic()
        if not self._sealed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep_showing())

    async def _keep_showing(self) -> None:
        while self._clock.monotonic() - self._active_at < TTL_S:
            await self._show(True)
            await self._clock.sleep(self._interval_s)
        await self._show(False)

    async def _remove_sign(self, task: asyncio.Task[None]) -> None:
        await asyncio.gather(task, return_exceptions=True)
        await self._show(False)
