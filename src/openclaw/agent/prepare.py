"""Prepares a run: decides on the model, the tools, the prompt and the time limit, and makes the requests.

``prepare`` makes a ``Prepared``, which the run keeps until its end or until another model goes on.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.caller import NO_MESSAGE, caller_of
from openclaw.agent.owner_files import owner_files
from openclaw.agent.prompt.report import PromptReport, stored_report
from openclaw.agent.prompt.system_prompt import PromptFacts, SystemPrompt, gather_facts, turn_facts
from openclaw.agent.prompt.workspace_snapshot import Audience, WorkspaceSnapshot
from openclaw.agent.runtime import Runtime
from openclaw.agent.skills import only, variables_of
from openclaw.agent.tool_set import sandbox_of, tools_for
from openclaw.agent.window.history_cleaner import HistoryCleaner, dm_history_limit, max_result_chars
from openclaw.agent.window.tokens import text_tokens
from openclaw.agent.window.window import PromptWindow
from openclaw.config.agents import main_key, workspace_dir
from openclaw.config.schema import Config
from openclaw.extensions.api import PromptAbout
from openclaw.memory.embedders import Pay, unpaid
from openclaw.messages import ImageBlock, Message, TextBlock, ThinkingLevel, ToolCall, UserMessage, user_text
from openclaw.models.base import CLI_API, Model, ModelError, ModelRequest
from openclaw.models.catalogue import Catalogue
from openclaw.models.errors import supported_thinking_levels
from openclaw.models.thinking import clamp, clamp_to_model, level_unless_set, parse_level
from openclaw.path_opener import PathGuard
from openclaw.rights import Caller
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, is_subagent, kind_of
from openclaw.sessions.prompt_prefix import GREETING_MARK, without_wrappers
from openclaw.storage.blobs import BlobStore
from openclaw.storage.message_ledger import MessageBody
from openclaw.tools.base import LONGEST_RESULT, Tool, ToolContext, ToolResult
from openclaw.tools.exec.settings import ExecOverrides
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.launch import blocked_text
from openclaw.worker_thread import with_many

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
    caller: Caller
    """Whose run it is. It decides what the prompt shows and what the tools reach."""
    owner_files: PathGuard | None
    """Refuses the files that are the owner's. None if the caller may open them."""
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
    """The system prompt and the tools. It is the same in every request of the run."""
    turn_facts: str
    """The time, the channel and the levels of this turn. Each request ends with them; the history never holds them."""
    report: PromptReport
    """The sizes of the prompt's parts."""
    timeout_s: float | None
    """None: the run has no time limit."""
    window: PromptWindow
    """Leaves out old tool output and shortens what does not fit the model's window. The transcript is not changed."""
    cleaner: HistoryCleaner
    """Makes the conversation acceptable to every provider: fitted pictures, no failed answers, no forged marks."""
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

    async def request(self, messages: list[Message]) -> ModelRequest:
        """Makes the next request: the prompt, and the messages cleaned first and then fitted to the window.

        Only the end of a long conversation is worked on, and if that has many messages, in a thread.
        """
        recent = self.window.recent(messages)
        return await with_many(len(recent), lambda: self._request(recent))

    def _request(self, recent: list[Message]) -> ModelRequest:
        shown = self.window.of(self.cleaner.clean(recent))
        if not self.model.tools:
            shown = [_plain_words(message) for message in shown]
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


