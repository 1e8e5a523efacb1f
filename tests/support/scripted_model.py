"""A model that plays a script in the test's own process: no wire, no server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from openclaw.messages import AssistantMessage, TextBlock, ToolCall, Usage, UserMessage, user_text
from openclaw.models.base import ModelError, ModelRequest, OnEvent, Text


@dataclass
class Answer:
    """What the model says to one request."""

    text: str = "ok"
    calls: list[ToolCall] = field(default_factory=list)
    error: ModelError | None = None
    hold: asyncio.Event | None = None
    """The first half of the text is heard, then nothing more before the event is set."""


class ScriptedModel:
    """Answers requests in the order of the script, and ``ok`` when the script is at its end."""

    def __init__(self, *answers: Answer | str) -> None:
        self._answers: list[Answer] = []
        self.requests: list[ModelRequest] = []
        self._asked = asyncio.Condition()
        self.queue(*answers)

    def queue(self, *answers: Answer | str) -> None:
        self._answers += [Answer(answer) if isinstance(answer, str) else answer for answer in answers]

    def held(self, text: str = "held") -> asyncio.Event:
        """Queues an answer that waits until the returned event is set."""
        hold = asyncio.Event()
        self.queue(Answer(text, hold=hold))
        return hold

    async def asked(self, count: int, timeout_s: float = 60) -> None:
        """Waits until that many requests have come."""
        async with asyncio.timeout(timeout_s), self._asked:
            await self._asked.wait_for(lambda: len(self.requests) >= count)

    def prompts(self, number: int = -1) -> list[str]:
        """What people said in one request, oldest first."""
        return [user_text(message) for message in self.requests[number].messages if isinstance(message, UserMessage)]

    async def answer(self, request: ModelRequest, agent_id: str, on_event: OnEvent) -> AssistantMessage:
        """In place of ``ModelCalls.call``."""
        self.requests.append(request)
        async with self._asked:
            self._asked.notify_all()
        answer = self._answers.pop(0) if self._answers else Answer()
        if answer.error is not None:
            raise answer.error
        half = len(answer.text) // 2
        if answer.hold is not None:
            if half:
                on_event(Text(answer.text[:half]))
            await answer.hold.wait()
            on_event(Text(answer.text[half:]))
        elif answer.text:
            on_event(Text(answer.text))
        content: list[Any] = [TextBlock(text=answer.text)] if answer.text else []
        return AssistantMessage(
            content=[*content, *answer.calls],
            provider=request.model.provider,
            model=request.model.id,
            stop_reason="toolUse" if answer.calls else "stop",
            usage=Usage(input=100, output=10, total_tokens=110),
        )
