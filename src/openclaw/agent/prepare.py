"""Prepares a run: decides on the model, the tools, the prompt and the time limit, and makes the requests."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.prompt.facts import gather_facts, is_private
from openclaw.agent.prompt.report import PromptReport, stored_report
from openclaw.agent.prompt.system_prompt import SystemPrompt
from openclaw.agent.prompt.workspace_snapshot import Audience
from openclaw.agent.run_settings import run_settings_of
from openclaw.agent.runtime import Runtime
from openclaw.agent.window.hygiene import HistoryCleaner, dm_history_limit
from openclaw.agent.window.window import PromptWindow
from openclaw.config.schema import Config
from openclaw.messages import ImageBlock, Message, ThinkingLevel, ToolCall
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.errors import supported_thinking_levels
from openclaw.models.retry import RetrySettings
from openclaw.models.thinking import clamp, clamp_to_model, parse_level
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import is_subagent, kind_of
from openclaw.storage.base import BlobStore, MessageBody
from openclaw.tools.base import Tool, ToolContext, ToolResult
from openclaw.tools.exec.settings import ExecOverrides

NO_MESSAGE = MessageBody()
"""The body for work that answers no message, e.g. a compaction."""


UNSEEN_SOURCES = ("", "cron", "heartbeat", "hook")
"""Sources of runs that nobody watches. A warning in such a run would be lost."""


class Prepared(msgspec.Struct, kw_only=True):
    """Everything one run knows before its first model call, and the state of its requests."""

    agent_id: str
    session_key: str
    session_id: str
    source: str
    """Where the message came from: ``webchat``, ``agent``, ``cron``, ``heartbeat``, a channel id."""
    body: MessageBody
    entry: SessionEntry
    """The session's entry at the beginning of the run."""
    model: Model
    thinking: ThinkingLevel
    workspace: Path
    skill_env: Mapping[str, str]
    """Environment variables that the run's commands get in addition to the Gateway's."""
    prompt: SystemPrompt
    report: PromptReport
    """The sizes of the prompt's parts."""
    timeout_s: float | None
    """None: the run has no time limit."""
    retry: RetrySettings
    window: PromptWindow
    """Prunes the conversation and fits it to the model's window."""
    cleaner: HistoryCleaner
    """Keeps the conversation acceptable to every provider."""
    tool_choice: Any = None
    max_tokens: int | None = None
    """The limit of each answer."""
    temperature: float | None = None
    branch_cache: dict[Any, Any] = {}
    """``Context.branch_cache`` of the branch that is sent."""
    refusals: int = 0
    """How often a provider refused this run's requests as malformed. Refused thinking levels do not count."""
    level_refused: bool = False
    """A provider refused the thinking level, and the run took another one."""

    @property
    def with_reasoning(self) -> bool:
        """Whether the answer is delivered with the model's reasoning."""
        return (self.body.reasoning or self.entry.get("reasoningLevel")) == "on"

    def use_cache(self, branch_cache: dict[Any, Any]) -> None:
        """Uses what earlier runs worked out about the branch that is sent next. Only its new messages need work."""
        if branch_cache is not self.branch_cache:
            self.window.use_cache(branch_cache)
            self.cleaner.use_cache(branch_cache)
            self.branch_cache = branch_cache

    def change_after_refusal(self, error: ModelError, now_ms: int) -> bool:
        """Changes the next request after a provider refused one as malformed. True: it is worth sending.

        The next request has a thinking level that the provider knows, or the plain form of the conversation. This
        works once: a request that is refused in its plain form too is not sent again.
        """
        named = supported_thinking_levels(str(error))
        if named and not self.level_refused and (level := clamp(self.thinking, named)) != self.thinking:
            self.level_refused, self.thinking = True, level
            return True
        self.refusals += 1
        if not self.cleaner.refused(now_ms):
            self.thinking = "off"
        return self.refusals == 1

    def request(self, messages: list[Message]) -> ModelRequest:
        return ModelRequest(
            model=self.model,
            system=self.prompt.text,
            system_suffix=self.prompt.suffix,
            messages=self.window.of(self.cleaner.clean(messages)),
            tools=self.prompt.specs,
            thinking=self.thinking,
            session_id=self.session_id,
            tool_choice=self.tool_choice,
            max_tokens=self.max_tokens,
            branch_cache=self.branch_cache,
            temperature=self.temperature,
        )


