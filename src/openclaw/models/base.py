"""What a provider of models is: the protocol, the request it takes, the events it streams, the error it raises.

The cost of a call is made here too, from its tokens and the model's price. Speech that a service writes down costs by
its tokens or by its length.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.messages import AssistantMessage, Cost, Message, ThinkingLevel, ToolSpec, Usage
from openclaw.text import redact_urls

ErrorKind: TypeAlias = Literal[
    "overflow",
    "rate_limit",
    "overloaded",
    "auth",
    "billing",
    "format",
    "timeout",
    "network",
    "budget",
    "unknown",
    "other",
]
"""``budget``: the Gateway did not ask, because the call could exceed a limit on spending. ``unknown``: the model
does not exist."""


CLI_API = "cli"
"""The ``api`` of models that a program on this machine answers for. See ``cli_backend``."""


class Price(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """US dollars per million tokens."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", dict=True):
    """One model of the catalogue, with everything a provider needs to call it except the key."""

    provider: str
    id: str
    name: str = ""
    api: str = "openai-completions"
    base_url: str = ""
    reasoning: bool = False
    input: tuple[str, ...] = ("text",)
    """``text``, and ``image`` when the model accepts pictures."""
    context_window: int = 200_000
    max_tokens: int = 8192
    cost: Price | None = None
    """None means that the price is unknown. A free model has a price of zero."""
    headers: dict[str, str] = {}
    compat: dict[str, Any] = {}
    """Per-provider quirks, e.g. ``{"maxTokensField": "max_tokens"}``."""
    tools: bool = True
    """False for models too small to call tools. They get the short prompt and no tools."""
    auth_profile: str | None = None
    """The stored credential that a session chose. None means the first one found."""

    @cached_property
    def ref(self) -> str:
        return f"{self.provider}/{self.id}"

    @property
    def takes_tools(self) -> bool:
        """Whether it is offered tools. A program that answers has tools of its own."""
        return self.tools and self.api != CLI_API


class ModelRequest(msgspec.Struct, kw_only=True):
    model: Model
    system: str
    """The part of the prompt that is the same in every turn. Providers with a prompt cache put a marker after it."""
    system_suffix: str = ""
    """The session's own part of the prompt. It is sent after the part that all sessions share."""
    turn_facts: str = ""
    """The facts of this turn, such as the time. They end the newest message if that is a user's. See ``convert``."""
    messages: list[Message]
    tools: list[ToolSpec] = []
    thinking: ThinkingLevel = "off"
    max_tokens: int | None = None
    """The wanted limit of the answer. Thinking is added to it."""
    output_room: int | None = None
    """What the window leaves for the answer and its thinking together. None: more than the model can say."""
    temperature: float | None = None
    session_id: str = ""
    """Some providers use it to route the calls of one session to one cache."""
    tool_choice: Any = None
    """``None`` or ``"auto"``, ``"none"``, ``"required"`` or ``{"name": ...}``."""
    workspace: str = ""
    """The folder that a program works in, if a program answers (see ``cli_backend``). It is not sent."""
    branch_cache: dict[Any, Any] | None = None
    """``Context.branch_cache`` of the conversation. It is not sent."""
    prompt_cache: dict[str, Any] | None = None
    """``system`` and ``tools`` as providers have encoded them. Requests with one prompt share it. It is not sent."""

    @property
    def system_parts(self) -> list[str]:
        return [part for part in (self.system, self.system_suffix) if part.strip()]


class Text(msgspec.Struct, frozen=True):
    delta: str


class Thinking(msgspec.Struct, frozen=True):
    delta: str


class ToolCallStart(msgspec.Struct, frozen=True):
    call_id: str
    name: str


class Counted(msgspec.Struct, frozen=True):
    """What the call has used so far, as the provider counts it. A call that is cut or stopped has used this much."""

    usage: Usage


class Done(msgspec.Struct, frozen=True):
    """The last event of every stream that does not raise. The message is complete, with usage and cost."""

    message: AssistantMessage


StreamEvent: TypeAlias = Text | Thinking | ToolCallStart | Counted | Done
OnEvent: TypeAlias = Callable[[StreamEvent], None]
"""A callback that gets every event before ``Done``."""


class Credential(msgspec.Struct, frozen=True):
    """The name of a key. It holds no secret."""

    id: str
    """The id of a profile, or ``provider#kind-digits`` for a key that is not stored in a profile."""
    file: str = ""
    """The ``auth-profiles.json`` that keeps its stats. Empty: they are kept in memory."""

    @property
    def stored(self) -> bool:
        """Whether it is a profile."""
        return "#" not in self.id


