from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.messages import AssistantMessage, TextBlock, ThinkingBlock, ToolCall, ToolResultMessage, UserMessage
from openclaw.models.anthropic import AnthropicStream, build_body, build_request
from openclaw.models.base import Done, Model, ModelError, Text, Thinking, ToolCallStart
from openclaw.models.http import INVALID_JSON
from tests.models.streams import READ, ask, collect, done_of, feed, sse
from tests.support.model_rules import check_anthropic
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.model_wire import anthropic_stream

MODEL = Model(provider="anthropic", id="claude-sonnet-4-5", api="anthropic-messages", reasoning=True, max_tokens=64_000)


def recorded(reply: Reply) -> bytes:
    parts = anthropic_stream(reply, 1, "mock-1", 100)
    return parts.head + b"".join(parts.tokens) + parts.tail + parts.end


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop(reason: str) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]


OPEN = {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}


async def test_a_whole_turn_streams_thinking_text_and_a_call(server: ModelServer) -> None:
    usage = {"input": 100, "output": 20, "cacheRead": 1000, "cacheWrite": 50}
    server.queue(
        Reply(thinking="let me see", text="I will read it.", calls=[Call("read", {"path": "a.txt"})], usage=usage)
    )
    request = ask(server.model(reasoning=True), tools=[READ], thinking="low")
    events = await collect(request, server.api_key)
    message = done_of(events)
    assert "".join(event.delta for event in events if isinstance(event, Thinking)) == "let me see"
    assert "".join(event.delta for event in events if isinstance(event, Text)) == "I will read it."
    call = message.tool_calls[0]
    assert ToolCallStart(call.id, "read") in events
    assert message.content == [
        ThinkingBlock(thinking="let me see", thinking_signature="c2lnbmF0dXJl"),
        TextBlock(text="I will read it."),
        ToolCall(id=call.id, name="read", arguments={"path": "a.txt"}),
    ]
    assert (message.api, message.provider, message.model) == ("anthropic-messages", "mock", "mock-1")
    assert message.stop_reason == "toolUse"
    assert (message.usage.input, message.usage.output) == (100, 20)
    assert (message.usage.cache_read, message.usage.cache_write, message.usage.total_tokens) == (1000, 50, 1170)
    assert message.usage.cost.total == pytest.approx((100 * 3 + 20 * 15 + 1000 * 0.3 + 50 * 3.75) / 1e6)
    assert message.timestamp > 0


async def test_the_result_of_a_call_is_accepted_on_the_next_turn(server: ModelServer) -> None:
    model = server.model(reasoning=True)
    server.queue(Reply(thinking="hm", redacted="b3BhcXVl", calls=[Call("read", {"path": "a"})]), Reply(text="done"))
    first = ask(model, tools=[READ], thinking="high")
    reply = done_of(await collect(first, server.api_key))
    assert reply.content[0] == ThinkingBlock(thinking="", thinking_signature="b3BhcXVl", redacted=True)
    result = ToolResultMessage(
        tool_call_id=reply.tool_calls[0].id, tool_name="read", content=[TextBlock(text="content")]
    )
    second = ask(model, messages=[*first.messages, reply, result], tools=[READ], thinking="high")
    assert done_of(await collect(second, server.api_key)).text == "done"
    sent = server.requests[-1].body
    assert sent["thinking"]["type"] == "enabled"
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["redacted_thinking", "thinking", "tool_use"]


def test_cache_markers_stand_after_the_stable_prompt_and_on_the_last_user_block() -> None:
    history = [
        UserMessage(content="one"),
        AssistantMessage(content=[TextBlock(text="two")]),
        UserMessage(content="three"),
    ]
    body = build_body(
        ask(MODEL, messages=history, system="stable", system_suffix="Be brief.", turn_facts="It is noon.")
    )
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body["system"] == [{"type": "text", "text": "stable", **mark}, {"type": "text", "text": "Be brief."}]
    assert body["messages"][-1]["content"] == [
        {"type": "text", "text": "three", **mark}, {"type": "text", "text": "It is noon."},
    ]  # fmt: skip
    assert "cache_control" not in body["messages"][0]["content"][0]


