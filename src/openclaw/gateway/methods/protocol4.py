"""Methods that only protocol 4 has, and those that it knows in another form.

A client of protocol 3 gets none of them. Each wraps what the other families do, so that both generations see and change
the same sessions.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from openclaw.config.agents import default_agent_id, workspace_dir
from openclaw.gateway.methods import agents, chat, cron, sessions
from openclaw.gateway.methods.models import used_keys
from openclaw.gateway.model_catalog import AUTOMATIC, catalog_of
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params, Positive
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.gateway.session_directory import no_session
from openclaw.gateway.session_views import entry_view, model_defaults, newest_within, numbered_messages, row_view
from openclaw.inbound.commands.registry import COMMANDS
from openclaw.messages import UserMessage, user_text
from openclaw.models.catalogue_data import PROVIDERS
from openclaw.outbound.session_preview import message_of
from openclaw.protocol.chat import ChatStopped
from openclaw.protocol.protocol4 import (
    AgentListPage,
    AgentModel,
    AgentWithModel,
    ApprovalReplay,
    AuthProvider,
    AuthStatus,
    BranchList,
    BranchView,
    ChatAcceptedHere,
    ChatHistoryPage,
    ChatMetadata,
    ChatStart,
    CommandList,
    CommandView,
    CompanionState,
    CronPage,
    DescribedSession,
    MessagesSubscribed,
    PendingInputs,
    ProgressCard,
    SessionCreated,
    SessionForkedHere,
    SessionListPage,
    SessionRewound,
    Subscribed,
    SuggestionList,
    TaskList,
    TaskView,
    UpdateStatus,
)
from openclaw.protocol.result import Success
from openclaw.protocol.sessions import SessionDeleted, SessionPatched, SessionRestarted, SessionRowView
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, shown_key
from openclaw.sessions.prompt_prefix import as_typed, typed_text
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.sessions import SessionRow
from openclaw.storage.transcripts import Entry, Transcript
from openclaw.teamwork.subagents import KIND, state_of
from openclaw.worker_thread import with_many

methods = MethodTable()
MOST_BRANCHES = 100
MOST_JOBS = 1000
LARGEST_PAGE = 6 * 1024 * 1024
MOST_SUBSCRIPTIONS = 256
"""The most sessions whose messages one connection may subscribe to."""


# Subscriptions


@methods.add("sessions.subscribe", NoParams, since=4)
async def subscribe(call: MethodCall) -> Subscribed:
    """Send this connection ``sessions.changed`` when a session changes."""
    call.gateway.subscriptions.follow_list(call.client.conn_id)
    return Subscribed(True)


@methods.add("sessions.unsubscribe", NoParams, since=4)
async def unsubscribe(call: MethodCall) -> Subscribed:
    """End ``sessions.subscribe``."""
    call.gateway.subscriptions.leave_list(call.client.conn_id)
    return Subscribed(False)


class MessagesSubscribe(Params):
    key: NonEmpty
    agent_id: NonEmpty | None = None
    include_approvals: bool = False


@methods.add("sessions.messages.subscribe", MessagesSubscribe, since=4)
async def subscribe_messages(call: MethodCall, params: MessagesSubscribe) -> MessagesSubscribed:
    """Send this connection ``session.message`` for every message that the session stores."""
    target = call.gateway.directory.target(params.key, params.agent_id)
    if call.gateway.subscriptions.sessions_of(call.client.conn_id) >= MOST_SUBSCRIPTIONS:
        raise MethodError(f"a connection may subscribe to {MOST_SUBSCRIPTIONS} sessions; unsubscribe from one first")
    await call.gateway.subscriptions.follow_messages(call.client.conn_id, target)
    result = MessagesSubscribed(True, shown_key(target.key))
    if params.include_approvals:
        now = call.gateway.runtime.clock.now_ms()
        result.approval_replay = ApprovalReplay(shown_key(target.key), now, [], False)
    return result


@methods.add("sessions.messages.unsubscribe", MessagesSubscribe, since=4)
async def unsubscribe_messages(call: MethodCall, params: MessagesSubscribe) -> MessagesSubscribed:
    """End ``sessions.messages.subscribe``."""
    target = call.gateway.directory.target(params.key, params.agent_id)
    call.gateway.subscriptions.leave_messages(call.client.conn_id, target)
    return MessagesSubscribed(False, shown_key(target.key))


# Sessions


@methods.add("sessions.list", sessions.SessionsList, since=4)
async def list_sessions(call: MethodCall, params: sessions.SessionsList) -> SessionListPage:
    """The sessions, newest first, always as a page."""
    if params.offset is None and params.limit is not None:
        params.offset = 0
    result = await sessions.list_sessions(call, params)
    page = SessionListPage(**msgspec.structs.asdict(result), owners=[])
    if page.total_count is msgspec.UNSET:
        page.total_count, page.limit_applied = page.count, page.count
        page.has_more, page.next_offset = False, None
    return page


class SessionsDescribe(Params):
    key: NonEmpty
    agent_id: NonEmpty | None = None


@methods.add("sessions.describe", SessionsDescribe, since=4)
async def describe(call: MethodCall, params: SessionsDescribe) -> DescribedSession:
    """One session as lists show it."""
    return DescribedSession(await _row(call, call.gateway.directory.target(params.key, params.agent_id)))


async def _row(call: MethodCall, target: SessionRef) -> SessionRowView | None:
    entry = await call.gateway.directory.entry(target)
    if entry is None:
        return None
    defaults = model_defaults(call.gateway.runtime, target.agent_id)
    return row_view(SessionRow(target.agent_id, target.key, entry), defaults)


class SessionsPatch4(sessions.SessionsPatch):
    """Every ``expected`` value must be the present one. Otherwise nothing is changed."""

    agent_id: NonEmpty | None = None
    expected_session_id: sessions.Setting = msgspec.UNSET
    expected_model: sessions.Setting = msgspec.UNSET
    expected_model_provider: sessions.Setting = msgspec.UNSET
    expected_thinking_level: sessions.Setting = msgspec.UNSET
    expected_label: sessions.Setting = msgspec.UNSET
    expected_updated_at: int | float | msgspec.UnsetType | None = msgspec.UNSET


_EXPECTED = {
    "expected_session_id": "sessionId",
    "expected_model": "modelOverride",
    "expected_model_provider": "providerOverride",
    "expected_thinking_level": "thinkingLevel",
    "expected_label": "label",
    "expected_updated_at": "updatedAt",
}
"""The field of the entry that each parameter is compared with."""


@methods.add("sessions.patch", SessionsPatch4, since=4)
async def patch(call: MethodCall, params: SessionsPatch4) -> SessionPatched:
    """Change the settings of a session if it still is what the caller expects."""
    target = call.gateway.directory.target(params.key, params.agent_id)
    expected = {_EXPECTED[name]: getattr(params, name) for name in _EXPECTED}
    plain = {name: getattr(params, name) for name in sessions.SessionsPatch.__struct_fields__}
    plain["key"] = target.key

    def check(entry: SessionEntry | None) -> None:
        stored: Mapping[str, Any] = {**(entry or {})}
        for name, value in expected.items():
            if value is not msgspec.UNSET and stored.get(name) != value:
                text = f"the session has changed: {name} is {stored.get(name)!r}, not {value!r}"
                raise MethodError(text, details={"code": "SESSION_CHANGED", "field": name}, retryable=True)

    result = await sessions.patch(call, sessions.SessionsPatch(**plain), check=check)
    call.gateway.subscriptions.changed(target, "patch")
    return result


@methods.add("sessions.reset", sessions.SessionKey, since=4)
async def reset(call: MethodCall, params: sessions.SessionKey) -> SessionRestarted:
    """Start a new session under the key, and report it to subscribers."""
    result = await sessions.reset(call, params)
    call.gateway.subscriptions.changed(call.gateway.directory.target(params.key), "reset")
    return result


@methods.add("sessions.delete", sessions.SessionsDelete, since=4)
async def delete(call: MethodCall, params: sessions.SessionsDelete) -> SessionDeleted:
    """Delete a session, and report it to subscribers."""
    result = await sessions.delete(call, params)
    call.gateway.subscriptions.changed(call.gateway.directory.target(params.key), "delete")
    return result


class SessionsCreate(Params):
    key: NonEmpty | None = None
    """The key of the new session. Without it a key is made."""
    agent_id: NonEmpty | None = None
    label: NonEmpty | None = None
    model: NonEmpty | None = None
    thinking_level: NonEmpty | None = None
    parent_session_key: NonEmpty | None = None
    succeeds_parent: bool = False
    """The new session continues where the person left the parent, which stays as it is."""
    message: str | None = None
    """The first message."""
    attachments: list[Any] | None = None
    idempotency_key: NonEmpty | None = None


@methods.add("sessions.create", SessionsCreate, since=4)
async def create(call: MethodCall, params: SessionsCreate) -> SessionCreated:
    """Begin a session, with its settings and its first message."""
    gateway = call.gateway
    agent_id = params.agent_id
    if agent_id is None and params.parent_session_key is not None:
        agent_id = gateway.directory.target(params.parent_session_key).agent_id
    key = params.key or f"chat-{uuid.uuid4().hex[:12]}"
    target = gateway.directory.to_change(key, agent_id)
    settings: dict[str, Any] = {"label": params.label, "model": params.model, "thinking_level": params.thinking_level}
    changes = sessions.SessionsPatch(
        key=target.key, **{name: value for name, value in settings.items() if value is not None}
    )
    patched = await sessions.patch(call, changes)
    gateway.subscriptions.changed(target, "create")
    result = SessionCreated(True, patched.key, patched.entry["sessionId"], patched.entry)
    if params.message or params.attachments:
        run_id = params.idempotency_key or str(uuid.uuid4())
        first = {"sessionKey": patched.key, "message": params.message or "", "idempotencyKey": run_id}
        send = msgspec.convert({**first, "attachments": params.attachments}, chat.ChatSend)
        accepted = await chat.send(call, send)
        result.run_started = not isinstance(accepted, ChatStopped)
        result.run_id = run_id if result.run_started else None
    return result


# Branches


class BranchesList(Params):
    session_key: NonEmpty
    agent_id: NonEmpty | None = None


@methods.add("sessions.branches.list", BranchesList, since=4)
async def branches(call: MethodCall, params: BranchesList) -> BranchList:
    """The ends of a conversation's branches, the active one first and then the newest."""
    target = call.gateway.directory.target(params.session_key, params.agent_id)
    entry = await call.gateway.directory.entry(target)
    ref = transcript_ref(target.agent_id, entry) if entry is not None else None
    transcript = await call.gateway.runtime.stores.transcripts.open(ref, create=False) if ref is not None else None
    if transcript is None:
        return BranchList([])
    tree, leaf_id = transcript.tree(), transcript.leaf_id
    ends = await with_many(len(tree), lambda: branch_ends(tree, leaf_id))
    views: list[BranchView] = []
    for end in ends[:MOST_BRANCHES]:
        last = await transcript.entry(end.message_id)
        shown = entry_view(last) if last is not None else None
        headline = shown.text if shown is not None else ""
        at = shown.at if shown is not None and isinstance(shown.at, int) else None
        views.append(BranchView(end.leaf_id, headline, end.messages, at, end.active))
    return BranchList(views)


