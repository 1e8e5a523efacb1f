"""What model calls used and cost, summed up from the transcripts, and what calls under way may still cost.

``Spending`` reads each transcript in a thread and keeps its sums, so that it reads every line only once. A call is
estimated and its cost reserved before it is made, so that calls of several sessions at once cannot pass a limit
together. When the call has ended, the reservation holds its real usage until that is in the transcript. Reservations
are in memory only: after a restart no call is under way, and the transcripts say what was spent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.window.tokens import CHARS_PER_TOKEN, reported_prompt
from openclaw.config.agents import user_zone
from openclaw.messages import ImageBlock, TextBlock, ThinkingBlock, ToolCall, Usage
from openclaw.models.base import Model, ModelRequest, Price, added, cost_of
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.thinking import budget_and_limit, output_limit
from openclaw.outbound.reply import money
from openclaw.paths import sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.files.transcript_index import SUFFIX, decompressed_blocks
from openclaw.storage.indexed_transcript import TranscriptLines

log = logging.getLogger("openclaw.agent.spend")

DAY_MS = 86_400_000
QUARTER_MS = 15 * 60_000
"""Sums are kept per quarter of an hour, because the days of every time zone consist of whole quarters."""
LONGEST_LINE = 64 * 1024 * 1024
BILL = "model-usage"
"""The custom type of the entries that ``BilledCalls`` writes. They say what a call outside the conversation used."""
_BILL = BILL.encode()
AGENT_BILL = "usage.jsonl"
"""The file that says what an agent used outside its sessions. It is always a file."""
LONGEST_MS = 12 * 3_600_000
"""A longer time between a message and its answer is not counted as latency."""
_STEPS = 10
"""The number of latency buckets per power of e. The times of neighbouring buckets differ by about a tenth."""

T = TypeVar("T")
PriceOf: TypeAlias = Callable[[str, str], Price | None]
"""Returns the price of a model by provider and model id. None means that the price is unknown, not that it is zero."""


class LatencyFigures(msgspec.Struct, rename="camel"):
    """How long people waited for answers, in milliseconds."""

    count: int
    avg_ms: int
    p95_ms: int
    min_ms: int
    max_ms: int


class Latency(msgspec.Struct):
    """How long people waited for answers."""

    count: int = 0
    total_ms: int = 0
    least_ms: int = LONGEST_MS
    most_ms: int = 0
    buckets: dict[int, int] = {}
    """The number of answers by the logarithm of their time, in steps of ``1 / _STEPS``."""

    def add(self, ms: int) -> None:
        if not 0 <= ms <= LONGEST_MS:
            return
        self.count += 1
        self.total_ms += ms
        self.least_ms, self.most_ms = min(self.least_ms, ms), max(self.most_ms, ms)
        bucket = math.ceil(math.log(max(ms, 1)) * _STEPS)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def join(self, other: Latency) -> None:
        self.count += other.count
        self.total_ms += other.total_ms
        self.least_ms, self.most_ms = min(self.least_ms, other.least_ms), max(self.most_ms, other.most_ms)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def percentile_ms(self, share: float) -> int:
        left = math.ceil(self.count * share)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(max(round(math.exp(bucket / _STEPS)), self.least_ms), self.most_ms)
        return self.most_ms

    def figures(self) -> LatencyFigures:
        """Return the figures that people read. Something must have been measured."""
        average = round(self.total_ms / self.count)
        return LatencyFigures(self.count, average, self.percentile_ms(0.95), self.least_ms, self.most_ms)


def together(parts: Iterable[Latency]) -> Latency | None:
    """The latency of all the parts in one record; None if nothing was measured."""
    whole = Latency()
    for part in parts:
        whole.join(part)
    return whole if whole.count else None


class Calls(msgspec.Struct):
    """The calls of one model within one quarter of an hour."""

    priced: Usage | None = None
    """The calls that were stored with a cost. This cost counts, even if the price has changed since."""
    unpriced: Usage | None = None
    """The calls that were stored without a cost. Today's price is used for them, if there is one."""
    unpriced_count: int = 0
    count: int = 0


