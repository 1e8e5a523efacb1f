"""Cut off by kill -9: how soon it serves again, and what became of the messages."""

from __future__ import annotations

import asyncio
import time

from bench.harness import GatewayProcess, prepared
from bench.process import cpu_s
from bench.row import Row, summary
from bench.seed import many_sessions

SESSIONS = 10_000
RUNS = 3
WRITERS = 20
WRITES_S = 0.5


async def measure() -> list[Row]:
    async with prepared() as gateway:
        many_sessions(gateway.sessions_dir, SESSIONS)
        await gateway.start()
        ready, cpu, lost = await _first_turns(gateway)
        outage, missing = await _writes(gateway)
    what = f"kill -9 in a first turn, {SESSIONS:,} sessions"
    return [
        Row(figure="recovery", what=f"{what}: ready again, wall", kind="wall", unit="s", bar=1.0, **summary(ready)),
        Row(figure="recovery", what=f"{what}: ready again, CPU", unit="s", bar=1.0, **summary(cpu)),
        Row(figure="recovery", what=f"{what}: lost or not resumed", unit="turns", bar=0, measured=lost, kind="size"),
        Row(
            figure="recovery",
            what="kill -9 during store writes: ready again, wall",
            kind="wall",
            unit="s",
            bar=1.0,
            **summary(outage),
        ),
        Row(
            figure="recovery",
            what="kill -9 during store writes: lost",
            unit="turns",
            bar=0,
            measured=missing,
            kind="size",
        ),
    ]


async def _first_turns(gateway: GatewayProcess) -> tuple[list[float], list[float], int]:
    ready: list[float] = []
    cpu: list[float] = []
    lost = 0
    for number in range(RUNS):
        key = f"agent:main:new-{number}"
        async with gateway.client() as wire:
            # The model never answers this one; asked again after the restart, it does.
            run_id = await wire.send(f"[[bench hold id={number}]]", key)
            await asyncio.sleep(0.3)
            gateway.kill()
        began = time.monotonic()
        await gateway.start()
        async with gateway.client() as wire:
            ready.append(time.monotonic() - began)
            cpu.append(cpu_s(gateway.pid))
            outcome = await wire.call("agent.wait", {"runId": run_id, "timeoutMs": 20_000})
            history = await wire.call("chat.history", {"sessionKey": key})
            roles = [message["role"] for message in history["messages"]]
            lost += outcome["status"] != "ok" or roles != ["user", "assistant"]
    return ready, cpu, lost


async def _writes(gateway: GatewayProcess) -> tuple[list[float], int]:
    """Turns end in many sessions at once; what was acknowledged before the cut has to be there after it."""
    outage: list[float] = []
    lost = 0
    for run in range(RUNS):
        accepted: list[tuple[str, str]] = []
        async with gateway.client() as wire:

            async def write(number: int, run: int = run, accepted: list[tuple[str, str]] = accepted, wire=wire) -> None:
                key = f"agent:main:writes-{run}-{number}"
                try:
                    while True:
                        run_id = await wire.send("hello", key)
                        accepted.append((key, run_id))
                        await wire.end(run_id)
                except (ConnectionError, OSError):
                    return

            tasks = [asyncio.create_task(write(number)) for number in range(WRITERS)]
            await asyncio.sleep(WRITES_S)
            gateway.kill()
            await asyncio.wait(tasks, timeout=5)
        began = time.monotonic()
        await gateway.start()
        async with gateway.client() as wire:
            outage.append(time.monotonic() - began)
            for _, run_id in accepted:
                outcome = await wire.call("agent.wait", {"runId": run_id, "timeoutMs": 20_000})
                lost += outcome["status"] != "ok"
            for number in range(WRITERS):
                key = f"agent:main:writes-{run}-{number}"
                sent = sum(1 for sent_to, _ in accepted if sent_to == key)
                history = await wire.call("chat.history", {"sessionKey": key, "limit": 1000})
                users = sum(1 for message in history["messages"] if message["role"] == "user")
                # One more may have been accepted while its acknowledgement was on the way.
                lost += users not in (sent, sent + 1)
    return outage, lost
