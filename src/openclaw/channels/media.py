"""Files that travel with messages: what is fetched from a platform, and what is sent to it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from openclaw.channels.base import ChannelContext
from openclaw.file_types import content_type
from openclaw.inbound.message import Inbound, Media
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from openclaw.storage.base import BlobStore

if TYPE_CHECKING:
    import aiohttp

File = TypeVar("File")
Fetched: TypeAlias = tuple[tuple[Media, ...], tuple[str, ...]]
"""Files, and for the agent a line for each that was not fetched."""
MAX_FILES = 32
MB = 1024 * 1024
_UNSAFE = re.compile(r"[^\w.()+ -]+")


class NotFetched(Exception):
    """A file was not fetched. The message says why."""


async def of_admitted(context: ChannelContext, inbound: Inbound, fetch: Callable[[], Awaitable[Fetched]]) -> Fetched:
    """What ``fetch`` brings, if the sender of the message may write. Strangers fill neither memory nor disk."""
    return await fetch() if await context.admits(inbound) else ((), ("Its attachments were not fetched",))


async def fetch_files(
    files: Sequence[File], name: Callable[[File], str | None], fetch: Callable[[File], Awaitable[Media]]
) -> Fetched:
    """Fetches files with ``fetch``. Returns them, and for the agent a line for each that was not fetched."""
    media: list[Media] = []
    notes: list[str] = []
    for file in files[:MAX_FILES]:
        try:
            media.append(await fetch(file))
        except NotFetched as reason:
            notes.append(f"Attachment {name(file) or 'a file'} was not fetched: {reason}")
    if (left := len(files) - MAX_FILES) > 0:
        notes.append(f"{left} more attachments were not fetched: at most {MAX_FILES} are")
    return tuple(media), tuple(notes)


async def kept_file(blobs: BlobStore, data: bytes, claimed: str | None, name: str | None) -> Media:
    """A file that came with a message, stored. What it is, its content decides before what the platform claims."""
    return Media(mime_type=content_type(data, claimed or ""), file_name=name, blob=await blobs.put(data))


async def read_within(response: aiohttp.ClientResponse, limit: int, where: str) -> bytes:
    """The body of an answer. Raises ``NotFetched`` if it is larger than ``limit``, which the key ``where`` sets."""
    too_large = f"it is larger than {limit / MB:g} MB ({where})"
    if (response.content_length or 0) > limit:
        raise NotFetched(too_large)
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(256 * 1024):
        size += len(chunk)
        if size > limit:
            raise NotFetched(too_large)
        parts.append(chunk)
    return b"".join(parts)


async def files_to_send(
    context: ChannelContext, message: OutgoingMessage, limit_mb: float
) -> list[tuple[MediaRef, bytes]]:
    """The files of a message with their bytes. Raises a permanent ``SendFailed`` if one is gone or too large."""
    files: list[tuple[MediaRef, bytes]] = []
    for media in message.media:
        data = await context.blobs.get(media.blob)
        if data is None:
            raise SendFailed(f"the file {media.file_name or media.blob[:12]} is gone", permanent=True)
        if len(data) > limit_mb * MB:
            name, key = media.file_name or media.mime_type, f"channels.{context.channel}.mediaMaxMb"
            raise SendFailed(f"{name} is larger than {key} ({limit_mb:g})", permanent=True)
        files.append((media, data))
    return files


def opus_seconds(data: bytes) -> float | None:
    """How long a recording in the Ogg Opus format is. None if it is something else."""
    head, last = data.find(b"OpusHead", 0, 200), data.rfind(b"OggS")
    if head < 0 or not data.startswith(b"OggS") or len(data) < max(last + 14, head + 12):
        return None
    skipped = int.from_bytes(data[head + 10 : head + 12], "little")
    samples = int.from_bytes(data[last + 6 : last + 14], "little", signed=True) - skipped
    return max(samples, 0) / 48_000


def safe_file_name(media: MediaRef) -> str:
    """A name for the platform, without a path or signs that could mean something. Never empty."""
    import mimetypes

    name = _UNSAFE.sub("_", (media.file_name or "").replace("\\", "/").rpartition("/")[2]).strip(" ._")[-120:]
    return name or f"file{mimetypes.guess_extension(media.mime_type) or '.bin'}"
