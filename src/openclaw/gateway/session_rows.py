"""Sessions as lists show them. One place computes the numbers, so that every view shows the same ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from openclaw.clock import iso_utc
from openclaw.config.agents import default_agent_id
from openclaw.inbound.stamp import GREETING_MARK, without_wrappers
from openclaw.messages import AssistantMessage, ImageBlock, Message, ToolCall, UserMessage, decode_message
from openclaw.models.catalogue import UnknownModel
from openclaw.outbound.reasoning import typed
from openclaw.outbound.visible import visible_text
from openclaw.sessions.keys import RESERVED_KEYS, channel_of, is_cron_run_alias, kind_of, shown_key
from openclaw.storage.base import Entry, SessionRow, TranscriptRef

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

TITLE_LENGTH = 60
HEAD_BYTES, HEAD_LINES = 16 * 1024, 20
_COPIED = (
    "label",
    "displayName",
    "channel",
    "subject",
    "groupChannel",
    "space",
    "chatType",
    "origin",
    "updatedAt",
    "sessionId",
    "systemSent",
    "abortedLastRun",
    "thinkingLevel",
    "verboseLevel",
    "reasoningLevel",
    "elevatedLevel",
    "sendPolicy",
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cacheRead",
    "cacheWrite",
    "responseUsage",
    "modelProvider",
    "model",
    "contextTokens",
    "compactionCount",
    "deliveryContext",
    "lastChannel",
    "lastTo",
    "lastAccountId",
    "spawnedBy",
)


def list_kind(row: SessionRow) -> str:
    """``direct``, ``group`` or ``unknown``, as session lists sort them."""
    if row.key == "unknown":
        return row.key
    return "group" if kind_of(row.key, row.entry) == "group" else "direct"


def row_view(row: SessionRow, defaults: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = {"key": shown_key(row.key), "kind": list_kind(row)}
    entry: dict[str, Any] = dict(row.entry)
    for name in _COPIED:
        if name in entry:
            view[name] = entry[name]
    if entry.get("modelOverride"):
        view["model"] = entry["modelOverride"]
        view["modelProvider"] = entry.get("providerOverride") or view.get("modelProvider") or defaults["modelProvider"]
    view["channel"] = channel_of(entry, row.key)
    # The names the store had for these before, which some readers of lists still look for.
    view |= {old: view[new] for old, new in (("provider", "channel"), ("room", "groupChannel")) if new in view}
    for name in ("modelProvider", "model", "contextTokens"):
        if not view.get(name):
            view[name] = defaults[name]
    return view


def model_defaults(gateway: Gateway, agent_id: str | None = None) -> dict[str, Any]:
    """The model a session without a choice of its own would use; nulls when none can be resolved."""
    config = gateway.runtime.config.current
    try:
        model = gateway.runtime.catalogue().default_for(config, agent_id or default_agent_id(config))
    except UnknownModel:
        return {"modelProvider": None, "model": None, "contextTokens": None}
    return {"modelProvider": model.provider, "model": model.id, "contextTokens": model.context_window}


class Listed(NamedTuple):
    rows: list[SessionRow]
    total: int
    """Of all that may be listed, not only of ``rows``."""


async def most_recent(gateway: Gateway, agent_id: str, limit: int) -> Listed:
    """The newest sessions of an agent, reserved keys left out. A long store is not walked through."""
    rows = await gateway.runtime.sessions.rows(agent_id)
    shared = gateway.runtime.config.current.session.scope == "global"
    hidden = [key for key in RESERVED_KEYS if key != "global" or not shared]
    held_back = [key for key in hidden if await gateway.runtime.sessions.get(agent_id, key) is not None]
    shown = matching(rows, include_global=shared, include_unknown=False)
    return Listed(list(islice(shown, limit)), len(rows) - len(held_back))


def matching(rows: Sequence[SessionRow], *, include_global: bool, include_unknown: bool) -> Iterator[SessionRow]:
    """What a list may show at all: aliases of single cron runs and reserved keys are left out."""
    for row in rows:
        hidden = (row.key == "global" and not include_global) or (row.key == "unknown" and not include_unknown)
        if not hidden and not is_cron_run_alias(row.key):
            yield row


def search_text(row: SessionRow) -> str:
    entry = row.entry
    parts = (entry.get("displayName"), entry.get("label"), entry.get("subject"), entry.get("sessionId"), row.key)
    return "\n".join(part for part in parts if part).lower()


# Looking into transcripts


async def last_messages(gateway: Gateway, row: SessionRow, limit: int) -> list[Message]:
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.entry["sessionId"], file=row.entry.get("sessionFile"))
    return [message for entry in await gateway.runtime.transcripts.tail(ref, limit) if (message := message_of(entry))]


async def first_messages(gateway: Gateway, row: SessionRow) -> list[Message]:
    """What a session began with, for its name; none when its file is compressed or begins with something very long."""
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.entry["sessionId"], file=row.entry.get("sessionFile"))
    path = gateway.runtime.transcripts.locate(ref)
    if path is None or not path.endswith(".jsonl"):
        return []
    lines = await asyncio.to_thread(_head, path)
    return [message for line in lines if (message := _line_message(line)) is not None]


def _head(path: str) -> list[bytes]:
    """The first whole lines."""
    try:
        with Path(path).open("rb") as file:
            lines = file.read(HEAD_BYTES).split(b"\n")
    except OSError:
        return []
    return lines[:HEAD_LINES] if len(lines) > HEAD_LINES else lines[:-1]


def _line_message(line: bytes) -> Message | None:
    try:
        raw = _message_only.decode(line).message
        return decode_message(raw) if bytes(raw) else None
    except msgspec.MsgspecError:
        return None


class _MessageOnly(msgspec.Struct):
    message: msgspec.Raw = msgspec.Raw(b"")


_message_only = msgspec.json.Decoder(_MessageOnly)


def message_of(entry: Entry) -> Message | None:
    if entry.type != "message":
        return None
    try:
        return decode_message(_message_only.decode(entry.raw).message)
    except msgspec.MsgspecError:
        return None


def derived_title(row: SessionRow, messages: list[Message]) -> str:
    entry = row.entry
    for name in ("displayName", "subject"):
        if value := entry.get(name):
            return str(value)
    said = (" ".join(preview_text(message).split()) for message in messages if isinstance(message, UserMessage))
    text = next((words for words in said if not words.startswith(GREETING_MARK)), "")
    if not text:
        return f"{entry['sessionId'][:8]} ({iso_utc(entry.get('updatedAt', 0))[:10]})"
    if len(text) <= TITLE_LENGTH:
        return text
    cut = text[: TITLE_LENGTH - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > TITLE_LENGTH * 0.6 else cut) + "…"


def preview_role(message: Message) -> str:
    return {"user": "user", "assistant": "assistant", "toolResult": "tool"}[message.__struct_config__.tag]  # type: ignore[index]


def preview_text(message: Message) -> str:
    """A message as one short text: pictures and calls named, wrappers taken off."""
    if isinstance(message, UserMessage) and isinstance(message.content, str):
        return without_wrappers(message.content)
    if isinstance(message, AssistantMessage):
        if text := visible_text(typed(message).text, complete=message.stop_reason not in ("error", "aborted")):
            return text
        names = [block.name for block in message.content if isinstance(block, ToolCall)]
        more = f" +{len(names) - 2}" if len(names) > 2 else ""
        return f"call {', '.join(names[:2])}{more}" if names else ""
    blocks = [block for block in message.content if not isinstance(block, str)]
    parts = ["[image]" if isinstance(block, ImageBlock) else block.text for block in blocks]
    text = "\n".join(parts)
    return without_wrappers(text) if isinstance(message, UserMessage) else text


def shortened(text: str, limit: int) -> str:
    plain = re.sub(r"[ \t]+", " ", text).strip()
    return plain if len(plain) <= limit else plain[: max(0, limit - 3)].rstrip() + "..."
