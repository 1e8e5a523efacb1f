"""What others call: ``POST /hooks/…``, where programs tell the agent something, and the paths of channels.

Hooks have a token of their own. A channel has a path if its platform calls the Gateway instead of being asked.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from openclaw.channels.base import WebhookRequest
from openclaw.config.schema import Config
from openclaw.gateway.auth.authorise import FailedAuthLimiter, SecretCheck, same_secret
from openclaw.gateway.auth.origin import PeerAddress, caller_key, last_hop
from openclaw.gateway.http.common import BodyRefused, bearer_of, is_gentle_to, json_response, read_body
from openclaw.gateway.server.frames import NotJson, decode_any
from openclaw.net import is_loopback
from openclaw.scheduler.hooks import Call, HookRefused, NoSuchHook, TooManyRuns, Wake, action_of, run_ids

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.server import Route

log = logging.getLogger("openclaw.webhooks")

QUERY_TOKEN = "Hook token must be provided via Authorization: Bearer <token> or X-OpenClaw-Token header"
BODY_LIMIT = 4 * 1024 * 1024


def base_path(config: Config) -> str | None:
    """The path that webhooks are below. None: there are none, because they are off or have no token."""
    hooks = config.hooks
    path = "/" + hooks.path.strip("/ ")
    return path if hooks.enabled and (hooks.token or "").strip() and path != "/" else None


async def call_hook(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.StreamResponse:
    config = gateway.runtime.config.current
    base = base_path(config)
    if base is None:
        return web.Response(status=404, text="Not Found")
    if "token" in request.query:
        return web.Response(status=400, text=QUERY_TOKEN)
    if refused := _unauthorised(request, gateway, peer):
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
        return await _act(gateway, call)
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


async def _act(gateway: Gateway, call: Call) -> web.Response:
    """Does what the call asks for. Whoever gets the answer knows that it is on disk."""
    runtime = gateway.runtime
    config_dir, now = Path(runtime.config.path).parent, runtime.clock.now_ms()
    action = await asyncio.to_thread(action_of, call, runtime.config.current.hooks, config_dir, now)
    ids = await asyncio.to_thread(run_ids, call, now)
    if action is None:
        return web.Response(status=204)
    if isinstance(action, Wake):
        # The answer is not lost to a caller that hangs up.
        await asyncio.shield(gateway.spawn(gateway.hook_runs.wake(action, ids)))
        return json_response({"ok": True, "mode": action.mode})
    run_id = await asyncio.shield(gateway.spawn(gateway.hook_runs.run(action, ids)))
    return json_response({"ok": True, "runId": run_id}, status=202)


def _unauthorised(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.Response | None:
    """The refusal of a caller without the token. Wrong tokens are slowed down like wrong secrets of the Gateway."""
    given = bearer_of(request) or request.headers.get("x-openclaw-token", "").strip()
    wanted = (gateway.runtime.config.current.hooks.token or "").strip()

    def check() -> SecretCheck:
        if not given:
            return SecretCheck(False, "missing")
        return SecretCheck(True) if same_secret(given, wanted) else SecretCheck(False, "mismatch")

    gently = is_gentle_to(gateway, peer)
    verdict = gateway.auth_limiter.guard(f"hooks {caller_key(peer)}", check, gently=gently)
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


ROUTES: list[Route] = [("*", base_path, call_hook, "own")]


# The paths of channels


async def serve_webhook(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.StreamResponse:
    """Hands the request to the channel that serves its path.

    The channel verifies the platform's signature or secret before it inspects anything else. Only wrong ones are slowed
    down, like wrong secrets of the Gateway: a request with a right one always passes.
    """
    found = gateway.channel_services.channels.webhook(request.path)
    if found is None:
        return web.Response(status=404, text="Not Found")
    webhook, below = found
    with gateway.sockets.bodies.room() as take:
        try:
            body = await read_body(request, BODY_LIMIT, take)
        except BodyRefused as refused:
            return web.Response(status=refused.status, text=str(refused), headers={"Connection": "close"})
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = WebhookRequest(method=request.method, path=below, query=dict(request.query), headers=headers, body=body)
        answer = await webhook(asked)
    if answer.status in (401, 403):
        guesses = WrongSecrets(request, gateway.auth_limiter, peer)
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
