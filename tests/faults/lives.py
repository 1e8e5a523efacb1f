"""One life of a Gateway with faults: how it is planned, and whether it outlives what it is asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient


def plan(gateway: ForkedGateway, *faults: dict[str, Any]) -> None:
    gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(faults)}


async def wait(client: WireClient, key: str) -> dict[str, Any]:
    return await client.call("agent.wait", {"runId": key, "timeoutMs": 50_000})


async def died(gateway: ForkedGateway) -> None:
    assert gateway._process is not None
    assert await asyncio.wait_for(asyncio.to_thread(gateway._process.wait), 60) == -9


async def lives_to_the_end(gateway: ForkedGateway, *keys: str) -> bool:
    """Starts the Gateway. False when it dies before all these messages have ended."""

    async def ask() -> None:
        async with gateway.client() as client:
            for key in keys:
                await wait(client, key)

    try:
        await gateway.start()
    except AssertionError:
        await died(gateway)
        return False
    asked, death = asyncio.create_task(ask()), asyncio.create_task(died(gateway))
    await asyncio.wait([asked, death], return_when=asyncio.FIRST_COMPLETED)
    if asked.done() and asked.exception() is not None:
        await death  # It was dying while it was being asked.
    alive = not death.done()
    for task in (asked, death):
        task.cancel()
    await asyncio.gather(asked, death, return_exceptions=True)
    return alive
