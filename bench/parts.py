"""What a turn costs while sub-agents, scheduled jobs and an MCP server are there, beside a turn without them.

A turn that uses none of them should cost the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.harness import GatewayProcess, running
from bench.process import cpu_s
from bench.row import Row, summary
from bench.wire import Wire

WARM_UP = 30
TURNS = 50
BATCHES = 8
JOBS = 20
ROOT = Path(__file__).resolve().parent.parent
SERVER = {"command": sys.executable, "args": ["-m", "bench.tool_server"], "cwd": str(ROOT)}


async def measure() -> list[Row]:
    """The Gateways take turns, so that a busy moment of the machine is shared."""
    with_all = {"mcp": {"servers": {"notes": SERVER}}}
    bare: list[float] = []
    full: list[float] = []
    async with running() as one, one.client() as one_wire, running(with_all) as two, two.client() as two_wire:
        for number in range(JOBS):
            await two_wire.call("cron.add", _job(number))
        for number in range(WARM_UP):
            await one_wire.chat("hello", _session(number, -1))
            await two_wire.chat("hello", _session(number, -1))
        for batch in range(BATCHES):
            bare.append(await _cpu_ms(one, one_wire, batch))
            full.append(await _cpu_ms(two, two_wire, batch))
    what = f"turn beside {JOBS} scheduled jobs and an MCP server, CPU"
    without = summary(bare)
    return [
        Row(figure="parts", what="turn with no job and no MCP server, CPU", unit="ms", bar=5, **without),
        Row(
            figure="parts",
            what=what,
            unit="ms",
            bar=1.2 * without["measured"],
            reference="without them",
            reference_value=without["measured"],
            kind="size",
            **summary(full),
        ),
    ]


def _job(number: int) -> dict[str, object]:
    return {
        "name": f"job {number}",
        "schedule": {"kind": "cron", "expr": f"{number} 3 1 1 *", "tz": "UTC"},
        "sessionTarget": "isolated",
        "wakeMode": "now",
        "payload": {"kind": "agentTurn", "message": "say hello"},
    }


async def _cpu_ms(gateway: GatewayProcess, wire: Wire, batch: int) -> float:
    before = cpu_s(gateway.pid)
    for number in range(TURNS):
        await wire.chat("hello", _session(number, batch))
    return (cpu_s(gateway.pid) - before) / TURNS * 1000


def _session(number: int, batch: int) -> str:
    return f"agent:main:bench-{batch}-{number % 10}"
