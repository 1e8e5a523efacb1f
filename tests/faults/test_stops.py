"""Stops and commands in the middle of deaths: what was acknowledged has its one end, and what was stopped stays so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kill_schedules import CONNECTION_LOST
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config
from tests.support.model_server import ModelServer

ENDED = ("answered", "silent", "failed", "superseded", "expired")
COMMANDS = ("/status", "/compact", "/think high", "/queue", "/pin remember the milk", "/context")
POINTS = ("commit.before", "commit.after", "finish.before", "finish.after", "model.call", "run.start", "tool.noted")


class Books:
    def __init__(self, root: Path, models: ModelServer, seed: int, death: str) -> None:
        self.chance, self.death, self.effects = random.Random(seed), death, root / "effects"
        queue = {"mode": "followup", "debounceMs": 0, "cap": 1000}
        config = model_config(models.base_url, models.api_key, messages={"queue": queue})
        self.gateway = ForkedGateway(root / "state", config)
        self.acknowledged: set[str] = set()
        self.stopped: set[str] = set()
        self.count = 0

    async def live(self) -> None:
        """One life: messages, commands and stops, until the Gateway dies at a point or from outside."""
        fault = {"at": self.chance.choice(POINTS), "do": self.death, "hit": self.chance.randint(6, 30)}
        self.gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps([fault])}
        with contextlib.suppress(AssertionError, *CONNECTION_LOST):
            await self.gateway.start()
            async with self.gateway.client() as client:
                for _ in range(12):
                    await self.step(client)
        with contextlib.suppress(AssertionError):
            self.gateway.kill()

    async def step(self, client: WireClient) -> None:
        session = f"s{self.chance.randrange(2)}"
        if self.chance.random() < 0.3:
            self.stopped |= set((await client.call("chat.abort", {"sessionKey": session}))["runIds"])
            return
        self.count += 1
        key = f"k{self.count}"
        command = json.dumps({"command": f"echo {key} >> {self.effects}"})
        text = self.chance.choice([*COMMANDS, *[f"{key} [[delay:3]][[tool:exec {command}]][[next]][[reply:done]]"] * 6])
        params = {"sessionKey": session, "message": text, "idempotencyKey": key}
        if (await client.call("chat.send", params))["status"] == "started":
            self.acknowledged.add(key)
        await asyncio.sleep(self.chance.choice([0, 0, 0.05]))

    def damage(self) -> None:
        """Flips one bit in one line of a transcript, as a bad disk does."""
        files = sorted((self.gateway.state_dir / "agents" / "main" / "sessions").glob("*.jsonl"))
        if files:
            file = self.chance.choice(files)
            content = bytearray(file.read_bytes())
            first = content.find(b"\n") + 1
            if first < len(content):
                content[self.chance.randrange(first, len(content))] ^= 1 << self.chance.randrange(8)
                file.write_bytes(content)

    async def check(self) -> None:
        self.gateway.env |= {"OPENCLAW_FAULT_PLAN": "[]"}
        await self.gateway.start()
        async with self.gateway.client() as client:
            for key in self.acknowledged:
                params: dict[str, Any] = {"runId": key, "timeoutMs": 30_000}
                assert (await client.call("agent.wait", params, timeout=40))["status"] in ("ok", "error"), key
                with contextlib.suppress(RequestFailed):
                    assert (await client.call("messages.why", {"ref": key}))["ref"] == key
        assert await self.gateway.stop() == 0
        with contextlib.closing(sqlite3.connect(self.gateway.state_dir / "ledger.db")) as database:
            states = dict(database.execute("SELECT run_id, state FROM messages").fetchall())
            # An answer that was complete when the stop came is kept. But nothing that was stopped begins again.
            again = database.execute(
                "SELECT run_id FROM messages JOIN story AS stop ON stop.ledger_id = id AND stop.code = 'stopped'"
                " JOIN story AS later ON later.ledger_id = id AND later.step > stop.step"
                " WHERE later.state = 'running' AND later.code = ''"
            ).fetchall()
        assert {key: states.get(key) for key in self.acknowledged if states.get(key) not in ENDED} == {}
        done = self.effects.read_text().split() if self.effects.exists() else []
        assert len(done) == len(set(done)), "a command of the agent was run twice"
        assert not again


CASES = [(1, "kill", False), (12, "power cut", False), (23, "kill", True)]
MORE = [
    (seed, ("kill", "power cut")[seed % 2], seed % 3 == 0)
    for seed in range(100, 100 + int(os.environ.get("OPENCLAW_TEST_STOPS", "0")))
]
"""Set it to run more of them by hand."""


@pytest.mark.parametrize(("seed", "death", "damage"), [*CASES, *MORE])
async def test_what_was_acknowledged_has_its_one_end(
    tmp_path: Path, models: ModelServer, seed: int, death: str, damage: bool
) -> None:
    books = Books(tmp_path, models, seed, death)
    for _ in range(4):
        await books.live()
        if damage:
            books.damage()
    await books.check()
    assert len(books.acknowledged) > 10 and books.stopped


async def test_a_message_handed_to_a_run_that_a_stop_cuts_short_is_answered_after_it(
    tmp_path: Path, models: ModelServer
) -> None:
    """It must not run while the Gateway stops: its answer would then stand before that of the message it follows."""
    config = model_config(models.base_url, models.api_key, messages={"queue": {"mode": "steer", "debounceMs": 0}})
    gateway = ForkedGateway(tmp_path / "state", config)
    begun = tmp_path / "begun"
    command = json.dumps({"command": f"touch {begun}; sleep 60"})
    texts = {"one": f"one [[tool:exec {command}]][[next]][[reply:first]]", "two": "two [[reply:second]]"}
    await gateway.start()
    async with gateway.client() as client:
        for key, text in texts.items():
            await client.call("chat.send", {"sessionKey": "main", "message": text, "idempotencyKey": key})
            while not begun.exists():
                await asyncio.sleep(0.01)
        assert await gateway.stop() == 0
    assert len(models.requests) == 1
    async with gateway, gateway.client() as client:
        for key in texts:
            assert (await client.call("agent.wait", {"runId": key, "timeoutMs": 50_000}))["status"] == "ok"
        history = (await client.call("chat.history", {"sessionKey": "main", "format": "messages"}))["messages"]
    said = [text for text in ("first", "second") if text in json.dumps(history[-1])]
    assert said == ["second"] and "first" in json.dumps(history[-3])
