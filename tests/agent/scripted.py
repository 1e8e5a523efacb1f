"""A provider that plays a script, and a clock that only moves when told."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from openclaw.config.schema.system import Retry
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolCall, ToolSpec
from openclaw.models.base import Done, Model, ModelError, ModelRequest, OnEvent, StreamEvent, Text
from openclaw.models.calls import NextStep, TryAgain
from openclaw.models.errors import next_retry_ms
from openclaw.tools.base import ToolContext, ToolResult, text_result

MODEL = Model(provider="mock", id="mock-1", api="anthropic-messages")


class HeldClock:
    def __init__(self) -> None:
        self.ms = 1_794_766_939_000
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ms += int(seconds * 1000)


def says(text: str, *calls: ToolCall) -> AssistantMessage:
    content: list[Any] = [TextBlock(text=text)] if text else []
    return AssistantMessage(
        content=[*content, *calls], provider="mock", model="mock-1", stop_reason="toolUse" if calls else "stop"
    )


def call(call_id: str, name: str = "echo", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


FAST = Retry(base_delay_ms=5)


class Script:
    """Plays one step per model call: a message (streamed word by word), an error, or an async generator function."""

    model = MODEL
    thinking = ""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.seen: list[list[Message]] = []

    async def request(self, messages: list[Message]) -> ModelRequest:
        return ModelRequest(model=MODEL, system="", messages=messages)

    async def after_failure(self, error: ModelError, attempt: int) -> NextStep:
        delay = next_retry_ms(error, attempt, FAST)
        return None if delay is None else TryAgain(delay)

    def change_after_refusal(self, error: ModelError) -> bool:
        return False

    async def ask(self, request: ModelRequest, on_event: OnEvent) -> AssistantMessage:
        async with aclosing(self._stream(request)) as stream:
            async for event in stream:
                if isinstance(event, Done):
                    return event.message
                on_event(event)
        raise ModelError("The stream ended without a message.", kind="network")

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        self.seen.append(list(request.messages))
        step = self.steps.pop(0)
        if isinstance(step, ModelError):
            raise step
        if callable(step):
            async for event in step():
                yield event
            return
        for word in step.text.split(" ") if step.text else []:
            yield Text(word if word == step.text.split(" ")[0] else f" {word}")
        yield Done(step)


class Echo:
    """A tool that answers with its ``text`` argument, after whatever the test put in ``before``."""

    spec = ToolSpec(
        name="echo",
        description="Says it again.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )
    summary = "says it again"

    def __init__(self, before: Any = None) -> None:
        self.before = before
        self.calls: list[str] = []

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self.calls.append(arguments["text"])
        if self.before is not None:
            await self.before(context)
        return text_result(arguments["text"])
