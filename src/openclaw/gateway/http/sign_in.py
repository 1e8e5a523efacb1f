"""Gives the web page the secret that a one-time ticket stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from openclaw.gateway.auth.origin import PeerAddress, caller_key
from openclaw.gateway.auth.shared_auth import SecretCheck
from openclaw.gateway.http.common import RequestRefused, json_response, read_json

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.server import Route

MAX_BODY_BYTES = 1024


class SignInBody(msgspec.Struct):
    ticket: str


async def redeem(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.StreamResponse:
    """Whoever asks needs no secret, but a ticket. Wrong tickets are slowed down as wrong secrets are."""
    try:
        ticket = (await read_json(request, MAX_BODY_BYTES, SignInBody)).ticket
    except RequestRefused:
        ticket = ""
    found: list[str] = []

    def look() -> SecretCheck:
        secret = gateway.sign_in_tickets.redeem(ticket)
        found.extend([secret] if secret else [])
        return SecretCheck(bool(found), "" if found else "mismatch" if ticket else "missing")

    check = gateway.auth_limiter.guard(caller_key(peer), look)
    if not check.ok:
        message = "this sign-in was used already or is too old; run `openclaw dashboard` again"
        status = 429 if check.reason == "limited" else 401
        return RequestRefused(message, status=status, kind="unauthorized").response()
    return json_response({"secret": found[0]}, headers={"Cache-Control": "no-store"})


ROUTES: list[Route] = [("POST", "/__openclaw__/sign-in", redeem, "own")]
