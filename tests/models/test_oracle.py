"""The vendors' own clients and ours read the same bytes and must come to the same message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from openclaw.messages import AssistantBlock, AssistantMessage, TextBlock, ThinkingBlock, ToolCall
from openclaw.models.base import Model
from tests.models.recordings import ANTHROPIC, CHAT
from tests.models.streams import READ, ask, collect, done_of
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.model_wire import Rendered, anthropic_stream, chat_stream, responses_stream

if TYPE_CHECKING:  # They take two seconds to load, and every worker of a test run would load them to look for tests.
    import anthropic
    import openai

REPLIES = {
    "text": Reply(text="Hello, wörld 😀 again", usage={"input": 10, "output": 4, "cacheRead": 3}),
    "thinking, text and calls": Reply(
        thinking="so be it",
        text="Calling.",
        calls=[Call("read", {"path": "ä", "n": [1, 2.5, None]}, "call_a"), Call("status", {}, "call_b")],
        usage={"input": 10, "output": 44, "cacheRead": 3, "reasoning": 30},
    ),
    "limit": Reply(text="cut her", stop="length"),
    "nothing but a call": Reply(calls=[Call("read", {"path": "x" * 500}, "call_a")]),
}


def rendered(parts: Rendered) -> bytes:
    return parts.head + b"".join(parts.tokens) + parts.tail + parts.end


def streams(recorded: dict[str, bytes], render: Any) -> list[Any]:
    made = {f"made: {name}": rendered(render(reply, 1, "m", 100)) for name, reply in REPLIES.items()}
    return [pytest.param(raw, id=name) for name, raw in {**recorded, **made}.items()]


async def ours(server: ModelServer, api: str, raw: bytes) -> AssistantMessage:
    server.queue(Reply(raw=raw))
    model: Model = server.model(api)
    return done_of(await collect(ask(model, tools=[READ]), server.api_key))


@pytest.fixture
async def vendor(server: ModelServer) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, openai.AsyncOpenAI]]:
    import anthropic
    import openai

    key = server.api_key
    first = anthropic.AsyncAnthropic(api_key=key, base_url=server.base_url, max_retries=0)
    second = openai.AsyncOpenAI(api_key=key, base_url=f"{server.base_url}/v1", max_retries=0)
    yield first, second
    await first.close()
    await second.close()


@pytest.mark.parametrize("raw", streams(ANTHROPIC, anthropic_stream))
async def test_anthropics_client_agrees(
    server: ModelServer, vendor: tuple[anthropic.AsyncAnthropic, Any], raw: bytes
) -> None:
    server.queue(Reply(raw=raw))
    messages: Any = [{"role": "user", "content": "hi"}]
    async with vendor[0].messages.stream(model="m", max_tokens=100, messages=messages) as stream:
        theirs = await stream.get_final_message()
    message = await ours(server, "anthropic-messages", raw)
    assert [_as_anthropic(block) for block in message.content] == [_dumped(block) for block in theirs.content]
    stops = {"end_turn": "stop", "tool_use": "toolUse", "max_tokens": "length"}
    assert message.stop_reason == stops[str(theirs.stop_reason)]
    usage = theirs.usage
    assert (message.usage.input, message.usage.output) == (usage.input_tokens, usage.output_tokens)
    assert message.usage.cache_read == (usage.cache_read_input_tokens or 0)
    assert message.usage.cache_write == (usage.cache_creation_input_tokens or 0)


def _as_anthropic(block: AssistantBlock) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ThinkingBlock(redacted=True):
            return {"type": "redacted_thinking", "data": block.thinking_signature}
        case ThinkingBlock():
            return {"type": "thinking", "thinking": block.thinking, "signature": block.thinking_signature}
        case ToolCall():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}


def _dumped(block: Any) -> dict[str, Any]:
    names = ("type", "text", "thinking", "signature", "data", "id", "name", "input")
    return {name: value for name, value in block.model_dump(exclude_none=True).items() if name in names}


@pytest.mark.parametrize("raw", streams(CHAT, chat_stream))
async def test_openais_client_agrees_on_chat(
    server: ModelServer, vendor: tuple[Any, openai.AsyncOpenAI], raw: bytes
) -> None:
    server.queue(Reply(raw=raw))
    theirs = await _chat_by_sdk(vendor[1])
    message = await ours(server, "openai-completions", raw)
    assert message.text == theirs["text"]
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == theirs["calls"]
    assert message.stop_reason == {"stop": "stop", "length": "length", "tool_calls": "toolUse"}[theirs["finish"]]
    usage = theirs["usage"]
    assert message.usage.input + message.usage.cache_read == usage.prompt_tokens
    assert message.usage.cache_read == usage.prompt_tokens_details.cached_tokens
    assert message.usage.output == usage.completion_tokens
    assert message.usage.total_tokens == usage.total_tokens


async def _chat_by_sdk(client: openai.AsyncOpenAI) -> dict[str, Any]:
    """The chunks as the vendor's client parses them, joined."""
    texts: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    found: dict[str, Any] = {}
    stream: Any = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        if chunk.usage is not None:
            found["usage"] = chunk.usage
        for choice in chunk.choices:
            texts.append(choice.delta.content or "")
            found["finish"] = choice.finish_reason or found.get("finish")
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    joined = [(call["id"], call["name"], msgspec.json.decode(call["arguments"])) for call in calls.values()]
    return {**found, "text": "".join(texts), "calls": joined}


