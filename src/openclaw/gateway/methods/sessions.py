"""``sessions.*``: finding, changing, ending and resuming sessions, and what is done with their transcripts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from openclaw.agent.model_choice import current_model
from openclaw.clock import iso_utc
from openclaw.gateway import session_views
from openclaw.gateway.server.frames import MAX_NUMBER, NonEmpty, Params, Positive
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.gateway.session_directory import no_session
from openclaw.gateway.session_views import as_people_see_it, entry_view, joined_parts, model_defaults
from openclaw.models.base import Model
from openclaw.models.catalogue import UnknownModel
from openclaw.models.thinking import level_unless_set, parse_level, supported_levels
from openclaw.outbound import conversation_export
from openclaw.outbound.session_preview import (
    derived_title,
    first_messages,
    last_messages,
    preview_role,
    preview_text,
    shortened,
)
from openclaw.paths import normalize_agent_id
from openclaw.protocol.result import Result
from openclaw.protocol.sessions import (
    EarlierSessions,
    EntryLabelled,
    IndexProgress,
    MessageVersions,
    ModelInUse,
    PreviewLine,
    ResolvedSession,
    SearchHit,
    SessionBranched,
    SessionCompaction,
    SessionDeleted,
    SessionEntries,
    SessionExport,
    SessionForked,
    SessionImported,
    SessionList,
    SessionPatched,
    SessionPreview,
    SessionPreviews,
    SessionRestarted,
    SessionResumed,
    SessionRowView,
    SessionSearch,
    SessionTree,
    SessionVersions,
    StoredEntry,
    TranscriptsArchived,
    TranscriptShortened,
    Version,
)
from openclaw.runs.compactions import NothingToDo
from openclaw.runs.session_change import (
    NotResumable,
    delete_session,
    earlier_sessions,
    resume_session,
    start_over,
    wanted_session,
)
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, is_subagent, shown_key
from openclaw.sessions.reset import home_of, previous_sessions, transcript_ref
from openclaw.sessions.search import MOST_RESULTS, PER_QUESTION
from openclaw.sessions.tree import (
    PAGE_BYTES,
    CannotImport,
    imported_lines,
    imported_messages,
    is_transcript,
    public_page,
)
from openclaw.storage.files.import_sessions import ImportedSession, import_sessions
from openclaw.storage.files.newer_state import Unreadable
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.sessions import SessionRow
from openclaw.storage.transcripts import Transcript, TranscriptRef, TranscriptStore
from openclaw.worker_thread import with_many

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime, Stores

methods = MethodTable()
MOST_ENTRIES = 200
MOST_RAW = 5
PAGE = 100
"""The rows of a page when its client names no limit."""
KEPT_BY_RESET = ("thinkingLevel", "verboseLevel", "reasoningLevel", "responseUsage")
"""The settings that a reset by this method keeps; a reset by a chat command drops them."""
IMPORT_NEWS_S = 1.0
"""How long a client waits for news of an import."""
IMPORT_PAGE = 500
"""The most sessions that one answer tells about."""


Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class SessionKey(Params):
    key: NonEmpty


# Finding


class SessionsList(Params):
    limit: Positive | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] | None = None
    """Asks for a page: rows from this number on, and how many there are in all. Without it the list is complete."""
    active_minutes: Positive | None = None
    include_global: bool | None = None
    include_unknown: bool | None = None
    include_derived_titles: bool | None = None
    include_last_message: bool | None = None
    label: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    spawned_by: NonEmpty | None = None
    agent_id: NonEmpty | None = None
    search: str | None = None
    pinned: bool | None = None
    """Only pinned conversations, or only others."""
    archived: bool | None = None
    """Only archived conversations, or only others. A message brings an archived one back."""


@methods.add("sessions.list", SessionsList)
async def list_sessions(call: MethodCall, params: SessionsList) -> SessionList:
    """The sessions, newest first, with their model and tokens."""
    gateway = call.gateway
    agent = normalize_agent_id(params.agent_id) if params.agent_id else None
    page = await gateway.runtime.stores.sessions.select(_query(call, params, agent))
    defaults = session_views.model_defaults(gateway.runtime)
    shown = [session_views.row_view(row, defaults) for row in page.rows]
    for row, view in zip(page.rows, shown, strict=True):
        if gateway.runs.occupied(row.key):
            view.running = True
    if params.include_derived_titles or params.include_last_message:
        for row, view in zip(page.rows, shown, strict=True):
            await _add_texts(gateway.runtime.stores.transcripts, params, row, view)
    # The default agent's store comes first.
    agents = [agent] if agent else gateway.directory.agent_ids()
    paths = list(dict.fromkeys(gateway.runtime.stores.sessions.path(name) for name in agents))
    result = SessionList(
        ts=gateway.runtime.clock.now_ms(),
        path=paths[0] if len(paths) == 1 else "(multiple)",
        paths=paths,
        count=len(shown),
        defaults=defaults,
        sessions=shown,
    )
    if params.offset is not None:
        end, total = params.offset + (params.limit or PAGE), page.total or 0
        result.total_count, result.limit_applied, result.offset = total, params.limit or PAGE, params.offset
        result.has_more, result.next_offset = end < total, end if end < total else None
    return result


def _query(call: MethodCall, params: SessionsList, agent: str | None) -> SessionQuery:
    now, paged = call.gateway.runtime.clock.now_ms(), params.offset is not None
    return SessionQuery(
        agent_id=agent,
        label=params.label,
        spawned_by=params.spawned_by,
        updated_since=now - params.active_minutes * 60_000 if params.active_minutes else None,
        text=(params.search or "").strip().lower(),
        pinned=params.pinned,
        archived=params.archived,
        hidden_keys=session_views.hidden_keys(
            include_global=bool(params.include_global) or call.gateway.runtime.config.current.session.scope == "global",
            include_unknown=bool(params.include_unknown),
        ),
        aliases=False,
        offset=params.offset or 0,
        limit=params.limit or (PAGE if paged else None),
        count=paged,
    )


async def _add_texts(transcripts: TranscriptStore, params: SessionsList, row: SessionRow, view: SessionRowView) -> None:
    """Add the title and the last message that the parameters ask for."""
    messages = await last_messages(transcripts, row, 20)
    if params.include_derived_titles:
        view.derived_title = derived_title(row, [*await first_messages(transcripts, row), *messages])
    if params.include_last_message:
        texts = (preview_text(message).strip() for message in reversed(messages))
        if text := next(filter(None, texts), None):
            view.last_message_preview = shortened(text, 240)


class SessionsPreview(Params):
    keys: Annotated[list[NonEmpty], msgspec.Meta(min_length=1)]
    limit: Positive = 12
    max_chars: Annotated[int, msgspec.Meta(ge=20)] = 240


@methods.add("sessions.preview", SessionsPreview)
async def preview(call: MethodCall, params: SessionsPreview) -> SessionPreviews:
    """The last lines of some sessions."""
    limit, max_chars = min(params.limit, 50), min(params.max_chars, 2000)
    previews = [await _preview_of(call, key, limit, max_chars) for key in params.keys[:64]]
    return SessionPreviews(ts=call.gateway.runtime.clock.now_ms(), previews=previews)


async def _preview_of(call: MethodCall, key: str, limit: int, max_chars: int) -> SessionPreview:
    target = call.gateway.directory.target(key)
    entry = await call.gateway.directory.entry(target)
    if entry is None:
        return SessionPreview(key=key, status="missing", items=[])
    messages = await last_messages(
        call.gateway.runtime.stores.transcripts, SessionRow(target.agent_id, target.key, entry), limit
    )
    items = [
        PreviewLine(role=preview_role(message), text=shortened(text, max_chars))
        for message in messages
        if (text := preview_text(message).strip())
    ]
    return SessionPreview(key=key, status="ok" if items else "empty", items=items)


class SessionsResolve(Params):
    key: str | None = None
    session_id: str | None = None
    label: str | None = None
    name: str | None = None
    """Any of the three, as a message to a session gives it. ``new`` says that the message would begin the session."""
    agent_id: str | None = None
    spawned_by: str | None = None
    include_global: bool | None = None
    include_unknown: bool | None = None


@methods.add("sessions.resolve", SessionsResolve)
async def resolve(call: MethodCall, params: SessionsResolve) -> ResolvedSession:
    """The session that goes by a key, an id or a label."""
    names = (params.key, params.session_id, params.label, params.name)
    present = [value.strip() for value in names if value and value.strip()]
    if not present:
        raise MethodError("Either key, sessionId, or label is required")
    if len(present) > 1:
        raise MethodError("Provide either key, sessionId, or label (not multiple)")
    name = present[0]
    if params.name:
        named = await call.gateway.directory.to_write(name, params.agent_id)
        return ResolvedSession(ok=True, key=shown_key(named.ref.key), new=named.entry is None)
    if params.key:
        target = call.gateway.directory.target(name, params.agent_id)
        keys = [target.key] if await call.gateway.directory.entry(target) is not None else []
    else:
        query = SessionQuery(
            agent_id=normalize_agent_id(params.agent_id) if params.agent_id else None,
            session_id=name if params.session_id else None,
            label=None if params.session_id else name,
            spawned_by=params.spawned_by or None,
        )
        keys = [row.key for row in (await call.gateway.runtime.stores.sessions.select(query)).rows]
    by_label = " with label" if params.label else ""
    if not keys:
        raise no_session(name, by_label)
    if len(keys) > 1 and by_label:
        raise MethodError(f"Multiple sessions found with label: {name} ({', '.join(map(shown_key, keys))})")
    return ResolvedSession(ok=True, key=shown_key(keys[0]))


class SessionsSearch(Params):
    query: NonEmpty
    """The words to find. All must occur; words in double quotes must follow each other."""
    agent_id: NonEmpty | None = None
    key: NonEmpty | None = None
    session_id: NonEmpty | None = None
    role: Literal["user", "assistant", "toolResult", "summary"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_RESULTS)] = 20
    read_bytes: Annotated[int, msgspec.Meta(ge=1, le=PER_QUESTION)] = PER_QUESTION
    """At most so much of what was never searched is read first. Less of it answers sooner, and ``indexed`` grows."""


@methods.add("sessions.search", SessionsSearch)
async def search(call: MethodCall, params: SessionsSearch) -> SessionSearch:
    """Search every transcript, tool results included."""
    gateway = call.gateway
    folders = gateway.directory.transcript_folders()
    session_id = params.session_id
    if params.key is not None:
        target = gateway.directory.target(params.key, params.agent_id)
        entry = await gateway.directory.entry(target)
        if entry is None:
            raise MethodError(f"there is no session {target.key}")
        folders = {target.agent_id: folders.get(target.agent_id, [])}
        session_id = session_id or entry["sessionId"]
    elif params.agent_id is not None:
        gateway.directory.require_agent(params.agent_id)
        folders = {params.agent_id: folders[params.agent_id]}
    answer = await gateway.runtime.search.search(
        params.query,
        folders,
        limit=params.limit,
        roles=[params.role] if params.role else [],
        session_ids=[session_id] if session_id else [],
        most_bytes=params.read_bytes,
    )
    # The session key of each current and earlier session id.
    keys: dict[str, str] = {}
    session_ids = frozenset(hit.session_id for hit in answer.results)
    for row in (await gateway.runtime.stores.sessions.select(SessionQuery(ever=session_ids))).rows:
        keys[row.entry["sessionId"]] = shown_key(row.key)
        for previous in previous_sessions(row.entry):
            keys.setdefault(previous.session_id, shown_key(row.key))
    return SessionSearch(
        ts=gateway.runtime.clock.now_ms(),
        results=[
            SearchHit(session_key=keys.get(hit.session_id), **msgspec.structs.asdict(hit)) for hit in answer.results
        ],
        complete=answer.reading.complete,
        indexed=IndexProgress(done=answer.reading.read, total=answer.reading.transcripts),
    )


# Settings

Setting = str | None | msgspec.UnsetType


class SessionsPatch(Params):
    """An absent setting stays unchanged. Null clears a setting."""

    key: NonEmpty
    label: Setting = msgspec.UNSET
    thinking_level: Setting = msgspec.UNSET
    verbose_level: Setting = msgspec.UNSET
    reasoning_level: Setting = msgspec.UNSET
    response_usage: Setting = msgspec.UNSET
    elevated_level: Setting = msgspec.UNSET
    exec_host: Setting = msgspec.UNSET
    exec_security: Setting = msgspec.UNSET
    exec_ask: Setting = msgspec.UNSET
    exec_node: Setting = msgspec.UNSET
    model: Setting = msgspec.UNSET
    spawned_by: Setting = msgspec.UNSET
    send_policy: Setting = msgspec.UNSET
    group_activation: Setting = msgspec.UNSET
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    archived: bool | msgspec.UnsetType = msgspec.UNSET
    read: bool | msgspec.UnsetType = msgspec.UNSET
    """True: the owner has seen the conversation as it is now. False marks it as unread."""


_MARKS = {"pinned": "pinnedAt", "archived": "archivedAt", "read": "readAt"}
"""The marks of lists, each with the field that holds its time."""
_NO_ACTIVITY = {"key", "label", "spawnedBy", *_MARKS}
"""What may change without counting as activity of the conversation."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "verboseLevel": ("on", "full", "off"),
    "reasoningLevel": ("on", "stream", "off"),
    "responseUsage": ("off", "tokens", "full"),
    "elevatedLevel": ("on", "off", "ask", "full"),
    "execHost": ("sandbox", "gateway", "node"),
    "execSecurity": ("deny", "allowlist", "full"),
    "execAsk": ("off", "on-miss", "always"),
    "sendPolicy": ("allow", "deny"),
    "groupActivation": ("mention", "always"),
}
_OFF_IS_ABSENT = frozenset({"reasoningLevel", "responseUsage"})


