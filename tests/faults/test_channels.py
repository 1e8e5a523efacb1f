"""On every channel, whatever fails between the Gateway and the platform: a reply arrives whole and in order.

A part comes twice only where the platform cannot tell a second try from a new message, and then it is marked. The
Gateway serves all channels at once. ``OPENCLAW_TEST_SCHEDULES`` sets the number of random schedules of kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.clock import SystemClock
from openclaw.storage.message_ledger import END_STATES
from tests.faults.kill_schedules import CONNECTION_LOST
from tests.faults.platforms import CHUNK, PLATFORMS, Matrix, Platform, Reading, words_of
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import GatewayUnderTest, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

SCHEDULES = int(os.environ.get("OPENCLAW_TEST_SCHEDULES", "1"))
WORDS = 9
PATIENCE_S = 120
LIVES = 2
TAGS = ("failed", "dropped", "broken", "repeated")
DELIVERY = ("outbox.sending", "outbox.arrived", "outbox.sent")


class Impatient(SystemClock):
    """Nobody waits for long before they try again, and still long enough for an answer on a busy machine."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 1.0))


@asynccontextmanager
async def platforms() -> AsyncGenerator[list[Platform]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(kind()) for kind in PLATFORMS]


def configuration(models: ModelServer, used: Sequence[Platform]) -> dict[str, Any]:
    return model_config(
        models.base_url,
        models.api_key,
        channels={one.name: {**one.section(), "textChunkLimit": CHUNK} for one in used},
        session={"dmScope": "per-channel-peer"},
        messages={"queue": {"mode": "followup", "debounceMs": 0, "cap": 1000}},
    )


async def connected(gateway: GatewayUnderTest, used: Sequence[Platform]) -> None:
    async with asyncio.timeout(PATIENCE_S), gateway.client() as client:
        while True:
            accounts = (await client.call("channels.status", {}))["channelAccounts"]
            if all(accounts[one.name][0]["connected"] for one in used):
                return
            await asyncio.sleep(0.05)


async def whole(used: Sequence[Platform], tags: dict[str, list[str]]) -> dict[tuple[str, str], Reading]:
    """What was read of every reply, once all are whole."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for one in used:
                if isinstance(one, Matrix):
                    await one.look()
            readings = {(one.name, tag): Reading(one.texts(), tag, WORDS) for one in used for tag in tags[one.name]}
            if not any(reading.missing for reading in readings.values()):
                return readings
            await asyncio.sleep(0.05)


async def settled(gateway: GatewayUnderTest, messages: int) -> list[dict[str, Any]]:
    """All messages, once each has its end and its deliveries have theirs."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(*CONNECTION_LOST):
                async with gateway.client() as client:
                    listed = (await client.call("messages.list", {"limit": 500}))["messages"]
                    kept = [row for row in listed if row["state"] != "held"]  # A held one has no number yet.
                    rows = [await client.call("messages.get", {"id": row["id"]}) for row in kept]
                    parts = [part for row in rows for part in row["deliveries"]]
                    over = kept == listed and all(row["state"] in END_STATES for row in rows)
                    if over and len(rows) >= messages and all(part["state"] in ("sent", "dead") for part in parts):
                        return rows
            await asyncio.sleep(0.05)


def say(tag: str) -> str:
    return f"{tag} [[reply:{' '.join(words_of(tag, WORDS))}]]"


def check(used: Sequence[Platform], readings: dict[tuple[str, str], Reading]) -> int:
    """Counts the parts that came twice. On a platform that knows them again there is none."""
    for one in used:
        for (name, tag), reading in readings.items():
            if name == one.name:
                assert not reading.unmarked, f"{name}: {tag} has a repeat that is not marked: {reading.unmarked}"
                assert not (one.idempotent and reading.repeats), f"{name}: {tag} has a repeat"
    return sum(reading.repeats for reading in readings.values())


