"""``channels.status`` and ``usage.status``: the shapes clients expect, empty until there is something in them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, method


class ChannelsStatus(Params):
    probe: bool = False
    timeout_ms: Annotated[int, msgspec.Meta(ge=1000)] = 10_000


class UsageStatus(Params):
    pass


@method("channels.status", ChannelsStatus)
async def channels_status(call: Call) -> Any:
    """No channel is built into this version; the Gateway's own web chat is not one."""
    return {
        "ts": call.gateway.clock.now_ms(),
        "channelOrder": [],
        "channelLabels": {},
        "channelDetailLabels": {},
        "channelSystemImages": {},
        "channelMeta": [],
        "channels": {},
        "channelAccounts": {},
        "channelDefaultAccountId": {},
    }


@method("usage.status", UsageStatus)
async def usage_status(call: Call) -> Any:
    """Quotas as providers report them; none of ours does."""
    return {"updatedAt": call.gateway.clock.now_ms(), "providers": []}
