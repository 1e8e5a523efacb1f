"""The OpenAI Responses API: the request we send and the stream we read.

Nothing is stored at OpenAI. Encrypted reasoning is sent back with every request.
"""

from __future__ import annotations

from typing import Any

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
    UserBlock,
    UserMessage,
)
from openclaw.models import convert, thinking
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.convert import build_history
from openclaw.models.http import BlockBuilder, BlockKind, ReplyReader, WireRequest, number
from openclaw.models.openai_chat import add_temperature, add_tools, data_url, decoded, system_role, wire_request
from openclaw.models.thinking import quirks_of

MAX_ID = 64
MIN_OUTPUT_TOKENS = 16


def build_request(request: ModelRequest, api_key: str = "") -> WireRequest:
    return wire_request(request, api_key, "/responses", build_body(request))


def build_body(request: ModelRequest) -> dict[str, Any]:
    model = request.model
    quirks = quirks_of(model)
    ids = convert.UniqueIds(MAX_ID, _legal_id)
    finished, current = build_history(request, ids, lambda history, state: _items(history, model, state.sent))
    role = system_role(model, quirks)
    body: dict[str, Any] = {
        "model": model.id,
        "input": [*({"role": role, "content": text} for text in request.system_parts), *finished, *current],
        "stream": True,
        "store": False,
        "max_output_tokens": max(
            MIN_OUTPUT_TOKENS, thinking.output_limit(model, request.max_tokens, request.output_room)
        ),
    }
    if request.session_id:
        body["prompt_cache_key"] = request.session_id[:64]
    if request.tools:
        add_tools(body, request, nested=False)
    if model.reasoning:
        body["include"] = ["reasoning.encrypted_content"]
        effort = thinking.reasoning_effort(request.thinking, model, vendor=quirks.is_openai)
        if effort:
            body["reasoning"] = {"effort": effort} if effort == "none" else {"effort": effort, "summary": "auto"}
    add_temperature(body, request, quirks)
    return body


def _legal_id(call_id: str, same_model: bool) -> str:
    """Makes both parts of a stored id (``call_id|item_id``) legal. The item id is valid only for the same model."""
    call, _, item = call_id.partition("|")
    call = convert.sanitised(call)[:MAX_ID]
    item = convert.sanitised(item)[:MAX_ID]
    return f"{call}|{item}" if call and same_model and item.startswith("fc") else call


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
    """The reply's items in order. ``sent`` holds the ids already used; the API refuses an id that comes twice."""
    items: list[dict[str, Any]] = []
    same = convert.is_same_model(message, model)
    reasoned = False
    for block in message.content:
        match block:
            case ThinkingBlock():
                item = _reasoning_item(block, sent) if same else None
                # Items after reasoning that cannot be sent must not refer to it.
                reasoned = item is not None
                if item is not None:
                    items.append(item)
            case TextBlock():
                items.append(_text_item(block, sent, with_id=reasoned))
            case ToolCall():
                items.append(_call_item(block, sent, with_id=reasoned))
    # Reasoning at the end is refused.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _reasoning_item(block: ThinkingBlock, sent: set[str]) -> dict[str, Any] | None:
    """The item as the API sent it, or None. Without encrypted content OpenAI would look it up and not find it."""
    match item := decoded(block.thinking_signature):
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
    """The call. Its item id ties it to its reasoning and is refused without that reasoning."""
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
        return {"type": "input_image", "detail": "auto", "image_url": data_url(block)}
    return {"type": "input_text", "text": block.text}


def _output(message: ToolResultMessage, model: Model) -> Any:
    blocks = convert.user_blocks(message, model)
    if any(isinstance(block, ImageBlock) for block in blocks):
        return [_part(block) for block in blocks]
    return convert.result_text(blocks)


_INCOMPLETE: dict[str, StopReason] = {"max_output_tokens": "length", "content_filter": "error"}
_CODE_STATUS = {
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "invalid_prompt": 400,
    "insufficient_quota": 402,
    "context_length_exceeded": 400,
}
_TEXT_DELTAS = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THINKING_DELTAS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _ResponsesEvent(msgspec.Struct):
    type: str = ""
    output_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    arguments: str | None = None
    response: dict[str, Any] | None = None
    error: Any = None
    message: Any = None
    code: Any = None


