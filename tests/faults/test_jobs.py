"""The Gateway dies at each step of a sub-agent and of a message between sessions: each ends once, and is told once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import TOKEN, WireClient, model_config
from tests.support.model_server import ModelServer, Recorded, Reply

WORK = "agent:main:work"


def answer(request: Recorded) -> Reply:
    system, last = json.dumps(request.body["system"]), json.dumps(request.body["messages"][-1])
    if "announce step" in system or "announce step" in last:
        return Reply("it is done")
    return Reply("REPLY_SKIP" if "Turn 1 of" in system else "worked")


async def tell(gateway: ForkedGateway, tool: str, args: dict[str, Any]) -> None:
    """Calls a tool; the Gateway may die meanwhile."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        try:
            body = {"tool": tool, "args": args, "sessionKey": "main"}
            async with http.post(f"{gateway.url}/tools/invoke", json=body) as response:
                await response.read()
        except (aiohttp.ClientError, OSError):
            pass


async def texts(client: WireClient, key: str) -> str:
    history = await client.call("chat.history", {"sessionKey": key, "limit": 200})
    return json.dumps(history["messages"])


async def until_settled(gateway: ForkedGateway, client: WireClient, enough: Any) -> None:
    async with asyncio.timeout(60):
        while not await enough(client):
            await asyncio.sleep(0.05)


STEPS = [f"job.spawn.{when}:{hit}" for hit in (1, 2, 3, 4, 5) for when in ("before", "after")]
SENDS = [f"job.send.{when}:{hit}" for hit in (1, 2, 3) for when in ("before", "after")]


async def die_at(gateway: ForkedGateway, step: str, tool: str, args: dict[str, Any]) -> None:
    point, _, hit = step.partition(":")
    plan = [{"at": point, "do": "kill", "hit": int(hit)}]
    gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(plan)}
    await gateway.start()
    async with gateway.client() as client:
        await client.chat("begin", "main")
        await client.chat("begin", WORK)
    await tell(gateway, tool, args)
    assert gateway._process is not None
    await asyncio.wait_for(asyncio.to_thread(gateway._process.wait), 60)
    gateway.env |= {"OPENCLAW_FAULT_PLAN": "[]"}
    await gateway.start()


@pytest.mark.parametrize("step", STEPS)
async def test_a_sub_agent_reports_once_wherever_the_gateway_dies(
    tmp_path: Path, models: ModelServer, step: str
) -> None:
    models.answer_with(answer)
    gateway = ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    try:
        await die_at(gateway, step, "sessions_spawn", {"task": "work hard", "label": "w"})
        async with gateway.client() as client:
            if step == "job.spawn.before:1":  # It was never accepted.
                assert "Status" not in await texts(client, "main")
                return

            async def told(client: WireClient) -> bool:
                return "Status: success" in await texts(client, "main")

            await until_settled(gateway, client, told)
            said = await texts(client, "main")
            assert said.count("Result: it is done") == 1
        # A run that was cut off before its answer was stored asks its model again.
        assert sum("work hard" in json.dumps(request.body["messages"][-1]) for request in models.requests) <= 2
    finally:
        gateway.kill()


@pytest.mark.parametrize("step", SENDS)
async def test_a_message_between_sessions_is_answered_once_wherever_the_gateway_dies(
    tmp_path: Path, models: ModelServer, step: str
) -> None:
    models.answer_with(answer)
    gateway = ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    try:
        sent = {"sessionKey": WORK, "message": "please do it", "timeoutSeconds": 0}
        await die_at(gateway, step, "sessions_send", sent)
        async with gateway.client() as client:
            if step == "job.send.before:1":
                assert "please do it" not in await texts(client, WORK)
                return

            async def done(client: WireClient) -> bool:
                return "it is done" in await texts(client, WORK)

            await until_settled(gateway, client, done)
            assert (await texts(client, WORK)).count("please do it") == 1
        asked = [json.dumps(request.body["messages"][-1]) for request in models.requests]
        assert sum("please do it" in text for text in asked) <= 2
    finally:
        gateway.kill()
