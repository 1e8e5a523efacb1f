"""``agents.*`` and ``agent.identity.get``: listing and changing agents, their identity and their files."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any

import msgspec

from openclaw.agent.prompt.workspace_files import BOOTSTRAP_FILES
from openclaw.agent.runtime import Runtime
from openclaw.clock import iso_utc
from openclaw.config.agents import agent_config, agent_ids, default_agent_id, main_key, workspace_dir
from openclaw.config.schema.agents import BindingMatch
from openclaw.config.store import ConfigStore
from openclaw.gateway.methods.config import patch_config
from openclaw.gateway.server.frames import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.gateway.session_views import model_defaults
from openclaw.path_opener import FileMissing, PathOpener, PathRefused
from openclaw.paths import agent_dir, make_private_dir, normalize_agent_id
from openclaw.protocol.agents import (
    AgentBound,
    AgentChanged,
    AgentCreated,
    AgentDeleted,
    AgentFile,
    AgentFiles,
    AgentFileView,
    AgentFileWritten,
    AgentIdentity,
    AgentList,
    AgentView,
)
from openclaw.runs.session_change import delete_session
from openclaw.sessions.keys import SessionRef, agent_of
from openclaw.storage.session_query import SessionQuery, in_pages

methods = MethodTable()
DEFAULT_NAME = "Assistant"
DEFAULT_AVATAR = "A"
MAX_IDENTITY_BYTES = 64 * 1024
_IDENTITY_LINE = re.compile(
    r"^[^\w\n]*(name|emoji|avatar)[^\w\n]*?:[^\w\n]*?[ \t]+(\S.*)$", re.IGNORECASE | re.MULTILINE
)
RESERVED = "main"
FILES = (*BOOTSTRAP_FILES, "MEMORY.md", "memory.md")
MAX_FILE_BYTES = 1024 * 1024


class AgentsList(Params):
    details: bool = False
    """Add each agent's folders, its model and its bindings."""


@methods.add("agents.list", AgentsList)
async def list_agents(call: MethodCall, params: AgentsList) -> AgentList:
    """The configured agents and which one is the default."""
    runtime = call.gateway.runtime
    config = runtime.config.current
    agents: list[AgentView] = []
    for agent_id in agent_ids(config):
        view, listed = AgentView(agent_id), agent_config(config, agent_id)
        if listed is not None:
            view.name, view.identity = listed.name or None, _identity_fields(listed.identity)
        if params.details:
            _add_details(view, runtime)
        agents.append(view)
    return AgentList(default_agent_id(config), main_key(config), config.session.scope, agents)


def _add_details(view: AgentView, runtime: Runtime) -> None:
    config, usual = runtime.config.current, model_defaults(runtime, view.id)
    listed = agent_config(config, view.id)
    folder = listed.agent_dir if listed is not None else None
    bound = [binding.match for binding in config.bindings if normalize_agent_id(binding.agent_id) == view.id]
    view.workspace = str(workspace_dir(config, runtime.state_dir, view.id))
    view.agent_dir = str(Path(folder).expanduser() if folder else Path(agent_dir(runtime.state_dir, view.id), "agent"))
    view.model = f"{usual.model_provider}/{usual.model}" if usual.model else None
    view.bindings, view.routes = len(bound), [_route(match) for match in bound]


def _route(match: BindingMatch) -> str:
    """A short text such as ``signal:work group:123``."""
    where = f"{match.channel}:{match.account_id}" if match.account_id else match.channel
    narrower = [f"{match.peer.kind}:{match.peer.id}"] if match.peer else []
    narrower += [f"{name}:{value}" for name, value in (("guild", match.guild_id), ("team", match.team_id)) if value]
    return " ".join([where, *narrower])


class AgentsCreate(Params):
    name: NonEmpty
    workspace: NonEmpty | None = None
    emoji: str | None = None
    avatar: str | None = None
    model: NonEmpty | None = None


@methods.add("agents.create", AgentsCreate)
async def create(call: MethodCall, params: AgentsCreate) -> AgentCreated:
    """Add an agent to the configuration and create its workspace."""
    gateway = call.gateway
    agent_id = normalize_agent_id(params.name)
    if agent_id == RESERVED:
        raise MethodError('"main" is reserved')
    config = gateway.runtime.config.current
    if agent_id in agent_ids(config):
        raise MethodError(f'agent "{agent_id}" already exists')
    fields: dict[str, Any] = {"id": agent_id, "name": params.name.strip()}
    identity = {name: value for name, value in (("emoji", params.emoji), ("avatar", params.avatar)) if value}
    settings = {"workspace": params.workspace, "model": params.model, "identity": identity}
    fields |= {name: value for name, value in settings.items() if value}
    # The first entry of the list is the default agent, so the present default agent must stay first.
    listed = _listed(gateway.runtime.config) if config.agents.list else [{"id": default_agent_id(config)}]
    await patch_config(gateway.runtime.config, _agents_patch(gateway.runtime.config, [*listed, fields]))
    workspace = workspace_dir(gateway.runtime.config.current, gateway.runtime.state_dir, agent_id)
    try:
        await asyncio.to_thread(_introduce, workspace, params)
    except PathRefused as error:
        raise MethodError(f"the agent was made, but its name was not written down: {error}") from None
    return AgentCreated(True, agent_id, params.name.strip(), str(workspace))


