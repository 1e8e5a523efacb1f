"""``/context``: the documented example, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.agent.prompt.report import (
    PromptReport,
    ReportStore,
    context_detail,
    context_json,
    context_list,
    sized,
    stored_report,
    tokens_line,
)
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.files.disk import FileBlobStore

FILES = [
    ("AGENTS.md", False, 1742, 1742, False),
    ("TOOLS.md", False, 54210, 20962, True),
    ("HEARTBEAT.md", True, 0, 40, False),
    ("BOOTSTRAP.md", False, 0, 0, False),
]


def report(skills: int = 12, tools: int = 3) -> dict[str, Any]:
    names = ("name", "missing", "rawChars", "injectedChars", "truncated")
    return {
        "source": "run",
        "generatedAt": 5,
        "sessionId": "s",
        "sessionKey": "agent:main:main",
        "workspaceDir": "/home/ana/workspace",
        "bootstrapMaxChars": 20000,
        "sandbox": {"mode": "non-main", "sandboxed": False},
        "systemPrompt": {"chars": 38412, "projectContextChars": 23901, "nonProjectContextChars": 14511},
        "injectedWorkspaceFiles": [dict(zip(names, file, strict=True)) for file in FILES],
        "skills": {
            "promptChars": 2184,
            "entries": [{"name": f"skill-{n:02}", "blockChars": 400 + n} for n in range(skills)],
        },
        "tools": {
            "listChars": 1032,
            "schemaChars": 31988,
            "entries": [
                {"name": f"tool-{n:02}", "summaryChars": 10 * n, "schemaChars": 100 - n, "propertiesCount": n % 5}
                for n in range(tools)
            ],
        },
    }


def test_the_list_has_the_documented_lines_in_the_documented_order() -> None:
    assert context_list(report(), {"totalTokens": 14250, "contextTokens": 32000}).splitlines() == [
        "🧠 Context breakdown",
        "Workspace: /home/ana/workspace",
        "Bootstrap max/file: 20,000 chars",
        "Sandbox: mode=non-main sandboxed=false",
        "System prompt (run): 38,412 chars (~9,603 tok) (Project Context 23,901 chars (~5,976 tok))",
        "",
        "Injected workspace files:",
        "- AGENTS.md: OK | raw 1,742 chars (~436 tok) | injected 1,742 chars (~436 tok)",
        "- TOOLS.md: TRUNCATED | raw 54,210 chars (~13,553 tok) | injected 20,962 chars (~5,241 tok)",
        "- HEARTBEAT.md: MISSING | raw 0 | injected 0",
        "- BOOTSTRAP.md: OK | raw 0 chars (~0 tok) | injected 0 chars (~0 tok)",
        "",
        "Skills list (system prompt text): 2,184 chars (~546 tok) (12 skills)",
        "Tools: tool-00, tool-01, tool-02",
        "Tool list (system prompt text): 1,032 chars (~258 tok)",
        "Tool schemas (JSON): 31,988 chars (~7,997 tok) (counts toward context; not shown as text)",
        "Tools: (same as above)",
        "",
        "Session tokens (cached): 14,250 total / ctx=32,000",
    ]


def test_more_than_thirty_tools_are_named_by_number() -> None:
    line = context_list(report(tools=34), {}).splitlines()[13]
    assert line.endswith("tool-29, … (+4 more)")


def test_the_detail_ranks_skills_and_tools_by_size() -> None:
    lines = context_detail(report(skills=32), {}).splitlines()
    assert lines[0] == "🧠 Context breakdown (detailed)"
    top = lines.index("Top skills (prompt entry size):")
    assert lines[top + 1] == "- skill-31: 431 chars (~108 tok)"
    assert lines[top + 31 : top + 33] == ["… (+2 more skills)", ""]
    top = lines.index("Top tools (schema size):")
    assert lines[top + 1 : top + 4] == [
        "- tool-00: 100 chars (~25 tok)",
        "- tool-01: 99 chars (~25 tok)",
        "- tool-02: 98 chars (~25 tok)",
    ]
    assert lines[lines.index("Top tools (summary text size):") + 1] == "- tool-02: 20 chars (~5 tok)"
    assert lines[lines.index("Tools (param count):") + 1] == "- tool-02: 2 params"
    assert lines[-1] == "Session tokens (cached): unknown / ctx=?"


def test_json_holds_the_report_and_the_counts() -> None:
    found = json.loads(context_json(report(), {"totalTokens": 7, "contextTokens": 9}))
    assert found["report"] == report()
    assert found["session"] == {"totalTokens": 7, "inputTokens": None, "outputTokens": None, "contextTokens": 9}


@pytest.mark.parametrize(
    ("chars", "tokens"),
    [(38412, "9,603"), (23901, "5,976"), (1742, "436"), (54210, "13,553"), (211, "53"), (401, "101"), (0, "0")],
)
def test_a_token_is_four_characters_rounded_up(chars: int, tokens: str) -> None:
    assert sized(chars) == f"{chars:,} chars (~{tokens} tok)"


def test_an_unknown_count_is_said_to_be_unknown() -> None:
    assert tokens_line({"contextTokens": 200000}) == "Session tokens (cached): unknown / ctx=200,000"


async def test_reports_that_say_the_same_are_kept_once_and_found_again(tmp_path: Path) -> None:
    blobs = FileBlobStore(str(tmp_path))
    reports = ReportStore(blobs)
    first, second = report(), {**report(), "sessionKey": "agent:main:other", "generatedAt": 6}
    own = ("source", "generatedAt", "sessionId", "sessionKey")
    kept = [
        await reports.persist(
            PromptReport(
                {name: value for name, value in each.items() if name in own},
                {name: value for name, value in each.items() if name not in own},
            )
        )
        for each in (first, second)
    ]
    assert len(list((tmp_path / "blobs").iterdir())) == 1
    assert all(len(json.dumps(each)) < 300 for each in kept)
    for small, whole in zip(kept, (first, second), strict=True):
        assert await stored_report(SessionEntry(sessionId="s", systemPromptReport=small), blobs) == whole


async def test_a_report_that_is_gone_or_was_never_made_is_none(tmp_path: Path) -> None:
    blobs = FileBlobStore(str(tmp_path))
    lost = SessionEntry(sessionId="s", systemPromptReport={"source": "run", "blob": "0" * 64})
    assert await stored_report(lost, blobs) is None
    assert await stored_report(None, blobs) is None
    whole = SessionEntry(sessionId="s", systemPromptReport=report())
    assert await stored_report(whole, blobs) == report()
