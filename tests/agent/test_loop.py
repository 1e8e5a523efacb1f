"""The loop and the output limit: one answer from several messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.agent.abort import AbortSignal
from openclaw.agent.loop import SKIPPED_FOR_USER, LoopOptions, Steered, run_loop
from openclaw.agent.repeated_calls import RepeatedCalls
from openclaw.config.schema.tools import LoopDetection, RepetitionLimits
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    ContinuationAsked,
    Event,
    RetryScheduled,
    RunEnded,
    Silent,
    Spoken,
    SteeringInjected,
    TextDelta,
    ToolEnded,
    ToolUpdated,
)
from openclaw.messages import AssistantMessage, Message, ToolCall, ToolResultMessage, UserMessage
from openclaw.models.base import ModelError, Text
from openclaw.tools.base import ToolContext, ToolError, text_result
from tests.agent.scripted import Echo, HeldClock, Script, call, says


class SteeringInbox:
    def __init__(self) -> None:
        self.steer: list[UserMessage] = []
        self.after: list[UserMessage] = []

    def waiting(self) -> bool:
        return bool(self.steer)

    def steering(self) -> list[Steered]:
        taken, self.steer = self.steer[:1], self.steer[1:]
        return [Steered(message, "token") for message in taken]

    def follow_ups(self) -> list[Steered]:
        taken, self.after = self.after[:1], self.after[1:]
        return [Steered(message, "after") for message in taken]


class Events:
    """Collects the events, displayed and stored ones in one order. ``on_event`` is called with each displayed one."""

    def __init__(self, on_event: Callable[[Event], None] = lambda event: None) -> None:
        self.seen: list[Event] = []
        self._on_event = on_event

    def emit(self, event: Event) -> None:
        self.seen.append(event)
        self._on_event(event)

    async def store(self, event: Event) -> None:
        self.seen.append(event)


CONTEXT = ToolContext(agent_id="main", session_key="agent:main:main", workspace=Path("/tmp"))


def prompt(text: str = "hello") -> list[Message]:
    return [UserMessage(content=text)]


async def run(script: Script, events: Events | None = None, **more: Any) -> list[Event]:
    events = events or Events()
    fields: dict[str, Any] = {"tools": {"echo": Echo()}, "clock": HeldClock(), "abort": AbortSignal()} | more
    options = LoopOptions(port=script, tool_context=CONTEXT, entries=events, events=events, **fields)
    ended = await run_loop(prompt(), options)
    return [*events.seen, ended]


def the_end(events: list[Event]) -> RunEnded:
    ends = [event for event in events if isinstance(event, RunEnded)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    return ends[0]


def results(events: list[Event]) -> list[ToolResultMessage]:
    return [event.message for event in events if isinstance(event, ToolEnded)]


async def test_a_plain_answer_streams_and_ends_once() -> None:
    events = await run(Script(says("Hi there, friend")))
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Hi", " there,", " friend"]
    assert the_end(events).outcome == "ok"
    assert the_end(events).messages == [says("Hi there, friend")]


async def test_tool_results_reach_the_model_before_it_answers() -> None:
    script = Script(says("Let me see", call("c1", text="x")), says("done"))
    events = await run(script)
    assert [type(message).__name__ for message in script.seen[1]] == [
        "UserMessage",
        "AssistantMessage",
        "ToolResultMessage",
    ]
    assert results(events)[0].text == "x"
    assert the_end(events).outcome == "ok"


async def test_calls_run_one_after_the_other_in_order() -> None:
    echo = Echo()
    await run(Script(says("", call("a", text="1"), call("b", text="2")), says("ok")), tools={"echo": echo})
    assert echo.calls == ["1", "2"]


async def test_an_unknown_tool_and_bad_arguments_are_results_not_exceptions() -> None:
    script = Script(says("", call("c1", "nope"), call("c2"), call("c3", text=1)), says("ok"))
    unknown, missing, coerced = results(await run(script))
    assert (unknown.text, unknown.is_error) == ("Tool nope not found. Available tools: echo.", True)
    assert missing.is_error
    assert missing.text.endswith('Valid arguments, for example: {"text": "<text>"}')
    assert (coerced.text, coerced.is_error) == ("1", False)


async def test_the_model_reads_a_failure_as_a_sentence_and_clients_get_the_known_details() -> None:
    async def fail(context: ToolContext) -> None:
        raise ToolError("no such file")

    events = await run(Script(says("", call("c1", text="x")), says("ok")), tools={"echo": Echo(fail)})
    result = results(events)[0]
    assert result.details == {"status": "error", "tool": "echo", "error": "no such file"}
    assert result.is_error is True
    assert result.text == "no such file"
    assert next(event for event in events if isinstance(event, ToolEnded)).failed


async def test_a_bug_in_a_tool_does_not_end_the_run() -> None:
    async def break_down(context: ToolContext) -> None:
        raise RuntimeError("boom")

    events = await run(Script(says("", call("c1", text="x")), says("ok")), tools={"echo": Echo(break_down)})
    assert "boom" in results(events)[0].text
    assert the_end(events).outcome == "ok"


async def test_progress_of_a_tool_is_shown_while_it_runs() -> None:
    events = Events()

    async def progress(context: ToolContext) -> None:
        assert context.update is not None
        context.update(text_result("half"))
        assert [event.partial.content[0].text for event in events.seen if isinstance(event, ToolUpdated)] == ["half"]

    script = Script(says("", call("c1", text="x")), says("ok"))
    await run(script, events, tools={"echo": Echo(progress)})
    assert len([event for event in events.seen if isinstance(event, ToolUpdated)]) == 1


async def test_words_from_the_user_skip_the_remaining_calls() -> None:
    inbox = SteeringInbox()

    async def user_speaks(context: ToolContext) -> None:
        if context.call_id == "c1":
            inbox.steer.append(UserMessage(content="stop that, do this"))

    script = Script(says("", call("c1", text="1"), call("c2", text="2"), call("c3", text="3")), says("ok"))
    events = await run(script, tools={"echo": Echo(user_speaks)}, inbox=inbox)
    assert [result.text for result in results(events)] == ["1", SKIPPED_FOR_USER, SKIPPED_FOR_USER]
    kinds = [type(message).__name__ for message in script.seen[1]]
    assert kinds == ["UserMessage", "AssistantMessage", *["ToolResultMessage"] * 3, "UserMessage"]
    assert [event.token for event in events if isinstance(event, SteeringInjected)] == ["token"]


async def test_words_that_come_while_calls_are_handed_over_wait_for_the_next_run() -> None:
    inbox = SteeringInbox()

    async def user_speaks(context: ToolContext) -> None:
        inbox.steer.append(UserMessage(content="one more thing"))

    script = Script(says("", call("c1", text="1"), call("c2", "theirs")))
    events = await run(script, tools={"echo": Echo(user_speaks)}, inbox=inbox, client_tools=frozenset({"theirs"}))
    assert [result.text for result in results(events)] == ["1"]
    assert not [event for event in events if isinstance(event, SteeringInjected)]
    assert inbox.steer == [UserMessage(content="one more thing")]


async def test_a_follow_up_is_taken_only_when_the_run_would_end() -> None:
    inbox = SteeringInbox()
    inbox.after = [UserMessage(content="and then?")]
    script = Script(says("", call("c1", text="x")), says("first"), says("second"))
    events = await run(script, inbox=inbox)
    assert script.seen[2][-1] == UserMessage(content="and then?")
    assert the_end(events).outcome == "ok"
    assert not script.steps


async def test_passing_failures_are_retried_and_each_stays_visible() -> None:
    overloaded = ModelError("overloaded_error", kind="overloaded", retryable=True)
    events = await run(Script(overloaded, ModelError("503", kind="other", retryable=True), says("ok")))
    assert [(event.attempt, event.delay_ms) for event in events if isinstance(event, RetryScheduled)] == [
        (1, 5),
        (2, 10),
    ]
    stops = [event.message.stop_reason for event in events if isinstance(event, AssistantEnded)]
    assert stops == ["error", "error", "stop"]
    assert the_end(events).outcome == "ok"


async def test_a_failed_attempt_is_not_shown_to_the_model() -> None:
    script = Script(ModelError("500", retryable=True), says("ok"))
    await run(script)
    assert [len(seen) for seen in script.seen] == [1, 1]


async def test_retries_end_after_three() -> None:
    failures = [ModelError("500", retryable=True) for _ in range(4)]
    events = await run(Script(*failures))
    assert the_end(events).outcome == "error"
    assert the_end(events).error == "500"
    assert len([event for event in events if isinstance(event, RetryScheduled)]) == 3


async def test_the_servers_own_wait_is_honoured() -> None:
    clock = HeldClock()
    await run(Script(ModelError("429", retryable=True, retry_after_s=7), says("ok")), clock=clock)
    assert clock.slept == [7]


async def test_a_refusal_is_not_retried() -> None:
    events = await run(Script(ModelError("invalid key", kind="auth")))
    assert the_end(events).error == "invalid key"


async def test_aborting_while_streaming_keeps_what_was_said() -> None:
    signal, hang = AbortSignal(), asyncio.Event()

    async def hangs() -> AsyncIterator[Any]:
        yield Text("so far ")
        yield Text("so good")
        signal.abort("rpc")
        await hang.wait()

    events = await run(Script(hangs), abort=signal)
    message = the_end(events).messages[0]
    assert (the_end(events).outcome, the_end(events).error) == ("aborted", "rpc")
    assert (message.text, message.stop_reason) == ("so far so good", "aborted")  # type: ignore[union-attr]


async def test_whoever_is_shown_a_word_can_stop_the_run_right_there() -> None:
    signal = AbortSignal()

    def show(event: Event) -> None:
        if isinstance(event, TextDelta):
            signal.abort("enough")

    end = the_end(await run(Script(says("one two three")), Events(show), abort=signal))
    assert (end.outcome, end.error) == ("aborted", "enough")
    assert [message.text for message in end.messages if isinstance(message, AssistantMessage)] == ["one"]
    await asyncio.sleep(0)  # Nothing of the abort is left to hit whatever the task does next.


async def test_aborting_in_a_tool_stops_it_and_answers_every_call() -> None:
    signal, stopped = AbortSignal(), asyncio.Event()

    async def long_work(context: ToolContext) -> None:
        asyncio.get_running_loop().call_soon(signal.abort, "stop")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    script = Script(says("", call("c1", text="1"), call("c2", text="2")))
    events = await run(script, abort=signal, tools={"echo": Echo(long_work)})
    assert stopped.is_set()
    assert [result.tool_call_id for result in results(events)] == ["c1", "c2"]
    assert all(result.is_error for result in results(events))
    assert the_end(events).outcome == "aborted"


async def test_aborting_during_the_pause_before_a_retry_ends_the_run() -> None:
    signal = AbortSignal()

    class StopsWhileWaiting(HeldClock):
        async def sleep(self, seconds: float) -> None:
            signal.abort("stop")
            await asyncio.Event().wait()

    events = await run(Script(ModelError("500", retryable=True)), abort=signal, clock=StopsWhileWaiting())
    assert the_end(events).outcome == "aborted"


async def test_a_run_aborted_before_it_begins_calls_no_model() -> None:
    signal = AbortSignal()
    signal.abort("rpc")
    script = Script(says("never"))
    events = await run(script, abort=signal)
    assert the_end(events).outcome == "aborted"
    assert not [event for event in events if isinstance(event, TextDelta)]


async def test_cancelling_the_task_is_not_taken_for_an_abort() -> None:
    started = asyncio.Event()

    async def hangs() -> AsyncIterator[Any]:
        started.set()
        await asyncio.Event().wait()
        yield Text("never")

    task = asyncio.create_task(run(Script(hangs)))
    await started.wait()
    task.cancel()
    done, _ = await asyncio.wait([task])
    assert done.pop().cancelled()


async def test_partial_text_of_a_cut_stream_is_kept() -> None:
    partial = says("half an ans")

    async def cut() -> AsyncIterator[Any]:
        yield Text("half an ans")
        raise ModelError("connection lost", kind="network", partial=partial)

    events = await run(Script(cut))
    message = the_end(events).messages[0]
    assert (message.text, message.stop_reason) == ("half an ans", "error")  # type: ignore[union-attr]


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


class Look(Echo):
    """A tool that changes nothing. Each call waits until ``together`` calls have begun."""

    parallel = True

    def __init__(self, together: int) -> None:
        self.begun: list[str] = []
        self._all_begun = asyncio.Event()
        self._together = together
        super().__init__(self._wait)

    async def _wait(self, context: ToolContext) -> None:
        self.begun.append(context.call_id)
        if len(self.begun) >= self._together:
            self._all_begun.set()
        await self._all_begun.wait()


async def test_calls_that_change_nothing_run_together_and_their_results_keep_the_order() -> None:
    look = Look(3)
    calls = [call(f"c{n}", "look", text=str(n)) for n in range(3)]
    async with asyncio.timeout(30):
        events = await run(Script(says("", *calls), says("ok")), tools={"look": look})
    assert [result.text for result in results(events)] == ["0", "1", "2"]
    assert sorted(look.begun) == ["c0", "c1", "c2"]


async def test_a_call_that_changes_something_waits_for_those_before_it() -> None:
    order: list[str] = []

    async def note(context: ToolContext) -> None:
        order.append(context.call_id)

    look = Look(2)
    calls = [call("a", "look", text="1"), call("b", "look", text="2"), call("c", text="3"), call("d", "look", text="4")]
    events = await run(Script(says("", *calls), says("ok")), tools={"look": look, "echo": Echo(note)})
    assert order == ["c"]
    assert look.begun[2:] == ["d"]
    assert [result.text for result in results(events)] == ["1", "2", "3", "4"]


async def test_stopping_calls_that_run_together_keeps_the_results_that_are_there() -> None:
    signal = AbortSignal()

    async def wait(context: ToolContext) -> None:
        if context.call_id == "c2":
            asyncio.get_running_loop().call_soon(signal.abort, "stop")
            await asyncio.Event().wait()

    look = Echo(wait)
    look.parallel = True  # type: ignore[attr-defined]
    script = Script(says("", call("c1", text="1"), call("c2", text="2")))
    events = await run(script, abort=signal, tools={"echo": look})
    assert [(result.text, result.is_error) for result in results(events)] == [
        ("1", False),
        ("Stopped while running (stop).", True),
    ]
    assert the_end(events).outcome == "aborted"


def again(count: int, **arguments: str) -> list[AssistantMessage]:
    return [says("", call(f"c{n}", **{"text": "x", **arguments})) for n in range(count)]


async def test_the_third_identical_call_with_the_same_result_adds_one_sentence() -> None:
    events = await run(Script(*again(4), says("ok")))
    texts = [result.text for result in results(events)]
    assert texts[:2] == ["x", "x"]
    assert [text.partition("\n")[2][:46] for text in texts[2:]] == [
        "[This call has given the same result 3 times. ",
        "[This call has given the same result 4 times. ",
    ]
    assert the_end(events).outcome == "ok"


async def test_the_sixth_identical_call_ends_the_run_with_a_notice() -> None:
    script = Script(*again(9))
    end = the_end(await run(script))
    assert end.outcome == "error"
    assert end.error is not None
    assert end.error.startswith("Stopped: the agent called echo 6 times with the same arguments")
    assert len(script.seen) == 6
    last = end.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert (last.stop_reason, last.error_message) == ("error", end.error)


async def test_different_results_are_never_a_loop() -> None:
    class Counter(Echo):
        async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
            self.calls.append(arguments["text"])
            return text_result(str(len(self.calls)))

    events = await run(Script(*again(12), says("ok")), tools={"echo": Counter()})
    assert [result.text for result in results(events)] == [str(n) for n in range(1, 13)]
    assert the_end(events).outcome == "ok"


async def test_a_repeated_check_between_new_steps_does_not_end_the_run() -> None:
    steps = [says("", call(f"t{n}", text="still red"), call(f"e{n}", text=f"edit {n}")) for n in range(10)]
    events = await run(Script(*steps, says("ok")))
    assert the_end(events).outcome == "ok"


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        (LoopDetection(enabled=False), "ok"),
        (LoopDetection(critical_threshold=20), "ok"),
        (LoopDetection(critical_threshold=2), "error"),
        (LoopDetection(by_tool={"echo": RepetitionLimits(critical_threshold=20)}), "ok"),
        (LoopDetection(critical_threshold=20, by_tool={"echo": RepetitionLimits(critical_threshold=3)}), "error"),
    ],
)
async def test_the_limits_of_repetition_are_settings(settings: LoopDetection, outcome: str) -> None:
    events = await run(Script(*again(8), says("ok")), repeats=RepeatedCalls(settings))
    assert the_end(events).outcome == outcome
