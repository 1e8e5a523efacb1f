"""The cost of a call, from its tokens and the model's price, and of speech that a service wrote down.

Some speech services count tokens, others the length of the sound.
"""

from __future__ import annotations

import msgspec

from openclaw.messages import Cost, Usage
from openclaw.models.base import Price

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
