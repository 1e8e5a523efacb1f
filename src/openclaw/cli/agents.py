"""``openclaw agents``: who lives on this Gateway."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.terminal import print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def build(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_gateway_options(parser)


def list_agents(args: argparse.Namespace) -> int:
    listed = clients.from_args(args).call("agents.list")
    default = listed.get("defaultId")
    rows = [{**agent, "isDefault": agent.get("id") == default} for agent in listed.get("agents") or []]
    if args.json:
        print_json(rows)
        return 0
    for row in rows:
        name = f" ({row['name']})" if row.get("name") else ""
        mark = "  default" if row["isDefault"] else ""
        sys.stdout.write(printable(f"{row.get('id')}{name}{mark}") + "\n")
    return 0


ACTIONS = {"list": Action("List the configured agents", list_agents, build, example="openclaw agents list --json")}
DEFAULT = "list"
