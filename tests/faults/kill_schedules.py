"""One state directory through many lives of the Gateway: a sender that redelivers, kills at any moment, and the books.

Used by ``test_kills``; ``python -m tests.faults.kill_schedules 1000`` (or ``make faults``) runs the long version.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from openclaw.storage.files.ledger_db import BUSY_TIMEOUT_MS
from tests.support import gateway as support
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config, named
from tests.support.model_server import ModelServer
from tests.support.postgres import stored_rows

ENDS = {"answered", "silent", "failed", "superseded", "expired"}
SETTLE_S = 60
LOCK_EVERY, LOCK_S = 25, BUSY_TIMEOUT_MS / 1000 + 0.3
"""In every so many schedules another program locks the ledger for about this long."""
POINTS = [
    *("accept.before", "accept.after", "ack", "run.start", "user.before", "user.after", "model.call"),
    *("answer.before", "answer.after", "tool.before", "tool.noted", "tool.ran", "tool.stored"),
    *("sync.before", "sync.after", "finish.before", "finish.after", "commit.before", "commit.after"),
]
CONNECTION_LOST = (aiohttp.ClientError, ConnectionError, TimeoutError, AssertionError, RuntimeError)


@dataclass
class Sent:
    key: str
    session: str
    text: str
    tool: bool
    tries: int = 0
    acknowledged: bool = False


@dataclass
class KillSchedule:
    root: Path
    models: ModelServer
    seed: int
    mode: str = "followup"
    sent: list[Sent] = field(default_factory=list)
    lives: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    ready_s: list[float] = field(default_factory=list)
    struck: bool = False
    """Whether the last life ended at its fault, not from outside."""
    death: str = "kill"
    """How the Gateway dies: ``kill`` or ``power cut``."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.armed = self.root / "armed"
        self.effects = self.root / "effects"
        queue = {"mode": self.mode, "debounceMs": 0, "cap": 1000}
        config = model_config(self.models.base_url, self.models.api_key, messages={"queue": queue})
        self.gateway = ForkedGateway(self.root / "state", config)

    # What is sent

    def message(self, session: str, kind: str) -> Sent:
        tag = f"m{self.seed}x{len(self.sent)}"
        command = json.dumps({"command": f"echo {tag} >> {self.effects}"})
        tools = {"tool": 1, "tools": 2}.get(kind, 0)
        extra = json.dumps({"command": f"echo {tag}-more >> {self.effects}"})
        calls = "".join(f"[[tool:exec {one}]]" for one in (command, extra)[:tools])
        slow = "[[delay:2]]" if kind == "slow" else ""
        words = "and so on " * 20 if kind == "slow" else ""
        text = f"{tag} {calls}{'[[next]]' if calls else ''}{slow}[[reply:{words}done {tag}]]"
        sent = Sent(tag, session, text, bool(tools))
        self.sent.append(sent)
        return sent

    def workload(self, sessions: list[str], count: int) -> list[Sent]:
        kinds = ["plain", "slow", "tool", "tools"]
        return [self.message(self.chance.choice(sessions), self.chance.choice(kinds)) for _ in range(count)]

    # Lives

    async def start(self, faults: list[dict[str, Any]]) -> bool:
        """False when it died before it was ready."""
        self.lives += 1
        self.gateway.env |= {
            "OPENCLAW_FAULT_INJECTION": "allow",
            "OPENCLAW_FAULT_PLAN": json.dumps([{"while": str(self.armed), **fault} for fault in faults]),
        }
        began = time.monotonic()
        try:
            await self.gateway.start()
        except AssertionError:
            if not self.died():
                raise
            return False
        self.ready_s.append(time.monotonic() - began)
        return True

    def died(self) -> bool:
        process = self.gateway._process
        assert process is not None
        with contextlib.suppress(Exception):
            process.wait(timeout=2)
        return process.returncode is not None and process.returncode < 0

    def kill(self) -> None:
        self.gateway.kill()

    async def deliver(self) -> None:
        """Sends everything without an acknowledgement again, each session in order; some that had one as well."""
        with contextlib.suppress(*CONNECTION_LOST):
            async with self.gateway.client() as client:
                waiting: dict[str, list[Sent]] = {}
                for one in self.sent:
                    if not one.acknowledged:
                        waiting.setdefault(one.session, []).append(one)
                again = self.chance.sample(self.sent, min(2, len(self.sent)))
                await asyncio.gather(
                    *(self._deliver_in_order(client, part) for part in waiting.values()),
                    *(self._redeliver(client, one) for one in again if one.acknowledged),
                )

    async def deliver_until_death(self, within_s: float = SETTLE_S) -> None:
        """Sends until the fault strikes; if it does not in time, the end comes from outside."""
        process = self.gateway._process
        assert process is not None
        delivery = asyncio.create_task(self.deliver())
        death = asyncio.create_task(asyncio.to_thread(process.wait))
        await asyncio.wait([death], timeout=within_s)
        self.struck = process.poll() is not None
        if not self.struck:
            self.kill()
        await death
        delivery.cancel()
        await asyncio.wait([delivery])
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            raise error

    async def deliver_beside_lock(self, seconds: float) -> None:
        """Sends everything while another program locks the ledger for longer than the Gateway waits for it."""
        unlock = threading.Event()

        def lock() -> None:
            path = self.root / "state" / "ledger.db"
            with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=SETTLE_S)) as database:
                database.execute("BEGIN EXCLUSIVE")
                unlock.wait(seconds)
                database.execute("ROLLBACK")

        delivery = asyncio.create_task(self._deliver_patiently())
        await asyncio.sleep(self.chance.uniform(0, 0.3))
        locking = asyncio.create_task(asyncio.to_thread(lock))
        try:
            await asyncio.wait([locking, delivery])
            await delivery
        finally:
            unlock.set()
            await locking

    async def _deliver_patiently(self) -> None:
        """Sends until everything is acknowledged. What is refused must say why, and is sent again."""
        async with asyncio.timeout(SETTLE_S):
            while not all(one.acknowledged for one in self.sent):
                try:
                    await self.deliver()
                except RequestFailed as refused:
                    assert "locked by another program" in str(refused), refused
                await asyncio.sleep(0.05)

    async def _deliver_in_order(self, client: WireClient, messages: list[Sent]) -> None:
        for one in messages:
            one.tries += 1
            await self._send(client, one)
            one.acknowledged = True

    async def _redeliver(self, client: WireClient, one: Sent) -> None:
        answer = await self._send(client, one)
        if answer.get("status") == "started":
            raise ValueError(f"{one.key} was acknowledged before and was started anew")

    async def _send(self, client: WireClient, one: Sent) -> dict[str, Any]:
        params = {**named(one.session), "message": one.text, "idempotencyKey": one.key}
        try:
            return await client.call("chat.send", params, timeout=SETTLE_S)
        except RequestFailed as failed:
            # Given up in an earlier life: the acknowledgement says so.
            if (failed.payload or {}).get("status") == "error":
                return failed.payload
            raise

    async def settle(self) -> None:
        """Everything sent is delivered and has ended; called while no fault is armed."""
        await self.deliver()
        async with self.gateway.client() as client:
            for one in self.sent:
                params = {"runId": one.key, "timeoutMs": SETTLE_S * 1000}
                answer = await client.call("agent.wait", params, timeout=SETTLE_S + 5)
                assert answer["status"] in ("ok", "error"), f"{one.key}: {answer}"

    # The books

    def check(self) -> None:
        rows = self._check_ledger()
        seen: Counter[str] = Counter()
        for session_id in {row["session_id"] for row in rows.values()}:
            own = [one for one in self.sent if rows[one.key]["session_id"] == session_id]
            self._check_transcript(session_id, own, rows, seen)
        for one in self.sent:
            # Power cuts can take the words of a message each time before they are synced, until it is given up.
            never = self.death == "power cut" and rows[one.key]["code"] == "crashed"
            assert seen[one.key] == 1 or never, f"{one.key} reached the transcript {seen[one.key]} times"
        effects = Counter(self.effects.read_text().split()) if self.effects.exists() else Counter()
        twice = [tag for tag, count in effects.items() if count > 1]
        assert not twice, f"side effects made twice: {twice}"

    def _ledger(self) -> tuple[list[Any], list[Any]]:
        """The rows of the messages and of their stories, wherever they are kept."""
        if (storage := self.gateway.storage) is not None:
            return stored_rows(storage, "SELECT * FROM messages"), stored_rows(storage, "SELECT * FROM story")
        with contextlib.closing(sqlite3.connect(self.root / "state" / "ledger.db")) as database:
            database.row_factory = sqlite3.Row
            assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            select = "SELECT * FROM"
            return database.execute(f"{select} messages").fetchall(), database.execute(f"{select} story").fetchall()

    def _check_ledger(self) -> dict[str, Any]:
        messages, story = self._ledger()
        rows = {row["run_id"]: row for row in messages}
        ends = Counter(row["ledger_id"] for row in story if row["state"] in ENDS)
        assert rows.keys() == {one.key for one in self.sent}
        for row in rows.values():
            assert row["state"] in ENDS and row["ended_at"], f"{row['run_id']} has no end: {dict(row)}"
            assert ends[row["id"]] == 1, f"{row['run_id']} ended {ends[row['id']]} times"
        return rows

    def _check_transcript(self, session_id: str, own: list[Sent], rows: dict[str, Any], seen: Counter[str]) -> None:
        entries = self.gateway.transcript(session_id)
        ids = [entry["id"] for entry in entries[1:]]
        assert len(set(ids)) == len(ids), "an entry was written twice"
        messages = [entry["message"] for entry in entries if entry["type"] == "message"]
        asked = [text_of(message) for message in messages if message["role"] == "user"]
        order: list[int] = []
        for text in asked:
            inside = [one for one in own if f"[message_id: {one.key}]" in text]
            seen.update(one.key for one in inside)
            order += [rows[one.key]["id"] for one in inside]
        assert order == sorted(order), "messages of one session changed places"
        results = Counter(message["toolCallId"] for message in messages if message["role"] == "toolResult")
        assert all(count == 1 for count in results.values()), "a tool call has two results"
        calls = [
            block["id"]
            for message in messages
            if message["role"] == "assistant" and message["stopReason"] == "toolUse"
            for block in message["content"]
            if block["type"] == "toolCall"
        ]
        assert set(calls) == set(results), "a tool call was left without its result"
        if self.mode == "followup":
            self._check_answers(own, rows, [message for message in messages if message["role"] == "assistant"])

    def _check_answers(self, own: list[Sent], rows: dict[str, Any], answers: list[dict[str, Any]]) -> None:
        finals = Counter(text_of(answer).split()[-1] for answer in answers if answer["stopReason"] == "stop")
        notices = [answer for answer in answers if "given up" in answer.get("errorMessage", "")]
        failed = [one for one in own if rows[one.key]["state"] == "failed"]
        for one in own:
            expected = 0 if one in failed else 1
            assert finals[one.key] == expected, f"{one.key} ({rows[one.key]['state']}) has {finals[one.key]} answers"
            assert rows[one.key]["state"] in ("answered", "failed")
        assert len(notices) <= len(failed)


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


