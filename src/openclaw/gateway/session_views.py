"""What clients see of sessions: their histories, the entries of their trees, and their rows in lists.

A history has no wrappers and stays within a byte budget. Every list takes its rows from here, so that all show the same
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from openclaw.agent.continuation import join
from openclaw.agent.request_log import preview, role_of
from openclaw.config.agents import default_agent_id
from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage, decode_message, user_text
from openclaw.models.catalogue import UnknownModel
from openclaw.outbound.answer_filter import media_of, visible_message
from openclaw.outbound.session_preview import message_of
from openclaw.protocol.sessions import ModelDefaults, SessionRowView, TreeEntryView
from openclaw.sessions.entry import group_display_name
from openclaw.sessions.keys import RESERVED_KEYS, channel_of, kind_of, rest_of, shown_key
from openclaw.sessions.prompt_prefix import COLLECTED, as_typed, is_internal, typed_text, without_wrappers
from openclaw.sessions.tree import public_messages, with_their_calls
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.sessions import SessionRow, SessionStore
from openclaw.storage.transcripts import Entry, Transcript
from openclaw.text import clipped
from openclaw.worker_thread import with_many

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime

MAX_BYTES = 6 * 1024 * 1024
LARGEST_MESSAGE = MAX_BYTES // 2
"""Of a larger message only the beginning is part of a history."""
LONGEST_SHOWN = 4_000
"""A page gets this much of a tool's output, and of each argument of a call. It asks for the entry to see more."""
LONGEST_WORDS = 100_000
LONGEST_PREVIEW = 200
_OURS = "openclaw"
"""The provider in messages that no model wrote."""
_MAYBE_HIDDEN = re.compile(rb'NO_REPLY|HEARTBEAT_OK|MEDIA:|_SKIP"|<|\[\[|"thinking"|\\u')
"""A message that contains none of these is shown as it is, without being decoded."""
_CUT = b'"length"'
_UNNUMBERED = frozenset({"session", "label", "model_change", "thinking_level_change", "branch_summary", "custom"})
"""Types of entries that no history shows as a message."""
_ROW_FIELDS = """
label displayName channel subject groupChannel space chatType origin updatedAt sessionId systemSent abortedLastRun
thinkingLevel verboseLevel reasoningLevel elevatedLevel sendPolicy inputTokens outputTokens totalTokens cacheRead
cacheWrite responseUsage modelProvider model contextTokens compactionCount deliveryContext lastChannel lastTo
lastAccountId spawnedBy pinnedAt archivedAt readAt
"""
_ATTRIBUTES = dict(zip(SessionRowView.__struct_encode_fields__, SessionRowView.__struct_fields__, strict=True))
_COPIED = {name: _ATTRIBUTES[name] for name in _ROW_FIELDS.split()}
"""The fields of an entry that a row has too: their names in the entry and in the row."""


# Histories


def read_history(entries: Sequence[Entry], *, public: bool, with_reasoning: bool = False) -> list[Any]:
    """The messages, oldest first. When they exceed the byte budget together, only the newest are kept.

    What the model decided not to say is left out. Its reasoning is left out too, unless the session shows it.
    """
    entries = joined_parts(entries)
    if public:
        messages = with_their_calls(public_messages(entries, partial(as_people_see_it, with_reasoning=with_reasoning)))
        return _within_budget([msgspec.Raw(msgspec.json.encode(item)) for item in messages])
    return _within_budget([raw for entry in entries if (raw := _stored(entry, with_reasoning)) is not None])


