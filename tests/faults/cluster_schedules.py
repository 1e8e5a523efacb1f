"""Several Gateways on one PostgreSQL: messages enter at every node, nodes and connections fail, the books are checked.

Used by ``test_cluster``; ``python -m tests.faults.cluster_schedules 200`` (or ``make cluster-faults``) runs the long
version. A schedule is one trouble at a random moment, while clients send at every node, people write on a channel whose
account moves, a job becomes due, and a run is stopped and awaited from other nodes than the one that has it. Every ten
schedules all must have ended well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from tests.faults.channel_kill_schedules import PEOPLE, US
from tests.faults.kill_schedules import CONNECTION_LOST, ENDS, KillSchedule, Sent, text_of
from tests.support import gateway as support
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config
from tests.support.model_server import ModelServer
from tests.support.postgres import ServerPair, needs_postgres, new_schema, stored_rows
from tests.support.signal_daemon import SignalDaemon

NODES = 3
LEASE_S = 2
ANSWER_S = 15
"""How long a node may take to answer. After that the sender asks another one, as a client would."""
SETTLE_S = 180
PER_ROUND = 10
TAG = re.compile(r"\b[pjs]\d+x\d+\b")
"""The first word of a message on the channel, of a job, and of a run that is stopped."""
BOOKS = ("messages", "story", "tool_calls", "outbox", "transcripts", "entries")
TROUBLES = ("kill", "pause", "cut", "restart", "stop", "lock", "failover")
"""A node is killed, is paused beyond its lease, or leaves; connections are cut; the server is restarted; another
program locks the ledger for longer than the lock time-out; the server dies, and its standby is read-only for some time.
"""
LOCK_TIMEOUT_MS = 500


class ClusterNode(ForkedGateway):
    @property
    def url(self) -> str:
        """Where it listens now: a node that was given up starts again by itself, at another port."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.port = json.loads((self.state_dir / "gateway.lock").read_text().rstrip())["port"]
        return f"http://127.0.0.1:{self.port}"