def _introduce(workspace: Path, params: AgentsCreate) -> None:
    """Write the agent's name into its IDENTITY.md."""
    make_private_dir(str(workspace))
    lines = [f"- Name: {params.name.strip()}"]
    if params.emoji:
        lines.append(f"- Emoji: {params.emoji}")
    if params.avatar:
        lines.append(f"- Avatar: {params.avatar}")
    opener = PathOpener(workspace, confine=True)
    with opener.editing("IDENTITY.md"):
        try:
            with opener.open_read("IDENTITY.md") as file:
                before = file.read() + b"\n"
        except FileMissing:
            before = b""
        with opener.open_write_atomic("IDENTITY.md") as file:
            file.write(before + "\n".join([*lines, ""]).encode("utf-8", "surrogatepass"))


class AgentsUpdate(Params):
    agent_id: NonEmpty
    name: NonEmpty | None = None
    workspace: NonEmpty | None = None
    model: NonEmpty | None = None
    avatar: NonEmpty | None = None


@methods.add("agents.update", AgentsUpdate)
async def update(call: MethodCall, params: AgentsUpdate) -> AgentChanged:
    """Change the name, workspace, model or avatar of an agent."""
    gateway = call.gateway
    agent_id = _configured_id(gateway.runtime.config, params.agent_id)
    listed = _listed(gateway.runtime.config, agent_id) or [{"id": agent_id}]
    settings = {"name": params.name, "workspace": params.workspace, "model": params.model}
    changes = {name: value for name, value in settings.items() if value}
    for entry in listed:
        if normalize_agent_id(str(entry.get("id"))) == agent_id:
            entry.update(changes)
            if params.avatar:
                entry["identity"] = {**entry.get("identity", {}), "avatar": params.avatar}
    await patch_config(gateway.runtime.config, _agents_patch(gateway.runtime.config, listed))
    return AgentChanged(True, agent_id)


class AgentsDelete(Params):
    agent_id: NonEmpty
    delete_files: bool = True


@methods.add("agents.delete", AgentsDelete)
async def delete(call: MethodCall, params: AgentsDelete) -> AgentDeleted:
    """Remove an agent from the configuration and move its files to the trash folder.

    Sessions in a database are removed there, and their transcripts stay as archived ones.
    """
    gateway = call.gateway
    agent_id = _configured_id(gateway.runtime.config, params.agent_id)
    if agent_id == RESERVED:
        raise MethodError('"main" cannot be deleted')
    parsed = gateway.runtime.config.snapshot.parsed
    own = _listed(gateway.runtime.config, agent_id)
    listed = [entry for entry in own if normalize_agent_id(str(entry.get("id"))) != agent_id]
    bindings: list[Any] = list(parsed.get("bindings") or [])
    remaining = [one for one in bindings if normalize_agent_id(str(one.get("agentId"))) != agent_id]
    workspace = workspace_dir(gateway.runtime.config.current, gateway.runtime.state_dir, agent_id)
    await patch_config(
        gateway.runtime.config,
        {
            **_agents_patch(gateway.runtime.config, listed),
            **({"bindings": remaining} if remaining != bindings else {}),
        },
    )
    if params.delete_files and not gateway.runtime.stores.on_files:
        rows = [row async for row in in_pages(gateway.runtime.stores.sessions, SessionQuery(agent_id=agent_id))]
        for row in rows:
            await delete_session(gateway.runtime, gateway.runs, SessionRef(agent_id, row.key))
    if params.delete_files:
        for key in [
            row.key async for row in in_pages(gateway.runtime.stores.sessions, SessionQuery(agent_id=agent_id))
        ]:
            await gateway.runs.abort(key)
        await gateway.runtime.stores.sessions.close_agent(agent_id)
        stamp = iso_utc(gateway.runtime.clock.now_ms()).replace(":", "-")
        trash = Path(gateway.runtime.state_dir) / "trash" / f"{agent_id}-{stamp}"
        # A project folder outside the state directory that serves as a workspace is left alone.
        state = os.path.realpath(gateway.runtime.state_dir) + os.sep
        folders = (workspace, Path(agent_dir(gateway.runtime.state_dir, agent_id)))
        own = [path for path in folders if os.path.realpath(path).startswith(state)]
        await asyncio.to_thread(_throw_away, own, trash)
    return AgentDeleted(True, agent_id, len(bindings) - len(remaining))