async def run_schedules(schedule: KillSchedule, schedules: int, *, messages: int = 4) -> None:
    """Each schedule: messages are sent, the Gateway dies somewhere, at times again while recovering; then the books."""
    chance = schedule.chance
    for number in range(schedules):
        sessions = [f"agent:main:g{number // 10}s{place}" for place in range(3)]
        at = chance.choice([*POINTS, "*", "write", "sync"])
        often = {"*": 80, "write": 30, "sync": 8, "commit.before": 16, "commit.after": 16}.get(at, messages)
        fault = {"at": at, "do": schedule.death, "hit": chance.randint(1, often)}
        locks = number % LOCK_EVERY == LOCK_EVERY - 1
        if locks:  # No other fault strikes in this life.
            schedule.armed.unlink(missing_ok=True)
        alive = await schedule.start([fault])
        if alive and not schedule.armed.exists():
            await schedule.settle()
            schedule.check()
            if not locks:
                schedule.armed.touch()
        schedule.workload(sessions, messages)
        schedule.struck = not alive
        if locks:
            await schedule.deliver_beside_lock(chance.uniform(LOCK_S, LOCK_S + 2))
            schedule.kill()
        elif alive:
            await schedule.deliver_until_death(within_s=chance.uniform(0.05, 1.5))
        schedule.deaths[str(fault["at"]) if schedule.struck else "from outside"] += 1
        # One time in four the next life is in danger from its first moment.
        if chance.random() < 0.75:
            schedule.armed.unlink(missing_ok=True)
    schedule.armed.unlink(missing_ok=True)
    await schedule.start([])
    await schedule.settle()
    schedule.check()
    assert await schedule.gateway.stop() == 0


