"""Builds an assistant message, and the events to show, from the deltas of a provider's stream."""

from __future__ import annotations

import json
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from openclaw.messages import AssistantBlock, AssistantMessage, StopReason, TextBlock, ThinkingBlock, ToolCall
from openclaw.models.base import Done, ErrorKind, Model, ModelError, StreamEvent, Text, Thinking, ToolCallStart
from openclaw.models.cost import priced_usage
from openclaw.models.errors import classify, describe_error
from openclaw.models.sse import SseEvent

INVALID_JSON = "__invalid_json__"
"""The only argument of a call whose JSON did not parse; its value is the text. Such a call is never run."""

_T = TypeVar("_T")


class ReplyStream(Protocol):
    """Reads one reply: turns a provider's events into ours. It does no I/O and can be fed recorded bytes."""

    builder: MessageBuilder

    def feed(self, events: list[SseEvent]) -> list[StreamEvent]:
        """Our events for the provider's events of one network read. Adjacent deltas become one event."""
        ...

    def feed_whole(self, body: bytes) -> list[StreamEvent]:
        """Our events for one JSON document, from a server that ignored ``stream``."""
        ...

    def finish(self) -> list[StreamEvent]:
        """Our last events after the end of the bytes. Raises ModelError when the reply is not complete."""
        ...


class BlockBuilder(msgspec.Struct, kw_only=True):
    """A content block under construction. Deltas are collected and joined once."""

    kind: Literal["text", "thinking", "call"]
    parts: list[str] = []
    signature: str | None = None
    redacted: bool = False
    call_id: str = ""
    name: str = ""
    whole_arguments: dict[str, Any] | None = None
    """The arguments, when a server sent them as an object instead of as JSON text."""
    thought_signature: str | None = None
    carry: str = ""
    """Half of a surrogate pair whose other half comes with the next delta."""

    @property
    def joined(self) -> str:
        return "".join(self.parts)


