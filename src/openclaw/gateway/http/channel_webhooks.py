"""The paths of channels on the Gateway's port: platforms that call the Gateway instead of being asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from openclaw.channels.base import WebhookRequest
from openclaw.gateway.auth.origin import PeerAddress, caller_key, last_hop
from openclaw.gateway.auth.shared_auth import FailedAuthLimiter
from openclaw.gateway.http.common import BodyRefused, read_body
from openclaw.net import is_loopback

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

BODY_LIMIT = 4 * 1024 * 1024


def _too_many(wait_ms: int) -> web.Response:
    seconds = wait_ms // 1000 + 1
    text = f"Too Many Requests: too many wrong secrets; try again in {seconds} s"
    return web.Response(status=429, text=text, headers={"Retry-After": str(seconds), "Connection": "close"})


class WrongSecrets:
    """The wrong secrets of one caller.

    What a proxy on this machine passes on, a tunnel for example, is counted under the address that the proxy reports.
    Anybody on this machine can claim one, so all of it is also counted together, and then slowed down and not locked
    out: a stranger must not keep the platform out.
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


async def serve_webhook(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.StreamResponse:
    """Hands the request to the channel that serves its path.

    The channel asks for the platform's signature or secret before it looks at anything else. Wrong ones are slowed down
    like wrong secrets of the Gateway.
    """
    found = gateway.channel_services.channels.webhook(request.path)
    if found is None:
        return web.Response(status=404, text="Not Found")
    webhook, below = found
    guesses = WrongSecrets(request, gateway.auth_limiter, peer)
    if wait_ms := guesses.wait_ms():
        return _too_many(wait_ms)
    with gateway.sockets.bodies.room() as take:
        try:
            body = await read_body(request, BODY_LIMIT, take)
        except BodyRefused as refused:
            return web.Response(status=refused.status, text=str(refused), headers={"Connection": "close"})
        # Asked again, because many may have sent their body at the same time.
        if wait_ms := guesses.wait_ms():
            return _too_many(wait_ms)
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = WebhookRequest(method=request.method, path=below, query=dict(request.query), headers=headers, body=body)
        answer = await webhook(asked)
    if answer.status in (401, 403):
        guesses.count()
    return web.Response(status=answer.status, text=answer.text, content_type=answer.content_type)
