"""A stand-in for signal-cli's HTTP daemon that refuses what the real one refuses, over real HTTP.

It is stricter in one point: parameters the real daemon would silently ignore are refused, because a name written
wrongly would otherwise look as if it worked.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import json
import re
import sys
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.support.ports import KeptPort

NUMBER = re.compile(r"\+[1-9]\d{5,14}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;filename=([^;,]+))?;base64,(.*)", re.DOTALL)
USER_ERROR, IO_ERROR, INVALID_PARAMS, NO_METHOD, INVALID_REQUEST, PARSE_ERROR = -1, -3, -32602, -32601, -32600, -32700
BUFFERED = 1000


class Refusal(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class SignalDaemon:
    """``async with SignalDaemon("+15550000001") as daemon``; without accounts given any is served."""

    def __init__(self, *accounts: str, event_ids: bool = True, groups: tuple[str, ...] = ()) -> None:
        self.accounts = accounts or ("+15550000001",)
        self.event_ids = event_ids
        self.groups = set(groups)
        self.unregistered: set[str] = set()
        self.attachments: dict[str, bytes] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """What was carried out, in order."""
        self.refused: list[tuple[str, str]] = []
        self.last_event_ids: list[str | None] = []
        """The header of each stream that was opened."""
        self._kept_port = KeptPort()
        self.port = self._kept_port.number
        self._clock = 1_794_766_939_494
        self._faults: dict[str, deque[Any]] = {}
        self.silent: asyncio.Event | None = None
        """While it is set to an event, calls get no answer and are not carried out, until the event is set."""
        self.unanswered = 0
        self._strikes: dict[str, deque[tuple[Callable[[], None], bool]]] = {}
        self._events: deque[tuple[int, str, bytes]] = deque(maxlen=BUFFERED)
        self._sequence = 0
        self._streams: dict[web.StreamResponse, str | None] = {}
        self._stream_tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> SignalDaemon:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/api/v1/rpc", self._rpc)
        app.router.add_route("*", "/api/v1/events", self._stream)
        app.router.add_route("*", "/api/v1/check", self._check)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        self.disconnect()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> SignalDaemon:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # What a test does with it

    def message(self, text: str | None, *, sender: str = "+15550000042", name: str = "Tester", **data: Any) -> Any:
        """An envelope as the daemon words it; ``group`` names a group, other keys go into the data message."""
        self._clock += 1000
        timestamp = data.pop("timestamp", self._clock)
        group = data.pop("group", None)
        uuid = data.pop("uuid", None)
        if group is not None:
            data["groupInfo"] = {"groupId": group, "groupName": "Test Group", "revision": 3, "type": "DELIVER"}
        message = {"timestamp": timestamp, "message": text, "expiresInSeconds": 0, "viewOnce": False, **data}
        source = {"source": sender, "sourceNumber": sender if sender.startswith("+") else None, "sourceUuid": uuid}
        times = {"timestamp": timestamp, "serverReceivedTimestamp": timestamp, "serverDeliveredTimestamp": timestamp}
        return {**source, "sourceName": name, "sourceDevice": 1, **times, "dataMessage": message}

    async def deliver(self, envelope: Any, account: str | None = None) -> None:
        """Tells every stream of the account; kept for those that come back later."""
        account = account or self.accounts[0]
        self._sequence += 1
        data = json.dumps({"account": account, "envelope": envelope}).encode()
        event = (self._sequence, account, data)
        self._events.append(event)
        for stream, wanted in list(self._streams.items()):
            if wanted in (None, account):
                await self._write(stream, event)

    async def say(self, text: str, **more: Any) -> Any:
        envelope = self.message(text, **more)
        await self.deliver(envelope)
        return envelope

    async def repeat_all(self) -> None:
        """Everything once more, newest first: redelivered and out of order."""
        for event in reversed(self._events):
            for stream in list(self._streams):
                await self._write(stream, event)

    async def write_raw(self, data: bytes) -> None:
        for stream in list(self._streams):
            await stream.write(data)

    def disconnect(self) -> None:
        for task in list(self._stream_tasks):
            task.cancel()

    def forget_events(self) -> None:
        """Repeats nothing to a stream that comes back."""
        self._events.clear()

    def refuse_next(self, method: str, code: int, message: str, data: Any = None) -> None:
        self._faults.setdefault(method, deque()).append(Refusal(code, message, data))

    def drop_next(self, method: str) -> None:
        """Carries the call out, then closes the connection without an answer."""
        self._faults.setdefault(method, deque()).append("drop")

    def strike_next(self, method: str, strike: Callable[[], None], *, before: bool = False) -> None:
        """Does something when the call is there: after it was carried out, or instead of carrying it out."""
        self._strikes.setdefault(method, deque()).append((strike, before))

    def result_next(self, method: str, result: Any) -> None:
        self._faults.setdefault(method, deque()).append({"result": result})

    async def until(self, holds: Callable[[], bool], timeout_s: float = 60) -> None:
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def deserted(self) -> None:
        await self.until(lambda: not self._streams)

    async def connected(self, streams: int = 1) -> None:
        await self.until(lambda: len(self._streams) >= streams)

    def of(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    async def called(self, method: str, times: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.of(method)) >= times)
        return self.of(method)

    # The wire

    async def _check(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.method == "GET" else 405)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return web.Response(status=405)
        account = request.query.get("account")
        if account is not None and account not in self.accounts:
            return web.Response(status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        last = request.headers.get("Last-Event-ID")
        self.last_event_ids.append(last)
        if last is not None and self.event_ids:
            seen = int(last.rpartition("-")[2]) if last.startswith("1700-") else 0
            for event in list(self._events):
                if event[0] > seen and account in (None, event[1]):
                    await self._write(response, event)
        self._streams[response] = account
        task = asyncio.current_task()
        assert task is not None
        self._stream_tasks.add(task)
        self._changed.set()
        try:
            while True:
                await response.write(b":\n")
                await asyncio.sleep(15)
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.close()
            return response
        finally:
            self._stream_tasks.discard(task)
            self._streams.pop(response, None)
            self._changed.set()

    async def _write(self, stream: web.StreamResponse, event: tuple[int, str, bytes]) -> None:
        head = f"id:1700-{event[0]}\n" if self.event_ids else ""
        try:
            await stream.write(head.encode() + b"event:receive\ndata:" + event[2] + b"\n\n")
        except ConnectionError:
            self._streams.pop(stream, None)  # The client left; it may come back for what it missed.

    async def _rpc(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        if not request.headers.get("Content-Type", "").startswith("application/json"):
            return web.Response(status=415)
        call_id: Any = None
        method = "?"
        if self.silent is not None:
            self.unanswered += 1
            self._changed.set()
            await self.silent.wait()
            raise ConnectionResetError
        try:
            call = self._parsed(await request.read())
            call_id, method = call.get("id"), call["method"]
            strike, before = self._strikes[method].popleft() if self._strikes.get(method) else (None, False)
            if strike is not None and before:
                strike()
                raise ConnectionResetError
            result, drop = self._carry_out(method, call.get("params") or {})
            if strike is not None:
                strike()
        except Refusal as refusal:
            self.refused.append((method, str(refusal)))
            error: dict[str, Any] = {"code": refusal.code, "message": str(refusal), "data": refusal.data}
            return web.json_response({"jsonrpc": "2.0", "error": error, "id": call_id})
        finally:
            self._changed.set()
        if drop and request.transport is not None:
            request.transport.abort()
        if call_id is None:
            return web.Response(status=201)
        return web.json_response({"jsonrpc": "2.0", "result": result, "id": call_id})

    @staticmethod
    def _parsed(body: bytes) -> dict[str, Any]:
        try:
            call = json.loads(body)
        except ValueError:
            raise Refusal(PARSE_ERROR, "unable to parse request") from None
        if not isinstance(call, dict) or call.get("jsonrpc") != "2.0" or not isinstance(call.get("method"), str):
            raise Refusal(INVALID_REQUEST, "not a JSON-RPC 2.0 request")
        if not isinstance(call.get("params", {}), dict):
            raise Refusal(INVALID_REQUEST, "params must be an object")
        return call

    # The methods

    def _carry_out(self, method: str, params: dict[str, Any]) -> tuple[Any, bool]:
        allowed = PARAMETERS.get(method)
        if allowed is None:
            raise Refusal(NO_METHOD, "Method not implemented")
        if strays := set(params) - allowed - {"account"}:
            raise Refusal(INVALID_PARAMS, f"unknown parameters of {method}: {sorted(strays)}")
        account = params.get("account")
        if account is not None and account not in self.accounts:
            raise Refusal(INVALID_PARAMS, "Specified account does not exist")
        if method != "version" and account is None and len(self.accounts) > 1:
            raise Refusal(INVALID_PARAMS, "Method requires valid account parameter")
        fault = self._faults[method].popleft() if self._faults.get(method) else None
        if isinstance(fault, Refusal):
            raise fault
        result = getattr(self, f"_do_{method}")(params)
        self.calls.append((method, params))
        if isinstance(fault, dict):
            return fault["result"], False
        return result, fault == "drop"

    def _do_version(self, params: dict[str, Any]) -> Any:
        return {"version": "0.13.24"}

    def _do_send(self, params: dict[str, Any]) -> Any:
        names = self._targets(params)
        message, attachments = params.get("message", ""), params.get("attachments", [])
        if not isinstance(message, str) or not isinstance(attachments, list):
            raise Refusal(INVALID_PARAMS, "message must be a string, attachments a list")
        if not message and not attachments:
            raise Refusal(
                USER_ERROR,
                "Sending empty message is not allowed, either a message, attachment or sticker must be given.",
            )
        for attachment in attachments:
            self._check_attachment(attachment)
        if "quoteAuthor" in params or "quoteTimestamp" in params:
            self._check_person(params.get("quoteAuthor"))
            if not isinstance(params.get("quoteTimestamp"), int):
                raise Refusal(INVALID_PARAMS, "quoteTimestamp must be a number")
        self._check_styles(params.get("text-style", []), message)
        for name in names:
            if name in self.unregistered:
                raise Refusal(USER_ERROR, f"The user {name} is not registered.")
        self._clock += 1
        results = [{"recipientAddress": {"number": name}, "type": "SUCCESS"} for name in names]
        return {"timestamp": self._clock, "results": results}

    def _check_styles(self, styles: Any, message: str) -> None:
        """Refuses styles that signal-cli does not know and ranges outside the message, which counts UTF-16 units."""
        units = len(message.encode("utf-16-le")) // 2
        for style in styles:
            found = re.fullmatch(r"(\d{1,9}):(\d{1,9}):(BOLD|ITALIC|SPOILER|STRIKETHROUGH|MONOSPACE)", str(style))
            if found is None or not 0 < int(found[2]) <= units - int(found[1]):
                raise Refusal(USER_ERROR, f"Invalid text style: {style}")

    def _do_sendTyping(self, params: dict[str, Any]) -> Any:
        self._targets(params)
        if not isinstance(params.get("stop", False), bool):
            raise Refusal(INVALID_PARAMS, "stop must be a boolean")
        return {"timestamp": self._clock, "results": []}

    def _do_sendReceipt(self, params: dict[str, Any]) -> Any:
        self._check_person(params.get("recipient"))
        if not isinstance(params.get("targetTimestamp"), int) or params.get("type", "read") not in ("read", "viewed"):
            raise Refusal(USER_ERROR, "Unknown receipt type or timestamp")
        return {"timestamp": self._clock, "results": []}

    def _do_sendReaction(self, params: dict[str, Any]) -> Any:
        self._targets(params)
        self._check_person(params.get("targetAuthor"))
        if not isinstance(params.get("targetTimestamp"), int) or not params.get("emoji"):
            raise Refusal(USER_ERROR, "emoji and target timestamp are required")
        return {"timestamp": self._clock, "results": []}

    def _do_remoteDelete(self, params: dict[str, Any]) -> Any:
        self._targets(params)
        if not isinstance(params.get("targetTimestamp"), int):
            raise Refusal(USER_ERROR, "a target timestamp is required")
        return {"timestamp": self._clock, "results": []}

    def _do_getAttachment(self, params: dict[str, Any]) -> Any:
        if not (params.get("groupId") or params.get("recipient")):
            raise Refusal(USER_ERROR, "No recipient or group given")
        data = self.attachments.get(params.get("id", ""))
        if data is None:
            raise Refusal(IO_ERROR, f"An error occurred reading attachment: {params.get('id')}")
        return {"data": base64.b64encode(data).decode()}

    def _targets(self, params: dict[str, Any]) -> list[str]:
        group, recipients, names = params.get("groupId"), params.get("recipient", []), params.get("username", [])
        if group is not None:
            try:
                base64.b64decode(group, validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise Refusal(USER_ERROR, f"Invalid group id: {group}") from None
            if self.groups and group not in self.groups:
                raise Refusal(USER_ERROR, "Group not found")
            return []
        if not isinstance(recipients, list) or not isinstance(names, list):
            raise Refusal(INVALID_PARAMS, "recipient and username must be lists")
        if not recipients and not names:
            raise Refusal(USER_ERROR, "No recipients given")
        for recipient in recipients:
            self._check_person(recipient)
        return [*recipients, *names]

    @staticmethod
    def _check_person(name: Any) -> None:
        if not isinstance(name, str) or not (NUMBER.fullmatch(name) or UUID.fullmatch(name)):
            raise Refusal(USER_ERROR, f"Invalid phone number '{name}'")

    @staticmethod
    def _check_attachment(attachment: Any) -> None:
        found = DATA_URI.fullmatch(attachment) if isinstance(attachment, str) else None
        if found is None:
            raise Refusal(USER_ERROR, f"Failed to add attachment: {str(attachment)[:40]}")
        try:
            base64.b64decode(found[3], validate=True)
        except binascii.Error:
            raise Refusal(USER_ERROR, "Failed to add attachment: bad base64") from None


_TARGET = {"recipient", "groupId", "username"}
PARAMETERS: dict[str, set[str]] = {
    "version": set(),
    "send": {
        *_TARGET,
        "message",
        "attachments",
        "text-style",
        "quoteTimestamp",
        "quoteAuthor",
        "editTimestamp",
        "voiceNote",
    },
    "remoteDelete": {*_TARGET, "targetTimestamp"},
    "sendTyping": {"recipient", "groupId", "stop"},
    "sendReceipt": {"recipient", "targetTimestamp", "type"},
    "sendReaction": {*_TARGET, "emoji", "targetAuthor", "targetTimestamp", "remove"},
    "getAttachment": {"id", "recipient", "groupId"},
}


def main(argv: list[str]) -> None:
    """``signal-cli -a ACCOUNT daemon --http HOST:PORT …`` as a program; refuses arguments signal-cli does not know."""
    parser = argparse.ArgumentParser(prog="signal-cli", allow_abbrev=False)
    parser.add_argument("-a", "--account", required=True)
    parser.add_argument("command", choices=["daemon"])
    parser.add_argument("--http", required=True)
    parser.add_argument("--no-receive-stdout", action="store_true")
    parser.add_argument("--receive-mode", choices=["on-start", "on-connection", "manual"])
    parser.add_argument("--ignore-attachments", action="store_true")
    parser.add_argument("--ignore-stories", action="store_true")
    args = parser.parse_args(argv)

    async def serve() -> None:
        daemon = SignalDaemon(args.account)
        await daemon.start(int(args.http.rpartition(":")[2]))
        print(f"INFO  HttpServerHandler - Started HTTP server on {args.http}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1:])
