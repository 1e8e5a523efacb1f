"""One WebSocket connection: the handshake, the requests and the close.

The first request is ``connect``. It is admitted when the caller knows the secret and its device is paired, and answered
with ``hello-ok``. ``Connection`` leads through all of it. ``gateway/auth/connect.py`` judges the ``connect``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import uuid
from collections.abc import Set
from typing import TYPE_CHECKING, Any

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from openclaw import __version__
from openclaw.gateway.auth.authorise import (
    may_receive,
    right_of,
)
from openclaw.gateway.auth.connect import ClientGate, ConnectGrant, ConnectRefused, decode_connect
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.model_catalog import snapshot_for
from openclaw.gateway.server import frames, registry
from openclaw.gateway.server.events import MAX_BUFFERED_BYTES, Client, Resumption, catch_up, resume
from openclaw.gateway.server.frames import (
    MAX_FRAME_BYTES,
    OLDEST_PROTOCOL,
    InvalidParams,
)
from openclaw.gateway.server.registry import CAPABILITIES, events_of
from openclaw.rights import Right, rights_of_client

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

    from openclaw.gateway.gateway import Gateway

log = logging.getLogger("openclaw.gateway.ws")
HANDSHAKE_TIMEOUT_S = 10.0
TICK_INTERVAL_MS = 30_000
MAX_ATTACHMENT_BYTES = MAX_FRAME_BYTES * 3 // 4 - 16 * 1024
"""The largest file that fits into a frame in base64, beside its message."""
MAX_FIRST_BYTES = 64 * 1024
"""The most that a client may send before it is let in."""
MAX_CALLS_IN_FLIGHT = 256
"""A client with this many unanswered calls is not read until one of them is answered."""
CLOSE_GRACE_S = 5.0
LINGER_STEP_S = 0.05
SLOW_CALL_MS = 250
READ_WAIT_S = 0.25
"""How long ``WebSocketSink.until_read`` waits for a client that does not answer pings."""
_PING = b"\x89\x00"


class Connection:
    """Serves one client, from its ``connect`` until the socket is closed."""

    def __init__(self, gateway: Gateway, gate: ClientGate, peer: PeerAddress, handshake_timeout_s: float) -> None:
        self._gateway = gateway
        self._gate = gate
        self._peer = peer
        self._handshake_timeout_s = handshake_timeout_s
        self._in_flight = 0
        self._room = asyncio.Event()
        self._handler: RequestHandler | None = None
        self._allowance: Allowance | None = None
        self._id = str(uuid.uuid4())
        self._nonce = str(uuid.uuid4())

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        ws = PatientSocket(
            compress=False,
            max_msg_size=MAX_FRAME_BYTES,
            decode_text=False,
            timeout=CLOSE_GRACE_S,
            autoping=False,
        )
        writer = await ws.prepare(request)
        transport = request.transport
        if transport is None:
            return ws
        sink = WebSocketSink(ws, transport, writer)
        self._handler, self._allowance = request.protocol, ws.limited(transport)
        challenge = {"nonce": self._nonce, "ts": self._gateway.runtime.clock.now_ms()}
        sink.write(sink.pack(frames.encode_event("connect.challenge", challenge)))
        client = await self._shake_hands(ws, sink)
        if client is not None:
            try:
                await self._listen(ws, sink, client)
            finally:
                client.closing = True
                self._gateway.client_left(client)
        return ws

    async def _shake_hands(self, ws: web.WebSocketResponse, sink: WebSocketSink) -> Client | None:
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                message = await _receive(ws, sink)
        except TimeoutError:
            await sink.closed(1000, "")
            return None
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return None
        try:
            request = frames.decode_request(message.data)
        except frames.NotJson:
            await sink.closed(1000, "")
            return None
        except frames.BadFrame:
            await sink.closed(1008, "invalid request frame")
            return None
        try:
            # The shield lets a write of the device files finish when the caller hangs up.
            grant = await asyncio.shield(self._gateway.spawn(self._admit(request)))
            if not self._gateway.sockets.recognise(self._handler):
                raise ConnectRefused("too many connections", code="UNAVAILABLE", close_code=1013, retry_after_ms=1000)
        except ConnectRefused as refused:
            fields = {"conn": self._id, "ip": self._peer.ip, "code": refused.close_code}
            log.warning("refused %s: %s", self._peer.ip, refused, extra={"fields": fields})
            error = frames.ErrorShape(
                code=refused.code, message=str(refused), details=refused.details, retry_after_ms=refused.retry_after_ms
            )
            sink.write(sink.pack(frames.encode_error(request.id, error)))
            await sink.closed(refused.close_code, str(refused))
            return None
        if self._allowance is not None:
            self._allowance.lift()
        return self._welcome(sink, request.id, grant)

    async def _admit(self, request: frames.Request) -> ConnectGrant:
        if request.method != "connect":
            raise ConnectRefused("invalid handshake: first request must be connect")
        try:
            connect = decode_connect(request.params)
        except InvalidParams as error:
            raise ConnectRefused(str(error)) from None
        return await self._gate.admit(connect, self._peer, self._nonce)

    def _welcome(self, sink: WebSocketSink, id: str, grant: ConnectGrant) -> Client:
        connect = grant.connect
        client = Client(
            sink,
            conn_id=self._id,
            role=grant.role,
            scopes=frozenset(grant.scopes),
            caps=frozenset(connect.caps),
            client_info=connect.client,
            is_local=self._peer.is_local,
            ip=self._peer.ip,
            protocol=grant.protocol,
        )
        client.device_id = connect.device.id if connect.device else None
        client.by_device_token = grant.by_device_token
        self._gateway.client_came(client, grant.scopes)
        broadcaster, last = self._gateway.broadcaster, connect.last_seq
        resumption = None if last is None else resume(broadcaster, last, connect.epoch)
        client.send_frame(frames.encode_response(id, self._hello(grant, resumption)))
        broadcaster.add(client)
        self._gateway.nodes.joined(client, connect)
        if resumption is not None:
            client.live = False  # The client is live again once it has been sent what it missed.
            self._gateway.spawn(catch_up(broadcaster, client, resumption.after))
        if grant.protocol > OLDEST_PROTOCOL and connect.model_catalog and may_receive(client.rights, "models.snapshot"):
            snapshot = snapshot_for(self._gateway.runtime, connect.model_catalog)
            client.send_frame(frames.encode_event("models.snapshot", snapshot))
        self._gateway.health.refresh_soon()
        log.debug("connected %s", connect.client.id, extra={"fields": {"conn": self._id, "role": grant.role}})
        return client

    def _snapshot(self, rights: Set[Right]) -> dict[str, Any]:
        """Return the state that a new client starts with, without the parts that it has no right to read."""
        gateway = self._gateway
        snapshot: dict[str, Any] = {
            "presence": gateway.presence.listing() if may_receive(rights, "presence") else [],
            "health": (gateway.health.cached or {}) if may_receive(rights, "health") else {},
            "stateVersion": gateway.state_version(),
            "uptimeMs": gateway.runtime.clock.now_ms() - gateway.started_at,
        }
        if right_of("status") in rights:  # Which returns the same.
            snapshot["configPath"] = gateway.runtime.config.snapshot.path
            snapshot["stateDir"] = str(gateway.runtime.state_dir)
            snapshot["sessionDefaults"] = gateway.session_defaults()
        return snapshot

    def _hello(self, grant: ConnectGrant, resumption: Resumption | None) -> dict[str, Any]:
        gateway = self._gateway
        hello: dict[str, Any] = {
            "type": "hello-ok",
            "protocol": grant.protocol,
            "server": {
                "version": __version__,
                "host": socket.gethostname(),
                "connId": self._id,
                # The client sees from these two whether it has missed events.
                "epoch": gateway.broadcaster.epoch,
                "seq": gateway.broadcaster.seq,
            },
            "features": {"methods": gateway.methods.advertised(grant.protocol), "events": events_of(grant.protocol)},
            "snapshot": self._snapshot(rights_of_client(grant.role, grant.scopes)),
        }
        if resumption is not None:
            hello["server"]["replay"] = resumption.view(gateway.broadcaster)
        if auth := grant.auth_block:
            hello["auth"] = auth
        hello["policy"] = {
            "maxPayload": MAX_FRAME_BYTES,
            "maxBufferedBytes": MAX_BUFFERED_BYTES,
            "tickIntervalMs": TICK_INTERVAL_MS,
        }
        if grant.protocol > OLDEST_PROTOCOL:
            # One Gateway process is one epoch. A ``buildId`` would make pages of another build reload forever.
            hello["server"] |= {"bootId": gateway.broadcaster.epoch}
            hello["features"]["capabilities"] = list(CAPABILITIES)
            limits = {"maxBytes": MAX_ATTACHMENT_BYTES, "maxImageBytes": MAX_ATTACHMENT_BYTES}
            hello["policy"] = {**hello["policy"], "attachments": limits}
            hello |= {"controlUiLinkReaders": [], "controlUiWidgetKinds": [], "pluginSurfaceUrls": {}}
        return hello

    async def _listen(self, ws: web.WebSocketResponse, sink: WebSocketSink, client: Client) -> None:
        while True:
            message = await _receive(ws, sink)
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            try:
                request = frames.decode_request(message.data)
            except frames.NotJson:
                log.warning("ignored a frame that is not JSON", extra={"fields": {"conn": self._id}})
                continue
            except frames.BadFrame as bad:
                error = frames.ErrorShape(code="INVALID_REQUEST", message=f"invalid request frame: {bad}")
                await client.send_answer(frames.encode_error(bad.id, error))
                continue
            if self._in_flight >= MAX_CALLS_IN_FLIGHT:
                self._room.clear()
                await self._room.wait()
            self._in_flight += 1
            self._gateway.spawn(self._answer_call(client, request))

    async def _answer_call(self, client: Client, request: frames.Request) -> None:
        began = self._gateway.runtime.clock.monotonic()
        try:
            await self._gateway.loop_fairness.enter()
            answer = await registry.answer(self._gateway, client, request.id, request.method, request.params)
            if not answer.sent:
                await client.send_answer(answer.frame)
        finally:
            if self._in_flight == MAX_CALLS_IN_FLIGHT:
                self._room.set()
            self._in_flight -= 1
        took_ms = int((self._gateway.runtime.clock.monotonic() - began) * 1000)
        level = logging.DEBUG if answer.ok and took_ms < SLOW_CALL_MS else logging.INFO
        if log.isEnabledFor(level):
            text = f"⇄ res {'✓' if answer.ok else '✗'} {request.method[:80]} {took_ms}ms"
            fields = {"conn": client.conn_id, "id": request.id[:80], "ms": took_ms}
            log.log(level, "%s%s", text, "" if answer.ok else f" {answer.message[:200]}", extra={"fields": fields})


async def _receive(ws: web.WebSocketResponse, sink: WebSocketSink) -> WSMessage:
    """Returns the next message, after it has dealt with pings and pongs."""
    while True:
        message = await ws.receive()
        if message.type is WSMsgType.PING:
            await ws.pong(message.data)
        elif message.type is WSMsgType.PONG:
            sink.ponged()
        else:
            return message


# The socket


class WebSocketSink:
    """Writes frames into the socket's own buffer, whose size callers check before each frame."""

    def __init__(self, ws: web.WebSocketResponse, transport: asyncio.Transport, writer: AbstractStreamWriter) -> None:
        self._ws = ws
        self._transport = transport
        self._writer = writer
        self._closer: asyncio.Task[None] | None = None
        self._pong = asyncio.Event()

    @property
    def buffered(self) -> int:
        return self._transport.get_write_buffer_size()

    @staticmethod
    def pack(frame: bytes) -> bytes:
        """Makes a text frame of RFC 6455. Servers do not mask."""
        size = len(frame)
        if size < 126:
            return bytes((0x81, size)) + frame
        if size < 65536:
            return struct.pack("!HH", 0x817E, size) + frame
        return struct.pack("!HQ", 0x817F, size) + frame

    def write(self, packed: bytes) -> None:
        if not self._ws.closed and not self._transport.is_closing():
            self._transport.write(packed)

    async def until_read(self) -> None:
        """Sends a ping and waits for its answer, which comes once the client has read everything before it."""
        await self.room()
        self._pong.clear()
        self.write(_PING)
        try:
            async with asyncio.timeout(READ_WAIT_S):
                await self._pong.wait()
        except TimeoutError:
            pass

    def ponged(self) -> None:
        self._pong.set()

    async def room(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            pass

    def close(self, code: int, reason: str) -> None:
        if self._closer is None:
            self._closer = asyncio.get_running_loop().create_task(self.closed(code, reason))

    async def closed(self, code: int, reason: str) -> None:
        """Sends the close frame, and cuts off a peer that does not react in time."""
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await self._ws.close(code=code, message=frames.close_reason(reason), drain=False)
        except (TimeoutError, ConnectionError, RuntimeError):
            pass
        # The abort comes later, so that a peer that reads still gets the buffer and the close frame.
        asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)


