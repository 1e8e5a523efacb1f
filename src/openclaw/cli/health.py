"""``openclaw health``: what the Gateway says about itself; exit 1 when it does not answer."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.terminal import age, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--probe", action="store_true", help="check everything afresh instead of using the last result")
    add_json(parser)
    add_gateway_options(parser)


def run(args: argparse.Namespace) -> int:
    health = clients.from_args(args).call("health", {"probe": True} if args.probe else {})
    if args.json:
        print_json(health)
    else:
        sys.stdout.write("\n".join([f"Gateway: {'ok' if health.get('ok') else 'not ok'}", *_lines(health)]) + "\n")
    return 0 if health.get("ok") else 1


def _lines(health: dict[str, Any]) -> list[str]:
    agents = [str(agent.get("agentId")) for agent in health.get("agents") or []]
    sessions = health.get("sessions") or {}
    lines = [f"Problem: {printable(str(health['problem']))}"] if health.get("problem") else []
    lines += channel_lines(health)
    lines.append(f"Agents: {', '.join(agents) or 'none'} (default {health.get('defaultAgentId', 'main')})")
    lines.append(f"Session store: {sessions.get('path')} ({sessions.get('count', 0)} sessions)")
    lines += [f"- {printable(str(row.get('key')))} ({age(row.get('age'))})" for row in sessions.get("recent") or []]
    return lines


def channel_lines(health: dict[str, Any]) -> list[str]:
    channels, labels = health.get("channels") or {}, health.get("channelLabels") or {}
    order = health.get("channelOrder") or list(channels)
    lines: list[str] = []
    for name in order:
        channel = channels.get(name) or {}
        state = "not configured"
        if channel.get("configured"):
            state = "connected" if channel.get("connected") or channel.get("running") else "not connected"
        if channel.get("lastError"):
            state += f" ({printable(str(channel['lastError']))})"
        lines.append(f"{labels.get(name, name)}: {state}")
    return lines


ACTION = Action("Ask the Gateway whether it is well", run, build, example="openclaw health --json")
