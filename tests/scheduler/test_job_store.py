"""The list of jobs and its journal, on files and in PostgreSQL: cheap steps, nothing lost, and edits by others stay."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from openclaw.scheduler.jobs import REWRITE_S, Job, JobError, JobStep, JobStore
from openclaw.storage.documents import DocumentStore
from tests.storage.conformance.stores import FileStores, PostgresStores, Stores
from tests.storage.still_clock import StillClock
from tests.support.clock import HeldClock
from tests.support.postgres import postgres_server, shared_schema

LIST, JOURNAL = "cron/jobs.json", "cron/jobs.json.journal"
JOBS = 5


@pytest.fixture(params=["files", "postgres"])
async def documents(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DocumentStore]:
    opened: Stores = FileStores(StillClock(), tmp_path)
    if request.param == "postgres":
        opened = PostgresStores(StillClock(), tmp_path, postgres_server().url, shared_schema(), begin_empty=True)
    await opened.open()
    yield opened.documents
    await opened.close()


@pytest.fixture
async def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
async def store(documents: DocumentStore, clock: HeldClock) -> JobStore:
    """A store of five jobs, whose list was rewritten just now."""
    made = JobStore(documents, LIST, clock)
    await made.change(lambda jobs: jobs.update({job["id"]: job for job in map(job_number, range(JOBS))}))
    await made.step("0", lambda job: note(job, runId="first"), busy=False)
    return made


def job_number(number: int) -> Job:
    schedule = {"kind": "every", "everyMs": 60_000, "anchorMs": 0}
    payload = {"kind": "agentTurn", "message": "Brief me"}
    fixed = {"name": "Brief", "enabled": True, "updatedAtMs": 1, "schedule": schedule, "payload": payload}
    return {"id": str(number), **fixed, "state": {"nextRunAtMs": 60_000}}


def note(job: Job, **facts: Any) -> Job:
    return {**job, "state": {name: value for name, value in {**job["state"], **facts}.items() if value is not None}}


async def listed(documents: DocumentStore) -> dict[str, Job]:
    """The jobs as the list alone has them."""
    found = await documents.get(LIST)
    return {job["id"]: job for job in json.loads(found.data)["jobs"]} if found is not None else {}


async def edit_list(documents: DocumentStore, job_id: str, **fields: Any) -> None:
    """What a person with an editor does, or another Gateway."""
    found = await documents.get(LIST)
    assert found is not None
    content = json.loads(found.data)
    for job in content["jobs"]:
        if job["id"] == job_id:
            job.update(fields)
    await documents.put(LIST, json.dumps(content).encode(), found.version)


async def after_a_crash(documents: DocumentStore, clock: HeldClock) -> dict[str, Job]:
    other = JobStore(documents, LIST, clock)
    await other.refresh()
    return other.jobs


async def test_the_list_is_not_rewritten_for_each_step_of_many_jobs(
    store: JobStore, documents: DocumentStore, clock: HeldClock
) -> None:
    before = await documents.version(LIST)
    for number in range(JOBS):
        await store.step(str(number), lambda job: note(job, runningAtMs=5, runId="r"), busy=True)
        await store.step(str(number), lambda job: note(job, runningAtMs=None, runId=None, lastStatus="ok"), busy=True)
    assert await documents.version(LIST) == before
    states = [{"nextRunAtMs": 60_000, "lastStatus": "ok"}] * JOBS
    assert [job["state"] for job in store.jobs.values()] == states
    assert await after_a_crash(documents, clock) == store.jobs
    clock.advance(REWRITE_S)
    await store.fold()
    assert [job["state"] for job in (await listed(documents)).values()] == states
    assert await after_a_crash(documents, clock) == store.jobs


async def test_a_job_alone_and_the_last_of_many_are_written_into_the_list(
    store: JobStore, documents: DocumentStore
) -> None:
    await store.step("1", lambda job: note(job, lastStatus="ok"), busy=True)
    assert "lastStatus" not in (await listed(documents))["1"]["state"]
    await store.step("2", lambda job: note(job, lastStatus="ok"), busy=False)
    stored = await listed(documents)
    assert stored["1"]["state"]["lastStatus"] == stored["2"]["state"]["lastStatus"] == "ok"


async def test_a_job_that_is_over_goes_and_one_that_failed_is_switched_off(
    store: JobStore, documents: DocumentStore, clock: HeldClock
) -> None:
    assert await store.step("1", lambda job: None, busy=True) is None
    await store.step("2", lambda job: {**note(job, lastStatus="error"), "enabled": False}, busy=True)
    assert "1" not in store.jobs and store.jobs["2"]["enabled"] is False
    assert await after_a_crash(documents, clock) == store.jobs
    await store.fold(at_once=True)
    assert set(await listed(documents)) == {"0", "2", "3", "4"} and (await listed(documents))["2"]["enabled"] is False


async def test_what_somebody_edits_meanwhile_stays(store: JobStore, documents: DocumentStore, clock: HeldClock) -> None:
    for job_id in ("1", "2"):
        await store.step(job_id, lambda job: note(job, lastStatus="ok", nextRunAtMs=120_000), busy=True)
    await store.step("3", lambda job: None, busy=True)
    await edit_list(documents, "1", name="Edited", state={"nextRunAtMs": 7})
    await edit_list(documents, "3", updatedAtMs=2, name="Put off")
    await store.refresh()
    assert (store.jobs["1"]["name"], store.jobs["1"]["state"]) == ("Edited", {"nextRunAtMs": 7, "lastStatus": "ok"})
    assert store.jobs["2"]["state"]["nextRunAtMs"] == 120_000
    assert store.jobs["3"]["name"] == "Put off", "it was changed after its last run"
    assert await after_a_crash(documents, clock) == store.jobs
    await store.change(lambda jobs: jobs.pop("4"))
    assert set(await listed(documents)) == {"0", "1", "2", "3"}
    assert await after_a_crash(documents, clock) == store.jobs


async def test_another_gateway_changes_the_list_while_the_owner_of_the_jobs_writes_steps(
    store: JobStore, documents: DocumentStore, clock: HeldClock
) -> None:
    other = JobStore(documents, LIST, clock)
    await store.step("1", lambda job: note(job, lastStatus="ok", nextRunAtMs=120_000), busy=True)
    await other.change(lambda jobs: jobs.update({"1": note(jobs["1"], nextRunAtMs=9), "5": job_number(5)}))
    await store.step("2", lambda job: note(job, lastStatus="ok"), busy=True)
    await other.refresh()
    assert other.jobs == store.jobs and "5" in store.jobs
    assert store.jobs["1"]["state"] == {"nextRunAtMs": 9, "lastStatus": "ok"}, "somebody made it due"
    await store.fold(at_once=True)
    await other.refresh()
    assert other.jobs == store.jobs


async def test_a_journal_that_was_folded_but_not_emptied_changes_nothing(
    store: JobStore, documents: DocumentStore, clock: HeldClock
) -> None:
    await store.step("1", lambda job: note(job, runningAtMs=5, runId="r"), busy=True)
    await store.step("1", lambda job: note(job, runningAtMs=None, runId=None, nextRunAtMs=120_000), busy=True)
    await store.step("2", lambda job: None, busy=True)
    journal = await documents.get(JOURNAL)
    await store.fold(at_once=True)
    expected = dict(store.jobs)
    assert journal is not None
    await documents.put(JOURNAL, journal.data, await documents.version(JOURNAL))
    assert await after_a_crash(documents, clock) == expected
    await store.step("1", lambda job: note(job, nextRunAtMs=180_000), busy=True)
    assert (await after_a_crash(documents, clock))["1"]["state"] == {"nextRunAtMs": 180_000}


async def test_a_line_that_a_crash_cut_off_is_left_out(
    store: JobStore, documents: DocumentStore, clock: HeldClock
) -> None:
    await store.step("1", lambda job: note(job, lastStatus="ok"), busy=True)
    journal = await documents.get(JOURNAL)
    assert journal is not None
    await documents.put(JOURNAL, journal.data + b'{"id": "2", "aft', journal.version)
    jobs = await after_a_crash(documents, clock)
    assert jobs["1"]["state"]["lastStatus"] == "ok" and "lastStatus" not in jobs["2"]["state"]


async def test_a_list_that_cannot_be_read_stops_no_run_that_is_under_way(
    store: JobStore, documents: DocumentStore
) -> None:
    found = await documents.get(LIST)
    assert found is not None
    version = await documents.put(LIST, found.data[:-20], found.version)
    with pytest.raises(JobError, match="cannot be read"):
        await store.refresh()
    await store.step("1", lambda job: note(job, lastStatus="ok"), busy=False)
    await documents.put(LIST, found.data, version)
    await store.refresh()
    assert store.jobs["1"]["state"]["lastStatus"] == "ok"
    await store.fold(at_once=True)
    assert (await listed(documents))["1"]["state"]["lastStatus"] == "ok"


@pytest.mark.parametrize("seed", range(50))
def test_steps_lead_to_the_last_state_from_wherever_a_crash_left_the_list(seed: int) -> None:
    chance = random.Random(seed)
    states: list[Job] = [{}]
    for _ in range(6):
        names = chance.sample(["runId", "runningAtMs", "lastStatus", "nextRunAtMs"], 3)
        states.append({name: chance.choice([1, 2, 3]) for name in names})
    versions = [{"id": "a", "state": state} for state in states]
    steps = [JobStep.between(old, new) for old, new in pairwise(versions)]
    for folded in versions:
        jobs = {"a": folded}
        for step in steps:
            step.apply(jobs)
        assert jobs["a"]["state"] == states[-1]
