"""One Signal account: receives through the event stream of a signal-cli daemon and sends through its JSON-RPC.

A received message goes ``run`` → ``_listen`` → ``_take`` → ``_hand_over``, which gives it to the Gateway.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext, offer
from openclaw.channels.media import files_to_send, of_admitted
from openclaw.channels.signal.connection import (
    Daemon,
    DaemonFailed,
    RpcError,
    RpcUnreachable,
    ServerEvent,
    SignalRpc,
    StreamLost,
    read_events,
)
from openclaw.channels.signal.incoming import (
    IncomingMessage,
    IncomingReaction,
    OwnIdentity,
    SignalDeletion,
    SignalEdit,
    decode_event,
    fetch_attachments,
    interpret,
    with_learned_uuid,
)
from openclaw.channels.signal.kind import normalize_number, recipient_params
from openclaw.config.schema.channels import SignalAccount
from openclaw.inbound.message import Inbound, Route
from openclaw.outbound.backoff import Backoff
from openclaw.outbound.rendering import render
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt

RECONNECT = Backoff(initial_s=1.0, max_s=10.0)
SEND_TIMEOUT_S = 60.0
"""Longer than for other calls. After a timeout nobody knows whether the message was sent, and a retry may repeat it."""
_USER_ERROR, _UNTRUSTED_KEY, _RATE_LIMIT = -1, -4, -5
_BAD_REQUEST = (-32700, -32600, -32601, -32602)
_PERMANENT_FAILURES = frozenset({"UNREGISTERED_FAILURE", "IDENTITY_FAILURE", "INVALID_PRE_KEY_FAILURE"})


class SignalChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: SignalAccount = context.account.settings
        self._own = OwnIdentity(normalize_number(self._settings.account or ""))
        self._bookmark = context.bookmark("last-event")
        self._rpc: SignalRpc | None = None

    # Receiving

    async def run(self) -> None:
        url = base_url(self._settings)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            self._rpc = SignalRpc(http, url)
            auto_start = self._settings.auto_start
            if not (auto_start if auto_start is not None else not self._settings.http_url):
                await self._listen(http, url)
                return
            daemon = Daemon(self._settings, self._rpc, self._context.clock, self._context.log)
            await daemon.start()
            try:
                await self._listen_beside(daemon, http, url)
            finally:
                await daemon.stop()

    async def _listen_beside(self, daemon: Daemon, http: aiohttp.ClientSession, url: str) -> None:
        """Listens until the daemon ends, which raises ``DaemonFailed``."""
        listening = asyncio.create_task(self._listen(http, url))
        ended = asyncio.create_task(daemon.ended())
        try:
            await asyncio.wait({listening, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise DaemonFailed(ended.result())
            await listening
        finally:
            for task in (listening, ended):
                task.cancel()
            await asyncio.gather(listening, ended, return_exceptions=True)

    async def _listen(self, http: aiohttp.ClientSession, url: str) -> None:
        """Reads the event stream until cancelled, and reconnects when it is lost."""
        await self._bookmark.load()
        attempt = 0
        try:
            while True:
                try:
                    stream = read_events(http, url, self._settings.account, self._bookmark.last_id)
                    async with aclosing(stream) as events:
                        await anext(events)
                        self._context.connected()
                        async for event in events:
                            attempt = 0
                            if event.data:
                                await self._take(event)
                except StreamLost as lost:
                    attempt += 1
                    self._context.disconnected(str(lost))
                    delay_s = RECONNECT.delay_s(attempt, random.random)
                    self._context.log.warning("the event stream was lost (%s); again in %.1f s", lost, delay_s)
                    await self._context.clock.sleep(delay_s)
        finally:
            await self._bookmark.close()

    async def _take(self, event: ServerEvent) -> None:
        """Handles one event completely. Only then does the bookmark move on."""
        try:
            received = decode_event(event.data)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._context.log.warning("an event of signal-cli was not understood and is passed over: %s", error)
            return
        mine = self._own.number
        if mine is not None and received.account not in (None, mine) and (received.account or "").startswith("+"):
            return  # The daemon has several accounts and sends us the events of all.
        self._own = with_learned_uuid(self._own, received)
        match interpret(received, self._own, self._context.account.id):
            case IncomingMessage(inbound=inbound, attachments=attachments):
                if attachments and not self._settings.ignore_attachments:
                    group = inbound.peer.kind == "group"
                    origin = {"groupId": inbound.peer.id} if group else {"recipient": _address_of_sender(inbound)}
                    limit = int(self._settings.media_max_mb * 1024 * 1024)
                    place = {**origin, **self._account()}
                    media, notes = await of_admitted(
                        self._context,
                        inbound,
                        lambda: fetch_attachments(self._daemon(), self._context.blobs, attachments, place, limit),
                    )
                    inbound.media, inbound.untrusted = media, (*inbound.untrusted, *notes)
                if inbound.text.strip() or inbound.media or inbound.untrusted:
                    await self._hand_over(inbound)
            case SignalEdit(inbound=inbound):
                await offer(self._context, inbound, self._context.edited)
            case SignalDeletion(inbound=inbound):
                await offer(self._context, inbound, self._context.deleted)
            case IncomingReaction() as reaction if self._wants(reaction):
                await self._context.notice(reaction.inbound)
            case _:
                pass
        self._bookmark.move_to(event.id)

    async def _hand_over(self, inbound: Inbound) -> None:
        """Hands a message to the Gateway, and tells its sender that it was read if they may write."""
        taken = await offer(self._context, inbound)
        if taken and self._settings.send_read_receipts and inbound.peer.kind == "direct":
            read = {"recipient": _address_of_sender(inbound), "targetTimestamp": inbound.timestamp_ms, "type": "read"}
            try:
                await self._daemon().call("sendReceipt", {**read, **self._account()})
            except (RpcError, RpcUnreachable) as error:
                self._context.log.info("the read receipt was not sent: %s", error)

    def _wants(self, reaction: IncomingReaction) -> bool:
        match self._settings.reaction_notifications:
            case "off":
                return False
            case "own":
                return reaction.to_us
            case "all":
                return True
            case "allowlist":
                allowed = {str(entry).strip().lower() for entry in self._settings.reaction_allowlist}
                return "*" in allowed or reaction.inbound.sender.id.lower() in allowed

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        if message.act != "send":
            return await self._change(route, message)
        params: dict[str, Any] = {**self._styled(message), **self._account(), **recipient_params(route.to or "")}
        if message.media:
            params["attachments"] = await self._outgoing_media(message)
            if all(media.voice for media in message.media):
                # Daemons before 0.14.2 do not know this and send a file.
                params["voiceNote"] = True
        elif not message.text:
            raise SendFailed("there is nothing to send", permanent=True)
        return sent_of(await self._ask("send", {**params, **quote_params(route, message)}, SEND_TIMEOUT_S))

    async def _change(self, route: Route, message: OutgoingMessage) -> SendReceipt:
        """Edits or deletes an earlier message of ours, or reacts to one of anybody."""
        stamp, _, author = message.target_id.partition(":")
        if not (stamp.isascii() and stamp.isdigit()):
            raise SendFailed(f"{message.target_id!r} is no id of a Signal message", permanent=True)
        where = {**self._account(), **recipient_params(route.to or "")}
        match message.act:
            case "edit":
                call, params = "send", {**self._styled(message), "editTimestamp": int(stamp)}
            case "delete":
                call, params = "remoteDelete", {"targetTimestamp": int(stamp)}
            case _:
                if message.emoji and not self._settings.actions.reactions:
                    raise SendFailed("channels.signal.actions.reactions is off", permanent=True)
                people = recipient_params(message.target_author or author or route.to or "").get("recipient")
                if not people:
                    raise SendFailed("in a group the author of the message must be named", permanent=True)
                params = {"emoji": message.emoji, "targetAuthor": people[0], "targetTimestamp": int(stamp)}
                call, params = "sendReaction", {**params, **({"remove": True} if message.remove else {})}
        receipt = sent_of(await self._ask(call, {**params, **where}, SEND_TIMEOUT_S))
        return receipt if message.act == "edit" else SendReceipt(message_id=message.target_id)

    def _styled(self, message: OutgoingMessage) -> dict[str, Any]:
        rendered = render(message.text, "signal", tables=self._settings.markdown.tables)
        styles = [str(one) for one in rendered.ranges]
        return {"message": rendered.text, **({"text-style": styles} if styles else {})}

    async def _outgoing_media(self, message: OutgoingMessage) -> list[str]:
        return [
            await asyncio.to_thread(data_uri, data, media.mime_type, media.file_name)
            for media, data in await files_to_send(self._context, message, self._settings.media_max_mb)
        ]

    async def typing(self, route: Route, on: bool) -> None:
        target = recipient_params(route.to or "")
        if "username" not in target:
            await self._ask("sendTyping", {**target, **self._account(), **({} if on else {"stop": True})})

    async def probe(self) -> dict[str, Any]:
        try:
            version = await self._daemon().call("version")
        except (RpcError, RpcUnreachable, SendFailed) as error:
            return {"ok": False, "error": str(error)}
        return {"ok": True, "version": version.get("version") if isinstance(version, dict) else None}

    async def _ask(self, method: str, params: dict[str, Any], timeout_s: float = 10.0) -> Any:
        """Calls the daemon and turns its failures into ``SendFailed``."""
        try:
            return await self._daemon().call(method, params, timeout_s)
        except RpcUnreachable as error:
            raise SendFailed(str(error), reached=False, maybe_sent=error.sent) from None
        except RpcError as error:
            permanent = error.code in (_USER_ERROR, _UNTRUSTED_KEY, *_BAD_REQUEST)
            wait = _retry_after(error.data) if error.code == _RATE_LIMIT else None
            raise SendFailed(str(error), permanent=permanent, retry_after_s=wait) from None

    def _daemon(self) -> SignalRpc:
        if self._rpc is None:
            raise SendFailed("Signal is not running", reached=False)
        return self._rpc

    def _account(self) -> dict[str, str]:
        return {"account": self._own.number} if self._own.number else {}


def base_url(settings: SignalAccount) -> str:
    url = (settings.http_url or "").strip().rstrip("/")
    if url:
        return url if "://" in url else f"http://{url}"
    host = f"[{settings.http_host}]" if ":" in settings.http_host else settings.http_host
    return f"http://{host}:{settings.http_port}"


def _address_of_sender(inbound: Inbound) -> str:
    return inbound.sender.e164 or inbound.sender.id.removeprefix("uuid:")


def quote_params(route: Route, message: OutgoingMessage) -> dict[str, Any]:
    """The daemon's parameters for the message that this one quotes. Empty for an id that is none of Signal's.

    In a group the id names the author too. In a direct chat only the other person's messages have an id here.
    """
    stamp, _, author = (message.reply_to_id or "").partition(":")
    if not (stamp.isascii() and stamp.isdigit()):
        return {}
    try:
        target = recipient_params(author or route.to or "")
    except SendFailed:
        return {}
    people = target.get("recipient")
    return {"quoteTimestamp": int(stamp), "quoteAuthor": people[0]} if people else {}


def data_uri(data: bytes, mime_type: str, file_name: str | None) -> str:
    """An attachment as part of the request. So the daemon need not share a disk with us."""
    mime = mime_type if re.fullmatch(r"[\w.+-]+/[\w.+-]+", mime_type, re.ASCII) else "application/octet-stream"
    name = re.sub(r"[^\w.-]+", "_", file_name or "", flags=re.ASCII).strip("._")[-80:]
    named = f";filename={name}" if name else ""
    return f"data:{mime}{named};base64,{base64.b64encode(data).decode()}"


def sent_of(result: Any) -> SendReceipt:
    """The message's timestamp, which is its id. Raises ``SendFailed`` if the message reached nobody."""
    answer: dict[str, Any] = result if isinstance(result, dict) else {}
    listed = answer.get("results")
    results: list[dict[str, Any]] = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    outcomes = [str(entry.get("type") or "SUCCESS") for entry in results]
    if outcomes and "SUCCESS" not in outcomes:
        raise SendFailed(
            f"Signal did not take the message: {', '.join(sorted(set(outcomes)))}",
            permanent=all(outcome in _PERMANENT_FAILURES for outcome in outcomes),
            retry_after_s=_retry_after({"response": {"results": results}}),
        )
    timestamp = answer.get("timestamp")
    return SendReceipt(message_id=str(timestamp) if isinstance(timestamp, int) else "")


def _retry_after(data: Any) -> float | None:
    match data:
        case {"response": {"results": list(results)}}:
            waits = [entry.get("retryAfterSeconds") for entry in results if isinstance(entry, dict)]
            numbers = [float(wait) for wait in waits if isinstance(wait, int | float) and not isinstance(wait, bool)]
            return max(numbers, default=None)
        case _:
            return None
