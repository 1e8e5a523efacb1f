"""The system prompt: which sections, in which order, for whom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from openclaw.agent.prompt.system_prompt import PromptFacts, SandboxFacts, build_system_prompt, turn_facts
from openclaw.agent.prompt.workspace_snapshot import load_bootstrap
from openclaw.agent.skills import SkillsPrompt
from openclaw.config.schema import Config
from openclaw.messages import ToolSpec
from openclaw.models.base import Model
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.message_ledger import MessageBody
from openclaw.tools.base import Tool, ToolContext, ToolResult

NOON = 1_771_500_000_000  # 2026-02-19 11:20 UTC


class Named:
    def __init__(self, name: str, summary: str = "does it") -> None:
        self.spec = ToolSpec(name=name, description=f"All about {name}", parameters={"type": "object"})
        self.summary = summary

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        raise AssertionError


def model(**more: Any) -> Model:
    return Model(provider="mock", id="m-1", api="anthropic-messages", **more)


def facts(workspace: Path, *names: str, **more: Any) -> PromptFacts:
    tools: list[Tool] = [Named(name) for name in names or ("read", "exec", "process")]
    given: dict[str, Any] = {
        "agent_id": "main", "agent_name": "Molly", "workspace": str(workspace), "model": model(),
        "tools": tools, "files": load_bootstrap(workspace, 20_000), **more,
    }  # fmt: skip
    return PromptFacts(**given)


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"#{1,3} ", line) and "/" not in line]


ALL = ("read", "memory_search", "gateway", "message", "session_status")
FULL = """
## Tooling|## Tool Call Style|## Working|## Safety|## OpenClaw CLI Quick Reference|## Skills (mandatory)
|## Memory Recall
|## OpenClaw Self-Update|## Model Aliases|## Workspace|## Sandbox|## User Identity
|## Current Date & Time|## Workspace Files (injected)|## Reply Tags|## Messaging|### message tool
|## Reasoning Format|# Project Context
|## Silent Replies|## Heartbeats|## Runtime
"""
MINIMAL = """
## Tooling|## Tool Call Style|## Working|## Safety|## OpenClaw CLI Quick Reference|## Workspace|## Sandbox
|## Current Date & Time|## Workspace Files (injected)|## Subagent Context|## Reasoning Format|# Project Context
|## Runtime
"""


def listed(text: str) -> list[str]:
    return [heading.strip() for heading in text.replace("\n", "").split("|")]


@pytest.mark.parametrize(
    ("mode", "expected", "own"), [("full", FULL, ["## Group Chat Context"]), ("minimal", MINIMAL, [])]
)
def test_sections_stand_in_their_order(tmp_path: Path, mode: str, expected: str, own: list[str]) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    given = facts(
        tmp_path, *ALL, mode=mode, extra="Be kind.", skills=SkillsPrompt(text="<available_skills/>"),
        aliases={"fast": "mock/m-1"}, owners=["+351900"], user_timezone="Europe/Lisbon",
        sandbox=SandboxFacts("/workspace", "ro", False), tagged_reasoning=True,
    )  # fmt: skip
    prompt = build_system_prompt(given)
    assert headings(prompt.text) == listed(expected)
    assert headings(prompt.suffix) == own
    assert "call session_status" in prompt.text


@pytest.mark.parametrize(
    "heading",
    [
        "Skills", "Memory Recall", "Self-Update", "Model Aliases", "User Identity", "Context\nBe", "message tool",
        "## Sandbox", "Reasoning Format", "Group Chat Context",
    ],
)  # fmt: skip
def test_a_section_without_its_condition_is_left_out(tmp_path: Path, heading: str) -> None:
    prompt = build_system_prompt(facts(tmp_path))
    assert heading not in prompt.text + prompt.suffix


@pytest.mark.parametrize(
    ("access", "words"),
    [("none", "is not there"), ("ro", "can be read at /agent"), ("rw", "is the agent's own workspace")],
)
def test_a_sandboxed_session_is_told_what_it_sees(tmp_path: Path, access: Any, words: str) -> None:
    text = build_system_prompt(facts(tmp_path, sandbox=SandboxFacts("/workspace", access, False))).text
    assert "They see the folder /workspace" in text and words in text
    assert "There is no network." in text and "## Documentation" not in text


def test_skills_are_listed_only_to_agents_that_can_read_them(tmp_path: Path) -> None:
    skills = SkillsPrompt(text="<available_skills/>")
    assert build_system_prompt(facts(tmp_path, "read", skills=skills)).skills_chars == len(skills.text)
    assert "<available_skills/>" not in build_system_prompt(facts(tmp_path, "exec", skills=skills)).text


def test_small_models_get_a_few_sentences(tmp_path: Path) -> None:
    small = build_system_prompt(facts(tmp_path, model=model(tools=False)))
    assert len(small.text) < 250 and small.suffix == ""
    assert "Molly" in small.text


def test_the_prompt_has_empty_lines_only_inside_files(tmp_path: Path) -> None:
    assert "\n\n" not in build_system_prompt(facts(tmp_path, *ALL, extra="x")).text
    (tmp_path / "AGENTS.md").write_text("one\n\ntwo")
    assert build_system_prompt(facts(tmp_path)).text.count("\n\n") == 1


def test_tools_come_in_the_known_order_and_the_rest_by_alphabet(tmp_path: Path) -> None:
    names = ["zebra", "sessions_spawn", "image", "exec", "memory_get", "edit", "write", "read"]
    text = build_system_prompt(facts(tmp_path, *names)).text
    shown = re.findall(r"^- (\w+): does it$", text, re.MULTILINE)
    assert shown == ["read", "write", "edit", "exec", "image", "memory_get", "sessions_spawn", "zebra"]


def test_a_tool_without_a_summary_shows_its_description(tmp_path: Path) -> None:
    given = facts(tmp_path, "read")
    given.tools = [Named("own", summary="")]
    assert "- own: All about own" in build_system_prompt(given).text


def test_the_main_part_is_the_same_bytes_whatever_the_group(tmp_path: Path) -> None:
    first = build_system_prompt(facts(tmp_path, extra='Called "Garden".'))
    other = build_system_prompt(facts(tmp_path, extra='Called "Cellar".'))
    assert first.text == other.text
    assert first.suffix != other.suffix


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({}, "agent=main"),
        ({"repo_root": "/r"}, "repo=/r"),
        ({"default_model": "mock/m-2"}, "default_model=mock/m-2"),
    ],
)
def test_the_runtime_line_names_what_is_known(tmp_path: Path, more: dict[str, Any], part: str) -> None:
    [line] = re.findall(r"^Runtime: .*$", build_system_prompt(facts(tmp_path, **more)).text, re.MULTILINE)
    assert part in line
    assert not re.search(r"\b(model=mock/m-1|channel=|thinking=)", line), "what changes is not in the prompt"


def told(config: dict[str, Any] | None = None, entry: dict[str, Any] | None = None, **more: Any) -> list[str]:
    given: dict[str, Any] = {
        "session_key": "agent:main:main", "kind": "main", "model": model(), "thinking": "low", "source": "agent",
    }  # fmt: skip
    return turn_facts(
        **{**given, **more},
        entry=cast("SessionEntry", {"sessionId": "s", **(entry or {})}),
        body=MessageBody(),
        config=msgspec.convert(config or {}, Config),
        now_ms=NOON,
    ).splitlines()


@pytest.mark.parametrize(
    ("zone", "style", "lines"),
    [
        (None, "auto", []),
        ("Mars/Base", "auto", []),
        ("Europe/Lisbon", "24", ["Local time: Thursday 2026-02-19 11:20 (Europe/Lisbon)"]),
        ("America/New_York", "12", ["Local time: Thursday 2026-02-19 6:20 AM (America/New_York)"]),
    ],
)
def test_time_is_given_in_utc_and_in_the_persons_zone(zone: str | None, style: str, lines: list[str]) -> None:
    shown = told({"agents": {"defaults": {**({"userTimezone": zone} if zone else {}), "timeFormat": style}}})
    assert shown[2] == "UTC: Thursday 2026-02-19 11:20"
    assert [line for line in shown if line.startswith("Local time")] == lines


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "Runtime: model=mock/m-1 | thinking=low"),
        ({"thinking": ""}, "Runtime: model=mock/m-1 | thinking=off"),
        (
            {"entry": {"lastChannel": "telegram"}},
            "Runtime: model=mock/m-1 | channel=telegram | capabilities=none | thinking=low",
        ),
        (
            {
                "entry": {"lastChannel": "telegram"},
                "config": {"channels": {"others": {"telegram": {"capabilities": ["a", "b"]}}}},
            },
            "Runtime: model=mock/m-1 | channel=telegram | capabilities=a,b | thinking=low",
        ),
        (
            {"entry": {"lastChannel": "telegram"}, "source": "webchat"},
            "Runtime: model=mock/m-1 | channel=webchat | capabilities=none | thinking=low",
        ),
        ({"entry": {"reasoningLevel": "on"}}, "Reasoning: on (/reasoning changes it)"),
    ],
)
def test_the_turn_facts_name_model_channel_and_levels(more: dict[str, Any], line: str) -> None:
    shown = told(**more)
    assert line in shown
    assert (shown[0], shown[-1]) == ("<openclaw-facts>", "</openclaw-facts>")


def test_small_models_get_no_turn_facts() -> None:
    assert told(model=model(tools=False)) == []


def test_files_stand_under_their_paths_and_the_persona_is_announced(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("grumpy")
    (tmp_path / "USER.md").write_text("  \n")
    prompt = build_system_prompt(facts(tmp_path))
    assert f"## {tmp_path / 'SOUL.md'}\ngrumpy\n" in prompt.text
    assert "SOUL.md is your character" in prompt.text
    assert f"## {tmp_path / 'USER.md'}" not in prompt.text
    start = prompt.text.index("# Project Context")
    assert prompt.project_context_chars == prompt.text.index("\n## Silent Replies") - start


def test_a_cut_file_is_in_the_warnings(tmp_path: Path) -> None:
    (tmp_path / "TOOLS.md").write_text("x" * 30_000)
    [warning] = [file.warning for file in facts(tmp_path).files if file.warning]
    assert warning.startswith("TOOLS.md is too long")
