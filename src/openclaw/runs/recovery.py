"""After a restart: in what order unfinished messages are taken up, and when one is given up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Literal

from openclaw.runs.queue import QueueSettings
from openclaw.storage.base import Ledger, LedgerRow, Reason, ReasonCode

MAX_ATTEMPTS = 3
EXPIRY_MS = 24 * 3600 * 1000
"""A message that nobody worked on for so long is not answered any more: what it asked for may be long settled."""
EXPIRED = (
    "The Gateway was not running for too long: this message had waited {hours} hours, so it was not answered. "
    "Send it again if it still matters."
)
GAVE_UP = (
    "The Gateway stopped {attempts} times while working on this message, so it was given up. Send it again to retry."
)


def in_order(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """As they were accepted, but what had begun goes first: its words are in the transcript already."""
    return sorted(rows, key=lambda row: (row.attempts == 0, row.id))


def queue_again(row: LedgerRow, settings: QueueSettings, *, alone: bool = False) -> QueueSettings:
    """What had begun is continued by itself; what waited may still be collected."""
    return QueueSettings(mode="followup") if row.attempts or alone else settings


def is_too_old(row: LedgerRow, now_ms: int) -> bool:
    """Asked once, at the start: a clock that jumps later must not make anything old."""
    return now_ms - row.accepted_at >= EXPIRY_MS


async def put_down(row: LedgerRow, ledger: Ledger) -> None:
    """The Gateway was told to stop in the middle of this message."""
    with contextlib.suppress(ValueError):  # It has ended after all.
        await ledger.advance(row.id, "queued", Reason(ReasonCode.SHUTDOWN))


async def crashes_of(row: LedgerRow, ledger: Ledger) -> int:
    """How often the Gateway died while it worked on this message; being told to stop does not count."""
    if row.attempts < MAX_ATTEMPTS:
        return row.attempts
    changes = await ledger.story(row.id)
    return row.attempts - sum(change.reason.code is ReasonCode.SHUTDOWN for change in changes)


def how_to_go_on(attempts: int, *, expired: bool = False) -> Literal["run", "give up", "close"]:
    """``give up`` says so in the transcript. If even that did not end well, only the ledger is closed."""
    if attempts < MAX_ATTEMPTS:
        return "give up" if expired else "run"
    return "give up" if attempts == MAX_ATTEMPTS else "close"


def why_not(row: LedgerRow, crashes: int, now_ms: int, *, expired: bool) -> str:
    """What the sender is told of a message that is not answered."""
    if not expired:
        return GAVE_UP.format(attempts=crashes)
    hours = max(1, (now_ms - row.accepted_at) // 3_600_000)
    return EXPIRED.format(hours=hours)
