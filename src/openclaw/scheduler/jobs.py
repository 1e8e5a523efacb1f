"""Scheduled jobs: what one may look like, the file that holds them and the history of their runs.

A job is a plain mapping, so that fields that we do not know survive every rewrite of the file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from openclaw.clock import Clock, iso_utc
from openclaw.paths import normalize_agent_id
from openclaw.scheduler.schedule import at_ms, check_new, next_run
from openclaw.sessions.keys import safe_file_name
from openclaw.storage import faults
from openclaw.storage.documents import DocumentChanged, DocumentStore, SharedDocument, Version
from openclaw.storage.files.disk import FileDocuments
from openclaw.text import shortened

log = logging.getLogger("openclaw.cron")

Job: TypeAlias = dict[str, Any]
R = TypeVar("R")
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]

MOST_JOBS = 1000
LONGEST_NAME = 60
LONGEST_MESSAGE = 100_000
HISTORY_BYTES = 2_000_000
HISTORY_LINES = 2000
REWRITE_S = 1.0
"""While many jobs are under way, the list is rewritten this often."""
MOST_JOURNAL = 2**62
"""The journal is emptied with each rewrite of the list, and must not lose a line before."""
OWN_STATE = ("dueAtMs", "runId")
"""What we keep about a run under way, beside what the format knows. Clients are not shown it."""
SCHEDULED_BY = "scheduledBy"
"""The field of a job with the session whose agent made it, if others than the owner speak there. No client sets it."""
_PAYLOAD_KINDS = {"systemevent": "systemEvent", "agentturn": "agentTurn"}


class JobError(ValueError):
    """The job cannot be added or changed. The text says why. ``job`` is given if it has not the form of a job."""

    def __init__(self, text: str, job: Job | None = None) -> None:
        super().__init__(text)
        self.job = job


class _Shape(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class AtSchedule(_Shape, kw_only=True, tag_field="kind", tag="at"):
    at: NonEmpty


class EverySchedule(_Shape, kw_only=True, tag_field="kind", tag="every"):
    every_ms: Annotated[int, msgspec.Meta(ge=1)]
    anchor_ms: int | None = None


class CronSchedule(_Shape, kw_only=True, tag_field="kind", tag="cron"):
    expr: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    tz: str | None = None


class SystemEventPayload(_Shape, kw_only=True, tag_field="kind", tag="systemEvent"):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_MESSAGE)]


class AgentTurnPayload(_Shape, kw_only=True, tag_field="kind", tag="agentTurn"):
    message: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_MESSAGE)]
    model: str | None = None
    thinking: str | None = None
    timeout_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    allow_unsafe_external_content: bool | None = None
    deliver: bool | None = None
    channel: str | None = None
    to: str | None = None
    best_effort_deliver: bool | None = None


class JobDelivery(_Shape, kw_only=True):
    mode: Literal["none", "announce"]
    channel: str | None = None
    to: str | None = None
    account_id: str | None = None
    best_effort: bool | None = None


class JobShape(_Shape, kw_only=True):
    """What a client may say about a job. ``id``, times and state are the Gateway's."""

    name: NonEmpty
    description: str | None = None
    agent_id: str | None = None
    enabled: bool = True
    delete_after_run: bool | None = None
    schedule: AtSchedule | EverySchedule | CronSchedule
    session_target: Literal["main", "isolated"]
    wake_mode: Literal["now", "next-heartbeat"] = "now"
    payload: SystemEventPayload | AgentTurnPayload
    delivery: JobDelivery | None = None
    notify: bool | None = None
    """Newer clients send it. It is kept and means nothing here."""


# What clients give, brought into the form of the file