class Activity(msgspec.Struct):
    """The number of messages, tool calls and errors within one quarter of an hour."""

    first_ms: int = 0
    last_ms: int = 0
    """The times of the first and the last message."""
    user: int = 0
    assistant: int = 0
    tool_calls: int = 0
    tool_results: int = 0
    errors: int = 0

    @property
    def total(self) -> int:
        return self.user + self.assistant

    def add(self, other: Activity) -> None:
        """Adds what happened in another span of time."""
        self.first_ms, self.last_ms = min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms)
        for name in ("user", "assistant", "tool_calls", "tool_results", "errors"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class FileSpend(msgspec.Struct):
    """The sums of one transcript, up to ``offset``."""

    inode: int = 0
    offset: int = 0
    forked_at: str = ""
    """Lines before this ISO time are copies from the parent transcript. They are counted there."""
    calls: dict[tuple[int, str, str], Calls] = {}
    """The keys are quarter, provider and model."""
    activity: dict[int, Activity] = {}
    """The keys are quarters."""
    tools: dict[tuple[int, str], int] = {}
    """The number of calls by quarter and tool."""
    asked_ms: int = 0
    """The time of the user message that has no answer yet; 0 if there is none."""
    latency: dict[int, Latency] = {}
    """The times from the user's message to the end of the answer, by the quarter of the answer."""


class Totals(msgspec.Struct, rename="camel"):
    """Tokens and costs of any number of calls."""

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
    """The number of calls whose price is unknown. Their tokens are counted, their cost is not."""

    def add(self, calls: Calls, price: Price | None) -> None:
        for usage in (calls.priced, calls.unpriced):
            if usage is None:
                continue
            cost = cost_of(usage, price) if usage is calls.unpriced else usage.cost
            self.total_tokens += usage.total_tokens
            self.total_cost += cost.total
            for name in ("input", "output", "cache_read", "cache_write"):
                setattr(self, name, getattr(self, name) + getattr(usage, name))
                setattr(self, f"{name}_cost", getattr(self, f"{name}_cost") + getattr(cost, name))
        if price is None:
            self.missing_cost_entries += calls.unpriced_count

    @property
    def known(self) -> bool:
        """False if ``total_cost`` is 0 only because prices are unknown."""
        return self.total_cost > 0 or not self.missing_cost_entries


# Reading


class _SpendBlock(msgspec.Struct):
    type: str = ""
    name: str = ""


class _SpendMessage(msgspec.Struct, rename="camel"):
    role: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    stop_reason: str = ""
    is_error: bool = False
    timestamp: int = 0
    content: str | list[_SpendBlock] = ""


class _SpendLine(msgspec.Struct, rename="camel"):
    type: str = ""
    timestamp: str = ""
    parent_session: str | None = None
    message: _SpendMessage | None = None
    custom_type: str = ""
    data: _SpendMessage | None = None
    """The bill of a call outside the conversation, if ``custom_type`` is ``BILL``."""

    @property
    def answer(self) -> _SpendMessage | None:
        """The part of the line that may have a ``usage``."""
        if self.type == "custom":
            return self.data if self.custom_type == BILL else None
        return self.message

    @property
    def written_ms(self) -> int:
        """When the line was written; 0 if its timestamp is damaged."""
        try:
            return int(datetime.fromisoformat(self.timestamp).timestamp() * 1000)
        except ValueError:
            return 0

    @property
    def moment_ms(self) -> int:
        """The message's own time, otherwise the time at which the line was written."""
        answer = self.answer
        return answer.timestamp if answer is not None and answer.timestamp else self.written_ms


_line = msgspec.json.Decoder(_SpendLine)


def _read_on(path: Path, before: FileSpend | None) -> FileSpend:
    """Reads the lines after ``before``, or all lines if the file was replaced or has become shorter. Blocking."""
    if path.suffix == SUFFIX:
        return _read_compressed(path, before)
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        spend = before
        if spend is None or spend.inode != stat.st_ino or spend.offset > stat.st_size:
            spend = FileSpend(inode=stat.st_ino)
        if spend.offset == stat.st_size:
            return spend
        file.seek(spend.offset)
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n"):
                break  # The line is still being written. The next call reads it.
            spend.offset += len(line)
            _take(line, spend)
    return spend


def _read_compressed(path: Path, before: FileSpend | None) -> FileSpend:
    """Reads a compressed transcript. It never grows, so that ``offset`` is its whole size."""
    stat = path.stat()
    if before is not None and (before.inode, before.offset) == (stat.st_ino, stat.st_size):
        return before
    spend = FileSpend(inode=stat.st_ino, offset=stat.st_size)
    rest = b""
    for block in decompressed_blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            _take(line, spend)
    return spend


def _take(line: bytes, spend: FileSpend) -> None:
    if b'"message"' not in line and b'"session"' not in line and _BILL not in line:
        return
    try:
        entry = _line.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return  # Other readers report a damaged line. Here it counts as nothing.
    if entry.type == "session" and entry.parent_session:
        spend.forked_at = entry.timestamp
    if entry.answer is None or entry.timestamp < spend.forked_at:
        return
    if entry.type == "message":
        _count_message(entry, entry.answer, spend)
    elif entry.type == "custom":
        _count_usage(entry.answer, entry.moment_ms // QUARTER_MS, spend)


def _count_message(entry: _SpendLine, message: _SpendMessage, spend: FileSpend) -> None:
    quarter = entry.moment_ms // QUARTER_MS
    seen = spend.activity.setdefault(quarter, Activity(first_ms=entry.moment_ms))
    seen.first_ms, seen.last_ms = min(seen.first_ms, entry.moment_ms), max(seen.last_ms, entry.moment_ms)
    match message.role:
        case "user":
            seen.user += 1
            spend.asked_ms = entry.moment_ms
        case "toolResult":
            seen.tool_results += 1
            seen.errors += message.is_error
        case "assistant":
            seen.assistant += 1
            seen.errors += message.stop_reason == "error"
            for block in message.content if isinstance(message.content, list) else ():
                if block.type == "toolCall":
                    seen.tool_calls += 1
                    spend.tools[quarter, block.name] = spend.tools.get((quarter, block.name), 0) + 1
            _count_usage(message, quarter, spend)
            # The wait ends when the line of the answer is written. A message that calls tools is not the answer yet.
            if spend.asked_ms and message.stop_reason not in ("toolUse", "error", "aborted"):
                written = entry.written_ms
                spend.latency.setdefault(written // QUARTER_MS, Latency()).add(written - spend.asked_ms)
                spend.asked_ms = 0
        case _:
            pass


def _count_usage(message: _SpendMessage, quarter: int, spend: FileSpend) -> None:
    usage = message.usage
    if usage is None or not (usage.total_tokens or usage.input or usage.output or usage.cost.total):
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
    """Keeps the sums of every transcript that was read. It reads in a thread, one caller at a time."""

    def __init__(self, lines: TranscriptLines | None = None) -> None:
        """``lines`` reads the transcripts if they are not files."""
        self._lines = lines
        self.reservations = Reservations()
        """What calls under way may cost. It is not in the transcripts yet."""
        self._files: dict[Path, FileSpend] = {}
        self._lock = asyncio.Lock()

    async def compute(self, what: Callable[[dict[Path, FileSpend]], T], places: Sequence[Path], since_ms: int = 0) -> T:
        """Calls ``what`` in a thread with the sums of the transcripts in ``places``, and returns its result.

        A place is a transcript or a folder. From a folder it takes every transcript, also archived ones, that was
        written at or after ``since_ms``. A transcript that does not exist is left out.
        """
        async with self._lock:
            if self._lines is None:
                return await asyncio.to_thread(lambda: what(self._read(_transcripts(places, since_ms))))
            spends = await self._read_lines(self._lines, places, since_ms)
            return await asyncio.to_thread(what, spends)

    async def _read_lines(
        self, source: TranscriptLines, places: Sequence[Path], since_ms: int
    ) -> dict[Path, FileSpend]:
        """Reads the lines that are new. ``inode`` and ``offset`` are the id and the number of the last line read."""
        spends = await asyncio.to_thread(self._read, [folder for folder in places if folder.name == AGENT_BILL])
        for stored in await source.stored(places, since_ms):
            path = Path(stored.path)
            if not is_transcript(path.name):
                continue
            spend = self._files.get(path)
            if spend is None or spend.inode != stored.id:
                spend = FileSpend(inode=stored.id)
            while spend.offset < stored.last_line and (lines := await source.lines_after(stored.id, spend.offset)):
                for number, line in lines:
                    _take(line, spend)
                    spend.offset = number
            spends[path] = self._files[path] = spend
        return spends

    def _read(self, paths: Iterable[Path]) -> dict[Path, FileSpend]:
        spends: dict[Path, FileSpend] = {}
        for path in paths:
            try:
                spends[path] = self._files[path] = _read_on(path, self._files.get(path))
            except FileNotFoundError:
                self._files.pop(path, None)
            except OSError as error:
                log.warning("tokens and cost of %s are not counted: %s", path, error)
        return spends


def _transcripts(places: Sequence[Path], since_ms: int) -> list[Path]:
    paths: dict[Path, None] = {}
    for folder in places:
        if not folder.is_dir():
            paths[folder] = None
            continue
        with os.scandir(folder) as listing:
            for item in listing:
                # Another session may be archived at this moment, and its file renamed.
                with contextlib.suppress(FileNotFoundError):
                    if is_transcript(item.name) and item.is_file() and item.stat().st_mtime_ns // 1_000_000 >= since_ms:
                        paths[Path(item.path)] = None
    return list(paths)


def is_transcript(name: str) -> bool:
    """Whether a file is counted. Archives of ended sessions are. Backup copies are not: they would count twice."""
    _, dot, rest = name.removesuffix(SUFFIX).partition(".jsonl")
    return bool(dot) and (not rest or rest.startswith((".reset.", ".deleted.")))


# Adding up


class Days(msgspec.Struct, frozen=True):
    """The days from ``first`` to ``last``, both included, as ``YYYY-MM-DD``."""

    first: str
    last: str
    zone: tzinfo | None = UTC
    """The zone in which the days begin and end; None is the machine's own."""

    def has(self, quarter: int) -> str | None:
        """The day of this quarter; None if it is not one of these days."""
        day = datetime.fromtimestamp(quarter * QUARTER_MS / 1000, UTC).astimezone(self.zone).date().isoformat()
        return day if self.first <= day <= self.last else None


def total_of(spends: Iterable[FileSpend], price_of: PriceOf, days: Days | None = None) -> Totals:
    totals = Totals()
    for spend in spends:
        for (quarter, provider, model), calls in spend.calls.items():
            if days is None or days.has(quarter):
                totals.add(calls, price_of(provider, model))
    return totals


def daily_totals(spends: Iterable[FileSpend], price_of: PriceOf, days: Days) -> dict[str, Totals]:
    """The totals of each day. Days without a call are left out."""
    daily: dict[str, Totals] = {}
    for spend in spends:
        for (quarter, provider, model), calls in spend.calls.items():
            if day := days.has(quarter):
                daily.setdefault(day, Totals()).add(calls, price_of(provider, model))
    return dict(sorted(daily.items()))


class Point(msgspec.Struct, rename="camel"):
    """One model call, or several successive calls that are shown as one."""

    timestamp: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    total_tokens: int
    cost: float
    cumulative_tokens: int = 0
    cumulative_cost: float = 0


def has_usage(line: bytes) -> bool:
    """Whether ``points_of`` may need the line."""
    return b'"usage"' in line or b'"parentSession"' in line


def points_of(lines: Iterable[bytes], price_of: PriceOf, most: int) -> list[Point]:
    """The calls of one transcript in order. Successive calls are joined if there are more than ``most``."""
    points: list[Point] = []
    forked_at, tokens, cost = "", 0, 0.0
    for raw in lines:
        try:
            entry = _line.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
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
        points.append(Point(entry.moment_ms, *counts, paid, tokens, cost))
    step = -(-len(points) // most) or 1
    return [_joined(points[start : start + step]) for start in range(0, len(points), step)]


def _joined(points: list[Point]) -> Point:
    names = ("input", "output", "cache_read", "cache_write", "total_tokens", "cost")
    sums = {name: sum(getattr(point, name) for point in points) for name in names}
    return msgspec.structs.replace(points[-1], **sums)


# What sessions and agents have spent


def prices(catalogue: Catalogue) -> PriceOf:
    """A function that looks up each model once. The price is None if the catalogue does not know the model."""
    cached: dict[tuple[str, str], Price | None] = {}

    def price_of(provider: str, model: str) -> Price | None:
        if (provider, model) not in cached:
            try:
                cached[provider, model] = catalogue.resolve(f"{provider}/{model}").cost
            except UnknownModel:
                cached[provider, model] = None
        return cached[provider, model]

    return price_of


def last_days(now_ms: int, count: int, zone: tzinfo | None) -> Days:
    """The last ``count`` days, including today."""
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date()
    return Days((today - timedelta(days=count - 1)).isoformat(), today.isoformat(), zone)


def begins_ms(days: Days) -> int:
    """A time before the first of these days in every zone. Older transcripts need not be read."""
    first = datetime.combine(date.fromisoformat(days.first), datetime.min.time(), UTC)
    return int(first.timestamp() * 1000) - DAY_MS


def folders(runtime: Runtime, agents: Sequence[str]) -> list[Path]:
    """The folders that may hold transcripts of these agents, each once."""
    paths = [Path(sessions_dir(str(runtime.state_dir), agent)) for agent in agents]
    bills = [agent_bill(folder) for folder in paths]
    return list(dict.fromkeys([*paths, *(Path(runtime.stores.transcripts.folder(agent)) for agent in agents), *bills]))


def agent_bill(folder: Path) -> Path:
    """The file that says what an agent used outside its sessions. It lies beside the folder of its transcripts."""
    return folder.parent / AGENT_BILL


async def transcript_path(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> Path | None:
    """Where the session's transcript is. None: it has none yet."""
    path = await runtime.stores.transcripts.locate(transcript_ref(session.agent_id, entry)) if entry else None
    return Path(path) if path else None


async def session_totals(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> Totals:
    """What the session has spent so far."""
    path, price_of = await transcript_path(runtime, session, entry), prices(runtime.models.catalogue())
    if path is None:
        return Totals()
    return await runtime.models.spending.compute(lambda found: total_of(found.values(), price_of), [path])


async def spent_by_session_and_agent(
    runtime: Runtime, session: SessionRef, entry: SessionEntry | None
) -> dict[str, Totals]:
    """What the session has spent, and what its agent has spent in days of the user's zone. The keys are labels."""
    price_of, now, zone = prices(runtime.models.catalogue()), runtime.clock.now_ms(), user_zone(runtime.config.current)
    today, month = last_days(now, 1, zone), last_days(now, 30, zone)
    path = await transcript_path(runtime, session, entry)

    def add_up(found: dict[Path, FileSpend]) -> dict[str, Totals]:
        everything = found.values()
        return {
            "Session": total_of([found[path]] if path in found else [], price_of),
            "Today": total_of(everything, price_of, today),
            "Last 30d": total_of(everything, price_of, month),
        }

    places = [*([path] if path else []), *folders(runtime, [session.agent_id])]
    return await runtime.models.spending.compute(add_up, places, begins_ms(month))


def cost_text(totals: Totals) -> str:
    if not totals.known:
        return "n/a"
    return money(totals.total_cost) + (" (partial)" if totals.missing_cost_entries > 0 else "")


# Reservations

EXPECTED_OUTPUT = 4096
"""A call may reserve this many output tokens if they are left, or a quarter of what is left if that is more."""
LEAST_OUTPUT = 256
"""A call that could not afford this many output tokens is not made."""
_MOST_RATIO = 8.0
_FRAME = 64
"""The bytes around a block, a message or a tool."""
_PICTURE = 6400
_REMEMBERED = 500


class Reservation(msgspec.Struct, kw_only=True, eq=False):
    """The cost of one call. First it is an estimate, then the real usage."""

    agent_id: str
    family: str
    """The key of the session that a person talks to. Its sub-agents share its limits."""
    tokens: int
    usd: float


class CallEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a call may use."""

    prompt: int
    """The tokens of the prompt, as the provider will probably count them."""
    counted: int = 0
    """The tokens of the prompt before what the provider reported of earlier calls was taken into account."""
    output: int
    """The most tokens of the answer, with its reasoning."""
    price: Price | None

    @property
    def prompt_usd(self) -> float:
        # A prompt that is new to the provider's cache may cost more than one without a cache.
        return 0.0 if self.price is None else self.prompt * max(self.price.input, self.price.cache_write) / 1e6

    @property
    def output_usd(self) -> float:
        """The price of one token of the answer."""
        return 0.0 if self.price is None else self.price.output / 1e6


class Reservations:
    """The reservations of all sessions, and how far estimates were off."""

    def __init__(self) -> None:
        self._held: dict[int, Reservation] = {}
        self.released = 0
        """The number of reservations that were released so far."""
        self._ratios: OrderedDict[str, float] = OrderedDict()
        """Reported through estimated prompt tokens, by model and session, and by model alone for new sessions."""

    def hold(self, reservation: Reservation) -> None:
        self._held[id(reservation)] = reservation

    def release(self, reservation: Reservation) -> None:
        if self._held.pop(id(reservation), None) is not None:
            self.released += 1

    def held(self) -> list[Reservation]:
        return list(self._held.values())

    def estimate(self, request: ModelRequest, session_key: str) -> CallEstimate:
        model = request.model
        counted = most_prompt(request)
        ratio = self._ratios.get(f"{model.ref} {session_key}") or self._ratios.get(model.ref, 1.0)
        return CallEstimate(
            prompt=math.ceil(counted * ratio), counted=counted, output=most_output(request), price=model.cost
        )

    def learn(self, model: Model, session_key: str, call: CallEstimate, usage: Usage) -> None:
        """Compares an estimate with what the provider counted. Only estimates that were too low are corrected."""
        reported = reported_prompt(usage)
        if reported <= 0 or call.counted <= 0:
            return
        for key in (f"{model.ref} {session_key}", model.ref):
            now = self._ratios.pop(key, 1.0)
            seen = min(max(reported / call.counted, 1.0), _MOST_RATIO)
            # A larger ratio counts at once, a smaller one only slowly.
            self._ratios[key] = seen if seen > now else now + (seen - now) / 8
            if len(self._ratios) > _REMEMBERED:
                self._ratios.popitem(last=False)


def most_prompt(request: ModelRequest) -> int:
    """The tokens of the prompt, estimated a little too high: from the bytes on the wire, four for a token."""
    size = 4 * _FRAME + sum(map(_bytes, (request.system, request.system_suffix, request.turn_facts)))
    size += sum(len(msgspec.json.encode(tool)) + _FRAME for tool in request.tools)
    for message in request.messages:
        size += _FRAME
        for block in [TextBlock(text=message.content)] if isinstance(message.content, str) else message.content:
            match block:
                case TextBlock():
                    size += _FRAME + _bytes(block.text)
                case ThinkingBlock():
                    size += _FRAME + _bytes(block.thinking)
                case ToolCall():
                    size += 2 * _FRAME + len(msgspec.json.encode(block.arguments))
                case ImageBlock():
                    size += _PICTURE
    return -(-size * 21 // (CHARS_PER_TOKEN * 20))


def _bytes(text: str) -> int:
    """The size of a text in a JSON request."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return size + text.count("\n") + text.count('"') + text.count("\\")


def most_output(request: ModelRequest) -> int:
    """The output limit that the request is sent with."""
    model = request.model
    if model.api == "anthropic-messages" and request.thinking != "off":
        return budget_and_limit(request.thinking, model, request.max_tokens, request.output_room)[1]
    return output_limit(model, request.max_tokens, request.output_room)


def sum_of(reservations: Iterable[Reservation]) -> tuple[int, float, int]:
    """The tokens and dollars of the reservations together, and their number."""
    listed = list(reservations)
    return (
        sum(reservation.tokens for reservation in listed),
        sum(reservation.usd for reservation in listed),
        len(listed),
    )
