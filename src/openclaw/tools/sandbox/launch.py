"""The sandbox of one session as the configuration has it, how a command is started in it, and its limits.

``SandboxPlan`` says where a sandbox is, what it sees and which tools it has. A session that was spawned by a sandboxed
one is sandboxed too, whatever its agent is. Its rights are never wider than those of the session that spawned it.

Every command gets a sandbox of its own around the same folders: when its shell ends, everything that it started ends.
Control groups limit all processes of a sandbox together. Root can make them. Another user gets limits of each process,
and the limit on the number of processes counts within the sandbox's own user namespace. ``missing`` says whether this
machine can have a sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from openclaw.config.agents import agent_config, sandbox_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.config.schema.agents import Sandbox, SandboxDocker
from openclaw.tools.policy import GROUPS, ToolFilter, allowed_tools, allows, allows_some, expand, normalize_tool_name

# Its tools

Confinement: TypeAlias = Literal["inside", "host"]

PLACES: dict[str, Confinement] = {
    # These see and change only what the sandbox sees.
    **dict.fromkeys(("read", "search", "write", "edit", "apply_patch", "exec", "process", "image"), "inside"),
    # These are carried out by the Gateway. They start no program that the call names, and open a file that it names
    # only with the opener of ``ToolContext.sandbox``. Sessions are guarded by teamwork/session_tools.py, and the rest
    # have rules of their own. Most are not offered by default.
    **dict.fromkeys(GROUPS["group:sessions"], "host"),
    **dict.fromkeys(("agents_list", "subagents", "memory_search", "memory_get", "memory_pins", "plan"), "host"),
    **dict.fromkeys(("ask_user", "message", "web_search", "web_fetch"), "host"),
    **dict.fromkeys(("browser", "canvas", "nodes", "cron", "gateway"), "host"),
}
"""The tools that a sandboxed session can have. Others need a rule that names them."""
DEFAULT_ALLOW = (
    "exec",
    "process",
    "read",
    "search",
    "write",
    "edit",
    "apply_patch",
    "image",
    *GROUPS["group:sessions"],
)
CHANNEL_TOOLS = ("telegram", "whatsapp", "discord", "irc", "googlechat", "slack", "signal", "imessage")
DEFAULT_DENY = ("browser", "canvas", "nodes", "cron", "gateway", *CHANNEL_TOOLS)
READ_ONLY = ToolFilter(deny=("write", "edit", "apply_patch"))
"""The filter of a sandbox with ``workspaceAccess: ro``."""


def sandbox_filter(allow: Sequence[str] | None, deny: Sequence[str] | None) -> ToolFilter:
    """The filter for what ``tools.sandbox.tools`` says. None: the usual list."""
    return ToolFilter(
        allow=DEFAULT_ALLOW if allow is None else tuple(allow),
        deny=DEFAULT_DENY if deny is None else tuple(deny),
    )


def tools_inside(names: Iterable[str], filters: Sequence[ToolFilter]) -> list[str]:
    """The tools that a sandboxed session has. Every filter must allow a tool, and it must have a place."""
    named = {normalize_tool_name(entry) for rules in filters for entry in rules.allow}
    foreign = ToolFilter(allow=_naming_servers(filters))
    return [
        name
        for name in allowed_tools(names, filters)
        if name in PLACES or name in named or (foreign.allow and allows(foreign, name))
    ]


def names_some(prefix: str, filters: Sequence[ToolFilter]) -> bool:
    """Whether the configuration names tools that begin with ``prefix``, those of one MCP server, for the sandbox."""
    named = _naming_servers(filters)
    return bool(named) and allows_some(ToolFilter(allow=named), prefix)


def _naming_servers(filters: Sequence[ToolFilter]) -> tuple[str, ...]:
    """The entries of the allow lists that name tools of MCP servers: ``docs__search``, ``docs__*``, ``group:mcp``."""
    return tuple(entry for rules in filters for entry in expand(rules.allow) if "__" in entry)


def blocked_text(name: str, filters: Sequence[ToolFilter], *, agent_id: str, mode: str, access: str) -> str | None:
    """Says why a sandboxed session does not have a tool, and which keys change that. None: the sandbox allows it."""
    if tools_inside([name], filters):
        return None
    if access == "ro" and not allows(READ_ONLY, name):
        return (
            f'Tool "{name}" is not there: this session runs in a sandbox that may only read the workspace (/agent). '
            "Write with exec in /workspace, or have the owner set agents.defaults.sandbox.workspaceAccess to rw."
        )
    return (
        f'Tool "{name}" is blocked by the sandbox of this session (mode {mode}). The owner can add it to '
        f"tools.sandbox.tools.allow (for one agent: agents.list[].tools.sandbox.tools.allow), take it from "
        f"tools.sandbox.tools.deny, or set agents.defaults.sandbox.mode to off. "
        f"`openclaw sandbox explain --agent {agent_id}` shows what counts."
    )


# Its plan

Access: TypeAlias = Literal["none", "ro", "rw"]
Scope: TypeAlias = Literal["session", "agent", "shared"]

_ACCESS: tuple[Access, ...] = ("none", "ro", "rw")
_SCOPES: tuple[Scope, ...] = ("session", "agent", "shared")
_UNSAFE = re.compile(r"[^a-z0-9._-]+")


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of one session. Sessions with the same ``folder`` share it."""

    agent_id: str
    session_key: str
    lineage: tuple[tuple[str, str], ...]
    """The sandboxed sessions whose rules count, as agent and key: this one, and those that it was spawned by."""
    mode: str
    scope: Scope
    scope_key: str
    """What shares the sandbox: a session key, ``agent:<id>`` or ``shared``."""
    backend: Literal["bubblewrap", "docker", "podman"]
    access: Access
    root: Path
    """The folder of all sandboxes."""
    own_folder: Path
    """The sandbox's own folder. Not used with access ``rw``."""
    workspace: Path
    """The agent's workspace."""
    state_dir: Path
    docker: SandboxDocker
    filters: tuple[ToolFilter, ...]

    @property
    def folder(self) -> Path:
        """The folder that commands and file tools work in."""
        return self.workspace if self.access == "rw" else self.own_folder

    @property
    def group_name(self) -> str:
        """The name of the sandbox's control groups. Other Gateways of this machine have others."""
        return group_name(self.own_folder)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for plans that are equal under one configuration, apart from the session."""
        agents = tuple(agent for agent, _ in self.lineage)
        return (self.agent_id, self.scope_key, self.access, agents)


def make_plan(
    config: Config, state_dir: Path, agent_id: str, session_key: str, lineage: Sequence[tuple[str, str]]
) -> SandboxPlan:
    """The plan for a session. ``lineage`` names the sandboxed sessions whose rules count, the eldest one last."""
    settings = [sandbox_config(config, agent) for agent in dict.fromkeys([agent_id, *(elder for elder, _ in lineage)])]
    if all(agent != agent_id for agent, _ in lineage):
        # The session's own agent has no sandbox. Only its ancestors' rules count.
        settings = settings[1:]
    eldest = sandbox_config(config, lineage[-1][0])
    access = _ACCESS[min(_ACCESS.index(ancestor.workspace_access) for ancestor in settings)]
    scope = _SCOPES[min(_SCOPES.index(scope_of(ancestor)) for ancestor in settings)]
    scope_key = {"session": session_key, "agent": f"agent:{agent_id}", "shared": "shared"}[scope]
    root = sandbox_root(eldest, state_dir)
    filters = [_filter(config, agent) for agent in dict.fromkeys(agent for agent, _ in lineage)]
    return SandboxPlan(
        agent_id=agent_id,
        session_key=session_key,
        lineage=tuple(lineage),
        mode=eldest.mode,
        scope=scope,
        scope_key=scope_key,
        backend=eldest.backend,
        access=access,
        root=root,
        own_folder=root / slug_of(scope_key),
        workspace=workspace_dir(config, state_dir, agent_id),
        state_dir=state_dir,
        docker=eldest.docker,
        filters=(*filters, *([READ_ONLY] if access == "ro" else [])),
    )


def _filter(config: Config, agent_id: str) -> ToolFilter:
    agent = agent_config(config, agent_id)
    own = agent.tools.sandbox if agent else None
    rules = (own or config.tools.sandbox).tools
    return sandbox_filter(rules.allow, rules.deny)


def scope_of(settings: Sandbox) -> Scope:
    if settings.per_session is None:
        return settings.scope
    return "session" if settings.per_session else "shared"


def sandbox_root(settings: Sandbox, state_dir: Path) -> Path:
    if settings.workspace_root == Sandbox().workspace_root:
        return state_dir / "sandboxes"
    return Path(settings.workspace_root).expanduser().absolute()


def slug_of(scope_key: str) -> str:
    """A name for a folder: readable, and different for different keys."""
    shown = _UNSAFE.sub("-", scope_key.strip().lower())[:32].strip("-.") or "session"
    return f"{shown}-{hashlib.sha256(scope_key.encode()).hexdigest()[:12]}"


def group_name(folder: Path) -> str:
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def holds(folder: str | Path, inner: str | Path) -> bool:
    """Whether ``inner`` is ``folder`` or in it, with all links resolved."""
    outer, target = os.path.realpath(folder), os.path.realpath(inner)
    return target == outer or target.startswith(outer.rstrip("/") + "/")


# Its limits

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
    """Bytes; 0 means unlimited."""
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
    """The limited resources: ``memory``, ``pids``, ``cpu``."""


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


# What it sees

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TEMPORARY_BYTES = 512 * 1024**2
PROBE_S = 15
PROBE_GOOD_S = 60.0
_SYSTEM = ("/usr", "/nix/store")
_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIG = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs"),
    *("/etc/ca-certificates", "/etc/localtime", "/etc/timezone", "/etc/nsswitch.conf", "/etc/mime.types"),
    *("/etc/fonts", "/etc/terminfo", "/etc/python3", "/etc/java-17-openjdk", "/etc/debian_version", "/etc/os-release"),
)
_NETWORK_CONFIG = ("/etc/resolv.conf", "/etc/hosts", "/etc/services", "/etc/protocols", "/etc/gai.conf")
_RESERVED = ("/proc", "/dev", "/sys", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/tmp", "/skills", "/agent")
_BEGIN = 'for group in $1; do echo $$ > "$group" || exit 125; done; exec 9<"$2" || exit 125; shift 2; exec "$@"'
"""Joins the control groups, opens the filter of system calls, and becomes the command. A failure ends it."""


class Mount(NamedTuple):
    """A folder of this machine that the sandbox sees."""

    folder: str
    place: str
    writable: bool


class Parts(NamedTuple):
    """What a launch is made of."""

    plan: SandboxPlan
    mounts: Sequence[Mount]
    limits: SandboxLimits
    group: ControlGroup


def bind_mounts(plan: SandboxPlan) -> list[Mount]:
    """The folders of ``docker.binds``. Raises ``ValueError`` with a sentence for the owner."""
    mounts: list[Mount] = []
    for bind in plan.docker.binds:
        folder, _, rest = bind.partition(":")
        target, _, mode = rest.partition(":")
        folder = str(Path(folder).expanduser())
        if not (folder.startswith("/") and target.startswith("/") and mode in ("", "ro", "rw")):
            raise ValueError(f"sandbox.docker.binds: {bind!r} is not of the form /folder:/place:ro")
        target = os.path.normpath(target)
        if target == "/" or any(holds_name(reserved, target) for reserved in (*_RESERVED, plan.docker.workdir)):
            raise ValueError(f"sandbox.docker.binds: {target} is used by the sandbox itself; choose another place")
        if not Path(folder).exists():
            raise ValueError(f"sandbox.docker.binds: {folder} does not exist")
        if holds(plan.state_dir, folder) or Path(folder).is_socket():
            raise ValueError(f"sandbox.docker.binds: {folder} would hand the Gateway's own files to the sandbox")
        mounts.append(Mount(folder, target, mode == "rw"))
    return mounts


def holds_name(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def closed_by(plan: SandboxPlan, mounts: Sequence[Mount]) -> str | None:
    """Why the plan cannot be carried out, whatever is installed. None: it can."""
    workdir = plan.docker.workdir
    if not workdir.startswith("/") or workdir == "/" or any(holds_name(reserved, workdir) for reserved in _RESERVED):
        return f"sandbox.docker.workdir cannot be {workdir}; use /workspace"
    if plan.backend == "bubblewrap" and plan.docker.network not in ("none", "host"):
        return (
            f'sandbox.docker.network cannot be "{plan.docker.network}" with bubblewrap; set it to "none" or "host", or '
            "set sandbox.backend to docker or podman"
        )
    for mount in (*mounts, *(Mount(folder, folder, False) for folder in _SYSTEM)):
        if holds(mount.folder, plan.state_dir):
            return f"{mount.folder} holds the Gateway's state folder, so a sandbox cannot have it; move one of the two"
    return None


# Bubblewrap


def bubblewrap_argv(parts: Parts, program: Sequence[str], cwd: str) -> list[str]:
    """The command line that runs ``program`` in the sandbox."""
    bwrap = shutil.which("bwrap") or "/usr/bin/bwrap"
    argv = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--cap-drop", "ALL"]
    argv += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    filter_file = parts.plan.root / ".etc" / "seccomp"
    filtered = filter_file.exists()
    argv += ["--seccomp", "9"] if filtered else []
    argv += ["--share-net"] if parts.plan.docker.network == "host" else []
    for folder in _SYSTEM:
        argv += ["--ro-bind-try", folder, folder]
    for folder in _MERGED:
        if Path(folder).is_symlink():
            argv += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            argv += ["--ro-bind", folder, folder]
    for file in (*_CONFIG, *(_NETWORK_CONFIG if parts.plan.docker.network == "host" else ())):
        argv += ["--ro-bind-try", file, file]
    for name in ("passwd", "group"):
        argv += ["--ro-bind-try", str(parts.plan.root / ".etc" / name), f"/etc/{name}"]
    # Root's own files in /proc/sys could be written otherwise, and with them the whole machine.
    argv += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    for folder in ("/dev/shm", "/tmp", "/var/tmp", "/run"):
        argv += ["--perms", "1777", "--size", str(TEMPORARY_BYTES), "--tmpfs", folder]
    for mount in parts.mounts:
        argv += ["--bind" if mount.writable else "--ro-bind", mount.folder, mount.place]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd, "--"]
    argv += [*prlimit_argv(parts.limits), *program]
    begin = ["/bin/sh", "-c", _BEGIN, "sh", " ".join(parts.group.joins)]
    return [*begin, str(filter_file) if filtered else "/dev/null", *argv]


def write_common_files(root: Path) -> None:
    """Writes the names of the sandbox's user and group, which programs look up, and the filter. Blocks."""
    folder = root / ".etc"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    contents = {
        "passwd": b"root:x:0:0:root:/:/bin/sh\nsandbox:x:1000:1000:sandbox:/workspace:/bin/bash\n",
        "group": b"root:x:0:\nsandbox:x:1000:\n",
        "seccomp": filter_program(),
    }
    for name, content in contents.items():
        path = folder / name
        if content and (not path.exists() or path.read_bytes() != content):
            fresh = path.with_name(f"{name}.{secrets.token_hex(4)}")
            fresh.write_bytes(content)
            fresh.replace(path)


