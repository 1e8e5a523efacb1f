"""Everything a run needs to know before it calls a model: which model, which tools, what prompt, how long."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.prompt.facts import gather_facts, is_private
from openclaw.agent.prompt.report import PromptReport, prompt_report, stored_report
from openclaw.agent.prompt.system_prompt import SystemPrompt
from openclaw.agent.prompt.workspace_snapshot import Audience
from openclaw.agent.run_settings import run_settings_of
from openclaw.agent.runtime import Runtime
from openclaw.agent.window.hygiene import HistoryCleaner, dm_history_limit
from openclaw.agent.window.window import PromptWindow
from openclaw.config.schema import Config
from openclaw.messages import ImageBlock, Message, ThinkingLevel
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.errors import supported_thinking_levels
from openclaw.models.retry import RetrySettings
from openclaw.models.thinking import clamp, clamp_to_model, parse_level
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import is_subagent, kind_of
from openclaw.storage.base import BlobStore, MessageBody
from openclaw.tools.base import Tool
from openclaw.tools.exec.settings import ExecOverrides

NOTHING_ASKED = MessageBody()
"""The body where no message is answered, e.g. for a compaction."""


class Prepared(msgspec.Struct, kw_only=True):
    """What one run gives its model, and how it is to go on."""

    agent_id: str
    session_key: str
    session_id: str
    source: str
    """Who asked: ``webchat``, ``agent``, ``cron``, ``heartbeat``, a channel id."""
    body: MessageBody
    entry: SessionEntry
    """The session's entry as the run found it."""
    model: Model
    thinking: ThinkingLevel
    workspace: Path
    skill_env: Mapping[str, str]
    """What the commands of the run find in their environment besides the Gateway's."""
    prompt: SystemPrompt
    report: PromptReport
    """Sizes of what the model is given."""
    timeout_s: float | None
    """None: the run may take as long as it wants."""
    retry: RetrySettings
    window: PromptWindow
    """Prunes the conversation and fits it to the model's window."""
    cleaner: HistoryCleaner
    """Keeps the conversation acceptable to every provider."""
    tool_choice: Any = None
    max_tokens: int | None = None
    """Length of each answer at most."""
    temperature: float | None = None
    memo: dict[Any, Any] = {}
    """What earlier runs worked out about the branch of the conversation that is shown."""
    refusals: int = 0
    """How often a provider refused this run's requests as malformed, levels of thinking not counted."""
    level_refused: bool = False
    """A provider refused the level of thinking, and another was taken instead."""

    def remember(self, memo: dict[Any, Any]) -> None:
        """The memo of the branch that is about to be shown: only what is new in it needs work."""
        if memo is not self.memo:
            self.window.remember(memo)
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
            messages=self.window.of(self.cleaner.clean(messages)),
            tools=self.prompt.specs,
            thinking=self.thinking,
            session_id=self.session_id,
            tool_choice=self.tool_choice,
            max_tokens=self.max_tokens,
            memo=self.memo,
            temperature=self.temperature,
        )


async def prepare(
    runtime: Runtime,
    agent_id: str,
    session_key: str,
    session_id: str,
    body: MessageBody = NOTHING_ASKED,
    *,
    source: str = "",
    came: float | None = None,
) -> Prepared:
    """Decides what one run gives its model. Raises ``ModelError`` when there is no model to ask.

    ``came``: when the Gateway had the message, on the event loop's clock, if the run begins because of that alone. A
    look at the workspace that was made later will do. None: the workspace is looked at now.
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
    snapshot = await runtime.snapshots.of(agent_id, config, workspace, audience, came)
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
        report=prompt_report(session_key, session_id, source, facts, prompt, now),
        timeout_s=run_timeout(body.timeout_seconds, config),
        retry=settings.agent.retry,
        window=window,
        cleaner=cleaner,
        tool_choice=body.tool_choice if model.tools else None,
        max_tokens=max_tokens,
        temperature=params.temperature,
    )


def beside_client_tools(body: MessageBody, tools: list[Tool]) -> list[Tool]:
    """The agent's tools that stay on offer beside the caller's.

    A forced choice is among the caller's tools, so that none of ours is offered. Of two with one name the caller's
    counts.
    """
    if body.tool_choice is not None:
        return []
    if not body.client_tools:
        return tools
    taken = {spec.name for spec in body.client_tools}
    return [tool for tool in tools if tool.spec.name not in taken]


async def load_images(body: MessageBody, blobs: BlobStore) -> list[ImageBlock]:
    """The images that came with a message. Raises ``FileNotFoundError`` when one is gone."""
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


def run_timeout(wanted: float | None, config: Config) -> float | None:
    """Seconds, or None for no limit: 0 asks for none, a negative value for the default."""
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
        # "on" is everyone's default; where there is no sandbox to leave it changes nothing.
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


async def session_report(agent_id: str, session_key: str, runtime: Runtime) -> dict[str, Any]:
    """Of the last run if there was one, else what a run would be given now. Raises ``ModelError`` without a model."""
    entry = await runtime.sessions.get(agent_id, session_key)
    report = await stored_report(entry, runtime.blobs)
    if report is not None:
        return report
    prepared = await prepare(runtime, agent_id, session_key, entry["sessionId"] if entry else "")
    return {**prepared.report.whole(), "source": "estimate"}
