"""``openclaw pairing``: people who wrote to the agent on a channel and wait to be let in."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.errors import EXIT_USAGE, UserError
from openclaw.cli.terminal import note, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def _build_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="CHANNEL", nargs="?", help="only this channel, e.g. signal")
    parser.add_argument("--channel", metavar="CHANNEL", help="the same")
    add_json(parser)
    add_gateway_options(parser)


def _build_approve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", metavar="CODE", nargs="+", help="the code, or the channel and the code")
    parser.add_argument("--channel", metavar="CHANNEL", help="the channel the code was given on")
    parser.add_argument("--notify", action="store_true", help="tell the person on that channel")
    add_json(parser)
    add_gateway_options(parser)


def list_requests(args: argparse.Namespace) -> int:
    channel = args.channel or args.name
    answer = clients.from_args(args).call("pairing.list", {"channel": channel} if channel else {})
    if args.json:
        print_json(answer)
        return 0
    requests: list[dict[str, Any]] = answer.get("requests") or []
    where = f" on {channel}" if channel else ""
    lines = [_line(request) for request in requests] or [f"Nobody waits{where}."]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _line(request: dict[str, Any]) -> str:
    meta: dict[str, str] = request.get("meta") or {}
    name = meta.get("name") or meta.get("username")
    who = f"{request['id']} ({name})" if name else str(request["id"])
    return printable(f"{request['code']}  {request['channel']}  {who}  since {request['createdAt']}")


def approve(args: argparse.Namespace) -> int:
    channel, code = _channel_and_code(args)
    params: dict[str, Any] = {"code": code, "notify": args.notify}
    answer = clients.from_args(args).call("pairing.approve", {**params, "channel": channel} if channel else params)
    if args.json:
        print_json(answer)
        return 0
    sys.stdout.write(printable(f"{answer['id']} may now write on {answer['channel']}.") + "\n")
    if answer.get("notified") is False:
        note(printable(f"The notice could not be sent: {answer.get('notifyError')}"))
    return 0


def _channel_and_code(args: argparse.Namespace) -> tuple[str | None, str]:
    words: list[str] = args.words
    if len(words) > 2 or (len(words) == 2 and args.channel):
        raise UserError("pairing approve takes a code, or a channel and a code: signal ABCD2345", EXIT_USAGE)
    return (words[0] if len(words) == 2 else args.channel), words[-1]


ACTIONS = {
    "list": Action(
        "List people who wait to be let in", list_requests, _build_list, example="openclaw pairing list signal"
    ),
    "approve": Action(
        "Let a person in by the code they were given",
        approve,
        _build_approve,
        example="openclaw pairing approve signal ABCD2345",
    ),
}
DEFAULT = "list"
