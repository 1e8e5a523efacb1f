"""What counts as an answer, who may give it, and how a question reads as text."""

from __future__ import annotations

import re
from collections.abc import Collection, Set

from openclaw.rights import Right
from openclaw.storage.questions import Question, QuestionOption
from openclaw.text import shortened

APPROVAL_OPTIONS = (
    QuestionOption("allow-once", "Allow once"),
    QuestionOption("allow-always", "Allow always"),
    QuestionOption("deny", "Deny"),
)
LONGEST_ANSWER = 4_000
_YES = frozenset({"y", "yes", "allow", "ok", "approve", "once", "allowonce", "ja", "sí", "si", "oui"})
_ALWAYS = frozenset({"a", "always", "allowalways"})
_NO = frozenset({"n", "no", "deny", "reject", "block", "nein", "non"})
_NUMBER = re.compile(r"\d{1,2}", re.ASCII)


class InvalidAnswer(ValueError):
    """The text is no answer to the question. The message says what is."""


def approval_options(*, once_only: bool) -> tuple[QuestionOption, ...]:
    return tuple(option for option in APPROVAL_OPTIONS if not (once_only and option.value == "allow-always"))


def option_of(question: Question, text: str) -> str | None:
    """Return the value of the option that a text names: by value, label or number, or as a plain yes or no."""
    text = text.strip()
    folded = text.casefold()
    for option in question.options:
        if folded in (option.value.casefold(), option.label.casefold()):
            return option.value
    if _NUMBER.fullmatch(text) and 1 <= int(text) <= len(question.options):
        return question.options[int(text) - 1].value
    if not question.is_approval:
        return None
    for words, value in (_YES, "allow-once"), (_ALWAYS, "allow-always"), (_NO, "deny"):
        if folded.replace("-", "").rstrip(".!") in words:
            return value
    return None


def check_answer(question: Question, text: str) -> str:
    """Return the answer that a text gives. Raises ``InvalidAnswer``."""
    if (value := option_of(question, text)) is not None:
        return value
    # An approval that may not be remembered counts once, as it always has.
    if question.is_approval and text == "allow-always":
        return text
    if not question.free_text or not text.strip():
        raise InvalidAnswer(f"answer with {choices_text(question)}")
    if len(text) > LONGEST_ANSWER:
        raise InvalidAnswer(f"the answer is too long ({len(text)} characters, at most {LONGEST_ANSWER})")
    return text.strip()


def answer_in_chat(question: Question, text: str, *, quotes_it: bool = False) -> str | None:
    """Return the answer that a message of the chat gives, or None if the message is not an answer.

    A text that names an option answers. Any other text answers only if it replies to the question, or if the question
    has no options and asks for a text.
    """
    if (value := option_of(question, text)) is not None:
        return value
    if question.free_text and text.strip() and len(text) <= LONGEST_ANSWER and (quotes_it or not question.options):
        return text.strip()
    return None


def may_answer(question: Question, rights: Set[Right], sender_ids: Collection[str] = ()) -> bool:
    """Whether a person or a client with these rights may answer. A name never grants it; an id does."""
    if "approvals" in rights:
        return True
    if question.answerers != "sender":
        return False
    return question.sender in sender_ids if question.sender else not sender_ids and "write" in rights


def choices_text(question: Question) -> str:
    """Name the possible answers."""
    values = [option.value for option in question.options]
    if question.free_text:
        values.append("a text")
    return " or ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def numbered_options(question: Question) -> list[str]:
    """Return a line for each option, with the number that chooses it."""
    return [f"{number}. {option.label}" for number, option in enumerate(question.options, 1)]


def one_line(question: Question, limit: int = 120) -> str:
    """Name a question in a list."""
    subject = str(question.details.get("command") or question.text)
    return shortened(" ".join(subject.split()), limit)
