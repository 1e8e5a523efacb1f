"""The Anthropic Messages API: the request we send and the stream we read."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from openclaw.messages import (
    AssistantBlock,
    AssistantMessage,
    ImageBlock,
    Message,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingLevel,
    ToolResultMessage,
    ToolSpec,
    UserBlock,
    UserMessage,
)
from openclaw.models import convert, thinking
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.convert import PartState, build_history, encoded_once
from openclaw.models.http import BlockBuilder, ReplyReader, WireRequest, request_to
from openclaw.models.thinking import (
    ANTHROPIC_BASE_URL,
    ClaudeFacts,
    claude_effort,
    claude_facts,
    controls_binding,
    is_anthropic,
)

API_VERSION = "2023-06-01"
BINDING_BETA = "thinking-binding-controls-2026-08-01"
MAX_ID = 64
LOOKED_BACK = 18
"""Anthropic finds what it has cached within twenty blocks before a marker. A step with more gets a second marker."""
_SCHEMA_KEYS = ("type", "properties", "required", "$defs", "definitions")
# Anthropic's test string for refusals. In a prompt it would end every conversation.
_REFUSAL_TEST = re.compile(r"ANTHROPIC_MAGIC_STRING_TRIGGER_REFUSAL\w*")


def build_request(request: ModelRequest, api_key: str = "") -> WireRequest:
    model = request.model
    base = (model.base_url or ANTHROPIC_BASE_URL).rstrip("/")
    url = f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"
    return request_to(url, model, api_key, _headers(model, api_key), build_body(request))


def _headers(model: Model, api_key: str) -> dict[str, str]:
    headers = {"anthropic-version": API_VERSION}
    betas: Any = model.compat.get("betas")
    names = [str(name) for name in betas] if isinstance(betas, list | tuple) else []
    if controls_binding(model):
        names.append(BINDING_BETA)
    if api_key.startswith("sk-ant-oat"):
        headers["authorization"] = f"Bearer {api_key}"
        names.append("oauth-2025-04-20")
    elif model.compat.get("authHeader"):
        headers["authorization"] = f"Bearer {api_key}"
    elif api_key:
        headers["x-api-key"] = api_key
    if names:
        headers["anthropic-beta"] = ",".join(names)
    return headers


def build_body(request: ModelRequest) -> dict[str, Any]:
    model = request.model
    facts = claude_facts(model)
    level = thinking.clamp_to_model(request.thinking, model)
    binds = thinking.binds_thinking(model, level)

    def build(history: list[Message], state: PartState) -> list[dict[str, Any]]:
        if facts.bound_thinking:
            history = _without_unbound_thinking(history, keep_current=binds and not state.finished)
        return _messages(history, model, beginning=state.first)

    # The thinking in a tool loop is bound to the question with its facts, so both stay as they were.
    finished, current = build_history(request, convert.UniqueIds(MAX_ID), build, facts_stay=binds)
    if current[-1]["role"] == "assistant":
        current.append({"role": "user", "content": [{"type": "text", "text": convert.CONTINUE}]})
    marker = _cache_marker(model)
    told = _without_refusal_test(request.turn_facts)
    _mark_last(current, told, marker)
    messages: list[Any] = [*finished, *current]
    if binds:
        _mark_question(messages, told, marker)
    body: dict[str, Any] = {"model": model.id, "messages": messages, "stream": True}
    if system := _system(request, marker):
        body["system"] = system
    _add_tools(body, request, marker)
    if not facts.forced_tools and _is_forced(body):
        # These models refuse forced calls, so the choice is left to them.
        del body["tool_choice"]
    _add_thinking(body, request, facts, level, current)
    return body


def _without_unbound_thinking(history: list[Message], *, keep_current: bool) -> list[Message]:
    """Removes thinking that is no longer valid. It is bound to the conversation before it.

    Between turns the prompt changes (the turn facts, pruned results), so thinking of earlier turns is removed. Within a
    turn the conversation only grows, so thinking since the last user message can stay.
    """
    last_user = max((index for index, message in enumerate(history) if isinstance(message, UserMessage)), default=-1)
    out: list[Message] = []
    for index, message in enumerate(history):
        if isinstance(message, AssistantMessage) and not (keep_current and index > last_user):
            content = [block for block in message.content if not isinstance(block, ThinkingBlock)]
            if not content:
                continue
            message = msgspec.structs.replace(message, content=content)
        out.append(message)
    return out


def _system(request: ModelRequest, marker: dict[str, str] | None) -> list[Any]:
    """The part that all sessions share carries the cache marker. The session's own part stands after it."""
    blocks: list[Any] = []
    if request.system.strip():
        blocks.append(encoded_once(request, "anthropic system", lambda: _marked(_text(request.system), marker)))
    if request.system_suffix.strip():
        blocks.append(_text(request.system_suffix))
    return blocks


