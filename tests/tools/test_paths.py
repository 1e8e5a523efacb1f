"""Links and races × file tools: every parameter that can be a path goes through the opener.

The parameters are found by the schemas of all tools that an agent gets. A new text parameter without a rule here fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw.agent.tool_set import tools_for
from openclaw.config.agents import workspace_dir
from openclaw.gateway.nodes import Nodes
from openclaw.models.base import Model
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.rights import OWNER_CALLER
from openclaw.sessions.keys import SessionRef
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult
from tests.support.gateway_in_process import gateway_parts
from tests.support.scripted_model import ScriptedModel

RACES = int(os.environ.get("OPENCLAW_RACES", "60"))
CANARY = "canary-outside-77"
OPENER, NO_PATH, SHOWN = "opener", "no path", "shown to the person and bound"
BY_MESSENGER = "the workspace's opener; tests/flows/test_message_tool.py tries it"
BY_BROWSER = "the workspace's opener; tests/tools/browser/test_pages.py tries it"
RULES = {
    "read": {"path": OPENER, "pages": NO_PATH},
    "search": {"path": OPENER, "pattern": NO_PATH, "glob": NO_PATH, "mode": NO_PATH},
    "write": {"path": OPENER, "content": NO_PATH},
    "edit": {"path": OPENER, "oldText": NO_PATH, "newText": NO_PATH},
    "memory_get": {"path": OPENER},
    "memory_search": {"query": NO_PATH},
    "agents_list": {},
    "ask_user": dict.fromkeys(("question", "options", "default"), NO_PATH),
    "session_status": {"model": NO_PATH, "sessionKey": NO_PATH},
    "sessions_history": {"sessionKey": NO_PATH, "anchor": NO_PATH},
    "sessions_search": {"query": NO_PATH},
    "plan": {},
    "sessions_list": {"kinds": NO_PATH},
    "sessions_send": dict.fromkeys(("sessionKey", "label", "agentId", "message"), NO_PATH),
    "sessions_spawn": dict.fromkeys(("task", "label", "agentId", "model", "thinking", "cleanup"), NO_PATH),
    "cron": dict.fromkeys(("action", "id", "jobId", "text", "mode"), NO_PATH),
    "message": {
        **dict.fromkeys(("action", "channel", "target", "to", "accountId", "message", "buffer"), NO_PATH),
        **dict.fromkeys(("filename", "contentType", "replyTo", "messageId", "emoji", "targetAuthor"), NO_PATH),
        **dict.fromkeys(("path", "media", "attachments"), BY_MESSENGER),
    },
    "browser": {
        **dict.fromkeys(("action", "target", "profile", "targetUrl", "targetId", "snapshotFormat", "mode"), NO_PATH),
        **dict.fromkeys(("refs", "selector", "frame", "ref", "element", "type", "level", "inputRef"), NO_PATH),
        "promptText": NO_PATH,
        "paths": BY_BROWSER,
    },
    "web_search": dict.fromkeys(("query", "country", "search_lang", "ui_lang", "freshness"), NO_PATH),
    "web_fetch": dict.fromkeys(("url", "extractMode"), NO_PATH),
    "exec": {
        "command": SHOWN,
        "workdir": SHOWN,
        "env": NO_PATH,
        "host": NO_PATH,
        "node": NO_PATH,
    },
    "nodes": {
        **dict.fromkeys(("action", "node", "title", "body", "env", "facing", "deviceId", "desiredAccuracy"), NO_PATH),
        **dict.fromkeys(("command", "cwd"), SHOWN),
    },
    "process": {
        **dict.fromkeys(("action", "sessionId", "data", "literal", "text"), NO_PATH),
        **dict.fromkeys(("keys", "hex"), NO_PATH),
    },
}
CALLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "read": lambda path: {"path": path},
    "search": lambda path: {"path": path, "pattern": "x"},
    "write": lambda path: {"path": path, "content": "ours"},
    "edit": lambda path: {"path": path, "oldText": "inside", "newText": "inside."},
    "memory_get": lambda path: {"path": path},
}


@pytest.fixture
async def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Tool]]:
    # The browser is offered where there is one, and any program can be named.
    browser = {"executablePath": sys.executable}
    async with gateway_parts(tmp_path / "state", ScriptedModel(), browser=browser) as gateway:
        runtime = gateway.runtime
        monkeypatch.setattr(Nodes, "any", True)
        config = runtime.config.current
        workspace = workspace_dir(config, str(runtime.state_dir), "main")
        workspace.mkdir(parents=True, exist_ok=True)
        model = Model(id="m", provider="mock", api="openai-completions", base_url="http://127.0.0.1:9", tools=True)
        session = SessionRef("main", "agent:main:main")
        found = await tools_for(runtime, session, model, caller=OWNER_CALLER, sandbox=None)
        yield {tool.spec.name: tool for tool in found}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "state" / "workspace"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "note.md").write_text(CANARY)
    return folder


def texts(schema: dict[str, Any]) -> set[str]:
    """The parameters that can hold a text, alone or in a list or mapping."""
    found: set[str] = set()
    for name, value in schema["properties"].items():
        inner = [value, value.get("items") or {}, value.get("additionalProperties") or {}]
        kinds = {one.get("type") for one in inner if isinstance(one, dict)}
        if "string" in kinds or not kinds - {None}:
            found.add(name)
    return found


def test_every_text_parameter_of_every_tool_has_a_rule(tools: dict[str, Tool]) -> None:
    assert {name: texts(tool.spec.parameters) for name, tool in tools.items()} == {
        name: set(rules) for name, rules in RULES.items()
    }
    opened = {name for name, rules in RULES.items() if OPENER in rules.values()}
    assert opened == CALLS.keys(), "each is raced below"


async def call(tool: Tool, path: str, workspace: Path) -> str:
    context = ToolContext(agent_id="main", session_key="agent:main:main", workspace=workspace, caller=OWNER_CALLER)
    try:
        result: ToolResult = await tool.run(CALLS[tool.spec.name](path), context)
        return json.dumps([getattr(block, "text", "") for block in result.content])
    except (ToolError, PathRefused) as refused:
        return f"refused: {refused}"


@pytest.mark.parametrize("name", CALLS)
async def test_every_path_goes_through_the_opener(
    name: str, tools: dict[str, Tool], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "memory").mkdir()
    (workspace / "memory" / "note.md").write_text("inside")
    walked: list[str] = []
    walk = PathOpener._walk

    def seen(self: PathOpener, resolved: str, writing: bool) -> Any:
        walked.append(resolved)
        return walk(self, resolved, writing)

    monkeypatch.setattr(PathOpener, "_walk", seen)
    assert "refused" not in await call(tools[name], "memory/note.md", workspace)
    assert str(workspace / "memory" / "note.md") in walked


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "path",
    [
        "../../outside/note.md",
        "memory/../../../outside/note.md",
        "{outside}/note.md",
        "file://{outside}/note.md",
        "@{outside}/note.md",
        "memory/link.md",
        "memory/hard.md",
        "memory/folder/note.md",
        "memory/chain.md",
        "memory/up/../../outside/note.md",
        "/proc/self/root{outside}/note.md",
        "/proc/self/cwd/../outside/note.md",
        "/dev/fd/../root{outside}/note.md",
        "~/../../../../../..{outside}/note.md",
        "memory/note.md\0{outside}/note.md",
        "memory//..//..//..//outside/note.md",
        "memory/．．/．．/outside/note.md",
    ],
)
async def test_no_path_leads_out(name: str, path: str, tools: dict[str, Tool], workspace: Path, outside: Path) -> None:
    memory = workspace / "memory"
    memory.mkdir()
    (memory / "link.md").symlink_to(outside / "note.md")
    os.link(outside / "note.md", memory / "hard.md")
    (memory / "folder").symlink_to(outside)
    (memory / "chain.md").symlink_to("link.md")
    (memory / "up").symlink_to("../..")
    said = await call(tools[name], path.format(outside=outside), workspace)
    assert CANARY not in said
    assert (outside / "note.md").read_text() == CANARY
    assert [entry.name for entry in outside.iterdir()] == ["note.md"]
    if name == "write" and "refused" not in said:
        assert (memory / "hard.md").stat().st_ino != (outside / "note.md").stat().st_ino or "hard" not in path


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("swapped", ["memory", "memory/sub", "memory/sub/note.md"])
async def test_swapping_a_link_in_never_opens_anything_outside(
    name: str, swapped: str, tools: dict[str, Tool], workspace: Path, outside: Path
) -> None:
    """A thread swaps a folder or the file for a link to the outside and back, as fast as it can."""
    (workspace / "memory" / "sub").mkdir(parents=True)
    (workspace / "memory" / "sub" / "note.md").write_text("inside")
    (outside / "sub").mkdir()
    (outside / "sub" / "note.md").write_text(CANARY)
    target = {"memory": outside, "memory/sub": outside / "sub"}.get(swapped, outside / "note.md")
    done, swaps = threading.Event(), 0

    victim, note = workspace / swapped, workspace / "memory" / "sub" / "note.md"

    def flip() -> None:
        nonlocal swaps
        for turn in itertools.count():
            if done.is_set():
                return
            # A tool that writes may have made the folder anew in between.
            with contextlib.suppress(OSError):
                victim.rename(workspace / f"aside{turn}")
                victim.symlink_to(target)
                swaps += 1
                victim.unlink()
            with contextlib.suppress(OSError):
                note.parent.mkdir(parents=True, exist_ok=True)
                if not victim.is_symlink():
                    note.write_text("inside")

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(RACES):
            assert CANARY not in await call(tools[name], "memory/sub/note.md", workspace)
            await asyncio.sleep(0)
    finally:
        done.set()
        thread.join()
    assert swaps
    assert (outside / "note.md").read_text() == (outside / "sub" / "note.md").read_text() == CANARY
    assert {path.name for path in outside.rglob("*")} == {"note.md", "sub"}
