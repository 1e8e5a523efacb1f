"""``sessions.usage*`` and ``usage.*``: tokens and money per session, per model and per day."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, date
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
    PriceOf,
    Totals,
    daily_totals,
    has_usage,
    points_of,
    together,
    total_of,
)
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params, Positive
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.gateway.session_views import model_defaults, row_view
from openclaw.messages import AssistantMessage
from openclaw.models.base import cost_of
from openclaw.outbound.session_preview import message_of, preview_role, preview_text, shortened
from openclaw.protocol.result import Result
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.sessions import SessionRow

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()
G = TypeVar("G")
POINTS_PAGE_BYTES = 4 << 20
MOST_POINTS = 200
LOG_CHARS = 2000
_ROW_FIELDS = ("label", "channel", "chatType", "origin", "modelProvider", "model")


class SessionsUsage(Params):
    key: NonEmpty | None = None
    start_date: str | None = None
    end_date: str | None = None
    limit: Positive = 50
    include_context_weight: bool | None = None


@methods.add("sessions.usage", SessionsUsage)
async def sessions_usage(call: MethodCall, params: SessionsUsage) -> Any:
    """Tokens and cost of sessions, by day and model."""
    gateway = call.gateway
    days, sessions = (
        _days(gateway, params.start_date, params.end_date, zone_is_utc=True),
        gateway.runtime.stores.sessions,
    )
    rows = [await _row(gateway, params.key)] if params.key else (await sessions.select(SessionQuery())).rows
    owners: dict[Path, Owner] = {}
    for row in rows:
        path = await spend_report.transcript_path(gateway.runtime, SessionRef(row.agent_id, row.key), row.entry)
        if path is not None:
            owners[path] = Owner(row.agent_id, row.key, row.entry["sessionId"], row)
    places = [*owners] if params.key else spend_report.folders(gateway.runtime, gateway.agent_ids())
    price_of = spend_report.prices(gateway.runtime.models.catalogue())

    def view(found: dict[Path, FileSpend]) -> dict[str, Any]:
        active = {path: spend for path, spend in found.items() if params.key or any(map(days.has, spend.activity))}
        named = {path: owners.get(path) or _left_over(gateway, path) for path in active}
        return _usage_view(active, named, price_of, days, params.limit)

    answer = await gateway.runtime.models.spending.compute(
        view, places, 0 if params.key else spend_report.begins_ms(days)
    )
    await _complete(gateway, answer["sessions"], {owner.session_id: owner for owner in owners.values()}, params)
    return {"updatedAt": gateway.runtime.clock.now_ms(), "startDate": days.first, "endDate": days.last, **answer}


class Owner(msgspec.Struct, frozen=True):
    """The session that a transcript file belongs to. ``row`` is None when the session has left the store."""

    agent_id: str
    key: str
    session_id: str
    row: SessionRow | None = None


def _left_over(gateway: Gateway, path: Path) -> Owner:
    """The owner of a transcript that was reset or deleted. The file names the session, the folder names the agent."""
    session_id = path.name.partition(".jsonl")[0]
    agent = path.parent.parent.name if path.parent.name == "sessions" else gateway.agent_ids()[0]
    return Owner(agent, f"agent:{agent}:{session_id}", session_id)


def _usage_view(
    spends: dict[Path, FileSpend], owners: dict[Path, Owner], price_of: PriceOf, days: Days, limit: int
) -> dict[str, Any]:
    report = UsageReport(spends.values(), price_of, days)
    models = report.by_model()
    agents = {path: owner.agent_id for path, owner in owners.items()}
    channels = {path: channel for path, owner in owners.items() if (channel := _channel(owner))}
    newest = sorted(spends, key=lambda path: -max(spends[path].activity, default=0))
    return {
        "sessions": [
            {
                "key": owners[path].key,
                "sessionId": owners[path].session_id,
                "agentId": owners[path].agent_id,
                "usage": {
                    "sessionId": owners[path].session_id,
                    "sessionFile": str(path),
                    **UsageReport([spends[path]], price_of, days).session(),
                },
            }
            for path in newest[:limit]
        ],
        "totals": report.totals(),
        "aggregates": {
            "messages": report.messages(),
            "tools": report.tools(),
            "byModel": models,
            "byProvider": by_provider(models),
            "byAgent": _grouped("agentId", spends, agents, price_of, days),
            "byChannel": _grouped("channel", spends, channels, price_of, days),
            **report.latency(),
            "modelDaily": report.model_daily(),
            "daily": report.daily(),
        },
    }


def _channel(owner: Owner) -> str | None:
    entry = owner.row.entry if owner.row else {}
    return entry.get("channel") or (entry.get("origin") or {}).get("provider") or entry.get("lastChannel")


def _grouped(
    name: str, spends: Mapping[Path, FileSpend], group_of: Mapping[Path, str], price_of: PriceOf, days: Days
) -> list[dict[str, Any]]:
    groups: dict[str, list[FileSpend]] = {}
    for path, group in group_of.items():
        groups.setdefault(group, []).append(spends[path])
    totals = {group: total_of(members, price_of, days) for group, members in groups.items()}
    ranked = sorted(totals.items(), key=lambda item: (-item[1].total_cost, item[0]))
    return [{name: group, "totals": msgspec.to_builtins(total)} for group, total in ranked]


def by_provider(models: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for row in models:
        group = groups.setdefault(
            row["provider"], {"provider": row["provider"], "count": 0, "totals": msgspec.to_builtins(Totals())}
        )
        group["count"] += row["count"]
        for name, value in row["totals"].items():
            group["totals"][name] += value
    return list(groups.values())


async def _complete(
    gateway: Gateway, sessions: list[dict[str, Any]], owners: Mapping[str, Owner], params: SessionsUsage
) -> None:
    """Adds the fields of the session store to the listed sessions."""
    defaults = model_defaults(gateway)
    for session in sessions:
        owner = owners.get(session["sessionId"])
        if owner is None or owner.row is None:
            continue
        row, entry = row_view(owner.row, defaults), owner.row.entry
        session["updatedAt"] = entry.get("updatedAt")
        session |= {name: row[name] for name in _ROW_FIELDS if row.get(name) is not None}
        for name in ("modelOverride", "providerOverride"):
            if value := entry.get(name):
                session[name] = value
        if params.include_context_weight:
            session["contextWeight"] = await stored_report(entry, gateway.runtime.stores.blobs)


class OneSession(Params):
    key: NonEmpty


@methods.add("sessions.usage.timeseries", OneSession)
async def timeseries(call: MethodCall, params: OneSession) -> Any:
    """How the tokens of a session grew."""
    gateway = call.gateway
    row = await _row(gateway, params.key)
    ref, price_of = transcript_ref(row.agent_id, row.entry), spend_report.prices(gateway.runtime.models.catalogue())
    spent: list[bytes] = []
    cursor: int | None = 0
    while cursor is not None:
        lines, cursor = await gateway.runtime.stores.transcripts.page(ref, cursor, POINTS_PAGE_BYTES)
        spent += filter(has_usage, lines)
    points = await asyncio.to_thread(points_of, spent, price_of, MOST_POINTS)
    return {"sessionId": row.entry["sessionId"], "points": points}


class UsageLogs(Params):
    key: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200


@methods.add("sessions.usage.logs", UsageLogs)
async def logs(call: MethodCall, params: UsageLogs) -> Any:
    """The messages of a session with their tokens and cost."""
    gateway = call.gateway
    row = await _row(gateway, params.key)
    ref = transcript_ref(row.agent_id, row.entry)
    price_of = spend_report.prices(gateway.runtime.models.catalogue())
    views: list[dict[str, Any]] = []
    for entry in await gateway.runtime.stores.transcripts.tail(ref, params.limit):
        message = message_of(entry)
        if message is None:
            continue
        content = shortened(preview_text(message), LOG_CHARS)
        view: dict[str, Any] = {"timestamp": message.timestamp, "role": preview_role(message), "content": content}
        if isinstance(message, AssistantMessage) and message.usage.total_tokens:
            price = price_of(message.provider, message.model)
            view["tokens"] = message.usage.total_tokens
            if message.usage.cost.total or price is not None:
                view["cost"] = message.usage.cost.total or cost_of(message.usage, price).total
        views.append(view)
    return {"logs": views}


async def _row(gateway: Gateway, key: str) -> SessionRow:
    row = await gateway.directory.find(key)
    if row is None:
        raise MethodError(f"No session found: {key}")
    return row


class UsageCost(Params):
    days: Annotated[int, msgspec.Meta(ge=1, le=3660)] | None = None
    start_date: str | None = None
    end_date: str | None = None


@methods.add("usage.cost", UsageCost)
async def usage_cost(call: MethodCall, params: UsageCost) -> Any:
    """The cost of all agents for each day in the user's zone."""
    gateway = call.gateway
    days = _days(gateway, params.start_date, params.end_date, zone_is_utc=False, count=params.days or 30)
    price_of = spend_report.prices(gateway.runtime.models.catalogue())

    def view(found: dict[Path, FileSpend]) -> dict[str, Any]:
        report = UsageReport(found.values(), price_of, days)
        daily = [{"date": day, **msgspec.to_builtins(sums)} for day, sums in report.daily_totals().items()]
        return {"daily": daily, "totals": report.totals()}

    answer = await gateway.runtime.models.spending.compute(
        view, spend_report.folders(gateway.runtime, gateway.agent_ids()), spend_report.begins_ms(days)
    )
    count = (date.fromisoformat(days.last) - date.fromisoformat(days.first)).days + 1
    return {"updatedAt": gateway.runtime.clock.now_ms(), "days": count, **answer}


