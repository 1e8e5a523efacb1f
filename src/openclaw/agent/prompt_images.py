"""Pictures that a message names by their path: loaded from this machine's disk and kept with the message.

They go through the same opener as the ``read`` tool, so nobody on a channel sees by a path what the agent could not
read. Whoever is logged in to the Gateway itself may name any file of its user. Addresses on the web are left to the
model. A file that is not there, or is no picture, is simply not shown.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

import msgspec

from openclaw.agent.preparation import Preparation
from openclaw.messages import ImageBlock, TextBlock, UserBlock, UserMessage, user_text
from openclaw.tools.base import ToolError
from openclaw.tools.files import ReadTool
from openclaw.tools.images import MAX_SOURCE_BYTES, ImageProblem, fit_image, sniff_image
from openclaw.tools.opener import PathOpener

MOST_PICTURES = 10
"""Of one message; the agent can still read the others."""
LONGEST_TEXT = 200_000
OPERATORS = ("webchat", "agent")
"""Doors behind which is whoever runs the Gateway."""
_ENDING = r"\.(?:png|jpe?g|gif|webp)"
_ANY = re.compile(_ENDING, re.IGNORECASE)
_START = r"(?:file://|(?:~|\.{1,2})?/(?!/))"
_PATH = re.compile(
    # A note of an attachment, whose path may hold blanks.
    rf"\[media attached(?: \d+/\d+)?: (?P<note>{_START}[^\n\]|]{{1,1000}}?{_ENDING})(?=[\s\]|(])"
    # In quotes.
    rf"|(?P<quote>[\"'`])(?P<quoted>{_START}[^\n\"'`]{{1,1000}}?{_ENDING})(?P=quote)"
    # As a word of its own.
    rf"|(?<![\w/.:~@-])(?P<word>{_START}[^\s\"'`()\[\]<>|]{{1,1000}}?{_ENDING})(?![\w/-]|\.\w)",
    re.IGNORECASE,
)


def named_pictures(text: str) -> list[str]:
    """Paths of pictures on this machine, in the order of the text, each once."""
    if len(text) > LONGEST_TEXT or _ANY.search(text) is None:
        return []
    found = [_as_path(match["note"] or match["quoted"] or match["word"]) for match in _PATH.finditer(text)]
    return list(dict.fromkeys(path for path in found if path))[:MOST_PICTURES]


def _as_path(written: str) -> str:
    if not written.lower().startswith("file:"):
        return "" if "://" in written else written
    parts = urlsplit(written)
    return unquote(parts.path) if parts.netloc in ("", "localhost") else ""


async def with_pictures(message: UserMessage, prepared: Preparation | None, source: str = "") -> UserMessage:
    """For a model that sees. What it saw is then in the transcript, and the same in every later turn."""
    if prepared is None or "image" not in prepared.model.input:
        return message
    read = prepared.tools.get("read")
    if not isinstance(read, ReadTool):
        return message
    own = source in OPERATORS
    return await with_named_pictures(message, PathOpener(prepared.workspace, confine=False) if own else read.opener)


async def with_named_pictures(message: UserMessage, opener: PathOpener) -> UserMessage:
    """The message itself when it names none."""
    paths = named_pictures(user_text(message))
    if not paths:
        return message
    blocks: list[UserBlock] = (
        [TextBlock(text=message.content)] if isinstance(message.content, str) else list(message.content)
    )
    there = {block.data for block in blocks if isinstance(block, ImageBlock)}
    loaded = await asyncio.to_thread(_load, paths, opener, there)
    return msgspec.structs.replace(message, content=[*blocks, *loaded]) if loaded else message


def _load(paths: Sequence[str], opener: PathOpener, there: set[str]) -> list[ImageBlock]:
    """``there``: what came attached is not shown a second time for its path."""
    loaded: list[ImageBlock] = []
    for path in paths:
        try:
            with opener.open_read(path) as file:
                data = file.read(MAX_SOURCE_BYTES + 1)
            mime_type = sniff_image(data)
            if mime_type is None or base64.b64encode(data).decode() in there:
                continue
            block = fit_image(data, mime_type).block
        except (ToolError, ImageProblem, OSError):
            continue
        if block.data not in there:
            there.add(block.data)
            loaded.append(block)
    return loaded
