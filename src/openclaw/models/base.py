"""What a model provider must give us: one protocol, one request record, one stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.messages import AssistantMessage, Message, ThinkingLevel, ToolSpec

Api: TypeAlias = Literal["anthropic-messages", "openai-completions", "openai-responses", "local"]


class Price(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """US dollars per million tokens."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", dict=True):
    """One model of the catalogue, with everything an adapter needs to call it (but no key)."""

    provider: str
    id: str
    name: str = ""
    api: str = "openai-completions"
    base_url: str = ""
    reasoning: bool = False
    input: tuple[str, ...] = ("text",)
    """``text`` and, where the model sees pictures, ``image``."""
    context_window: int = 200_000
    max_tokens: int = 8192
    cost: Price | None = None
    """None: the price is unknown, which is not the same as free."""
    headers: dict[str, str] = {}
    compat: dict[str, Any] = {}
    """Per-provider quirks, e.g. ``{"maxTokensField": "max_tokens"}``."""
    tools: bool = True
    """False for models too small to call tools: the short prompt is used and no tool is offered."""
    auth_profile: str | None = None
    """The stored credential a session chose for its calls; None: whichever is found first."""

    @cached_property
    def ref(self) -> str:
        return f"{self.provider}/{self.id}"


class ModelRequest(msgspec.Struct, kw_only=True):
    model: Model
    system: str
    """Byte-stable between turns; providers with a prompt cache put a marker after it."""
    system_suffix: str = ""
    """Facts that change from turn to turn (the time); sent after the cached part."""
    messages: list[Message]
    tools: list[ToolSpec] = []
    thinking: ThinkingLevel = "off"
    max_tokens: int | None = None
    temperature: float | None = None
    session_id: str = ""
    """Lets providers that offer it route the calls of one session to one cache."""
    tool_choice: Any = None
    """Provider-neutral: ``None``/``"auto"``, ``"none"``, ``"required"`` or ``{"name": ...}``."""
    memo: dict[Any, Any] | None = None
    """Where an adapter keeps what it made of the conversation's beginning until the next request. No part of it."""


class Text(msgspec.Struct, frozen=True):
    delta: str


class Thinking(msgspec.Struct, frozen=True):
    delta: str


class ToolCallStart(msgspec.Struct, frozen=True):
    call_id: str
    name: str


class Done(msgspec.Struct, frozen=True):
    """Always the last event of a stream that did not raise: the complete message, usage and cost included."""

    message: AssistantMessage


StreamEvent: TypeAlias = Text | Thinking | ToolCallStart | Done
Heard: TypeAlias = Callable[[StreamEvent], None]
"""Told of what comes before the end of an answer, by whoever hears a stream out and returns its message."""


class ModelError(Exception):
    """A call that failed, with what a retry policy and a person need to know.

    ``partial`` holds what had been streamed before the failure, so that it can be kept.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Literal[
            "overflow", "rate_limit", "overloaded", "auth", "billing", "format", "timeout", "network", "other"
        ] = "other",
        status: int | None = None,
        retry_after_s: float | None = None,
        retryable: bool = False,
        partial: AssistantMessage | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        self.retryable = retryable
        self.partial = partial


class Provider(Protocol):
    """Streams one assistant message. Cancelling the consuming task closes the connection at once."""

    def stream(self, request: ModelRequest, api_key: str) -> AsyncGenerator[StreamEvent]: ...