class BranchEnd(msgspec.Struct, frozen=True):
    """One branch: its last entry, its last message, and how many messages lead there."""

    leaf_id: str
    message_id: str
    messages: int
    active: bool


def branch_ends(tree: list[tuple[str, str | None, str]], leaf_id: str | None) -> list[BranchEnd]:
    """Return the branches of a transcript. ``tree`` has (id, parentId, type) of its entries in the order written.

    A branch is a message that no other message follows. The active one comes first, then the newest.
    """
    last_message: dict[str, str | None] = {}
    depth: dict[str, int] = {}
    followed: set[str] = set()
    leaves: dict[str, str] = {}
    for id, parent, kind in tree:
        above = last_message.get(parent) if parent is not None else None
        if kind == "message":
            last_message[id], depth[id] = id, depth.get(above, 0) + 1 if above is not None else 1
            if above is not None:
                followed.add(above)
        else:
            last_message[id] = above
        if (own := last_message[id]) is not None:
            leaves[own] = id
    current = last_message.get(leaf_id) if leaf_id is not None else None
    ends = [id for id in depth if id not in followed or id == current]
    others = [id for id in reversed(ends) if id != current]
    ordered = [current, *others] if current is not None else others
    return [BranchEnd(leaves[id], id, depth[id], id == current) for id in ordered]


