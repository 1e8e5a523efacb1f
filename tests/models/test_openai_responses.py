from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.messages import (
    AssistantMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from openclaw.models.base import Model, ModelError, Text, Thinking, ToolCallStart
from openclaw.models.openai_responses import ResponsesStream, build_body, build_request
from tests.models.histories import IMAGES
from tests.models.streams import READ, ask, collect, done_of, feed, sse
from tests.support.model_rules_openai import check_responses
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.model_wire import responses_stream

API = "openai-responses"
MODEL = Model(provider="openai", id="gpt-5", api=API, reasoning=True, input=("text", "image"), max_tokens=128_000)


def event(kind: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "output_index": index, **fields}


def completed(status: str = "completed", **fields: Any) -> dict[str, Any]:
    return event(status, response={"status": status, "output": [], **fields})


def read(*events: Any) -> AssistantMessage:
    return done_of(feed(ResponsesStream(MODEL), sse(*events)))


async def test_a_whole_turn_streams_thinking_text_and_a_call(server: ModelServer) -> None:
    usage = {"input": 100, "output": 20, "cacheRead": 1000, "reasoning": 10}
    server.queue(Reply(thinking="let me see", text="Reading it.", calls=[Call("read", {"path": "a"})], usage=usage))
    request = ask(server.model(API, reasoning=True), tools=[READ], thinking="low", session_id="s-1")
    events = await collect(request, server.api_key)
    message = done_of(events)
    assert "".join(event.delta for event in events if isinstance(event, Thinking)) == "let me see"
    assert "".join(event.delta for event in events if isinstance(event, Text)) == "Reading it."
    thought, text, call = message.content
    assert isinstance(thought, ThinkingBlock)
    assert msgspec.json.decode(thought.thinking_signature or "")["encrypted_content"] == "c2lnbmF0dXJl"
    assert text == TextBlock(text="Reading it.", text_signature="msg_000001")
    assert call == ToolCall(id="toolu_000001_0|fc_000001_0", name="read", arguments={"path": "a"})
    assert ToolCallStart("toolu_000001_0|fc_000001_0", "read") in events
    assert (message.usage.input, message.usage.output, message.usage.cache_read) == (100, 20, 1000)
    assert message.stop_reason == "toolUse"
    sent = server.requests[0].body
    assert (sent["store"], sent["prompt_cache_key"]) == (False, "s-1")
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert sent["reasoning"] == {"effort": "low", "summary": "auto"}
    assert sent["tools"][0]["strict"] is False


async def test_the_next_turn_returns_reasoning_text_and_call_with_their_ids(server: ModelServer) -> None:
    model = server.model(API, reasoning=True)
    server.queue(Reply(thinking="hm", text="Reading.", calls=[Call("read", {"path": "a"})]), Reply(text="done"))
    first = ask(model, tools=[READ])
    reply = done_of(await collect(first, server.api_key))
    picture = IMAGES[0]
    result = ToolResultMessage(tool_call_id=reply.tool_calls[0].id, tool_name="read", content=[picture])
    second = ask(model, messages=[*first.messages, reply, result], tools=[READ])
    assert done_of(await collect(second, server.api_key)).text == "done"
    items = server.requests[-1].body["input"]
    assert [item.get("id") for item in items[2:5]] == ["rs_000001", "msg_000001", "fc_000001_0"]
    assert items[5]["call_id"] == items[4]["call_id"] == "toolu_000001_0"
    assert items[5]["output"][0]["image_url"] == f"data:image/png;base64,{picture.data}"


async def test_a_server_that_does_not_stream_is_understood(server: ModelServer) -> None:
    item = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "whole"}],
    }
    body = {"status": "completed", "output": [item], "usage": {"input_tokens": 3, "output_tokens": 2}}
    server.queue(Reply(raw=msgspec.json.encode(body), content_type="application/json"))
    events = await collect(ask(server.model(API)), server.api_key)
    assert events[0] == Text("whole")
    assert done_of(events).usage.input == 3


def test_another_models_history_is_sent_without_ids() -> None:
    foreign = AssistantMessage(
        content=[
            ThinkingBlock(thinking="hm", thinking_signature="sig"),
            TextBlock(text="hi", text_signature="msg_1"),
            ToolCall(id="call_1|fc_1", name="read", arguments={}),
        ],
        provider="other", model="gpt-4", api=API,
    )  # fmt: skip
    body = build_body(ask(MODEL, messages=[UserMessage(content="u"), foreign], tools=[READ]))
    check_responses(body)
    assert body["input"][2:5] == [
        {"role": "assistant", "content": "hm"},
        {"role": "assistant", "content": "hi"},
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
    ]


def test_reasoning_that_led_to_nothing_is_left_out() -> None:
    signature = '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}'
    alone = AssistantMessage(
        content=[ThinkingBlock(thinking="", thinking_signature=signature)],
        provider=MODEL.provider, model=MODEL.id, api=API,
    )  # fmt: skip
    body = build_body(ask(MODEL, messages=[UserMessage(content="u"), alone, UserMessage(content="v")]))
    check_responses(body)
    assert "reasoning" not in [item.get("type") for item in body["input"]]


