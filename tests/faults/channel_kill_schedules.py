"""The same schedule through a channel: people write on Signal, the daemon redelivers, the Gateway dies anywhere.

Every message is run once and its reply arrives. A reply may come twice only where the Gateway says so itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw.outbound.deliver import MAX_DOUBTS
from tests.faults.kill_schedules import CONNECTION_LOST, ENDS, POINTS, SETTLE_S, text_of
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon

US = "+15550000001"
PEOPLE = ("+15550000041", "+15550000042", "+15550000043")
DELIVERY = ["outbox.sending", "outbox.arrived", "outbox.sent"]
STEPS = [*POINTS, *DELIVERY, *DELIVERY]


@dataclass
class ChannelKillSchedule:
    root: Path
    models: ModelServer
    signal: SignalDaemon
    seed: int
    lives: int = 0
    said: dict[str, str] = field(default_factory=dict)
    """Who said what."""
    deaths: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    """Replies that came more than once, each of them marked."""
    death: str = "kill"

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        section = {"enabled": True, "account": US, "httpUrl": self.signal.url, "autoStart": False}
        config = model_config(
            self.models.base_url,
            self.models.api_key,
            channels={"signal": {**section, "allowFrom": list(PEOPLE)}},
            session={"dmScope": "per-channel-peer"},
            messages={"queue": {"mode": "followup", "debounceMs": 0, "cap": 1000}},
        )
        self.gateway = ForkedGateway(self.root / "state", config)

    async def start(self, *faults: dict[str, Any]) -> bool:
        """False when it died before it was connected."""
        self.lives += 1
        self.gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(faults)}
        try:
            await self.gateway.start()
            await self.signal.connected()
        except (AssertionError, TimeoutError):
            if self._returncode() is None:
                raise
            return False
        return True

    def _returncode(self) -> int | None:
        process = self.gateway._process
        assert process is not None
        with contextlib.suppress(Exception):
            process.wait(timeout=1)
        return process.returncode

    async def say(self, count: int) -> None:
        for _ in range(count):
            tag, person = f"m{self.seed}x{len(self.said)}", self.chance.choice(PEOPLE)
            self.said[tag] = person
            await self.signal.say(f"{tag} [[reply:done {tag}]]", sender=person)
        if self.chance.random() < 0.5:
            await self.signal.repeat_all()

    async def life(self, messages: int) -> None:
        """One that ends at a step of a message or of a delivery, or from outside."""
        at = self.chance.choice(STEPS)
        alive = await self.start({"at": at, "do": self.death, "hit": self.chance.randint(1, messages)})
        await self.say(messages)
        process = self.gateway._process
        assert process is not None
        if alive:
            await asyncio.wait(
                [asyncio.ensure_future(asyncio.to_thread(process.wait, 10))], timeout=self.chance.uniform(0.05, 1.5)
            )
        struck = process.poll() is not None
        self.deaths[at if struck else "from outside"] += 1
        self.gateway.kill()
        self.signal.disconnect()
        await self.signal.deserted()

    async def settle(self) -> list[dict[str, Any]]:
        """Every message there was, with its deliveries, once everything has come to an end."""
        await self.signal.repeat_all()
        async with asyncio.timeout(SETTLE_S):
            while True:
                with contextlib.suppress(*CONNECTION_LOST):
                    async with self.gateway.client() as client:
                        listed = (await client.call("messages.list", {"limit": 500}))["messages"]
                        kept = [row for row in listed if row["state"] != "held"]  # A held one has no number yet.
                        rows = [await client.call("messages.get", {"id": row["id"]}) for row in kept]
                        parts = [part for row in rows for part in row["deliveries"]]
                        over = kept == listed and all(row["state"] in ENDS for row in rows)
                        if over and len(rows) >= len(self.said) and all(p["state"] in ("sent", "dead") for p in parts):
                            return rows
                await asyncio.sleep(0.1)

    def check(self, rows: list[dict[str, Any]]) -> None:
        with contextlib.closing(sqlite3.connect(self.root / "state" / "ledger.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        sent = [(call["message"], call["recipient"][0]) for call in self.signal.of("send")]
        by_tag: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_tag.setdefault(row["text"].split()[0], []).append(row)
        assert by_tag.keys() == self.said.keys(), set(self.said) ^ set(by_tag)
        for tag, person in self.said.items():
            (row,) = by_tag[tag]
            # After a message that was given up the model answers that one too, in the same words.
            arrived = [to for text, to in sent if text.endswith(f"done {tag}")]
            assert set(arrived) <= {person}, f"{tag} was answered to somebody else"
            (part,) = row["deliveries"]  # The reply, or the one notice.
            if row["state"] == "failed":
                assert not arrived and "given up" in row["reason"] and part["state"] == "sent", tag
                continue
            if part["state"] == "dead" and part["error"].startswith("in doubt"):
                # Three lives ended while they were sending it: not sent again for ever, and the sender can learn why.
                assert row["state"] == "answered" and part["possiblyDuplicate"] and part["attempts"] == MAX_DOUBTS, row
                continue
            assert row["state"] == "answered" and arrived, f"the reply to {tag} was lost: {row}"
            assert len(arrived) == 1 or part["possiblyDuplicate"], f"the reply to {tag} came {len(arrived)} times"
            self.repeated += len(arrived) - 1
        self._check_transcripts()

    def _check_transcripts(self) -> None:
        seen: Counter[str] = Counter()
        for path in self.gateway.sessions_dir().glob("*.jsonl"):
            entries = [json.loads(line) for line in path.read_text().splitlines()]
            ids = [entry["id"] for entry in entries[1:]]
            assert len(set(ids)) == len(ids), "an entry was written twice"
            for entry in entries:
                if entry["type"] == "message" and entry["message"]["role"] == "user":
                    seen.update(set(re.findall(r"m\d+x\d+(?= \[\[reply)", text_of(entry["message"]))))
        assert seen == Counter(list(self.said)), "a message reached a transcript more than once, or never"


async def run_channel_schedules(schedule: ChannelKillSchedule, schedules: int, *, messages: int = 4) -> None:
    assert await schedule.start()
    await schedule.say(1)
    await schedule.settle()  # From here on the daemon knows where this client had got to.
    schedule.gateway.kill()
    schedule.signal.disconnect()
    await schedule.signal.deserted()
    for _ in range(schedules):
        await schedule.life(messages)
    assert await schedule.start()
    schedule.check(await schedule.settle())
    assert await schedule.gateway.stop() == 0


async def one_round(folder: Path, seed: int, mode: str, schedules: int, death: str) -> str:
    async with ModelServer(keep_requests=100) as models, SignalDaemon(US) as signal:
        schedule = ChannelKillSchedule(folder, models, signal, seed, death=death)
        try:
            await run_channel_schedules(schedule, schedules)
        finally:
            with contextlib.suppress(AssertionError):
                schedule.gateway.kill()
    return (
        f"{schedule.lives} lives, {len(schedule.said)} messages on a {mode}, 0 lost, 0 run twice,"
        f" {schedule.repeated} replies repeated and marked; deaths {dict(schedule.deaths.most_common())}"
    )
