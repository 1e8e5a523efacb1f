"""``openclaw why``: what became of a message, and why. ``openclaw context``: what the model was sent, and when.

``why`` exits with 1 when no message has that name.
"""

from __future__ import annotations

import sys

from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, Action, Flag, UserError, decoded, query
from openclaw.cli.session_lookup import resolve_key
from openclaw.cli.terminal import paint, print_json, print_line
from openclaw.text import printable_json, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.protocol.context import ContextDifference, ContextReport, PhraseSightings
    from openclaw.protocol.messages import MessageView, WhyReport

COLOURS = {"answered": "green", "silent": "green", "failed": "red", "expired": "red"}


def _show(payload: dict[str, Any], args: argparse.Namespace) -> list[str]:
    from openclaw.protocol.messages import WhyReport

    report = decoded(payload, WhyReport)
    if report.kind == "session":
        return _session(report)
    if report.message is None:
        names = dict.fromkeys(f"{note.message_id} on {note.channel}" for note in report.turned_away)
        return [f"Message {', '.join(names)}: {paint('not accepted', 'yellow')}", *_sentences(report.story)]
    lines = _message(report.message, report.story)
    if answering := report.answered_by:
        lines += ["", "The run that answered it:", "", *_message(answering.message, answering.story)]
    return lines


def _message(message: MessageView, story: list[str]) -> list[str]:
    head = f"Message {message.id} (run {message.run_id}): "
    if message.id is None:  # It is held, and has neither a number nor a run yet.
        head = f"Message {', '.join(message.message_ids)}: "
    lines = [head + paint(message.state, COLOURS.get(message.state, "yellow"))]
    if text := shortened(message.text, 100):
        lines.append(paint(f"“{text}”", "dim"))
    return [*lines, *_sentences(story)]


def _session(report: WhyReport) -> list[str]:
    lines = [f"Session {report.session_key} (id {report.session_id}), its last messages:"]
    messages = report.messages if isinstance(report.messages, list) else []
    if not messages:
        return [*lines, *_sentences(report.story)]
    for message, line in zip(messages, report.story, strict=False):
        lines.append(f"  {message.id:>4}  {line}")
    return [*lines, "", f"The whole story of one: openclaw why {messages[-1].id}"]


def _sentences(story: list[str]) -> list[str]:
    return [f"  - {' '.join(sentence.split())}" for sentence in story]


def context(args: argparse.Namespace) -> int:
    client = from_args(args)
    key = resolve_key(client, args.session)
    if args.find:
        payload = client.call("context.find", {"key": key, "phrase": args.find})
    elif args.diff:
        named = {} if args.diff == ["-", "-"] else {"a": args.diff[0], "b": args.diff[1]}
        payload = client.call("context.diff", {"key": key, **named})
    else:
        options = {"runId": args.run_id, "call": args.call, "full": args.full or None, "wire": args.wire or None}
        params = {name: value for name, value in options.items() if value is not None}
        payload = client.call("context.get", {"key": key, **params})
    if args.json or (args.full and not args.wire):
        print_json(payload)
        return 0
    from openclaw.protocol.context import ContextDifference, ContextReport, PhraseSightings

    if args.find:
        lines = _sightings(decoded(payload, PhraseSightings), args.find)
    elif args.diff:
        lines = _changes(decoded(payload, ContextDifference))
    else:
        report = decoded(payload, ContextReport)
        if args.wire:
            if not isinstance(report.wire, str):
                missing = ", ".join(report.missing) or "what was noted of the model"
                raise UserError(
                    f"What run {report.run_id} was sent cannot be rebuilt to the byte: {missing} is not there."
                )
            sys.stdout.write(printable_json(report.wire))
            return 0
        lines = _request(report)
        if report.missing:
            lines.append(paint(f"Not complete any more, missing: {', '.join(report.missing)}", "yellow"))
    print_line("\n".join(lines))
    return 0


def _when(ms: int) -> str:
    from datetime import datetime

    return f"{datetime.fromtimestamp(ms / 1000):%Y-%m-%d %H:%M:%S}"


def _size(chars: int) -> str:
    return f"{chars:,} chars (~{-(-chars // 4):,} tok)"


def _request(report: ContextReport) -> list[str]:
    messages = report.messages
    lines = [
        f"Run {report.run_id}, model call {report.call} of {report.calls}, {_when(report.at)}",
        f"Model: {report.model} (thinking {report.thinking})",
        f"System prompt: {_size(report.system_prompt.chars)}",
        *(f"   {part.chars:>8,}  {part.title}" for part in report.system_prompt.parts),
        *(f"Cut: {cut.name}, {cut.kept:,} of {cut.of:,} chars" for cut in report.system_prompt.truncated),
        f"Tools: {_size(report.tools.chars)}: {', '.join(report.tools.names) or '(none)'}",
        f"Messages: {len(messages)}, {_size(sum(message.chars for message in messages))}",
    ]
    for message in messages:
        mark = "*" if message.changed else " "
        lines.append(f" {mark} {message.role:<9} {message.chars:>8,}  {message.preview}")
    if (facts := report.turn_facts).chars:
        where = "behind the newest user message" if facts.after else "not in this call, which ends with tool results"
        lines.append(f"Turn facts: {_size(facts.chars)}, {where}")
    if any(message.changed for message in messages):
        lines.append("* not as it stands in the transcript: a summary, or changed for this call")
    if report.compaction:
        lines.append(f"The older part was condensed into a summary (entry {report.compaction})")
    if report.pruned:
        lines.append(f"Old tool results pruned: {report.pruned}")
    if report.shortened:
        lines.append(f"Messages shortened or left out to fit the window: {report.shortened}")
    if since := report.since:
        lines += [f"Since run {since.run_id}:", *(f"  {line}" for line in since.changes or ["nothing changed"])]
    return lines


def _changes(report: ContextDifference) -> list[str]:
    sides = [f"{side.run_id} ({_when(side.at)}, {side.messages} messages)" for side in (report.a, report.b)]
    return [f"From {sides[0]} to {sides[1]}:", *(report.changes or ["Nothing changed."])]


def _sightings(report: PhraseSightings, phrase: str) -> list[str]:
    lines = [f"“{phrase}” in the last {report.runs} runs:"]
    for seen in report.sightings:
        where = ", ".join(seen.where[:3])
        why = f"; {seen.why}" if seen.why else ""
        verb = "came into view in" if seen.change == "entered" else "was gone from view in"
        run = f"run {seen.run_id}" + (f", call {seen.call} of {seen.calls}" if seen.calls > 1 else "")
        lines.append(f"  {_when(seen.at)}  {seen.change:<8} {verb} {run} ({where}{why})")
    if not report.sightings:
        lines.append("  never in the model's view")
    return [*lines, "It is in view now." if report.in_view_now else "It is not in view now."]


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
