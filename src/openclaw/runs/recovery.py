"""After a restart: in what order unfinished messages are taken up, and when one is given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from openclaw.runs.queue import QueueSettings
from openclaw.storage.base import LedgerRow

MAX_ATTEMPTS = 3
GAVE_UP = (
    "The Gateway stopped {attempts} times while working on this message, so it was given up. Send it again to retry."
)


def in_order(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """As they were accepted, but what had begun goes first: its words are in the transcript already."""
    return sorted(rows, key=lambda row: (row.attempts == 0, row.id))


def queue_again(row: LedgerRow, settings: QueueSettings) -> QueueSettings:
    """What had begun is continued by itself; what waited may still be collected."""
    return QueueSettings(mode="followup") if row.attempts else settings


def how_to_go_on(attempts: int) -> Literal["run", "give up", "close"]:
    """``give up`` says so in the transcript. If even that did not end well, only the ledger is closed."""
    if attempts < MAX_ATTEMPTS:
        return "run"
    return "give up" if attempts == MAX_ATTEMPTS else "close"
