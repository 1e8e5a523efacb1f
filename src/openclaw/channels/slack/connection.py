"""The connection to Slack: calls of the Web API, the WebSocket of Socket Mode, and requests of the Events API.

The WebSocket is read here and not by the client in ``slack_sdk``, which starts a task per envelope, so that messages
overtake each other. It also has an unbounded queue, and retries a rejected token forever. Requests of the Events API
(``mode: "http"``) are signed; the signature is verified here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from openclaw.channels.base import NotConfigured, WebhookRequest, is_number
from openclaw.channels.bookmark import Key, RecentDict
from openclaw.channels.http import converted, network_errors, retry_after_s
from openclaw.channels.slack.incoming import SlackEvent, SlashCommand, Surroundings, message_of, people_in, room_kind
from openclaw.channels.submit import body_signature, secrets_equal
from openclaw.outbound.reply import SendFailed

TIMEOUT_S = 30.0
LIMITED_S = 30.0
"""The pause after a rate limit without ``Retry-After``."""
LOOK_UP_S = 2.0
"""Slack expects an acknowledgement within 3 s, so names that take longer are left out."""
HELLO_S = 20.0
HEARTBEAT_S = 20.0
MAX_FRAME = 4 * 1024 * 1024
_AUTH_ERRORS = frozenset(
    {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "not_allowed_token_type"}
)
_TRANSIENT_ERRORS = frozenset(
    {"ratelimited", "rate_limited", "service_unavailable", "request_timeout", "team_added_to_org"}
)
_PARTIAL_ERRORS = frozenset({"internal_error", "fatal_error"})
"""Slack documents that parts of the operation may have succeeded."""
Result = TypeVar("Result", bound=msgspec.Struct)


class SocketLost(Exception):
    """The WebSocket ended or could not be opened. The message gives the reason."""


class SlackApi:
    """The Web API with one token. Nothing is retried here, because a repeated post would be a second message."""

    def __init__(self, http: aiohttp.ClientSession, token: str, root: str) -> None:
        # The library logs whole requests and responses at DEBUG.
        log = logging.getLogger("openclaw.channels.slack.library")
        log.setLevel(logging.WARNING)
        self.client = AsyncWebClient(
            token=token, base_url=root, session=http, timeout=int(TIMEOUT_S), retry_handlers=[], logger=log
        )

    async def request(
        self, call: Awaitable[AsyncSlackResponse], result: type[Result], timeout_s: float = TIMEOUT_S
    ) -> Result:
        """Return the response to a call. Raises ``SendFailed``."""
        try:
            async with network_errors("Slack", timeout_s):
                response = await call
        except SlackApiError as error:
            raise failure_of(error.response) from None
        except SlackClientError as error:
            problem = f"the connection to Slack broke ({type(error).__name__})"
            raise SendFailed(problem, reached=False, maybe_sent=True) from None
        return converted(response.data, result)


class EmptyResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of which nothing is read."""


class AuthTest(msgspec.Struct, frozen=True, kw_only=True):
    user_id: str | None = None
    user: str | None = None
    bot_id: str | None = None
    team_id: str | None = None
    team: str | None = None


class SocketUrl(msgspec.Struct, frozen=True, kw_only=True):
    url: str | None = None


class UserProfile(msgspec.Struct, frozen=True, kw_only=True):
    display_name: str | None = None
    real_name: str | None = None