@pytest.mark.parametrize(
    ("base_url", "retention", "marker"),
    [
        ("", "short", {"type": "ephemeral"}),
        ("", "long", {"type": "ephemeral", "ttl": "1h"}),
        ("https://proxy.example.com", "long", {"type": "ephemeral"}),
        ("", "none", None),
    ],
)
def test_how_long_the_prompt_is_cached_can_be_set(base_url: str, retention: str, marker: dict[str, str] | None) -> None:
    model = msgspec.structs.replace(MODEL, base_url=base_url, compat={"cacheRetention": retention})
    body = build_body(ask(model))
    assert body["system"][0].get("cache_control") == marker
    assert body["messages"][-1]["content"][-1].get("cache_control") == marker


@pytest.mark.parametrize(
    ("level", "model_id", "thinking", "limit", "effort"),
    [
        ("off", "claude-sonnet-4-5", None, 32_000, None),
        ("minimal", "claude-sonnet-4-5", {"type": "enabled", "budget_tokens": 1024}, 33_024, None),
        ("high", "claude-sonnet-4-5", {"type": "enabled", "budget_tokens": 16_384}, 48_384, None),
        ("xhigh", "claude-sonnet-4-5", {"type": "enabled", "budget_tokens": 16_384}, 48_384, None),
        ("xhigh", "claude-opus-4-6", {"type": "adaptive"}, 32_000, "max"),
        ("minimal", "claude-opus-4-6", {"type": "adaptive"}, 32_000, "low"),
        ("xhigh", "claude-opus-4-7", {"type": "adaptive", "display": "summarized"}, 32_000, "xhigh"),
        ("off", "claude-opus-4-8", None, 32_000, None),
        ("off", "claude-opus-5", {"type": "disabled"}, 32_000, None),
        ("off", "claude-sonnet-5", {"type": "disabled"}, 32_000, None),
        ("off", "claude-haiku-5-5", {"type": "disabled"}, 32_000, None),
        ("off", "claude-sonnet-5-5", {"type": "between_tools"}, 32_000, None),
        ("off", "claude-fable-5", {"type": "adaptive", "display": "summarized"}, 32_000, "low"),
        ("high", "claude-haiku-4-5-20251001", {"type": "enabled", "budget_tokens": 16_384}, 48_384, None),
        ("high", "claude-sonnet-4-20250514", {"type": "enabled", "budget_tokens": 16_384}, 48_384, None),
        ("high", "claude-3-7-sonnet-latest", {"type": "enabled", "budget_tokens": 16_384}, 48_384, None),
        ("high", "MiniMax-M2", {"type": "enabled", "budget_tokens": 16_384}, 48_384, None),
    ],
)
def test_thinking_levels(level: Any, model_id: str, thinking: Any, limit: int, effort: str | None) -> None:
    body = build_body(ask(msgspec.structs.replace(MODEL, id=model_id), thinking=level))
    assert body.get("thinking") == thinking
    assert body["max_tokens"] == limit
    assert body.get("output_config", {}).get("effort") == effort


NEWEST = ["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-fable-5-1"]


@pytest.mark.parametrize("model_id", [*NEWEST, "claude-opus-5", "claude-opus-4-8", "claude-opus-4-6"])
@pytest.mark.parametrize("level", ["off", "low", "xhigh"])
@pytest.mark.parametrize("choice", [None, "required"])
async def test_every_generation_accepts_what_we_ask(
    server: ModelServer, model_id: str, level: Any, choice: Any
) -> None:
    model = server.model(id=model_id, reasoning=True, compat={"blockBinding": True})
    request = ask(model, tools=[READ], thinking=level, tool_choice=choice, temperature=0.3)
    assert done_of(await collect(request, server.api_key)).text == "ok"


