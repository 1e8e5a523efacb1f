"""OpenAI Responses: what we read."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.messages import StopReason
from openclaw.models.base import Model, ModelError, StreamEvent
from openclaw.models.draft import Block, Draft
from openclaw.models.errors import classify
from openclaw.models.http_errors import describe_error
from openclaw.models.sse import SseEvent

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


class _Event(msgspec.Struct):
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


_decoder = msgspec.json.Decoder(_Event)
_whole_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class ResponsesStream:
    """Output items by their index; a finished item replaces what its deltas had built."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        self.draft = Draft(model, timestamp)
        self._items: dict[int, Block] = {}
        self._summary: dict[int, int] = {}

    def feed(self, events: list[SseEvent]) -> list[StreamEvent]:
        draft = self.draft
        for _, data in events:
            if draft.complete:
                break
            if data != b"[DONE]":
                self._handle(draft.decode(_decoder, data))
        return draft.take()

    def feed_whole(self, body: bytes) -> list[StreamEvent]:
        response = self.draft.decode(_whole_decoder, body)
        if not isinstance(response.get("output"), list):
            if response.get("error") is not None:
                raise self._refused(response["error"])
            raise self.draft.failure("The server answered with JSON that is not a model's response; check baseUrl.")
        self._end(response)
        return self.draft.take()

    def finish(self) -> list[StreamEvent]:
        raise self.draft.cut()

    def _handle(self, event: _Event) -> None:
        kind = event.type
        if kind in _TEXT_DELTAS:
            self.draft.text(self._block(event, "text"), str(event.delta or ""))
        elif kind in _THINKING_DELTAS:
            self._think(event)
        elif kind == "response.function_call_arguments.delta":
            if (block := self._items.get(event.output_index)) is not None:
                self.draft.arguments(block, str(event.delta or ""))
        elif kind == "response.function_call_arguments.done":
            block = self._items.get(event.output_index)
            if block is not None and event.arguments is not None:
                block.parts = [event.arguments]
        elif kind == "response.output_item.added":
            self.draft.started = True
            self._open(event.output_index, event.item or {})
        elif kind == "response.output_item.done":
            self.draft.started = True
            self._close(event.output_index, event.item or {})
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self.draft.started = True
        elif kind in _TERMINAL:
            self._end(event.response or {})
        elif kind == "error":
            raise self._refused(event.error or {"message": event.message, "code": event.code})

    def _block(self, event: _Event, kind: Any) -> Block:
        """The item's block; deltas of a server that did not announce the item open one."""
        block = self._items.get(event.output_index)
        if block is None:
            self.draft.started = True
            block = self._items[event.output_index] = self.draft.open(Block(kind=kind))
        return block

    def _think(self, event: _Event) -> None:
        block = self._block(event, "thinking")
        part = self._summary.get(event.output_index)
        self._summary[event.output_index] = event.summary_index
        if part is not None and part != event.summary_index:
            self.draft.thinking(block, "\n\n")
        self.draft.thinking(block, str(event.delta or ""))

    def _open(self, index: int, item: dict[str, Any]) -> Block | None:
        match item:
            case {"type": "message"}:
                block = self.draft.open(Block(kind="text", signature=_text(item.get("id"))))
            case {"type": "reasoning"}:
                block = self.draft.open(Block(kind="thinking"))
            case {"type": "function_call"}:
                block = self.draft.open_call(_stored_id(item), str(item.get("name") or ""))
            case _:
                # Items of tools that run at the vendor.
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
                kept = {name: value for name, value in item.items() if name != "status"}
                block.signature = msgspec.json.encode(kept).decode()
            case "function_call" if block.kind == "call":
                block.call_id, block.name = _stored_id(item), str(item.get("name") or block.name)
                if isinstance(arguments := item.get("arguments"), str) and arguments:
                    block.parts = [arguments]
            case _:
                pass

    def _say_rest(self, block: Block, whole: str) -> None:
        """Text that came only with the finished item. What was streamed is never taken back."""
        streamed = block.joined
        if len(whole) > len(streamed) and whole.startswith(streamed):
            rest = whole[len(streamed) :]
            if block.kind == "text":
                self.draft.text(block, rest)
            else:
                self.draft.thinking(block, rest)

    def _end(self, response: dict[str, Any]) -> None:
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
        self.draft.done(reason, error)

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        details = usage.get("input_tokens_details")
        cached = _number(details.get("cached_tokens")) if isinstance(details, dict) else 0
        self.draft.count(
            input=_number(usage.get("input_tokens")) - cached,
            output=_number(usage.get("output_tokens")),
            cache_read=cached,
        )

    def _refused(self, error: Any) -> ModelError:
        text = describe_error({"error": error})
        code = error.get("code") if isinstance(error, dict) else None
        status = _CODE_STATUS.get(str(code))
        found = classify(status, text)
        described = f"{status} {text}" if status else text
        return self.draft.failure(described, kind=found.kind, status=status, retryable=found.retryable)


def _stored_id(item: dict[str, Any]) -> str:
    """Both ids of a call: the one results refer to, and the item's own."""
    call_id, item_id = _text(item.get("call_id")) or "", _text(item.get("id"))
    return f"{call_id}|{item_id}" if item_id else call_id


def _output_texts(item: dict[str, Any]) -> list[str]:
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return [str(part.get("text") or part.get("refusal") or "") for part in parts if isinstance(part, dict)]


def _thought_texts(item: dict[str, Any]) -> list[str]:
    """The summary, or the reasoning itself where a model shows it."""
    for name in ("summary", "content"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return [str(part.get("text") or "") for part in parts if isinstance(part, dict)]
    return []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
