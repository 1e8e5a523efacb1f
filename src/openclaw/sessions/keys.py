"""Session keys: how they are normalised, what they tell about a session, and the file names made from them."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from openclaw.paths import normalize_agent_id

DEFAULT_AGENT = "main"
DEFAULT_MAIN_KEY = "main"
RESERVED_KEYS = frozenset({"global", "unknown"})

SessionKind: TypeAlias = Literal["main", "group", "cron", "hook", "node", "other"]

GROUP_MARKS = (":group:", ":channel:", ":room:")
_GROUP_CHATS = frozenset({"group", "channel", "room"})
INTERNAL_KINDS = frozenset({"cron", "hook", "node"})
"""The kinds of sessions that no chat has begun."""
_KIND_PREFIXES: dict[str, SessionKind] = {"cron:": "cron", "hook:": "hook", "node-": "node", "node:": "node"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_LONGEST_NAME = 160
REMEMBERED_KEYS = 2048
"""Size of the caches of parsed keys. A turn parses its key about twenty times."""
LONGEST_THREAD = 255
LONGEST_KEY = 512


class AgentKey(NamedTuple):
    agent_id: str
    rest: str


def normalize_main_key(value: str | None) -> str:
    return (value or "").strip().lower() or DEFAULT_MAIN_KEY


@lru_cache(maxsize=REMEMBERED_KEYS)
def parse_agent_key(key: str | None) -> AgentKey | None:
    """Splits ``agent:<agentId>:<rest>``. Empty segments are dropped; the case is kept. None for other keys."""
    segments = [segment for segment in (key or "").strip().split(":") if segment]
    if len(segments) < 3 or segments[0] != "agent":
        return None
    return AgentKey(segments[1], ":".join(segments[2:]))


def agent_of(key: str | None, *, default_agent: str = DEFAULT_AGENT) -> str:
    parsed = parse_agent_key((key or "").lower())
    return normalize_agent_id(parsed.agent_id if parsed else default_agent)


@lru_cache(maxsize=REMEMBERED_KEYS)
def rest_of(key: str) -> str:
    """The key without its ``agent:<agentId>:`` prefix, lower-cased."""
    lowered = key.strip().lower()
    parsed = parse_agent_key(lowered)
    return parsed.rest if parsed else lowered


def key_problem(key: str) -> str | None:
    """A sentence that says why this text cannot be a session key, or None if it can."""
    shown = key if len(key) <= 80 else key[:80] + "…"
    lowered = key.strip().lower()
    if lowered.startswith("agent:") and parse_agent_key(lowered) is None:
        return f'"{shown}" names no session; write agent:<agentId>:<session> (such as agent:main:main) or main'
    if len(key) > LONGEST_KEY:
        return f'"{shown}" has {len(key)} characters; a session key has at most {LONGEST_KEY}'
    # Bytes of a header that are no text arrive as halves of surrogate pairs, which no store can hold.
    if any(character < " " or character == "\x7f" or "\ud800" <= character <= "\udfff" for character in key.strip()):
        return f"{shown!r} holds control characters; a session key is one line of text"
    return None


def thread_suffix(thread_id: str | int | None) -> str:
    """Return the end of the key of a thread's session, or "" for an id that a key cannot hold.

    On Matrix whoever writes chooses the id.
    """
    thread = "" if thread_id is None else str(thread_id)
    return f":thread:{thread}" if thread and thread.isprintable() and len(thread) <= LONGEST_THREAD else ""


def is_session_id(text: str) -> bool:
    """Whether the text is a UUID as session ids are written. Such a text never names a new session."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def is_subagent(key: str | None) -> bool:
    return rest_of(key or "").startswith("subagent:")


def is_direct(key: str) -> bool:
    """Whether the key names a direct chat that has its own session, such as ``agent:main:signal:direct:+1555``."""
    return "direct" in rest_of(key).split(":")[:3]


def is_cron_run_alias(key: str) -> bool:
    """Whether the key is ``cron:<jobId>:run:<sessionId>``. Each run of a job writes one; listings hide them."""
    # A list asks this of every session, and hardly any key has the mark.
    return ":run:" in key and (rest := rest_of(key)).startswith("cron:") and ":run:" in rest


def main_session_key(agent_id: str, *, main_key: str = DEFAULT_MAIN_KEY, scope: str = "per-sender") -> str:
    if scope == "global":
        return "global"
    return f"agent:{normalize_agent_id(agent_id)}:{normalize_main_key(main_key)}"


def canonicalize_main_alias(
    agent_id: str, key: str, *, main_key: str = DEFAULT_MAIN_KEY, scope: str = "per-sender"
) -> str:
    """Turns every name of an agent's main chat into its store key. Other keys stay as they are."""
    agent, main = normalize_agent_id(agent_id), normalize_main_key(main_key)
    if key.strip().lower() in (DEFAULT_MAIN_KEY, main, f"agent:{agent}:{main}", f"agent:{agent}:{DEFAULT_MAIN_KEY}"):
        return main_session_key(agent, main_key=main, scope=scope)
    return key


