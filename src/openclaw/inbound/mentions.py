"""Whether a group message is meant for the agent."""

from __future__ import annotations

import logging
import re
from functools import lru_cache

import msgspec

from openclaw.config.agents import agent_config
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound
from openclaw.sessions.entry import SessionEntry

log = logging.getLogger("openclaw.inbound.mentions")

_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f]")
_NATIVE_ONLY = frozenset({"whatsapp"})
"""Channels where a message that mentions people by the platform's means is meant for those people only."""
_SEARCHED = 20_000
"""Characters of a message looked at; patterns are free to be slow."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    process: bool
    """False: keep the message as pending history and stop."""
    mentioned: bool
    """Whether it counts as addressed to the agent."""


def mention_patterns(config: Config, agent_id: str) -> tuple[re.Pattern[str], ...]:
    """The agent's own patterns (even an empty list), else the general ones, else its name and emoji."""
    agent = agent_config(config, agent_id)
    own = agent.group_chat.mention_patterns if agent else None
    given = own if own is not None else config.messages.group_chat.mention_patterns
    if given is None and agent is not None:
        given = _identity_patterns(agent.identity.name or "", agent.identity.emoji or "")
    return _compiled(tuple(given or ()))


def is_mentioned(text: str, patterns: tuple[re.Pattern[str], ...]) -> bool:
    searched = _INVISIBLE.sub("", text[:_SEARCHED]).lower()
    return bool(searched) and any(pattern.search(searched) for pattern in patterns)


def was_mentioned(inbound: Inbound, patterns: tuple[re.Pattern[str], ...]) -> bool:
    if inbound.mentioned:
        return True
    if inbound.mentions_others and inbound.channel.lower() in _NATIVE_ONLY:
        return False
    return is_mentioned(inbound.text, patterns)


def needs_mention(entry: SessionEntry | None, configured: bool) -> bool:
    """What ``/activation`` chose for the session, else the configuration."""
    match (entry or {}).get("groupActivation"):
        case "always":
            return False
        case "mention":
            return True
        case _:
            return configured


def gate(
    inbound: Inbound,
    patterns: tuple[re.Pattern[str], ...],
    *,
    require_mention: bool,
    authorised_command: bool = False,
) -> Gate:
    """``authorised_command``: the text is a control command of someone who may use commands."""
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
        # A name that ends in a sign has no word boundary there.
        before = r"\b@?" if re.match(r"\w", words[0]) else "@?"
        patterns.append(before + body + (r"\b" if re.search(r"\w$", words[-1]) else ""))
    if emoji.strip():
        patterns.append(re.escape(emoji.strip()))
    return patterns


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    compiled: list[re.Pattern[str]] = []
    for pattern in patterns:
        if not pattern.strip():
            continue
        try:
            # "\b" written in JSON without doubling the backslash is a backspace.
            compiled.append(re.compile(pattern.replace("\x08", r"\b"), re.IGNORECASE))
        except (re.error, RecursionError, OverflowError) as error:
            log.warning("mention pattern %r is not a regular expression (%s); it is ignored", pattern, error)
    return tuple(compiled)
