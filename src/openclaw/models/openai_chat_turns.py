"""Chat messages for servers that insist on the order of roles: Mistral's, and templates made after them."""

from __future__ import annotations

from typing import Any

from openclaw.models import convert

BRIDGE = "(results received)"
"""Said by the assistant between the results of its calls and the next words of the user."""


def in_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """User and assistant take turns, beginning and ending with the user or with results; system messages left out."""
    out: list[dict[str, Any]] = []
    for message in messages:
        role, last = message["role"], out[-1]["role"] if out else None
        if last is None and role != "user":
            out.append({"role": "user", "content": convert.BOOTSTRAP})
        elif role == "user" and last == "tool":
            out.append({"role": "assistant", "content": BRIDGE})
        elif role == last and role != "tool":
            out[-1] = _joined(out[-1], message)
            continue
        out.append(message)
    if out and out[-1]["role"] == "assistant":
        out.append({"role": "user", "content": convert.CONTINUE})
    return out


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two messages of one role; of the assistant's, only the second can hold calls: results follow calls at once."""
    contents = [content for content in (first["content"], second["content"]) if content]
    if all(isinstance(content, str) for content in contents):
        joined: Any = "\n".join(contents) if contents else None
    else:
        joined = [part for content in contents for part in _parts(content)]
    return {**first, **second, "content": joined}


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
