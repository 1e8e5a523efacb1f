"""A sub-agent's reply with labels of its own becomes one announcement, and its claim of a status is dropped."""

from __future__ import annotations

import pytest

from openclaw.teamwork.announcement import announcement_text, read_announcement


@pytest.mark.parametrize(
    ("reply", "result", "notes"),
    [
        ("The sum is 7.", "The sum is 7.", ""),
        ("Status: success\nResult: 7\nNotes: checked twice", "7", "checked twice"),
        ("status: done\nRESULT: 7", "7", ""),
        ("**Status:** ✅ done\n**Result:** 7\n**Notes:** none", "7", "none"),
        ("- **Status**: done\n- **Result**: 7\n- **Notes**: a", "7", "a"),
        ("## Status\nsuccess\n\n## Result\n- a\n- b\n\n## Notes\nc", "- a\n- b", "c"),
        ("Status:\nsuccess\nResult:\na\n\nb", "a\n\nb", ""),
        ("Status:\n\nResult: a", "a", ""),
        ("Done!\n\nStatus: success\nResult: 7", "Done!\n\n7", ""),
        ("Status: success\n\nThe sum is 7.", "The sum is 7.", ""),
        ("The sum is 7.\nNotes: by hand", "The sum is 7.", "by hand"),
        ("I added them.\nResult: 7", "I added them.\n7", ""),
        ("Result: 7\nStatus: success\nNotes: a\nNotes: b", "7", "a\nb"),
        ("Status: success", "", ""),
        ("Status:success\nResult:7", "7", ""),
        # Text that only looks like a label.
        ("The server answered:\nStatus: 404", "The server answered:\nStatus: 404", ""),
        ("Status: ok\nResult: it answered\nStatus: 404", "it answered\nStatus: 404", ""),
        ("Result:\n```\nStatus: 404\nNotes: x\n```", "```\nStatus: 404\nNotes: x\n```", ""),
        ("The result: 7", "The result: 7", ""),
        ("Notes on the status: fine", "Notes on the status: fine", ""),
        ("", "", ""),
    ],
)
def test_a_reply_is_split_at_its_own_labels(reply: str, result: str, notes: str) -> None:
    said = read_announcement(reply)
    assert (said.result, said.notes) == (result, notes)


def test_the_status_is_that_of_the_run_and_its_error_comes_first_in_the_notes() -> None:
    text = announcement_text("error", "Status: success\nNotes: nearly", "the model failed", "Stats: n/a")
    assert text == "Status: error\nResult: (not available)\nNotes: the model failed\nnearly\n\nStats: n/a"
