"""``openclaw why``: what became of a message, and why; exit 1 when nothing goes by that name."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.terminal import paint, print_json, printable, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

COLOURS = {"answered": "green", "silent": "green", "failed": "red", "expired": "red"}


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ref",
        metavar="MESSAGE|RUN|SESSION",
        help="number of a message, a run id (its beginning will do), a session key, session id or label",
    )
    add_json(parser)
    add_gateway_options(parser)


def run(args: argparse.Namespace) -> int:
    found = clients.from_args(args).call("messages.why", {"ref": args.ref})
    if args.json:
        print_json(found)
    else:
        sys.stdout.write("\n".join(_session(found) if found.get("kind") == "session" else _message(found)) + "\n")
    return 0


def _message(found: dict[str, Any]) -> list[str]:
    lines = _told(found)
    if answering := found.get("answeredBy"):
        lines += ["", "The run that answered it:", "", *_told(answering)]
    return lines


def _told(found: dict[str, Any]) -> list[str]:
    message = found.get("message") or {}
    state = str(message.get("state"))
    head = f"Message {message.get('id')} (run {printable(str(message.get('runId')))}): "
    lines = [head + paint(state, COLOURS.get(state, "yellow"))]
    if text := shorten(printable(str(message.get("text") or "")), 100):
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
    return [f"  - {printable(str(sentence))}" for sentence in found.get("story") or []]


ACTION = Action("Tell what became of a message and why", run, build, example="openclaw why 3f2c81")
