"""Helpers of the adapter tests: build requests, run calls to their end, feed recorded bytes."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from openclaw.clock import SystemClock
from openclaw.config.schema import Config
from openclaw.messages import AssistantMessage, ToolSpec, UserMessage
from openclaw.models.base import Done, Model, ModelRequest, StreamEvent
from openclaw.models.calls import ModelCalls
from openclaw.models.http import ReplyReader, SseParser
from openclaw.models.keys import Keys

READ = ToolSpec(
    name="read",
    description="Reads a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def ask(model: Model, text: str = "hello", **fields: Any) -> ModelRequest:
    defaults: dict[str, Any] = {"system": "You are a test.", "messages": [UserMessage(content=text)]}
    return ModelRequest(model=model, **{**defaults, **fields})


def model_calls() -> ModelCalls:
    """Calls without a Gateway around them. Whoever makes them closes them."""

    async def at_once() -> None:
        pass

    return ModelCalls(Keys({}), Config, SystemClock(), take_turn=at_once, failed=lambda error: None)


async def collect(request: ModelRequest, key: str) -> list[StreamEvent]:
    """The events of one call that is made over a connection of its own."""
    calls = model_calls()
    try:
        return [event async for event in calls.provider_for(request.model).stream(request, key)]
    finally:
        await calls.close()


def done_of(events: list[StreamEvent]) -> AssistantMessage:
    assert isinstance(events[-1], Done)
    assert sum(isinstance(event, Done) for event in events) == 1
    return events[-1].message


def feed(state: ReplyReader, raw: bytes, cuts: list[int] | None = None) -> list[StreamEvent]:
    """The stream's bytes, split at the given places, through parser and state to the end."""
    parser = SseParser()
    edges = [0, *sorted(cuts or []), len(raw)]
    out: list[StreamEvent] = []
    for start, end in itertools.pairwise(edges):
        out += state.feed(parser.feed(raw[start:end]))
    if not state.builder.complete:
        out += state.finish()
    return out


def sse(*events: Any) -> bytes:
    """Data-only events; strings are sent as they are."""
    lines = [event if isinstance(event, str) else msgspec.json.encode(event).decode() for event in events]
    return "".join(f"data: {line}\n\n" for line in lines).encode()
