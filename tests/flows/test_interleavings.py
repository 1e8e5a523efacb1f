"""Whatever the order of messages, redeliveries, queue modes and crashes: each message ends once, on its own route."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, WireClient, model_config
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon

US, GROUP = "+15550000001", "Z3JvdXAtb25l"
PEOPLE = {"ann": "+15550000042", "bob": "+15550000043"}
MODES = ("followup", "collect debounce:0", "steer", "interrupt", "steer-backlog")
ENDS = {"answered", "silent", "failed", "superseded", "expired"}
SEEDS = int(os.environ.get("OPENCLAW_TEST_SEEDS", "4"))


class Story:
    """One random life of a Gateway, reproducible by its seed."""

    def __init__(self, seed: int, gateway: GatewayProcess, signal: SignalDaemon) -> None:
        self.chance = random.Random(seed)
        self.gateway = gateway
        self.signal = signal
        self.places: dict[int, tuple[str, str]] = {}
        """Message number to person and place."""

    async def act(self) -> None:
        kind = self.chance.choices(("say", "again", "mode", "kill", "rest"), (10, 2, 2, 1, 2))[0]
        await getattr(self, kind)()

    async def say(self) -> None:
        person, place = self.chance.choice(list(PEOPLE)), self.chance.choice(("direct", "group"))
        number = len(self.places)
        self.places[number] = (person, place)
        pause = self.chance.choice((0, 0, 30, 120))
        text = f"canary-{person}-{place}-{number}. [[sleep:{pause}]][[reply:re {number}.]]"
        await self.signal.deliver(self._envelope(text, person, place))

    def _envelope(self, text: str, person: str, place: str) -> Any:
        group = {"groupInfo": {"groupId": GROUP, "type": "DELIVER"}} if place == "group" else {}
        return self.signal.message(text, sender=PEOPLE[person], name=person, **group)

    async def again(self) -> None:
        await self.signal.repeat_all()

    async def mode(self) -> None:
        person = self.chance.choice(list(PEOPLE))
        await self.signal.deliver(self._envelope(f"/queue {self.chance.choice(MODES)}", person, "direct"))

    async def kill(self) -> None:
        self.gateway.kill()
        self.signal.disconnect()
        await self.gateway.start()
        await self.signal.connected()

    async def rest(self) -> None:
        await asyncio.sleep(self.chance.random() / 10)


async def settled(client: WireClient, numbers: int) -> list[dict[str, Any]]:
    """All messages, once every one of them has an end and everything to deliver has been."""
    async with asyncio.timeout(60):
        while True:
            rows = (await client.call("messages.list", {"limit": 500}))["messages"]
            if all(row["state"] in ENDS for row in rows) and _numbers(rows) >= set(range(numbers)):
                return rows
            await asyncio.sleep(0.05)


def _numbers(rows: list[dict[str, Any]]) -> set[int]:
    return {int(found) for row in rows for found in re.findall(r"canary-\w+-\w+-(\d+)\.", json.dumps(row))}


def user_texts(gateway: GatewayProcess) -> dict[str, list[str]]:
    """What people said, by session file."""
    found: dict[str, list[str]] = {}
    for path in sorted(gateway.sessions_dir().glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        ids = [line["id"] for line in lines]
        assert len(ids) == len(set(ids))
        found[path.name] = [
            json.dumps(line["message"]["content"])
            for line in lines
            if line["type"] == "message" and line["message"]["role"] == "user"
        ]
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_message_ends_once_on_its_own_route(seed: int, tmp_path: Path) -> None:
    async with SignalDaemon(US, groups=(GROUP,)) as signal, ModelServer() as models:
        section = {
            "enabled": True,
            "account": US,
            "httpUrl": signal.url,
            "autoStart": False,
            "allowFrom": list(PEOPLE.values()),
            "groupPolicy": "open",
            "groups": {"*": {"requireMention": False}},
        }
        config = model_config(models.base_url, models.api_key, channels={"signal": section})
        config["session"] = {"dmScope": "per-channel-peer"}
        async with GatewayProcess(tmp_path / "state", config) as gateway:
            await signal.connected()
            story = Story(seed, gateway, signal)
            for _ in range(25):
                await story.act()
            await signal.repeat_all()
            async with gateway.client() as client:
                rows = await settled(client, len(story.places))
            await gateway.stop()
        check(story, rows, user_texts(gateway), signal)


def check(story: Story, rows: list[dict[str, Any]], said: dict[str, list[str]], signal: SignalDaemon) -> None:
    everything = "\n".join(text for texts in said.values() for text in texts)
    for number, (person, place) in story.places.items():
        mine = [row for row in rows if f"-{number}." in json.dumps(row) and not row["runId"].endswith(":backlog")]
        assert mine, f"message {number} was lost"
        heard = everything.count(f"canary-{person}-{place}-{number}.")
        dropped = any(row["state"] == "superseded" for row in mine)
        assert heard <= 2 if any(":backlog" in row["runId"] for row in rows) else heard <= 1, f"{number} was said twice"
        assert heard >= 1 or dropped, f"message {number} never reached the agent"
    for texts in said.values():
        whole = "\n".join(texts)
        assert not ("canary-ann-direct" in whole and "canary-bob-direct" in whole), "two people's words met"
    for call in signal.of("send"):
        for found in re.findall(r"^re (\d+)\.$", call["message"]):
            person, place = story.places[int(found)]
            if place == "group":
                assert call.get("groupId") == GROUP
            else:
                assert call.get("recipient") == [PEOPLE[person]]
