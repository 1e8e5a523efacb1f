"""Which channels there are. Nothing is imported for a channel nobody configured."""

from __future__ import annotations

import importlib
from typing import cast

from openclaw.channels.base import ChannelKind
from openclaw.config.schema import Config

_KINDS = {"signal": "openclaw.channels.signal.kind:SIGNAL"}
"""Channel id → module and name of its ``ChannelKind``."""

_added: dict[str, ChannelKind] = {}


def add_kind(kind: ChannelKind) -> None:
    """Makes a channel known that is not part of this package."""
    if kind.id in _KINDS or _added.get(kind.id, kind) is not kind:
        raise ValueError(f"there is already a channel called {kind.id!r}")
    _added[kind.id] = kind


def remove_kind(channel: str) -> None:
    _added.pop(channel, None)


def known_channels() -> list[str]:
    return [*_KINDS, *_added]


def find_kind(channel: str) -> ChannelKind | None:
    if channel in _added:
        return _added[channel]
    place = _KINDS.get(channel)
    if place is None:
        return None
    module, _, name = place.partition(":")
    return cast(ChannelKind, getattr(importlib.import_module(module), name))


def configured_kinds(config: Config) -> list[ChannelKind]:
    """The channels the configuration mentions, in a stable order."""
    named = [*(["signal"] if config.channels.signal is not None else []), *config.channels.others]
    return [kind for channel in known_channels() if channel in named and (kind := find_kind(channel)) is not None]
