"""Moves a whole state folder in: one of OpenClaw 2026.2 to 2026.9, or one of ours.

``migrate`` only reads the other folder, and follows no link out of it. Each step leaves what is here already as it is,
so it can be repeated, and continues after an interruption: every file is replaced as a whole. What cannot be moved is
reported by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from openclaw.config.agents import agent_ids, workspace_dir
from openclaw.config.keypath import format_path, get_path
from openclaw.config.load import Snapshot, parse_config, read_config
from openclaw.config.schema import Config
from openclaw.config.secrets import SENTINEL, redacted
from openclaw.paths import make_private_dir, normalize_agent_id
from openclaw.scheduler.jobs import JobError, check_job
from openclaw.storage.files.disk import atomic_replace, put_in_place, write_temporary
from openclaw.storage.files.import_sessions import import_sessions
from openclaw.storage.files.newer_state import Unreadable, is_inside, open_read_only
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.tools.exec.approvals import RulesFile

Outcome: TypeAlias = Literal["moved", "present", "kept", "left", "failed"]
"""``kept``: ours differs and stays. ``left``: it cannot be moved or need not be."""
Kind: TypeAlias = Literal[
    "configuration", "workspace", "session", "job", "people", "device", "exec rules", "credentials", "memory"
]
SHARED = "state/openclaw.sqlite"
_HOUSEKEEPING = ("heartbeat-", "skill-collection-review-", "memory-dreaming", "dreaming")
_JOB_FIELDS = ("id", "createdAtMs", "updatedAtMs", "state")
_DEVICE_COLUMNS = {
    "device_id": "deviceId",
    "public_key": "publicKey",
    "display_name": "displayName",
    "platform": "platform",
    "client_id": "clientId",
    "client_mode": "clientMode",
    "role": "role",
    "created_at_ms": "createdAtMs",
    "approved_at_ms": "approvedAtMs",
}
_LARGEST_DOCUMENT = 32 << 20


class Moved(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What became of one thing of the other folder."""

    kind: Kind
    name: str
    outcome: Outcome
    detail: str = ""
    """What a person must know: why it was left, what differs, or where it is."""
    count: int = 0
    """Events of a session, files of a workspace."""
    sha256: str = ""


class Source:
    """The other folder. All methods block."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        if not (folder / "agents").is_dir() and not (folder / "openclaw.json").is_file():
            raise Unreadable(f"{folder} is not a state folder of OpenClaw: it has neither `agents` nor `openclaw.json`")
        self.folder = folder
        self.config = read_config(str(folder / "openclaw.json"), environ)
        self.newer = (folder / SHARED).is_file()

    def read(self, name: str) -> bytes | None:
        """Return a document, or None if there is none. Raises ``Unreadable``."""
        path = self.folder / name
        if not path.is_file():
            return None
        if not is_inside(self.folder, path):
            raise Unreadable(f"{path} is a link that leads out of the folder and is not followed")
        if path.stat().st_size > _LARGEST_DOCUMENT:
            raise Unreadable(f"{path} is larger than {_LARGEST_DOCUMENT >> 20} MiB")
        try:
            return path.read_bytes()
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror}") from None

    def object(self, name: str) -> dict[str, Any]:
        """Return a JSON document; empty if there is none. Raises ``Unreadable``."""
        data = self.read(name)
        try:
            content = msgspec.json.decode(data) if data else {}
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise Unreadable(f"{self.folder / name} is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise Unreadable(f"{self.folder / name} does not hold a JSON object")
        return cast("dict[str, Any]", content)

    def rows(self, database: str, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table; none if the database has no such table. Raises ``Unreadable``."""
        path = self.folder / database
        if not path.is_file() or not is_inside(self.folder, path):
            return []
        with open_read_only(path) as db:
            db.row_factory = sqlite3.Row
            try:
                if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone():
                    return []
                return [dict(row) for row in db.execute(f"SELECT * FROM {table}")]
            except sqlite3.Error as error:
                raise Unreadable(f"{path} cannot be read: {error}") from None

    def agents(self) -> list[str]:
        homes = sorted((self.folder / "agents").glob("*")) if (self.folder / "agents").is_dir() else []
        return list(dict.fromkeys([*agent_ids(self.config.config), *(normalize_agent_id(home.name) for home in homes)]))


