"""``openclaw agents``: list, add, delete and bind the agents of a Gateway."""

from __future__ import annotations

import sys

from openclaw.cli.client import from_args
from openclaw.cli.command import GATEWAY, JSON, Action, Flag, Group, UserError, query
from openclaw.cli.terminal import note, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any


def _rows(listed: dict[str, Any], args: argparse.Namespace) -> list[dict[str, Any]]:
    default = listed.get("defaultId")
    return [{**agent, "isDefault": agent.get("id") == default} for agent in listed.get("agents") or []]


def _show_list(rows: list[dict[str, Any]], args: argparse.Namespace) -> Iterator[str]:
    for row in rows:
        name = f" ({row['name']})" if row.get("name") else ""
        yield f"{row.get('id')}{name}{'  default' if row['isDefault'] else ''}"
        if args.bindings:
            yield from (f"  gets {route}" for route in row.get("routes") or [])


def add(args: argparse.Namespace) -> int:
    client = from_args(args)
    wanted: dict[str, Any] = {"name": args.name}
    for name in ("workspace", "model", "emoji"):
        if getattr(args, name):
            wanted[name] = getattr(args, name)
    made = client.call("agents.create", wanted)
    bound = [client.call("agents.bind", _binding(made["agentId"], text)) for text in args.bind]
    if args.json:
        print_json({**made, "bindings": [one["binding"] for one in bound]})
    else:
        note(printable(f"Agent {made['agentId']} added; its workspace is {made['workspace']}."))
    return 0


def delete(args: argparse.Namespace) -> int:
    if not args.force:
        if not sys.stdin.isatty():
            raise UserError("Deleting an agent needs --force when nobody can be asked.")
        answer = input(f"Delete agent {args.id}? Its files go to the trash folder. [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            return 1
    gone = from_args(args).call("agents.delete", {"agentId": args.id, "deleteFiles": not args.keep_files})
    if args.json:
        print_json(gone)
    else:
        note(printable(f"Agent {gone['agentId']} deleted ({gone['removedBindings']} bindings removed)."))
    return 0


def bind(args: argparse.Namespace) -> int:
    params = _binding(args.id, args.channel)
    if args.peer:
        kind, _, peer = args.peer.partition(":")
        if not peer:
            raise UserError("--peer is KIND:ID, for example group:12345 or direct:+15550001.")
        params |= {"peerKind": kind, "peerId": peer}
    done = from_args(args).call("agents.bind", params)
    if args.json:
        print_json(done)
    else:
        note(printable(f"{args.channel} {'now goes' if done['added'] else 'went already'} to agent {done['agentId']}."))
    return 0


def _binding(agent_id: str, text: str) -> dict[str, Any]:
    channel, _, account = text.partition(":")
    return {"agentId": agent_id, "channel": channel, **({"accountId": account} if account else {})}


COMMANDS = {
    "agents": Group(
        {
            "list": query(
                "List the configured agents",
                "agents.list",
                (Flag("--bindings", action="store_true", help="also show which messages each agent gets"),),
                params=lambda args: {"details": True},
                shape=_rows,
                show=_show_list,
                example="openclaw agents list --json",
            ),
            "add": Action(
                "Add an agent",
                add,
                (
                    Flag("name", metavar="NAME", help="the agent's name; its id is made from it"),
                    Flag(
                        "--workspace",
                        metavar="DIR",
                        help="its folder (default: workspace-<id> in the state directory)",
                    ),
                    Flag("--model", metavar="MODEL", help="its model, in place of the default"),
                    Flag("--emoji", metavar="EMOJI"),
                    Flag("--bind", metavar="CHANNEL[:ACCOUNT]", action="append", default=[], help="messages it gets"),
                    JSON,
                    *GATEWAY,
                ),
                example="openclaw agents add Work --bind signal:work",
            ),
            "delete": Action(
                "Delete an agent",
                delete,
                (
                    Flag("id", metavar="ID"),
                    Flag("--force", action="store_true", help="do not ask"),
                    Flag("--keep-files", action="store_true", help="leave its workspace and sessions where they are"),
                    JSON,
                    *GATEWAY,
                ),
                example="openclaw agents delete work",
            ),
            "bind": Action(
                "Send messages of a channel to an agent",
                bind,
                (
                    Flag("id", metavar="ID", help="the agent"),
                    Flag(
                        "channel",
                        metavar="CHANNEL[:ACCOUNT]",
                        help="the channel, and the account where there are several",
                    ),
                    Flag("--peer", metavar="KIND:ID", help="only one chat, e.g. group:12345 or direct:+15550001"),
                    JSON,
                    *GATEWAY,
                ),
                example="openclaw agents bind work signal",
            ),
        },
        default="list",
    )
}
