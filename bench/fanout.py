"""One reply watched by many clients."""

from __future__ import annotations

import asyncio
import contextlib

from bench.harness import running
from bench.process import cpu_s
from bench.row import Row, summary

CLIENTS = 100
TOKENS = 2_000
RUNS = 5
RATE = 1_000


async def measure() -> list[Row]:
    async with running() as gateway, contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(gateway.client()) for _ in range(CLIENTS)]
        await wires[0].chat("hello")
        await asyncio.sleep(1)  # The news that clients came is sent after a pause, and is no part of this.

        async def stream(directive: str) -> float:
            before = cpu_s(gateway.pid)
            await wires[0].chat(directive)
            return cpu_s(gateway.pid) - before

        fast = [await stream(f"[[bench tokens={TOKENS}]]") for _ in range(RUNS)]
        received = sum(wire.bytes_received for wire in wires[1:])
        frames = sum(wire.frames for wire in wires)
        paced = [await stream(f"[[bench tokens={TOKENS} rate={RATE}]]")]
        frames = sum(wire.frames for wire in wires) - frames
        received = (sum(wire.bytes_received for wire in wires[1:]) - received) / (CLIENTS - 1) / 1e6
    what = f"{CLIENTS} clients, one {TOKENS:,}-token stream"
    floor = {"reference": "2.4 µs a frame", "reference_value": frames * 2.4e-6}
    note = f"{received:.1f} MB per client"
    return [
        Row(figure="fanout", what=f"{what} at full speed, CPU", unit="s", bar=0.6, **summary(fast)),
        Row(figure="fanout", what=f"{what} at {RATE}/s, CPU", unit="s", bar=0.6, **floor, **summary(paced), note=note),
    ]