def shell_inside() -> str:
    return "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


# Docker and Podman


def engine_argv(
    parts: Parts, program: Sequence[str], cwd: str, env: Mapping[str, str], timeout: float, *, terminal: bool
) -> list[str]:
    """The command line that runs ``program`` in a new container, which is removed when it ends."""
    plan, docker = parts.plan, parts.plan.docker
    name = f"{docker.container_prefix}{slug_of(plan.scope_key)}-{secrets.token_hex(4)}"
    argv = [plan.backend, "run", "--rm", "--init", "-i", "--name", name, "--hostname", "sandbox", "--pull", "never"]
    argv += ["-t"] if terminal else []
    argv += ["--label", f"openclaw.sandbox={plan.scope_key}", "--security-opt", "no-new-privileges"]
    argv += ["--user", docker.user or f"{os.getuid()}:{os.getgid()}", "--network", docker.network, "--workdir", cwd]
    argv += ["--read-only"] if docker.read_only_root else []
    for folder in ("/tmp", "/var/tmp", "/run") if docker.tmpfs is None else docker.tmpfs:
        argv += ["--tmpfs", folder]
    for capability in ("ALL",) if docker.cap_drop is None else docker.cap_drop:
        argv += ["--cap-drop", capability]
    argv += ["--memory", str(parts.limits.memory)] if parts.limits.memory else []
    argv += ["--memory-swap", str(docker.memory_swap)] if docker.memory_swap is not None else []
    argv += ["--pids-limit", str(parts.limits.processes)] if parts.limits.processes else []
    argv += ["--cpus", f"{parts.limits.cpus:g}"] if parts.limits.cpus else []
    for limit, value in parts.limits.each.items():
        argv += ["--ulimit", f"{limit}={value}"] if limit in ("core", "fsize", "nofile", "cpu") else []
    for profile in (("seccomp", docker.seccomp_profile), ("apparmor", docker.apparmor_profile)):
        argv += ["--security-opt", f"{profile[0]}={profile[1]}"] if profile[1] else []
    for flag, values in (("--dns", docker.dns), ("--add-host", docker.extra_hosts)):
        argv += [word for value in values for word in (flag, value)]
    for mount in parts.mounts:
        argv += ["-v", f"{mount.folder}:{mount.place}:{'rw' if mount.writable else 'ro'}"]
    for variable, value in env.items():
        argv += ["-e", f"{variable}={value}"]
    # The container ends in time even if nobody is left to end it.
    return [*argv, docker.image, "timeout", "-s", "KILL", f"{timeout:g}", *program]


