"""The tools that look at sessions: ``sessions_list``, ``sessions_history``, ``sessions_search``, ``session_status`` and
``agents_list``.

``agent/session_access.py`` says who may see and use which session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from openclaw.agent.prompt.system_prompt import local_time
from openclaw.agent.recorder import entry_id
from openclaw.agent.runtime import Runtime
from openclaw.agent.session_access import Refusal, SessionAccess
from openclaw.agent.session_search import search_sessions
from openclaw.config.agents import (
    agent_config,
    agent_ids,
    main_key,
)
from openclaw.config.schema import Config
from openclaw.models.base import Model, ModelError
from openclaw.paths import normalize_agent_id
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import (
    SessionRef,
    channel_of,
    kind_of,
)
from openclaw.sessions.reset import previous_sessions, transcript_ref
from openclaw.storage.session_query import SessionQuery, in_pages
from openclaw.storage.sessions import SessionRow
from openclaw.storage.transcripts import Entry, TranscriptRef
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, failure_sentence, text_result

MOST_ROWS = 200
MOST_MESSAGES_PER_ROW = 20
MOST_MESSAGES = 1000
USUAL_MESSAGES = 200
AROUND_ANCHOR = 20
USUAL_HITS = 10
MOST_HITS = 50
STEPS_OF_RUN = 200
"""How many entries of the run that asks are left out of its hits."""
ANCHOR_MARK = "#"
LONGEST_TEXT = 4000
MOST_BYTES = 80 * 1024
ENVELOPE = 300
"""Room for what a list or a history has besides its rows or messages."""
FARTHEST = 1000
"""How many entries of a transcript are looked at for messages that are no results of tools."""
KINDS = frozenset({"main", "group", "cron", "hook", "node", "other"})
_CUT = "\n…(truncated)…"
_COPIED = (
    "label",
    "displayName",
    "updatedAt",
    "sessionId",
    "totalTokens",
    "thinkingLevel",
    "verboseLevel",
    "systemSent",
    "abortedLastRun",
    "sendPolicy",
    "lastChannel",
    "lastTo",
    "lastAccountId",
    "spawnedBy",
)
_PRIVATE = frozenset({"details", "usage", "cost", "thinkingSignature", "textSignature", "thoughtSignature"})

ReadHistory = Callable[[Sequence[Entry]], list[Any]]
"""Makes the messages that people see of transcript entries, encoded."""
StatusCard = Callable[[SessionRef], Awaitable[str]]
"""Returns the text of ``/status`` for a session."""


class SessionViews(msgspec.Struct, frozen=True):
    """What the tools need of the Gateway."""

    runtime: Runtime
    read_history: ReadHistory
    status_card: StatusCard

    def visibility(self, context: ToolContext) -> SessionAccess:
        requester = SessionRef(context.agent_id, context.session_key)
        return SessionAccess(self.runtime.config.current, self.runtime.stores.sessions, requester, context.caller)

    async def messages(self, row: SessionRow, limit: int, *, tools: bool = False) -> list[dict[str, Any]]:
        """The last messages of a session, without results of tools unless they are wanted."""
        ref = transcript_ref(row.agent_id, row.entry)
        shown: list[dict[str, Any]] = []
        # Many calls at once have many results, so the first look may not reach far enough.
        for most in (limit,) if tools else (limit * 4 + 20, FARTHEST):
            entries = await self.runtime.stores.transcripts.tail(ref, most)
            messages = [msgspec.json.decode(raw) for raw in self.read_history(entries)]
            shown = [message for message in messages if tools or message.get("role") != "toolResult"]
            if len(shown) >= limit or len(entries) < most:
                break
        return shown[-limit:]

    async def around(
        self, ref: TranscriptRef, entry_id: str, limit: int, *, tools: bool
    ) -> tuple[list[dict[str, Any]], int]:
        """The messages around an entry, and the place of its own. Empty if there is no such entry."""
        transcript = await self.runtime.stores.transcripts.open(ref, create=False)
        # As in ``messages``, most entries may be results of tools.
        most = limit if tools else limit * 4 + 20
        entries = [] if transcript is None else await transcript.shown_around(entry_id, most)
        middle = next((number for number, entry in enumerate(entries) if entry.id == entry_id), None)
        if middle is None:
            return [], 0

        def read(some: Sequence[Entry]) -> list[dict[str, Any]]:
            messages = [msgspec.json.decode(raw) for raw in self.read_history(some)]
            return [message for message in messages if tools or message.get("role") != "toolResult"]

        own = [msgspec.json.decode(raw) for raw in self.read_history(entries[middle : middle + 1])]
        before = read(entries[:middle])[-(limit // 2) :] if limit > 1 else []
        after = read(entries[middle + 1 :])[: max(limit - len(before) - len(own), 0)]
        return [*before, *own, *after], len(before)


def answer(details: dict[str, Any]) -> ToolResult:
    """A result that the model reads as JSON and clients read as ``details``. A model reads a failure as a sentence."""
    return text_result(failure_sentence(details) or msgspec.json.encode(details).decode(), details)


def refused(refusal: Refusal, **more: Any) -> ToolResult:
    return answer({**more, "status": refusal.status, "error": str(refusal), **refusal.more})


def bounded(number: float | None, least: int, otherwise: int, most: int) -> int:
    """Return a number argument rounded down and limited to its bounds."""
    return otherwise if number is None else int(max(least, min(number, most)))


class SessionsListArguments(ToolArguments):
    kinds: Annotated[list[str], Meta(description="Only these kinds: main, group, cron, hook, node, other")] = []
    limit: Annotated[float, Meta(ge=1, description=f"Most rows (at most {MOST_ROWS})")] = MOST_ROWS
    active_minutes: Annotated[float, Meta(ge=1, description="Only sessions used since then")] | None = None
    message_limit: Annotated[
        float,
        Meta(ge=0, description=f"Last messages per session, no tool results (0; at most {MOST_MESSAGES_PER_ROW})"),
    ] = 0


class SessionsListTool(RecordTool[SessionsListArguments]):
    name = "sessions_list"
    parallel = True
    summary = "List other sessions (chats, groups, cron jobs, sub-agents) with filters and last messages"
    description = (
        "List the sessions this agent can see, newest first: key, kind, channel, model, tokens and where its "
        "transcript is. With messageLimit each row also has its last messages. hasMore says that there are more "
        "sessions than rows; narrow the list with kinds or activeMinutes."
    )

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def execute(self, arguments: SessionsListArguments, context: ToolContext) -> ToolResult:
        runtime, visibility = self._views.runtime, self._views.visibility(context)
        config = runtime.config.current
        kinds = {kind.strip().lower() for kind in arguments.kinds} & KINDS
        limit = bounded(arguments.limit, 1, MOST_ROWS, MOST_ROWS)
        per_row = bounded(arguments.message_limit, 0, 0, MOST_MESSAGES_PER_ROW)
        minutes = bounded(arguments.active_minutes, 1, 0, 1 << 40)
        since = runtime.clock.now_ms() - minutes * 60_000 if minutes else 0
        shown: list[dict[str, Any]] = []
        more = False
        room = context.result_chars - ENVELOPE
        hidden = ("unknown",) if config.session.scope == "global" else ("unknown", "global")
        query = SessionQuery(updated_since=since, hidden_keys=hidden, aliases=False)
        async for row in in_pages(runtime.stores.sessions, query):
            kind = kind_of(row.key, row.entry, main_key=main_key(config), scope=config.session.scope)
            if (kinds and kind not in kinds) or not visibility.allows(row, "list"):
                continue
            if len(shown) >= limit:
                more = True
                break
            view = await self._view(row, kind, visibility)
            if per_row:
                view["messages"] = [Cutter().message(message) for message in await self._views.messages(row, per_row)]
            size = len(msgspec.json.encode(view)) + 1
            if size > room and shown:
                more = True
                break
            if size > room and per_row:  # The first row has as many of its messages as fit.
                others = size - len(msgspec.json.encode(view["messages"]))
                view["messages"], _ = within(view["messages"], room - others)
            shown.append(view)
            room -= size
        return answer({"count": len(shown), "hasMore": more, "sessions": shown})

    async def _view(self, row: SessionRow, kind: Any, visibility: SessionAccess) -> dict[str, Any]:
        entry: dict[str, Any] = dict(row.entry)
        runtime = self._views.runtime
        view: dict[str, Any] = {
            "key": visibility.shown(row.key),
            "kind": kind,
            "channel": channel_of(row.entry, row.key, kind=kind),
            **{name: entry.get(name) for name in _COPIED},
        }
        if isinstance(delivery := entry.get("deliveryContext"), dict):
            view["deliveryContext"] = _without_nulls(delivery) or None
        model, window = _model_of(row, runtime)
        view |= {"model": model, "contextTokens": entry.get("contextTokens") or window}
        view["totalTokens"] = view["totalTokens"] or 0
        ref = transcript_ref(row.agent_id, row.entry)
        view["transcriptPath"] = await runtime.stores.transcripts.locate(
            ref
        ) or runtime.stores.transcripts.default_path(ref)
        return _without_nulls(view)


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _model_of(row: SessionRow, runtime: Runtime) -> tuple[str | None, int | None]:
    entry = row.entry
    name = entry.get("modelOverride") or entry.get("model")
    try:
        default = runtime.models.catalogue().default_for(runtime.config.current, row.agent_id)
    except ModelError:
        return name, None
    return name or default.id, default.context_window


class SessionsHistoryArguments(ToolArguments):
    session_key: Annotated[str, Meta(description="A key or a sessionId of sessions_list")] = ""
    anchor: Annotated[str, Meta(description="Instead: of a sessions_search hit; reads the messages around it")] = ""
    limit: Annotated[float, Meta(ge=1, description=f"Most messages (at most {MOST_MESSAGES})")] | None = None
    include_tools: Annotated[bool, Meta(description="Also the results of tools (false)")] = False


class SessionsHistoryTool(RecordTool[SessionsHistoryArguments]):
    name = "sessions_history"
    examples = ({"sessionKey": "main", "limit": 20},)
    parallel = True
    summary = "Read the messages of another session"
    description = "Read the transcript of a session by its key or session id. Long texts are shortened."

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def execute(self, arguments: SessionsHistoryArguments, context: ToolContext) -> ToolResult:
        visibility = self._views.visibility(context)
        room = min(MOST_BYTES, context.result_chars - ENVELOPE)
        cut = Cutter()
        try:
            if anchor := arguments.anchor.strip():
                return await self._around(anchor, arguments, visibility, room)
            name = required_text(arguments.session_key, "sessionKey").strip()
            row = await visibility.find(name)
            visibility.check(row, "history", name)
        except Refusal as refusal:
            return refused(refusal)
        limit = bounded(arguments.limit, 1, USUAL_MESSAGES, MOST_MESSAGES)
        found = await self._views.messages(row, limit, tools=arguments.include_tools)
        messages = [cut.message(message) for message in found]
        rest, size = within(messages, room)
        if not rest and messages:
            rest = [_too_large(messages[-1])]
            size = len(msgspec.json.encode(rest))
        return answer(_history(visibility.shown(row.key), rest, len(rest) < len(messages), cut.happened, size))

    async def _around(
        self, anchor: str, arguments: SessionsHistoryArguments, visibility: SessionAccess, room: int
    ) -> ToolResult:
        passage = await find_anchor(anchor, visibility)
        limit = bounded(arguments.limit, 1, AROUND_ANCHOR, USUAL_MESSAGES)
        found, middle = await self._views.around(passage.ref, passage.entry_id, limit, tools=arguments.include_tools)
        if not found:
            raise Refusal(f"No message at anchor: {anchor}", "error")
        cut = Cutter()
        messages = [cut.message(message) for message in found]
        rest, size = within_around(messages, middle, room)
        details = _history(passage.shown, rest, len(rest) < len(messages), cut.happened, size)
        return answer({**details, "anchor": anchor})


def _history(
    session_key: str, messages: list[dict[str, Any]], dropped: bool, shortened: bool, size: int
) -> dict[str, Any]:
    return {
        "sessionKey": session_key,
        "messages": messages,
        "truncated": dropped or shortened,
        "droppedMessages": dropped,
        "contentTruncated": shortened,
        "bytes": size,
    }


def _too_large(message: dict[str, Any]) -> dict[str, Any]:
    note = {"type": "text", "text": "(the last message is too large to be shown)"}
    return {"role": str(message.get("role") or "assistant"), "content": [note]}


# Search


class SessionsSearchArguments(ToolArguments):
    query: Annotated[str, Meta(description='Words that must all occur; "in quotes" as a phrase')]
    limit: Annotated[float, Meta(ge=1, description=f"Most hits ({USUAL_HITS}, at most {MOST_HITS})")] | None = None
    include_tools: Annotated[bool, Meta(description="Also search results of tools (false)")] = False


class SessionsSearchTool(RecordTool[SessionsSearchArguments]):
    name = "sessions_search"
    summary = "Search the text of past conversations"
    description = (
        "Find words in past conversations, earlier sessions included. Each hit has the session, time, a snippet and "
        "an anchor: pass it to sessions_history to read the messages around it."
    )
    parallel = True

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def execute(self, arguments: SessionsSearchArguments, context: ToolContext) -> ToolResult:
        query = required_text(arguments.query, "query")
        runtime, access = self._views.runtime, self._views.visibility(context)
        limit = bounded(arguments.limit, 1, USUAL_HITS, MOST_HITS)
        roles = () if arguments.include_tools else ("user", "assistant", "summary")
        # The message that asks has the words as well, and so have the agent's own calls.
        asking = {entry_id(context.run_id, step) for step in range(STEPS_OF_RUN)}
        found = await search_sessions(runtime, access, query, limit + MOST_HITS, roles=roles)
        hits: list[dict[str, Any]] = []
        room = context.result_chars - ENVELOPE
        for match in found.matches:
            hit = match.hit
            if hit.entry_id in asking or len(hits) >= limit:
                continue
            view = {
                "sessionKey": access.shown(match.row.key) if match.row else hit.session_id,
                "role": hit.role,
                **({"toolName": hit.tool_name} if hit.tool_name else {}),
                "timestamp": hit.timestamp,
                "snippet": hit.snippet,
                "anchor": f"{hit.session_id}{ANCHOR_MARK}{hit.entry_id}",
            }
            room -= len(msgspec.json.encode(view)) + 1
            if room < 0 and hits:
                break
            hits.append(view)
        progress = found.reading
        more = {} if progress.complete else {"indexed": f"{progress.read} of {progress.transcripts} transcripts so far"}
        return answer({"count": len(hits), "hits": hits, **more})


class Anchor(msgspec.Struct, frozen=True):
    """The place in a transcript that an anchor means."""

    ref: TranscriptRef
    entry_id: str
    shown: str
    """The key of its session as the requester knows it, or its session id."""


async def find_anchor(anchor: str, access: SessionAccess) -> Anchor:
    """Resolve the anchor of a hit. Raises ``Refusal`` if there is no such transcript or it may not be read."""
    session_id, mark, entry_id = anchor.partition(ANCHOR_MARK)
    agent_id = access.agent_id
    if not mark or not entry_id:
        raise Refusal(f"Invalid anchor: {anchor}. Pass the anchor of a sessions_search hit unchanged.", "error")
    readable = await access.readable({session_id: agent_id})
    if session_id not in readable:
        raise Refusal(f"No session found for anchor: {anchor}", "error")
    if (row := readable[session_id]) is None:
        return Anchor(TranscriptRef(agent_id=agent_id, session_id=session_id), entry_id, session_id)
    ref = transcript_ref(row.agent_id, row.entry)
    if ref.session_id != session_id:
        earlier = {one.session_id: one.session_file for one in previous_sessions(row.entry)}
        ref = TranscriptRef(agent_id=row.agent_id, session_id=session_id, file=earlier.get(session_id))
    return Anchor(ref, entry_id, access.shown(row.key))


class Cutter:
    """Shortens what a history need not show in full, and knows whether it did."""

    def __init__(self) -> None:
        self.happened = False

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        fields = {name: self._value(name, value) for name, value in message.items() if name not in _PRIVATE}
        self.happened |= len(fields) < len(message)
        return fields

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and name in ("text", "thinking", "partialJson", "content"):
            return self._text(value)
        if name == "content" and isinstance(value, list):
            return [self._block(block) if isinstance(block, dict) else block for block in value]
        return value

    def _block(self, block: dict[str, Any]) -> dict[str, Any]:
        if block.get("type") == "image" and isinstance(data := block.get("data"), str):
            self.happened = True
            rest = {name: value for name, value in block.items() if name != "data"}
            return {**rest, "omitted": True, "bytes": len(data) * 3 // 4}
        return self.message(block)

    def _text(self, text: str) -> str:
        if len(text) <= LONGEST_TEXT:
            return text
        self.happened = True
        return text[:LONGEST_TEXT] + _CUT


def within(messages: Sequence[dict[str, Any]], budget: int) -> tuple[list[dict[str, Any]], int]:
    """The last messages that fit the budget as JSON, and their size."""
    size, start = 2, len(messages)
    while start > 0:
        more = len(msgspec.json.encode(messages[start - 1])) + 1
        if size + more > budget:
            break
        size, start = size + more, start - 1
    return list(messages[start:]), size


def within_around(messages: Sequence[dict[str, Any]], middle: int, budget: int) -> tuple[list[dict[str, Any]], int]:
    """The messages nearest to the middle one that fit the budget as JSON, and their size."""
    sizes = [len(msgspec.json.encode(message)) + 1 for message in messages]
    start, end, size = middle, middle + 1, 2 + sizes[middle]
    while start > 0 or end < len(messages):
        back = start > 0 and (end == len(messages) or middle - start < end - middle)
        nearest = sizes[start - 1] if back else sizes[end]
        if size + nearest > budget:
            break
        start, end, size = (start - 1, end, size + nearest) if back else (start, end + 1, size + nearest)
    return list(messages[start:end]), size


class SessionStatusArguments(ToolArguments):
    session_key: Annotated[str, Meta(description="Another session; this one if left out")] = ""
    model: Annotated[str, Meta(description='provider/model or an alias; "default" resets it')] | None = None


class SessionStatusTool(RecordTool[SessionStatusArguments]):
    name = "session_status"
    summary = "Show a session's status card: model, tokens, cost, time; optionally change its model"
    description = (
        "Show the status card of this session or of another one: version, time, model, context, queue. Use it "
        'for the present date and time. `model` changes the session\'s model; "default" goes back.'
    )

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def execute(self, arguments: SessionStatusArguments, context: ToolContext) -> ToolResult:
        runtime, visibility = self._views.runtime, self._views.visibility(context)
        name = arguments.session_key.strip()
        if name:
            row = await self._find(visibility, name)
        else:
            entry = await runtime.stores.sessions.get(context.agent_id, context.session_key)
            row = SessionRow(context.agent_id, context.session_key, entry or SessionEntry(sessionId=""))
        changed = False
        if arguments.model is not None:
            changed = await self._set_model(row, arguments.model.strip())
        version, rest = (await self._views.status_card(SessionRef(row.agent_id, row.key))).split("\n", 1)
        card = "\n".join([version, f"🕒 Time: {self._now()}", rest])
        shown = visibility.shown(row.key)
        return text_result(card, {"ok": True, "sessionKey": shown, "changedModel": changed, "statusText": card})

    def _now(self) -> str:
        runtime = self._views.runtime
        defaults, minutes = runtime.config.current.agents.defaults, runtime.clock.now_ms() // 60_000
        return local_time(defaults.user_timezone, defaults.time_format, minutes) or local_time("UTC", "24", minutes)

    async def _find(self, visibility: SessionAccess, name: str) -> SessionRow:
        try:
            row = await visibility.find(name)
            visibility.check(row, "status", name)
        except Refusal as refusal:
            kind = "sessionKey" if ":" in name or name == "main" else "sessionId"
            raise ToolError(f"Unknown {kind}: {name}" if refusal.status == "error" else str(refusal)) from None
        return row

    async def _set_model(self, row: SessionRow, wanted: str) -> bool:
        runtime = self._views.runtime
        fields: dict[str, Any] = {"modelOverride": None, "providerOverride": None, "authProfileOverride": None}
        if wanted and wanted.lower() != "default":
            try:
                model = offered_model(runtime, row.agent_id, wanted)
            except ModelError as refusal:
                raise ToolError(str(refusal)) from None
            fields |= {"modelOverride": model.id, "providerOverride": model.provider}

        def change(entry: SessionEntry | None) -> SessionEntry | None:
            if entry is None:
                return None
            updated: dict[str, Any] = {name: value for name, value in entry.items() if name not in fields}
            updated |= {name: value for name, value in fields.items() if value is not None}
            return SessionEntry(**updated)  # type: ignore[typeddict-item]

        before = row.entry.get("modelOverride"), row.entry.get("providerOverride")
        after = await runtime.stores.sessions.update(row.agent_id, row.key, change)
        return after is not None and before != (after.get("modelOverride"), after.get("providerOverride"))


def offered_model(runtime: Runtime, agent_id: str, wanted: str) -> Model:
    """The model that an agent means, if it may choose it. Raises ``ModelError``, whose text is for the agent."""
    catalogue = runtime.models.catalogue()
    model = catalogue.resolve(wanted)
    catalogue.check_choice(model, agent_id)
    offered: set[str] = set()
    for name in runtime.config.current.agents.defaults.models:
        with contextlib.suppress(ModelError):  # The list may name a model that is gone.
            offered.add(catalogue.resolve(name).ref)
    if runtime.config.current.agents.defaults.models and model.ref not in offered:
        raise ModelError(f"Model {model.ref} is not on the list agents.defaults.models.")
    return model


class AgentsListArguments(ToolArguments):
    pass


class AgentsListTool(RecordTool[AgentsListArguments]):
    name = "agents_list"
    parallel = True
    summary = "List the agents that sessions_spawn may use"
    description = "List the agents whose sub-agents this agent may start with sessions_spawn."

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def execute(self, arguments: AgentsListArguments, context: ToolContext) -> ToolResult:
        config = self._views.runtime.config.current
        allowed = spawnable(config, context.agent_id)
        known = set(agent_ids(config))
        names = sorted((known if "*" in allowed else allowed) - {context.agent_id, "*"})
        agents: list[dict[str, Any]] = []
        for agent_id in (context.agent_id, *names):
            agent = agent_config(config, agent_id)
            named = {"name": agent.name} if agent and agent.name else {}
            agents.append({"id": agent_id, **named, "configured": agent_id in known})
        return answer({"requester": context.agent_id, "allowAny": "*" in allowed, "agents": agents})


def spawnable(config: Config, agent_id: str) -> set[str]:
    """The agents that this one may start sub-agents of, itself included. ``*`` stands for all."""
    agent = agent_config(config, agent_id)
    listed = {entry.strip() for entry in (agent.subagents.allow_agents if agent else [])}
    return {agent_id, *("*" if entry == "*" else normalize_agent_id(entry) for entry in listed if entry)}
