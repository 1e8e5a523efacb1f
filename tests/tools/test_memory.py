from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from openclaw.clock import SystemClock
from openclaw.config.schema import Config
from openclaw.config.schema.agents import MemorySearch
from openclaw.memory.index import AgentMemories
from openclaw.messages import TextBlock
from openclaw.path_opener import PathRefused
from openclaw.rights import Caller
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult
from openclaw.tools.memory import SNIPPET_CHARS, TranscriptMatch, memory_tools, snippet_of


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "memory").mkdir(parents=True)
    (folder / "MEMORY.md").write_text("Ada's birthday is on 3 May.\n")
    (folder / "memory/2026-01-31.md").write_text("one\ntwo\nthe birthday cake is ordered\nfour\n")
    (folder / "AGENTS.md").write_text("rules\n")
    return folder


def tools_of(workspace: Path, settings: MemorySearch, citations: str = "auto", said: Any = None) -> list[Tool]:
    notes = AgentMemories(workspace.parent, SystemClock()).of("main", workspace, settings, Config())
    return memory_tools(notes, workspace, settings, citations, said)


async def result_of(
    workspace: Path, tool: str, key: str = "agent:main:main", citations: str = "auto", **arguments: Any
) -> ToolResult:
    tools = {tool.spec.name: tool for tool in tools_of(workspace, MemorySearch(), citations)}
    context = ToolContext(
        agent_id="main", session_key=key, workspace=workspace, caller=Caller("group" if ":group:" in key else "owner")
    )
    return await tools[tool].run(arguments, context)


async def call(
    workspace: Path, tool: str, key: str = "agent:main:main", citations: str = "auto", **arguments: Any
) -> Any:
    (block,) = (await result_of(workspace, tool, key, citations, **arguments)).content
    assert isinstance(block, TextBlock)
    return msgspec.json.decode(block.text)


async def test_a_search_names_file_and_lines(workspace: Path) -> None:
    answer = await call(workspace, "memory_search", query="birthday cake")
    (best,) = (found for found in answer["results"] if found["path"] == "memory/2026-01-31.md")
    assert (best["startLine"], best["endLine"], best["source"]) == (1, 4, "memory")
    assert best["citation"] == "memory/2026-01-31.md#L1-L4" and best["snippet"].endswith(
        "Source: memory/2026-01-31.md#L1-L4"
    )
    assert (workspace.parent / "memory" / "main.notes.db").exists()


async def test_the_lines_that_a_search_names_are_those_that_memory_get_reads(workspace: Path) -> None:
    pasted = "from a web page\u2028with breaks of its own\u2029and a\x0cnew page\x85"
    lines = [pasted, *(f"{number} {'x' * 700}" for number in range(5)), "the needle lies here"]
    (workspace / "memory" / "pasted.md").write_text("\n".join(lines))
    answer = await call(workspace, "memory_search", query="needle")
    (found,) = answer["results"]
    assert (found["path"], found["endLine"]) == ("memory/pasted.md", len(lines))
    page = await call(workspace, "memory_get", path=found["path"], **{"from": found["endLine"], "lines": 1})
    assert page["text"] == "the needle lies here"


@pytest.mark.parametrize("path", ["MEMORY.md", "memory/2026-01-31.md"])
async def test_a_group_neither_finds_nor_reads_the_owners_notes(workspace: Path, path: str) -> None:
    key = "agent:main:signal:group:1"
    told = await result_of(workspace, "memory_search", key, query="birthday")
    assert told.details["results"] == [] and told.details["disabled"] and told.failed
    (block,) = told.content
    assert isinstance(block, TextBlock) and "belongs to the owner" in block.text and "{" not in block.text
    with pytest.raises(ToolError, match="belongs to the owner"):
        await call(workspace, "memory_get", key, path=path)


async def test_some_lines_of_a_file(workspace: Path) -> None:
    answer = await call(workspace, "memory_get", path="memory/2026-01-31.md", **{"from": 2, "lines": 2})
    assert answer == {"path": "memory/2026-01-31.md", "text": "two\nthe birthday cake is ordered"}


@pytest.mark.parametrize(
    "path", ["AGENTS.md", "memory/../AGENTS.md", "/etc/passwd", "memory/x.txt", "memory/link.md", "memory/out/a.md"]
)
async def test_nothing_but_memory_is_read(workspace: Path, path: str) -> None:
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("secret")
    (workspace / "memory/link.md").symlink_to(outside / "a.md")
    (workspace / "memory/out").symlink_to(outside)
    with pytest.raises((ToolError, PathRefused)):
        await call(workspace, "memory_get", path=path)


async def test_a_file_that_is_not_there_yet(workspace: Path) -> None:
    with pytest.raises((ToolError, PathRefused), match="does not exist yet"):
        await call(workspace, "memory_get", path="memory/2030-01-01.md")


def test_switched_off_there_are_no_such_tools(workspace: Path) -> None:
    assert tools_of(workspace, MemorySearch(enabled=False)) == []


def test_a_snippet_shows_the_word_that_was_asked_for() -> None:
    text = "filler " * 300 + "needle " + "filler " * 300
    assert "needle" in snippet_of(text, "the needle") and len(snippet_of(text, "needle")) == SNIPPET_CHARS


@pytest.mark.parametrize(
    ("sources", "key", "found"),
    [
        (["memory", "sessions"], "agent:main:main", ["sessions/s1.jsonl"]),
        (["memory", "sessions"], "agent:main:signal:group:1", []),
        (None, "agent:main:main", []),
    ],
)
async def test_earlier_sessions_are_searched_where_the_person_wants_it(
    workspace: Path, sources: Any, key: str, found: list[str]
) -> None:
    said = TranscriptMatch("s1", "e1", "user", "t", "we spoke of zebras")
    settings = MemorySearch(sources=sources)
    search = tools_of(workspace, settings, said=AsyncMock(return_value=[said]))[0]
    context = ToolContext(
        agent_id="main", session_key=key, workspace=workspace, caller=Caller("group" if ":group:" in key else "owner")
    )
    result = await search.run({"query": "zebras"}, context)
    assert [row["path"] for row in result.details["results"]] == found
