"""The system prompt: rebuilt for every run, never stored in the history.

The main part is the same bytes from turn to turn, so that providers can cache it; what changes (who is in the group,
the clock, the model, the channel) is a suffix.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.prompt import sections
from openclaw.agent.prompt.facts import PromptFacts
from openclaw.agent.prompt.report import shared_report
from openclaw.agent.prompt.sections import PROJECT_CONTEXT
from openclaw.agent.prompt.workspace_files import FIRST_RUN_FILE, BootstrapFile
from openclaw.agent.window.tokens import overhead_tokens
from openclaw.clock import named_zone
from openclaw.messages import ToolSpec
from openclaw.models.compat import reasons_in_tags
from openclaw.outbound.reasoning import Framing
from openclaw.tools.base import Tool

MOST_KEPT = 64
QUARTER_MS = 15 * 60_000


class SystemPrompt(msgspec.Struct, kw_only=True):
    """The prompt with the tools that go with it. Runs share it, so nobody changes it."""

    text: str
    """The main part: the same bytes from turn to turn."""
    suffix: str
    """What changes: the group, the time, the model, the channel."""
    project_context_chars: int = 0
    tool_list_chars: int = 0
    skills_chars: int = 0
    warnings: list[str] = []
    """For the person: files that the model sees only in part."""
    tools: dict[str, Tool] = {}
    """The agent's own tools, by name."""
    specs: list[ToolSpec] = []
    """The agent's own tools, then the caller's."""
    overhead: int = 0
    """Estimated tokens of all this in every request."""
    framing: Framing = False
    """Where the answer stands in what the model writes."""
    report: dict[str, Any] = {}
    """Sizes of the parts, the same for every run with this prompt."""

    @property
    def chars(self) -> int:
        return len(self.text) + len(self.suffix)


def build_system_prompt(facts: PromptFacts, now_ms: int, client_tools: Sequence[ToolSpec] = ()) -> SystemPrompt:
    listed = project = skills = suffix = ""
    if not facts.model.tools:
        text = _small(facts)
    elif facts.mode == "none":
        text = _identity(facts)
    else:
        names = frozenset(tool.spec.name for tool in facts.tools)
        listed, project = sections.tool_list(facts.tools), sections.project_context(facts.files)
        skills = facts.skills.text if facts.mode == "full" and "read" in names else ""
        full = facts.mode == "full"
        parts = _full(facts, names, listed, skills, project) if full else _minimal(facts, names, listed, project)
        text = "\n".join(part for part in parts if part)
        suffix = "\n".join(part for part in (_around(facts), _time(facts, now_ms), _runtime(facts)) if part)
    specs = [*(tool.spec for tool in facts.tools), *client_tools]
    prompt = SystemPrompt(
        text=text,
        suffix=suffix,
        project_context_chars=len(project),
        tool_list_chars=len(listed),
        skills_chars=len(skills),
        warnings=[file.warning for file in facts.files if file.warning],
        tools={tool.spec.name: tool for tool in facts.tools},
        specs=specs,
        overhead=overhead_tokens(text, suffix, specs),
        framing=reasons_in_tags(facts.model),
    )
    prompt.report = shared_report(facts, prompt)
    return prompt


class PromptCache:
    """Keeps the prompts of the last runs. While the facts stay the same, so does the prompt, byte for byte."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, ...], tuple[PromptFacts, int, SystemPrompt]] = OrderedDict()

    def of(self, facts: PromptFacts, now_ms: int, client_tools: Sequence[ToolSpec] = ()) -> SystemPrompt:
        if client_tools:
            return build_system_prompt(facts, now_ms, client_tools)
        key = (facts.agent_id, facts.model.ref, facts.thinking, facts.reasoning, facts.channel or "", facts.mode)
        key = (*key, facts.extra, str(facts.sandbox), *facts.owners)
        quarter = now_ms // QUARTER_MS
        known = self._known.get(key)
        if known is not None and known[1] == quarter and known[0] == facts:
            return known[2]
        prompt = build_system_prompt(facts, now_ms)
        self._known[key] = (facts, quarter, prompt)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return prompt


def _full(facts: PromptFacts, names: frozenset[str], listed: str, skills: str, project: str) -> list[str]:
    return [
        _identity(facts),
        sections.tooling(listed, names),
        sections.tool_call_style(),
        sections.safety(),
        sections.cli_reference(),
        sections.skills(skills),
        sections.memory_recall(names, facts.citations),
        sections.self_update(names),
        sections.model_aliases(facts.aliases),
        _clock_hint(facts, names),
        sections.workspace(facts.workspace, first_run=_is_first_run(facts.files)),
        sections.documentation(_docs_dir()),
        sections.sandbox(facts.sandbox),
        sections.user_identity(facts.owners),
        sections.workspace_files() if project else "",
        sections.reply_tags(),
        sections.messaging(names),
        sections.reasoning_format(facts.tagged_reasoning),
        project,
        sections.silent_replies(),
        sections.heartbeats(facts.heartbeat_prompt),
    ]


def _minimal(facts: PromptFacts, names: frozenset[str], listed: str, project: str) -> list[str]:
    return [
        _identity(facts),
        sections.tooling(listed, names),
        sections.tool_call_style(),
        sections.safety(),
        sections.cli_reference(),
        _clock_hint(facts, names),
        sections.workspace(facts.workspace, first_run=False),
        sections.sandbox(facts.sandbox),
        sections.workspace_files() if project else "",
        sections.extra_context(facts.extra.strip(), subagent=True),
        sections.reasoning_format(facts.tagged_reasoning),
        project,
    ]


def _around(facts: PromptFacts) -> str:
    """Where the conversation takes place. A group's name and members change, so that it stands among the last words."""
    if facts.mode != "full":
        return ""
    return sections.extra_context(facts.extra.strip(), subagent=False)


