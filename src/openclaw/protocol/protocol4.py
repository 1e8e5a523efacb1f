"""Results and events that only clients of protocol 4 get."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from openclaw.protocol.chat import ChatAccepted
from openclaw.protocol.result import Result, Success
from openclaw.protocol.sessions import ModelDefaults, SessionList, SessionRowView


class SessionChanged(Result, kw_only=True):
    """The event ``sessions.changed``."""

    session_key: str
    agent_id: str
    reason: str
    ts: int
    session: SessionRowView | None
    """The row as it is now. Null if the session is gone."""


class SessionMessage(Result, kw_only=True):
    """The event ``session.message``: a message that the transcript has got."""

    session_key: str
    message: dict[str, Any]
    message_id: str
    message_seq: int
    """Its number among the messages of the branch, from 1."""
    session: SessionRowView | None = None


class Subscribed(Result):
    """Whether the connection gets the events from now on."""

    subscribed: bool


class ApprovalReplay(Result):
    """The approvals that wait in a session."""

    session_key: str
    updated_at_ms: int
    approvals: list[dict[str, Any]]
    truncated: bool


class MessagesSubscribed(Result):
    """The subscription to the messages of a session."""

    subscribed: bool
    key: str
    approval_replay: ApprovalReplay | msgspec.UnsetType = msgspec.UNSET


class DescribedSession(Result):
    """A session as lists show it. Null if there is none."""

    session: SessionRowView | None


class SessionListPage(SessionList, kw_only=True):
    """The sessions, with the fields of a page in every answer."""

    owners: list[str]
    """Always empty: every session belongs to the one owner."""


class SessionCreated(Success):
    """The new session, or the one that has the key already."""

    key: str
    session_id: str
    entry: dict[str, Any]
    """The entry as it is stored."""
    run_started: bool = False
    run_id: str | None = None


class BranchView(Result):
    """A branch of a conversation."""

    leaf_entry_id: str
    headline: str
    """The beginning of the branch's last message."""
    message_count: int
    updated_at: int | None
    active: bool


class BranchList(Result):
    """The branches of a conversation, the active one first."""

    branches: list[BranchView]


class SessionRewound(Success):
    """The session, which continues before the named message."""

    key: str
    session_id: str
    editor_text: str
    """The text of the message, for the composer."""


class SessionForkedHere(Success):
    """The new session, with the conversation before the named message."""

    key: str
    session_id: str
    editor_text: str
    """The text of the message, for the composer."""


class ChatAcceptedHere(ChatAccepted):
    """A message that was accepted, and the session in which it runs."""

    session_id: str | None = None


class CommandView(Result):
    """A command that may be written in a chat."""

    name: str
    text_aliases: list[str]
    description: str
    category: str
    source: Literal["native"]
    scope: Literal["both"]
    accepts_args: bool


class CommandList(Result):
    """The commands that the caller may write."""

    commands: list[CommandView]


class ThinkingLevel(Result):
    """A thinking level that a model has."""

    id: str
    label: str


class CatalogModel(Result, kw_only=True):
    """A model as the catalogue of protocol 4 shows it."""

    id: str
    name: str
    provider: str
    context_window: int
    reasoning: bool
    input: list[str]
    available: bool
    manual_selection_allowed: bool
    thinking_levels: list[ThinkingLevel]
    thinking_default: str
    tags: list[Literal["default"]] = []


class AccountSelection(Result):
    """Which account of a provider is used. OpenClaw chooses the key itself."""

    kind: Literal["automatic"]
    label: str


class ModelCatalog(Result):
    """The models that an agent may use."""

    models: list[CatalogModel]
    account_selection: AccountSelection


class ModelScope(Result):
    """The agent, and perhaps the session, that a catalogue is for."""

    agent_id: str
    session_key: str | None = None


class ModelSnapshot(Result, kw_only=True):
    """The event ``models.snapshot``."""

    target: dict[str, Any]
    """The target that the client named in ``connect``."""
    scope: ModelScope
    catalog: ModelCatalog


class ChatMetadata(Result, kw_only=True):
    """What a composer needs besides the messages."""

    models: list[CatalogModel]
    commands: list[CommandView]
    account_selection: AccountSelection
    runtime_selection_locked: bool
    swarm_enabled: bool


class PendingInputs(Result):
    """The messages that wait in the queue."""

    items: list[dict[str, Any]]
    total: int


class ChatHistoryPage(Result, kw_only=True):
    """The last messages of a session, each with its entry's id and number."""

    session_key: str
    session_id: str | None
    messages: list[dict[str, Any]]
    has_more: bool
    total_messages: int
    thinking_level: str | None = None
    verbose_level: str | None = None
    defaults: ModelDefaults
    session_info: SessionRowView | None


class ChatStart(ChatHistoryPage, kw_only=True):
    """Everything with which a client opens a conversation."""

    activity: list[dict[str, Any]]
    """Always empty: runs under way report their events."""
    pending_inputs: PendingInputs
    metadata: ChatMetadata


class AuthProvider(Result):
    """A provider and the keys that the Gateway has for it."""

    provider: str
    display_name: str
    status: Literal["ok", "missing"]
    profiles: list[dict[str, Any]]


class AuthStatus(Result):
    """The providers that have keys."""

    ts: int
    providers: list[AuthProvider]
    provider_capabilities: dict[str, Any]


class AgentModel(Result):
    """The model that an agent uses."""

    primary: str


class AgentWithModel(Result):
    """A configured agent and its model."""

    id: str
    name: str | None = None
    identity: dict[str, str] = {}
    workspace: str | None = None
    model: AgentModel | None = None


class AgentListPage(Result, kw_only=True):
    """The configured agents, with the model of each."""

    default_id: str
    main_key: str
    scope: str
    agents: list[AgentWithModel]
    ownership: Literal["implicit"]
    selection_required: bool


class CronPage(Result, kw_only=True):
    """A page of the scheduled jobs."""

    jobs: list[dict[str, Any]]
    timezone: str | None
    total: int
    offset: int
    limit: int
    has_more: bool
    next_offset: int | None
    snapshot_revision: str


class SuggestionList(Result):
    """Always empty: OpenClaw for Python suggests no tasks."""

    suggestions: list[dict[str, Any]]


class TaskList(Result):
    """The sub-agents."""

    tasks: list[TaskView]


class TaskView(Result, kw_only=True):
    """A sub-agent: its task and how far it is."""

    id: str
    task_id: str
    kind: Literal["subagent"]
    runtime: Literal["subagent"]
    title: str
    status: str
    agent_id: str
    session_key: str
    child_session_key: str
    owner_key: str
    created_at: int
    updated_at: int
    error: str | None = None


class ProgressCard(Result):
    """Null: OpenClaw for Python makes no progress cards."""

    card: None


class CompanionState(Result):
    """Always empty: OpenClaw for Python has no companion."""

    exchanges: list[dict[str, Any]]


class UpdateStatus(Result):
    """Null: the Gateway does not look for updates itself."""

    sentinel: None
    update_available: None
