"""A connection to a real server that a test can cut, hold or make deaf."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    """``async with TcpProxy(port) as proxy``: clients connect to ``proxy.port``."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.port = 0
        self.connections = 0
        self.answers = True
        """When False, what the server says is thrown away: it hears and is not heard."""
        self.accepts = True
        """When False, new connections are closed at once."""
        self.deaf_after = b""
        """When a client has sent this, what the server says on that connection is thrown away."""
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Breaks all connections."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepts:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, up_writer}
        deaf = asyncio.Event()
        for copy in (self._copy(reader, up_writer, deaf, True), self._copy(up_reader, writer, deaf, False)):
            task = asyncio.create_task(copy)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: asyncio.Event, of_client: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if of_client and self.deaf_after and self.deaf_after in data:
                    deaf.set()
                if of_client or (self.answers and not deaf.is_set()):
                    writer.write(data)
                    await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
        self._open.discard(writer)
