"""Messages as they are stored, and the conversion to and from the public (Anthropic-style) shape.

The stored shape (pi session format v3) has three roles: ``user``, ``assistant`` and ``toolResult``. Python names are
snake_case; on disk and on the wire the fields are camelCase. Decoding is tolerant: a block or role we do not know is
left out of the typed view, never out of the stored line.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

StopReason: TypeAlias = Literal["stop", "length", "toolUse", "error", "aborted"]
ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh"]


_NOT_DELIVERED = frozenset({"", "webchat", "internal", "last", "none"})
"""Channels without a platform: a reply there stays in the session."""


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The destination of the replies to a message: fixed at acceptance, read again by the delivery.

    The ledger stores it as JSON and links between nodes send it as MessagePack; all other code uses the attributes.
    """

    channel: str = ""
    to: str = ""
    """The chat's address on the channel."""
    account_id: str | None = None
    thread_id: str | int | None = None
    session_key: str = ""
    reply_to_id: str = ""
    """The message that a reply may quote."""

    @property
    def is_delivered(self) -> bool:
        """Whether a channel delivers replies on this route."""
        return self.channel not in _NOT_DELIVERED and bool(self.to)


NO_ROUTE = Route()


class _Record(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Messages make no cycles. The garbage collector would stop everything to look at those of a long conversation."""


class TextBlock(_Record, tag_field="type", tag="text"):
    text: str
    text_signature: str | None = None


class ThinkingBlock(_Record, tag_field="type", tag="thinking"):
    thinking: str
    thinking_signature: str | None = None
    redacted: bool = False
    """True when ``thinking_signature`` holds a provider's opaque, encrypted reasoning."""


class ImageBlock(_Record, tag_field="type", tag="image"):
    data: str
    """The image in Base64."""
    mime_type: str


class ToolCall(_Record, tag_field="type", tag="toolCall"):
    id: str
    name: str
    arguments: dict[str, Any]
    thought_signature: str | None = None


UserBlock: TypeAlias = TextBlock | ImageBlock
AssistantBlock: TypeAlias = TextBlock | ThinkingBlock | ToolCall


class Cost(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """The price of one model call in US dollars."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total: float = 0


class Usage(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Tokens of one model call. ``input`` excludes what was read from or written to the prompt cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost: Cost = msgspec.field(default_factory=Cost)


class UserMessage(_Record, tag_field="role", tag="user"):
    content: str | list[UserBlock]
    timestamp: int = 0
    provenance: dict[str, Any] | None = None
    written: str | None = None
    """What the person wrote, where the text for the model is a disarmed form of it. Clients show this one."""

    @property
    def internal(self) -> bool:
        """Whether the Gateway wrote it for the model alone. Nobody else sees it."""
        return self.provenance is not None and self.provenance.get("kind") == INTERNAL["kind"]


INTERNAL: dict[str, Any] = {"kind": "internal_system"}
"""The provenance of an internal message."""


FAILED_STOPS = ("error", "aborted")
"""Stop reasons of answers that did not finish. They are not sent to a model again."""


class AssistantMessage(_Record, tag_field="role", tag="assistant", omit_defaults=False):
    content: list[AssistantBlock]
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage = msgspec.field(default_factory=Usage)
    stop_reason: StopReason = "stop"
    error_message: str | msgspec.UnsetType = msgspec.UNSET
    timestamp: int = 0
    notice: bool | msgspec.UnsetType = msgspec.UNSET
    """The Gateway itself said this to the people in the chat, e.g. as the answer to a command. No model sees it."""

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [block for block in self.content if isinstance(block, ToolCall)]


class ToolResultMessage(_Record, tag_field="role", tag="toolResult", omit_defaults=False):
    tool_call_id: str
    tool_name: str
    content: list[UserBlock]
    details: Any = msgspec.UNSET
    is_error: bool = False
    """The tool failed, or the call was not run to its end: wrong arguments, stopped, skipped."""
    timestamp: int = 0

    @property
    def text(self) -> str:
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))


Message: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as it is offered to a model."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON Schema of the arguments, which are always an object."""


_message_decoder = msgspec.json.Decoder(Message)
_BLOCKS: dict[str, tuple[str, ...]] = {
    "user": ("text", "image"),
    "assistant": ("text", "thinking", "toolCall"),
    "toolResult": ("text", "image"),
}


def user_text(message: UserMessage) -> str:
    """Return the text of a user message, images left out."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def decode_message(raw: bytes | msgspec.Raw) -> Message | None:
    """Return the typed message, or None when the line holds a role or shape that is not part of a model's context."""
    try:
        return _message_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return _decode_tolerantly(raw)


def _decode_tolerantly(raw: bytes | msgspec.Raw) -> Message | None:
    """Keep the known blocks and fields of a message that other software wrote."""
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("role") not in _BLOCKS:
        return None
    existing = _BLOCKS[data["role"]]
    content = data.get("content")
    if isinstance(content, str) and data["role"] != "user":
        content = [{"type": "text", "text": content}]
    if isinstance(content, list):
        content = [block for block in content if isinstance(block, dict) and _is_block(block, existing)]
    cleaned = {**data, "content": content}
    if not isinstance(cleaned.get("timestamp"), int):
        cleaned["timestamp"] = 0
    if data["role"] == "assistant":
        if cleaned.get("stopReason") not in ("stop", "length", "toolUse", "error", "aborted"):
            cleaned["stopReason"] = "stop"
        cleaned["usage"] = _tolerant_usage(cleaned.get("usage"))
        for name in ("api", "provider", "model"):
            cleaned[name] = str(cleaned.get(name) or "")
        if not isinstance(cleaned.get("notice", True), bool):
            del cleaned["notice"]
        if not isinstance(cleaned.get("errorMessage", ""), str):
            cleaned["errorMessage"] = str(cleaned["errorMessage"])
    try:
        return msgspec.convert(cleaned, Message)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_block(block: dict[str, Any], known: tuple[str, ...]) -> bool:
    match block:
        case {"type": "text", "text": str()}:
            return "text" in known
        case {"type": "thinking", "thinking": str()}:
            return "thinking" in known
        case {"type": "image", "data": str(), "mimeType": str()}:
            return "image" in known
        case {"type": "toolCall", "id": str(), "name": str(), "arguments": dict()}:
            return "toolCall" in known
        case _:
            return False


def _tolerant_usage(usage: Any) -> dict[str, Any]:
    if not isinstance(usage, dict):
        return {}
    names = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")
    remaining: dict[str, Any] = {name: int(usage[name]) for name in names if isinstance(usage.get(name), int | float)}
    if isinstance(cost := usage.get("cost"), dict):
        remaining["cost"] = {k: v for k, v in cost.items() if isinstance(v, int | float)}
    return remaining


# The public shape: {role: "user"|"assistant", content: str | ContentBlock[]}


def to_public(messages: list[Message]) -> list[dict[str, Any]]:
    """Convert stored messages to public ones. Consecutive tool results become blocks of one user message."""
    public: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case UserMessage(content=str() as text):
                public.append({"role": "user", "content": text})
            case UserMessage():
                blocks = [block for block in message.content if not isinstance(block, str)]
                public.append({"role": "user", "content": [_public_block(block) for block in blocks]})
            case AssistantMessage():
                public.append({"role": "assistant", "content": [_public_block(block) for block in message.content]})
            case ToolResultMessage():
                texts_only = all(isinstance(block, TextBlock) for block in message.content)
                content: Any = message.text if texts_only else [_public_block(block) for block in message.content]
                block = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
                if message.is_error:
                    block["is_error"] = True
                before = public[-1]["content"] if public else None
                if isinstance(before, list) and before and before[-1].get("type") == "tool_result":
                    before.append(block)
                else:
                    public.append({"role": "user", "content": [block]})
    return public


def from_public(messages: list[dict[str, Any]], *, now_ms: int = 0) -> list[Message]:
    """Convert public messages to stored ones. A user message that mixes text and results yields the results first."""
    stored: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        content = message.get("content")
        blocks: list[dict[str, Any]] = (
            [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
        )
        if message.get("role") == "assistant":
            converted = [_stored_assistant_block(block) for block in blocks]
            remaining = [block for block in converted if block is not None]
            names.update({block.id: block.name for block in remaining if isinstance(block, ToolCall)})
            reason: StopReason = "toolUse" if any(isinstance(block, ToolCall) for block in remaining) else "stop"
            stored.append(AssistantMessage(content=remaining, stop_reason=reason, timestamp=now_ms))
            continue
        rest: list[UserBlock] = []
        for block in blocks:
            if block.get("type") == "tool_result":
                stored.append(_stored_result(block, names, now_ms))
            elif (user_block := _stored_user_block(block)) is not None:
                rest.append(user_block)
        if rest:
            stored.append(UserMessage(content=rest, timestamp=now_ms))
    return stored


def _public_block(block: AssistantBlock | ImageBlock) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ImageBlock():
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            return {"type": "image", "source": source}
        case ThinkingBlock(redacted=True):
            return {"type": "redacted_thinking", "data": block.thinking_signature or ""}
        case ThinkingBlock():
            signature = {"signature": block.thinking_signature} if block.thinking_signature else {}
            return {"type": "thinking", "thinking": block.thinking, **signature}
        case ToolCall():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}


def _stored_assistant_block(block: dict[str, Any]) -> AssistantBlock | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text=text)
        case {"type": "thinking", "thinking": str(thinking)}:
            return ThinkingBlock(thinking=thinking, thinking_signature=block.get("signature"))
        case {"type": "redacted_thinking", "data": str(data)}:
            return ThinkingBlock(thinking="", thinking_signature=data, redacted=True)
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            return ToolCall(id=call_id, name=name, arguments=dict(block.get("input") or {}))
        case _:
            return None


def _stored_user_block(block: dict[str, Any]) -> UserBlock | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text=text)
        case {"type": "image", "source": {"type": "base64", "media_type": str(mime), "data": str(data)}}:
            return ImageBlock(data=data, mime_type=mime)
        case _:
            return None


def _stored_result(block: dict[str, Any], names: dict[str, str], now_ms: int) -> ToolResultMessage:
    content = block.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    remaining = [converted for part in parts if (converted := _stored_user_block(part)) is not None]
    call_id = str(block.get("tool_use_id", ""))
    return ToolResultMessage(
        tool_call_id=call_id,
        tool_name=names.get(call_id, "unknown"),
        content=remaining,
        is_error=bool(block.get("is_error", False)),
        timestamp=now_ms,
    )
