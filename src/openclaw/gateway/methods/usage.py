"""``sessions.usage*`` and ``usage.*``: tokens and money per session, per model and per day."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from openclaw.agent.prompt.report import stored_report
from openclaw.agent.spend import spend as spend_report
from openclaw.agent.spend.spend import (
    Activity,
    Days,
    FileSpend,
    Latency,
    LatencyFigures,
    Point,
    PriceOf,
    Totals,
    daily_totals,
    has_usage,
    points_of,
    together,
    total_of,
)
from openclaw.config.agents import user_zone
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params, Positive
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.gateway.session_views import model_defaults, row_view
from openclaw.messages import AssistantMessage
from openclaw.models.base import cost_of
from openclaw.outbound.session_preview import message_of, preview_role, preview_text, shortened
from openclaw.protocol.result import Result
from openclaw.protocol.sessions import ModelDefaults
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.sessions import SessionRow

if TYPE_CHECKING:
    from openclaw.gateway.session_directory import SessionDirectory

methods = MethodTable()
G = TypeVar("G")
POINTS_PAGE_BYTES = 4 << 20
MOST_POINTS = 200
LOG_CHARS = 2000

# Results


class OnDay(Result):
    """Something of one day."""

    date: str


class DayCost(OnDay):
    """The tokens and the cost of a day."""

    tokens: int
    cost: float


class MessageCounts(Result):
    """The number of messages, tool calls and errors."""

    total: int
    user: int
    assistant: int
    tool_calls: int
    tool_results: int
    errors: int


class DayMessages(OnDay):
    """The messages of a day, with the fields of ``MessageCounts``."""

    total: int
    user: int
    assistant: int
    tool_calls: int
    tool_results: int
    errors: int


class DayModel(OnDay):
    """The calls of one model on a day."""

    provider: str
    model: str
    tokens: int
    cost: float
    count: int


class ToolCount(Result):
    """The calls of one tool."""

    name: str
    count: int


class ToolUsage(Result):
    """The tool calls."""

    total_calls: int
    unique_tools: int
    tools: list[ToolCount]
    """The tools, the most used first."""


class ModelUsage(Result):
    """The calls of one model."""

    provider: str
    model: str
    count: int
    totals: Totals


class ProviderUsage(Result):
    """The calls of one provider."""

    provider: str
    count: int
    totals: Totals


class AgentUsage(Result):
    """The calls of one agent."""

    agent_id: str
    totals: Totals


class ChannelUsage(Result):
    """The calls for one channel."""

    channel: str
    totals: Totals


class DayLatency(OnDay):
    """How long people waited for answers on a day, with the fields of ``LatencyFigures``."""

    count: int
    avg_ms: int
    p95_ms: int
    min_ms: int
    max_ms: int


class DayActivity(DayCost):
    """What happened on a day."""

    messages: int
    tool_calls: int
    errors: int


class SessionTotals(Result, kw_only=True):
    """What one session used in the days of the report, with the fields of ``Totals``."""

    session_id: str
    session_file: str
    input: int
    output: int
    cache_read: int
    cache_write: int
    total_tokens: int
    total_cost: float
    input_cost: float
    output_cost: float
    cache_read_cost: float
    cache_write_cost: float
    missing_cost_entries: int
    first_activity: int | msgspec.UnsetType = msgspec.UNSET
    last_activity: int | msgspec.UnsetType = msgspec.UNSET
    duration_ms: int | msgspec.UnsetType = msgspec.UNSET
    activity_dates: list[str]
    daily_breakdown: list[DayCost]
    daily_message_counts: list[DayMessages]
    daily_model_usage: list[DayModel]
    message_counts: MessageCounts
    tool_usage: ToolUsage
    model_usage: list[ModelUsage]
    latency: LatencyFigures | msgspec.UnsetType = msgspec.UNSET
    """Absent if nothing was measured."""
    daily_latency: list[DayLatency]


class SessionUsage(Result, kw_only=True):
    """A session with what it used. A session that has left the store has no fields from there."""

    key: str
    session_id: str
    agent_id: str
    usage: SessionTotals
    updated_at: int | msgspec.UnsetType | None = msgspec.UNSET
    label: str | None = None
    channel: str | None = None
    chat_type: str | None = None
    origin: dict[str, Any] | None = None
    model_provider: str | None = None
    model: str | None = None
    model_override: str | None = None
    provider_override: str | None = None
    context_weight: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    """The report of the last prompt, if the call asked for it."""


class UsageAggregates(Result, kw_only=True):
    """The usage of all sessions, by several criteria."""

    messages: MessageCounts
    tools: ToolUsage
    by_model: list[ModelUsage]
    by_provider: list[ProviderUsage]
    by_agent: list[AgentUsage]
    by_channel: list[ChannelUsage]
    latency: LatencyFigures | None = None
    daily_latency: list[DayLatency]
    model_daily: list[DayModel]
    daily: list[DayActivity]


class SessionsUsageReport(Result):
    """What sessions used from ``startDate`` to ``endDate``."""

    updated_at: int
    start_date: str
    end_date: str
    sessions: list[SessionUsage]
    """The sessions, the last used first."""
    totals: Totals
    aggregates: UsageAggregates


class UsagePoints(Result):
    """The model calls of a session in order."""

    session_id: str
    points: list[Point]


class UsageLogLine(Result):
    """A message with what it cost."""

    timestamp: int
    role: str
    content: str
    tokens: int | None = None
    cost: float | None = None
    """Absent if the price is unknown."""


class UsageLog(Result):
    """The messages of a session."""

    logs: list[UsageLogLine]


class DayTotals(OnDay):
    """The totals of a day, with the fields of ``Totals``."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    total_tokens: int
    total_cost: float
    input_cost: float
    output_cost: float
    cache_read_cost: float
    cache_write_cost: float
    missing_cost_entries: int


