"""A run whose reply leaves through a channel: its typing sign, and the call to the outbox when it is done."""

from __future__ import annotations

from openclaw.config.schema import Config
from openclaw.events import Event
from openclaw.gateway.channel_services import ChannelServices
from openclaw.outbound.typing import Typing, TypingMode
from openclaw.runs.run_index import Observer, RunRecord


def typing_mode(config: Config, *, direct: bool) -> TypingMode:
    configured = config.session.typing_mode or config.agents.defaults.typing_mode
    return configured or ("instant" if direct else "message")


class ChannelRun:
    """Watches a run whose route is delivered, on its way to whoever shows it."""

    def __init__(self, record: RunRecord, inner: Observer, services: ChannelServices, config: Config) -> None:
        self._record = record
        self._inner = inner
        self._services = services
        self._typing = self._sign(config)

    def _sign(self, config: Config) -> Typing:
        row = self._record.row
        direct = not any(f":{kind}:" in row.session_key for kind in ("group", "channel", "room"))
        interval = config.session.typing_interval_seconds or config.agents.defaults.typing_interval_seconds

        async def show(on: bool) -> None:
            await self._services.channels.typing(str(row.route["channel"]), row.route, on)

        return Typing(
            self._services.clock,
            show,
            mode=typing_mode(config, direct=direct),
            interval_s=interval,
        )

    def started(self) -> None:
        self._inner.started()
        self._typing.started()

    def event(self, event: Event) -> None:
        self._inner.event(event)
        self._typing.event(event)

    def aborted(self, reason: str) -> None:
        self._inner.aborted(reason)
        self._typing.ended(reply_follows=False)

    def absorbed(self, by: str) -> None:
        self._inner.absorbed(by)
        self._typing.ended(reply_follows=True)

    def finished(self) -> None:
        self._inner.finished()
        result = self._record.result
        said = result is not None and bool(result.texts or result.notice)
        self._typing.ended(reply_follows=said or self._record.state == "error")
        self._services.delivery.wake()
