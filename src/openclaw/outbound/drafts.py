"""Shows a reply on its channel while it is being written, in one place that changes: a draft.

The finished reply is sent like any other. Only the newest state of a draft matters: states that come faster than the
channel takes them are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from openclaw.clock import Clock
from openclaw.config.schema.agents import BlockChunk
from openclaw.events import AssistantStarted, Event, TextDelta, ThinkingDelta
from openclaw.outbound.blocks import BlockChunker
from openclaw.outbound.reasoning import reasoning_message

THROTTLE_S = 0.3
"""The least time between two states."""
LONGEST = 16_000
"""A longer text is no longer shown as a draft."""
DRAFT_CHUNK = BlockChunk(min_chars=200, max_chars=800)
"""The pieces by which a draft grows in the mode ``block``."""


class DraftStream:
    """Follows one run. Call ``event`` for each event and ``end`` once, when the run has ended."""

    def __init__(
        self,
        clock: Clock,
        show: Callable[[str], Awaitable[bool]],
        *,
        chunker: BlockChunker | None = None,
        with_reasoning: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._show = show
        """Shows a text in place of the last one, and takes it away if the text is empty. False: it cannot."""
        self._with_reasoning = with_reasoning
        self._chunker = chunker
        self._said: list[str] = []
        self._thoughts: list[str] = []
        self._size = 0
        self._shown = ""
        self._woken = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def event(self, event: Event) -> None:
        if self._ended:
            return
        match event:
            case AssistantStarted():
                self._said, self._thoughts, self._size = [], [], 0
                if self._chunker is not None:
                    self._chunker.start()
                return
            case TextDelta(delta):
                self._add(self._said, self._grown(delta))
            case ThinkingDelta(delta) if self._with_reasoning():
                self._add(self._thoughts, delta)
            case _:
                return
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="draft")

    async def end(self) -> None:
        """Takes the draft away. Nothing is shown after that."""
        self._ended = True
        self._woken.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            if self._shown:
                await self._show("")

    def _add(self, to: list[str], text: str) -> None:
        to.append(text)
        self._size += len(text)

    def _grown(self, delta: str) -> str:
        if self._chunker is None:
            return delta
        self._chunker.feed(delta)
        return "".join(f"{block.gap or ''}{block.text}" for block in self._chunker.drain(force=False))

    def _state(self) -> str:
        text = "".join(self._said).strip()
        return text or reasoning_message("".join(self._thoughts))

    async def _work(self) -> None:
        while not self._ended and self._size <= LONGEST:
            self._woken.clear()
            text = self._state()
            if text and text != self._shown:
                if not await self._show(text):
                    self._ended = True
                    return
                self._shown = text
                await self._clock.sleep(THROTTLE_S)
            if not self._ended:
                await self._woken.wait()
