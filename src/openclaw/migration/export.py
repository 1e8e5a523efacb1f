"""Prepares a folder that OpenClaw 2026.9 opens: the way back.

2026.9 imports ``sessions.json`` and transcripts of format 3, ``cron/jobs.json``, ``credentials/*-allowFrom.json``,
``devices/paired.json`` and ``auth-profiles.json`` when its ``doctor --fix`` runs. It refuses a configuration with a key
that it does not know, so only keys that both versions know are written, and the others named. Exec rules are left out:
where its import of them fails, it stops the import of everything else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from openclaw.config.agents import agent_ids, workspace_dir
from openclaw.config.keypath import format_path, get_path
from openclaw.config.load import Snapshot
from openclaw.config.secrets import SENTINEL, redacted
from openclaw.migration.move_in import Kind, Moved, copy_tree, in_our_folder, read_object
from openclaw.paths import make_private_dir, normalize_agent_id
from openclaw.storage.files.disk import atomic_replace, put_in_place, write_temporary
from openclaw.storage.files.newer_state import is_inside
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript_index import SUFFIX, plain_blocks

_TOOLS = ("profile", "allow", "alsoAllow", "deny", "exec.security", "exec.ask", "exec.host", "fs.workspaceOnly")
_SANDBOX = ("mode", "scope", "backend", "workspaceAccess")
_AGENT = (
    *("name", "workspace", "model", "identity", "skills", "groupChat.mentionPatterns"),
    *(f"tools.{key}" for key in _TOOLS),
    *(f"sandbox.{key}" for key in _SANDBOX),
)
_ACCOUNT = (
    *("enabled", "name", "dmPolicy", "allowFrom", "groupPolicy", "groupAllowFrom", "historyLimit", "mediaMaxMb"),
    *("textChunkLimit", "replyToMode"),
)
_TOKENS = {
    "signal": ("account", "ignoreAttachments", "sendReadReceipts"),
    "telegram": ("botToken", "tokenFile", "proxy", "webhookUrl", "webhookSecret", "webhookPath", "linkPreview"),
    "discord": ("token",),
    "slack": ("botToken", "appToken", "mode", "signingSecret"),
}
SHARED_KEYS = (
    *("gateway.mode", "gateway.port", "gateway.bind", "gateway.trustedProxies", "gateway.tools.deny"),
    *("gateway.auth.mode", "gateway.auth.token", "gateway.auth.password"),
    *("agents.defaults.model", "agents.defaults.workspace", "agents.defaults.userTimezone"),
    *("agents.defaults.thinkingDefault", "agents.defaults.timeoutSeconds", "agents.defaults.skipBootstrap"),
    *("agents.defaults.heartbeat.every", "agents.defaults.heartbeat.target"),
    *(f"agents.defaults.sandbox.{key}" for key in _SANDBOX),
    *("bindings", "models.mode", "messages.queue.mode", "messages.groupChat.mentionPatterns", "messages.ackReaction"),
    *("session.scope", "session.mainKey", "session.dmScope", "session.identityLinks", "session.reset"),
    *(f"tools.{key}" for key in _TOOLS),
    *("cron.enabled", "env.vars"),
)
"""The keys that mean the same in both versions."""
_PROVIDER = ("baseUrl", "apiKey", "api")
_MODEL = ("id", "name", "reasoning", "input", "cost", "contextWindow", "maxTokens")


class Exported(msgspec.Struct):
    """A configuration for 2026.9, and the key paths of ours that it does not have."""

    values: dict[str, Any]
    left_out: list[str]


def config_for_2026_9(snapshot: Snapshot, *, credentials: bool) -> Exported:
    """Translate the configuration. Raises nothing: what the other version would refuse is left out by name."""
    ours = snapshot.translated
    hidden = redacted(ours)
    values: dict[str, Any] = {}
    taken: set[str] = set()

    def take(path: str, target: str | None = None) -> None:
        value = get_path(ours, path)
        if value is None or (not credentials and get_path(hidden, path) == SENTINEL):
            return
        taken.add(path)
        place = values
        *parents, last = (target or path).split("\0") if target else path.split(".")
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value

    for path in SHARED_KEYS:
        take(path)
    agents = cast("list[dict[str, Any]]", get_path(ours, ("agents", "list")) or [])
    for index, agent in enumerate(agents):
        own = normalize_agent_id(str(agent.get("id")))
        values.setdefault("agents", {}).setdefault("entries", {}).setdefault(own, {})
        taken |= {f"agents.list[{index}].id", f"agents.list[{index}].default"}
        for key in _AGENT:
            take(f"agents.list[{index}].{key}", "\0".join(("agents", "entries", own, *key.split("."))))
    if len(agents) > 1:
        values["agents"]["ownership"] = "explicit"
    for name, provider in cast("dict[str, Any]", get_path(ours, ("models", "providers")) or {}).items():
        for key in _PROVIDER:
            take(format_path(("models", "providers", name, key)), "\0".join(("models", "providers", name, key)))
        made = get_path(values, ("models", "providers", name))
        if isinstance(made, dict):
            models = [model for model in provider.get("models") or [] if isinstance(model, dict)]
            made["models"] = [{key: model[key] for key in _MODEL if key in model} for model in models]
            taken.add(format_path(("models", "providers", name, "models")))
    for channel, keys in _TOKENS.items():
        accounts = get_path(ours, ("channels", channel, "accounts"))
        sections = [("channels", channel), *(("channels", channel, "accounts", name) for name in accounts or {})]
        for section in sections:
            for key in (*_ACCOUNT, *keys):
                take(format_path((*section, key)), "\0".join((*section, key)))
            _translated(section, ours, values, taken)
    left_out = [path for path in _leaves(ours, ()) if not any(_covers(one, path) for one in taken)]
    return Exported(values, left_out)


def _translated(section: tuple[str, ...], ours: Mapping[str, Any], values: dict[str, Any], taken: set[str]) -> None:
    """Write what has another form there: the transport of Signal, and how drafts are shown on Telegram."""
    own = cast("dict[str, Any]", get_path(ours, section) or {})
    place: Any = values
    extra: dict[str, Any] = {}
    if section[1] == "signal" and own.get("httpUrl"):
        extra["transport"] = {"kind": "external-native", "url": own["httpUrl"]}
        taken |= {format_path((*section, key)) for key in ("httpUrl", "autoStart")}
    if section[1] == "telegram" and own.get("streamMode"):
        extra["streaming"] = {"mode": own["streamMode"]}
        taken.add(format_path((*section, "streamMode")))
    if extra:
        for name in section:
            place = place.setdefault(name, {})
        place.update(extra)


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[str]:
    if isinstance(value, dict) and value and path[:1] not in (("meta",), ("wizard",), ("$schema",)):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _leaves(item, (*path, index))
    elif path[:1] not in (("meta",), ("wizard",), ("$schema",)):
        yield format_path(path)


def _covers(taken: str, path: str) -> bool:
    return path == taken or path.startswith((f"{taken}.", f"{taken}["))


async def export_for_2026_9(
    state: Path, snapshot: Snapshot, store: FileSessionStore, folder: Path, *, credentials: bool
) -> AsyncIterator[Moved]:
    """Write everything to a folder that is empty. ``credentials``: also keys, tokens and passwords."""
    make_private_dir(str(folder))
    exported = config_for_2026_9(snapshot, credentials=credentials)
    text = json.dumps(in_our_folder(exported.values, state, folder), indent=2, ensure_ascii=False) + "\n"
    atomic_replace(folder / "openclaw.json", text.encode())
    digest = hashlib.sha256(text.encode()).hexdigest()
    yield Moved(kind="configuration", name="openclaw.json", outcome="moved", sha256=digest)
    for path in exported.left_out:
        yield Moved(kind="configuration", name=path, outcome="left", detail="2026.9 has no such key, or it is a secret")
    for agent in agent_ids(snapshot.config):
        workspace = workspace_dir(snapshot.config, state, agent)
        if workspace.is_dir() and workspace.is_relative_to(state) and is_inside(state, workspace):
            yield copy_tree(agent, workspace, folder / workspace.relative_to(state), dry_run=False)
    for agent in store.agent_ids:
        async for moved in _sessions(agent, store, folder):
            yield moved
    names = [
        *(path.relative_to(state).as_posix() for path in sorted(state.glob("credentials/*-allowFrom.json"))),
        "cron/jobs.json",
    ]
    secret = ["devices/paired.json"]
    secret += [path.relative_to(state).as_posix() for path in sorted(state.glob("agents/*/agent/auth-profiles.json"))]
    for name in (*names, *secret):
        content = read_object(state / name)
        if not content:
            continue
        if name in secret and not credentials:
            yield Moved(kind="credentials", name=name, outcome="left", detail="--credentials exports it")
            continue
        place = folder / name
        make_private_dir(str(place.parent))
        atomic_replace(place, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
        kind: Kind = "credentials" if name in secret else "job" if name.startswith("cron/") else "people"
        yield Moved(kind=kind, name=name, outcome="moved")
    rules = read_object(state / "exec-approvals.json")
    for agent, own in cast("dict[str, Any]", rules.get("agents") or {}).items():
        for rule in own.get("allowlist") or ():
            detail = "add it there: openclaw approvals allowlist add --agent AGENT PATTERN"
            yield Moved(kind="exec rules", name=f"{agent} {rule.get('pattern')}", outcome="left", detail=detail)


async def _sessions(agent: str, store: FileSessionStore, folder: Path) -> AsyncIterator[Moved]:
    home, place = Path(store.path(agent)).parent, folder / "agents" / agent / "sessions"
    make_private_dir(str(place))
    digests: dict[str, tuple[int, str]] = {}
    for file in sorted(home.glob("*.jsonl*")):
        plain = file.name.removesuffix(SUFFIX)
        if not plain.endswith(".jsonl") or (file.name != plain and (home / plain).exists()) or file.is_symlink():
            continue
        prepared = write_temporary(place / plain, plain_blocks(file))
        put_in_place(prepared, place / plain)
        data = (place / plain).read_bytes()
        digests[plain.removesuffix(".jsonl")] = (data.count(b"\n"), hashlib.sha256(data).hexdigest())
    entries: dict[str, Any] = {}
    for row in await store.rows(agent):
        entry = dict(cast("Mapping[str, Any]", row.entry))
        if isinstance(file := entry.get("sessionFile"), str):
            entry["sessionFile"] = str(place / Path(file).name.removesuffix(SUFFIX))
        entries[row.key] = entry
        count, digest = digests.get(str(entry.get("sessionId")), (0, ""))
        yield Moved(kind="session", name=row.key, outcome="moved", count=count, sha256=digest)
    atomic_replace(place / "sessions.json", json.dumps(entries, indent=2, ensure_ascii=False).encode())