class ModelError(Exception):
    """A failed call, with what a retry policy and a person need to know.

    ``partial`` is the part of the message that was streamed before the failure. ``credential`` is the key that was
    used. None: no provider was asked.
    """

    credential: Credential | None = None

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind = "other",
        status: int | None = None,
        retry_after_s: float | None = None,
        retryable: bool = False,
        partial: AssistantMessage | None = None,
    ) -> None:
        # A person reads it, and so does every client: the address of a provider may hold a key.
        super().__init__(redact_urls(message))
        self.kind: ErrorKind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        self.retryable = retryable
        self.partial = partial


class Provider(Protocol):
    """Streams one assistant message. Cancelling the consuming task closes the connection at once."""

    def stream(self, request: ModelRequest, api_key: str) -> AsyncGenerator[StreamEvent]: ...


# Cost

_PER_TOKEN = 1_000_000


def cost_of(usage: Usage, price: Price | None) -> Cost:
    """US dollars per class of tokens. All zero when the price is unknown."""
    if price is None:
        return Cost()
    cost = Cost(
        input=price.input / _PER_TOKEN * usage.input,
        output=price.output / _PER_TOKEN * usage.output,
        cache_read=price.cache_read / _PER_TOKEN * usage.cache_read,
        cache_write=price.cache_write / _PER_TOKEN * usage.cache_write,
    )
    cost.total = cost.input + cost.output + cost.cache_read + cost.cache_write
    return cost


def added(first: Usage | None, second: Usage) -> Usage:
    """The sum, in a new record."""
    if first is None:
        first = Usage()
    return Usage(
        input=first.input + second.input,
        output=first.output + second.output,
        cache_read=first.cache_read + second.cache_read,
        cache_write=first.cache_write + second.cache_write,
        total_tokens=first.total_tokens + second.total_tokens,
        cost=Cost(
            input=first.cost.input + second.cost.input,
            output=first.cost.output + second.cost.output,
            cache_read=first.cost.cache_read + second.cost.cache_read,
            cache_write=first.cost.cache_write + second.cost.cache_write,
            total=first.cost.total + second.cost.total,
        ),
    )


def has_price(price: Price | None) -> bool:
    """Whether the price is known and not zero."""
    return price is not None and any((price.input, price.output, price.cache_read, price.cache_write))


def priced_usage(
    price: Price | None, *, input: int = 0, output: int = 0, cache_read: int = 0, cache_write: int = 0
) -> Usage:
    """The usage of one call with total and cost. ``input`` excludes cached tokens."""
    usage = Usage(
        input=max(0, input), output=max(0, output), cache_read=max(0, cache_read), cache_write=max(0, cache_write)
    )
    usage.total_tokens = usage.input + usage.output + usage.cache_read + usage.cache_write
    usage.cost = cost_of(usage, price)
    return usage


TOKEN_PRICES = {
    "gpt-4o-transcribe": Price(input=6.0, output=10.0),
    "gpt-4o-mini-transcribe": Price(input=3.0, output=5.0),
}
MINUTE_PRICES = {
    "whisper-1": 0.006,
    "gpt-4o-transcribe": 0.006,
    "gpt-4o-mini-transcribe": 0.003,
    "whisper-large-v3-turbo": 0.04 / 60,
    "whisper-large-v3": 0.111 / 60,
    "voxtral-mini-latest": 0.002,
}
"""US dollars for a minute."""
LEAST_BYTES_PER_S = 1000
"""Recordings of speech are hardly ever packed more tightly. It tells how long one may be at most."""
LONGEST_S = 12 * 3600


class SpokenText(msgspec.Struct, frozen=True, kw_only=True):
    """A transcript, and what the service counted for it."""

    text: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """The length of the sound. 0: the service did not say."""


def speech_usage(model: str, spoken: SpokenText, price: Price | None) -> Usage:
    """What a transcript used. ``price`` is that of the catalogue, which comes before the usual one."""
    if spoken.input_tokens or spoken.output_tokens:
        price = price or TOKEN_PRICES.get(model)
        return priced_usage(price, input=spoken.input_tokens, output=spoken.output_tokens)
    return Usage(cost=Cost(total=spoken.seconds / 60 * MINUTE_PRICES.get(model, 0.0)))


def highest_cost(model: str, size: int) -> float:
    """What a recording of so many bytes can cost at most, in US dollars. 0 if nobody knows."""
    return min(size / LEAST_BYTES_PER_S, LONGEST_S) / 60 * MINUTE_PRICES.get(model, 0.0)