class UsageStatus(Result):
    """The quotas of providers."""

    updated_at: int
    providers: list[str]
    """Always empty, because no supported provider reports a quota."""


@methods.add("usage.status", NoParams)
async def usage_status(call: MethodCall) -> UsageStatus:
    """The quotas that providers report. None of the supported providers reports any."""
    return UsageStatus(updated_at=call.gateway.runtime.clock.now_ms(), providers=[])


def _days(gateway: Gateway, start: str | None, end: str | None, *, zone_is_utc: bool, count: int = 30) -> Days:
    zone = UTC if zone_is_utc else gateway.user_zone()
    usual = spend_report.last_days(gateway.runtime.clock.now_ms(), count, zone)
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
        for spend in spends:
            for quarter, seen in spend.activity.items():
                if day := days.has(quarter):
                    self._active.setdefault(day, Activity(first_ms=seen.first_ms)).add(seen)

    def totals(self) -> dict[str, Any]:
        return msgspec.to_builtins(total_of(self._spends, self._price_of, self._days))

    def daily_totals(self) -> dict[str, Totals]:
        return daily_totals(self._spends, self._price_of, self._days)

    def session(self) -> dict[str, Any]:
        """Everything about one session."""
        times: dict[str, int] = {}
        if seen := self._active.values():
            first, last = min(one.first_ms for one in seen), max(one.last_ms for one in seen)
            times = {"firstActivity": first, "lastActivity": last, "durationMs": last - first}
        return {
            **self.totals(),
            **times,
            "activityDates": sorted(self._active),
            "dailyBreakdown": [
                {"date": day, "tokens": totals.total_tokens, "cost": totals.total_cost}
                for day, totals in self.daily_totals().items()
            ],
            "dailyMessageCounts": [{"date": day, **_counts([seen])} for day, seen in sorted(self._active.items())],
            "dailyModelUsage": self.model_daily(),
            "messageCounts": self.messages(),
            "toolUsage": self.tools(),
            "modelUsage": self.by_model(),
            **self.latency(),
        }

    def messages(self) -> dict[str, int]:
        return _counts(self._active.values())

    def latency(self) -> dict[str, Any]:
        """Returns ``dailyLatency``, and ``latency`` if anything was measured."""
        daily: dict[str, Latency] = {}
        for spend in self._spends:
            for quarter, seen in spend.latency.items():
                if day := self._days.has(quarter):
                    daily.setdefault(day, Latency()).join(seen)
        whole = together(daily.values())
        rows = [{"date": day, **seen.view()} for day, seen in sorted(daily.items()) if seen.count]
        return {**({"latency": whole.view()} if whole else {}), "dailyLatency": rows}

    def tools(self) -> dict[str, Any]:
        used: Counter[str] = Counter()
        for spend in self._spends:
            for (quarter, name), count in spend.tools.items():
                if self._days.has(quarter):
                    used[name] += count
        tools = [{"name": name, "count": count} for name, count in used.most_common()]
        return {"totalCalls": used.total(), "uniqueTools": len(used), "tools": tools}

    def by_model(self) -> list[dict[str, Any]]:
        groups = self._calls_by(lambda _, provider, model: (provider, model))
        ranked = sorted(groups.items(), key=lambda item: (-item[1][1].total_cost, -item[1][1].total_tokens, item[0]))
        return [
            {"provider": provider, "model": model, "count": count, "totals": msgspec.to_builtins(totals)}
            for (provider, model), (count, totals) in ranked
        ]

    def model_daily(self) -> list[dict[str, Any]]:
        return [
            {"date": day, "provider": provider, "model": model, "tokens": totals.total_tokens,
             "cost": totals.total_cost, "count": count}
            for (day, provider, model), (count, totals) in sorted(self._calls_by(lambda *group: group).items())
        ]  # fmt: skip

    def daily(self) -> list[dict[str, Any]]:
        sums, rows = self.daily_totals(), list[dict[str, Any]]()
        for day in sorted({*sums, *self._active}):
            totals, seen = sums.get(day, Totals()), self._active.get(day, Activity())
            row = {"date": day, "tokens": totals.total_tokens, "cost": totals.total_cost, "messages": seen.total}
            rows.append({**row, "toolCalls": seen.tool_calls, "errors": seen.errors})
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


def _counts(active: Collection[Activity]) -> dict[str, int]:
    counted = {"total": "total", "user": "user", "assistant": "assistant", "toolCalls": "tool_calls"}
    counted |= {"toolResults": "tool_results", "errors": "errors"}
    return {name: sum(getattr(seen, field) for seen in active) for name, field in counted.items()}
