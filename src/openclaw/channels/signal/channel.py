"""One Signal account: receives from a signal-cli daemon's event stream and sends through its JSON-RPC.

A received message goes ``run`` → ``_listen`` → ``_handle`` → ``submit_event``. The daemon runs elsewhere or as a child
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
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext, NotConfigured, Reconnect, is_number, require_action, require_running
from openclaw.channels.http import call, converted, new_session, retry_after_s
from openclaw.channels.media import NotFetched, check_size, files_to_send, store_file
from openclaw.channels.signal import normalize_number, recipient_params
from openclaw.channels.submit import (
    MAX_TEXT,
    ChannelEvent,
    Deleted,
    Edited,
    Posted,
    Reacted,
    cancel_all,
    reaction_text,
    submit_event,
)
from openclaw.clock import Backoff, Clock
from openclaw.config.schema.channels import SignalAccount
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Sender
from openclaw.inbound.prompt_text import display_name
from openclaw.messages import Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.text import redact_urls

CONNECT_S = 10.0
TIMEOUT_S = 10.0
FETCH_TIMEOUT_S = 60.0
SEND_TIMEOUT_S = 60.0
"""Longer than for other calls: after a timeout the message may have been sent, and a retry may repeat it."""
MAX_RESPONSE = 192 * 1024 * 1024
"""An attachment arrives as base64 in one response. Its size is checked before it is requested."""
MAX_EVENT = 4 * 1024 * 1024
IDLE_S = 60.0
"""The daemon sends a keep-alive every 15 s, so a stream that is silent for this long is dead."""
STABLE_S = 15.0
RECONNECT = Backoff(initial_s=1.0, max_s=10.0)
READY_POLL_S = 0.15
END_S = 10.0
MAX_LINE = 2000
_RATE_LIMIT = -5
_PERMANENT_CODES = frozenset({-1, -4, -32700, -32600, -32601, -32602})
"""A user error, an untrusted key, and requests that the daemon rejects as invalid."""
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
                await self._listen_while_running(daemon, client)
            finally:
                await daemon.stop()

    async def _listen_while_running(self, daemon: Daemon, client: SignalClient) -> None:
        """Listen until the daemon exits, which raises ``DaemonFailed``."""
        listening = asyncio.create_task(self._listen(client))
        exited = asyncio.create_task(daemon.exited())
        try:
            await asyncio.wait({listening, exited}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                raise DaemonFailed(exited.result())
            await listening
        finally:
            await cancel_all({listening, exited})

    async def _listen(self, client: SignalClient) -> None:
        """Read the event stream until cancelled, reconnecting as needed."""
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
                                await self._handle(event)
                except StreamLost as lost:
                    await reconnect.failed(str(lost))
        finally:
            await self._bookmark.close()

    async def _handle(self, event: ServerEvent) -> None:
        """Submit one event, then advance the bookmark."""
        try:
            received = decode_event(event.data)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._context.log.warning("skipped an invalid event from signal-cli: %s", error)
            return
        mine = self._own.number
        if mine is not None and received.account not in (None, mine) and (received.account or "").startswith("+"):
            return  # A daemon with several accounts sends the events of all of them.
        self._own = with_learned_uuid(self._own, received)
        interpreted = interpret(received, self._own, self._context.account.id)
        if isinstance(interpreted, Posted) and self._settings.ignore_attachments:
            interpreted = Posted(inbound=interpreted.inbound) if interpreted.inbound.has_content else None
        if interpreted is not None:
            inbound = interpreted.inbound
            admitted = await submit_event(self._context, interpreted, partial(self._fetch, inbound))
            if admitted and self._settings.send_read_receipts and inbound.peer.kind == "direct":
                await self._mark_read(inbound)
        self._bookmark.move_to(event.id)

    async def _mark_read(self, inbound: Inbound) -> None:
        receipt = {"recipient": _address_of(inbound.sender), "targetTimestamp": inbound.timestamp_ms, "type": "read"}
        try:
            await self._call("sendReceipt", receipt)
        except SendFailed as failure:
            self._context.log.info("the read receipt was not sent: %s", failure)

    async def _fetch(self, inbound: Inbound, attachment: SignalAttachment) -> Media:
        if not attachment.id:
            raise NotFetched("the daemon did not store it")
        group = inbound.peer.kind == "group"
        origin = {"groupId": inbound.peer.id} if group else {"recipient": _address_of(inbound.sender)}
        try:
            result = await self._call("getAttachment", {"id": attachment.id, **origin}, FETCH_TIMEOUT_S)
        except SendFailed as failure:
            raise NotFetched(str(failure)) from None
        content = converted(result, AttachmentContent)
        if content.data is None:
            raise NotFetched("the daemon returned no data")
        try:
            data = await asyncio.to_thread(base64.b64decode, content.data, validate=True)
        except binascii.Error:
            raise NotFetched("the daemon's data is not base64") from None
        check_size(self._context, len(data))
        return await store_file(self._context, data, attachment)

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        if message.act != "send":
            return await self._change(route, message)
        params: dict[str, object] = {
            **self._styled(message),
            **recipient_params(route.to),
            **quote_params(route, message),
        }
        if message.media:
            params["attachments"] = [
                await asyncio.to_thread(data_uri, data, media.mime_type, media.file_name)
                for media, data in await files_to_send(self._context, message)
            ]
            if all(media.voice for media in message.media):
                # Daemons before 0.14.2 ignore this and send a file.
                params["voiceNote"] = True
        return receipt_of(await self._call("send", params, SEND_TIMEOUT_S))

    async def _change(self, route: Route, message: OutgoingMessage) -> SendReceipt:
        """Edit or delete one of the agent's messages, or react to any message."""
        stamp, _, author = message.target_id.partition(":")
        if not is_number(stamp):
            raise SendFailed(f"{message.target_id!r} is not a Signal message id", permanent=True)
        recipient = recipient_params(route.to)
        params: dict[str, object]
        match message.act:
            case "edit":
                method, params = "send", {**self._styled(message), "editTimestamp": int(stamp)}
            case "delete":
                method = "remoteDelete"
                params = {"targetTimestamp": int(stamp)}
            case _:
                require_action(self._context, "reactions", self._settings.actions.reactions or not message.emoji)
                authors = recipient_params(message.target_author or author or route.to).get("recipient")
                if not authors:
                    raise SendFailed("in a group, a reaction must name the author of the message", permanent=True)
                method = "sendReaction"
                params = {"emoji": message.emoji, "targetAuthor": authors[0], "targetTimestamp": int(stamp)}
                if message.remove:
                    params["remove"] = True
        receipt = receipt_of(await self._call(method, {**params, **recipient}, SEND_TIMEOUT_S))
        return receipt if message.act == "edit" else SendReceipt(message_id=message.target_id)

    def _styled(self, message: OutgoingMessage) -> Mapping[str, object]:
        rendered = render(message.text, "signal", tables=self._settings.markdown.tables)
        styles = [str(style) for style in rendered.ranges]
        return {"message": rendered.text, **({"text-style": styles} if styles else {})}

    async def typing(self, route: Route, on: bool) -> None:
        target = recipient_params(route.to)
        if "username" not in target:
            await self._call("sendTyping", target if on else {**target, "stop": True})

    async def probe(self) -> Mapping[str, object]:
        result = await require_running(self._client, "Signal").call("version")
        return {"ok": True, "version": converted(result, DaemonVersion).version}

    async def _call(self, method: str, params: Mapping[str, object], timeout_s: float = TIMEOUT_S) -> object:
        """Call the daemon on behalf of this account. Raises ``SendFailed``."""
        account = {"account": self._own.number} if self._own.number else {}
        return await require_running(self._client, "Signal").call(method, {**params, **account}, timeout_s)