class SessionsRewind(Params):
    session_key: NonEmpty
    entry_id: NonEmpty
    agent_id: NonEmpty | None = None


@methods.add("sessions.rewind", SessionsRewind, since=4)
async def rewind(call: MethodCall, params: SessionsRewind) -> SessionRewound:
    """Continue before a message of the person, whose text returns to the composer. What followed stays as a branch.

    An entry that is the end of another branch makes that branch the active one.
    """
    gateway = call.gateway
    target = gateway.directory.target(params.session_key, params.agent_id)
    transcript = await _transcript(call, target, params.session_key)
    entry = await transcript.entry(params.entry_id)
    if entry is None:
        raise MethodError(f"No entry found: {params.entry_id}")
    text, at = _before(entry)
    await sessions.branch(call, sessions.SessionsBranch(key=target.key, entry_id=at, summarize=False))
    await gateway.subscriptions.rewound(target)
    gateway.subscriptions.changed(target, "rewind")
    return SessionRewound(True, shown_key(target.key), transcript.session_id, text)


@methods.add("sessions.fork", SessionsRewind, since=4)
async def fork(call: MethodCall, params: SessionsRewind) -> SessionForkedHere:
    """Begin a new session with a copy of the conversation up to an entry.

    If the entry is a message of the person, the copy ends before it, and its text returns to the composer.
    """
    target = call.gateway.directory.target(params.session_key, params.agent_id)
    transcript = await _transcript(call, target, params.session_key)
    entry = await transcript.entry(params.entry_id)
    if entry is None:
        raise MethodError(f"No entry found: {params.entry_id}")
    text, last = _before(entry)
    if last is None:
        created = await create(call, SessionsCreate(agent_id=target.agent_id, parent_session_key=target.key))
        return SessionForkedHere(True, created.key, created.session_id, text)
    forked = await sessions.fork(call, sessions.SessionsFork(key=target.key, entry_id=last))
    call.gateway.subscriptions.changed(call.gateway.directory.target(forked.key), "fork")
    return SessionForkedHere(True, forked.key, forked.session_id, text)


