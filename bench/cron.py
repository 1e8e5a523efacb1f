"""What 500 scheduled jobs that are due at once cost: how long they take, and how much they delay a session."""

from __future__ import annotations

import asyncio
import json
import time

from bench.bystander import Bystander
from bench.harness import GatewayProcess, prepared
from bench.row import Row

JOBS = 500
AHEAD_MS = 20_000
"""How long before its jobs are due the Gateway is started."""
LOOK_S = 0.05


async def measure() -> list[Row]:
    async with prepared() as gateway:
        due_ms = round(time.time() * 1000) + AHEAD_MS
        _seed(gateway, due_ms)
        await gateway.start()
        async with gateway.client() as wire:
            bystander = Bystander(wire)
            await bystander.write_alone()
            await asyncio.sleep(max(0.0, due_ms / 1000 - time.time()))
            began = time.monotonic()
            async with bystander.writing():
                await asyncio.to_thread(_wait_until_ended, gateway)
            took = time.monotonic() - began
    return [
        bystander.row("cron", f"{JOBS} jobs due at once"),
        Row(figure="cron", what=f"{JOBS} jobs due at once", kind="wall", unit="s", bar=10, measured=took, low=took),
    ]


def _seed(gateway: GatewayProcess, due_ms: int) -> None:
    path = gateway.state_dir / "cron" / "jobs.json"
    path.parent.mkdir(parents=True)
    schedule = {"kind": "every", "everyMs": 86_400_000, "anchorMs": due_ms - 86_400_000}
    payload = {"kind": "agentTurn", "message": "Look at the news and say what is new. " * 5}
    common = {"enabled": True, "createdAtMs": 0, "updatedAtMs": 0, "schedule": schedule, "payload": payload}
    common |= {"sessionTarget": "isolated", "wakeMode": "now", "delivery": {"mode": "none"}}
    state = {"nextRunAtMs": due_ms}
    jobs = [{"id": f"job-{number}", "name": f"Job {number}", **common, "state": state} for number in range(JOBS)]
    path.write_text(json.dumps({"version": 1, "jobs": jobs}, indent=2))


def _wait_until_ended(gateway: GatewayProcess) -> None:
    while _ended(gateway) < JOBS:
        time.sleep(LOOK_S)


def _ended(gateway: GatewayProcess) -> int:
    runs = gateway.state_dir / "cron" / "runs"
    return sum(1 for _ in runs.iterdir()) if runs.exists() else 0