class UsageCostReport(Result):
    """The cost of all agents. Days without a call are left out."""

    updated_at: int
    days: int
    daily: list[DayTotals]
    totals: Totals


class UsageStatus(Result):
    """The quotas of providers."""

    updated_at: int
    providers: list[str]
    """Always empty, because no supported provider reports a quota."""


# Methods


class SessionsUsage(Params):
    key: NonEmpty | None = None
    start_date: str | None = None
    end_date: str | None = None
    limit: Positive = 50
    include_context_weight: bool | None = None


@methods.add("sessions.usage", SessionsUsage)
async def sessions_usage(call: MethodCall, params: SessionsUsage) -> SessionsUsageReport:
    """Tokens and cost of sessions, by day and model."""
    gateway = call.gateway
    runtime, now_ms = gateway.runtime, gateway.runtime.clock.now_ms()
    days = _days(now_ms, UTC, params.start_date, params.end_date)
    if params.key:
        rows: Sequence[SessionRow] = [await _row(gateway.directory, params.key)]
    else:
        rows = (await runtime.stores.sessions.select(SessionQuery())).rows
    owners: dict[Path, Owner] = {}
    for row in rows:
        path = await spend_report.transcript_path(runtime, SessionRef(row.agent_id, row.key), row.entry)
        if path is not None:
            owners[path] = Owner(row.agent_id, row.key, row.entry["sessionId"], row)
    agent_ids, price_of = gateway.directory.agent_ids(), spend_report.prices(runtime.models.catalogue())

    def report(spends: dict[Path, FileSpend]) -> SessionsUsageReport:
        active = {path: spend for path, spend in spends.items() if params.key or any(map(days.has, spend.activity))}
        named = {path: owners.get(path) or _owner_by_path(path, agent_ids[0]) for path in active}
        return _usage_view(active, named, price_of, days, params.limit, now_ms)

    places = [*owners] if params.key else spend_report.folders(runtime, agent_ids)
    result = await runtime.models.spending.compute(report, places, 0 if params.key else spend_report.begins_ms(days))
    defaults = model_defaults(runtime)
    stored = {owner.session_id: owner.row for owner in owners.values() if owner.row is not None}
    for session in result.sessions:
        if row := stored.get(session.session_id):
            _add_stored_fields(session, row, defaults)
            if params.include_context_weight:
                session.context_weight = await stored_report(row.entry, runtime.stores.blobs)
    return result


