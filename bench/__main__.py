"""``python -m bench``: measures every figure, or those named, and prints them beside their bars.

The bars were set on a quiet machine. ``python -c pass`` is timed before and after each figure; where a time is over its
bar but within it at that measure of this machine's speed, the verdict is ``ok*``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bench import (
    children,
    cli,
    concurrency,
    context,
    cron,
    disarm,
    fanout,
    history,
    inbound,
    long,
    parts,
    recovery,
    replies,
    scale,
    soak,
    startup,
    store,
    stream,
    turn,
)
from bench.process import speed
from bench.row import Row, table

RESULTS = Path(__file__).parent / "results" / "latest.json"
FIGURES: dict[str, Callable[[], Awaitable[list[Row]]]] = {
    "cli": cli.measure,
    "startup": startup.measure,
    "turn": turn.measure,
    "inbound": inbound.measure,
    "disarm": disarm.measure,
    "stream": stream.measure,
    "concurrency": concurrency.measure,
    "children": children.measure,
    "parts": parts.measure,
    "store": store.measure,
    "history": history.measure,
    "context": context.measure,
    "long": long.measure,
    "fanout": fanout.measure,
    "recovery": recovery.measure,
    "replies": replies.measure,
    "scale": scale.measure,
    "cron": cron.measure,
    "soak": soak.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the speed figures.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"some of: {', '.join(FIGURES)} (default: all)")
    parser.add_argument("--turns", type=int, default=soak.TURNS, help="turns of the soak (%(default)s)")
    args = parser.parse_args()
    unknown = [name for name in args.figures if name not in FIGURES]
    if unknown:
        parser.error(f"unknown figure {unknown[0]!r}; known are {', '.join(FIGURES)}")
    figures = {name: FIGURES[name] for name in args.figures or FIGURES}
    if "soak" in figures:
        figures["soak"] = lambda: soak.measure(args.turns)
    rows = asyncio.run(measure(figures))
    print(table(rows))
    if any(row.verdict == "ok*" for row in rows):
        print("ok*: over the bar, but within it for the speed this machine had in the same minute")
    write(rows)
    return 0 if all(row.verdict != "short" for row in rows) else 1


async def measure(figures: dict[str, Callable[[], Awaitable[list[Row]]]]) -> list[Row]:
    rows: list[Row] = []
    before = speed()
    for name, figure in figures.items():
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        try:
            found = await figure()
        except Exception:
            # The other figures are still worth having; the table says that this one is missing.
            traceback.print_exc()
            found = [Row(figure=name, what=f"{name}: could not be measured", unit="", measured=1, bar=0, kind="size")]
        after = speed()
        for row in found:
            row.slowness = (before.slowness(row.kind) + after.slowness(row.kind)) / 2
        rows += found
        before = after
    return rows


def write(rows: list[Row]) -> None:
    result = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": {"cpus": os.cpu_count(), "arch": platform.machine(), "load": os.getloadavg()},
        "rows": [{**msgspec.to_builtins(row), "ratio": row.ratio, "verdict": row.verdict} for row in rows],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
