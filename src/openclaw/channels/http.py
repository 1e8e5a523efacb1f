"""HTTP requests to a platform: calls with JSON responses, and file downloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext
from openclaw.channels.media import NotFetched, check_size
from openclaw.net import read_bounded
from openclaw.outbound.reply import SendFailed

MAX_RESPONSE = 16 * 1024 * 1024
FETCH_S = 60.0
Body = TypeVar("Body", bound=msgspec.Struct)


def new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())


@asynccontextmanager
async def network_errors(platform: str, timeout_s: float) -> AsyncGenerator[None]:
    """Translate network errors to ``SendFailed``. The messages hold no URL, because some contain a secret."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except aiohttp.ConnectionTimeoutError:
        raise SendFailed(f"{platform} does not accept connections", reached=False) from None
    except TimeoutError:
        problem = f"{platform} did not answer within {timeout_s:g} s"
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
    url: str,
    body_type: type[Body],
    *,
    json: Any = None,
    form: aiohttp.FormData | None = None,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    limit: int = MAX_RESPONSE,
) -> tuple[aiohttp.ClientResponse, Body]:
    """Return the response and its JSON body. Raises ``SendFailed`` without a response.

    All fields of ``body_type`` must have defaults: a body that does not match, or is larger than ``limit`` bytes,
    yields those.
    """
    data, all_headers = form, dict(headers or {})
    if json is not None:
        data, all_headers["Content-Type"] = msgspec.json.encode(json), "application/json"
    async with network_errors(platform, timeout_s):
        request = http.request(method, url, params=query, data=data, headers=all_headers, allow_redirects=False)
        async with request as response:
            body = await read_bounded(response, limit)
    try:
        return response, msgspec.json.decode(body, type=body_type)
    except (msgspec.MsgspecError, RecursionError):
        return response, body_type()


def converted(value: object, body_type: type[Body]) -> Body:
    """Convert a decoded JSON value to a record. A value that does not match yields the record's defaults."""
    try:
        return msgspec.convert(value, body_type)
    except msgspec.ValidationError:
        return body_type()


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the delay of a ``Retry-After`` header, or None if it is missing or invalid.

    A date is compared with the server's ``Date``, since our clock may differ.
    """
    value = headers.get("Retry-After") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("Date") or "")).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(seconds, 0.0) if isfinite(seconds) else None


async def download(
    context: ChannelContext,
    http: aiohttp.ClientSession,
    url: str,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Download a file from a platform. Raises ``NotFetched``."""
    try:
        async with asyncio.timeout(FETCH_S):
            async with http.get(url, params=query, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    raise NotFetched(f"the server answered {response.status}")
                return await read_file(context, response)
    except TimeoutError:
        raise NotFetched(f"it took longer than {FETCH_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotFetched(f"the connection broke ({type(error).__name__})") from None


async def read_file(context: ChannelContext, response: aiohttp.ClientResponse) -> bytes:
    """Read a response body. Raises ``NotFetched`` as soon as it exceeds the account's ``mediaMaxMb``."""
    check_size(context, response.content_length or 0)
    data = bytearray()
    async for chunk in response.content.iter_chunked(256 * 1024):
        data += chunk
        check_size(context, len(data))
    return bytes(data)


def is_trusted_url(url: str, root: str, hosts: tuple[str, ...]) -> bool:
    """Return whether a URL is on the server of ``root``, or over TLS on a host such as ``.example.com``.

    Messages name the URLs of their files, and a request to another server would leak the account's token.
    """
    try:
        target, own = urlsplit(url), urlsplit(root)
        same_server = (target.scheme, target.hostname, target.port) == (own.scheme, own.hostname, own.port)
        return same_server or (target.scheme == "https" and f".{target.hostname or ''}".endswith(hosts))
    except ValueError:
        return False
