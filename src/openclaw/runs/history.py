"""The history of one message: everything the ledger recorded about it."""

from __future__ import annotations

import asyncio
import re

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.storage.message_ledger import (
    JobRow,
    Ledger,
    LedgerRow,
    OutboxRow,
    RejectedMessage,
    StateChange,
    ToolCallRow,
)

LONGEST_NUMBER = 18
"""The most digits of the number of a message, which has 64 bits."""
_PUBLIC_ID = re.compile(r"^(chatcmpl|resp|msg)_")
"""The prefixes of the ids under which OpenAI's clients know a run."""


class MessageHistory(msgspec.Struct, frozen=True):
    """Everything the ledger knows about one message."""

    row: LedgerRow
    changes: list[StateChange]
    tool_calls: list[ToolCallRow]
    outbox: list[OutboxRow]
    rejected: list[RejectedMessage] = []
    """Deliveries of the same message that were rejected."""
    jobs: list[JobRow] = []
    """What the message led to in other sessions."""


async def find_message(ledger: Ledger, name: str, session_key: str | None = None) -> LedgerRow | None:
    """Find a message by its run id, its number, or its id on the channel.

    With ``session_key``, only messages of that session are found.
    """

    def is_meant(row: LedgerRow | None) -> bool:
        return row is not None and session_key in (None, row.session_key)

    if not name:
        return None
    if is_meant(row := await ledger.by_run(_PUBLIC_ID.sub("", name))):
        return row
    number = name.removeprefix("#")
    is_number = number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER
    if is_number and is_meant(row := await ledger.get(int(number))):
        return row
    return next(filter(is_meant, await ledger.by_message_id(name)), None)


async def load_history(runtime: Runtime, row: LedgerRow) -> MessageHistory:
    ledger = runtime.stores.ledger
    # Queries that are asked together share one trip to the ledger's thread.
    changes, calls, outbox, rejected, jobs = await asyncio.gather(
        ledger.history(row.id),
        ledger.tool_calls(row.id),
        ledger.outbox_of(row.id),
        ledger.rejected([row.run_id, *row.body.message_ids]),
        ledger.jobs(run_id=row.run_id),
    )
    # Two channels, and two chats, may use the same ids.
    own = [
        note for note in rejected if note.channel in (row.source, row.route.channel) and note.chat in ("", row.route.to)
    ]
    return MessageHistory(row, changes, calls, outbox, own, jobs)


def answered_by(row: LedgerRow) -> str | None:
    """Returns the id of the run that took this message in, if one did."""
    by = (row.result or {}).get("answeredBy")
    return by if isinstance(by, str) else None


def reply_of(row: LedgerRow) -> str:
    text = (row.result or {}).get("text")
    return text if isinstance(text, str) and text.strip() else ""


def is_withheld(row: LedgerRow) -> bool:
    """Whether the send policy kept a reply, or the rest of it, from its channel."""
    return bool((row.result or {}).get("withheld"))
