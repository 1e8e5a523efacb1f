"""``health`` and ``status``: is all well, and what is going on."""

from __future__ import annotations

import math
from typing import Any

from openclaw import __version__
from openclaw.config.agents import default_agent_id
from openclaw.gateway.channel_services import summary_lines
from openclaw.gateway.health import heartbeat_summary
from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, method
from openclaw.gateway.session_rows import list_kind, model_defaults, most_recent, row_view
from openclaw.sessions.keys import shown_key
from openclaw.storage.base import SessionRow

RECENT_ROWS = 10


class HealthParams(Params):
    probe: bool = False


class StatusParams(Params):
    pass


@method("health", HealthParams)
async def health(call: Call) -> Any:
    return await call.gateway.health.current(probe=call.params.probe)


@method("status", StatusParams)
async def status(call: Call) -> Any:
    gateway = call.gateway
    config = gateway.config.current
    agents: list[dict[str, Any]] = []
    by_agent: list[dict[str, Any]] = []
    everything: list[dict[str, Any]] = []
    count = 0
    for agent_id in gateway.agent_ids():
        beat = heartbeat_summary(config, agent_id)
        agents.append({"agentId": agent_id, **{name: beat[name] for name in ("enabled", "every", "everyMs")}})
        listed = await most_recent(gateway, agent_id, RECENT_ROWS)
        defaults = model_defaults(gateway, agent_id)
        recent = [status_row(row, defaults, gateway.clock.now_ms()) for row in listed.rows]
        by_agent.append(
            {"agentId": agent_id, "path": gateway.sessions.path(agent_id), "count": listed.total, "recent": recent}
        )
        everything += recent
        count += listed.total
    everything.sort(key=lambda row: -(row["updatedAt"] or 0))
    defaults = model_defaults(gateway)
    return {
        "runtimeVersion": __version__,
        "heartbeat": {"defaultAgentId": default_agent_id(config), "agents": agents},
        "channelSummary": summary_lines(gateway.channel_services.channels if gateway.channel_services else None),
        "queuedSystemEvents": gateway.system_events.peek(gateway.main_session_key()),
        "sessions": {
            "paths": [agent["path"] for agent in by_agent],
            "count": count,
            "defaults": {"model": defaults["model"], "contextTokens": defaults["contextTokens"]},
            "recent": everything[:RECENT_ROWS],
            "byAgent": by_agent,
        },
    }


_SHOWN_IF_SET = (
    *("thinkingLevel", "verboseLevel", "reasoningLevel", "elevatedLevel"),
    *("systemSent", "abortedLastRun", "compactionCount"),
)


def status_row(row: SessionRow, defaults: dict[str, Any], now: int) -> dict[str, Any]:
    """A session with how full it is; what is unknown is null, never a made-up zero."""
    view = row_view(row, defaults)
    updated = view.get("updatedAt")
    total, window = view.get("totalTokens"), view.get("contextTokens")
    shown: dict[str, Any] = {"agentId": row.agent_id, "key": shown_key(row.key), "kind": list_kind(row)}
    shown |= {"sessionId": view.get("sessionId"), "updatedAt": updated, "age": now - updated if updated else None}
    for name in _SHOWN_IF_SET:
        if name in view:
            shown[name] = view[name]
    shown |= {name: view.get(name) for name in ("inputTokens", "outputTokens", "totalTokens")}
    shown["remainingTokens"] = shown["percentUsed"] = None
    if isinstance(total, int) and isinstance(window, int) and window > 0:
        shown["remainingTokens"] = max(0, window - total)
        shown["percentUsed"] = min(999, math.floor(100 * total / window + 0.5))
    shown |= {"model": view.get("model"), "contextTokens": window, "flags": _flags(view)}
    return shown


def _flags(view: dict[str, Any]) -> list[str]:
    flags = [
        f"{short}:{view[name]}"
        for short, name in (("think", "thinkingLevel"), ("verbose", "verboseLevel"), ("reasoning", "reasoningLevel"))
        if view.get(name)
    ]
    if view.get("systemSent"):
        flags.append("system")
    if view.get("abortedLastRun"):
        flags.append("aborted")
    if view.get("sessionId"):
        flags.append(f"id:{view['sessionId']}")
    return flags
