"""What the configuration says about a channel and its accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args

import msgspec

from openclaw.config.agents import agent_config
from openclaw.config.schema import Config
from openclaw.config.schema.channels import ChannelAccount, Channels, HeartbeatVisibility, WhatsAppAccount
from openclaw.paths import normalize_agent_id

T = TypeVar("T")
DEFAULT_ACCOUNT = "default"
FOREIGN_TEXT_LIMITS = {"line": 5000, "zalo": 2000, "twitch": 500, "tlon": 10_000}
"""``textChunkLimit`` of channels that other packages bring, where it is not set and not the usual one."""
CLOSED = ChannelAccount(enabled=False, dm_policy="disabled", group_policy="disabled")
"""Stands for a section that cannot be read. It lets nobody in."""


@lru_cache(maxsize=256)
def normalize_account_id(value: str | None) -> str:
    """Normalises like an agent id, but blank text becomes ``default``."""
    if not (value or "").strip():
        return DEFAULT_ACCOUNT
    cleaned = normalize_agent_id(value)
    # normalize_agent_id returns "main" when no character is left; an account needs "default" there.
    survives = re.search(r"[a-z0-9_]", (value or "").lower()) is not None
    return cleaned if survives else DEFAULT_ACCOUNT


def account_named(accounts: Mapping[str, T], account_id: str | None) -> T | None:
    """The section of an account, whichever way the configuration spells its name."""
    if not accounts:
        return None
    wanted = normalize_account_id(account_id)
    return next((section for name, section in accounts.items() if normalize_account_id(str(name)) == wanted), None)


def channel_section(config: Config, channel: str) -> ChannelAccount | None:
    """The section of a built-in channel. None: it is not configured, or belongs to another package."""
    name = channel.strip().lower()
    found: Any = getattr(config.channels, name, None) if name != "others" else None
    return found if isinstance(found, ChannelAccount) else None


def account_settings(config: Config, channel: str, account_id: str | None = None) -> ChannelAccount | None:
    """Return the settings of one account: its own keys over the channel's shared ones. Returns None without a section.

    Sections of channels from other packages are read as far as they have the keys that all channels have.
    """
    section = channel_section(config, channel)
    if section is not None:
        accounts: Mapping[str, ChannelAccount] = getattr(section, "accounts", {})
        return account_named(accounts, account_id) or section
    written = external_section(config, channel)
    if written is None:
        return None
    own = account_named(_map(written.get("accounts")), account_id)
    return _common_keys({**_unset(channel), **written, **_map(own)}, config)


@lru_cache(maxsize=64)
def default_settings(channel: str) -> ChannelAccount:
    """Return the settings of a channel whose section sets nothing."""
    name = channel.strip().lower()
    for field in msgspec.structs.fields(Channels):
        if field.name == name and field.name not in ("defaults", "others"):
            return next(kind() for kind in get_args(field.type) if kind is not NoneType)
    return msgspec.convert(_unset(channel), ChannelAccount)


def _unset(channel: str) -> dict[str, Any]:
    """The keys of a channel of another package that have a default of their own."""
    limit = FOREIGN_TEXT_LIMITS.get(channel.strip().lower())
    return {} if limit is None else {"textChunkLimit": limit}


def external_section(config: Config, channel: str) -> dict[str, Any] | None:
    """The section of a channel that another package brings, as written."""
    others = config.channels.others
    return others.get(channel.strip().lower(), others.get(channel))


def is_configured(config: Config, channel: str) -> bool:
    return channel_section(config, channel) is not None or external_section(config, channel) is not None


def heartbeat_visibility(config: Config, channel: str, account_id: str | None) -> HeartbeatVisibility:
    """How heartbeats show on a channel: as its account says, else the channel, else all channels."""
    account = account_settings(config, channel, account_id)
    return (account.heartbeat if account else None) or config.channels.defaults.heartbeat


def message_prefix(config: Config, channel: str, account_id: str | None, agent_id: str) -> str:
    """Return the prefix of incoming WhatsApp messages. Empty on other channels.

    Where nothing is configured and nobody is on the allow list, it is the agent's name.
    """
    account = account_settings(config, channel, account_id)
    return _whatsapp_prefix(config, account, agent_id) if isinstance(account, WhatsAppAccount) else ""


def _whatsapp_prefix(config: Config, account: WhatsAppAccount, agent_id: str) -> str:
    given = config.messages.message_prefix if account.message_prefix is None else account.message_prefix
    if given is not None:
        return given
    if account.allow_from:
        return ""
    agent = agent_config(config, agent_id)
    return f"[{(agent.identity.name if agent else None) or 'openclaw'}]"


def _common_keys(section: dict[str, Any], config: Config) -> ChannelAccount:
    known = {field.encode_name for field in msgspec.structs.fields(ChannelAccount)}
    given = {key: value for key, value in section.items() if key in known and value is not None}
    if config.channels.defaults.group_policy:
        given.setdefault("groupPolicy", config.channels.defaults.group_policy)
    try:
        return msgspec.convert(given, ChannelAccount)
    except msgspec.ValidationError:
        return CLOSED


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
