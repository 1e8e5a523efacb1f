"""What the model server will answer: a reply as a record, and the directives that describe one inside a user's text."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

_DIRECTIVE = re.compile(r"\[\[(reply|tokens|delay|sleep|tool|next|error|cut|think|stop)(?::|\]\])")
_TOKEN = re.compile(r"\S+\s*|\s+")


@dataclass
class Call:
    """A tool call the model makes. ``arguments`` may be a string: raw JSON text, also broken."""

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)
    id: str = ""


@dataclass
class Reply:
    """One answer of the model. Every field has a sensible default; see model_server for examples."""

    text: str = ""
    pieces: list[str] = field(default_factory=list)
    """The text as it is cut into deltas; at white space when left out."""
    thinking: str = ""
    signature: str = "c2lnbmF0dXJl"
    redacted: str = ""
    calls: list[Call] = field(default_factory=list)
    stop: str = ""
    """``stop``, ``length``, ``toolUse`` or ``refusal``; found out from the calls when empty."""
    usage: dict[str, int] = field(default_factory=dict)
    """Any of input, output, cacheRead, cacheWrite, reasoning; counted when left out."""

    status: int = 200
    message: str = ""
    """With a status of 400 or more: the vendor-shaped error's message. With 200: an error event inside the stream."""
    error_type: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    sleep_ms: float = 0
    delay_ms: float = 0
    hold: asyncio.Event | None = None
    """The stream stops until the event is set …"""
    hold_after: int = 0
    """… after this many tokens (0: before the first, headers already sent)."""

    cut: bool = False
    """The connection breaks before the terminal event."""
    clean_cut: bool = False
    """The body ends properly, but before the terminal event."""
    cut_after: int | None = None
    """The connection breaks after this many bytes of the stream."""
    raw: bytes | None = None
    """These bytes are sent as the body instead."""
    content_type: str = "text/event-stream"

    @property
    def tokens(self) -> list[str]:
        return self.pieces or _TOKEN.findall(self.text)

    @property
    def fails(self) -> bool:
        return self.status >= 400 or bool(self.message) or self.cut or self.clean_cut or self.cut_after is not None


def parse_stages(text: str) -> list[Reply]:
    """The replies a user's text asks for, one per model call; empty when it holds no directive."""
    stages: list[Reply] = [Reply()]
    found = False
    position = 0
    while match := _DIRECTIVE.search(text, position):
        found = True
        name = match.group(1)
        if match.group().endswith("]]"):
            argument, position = "", match.end()
        elif name == "tool":
            argument, position = _tool_argument(text, match.end())
        else:
            end = text.find("]]", match.end())
            end = len(text) if end < 0 else end
            argument, position = text[match.end() : end], end + 2
        if name == "next":
            stages.append(Reply())
        else:
            stages[-1] = _with_directive(stages[-1], name, argument)
    return stages if found else []


def _tool_argument(text: str, start: int) -> tuple[str, int]:
    """``name {json}``; the JSON may hold ``]]`` itself."""
    brace = text.find("{", start)
    close = text.find("]]", start)
    if brace < 0 or 0 <= close < brace:
        end = close if close >= 0 else len(text)
        return text[start:end], end + 2
    try:
        _, end = json.JSONDecoder().raw_decode(text, brace)
    except ValueError:
        end = close if close >= 0 else len(text)
    after = text.find("]]", end)
    return text[start:end], (after if after >= 0 else len(text)) + 2


def _with_directive(reply: Reply, name: str, argument: str) -> Reply:
    match name:
        case "reply":
            return replace(reply, text=reply.text + argument)
        case "tokens":
            return replace(reply, text=reply.text + "".join(f"tok{n} " for n in range(int(argument))))
        case "delay":
            return replace(reply, delay_ms=float(argument))
        case "sleep":
            return replace(reply, sleep_ms=float(argument))
        case "tool":
            tool, _, arguments = argument.strip().partition(" ")
            return replace(reply, calls=[*reply.calls, Call(tool, _object_or_text(arguments.strip()))])
        case "error":
            status, _, message = argument.strip().partition(" ")
            return replace(reply, status=int(status), message=message or "scripted error")
        case "cut":
            return replace(reply, cut=True)
        case "stop":
            return replace(reply, stop=argument.strip())
        case _:
            return replace(reply, thinking=reply.thinking + argument)


def _object_or_text(text: str) -> dict[str, Any] | str:
    if not text:
        return {}
    try:
        return json.loads(text)
    except ValueError:
        return text
