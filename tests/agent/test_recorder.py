"""How far a run had come, told from the ids in its transcript."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.recorder import LARGEST_GAP, entry_id, found_answer, next_step
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolCall, UserMessage
from openclaw.storage.transcripts import Context

ANSWER = AssistantMessage(content=[TextBlock(text="yes")], stop_reason="stop")
CALLING = AssistantMessage(content=[ToolCall(id="t", name="read", arguments={})], stop_reason="toolUse")
FAILED = AssistantMessage(content=[], stop_reason="error", error_message="no")
ASKED = UserMessage(content=[TextBlock(text="hi")])


def test_a_new_run_begins_with_its_prompt() -> None:
    assert next_step("a", {entry_id("b", 0)}, began=False) == 0


@given(st.integers(1, 40), st.sets(st.integers(0, 39), max_size=8))
def test_the_next_step_is_after_every_entry_of_the_run_whatever_lines_were_lost(count: int, lost: set[int]) -> None:
    kept = {step for step in range(count) if step not in lost}
    entries = {entry_id("a", step) for step in kept}
    assert next_step("a", entries, began=True) == max(kept, default=-1) + 1


def test_looking_for_entries_ends() -> None:
    assert next_step("a", {entry_id("a", 0), entry_id("a", LARGEST_GAP + 5)}, began=True) == 1


@pytest.mark.parametrize(
    ("messages", "owner", "step", "whose"),
    [
        ([ASKED], "a", 1, None),
        ([ASKED, CALLING], "a", 2, None),
        ([ASKED, FAILED], "a", 2, None),
        ([ASKED, ANSWER], "a", 2, "own"),
        ([ASKED, ANSWER], "b", 1, "other"),
        ([], "a", 0, None),
    ],
)
def test_an_answer_at_the_end_is_ours_only_under_our_id(
    messages: list[Message], owner: str, step: int, whose: str | None
) -> None:
    ids = [f"x{place}" for place in range(len(messages) - 1)] + [entry_id(owner, 1)][: len(messages)]
    context = Context(
        messages=messages, entry_ids=ids, model=None, thinking_level="off", compaction_id=None, branch_cache={}
    )
    assert found_answer("a", step, context) == whose
