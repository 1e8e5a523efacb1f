"""Files of messages: fetched from a platform, or sent to it."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from openclaw.channels.base import ChannelContext
from openclaw.inbound.message import Inbound, Media
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from openclaw.pictures import content_type
from openclaw.untrusted_text import short_file_name

MAX_FILES = 32
_UNSAFE = re.compile(r"[^\w.()+ -]+")


class NotFetched(Exception):
    """A file was not fetched. The message says why."""


class RemoteFile(Protocol):
    """A platform's description of a file that is still on its server."""

    @property
    def name(self) -> str | None: ...

    @property
    def mime_type(self) -> str | None: ...

    @property
    def size(self) -> int | None: ...


async def add_files(
    context: ChannelContext, inbound: Inbound, files: Sequence[RemoteFile], fetch: Callable[[Any], Awaitable[Media]]
) -> None:
    """Fetch the files of a message and attach them. Adds a line for the agent for each file that was not fetched.

    Files of senders who may not write are skipped, so that strangers cannot fill memory or disk. Raises ``OSError``
    without changing the message if a file cannot be stored.
    """
    if not await context.admits(inbound):
        inbound.untrusted = (*inbound.untrusted, "Its attachments were not fetched")
        return
    media: list[Media] = []
    notes: list[str] = []
    for file in files[:MAX_FILES]:
        try:
            check_size(context, file.size or 0)
            media.append(await fetch(file))
        except NotFetched as reason:
            notes.append(f"Attachment {_label(file)} was not fetched: {reason}")
        except OSError:
            raise
        except Exception:
            # An unreadable file must not crash the channel each time its message is delivered again.
            context.log.exception("a file of message %s could not be fetched", inbound.message_id)
            notes.append(f"Attachment {_label(file)} was not fetched: something went wrong")
    if (excess := len(files) - MAX_FILES) > 0:
        notes.append(f"{excess} more attachments were not fetched: at most {MAX_FILES} are")
    inbound.media, inbound.untrusted = tuple(media), (*inbound.untrusted, *notes)


def _label(file: RemoteFile) -> str:
    return short_file_name(file.name or file.mime_type or "") or "a file"


def check_size(context: ChannelContext, size: int) -> None:
    """Raise ``NotFetched`` if a file is larger than the account's ``mediaMaxMb``."""
    if size > context.media_limit:
        limit_mb = context.account.settings.media_max_mb
        raise NotFetched(f"it is larger than {limit_mb:g} MB ({context.key('mediaMaxMb')})")


async def store_file(context: ChannelContext, data: bytes, file: RemoteFile) -> Media:
    """Store a fetched file. Its content determines its type before the platform's claim does."""
    mime_type = content_type(data, file.mime_type or "")
    return Media(mime_type=mime_type, file_name=file.name or None, blob=await context.blobs.put(data))


async def files_to_send(context: ChannelContext, message: OutgoingMessage) -> list[tuple[MediaRef, bytes]]:
    """Load the files of a message. Raises a permanent ``SendFailed`` if one is gone or too large."""
    files: list[tuple[MediaRef, bytes]] = []
    for media in message.media:
        data = await context.blobs.get(media.blob)
        if data is None:
            raise SendFailed(f"the file {media.file_name or media.blob[:12]} is gone", permanent=True)
        if len(data) > context.media_limit:
            limit = f"{context.key('mediaMaxMb')} ({context.account.settings.media_max_mb:g})"
            raise SendFailed(f"{media.file_name or media.mime_type} is larger than {limit}", permanent=True)
        files.append((media, data))
    return files


def opus_seconds(data: bytes) -> float | None:
    """Return the duration of an Ogg Opus recording, or None for another format."""
    head, last = data.find(b"OpusHead", 0, 200), data.rfind(b"OggS")
    if head < 0 or not data.startswith(b"OggS") or len(data) < max(last + 14, head + 12):
        return None
    skipped = int.from_bytes(data[head + 10 : head + 12], "little")
    samples = int.from_bytes(data[last + 6 : last + 14], "little", signed=True) - skipped
    return max(samples, 0) / 48_000


def safe_file_name(media: MediaRef) -> str:
    """Return a non-empty file name for the platform, without a path or special characters."""
    name = _UNSAFE.sub("_", (media.file_name or "").replace("\\", "/").rpartition("/")[2]).strip(" ._")[-120:]
    return name or f"file{mimetypes.guess_extension(media.mime_type) or '.bin'}"
