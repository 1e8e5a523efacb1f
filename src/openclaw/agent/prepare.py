"""Prepares a run: decides on the model, the tools, the prompt and the time limit, and makes the requests."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.prompt.report import PromptReport, stored_report
from openclaw.agent.prompt.system_prompt import SystemPrompt, gather_facts, is_private, turn_facts
from openclaw.agent.prompt.workspace_snapshot import Audience, WorkspaceSnapshot
from openclaw.agent.runtime import Runtime
from openclaw.agent.sandbox import sandbox_of
from openclaw.agent.spend.budget import budget_of, is_limited
from openclaw.agent.tool_set import ToolAsker, foreign_tools, tools_for
from openclaw.agent.window.history_cleaner import HistoryCleaner, dm_history_limit
from openclaw.agent.window.tokens import text_tokens
from openclaw.agent.window.window import PromptWindow
from openclaw.config.agents import main_key, sandbox_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.extensions.api import PromptAbout
from openclaw.memory.embedders import Pay, unpaid
from openclaw.messages import ImageBlock, Message, TextBlock, ThinkingLevel, ToolCall, UserMessage, user_text
from openclaw.models.base import CLI_API, Model, ModelError, ModelRequest
from openclaw.models.errors import RetrySettings, supported_thinking_levels
from openclaw.models.thinking import clamp, clamp_to_model, level_unless_set, parse_level
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import is_subagent, kind_of
from openclaw.sessions.prompt_prefix import GREETING_MARK, without_wrappers
from openclaw.storage.base import BlobStore, MessageBody
from openclaw.tools.base import Tool, ToolContext, ToolResult
from openclaw.tools.exec.settings import ExecOverrides
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.plan import blocked_text

_RETENTION = ("none", "short", "long")
_OLD_RETENTION = {"5m": "short", "1h": "long"}


class ModelParams(msgspec.Struct, frozen=True):
    """``agents.defaults.models["provider/model"].params`` of one model."""

    temperature: float | None = None
    max_tokens: int | None = None
    cache_retention: str | None = None
    """``none``, ``short`` or ``long``. The old key ``cacheControlTtl`` says ``5m`` or ``1h`` instead."""


NONE = ModelParams()


def params_of(config: Config, model: Model) -> ModelParams:
    """The parameters of a model. Values of the wrong type count as not given."""
    use = config.agents.defaults.models.get(model.ref)
    if use is None or not use.params:
        return NONE
    given = use.params
    temperature: Any = given.get("temperature")
    max_tokens: Any = given.get("maxTokens")
    retention: Any = given.get("cacheRetention") or _OLD_RETENTION.get(str(given.get("cacheControlTtl")))
    return ModelParams(
        temperature=float(temperature) if type(temperature) in (int, float) else None,
        max_tokens=max_tokens if type(max_tokens) is int and max_tokens > 0 else None,
        cache_retention=retention if retention in _RETENTION else None,
    )


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one agent."""

    workspace: Path
    cwd: str
    """The workspace as a string, as transcripts name it."""
    main_key: str
    sandbox_mode: str
    """``off``, or which of the agent's sessions the configuration wants in a sandbox."""
    retry: RetrySettings
    limited: bool
    """Whether the agent has a budget."""


def agent_settings(agent_id: str, runtime: Runtime) -> AgentSettings:
    config = runtime.config.current
    return runtime.derived.of(
        config, ("agent settings", agent_id), lambda: _agent_settings(config, agent_id, str(runtime.state_dir))
    )


def _agent_settings(config: Config, agent_id: str, state_dir: str) -> AgentSettings:
    workspace = workspace_dir(config, state_dir, agent_id)
    return AgentSettings(
        workspace=workspace,
        cwd=str(workspace),
        main_key=main_key(config),
        sandbox_mode=sandbox_config(config, agent_id).mode,
        retry=RetrySettings(
            enabled=config.retry.enabled,
            max_retries=config.retry.max_retries,
            base_delay_ms=config.retry.base_delay_ms,
            max_delay_ms=config.retry.max_delay_ms,
        ),
        limited=is_limited(budget_of(config, agent_id)),
    )


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run with one agent and one model uses."""

    chosen: Model
    """The model as the catalogue has it."""
    model: Model
    """The model with the cache retention of the configuration."""
    params: ModelParams
    agent: AgentSettings
    sandbox: Boundary | None
    """The session's sandbox."""
    tools: list[Tool]
    """Runs share it. Never mutate it."""
    thinking: ThinkingLevel
    """The thinking level of sessions that have none of their own."""


