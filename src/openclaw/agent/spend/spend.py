"""What model calls used and cost, read from the transcripts: each line once, in a thread, remembered per file."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from openclaw.messages import Usage
from openclaw.models.base import Price
from openclaw.models.cost import added, cost_of
from openclaw.storage.files.compressed import SUFFIX, unpacked_blocks

LONGEST_MS = 12 * 3_600_000
"""What took longer was not waited for."""
_STEPS = 10
"""Buckets per power of e: neighbours are a tenth apart."""


class Latency(msgspec.Struct):
    count: int = 0
    total_ms: int = 0
    least_ms: int = LONGEST_MS
    most_ms: int = 0
    buckets: dict[int, int] = {}
    """How many answers took about as long, by the logarithm of the time."""

    def add(self, ms: int) -> None:
        if not 0 <= ms <= LONGEST_MS:
            return
        self.count += 1
        self.total_ms += ms
        self.least_ms, self.most_ms = min(self.least_ms, ms), max(self.most_ms, ms)
        place = math.ceil(math.log(max(ms, 1)) * _STEPS)
        self.buckets[place] = self.buckets.get(place, 0) + 1

    def join(self, other: Latency) -> None:
        self.count += other.count
        self.total_ms += other.total_ms
        self.least_ms, self.most_ms = min(self.least_ms, other.least_ms), max(self.most_ms, other.most_ms)
        for place, count in other.buckets.items():
            self.buckets[place] = self.buckets.get(place, 0) + count

    def percentile_ms(self, share: float) -> int:
        left = math.ceil(self.count * share)
        for place in sorted(self.buckets):
            left -= self.buckets[place]
            if left <= 0:
                return min(max(round(math.exp(place / _STEPS)), self.least_ms), self.most_ms)
        return self.most_ms

    def view(self) -> dict[str, Any]:
        average = round(self.total_ms / self.count)
        view = {"count": self.count, "avgMs": average, "p95Ms": self.percentile_ms(0.95)}
        return {**view, "minMs": self.least_ms, "maxMs": self.most_ms}


def together(parts: Iterable[Latency]) -> Latency | None:
    """None when nothing was measured."""
    whole = Latency()
    for part in parts:
        whole.join(part)
    return whole if whole.count else None


log = logging.getLogger("openclaw.agents.spend")

QUARTER_MS = 15 * 60_000
"""Sums are kept per quarter of an hour: days of every time zone are made of whole quarters."""
LONGEST_LINE = 64 * 1024 * 1024
BILL = "model-usage"
"""Kind of the entries that say what a call beside the conversation used; see ``side_calls``."""
_BILL = BILL.encode()

T = TypeVar("T")
PriceOf: TypeAlias = Callable[[str, str], Price | None]
"""By provider and model id; None: unknown, which is not free."""


class Calls(msgspec.Struct):
    """Model calls of one model within one quarter of an hour."""

    priced: Usage | None = None
    """With the cost that was stored at the time."""
    unpriced: Usage | None = None
    unpriced_count: int = 0
    count: int = 0


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
    asked_ms: int = 0
    """When the words came that have no answer yet."""
    latency: dict[int, Latency] = {}
    """By quarter: from the user's words to the end of the answer."""


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
    custom_type: str = ""
    data: _Message | None = None

    @property
    def answer(self) -> _Message | None:
        """What may have used tokens."""
        if self.type == "custom":
            return self.data if self.custom_type == BILL else None
        return self.message


_line = msgspec.json.Decoder(_Line)


def read_on(path: Path, before: FileSpend | None) -> FileSpend:
    """Blocking. Goes on where ``before`` ended; begins anew when the file is another or has become shorter."""
    if path.suffix == SUFFIX:
        return _read_packed(path, before)
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


