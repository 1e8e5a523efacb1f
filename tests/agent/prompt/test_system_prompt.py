"""The system prompt: which sections, in which order, for whom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from openclaw.agent.prompt.sections import RequestedSandbox
from openclaw.agent.prompt.system_prompt import PromptFacts, build_system_prompt
from openclaw.agent.prompt.workspace_snapshot import load_bootstrap
from openclaw.agent.skills.library import SkillsPrompt
from openclaw.messages import ToolSpec
from openclaw.models.base import Model
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
        "agent_id": "main", "agent_name": "Molly", "workspace": str(workspace), "model": model(), "thinking": "low",
        "tools": tools, "files": load_bootstrap(workspace, 20_000), **more,
    }  # fmt: skip
    return PromptFacts(**given)


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"#{1,3} ", line) and "/" not in line]


ALL = ("read", "memory_search", "gateway", "message", "session_status")
FULL = """
## Tooling|## Tool Call Style|## Safety|## OpenClaw CLI Quick Reference|## Skills (mandatory)|## Memory Recall
|## OpenClaw Self-Update|## Model Aliases|## Workspace|## Documentation|## Sandbox|## User Identity
|## Workspace Files (injected)|## Reply Tags|## Messaging|### message tool|## Reasoning Format|# Project Context
|## Silent Replies|## Heartbeats
"""
FULL_LAST = "## Group Chat Context|## Current Date & Time|## Runtime"
MINIMAL = """
## Tooling|## Tool Call Style|## Safety|## OpenClaw CLI Quick Reference|## Workspace|## Sandbox
|## Workspace Files (injected)|## Subagent Context|## Reasoning Format|# Project Context
"""
MINIMAL_LAST = "## Current Date & Time|## Runtime"


def listed(text: str) -> list[str]:
    return [heading.strip() for heading in text.replace("\n", "").split("|")]


@pytest.mark.parametrize(("mode", "expected", "last"), [("full", FULL, FULL_LAST), ("minimal", MINIMAL, MINIMAL_LAST)])
def test_sections_stand_in_their_order(tmp_path: Path, mode: str, expected: str, last: str) -> None:
    given = facts(
        tmp_path, *ALL, mode=mode, extra="Be kind.", skills=SkillsPrompt(text="<available_skills/>"),
        aliases={"fast": "mock/m-1"}, owners=["+351900"], user_timezone="Europe/Lisbon",
        sandbox=RequestedSandbox("non-main", "ro"), tagged_reasoning=True,
    )  # fmt: skip
    prompt = build_system_prompt(given, NOON)
    assert headings(prompt.text) == listed(expected)
    assert headings(prompt.suffix) == listed(last)
    assert "call session_status" in prompt.text


@pytest.mark.parametrize(
    "heading",
    [
        "Skills", "Memory Recall", "Self-Update", "Model Aliases", "User Identity", "Context\nBe", "message tool",
        "## Sandbox", "Reasoning Format", "Group Chat Context",
    ],
)  # fmt: skip
def test_a_section_without_its_condition_is_left_out(tmp_path: Path, heading: str) -> None:
    prompt = build_system_prompt(facts(tmp_path), NOON)
    assert heading not in prompt.text + prompt.suffix


@pytest.mark.parametrize(
    ("access", "words"),
    [("none", "leave everything else"), ("ro", "change nothing in it"), ("rw", "You may read and change")],
)
def test_a_session_without_its_sandbox_is_told_so(tmp_path: Path, access: Any, words: str) -> None:
    text = build_system_prompt(facts(tmp_path, sandbox=RequestedSandbox("all", access)), NOON).text
    assert f"(mode all, workspace access {access})" in text and words in text
    assert "commands run directly on the host" in text


def test_skills_are_listed_only_to_agents_that_can_read_them(tmp_path: Path) -> None:
    skills = SkillsPrompt(text="<available_skills/>")
    assert build_system_prompt(facts(tmp_path, "read", skills=skills), NOON).skills_chars == len(skills.text)
    assert "<available_skills/>" not in build_system_prompt(facts(tmp_path, "exec", skills=skills), NOON).text


def test_mode_none_is_one_sentence_and_small_models_get_a_few(tmp_path: Path) -> None:
    alone = build_system_prompt(facts(tmp_path, mode="none"), NOON)
    assert (alone.text.count("\n"), alone.suffix) == (0, "")
    small = build_system_prompt(facts(tmp_path, model=model(tools=False)), NOON)
    assert len(small.text) < 250 and small.suffix == ""
    assert "Molly" in small.text


def test_the_prompt_has_empty_lines_only_inside_files(tmp_path: Path) -> None:
    assert "\n\n" not in build_system_prompt(facts(tmp_path, *ALL, extra="x"), NOON).text
    (tmp_path / "AGENTS.md").write_text("one\n\ntwo")
    assert build_system_prompt(facts(tmp_path), NOON).text.count("\n\n") == 1


def test_tools_come_in_the_known_order_and_the_rest_by_alphabet(tmp_path: Path) -> None:
    names = ["zebra", "sessions_spawn", "image", "exec", "memory_get", "edit", "write", "read"]
    text = build_system_prompt(facts(tmp_path, *names), NOON).text
    shown = re.findall(r"^- (\w+): does it$", text, re.MULTILINE)
    assert shown == ["read", "write", "edit", "exec", "image", "memory_get", "sessions_spawn", "zebra"]


def test_a_tool_without_a_summary_shows_its_description(tmp_path: Path) -> None:
    given = facts(tmp_path, "read")
    given.tools = [Named("own", summary="")]
    assert "- own: All about own" in build_system_prompt(given, NOON).text


def test_the_main_part_is_the_same_bytes_whatever_the_clock_channel_thinking_or_group_name(tmp_path: Path) -> None:
    first = build_system_prompt(facts(tmp_path, channel="webchat", extra='Called "Garden".'), NOON)
    other = build_system_prompt(
        facts(tmp_path, channel="signal", thinking="high", reasoning="on", extra='Called "Cellar".'),
        NOON + 86_400_000,
    )
    assert first.text == other.text
    assert first.suffix != other.suffix


def test_turns_of_one_quarter_hour_share_every_byte(tmp_path: Path) -> None:
    assert (
        build_system_prompt(facts(tmp_path), NOON).suffix == build_system_prompt(facts(tmp_path), NOON + 60_000).suffix
    )


@pytest.mark.parametrize(
    ("zone", "style", "lines"),
    [
        (None, "auto", []),
        ("Mars/Base", "auto", []),
        ("Europe/Lisbon", "24", ["Time zone: Europe/Lisbon", "Local time: Thursday 2026-02-19 11:15"]),
        ("America/New_York", "12", ["Time zone: America/New_York", "Local time: Thursday 2026-02-19 6:15 AM"]),
    ],
)
def test_time_is_given_in_utc_and_in_the_persons_zone(
    tmp_path: Path, zone: str | None, style: str, lines: list[str]
) -> None:
    suffix = build_system_prompt(facts(tmp_path, user_timezone=zone, time_format=style), NOON).suffix
    shown = suffix.split("\n## Runtime")[0].splitlines()
    assert shown[1].startswith("UTC: Thursday 2026-02-19 11:15")
    assert shown[2:] == lines


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({}, "model=mock/m-1"),
        ({"repo_root": "/r"}, "repo=/r"),
        ({"channel": "telegram"}, "channel=telegram | capabilities=none"),
        ({"channel": "telegram", "capabilities": ["a", "b"]}, "capabilities=a,b"),
        ({"thinking": ""}, "thinking=off"),
        ({"default_model": "mock/m-2"}, "default_model=mock/m-2"),
    ],
)
def test_the_runtime_line_names_what_is_known(tmp_path: Path, more: dict[str, Any], part: str) -> None:
    [line] = re.findall(r"^Runtime: .*$", build_system_prompt(facts(tmp_path, **more), NOON).suffix, re.MULTILINE)
    assert part in line


def test_files_stand_under_their_paths_and_the_persona_is_announced(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("grumpy")
    (tmp_path / "USER.md").write_text("  \n")
    prompt = build_system_prompt(facts(tmp_path), NOON)
    assert f"## {tmp_path / 'SOUL.md'}\ngrumpy\n" in prompt.text
    assert "SOUL.md is your character" in prompt.text
    assert f"## {tmp_path / 'USER.md'}" not in prompt.text
    start = prompt.text.index("# Project Context")
    assert prompt.project_context_chars == prompt.text.index("\n## Silent Replies") - start


def test_a_cut_file_is_in_the_warnings(tmp_path: Path) -> None:
    (tmp_path / "TOOLS.md").write_text("x" * 30_000)
    [warning] = [file.warning for file in facts(tmp_path).files if file.warning]
    assert warning.startswith("TOOLS.md is too long")
