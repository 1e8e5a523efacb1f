"""The backlog of broadcasts, and how a client that was away gets the events that it missed.

A client that catches up gets no live broadcasts. Every broadcast is kept here, so the client gets them all from here,
in order and once. When it has reached the newest one, it gets live broadcasts again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.auth.authorise import may_receive
from openclaw.gateway.server import params

if TYPE_CHECKING:
    from openclaw.gateway.server.events import Broadcaster, Client

MAX_FRAMES = 4_096
MAX_BYTES = 4 * 1024 * 1024
OVERHEAD = 200
"""The memory that a kept frame costs besides its bytes."""
CHUNK_BYTES = 256 * 1024
"""The bytes sent in one piece. Then other tasks run and the client gets time to read."""
CHUNK_FRAMES = 512
REPLAY = "event-replay"
"""A client with this capability gets no broadcasts before it has called ``events.replay``."""


class KeptEvent(msgspec.Struct, frozen=True):
    """One broadcast. ``frame`` is what clients with increments get, ``whole`` makes the payload of the others."""

    seq: int
    event: str
    frame: bytes
    whole: Any = None
    """None when all clients get the same. To save memory it may be a function that makes the payload on demand."""


class Backlog:
    """The newest broadcasts, without a gap, bounded by their number and by their bytes."""

    def __init__(self, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES) -> None:
        self._kept: deque[KeptEvent] = deque()
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, kept: KeptEvent) -> None:
        self._kept.append(kept)
        self._bytes += len(kept.frame) + OVERHEAD
        while len(self._kept) > self._max_frames or (self._bytes > self._max_bytes and self._kept):
            self._bytes -= len(self._kept.popleft().frame) + OVERHEAD

    def after(self, seq: int, limit: int) -> list[KeptEvent]:
        """At most ``limit`` broadcasts after that one. Ask ``covers`` first."""
        if not self._kept:
            return []
        start = max(0, seq + 1 - self._kept[0].seq)
        return list(islice(self._kept, start, start + limit))

    def covers(self, seq: int, newest: int) -> bool:
        """Whether every broadcast after that one is still kept."""
        if seq >= newest:
            return seq == newest
        return bool(self._kept) and self._kept[0].seq <= seq + 1


RESTARTED = "the Gateway was restarted since"
LET_GO = "these events are no longer kept"


class Resumption(msgspec.Struct, frozen=True):
    """The number after which a returning client continues."""

    after: int
    gap: str = ""
    """Why some missed events cannot be sent. The client must then load its state again."""

    def view(self, broadcaster: Broadcaster, replayed: int | None = None) -> dict[str, Any]:
        """The answer for the client. ``replayed`` is known once everything has been sent."""
        told: dict[str, Any] = {"ok": False, "gap": True, "reason": self.gap} if self.gap else {"ok": True}
        if replayed is not None:
            told["replayed"] = replayed
        return {**told, "seq": broadcaster.seq, "epoch": broadcaster.epoch}


def resume(broadcaster: Broadcaster, after_seq: int, epoch: str | None) -> Resumption:
    """Where the client continues.

    After a restart its number has no meaning. It then gets every event since the start that is still kept, because the
    ends of resumed runs are among them.
    """
    newest, covers = broadcaster.seq, broadcaster.backlog.covers
    if epoch not in (None, broadcaster.epoch) or after_seq > newest:
        return Resumption(0 if covers(0, newest) else newest, RESTARTED)
    return Resumption(after_seq) if covers(after_seq, newest) else Resumption(newest, LET_GO)


async def catch_up(broadcaster: Broadcaster, client: Client, after_seq: int) -> int | None:
    """Sends the client what it missed and returns the number of frames. None means that some are no longer kept.

    In both cases the client gets live broadcasts again when this returns, and loses none in between.
    """
    backlog, seq, sent = broadcaster.backlog, after_seq, 0
    client.live, client.catching_up = False, True
    try:
        while not client.closing:
            if not backlog.covers(seq, broadcaster.seq):
                return None
            batch = backlog.after(seq, CHUNK_FRAMES)
            if not batch:
                break
            chunk: list[bytes] = []
            size = 0
            for kept in batch:
                seq = kept.seq
                if (frame := frame_for(client, kept)) is not None:
                    chunk.append(client.sink.pack(frame))
                    size += len(frame)
                if size >= CHUNK_BYTES:
                    break
            sent += len(chunk)
            if chunk:
                client.sink.write_now(b"".join(chunk))
            if client.sink.buffered > CHUNK_BYTES:
                await client.sink.room()
            else:
                await asyncio.sleep(0)
        return sent
    finally:
        client.live, client.catching_up = True, False


def frame_for(client: Client, kept: KeptEvent) -> bytes | None:
    """The frame in the form this client reads, or None if it is not for this client."""
    if not may_receive(client.rights, kept.event):
        return None
    accepts = client.event_filter
    if accepts is not None and not accepts(kept.event, params.decode_any(kept.frame).get("payload")):
        return None
    if kept.whole is None or client.takes_increments:
        return kept.frame
    whole = kept.whole
    return params.encode_event(kept.event, whole() if callable(whole) else whole, kept.seq)