# Whether there can be one

_good_until: dict[tuple[str, ...], float] = {}


def missing(plan: SandboxPlan, parts: Parts) -> str | None:
    """Why this machine cannot have the sandbox, with what to install. None: it can. Blocks for a moment.

    A good answer is kept for a minute. A bad one is not kept, so that an installation counts at once.
    """
    key = (plan.backend, plan.docker.image, shutil.which("bwrap") or "", os.environ.get("PATH", ""))
    if _good_until.get(key, 0) > time.monotonic():
        return None
    problem = _no_bubblewrap(parts) if plan.backend == "bubblewrap" else _no_engine(plan)
    if problem is None:
        _good_until.clear()
        _good_until[key] = time.monotonic() + PROBE_GOOD_S
    return problem


def _no_bubblewrap(parts: Parts) -> str | None:
    if shutil.which("bwrap") is None:
        return (
            "bubblewrap is not installed; install it (Debian and Ubuntu: sudo apt install bubblewrap), or set "
            "agents.defaults.sandbox.backend to docker or podman"
        )
    bare = parts._replace(mounts=(), group=ControlGroup())
    done = _tried(bubblewrap_argv(bare, ["/usr/bin/true"], "/"))
    if done is None:
        return None
    if "nknown option" in done:
        return f"this bubblewrap is too old ({done}); install version 0.8 or newer, which Debian 12 has"
    return (
        f"bubblewrap cannot make a sandbox here ({done}); this system must let users make user namespaces: see "
        '"What this machine needs" in docs/sandbox.md'
    )