def _messages(history: list[Message], model: Model, *, beginning: bool) -> list[dict[str, Any]]:
    """Messages whose roles alternate. Anthropic joins neighbours of one role; servers that copy its API refuse them."""
    out: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []
    for message in history:
        if isinstance(message, ToolResultMessage):
            result, images = _result_blocks(message, model)
            _say(out, "user", [result])
            pictures += images
            continue
        if pictures:
            # Pictures must come after all results of the turn.
            _say(out, "user", pictures)
            pictures = []
        if isinstance(message, UserMessage):
            _say(out, "user", [_user_block(block) for block in convert.user_blocks(message, model)])
        else:
            _say(out, "assistant", _assistant_blocks(message))
    _say(out, "user", pictures)
    if beginning and out and out[0]["role"] == "assistant":
        out.insert(0, {"role": "user", "content": [{"type": "text", "text": convert.BOOTSTRAP}]})
    return out


def _say(out: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    if not blocks:
        return
    if out and out[-1]["role"] == role:
        out[-1]["content"] += blocks
    else:
        out.append({"role": role, "content": blocks})


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": _without_refusal_test(text)}


def _user_block(block: UserBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        return {"type": "image", "source": {"type": "base64", "media_type": block.mime_type, "data": block.data}}
    return _text(block.text)


def _assistant_blocks(message: AssistantMessage) -> list[dict[str, Any]]:
    """The blocks of an answer without thinking at its end, which is refused."""
    blocks = [_assistant_block(block) for block in message.content]
    while blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
        blocks.pop()
    return blocks


def _assistant_block(block: AssistantBlock) -> dict[str, Any]:
    match block:
        case TextBlock():
            return _text(block.text)
        case ThinkingBlock(redacted=True):
            return {"type": "redacted_thinking", "data": block.thinking_signature}
        case ThinkingBlock():
            if not block.thinking_signature:
                # Reasoning without a signature (a cut stream, a compatible server) is refused as thinking.
                return {"type": "text", "text": block.thinking}
            return {"type": "thinking", "thinking": block.thinking, "signature": block.thinking_signature}
        case _:
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}


def _result_blocks(message: ToolResultMessage, model: Model) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result, and pictures to send after it. A result that is marked as an error may hold only text."""
    blocks = convert.user_blocks(message, model)
    content: Any = _without_refusal_test(convert.result_text(blocks))
    pictures = [_user_block(block) for block in blocks if isinstance(block, ImageBlock)]
    if pictures and not message.is_error:
        content = [_user_block(block) for block in blocks]
        if not any(isinstance(block, TextBlock) for block in blocks):
            content.insert(0, {"type": "text", "text": convert.SEE_IMAGE})
        pictures = []
    result = {
        "type": "tool_result",
        "tool_use_id": message.tool_call_id,
        "content": content,
        "is_error": message.is_error,
    }
    return result, pictures


def _cache_marker(model: Model) -> dict[str, str] | None:
    """The marker for ``compat.cacheRetention``: ``none``, ``short`` (default) or ``long`` (only at Anthropic)."""
    retention = model.compat.get("cacheRetention", "short")
    if retention == "none":
        return None
    if retention == "long" and is_anthropic(model):
        return {"type": "ephemeral", "ttl": "1h"}
    return {"type": "ephemeral"}


def _marked(block: dict[str, Any], marker: dict[str, str] | None) -> dict[str, Any]:
    return {**block, "cache_control": marker} if marker else block


def _mark_last(messages: list[dict[str, Any]], facts: str, marker: dict[str, str] | None) -> None:
    """Marks the last block that the next request will have too. The turn facts (``facts``) are not such a block."""
    _mark_before_facts(messages[-1]["content"], facts, marker)
    before = next((message for message in messages[-2::-1] if message["role"] == "user"), None)
    if before is not None and sum(len(message["content"]) for message in messages[-2:]) > LOOKED_BACK:
        before["content"][-1] = _marked(before["content"][-1], marker)


def _mark_before_facts(blocks: list[dict[str, Any]], facts: str, marker: dict[str, str] | None) -> None:
    index = -2 if len(blocks) > 1 and blocks[-1].get("text") == facts else -1
    blocks[index] = _marked(blocks[index], marker)


def _mark_question(messages: list[Any], facts: str, marker: dict[str, str] | None) -> None:
    """Marks the newest question before the last message, for models with bound thinking.

    After a turn its thinking and its facts are gone, so the next turn finds in the cache what stood before them: the
    question. It is too far back to be found without a mark. During the turn the mark keeps it in the cache.
    """
    for index in range(len(messages) - 2, -1, -1):
        message: Any = messages[index]
        if isinstance(message, msgspec.Raw):
            message = msgspec.json.decode(message)
        if message["role"] == "user" and message["content"][-1]["type"] != "tool_result":
            _mark_before_facts(message["content"], facts, marker)
            messages[index] = message
            return


def _add_tools(body: dict[str, Any], request: ModelRequest, marker: dict[str, str] | None) -> None:
    match convert.tool_choice(request):
        case {"name": name}:
            choice = {"type": "tool", "name": name}
        case "required":
            choice = {"type": "any"}
        case "none":
            choice = {"type": "none"}
        case _:
            choice = None
    if request.tools and "system" in body:
        tools = encoded_once(request, "anthropic tools", lambda: [_tool(spec) for spec in request.tools])
    elif request.tools:
        tools = [_tool(spec) for spec in request.tools]
    elif names := convert.used_tool_names(request.messages):
        # Calls in history need declared tools, even when no tool is offered now.
        empty = {"type": "object", "properties": {}}
        tools = [{"name": name, "description": "Not available now.", "input_schema": empty} for name in names]
        choice = {"type": "none"}
    else:
        return
    if "system" not in body:
        tools[-1] = _marked(tools[-1], marker)
    body["tools"] = tools
    if choice is not None:
        body["tool_choice"] = choice


def _tool(spec: ToolSpec) -> dict[str, Any]:
    schema = {key: spec.parameters[key] for key in _SCHEMA_KEYS if key in spec.parameters}
    return {
        "name": spec.name,
        "description": spec.description,
        "input_schema": {**schema, "type": "object", "properties": schema.get("properties") or {}},
    }


def _is_forced(body: dict[str, Any]) -> bool:
    return body.get("tool_choice", {}).get("type") in ("any", "tool")


def _add_thinking(
    body: dict[str, Any],
    request: ModelRequest,
    facts: ClaudeFacts,
    level: ThinkingLevel,
    current: list[dict[str, Any]],
) -> None:
    model = request.model
    body["max_tokens"] = thinking.output_limit(model, request.max_tokens, request.output_room)
    if level == "off" or _is_forced(body):
        if facts.off == "low_effort":
            _think_adaptively(body, model, "low")
        elif facts.off != "omit":
            body["thinking"] = {"type": facts.off}
    elif facts.adaptive:
        _think_adaptively(body, model, claude_effort(level, facts))
    elif _may_think(current):
        budget, limit = thinking.budget_and_limit(level, model, request.max_tokens, request.output_room)
        if budget:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            body["max_tokens"] = limit
    if request.temperature is not None and facts.sampling and "thinking" not in body:
        body["temperature"] = min(1.0, max(0.0, request.temperature))


def _think_adaptively(body: dict[str, Any], model: Model, effort: str) -> None:
    config: dict[str, Any] = {"type": "adaptive"}
    if not claude_facts(model).sampling:
        # Since version 4.7 the text of thinking comes only when it is asked for.
        config["display"] = "summarized"
    if controls_binding(model):
        config["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    body["thinking"] = config
    body["output_config"] = {"effort": effort}


def _may_think(messages: list[dict[str, Any]]) -> bool:
    """Whether thinking may be on. It may not be switched on in a tool loop that began without this model's thinking."""
    position = len(messages) - 1
    results = False
    while position >= 0 and messages[position]["role"] == "user":
        results = results or any(block["type"] == "tool_result" for block in messages[position]["content"])
        position -= 1
    # Neighbouring assistant messages count as one, and its first block decides.
    while position > 0 and messages[position - 1]["role"] == "assistant":
        position -= 1
    return not results or messages[position]["content"][0]["type"] in ("thinking", "redacted_thinking")


def _without_refusal_test(text: str) -> str:
    return _REFUSAL_TEST.sub("[redacted]", text) if "ANTHROPIC_MAGIC_STRING" in text else text


_STOP: dict[str, StopReason] = {
    "end_turn": "stop",
    "pause_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "toolUse",
    "refusal": "error",
    "sensitive": "error",
}
_ERROR_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _AnthropicEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: Any = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_AnthropicEvent)
_any_decoder = msgspec.json.Decoder()


