"""Prepare a run: decide on the model, the tools, the prompt and the time limit.

The run keeps its ``Prepared`` until its end or until another model continues it.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from openclaw.agent.caller import NO_MESSAGE, caller_of
from openclaw.agent.model_choice import choose_model, params_of, thinking_of
from openclaw.agent.owner_files import owner_files
from openclaw.agent.prompt.report import PromptReport
from openclaw.agent.prompt.system_prompt import PromptFacts, SystemPrompt, gather_facts, turn_facts
from openclaw.agent.prompt.workspace_snapshot import Audience, WorkspaceSnapshot
from openclaw.agent.requests import RequestBuilder
from openclaw.agent.runtime import Runtime
from openclaw.agent.skills import only, variables_of
from openclaw.agent.tool_set import sandbox_of, tools_for
from openclaw.agent.window.history_cleaner import HistoryCleaner, dm_history_limit
from openclaw.agent.window.tokens import text_tokens
from openclaw.agent.window.tool_share import left_out, tools_within
from openclaw.agent.window.window import PromptWindow
from openclaw.config.agents import main_key, workspace_dir
from openclaw.config.schema import Config
from openclaw.extensions.api import PromptAbout
from openclaw.messages import ImageBlock, ThinkingLevel
from openclaw.models.base import CLI_API, Model, ModelError, ModelRequest
from openclaw.path_opener import PathGuard, PathOpener
from openclaw.rights import Caller
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, is_subagent, kind_of
from openclaw.storage.blobs import BlobStore
from openclaw.storage.message_ledger import MessageBody
from openclaw.tools.base import Tool
from openclaw.tools.sandbox.boundary import Boundary


class SessionTurn(msgspec.Struct, kw_only=True):
    """One message and the session that it runs in."""

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

    @property
    def with_reasoning(self) -> bool:
        """Whether the answer is delivered with the model's reasoning."""
        return (self.body.reasoning or self.entry.get("reasoningLevel")) == "on"

    @property
    def watched(self) -> bool:
        """Whether somebody watches the run. A warning in any other run would be lost."""
        return self.source not in ("", "cron", "heartbeat", "hook")


class Workplace(msgspec.Struct, kw_only=True):
    """Where the tools of a run work."""

    folder: Path
    """The agent's workspace, or the sandbox's."""
    sandbox: Boundary | None
    """The run is rejected if its sandbox cannot be had."""
    snapshot: WorkspaceSnapshot
    """The workspace files and skills that the prompt shows."""
    env: Mapping[str, str]
    """Environment variables that the run's commands get in addition to the Gateway's."""
    owner_files: PathGuard | None
    """Refuses the files that are the owner's. None if the caller may open them."""

    def guarded(self, opener: PathOpener) -> PathOpener:
        """Return the opener for this run: it does not open the owner's files for others."""
        return opener if self.owner_files is None else opener.guarded(self.owner_files)