def _read_packed(path: Path, before: FileSpend | None) -> FileSpend:
    """Compressed transcripts are not written to: one that was read is done with."""
    found = path.stat()
    if before is not None and (before.inode, before.offset) == (found.st_ino, found.st_size):
        return before
    spend = FileSpend(inode=found.st_ino, offset=found.st_size)
    for line in _lines(path):
        _take(line, spend)
    return spend


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines, packed or not."""
    if path.suffix != SUFFIX:
        with path.open("rb") as file:
            yield from file
        return
    rest = b""
    for block in unpacked_blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _take(line: bytes, spend: FileSpend) -> None:
    if b'"message"' not in line and b'"session"' not in line and _BILL not in line:
        return
    try:
        entry = _line.decode(line)
    except msgspec.MsgspecError:
        return  # Other readers report a damaged line; here it only counts nothing.
    if entry.type == "session" and entry.parent_session:
        spend.forked_at = entry.timestamp
    if entry.type == "message" and entry.message is not None and entry.timestamp >= spend.forked_at:
        _count(entry.message, moment_ms(entry) // QUARTER_MS, spend)
        _measure(entry, entry.message, spend)
    elif entry.type == "custom" and entry.answer is not None and entry.timestamp >= spend.forked_at:
        _count_usage(entry.answer, moment_ms(entry) // QUARTER_MS, spend)


def moment_ms(entry: _Line) -> int:
    answer = entry.answer
    if answer is not None and answer.timestamp:
        return answer.timestamp
    return written_ms(entry)


def written_ms(entry: _Line) -> int:
    try:
        return int(datetime.fromisoformat(entry.timestamp).timestamp() * 1000)
    except ValueError:
        return 0


def _measure(entry: _Line, message: _Message, spend: FileSpend) -> None:
    """An answer is there when its line is written; one that asks for tools is not the answer yet."""
    if message.role == "user":
        spend.asked_ms = moment_ms(entry)
    elif message.role == "assistant" and spend.asked_ms and message.stop_reason not in ("toolUse", "error", "aborted"):
        written = written_ms(entry)
        spend.latency.setdefault(written // QUARTER_MS, Latency()).add(written - spend.asked_ms)
        spend.asked_ms = 0


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
    _count_usage(message, quarter, spend)


def _count_usage(message: _Message, quarter: int, spend: FileSpend) -> None:
    usage = message.usage
    if usage is None or not (usage.total_tokens or usage.input or usage.output):
        return
    calls = spend.calls.setdefault((quarter, message.provider, message.model), Calls())
    calls.count += 1
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

    async def reckon(self, what: Callable[[dict[Path, FileSpend]], T], places: Sequence[Path], since_ms: int = 0) -> T:
        """Calls ``what`` in a thread with the transcripts among ``places``: files, or folders with all that is in them.

        Archived ones count. Those last written before ``since_ms`` are left out; one that is gone is no error.
        """
        async with self._lock:
            return await asyncio.to_thread(lambda: what(self._read(_transcripts(places, since_ms))))

    def _read(self, paths: Iterable[Path]) -> dict[Path, FileSpend]:
        found: dict[Path, FileSpend] = {}
        for path in paths:
            try:
                found[path] = self._files[path] = read_on(path, self._files.get(path))
            except FileNotFoundError:
                self._files.pop(path, None)
            except OSError as error:
                log.warning("tokens and cost of %s are not counted: %s", path, error)
        return found


def _transcripts(places: Sequence[Path], since_ms: int) -> list[Path]:
    found: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            found[place] = None
            continue
        with os.scandir(place) as listing:
            for item in listing:
                if is_transcript(item.name) and item.is_file() and item.stat().st_mtime_ns // 1_000_000 >= since_ms:
                    found[Path(item.path)] = None
    return list(found)


def is_transcript(name: str) -> bool:
    """Ended sessions count: their money is spent. A copy made before a file was shortened would count twice."""
    _, dot, rest = name.removesuffix(SUFFIX).partition(".jsonl")
    return bool(dot) and (not rest or rest.startswith((".reset.", ".deleted.")))


# Adding up


def day_of(quarter: int, zone: tzinfo | None) -> str:
    """``YYYY-MM-DD`` there; None is the machine's own zone."""
    moment = datetime.fromtimestamp(quarter * QUARTER_MS / 1000, UTC)
    return moment.astimezone(zone).date().isoformat()


class Days(msgspec.Struct, frozen=True):
    """From the first to the last, both included."""

    first: str
    last: str
    zone: tzinfo | None = UTC

    def has(self, quarter: int) -> str | None:
        """The day this quarter belongs to, if it is one of them."""
        day = day_of(quarter, self.zone)
        return day if self.first <= day <= self.last else None


def total_of(spends: Iterable[FileSpend], price_of: PriceOf, days: Days | None = None) -> Totals:
    totals = Totals()
    for spend in spends:
        for (quarter, provider, model), calls in spend.calls.items():
            if days is None or days.has(quarter):
                totals.add(calls, price_of(provider, model))
    return totals


def daily_totals(spends: Iterable[FileSpend], price_of: PriceOf, days: Days) -> dict[str, Totals]:
    """Days without a call are left out."""
    daily: dict[str, Totals] = {}
    for spend in spends:
        for (quarter, provider, model), calls in spend.calls.items():
            if day := days.has(quarter):
                daily.setdefault(day, Totals()).add(calls, price_of(provider, model))
    return dict(sorted(daily.items()))


class Point(msgspec.Struct, rename="camel"):
    """One model call, or several in a row that are shown as one."""

    timestamp: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    total_tokens: int
    cost: float
    cumulative_tokens: int = 0
    cumulative_cost: float = 0


def read_points(path: Path, price_of: PriceOf, most: int) -> list[Point]:
    """Blocking. The calls of one transcript in order; many are joined until there are at most ``most`` points."""
    points: list[Point] = []
    forked_at, tokens, cost = "", 0, 0.0
    for raw in _lines(path):
        try:
            entry = _line.decode(raw)
        except msgspec.MsgspecError:
            continue
        if entry.type == "session" and entry.parent_session:
            forked_at = entry.timestamp
        answer = entry.answer
        usage = answer.usage if answer and entry.timestamp >= forked_at else None
        if usage is None or answer is None or not (usage.total_tokens or usage.input or usage.output):
            continue
        paid = usage.cost.total or cost_of(usage, price_of(answer.provider, answer.model)).total
        tokens, cost = tokens + usage.total_tokens, cost + paid
        counts = (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.total_tokens)
        points.append(Point(moment_ms(entry), *counts, paid, tokens, cost))
    step = -(-len(points) // most) or 1
    return [_joined(points[start : start + step]) for start in range(0, len(points), step)]


def _joined(points: list[Point]) -> Point:
    last = points[-1]
    return Point(
        last.timestamp,
        sum(point.input for point in points),
        sum(point.output for point in points),
        sum(point.cache_read for point in points),
        sum(point.cache_write for point in points),
        sum(point.total_tokens for point in points),
        sum(point.cost for point in points),
        last.cumulative_tokens,
        last.cumulative_cost,
    )
