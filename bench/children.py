"""Many sub-agents of one chat side by side, and how late the event loop gets meanwhile."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from bench.harness import GatewayProcess, running
from bench.process import cpu_s
from bench.row import Row, summary
from bench.wire import TOKEN, WAIT_S, Wire

CHILDREN = 50
LATENCY_MS = 500
TOKENS = 200
RUNS = 3


async def measure() -> list[Row]:
    wall: list[float] = []
    cpu: list[float] = []
    missing = 0
    limits = {"agents": {"defaults": {"subagents": {"maxConcurrent": CHILDREN, "maxChildrenPerAgent": CHILDREN}}}}
    async with running(limits) as gateway, gateway.client() as wire:
        for run in range(RUNS):
            parent = f"agent:main:bench-{run}"
            await wire.chat("hello", parent)
            spent, began = cpu_s(gateway.pid), time.monotonic()
            told = await _all_told(gateway, wire, parent)
            wall.append(time.monotonic() - began)
            cpu.append(cpu_s(gateway.pid) - spent)
            missing += abs(CHILDREN - told)
        lag = await gateway.lag_ms()
    what = f"{CHILDREN} sub-agents of one chat, {TOKENS} tokens, model {LATENCY_MS} ms"
    return [
        Row(
            figure="children",
            what=f"{what}, until all are told, wall",
            kind="wall",
            unit="s",
            bar=3,
            reference="the model alone",
            reference_value=LATENCY_MS / 1000,
            **summary(wall),
            note=f"CPU {min(cpu):.2f} s",
        ),
        Row(figure="children", what=f"{what}, not told once", unit="results", bar=0, measured=missing, kind="size"),
        Row(
            figure="children",
            what="event-loop stall, p99, under that load",
            kind="wall",
            unit="ms",
            bar=50,
            measured=lag,
        ),
    ]


async def _all_told(gateway: GatewayProcess, wire: Wire, parent: str) -> int:
    """Starts the sub-agents and waits for their results. Returns how many the parent's chat has."""
    task = f"[[bench latency={LATENCY_MS} tokens={TOKENS}]]"
    body = {"tool": "sessions_spawn", "args": {"task": task}, "sessionKey": parent}
    headers = {"authorization": f"Bearer {TOKEN}"}

    async def spawn(http: aiohttp.ClientSession) -> None:
        async with http.post(f"{gateway.url}/tools/invoke", json=body) as response:
            assert (await response.json())["result"]["details"]["status"] == "accepted"

    async with aiohttp.ClientSession(headers=headers) as http:
        await asyncio.gather(*(spawn(http) for _ in range(CHILDREN)))
    async with asyncio.timeout(WAIT_S):
        while (told := await _told(wire, parent)) < CHILDREN:
            pass
    return told


async def _told(wire: Wire, parent: str) -> int:
    await asyncio.sleep(0.1)
    history = await wire.call("chat.history", {"sessionKey": parent, "limit": 200})
    return sum("Status: success" in str(message) for message in history["messages"])
