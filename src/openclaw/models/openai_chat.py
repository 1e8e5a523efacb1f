"""OpenAI chat completions, also as spoken by Ollama, vLLM, llama.cpp, OpenRouter and many more: what we send."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from openclaw.clock import Clock, SystemClock
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserBlock,
    UserMessage,
)
from openclaw.models import convert, thinking
from openclaw.models.base import Model, ModelError, ModelRequest, Provider, StreamEvent
from openclaw.models.compat import Quirks, openai_headers, quirks_of, tool_choice, url_of
from openclaw.models.endpoint import Endpoint
from openclaw.models.http import WireRequest, idle_timeout_s, stream_reply
from openclaw.models.openai_chat_stream import REASONING_FIELDS, ChatStream
from openclaw.models.openai_chat_turns import in_turns
from openclaw.models.settled import State, in_parts
from openclaw.models.standing import Standing, once

MAX_ID = 40
RESULT_IMAGES = "Images from the tool results above:"
_MISTRAL_ID = 9
_MISTRAL_PADDING = "ABCDEFGHI"


class OpenAIChatProvider(Provider):
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

        self._standing = Standing()

    def stream(self, request: ModelRequest, api_key: str) -> AsyncGenerator[StreamEvent]:
        wire = build_request(request, api_key, self._standing)
        state = ChatStream(request.model, self._clock.now_ms())
        return stream_reply(wire, state, model=request.model)


def build_request(request: ModelRequest, api_key: str = "", standing: Standing | None = None) -> WireRequest:
    standing = standing or Standing()
    try:
        endpoint = standing.endpoint(request.model, api_key, _endpoint)
        return WireRequest(endpoint=endpoint, body=build_body(request, standing))
    except ValueError as error:
        raise ModelError(str(error), kind="format") from None


def _endpoint(model: Model, api_key: str) -> Endpoint:
    url, headers = url_of(model, "/chat/completions"), openai_headers(model, api_key)
    return Endpoint(url, headers, api_key=api_key, idle_s=idle_timeout_s(model))


def build_body(request: ModelRequest, standing: Standing | None = None) -> dict[str, Any]:
    """``standing``: the tools are taken from there, encoded."""
    model = request.model
    quirks = quirks_of(model)
    max_id = _MISTRAL_ID if quirks.requires_mistral_tool_ids else MAX_ID

    def build(part: list[Message], state: State) -> list[dict[str, Any]]:
        return _messages(convert.transform(part, model, state.ids), model, quirks)

    ids = convert.UniqueIds(_id_rule(quirks), max_id)
    if quirks.requires_assistant_after_tool_result:
        over: list[Any] = []
        current = in_turns(build(request.messages, State(ids)))
    else:
        over, current = in_parts(request, ids, build)
    if not current:
        raise ModelError("The conversation holds no message that could be sent to the model.", kind="format")
    messages = [*_system(request, quirks), *over, *current]
    if quirks.is_openrouter and model.id.startswith("anthropic/"):
        _mark_for_cache(messages)
    body: dict[str, Any] = {"model": model.id, "messages": messages, "stream": True}
    if quirks.supports_usage_in_streaming:
        body["stream_options"] = {"include_usage": True}
    body[quirks.max_tokens_field] = thinking.output_limit(model, request.max_tokens)
    if quirks.is_openai and request.session_id:
        body["prompt_cache_key"] = request.session_id[:64]
    _add_tools(body, request, quirks, standing)
    _add_thinking(body, request, quirks)
    if request.temperature is not None and not (quirks.is_openai and thinking.fixes_temperature(body, model)):
        body["temperature"] = request.temperature
    return body


def _id_rule(quirks: Quirks) -> convert.IdRule:
    def mistral(call_id: str, same_model: bool) -> str:
        plain = re.sub(r"[^a-zA-Z0-9]", "", call_id)
        return (plain + _MISTRAL_PADDING)[:_MISTRAL_ID]

    def usual(call_id: str, same_model: bool) -> str:
        if "|" in call_id:
            # An id of the Responses API: its first part names the call.
            return convert.sanitised(call_id.partition("|")[0])[:MAX_ID]
        # Some servers read meaning into their own ids; those come back as they were.
        return call_id if same_model and not quirks.is_openai else call_id[:MAX_ID]

    return mistral if quirks.requires_mistral_tool_ids else usual


def _system(request: ModelRequest, quirks: Quirks) -> list[dict[str, Any]]:
    parts = [part for part in (request.system, request.system_suffix) if part.strip()]
    if not parts:
        return []
    role = "developer" if request.model.reasoning and quirks.supports_developer_role else "system"
    return [{"role": role, "content": "\n\n".join(parts)}]


def _messages(history: list[Message], model: Model, quirks: Quirks) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []
    for message in history:
        if pictures and not isinstance(message, ToolResultMessage):
            out.append(_picture_message(pictures))
            pictures = []
        match message:
            case UserMessage():
                if blocks := convert.user_blocks(message, model):
                    out.append({"role": "user", "content": _user_content(blocks)})
            case AssistantMessage():
                if (reply := _assistant(message, quirks)) is not None:
                    out.append(reply)
            case ToolResultMessage():
                blocks = convert.user_blocks(message, model)
                result = {
                    "role": "tool",
                    "tool_call_id": message.tool_call_id,
                    "content": convert.result_text(blocks),
                }
                out.append({**result, "name": message.tool_name} if quirks.requires_tool_result_name else result)
                pictures += [_image(block) for block in blocks if isinstance(block, ImageBlock)]
    if pictures:
        out.append(_picture_message(pictures))
    return out


def _picture_message(pictures: list[dict[str, Any]]) -> dict[str, Any]:
    """The role ``tool`` holds no pictures: they follow the run of results."""
    return {"role": "user", "content": [{"type": "text", "text": RESULT_IMAGES}, *pictures]}


def _user_content(blocks: list[UserBlock]) -> Any:
    if all(isinstance(block, TextBlock) for block in blocks):
        # One string: not every server reads lists.
        return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    return [
        _image(block) if isinstance(block, ImageBlock) else {"type": "text", "text": block.text} for block in blocks
    ]


def _image(block: ImageBlock) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}


def _assistant(message: AssistantMessage, quirks: Quirks) -> dict[str, Any] | None:
    thoughts = [
        block for block in message.content if isinstance(block, ThinkingBlock) and not convert.is_blank(block.thinking)
    ]
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    calls = [block for block in message.content if isinstance(block, ToolCall)]
    reply: dict[str, Any] = {"role": "assistant"}
    if quirks.requires_thinking_as_text:
        texts = [block.thinking for block in thoughts] + texts
    elif thoughts and (field := thoughts[0].thinking_signature) in REASONING_FIELDS:
        # Back into the field it came from, which is what the signature of such a block records.
        reply[str(field)] = "\n".join(block.thinking for block in thoughts)
    reply["content"] = "\n".join(texts) if texts else None
    if calls:
        reply["tool_calls"] = [_call(call) for call in calls]
        if details := [detail for call in calls if (detail := _reasoning_detail(call)) is not None]:
            reply["reasoning_details"] = details
    return reply if texts or calls else None


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = convert.json_text(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _reasoning_detail(call: ToolCall) -> Any:
    """Encrypted reasoning some routers attach to a call and want back."""
    if call.thought_signature is None:
        return None
    try:
        return msgspec.json.decode(call.thought_signature)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _mark_for_cache(messages: list[dict[str, Any]]) -> None:
    """Anthropic's models behind OpenRouter take the same cache markers, on text parts."""
    last = next((message for message in reversed(messages) if message["role"] == "user"), None)
    for message in (messages[0], last):
        if message is None or message["role"] not in ("system", "developer", "user"):
            continue
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        parts: list[dict[str, Any]] = message["content"]
        texts = [part for part in parts if part["type"] == "text"]
        if texts:
            texts[-1]["cache_control"] = {"type": "ephemeral"}