def test_the_prompts_two_parts_are_two_items_so_that_the_first_stays_cached() -> None:
    said = [UserMessage(content="hello")]
    body = build_body(ask(MODEL, messages=said, system="stable", system_suffix="Be brief.", turn_facts="It is noon."))
    assert body["input"] == [
        {"role": "developer", "content": "stable"},
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}, {"type": "input_text", "text": "It is noon."}],
        },
    ]
    assert build_request(ask(MODEL), "k").url == "https://api.openai.com/v1/responses"


def test_a_small_limit_is_raised_to_what_the_api_accepts() -> None:
    assert build_body(ask(MODEL, max_tokens=3))["max_output_tokens"] == 16


def test_a_temperature_is_sent_only_to_models_that_take_one() -> None:
    assert "temperature" not in build_body(ask(MODEL, temperature=0.2, thinking="low"))
    quiet = msgspec.structs.replace(MODEL, id="gpt-5.4")
    assert build_body(ask(quiet, temperature=0.2))["temperature"] == 0.2
    assert build_body(ask(quiet))["reasoning"] == {"effort": "none"}


def test_summary_parts_are_separated() -> None:
    message = read(
        event("output_item.added", item={"type": "reasoning", "id": "rs_1", "summary": []}),
        event("reasoning_summary_text.delta", summary_index=0, delta="one"),
        event("reasoning_summary_text.delta", summary_index=1, delta="two"),
        event("output_item.done", item={"type": "reasoning", "id": "rs_1", "status": "completed",
              "summary": [{"text": "one"}, {"text": "two"}], "encrypted_content": "e"}),
        event("output_item.done", 1, item={"type": "message", "id": "msg_1",
              "content": [{"type": "output_text", "text": "only at the end"}]}),
        completed(),
    )  # fmt: skip
    thought, text = message.content
    assert isinstance(thought, ThinkingBlock)
    assert thought.thinking == "one\n\ntwo"
    assert "status" not in msgspec.json.decode(thought.thinking_signature or "")
    assert text == TextBlock(text="only at the end", text_signature="msg_1")


def test_a_refusal_is_an_answer() -> None:
    message = read(
        event("output_item.added", item={"type": "message", "id": "msg_1"}),
        event("refusal.delta", delta="I cannot."),
        completed(),
    )
    assert (message.text, message.stop_reason) == ("I cannot.", "stop")


@pytest.mark.parametrize(
    ("reason", "expected"), [("max_output_tokens", "length"), ("content_filter", "error"), (None, "length")]
)
def test_incomplete_responses(reason: str | None, expected: str) -> None:
    message = read(
        event("output_text.delta", delta="half"),
        completed("incomplete", incomplete_details={"reason": reason}, usage={"input_tokens": 5, "output_tokens": 1}),
    )
    assert (message.text, message.stop_reason, message.usage.input) == ("half", expected, 5)


def test_a_call_cut_by_the_limit_is_never_runnable() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "read", "arguments": ""}
    message = read(
        event("output_item.added", item=item),
        event("function_call_arguments.delta", delta='{"path": "/et'),
        event("output_item.done", item={**item, "arguments": '{"path": "/et', "status": "incomplete"}),
        completed("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    )
    assert (message.tool_calls, message.stop_reason) == ([], "length")
    assert "read" in str(message.error_message)


@pytest.mark.parametrize(
    ("failure", "kind", "status"),
    [
        (completed("failed", error={"code": "rate_limit_exceeded", "message": "slow down"}), "rate_limit", 429),
        (completed("failed", error={"code": "server_error", "message": "oops"}), "other", 500),
        (
            completed("failed", error={"code": "context_length_exceeded", "message": "too long"}),
            "overflow",
            400,
        ),
        (completed("cancelled"), "other", None),
        ({"type": "error", "code": "server_error", "message": "oops"}, "other", 500),
        ({"type": "error", "error": {"code": "insufficient_quota", "message": "pay"}}, "billing", 402),
    ],
)
def test_a_failed_response_keeps_what_had_come(failure: dict[str, Any], kind: str, status: int | None) -> None:
    with pytest.raises(ModelError) as caught:
        read(event("output_text.delta", delta="half"), failure)
    assert (caught.value.kind, caught.value.status) == (kind, status)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "half"


def test_a_stream_without_its_terminal_event_was_cut() -> None:
    with pytest.raises(ModelError, match="ended before") as caught:
        read(event("output_text.delta", delta="half"))
    assert caught.value.kind == "network"


PARTS = responses_stream(Reply(thinking="hm ü", text="Grüße 😀 all", calls=[Call("read", {"p": "ä"}, "t1")]), 1, "m", 9)
RECORDED = PARTS.head + b"".join(PARTS.tokens) + PARTS.tail + PARTS.end


@given(st.lists(st.integers(0, len(RECORDED)), max_size=40))
def test_any_split_of_the_stream_gives_the_same_message(cuts: list[int]) -> None:
    whole, split = feed(ResponsesStream(MODEL), RECORDED), feed(ResponsesStream(MODEL), RECORDED, cuts)
    assert split[-1] == whole[-1]
    assert "".join(e.delta for e in split if isinstance(e, Text)) == "Grüße 😀 all"
