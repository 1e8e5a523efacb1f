"""What model calls used and cost, read from the transcripts: each line once, in a thread, remembered per file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TypeAlias

import msgspec

from openclaw.messages import Usage
from openclaw.models.base import Price
from openclaw.models.cost import added, cost_of

QUARTER_MS = 15 * 60_000
"""Sums are kept per quarter of an hour: days of every time zone are made of whole quarters."""
LONGEST_LINE = 64 * 1024 * 1024

PriceOf: TypeAlias = Callable[[str, str], Price | None]
"""By provider and model id; None: unknown, which is not free."""


class Calls(msgspec.Struct):
    """Model calls of one model within one quarter of an hour."""

    priced: Usage | None = None
    """With the cost that was stored at the time."""
    unpriced: Usage | None = None
    unpriced_count: int = 0


class Activity(msgspec.Struct):
    user: int = 0
    assistant: int = 0
    tool_calls: int = 0
    tool_results: int = 0
    errors: int = 0

    @property
    def total(self) -> int:
        return self.user + self.assistant


class FileSpend(msgspec.Struct):
    """One transcript, as far as it has been read."""

    inode: int = 0
    offset: int = 0
    forked_at: str = ""
    """Lines before this ISO time came from the transcript it was forked from and are counted there."""
    calls: dict[tuple[int, str, str], Calls] = {}
    """By quarter, provider and model."""
    activity: dict[int, Activity] = {}
    tools: dict[tuple[int, str], int] = {}


class Totals(msgspec.Struct, rename="camel"):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    total_cost: float = 0
    input_cost: float = 0
    output_cost: float = 0
    cache_read_cost: float = 0
    cache_write_cost: float = 0
    missing_cost_entries: int = 0
    """Calls whose price nobody knows; their tokens count, their cost does not."""

    def add(self, calls: Calls, price: Price | None) -> None:
        for usage in (calls.priced, calls.unpriced):
            if usage is None:
                continue
            cost = cost_of(usage, price) if usage is calls.unpriced else usage.cost
            self.input += usage.input
            self.output += usage.output
            self.cache_read += usage.cache_read
            self.cache_write += usage.cache_write
            self.total_tokens += usage.total_tokens
            self.total_cost += cost.total
            self.input_cost += cost.input
            self.output_cost += cost.output
            self.cache_read_cost += cost.cache_read
            self.cache_write_cost += cost.cache_write
        if price is None:
            self.missing_cost_entries += calls.unpriced_count

    @property
    def known(self) -> bool:
        """Whether anything can be said about the cost at all."""
        return self.total_cost > 0 or not self.missing_cost_entries


# Reading


class _Block(msgspec.Struct):
    type: str = ""
    name: str = ""


class _Message(msgspec.Struct, rename="camel"):
    role: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    stop_reason: str = ""
    is_error: bool = False
    timestamp: int = 0
    content: str | list[_Block] = ""


class _Line(msgspec.Struct, rename="camel"):
    type: str = ""
    timestamp: str = ""
    parent_session: str | None = None
    message: _Message | None = None


_line = msgspec.json.Decoder(_Line)


def read_on(path: Path, before: FileSpend | None) -> FileSpend:
    """Blocking. Goes on where ``before`` ended; begins anew when the file is another or has become shorter."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        spend = before
        if spend is None or spend.inode != found.st_ino or spend.offset > found.st_size:
            spend = FileSpend(inode=found.st_ino)
        if spend.offset == found.st_size:
            return spend
        file.seek(spend.offset)
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n"):
                break  # Being written right now; read when it is whole.
            spend.offset += len(line)
            _take(line, spend)
    return spend


