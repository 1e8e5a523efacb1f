"""One Signal account, through a signal-cli daemon."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext, MessageRef
from openclaw.channels.signal.attachments import fetch_attachments
from openclaw.channels.signal.bookmark import Bookmark
from openclaw.channels.signal.daemon import Daemon, DaemonFailed
from openclaw.channels.signal.envelope import Arrived, Own, Reacted, decode_event, learn, understand
from openclaw.channels.signal.events import ServerEvent, StreamLost, read_events
from openclaw.channels.signal.outgoing import data_uri, failure_of, sent_of
from openclaw.channels.signal.rpc import RpcError, RpcUnreachable, SignalRpc
from openclaw.channels.signal.target import normalize_number, recipient_params
from openclaw.config.schema.channels import SignalAccount
from openclaw.inbound.message import Inbound, Route
from openclaw.outbound.backoff import Backoff
from openclaw.outbound.part import Part, SendFailed, Sent

RECONNECT = Backoff(initial_s=1.0, max_s=10.0)
OFFER_AGAIN = Backoff(initial_s=0.5, max_s=8.0, jitter=0.0)
OFFERS = 5
SEND_TIMEOUT_S = 60.0
"""Longer than other calls: a send given up too early is a message in doubt, and doubt is how duplicates are made."""


def base_url(settings: SignalAccount) -> str:
    url = (settings.http_url or "").strip().rstrip("/")
    if url:
        return url if "://" in url else f"http://{url}"
    host = f"[{settings.http_host}]" if ":" in settings.http_host else settings.http_host
    return f"http://{host}:{settings.http_port}"


class SignalChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: SignalAccount = context.account.settings
        self._own = Own(normalize_number(self._settings.account or ""))
        self._bookmark = Bookmark(context.state_dir / "last-event", context.clock)
        self._rpc: SignalRpc | None = None

    # Receiving

    async def run(self) -> None:
        url = base_url(self._settings)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            self._rpc = SignalRpc(http, url)
            auto_start = self._settings.auto_start
            if not (auto_start if auto_start is not None else not self._settings.http_url):
                await self._listen(http, url)
            daemon = Daemon(self._settings, self._rpc, self._context.clock, self._context.log)
            await daemon.start()
            try:
                await self._listen_beside(daemon, http, url)
            finally:
                await daemon.stop()

    async def _listen_beside(self, daemon: Daemon, http: aiohttp.ClientSession, url: str) -> None:
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
        await self._bookmark.load()
        try:
            await self._hear(http, url)
        finally:
            await self._bookmark.close()

    async def _hear(self, http: aiohttp.ClientSession, url: str) -> None:
        attempt = 0
        while True:
            try:
                async with aclosing(read_events(http, url, self._settings.account, self._bookmark.last_id)) as events:
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

    async def _take(self, event: ServerEvent) -> None:
        """One event, to its end: only then does the bookmark move on."""
        try:
            received = decode_event(event.data)
        except msgspec.MsgspecError as error:
            self._context.log.warning("an event of signal-cli was not understood and is passed over: %s", error)
            return
        mine = self._own.number
        if mine is not None and received.account not in (None, mine) and (received.account or "").startswith("+"):
            return  # A daemon with several accounts that did not sort them for us.
        self._own = learn(received, self._own)
        match understand(received, self._own, self._context.account.id):
            case Arrived(inbound=inbound, attachments=attachments):
                if attachments and not self._settings.ignore_attachments:
                    await self._attach(inbound, attachments)
                if inbound.text.strip() or inbound.media or inbound.untrusted:
                    await self._offer(inbound)
            case Reacted() as reacted if self._wants(reacted):
                await self._context.notice(reacted.inbound)
            case _:
                pass
        self._bookmark.move_to(event.id)

    async def _attach(self, inbound: Inbound, attachments: tuple[Any, ...]) -> None:
        origin = (
            {"groupId": inbound.peer.id} if inbound.peer.kind == "group" else {"recipient": self._sender_of(inbound)}
        )
        limit = int(self._settings.media_max_mb * 1024 * 1024)
        media, notes = await fetch_attachments(
            self._daemon(), self._context.blobs, attachments, {**origin, **self._account()}, limit
        )
        inbound.media, inbound.untrusted = media, (*inbound.untrusted, *notes)

    async def _offer(self, inbound: Inbound) -> None:
        """Until it is on disk. While the disk fails, nothing is passed over; a message that itself cannot be handled
        is given up after some tries, or it would keep everyone else's out.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                taken = await self._context.receive(inbound)
                break
            except Exception as error:
                self._context.log.exception("message %s could not be taken (try %d)", inbound.message_id, attempt)
                if attempt >= OFFERS and not isinstance(error, OSError):
                    return
            await self._context.clock.sleep(OFFER_AGAIN.delay_s(attempt, random.random))
        if taken is not False and self._settings.send_read_receipts and inbound.peer.kind == "direct":
            await self._confirm_read(inbound)

    async def _confirm_read(self, inbound: Inbound) -> None:
        params = {"recipient": self._sender_of(inbound), "targetTimestamp": inbound.timestamp_ms, "type": "read"}
        try:
            await self._daemon().call("sendReceipt", {**params, **self._account()})
        except (RpcError, RpcUnreachable) as error:
            self._context.log.info("the read receipt was not sent: %s", error)

    def _wants(self, reacted: Reacted) -> bool:
        match self._settings.reaction_notifications:
            case "off":
                return False
            case "own":
                return reacted.to_us
            case "all":
                return True
            case "allowlist":
                allowed = {str(entry).strip().lower() for entry in self._settings.reaction_allowlist}
                return "*" in allowed or reacted.sender_id.lower() in allowed

    # Sending

    async def send(self, route: Route, part: Part, key: str) -> Sent:
        params: dict[str, Any] = {"message": part.text, **self._account(), **recipient_params(route.to or "")}
        if part.media:
            params["attachments"] = await self._outgoing_media(part)
        elif not part.text:
            raise SendFailed("there is nothing to send", permanent=True)
        return sent_of(await self._ask("send", params, SEND_TIMEOUT_S))

    async def _outgoing_media(self, part: Part) -> list[str]:
        uris: list[str] = []
        for media in part.media:
            data = await self._context.blobs.get(media.blob)
            if data is None:
                raise SendFailed(f"the file {media.file_name or media.blob[:12]} is gone", permanent=True)
            limit = self._settings.media_max_mb
            if len(data) > limit * 1024 * 1024:
                name = media.file_name or media.mime_type
                raise SendFailed(f"{name} is larger than channels.signal.mediaMaxMb ({limit:g})", permanent=True)
            uris.append(await asyncio.to_thread(data_uri, data, media.mime_type, media.file_name))
        return uris

    async def typing(self, route: Route, on: bool) -> None:
        target = recipient_params(route.to or "")
        if "username" not in target:
            await self._ask("sendTyping", {**target, **self._account(), **({} if on else {"stop": True})})

    async def react(self, route: Route, to: MessageRef, emoji: str, *, remove: bool = False) -> None:
        target = recipient_params(route.to or "")
        timestamp, _, sender = to.id.partition(":")
        author = recipient_params(sender or to.sender or route.to or "").get("recipient")
        if not author or not timestamp.isdigit():
            raise SendFailed("a Signal reaction needs the message's timestamp and its author", permanent=True)
        params: dict[str, Any] = {"emoji": emoji, "targetAuthor": author[0], "targetTimestamp": int(timestamp)}
        await self._ask("sendReaction", {**params, **target, **self._account(), **({"remove": True} if remove else {})})

    async def probe(self) -> dict[str, Any]:
        try:
            version = await self._daemon().call("version")
        except (RpcError, RpcUnreachable, SendFailed) as error:
            return {"ok": False, "error": str(error)}
        return {"ok": True, "version": version.get("version") if isinstance(version, dict) else None}

    async def _ask(self, method: str, params: dict[str, Any], timeout_s: float = 10.0) -> Any:
        try:
            return await self._daemon().call(method, params, timeout_s)
        except (RpcError, RpcUnreachable) as error:
            raise failure_of(error) from None

    def _daemon(self) -> SignalRpc:
        if self._rpc is None:
            raise SendFailed("Signal is not running", reached=False)
        return self._rpc

    def _account(self) -> dict[str, str]:
        return {"account": self._own.number} if self._own.number else {}

    def _sender_of(self, inbound: Inbound) -> str:
        return inbound.sender.e164 or inbound.sender.id.removeprefix("uuid:")
