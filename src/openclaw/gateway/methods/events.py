"""``events.replay``: a client that was away, or lost frames on the way, gets them in order."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.gateway.replay import catch_up


class EventsReplay(Params):
    after_seq: Annotated[int, msgspec.Meta(ge=0)]
    """The last sequence number the client has dealt with."""
    epoch: NonEmpty | None = None
    """From the ``hello-ok`` of the connection that number came from. Without it a restart may go unnoticed."""


@method("events.replay", EventsReplay, access="read")
async def replay(call: Call) -> Any:
    """Every broadcast after that number, then the answer. ``gap``: some are gone, and the client must look afresh."""
    params: EventsReplay = call.params
    client, broadcaster = call.client, call.gateway.broadcaster
    if broadcaster.clients.get(client.conn_id) is not client:
        raise MethodError("events.replay needs a connection that receives events, such as a WebSocket")
    if client.catching_up:
        raise MethodError("a replay is already under way on this connection", code="UNAVAILABLE", retryable=True)
    if params.epoch not in (None, broadcaster.epoch):
        client.live = True
        return _gap(broadcaster.seq, broadcaster.epoch, "the Gateway was restarted since")
    sent = await catch_up(broadcaster, client, params.after_seq)
    if sent is None:
        return _gap(broadcaster.seq, broadcaster.epoch, "these events are no longer kept")
    return {"ok": True, "replayed": sent, "seq": broadcaster.seq, "epoch": broadcaster.epoch}


def _gap(seq: int, epoch: str, reason: str) -> dict[str, Any]:
    return {"ok": False, "gap": True, "reason": reason, "seq": seq, "epoch": epoch}
