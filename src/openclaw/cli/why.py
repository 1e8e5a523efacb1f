"""``openclaw why``: what became of a message, and why. It exits 1 when no message has that name."""

from __future__ import annotations

from openclaw.cli.command import Flag, query
from openclaw.cli.terminal import paint
from openclaw.printable import printable
from openclaw.text import shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

COLOURS = {"answered": "green", "silent": "green", "failed": "red", "expired": "red"}


def _show(found: dict[str, Any], args: argparse.Namespace) -> list[str]:
    if found.get("kind") == "session":
        return _session(found)
    if found.get("kind") == "turnedAway":
        names = dict.fromkeys(f"{note['messageId']} on {note['channel']}" for note in found["turnedAway"])
        return [f"Message {printable(', '.join(names))}: {paint('not taken in', 'yellow')}", *_sentences(found)]
    lines = _message(found)
    if answering := found.get("answeredBy"):
        lines += ["", "The run that answered it:", "", *_message(answering)]
    return lines


def _message(found: dict[str, Any]) -> list[str]:
    message = found.get("message") or {}
    state = str(message.get("state"))
    head = f"Message {message.get('id')} (run {printable(str(message.get('runId')))}): "
    if message.get("id") is None:  # It is held, and was given neither a number nor a run yet.
        head = f"Message {printable(', '.join(map(str, message.get('messageIds') or ())))}: "
    lines = [head + paint(state, COLOURS.get(state, "yellow"))]
    if text := shortened(printable(str(message.get("text") or "")), 100):
        lines.append(paint(f"“{text}”", "dim"))
    return [*lines, *_sentences(found)]


def _session(found: dict[str, Any]) -> list[str]:
    key, session_id = printable(str(found.get("sessionKey"))), printable(str(found.get("sessionId")))
    lines = [f"Session {key} (id {session_id}), its last messages:"]
    messages = found.get("messages") or []
    if not messages:
        return [*lines, *_sentences(found)]
    for message, line in zip(messages, found.get("story") or [], strict=False):
        lines.append(f"  {message.get('id'):>4}  {printable(str(line))}")
    return [*lines, "", f"The whole story of one: openclaw why {messages[-1].get('id')}"]


def _sentences(found: dict[str, Any]) -> list[str]:
    return [f"  - {printable(' '.join(str(sentence).split()))}" for sentence in found.get("story") or []]


COMMANDS = {
    "why": query(
        "Tell what became of a message and why",
        "messages.why",
        (
            Flag(
                "ref MESSAGE|RUN|SESSION",
                "number of a message, run id (its beginning will do), channel's message id, session key, id or label "
                "(default: main, the last messages of the main session)",
                param="ref",
                nargs="?",
                default="main",
            ),
        ),
        show=_show,
        painted=True,
        about=(
            "It takes the number of a message, a run id or its beginning, a session (its last messages) or a "
            "label. It exits with 1 when nothing goes by that name."
        ),
        example="openclaw why 3f2c81",
    )
}
