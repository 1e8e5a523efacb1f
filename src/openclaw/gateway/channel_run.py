"""What a channel is shown of a run whose reply goes there: the typing sign, and then the reply."""

from __future__ import annotations

import asyncio

from openclaw.config.schema import Config
from openclaw.events import Event, TextDelta, ThinkingDelta, ToolStarted, ToolUpdated
from openclaw.gateway.channel_services import ChannelServices
from openclaw.runs.queue import RunRecord

TTL_S = 120.0
"""The typing sign ends when the run shows no activity for this long."""


class ChannelRun:
    """Observes a run: shows on its channel that the agent is typing, and wakes the delivery when the run has ended.

    After the run has ended, the typing sign is not shown again.
    """

    def __init__(self, record: RunRecord, services: ChannelServices, config: Config) -> None:
        self._record = record
        self._services = services
        session, defaults = config.session, config.agents.defaults
        direct = not any(f":{kind}:" in record.session_key for kind in ("group", "channel", "room"))
        addressed = direct or record.row.body.mentioned
        self._mode = session.typing_mode or defaults.typing_mode or ("instant" if addressed else "message")
        self._interval_s = session.typing_interval_seconds or defaults.typing_interval_seconds
        self._active_at = 0.0
        self._sealed = self._mode == "never"
        self._task: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None

    def started(self) -> None:
        if self._mode == "instant":
            self._active()

    def event(self, event: Event) -> None:
        match event:
            # Text that may turn out to be silence does not come as an event.
            case TextDelta() | ToolStarted() | ToolUpdated():
                self._active()
            case ThinkingDelta() if self._mode == "thinking":
                self._active()
            case _:
                pass

    def aborted(self, reason: str) -> None:
        self._end_sign(reply_follows=False)

    def absorbed(self, by: str) -> None:
        self._end_sign(reply_follows=True)

    def finished(self) -> None:
        result = self._record.result
        said = result is not None and bool(result.texts or result.notice)
        self._end_sign(reply_follows=said or self._record.state == "error")
        self._services.delivery.wake()

    def _end_sign(self, *, reply_follows: bool) -> None:
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
        self._active_at = self._services.clock.monotonic()
        if not self._sealed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep_showing())

    async def _keep_showing(self) -> None:
        clock = self._services.clock
        while clock.monotonic() - self._active_at < TTL_S:
            await self._show(True)
            await clock.sleep(self._interval_s)
        await self._show(False)

    async def _remove_sign(self, task: asyncio.Task[None]) -> None:
        await asyncio.gather(task, return_exceptions=True)
        await self._show(False)

    async def _show(self, on: bool) -> None:
        route = self._record.row.route
        await self._services.channels.typing(str(route["channel"]), route, on)
