"""Parses server-sent events from bytes as they arrive."""

from __future__ import annotations

import re
from typing import TypeAlias

SseEvent: TypeAlias = tuple[bytes, bytes]
"""The event's name (empty when the server gave none) and its data, still encoded."""

MAX_EVENT_BYTES = 8 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_plain_events = re.compile(rb"(?:\A|(?<=\n\n))(?:event: ?([^\n]*)\n)?data: ?([^\n]*)\n\n").findall
"""The common form: an optional name and one line of data."""


class SseTooLarge(ValueError):
    """One event is larger than the limit."""


class SseParser:
    """Takes the byte stream in pieces of any size and returns the events that each piece completes."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._pending = bytearray()
        self._at_start = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._at_start or self._after_cr or b"\r" in chunk:
            chunk = self._with_plain_newlines(chunk)
        if not self._pending and chunk.endswith(b"\n\n"):
            return self._parse(chunk)
        pending = self._pending
        scan_from = max(0, len(pending) - 1)
        pending += chunk
        end = pending.rfind(b"\n\n", scan_from)
        if end < 0:
            if len(pending) > self._max:
                raise self._too_large()
            return []
        complete = bytes(memoryview(pending)[: end + 2])
        del pending[: end + 2]
        return self._parse(complete)

    def finish(self) -> SseEvent | None:
        """The event after the last blank line. Some servers close right after the last line."""
        rest = bytes(self._pending)
        self._pending.clear()
        return _parse_block(rest)

    def _parse(self, complete: bytes) -> list[SseEvent]:
        events: list[SseEvent] = _plain_events(complete)
        if len(events) != complete.count(b"\n\n"):
            parsed = [_parse_block(block) for block in complete.split(b"\n\n")]
            events = [event for event in parsed if event is not None]
        if len(complete) > self._max and any(len(data) > self._max for _, data in events):
            raise self._too_large()
        return events

    def _too_large(self) -> SseTooLarge:
        return SseTooLarge(f"An event of the stream is larger than {self._max} bytes.")

    def _with_plain_newlines(self, chunk: bytes) -> bytes:
        """Turns CRLF and CR into LF. A CRLF may be cut in two by the network."""
        if self._at_start and chunk:
            if len(chunk) < 3 and _BYTE_ORDER_MARK.startswith(chunk):
                # This may be the first part of a byte order mark, so it waits for the next chunk.
                self._pending += chunk
                return b""
            if self._pending:
                chunk = bytes(self._pending) + chunk
                self._pending.clear()
            chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk


def _parse_block(block: bytes) -> SseEvent | None:
    """One event from its lines, or None for a block without data (comments, keep-alives)."""
    name = b""
    data: bytes | None = None
    more: list[bytes] | None = None
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            value = line[6:] if line.startswith(b" ", 5) else line[5:]
            if data is None:
                data = value
            elif more is None:
                more = [data, value]
            else:
                more.append(value)
        elif line.startswith(b"event:"):
            name = line[6:].removeprefix(b" ")
        elif line == b"data":
            data, more = (b"", None) if data is None else (data, [*(more or [data]), b""])
    if data is None:
        return None
    return name, data if more is None else b"\n".join(more)
