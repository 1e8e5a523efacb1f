"""The ``ask_user`` tool: asks a person what to do, and waits for the answer without holding a slot."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from openclaw.questions.desk import QuestionDesk
from openclaw.storage.questions import Question, QuestionOption
from openclaw.tools.arguments import RecordTool, ToolArguments
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec.approvals import fingerprint_of
from openclaw.tools.exec.binding import visible

MOST_OPTIONS = 6
LONGEST_QUESTION = 2_000
LONGEST_OPTION = 120
TIMEOUT_S = 600
LONGEST_TIMEOUT_S = 24 * 3600


class AskArguments(ToolArguments):
    question: Annotated[str, Meta(description="What the person should decide, in one or two sentences", min_length=1)]
    options: Annotated[list[str], Meta(description="Up to six short answers", max_length=MOST_OPTIONS)] = []
    allow_text: Annotated[bool, Meta(description="Accept any other text too; always true without options")] = False
    timeout_seconds: Annotated[
        float, Meta(description=f"How long to wait for the answer (default: {TIMEOUT_S})", gt=0, le=LONGEST_TIMEOUT_S)
    ] = TIMEOUT_S
    default: Annotated[str, Meta(description="The answer to assume if nobody answers in time")] = ""


class AskUserTool(RecordTool[AskArguments]):
    name = "ask_user"
    summary = "Ask the person to decide something, and wait for the answer"
    description = (
        "Ask the person a question and wait for the answer. Use it only when you cannot go on without their decision; "
        "for everything else, write to them in your reply."
    )

    def __init__(self, desk: QuestionDesk) -> None:
        self._desk = desk

    async def execute(self, arguments: AskArguments, context: ToolContext) -> ToolResult:
        asked = question_of(arguments, context)
        question = await self._desk.of_call(context.run_id, context.call_id) if context.resumed else None
        if question is None:
            try:
                question = await self._desk.ask(asked)
            except ValueError as problem:
                raise ToolError(f"ask_user: the question cannot be asked now: {problem}") from None
        return result_of(await context.wait_for_person(self._desk, question))


def question_of(arguments: AskArguments, context: ToolContext) -> Question:
    """Make the question of a call. Raises ``ToolError`` if a person could not answer it."""
    text = visible(arguments.question.strip())
    options = tuple(dict.fromkeys(visible(option.strip()) for option in arguments.options if option.strip()))
    if len(text) > LONGEST_QUESTION or any(len(option) > LONGEST_OPTION for option in options):
        raise ToolError(
            f"ask_user: a question may have {LONGEST_QUESTION} characters and an option {LONGEST_OPTION}; shorten them"
        )
    free_text = arguments.allow_text or not options
    default = visible(arguments.default.strip()) or None
    if default is not None and not free_text and default not in options:
        raise ToolError(f"ask_user: default must be one of the options: {', '.join(options)}")
    return Question(
        id="",
        kind="decision",
        text=f"❓ {text}",
        options=tuple(QuestionOption(option, option) for option in options),
        free_text=free_text,
        default=default,
        answerers="sender",
        sender=context.sender,
        fingerprint=fingerprint_of(text, options),
        agent_id=context.agent_id,
        session_key=context.session_key,
        run_id=context.run_id,
        call_id=context.call_id,
        created_at=0,
        expires_at=round(arguments.timeout_seconds * 1000),
    )


def result_of(question: Question) -> ToolResult:
    """What the model reads once the question has ended."""
    details = {"questionId": question.id, "answer": question.effective_answer}
    if question.state == "answered":
        by = f" ({question.answered_by})" if question.answered_by else ""
        return text_result(f"The answer{by}: {question.answer}", {"status": "completed", **details})
    if question.state == "expired" and question.default is not None:
        text = f"Nobody answered in time. Go on with the default: {question.default}"
        return text_result(text, {"status": "completed", **details})
    why = "Nobody answered in time" if question.state == "expired" else "The question was withdrawn"
    return text_result(f"{why}. Do not assume an answer.", {"status": question.state, **details})
