"""Everything a run needs to know before it calls a model: which model, which tools, what prompt, how long."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.prompt.facts import Means, occasion_of
from openclaw.agent.prompt.report import PromptReport, prompt_report, stored_report
from openclaw.agent.prompt.system_prompt import SystemPrompt
from openclaw.agent.run_settings import RunSettings, run_settings_of
from openclaw.agent.runtime import Runtime, Turn
from openclaw.agent.window.hygiene import HistoryCleaner, dm_history_limit
from openclaw.agent.window.window import PromptWindow
from openclaw.config.schema import Config
from openclaw.messages import Message, ThinkingLevel, ToolSpec
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.errors import supported_thinking_levels
from openclaw.models.retry import RetrySettings
from openclaw.models.thinking import clamp, clamp_to_model, parse_level
from openclaw.outbound.reasoning import Framing
from openclaw.sessions.entry import SessionEntry
from openclaw.tools.base import Tool
from openclaw.tools.exec.settings import ExecOverrides


class Prepared(msgspec.Struct, kw_only=True):
    entry: SessionEntry
    model: Model
    context_window: int
    thinking: ThinkingLevel
    workspace: Path
    tools: dict[str, Tool]
    tool_specs: list[ToolSpec]
    skill_env: Mapping[str, str]
    """What the commands of the run find in their environment besides the Gateway's."""
    prompt: SystemPrompt
    framing: Framing
    report: PromptReport
    """Sizes of what the model is given."""
    timeout_s: float | None
    retry: RetrySettings
    session_id: str
    view: PromptWindow
    """What of the conversation the model is shown; pruning and fitting happen there."""
    cleaner: HistoryCleaner
    """Keeps what is shown acceptable to every provider."""
    tool_choice: Any = None
    max_tokens: int | None = None
    memo: dict[Any, Any] = {}
    temperature: float | None = None
    refusals: int = 0
    """How often a provider refused this run's requests as malformed, levels of thinking not counted."""
    level_refused: bool = False

    def remember(self, memo: dict[Any, Any]) -> None:
        """The memo of the branch that is about to be shown: only what is new in it needs work."""
        if memo is not self.memo:
            self.view.remember(memo)
            self.cleaner.remember(memo)
            self.memo = memo

    def simplify(self, error: ModelError, now_ms: int) -> bool:
        """After a refusal. True: the next request is another, with a level the provider knows, or in plain words.

        Once: what is refused in its plainest form as well is not at fault.
        """
        named = supported_thinking_levels(str(error))
        if named and not self.level_refused and (level := clamp(self.thinking, named)) != self.thinking:
            self.level_refused, self.thinking = True, level
            return True
        self.refusals += 1
        plainer = self.cleaner.refused(now_ms)
        if not plainer:
            self.thinking = "off"
        return self.refusals == 1

    def request(self, messages: list[Message]) -> ModelRequest:
        return ModelRequest(
            model=self.model,
            system=self.prompt.text,
            system_suffix=self.prompt.suffix,
            messages=self.view.of(self.cleaner.clean(messages)),
            tools=self.tool_specs,
            thinking=self.thinking,
            session_id=self.session_id,
            tool_choice=self.tool_choice,
            max_tokens=self.max_tokens,
            memo=self.memo,
            temperature=self.temperature,
        )


