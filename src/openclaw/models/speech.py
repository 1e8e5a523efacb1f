"""What a speech service wrote down, and what that costs: some services count tokens, others the length of the sound."""

from __future__ import annotations

import msgspec

from openclaw.messages import Cost, Usage
from openclaw.models.base import Price
from openclaw.models.catalogue import priced_usage

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
