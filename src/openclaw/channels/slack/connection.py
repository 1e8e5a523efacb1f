"""The connection to Slack: calls of the Web API, the WebSocket of Socket Mode, and requests of the Events API.

The WebSocket is read here and not by the client in ``slack_sdk``. That one hands every envelope to a task of its own,
so that messages overtake each other. It also keeps an unbounded queue, and tries a refused token for ever. Requests of
the Events API (``mode: "http"``) have a signature, which is checked here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from openclaw.channels.base import NotConfigured, WebhookRequest, is_number
from openclaw.channels.bookmark import Remembered
from openclaw.channels.http import mapping, reaching, retry_after_s
from openclaw.channels.slack.incoming import SlackEvent, SlashCommand, Surroundings, people_in, room_kind, spoken
from openclaw.channels.submit import body_signature, secrets_equal
from openclaw.outbound.reply import SendFailed

TIMEOUT_S = 30.0
LIMITED_S = 30.0
"""The pause after a rate limit that names none."""
LOOK_UP_S = 2.0
"""Slack wants an envelope acknowledged within 3 s. Names that take longer are left out."""
HELLO_S = 20.0
HEARTBEAT_S = 20.0
MAX_FRAME = 4 * 1024 * 1024
_REFUSED = frozenset(
    {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "not_allowed_token_type"}
)
_TRY_AGAIN = frozenset({"ratelimited", "rate_limited", "service_unavailable", "request_timeout", "team_added_to_org"})
_HALF_DONE = frozenset({"internal_error", "fatal_error"})
"""Slack says that some of the operation may have succeeded."""


class SocketLost(Exception):
    """The WebSocket ended or could not be opened. The message says why."""


class SlackApi:
    """The Web API with one token. Nothing is repeated here, because a repeated post would be a second message."""

    def __init__(self, http: aiohttp.ClientSession, token: str, root: str) -> None:
        # On its own level, because the library writes whole requests and answers at DEBUG.
        log = logging.getLogger("openclaw.channels.slack.library")
        log.setLevel(logging.WARNING)
        self.client = AsyncWebClient(
            token=token, base_url=root, session=http, timeout=int(TIMEOUT_S), retry_handlers=[], logger=log
        )

    async def ask(self, call: Awaitable[AsyncSlackResponse], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """The answer to a call. Raises ``SendFailed``."""
        try:
            async with reaching("Slack", timeout_s):
                answer = await call
        except SlackApiError as error:
            raise failure_of(error.response) from None
        except SlackClientError as error:
            problem = f"the connection to Slack broke ({type(error).__name__})"
            raise SendFailed(problem, reached=False, maybe_sent=True) from None
        return mapping(answer.data)


class SlackRefused(SendFailed):
    """Slack answered with an error. ``code`` is Slack's word for it."""

    code: str = ""


def failure_of(response: Any) -> SlackRefused:
    """What an answer that is not ok means for the message."""
    status: int = getattr(response, "status_code", None) or getattr(response, "status", 0)
    given = mapping(getattr(response, "data", None))
    code = str(given.get("error") or f"HTTP {status}")[:100]
    needed = f"; the app needs the scope {given['needed']}" if isinstance(given.get("needed"), str) else ""
    limited = status == 429 or code in ("ratelimited", "rate_limited")
    half_done = status >= 500 or code in _HALF_DONE
    asked_s = retry_after_s(getattr(response, "headers", None) or {})
    permanent = not (limited or half_done or code in _REFUSED or code in _TRY_AGAIN)
    failure = SlackRefused(
        f"Slack refused it: {code}{needed}",
        permanent=permanent,
        # With a refused token nothing arrives until somebody puts in a new one. The message waits for that.
        reached=code not in _REFUSED,
        maybe_sent=half_done and not limited,
        retry_after_s=asked_s if asked_s is not None else LIMITED_S if limited else None,
    )
    failure.code = code
    return failure