def page_of_history(entries: Sequence[Entry], *, with_reasoning: bool = False) -> list[dict[str, Any]]:
    """The messages as a web page lists them: each with its entry's id, pictures and long output left out."""
    shown: list[dict[str, Any]] = []
    for entry in joined_parts(entries):
        raw = _stored(entry, with_reasoning)
        if raw is None:
            continue
        message = msgspec.json.decode(raw)
        if not isinstance(message, dict):
            continue
        mark = message.get("__openclaw")
        mark = cast("dict[str, Any]", mark) if isinstance(mark, dict) else {}
        message["__openclaw"] = {**mark, **_spent(message.get("usage")), "id": entry.id, "parentId": entry.parent_id}
        for unseen in ("usage", "api", "details"):
            message.pop(unseen, None)
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        longest = LONGEST_SHOWN if message.get("role") == "toolResult" else LONGEST_WORDS
        blocks = cast("list[Any]", content) if isinstance(content, list) else []
        if message.get("role") == "user":
            blocks = [_uncollected(one) for one in blocks]
        message["content"] = [_lean_block(cast("dict[str, Any]", one), longest) for one in blocks if _kind(one)]
        shown.append(message)
    return shown


def _spent(usage: Any) -> dict[str, Any]:
    """Return what a page shows of the usage of a model call."""
    match usage:
        case {"totalTokens": int(tokens), "cost": {"total": int() | float() as cost}} if tokens:
            return {"tokens": tokens, "cost": cost}
        case {"totalTokens": int(tokens)} if tokens:
            return {"tokens": tokens}
        case _:
            return {}


class NumberedMessage(NamedTuple):
    """A message of a history: its entry, and its number among the messages of the branch, from 1."""

    id: str
    seq: int
    fields: dict[str, Any]


async def numbered_messages(
    transcript: Transcript, entries: Sequence[Entry], *, with_reasoning: bool, own_runs: Mapping[str, str]
) -> list[NumberedMessage]:
    """The last entries of the active branch as protocol 4 shows them, with their ids and numbers.

    ``own_runs`` has run ids by entry id. A client recognises its own message by the run id.
    """

    def numbers() -> dict[str, int]:
        parents = {id: (parent, kind) for id, parent, kind in transcript.tree()}
        path: list[str] = []
        at = transcript.leaf_id
        while at is not None and at in parents:
            if parents[at][1] not in _UNNUMBERED:
                path.append(at)
            at = parents[at][0]
        return {id: number for number, id in enumerate(reversed(path), 1)}

    seqs = await with_many(len(transcript), numbers)
    shown: list[NumberedMessage] = []
    for entry in entries:
        raw = _stored(entry, with_reasoning)
        if raw is None:
            continue
        message = msgspec.json.decode(_shortened(raw) if len(bytes(raw)) > LARGEST_MESSAGE else raw)
        mark, seq = message.get("__openclaw"), seqs.get(entry.id, 0)
        message["__openclaw"] = {**(mark if isinstance(mark, dict) else {}), "id": entry.id, "seq": seq}
        if message.get("role") == "user" and entry.id in own_runs:
            message["idempotencyKey"] = f"{own_runs[entry.id]}:user"
        shown.append(NumberedMessage(entry.id, seq, message))
    return shown


def newest_within(messages: list[NumberedMessage], most_bytes: int) -> list[NumberedMessage]:
    """Return the newest messages that fit into so many bytes together, oldest first."""
    total = 0
    for index in range(len(messages) - 1, -1, -1):
        total += len(msgspec.json.encode(messages[index].fields)) + 1
        if total > most_bytes:
            return messages[index + 1 :]
    return messages


def as_people_see_it(message: Message, *, with_reasoning: bool) -> Message | None:
    """The message without wrappers and without what is not for people. None when nothing is left."""
    if isinstance(message, AssistantMessage):
        return visible_message(message, with_reasoning=with_reasoning)
    if not isinstance(message, UserMessage):
        return message
    if is_internal(user_text(message)):
        return None
    if isinstance(message.content, str):
        return msgspec.structs.replace(message, content=as_typed(message, message.content))
    blocks = [
        TextBlock(text=as_typed(message, block.text)) if isinstance(block, TextBlock) else block
        for block in message.content
    ]
    return msgspec.structs.replace(message, content=blocks)


def named_files(entry: Entry) -> tuple[str, ...]:
    """The files that an entry names, if it is a message of the agent."""
    message = message_of(entry)
    return media_of(message) if isinstance(message, AssistantMessage) else ()


class _Line(msgspec.Struct):
    """The part of a line that a history view needs; the message itself stays undecoded."""

    message: msgspec.Raw = msgspec.Raw(b"")
    timestamp: Any = None
    content: Any = None


