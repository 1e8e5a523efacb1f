"""OpenAI Responses: what we send. Nothing is stored at the vendor; reasoning is returned to it encrypted."""

from __future__ import annotations

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
from openclaw.models.compat import openai_headers, quirks_of, tool_choice, url_of
from openclaw.models.endpoint import Endpoint
from openclaw.models.http import WireRequest, idle_timeout_s, stream_reply
from openclaw.models.openai_responses_stream import ResponsesStream
from openclaw.models.settled import State, in_parts
from openclaw.models.standing import Standing, once

MAX_ID = 64
MIN_OUTPUT_TOKENS = 16


class OpenAIResponsesProvider(Provider):
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

        self._standing = Standing()

    def stream(self, request: ModelRequest, api_key: str) -> AsyncGenerator[StreamEvent]:
        wire = build_request(request, api_key, self._standing)
        state = ResponsesStream(request.model, self._clock.now_ms())
        return stream_reply(wire, state, model=request.model)


def build_request(request: ModelRequest, api_key: str = "", standing: Standing | None = None) -> WireRequest:
    standing = standing or Standing()
    try:
        endpoint = standing.endpoint(request.model, api_key, _endpoint)
        return WireRequest(endpoint=endpoint, body=build_body(request, standing))
    except ValueError as error:
        raise ModelError(str(error), kind="format") from None


def _endpoint(model: Model, api_key: str) -> Endpoint:
    url, headers = url_of(model, "/responses"), openai_headers(model, api_key)
    return Endpoint(url, headers, api_key=api_key, idle_s=idle_timeout_s(model))


def build_body(request: ModelRequest, standing: Standing | None = None) -> dict[str, Any]:
    """``standing``: the tools are taken from there, encoded."""
    model = request.model
    quirks = quirks_of(model)

    def build(part: list[Message], state: State) -> list[dict[str, Any]]:
        return _items(convert.transform(part, model, state.ids), model, state.sent)

    over, current = in_parts(request, convert.UniqueIds(_legal_id, MAX_ID), build)
    if not current:
        raise ModelError("The conversation holds no message that could be sent to the model.", kind="format")
    body: dict[str, Any] = {
        "model": model.id,
        "input": [*_system(request), *over, *current],
        "stream": True,
        "store": False,
        "max_output_tokens": max(MIN_OUTPUT_TOKENS, thinking.output_limit(model, request.max_tokens)),
    }
    if request.session_id:
        body["prompt_cache_key"] = request.session_id[:64]
    if request.tools:
        body["tools"] = _tools(request.tools, standing)
        choice = tool_choice(request.tool_choice, nested=False)
        if choice is not None:
            body["tool_choice"] = choice
    if model.reasoning:
        body["include"] = ["reasoning.encrypted_content"]
        effort = thinking.reasoning_effort(request.thinking, model, vendor=quirks.is_openai)
        if effort:
            body["reasoning"] = {"effort": effort} if effort == "none" else {"effort": effort, "summary": "auto"}
    if request.temperature is not None and not (quirks.is_openai and thinking.fixes_temperature(body, model)):
        body["temperature"] = request.temperature
    return body


def _legal_id(call_id: str, same_model: bool) -> str:
    """Stored ids are ``call_id|item_id``. Both parts are kept legal; the item's is only good for the same model."""
    call, _, item = call_id.partition("|")
    call = convert.sanitised(call)[:MAX_ID]
    item = convert.sanitised(item)[:MAX_ID]
    return f"{call}|{item}" if call and same_model and item.startswith("fc") else call


def _system(request: ModelRequest) -> list[dict[str, Any]]:
    parts = [part for part in (request.system, request.system_suffix) if part.strip()]
    developer = request.model.reasoning and quirks_of(request.model).supports_developer_role
    return [{"role": "developer" if developer else "system", "content": part} for part in parts]


def _items(history: list[Message], model: Model, sent: set[str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in history:
        match message:
            case UserMessage():
                if blocks := convert.user_blocks(message, model):
                    items.append({"role": "user", "content": [_part(block) for block in blocks]})
            case AssistantMessage():
                items += _assistant_items(message, model, sent)
            case ToolResultMessage():
                call_id = message.tool_call_id.partition("|")[0]
                items.append({"type": "function_call_output", "call_id": call_id, "output": _output(message, model)})
    return items


def _assistant_items(message: AssistantMessage, model: Model, sent: set[str]) -> list[dict[str, Any]]:
    """The reply's items in order. ``sent`` are the ids already used: the API refuses one twice."""
    items: list[dict[str, Any]] = []
    same = convert.is_same_model(message, model)
    reasoned = False
    for block in message.content:
        match block:
            case ThinkingBlock():
                item = _reasoning_item(block, sent) if same else None
                # What follows a thought that cannot be sent must not name it either.
                reasoned = item is not None
                if item is not None:
                    items.append(item)
            case TextBlock():
                items.append(_text_item(block, sent, with_id=reasoned))
            case ToolCall():
                items.append(_call_item(block, sent, with_id=reasoned))
    # Reasoning must be followed by what it led to.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _reasoning_item(block: ThinkingBlock, sent: set[str]) -> dict[str, Any] | None:
    """The item as the API gave it; without its encrypted content the vendor would look for it and not find it."""
    try:
        item = msgspec.json.decode(block.thinking_signature or "")
    except (msgspec.MsgspecError, UnicodeError):
        return None
    match item:
        case {"type": "reasoning", "id": str(item_id), "encrypted_content": str(encrypted)} if encrypted:
            if item_id in sent:
                return None
            sent.add(item_id)
            summary = item.get("summary")
            return {
                "type": "reasoning",
                "id": item_id,
                "summary": summary if isinstance(summary, list) else [],
                "encrypted_content": encrypted,
            }
        case _:
            return None


def _text_item(block: TextBlock, sent: set[str], *, with_id: bool) -> dict[str, Any]:
    item_id = block.text_signature or ""
    if not with_id or not item_id.startswith("msg") or len(item_id) > MAX_ID or item_id in sent:
        return {"role": "assistant", "content": block.text}
    sent.add(item_id)
    content = [{"type": "output_text", "text": block.text, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": item_id, "status": "completed", "content": content}


def _call_item(call: ToolCall, sent: set[str], *, with_id: bool) -> dict[str, Any]:
    """An item id ties the call to its reasoning; sent without that reasoning it would be refused."""
    call_id, _, item_id = call.id.partition("|")
    item = {
        "type": "function_call",
        "call_id": call_id,
        "name": call.name,
        "arguments": convert.json_text(call.arguments),
    }
    if with_id and item_id and item_id not in sent:
        sent.add(item_id)
        item["id"] = item_id
    return item


def _part(block: UserBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        url = f"data:{block.mime_type};base64,{block.data}"
        return {"type": "input_image", "detail": "auto", "image_url": url}
    return {"type": "input_text", "text": block.text}


def _output(message: ToolResultMessage, model: Model) -> Any:
    blocks = convert.user_blocks(message, model)
    if any(isinstance(block, ImageBlock) for block in blocks):
        return [_part(block) for block in blocks]
    return convert.result_text(blocks)


def _tools(specs: list[ToolSpec], standing: Standing | None) -> Any:
    def offered() -> list[dict[str, Any]]:
        return [_tool(spec) for spec in specs]

    return once(standing, specs, None, offered)


def _tool(spec: ToolSpec) -> dict[str, Any]:
    # Not strict: that mode, the API's default, rewrites schemas and refuses many.
    parameters = {"properties": {}, **spec.parameters, "type": "object"}
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": parameters,
        "strict": False,
    }