def _plain_words(message: Message) -> Message:
    """The message for a small model: what people typed, without stamps and notes that it would only repeat."""
    if not isinstance(message, UserMessage):
        return message
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
    chosen: Model | None = None,
) -> Prepared:
    """Decides what one run gives its model. Raises ``ModelError`` if there is no model to ask.

    ``chosen`` is the model to ask. None: the one that the message, the session or the config chooses.
    """
    config = runtime.config.current
    entry = await runtime.stores.sessions.get(agent_id, session_key) or SessionEntry(sessionId=session_id)
    chosen = chosen or choose_model(runtime, agent_id, entry, body)
    sandbox = await sandbox_of(runtime, agent_id, session_key, entry)
    if sandbox is not None and chosen.api == CLI_API:
        raise ModelError(
            f"{chosen.ref} is a program, which would run outside this session's sandbox. Choose a model with /model."
        )
    params = params_of(config, chosen)
    model, max_tokens = params.applied_to(chosen), body.max_tokens or params.max_tokens
    thinking = thinking_of(body, entry, model, config)
    # The system prompt has the same bytes as long as its facts are the same. It is then taken from the cache.
    kind = kind_of(session_key, entry, main_key=main_key(config), scope=config.session.scope)
    session = SessionRef(agent_id, session_key)
    caller = await caller_of(runtime, session, entry, body, source)
    # Only a run has a source. A report of a run that could start now makes no session the first one.
    is_first = partial(runtime.prompting.snapshots.first_sessions.is_first, session_id=session_id, starts=bool(source))
    facts, snapshot = await _prompt_facts(runtime, session, caller, body, model, sandbox, is_first)
    prompt = runtime.prompting.cache.of(facts, body.client_tools if model.takes_tools else [])
    # What changes from turn to turn, such as the time, stands behind the newest message and not in the prompt.
    now = runtime.clock.now_ms()
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
    own_report = {"source": "run", "generatedAt": now, "sessionId": session_id, "sessionKey": session_key}
    seen = facts.mode == "full" and source not in UNSEEN_SOURCES
    warnings = runtime.prompting.snapshots.new_warnings(facts.files) if seen else []
    return Prepared(
        agent_id=agent_id,
        session_key=session_key,
        session_id=session_id,
        source=source,
        body=body,
        entry=entry,
        caller=caller,
        owner_files=owner_files(runtime, agent_id, caller),
        model=model,
        thinking=thinking,
        workspace=sandbox.plan.folder if sandbox else workspace_dir(config, runtime.state_dir, agent_id),
        sandbox=sandbox,
        snapshot=snapshot,
        skill_env={} if sandbox else _skill_env(snapshot, body, config),
        prompt=prompt,
        turn_facts=told,
        report=PromptReport(own_report | {"turnFacts": {"chars": len(told)}}, prompt.report, warnings),
        timeout_s=run_timeout(body.timeout_seconds, config),
        window=PromptWindow(
            model,
            prompt.overhead + text_tokens(told),
            runtime.models.measures.of(session_id, model),
            runtime.clock,
            pruning=config.agents.defaults.context_pruning,
            wanted_output=max_tokens,
        ),
        cleaner=HistoryCleaner(
            runtime.models.hygiene,
            model,
            session_id,
            now,
            history_limit=dm_history_limit(config, session_key),
            max_image_side=config.agents.defaults.image_max_dimension_px,
        ),
        tool_choice=body.tool_choice if model.tools else None,
        max_tokens=max_tokens,
        temperature=params.temperature,
    )


async def _prompt_facts(
    runtime: Runtime,
    session: SessionRef,
    caller: Caller,
    body: MessageBody,
    model: Model,
    sandbox: Boundary | None,
    is_first_session: Callable[[Path], Awaitable[bool]],
) -> tuple[PromptFacts, WorkspaceSnapshot]:
    """Gathers what the system prompt is made of: tools, workspace files, skills, settings and what extensions add.

    Also returns the workspace files and skills themselves. They are read from disk only when they have changed.
    """
    config, private = runtime.config.current, caller.may("memory in prompt")
    workspace = workspace_dir(config, runtime.state_dir, session.agent_id)
    tools = await tools_for(runtime, session, model, caller=caller, sandbox=sandbox, body=body)
    audience = Audience(model.context_window, private, is_subagent(session.key))
    snapshot = await runtime.prompting.snapshots.of(session.agent_id, config, workspace, audience)
    facts = gather_facts(
        agent_id=session.agent_id,
        session_key=session.key,
        body=body,
        config=config,
        model=model,
        tools=beside_client_tools(body, tools),
        workspace=workspace,
        sandbox=sandbox,
        snapshot=snapshot,
        private=private,
        first_session=private and await is_first_session(workspace),
    )
    if runtime.extensions.sections and model.tools:
        about = PromptAbout(agent_id=session.agent_id, session_key=session.key, private=private)
        facts.sections = await runtime.extensions.prompt_sections(about)
    return facts, snapshot


def _skill_env(snapshot: WorkspaceSnapshot, body: MessageBody, config: Config) -> Mapping[str, str]:
    """The variables of the skills that the run is shown. A message that names its skills gets only theirs."""
    if not snapshot.skill_env or body.skills is None:
        return snapshot.skill_env
    return variables_of(only(snapshot.skills, body.skills), config, snapshot.skill_env)