@pytest.mark.parametrize("model_id", NEWEST)
async def test_thinking_stays_with_its_turn_and_is_never_sent_behind_another_prompt(
    server: ModelServer, model_id: str
) -> None:
    model = server.model(id=model_id, reasoning=True)
    history: list[Any] = []
    for turn in range(3):
        history.append(UserMessage(content=f"turn {turn}"))
        for step in range(3):
            calls = [Call("read", {"path": "x"})] if step < 2 else []
            server.queue(Reply(thinking=f"thought {turn}.{step}", text="so", calls=calls))
            request = ask(
                model, messages=history, tools=[READ], thinking="high", system_suffix=f"It is {turn} o'clock."
            )
            reply = done_of(await collect(request, server.api_key))
            history.append(reply)
            for call in reply.tool_calls:
                history.append(ToolResultMessage(tool_call_id=call.id, tool_name="read", content=[TextBlock(text="r")]))
    sent = server.requests[-1].body["messages"]
    thoughts = [block["thinking"] for message in sent for block in message["content"] if block["type"] == "thinking"]
    assert thoughts == ["thought 2.0", "thought 2.1"]
    assert server.dropped_thinking == 0


async def test_thinking_that_no_longer_fits_is_dropped_by_the_vendor_and_not_refused(server: ModelServer) -> None:
    model = server.model(id="claude-opus-5-5", reasoning=True, compat={"blockBinding": True})
    server.queue(Reply(thinking="hm", calls=[Call("read", {"path": "x"})]))
    first = ask(model, tools=[READ], thinking="high")
    reply = done_of(await collect(first, server.api_key))
    changed = ask(model, messages=[UserMessage(content="pruned"), reply], tools=[READ], thinking="high")
    assert done_of(await collect(changed, server.api_key)).text == "ok"
    assert server.dropped_thinking == 1


def test_binding_is_controlled_only_where_the_server_knows_how() -> None:
    vendor = Model(provider="anthropic", id="claude-opus-5-5", api="anthropic-messages", reasoning=True)
    wire = build_request(ask(vendor, thinking="low"), "k")
    assert wire.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    assert wire.body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    elsewhere = build_request(
        ask(msgspec.structs.replace(vendor, base_url="https://p.example.com"), thinking="low"), "k"
    )
    assert "anthropic-beta" not in elsewhere.headers
    assert "block_binding" not in elsewhere.body["thinking"]


def test_temperature_and_forced_tools_give_way_where_the_vendor_refuses_them() -> None:
    thinking = build_body(ask(MODEL, thinking="low", temperature=0.5))
    assert "temperature" not in thinking
    forced = build_body(ask(MODEL, thinking="low", temperature=0.5, tools=[READ], tool_choice="required"))
    assert "thinking" not in forced
    assert forced["temperature"] == 0.5
    assert forced["tool_choice"] == {"type": "any"}


def test_no_thinking_is_switched_on_inside_a_tool_loop_that_began_without() -> None:
    history = [
        UserMessage(content="u"),
        AssistantMessage(content=[ToolCall(id="a", name="read", arguments={})]),
        ToolResultMessage(tool_call_id="a", tool_name="read", content=[]),
    ]
    body = build_body(ask(MODEL, messages=history, tools=[READ], thinking="high"))
    assert "thinking" not in body
    check_anthropic(body)


def test_neighbouring_replies_count_as_one_when_thinking_is_switched_on() -> None:
    origin = {"api": MODEL.api, "provider": MODEL.provider, "model": MODEL.id}
    thought = ThinkingBlock(thinking="t", thinking_signature="s")
    history = [
        UserMessage(content="u"),
        AssistantMessage(content=[TextBlock(text="an announcement")], **origin),
        AssistantMessage(content=[thought, ToolCall(id="a", name="read", arguments={})], **origin),
    ]
    body = build_body(ask(MODEL, messages=history, tools=[READ], thinking="high"))
    assert "thinking" not in body
    check_anthropic(body)


