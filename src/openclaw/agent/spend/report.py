"""Where the spending of sessions and agents is read: prices, days, folders and transcripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TypeVar

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.spend import Days, FileSpend, PriceOf
from openclaw.models.base import Price
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.paths import sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import transcript_ref

T = TypeVar("T")


DAY_MS = 86_400_000


def prices(catalogue: Catalogue) -> PriceOf:
    """Each model is looked up once; what the catalogue does not know has no price."""
    known: dict[tuple[str, str], Price | None] = {}

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


def folders(runtime: Runtime, agents: Sequence[str]) -> list[Path]:
    found = [Path(sessions_dir(str(runtime.state_dir), agent)) for agent in agents]
    return list(dict.fromkeys([*found, *(Path(runtime.sessions.path(agent)).parent for agent in agents)]))


async def of_session(
    runtime: Runtime, session: SessionRef, entry: SessionEntry | None, what: Callable[[FileSpend], T]
) -> T | None:
    """None when the session has no transcript."""
    path = transcript_path(runtime, session, entry)
    if path is None:
        return None
    return await runtime.spending.reckon(lambda found: what(found.get(path, FileSpend())), [path])


def transcript_path(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> Path | None:
    found = runtime.transcripts.locate(transcript_ref(session.agent_id, entry)) if entry else None
    return Path(found) if found else None
