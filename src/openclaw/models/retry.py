"""Decides whether and when a failed call is tried again."""

from __future__ import annotations

import msgspec

from openclaw.models.base import ModelError


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool = True
    max_retries: int = 3
    base_delay_ms: int = 2000
    """Doubles with every attempt."""
    max_delay_ms: int = 60_000
    """The longest wait, even when the server asks for more."""


def retry_delay_ms(attempt: int, settings: RetrySettings, retry_after_s: float | None = None) -> int | None:
    """The wait before retry number ``attempt`` (from 1), or None when no retry is left.

    A longer wait that the server asked for is honoured, up to the maximum.
    """
    if not settings.enabled or attempt < 1 or attempt > settings.max_retries:
        return None
    # The exponent is bounded so that a large max_retries cannot build a huge number first.
    delay = settings.base_delay_ms * 2 ** min(attempt - 1, 32)
    if retry_after_s is not None and retry_after_s > 0:
        delay = max(delay, round(retry_after_s * 1000))
    return min(delay, settings.max_delay_ms)


def next_retry_ms(error: ModelError, attempt: int, settings: RetrySettings) -> int | None:
    """The wait before a retry after ``error``, or None when a retry would not help."""
    if not error.retryable or error.kind == "overflow":
        return None
    return retry_delay_ms(attempt, settings, error.retry_after_s)
