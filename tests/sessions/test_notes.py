"""Notes that wait for a session's next turn."""

from datetime import UTC

from openclaw.sessions.prompt_prefix import MAX_PER_SESSION, SessionNotes
from tests.support.clock import HeldClock


def test_notes_are_drained_once_as_dated_lines() -> None:
    notes = SessionNotes(HeldClock(), lambda: UTC)
    notes.add("k", "one")
    notes.add("k", "one")
    notes.add("k", "two\nlines")
    notes.add("other", "x")
    assert notes.drain("k") == [
        "System: [2026-11-15 18:22:19 UTC] one",
        "System: [2026-11-15 18:22:19 UTC] two lines",
    ]
    assert notes.drain("k") == []
    assert notes.peek("other") == ["x"]


def test_old_notes_give_way() -> None:
    notes = SessionNotes(HeldClock(), lambda: UTC)
    for number in range(MAX_PER_SESSION + 5):
        notes.add("k", str(number))
    assert notes.peek("k")[0] == "5"
    assert len(notes.peek("k")) == MAX_PER_SESSION
