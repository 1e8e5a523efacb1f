"""For supervisors: is the process alive, and may traffic be sent to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from openclaw.gateway.origin import Peer

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


async def alive(_request: web.BaseRequest, _gateway: Gateway, _peer: Peer) -> web.StreamResponse:
    return web.json_response({"ok": True})


async def ready(_request: web.BaseRequest, gateway: Gateway, _peer: Peer) -> web.StreamResponse:
    """No while it starts or stops, and while its disk takes nothing: then every message would be refused."""
    problem = await gateway.disk.problem() if gateway.ready else "the Gateway is starting or stopping"
    if problem:
        return web.json_response({"ok": False, "problem": problem}, status=503)
    return web.json_response({"ok": True})


ROUTES = [
    (verb, path, answer) for verb in ("GET", "HEAD") for path, answer in (("/healthz", alive), ("/readyz", ready))
]