def _before(entry: Entry) -> tuple[str, str | None]:
    """Return the text of a person's message and the entry before it. Other entries stay, and have no text."""
    message = message_of(entry)
    if isinstance(message, UserMessage):
        return as_typed(message, typed_text(user_text(message))), entry.parent_id
    return "", entry.id


async def _transcript(call: MethodCall, target: SessionRef, name: str) -> Transcript:
    entry = await call.gateway.directory.entry(target)
    ref = transcript_ref(target.agent_id, entry) if entry is not None else None
    transcript = await call.gateway.runtime.stores.transcripts.open(ref, create=False) if ref is not None else None
    if transcript is None:
        raise no_session(name)
    return transcript


# Chat


class ChatSend4(chat.ChatSend):
    """``session_id`` may be that of an earlier session: the message runs in the key's current one."""

    session_id: NonEmpty | None = None


@methods.add("chat.send", ChatSend4, since=4)
async def send(call: MethodCall, params: ChatSend4) -> ChatAcceptedHere | ChatStopped:
    """Accept a message for the current session of a key, and name that session."""
    plain = {name: getattr(params, name) for name in chat.ChatSend.__struct_fields__}
    accepted = await chat.send(call, chat.ChatSend(**plain))
    if isinstance(accepted, ChatStopped):
        return accepted
    target = call.gateway.directory.target(params.session_key, params.agent_id)
    entry = await call.gateway.directory.entry(target)
    return ChatAcceptedHere(**msgspec.structs.asdict(accepted), session_id=entry["sessionId"] if entry else None)