def new_job(given: Mapping[str, Any], now_ms: int) -> Job:
    """Return a job as it goes into the file. Raises ``JobError`` or ``BadSchedule``."""
    job = normalized(given)
    payload, schedule = job.get("payload"), job.get("schedule")
    if "sessionTarget" not in job:
        details = isinstance(payload, dict) and payload.get("kind") == "systemEvent"
        job["sessionTarget"] = "main" if details else "isolated"
    if isinstance(schedule, dict) and schedule.get("kind") == "at":
        job.setdefault("deleteAfterRun", True)
    _anchor(job, now_ms)
    if job.get("sessionTarget") == "isolated":
        job.setdefault("delivery", {"mode": "announce"})
    if not str(job.get("name") or "").strip():
        job["name"] = _inferred_name(payload, schedule)
    made = check_job({"enabled": True, "wakeMode": "now", **job})
    check_new(made["schedule"], now_ms)
    made = {"id": str(uuid.uuid4()), **made, "createdAtMs": now_ms, "updatedAtMs": now_ms, "state": {}}
    return with_next_run(made, now_ms)


def _anchor(job: Job, now_ms: int) -> None:
    """Make a new interval count from now, unless it says from when."""
    schedule = job.get("schedule")
    if isinstance(schedule, dict) and schedule.get("kind") == "every":
        cast("Job", schedule).setdefault("anchorMs", now_ms)


def patched_job(job: Job, patch: Mapping[str, Any], now_ms: int) -> Job:
    """Return the job with the changes, and a new next run if they affect it."""
    change = normalized(patch)
    _anchor(change, now_ms)
    state_patch = change.pop("state", None)
    changed = {**job, **{name: value for name, value in change.items() if name not in ("payload", "delivery")}}
    if isinstance(payload := change.get("payload"), dict):
        old = job.get("payload", {})
        same = "kind" not in payload or payload["kind"] == old.get("kind")
        changed["payload"] = {**old, **payload} if same else payload
    if isinstance(delivery := change.get("delivery"), dict):
        changed["delivery"] = {"mode": "announce", **job.get("delivery", {}), **delivery}
    if changed.get("sessionTarget") == "main" and "delivery" not in change:
        changed.pop("delivery", None)
    for name in [name for name, value in changed.items() if value is None]:
        del changed[name]
    existing = {field.encode_name for field in msgspec.structs.fields(JobShape)}
    unknown = {name: value for name, value in changed.items() if name not in existing}
    if strange := set(change) - existing:
        raise JobError(f"at root: unexpected property '{min(strange)}'")
    made = {**unknown, **check_job({name: value for name, value in changed.items() if name in existing})}
    if "schedule" in change:
        check_new(made["schedule"], now_ms)
    made["updatedAtMs"] = now_ms
    made["state"] = {**job.get("state", {}), **(state_patch if isinstance(state_patch, dict) else {})}
    if "schedule" in change or made.get("enabled") != job.get("enabled", True):
        made["state"].pop("consecutiveErrors", None)
        made = with_next_run(made, now_ms)
    return made


def with_next_run(job: Job, now_ms: int) -> Job:
    """Return the job with the moment at which it is due next. A job that is switched off has none."""
    state = {name: value for name, value in job.get("state", {}).items() if name != "nextRunAtMs"}
    due = None
    if job.get("enabled", True):
        # A one-time job that is a little late still runs.
        schedule = job["schedule"]
        due = at_ms(schedule) if schedule.get("kind") == "at" else None
        if due is None:
            due = next_run(schedule, now_ms, created_ms=job.get("createdAtMs", now_ms))
        elif state.get("lastStatus") == "ok" and state.get("lastRunAtMs", 0) >= due:
            due = None
    return {**job, "state": {**state, **({"nextRunAtMs": due} if due is not None else {})}}


def normalized(given: Mapping[str, Any]) -> Job:
    """Bring the spellings that people, models and older clients use into one form. It checks nothing."""
    raw: Any = given
    for wrapper in ("job", "data"):
        inner = raw.get(wrapper)
        if isinstance(inner, dict) and "schedule" not in raw and "payload" not in raw:
            raw = inner
    job: Job = dict(cast("Mapping[str, Any]", raw))
    if isinstance(schedule := job.get("schedule"), dict):
        job["schedule"] = _schedule(cast("Job", schedule))
    if isinstance(payload := job.get("payload"), dict):
        job["payload"], details = _payload(cast("Job", payload))
        if details and "delivery" not in job:
            job["delivery"] = details
    if isinstance(delivery := job.get("delivery"), dict):
        job["delivery"] = _delivery(cast("Job", delivery))
    if isinstance(enabled := job.get("enabled"), str):
        job["enabled"] = {"true": True, "false": False}.get(enabled.strip().lower(), enabled)
    if isinstance(agent := job.get("agentId"), str):
        job["agentId"] = normalize_agent_id(agent) if agent.strip() else None
    for name in ("name", "description", "sessionTarget", "wakeMode"):
        if isinstance(text := job.get(name), str):
            job[name] = text.strip()
    return job


