"""``openclaw message send``: one message to a session of the agent, or straight out to a channel."""

from __future__ import annotations

import sys

from openclaw.cli import service
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.client import Client, GatewayError, new_id
from openclaw.cli.context_files import with_context
from openclaw.cli.errors import EXIT_USAGE, UserError
from openclaw.cli.stream import run_turn
from openclaw.cli.terminal import print_json
from openclaw.cli.turn import reply_texts
from openclaw.paths import normalize_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

RUN_TIMEOUT_S = 600


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the message; '-' or nothing reads standard input")
    parser.add_argument("-m", "--message", help="the message, as a flag")
    parser.add_argument("--session", metavar="ID", help="session key, session id or label (default: the main session)")
    parser.add_argument("--agent", metavar="ID", help="agent to speak to (default: the default agent)")
    parser.add_argument("--context", metavar="FILE", action="append", default=[], help="add a file; may be repeated")
    parser.add_argument("--thinking", metavar="LEVEL", help="off, minimal, low, medium or high, for this turn")
    parser.add_argument("--run-timeout", metavar="S", type=int, default=RUN_TIMEOUT_S, help="seconds for the run (600)")
    parser.add_argument("--no-wait", action="store_true", help="print the run's id and leave; the run goes on")
    add_json(parser)
    channel = parser.add_argument_group("straight to a channel (no agent)")
    channel.add_argument("-t", "--target", metavar="TO", help="recipient on the channel: number, chat id, @name")
    channel.add_argument("--channel", help="channel to send with")
    channel.add_argument("--account", help="account of the channel")
    channel.add_argument("--media", metavar="URL", help="media to attach")
    channel.add_argument("--gif-playback", action="store_true", help="play a video as a GIF")
    channel.add_argument("--dry-run", action="store_true", help="print what would be sent")
    add_gateway_options(parser)


def send(args: argparse.Namespace) -> int:
    if args.text is not None and args.message is not None and args.text != "-":
        raise UserError("Give the text once: either as TEXT or with --message.", EXIT_USAGE)
    if args.target:
        return _send_to_channel(args)
    text, attachments = with_context(_text(args), args.context)
    client = service.connect(args)
    params: dict[str, Any] = {"message": text, "deliver": False, "idempotencyKey": new_id()}
    params |= session_params(client, args.session, args.agent)
    if attachments:
        params["attachments"] = attachments
    if args.thinking:
        params["thinking"] = args.thinking
    if args.run_timeout != RUN_TIMEOUT_S:
        params["timeout"] = args.run_timeout
    if args.no_wait:
        return _accepted(client, params)
    turn = run_turn(client, "agent", params, quiet=args.json, timeout_s=args.run_timeout)
    if args.json:
        payload = turn.payload or {}
        reply = "\n\n".join(reply_texts(payload)) or turn.final_text or ""
        print_json(
            {
                "runId": turn.run_id,
                "status": payload.get("status", "ok"),
                "sessionKey": turn.session_key or params.get("sessionKey"),
                "reply": reply,
                "result": payload.get("result"),
            }
        )
    return 0


def _text(args: argparse.Namespace) -> str:
    given = args.message if args.message is not None else args.text
    if given in (None, "-") and not sys.stdin.isatty():
        given = sys.stdin.read().rstrip("\n")
    if given in (None, "-") or not given.strip():
        raise UserError('Message text is required, for example: openclaw message send "Hello"')
    return given


def session_params(client: Client, session: str | None, agent: str | None) -> dict[str, Any]:
    """Where the message goes; a named session must exist, so that a typing error never starts a new one."""
    params: dict[str, Any] = {}
    if agent:
        check_agent(client, agent)
        params["agentId"] = agent
    if session and session != "main":
        params["sessionKey"] = find_session(client, session, agent)
    elif not agent:
        params["sessionKey"] = "main"
    return params


def check_agent(client: Client, agent: str) -> None:
    """A typing error in an agent's id must not begin the life of a new one."""
    known = {str(row.get("id")) for row in client.call("agents.list").get("agents") or []}
    if normalize_agent_id(agent) not in known:
        raise UserError(f'Unknown agent id "{agent}". Use "openclaw agents list" to see configured agents.')


def find_session(client: Client, name: str, agent: str | None = None) -> str:
    """The key of the session with this key, id or label."""
    scope = {"agentId": agent} if agent else {}
    for field in ("key", "sessionId", "label"):
        try:
            return str(client.call("sessions.resolve", {field: name, **scope})["key"])
        except GatewayError as error:
            if not error.message.startswith(("No session found", "invalid sessions.resolve")):
                raise
    raise UserError(f"No session found: {name}")


def _accepted(client: Client, params: dict[str, Any]) -> int:
    from openclaw.cli.turn import Turn

    turn = Turn(params["idempotencyKey"])
    for frame in client.stream("agent", params):
        turn.digest(frame)
        if turn.accepted is not None:
            print_json(turn.accepted)
            return 0
    raise UserError("The Gateway closed the connection without accepting the message.")


def _send_to_channel(args: argparse.Namespace) -> int:
    text = args.message if args.message is not None else args.text
    if not (text and text.strip()) and not args.media:
        raise UserError("A message to a channel needs a text or --media.")
    params: dict[str, Any] = {"to": args.target, "message": text or "", "idempotencyKey": new_id()}
    optional = {"channel": args.channel, "accountId": args.account, "mediaUrl": args.media, "sessionKey": args.session}
    params |= {key: value for key, value in optional.items() if value}
    if args.gif_playback:
        params["gifPlayback"] = True
    if args.dry_run:
        print_json({"dryRun": True, "method": "send", "params": params})
        return 0
    payload = service.connect(args).call("send", params)
    if args.json:
        print_json(payload)
    else:
        sys.stdout.write(f"Sent through {payload.get('channel', 'the channel')}: {payload.get('messageId', '')}\n")
    return 0


ACTIONS = {
    "send": Action(
        "Send one message to the agent (or, with --target, to a channel) and print the reply",
        send,
        build,
        example='openclaw message send "Summarise this" --context notes.md',
    ),
}
