"""One-time sign-in of the web page: a ticket that stands for a secret once, for two minutes.

``openclaw dashboard`` puts the secret that it knows behind a ticket and opens the page with the ticket. So the secret
is in no address, no list of processes and no history of a browser.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from openclaw.clock import Clock
from openclaw.gateway.auth.origin import PeerAddress, caller_key
from openclaw.gateway.auth.shared_auth import SecretCheck
from openclaw.gateway.http.common import RequestRefused, json_response, read_json

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.server import Route

LIFETIME_MS = 120_000
MOST_OPEN = 16
"""Tickets that can be open at once. The oldest gives way."""
MAX_BODY_BYTES = 1024


class SignInTickets:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, tuple[str, int]] = {}

    def issue(self, secret: str) -> str:
        ticket = secrets.token_urlsafe(24)
        while len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[ticket] = (secret, self._clock.now_ms() + LIFETIME_MS)
        return ticket

    def knows(self, ticket: str) -> bool:
        return ticket in self._open

    def redeem(self, ticket: str) -> str | None:
        """The secret behind a ticket, which is worth nothing from then on. None when it is not or no longer good."""
        secret, until = self._open.pop(ticket, ("", 0))
        return secret if self._clock.now_ms() < until else None


class SignInBody(msgspec.Struct):
    ticket: str


async def redeem(request: web.BaseRequest, gateway: Gateway, peer: PeerAddress) -> web.StreamResponse:
    """Gives the web page the secret behind a ticket.

    Whoever asks needs no secret, but a ticket. Wrong tickets are slowed down as wrong secrets are.
    """
    try:
        ticket = (await read_json(request, MAX_BODY_BYTES, SignInBody)).ticket
    except RequestRefused:
        ticket = ""
    found: list[str] = []
    tickets, caller, elsewhere = gateway.sign_in_tickets, caller_key(peer), ""
    if (
        gateway.cluster is not None
        and ticket
        and not tickets.knows(ticket)
        and not gateway.auth_limiter.wait_ms(caller)
    ):
        # A balancer may lead the page to another node than the one that gave the ticket.
        elsewhere = await gateway.cluster.redeem_ticket(ticket)

    def look() -> SecretCheck:
        secret = tickets.redeem(ticket) or elsewhere
        found.extend([secret] if secret else [])
        return SecretCheck(bool(found), "" if found else "mismatch" if ticket else "missing")

    check = gateway.auth_limiter.guard(caller, look)
    if not check.ok:
        message = "this sign-in was used already or is too old; run `openclaw dashboard` again"
        status = 429 if check.reason == "limited" else 401
        return RequestRefused(message, status=status, kind="unauthorized").response()
    return json_response({"secret": found[0]}, headers={"Cache-Control": "no-store"})


ROUTES: list[Route] = [("POST", "/__openclaw__/sign-in", redeem, "own")]
