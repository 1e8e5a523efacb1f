"""From a conversation as OpenAI clients send it (all of it, every time) to the one message a session should take in.

Pure functions. A session keeps its own history, so only what it does not yet hold is said to it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec

from openclaw.messages import AssistantMessage, Message, TextBlock, ToolCall, ToolResultMessage, UserMessage

HISTORY_MARK = "[Chat messages since your last reply - for context]"
CURRENT_MARK = "[Current message - respond to this]"
_CALL_ID = re.compile(r"call_([A-Za-z0-9_-]{22})([0-9a-f]{8})")


class Said(msgspec.Struct, kw_only=True):
    """One message of the request, or one item of its input."""

    role: Literal["user", "assistant", "tool"]
    text: str
    images: list[str] = []
    """Addresses, mostly ``data:`` ones."""
    name: str = ""
    """Of the tool whose output this is, where the caller tells."""
    call_id: str = ""
    calls: list[str] = []
    """Ids of the calls an assistant's message makes."""


class Prompt(msgspec.Struct, kw_only=True):
    text: str
    images: list[str]
    tool_outputs: list[ToolResultMessage]
    continues: bool
    """The session holds what came before, so that was left out."""


class NoMessage(ValueError):
    """There is nothing to answer."""


def compose(said: Sequence[Said], known: Sequence[Message], now_ms: int) -> Prompt:
    """What to tell a session whose newest messages are ``known``; raises ``NoMessage``."""
    said = _up_to_current(said)
    place = max((index for index, one in enumerate(said) if one.role == "assistant"), default=-1) + 1
    earlier, new = said[:place], said[place:]
    calls, answered = _last_calls(known)
    matched = {id(one): call for one in new if (call := _call_of(one, calls)) is not None}
    outputs = [
        _output(one, matched[id(one)], now_ms)
        for one in new
        if id(one) in matched and matched[id(one)].id not in answered
    ]
    continues = bool(matched) or not earlier or _is_last_answer(earlier[-1].text, known)
    rest = [one for one in (new if continues else said) if id(one) not in matched]
    return Prompt(
        text=_wrapped(rest),
        images=[image for one in rest for image in one.images],
        tool_outputs=outputs,
        continues=continues,
    )


def refers_back(said: Sequence[Said]) -> bool:
    """Whether it takes the session's newest messages to understand it: words of a user alone say all by themselves."""
    return any(one.role != "user" for one in said)


def _up_to_current(said: Sequence[Said]) -> list[Said]:
    """Up to the last message of the user or of a tool; what an assistant may have begun after it is not ours."""
    usable = [one for one in said if one.text.strip() or one.images or one.role == "tool"]
    current = max((index for index, one in enumerate(usable) if one.role != "assistant"), default=None)
    if current is None:
        raise NoMessage
    return usable[: current + 1]


def _wrapped(said: Sequence[Said]) -> str:
    if not said:
        return ""
    *earlier, current = said
    if not earlier:
        return current.text
    history = "\n".join(_labelled(one) for one in earlier)
    return f"{HISTORY_MARK}\n{history}\n\n{CURRENT_MARK}\n{_labelled(current)}"


def _labelled(one: Said) -> str:
    labels = {"user": "User", "assistant": "Assistant", "tool": f"Tool:{one.name or one.call_id or 'unknown'}"}
    pictures = f"{len(one.images)} attached" if len(one.images) > 1 else "attached"
    text = " ".join(part for part in (one.text, f"[image {pictures}]" if one.images else "") if part)
    return f"{labels[one.role]}: {text}"


# Calls that the caller runs


def public_call_id(run_id: str, call_id: str) -> str:
    """The id a caller gets: it leads back to the run, and so to the session, that is waiting for the output.

    Vendors' own ids say nothing about where a call belongs, and a stateless caller sends nothing else.
    """
    run = base64.urlsafe_b64encode(uuid.UUID(run_id).bytes).decode().rstrip("=")
    return f"call_{run}{_digest(call_id)}"


def run_of(public_id: str) -> str | None:
    """The run that made the call, when the id is one of ours."""
    match = _CALL_ID.fullmatch(public_id)
    if match is None:
        return None
    try:
        return str(uuid.UUID(bytes=base64.urlsafe_b64decode(match[1] + "==")))
    except (ValueError, binascii.Error):
        return None


def runs_named(said: Sequence[Said]) -> list[str]:
    """Runs whose calls the conversation mentions, newest first."""
    ids = [call_id for one in reversed(said) for call_id in (one.call_id, *one.calls) if call_id]
    return list(dict.fromkeys(run for call_id in ids if (run := run_of(call_id)) is not None))


def _digest(call_id: str) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:8]


def _call_of(one: Said, calls: Sequence[ToolCall]) -> ToolCall | None:
    if one.role != "tool" or not one.call_id:
        return None
    ours = _CALL_ID.fullmatch(one.call_id)
    return next((call for call in calls if call.id == one.call_id or (ours and _digest(call.id) == ours[2])), None)


def _last_calls(known: Sequence[Message]) -> tuple[list[ToolCall], set[str]]:
    """The calls of the last message that did not fail, and which of them have their result."""
    answered: set[str] = set()
    for message in reversed(known):
        if isinstance(message, ToolResultMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, UserMessage):
            break
        elif message.stop_reason not in ("error", "aborted"):
            return message.tool_calls, answered
    return [], answered


def _output(one: Said, call: ToolCall, now_ms: int) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id, tool_name=call.name, content=[TextBlock(text=one.text)], timestamp=now_ms
    )


def _is_last_answer(text: str, known: Sequence[Message]) -> bool:
    """Whether this is what the session answered last; a run with tools may have answered in several messages."""
    texts: list[str] = []
    for message in reversed(known):
        if isinstance(message, UserMessage):
            break
        if isinstance(message, AssistantMessage) and message.stop_reason not in ("error", "aborted"):
            texts.insert(0, message.text)
    said = text.split()
    return bool(said) and said in (" ".join(texts).split(), texts[-1].split() if texts else [])
