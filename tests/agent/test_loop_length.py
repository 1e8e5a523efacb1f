"""The loop and the output limit: one answer from several messages."""

from __future__ import annotations

import msgspec

from openclaw.events import AssistantEnded, AssistantStarted, ContinuationAsked, Event, Silent, Spoken, TextDelta
from openclaw.messages import AssistantMessage, ToolCall
from openclaw.models.base import ModelError
from tests.agent.scripted import Script, call, says
from tests.agent.test_loop import results, run, the_end


def cut(text: str, *calls: ToolCall, note: str | None = None) -> AssistantMessage:
    message = msgspec.structs.replace(says(text, *calls), stop_reason="length")
    return message if note is None else msgspec.structs.replace(message, error_message=note)


def shown(events: list[Event]) -> str:
    """The text of the message a client has on its screen at the end."""
    text = ""
    for event in events:
        match event:
            case AssistantStarted():
                text = ""
            case TextDelta(delta):
                text += delta
            case _:
                pass
    return text


def speeches(events: list[Event]) -> list[object]:
    return [event.speech for event in events if isinstance(event, AssistantEnded) and not event.continues]


async def test_the_parts_are_one_answer() -> None:
    script = Script(cut("one two"), cut(" three four"), says(" five"))
    events = await run(script, max_continuations=3)
    assert speeches(events) == [Spoken("one two three four five")]
    assert shown(events) == "one two three four five"
    assert sum(isinstance(event, AssistantStarted) for event in events) == 1
    assert [event.part for event in events if isinstance(event, ContinuationAsked)] == [1, 2]
    assert len(the_end(events).messages) == 5


async def test_without_leave_to_go_on_the_answer_ends_where_it_was_cut() -> None:
    events = await run(Script(cut("one two")))
    assert speeches(events) == [Spoken("one two")]
    assert the_end(events).outcome == "ok"


async def test_a_failed_attempt_at_a_part_loses_and_repeats_nothing() -> None:
    failure = ModelError("503 overloaded", kind="overloaded", retryable=True)
    events = await run(Script(cut("one two"), failure, says(" three")), max_continuations=1)
    assert speeches(events) == [Spoken("one two three")]
    assert shown(events) == "one two three"


async def test_what_was_said_before_the_rest_failed_for_good_is_kept() -> None:
    events = await run(Script(cut("one two"), ModelError("400 no", kind="auth")), max_continuations=1)
    assert the_end(events).outcome == "error"
    assert speeches(events) == [Spoken("one two")]


async def test_silence_is_not_continued() -> None:
    script = Script(cut("NO_REPLY and then"))
    events = await run(script, max_continuations=3)
    assert speeches(events) == [Silent("NO_REPLY")]
    assert shown(events) == ""


async def test_a_call_that_was_cut_beside_whole_ones_is_reported_after_their_results() -> None:
    note = "The call of `echo` was cut before its arguments were complete: left out."
    script = Script(cut("", call("c1", text="a"), note=note), says("done"))
    events = await run(script, max_continuations=3)
    assert [result.text for result in results(events)] == ["a"]
    assert note in str(script.seen[-1][-1])
    assert speeches(events)[-1] == Spoken("done")