class Owner(msgspec.Struct, frozen=True):
    """The session that a transcript file belongs to. ``row`` is None when the session has left the store."""

    agent_id: str
    key: str
    session_id: str
    row: SessionRow | None = None


def _owner_by_path(path: Path, default_agent: str) -> Owner:
    """Return the owner of a reset or deleted transcript. The file names the session, the folder names the agent."""
    session_id = path.name.partition(".jsonl")[0]
    agent = path.parent.parent.name if path.parent.name == "sessions" else default_agent
    return Owner(agent, f"agent:{agent}:{session_id}", session_id)


def _usage_view(
    spends: dict[Path, FileSpend], owners: dict[Path, Owner], price_of: PriceOf, days: Days, limit: int, now_ms: int
) -> SessionsUsageReport:
    report = UsageReport(spends.values(), price_of, days)
    models = report.by_model()
    agents = {path: owner.agent_id for path, owner in owners.items()}
    channels = {path: channel for path, owner in owners.items() if (channel := _channel(owner))}
    newest = sorted(spends, key=lambda path: -max(spends[path].activity, default=0))
    return SessionsUsageReport(
        updated_at=now_ms,
        start_date=days.first,
        end_date=days.last,
        sessions=[
            SessionUsage(
                key=owners[path].key,
                session_id=owners[path].session_id,
                agent_id=owners[path].agent_id,
                usage=UsageReport([spends[path]], price_of, days).session(owners[path].session_id, path),
            )
            for path in newest[:limit]
        ],
        totals=report.totals(),
        aggregates=UsageAggregates(
            messages=report.messages(),
            tools=report.tools(),
            by_model=models,
            by_provider=by_provider(models),
            by_agent=[AgentUsage(*group) for group in _grouped(spends, agents, price_of, days)],
            by_channel=[ChannelUsage(*group) for group in _grouped(spends, channels, price_of, days)],
            latency=report.latency(),
            daily_latency=report.daily_latency(),
            model_daily=report.model_daily(),
            daily=report.daily(),
        ),
    )


def _channel(owner: Owner) -> str | None:
    entry = owner.row.entry if owner.row else {}
    return entry.get("channel") or (entry.get("origin") or {}).get("provider") or entry.get("lastChannel")


def _grouped(
    spends: Mapping[Path, FileSpend], group_of: Mapping[Path, str], price_of: PriceOf, days: Days
) -> list[tuple[str, Totals]]:
    groups: dict[str, list[FileSpend]] = {}
    for path, group in group_of.items():
        groups.setdefault(group, []).append(spends[path])
    totals = {group: total_of(members, price_of, days) for group, members in groups.items()}
    return sorted(totals.items(), key=lambda item: (-item[1].total_cost, item[0]))


def by_provider(models: Iterable[ModelUsage]) -> list[ProviderUsage]:
    groups: dict[str, ProviderUsage] = {}
    for row in models:
        group = groups.setdefault(row.provider, ProviderUsage(row.provider, 0, Totals()))
        group.count += row.count
        for name in Totals.__struct_fields__:
            setattr(group.totals, name, getattr(group.totals, name) + getattr(row.totals, name))
    return list(groups.values())


def _add_stored_fields(session: SessionUsage, row: SessionRow, defaults: ModelDefaults) -> None:
    view, entry = row_view(row, defaults), row.entry
    session.updated_at = entry.get("updatedAt")
    session.label, session.channel, session.chat_type = view.label, view.channel, view.chat_type
    session.origin = view.origin
    session.model_provider, session.model = view.model_provider or None, view.model or None
    session.model_override = entry.get("modelOverride") or None
    session.provider_override = entry.get("providerOverride") or None


class OneSession(Params):
    key: NonEmpty


