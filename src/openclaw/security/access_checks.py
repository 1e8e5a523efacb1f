"""Checks of who may write to the agent, who may command it, and what an open door leads to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from openclaw.config.agents import agent_ids
from openclaw.config.schema import Config
from openclaw.security.audit import ALLOWED, PAIRINGS, AuditFinding, Subject, finding
from openclaw.security.tool_checks import risky_tools, tools_among

MANY = 25


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


def shared_checks(subject: Subject) -> Iterator[AuditFinding]:
    if subject.shared.unreachable:
        detail = "who was let in by pairing and the rules for commands are in the database (storage.url), and it "
        detail += f"cannot be read: {subject.shared.unreachable}"
        yield finding("storage.unreachable", detail, "start the database server, or mend storage.url; then look again")


def policy_checks(subject: Subject) -> Iterator[AuditFinding]:
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


def command_checks(subject: Subject) -> Iterator[AuditFinding]:
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


def elevated_checks(subject: Subject) -> Iterator[AuditFinding]:
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


def exposure_checks(subject: Subject) -> Iterator[AuditFinding]:
    config = subject.snapshot.config
    entrances = open_doors(subject.snapshot.resolved)
    risky = {agent: tools for agent in agent_ids(config) if (tools := risky_tools(config, agent))}
    if entrances and risky:
        agents = "; ".join(f"{agent}: {', '.join(tools)}" for agent, tools in risky.items())
        detail = f"strangers come in at {', '.join(entrances)}, and tools run without a sandbox ({agents})"
        fix = 'close the doors, or keep the tools away: openclaw config set tools.deny \'["group:runtime","group:fs"]\''
        yield finding("security.exposure.open_doors_with_tools", detail, fix)
    yield finding("summary.attack_surface", _surface(subject, config))


def visibility_checks(subject: Subject) -> Iterator[AuditFinding]:
    """The session tools read conversations of the same agent, also when somebody else than the owner asks."""
    config = subject.snapshot.config
    reach = config.tools.sessions.visibility or "all"
    agents = [agent for agent in agent_ids(config) if tools_among(("sessions_history",), config, agent)]
    shared = [door.path for door in doors(subject.snapshot.resolved) if _admits_others(subject, door)]
    if reach in ("agent", "all") and agents and shared:
        detail = (
            f'tools.sessions.visibility is "{reach}", and others than you write on {", ".join(shared)}: they can ask '
        )
        detail += "the agent to read your conversations with it"
        fix = "openclaw config set tools.sessions.visibility tree, or give other people an agent of their own"
        severity = "critical" if open_doors(subject.snapshot.resolved) else None
        yield finding("tools.sessions.visibility_wide", detail, fix, severity=severity)


def _admits_others(subject: Subject, door: Door) -> bool:
    people = {*door.allow_from, *door.group_allow_from, *_paired(subject, door.channel)}
    return len(people) > 1 or door.dm_open or door.groups_open


def _surface(subject: Subject, config: Config) -> str:
    found = doors(subject.snapshot.resolved)
    groups = {door.group_path: door.groups_open for door in found}
    gateway, endpoints = config.gateway, config.gateway.http.endpoints
    apis = [
        name for name, on in (("chat", endpoints.chat_completions), ("responses", endpoints.responses)) if on.enabled
    ]
    elevated = config.tools.elevated.enabled and any(config.tools.elevated.allow_from.values())
    return "\n".join(
        (
            f"gateway: bind={gateway.bind}, TLS {_on(gateway.tls.enabled)}, OpenAI API: {', '.join(apis) or 'off'}",
            f"direct messages: open={sum(door.dm_open for door in found)} of {len(found)} accounts",
            f"groups: open={sum(groups.values())}, allowlist={len(groups) - sum(groups.values())}",
            f"tools.elevated: {_on(elevated)}",
            f"hooks: {_on(config.hooks.enabled)}",
            f"extensions: {len(_list(config.plugins.load.get('paths'))) + _used(config)}",
        )
    )


def _used(config: Config) -> int:
    return len({*config.plugins.allow, *(id for id, entry in config.plugins.entries.items() if entry.enabled)})


def _on(value: bool) -> str:
    return "on" if value else "off"


CHECKS = (exposure_checks, shared_checks, policy_checks, command_checks, elevated_checks, visibility_checks)
