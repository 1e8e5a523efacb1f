"""The one client of the Gateway: calls, streamed calls and the feed of a session's events."""

from __future__ import annotations

import json
import os

from openclaw import __version__
from openclaw.cli.errors import UserError
from openclaw.cli.http import BadResponse, Exchange

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from openclaw.cli.target import Target

RPC_PATH = "/__openclaw__/rpc"
EVENTS_PATH = "/__openclaw__/events"
HEALTH_PATH = "/healthz"


class GatewayError(UserError):
    """The Gateway understood the request and refused it."""

    def __init__(self, message: str, code: str, details: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = code
        self.details = details


class Unreachable(UserError):
    """No Gateway answers at the target."""


class Lost(Unreachable):
    """The connection broke after the request was taken: the work may still be going on over there."""


class Client:
    def __init__(self, target: Target, timeout_ms: int = 10_000) -> None:
        self.target = target
        self.timeout_ms = timeout_ms

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_ms: int | None = None) -> Any:
        """The payload of the method's (last) response."""
        wait = self.timeout_ms if timeout_ms is None else timeout_ms
        with self._post({"method": method, "params": params or {}}, wait) as exchange:
            try:
                reply = json.loads(exchange.body())
            except (OSError, BadResponse) as error:
                raise self._lost(error, wait) from error
            except ValueError as error:
                raise self._foreign("its answer is not JSON") from error
        if not isinstance(reply, dict) or "ok" not in reply:
            raise self._foreign("its answer has an unknown shape")
        if not reply["ok"]:
            raise refused(reply.get("error"))
        return reply.get("payload")

    def stream(self, method: str, params: dict[str, Any], *, idle_ms: int | None = None) -> Iterator[dict[str, Any]]:
        """The frames of one call: its responses and the events of the run it starts, as they happen."""
        exchange = self._post({"method": method, "params": params, "stream": True}, self.timeout_ms)
        yield from self._frames(exchange, idle_ms)

    def events(
        self, session_key: str, after: tuple[int, str] | None = None
    ) -> tuple[Exchange, Iterator[dict[str, Any]]]:
        """The endless feed of a session's events, with the exchange that ends it when closed.

        ``after`` is the last event heard and the epoch it was heard in: the feed begins with what came since.
        """
        query = "".join(c if (c.isalnum() and c.isascii()) or c in "-_.~" else _quoted(c) for c in session_key)
        missed = f"&afterSeq={after[0]}&epoch={after[1]}" if after is not None else ""
        exchange = self._request("GET", f"{EVENTS_PATH}?sessionKey={query}{missed}", b"", self.timeout_ms)
        return exchange, self._frames(exchange, None)

    def alive(self, timeout_ms: int = 1000) -> bool:
        """Whether something that says it is a Gateway answers; needs no secret."""
        try:
            with Exchange(self.target, timeout_ms / 1000) as exchange:
                exchange.send("GET", HEALTH_PATH, {})
                return exchange.status == 200 and b"true" in exchange.body()
        except (OSError, BadResponse):
            return False

    def _frames(self, exchange: Exchange, idle_ms: int | None) -> Iterator[dict[str, Any]]:
        with exchange:
            exchange.set_timeout(idle_ms / 1000 if idle_ms else None)
            try:
                for line in exchange.lines():
                    frame = json.loads(line)
                    if isinstance(frame, dict):
                        yield frame
            except (OSError, BadResponse) as error:
                raise self._lost(error, idle_ms or 0) from error
            except ValueError as error:
                raise self._foreign("a line of its stream is not JSON") from error

    def _post(self, request: dict[str, Any], timeout_ms: int) -> Exchange:
        return self._request(
            "POST", RPC_PATH, json.dumps(request, ensure_ascii=False).encode("utf-8", "replace"), timeout_ms
        )

    def _request(self, method: str, path: str, body: bytes, timeout_ms: int) -> Exchange:
        headers = {"User-Agent": f"openclaw-cli/{__version__}", "Content-Type": "application/json"}
        if self.target.secret:
            headers["Authorization"] = f"Bearer {self.target.secret}"
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
        if exchange.status in (401, 403):
            return UserError(f"{_text(error, 'unauthorized')}\n{self._secret_hint()}\n{self.target.describe()}")
        if exchange.status == 413:
            return UserError("The message is too large for the Gateway. Send fewer or smaller files.")
        if exchange.status == 429:
            return UserError(f"{_text(error, 'Too many failed logins')}. Wait a minute, then try again.")
        if isinstance(error, dict):
            return refused(error)
        return self._foreign(f"it answered HTTP {exchange.status}")

    def _secret_hint(self) -> str:
        source = self.target.secret_source
        if not source:
            return "No secret was sent: set gateway.auth.token in the configuration, or pass --token."
        if source.startswith("OPENCLAW_") and self.target.local:
            return f"The secret came from {source}, which wins over the configuration file: unset it or correct it."
        return f"The secret came from {source}; the Gateway has another one."

    def _unreachable(self, error: OSError, timeout_ms: int) -> Unreachable:
        if isinstance(error, TimeoutError):
            return Unreachable(f"gateway timeout after {timeout_ms}ms\n{self.target.describe()}")
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        start = "\nStart one with `openclaw gateway start`." if self.target.local else ""
        return Unreachable(f"No Gateway is running at {self.target.url} ({reason}).{start}\n{self.target.describe()}")

    def _lost(self, error: Exception, timeout_ms: int) -> Lost:
        if isinstance(error, TimeoutError):
            return Lost(f"gateway timeout after {timeout_ms}ms\n{self.target.describe()}")
        return Lost(f"The connection to the Gateway was lost ({error}).\n{self.target.describe()}")

    def _foreign(self, what: str) -> UserError:
        return UserError(
            f"What answers at {self.target.url} is not a Gateway of ours: {what}.\n{self.target.describe()}"
        )


def from_args(args: argparse.Namespace) -> Client:
    """The client the shared Gateway options ask for."""
    from openclaw.cli import target

    if args.timeout < 0:
        raise UserError("--timeout must be a number of milliseconds, 0 for no limit")
    return Client(target.resolve(args.url, args.token, args.password), args.timeout)


def refused(error: Any) -> GatewayError:
    if not isinstance(error, dict):
        return GatewayError("the Gateway refused without saying why", "UNAVAILABLE")
    message, details = str(error.get("message") or "refused"), error.get("details")
    issues = details.get("issues") if isinstance(details, dict) else None
    if isinstance(issues, list):
        lines = [f"  {i.get('path') or '(root)'}: {i.get('message')}" for i in issues if isinstance(i, dict)]
        message = "\n".join([message, *lines])
    return GatewayError(message, str(error.get("code") or "UNAVAILABLE"), details)


def new_id() -> str:
    """A random UUID, made without importing ``uuid``."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _text(error: Any, default: str) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or default)
    return error if isinstance(error, str) and error else default


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
