"""How far a run had come: entry ids that follow from the run, and what they tell after a restart."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from functools import lru_cache

import msgspec

from openclaw.messages import AssistantMessage
from openclaw.storage.base import Context

INTERRUPTED = (
    "Interrupted: the Gateway stopped while this call was running. It was not repeated; it may or may not have taken "
    "effect. Check before you do it again."
)
NOT_STARTED = "Not run: the Gateway stopped before this call began. Call it again if it is still needed."
LARGEST_GAP = 64
"""Damaged lines of one run that are stepped over when looking for its last one."""


@lru_cache(maxsize=64)
def entry_id(run_id: str, step: int | str) -> str:
    """Ids that a repeated run makes again, so that nothing is appended twice.

    64 bits: the format's usual 32 would meet by chance within a few ten thousand entries, and a meeting here would
    silently drop a message.
    """
    return hashlib.sha256(f"{run_id}/{step}".encode()).hexdigest()[:16]


def next_step(run_id: str, entries: Container[str], *, began: bool) -> int:
    """The first step whose entry, and every later one, is not in the transcript.

    A line that was damaged leaves a gap. Taking its number again would be harmless, but the numbers after it are taken,
    and an entry under a taken number is not written. ``began``: the run is known to have been started before.
    """
    step = 0
    if not began and entry_id(run_id, 0) not in entries:
        return 0
    for probe in range(1 << 20):
        if entry_id(run_id, probe) in entries:
            step = probe + 1
        elif probe - step >= LARGEST_GAP:
            break
    return step


class FoundEnd(msgspec.Struct, frozen=True):
    """An answer that stood in the transcript already."""

    answer: AssistantMessage
    own: bool
    """False: another run gave it, having taken this one's words in."""


def found_end(run_id: str, step: int, context: Context) -> FoundEnd | None:
    """The complete answer at the end of the branch, if there is one and this run's words are before it."""
    last = context.messages[-1] if context.messages else None
    if not isinstance(last, AssistantMessage) or last.stop_reason not in ("stop", "length") or last.tool_calls:
        return None
    return FoundEnd(last, context.entry_ids[-1] == entry_id(run_id, step - 1))
