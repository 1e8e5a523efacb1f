"""How long a message may be on a channel, and how longer ones are cut."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from openclaw.config.schema import Config
from openclaw.outbound.chunk_text import chunk_paragraphs, chunk_text
from openclaw.sessions.keys import normalize_account_id

DEFAULT_LIMIT = 4000
# fmt: off
CHANNEL_LIMITS = {
    "telegram": 4000, "discord": 2000, "slack": 4000, "whatsapp": 4000, "signal": 4000, "imessage": 4000,
    "matrix": 4000, "mattermost": 4000, "irc": 400, "line": 5000, "zalo": 2000, "twitch": 500, "tlon": 10_000,
}
# fmt: on
HARD_LIMITS = {"discord": 2000, "slack": 4000, "matrix": 4000}
"""The platform refuses more, whatever the configuration says."""


class Limits(msgspec.Struct, frozen=True):
    text: int = DEFAULT_LIMIT
    mode: Literal["length", "newline"] = "length"

    def cut(self, text: str) -> list[str]:
        return chunk_paragraphs(text, self.text) if self.mode == "newline" else chunk_text(text, self.text)


def limits_for(config: Config, channel: str, account_id: str | None = None) -> Limits:
    """The account's values, else the channel's, else the built-in ones."""
    default = CHANNEL_LIMITS.get(channel, DEFAULT_LIMIT)
    if channel == "signal":
        signal = config.channels.signal
        if signal is None:
            return Limits(default)
        wanted = normalize_account_id(account_id)
        own = next((account for name, account in signal.accounts.items() if normalize_account_id(name) == wanted), None)
        chosen = own or signal
        return Limits(chosen.text_chunk_limit, chosen.chunk_mode)
    section = config.channels.others.get(channel, {})
    text = _setting(section, account_id, "textChunkLimit")
    mode = _setting(section, account_id, "chunkMode")
    limit = text if isinstance(text, int) and not isinstance(text, bool) and text > 0 else default
    return Limits(min(limit, HARD_LIMITS.get(channel, limit)), "newline" if mode == "newline" else "length")


def _setting(section: dict[str, Any], account_id: str | None, name: str) -> Any:
    accounts = section.get("accounts")
    if isinstance(accounts, dict):
        wanted = normalize_account_id(account_id)
        for key, account in accounts.items():
            if normalize_account_id(str(key)) == wanted and isinstance(account, dict) and name in account:
                return account[name]
    return section.get(name)
