"""Jobs: work that goes on beyond the run that asked for it, and beyond the life of the process.

A job is a row of the ledger. Its kind has one function that carries it from wherever it is to its end. Each step of a
job is a message with a run id made from the job's id (``step_id``). The ledger takes a run id only once, so a step that
is repeated after a crash starts nothing new, and what came of it is found under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from openclaw.clock import Clock
from openclaw.storage import faults
from openclaw.storage.base import JobRow, Ledger
from openclaw.storage.disk_errors import until_written

log = logging.getLogger("openclaw.teamwork.jobs")

CarryOn = Callable[[JobRow], Awaitable[None]]
PAUSES_S = (1.0, 10.0, 60.0)
"""The pauses after the first, second … failure of our own. After the last one the job is given up."""


class Jobs:
    def __init__(self, ledger: Ledger, clock: Clock) -> None:
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
        for job in left:
            self.start(job)
        return len(left)

    def start(self, job: JobRow) -> None:
        """Carries the job on. It must be in the ledger."""
        if self._closed or job.id in self._tasks or job.kind not in self._kinds:
            return
        task = asyncio.create_task(self._carry_on(job), name=f"job {job.kind}")
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

    async def _carry_on(self, job: JobRow) -> None:
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
