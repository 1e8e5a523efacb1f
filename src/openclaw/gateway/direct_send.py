"""Sends to people on channels without a run, for the method ``send`` and for the agent's ``message`` tool.

A ``Letter`` is written to the ledger with its parts, so it goes out even after a crash. One run id never
sends twice.
"""

from __future__ import annotations

import mimetypes
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from openclaw.agent.run import entry_id
from openclaw.channels.manager import RunningAccount
from openclaw.file_types import content_type
from openclaw.inbound.message import Inbound, Sender
from openclaw.inbound.notices import injected_message
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, SendFailed
from openclaw.outbound.reply_files import SizeLimit, Unsendable, size_limit, within
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch
from openclaw.routing import resolve_route
from openclaw.runs.why_text import delivery_text
from openclaw.sessions.entry import SessionEntry, normalize_channel
from openclaw.sessions.keys import SessionRef
from openclaw.storage.base import Accept, LedgerRow, MessageBody

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

WAIT_S = 30.0
MAX_MEDIA = 10
MAX_MEDIA_BYTES = 16 * 1024 * 1024


class SendRefused(Exception):
    """Nothing was sent. The text says why."""


class Letter(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    run_id: str
    source: str
    agent_id: str
    session_key: str
    """The session that the conversation belongs to."""
    route: dict[str, Any]
    text: str = ""
    media: tuple[MediaRef, ...] = ()
    reply_to: str = ""
    buttons: tuple[tuple[Button, ...], ...] = ()
    act: OutgoingMessage | None = None
    """What is done to an earlier message, in place of sending one."""

    @property
    def session(self) -> SessionRef:
        return SessionRef(self.agent_id, self.session_key)


class SendOutcome(msgspec.Struct, frozen=True):
    answer: dict[str, Any]
    """It says ``queued`` while the channel is not connected."""
    error: str = ""
    """Why the message will never arrive."""


def account_for(gateway: Gateway, channel: str | None, account_id: str | None) -> RunningAccount:
    """The account that sends. Without a channel it is the only one that is configured. Raises ``SendRefused``."""
    channels = gateway.channel_services.channels
    configured = list(dict.fromkeys(one.kind.id for one in channels.accounts()))
    named = normalize_channel(channel) or (configured[0] if len(configured) == 1 else "whatsapp")
    if named not in configured:
        raise SendRefused(f"unsupported channel: {named}")
    running = channels.find(named, account_id)
    if running is None:
        accounts = ", ".join(one.account.id for one in channels.accounts(named))
        raise SendRefused(f'unknown account "{account_id}" of channel {named}; known: {accounts}')
    return running


def session_for(gateway: Gateway, running: RunningAccount, to: str) -> SessionRef:
    """The session that a conversation belongs to. Raises ``SendRefused`` if ``to`` is nobody on the channel."""
    try:
        peer = running.kind.peer(to)
    except SendFailed as problem:
        raise SendRefused(str(problem)) from None
    heard = Inbound(channel=running.kind.id, account_id=running.account.id, peer=peer, sender=Sender(id=peer.id), to=to)
    resolved = resolve_route(gateway.runtime.config.current, heard)
    return SessionRef(resolved.agent_id, resolved.session_key)


async def fetched_media(gateway: Gateway, addresses: Sequence[str], running: RunningAccount) -> list[MediaRef]:
    """The files at these addresses, stored for an account that sends them. Raises ``SendRefused``."""
    limit = size_limit(gateway.runtime.config.current, running.kind.id, running.account.id)
    addresses = list(dict.fromkeys(addresses))
    if len(addresses) > MAX_MEDIA:
        raise SendRefused(f"too many files: {len(addresses)}; at most {MAX_MEDIA}")
    media: list[MediaRef] = []
    for address in addresses:
        try:
            data = await fetch(address, FetchLimits(max_bytes=MAX_MEDIA_BYTES, timeout_s=30))
        except FetchRefused as refused:
            raise SendRefused(f"mediaUrl {address[:200]} was not fetched: {refused}") from None
        name = urlsplit(address).path.rpartition("/")[2] or None
        try:
            media.append(await stored_media(gateway, data, name, limit))
        except Unsendable as problem:
            raise SendRefused(f"mediaUrl {address[:200]} was not sent: {problem}") from None
    return media


async def stored_media(gateway: Gateway, data: bytes, name: str | None, limit: SizeLimit, mime: str = "") -> MediaRef:
    """A file to send, stored. Raises ``Unsendable`` if it is too large for the channel."""
    mime = content_type(data, mime or mimetypes.guess_type(name or "")[0] or "")
    data, mime, name = await within(data, mime, name or "", limit)
    return MediaRef(blob=await gateway.runtime.blobs.put(data), mime_type=mime, file_name=name or None)


async def post(gateway: Gateway, letter: Letter) -> tuple[LedgerRow, bool]:
    """Writes the letter down. Returns False if that was done before."""
    accept = Accept(
        run_id=letter.run_id,
        dedupe_key=f"send|{letter.run_id}",
        agent_id=letter.agent_id,
        session_key=letter.session_key,
        session_id="",
        source=letter.source,
        route=letter.route,
        body=MessageBody(text=letter.text),
    )
    return await gateway.notices.post(
        accept, [letter.text], letter.media, reply_to=letter.reply_to, buttons=letter.buttons, act=letter.act
    )


async def outcome(gateway: Gateway, row: LedgerRow) -> SendOutcome:
    """Waits for the delivery and reports it."""
    parts = await gateway.channel_services.delivery.wait(row.id, WAIT_S)
    message_id = next((part.message_id for part in reversed(parts) if part.message_id), row.run_id)
    answer = {"runId": row.run_id, "channel": row.route["channel"], "messageId": message_id}
    if dead := next((part for part in parts if part.state == "dead"), None):
        return SendOutcome(answer, delivery_text(dead))
    if waiting := next((part for part in parts if part.state != "sent"), None):
        return SendOutcome(
            {**answer, "queued": True, "reason": delivery_text(waiting) or "the channel is not connected"}
        )
    if bare := next((part for part in parts if part.error), None):
        answer["warning"] = f"a file was not sent: {bare.error}"
    return SendOutcome(answer)


async def open_session(gateway: Gateway, session: SessionRef) -> None:
    """Makes the session's entry if there is none."""
    now = gateway.runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry:
        return entry or SessionEntry(sessionId=str(uuid.uuid4()), updatedAt=now)

    await gateway.runtime.sessions.update(session.agent_id, session.key, change)


async def mirror(gateway: Gateway, letter: Letter) -> None:
    """Writes the text to the transcript, so that the agent knows what went out in its name. It is written once.

    It waits until no run of the session is under way. A session that is gone gets nothing.
    """
    text = letter.text or f"[{len(letter.media)} file(s)]"
    message = injected_message(text, gateway.runtime.clock.now_ms())
    await gateway.notices.write(letter.session, message, entry_id(letter.run_id, "sent"))