def thinking_of(body: MessageBody, entry: SessionEntry, model: Model, config: Config) -> ThinkingLevel:
    """The level that the message asks for, else the session's, else the usual one; as far as the model has it."""
    wanted = body.thinking or entry.get("thinkingLevel")
    level = parse_level(wanted) if wanted else None
    return clamp_to_model(level, model) if level else level_unless_set(model, config.agents.defaults.thinking_default)


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


def choose_model(runtime: Runtime, agent_id: str, entry: SessionEntry, body: MessageBody = NO_MESSAGE) -> Model:
    """The model that the message asks for, else the session's choice, else the agent's default.

    The credential is chosen in the same order.
    """
    catalogue = runtime.models.catalogue()
    if body.model:
        model = catalogue.resolve(body.model)
    else:
        model = current_model(entry, runtime.config.current, catalogue, agent_id)
    profile = body.auth_profile or entry.get("authProfileOverride")
    return msgspec.structs.replace(model, auth_profile=profile) if profile else model


def current_model(entry: Mapping[str, Any] | None, config: Config, catalogue: Catalogue, agent_id: str) -> Model:
    """The session's choice, else the agent's default. Raises ``UnknownModel``."""
    override = (entry or {}).get("modelOverride")
    if override:
        provider = (entry or {}).get("providerOverride")
        return catalogue.resolve(f"{provider}/{override}" if provider else str(override))
    return catalogue.default_for(config, agent_id)


class ModelParams(msgspec.Struct, frozen=True):
    """``agents.defaults.models["provider/model"].params`` of one model."""

    temperature: float | None = None
    max_tokens: int | None = None
    cache_retention: str | None = None
    """``none``, ``short`` or ``long``. The old key ``cacheControlTtl`` says ``5m`` or ``1h`` instead."""

    def applied_to(self, model: Model) -> Model:
        """The model with the retention, which its provider reads from ``compat``."""
        if self.cache_retention is None:
            return model
        return msgspec.structs.replace(model, compat={**model.compat, "cacheRetention": self.cache_retention})


def params_of(config: Config, model: Model) -> ModelParams:
    """The parameters of a model. Values of the wrong type count as not given."""
    use = config.agents.defaults.models.get(model.ref)
    given = use.params if use is not None else {}
    temperature: Any = given.get("temperature")
    max_tokens: Any = given.get("maxTokens")
    old = {"5m": "short", "1h": "long"}.get(str(given.get("cacheControlTtl")))
    retention: Any = given.get("cacheRetention") or old
    return ModelParams(
        temperature=float(temperature) if type(temperature) in (int, float) else None,
        max_tokens=max_tokens if type(max_tokens) is int and max_tokens > 0 else None,
        cache_retention=retention if retention in ("none", "short", "long") else None,
    )


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
        entry = await runtime.stores.sessions.get(prepared.agent_id, key)
        return exec_overrides(prepared.body, entry, runtime.config.current.agents.defaults.elevated_default)

    def why_missing(name: str) -> str | None:
        if prepared.sandbox is None:
            return None
        plan = prepared.sandbox.plan
        return blocked_text(name, plan.filters, agent_id=plan.agent_id, mode=plan.mode, access=plan.access)

    return ToolContext(
        agent_id=prepared.agent_id,
        session_key=key,
        workspace=prepared.workspace,
        run_id=run_id,
        call_id=call.id,
        model_sees_images="image" in prepared.model.input,
        # A crowded window may cut results that are shorter than its limit.
        result_chars=min(max_result_chars(prepared.model.context_window) // 2, LONGEST_RESULT),
        caller=prepared.caller,
        owner_files=prepared.owner_files,
        env=prepared.skill_env,
        update=update,
        pay=pay,
        notify=notify,
        wake=partial(runtime.wake, run_id) if runtime.wake is not None else notify,
        exec_overrides=overrides,
        sandbox=prepared.sandbox,
        why_missing=why_missing,
    )


async def session_report(agent_id: str, session_key: str, runtime: Runtime) -> dict[str, Any]:
    """The report of the last run, else of a run that would start now. Raises ``ModelError`` if there is no model."""
    entry = await runtime.stores.sessions.get(agent_id, session_key)
    report = await stored_report(entry, runtime.stores.blobs)
    if report is not None:
        return report
    prepared = await prepare(runtime, agent_id, session_key, entry["sessionId"] if entry else "")
    return {**prepared.report.whole(), "source": "estimate"}
