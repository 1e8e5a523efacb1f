from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    decode_message,
    from_public,
    to_public,
)

texts = st.text(max_size=30)
names = st.text("abcdefgh_", min_size=1, max_size=8)
arguments = st.dictionaries(names, st.none() | st.booleans() | st.integers(-1000, 1000) | texts, max_size=3)
text_blocks = st.builds(TextBlock, text=texts)
images = st.builds(ImageBlock, data=st.just("aGk="), mime_type=st.just("image/png"))
calls = st.builds(ToolCall, id=names, name=names, arguments=arguments)
thoughts = st.builds(ThinkingBlock, thinking=texts, thinking_signature=st.none() | names)
users = st.builds(
    UserMessage, content=texts | st.lists(text_blocks | images, max_size=3), timestamp=st.integers(0, 2**41)
)
assistants = st.builds(
    AssistantMessage,
    content=st.lists(text_blocks | thoughts | calls, max_size=4),
    api=names,
    provider=names,
    model=names,
    usage=st.builds(Usage, input=st.integers(0, 10**6), output=st.integers(0, 10**6)),
    stop_reason=st.sampled_from(["stop", "length", "toolUse", "error", "aborted"]),
    timestamp=st.integers(0, 2**41),
)
results = st.builds(
    ToolResultMessage,
    tool_call_id=names,
    tool_name=names,
    content=st.lists(text_blocks | images, max_size=3),
    details=st.just(msgspec.UNSET) | arguments,
    is_error=st.booleans(),
    timestamp=st.integers(0, 2**41),
)


@given(users | assistants | results)
def test_no_block_is_lost_when_a_message_is_saved_and_loaded(message: Message) -> None:
    assert decode_message(msgspec.json.encode(message)) == message


def test_the_stored_form_has_the_names_other_software_reads() -> None:
    message = AssistantMessage(
        content=[ToolCall(id="c1", name="read", arguments={"path": "a"})],
        api="anthropic-messages",
        provider="mock",
        model="mock-1",
        stop_reason="toolUse",
        timestamp=5,
    )
    zero = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    assert msgspec.to_builtins(message) == {
        "role": "assistant",
        "content": [{"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "a"}}],
        "api": "anthropic-messages",
        "provider": "mock",
        "model": "mock-1",
        "usage": {**zero, "totalTokens": 0, "cost": {**zero, "total": 0}},
        "stopReason": "toolUse",
        "timestamp": 5,
    }


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ({"role": "user", "content": [{"type": "video", "url": "x"}, {"type": "text", "text": "hi"}]}, "hi"),
        ({"role": "assistant", "content": "plain text", "usage": {"input": 1.0}, "stopReason": "odd"}, "plain text"),
        ({"role": "assistant", "content": [{"type": "toolCall", "id": 7}, {"type": "text", "text": "x"}]}, "x"),
        ({"role": "toolResult", "toolCallId": "a", "toolName": "t", "content": [{"type": "text", "text": "r"}]}, "r"),
    ],
)
def test_what_other_software_wrote_is_read_as_far_as_it_is_understood(stored: dict[str, Any], text: str) -> None:
    message = decode_message(msgspec.json.encode(stored))
    assert message is not None
    shown = message.content[0].text if isinstance(message, UserMessage) else message.text  # type: ignore[union-attr]
    assert shown == text


@pytest.mark.parametrize(
    "raw", [b"", b"nonsense", b"[]", b"{}", b'{"role":"bashExecution","command":"ls"}', b'"x"', b"\xff"]
)
def test_what_is_no_message_is_left_out(raw: bytes) -> None:
    assert decode_message(raw) is None


def test_consecutive_results_become_blocks_of_one_user_message() -> None:
    stored: list[Message] = [
        UserMessage(content="go"),
        AssistantMessage(content=[TextBlock(text="ok"), ToolCall(id="a", name="read", arguments={"path": "x"})]),
        ToolResultMessage(tool_call_id="a", tool_name="read", content=[TextBlock(text="1"), TextBlock(text="2")]),
        ToolResultMessage(tool_call_id="b", tool_name="read", content=[TextBlock(text="no")], is_error=True),
        UserMessage(content=[TextBlock(text="next")]),
    ]
    assert to_public(stored) == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "1\n2"},
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "next"}]},
    ]


def test_a_user_message_that_mixes_text_and_results_gives_the_results_first() -> None:
    public = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "exec", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "by the way"},
                {"type": "tool_result", "tool_use_id": "a", "content": "out"},
                {"type": "tool_result", "tool_use_id": "zz", "content": "?"},
            ],
        },
    ]
    _, first, second, third = from_public(public)
    assert (first.tool_name, first.text) == ("exec", "out")  # type: ignore[union-attr]
    assert second.tool_name == "unknown"  # type: ignore[union-attr]
    assert third == UserMessage(content=[TextBlock(text="by the way")])


@given(st.lists(assistants | results, max_size=6))
def test_every_public_result_still_names_its_call(messages: list[Message]) -> None:
    wanted = [message.tool_call_id for message in messages if isinstance(message, ToolResultMessage)]
    found = [
        block["tool_use_id"]
        for message in to_public(messages)
        if message["role"] == "user"
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert found == wanted