class Target:
    """Our state folder, and whether anything is written to it."""

    def __init__(self, state: Path, config_path: Path, environ: Mapping[str, str], *, dry_run: bool) -> None:
        self.state = state
        self.config_path = config_path
        self.environ = environ
        self.dry_run = dry_run

    def config(self) -> Config:
        return read_config(str(self.config_path), self.environ).config

    def object(self, name: str) -> dict[str, Any]:
        return read_object(self.state / name)

    def remove_leftovers(self) -> None:
        """Remove unfinished transcripts of a migration that was killed. The caller holds the folder's lock."""
        for leftover in self.state.glob("agents/*/sessions/*.jsonl.*.tmp"):
            leftover.unlink(missing_ok=True)

    def write(self, name: str, content: Any) -> None:
        if not self.dry_run:
            path = self.state / name
            make_private_dir(str(path.parent))
            atomic_replace(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON document of ours; empty if there is none. Raises ``Unreadable``."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeError, OSError) as error:
        raise Unreadable(f"{path} cannot be read: {error}; mend it or move it away") from None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


async def migrate(
    source: Source, target: Target, store: FileSessionStore, *, credentials: bool
) -> AsyncIterator[Moved]:
    """Move everything, or with a dry run say what would be moved. ``credentials``: also secrets and device tokens."""
    steps: tuple[Callable[[], Iterable[Moved]], ...] = (
        lambda: _configuration(source, target, credentials=credentials),
        lambda: _workspaces(source, target),
        lambda: _jobs(source, target),
        lambda: _people(source, target),
        lambda: _devices(source, target, tokens=credentials),
        lambda: _exec_rules(source, target),
        lambda: _credentials(source, target, consent=credentials),
        lambda: _memory(source),
    )
    kinds: tuple[Kind, ...] = (
        *("configuration", "workspace", "job", "people", "device", "exec rules", "credentials", "memory"),
    )
    for kind, step in zip(kinds, steps, strict=True):
        iterator = iter(step())
        try:
            while (moved := await asyncio.to_thread(next, iterator, None)) is not None:
                yield moved
        except (Unreadable, OSError) as problem:
            yield Moved(kind=kind, name=kind, outcome="failed", detail=str(problem))
    outcomes: dict[str, Outcome] = {"imported": "moved", "present": "present", "conflict": "kept", "failed": "failed"}
    if (source.folder / "agents").is_dir():
        if not target.dry_run:
            await asyncio.to_thread(target.remove_leftovers)
        async for session in import_sessions(source.folder, target.state, store, dry_run=target.dry_run):
            yield Moved(
                kind="session",
                name=session.key,
                outcome=outcomes[session.outcome],
                detail=session.detail,
                count=session.events,
                sha256=session.sha256,
            )


# Configuration


def _configuration(source: Source, target: Target, *, credentials: bool) -> Iterator[Moved]:
    theirs = source.config
    if not theirs.exists:
        yield Moved(kind="configuration", name="openclaw.json", outcome="left", detail="there is none")
        return
    if not theirs.merged:
        problems = "; ".join(map(str, theirs.issues[:3]))
        yield Moved(kind="configuration", name="openclaw.json", outcome="failed", detail=problems)
        return
    left_out: list[str] = []
    moved = theirs.merged if credentials else _without_secrets(theirs.merged, redacted(theirs.merged), (), left_out)
    moved = in_our_folder(moved, source.folder, target.state)
    if source.newer or theirs.notes:
        moved = _with_their_defaults(moved)
    ours = read_config(str(target.config_path), target.environ)
    kept: list[str] = []
    content = _filled_up(ours.merged, moved, (), kept)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    result = parse_config(str(target.config_path), text, target.environ)
    for path in left_out:
        yield Moved(
            kind="credentials", name=path, outcome="left", detail="a secret; --credentials moves it, or set it anew"
        )
    if wrong := _added(theirs, result):
        detail = "; ".join(wrong[:5])
        yield Moved(kind="configuration", name="openclaw.json", outcome="failed", detail=detail)
        return
    detail = f"these keys are set here and stay: {', '.join(kept[:10])}" if kept else ""
    if content == ours.merged:
        yield Moved(kind="configuration", name="openclaw.json", outcome="present", detail=detail)
        return
    if not target.dry_run:
        make_private_dir(str(target.config_path.parent))
        atomic_replace(target.config_path, text.encode())
    digest = hashlib.sha256(text.encode()).hexdigest()
    yield Moved(
        kind="configuration", name="openclaw.json", outcome="moved", count=len(content), sha256=digest, detail=detail
    )
    for issue in result.warnings:
        yield Moved(kind="configuration", name=issue.path, outcome="left", detail=issue.message)


def _added(theirs: Snapshot, result: Snapshot) -> list[str]:
    """The faults of the result. Those of variables that are not set here count only if they are set nowhere."""
    before = {(issue.path, issue.message) for issue in theirs.issues}
    return [str(issue) for issue in result.issues if (issue.path, issue.message) not in before]


def _without_secrets(value: Any, hidden: Any, path: tuple[str, ...], left_out: list[str]) -> Any:
    """Return the values without the secrets, which ``hidden`` has replaced."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        for key, _ in items:
            if hidden[key] == SENTINEL:
                left_out.append(format_path((*path, key)))
        return {
            key: _without_secrets(item, hidden[key], (*path, key), left_out)
            for key, item in items
            if hidden[key] != SENTINEL
        }
    if isinstance(value, list):
        listed = zip(cast("list[Any]", value), hidden, strict=True)
        return [_without_secrets(item, shown, (*path, "[]"), left_out) for item, shown in listed if shown != SENTINEL]
    return value


def in_our_folder(value: Any, source: Path, state: Path) -> Any:
    """Replace paths in the other folder by those in ours."""
    if isinstance(value, dict):
        return {key: in_our_folder(item, source, state) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [in_our_folder(item, source, state) for item in value]
    if isinstance(value, str) and value.startswith(("/", "~/")):
        path = Path(os.path.normpath(Path(value).expanduser()))
        if path.is_relative_to(source) and path != source:
            return str(state / path.relative_to(source))
    return value


def _with_their_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Write down the defaults that differ, so that conversations go on as they did."""
    session, messages = values.get("session"), values.get("messages")
    content = dict(values)
    if get_path(values, ("session", "reset")) is None and get_path(values, ("session", "idleMinutes")) is None:
        content["session"] = {**(session if isinstance(session, dict) else {}), "reset": {"mode": "none"}}
    if get_path(values, ("messages", "queue", "mode")) is None:
        own = cast("dict[str, Any]", messages) if isinstance(messages, dict) else {}
        queue = own.get("queue")
        content["messages"] = {**own, "queue": {**(queue if isinstance(queue, dict) else {}), "mode": "steer"}}
    return content


def _filled_up(ours: Any, theirs: Any, path: tuple[str, ...], kept: list[str]) -> Any:
    """Return our values with theirs where we have none."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        merged = dict(cast("dict[str, Any]", ours))
        for key, value in cast("dict[str, Any]", theirs).items():
            merged[key] = _filled_up(merged[key], value, (*path, key), kept) if key in merged else value
        return merged
    if ours != theirs:
        kept.append(".".join(path))
    return ours


# Workspaces


def _workspaces(source: Source, target: Target) -> Iterator[Moved]:
    config = source.config.config
    seen: set[Path] = set()
    for agent in source.agents():
        folder = workspace_dir(config, source.folder, agent)
        if folder in seen or not folder.is_dir():
            continue
        seen.add(folder)
        if not folder.is_relative_to(source.folder):
            yield Moved(kind="workspace", name=agent, outcome="left", detail=f"{folder} stays where it is and is used")
        elif not is_inside(source.folder, folder):
            yield Moved(kind="workspace", name=agent, outcome="failed", detail=f"{folder} is a link out of the folder")
        else:
            yield copy_tree(agent, folder, target.state / folder.relative_to(source.folder), dry_run=target.dry_run)


def copy_tree(agent: str, folder: Path, home: Path, *, dry_run: bool) -> Moved:
    """Copy the files of a workspace. Files that are there already stay, and links are left out."""
    digest, copied, present, left, kept = hashlib.sha256(), 0, 0, list[str](), list[str]()
    for path in _tree(folder, left):
        name = path.relative_to(folder)
        with path.open("rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{name}\0{own}\n".encode("utf-8", "surrogateescape"))
        place = home / name
        if place.is_symlink() or place.exists():
            same = place.is_file() and not place.is_symlink() and _digest(place) == own
            present += same
            if not same:
                kept.append(str(name))
            continue
        copied += 1
        if not dry_run:
            _copy_file(path, place, own)
    details = [f"differs here and stays: {', '.join(kept[:5])}"] if kept else []
    details += [f"links and special files are left out: {', '.join(left[:5])}"] if left else []
    return Moved(
        kind="workspace",
        name=agent,
        outcome="moved" if copied else "kept" if kept else "present",
        detail="; ".join(details),
        count=copied + present + len(kept),
        sha256=digest.hexdigest(),
    )


def _tree(folder: Path, left: list[str]) -> Iterator[Path]:
    def failed(error: OSError) -> None:
        raise Unreadable(f"{error.filename} cannot be read: {error.strerror}")

    for at, folders, names in os.walk(folder, onerror=failed):
        folders.sort()
        left += [str((Path(at) / name).relative_to(folder)) for name in folders if (Path(at) / name).is_symlink()]
        for name in sorted(names):
            path = Path(at) / name
            if path.is_symlink() or not path.is_file():
                left.append(str(path.relative_to(folder)))
            else:
                yield path


def _copy_file(path: Path, place: Path, digest: str) -> None:
    make_private_dir(str(place.parent))
    with path.open("rb") as file:
        prepared = write_temporary(place, iter(lambda: file.read(1 << 20), b""))
    try:
        if _digest(prepared) != digest:
            raise Unreadable(f"{path} is being written to; stop the OpenClaw that uses it, then try again")
        status = path.stat()
        prepared.chmod(0o700 if status.st_mode & 0o100 else 0o600)
        os.utime(prepared, ns=(status.st_atime_ns, status.st_mtime_ns))
        put_in_place(prepared, place)
    finally:
        prepared.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Scheduled jobs


def _jobs(source: Source, target: Target) -> Iterator[Moved]:
    theirs: list[Any] = [msgspec.json.decode(row["job_json"]) for row in source.rows(SHARED, "cron_jobs")]
    if not theirs:
        theirs = source.object("cron/jobs.json").get("jobs") or []
    ours = target.object("cron/jobs.json")
    listed: list[Any] = list(ours.get("jobs") or [])
    known = {str(job.get("id") or job.get("jobId")): job for job in listed if isinstance(job, dict)}
    changed = False
    for job in theirs:
        if not isinstance(job, dict):
            continue
        made = cast("dict[str, Any]", job)
        name, own = str(made.get("name") or "job"), str(made.get("id") or made.get("jobId") or "")
        if name.startswith(_HOUSEKEEPING):
            yield Moved(kind="job", name=name, outcome="left", detail="housekeeping of the other version; not needed")
        elif own in known:
            yield Moved(kind="job", name=name, outcome="present")
        else:
            try:
                prepared, notes = _our_job(made)
            except JobError as problem:
                yield Moved(kind="job", name=name, outcome="failed", detail=str(problem))
                continue
            listed.append(prepared)
            changed = True
            yield Moved(kind="job", name=name, outcome="moved", detail=notes)
    if changed:
        target.write("cron/jobs.json", {"version": 1, **ours, "jobs": listed})


def _our_job(job: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the job as our scheduler runs it. Raises ``JobError`` if it would do something else here."""
    payload = dict(cast("dict[str, Any]", job.get("payload") or {}))
    allowed = payload.pop("toolsAllow", None)
    if allowed not in (None, [], ["*"]):
        raise JobError("it may use some tools only, and jobs have no tools of their own here; add it again by hand")
    notes: list[str] = []
    for unknown in ("lightContext", "fallbacks"):
        if payload.pop(unknown, None) is not None:
            notes.append(f"without payload.{unknown}")
    if payload.get("kind") == "agentTurn" and payload.get("deliver") is None:
        payload.pop("deliver", None)
    if job.get("trigger") is not None:
        raise JobError("it runs after a trigger script, which there is not here")
    delivery = job.get("delivery")
    shown = {
        **{key: job[key] for key in ("name", "description", "agentId", "enabled", "deleteAfterRun") if key in job},
        **{key: job[key] for key in ("schedule", "sessionTarget", "wakeMode") if key in job},
        "payload": payload,
        **({"delivery": _our_delivery(delivery)} if isinstance(delivery, dict) else {}),
    }
    shown = check_job(shown)
    state = job.get("state")
    kept = {key: job[key] for key in _JOB_FIELDS if key in job}
    return {**kept, **shown, "state": state if isinstance(state, dict) else {}}, "; ".join(notes)


def _our_delivery(delivery: Mapping[str, Any]) -> dict[str, Any]:
    known = ("mode", "channel", "to", "accountId", "bestEffort")
    return {key: delivery[key] for key in known if delivery.get(key) is not None}


# People and devices


def _people(source: Source, target: Target) -> Iterator[Moved]:
    admitted: dict[str, list[str]] = {}
    for row in source.rows(SHARED, "channel_pairing_allow_entries"):
        channel, account = str(row["channel_key"]), str(row["account_id"] or "default")
        if account not in ("", "default", "*"):
            text = f"admitted on the account {account} only; here people are admitted to a channel: openclaw pairing"
            yield Moved(kind="people", name=f"{channel} {row['entry']}", outcome="left", detail=text)
        else:
            admitted.setdefault(channel, []).append(str(row["entry"]))
    folder = source.folder / "credentials"
    for path in sorted(folder.glob("*-allowFrom.json")) if folder.is_dir() else ():
        entries = source.object(f"credentials/{path.name}").get("allowFrom")
        channel = path.name.removesuffix("-allowFrom.json")
        admitted.setdefault(channel, []).extend(map(str, entries if isinstance(entries, list) else []))
    for channel, people in admitted.items():
        name = f"credentials/{channel}-allowFrom.json"
        ours = target.object(name)
        listed = [str(one) for one in ours.get("allowFrom") or []]
        new = [one for one in dict.fromkeys(people) if one not in listed and one not in ("", "*")]
        if new:
            target.write(name, {"version": 1, **ours, "allowFrom": sorted([*listed, *new])})
        for one in dict.fromkeys(people):
            if one not in ("", "*"):
                outcome: Outcome = "moved" if one in new else "present"
                yield Moved(kind="people", name=f"{channel} {one}", outcome=outcome)


def _devices(source: Source, target: Target, *, tokens: bool) -> Iterator[Moved]:
    records: dict[str, Any] = dict(source.object("devices/paired.json"))
    for row in source.rows(SHARED, "device_pairing_paired"):
        record = {ours: row[theirs] for theirs, ours in _DEVICE_COLUMNS.items() if row.get(theirs) is not None}
        for column, name in (("roles_json", "roles"), ("scopes_json", "scopes"), ("tokens_json", "tokens")):
            with contextlib.suppress(msgspec.DecodeError, TypeError):
                record[name] = msgspec.json.decode(row.get(column) or "null")
        records[str(row["device_id"])] = {key: value for key, value in record.items() if value is not None}
    ours = target.object("devices/paired.json")
    merged = dict(ours)
    for own, record in records.items():
        if not isinstance(record, dict) or not isinstance(record.get("publicKey"), str):
            yield Moved(kind="device", name=own[:16], outcome="failed", detail="its record has no key")
            continue
        name = str(record.get("displayName") or record.get("clientId") or own[:16])
        if own in ours:
            yield Moved(kind="device", name=name, outcome="present")
        elif not tokens:
            detail = "its token is a secret: --credentials moves it, or pair the device again"
            yield Moved(kind="device", name=name, outcome="left", detail=detail)
        else:
            merged[own] = record
            yield Moved(kind="device", name=name, outcome="moved", detail=str(record.get("role") or ""))
    if merged != ours:
        target.write("devices/paired.json", merged)


# Exec rules, credentials, memory


def _exec_rules(source: Source, target: Target) -> Iterator[Moved]:
    rows = source.rows(SHARED, "exec_approvals_config")
    try:
        content: Any = msgspec.json.decode(rows[0]["raw_json"]) if rows else source.object("exec-approvals.json")
        if not content:
            return
        theirs = msgspec.convert({**content, "socket": {}}, RulesFile)
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError) as problem:
        yield Moved(kind="exec rules", name="exec-approvals.json", outcome="failed", detail=str(problem))
        return
    ours = target.object("exec-approvals.json")
    merged = msgspec.convert(ours, RulesFile) if ours else RulesFile(defaults=theirs.defaults)
    for agent, rules in theirs.agents.items():
        if agent not in merged.agents:
            merged.agents[agent] = rules
            count = len(rules.allowlist)
            yield Moved(kind="exec rules", name=agent, outcome="moved", count=count)
            continue
        mine = merged.agents[agent]
        there = {(rule.pattern, rule.cwd) for rule in mine.allowlist}
        new = [rule for rule in rules.allowlist if (rule.pattern, rule.cwd) not in there]
        mine.allowlist = [*mine.allowlist, *new]
        outcome: Outcome = "moved" if new else "present"
        same = (mine.security, mine.ask) == (rules.security, rules.ask)
        detail = "" if same else "security and ask stay as they are here"
        yield Moved(kind="exec rules", name=agent, outcome=outcome, count=len(rules.allowlist), detail=detail)
    content = msgspec.to_builtins(merged)
    if not ours or content != msgspec.to_builtins(msgspec.convert(ours, RulesFile)):
        target.write("exec-approvals.json", content)


