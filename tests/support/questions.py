"""Questions without a ledger, and tool calls that wait for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from openclaw.clock import Clock, SystemClock
from openclaw.questions.desk import QuestionDesk
from openclaw.storage.questions import Question


class MemoryQuestions:
    """The questions of a ledger, in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, Question] = {}
        self.acted: set[str] = set()

    async def question_open(self, question: Question) -> bool:
        return self.rows.setdefault(question.id, question) is question

    async def question_end(self, question: Question) -> bool:
        if question.id not in self.rows or self.rows[question.id].state != "open":
            return False
        self.rows[question.id] = question
        return True

    async def question_act(self, question_id: str) -> bool:
        first = question_id not in self.acted
        self.acted.add(question_id)
        return first

    async def question_acted(self, question_id: str) -> bool:
        return question_id in self.acted

    async def question(self, question_id: str) -> Question | None:
        return self.rows.get(question_id)

    async def questions(
        self, *, is_open: bool | None = None, run_id: str | None = None, prefix: str = "", limit: int = 10_000
    ) -> list[Question]:
        return [
            row
            for row in self.rows.values()
            if is_open in (None, row.state == "open") and run_id in (None, row.run_id) and row.id.startswith(prefix)
        ][-limit:]


def memory_desk(clock: Clock | None = None) -> QuestionDesk:
    return QuestionDesk(MemoryQuestions(), clock or SystemClock())


class WaitingCall:
    """A tool call under way. ``question`` is the one that it asks; None if it ended without one."""

    def __init__(self, task: asyncio.Task[Any], question: Question | None) -> None:
        self.task = task
        self.question = question


async def begin(desk: QuestionDesk, call: Coroutine[Any, Any, Any]) -> WaitingCall:
    """Start a tool call and wait until it asks or ends."""
    before = {question.id for question in desk.open_questions()}
    task = asyncio.create_task(call)
    async with asyncio.timeout(60):
        while True:
            asked = [question for question in desk.open_questions() if question.id not in before]
            if asked or task.done():
                return WaitingCall(task, asked[0] if asked else None)
            await asyncio.sleep(0.005)
