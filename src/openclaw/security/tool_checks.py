"""Checks of what the agent may do: commands, files, extensions, whether its model can be trusted
with them, and whether its sandbox holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from openclaw.clock import SystemClock
from openclaw.config.agents import (
    agent_config,
    agent_ids,
    fallback_models,
    image_models,
    main_session_key,
    primary_model,
    sandbox_config,
)
from openclaw.config.schema import Config
from openclaw.config.schema.agents import SandboxDocker, SandboxPrune
from openclaw.config.schema.tools import ExecConfig
from openclaw.security.audit import AuditFinding, Subject, finding
from openclaw.tools.exec.allowlist import SAFE_USES
from openclaw.tools.exec.approvals import RULES_FILE
from openclaw.tools.exec.programs import Program, names, runs_others
from openclaw.tools.policy import ToolFilter, allowed_tools, profile
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.launch import bind_mounts, missing
from openclaw.tools.sandbox.plan import SandboxPlan, holds, make_plan

RISKY_TOOLS = ("exec", "process", "write", "edit")
SMALL_BILLIONS = 300
_PRECIOUS_FOLDERS = ("/", "/etc", "/root", "/home", "/var", "/run")
_WRITES_ANYTHING = names("tee dd cp mv ln install truncate chmod chown patch")
_PARAMETERS = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,3})?)b(?![a-z0-9])", re.IGNORECASE)
_LEGACY = re.compile(r"gpt-3\.5|gpt-4-(?:0314|0613|32k)|text-davinci|claude-(?:1|2|instant)\b|gemini-1\.0|palm", re.I)
_WEAK = re.compile(r"haiku|[-_](?:mini|nano|lite|tiny)\b|flash-lite|gpt-4|claude-3|gemini-1\.", re.IGNORECASE)


def risky_tools(config: Config, agent_id: str) -> list[str]:
    """The tools of the agent with which one can change this machine. None if all its sessions are sandboxed."""
    if sandbox_config(config, agent_id).mode == "all":
        return []
    return tools_among(RISKY_TOOLS, config, agent_id)


def tools_among(names: Sequence[str], config: Config, agent_id: str) -> list[str]:
    """Those of the tools that the agent has."""
    agent = agent_config(config, agent_id)
    filters: list[ToolFilter] = []
    for section in (config.tools, agent.tools if agent else None):
        if section is not None:
            filters += [profile(section.profile, section.also_allow)] if section.profile else []
            filters.append(ToolFilter(allow=tuple(section.allow), deny=tuple(section.deny)))
    return allowed_tools(names, filters)


def _exec_of(config: Config, agent_id: str) -> ExecConfig:
    agent = agent_config(config, agent_id)
    return agent.tools.exec if agent and agent.tools.exec else config.tools.exec


def exec_checks(subject: Subject) -> Iterator[AuditFinding]:
    config, rules = subject.snapshot.config, _Rules(subject)
    yield from rules.problems()
    free: list[str] = []
    for agent_id in agent_ids(config):
        settings = _exec_of(config, agent_id)
        security = settings.security or ("allowlist" if settings.host == "gateway" else "full")
        strict = rules.security(agent_id) in ("deny", "allowlist") or rules.ask(agent_id) == "always"
        if security == "full" and settings.ask != "always" and not strict and "exec" in risky_tools(config, agent_id):
            free.append(agent_id)
    if free:
        detail = f"agents {', '.join(free)}: commands run as you, without a sandbox and without a question; a poisoned "
        detail += "file, message or page that the model believes can run them too"
        fix = "openclaw config set tools.exec.host gateway (only what is allow-listed runs, the rest is asked)"
        fix += ", or openclaw config set agents.defaults.sandbox.mode all (docs/sandbox.md)"
        yield finding("tools.exec.unrestricted", detail, f"{fix}, or openclaw config set tools.exec.ask always")
    named = {name for agent_id in agent_ids(config) for name in _exec_of(config, agent_id).safe_bins or ()}
    odd = sorted(name for name in named if name not in SAFE_USES)
    if odd:
        detail = f"tools.exec.safeBins has {', '.join(odd)}, which are not known to only filter their input"
        fix = f"keep to {', '.join(SAFE_USES)}; allow other programs when you are asked"
        yield finding("tools.exec.safe_bins", detail, fix)


class _Rules:
    """What ``exec-approvals.json`` says. It is taken as plain values, so that a strange one can be looked at too."""

    def __init__(self, subject: Subject) -> None:
        shared = subject.shared
        self._path = f"{shared.place.rstrip('/')}/{RULES_FILE}"
        self._problem = shared.unreadable.get(RULES_FILE, "")
        self._file: dict[str, Any] = {}
        try:
            found = json.loads(shared.found.get(RULES_FILE, b"{}"))
            self._file = found if isinstance(found, dict) else {}
        except (ValueError, RecursionError) as error:
            self._problem = str(error)

    def security(self, agent_id: str) -> str | None:
        return self._setting(agent_id, "security")

    def ask(self, agent_id: str) -> str | None:
        return self._setting(agent_id, "ask")

    def _setting(self, agent_id: str, name: str) -> str | None:
        sections = self._sections()
        layers = (sections.get(f"agents.{agent_id}"), sections.get("agents.*"), sections.get("defaults"))
        return next((str(layer[name]) for layer in layers if layer and layer.get(name)), None)

    def _sections(self) -> dict[str, dict[str, Any]]:
        agents = self._file.get("agents")
        found = {f"agents.{name}": rules for name, rules in (agents if isinstance(agents, dict) else {}).items()}
        found["defaults"] = self._file.get("defaults")
        return {name: rules for name, rules in found.items() if isinstance(rules, dict)}

    def problems(self) -> Iterator[AuditFinding]:
        if self._problem:
            fix = "mend or remove it; until then no command runs"
            yield finding("tools.exec.rules_unreadable", f"{self._path}: {self._problem}", fix)
        for name, rules in self._sections().items():
            entries = rules.get("allowlist")
            patterns = [str(one.get("pattern")) for one in entries or () if isinstance(one, dict)]
            wide = [pattern for pattern in patterns if allows_everything(pattern)]
            if wide:
                detail = (
                    f"{self._path}, {name}: {', '.join(wide[:8])} (shells and wrappers are asked about all the same)"
                )
                fix = "openclaw approvals allowlist remove PATTERN; allow the programs themselves instead"
                yield finding("tools.exec.allowlist_wide", detail, fix)
            if rules.get("askFallback") == "full":
                detail = f'{self._path}, {name}: askFallback is "full", so a command that nobody answered runs'
                yield finding("tools.exec.fallback_open", detail, 'set askFallback to "deny"')


def allows_everything(pattern: str) -> bool:
    """Whether an entry allows programs that run others or write any file. One that is a whole command does not."""
    if pattern.startswith("="):
        return False
    name = PurePosixPath(pattern).name.lower()
    if any(character in pattern for character in "*?["):
        return re.search(r"[a-z]{2}", name.replace("*", "")) is None
    return name in _WRITES_ANYTHING or runs_others(Program(pattern, pattern, (name,)))


def file_tool_checks(subject: Subject) -> Iterator[AuditFinding]:
    config = subject.snapshot.config
    sections = {"tools.fs": config.tools.fs}
    sections |= {f"agents.list[{i}].tools.fs": a.tools.fs for i, a in enumerate(config.agents.list) if a.tools.fs}
    free = [name for name, section in sections.items() if not section.workspace_only]
    if free:
        detail = f"{', '.join(free)}.workspaceOnly is false: the agent can read your keys and write your start-up files"
        yield finding("tools.fs.workspace_only_off", detail, f"openclaw config unset {free[0]}.workspaceOnly")


def extension_checks(subject: Subject) -> Iterator[AuditFinding]:
    plugins = subject.snapshot.config.plugins
    paths = plugins.load.get("paths")
    if plugins.enabled and isinstance(paths, list) and paths and not plugins.allow:
        detail = f"plugins.load.paths has {', '.join(map(str, paths[:8]))}: every Python file there runs in the Gateway"
        fix = "name the extensions that you mean in plugins.allow"
        yield finding("plugins.extensions_no_allowlist", detail, fix)


def mcp_checks(subject: Subject) -> Iterator[AuditFinding]:
    servers = subject.snapshot.config.mcp.servers
    free = [name for name, one in servers.items() if one.enabled and one.sessions == "all" and one.ask == "off"]
    if free:
        detail = f"whoever can talk to the agent, in groups too, can have it call {', '.join(free[:8])}"
        fix = f"openclaw config set mcp.servers.{free[0]}.sessions owner, or let it ask with .ask always"
        yield finding("mcp.open_to_all", detail, fix)


def model_checks(subject: Subject) -> Iterator[AuditFinding]:
    from openclaw.security.access_checks import open_doors

    config = subject.snapshot.config
    used: dict[str, list[str]] = {}
    for agent_id in agent_ids(config):
        first = primary_model(config, agent_id)
        for model in [*([first] if first else []), *fallback_models(config, agent_id)]:
            used.setdefault(model, []).append(agent_id)
    for model in image_models(config):
        used.setdefault(model, []).append("agents.defaults.imageModel")
    old = [model for model in used if _LEGACY.search(model)]
    small = {model: size for model in used if (size := _billions(model)) and size <= SMALL_BILLIONS}
    weak = [model for model in used if _WEAK.search(model) and model not in old and model not in small]
    if old:
        detail = f"{', '.join(old)}: old models follow instructions hidden in texts more readily"
        yield finding("models.legacy", detail, "openclaw models set a current model")
    if weak:
        detail = f"{', '.join(weak)}: models below the top tier follow instructions hidden in texts more readily"
        yield finding("models.weak_tier", detail, "use the best model that you can for agents with tools")
    if small:
        entrances = open_doors(subject.snapshot.resolved)
        risky = sorted({tool for model in small for agent in used[model] for tool in risky_tools(config, agent)})
        shown = ", ".join(f"{model} ({size:g} billion parameters)" for model, size in small.items())
        detail = f"{shown}; tools without a sandbox: {', '.join(risky) or 'none'}; "
        detail += f"open doors: {', '.join(entrances) or 'none'}. Small models are easily talked into things"
        fix = 'openclaw config set tools.deny \'["group:runtime","group:fs"]\', and let nobody but you write'
        yield finding("models.small_params", detail, fix, severity="critical" if risky and entrances else "info")


def _billions(model: str) -> float | None:
    sizes = [float(found) for found in _PARAMETERS.findall(model)]
    return max(sizes) if sizes else None


def sandbox_checks(subject: Subject) -> Iterator[AuditFinding]:
    config = subject.snapshot.config
    wanted = {agent: sandbox_config(config, agent) for agent in agent_ids(config)}
    on = [agent for agent, settings in wanted.items() if settings.mode != "off"]
    described = any(settings.docker != SandboxDocker() for settings in wanted.values())
    if described and not on:
        detail = "sandbox.docker is set, and sandbox.mode is off: every command runs on this machine directly"
        fix = "openclaw config set agents.defaults.sandbox.mode non-main"
        yield finding("sandbox.docker_config_mode_off", detail, fix)
    opened = [agent for agent in on if wanted[agent].docker.network == "host"]
    if opened:
        detail = (
            f"agents {', '.join(opened)}: their sandbox has this machine's network, and reaches the Gateway's port "
        )
        detail += "and everything else that listens here"
        fix = "openclaw config set agents.defaults.sandbox.docker.network none"
        yield finding("sandbox.dangerous_network_mode", detail, fix)
    plans: dict[str, SandboxPlan] = {}
    for agent in on:
        key = main_session_key(config, agent)
        plans[agent] = make_plan(config, subject.state, agent, key, [(agent, key)])
    binds = sorted({bind for plan in plans.values() for bind in _dangerous_binds(plan)})
    if binds:
        detail = f"the sandbox sees {', '.join(binds)}: what it finds or writes there counts outside of it"
        fix = "keep sandbox.docker.binds to folders that hold nothing of value, with :ro"
        yield finding("sandbox.dangerous_bind_mount", detail, fix)
    if on and not opened and not binds:
        for agent, plan in plans.items():
            if why := _unavailable(plan):
                detail = f"runs of {agent} are refused, since their sandbox cannot be had: {why}"
                yield finding("sandbox.unavailable", detail, "openclaw sandbox explain")
                break


def _dangerous_binds(plan: SandboxPlan) -> list[str]:
    try:
        mounts = bind_mounts(plan)
    except ValueError:
        return []  # It is told as the reason why there is no sandbox.
    home = str(Path.home())
    return [
        f"{mount.folder} ({'rw' if mount.writable else 'ro'})"
        for mount in mounts
        if mount.writable or mount.folder in _PRECIOUS_FOLDERS or holds(mount.folder, home)
    ]


def _unavailable(plan: SandboxPlan) -> str | None:
    boundary = Boundary(plan, [], SandboxPrune(), SystemClock())
    return boundary.closed or missing(plan, boundary.parts)


CHECKS = (exec_checks, file_tool_checks, extension_checks, mcp_checks, model_checks, sandbox_checks)
