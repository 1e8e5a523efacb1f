"""Scheduled jobs: what one may look like, the file that holds them and the history of their runs.

A job is a plain mapping, so that fields that we do not know survive every rewrite of the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec

from openclaw.clock import iso_utc
from openclaw.config.store import write_private
from openclaw.paths import make_private_dir, normalize_agent_id
from openclaw.scheduler.schedule import at_ms, check_new, next_run
from openclaw.sessions.keys import safe_file_name
from openclaw.text import shortened

Job: TypeAlias = dict[str, Any]
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]

MOST_JOBS = 1000
LONGEST_NAME = 60
LONGEST_MESSAGE = 100_000
HISTORY_BYTES = 2_000_000
HISTORY_LINES = 2000
OWN_STATE = ("dueAtMs", "runId")
"""What we keep about a run under way, beside what the format knows. Clients are not shown it."""
SCHEDULED_BY = "scheduledBy"
"""The field of a job with the session whose agent made it, if others than the owner speak there. No client sets it."""
_PAYLOAD_KINDS = {"systemevent": "systemEvent", "agentturn": "agentTurn"}


class JobError(ValueError):
    """The job cannot be added or changed. The text says why."""


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
    """A job as it goes into the file. Raises ``JobError`` or ``BadSchedule``."""
    job = normalized(given)
    payload, schedule = job.get("payload"), job.get("schedule")
    if "sessionTarget" not in job:
        told = isinstance(payload, dict) and payload.get("kind") == "systemEvent"
        job["sessionTarget"] = "main" if told else "isolated"
    if isinstance(schedule, dict) and schedule.get("kind") == "at":
        job.setdefault("deleteAfterRun", True)
    if isinstance(schedule, dict) and schedule.get("kind") == "every" and schedule.get("anchorMs") is None:
        schedule["anchorMs"] = now_ms
    if job.get("sessionTarget") == "isolated":
        job.setdefault("delivery", {"mode": "announce"})
    if not str(job.get("name") or "").strip():
        job["name"] = _inferred_name(payload, schedule)
    made = _checked({"enabled": True, "wakeMode": "now", **job})
    check_new(made["schedule"], now_ms)
    made = {"id": str(uuid.uuid4()), **made, "createdAtMs": now_ms, "updatedAtMs": now_ms, "state": {}}
    return with_next_run(made, now_ms)


def patched_job(job: Job, patch: Mapping[str, Any], now_ms: int) -> Job:
    """The job with the changes. Its next run is worked out anew if they concern it."""
    change = normalized(patch)
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
    known = {field.encode_name for field in msgspec.structs.fields(JobShape)}
    unknown = {name: value for name, value in changed.items() if name not in known}
    if strange := set(change) - known:
        raise JobError(f"unexpected property '{min(strange)}'")
    made = {**unknown, **_checked({name: value for name, value in changed.items() if name in known})}
    if "schedule" in change:
        check_new(made["schedule"], now_ms)
    made["updatedAtMs"] = now_ms
    made["state"] = {**job.get("state", {}), **(state_patch if isinstance(state_patch, dict) else {})}
    if "schedule" in change or made.get("enabled") != job.get("enabled", True):
        made["state"].pop("consecutiveErrors", None)
        made = with_next_run(made, now_ms)
    return made


def with_next_run(job: Job, now_ms: int) -> Job:
    """The job with the moment at which it is due next. A job that is switched off has none."""
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
    """Brings the spellings that people, models and older clients use into one form. It checks nothing."""
    raw: Any = given
    for wrapper in ("job", "data"):
        inner = raw.get(wrapper)
        if isinstance(inner, dict) and "schedule" not in raw and "payload" not in raw:
            raw = inner
    job: Job = dict(cast("Mapping[str, Any]", raw))
    if isinstance(schedule := job.get("schedule"), dict):
        job["schedule"] = _schedule(cast("Job", schedule))
    if isinstance(payload := job.get("payload"), dict):
        job["payload"], told = _payload(cast("Job", payload))
        if told and "delivery" not in job:
            job["delivery"] = told
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
        found = [kind for kind, names in _SCHEDULE_FIELDS.items() if any(name in schedule for name in names)]
        schedule = {"kind": found[0], **schedule} if found else schedule
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
    """The payload, and the delivery that older clients put into it."""
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
    told = {new: payload.pop(old) for old, new in names.items() if old in payload}
    if told:
        told["mode"] = "none" if told.get("mode") is False else "announce"
    return payload, told or None


def _delivery(given: Job) -> Job:
    delivery = {name: value for name, value in given.items() if value is not None}
    mode = str(delivery.get("mode") or "announce").strip().lower()
    delivery["mode"] = "announce" if mode == "deliver" else mode
    return delivery


def _inferred_name(payload: Any, schedule: Any) -> str:
    told = cast("Job", payload) if isinstance(payload, dict) else {}
    text = shortened(str(told.get("message") or told.get("text") or ""), LONGEST_NAME)
    kind = cast("Job", schedule).get("kind") if isinstance(schedule, dict) else None
    return text or {"at": "One-time job", "every": "Repeated job"}.get(str(kind), "Scheduled job")


def _checked(job: Job) -> Job:
    """The job, once its shape and the way its parts go together are right. Raises ``JobError``."""
    try:
        made = msgspec.convert(job, JobShape)
    except msgspec.ValidationError as problem:
        raise JobError(str(problem)) from None
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
    """The job as clients see it."""
    state = {name: value for name, value in job.get("state", {}).items() if name not in OWN_STATE}
    return {**job, "state": state}


# The file


class JobStore:
    """``cron/jobs.json``. It is read again when somebody else has changed it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.jobs: dict[str, Job] = {}
        self._extra: dict[str, Any] = {"version": 1}
        self._seen: tuple[int, int] | None = None
        self._lock = asyncio.Lock()

    async def refresh(self) -> bool:
        """Reads the file if it has changed. Returns whether it was read. Raises ``OSError`` or ``JobError``."""
        async with self._lock:
            return await asyncio.to_thread(self._read)

    def _read(self) -> bool:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        mark = (found.st_mtime_ns, found.st_size)
        if mark == self._seen:
            return False
        try:
            content: Any = json.loads(self.path.read_bytes() or b"{}")
        except (ValueError, RecursionError) as problem:
            raise JobError(
                f"{self.path} cannot be read: {problem}; mend it, or put {self.path}.bak in its place"
            ) from None
        listed: list[Any] = content.get("jobs") or [] if isinstance(content, dict) else []
        jobs = [cast("Job", job) for job in listed if isinstance(job, dict)]
        self._extra = {name: value for name, value in content.items() if name != "jobs"} if listed else self._extra
        self.jobs = {str(job.get("id") or job.get("jobId") or uuid.uuid4()): job for job in jobs}
        for job_id, job in self.jobs.items():
            job.setdefault("id", job_id)
            job.setdefault("state", {})
        self._seen = mark
        return True

    async def save(self) -> None:
        """Writes the file whole, and keeps the one before as ``.bak``."""
        async with self._lock:
            content = {**self._extra, "jobs": list(self.jobs.values())}
            await asyncio.to_thread(self._write, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _write(self, text: str) -> None:
        make_private_dir(str(self.path.parent))
        backup = self.path.with_name(f"{self.path.name}.bak")
        temporary = backup.with_name(f".{backup.name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            os.link(self.path, temporary)
            temporary.replace(backup)
        except OSError:
            pass  # There is no file yet, or the file system has no hard links. The new file is what counts.
        write_private(str(self.path), text)
        found = self.path.stat()
        self._seen = (found.st_mtime_ns, found.st_size)


class History:
    """``cron/runs/<jobId>.jsonl``: one line for each run of a job that has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = asyncio.Lock()

    def path(self, job_id: str) -> Path:
        return self._folder / f"{safe_file_name(job_id)}.jsonl"

    async def entries(self, job_id: str, limit: int = HISTORY_LINES) -> list[dict[str, Any]]:
        """The last runs of a job, oldest first. Lines that cannot be read are left out."""
        async with self._lock:
            return await asyncio.to_thread(_read_lines, self.path(job_id), limit)

    async def of_run(self, job_id: str, run_id: str) -> dict[str, Any] | None:
        """The entry of one run, if it is in the history."""
        return next((one for one in await self.entries(job_id) if one.get("runId") == run_id), None)

    async def add(self, job_id: str, entry: dict[str, Any]) -> None:
        async with self._lock:
            await asyncio.to_thread(self._append, self.path(job_id), entry)

    def _append(self, path: Path, entry: dict[str, Any]) -> None:
        make_private_dir(str(path.parent))
        line = msgspec.json.encode(entry) + b"\n"
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # A crash cut the last line.
                    line = b"\n" + line
            file.write(line)
            os.fsync(file.fileno())
        if size + len(line) > HISTORY_BYTES:
            kept = path.read_bytes().splitlines()[-HISTORY_LINES:]
            write_private(str(path), b"\n".join([*kept, b""]).decode("utf-8", "replace"))


def _read_lines(path: Path, limit: int) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    for line in lines[-limit:] if limit > 0 else []:
        try:
            entry = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            continue
        if isinstance(entry, dict) and cast("Job", entry).get("action") == "finished":
            found.append(cast("Job", entry))
    return found