def _credentials(source: Source, target: Target, *, consent: bool) -> Iterator[Moved]:
    for agent in source.agents():
        name = f"agents/{agent}/agent/auth-profiles.json"
        theirs: dict[str, Any] = source.object(name)
        for row in source.rows(f"agents/{agent}/agent/openclaw-agent.sqlite", "auth_profile_store"):
            with contextlib.suppress(msgspec.DecodeError, TypeError):
                theirs = msgspec.json.decode(row.get("store_json") or "{}")
        profiles = theirs.get("profiles")
        if not isinstance(profiles, dict) or not profiles:
            continue
        ours = target.object(name)
        own = cast("dict[str, Any]", ours.get("profiles") or {})
        new = {key: value for key, value in cast("dict[str, Any]", profiles).items() if key not in own}
        for profile in cast("dict[str, Any]", profiles):
            label = f"{agent} {profile}"
            if profile in own:
                yield Moved(kind="credentials", name=label, outcome="present")
            elif consent:
                yield Moved(kind="credentials", name=label, outcome="moved")
            else:
                detail = "a secret: --credentials moves it, or openclaw models auth add"
                yield Moved(kind="credentials", name=label, outcome="left", detail=detail)
        if consent and new:
            target.write(name, {"version": 1, **ours, "profiles": {**own, **new}})


def _memory(source: Source) -> Iterator[Moved]:
    if (source.folder / "memory").is_dir():
        detail = "notes come with the workspace; their index is built again at the first search"
        yield Moved(kind="memory", name="memory", outcome="left", detail=detail)
