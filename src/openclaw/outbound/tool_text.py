"""What people on a channel are told of the tools that the agent uses, in sessions with ``/verbose``."""

from __future__ import annotations

from typing import Any

from openclaw.events import CompactionEnded, Event, ToolEnded, ToolStarted
from openclaw.messages import TextBlock
from openclaw.redact import redact
from openclaw.text import shortened

MOST_OUTPUT = 8000
"""Longer results are cut, because they fill the screen of a phone many times over."""
_META = 120
# fmt: off
_EMOJI = {
    "exec": "🛠️", "read": "📖", "write": "✍️", "edit": "📝", "process": "🧰", "browser": "🌐", "web_fetch": "🌐",
    "web_search": "🔎", "memory_search": "🧠", "memory_get": "🧠", "message": "✉️", "cron": "⏰", "image": "🖼️",
    "sessions_send": "🗨️", "sessions_spawn": "🧑‍🔧", "canvas": "🖼️", "nodes": "📱",
}
# fmt: on
_TELLING = ("command", "path", "file_path", "url", "query", "action", "name", "to", "target", "text")
"""Arguments that say most about a call, in the order in which they are looked for."""


def run_notice(event: Event, verbose: str) -> str:
    """The notice about an event of a run. Empty if there is none at this level (``off``, ``on`` or ``full``)."""
    if verbose not in ("on", "full"):
        return ""
    match event:
        case ToolStarted(name=name, arguments=arguments):
            return tool_summary(name, arguments)
        case ToolEnded(message=message, arguments=arguments) if verbose == "full":
            text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock)).strip()
            return f"{tool_summary(message.tool_name, arguments)}\n{_fenced(text)}"
        case CompactionEnded(entry_id=entry, count=count) if entry is not None:
            return f"🧹 Auto-compaction complete (count {count})."
        case _:
            return ""


def tool_summary(name: str, arguments: dict[str, Any]) -> str:
    """``📖 Read: `notes.md```"""
    label = name.replace("_", " ").capitalize()
    said = next((arguments[key] for key in _TELLING if isinstance(arguments.get(key), str) and arguments[key]), "")
    meta = shortened(redact(str(said)), _META).replace("`", "'")
    head = f"{_EMOJI.get(name, '🧩')} {label}"
    return f"{head}: `{meta}`" if meta else head


def _fenced(text: str) -> str:
    if not text:
        return "(no output)"
    text = redact(text if len(text) <= MOST_OUTPUT else text[: MOST_OUTPUT - 1] + "…")
    fence = "````" if "```" in text else "```"
    return f"{fence}txt\n{text}\n{fence}"
