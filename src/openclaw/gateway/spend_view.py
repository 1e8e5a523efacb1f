"""Tokens and money as clients read them. Every view takes its sums from here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from openclaw.agent.spend.spend import (
    Activity,
    Days,
    FileSpend,
    Latency,
    PriceOf,
    Totals,
    daily_totals,
    together,
    total_of,
)
from openclaw.gateway.targets import Target, transcript_ref
from openclaw.models.base import Price
from openclaw.models.catalogue import UnknownModel
from openclaw.paths import sessions_dir
from openclaw.sessions.entry import SessionEntry

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

T = TypeVar("T")
DAY_MS = 86_400_000


def prices(gateway: Gateway) -> PriceOf:
    """Each model is looked up once; what the catalogue does not know has no price."""
    catalogue, known = gateway.runtime.catalogue(), dict[tuple[str, str], Price | None]()

    def price_of(provider: str, model: str) -> Price | None:
        if (provider, model) not in known:
            try:
                known[provider, model] = catalogue.resolve(f"{provider}/{model}").cost
            except UnknownModel:
                known[provider, model] = None
        return known[provider, model]

    return price_of


def last_days(now_ms: int, count: int, zone: tzinfo | None) -> Days:
    """Today and the days before it, ``count`` in all."""
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date()
    return Days((today - timedelta(days=count - 1)).isoformat(), today.isoformat(), zone)


def begins_ms(days: Days) -> int:
    """No call of these days can be older, whatever the zone."""
    first = datetime.combine(date.fromisoformat(days.first), datetime.min.time(), UTC)
    return int(first.timestamp() * 1000) - DAY_MS


def folders(gateway: Gateway, agent_id: str | None = None) -> list[Path]:
    agents = [agent_id] if agent_id else gateway.agent_ids()
    found = [Path(sessions_dir(gateway.runtime.state_dir, agent)) for agent in agents]
    return list(dict.fromkeys([*found, *(Path(gateway.runtime.sessions.path(agent)).parent for agent in agents)]))


async def of_session(
    gateway: Gateway, target: Target, entry: SessionEntry | None, what: Callable[[FileSpend], T]
) -> T | None:
    """None when the session has no transcript."""
    path = transcript_path(gateway, target, entry)
    if path is None:
        return None
    return await gateway.runtime.spending.reckon(lambda found: what(found.get(path, FileSpend())), [path])


def transcript_path(gateway: Gateway, target: Target, entry: SessionEntry | None) -> Path | None:
    found = gateway.runtime.transcripts.locate(transcript_ref(target, entry)) if entry else None
    return Path(found) if found else None


# Parts of answers


def daily_view(spends: Iterable[FileSpend], price_of: PriceOf, days: Days) -> list[dict[str, Any]]:
    return [{"date": day, **plain(totals)} for day, totals in daily_totals(spends, price_of, days).items()]


def plain(record: Any) -> dict[str, Any]:
    return msgspec.to_builtins(record)


def session_usage(spend: FileSpend, price_of: PriceOf, days: Days) -> dict[str, Any]:
    daily = daily_totals([spend], price_of, days)
    active = activity_by_day([spend], days)
    return {
        **plain(total_of([spend], price_of, days)),
        "activityDates": sorted(active),
        "dailyBreakdown": [
            {"date": day, "tokens": totals.total_tokens, "cost": totals.total_cost} for day, totals in daily.items()
        ],
        "messageCounts": message_counts(active.values()),
        "toolUsage": tool_usage([spend], days),
        "modelUsage": by_model([spend], price_of, days),
        **latency_view([spend], days),
    }


def latency_view(spends: Iterable[FileSpend], days: Days) -> dict[str, Any]:
    """``latency`` where anything was measured, and ``dailyLatency``."""
    daily: dict[str, Latency] = {}
    for spend in spends:
        for quarter, seen in spend.latency.items():
            if day := days.has(quarter):
                daily.setdefault(day, Latency()).join(seen)
    whole = together(daily.values())
    rows = [{"date": day, **seen.view()} for day, seen in sorted(daily.items()) if seen.count]
    return {**({"latency": whole.view()} if whole else {}), "dailyLatency": rows}


def activity_by_day(spends: Iterable[FileSpend], days: Days) -> dict[str, Activity]:
    found: dict[str, Activity] = {}
    for spend in spends:
        for quarter, seen in spend.activity.items():
            if day := days.has(quarter):
                total = found.setdefault(day, Activity())
                for name in Activity.__struct_fields__:
                    setattr(total, name, getattr(total, name) + getattr(seen, name))
    return found


def message_counts(active: Iterable[Activity]) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(("total", "user", "assistant", "toolCalls", "toolResults", "errors"), 0)
    for seen in active:
        counts["total"] += seen.total
        counts["user"] += seen.user
        counts["assistant"] += seen.assistant
        counts["toolCalls"] += seen.tool_calls
        counts["toolResults"] += seen.tool_results
        counts["errors"] += seen.errors
    return counts


def tool_usage(spends: Iterable[FileSpend], days: Days) -> dict[str, Any]:
    used: Counter[str] = Counter()
    for spend in spends:
        for (quarter, name), count in spend.tools.items():
            if days.has(quarter):
                used[name] += count
    tools = [{"name": name, "count": count} for name, count in used.most_common()]
    return {"totalCalls": used.total(), "uniqueTools": len(used), "tools": tools}


def by_model(spends: Iterable[FileSpend], price_of: PriceOf, days: Days) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], tuple[int, Totals]] = {}
    for spend in spends:
        for (quarter, provider, model), calls in spend.calls.items():
            if days.has(quarter):
                count, totals = groups.setdefault((provider, model), (0, Totals()))
                totals.add(calls, price_of(provider, model))
                groups[provider, model] = (count + calls.count, totals)
    ranked = sorted(groups.items(), key=lambda item: (-item[1][1].total_cost, -item[1][1].total_tokens, item[0]))
    return [
        {"provider": provider, "model": model, "count": count, "totals": plain(totals)}
        for (provider, model), (count, totals) in ranked
    ]


def by_provider(models: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for row in models:
        group = groups.setdefault(row["provider"], {"provider": row["provider"], "count": 0, "totals": plain(Totals())})
        group["count"] += row["count"]
        for name, value in row["totals"].items():
            group["totals"][name] += value
    return list(groups.values())


def model_daily(spends: Iterable[FileSpend], price_of: PriceOf, days: Days) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], tuple[int, Totals]] = {}
    for spend in spends:
        for (quarter, provider, model), calls in spend.calls.items():
            if day := days.has(quarter):
                count, totals = groups.setdefault((day, provider, model), (0, Totals()))
                totals.add(calls, price_of(provider, model))
                groups[day, provider, model] = (count + calls.count, totals)
    return [
        {"date": day, "provider": provider, "model": model, "tokens": totals.total_tokens, "cost": totals.total_cost,
         "count": count}
        for (day, provider, model), (count, totals) in sorted(groups.items())
    ]  # fmt: skip


def daily_aggregate(spends: list[FileSpend], price_of: PriceOf, days: Days) -> list[dict[str, Any]]:
    sums, active = daily_totals(spends, price_of, days), activity_by_day(spends, days)
    rows: list[dict[str, Any]] = []
    for day in sorted({*sums, *active}):
        totals, seen = sums.get(day, Totals()), active.get(day, Activity())
        row = {"date": day, "tokens": totals.total_tokens, "cost": totals.total_cost, "messages": seen.total}
        rows.append({**row, "toolCalls": seen.tool_calls, "errors": seen.errors})
    return rows
