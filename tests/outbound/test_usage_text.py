"""The line of ``/usage`` under a reply."""

from __future__ import annotations

import pytest

from openclaw.messages import Cost, Usage
from openclaw.outbound.reply import usage_footer, with_footer

KEY = "agent:main:main"
USED = Usage(input=1234, output=56, total_tokens=1290, cost=Cost(total=0.02))


@pytest.mark.parametrize(
    ("mode", "priced", "line"),
    [
        ("tokens", False, "Usage: 1.2k in / 56 out"),
        ("tokens", True, "Usage: 1.2k in / 56 out · est $0.02"),
        ("full", True, f"Usage: 1.2k in / 56 out · est $0.02 · session {KEY}"),
        ("on", False, "Usage: 1.2k in / 56 out"),
        ("off", True, ""),
        (None, True, ""),
    ],
)
def test_the_footer_says_what_was_asked_for(mode: str | None, priced: bool, line: str) -> None:
    assert usage_footer(mode, USED, KEY, priced=priced) == line


@pytest.mark.parametrize("usage", [None, Usage()])
def test_nothing_counted_nothing_said(usage: Usage | None) -> None:
    assert usage_footer("full", usage, KEY, priced=True) == ""


def test_silence_gets_no_footer() -> None:
    assert with_footer("", "Usage: 1 in / 2 out") == ""
    assert with_footer("Hello.\n", "Usage: 1 in / 2 out") == "Hello.\n\nUsage: 1 in / 2 out"
