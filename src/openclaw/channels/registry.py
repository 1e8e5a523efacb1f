"""The table of channel kinds that this program knows. To add a platform, add its kind here."""

from __future__ import annotations

from openclaw.channels.base import ChannelKind
from openclaw.channels.signal.kind import SignalKind


def channel_kinds() -> dict[str, ChannelKind]:
    """Every channel kind by its id. A kind is cheap to import; its ``open`` imports what a live account needs."""
    kinds: list[ChannelKind] = [SignalKind()]
    return {kind.id: kind for kind in kinds}
