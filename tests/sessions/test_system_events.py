"""Notes that wait for a session's next turn."""

from datetime import UTC

import pytest

from openclaw.sessions.prompt_prefix import GREETING_MARK, is_internal
from openclaw.sessions.system_events import MAX_PER_SESSION, SessionNotes
from tests.support.clock import HeldClock


async def test_notes_are_taken_by_one_run_as_dated_lines() -> None:
    notes = SessionNotes(HeldClock(), lambda: UTC)
    notes.add("k", "one")
    notes.add("k", "one")
    notes.add("k", "two\nlines")
    notes.add("other", "x")
    assert await notes.take("k", "one run") == [
        "System: [2026-11-15 18:22:19 UTC] one",
        "System: [2026-11-15 18:22:19 UTC] two lines",
    ]
    assert await notes.take("k", "another run") == []
    assert notes.peek("other") == ["x"]


def test_old_notes_give_way() -> None:
    notes = SessionNotes(HeldClock(), lambda: UTC)
    for number in range(MAX_PER_SESSION + 5):
        notes.add("k", str(number))
    assert notes.peek("k")[0] == "5"
    assert len(notes.peek("k")) == MAX_PER_SESSION


def test_a_reminder_outlasts_notes_that_wake_nobody() -> None:
    notes = SessionNotes(HeldClock(), lambda: UTC)
    notes.add("k", "first")
    notes.put("k", "call mother", id="reminder", wake=True)
    for number in range(MAX_PER_SESSION + 5):
        notes.add("k", f"Cron: {number}")
    assert notes.peek("k")[0] == "call mother" and len(notes.peek("k")) == MAX_PER_SESSION
    assert notes.peek("k")[-1] == f"Cron: {MAX_PER_SESSION + 4}"


NOTE = "System: [2026-11-15 18:22:19 UTC] Exec finished"


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        (f"{GREETING_MARK}. Greet the person.", True),
        (f"{NOTE}\n\n{GREETING_MARK}. Greet the person.", True),
        (NOTE, True),
        (f"{NOTE}\nwith its output", True),
        (f"{NOTE}\n{NOTE}\n\nhello", False),
        (f"[Sun 2026-11-15 18:22 UTC] {GREETING_MARK}", False),
        (f"[Sun 2026-11-15 18:22 UTC] {NOTE}", False),
        ("System: [a] hello", False),
        ("hello", False),
        ("", False),
    ],
)
def test_what_nobody_typed_is_told_from_what_somebody_typed(text: str, internal: bool) -> None:
    assert is_internal(text) is internal
