"""What became of a message, in sentences: one table per part of its life."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.messages import Route
from openclaw.runs.delivery_report import delivery_text
from openclaw.runs.history import MessageHistory, answered_by
from openclaw.runs.reasons import reason_text
from openclaw.runs.why import explain, summary
from openclaw.storage.disk_errors import DiskWait
from openclaw.storage.files.ledger_db import delivery_from_sentence, reason_from_sentence
from openclaw.storage.message_ledger import (
    END_STATES,
    DeliveryCode,
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxRow,
    Reason,
    ReasonCode,
    StateChange,
    ToolCallRow,
)
from openclaw.text import duration

START = 1_794_766_925_000  # 2026-11-15 18:22:05 UTC
ACCEPTED = "Accepted on 2026-11-15 at 18:22:05 from webchat, for session agent:main:main."
KEPT = "The answer went to the clients that were connected and is kept in the session."
WAITING = "another message of this session is running"


STOPPED_BEFORE = "the Gateway stopped before it began"


def reason(sentence: str) -> Reason:
    """The reason that a sentence stands for; it is put into the same words again."""
    found = reason_from_sentence(sentence)
    assert reason_text(found) == sentence
    return found


def message(state: str = "answered", *, reason: str = "", **fields: Any) -> LedgerRow:
    base: dict[str, Any] = {"id": 7, "run_id": "r7", "dedupe_key": "", "agent_id": "main"}
    base |= {
        "session_key": "agent:main:main",
        "session_id": "s",
        "source": "webchat",
        "route": Route(channel="webchat"),
    }
    base |= {
        "body": MessageBody(prompt="hello"),
        "reason": reason_from_sentence(reason),
        "attempts": 1,
        "accepted_at": START,
        "started_at": START + 10,
    }
    base |= {"ended_at": START + 2_010 if state in END_STATES else None, "result": None, "state": state}
    return LedgerRow(**(base | fields))


def changes(*steps: tuple[int, str] | tuple[int, str, str]) -> list[StateChange]:
    return [
        StateChange(at=START + step[0], state=step[1], reason=reason(step[2] if len(step) > 2 else ""))
        for step in ((0, "accepted"), *steps)
    ]


def call(name: str, at: int, finished: int | None, ok: bool | None = True) -> ToolCallRow:
    finished_at = None if finished is None else START + finished
    return ToolCallRow(
        ledger_id=7,
        call_id=f"{name}{at}",
        name=name,
        arguments="{}",
        started_at=START + at,
        finished_at=finished_at,
        ok=None if finished is None else ok,
    )


def part(number: int, state: Any, **fields: Any) -> OutboxRow:
    base: dict[str, Any] = {"id": number + 1, "ledger_id": 7, "run_id": "r7", "part": number, "channel": "signal"}
    base |= {"route": Route(), "payload": {}, "state": state, "attempts": 1, "next_at": 0, "created_at": START}
    doubts, code, problem = delivery_from_sentence(fields.pop("error", ""))
    return OutboxRow(**(base | fields), doubts=doubts, code=code, error=problem)


def test_an_answered_message_tells_when_where_and_what() -> None:
    row = message(result={"text": "Hi there", "model": "mock/mock-1"})
    assert explain(MessageHistory(row, changes((10, "running"), (2_010, "answered")), [], []), START + 9_000) == [
        ACCEPTED,
        "It ran on mock/mock-1 for 2 s.",
        "Answered on 2026-11-15 at 18:22:07: “Hi there”",
        KEPT,
    ]


@pytest.mark.parametrize(
    ("state", "reason", "result", "end"),
    [
        ("answered", "", {"text": "a\n b  c"}, "Answered on 2026-11-15 at 18:22:07: “a b c”"),
        ("answered", "", {}, "Answered on 2026-11-15 at 18:22:07."),
        ("silent", "", {}, "The agent decided on 2026-11-15 at 18:22:07 to say nothing."),
        ("silent", "NO_REPLY", {}, "The agent decided on 2026-11-15 at 18:22:07 to say nothing: NO_REPLY."),
        ("failed", "no key for mock", {}, "Failed on 2026-11-15 at 18:22:07: no key for mock."),
        ("failed", "Send it again.", {}, "Failed on 2026-11-15 at 18:22:07: Send it again."),
        ("failed", "", {}, "Failed on 2026-11-15 at 18:22:07: no reason was recorded."),
        (
            "failed",
            "the run took longer than its time limit",
            {},
            "Failed on 2026-11-15 at 18:22:07: the run took longer than its time limit.",
        ),
        ("expired", "", {}, "Expired on 2026-11-15 at 18:22:07: it had waited too long to be answered."),
        ("expired", "older than a day", {}, "Expired on 2026-11-15 at 18:22:07: older than a day."),
        (
            "superseded",
            "collected into run r9",
            {"answeredBy": "r9"},
            "It was answered together with later ones: they became one prompt on 2026-11-15 at 18:22:07, in run r9.",
        ),
        (
            "superseded",
            "taken into run r9",
            {"answeredBy": "r9"},
            "Run r9 received its text on 2026-11-15 at 18:22:07 and gave the answer.",
        ),
        (
            "superseded",
            "its words were taken into the run before it",
            {},
            "It ended on 2026-11-15 at 18:22:07 without an answer of its own: "
            "its words were taken into the run before it.",
        ),
        (
            "superseded",
            "Dropped: more messages were waiting than the queue holds (2).",
            {},
            "It ended on 2026-11-15 at 18:22:07 without an answer of its own: "
            "Dropped: more messages were waiting than the queue holds (2).",
        ),
        ("superseded", "stopped (rpc)", {}, "Stopped on 2026-11-15 at 18:22:07: a client asked for it."),
        (
            "superseded",
            "stopped (interrupt)",
            {},
            "Stopped on 2026-11-15 at 18:22:07: a newer message interrupted it.",
        ),
        (
            "superseded",
            "stopped (stop)",
            {},
            "Stopped on 2026-11-15 at 18:22:07: someone said stop.",
        ),
        ("superseded", "stopped (reset)", {}, "Stopped on 2026-11-15 at 18:22:07: the session was reset."),
        ("superseded", "stopped (delete)", {}, "Stopped on 2026-11-15 at 18:22:07: the session was deleted."),
        ("superseded", "stopped (budget)", {}, "Stopped on 2026-11-15 at 18:22:07: stopped (budget)."),
    ],
)
def test_every_end_has_its_sentence(state: str, reason: str, result: dict[str, Any], end: str) -> None:
    row = message(state, reason=reason, result=result)
    assert end in explain(MessageHistory(row, changes((10, "running"), (2_010, state, reason)), [], []), START + 9_000)


@pytest.mark.parametrize(
    ("state", "steps", "sentence"),
    [
        ("answered", [(5, "queued", WAITING), (3_205, "running")], "It waited 3.2 s behind another message"),
        (
            "superseded",
            [(5, "queued", f"{WAITING}; what comes meanwhile is collected"), (9_005, "superseded")],
            "It waited 9 s behind another message of its session, to be collected with what else came.",
        ),
        ("queued", [(0, "queued", WAITING)], "It has been waiting for 20 s behind another message of its session."),
        (
            "superseded",
            [(5, "queued", "to be taken into run r6"), (400, "superseded")],
            "It was handed to run r6, which was under way.",
        ),
        ("queued", [(0, "queued", "the disk is full")], "It has been waiting for 20 s (the disk is full)."),
        ("answered", [(61_000, "running")], "It began 1 min 1 s later."),
        ("accepted", [], "It has not begun yet, 20 s after it was accepted."),
        ("running", [(10, "running")], "It has been running for 19 s."),
    ],
)
def test_waiting_is_told_with_its_length_and_cause(state: str, steps: list[Any], sentence: str) -> None:
    told = explain(MessageHistory(message(state), changes(*steps), [], []), START + 20_000)
    assert any(line.startswith(sentence) for line in told), told


def test_a_stop_that_was_noted_before_the_end_is_no_wait() -> None:
    steps = changes((5, "running"), (4_000, "queued", "stopped (rpc)"), (4_010, "superseded", "stopped (rpc)"))
    told = explain(MessageHistory(message("superseded"), steps, [], []), START + 20_000)
    assert not any("waited" in line for line in told), told


def test_a_short_wait_is_not_worth_a_sentence() -> None:
    assert len(explain(MessageHistory(message("running"), changes((900, "running")), [], []), START + 1_000)) == 2


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (
            [(10, "running"), (60_000, "running")],
            "The Gateway stopped once while it worked on it and took it up again on 2026-11-15 at 18:23:05.",
        ),
        (
            [(10, "running"), (60_000, "running"), (120_000, "running")],
            "The Gateway stopped twice while it worked on it and took it up again, the last time on "
            "2026-11-15 at 18:24:05.",
        ),
    ],
)
def test_restarts_are_counted(steps: list[Any], sentence: str) -> None:
    assert (
        explain(MessageHistory(message("running", attempts=len(steps)), changes(*steps), [], []), START + 200_000)[1]
        == sentence
    )


@pytest.mark.parametrize(
    ("state", "calls", "sentence"),
    [
        ("answered", [call("read", 20, 30)], "It called read once."),
        ("answered", [call("read", 20, 30, ok=False)], "It called read once (failed)."),
        (
            "answered",
            [call("exec", 20, None), call("exec", 6_000, 6_100)],
            "It called exec twice (one interrupted by a restart, not repeated).",
        ),
        (
            "answered",
            [call("exec", 20, 21), call("read", 22, 23), call("exec", 24, 25, ok=False), call("exec", 26, None)],
            "It called exec 3 times (one failed, one interrupted by a restart, not repeated) and read once.",
        ),
        ("running", [call("exec", 6_000, None)], "It called exec once (still running)."),
        ("failed", [call("exec", 6_000, None)], "It called exec once (without a recorded end)."),
        (
            "answered",
            [call("a", 1, 2), call("b", 3, 4), call("c", 5, 6)],
            "It called a once, b once and c once.",
        ),
    ],
)
def test_tool_calls_are_told_with_how_they_went(state: str, calls: list[ToolCallRow], sentence: str) -> None:
    told = explain(
        MessageHistory(message(state, attempts=2), changes((10, "running"), (5_000, "running")), calls, []),
        START + 9_000,
    )
    assert sentence in told


@pytest.mark.parametrize(
    ("outbox", "sentences"),
    [
        ([part(0, "sent")], ["Delivered to signal."]),
        ([part(0, "sent", attempts=3)], ["Delivered to signal after 3 tries."]),
        ([part(0, "sent"), part(1, "sent")], ["Delivered to signal in 2 parts."]),
        ([part(0, "sent", error="possibly delivered twice")], ["Delivered to signal (possibly delivered twice)."]),
        ([part(0, "pending", attempts=0)], ["The reply is waiting to be delivered to signal."]),
        (
            [part(0, "pending", next_at=START + 14_000, error="HTTP 503")],
            ["The reply is waiting to be delivered to signal (1 try so far; next in 5 s; last problem: HTTP 503)."],
        ),
        (
            [part(0, "pending", error="interrupted")],
            [
                "The reply is waiting to be delivered to signal (1 try so far; it may have arrived already: nobody "
                "learned what became of the last try)."
            ],
        ),
        (
            [part(0, "dead", error="in doubt 3 times, so not sent again: no answer")],
            ["Whether the reply reached signal is not known: in doubt 3 times, so not sent again: no answer."],
        ),
        (
            [part(0, "dead", error="interrupted: blocked"), part(1, "dead", error="an earlier part")],
            [
                "Whether 1 of 2 parts reached signal is not known: blocked.",
                "1 of 2 parts was not delivered to signal: an earlier part.",
            ],
        ),
        ([part(0, "sending")], ["The reply is being sent to signal now."]),
        ([part(0, "dead", error="blocked")], ["The reply was not delivered to signal: blocked."]),
        ([part(0, "dead")], ["The reply was not delivered to signal: no reason was recorded."]),
        (
            [part(0, "sent"), part(1, "dead", error="too long"), part(2, "pending", attempts=0), part(3, "sending")],
            [
                "Delivered to signal: 1 of 4 parts.",
                "1 of 4 parts is being sent to signal now.",
                "1 of 4 parts is waiting to be delivered to signal.",
                "1 of 4 parts was not delivered to signal: too long.",
            ],
        ),
    ],
)
def test_delivery_is_told_part_by_part(outbox: list[OutboxRow], sentences: list[str]) -> None:
    row = message(route=Route(channel="signal", to="+1"), result={"text": "x"})
    told = explain(MessageHistory(row, changes((10, "running"), (2_010, "answered")), [], outbox), START + 9_000)
    assert told[3:] == sentences


@pytest.mark.parametrize(
    "error",
    [
        "",
        "HTTP 503",
        "interrupted",
        "interrupted: HTTP 503",
        "interrupted 2 times",
        "interrupted 2 times: expired: HTTP 503",
        "in doubt 3 times, so not sent again: no answer",
        "in doubt 3 times, so not sent again: the Gateway stopped while sending it",
        "possibly delivered twice: it was in doubt whether the first try arrived",
    ],
)
def test_clients_see_the_same_words_about_a_delivery_as_before(error: str) -> None:
    assert delivery_text(part(0, "dead", error=error)) == error


def test_a_message_that_needed_no_run_says_so() -> None:
    row = message(started_at=None, attempts=0, route=Route(channel="signal", to="+1"))
    told = explain(MessageHistory(row, changes((0, "answered")), [], [part(0, "sent")]), START)
    assert told[1:] == [
        "It needed no run of the agent and was done on 2026-11-15 at 18:22:07.",
        "Delivered to signal.",
    ]


@pytest.mark.parametrize(
    ("row", "steps", "sentence"),
    [
        (message("silent", reason="a rule", attempts=0), [(5, "silent")],
         "It got no answer and needed no run of the agent; done on 2026-11-15 at 18:22:07: a rule."),
        (message(body=MessageBody(prompt="x", message_ids=["1", "2"])), [],
         "It was put together from 2 messages that came one right after the other."),
        (message(), [(5, "queued", STOPPED_BEFORE), (9, "running")],
         "The Gateway stopped before it began and took it up again."),
        (message(result={"diskWait": {"ms": 3_250, "problem": "No space left on device"}}), [],
         "It had to wait 3.2 s for the disk: No space left on device."),
        (message("failed", reason="x"), [], "The clients that were connected were told so."),
        (message("expired", reason="x"), [], "The clients that were connected were told so."),
    ],
)  # fmt: skip
def test_what_else_a_story_may_tell(row: LedgerRow, steps: list[Any], sentence: str) -> None:
    assert sentence in explain(MessageHistory(row, changes(*steps), [], []), START + 9_000)


def test_a_message_that_waits_for_the_disk_says_so_while_it_waits() -> None:
    disk = DiskWait()
    disk.waiting, disk.problem = True, "No space left on device"
    told = explain(MessageHistory(message("running"), changes((10, "running")), [], []), START + 9_000, disk=disk)
    assert told[-1] == (
        "It waits for the disk now: No space left on device. It goes on by itself when the disk takes it."
    )


def test_the_notice_of_a_failure_is_told_as_one() -> None:
    row = message("failed", reason="no key", route=Route(channel="signal", to="+1"))
    told = explain(MessageHistory(row, changes((10, "running"), (20, "failed")), [], [part(0, "sent")]), START + 9_000)
    assert told[-1] == "The notice was delivered to signal."
    told = explain(
        MessageHistory(row, changes((10, "running"), (20, "failed")), [], [part(0, "dead", error="gone")]),
        START + 9_000,
    )
    assert told[-1] == "The notice was not delivered to signal: gone."


def test_times_are_told_in_the_zone_of_the_reader() -> None:
    told = explain(
        MessageHistory(message("accepted"), changes(), [], []), START, timezone(timedelta(hours=5, minutes=30))
    )
    assert told[0].startswith("Accepted on 2026-11-15 at 23:52:05 ")


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (message(result={"text": "Hi"}), "2026-11-15 18:22:05 “hello”: “Hi” after 2 s"),
        (message(), "2026-11-15 18:22:05 “hello”: answered after 2 s"),
        (message("failed", reason="no key"), "2026-11-15 18:22:05 “hello”: failed (no key)"),
        (message("silent"), "2026-11-15 18:22:05 “hello”: silent"),
        (message("superseded", reason="stopped (rpc)"), "2026-11-15 18:22:05 “hello”: stopped (a client asked for it)"),
        (message("superseded", result={"answeredBy": "r9"}), "2026-11-15 18:22:05 “hello”: answered in run r9"),
        (message("queued"), "2026-11-15 18:22:05 “hello”: queued for 30 s"),
        (message("running"), "2026-11-15 18:22:05 “hello”: running for 29 s"),
    ],
)
def test_a_list_has_one_line_per_message(row: LedgerRow, line: str) -> None:
    assert summary(row, "hello", START + 30_000) == line


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (9_999, "9.9 s"),
        (41_700, "41 s"),
        (60_000, "1 min"),
        (303_000, "5 min 3 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_lengths_of_time_read_naturally(ms: int, text: str) -> None:
    assert duration(ms) == text


reasons = (
    st.sampled_from(["", WAITING, "to be taken into run r1", "stopped (rpc)", "collected into run r2", "\n", "a\nb"])
    | st.text()
)
states = st.sampled_from(get_args(MessageState))


@given(
    state=states,
    reason=reasons,
    steps=st.lists(st.tuples(st.integers(-10_000, 10**9), states, reasons), max_size=6),
    calls=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 10**6), st.none() | st.integers(0, 10**6)), max_size=5
    ),
    parts=st.lists(st.tuples(st.sampled_from(["pending", "sending", "sent", "dead"]), st.text(max_size=5)), max_size=4),
    result=st.none()
    | st.fixed_dictionaries(
        {}, optional={"text": st.text(), "model": st.text() | st.just("\n"), "answeredBy": st.text() | st.just("a\nb")}
    ),
    now=st.integers(-10_000, 10**9),
)
def test_whatever_the_ledger_holds_can_be_told(
    state: str, reason: str, steps: Any, calls: Any, parts: Any, result: Any, now: int
) -> None:
    """Clock jumps, odd orders and unknown reasons included: every sentence is one line with something in it."""
    row = message(state, reason=reason, result=result)
    tools = [call(name, at, end) for name, at, end in calls]
    outbox = [part(number, how, error=error) for number, (how, error) in enumerate(parts)]
    told = explain(MessageHistory(row, changes(*steps), tools, outbox), START + now)
    assert told[0] == ACCEPTED
    ends = [line for line in told if line.startswith(("Answered", "The agent decided", "Failed", "Expired", "Stopped"))]
    ends += [
        line
        for line in told
        if line.startswith(("It needed no run", "It got no", "It was answered", "Its words", "It ended"))
    ]
    assert len(ends) == (1 if state in END_STATES else 0)
    assert all(line.strip() and "\n" not in line for line in [*told[1:], summary(row, "x", START + now)])
    assert answered_by(row) == (result or {}).get("answeredBy")


@pytest.mark.parametrize(
    ("state", "reason", "result", "told"),
    [
        ("running", Reason(), None, ["It is a command, and the Gateway has been working on it for 1 min."]),
        (
            "answered",
            Reason(ReasonCode.COMMAND),
            {"text": "Compacted."},
            [
                "It is a command, and the Gateway worked on it for 1 s.",
                "Answered on 1970-01-01 at 00:00:02: “Compacted.”",
            ],
        ),
        (
            "failed",
            Reason(ReasonCode.COMMAND_INTERRUPTED),
            None,
            [
                "It is a command, and the Gateway worked on it for 1 s.",
                "Failed on 1970-01-01 at 00:00:02: the Gateway stopped while it carried this command out, and did not "
                "repeat it.",
            ],
        ),
    ],
)
def test_a_command_is_told_from_its_acknowledgement_on(
    state: Any, reason: Reason, result: dict[str, Any] | None, told: list[str]
) -> None:
    row = LedgerRow(
        id=1,
        run_id="r",
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:main",
        session_id="s",
        source="webchat",
        route=Route(),
        body=MessageBody(prompt="/compact", command=True),
        state=state,
        reason=reason,
        accepted_at=1000,
        ended_at=None if state == "running" else 2000,
        result=result,
    )
    changes = [
        StateChange(at=1000, state="accepted", reason=Reason()),
        StateChange(at=1000, state="running", reason=Reason()),
    ]
    lines = explain(MessageHistory(row, changes, [], []), now=61_000)
    assert lines[1 : 1 + len(told)] == told


def test_an_answered_error_is_told_as_an_uncertain_delivery() -> None:
    waiting = msgspec.structs.replace(part(0, "pending"), doubts=1, code=DeliveryCode.ANSWERED_ERROR, error="HTTP 503")
    assert delivery_text(waiting) == "the platform reported an error, so it is uncertain whether it arrived: HTTP 503"
