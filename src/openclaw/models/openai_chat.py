"""The OpenAI chat completions API: the request we send and the stream we read. The responses API shares some of it.

Ollama, vLLM, llama.cpp, OpenRouter and many other servers speak it too, some of them carelessly.
"""

from __future__ import annotations

import re
import secrets
from typing import Any
from urllib.parse import urlsplit

import msgspec

from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserBlock,
    UserMessage,
)
from openclaw.models import convert, thinking
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.convert import build_history
from openclaw.models.http import BlockBuilder, ReplyReader, WireRequest, number, request_to
from openclaw.models.thinking import OPENAI_BASE_URL, Quirks, quirks_of

MAX_ID = 40
_MISTRAL_ID = 9
_MISTRAL_PADDING = "ABCDEFGHI"
BRIDGE = "(results received)"
"""The assistant message between tool results and the next user message."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")


def build_request(request: ModelRequest, api_key: str = "") -> WireRequest:
    return wire_request(request, api_key, "/chat/completions", build_body(request))


def build_body(request: ModelRequest) -> dict[str, Any]:
    model = request.model
    quirks = quirks_of(model)
    ids = convert.UniqueIds(_MISTRAL_ID if quirks.requires_mistral_tool_ids else MAX_ID, _id_rule(quirks))
    strict_roles = quirks.requires_assistant_after_tool_result
    finished, current = build_history(
        request, ids, lambda history, _: _messages(history, model, quirks), in_parts=not strict_roles
    )
    system: list[dict[str, Any]] = []
    if texts := request.system_parts:
        system = [{"role": system_role(model, quirks), "content": "\n\n".join(texts)}]
    current = in_turns(current) if strict_roles else current
    if quirks.is_openrouter and model.id.startswith("anthropic/"):
        last = next((message for message in reversed(current) if message["role"] == "user"), None)
        _mark_for_cache([*system, last] if last else system, request.turn_facts)
    messages = [*system, *finished, *current]
    body: dict[str, Any] = {"model": model.id, "messages": messages, "stream": True}
    if quirks.supports_usage_in_streaming:
        body["stream_options"] = {"include_usage": True}
    body[quirks.max_tokens_field] = thinking.output_limit(model, request.max_tokens, request.output_room)
    if quirks.is_openai and request.session_id:
        body["prompt_cache_key"] = request.session_id[:64]
    if request.tools:
        add_tools(body, request, nested=True)
    elif not quirks.is_openai and convert.used_tool_names(request.messages):
        # Proxies of other vendors want the field when history holds calls. OpenAI itself refuses an empty list.
        body["tools"] = []
    _add_thinking(body, request, quirks)
    add_temperature(body, request, quirks)
    return body


def _id_rule(quirks: Quirks) -> convert.IdRule:
    def mistral(call_id: str, same_model: bool) -> str:
        plain = re.sub(r"[^a-zA-Z0-9]", "", call_id)
        return (plain + _MISTRAL_PADDING)[:_MISTRAL_ID]

    def usual(call_id: str, same_model: bool) -> str:
        if "|" in call_id:
            # This is an id of the Responses API. Its first part names the call.
            return convert.sanitised(call_id.partition("|")[0])[:MAX_ID]
        # Some servers read meaning into their own ids, so these are sent back unchanged.
        return call_id if same_model and not quirks.is_openai else call_id[:MAX_ID]

    return mistral if quirks.requires_mistral_tool_ids else usual


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
    """A user message with the pictures of the results before it. The role ``tool`` cannot hold pictures."""
    return {"role": "user", "content": [{"type": "text", "text": convert.RESULT_IMAGES}, *pictures]}


def _user_content(blocks: list[UserBlock]) -> Any:
    if all(isinstance(block, TextBlock) for block in blocks):
        # This is one string because not every server reads lists.
        return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    return [
        _image(block) if isinstance(block, ImageBlock) else {"type": "text", "text": block.text} for block in blocks
    ]


def _image(block: ImageBlock) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(block)}}


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
        # The signature of such a block is the name of the field it came from.
        reply[str(field)] = "\n".join(block.thinking for block in thoughts)
    reply["content"] = "\n".join(texts) if texts else None
    if calls:
        reply["tool_calls"] = [_call(call) for call in calls]
        # Some routers attach encrypted reasoning to a call and want it back.
        if details := [detail for call in calls if (detail := decoded(call.thought_signature)) is not None]:
            reply["reasoning_details"] = details
    return reply if texts or calls else None


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = convert.json_text(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _mark_for_cache(messages: list[dict[str, Any]], turn_facts: str) -> None:
    """Sets Anthropic's cache markers on text parts, for Anthropic's models behind OpenRouter.

    The turn facts are not cached, so they get a part of their own behind the marker.
    """
    for message in messages:
        if isinstance(message["content"], str):
            text = message["content"].removesuffix(f"\n{turn_facts}") if turn_facts else message["content"]
            pieces = [text] if text == message["content"] else [text, turn_facts]
            message["content"] = [{"type": "text", "text": piece} for piece in pieces]
        parts: list[dict[str, Any]] = message["content"]
        texts = [part for part in parts if part["type"] == "text" and part["text"] != turn_facts]
        if texts:
            texts[-1]["cache_control"] = {"type": "ephemeral"}


def _add_thinking(body: dict[str, Any], request: ModelRequest, quirks: Quirks) -> None:
    model = request.model
    if not model.reasoning:
        return
    effort = thinking.reasoning_effort(request.thinking, model, vendor=quirks.is_openai)
    version = thinking.gpt_version(model)
    if quirks.is_openai and request.tools and version is not None and version >= (5, 6):
        # At this API these models call tools only without reasoning.
        effort = "none"
    match quirks.thinking_format:
        case "zai":
            body["thinking"] = {"type": "enabled" if effort else "disabled"}
        case "qwen":
            body["enable_thinking"] = effort is not None
        case _:
            if effort and quirks.supports_reasoning_effort:
                body["reasoning_effort"] = effort


def in_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages for servers that insist on the order of roles, such as Mistral's.

    User and assistant alternate. The list begins with the user and ends with the user or with tool results. It holds no
    system message.
    """
    out: list[dict[str, Any]] = []
    for message in messages:
        role, last = message["role"], out[-1]["role"] if out else None
        if last is None and role != "user":
            out.append({"role": "user", "content": convert.BOOTSTRAP})
        elif role == "user" and last == "tool":
            out.append({"role": "assistant", "content": BRIDGE})
        elif role == last and role != "tool":
            out[-1] = _joined(out[-1], message)
            continue
        out.append(message)
    if out and out[-1]["role"] == "assistant":
        out.append({"role": "user", "content": convert.CONTINUE})
    return out


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Joins two messages of one role. Only the second can hold calls, because results follow calls at once."""
    contents = [content for content in (first["content"], second["content"]) if content]
    if all(isinstance(content, str) for content in contents):
        joined: Any = "\n".join(contents) if contents else None
    else:
        lists = [[{"type": "text", "text": text}] if isinstance(text, str) else text for text in contents]
        joined = [part for parts in lists for part in parts]
    return {**first, **second, "content": joined}


# What the Responses API shares


def wire_request(request: ModelRequest, api_key: str, path: str, body: dict[str, Any]) -> WireRequest:
    """The request for the API at ``path``. A base URL without a path gets ``/v1``."""
    model = request.model
    base = (model.base_url or OPENAI_BASE_URL).rstrip("/")
    if urlsplit(base).path == "":
        base = f"{base}/v1"
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    if quirks_of(model).is_openrouter:
        headers |= {"http-referer": "https://openclaw.ai", "x-title": "OpenClaw"}
    return request_to(f"{base}{path}", model, api_key, headers, body)


def system_role(model: Model, quirks: Quirks) -> str:
    return "developer" if model.reasoning and quirks.supports_developer_role else "system"


def data_url(image: ImageBlock) -> str:
    return f"data:{image.mime_type};base64,{image.data}"


def add_tools(body: dict[str, Any], request: ModelRequest, *, nested: bool) -> None:
    """Adds the tools and the choice among them. Chat nests the description of a function, Responses does not."""
    body["tools"] = [_tool(spec, nested) for spec in request.tools]
    choice = convert.tool_choice(request)
    if isinstance(choice, dict):
        named = {"name": choice["name"]}
        choice = {"type": "function", "function": named} if nested else {"type": "function", **named}
    if choice is not None:
        body["tool_choice"] = choice


def _tool(spec: ToolSpec, nested: bool) -> dict[str, Any]:
    parameters = {"properties": {}, **spec.parameters, "type": "object"}
    function = {"name": spec.name, "description": spec.description, "parameters": parameters}
    # Strict mode is the default of the Responses API. It rewrites schemas and refuses many.
    return {"type": "function", "function": function} if nested else {"type": "function", **function, "strict": False}


def add_temperature(body: dict[str, Any], request: ModelRequest, quirks: Quirks) -> None:
    """Adds the temperature. OpenAI's reasoning models refuse one, unless reasoning is off."""
    effort = body.get("reasoning_effort") or body.get("reasoning", {}).get("effort")
    refused = quirks.is_openai and request.model.reasoning and effort != "none"
    if request.temperature is not None and not refused:
        body["temperature"] = request.temperature