@methods.add("sessions.usage.timeseries", OneSession)
async def timeseries(call: MethodCall, params: OneSession) -> UsagePoints:
    """How the tokens of a session grew."""
    gateway = call.gateway
    row = await _row(gateway.directory, params.key)
    ref, price_of = transcript_ref(row.agent_id, row.entry), spend_report.prices(gateway.runtime.models.catalogue())
    spent: list[bytes] = []
    cursor: int | None = 0
    while cursor is not None:
        lines, cursor = await gateway.runtime.stores.transcripts.page(ref, cursor, POINTS_PAGE_BYTES)
        spent += filter(has_usage, lines)
    points = await asyncio.to_thread(points_of, spent, price_of, MOST_POINTS)
    return UsagePoints(row.entry["sessionId"], points)


class UsageLogs(Params):
    key: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200


@methods.add("sessions.usage.logs", UsageLogs)
async def logs(call: MethodCall, params: UsageLogs) -> UsageLog:
    """The messages of a session with their tokens and cost."""
    gateway = call.gateway
    row = await _row(gateway.directory, params.key)
    ref = transcript_ref(row.agent_id, row.entry)
    price_of = spend_report.prices(gateway.runtime.models.catalogue())
    lines: list[UsageLogLine] = []
    for entry in await gateway.runtime.stores.transcripts.tail(ref, params.limit):
        message = message_of(entry)
        if message is None:
            continue
        content = shortened(preview_text(message), LOG_CHARS)
        line = UsageLogLine(message.timestamp, preview_role(message), content)
        if isinstance(message, AssistantMessage) and message.usage.total_tokens:
            price = price_of(message.provider, message.model)
            line.tokens = message.usage.total_tokens
            if message.usage.cost.total or price is not None:
                line.cost = message.usage.cost.total or cost_of(message.usage, price).total
        lines.append(line)
    return UsageLog(lines)


async def _row(directory: SessionDirectory, key: str) -> SessionRow:
    row = await directory.find(key)
    if row is None:
        raise MethodError(f"No session found: {key}")
    return row


class UsageCost(Params):
    days: Annotated[int, msgspec.Meta(ge=1, le=3660)] | None = None
    start_date: str | None = None
    end_date: str | None = None


@methods.add("usage.cost", UsageCost)
async def usage_cost(call: MethodCall, params: UsageCost) -> UsageCostReport:
    """The cost of all agents for each day in the user's zone."""
    gateway, runtime, now_ms = call.gateway, call.gateway.runtime, call.gateway.runtime.clock.now_ms()
    days = _days(now_ms, user_zone(runtime.config.current), params.start_date, params.end_date, params.days or 30)
    price_of = spend_report.prices(runtime.models.catalogue())
    count = (date.fromisoformat(days.last) - date.fromisoformat(days.first)).days + 1

    def report(spends: dict[Path, FileSpend]) -> UsageCostReport:
        usage = UsageReport(spends.values(), price_of, days)
        daily = [DayTotals(date=day, **msgspec.structs.asdict(sums)) for day, sums in usage.daily_totals().items()]
        return UsageCostReport(now_ms, count, daily, usage.totals())

    places = spend_report.folders(runtime, gateway.directory.agent_ids())
    return await runtime.models.spending.compute(report, places, spend_report.begins_ms(days))


@methods.add("usage.status", NoParams)
async def usage_status(call: MethodCall) -> UsageStatus:
    """The quotas that providers report. None of the supported providers reports any."""
    return UsageStatus(updated_at=call.gateway.runtime.clock.now_ms(), providers=[])


def _days(now_ms: int, zone: tzinfo | None, start: str | None, end: str | None, count: int = 30) -> Days:
    usual = spend_report.last_days(now_ms, count, zone)
    first, last = _date("startDate", start) or usual.first, _date("endDate", end) or usual.last
    if first > last:
        raise MethodError(f"startDate {first} is after endDate {last}")
    return Days(first, last, zone)