class MessageBuilder:
    """Holds the blocks in order, the tokens used, and the events not yet taken."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        self.model = model
        self.timestamp = timestamp
        self.blocks: list[BlockBuilder] = []
        self._counted: dict[str, int] = {}
        self.complete = False
        self.started = False
        """Whether the model has begun to answer. Only then is there a partial message."""
        self._ragged = False
        self._out: list[StreamEvent] = []
        self._run: list[str] = []
        self._run_kind: type[Text] | type[Thinking] = Text

    def open(self, block: BlockBuilder) -> BlockBuilder:
        self.blocks.append(block)
        return block

    def text(self, block: BlockBuilder, delta: str) -> None:
        if self._ragged:
            delta = _mend(block, delta)
        block.parts.append(delta)
        self._say(Text, delta)

    def thinking(self, block: BlockBuilder, delta: str) -> None:
        if self._ragged:
            delta = _mend(block, delta)
        block.parts.append(delta)
        self._say(Thinking, delta)

    def open_call(self, call_id: str, name: str) -> BlockBuilder:
        self._flush()
        self._out.append(ToolCallStart(call_id, name))
        return self.open(BlockBuilder(kind="call", call_id=call_id, name=name))

    def arguments(self, block: BlockBuilder, delta: str) -> None:
        block.parts.append(_mend(block, delta) if self._ragged else delta)

    def count(self, *, input: int = 0, output: int = 0, cache_read: int = 0, cache_write: int = 0) -> None:
        """Sets the tokens used so far. Servers correct the numbers during a stream."""
        self._counted = {"input": input, "output": output, "cache_read": cache_read, "cache_write": cache_write}

    def take(self) -> list[StreamEvent]:
        """The events since the last call."""
        self._flush()
        out, self._out = self._out, []
        return out

    def done(self, reason: StopReason, error: str | None = None) -> None:
        """Ends the reply. Later events are ignored."""
        self.started = True
        self._flush()
        self.complete = True
        self._out.append(Done(self.message(reason, error)))

    def message(self, reason: StopReason, error: str | None = None) -> AssistantMessage:
        content: list[AssistantBlock] = []
        calls = False
        notes = [error] if error else []
        for block in self.blocks:
            match block.kind:
                case "text":
                    if text := block.joined:
                        content.append(TextBlock(text=text, text_signature=block.signature))
                case "thinking":
                    if (thought := block.joined) or block.signature:
                        content.append(
                            ThinkingBlock(thinking=thought, thinking_signature=block.signature, redacted=block.redacted)
                        )
                case "call":
                    call = _finished_call(block, cut=reason in ("length", "error", "aborted"))
                    # At the token limit, arguments can be valid JSON and still be cut.
                    if call is None or (reason == "length" and block is self.blocks[-1]):
                        notes.append(
                            f"The call of `{block.name}` was cut before its arguments were complete: left out."
                        )
                    else:
                        calls = True
                        content.append(call)
        return AssistantMessage(
            content=content,
            api=self.model.api,
            provider=self.model.provider,
            model=self.model.id,
            usage=priced_usage(self.model.cost, **self._counted),
            stop_reason=_corrected_reason(reason, calls),
            error_message=" ".join(notes) if notes else msgspec.UNSET,
            timestamp=self.timestamp,
        )

    def decode(self, decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
        """Decodes one event's JSON. Halves of surrogate pairs, which some servers send, are joined or removed."""
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            try:
                value = msgspec.convert(json.loads(data.decode("utf-8", "replace")), decoder.type)
            except (ValueError, RecursionError):
                shown = data[:120].decode("utf-8", "replace") + ("…" if len(data) > 120 else "")
                raise self.failure(f"The model's stream held something unreadable: {shown!r}") from None
            self._ragged = True
            return value

    def failure(
        self, text: str, *, kind: ErrorKind = "other", status: int | None = None, retryable: bool = True
    ) -> ModelError:
        """An error that carries the partial message."""
        return ModelError(text, kind=kind, status=status, retryable=retryable, partial=self.partial(text))

    def refused(self, error: Any, status: int | None) -> ModelError:
        """The error for an error that the server sent inside its reply."""
        text = describe_error(error)
        found = classify(status, text)
        return self.failure(
            f"{status} {text}" if status else text, kind=found.kind, status=status, retryable=found.retryable
        )

    def partial(self, error: str) -> AssistantMessage | None:
        return self.message("error", error) if self.started else None

    def cut(self) -> ModelError:
        return self.failure(
            "The model's stream ended before the reply was complete; the connection may have been cut.", kind="network"
        )

    def _say(self, kind: type[Text] | type[Thinking], delta: str) -> None:
        if not delta:
            return
        if self._run_kind is not kind:
            self._flush()
            self._run_kind = kind
        self._run.append(delta)

    def _flush(self) -> None:
        if self._run:
            self._out.append(self._run_kind("".join(self._run)))
            self._run.clear()


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The object in a call's JSON text, or None when the text is no JSON object. Empty text means no arguments."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        try:
            value = _without_lone_surrogates(json.loads(text))
        except (ValueError, RecursionError):
            return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _finished_call(block: BlockBuilder, *, cut: bool) -> ToolCall | None:
    """The call, or None when the reply was cut inside its arguments. Half a call must never run."""
    text = block.joined
    if block.whole_arguments is not None and not text:
        arguments: dict[str, Any] | None = block.whole_arguments
    elif cut and not text.strip():
        arguments = None
    else:
        arguments = parse_arguments(text)
    if arguments is None:
        if cut:
            return None
        arguments = {INVALID_JSON: text}
    return ToolCall(id=block.call_id, name=block.name, arguments=arguments, thought_signature=block.thought_signature)


def _corrected_reason(reason: StopReason, calls: bool) -> StopReason:
    """Corrects the reason by the calls that are present, because servers disagree on it."""
    if reason == "stop" and calls:
        return "toolUse"
    return "stop" if reason == "toolUse" and not calls else reason


def _mend(block: BlockBuilder, delta: str) -> str:
    text = block.carry + delta
    block.carry = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        block.carry, text = text[-1], text[:-1]
    return strip_lone_surrogates(text)


def strip_lone_surrogates(text: str) -> str:
    """Joins surrogate pairs and removes single halves, which no JSON reader accepts."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def _without_lone_surrogates(value: Any) -> Any:
    match value:
        case str():
            return strip_lone_surrogates(value)
        case list():
            return [_without_lone_surrogates(item) for item in value]
        case dict():
            return {strip_lone_surrogates(str(key)): _without_lone_surrogates(item) for key, item in value.items()}
        case _:
            return value


def encode_body(body: dict[str, Any]) -> bytes:
    """The JSON of a request. Single halves of surrogate pairs are removed."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_lone_surrogates(body))
