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
    return web.json_response({"ok": gateway.ready}, status=200 if gateway.ready else 503)


ROUTES = [
    (verb, path, answer) for verb in ("GET", "HEAD") for path, answer in (("/healthz", alive), ("/readyz", ready))
]
