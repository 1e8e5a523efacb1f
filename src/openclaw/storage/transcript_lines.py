"""Transcripts that are not files, for those who read every line once: sums of tokens and the search index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class StoredTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """A transcript that is not a file, as it is now."""

    id: int
    agent_id: str
    session_id: str
    path: str
    last_line: int
    """The number of its last line. The first has the number 1."""


class TranscriptLines(Protocol):
    """Transcripts that are not files, for those who read every line once: sums and the search index."""

    async def stored(self, places: Sequence[Path], since_ms: int = 0) -> list[StoredTranscript]:
        """Returns the transcripts with these names. A folder stands for all that were written since then."""
        ...

    async def lines_after(self, transcript_id: int, number: int) -> list[tuple[int, bytes]]:
        """Returns the next lines with their numbers. Empty when there are no more."""
        ...
