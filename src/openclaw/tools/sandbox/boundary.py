"""The boundary of one sandbox: file tools and commands see the same folders under the same paths, and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from openclaw.clock import Clock
from openclaw.config.schema.agents import SandboxPrune
from openclaw.opener import PathOpener, PathRefused, Root
from openclaw.tools.base import ToolError
from openclaw.tools.sandbox.folder import SKILLS, copy_skills, prune, use_folder
from openclaw.tools.sandbox.launch import (
    SEARCH_PATH,
    Mount,
    Parts,
    bind_mounts,
    bubblewrap_argv,
    closed_by,
    engine_argv,
    missing,
    shell_inside,
)
from openclaw.tools.sandbox.limits import (
    BadLimit,
    ControlGroup,
    SandboxLimits,
    control_group,
    in_force,
    limits_of,
    uncounted,
)
from openclaw.tools.sandbox.plan import SandboxPlan
from openclaw.tools.shell_process import ShellCommand

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

        Raises ``ToolError`` if there is no sandbox. The command never runs outside.
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

    def _folder_to_run_in(self, wanted: str | None) -> tuple[str, str]:
        if not wanted or not wanted.strip():
            return self.workdir, ""
        try:
            self.opener.scan(wanted.strip())
            return self.shown(self.opener.resolve(wanted.strip())), ""
        except PathRefused:
            return self.workdir, f'Warning: workdir "{wanted}" is unavailable; using "{self.workdir}".\n\n'

    def shown(self, path: str) -> str:
        """The path in the sandbox for one on this machine. Others stay as they are.

        Files of the agent's workspace are in the sandbox's own, or are copied there.
        """
        places = [*((mount.folder, mount.place) for mount in self.mounts), (str(self.plan.workspace), self.workdir)]
        for folder, place in places:
            if path == folder or path.startswith(folder.rstrip("/") + "/"):
                return place + path[len(folder.rstrip("/")) :]
        return path
