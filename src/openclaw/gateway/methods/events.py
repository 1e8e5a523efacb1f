"""``events.replay``: a client that was away, or lost frames on the way, gets them in order."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.gateway.replay import LET_GO, Resumption, catch_up, resume


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
    resumption = resume(broadcaster, params.after_seq, params.epoch)
    sent = await catch_up(broadcaster, client, resumption.after)
    if sent is None:  # More was said meanwhile than is kept, and the client read slower than that.
        resumption = Resumption(broadcaster.seq, LET_GO)
    return resumption.view(broadcaster, sent or 0)