def _schedule(given: Job) -> Job:
    schedule = dict(given)
    if "kind" not in schedule:
        matches = [kind for kind, names in _SCHEDULE_FIELDS.items() if any(name in schedule for name in names)]
        schedule = {"kind": matches[0], **schedule} if matches else schedule
    if schedule.get("kind") == "at":
        at = schedule.pop("atMs", None)
        at = schedule.get("at", at)
        schedule["at"] = iso_utc(at_ms({"at": at})) if at is not None else None
    if "cron" in schedule:
        schedule["expr"] = schedule.pop("cron")
    if isinstance(every := schedule.get("everyMs"), float) and every.is_integer():
        schedule["everyMs"] = int(every)
    return {name: value for name, value in schedule.items() if value is not None}


_SCHEDULE_FIELDS = {"at": ("at", "atMs"), "every": ("everyMs",), "cron": ("expr", "cron")}


def _payload(given: Job) -> tuple[Job, Job | None]:
    """Return the payload, and the delivery that older clients put into it."""
    payload = {name: value for name, value in given.items() if value is not None}
    kind = payload.get("kind")
    if isinstance(kind, str):
        payload["kind"] = _PAYLOAD_KINDS.get(kind.strip().lower(), kind)
    elif "message" in payload:
        payload["kind"] = "agentTurn"
    elif "text" in payload:
        payload["kind"] = "systemEvent"
    if "provider" in payload:
        payload.setdefault("channel", payload.pop("provider"))
    names = {"deliver": "mode", "channel": "channel", "to": "to", "bestEffortDeliver": "bestEffort"}
    details = {new: payload.pop(old) for old, new in names.items() if old in payload}
    if details:
        details["mode"] = "none" if details.get("mode") is False else "announce"
    return payload, details or None


def _delivery(given: Job) -> Job:
    delivery = {name: value for name, value in given.items() if value is not None}
    mode = str(delivery.get("mode") or "announce").strip().lower()
    delivery["mode"] = "announce" if mode == "deliver" else mode
    return delivery


def _inferred_name(payload: Any, schedule: Any) -> str:
    details = cast("Job", payload) if isinstance(payload, dict) else {}
    text = shortened(str(details.get("message") or details.get("text") or ""), LONGEST_NAME)
    kind = cast("Job", schedule).get("kind") if isinstance(schedule, dict) else None
    return text or {"at": "One-time job", "every": "Repeated job"}.get(str(kind), "Scheduled job")


def check_job(job: Job) -> Job:
    """The job, once its shape and the way its parts go together are right. Raises ``JobError``."""
    try:
        made = msgspec.convert(job, JobShape)
    except msgspec.ValidationError as problem:
        raise JobError(str(problem), job) from None
    if made.session_target == "main" and not isinstance(made.payload, SystemEventPayload):
        raise JobError('main cron jobs require payload.kind="systemEvent"')
    if made.session_target == "isolated" and not isinstance(made.payload, AgentTurnPayload):
        raise JobError('isolated cron jobs require payload.kind="agentTurn"')
    if made.session_target == "main" and made.delivery is not None:
        if made.delivery.mode != "none":
            raise JobError('cron delivery config is only supported for sessionTarget="isolated"')
        job = {name: value for name, value in job.items() if name != "delivery"}
    return {name: value for name, value in job.items() if value is not None}


def shown(job: Job) -> Job:
    """Return the job as clients see it."""
    state = {name: value for name, value in job.get("state", {}).items() if name not in OWN_STATE}
    return {**job, "state": state}