def canonical_key(
    key: str | None,
    *,
    default_agent: str = DEFAULT_AGENT,
    main_key: str = DEFAULT_MAIN_KEY,
    scope: str = "per-sender",
) -> str:
    """The store key for any name that a person, a tool or an older file gives to a session."""
    lowered = (key or "").strip().lower()
    if lowered in RESERVED_KEYS:
        return lowered
    alias = canonicalize_main_alias(default_agent, lowered or DEFAULT_MAIN_KEY, main_key=main_key, scope=scope)
    if alias == "global":
        return alias
    stored = alias if alias.startswith("agent:") else f"agent:{normalize_agent_id(default_agent)}:{alias}"
    parsed = parse_agent_key(stored)
    if parsed is None:
        return stored
    renamed = f"agent:{parsed.agent_id}:{_with_direct(parsed.rest)}"
    return canonicalize_main_alias(parsed.agent_id, renamed, main_key=main_key, scope=scope)


def _with_direct(rest: str) -> str:
    """Replaces ``dm``, the word of older keys, by ``direct``, the word of the store."""
    segments = rest.split(":")
    for index, segment in enumerate(segments[:3]):
        if segment in _GROUP_CHATS or segment == "direct":
            return rest
        if segment == "dm" and index + 1 < len(segments):
            return ":".join([*segments[:index], "direct", *segments[index + 1 :]])
    return rest


def shown_key(key: str) -> str:
    """The key that clients see. They know the session of the global scope as ``main``."""
    return DEFAULT_MAIN_KEY if key == "global" else key


def kind_of(
    key: str,
    entry: Mapping[str, Any] | None = None,
    *,
    main_key: str = DEFAULT_MAIN_KEY,
    scope: str = "per-sender",
) -> SessionKind:
    kind = _kind_by_name(key, main_key, scope)
    if kind == "other" and entry and str(entry.get("chatType", "")).lower() in _GROUP_CHATS:
        return "group"
    return kind


@lru_cache(maxsize=REMEMBERED_KEYS)
def _kind_by_name(key: str, main_key: str, scope: str) -> SessionKind:
    rest = rest_of(key)
    if rest in (DEFAULT_MAIN_KEY, normalize_main_key(main_key)) or (rest == "global" and scope == "global"):
        return "main"
    for prefix, kind in _KIND_PREFIXES.items():
        if rest.startswith(prefix):
            return kind
    return "group" if any(mark in f":{rest}" for mark in GROUP_MARKS) else "other"


def channel_of(entry: Mapping[str, Any] | None, key: str, *, kind: SessionKind | None = None) -> str:
    """The channel of a listed session: ``internal`` for cron, hooks and nodes, ``unknown`` if nothing tells.

    ``kind`` is the result of ``kind_of``, if the caller has it already.
    """
    kind = kind or kind_of(key, entry)
    if kind in INTERNAL_KINDS:
        return "internal"
    channel: Any = None
    if entry and kind == "group":
        channel = entry.get("channel") or entry.get("lastChannel")
    elif entry:
        delivery = entry.get("deliveryContext")
        channel = entry.get("lastChannel") or (delivery.get("channel") if isinstance(delivery, dict) else None)
    if not channel and kind == "group":
        channel, _ = group_of(key)
    return str(channel).strip().lower() or "unknown" if channel else "unknown"


def group_of(key: str) -> tuple[str, str] | tuple[None, None]:
    """The channel and chat type in the key of a group, channel or room. Other keys give ``(None, None)``."""
    segments = rest_of(key).split(":")
    return (segments[0], segments[1]) if len(segments) >= 3 and segments[1] in _GROUP_CHATS else (None, None)


def chat_type_of(key: str) -> Literal["direct", "group", "channel"]:
    """The type of chat that the key names. A room is a channel. The agent's own name says nothing about it."""
    marked = f":{rest_of(key)}"
    if ":group:" in marked:
        return "group"
    return "channel" if ":channel:" in marked or ":room:" in marked else "direct"


def session_file_name(session_id: str, thread_id: str | int | None = None) -> str:
    """``<sessionId>.jsonl`` or ``<sessionId>-topic-<threadId>.jsonl``. Different arguments give different names."""
    # The session "a-topic-5" must not get the same name as thread 5 of the session "a".
    stem = safe_file_name(session_id).replace("-topic-", "%2Dtopic-")
    if thread_id is None:
        return f"{stem}.jsonl"
    topic = str(thread_id) if isinstance(thread_id, int) else _short(quote(thread_id, safe="!~*'()"))
    return f"{stem}-topic-{topic}.jsonl"


def session_of_file(path: str) -> str | None:
    """Return the session that has a transcript of this name, or None if the name does not say it."""
    name = path.rpartition("/")[2].removesuffix(".zst")
    stem = name.removesuffix(".jsonl").partition("-topic-")[0]
    return stem if name.endswith(".jsonl") and _PLAIN_NAME.fullmatch(stem) and len(stem) < _LONGEST_NAME else None


def safe_file_name(text: str) -> str:
    """A safe file name for any text: percent-encoded where needed. Different texts give different names."""
    if _PLAIN_NAME.fullmatch(text):
        return _short(text)
    encoded = quote(text, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")
    return _short(encoded or "%")


def _short(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    # "%~" cannot occur in percent-encoding, so a shortened name never equals a whole one.
    return f"{name[:80]}%~{hashlib.sha256(name.encode()).hexdigest()}"


class SessionRef(msgspec.Struct, frozen=True):
    """A session by its agent and the key it has in the store."""

    agent_id: str
    key: str
