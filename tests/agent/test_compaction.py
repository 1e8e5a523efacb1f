"""Compaction on a real transcript: what is added, what is kept, what is refused, and what never changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.agent.branch_summary import go_back
from openclaw.agent.compaction import ALREADY, CANCELLED, TOO_SMALL, Job, NothingToDo, compact, make_plan
from openclaw.agent.compaction_cut import CompactionSettings
from openclaw.agent.compaction_summary import NO_HISTORY, SPLIT_SEPARATOR, WITHOUT_MODEL, part_share
from openclaw.agent.compaction_undo import preview, undo
from openclaw.agent.hooks import BeforeCompact, Cancel, Compacted, Compaction, Leaving
from openclaw.agent.pins import PinRefused, add_pin, pins_of, remove_pin
from openclaw.events import CompactionEnded, CompactionStarted
from openclaw.messages import ToolResultMessage, UserMessage, user_text
from openclaw.models.base import ModelError
from tests.agent.chamber import HANGS, Chamber, Summaries
from tests.agent.scripted import call, says

GOOD = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"


@pytest.fixture
async def chamber(tmp_path: Path) -> AsyncIterator[Chamber]:
    async with Chamber(tmp_path, Summaries(GOOD)) as made:
        yield made


async def test_the_older_part_becomes_one_added_entry_and_no_stored_byte_changes(chamber: Chamber) -> None:
    await chamber.turns(20)
    before = chamber.stored()
    outcome = await compact(chamber.job())
    assert outcome.status == "compacted"
    assert chamber.stored().startswith(before)
    (added,) = chamber.lines()[len(before.splitlines()) :]
    assert added["type"] == "compaction"
    assert added["summary"].startswith(GOOD)
    assert added["tokensBefore"] == outcome.tokens_before > outcome.tokens_after
    context = chamber.transcript.context()
    assert context.entry_ids[1] == added["firstKeptEntryId"]
    assert GOOD in user_text(context.messages[0])  # type: ignore[arg-type]
    assert "turn 19 " in chamber.seen()
    assert "turn 0 " not in chamber.seen()


async def test_the_session_counts_appended_compactions_and_shows_the_new_size(chamber: Chamber) -> None:
    await chamber.turns(20)
    outcome = await compact(chamber.job())
    entry = await chamber.entry()
    assert (entry.get("compactionCount"), entry.get("totalTokens")) == (1, outcome.tokens_after)
    assert "inputTokens" not in entry


async def test_the_summary_is_asked_for_with_eight_tenths_of_the_reserve_and_much_thought(chamber: Chamber) -> None:
    await chamber.user("first " + "x" * 400)
    await chamber.answer("one", 300)
    kept = await chamber.user("second " + "y" * 400)
    await chamber.answer("two", 990)
    outcome = await compact(chamber.job(window=1000, reserve=100, keep=100, reason="manual"))
    assert (outcome.status, outcome.tokens_before) == ("compacted", 990)
    assert chamber.transcript.context().entry_ids[1] == kept
    (request,) = chamber.summaries.requests
    assert (request.max_tokens, request.thinking, request.tools) == (80, "high", [])
    assert chamber.summaries.asked().startswith("<conversation>\n[User]: first")


async def test_what_an_earlier_compaction_had_kept_is_part_of_the_next_summary(chamber: Chamber) -> None:
    await chamber.turns(20, name="early")
    await compact(chamber.job())
    kept_then = chamber.seen()
    assert "early 19 " in kept_then
    await chamber.turns(20, name="late")
    chamber.summaries.answers = [GOOD.replace("shed", "barn")]
    await compact(chamber.job())
    asked = chamber.summaries.asked()
    assert "early 19 " in asked
    assert "late 0 " in asked
    assert f"<previous-summary>\n{GOOD}" in asked
    assert "barn" in chamber.seen()


async def test_files_read_and_changed_are_listed_and_handed_on(chamber: Chamber) -> None:
    for name, path in (("read", "b"), ("read", "a"), ("read", "c"), ("write", "c"), ("edit", "d")):
        await chamber.user(f"{name} {path}")
        await chamber.say(says("", call(path, name, path=path)))
        await chamber.say(ToolResultMessage(tool_call_id=path, tool_name=name, content=[]))
    await chamber.turns(20)
    await compact(chamber.job())
    details = chamber.lines()[-1]["details"]
    assert (details["readFiles"], details["modifiedFiles"]) == (["a", "b"], ["c", "d"])
    assert "<read-files>\na\nb\n</read-files>" in chamber.seen()
    await chamber.turns(20)
    await compact(chamber.job())
    assert chamber.lines()[-1]["details"]["modifiedFiles"] == ["c", "d"]
    assert chamber.seen().count("<modified-files>") == 1


async def test_a_turn_too_long_to_keep_is_cut_and_its_beginning_summarised_by_itself(chamber: Chamber) -> None:
    await chamber.user("please read everything")
    for number in range(10):
        await chamber.say(says(f"step {number}", call(f"c{number}", "read", path=f"f{number}")))
        long = [{"type": "text", "text": "line " * 400}]
        await chamber.transcript.append(
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
    await chamber.answer("all read")
    chamber.summaries.answers = ["## Original Request\nRead everything.\n## Early Progress\n- half of it"]
    outcome = await compact(chamber.job())
    assert outcome.status == "compacted"
    summary = chamber.lines()[-1]["summary"]
    assert summary.startswith(NO_HISTORY + SPLIT_SEPARATOR + "## Original Request")
    (request,) = chamber.summaries.requests
    assert (request.max_tokens, request.thinking) == (1000, "off")
    first_kept = chamber.transcript.context().messages[1]
    assert not isinstance(first_kept, ToolResultMessage)


async def test_a_small_session_and_one_just_compacted_are_left_alone(chamber: Chamber) -> None:
    await chamber.turns(1)
    assert (await compact(chamber.job(reason="manual"))).reason == TOO_SMALL
    await chamber.turns(20)
    await compact(chamber.job())
    second = await compact(chamber.job(reason="manual"))
    assert (second.status, second.reason) == ("skipped", ALREADY)
    assert len(chamber.summaries.requests) == 1, "no model is asked in vain"


async def test_instructions_reach_the_summariser(chamber: Chamber) -> None:
    await chamber.turns(20)
    await compact(chamber.job(instructions="keep the prices", reason="manual"))
    assert "Additional focus: keep the prices" in chamber.summaries.asked()


async def test_start_and_end_are_told(chamber: Chamber) -> None:
    await chamber.turns(20)
    outcome = await compact(chamber.job(reason="overflow", urgent=True, will_retry=True))
    start, end = chamber.events
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
    async with Chamber(tmp_path, Summaries(failure)) as chamber:
        await chamber.turns(20)
        before = chamber.stored()
        outcome = await compact(chamber.job(timeout_s=0.05))
        assert outcome.status == "failed"
        assert chamber.stored() == before
        assert (await chamber.entry()).get("compactionCount") is None
        end = chamber.events[-1]
        assert isinstance(end, CompactionEnded)
        assert (end.error or "").startswith("Auto-compaction failed: ")
        assert 1 <= len(chamber.summaries.requests) <= 3


@pytest.mark.parametrize("failure", FAILURES, ids=["error", "hang", "empty", "longer"])
async def test_when_the_prompt_must_shrink_a_failing_summariser_cannot_prevent_it(
    tmp_path: Path, failure: str | ModelError
) -> None:
    async with Chamber(tmp_path, Summaries(failure)) as chamber:
        await chamber.user("The deploy token is AK-4471.")
        await chamber.turns(200)  # Ten times the window.
        job = chamber.job(urgent=True, timeout_s=0.05)
        outcome = await compact(job)
        assert (outcome.status, outcome.method) == ("compacted", "trim")
        assert outcome.calls <= 3
        assert job.budget.size(chamber.transcript.context().messages) <= job.settings.limit
        assert WITHOUT_MODEL in chamber.seen()
        assert "AK-4471" in chamber.seen()


async def test_a_summary_of_a_word_or_two_is_kept_beside_what_was_said(tmp_path: Path) -> None:
    async with Chamber(tmp_path, Summaries("Nothing.")) as chamber:
        await chamber.user("The deploy token is AK-4471.")
        await chamber.turns(20)
        outcome = await compact(chamber.job())
        assert (outcome.status, outcome.method, outcome.calls) == ("compacted", "summary", 1)
        summary = chamber.lines()[-1]["summary"]
        assert summary.startswith("Nothing.\n\n## What was said\n") and "AK-4471" in summary


# Safeguard


def safeguard(chamber: Chamber, **more: Any) -> Job:
    settings = CompactionSettings(window=10_000, reserve=2000, keep=1000, safeguard=True, most_kept=6000)
    return chamber.job(settings=settings, **more)


@pytest.mark.parametrize("failure", FAILURES, ids=["error", "hang", "empty", "longer"])
async def test_with_safeguard_no_failing_summariser_prevents_a_compaction(
    tmp_path: Path, failure: str | ModelError
) -> None:
    async with Chamber(tmp_path, Summaries(failure)) as chamber:
        await chamber.user("The deploy token is AK-4471.")
        await chamber.turns(30)
        outcome = await compact(safeguard(chamber, timeout_s=0.05))
        assert (outcome.status, outcome.method) == ("compacted", "trim")
        assert outcome.calls <= 3 and "AK-4471" in chamber.seen()


async def test_with_safeguard_failed_tools_are_listed(chamber: Chamber) -> None:
    for number in range(10):
        await chamber.user(f"try {number}")
        await chamber.say(says("", call(f"c{number}", "exec", command="make")))
        failed = {"toolCallId": f"c{number}", "toolName": "exec", "isError": True, "details": {"exitCode": number}}
        content = [{"type": "text", "text": f"no  rule\nto make {number}" + " x" * 200}]
        message = {"role": "toolResult", "content": content, **failed, "timestamp": 1}
        await chamber.transcript.append({"type": "message", "message": message})
    await chamber.turns(20)
    await compact(safeguard(chamber))
    summary = chamber.lines()[-1]["summary"]
    lines = summary[summary.index("## Tool Failures") :].splitlines()[1:10]
    assert lines[0].startswith("- exec (exitCode=0): no rule to make 0 x x") and lines[0].endswith("…")
    assert len(lines[0]) <= len("- exec (exitCode=0): ") + 240
    assert lines[8] == "- …and 2 more"


async def test_with_safeguard_one_large_message_is_not_kept_beyond_its_share(chamber: Chamber) -> None:
    await chamber.turns(10)
    await chamber.user("look at this: " + "x" * 30_000)
    await chamber.answer("I see")
    assert (await make_plan(chamber.job())).kept_tokens > 6000
    assert (await make_plan(safeguard(chamber))).kept_tokens <= 6000


async def test_with_safeguard_a_history_is_told_in_smaller_parts_where_that_is_enough(chamber: Chamber) -> None:
    await chamber.turns(28)
    assert (await compact(chamber.job())).calls == 1
    await chamber.turns(28)
    assert (await compact(safeguard(chamber))).calls == 3 - 1


@pytest.mark.parametrize(("tokens", "share"), [(100, 0.4), (1000, 0.4 - 0.24), (5000, 0.15)])
def test_the_larger_the_messages_the_smaller_the_parts(tokens: int, share: float) -> None:
    messages = [UserMessage(content="x" * tokens * 4)] * 3
    assert part_share(messages, 10_000) == pytest.approx(share)


async def test_a_history_of_ten_windows_is_summarised_in_at_most_three_pieces(chamber: Chamber) -> None:
    await chamber.turns(200)
    job = chamber.job()
    outcome = await compact(job)
    assert (outcome.status, outcome.calls) == ("compacted", 3)
    for request in chamber.summaries.requests:
        assert job.budget.size(request.messages) <= 10_000
    assert "turn 0 " in chamber.summaries.asked(0)
    assert f"<previous-summary>\n{GOOD}" in chamber.summaries.asked(2)
    assert job.budget.size(chamber.transcript.context().messages) <= job.settings.limit


async def test_one_message_larger_than_the_window_does_not_break_the_summary_request(chamber: Chamber) -> None:
    await chamber.user("huge " + "x" * 200_000)
    await chamber.answer("I see")
    await chamber.turns(5)
    job = chamber.job()
    outcome = await compact(job)
    assert outcome.status == "compacted"
    assert all(job.budget.size(request.messages) <= 10_000 for request in chamber.summaries.requests)


async def test_a_summary_that_lost_most_of_what_matters_is_refused_and_asked_for_again(chamber: Chamber) -> None:
    for ticket in ("OPS-1", "OPS-2", "OPS-3", "OPS-4"):
        await chamber.user(f"Please look after ticket {ticket} before Friday evening.")
        await chamber.answer("I will.")
    await chamber.turns(20)
    better = GOOD + "\n" + "\n".join(f"- ticket OPS-{n}: look after before Friday evening, please" for n in range(1, 5))
    chamber.summaries.answers = [GOOD, better]
    outcome = await compact(chamber.job())
    assert (outcome.status, outcome.calls) == ("compacted", 2)
    assert "OPS-3" in chamber.summaries.asked(1)
    assert "refused because it leaves out" in chamber.summaries.asked(1)
    assert chamber.lines()[-1]["summary"].startswith(better)


async def test_lines_the_summary_lost_are_carried_over_word_for_word(chamber: Chamber) -> None:
    await chamber.user("Remember that the alarm code is 44719-B and nobody else may know.")
    await chamber.answer("Noted.")
    await chamber.turns(20)
    await compact(chamber.job())
    assert "- Remember that the alarm code is 44719-B and nobody else may know." in chamber.seen()


async def test_a_model_too_small_to_write_summaries_is_not_asked(chamber: Chamber) -> None:
    await chamber.user("Remember that the alarm code is 44719-B.")
    await chamber.turns(20)
    job = chamber.job()
    job.model = msgspec.structs.replace(job.model, tools=False)
    outcome = await compact(job)
    assert (outcome.status, outcome.method, outcome.calls) == ("compacted", "trim", 0)
    assert "44719-B" in chamber.seen()
    assert not chamber.summaries.requests


async def test_nothing_is_appended_that_would_not_make_the_prompt_smaller(chamber: Chamber) -> None:
    chamber.summaries.answers = ["a summary as long as all of it " * 10]
    await chamber.user("short question")
    await chamber.answer("short answer")
    await chamber.turns(3, tokens=150)
    before = chamber.stored()
    outcome = await compact(chamber.job(keep=1100, reason="manual"))
    assert outcome.status in ("failed", "skipped")
    assert chamber.stored() == before


async def test_messages_said_while_the_summary_is_written_are_kept(chamber: Chamber) -> None:
    await chamber.turns(20)

    def meanwhile(request: Any) -> str:
        chamber.summaries.answers = [GOOD]
        return GOOD

    async def exclusively(work: Any) -> Any:
        await chamber.user("said meanwhile")
        await chamber.answer("answered meanwhile")
        return await work()

    chamber.summaries.answers = [meanwhile]
    outcome = await compact(chamber.job(exclusively=exclusively))
    assert outcome.status == "compacted"
    assert chamber.seen().endswith("said meanwhile\nanswered meanwhile")


async def test_a_summary_for_another_course_of_the_conversation_is_thrown_away(chamber: Chamber) -> None:
    await chamber.turns(20)
    first = chamber.transcript.tree()[0][0]

    async def exclusively(work: Any) -> Any:
        chamber.transcript.branch(first)
        await chamber.user("another way")
        return await work()

    outcome = await compact(chamber.job(exclusively=exclusively))
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
    async with Chamber(tmp_path, Summaries(_forgetful)) as chamber:
        for fact in facts:
            await chamber.user(fact)
            await chamber.answer("Understood.")
        for number in range(passes):
            await chamber.turns(20, name=f"round {number}")
            assert (await compact(chamber.job())).status == "compacted"
        seen = chamber.seen()
        kept = [fact for fact in facts if fact.removeprefix("- [ ] ") in seen]
        record_property("facts kept", f"{len(kept)}/{len(facts)} after {passes}")
        assert kept == facts
        assert chamber.job().budget.size(chamber.transcript.context().messages) < 8000


async def test_every_pass_leaves_a_smaller_prompt_that_fits(chamber: Chamber) -> None:
    job = chamber.job()
    for number in range(5):
        await chamber.turns(20, name=f"round {number}")
        before = job.budget.size(chamber.transcript.context().messages)
        await compact(job)
        assert job.budget.size(chamber.transcript.context().messages) < min(before, job.settings.limit)


# Hooks


async def test_an_extension_may_refuse_or_write_the_summary_itself(chamber: Chamber) -> None:
    await chamber.turns(20)
    told: list[Compacted] = []
    answers: list[Any] = [Cancel(), None]

    async def before(about: BeforeCompact) -> Any:
        answer = answers.pop(0)
        own = Compaction(summary="by the extension", first_kept_entry_id=about.first_kept_entry_id)
        return answer if answer is not None else own

    async def after(what: Compacted) -> None:
        told.append(what)

    chamber.runtime.hooks.session_before_compact.append(before)
    chamber.runtime.hooks.session_compact.append(after)
    assert (await compact(chamber.job())).reason == CANCELLED
    outcome = await compact(chamber.job())
    assert (outcome.method, chamber.lines()[-1]["fromHook"]) == ("hook", True)
    assert [(what.entry_id, what.from_hook) for what in told] == [(outcome.entry_id, True)]
    assert not chamber.summaries.requests


async def test_a_broken_extension_does_not_stop_the_compaction(chamber: Chamber) -> None:
    async def broken(about: Any) -> None:
        raise RuntimeError("broken")

    for hooks in (chamber.runtime.hooks.session_before_compact, chamber.runtime.hooks.before_content_leaves):
        hooks.append(broken)
    await chamber.turns(20)
    assert (await compact(chamber.job())).status == "compacted"


async def test_the_moment_before_content_leaves_comes_once_and_may_write(chamber: Chamber) -> None:
    moments: list[Leaving] = []

    async def flush(leaving: Leaving) -> None:
        moments.append(leaving)
        await chamber.answer("wrote it down")
        await chamber.runtime.hooks.content_leaves(leaving)  # A flush that fills the window must not flush again.

    chamber.runtime.hooks.before_content_leaves.append(flush)
    assert (await compact(chamber.job())).status == "skipped"
    assert not moments, "nothing leaves a conversation that is small"
    await chamber.turns(20)
    assert (await compact(chamber.job())).status == "compacted"
    assert len(moments) == 1
    assert "wrote it down" in chamber.seen()


# Pins


async def test_pinned_text_survives_every_compaction_word_for_word(chamber: Chamber) -> None:
    pinned = "Never deploy on Fridays.\n  Not even small things: ☂"
    await add_pin(chamber.transcript, pinned)
    for _ in range(3):
        await chamber.turns(20)
        await compact(chamber.job())
        assert chamber.seen().count(pinned) == 1


async def test_a_pin_taken_off_leaves_with_the_next_compaction(chamber: Chamber) -> None:
    await add_pin(chamber.transcript, "keep me")
    await add_pin(chamber.transcript, "and me")
    assert (await add_pin(chamber.transcript, "keep me")).id == (await pins_of(chamber.transcript))[0].id
    await chamber.turns(20)
    await compact(chamber.job())
    await remove_pin(chamber.transcript, 1)
    assert [pin.text for pin in await pins_of(chamber.transcript)] == ["and me"]
    await chamber.turns(20)
    await compact(chamber.job())
    assert "<pinned>\nand me\n</pinned>" in chamber.seen()


@pytest.mark.parametrize(("text", "fault"), [("  ", "Nothing to pin"), ("x" * 4001, "too long")])
async def test_what_cannot_be_pinned_is_said(chamber: Chamber, text: str, fault: str) -> None:
    with pytest.raises(PinRefused, match=fault):
        await add_pin(chamber.transcript, text)


# Preview and undo


async def test_a_preview_tells_what_would_happen_and_asks_no_model(chamber: Chamber) -> None:
    assert await preview(chamber.job(reason="manual")) == TOO_SMALL
    await add_pin(chamber.transcript, "Never on Fridays.")
    await chamber.turns(20)
    before = chamber.stored()
    text = await preview(chamber.job(reason="manual"))
    assert "would condense" in text
    assert "Never on Fridays." in text
    assert chamber.stored() == before
    assert not chamber.summaries.requests


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after more was said"])
@pytest.mark.parametrize("earlier", [False, True], ids=["the first", "one of several"])
async def test_an_undo_brings_every_message_back_and_changes_no_stored_byte(
    chamber: Chamber, later: bool, earlier: bool
) -> None:
    if earlier:
        await chamber.turns(20, name="ancient")
        await compact(chamber.job())
    await chamber.turns(20)
    before = chamber.transcript.context()
    await compact(chamber.job())
    if later:
        await chamber.user("said later")
    stored = chamber.stored()
    tokens = await undo(chamber.job())
    after = chamber.transcript.context()
    start = 1 if later or earlier else 0
    spoken = after.messages[start : len(after.messages) - (1 if later else 0)]
    assert spoken == before.messages[1 if earlier else 0 :]
    assert chamber.stored().startswith(stored)
    assert (await chamber.entry()).get("totalTokens") == tokens
    if later:
        assert chamber.seen().endswith("said later")
        with pytest.raises(NothingToDo):
            await undo(chamber.job())


async def test_without_a_compaction_there_is_nothing_to_undo(chamber: Chamber) -> None:
    await chamber.turns(2)
    with pytest.raises(NothingToDo):
        await undo(chamber.job())


# Branches


async def test_going_back_leaves_a_summary_of_the_branch_that_was_left(chamber: Chamber) -> None:
    await chamber.turns(2)
    there = chamber.transcript.leaf_id
    await chamber.user("try the other road with src/road.py")
    await chamber.say(says("", call("c", "edit", path="src/road.py")))
    await chamber.answer("it was blocked")
    entry_id = await go_back(chamber.job(), there)
    entry = chamber.lines()[-1]
    assert (entry["id"], entry["type"], entry["fromId"], entry["parentId"]) == (
        entry_id,
        "branch_summary",
        there,
        there,
    )
    assert "it was blocked" not in chamber.seen()
    assert GOOD in chamber.seen()
    assert "<modified-files>\nsrc/road.py" in chamber.seen()
    assert chamber.summaries.requests[-1].max_tokens == 2048


async def test_a_branch_is_not_lost_when_no_summary_can_be_had(chamber: Chamber) -> None:
    chamber.summaries.answers = [ModelError("down", kind="network")]
    await chamber.user("one")
    await chamber.answer("the answer is 42")
    await go_back(chamber.job(), None)
    (message,) = chamber.transcript.context().messages
    assert isinstance(message, UserMessage)
    assert "the answer is 42" in user_text(message)
    assert chamber.lines()[-1]["fromId"] == "root"
    with pytest.raises(KeyError):
        await go_back(chamber.job(), "nowhere")


async def test_a_plan_for_an_urgent_case_keeps_less_rather_than_nothing(chamber: Chamber) -> None:
    await chamber.user("a" * 4000)
    answered = await chamber.answer("b" * 4000)
    await chamber.user("now")
    with pytest.raises(NothingToDo):
        await make_plan(chamber.job(keep=9000))
    plan = await make_plan(chamber.job(keep=9000, urgent=True))
    assert plan.first_kept_id == answered
