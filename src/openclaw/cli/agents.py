"""``openclaw agents``: list, add, delete and bind the agents of a Gateway."""

from __future__ import annotations

import sys

from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, Action, Flag, Group, UserError, answer, decoded, query, yes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any


def _rows(listed: dict[str, Any], args: argparse.Namespace) -> list[dict[str, Any]]:
    default = listed.get("defaultId")
    return [{**agent, "isDefault": agent.get("id") == default} for agent in listed.get("agents") or []]


def _show_list(rows: list[dict[str, Any]], args: argparse.Namespace) -> Iterator[str]:
    from openclaw.protocol.agents import AgentView

    for row in rows:
        agent = decoded(row, AgentView)
        name = f" ({agent.name})" if agent.name else ""
        yield f"{agent.id}{name}{'  default' if row['isDefault'] else ''}"
        if args.bindings and isinstance(agent.routes, list):
            yield from (f"  gets {route}" for route in agent.routes)


def add(args: argparse.Namespace) -> int:
    client = from_args(args)
    wanted = {name: getattr(args, name) for name in ("name", "workspace", "model", "emoji") if getattr(args, name)}
    made = client.call("agents.create", {"name": args.name, **wanted})
    bound = [client.call("agents.bind", _binding(made["agentId"], text)) for text in args.bind]
    report = {**made, "bindings": [one["binding"] for one in bound]}
    return answer(args, report, f"Agent {made['agentId']} added; its workspace is {made['workspace']}.", sys.stderr)


def delete(args: argparse.Namespace) -> int:
    if not args.force:
        if not sys.stdin.isatty():
            raise UserError("Deleting an agent needs --force when nobody can be asked.")
        if not yes(f"Delete agent {args.id}? Its files go to the trash folder.", usual=False):
            return 1
    gone = from_args(args).call("agents.delete", {"agentId": args.id, "deleteFiles": not args.keep_files})
    text = f"Agent {gone['agentId']} deleted ({gone['removedBindings']} bindings removed)."
    return answer(args, gone, text, sys.stderr)


def bind(args: argparse.Namespace) -> int:
    params = _binding(args.id, args.channel)
    if args.peer:
        kind, _, peer = args.peer.partition(":")
        if not peer:
            raise UserError("--peer is KIND:ID, for example group:12345 or direct:+15550001.")
        params |= {"peerKind": kind, "peerId": peer}
    done = from_args(args).call("agents.bind", params)
    text = f"{args.channel} {'now goes' if done['added'] else 'went already'} to agent {done['agentId']}."
    return answer(args, done, text, sys.stderr)


def _binding(agent_id: str, text: str) -> dict[str, Any]:
    channel, _, account = text.partition(":")
    return {"agentId": agent_id, "channel": channel, **({"accountId": account} if account else {})}


_ACTIONS = {
    "list": query(
        "List the configured agents",
        "agents.list",
        (Flag("--bindings", "also show which messages each agent gets"),),
        params=lambda args: {"details": True},
        shape=_rows,
        show=_show_list,
        example="openclaw agents list --json",
    ),
    "add": Action(
        "Add an agent",
        add,
        (
            Flag("name NAME", "the agent's name; its id is made from it"),
            Flag("--workspace DIR", "its folder (default: workspace-<id> in the state directory)"),
            Flag("--model MODEL", "its model, in place of the default"),
            Flag("--emoji EMOJI", "the sign it goes by"),
            Flag("--bind CHANNEL[:ACCOUNT]", "messages it gets", action="append", default=[]),
            *CLIENT,
        ),
        example="openclaw agents add Work --bind signal:work",
    ),
    "delete": Action(
        "Delete an agent",
        delete,
        (
            Flag("id ID", "the agent"),
            Flag("--force", "do not ask"),
            Flag("--keep-files", "leave its workspace and sessions where they are"),
            *CLIENT,
        ),
        example="openclaw agents delete work",
    ),
    "bind": Action(
        "Send messages of a channel to an agent",
        bind,
        (
            Flag("id ID", "the agent"),
            Flag("channel CHANNEL[:ACCOUNT]", "the channel, and the account where there are several"),
            Flag("--peer KIND:ID", "only one chat, e.g. group:12345 or direct:+15550001"),
            *CLIENT,
        ),
        example="openclaw agents bind work signal",
    ),
}
COMMANDS = {"agents": Group(_ACTIONS, default="list")}
