"""The boundary of one sandbox, and its folder: file tools and commands see the same paths, and nothing else.

A sandbox's folder is written by programs that nobody trusts. So everything in it is opened with the opener, which
follows no link. Beside each folder is a record, ``<folder>.json``; the time of its last change is the last use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema.agents import SandboxPrune
from openclaw.path_opener import FileMissing, PathOpener, PathRefused, Root
from openclaw.paths import make_private_dir
from openclaw.tools.base import ToolError
from openclaw.tools.sandbox.launch import (
    SEARCH_PATH,
    BadLimit,
    ControlGroup,
    Mount,
    Parts,
    SandboxLimits,
    SandboxPlan,
    bind_mounts,
    bubblewrap_argv,
    closed_by,
    control_group,
    engine_argv,
    group_name,
    in_force,
    limits_of,
    missing,
    remove_control_group,
    shell_inside,
    uncounted,
    write_common_files,
)
from openclaw.tools.shell_process import ShellCommand

OUTPUTS = ".outputs"
"""The folder of a sandbox with the outputs that were too long for the model."""
SEEDED = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "BOOTSTRAP.md", "HEARTBEAT.md")
"""Files of the workspace that a new sandbox gets a copy of."""
SKILLS = "skills"
MOST_SKILL_FILES = 200
LARGEST_SKILL_FILE = 2 * 1024**2
_MOST_LOOKED_AT = 10_000
_HOUR_MS = 3_600_000


class SandboxRecord(msgspec.Struct, rename="camel", kw_only=True):
    """A sandbox that was used."""

    scope_key: str
    scope: str
    agent_id: str
    session_key: str
    """The session that used it first."""
    backend: str
    workspace_access: str
    created_at_ms: int
    folder: str = ""
    last_used_at_ms: int = 0


def use_folder(plan: SandboxPlan, opener: PathOpener, now_ms: int) -> None:
    """Makes the sandbox's folder, fills a new one, and notes its use. Blocks."""
    make_private_dir(str(plan.root))
    write_common_files(plan.root)
    make_private_dir(str(plan.folder))
    record = _record_path(plan.own_folder)
    if not record.exists():
        if plan.access != "rw":
            _seed(plan, opener)
        fresh = SandboxRecord(
            scope_key=plan.scope_key,
            scope=plan.scope,
            agent_id=plan.agent_id,
            session_key=plan.session_key,
            backend=plan.backend,
            workspace_access=plan.access,
            created_at_ms=now_ms,
        )
        record.write_bytes(msgspec.json.encode(fresh))
        record.chmod(0o600)
    os.utime(record, (now_ms / 1000, now_ms / 1000))


def _record_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _seed(plan: SandboxPlan, opener: PathOpener) -> None:
    workspace = PathOpener(plan.workspace, confine=True, links=False)
    for name in SEEDED:
        with contextlib.suppress(PathRefused):
            copy_file(workspace, name, opener, name, replace=False)


def copy_file(source: PathOpener, path: str, target: PathOpener, name: str, *, replace: bool) -> None:
    """Copies a file into the sandbox, unless it is there already. Raises ``PathRefused``."""
    with source.open_read(path) as file:
        data = file.read(LARGEST_SKILL_FILE + 1)
    if len(data) > LARGEST_SKILL_FILE:
        return
    try:
        with target.open_read(name) as file:
            if not replace or file.read(LARGEST_SKILL_FILE + 1) == data:
                return
    except FileMissing:
        pass
    with target.open_write_atomic(name) as file:
        file.write(data)


def copy_skills(plan: SandboxPlan, opener: PathOpener, folders: Sequence[str]) -> None:
    """Copies the skills of the workspace into the sandbox. ``folders`` are relative to the workspace. Blocks."""
    workspace = PathOpener(plan.workspace, confine=True, links=False)
    for folder in folders:
        for count, path in enumerate(_files_below(workspace, folder)):
            if count >= MOST_SKILL_FILES:
                break
            with contextlib.suppress(PathRefused):
                copy_file(workspace, path, opener, path, replace=True)


def _files_below(opener: PathOpener, folder: str, depth: int = 0) -> Iterator[str]:
    try:
        names = opener.scan(folder)
    except PathRefused:
        return
    for name, kind in names:
        if kind == "file":
            yield f"{folder}/{name}"
        elif kind == "folder" and depth < 5 and not name.startswith("."):
            yield from _files_below(opener, f"{folder}/{name}", depth + 1)


