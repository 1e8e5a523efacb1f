"""The methods over plain HTTP: one call with one answer, or one call with the stream of its events.

The command line and scripts use it. It needs no WebSocket and no handshake; the authoriser is the same.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from openclaw import __version__
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http.common import BodyRefused, HttpRefusal, HttpRoute, read_body
from openclaw.gateway.server import registry
from openclaw.gateway.server.events import DELTA_EVENTS, TOOL_EVENTS, Client, ClientInfo, catch_up, field_of, resume
from openclaw.gateway.server.frames import (
    ErrorShape,
    InvalidParams,
    NonEmpty,
    NotJson,
    Params,
    decode_any,
    decode_params,
    encode,
)
from openclaw.rights import ADMIN

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

CALL_ID = "1"
MAX_BODY_BYTES = 16 * 1024 * 1024
"""The largest body. Attachments come in one piece here, so it is more than a WebSocket frame may hold."""


class RpcBody(Params):
    method: NonEmpty
    params: msgspec.Raw = msgspec.Raw()
    stream: bool = False
    caps: list[str] | None = None


class Rpc:
    """Serves calls and event streams over HTTP."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[HttpRoute]:
        return [
            HttpRoute("POST", "/__openclaw__/rpc", self.call, refusal_response),
            HttpRoute("GET", "/__openclaw__/events", self.events, refusal_response),
        ]

    async def call(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        try:
            body = decode_params("rpc", await read_body(request, MAX_BODY_BYTES), RpcBody)
        except BodyRefused as refused:
            response = refusal_response(HttpRefusal(status=refused.status, message=str(refused)))
            response.force_close()
            return response
        except InvalidParams as error:
            return refusal_response(HttpRefusal(status=400, message=str(error)))
        if body.stream:
            return await self._stream(request, peer, body)
        client = Client(
            NdjsonSink(), **_identity(peer, body.caps)
        )  # Only the last answer counts; nobody reads the sink.
        # The call goes on when the caller hangs up.
        answering = self._gateway.spawn(registry.answer(self._gateway, client, CALL_ID, body.method, body.params))
        answer = await asyncio.shield(answering)
        # The body is the answer without the envelope of the socket: ``{"ok", "payload"}`` or ``{"ok", "error"}``.
        return web.Response(body=encode(_response_decoder.decode(answer.frame)), content_type="application/json")

    async def _stream(self, request: web.BaseRequest, peer: PeerAddress, body: RpcBody) -> web.StreamResponse:
        sink = NdjsonSink()
        client = CallStream(sink, **_identity(peer, body.caps))
        try:
            # The id of the run that the call starts is its idempotency key, so no event is missed.
            params = decode_any(bytes(body.params)) if bytes(body.params).strip() else None
        except NotJson:
            params = None
        if isinstance(run_id := field_of(params, "idempotencyKey"), str):
            client.follow_run(run_id)
        self._gateway.broadcaster.add(client)

        async def answer_call() -> None:
            answer = await registry.answer(self._gateway, client, CALL_ID, body.method, body.params)
            if not answer.sent:
                await client.send_answer(answer.frame)
            client.answered(answer.ok)

        self._gateway.spawn(answer_call())
        try:
            return await sink.serve(request)
        finally:
            client.closing = True
            self._gateway.broadcaster.remove(client)

    async def events(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        """Send all broadcast events, or those of one session, for as long as the caller listens.

        With ``afterSeq`` and its ``epoch`` the caller first gets the events after that number. The headers of the
        answer name the current epoch and number, and why missed events cannot be sent.
        """
        broadcaster, after = self._gateway.broadcaster, request.query.get("afterSeq")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):
            return refusal_response(HttpRefusal(status=400, message="afterSeq must be a sequence number"))
        resumption = None if after is None else resume(broadcaster, int(after), request.query.get("epoch"))
        headers = {"X-OpenClaw-Epoch": broadcaster.epoch, "X-OpenClaw-Seq": str(broadcaster.seq)}
        if resumption is not None and resumption.gap:
            headers["X-OpenClaw-Gap"] = resumption.gap
        sink = NdjsonSink(headers)
        client = Client(sink, **_identity(peer, request.query.getall("cap", None)))
        if key := request.query.get("sessionKey"):
            canonical_key = self._gateway.canonical_key
            session_key = canonical_key(key)

            def of_session(_event: str, payload: Any) -> bool:
                event_key = field_of(payload, "sessionKey")
                return isinstance(event_key, str) and canonical_key(event_key) == session_key

            client.event_filter = of_session
        broadcaster.add(client)
        if resumption is not None:
            client.live = False
            self._gateway.spawn(catch_up(broadcaster, client, resumption.after))
        try:
            return await sink.serve(request)
        finally:
            client.closing = True
            broadcaster.remove(client)


def _identity(peer: PeerAddress, caps: list[str] | None) -> dict[str, Any]:
    return {
        "conn_id": f"http-{uuid.uuid4()}",
        "role": "operator",
        "scopes": frozenset({ADMIN}),
        "caps": frozenset(caps if caps is not None else (DELTA_EVENTS, TOOL_EVENTS)),
        "client_info": ClientInfo(id="cli", version=__version__, platform="http", mode="cli"),
        "is_local": peer.is_local,
        "ip": peer.ip,
    }


class _Response(msgspec.Struct):
    ok: bool
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_response_decoder = msgspec.json.Decoder(_Response)


def refusal_response(refused: HttpRefusal) -> web.Response:
    codes = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 429: "RATE_LIMITED", 503: "UNAVAILABLE"}
    error = ErrorShape(
        code=codes.get(refused.status, "INVALID_REQUEST"),
        message=refused.message,
        retry_after_ms=refused.retry_after_ms,
    )
    headers: dict[str, str] = {}
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refused.retry_after_ms:
        headers["Retry-After"] = str(refused.retry_after_ms // 1000 + 1)
    body = encode({"ok": False, "error": error})
    return web.Response(status=refused.status, body=body, content_type="application/json", headers=headers)


_ENDS = frozenset({"final", "error", "aborted"})
MAX_FOLLOWED = 64


class NdjsonSink:
    """Queues lines for the task that writes them. Lines that wait together are sent together."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self._headers = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store", **(headers or {})}
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False

    @property
    def buffered(self) -> int:
        return self._size

    @staticmethod
    def pack(frame: bytes) -> bytes:
        return frame + b"\n"

    def write(self, packed: bytes) -> None:
        self._lines.append(packed)
        self._size += len(packed)
        self._wake.set()

    async def room(self) -> None:
        if not self._ended:
            self._room.clear()
            await self._room.wait()

    async def until_read(self) -> None:
        """The reader of a stream gets its lines one after the other."""

    def close(self, code: int, reason: str) -> None:
        """Ends the stream after what is already queued."""
        self._ended = True
        self._wake.set()

    async def closed(self, code: int, reason: str) -> None:
        self.close(code, reason)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Writes lines until the stream is closed. The server cancels this when the caller hangs up."""
        response = web.StreamResponse(headers=self._headers)
        writer = await response.prepare(request)
        assert writer is not None
        writer.send_headers()
        try:
            while self._lines or not self._ended:
                await self._wake.wait()
                self._wake.clear()
                lines = b"".join(self._lines)
                self._lines.clear()
                if lines:
                    await response.write(lines)
                self._size -= len(lines)
                self._room.set()
            await response.write_eof()
        except ConnectionError:
            pass
        finally:
            self._ended = True
            self._room.set()
        return response


class CallStream(Client):
    """Shows the answers of one call and the events of the runs it started, and ends with them."""

    def __init__(self, sink: NdjsonSink, **identity: Any) -> None:
        super().__init__(sink, **identity)
        self.event_filter = self._belongs
        self._followed: set[str] = set()
        self._ended: set[str] = set()
        self._finish_run: str | None = None
        self._answered = False

    def follow_run(self, run_id: str) -> None:
        if len(self._followed) < MAX_FOLLOWED:
            self._followed.add(run_id)

    def note_answer(self, payload: Any) -> None:
        if isinstance(run_id := field_of(payload, "runId"), str):
            self.follow_run(run_id)

    def finish_after(self, run_id: str) -> None:
        self.follow_run(run_id)
        self._finish_run = run_id
        self._finish_if_done()

    def answered(self, ok: bool) -> None:
        """Hears that the last answer was sent. A failed call has no run to wait for."""
        self._answered = True
        if not ok:
            self._finish_run = None
        self._finish_if_done()

    def _belongs(self, event: str, payload: Any) -> bool:
        if event == "shutdown":
            return True
        run_id = field_of(payload, "runId")
        if not isinstance(run_id, str) or run_id not in self._followed:
            return False
        if event == "chat" and field_of(payload, "state") in _ENDS:
            self._ended.add(run_id)
            asyncio.get_running_loop().call_soon(self._finish_if_done)
        return True

    def _finish_if_done(self) -> None:
        if self._answered and (self._finish_run is None or self._finish_run in self._ended):
            self.sink.close(1000, "")
