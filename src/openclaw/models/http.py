"""The way out to model servers: one pooled session per event loop, streaming POSTs, failures as ModelError."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import aiohttp
import msgspec

from openclaw.models.base import Model, ModelError, StreamEvent
from openclaw.models.endpoint import CONNECT_TIMEOUT_S, IDLE_TIMEOUT_S, AnyResponse, Endpoint, proxy_for
from openclaw.models.errors import redact, status_error
from openclaw.models.message_builder import ReplyStream, encode_body
from openclaw.models.sse import SseParser, SseTooLarge

MAX_CONNECTIONS = 1000
MAX_ERROR_BODY = 64 * 1024
MAX_WHOLE_BODY = 32 * 1024 * 1024
_DRAIN_S = 1.0
_USER_AGENT = "openclaw-python"

_sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = weakref.WeakKeyDictionary()
_drains: set[asyncio.Task[None]] = set()


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's request, complete but not sent."""

    endpoint: Endpoint
    body: dict[str, Any]

    @property
    def url(self) -> str:
        return self.endpoint.url

    @property
    def headers(self) -> dict[str, str]:
        return self.endpoint.headers


def shared_session() -> aiohttp.ClientSession:
    """The session of the running loop, made on first use. Its pool keeps connections warm between turns."""
    loop = asyncio.get_running_loop()
    session = _sessions.get(loop)
    if session is None or session.closed:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ttl_dns_cache=60, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": _USER_AGENT},
        )
        _sessions[loop] = session
    return session


async def close() -> None:
    """Closes the running loop's session; the next call would make a new one."""
    session = _sessions.pop(asyncio.get_running_loop(), None)
    if session is not None:
        await session.close()


async def stream_reply(wire: WireRequest, state: ReplyStream, *, model: Model) -> AsyncGenerator[StreamEvent]:
    """Sends the request and yields the reply's events. Every failure is a ModelError that carries what had come.

    Cancelling the consumer closes the connection at once.
    """
    response: AnyResponse | None = None
    endpoint, builder = wire.endpoint, state.builder
    try:
        response = await endpoint.post(shared_session(), encode_body(wire.body))
        kind = response.content_type
        if response.status >= 300 or kind == "text/html":
            raise await _refused(response, endpoint, model)
        if kind == "application/json":
            for event in state.feed_whole(await _read_bounded(response, MAX_WHOLE_BODY)):
                yield event
            return
        parser = SseParser()
        while not builder.complete and (chunk := await response.content.readany()):
            for event in state.feed(parser.feed(chunk)):
                yield event
        if not builder.complete:
            for event in _last_events(parser, state):
                yield event
    except ModelError as error:
        # What stood before the failure in the same read has not been handed out yet.
        for event in builder.take():
            yield event
        raise _without_secrets(error, endpoint.secrets) from None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise _without_secrets(transport_error(error, endpoint, state, model), endpoint.secrets) from None
    finally:
        # A consumer may stop at the last event instead of running to the end; both are a finished call.
        if response is not None and builder.complete:
            _keep_connection(response)
        elif response is not None:
            response.close()


async def _refused(response: AnyResponse, endpoint: Endpoint, model: Model) -> ModelError:
    """A refusal, or a page meant for people, is no reply."""
    if response.status >= 300:
        body = await _read_bounded(response, MAX_ERROR_BODY)
        return status_error(model.provider, response.status, response.headers, body, endpoint.secrets)
    page = (await _read_bounded(response, 300)).decode("utf-8", "replace").strip()
    return ModelError(
        f"{endpoint.place} answered with a web page instead of a model's reply; check the provider's baseUrl. "
        f"It begins: {page[:200]!r}",
        kind="other",
    )


async def post_json(wire: WireRequest, *, provider: str, timeout_s: float) -> bytes:
    """For calls that are answered whole: the body of a good answer. Every other outcome is a ModelError."""
    endpoint = wire.endpoint
    try:
        response = await shared_session().post(
            wire.url,
            data=encode_body(wire.body),
            headers={"content-type": "application/json", "accept": "application/json", **wire.headers},
            timeout=aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S),
            allow_redirects=False,
            proxy=proxy_for(wire.url),
        )
        async with response:
            failed = response.status >= 300
            body = await _read_bounded(response, MAX_ERROR_BODY if failed else MAX_WHOLE_BODY)
            if failed:
                raise status_error(provider, response.status, response.headers, body, endpoint.secrets)
            return body
    except TimeoutError:
        raise ModelError(
            f"{endpoint.place} gave no answer within {timeout_s:g} s.", kind="timeout", retryable=True
        ) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        text = redact(f"Connection error with {endpoint.place}: {error}", endpoint.secrets)
        raise ModelError(text, kind="network", retryable=True) from None


def _last_events(parser: SseParser, state: ReplyStream) -> Iterator[StreamEvent]:
    """After the last byte: an event whose blank line is missing still counts, half an event does not."""
    tail = parser.finish()
    if tail is not None:
        try:
            yield from state.feed([tail])
        except ModelError as error:
            if error.kind != "other":
                raise
    if not state.builder.complete:
        yield from state.finish()


async def _read_bounded(response: AnyResponse, limit: int) -> bytes:
    body = bytearray()
    while len(body) < limit and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body[:limit])


def _keep_connection(response: AnyResponse) -> None:
    """Returns the connection to the pool. The server's end-of-body often comes a packet after its last event."""
    if response.content.at_eof():
        response.release()
        return
    task = asyncio.get_running_loop().create_task(_drain(response))
    _drains.add(task)
    task.add_done_callback(_drains.discard)


async def _drain(response: AnyResponse) -> None:
    try:
        async with asyncio.timeout(_DRAIN_S):
            while await response.content.readany():
                pass
        response.release()
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    finally:
        response.close()


def idle_timeout_s(model: Model) -> float:
    """How long a server may stay silent: ``compat.idleTimeoutMs``, two minutes when it says nothing usable."""
    configured = model.compat.get("idleTimeoutMs")
    if isinstance(configured, int | float) and configured > 0:
        return configured / 1000
    return IDLE_TIMEOUT_S


def transport_error(error: Exception, endpoint: Endpoint, state: ReplyStream, model: Model) -> ModelError:
    """What went wrong below HTTP, in words for the person who runs the Gateway."""
    host = endpoint.place
    kind: Any = "network"
    retryable = True
    match error:
        case aiohttp.InvalidURL():
            kind, retryable = "other", False
            text = f"The provider's baseUrl {model.base_url!r} is not a valid address."
        case aiohttp.ConnectionTimeoutError():
            kind = "timeout"
            text = f"Connecting to {host} timed out after {CONNECT_TIMEOUT_S:g} s."
        case TimeoutError():
            kind = "timeout"
            text = f"{host} sent nothing for {endpoint.idle_s:g} s; the call timed out."
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
    return ModelError(text, kind=kind, retryable=retryable, partial=state.builder.partial(text))


def _without_secrets(error: ModelError, secrets: list[str]) -> ModelError:
    text = redact(str(error), secrets)
    if text == str(error):
        return error
    if error.partial is not None and isinstance(error.partial.error_message, str):
        error.partial.error_message = redact(error.partial.error_message, secrets)
    error.args = (text,)
    return error
