"""Anthropic Messages: what we read."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.messages import StopReason
from openclaw.models.base import Model, ModelError, StreamEvent
from openclaw.models.draft import Block, Draft
from openclaw.models.errors import classify
from openclaw.models.http_errors import describe_error
from openclaw.models.sse import SseEvent

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


_SAY_NOTHING = frozenset((b"ping", b"content_block_stop"))


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: Any = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class AnthropicStream:
    """Reads message_start … message_stop; blocks are kept by the index the server gives them."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        self.draft = Draft(model, timestamp)
        self._by_index: dict[int, Block] = {}
        self._counts: dict[str, int] = {}
        self._stop: str | None = None

    def feed(self, events: list[SseEvent]) -> list[StreamEvent]:
        draft = self.draft
        for name, data in events:
            if draft.complete:
                break
            if name not in _SAY_NOTHING:
                self._handle(draft.decode(_decoder, data))
        return draft.take()

    def feed_whole(self, body: bytes) -> list[StreamEvent]:
        event = self.draft.decode(_decoder, body)
        if event.type == "error" or event.error is not None:
            raise self._refused(event.error)
        whole: Any = msgspec.json.decode(body)
        content = whole.get("content")
        if whole.get("type") != "message" or not isinstance(content, list):
            raise self.draft.failure("The server answered with JSON that is not a model's message; check baseUrl.")
        self.draft.started = True
        for index, block in enumerate(content):
            self._open(index, block)
        self._count(whole.get("usage"))
        self._stop = whole.get("stop_reason")
        self._end()
        return self.draft.take()

    def finish(self) -> list[StreamEvent]:
        if self._stop is None:
            raise self.draft.cut()
        self._end()
        return self.draft.take()

    def _handle(self, event: _Event) -> None:
        match event.type:
            case "content_block_delta":
                if event.delta is not None:
                    self._extend(event.index, event.delta)
            case "content_block_start":
                self.draft.started = True
                self._open(event.index, event.content_block or {})
            case "message_start":
                self.draft.started = True
                if isinstance(event.message, dict):
                    self._count(event.message.get("usage"))
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None and event.delta.stop_reason:
                    self._stop = event.delta.stop_reason
            case "message_stop":
                self._end()
            case "error":
                raise self._refused(event.error)
            case _:
                # Pings and block ends of servers that do not name their events, and events of later API versions.
                pass

    def _open(self, index: int, block: dict[str, Any]) -> None:
        draft = self.draft
        match block:
            case {"type": "text"}:
                opened = draft.open(Block(kind="text"))
                if text := block.get("text"):
                    draft.text(opened, str(text))
            case {"type": "thinking"}:
                opened = draft.open(Block(kind="thinking", signature=block.get("signature") or None))
                draft.thinking(opened, str(block.get("thinking") or ""))
            case {"type": "redacted_thinking", "data": str(data)}:
                opened = draft.open(Block(kind="thinking", signature=data, redacted=True))
            case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
                opened = draft.open_call(call_id, name)
                if isinstance(given := block.get("input"), dict) and given:
                    opened.whole_arguments = given
            case _:
                # Blocks of server-side tools: their deltas find no block and are skipped.
                return
        self._by_index[index] = opened

    def _extend(self, index: int, delta: _Delta) -> None:
        block = self._by_index.get(index)
        draft = self.draft
        if delta.text is not None:
            if block is None:
                # Some compatible servers leave out content_block_start.
                draft.started = True
                block = self._by_index[index] = draft.open(Block(kind="text"))
            if block.kind == "text":
                draft.text(block, delta.text)
        elif block is None:
            return
        elif delta.partial_json is not None:
            draft.arguments(block, delta.partial_json)
        elif delta.thinking is not None:
            draft.thinking(block, delta.thinking)
        elif delta.signature is not None:
            block.signature = (block.signature or "") + delta.signature

    def _count(self, usage: Any) -> None:
        """Later numbers replace earlier ones; those a server leaves out or sends as null stay."""
        if not isinstance(usage, dict):
            return
        counts = self._counts
        for name, value in usage.items():
            if isinstance(value, int):
                counts[name] = value
        self.draft.count(
            input=counts.get("input_tokens", 0),
            output=counts.get("output_tokens", 0),
            cache_read=counts.get("cache_read_input_tokens", 0),
            cache_write=counts.get("cache_creation_input_tokens", 0),
        )

    def _end(self) -> None:
        reason = _STOP.get(self._stop or "", "stop")
        error = f"The model declined to answer (stop reason {self._stop})." if reason == "error" else None
        self.draft.done(reason, error)

    def _refused(self, error: Any) -> ModelError:
        text = describe_error({"error": error})
        status = _ERROR_STATUS.get(error.get("type", "")) if isinstance(error, dict) else None
        found = classify(status, text)
        described = f"{status} {text}" if status else text
        return self.draft.failure(described, kind=found.kind, status=status, retryable=found.retryable)