def decoded(signature: str | None) -> Any:
    """What a block's signature holds when it is JSON, otherwise None."""
    try:
        return msgspec.json.decode(signature or "")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


# The stream

_STOP: dict[str, StopReason] = {
    "stop": "stop",
    "end": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "toolUse",
    "function_call": "toolUse",
    "content_filter": "error",
    "error": "error",
}


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class ChatStream(ReplyReader):
    """Reads the chunks of a chat completion. Calls are distinguished by index, by id, or by their order."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        super().__init__(model, timestamp)
        self._calls: dict[int, BlockBuilder] = {}
        self._last_call: BlockBuilder | None = None

    def _read_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._end()
        else:
            self._handle(self.builder.decode(_decoder, data))

    def _read_whole(self, body: bytes) -> bool:
        chunk = self.builder.decode(_decoder, body)
        self._handle(chunk)
        if chunk.choices:
            self._end()
        return bool(chunk.choices)

    def _handle(self, chunk: _Chunk) -> None:
        if chunk.error is not None or chunk.object == "error":
            raise self._refused(chunk)
        if chunk.usage:
            self._count(chunk.usage)
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        self.builder.started = True
        if choice.usage and not chunk.usage:
            self._count(choice.usage)
        delta = choice.delta if choice.delta is not None else choice.message
        if delta:
            self._extend(delta)
        if choice.finish_reason:
            self.stop = choice.finish_reason

    def _extend(self, delta: dict[str, Any]) -> None:
        for name in REASONING_FIELDS:
            if isinstance(thought := delta.get(name), str) and thought:
                # Some servers send the same thought in two fields. The first one counts.
                self.builder.extend_last("thinking", thought, signature=name)
                break
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self.builder.extend_last("text", content)
        elif isinstance(content, list):
            self._extend_parts(content)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            # A refusal is shown as an answer.
            self.builder.extend_last("text", refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._call(call)
        if isinstance(details := delta.get("reasoning_details"), list):
            self._keep_details(details)

    def _extend_parts(self, parts: list[Any]) -> None:
        """Adds content that is a list of parts. Mistral's reasoning models send thoughts in it."""
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    self.builder.extend_last("text", text)
                case {"type": "thinking", "thinking": str(thought)}:
                    self.builder.extend_last("thinking", thought)
                case {"type": "thinking", "thinking": list(inner)}:
                    texts = [piece["text"] for piece in inner if isinstance(piece, dict) and "text" in piece]
                    self.builder.extend_last("thinking", "".join(str(text) for text in texts))
                case _:
                    pass

    def _call(self, part: dict[str, Any]) -> None:
        function = part.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        block = self._call_block(part, name)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.builder.extend(block, arguments)
        elif isinstance(arguments, dict):
            block.whole_arguments = arguments

    def _call_block(self, part: dict[str, Any], name: str) -> BlockBuilder:
        """The call that a part belongs to. Index and id may be missing, and several calls may share one index."""
        index = part.get("index")
        call_id = part.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        if isinstance(index, int):
            started = self._calls.get(index)
        elif call_id:
            started = next((block for block in self.builder.blocks if block.call_id == call_id), None)
        else:
            # Without id and index, a name begins a call and anything else continues the last one.
            started = None if name else self._last_call
        if started is not None and not (name and call_id and started.call_id != call_id):
            if name and not started.name:
                started.name = name
            return started
        block = self.builder.open_call(call_id or f"call_{secrets.token_hex(12)}", name)
        self._last_call = block
        self._calls[index if isinstance(index, int) else len(self._calls)] = block
        return block

    def _keep_details(self, details: list[Any]) -> None:
        for detail in details:
            match detail:
                case {"type": "reasoning.encrypted", "id": str(call_id), "data": str()}:
                    block = next((block for block in self.builder.blocks if block.call_id == call_id), None)
                    if block is not None:
                        block.thought_signature = msgspec.json.encode(detail).decode()
                case _:
                    pass

    def _count(self, usage: dict[str, Any]) -> None:
        prompt, completion = number(usage, "prompt_tokens"), number(usage, "completion_tokens")
        cached = number(usage.get("prompt_tokens_details"), "cached_tokens")
        # DeepSeek and Moonshot use other names.
        cached = cached or number(usage, "prompt_cache_hit_tokens") or number(usage, "cached_tokens")
        reasoning = number(usage.get("completion_tokens_details"), "reasoning_tokens")
        # Most servers count reasoning as part of the completion. The total shows when it is added on top.
        apart = bool(reasoning) and number(usage, "total_tokens") >= prompt + completion + reasoning
        self.builder.count(input=prompt - cached, output=completion + (reasoning if apart else 0), cache_read=cached)

    def _end(self) -> None:
        reason = _STOP.get(self.stop or "", "stop")
        withheld = f"The provider withheld the answer (finish reason {self.stop})."
        self.builder.done(reason, withheld if reason == "error" else None)

    def _refused(self, chunk: _Chunk) -> ModelError:
        data = {"error": chunk.error} if chunk.error is not None else {"message": chunk.message, "code": chunk.code}
        code = chunk.error.get("code") if isinstance(chunk.error, dict) else chunk.code
        status = code if isinstance(code, int) and 400 <= code < 600 else None
        return self.builder.refused(data, status)