async def prepare(
    runtime: Runtime,
    agent_id: str,
    session_key: str,
    session_id: str,
    body: MessageBody = NO_MESSAGE,
    *,
    source: str = "",
    arrived_at: float | None = None,
) -> Prepared:
    """Decides what one run gives its model. Raises ``ModelError`` if there is no model to ask.

    ``arrived_at`` is the time at which the Gateway got the message, on the event loop's clock. A check of the workspace
    that was made after that time is used again. None: the workspace is checked now.
    """
    config = runtime.config.current
    entry = await runtime.sessions.get(agent_id, session_key) or SessionEntry(sessionId=session_id)
    chosen = choose_model(entry, config, agent_id, runtime, body.model, body.auth_profile)
    settings = run_settings_of(agent_id, chosen, config, runtime)
    model, params, workspace = settings.model, settings.params, settings.agent.workspace
    wanted = body.thinking or entry.get("thinkingLevel")
    level = parse_level(wanted) if wanted else None
    thinking = clamp_to_model(level, model) if level else settings.thinking

    kind = kind_of(session_key, entry, main_key=settings.agent.main_key, scope=config.session.scope)
    audience = Audience(model.context_window, is_private(kind, session_key), is_subagent(session_key))
    snapshot = await runtime.snapshots.of(agent_id, config, workspace, audience, arrived_at)
    facts = gather_facts(
        agent_id=agent_id,
        session_key=session_key,
        entry=entry,
        body=body,
        config=config,
        settings=settings,
        thinking=thinking,
        tools=beside_client_tools(body, settings.tools),
        snapshot=snapshot,
        kind=kind,
    )
    now, max_tokens = runtime.clock.now_ms(), body.max_tokens or params.max_tokens
    prompt = runtime.prompts.of(facts, now, body.client_tools if model.tools else [])
    own_report = {"source": "run", "generatedAt": now, "sessionId": session_id, "sessionKey": session_key}
    seen = facts.mode == "full" and source not in UNSEEN_SOURCES
    warnings = runtime.snapshots.new_warnings(facts.files) if seen else []
    window = PromptWindow(
        model,
        prompt.overhead,
        settings.scale,
        runtime.clock,
        pruning=config.agents.defaults.context_pruning,
        wanted_output=max_tokens,
    )
    cleaner = HistoryCleaner(
        runtime.hygiene,
        model,
        session_id,
        now,
        history_limit=dm_history_limit(config.channels, session_key),
        max_image_side=config.agents.defaults.image_max_dimension_px,
    )
    return Prepared(
        agent_id=agent_id,
        session_key=session_key,
        session_id=session_id,
        source=source,
        body=body,
        entry=entry,
        model=model,
        thinking=thinking,
        workspace=workspace,
        skill_env=snapshot.skill_env,
        prompt=prompt,
        report=PromptReport(own_report, prompt.report, warnings),
        timeout_s=run_timeout(body.timeout_seconds, config),
        retry=settings.agent.retry,
        window=window,
        cleaner=cleaner,
        tool_choice=body.tool_choice if model.tools else None,
        max_tokens=max_tokens,
        temperature=params.temperature,
    )


def beside_client_tools(body: MessageBody, tools: list[Tool]) -> list[Tool]:
    """The agent's tools that the model gets in addition to the caller's.

    A tool with the same name as one of the caller's is left out. There are none at all if the caller forces a choice,
    because that choice is among the caller's tools.
    """
    if body.tool_choice is not None:
        return []
    if not body.client_tools:
        return tools
    taken = {spec.name for spec in body.client_tools}
    return [tool for tool in tools if tool.spec.name not in taken]


