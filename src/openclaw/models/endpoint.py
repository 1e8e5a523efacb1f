"""An address that is called again and again, and the way a call takes to it.

aiohttp's session works out for every request what is the same for all requests to one address with one key: URL,
headers, cookies, time limits. Here that happens once, and a call is one write and one read on a connection of the
session's pool. Pool, TLS, name look-up and the reading of all but the most common form of answer stay aiohttp's; what
is out of the ordinary (a proxy, a password in the URL, a body too large to be written at once) goes through the session
as a whole.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError
from yarl import URL

from openclaw.models.streamed import PLAIN_HEADERS, Body, QuietWatch, StreamedAnswer

CONNECT_TIMEOUT_S = 20.0
IDLE_TIMEOUT_S = 120.0
LARGEST_AT_ONCE = 256 * 1024
"""Bytes of a body. A larger one takes time to send, and the server may answer before it has all of it."""
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SECRET_WORDS = ("auth", "key", "token", "secret", "cookie")


class Response:
    """An answer whose body is still coming; of aiohttp's own, the part that is needed here."""

    def __init__(self, connection: Connection, status: int, headers: Mapping[str, str], content: Body) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def release(self) -> None:
        """Gives the connection back to the pool, which closes it when the body has not ended."""
        self._connection.release()

    def close(self) -> None:
        self._connection.close()


AnyResponse: TypeAlias = Response | aiohttp.ClientResponse


class Endpoint:
    def __init__(self, url: str, headers: dict[str, str], *, api_key: str = "", idle_s: float = IDLE_TIMEOUT_S) -> None:
        self.url = url
        self.headers = headers
        self.idle_s = idle_s
        """How long the server may stay silent."""
        self.place = _place(url)
        """Host and port, for messages."""
        self.secrets = secrets_of(headers, api_key)
        self._is_here = _is_here(url)
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s
        )
        self._line: _Line | None = None

    async def post(self, session: aiohttp.ClientSession, body: bytes) -> AnyResponse:
        """Sends JSON and returns as soon as the head of the answer is there. Redirects are not followed."""
        proxy = None if self._is_here else proxy_for(self.url)
        line = self._line
        if line is None or line.session is not session:
            line = self._line = _Line(session, self.url, self._sent_headers(), self.idle_s)
        if proxy is None and line.direct and len(body) <= LARGEST_AT_ONCE:
            return await line.post(body, self._timeout)
        return await session.post(
            line.url,
            data=body,
            headers=self._sent_headers(),
            timeout=self._timeout,
            allow_redirects=False,
            proxy=proxy,
        )

    def _sent_headers(self) -> dict[str, str]:
        return {"content-type": "application/json", "accept": "text/event-stream", **self.headers}


class _Line:
    """One endpoint over one session's pool: the head of its requests, and what the pool knows its connections by."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], idle_s: float) -> None:
        self.session = session
        self.url = _checked(url)
        self.direct = self.url.user is None and self.url.password is None
        self._request = aiohttp.ClientRequest("POST", self.url, headers={**session.headers, **headers})
        self._head = _head(self._request)
        self._quiet = QuietWatch(asyncio.get_running_loop(), idle_s)

    async def post(self, body: bytes, timeout: aiohttp.ClientTimeout) -> Response:
        connector = self.session.connector
        if connector is None:
            raise RuntimeError("Session is closed")
        try:
            connection = await connector.connect(self._request, [], timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self.url}") from error
        try:
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None:
                raise aiohttp.ServerDisconnectedError
            answer = StreamedAnswer(protocol, self._quiet)
            transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body))
            if await answer.plain:
                return Response(connection, 200, PLAIN_HEADERS, answer)
            return await self._any_answer(connection, protocol)
        except BaseException:
            connection.close()
            raise

    async def _any_answer(self, connection: Connection, protocol: ResponseHandler) -> Response:
        try:
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, content = await protocol.read()
        except HttpProcessingError as error:
            raise aiohttp.ClientResponseError(
                self._request.request_info, (), status=error.code, message=error.message, headers=error.headers
            ) from error
        return Response(connection, message.code, message.headers, content)


def _checked(url: str) -> URL:
    try:
        parsed = URL(url)
    except ValueError:
        raise aiohttp.InvalidURL(url) from None
    if parsed.scheme not in ("http", "https") or not parsed.raw_host:
        raise aiohttp.InvalidURL(url)
    return parsed


def _head(request: aiohttp.ClientRequest) -> bytes:
    """The lines before the length of the body."""
    lines = [f"POST {request.url.raw_path_qs} HTTP/1.1"]
    for name, value in request.headers.items():
        if _FORBIDDEN.search(name) or _FORBIDDEN.search(value):
            raise ValueError(f"the header {name!r} holds a line break or another control character")
        if name.lower() != "content-length":
            lines.append(f"{name}: {value}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _place(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url
    except ValueError:
        return url


def secrets_of(headers: Mapping[str, str], api_key: str) -> list[str]:
    """Strings that must not appear in an error: the key and every header that looks like one."""
    values = [value for name, value in headers.items() if any(word in name.lower() for word in _SECRET_WORDS)]
    bare = [value.removeprefix("Bearer ") for value in values]
    return [secret for secret in (api_key, *values, *bare) if len(secret) >= 4]


def proxy_for(url: str) -> str | None:
    """The environment's proxy; never for this machine, which a proxy could not reach anyway."""
    if _is_here(url):
        return None
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy_bypass(host) else proxy


def _is_here(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1") or host.startswith("127.")
