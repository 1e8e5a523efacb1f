"""``channels.*`` and ``pairing.*``: the state of the channels, and the people who ask to be let in on them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated, Any

import msgspec

from openclaw.channels.base import AccountStatus
from openclaw.channels.manager import RunningAccount
from openclaw.gateway.channels import by_channel, summary_of
from openclaw.gateway.server import registry
from openclaw.gateway.server.frames import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.protocol.health import ChannelSummary
from openclaw.protocol.result import Result, Success
from openclaw.rights import GUEST

methods = MethodTable()


class ChannelsStatus(Params):
    probe: bool = False
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    """The time for each probe. Less than a second counts as one, because clients pass on what a person typed."""


class ChannelMeta(Result):
    id: str
    label: str
    detail_label: str


class ChannelsState(Result):
    """The channels by their ids. An account reports what its platform has."""

    ts: int
    channel_order: list[str]
    channel_labels: dict[str, str]
    channel_detail_labels: dict[str, str]
    channel_system_images: dict[str, str]
    channel_meta: list[ChannelMeta]
    channels: dict[str, ChannelSummary]
    channel_accounts: dict[str, list[OpenObject]]
    channel_capabilities: dict[str, Any]
    channel_default_account_id: dict[str, str]


@methods.add("channels.status", ChannelsStatus)
async def channels_status(call: MethodCall, params: ChannelsStatus) -> ChannelsState:
    """The configured channels and their accounts; the Gateway's own web chat is not one."""
    gateway = call.gateway
    channels = gateway.channel_services.channels
    grouped = by_channel(channels)
    labels = {name: running[0].kind.label for name, running in grouped.items()}

    longest_s = max(1.0, params.timeout_ms / 1000)

    async def account_view(one: RunningAccount) -> dict[str, Any]:
        names = await gateway.names.of(one.kind.id, one.account.id)
        return {**await connection_view(one), **({"resolvedNames": names} if names else {})}

    async def connection_view(one: RunningAccount) -> dict[str, Any]:
        view, probe_s = one.status.view(), longest_s if params.probe else 0.0
        if (holder := await channels.owner(one)) is not None:
            view["node"] = holder
        if holder is not None and holder != gateway.runtime.stores.claims.node:
            there = await gateway.cluster.channels.status(one, probe_s)
            return {**there, "node": holder} if there is not None else view
        if not params.probe or not one.account.enabled:
            return view
        probed = await channels.probe(one, longest_s)
        return {**view, "probe": probed, "lastProbeAt": gateway.runtime.clock.now_ms()}

    accounts = {name: await asyncio.gather(*map(account_view, running)) for name, running in grouped.items()}
    config = gateway.runtime.config.current
    return ChannelsState(
        ts=gateway.runtime.clock.now_ms(),
        channel_order=list(grouped),
        channel_labels=labels,
        channel_detail_labels=labels,
        channel_system_images={},
        channel_meta=[ChannelMeta(name, label, label) for name, label in labels.items()],
        channels={name: summary_of(msgspec.convert(views, list[AccountStatus])) for name, views in accounts.items()},
        channel_accounts=accounts,
        channel_capabilities={name: running[0].kind.capabilities for name, running in grouped.items()},
        channel_default_account_id={name: running[0].kind.default_account(config) for name, running in grouped.items()},
    )


class ChannelsLogout(Params):
    channel: NonEmpty
    account_id: str | None = None


@methods.add("channels.logout", ChannelsLogout)
async def channels_logout(call: MethodCall, params: ChannelsLogout) -> Success:
    """Refuses: no channel has a log-in to end; the answer names the setting that switches it off."""
    if params.channel not in by_channel(call.gateway.channel_services.channels):
        raise MethodError(f"unsupported channel: {params.channel}")
    raise MethodError(
        f"channel {params.channel} does not support logout; set channels.{params.channel}.enabled to false"
    )


NOTICE = "You have been let in. Send a message to begin."


class PairingList(Params):
    channel: NonEmpty | None = None


class PairingApprove(Params):
    code: NonEmpty
    channel: NonEmpty | None = None
    notify: bool = False


class ChannelPairings(Result):
    requests: list[OpenObject]


class ChannelPairingApproved(Result):
    channel: str
    id: str
    notified: bool | msgspec.UnsetType = msgspec.UNSET
    """Sent if ``notify`` was set."""
    notify_error: str = ""


@methods.add("pairing.list", PairingList)
async def list_pairing(call: MethodCall, params: PairingList) -> ChannelPairings:
    """Requests that have not expired, of one channel or of all, oldest first."""
    waiting = await call.gateway.pairing.pending(params.channel)
    return ChannelPairings([{"channel": channel, **msgspec.to_builtins(request)} for channel, request in waiting])


@methods.add("pairing.approve", PairingApprove)
async def approve_pairing(call: MethodCall, params: PairingApprove) -> ChannelPairingApproved:
    """Approves the sender of the code, and with ``notify`` notifies them on their channel."""
    if not call.client.rights >= GUEST:  # Nobody hands out more than they have.
        raise MethodError("missing scope: operator.admin (the person may then talk to the agent and give it commands)")
    approved = await call.gateway.pairing.approve(params.code, params.channel)
    if approved is None:
        where = f" on {params.channel}" if params.channel else ""
        raise MethodError(f"no pairing request with the code {params.code}{where}; codes are valid for an hour")
    if not params.notify:
        return ChannelPairingApproved(approved.channel, approved.id)
    message = {"channel": approved.channel, "to": approved.id, "message": NOTICE, "idempotencyKey": str(uuid.uuid4())}
    sent = await registry.answer(call.gateway, call.client, call.id, "send", msgspec.json.encode(message))
    # The approval stands even when the notice fails, so the failure is only reported.
    return ChannelPairingApproved(approved.channel, approved.id, sent.ok, "" if sent.ok else sent.message)
