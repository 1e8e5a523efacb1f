"""Files that came with a message: asked of the daemon, put into the blob store."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any

from openclaw.channels.signal.envelope import Attachment
from openclaw.channels.signal.rpc import RpcError, RpcUnreachable, SignalRpc
from openclaw.inbound.message import Media
from openclaw.storage.base import BlobStore

MAX_ATTACHMENTS = 32
FETCH_TIMEOUT_S = 60.0


class NotFetched(Exception):
    """Why an attachment was left with the daemon."""


async def fetch_attachments(
    rpc: SignalRpc, blobs: BlobStore, attachments: Sequence[Attachment], origin: dict[str, Any], limit: int
) -> tuple[tuple[Media, ...], tuple[str, ...]]:
    """The files, and a line for each that could not be had: the agent should know that there was one."""
    media: list[Media] = []
    notes: list[str] = []
    for attachment in attachments[:MAX_ATTACHMENTS]:
        try:
            media.append(await _fetch(rpc, blobs, attachment, origin, limit))
        except NotFetched as reason:
            name = attachment.filename or attachment.content_type or "a file"
            notes.append(f"Attachment {name} was not fetched: {reason}")
    if (left := len(attachments) - MAX_ATTACHMENTS) > 0:
        notes.append(f"{left} more attachments were not fetched: at most {MAX_ATTACHMENTS} are")
    return tuple(media), tuple(notes)


async def _fetch(rpc: SignalRpc, blobs: BlobStore, attachment: Attachment, origin: dict[str, Any], limit: int) -> Media:
    if not attachment.id:
        raise NotFetched("the daemon has not kept it")
    too_large = f"it is larger than {limit / 1024 / 1024:g} MB (channels.signal.mediaMaxMb)"
    if attachment.size is not None and attachment.size > limit:
        raise NotFetched(too_large)
    try:
        answer = await rpc.call("getAttachment", {"id": attachment.id, **origin}, FETCH_TIMEOUT_S)
    except (RpcError, RpcUnreachable) as error:
        raise NotFetched(str(error)) from None
    encoded = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(encoded, str):
        raise NotFetched("the daemon gave no data")
    try:
        data = await asyncio.to_thread(base64.b64decode, encoded, validate=True)
    except binascii.Error:
        raise NotFetched("the daemon's data is not base64") from None
    if len(data) > limit:
        raise NotFetched(too_large)
    mime = attachment.content_type or "application/octet-stream"
    return Media(mime_type=mime, file_name=attachment.filename, blob=await blobs.put(data))
