"""What the agent wrote with the message tool to the conversation that it answers. That is not said twice."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import category

from openclaw.events import Event, ToolEnded

TOOL = "message"
_TEXT = ("message", "content", "text", "caption")
LEAST_REPEATED = 10
"""A shorter text may be the same by chance."""
MOST_REMEMBERED = 200


def messaged_here(event: Event) -> str | None:
    """The text of a message that a tool sent to this conversation. It may be empty beside a file. None: it is none."""
    if not isinstance(event, ToolEnded) or event.message.tool_name != TOOL:
        return None
    match event.message.details:
        case {"action": "send" | "reply" | "thread-reply", "here": True, "status": "ok" | "accepted"}:
            return next((str(event.arguments[name]) for name in _TEXT if event.arguments.get(name)), "")
        case _:
            return None


def is_repeated(text: str, messaged: Sequence[str]) -> bool:
    """Whether the agent has said this already with the tool, or more, or less."""
    said = _plain(text) if messaged else ""
    return len(said) >= LEAST_REPEATED and any(
        said in other or other in said for other in map(_plain, messaged) if len(other) >= LEAST_REPEATED
    )


def _plain(text: str) -> str:
    """A text without what does not count when two are compared: case, blanks and emoji."""
    return " ".join("".join(char for char in text.lower() if category(char) not in ("So", "Sk")).split())