@pytest.mark.parametrize("raw", streams({}, responses_stream))
async def test_openais_client_agrees_on_responses(
    server: ModelServer, vendor: tuple[Any, openai.AsyncOpenAI], raw: bytes
) -> None:
    server.queue(Reply(raw=raw))
    events = [event async for event in await vendor[1].responses.create(model="m", input="hi", stream=True)]
    theirs: Any = events[-1].response  # type: ignore[union-attr]
    message = await ours(server, "openai-responses", raw)
    assert message.text == theirs.output_text
    calls = [item for item in theirs.output if item.type == "function_call"]
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [
        (f"{call.call_id}|{call.id}", call.name, msgspec.json.decode(call.arguments)) for call in calls
    ]
    thoughts = [part.text for item in theirs.output if item.type == "reasoning" for part in item.summary]
    assert [block.thinking for block in message.content if isinstance(block, ThinkingBlock)] == thoughts
    expected = "length" if theirs.status == "incomplete" else ("toolUse" if calls else "stop")
    assert message.stop_reason == expected
    usage = theirs.usage
    assert message.usage.input + message.usage.cache_read == usage.input_tokens
    assert (message.usage.output, message.usage.total_tokens) == (usage.output_tokens, usage.total_tokens)


async def test_a_conversation_by_the_vendors_clients_passes_the_strict_server(
    server: ModelServer, vendor: tuple[anthropic.AsyncAnthropic, openai.AsyncOpenAI]
) -> None:
    """The server must be strict with our mistakes, not with what the vendors' own clients send."""
    import anthropic
    import openai

    first = await vendor[0].messages.create(
        model="m", max_tokens=10, system="s", messages=[{"role": "user", "content": "[[reply:a]]"}]
    )
    second = await vendor[1].chat.completions.create(model="m", messages=[{"role": "user", "content": "[[reply:b]]"}])
    third = await vendor[1].responses.create(model="m", input="[[reply:c]]")
    assert first.content[0].text == "a"  # type: ignore[union-attr]
    assert second.choices[0].message.content == "b"
    assert third.output_text == "c"
    with pytest.raises(anthropic.BadRequestError, match="at least one message"):
        await vendor[0].messages.create(model="m", max_tokens=10, messages=[])
    with pytest.raises(openai.AuthenticationError):
        await vendor[1].with_options(api_key="wrong").responses.create(model="m", input="x")
