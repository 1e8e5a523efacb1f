"""Events for clients: each is numbered and encoded once, and a slow client has a bounded buffer.

Nothing here waits, so one slow reader never delays the others. A frame goes into the client's outbound buffer. When the
buffer is full, the frame is dropped or the client is disconnected. The newest broadcasts are kept, so that a client
that was away gets what it missed. ``RunStream`` makes the events of one run.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, Protocol, TypeAlias, cast
from weakref import WeakValueDictionary

import msgspec

from openclaw.clock import Clock
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    CompactionEnded,
    CompactionStarted,
    DemoModelAnswers,
    MessageWaits,
    ModelSwitched,
    RetryScheduled,
    Spoken,
    TextDelta,
    ThinkingDelta,
    ToolContinues,
    ToolEnded,
    ToolStarted,
    ToolUpdated,
    ToolWaits,
)
from openclaw.gateway.auth.authorise import may_receive
from openclaw.gateway.server import frames
from openclaw.gateway.server.frames import NonEmpty, Params
from openclaw.messages import ImageBlock, ToolResultMessage, UserBlock
from openclaw.models.errors import demo_text, switch_text
from openclaw.outbound.reply import with_footer
from openclaw.protocol.result import Result
from openclaw.rights import rights_of_client
from openclaw.runs.run import Run, RunAbsorbed, RunBegan, RunEvent, RunFinished, RunStopping, RunWatched
from openclaw.sessions.keys import shown_key
from openclaw.storage.message_ledger import AbortReason
from openclaw.text import clipped
from openclaw.tools.base import REFUSED_STATUSES

log = logging.getLogger("openclaw.gateway.ws")
MAX_BUFFERED_BYTES = 1_572_864
"""A client with more bytes than this in its outbound buffer counts as slow."""
MOST_REMOTE = 4_096
MAX_FRAMES = 4_096
MAX_BYTES = 4 * 1024 * 1024
OVERHEAD = 200
"""The memory that a kept frame costs besides its bytes."""
CHUNK_BYTES = 256 * 1024
"""The bytes sent in one piece. Then other tasks run and the client gets time to read."""
CHUNK_FRAMES = 512
REPLAY = "event-replay"
"""A client with this capability gets no broadcasts before it has called ``events.replay``."""
DELTA_EVENTS = "delta-events"
TOOL_EVENTS = "tool-events"
TOOL_OUTPUT = "tool-output"
"""A client with this capability gets the output of tools at every verbosity, because it shows it folded."""
RESTARTED = "the Gateway was restarted since"
LET_GO = "these events are no longer kept"
CHAT_DELTA_S = 0.150
AGENT_DELTA_S = 0.040
CUMULATIVE_BYTES_PER_S = 64_000
"""Events hold the whole text so far, for older clients, or the whole reasoning. Longer ones are sent less often."""
TEXT_LIMIT = 8_000
META_LIMIT = 200
_META_FIELDS = ("path", "file_path", "command", "url", "query", "action", "sessionKey", "message", "task")
Payload = Any
"""A mapping, a msgspec record, or a function without arguments that returns one and is called only if needed."""
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
    "openclaw-tui",
    "openclaw-linux",
    "openclaw-watchos",
    "openclaw-browser-copilot",
    "openclaw-worker",
]
ClientMode: TypeAlias = Literal["webchat", "cli", "ui", "backend", "node", "worker", "probe", "test"]


class Broadcaster:
    """Numbers events, sends them to the connected clients and keeps them for clients that were away."""

    def __init__(self, relay: EventRelay | None = None) -> None:
        """``relay`` sends the events to the other nodes of a cluster."""
        self._relay = relay or NoRelay()
        self.clients: dict[str, Client] = {}
        self.seq = 0
        self.epoch = str(uuid.uuid4())
        """Sequence numbers begin again at every start. Numbers of another epoch have no meaning."""
        self.backlog = Backlog()
        self.remote: dict[str, Client] = {}
        """Clients of other nodes that were answered here, the newest last."""
        self.run_streams: WeakValueDictionary[str, RunStream] = WeakValueDictionary()
        """The streams of the runs that have not ended, by run id. A run keeps its stream until its end."""

    def add(self, client: Client) -> None:
        self.clients[client.conn_id] = client

    def find(self, conn_id: str) -> Client | None:
        """A client of this node, or one of another node that has asked for something here."""
        return self.clients.get(conn_id) or self.remote.get(conn_id)

    def add_remote(self, client: Client) -> None:
        self.remote.pop(client.conn_id, None)
        self.remote[client.conn_id] = client
        while len(self.remote) > MOST_REMOTE:
            self.remote.pop(next(iter(self.remote)))

    def remove(self, client: Client) -> None:
        self.clients.pop(client.conn_id, None)

    def publish(
        self,
        event: str,
        payload: Any,
        *,
        drop_if_slow: bool = False,
        state_version: dict[str, int] | None = None,
    ) -> None:
        """Sends an event to every client that may see it."""
        self._relay.event(event, payload, may_be_lost=drop_if_slow)
        self.seq += 1
        frame = frames.encode_event(event, payload, self.seq, state_version)
        _send(self._live(event), event, payload, frame, drop_if_slow)
        self.backlog.keep(KeptEvent(self.seq, event, frame))

    def publish_variants(
        self,
        event: str,
        full: Payload,
        delta: Any,
        *,
        drop_if_slow: bool = False,
        since_4: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Sends an event in two forms under one number; clients with ``delta-events`` get the increment.

        ``full`` may be called again, much later, for a client that missed the event. ``since_4`` returns the fields
        that clients of protocol 4 get besides those of ``full``.
        """
        self._relay.growing(event, full, delta)
        self.seq += 1
        increment = frames.encode_event(event, delta, self.seq)
        live = self._live(event)
        if whole := [client for client in live if not client.takes_increments]:
            payload = full() if callable(full) else full
            newer = [client for client in whole if since_4 and client.protocol > frames.OLDEST_PROTOCOL]
            if len(newer) < len(whole):
                older = [client for client in whole if client not in newer]
                _send(older, event, payload, frames.encode_event(event, payload, self.seq), drop_if_slow)
            if newer and since_4:
                more = {**cast("dict[str, Any]", payload), **since_4()}
                _send(newer, event, more, frames.encode_event(event, more, self.seq), drop_if_slow)
        if len(whole) < len(live):
            _send([client for client in live if client.takes_increments], event, delta, increment, drop_if_slow)
        self.backlog.keep(KeptEvent(self.seq, event, increment, full))

    def send_to(self, conn_ids: Iterable[str], event: str, payload: Any) -> None:
        """Sends an event to these connections only, if they may see it, without a sequence number."""
        conn_ids = list(conn_ids)
        local = [client for conn_id in conn_ids if (client := self.clients.get(conn_id)) is not None]
        if len(local) < len(conn_ids):
            self._relay.to(conn_ids, event, payload)
        named = [client for client in local if may_receive(client.rights, event)]
        if named:
            _send(named, event, payload, frames.encode_event(event, payload), filtered=False)

    def _live(self, event: str) -> list[Client]:
        return [client for client in self.clients.values() if client.live and may_receive(client.rights, event)]


