"""Checks of who may write to the agent and command it, and of what the agent may do.

This covers commands, files, extensions and MCP servers, the strength of its models, and its sandbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

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
from openclaw.findings import Finding
from openclaw.security.audit import ALLOWED, PAIRINGS, Subject, finding
from openclaw.tools.exec.allowlist import SAFE_USES
from openclaw.tools.exec.approvals import RULES_FILE
from openclaw.tools.exec.binding import Program, names, runs_others
from openclaw.tools.policy import ToolFilter, allowed_tools, profile
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.launch import SandboxPlan, bind_mounts, holds, make_plan, missing

MANY = 25
RISKY_TOOLS = ("exec", "process", "write", "edit")
SMALL_BILLIONS = 300
_PRECIOUS_FOLDERS = ("/", "/etc", "/root", "/home", "/var", "/run")
_WRITES_ANYTHING = names("tee dd cp mv ln install truncate chmod chown patch")
_PARAMETERS = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,3})?)b(?![a-z0-9])", re.IGNORECASE)
_LEGACY = re.compile(r"gpt-3\.5|gpt-4-(?:0314|0613|32k)|text-davinci|claude-(?:1|2|instant)\b|gemini-1\.0|palm", re.I)
_WEAK = re.compile(r"haiku|[-_](?:mini|nano|lite|tiny)\b|flash-lite|gpt-4|claude-3|gemini-1\.", re.IGNORECASE)


class Door(NamedTuple):
    """One account of a channel."""

    channel: str
    path: str
    """Where it is configured."""
    dm_policy: str
    allow_from: list[str]
    group_policy: str
    group_path: str
    """The key that sets the group policy."""
    group_allow_from: list[str]

    @property
    def dm_open(self) -> bool:
        """Everybody may write. ``*`` in the list is enough for that, whatever the policy is called."""
        return self.dm_policy != "disabled" and "*" in self.allow_from

    @property
    def groups_open(self) -> bool:
        return self.group_policy == "open" or (self.group_policy == "allowlist" and "*" in self.group_allow_from)


def doors(values: dict[str, Any]) -> list[Door]:
    """The accounts of every channel that is configured and not switched off."""
    channels = _section(values, "channels")
    usual = _section(channels, "defaults").get("groupPolicy")
    found: list[Door] = []
    for channel, section in channels.items():
        if channel == "defaults" or not isinstance(section, dict) or section.get("enabled") is False:
            continue
        accounts = {name: own for name, own in _section(section, "accounts").items() if isinstance(own, dict)}
        base = {key: value for key, value in section.items() if key != "accounts"}
        if not accounts:
            found.append(_door(channel, f"channels.{channel}", base, {}, usual))
        for name, own in accounts.items():
            if own.get("enabled") is not False:
                found.append(_door(channel, f"channels.{channel}.accounts.{name}", base, own, usual))
    return found


def _door(channel: str, path: str, base: dict[str, Any], own: dict[str, Any], usual: Any) -> Door:
    merged, dm = {**base, **own}, _section({**base, **own}, "dm")
    allow_from = _list(merged.get("allowFrom", dm.get("allowFrom")))
    holders = ((own, path), (base, f"channels.{channel}"), ({"groupPolicy": usual}, "channels.defaults"))
    group_policy, holder = next(
        ((h["groupPolicy"], p) for h, p in holders if h.get("groupPolicy")), ("allowlist", path)
    )
    members = merged.get("groupAllowFrom")
    return Door(
        channel,
        path,
        str(merged.get("dmPolicy") or dm.get("policy") or "pairing"),
        allow_from,
        str(group_policy),
        f"{holder}.groupPolicy",
        allow_from if members is None else _list(members),
    )


def _section(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[str]:
    return [str(entry).strip() for entry in value] if isinstance(value, list) else []


def open_doors(values: dict[str, Any]) -> list[str]:
    """Where strangers come in."""
    found = [f"{door.path}.allowFrom" for door in doors(values) if door.dm_open]
    return found + sorted({door.group_path for door in doors(values) if door.groups_open})


def shared_checks(subject: Subject) -> Iterator[Finding]:
    if subject.shared.unreachable:
        detail = "who was let in by pairing and the rules for commands are in the database (storage.url), and it "
        detail += f"cannot be read: {subject.shared.unreachable}"
        yield finding("storage.unreachable", detail, "start the database server, or mend storage.url; then look again")


def policy_checks(subject: Subject) -> Iterator[Finding]:
    config = subject.snapshot.config
    told: set[str] = set()
    for door in doors(subject.snapshot.resolved):
        channel = door.channel
        if door.dm_open:
            detail = f'{door.path}.allowFrom has "*": everybody who finds the account talks to the agent'
            fix = f'openclaw config set {door.path}.dmPolicy pairing, and take the "*" out of allowFrom'
            yield finding("channels.<channel>.dm.open", detail, fix, channel=channel)
        elif door.dm_policy == "open":
            detail = f'{door.path}.dmPolicy is "open" without "*" in allowFrom, so it lets nobody new in'
            fix = f"openclaw config set {door.path}.dmPolicy pairing"
            yield finding("channels.<channel>.dm.open_invalid", detail, fix, channel=channel)
        elif door.dm_policy == "disabled":
            detail = f'{door.path}.dmPolicy is "disabled"'
            yield finding("channels.<channel>.dm.disabled", detail, channel=channel)
        people = {*door.allow_from, *_paired(subject, channel)}
        if config.session.dm_scope == "main" and (len(people) > 1 or door.dm_open):
            who = "everybody" if door.dm_open else f"{len(people)} people"
            detail = f'session.dmScope is "main" and {who} may write on {door.path}: they share one conversation'
            fix = "openclaw config set session.dmScope per-channel-peer"
            yield finding("channels.<channel>.dm.scope_main_multiuser", detail, fix, channel=channel)
        named = {entry for entry in door.allow_from if entry.strip() != "*"}
        if len(named) > 1 and not config.commands.owner_allow_from:
            detail = f"{door.path}.allowFrom names {len(named)} people, and each may change rules and approve commands"
            fix = "name yourself in commands.ownerAllowFrom; the others only talk to the agent then"
            yield finding("channels.<channel>.several_owners", detail, fix, channel=channel)
        if door.group_policy == "open" and door.group_path not in told:
            told.add(door.group_path)
            detail = f'{door.group_path} is "open": every member of every group is heard'
            fix = f"openclaw security audit --fix, or openclaw config set {door.group_path} allowlist"
            yield finding("channels.<channel>.groups.open", detail, fix, channel=channel)
        elif door.groups_open:
            detail = f'the list of people whose group messages count on {door.path} has "*"'
            fix = f"name the people in {door.path}.groupAllowFrom"
            yield finding("channels.<channel>.groups.allowFrom.wildcard", detail, fix, channel=channel)


def _paired(subject: Subject, channel: str) -> list[str]:
    """The people who were let in by pairing."""
    try:
        stored = json.loads(subject.shared.found.get(f"{PAIRINGS}{channel}{ALLOWED}", b"{}"))
    except (ValueError, RecursionError):
        return []
    return _list(stored.get("allowFrom")) if isinstance(stored, dict) else []


def command_checks(subject: Subject) -> Iterator[Finding]:
    commands = subject.snapshot.config.commands
    owners = [str(entry) for entry in commands.owner_allow_from]
    if any(entry.split(":")[-1].strip() == "*" for entry in owners):
        detail = 'commands.ownerAllowFrom has "*": nobody becomes an owner by it here, and everybody in the original'
        yield finding("commands.ownerAllowFrom.wildcard", detail, "name yourself in commands.ownerAllowFrom")
    wide = [channel for channel, people in commands.allow_from.items() if "*" in map(str, people)]
    if wide:
        detail = f'commands.allowFrom has "*" for {", ".join(wide)}'
        yield finding("commands.allowFrom.wildcard", detail, "name the people in commands.allowFrom")
    if not commands.use_access_groups:
        detail = "commands.useAccessGroups is false: who may write may use commands"
        fix = "openclaw config unset commands.useAccessGroups"
        yield finding("commands.use_access_groups_off", detail, fix)


def elevated_checks(subject: Subject) -> Iterator[Finding]:
    config = subject.snapshot.config
    sections = [config.tools.elevated]
    sections += [agent.tools.elevated for agent in config.agents.list if agent.tools and agent.tools.elevated]
    enabled = [section for section in sections if section.enabled and any(section.allow_from.values())]
    told: set[str] = set()
    for section in enabled:
        for channel, people in section.allow_from.items():
            if "*" in map(str, people):
                rule, detail = "wildcard", f'tools.elevated.allowFrom.{channel} has "*"'
            elif len(people) > MANY:
                rule, detail = "large", f"tools.elevated.allowFrom.{channel} has {len(people)} people"
            else:
                continue
            if (known := f"{channel}.{rule}") in told:
                continue
            told.add(known)
            fix = f"name only yourself in tools.elevated.allowFrom.{channel}"
            yield finding(f"tools.elevated.allowFrom.<channel>.{rule}", detail, fix, channel=channel)
    open_groups = sorted({door.group_path for door in doors(subject.snapshot.resolved) if door.groups_open})
    if enabled and open_groups:
        detail = f"{', '.join(open_groups)} let everybody in a group write, and elevated commands are allowed: "
        detail += "words of a stranger can become a command on this machine"
        fix = "openclaw security audit --fix, and keep tools.elevated.allowFrom short"
        yield finding("security.exposure.open_groups_with_elevated", detail, fix)


def exposure_checks(subject: Subject) -> Iterator[Finding]:
    config = subject.snapshot.config
    entrances = open_doors(subject.snapshot.resolved)
    risky = {agent: tools for agent in agent_ids(config) if (tools := risky_tools(config, agent))}
    if entrances and risky:
        agents = "; ".join(f"{agent}: {', '.join(tools)}" for agent, tools in risky.items())
        detail = f"strangers come in at {', '.join(entrances)}, and tools run without a sandbox ({agents})"
        fix = 'close the doors, or keep the tools away: openclaw config set tools.deny \'["group:runtime","group:fs"]\''
        yield finding("security.exposure.open_doors_with_tools", detail, fix)
    yield finding("summary.attack_surface", _surface(subject, config))


def visibility_checks(subject: Subject) -> Iterator[Finding]:
    """The session tools read conversations of the same agent, also when somebody else than the owner asks."""
    config = subject.snapshot.config
    reach = config.tools.sessions.visibility or "all"
    agents = [agent for agent in agent_ids(config) if tools_among(("sessions_history",), config, agent)]
    shared: list[str] = []
    for door in doors(subject.snapshot.resolved):
        people = {*door.allow_from, *door.group_allow_from, *_paired(subject, door.channel)}
        if len(people) > 1 or door.dm_open or door.groups_open:
            shared.append(door.path)
    if reach in ("agent", "all") and agents and shared:
        detail = (
            f'tools.sessions.visibility is "{reach}", and others than you write on {", ".join(shared)}: they can ask '
        )
        detail += "the agent to read your conversations with it"
        fix = "openclaw config set tools.sessions.visibility tree, or give other people an agent of their own"
        severity = "critical" if open_doors(subject.snapshot.resolved) else None
        yield finding("tools.sessions.visibility_wide", detail, fix, severity=severity)


def _surface(subject: Subject, config: Config) -> str:
    found = doors(subject.snapshot.resolved)
    groups = {door.group_path: door.groups_open for door in found}
    gateway, endpoints = config.gateway, config.gateway.http.endpoints
    apis = [
        name for name, on in (("chat", endpoints.chat_completions), ("responses", endpoints.responses)) if on.enabled
    ]
    elevated = config.tools.elevated.enabled and any(config.tools.elevated.allow_from.values())
    plugins = {*config.plugins.allow, *(id for id, entry in config.plugins.entries.items() if entry.enabled)}
    return "\n".join(
        (
            f"gateway: bind={gateway.bind}, TLS {_on(gateway.tls.enabled)}, OpenAI API: {', '.join(apis) or 'off'}",
            f"direct messages: open={sum(door.dm_open for door in found)} of {len(found)} accounts",
            f"groups: open={sum(groups.values())}, allowlist={len(groups) - sum(groups.values())}",
            f"tools.elevated: {_on(elevated)}",
            f"hooks: {_on(config.hooks.enabled)}",
            f"extensions: {len(_list(config.plugins.load.get('paths'))) + len(plugins)}",
        )
    )


def _on(value: bool) -> str:
    return "on" if value else "off"


# What the agent may do


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


def exec_checks(subject: Subject) -> Iterator[Finding]:
    config, rules = subject.snapshot.config, _Rules(subject)
    yield from rules.problems()
    free: list[str] = []
    for agent_id in agent_ids(config):
        settings = _exec_of(config, agent_id)
        security = settings.security or ("allowlist" if settings.host == "gateway" else "full")
        strict = (
            rules.setting(agent_id, "security") in ("deny", "allowlist") or rules.setting(agent_id, "ask") == "always"
        )
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

    def setting(self, agent_id: str, name: str) -> str | None:
        sections = self._sections()
        layers = (sections.get(f"agents.{agent_id}"), sections.get("agents.*"), sections.get("defaults"))
        return next((str(layer[name]) for layer in layers if layer and layer.get(name)), None)

    def _sections(self) -> dict[str, dict[str, Any]]:
        agents = self._file.get("agents")
        found = {f"agents.{name}": rules for name, rules in (agents if isinstance(agents, dict) else {}).items()}
        found["defaults"] = self._file.get("defaults")
        return {name: rules for name, rules in found.items() if isinstance(rules, dict)}

    def problems(self) -> Iterator[Finding]:
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


def file_tool_checks(subject: Subject) -> Iterator[Finding]:
    config = subject.snapshot.config
    sections = {"tools.fs": config.tools.fs}
    sections |= {f"agents.list[{i}].tools.fs": a.tools.fs for i, a in enumerate(config.agents.list) if a.tools.fs}
    free = [name for name, section in sections.items() if not section.workspace_only]
    if free:
        detail = f"{', '.join(free)}.workspaceOnly is false: the agent can read your keys and write your start-up files"
        yield finding("tools.fs.workspace_only_off", detail, f"openclaw config unset {free[0]}.workspaceOnly")


def extension_checks(subject: Subject) -> Iterator[Finding]:
    plugins = subject.snapshot.config.plugins
    paths = plugins.load.get("paths")
    if plugins.enabled and isinstance(paths, list) and paths and not plugins.allow:
        detail = f"plugins.load.paths has {', '.join(map(str, paths[:8]))}: every Python file there runs in the Gateway"
        fix = "name the extensions that you mean in plugins.allow"
        yield finding("plugins.extensions_no_allowlist", detail, fix)


def mcp_checks(subject: Subject) -> Iterator[Finding]:
    servers = subject.snapshot.config.mcp.servers
    free = [name for name, one in servers.items() if one.enabled and one.sessions == "all" and one.ask == "off"]
    if free:
        detail = f"whoever can talk to the agent, in groups too, can have it call {', '.join(free[:8])}"
        fix = f"openclaw config set mcp.servers.{free[0]}.sessions owner, or let it ask with .ask always"
        yield finding("mcp.open_to_all", detail, fix)


def model_checks(subject: Subject) -> Iterator[Finding]:
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


def sandbox_checks(subject: Subject) -> Iterator[Finding]:
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
            boundary = Boundary(plan, [], SandboxPrune(), SystemClock())
            if why := boundary.closed or missing(plan, boundary.parts):
                detail = f"runs of {agent} are refused, since their sandbox cannot be had: {why}"
                yield finding("sandbox.unavailable", detail, "openclaw sandbox explain")
                break


def _dangerous_binds(plan: SandboxPlan) -> list[str]:
    try:
        mounts = bind_mounts(plan)
    except ValueError:
        return []  # ``sandbox.unavailable`` reports it.
    home = str(Path.home())
    return [
        f"{mount.folder} ({'rw' if mount.writable else 'ro'})"
        for mount in mounts
        if mount.writable or mount.folder in _PRECIOUS_FOLDERS or holds(mount.folder, home)
    ]


CHECKS = (
    *(exposure_checks, shared_checks, policy_checks, command_checks, elevated_checks, visibility_checks),
    *(exec_checks, file_tool_checks, extension_checks, mcp_checks, model_checks, sandbox_checks),
)
