"""Tokens and money are read from the transcripts, each line once."""

from __future__ import annotations

import json
import math
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.spend.spend import (
    LONGEST_MS,
    Days,
    FileSpend,
    Latency,
    Spending,
    Totals,
    daily_totals,
    is_transcript,
    points_of,
    together,
    total_of,
)
from openclaw.models.base import Price

NOON = 1_794_744_000_000  # 2026-11-15T12:00:00Z
HOUR = 3_600_000


def free_of_charge(provider: str, model: str) -> Price | None:
    return None


def ten_dollars(provider: str, model: str) -> Price | None:
    return Price(input=10, output=10)


def answer(at: int, tokens: int, cost: float = 0, **more: Any) -> dict[str, Any]:
    usage = {"input": tokens, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": tokens}
    usage["cost"] = {"input": cost, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": cost}  # type: ignore[assignment]
    message = {"role": "assistant", "content": [], "provider": "acme", "model": "m", "usage": usage, "timestamp": at}
    return {"type": "message", "timestamp": "2026-11-15T12:00:00.000Z", "message": {**message, **more}}


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)
    return path


async def total(spending: Spending, *places: Path, price_of: Any = free_of_charge) -> Totals:
    return await spending.compute(lambda found: total_of(found.values(), price_of), list(places))


async def test_a_transcript_that_is_archived_while_its_folder_is_read_stops_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", answer(NOON, 100))

    def archive_one(name: str) -> bool:
        if name == "1.jsonl":
            (tmp_path / name).unlink()
        return True

    monkeypatch.setattr("openclaw.agent.spend.spend.is_transcript", archive_one)
    assert (await total(Spending(), tmp_path)).input == 200


async def test_a_file_that_grew_is_read_from_where_it_ended(tmp_path: Path) -> None:
    spending, path = Spending(), write(tmp_path / "s.jsonl", answer(NOON, 100, 0.5))
    assert (await total(spending, path)).total_tokens == 100
    # What was read is not read again: even if it no longer says the same.
    text = path.read_text().replace('"input": 100', '"input": 999')
    with path.open("r+") as file:
        file.write(text)
    write(path, answer(NOON, 11, 0.25))
    found = await total(spending, path)
    assert (found.input, found.total_cost) == (111, 0.75)


async def test_half_a_line_is_counted_once_it_is_whole(tmp_path: Path) -> None:
    spending, path = Spending(), tmp_path / "s.jsonl"
    line = json.dumps(answer(NOON, 100)) + "\n"
    path.write_text(line[:50])
    assert (await total(spending, path)).input == 0
    path.write_text(line)
    assert (await total(spending, path)).input == 100


async def test_a_file_that_was_replaced_by_a_shorter_one_is_read_anew(tmp_path: Path) -> None:
    spending, path = Spending(), write(tmp_path / "s.jsonl", answer(NOON, 100), answer(NOON, 5))
    await total(spending, path)
    other = write(tmp_path / "other", answer(NOON, 7))
    other.replace(path)
    assert (await total(spending, path)).input == 7


async def test_damaged_lines_and_missing_files_count_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", answer(NOON, 3))
    path.write_text('{"type":"message", oops\n' + path.read_text())
    assert (await total(Spending(), path, tmp_path / "none.jsonl")).input == 3


async def test_what_a_fork_inherited_is_counted_where_it_was_spent(tmp_path: Path) -> None:
    header = {"type": "session", "id": "f", "timestamp": "2026-11-15T13:00:00.000Z", "parentSession": "s.jsonl"}
    own = {**answer(NOON + 2 * HOUR, 7), "timestamp": "2026-11-15T14:00:00.000Z"}
    path = write(tmp_path / "f.jsonl", header, answer(NOON, 100), own)
    assert (await total(Spending(), path)).input == 7
    assert [point.input for point in points_of(path.read_bytes().splitlines(), free_of_charge, 10)] == [7]


async def test_ended_sessions_count_and_copies_do_not(tmp_path: Path) -> None:
    for number, name in enumerate(
        ("a.jsonl", "b.jsonl.reset.2026", "c.jsonl.deleted.2026", "a.jsonl.bak.2026", "x.json")
    ):
        write(tmp_path / name, answer(NOON, 10**number))
    assert (await total(Spending(), tmp_path)).input == 111
    assert is_transcript("9f-topic-3.jsonl") and not is_transcript("sessions.json")


async def test_an_unknown_price_is_unknown_and_a_known_one_is_applied(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", answer(NOON, 1_000_000), answer(NOON, 10, 0.5))
    unknown = await total(Spending(), path)
    assert (unknown.total_cost, unknown.missing_cost_entries, unknown.known) == (0.5, 1, True)
    known = await total(Spending(), path, price_of=ten_dollars)
    assert (known.total_cost, known.missing_cost_entries) == (10.5, 0)
    nothing = await total(Spending(), write(tmp_path / "t.jsonl", answer(NOON, 5)))
    assert not nothing.known


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        (UTC, ["2026-11-15"]),
        (ZoneInfo("Pacific/Auckland"), ["2026-11-16"]),
        (ZoneInfo("Asia/Kathmandu"), ["2026-11-15"]),
        (timezone(timedelta(hours=11, minutes=45)), ["2026-11-15", "2026-11-16"]),
    ],
)
async def test_days_are_those_of_the_readers_zone(tmp_path: Path, zone: Any, days: list[str]) -> None:
    path = write(tmp_path / "s.jsonl", answer(NOON + 14 * 60_000, 1), answer(NOON + 15 * 60_000, 2))
    span = Days("2026-11-01", "2026-11-30", zone)
    daily = await Spending().compute(lambda found: daily_totals(found.values(), free_of_charge, span), [path])
    assert list(daily) == days
    assert sum(totals.input for totals in daily.values()) == 3


