"""One Signal account: receives through the event stream of a signal-cli daemon and sends through its JSON-RPC.

A received message goes ``run`` → ``_listen`` → ``_take`` → ``submit_event``. The daemon runs elsewhere, or is a child
process (``Daemon``).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import re
import signal
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext, NotConfigured, Reconnect, is_number, need_action, running
from openclaw.channels.http import call, new_session, retry_after_s
from openclaw.channels.media import NotFetched, check_size, files_to_send, kept_file
from openclaw.channels.signal import normalize_number, recipient_params
from openclaw.channels.submit import (
    MAX_TEXT,
    ChannelEvent,
    Deleted,
    Edited,
    Posted,
    Reacted,
    reaction_text,
    submit_event,
)
from openclaw.clock import Backoff, Clock
from openclaw.config.schema.channels import SignalAccount
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Route, Sender
from openclaw.inbound.prompt_text import display_name
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.text import redact_urls

CONNECT_S = 10.0
TIMEOUT_S = 10.0
FETCH_TIMEOUT_S = 60.0
SEND_TIMEOUT_S = 60.0
"""Longer than for other calls. After a timeout nobody knows whether the message was sent, and a retry may repeat it."""
MAX_ANSWER = 192 * 1024 * 1024
"""An attachment comes as base64 in one answer. Its own limit is checked before it is requested."""
MAX_EVENT = 4 * 1024 * 1024
IDLE_S = 60.0
"""The daemon sends something every 15 s. A stream that is silent for this long is dead."""
STABLE_S = 15.0
RECONNECT = Backoff(initial_s=1.0, max_s=10.0)
READY_POLL_S = 0.15
END_S = 10.0
MAX_LINE = 2000
_RATE_LIMIT = -5
_PERMANENT_CODES = frozenset({-1, -4, -32700, -32600, -32601, -32602})
"""The user's error, a key that is not trusted, and requests that the daemon does not understand."""
_PERMANENT_FAILURES = frozenset({"UNREGISTERED_FAILURE", "IDENTITY_FAILURE", "INVALID_PRE_KEY_FAILURE"})


class SignalChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: SignalAccount = context.account.settings
        self._own = OwnIdentity(normalize_number(self._settings.account or ""))
        self._bookmark = context.bookmark("last-event")
        self._client: SignalClient | None = None

    # Receiving

    async def run(self) -> None:
        async with new_session() as http:
            self._client = client = SignalClient(http, base_url(self._settings))
            auto_start = self._settings.auto_start
            if not (auto_start if auto_start is not None else not self._settings.http_url):
                await self._listen(client)
                return
            daemon = Daemon(self._settings, client, self._context.clock, self._context.log)
            await daemon.start()
            try:
                await self._listen_beside(daemon, client)
            finally:
                await daemon.stop()

    async def _listen_beside(self, daemon: Daemon, client: SignalClient) -> None:
        """Listens until the daemon ends, which raises ``DaemonFailed``."""
        listening = asyncio.create_task(self._listen(client))
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

    async def _listen(self, client: SignalClient) -> None:
        """Reads the event stream until cancelled, and reconnects when it is lost."""
        await self._bookmark.load()
        reconnect = Reconnect(self._context, RECONNECT, STABLE_S)
        try:
            while True:
                try:
                    async with aclosing(client.events(self._settings.account, self._bookmark.last_id)) as events:
                        await anext(events)
                        reconnect.connected()
                        async for event in events:
                            if event.data:
                                await self._take(event)
                except StreamLost as lost:
                    await reconnect.failed(str(lost))
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
        found = interpret(received, self._own, self._context.account.id)
        if isinstance(found, Posted) and self._settings.ignore_attachments:
            found = Posted(inbound=found.inbound) if found.inbound.says_something else None
        if found is not None:
            inbound = found.inbound
            taken = await submit_event(self._context, found, partial(self._fetch, inbound))
            if taken and self._settings.send_read_receipts and inbound.peer.kind == "direct":
                await self._mark_read(inbound)
        self._bookmark.move_to(event.id)

    async def _mark_read(self, inbound: Inbound) -> None:
        read = {"recipient": _address_of(inbound.sender), "targetTimestamp": inbound.timestamp_ms, "type": "read"}
        try:
            await self._call("sendReceipt", read)
        except SendFailed as failure:
            self._context.log.info("the read receipt was not sent: %s", failure)

    async def _fetch(self, inbound: Inbound, attachment: SignalAttachment) -> Media:
        if not attachment.id:
            raise NotFetched("the daemon has not kept it")
        group = inbound.peer.kind == "group"
        origin = {"groupId": inbound.peer.id} if group else {"recipient": _address_of(inbound.sender)}
        try:
            answer = await self._call("getAttachment", {"id": attachment.id, **origin}, FETCH_TIMEOUT_S)
        except SendFailed as failure:
            raise NotFetched(str(failure)) from None
        encoded = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(encoded, str):
            raise NotFetched("the daemon gave no data")
        try:
            data = await asyncio.to_thread(base64.b64decode, encoded, validate=True)
        except binascii.Error:
            raise NotFetched("the daemon's data is not base64") from None
        check_size(self._context, len(data))
        return await kept_file(self._context, data, attachment)

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        if message.act != "send":
            return await self._change(route, message)
        params = {**self._styled(message), **recipient_params(route.to or ""), **quote_params(route, message)}
        if message.media:
            params["attachments"] = [
                await asyncio.to_thread(data_uri, data, media.mime_type, media.file_name)
                for media, data in await files_to_send(self._context, message)
            ]
            if all(media.voice for media in message.media):
                # Daemons before 0.14.2 do not know this and send a file.
                params["voiceNote"] = True
        return sent_of(await self._call("send", params, SEND_TIMEOUT_S))

    async def _change(self, route: Route, message: OutgoingMessage) -> SendReceipt:
        """Edits or deletes an earlier message of ours, or reacts to one of anybody."""
        stamp, _, author = message.target_id.partition(":")
        if not is_number(stamp):
            raise SendFailed(f"{message.target_id!r} is no id of a Signal message", permanent=True)
        where = recipient_params(route.to or "")
        match message.act:
            case "edit":
                method, params = "send", {**self._styled(message), "editTimestamp": int(stamp)}
            case "delete":
                method, params = "remoteDelete", {"targetTimestamp": int(stamp)}
            case _:
                need_action(self._context, "reactions", self._settings.actions.reactions or not message.emoji)
                people = recipient_params(message.target_author or author or route.to or "").get("recipient")
                if not people:
                    raise SendFailed("in a group the author of the message must be named", permanent=True)
                method = "sendReaction"
                params = {"emoji": message.emoji, "targetAuthor": people[0], "targetTimestamp": int(stamp)}
                if message.remove:
                    params["remove"] = True
        receipt = sent_of(await self._call(method, {**params, **where}, SEND_TIMEOUT_S))
        return receipt if message.act == "edit" else SendReceipt(message_id=message.target_id)

    def _styled(self, message: OutgoingMessage) -> dict[str, Any]:
        rendered = render(message.text, "signal", tables=self._settings.markdown.tables)
        styles = [str(one) for one in rendered.ranges]
        return {"message": rendered.text, **({"text-style": styles} if styles else {})}

    async def typing(self, route: Route, on: bool) -> None:
        target = recipient_params(route.to or "")
        if "username" not in target:
            await self._call("sendTyping", target if on else {**target, "stop": True})

    async def probe(self) -> dict[str, Any]:
        version = await running(self._client, "Signal").call("version")
        return {"ok": True, "version": version.get("version") if isinstance(version, dict) else None}

    async def _call(self, method: str, params: dict[str, Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Calls the daemon for our account. Raises ``SendFailed``."""
        account = {"account": self._own.number} if self._own.number else {}
        return await running(self._client, "Signal").call(method, {**params, **account}, timeout_s)


def _address_of(sender: Sender) -> str:
    return sender.e164 or sender.id.removeprefix("uuid:")


def quote_params(route: Route, message: OutgoingMessage) -> dict[str, Any]:
    """The daemon's parameters for the message that this one quotes. Empty for an id that is none of Signal's.

    In a group the id names the author too. In a direct chat only the other person's messages have an id here.
    """
    stamp, _, author = (message.reply_to_id or "").partition(":")
    if not is_number(stamp):
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


# What an event means


class Mention(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    start: int = 0
    length: int = 0
    name: str | None = None
    number: str | None = None
    uuid: str | None = None


class SignalAttachment(msgspec.Struct, frozen=True, kw_only=True):
    id: str | None = None
    mime_type: str | None = msgspec.field(default=None, name="contentType")
    name: str | None = msgspec.field(default=None, name="filename")
    size: int | None = None


class Quote(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: int | None = None
    author: str | None = None
    author_number: str | None = None
    author_uuid: str | None = None
    text: str | None = None


class Reaction(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    emoji: str = ""
    target_author: str | None = None
    target_author_number: str | None = None
    target_author_uuid: str | None = None
    target_sent_timestamp: int = 0
    is_remove: bool = False


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    group_id: str
    group_name: str | None = None


class RemoteDelete(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    timestamp: int


class DataMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    timestamp: int | None = None
    message: str | None = None
    mentions: tuple[Mention, ...] | None = None
    attachments: tuple[SignalAttachment, ...] | None = None
    quote: Quote | None = None
    reaction: Reaction | None = None
    group_info: GroupInfo | None = None
    remote_delete: RemoteDelete | None = None


class EditMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target_sent_timestamp: int | None = None
    data_message: DataMessage | None = None


class SignalEnvelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    source: str | None = None
    source_number: str | None = None
    source_uuid: str | None = None
    source_name: str | None = None
    timestamp: int | None = None
    data_message: DataMessage | None = None
    edit_message: EditMessage | None = None
    sync_message: Any = None


class ReceiveEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    account: str | None = None
    envelope: SignalEnvelope | None = None


decode_event = msgspec.json.Decoder(ReceiveEvent).decode
"""Decodes an event and ignores unknown fields. Raises ``msgspec.MsgspecError``."""


class OwnIdentity(msgspec.Struct, frozen=True):
    """The number and the uuid of our own account."""

    number: str | None
    uuid: str | None = None

    def is_me(self, *names: str | None) -> bool:
        mine = {self.number, self.uuid and self.uuid.lower()} - {None}
        return any(name is not None and (name in mine or name.lower() in mine) for name in names)


def with_learned_uuid(own: OwnIdentity, event: ReceiveEvent) -> OwnIdentity:
    """Our identity with our uuid, if the event names it beside our number. Mentions may carry only the uuid."""
    envelope = event.envelope
    if own.uuid is not None or own.number is None or envelope is None:
        return own
    data = envelope.data_message
    pairs = [(envelope.source_number, envelope.source_uuid)]
    if data is not None:
        pairs += [(mention.number, mention.uuid) for mention in data.mentions or ()]
        pairs += [(data.quote.author_number, data.quote.author_uuid)] if data.quote else []
        pairs += [(data.reaction.target_author_number, data.reaction.target_author_uuid)] if data.reaction else []
    found = next((uuid for number, uuid in pairs if uuid and number == own.number), None)
    return OwnIdentity(own.number, found) if found else own


def interpret(event: ReceiveEvent, own: OwnIdentity, account_id: str) -> ChannelEvent | None:
    """What an event says. None for receipts, typing, calls and our own messages."""
    envelope = event.envelope
    if envelope is None or envelope.sync_message is not None:
        return None
    edit = envelope.edit_message
    data = envelope.data_message or (edit.data_message if edit else None)
    sender = _sender(envelope)
    if data is None or sender is None or own.is_me(envelope.source_number, envelope.source_uuid, envelope.source):
        return None
    inbound = _inbound(envelope, data, sender, own, account_id)
    if data.remote_delete is not None:
        inbound.message_id = _message_id(data.remote_delete.timestamp, sender.id, data.group_info)
        return Deleted(inbound=inbound)
    if edit is not None and edit.target_sent_timestamp and inbound.says_something:
        inbound.revision = str(inbound.timestamp_ms)
        inbound.message_id = _message_id(edit.target_sent_timestamp, sender.id, data.group_info)
        return Edited(inbound=inbound)
    if data.reaction is not None:
        return _reaction(inbound, data.reaction, own, data.group_info)
    if not inbound.says_something and not data.attachments:
        return None
    return Posted(inbound=inbound, files=data.attachments or ())


def _sender(envelope: SignalEnvelope) -> Sender | None:
    number = normalize_number(envelope.source_number or envelope.source or "")
    uuid = envelope.source_uuid
    if number is None and not uuid:
        return None
    # People may be listed by either. Those who hide their number have only the uuid.
    known = (f"uuid:{uuid}", uuid) if uuid else ()
    name = (envelope.source_name or "").strip() or None
    return Sender(id=number or f"uuid:{uuid}", name=name, e164=number, other_ids=known)


def _author_id(number: str | None, uuid: str | None, name: str | None) -> str | None:
    """The id that the author of a message has as its sender. ``name`` is whatever the daemon calls the person."""
    return normalize_number(number or name or "") or (f"uuid:{uuid}" if uuid else name)


def _message_id(timestamp: int, author_id: str | None, group: GroupInfo | None) -> str:
    """A timestamp identifies a message only together with its author. In a direct chat the author is the peer."""
    return f"{timestamp}:{author_id}" if group and author_id else str(timestamp)


def _inbound(envelope: SignalEnvelope, data: DataMessage, sender: Sender, own: OwnIdentity, account_id: str) -> Inbound:
    group = data.group_info
    timestamp = data.timestamp or envelope.timestamp or 0
    address = sender.e164 or sender.id.removeprefix("uuid:")
    mentions = data.mentions or ()
    return Inbound(
        channel="signal",
        account_id=account_id,
        message_id=_message_id(timestamp, sender.id, group),
        peer=Peer(kind="group", id=group.group_id) if group else Peer(kind="direct", id=sender.id),
        sender=sender,
        to=f"group:{group.group_id}" if group else f"signal:{address}",
        text=with_mentions((data.message or "")[:MAX_TEXT], mentions, own),
        timestamp_ms=timestamp,
        mentioned=any(own.is_me(mention.number, mention.uuid) for mention in mentions),
        mentions_others=any(not own.is_me(mention.number, mention.uuid) for mention in mentions),
        can_detect_mention=own.number is not None or own.uuid is not None,
        quoted=_quoted(data.quote, own, group),
        group_subject=group.group_name if group else None,
    )


def _quoted(quote: Quote | None, own: OwnIdentity, group: GroupInfo | None) -> Quoted | None:
    if quote is None:
        return None
    author = _author_id(quote.author_number, quote.author_uuid, quote.author)
    return Quoted(
        id=_message_id(quote.id, author, group) if quote.id else None,
        sender=author,
        text=quote.text or "",
        from_us=own.is_me(quote.author_number, quote.author_uuid, quote.author),
    )


def _reaction(inbound: Inbound, reaction: Reaction, own: OwnIdentity, group: GroupInfo | None) -> Reacted | None:
    if not reaction.emoji.strip() or not reaction.target_sent_timestamp:
        return None
    to_us = own.is_me(reaction.target_author_number, reaction.target_author_uuid, reaction.target_author)
    author = _author_id(reaction.target_author_number, reaction.target_author_uuid, reaction.target_author)
    whose = "your message" if to_us else f"the message of {display_name(author or 'somebody')}"
    target = _message_id(reaction.target_sent_timestamp, author, group)
    inbound.text = reaction_text(inbound, reaction.emoji, whose, target, removed=reaction.is_remove)
    return Reacted(inbound=inbound, to_us=to_us)


def with_mentions(text: str, mentions: tuple[Mention, ...], own: OwnIdentity) -> str:
    """The text with names in place of mentions. A mention of us at the beginning or the end is left out."""
    if not mentions:
        return text
    units = text.encode("utf-16-le", "surrogatepass")
    pieces: list[str] = []
    position, begun = 0, False
    last = len(text.rstrip().encode("utf-16-le", "surrogatepass"))
    for mention in sorted(mentions, key=lambda mention: mention.start):
        start, end = 2 * mention.start, 2 * (mention.start + mention.length)
        if start < position or end > len(units) or mention.length < 1:
            continue
        before = _text(units[position:start])
        mine = own.is_me(mention.number, mention.uuid)
        begun = begun or bool(before.strip())
        edge = not begun or end >= last
        name = mention.name if mention.name and mention.name not in (mention.number, mention.uuid) else None
        shown = display_name(name or mention.number or mention.uuid or "somebody")
        pieces += [before, "" if mine and edge else f"@{shown}"]
        begun = begun or not (mine and edge)
        position = end
    joined = "".join([*pieces, _text(units[position:])])
    return joined.strip() if any(own.is_me(mention.number, mention.uuid) for mention in mentions) else joined


def _text(units: bytes) -> str:
    return units.decode("utf-16-le", "replace")


# The daemon


def base_url(settings: SignalAccount) -> str:
    url = (settings.http_url or "").strip().rstrip("/")
    if url:
        return url if "://" in url else f"http://{url}"
    host = f"[{settings.http_host}]" if ":" in settings.http_host else settings.http_host
    return f"http://{host}:{settings.http_port}"


class StreamLost(Exception):
    """The stream ended or could not be opened. The message says why."""


class ServerEvent(msgspec.Struct, frozen=True):
    """One event of the stream. A keep-alive has empty ``data``."""

    data: bytes = b""
    id: str = ""


class SignalClient:
    """The HTTP interface of a daemon: JSON-RPC calls and the event stream."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
        """Returns the result, or None if there is none. Raises ``SendFailed``."""
        request: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "id": str(uuid.uuid4())}
        if params is not None:
            request["params"] = params
        address = f"{self._url}/api/v1/rpc"
        response, answer = await call(
            self._http, "signal-cli", "POST", address, json=request, timeout_s=timeout_s, limit=MAX_ANSWER
        )
        if response.status == 201:
            return None
        match answer:
            case {"error": {"code": int(code), "message": str(message), **more}}:
                raise SendFailed(
                    redact_urls(f"signal-cli {method}: {message} (code {code})"),
                    permanent=code in _PERMANENT_CODES,
                    retry_after_s=_retry_after(more.get("data")) if code == _RATE_LIMIT else None,
                )
            case {"jsonrpc": "2.0", "id": answered, "result": result} if answered == request["id"]:
                return result
            case _:
                problem = f"the answer (HTTP {response.status}) is no JSON-RPC response to this request"
                raise SendFailed(
                    f"signal-cli {method}: {problem}; is this really a signal-cli daemon?",
                    # A server between us and the daemon may have lost its answer. A 4xx means that nothing was done.
                    maybe_sent=not 400 <= response.status < 500,
                    retry_after_s=retry_after_s(response.headers),
                )

    async def check(self, timeout_s: float) -> bool:
        """Whether the daemon is up."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.get(f"{self._url}/api/v1/check") as response:
                    return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False

    async def events(self, account: str | None, last_id: str) -> AsyncGenerator[ServerEvent]:
        """Yields the events of the stream. The first one has no data and says that the stream is open.

        It always ends with ``StreamLost``. Newer daemons begin after ``last_id``. Dedupe drops repeated events.
        """
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=IDLE_S)
        params = {"account": account} if account else {}
        address = f"{self._url}/api/v1/events"
        try:
            async with self._http.get(address, params=params, headers=headers, timeout=timeout) as response:
                if response.status == 400:
                    raise StreamLost(f"the daemon does not know the account {account}")
                if response.status != 200:
                    raise StreamLost(f"the daemon answered {response.status} {response.reason or ''}".strip())
                yield ServerEvent()
                async for event in _parse(response.content):
                    yield event
        except aiohttp.ConnectionTimeoutError:
            raise StreamLost(f"the daemon takes no connection within {CONNECT_S:g} s") from None
        except TimeoutError:
            raise StreamLost(f"nothing was heard for {IDLE_S:g} s") from None
        except aiohttp.ClientError as error:
            raise StreamLost(str(error) or type(error).__name__) from None
        raise StreamLost("the daemon closed the stream")


async def _parse(content: aiohttp.StreamReader) -> AsyncIterator[ServerEvent]:
    """Reads server-sent events with their ids, which ``SseParser`` in ``models/http.py`` passes over.

    A comment is an event without data: it shows that the daemon lives.
    """
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


class DaemonFailed(Exception):
    """The daemon did not start, or it ended."""


def arguments(settings: SignalAccount) -> list[str]:
    account = ["-a", settings.account] if settings.account else []
    listen = f"{settings.http_host}:{settings.http_port}"
    options = ["--http", listen, "--no-receive-stdout"]
    if settings.receive_mode:
        options += ["--receive-mode", settings.receive_mode]
    if settings.ignore_attachments:
        options.append("--ignore-attachments")
    if settings.ignore_stories:
        options.append("--ignore-stories")
    return [str(Path(settings.cli_path).expanduser()), *account, "daemon", *options]


class Daemon:
    """Our own signal-cli process. It runs as long as the channel."""

    def __init__(self, settings: SignalAccount, client: SignalClient, clock: Clock, log: logging.Logger) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process and returns when it answers."""
        command = arguments(self._settings)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=64 * 1024,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise NotConfigured(
                f"{command[0]} cannot be started ({error.strerror}). Install signal-cli, name it in"
                " channels.signal.cliPath, or set channels.signal.httpUrl to a daemon that runs elsewhere."
            ) from None
        self._reader = asyncio.create_task(self._pass_on_output(self._process))
        try:
            await self._until_ready(self._process)
        except BaseException:
            await self.stop()
            raise

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        allowed = self._settings.startup_timeout_ms / 1000
        deadline = self._clock.monotonic() + allowed
        while process.returncode is None:
            if await self._client.check(timeout_s=1.0):
                return
            if self._clock.monotonic() >= deadline:
                raise DaemonFailed(f"signal-cli was not ready after {allowed:g} s (channels.signal.startupTimeoutMs)")
            await self._clock.sleep(READY_POLL_S)
        raise DaemonFailed(f"signal-cli ended at once with code {process.returncode}; its log says why")

    async def ended(self) -> str:
        """Waits until the process ends by itself and returns how it ended."""
        assert self._process is not None
        return f"signal-cli ended with code {await self._process.wait()}"

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                _signal_group(process.pid, signal.SIGKILL)
                await process.wait()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _pass_on_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:
                continue  # The line is longer than the reader's limit; its rest comes next.
            if not raw:
                return
            line = raw.decode(errors="replace").strip()[:MAX_LINE]
            serious = any(word in line for word in ("ERROR", "WARN", "Exception", "Failed"))
            self._log.log(logging.WARNING if serious else logging.DEBUG, "signal-cli: %s", line)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