@methods.add("sessions.patch", SessionsPatch)
async def patch(
    call: MethodCall, params: SessionsPatch, check: Callable[[SessionEntry | None], None] = lambda entry: None
) -> SessionPatched:
    """Change the settings of a session: model, levels, label, queue.

    ``check`` gets the entry in the moment of the change and raises ``MethodError`` to prevent it.
    """
    gateway = call.gateway
    target = gateway.directory.to_change(params.key)
    if label := (params.label or "").strip():
        labelled = await gateway.runtime.stores.sessions.select(SessionQuery(agent_id=target.agent_id, label=label))
        if any(row.key != target.key for row in labelled.rows):
            raise MethodError(f"label already in use: {label}")
    now = gateway.runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry:
        check(entry)
        return apply_patch(entry, params, target, gateway.runtime, now)

    entry = await gateway.runtime.stores.sessions.update(target.agent_id, target.key, change)
    assert entry is not None
    usual = model_defaults(gateway.runtime, target.agent_id)
    model = ModelInUse(model_provider=usual.model_provider, model=usual.model)
    if override := entry.get("modelOverride"):
        model = ModelInUse(model_provider=entry.get("providerOverride"), model=override)
    return SessionPatched(
        ok=True,
        path=gateway.runtime.stores.sessions.path(target.agent_id),
        key=shown_key(target.key),
        entry={**entry},
        resolved=model,
    )