def _throw_away(paths: list[Path], trash: Path) -> None:
    for path in paths:
        if path.exists():
            make_private_dir(str(trash))
            shutil.move(path, trash / path.name)


class AgentsBind(Params):
    agent_id: NonEmpty
    channel: NonEmpty
    account_id: NonEmpty | None = None
    peer_kind: NonEmpty | None = None
    peer_id: NonEmpty | None = None


@methods.add("agents.bind", AgentsBind)
async def bind(call: MethodCall, params: AgentsBind) -> AgentBound:
    """Route the messages of a channel, an account or a chat to this agent."""
    gateway = call.gateway
    agent_id = _configured_id(gateway.runtime.config, params.agent_id)
    match: dict[str, Any] = {"channel": params.channel.strip().lower()}
    if params.account_id:
        match["accountId"] = params.account_id
    if params.peer_id:
        match["peer"] = {"kind": params.peer_kind or "direct", "id": params.peer_id}
    binding = {"agentId": agent_id, "match": match}
    bindings: list[Any] = list(gateway.runtime.config.snapshot.parsed.get("bindings") or [])
    added = binding not in bindings
    if added:
        await patch_config(gateway.runtime.config, {"bindings": [*bindings, binding]})
    return AgentBound(True, agent_id, binding, added)


def _configured_id(config: ConfigStore, name: str) -> str:
    agent_id = normalize_agent_id(name)
    if agent_id not in agent_ids(config.current):
        raise MethodError(f'unknown agent id "{agent_id}"')
    return agent_id


def _listed(config: ConfigStore, agent_id: str | None = None) -> list[dict[str, Any]]:
    """The agents in the configuration file itself. Raises ``MethodError`` if an included file has ``agent_id``."""
    agents = config.snapshot.parsed.get("agents") or {}
    own = [dict(entry) for entry in agents.get("list") or [] if isinstance(entry, dict)]
    entries = agents.get("entries") or {}
    own += [{**entry, "id": name} for name, entry in entries.items() if isinstance(entry, dict)]
    own_ids = {normalize_agent_id(str(entry.get("id"))) for entry in own}
    if agent_id is not None and agent_id not in own_ids and config.current.agents.list:
        raise MethodError(f'agent "{agent_id}" is listed in a file that the configuration includes; change it there')
    return own