class _RoleOf(msgspec.Struct):
    role: str = ""


_line = msgspec.json.Decoder(_Line)
_role = msgspec.json.Decoder(_RoleOf)


def _stored(entry: Entry, with_reasoning: bool) -> msgspec.Raw | None:
    if entry.type in ("compaction", "custom"):
        return msgspec.Raw(msgspec.json.encode(_marker_view(entry)))
    try:
        line = _line.decode(entry.raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if entry.type == "custom_message":
        content = [{"type": "text", "text": line.content}] if isinstance(line.content, str) else line.content
        view = {"role": "user", "content": content, "timestamp": _ms(line.timestamp)}
        return msgspec.Raw(msgspec.json.encode(view))
    raw = bytes(line.message)
    if not raw:
        return None
    if b'"user"' in raw and _role_of(raw) == "user":
        return _unwrapped(raw)
    if _MAYBE_HIDDEN.search(raw) and _role_of(raw) == "assistant":
        return _shown(raw, with_reasoning)
    return line.message


def _role_of(raw: bytes) -> str:
    try:
        return _role.decode(raw).role
    except (msgspec.MsgspecError, RecursionError):
        return ""


def _ms(timestamp: Any) -> int | None:
    """The time of an entry as messages state it. Entries have it as text."""
    if not isinstance(timestamp, str):
        return timestamp if isinstance(timestamp, int) else None
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
    except ValueError:
        return None


def _shown(raw: bytes, with_reasoning: bool) -> msgspec.Raw | None:
    """The model's message without what is not for people; other fields stay as they are."""
    message = decode_message(raw)
    if not isinstance(message, AssistantMessage):
        return msgspec.Raw(raw)
    shown = visible_message(message, with_reasoning=with_reasoning)
    if shown is None:
        return None
    media = media_of(message)
    if shown.content == message.content and not media:
        return msgspec.Raw(raw)
    fields = msgspec.json.decode(raw)
    fields["content"] = shown.content
    if media:
        fields["mediaUrls"] = list(media)
    return msgspec.Raw(msgspec.json.encode(fields))


def _unwrapped(raw: bytes) -> msgspec.Raw | None:
    """Remove the wrappers from the texts. Fields and blocks that we do not know stay as they are."""
    message = msgspec.json.decode(raw)
    content, written = message.get("content"), message.pop("written", None)
    if isinstance(content, str):
        if is_internal(content):
            return None
        message["content"] = without_wrappers(content) if written is None else written
    elif isinstance(content, list):
        for block in content:
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                if is_internal(block["text"]):
                    return None
                block["text"] = without_wrappers(block["text"]) if written is None else written
    return msgspec.Raw(msgspec.json.encode(message))


def _marker_view(entry: Entry) -> dict[str, Any]:
    """A compaction or a marker between sessions. People see it as a line of its own."""
    line = msgspec.json.decode(entry.raw)
    if entry.type == "compaction":
        kind, text = "compaction", "Compaction"
    else:
        data = line.get("data")
        fields: dict[str, Any] = data if isinstance(data, dict) else {}
        kind, text = str(line.get("customType") or "custom"), str(fields.get("text") or "")
    return {
        "role": "system",
        "content": [{"type": "text", "text": text}],
        "timestamp": _ms(line.get("timestamp")),
        "__openclaw": {"kind": kind, "id": entry.id},
    }


def _uncollected(block: Any) -> Any:
    """Messages that were answered together, without the words that tell the model so."""
    match block:
        case {"type": "text", "text": str(text)} if text.startswith(COLLECTED):
            return {"type": "text", "text": typed_text(text)}
        case _:
            return block


def _lean_block(block: dict[str, Any], longest: int) -> dict[str, Any]:
    match block:
        case {"type": "image", "data": str(data)}:
            size = len(data) * 3 // 4
            return {"type": "image", "mimeType": block.get("mimeType"), "bytes": size, "omitted": True}
        case {"type": "text", "text": str(text)} if len(text) > longest:
            return {"type": "text", "text": text[:longest], "omitted": len(text) - longest}
        case {"type": "thinking", "thinking": str(text)}:
            return {"type": "thinking", "thinking": text[:LONGEST_WORDS]}
        case {"type": "toolCall", "arguments": dict(arguments)}:
            lean = {
                str(name): value[:LONGEST_SHOWN] + "…"
                if isinstance(value, str) and len(value) > LONGEST_SHOWN
                else value
                for name, value in arguments.items()
            }
            return {"type": "toolCall", "id": block.get("id"), "name": block.get("name"), "arguments": lean}
        case _:
            return block


def _kind(block: Any) -> str:
    return str(cast("dict[str, Any]", block).get("type")) if isinstance(block, dict) else ""


def _within_budget(items: list[msgspec.Raw]) -> list[msgspec.Raw]:
    total = 0
    items = [_shortened(item) if len(bytes(item)) > LARGEST_MESSAGE else item for item in items]
    for index in range(len(items) - 1, -1, -1):
        total += len(bytes(items[index])) + 1
        if total > MAX_BYTES:
            return items[index + 1 :]
    return items


def _shortened(item: msgspec.Raw) -> msgspec.Raw:
    """The beginning of a message so large that there would be no room for what was said before it."""
    message = msgspec.json.decode(item)
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if isinstance(blocks, list):
        message["content"] = [_lean_block(cast("dict[str, Any]", one), LONGEST_WORDS) for one in blocks if _kind(one)]
    message.pop("details", None)
    return msgspec.Raw(msgspec.json.encode(message))


# The parts of an answer that was cut


def joined_parts(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The same entries with the parts of a cut answer joined. Nothing is decoded when no answer was cut."""
    if not any(_CUT in entry.raw for entry in entries):
        return entries
    shown: list[Entry] = []
    before: dict[str, Any] | None = None
    for entry in entries:
        line = _answer_line(entry)
        message: dict[str, Any] | None = line["message"] if line else None
        if before is not None and message is not None:
            message = _joined(before, message)
            shown[-1] = msgspec.structs.replace(entry, raw=msgspec.json.encode({**(line or {}), "message": message}))
        else:
            shown.append(entry)
        was_cut = message is not None and message.get("stopReason") == "length"
        calls_tools = message is not None and any(_kind(block) == "toolCall" for block in message["content"])
        before = message if was_cut and not calls_tools else None
    return shown


def _answer_line(entry: Entry) -> dict[str, Any] | None:
    """The decoded line when it holds a model's message, else None. The Gateway's own notices are not model messages."""
    if entry.type != "message":
        return None
    try:
        line = msgspec.json.decode(entry.raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    match line:
        case {"message": {"role": "assistant", "content": list(), **fields}} if fields.get("provider") != _OURS:
            return cast("dict[str, Any]", line)
        case _:
            return None


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    text = join(_text(first), _text(second))
    blocks = [block for message in (first, second) for block in message["content"] if _kind(block) != "text"]
    calls = [block for block in blocks if _kind(block) == "toolCall"]
    others = [block for block in blocks if _kind(block) != "toolCall"]
    content = [*others, *([{"type": "text", "text": text}] if text else []), *calls]
    return {**second, "content": content, "usage": _sum(first.get("usage"), second.get("usage"))}


def _text(message: dict[str, Any]) -> str:
    return "".join(str(block.get("text") or "") for block in message["content"] if _kind(block) == "text")


def _sum(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        one, other = cast("dict[str, Any]", first), cast("dict[str, Any]", second)
        return {name: _sum(one.get(name), other.get(name)) for name in {**one, **other}}
    numbers = [value for value in (first, second) if isinstance(value, int | float)]
    return sum(numbers) if numbers else second


# Entries of a tree


def entry_view(entry: Entry) -> TreeEntryView:
    """Return one entry of a transcript in short: who, when, and the beginning of its text."""
    view = TreeEntryView(id=entry.id, parent_id=entry.parent_id, type=entry.type, text="")
    try:
        line = msgspec.json.decode(entry.raw)
    except (msgspec.MsgspecError, RecursionError):
        view.damaged = True
        return view
    fields = cast("dict[str, Any]", line) if isinstance(line, dict) else {}
    view.at = _ms(fields.get("timestamp"))
    message = decode_message(msgspec.json.encode(fields["message"])) if "message" in fields else None
    if message is not None:
        visible = as_people_see_it(message, with_reasoning=True) or message
        view.role, view.text = role_of(message), preview(visible)
        if isinstance(message, AssistantMessage) and message.error_message and not view.text:
            view.text, view.failed = _first_words(message.error_message), True
    else:
        text = fields.get("summary") or fields.get("label") or fields.get("modelId") or fields.get("content")
        data = fields.get("data")
        if not text and isinstance(data, dict):
            text = cast("dict[str, Any]", data).get("text")
        view.text = _first_words(text) if isinstance(text, str) else ""
    return view


def _first_words(text: str) -> str:
    return clipped(" ".join(text.split()), LONGEST_PREVIEW)


# Rows of lists


def row_view(row: SessionRow, defaults: ModelDefaults) -> SessionRowView:
    entry: dict[str, Any] = dict(row.entry)
    view = SessionRowView(
        key=shown_key(row.key),
        kind=list_kind(row),
        **{field: entry[name] for name, field in _COPIED.items() if name in entry},
    )
    if override := entry.get("modelOverride"):
        view.model = override
        view.model_provider = entry.get("providerOverride") or view.model_provider or defaults.model_provider
    view.channel = view.provider = channel_of(entry, row.key)
    view.room = view.group_channel
    view.display_name = display_name(row, view.kind, view.channel) or view.display_name
    view.model_provider = view.model_provider or defaults.model_provider
    view.model = view.model or defaults.model
    view.context_tokens = view.context_tokens or defaults.context_tokens
    return view


def list_kind(row: SessionRow) -> str:
    """Return ``direct``, ``group`` or ``unknown``."""
    if row.key == "unknown":
        return row.key
    return "group" if kind_of(row.key, row.entry) == "group" else "direct"


def display_name(row: SessionRow, kind: str, channel: str) -> str | None:
    """The name in lists: the stored one, the group's, the label, or who wrote."""
    entry = row.entry
    if stored := entry.get("displayName"):
        return stored
    if kind == "group":
        return group_display_name(
            channel,
            id=entry.get("groupId") or rest_of(row.key).split(":", 2)[-1],
            subject=entry.get("subject"),
            group_channel=entry.get("groupChannel"),
            space=entry.get("space"),
        )
    return entry.get("label") or (entry.get("origin") or {}).get("label")


def model_defaults(runtime: Runtime, agent_id: str | None = None) -> ModelDefaults:
    """Return the model of a session that chose none. The values are null when none can be resolved."""
    config = runtime.config.current
    try:
        model = runtime.models.catalogue().default_for(config, agent_id or default_agent_id(config))
    except UnknownModel:
        return ModelDefaults(model_provider=None, model=None, context_tokens=None)
    return ModelDefaults(model_provider=model.provider, model=model.id, context_tokens=model.context_window)


class Listed(NamedTuple):
    rows: Sequence[SessionRow]
    total: int
    """The number of all sessions that may be listed, not only of ``rows``."""


async def most_recent(sessions: SessionStore, agent_id: str, limit: int, *, scope: str) -> Listed:
    """Return the newest sessions of an agent without reserved keys. It does not read the whole store."""
    shared = scope == "global"
    reserved = [key for key in RESERVED_KEYS if key != "global" or not shared]
    held_back = [key for key in reserved if await sessions.get(agent_id, key) is not None]
    hidden = hidden_keys(include_global=shared, include_unknown=False)
    shown = await sessions.select(SessionQuery(agent_id=agent_id, hidden_keys=hidden, aliases=False, limit=limit))
    return Listed(shown.rows, await sessions.count(agent_id) - len(held_back))


def hidden_keys(*, include_global: bool, include_unknown: bool) -> tuple[str, ...]:
    """The reserved keys that a list leaves out."""
    included = {"global": include_global, "unknown": include_unknown}
    return tuple(key for key, shown in included.items() if not shown)