def run_settings_of(
    agent_id: str,
    chosen: Model,
    config: Config,
    runtime: Runtime,
    *,
    sandbox: Boundary | None,
    subagent: bool = False,
    foreign: tuple[Tool, ...] = (),
) -> RunSettings:
    """The settings of runs with this agent and model. They are kept until the configuration changes.

    ``foreign`` are the tools of MCP servers that the session has.
    """

    def make() -> RunSettings:
        params, agent, model = params_of(config, chosen), agent_settings(agent_id, runtime), chosen
        if params.cache_retention is not None:
            compat = {**model.compat, "cacheRetention": params.cache_retention}
            model = msgspec.structs.replace(model, compat=compat)
        return RunSettings(
            chosen=chosen,
            model=model,
            params=params,
            agent=agent,
            sandbox=sandbox,
            tools=tools_for(
                agent_id,
                model,
                agent.workspace,
                config,
                runtime,
                subagent=subagent,
                sandbox=sandbox,
                foreign=foreign,
            ),
            thinking=level_unless_set(model, config.agents.defaults.thinking_default),
        )

    key = ("run settings", agent_id, chosen.provider, chosen.id, chosen.auth_profile, subagent)
    key += (sandbox and sandbox.plan.key, foreign, runtime.has_nodes())
    known = runtime.derived.of(config, key, make)
    # The catalogue can change without the configuration, e.g. when a local server is found.
    return known if known.chosen is chosen or known.chosen == chosen else make()


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
    """Where its tools work: the agent's workspace, or the sandbox's."""
    sandbox: Boundary | None
    """The sandbox that the run's tools work in. ``AgentRun`` refuses a run whose sandbox cannot be had."""
    snapshot: WorkspaceSnapshot
    """The workspace files and skills that the prompt shows."""
    skill_env: Mapping[str, str]
    """Environment variables that the run's commands get in addition to the Gateway's."""
    prompt: SystemPrompt
    turn_facts: str
    """``ModelRequest.turn_facts`` of every request."""
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
        shown = self.window.of(self.cleaner.clean(messages))
        if not self.model.tools:
            shown = plain_words(shown)
        return ModelRequest(
            model=self.model,
            system=self.prompt.text,
            system_suffix=self.prompt.suffix,
            turn_facts=self.turn_facts,
            messages=shown,
            tools=self.prompt.specs,
            thinking=self.thinking,
            session_id=self.session_id,
            workspace=str(self.workspace),
            tool_choice=self.tool_choice,
            max_tokens=self.max_tokens,
            output_room=self.window.output_room,
            branch_cache=self.branch_cache,
            prompt_cache=self.prompt.encoded,
            temperature=self.temperature,
        )


def plain_words(messages: list[Message]) -> list[Message]:
    """The conversation for a small model: what people typed, without stamps and notes that it would only repeat."""
    return [_plain_words(message) if isinstance(message, UserMessage) else message for message in messages]


def _plain_words(message: UserMessage) -> UserMessage:
    text = user_text(message)
    typed = "Hello!" if GREETING_MARK in text else without_wrappers(text)
    pictures = [block for block in message.content if isinstance(block, ImageBlock)]
    return msgspec.structs.replace(message, content=[TextBlock(text=typed), *pictures] if pictures else typed)


async def prepare(
    runtime: Runtime,
    agent_id: str,
    session_key: str,
    session_id: str,
    body: MessageBody = NO_MESSAGE,
    *,
    source: str = "",
    arrived_at: float | None = None,
    chosen: Model | None = None,
) -> Prepared:
    """Decides what one run gives its model. Raises ``ModelError`` if there is no model to ask.

    ``chosen`` is the model to ask. None: the one that the message, the session or the config chooses.
    ``arrived_at`` is the time at which the Gateway got the message, on the event loop's clock. A check of the workspace
    that was made after that time is used again. None: the workspace is checked now.
    """
    config = runtime.config.current
    entry = await runtime.sessions.get(agent_id, session_key) or SessionEntry(sessionId=session_id)
    chosen = chosen or choose_model(entry, config, agent_id, runtime, body.model, body.auth_profile)
    subagent = is_subagent(session_key)
    sandbox = await sandbox_of(runtime, agent_id, session_key, entry)
    if sandbox is not None and chosen.api == CLI_API:
        raise ModelError(
            f"{chosen.ref} is a program, which would run outside this session's sandbox. Choose a model with /model."
        )
    foreign: tuple[Tool, ...] = ()
    if (config.mcp.servers or runtime.extensions.tools) and chosen.takes_tools and body.tool_choice is None:
        asks = ToolAsker(agent_id=agent_id, session_key=session_key, entry=entry, body=body)
        foreign = await foreign_tools(asks, chosen, config, runtime, sandbox=sandbox)
    settings = run_settings_of(agent_id, chosen, config, runtime, subagent=subagent, sandbox=sandbox, foreign=foreign)
    model, params, workspace = settings.model, settings.params, settings.agent.workspace
    thinking = _thinking(body, entry, settings)
    kind = kind_of(session_key, entry, main_key=settings.agent.main_key, scope=config.session.scope)
    audience = Audience(model.context_window, is_private(kind, session_key), subagent)
    snapshot = await runtime.snapshots.of(agent_id, config, workspace, audience, arrived_at)
    facts = gather_facts(
        agent_id=agent_id,
        session_key=session_key,
        body=body,
        config=config,
        settings=settings,
        tools=beside_client_tools(body, settings.tools),
        snapshot=snapshot,
        kind=kind,
    )
    if runtime.extensions.sections and model.tools:
        about = PromptAbout(agent_id=agent_id, session_key=session_key, private=audience.private)
        facts.sections = await runtime.extensions.prompt_sections(about)
    now, max_tokens = runtime.clock.now_ms(), body.max_tokens or params.max_tokens
    # The system prompt and its tools, as ``build_system_prompt`` makes them; kept while the facts stay the same.
    prompt = runtime.prompts.of(facts, body.client_tools if model.takes_tools else [])
    told = turn_facts(
        session_key=session_key,
        entry=entry,
        body=body,
        config=config,
        model=model,
        thinking=thinking,
        kind=kind,
        source=source,
        now_ms=now,
        children=runtime.children(session_key),
    )
    own_report = {
        "source": "run",
        "generatedAt": now,
        "sessionId": session_id,
        "sessionKey": session_key,
        "turnFacts": {"chars": len(told)},
    }
    seen = facts.mode == "full" and source not in UNSEEN_SOURCES
    warnings = runtime.snapshots.new_warnings(facts.files) if seen else []
    return Prepared(
        agent_id=agent_id,
        session_key=session_key,
        session_id=session_id,
        source=source,
        body=body,
        entry=entry,
        model=model,
        thinking=thinking,
        workspace=sandbox.plan.folder if sandbox else workspace,
        sandbox=sandbox,
        snapshot=snapshot,
        skill_env={} if sandbox else snapshot.skill_env,
        prompt=prompt,
        turn_facts=told,
        report=PromptReport(own_report, prompt.report, warnings),
        timeout_s=run_timeout(body.timeout_seconds, config),
        retry=settings.agent.retry,
        window=PromptWindow(
            model,
            prompt.overhead + text_tokens(told),
            runtime.measures.of(session_id, model),
            runtime.clock,
            pruning=config.agents.defaults.context_pruning,
            wanted_output=max_tokens,
        ),
        cleaner=_cleaner(runtime, model, session_key, session_id, now),
        tool_choice=body.tool_choice if model.tools else None,
        max_tokens=max_tokens,
        temperature=params.temperature,
    )