# What is kept


class JobList(msgspec.Struct):
    """The list of jobs as it is kept, with the fields of the document that we do not know."""

    jobs: dict[str, Job] = {}
    extra: dict[str, Any] = msgspec.field(default_factory=lambda: {"version": 1})


class JobsPlace(NamedTuple):
    """Where the jobs are kept, and the folder of their histories."""

    documents: DocumentStore
    jobs: str = "cron/jobs.json"
    histories: str = "cron/runs/"


def jobs_place(documents: DocumentStore, store: str | None) -> JobsPlace:
    """``store`` is ``cron.store``: a file elsewhere. Documents that several Gateways share are not in files."""
    if not store or documents.shared:
        return JobsPlace(documents)
    path = Path(store).expanduser()
    return JobsPlace(FileDocuments(path.parent), path.name, "runs/")


class JobStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the journal: what a step of a run changed in one job.

    It names the changed fields of the job's state, with their values before and after. A field that is missing in one
    of the two did not exist then. So a step is applied only where nobody else has changed the field since, and applying
    a step again changes nothing.
    """

    id: str
    before: Job = {}
    after: Job = {}
    updated: int | None = None
    """The job's ``updatedAtMs``. If it is another one, ``then`` is ignored: somebody changed the job."""
    then: Literal["stays", "disabled", "removed"] = "stays"

    @classmethod
    def between(cls, job: Job, after: Job | None) -> JobStep:
        """Make the step from a job to what it is afterwards; None if it is removed."""
        old, new = job["state"], after["state"] if after is not None else job["state"]
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        switched_off = after is not None and after.get("enabled") is False and job.get("enabled", True)
        return cls(
            id=job["id"],
            before={name: old[name] for name in changed if name in old},
            after={name: new[name] for name in changed if name in new},
            updated=job.get("updatedAtMs"),
            then="removed" if after is None else "disabled" if switched_off else "stays",
        )

    def apply(self, jobs: dict[str, Job]) -> None:
        if (job := jobs.get(self.id)) is None:
            return
        state = dict(job["state"])
        for name in {**self.before, **self.after}:
            if state.get(name) != self.before.get(name):
                continue
            if name in self.after:
                state[name] = self.after[name]
            else:
                state.pop(name, None)
        jobs[self.id] = {**job, "state": state}
        if self.then == "stays" or job.get("updatedAtMs") != self.updated:
            return
        if self.then == "removed":
            del jobs[self.id]
        else:
            jobs[self.id]["enabled"] = False