class ChatHistory4(chat.ChatHistory):
    agent_id: NonEmpty | None = None
    max_bytes: Positive | None = None


@methods.add("chat.history", ChatHistory4, since=4)
async def history(call: MethodCall, params: ChatHistory4) -> ChatHistoryPage:
    """The last messages of a session, each with its entry's id and its number."""
    target = call.gateway.directory.target(params.session_key, params.agent_id)
    return ChatHistoryPage(**await _page(call, target, params.session_key, params.limit, params.max_bytes))


async def _page(
    call: MethodCall, target: SessionRef, session_key: str, limit: int, most_bytes: int | None
) -> dict[str, Any]:
    """Return the fields of ``ChatHistoryPage``."""
    runtime = call.gateway.runtime
    entry = await call.gateway.directory.entry(target)
    page: dict[str, Any] = {
        "session_key": session_key,
        "session_id": entry["sessionId"] if entry else None,
        "messages": [],
        "has_more": False,
        "total_messages": 0,
        "defaults": model_defaults(runtime, target.agent_id),
        "session_info": await _row(call, target),
    }
    if entry is None:
        return page
    plain = await chat.history(call, chat.ChatHistory(session_key=target.key, limit=1))
    page |= {"thinking_level": plain.thinking_level, "verbose_level": plain.verbose_level}
    ref = transcript_ref(target.agent_id, entry)
    transcript = await runtime.stores.transcripts.open(ref, create=False)
    if transcript is None:
        return page
    entries = await runtime.stores.transcripts.tail(ref, limit)
    reasoning = entry.get("reasoningLevel") in ("on", "stream")
    messages = await numbered_messages(
        transcript, entries, with_reasoning=reasoning, own_runs=call.gateway.subscriptions.own_runs
    )
    shown = newest_within(messages, min(most_bytes or LARGEST_PAGE, LARGEST_PAGE))
    page["messages"] = [message.fields for message in shown]
    page["total_messages"] = max((message.seq for message in messages), default=0)
    page["has_more"] = len(entries) >= limit or len(shown) < len(messages)
    return page


class ChatStartup(Params):
    session_key: NonEmpty
    agent_id: NonEmpty | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    max_bytes: Positive | None = None


@methods.add("chat.startup", ChatStartup, since=4)
async def startup(call: MethodCall, params: ChatStartup) -> ChatStart:
    """Everything with which a client opens a conversation: messages, settings, models and commands."""
    gateway = call.gateway
    target = gateway.directory.target(params.session_key, params.agent_id)
    page = await _page(call, target, params.session_key, params.limit, params.max_bytes)
    waiting = [
        {"runId": run.run_id, "acceptedAt": run.row.accepted_at, "text": typed_text(run.row.body.prompt or "")}
        for run in gateway.runs.active(target.key)
        if run.state != "running" and not run.ended and not run.row.body.internal
    ]
    return ChatStart(
        **page,
        activity=[],
        pending_inputs=PendingInputs(waiting, len(waiting)),
        metadata=_metadata(call, target.agent_id),
    )


class ChatMetadataParams(Params):
    agent_id: NonEmpty | None = None
    session_key: NonEmpty | None = None


@methods.add("chat.metadata", ChatMetadataParams, since=4)
async def metadata(call: MethodCall, params: ChatMetadataParams) -> ChatMetadata:
    """The models and the commands for a composer."""
    agent_id = params.agent_id or default_agent_id(call.gateway.runtime.config.current)
    if params.session_key is not None:
        agent_id = call.gateway.directory.target(params.session_key, params.agent_id).agent_id
    return _metadata(call, agent_id)


