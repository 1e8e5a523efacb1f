"""Files that come with a message: pictures for the model, and other files for the agent's workspace."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import mimetypes
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.agent.tool_set import opener_of
from openclaw.inbound.message import Inbound, Media
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.pictures import SEEN_PICTURES, sniff_image
from openclaw.untrusted_text import short_file_name, short_name

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.sessions.keys import SessionRef
    from openclaw.storage.blobs import BlobStore

MAX_BYTES = 5_000_000
_DATA_URL = re.compile(r"^data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)


class InboundFile(msgspec.Struct, rename="camel", kw_only=True):
    type: str | None = None
    mime_type: str | None = None
    file_name: str | None = None
    content: str | None = None


class Image(msgspec.Struct, frozen=True):
    data: bytes
    mime_type: str


class BadAttachment(ValueError):
    pass


def split_pictures(attachments: list[InboundFile]) -> tuple[list[InboundFile], list[InboundFile]]:
    """Return the pictures that a model sees, and the other files. Raises ``BadAttachment`` for bad content."""
    pictures: list[InboundFile] = []
    others: list[InboundFile] = []
    for number, attachment in enumerate(attachments, 1):
        name = attachment.file_name or attachment.type or f"attachment-{number}"
        seen = sniff_image(_decoded(attachment.content or "", name)) is not None
        (pictures if seen else others).append(attachment)
    return pictures, others


async def place_files(
    runtime: Runtime, files: list[InboundFile], session: SessionRef, entry: Mapping[str, Any] | None
) -> tuple[Media, ...]:
    """Write the files that a client attached into the workspace of the session's tools.

    Raises ``BadAttachment`` if a file cannot be written.
    """
    if not files:
        return ()
    opener = await opener_of(runtime, session.agent_id, session.key, entry)
    placed: list[Media] = []
    for number, file in enumerate(files, 1):
        name = file.file_name or f"attachment-{number}"
        data = _decoded(file.content or "", name)
        mime = (file.mime_type or mimetypes.guess_type(name)[0] or "application/octet-stream")[:100]
        media = Media(mime_type=mime, file_name=name, blob=hashlib.sha256(data).hexdigest())
        path = f"{FOLDER}/{_file_name(media)}"
        try:
            await asyncio.to_thread(_write, opener, path, data)
        except (OSError, PathRefused) as problem:
            raise BadAttachment(f"attachment {name}: cannot be put into the workspace: {problem}") from None
        placed.append(msgspec.structs.replace(media, path=path))
    return tuple(placed)


def read_images(attachments: list[InboundFile]) -> tuple[list[Image], list[str]]:
    """Return the pictures and a warning for each attachment that is none. Raises ``BadAttachment`` for bad content."""
    images: list[Image] = []
    warnings: list[str] = []
    for number, attachment in enumerate(attachments, 1):
        name = attachment.file_name or attachment.type or f"attachment-{number}"
        data = _decoded(attachment.content or "", name)
        mime = sniff_image(data)
        if mime is None:
            warnings.append(f"attachment {name}: only images are passed on to the model; dropped")
            continue
        images.append(Image(data, mime))
    return images, warnings


def _decoded(content: str, name: str) -> bytes:
    text = _DATA_URL.sub("", content.strip())
    if not text:
        raise BadAttachment(f"attachment {name}: content must be base64 text")
    if len(text) * 3 // 4 > MAX_BYTES + 3:
        raise BadAttachment(f"attachment {name}: exceeds size limit ({len(text) * 3 // 4} > {MAX_BYTES} bytes)")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadAttachment(f"attachment {name}: invalid base64 content") from None
    if len(data) > MAX_BYTES:
        raise BadAttachment(f"attachment {name}: exceeds size limit ({len(data)} > {MAX_BYTES} bytes)")
    return data


FOLDER = "media/inbound"
_LONGEST_NAME = 80
_UNSAFE = re.compile(r"[^\w.+-]+")

log = logging.getLogger("openclaw.inbound")


async def within_reach(
    runtime: Runtime, inbound: Inbound, session: SessionRef, entry: Mapping[str, Any] | None
) -> Inbound:
    """Write the files of a message into the workspace of the session's tools. Returns the message with their paths.

    Pictures are not written: the model sees them. The prompt mentions a picture that it cannot see.
    """
    if not any(_is_for_tools(media) for media in inbound.media):
        return inbound
    opener = await opener_of(runtime, session.agent_id, session.key, entry)
    media = [
        await _placed(runtime.stores.blobs, item, opener) if _is_for_tools(item) else item for item in inbound.media
    ]
    notes = [
        f"The picture {short_file_name(item.file_name or '') or item.path or 'that came along'} "
        f"is {short_name(item.mime_type)}, which you cannot see. "
        "Its file is kept; ask for a JPEG or PNG, or convert it with a tool."
        for item in media
        if item.mime_type.startswith("image/") and item.mime_type not in SEEN_PICTURES
    ]
    return msgspec.structs.replace(inbound, media=tuple(media), untrusted=(*inbound.untrusted, *notes))


def _is_for_tools(media: Media) -> bool:
    return bool(media.blob) and not media.path and media.mime_type not in SEEN_PICTURES


async def _placed(blobs: BlobStore, media: Media, opener: PathOpener) -> Media:
    path = f"{FOLDER}/{_file_name(media)}"
    try:
        data = await blobs.get(media.blob or "")
        if data is None:
            return media
        await asyncio.to_thread(_write, opener, path, data)
    except (OSError, PathRefused) as error:
        log.warning("a file that came with a message cannot be put into %s: %s", opener.workspace, error)
        return media
    return msgspec.structs.replace(media, path=path)


def _write(opener: PathOpener, path: str, data: bytes) -> None:
    with opener.open_write_atomic(path) as file:
        file.write(data)


def _file_name(media: Media) -> str:
    """Return a harmless form of the file's name. The beginning of its hash keeps files of one name apart."""
    value = _UNSAFE.sub("_", media.file_name or "").strip("._")[-_LONGEST_NAME:]
    if not value:
        value = f"file{mimetypes.guess_extension(media.mime_type) or ''}"
    return f"{(media.blob or '')[:8]}-{value}"
