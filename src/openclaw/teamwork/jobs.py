"""Jobs: work that goes on beyond the run that asked for it, and beyond the life of the process.

A job is a row of the ledger. Its kind has one function that carries it from wherever it is to its end. Each step of a
job is a message with a run id made from the job's id (``step_id``). The ledger takes a run id only once, so a step that
is repeated after a crash starts nothing new, and what came of it is found under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from openclaw.clock import Clock
from openclaw.cluster.claims import Claims, SoleClaims
from openclaw.storage import faults
from openclaw.storage.base import Fenced, JobRow, Ledger
from openclaw.storage.disk_errors import until_written

log = logging.getLogger("openclaw.teamwork.jobs")

CarryOn = Callable[[JobRow], Awaitable[None]]
PAUSES_S = (1.0, 10.0, 60.0)
"""The pauses after the first, second … failure of our own. After the last one the job is given up."""

NEW_MS = 10_000
"""How old a job must be before another node than its own looks whether somebody carries it on."""


class Jobs:
    def __init__(self, ledger: Ledger, clock: Clock, claims: Claims | None = None) -> None:
        self._claims = claims or SoleClaims()
        self._ledger = ledger
        self._clock = clock
        self._kinds: dict[str, CarryOn] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def add_kind(self, kind: str, carry_on: CarryOn) -> None:
        self._kinds[kind] = carry_on

    async def resume(self) -> int:
        """Goes on with the jobs that an earlier process left. Returns their number."""
        left = await self._ledger.jobs(ended=False)
        if not self._claims.alone:
            # A job that has just been stored is about to be started by the node that stored it.
            before = self._clock.now_ms() - NEW_MS
            left = [job for job in left if job.created_at < before]
        for job in left:
            self.start(job, left=True)
        return len(left)

    def start(self, job: JobRow, *, left: bool = False) -> None:
        """Carries the job on. It must be in the ledger. ``left``: another process may have carried it before."""
        if self._closed or job.id in self._tasks or job.kind not in self._kinds:
            return
        task = asyncio.create_task(self._carry_on(job, left), name=f"job {job.kind}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    async def save(self, job: JobRow) -> None:
        """Stores where the job is. A full disk is waited out."""
        faults.point(f"job.{job.kind}.before")
        await until_written(lambda: self._ledger.job_put(job), self._clock.sleep)
        faults.point(f"job.{job.kind}.after")

    async def end(self, job: JobRow) -> None:
        job.ended_at = self._clock.now_ms()
        await self.save(job)

    async def close(self) -> None:
        """Lets go of the jobs. The next start goes on with them."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_on(self, job: JobRow, left: bool) -> None:
        if self._claims.alone:
            await self._lead(job)
            return
        # Every node looks at the jobs that are left, and one of them carries each on.
        name = f"job:{job.id}"
        if (await self._claims.claim(name)).mine:
            try:
                now = await self._ledger.job(job.id) if left else job
                if now is not None and now.ended_at is None:
                    await self._lead(now)
            finally:
                with contextlib.suppress(OSError, Fenced):
                    await self._claims.release(name)

    async def _lead(self, job: JobRow) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                await self._kinds[job.kind](job)
                if job.ended_at is None:
                    await self.end(job)
                return
            except Exception as problem:
                log.exception("job %s (%s) failed", job.id, job.kind)
                if pause_s is None:
                    job.state["problem"] = f"{type(problem).__name__}: {problem}"
                    await self.end(job)
                    return
            await self._clock.sleep(pause_s)