async def load_images(body: MessageBody, blobs: BlobStore) -> list[ImageBlock]:
    """Loads the images that came with a message. Raises ``FileNotFoundError`` if one is gone."""
    images: list[ImageBlock] = []
    for image in body.images:
        data = await blobs.get(image.blob)
        if data is None:
            raise FileNotFoundError(f"an attached image is gone from the blob store ({image.blob[:12]})")
        images.append(ImageBlock(data=base64.b64encode(data).decode(), mime_type=image.mime_type))
    return images


def choose_model(
    entry: SessionEntry,
    config: Config,
    agent_id: str,
    runtime: Runtime,
    wish: str | None = None,
    profile: str | None = None,
) -> Model:
    """The model that the message asks for, else the session's choice, else the agent's default.

    ``wish`` and ``profile`` are the message's. The credential is chosen in the same order.
    """
    override = entry.get("modelOverride")
    if wish:
        model = runtime.catalogue().resolve(wish)
    elif override:
        provider = entry.get("providerOverride")
        model = runtime.catalogue().resolve(f"{provider}/{override}" if provider else override)
    else:
        model = runtime.catalogue().default_for(config, agent_id)
    profile = profile or entry.get("authProfileOverride")
    return msgspec.structs.replace(model, auth_profile=profile) if profile else model


def run_timeout(wanted: float | None, config: Config) -> float | None:
    """The time limit in seconds, or None for no limit. 0 asks for no limit, a negative value for the default."""
    if wanted == 0:
        return None
    if wanted is not None and wanted > 0:
        return min(wanted, 2_147_000)
    return float(config.agents.defaults.timeout_seconds)


def exec_overrides(body: MessageBody, entry: SessionEntry | None, elevated_default: str) -> ExecOverrides | None:
    """How commands are executed: as the message says, else as the session says. None: neither says anything."""
    stored: Mapping[str, Any] = entry or {}
    elevated = body.elevated or stored.get("elevatedLevel")
    if elevated is None and elevated_default != "on":
        # "on" is the usual default. It changes nothing where there is no sandbox.
        elevated = elevated_default
    wanted: dict[str, Any] = {
        "host": body.exec.get("host") or stored.get("execHost"),
        "security": body.exec.get("security") or stored.get("execSecurity"),
        "ask": body.exec.get("ask") or stored.get("execAsk"),
        "node": body.exec.get("node") or stored.get("execNode"),
        "elevated": elevated,
    }
    if not body.elevated_allowed and not any(wanted.values()):
        return None
    return ExecOverrides(**wanted, elevated_allowed=body.elevated_allowed)


def tool_context(
    runtime: Runtime, prepared: Prepared, run_id: str, call: ToolCall, update: Callable[[ToolResult], None]
) -> ToolContext:
    """The context of one tool call. The tool reports its progress to ``update``."""
    key = prepared.session_key

    def notify(text: str) -> None:
        runtime.notes.add(key, text)

    async def overrides() -> ExecOverrides | None:
        entry = await runtime.sessions.get(prepared.agent_id, key)
        return exec_overrides(prepared.body, entry, runtime.config.current.agents.defaults.elevated_default)

    return ToolContext(
        agent_id=prepared.agent_id,
        session_key=key,
        workspace=prepared.workspace,
        run_id=run_id,
        call_id=call.id,
        model_sees_images="image" in prepared.model.input,
        env=prepared.skill_env,
        update=update,
        notify=notify,
        wake=partial(runtime.wake, run_id) if runtime.wake is not None else notify,
        exec_overrides=overrides,
    )


async def session_report(agent_id: str, session_key: str, runtime: Runtime) -> dict[str, Any]:
    """The report of the last run, else of a run that would start now. Raises ``ModelError`` if there is no model."""
    entry = await runtime.sessions.get(agent_id, session_key)
    report = await stored_report(entry, runtime.blobs)
    if report is not None:
        return report
    prepared = await prepare(runtime, agent_id, session_key, entry["sessionId"] if entry else "")
    return {**prepared.report.whole(), "source": "estimate"}