def _metadata(call: MethodCall, agent_id: str) -> ChatMetadata:
    return ChatMetadata(
        models=catalog_of(call.gateway.runtime, agent_id).models,
        commands=_commands(call),
        account_selection=AUTOMATIC,
        runtime_selection_locked=False,
        swarm_enabled=False,
    )


class CommandsList(Params):
    agent_id: NonEmpty | None = None
    scope: str | None = None
    include_args: bool = False


@methods.add("commands.list", CommandsList, since=4)
async def list_commands(call: MethodCall, params: CommandsList) -> CommandList:
    """The commands that the caller may write in a chat."""
    return CommandList(_commands(call))


def _commands(call: MethodCall) -> list[CommandView]:
    config, rights = call.gateway.runtime.config.current, call.client.rights
    return [
        CommandView(
            name=command.name,
            text_aliases=[f"/{name}" for name in (command.name, *command.aliases)],
            description=command.help,
            category=command.category.lower(),
            source="native",
            scope="both",
            accepts_args=bool(command.usage),
        )
        for command in COMMANDS
        if command.enabled(config) and not command.group_only and command.right in rights
    ]


# Models


class ModelsAuthStatus(Params):
    agent_id: NonEmpty | None = None


@methods.add("models.authStatus", ModelsAuthStatus, since=4)
async def auth_status(call: MethodCall, params: ModelsAuthStatus) -> AuthStatus:
    """The providers for which the Gateway has keys."""
    runtime = call.gateway.runtime
    providers: dict[str, AuthProvider] = {}
    for key in await used_keys(runtime, params.agent_id or default_agent_id(runtime.config.current)):
        name = key.model.provider
        label = PROVIDERS[name].label if name in PROVIDERS else name
        view = key.view(runtime)
        row = providers.setdefault(name, AuthProvider(name, label, "ok", []))
        row.profiles.append({"profileId": view.id, "type": "api_key", "source": view.source, "status": "ok"})
    return AuthStatus(runtime.clock.now_ms(), list(providers.values()), {})


@methods.add("agents.list", agents.AgentsList, since=4)
async def list_agents(call: MethodCall, params: agents.AgentsList) -> AgentListPage:
    """The configured agents, each with its model, without which no message can be written on the page."""
    result, runtime = await agents.list_agents(call, params), call.gateway.runtime
    shown: list[AgentWithModel] = []
    for view in result.agents:
        usual = model_defaults(runtime, view.id)
        model = AgentModel(f"{usual.model_provider}/{usual.model}") if usual.model else None
        workspace = str(workspace_dir(runtime.config.current, runtime.state_dir, view.id))
        shown.append(AgentWithModel(view.id, view.name, view.identity, workspace, model))
    return AgentListPage(
        default_id=result.default_id,
        main_key=result.main_key,
        scope=result.scope,
        agents=shown,
        ownership="implicit",
        selection_required=False,
    )


# Scheduled jobs


class CronList4(cron.ListParams):
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_JOBS)] = MOST_JOBS
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


@methods.add("cron.list", CronList4, since=4)
async def list_jobs(call: MethodCall, params: CronList4) -> CronPage:
    """The scheduled jobs, in pages. ``snapshotRevision`` changes when a job does."""
    result = await cron.list_jobs(call, cron.ListParams(include_disabled=params.include_disabled))
    jobs, end = result.jobs, params.offset + params.limit
    return CronPage(
        jobs=jobs[params.offset : end],
        timezone=result.timezone,
        total=len(jobs),
        offset=params.offset,
        limit=params.limit,
        has_more=end < len(jobs),
        next_offset=end if end < len(jobs) else None,
        snapshot_revision=hashlib.sha256(msgspec.json.encode(jobs, order="sorted")).hexdigest()[:16],
    )


@methods.add("cron.get", cron.JobParams, since=4)
async def get_job(call: MethodCall, params: cron.JobParams) -> OpenObject:
    """One scheduled job."""
    job_id = params.id or params.job_id
    for job in await call.gateway.cron.jobs(disabled=True):
        if job.get("id") == job_id:
            return job
    # Clients of protocol 4 recognise this text.
    raise MethodError(f"cron job not found: {str(job_id)[:80]}")


