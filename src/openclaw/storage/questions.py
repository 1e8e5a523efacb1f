"""Questions to people: the record of one, and the protocol that persists them."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import msgspec

QuestionState: TypeAlias = Literal["open", "answered", "expired", "withdrawn"]
"""An open question gets exactly one of the other states, once."""
QuestionKind: TypeAlias = Literal["command", "tool", "decision"]
"""
- ``command``: may this command run?
- ``tool``: may this tool of an MCP server be called?
- ``decision``: the agent needs a decision (the tool ``ask_user``).
"""
Answerers: TypeAlias = Literal["owner", "sender"]
"""
- ``owner``: who has the right ``approvals``.
- ``sender``: the same, and the person whose message the run answers.
"""


class QuestionOption(msgspec.Struct, frozen=True, rename="camel"):
    value: str
    """The answer that choosing it gives."""
    label: str


class Question(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One question to a person, from asking to its end."""

    id: str
    kind: QuestionKind
    text: str
    options: tuple[QuestionOption, ...] = ()
    free_text: bool = False
    """Whether a text that is none of the options is an answer."""
    default: str | None = None
    """The answer if nobody answers in time. None means that there is none."""
    answerers: Answerers = "owner"
    sender: str = ""
    """The person on a channel whose message the run answers, by the platform's id. Empty for the web chat."""
    details: dict[str, Any] = {}
    """What the question is about, as its kind defines it: the request of a ``command`` or a ``tool``."""
    fingerprint: str = ""
    """Identifies what the answer is for. A call that resumes with another fingerprint may not use the answer."""
    agent_id: str = ""
    session_key: str = ""
    run_id: str = ""
    """The run that waits for the answer. Empty if another program asked."""
    call_id: str = ""
    """The tool call that waits for the answer."""
    node: str = ""
    """The Gateway that asks, among several that share the ledger."""
    created_at: int
    expires_at: int
    state: QuestionState = "open"
    answer: str | None = None
    answered_by: str = ""
    ended_at: int | None = None

    @property
    def is_approval(self) -> bool:
        """Whether the answer allows or denies something."""
        return self.kind != "decision"

    @property
    def effective_answer(self) -> str | None:
        """The answer that counts: a person's, or the default of a question that expired."""
        return self.default if self.state == "expired" else self.answer


class QuestionRows(Protocol):
    """The questions in the ledger. Ended ones are kept as long as messages are."""

    async def question_open(self, question: Question) -> bool:
        """Persist a new question. Returns False if its id is taken."""
        ...

    async def question_end(self, question: Question) -> bool:
        """Persist the end of an open question. Returns False if it has ended already, or does not exist."""
        ...

    async def question_act(self, question_id: str) -> bool:
        """Note that what an answer allowed begins now. Returns True once; after that it must not begin again."""
        ...

    async def question_acted(self, question_id: str) -> bool:
        """Return whether what the answer allowed has begun."""
        ...

    async def question(self, question_id: str) -> Question | None: ...

    async def questions(
        self, *, is_open: bool | None = None, run_id: str | None = None, prefix: str = "", limit: int = 10_000
    ) -> list[Question]:
        """Return the questions that fit, oldest first. ``prefix`` is the beginning of their ids.

        If there are more than ``limit``, they are the newest.
        """
        ...
