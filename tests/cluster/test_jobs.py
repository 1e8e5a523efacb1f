"""Jobs of a cluster: a node starts its own, and the others carry on those of a node that is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from openclaw.clock import SystemClock
from openclaw.storage.message_ledger import JobRow
from openclaw.storage.postgres.ledger import PostgresLedger
from openclaw.teamwork.send import Jobs
from tests.faults.test_jobs import answer, die_at, texts
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config
from tests.support.model_server import ModelServer
from tests.support.postgres import storage_for

from .one_node import MakeNode, OneNode, until


class Carried:
    """The jobs of one node, which end as soon as they are carried on."""

    def __init__(self, node: OneNode) -> None:
        self.jobs = Jobs(PostgresLedger(node.database, SystemClock()), SystemClock(), node.claims)
        self.jobs.add_kind("test", self._carry_on)
        self.ids: list[str] = []

    async def _carry_on(self, job: JobRow) -> None:
        self.ids.append(job.id)


def young_job() -> JobRow:
    return JobRow(
        id="j1",
        kind="test",
        owner_key="agent:main:main",
        run_id="r1",
        trace="t1",
        state={},
        created_at=SystemClock().now_ms(),
    )


async def test_a_job_that_was_just_stored_is_left_to_its_node_while_that_lives(node: MakeNode) -> None:
    a, b = await node(), await node()
    first, second = Carried(a), Carried(b)
    await until(lambda: a.id in b.membership.peers)
    await first.jobs.save(young_job())
    assert await second.jobs.resume() == 0
    a.die()
    await until(lambda: a.id not in b.membership.peers)
    assert await second.jobs.resume() == 1
    await until(lambda: second.ids == ["j1"])
    await second.jobs.close()


async def test_a_restarted_node_resumes_a_sub_agent_that_it_had_just_begun(tmp_path: Path, models: ModelServer) -> None:
    """Without waiting until the job is old, which takes longer than this test waits."""
    models.answer_with(answer)
    config = model_config(models.base_url, models.api_key, storage=storage_for(tmp_path / "state"))
    gateway = ForkedGateway(tmp_path / "state", config)
    try:
        await die_at(gateway, "job.spawn.after:1", "sessions_spawn", {"task": "work hard", "label": "w"})
        async with asyncio.timeout(20), gateway.client() as client:
            while "it is done" not in await texts(client, "main"):
                await asyncio.sleep(0.02)
    finally:
        gateway.kill()
