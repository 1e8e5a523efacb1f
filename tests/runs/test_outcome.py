"""What of a run's end goes out through a channel."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.agent.run_result import NO_WORDS, RAN_OUT, RunResult
from openclaw.config.load import parse_config
from openclaw.events import Silent, Spoken, Unsaid
from openclaw.messages import AssistantMessage, Route, ToolCall
from openclaw.outbound.chunking import limits_for
from openclaw.outbound.reply import ReplyShape
from openclaw.runs.endings import ending_of, reply_parts

SIGNAL = Route(channel="signal", to="signal:+15550000042")
EMPTY = AssistantMessage(content=[])
CUT = AssistantMessage(content=[], stop_reason="length")
FIRST = Spoken("first")
CALLS = AssistantMessage(content=[ToolCall(id="c", name="theirs", arguments={})])


@pytest.mark.parametrize(
    ("result", "state", "texts"),
    [
        (RunResult(outcome="ok", said=[Spoken("hi")], speech=Spoken("hi"), final=EMPTY), "answered", ["hi"]),
        (RunResult(outcome="ok", speech=Silent("NO_REPLY"), final=EMPTY), "silent", []),
        (
            RunResult(outcome="ok", said=[FIRST], speech=Silent("NO_REPLY"), final=EMPTY),
            "answered",
            ["first"],
        ),
        (RunResult(outcome="ok", speech=Unsaid(), final=EMPTY), "answered", [NO_WORDS]),
        (RunResult(outcome="ok", speech=Unsaid(), final=CUT), "answered", [RAN_OUT]),
        (RunResult(outcome="ok", speech=Unsaid(), final=CALLS), "answered", []),
        (RunResult(outcome="ok", said=[FIRST], speech=Unsaid(), final=EMPTY), "answered", ["first"]),
        (
            RunResult(outcome="ok", said=[Spoken("hi")], speech=Spoken("hi"), reasoning="a\nb", final=EMPTY),
            "answered",
            ["Reasoning:\n_a_\n_b_", "hi"],
        ),
        (RunResult(outcome="error", error="it broke", said=[Spoken("so far")]), "failed", ["so far", "⚠️ it broke"]),
        (RunResult(outcome="aborted", error="rpc", said=[Spoken("so far")]), "superseded", []),
    ],
)
def test_an_end_and_what_is_delivered_of_it(result: RunResult, state: str, texts: list[str]) -> None:
    config: Any = parse_config("openclaw.json", "{}", {}).config
    ending = ending_of(result)
    assert ending.state == state
    shape = ReplyShape(limits=limits_for(config, "signal"))
    assert [part.payload["text"] for part in reply_parts(SIGNAL, ending, result, shape)] == texts
