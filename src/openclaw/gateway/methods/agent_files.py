"""``agents.files.*``: the few files of a workspace that make an agent who it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec

from openclaw.agent.prompt.workspace_files import BOOTSTRAP_FILES
from openclaw.config.agents import agent_ids, workspace_dir
from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.paths import make_private_dir, normalize_agent_id
from openclaw.tools.base import ToolError
from openclaw.tools.opener import PathOpener

FILES = (*BOOTSTRAP_FILES, "MEMORY.md", "memory.md")
MAX_BYTES = 1024 * 1024


class FilesList(Params):
    agent_id: NonEmpty


class FilesGet(Params):
    agent_id: NonEmpty
    name: NonEmpty


class FilesSet(Params):
    agent_id: NonEmpty
    name: NonEmpty
    content: Annotated[str, msgspec.Meta(max_length=MAX_BYTES)]


@method("agents.files.list", FilesList)
async def list_files(call: Call) -> Any:
    agent_id, workspace = _workspace(call)
    files = await asyncio.to_thread(lambda: [_view(workspace / name) for name in FILES])
    shown = [file for file in files if not (file["missing"] and file["name"] in ("MEMORY.md", "memory.md"))]
    return {"agentId": agent_id, "workspace": str(workspace), "files": shown}


@method("agents.files.get", FilesGet)
async def get_file(call: Call) -> Any:
    agent_id, workspace = _workspace(call)
    name = _name(call.params.name)
    view = await asyncio.to_thread(_view, workspace / name)
    if not view["missing"]:
        view["content"] = await asyncio.to_thread(_read, workspace, name)
    return {"agentId": agent_id, "workspace": str(workspace), "file": view}


@method("agents.files.set", FilesSet)
async def set_file(call: Call) -> Any:
    agent_id, workspace = _workspace(call)
    name = _name(call.params.name)
    await asyncio.to_thread(_write, workspace, name, call.params.content)
    view = await asyncio.to_thread(_view, workspace / name)
    return {"ok": True, "agentId": agent_id, "workspace": str(workspace), "file": view}


def _workspace(call: Call) -> tuple[str, Path]:
    config = call.gateway.config.current
    agent_id = normalize_agent_id(call.params.agent_id)
    if agent_id not in agent_ids(config):
        raise MethodError(f'unknown agent id "{agent_id}"')
    return agent_id, workspace_dir(config, call.gateway.state_dir, agent_id)


def _name(name: str) -> str:
    if name not in FILES:
        raise MethodError(f'unsupported file "{name[:80]}" (use {", ".join(FILES)})')
    return name


def _view(path: Path) -> dict[str, Any]:
    view: dict[str, Any] = {"name": path.name, "path": str(path)}
    try:
        status = path.stat()
    except OSError:
        return {**view, "missing": True}
    return {**view, "missing": False, "size": status.st_size, "updatedAtMs": int(status.st_mtime * 1000)}


def _read(workspace: Path, name: str) -> str:
    try:
        with PathOpener(workspace, confine=True).open_read(name) as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except ToolError as error:
        raise MethodError(str(error)) from None


def _write(workspace: Path, name: str, content: str) -> None:
    make_private_dir(str(workspace))
    try:
        with PathOpener(workspace, confine=True).open_write_atomic(name) as file:
            file.write(content.encode("utf-8", "surrogatepass"))
    except ToolError as error:
        raise MethodError(str(error)) from None