def raise_if_refused(failure: SendFailed, key: str) -> None:
    """Raises ``NotConfigured`` if Slack will not take the token, whatever is tried."""
    if isinstance(failure, SlackRefused) and (failure.code in _REFUSED or failure.code == "missing_scope"):
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
        """Set when Slack wants another connection."""
        self._early: SocketFrame | None = None
        """An envelope that came before the hello."""

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, api: SlackApi, app_token: str, key: str) -> SlackSocket:
        """Connects and waits for Slack's hello.

        Raises ``SocketLost`` or ``SendFailed``, and ``NotConfigured`` for a refused token.
        """
        try:
            answer = await api.ask(api.client.apps_connections_open(app_token=app_token))
        except SendFailed as failure:
            raise_if_refused(failure, key)
            raise
        try:
            async with asyncio.timeout(HELLO_S):
                websocket = await http.ws_connect(
                    str(answer.get("url") or ""), heartbeat=HEARTBEAT_S, max_msg_size=MAX_FRAME
                )
                socket = cls(websocket)
                while (frame := await socket._receive()).type != "hello" and not frame.envelope_id:
                    pass
                if frame.envelope_id:
                    socket._early = frame
                return socket
        except TimeoutError:
            raise SocketLost(f"Slack said no hello within {HELLO_S:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            # The address has a ticket in it, so the error itself is not shown.
            raise SocketLost(f"Slack refused the WebSocket (HTTP {error.status})") from None
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

    async def envelopes(self, take: Callable[[SlackSocket, SocketFrame], Awaitable[None]]) -> None:
        """Reads until the connection ends, which raises ``SocketLost``."""
        try:
            while True:
                envelope, self._early = self._early or await self._receive(), None
                if envelope.type == "disconnect":
                    if envelope.reason == "link_disabled":
                        raise NotConfigured("Socket Mode is switched off in the settings of the Slack app")
                    self.replace.set()
                elif envelope.envelope_id:
                    await take(self, envelope)
        finally:
            await self._websocket.close()

    async def acknowledge(self, envelope: SocketFrame) -> None:
        """Slack does not deliver it again. If the connection is gone, it does, and dedupe drops it."""
        answer = SocketModeResponse(envelope_id=envelope.envelope_id).to_dict()
        try:
            await self._websocket.send_str(msgspec.json.encode(answer).decode())
        except (ConnectionError, RuntimeError):
            pass


class Directory:
    """Names of people and channels, and first messages of threads. Each is asked for once.

    What Slack does not tell, for example because a scope is missing, is left out.
    """

    def __init__(self, api: SlackApi, log: logging.Logger) -> None:
        self._api = api
        self._log = log
        self._known: Remembered[str, dict[str, Any]] = Remembered()

    async def around(self, event: SlackEvent) -> Surroundings:
        said = spoken(event) or event
        thread = said.thread_ts if said.thread_ts and said.thread_ts != said.ts else ""
        people = people_in(event) + ([event.item_user] if event.item_user else [])
        return await self.look_up(people, event.room, event.channel_type, thread)

    async def look_up(self, people: list[str], room: str, told: str | None, thread: str = "") -> Surroundings:
        client = self._api.client
        asked: dict[str, Callable[[], Awaitable[AsyncSlackResponse]]] = {
            f"user {person}": lambda person=person: client.users_info(user=person)
            for person in people
            if person[:1] in "UW"
        }
        if room and room_kind(room, told) != "im":
            asked[f"room {room}"] = lambda: client.conversations_info(channel=room)
        if thread:
            asked[f"thread {room} {thread}"] = lambda: client.conversations_replies(channel=room, ts=thread, limit=1)
        missing = {key: call for key, call in asked.items() if self._known.get(key) is None}
        if missing:
            await asyncio.gather(*(self._ask(key, call) for key, call in missing.items()))
        found = {key: self._known.get(key) or {} for key in asked}
        about, starter = found.get(f"room {room}", {}), found.get(f"thread {room} {thread}", {})
        kind = "im" if about.get("is_im") else "mpim" if about.get("is_mpim") else room_kind(room, told)
        return Surroundings(
            names={person: name for person in people if (name := found.get(f"user {person}", {}).get("name"))},
            room_kind=kind,
            room_name=about.get("name"),
            thread_starter=starter.get("message"),
        )

    async def _ask(self, key: str, call: Callable[[], Awaitable[AsyncSlackResponse]]) -> None:
        try:
            answer = await self._api.ask(call(), LOOK_UP_S)
        except SendFailed as failure:
            self._log.debug("%s is not known: %s", key, failure)
            if failure.permanent:
                self._known[key] = {"unknown": True}
            return
        self._known[key] = _facts(answer)


def _facts(answer: dict[str, Any]) -> dict[str, Any]:
    match answer:
        case {"user": {"profile": {**profile}, **user}}:
            names = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
            return {"name": next((name for name in names if isinstance(name, str) and name.strip()), None)}
        case {"channel": {**channel}}:
            return {name: channel.get(name) for name in ("name", "is_im", "is_mpim")}
        case {"messages": [first, *_]}:
            try:
                return {"message": msgspec.convert(first, SlackEvent)}
            except msgspec.ValidationError:
                return {"unknown": True}
        case _:
            return {"unknown": True}


OLDEST_S = 300
"""An older request may be one that somebody recorded and sends again."""
MOST_FIELDS = 100


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """Slack asks whether the address is ours."""

    challenge: str = ""


class EventPayload(msgspec.Struct, frozen=True, kw_only=True):
    """What an envelope or a request carries."""

    type: str = ""
    challenge: str = ""
    event: SlackEvent = SlackEvent()


decode_payload = msgspec.json.Decoder(EventPayload).decode


async def is_signed(request: WebhookRequest, secret: str, now_s: float) -> bool:
    """Whether Slack sent the request, and just now."""
    stamp = request.headers.get("x-slack-request-timestamp", "")
    if not is_number(stamp) or abs(now_s - int(stamp[:15])) > OLDEST_S:
        return False
    wanted = await body_signature(secret, b"v0:" + stamp.encode() + b":", request.body)
    return secrets_equal(request.headers.get("x-slack-signature", ""), f"v0={wanted}")


def read_request(request: WebhookRequest) -> SlackEvent | SlashCommand | Challenge | None:
    """What a signed request tells. None: nothing that we use, such as a pressed button.

    Raises ``ValueError`` if it cannot be read.
    """
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        fields = dict(parse_qsl(request.body.decode("utf-8", "replace"), max_num_fields=MOST_FIELDS))
        return msgspec.convert(fields, SlashCommand) if "command" in fields else None
    try:
        posted = decode_payload(request.body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    match posted.type:
        case "url_verification":
            return Challenge(challenge=posted.challenge)
        case "event_callback":
            return posted.event
        case _:
            return None
