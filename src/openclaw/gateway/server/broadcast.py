"""Sends one event to many clients: it is numbered and encoded once, and a slow client has a bounded buffer.

Nothing here waits, so one slow reader never delays the others. A frame goes into the client's outbound buffer. When the
buffer is full, the frame is dropped or the client is disconnected.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.gateway.auth.authorise import EVENT_SCOPES, may_receive
from openclaw.gateway.server import frames
from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.replay import REPLAY, Backlog, KeptEvent

MAX_BUFFERED_BYTES = 1_572_864
"""A client with more bytes than this in its outbound buffer counts as slow."""
DELTA_EVENTS = "delta-events"
TOOL_EVENTS = "tool-events"

log = logging.getLogger("openclaw.gateway.ws")


ClientId: TypeAlias = Literal[
    "webchat-ui",
    "openclaw-control-ui",
    "webchat",
    "cli",
    "gateway-client",
    "openclaw-macos",
    "openclaw-ios",
    "openclaw-android",
    "node-host",
    "test",
    "fingerprint",
    "openclaw-probe",
]
ClientMode: TypeAlias = Literal["webchat", "cli", "ui", "backend", "node", "probe", "test"]


class ClientInfo(Params, omit_defaults=True):
    """What a client says about itself when it connects."""

    id: ClientId
    version: NonEmpty
    platform: NonEmpty
    mode: ClientMode
    display_name: NonEmpty | None = None
    device_family: NonEmpty | None = None
    model_identifier: NonEmpty | None = None
    instance_id: NonEmpty | None = None


class Sink(Protocol):
    """Writes the frames of one client. No write waits; ``buffered`` is the number of bytes not yet sent."""

    @property
    def buffered(self) -> int: ...

    def pack(self, frame: bytes) -> bytes:
        """The frame as it is sent on this wire. All clients of one kind share the same function object."""
        ...

    def write(self, packed: bytes) -> None:
        """Writes an event. It may be sent a moment later, together with the events that follow."""
        ...

    def write_now(self, packed: bytes) -> None:
        """Writes an answer. It is sent at once, after everything that was written before."""
        ...

    async def room(self) -> None:
        """Returns once the buffer has drained enough for a large answer."""
        ...

    def close(self, code: int, reason: str) -> None: ...

    async def closed(self, code: int, reason: str) -> None:
        """Closes and returns once the peer has been told."""
        ...


class Client:
    """A connected client: its identity, its permissions and the bounded buffer of what is sent to it."""

    def __init__(
        self,
        sink: Sink,
        *,
        conn_id: str,
        role: str,
        scopes: frozenset[str],
        caps: frozenset[str],
        client_info: ClientInfo,
        is_local: bool,
        ip: str = "",
    ) -> None:
        self.sink = sink
        self.conn_id = conn_id
        self.role = role
        self.scopes = scopes
        self.caps = caps
        self.client_info = client_info
        self.is_local = is_local
        self.ip = ip
        self.device_id: str | None = None
        self.by_device_token = False
        """True when the client connected with a device token; revoking the token then closes the connection."""
        self.presence_key: str | None = None
        self.event_filter: Callable[[str, Any], bool] | None = None
        """When it is set, only the broadcast events that it accepts are sent."""
        self.takes_increments = DELTA_EVENTS in caps
        self.live = REPLAY not in caps
        """While this is False the client gets no broadcasts. It gets them from the backlog later."""
        self.catching_up = False
        self.dropped = 0
        self.closing = False

    def send_frame(self, frame: bytes) -> None:
        """Sends a frame to this client at once."""
        if self.closing:
            return
        if self.sink.buffered <= MAX_BUFFERED_BYTES:
            self.sink.write_now(self.sink.pack(frame))
        else:
            self.close(1008, "slow consumer")

    def send_packed(self, packed: bytes, drop_if_slow: bool) -> None:
        if self.closing:
            return
        if self.sink.buffered <= MAX_BUFFERED_BYTES:
            self.sink.write(packed)
        elif drop_if_slow:
            self.dropped += 1
        else:
            self.close(1008, "slow consumer")

    async def send_answer(self, frame: bytes) -> None:
        """Sends a response. When the buffer is full it waits, because the client asked for the data."""
        if self.sink.buffered > MAX_BUFFERED_BYTES:
            await self.sink.room()
        if not self.closing:
            self.sink.write_now(self.sink.pack(frame))

    def close(self, code: int, reason: str) -> None:
        if self.closing:
            return
        self.closing = True
        if code == 1008:
            log.warning("closing %s: %s", self.conn_id, reason, extra={"fields": {"conn": self.conn_id}})
        self.sink.close(code, reason)

    def follow_run(self, run_id: str) -> None:
        """Hears of a run that belongs to the call. A stream that shows one call overrides it."""

    def finish_after(self, run_id: str) -> None:
        """Hears which run ends the stream. A stream that shows one call overrides it."""

    def note_answer(self, payload: Any) -> None:
        """Hears every payload that this client is answered with. A stream that shows one call overrides it."""


Payload = Any
"""A mapping, a msgspec record, or a function without arguments that returns one and is called only if needed."""


class Broadcaster:
    """Numbers events, sends them to the connected clients and keeps them for clients that were away."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.seq = 0
        self.epoch = str(uuid.uuid4())
        """Sequence numbers begin again at every start. Numbers of another epoch have no meaning."""
        self.backlog = Backlog()

    def add(self, client: Client) -> None:
        self.clients[client.conn_id] = client

    def remove(self, client: Client) -> None:
        self.clients.pop(client.conn_id, None)

    def publish(
        self,
        event: str,
        payload: Any,
        *,
        drop_if_slow: bool = False,
        scope: str | None = None,
        state_version: dict[str, int] | None = None,
    ) -> None:
        """Sends an event to every client that may see it. ``scope`` asks for more than the event itself does."""
        self.seq += 1
        needed = scope or EVENT_SCOPES.get(event)
        frame = frames.encode_event(event, payload, self.seq, state_version)
        _send(self._live(needed), event, payload, frame, drop_if_slow)
        self.backlog.keep(KeptEvent(self.seq, event, needed, frame))

    def publish_variants(self, event: str, full: Payload, delta: Any, *, drop_if_slow: bool = False) -> None:
        """Sends an event in two forms under one number; clients with ``delta-events`` get the increment.

        ``full`` may be called again, much later, for a client that missed the event.
        """
        self.seq += 1
        increment = frames.encode_event(event, delta, self.seq)
        live = self._live(None)
        if whole := [client for client in live if not client.takes_increments]:
            payload = full() if callable(full) else full
            _send(whole, event, payload, frames.encode_event(event, payload, self.seq), drop_if_slow)
        if len(whole) < len(live):
            _send([client for client in live if client.takes_increments], event, delta, increment, drop_if_slow)
        self.backlog.keep(KeptEvent(self.seq, event, None, increment, full))

    def send_to(self, conn_ids: Iterable[str], event: str, payload: Any, *, drop_if_slow: bool = False) -> None:
        """Sends an event to these connections only, without a sequence number."""
        named = [client for conn_id in conn_ids if (client := self.clients.get(conn_id)) is not None]
        if named:
            _send(named, event, payload, frames.encode_event(event, payload), drop_if_slow, filtered=False)

    def _live(self, scope: str | None) -> list[Client]:
        live = [client for client in self.clients.values() if client.live]
        return [client for client in live if may_receive(client.role, client.scopes, scope)]


def _send(
    clients: list[Client], event: str, payload: Any, frame: bytes, drop_if_slow: bool, *, filtered: bool = True
) -> None:
    """Sends one form of an event. The frame is packed once for each kind of client."""
    packed: dict[Callable[[bytes], bytes], bytes] = {}
    for client in clients:
        accepts = client.event_filter
        if filtered and accepts is not None and not accepts(event, payload):
            continue
        pack = client.sink.pack
        ready = packed.get(pack)
        if ready is None:
            ready = packed[pack] = pack(frame)
        client.send_packed(ready, drop_if_slow)


def field_of(payload: Any, wire_name: str) -> Any:
    """A field of an event's payload by its name on the wire, whether it is a mapping or a record."""
    if isinstance(payload, dict):
        return payload.get(wire_name)
    if isinstance(payload, msgspec.Struct):
        for name, wire in zip(payload.__struct_fields__, payload.__struct_encode_fields__, strict=True):
            if wire == wire_name:
                return getattr(payload, name)
    return None
