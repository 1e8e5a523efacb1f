from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from openclaw.models.base import Model, ModelError, Text, Thinking, ToolCallStart
from openclaw.models.http import INVALID_JSON
from openclaw.models.openai_chat import ChatStream, build_body, build_request
from tests.models.streams import READ, ask, collect, done_of, feed, sse
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.model_wire import chat_stream

API = "openai-completions"
MODEL = Model(provider="openai", id="gpt-5", reasoning=True, input=("text", "image"), max_tokens=128_000)


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call_part(index: int | None = None, **fields: Any) -> dict[str, Any]:
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {**({} if index is None else {"index": index}), **fields, "function": function}


def read(*events: Any, model: Model = MODEL) -> AssistantMessage:
    return done_of(feed(ChatStream(model), sse(*events)))


async def test_a_whole_turn_streams_thinking_text_and_a_call(server: ModelServer) -> None:
    usage = {"input": 100, "output": 20, "cacheRead": 1000}
    server.queue(Reply(thinking="let me see", text="Reading it.", calls=[Call("read", {"path": "a"})], usage=usage))
    events = await collect(ask(server.model(API), tools=[READ]), server.api_key)
    message = done_of(events)
    call = message.tool_calls[0]
    assert "".join(event.delta for event in events if isinstance(event, Thinking)) == "let me see"
    assert "".join(event.delta for event in events if isinstance(event, Text)) == "Reading it."
    assert ToolCallStart(call.id, "read") in events
    assert message.content == [
        ThinkingBlock(thinking="let me see", thinking_signature="reasoning_content"),
        TextBlock(text="Reading it."),
        ToolCall(id=call.id, name="read", arguments={"path": "a"}),
    ]
    assert message.stop_reason == "toolUse"
    assert (message.usage.input, message.usage.output, message.usage.cache_read) == (100, 20, 1000)
    assert message.usage.total_tokens == 1120


async def test_the_next_turn_returns_the_reasoning_in_its_field(server: ModelServer) -> None:
    model = server.model(API, reasoning=True)
    server.queue(Reply(thinking="hm", calls=[Call("read", {"path": "a"})]), Reply(text="done"))
    first = ask(model, tools=[READ])
    reply = done_of(await collect(first, server.api_key))
    result = ToolResultMessage(tool_call_id=reply.tool_calls[0].id, tool_name="read", content=[])
    second = ask(model, messages=[*first.messages, reply, result], tools=[READ])
    assert done_of(await collect(second, server.api_key)).text == "done"
    replayed = server.requests[-1].body["messages"][2]
    assert replayed["reasoning_content"] == "hm"
    assert replayed["content"] is None
    assert server.requests[-1].body["messages"][3]["content"] == "(no output)"


