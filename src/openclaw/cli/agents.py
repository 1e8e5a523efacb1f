"""``openclaw agents``: who lives on this Gateway."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.errors import UserError
from openclaw.cli.terminal import note, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def build(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_gateway_options(parser)


def _build_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bindings", action="store_true", help="also show which messages each agent gets")
    build(parser)


def list_agents(args: argparse.Namespace) -> int:
    listed = clients.from_args(args).call("agents.list", {"details": True})
    default = listed.get("defaultId")
    rows = [{**agent, "isDefault": agent.get("id") == default} for agent in listed.get("agents") or []]
    if args.json:
        print_json(rows)
        return 0
    for row in rows:
        name = f" ({row['name']})" if row.get("name") else ""
        mark = "  default" if row["isDefault"] else ""
        sys.stdout.write(printable(f"{row.get('id')}{name}{mark}") + "\n")
        for route in (row.get("routes") or []) if args.bindings else []:
            sys.stdout.write(printable(f"  gets {route}") + "\n")
    return 0


def _build_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the agent's name; its id is made from it")
    parser.add_argument(
        "--workspace", metavar="DIR", help="its folder (default: workspace-<id> in the state directory)"
    )
    parser.add_argument("--model", metavar="MODEL", help="its model, in place of the default")
    parser.add_argument("--emoji", metavar="EMOJI")
    parser.add_argument("--bind", metavar="CHANNEL[:ACCOUNT]", action="append", default=[], help="messages it gets")
    build(parser)


def add(args: argparse.Namespace) -> int:
    client = clients.from_args(args)
    wanted: dict[str, Any] = {"name": args.name}
    for name in ("workspace", "model", "emoji"):
        if getattr(args, name):
            wanted[name] = getattr(args, name)
    made = client.call("agents.create", wanted)
    bound = [client.call("agents.bind", _binding(made["agentId"], text)) for text in args.bind]
    if args.json:
        print_json({**made, "bindings": [one["binding"] for one in bound]})
        return 0
    note(printable(f"Agent {made['agentId']} added; its workspace is {made['workspace']}."))
    return 0


def _build_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--force", action="store_true", help="do not ask")
    parser.add_argument("--keep-files", action="store_true", help="leave its workspace and sessions where they are")
    build(parser)


def delete(args: argparse.Namespace) -> int:
    if not args.force:
        if not sys.stdin.isatty():
            raise UserError("Deleting an agent needs --force when nobody can be asked.")
        if input(f"Delete agent {args.id}? Its files go to the trash folder. [y/N] ").strip().lower() not in (
            "y",
            "yes",
        ):
            return 1
    params = {"agentId": args.id, "deleteFiles": not args.keep_files}
    gone = clients.from_args(args).call("agents.delete", params)
    if args.json:
        print_json(gone)
        return 0
    note(printable(f"Agent {gone['agentId']} deleted ({gone['removedBindings']} bindings removed)."))
    return 0


def _build_bind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the agent")
    parser.add_argument(
        "channel", metavar="CHANNEL[:ACCOUNT]", help="the channel, and the account where there are several"
    )
    parser.add_argument("--peer", metavar="KIND:ID", help="only one chat, e.g. group:12345 or direct:+15550001")
    build(parser)


def bind(args: argparse.Namespace) -> int:
    params = _binding(args.id, args.channel)
    if args.peer:
        kind, _, peer = args.peer.partition(":")
        if not peer:
            raise UserError("--peer is KIND:ID, for example group:12345 or direct:+15550001.")
        params |= {"peerKind": kind, "peerId": peer}
    done = clients.from_args(args).call("agents.bind", params)
    if args.json:
        print_json(done)
        return 0
    note(printable(f"{args.channel} {'now goes' if done['added'] else 'went already'} to agent {done['agentId']}."))
    return 0


def _binding(agent_id: str, text: str) -> dict[str, Any]:
    channel, _, account = text.partition(":")
    return {"agentId": agent_id, "channel": channel, **({"accountId": account} if account else {})}


ACTIONS = {
    "list": Action("List the configured agents", list_agents, _build_list, example="openclaw agents list --json"),
    "add": Action("Add an agent", add, _build_add, example="openclaw agents add Work --bind signal:work"),
    "delete": Action("Delete an agent", delete, _build_delete, example="openclaw agents delete work"),
    "bind": Action(
        "Send messages of a channel to an agent", bind, _build_bind, example="openclaw agents bind work signal"
    ),
}
DEFAULT = "list"
