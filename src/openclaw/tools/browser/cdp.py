"""A connection to a browser in the Chrome DevTools protocol: calls with answers, and events.

The browser that the Gateway starts speaks over a pipe, not over a port: nobody else on the machine can take it over,
and it ends by itself when the Gateway is gone, even after a kill. A browser that already runs is reached by WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import msgspec

from openclaw.http_body import read_bounded

MOST_MESSAGE_BYTES = 128 * 1024 * 1024
"""A picture or a tree of a large page comes as one message."""
CALL_S = 30.0

log = logging.getLogger("openclaw.gateway.browser")


class CdpError(Exception):
    """The browser refused a call. The text is the browser's."""


class CdpClosed(CdpError):
    """The connection is gone: the browser has ended or crashed, or the tab is closed."""


class CdpTimeout(CdpError):
    """The browser did not answer in time."""


class Transport(Protocol):
    async def send(self, text: bytes) -> None: ...

    async def receive(self) -> bytes | None:
        """The next message, or None at the end."""
        ...

    async def close(self) -> None: ...


class PipeTransport:
    """Messages on two pipes. Each ends with a zero byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, text: bytes) -> None:
        self._writer.write(text + b"\0")
        await self._writer.drain()

    async def receive(self) -> bytes | None:
        try:
            return (await self._reader.readuntil(b"\0"))[:-1]
        except asyncio.LimitOverrunError:
            log.warning("the browser sent a message of more than %d bytes; it is ended", MOST_MESSAGE_BYTES)
            return None
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        self._writer.close()


class WebSocketTransport:
    """Messages of a browser that already runs."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session = session
        self._socket = socket

    @classmethod
    async def open(cls, address: str, lookup_s: float, handshake_s: float) -> WebSocketTransport:
        """Connects to ``ws://…``, or to the socket that ``http://…`` names. Raises ``CdpError``."""
        session = aiohttp.ClientSession(trust_env=False)
        try:
            if address.startswith(("http://", "https://")):
                async with asyncio.timeout(lookup_s):
                    address = await _socket_of(session, address)
            async with asyncio.timeout(handshake_s):
                return cls(session, await session.ws_connect(address, max_msg_size=MOST_MESSAGE_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            await session.close()
            raise CdpClosed(f"it does not answer ({type(error).__name__})") from None
        except BaseException:
            await session.close()
            raise

    async def send(self, text: bytes) -> None:
        await self._socket.send_str(text.decode())

    async def receive(self) -> bytes | None:
        message = await self._socket.receive()
        if message.type == aiohttp.WSMsgType.TEXT:
            return message.data.encode()
        return message.data if message.type == aiohttp.WSMsgType.BINARY else None

    async def close(self) -> None:
        await self._socket.close()
        await self._session.close()


async def _socket_of(session: aiohttp.ClientSession, address: str) -> str:
    """The WebSocket of a browser. A browser behind a tunnel names a host of its own, so the known one is kept."""
    from yarl import URL

    base = URL(address)
    async with session.get(base / "json" / "version", allow_redirects=False) as response:
        told = msgspec.json.decode(await read_bounded(response, 64 * 1024))
    url = URL(str(told["webSocketDebuggerUrl"]) if isinstance(told, dict) else "")
    scheme = "wss" if base.scheme == "https" else "ws"
    return str(url.with_scheme(scheme).with_host(base.host or "").with_port(base.port))


class CdpConnection:
    """Calls and events of one browser. Tabs are sessions of it."""

    def __init__(
        self,
        transport: Transport,
        event: Callable[[str, dict[str, Any], str], None],
        closed: Callable[[], None] | None = None,
    ) -> None:
        """``event`` is called with the name, the parameters and the session. ``closed`` is called once."""
        self._transport = transport
        self._event = event
        self._closed = closed
        self._waiting: dict[int, tuple[asyncio.Future[Any], str]] = {}
        self._last_id = 0
        self.ended = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="browser connection")

    async def call(
        self, method: str, params: dict[str, Any] | None = None, session: str = "", timeout: float = CALL_S
    ) -> dict[str, Any]:
        """The result of a method. Raises ``CdpError``."""
        if self.ended.is_set():
            raise CdpClosed("the browser has ended")
        self._last_id += 1
        number, answer = self._last_id, asyncio.get_running_loop().create_future()
        request: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session:
            request["sessionId"] = session
        self._waiting[number] = answer, session
        try:
            async with asyncio.timeout(timeout):
                await self._transport.send(msgspec.json.encode(request))
                return await answer
        except TimeoutError:
            raise CdpTimeout(f"{method} was not answered within {timeout:g} s") from None
        except (OSError, RuntimeError) as error:
            raise CdpClosed(f"the browser cannot be reached ({type(error).__name__})") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with contextlib.suppress(OSError, RuntimeError, aiohttp.ClientError):
            await self._transport.close()

    def drop(self, session: str) -> None:
        """Ends the calls that wait for a tab which is gone."""
        for answer, owner in list(self._waiting.values()):
            if owner == session and not answer.done():
                answer.set_exception(CdpClosed("the tab is closed"))

    async def _read(self) -> None:
        try:
            while (raw := await self._transport.receive()) is not None:
                self._take(raw)
        finally:
            self.ended.set()
            for answer, _ in list(self._waiting.values()):
                if not answer.done():
                    answer.set_exception(CdpClosed("the browser has ended"))
            if self._closed is not None:
                self._closed()

    def _take(self, raw: bytes) -> None:
        try:
            message = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            log.warning("the browser sent something that is no JSON")
            return
        if not isinstance(message, dict):
            return
        if (number := message.get("id")) is not None:
            answer, _ = self._waiting.get(number, (None, ""))
            if answer is None or answer.done():
                return
            if (error := message.get("error")) is not None:
                answer.set_exception(CdpError(str(error.get("message") if isinstance(error, dict) else error)[:500]))
            else:
                answer.set_result(message.get("result") or {})
            return
        try:
            self._event(str(message.get("method")), message.get("params") or {}, str(message.get("sessionId") or ""))
        except Exception:
            log.exception("an event of the browser could not be handled")
