"""``openclaw chat``: talk with the agent here. A terminal gets a prompt and Markdown, a pipe gets plain text."""

from __future__ import annotations

import sys

from openclaw.cli import service
from openclaw.cli.args import Action, add_gateway_options
from openclaw.cli.conversation import Conversation
from openclaw.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, UserError
from openclaw.cli.stream import Printer, close_turn
from openclaw.cli.terminal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

LEAVE = ("/exit", "/quit")


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="KEY", help="session key, id or label (default: the main session)")
    parser.add_argument("--agent", metavar="ID", help="agent to talk with (default: the default agent)")
    parser.add_argument("--history", metavar="N", type=int, default=10, help="messages to show on opening (10)")
    add_gateway_options(parser)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.history <= 1000:
        raise UserError("--history must be between 0 and 1000")
    conversation = Conversation(service.connect(args), args.session, args.agent)
    return open_chat(conversation, args.history)


def open_chat(conversation: Conversation, history: int) -> int:
    if sys.stdin.isatty() and sys.stdout.isatty():
        from openclaw.cli.screen import Screen

        return Screen(conversation, history).run()
    return _lines(conversation)


def _lines(conversation: Conversation) -> int:
    """One message per line of input, each answered before the next is read."""
    code = 0
    for line in sys.stdin:
        text = line.strip()
        if text in LEAVE:
            break
        if text and not _plain_turn(conversation, text):
            code = EXIT_FAILURE
    return code


def _plain_turn(conversation: Conversation, text: str) -> bool:
    printer = Printer()
    turn, updates = conversation.send(text)
    try:
        for kind, shown in updates:
            printer.show(kind, shown)
        close_turn(turn, printer)
    except KeyboardInterrupt:
        printer.end_line()
        conversation.abort()
        raise SystemExit(EXIT_INTERRUPTED) from None
    except UserError as error:
        printer.end_line()
        note(str(error))
        return False
    return True


ACTION = Action("Talk with the agent in this terminal", run, build, example="openclaw chat --session main")
