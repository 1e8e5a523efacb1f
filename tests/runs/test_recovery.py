"""The order in which unfinished messages are taken up, and when one is given up."""

from __future__ import annotations

import pytest

from openclaw.runs.queue import QueueSettings
from openclaw.runs.recovery import how_to_go_on, in_order, is_too_old, queue_again, why_not
from openclaw.storage.base import NO_REASON, LedgerRow, MessageBody


def row(number: int, attempts: int = 0) -> LedgerRow:
    return LedgerRow(
        id=number,
        run_id=f"r{number}",
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:main",
        session_id="s",
        source="webchat",
        route={},
        body=MessageBody(prompt="x"),
        state="running" if attempts else "accepted",
        reason=NO_REASON,
        attempts=attempts,
        accepted_at=0,
        started_at=None,
        ended_at=None,
        result=None,
    )


def test_what_had_begun_goes_first_then_the_oldest() -> None:
    rows = [row(3), row(1), row(2, attempts=1)]
    assert [one.id for one in in_order(rows)] == [2, 1, 3]


def test_what_had_begun_is_not_collected() -> None:
    collect = QueueSettings(mode="collect")
    assert queue_again(row(1, attempts=1), collect).mode == "followup"
    assert queue_again(row(1), collect) is collect
    assert queue_again(row(1), collect, alone=True).mode == "followup"


@pytest.mark.parametrize(("hours", "old"), [(0, False), (23, False), (24, True), (900, True), (-30, False)])
def test_after_a_day_without_anyone_working_on_it_a_message_is_too_old(hours: int, old: bool) -> None:
    assert is_too_old(row(1), hours * 3_600_000) is old


@pytest.mark.parametrize(("attempts", "wanted"), [(0, "give up"), (2, "give up"), (3, "give up"), (4, "close")])
def test_what_is_too_old_is_not_run(attempts: int, wanted: str) -> None:
    assert how_to_go_on(attempts, expired=True) == wanted
    assert "49 hours" in why_not(row(1, attempts), attempts, 49 * 3_600_000 + 5, expired=True)


@pytest.mark.parametrize(
    ("attempts", "wanted"), [(0, "run"), (1, "run"), (2, "run"), (3, "give up"), (4, "close"), (9, "close")]
)
def test_a_message_gets_three_tries_then_a_notice_then_only_an_end(attempts: int, wanted: str) -> None:
    assert how_to_go_on(attempts) == wanted
