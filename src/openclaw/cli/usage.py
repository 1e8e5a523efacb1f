"""``openclaw gateway usage-cost``: what the models used and cost, by day."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import add_gateway_options, add_json
from openclaw.cli.terminal import print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=int, default=30, metavar="N", help="today and the days before it (default: 30)")
    add_json(parser)
    add_gateway_options(parser)


def run(args: argparse.Namespace) -> int:
    found = clients.from_args(args).call("usage.cost", {"days": args.days})
    if args.json:
        print_json(found)
    else:
        sys.stdout.write("\n".join(lines(found)) + "\n")
    return 0


def lines(found: dict[str, Any]) -> list[str]:
    shown = [f"Usage cost ({found['days']} days)", f"Total: {_sum(found['totals'])}"]
    if found["daily"]:
        latest = found["daily"][-1]
        shown.append(f"Latest day: {latest['date']} · {_sum(latest)}")
    return shown


def _sum(totals: dict[str, Any]) -> str:
    missing, cost = totals["missingCostEntries"], totals["totalCost"]
    amount = "cost unknown" if missing and not cost else f"${cost:.4f}" if cost < 0.01 else f"${cost:.2f}"
    partial = f" ({missing} calls of unknown price)" if missing and cost else ""
    return f"{amount}{partial} · {totals['totalTokens']:,} tokens"
