"""What model calls that are under way may still cost.

A call is estimated and its cost reserved before it is made, so that calls of several sessions at once cannot pass a
limit together. When the call has ended, the reservation holds its real usage until that is in the transcript. All of
this is in memory only: after a restart no call is under way, and the transcripts say what was spent.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from openclaw.agent.window.tokens import CHARS_PER_TOKEN, reported_prompt
from openclaw.messages import ImageBlock, TextBlock, ThinkingBlock, ToolCall, Usage
from openclaw.models.base import Model, ModelRequest, Price
from openclaw.models.thinking import budget_and_limit, output_limit

EXPECTED_OUTPUT = 4096
"""A call may reserve this many output tokens if they are left, or a quarter of what is left if that is more."""
LEAST_OUTPUT = 256
"""A call that could not afford this many output tokens is not made."""
_MOST_RATIO = 8.0
_FRAME = 64
"""The bytes around a block, a message or a tool."""
_PICTURE = 6400
_REMEMBERED = 500


class Reservation(msgspec.Struct, kw_only=True, eq=False):
    """The cost of one call. First it is an estimate, then the real usage."""

    agent_id: str
    family: str
    """The key of the session that a person talks to. Its sub-agents share its limits."""
    tokens: int
    usd: float


class CallEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a call may use."""

    prompt: int
    """The tokens of the prompt, as the provider will probably count them."""
    counted: int = 0
    """The tokens of the prompt before what the provider reported of earlier calls was taken into account."""
    output: int
    """The most tokens of the answer, with its reasoning."""
    price: Price | None

    @property
    def prompt_usd(self) -> float:
        # A prompt that is new to the provider's cache may cost more than one without a cache.
        return 0.0 if self.price is None else self.prompt * max(self.price.input, self.price.cache_write) / 1e6

    @property
    def output_usd(self) -> float:
        """The price of one token of the answer."""
        return 0.0 if self.price is None else self.price.output / 1e6

    def within(self, output: int) -> CallEstimate:
        return msgspec.structs.replace(self, output=output)


class Reservations:
    """The reservations of all sessions, and how far estimates were off."""

    def __init__(self) -> None:
        self._held: dict[int, Reservation] = {}
        self.released = 0
        """The number of reservations that were released so far."""
        self._ratios: OrderedDict[str, float] = OrderedDict()
        """Reported through estimated prompt tokens, by model and session, and by model alone for new sessions."""

    def hold(self, reservation: Reservation) -> None:
        self._held[id(reservation)] = reservation

    def release(self, reservation: Reservation) -> None:
        if self._held.pop(id(reservation), None) is not None:
            self.released += 1

    def held(self) -> list[Reservation]:
        return list(self._held.values())

    def estimate(self, request: ModelRequest, session_key: str) -> CallEstimate:
        model = request.model
        counted = most_prompt(request)
        ratio = self._ratios.get(f"{model.ref} {session_key}") or self._ratios.get(model.ref, 1.0)
        return CallEstimate(
            prompt=math.ceil(counted * ratio), counted=counted, output=most_output(request), price=model.cost
        )

    def learn(self, model: Model, session_key: str, call: CallEstimate, usage: Usage) -> None:
        """Compares an estimate with what the provider counted. Only estimates that were too low are corrected."""
        reported = reported_prompt(usage)
        if reported <= 0 or call.counted <= 0:
            return
        for key in (f"{model.ref} {session_key}", model.ref):
            now = self._ratios.pop(key, 1.0)
            seen = min(max(reported / call.counted, 1.0), _MOST_RATIO)
            # A larger ratio counts at once, a smaller one only slowly.
            self._ratios[key] = seen if seen > now else now + (seen - now) / 8
            if len(self._ratios) > _REMEMBERED:
                self._ratios.popitem(last=False)


def most_prompt(request: ModelRequest) -> int:
    """The tokens of the prompt, estimated a little too high: from the bytes on the wire, four for a token."""
    size = 4 * _FRAME + sum(map(_bytes, (request.system, request.system_suffix, request.turn_facts)))
    size += sum(len(msgspec.json.encode(tool)) + _FRAME for tool in request.tools)
    for message in request.messages:
        size += _FRAME
        for block in [TextBlock(text=message.content)] if isinstance(message.content, str) else message.content:
            match block:
                case TextBlock():
                    size += _FRAME + _bytes(block.text)
                case ThinkingBlock():
                    size += _FRAME + _bytes(block.thinking)
                case ToolCall():
                    size += 2 * _FRAME + len(msgspec.json.encode(block.arguments))
                case ImageBlock():
                    size += _PICTURE
    return -(-size * 21 // (CHARS_PER_TOKEN * 20))


def _bytes(text: str) -> int:
    """The size of a text in a JSON request."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return size + text.count("\n") + text.count('"') + text.count("\\")


def most_output(request: ModelRequest) -> int:
    """The output limit that the request is sent with."""
    model = request.model
    if model.api == "anthropic-messages" and request.thinking != "off":
        return budget_and_limit(request.thinking, model, request.max_tokens, request.output_room)[1]
    return output_limit(model, request.max_tokens, request.output_room)


def sum_of(reservations: Iterable[Reservation]) -> tuple[int, float, int]:
    """Tokens, dollars and number."""
    found = list(reservations)
    return sum(one.tokens for one in found), sum(one.usd for one in found), len(found)
