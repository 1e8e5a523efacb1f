"""Commands a person types: what the whole process costs, from start to exit."""

from __future__ import annotations

import sys
from statistics import median

from bench.harness import GatewayProcess, prepared
from bench.process import run_cpu_ms
from bench.row import Row, summary

RUNS = 15
_ROUND_TRIP = """
import json, socket
with socket.create_connection(("127.0.0.1", {port})) as peer:
    peer.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    json.loads(peer.makefile("rb").read().partition(b"\\r\\n\\r\\n")[2])
"""


async def measure() -> list[Row]:
    openclaw = [sys.executable, "-m", "openclaw"]
    async with prepared() as gateway:
        await gateway.start()
        async with gateway.client() as wire:
            for number in range(10):
                await wire.chat("hello", f"agent:main:bench-{number}")
        bare = [sys.executable, "-c", "pass"]
        floor = [sys.executable, "-c", _ROUND_TRIP.format(port=gateway.port)]
        rows = [_row("CLI --version, CPU", [*_script(), "--version"], bare, "bare Python", gateway, bar_ratio=2)]
        for words in ("sessions --json", "status --json"):
            command = [*openclaw, *words.split()]
            rows.append(_row(f"CLI {words}, CPU", command, floor, "one round trip", gateway, bar_ms=60))
        return rows


def _script() -> list[str]:
    """The installed command; the interpreter finds it beside itself."""
    return [f"{sys.executable.rpartition('/')[0]}/openclaw"]


def _row(
    what: str,
    command: list[str],
    floor: list[str],
    reference: str,
    gateway: GatewayProcess,
    *,
    bar_ms: float | None = None,
    bar_ratio: float = 0,
) -> Row:
    """Command and floor take turns, so that a busy moment of the machine meets both."""
    run_cpu_ms(command, gateway.env)  # Compiles what was never compiled.
    pairs = [(run_cpu_ms(command, gateway.env), run_cpu_ms(floor, gateway.env)) for _ in range(RUNS)]
    floor_ms = median(pair[1] for pair in pairs)
    return Row(
        figure="cli",
        what=what,
        unit="ms",
        bar=bar_ms if bar_ms is not None else bar_ratio * floor_ms,
        reference=reference,
        reference_value=floor_ms,
        kind="size" if bar_ms is None else "cpu",
        **summary([pair[0] for pair in pairs]),
    )