class Prepared(msgspec.Struct, kw_only=True):
    """Everything one run knows before its first model call."""

    turn: SessionTurn
    workplace: Workplace
    prompt: SystemPrompt
    """The system prompt and the tools. It is the same in every request of the run."""
    requests: RequestBuilder
    report: PromptReport
    """The sizes of the prompt's parts."""
    timeout_s: float | None
    """The run's time limit, or None for no limit."""
    most_continuations: int
    """How often the model may be asked for the rest of an answer that the output limit cut."""

    @property
    def model(self) -> Model:
        return self.requests.template.model

    @property
    def thinking(self) -> ThinkingLevel:
        return self.requests.template.thinking

    @property
    def window(self) -> PromptWindow:
        return self.requests.window


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
    """Prepare a run. Raises ``ModelError`` if no model can be asked.

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
    facts_text = turn_facts(
        session_key=session_key,
        entry=entry,
        body=body,
        config=config,
        model=model,
        thinking=thinking,
        kind=kind,
        source=source,
        now_ms=now,
        children=runtime.prompting.lines.of(session_key),
    )
    turn = SessionTurn(
        agent_id=agent_id,
        session_key=session_key,
        session_id=session_id,
        source=source,
        body=body,
        entry=entry,
        caller=caller,
    )
    own_report = {"source": "run", "generatedAt": now, "sessionId": session_id, "sessionKey": session_key}
    warned = facts.mode == "full" and turn.watched
    warnings = runtime.prompting.snapshots.new_warnings(facts.files) if warned else []
    folder = sandbox.plan.folder if sandbox else workspace_dir(config, runtime.state_dir, agent_id)
    window = PromptWindow(
        model,
        prompt.overhead + text_tokens(facts_text),
        runtime.models.measures.of(session_id, model),
        runtime.clock,
        pruning=config.agents.defaults.context_pruning,
        wanted_output=max_tokens,
    )
    cleaner = HistoryCleaner(
        runtime.models.hygiene,
        model,
        session_id,
        now,
        history_limit=dm_history_limit(config, session_key),
        max_image_side=config.agents.defaults.image_max_dimension_px,
    )
    template = ModelRequest(
        model=model,
        system=prompt.text,
        system_suffix=prompt.suffix,
        turn_facts=facts_text,
        messages=[],
        tools=prompt.specs,
        thinking=thinking,
        session_id=session_id,
        workspace=str(folder),
        tool_choice=body.tool_choice if model.tools else None,
        max_tokens=max_tokens,
        branch_cache={},
        prompt_cache=prompt.encoded,
        temperature=params.temperature,
    )
    return Prepared(
        turn=turn,
        workplace=Workplace(
            folder=folder,
            sandbox=sandbox,
            snapshot=snapshot,
            env={} if sandbox else _skill_env(snapshot, body, config),
            owner_files=owner_files(runtime, agent_id, caller),
        ),
        prompt=prompt,
        requests=RequestBuilder(template, window, cleaner),
        report=PromptReport(own_report | {"turnFacts": {"chars": len(facts_text)}}, prompt.report, warnings),
        timeout_s=run_timeout(body.timeout_seconds, config),
        most_continuations=most_continuations(body, source, model, config),
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
    offered = beside_client_tools(body, tools)
    kept = tools_within(offered, model.context_window)
    audience = Audience(model.context_window, private, is_subagent(session.key))
    snapshot = await runtime.prompting.snapshots.of(session.agent_id, config, workspace, audience)
    facts = gather_facts(
        agent_id=session.agent_id,
        session_key=session.key,
        body=body,
        config=config,
        model=model,
        tools=kept,
        workspace=workspace,
        sandbox=sandbox,
        snapshot=snapshot,
        private=private,
        first_session=private and await is_first_session(workspace),
    )
    if len(kept) < len(offered):
        facts.left_out = left_out(offered, kept)
    if runtime.extensions.sections and model.tools:
        about = PromptAbout(agent_id=session.agent_id, session_key=session.key, private=private)
        facts.sections = await runtime.extensions.prompt_sections(about)
    return facts, snapshot


def _skill_env(snapshot: WorkspaceSnapshot, body: MessageBody, config: Config) -> Mapping[str, str]:
    """The variables of the skills that the run is shown. A message that names its skills gets only theirs."""
    if not snapshot.skill_env or body.skills is None:
        return snapshot.skill_env
    return variables_of(only(snapshot.skills, body.skills), config, snapshot.skill_env)


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


def most_continuations(body: MessageBody, source: str, model: Model | None, config: Config) -> int:
    """Return how often the model may be asked for the rest of an answer.

    Returns 0 if the caller chose the length of the answer, or if the answer is probably not shown. A model that is too
    small for tools repeats itself when it is asked for more.
    """
    if (model is not None and not model.tools) or body.max_tokens is not None or source == "heartbeat":
        return 0
    return config.agents.defaults.max_length_continuations


def run_timeout(wanted: float | None, config: Config) -> float | None:
    """The time limit in seconds, or None for no limit. 0 asks for no limit, a negative value for the default."""
    if wanted == 0:
        return None
    if wanted is not None and wanted > 0:
        return min(wanted, 2_147_000)
    return float(config.agents.defaults.timeout_seconds)
