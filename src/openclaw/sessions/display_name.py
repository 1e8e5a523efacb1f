"""The short name under which a group's session is listed."""

from __future__ import annotations

import re

_DROPPED = re.compile(r"[^a-z0-9#@._+-]+")
_DASHES = re.compile(r"-{2,}")
LONGEST_ID = 14


def group_display_name(
    channel: str, *, id: str, subject: str | None = None, group_channel: str | None = None, space: str | None = None
) -> str:
    """``discord:friends#general``, ``whatsapp:g-my-family-group``; from the id where the chat has no name."""
    if group_channel:
        mark = "" if group_channel.startswith("#") else "#"
        source = f"{space}{mark}{group_channel}" if space else group_channel
    else:
        source = subject or space or id
    token = _slug(source) or _slug(_shortened(id))
    if token and not token.startswith(("@", "#", "g-")) and "#" not in token:
        token = f"g-{token}"
    return f"{channel}:{token}"


def _slug(text: str) -> str:
    lowered = "-".join(text.strip().lower().split())
    return _DASHES.sub("-", _DROPPED.sub("-", lowered)).strip("-.")


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_ID else f"{text[:6]}...{text[-4:]}"
