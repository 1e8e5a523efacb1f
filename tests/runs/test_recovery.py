"""The order in which unfinished messages are taken up, and when one is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from openclaw.config.schema import Config
from openclaw.messages import Route
from openclaw.runs.reasons import reason_text
from openclaw.runs.recovery import how_to_resume, unfinished_runs
from openclaw.runs.run import Run
from openclaw.storage.message_ledger import NO_REASON, LedgerRow, MessageBody


def row(number: int, attempts: int = 0, prompt: str | None = "x") -> LedgerRow:
    return LedgerRow(
        id=number,
        run_id=f"r{number}",
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:main",
        session_id="s",
        source="webchat",
        route=Route(),
        body=MessageBody(prompt=prompt),
        state="running" if attempts else "accepted",
        reason=NO_REASON,
        attempts=attempts,
        accepted_at=0,
        started_at=None,
        ended_at=None,
        result=None,
    )


async def found(*rows: LedgerRow, now_ms: int = 0) -> list[Run]:
    async def unfinished(_session: object) -> list[LedgerRow]:
        return list(rows)

    async def entry(*_: str) -> dict[str, Any]:
        return {"queueMode": "collect"}

    runtime = SimpleNamespace(
        stores=SimpleNamespace(ledger=SimpleNamespace(unfinished=unfinished), sessions=SimpleNamespace(get=entry)),
        clock=SimpleNamespace(now_ms=lambda: now_ms),
        config=SimpleNamespace(current=Config()),
    )
    return await unfinished_runs(cast("Any", runtime))


def new_run(attempts: int, *, expired: bool = False) -> Run:
    return Run(row(1, attempts), expired=expired)


async def test_what_had_begun_goes_first_then_the_oldest() -> None:
    assert [one.row.id for one in await found(row(3), row(1), row(2, attempts=1))] == [2, 1, 3]


async def test_what_had_begun_is_not_collected() -> None:
    begun, waited, damaged = await found(row(1, attempts=1), row(2), row(3, prompt=None))
    assert (begun.queue.mode, waited.queue.mode, damaged.queue.mode) == ("followup", "collect", "followup")


@pytest.mark.parametrize(("hours", "old"), [(0, False), (23, False), (24, True), (900, True), (-30, False)])
async def test_after_a_day_without_anyone_working_on_it_a_message_is_too_old(hours: int, old: bool) -> None:
    (one,) = await found(row(1), now_ms=hours * 3_600_000)
    assert (one.expired, one.queue.mode) == (old, "followup" if old else "collect")


@pytest.mark.parametrize(("attempts", "wanted"), [(0, "give up"), (2, "give up"), (3, "give up"), (4, "close")])
async def test_what_is_too_old_is_not_run(attempts: int, wanted: str) -> None:
    choice, reason = how_to_resume(new_run(attempts, expired=True), attempts, 49 * 3_600_000 + 5)
    assert choice == wanted
    assert "49 hours" in reason_text(reason)


@pytest.mark.parametrize(
    ("attempts", "wanted"), [(0, "run"), (1, "run"), (2, "run"), (3, "give up"), (4, "close"), (9, "close")]
)
async def test_a_message_gets_three_tries_then_a_notice_then_only_an_end(attempts: int, wanted: str) -> None:
    choice, reason = how_to_resume(new_run(attempts), attempts, 0)
    assert choice == wanted
    assert choice == "run" or f"stopped {attempts} times" in reason_text(reason)
