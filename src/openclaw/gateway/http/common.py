"""What every HTTP endpoint shares: its route, the check of page, host and secret, and the reading of the body."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.gateway.auth.authorise import FailedAuthLimiter, SharedSecret, check
from openclaw.gateway.auth.origin import PeerAddress, caller_key, host_refusal, site_refusal
from openclaw.gateway.server import frames
from openclaw.json_text import may_be_deep
from openclaw.text import redact_urls

if TYPE_CHECKING:
    from openclaw.gateway.server.server import Sockets

T = TypeVar("T")
BODY_S = 120.0
"""The time for the body of a request."""
OWNER_HEADER = "X-OpenClaw-Owner"
"""Holds the key of the lock file, which only processes of the Gateway's own user can read."""


class HttpRefusal(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    message: str
    retry_after_ms: int | None = None


HttpHandler: TypeAlias = Callable[[web.BaseRequest, PeerAddress], Awaitable[web.StreamResponse]]
RoutePath: TypeAlias = str | Callable[[Config], str | None]


class HttpRoute(NamedTuple):
    verb: str
    """``*`` matches every verb."""
    path: RoutePath
    """A path that ends in ``*`` matches everything below it.

    A function returns a path that the configuration chooses, with everything below it, or None if it is off.
    """
    handler: HttpHandler
    refuse: Callable[[HttpRefusal], web.Response] | Literal["open", "own"]
    """Builds the response for a caller without the secret.

    An ``open`` route needs no secret; the handler of an ``own`` route checks a secret of its own.
    """


class CallerCheck:
    """Decides whether a caller of an HTTP route may be served."""

    def __init__(
        self,
        config: ConfigStore,
        limiter: FailedAuthLimiter,
        sockets: Sockets,
        secret: Callable[[], SharedSecret],
        is_owner_process: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._limiter = limiter
        self._sockets = sockets
        self._secret = secret
        self._is_owner_process = is_owner_process

    def refusal(self, request: web.BaseRequest, peer: PeerAddress) -> HttpRefusal | None:
        """Refuse names that are not ours (DNS rebinding), pages of other origins and callers without the secret.

        The server calls this before every route that is not open, so no handler can forget it.
        """
        allowed = self._config.current.gateway.control_ui.allowed_origins
        if refused := site_refusal(peer, allowed) or host_refusal(peer, allowed):
            return HttpRefusal(status=403, message=refused)
        secret = self._secret()
        bearer, caller, gently = bearer_of(request), caller_key(peer), is_gentle_to(self._limiter, peer)
        if self._is_owner_process(request.headers.get(OWNER_HEADER, "")):
            caller, gently = "owner", True
        verdict = self._limiter.guard(caller, lambda: check(secret, bearer, bearer), gently=gently)
        if verdict.ok:
            if self._sockets.recognise(request.protocol):
                return None
            return HttpRefusal(status=503, message="too many connections", retry_after_ms=1000)
        if verdict.reason == "limited":
            text = f"too many failed attempts; try again in {verdict.wait_ms // 1000 + 1} s"
            return HttpRefusal(status=429, message=text, retry_after_ms=verdict.wait_ms)
        texts = {
            "missing": f"send the gateway {secret.mode} as 'Authorization: Bearer …'",
            "mismatch": f"the gateway {secret.mode} is wrong",
            "unset": f"no gateway {secret.mode} is configured; set gateway.auth.{secret.mode}",
        }
        return HttpRefusal(status=401, message=f"unauthorized: {texts[verdict.reason]}")


def bearer_of(request: web.BaseRequest) -> str:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else ""


def is_gentle_to(limiter: FailedAuthLimiter, peer: PeerAddress) -> bool:
    """Whether a caller who guesses wrong is only slowed down: a program on this machine, and no web page."""
    return peer.is_local and peer.origin is None and limiter.is_gentle_to_local()


class RequestRefused(Exception):
    """Says that a request is not served, and holds the answer that it gets."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or {}

    def response(self) -> web.Response:
        return json_response({"error": error_shape(str(self), self.kind)}, status=self.status, headers=self.headers)


def error_shape(message: str, kind: str = "api_error") -> dict[str, Any]:
    return {"message": redact_urls(message), "type": kind}


def json_response(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=frames.encode(body), content_type="application/json", headers=headers or {})


def refusal_response(refused: HttpRefusal) -> web.Response:
    """The answer to a refused caller, in the shape that clients of OpenAI's interface read."""
    if refused.status == 403:
        return RequestRefused(refused.message, status=403, kind="forbidden").response()
    if refused.status in (429, 503):
        headers = {"Retry-After": str((refused.retry_after_ms or 0) // 1000 + 1)}
        kind = "rate_limit_error" if refused.status == 429 else "api_error"
        return RequestRefused(refused.message, status=refused.status, kind=kind, headers=headers).response()
    # Clients of this interface compare the body, so the header says why.
    why = refused.message.encode("ascii", "ignore").decode().replace('"', "'")
    headers = {"WWW-Authenticate": f'Bearer error_description="{why}"'}
    return RequestRefused("Unauthorized", status=401, kind="unauthorized", headers=headers).response()


def not_found(path: str) -> web.Response:
    if path.startswith("/v1/"):
        error = {"error": {"message": f"no such endpoint: {path[:200]}", "type": "invalid_request_error"}}
        return web.json_response(error, status=404)
    return web.Response(status=404, text="Not Found")


class BodyRefused(Exception):
    """The body of a request is too large, too slow or compressed. The connection is closed after the answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: web.BaseRequest, limit: int, take: Callable[[int], bool] = lambda _: True) -> bytes:
    """Return the whole body. Raises ``BodyRefused`` as soon as it exceeds ``limit`` bytes or ``BODY_S``.

    ``take`` returns whether there is room for a body of the size received so far.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise BodyRefused("the body is compressed; send it without Content-Encoding", 415)
    if request.content_length is not None and request.content_length > limit:
        raise BodyRefused(f"the body is larger than {limit} bytes", 413)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise BodyRefused(f"the body is larger than {limit} bytes", 413)
                if not take(size):
                    raise BodyRefused("too many long bodies at once; try again", 503)
                parts.append(chunk)
    except TimeoutError:
        raise BodyRefused(f"the body did not arrive within {BODY_S:g} s", 408) from None
    return b"".join(parts)


async def read_json(request: web.BaseRequest, limit: int, shape: type[T]) -> T:
    """Reads the body as a record. Raises ``RequestRefused`` with the path of the first mistake."""
    try:
        raw = await read_body(request, limit)
    except BodyRefused as refused:
        # Clients of this interface know 400 for a body that is too large.
        status = 400 if refused.status == 413 else refused.status
        raise RequestRefused(str(refused), status=status, headers={"Connection": "close"}) from None
    try:
        if not may_be_deep(raw):
            return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise RequestRefused(_located(str(error))) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # JavaScript may send half surrogate pairs. The second decoder repairs them, and looks at the depth.
        return msgspec.convert(frames.decode_any(raw), type=shape)
    except msgspec.ValidationError as error:
        raise RequestRefused(_located(str(error))) from None
    except (frames.NotJson, RecursionError):
        raise RequestRefused("the body must be valid JSON, not nested too deeply") from None


def _located(problem: str) -> str:
    """``path: message``, as clients of this interface expect it."""
    text, separator, path = problem.rpartition(" - at `$")
    if separator:
        return f"{path.removeprefix('.').removesuffix('`')}: {text}"
    missing = re.fullmatch(r"Object missing required field `(\w+)`", problem)
    return f"{missing[1]}: required" if missing else problem