class Allowance:
    """Stands before the reader of frames and lets a limited number of bytes through until the limit is lifted."""

    def __init__(self, reader: Any, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport
        self._left: int | None = MAX_FIRST_BYTES

    def lift(self) -> None:
        self._left = None

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        if self._left is None:
            return self._reader.feed_data(data)
        self._left -= len(data)
        if self._left >= 0:
            return self._reader.feed_data(data)
        reason = struct.pack("!H", WSCloseCode.MESSAGE_TOO_BIG) + b"too much before connect"
        self._transport.write(b"\x88" + bytes((len(reason),)) + reason)
        self._reader.feed_eof()
        return True, b""

    def feed_eof(self) -> None:
        self._reader.feed_eof()


class PatientSocket(web.WebSocketResponse):
    """Lets a peer finish sending a frame that is too large, because a reset would hide the reason from it."""

    _said_goodbye = False

    def limited(self, transport: asyncio.Transport) -> Allowance | None:
        """Limits what the peer may send. The library has one limit for a frame and cannot change it later."""
        handler = None if self._req is None else self._req.protocol
        if handler is None or handler._payload_parser is None:  # pyright: ignore[reportPrivateUsage]
            return None
        allowance = Allowance(handler._payload_parser, transport)  # pyright: ignore[reportPrivateUsage]
        handler._payload_parser = allowance  # pyright: ignore[reportPrivateUsage]
        return allowance

    @property
    def closed(self) -> bool:
        return self._said_goodbye or self._closed

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        transport = None if self.closed or self._req is None else self._req.transport
        if code == WSCloseCode.MESSAGE_TOO_BIG and transport is not None and not transport.is_closing():
            reason = struct.pack("!H", code) + frames.close_reason(f"a frame may have {MAX_FRAME_BYTES} bytes")
            transport.write(b"\x88" + bytes((len(reason),)) + reason)
            self._said_goodbye = True
            waited = 0.0
            while waited < CLOSE_GRACE_S and not transport.is_closing():  # Incoming data is dropped.
                await asyncio.sleep(LINGER_STEP_S)
                waited += LINGER_STEP_S
        return await super().close(code=code, message=message, drain=drain)
