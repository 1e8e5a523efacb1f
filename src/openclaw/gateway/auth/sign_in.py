"""One-time sign-in of the web page: a ticket that stands for a secret once, for two minutes.

``openclaw dashboard`` puts the secret that it knows behind a ticket and opens the page with the ticket. So the secret
is in no address, no list of processes and no history of a browser.
"""

from __future__ import annotations

import secrets

from openclaw.clock import Clock

LIFETIME_MS = 120_000
MOST_OPEN = 16
"""Tickets that can be open at once. The oldest gives way."""


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

    def redeem(self, ticket: str) -> str | None:
        """The secret behind a ticket, which is worth nothing from then on. None when it is not or no longer good."""
        secret, until = self._open.pop(ticket, ("", 0))
        return secret if self._clock.now_ms() < until else None
