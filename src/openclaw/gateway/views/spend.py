"""Tokens and money as clients read them. Every answer takes its sums from here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

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
    """Returns ``dailyLatency``, and ``latency`` if anything was measured."""
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