@dataclass
class ClusterSchedule(KillSchedule):
    server: ServerPair = field(kw_only=True)
    signal: SignalDaemon = field(kw_only=True)
    said: dict[str, str] = field(default_factory=dict)
    """Who said what on the channel, in order."""
    jobs: list[str] = field(default_factory=list)
    """The names of the jobs that become due once."""
    stopped: list[str] = field(default_factory=list)
    """The ids of runs that somebody stops."""
    repeated: int = 0
    """Replies that came more than once, each of them marked."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.effects = self.root / "effects"
        account = {"enabled": True, "account": US, "httpUrl": self.signal.url, "autoStart": False}
        config = model_config(
            self.models.base_url,
            self.models.api_key,
            # On the channel each message has its own reply, so that replies can be counted.
            messages={"queue": {"mode": self.mode, "debounceMs": 0, "cap": 1000, "byChannel": {"signal": "followup"}}},
            storage={"url": f"{self.server.url}&lock_timeout={LOCK_TIMEOUT_MS}", "schema": new_schema()},
            cluster={"leaseSeconds": LEASE_S},
            channels={"signal": {**account, "allowFrom": list(PEOPLE)}},
            session={"dmScope": "per-channel-peer"},
        )
        folders = [self.root / f"node-{number}" for number in range(NODES)]
        for folder in folders:
            folder.mkdir(parents=True)
        self.nodes = [ClusterNode(folder / "state", config) for folder in folders]
        self.gateway = self.nodes[0]
        """Where the books are read. They are the same for all nodes."""

    # Messages

    async def deliver(self) -> None:
        """Sends everything without an acknowledgement, each session in order, each message to any of the nodes."""
        waiting: dict[str, list[Sent]] = {}
        for one in self.sent:
            if not one.acknowledged:
                waiting.setdefault(one.session, []).append(one)
        again = [one for one in self.chance.sample(self.sent, min(2, len(self.sent))) if one.acknowledged]
        async with asyncio.timeout(SETTLE_S):
            await asyncio.gather(*map(self._deliver_session, waiting.values()), *map(self._send_again, again))

    async def _deliver_session(self, messages: list[Sent]) -> None:
        for one in messages:
            await self._at_any_node(lambda client, one=one: self._send(client, one))
            one.acknowledged = True

    async def _send_again(self, one: Sent) -> None:
        answer = await self._at_any_node(lambda client: self._send(client, one))
        assert answer.get("status") != "started", f"{one.key} was acknowledged before and was started anew"

    async def _at_any_node(self, ask: Callable[[WireClient], Awaitable[Any]]) -> Any:
        """Asks a node, and another one when that fails, until one answers."""
        while True:
            node = self.chance.choice(self.nodes)
            with contextlib.suppress(RequestFailed, *CONNECTION_LOST):
                async with asyncio.timeout(ANSWER_S), node.client() as client:
                    return await ask(client)
            await asyncio.sleep(0.05)

    async def say(self, count: int = 1) -> None:
        """People write on the channel, whichever node has its account, or none for the moment."""
        for _ in range(count):
            tag, person = f"p{self.seed}x{len(self.said)}", self.chance.choice(PEOPLE)
            self.said[tag] = person
            await self.signal.say(f"{tag} [[reply:done {tag}]]", sender=person)

    async def schedule_job(self) -> None:
        """Adds a job that becomes due in the middle of the trouble."""
        tag = f"j{self.seed}x{len(self.jobs)}"
        self.jobs.append(tag)
        command = json.dumps({"command": f"echo {tag} >> {self.effects}"})
        job: dict[str, Any] = {
            "name": tag,
            "sessionTarget": "isolated",
            "wakeMode": "next-heartbeat",
            "payload": {"kind": "agentTurn", "message": f"{tag} [[tool:exec {command}]][[next]][[reply:done {tag}]]"},
            "delivery": {"mode": "none"},
            "deleteAfterRun": False,  # So that somebody who got no answer finds it in the list.
        }

        async def add(client: WireClient) -> None:
            listed = await client.call("cron.list", {"includeDisabled": True})
            if not any(one["name"] == tag for one in listed["jobs"]):
                due = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(0.3, 2))
                await client.call("cron.add", {**job, "schedule": {"kind": "at", "at": due.isoformat()}})

        await self._at_any_node(add)

    async def stop_a_run(self) -> None:
        """A run is begun at one node, awaited at another and stopped at a third, whoever has it."""
        key = f"s{self.seed}x{len(self.stopped)}"
        one = Sent(key, f"agent:main:stop{len(self.stopped) % 5}", f"{key} [[delay:5]][[reply:{'so on ' * 50}]]", False)
        self.stopped.append(key)
        await self._at_any_node(lambda client: self._send(client, one))
        waiting = asyncio.create_task(self._wait_for(key))
        stop = {"sessionKey": one.session, "runId": key}
        await self._at_any_node(lambda client: client.call("chat.abort", stop))
        await waiting

    async def _wait_for(self, run_id: str) -> None:
        params = {"runId": run_id, "timeoutMs": (ANSWER_S - 5) * 1000}
        while True:
            answer = await self._at_any_node(lambda client: client.call("agent.wait", params))
            if answer["status"] in ("ok", "error"):
                return

    async def settle(self) -> None:
        await self.deliver()
        async with asyncio.timeout(SETTLE_S):
            for one in self.sent:
                await self._wait_for(one.key)
            while not await asyncio.to_thread(self._all_over):
                await asyncio.sleep(0.2)
        # What the platform delivers again, to whichever node has the account now, is known.
        await self.signal.repeat_all()

    def _all_over(self) -> bool:
        """Whether what came through the channel and the scheduler has ended, and every reply is sent or given up."""
        # Asked once, since another job could begin between two questions. The parts of a reply are stored with its end.
        others = self._others()
        waiting = self._rows("SELECT 1 FROM outbox WHERE state NOT IN ('sent', 'dead')")
        expected = len((*self.said, *self.jobs, *self.stopped))
        return not waiting and len(others) >= expected and all(row["ended_at"] for row in others)

    # The books

    def _rows(self, statement: str) -> list[dict[str, Any]]:
        assert self.gateway.storage is not None
        return stored_rows(self.gateway.storage, statement)

    def _others(self) -> list[dict[str, Any]]:
        """The messages that no client has sent with a key of its own."""
        sent = {one.key for one in self.sent}
        return [row for row in self._rows("SELECT * FROM messages ORDER BY id") if row["run_id"] not in sent]

    def _ledger(self) -> tuple[list[Any], list[Any]]:
        others = {row["run_id"] for row in self._others()}
        messages, story = super()._ledger()
        return [row for row in messages if row["run_id"] not in others], story

    def check(self) -> None:
        super().check()
        others, ends = self._others(), Counter[int]()
        ends.update(row["ledger_id"] for row in self._rows("SELECT * FROM story") if row["state"] in ENDS)
        by_tag: dict[str, list[dict[str, Any]]] = {}
        for row in others:
            by_tag.setdefault(TAG.findall(row["body"].decode())[0], []).append(row)
            assert ends[row["id"]] == 1, f"{row['run_id']} ended {ends[row['id']]} times"
        expected = Counter((*self.said, *self.jobs, *self.stopped))
        assert Counter({tag: len(rows) for tag, rows in by_tag.items()}) == expected, "lost, or taken twice"
        lines = self._rows("SELECT body FROM entries WHERE type = 'message'")
        asked = [message for row in lines if (message := json.loads(row["body"])["message"])["role"] == "user"]
        seen = Counter(tag for one in asked for tag in set(TAG.findall(text_of(one).partition("[[")[0])))
        assert all(seen[tag] == 1 for tag in (*self.said, *self.jobs)), "a message is in a transcript twice, or never"
        self._check_replies({tag: by_tag[tag][0] for tag in self.said})

    def _check_replies(self, rows: dict[str, dict[str, Any]]) -> None:
        """Every reply arrived, at its person, in order. Only those that are marked may have come more than once."""
        parts = {row["ledger_id"]: row for row in self._rows("SELECT * FROM outbox")}
        sent = [(call["message"], call["recipient"][0]) for call in self.signal.of("send")]
        first: dict[str, list[int]] = {}
        self.repeated = 0
        for tag, person in self.said.items():
            places = [place for place, (text, _) in enumerate(sent) if text.endswith(f"done {tag}")]
            assert {sent[place][1] for place in places} <= {person}, f"{tag} was answered to somebody else"
            row, part = rows[tag], parts[rows[tag]["id"]]
            if row["state"] == "failed" or part["state"] == "dead":
                assert "crashed" in row["code"] or part["doubts"], f"{tag}: {row} {part}"
                continue
            assert row["state"] == "answered" and places, f"the reply to {tag} was lost: {row} {part}"
            assert len(places) == 1 or part["doubts"], f"the reply to {tag} came {len(places)} times"
            self.repeated += len(places) - 1
            first.setdefault(person, []).append(places[0])
        assert all(places == sorted(places) for places in first.values()), "replies changed places"

    # Troubles

    async def trouble(self, kind: str) -> None:
        node = self.chance.choice(self.nodes)
        match kind:
            case "kill":
                node.kill()
                await asyncio.sleep(self.chance.uniform(0, 1.5))
                await node.start()
            case "pause":
                os.kill(node.pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(LEASE_S + self.chance.uniform(0.5, 2))
                finally:
                    os.kill(node.pid, signal.SIGCONT)
            case "stop":
                assert await node.stop() == 0
                await node.start()
            case "restart":
                await asyncio.to_thread(self.server.restart)
            case "failover":
                await asyncio.to_thread(self.server.fail_over, self.chance.uniform(0, 4))
            case "lock":
                await self._lock_ledger(self.chance.uniform(0.5, 4) * LOCK_TIMEOUT_MS / 1000)
            case _:
                await self._cut_connections()

    async def _cut_connections(self) -> None:
        """Ends some connections of all nodes, in the middle of whatever they do."""
        connection = await asyncpg.connect(self.server.url)
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'openclaw%'"
        await connection.execute(f"{cut} AND random() < {self.chance.choice((0.3, 1.0))}")
        await connection.close()

    async def _lock_ledger(self, seconds: float) -> None:
        """Another program, for example one that changes a table, keeps all nodes from their messages."""
        assert self.gateway.storage is not None
        schema = {"search_path": self.gateway.storage["schema"]}
        connection = await asyncpg.connect(self.server.url, server_settings=schema)
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {self.chance.choice(('messages', 'claims', 'nodes'))}")
            await asyncio.sleep(seconds)
        await connection.close()

    async def start_all(self) -> None:
        await asyncio.gather(*(node.start() for node in self.nodes))

    async def stop_all(self) -> None:
        for node in self.nodes:
            assert await node.stop() == 0, node.errors()

    def keep_books(self) -> None:
        """Writes down what the database holds, because it goes when the round ends."""
        storage = self.gateway.storage
        assert storage is not None
        with (self.root / "books").open("w") as file:
            for table in ("nodes", "claims", "documents", *BOOKS):
                print(f"-- {table}", *stored_rows(storage, f"SELECT * FROM {table}"), sep="\n", file=file)

    def kill_all(self) -> None:
        for node in self.nodes:
            with contextlib.suppress(AssertionError, ProcessLookupError):
                os.kill(node.pid, signal.SIGCONT)
                node.kill()


async def run_schedules(schedule: ClusterSchedule, troubles: list[str], *, messages: int = 5) -> None:
    """Whatever still runs at the end is killed. What a round that fails leaves in the database is written down."""
    try:
        await _run_schedules(schedule, troubles, messages)
    except BaseException:
        schedule.keep_books()
        raise
    finally:
        schedule.kill_all()


async def _run_schedules(schedule: ClusterSchedule, troubles: list[str], messages: int) -> None:
    chance = schedule.chance
    await schedule.start_all()
    await schedule.signal.connected()
    await schedule.say()
    await schedule.settle()  # From here on the daemon knows how far the account has come.
    for number, kind in enumerate(troubles):
        if number and number % PER_ROUND == 0:
            await schedule.settle()
            schedule.check()
        sessions = [f"agent:main:g{number // PER_ROUND}s{place}" for place in range(3)]
        schedule.workload(sessions, messages)
        async with asyncio.TaskGroup() as tasks:
            for work in (schedule.deliver(), schedule.say(2), schedule.schedule_job(), schedule.stop_a_run()):
                tasks.create_task(work)
            await asyncio.sleep(chance.uniform(0, 0.6))
            await schedule.trouble(kind)
            await schedule.say()
            schedule.deaths[kind] += 1
    await schedule.settle()
    schedule.check()
    await schedule.stop_all()


async def one_round(folder: Path, seed: int, mode: str, schedules: int, kinds: list[str]) -> str:
    server = await asyncio.to_thread(lambda: ServerPair(needs_postgres()))
    try:
        async with ModelServer(keep_requests=100) as models, SignalDaemon(US) as daemon:
            schedule = ClusterSchedule(folder, models, seed, mode, server=server, signal=daemon)
            await run_schedules(schedule, [schedule.chance.choice(kinds) for _ in range(schedules)])
    finally:
        await asyncio.to_thread(server.remove)
    return (
        f"{len(schedule.sent)} messages of clients, {len(schedule.said)} on a channel ({schedule.repeated} replies"
        f" repeated and marked), {len(schedule.jobs)} jobs, {len(schedule.stopped)} stopped runs: 0 lost, 0 twice,"
        f" 0 without an end; {dict(Counter(schedule.deaths).most_common())}"
    )


async def main(schedules: int, seed: int, modes: list[str], kinds: list[str]) -> None:
    """In rounds of twenty, each with a server and folders of its own; those of a round that fails are kept."""
    each = 2 * PER_ROUND
    for place in range(max(1, schedules // each)):
        mode, folder = modes[place % len(modes)], Path(tempfile.mkdtemp(prefix="cluster-"))
        began = time.monotonic()
        try:
            told = await one_round(folder, seed + place, mode, min(schedules, each), kinds)
        except BaseException:
            print(f"seed {seed + place} ({mode}) failed; its files are in {folder}")
            raise
        shutil.rmtree(folder)
        print(f"seed {seed + place} {mode}: {told}; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Troubles a cluster again and again and checks its books.")
    parser.add_argument("schedules", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", nargs="+", default=["followup", "collect", "steer"])
    parser.add_argument("--troubles", nargs="+", default=list(TROUBLES), choices=TROUBLES)
    options = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    support.START_S = 120
    sys.exit(asyncio.run(main(options.schedules, options.seed, options.modes, options.troubles)))
