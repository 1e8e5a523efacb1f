from __future__ import annotations

from openclaw.gateway.http.control_ui import MOST_OPEN, TICKET_TTL_MS, SignInTickets
from tests.support.clock import HeldClock


def test_a_ticket_is_good_once_and_not_for_long() -> None:
    clock = HeldClock()
    tickets = SignInTickets(clock)
    once, late = tickets.issue("secret"), tickets.issue("secret")
    assert (tickets.redeem(once), tickets.redeem(once), tickets.redeem("guess")) == ("secret", None, None)
    clock.advance(TICKET_TTL_MS / 1000)
    assert tickets.redeem(late) is None


def test_only_so_many_tickets_are_kept() -> None:
    tickets = SignInTickets(HeldClock())
    first, *others = [tickets.issue(str(number)) for number in range(MOST_OPEN + 1)]
    assert tickets.redeem(first) is None and tickets.redeem(others[0]) == "1"
