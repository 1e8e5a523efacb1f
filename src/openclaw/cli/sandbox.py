"""``openclaw sandbox``: which sandbox a session has and why, the sandboxes that were used, and recreating one."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from openclaw import paths
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, Group, UserError, answer, report, yes
from openclaw.cli.config import read_file
from openclaw.cli.terminal import paint
from openclaw.clock import SystemClock
from openclaw.config.agents import agent_ids, default_agent_id, main_session_key, sandbox_config, wants_sandbox
from openclaw.config.schema import Config
from openclaw.paths import normalize_agent_id
from openclaw.tools.sandbox.boundary import Boundary, SandboxRecord, list_sandboxes, remove_sandbox
from openclaw.tools.sandbox.launch import PLACES, SandboxPlan, make_plan, sandbox_root, scope_of, tools_inside

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from openclaw.cli.answers import SandboxExplanation, SandboxFactsAnswer


def _config() -> Config:
    snapshot = read_file()
    if not snapshot.valid:
        raise UserError(f"{snapshot.path} is not valid; `openclaw doctor` says what is wrong")
    return snapshot.config


def _state() -> Path:
    return Path(paths.state_dir())


def _session(config: Config, args: argparse.Namespace) -> tuple[str, str]:
    """The agent and the key that the flags name."""
    key = _known((args.session or "").strip(), args.agent)
    agent_id = normalize_agent_id(args.agent) if args.agent else default_agent_id(config)
    if key.startswith("agent:"):
        agent_id = normalize_agent_id(key.split(":")[1])
    if agent_id not in agent_ids(config):
        raise UserError(f'there is no agent "{agent_id}"; there are {", ".join(agent_ids(config))}')
    if not key or key == "main":
        return agent_id, main_session_key(config, agent_id)
    return agent_id, key if key.startswith("agent:") or key == "global" else f"agent:{agent_id}:{key}"


def _known(name: str, agent: str | None) -> str:
    """The key of the session that goes by this name, as the Gateway or else the state folder knows it."""
    from openclaw.cli.client import GatewayClient
    from openclaw.cli.gateway_target import resolve
    from openclaw.cli.session_lookup import resolve_key

    client = GatewayClient(resolve())
    client.reads_folder = True
    return resolve_key(client, name, agent) if name and client.target.local else name


def plan_for(config: Config, agent_id: str, key: str) -> SandboxPlan | None:
    """The plan of a session, with the sessions that spawned it as the store on disk knows them."""
    lineage: list[tuple[str, str]] = []
    seen: set[str] = set()
    agent, session = agent_id, key
    while session and session not in seen and len(seen) < 8:
        seen.add(session)
        if wants_sandbox(config, agent, session):
            lineage.append((agent, session))
        above = _parent(agent, session)
        agent, session = (above.split(":")[1] if above.startswith("agent:") else agent), above
    return make_plan(config, _state(), agent_id, key, lineage) if lineage else None


def _parent(agent_id: str, key: str) -> str:
    """Return the key of the session that spawned this one, or "" if none did."""
    try:
        store = json.loads((_state() / "agents" / agent_id / "sessions" / "sessions.json").read_bytes())
        return str(store[key].get("spawnedBy") or "")
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        return ""


def _explain(args: argparse.Namespace) -> SandboxExplanation:
    config = _config()
    return explanation(config, *_session(config, args))


def explanation(config: Config, agent_id: str, key: str) -> SandboxExplanation:
    settings, plan = sandbox_config(config, agent_id), plan_for(config, agent_id, key)
    elevated = config.tools.elevated
    sandbox: SandboxFactsAnswer = {
        "mode": settings.mode,
        "scope": plan.scope if plan else scope_of(settings),
        "backend": plan.backend if plan else settings.backend,
        "workspaceAccess": plan.access if plan else settings.workspace_access,
        "workspaceRoot": str(sandbox_root(settings, _state())),
        "sessionIsSandboxed": plan is not None,
        "problem": None,
    }
    if plan is not None:
        import asyncio

        boundary = Boundary(plan, [_state() / "skills"], settings.prune, SystemClock())
        sandbox["problem"] = asyncio.run(boundary.check())
        sandbox["inheritedFrom"] = next((session for _, session in plan.lineage if session != key), None)
        sandbox["folder"], sandbox["workdir"] = str(plan.folder), boundary.workdir
        sandbox["network"], sandbox["limits"] = plan.docker.network, boundary.limits
        sandbox["mounts"] = [f"{one.folder}:{one.place}:{'rw' if one.writable else 'ro'}" for one in boundary.mounts]
        sandbox["tools"] = {
            "allow": list(plan.filters[0].allow),
            "deny": sorted({name for rules in plan.filters for name in rules.deny}),
            "offered": tools_inside(PLACES, plan.filters),
        }
    return {
        "agentId": agent_id,
        "sessionKey": key,
        "mainSessionKey": main_session_key(config, agent_id),
        "sandbox": sandbox,
        "elevated": {
            "enabled": elevated.enabled,
            "allowFrom": {channel: list(map(str, senders)) for channel, senders in elevated.allow_from.items()},
        },
        "fixIt": [
            "agents.defaults.sandbox.mode (off, non-main, all); agents.list[].sandbox.mode",
            "tools.sandbox.tools.allow, tools.sandbox.tools.deny; agents.list[].tools.sandbox.tools",
            "tools.elevated.enabled, tools.elevated.allowFrom.<channel>",
        ],
    }


def _show_explanation(shown: SandboxExplanation, args: argparse.Namespace) -> list[str]:
    sandbox = shown["sandbox"]
    lines = [paint(f"Session {shown['sessionKey']} of agent {shown['agentId']}", "bold")]
    if not sandbox["sessionIsSandboxed"]:
        lines.append(f"It runs on this machine directly (mode {sandbox['mode']}): its commands can do what you can do.")
    else:
        why = f"mode {sandbox['mode']}"
        if parent := sandbox.get("inheritedFrom"):
            why = f"it was spawned by {parent}"
        lines.append(f"It runs in a sandbox ({why}; backend {sandbox['backend']}, scope {sandbox['scope']}).")
        if sandbox["problem"]:
            lines.append(paint(f"Its runs are refused: {sandbox['problem']}", "red"))
        lines += [
            f"workspace: access {sandbox['workspaceAccess']}, {sandbox.get('folder')} as {sandbox.get('workdir')}",
            f"network: {sandbox.get('network')}",
            *(f"limit {name}: {value}" for name, value in sandbox.get("limits", {}).items()),
            *(f"sees {mount}" for mount in sandbox.get("mounts", ())),
            f"tools: {', '.join(tools['offered'] if (tools := sandbox.get('tools')) else ())}",
        ]
    elevated = shown["elevated"]
    allowed = ", ".join(f"{channel}: {len(senders)}" for channel, senders in elevated["allowFrom"].items())
    lines.append(f"elevated: {'enabled' if elevated['enabled'] else 'disabled'} ({allowed or 'no channel'})")
    return [*lines, "These keys change it:", *(f"  {key}" for key in shown["fixIt"])]


def _used(config: Config) -> list[SandboxRecord]:
    roots = {sandbox_root(sandbox_config(config, agent), _state()) for agent in agent_ids(config)}
    return [record for root in sorted(roots) for record in list_sandboxes(root)]


def _list(args: argparse.Namespace) -> list[SandboxRecord]:
    return [] if args.browser else _used(_config())


def _view(records: list[SandboxRecord]) -> dict[str, object]:
    """Return the records under the names of the original, whose scripts read them. Its containers are our sandboxes."""
    rows = [
        {**msgspec.to_builtins(record), "containerName": Path(record.folder).name, "sessionKey": record.scope_key}
        for record in records
    ]
    return {"containers": rows, "browsers": []}


def _show_list(records: list[SandboxRecord], args: argparse.Namespace) -> Iterator[str]:
    now = time.time() * 1000
    for record in records:
        used, made = _ago(now - record.last_used_at_ms), _ago(now - record.created_at_ms)
        yield f"{record.scope_key}  {record.backend}  access {record.workspace_access}  used {used}  made {made}"
        yield f"  {record.folder}"
    if not records:
        yield "No sandbox was used yet."


def _ago(milliseconds: float) -> str:
    minutes = max(0, int(milliseconds / 60_000))
    if minutes < 60:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} days ago"


def recreate(args: argparse.Namespace) -> int:
    if sum((bool(args.all), bool(args.session), bool(args.agent))) != 1:
        raise UserError("name what to recreate: --all, --session NAME or --agent ID")
    config = _config()
    chosen = _used(config)
    if args.session:
        _, key = _session(config, args)
        chosen = [record for record in chosen if record.scope_key == key]
    elif args.agent:
        agent = normalize_agent_id(args.agent)
        chosen = [record for record in chosen if record.agent_id == agent and record.scope != "shared"]
    if chosen and not args.force:
        sys.stdout.write("These folders and all files in them are deleted:\n")
        sys.stdout.write("".join(f"  {record.folder}\n" for record in chosen))
        if not sys.stdin.isatty():
            raise UserError("nothing was deleted; add --force to do it without a question")
        sys.stdout.flush()
        if not yes("Delete them?", usual=False):
            return EXIT_FAILURE
    removed, failed = [], {}
    for record in chosen:
        try:
            remove_sandbox(record)
            removed.append(record.folder)
        except OSError as error:
            failed[record.folder] = error.strerror or str(error)
    lines = [f"deleted {folder}" for folder in removed]
    lines += [f"not deleted: {folder}: {why}" for folder, why in failed.items()]
    answer(args, {"removed": removed, "failed": failed}, "\n".join(lines or ["There is no such sandbox."]))
    return EXIT_FAILURE if failed else 0


_WHICH = (
    Flag("--session NAME", "a session by its key, id or label, e.g. main or agent:main:work"),
    Flag("--agent ID", "an agent"),
)
COMMANDS = {
    "sandbox": Group(
        {
            "explain": report(
                "Show whether a session runs in a sandbox, what it sees and does there, and which keys change that.\n\n"
                "Exit code: 1 if the sandbox cannot be had.",
                _explain,
                (*_WHICH, JSON),
                show=_show_explanation,
                failed=lambda shown, args: bool(shown["sandbox"]["problem"]),
                example="openclaw sandbox explain\n  openclaw sandbox explain --session agent:main:work --json",
            ),
            "list": report(
                "List the sandboxes that were used, the last used one first.",
                _list,
                (Flag("--browser", "only sandboxes of browsers; there are none"), JSON),
                show=_show_list,
                view=_view,
                example="openclaw sandbox list",
            ),
            "recreate": Action(
                "Delete the folder of a sandbox. The next run recreates it from the agent's workspace.",
                recreate,
                (Flag("--all", "all of them"), *_WHICH, Flag("--force", "do not ask"), JSON),
                example="openclaw sandbox recreate --session agent:main:work",
            ),
        }
    )
}
