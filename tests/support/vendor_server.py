"""What the stand-ins for chat platforms have in common: a web server on loopback that a test starts and stops."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from aiohttp import web

from tests.support.ports import KeptPort


class VendorServer:
    """``async with``, or ``start`` and ``stop``. After a stop it starts again at the same port."""

    port = 0
    _kept_port: KeptPort | None = None
    _runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        """The paths of the platform."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Ends the connections that a stop would wait for."""
        return

    async def start(self) -> Self:
        if self._kept_port is None:
            self._kept_port = KeptPort()
            self.port = self._kept_port.number
        self._runner = web.AppRunner(self.application(), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        return self

    async def stop(self) -> None:
        await self.disconnect()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
