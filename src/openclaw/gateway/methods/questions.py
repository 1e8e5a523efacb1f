"""``question.*``: the questions to people, and the notifications about them.

An approval of a command is a question too. Its older methods and events are in ``exec_approvals.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.server.frames import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.outbound.reply import Button
from openclaw.protocol.questions import QuestionAnswered, QuestionList, QuestionOptionView, QuestionView
from openclaw.questions.answers import InvalidAnswer, numbered_options
from openclaw.questions.desk import SLUG, UnknownQuestion
from openclaw.sessions.keys import shown_key
from openclaw.storage.questions import Question

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.gateway.server.events import Broadcaster
    from openclaw.inbound.notices import Notices
    from openclaw.runs.run import RunIndex

methods = MethodTable()
BUTTONS_IN_A_ROW = 3


class QuestionsListed(Params):
    session_key: NonEmpty | None = None
    id: NonEmpty | None = None
    """The whole id of one question, which may have ended."""


@methods.add("question.list", QuestionsListed)
async def list_questions(call: MethodCall, params: QuestionsListed) -> QuestionList:
    """The questions to people that are open, oldest first, or one question and how it ended."""
    runtime, desk = call.gateway.runtime, call.gateway.runtime.tools.questions
    if params.id is not None:
        stored = await runtime.stores.ledger.question(params.id)
        questions = [] if stored is None else [stored]
    else:
        key = None if params.session_key is None else call.gateway.directory.target(params.session_key).key
        questions = desk.open_questions(key)
    return QuestionList(runtime.clock.now_ms(), [question_view(question) for question in questions])


class QuestionAnswer(Params):
    id: NonEmpty
    """The id, or its beginning."""
    answer: NonEmpty
    """The value, the label or the number of an option, or a text where one is asked for."""


@methods.add("question.answer", QuestionAnswer)
async def answer(call: MethodCall, params: QuestionAnswer) -> QuestionAnswered:
    """Answers an open question, once. What waits for the answer continues."""
    info = call.client.client_info
    try:
        question = await call.gateway.runtime.tools.questions.answer(
            params.id, params.answer, info.display_name or info.id
        )
    except (UnknownQuestion, InvalidAnswer) as problem:
        raise MethodError(str(problem)) from None
    return QuestionAnswered(True, question_view(question))


def question_view(question: Question) -> QuestionView:
    """The question as clients get it."""
    return QuestionView(
        id=question.id,
        kind=question.kind,
        state=question.state,
        text=question.text,
        options=[QuestionOptionView(option.value, option.label) for option in question.options],
        free_text=question.free_text,
        created_at_ms=question.created_at,
        expires_at_ms=question.expires_at,
        session_key=shown_key(question.session_key) if question.session_key else "",
        agent_id=question.agent_id,
        run_id=question.run_id,
        tool_call_id=question.call_id,
        default=question.default,
        request=question.details or msgspec.UNSET,
        answer=question.answer,
        answered_by=question.answered_by,
        ended_at_ms=question.ended_at,
    )


class QuestionEvents:
    """Publishes every question and its end to the clients that may answer."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self._broadcaster = broadcaster

    def opened(self, question: Question) -> None:
        self._broadcaster.publish("question.opened", question_view(question), drop_if_slow=True)

    def ended(self, question: Question) -> None:
        self._broadcaster.publish("question.closed", question_view(question), drop_if_slow=True)


class QuestionNotices:
    """Posts the questions of a run to the channel that its message came from."""

    def __init__(
        self,
        runtime: Runtime,
        index: RunIndex,
        notices: Notices,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._runtime = runtime
        self._index = index
        self._notices = notices
        self._spawn = spawn

    def opened(self, question: Question) -> None:
        self._post(question, "asked", channel_text(question), answer_buttons(question))

    def ended(self, question: Question) -> None:
        if question.state == "expired":
            default = f" I go on with: {question.default}." if question.default else ""
            self._post(question, "expired", f"⏱️ Nobody answered question {question.id[:SLUG]} in time.{default}")

    def _post(self, question: Question, event: str, text: str, buttons: list[list[Button]] | None = None) -> None:
        run = self._index.get(question.run_id) if question.run_id else None
        settings = self._runtime.config.current.approvals.get("exec", {})
        only_clients = question.is_approval and isinstance(settings, dict) and settings.get("enabled") is False
        # In open chats of clients the card of the question is enough.
        if run is not None and run.row.route.is_delivered and not only_clients:
            self._spawn(self._notices.notify_run(run, f"question-{question.id}-{event}", text, buttons or ()))


def channel_text(question: Question) -> str:
    """The whole question for a chat, with how to answer it. Long ones go out in several messages."""
    seconds = round((question.expires_at - question.created_at) / 1000)
    within = f"{seconds} s" if seconds < 180 else f"{round(seconds / 60)} min"
    lines = [question.text, "", *numbered_options(question)]
    slug = question.id[:SLUG]
    if question.is_approval:
        values = [option.value for option in question.options]
        choices = f"{', '.join(values[:-1])} or {values[-1]}"
        lines.append(f"Answer within {within} with the number, or: /approve {slug} {choices}")
    elif question.options:
        text = " or a text after /answer" if question.free_text else ""
        lines.append(f"Answer within {within} with the number{text} (id {slug}).")
    else:
        lines.append(f"Answer within {within} with your next message (id {slug}).")
    return "\n".join(lines)


def answer_buttons(question: Question) -> list[list[Button]]:
    """Return a button for each option. A press submits the command that answers."""
    command = "/approve" if question.is_approval else "/answer"
    buttons = [
        Button(text=option.label, data=f"{command} {question.id} {option.value if question.is_approval else number}")
        for number, option in enumerate(question.options, 1)
    ]
    return [buttons[start : start + BUTTONS_IN_A_ROW] for start in range(0, len(buttons), BUTTONS_IN_A_ROW)]
