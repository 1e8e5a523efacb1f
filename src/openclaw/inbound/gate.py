"""Decides whether a group message is meant for the agent, and keeps the others as context."""

from __future__ import annotations

import logging
import re
from functools import lru_cache

import msgspec

from openclaw.config.agents import agent_config
from openclaw.config.schema import Config
from openclaw.inbound.access import ChannelSettings, GroupRules
from openclaw.inbound.message import Inbound
from openclaw.inbound.prompt_text import HistoryEntry, media_marks, sender_label
from openclaw.patterns import BoundedPattern, PatternRefused, mention_pattern
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import thread_suffix
from openclaw.storage.message_ledger import ChannelMemory, PendingMessage
from openclaw.text import clipped

log = logging.getLogger("openclaw.inbound.gate")

_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f]")
_NATIVE_ONLY = frozenset({"whatsapp"})
"""On these channels a message that mentions people natively is meant for those people only."""
_OPEN_UNLESS_SET = frozenset({"signal"})
"""On these channels people cannot easily mention the agent. A group is answered unless a pattern or a setting says
otherwise."""
_SEARCHED = 20_000
"""The number of characters that are searched, because a configured pattern may be slow."""
QUICKLY_SEARCHED = 500
"""A longer text is searched in a thread. The thread lets the event loop go on after each piece of the text."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    process: bool
    """False means that the message is kept as pending history and starts no run."""
    mentioned: bool
    """Whether the message counts as addressed to the agent."""


def mention_patterns(config: Config, agent_id: str) -> tuple[BoundedPattern, ...]:
    """Return the agent's own patterns (even an empty list), else the general ones, else its name and emoji."""
    agent = agent_config(config, agent_id)
    own = agent.group_chat.mention_patterns if agent else None
    value = own if own is not None else config.messages.group_chat.mention_patterns
    if value is None and agent is not None:
        value = _identity_patterns(agent.identity.name or "", agent.identity.emoji or "")
    return _compiled(tuple(value or ()))


def is_mentioned(text: str, patterns: tuple[BoundedPattern, ...]) -> bool:
    searched = _INVISIBLE.sub("", text[:_SEARCHED]).lower()
    return bool(searched) and any(pattern.found_in(searched) for pattern in patterns)


def was_mentioned(inbound: Inbound, patterns: tuple[BoundedPattern, ...]) -> bool:
    if inbound.mentioned:
        return True
    if inbound.mentions_others and inbound.channel.lower() in _NATIVE_ONLY:
        return False
    return is_mentioned(inbound.text, patterns)


def needs_mention(
    entry: SessionEntry | None, rules: GroupRules, channel: str, patterns: tuple[BoundedPattern, ...]
) -> bool:
    """Return whether a mention is needed. The session's ``/activation`` overrides the configuration."""
    match (entry or {}).get("groupActivation"):
        case "always":
            return False
        case "mention":
            return True
        case _ if not rules.mention_is_set and not patterns and channel.lower() in _OPEN_UNLESS_SET:
            return False
        case _:
            return rules.require_mention


def gate(
    inbound: Inbound,
    patterns: tuple[BoundedPattern, ...],
    *,
    require_mention: bool,
    authorised_command: bool = False,
) -> Gate:
    """Decide about one message.

    ``authorised_command`` says that the text is a control command of someone who may use commands.
    """
    if inbound.peer.kind == "direct":
        return Gate(process=True, mentioned=True)
    answers_us = inbound.quoted is not None and inbound.quoted.from_us
    mentioned = was_mentioned(inbound, patterns) or answers_us
    if not mentioned and require_mention and authorised_command and not inbound.mentions_others:
        mentioned = True
    can_tell = inbound.can_detect_mention or bool(patterns)
    return Gate(process=mentioned or not require_mention or not can_tell, mentioned=mentioned)


def _identity_patterns(name: str, emoji: str) -> list[str]:
    patterns: list[str] = []
    if words := name.split():
        body = r"\s+".join(re.escape(word) for word in words)
        # A name that begins or ends with a sign has no word boundary there.
        before = r"\b@?" if re.match(r"\w", words[0]) else "@?"
        patterns.append(before + body + (r"\b" if re.search(r"\w$", words[-1]) else ""))
    if emoji.strip():
        patterns.append(re.escape(emoji.strip()))
    return patterns


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> tuple[BoundedPattern, ...]:
    compiled: list[BoundedPattern] = []
    for pattern in patterns:
        if not pattern.strip():
            continue
        try:
            compiled.append(mention_pattern(pattern))
        except PatternRefused as refused:
            log.warning("mention pattern %r is ignored: %s", pattern[:200], refused)
    return tuple(compiled)


DEFAULT_LIMIT = 50
_DEFAULT_LIMITS = {"discord": 20}
MOST_CHARS = 8000
"""The most characters kept of one message. Longer messages are cut."""


class PendingHistory(msgspec.Struct, frozen=True):
    """The group messages that an agent was not addressed with, oldest first, for the prompt of the next one."""

    entries: tuple[HistoryEntry, ...] = ()
    steps: tuple[int, ...] = ()
    """Where the ledger has them. ``Accept.pending`` deletes them with the acceptance of the message that has them."""


async def record_pending(ledger: ChannelMemory, key: str, entry: HistoryEntry, limit: int) -> None:
    """Store a message under a ``history_key``. A limit of 0 stores nothing and leaves what is there."""
    if limit > 0:
        await ledger.add_pending(key, entry.message_id, msgspec.json.encode(entry), keep=limit)


async def pending_history(ledger: ChannelMemory, key: str, limit: int) -> PendingHistory:
    """Return the newest pending messages of a conversation."""
    rows = await ledger.pending(key, limit) if limit > 0 else []
    entries = tuple(entry for row in rows if (entry := _read_entry(row)) is not None)
    return PendingHistory(entries, tuple(row.step for row in rows))


def _read_entry(row: PendingMessage) -> HistoryEntry | None:
    try:
        return msgspec.json.decode(row.message, type=HistoryEntry)
    except (msgspec.MsgspecError, UnicodeError) as problem:
        log.warning("a pending group message cannot be read and is left out: %s", problem)
        return None


def history_limit(config: Config, settings: ChannelSettings) -> int:
    """Return the limit of the account or channel, else the general one for groups, else the built-in one."""
    if settings.history_limit is not None:
        return settings.history_limit
    general = config.messages.group_chat.history_limit
    return general if general is not None else _DEFAULT_LIMITS.get(settings.channel, DEFAULT_LIMIT)


def history_key(inbound: Inbound, settings: ChannelSettings, agent_id: str) -> str:
    """Names a conversation with one agent. Several agents may follow one group, each with its own pending messages."""
    key = f"{agent_id}:{inbound.channel}:{inbound.account_id}:{inbound.peer.kind}:{inbound.peer.id}"
    if inbound.thread_has_session and not settings.threads_share_history:
        key += thread_suffix(inbound.thread_id)
    return key.lower()


def history_entry(inbound: Inbound) -> HistoryEntry:
    return HistoryEntry(
        sender=sender_label(inbound.sender),
        body=clipped(inbound.text, MOST_CHARS),
        media=" ".join(media_marks(inbound)),
        timestamp_ms=inbound.timestamp_ms,
        message_id=inbound.message_id,
    )
