"""Several Gateways on one PostgreSQL: messages enter at every node, nodes and connections fail, the books are checked.

Used by ``test_cluster``; ``python -m tests.faults.cluster_schedules 200`` (or ``make cluster-faults``) runs the long
version. A schedule is a few messages and one trouble, at a random moment; every ten schedules all must have ended well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.faults.kill_schedules import CONNECTION_LOST, KillSchedule, Sent
from tests.support import gateway as support
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config
from tests.support.model_server import ModelServer
from tests.support.postgres import PostgresServer, needs_postgres, new_schema, stored_rows

NODES = 3
LEASE_S = 2
ANSWER_S = 15
"""How long a node may take to answer. After that the sender asks another one, as a client would."""
SETTLE_S = 180
PER_ROUND = 10
TROUBLES = ("kill", "pause", "cut", "restart", "stop")
"""A node is killed, is paused beyond its lease, or leaves; connections are cut; the server is restarted."""


class ClusterNode(ForkedGateway):
    @property
    def url(self) -> str:
        """Where it listens now: a node that was given up starts again by itself, at another port."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.port = json.loads((self.state_dir / "gateway.lock").read_text().rstrip())["port"]
        return f"http://127.0.0.1:{self.port}"


@dataclass
class ClusterSchedule(KillSchedule):
    server: PostgresServer = field(kw_only=True)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.effects = self.root / "effects"
        config = model_config(
            self.models.base_url,
            self.models.api_key,
            messages={"queue": {"mode": self.mode, "debounceMs": 0, "cap": 1000}},
            storage={"url": self.server.url, "schema": new_schema()},
            cluster={"leaseSeconds": LEASE_S},
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

    async def settle(self) -> None:
        await self.deliver()
        async with asyncio.timeout(SETTLE_S):
            for one in self.sent:
                params = {"runId": one.key, "timeoutMs": (ANSWER_S - 5) * 1000}
                while True:
                    answer = await self._at_any_node(lambda client, params=params: client.call("agent.wait", params))
                    if answer["status"] in ("ok", "error"):
                        break

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
            case _:
                await self._cut_connections()

    async def _cut_connections(self) -> None:
        """Ends some connections of all nodes, in the middle of whatever they do."""
        connection = await asyncpg.connect(self.server.url)
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'openclaw%'"
        await connection.execute(f"{cut} AND random() < {self.chance.choice((0.3, 1.0))}")
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
            for table in ("nodes", "claims", "messages", "story", "tool_calls", "transcripts", "entries"):
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
    for number, kind in enumerate(troubles):
        if number and number % PER_ROUND == 0:
            await schedule.settle()
            schedule.check()
        sessions = [f"agent:main:g{number // PER_ROUND}s{place}" for place in range(3)]
        schedule.workload(sessions, messages)
        delivery = asyncio.create_task(schedule.deliver())
        await asyncio.sleep(chance.uniform(0, 0.6))
        await schedule.trouble(kind)
        schedule.deaths[kind] += 1
        await delivery
    await schedule.settle()
    schedule.check()
    await schedule.stop_all()


async def one_round(folder: Path, seed: int, mode: str, schedules: int, kinds: list[str]) -> str:
    server = await asyncio.to_thread(lambda: PostgresServer(needs_postgres()))
    try:
        async with ModelServer(keep_requests=100) as models:
            schedule = ClusterSchedule(folder, models, seed, mode, server=server)
            await run_schedules(schedule, [schedule.chance.choice(kinds) for _ in range(schedules)])
    finally:
        await asyncio.to_thread(server.remove)
    return f"{len(schedule.sent)} messages, 0 lost, 0 twice; {dict(Counter(schedule.deaths).most_common())}"


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