async def test_a_server_that_does_not_stream_is_understood(server: ModelServer) -> None:
    whole = {
        "choices": [{"message": {"role": "assistant", "content": "all at once"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    server.queue(Reply(raw=msgspec.json.encode(whole), content_type="application/json"))
    message = done_of(await collect(ask(server.model(API)), server.api_key))
    assert (message.text, message.usage.input, message.usage.output) == ("all at once", 3, 2)


async def test_a_server_without_keys_gets_none() -> None:
    async with ModelServer(any_key=True) as open_server:
        model = open_server.model(API, base_url=open_server.base_url, provider="ollama")
        message = done_of(await collect(ask(model), ""))
    assert message.text == "ok"
    assert "authorization" not in open_server.requests[0].headers


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (MODEL, {"role": "developer", "limit": "max_completion_tokens", "effort": "high"}),
        (
            Model(provider="ollama", id="q", base_url="http://localhost:11434", reasoning=True),
            {"role": "system", "limit": "max_tokens", "effort": "high"},
        ),
        (
            Model(provider="mistral", id="magistral", base_url="https://api.mistral.ai/v1", reasoning=True),
            {"role": "system", "limit": "max_tokens", "effort": None},
        ),
        (
            Model(provider="xai", id="grok-4", base_url="https://api.x.ai/v1", reasoning=True),
            {"role": "system", "limit": "max_completion_tokens", "effort": None},
        ),
        (
            Model(
                provider="other", id="m", base_url="https://m.example.com/v1", reasoning=True,
                compat={"maxTokensField": "max_tokens", "supportsDeveloperRole": False},
            ),
            {"role": "system", "limit": "max_tokens", "effort": "high"},
        ),
        (
            Model(provider="other", id="m", base_url="https://m.example.com/v1"),
            {"role": "system", "limit": "max_completion_tokens", "effort": None},
        ),
    ],
)  # fmt: skip
def test_servers_differ_and_compat_overrides(model: Model, expected: dict[str, Any]) -> None:
    body = build_body(ask(model, thinking="xhigh", max_tokens=500))
    assert body["messages"][0]["role"] == expected["role"]
    assert body[expected["limit"]] == 500
    assert body.get("reasoning_effort") == expected["effort"]
    assert body["stream_options"] == {"include_usage": True}


def test_models_that_call_tools_only_without_reasoning_are_asked_so() -> None:
    body = build_body(ask(msgspec.structs.replace(MODEL, id="gpt-5.6"), tools=[READ], thinking="high", temperature=0.2))
    assert (body["reasoning_effort"], body["temperature"]) == ("none", 0.2)
    assert "temperature" not in build_body(ask(MODEL, temperature=0.2))


def test_wrong_compat_settings_are_named() -> None:
    model = msgspec.structs.replace(MODEL, compat={"maxTokensField": "tokens"})
    with pytest.raises(ModelError, match=r"compat settings of openai/gpt-5.*maxTokensField"):
        build_request(ask(model))


def test_thinking_of_other_formats() -> None:
    zai = Model(provider="zai", id="glm-4.6", base_url="https://api.z.ai/api/paas/v4", reasoning=True)
    assert build_body(ask(zai, thinking="low"))["thinking"] == {"type": "enabled"}
    assert build_body(ask(zai, thinking="off"))["thinking"] == {"type": "disabled"}
    qwen = Model(provider="q", id="qwen3", base_url="https://q.example.com/v1", reasoning=True,
                 compat={"thinkingFormat": "qwen"})  # fmt: skip
    assert build_body(ask(qwen, thinking="low"))["enable_thinking"] is True


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("", "https://api.openai.com/v1/chat/completions"),
        ("http://localhost:11434", "http://localhost:11434/v1/chat/completions"),
        ("http://localhost:11434/v1/", "http://localhost:11434/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/chat/completions"),
    ],
)
def test_the_address_follows_the_base_url(base_url: str, url: str) -> None:
    assert build_request(ask(msgspec.structs.replace(MODEL, base_url=base_url))).url == url


def history_with_call(call_id: str) -> list[Any]:
    return [
        UserMessage(content="u"),
        AssistantMessage(content=[ToolCall(id=call_id, name="read", arguments={"path": "ä"})]),
        ToolResultMessage(tool_call_id=call_id, tool_name="read", content=[TextBlock(text="r")]),
    ]


@pytest.mark.parametrize(
    ("call_id", "expected"),
    [("call_1-2", "call12ABC"), ("toolu_01abcdefghijkl", "toolu01ab"), ("!", "ABCDEFGHI"), ("c1|fc_1", "c1fc1ABCD")],
)
def test_mistral_wants_nine_letters_and_the_tools_name(call_id: str, expected: str) -> None:
    mistral = Model(provider="mistral", id="mistral-large", base_url="https://api.mistral.ai/v1")
    messages = build_body(ask(mistral, messages=history_with_call(call_id), tools=[READ]))["messages"]
    assert messages[2]["tool_calls"][0]["id"] == expected
    assert (messages[3]["tool_call_id"], messages[3]["name"]) == (expected, "read")


def test_ids_of_a_server_come_back_to_it_as_they_were() -> None:
    kimi = Model(provider="moonshot", id="kimi-k2", base_url="https://api.moonshot.ai/v1")
    history = history_with_call("functions.read:0")
    history[1] = msgspec.structs.replace(history[1], provider="moonshot", model="kimi-k2", api=API)
    messages = build_body(ask(kimi, messages=history, tools=[READ]))["messages"]
    assert messages[2]["tool_calls"][0] == {
        "id": "functions.read:0", "type": "function", "function": {"name": "read", "arguments": '{"path":"ä"}'},
    }  # fmt: skip


def test_history_with_calls_and_no_tools_sends_an_empty_list_except_to_the_vendor() -> None:
    other = Model(provider="litellm", id="m", base_url="https://m.example.com/v1")
    assert build_body(ask(other, messages=history_with_call("a")))["tools"] == []
    assert "tools" not in build_body(ask(MODEL, messages=history_with_call("a")))
    assert "tools" not in build_body(ask(other))


def test_a_long_conversation_behind_openrouter_needs_no_system_prompt() -> None:
    model = Model(provider="openrouter", id="anthropic/claude-sonnet-4.5", base_url="https://openrouter.ai/api/v1")
    said = AssistantMessage(content=[TextBlock(text="yes")], api="", provider="", model="", stop_reason="stop")
    history = [*[UserMessage(content="hello"), said] * 10, UserMessage(content="now")]
    request = ask(model, system="", messages=history, branch_cache={})
    marked = [{"type": "text", "text": "now", "cache_control": {"type": "ephemeral"}}]
    assert build_body(request)["messages"][-1] == {"role": "user", "content": marked}


