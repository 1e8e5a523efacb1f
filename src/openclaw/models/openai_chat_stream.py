"""OpenAI chat completions: what we read, from exact and from careless servers."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from openclaw.messages import StopReason
from openclaw.models.base import Model, ModelError, StreamEvent
from openclaw.models.draft import Block, Draft
from openclaw.models.errors import classify
from openclaw.models.http_errors import describe_error
from openclaw.models.sse import SseEvent

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
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


class ChatStream:
    """One text and one thinking block at a time; calls by index, by id, or just in order."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        self.draft = Draft(model, timestamp)
        self._current: Block | None = None
        self._calls: dict[int, Block] = {}
        self._last_call: Block | None = None
        self._finish: str | None = None

    def feed(self, events: list[SseEvent]) -> list[StreamEvent]:
        draft = self.draft
        for _, data in events:
            if draft.complete:
                break
            if data == b"[DONE]":
                self._end()
            else:
                self._handle(draft.decode(_decoder, data))
        return draft.take()

    def feed_whole(self, body: bytes) -> list[StreamEvent]:
        chunk = self.draft.decode(_decoder, body)
        self._handle(chunk)
        if not chunk.choices:
            raise self.draft.failure("The server answered with JSON that is not a model's message; check baseUrl.")
        self._end()
        return self.draft.take()

    def finish(self) -> list[StreamEvent]:
        if self._finish is None:
            raise self.draft.cut()
        self._end()
        return self.draft.take()

    def _handle(self, chunk: _Chunk) -> None:
        if chunk.error is not None or chunk.object == "error":
            raise self._refused(chunk)
        if chunk.usage:
            self._count(chunk.usage)
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        self.draft.started = True
        if choice.usage and not chunk.usage:
            self._count(choice.usage)
        delta = choice.delta if choice.delta is not None else choice.message
        if delta:
            self._extend(delta)
        if choice.finish_reason:
            self._finish = choice.finish_reason

    def _extend(self, delta: dict[str, Any]) -> None:
        for name in REASONING_FIELDS:
            if isinstance(thought := delta.get(name), str) and thought:
                # Some servers send the same thought in two fields; the first counts.
                self._think(thought, name)
                break
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self._say(content)
        elif isinstance(content, list):
            self._extend_parts(content)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            # A refusal is an answer: the person should read it.
            self._say(refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._call(call)
        if isinstance(details := delta.get("reasoning_details"), list):
            self._keep_details(details)

    def _extend_parts(self, parts: list[Any]) -> None:
        """Content as a list of parts, some of them thoughts (Mistral's reasoning models)."""
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    self._say(text)
                case {"type": "thinking", "thinking": str(thought)}:
                    self._think(thought, None)
                case {"type": "thinking", "thinking": list(inner)}:
                    texts = [piece["text"] for piece in inner if isinstance(piece, dict) and "text" in piece]
                    self._think("".join(str(text) for text in texts), None)
                case _:
                    pass

    def _say(self, text: str) -> None:
        block = self._current
        if block is None or block.kind != "text":
            block = self._current = self.draft.open(Block(kind="text"))
        self.draft.text(block, text)

    def _think(self, thought: str, field: str | None) -> None:
        block = self._current
        if block is None or block.kind != "thinking":
            block = self._current = self.draft.open(Block(kind="thinking", signature=field))
        self.draft.thinking(block, thought)

    def _call(self, part: dict[str, Any]) -> None:
        function = part.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        block = self._call_block(part, name)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.draft.arguments(block, arguments)
        elif isinstance(arguments, dict):
            block.whole_arguments = arguments

    def _call_block(self, part: dict[str, Any], name: str) -> Block:
        """The call a part belongs to. Index and id may be missing; one index may stand for several calls."""
        index = part.get("index")
        call_id = part.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        known = self._calls.get(index) if isinstance(index, int) else self._by_id(call_id, name)
        if known is not None and not (name and call_id and known.call_id != call_id):
            if name and not known.name:
                known.name = name
            return known
        block = self.draft.open_call(call_id or f"call_{secrets.token_hex(12)}", name)
        self._current = None
        self._last_call = block
        self._calls[index if isinstance(index, int) else len(self._calls)] = block
        return block

    def _by_id(self, call_id: str, name: str) -> Block | None:
        if call_id:
            return next((block for block in self.draft.blocks if block.call_id == call_id), None)
        # Without id and index, a name begins a call and anything else continues the last one.
        return None if name else self._last_call

    def _keep_details(self, details: list[Any]) -> None:
        for detail in details:
            match detail:
                case {"type": "reasoning.encrypted", "id": str(call_id), "data": str()}:
                    block = next((block for block in self.draft.blocks if block.call_id == call_id), None)
                    if block is not None:
                        block.thought_signature = msgspec.json.encode(detail).decode()
                case _:
                    pass

    def _count(self, usage: dict[str, Any]) -> None:
        prompt, completion, total = (
            _int(usage, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        )
        cached = _int(usage.get("prompt_tokens_details"), "cached_tokens")
        # DeepSeek and Moonshot have names of their own for it.
        cached = cached or _int(usage, "prompt_cache_hit_tokens") or _int(usage, "cached_tokens")
        reasoning = _int(usage.get("completion_tokens_details"), "reasoning_tokens")
        # Most servers count reasoning inside the completion; the total tells when it comes on top.
        apart = bool(reasoning) and total >= prompt + completion + reasoning
        self.draft.count(input=prompt - cached, output=completion + (reasoning if apart else 0), cache_read=cached)

    def _end(self) -> None:
        reason = _STOP.get(self._finish or "", "stop")
        withheld = f"The provider withheld the answer (finish reason {self._finish})."
        self.draft.done(reason, withheld if reason == "error" else None)

    def _refused(self, chunk: _Chunk) -> ModelError:
        data = {"error": chunk.error} if chunk.error is not None else {"message": chunk.message, "code": chunk.code}
        text = describe_error(data)
        code = chunk.error.get("code") if isinstance(chunk.error, dict) else chunk.code
        status = code if isinstance(code, int) and 400 <= code < 600 else None
        found = classify(status, text)
        described = f"{status} {text}" if status else text
        return self.draft.failure(described, kind=found.kind, status=status, retryable=found.retryable)


def _int(data: Any, name: str) -> int:
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, int) else 0
