"""Requests to a platform over HTTP: calls with JSON answers, and downloads of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext
from openclaw.channels.media import NotFetched, check_size
from openclaw.net import read_bounded
from openclaw.outbound.reply import SendFailed

MAX_ANSWER = 16 * 1024 * 1024
FETCH_S = 60.0


def new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())


@asynccontextmanager
async def reaching(platform: str, timeout_s: float) -> AsyncGenerator[None]:
    """Turns what can go wrong on the way to a platform into ``SendFailed``. No error shows an address."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except aiohttp.ConnectionTimeoutError:
        raise SendFailed(f"{platform} takes no connection", reached=False) from None
    except TimeoutError:
        problem = f"{platform} gave no answer within {timeout_s:g} s"
        raise SendFailed(problem, reached=False, maybe_sent=True) from None
    except aiohttp.ClientConnectorError as error:
        raise SendFailed(f"{platform} cannot be reached: {error.os_error}", reached=False) from None
    except (aiohttp.ClientError, OSError) as error:
        problem = f"the connection to {platform} broke ({type(error).__name__})"
        raise SendFailed(problem, reached=False, maybe_sent=True) from None


async def call(
    http: aiohttp.ClientSession,
    platform: str,
    method: str,
    address: str,
    *,
    json: Any = None,
    form: aiohttp.FormData | None = None,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    limit: int = MAX_ANSWER,
) -> tuple[aiohttp.ClientResponse, dict[str, Any]]:
    """The answer to a request, and the JSON object in it. Raises ``SendFailed`` if there is no answer.

    Of an answer with more than ``limit`` bytes, or without an object, the object is empty.
    """
    data, sent = form, dict(headers or {})
    if json is not None:
        data, sent["Content-Type"] = msgspec.json.encode(json), "application/json"
    async with reaching(platform, timeout_s):
        asking = http.request(method, address, params=query, data=data, headers=sent, allow_redirects=False)
        async with asking as answer:
            body = await read_bounded(answer, limit)
    try:
        return answer, mapping(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):
        return answer, {}


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait before the next request, or None if it does not say.

    ``Retry-After`` is a number of seconds or a date, which is read against the server's own clock.
    """
    given = headers.get("Retry-After") or ""
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(given) - parsedate_to_datetime(headers.get("Date") or "")).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(seconds, 0.0) if isfinite(seconds) else None


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object of JSON, or else an empty one."""
    return value if isinstance(value, dict) else {}


async def download(
    context: ChannelContext,
    http: aiohttp.ClientSession,
    address: str,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The content of a file that a platform has. Raises ``NotFetched``."""
    try:
        async with asyncio.timeout(FETCH_S):
            asking = http.get(address, params=query, headers=headers, allow_redirects=False)
            async with asking as answer:
                if answer.status != 200:
                    raise NotFetched(f"the server answered {answer.status}")
                return await read_file(context, answer)
    except TimeoutError:
        raise NotFetched(f"it took longer than {FETCH_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotFetched(f"the connection broke ({type(error).__name__})") from None


async def read_file(context: ChannelContext, answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer. Raises ``NotFetched`` as soon as it is larger than ``mediaMaxMb`` of the account."""
    check_size(context, answer.content_length or 0)
    data = bytearray()
    async for chunk in answer.content.iter_chunked(256 * 1024):
        data += chunk
        check_size(context, len(data))
    return bytes(data)


def is_on(address: str, root: str, hosts: tuple[str, ...]) -> bool:
    """Whether an address is on the server of ``root``, or on one of the hosts, such as ``.example.com``, with TLS."""
    try:
        url, own = urlsplit(address), urlsplit(root)
        same_server = (url.scheme, url.hostname, url.port) == (own.scheme, own.hostname, own.port)
        return same_server or (url.scheme == "https" and f".{url.hostname or ''}".endswith(hosts))
    except ValueError:
        return False
