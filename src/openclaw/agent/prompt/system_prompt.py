"""The system prompt and the facts of one turn. They are made for every run and never stored in the history.

Providers cache a prompt up to the first byte that differs from the prompt before it. So the system prompt has the same
bytes from turn to turn, and what changes (the time, the model, the channel, the thinking level) is in a block of its
own, the turn facts, which stands behind the newest message.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape, unescape

import msgspec

from openclaw.agent.prompt import sections
from openclaw.agent.prompt.report import shared_report
from openclaw.agent.prompt.sections import PROJECT_CONTEXT, SandboxFacts
from openclaw.agent.prompt.workspace_snapshot import (
    BootstrapFile,
    WorkspaceSnapshot,
    effective_max_chars,
)
from openclaw.agent.skills import SkillsPrompt, only
from openclaw.agent.window.tokens import overhead_tokens
from openclaw.clock import named_zone
from openclaw.config.agents import agent_config, heartbeat_config, model_aliases, primary_model, sandbox_config
from openclaw.config.channels import account_settings, is_configured
from openclaw.config.schema import Config
from openclaw.messages import ToolSpec
from openclaw.models.base import Model
from openclaw.models.thinking import reasons_in_tags
from openclaw.outbound.visible import Framing
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionKind, channel_of, is_subagent
from openclaw.storage.files.workspace import FIRST_RUN_FILE
from openclaw.tools.base import Tool

if TYPE_CHECKING:
    from openclaw.storage.base import MessageBody
    from openclaw.tools.sandbox.boundary import Boundary

DEFAULT_AGENT_NAME = "OpenClaw"
_LOCATION = re.compile(r"(<location>)([^<]*)")
_NO_CHANNEL = ("unknown", "internal")
FACTS_BEGIN, FACTS_END = "<openclaw-facts>", "</openclaw-facts>"
MOST_KEPT = 64


class PromptFacts(msgspec.Struct, kw_only=True):
    """The facts that the system prompt contains. Two runs with equal facts have the same prompt."""

    agent_id: str
    agent_name: str
    workspace: str
    model: Model
    tools: list[Tool]
    files: list[BootstrapFile]
    mode: Literal["full", "minimal"] = "full"
    """``minimal`` is for sub-agents: it has no persona, people or channels."""
    extra: str = ""
    skills: SkillsPrompt = SkillsPrompt()
    aliases: Mapping[str, str] = {}
    owners: Sequence[str] = ()
    citations: bool = False
    heartbeat_prompt: str = ""
    sandbox: SandboxFacts | None = None
    sections: tuple[str, ...] = ()
    """What extensions add, each with its heading."""
    tagged_reasoning: bool = False
    """The model writes its reasoning into the answer and must separate the two by tags."""
    repo_root: str | None = None
    default_model: str | None = None
    user_timezone: str | None = None
    max_file_chars: int = 0
    """The most characters of one workspace file in the prompt. Only the report uses it."""
    sandbox_mode: str = "off"
    """The ``sandbox.mode`` that counts for the session. Only the report uses it."""


def gather_facts(
    *,
    agent_id: str,
    session_key: str,
    body: MessageBody,
    config: Config,
    model: Model,
    tools: list[Tool],
    workspace: Path,
    sandbox: Boundary | None,
    snapshot: WorkspaceSnapshot,
    kind: SessionKind,
) -> PromptFacts:
    """The facts for one run. ``kind`` is the session's kind, as ``kind_of`` names it."""
    defaults, key = config.agents.defaults, session_key
    agent = agent_config(config, agent_id)
    identity = agent.identity if agent else None
    facts = PromptFacts(
        agent_id=agent_id,
        agent_name=(identity.name if identity else None) or (agent.name if agent else None) or DEFAULT_AGENT_NAME,
        workspace=str(workspace),
        model=model,
        tools=tools,
        files=[],
        mode="minimal" if is_subagent(key) else "full",
        extra=body.extra_system_prompt,
        user_timezone=defaults.user_timezone,
        max_file_chars=effective_max_chars(defaults.bootstrap_max_chars, model.context_window),
        sandbox_mode=sandbox_config(config, agent_id).mode,
    )
    if not model.tools:
        return facts  # The prompt of such a model has only a few sentences.
    private = is_private(kind, key)
    facts.files = snapshot.files
    facts.skills = snapshot.skills if body.skills is None else only(snapshot.skills, body.skills)
    facts.aliases = model_aliases(config)
    # In a group everybody could ask the model for the owner's numbers.
    facts.owners = [str(owner) for owner in config.commands.owner_allow_from if str(owner) != "*"] if private else []
    facts.citations = config.memory.citations == "on" or (config.memory.citations == "auto" and private)
    facts.heartbeat_prompt = (heartbeat_config(config, agent_id).prompt or "").strip()
    facts.repo_root = snapshot.repo_root
    facts.default_model = primary_model(config, agent_id)
    facts.tagged_reasoning = reasons_in_tags(model) is not False
    if sandbox is None:
        return facts
    # Every path is named as the session's tools see it in the sandbox.
    plan = sandbox.plan
    facts.sandbox = SandboxFacts(sandbox.workdir, plan.access, plan.docker.network != "none")
    facts.sandbox_mode, facts.workspace, facts.repo_root = plan.mode, sandbox.workdir, None
    facts.files = [msgspec.structs.replace(file, path=sandbox.shown(file.path)) for file in facts.files]
    text = _LOCATION.sub(lambda found: f"{found[1]}{escape(sandbox.shown(unescape(found[2])))}", facts.skills.text)
    facts.skills = msgspec.structs.replace(facts.skills, text=text)
    return facts


