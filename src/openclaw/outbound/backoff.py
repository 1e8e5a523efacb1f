"""Computes how long to wait before the next attempt."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Chance = Callable[[], float]
"""Returns a random number in [0, 1)."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Growing delays with jitter, so that clients of one server do not all reconnect at the same moment."""

    initial_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.2

    def delay_s(self, attempt: int, chance: Chance) -> float:
        """``attempt`` counts from 1."""
        # The exponent is bounded, because a large one would overflow a float.
        grown = self.initial_s * self.factor ** min(max(attempt, 1) - 1, 64)
        return min(self.max_s, grown + grown * self.jitter * chance())


def retry_delay_s(policy: Backoff, attempt: int, retry_after_s: float | None, chance: Chance) -> float:
    """The delay before a request is repeated: what the server asks for, or else a growing delay.

    It stays within the policy's bounds, and its jitter can lengthen or shorten it.
    """
    if retry_after_s is not None:
        wanted = max(retry_after_s, policy.initial_s)
    else:
        wanted = policy.initial_s * policy.factor ** min(max(attempt, 1) - 1, 64)
    wanted = min(wanted, policy.max_s)
    wanted *= 1 + policy.jitter * (2 * chance() - 1)
    return min(max(wanted, policy.initial_s), policy.max_s)