def _thinking(body: MessageBody, entry: SessionEntry, settings: RunSettings) -> ThinkingLevel:
    """The level that the message asks for, else the session's, else the usual one."""
    wanted = body.thinking or entry.get("thinkingLevel")
    level = parse_level(wanted) if wanted else None
    return clamp_to_model(level, settings.model) if level else settings.thinking


def _cleaner(runtime: Runtime, model: Model, session_key: str, session_id: str, now_ms: int) -> HistoryCleaner:
    config = runtime.config.current
    return HistoryCleaner(
        runtime.hygiene,
        model,
        session_id,
        now_ms,
        history_limit=dm_history_limit(config, session_key),
        max_image_side=config.agents.defaults.image_max_dimension_px,
    )


def beside_client_tools(body: MessageBody, tools: list[Tool]) -> list[Tool]:
    """The agent's tools that the model gets in addition to the caller's.

    A tool with the same name as one of the caller's is left out, and so is one that the run must not have. There are
    none at all if the caller forces a choice, because that choice is among the caller's tools.
    """
    if body.tool_choice is not None:
        return []
    if not body.client_tools and not body.without_tools:
        return tools
    taken = {*body.without_tools, *(spec.name for spec in body.client_tools)}
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
    runtime: Runtime,
    prepared: Prepared,
    run_id: str,
    call: ToolCall,
    update: Callable[[ToolResult], None],
    pay: Pay = unpaid,
) -> ToolContext:
    """The context of one tool call. The tool reports its progress to ``update``, and embeds its texts with ``pay``."""
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
        pay=pay,
        notify=notify,
        wake=partial(runtime.wake, run_id) if runtime.wake is not None else notify,
        exec_overrides=overrides,
        sandbox=prepared.sandbox,
        why_missing=partial(_why_missing, prepared),
    )


def _why_missing(prepared: Prepared, name: str) -> str | None:
    if prepared.sandbox is None:
        return None
    plan = prepared.sandbox.plan
    return blocked_text(name, plan.filters, agent_id=plan.agent_id, mode=plan.mode, access=plan.access)


async def sandbox_refusal(prepared: Prepared) -> str | None:
    """Makes the run's sandbox ready. Returns the sentence that refuses the run if it cannot be had."""
    if prepared.sandbox is None:
        return None
    skills = prepared.snapshot.skills
    folders = [str(Path(skill.path).parent) for skill in skills.skills]
    return await prepared.sandbox.refusal(folders, skills)


async def session_report(agent_id: str, session_key: str, runtime: Runtime) -> dict[str, Any]:
    """The report of the last run, else of a run that would start now. Raises ``ModelError`` if there is no model."""
    entry = await runtime.sessions.get(agent_id, session_key)
    report = await stored_report(entry, runtime.blobs)
    if report is not None:
        return report
    prepared = await prepare(runtime, agent_id, session_key, entry["sessionId"] if entry else "")
    return {**prepared.report.whole(), "source": "estimate"}