def _identity(facts: PromptFacts) -> str:
    return f"You are {facts.agent_name}, a personal assistant that runs inside OpenClaw on this person's own machine."


def _small(facts: PromptFacts) -> str:
    """Small models drown in long instructions: a few sentences and nothing else."""
    return (
        f"You are {facts.agent_name}, a friendly and honest assistant. "
        "Answer briefly and plainly. If you do not know something, say so."
    )


def _is_first_run(files: Sequence[BootstrapFile]) -> bool:
    return any(file.name == FIRST_RUN_FILE and not file.missing for file in files)


def _clock_hint(facts: PromptFacts, names: frozenset[str]) -> str:
    if not facts.user_timezone or "session_status" not in names:
        return ""
    return "For the time of this moment, the day or the date, call session_status."


def _runtime(facts: PromptFacts) -> str:
    host, system, machine, python = _host_facts()
    parts = [
        f"agent={facts.agent_id}",
        f"host={host}",
        f"repo={facts.repo_root}" if facts.repo_root else "",
        f"os={system} ({machine})",
        f"python={python}",
        f"model={facts.model.ref}",
        f"default_model={facts.default_model}" if facts.default_model else "",
        f"shell={_shell()}" if _shell() else "",
    ]
    if facts.channel:
        parts.append(f"channel={facts.channel}")
        parts.append(f"capabilities={','.join(facts.capabilities) or 'none'}")
    parts.append(f"thinking={facts.thinking or 'off'}")
    return (
        f"## Runtime\nRuntime: {' | '.join(part for part in parts if part)}\n"
        f"Reasoning: {facts.reasoning} (shown only when on or stream; /reasoning changes it)"
    )


@cache
def _host_facts() -> tuple[str, str, str, str]:
    return (
        socket.gethostname(),
        f"{platform.system()} {platform.release()}",
        platform.machine(),
        platform.python_version(),
    )


@cache
def _shell() -> str:
    return Path(os.environ.get("SHELL", "")).name


@cache
def _docs_dir() -> str:
    """The documents, where OpenClaw runs from a checkout that has them."""
    docs = Path(__file__).parents[4] / "docs"
    return str(docs) if (docs / "architecture.md").is_file() else ""


def _time(facts: PromptFacts, now_ms: int) -> str:
    """To the quarter hour: a minute hand here would void the provider's cache of the whole conversation every turn."""
    moment = datetime.fromtimestamp(now_ms // QUARTER_MS * QUARTER_MS / 1000, UTC)
    lines = [
        "## Current Date & Time",
        f"UTC: {moment:%A %Y-%m-%d %H:%M} (at the last quarter hour; messages carry their own time)",
    ]
    zone = named_zone(facts.user_timezone)
    if zone is not None:
        local = moment.astimezone(zone)
        clock = f"{local:%I:%M %p}".lstrip("0") if facts.time_format == "12" else f"{local:%H:%M}"
        lines += [f"Time zone: {facts.user_timezone}", f"Local time: {local:%A %Y-%m-%d} {clock}"]
    return "\n".join(lines)


_AFTER_FILES = ("## Silent Replies", "## Heartbeats")
_CUT = re.compile(r"…\(truncated ([^:\n]{1,200}): kept (\d+)\+(\d+) chars of (\d+)\)…")


class PromptPart(msgspec.Struct, frozen=True):
    title: str
    chars: int


class CutFile(msgspec.Struct, frozen=True):
    name: str
    kept: int
    of: int


def prompt_parts(system: str, suffix: str = "") -> list[PromptPart]:
    """In order. Headings inside a file are the file's own."""
    return [*_parts(system), *_parts(suffix)]


def _parts(text: str) -> list[PromptPart]:
    parts: list[PromptPart] = []
    title, size, files = "Identity", 0, False
    for line in text.splitlines(keepends=True):
        name = line.rstrip("\n")
        begins = name in _AFTER_FILES or name.startswith("## /") if files else name.startswith(("## ", "# "))
        if begins:
            if size:
                parts.append(PromptPart(title, size))
            title, size = name.lstrip("# "), 0
            files = name == PROJECT_CONTEXT or (files and name not in _AFTER_FILES)
        size += len(line)
    return [*parts, PromptPart(title, size)] if size else parts


def cut_files(system: str) -> list[CutFile]:
    """Files of which the model saw only the beginning and the end."""
    return [CutFile(name, int(head) + int(tail), int(of)) for name, head, tail, of in _CUT.findall(system)]