def _address_of(sender: Sender) -> str:
    return sender.e164 or sender.id.removeprefix("uuid:")


def quote_params(route: Route, message: OutgoingMessage) -> Mapping[str, object]:
    """Return the daemon's parameters for the quoted message. Empty if its id is not one of Signal.

    In a group the id includes the author. In a direct chat only the other person's messages have an id here.
    """
    stamp, _, author = (message.reply_to_id or "").partition(":")
    if not is_number(stamp):
        return {}
    try:
        authors = recipient_params(author or route.to).get("recipient")
    except SendFailed:
        return {}
    return {"quoteTimestamp": int(stamp), "quoteAuthor": authors[0]} if authors else {}


def data_uri(data: bytes, mime_type: str, file_name: str | None) -> str:
    """Encode an attachment into the request, so that the daemon need not share a disk with the Gateway."""
    mime = mime_type if re.fullmatch(r"[\w.+-]+/[\w.+-]+", mime_type, re.ASCII) else "application/octet-stream"
    name = re.sub(r"[^\w.-]+", "_", file_name or "", flags=re.ASCII).strip("._")[-80:]
    named = f";filename={name}" if name else ""
    return f"data:{mime}{named};base64,{base64.b64encode(data).decode()}"


class RecipientResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str | None = None
    retry_after_seconds: float | None = None


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: int | None = None
    """The id of the sent message."""
    results: tuple[RecipientResult, ...] | None = None

    @property
    def retry_after_s(self) -> float | None:
        waits = [result.retry_after_seconds for result in self.results or ()]
        return max((wait for wait in waits if wait is not None), default=None)


