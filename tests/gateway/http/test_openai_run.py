"""Following a run: pieces as they come, a bound on what a slow caller may cost, requests that meet in one session."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.run_result import RunResult
from openclaw.events import AssistantEnded, AssistantStarted, Event, Spoken, TextDelta
from openclaw.gateway.cluster.single import SingleNode
from openclaw.gateway.http.openai_request import (
    InputMessage,
    NoMessage,
    compose,
    public_call_id,
    run_of,
    runs_named,
)
from openclaw.gateway.http.openai_run import Following, SlowReader
from openclaw.gateway.server.events import MAX_BUFFERED_BYTES
from openclaw.messages import (
    AssistantMessage,
    Message,
    Route,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from openclaw.runs.accept import Submission
from openclaw.runs.run import Run, RunIndex
from openclaw.storage.message_ledger import NO_REASON, LedgerRow, MessageBody
from tests.gateway.http.served import Served, served
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Reply

package = pytest.mark.asyncio(loop_scope="package")


def new_run() -> Run:
    row = LedgerRow(
        id=1,
        run_id=str(uuid.uuid4()),
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:x",
        session_id="s",
        source="openai",
        route=Route(),
        body=MessageBody(),
        state="accepted",
        reason=NO_REASON,
        attempts=0,
        accepted_at=0,
        started_at=None,
        ended_at=None,
        result=None,
    )
    return Run(row)


def follow(run: Run) -> Following:
    index = RunIndex(cast(Any, None), lambda _: None)  # It asks the ledger only for runs that it does not know.
    index.add(run)
    none = cast(Any, None)
    following = Following(
        run.run_id, (), index=index, leaving=asyncio.Event(), cluster=SingleNode(), ledger=none, transcripts=none
    )
    following.begin(Submission(run.row, True, False, run))
    return following


def tell(run: Run, *events: Event) -> None:
    for event in events:
        run.emit(event)


def end(following: Following, run: Run, *said: str) -> None:
    run.end("ok", 0, None, RunResult(outcome="ok", said=[Spoken(text) for text in said]))
    following._index.ended(run.run_id)


def ended(text: str, **usage: int) -> AssistantEnded:
    return AssistantEnded(AssistantMessage(content=[TextBlock(text=text)], usage=Usage(**usage)))


async def test_usage_is_the_sum_of_all_model_calls() -> None:
    run = new_run()
    following = follow(run)
    tell(run, AssistantStarted(), TextDelta("a"), ended("a", input=10, output=1, cache_read=5))
    tell(run, AssistantStarted(), TextDelta("b"), ended("b", input=20, output=2))
    end(following, run, "a", "b")
    ending = await following.ending()
    assert ending.usage is not None
    assert (ending.usage.input, ending.usage.output, ending.usage.cache_read) == (30, 3, 5)
    assert ending.text == "a\n\nb"
    assert [piece async for piece in following.text(10)] == ["a\n\nb"]


async def test_silence_gives_an_empty_piece_to_keep_the_line_open() -> None:
    run = new_run()
    following = follow(run)
    pieces = following.text(0.001)
    assert await anext(pieces) == ""
    tell(run, TextDelta("late"))
    assert await anext(pieces) == "late"
    end(following, run, "late")
    # On a busy machine more silence may pass before the end is noticed.
    assert not any([piece async for piece in pieces])


async def test_a_caller_that_does_not_read_is_given_up_within_bounds() -> None:
    run = new_run()
    following = follow(run)
    for _ in range(50):
        tell(run, TextDelta("x" * 100_000))
    assert sum(len(part) for part in following._unread) <= MAX_BUFFERED_BYTES + 100_000
    with pytest.raises(SlowReader):
        async for _ in following.text(10):
            pass


async def test_leaving_takes_the_follower_off_the_run() -> None:
    run = new_run()
    following = follow(run)
    following.leave()
    tell(run, TextDelta("unheard"))
    assert following._unread == []
    following.leave()


@package
async def test_requests_that_meet_in_one_session_each_get_their_own_answer(gateway: Served) -> None:
    user = str(uuid.uuid4())

    async def one(number: int) -> str:
        message = {"role": "user", "content": f"[[sleep:20]][[reply:answer {number}]]"}
        _, answer = await gateway.post("/v1/chat/completions", {"messages": [message], "user": user})
        return answer["choices"][0]["message"]["content"]

    assert await asyncio.gather(*(one(number) for number in range(5))) == [f"answer {n}" for n in range(5)]


@package
async def test_a_session_that_may_not_be_sent_to_is_refused(gateway: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hi [[reply:ok]]"}], "user": "muted"}
    await gateway.post("/v1/chat/completions", body)
    await gateway.rpc("sessions.patch", {"key": "agent:main:openai-user:muted", "sendPolicy": "deny"})
    status, answer = await gateway.post("/v1/chat/completions", body)
    assert status == 403
    assert answer["error"]["message"] == "send blocked by session policy"


async def test_a_refused_request_leaves_nothing_that_listens_to_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"messages": [{"role": "user", "content": "hi [[reply:ok]]"}], "user": "muted"}
    followed: dict[str, Any] = {}
    relay = SimpleNamespace(follow=followed.__setitem__, unfollow=lambda run_id, _heard: followed.pop(run_id, None))
    async with served(tmp_path) as gateway:
        await gateway.post("/v1/chat/completions", body)
        await gateway.rpc("sessions.patch", {"key": "agent:main:openai-user:muted", "sendPolicy": "deny"})
        assert isinstance(gateway.gateway, InProcessGateway)
        with monkeypatch.context() as patched:
            patched.setattr(gateway.gateway.gateway.cluster, "relay", relay)
            status, _ = await gateway.post("/v1/chat/completions", body)
    assert (status, followed) == (403, {})


async def test_a_request_is_answered_although_another_node_went_on_with_its_run(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "user": "moved"}
    async with served(tmp_path) as gateway:
        assert isinstance(gateway.gateway, InProcessGateway)
        parts, hold = gateway.gateway.gateway, asyncio.Event()
        gateway.model.queue(Reply("never", hold=hold, hold_after=0))
        asking = asyncio.create_task(gateway.post("/v1/chat/completions", body))
        await gateway.model.wait_for_requests(1)
        [run] = parts.runs.active("agent:main:openai-user:moved")
        parts.runs.drop_session(run.session_key)
        # What this node sees of the other one: the end in the ledger, and that it is told of it.
        await parts.runtime.stores.ledger.finish(run.row.id, "answered", result={"text": "said elsewhere"})
        parts.runs.index.wake_waiters(run.run_id)
        status, answer = await asyncio.wait_for(asking, 60)
        hold.set()
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "said elsewhere")


async def test_endpoints_are_off_unless_switched_on(tmp_path: Path) -> None:
    async with served(tmp_path, {}) as closed:
        for path in ("/v1/chat/completions", "/v1/responses"):
            status, answer = await closed.post(path, {"messages": [], "model": "openclaw", "input": "hi"})
            assert status == 404
            assert "gateway.http.endpoints." in answer["error"]["message"]
        assert closed.model.requests == type(closed.model.requests)()


RUN = "3d0a9f6e-6f0c-4a5e-9c55-8a5a4d5b7c11"


def user(text: str, **more: Any) -> InputMessage:
    return InputMessage(role="user", text=text, **more)


def assistant(text: str, **more: Any) -> InputMessage:
    return InputMessage(role="assistant", text=text, **more)


def tool(text: str, call_id: str = "", name: str = "") -> InputMessage:
    return InputMessage(role="tool", text=text, call_id=call_id, name=name)


def answered(text: str, *calls: ToolCall, stop: Any = "stop") -> AssistantMessage:
    return AssistantMessage(content=[TextBlock(text=text), *calls], stop_reason=stop)


def call(id: str = "toolu_1", name: str = "look") -> ToolCall:
    return ToolCall(id=id, name=name, arguments={})


def wrapped(*lines: str) -> str:
    *history, current = lines
    parts = ["[Chat messages since your last reply - for context]", *history, "", "[Current message - respond to this]"]
    return "\n".join([*parts, current])


SAID = UserMessage(content="hello")


@pytest.mark.parametrize(
    ("said", "known", "text"),
    [
        ([user("hi")], [], "hi"),
        ([user("a"), user("b")], [], wrapped("User: a", "User: b")),
        ([user("a"), assistant("b"), user("c")], [], wrapped("User: a", "Assistant: b", "User: c")),
        ([user("a"), assistant("b"), user("c")], [SAID, answered("b")], "c"),
        ([user("a"), assistant("b"), user("c")], [SAID, answered(" b\n")], "c"),
        ([user("a"), assistant("x\n\nb"), user("c")], [SAID, answered("x", call()), answered("b")], "c"),
        ([user("a"), assistant("b"), user("c")], [SAID, answered("d")], wrapped("User: a", "Assistant: b", "User: c")),
        ([user("a"), assistant("b"), user("c"), user("d")], [SAID, answered("b")], wrapped("User: c", "User: d")),
        ([user("a"), assistant("started an ans")], [], "a"),
        ([user("a"), tool("42", name="sum")], [], wrapped("User: a", "Tool:sum: 42")),
        ([user("a"), tool("42", "call_9")], [], wrapped("User: a", "Tool:call_9: 42")),
        ([user(""), user("a")], [], "a"),
    ],
)
def test_only_what_the_session_does_not_hold_is_said(said: list[InputMessage], known: list[Message], text: str) -> None:
    assert compose(said, known, 0).text == text


@pytest.mark.parametrize("said", [[], [assistant("x")], [user(" ")], [assistant("x"), user("")]])
def test_a_conversation_without_a_question_has_no_prompt(said: list[InputMessage]) -> None:
    with pytest.raises(NoMessage):
        compose(said, [], 0)


def test_an_output_goes_to_the_call_that_waits_for_it() -> None:
    known: list[Message] = [SAID, answered("", call("toolu_1", "look"), call("toolu_2", "peek"))]
    said = [
        user("hello"),
        assistant("[called look()]", calls=["x"]),
        tool("seen", public_call_id(RUN, "toolu_1")),
        tool("peeked", "toolu_2"),
    ]
    prompt = compose(said, known, 7)
    assert (prompt.text, prompt.continues) == ("", True)
    assert [(one.tool_call_id, one.tool_name, one.text) for one in prompt.tool_outputs] == [
        ("toolu_1", "look", "seen"),
        ("toolu_2", "peek", "peeked"),
    ]


def test_words_of_the_user_may_come_with_an_output() -> None:
    known: list[Message] = [SAID, answered("", call())]
    prompt = compose([user("hello"), assistant("-"), tool("seen", "toolu_1"), user("and hurry")], known, 0)
    assert prompt.text == "and hurry"
    assert len(prompt.tool_outputs) == 1


def test_an_output_that_was_already_written_down_is_not_written_twice() -> None:
    result = ToolResultMessage(tool_call_id="toolu_1", tool_name="look", content=[TextBlock(text="seen")])
    known: list[Message] = [SAID, answered("", call()), result, answered("", stop="error")]
    prompt = compose([user("hello"), assistant("-"), tool("seen", "toolu_1")], known, 0)
    assert prompt.continues
    assert (prompt.text, prompt.tool_outputs) == ("", [])


def test_an_output_nobody_waits_for_is_told_in_words() -> None:
    prompt = compose([user("hello"), assistant("-"), tool("seen", "toolu_9", "look")], [SAID, answered("done")], 0)
    assert prompt.tool_outputs == []
    assert prompt.text.endswith("Tool:look: seen")


def test_pictures_of_everything_that_is_said_come_along_in_order() -> None:
    prompt = compose([user("see", images=["one"]), assistant("ok"), user("and", images=["two", "three"])], [], 0)
    assert prompt.images == ["one", "two", "three"]
    assert "User: see [image attached]" in prompt.text
    assert prompt.text.endswith("User: and [image 2 attached]")


@given(st.uuids(), st.text())
def test_a_call_id_leads_back_to_its_run(run: uuid.UUID, call_id: str) -> None:
    public = public_call_id(str(run), call_id)
    assert run_of(public) == str(run)
    assert len(public) <= 40
    assert public.isascii()


@given(st.text())
def test_foreign_ids_name_no_run(text: str) -> None:
    assert run_of(text) is None or text.startswith("call_")


def test_runs_are_named_newest_first_and_once() -> None:
    other = str(uuid.uuid4())
    said = [
        assistant("", calls=[public_call_id(other, "a")]),
        tool("", public_call_id(other, "a")),
        assistant("", calls=[public_call_id(RUN, "b")]),
    ]
    assert runs_named(said) == [RUN, other]