def _no_engine(plan: SandboxPlan) -> str | None:
    name, image = plan.backend, plan.docker.image
    if shutil.which(name) is None:
        return f"{name} is not installed; install it, or set agents.defaults.sandbox.backend to bubblewrap"
    if (done := _tried([name, "version", "--format", "{{.Server.Version}}"])) is not None:
        return f"{name} does not answer ({done}); start it, or set agents.defaults.sandbox.backend to bubblewrap"
    if _tried([name, "image", "inspect", image]) is not None:
        return f"{name} has no image {image}; fetch or build it: {name} pull {image}"
    return None


def _tried(argv: Sequence[str]) -> str | None:
    """None if the program ends well, otherwise the last line that it printed."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=PROBE_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {done.returncode}"


# The system calls that a sandboxed program may not make. No ordinary program needs them, and holes were found in what
# they lead to: keyrings (which a user namespace does not separate), eBPF, io_uring, performance counters, modules,
# mounts and other namespaces.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FORBIDDEN: dict[str, tuple[int, int]] = {
    # name: number on x86_64, on aarch64
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "acct": (163, 89),
    "syslog": (103, 116),
}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
"""Numbers from here on are a second set of the same calls on x86_64."""


def filter_program(machine: str = platform.machine()) -> bytes:
    """The filter of system calls, in the form that ``bwrap --seccomp`` reads.

    It is empty for a machine whose numbers are not known.
    """
    if machine not in _ARCHITECTURES:
        return b""
    numbers = [pair[list(_ARCHITECTURES).index(machine)] for pair in _FORBIDDEN.values()]
    refuse = _REFUSE | errno.EPERM
    # Each line is an operation, how many lines to skip if it is true, and if not, and its operand.
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, refuse),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, refuse),
    ]
    for number in numbers:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