def _take(line: bytes, spend: FileSpend) -> None:
    if b'"message"' not in line and b'"session"' not in line:
        return
    try:
        entry = _line.decode(line)
    except msgspec.MsgspecError:
        return  # Other readers report a damaged line; here it only counts nothing.
    if entry.type == "session" and entry.parent_session:
        spend.forked_at = entry.timestamp
    if entry.type == "message" and entry.message is not None and entry.timestamp >= spend.forked_at:
        _count(entry.message, moment_ms(entry) // QUARTER_MS, spend)


def moment_ms(entry: _Line) -> int:
    if entry.message is not None and entry.message.timestamp:
        return entry.message.timestamp
    try:
        return int(datetime.fromisoformat(entry.timestamp).timestamp() * 1000)
    except ValueError:
        return 0


def _count(message: _Message, quarter: int, spend: FileSpend) -> None:
    seen = spend.activity.setdefault(quarter, Activity())
    match message.role:
        case "user":
            seen.user += 1
        case "toolResult":
            seen.tool_results += 1
            seen.errors += message.is_error
        case "assistant":
            seen.assistant += 1
            seen.errors += message.stop_reason == "error"
            _count_calls(message, quarter, seen, spend)
        case _:
            pass


def _count_calls(message: _Message, quarter: int, seen: Activity, spend: FileSpend) -> None:
    for block in message.content if isinstance(message.content, list) else ():
        if block.type == "toolCall":
            seen.tool_calls += 1
            spend.tools[quarter, block.name] = spend.tools.get((quarter, block.name), 0) + 1
    usage = message.usage
    if usage is None or not (usage.total_tokens or usage.input or usage.output):
        return
    calls = spend.calls.setdefault((quarter, message.provider, message.model), Calls())
    if usage.cost.total > 0:
        calls.priced = added(calls.priced, usage)
    else:
        calls.unpriced = added(calls.unpriced, usage)
        calls.unpriced_count += 1


# Remembering


class Spending:
    """Every transcript asked about, read as far as it went. One reader at a time, never on the event loop."""

    def __init__(self) -> None:
        self._files: dict[Path, FileSpend] = {}
        self._lock = asyncio.Lock()

    async def of_file(self, path: Path) -> FileSpend:
        """Empty when there is no such file."""
        async with self._lock:
            found = await asyncio.to_thread(self._read, [path])
        return found.get(path, FileSpend())

    async def of_folders(self, folders: Sequence[Path], since_ms: int = 0) -> dict[Path, FileSpend]:
        """Every transcript there, archived ones too; those that were last written before ``since_ms`` are left out."""
        async with self._lock:
            return await asyncio.to_thread(lambda: self._read(_transcripts(folders, since_ms)))

    def _read(self, paths: Iterable[Path]) -> dict[Path, FileSpend]:
        found: dict[Path, FileSpend] = {}
        for path in paths:
            try:
                found[path] = self._files[path] = read_on(path, self._files.get(path))
            except FileNotFoundError:
                self._files.pop(path, None)
        return found


def _transcripts(folders: Sequence[Path], since_ms: int) -> list[Path]:
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            continue
        with os.scandir(folder) as listing:
            for item in listing:
                if is_transcript(item.name) and item.is_file() and item.stat().st_mtime_ns // 1_000_000 >= since_ms:
                    found[Path(item.path)] = None
    return list(found)


def is_transcript(name: str) -> bool:
    """Ended sessions count: their money is spent. A copy made before a file was shortened would count twice."""
    _, dot, rest = name.partition(".jsonl")
    return bool(dot) and (not rest or rest.startswith((".reset.", ".deleted.")))


# Adding up


def day_of(quarter: int, zone: tzinfo | None) -> str:
    """``YYYY-MM-DD`` there; None is the machine's own zone."""
    moment = datetime.fromtimestamp(quarter * QUARTER_MS / 1000, UTC)
    return moment.astimezone(zone).date().isoformat()


def total_of(spends: Iterable[FileSpend], price_of: PriceOf, days: tuple[str, str] | None = None,
             zone: tzinfo | None = UTC) -> Totals:  # fmt: skip
    """Of the days from the first to the last, both included; of everything without them."""
    totals = Totals()
    for spend in spends:
        for (quarter, provider, model), calls in spend.calls.items():
            if days is None or days[0] <= day_of(quarter, zone) <= days[1]:
                totals.add(calls, price_of(provider, model))
    return totals