def test_tools_of_history_are_declared_when_none_is_offered() -> None:
    history = [
        UserMessage(content="u"),
        AssistantMessage(content=[ToolCall(id="a", name="my.tool", arguments={})]),
    ]
    body = build_body(ask(MODEL, messages=history))
    assert [tool["name"] for tool in body["tools"]] == ["my_tool"]
    assert body["tool_choice"] == {"type": "none"}
    check_anthropic(body)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("", "https://api.anthropic.com/v1/messages"),
        ("https://proxy.example.com/anthropic/", "https://proxy.example.com/anthropic/v1/messages"),
        ("https://proxy.example.com/v1", "https://proxy.example.com/v1/messages"),
    ],
)
def test_the_address_follows_the_base_url(base_url: str, url: str) -> None:
    assert build_request(ask(msgspec.structs.replace(MODEL, base_url=base_url)), "k").url == url


def test_keys_and_extra_headers_go_where_the_vendor_reads_them() -> None:
    assert build_request(ask(MODEL), "sk-ant-api03-x").headers == {
        "anthropic-version": "2023-06-01",
        "x-api-key": "sk-ant-api03-x",
    }
    oauth = build_request(ask(MODEL), "sk-ant-oat01-x").headers
    assert oauth["authorization"] == "Bearer sk-ant-oat01-x"
    assert "x-api-key" not in oauth
    custom = msgspec.structs.replace(MODEL, headers={"X-Team": "a"}, compat={"betas": ["b1", "b2"]})
    headers = build_request(ask(custom), "k").headers
    assert (headers["x-team"], headers["anthropic-beta"]) == ("a", "b1,b2")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"), ("pause_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"),
        ("refusal", "error"), ("sensitive", "error"), ("something_new", "stop"), ("tool_use", "stop"),
    ],
)  # fmt: skip
def test_stop_reasons(reason: str, expected: str) -> None:
    raw = sse(OPEN, start(0, type="text", text=""), delta(0, type="text_delta", text="x"), *stop(reason))
    message = done_of(feed(AnthropicStream(MODEL), raw))
    assert message.stop_reason == expected
    assert message.text == "x"
    assert (message.error_message is not msgspec.UNSET) is (expected == "error")


def test_usage_is_patched_only_by_numbers() -> None:
    last = {
        "type": "message_delta", "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": None, "output_tokens": 9, "cache_read_input_tokens": 4},
    }  # fmt: skip
    message = done_of(feed(AnthropicStream(MODEL), sse(OPEN, last, {"type": "message_stop"})))
    assert (message.usage.input, message.usage.output, message.usage.cache_read) == (7, 9, 4)


def call_stream(reason: str, *pieces: str) -> bytes:
    deltas = [delta(0, type="input_json_delta", partial_json=piece) for piece in pieces]
    return sse(OPEN, start(0, type="tool_use", id="t1", name="read", input={}), *deltas, *stop(reason))


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        ((), {}),
        (("", ' {"pa', 'th":"x"}'), {"path": "x"}),
        (("null",), {}),
        (('{"path": "x',), {INVALID_JSON: '{"path": "x'}),
        (("[1]",), {INVALID_JSON: "[1]"}),
        (('{"a":"\\ud83d"}',), {"a": ""}),
    ],
)
def test_arguments_of_a_finished_call(pieces: tuple[str, ...], arguments: dict[str, Any]) -> None:
    message = done_of(feed(AnthropicStream(MODEL), call_stream("tool_use", *pieces)))
    assert message.stop_reason == "toolUse"
    assert message.tool_calls == [ToolCall(id="t1", name="read", arguments=arguments)]


@pytest.mark.parametrize("pieces", [(), ('{"path": "/home',), ('{"path":"x"}',)])
def test_a_call_cut_by_the_output_limit_is_never_runnable(pieces: tuple[str, ...]) -> None:
    message = done_of(feed(AnthropicStream(MODEL), call_stream("max_tokens", *pieces)))
    assert message.stop_reason == "length"
    assert message.tool_calls == []
    assert "read" in str(message.error_message)


