"""HTTP to model servers: one pooled session, streamed and whole replies, every failure as a ModelError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

from openclaw.models.base import ErrorKind, Model, ModelError, StreamEvent
from openclaw.models.errors import redact, status_error
from openclaw.models.keys import is_local_url
from openclaw.models.message_builder import ReplyStream, encode_body
from openclaw.models.sse import SseParser, SseTooLarge

MAX_CONNECTIONS = 1000
CONNECT_TIMEOUT_S = 20.0
IDLE_TIMEOUT_S = 120.0
MAX_ERROR_BODY = 64 * 1024
MAX_WHOLE_BODY = 32 * 1024 * 1024
DRAIN_S = 1.0
_SECRET_WORDS = ("auth", "key", "token", "secret", "cookie")


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's request, complete but not sent."""

    url: str
    headers: dict[str, str]
    body: dict[str, Any]
    api_key: str = ""
    """Also part of a header; it is named here so that it can be kept out of errors."""
    idle_s: float = IDLE_TIMEOUT_S
    """How long the server may stay silent."""

    @property
    def host(self) -> str:
        """Host and port, for messages."""
        try:
            return urlsplit(self.url).netloc.rpartition("@")[2] or self.url
        except ValueError:
            return self.url

    @property
    def secrets(self) -> list[str]:
        """Strings that must not appear in an error: the key and every header that looks like one."""
        values = [value for name, value in self.headers.items() if any(word in name.lower() for word in _SECRET_WORDS)]
        bare = [value.removeprefix("Bearer ") for value in values]
        return [secret for secret in (self.api_key, *values, *bare) if len(secret) >= 4]


class ModelHttp:
    """Owns the HTTP session to model servers. Its pool keeps connections warm between turns.

    The session is made at the first call and belongs to the event loop of that call. ``close()`` ends it.
    """

    def __init__(self, connector: aiohttp.BaseConnector | None = None) -> None:
        self._connector = connector
        self._session: aiohttp.ClientSession | None = None
        self._drains: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def stream_reply(self, wire: WireRequest, reply: ReplyStream) -> AsyncGenerator[StreamEvent]:
        """Sends the request and yields the reply's events. A ModelError carries what had come before the failure.

        Cancelling the consumer, or closing this generator early, closes the connection at once.
        """
        response: aiohttp.ClientResponse | None = None
        builder, provider = reply.builder, reply.builder.model.provider
        timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=wire.idle_s
        )
        try:
            response = await self._post(wire, "text/event-stream", timeout)
            if response.status >= 300:
                body = await _read_bounded(response, MAX_ERROR_BODY)
                raise status_error(provider, response.status, response.headers, body, wire.secrets)
            if response.content_type == "text/html":
                raise await _web_page_error(response, wire)
            if response.content_type == "application/json":
                for event in reply.feed_whole(await _read_bounded(response, MAX_WHOLE_BODY)):
                    yield event
                return
            parser = SseParser()
            while not builder.complete and (chunk := await response.content.readany()):
                for event in reply.feed(parser.feed(chunk)):
                    yield event
            if not builder.complete:
                for event in _last_events(parser, reply):
                    yield event
        except ModelError as error:
            # Events that stood before the failure in the same read have not been handed out yet.
            for event in builder.take():
                yield event
            raise _without_secrets(error, wire.secrets) from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _without_secrets(_transport_error(error, wire, reply), wire.secrets) from None
        finally:
            # A consumer may stop at the last event instead of running to the end. Both are a finished call.
            if response is not None and builder.complete:
                self._keep_connection(response)
            elif response is not None:
                response.close()

    async def post_json(self, wire: WireRequest, *, provider: str, timeout_s: float) -> bytes:
        """The body of a good answer, for calls that are answered whole. Every other outcome is a ModelError."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            async with await self._post(wire, "application/json", timeout) as response:
                if response.status < 300:
                    return await _read_bounded(response, MAX_WHOLE_BODY)
                body = await _read_bounded(response, MAX_ERROR_BODY)
                raise status_error(provider, response.status, response.headers, body, wire.secrets)
        except TimeoutError:
            raise ModelError(
                f"{wire.host} gave no answer within {timeout_s:g} s.", kind="timeout", retryable=True
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = redact(f"Connection error with {wire.host}: {error}", wire.secrets)
            raise ModelError(text, kind="network", retryable=True) from None

    async def _post(self, wire: WireRequest, accept: str, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Returns when the head of the answer is there. Redirects are not followed: they would carry the key along."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector
                or aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ttl_dns_cache=60, keepalive_timeout=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": "openclaw-python"},
            )
        return await self._session.post(
            wire.url,
            data=encode_body(wire.body),
            headers={"content-type": "application/json", "accept": accept, **wire.headers},
            timeout=timeout,
            allow_redirects=False,
            proxy=proxy_for(wire.url),
        )

    def _keep_connection(self, response: aiohttp.ClientResponse) -> None:
        """Returns the connection to the pool. The server's end-of-body often comes a packet after its last event."""
        if response.content.at_eof():
            response.release()
            return
        task = asyncio.get_running_loop().create_task(_drain(response))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)