def _agents_patch(config: ConfigStore, listed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the change of the file that makes these its agents. A file with ``agents.entries`` keeps that form."""
    agents = config.snapshot.parsed.get("agents") or {}
    entries = agents.get("entries")
    if not isinstance(entries, dict):
        return {"agents": {"list": listed}}
    in_list = {normalize_agent_id(str(entry.get("id"))) for entry in agents.get("list") or []}
    kept = [entry for entry in listed if normalize_agent_id(str(entry["id"])) in in_list]
    others = {
        str(entry["id"]): {key: value for key, value in entry.items() if key != "id"}
        for entry in listed
        if entry not in kept
    }
    changed = {name: others.get(name) for name in {**entries, **others} if others.get(name) != entries.get(name)}
    return {"agents": {"entries": changed, **({"list": kept} if "list" in agents else {})}}


# Who an agent is


class IdentityGet(Params):
    agent_id: str | None = None
    session_key: str | None = None


@methods.add("agent.identity.get", IdentityGet)
async def identity(call: MethodCall, params: IdentityGet) -> AgentIdentity:
    """Who the agent is. The Control UI's setting comes first, then the agent's, then the agent's own IDENTITY.md."""
    config = call.gateway.runtime.config.current
    default = default_agent_id(config)
    named = normalize_agent_id(params.agent_id) if params.agent_id else None
    of_key = agent_of(call.gateway.canonical_key(params.session_key), default_agent=default)
    if named and params.session_key and named != of_key:
        raise MethodError(f'agent "{named}" does not match session key agent "{of_key}"')
    return await identity_of(call.gateway.runtime, named or (of_key if params.session_key else default))


async def identity_of(runtime: Runtime, agent_id: str) -> AgentIdentity:
    config = runtime.config.current
    listed = agent_config(config, agent_id)
    written = await asyncio.to_thread(read_identity, workspace_dir(config, runtime.state_dir, agent_id))
    configured = _identity_fields(listed.identity) if listed is not None else {}
    assistant, listed_name = config.ui.assistant, listed.name if listed is not None else None
    emoji = configured.get("emoji") or written.get("emoji")
    names = (_unless(assistant.name, DEFAULT_NAME), configured.get("name"), listed_name, written.get("name"))
    avatars = (_unless(assistant.avatar, DEFAULT_AVATAR), configured.get("avatar"), written.get("avatar"), emoji)
    return AgentIdentity(
        agent_id=agent_id,
        name=next(filter(None, names), DEFAULT_NAME),
        avatar=next(filter(None, avatars), DEFAULT_AVATAR),
        emoji=emoji or None,
    )


def _unless(value: str, default: str) -> str | None:
    return value if value and value != default else None


def _identity_fields(record: Any) -> dict[str, str]:
    values = {name: getattr(record, name, None) for name in ("name", "theme", "emoji", "avatar")}
    return {name: value for name, value in values.items() if value}


def read_identity(workspace: Path) -> dict[str, str]:
    """The name, emoji and avatar lines of IDENTITY.md. A placeholder in parentheses or brackets counts as absent."""
    try:
        with PathOpener(workspace, confine=True).open_read("IDENTITY.md") as file:
            text = file.read(MAX_IDENTITY_BYTES).decode("utf-8", "replace")
    except (OSError, PathRefused):
        return {}
    fields: dict[str, str] = {}
    for name, value in _IDENTITY_LINE.findall(text):
        cleaned = value.strip().strip("*_` ")
        if cleaned and not cleaned.startswith(("(", "[", "<", "_(")):
            fields.setdefault(name.lower(), cleaned[:200])
    return fields


# The files of an agent


class FilesList(Params):
    agent_id: NonEmpty


@methods.add("agents.files.list", FilesList)
async def list_files(call: MethodCall, params: FilesList) -> AgentFiles:
    """The files that make an agent who it is, with their sizes."""
    agent_id, workspace = _workspace(call.gateway.runtime, params.agent_id)
    files = await asyncio.to_thread(lambda: [_file_view(workspace, name) for name in FILES])
    present = {file.name for file in files if not file.missing}
    # The long-term notes are shown as a file that can be written, under the name they have or the usual one.
    other = "memory.md" if "MEMORY.md" in present or "memory.md" not in present else "MEMORY.md"
    return AgentFiles(agent_id, str(workspace), [file for file in files if file.name != other])


class FilesGet(FilesList):
    name: NonEmpty


@methods.add("agents.files.get", FilesGet)
async def get_file(call: MethodCall, params: FilesGet) -> AgentFile:
    """The text of one of these files."""
    agent_id, workspace = _workspace(call.gateway.runtime, params.agent_id)
    name = _file_name(params.name)
    view = await asyncio.to_thread(_file_view, workspace, name)

    def read() -> str:
        with PathOpener(workspace, confine=True).open_read(name) as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")

    try:
        view.content = await asyncio.to_thread(read)
    except FileMissing:
        view.missing = True
    except PathRefused as error:
        raise MethodError(str(error)) from None
    return AgentFile(agent_id, str(workspace), view)


class FilesSet(FilesGet):
    content: Annotated[str, msgspec.Meta(max_length=MAX_FILE_BYTES)]


@methods.add("agents.files.set", FilesSet)
async def set_file(call: MethodCall, params: FilesSet) -> AgentFileWritten:
    """Write one of these files."""
    agent_id, workspace = _workspace(call.gateway.runtime, params.agent_id)
    name, content = _file_name(params.name), params.content

    def write() -> None:
        make_private_dir(str(workspace))
        with PathOpener(workspace, confine=True).open_write_atomic(name) as file:
            file.write(content.encode("utf-8", "surrogatepass"))

    try:
        await asyncio.to_thread(write)
    except PathRefused as error:
        raise MethodError(str(error)) from None
    view = await asyncio.to_thread(_file_view, workspace, name)
    view.content = content
    return AgentFileWritten(True, agent_id, str(workspace), view)


def _workspace(runtime: Runtime, name: str) -> tuple[str, Path]:
    agent_id = _configured_id(runtime.config, name)
    return agent_id, workspace_dir(runtime.config.current, runtime.state_dir, agent_id)


def _file_name(name: str) -> str:
    if name not in FILES:
        raise MethodError(f'unsupported file "{name[:80]}" (use {", ".join(FILES)})')
    return name


def _file_view(workspace: Path, name: str) -> AgentFileView:
    view = AgentFileView(name=name, path=str(workspace / name), missing=True)
    try:
        with PathOpener(workspace, confine=True).open_read(name) as file:
            status = os.fstat(file.fileno())
    except (OSError, PathRefused):
        return view
    view.missing, view.size, view.updated_at_ms = False, status.st_size, int(status.st_mtime * 1000)
    return view
