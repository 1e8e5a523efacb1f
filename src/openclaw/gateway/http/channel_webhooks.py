"""The paths of channels on the Gateway's port: platforms that call the Gateway instead of being asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from openclaw.channels.base import WebhookRequest
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http.common import BodyRefused, read_body

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

BODY_LIMIT = 4 * 1024 * 1024


async def serve_webhook(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.StreamResponse:
    """Hands the request to the channel that serves its path.

    The channel asks for the platform's signature or secret before it looks at anything else.
    """
    found = gateway.channel_services.channels.webhook(request.path)
    if found is None:
        return web.Response(status=404, text="Not Found")
    webhook, below = found
    try:
        body = await read_body(request, BODY_LIMIT)
    except BodyRefused as refused:
        return web.Response(status=refused.status, text=str(refused), headers={"Connection": "close"})
    headers = {name.lower(): value for name, value in request.headers.items()}
    asked = WebhookRequest(method=request.method, path=below, query=dict(request.query), headers=headers, body=body)
    answer = await webhook(asked)
    return web.Response(status=answer.status, text=answer.text, content_type=answer.content_type)