def apply_patch(
    entry: SessionEntry | None, patch: SessionsPatch, target: SessionRef, runtime: Runtime, now_ms: int
) -> SessionEntry:
    """Return the changed entry, or a new one. Raises ``MethodError`` for an invalid value."""
    changed: dict[str, Any] = dict(entry or {"sessionId": str(uuid.uuid4())})
    changes: dict[str, Any] = msgspec.to_builtins(patch)  # It leaves out what is not set.
    # A new name does not count as activity, only what changes how the conversation goes on.
    if entry is None or changes.keys() - _NO_ACTIVITY:
        changed["updatedAt"] = max(now_ms, int(changed.get("updatedAt", 0)))
    for name in _CHOICES:
        if name in changes:
            _set(changed, name, _choice(name, changes[name]))
    for name in _MARKS.keys() & changes.keys():
        _mark(changed, name, at=now_ms if changes[name] else None)
    if "label" in changes:
        _set(changed, "label", _label(changes["label"]))
    if "execNode" in changes:
        _set(changed, "execNode", (changes["execNode"] or "").strip() or None)
    if "spawnedBy" in changes:
        _set_spawned_by(changed, changes["spawnedBy"], target)
    if "model" in changes:
        _set_model(changed, changes["model"], target, runtime)
    if "thinkingLevel" in changes:
        model = session_model(changed, target, runtime)
        _set(changed, "thinkingLevel", _thinking(changes["thinkingLevel"], model, runtime))
    return SessionEntry(**changed)  # type: ignore[typeddict-item]