def is_private(kind: SessionKind, session_key: str) -> bool:
    """Whether only the owner takes part in the conversation."""
    return kind in ("main", "other") and not is_subagent(session_key)


def _capabilities(config: Config, channel: str) -> list[str]:
    """The ``capabilities`` in the channel's section of the configuration."""
    account = account_settings(config, channel)
    if account is None:
        return []
    named = account.capabilities
    names = [name for name, value in named.items() if value not in (False, "off")] if isinstance(named, dict) else named
    return [stripped for name in names if (stripped := name.strip())]


def turn_facts(
    *,
    session_key: str,
    entry: SessionEntry,
    body: MessageBody,
    config: Config,
    model: Model,
    thinking: str,
    kind: SessionKind,
    source: str,
    now_ms: int,
    children: Sequence[str] = (),
) -> str:
    """The block for ``ModelRequest.turn_facts``. Small models do not cope with it, so they get none.

    The channel is the one that the message came from (``source``), else the session's last one.
    """
    if not model.tools:
        return ""
    from_channel = source in ("webchat", "signal") or is_configured(config, source)
    channel = source if from_channel else channel_of(entry, session_key, kind=kind)
    runtime = [f"model={model.ref}"]
    if channel not in _NO_CHANNEL:
        runtime += [f"channel={channel}", f"capabilities={','.join(_capabilities(config, channel)) or 'none'}"]
    runtime.append(f"thinking={thinking or 'off'}")
    reasoning = body.reasoning or entry.get("reasoningLevel") or "off"
    lines = [
        FACTS_BEGIN,
        "Added by OpenClaw; nobody wrote this in the chat.",
        *_time(config.agents.defaults.user_timezone, config.agents.defaults.time_format, now_ms // 60_000),
        f"Runtime: {' | '.join(runtime)}",
        f"Reasoning: {reasoning} (/reasoning changes it)",
        *children,
        FACTS_END,
    ]
    return "\n".join(lines)


def _time(zone_name: str | None, style: str, minutes: int) -> list[str]:
    moment = datetime.fromtimestamp(minutes * 60, UTC)
    lines = [f"UTC: {moment:%A %Y-%m-%d %H:%M}"]
    if local := local_time(zone_name, style, minutes):
        lines.append(f"Local time: {local}")
    return lines


def local_time(zone_name: str | None, style: str, minutes: int) -> str:
    """``Wednesday 2026-11-18 14:05 (Europe/Madrid)``. Empty if nobody knows the zone."""
    zone = named_zone(zone_name)
    if zone is None:
        return ""
    local = datetime.fromtimestamp(minutes * 60, zone)
    clock = f"{local:%I:%M %p}".lstrip("0") if style == "12" else f"{local:%H:%M}"
    return f"{local:%A %Y-%m-%d} {clock} ({zone_name})"


class SystemPrompt(msgspec.Struct, kw_only=True):
    """The prompt and its tools. Runs share it, so it must not be changed."""

    text: str
    """The main part. It has the same bytes in all sessions of an agent."""
    suffix: str
    """The session's own part: its group, or what the caller of the Gateway asks for."""
    project_context_chars: int = 0
    tool_list_chars: int = 0
    skills_chars: int = 0
    tools: dict[str, Tool] = {}
    """The agent's own tools, by name."""
    specs: list[ToolSpec] = []
    """The agent's own tools, then the caller's."""
    overhead: int = 0
    """The estimated tokens that the prompt and the tools take in every request."""
    framing: Framing = False
    """Whether the model wraps its answer in tags. See ``Framing``."""
    report: dict[str, Any] = {}
    """``PromptReport.shared`` for every run with this prompt."""
    encoded: dict[str, Any] = {}
    """``ModelRequest.prompt_cache`` of the requests with this prompt."""

    @property
    def chars(self) -> int:
        return len(self.text) + len(self.suffix)


def build_system_prompt(facts: PromptFacts, client_tools: Sequence[ToolSpec] = ()) -> SystemPrompt:
    listed = project = skills = suffix = ""
    if not facts.model.tools:
        # Small models do not cope with long instructions.
        text = (
            f"You are {facts.agent_name}, a friendly assistant. "
            "Answer in one or two short sentences, in the language of the question."
        )
    else:
        names = frozenset(tool.spec.name for tool in facts.tools)
        listed, project = sections.tool_list(facts.tools), sections.project_context(facts.files)
        skills = facts.skills.text if facts.mode == "full" and "read" in names else ""
        text = "\n".join(part for part in _sections(facts, names, listed, skills, project) if part)
        if facts.mode == "full":
            # Each group has another one, so it stands behind what all sessions share.
            suffix = sections.extra_context(facts.extra.strip(), subagent=False)
    specs = [*(tool.spec for tool in facts.tools), *client_tools]
    prompt = SystemPrompt(
        text=text,
        suffix=suffix,
        project_context_chars=len(project),
        tool_list_chars=len(listed),
        skills_chars=len(skills),
        tools={tool.spec.name: tool for tool in facts.tools},
        specs=specs,
        overhead=overhead_tokens(text, suffix, specs),
        framing=reasons_in_tags(facts.model),
    )
    prompt.report = shared_report(facts, prompt)
    return prompt


class PromptCache:
    """Keeps the prompts of the last runs. The prompt has the same bytes as long as the facts are equal."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, ...], tuple[PromptFacts, SystemPrompt]] = OrderedDict()

    def of(self, facts: PromptFacts, client_tools: Sequence[ToolSpec] = ()) -> SystemPrompt:
        if client_tools:
            return build_system_prompt(facts, client_tools)
        key = (facts.agent_id, facts.model.ref, facts.mode, facts.extra, str(facts.sandbox), *facts.owners)
        known = self._known.get(key)
        if known is not None and known[0] == facts:
            return known[1]
        prompt = build_system_prompt(facts)
        self._known[key] = (facts, prompt)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return prompt


def _sections(facts: PromptFacts, names: frozenset[str], listed: str, skills: str, project: str) -> list[str]:
    """The sections in their order. Those that do not apply are empty."""
    full = facts.mode == "full"
    first_run = full and any(file.name == FIRST_RUN_FILE and not file.missing for file in facts.files)
    about_agent = [
        sections.skills(skills),
        sections.memory_recall(names, facts.citations),
        sections.self_update(names),
        sections.model_aliases(facts.aliases),
    ]
    about_chat = [sections.REPLY_TAGS, sections.messaging(names)]
    return [
        _identity(facts),
        sections.tooling(listed, names),
        sections.TOOL_CALL_STYLE,
        sections.SAFETY,
        sections.CLI_REFERENCE,
        *(about_agent if full else ()),
        _clock_hint(facts, names),
        sections.workspace(facts.workspace, first_run=first_run),
        sections.documentation(_docs_dir()) if full and not facts.sandbox else "",
        sections.sandbox(facts.sandbox),
        sections.user_identity(facts.owners) if full else "",
        sections.date_and_time(facts.user_timezone, FACTS_BEGIN),
        sections.WORKSPACE_FILES if project else "",
        *(about_chat if full else [sections.extra_context(facts.extra.strip(), subagent=True)]),
        *facts.sections,
        sections.reasoning_format(facts.tagged_reasoning),
        project,
        *([sections.SILENT_REPLIES, sections.heartbeats(facts.heartbeat_prompt)] if full else ()),
        _runtime(facts),
    ]


def _identity(facts: PromptFacts) -> str:
    return f"You are {facts.agent_name}, a personal assistant that runs inside OpenClaw on this person's own machine."


def _clock_hint(facts: PromptFacts, names: frozenset[str]) -> str:
    if not facts.user_timezone or "session_status" not in names:
        return ""
    return "For the time of this moment, the day or the date, call session_status."


_RUNTIME = "## Runtime\nRuntime: "


def _runtime(facts: PromptFacts) -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    parts = [
        f"agent={facts.agent_id}",
        f"host={socket.gethostname()}",
        f"repo={facts.repo_root}" if facts.repo_root else "",
        f"os={platform.system()} {platform.release()} ({platform.machine()})",
        f"python={platform.python_version()}",
        f"default_model={facts.default_model}" if facts.default_model else "",
        f"shell={shell}" if shell else "",
    ]
    return f"{_RUNTIME}{' | '.join(part for part in parts if part)}"


def _docs_dir() -> str:
    """The folder of the documents. Empty if OpenClaw does not run from a checkout that has them."""
    docs = Path(__file__).parents[4] / "docs"
    return str(docs) if (docs / "architecture.md").is_file() else ""


_AFTER_FILES = ("## Silent Replies", "## Heartbeats")
_CUT = re.compile(r"…\(truncated ([^:\n]{1,200}): kept (\d+)\+(\d+) chars of (\d+)\)…")


class PromptPart(msgspec.Struct, frozen=True):
    """One section of a prompt or one workspace file in it."""

    title: str
    chars: int


class CutFile(msgspec.Struct, frozen=True):
    """A workspace file of which the prompt has ``kept`` characters ``of`` all."""

    name: str
    kept: int
    of: int


def prompt_parts(system: str, suffix: str = "") -> list[PromptPart]:
    """The parts of a prompt in their order. Headings inside a workspace file begin no new part."""
    return [*_parts(system), *_parts(suffix)]


def _parts(text: str) -> list[PromptPart]:
    # The last section is found from the end, because a workspace file may well have the same heading.
    text, runtime, last = text.rpartition(f"\n{_RUNTIME}")
    if runtime:
        return [*_parts_before(f"{text}\n"), PromptPart("Runtime", len(runtime) - 1 + len(last))]
    return _parts_before(last)


def _parts_before(text: str) -> list[PromptPart]:
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
    """The workspace files of which the model saw only the beginning and the end."""
    return [CutFile(name, int(head) + int(tail), int(of)) for name, head, tail, of in _CUT.findall(system)]
