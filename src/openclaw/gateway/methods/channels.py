"""``channels.status``, ``channels.logout`` and ``usage.status``."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from openclaw.channels.manager import Channels, Running
from openclaw.gateway.channel_services import by_channel, label_of, summary_of
from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method


class ChannelsStatus(Params):
    probe: bool = False
    timeout_ms: Annotated[int, msgspec.Meta(ge=1000)] = 10_000


class ChannelsLogout(Params):
    channel: NonEmpty
    account_id: str | None = None


class UsageStatus(Params):
    pass


@method("channels.status", ChannelsStatus)
async def channels_status(call: Call) -> Any:
    """The configured channels and their accounts; the Gateway's own web chat is not one."""
    params: ChannelsStatus = call.params
    gateway = call.gateway
    channels = gateway.channel_services.channels if gateway.channel_services else None
    grouped = by_channel(channels)
    labels = {name: label_of(name) for name in grouped}
    timeout_s = params.timeout_ms / 1000
    accounts: dict[str, list[dict[str, Any]]] = {}
    for name, running in grouped.items():
        views = await asyncio.gather(*(_view(channels, one, params.probe, timeout_s) for one in running))
        accounts[name] = list(views)
    return {
        "ts": gateway.clock.now_ms(),
        "channelOrder": list(grouped),
        "channelLabels": labels,
        "channelDetailLabels": labels,
        "channelSystemImages": {},
        "channelMeta": [{"id": name, "label": label, "detailLabel": label} for name, label in labels.items()],
        "channels": {name: summary_of(running) for name, running in grouped.items()},
        "channelAccounts": accounts,
        "channelDefaultAccountId": {
            name: running[0].kind.default_account(gateway.config.current) for name, running in grouped.items()
        },
    }


async def _view(channels: Channels | None, running: Running, probe: bool, timeout_s: float) -> dict[str, Any]:
    view = running.status.view()
    if not probe or channels is None or not running.account.enabled:
        return view
    return {**view, "probe": await channels.probe(running, timeout_s), "lastProbeAt": channels.now_ms()}


@method("channels.logout", ChannelsLogout)
async def channels_logout(call: Call) -> Any:
    params: ChannelsLogout = call.params
    services = call.gateway.channel_services
    if services is None or params.channel not in by_channel(services.channels):
        raise MethodError(f"unsupported channel: {params.channel}")
    raise MethodError(
        f"channel {params.channel} does not support logout; set channels.{params.channel}.enabled to false"
    )


@method("usage.status", UsageStatus)
async def usage_status(call: Call) -> Any:
    """Quotas as providers report them; none of ours does."""
    return {"updatedAt": call.gateway.clock.now_ms(), "providers": []}