def receipt_of(result: object) -> SendReceipt:
    """Return the receipt for a send result. Raises ``SendFailed`` if no recipient accepted the message."""
    sent = converted(result, SendResult)
    outcomes = [recipient.type or "SUCCESS" for recipient in sent.results or ()]
    if outcomes and "SUCCESS" not in outcomes:
        raise SendFailed(
            f"Signal did not accept the message: {', '.join(sorted(set(outcomes)))}",
            permanent=all(outcome in _PERMANENT_FAILURES for outcome in outcomes),
            retry_after_s=sent.retry_after_s,
        )
    return SendReceipt(message_id=str(sent.timestamp or ""))


# Incoming events


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
"""Decode an event, ignoring unknown fields. Raises ``msgspec.MsgspecError``."""


class OwnIdentity(msgspec.Struct, frozen=True):
    """The account's own number and uuid."""

    number: str | None
    uuid: str | None = None

    def is_me(self, *names: str | None) -> bool:
        mine = {self.number, self.uuid and self.uuid.lower()} - {None}
        return any(name is not None and (name in mine or name.lower() in mine) for name in names)


def with_learned_uuid(own: OwnIdentity, event: ReceiveEvent) -> OwnIdentity:
    """Add our uuid if the event pairs it with our number, because a mention may carry only the uuid."""
    envelope = event.envelope
    if own.uuid is not None or own.number is None or envelope is None:
        return own
    data = envelope.data_message
    pairs = [(envelope.source_number, envelope.source_uuid)]
    if data is not None:
        pairs += [(mention.number, mention.uuid) for mention in data.mentions or ()]
        pairs += [(data.quote.author_number, data.quote.author_uuid)] if data.quote else []
        pairs += [(data.reaction.target_author_number, data.reaction.target_author_uuid)] if data.reaction else []
    own_uuid = next((uuid for number, uuid in pairs if uuid and number == own.number), None)
    return OwnIdentity(own.number, own_uuid) if own_uuid else own


def interpret(event: ReceiveEvent, own: OwnIdentity, account_id: str) -> ChannelEvent | None:
    """Translate an event. Returns None for receipts, typing, calls and our own messages."""
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
    if edit is not None and edit.target_sent_timestamp and inbound.has_content:
        inbound.revision = str(inbound.timestamp_ms)
        inbound.message_id = _message_id(edit.target_sent_timestamp, sender.id, data.group_info)
        return Edited(inbound=inbound)
    if data.reaction is not None:
        return _reaction(inbound, data.reaction, own, data.group_info)
    if not inbound.has_content and not data.attachments:
        return None
    return Posted(inbound=inbound, files=data.attachments or ())


def _sender(envelope: SignalEnvelope) -> Sender | None:
    number = normalize_number(envelope.source_number or envelope.source or "")
    uuid = envelope.source_uuid
    if number is None and not uuid:
        return None
    # Allowlists may use either. People who hide their number have only the uuid.
    other_ids = (f"uuid:{uuid}", uuid) if uuid else ()
    name = (envelope.source_name or "").strip() or None
    return Sender(id=number or f"uuid:{uuid}", name=name, e164=number, other_ids=other_ids)


def _author_id(number: str | None, uuid: str | None, name: str | None) -> str | None:
    """Return the author's sender id. ``name`` is the daemon's own identifier: a number, uuid or user name."""
    return normalize_number(number or name or "") or (f"uuid:{uuid}" if uuid else name)


def _message_id(timestamp: int, author_id: str | None, group: GroupInfo | None) -> str:
    """Return a message id. In a group it includes the author, because a timestamp alone is not unique there."""
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
    """Replace mentions by names. A mention of the agent at the start or end is dropped."""
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


class AttachmentContent(msgspec.Struct, frozen=True, kw_only=True):
    data: str | None = None
    """The bytes in base64."""


class DaemonVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: str | None = None


class RpcErrorData(msgspec.Struct, frozen=True, kw_only=True):
    response: SendResult | None = None


