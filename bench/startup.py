"""From nothing to the first hello, and what the Gateway holds in memory when it has nothing to do."""

from __future__ import annotations

import sys
import time
from statistics import median

from bench.harness import prepared
from bench.process import cpu_s, rss_mb, run_cpu_ms
from bench.row import Row, summary

RUNS = 5
FLOOR = [sys.executable, "-c", "import aiohttp, aiohttp.web, msgspec, uvloop"]


async def measure() -> list[Row]:
    cpu: list[float] = []
    wall: list[float] = []
    memory: list[float] = []
    floor: list[float] = []
    async with prepared() as gateway:
        await gateway.start()  # The first start creates files and compiles modules; it is not counted.
        await gateway.stop()
        for _ in range(RUNS):
            floor.append(run_cpu_ms(FLOOR) / 1000)
            began = time.monotonic()
            await gateway.start()
            async with gateway.client():
                wall.append(time.monotonic() - began)
                cpu.append(cpu_s(gateway.pid))
                memory.append(rss_mb(gateway.pid))
            await gateway.stop()
    reference = {"reference": "import aiohttp", "reference_value": median(floor)}
    return [
        Row(
            figure="startup", what="Gateway: spawn to first hello, CPU", unit="s", bar=0.7, **reference, **summary(cpu)
        ),
        Row(
            figure="startup",
            what="Gateway: spawn to first hello, wall",
            kind="wall",
            unit="s",
            bar=1.0,
            **summary(wall),
        ),
        Row(figure="startup", what="Gateway idle, RSS", unit="MB", bar=70, kind="size", **summary(memory)),
    ]