async def test_messages_tools_and_errors_are_counted(tmp_path: Path) -> None:
    calls = [{"type": "toolCall", "id": "1", "name": "read"}, {"type": "toolCall", "id": "2", "name": "read"}]
    user = {"type": "message", "timestamp": "t", "message": {"role": "user", "content": "hi", "timestamp": NOON}}
    result = {"role": "toolResult", "content": [], "isError": True, "timestamp": NOON}
    failed = answer(NOON, 0, stopReason="error")
    path = write(tmp_path / "s.jsonl", user, answer(NOON, 1, content=calls), {**user, "message": result}, failed)
    found: FileSpend = await Spending().compute(lambda files: files[path], [path])
    (seen,) = found.activity.values()
    assert (seen.user, seen.assistant, seen.tool_calls, seen.tool_results, seen.errors) == (1, 2, 2, 1, 2)
    assert list(found.tools.values()) == [2]


def test_many_calls_are_joined_into_few_points_and_nothing_is_lost(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", *(answer(NOON + n, n, n / 1000) for n in range(1, 1002)))
    points = points_of(path.read_bytes().splitlines(), free_of_charge, 200)
    assert len(points) <= 200
    assert sum(point.total_tokens for point in points) == points[-1].cumulative_tokens == sum(range(1002))
    assert points[-1].timestamp == NOON + 1001


async def test_compressed_sessions_count_and_damaged_ones_do_no_harm(tmp_path: Path) -> None:
    data = "".join(json.dumps(answer(NOON, 5)) + "\n" for _ in range(3)).encode()
    (tmp_path / "old.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(data))
    (tmp_path / "bad.jsonl.zst").write_bytes(b"not compressed at all")
    write(tmp_path / "new.jsonl", answer(NOON, 100))
    spending = Spending()
    for _ in range(2):
        assert (await total(spending, tmp_path)).input == 115


@given(st.lists(st.integers(0, LONGEST_MS), min_size=1, max_size=200), st.integers(0, 200))
def test_sums_and_extremes_are_exact_and_the_percentile_is_near(times: list[int], split: int) -> None:
    parts = [Latency(), Latency()]
    for place, ms in enumerate(times):
        parts[place < split].add(ms)
    whole = together(parts)
    assert whole is not None
    figures = whole.figures()
    assert (figures.count, figures.min_ms, figures.max_ms) == (len(times), min(times), max(times))
    assert figures.avg_ms == round(sum(times) / len(times))
    exact = sorted(times)[math.ceil(len(times) * 0.95) - 1]
    assert exact * 0.99 - 1 <= figures.p95_ms <= exact * 1.11 + 1


def test_what_nobody_waited_for_is_left_out() -> None:
    seen = Latency()
    seen.add(-1)
    seen.add(LONGEST_MS + 1)
    assert together([seen]) is None
