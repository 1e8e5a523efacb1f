"""What becomes of the events of a run's loop: kept where they must last, noted in the result, passed on."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from openclaw.agent.preparation import Preparation
from openclaw.agent.prompt_images import with_pictures
from openclaw.agent.result import RunResult, note_speech
from openclaw.agent.run_entries import RunEntries
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    ContinuationAsked,
    Event,
    SteeringInjected,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from openclaw.messages import Message, Usage
from openclaw.storage import faults


class Minutes:
    """Of one pass through the loop."""

    def __init__(
        self,
        prepared: Preparation,
        entries: RunEntries,
        messages: list[Message],
        *,
        emit: Callable[[Event], None],
        spent: Callable[[Usage], None],
        with_reasoning: bool,
    ) -> None:
        """``messages``: the loop's own list. ``spent``: told what each answer used."""
        self.result = RunResult(outcome="ok")
        self.show = self._show_and_note if with_reasoning else emit
        self._prepared = prepared
        self._entries = entries
        self._messages = messages
        self._emit = emit
        self._spent = spent
        self._thoughts: list[str] = []

    def _show_and_note(self, event: Event) -> None:
        if isinstance(event, ThinkingDelta):
            self._thoughts.append(event.delta)
        elif isinstance(event, AssistantStarted):
            self._thoughts.clear()
        self._emit(event)

    async def keep(self, event: Event) -> None:
        """On disk when this returns."""
        match event:
            case AssistantEnded():
                await self._answered(event)
            case ContinuationAsked(message):
                await self._entries.note_continuation(message)
                await self._prepared.cleaner.prepare([message])
            case ToolStarted(call_id, name, arguments):
                await self._entries.note_start(call_id, name, msgspec.json.encode(arguments).decode())
            case ToolEnded():
                event = await self._entries.store_result(event)
                # The model reads what was kept, now as in every later turn.
                self._messages[-1] = event.message
                await self._prepared.cleaner.prepare([event.message])
            case SteeringInjected(message, token):
                message = self._messages[-1] = await with_pictures(message, self._prepared)
                await self._entries.append(message, own_id=token)
                await self._prepared.cleaner.prepare([message])
            case _:
                pass
        self._emit(event)

    async def _answered(self, event: AssistantEnded) -> None:
        message = self.result.final = event.message
        self._spent(message.usage)
        self._prepared.view.learn(message)
        faults.point("answer.before")
        await self._entries.append(message)
        faults.point("answer.after")
        if not event.continues:
            note_speech(self.result, event.speech, "".join(self._thoughts))
