"""``send``: sends a message to somebody on a channel, without the agent."""

from __future__ import annotations

import mimetypes
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from openclaw.agent.run import entry_id
from openclaw.channels.manager import RunningAccount
from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import (
    MethodCall,
    MethodError,
    MethodTable,
    check_send_policy,
    entry_of,
    target_of,
)
from openclaw.inbound.message import Inbound, Route, Sender
from openclaw.inbound.notices import injected_message
from openclaw.outbound.reply import MediaRef, SendFailed
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch
from openclaw.routing import resolve_route
from openclaw.runs.why_text import delivery_text
from openclaw.sessions.entry import SessionEntry, normalize_channel
from openclaw.sessions.keys import SessionRef
from openclaw.storage.base import Accept, LedgerRow, MessageBody

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()

WAIT_S = 30.0
MAX_MEDIA = 10
MAX_MEDIA_BYTES = 16 * 1024 * 1024


class SendParams(Params):
    to: NonEmpty
    message: str
    idempotency_key: NonEmpty
    media_url: str | None = None
    media_urls: list[str] | None = None
    gif_playback: bool | None = None
    channel: str | None = None
    account_id: str | None = None
    session_key: str | None = None


@methods.add("send", SendParams)
async def send(call: MethodCall) -> Any:
    """Writes the message down, then sends it. It goes out even after a crash, and one key never sends twice."""
    params: SendParams = call.params
    gateway = call.gateway
    known = await gateway.runtime.ledger.by_run(params.idempotency_key)
    if known is not None and known.source == "send":
        return await _outcome(gateway, known)
    running = _account(gateway, params)
    route = Route(channel=running.kind.id, to=params.to.strip(), account_id=running.account.id)
    target = _session(gateway, running, params)
    check_send_policy(gateway, target, await entry_of(gateway, target), channel=running.kind.id)
    media = await _media(gateway, params)
    if not params.message.strip() and not media:
        raise MethodError("message or mediaUrl required")
    stored_route = msgspec.to_builtins(route)
    accept = Accept(
        run_id=params.idempotency_key,
        dedupe_key=f"send|{params.idempotency_key}",
        agent_id=target.agent_id,
        session_key=target.key,
        session_id="",
        source="send",
        route=stored_route,
        body=MessageBody(text=params.message),
    )
    row, new = await gateway.notices.post(accept, [params.message], media)
    answer = await _outcome(gateway, row)
    if new:
        await _mirror(gateway, target, params.message or f"[{len(media)} file(s)]", params.idempotency_key)
    return answer


def _account(gateway: Gateway, params: SendParams) -> RunningAccount:
    channels = gateway.channel_services.channels
    configured = list(dict.fromkeys(one.kind.id for one in channels.accounts()))
    channel = normalize_channel(params.channel) or (configured[0] if len(configured) == 1 else "whatsapp")
    if channel not in configured:
        raise MethodError(f"unsupported channel: {channel}")
    running = channels.find(channel, params.account_id)
    if running is None:
        accounts = ", ".join(one.account.id for one in channels.accounts(channel))
        raise MethodError(f'unknown account "{params.account_id}" of channel {channel}; known: {accounts}')
    return running


def _session(gateway: Gateway, running: RunningAccount, params: SendParams) -> SessionRef:
    """Returns the session that the conversation belongs to."""
    try:
        peer = running.kind.peer(params.to)
    except SendFailed as problem:
        raise MethodError(str(problem)) from None
    if params.session_key:
        return target_of(gateway, params.session_key)
    heard = Inbound(
        channel=running.kind.id,
        account_id=running.account.id,
        peer=peer,
        sender=Sender(id=peer.id),
        to=params.to,
    )
    resolved = resolve_route(gateway.runtime.config.current, heard)
    return SessionRef(resolved.agent_id, resolved.session_key)


async def _media(gateway: Gateway, params: SendParams) -> list[MediaRef]:
    addresses = [*([params.media_url] if params.media_url else []), *(params.media_urls or [])]
    addresses = list(dict.fromkeys(addresses))
    if len(addresses) > MAX_MEDIA:
        raise MethodError(f"too many files: {len(addresses)}; at most {MAX_MEDIA}")
    media: list[MediaRef] = []
    for address in addresses:
        try:
            data = await fetch(address, FetchLimits(max_bytes=MAX_MEDIA_BYTES, timeout_s=30))
        except FetchRefused as refused:
            raise MethodError(f"mediaUrl {address[:200]} was not fetched: {refused}") from None
        name = urlsplit(address).path.rpartition("/")[2] or None
        mime = mimetypes.guess_type(name or "")[0] or "application/octet-stream"
        media.append(MediaRef(blob=await gateway.runtime.blobs.put(data), mime_type=mime, file_name=name))
    return media


async def _outcome(gateway: Gateway, row: LedgerRow) -> dict[str, Any]:
    """Waits for the delivery and reports it. The answer says ``queued`` while the channel is not connected."""
    parts = await gateway.channel_services.delivery.wait(row.id, WAIT_S)
    message_id = next((part.message_id for part in reversed(parts) if part.message_id), row.run_id)
    answer = {"runId": row.run_id, "channel": row.route["channel"], "messageId": message_id}
    if dead := next((part for part in parts if part.state == "dead"), None):
        raise MethodError(
            delivery_text(dead),
            code="UNAVAILABLE",
            payload={**answer, "status": "error", "summary": delivery_text(dead)},
        )
    if waiting := next((part for part in parts if part.state != "sent"), None):
        return {**answer, "queued": True, "reason": delivery_text(waiting) or "the channel is not connected"}
    return answer


async def _mirror(gateway: Gateway, target: SessionRef, text: str, run_id: str) -> None:
    """Writes the text to the transcript, so that the agent knows what went out in its name."""
    now = gateway.runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry:
        return entry or SessionEntry(sessionId=str(uuid.uuid4()), updatedAt=now)

    await gateway.runtime.sessions.update(target.agent_id, target.key, change)
    await gateway.notices.write(target, injected_message(text, now), entry_id(run_id, "sent"))
