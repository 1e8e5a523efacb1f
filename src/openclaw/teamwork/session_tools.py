"""The tools that look at sessions: ``sessions_list``, ``sessions_history``, ``session_status`` and ``agents_list``.

``ALLOWED`` says who may see and use which session. It is one table for every tool and command that names a session of
its own accord. A session is looked up by key, alias, session id or label first. Only then is it compared with the
rules, so that no spelling of a name gets around them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.agent.prompt.system_prompt import local_time
from openclaw.agent.runtime import Runtime
from openclaw.config.agents import (
    agent_config,
    agent_ids,
    default_agent_id,
    main_key,
    main_session_key,
    sandbox_config,
    wants_sandbox,
)
from openclaw.config.schema import Config
from openclaw.messages import ToolSpec
from openclaw.models.base import Model, ModelError
from openclaw.paths import normalize_agent_id
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import (
    INTERNAL_KINDS,
    LONGEST_KEY,
    RESERVED_KEYS,
    SessionRef,
    agent_of,
    canonical_key,
    channel_of,
    is_subagent,
    key_problem,
    kind_of,
    rest_of,
    shown_key,
)
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.base import Entry, SessionRow, SessionStore
from openclaw.storage.session_query import SessionQuery, in_pages
from openclaw.tools.base import ToolContext, ToolError, ToolResult, required_text, text_result

MOST_ROWS = 200
MOST_MESSAGES_PER_ROW = 20
MOST_MESSAGES = 1000
USUAL_MESSAGES = 200
LONGEST_TEXT = 4000
MOST_BYTES = 80 * 1024
MOST_LIST_BYTES = 256 * 1024
"""The messages in all rows of a list together."""
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

    def visibility(self, context: ToolContext) -> Visibility:
        requester = SessionRef(context.agent_id, context.session_key)
        return Visibility(self.runtime.config.current, self.runtime.sessions, requester)

    async def messages(self, row: SessionRow, limit: int, *, tools: bool = False) -> list[dict[str, Any]]:
        """The last messages of a session, without results of tools unless they are wanted."""
        ref = transcript_ref(row.agent_id, row.entry)
        said: list[dict[str, Any]] = []
        # Many calls at once have many results, so the first look may not reach far enough.
        for most in (limit,) if tools else (limit * 4 + 20, FARTHEST):
            entries = await self.runtime.transcripts.tail(ref, most)
            found = [msgspec.json.decode(raw) for raw in self.read_history(entries)]
            said = [message for message in found if tools or message.get("role") != "toolResult"]
            if len(said) >= limit or len(entries) < most:
                break
        return said[-limit:]


def answer(details: dict[str, Any]) -> ToolResult:
    """A result that the model reads as JSON and clients read as ``details``."""
    text = msgspec.json.format(msgspec.json.encode(details), indent=2).decode()
    return text_result(text, details)


def refused(refusal: Refusal, **more: Any) -> ToolResult:
    return answer({**more, "status": refusal.status, "error": str(refusal), **refusal.more})


def whole(arguments: dict[str, Any], name: str, least: int, otherwise: int, most: int) -> int:
    """A number argument, rounded down and kept within its bounds."""
    value = arguments.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return otherwise
    return int(max(least, min(value, most)))


class SessionsListTool:
    summary = "List other sessions (chats, groups, cron jobs, sub-agents) with filters and last messages"
    spec = ToolSpec(
        name="sessions_list",
        description=(
            "List the sessions this agent can see, newest first: key, kind, channel, model, tokens and where its "
            "transcript is. With messageLimit each row also has its last messages."
        ),
        parameters={
            "type": "object",
            "properties": {
                "kinds": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Only these kinds: main, group, cron, hook, node, other",
                },
                "limit": {"type": "number", "minimum": 1, "description": f"Most rows (at most {MOST_ROWS})"},
                "activeMinutes": {"type": "number", "minimum": 1, "description": "Only sessions used since then"},
                "messageLimit": {
                    "type": "number",
                    "minimum": 0,
                    "description": f"Last messages per session, no tool results (0; at most {MOST_MESSAGES_PER_ROW})",
                },
            },
        },
    )

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        runtime, visibility = self._views.runtime, self._views.visibility(context)
        config = runtime.config.current
        asked = {str(kind).strip().lower() for kind in arguments.get("kinds") or []}
        kinds = asked & KINDS
        limit = whole(arguments, "limit", 1, MOST_ROWS, MOST_ROWS)
        per_row = whole(arguments, "messageLimit", 0, 0, MOST_MESSAGES_PER_ROW)
        minutes = whole(arguments, "activeMinutes", 1, 0, 1 << 40)
        since = runtime.clock.now_ms() - minutes * 60_000 if minutes else 0
        shown: list[dict[str, Any]] = []
        left = MOST_LIST_BYTES
        hidden = ("unknown",) if config.session.scope == "global" else ("unknown", "global")
        wanted = SessionQuery(updated_since=since, hidden_keys=hidden, aliases=False)
        async for row in in_pages(runtime.sessions, wanted):
            if len(shown) >= limit:
                break
            kind = kind_of(row.key, row.entry, main_key=main_key(config), scope=config.session.scope)
            if (kinds and kind not in kinds) or not visibility.allows(row, "list"):
                continue
            view = await self._view(row, kind, visibility)
            if per_row:
                found = await self._views.messages(row, per_row)
                view["messages"], size = within([Cutter().message(one) for one in found], left)
                left -= size
            shown.append(view)
        return answer({"count": len(shown), "sessions": shown})

    async def _view(self, row: SessionRow, kind: Any, visibility: Visibility) -> dict[str, Any]:
        entry: dict[str, Any] = dict(row.entry)
        runtime = self._views.runtime
        view: dict[str, Any] = {
            "key": visibility.shown(row.key),
            "kind": kind,
            "channel": channel_of(row.entry, row.key, kind=kind),
            **{name: entry[name] for name in _COPIED if name in entry},
        }
        if isinstance(delivery := entry.get("deliveryContext"), dict):
            view["deliveryContext"] = delivery
        model, window = _model_of(row, runtime)
        view |= {"model": model, "contextTokens": entry.get("contextTokens") or window}
        view.setdefault("totalTokens", 0)
        ref = transcript_ref(row.agent_id, row.entry)
        view["transcriptPath"] = await runtime.transcripts.locate(ref) or runtime.transcripts.default_path(ref)
        return view


def _model_of(row: SessionRow, runtime: Runtime) -> tuple[str | None, int | None]:
    entry = row.entry
    name = entry.get("modelOverride") or entry.get("model")
    try:
        default = runtime.catalogue().default_for(runtime.config.current, row.agent_id)
    except ModelError:
        return name, None
    return name or default.id, default.context_window


class SessionsHistoryTool:
    summary = "Read the messages of another session"
    spec = ToolSpec(
        name="sessions_history",
        description="Read the transcript of a session by its key or session id. Long texts are shortened.",
        parameters={
            "type": "object",
            "required": ["sessionKey"],
            "properties": {
                "sessionKey": {"type": "string", "description": "A key or a sessionId of sessions_list"},
                "limit": {"type": "number", "minimum": 1, "description": f"Most messages (at most {MOST_MESSAGES})"},
                "includeTools": {"type": "boolean", "description": "Also the results of tools (false)"},
            },
        },
    )

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        name = required_text(arguments, "sessionKey").strip()
        visibility = self._views.visibility(context)
        try:
            row = await visibility.find(name)
            visibility.check(row, "history", name)
        except Refusal as refusal:
            return refused(refusal)
        limit = whole(arguments, "limit", 1, USUAL_MESSAGES, MOST_MESSAGES)
        found = await self._views.messages(row, limit, tools=bool(arguments.get("includeTools")))
        cut = Cutter()
        messages = [cut.message(message) for message in found]
        kept, size = within(messages, MOST_BYTES)
        dropped = len(kept) < len(messages)
        if not kept and messages:
            note = {"type": "text", "text": "(the last message is too large to be shown)"}
            kept = [{"role": str(messages[-1].get("role") or "assistant"), "content": [note]}]
            size = len(msgspec.json.encode(kept))
        return answer(
            {
                "sessionKey": visibility.shown(row.key),
                "messages": kept,
                "truncated": dropped or cut.happened,
                "droppedMessages": dropped,
                "contentTruncated": cut.happened,
                "bytes": size,
            }
        )


class Cutter:
    """Shortens what a history need not show in full, and knows whether it did."""

    def __init__(self) -> None:
        self.happened = False

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        kept = {name: self._value(name, value) for name, value in message.items() if name not in _PRIVATE}
        self.happened |= len(kept) < len(message)
        return kept

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


class SessionStatusTool:
    summary = "Show a session's status card: model, tokens, cost, time; optionally change its model"
    spec = ToolSpec(
        name="session_status",
        description=(
            "Show the status card of this session or of another one: version, time, model, context, queue. Use it "
            'for the present date and time. `model` changes the session\'s model; "default" goes back.'
        ),
        parameters={
            "type": "object",
            "properties": {
                "sessionKey": {"type": "string", "description": "Another session; this one if left out"},
                "model": {"type": "string", "description": 'provider/model or an alias; "default" resets it'},
            },
        },
    )

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        runtime, visibility = self._views.runtime, self._views.visibility(context)
        name = str(arguments.get("sessionKey") or "").strip()
        if name:
            row = await self._find(visibility, name)
        else:
            entry = await runtime.sessions.get(context.agent_id, context.session_key)
            row = SessionRow(context.agent_id, context.session_key, entry or SessionEntry(sessionId=""))
        changed = False
        if isinstance(wanted := arguments.get("model"), str):
            changed = await self._set_model(row, wanted.strip())
        version, rest = (await self._views.status_card(SessionRef(row.agent_id, row.key))).split("\n", 1)
        card = "\n".join([version, f"🕒 Time: {self._now()}", rest])
        shown = visibility.shown(row.key)
        return text_result(card, {"ok": True, "sessionKey": shown, "changedModel": changed, "statusText": card})

    def _now(self) -> str:
        runtime = self._views.runtime
        defaults, minutes = runtime.config.current.agents.defaults, runtime.clock.now_ms() // 60_000
        return local_time(defaults.user_timezone, defaults.time_format, minutes) or local_time("UTC", "24", minutes)

    async def _find(self, visibility: Visibility, name: str) -> SessionRow:
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
        after = await runtime.sessions.update(row.agent_id, row.key, change)
        return after is not None and before != (after.get("modelOverride"), after.get("providerOverride"))


def offered_model(runtime: Runtime, agent_id: str, wanted: str) -> Model:
    """The model that an agent means, if it may choose it. Raises ``ModelError``, whose text is for the agent."""
    catalogue = runtime.catalogue()
    model = catalogue.resolve(wanted)
    catalogue.check_choice(model, agent_id)
    offered: set[str] = set()
    for name in runtime.config.current.agents.defaults.models:
        with contextlib.suppress(ModelError):  # The list may name a model that is gone.
            offered.add(catalogue.resolve(name).ref)
    if runtime.config.current.agents.defaults.models and model.ref not in offered:
        raise ModelError(f"Model {model.ref} is not on the list agents.defaults.models.")
    return model


class AgentsListTool:
    summary = "List the agents that sessions_spawn may use"
    spec = ToolSpec(
        name="agents_list",
        description="List the agents whose sub-agents this agent may start with sessions_spawn.",
        parameters={"type": "object", "properties": {}},
    )

    def __init__(self, views: SessionViews) -> None:
        self._views = views

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
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


# Who may see which session

Action: TypeAlias = Literal["list", "history", "send", "status"]
Relation: TypeAlias = Literal["self", "child", "same agent", "other agent"]

_ANYTHING: frozenset[Relation] = frozenset({"self", "child", "same agent", "other agent"})
_OWN: frozenset[Relation] = frozenset({"self", "child"})
_SPAWNED: frozenset[Relation] = frozenset({"child"})

ALLOWED: dict[Literal["open", "sub-agent", "sandboxed"], dict[Action, frozenset[Relation]]] = {
    # Other agents also need tools.agentToAgent, for all actions.
    "open": {"list": _ANYTHING, "history": _ANYTHING, "send": _ANYTHING, "status": _ANYTHING},
    # A worker knows its task. It neither reads its siblings nor gives orders to whoever it works for.
    "sub-agent": {"list": _OWN, "history": _OWN, "send": _SPAWNED, "status": _OWN},
    "sandboxed": {"list": _SPAWNED, "history": _SPAWNED, "send": _SPAWNED, "status": _OWN},
}
"""What a session may do with others, by its own kind. ``same agent`` includes parents and siblings."""

_REACHES: dict[str, frozenset[Relation]] = {
    "self": frozenset({"self"}),
    "tree": _OWN,
    "agent": frozenset({"self", "child", "same agent"}),
    "all": _ANYTHING,
}
"""How far ``tools.sessions.visibility`` lets a session see."""
_WORDS: dict[Action, str] = {"list": "listing", "history": "history", "send": "messaging", "status": "status"}


class Refusal(Exception):
    """A session cannot be used. The text is for the model, and ``more`` belongs to the answer as well."""

    def __init__(self, text: str, status: Literal["error", "forbidden"] = "forbidden", **more: str) -> None:
        super().__init__(text)
        self.status = status
        self.more = more


class Visibility:
    """Finds sessions for a requester and checks what it may do with them."""

    def __init__(self, config: Config, sessions: SessionStore, requester: SessionRef) -> None:
        self._config = config
        self._sessions = sessions
        self._requester = requester
        sandbox = sandbox_config(config, requester.agent_id)
        hidden = sandbox.session_tools_visibility == "spawned"
        if hidden and wants_sandbox(config, requester.agent_id, requester.key):
            self._rules = ALLOWED["sandboxed"]
        else:
            self._rules = ALLOWED["sub-agent" if is_subagent(requester.key) else "open"]
        # In a group everybody could have the agent read the owner's conversations.
        group = kind_of(requester.key) == "group"
        self._reach = _REACHES[config.tools.sessions.visibility or ("tree" if group else "all")]

    def allows(self, row: SessionRow, action: Action) -> bool:
        return self._refusal(row, action) is None

    def check(self, row: SessionRow, action: Action, name: str) -> None:
        """Raises ``Refusal``. ``name`` is the session as the requester wrote it."""
        if (problem := self._refusal(row, action)) is not None:
            raise Refusal(problem.format(name=name), sessionKey=name)

    def relation(self, row: SessionRow) -> Relation:
        if row.key == self._requester.key:
            return "self"
        if row.entry.get("spawnedBy") == self._requester.key:
            return "child"
        return "same agent" if row.agent_id == self._requester.agent_id else "other agent"

    def _refusal(self, row: SessionRow, action: Action) -> str | None:
        relation = self.relation(row)
        if relation not in self._reach:
            return "Session not visible: tools.sessions.visibility keeps {name} out of reach"
        if relation not in self._rules[action]:
            kind = "sandboxed agent" if self._rules is ALLOWED["sandboxed"] else "sub-agent"
            return f"Session not visible from this {kind} session: {{name}}"
        return _between_agents(self._config, self._requester.agent_id, row.agent_id, action)

    async def find(self, name: str, *, label: str = "", agent_id: str = "") -> SessionRow:
        """The session that a key, an alias, a session id or a label means. Raises ``Refusal`` if there is none."""
        if label:
            return await self._by_label(label, agent_id)
        text = name.strip()
        found = await self._by_key(text) or await self._sessions.find_session_id(text)
        if found is None or found.key == "unknown" or (found.key == "global" and not self._global):
            raise Refusal(f"No session found: {text}", "error")
        return found

    def main_of_agent(self, name: str) -> SessionRow | None:
        """The main session of a configured agent, as a row without an entry. None for every other name.

        An agent that nobody has written to yet has no session, but it can be written to.
        """
        if self._global or not name:
            return None
        key = canonical_key(name, default_agent=self._requester.agent_id, main_key=main_key(self._config))
        agent_id = agent_of(key)
        mains = {main_session_key(self._config, known) for known in agent_ids(self._config)}
        return SessionRow(agent_id, key, SessionEntry(sessionId="")) if key in mains else None

    @property
    def _global(self) -> bool:
        return self._config.session.scope == "global"

    async def _by_key(self, text: str) -> SessionRow | None:
        if not text or len(text) > LONGEST_KEY or key_problem(text):
            return None
        if text.lower() in RESERVED_KEYS and not (self._global and text.lower() == "global"):
            return None
        canonical = canonical_key(
            text,
            default_agent=self._requester.agent_id,
            main_key=main_key(self._config),
            scope=self._config.session.scope,
        )
        agent_id = agent_of(canonical, default_agent=default_agent_id(self._config))
        entry = await self._sessions.get(agent_id, canonical)
        return None if entry is None else SessionRow(agent_id, canonical, entry)

    async def _by_label(self, label: str, agent_id: str) -> SessionRow:
        wanted = normalize_agent_id(agent_id) if agent_id else None
        if wanted is None and self._rules is ALLOWED["open"]:
            wanted = self._requester.agent_id
        rows = (await self._sessions.select(SessionQuery(agent_id=wanted, label=label))).rows
        if wanted is not None and wanted != self._requester.agent_id:
            problem = _between_agents(self._config, self._requester.agent_id, wanted, "send")
            if problem is not None:
                raise Refusal(problem)
        if not rows:
            raise Refusal(f"No session found with label: {label}", "error")
        if len(rows) > 1:
            keys = ", ".join(shown_key(row.key) for row in rows[:10])
            raise Refusal(f"Multiple sessions found with label: {label} ({keys})", "error")
        return rows[0]

    def shown(self, key: str) -> str:
        """The key as the requester knows it: its own main chat is ``main``, and its own jobs are ``cron:<id>``."""
        own = self._requester.agent_id
        if key == main_session_key(self._config, own):
            return "main"
        if agent_of(key, default_agent=own) == own and kind_of(key) in INTERNAL_KINDS:
            return rest_of(key)
        return shown_key(key)


def _between_agents(config: Config, one: str, other: str, action: Action) -> str | None:
    """Why one agent may not do this with a session of the other. None: it may."""
    if one == other:
        return None
    rules, word = config.tools.agent_to_agent, _WORDS[action]
    if not rules.enabled:
        return f"Agent-to-agent {word} is disabled. Set tools.agentToAgent.enabled=true to allow it between agents."
    if rules.allow and not all(_is_listed(agent, rules.allow) for agent in (one, other)):
        return f"Agent-to-agent {word} denied by tools.agentToAgent.allow."
    return None


def _is_listed(agent_id: str, patterns: Sequence[str]) -> bool:
    """Plain entries are compared exactly. In others ``*`` stands for any characters, and case does not count."""
    for pattern in patterns:
        if "*" not in pattern:
            if pattern.strip() == agent_id:
                return True
        elif re.fullmatch(".*".join(map(re.escape, pattern.strip().split("*"))), agent_id, re.IGNORECASE | re.DOTALL):
            return True
    return False