# Listing and removing


def list_sandboxes(root: Path) -> list[SandboxRecord]:
    """The sandboxes below a root, the last used one first. Blocks."""
    records: list[SandboxRecord] = []
    for path in root.glob("*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            record = msgspec.json.decode(path.read_bytes(), type=SandboxRecord)
            record.folder = str(path.with_suffix(""))
            record.last_used_at_ms = int(path.stat().st_mtime * 1000)
            records.append(record)
    return sorted(records, key=lambda record: -record.last_used_at_ms)


def remove_sandbox(record: SandboxRecord) -> None:
    """Removes the folder with everything in it, and its record. Raises ``OSError``. Blocks."""
    folder = Path(record.folder)
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    remove_control_group(group_name(folder))
    _record_path(folder).unlink(missing_ok=True)


def prune(root: Path, rules: SandboxPrune, now_ms: int) -> list[SandboxRecord]:
    """Removes sandboxes that are idle or old, unless they hold work, and returns them. Blocks."""
    removed: list[SandboxRecord] = []
    for record in list_sandboxes(root):
        idle, age = now_ms - record.last_used_at_ms, now_ms - record.created_at_ms
        is_idle = bool(rules.idle_hours) and idle >= rules.idle_hours * _HOUR_MS
        # An old one may be in use at this moment.
        is_old = bool(rules.max_age_days) and age >= rules.max_age_days * 24 * _HOUR_MS and idle >= _HOUR_MS
        if (is_idle or is_old) and not holds_work(record):
            with contextlib.suppress(OSError):
                remove_sandbox(record)
                removed.append(record)
    return removed


def holds_work(record: SandboxRecord) -> bool:
    """Whether the folder has files that were not put there when it was made, or that were changed since. Blocks."""
    looked_at = 0
    for folder, folders, files in os.walk(record.folder):
        if folder == record.folder:
            folders[:] = [name for name in folders if name not in (SKILLS, OUTPUTS)]
        for name in files:
            looked_at += 1
            path = Path(folder, name)
            seeded = folder == record.folder and name in SEEDED
            if not seeded or looked_at > _MOST_LOOKED_AT:
                return True
            if path.lstat().st_mtime * 1000 > record.created_at_ms + 2000:
                return True
    return False


AGENT = "/agent"
PRUNE_EVERY_S = 300.0


class Boundary:
    """One sandbox. Sessions that share the sandbox share the object; the configuration makes a new one."""

    def __init__(
        self, plan: SandboxPlan, skill_folders: Iterable[Path], prune_rules: SandboxPrune, clock: Clock
    ) -> None:
        self.plan = plan
        self.workdir = os.path.normpath(plan.docker.workdir)
        self._prune_rules = prune_rules
        self._clock = clock
        self._pruned_at: float | None = None
        self._skills: object = None
        self._lock = asyncio.Lock()
        self._group = ControlGroup()
        self._limits = SandboxLimits(memory=0, processes=0, cpus=None, each={})
        self.closed: str | None = None
        """Why there can be no sandbox, whatever is installed."""
        mounts = [Mount(str(plan.folder), self.workdir, True)]
        if plan.access == "ro":
            mounts.append(Mount(str(plan.workspace), AGENT, False))
        outside = [folder for folder in map(Path.absolute, skill_folders) if not folder.is_relative_to(plan.workspace)]
        present = [folder for folder in outside if folder.is_dir()]
        mounts += [Mount(str(folder), f"/{SKILLS}/{count}", False) for count, folder in enumerate(present)]
        foreign = {mount.folder for mount in mounts[1:]} - {str(plan.workspace)}
        try:
            mounts += (binds := bind_mounts(plan))
            self._limits = limits_of(plan.docker)
            self.closed = closed_by(plan, mounts)
            foreign |= {mount.folder for mount in binds}
        except (BadLimit, ValueError) as problem:
            self.closed = str(problem)
        self.mounts: Sequence[Mount] = mounts
        self.opener = PathOpener.in_sandbox(
            [
                Root(one.folder, (one.place, one.folder), writable=one.writable, foreign=one.folder in foreign)
                for one in mounts
                if Path(one.folder).is_dir() or one is mounts[0]
            ]
        )

    async def refusal(self, skills: Sequence[str] = (), version: object = None) -> str | None:
        """Makes the sandbox ready for a run. Returns the sentence that refuses the run if there can be none.

        ``skills`` are the folders of skills on this machine. They are copied again when ``version`` changes.
        """
        async with self._lock:
            why = self.closed or await asyncio.to_thread(self._ready, skills, version)
        return f"This session must run in a sandbox, and none can be made: {why}." if why else None

    async def check(self) -> str | None:
        """Why there can be no sandbox. Unlike ``refusal`` it makes no folder."""
        if self.closed is None and self.plan.backend == "bubblewrap":
            self._group = await asyncio.to_thread(control_group, self.plan.group_name, self._limits)
        return self.closed or await asyncio.to_thread(missing, self.plan, self.parts)

    def _ready(self, skills: Sequence[str], version: object) -> str | None:
        plan = self.plan
        try:
            use_folder(plan, self.opener, self._clock.now_ms())
            if plan.access != "rw" and version is not None and version is not self._skills:
                own = [folder for folder in map(Path, skills) if folder.is_relative_to(plan.workspace)]
                copy_skills(plan, self.opener, [str(folder.relative_to(plan.workspace)) for folder in own])
                self._skills = version
            now = self._clock.monotonic()
            if self._pruned_at is None or now - self._pruned_at >= PRUNE_EVERY_S:
                self._pruned_at = now
                prune(plan.root, self._prune_rules, self._clock.now_ms())
        except (OSError, PathRefused) as error:
            return f"its folder {plan.folder} cannot be used ({error})"
        if plan.backend == "bubblewrap":
            self._group = control_group(plan.group_name, self._limits)
        return missing(plan, self.parts)

    @property
    def parts(self) -> Parts:
        return Parts(self.plan, self.mounts, self._limits, self._group)

    @property
    def limits(self) -> dict[str, str]:
        """The limits as they really are, for people."""
        return in_force(self._limits, self._group)

    async def command(
        self, text: str, workdir: str | None, env: Mapping[str, str], *, use_pty: bool, timeout: float
    ) -> tuple[ShellCommand, str]:
        """The command as it runs in the sandbox, and a warning if the folder to run in is not available.

        Raises ``ToolError`` if the sandbox is missing. The command never runs outside.
        """
        if problem := await self.refusal():
            raise ToolError(problem)
        cwd, warning = await asyncio.to_thread(self._folder_to_run_in, workdir)
        own = {
            "PATH": SEARCH_PATH,
            "HOME": self.workdir,
            "USER": "sandbox",
            "LOGNAME": "sandbox",
            "SHELL": shell_inside(),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color" if use_pty else "dumb",
            **self.plan.docker.env,
            **env,
        }
        if self.plan.backend == "bubblewrap":
            argv = bubblewrap_argv(self.parts, [shell_inside(), "-c", text], cwd)
            host_env = own
        else:
            program = ["sh", "-c", text]
            argv = engine_argv(self.parts, program, cwd, own, timeout, terminal=use_pty)
            # The engine's client finds its server with the variables of the Gateway.
            host_env = dict(os.environ)
        command = ShellCommand(
            text=text,
            cwd=cwd,
            env=host_env,
            use_pty=use_pty,
            timeout=timeout,
            inside=tuple(argv),
            most_processes=uncounted(self._limits, self._group) if self.plan.backend == "bubblewrap" else 0,
        )
        return command, warning

    def _folder_to_run_in(self, requested: str | None) -> tuple[str, str]:
        if not requested or not requested.strip():
            return self.workdir, ""
        try:
            self.opener.scan(requested.strip())
            return self.shown(self.opener.resolve(requested.strip())), ""
        except PathRefused:
            return self.workdir, f'Warning: workdir "{requested}" is unavailable; using "{self.workdir}".\n\n'

    def shown(self, path: str) -> str:
        """The path in the sandbox for one on this machine. Others stay as they are.

        Files of the agent's workspace are in the sandbox's own, or are copied there.
        """
        places = [*((mount.folder, mount.place) for mount in self.mounts), (str(self.plan.workspace), self.workdir)]
        for folder, inside in places:
            if path == folder or path.startswith(folder.rstrip("/") + "/"):
                return inside + path[len(folder.rstrip("/")) :]
        return path
