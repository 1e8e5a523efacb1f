"""When a session is left in peace, and what a person reads about a compaction."""

from __future__ import annotations

import pytest

from openclaw.agent.compaction.compaction import CompactionOutcome
from openclaw.agent.window.window import Pin
from openclaw.inbound.commands.context import compacted_line, pins_text
from openclaw.runs.compactions import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, SESSIONS_REMEMBERED, CoolDown

FULL = 45_000
WINDOW = 60_000


def test_the_next_turn_tries_again_and_further_failures_make_a_session_rest_longer_each_time() -> None:
    pause, now = CoolDown(), 1_000_000
    waited: list[int] = []
    for _ in range(9):
        pause.failed("a", now, FULL, WINDOW)
        start = now
        while pause.resting("a", now, FULL):
            now += 30_000
        waited.append(now - start)
    assert waited[:4] == [0, FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
    assert max(waited) == LONGEST_PAUSE_MS
    assert not pause.resting("b", now, FULL)


def test_a_pause_ends_early_when_half_of_the_room_is_gone() -> None:
    pause = CoolDown()
    pause.failed("a", 0, FULL, WINDOW)
    pause.failed("a", 0, FULL, WINDOW)
    assert pause.resting("a", 1, 52_000)
    assert not pause.resting("a", 1, 52_500)
    pause.failed("a", 1, 61_000, WINDOW)
    assert pause.resting("a", 2, 61_000) and not pause.resting("a", 2, 61_001)


def test_room_ends_the_pause_after_failures_and_only_a_request_ends_that_after_an_undo() -> None:
    pause = CoolDown()
    pause.failed("a", 0, FULL, WINDOW)
    pause.failed("a", 0, FULL, WINDOW)
    pause.has_room("a")
    assert not pause.resting("a", 0, FULL)
    pause.failed("a", 0, FULL, WINDOW)
    assert not pause.resting("a", 0, FULL)
    pause.undone("a", 0)
    pause.has_room("a")
    assert pause.resting("a", LONGEST_PAUSE_MS - 1, 2 * WINDOW)
    pause.end("a")
    assert not pause.resting("a", 0, FULL)


def test_only_so_many_sessions_are_remembered() -> None:
    pause = CoolDown()
    for number in range(SESSIONS_REMEMBERED + 5):
        pause.undone(str(number), 0)
    assert not pause.resting("0", 1, FULL)
    assert pause.resting(str(SESSIONS_REMEMBERED), 1, FULL)


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (CompactionOutcome(status="compacted", tokens_before=15_500, tokens_after=1234), "Compacted (16k → 1.2k)"),
        (CompactionOutcome(status="compacted", tokens_before=900, tokens_after=1000), "Compacted (900 before)"),
        (CompactionOutcome(status="compacted"), "Compacted"),
        (CompactionOutcome(status="skipped", reason="Already compacted"), "Compaction skipped: Already compacted"),
        (CompactionOutcome(status="failed", reason="no answer"), "Compaction failed: no answer"),
    ],
)
def test_compact_answers_with_what_came_of_it_and_how_full_the_window_is(outcome: CompactionOutcome, line: str) -> None:
    assert compacted_line(outcome, "Context 1.2k/200k (1%)") == f"⚙️ {line} • Context 1.2k/200k (1%)"


def test_pins_are_listed_with_the_numbers_that_take_them_off() -> None:
    assert pins_text([Pin("a", "one"), Pin("b", "two\nlines")]) == "📌 Pinned:\n1. one\n2. two lines"
    assert "Nothing is pinned" in pins_text([])
