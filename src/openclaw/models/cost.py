"""The cost of a call, from its tokens and the model's price."""

from __future__ import annotations

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
