"""Checks of the sandbox: whether there can be one, and settings that open it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from openclaw.clock import SystemClock
from openclaw.config.agents import agent_ids, main_session_key, sandbox_config
from openclaw.config.schema.agents import SandboxDocker, SandboxPrune
from openclaw.security.audit import AuditFinding, Subject, finding
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.launch import bind_mounts, missing
from openclaw.tools.sandbox.plan import SandboxPlan, holds, make_plan

_PRECIOUS = ("/", "/etc", "/root", "/home", "/var", "/run")


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
        if mount.writable or mount.folder in _PRECIOUS or holds(mount.folder, home)
    ]


def _unavailable(plan: SandboxPlan) -> str | None:
    boundary = Boundary(plan, [], SandboxPrune(), SystemClock())
    return boundary.closed or missing(plan, boundary.parts)


CHECKS = (sandbox_checks,)
