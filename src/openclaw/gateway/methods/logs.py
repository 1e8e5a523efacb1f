"""``logs.tail``: the end of the log, then what was added since."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec

from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, method
from openclaw.logs import DAILY_NAME, log_path


class LogsTail(Params):
    cursor: Annotated[int, msgspec.Meta(ge=0)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 500
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 250_000


@method("logs.tail", LogsTail)
async def tail(call: Call) -> Any:
    params: LogsTail = call.params
    path = log_path(call.gateway.state_dir, call.gateway.config.current.logging.file)
    return await asyncio.to_thread(read_tail, path, params.cursor, params.limit, params.max_bytes)


def read_tail(path: Path, cursor: int | None, limit: int, max_bytes: int) -> dict[str, Any]:
    """Lines from ``cursor`` on. ``reset``: the cursor no longer fits; ``truncated``: earlier lines were left out."""
    path = path if path.exists() else (newest_log(path.parent) or path)
    answer: dict[str, Any] = {"file": str(path), "cursor": 0, "size": 0, "lines": [], "truncated": False}
    if not path.exists():
        return {**answer, "reset": bool(cursor)}
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start, reset, truncated = _range(cursor, size, max_bytes)
        before = b"\n"
        if start > 0:
            file.seek(start - 1)
            before = file.read(1)
        file.seek(start)
        data = file.read(size - start)
    # A line still being written is left for the next call.
    whole, newline, _rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    if before != b"\n":
        lines = lines[1:]
    shown = [line.decode("utf-8", "replace") for line in lines[-limit:]]
    end = start + len(whole) + len(newline) if newline else (start if cursor is not None else size)
    answer |= {"cursor": end, "size": size, "lines": shown, "truncated": truncated or len(lines) > limit}
    return {**answer, "reset": reset}


def _range(cursor: int | None, size: int, max_bytes: int) -> tuple[int, bool, bool]:
    earliest = max(0, size - max_bytes)
    if cursor is None:
        return earliest, False, earliest > 0
    if cursor > size:
        return earliest, True, earliest > 0
    if cursor < earliest:
        return earliest, True, True
    return cursor, False, False


def newest_log(folder: Path) -> Path | None:
    """The latest daily file: just after midnight today's may not exist yet."""
    if not folder.is_dir():
        return None
    named = [path for path in folder.iterdir() if (found := DAILY_NAME.fullmatch(path.name)) and not found[2]]
    return max(named, key=lambda path: path.name, default=None)
