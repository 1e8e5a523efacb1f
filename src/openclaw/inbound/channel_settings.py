"""What a channel's section of the configuration says about who may write and how groups behave.

Sections with a schema and sections kept as open maps become the same record here. What cannot be understood closes
the door: a misspelt policy must never let anyone in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from openclaw.config.schema import Config
from openclaw.config.schema.channels import DmPolicy, GroupPolicy, SignalAccount
from openclaw.sessions.keys import DEFAULT_ACCOUNT

_DM_POLICIES = ("pairing", "allowlist", "open", "disabled")
_GROUP_POLICIES = ("open", "disabled", "allowlist")
STORE_COUNTS_IN_GROUPS = frozenset({"telegram", "signal", "imessage"})
"""Channels where a paired person may also speak in groups."""


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    require_mention: bool | None = None
    policy: GroupPolicy | None = None
    allow_from: tuple[str, ...] | None = None
    topics: Mapping[str, GroupSettings] = {}


class ChannelSettings(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    dm_policy: DmPolicy = "pairing"
    allow_from: tuple[str, ...] = ()
    group_policy: GroupPolicy = "allowlist"
    group_allow_from: tuple[str, ...] | None = None
    """None: unset, so that ``allow_from`` counts; an empty list means nobody."""
    groups: Mapping[str, GroupSettings] = {}
    history_limit: int | None = None


def channel_settings(config: Config, channel: str, account_id: str = DEFAULT_ACCOUNT) -> ChannelSettings:
    """The settings of one account; a channel without a section gets the careful defaults."""
    name = channel.strip().lower()
    if name == "signal":
        signal = config.channels.signal
        if signal is None:
            return ChannelSettings(channel=name)
        return _of_signal(name, signal.accounts.get(account_id, signal))
    section = config.channels.others.get(name) or config.channels.others.get(channel) or {}
    accounts = _map(section.get("accounts"))
    own = _map(accounts.get(account_id))
    return _of_map(name, {**section, **own}, config.channels.defaults.group_policy)


def _of_signal(channel: str, account: SignalAccount) -> ChannelSettings:
    return ChannelSettings(
        channel=channel,
        dm_policy=account.dm_policy,
        allow_from=_ids(account.allow_from) or (),
        group_policy=account.group_policy,
        group_allow_from=_ids(account.group_allow_from),
        groups={
            group: GroupSettings(require_mention=settings.require_mention) for group, settings in account.groups.items()
        },
        history_limit=account.history_limit,
    )


def _of_map(channel: str, section: Mapping[str, Any], default_group_policy: GroupPolicy | None) -> ChannelSettings:
    direct = _map(section.get("dm"))
    policy = _dm_policy(section.get("dmPolicy", direct.get("policy", "pairing")))
    own = _ids(section.get("allowFrom"))
    return ChannelSettings(
        channel=channel,
        dm_policy="disabled" if direct.get("enabled") is False else policy,
        allow_from=(own or ()) + (_ids(direct.get("allowFrom")) or ()),
        group_policy=_group_policy(section.get("groupPolicy", default_group_policy or "allowlist")),
        group_allow_from=_ids(section.get("groupAllowFrom")),
        groups={str(group): _group(value) for group, value in _map(section.get("groups")).items()},
        history_limit=_count(section.get("historyLimit")),
    )


def _group(value: Any) -> GroupSettings:
    section = _map(value)
    mention = section.get("requireMention")
    policy = section.get("groupPolicy")
    return GroupSettings(
        enabled=section.get("enabled") is not False,
        require_mention=mention if isinstance(mention, bool) else None,
        policy=None if policy is None else _group_policy(policy),
        allow_from=_ids(section.get("allowFrom")),
        topics={str(topic): _group(settings) for topic, settings in _map(section.get("topics")).items()},
    )


def _dm_policy(value: Any) -> DmPolicy:
    return value if value in _DM_POLICIES else "disabled"


def _group_policy(value: Any) -> GroupPolicy:
    return value if value in _GROUP_POLICIES else "disabled"


def _map(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _ids(value: Any) -> tuple[str, ...] | None:
    """None when unset. A list of the wrong shape is an empty one: it lets nobody in."""
    if value is None:
        return None
    items = cast("list[Any]", value) if isinstance(value, list) else []
    texts = (str(item).strip() for item in items if isinstance(item, str | int) and not isinstance(item, bool))
    return tuple(text for text in texts if text)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