def _send(
    clients: list[Client], event: str, payload: Any, frame: bytes, drop_if_slow: bool = False, *, filtered: bool = True
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


class EventRelay(Protocol):
    """Hands events on to the clients of other nodes."""

    def event(self, event: str, payload: Any, *, may_be_lost: bool) -> None: ...

    def growing(self, event: str, full: Payload, delta: Any) -> None:
        """The text of a message grows. An increment may be lost; the next one then brings the whole text."""
        ...

    def to(self, conn_ids: Sequence[str], event: str, payload: Any) -> None: ...


class NoRelay:
    """The relay of a Gateway without other nodes."""

    def event(self, event: str, payload: Any, *, may_be_lost: bool) -> None:
        pass

    def growing(self, event: str, full: Payload, delta: Any) -> None:
        pass

    def to(self, conn_ids: Sequence[str], event: str, payload: Any) -> None:
        pass


class ClientInfo(Params, omit_defaults=True):
    """The description that a client sends when it connects."""

    id: ClientId
    version: NonEmpty
    platform: NonEmpty
    mode: ClientMode
    display_name: NonEmpty | None = None
    device_family: NonEmpty | None = None
    model_identifier: NonEmpty | None = None
    instance_id: NonEmpty | None = None


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
        protocol: int = frames.OLDEST_PROTOCOL,
    ) -> None:
        self.sink = sink
        self.protocol = protocol
        """The version of the protocol that the connection has agreed on."""
        self.conn_id = conn_id
        self.role = role
        self.scopes = scopes
        self.rights = rights_of_client(role, scopes)
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
            self.sink.write(self.sink.pack(frame))
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
            self.sink.write(self.sink.pack(frame))

    def close(self, code: int, reason: str) -> None:
        if self.closing:
            return
        self.closing = True
        if code == 1008:
            log.warning("closing %s: %s", self.conn_id, reason, extra={"fields": {"conn": self.conn_id}})
        self.sink.close(code, reason)

    def follow_run(self, run_id: str) -> None:
        """Follow a run that belongs to the call. A stream that shows one call overrides this."""

    def finish_after(self, run_id: str) -> None:
        """End the stream after this run. A stream that shows one call overrides this."""

    def note_answer(self, payload: Any) -> None:
        """Inspect a payload that this client is answered with. A stream that shows one call overrides this."""