class CronRuns4(cron.RunsParams):
    scope: str | None = None


@methods.add("cron.runs", CronRuns4, since=4)
async def list_runs(call: MethodCall, params: CronRuns4) -> cron.CronHistory:
    """The last runs of a job, or of all jobs, the newest last."""
    if params.id or params.job_id:
        return await cron.runs(call, cron.RunsParams(id=params.id, job_id=params.job_id, limit=params.limit))
    entries: list[OpenObject] = []
    result = cron.CronHistory([], None)
    for job in await call.gateway.cron.jobs(disabled=True):
        result = await cron.runs(call, cron.RunsParams(id=str(job["id"]), limit=params.limit))
        entries += result.entries
    entries.sort(key=lambda entry: entry.get("ts") or 0)
    result.entries = entries[-params.limit :]
    return result


# What this Gateway has no more of


@methods.add("tasks.list", dict[str, Any], since=4)
async def tasks(call: MethodCall, params: dict[str, Any]) -> TaskList:
    """The sub-agents and how far they are, newest first."""
    views: list[TaskView] = []
    for job in await call.gateway.runtime.stores.ledger.jobs(kind=KIND, limit=200):
        state = state_of(job)
        views.append(
            TaskView(
                id=job.id,
                task_id=job.id,
                kind="subagent",
                runtime="subagent",
                title=state.name,
                status=_TASK_STATES.get(state.status, "failed"),
                agent_id=state.agent_id,
                session_key=shown_key(state.requester),
                child_session_key=shown_key(state.child),
                owner_key=shown_key(job.owner_key),
                created_at=job.created_at,
                updated_at=job.ended_at or job.created_at,
                error=state.error or None,
            )
        )
    return TaskList(views[::-1])


_TASK_STATES = {"running": "running", "success": "completed", "timeout": "timed_out", "stopped": "cancelled"}


@methods.add("taskSuggestions.list", dict[str, Any], since=4)
async def task_suggestions(call: MethodCall, params: dict[str, Any]) -> SuggestionList:
    """None: OpenClaw for Python suggests no tasks."""
    return SuggestionList([])


@methods.add("plugin.approval.list", dict[str, Any], since=4)
async def plugin_approvals(call: MethodCall, params: dict[str, Any]) -> list[OpenObject]:
    """None: extensions ask for no approvals of their own."""
    return []


@methods.add("openclaw.approval.list", dict[str, Any], since=4)
async def own_approvals(call: MethodCall, params: dict[str, Any]) -> list[OpenObject]:
    """None: the Gateway asks for no approvals besides those of commands (``exec.approval.list``)."""
    return []


@methods.add("progressCard.get", dict[str, Any], since=4)
async def progress_card(call: MethodCall, params: dict[str, Any]) -> ProgressCard:
    """None: OpenClaw for Python makes no progress cards."""
    return ProgressCard(None)


@methods.add("sessions.companion.state", dict[str, Any], since=4)
async def companion(call: MethodCall, params: dict[str, Any]) -> CompanionState:
    """None: OpenClaw for Python has no companion."""
    return CompanionState([])


@methods.add("sessions.observer.visibility", dict[str, Any], since=4)
async def observer_visibility(call: MethodCall, params: dict[str, Any]) -> Success:
    """Accept that a page is shown or hidden. Nothing depends on it here."""
    return Success(True)


@methods.add("update.status", dict[str, Any], since=4)
async def update_status(call: MethodCall, params: dict[str, Any]) -> UpdateStatus:
    """None: the Gateway does not look for updates."""
    return UpdateStatus(None, None)


@methods.add("channels.pairing.list", dict[str, Any], since=4)
async def channel_pairings(call: MethodCall, params: dict[str, Any]) -> OpenObject:
    """The people who ask to be admitted on a channel."""
    waiting = await call.gateway.pairing.pending(None)
    return {"requests": [{"channel": channel, **msgspec.to_builtins(request)} for channel, request in waiting]}