def test_anthropics_models_behind_openrouter_get_cache_markers() -> None:
    model = Model(provider="openrouter", id="anthropic/claude-sonnet-4.5", base_url="https://openrouter.ai/api/v1")
    wire = build_request(ask(model), "k")
    assert wire.headers["x-title"] == "OpenClaw"
    for message in wire.body["messages"]:
        assert message["content"][-1]["cache_control"] == {"type": "ephemeral"}
    told = build_body(ask(model, messages=[UserMessage(content="hello")], turn_facts="It is noon."))["messages"][-1]
    assert told["content"] == [
        {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "It is noon."},
    ]


def test_the_facts_of_the_turn_end_the_newest_message_of_the_user() -> None:
    picture = ImageBlock(data="aGk=", mime_type="image/png")
    one, two = UserMessage(content="one"), UserMessage(content=[TextBlock(text="two"), picture])
    reply = AssistantMessage(content=[TextBlock(text="hm")])
    sees = msgspec.structs.replace(MODEL, input=("text", "image"))
    sent = build_body(ask(sees, messages=[one, reply, two], turn_facts="It is noon."))["messages"]
    assert sent[-1]["content"][-1] == {"type": "text", "text": "It is noon."} and "noon" not in str(sent[:-1])
    sent = build_body(ask(MODEL, messages=[one, reply, one], turn_facts="It is noon."))["messages"]
    assert sent[-1] == {"role": "user", "content": "one\nIt is noon."}
    assert "noon" not in str(build_body(ask(MODEL, messages=history_with_call("a"), turn_facts="It is noon.")))


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, None), ("auto", None), ("none", "none"), ("required", "required"),
        ({"name": "read"}, {"type": "function", "function": {"name": "read"}}),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, sent: Any) -> None:
    assert build_body(ask(MODEL, tools=[READ], tool_choice=choice)).get("tool_choice") == sent


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}, (100, 20, 0)),
        (
            {
                "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 60}, "completion_tokens_details": {"reasoning_tokens": 15},
            },
            (40, 20, 60),
        ),
        (
            {
                "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 135,
                "completion_tokens_details": {"reasoning_tokens": 15},
            },
            (100, 35, 0),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}, (6, 1, 4)),
        ({"prompt_tokens": None, "completion_tokens": "x", "prompt_tokens_details": None}, (0, 0, 0)),
    ],
)  # fmt: skip
def test_usage_counts_cached_and_reasoning_tokens_once(usage: dict[str, Any], expected: tuple[int, int, int]) -> None:
    found = read(chunk(content="x"), chunk("stop"), {"choices": [], "usage": usage}, "[DONE]").usage
    assert (found.input, found.output, found.cache_read) == expected


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", "stop"), ("length", "length"), ("content_filter", "error"), ("function_call", "stop"),
        ("new_reason", "stop"),
    ],
)  # fmt: skip
def test_finish_reasons(finish: str, expected: str) -> None:
    assert read(chunk(content="x"), chunk(finish), "[DONE]").stop_reason == expected


CALLS = [
    ToolCall(id="a", name="read", arguments={"path": "1"}),
    ToolCall(id="b", name="exec", arguments={"cmd": "2"}),
]


@pytest.mark.parametrize(
    "parts",
    [
        # exact: index on every part
        [[call_part(0, id="a", name="read", arguments="")], [call_part(0, arguments='{"path":')],
         [call_part(0, arguments='"1"}')], [call_part(1, id="b", name="exec", arguments='{"cmd":"2"}')]],
        # whole calls in one chunk
        [[call_part(0, id="a", name="read", arguments='{"path":"1"}'),
          call_part(1, id="b", name="exec", arguments='{"cmd":"2"}')]],
        # no index at all
        [[call_part(id="a", name="read", arguments='{"path"')], [call_part(arguments=':"1"}')],
         [call_part(id="b", name="exec", arguments='{"cmd":"2"}')]],
        # the same index for every call
        [[call_part(0, id="a", name="read", arguments='{"path":"1"}')],
         [call_part(0, id="b", name="exec", arguments='{"cmd":"2"}')]],
        # arguments as an object
        [[call_part(0, id="a", name="read", arguments={"path": "1"}),
          call_part(1, id="b", name="exec", arguments={"cmd": "2"})]],
        # id repeated with every part
        [[call_part(0, id="a", name="read", arguments='{"path"')], [call_part(0, id="a", arguments=':"1"}')],
         [call_part(1, id="b", name="exec", arguments='{"cmd"')], [call_part(1, id="b", name="", arguments=':"2"}')]],
    ],
)  # fmt: skip
@pytest.mark.parametrize("finish", ["tool_calls", "stop", None])
def test_calls_are_put_together_from_careful_and_careless_servers(parts: list[Any], finish: str | None) -> None:
    message = read(*(chunk(tool_calls=part) for part in parts), chunk(finish), "[DONE]")
    assert message.tool_calls == CALLS
    assert message.stop_reason == "toolUse"


