"""What a summary must not lose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.compaction.summary import (
    CARRIED_HEADING,
    Need,
    fault_of,
    identifiers_in,
    lost,
    lost_too_much,
    needs_of,
    to_carry,
    with_lost_lines,
)
from openclaw.messages import TextBlock, UserMessage
from tests.agent.scripted import says


def user(text: str) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text)])


@pytest.mark.parametrize(
    ("text", "identifiers"),
    [
        ("see https://example.org/a?b=1.", ("https://example.org/a?b=1",)),
        ("write to mia@example.org", ("mia@example.org",)),
        ("ticket OPS-1182 and #77", ("OPS-1182", "#77")),
        ("in src/app/main.py and ~/notes/list", ("src/app/main.py", "~/notes/list")),
        ("commit 9f2c1ab", ("9f2c1ab",)),
        ("host 10.0.0.7:8443", ("10.0.0.7:8443",)),
        ("on 2026-11-15", ("2026-11-15",)),
        ("call +49 170 1234567", ("+49 170 1234567",)),
        ("code 44719-B, plate M4X77", ("44719-B", "M4X77")),
        ("nothing of the kind here, and/or there", ()),
        ("a 3-day trip, Version 2, A4, e-mail", ()),
        ("plain facade words decade", ()),
    ],
)
def test_names_a_person_will_need_again_are_found(text: str, identifiers: tuple[str, ...]) -> None:
    assert identifiers_in(text) == identifiers


def test_lines_with_names_tasks_and_decisions_are_needed_and_small_talk_is_not() -> None:
    said = [
        user(
            "[Sun 2026-11-15 10:00 UTC] Hello there, nice weather.\n[message_id: 0b0e7e0c-1111-4222-8333-444455556666]"
        ),
        user("The key is AK-4471.\n```\nsecret.py 10.0.0.1\n```"),
        says("- [ ] order the wood\nSome prose about main.py"),
        says("Decision: we keep the old roof."),
    ]
    assert [need.text for need in needs_of("", said)] == [
        "The key is AK-4471.",
        "order the wood",
        "Decision: we keep the old roof.",
    ]


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("My dog is a terrier called Pixel.", True),
        ("The project's code name is Aurora.", True),
        ("The meeting is on Thursday at 14:30.", True),
        ("I am allergic to nuts.", True),
        ("Fact 7: the blue lamp hangs in the attic.", True),
        ("The rent costs 950 euros.", True),
        ("What is my code name?", False),
        ("Tell me a story about a fox.", False),
        ("Thanks, that is fine.", False),
    ],
)
def test_what_people_say_of_themselves_and_their_things_is_needed(text: str, needed: bool) -> None:
    assert [need.text for need in needs_of("", [user(text)])] == ([text] if needed else [])


def test_a_fact_before_or_after_a_long_paste_on_the_same_line_is_needed() -> None:
    long = "The vault opens with BLUE-77. " + "word " * 3000 + ". My cat is called Minka."
    assert [need.text for need in needs_of("", [user(long)])] == [
        "The vault opens with BLUE-77.",
        "My cat is called Minka.",
    ]


def test_what_a_summary_held_is_needed_in_the_next_one_except_what_is_done() -> None:
    before = (
        "## Progress\n### Done\n- [x] OPS-1 closed\n### In Progress\n- [ ] paint the door\n## Key Decisions\n"
        f"- **Roof**: stays\n## Critical Context\n- prose only\n- host 10.0.0.7\n\n{CARRIED_HEADING}\n- a carried line"
    )
    assert [need.text for need in needs_of(before, []) if not need.firm] == ["prose only"]
    assert [need.text for need in needs_of(before, []) if need.firm] == [
        "paint the door",
        "**Roof**: stays",
        "host 10.0.0.7",
        "a carried line",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("Summary", None),
        ("word " * 500, "not shorter"),
        ("word " * 200, "too long"),
        ("A fair summary of what was said.", None),
    ],
)
def test_a_text_that_is_no_summary_is_refused_with_its_fault(text: str, fault: str | None) -> None:
    found = fault_of(text, replaced_tokens=600, most_tokens=100)
    assert found is None if fault is None else fault in (found or "")


def test_a_name_alone_does_not_keep_what_was_said_about_it() -> None:
    need = Need("The alarm code AK-4471 belongs to the garden house.", ("AK-4471",))
    assert lost("There was something with AK-4471.", [need]) == [need]
    assert not lost("The garden house has alarm code AK-4471, which belongs to it.", [need])


def test_a_summary_that_lost_a_line_or_two_is_mended_rather_than_refused() -> None:
    needs = [Need(f"matter{n}matter{n}") for n in range(10)]
    assert not lost_too_much("\n".join(need.text for need in needs[2:]), needs)
    assert not lost_too_much("nothing at all", needs[:2])
    assert lost_too_much("nothing at all", needs) == needs


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=80), max_size=20))
def test_a_mended_summary_has_lost_nothing_when_there_is_room(lines: list[str]) -> None:
    needs = [Need(line.strip()) for line in lines if line.strip()]
    text = with_lost_lines("The summary.", to_carry("The summary.", needs), 10_000)
    assert not to_carry(text, needs)


@pytest.mark.parametrize(
    ("summary", "need"),
    [
        ("- [ ] send the signed contract to Anna before Friday", "send the signed contract to Anne before Friday"),
        ("We decided to keep the old roof on the north side", "We decided to keep the old roof on the south side"),
        ("We decided never to deploy the shop on Friday", "We decided to deploy the shop on Friday"),
        ("- never deploy on Friday", "deploy on Friday"),
        ("The deploy token is AK-4471 for production", "The deploy token is AK-4471 for staging"),
        ("Call Bo", "Call Al"),
    ],
)
def test_two_lines_that_differ_in_one_word_are_two(summary: str, need: str) -> None:
    needed = Need(need, identifiers_in(need))
    assert to_carry(summary, [needed]) == [needed]
    assert not to_carry(f"{summary}\n- {need}", [needed])


def test_of_two_tasks_that_differ_in_one_word_both_are_needed() -> None:
    said = [user("- [ ] call Anna about the roof"), user("- [ ] call Anne about the roof")]
    assert len(needs_of("", said)) == 2
    long = "TODO: " + "paint the fence " * 40
    assert len(needs_of("", [user(long + "green"), user(long + "blue")])) == 2


def test_words_count_and_not_marks_or_case() -> None:
    needed = Need("We decided: keep the old roof!")
    assert not to_carry("* **we decided — keep the OLD roof**, as it is dry", [needed])


def test_the_lines_of_a_summary_are_carried_when_the_next_one_drops_most_of_them() -> None:
    before = "## Goal\nBuild a shed.\n## Critical Context\n- the lever is blue\n- the well is deep\n- Mia has the keys"
    needs = needs_of(before, [])
    carried = with_lost_lines("ok", to_carry("ok", needs), 10_000)
    for line in ("Build a shed.", "the lever is blue", "the well is deep", "Mia has the keys"):
        assert line in carried
    again = with_lost_lines("fine", to_carry("fine", needs_of(carried, [])), 10_000)
    assert all(line in again for line in ("Build a shed.", "Mia has the keys"))
    good = "## Goal\nBuild a shed.\n- the lever is blue\n- the well is deep"
    assert not to_carry(good, needs), "a summary that keeps most of it may leave something out"


def test_the_newest_lines_are_carried_when_there_is_not_room_for_all() -> None:
    text = with_lost_lines("The summary.", [Need(f"line {n} " + "x" * 40) for n in range(50)], 400)
    assert "line 49" in text
    assert "line 0 " not in text
    assert "older lines are only in the transcript" in text
