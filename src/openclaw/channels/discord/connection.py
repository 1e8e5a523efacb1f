"""The connection to Discord through discord.py: rate-limited requests, and the gateway's WebSocket.

The library handles compression, heartbeats, identify and resume, and rate limits. Gateway events bypass its models and
are passed on raw, because the Gateway has its own records. The library is imported in a thread when an account starts,
because that is slow.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import aiohttp
import msgspec

from openclaw.channels.discord.incoming import DiscordUser
from openclaw.channels.http import converted, retry_after_s
from openclaw.config.schema.channels import DiscordAccount
from openclaw.outbound.reply import SendFailed

TIMEOUT_S = 60.0
CONNECT_S = 30.0
MAX_WAIT_S = 30.0
"""The outbox handles a rate limit that lasts longer."""
KEEP_SESSION = 4000
"""The close code that keeps the session resumable."""

DiscordFailureKind: TypeAlias = Literal["token", "rate", "refused", "gone", "server", "unreachable", "unanswered"]
OnGatewayEvent: TypeAlias = Callable[[str, int, Any], None]
"""Receives the name, sequence number and data of an event."""


class DiscordFailed(SendFailed):
    """A request failed. ``gone`` means that its subject no longer exists."""

    def __init__(
        self, kind: DiscordFailureKind, message: str, *, retry_after_s: float | None = None, code: int = 0
    ) -> None:
        super().__init__(
            message,
            permanent=kind in ("refused", "gone"),
            reached=kind not in ("unreachable", "unanswered", "token"),
            maybe_sent=kind in ("server", "unanswered"),
            retry_after_s=retry_after_s,
        )
        self.kind: DiscordFailureKind = kind
        self.code = code
        """Discord's JSON error code."""


class GatewayLost(Exception):
    """The WebSocket was closed. ``hopeless``: reconnecting cannot help. ``resume``: the session can be resumed."""

    def __init__(self, message: str, *, hopeless: bool = False, resume: bool = True) -> None:
        super().__init__(message)
        self.hopeless = hopeless
        self.resume = resume


class GatewaySession(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway session and its last received sequence number."""

    session: str
    sequence: int
    gateway: str


class Upload(NamedTuple):
    name: str
    data: bytes
    mime_type: str
    seconds: float | None = None
    """The duration of a voice message. None for any other file."""


class GatewayInfo(msgspec.Struct, frozen=True, kw_only=True):
    url: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    code: int | None = None
    message: str | None = None
    retry_after: float | None = None


_CLOSE_CODES = {
    4004: "Discord does not accept the bot token: create a new one in the Developer Portal",
    4010: "Discord rejected the shard",
    4011: "the bot is on so many servers that it needs shards",
    4012: "Discord no longer supports this protocol version",
    4013: "Discord rejected the intents",
    4014: "enable Message Content Intent in the Developer Portal (Bot → Privileged Gateway Intents)",
}
_ERROR_TEXTS = {
    50007: "Discord does not allow the bot to write to this person directly",
    50013: "the bot lacks a permission in this channel",
    50001: "the bot has no access to this channel",
}


class DiscordConnection:
    """Created by ``open_connection``. ``request`` may raise ``DiscordFailed``, ``listen`` raises ``GatewayLost``."""

    def __init__(self, client: Any, token: str) -> None:
        self._client = client
        self._token = token
        self._socket: Any = None

    async def login(self) -> DiscordUser:
        """Return the bot's own user."""
        # The public login also fetches the application, which only a full application may do.
        await self._client._async_setup_hook()
        user = await self._guarded("GET /users/@me", self._client.http.static_login(self._token))
        return msgspec.convert(user, DiscordUser)

    async def gateway_url(self) -> str:
        info = converted(await self.request("GET", "/gateway/bot"), GatewayInfo)
        if info.url is None:
            raise DiscordFailed("server", "Discord GET /gateway/bot: no URL in the response")
        return info.url

    async def listen(
        self, gateway: str, session: GatewaySession | None, pause: Callable[[], Awaitable[None]]
    ) -> NoReturn:
        """Connect and receive until the connection is lost. Resumes ``session`` if there is one.

        ``pause`` is called after each event and may wait, to limit the number of events in progress.
        """
        import yarl
        from discord import ConnectionClosed
        from discord.gateway import DiscordWebSocket, ReconnectWebSocket

        try:
            async with asyncio.timeout(CONNECT_S):
                self._socket = await DiscordWebSocket.from_client(
                    self._client,
                    initial=True,
                    gateway=yarl.URL(session.gateway if session else gateway),
                    resume=session is not None,
                    session=session.session if session else None,
                    sequence=session.sequence if session else None,
                )
            self._client.ws = self._socket
            while True:
                await self._socket.poll_event()
                await pause()
        except ReconnectWebSocket as lost:
            raise GatewayLost("Discord closed the connection", resume=lost.resume) from None
        except ConnectionClosed as closed:
            problem = _CLOSE_CODES.get(closed.code)
            raise GatewayLost(
                problem or f"Discord closed the connection (code {closed.code})", hopeless=problem is not None
            ) from None
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise GatewayLost(f"the connection to Discord broke ({type(error).__name__})") from None

    def session(self) -> GatewaySession | None:
        """Return the session of the current or last connection."""
        socket = self._socket
        if socket is None or not socket.session_id or socket.sequence is None:
            return None
        return GatewaySession(session=socket.session_id, sequence=socket.sequence, gateway=str(socket.gateway))

    async def close(self) -> None:
        if self._socket is not None:
            try:
                await self._socket.close(code=KEEP_SESSION)
            except (OSError, aiohttp.ClientError, RuntimeError):
                pass
        await self._client.http.close()

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] = MappingProxyType({}),
        *,
        body: Any = None,
        files: tuple[Upload, ...] = (),
    ) -> Any:
        """Make a request within the rate limits. ``params`` fill the placeholders of the path."""
        from discord import File
        from discord.http import Route

        route = Route(method, path, metadata=None, **params)
        if not files:
            more = {} if body is None else {"json": body}
            return await self._guarded(f"{method} {path}", self._client.http.request(route, **more))
        uploads = [File(io.BytesIO(file.data), filename=file.name) for file in files]
        form: list[dict[str, object]] = [{"name": "payload_json", "value": msgspec.json.encode(body).decode()}]
        for number, (upload, file) in enumerate(zip(uploads, files, strict=True)):
            field = {"name": f"files[{number}]", "value": upload.fp, "filename": file.name}
            form.append({**field, "content_type": file.mime_type})
        return await self._guarded(f"{method} {path}", self._client.http.request(route, form=form, files=uploads))

    async def _guarded(self, what: str, request: Awaitable[Any]) -> Any:
        import discord

        try:
            async with asyncio.timeout(TIMEOUT_S):
                response = await request
            # The library decodes JSON only without a charset in the content type, which proxies add.
            return _decode_json(response) if isinstance(response, str) else response
        except discord.LoginFailure:
            raise DiscordFailed("token", _CLOSE_CODES[4004]) from None
        except discord.RateLimited as limited:
            wait = limited.retry_after
            raise DiscordFailed("rate", f"Discord {what}: rate limited", retry_after_s=wait) from None
        except discord.HTTPException as error:
            raise _failure(what, error) from None
        except aiohttp.ClientConnectorError:
            raise DiscordFailed("unreachable", f"Discord {what}: the server cannot be reached") from None
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise DiscordFailed("unanswered", f"Discord {what}: no answer ({type(error).__name__})") from None


