"""Which part of a conversation a compaction condenses and which it keeps. Pure functions over messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openclaw.agent.tokens import message_tokens
from openclaw.config.schema import Config
from openclaw.messages import Message, ToolResultMessage, UserMessage

SMALLEST_KEPT = 64
KEPT_SLACK = 1.2
"""How far the share of the window that history may take can be exceeded before more of it is condensed."""


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    window: int
    reserve: int
    """Tokens kept free; beyond ``window - reserve`` history is condensed."""
    keep: int
    """Tokens of recent messages kept word for word."""
    enabled: bool = True
    instructions: str = ""
    """Added to every request for a summary."""
    warning: str = ""
    """What the configuration asked for and could not have."""
    safeguard: bool = False
    """Parts are smaller, failed tools are listed, and a summariser that fails does not prevent the compaction."""
    most_kept: int | None = None
    """With ``safeguard``: what is kept is cut further until it is no larger."""

    @property
    def limit(self) -> int:
        return self.window - self.reserve


def history_limit(config: Config, window: int) -> int:
    """Beyond these tokens history is condensed: the reserve is raised by its floor and bounded by half the window."""
    return window - min(_wanted_reserve(config), window // 2)


def _wanted_reserve(config: Config) -> int:
    agent = config.agents.defaults.compaction
    reserve = agent.reserve_tokens if agent.reserve_tokens is not None else config.compaction.reserve_tokens
    return max(reserve, agent.reserve_tokens_floor)


def compaction_settings(config: Config, window: int, overhead: int = 0) -> CompactionSettings:
    """Effective numbers; what is kept leaves room."""
    agent, general = config.agents.defaults.compaction, config.compaction
    wanted, reserve = _wanted_reserve(config), window - history_limit(config, window)
    warning = ""
    if wanted > reserve:
        warning = (
            f"compaction.reserveTokens ({wanted}) is more than half of the model's window ({window}); {reserve} is used"
        )
    keep = agent.keep_recent_tokens or general.keep_recent_tokens
    room = window - reserve - overhead
    safeguard = agent.mode == "safeguard"
    if safeguard:
        keep = min(keep, int(window * agent.max_history_share))
    return CompactionSettings(
        window=window,
        reserve=reserve,
        keep=max(SMALLEST_KEPT, min(keep, room // 2)),
        enabled=general.enabled,
        instructions=(agent.custom_instructions or "").strip(),
        warning=warning,
        safeguard=safeguard,
        most_kept=int(window * agent.max_history_share * KEPT_SLACK) if safeguard else None,
    )


def should_compact(context_tokens: int, window: int, reserve: int) -> bool:
    return context_tokens > window - reserve


class Cut(msgspec.Struct, frozen=True):
    index: int
    """The first message that is kept."""
    turn_start: int | None = None
    """Set when the cut goes through a turn: where that turn began."""


def find_cut(messages: Sequence[Message], keep_tokens: int, start: int = 0) -> Cut:
    """Keeps about ``keep_tokens`` from the end; never separates a tool result from its call.

    ``start``: messages before it (an earlier summary) are not part of the question.
    """
    valid = [place for place in range(start, len(messages)) if not isinstance(messages[place], ToolResultMessage)]
    if not valid:
        return Cut(start)
    index, kept = valid[0], 0
    for place in range(len(messages) - 1, start - 1, -1):
        kept += message_tokens(messages[place])
        if kept >= keep_tokens:
            # The end may be results without an answer yet: then the message that made the calls is kept with them.
            index = next((candidate for candidate in valid if candidate >= place), valid[-1])
            break
    return Cut(index, _turn_start(messages, index, start))


def _turn_start(messages: Sequence[Message], index: int, start: int) -> int | None:
    if isinstance(messages[index], UserMessage):
        return None
    for place in range(index - 1, start - 1, -1):
        if isinstance(messages[place], UserMessage):
            return place
    return None
