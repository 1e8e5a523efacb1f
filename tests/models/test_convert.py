"""Whatever history looks like, what we send is accepted: the documents' cases, then random ones."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from openclaw.models import anthropic, convert, openai_chat, openai_responses
from openclaw.models.base import Model, ModelRequest
from openclaw.models.http import encode_body
from tests.models.streams import READ
from tests.support.model_rules import check_anthropic, check_generation
from tests.support.model_rules_openai import check_chat, check_mistral, check_responses

CLAUDE = Model(
    provider="anthropic", id="claude-sonnet-4-5", api="anthropic-messages", reasoning=True, input=("text", "image"),
    max_tokens=64_000,
)  # fmt: skip
ROUTER = Model(
    provider="someone", id="gpt-x", api="openai-completions", base_url="https://models.example.com/v1", reasoning=True,
    input=("text", "image"),
)  # fmt: skip
GPT = Model(provider="openai", id="gpt-5", api="openai-responses", reasoning=True, input=("text", "image"))
PICTURE = ImageBlock(data=base64.b64encode(b"picture").decode(), mime_type="image/png")


def by_claude(*content: Any, **fields: Any) -> AssistantMessage:
    names = {"api": CLAUDE.api, "provider": CLAUDE.provider, "model": CLAUDE.id}
    return AssistantMessage(content=list(content), **{**names, **fields})


def result(call_id: str, *content: Any, **fields: Any) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=list(content), **fields)


def documented_history() -> list[Message]:
    foreign = ToolCall(id="call_abc|fc_999+/=", name="read", arguments={"path": "x"})
    return [
        UserMessage(content="start"),
        by_claude(
            ThinkingBlock(thinking="hm", thinking_signature="sig"),
            TextBlock(text="reading"),
            ToolCall(id="toolu_1", name="read", arguments={"path": "a"}),
            ToolCall(id="toolu_2", name="read", arguments={"path": "b"}),
            stop_reason="toolUse",
        ),
        result("toolu_1", TextBlock(text="A"), TextBlock(text="B")),
        result("toolu_2", PICTURE, is_error=True),
        by_claude(ThinkingBlock(thinking="unsigned"), TextBlock(text="done")),
        by_claude(TextBlock(text="half"), stop_reason="error", error_message="cut"),
        UserMessage(content=[TextBlock(text="next"), TextBlock(text="  ")]),
        AssistantMessage(content=[foreign], api="openai-responses", provider="openai", model="gpt-5"),
        UserMessage(content="interrupt"),
    ]


def request(model: Model, messages: list[Message], **fields: Any) -> ModelRequest:
    return ModelRequest(model=model, system="Be kind.", messages=messages, **fields)


def test_the_documented_history_for_anthropic() -> None:
    body = anthropic.build_body(request(CLAUDE, documented_history(), tools=[READ]))
    check_anthropic(body)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE.data}}
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "start"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "text", "text": "reading"},
                {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "toolu_2", "name": "read", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "A\nB", "is_error": False},
                # A result that failed may hold only text: its picture follows the results.
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": "(see attached image)",
                    "is_error": True,
                },
                image,
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "unsigned"}, {"type": "text", "text": "done"}]},
        {"role": "user", "content": [{"type": "text", "text": "next"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_abc_fc_999___", "name": "read", "input": {"path": "x"}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_abc_fc_999___",
                    "content": "No result provided",
                    "is_error": True,
                },
                {"type": "text", "text": "interrupt", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    assert body["system"] == [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]


def test_the_documented_history_for_openai_chat() -> None:
    body = openai_chat.build_body(request(ROUTER, documented_history(), tools=[READ]))
    check_chat(body)
    roles = [message["role"] for message in body["messages"]]
    assert roles == [
        "developer", "user", "assistant", "tool", "tool", "user", "assistant", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    caption, image = body["messages"][5]["content"]
    assert caption == {"type": "text", "text": convert.RESULT_IMAGES}
    assert image["image_url"]["url"] == f"data:image/png;base64,{PICTURE.data}"
    assert body["messages"][2]["content"] == "hm\nreading"
    assert body["messages"][8]["tool_calls"][0]["id"] == "call_abc"
    assert body["messages"][9] == {"role": "tool", "tool_call_id": "call_abc", "content": "No result provided"}


def test_the_documented_history_for_openai_responses() -> None:
    body = openai_responses.build_body(request(GPT, documented_history(), tools=[READ]))
    check_responses(body)
    kinds = [item.get("type", item.get("role")) for item in body["input"]]
    assert kinds == [
        "developer", "user", "assistant", "assistant", "function_call", "function_call", "function_call_output",
        "function_call_output", "assistant", "assistant", "user", "function_call", "function_call_output", "user",
    ]  # fmt: skip
    # The call was written by this very model, but no reasoning is replayed with it: its item id stays home.
    assert body["input"][11] == {
        "type": "function_call", "call_id": "call_abc", "name": "read", "arguments": '{"path":"x"}',
    }  # fmt: skip


def plain(messages: list[Message], model: Model = CLAUDE) -> list[Message]:
    return convert.transform(messages, model, convert.UniqueIds(64, lambda call_id, same: call_id))


def calls(*ids: str) -> AssistantMessage:
    return by_claude(*(ToolCall(id=call_id, name="read", arguments={}) for call_id in ids), stop_reason="toolUse")


def test_results_follow_their_calls_in_order_and_strays_go() -> None:
    sent = plain(
        [
            result("orphan"), UserMessage(content="u"), calls("a", "b"), UserMessage(content="mid"),
            result("b", TextBlock(text="first b")), result("b", TextBlock(text="second b")),
            by_claude(TextBlock(text="x")),
        ]
    )  # fmt: skip
    shown = [message.tool_call_id if isinstance(message, ToolResultMessage) else type(message) for message in sent]
    assert shown == [UserMessage, AssistantMessage, "a", "b", UserMessage, AssistantMessage]
    missing, second = sent[2], sent[3]
    assert isinstance(missing, ToolResultMessage)
    assert missing.is_error
    assert missing.text == convert.NO_RESULT
    assert isinstance(second, ToolResultMessage)
    assert second.text == "first b"


def test_failed_replies_are_never_replayed_nor_their_results() -> None:
    failed = msgspec.structs.replace(calls("a"), stop_reason="aborted")
    assert plain([UserMessage(content="u"), failed, result("a")]) == [UserMessage(content="u")]


def test_a_history_that_ends_with_an_open_call_is_completed() -> None:
    last = plain([UserMessage(content="u"), calls("a")])[-1]
    assert isinstance(last, ToolResultMessage)
    assert last.is_error


def test_ids_numbered_anew_in_every_reply_do_not_clash() -> None:
    history: list[Message] = [
        UserMessage(content="u"), calls("call_0"), result("call_0", TextBlock(text="one")),
        calls("call_0"), result("call_0", TextBlock(text="two")),
    ]  # fmt: skip
    sent = plain(history)
    results = [message for message in sent if isinstance(message, ToolResultMessage)]
    assert [message.text for message in results] == ["one", "two"]
    assert len({message.tool_call_id for message in results}) == 2
    assert plain(history) == sent, "ids must be stable between requests, for the prompt cache"


@pytest.mark.parametrize(
    ("block", "same", "other"),
    [
        (ThinkingBlock(thinking="t", thinking_signature="s"), "keep", TextBlock(text="t")),
        (ThinkingBlock(thinking="", thinking_signature="s"), "keep", None),
        (ThinkingBlock(thinking="", thinking_signature="s", redacted=True), "keep", None),
        (ThinkingBlock(thinking="t"), "keep", TextBlock(text="t")),
        (ThinkingBlock(thinking="  "), None, None),
        (TextBlock(text="t", text_signature="s"), "keep", TextBlock(text="t")),
    ],
)
def test_reasoning_of_another_model_becomes_text(block: Any, same: Any, other: Any) -> None:
    marker = TextBlock(text="marker")
    for model, expected in ((CLAUDE, block if same == "keep" else same), (ROUTER, other)):
        sent = plain([by_claude(block, marker)], model)[0]
        assert isinstance(sent, AssistantMessage)
        assert sent.content == ([expected, marker] if expected else [marker])


def test_a_signature_of_a_call_stays_with_its_model() -> None:
    call = ToolCall(id="a", name="read", arguments={}, thought_signature="s")
    assert plain([by_claude(call)])[0].content[0].thought_signature == "s"  # type: ignore[union-attr]
    assert plain([by_claude(call)], ROUTER)[0].content[0].thought_signature is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "legal"), [("read", "read"), ("functions.read", "functions_read"), ("", "unknown"), ("x" * 99, "x" * 64)]
)
def test_invented_tool_names_are_made_legal(name: str, legal: str) -> None:
    assert convert.legal_name(name) == legal


def test_a_picture_alone_does_not_vanish_for_a_model_without_eyes() -> None:
    blind = msgspec.structs.replace(CLAUDE, input=("text",))
    body = anthropic.build_body(request(blind, [UserMessage(content=[PICTURE])]))
    assert body["messages"][0]["content"][0]["text"] == convert.IMAGE_LEFT_OUT


def test_a_picture_of_a_type_no_provider_takes_is_named() -> None:
    odd = ImageBlock(data="AAAA", mime_type="image/tiff")
    body = anthropic.build_body(request(CLAUDE, [UserMessage(content=[odd])]))
    assert "image/tiff" in body["messages"][0]["content"][0]["text"]


@pytest.mark.parametrize("build", [anthropic.build_body, openai_chat.build_body, openai_responses.build_body])
def test_an_empty_conversation_is_refused_here_and_not_by_the_vendor(build: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="no message"):
        build(request(CLAUDE, [UserMessage(content="   ")]))


def test_lone_surrogates_are_removed_from_every_string() -> None:
    broken = {"text": "a\ud83d", "deep": [{"k\ude00": "\ud83d\ude00 fine"}]}
    assert msgspec.json.decode(encode_body(broken)) == {"text": "a", "deep": [{"k": "😀 fine"}]}


# Random histories

texts = st.sampled_from(["", " ", "hello", "two\nlines", "naïve 😀", "bad \ud83d half", "\ud83d \udc00", "trailing  "])
ids = st.sampled_from(
    ["a", "call_0", "call_1|fc_1", "call_1|fc_2", "toolu_01abc", "id with spaces!", "", "functions.read:0", "x" * 80,
     "call_2|rs_9", "|fc_3", "\ud83d"]
)  # fmt: skip
names = st.sampled_from(["read", "functions.read", "", "sehr_lang" * 20, "exec"])
arguments = st.dictionaries(
    st.sampled_from(["path", "n", "\ud83d"]), st.sampled_from(["x", 1, None, [1], "\udc00"]), max_size=2
)
reasoning_items = st.sampled_from(
    [
        None, "", "sig", "reasoning_content", '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"enc"}',
        '{"type":"reasoning","id":"rs_2","summary":[]}', '{"type":"reasoning"}', "{broken",
    ]
)  # fmt: skip
text_blocks = st.builds(
    lambda text, sig: TextBlock(text=text, text_signature=sig), texts, st.sampled_from([None, "msg_1", "x"])
)
thinking_blocks = st.builds(
    lambda text, sig, hidden: ThinkingBlock(thinking=text, thinking_signature=sig, redacted=hidden and bool(sig)),
    texts, reasoning_items, st.booleans(),
)  # fmt: skip
call_blocks = st.builds(lambda i, n, a: ToolCall(id=i, name=n, arguments=a), ids, names, arguments)
image_blocks = st.sampled_from(
    [PICTURE, ImageBlock(data="", mime_type="image/png"), ImageBlock(data="AA==", mime_type="image/bmp")]
)
user_content = st.one_of(texts, st.lists(st.one_of(text_blocks, image_blocks), max_size=3))
SONNET = msgspec.structs.replace(CLAUDE, id="claude-sonnet-5-5")
origins = st.sampled_from([CLAUDE, SONNET, ROUTER, GPT, msgspec.structs.replace(ROUTER, provider="openai")])
users = st.builds(lambda content: UserMessage(content=content), user_content)
assistants = st.builds(
    lambda content, origin, reason: AssistantMessage(
        content=content, api=origin.api, provider=origin.provider, model=origin.id, stop_reason=reason
    ),
    st.lists(st.one_of(text_blocks, thinking_blocks, call_blocks), max_size=4),
    origins,
    st.sampled_from(["stop", "toolUse", "length", "error", "aborted"]),
)
results = st.builds(
    lambda i, n, content, failed: ToolResultMessage(tool_call_id=i, tool_name=n, content=content, is_error=failed),
    ids, names, st.lists(st.one_of(text_blocks, image_blocks), max_size=2), st.booleans(),
)  # fmt: skip
histories = st.lists(st.one_of(users, assistants, results), max_size=12).map(
    lambda messages: [UserMessage(content="begin"), *messages]
)
levels = st.sampled_from(["off", "low", "high", "xhigh"])
choices = st.sampled_from([None, "auto", "none", "required", {"name": "read"}])
MISTRAL = Model(provider="mistral", id="mistral-large", base_url="https://api.mistral.ai/v1", input=("text", "image"))
BLIND = Model(provider="ollama", id="qwen3", base_url="http://localhost:11434", reasoning=True)
OPENAI_CHAT = Model(provider="openai", id="gpt-5", reasoning=True, input=("text", "image"))
OPUS = msgspec.structs.replace(CLAUDE, id="claude-opus-4-6")


def check_claude(body: dict[str, Any]) -> None:
    check_anthropic(body)
    check_generation(body, version="2023-06-01", betas=anthropic.BINDING_BETA)


@settings(max_examples=250, deadline=None)
@given(histories, levels, choices, st.booleans(), st.sampled_from(["", "It is noon."]))
def test_any_history_becomes_a_request_the_vendor_accepts(
    history: list[Message], level: Any, choice: Any, with_tools: bool, suffix: str
) -> None:
    table: list[tuple[Model, Callable[[ModelRequest], dict[str, Any]], Callable[[Any], None]]] = [
        (CLAUDE, anthropic.build_body, check_anthropic),
        (OPUS, anthropic.build_body, check_claude),
        (SONNET, anthropic.build_body, check_claude),
        (OPENAI_CHAT, openai_chat.build_body, check_chat),
        (MISTRAL, openai_chat.build_body, check_mistral),
        (BLIND, openai_chat.build_body, check_chat),
        (GPT, openai_responses.build_body, check_responses),
    ]
    for model, build, check in table:
        asked = request(
            model, history, tools=[READ] if with_tools else [], thinking=level, system_suffix=suffix,
            tool_choice=choice if with_tools else None, session_id="s",
        )  # fmt: skip
        before = [repr(message) for message in history]
        body = msgspec.json.decode(encode_body(build(asked)))
        check(body)
        assert [repr(message) for message in history] == before, "what is stored must not be changed"