class JobStore:
    """``cron/jobs.json`` with its journal.

    People may edit the list, and other Gateways change it where several share it. The larger the list, the more a
    rewrite of it costs. While many jobs are under way, the steps of their runs are therefore appended to the journal,
    and the list is rewritten once a second. A crash loses nothing: every reader of the list applies the journal to it.
    """

    def __init__(self, documents: DocumentStore, name: str, clock: Clock) -> None:
        self._documents = documents
        self._document: SharedDocument[JobList] = SharedDocument(
            documents, name, JobList, _decode_jobs, _encode_jobs, damaged="refuse"
        )
        self._journal = f"{name}.journal"
        self._journal_version: Version | None = None
        self._steps: list[JobStep] = []
        """The steps in the journal."""
        self._clock = clock
        self._rewritten_at = float("-inf")
        self._changing = asyncio.Lock()
        self._seen: bytes | None = None
        self._stored: dict[str, Job] = {}
        """The jobs by their ids, as the list and the journal have them."""
        self.jobs: dict[str, Job] = {}
        """The jobs by their ids, as they count here: with a due moment, and without what other programs left."""

    @property
    def place(self) -> str:
        return self._document.place

    async def refresh(self) -> None:
        """Read the list if it has changed. Raises ``OSError`` or ``JobError``, so that it is not written over."""
        async with self._changing:
            await self._refresh()

    async def change(self, edit: Callable[[dict[str, Job]], R]) -> R:
        """Change the jobs and write the list. Raises ``OSError`` or ``JobError``, and then nothing has changed."""
        async with self._changing:
            await self._refresh()
            return await self._rewrite(edit)

    async def step(self, job_id: str, edit: Callable[[Job], Job | None], *, busy: bool) -> Job | None:
        """Change one job when its run has come a step further, and return it. ``edit`` returns None to remove it.

        Only the Gateway that runs the jobs calls this. ``busy`` says that other jobs are under way. Raises ``OSError``,
        and then nothing has changed. A list that cannot be read does not prevent the step.
        """
        async with self._changing:
            try:
                await self._refresh()
                if not busy or self._is_old:
                    return await self._fold(lambda jobs: _edit_one(jobs, job_id, edit))
            except JobError as problem:
                log.error("scheduled jobs are not read: %s", problem)
            if (job := self._stored.get(job_id)) is None:
                return None
            step = JobStep.between(job, after := edit(job))
            await self._documents.append(
                self._journal, msgspec.json.encode(step), most_bytes=MOST_JOURNAL, most_lines=MOST_JOURNAL
            )
            self._steps.append(step)
            self._journal_version = await self._version_of_journal()
            step.apply(self._stored)
            if after is None:
                self.jobs.pop(job_id, None)
            else:
                self.jobs[job_id] = self._planned(after, self.jobs.get(job_id))
            return after

    async def fold(self, *, at_once: bool = False) -> bool:
        """Write what the journal has into the list, unless that was done a moment ago. As ``step``, for one caller.

        Returns whether the journal has steps that are to be written later.
        """
        async with self._changing:
            if self._steps and (at_once or self._is_old):
                await self._refresh()
                await self._fold(lambda jobs: None)
            return bool(self._steps)

    # The caller holds the lock

    @property
    def _is_old(self) -> bool:
        return self._clock.monotonic() - self._rewritten_at >= REWRITE_S

    async def _refresh(self) -> None:
        try:
            await self._document.current()
        except _BadList as problem:
            raise self._unreadable(problem) from None
        if await self._documents.version(self._journal) != self._journal_version:
            journal = await self._documents.get(self._journal)
            self._steps = _decode_steps(journal.data) if journal is not None else []
            self._journal_version = journal.version if journal is not None else None
        elif self._document.data == self._seen:
            return
        self._adopt()

    async def _rewrite(self, edit: Callable[[dict[str, Job]], R]) -> R:
        def edit_list(known: JobList) -> R:
            for step in self._steps:
                step.apply(known.jobs)
            return edit(known.jobs)

        try:
            result = await self._document.change(edit_list)
        except _BadList as problem:
            raise self._unreadable(problem) from None
        self._adopt()
        return result

    async def _fold(self, edit: Callable[[dict[str, Job]], R]) -> R:
        """Rewrite the list and empty the journal. If the journal stays, its steps have nothing left to change."""
        result = await self._rewrite(edit)
        self._rewritten_at = self._clock.monotonic()
        if self._steps:
            faults.point("cron.folded")
            try:
                self._journal_version = await self._documents.put(self._journal, b"", self._journal_version)
                self._steps = []
            except (OSError, DocumentChanged) as problem:
                log.warning("%s was not emptied: %s", self._documents.place(self._journal), problem)
        return result

    async def _version_of_journal(self) -> Version | None:
        """Return the version after an append. If it cannot be had, the journal is read again."""
        try:
            return await self._documents.version(self._journal)
        except OSError:
            return None

    def _unreadable(self, problem: Exception) -> JobError:
        return JobError(f"{self.place} cannot be read: {problem}; mend it, or put {self.place}.bak in its place")

    def _adopt(self) -> None:
        self._seen = self._document.data
        self._stored = dict(self._document.value.jobs)
        for step in self._steps:
            step.apply(self._stored)
        before, self.jobs = self.jobs, {}
        for job_id, job in self._stored.items():
            self.jobs[job_id] = self._planned(job, before.get(job_id))

    def _planned(self, job: Job, before: Job | None) -> Job:
        if "runningAtMs" in job["state"] and "runId" not in job["state"]:
            # Another program left it, and its run is over.
            left = {name: value for name, value in job["state"].items() if name != "runningAtMs"}
            job = {**job, "state": left}
        state = job["state"]
        if not job.get("enabled", True) or "nextRunAtMs" in state or "runId" in state:
            return job
        if before is not None and "nextRunAtMs" in before["state"]:
            due = before["state"]["nextRunAtMs"]
            if before == {**job, "state": {**state, "nextRunAtMs": due}}:
                return before
        try:
            return with_next_run(job, self._clock.now_ms())
        except (ValueError, KeyError, TypeError) as problem:
            log.warning("job %s has no usable schedule: %s", job["id"], problem)
            return job


