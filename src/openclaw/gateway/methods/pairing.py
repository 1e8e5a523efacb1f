"""``pairing.*``: people who wrote on a channel and ask to be let in."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from openclaw.gateway import registry
from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method

NOTICE = "You have been let in. Send a message to begin."


class PairingList(Params):
    channel: NonEmpty | None = None


class PairingApprove(Params):
    code: NonEmpty
    channel: NonEmpty | None = None
    notify: bool = False


@method("pairing.list", PairingList, access="pairing")
async def list_requests(call: Call) -> Any:
    """Requests that have not expired, of one channel or of all, oldest first."""
    waiting = await call.gateway.pairing.pending(call.params.channel)
    return {"requests": [{"channel": channel, **msgspec.to_builtins(request)} for channel, request in waiting]}


@method("pairing.approve", PairingApprove, access="pairing")
async def approve(call: Call) -> Any:
    """Lets the sender of the code in; with ``notify`` also tells them so on their channel."""
    params: PairingApprove = call.params
    approved = await call.gateway.pairing.approve(params.code, params.channel)
    if approved is None:
        where = f" on {params.channel}" if params.channel else ""
        raise MethodError(f"no pairing request with the code {params.code}{where}; codes are valid for an hour")
    answer: dict[str, Any] = {"channel": approved.channel, "id": approved.id}
    return {**answer, **await _notify(call, approved.channel, approved.id)} if params.notify else answer


async def _notify(call: Call, channel: str, recipient: str) -> dict[str, Any]:
    """The approval stands whether or not the notice arrives, so a failure is only told."""
    message = {"channel": channel, "to": recipient, "message": NOTICE, "idempotencyKey": str(uuid.uuid4())}
    sent = await registry.answer(call.gateway, call.client, call.id, "send", msgspec.json.encode(message))
    return {"notified": True} if sent.ok else {"notified": False, "notifyError": sent.message}