def test_a_complete_call_before_the_one_the_limit_cut_is_kept() -> None:
    events: list[Any] = [OPEN]
    for place in (0, 1):
        events.append(start(place, type="tool_use", id=f"t{place}", name="read", input={}))
        events.append(delta(place, type="input_json_delta", partial_json='{"path":"x"}'))
    message = done_of(feed(AnthropicStream(MODEL), sse(*events, *stop("max_tokens"))))
    assert (message.stop_reason, [call.id for call in message.tool_calls]) == ("length", ["t0"])


def test_a_compatible_server_may_be_careless() -> None:
    raw = sse(delta(0, type="text_delta", text="no start"), start(1, type="server_tool_use", id="x"),
              delta(1, type="input_json_delta", partial_json="{"), {"type": "from_the_future"},
              start(2, type="tool_use", id="t", name="read", input={"path": "whole"}),
              {"type": "message_delta", "delta": {"stop_reason": "tool_use"}})  # fmt: skip
    message = done_of(feed(AnthropicStream(MODEL), raw))
    assert message.text == "no start"
    assert message.tool_calls[0].arguments == {"path": "whole"}


def test_characters_split_into_surrogate_halves_are_mended() -> None:
    pieces = ("a\\ud83d", "\\ude00b", "\\ud83d")
    line = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"HERE"}}'
    events = [OPEN, start(0, type="text", text=""), *(line.replace("HERE", piece) for piece in pieces)]
    out = feed(AnthropicStream(MODEL), sse(*events, *stop("end_turn")))
    assert done_of(out).text == "a😀b"
    assert "".join(event.delta for event in out if isinstance(event, Text)) == "a😀b"


def test_an_error_in_the_stream_keeps_what_had_come() -> None:
    raw = sse(OPEN, start(0, type="text", text="half"),
              {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})  # fmt: skip
    with pytest.raises(ModelError) as caught:
        feed(AnthropicStream(MODEL), raw)
    error = caught.value
    assert (error.kind, error.status, error.retryable) == ("overloaded", 529, True)
    assert error.partial is not None
    assert (error.partial.text, error.partial.stop_reason) == ("half", "error")
    assert str(error) == "529 overloaded_error: Overloaded"


@pytest.mark.parametrize("garbage", ["{not json", "[]", '{"type": 5}', '{"type":"content_block_delta","delta":"x"}'])
def test_garbage_is_an_error_that_keeps_what_had_come(garbage: str) -> None:
    with pytest.raises(ModelError, match="unreadable") as caught:
        feed(AnthropicStream(MODEL), sse(OPEN, start(0, type="text", text="half"), garbage))
    assert caught.value.partial is not None
    assert caught.value.partial.text == "half"


RECORDED = recorded(
    Reply(thinking="think ünïcode", text="Grüße, 😀 world and more words", calls=[Call("read", {"p": "ä"}, "t1")])
)


@given(st.lists(st.integers(0, len(RECORDED)), max_size=40))
def test_any_split_of_the_stream_gives_the_same_message(cuts: list[int]) -> None:
    whole = feed(AnthropicStream(MODEL), RECORDED)
    split = feed(AnthropicStream(MODEL), RECORDED, cuts)
    assert split[-1] == whole[-1]
    for kind in (Text, Thinking):
        assert "".join(e.delta for e in split if isinstance(e, kind)) == "".join(
            e.delta for e in whole if isinstance(e, kind)
        )
    assert [e for e in split if isinstance(e, ToolCallStart | Done)] == [
        e for e in whole if isinstance(e, ToolCallStart | Done)
    ]


@given(st.integers(0, len(RECORDED) - 1))
def test_a_stream_cut_anywhere_raises_and_never_invents_text(end: int) -> None:
    full = done_of(feed(AnthropicStream(MODEL), RECORDED))
    try:
        message = done_of(feed(AnthropicStream(MODEL), RECORDED[:end]))
    except ModelError as error:
        assert error.retryable
        if error.partial is not None:
            assert full.text.startswith(error.partial.text)
    else:
        # Everything was there; only the farewell is missing.
        assert message.content == full.content
