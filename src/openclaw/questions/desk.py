"""The desk: it opens questions to people, takes their answers, and closes what nobody answers in time.

Every question is in the ledger before anybody reads it, and its end is there before anybody acts on it. A question ends
once: it is answered, it expires, or it is withdrawn because nothing waits for its answer any more. Questions that were
open when the Gateway stopped are open again after the start, until the run that asked resumes and waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

import msgspec

from openclaw.clock import Clock
from openclaw.questions.answers import check_answer
from openclaw.storage.disk_errors import FOREVER, until_written
from openclaw.storage.errors import Fenced
from openclaw.storage.questions import Question, QuestionRows, QuestionState

log = logging.getLogger("openclaw.questions")
MAX_OPEN = 5_000
MAX_TIMEOUT_MS = 24 * 3_600_000
RESTART = "restart"
"""Who withdraws a question that a restart of the Gateway left without its asker."""
SLUG = 8
"""The first characters of an id, which people use to name a question."""


class UnknownQuestion(Exception):
    """No question has this id, or several ids begin with it."""


class QuestionEnded(UnknownQuestion):
    """The question has ended. ``question`` says how."""

    def __init__(self, question: Question) -> None:
        self.question = question
        super().__init__(f"question {question.id[:SLUG]} is no longer open: {end_text(question)}")


class TooManyQuestions(ValueError):
    """As many questions are open as may be."""


class QuestionFollower(Protocol):
    """Gets every question when it opens and when it ends."""

    def opened(self, question: Question) -> None: ...

    def ended(self, question: Question) -> None: ...


class _Open:
    """An open question and those who wait for its end."""

    def __init__(self, question: Question, expiry: asyncio.Task[None]) -> None:
        self.question = question
        self.expiry = expiry
        self.end: asyncio.Future[Question] = asyncio.get_running_loop().create_future()


class QuestionDesk:
    """The open questions of one Gateway."""

    def __init__(self, rows: QuestionRows, clock: Clock, node: str = "") -> None:
        """``node`` is the id of this Gateway among several that share the ledger."""
        self._rows = rows
        self._clock = clock
        self._node = node
        self._open: dict[str, _Open] = {}
        self._of_session: dict[str, dict[str, None]] = {}
        """The ids of the open questions of each session."""
        self._of_run: dict[str, dict[str, None]] = {}
        self._followers: list[QuestionFollower] = []

    def follow(self, follower: QuestionFollower) -> None:
        self._followers.append(follower)

    async def load(self) -> None:
        """Open the questions of runs again that were open when this Gateway stopped.

        A question of another program is withdrawn, because its connection has ended.
        """
        for question in await self._rows.questions(is_open=True):
            if question.node != self._node:
                continue
            if question.run_id:
                self._add(question)
            else:
                await self._rows.question_end(self._as_ended(question, "withdrawn", by=RESTART))

    async def withdraw_left(self, living: Collection[str]) -> None:
        """End what nodes left that have died: the questions of other programs, and those that are out of time.

        The node that continues a run asks its question again under the same id.
        """
        now = self._clock.now_ms()
        for question in await self._rows.questions(is_open=True):
            if question.node not in living and (not question.run_id or question.expires_at < now):
                await self._rows.question_end(self._as_ended(question, "withdrawn", by=RESTART))

    async def ask(self, question: Question) -> Question:
        """Open a question. Its id is made here if it has none. Raises ``ValueError`` if it cannot be asked."""
        if len(self._open) >= MAX_OPEN:
            raise TooManyQuestions(f"{MAX_OPEN} questions are open already; answer some of them first")
        now = self._clock.now_ms()
        timeout_ms = max(1, min(question.expires_at - question.created_at, MAX_TIMEOUT_MS))
        question = msgspec.structs.replace(
            question, id=question.id or str(uuid.uuid4()), node=self._node, created_at=now, expires_at=now + timeout_ms
        )
        if question.id in self._open or not await self._rows.question_open(question):
            raise ValueError("question id already used")
        self._add(question)
        for follower in self._followers:
            follower.opened(question)
        return question

    async def wait(self, question: Question) -> Question:
        """Return the question once it has ended."""
        entry = self._open.get(question.id)
        if entry is None:
            stored = await self._rows.question(question.id)
            if stored is not None and stored.state != "open":
                return stored
            # Another node asked, and this one continues its run.
            self._add(stored or question)
            entry = self._open[question.id]
        return await asyncio.shield(entry.end)

    async def of_call(self, run_id: str, call_id: str) -> Question | None:
        """Return the newest question of a tool call, which may have ended."""
        questions = await self._rows.questions(run_id=run_id)
        return next((one for one in reversed(questions) if one.call_id == call_id), None)

    async def begin_once(self, question: Question) -> bool:
        """Note that what the answer allowed begins now. False: it had begun before, perhaps before a crash."""
        return await self._rows.question_act(question.id)

    def open_questions(self, session_key: str | None = None) -> list[Question]:
        """Return the open questions of a session or of all, oldest first."""
        ids = list(self._open) if session_key is None else list(self._of_session.get(session_key, ()))
        return [self._open[id].question for id in ids]

    def find_open(self, ref: str) -> Question | None:
        """Return the open question with this id or the only one whose id begins so. Raises ``UnknownQuestion``."""
        ref = ref.strip()
        if ref in self._open:
            return self._open[ref].question
        matches = [id for id in self._open if len(ref) >= 4 and id.startswith(ref.lower())]
        if len(matches) > 1:
            raise UnknownQuestion(f"ambiguous question id: {len(matches)} open ones begin with {ref}; write more of it")
        return self._open[matches[0]].question if matches else None

    async def find(self, ref: str) -> Question:
        """Return an open question by its id or the beginning of it.

        Raises ``QuestionEnded`` if it has ended, and ``UnknownQuestion`` if there is none.
        """
        if (question := self.find_open(ref)) is not None:
            return question
        ref = ref.strip().lower()
        if len(ref) >= 4:
            ended = [one for one in await self._rows.questions(prefix=ref, limit=2) if one.state != "open"]
            if len(ended) == 1:
                raise QuestionEnded(ended[0])
        raise UnknownQuestion("unknown question id")

    async def answer(self, ref: str, text: str, by: str = "") -> Question:
        """Answer an open question. Raises ``InvalidAnswer``, ``QuestionEnded`` or ``UnknownQuestion``.

        The caller has checked that this person may answer it.
        """
        question = await self.find(ref)
        value = check_answer(question, text)
        return await self._end(self._as_ended(question, "answered", answer=value, by=by))

    async def withdraw(self, questions: Sequence[Question], by: str = "") -> None:
        """End open questions to which nobody needs an answer any more."""
        for question in questions:
            with contextlib.suppress(UnknownQuestion):
                await self._end(self._as_ended(question, "withdrawn", by=by))

    async def withdraw_run(self, run_id: str) -> None:
        """End the open questions of a run that has ended or was stopped."""
        await self.withdraw([self._open[id].question for id in self._of_run.get(run_id, ())])

    def waits(self, run_id: str) -> bool:
        """Return whether the run has an open question."""
        return run_id in self._of_run

    async def close(self) -> None:
        """Stop the timers. The questions stay open in the ledger."""
        timers = [entry.expiry for entry in self._open.values()]
        for timer in timers:
            timer.cancel()
        await asyncio.gather(*timers, return_exceptions=True)

    def _add(self, question: Question) -> None:
        timer = asyncio.create_task(self._expire(question), name=f"expiry of question {question.id}")
        self._open[question.id] = _Open(question, timer)
        for index, key in (self._of_session, question.session_key), (self._of_run, question.run_id):
            index.setdefault(key, {})[question.id] = None

    async def _expire(self, question: Question) -> None:
        left_ms = question.expires_at - self._clock.now_ms()
        await self._clock.sleep(max(0.0, left_ms / 1000))
        ended = self._as_ended(question, "expired")
        with contextlib.suppress(UnknownQuestion, Fenced):
            await until_written(partial(self._end, ended), self._clock.sleep, unknown_tries=FOREVER)

    def _as_ended(
        self, question: Question, state: QuestionState, *, answer: str | None = None, by: str = ""
    ) -> Question:
        now = self._clock.now_ms()
        return msgspec.structs.replace(question, state=state, answer=answer, answered_by=by, ended_at=now)

    async def _end(self, ended: Question) -> Question:
        """Persist the end of a question, then report it. Raises ``QuestionEnded`` if another end was first."""
        if not await self._rows.question_end(ended):
            stored = await self._rows.question(ended.id)
            if stored is None or stored.state == "open":
                self._remove(ended)
                raise UnknownQuestion("unknown question id")
            self._remove(stored)
            raise QuestionEnded(stored)
        self._remove(ended)
        for follower in self._followers:
            follower.ended(ended)
        return ended

    def _remove(self, ended: Question) -> None:
        entry = self._open.pop(ended.id, None)
        if entry is None:
            return
        for index, key in (self._of_session, ended.session_key), (self._of_run, ended.run_id):
            del index[key][ended.id]
            if not index[key]:
                del index[key]
        if entry.expiry is not asyncio.current_task():
            entry.expiry.cancel()
        if not entry.end.done():
            entry.end.set_result(ended)


def end_text(question: Question) -> str:
    """Say how a question ended, as a part of a sentence."""
    match question.state:
        case "answered":
            by = f" by {question.answered_by}" if question.answered_by else ""
            return f"it was answered{by} ({question.answer})"
        case "expired":
            return "nobody answered it in time"
        case "withdrawn" if question.answered_by == RESTART:
            return "the Gateway was restarted while it waited. Have the command asked for again"
        case _:
            return "it was withdrawn, because nothing waits for its answer any more"
