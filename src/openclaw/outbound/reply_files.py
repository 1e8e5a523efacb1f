"""The files that a reply names: read or fetched, stored as blobs, or explained to the person who gets the reply."""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.outbound.answer_filter import is_web
from openclaw.outbound.reply import MediaRef
from openclaw.path_opener import FileMissing, PathOpener, PathRefused
from openclaw.pictures import MAX_SOURCE_BYTES, SHRINKABLE, ImageProblem, content_type, off_loop, smaller_picture, sniff
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch_page
from openclaw.storage.blobs import BlobStore
from openclaw.untrusted_text import disarmed_name

log = logging.getLogger("openclaw.outbound")

MOST_FILES = 10
"""How many files one answer sends at most."""
FETCH_S = 30.0
MB = 1024 * 1024
DEFAULT_MB = 8.0
PICTURE_MB = {"whatsapp": 5.0, "telegram": 10.0}
"""Larger pictures are only documents on these platforms."""
FETCHED_MB = 32
"""The largest picture that is fetched to be made smaller."""
AT_ONCE = 2


class Unsendable(Exception):
    """A file that is not sent. The text tells the person why."""


class Files(msgspec.Struct, frozen=True):
    media: tuple[MediaRef, ...] = ()
    notes: tuple[str, ...] = ()
    """A sentence for each file that is not sent."""

    def spoken(self) -> Files:
        """Return the same files, with sound as voice messages."""
        media = (
            msgspec.structs.replace(item, voice=True) if item.mime_type.startswith("audio/") else item
            for item in self.media
        )
        return Files(tuple(media), self.notes)

    def under(self, text: str) -> str:
        """Return a text with the notes below it, as people get it."""
        return "\n\n".join(part for part in (text, *(f"⚠️ {note}" for note in self.notes)) if part)


FilesOf: TypeAlias = Callable[[Sequence[str], bool], Awaitable[Files]]
"""Stores the files of an answer by their addresses. True: sound among them is a voice message."""


class SizeLimit(msgspec.Struct, frozen=True):
    """How large files may be."""

    mb: float
    key: str
    """The key of the configuration that says so."""
    picture_mb: float
    """Pictures that are larger are made smaller."""

    @property
    def bytes(self) -> int:
        return int(self.mb * MB)


def size_limit(config: Config, channel: str, account_id: str | None) -> SizeLimit:
    """How large files on this channel may be."""
    account = account_settings(config, channel, account_id)
    mb = account.media_max_mb if account is not None else DEFAULT_MB
    return SizeLimit(mb, f"channels.{channel}.mediaMaxMb", min(mb, PICTURE_MB.get(channel, mb)))


async def within(data: bytes, mime_type: str, name: str, limit: SizeLimit) -> tuple[bytes, str, str]:
    """Return a file that may be sent: its bytes, its type and its name. A large picture is made smaller.

    Raises ``Unsendable`` if it is too large.
    """
    if mime_type in SHRINKABLE and len(data) > limit.picture_mb * MB:
        try:
            made, mime = await off_loop(lambda: smaller_picture(data, mime_type, int(limit.picture_mb * MB)))
        except ImageProblem as problem:
            log.info("a picture is not made smaller: %s", problem)
        else:
            stem = name.rpartition(".")[0] or name or "picture"
            return made, mime, name if mime == mime_type else stem + (mimetypes.guess_extension(mime) or "")
    if len(data) > limit.bytes:
        raise Unsendable(f"it is larger than {limit.mb:g} MB ({limit.key})")
    return data, mime_type, name


async def reply_files(
    addresses: Sequence[str],
    blobs: BlobStore,
    opener: PathOpener | None,
    limit: SizeLimit,
    *,
    skip: int = 0,
) -> Files:
    """Store the files that an answer names. ``opener`` None: the session may not read files.

    ``skip`` is the number of files at the beginning that were sent before.

    A note replaces an unreadable file, so that the text is delivered all the same. Raises ``OSError``
    if the disk does not take a file.
    """
    requested = list(dict.fromkeys(addresses))
    free = asyncio.Semaphore(AT_ONCE)
    made = await asyncio.gather(
        *(_stored(address, blobs, opener, limit, free) for address in requested[skip:MOST_FILES])
    )
    notes = [item for item in made if isinstance(item, str)]
    if (more := len(requested) - MOST_FILES) > 0:
        notes.append(f"{more} more files were not sent: at most {MOST_FILES} go with one answer.")
    return Files(tuple(item for item in made if isinstance(item, MediaRef)), tuple(notes))