class SlackUser(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    real_name: str | None = None
    profile: UserProfile = UserProfile()

    @property
    def shown_name(self) -> str | None:
        names = (self.profile.display_name, self.profile.real_name, self.real_name, self.name)
        return next((name for name in names if name and name.strip()), None)


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    user: SlackUser = SlackUser()


class SlackConversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str | None = None
    name: str | None = None
    is_im: bool = False
    is_mpim: bool = False


class ConversationInfo(msgspec.Struct, frozen=True, kw_only=True):
    channel: SlackConversation = SlackConversation()


class ThreadMessages(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[SlackEvent, ...] = ()


class SlackErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: str | None = None
    needed: str | None = None


class SlackRefused(SendFailed):
    """Slack returned an error. ``code`` is Slack's error code."""

    code: str = ""


def failure_of(response: Any) -> SlackRefused:
    """Translate an error response."""
    status: int = getattr(response, "status_code", None) or getattr(response, "status", 0)
    body = converted(getattr(response, "data", None), SlackErrorBody)
    code = (body.error or f"HTTP {status}")[:100]
    needed = f"; the app needs the scope {body.needed}" if body.needed is not None else ""
    limited = status == 429 or code in ("ratelimited", "rate_limited")
    partial = status >= 500 or code in _PARTIAL_ERRORS
    wait_s = retry_after_s(getattr(response, "headers", None) or {})
    failure = SlackRefused(
        f"Slack rejected it: {code}{needed}",
        permanent=not (limited or partial or code in _AUTH_ERRORS or code in _TRANSIENT_ERRORS),
        # The message waits until the owner configures a new token.
        reached=code not in _AUTH_ERRORS,
        maybe_sent=partial and not limited,
        retry_after_s=wait_s if wait_s is not None else LIMITED_S if limited else None,
    )
    failure.code = code
    return failure


def raise_if_refused(failure: SendFailed, key: str) -> None:
    """Raise ``NotConfigured`` if Slack permanently rejects the token."""
    if isinstance(failure, SlackRefused) and (failure.code in _AUTH_ERRORS or failure.code == "missing_scope"):
        raise NotConfigured(f"{key}: {failure}") from None


class SocketFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of the WebSocket."""

    type: str = ""
    envelope_id: str = ""
    reason: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(SocketFrame).decode


class SlackSocket:
    """One WebSocket. Slack asks for a new one from time to time, and closes the old one a little later."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self._websocket = websocket
        self.replace = asyncio.Event()
        """Set when Slack requests a new connection."""
        self._early: SocketFrame | None = None
        """An envelope that arrived before the hello."""

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, api: SlackApi, app_token: str, key: str) -> SlackSocket:
        """Connect and wait for Slack's hello.

        Raises ``SocketLost`` or ``SendFailed``, or ``NotConfigured`` for a rejected token.
        """
        try:
            opened = await api.request(api.client.apps_connections_open(app_token=app_token), SocketUrl)
        except SendFailed as failure:
            raise_if_refused(failure, key)
            raise
        try:
            async with asyncio.timeout(HELLO_S):
                websocket = await http.ws_connect(opened.url or "", heartbeat=HEARTBEAT_S, max_msg_size=MAX_FRAME)
                socket = cls(websocket)
                while (frame := await socket._receive()).type != "hello" and not frame.envelope_id:
                    pass
                if frame.envelope_id:
                    socket._early = frame
                return socket
        except TimeoutError:
            raise SocketLost(f"Slack sent no hello within {HELLO_S:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            # The error contains the URL, which holds a ticket.
            raise SocketLost(f"Slack rejected the WebSocket (HTTP {error.status})") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise SocketLost(f"the WebSocket cannot be opened ({type(error).__name__})") from None

    async def _receive(self) -> SocketFrame:
        frame = await self._websocket.receive()
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise SocketLost(f"Slack closed the connection (code {self._websocket.close_code or 'none'})")
        try:
            return _decode(frame.data)
        except (msgspec.MsgspecError, RecursionError):
            return SocketFrame()

    async def receive_all(self, on_envelope: Callable[[SlackSocket, SocketFrame], Awaitable[None]]) -> None:
        """Receive until the connection ends, which raises ``SocketLost``."""
        try:
            while True:
                envelope, self._early = self._early or await self._receive(), None
                if envelope.type == "disconnect":
                    if envelope.reason == "link_disabled":
                        raise NotConfigured("Socket Mode is disabled in the settings of the Slack app")
                    self.replace.set()
                elif envelope.envelope_id:
                    await on_envelope(self, envelope)
        finally:
            await self._websocket.close()

    async def acknowledge(self, envelope: SocketFrame) -> None:
        """Acknowledge an envelope. On a lost connection Slack delivers it again, and deduplication drops it."""
        response = SocketModeResponse(envelope_id=envelope.envelope_id).to_dict()
        try:
            await self._websocket.send_str(msgspec.json.encode(response).decode())
        except (ConnectionError, RuntimeError):
            pass


class Directory:
    """Caches names of people and channels, and first messages of threads.

    Anything that Slack does not return, for example because a scope is missing, is left out.
    """

    def __init__(self, api: SlackApi, log: logging.Logger) -> None:
        self._api = api
        self._log = log
        self._users: RecentDict[str, UserInfo] = RecentDict()
        self._rooms: RecentDict[str, ConversationInfo] = RecentDict()
        self._threads: RecentDict[tuple[str, str], ThreadMessages] = RecentDict()

    async def surroundings(self, event: SlackEvent) -> Surroundings:
        message = message_of(event) or event
        thread = message.thread_ts if message.thread_ts and message.thread_ts != message.ts else ""
        people = people_in(event) + ([event.item_user] if event.item_user else [])
        return await self.look_up(people, event.room, event.channel_type, thread)

    async def look_up(self, people: list[str], room: str, channel_type: str | None, thread: str = "") -> Surroundings:
        client = self._api.client
        lookups = [
            self._fetch(self._users, person, UserInfo, partial(client.users_info, user=person))
            for person in people
            if person[:1] in "UW"
        ]
        if room and room_kind(room, channel_type) != "im":
            call = partial(client.conversations_info, channel=room)
            lookups.append(self._fetch(self._rooms, room, ConversationInfo, call))
        if thread:
            call = partial(client.conversations_replies, channel=room, ts=thread, limit=1)
            lookups.append(self._fetch(self._threads, (room, thread), ThreadMessages, call))
        await asyncio.gather(*lookups)
        info = self._rooms.get(room, ConversationInfo()).channel
        messages = self._threads.get((room, thread), ThreadMessages()).messages
        users = {person: self._users[person].user.shown_name for person in people if person in self._users}
        return Surroundings(
            names={person: name for person, name in users.items() if name},
            room_kind="im" if info.is_im else "mpim" if info.is_mpim else room_kind(room, channel_type),
            room_name=info.name,
            thread_starter=messages[0] if messages else None,
        )

    async def _fetch(
        self,
        cache: RecentDict[Key, Result],
        key: Key,
        result: type[Result],
        call: Callable[[], Awaitable[AsyncSlackResponse]],
    ) -> None:
        if key in cache:
            return
        try:
            cache[key] = await self._api.request(call(), result, LOOK_UP_S)
        except SendFailed as failure:
            self._log.debug("%s could not be looked up: %s", key, failure)
            if failure.permanent:
                cache[key] = result()


MAX_AGE_S = 300
"""An older request may be a replay."""
MAX_FIELDS = 100


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """Slack verifies the webhook's URL."""

    challenge: str = ""


class EventPayload(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of an envelope or a request."""

    type: str = ""
    challenge: str = ""
    event: SlackEvent = SlackEvent()


decode_payload = msgspec.json.Decoder(EventPayload).decode


async def is_signed(request: WebhookRequest, secret: str, now_s: float) -> bool:
    """Return whether Slack signed the request recently."""
    stamp = request.headers.get("x-slack-request-timestamp", "")
    if not is_number(stamp) or abs(now_s - int(stamp[:15])) > MAX_AGE_S:
        return False
    signature = await body_signature(secret, b"v0:" + stamp.encode() + b":", request.body)
    return secrets_equal(request.headers.get("x-slack-signature", ""), f"v0={signature}")


def parse_request(request: WebhookRequest) -> SlackEvent | SlashCommand | Challenge | None:
    """Parse a signed request. Returns None for a request that is not used, such as a button press.

    Raises ``ValueError`` if it is malformed.
    """
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        fields = dict(parse_qsl(request.body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS))
        return msgspec.convert(fields, SlashCommand) if "command" in fields else None
    try:
        payload = decode_payload(request.body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    match payload.type:
        case "url_verification":
            return Challenge(challenge=payload.challenge)
        case "event_callback":
            return payload.event
        case _:
            return None