_decoder = msgspec.json.Decoder(_ResponsesEvent)
_whole_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class ResponsesStream(ReplyReader):
    """Reads output items by their index. A finished item replaces what its deltas built.

    A stream that ends without an event of ``_TERMINAL`` was cut, so ``stop`` is never set.
    """

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        super().__init__(model, timestamp)
        self._items: dict[int, BlockBuilder] = {}
        self._summary: dict[int, int] = {}

    def _read_whole(self, body: bytes) -> bool:
        response = self.builder.decode(_whole_decoder, body)
        if not isinstance(response.get("output"), list):
            if response.get("error") is not None:
                raise self._refused(response["error"])
            return False
        self._complete(response)
        return True

    def _read_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            return
        event = self.builder.decode(_decoder, data)
        kind = event.type
        if kind in _TEXT_DELTAS:
            self.builder.extend(self._block(event, "text"), str(event.delta or ""))
        elif kind in _THINKING_DELTAS:
            self._think(event)
        elif kind == "response.function_call_arguments.delta":
            if (block := self._items.get(event.output_index)) is not None:
                self.builder.extend(block, str(event.delta or ""))
        elif kind == "response.function_call_arguments.done":
            block = self._items.get(event.output_index)
            if block is not None and event.arguments is not None:
                block.parts = [event.arguments]
        elif kind == "response.output_item.added":
            self.builder.started = True
            self._open(event.output_index, event.item or {})
        elif kind == "response.output_item.done":
            self.builder.started = True
            self._close(event.output_index, event.item or {})
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self.builder.started = True
        elif kind in _TERMINAL:
            self._complete(event.response or {})
        elif kind == "error":
            raise self._refused(event.error or {"message": event.message, "code": event.code})

    def _block(self, event: _ResponsesEvent, kind: BlockKind) -> BlockBuilder:
        """The item's block. It is opened here when the server did not announce the item."""
        block = self._items.get(event.output_index)
        if block is None:
            block = self._items[event.output_index] = self.builder.open(kind)
        return block

    def _think(self, event: _ResponsesEvent) -> None:
        block = self._block(event, "thinking")
        part = self._summary.get(event.output_index)
        self._summary[event.output_index] = event.summary_index
        if part is not None and part != event.summary_index:
            self.builder.extend(block, "\n\n")
        self.builder.extend(block, str(event.delta or ""))

    def _open(self, index: int, item: dict[str, Any]) -> BlockBuilder | None:
        match item:
            case {"type": "message"}:
                block = self.builder.open("text", signature=_text(item.get("id")))
            case {"type": "reasoning"}:
                block = self.builder.open("thinking")
            case {"type": "function_call"}:
                block = self.builder.open_call(_stored_id(item), str(item.get("name") or ""))
            case _:
                # This is an item of a tool that runs at OpenAI.
                return None
        self._items[index] = block
        return block

    def _close(self, index: int, item: dict[str, Any]) -> None:
        block = self._items.get(index) or self._open(index, item)
        if block is None:
            return
        match item.get("type"):
            case "message" if block.kind == "text":
                block.signature = _text(item.get("id")) or block.signature
                self._say_rest(block, "".join(_output_texts(item)))
            case "reasoning" if block.kind == "thinking":
                self._say_rest(block, "\n\n".join(_thought_texts(item)))
                fields = {name: value for name, value in item.items() if name != "status"}
                block.signature = msgspec.json.encode(fields).decode()
            case "function_call" if block.kind == "call":
                block.call_id, block.name = _stored_id(item), str(item.get("name") or block.name)
                if isinstance(arguments := item.get("arguments"), str) and arguments:
                    block.parts = [arguments]
            case _:
                pass

    def _say_rest(self, block: BlockBuilder, whole: str) -> None:
        """Adds the text that came only with the finished item. Streamed text is never taken back."""
        streamed = block.joined
        if len(whole) > len(streamed) and whole.startswith(streamed):
            self.builder.extend(block, whole[len(streamed) :])

    def _complete(self, response: dict[str, Any]) -> None:
        output = response.get("output")
        if isinstance(output, list):
            for index, item in enumerate(output):
                if isinstance(item, dict) and index not in self._items:
                    self._close(index, item)
        self._count(response.get("usage"))
        status = response.get("status")
        if status in ("failed", "cancelled"):
            raise self._refused(response.get("error") or {"message": f"The response was {status}."})
        reason: StopReason = "stop"
        error = None
        if status == "incomplete":
            details = response.get("incomplete_details")
            why = details.get("reason") if isinstance(details, dict) else None
            reason = _INCOMPLETE.get(str(why), "length")
            error = f"The provider withheld the answer ({why})." if reason == "error" else None
        self.builder.done(reason, error)

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        cached = number(usage.get("input_tokens_details"), "cached_tokens")
        self.builder.count(
            input=number(usage, "input_tokens") - cached, output=number(usage, "output_tokens"), cache_read=cached
        )

    def _refused(self, error: Any) -> ModelError:
        code = error.get("code") if isinstance(error, dict) else None
        return self.builder.refused({"error": error}, _CODE_STATUS.get(str(code)))


def _stored_id(item: dict[str, Any]) -> str:
    """The stored id of a call: the id that results refer to, and the item's own id."""
    call_id, item_id = _text(item.get("call_id")) or "", _text(item.get("id"))
    return f"{call_id}|{item_id}" if item_id else call_id


def _output_texts(item: dict[str, Any]) -> list[str]:
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return [str(part.get("text") or part.get("refusal") or "") for part in parts if isinstance(part, dict)]


def _thought_texts(item: dict[str, Any]) -> list[str]:
    """The texts of the summary, or of the reasoning itself when the model shows it."""
    for name in ("summary", "content"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return [str(part.get("text") or "") for part in parts if isinstance(part, dict)]
    return []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