async def _stored(
    address: str, blobs: BlobStore, opener: PathOpener | None, limit: SizeLimit, free: asyncio.Semaphore
) -> MediaRef | str:
    """The stored file, or a sentence that says why there is none. ``free`` says how many are in memory at once."""
    async with free:
        try:
            if is_web(address):
                data, name, mime = await _fetched(address, max(limit.bytes, FETCHED_MB * MB))
            elif opener is None:
                raise Unsendable("this conversation may not read files")
            else:
                data, name, mime = await workspace_file(
                    address, opener, limit.bytes, limit.key, pictures=MAX_SOURCE_BYTES
                )
            data, mime, name = await within(data, mime, name, limit)
        except (Unsendable, FetchRefused) as problem:
            return f"The file {shown_name(address)} was not sent: {problem}."
        if not data:
            return f"The file {shown_name(address)} was not sent: it is empty."
        url = address if is_web(address) else None
        return MediaRef(blob=await blobs.put(data), mime_type=mime, file_name=name or None, url=url)


async def _fetched(address: str, limit: int) -> tuple[bytes, str, str]:
    page = await fetch_page(address, FetchLimits(max_bytes=limit, timeout_s=FETCH_S))
    name = unquote(urlsplit(page.url).path.rpartition("/")[2])
    claimed = page.content_type or mimetypes.guess_type(name)[0] or ""
    return page.body, name, content_type(page.body, claimed)


async def workspace_file(
    address: str, opener: PathOpener, limit: int, limit_key: str = "", *, pictures: int = 0
) -> tuple[bytes, str, str]:
    """A file of the workspace: its bytes, its name and its type. Raises ``Unsendable``, without paths of this machine.

    ``limit`` is in bytes; a larger file is refused. ``limit_key`` is the configuration key that sets it. ``pictures``
    is a higher limit for pictures that can be made smaller.
    """

    def read() -> bytes:
        with opener.open_read(address) as file:
            data = file.read(limit + 1)
            if limit < len(data) <= pictures and sniff(data[:64]) in SHRINKABLE:
                data += file.read(pictures + 1 - len(data))
            return data

    try:
        data = await asyncio.to_thread(read)
    except FileMissing:
        raise Unsendable("there is no such file") from None
    except PathRefused as refused:
        log.info("a file of a reply is not read: %s", refused)
        raise Unsendable("it is not a file of the workspace that may be read") from None
    except OSError as error:
        raise Unsendable(error.strerror or "it cannot be read") from None
    if len(data) > (max(limit, pictures) if sniff(data[:64]) in SHRINKABLE else limit):
        raise Unsendable(f"it is larger than {limit / MB:g} MB" + (f" ({limit_key})" if limit_key else ""))
    name = address.rpartition("/")[2]
    return data, name, content_type(data, mimetypes.guess_type(name)[0] or "")


def result_text(result: Mapping[str, Any] | None) -> str:
    """What a run said, by the result that the ledger keeps, for readers who get text alone."""
    results = result or {}
    parts = (str(results.get("text") or ""), file_lines(results.get("media") or ()))
    return "\n\n".join(part for part in parts if part)


def file_lines(addresses: Sequence[str]) -> str:
    """Files as lines of text, for readers who get text alone."""
    return "\n".join(address if is_web(address) else f"📎 {shown_name(address)}" for address in addresses)


def shown_name(address: str) -> str:
    """Return the name of a file in a sentence for people."""
    name = unquote(urlsplit(address).path) if is_web(address) else address
    return disarmed_name(name.rpartition("/")[2][-80:]) or "of the answer"
