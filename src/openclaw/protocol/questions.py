"""Results of ``question.*`` and the events ``question.opened`` and ``question.closed``."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.protocol.result import Result


class QuestionOptionView(Result):
    value: str
    """The answer that choosing it gives."""
    label: str


class QuestionView(Result):
    """A question to a person. ``question.opened`` and ``question.closed`` have this shape too."""

    id: str
    kind: str
    """``command``, ``tool`` or ``decision``."""
    state: str
    """``open``, ``answered``, ``expired`` or ``withdrawn``."""
    text: str
    """What is asked, as plain text. For a command, ``request`` has the parts."""
    options: list[QuestionOptionView]
    free_text: bool
    """Whether free text is accepted as an answer."""
    created_at_ms: int
    expires_at_ms: int
    session_key: str = ""
    agent_id: str = ""
    run_id: str = ""
    """The run that waits for the answer."""
    tool_call_id: str = ""
    """The tool call that waits for the answer. Its card is the place of the question."""
    default: str | None = None
    """The answer that counts if nobody answers in time."""
    request: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """For a command or a tool: ``command``, ``cwd``, ``host``, ``node``, ``env``, ``onceOnly`` and more."""
    answer: str | None = None
    answered_by: str = ""
    ended_at_ms: int | None = None


class QuestionList(Result):
    ts: int
    questions: list[QuestionView]


class QuestionAnswered(Result):
    ok: bool
    question: QuestionView
