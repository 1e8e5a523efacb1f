"""``openclaw why``: what became of a message, and why. ``openclaw context``: what the model was sent, and when.

``why`` exits with 1 when no message has that name.
"""

from __future__ import annotations

import sys

from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, Action, Flag, UserError, query
from openclaw.cli.session_lookup import resolve_key
from openclaw.cli.terminal import paint, print_json, print_line
from openclaw.text import printable_json, shortened

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
        return [f"Message {', '.join(names)}: {paint('not accepted', 'yellow')}", *_sentences(found)]
    lines = _message(found)
    if answering := found.get("answeredBy"):
        lines += ["", "The run that answered it:", "", *_message(answering)]
    return lines


def _message(found: dict[str, Any]) -> list[str]:
    message = found.get("message") or {}
    state = str(message.get("state"))
    head = f"Message {message.get('id')} (run {message.get('runId')!s}): "
    if message.get("id") is None:  # It is held, and was given neither a number nor a run yet.
        head = f"Message {', '.join(map(str, message.get('messageIds') or ()))}: "
    lines = [head + paint(state, COLOURS.get(state, "yellow"))]
    if text := shortened(str(message.get("text") or ""), 100):
        lines.append(paint(f"“{text}”", "dim"))
    return [*lines, *_sentences(found)]


def _session(found: dict[str, Any]) -> list[str]:
    key, session_id = str(found.get("sessionKey")), str(found.get("sessionId"))
    lines = [f"Session {key} (id {session_id}), its last messages:"]
    messages = found.get("messages") or []
    if not messages:
        return [*lines, *_sentences(found)]
    for message, line in zip(messages, found.get("story") or [], strict=False):
        lines.append(f"  {message.get('id'):>4}  {line!s}")
    return [*lines, "", f"The whole story of one: openclaw why {messages[-1].get('id')}"]


def _sentences(found: dict[str, Any]) -> list[str]:
    return [f"  - {' '.join(str(sentence).split())}" for sentence in found.get("story") or []]


def context(args: argparse.Namespace) -> int:
    client = from_args(args)
    key = resolve_key(client, args.session)
    if args.find:
        found = client.call("context.find", {"key": key, "phrase": args.find})
        lines = _sightings(found, args.find)
    elif args.diff:
        named = {} if args.diff == ["-", "-"] else {"a": args.diff[0], "b": args.diff[1]}
        found = client.call("context.diff", {"key": key, **named})
        lines = _changes(found)
    else:
        wanted = {"runId": args.run_id, "call": args.call, "full": args.full or None, "wire": args.wire or None}
        given = {name: value for name, value in wanted.items() if value is not None}
        found = client.call("context.get", {"key": key, **given})
        lines = _request(found)
        if args.wire and not args.json:
            if found["wire"] is None:
                missing = ", ".join(found["missing"]) or "what was noted of the model"
                raise UserError(
                    f"What run {found['runId']} was sent cannot be rebuilt to the byte: {missing} is not there."
                )
            sys.stdout.write(printable_json(found["wire"]))
            return 0
    if args.json or args.full:
        print_json(found)
        return 0
    if missing := found.get("missing"):
        lines.append(paint(f"Not complete any more, missing: {', '.join(missing)}", "yellow"))
    print_line("\n".join(lines))
    return 0


def _when(ms: int) -> str:
    from datetime import datetime

    return f"{datetime.fromtimestamp(ms / 1000):%Y-%m-%d %H:%M:%S}"


def _size(chars: int) -> str:
    return f"{chars:,} chars (~{-(-chars // 4):,} tok)"


def _request(found: dict[str, Any]) -> list[str]:
    messages = found["messages"]
    lines = [
        f"Run {found['runId']}, model call {found['call']} of {found['calls']}, {_when(found['at'])}",
        f"Model: {found['model']} (thinking {found['thinking']})",
        f"System prompt: {_size(found['systemPrompt']['chars'])}",
        *(f"   {part['chars']:>8,}  {part['title']}" for part in found["systemPrompt"]["parts"]),
        *(f"Cut: {cut['name']}, {cut['kept']:,} of {cut['of']:,} chars" for cut in found["systemPrompt"]["truncated"]),
        f"Tools: {_size(found['tools']['chars'])}: {', '.join(found['tools']['names']) or '(none)'}",
        f"Messages: {len(messages)}, {_size(sum(message['chars'] for message in messages))}",
    ]
    for message in messages:
        mark = "*" if message["changed"] else " "
        lines.append(f" {mark} {message['role']:<9} {message['chars']:>8,}  {message['preview']}")
    if (facts := (found.get("turnFacts") or {})).get("chars"):
        where = "behind the newest user message" if facts["after"] else "not in this call, which ends with tool results"
        lines.append(f"Turn facts: {_size(facts['chars'])}, {where}")
    if any(message["changed"] for message in messages):
        lines.append("* not as it stands in the transcript: a summary, or changed for this call")
    if found["compaction"]:
        lines.append(f"The older part was condensed into a summary (entry {found['compaction']})")
    if found["pruned"]:
        lines.append(f"Old tool results pruned: {found['pruned']}")
    if found["shortened"]:
        lines.append(f"Messages shortened or left out to fit the window: {found['shortened']}")
    if since := found.get("since"):
        lines += [f"Since run {since['runId']}:", *(f"  {line}" for line in since["changes"] or ["nothing changed"])]
    return lines


def _changes(found: dict[str, Any]) -> list[str]:
    sides = [f"{side['runId']} ({_when(side['at'])}, {side['messages']} messages)" for side in (found["a"], found["b"])]
    return [f"From {sides[0]} to {sides[1]}:", *(found["changes"] or ["Nothing changed."])]


def _sightings(found: dict[str, Any], phrase: str) -> list[str]:
    lines = [f"“{phrase}” in the last {found['runs']} runs:"]
    for seen in found["sightings"]:
        where = ", ".join(seen["where"][:3])
        why = f"; {seen['why']}" if seen["why"] else ""
        verb = "came into view in" if seen["change"] == "entered" else "was gone from view in"
        run = f"run {seen['runId']}" + (f", call {seen['call']} of {seen['calls']}" if seen["calls"] > 1 else "")
        lines.append(f"  {_when(seen['at'])}  {seen['change']:<8} {verb} {run} ({where}{why})")
    if not found["sightings"]:
        lines.append("  never in the model's view")
    return [*lines, "It is in view now." if found["inViewNow"] else "It is not in view now."]


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
        about=(
            "It takes the number of a message, a run id or its beginning, a session (its last messages) or a "
            "label. It exits with 1 when nothing goes by that name."
        ),
        example="openclaw why 3f2c81",
    ),
    "context": Action(
        "Show what the model was sent in a past run, and why it knew or forgot something",
        context,
        (
            Flag("--session NAME", "session key, id or label (default: main)", default="main"),
            Flag("--run RUN", "a past run by id (its beginning will do); default: the last", dest="run_id"),
            Flag("--call N", "which model call of the run; default: the last", type=int),
            Flag("--full", "print the request itself, as JSON"),
            Flag("--wire", "print exactly what was sent to the provider, byte for byte, and nothing else"),
            Flag("--diff A B", "what changed between two runs; `- -`: the last two"),
            Flag(
                "--search --find PHRASE", "when this phrase came into the model's view, and when it left", dest="find"
            ),
            *CLIENT,
        ),
        about=(
            "Without options it shows the last run of the main session: the parts of the prompt with their sizes, "
            "and what changed since the run before."
        ),
        example='openclaw context --search "the blue door"',
    ),
}
