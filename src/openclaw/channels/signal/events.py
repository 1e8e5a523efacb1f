"""The daemon's stream of events (server-sent events): read line by line, bounded, resumed where it broke off."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import msgspec

MAX_EVENT = 4 * 1024 * 1024
IDLE_S = 60.0
"""The daemon says something every 15 s; a stream silent for this long is dead although nobody told us."""


class StreamLost(Exception):
    """The stream ended or could not be opened, and why."""


class ServerEvent(msgspec.Struct, frozen=True):
    """``data`` is empty for a sign of life."""

    data: bytes = b""
    id: str = ""


async def read_events(
    http: aiohttp.ClientSession, base_url: str, account: str | None, last_id: str, idle_s: float = IDLE_S
) -> AsyncGenerator[ServerEvent]:
    """The first event, without data, says that the stream is open. Always ends with ``StreamLost``.

    With ``last_id`` the daemon sends what came after it (newer versions); what it sends twice is for others to notice.
    """
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=idle_s)
    params = {"account": account} if account else {}
    try:
        async with http.get(f"{base_url}/api/v1/events", params=params, headers=headers, timeout=timeout) as response:
            if response.status == 400:
                raise StreamLost(f"the daemon does not know the account {account}")
            if response.status != 200:
                raise StreamLost(f"the daemon answered {response.status} {response.reason or ''}".strip())
            yield ServerEvent()
            async for event in _parse(response.content):
                yield event
    except TimeoutError:
        raise StreamLost(f"nothing was heard for {idle_s:g} s") from None
    except aiohttp.ClientError as error:
        raise StreamLost(str(error) or type(error).__name__) from None
    raise StreamLost("the daemon closed the stream")


async def _parse(content: aiohttp.StreamReader) -> AsyncIterator[ServerEvent]:
    pending = bytearray()
    data: list[bytes] = []
    size = 0
    event_id = ""
    async for chunk in content.iter_any():
        pending += chunk
        *lines, rest = pending.split(b"\n")
        pending = bytearray(rest)
        if size + len(pending) > MAX_EVENT:
            raise StreamLost(f"one event is larger than {MAX_EVENT} bytes")
        for raw in lines:
            line = bytes(raw).rstrip(b"\r")
            if not line:
                if data:
                    yield ServerEvent(b"\n".join(data), event_id)
                data, size = [], 0
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if not name:
                yield ServerEvent()
            elif name == b"data":
                data.append(value)
                size += len(value)
            elif name == b"id" and b"\0" not in value:
                event_id = value.decode(errors="replace")