def _decode_json(text: str | bytes) -> Any:
    """Decode JSON. Returns the text if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _failure(what: str, error: Any) -> DiscordFailed:
    # The exception holds only a part of the error, and a consumed response cannot be read again.
    body = converted(_decode_json(getattr(error.response, "_body", None) or b""), ErrorBody)
    code: int = error.code if body.code is None else body.code
    reason = _ERROR_TEXTS.get(code) or f"{body.message or error.text or error.response.reason} ({error.status})"
    message = f"Discord {what}: {reason}"
    wait_s = retry_after_s(error.response.headers)
    match error.status:
        case 401:
            return DiscordFailed("token", _CLOSE_CODES[4004])
        case 429:
            return DiscordFailed(
                "rate", message, retry_after_s=wait_s if body.retry_after is None else body.retry_after
            )
        case 404:
            return DiscordFailed("gone", message, code=code)
        case status if status >= 500:
            return DiscordFailed("server", message, retry_after_s=wait_s)
        case _:
            return DiscordFailed("refused", message, code=code)


def open_connection(token: str, settings: DiscordAccount, on_event: OnGatewayEvent) -> DiscordConnection:
    """Create the client. Blocks on imports: call it in a thread."""
    import discord
    from discord.http import Route

    class PlainClient(discord.Client):
        def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
            """Pass raw gateway events on instead of calling the library's handlers."""
            if event == "socket_raw_receive":
                try:
                    payload = _decode(args[0])
                except (msgspec.MsgspecError, RecursionError):
                    return  # The library logs it.
                if payload.t and payload.s is not None:
                    on_event(payload.t, payload.s, payload.d)

    intents = discord.Intents.none()
    intents.guilds = intents.guild_messages = intents.dm_messages = intents.message_content = True
    intents.guild_reactions = intents.dm_reactions = True
    intents.presences, intents.members = settings.intents.presence, settings.intents.guild_members
    client = PlainClient(
        intents=intents,
        max_messages=None,
        chunk_guilds_at_startup=False,
        member_cache_flags=discord.MemberCacheFlags.none(),
        enable_debug_events=True,
        max_ratelimit_timeout=MAX_WAIT_S,
        proxy=settings.proxy or None,
    )
    client._connection.parsers.clear()  # pyright: ignore[reportPrivateUsage]
    root, send = settings.api_root.strip().rstrip("/"), client.http.request

    async def request(route: Route, **more: Any) -> Any:
        # The library has one base URL for all clients of the process.
        if route.url.startswith(Route.BASE):
            route.url = root + route.url.removeprefix(Route.BASE)
        return await send(route, **more)

    client.http.request = request  # pyright: ignore[reportAttributeAccessIssue]
    return DiscordConnection(client, token)


class GatewayPayload(msgspec.Struct, frozen=True):
    t: str | None = None
    s: int | None = None
    d: Any = None


_decode = msgspec.json.Decoder(GatewayPayload).decode
