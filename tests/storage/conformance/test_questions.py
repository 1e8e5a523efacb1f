"""Questions in the ledger: each opens once, ends once, and is acted on once."""

from __future__ import annotations

import msgspec
import pytest

from openclaw.storage.questions import Question, QuestionOption


def question(id: str = "q1", **fields) -> Question:
    options = (QuestionOption("yes", "Yes"), QuestionOption("no", "No"))
    base = Question(id=id, kind="decision", text="Go on?", options=options, created_at=1, expires_at=9)
    return msgspec.structs.replace(base, **fields)


async def test_a_question_comes_back_as_it_was_opened(ledger):
    asked = question(run_id="r1", call_id="c1", session_key="agent:main:main", details={"command": "ls"})
    assert await ledger.question_open(asked)
    assert not await ledger.question_open(question())
    assert await ledger.question("q1") == asked
    assert await ledger.questions(is_open=True) == [asked]
    assert await ledger.questions(run_id="r1") == [asked]
    assert await ledger.questions(run_id="r2") == []
    assert await ledger.question("q2") is None


@pytest.mark.parametrize("state", ["answered", "expired", "withdrawn"])
async def test_a_question_ends_once(ledger, state):
    asked = question()
    await ledger.question_open(asked)
    ended = msgspec.structs.replace(asked, state=state, answer="yes", answered_by="Ann", ended_at=5)
    assert await ledger.question_end(ended)
    assert not await ledger.question_end(msgspec.structs.replace(ended, state="answered", answer="no"))
    assert await ledger.question("q1") == ended
    assert await ledger.questions(is_open=True) == []
    assert await ledger.questions(is_open=False) == [ended]
    assert not await ledger.question_end(question("unknown", state="expired", ended_at=5))


async def test_what_an_answer_allows_begins_once(ledger):
    await ledger.question_open(question())
    assert not await ledger.question_acted("q1")
    assert [await ledger.question_act("q1") for _ in range(3)] == [True, False, False]
    assert await ledger.question_acted("q1")
    assert not await ledger.question_act("unknown")


async def test_questions_are_found_by_the_beginning_of_their_id_and_are_no_jobs(ledger):
    for id in ("abc-1", "abc-2", "abd-1"):
        await ledger.question_open(question(id))
    assert [one.id for one in await ledger.questions(prefix="abc")] == ["abc-1", "abc-2"]
    assert [one.id for one in await ledger.questions(limit=2)] == ["abc-2", "abd-1"]
    assert await ledger.jobs() == []


async def test_ended_questions_are_pruned_and_open_ones_stay(ledger):
    for id in ("old", "open"):
        await ledger.question_open(question(id))
    await ledger.question_end(question("old", state="expired", ended_at=5))
    await ledger.prune(6)
    assert [one.id for one in await ledger.questions()] == ["open"]