def _date(name: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise MethodError(f"{name} must be a day like 2026-01-31, not {text[:40]!r}") from None


class UsageReport:
    """What some transcripts used in a span of days, as the answers have it."""

    def __init__(self, spends: Collection[FileSpend], price_of: PriceOf, days: Days) -> None:
        self._spends = spends
        self._price_of = price_of
        self._days = days
        self._active: dict[str, Activity] = {}
        """What happened on each day."""
        self._latency: dict[str, Latency] = {}
        """How long people waited on each day."""
        for spend in spends:
            for quarter, activity in spend.activity.items():
                if day := days.has(quarter):
                    self._active.setdefault(day, Activity(first_ms=activity.first_ms)).add(activity)
            for quarter, latency in spend.latency.items():
                if day := days.has(quarter):
                    self._latency.setdefault(day, Latency()).join(latency)

    def totals(self) -> Totals:
        return total_of(self._spends, self._price_of, self._days)

    def daily_totals(self) -> dict[str, Totals]:
        return daily_totals(self._spends, self._price_of, self._days)

    def session(self, session_id: str, file: Path) -> SessionTotals:
        """Return everything about one session."""
        result = SessionTotals(
            session_id=session_id,
            session_file=str(file),
            **msgspec.structs.asdict(self.totals()),
            activity_dates=sorted(self._active),
            daily_breakdown=[
                DayCost(day, totals.total_tokens, totals.total_cost) for day, totals in self.daily_totals().items()
            ],
            daily_message_counts=[
                DayMessages(date=day, **msgspec.structs.asdict(_counts([activity])))
                for day, activity in sorted(self._active.items())
            ],
            daily_model_usage=self.model_daily(),
            message_counts=self.messages(),
            tool_usage=self.tools(),
            model_usage=self.by_model(),
            latency=self.latency() or msgspec.UNSET,
            daily_latency=self.daily_latency(),
        )
        if days := self._active.values():
            first, last = min(day.first_ms for day in days), max(day.last_ms for day in days)
            result.first_activity, result.last_activity, result.duration_ms = first, last, last - first
        return result

    def messages(self) -> MessageCounts:
        return _counts(self._active.values())

    def latency(self) -> LatencyFigures | None:
        return whole.figures() if (whole := together(self._latency.values())) else None

    def daily_latency(self) -> list[DayLatency]:
        return [
            DayLatency(date=day, **msgspec.structs.asdict(latency.figures()))
            for day, latency in sorted(self._latency.items())
            if latency.count
        ]

    def tools(self) -> ToolUsage:
        calls: Counter[str] = Counter()
        for spend in self._spends:
            for (quarter, name), count in spend.tools.items():
                if self._days.has(quarter):
                    calls[name] += count
        return ToolUsage(calls.total(), len(calls), [ToolCount(*tool) for tool in calls.most_common()])

    def by_model(self) -> list[ModelUsage]:
        groups = self._calls_by(lambda _, provider, model: (provider, model))
        ranked = sorted(groups.items(), key=lambda item: (-item[1][1].total_cost, -item[1][1].total_tokens, item[0]))
        return [ModelUsage(provider, model, count, totals) for (provider, model), (count, totals) in ranked]

    def model_daily(self) -> list[DayModel]:
        groups = sorted(self._calls_by(lambda *group: group).items())
        return [
            DayModel(day, provider, model, totals.total_tokens, totals.total_cost, count)
            for (day, provider, model), (count, totals) in groups
        ]

    def daily(self) -> list[DayActivity]:
        sums, rows = self.daily_totals(), list[DayActivity]()
        for day in sorted({*sums, *self._active}):
            totals, activity = sums.get(day, Totals()), self._active.get(day, Activity())
            row = DayActivity(
                day, totals.total_tokens, totals.total_cost, activity.total, activity.tool_calls, activity.errors
            )
            rows.append(row)
        return rows

    def _calls_by(self, group_of: Callable[[str, str, str], G]) -> dict[G, tuple[int, Totals]]:
        """Counts and sums up the calls of each group. ``group_of`` gets their day, provider and model."""
        groups: dict[G, tuple[int, Totals]] = {}
        for spend in self._spends:
            for (quarter, provider, model), calls in spend.calls.items():
                if day := self._days.has(quarter):
                    group = group_of(day, provider, model)
                    count, totals = groups.get(group) or (0, Totals())
                    totals.add(calls, self._price_of(provider, model))
                    groups[group] = (count + calls.count, totals)
        return groups


def _counts(active: Collection[Activity]) -> MessageCounts:
    return MessageCounts(
        **{name: sum(getattr(activity, name) for activity in active) for name in MessageCounts.__struct_fields__}
    )