class Sink(Protocol):
    """Writes the frames of one client. No write waits; ``buffered`` is the number of bytes not yet sent."""

    @property
    def buffered(self) -> int: ...

    def pack(self, frame: bytes) -> bytes:
        """The frame as it is sent on this wire. All clients of one kind share the same function object."""
        ...

    def write(self, packed: bytes) -> None:
        """Send a packed frame, after everything that was written before."""
        ...

    async def room(self) -> None:
        """Returns once the buffer has drained enough for a large answer."""
        ...

    async def until_read(self) -> None:
        """Returns once the client has read what was sent, as far as this wire can tell."""
        ...

    def close(self, code: int, reason: str) -> None: ...

    async def closed(self, code: int, reason: str) -> None:
        """Closes and returns once the peer has been told."""
        ...


# What a client missed. While it catches up it gets every broadcast from the backlog, in order and once.


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


class ReplayResult(Result, kw_only=True):
    ok: bool
    gap: bool = False
    """Some missed events cannot be sent. The client must load its state again."""
    reason: str = ""
    """Why there is a gap."""
    replayed: int | msgspec.UnsetType = msgspec.UNSET
    """The number of events sent. It is absent in ``hello-ok``, which is sent before them."""
    seq: int
    epoch: str


class Resumption(msgspec.Struct, frozen=True):
    """The number after which a returning client continues."""

    after: int
    gap: str = ""
    """Why some missed events cannot be sent. The client must then load its state again."""

    def view(self, broadcaster: Broadcaster, replayed: int | msgspec.UnsetType = msgspec.UNSET) -> ReplayResult:
        """Return the answer for the client. ``replayed`` is known once everything has been sent."""
        return ReplayResult(
            ok=not self.gap,
            gap=bool(self.gap),
            reason=self.gap,
            replayed=replayed,
            seq=broadcaster.seq,
            epoch=broadcaster.epoch,
        )


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
                client.sink.write(b"".join(chunk))
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
    if accepts is not None and not accepts(kept.event, frames.decode_any(kept.frame).get("payload")):
        return None
    if kept.whole is None or client.takes_increments:
        return kept.frame
    whole = kept.whole
    return frames.encode_event(kept.event, whole() if callable(whole) else whole, kept.seq)


# The events of a run