def _add_tools(body: dict[str, Any], request: ModelRequest, quirks: Quirks, standing: Standing | None) -> None:
    def offered() -> list[dict[str, Any]]:
        return [_tool(spec) for spec in request.tools]

    if request.tools:
        body["tools"] = once(standing, request.tools, None, offered)
        choice = tool_choice(request.tool_choice, nested=True)
        if choice is not None:
            body["tool_choice"] = choice
    elif not quirks.is_openai and convert.used_tool_names(request.messages):
        # Proxies in front of other vendors want the field when history holds calls; the vendor itself refuses it empty.
        body["tools"] = []


def _tool(spec: ToolSpec) -> dict[str, Any]:
    parameters = {"properties": {}, **spec.parameters, "type": "object"}
    return {
        "type": "function",
        "function": {"name": spec.name, "description": spec.description, "parameters": parameters},
    }


def _add_thinking(body: dict[str, Any], request: ModelRequest, quirks: Quirks) -> None:
    model = request.model
    if not model.reasoning:
        return
    effort = thinking.reasoning_effort(request.thinking, model, vendor=quirks.is_openai)
    version = thinking.gpt_version(model)
    if quirks.is_openai and request.tools and version is not None and version >= (5, 6):
        # On this endpoint these models call tools only without reasoning.
        effort = "none"
    match quirks.thinking_format:
        case "zai":
            body["thinking"] = {"type": "enabled" if effort else "disabled"}
        case "qwen":
            body["enable_thinking"] = effort is not None
        case _:
            if effort and quirks.supports_reasoning_effort:
                body["reasoning_effort"] = effort
