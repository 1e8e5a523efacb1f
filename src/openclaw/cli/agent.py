"""``openclaw agent``: one turn of the agent, with the reply optionally delivered to a channel."""

from __future__ import annotations

import sys

from openclaw.cli import service
from openclaw.cli.args import Action, add_json
from openclaw.cli.client import Client, new_id
from openclaw.cli.errors import UserError
from openclaw.cli.message import check_agent
from openclaw.cli.stream import run_turn
from openclaw.cli.terminal import note, print_json
from openclaw.cli.turn import reply_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

CONNECT_TIMEOUT_MS = 10_000


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--message", required=True, help="what to say to the agent")
    parser.add_argument("-t", "--to", metavar="NUMBER", help="recipient whose session is used")
    parser.add_argument("--session-id", metavar="ID", help="an existing session")
    parser.add_argument("--agent", metavar="ID", help="an agent; its main session is used")
    parser.add_argument("--thinking", metavar="LEVEL", help="off, minimal, low, medium or high, for this turn")
    parser.add_argument("--verbose", choices=("on", "off"), help="keep this verbosity for the session")
    parser.add_argument("--deliver", action="store_true", help="send the reply to the session's channel")
    parser.add_argument("--channel", help="channel to deliver to")
    parser.add_argument("--reply-to", metavar="TO", help="other recipient of the delivery")
    parser.add_argument("--reply-channel", metavar="CHANNEL", help="other channel of the delivery")
    parser.add_argument("--reply-account", metavar="ID", help="other account of the delivery")
    parser.add_argument("--timeout", metavar="S", type=int, default=600, help="seconds for the run (600, 0 = no limit)")
    add_json(parser)
    group = parser.add_argument_group("gateway")
    group.add_argument("--url", help="Gateway address (needs --token or --password)")
    group.add_argument("--token", help="Gateway token")
    group.add_argument("--password", help="Gateway password")


def run(args: argparse.Namespace) -> int:
    if not (args.to or args.session_id or args.agent):
        raise UserError("Pass --to <E.164>, --session-id, or --agent to choose a session")
    if args.timeout < 0:
        raise UserError("--timeout must be a number of seconds, 0 for no limit")
    seconds, args.timeout = args.timeout, CONNECT_TIMEOUT_MS
    client = service.connect(args)
    params: dict[str, Any] = {"message": args.message, "idempotencyKey": new_id(), "timeout": seconds}
    optional = {
        "to": args.to,
        "sessionId": args.session_id,
        "agentId": args.agent,
        "thinking": args.thinking,
        "channel": args.channel,
        "replyTo": args.reply_to,
        "replyChannel": args.reply_channel,
        "replyAccountId": args.reply_account,
    }
    params |= {key: value for key, value in optional.items() if value}
    params["deliver"] = args.deliver
    if args.agent:
        check_agent(client, args.agent)
    if args.verbose and (key := _session_key(client, args)):
        client.call("sessions.patch", {"key": key, "verboseLevel": args.verbose})
    turn = run_turn(client, "agent", params, quiet=True, timeout_s=seconds)
    if args.json:
        print_json(turn.payload)
        return 0
    texts = reply_texts(turn.payload) or ([turn.final_text] if turn.final_text else [])
    if texts:
        sys.stdout.write("\n".join(texts) + "\n")
    else:
        note(str((turn.payload or {}).get("summary") or "No reply from agent."))
    return 0


def _session_key(client: Client, args: argparse.Namespace) -> str | None:
    if args.session_id:
        return str(client.call("sessions.resolve", {"sessionId": args.session_id})["key"])
    return f"agent:{args.agent}:main" if args.agent else None


ACTION = Action(
    "Run one agent turn and print the reply",
    run,
    build,
    example='openclaw agent --agent main --message "What did we decide yesterday?"',
)