class GrowingText:
    """The text of a message while it arrives. Any earlier state of it can still be asked for later."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._joined = ""
        self.size = 0

    def add(self, delta: str) -> None:
        self._parts.append(delta)
        self.size += len(delta)

    def upto(self, size: int) -> str:
        """The first ``size`` characters. The parts are joined only when a client needs the whole text."""
        if self._parts:
            self._joined += "".join(self._parts)
            self._parts = []
        return self._joined if size == self.size else self._joined[:size]


class RunStream:
    """Publishes one run. Text is collected and flushed by a timer; the first words go out at once."""

    def __init__(
        self,
        run: Run,
        broadcaster: Broadcaster,
        clock: Clock,
        verbose: Callable[[], str],
        notice: Callable[[str, str], None] = lambda entry_id, text: None,
    ) -> None:
        self._run = run
        self._watchers: set[str] = set()
        """The connections that asked for this run. They may see its tool events."""
        broadcaster.run_streams[run.run_id] = self
        self._key = shown_key(run.session_key)
        self._broadcaster = broadcaster
        self._clock = clock
        self._verbose = verbose
        self._notice = notice
        self._seq = 0
        self._text = GrowingText()
        self._chat_size = 0
        """How much of the text the last ``chat`` event had."""
        self._spoke = False
        self._unsent: list[str] = []
        self._media_unsent: list[str] = []
        self._thoughts = GrowingText()
        self._thought_unsent: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_flush = 0.0
        self._last_chat = 0.0
        self._chat_closed = False
        self._switches = 0
        self._stored = True
        """The transcript holds the text, or there is none yet."""
        self._tools: dict[str, ToolStarted | ToolUpdated] = {}
        """The tool calls that are under way, by the last that was heard of each."""
        self._waits: dict[str, ToolWaits] = {}
        """Those of them that wait for a person."""

    def so_far(self) -> dict[str, Any]:
        """What the run has said and does now, as far as the transcript does not hold it yet."""
        text = "" if self._stored else self._text.upto(self._text.size - sum(map(len, self._unsent)))
        thinking = "" if self._stored or self._run.reasoning != "stream" else self._thoughts.upto(self._thoughts.size)
        return {
            "text": text,
            "thinking": thinking,
            "tools": [_under_way(event, self._waits.get(call_id)) for call_id, event in self._tools.items()],
        }

    def event(self, event: RunEvent) -> None:
        match event:
            case TextDelta(delta, _, media):
                self._text.add(delta)
                self._unsent.append(delta)
                self._media_unsent += media
                if self._timer is None:
                    self._schedule()
            case ThinkingDelta(delta) if self._run.reasoning != "off":
                self._thoughts.add(delta)
                self._thought_unsent.append(delta)
                if self._run.reasoning == "stream" and self._timer is None:
                    self._schedule()
            case AssistantStarted():
                self._flush()
                if self._text.size:
                    self._text, self._chat_size = GrowingText(), 0
                self._thoughts, self._thought_unsent = GrowingText(), []
                self._stored = False
            case AssistantEnded(_, speech):
                self._flush()
                self._stored = True
                if self._thought_unsent and isinstance(speech, Spoken):
                    self._flush_thoughts()
            case ToolStarted(call_id, name, arguments):
                self._flush()
                self._tools[call_id] = event
                self._tool({"phase": "start", "name": name, "toolCallId": call_id, "args": arguments})
            case ToolWaits(call_id) if call_id in self._tools:
                self._waits[call_id] = event
                name = self._tools[call_id].name
                self._tool({"phase": "waiting", "name": name, "toolCallId": call_id, **_waiting(event)})
            case ToolContinues(call_id, question_id) if call_id in self._tools:
                self._waits.pop(call_id, None)
                name = self._tools[call_id].name
                self._tool({"phase": "running", "name": name, "toolCallId": call_id, "questionId": question_id})
            case ToolUpdated(call_id, name, _, partial):
                self._tools[call_id] = event
                data = {"phase": "update", "name": name, "toolCallId": call_id}
                self._tool(data, ("partialResult", lambda: result_view(partial.content, partial.details)))
            case ToolEnded(message, arguments, failed):
                data = {
                    "phase": "result",
                    "name": message.tool_name,
                    "toolCallId": message.tool_call_id,
                    "meta": tool_meta(message.tool_name, arguments),
                    "isError": failed,
                }
                self._tools.pop(message.tool_call_id, None)
                self._waits.pop(message.tool_call_id, None)
                data["status"] = tool_status(message, failed=failed)
                self._tool(data, ("result", lambda: result_view(message.content, message.details)))
            case RunBegan():
                self._agent("lifecycle", {"phase": "start", "startedAt": self._run.started_at})
            case RunWatched(connection):
                self._watchers.add(connection)
            case RunStopping(reason):
                self._stopping(reason)
            case RunAbsorbed(by):
                for connection in self._watchers:
                    by.emit(RunWatched(connection))
                self._absorbed(by.run_id)
            case RunFinished():
                self._finished()
            case MessageWaits(reworded):
                self._agent("queue", {"phase": "reworded" if reworded else "waiting"})
            case RetryScheduled(attempt, delay_ms, error):
                self._flush()
                self._agent("lifecycle", {"phase": "retry", "attempt": attempt, "delayMs": delay_ms, "error": error})
            case ModelSwitched(chosen, active, reason):
                self._flush()
                self._switches += 1
                text = switch_text(chosen, active, reason)
                phase = "fallback_cleared" if active == chosen else "fallback"
                data = {"phase": phase, "selectedModel": chosen, "activeModel": active, "reason": reason, "text": text}
                self._agent("lifecycle", data)
                self._notice(f"notice-{self._run.run_id}-model-{self._switches}", text)
            case DemoModelAnswers(name):
                self._flush()
                self._notice(f"notice-{self._run.run_id}-demo", demo_text(name))
            case CompactionStarted():
                self._flush()
                self._agent("compaction", {"phase": "start"})
            case CompactionEnded():  # This may come after the end of the run.
                error = {"error": event.error} if event.error else {}
                self._agent("compaction", {"phase": "end", "willRetry": event.will_retry, **error})
                if event.entry_id is not None and self._verbose() in ("on", "full"):
                    self._notice(f"compaction-{event.entry_id}", f"🧹 Auto-compaction complete (count {event.count}).")
            case _:
                pass

    def _stopping(self, reason: AbortReason) -> None:
        self._flush()
        if not self._chat_closed:
            self._seq += 1
            self._chat("aborted", stopReason=_stop_reason(reason))
            self._chat_closed = True

    def _absorbed(self, by: str) -> None:
        """Ends a run whose message another run answers. Older clients read ``queued`` as the sign of that."""
        self._seq += 1
        self._chat("final", queued=True, answeredBy=by)
        self._chat_closed = True

    def _finished(self) -> None:
        self._flush()
        run = self._run
        if run.state == "error":
            error = {"phase": "error", "error": run.error, "endedAt": run.ended_at}
            self._agent("lifecycle", error)
            if not self._chat_closed:
                stopped = {"stopReason": _stop_reason(run.abort.reason)} if run.abort.reason else {}
                self._chat("error", errorMessage=run.error or "the run failed", **stopped)
            return
        aborted = {"aborted": True} if run.state == "aborted" else {}
        self._agent("lifecycle", {"phase": "end", "endedAt": run.ended_at, **aborted})
        if self._chat_closed:
            return
        if run.state == "aborted":
            self._chat("aborted", stopReason=_stop_reason(run.abort.reason or run.error or "stop"))
            return
        self._chat("final", **self._final_message())
        # The prompt report warns, for example, that a workspace file was too long to be read whole.
        report = run.result.account.report if run.result else None
        for number, warning in enumerate(report.warnings if report else ()):
            self._notice(f"notice-{run.run_id}-{number}", f"⚠️ {warning}")

    def _final_message(self) -> dict[str, Any]:
        """The message of the final event. It is absent for silence, and a notice when an answer is missing."""
        result = self._run.result
        if result is None:
            return {}
        media: tuple[str, ...] = ()
        if isinstance(result.speech, Spoken):
            text, media = with_footer(result.speech.text, result.account.footer), result.speech.media
        else:
            text = result.notice
        if not text and not media:
            return {}
        message = spoken(text, self._clock.now_ms())
        if media:
            message["mediaUrls"] = list(media)
        if result.reasoning:
            message["content"].insert(0, {"type": "thinking", "thinking": result.reasoning.strip()})
        return {"message": message}

    # Text

    def _schedule(self) -> None:
        """Flushes at once when the last flush is long enough ago, otherwise later."""
        size = (self._thoughts if self._thought_unsent else self._text).size
        interval = max(AGENT_DELTA_S, size / CUMULATIVE_BYTES_PER_S)
        due = self._last_flush + interval - self._clock.monotonic()
        if due <= 0:
            self._flush()
        else:
            self._timer = asyncio.get_running_loop().call_later(due, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thought_unsent and self._run.reasoning == "stream":
            self._flush_thoughts()
        if not self._unsent:
            return
        delta, media = "".join(self._unsent), self._media_unsent
        self._unsent, self._media_unsent = [], []
        self._last_flush = self._clock.monotonic()
        self._agent_text(delta, media)
        if self._last_flush - self._last_chat >= CHAT_DELTA_S and not self._chat_closed:
            self._last_chat = self._last_flush
            self._chat_delta()

    def _flush_thoughts(self) -> None:
        """Publishes reasoning as its own stream, for sessions that show it."""
        delta = "".join(self._thought_unsent)
        if delta:
            self._thought_unsent = []
            self._last_flush = self._clock.monotonic()
            self._agent("thinking", {"text": self._thoughts.upto(self._thoughts.size), "delta": delta})

    # A client that missed an event gets it much later, so the payload functions below capture the current values and
    # not the run.

    def _agent_text(self, delta: str, media: list[str]) -> None:
        self._seq += 1
        text, size = self._text, self._text.size
        # Clients that get only increments see from the text that another message of the run begins.
        begins = self._spoke and size == len(delta)
        self._spoke = True
        files = {"mediaUrls": media} if media else {}
        data = {"text": delta, "delta": delta, **files} if begins else {"delta": delta, **files}
        increment = self._payload("assistant", data)
        self._broadcaster.publish_variants(
            "agent", lambda: {**increment, "data": {"text": text.upto(size), "delta": delta, **files}}, increment
        )

    def _chat_delta(self) -> None:
        text, size, now = self._text, self._text.size, self._clock.now_ms()
        head = self._chat_head("delta")
        start, self._chat_size = self._chat_size, size

        def since_4() -> dict[str, Any]:
            added = text.upto(size)[start:]
            return {"deltaText": added} if start else {"deltaText": added, "replace": True}

        self._broadcaster.publish_variants(
            "chat",
            lambda: {**head, "message": spoken(text.upto(size), now)},
            head,
            drop_if_slow=True,
            since_4=since_4,
        )

    # Frames

    def _chat_head(self, state: str) -> dict[str, Any]:
        return {"runId": self._run.run_id, "sessionKey": self._key, "seq": self._seq, "state": state}

    def _chat(self, state: str, **more: Any) -> None:
        self._broadcaster.publish("chat", {**self._chat_head(state), **more})

    def _agent(self, stream: str, data: dict[str, Any]) -> None:
        self._seq += 1
        self._broadcaster.publish("agent", self._payload(stream, data))

    def _payload(self, stream: str, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "runId": self._run.run_id,
            "stream": stream,
            "data": data,
            "sessionKey": self._key,
            "seq": self._seq,
            "ts": self._clock.now_ms(),
        }

    def _tool(self, data: dict[str, Any], body: tuple[str, Callable[[], Any]] | None = None) -> None:
        """Sends a tool event to the connections that asked for this run, as detailed as the session's verbosity.

        Our own clients (``delta-events``) show tool calls as progress lines at every verbosity, and why one failed.
        """
        self._seq += 1
        if not self._watchers:
            return
        level = self._verbose()
        brief: list[str] = []
        whole: list[str] = []
        for client in map(self._broadcaster.find, self._watchers):
            if client is None or TOOL_EVENTS not in client.caps:
                continue
            failed = bool(data.get("isError")) and DELTA_EVENTS in client.caps
            if TOOL_OUTPUT in client.caps or level == "full" or failed:
                whole.append(client.conn_id)
            elif level == "on" or DELTA_EVENTS in client.caps:
                brief.append(client.conn_id)
        if brief:
            self._broadcaster.send_to(brief, "agent", self._payload("tool", data))
        if whole:
            data = data if body is None else {**data, body[0]: body[1]()}
            self._broadcaster.send_to(whole, "agent", self._payload("tool", data))


def spoken(text: str, at: int) -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    return {"role": "assistant", "content": content, "timestamp": at}


def _waiting(event: ToolWaits) -> dict[str, Any]:
    return {"questionId": event.question_id, "expiresAtMs": event.expires_at}


def _under_way(event: ToolStarted | ToolUpdated, waits: ToolWaits | None) -> dict[str, Any]:
    view: dict[str, Any] = {"name": event.name, "toolCallId": event.call_id, "args": event.arguments}
    if waits is not None:
        return {"phase": "waiting", **view, **_waiting(waits)}
    if isinstance(event, ToolStarted):
        return {"phase": "start", **view}
    return {"phase": "update", **view, "partialResult": result_view(event.partial.content, event.partial.details)}


def _stop_reason(reason: str) -> str:
    """The stop reason for clients. They know only ``rpc``, ``stop`` and ``timeout``."""
    return reason if reason in (AbortReason.RPC, AbortReason.TIMEOUT) else AbortReason.STOP


def tool_status(message: ToolResultMessage, *, failed: bool) -> str:
    """How a call ended, for its card: ``done``, ``failed``, ``denied``, ``expired`` or ``withdrawn``."""
    status = message.details.get("status") if isinstance(message.details, dict) else None
    if status in REFUSED_STATUSES:
        return status
    return "failed" if failed else "done"


def tool_meta(name: str, arguments: dict[str, Any]) -> str:
    """The argument that describes the call best, or the tool's name."""
    for field in _META_FIELDS:
        value = arguments.get(field)
        if isinstance(value, str) and value.strip():
            return clipped(" ".join(value.split()), META_LIMIT)
    return name


def result_view(content: list[UserBlock], details: Any) -> dict[str, Any]:
    view: dict[str, Any] = {"content": [_block(block) for block in content]}
    if details is not msgspec.UNSET and details is not None:
        view["details"] = details
    return view


def _block(block: UserBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        return {"type": "image", "mimeType": block.mime_type, "bytes": len(block.data) * 3 // 4, "omitted": True}
    if len(block.text) <= TEXT_LIMIT:
        return {"type": "text", "text": block.text}
    return {"type": "text", "text": block.text[:TEXT_LIMIT] + "\n…(truncated)…"}
