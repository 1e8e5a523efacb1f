"""``openclaw questions``: the open questions of the agents, and how to answer one, also within a turn."""

from __future__ import annotations

import sys

from openclaw.cli.command import EXIT_QUESTION, Flag, Group, UserError, query
from openclaw.cli.terminal import note
from openclaw.text import duration, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any, Literal

    from openclaw.cli.client import GatewayClient

    Answers = Literal["ask", "yes", "no"]
    """How the questions of a run are answered: by a person, or always allowed or denied."""
SLUG = 8


def _show_open(payload: dict[str, Any], _: argparse.Namespace) -> Iterator[str]:
    if not payload["questions"]:
        yield "No question is open."
        return
    for question in payload["questions"]:
        left = duration(max(0, question["expiresAtMs"] - payload["ts"]))
        place = f" in {question['sessionKey']}" if question.get("sessionKey") else ""
        yield f"{question['id'][:SLUG]}{place}, {left} left"
        yield from (f"  {line}" for line in question["text"].splitlines())
        values = ", ".join(option["value"] for option in question["options"])
        text = " or a text" if question["freeText"] else ""
        yield f"  openclaw questions answer {question['id'][:SLUG]} {values or 'TEXT'}{text if values else ''}"


def question_lines(question: dict[str, Any]) -> list[str]:
    """The whole question with its options, for a terminal."""
    options = [f"  {number}. {option['label']}" for number, option in enumerate(question["options"], 1)]
    return [*printable(question["text"]).splitlines(), *map(printable, options)]


def hint(question: dict[str, Any]) -> str:
    """Say what to type as an answer."""
    numbers = [str(number) for number in range(1, len(question["options"]) + 1)]
    words = []
    if question["kind"] != "decision":
        always = any(option["value"] == "allow-always" for option in question["options"])
        words = ["y", *(["a"] if always else []), "n"]
    return "/".join([*words, *numbers, *(["your text"] if question["freeText"] else [])])


def answer_question(client: GatewayClient, id: str, answers: Answers) -> None:
    """Answer a question of the run that a command follows.

    Raises ``UserError`` with ``EXIT_QUESTION`` if nobody can be asked here. The question then stays open.
    """
    listed = client.call("question.list", {"id": id})["questions"]
    if not listed or listed[0]["state"] != "open":
        return
    question = listed[0]
    for line in question_lines(question):
        note(line)
    approval = question["kind"] != "decision"
    if answers != "ask" and approval:
        _answer(client, id, "allow-once" if answers == "yes" else "deny")
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        choices = "|".join(option["value"] for option in question["options"]) or "TEXT"
        command = f"openclaw questions answer {id[:SLUG]} {choices}"
        raise UserError(f"The agent waits for an answer. Answer with: {command}", EXIT_QUESTION)
    while True:
        sys.stderr.write(f"[{hint(question)}] ")
        sys.stderr.flush()
        text = sys.stdin.readline()
        if not text:
            raise UserError("The question was not answered and stays open.", EXIT_QUESTION)
        if text.strip() and _answer(client, id, text.strip()):
            return


def _answer(client: GatewayClient, id: str, text: str) -> bool:
    """Answer, and return whether the question has ended. Another person may have been first."""
    try:
        client.call("question.answer", {"id": id, "answer": text})
    except UserError as problem:
        note(str(problem))
        return "no longer open" in str(problem)
    return True


def _show_answered(payload: dict[str, Any], _: argparse.Namespace) -> list[str]:
    question = payload["question"]
    return [f"Answered {question['id'][:SLUG]}: {question['answer']}"]


_ACTIONS = {
    "list": query(
        "Show the questions that wait for an answer",
        "question.list",
        (Flag("--session KEY", "of this session only", dest="session_key", param="sessionKey"),),
        show=_show_open,
        example="openclaw questions list",
    ),
    "answer": query(
        "Answer a question",
        "question.answer",
        (
            Flag("id ID", "the id, or its beginning", param="id"),
            Flag("answer ANSWER", "an option's value, label or number, or a text", param="answer"),
        ),
        show=_show_answered,
        example="openclaw questions answer 181058aa allow-once",
    ),
}
COMMANDS = {"questions": Group(_ACTIONS, default="list")}
