"""Compaction on a real transcript: what is added, what is kept, what is refused, and what never changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.agent.compaction.compaction import (
    ALREADY,
    BUSY,
    CANCELLED,
    TOO_SMALL,
    BeforeCompact,
    BorrowedLock,
    Cancel,
    Compacted,
    CompactionJob,
    CompactionResult,
    CompactionSettings,
    Cut,
    Leaving,
    NothingToDo,
    compact,
    compaction_settings,
    find_cut,
    make_plan,
)
from openclaw.agent.compaction.summary import NO_HISTORY, SPLIT_SEPARATOR, WITHOUT_MODEL, part_share
from openclaw.agent.window.window import PinRefused, add_pin, pins_of, remove_pin
from openclaw.config.load import build
from openclaw.events import CompactionEnded, CompactionStarted
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolResultMessage, UserMessage, user_text
from openclaw.models.base import ModelError
from openclaw.runs.compactions import preview, rewind, undo
from tests.agent.scripted import call, says
from tests.agent.stored_session import HANGS, StoredSession, Summaries

GOOD = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[StoredSession]:
    async with StoredSession(tmp_path, Summaries(GOOD)) as made:
        yield made


async def test_the_older_part_becomes_one_added_entry_and_no_stored_byte_changes(session: StoredSession) -> None:
    await session.turns(20)
    before = session.stored()
    outcome = await compact(session.job())
    assert outcome.status == "compacted"
    assert session.stored().startswith(before)
    (added,) = session.lines()[len(before.splitlines()) :]
    assert added["type"] == "compaction"
    assert added["summary"].startswith(GOOD)
    assert added["tokensBefore"] == outcome.tokens_before > outcome.tokens_after
    context = session.transcript.context()
    assert context.entry_ids[1] == added["firstKeptEntryId"]
    assert GOOD in user_text(context.messages[0])  # type: ignore[arg-type]
    assert "turn 19 " in session.seen()
    assert "turn 0 " not in session.seen()


async def test_the_session_counts_appended_compactions_and_shows_the_new_size(session: StoredSession) -> None:
    await session.turns(20)
    outcome = await compact(session.job())
    entry = await session.entry()
    assert (entry.get("compactionCount"), entry.get("totalTokens")) == (1, outcome.tokens_after)
    assert "inputTokens" not in entry


async def test_the_summary_is_asked_for_with_eight_tenths_of_the_reserve_and_much_thought(
    session: StoredSession,
) -> None:
    await session.user("first " + "x" * 400)
    await session.answer("one", 300)
    kept = await session.user("second " + "y" * 400)
    await session.answer("two", 990)
    outcome = await compact(session.job(window=1000, reserve=100, keep=100, reason="manual"))
    assert (outcome.status, outcome.tokens_before) == ("compacted", 990)
    assert session.transcript.context().entry_ids[1] == kept
    (request,) = session.summaries.requests
    assert (request.max_tokens, request.thinking, request.tools) == (80, "high", [])
    assert session.summaries.asked().startswith("<conversation>\n[User]: first")


async def test_what_an_earlier_compaction_had_kept_is_part_of_the_next_summary(session: StoredSession) -> None:
    await session.turns(20, name="early")
    await compact(session.job())
    kept_then = session.seen()
    assert "early 19 " in kept_then
    await session.turns(20, name="late")
    session.summaries.answers = [GOOD.replace("shed", "barn")]
    await compact(session.job())
    asked = session.summaries.asked()
    assert "early 19 " in asked
    assert "late 0 " in asked
    assert f"<previous-summary>\n{GOOD}" in asked
    assert "barn" in session.seen()


async def test_files_read_and_changed_are_listed_and_handed_on(session: StoredSession) -> None:
    for name, path in (("read", "b"), ("read", "a"), ("read", "c"), ("write", "c"), ("edit", "d")):
        await session.user(f"{name} {path}")
        await session.say(says("", call(path, name, path=path)))
        await session.say(ToolResultMessage(tool_call_id=path, tool_name=name, content=[]))
    await session.turns(20)
    await compact(session.job())
    details = session.lines()[-1]["details"]
    assert (details["readFiles"], details["modifiedFiles"]) == (["a", "b"], ["c", "d"])
    assert "<read-files>\na\nb\n</read-files>" in session.seen()
    await session.turns(20)
    await compact(session.job())
    assert session.lines()[-1]["details"]["modifiedFiles"] == ["c", "d"]
    assert session.seen().count("<modified-files>") == 1


async def test_a_turn_too_long_to_keep_is_cut_and_its_beginning_summarised_by_itself(session: StoredSession) -> None:
    await session.user("please read everything")
    for number in range(10):
        await session.say(says(f"step {number}", call(f"c{number}", "read", path=f"f{number}")))
        long = [{"type": "text", "text": "line " * 400}]
        await session.transcript.append(
            {
                "type": "message",
                "message": {
                    "role": "toolResult",
                    "toolCallId": f"c{number}",
                    "toolName": "read",
                    "content": long,
                    "isError": False,
                    "timestamp": 1,
                },
            }
        )
    await session.answer("all read")
    session.summaries.answers = ["## Original Request\nRead everything.\n## Early Progress\n- half of it"]
    outcome = await compact(session.job())
    assert outcome.status == "compacted"
    summary = session.lines()[-1]["summary"]
    assert summary.startswith(NO_HISTORY + SPLIT_SEPARATOR + "## Original Request")
    (request,) = session.summaries.requests
    assert (request.max_tokens, request.thinking) == (1000, "off")
    first_kept = session.transcript.context().messages[1]
    assert not isinstance(first_kept, ToolResultMessage)


async def test_a_small_session_and_one_just_compacted_are_left_alone(session: StoredSession) -> None:
    await session.turns(1)
    assert (await compact(session.job(reason="manual"))).reason == TOO_SMALL
    await session.turns(20)
    await compact(session.job())
    second = await compact(session.job(reason="manual"))
    assert (second.status, second.reason) == ("skipped", ALREADY)
    assert len(session.summaries.requests) == 1, "no model is asked in vain"


async def test_instructions_reach_the_summariser(session: StoredSession) -> None:
    await session.turns(20)
    await compact(session.job(instructions="keep the prices", reason="manual"))
    assert "Additional focus: keep the prices" in session.summaries.asked()


async def test_start_and_end_are_told(session: StoredSession) -> None:
    await session.turns(20)
    outcome = await compact(session.job(reason="overflow", urgent=True, will_retry=True))
    start, end = session.events
    assert start == CompactionStarted("overflow")
    assert isinstance(end, CompactionEnded)
    assert (end.entry_id, end.will_retry, end.error, end.count) == (outcome.entry_id, True, None, 1)


# A summariser that fails

FAILURES: list[Any] = [
    ModelError("overloaded", kind="overloaded"),
    HANGS,
    "",
    "much too long " * 40_000,
]


@pytest.mark.parametrize("failure", FAILURES, ids=["error", "hang", "empty", "longer"])
async def test_a_failing_summariser_changes_nothing_while_there_is_still_room(
    tmp_path: Path, failure: str | ModelError
) -> None:
    async with StoredSession(tmp_path, Summaries(failure)) as session:
        await session.turns(20)
        before = session.stored()
        outcome = await compact(session.job(timeout_s=0.05))
        assert outcome.status == "failed"
        assert session.stored() == before
        assert (await session.entry()).get("compactionCount") is None
        end = session.events[-1]
        assert isinstance(end, CompactionEnded)
        assert (end.error or "").startswith("Auto-compaction failed: ")
        assert 1 <= len(session.summaries.requests) <= 3


@pytest.mark.parametrize("failure", FAILURES, ids=["error", "hang", "empty", "longer"])
async def test_when_the_prompt_must_shrink_a_failing_summariser_cannot_prevent_it(
    tmp_path: Path, failure: str | ModelError
) -> None:
    async with StoredSession(tmp_path, Summaries(failure)) as session:
        await session.user("The deploy token is AK-4471.")
        await session.turns(200)  # Ten times the window.
        job = session.job(urgent=True, timeout_s=0.05)
        outcome = await compact(job)
        assert (outcome.status, outcome.method) == ("compacted", "trim")
        assert outcome.calls <= 3
        assert job.budget.size(session.transcript.context().messages) <= job.settings.limit
        assert WITHOUT_MODEL in session.seen()
        assert "AK-4471" in session.seen()


async def test_a_summary_of_a_word_or_two_is_kept_beside_what_was_said(tmp_path: Path) -> None:
    async with StoredSession(tmp_path, Summaries("Nothing.")) as session:
        await session.user("The deploy token is AK-4471.")
        await session.turns(20)
        outcome = await compact(session.job())
        assert (outcome.status, outcome.method, outcome.calls) == ("compacted", "summary", 1)
        summary = session.lines()[-1]["summary"]
        assert summary.startswith("Nothing.\n\n## What was said\n") and "AK-4471" in summary


# Safeguard


def safeguard(session: StoredSession, **more: Any) -> CompactionJob:
    settings = CompactionSettings(window=10_000, reserve=2000, keep=1000, safeguard=True, most_kept=6000)
    return session.job(settings=settings, **more)


@pytest.mark.parametrize("failure", FAILURES, ids=["error", "hang", "empty", "longer"])
async def test_with_safeguard_no_failing_summariser_prevents_a_compaction(
    tmp_path: Path, failure: str | ModelError
) -> None:
    async with StoredSession(tmp_path, Summaries(failure)) as session:
        await session.user("The deploy token is AK-4471.")
        await session.turns(30)
        outcome = await compact(safeguard(session, timeout_s=0.05))
        assert (outcome.status, outcome.method) == ("compacted", "trim")
        assert outcome.calls <= 3 and "AK-4471" in session.seen()


async def test_with_safeguard_failed_tools_are_listed(session: StoredSession) -> None:
    for number in range(10):
        await session.user(f"try {number}")
        await session.say(says("", call(f"c{number}", "exec", command="make")))
        failed = {"toolCallId": f"c{number}", "toolName": "exec", "isError": True, "details": {"exitCode": number}}
        content = [{"type": "text", "text": f"no  rule\nto make {number}" + " x" * 200}]
        message = {"role": "toolResult", "content": content, **failed, "timestamp": 1}
        await session.transcript.append({"type": "message", "message": message})
    await session.turns(20)
    await compact(safeguard(session))
    summary = session.lines()[-1]["summary"]
    lines = summary[summary.index("## Tool Failures") :].splitlines()[1:10]
    assert lines[0].startswith("- exec (exitCode=0): no rule to make 0 x x") and lines[0].endswith("…")
    assert len(lines[0]) <= len("- exec (exitCode=0): ") + 240
    assert lines[8] == "- …and 2 more"


async def test_with_safeguard_one_large_message_is_not_kept_beyond_its_share(session: StoredSession) -> None:
    await session.turns(10)
    await session.user("look at this: " + "x" * 30_000)
    await session.answer("I see")
    assert (await make_plan(session.job())).kept_tokens > 6000
    assert (await make_plan(safeguard(session))).kept_tokens <= 6000


async def test_with_safeguard_a_history_is_told_in_smaller_parts_where_that_is_enough(session: StoredSession) -> None:
    await session.turns(28)
    assert (await compact(session.job())).calls == 1
    await session.turns(28)
    assert (await compact(safeguard(session))).calls == 3 - 1


@pytest.mark.parametrize(("tokens", "share"), [(100, 0.4), (1000, 0.4 - 0.24), (5000, 0.15)])
def test_the_larger_the_messages_the_smaller_the_parts(tokens: int, share: float) -> None:
    assert part_share(tokens * 3, 3, 10_000) == pytest.approx(share)


async def test_a_history_of_ten_windows_is_summarised_in_at_most_three_pieces(session: StoredSession) -> None:
    await session.turns(200)
    job = session.job()
    outcome = await compact(job)
    assert (outcome.status, outcome.calls) == ("compacted", 3)
    for request in session.summaries.requests:
        assert job.budget.size(request.messages) <= 10_000
    assert "turn 0 " in session.summaries.asked(0)
    assert f"<previous-summary>\n{GOOD}" in session.summaries.asked(2)
    assert job.budget.size(session.transcript.context().messages) <= job.settings.limit


async def test_one_message_larger_than_the_window_does_not_break_the_summary_request(session: StoredSession) -> None:
    await session.user("huge " + "x" * 200_000)
    await session.answer("I see")
    await session.turns(5)
    job = session.job()
    outcome = await compact(job)
    assert outcome.status == "compacted"
    assert all(job.budget.size(request.messages) <= 10_000 for request in session.summaries.requests)


async def test_a_summary_that_lost_most_of_what_matters_is_refused_and_asked_for_again(session: StoredSession) -> None:
    for ticket in ("OPS-1", "OPS-2", "OPS-3", "OPS-4"):
        await session.user(f"Please look after ticket {ticket} before Friday evening.")
        await session.answer("I will.")
    await session.turns(20)
    better = GOOD + "\n" + "\n".join(f"- ticket OPS-{n}: look after before Friday evening, please" for n in range(1, 5))
    session.summaries.answers = [GOOD, better]
    outcome = await compact(session.job())
    assert (outcome.status, outcome.calls) == ("compacted", 2)
    assert "OPS-3" in session.summaries.asked(1)
    assert "refused because it leaves out" in session.summaries.asked(1)
    assert session.lines()[-1]["summary"].startswith(better)


async def test_lines_the_summary_lost_are_carried_over_word_for_word(session: StoredSession) -> None:
    await session.user("Remember that the alarm code is 44719-B and nobody else may know.")
    await session.answer("Noted.")
    await session.turns(20)
    await compact(session.job())
    assert "- Remember that the alarm code is 44719-B and nobody else may know." in session.seen()


async def test_a_model_too_small_to_write_summaries_is_not_asked(session: StoredSession) -> None:
    await session.user("Remember that the alarm code is 44719-B.")
    await session.turns(20)
    job = session.job()
    job.model = msgspec.structs.replace(job.model, tools=False)
    outcome = await compact(job)
    assert (outcome.status, outcome.method, outcome.calls) == ("compacted", "trim", 0)
    assert "44719-B" in session.seen()
    assert not session.summaries.requests


async def test_nothing_is_appended_that_would_not_make_the_prompt_smaller(session: StoredSession) -> None:
    session.summaries.answers = ["a summary as long as all of it " * 10]
    await session.user("short question")
    await session.answer("short answer")
    await session.turns(3, tokens=150)
    before = session.stored()
    outcome = await compact(session.job(keep=1100, reason="manual"))
    assert outcome.status in ("failed", "skipped")
    assert session.stored() == before


async def test_messages_said_while_the_summary_is_written_are_kept(session: StoredSession) -> None:
    await session.turns(20)

    def meanwhile(request: Any) -> str:
        session.summaries.answers = [GOOD]
        return GOOD

    async def exclusively(work: Any) -> None:
        await session.user("said meanwhile")
        await session.answer("answered meanwhile")
        await work()

    session.summaries.answers = [meanwhile]
    outcome = await compact(session.job(exclusively=BorrowedLock(exclusively)))
    assert outcome.status == "compacted"
    assert session.seen().endswith("said meanwhile\nanswered meanwhile")


async def test_a_summary_for_another_course_of_the_conversation_is_thrown_away(session: StoredSession) -> None:
    await session.turns(20)
    first = session.transcript.tree()[0][0]

    async def exclusively(work: Any) -> None:
        await session.transcript.branch(first)
        await session.user("another way")
        await work()

    outcome = await compact(session.job(exclusively=BorrowedLock(exclusively)))
    assert (outcome.status, outcome.entry_id) == ("failed", None)


# Facts that must reach the model, however often the conversation is condensed


def _forgetful(request: Any) -> str:
    """A summariser that keeps the headings and hardly anything else."""
    return "## Goal\nHelp the person with many things over a long time.\n## Progress\n### Done\n- [x] this and that"


@pytest.mark.parametrize("passes", [1, 3, 10])
async def test_planted_facts_reach_the_model_after_many_compactions(
    tmp_path: Path, passes: int, record_property: Any
) -> None:
    facts = [
        "Remember that the alarm code is 44719-B.",
        "The staging server is at 10.20.30.41:8443 and only reachable by VPN.",
        "Ticket OPS-1182 blocks the release until Marta signs it.",
        "We decided to use PostgreSQL because of the reporting needs.",
        "My name is Ilse Brandt and I prefer short answers.",
        "The contract lies in docs/contracts/acme-2026.md for review.",
        "- [ ] send the invoice to billing@acme.example before Monday",
        "Commit 9f2c1ab broke the import of the price list.",
    ]
    async with StoredSession(tmp_path, Summaries(_forgetful)) as session:
        for fact in facts:
            await session.user(fact)
            await session.answer("Understood.")
        for number in range(passes):
            await session.turns(20, name=f"round {number}")
            assert (await compact(session.job())).status == "compacted"
        seen = session.seen()
        kept = [fact for fact in facts if fact.removeprefix("- [ ] ") in seen]
        record_property("facts kept", f"{len(kept)}/{len(facts)} after {passes}")
        assert kept == facts
        assert session.job().budget.size(session.transcript.context().messages) < 8000


async def test_every_pass_leaves_a_smaller_prompt_that_fits(session: StoredSession) -> None:
    job = session.job()
    for number in range(5):
        await session.turns(20, name=f"round {number}")
        before = job.budget.size(session.transcript.context().messages)
        await compact(job)
        assert job.budget.size(session.transcript.context().messages) < min(before, job.settings.limit)


# Hooks


async def test_an_extension_may_refuse_or_write_the_summary_itself(session: StoredSession) -> None:
    await session.turns(20)
    told: list[Compacted] = []
    answers: list[Any] = [Cancel(), None]

    async def before(about: BeforeCompact) -> Any:
        answer = answers.pop(0)
        own = CompactionResult(summary="by the extension", first_kept_entry_id=about.first_kept_entry_id)
        return answer if answer is not None else own

    async def after(what: Compacted) -> None:
        told.append(what)

    session.runtime.prompting.hooks.session_before_compact.append(before)
    session.runtime.prompting.hooks.session_compact.append(after)
    assert (await compact(session.job())).reason == CANCELLED
    outcome = await compact(session.job())
    assert (outcome.method, session.lines()[-1]["fromHook"]) == ("hook", True)
    assert [(what.entry_id, what.from_hook) for what in told] == [(outcome.entry_id, True)]
    assert not session.summaries.requests


async def test_a_broken_extension_does_not_stop_the_compaction(session: StoredSession) -> None:
    async def broken(about: Any) -> None:
        raise RuntimeError("broken")

    for hooks in (
        session.runtime.prompting.hooks.session_before_compact,
        session.runtime.prompting.hooks.before_content_leaves,
    ):
        hooks.append(broken)
    await session.turns(20)
    assert (await compact(session.job())).status == "compacted"


async def test_the_moment_before_content_leaves_comes_once_and_may_write(session: StoredSession) -> None:
    moments: list[Leaving] = []

    async def flush(leaving: Leaving) -> None:
        moments.append(leaving)
        await session.answer("wrote it down")
        await session.runtime.prompting.hooks.content_leaves(
            leaving
        )  # A flush that fills the window must not flush again.

    session.runtime.prompting.hooks.before_content_leaves.append(flush)
    assert (await compact(session.job())).status == "skipped"
    assert not moments, "nothing leaves a conversation that is small"
    await session.turns(20)
    assert (await compact(session.job())).status == "compacted"
    assert len(moments) == 1
    assert "wrote it down" in session.seen()


# Pins

ROOM = 1000


async def test_pinned_text_survives_every_compaction_word_for_word(session: StoredSession) -> None:
    pinned = "Never deploy on Fridays.\n  Not even small things: ☂"
    await add_pin(session.transcript, pinned, ROOM)
    for _ in range(3):
        await session.turns(20)
        await compact(session.job())
        assert session.seen().count(pinned) == 1


async def test_a_pin_taken_off_leaves_with_the_next_compaction(session: StoredSession) -> None:
    await add_pin(session.transcript, "keep me", ROOM)
    await add_pin(session.transcript, "and me", ROOM)
    assert (await add_pin(session.transcript, "keep me", ROOM)).id == (await pins_of(session.transcript))[0].id
    await session.turns(20)
    await compact(session.job())
    await remove_pin(session.transcript, 1)
    assert [pin.text for pin in await pins_of(session.transcript)] == ["and me"]
    await session.turns(20)
    await compact(session.job())
    assert "<pinned>\nand me\n</pinned>" in session.seen()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("  ", "Nothing to pin"),
        ("x" * 3001, r"about 1001 tokens \(3001 characters\).*room for about 1000 more \(some 3000 characters\)"),
        ("☂" * 1001, "too long"),
    ],
)
async def test_what_cannot_be_pinned_is_said(session: StoredSession, text: str, fault: str) -> None:
    with pytest.raises(PinRefused, match=fault):
        await add_pin(session.transcript, text, ROOM)


async def test_pins_share_the_room_that_the_window_has_for_them(session: StoredSession) -> None:
    await add_pin(session.transcript, "x" * 2400, ROOM)
    with pytest.raises(PinRefused, match=r"room for about 200 more .*1 pinned texts take 800 of it; .*/unpin"):
        await add_pin(session.transcript, "y" * 2400, ROOM)
    await add_pin(session.transcript, "y" * 600, ROOM)


# The turn that waits for its answer


async def test_a_turn_without_an_answer_is_kept_whole_however_long_it_is(session: StoredSession) -> None:
    await session.turns(5)
    question = await session.user("read it all")
    for number in range(6):
        await session.say(says("", call(f"c{number}", "read", path="x")))
        output = [TextBlock(text="line " * 3000)]
        await session.say(ToolResultMessage(tool_call_id=f"c{number}", tool_name="read", content=list(output)))
    await session.say(AssistantMessage(content=[], stop_reason="error", error_message="prompt is too long"))
    for urgent in (True, False):
        plan = await make_plan(session.job(urgent=urgent, keep=10))
        assert plan.first_kept_id == question
        assert not plan.task.prefix


async def test_what_the_provider_counts_decides_how_much_is_kept(session: StoredSession) -> None:
    for number in range(9):
        await session.user(f"message {number} " + "汉" * 300)
        await session.answer("好" * 30, total=0)
    await session.user("the last " + "汉" * 300)
    last = await session.answer("好" * 30, total=9000)
    plan = await make_plan(session.job(keep=4000))
    assert 0 < plan.kept_tokens < 4000
    assert plan.first_kept_id != last
    with pytest.raises(NothingToDo):
        await make_plan(session.job(keep=4000, settings=CompactionSettings(window=90_000, reserve=2000, keep=4000)))


async def test_a_recovery_that_has_used_up_its_calls_asks_no_model(session: StoredSession) -> None:
    await session.turns(20)
    outcome = await compact(session.job(urgent=True, most_calls=0))
    assert (outcome.status, outcome.method, outcome.calls) == ("compacted", "trim", 0)
    assert not session.summaries.requests


async def test_with_one_call_left_the_beginning_of_a_turn_is_quoted_and_not_summarised(session: StoredSession) -> None:
    await session.turns(5)
    await session.user("read everything")
    for number in range(10):
        await session.say(says(f"step {number}", call(f"c{number}", "read", path="x")))
        output = [TextBlock(text="line " * 400)]
        await session.say(ToolResultMessage(tool_call_id=f"c{number}", tool_name="read", content=list(output)))
    await session.answer("all read")
    outcome = await compact(session.job(most_calls=1))
    assert (outcome.status, outcome.calls) == ("compacted", 1)
    assert "read everything" in session.lines()[-1]["summary"]


async def test_a_session_has_one_compaction_at_a_time(session: StoredSession) -> None:
    await session.turns(20)
    session.summaries.answers = [HANGS]
    beside = asyncio.create_task(compact(session.job()))
    while not session.summaries.requests:
        await asyncio.sleep(0)
    assert (await compact(session.job(reason="manual"))).reason == BUSY
    within = await compact(session.job(urgent=True, in_run=True, timeout_s=0))
    assert (within.status, within.method) == ("compacted", "trim"), "the wait was long enough"
    assert beside.cancelled()
    assert (await session.entry()).get("compactionCount") == 1


async def _beside_a_run(session: StoredSession, answer: Any) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """A compaction whose session is locked by a run. It asks for a summary that comes when the event is set."""
    hold = asyncio.Event()

    async def later(request: Any) -> str:
        await hold.wait()
        if isinstance(answer, ModelError):
            raise answer
        return answer

    async def locked(work: Any) -> None:
        await asyncio.Event().wait()

    session.summaries.answers = [later, GOOD]
    beside = asyncio.create_task(compact(session.job(exclusively=BorrowedLock(locked))))
    while not session.summaries.requests:
        await asyncio.sleep(0)
    return beside, hold


async def test_a_run_that_needs_room_waits_for_the_summary_under_way(session: StoredSession) -> None:
    await session.turns(20)
    beside, hold = await _beside_a_run(session, GOOD)
    await session.user("a question for which there is no room")
    within = asyncio.create_task(compact(session.job(urgent=True, in_run=True)))
    await asyncio.sleep(0)
    hold.set()
    assert (await within).status == "compacted" and await beside == await within
    assert len(session.summaries.requests) == 1
    assert session.seen().endswith("a question for which there is no room") and "Build the shed." in session.seen()


async def test_a_run_whose_summary_under_way_fails_makes_its_own_with_the_calls_left(session: StoredSession) -> None:
    await session.turns(20)
    beside, hold = await _beside_a_run(session, "")
    session.summaries.answers = ["", "", GOOD]
    within = asyncio.create_task(compact(session.job(urgent=True, in_run=True)))
    await asyncio.sleep(0)
    hold.set()
    outcome = await within
    assert (await beside).status == "failed"
    assert (outcome.status, outcome.method, outcome.calls) == ("compacted", "trim", 3)
    assert len(session.summaries.requests) == 3, "three calls together"


async def test_a_summary_that_leaves_too_little_room_is_followed_by_another(session: StoredSession) -> None:
    await session.turns(20)
    beside, hold = await _beside_a_run(session, GOOD)
    await session.turns(50, name="more")
    within = asyncio.create_task(compact(session.job(urgent=True, in_run=True)))
    await asyncio.sleep(0)
    hold.set()
    assert (await within).status == "compacted" and (await beside).status == "compacted"
    assert (await session.entry()).get("compactionCount") == 2
    assert (await within).calls == len(session.summaries.requests) == 2


async def test_a_run_that_is_stopped_leaves_the_summary_to_be_finished(session: StoredSession) -> None:
    await session.turns(20)
    beside, hold = await _beside_a_run(session, GOOD)
    abort = AbortSignal()
    within = asyncio.create_task(compact(session.job(urgent=True, in_run=True, waiting=abort.waiting)))
    await asyncio.sleep(0)
    abort.abort("stop")
    with pytest.raises(Aborted):
        await within
    assert not beside.done()
    hold.set()
    assert (await compact(session.job(urgent=True, in_run=True))).status == "compacted", "the next run waits again"
    assert (await beside).status == "compacted" and len(session.summaries.requests) == 1


# Preview and undo


async def test_a_preview_tells_what_would_happen_and_asks_no_model(session: StoredSession) -> None:
    assert await preview(session.job(reason="manual")) == TOO_SMALL
    await add_pin(session.transcript, "Never on Fridays.", ROOM)
    await session.turns(20)
    before = session.stored()
    text = await preview(session.job(reason="manual"))
    assert "would condense" in text
    assert "Never on Fridays." in text
    assert session.stored() == before
    assert not session.summaries.requests


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after more was said"])
@pytest.mark.parametrize("earlier", [False, True], ids=["the first", "one of several"])
async def test_an_undo_brings_every_message_back_and_changes_no_stored_byte(
    session: StoredSession, later: bool, earlier: bool
) -> None:
    if earlier:
        await session.turns(20, name="ancient")
        await compact(session.job())
    await session.turns(20)
    before = session.transcript.context()
    await compact(session.job())
    if later:
        await session.user("said later")
    stored = session.stored()
    tokens = await undo(session.job())
    after = session.transcript.context()
    start = 1 if later or earlier else 0
    spoken = after.messages[start : len(after.messages) - (1 if later else 0)]
    assert spoken == before.messages[1 if earlier else 0 :]
    assert session.stored().startswith(stored)
    assert (await session.entry()).get("totalTokens") == tokens
    if later:
        assert session.seen().endswith("said later")
        with pytest.raises(NothingToDo):
            await undo(session.job())


async def test_without_a_compaction_there_is_nothing_to_undo(session: StoredSession) -> None:
    await session.turns(2)
    with pytest.raises(NothingToDo):
        await undo(session.job())


# Branches


async def test_going_back_leaves_a_summary_of_the_branch_that_was_left(session: StoredSession) -> None:
    await session.turns(2)
    there = session.transcript.leaf_id
    await session.user("try the other road with src/road.py")
    await session.say(says("", call("c", "edit", path="src/road.py")))
    await session.answer("it was blocked")
    entry_id = await rewind(session.job(), there)
    entry = session.lines()[-1]
    assert (entry["id"], entry["type"], entry["fromId"], entry["parentId"]) == (
        entry_id,
        "branch_summary",
        there,
        there,
    )
    assert "it was blocked" not in session.seen()
    assert GOOD in session.seen()
    assert "<modified-files>\nsrc/road.py" in session.seen()
    assert session.summaries.requests[-1].max_tokens == 2048


async def test_a_branch_is_not_lost_when_no_summary_can_be_had(session: StoredSession) -> None:
    session.summaries.answers = [ModelError("down", kind="network")]
    await session.user("one")
    await session.answer("the answer is 42")
    await rewind(session.job(), None)
    (message,) = session.transcript.context().messages
    assert isinstance(message, UserMessage)
    assert "the answer is 42" in user_text(message)
    assert session.lines()[-1]["fromId"] == "root"
    with pytest.raises(KeyError):
        await rewind(session.job(), "nowhere")


async def test_a_plan_for_an_urgent_case_keeps_less_rather_than_nothing(session: StoredSession) -> None:
    await session.user("a" * 4000)
    answered = await session.answer("b" * 4000)
    await session.user("now")
    with pytest.raises(NothingToDo):
        await make_plan(session.job(keep=9000))
    plan = await make_plan(session.job(keep=9000, urgent=True))
    assert plan.first_kept_id == answered


def user(tokens: int) -> UserMessage:
    return UserMessage(content=[TextBlock(text="u" * tokens * 4)])


def result(tokens: int) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id="1", tool_name="exec", content=[TextBlock(text="r" * tokens * 4)])


def answer(tokens: int) -> AssistantMessage:
    return says("a" * tokens * 4)


TURNS: list[Message] = [
    user(100),
    answer(100),
    user(100),
    says("", call("1", "exec", command="ls")),
    result(1000),
    says("done"),
]


@pytest.mark.parametrize(
    ("keep", "cut"),
    [
        *((keep, Cut(5, 2)) for keep in (1, 500, 1001)),
        *((keep, Cut(3, 2)) for keep in (1002, 1006)),
        *((keep, Cut(2)) for keep in (1007, 1106)),
        *((keep, Cut(1, 0)) for keep in (1107, 1206)),
        *((keep, Cut(0)) for keep in (1207, 5000)),
    ],
)
def test_the_cut_keeps_the_wanted_tokens_and_never_starts_with_a_tool_result(keep: int, cut: Cut) -> None:
    assert find_cut(TURNS, keep) == cut


def test_results_at_the_very_end_are_kept_with_the_message_that_asked_for_them() -> None:
    messages: list[Message] = [user(10), answer(10), user(10), says("", call("1", "exec", command="ls")), result(5000)]
    assert find_cut(messages, 100) == Cut(3, 2)


def test_an_earlier_summary_is_never_part_of_what_is_cut() -> None:
    messages: list[Message] = [user(5000), user(10), answer(10)]
    assert find_cut(messages, 10_000, start=1) == Cut(1)


@given(
    st.lists(st.sampled_from(["user", "answer", "call", "result"]), min_size=1, max_size=30),
    st.integers(1, 400),
    st.data(),
)
def test_no_history_is_ever_cut_between_a_call_and_its_result(kinds: list[str], keep: int, data: st.DataObject) -> None:
    makers = {"user": user, "answer": answer, "result": result}
    messages: list[Message] = [
        says("", call("1", "exec", n=1)) if kind == "call" else makers[kind](data.draw(st.integers(0, 60)))
        for kind in kinds
    ]
    cut = find_cut(messages, keep)
    assert 0 <= cut.index < len(messages)
    if any(not isinstance(message, ToolResultMessage) for message in messages):
        assert not isinstance(messages[cut.index], ToolResultMessage)
    if cut.turn_start is not None:
        assert isinstance(messages[cut.turn_start], UserMessage)
        assert cut.turn_start < cut.index


# Settings


def test_out_of_the_box_twenty_thousand_tokens_stay_free_and_as_many_are_kept() -> None:
    settings = compaction_settings(build({}), 200_000)
    assert (settings.reserve, settings.keep, settings.limit, settings.enabled) == (20_000, 20_000, 180_000, True)


@pytest.mark.parametrize(
    ("compaction", "agent", "reserve"),
    [
        ({}, {"reserveTokensFloor": 0}, 16_384),
        ({"reserveTokens": 30_000}, {}, 30_000),
        ({"reserveTokens": 1000}, {"reserveTokensFloor": 5000}, 5000),
        ({"reserveTokens": 1000}, {"reserveTokens": 25_000}, 25_000),
    ],
)
def test_the_floor_raises_the_reserve_and_zero_switches_it_off(
    compaction: dict[str, int], agent: dict[str, int], reserve: int
) -> None:
    config = build({"compaction": compaction, "agents": {"defaults": {"compaction": agent}}})
    assert compaction_settings(config, 200_000).reserve == reserve


def test_a_reserve_larger_than_half_the_window_is_bounded_and_said() -> None:
    settings = compaction_settings(build({}), 8192)
    assert settings.reserve == 4096
    assert "half" in settings.warning
    assert settings.keep <= 2048, "what is kept must leave room for the summary"


def test_the_fixed_part_of_the_prompt_leaves_less_to_keep() -> None:
    assert compaction_settings(build({}), 60_000, overhead=30_000).keep == 5000


def test_with_safeguard_only_a_share_of_the_window_is_kept() -> None:
    wish = {"agents": {"defaults": {"compaction": {"mode": "safeguard", "reserveTokensFloor": 0}}}}
    config = build({**wish, "compaction": {"reserveTokens": 100}})
    settings = compaction_settings(config, 2000)
    assert (settings.safeguard, settings.keep, settings.most_kept) == (True, 950, 1200)
    messages: list[Message] = [UserMessage(content="x" * 4000)] * 4
    assert find_cut(messages, settings.keep).index == 3
    assert compaction_settings(build({}), 200_000).safeguard is False
