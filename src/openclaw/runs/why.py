"""What the ledger knows about one message, and its story in sentences."""

from __future__ import annotations

import asyncio

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import user_zone
from openclaw.runs.dispatcher import Dispatcher
from openclaw.runs.why_text import tell
from openclaw.storage.base import LedgerRow, OutboxRow, StateChange, ToolCallRow


class Life(msgspec.Struct, frozen=True):
    """Everything the ledger knows about one message."""

    row: LedgerRow
    changes: list[StateChange]
    tool_calls: list[ToolCallRow]
    outbox: list[OutboxRow]


async def life_of(runtime: Runtime, row: LedgerRow) -> Life:
    ledger = runtime.ledger
    # Asked together, the three queries share one trip to the ledger's thread.
    parts = await asyncio.gather(ledger.story(row.id), ledger.tool_calls(row.id), ledger.outbox_of(row.id))
    return Life(row, *parts)


def story_of(runtime: Runtime, dispatcher: Dispatcher, life: Life) -> list[str]:
    """What became of the message, step by step, in sentences."""
    now, zone = runtime.clock.now_ms(), user_zone(runtime.config.current)
    record = dispatcher.find(life.row.run_id)
    disk = record.disk if record is not None and life.row.ended_at is None else None
    return tell(life.row, life.changes, life.tool_calls, life.outbox, now, zone, disk)