async def _drain(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(DRAIN_S):
            while await response.content.readany():
                pass
        response.release()
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    finally:
        response.close()


async def _read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    while len(body) < limit and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body[:limit])


def _last_events(parser: SseParser, reply: ReplyStream) -> Iterator[StreamEvent]:
    """After the last byte: an event whose blank line is missing still counts, half an event does not."""
    tail = parser.finish()
    if tail is not None:
        try:
            yield from reply.feed([tail])
        except ModelError as error:
            if error.kind != "other":
                raise
    if not reply.builder.complete:
        yield from reply.finish()


def idle_timeout_s(model: Model) -> float:
    """How long a server may stay silent: ``compat.idleTimeoutMs``, or two minutes when that is not a usable number."""
    configured = model.compat.get("idleTimeoutMs")
    if isinstance(configured, int | float) and configured > 0:
        return configured / 1000
    return IDLE_TIMEOUT_S


def proxy_for(url: str) -> str | None:
    """The environment's proxy. Servers on this machine are never reached through it: a proxy could not reach them."""
    if is_local_url(url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy_bypass(parts.hostname or "") else proxy


async def _web_page_error(response: aiohttp.ClientResponse, wire: WireRequest) -> ModelError:
    page = (await _read_bounded(response, 300)).decode("utf-8", "replace").strip()
    return ModelError(
        f"{wire.host} answered with a web page instead of a model's reply; check the provider's baseUrl. "
        f"It begins: {page[:200]!r}",
        kind="other",
    )


def _transport_error(error: Exception, wire: WireRequest, reply: ReplyStream) -> ModelError:
    """What went wrong below HTTP, in words for the person who runs the Gateway."""
    host = wire.host
    kind: ErrorKind = "network"
    retryable = True
    match error:
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            kind, retryable = "other", False
            text = f"The provider's baseUrl {reply.builder.model.base_url!r} is not a valid address."
        case aiohttp.ConnectionTimeoutError():
            kind = "timeout"
            text = f"Connecting to {host} timed out after {CONNECT_TIMEOUT_S:g} s."
        case TimeoutError():
            kind = "timeout"
            text = f"{host} sent nothing for {wire.idle_s:g} s; the call timed out."
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            retryable = False
            text = f"The TLS certificate of {host} was not accepted: {error}"
        case aiohttp.ClientConnectorError():
            text = f"Connection error: cannot reach {host}: {error.os_error.strerror or error.os_error}."
        case SseTooLarge():
            kind, retryable = "other", False
            text = f"{host} sent an unreadable stream: {error}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | aiohttp.ClientOSError():
            text = f"Connection error: {host} closed the connection before the reply was complete."
        case _:
            text = f"Connection error with {host}: {error}"
    return ModelError(text, kind=kind, retryable=retryable, partial=reply.builder.partial(text))


def _without_secrets(error: ModelError, secrets: list[str]) -> ModelError:
    text = redact(str(error), secrets)
    if text == str(error):
        return error
    if error.partial is not None and isinstance(error.partial.error_message, str):
        error.partial.error_message = redact(error.partial.error_message, secrets)
    error.args = (text,)
    return error
