"""Files that came with a message, put into the agent's workspace: its tools can reach them nowhere else."""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from openclaw.config.agents import workspace_dir
from openclaw.inbound.message import Inbound, Media
from openclaw.tools.base import ToolError
from openclaw.tools.opener import PathOpener

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

FOLDER = "media/inbound"
_LONGEST_NAME = 80
_UNSAFE = re.compile(r"[^\w.+-]+")

log = logging.getLogger("openclaw.inbound")


async def within_reach(gateway: Gateway, inbound: Inbound, agent_id: str) -> Inbound:
    """The message, its files named by where the agent finds them. Pictures are shown to the model instead."""
    if not any(_is_for_tools(media) for media in inbound.media):
        return inbound
    workspace = workspace_dir(gateway.runtime.config.current, gateway.runtime.state_dir, agent_id)
    media = [await _placed(gateway, one, workspace) if _is_for_tools(one) else one for one in inbound.media]
    return msgspec.structs.replace(inbound, media=tuple(media))


def _is_for_tools(media: Media) -> bool:
    return bool(media.blob) and not media.path and not media.mime_type.startswith("image/")


async def _placed(gateway: Gateway, media: Media, workspace: Path) -> Media:
    path = f"{FOLDER}/{_file_name(media)}"
    try:
        data = await gateway.runtime.blobs.get(media.blob or "")
        if data is None:
            return media
        await asyncio.to_thread(_write, workspace, path, data)
    except (OSError, ToolError) as error:
        log.warning("a file that came with a message cannot be put into %s: %s", workspace, error)
        return media
    return msgspec.structs.replace(media, path=path)


def _write(workspace: Path, path: str, data: bytes) -> None:
    # Through the opener, as the tools do: the agent may have made a link of the folder.
    with PathOpener(workspace, confine=True).open_write_atomic(path) as file:
        file.write(data)


def _file_name(media: Media) -> str:
    """The name it came with, made harmless; what it holds goes in front, so that two files never meet."""
    given = _UNSAFE.sub("_", media.file_name or "").strip("._")[-_LONGEST_NAME:]
    if not given:
        given = f"file{mimetypes.guess_extension(media.mime_type) or ''}"
    return f"{(media.blob or '')[:8]}-{given}"
