"""The client of the Gateway: calls, streamed calls and the feed of a session's events, over HTTP on a bare socket."""

from __future__ import annotations

import json
import os
import socket
import sys

from openclaw import __version__
from openclaw.cli.command import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from io import BufferedReader
    from typing import Any

    from openclaw.cli.answers import StreamFrame
    from openclaw.cli.gateway_target import GatewayTarget


MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
RPC_PATH = "/__openclaw__/rpc"
EVENTS_PATH = "/__openclaw__/events"
HEALTH_PATH = "/healthz"


class BadResponse(Exception):
    """The answer is not the HTTP that a Gateway speaks."""


class Exchange:
    """One HTTP request and its response. It closes its connection at the end of the ``with``."""

    def __init__(self, target: GatewayTarget, timeout_s: float | None) -> None:
        self._socket = _connect(target, timeout_s)
        self._target = target
        self._reader: BufferedReader = self._socket.makefile("rb")
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # A shutdown wakes a thread that is blocked reading; a bare close would leave it there.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Sends the request and reads the head of the response."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._target.authority}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        try:
            self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse a large body before it has read it all; its answer is then still to be read.
            pass
        words = self._line().split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise BadResponse(f"not an HTTP response: {' '.join(words)[:80]!r}")
        self.status = int(words[1])
        while line := self._line():
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()

    def _line(self) -> str:
        line = self._reader.readline(MAX_HEADER_BYTES)
        if not line.endswith(b"\n"):
            raise BadResponse("connection closed" if len(line) < MAX_HEADER_BYTES else "header line too long")
        return line.rstrip(b"\r\n").decode("latin-1")

    def body(self) -> bytes:
        data = bytearray()
        for part in self._parts():
            data += part
            if len(data) > MAX_BODY_BYTES:
                raise BadResponse(f"response larger than {MAX_BODY_BYTES} bytes")
        return bytes(data)

    def lines(self, timeout_s: float | None) -> Iterator[bytes]:
        """Yields the lines of an endless body as they arrive. A line that is cut off by the peer is left out."""
        self._socket.settimeout(timeout_s)
        pending = bytearray()
        for part in self._parts():
            pending += part
            while (end := pending.find(b"\n")) >= 0:
                line = bytes(pending[:end])
                del pending[: end + 1]
                if line.strip():
                    yield line
            if len(pending) > MAX_BODY_BYTES:
                raise BadResponse(f"line larger than {MAX_BODY_BYTES} bytes")

    def _parts(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
            return
        length = self.headers.get("content-length")
        remaining = int(length) if length and length.isdigit() else None
        while remaining is None or remaining > 0:
            part = self._reader.read1(65536 if remaining is None else min(remaining, 65536))
            if not part:
                if remaining:
                    raise BadResponse("connection closed in the middle of the response")
                return
            if remaining is not None:
                remaining -= len(part)
            yield part

    def _chunks(self) -> Iterator[bytes]:
        while True:
            try:
                size = int(self._line().split(";")[0], 16)
            except ValueError as error:
                raise BadResponse("malformed chunk") from error
            if size == 0:
                return
            if size > MAX_BODY_BYTES:
                raise BadResponse(f"chunk larger than {MAX_BODY_BYTES} bytes")
            part = self._reader.read(size)
            if len(part) < size:
                raise BadResponse("connection closed in the middle of the response")
            yield part
            self._line()


def _connect(target: GatewayTarget, timeout_s: float | None) -> socket.socket:
    plain = socket.create_connection((target.host, target.port), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not target.tls:
        return plain
    import hashlib
    import ssl

    context = ssl.create_default_context()
    pinned = target.fingerprint.lower().replace(":", "").removeprefix("sha256").strip("/ ")
    if target.local and not pinned:
        plain.close()
        raise BadResponse("its certificate cannot be checked, because the Gateway's own is not to be found here")
    if pinned:
        # The fingerprint says which certificate it must be. Nothing is sent before it has been compared.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if target.client_certificate is not None:
            context.load_cert_chain(*target.client_certificate)
        secure = context.wrap_socket(plain, server_hostname=target.host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        hint = "if it is the right Gateway, set gateway.remote.tlsFingerprint to what its `gateway status` shows"
        raise BadResponse(f"its certificate is not trusted ({error.verify_message}); {hint}") from error
    except OSError as error:
        plain.close()
        raise BadResponse(f"it does not speak TLS as expected ({error})") from error
    seen = hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()
    if pinned and seen != pinned:
        secure.close()
        raise BadResponse(f"the SHA-256 fingerprint of its certificate is {seen}, not the pinned one")
    return secure


class GatewayError(UserError):
    """The Gateway understood the request and refused it."""

    def __init__(self, message: str, code: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.error_code = code
        self.details = details or {}
        self.detail_code = str(self.details.get("code") or "")
        """Which of the failures with this code it is, for methods that say."""


class Unreachable(UserError):
    """No Gateway answers at the target."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.error_code = "UNREACHABLE"


class Lost(Unreachable):
    """The connection broke after the Gateway took the request; the Gateway may still be working on it."""


class GatewayClient:
    def __init__(self, target: GatewayTarget, timeout_ms: int = 10_000) -> None:
        self.target = target
        self.timeout_ms = timeout_ms
        self.reads_folder = False
        """Whether calls that only read are answered from the state folder while no Gateway runs."""
        self.offers_start = False
        """Whether the person at the terminal is asked to start a Gateway when none runs."""
        self.from_folder = False
        """Whether an answer came from the state folder."""

    def call(self, method: str, params: Mapping[str, object] | None = None, timeout_ms: int | None = None) -> Any:
        """Calls a method and returns the payload of its last response."""
        wait = self.timeout_ms if timeout_ms is None else timeout_ms
        try:
            reply = self._reply(method, params or {}, wait)
        except Unreachable as unreachable:
            if not self.target.local or isinstance(unreachable, Lost):
                raise
            found = self._from_folder(method, dict(params or {})) if self.reads_folder else None
            if found is not None:
                reply = found
            elif self.offers_start and _started(self):
                reply = self._reply(method, params or {}, wait)
            else:
                raise
        if not isinstance(reply, dict) or "ok" not in reply:
            raise self._foreign("its answer has an unknown shape")
        if not reply["ok"]:
            raise refused(reply.get("error"))
        return reply.get("payload")

    def _from_folder(self, method: str, params: dict[str, object]) -> Any:
        """The reply that the state folder gives; None for a method that needs a Gateway."""
        from openclaw.cli.offline import READABLE, read_folder

        if method not in READABLE:
            return None
        reply, self.from_folder = read_folder(method, params, told=self.from_folder), True
        return reply

    def _reply(self, method: str, params: Mapping[str, object], wait: int) -> Any:
        with self._post({"method": method, "params": params}, wait) as exchange:
            try:
                return json.loads(exchange.body())
            except (OSError, BadResponse) as error:
                raise self._lost(error, wait) from error
            except ValueError as error:
                raise self._foreign("its answer is not JSON") from error

    def stream(self, method: str, params: Mapping[str, object], *, idle_ms: int | None = None) -> Iterator[StreamFrame]:
        """Calls a method and yields its responses and the events of the run it starts, as they come."""
        exchange = self._post({"method": method, "params": params, "stream": True}, self.timeout_ms)
        yield from self._frames(exchange, idle_ms)

    def events(self, session_key: str, after: tuple[int, str] | None = None) -> tuple[Exchange, Iterator[StreamFrame]]:
        """Returns the endless feed of a session's events, and the exchange that ends the feed when it is closed.

        ``after`` is the last event that was received, and its epoch. The feed begins with what came after it.
        """
        from urllib.parse import quote

        missed = f"&afterSeq={after[0]}&epoch={after[1]}" if after is not None else ""
        exchange = self._request(
            "GET", f"{EVENTS_PATH}?sessionKey={quote(session_key, safe='')}{missed}", b"", self.timeout_ms
        )
        return exchange, self._frames(exchange, None)

    def alive(self) -> bool:
        """Whether a Gateway answers at the target within a second. It needs no secret."""
        try:
            with Exchange(self.target, 1) as exchange:
                exchange.send("GET", HEALTH_PATH, {})
                return exchange.status == 200 and b"true" in exchange.body()
        except (OSError, BadResponse):
            return False

    def _frames(self, exchange: Exchange, idle_ms: int | None) -> Iterator[StreamFrame]:
        with exchange:
            try:
                for line in exchange.lines(idle_ms / 1000 if idle_ms else None):
                    frame: Any = json.loads(line)
                    if isinstance(frame, dict):
                        yield frame  # pyright: ignore[reportReturnType]
            except (OSError, BadResponse) as error:
                raise self._lost(error, idle_ms or 0) from error
            except ValueError as error:
                raise self._foreign("a line of its stream is not JSON") from error

    def _post(self, request: dict[str, object], timeout_ms: int) -> Exchange:
        body = json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")
        return self._request("POST", RPC_PATH, body, timeout_ms)

    def _request(self, method: str, path: str, body: bytes, timeout_ms: int) -> Exchange:
        headers = {"User-Agent": f"openclaw-cli/{__version__}", "Content-Type": "application/json"}
        if self.target.secret:
            headers["Authorization"] = f"Bearer {self.target.secret}"
        if self.target.owner_key:
            headers["X-OpenClaw-Owner"] = self.target.owner_key
        if any(c in self.target.secret for c in "\r\n"):
            raise UserError(f"The secret from {self.target.secret_source} has a line break in it.")
        try:
            exchange = Exchange(self.target, timeout_ms / 1000 if timeout_ms else None)
        except OSError as error:
            raise self._unreachable(error, timeout_ms) from error
        except BadResponse as error:
            raise self._foreign(str(error)) from error
        try:
            exchange.send(method, path, headers, body)
        except (OSError, BadResponse) as error:
            exchange.close()
            raise self._lost(error, timeout_ms) from error
        if exchange.status != 200:
            with exchange:
                raise self._refusal(exchange)
        return exchange

    def _refusal(self, exchange: Exchange) -> UserError:
        try:
            reply = json.loads(exchange.body())
            error = reply.get("error") if isinstance(reply, dict) else None
        except (OSError, BadResponse, ValueError):
            error = None
        told = ""
        if exchange.status == 401:
            told = f"{_text(error, 'unauthorized')}\n{self._secret_hint()}\n{self.target.describe()}"
        elif exchange.status == 403:
            told = f"{_text(error, 'forbidden')}\n{self.target.describe()}"
        elif exchange.status == 413:
            told = "The message is too large for the Gateway. Send fewer or smaller files."
        elif exchange.status == 429:
            told = f"{_text(error, 'Too many failed logins')}.\n{self.target.describe()}"
        if told:
            refusal = UserError(told)
            refusal.error_code = str((error if isinstance(error, dict) else {}).get("code") or refusal.error_code)
            return refusal
        if isinstance(error, dict):
            return refused(error)
        return self._foreign(f"it answered HTTP {exchange.status}")

    def _secret_hint(self) -> str:
        from openclaw import paths
        from openclaw.cli.gateway_target import running_gateway

        source = self.target.secret_source
        if source.startswith("OPENCLAW_") and self.target.local:
            return f"The secret came from {source}, which wins over the configuration file: unset it or correct it."
        if self.target.local and running_gateway() is None:
            return (
                f"What answers there is not the Gateway of {paths.state_dir()}. Stop it, or choose another port: "
                "`openclaw config set gateway.port NUMBER`."
            )
        if not source:
            return "No secret was sent: set gateway.auth.token in the configuration, or pass --token."
        return f"The secret came from {source}; the Gateway has another one."

    def _unreachable(self, error: OSError, timeout_ms: int) -> Unreachable:
        if isinstance(error, TimeoutError):
            return Unreachable(f"gateway timeout after {timeout_ms}ms\n{self.target.describe()}")
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        from openclaw.cli.gateway_target import start_command

        start = f"\nStart one with `{start_command()}`." if self.target.local else ""
        return Unreachable(f"No Gateway is running at {self.target.url} ({reason}).{start}\n{self.target.describe()}")

    def _lost(self, error: Exception, timeout_ms: int) -> Lost:
        if isinstance(error, TimeoutError):
            return Lost(f"gateway timeout after {timeout_ms}ms\n{self.target.describe()}")
        return Lost(f"The connection to the Gateway was lost ({error}).\n{self.target.describe()}")

    def _foreign(self, what: str) -> UserError:
        return UserError(
            f"What answers at {self.target.url} is not a Gateway of ours: {what}.\n{self.target.describe()}"
        )


def from_args(args: argparse.Namespace, *, live: bool = False) -> GatewayClient:
    """Makes the client that the flags ``GATEWAY`` ask for.

    Without a Gateway its calls that only read are answered from the state folder, and for the others a person at a
    terminal is asked whether to start one. With ``live`` they fail.
    """
    from openclaw.cli.gateway_target import resolve

    if args.timeout < 0:
        raise UserError("--timeout must be a number of milliseconds, 0 for no limit")
    client = GatewayClient(resolve(args.url, args.token, args.password), args.timeout)
    client.reads_folder = not live
    client.offers_start = not live and not getattr(args, "json", False) and sys.stdin.isatty() and sys.stderr.isatty()
    return client


def _started(client: GatewayClient) -> bool:
    """Asks the person at the terminal whether to start a Gateway, and starts it."""
    from openclaw.cli.command import yes
    from openclaw.cli.service import start

    if not yes(f"No Gateway is running at {client.target.url}. Start it now?", usual=True):
        return False
    start(client)
    return True


def refused(error: Any) -> GatewayError:
    if not isinstance(error, dict):
        return GatewayError("the Gateway refused without saying why", "UNAVAILABLE")
    message, details = str(error.get("message") or "refused"), error.get("details")
    details = details if isinstance(details, dict) else {}
    if isinstance(issues := details.get("issues"), list):
        lines = [f"  {i.get('path') or '(root)'}: {i.get('message')}" for i in issues if isinstance(i, dict)]
        message = "\n".join([message, *lines])
    return GatewayError(message, str(error.get("code") or "UNAVAILABLE"), details)


def new_id() -> str:
    import uuid

    return str(uuid.uuid4())


def _text(error: Any, default: str) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or default)
    return error if isinstance(error, str) and error else default
