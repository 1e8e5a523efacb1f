"""Calls from other services: ``POST /hooks/…``, where programs notify the agent, and the paths of channels.

Hooks have their own token. A channel has a path if its platform calls the Gateway instead of being polled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from openclaw.channels.base import WebhookRequest
from openclaw.channels.manager import ChannelManager
from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.gateway.auth.authorise import FailedAuthLimiter, SecretCheck, same_secret
from openclaw.gateway.auth.origin import PeerAddress, caller_key, last_hop
from openclaw.gateway.http.common import BodyRefused, HttpRoute, bearer_of, is_gentle_to, json_response, read_body
from openclaw.gateway.server.frames import NotJson, decode_any
from openclaw.net import is_loopback
from openclaw.scheduler.hooks import Call, HookRefused, HookRuns, NoSuchHook, TooManyRuns, Wake, action_of, run_ids

if TYPE_CHECKING:
    from openclaw.gateway.server.server import StrangersBodies

log = logging.getLogger("openclaw.webhooks")

QUERY_TOKEN = "Hook token must be provided via Authorization: Bearer <token> or X-OpenClaw-Token header"
BODY_LIMIT = 4 * 1024 * 1024


def base_path(config: Config) -> str | None:
    """Return the path below which webhooks are, or None if they are off or have no token."""
    hooks = config.hooks
    path = "/" + hooks.path.strip("/ ")
    return path if hooks.enabled and (hooks.token or "").strip() and path != "/" else None


class HookEndpoint:
    """Serves ``POST /hooks/…``."""

    def __init__(
        self,
        config: ConfigStore,
        clock: Clock,
        limiter: FailedAuthLimiter,
        runs: HookRuns,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        self._config = config
        self._clock = clock
        self._limiter = limiter
        self._runs = runs
        self._spawn = spawn

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute("*", base_path, self.call_hook, "own")]

    async def call_hook(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        config = self._config.current
        base = base_path(config)
        if base is None:
            return web.Response(status=404, text="Not Found")
        if "token" in request.query:
            return web.Response(status=400, text=QUERY_TOKEN)
        if refused := self._unauthorised(request, peer):
            return refused
        if request.method != "POST":
            return web.Response(status=405, text="Method Not Allowed", headers={"Allow": "POST"})
        path = request.path[len(base) :].strip("/")
        if not path:
            return web.Response(status=404, text="Not Found")
        try:
            payload = await _payload(request, config.hooks.max_body_bytes)
            headers = {name.lower(): value for name, value in request.headers.items()}
            for secret in ("authorization", "x-openclaw-token"):
                headers.pop(secret, None)  # A template must not bring the token into a prompt.
            call = Call(path=path, payload=payload, headers=headers, query=dict(request.query))
            return await self._act(call)
        except BodyRefused as refused:
            answer = {"ok": False, "error": str(refused)}
            return json_response(answer, status=refused.status, headers={"Connection": "close"})
        except HookRefused as problem:
            return json_response({"ok": False, "error": str(problem)}, status=400)
        except NoSuchHook:
            return web.Response(status=404, text="Not Found")
        except TooManyRuns:
            answer = {"ok": False, "error": "too many turns of webhooks are under way; try again later"}
            return json_response(answer, status=503, headers={"Retry-After": "30"})

    async def _act(self, call: Call) -> web.Response:
        """Perform the action that the call asks for. It is on disk before the caller gets the answer."""
        config_dir, now = Path(self._config.path).parent, self._clock.now_ms()
        action = await asyncio.to_thread(action_of, call, self._config.current.hooks, config_dir, now)
        ids = await asyncio.to_thread(run_ids, call, now)
        if action is None:
            return web.Response(status=204)
        if isinstance(action, Wake):
            # The answer is not lost to a caller that hangs up.
            await asyncio.shield(self._spawn(self._runs.wake(action, ids)))
            return json_response({"ok": True, "mode": action.mode})
        run_id = await asyncio.shield(self._spawn(self._runs.run(action, ids)))
        return json_response({"ok": True, "runId": run_id}, status=202)

    def _unauthorised(self, request: web.BaseRequest, peer: PeerAddress) -> web.Response | None:
        """Refuse a caller without the token. Wrong tokens are slowed down like wrong secrets of the Gateway."""
        token = bearer_of(request) or request.headers.get("x-openclaw-token", "").strip()
        expected = (self._config.current.hooks.token or "").strip()

        def check() -> SecretCheck:
            if not token:
                return SecretCheck(False, "missing")
            return SecretCheck(True) if same_secret(token, expected) else SecretCheck(False, "mismatch")

        gently = is_gentle_to(self._limiter, peer)
        verdict = self._limiter.guard(f"hooks {caller_key(peer)}", check, gently=gently)
        if verdict.ok:
            return None
        if verdict.reason == "limited":
            return _too_many(verdict.wait_ms, "tokens")
        return web.Response(status=401, text="Unauthorized", headers={"WWW-Authenticate": "Bearer"})


async def _payload(request: web.BaseRequest, limit: int) -> dict[str, Any]:
    raw = await read_body(request, limit)
    if not raw.strip():
        return {}
    try:
        payload = decode_any(raw)
    except (NotJson, RecursionError):
        raise HookRefused("the body must be valid JSON") from None
    if not isinstance(payload, dict):
        raise HookRefused("the body must be a JSON object")
    return cast("dict[str, Any]", payload)


class ChannelWebhooks:
    """Serves the paths at which platforms call their channels."""

    def __init__(self, channels: ChannelManager, limiter: FailedAuthLimiter, bodies: StrangersBodies) -> None:
        self._channels = channels
        self._limiter = limiter
        self._bodies = bodies

    def is_at(self, path: str) -> bool:
        return self._channels.webhook(path) is not None

    async def serve(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        """Pass the request to the channel that serves its path.

        The channel verifies the platform's signature or secret before it inspects anything else. Only wrong ones are
        slowed down, like wrong secrets of the Gateway: a request with a right one always passes.
        """
        if (match := self._channels.webhook(request.path)) is None:
            return web.Response(status=404, text="Not Found")
        webhook, below = match
        with self._bodies.room() as take:
            try:
                body = await read_body(request, BODY_LIMIT, take)
            except BodyRefused as refused:
                return web.Response(status=refused.status, text=str(refused), headers={"Connection": "close"})
            headers = {name.lower(): value for name, value in request.headers.items()}
            call = WebhookRequest(
                method=request.method, path=below, query=dict(request.query), headers=headers, body=body
            )
            answer = await webhook(call)
        if answer.status in (401, 403):
            guesses = WrongSecrets(request, self._limiter, peer)
            if wait_ms := guesses.wait_ms():
                return _too_many(wait_ms, "secrets")
            guesses.count()
            log.warning("a request to %s from %s was rejected: %s", request.path[:200], peer.ip, answer.text)
        return web.Response(status=answer.status, text=answer.text, content_type=answer.content_type)


class WrongSecrets:
    """The wrong secrets of one caller.

    What a proxy on this machine passes on, a tunnel for example, is counted under the address that the proxy reports.
    Anybody on this machine can claim one, so all of it is also counted together, and then slowed down and not locked
    out.
    """

    def __init__(self, request: web.BaseRequest, limiter: FailedAuthLimiter, peer: PeerAddress) -> None:
        self._limiter = limiter
        self._callers = {f"webhook {caller_key(peer)}": is_loopback(peer.ip)}
        if is_loopback(peer.ip) and (hop := last_hop(request.headers)):
            self._callers[f"webhook through a proxy {hop}"] = False

    def wait_ms(self) -> int:
        return max(self._limiter.wait_ms(caller, gently=gently) for caller, gently in self._callers.items())

    def count(self) -> None:
        for caller in self._callers:
            self._limiter.count(caller)


def _too_many(wait_ms: int, what: str) -> web.Response:
    seconds = wait_ms // 1000 + 1
    text = f"Too Many Requests: too many wrong {what}; try again in {seconds} s"
    return web.Response(status=429, text=text, headers={"Retry-After": str(seconds), "Connection": "close"})
