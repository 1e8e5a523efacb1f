"""A strict stand-in for the Gateway's HTTP door: the RPC and event-feed contract, and nothing else.

It refuses what the real one refuses (wrong secret, unknown field, unknown method), so that a command that sends
nonsense fails its test. ``python -m tests.cli.fake_gateway STATE_DIR`` runs it as a process that holds the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SECRET = "fake-gateway-secret-0123456789"
PARAMS = {
    "agent": {
        *("message", "agentId", "to", "replyTo", "sessionId", "sessionKey", "thinking", "deliver", "attachments"),
        *("channel", "replyChannel", "replyAccountId", "timeout", "idempotencyKey"),
    },
    "cluster.status": set(),
    "outbox.list": {"state", "channel", "limit"},
    "outbox.retry": {"ids", "runId", "all"},
    "outbox.drop": {"ids", "runId", "all"},
    "chat.send": {
        "sessionKey",
        "agentId",
        "message",
        "thinking",
        "deliver",
        "attachments",
        "timeoutMs",
        "idempotencyKey",
    },
    "chat.abort": {"sessionKey", "runId"},
    "chat.history": {"sessionKey", "limit", "format"},
    "chat.view": {"sessionKey", "limit", "before", "runId"},
    "sessions.list": {
        *("limit", "activeMinutes", "includeGlobal", "includeUnknown", "includeDerivedTitles", "includeLastMessage"),
        *("label", "spawnedBy", "agentId", "search"),
    },
    "sessions.resolve": {
        *("key", "sessionId", "label", "name", "agentId", "spawnedBy", "includeGlobal", "includeUnknown"),
    },
    "sessions.patch": {"key", "verboseLevel", "label"},
    "sessions.delete": {"key", "deleteTranscript"},
    "sessions.search": {"query", "key", "agentId", "role", "limit", "readBytes"},
    "sessions.archive": {"afterDays", "most"},
    "sessions.export": {"key", "format", "sessionId", "cursor"},
    "context.find": {"key", "phrase"},
    "sessions.archived": {"key"},
    "sessions.resume": {"key", "sessionId", "index"},
    "skills.status": {"agentId"},
    "send": {"to", "message", "mediaUrl", "gifPlayback", "channel", "accountId", "sessionKey", "idempotencyKey"},
    "health": {"probe"},
    "agents.list": {"details"},
    "channels.status": {"probe", "timeoutMs"},
    "logs.tail": {"cursor", "limit", "maxBytes"},
    "device.pair.approve": {"requestId"},
    "device.pair.reject": {"requestId"},
    "device.pair.remove": {"deviceId"},
    "device.token.rotate": {"deviceId", "role", "scopes"},
    "device.token.revoke": {"deviceId", "role"},
    "exec.approvals.set": {"file", "baseHash"},
    "cron.list": {"includeDisabled"},
    "cron.add": {
        *("name", "description", "agentId", "enabled", "deleteAfterRun", "schedule", "sessionTarget", "wakeMode"),
        *("payload", "delivery"),
    },
    "cron.update": {"id", "patch"},
    "cron.remove": {"id"},
    "cron.run": {"id", "mode"},
    "cron.runs": {"id", "limit"},
    "signIn.create": {"secret"},
    "wake": {"text", "mode"},
    "set-heartbeats": {"enabled"},
    "pairing.list": {"channel"},
    "pairing.approve": {"channel", "code", "notify"},
}
NO_PARAMS = {
    "chat.commands",
    "cron.status",
    "last-heartbeat",
    "status",
    "system-presence",
    "exec.approvals.get",
    "models.list",
    "device.pair.list",
    "usage.status",
}


class Refusal(Exception):
    def __init__(self, message: str, code: str = "INVALID_REQUEST", details: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "details": details}


class FakeGateway:
    """Answers from ``replies`` (method → payload or function of the params) and ``streams`` (method → frames)."""

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {}
        self.streams: dict[str, Callable[[dict[str, Any]], Iterable[Any]]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.aborted = threading.Event()
        self.feeds: list[queue.Queue[dict[str, Any] | None]] = []
        self.feed_opened = threading.Event()
        self.hold_health = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gateway": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        for feed in self.feeds:
            feed.put(None)
        self._server.shutdown()
        self._server.server_close()

    def params_of(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    def publish(self, event: str, payload: dict[str, Any]) -> None:
        for feed in self.feeds:
            feed.put({"type": "event", "event": event, "payload": payload, "seq": 1})

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        self.check(method, params)
        self.calls.append((method, params))
        if method == "chat.abort":
            self.aborted.set()
            return {"ok": True, "aborted": True, "runIds": [params.get("runId") or "some-run"]}
        if method not in self.replies:
            raise Refusal(f"{method} is not available in this version", "UNAVAILABLE")
        reply = self.replies[method]
        return reply(params) if callable(reply) else reply

    def check(self, method: str, params: dict[str, Any]) -> None:
        if method not in PARAMS and method not in NO_PARAMS:
            raise Refusal(f"unknown method: {method}")
        for name in params:
            if name not in PARAMS.get(method, ()):
                raise Refusal(f"invalid {method} params: at root: unexpected property '{name}'")


class _Handler(BaseHTTPRequestHandler):
    gateway: FakeGateway
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/healthz" and not self.gateway.hold_health:
            self._json(200, {"ok": True})
        elif url.path == "/__openclaw__/events":
            if self._authorised():
                self._feed(parse_qs(url.query)["sessionKey"][0])
        else:
            self._json(404, {"ok": False})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/__openclaw__/rpc":
            self._json(404, {"ok": False})
            return
        if not self._authorised():
            return
        if len(body) > 512 * 1024:
            self._json(413, {"ok": False})
            return
        request = json.loads(body)
        if set(request) - {"method", "params", "stream", "caps"} or not isinstance(request["params"], dict):
            self._json(400, {"ok": False, "error": {"code": "INVALID_REQUEST", "message": "malformed request"}})
            return
        if request.get("stream"):
            self._stream(request["method"], request["params"])
            return
        try:
            self._json(200, {"ok": True, "payload": self.gateway.answer(request["method"], request["params"])})
        except Refusal as refusal:
            self._json(200, {"ok": False, "error": refusal.error})

    def _authorised(self) -> bool:
        host = self.headers.get("Host", "")
        if self.headers.get("Authorization") == f"Bearer {SECRET}" and host.startswith("127.0.0.1:"):
            return True
        message = "unauthorized: gateway token mismatch (set gateway.remote.token to match gateway.auth.token)"
        self._json(401, {"ok": False, "error": {"code": "INVALID_REQUEST", "message": message}})
        return False

    def _json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin_lines(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _line(self, frame: dict[str, Any]) -> None:
        data = json.dumps(frame).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _stream(self, method: str, params: dict[str, Any]) -> None:
        self._begin_lines()
        try:
            self.gateway.check(method, params)
            self.gateway.calls.append((method, params))
            for step in self.gateway.streams[method](params):
                if callable(step):
                    step()
                else:
                    self._line(step)
        except Refusal as refusal:
            self._line({"type": "res", "id": "1", "ok": False, "error": refusal.error})
        except ConnectionAbortedError:
            self.connection.close()
            self.close_connection = True
            return
        except (BrokenPipeError, ConnectionResetError):
            return
        self.wfile.write(b"0\r\n\r\n")

    def _feed(self, session_key: str) -> None:
        feed: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.gateway.feeds.append(feed)
        self._begin_lines()
        self.gateway.feed_opened.set()
        try:
            while (frame := feed.get()) is not None:
                if frame["payload"].get("sessionKey") == session_key:
                    self._line(frame)
        except (BrokenPipeError, ConnectionResetError):
            pass


def res(payload: dict[str, Any]) -> dict[str, Any]:
    return {"type": "res", "id": "1", "ok": True, "payload": payload}


def agent_event(run_id: str, stream: str, data: dict[str, Any], key: str = "agent:main:main") -> dict[str, Any]:
    payload = {"runId": run_id, "stream": stream, "data": data, "sessionKey": key, "seq": 1, "ts": 1}
    return {"type": "event", "event": "agent", "payload": payload, "seq": 1}


def chat_event(
    run_id: str, state: str, text: str | None = None, key: str = "agent:main:main", **more: Any
) -> dict[str, Any]:
    payload: dict[str, Any] = {"runId": run_id, "sessionKey": key, "seq": 1, "state": state, **more}
    if text is not None:
        payload["message"] = {"role": "assistant", "content": [{"type": "text", "text": text}], "timestamp": 1}
    return {"type": "event", "event": "chat", "payload": payload, "seq": 1}


def deltas(run_id: str, *texts: str, key: str = "agent:main:main") -> list[dict[str, Any]]:
    return [agent_event(run_id, "assistant", {"delta": text}, key) for text in texts]


def agent_result(run_id: str, *texts: str) -> dict[str, Any]:
    payloads = [{"text": text, "mediaUrl": None} for text in texts]
    result = {"payloads": payloads, "meta": {"durationMs": 1, "aborted": False}}
    return res({"runId": run_id, "status": "ok", "summary": "completed", "result": result})


def spoken(*texts: str, key: str = "agent:main:main") -> Callable[[dict[str, Any]], list[Any]]:
    """The frames of an ``agent`` call whose one message arrives in these pieces."""

    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        whole = "".join(texts)
        accepted = res({"runId": run, "status": "accepted", "acceptedAt": 1})
        return [accepted, *deltas(run, *texts, key=key), chat_event(run, "final", whole, key), agent_result(run, whole)]

    return frames


def chatted(
    *texts: str, final: str | None = None, key: str = "agent:main:main"
) -> Callable[[dict[str, Any]], list[Any]]:
    """The frames of a ``chat.send`` call."""

    def frames(params: dict[str, Any]) -> list[Any]:
        run = params["idempotencyKey"]
        end = chat_event(run, "final", "".join(texts) if final is None else final, key)
        return [res({"runId": run, "status": "started"}), *deltas(run, *texts, key=key), end]

    return frames


def write_state(state: str, port: int, pid: int, secret: str = SECRET) -> None:
    """The configuration and the lock file a running Gateway leaves in its state directory."""
    os.makedirs(os.path.join(state, "logs"), exist_ok=True)
    config = os.path.join(state, "openclaw.json")
    if not os.path.exists(config):
        with open(config, "w") as file:
            file.write(
                f"{{\n  // ours\n  gateway: {{ mode: 'local', auth: {{ mode: 'token', token: '{secret}' }}, }},\n}}\n"
            )
    with open(os.path.join(state, "gateway.lock"), "w") as file:
        json.dump({"pid": pid, "startedAt": 1, "port": port, "configPath": config}, file)


def main() -> None:
    """A Gateway process: takes the lock, answers, and goes when it is told to."""
    state = os.environ["OPENCLAW_STATE_DIR"]
    os.makedirs(state, exist_ok=True)
    if os.environ.get("FAKE_GATEWAY_FAILS"):
        print("cannot start: the disk is full", flush=True)
        sys.exit(3)
    lock = os.open(os.path.join(state, "gateway.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.ftruncate(lock, 0)
    time.sleep(float(os.environ.get("FAKE_GATEWAY_SLOW", "0")))
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    gateway = FakeGateway()
    gateway.streams["agent"] = spoken("started ", "and answered")
    gateway.replies["health"] = {"ok": True}
    write_state(state, gateway.port, os.getpid())
    done.wait()


if __name__ == "__main__":
    main()