class RpcError(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    message: str
    data: object = None
    """For some codes an ``RpcErrorData``."""


class RpcResponse(msgspec.Struct, frozen=True, kw_only=True):
    jsonrpc: str = ""
    id: str | None = None
    result: object = msgspec.UNSET
    error: RpcError | None = None


def base_url(settings: SignalAccount) -> str:
    url = (settings.http_url or "").strip().rstrip("/")
    if url:
        return url if "://" in url else f"http://{url}"
    host = f"[{settings.http_host}]" if ":" in settings.http_host else settings.http_host
    return f"http://{host}:{settings.http_port}"


class StreamLost(Exception):
    """The stream ended or could not be opened. The message gives the reason."""


class ServerEvent(msgspec.Struct, frozen=True):
    """One event of the stream. ``data`` is empty for a keep-alive."""

    data: bytes = b""
    id: str = ""


class SignalClient:
    """The HTTP interface of a daemon: JSON-RPC calls and the event stream."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def call(
        self, method: str, params: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S
    ) -> object:
        """Return the result, or None for an empty response. Raises ``SendFailed``."""
        request_id = str(uuid.uuid4())
        request: dict[str, object] = {"jsonrpc": "2.0", "method": method, "id": request_id}
        if params is not None:
            request["params"] = params
        url = f"{self._url}/api/v1/rpc"
        response, answer = await call(
            self._http, "signal-cli", "POST", url, RpcResponse, json=request, timeout_s=timeout_s, limit=MAX_RESPONSE
        )
        if response.status == 201:
            return None
        if (error := answer.error) is not None:
            limits = converted(error.data, RpcErrorData).response if error.code == _RATE_LIMIT else None
            raise SendFailed(
                redact_urls(f"signal-cli {method}: {error.message} (code {error.code})"),
                permanent=error.code in _PERMANENT_CODES,
                retry_after_s=limits.retry_after_s if limits else None,
            )
        if (answer.jsonrpc, answer.id) == ("2.0", request_id) and answer.result is not msgspec.UNSET:
            return answer.result
        problem = f"the response (HTTP {response.status}) is not a JSON-RPC response to this request"
        raise SendFailed(
            f"signal-cli {method}: {problem}; is this really a signal-cli daemon?",
            # A proxy may have lost the daemon's response. A 4xx means that nothing was done.
            maybe_sent=not 400 <= response.status < 500,
            retry_after_s=retry_after_s(response.headers),
        )

    async def check(self, timeout_s: float) -> bool:
        """Return whether the daemon is up."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.get(f"{self._url}/api/v1/check") as response:
                    return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False

    async def events(self, account: str | None, last_id: str) -> AsyncGenerator[ServerEvent]:
        """Yield the events of the stream, beginning with an empty one once the stream is open.

        Always ends with ``StreamLost``. Only newer daemons continue after ``last_id``; deduplication drops repeats.
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
            raise StreamLost(f"the daemon did not accept a connection within {CONNECT_S:g} s") from None
        except TimeoutError:
            raise StreamLost(f"the daemon sent nothing for {IDLE_S:g} s") from None
        except aiohttp.ClientError as error:
            raise StreamLost(str(error) or type(error).__name__) from None
        raise StreamLost("the daemon closed the stream")


async def _parse(content: aiohttp.StreamReader) -> AsyncIterator[ServerEvent]:
    """Parse server-sent events with their ids, which ``SseParser`` in ``models/http.py`` ignores.

    A comment is yielded as an event without data: it is the daemon's keep-alive.
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
    """The daemon did not start, or it exited."""


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
    """A signal-cli child process that runs as long as the channel."""

    def __init__(self, settings: SignalAccount, client: SignalClient, clock: Clock, log: logging.Logger) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until it answers."""
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
                f"{command[0]} cannot be started ({error.strerror}). Install signal-cli, set its path in"
                " channels.signal.cliPath, or set channels.signal.httpUrl to a daemon that runs elsewhere."
            ) from None
        self._reader = asyncio.create_task(self._log_output(self._process))
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
        raise DaemonFailed(f"signal-cli exited at once with code {process.returncode}; see its log")

    async def exited(self) -> str:
        """Wait until the process exits and return a description of its exit."""
        assert self._process is not None
        return f"signal-cli exited with code {await self._process.wait()}"

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

    async def _log_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:
                continue  # The line exceeds the reader's limit; its remainder comes next.
            if not raw:
                return
            line = raw.decode(errors="replace").strip()[:MAX_LINE]
            serious = any(word in line for word in ("ERROR", "WARN", "Exception", "Failed"))
            self._log.log(logging.WARNING if serious else logging.DEBUG, "signal-cli: %s", line)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