def _edit_one(jobs: dict[str, Job], job_id: str, edit: Callable[[Job], Job | None]) -> Job | None:
    if (job := jobs.get(job_id)) is None:
        return None
    if (after := edit(job)) is None:
        del jobs[job_id]
    else:
        jobs[job_id] = after
    return after


def _decode_steps(data: bytes) -> list[JobStep]:
    """Return the steps of a journal. A line that a crash cut off is left out."""
    steps: list[JobStep] = []
    for line in data.splitlines():
        try:
            steps.append(msgspec.json.decode(line, type=JobStep))
        except (msgspec.MsgspecError, RecursionError):
            continue
    return steps


class _BadList(ValueError):
    """The list is not valid JSON."""


def _decode_jobs(data: bytes) -> JobList:
    try:
        content: Any = json.loads(data or b"{}")
    except (ValueError, RecursionError) as problem:
        raise _BadList(str(problem)) from None
    if not isinstance(content, dict):
        return JobList()
    result = cast("dict[str, Any]", content)
    listed: Any = result.get("jobs")
    existing = JobList(extra={name: value for name, value in result.items() if name != "jobs"} or {"version": 1})
    for job in listed if isinstance(listed, list) else []:
        if isinstance(job, dict):
            made = cast("Job", job)
            made["id"] = job_id = str(made.get("id") or made.get("jobId") or _id_of(made))
            if not isinstance(made.get("state"), dict):
                made["state"] = {}
            existing.jobs[job_id] = made
    return existing


def _id_of(job: Job) -> uuid.UUID:
    """Return the id of a job that has none. It stays the same while the job does."""
    return uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(job, sort_keys=True))


def _encode_jobs(known: JobList) -> bytes:
    content = {**known.extra, "jobs": list(known.jobs.values())}
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


class History:
    """``cron/runs/<jobId>.jsonl``: one line for each run of a job that has ended."""

    def __init__(self, documents: DocumentStore, folder: str) -> None:
        """``folder`` is the beginning of the names of its documents."""
        self._documents = documents
        self._folder = folder
        self._lock = asyncio.Lock()

    async def entries(self, job_id: str, limit: int = HISTORY_LINES) -> list[dict[str, Any]]:
        """Return the last runs of a job, oldest first. Lines that cannot be read are left out."""
        async with self._lock:
            result = await self._documents.get(self._name(job_id))
        return _lines(result.data, limit) if result is not None else []

    async def of_run(self, job_id: str, run_id: str) -> dict[str, Any] | None:
        """Return the entry of one run, if it is in the history."""
        return next((item for item in await self.entries(job_id) if item.get("runId") == run_id), None)

    async def add(self, job_id: str, entry: msgspec.Struct) -> None:
        async with self._lock:
            await self._documents.append(
                self._name(job_id), msgspec.json.encode(entry), most_bytes=HISTORY_BYTES, most_lines=HISTORY_LINES
            )

    def _name(self, job_id: str) -> str:
        return f"{self._folder}{safe_file_name(job_id)}.jsonl"


def _lines(data: bytes, limit: int) -> list[dict[str, Any]]:
    matches: list[dict[str, Any]] = []
    for line in data.splitlines()[-limit:] if limit > 0 else []:
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if isinstance(entry, dict) and cast("Job", entry).get("action") == "finished":
            matches.append(cast("Job", entry))
    return matches