class AnthropicStream(ReplyReader):
    """Reads the events from ``message_start`` to ``message_stop``. Blocks are kept by the server's index."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        super().__init__(model, timestamp)
        self._by_index: dict[int, BlockBuilder] = {}
        self._counts: dict[str, int] = {}

    def _read_whole(self, body: bytes) -> bool:
        event = self.builder.decode(_decoder, body)
        if event.type == "error" or event.error is not None:
            raise self._refused(event.error)
        whole: Any = self.builder.decode(_any_decoder, body)
        content = whole.get("content")
        if whole.get("type") != "message" or not isinstance(content, list):
            return False
        for index, block in enumerate(content):
            self._open(index, block)
        self._count(whole.get("usage"))
        self.stop = whole.get("stop_reason")
        self._end()
        return True

    def _read_event(self, data: bytes) -> None:
        event = self.builder.decode(_decoder, data)
        match event.type:
            case "content_block_delta":
                if event.delta is not None:
                    self._extend(event.index, event.delta)
            case "content_block_start":
                self.builder.started = True
                self._open(event.index, event.content_block or {})
            case "message_start":
                self.builder.started = True
                if isinstance(event.message, dict):
                    self._count(event.message.get("usage"))
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None and event.delta.stop_reason:
                    self.stop = event.delta.stop_reason
            case "message_stop":
                self._end()
            case "error":
                raise self._refused(event.error)
            case _:
                pass  # Pings, the ends of blocks, and events of later versions of the API.

    def _open(self, index: int, block: dict[str, Any]) -> None:
        builder = self.builder
        match block:
            case {"type": "text"}:
                opened = builder.open("text")
                builder.extend(opened, str(block.get("text") or ""))
            case {"type": "thinking"}:
                opened = builder.open("thinking", signature=block.get("signature") or None)
                builder.extend(opened, str(block.get("thinking") or ""))
            case {"type": "redacted_thinking", "data": str(data)}:
                opened = builder.open("thinking", signature=data)
                opened.redacted = True
            case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
                opened = builder.open_call(call_id, name)
                if isinstance(arguments := block.get("input"), dict) and arguments:
                    opened.whole_arguments = arguments
            case _:
                # A block of a server-side tool. Its deltas find no block and are skipped.
                return
        self._by_index[index] = opened

    def _extend(self, index: int, delta: _Delta) -> None:
        block = self._by_index.get(index)
        builder = self.builder
        if delta.text is not None:
            if block is None:
                # Some compatible servers leave out content_block_start.
                block = self._by_index[index] = builder.open("text")
            if block.kind == "text":
                builder.extend(block, delta.text)
        elif block is None:
            return
        elif (more := delta.thinking if delta.partial_json is None else delta.partial_json) is not None:
            builder.extend(block, more)
        elif delta.signature is not None:
            block.signature = (block.signature or "") + delta.signature

    def _count(self, usage: Any) -> None:
        """Later numbers replace earlier ones. Numbers that are missing or null leave the earlier ones."""
        if not isinstance(usage, dict):
            return
        counts = self._counts
        for name, value in usage.items():
            if isinstance(value, int):
                counts[name] = value
        self.builder.count(
            input=counts.get("input_tokens", 0),
            output=counts.get("output_tokens", 0),
            cache_read=counts.get("cache_read_input_tokens", 0),
            cache_write=counts.get("cache_creation_input_tokens", 0),
        )

    def _end(self) -> None:
        reason = _STOP.get(self.stop or "", "stop")
        error = f"The model declined to answer (stop reason {self.stop})." if reason == "error" else None
        self.builder.done(reason, error)

    def _refused(self, error: Any) -> ModelError:
        status = _ERROR_STATUS.get(error.get("type", "")) if isinstance(error, dict) else None
        return self.builder.refused({"error": error}, status)