async def break_in_the_middle(one: Platform, tag: str) -> None:
    """Breaks the connection when some of the reply has arrived."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if isinstance(one, Matrix):
                await one.look()
            if Reading(one.texts(), tag, WORDS).missing < WORDS:
                await one.cut()
                return
            await asyncio.sleep(0.005)


async def test_a_reply_arrives_whole_on_every_channel_whatever_fails(tmp_path: Path, models: ModelServer) -> None:
    async with platforms() as used:
        config = configuration(models, used)
        async with InProcessGateway(tmp_path / "state", config, clock=Impatient()) as gateway:
            for one in used:
                one.reaches(gateway)
            await connected(gateway, used)

            async def answered(tag: str) -> None:
                """Everybody says something and gets the reply."""
                await asyncio.gather(*(one.say(say(f"{one.name}{tag}")) for one in used))
                if tag == "broken":
                    await asyncio.gather(*(break_in_the_middle(one, f"{one.name}{tag}") for one in used))
                check(used, await whole(used, {one.name: [f"{one.name}{tag}"] for one in used}))

            for one in used:
                one.fail_next()
            await connected(gateway, used)  # Where a fault is a lost connection.
            await answered("failed")
            for one in used:
                one.drop_next()
            await answered("dropped")
            await answered("broken")
            await connected(gateway, used)
            await asyncio.gather(*(one.repeat() for one in used))
            await answered("repeated")
            rows = await settled(gateway, 4 * len(used))
            await whole(used, {one.name: [f"{one.name}{tag}" for tag in TAGS] for one in used})
    taken = [row["text"].split()[0] for row in rows]
    assert sorted(taken) == sorted(f"{one.name}{tag}" for one in used for tag in TAGS)
    assert len(models.requests) == len(taken)


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_a_reply_arrives_whole_on_every_channel_although_the_gateway_is_killed(
    seed: int, tmp_path: Path, models: ModelServer
) -> None:
    chance = random.Random(seed)
    async with platforms() as used:
        gateway = ForkedGateway(tmp_path / "state", configuration(models, used))
        tags: dict[str, list[str]] = {one.name: [] for one in used}
        speaking: list[asyncio.Task[None]] = []

        def speak(turn: int) -> None:
            for one in used:
                tag = f"{one.name}{turn}"
                tags[one.name].append(tag)
                speaking.append(asyncio.create_task(one.say(say(tag))))

        try:
            await live(gateway, used)
            await connected(gateway, used)
            speak(0)
            await whole(used, tags)
            await settled(gateway, len(used))
            gateway.kill()
            for life in range(1, LIVES + 1):
                # It ends when a platform was given, or has, or has confirmed one of the parts.
                hit = chance.randint(1, 3 * len(used))
                await live(gateway, used, {"at": chance.choice(DELIVERY), "do": "kill", "hit": hit})
                speak(life)
                await died(gateway)
            await live(gateway, used)
            await connected(gateway, used)
            await asyncio.gather(*speaking)
            await asyncio.gather(*(one.repeat() for one in used))
            expected = sum(len(tags[one.name]) for one in used if one.redelivers)
            rows = await settled(gateway, expected)
            taken = [row["text"].split()[0] for row in rows]
            for one in used:
                # What was said on IRC to a Gateway that died before it read it is gone. All that it read is answered.
                tags[one.name] = [tag for tag in tags[one.name] if one.redelivers or tag in taken]
            readings = await whole(used, tags)
        finally:
            for task in speaking:
                task.cancel()
            with contextlib.suppress(AssertionError):
                gateway.kill()
    repeats = check(used, readings)
    assert len(set(taken)) == len(taken), "a message was taken twice"
    assert all(row["state"] == "answered" for row in rows)
    print(f"seed {seed}: {len(rows)} messages, {repeats} parts came twice, all of them marked", flush=True)


async def live(gateway: ForkedGateway, used: Sequence[Platform], *faults: dict[str, Any]) -> None:
    gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(faults)}
    with contextlib.suppress(AssertionError):  # What is left to deliver may end it before it says that it listens.
        await gateway.start()
    for one in used:
        one.reaches(gateway)


async def died(gateway: ForkedGateway) -> None:
    assert gateway._process is not None
    assert await asyncio.wait_for(asyncio.to_thread(gateway._process.wait), PATIENCE_S) == -9