def test_calls_without_ids_get_one_each() -> None:
    parts = [call_part(name="read", arguments="{}"), call_part(name="read", arguments="{}")]
    calls = read(chunk(tool_calls=parts), chunk("tool_calls"), "[DONE]").tool_calls
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") and len(call.id) <= 40 for call in calls)


def test_broken_arguments_are_marked_and_cut_ones_dropped() -> None:
    part = chunk(tool_calls=[call_part(0, id="a", name="read", arguments='{"path": "/et')])
    assert read(part, chunk("tool_calls"), "[DONE]").tool_calls[0].arguments == {INVALID_JSON: '{"path": "/et'}
    cut = read(chunk(content="I will"), part, chunk("length"), "[DONE]")
    assert (cut.tool_calls, cut.text, cut.stop_reason) == ([], "I will", "length")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_is_read_from_any_field_once(field: str) -> None:
    message = read(chunk(**{field: "why", "reasoning_text": "why"}), chunk(content="so"), chunk("stop"), "[DONE]")
    assert message.content == [ThinkingBlock(thinking="why", thinking_signature=field), TextBlock(text="so")]


def test_content_may_be_a_list_of_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}, {"type": "text", "text": "so"}]
    message = read(chunk(content=parts), chunk("stop"), "[DONE]")
    assert message.content == [ThinkingBlock(thinking="why"), TextBlock(text="so")]


def test_encrypted_reasoning_of_a_router_comes_back_with_its_call() -> None:
    detail = {"type": "reasoning.encrypted", "id": "a", "data": "secret"}
    model = Model(provider="openrouter", id="google/gemini", base_url="https://openrouter.ai/api/v1")
    message = read(
        chunk(tool_calls=[call_part(0, id="a", name="read", arguments="{}")]), chunk(reasoning_details=[detail]),
        chunk("tool_calls"), "[DONE]", model=model,
    )  # fmt: skip
    body = build_body(ask(model, messages=[UserMessage(content="u"), message], tools=[READ]))
    assert body["messages"][2]["reasoning_details"] == [detail]


@pytest.mark.parametrize(
    ("events", "complete"),
    [
        ([chunk(content="x"), chunk("stop")], True),
        ([chunk(content="x"), "[DONE]"], True),
        ([chunk(content="x")], False),
        ([], False),
    ],
)
def test_a_stream_is_complete_with_a_reason_or_a_farewell(events: list[Any], complete: bool) -> None:
    if complete:
        assert read(*events).text == "x"
        return
    with pytest.raises(ModelError, match="ended before") as caught:
        read(*events)
    assert (caught.value.kind, caught.value.retryable) == ("network", True)
    assert (caught.value.partial is not None) is bool(events)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": "Rate limit reached", "code": 429}}, "rate_limit"),
        ({"error": {"message": "Provider returned error", "code": 502}}, "other"),
        ({"object": "error", "message": "maximum context length is 4096 tokens", "code": 400}, "overflow"),
        ({"error": "model 'x' not found"}, "other"),
    ],
)
def test_an_error_in_the_stream_keeps_what_had_come(event: dict[str, Any], kind: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(chunk(content="half"), event)
    assert caught.value.kind == kind
    assert caught.value.partial is not None
    assert caught.value.partial.text == "half"


PARTS = chat_stream(Reply(thinking="hm ü", text="Grüße 😀 all", calls=[Call("read", {"p": "ä"}, "t1")]), 1, "m", 10)
RECORDED = PARTS.head + b"".join(PARTS.tokens) + PARTS.tail + PARTS.end


@given(st.lists(st.integers(0, len(RECORDED)), max_size=40))
def test_any_split_of_the_stream_gives_the_same_message(cuts: list[int]) -> None:
    whole, split = feed(ChatStream(MODEL), RECORDED), feed(ChatStream(MODEL), RECORDED, cuts)
    assert split[-1] == whole[-1]
    assert "".join(e.delta for e in split if isinstance(e, Text)) == "Grüße 😀 all"
