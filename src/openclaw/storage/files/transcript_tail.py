"""The end of a transcript, read backwards: what a history view needs without reading the rest of the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from openclaw.sessions.tree import is_displayed
from openclaw.storage.base import Entry
from openclaw.storage.files.compressed import unpacked_blocks
from openclaw.storage.files.transcript import MAYBE_SHOWN_TYPES, SHOWN_TYPES
from openclaw.storage.files.transcript_index import read_envelope, trim

_BLOCK = 256 << 10


def read_tail(path: Path, limit: int) -> list[Entry]:
    """The last entries of the active branch that people see, oldest first. Abandoned branches are stepped over."""
    return _tail_of(_lines_backwards(path), limit)


def read_packed_tail(packed: Path, limit: int) -> list[Entry]:
    """The same of a compressed file, which has to be read from its beginning."""
    return _tail_of(reversed(b"".join(unpacked_blocks(packed)).split(b"\n")), limit)


def _tail_of(lines: Iterator[bytes], limit: int) -> list[Entry]:
    found: list[Entry] = []
    wanted: str | None = None
    anything = True
    for raw in lines:
        line, _ = trim(raw)
        envelope = read_envelope(line) if line else None
        if envelope is None or envelope.type == "session":
            continue
        if not anything and envelope.id is not None and envelope.id != wanted:
            continue
        if envelope.type in SHOWN_TYPES and (envelope.type not in MAYBE_SHOWN_TYPES or is_displayed(line)):
            found.append(Entry(envelope.id or "", envelope.parentId, envelope.type, line))
        # A line of the first format has no id and follows the line before it.
        anything = envelope.id is None and envelope.parentId is None
        wanted = envelope.parentId
        if len(found) >= limit or (wanted is None and not anything) or (wanted == envelope.id and not anything):
            break
    found.reverse()
    return found


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Lines from the last to the first."""
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        end = os.fstat(fd).st_size
        # The head of a line whose beginning is in an earlier block, as pieces, latest first.
        pieces: list[bytes] = []
        while end > 0:
            start = max(0, end - _BLOCK)
            block = os.pread(fd, end - start, start)
            end = start
            lines = block.split(b"\n")
            if len(lines) > 1:
                pieces.append(lines[-1])
                yield b"".join(reversed(pieces))
                yield from reversed(lines[1:-1])
                pieces = [lines[0]]
            else:
                pieces.append(block)
        if pieces:
            yield b"".join(reversed(pieces))
