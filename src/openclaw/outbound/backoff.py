"""How long to wait before the next try. Pure: chance comes in as an argument."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Chance = Callable[[], float]
"""Gives a number in [0, 1)."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Growing delays with some jitter, so that many who lost the same server do not return together."""

    initial_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.2

    def delay_s(self, attempt: int, chance: Chance) -> float:
        """``attempt`` counts from 1."""
        # Large attempts would overflow a float long after the limit is reached.
        grown = self.initial_s * self.factor ** min(max(attempt, 1) - 1, 64)
        return min(self.max_s, grown + grown * self.jitter * chance())


def retry_delay_s(policy: Backoff, attempt: int, retry_after_s: float | None, chance: Chance) -> float:
    """A request's next try: what the server asked for wins, within the policy's bounds; jitter goes both ways."""
    if retry_after_s is not None:
        wanted = max(retry_after_s, policy.initial_s)
    else:
        wanted = policy.initial_s * policy.factor ** min(max(attempt, 1) - 1, 64)
    wanted = min(wanted, policy.max_s)
    wanted *= 1 + policy.jitter * (2 * chance() - 1)
    return min(max(wanted, policy.initial_s), policy.max_s)
