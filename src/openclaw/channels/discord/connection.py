"""The connection to Discord through discord.py: requests within its rate limits, and the gateway's WebSocket.

The library speaks the protocol: compression, heartbeats, identifying and resuming, rate limits. What its gateway says
is handed on as it came, because the Gateway has records of its own for it. The library is imported when an account
starts, in a thread, because that takes a while.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import aiohttp
import msgspec

from openclaw.channels.http import retry_after_s
from openclaw.config.schema.channels import DiscordAccount
from openclaw.outbound.reply import SendFailed

TIMEOUT_S = 60.0
CONNECT_S = 30.0
MOST_WAIT_S = 30.0
"""A rate limit that lasts longer is left to the outbox."""
KEEP_SESSION = 4000
"""The code with which a connection is closed whose session shall be resumed."""

FailureKind: TypeAlias = Literal["token", "rate", "refused", "gone", "server", "unreachable", "unanswered"]
OnEvent: TypeAlias = Callable[[str, int, Any], None]
"""Gets the name of an event, its number, and what it says."""


class DiscordFailed(SendFailed):
    """A request did not succeed. ``gone`` means that the thing it speaks of is not there."""

    def __init__(self, kind: FailureKind, message: str, *, retry_after_s: float | None = None, code: int = 0) -> None:
        super().__init__(
            message,
            permanent=kind in ("refused", "gone"),
            reached=kind not in ("unreachable", "unanswered", "token"),
            maybe_sent=kind in ("server", "unanswered"),
            retry_after_s=retry_after_s,
        )
        self.kind: FailureKind = kind
        self.code = code
        """Discord's own number for its reason."""


class GatewayLost(Exception):
    """The WebSocket was closed. ``hopeless`` means that connecting again cannot help; ``resume``, that it can go on."""

    def __init__(self, message: str, *, hopeless: bool = False, resume: bool = True) -> None:
        super().__init__(message)
        self.hopeless = hopeless
        self.resume = resume


class SessionPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the gateway and how far it was read."""

    session: str
    sequence: int
    gateway: str


class Upload(NamedTuple):
    name: str
    data: bytes
    mime_type: str
    seconds: float | None = None
    """The length of a voice message. None: it is a file."""


_CLOSE_CODES = {
    4004: "Discord does not accept the bot token: make a new one in the Developer Portal",
    4010: "Discord refused the shard",
    4011: "the bot is on so many servers that it needs shards",
    4012: "Discord no longer speaks this version of its protocol",
    4013: "Discord refused the intents",
    4014: "switch on Message Content Intent in the Developer Portal (Bot → Privileged Gateway Intents)",
}
_WORDS = {
    50007: "Discord does not let the bot write to this person directly",
    50013: "the bot lacks a permission in this channel",
    50001: "the bot has no access to this channel",
}


class DiscordConnection:
    """``open_connection`` makes it. ``request`` may raise ``DiscordFailed``, ``listen`` raises ``GatewayLost``."""

    def __init__(self, client: Any, token: str) -> None:
        self._client = client
        self._token = token
        self._socket: Any = None

    async def login(self) -> dict[str, Any]:
        """Returns our own user."""
        # The library has no public way to log in without a question that only full applications can answer.
        await self._client._async_setup_hook()
        return await self._guarded("GET /users/@me", self._client.http.static_login(self._token))

    async def gateway_address(self) -> str:
        found = await self.request("GET", "/gateway/bot")
        url = found.get("url") if isinstance(found, dict) else None
        if not isinstance(url, str):
            raise DiscordFailed("server", "Discord GET /gateway/bot: no address in the answer")
        return url

    async def listen(self, gateway: str, place: SessionPlace | None, pause: Callable[[], Awaitable[None]]) -> NoReturn:
        """Connects and receives until the connection is lost. With ``place`` it goes on where that session was.

        ``pause`` is called after each event and may wait, so that not too many are taken.
        """
        import yarl
        from discord import ConnectionClosed
        from discord.gateway import DiscordWebSocket, ReconnectWebSocket

        resumed: dict[str, Any] = {}
        if place is not None:
            resumed = {"resume": True, "session": place.session, "sequence": place.sequence}
        address = yarl.URL(place.gateway if place is not None else gateway)
        try:
            async with asyncio.timeout(CONNECT_S):
                self._socket = await DiscordWebSocket.from_client(
                    self._client, initial=True, gateway=address, **resumed
                )
            self._client.ws = self._socket
            while True:
                await self._socket.poll_event()
                await pause()
        except ReconnectWebSocket as lost:
            raise GatewayLost("Discord closed the connection", resume=lost.resume) from None
        except ConnectionClosed as closed:
            words = _CLOSE_CODES.get(closed.code)
            raise GatewayLost(
                words or f"Discord closed the connection (code {closed.code})", hopeless=words is not None
            ) from None
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise GatewayLost(f"the connection to Discord broke ({type(error).__name__})") from None

    def place(self) -> SessionPlace | None:
        """The session of the present or last connection."""
        socket = self._socket
        if socket is None or not socket.session_id or socket.sequence is None:
            return None
        return SessionPlace(session=socket.session_id, sequence=socket.sequence, gateway=str(socket.gateway))

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
        places: Mapping[str, str] = MappingProxyType({}),
        *,
        body: Any = None,
        files: tuple[Upload, ...] = (),
    ) -> Any:
        """Makes a request within the rate limits. ``places`` fill in those of the path."""
        from discord import File
        from discord.http import Route

        route = Route(method, path, metadata=None, **places)
        if not files:
            more = {} if body is None else {"json": body}
            return await self._guarded(f"{method} {path}", self._client.http.request(route, **more))
        uploads = [File(io.BytesIO(file.data), filename=file.name) for file in files]
        form: list[dict[str, Any]] = [{"name": "payload_json", "value": msgspec.json.encode(body).decode()}]
        for number, (upload, file) in enumerate(zip(uploads, files, strict=True)):
            field = {"name": f"files[{number}]", "value": upload.fp, "filename": file.name}
            form.append({**field, "content_type": file.mime_type})
        return await self._guarded(f"{method} {path}", self._client.http.request(route, form=form, files=uploads))

    async def _guarded(self, what: str, asked: Any) -> Any:
        import discord

        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await asked
            # The library reads JSON only if the server names no character set with it. Proxies add one.
            return _read(found) if isinstance(found, str) else found
        except discord.LoginFailure:
            raise DiscordFailed("token", _CLOSE_CODES[4004]) from None
        except discord.RateLimited as limited:
            wait = limited.retry_after
            raise DiscordFailed("rate", f"Discord {what}: too many requests", retry_after_s=wait) from None
        except discord.HTTPException as error:
            raise _failure(what, error) from None
        except aiohttp.ClientConnectorError:
            raise DiscordFailed("unreachable", f"Discord {what}: the server cannot be reached") from None
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise DiscordFailed("unanswered", f"Discord {what}: no answer ({type(error).__name__})") from None


def _read(text: str | bytes) -> Any:
    """What an answer says in JSON, or else the answer."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _failure(what: str, error: Any) -> DiscordFailed:
    # The library keeps only a part of what a refusal says, and a response that was read cannot be read again.
    given = _read(getattr(error.response, "_body", None) or b"")
    body: dict[str, Any] = given if isinstance(given, dict) else {}
    told = body.get("code")
    code: int = told if isinstance(told, int) else error.code
    words = _WORDS.get(code) or f"{body.get('message') or error.text or error.response.reason} ({error.status})"
    said = f"Discord {what}: {words}"
    asked_s = retry_after_s(error.response.headers)
    match error.status:
        case 401:
            return DiscordFailed("token", _CLOSE_CODES[4004])
        case 429:
            wait = body.get("retry_after")
            wait = float(wait) if isinstance(wait, int | float) else asked_s
            return DiscordFailed("rate", said, retry_after_s=wait)
        case 404:
            return DiscordFailed("gone", said, code=code)
        case status if status >= 500:
            return DiscordFailed("server", said, retry_after_s=asked_s)
        case _:
            return DiscordFailed("refused", said, code=code)


def open_connection(token: str, settings: DiscordAccount, on_event: OnEvent) -> DiscordConnection:
    """Makes the client. It blocks: call it in a thread."""
    import discord
    from discord.http import Route

    class PlainClient(discord.Client):
        def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
            """Hands on what the gateway said. The library's own handlers are not used."""
            if event == "socket_raw_receive":
                try:
                    said = _decode(args[0])
                except (msgspec.MsgspecError, RecursionError):
                    return  # The library complains about it.
                if said.t and said.s is not None:
                    on_event(said.t, said.s, said.d)

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
        max_ratelimit_timeout=MOST_WAIT_S,
        proxy=settings.proxy or None,
    )
    client._connection.parsers.clear()  # pyright: ignore[reportPrivateUsage]
    root, ask = settings.api_root.strip().rstrip("/"), client.http.request

    async def request(route: Route, **more: Any) -> Any:
        # The library has one address for all clients of the process.
        if route.url.startswith(Route.BASE):
            route.url = root + route.url.removeprefix(Route.BASE)
        return await ask(route, **more)

    client.http.request = request  # pyright: ignore[reportAttributeAccessIssue]
    return DiscordConnection(client, token)


class _Said(msgspec.Struct, frozen=True):
    t: str | None = None
    s: int | None = None
    d: Any = None


_decode = msgspec.json.Decoder(_Said).decode
