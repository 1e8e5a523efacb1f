"""Decides which transcripts are old enough to be compressed; the store compresses them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from openclaw.config.schema import Config
from openclaw.storage.base import Compressed, TranscriptStore

log = logging.getLogger("openclaw.sessions")

DAY_MS = 86_400_000
INTERVAL_S = 3600.0
MOST_AT_ONCE = 200


async def compress_old(
    transcripts: TranscriptStore, agent_ids: Iterable[str], config: Config, now_ms: int, after_days: int | None = None
) -> Compressed:
    """Compresses a bounded number of old transcripts; the next call goes on with the rest.

    ``after_days`` None takes the configured age; 0 or less compresses nothing.
    """
    days = config.session.archive.after_days if after_days is None else after_days
    total = Compressed()
    if days <= 0:
        return total
    for agent_id in agent_ids:
        done = await transcripts.compress(agent_id, now_ms - days * DAY_MS, most=MOST_AT_ONCE - total.files)
        total.files += done.files
        total.bytes_before += done.bytes_before
        total.bytes_after += done.bytes_after
        total.problems = [*total.problems, *done.problems]
        if total.files >= MOST_AT_ONCE:
            break
    if total.files:
        log.info("%d old transcripts compressed: %d bytes, now %d", total.files, total.bytes_before, total.bytes_after)
    for problem in total.problems:
        log.warning("an old transcript was left as it is: %s", problem)
    return total
