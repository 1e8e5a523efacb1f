"""Matches lines of files with a regular expression: ``python -m openclaw.tools.match_lines``, for the ``search`` tool.

A regular expression may take forever and nothing interrupts Python's engine, so it runs in a process that can be ended.
The input is a JSON line with the request and, for each file, a JSON line with its name and size and its bytes. Nothing
else of this program is imported here.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, BinaryIO

MAX_LINE_CHARS = 300
MAX_REPLY_CHARS = 100_000


def main(stream: BinaryIO) -> dict[str, Any]:
    request = json.loads(stream.readline())
    try:
        pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignoreCase"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": f"pattern is not a regular expression ({error}); escape special characters with a backslash"}
    files: list[dict[str, Any]] = []
    left, size = int(request["limit"]), 0
    while header := stream.readline():
        name, length = json.loads(header)
        text = stream.read(length).decode("utf-8", "replace")
        if left < 0 or size > MAX_REPLY_CHARS:
            break
        matching, rows = _match(pattern, text, request["context"], 1 if request["mode"] == "files" else left + 1)
        if not matching:
            continue
        left -= 1 if request["mode"] == "files" else matching
        files.append({"name": name, "matches": matching, "rows": [] if request["mode"] == "files" else rows})
        size += sum(len(row[2]) for row in rows)
    return {"files": files}


def _match(pattern: re.Pattern[str], text: str, context: int, most: int) -> tuple[int, list[tuple[int, bool, str]]]:
    """Return how many lines match, at most ``most``, and these lines with the lines around them."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    rows: dict[int, tuple[int, bool, str]] = {}
    matching = 0
    for index, line in enumerate(lines):
        match = pattern.search(line.removesuffix("\r"))
        if match is None:
            continue
        matching += 1
        for near in range(max(0, index - context), min(len(lines), index + context + 1)):
            if near not in rows:
                rows[near] = (near + 1, False, _clipped(lines[near].removesuffix("\r"), 0))
        rows[index] = (index + 1, True, _clipped(line.removesuffix("\r"), match.start()))
        if matching == most:
            break
    return matching, [rows[index] for index in sorted(rows)]


def _clipped(line: str, start: int) -> str:
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, min(start - MAX_LINE_CHARS // 3, len(line) - MAX_LINE_CHARS))
    end = start + MAX_LINE_CHARS
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.stdin.buffer)))
