"""The limits of a sandbox: control groups where the Gateway can make them, and limits of each process everywhere.

Control groups count for all processes of a sandbox together. Root can make them. Another user gets limits of each
process, and the limit on the number of processes counts within the sandbox's own user namespace.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from openclaw.config.schema.agents import SandboxDocker

CGROUPS = Path("/sys/fs/cgroup")
GROUP_NAME = "openclaw-sandbox"
PERIOD_US = 100_000
LARGEST_FILE = 2 * 1024**3
MOST_OPEN_FILES = 1024
CPU_SECONDS = 3600
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_PRLIMIT = {
    name: f"--{name}"
    for name in ("as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nofile", "nproc", "stack")
}


class BadLimit(ValueError):
    """A limit in the configuration cannot be understood. The text names the key."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    memory: int
    """Bytes; 0 is no limit."""
    processes: int
    cpus: float | None
    each: dict[str, str]
    """The limits of each process, by the name that ``prlimit`` has for them."""


def limits_of(docker: SandboxDocker) -> SandboxLimits:
    """Raises ``BadLimit``."""
    memory = parse_size(docker.memory, "memory")
    each = {"core": "0", "fsize": str(LARGEST_FILE), "nofile": str(MOST_OPEN_FILES), "cpu": str(CPU_SECONDS)}
    each |= {"data": str(memory)} if memory else {}
    each |= {"nproc": str(docker.pids_limit)} if docker.pids_limit else {}
    for name, value in docker.ulimits.items():
        if name not in _PRLIMIT:
            raise BadLimit(f"sandbox.docker.ulimits.{name} is not known; use {', '.join(_PRLIMIT)}")
        each[name] = _range(name, value)
    if docker.cpus is not None and not 0 < docker.cpus < 4096:
        raise BadLimit("sandbox.docker.cpus must be more than 0, e.g. 1 or 0.5")
    return SandboxLimits(memory=memory, processes=docker.pids_limit, cpus=docker.cpus, each=each)


def _range(name: str, value: object) -> str:
    if isinstance(value, dict):
        soft, hard = value.get("soft"), value.get("hard")  # type: ignore[reportUnknownVariableType]
        value = f"{soft if soft is not None else hard}:{hard if hard is not None else soft}"
    text = str(value).strip()
    if not re.fullmatch(r"\d{1,18}(:\d{1,18})?", text):
        raise BadLimit(f"sandbox.docker.ulimits.{name} must be a number or soft:hard, not {text[:40]!r}")
    return text


def parse_size(value: str | int, key: str) -> int:
    """The bytes of ``512m``, ``2g`` or a number."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise BadLimit(f"sandbox.docker.{key} must be a size such as 512m or 2g, not {str(value)[:40]!r}")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def prlimit_argv(limits: SandboxLimits) -> list[str]:
    """``prlimit`` with the limits of each process. The program to run follows."""
    return ["/usr/bin/prlimit", *(f"{_PRLIMIT[name]}={value}" for name, value in limits.each.items()), "--"]


class ControlGroup(msgspec.Struct, frozen=True):
    """The control groups of one sandbox."""

    joins: tuple[str, ...] = ()
    """A process joins by writing its id to these files."""
    counts: frozenset[str] = frozenset()
    """What is limited: ``memory``, ``pids``, ``cpu``."""


def control_group(name: str, limits: SandboxLimits, where: Path = CGROUPS) -> ControlGroup:
    """Makes the control groups of a sandbox, as far as this user can. Blocks."""
    if (where / "cgroup.controllers").exists():
        return _version_two(where / GROUP_NAME / name, limits)
    joins: list[str] = []
    counts: set[str] = set()
    for controller, settings in _version_one(limits):
        folder = where / controller / GROUP_NAME / name
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for file, value in settings:
                (folder / file).write_text(value)
            joins.append(str(folder / "tasks"))
            counts.add(controller)
    return ControlGroup(tuple(joins), frozenset(counts))


def _version_one(limits: SandboxLimits) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    if limits.memory:
        yield "memory", [("memory.limit_in_bytes", str(limits.memory))]
    if limits.processes:
        yield "pids", [("pids.max", str(limits.processes))]
    if limits.cpus:
        quota = str(int(limits.cpus * PERIOD_US))
        yield "cpu", [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", quota)]


def _version_two(folder: Path, limits: SandboxLimits) -> ControlGroup:
    wanted = {
        "memory": [("memory.max", str(limits.memory)), ("memory.swap.max", "0")] if limits.memory else [],
        "pids": [("pids.max", str(limits.processes))] if limits.processes else [],
        "cpu": [("cpu.max", f"{int(limits.cpus * PERIOD_US)} {PERIOD_US}")] if limits.cpus else [],
    }
    counts: set[str] = set()
    try:
        for parent in (folder.parent.parent, folder.parent):
            parent.mkdir(exist_ok=True)
            for controller, files in wanted.items():
                if files:
                    with contextlib.suppress(OSError):
                        (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir(exist_ok=True)
    except OSError:
        return ControlGroup()
    for controller, files in wanted.items():
        for file, value in files:
            with contextlib.suppress(OSError):
                (folder / file).write_text(value)
                counts.add(controller)
    return ControlGroup((str(folder / "cgroup.procs"),), frozenset(counts)) if counts else ControlGroup()


def remove_control_group(name: str, where: Path = CGROUPS) -> None:
    """Removes the groups of a sandbox that has no processes. Blocks."""
    for controller in ("", "memory", "pids", "cpu"):
        with contextlib.suppress(OSError):
            (where / controller / GROUP_NAME / name).rmdir()


def uncounted(limits: SandboxLimits, group: ControlGroup) -> int:
    """The most processes, if the kernel does not count them: it counts none of root's without control groups."""
    return limits.processes if os.geteuid() == 0 and "pids" not in group.counts else 0


def in_force(limits: SandboxLimits, group: ControlGroup) -> dict[str, str]:
    """What each limit really is on this machine, for people."""
    shown: dict[str, str] = {}
    if limits.memory:
        each = "in all" if "memory" in group.counts else "for each process"
        shown["memory"] = f"{limits.memory // 1024**2} MiB {each}"
    if limits.processes:
        how = ", counted by the Gateway five times a second" if uncounted(limits, group) else ""
        shown["processes"] = f"{limits.processes}{how}"
    if limits.cpus:
        shown["cpus"] = f"{limits.cpus:g}" if "cpu" in group.counts else "not limited: it needs control groups"
    for name in ("cpu", "fsize", "nofile"):
        shown[name] = {"cpu": "{} s for each process"}.get(name, "{}").format(limits.each[name])
    return shown