async def prepare(turn: Turn, runtime: Runtime) -> Prepared:
    config = runtime.config.current
    entry = await runtime.sessions.get(turn.agent_id, turn.session_key) or SessionEntry(sessionId=turn.session_id)
    chosen = choose_model(entry, config, turn.agent_id, runtime, turn.model, turn.auth_profile)
    outfit = run_settings_of(turn.agent_id, chosen, config, runtime)
    model, params, terms = outfit.model, outfit.params, outfit.terms
    thinking = choose_thinking(turn, entry, outfit)
    workspace, tools = terms.workspace, beside_client_tools(turn, outfit.tools)
    occasion = occasion_of(turn, entry, config, terms, model=model, thinking=thinking)
    ground = await runtime.snapshots.of(
        turn.agent_id, config, workspace, occasion.view(model.context_window), turn.came
    )
    means = Means(config, ground, model, tools, workspace)
    now = runtime.clock.now_ms()
    briefing = runtime.prompts.of(occasion, means, now, turn.client_tools if model.tools else [])
    view = PromptWindow(
        model,
        briefing.overhead,
        outfit.scale,
        runtime.clock,
        pruning=config.agents.defaults.context_pruning,
        wanted_output=turn.max_tokens or params.max_tokens,
    )
    return Prepared(
        entry=entry,
        model=model,
        context_window=model.context_window,
        thinking=thinking,
        workspace=workspace,
        tools=briefing.tools,
        tool_specs=briefing.specs,
        skill_env=briefing.facts.skill_env,
        prompt=briefing.prompt,
        framing=briefing.framing,
        report=prompt_report(turn, briefing.facts, briefing.report, now),
        timeout_s=run_timeout(turn, config),
        retry=terms.retry,
        session_id=turn.session_id,
        view=view,
        cleaner=HistoryCleaner(
            runtime.hygiene,
            model,
            turn.session_id,
            now,
            history_limit=dm_history_limit(config.channels, turn.session_key),
            max_image_side=config.agents.defaults.image_max_dimension_px,
        ),
        tool_choice=turn.tool_choice if model.tools else None,
        max_tokens=turn.max_tokens or params.max_tokens,
        temperature=params.temperature,
    )


def beside_client_tools(turn: Turn, tools: list[Tool]) -> list[Tool]:
    """Our tools that stay on offer: of two with one name the caller's counts; a forced choice is among the caller's."""
    if turn.tool_choice is not None:
        return []
    if not turn.client_tools:
        return tools
    taken = {spec.name for spec in turn.client_tools}
    return [tool for tool in tools if tool.spec.name not in taken]


def choose_model(
    entry: SessionEntry,
    config: Config,
    agent_id: str,
    runtime: Runtime,
    wish: str | None = None,
    profile: str | None = None,
) -> Model:
    """The message's own wish, then the session's choice, then the agent's default; the credential likewise."""
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


def choose_thinking(turn: Turn, entry: SessionEntry, outfit: RunSettings) -> ThinkingLevel:
    """The message's own wish, then the session's, then the configuration's; never more than the model can do."""
    wanted = turn.thinking or entry.get("thinkingLevel")
    level = parse_level(wanted) if wanted else None
    return clamp_to_model(level, outfit.model) if level else outfit.thinking


def run_timeout(turn: Turn, config: Config) -> float | None:
    """Seconds, or None for no limit: 0 asks for none, a negative value for the default."""
    if turn.timeout_s == 0:
        return None
    if turn.timeout_s is not None and turn.timeout_s > 0:
        return min(turn.timeout_s, 2_147_000)
    return float(config.agents.defaults.timeout_seconds)


def exec_overrides(body: Mapping[str, Any], entry: SessionEntry | None, elevated_default: str) -> ExecOverrides | None:
    """The message's own words first, then the session's. None, as mostly: nobody said anything."""
    said: dict[str, str] = body.get("exec") or {}
    stored: Mapping[str, Any] = entry or {}
    elevated = body.get("elevated") or stored.get("elevatedLevel")
    if elevated is None and elevated_default != "on":
        # "on" is everyone's default; where there is no sandbox to leave it changes nothing.
        elevated = elevated_default
    wish: dict[str, Any] = {
        "host": said.get("host") or stored.get("execHost"),
        "security": said.get("security") or stored.get("execSecurity"),
        "ask": said.get("ask") or stored.get("execAsk"),
        "node": said.get("node") or stored.get("execNode"),
        "elevated": elevated,
    }
    allowed = bool(body.get("elevatedAllowed"))
    if not allowed and not any(wish.values()):
        return None
    return ExecOverrides(**wish, elevated_allowed=allowed)


async def session_report(agent_id: str, session_key: str, runtime: Runtime) -> dict[str, Any]:
    """Of the last run if there was one, else what a run would be given now. Raises ``ModelError`` without a model."""
    entry = await runtime.sessions.get(agent_id, session_key)
    report = await stored_report(entry, runtime.blobs)
    if report is not None:
        return report
    session_id = entry["sessionId"] if entry else ""
    turn = Turn(ledger_id=0, run_id="", agent_id=agent_id, session_key=session_key, session_id=session_id, prompt="")
    return {**(await prepare(turn, runtime)).report.whole(), "source": "estimate"}