async def main(schedules: int, seed: int, modes: list[str], deaths: list[str]) -> None:
    """In rounds of fifty, each with a state directory of its own; that of a round that fails is kept."""
    from tests.faults.channel_kill_schedules import one_round as through_a_channel

    for place in range(max(1, schedules // 50)):
        mode, folder = modes[place % len(modes)], Path(tempfile.mkdtemp(prefix="schedule-"))
        death = deaths[place // len(modes) % len(deaths)]
        play = through_a_channel if mode == "channel" else one_round
        began = time.monotonic()
        try:
            told = await play(folder, seed + place, mode, min(schedules, 50), death)
        except BaseException:
            print(f"seed {seed + place} ({mode}) failed; its files are in {folder}")
            raise
        shutil.rmtree(folder)
        print(f"seed {seed + place} {mode}, {death}: {told}; {time.monotonic() - began:.0f} s", flush=True)


async def one_round(folder: Path, seed: int, mode: str, schedules: int, death: str) -> str:
    async with ModelServer(keep_requests=100) as models:
        schedule = KillSchedule(folder, models, seed, mode, death=death)
        try:
            await run_schedules(schedule, schedules)
        finally:
            with contextlib.suppress(AssertionError):
                schedule.kill()
    return (
        f"{schedule.lives} lives, {len(schedule.sent)} messages, 0 lost, 0 twice, 0 without an end;"
        f" ready in {statistics.median(schedule.ready_s):.2f} s (most {max(schedule.ready_s):.2f});"
        f" deaths {dict(schedule.deaths.most_common())}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kills the Gateway again and again and checks its books.")
    parser.add_argument("schedules", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", nargs="+", default=["followup", "collect", "channel", "steer"])
    parser.add_argument("--deaths", nargs="+", default=["kill", "power cut"], choices=["kill", "power cut"])
    options = parser.parse_args()
    # Streams that break off are the point here, not news.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    support.START_S = 120
    sys.exit(asyncio.run(main(options.schedules, options.seed, options.modes, options.deaths)))
