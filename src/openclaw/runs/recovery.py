"""Recovery after a crash: which messages go on at the next start, in what order, and when one is given up."""

from __future__ import annotations

import contextlib
from typing import Literal, TypeAlias

from openclaw.agent.runtime import Runtime
from openclaw.runs.queue import QueueSettings, RunRecord, queue_settings
from openclaw.storage.base import NO_REASON, Ledger, LedgerRow, Reason, ReasonCode, SessionName

MAX_ATTEMPTS = 3
"""A message is given up when the Gateway has crashed this often while it worked on it."""
SUSPECT_CRASHES = 2
"""Messages during which the Gateway has crashed this often run one at a time, so that the right one is given up."""
SUSPECT_S = 300.0
"""How long such a message waits for the one before it. That one has shown by then that it is harmless."""
EXPIRY_MS = 24 * 3600 * 1000
"""A message that has waited this long when the Gateway starts is not answered, because it may not matter any more."""

STOP_CODES = frozenset({ReasonCode.STOPPED, ReasonCode.REMOVED_FROM_QUEUE, ReasonCode.WITHDRAWN})
"""The reason of a message that was being stopped, or of one that ended so."""

Choice: TypeAlias = Literal["run", "stop", "give up", "close"]


async def unfinished_records(runtime: Runtime, session: SessionName | None = None) -> list[RunRecord]:
    """Finds the messages without an end, of one session or of all, in the order in which they go on.

    Messages that had begun come first, because their words are in the transcript already. A message that had begun,
    is expired or is damaged runs alone; the others may still be collected.
    """
    rows = [row for row in await runtime.ledger.unfinished(session) if not row.body.command]
    rows.sort(key=lambda row: (row.attempts == 0, row.id))
    now, config = runtime.clock.now_ms(), runtime.config.current.messages.queue
    records: list[RunRecord] = []
    for row in rows:
        record = RunRecord(row)
        # Decided once, at the start, so that a clock that jumps later makes no message expire.
        record.recovered, record.expired = True, now - row.accepted_at >= EXPIRY_MS
        stopped = row.reason.code in STOP_CODES
        if row.attempts or record.expired or stopped or row.body.prompt is None:
            record.queue = QueueSettings(mode="followup")
        else:
            entry = await runtime.sessions.get(row.agent_id, row.session_key)
            record.queue = queue_settings(config, entry, row.source)
        records.append(record)
    return records


def how_to_go_on(record: RunRecord, crashes: int, now_ms: int) -> tuple[Choice, Reason]:
    """Decides whether the message is run, and if not, for what reason.

    ``stop``: somebody stopped the message before the restart. ``give up`` also writes the reason into the transcript.
    ``close`` ends the message in the ledger only, because the Gateway crashed even while it gave up.
    """
    if record.recovered and record.row.reason.code in STOP_CODES:
        return "stop" if crashes <= MAX_ATTEMPTS else "close", record.row.reason
    if crashes < MAX_ATTEMPTS and not record.expired:
        return "run", NO_REASON
    if record.expired:
        hours = max(1, (now_ms - record.row.accepted_at) // 3_600_000)
        reason = Reason(ReasonCode.EXPIRED, str(hours))
    else:
        reason = Reason(ReasonCode.CRASHED, str(crashes))
    return "give up" if crashes <= MAX_ATTEMPTS else "close", reason


async def crashes_of(record: RunRecord, ledger: Ledger) -> int:
    """Counts how often the Gateway died while it worked on this message. A shutdown does not count."""
    row = record.row
    if row.attempts < SUSPECT_CRASHES:
        return row.attempts
    changes = await ledger.story(row.id)
    noted = sum(change.reason.code is ReasonCode.SHUTDOWN for change in changes)
    return row.attempts - noted - record.stop_unnoted


async def note_shutdown(row: LedgerRow, ledger: Ledger) -> None:
    """Notes that the Gateway was told to stop while this message was running."""
    with contextlib.suppress(ValueError):  # The message has ended meanwhile.
        await ledger.advance(row.id, "queued", Reason(ReasonCode.SHUTDOWN))
