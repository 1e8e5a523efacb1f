"""The files that a reply names: read or fetched, stored as blobs, or explained to the person who gets the reply."""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

import msgspec

from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.file_types import content_type
from openclaw.foreign_text import disarmed_name
from openclaw.opener import FileMissing, PathOpener, PathRefused
from openclaw.outbound.media_lines import is_web
from openclaw.outbound.reply import MediaRef
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch_page
from openclaw.storage.base import BlobStore

log = logging.getLogger("openclaw.outbound")

MOST_FILES = 10
"""How many files one answer sends at most."""
FETCH_S = 30.0
MB = 1024 * 1024
DEFAULT_MB = 8.0


class Unsendable(Exception):
    """A file that is not sent. The text tells the person why."""


class Files(msgspec.Struct, frozen=True):
    media: tuple[MediaRef, ...] = ()
    notes: tuple[str, ...] = ()
    """A line for each file that is not sent."""


def size_limit(config: Config, channel: str, account_id: str | None) -> tuple[float, str]:
    """How many megabytes a file on this channel may have, and the key that says so."""
    account = account_settings(config, channel, account_id)
    return (account.media_max_mb if account is not None else DEFAULT_MB), f"channels.{channel}.mediaMaxMb"


async def reply_files(
    addresses: Sequence[str], blobs: BlobStore, opener: PathOpener | None, limit_mb: float, limit_key: str
) -> Files:
    """Stores the files that an answer names. ``opener`` None: the session may not read files.

    What cannot be read becomes a note, so that the words of the answer are delivered all the same. Raises ``OSError``
    if the disk does not take a file.
    """
    wanted = list(dict.fromkeys(addresses))
    made = await asyncio.gather(
        *(_stored(address, blobs, opener, limit_mb, limit_key) for address in wanted[:MOST_FILES])
    )
    notes = [f"⚠️ {one}" for one in made if isinstance(one, str)]
    if (more := len(wanted) - MOST_FILES) > 0:
        notes.append(f"⚠️ {more} more files were not sent: at most {MOST_FILES} go with one answer.")
    return Files(tuple(one for one in made if isinstance(one, MediaRef)), tuple(notes))


async def _stored(
    address: str, blobs: BlobStore, opener: PathOpener | None, limit_mb: float, limit_key: str
) -> MediaRef | str:
    """The stored file, or a sentence that says why there is none."""
    try:
        if is_web(address):
            data, claimed, name = await _fetched(address, int(limit_mb * MB))
        else:
            data, claimed, name = await _read(address, opener, int(limit_mb * MB))
        if len(data) > limit_mb * MB:
            raise Unsendable(f"it is larger than {limit_mb:g} MB ({limit_key})")
        if not data:
            raise Unsendable("it is empty")
        mime = content_type(data, claimed)
        url = address if is_web(address) else None
        return MediaRef(blob=await blobs.put(data), mime_type=mime, file_name=name or None, url=url)
    except (Unsendable, FetchRefused, PathRefused) as problem:
        log.info("a file of a reply is not sent: %s", problem)
        return f"The file {shown_name(address)} was not sent: {_said(problem)}."


async def _fetched(address: str, limit: int) -> tuple[bytes, str, str]:
    page = await fetch_page(address, FetchLimits(max_bytes=limit, timeout_s=FETCH_S))
    name = unquote(urlsplit(page.url).path.rpartition("/")[2])
    return page.body, page.content_type or mimetypes.guess_type(name)[0] or "", name


async def _read(address: str, opener: PathOpener | None, limit: int) -> tuple[bytes, str, str]:
    if opener is None:
        raise Unsendable("this conversation may not read files")

    def read() -> bytes:
        with opener.open_read(address) as file:
            try:
                return file.read(limit + 1)
            except OSError as error:
                raise Unsendable(error.strerror or "it cannot be read") from None

    name = address.rpartition("/")[2]
    return await asyncio.to_thread(read), mimetypes.guess_type(name)[0] or "", name


def _said(problem: Exception) -> str:
    """Why, without paths of this machine."""
    match problem:
        case FileMissing():
            return "there is no such file"
        case PathRefused():
            return "it is not a file of the workspace that may be read"
        case _:
            return str(problem)


def shown_name(address: str) -> str:
    """The name of a file in a sentence for people."""
    name = unquote(urlsplit(address).path) if is_web(address) else address
    return disarmed_name(name.rpartition("/")[2][-80:]) or "of the answer"
