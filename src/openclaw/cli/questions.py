"""``openclaw questions``: the open questions of the agents, and how to answer one."""

from __future__ import annotations

from openclaw.cli.command import Flag, Group, query
from openclaw.text import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

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