def _set(entry: dict[str, Any], name: str, value: str | None) -> None:
    if value is None:
        entry.pop(name, None)
    else:
        entry[name] = value


def _mark(entry: dict[str, Any], name: str, *, at: int | None) -> None:
    if at is not None:
        # The last activity may lie a little ahead of this node's clock.
        entry[_MARKS[name]] = max(at, int(entry.get("updatedAt", 0)))
    elif name == "read":
        entry["readAt"] = 0
    else:
        entry.pop(_MARKS[name], None)


def _choice(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    chosen = value.strip().lower()
    if name == "responseUsage" and chosen == "on":
        chosen = "tokens"
    if chosen not in _CHOICES[name]:
        raise MethodError(f"invalid {name} (use {'|'.join(_CHOICES[name])})")
    return None if chosen == "off" and name in _OFF_IS_ABSENT else chosen


def _label(value: str | None) -> str | None:
    if value is None:
        return None
    label = value.strip()
    if not label:
        raise MethodError("invalid label: empty")
    if len(label) > 64:
        raise MethodError("invalid label: too long (max 64)")
    return label


def _thinking(value: str | None, model: Model | None, runtime: Runtime) -> str | None:
    """Return the thinking level to store. "off" is stored only if the session's model would otherwise think."""
    if value is None:
        return None
    level = parse_level(value)
    if level is None:
        raise MethodError("invalid thinkingLevel (use off|minimal|low|medium|high)")
    if level == "xhigh" and model is not None and level not in supported_levels(model):
        raise MethodError(f'thinkingLevel "xhigh" is not available with {model.ref} (use off|minimal|low|medium|high)')
    default = runtime.config.current.agents.defaults.thinking_default
    return None if level == "off" and (model is None or level_unless_set(model, default) == "off") else level


def session_model(entry: Mapping[str, Any], target: SessionRef, runtime: Runtime) -> Model | None:
    """Return the model that the session uses, or None when it is no longer known."""
    try:
        return current_model(entry, runtime.config.current, runtime.models.catalogue(), target.agent_id)
    except UnknownModel:
        return None


def _set_spawned_by(entry: dict[str, Any], value: str | None, target: SessionRef) -> None:
    parent_key = entry.get("spawnedBy")
    if value is None:
        if parent_key:
            raise MethodError("spawnedBy cannot be cleared once set")
        return
    if not is_subagent(target.key):
        raise MethodError("spawnedBy is only supported for subagent:* sessions")
    parent = value.strip()
    if not parent:
        raise MethodError("invalid spawnedBy: empty")
    if parent_key and parent_key != parent:
        raise MethodError("spawnedBy cannot be changed once set")
    entry["spawnedBy"] = parent


def _set_model(entry: dict[str, Any], value: str | None, target: SessionRef, runtime: Runtime) -> None:
    """Sets the model. The default model is stored as no choice, so that it follows the configuration."""
    for name in ("providerOverride", "modelOverride", "authProfileOverride", "authProfileOverrideSource"):
        entry.pop(name, None)
    if value is None:
        return
    text = value.strip()
    if not text:
        raise MethodError("invalid model: empty")
    try:
        model = runtime.models.catalogue().resolve(text)
        default = runtime.models.catalogue().default_for(runtime.config.current, target.agent_id)
    except UnknownModel as unknown:
        raise MethodError(f"invalid model: {unknown}") from None
    if model.ref != default.ref:
        entry["providerOverride"], entry["modelOverride"] = model.provider, model.id


# Ending and resuming


@methods.add("sessions.reset", SessionKey)
async def reset(call: MethodCall, params: SessionKey) -> SessionRestarted:
    """Start a new session under the key. Running work is stopped first; the old transcript stays."""
    gateway = call.gateway
    target = gateway.directory.to_change(params.key)
    rotation = await start_over(gateway.runtime, gateway.runs, target)
    gateway.notices.announce(target, rotation)
    old: dict[str, Any] = dict(rotation.old or {})
    levels = {name: old[name] for name in KEPT_BY_RESET if name in old}

    def change(entry: SessionEntry | None) -> SessionEntry | None:
        return SessionEntry(**{**entry, **levels}) if entry is not None else None  # type: ignore[typeddict-item]

    entry = await gateway.runtime.stores.sessions.update(target.agent_id, target.key, change)
    return SessionRestarted(ok=True, key=shown_key(target.key), entry={**entry} if entry is not None else None)


class SessionsDelete(Params):
    key: NonEmpty
    delete_transcript: bool = True


@methods.add("sessions.delete", SessionsDelete)
async def delete(call: MethodCall, params: SessionsDelete) -> SessionDeleted:
    """Delete a session; its transcript is kept as an archive."""
    gateway = call.gateway
    target = gateway.directory.target(params.key)
    if target == gateway.directory.target("main"):
        raise MethodError(f"Cannot delete the main session ({shown_key(target.key)}).")
    await gateway.pipeline.commands.subagents.stop_all(target.key)
    archived = await delete_session(gateway.runtime, gateway.runs, target, archive=params.delete_transcript)
    return SessionDeleted(
        ok=True, key=shown_key(target.key), deleted=archived is not None, archived=[*map(str, archived or ())]
    )


@methods.add("sessions.archived", SessionKey)
async def archived(call: MethodCall, params: SessionKey) -> EarlierSessions:
    """The earlier sessions of a conversation."""
    target = call.gateway.directory.target(params.key)
    entry = await call.gateway.directory.entry(target)
    return EarlierSessions(
        ts=call.gateway.runtime.clock.now_ms(),
        key=shown_key(target.key),
        session_id=entry["sessionId"] if entry else None,
        sessions=await earlier_sessions(call.gateway.runtime, target),
    )


class SessionsResume(Params):
    key: NonEmpty
    session_id: NonEmpty | None = None
    """The session id or its beginning."""
    index: Positive | None = None
    """The place in the list, where 1 is the newest. Without id and index the newest is meant."""


@methods.add("sessions.resume", SessionsResume)
async def resume(call: MethodCall, params: SessionsResume) -> SessionResumed:
    """Make an earlier session the current one again."""
    if params.session_id is not None and params.index is not None:
        raise MethodError("Provide either sessionId or index (not both)")
    target = call.gateway.directory.target(params.key)
    try:
        chosen = params.index
        if params.session_id is not None:
            chosen = await wanted_session(call.gateway.runtime, target, params.session_id.strip())
        rotation = await resume_session(call.gateway.runtime, call.gateway.runs, target, chosen)
        call.gateway.notices.announce(target, rotation)
    except NotResumable as refused:
        raise MethodError(str(refused)) from None
    return SessionResumed(
        ok=True,
        key=shown_key(target.key),
        session_id=rotation.new["sessionId"],
        previous_session_id=rotation.old["sessionId"] if rotation.old else None,
        marker=rotation.marker_text,
        entry={**rotation.new},
    )


# Shorter conversations


class SessionsCompact(Params):
    key: NonEmpty
    max_lines: Positive = 400


@methods.add("sessions.compact", SessionsCompact)
async def compact(call: MethodCall, params: SessionsCompact) -> TranscriptShortened:
    """Keep the last lines of a transcript. The whole file stays beside it, and the header is never lost."""
    gateway = call.gateway
    target = gateway.directory.target(params.key)
    entry = await gateway.directory.entry(target)
    result = TranscriptShortened(ok=True, key=shown_key(target.key), compacted=False)
    if entry is None:
        result.reason = "no sessionId"
        return result
    ref = transcript_ref(target.agent_id, entry)
    if await gateway.runtime.stores.transcripts.locate(ref) is None:
        result.reason = "no transcript"
        return result
    shortened = await gateway.runs.exclusively(
        target.key, lambda: gateway.runtime.stores.transcripts.shorten(ref, params.max_lines)
    )
    result.archived, result.kept = shortened.archived, shortened.kept
    if shortened.archived is None:
        return result

    def drop_counters(entry: SessionEntry | None) -> SessionEntry | None:
        for name in ("inputTokens", "outputTokens", "totalTokens", "cacheRead", "cacheWrite"):
            if entry is not None:
                entry.pop(name, None)
        return entry

    await gateway.runtime.stores.sessions.update(target.agent_id, target.key, drop_counters)
    result.compacted = True
    return result


class SessionsCompaction(Params):
    key: NonEmpty
    action: Literal["preview", "compact", "undo"]
    instructions: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    """What the summary should keep in mind."""


@methods.add("sessions.compaction", SessionsCompaction)
async def compaction(call: MethodCall, params: SessionsCompaction) -> SessionCompaction:
    """Compact a conversation as ``/compact`` does, preview it, or undo it."""
    target = call.gateway.directory.target(params.key)
    compactions, result = call.gateway.runs.compactions, SessionCompaction(ok=True, key=shown_key(target.key))
    try:
        match params.action:
            case "preview":
                result.text = await compactions.preview(target.agent_id, target.key)
            case "undo":
                result.tokens_after = await compactions.undo(target.agent_id, target.key)
            case "compact":
                outcome = await compactions.compact_now(target.agent_id, target.key, params.instructions)
                result.status, result.reason = outcome.status, outcome.reason
                result.tokens_before, result.tokens_after = outcome.tokens_before, outcome.tokens_after
    except NothingToDo as nothing:
        raise MethodError(str(nothing)) from None
    return result


class SessionsArchive(Params):
    after_days: Positive | None = None
    """The age in days. Without it ``session.archive.afterDays`` counts."""
    most: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    """At most so many are compressed. ``left`` of the answer says how many more there are."""


@methods.add("sessions.archive", SessionsArchive)
async def archive(call: MethodCall, params: SessionsArchive) -> TranscriptsArchived:
    """Compress old transcripts now rather than in the next hour."""
    done = await call.gateway.maintenance.compress(params.after_days, params.most)
    return TranscriptsArchived(
        ok=not done.problems,
        compressed=done.files,
        problems=done.problems[:50],
        left=done.left,
        bytes_before=done.bytes_before,
        bytes_after=done.bytes_after,
    )


# The tree of a conversation


@methods.add("sessions.tree", SessionKey)
async def tree(call: MethodCall, params: SessionKey) -> SessionTree:
    """Every entry with its parent, in the order written. The next message follows ``leafId``."""
    target = call.gateway.directory.target(params.key)
    transcript = await _transcript(call.gateway.runtime.stores, target)
    labels = transcript.labels()

    def encoded() -> msgspec.Raw:
        entries = [
            {"id": id, "parentId": parent, "type": kind, **({"label": labels[id]} if id in labels else {})}
            for id, parent, kind in transcript.tree()
        ]
        return msgspec.Raw(msgspec.json.encode(entries))

    return SessionTree(
        key=shown_key(target.key),
        session_id=transcript.session_id,
        leaf_id=transcript.leaf_id,
        entries=await with_many(len(transcript), encoded),
    )


class SessionsEntries(Params):
    key: NonEmpty
    ids: Annotated[list[NonEmpty], msgspec.Meta(min_length=1, max_length=MOST_ENTRIES)]
    raw: bool = False
    """Asks for the whole lines as they are stored, at most ``MOST_RAW`` of them."""


@methods.add("sessions.entries", SessionsEntries)
async def entries(call: MethodCall, params: SessionsEntries) -> SessionEntries:
    """Return entries of the tree: who, when and the text, or the stored lines. Unknown ids are left out."""
    target = call.gateway.directory.target(params.key)
    transcript = await _transcript(call.gateway.runtime.stores, target)
    ids = params.ids[:MOST_RAW] if params.raw else params.ids
    existing = [entry for id in ids if (entry := await transcript.entry(id)) is not None]
    if params.raw:
        shown = [StoredEntry(id=entry.id, raw=entry.raw.decode("utf-8", "replace")) for entry in existing]
    else:
        shown = [entry_view(entry) for entry in existing]
    return SessionEntries(key=shown_key(target.key), session_id=transcript.session_id, entries=shown)


class SessionsBranch(Params):
    key: NonEmpty
    entry_id: NonEmpty | None = None
    """The entry after which the session continues. Without it the session continues from its beginning."""
    summarize: bool = True
    """Add a summary of the branch that is left, for the agent."""


@methods.add("sessions.branch", SessionsBranch)
async def branch(call: MethodCall, params: SessionsBranch) -> SessionBranched:
    """Continue from an earlier entry; what followed stays as a branch."""
    target = call.gateway.directory.target(params.key)
    if call.gateway.runs.occupied(target.key):
        raise MethodError("A message of this session is being answered; wait for it or stop it first.", "UNAVAILABLE")
    moves = call.gateway.runs.compactions
    try:
        added = await moves.rewind(target.agent_id, target.key, params.entry_id, summarise=params.summarize)
    except KeyError:
        raise MethodError(f"No entry found: {params.entry_id}") from None
    except NothingToDo as nothing:
        raise MethodError(str(nothing)) from None
    return SessionBranched(ok=True, key=shown_key(target.key), leaf_id=added)


@methods.add("sessions.versions", SessionKey)
async def versions(call: MethodCall, params: SessionKey) -> SessionVersions:
    """The messages that were edited or answered again, each with its other versions."""
    target = call.gateway.directory.target(params.key)
    transcript = await _transcript(call.gateway.runtime.stores, target)
    tree, leaf_id = transcript.tree(), transcript.leaf_id
    return SessionVersions(
        key=shown_key(target.key),
        session_id=transcript.session_id,
        messages=await with_many(len(tree), lambda: message_versions(tree, leaf_id)),
    )


def message_versions(tree: Sequence[tuple[str, str | None, str]], leaf_id: str | None) -> list[MessageVersions]:
    """Return the messages of the active branch that share their predecessor with others.

    ``tree`` holds (id, parentId, type) of every entry, in the order written.
    """
    messages = {id for id, _, kind in tree if kind == "message"}
    before: dict[str, str | None] = {}  # The last message above each entry.
    following: dict[str | None, list[str]] = {}
    for id, parent, kind in tree:
        before[id] = parent if parent in messages else before.get(parent) if parent is not None else None
        if kind == "message":
            following.setdefault(before[id], []).append(id)
    leaves: dict[str, str] = {}
    for id, parent, _ in reversed(tree):
        leaf = leaves.setdefault(id, id)
        if parent is not None:
            leaves.setdefault(parent, leaf)
    shown: list[MessageVersions] = []
    at = leaf_id if leaf_id in messages else before.get(leaf_id) if leaf_id is not None else None
    while at is not None:
        siblings = following[before[at]]
        if len(siblings) > 1:
            shown.append(MessageVersions(at, [Version(id, leaves[id]) for id in siblings]))
        at = before[at]
    return shown[::-1]


class SessionsFork(Params):
    key: NonEmpty
    entry_id: NonEmpty | None = None
    """The last entry of the new session. Without it the whole active branch is copied."""
    to: NonEmpty | None = None
    """The key of the new session. It must not exist yet. Without it a key is made."""


@methods.add("sessions.fork", SessionsFork)
async def fork(call: MethodCall, params: SessionsFork) -> SessionForked:
    """Begins a new session with a copy of a conversation up to one entry. The original stays as it is."""
    gateway = call.gateway
    source = gateway.directory.target(params.key)
    entry = await gateway.directory.entry(source)
    if entry is None:
        raise no_session(params.key)
    transcript = await _transcript(gateway.runtime.stores, source)
    if params.entry_id is not None and params.entry_id not in {one.id for one in await transcript.path_entries()}:
        raise MethodError(f"No entry found on the active branch: {params.entry_id}")
    target = gateway.directory.target(params.to or f"chat-{uuid.uuid4().hex[:12]}", source.agent_id)

    async def work() -> SessionForked:
        if await gateway.directory.entry(target) is not None:
            raise MethodError(f"{target.key} exists already; fork into another key")
        session_id = str(uuid.uuid4())
        ref = TranscriptRef(agent_id=target.agent_id, session_id=session_id)
        home = home_of(gateway.runtime, target.agent_id)
        forked = await gateway.runtime.stores.transcripts.fork(transcript, ref, cwd=home)
        if params.entry_id is not None:
            await forked.branch(params.entry_id)
            # The store remembers where a branch begins once an entry follows there.
            await forked.append({"type": "branch_summary", "fromId": params.entry_id, "summary": ""}, durable=True)
        settings: dict[str, Any] = {name: value for name, value in entry.items() if name in _FORKED}
        fresh = SessionEntry(sessionId=session_id, updatedAt=gateway.runtime.clock.now_ms(), **settings)
        await gateway.runtime.stores.sessions.update(target.agent_id, target.key, lambda _: fresh)
        count = len(await forked.path_entries())
        return SessionForked(ok=True, key=shown_key(target.key), session_id=session_id, entries=count)

    return await gateway.runs.exclusively(target.key, work)


_FORKED = ("providerOverride", "modelOverride", "thinkingLevel", "verboseLevel", "reasoningLevel", "responseUsage")
"""The settings that a fork inherits. It gets no rights that were given to the original."""


class SessionsLabel(Params):
    key: NonEmpty
    entry_id: NonEmpty
    label: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """The new label. An absent or empty one removes the label."""


@methods.add("sessions.label", SessionsLabel)
async def label(call: MethodCall, params: SessionsLabel) -> EntryLabelled:
    """Label an entry of a conversation."""
    target = call.gateway.directory.target(params.key)

    async def name() -> str:
        transcript = await _transcript(call.gateway.runtime.stores, target)
        if params.entry_id not in transcript:
            raise MethodError(f"No entry found: {params.entry_id}")
        return await transcript.label(params.entry_id, (params.label or "").strip() or None)

    entry_id = await call.gateway.runs.exclusively(target.key, name)
    return EntryLabelled(ok=True, key=shown_key(target.key), entry_id=entry_id)


async def _transcript(stores: Stores, target: SessionRef) -> Transcript:
    entry = await stores.sessions.get(target.agent_id, target.key)
    transcript = None
    if entry is not None:
        transcript = await stores.transcripts.open(transcript_ref(target.agent_id, entry), create=False)
    if transcript is None:
        raise MethodError(f"No session found: {target.key}")
    return transcript


# Taking conversations out and in


class SessionsExport(Params):
    key: NonEmpty
    session_id: NonEmpty | None = None
    """An earlier session of that key. Without it the current one is exported."""
    format: Literal["raw", "public", "markdown", "html"] = "public"
    """``raw`` is every line of the transcript with all branches; ``public`` is the messages of the conversation.

    ``markdown`` and ``html`` are pieces of one document, which the caller joins.
    """
    cursor: Annotated[int, msgspec.Meta(ge=0)] = 0


@methods.add("sessions.export", SessionsExport)
async def export(call: MethodCall, params: SessionsExport) -> SessionExport:
    """A conversation as JSON lines, in pages."""
    gateway = call.gateway
    target = gateway.directory.target(params.key)
    ref = _transcript_of(target, await gateway.directory.entry(target), params.session_id)
    if await gateway.runtime.stores.transcripts.locate(ref) is None:
        raise MethodError(f"session {ref.session_id} of {target.key} has no transcript")
    if params.format == "raw":
        lines, following = await gateway.runtime.stores.transcripts.page(ref, params.cursor, PAGE_BYTES)
        items: list[Any] = [line.decode("utf-8", "replace") for line in lines]
    else:
        transcript = await gateway.runtime.stores.transcripts.open(ref, create=False)
        entries = await transcript.path_entries() if transcript is not None else []
        shown = partial(as_people_see_it, with_reasoning=False)

        def page() -> tuple[list[Any], int | None]:
            messages = [entry for entry in entries if entry.type == "message"]
            return public_page(joined_parts(messages), params.cursor, shown)

        items, following = await asyncio.to_thread(page)
    if params.format in ("markdown", "html"):
        items = await asyncio.to_thread(conversation_export.render, params.format, items)
        if params.cursor == 0:
            row = SessionRow(
                target.agent_id,
                target.key,
                await gateway.directory.entry(target) or SessionEntry(sessionId=ref.session_id),
            )
            first = await first_messages(gateway.runtime.stores.transcripts, row)
            title = row.entry.get("label") or derived_title(row, first)
            items = [conversation_export.heading(params.format, title), *items]
        if following is None:
            items.append(conversation_export.ending(params.format))
    return SessionExport(
        key=shown_key(target.key), session_id=ref.session_id, format=params.format, items=items, next=following
    )


def _transcript_of(target: SessionRef, entry: SessionEntry | None, session_id: str | None) -> TranscriptRef:
    """Return the transcript of the current session, or of an earlier one. Raise ``MethodError`` if there is none."""
    if entry is None:
        raise MethodError(f"there is no session {target.key}")
    if session_id is None or session_id == entry["sessionId"]:
        session_id, file = entry["sessionId"], entry.get("sessionFile")
    else:
        earlier = {previous.session_id: previous.session_file for previous in previous_sessions(entry)}
        if session_id not in earlier:
            raise MethodError(f"{target.key} never had a session {session_id[:80]}")
        file = earlier[session_id]
    return TranscriptRef(agent_id=target.agent_id, session_id=session_id, file=file)


class SessionsImport(Params):
    key: NonEmpty
    """The key of the new session. It must not exist yet."""
    lines: list[str]
    """The lines of an export, in either format."""


@methods.add("sessions.import", SessionsImport)
async def import_(call: MethodCall, params: SessionsImport) -> SessionImported:
    """Import an exported conversation as a new session."""
    gateway = call.gateway
    target = gateway.directory.target(params.key)
    gateway.directory.require_agent(target.agent_id)

    async def work() -> str:
        if await gateway.directory.entry(target) is not None:
            raise MethodError(f"{target.key} exists already; import into another key")
        try:
            return await _create_imported(gateway.runtime, target, params.lines)
        except CannotImport as problem:
            raise MethodError(f"not imported: {problem}") from None

    session_id = await gateway.runs.exclusively(target.key, work)
    return SessionImported(ok=True, key=shown_key(target.key), session_id=session_id)


async def _create_imported(runtime: Runtime, target: SessionRef, lines: list[str]) -> str:
    """Write the transcript and then the entry, so that an entry never lacks its transcript."""
    session_id, now = str(uuid.uuid4()), runtime.clock.now_ms()
    ref = TranscriptRef(agent_id=target.agent_id, session_id=session_id)
    if is_transcript(lines):
        data = await asyncio.to_thread(imported_lines, lines, session_id, iso_utc(now))
        await runtime.stores.transcripts.create(ref, data)
    else:
        messages = await asyncio.to_thread(imported_messages, lines, now)
        transcript = await runtime.stores.transcripts.open(ref, cwd=home_of(runtime, target.agent_id))
        assert transcript is not None
        for message in messages:
            await transcript.append({"type": "message", "message": message})
        await transcript.sync()
    entry = SessionEntry(sessionId=session_id, updatedAt=now)
    await runtime.stores.sessions.update(target.agent_id, target.key, lambda _: entry)
    return session_id


class SessionsImportFolder(Params):
    from_: NonEmpty = msgspec.field(name="from")
    """Another state folder on the Gateway's machine. It is only read."""
    dry_run: bool = False
    seen: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many sessions earlier answers have told about. 0 begins."""


class FolderImport:
    """An import of a state folder that goes on while its client asks how far it is."""

    def __init__(self, source: AsyncIterator[ImportedSession], options: tuple[str, bool], spawn: Spawn) -> None:
        self.done: list[ImportedSession] = []
        self.options = options
        """The folder, and whether it is a dry run."""
        self.task = spawn(self._run(source))

    async def _run(self, source: AsyncIterator[ImportedSession]) -> None:
        async for session in source:
            self.done.append(session)


class FolderImportNews(Result):
    """The sessions that were imported since the last call."""

    sessions: list[ImportedSession]
    seen: int
    """The number for the next call."""
    done: bool


@methods.add("sessions.importFolder", SessionsImportFolder)
async def import_folder(call: MethodCall, params: SessionsImportFolder) -> FolderImportNews:
    """Begin an import, or return what it has done since the last call. One runs at a time."""
    gateway = call.gateway
    if not gateway.runtime.stores.on_files:
        raise MethodError("This Gateway keeps its sessions in a database, and folders are imported into files only.")
    running, options = gateway.folder_import, (params.from_, params.dry_run)
    if running is None or (running.task.done() and not params.seen):
        source = import_sessions(
            Path(params.from_).expanduser(),
            gateway.runtime.state_dir,
            gateway.runtime.stores.sessions,
            dry_run=params.dry_run,
        )
        running = gateway.folder_import = FolderImport(source, options, gateway.spawn)
    elif running.options != options:
        raise MethodError(f"another folder is being imported: {running.options[0]}", code="UNAVAILABLE")
    await asyncio.wait([running.task], timeout=IMPORT_NEWS_S)
    finished = running.task.done()
    if finished and isinstance(problem := running.task.exception(), Unreadable):
        gateway.folder_import = None
        raise MethodError(str(problem))
    if finished:
        running.task.result()
    news = running.done[params.seen : params.seen + IMPORT_PAGE]
    seen = params.seen + len(news)
    return FolderImportNews(sessions=news, seen=seen, done=finished and seen == len(running.done))
