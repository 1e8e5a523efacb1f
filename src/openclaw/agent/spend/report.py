"""What a question about spending needs: the prices, the days, and the transcripts of sessions and agents."""

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
    """A function that looks up each model once. The price is None if the catalogue does not know the model."""
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
    """The last ``count`` days, including today."""
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date()
    return Days((today - timedelta(days=count - 1)).isoformat(), today.isoformat(), zone)


def begins_ms(days: Days) -> int:
    """A time before the first of these days in every zone. Older transcripts need not be read."""
    first = datetime.combine(date.fromisoformat(days.first), datetime.min.time(), UTC)
    return int(first.timestamp() * 1000) - DAY_MS


def folders(runtime: Runtime, agents: Sequence[str]) -> list[Path]:
    """The folders that may hold transcripts of these agents, each once."""
    found = [Path(sessions_dir(str(runtime.state_dir), agent)) for agent in agents]
    return list(dict.fromkeys([*found, *(Path(runtime.sessions.path(agent)).parent for agent in agents)]))


async def of_session(
    runtime: Runtime, session: SessionRef, entry: SessionEntry | None, what: Callable[[FileSpend], T]
) -> T | None:
    """Calls ``what`` with the sums of the session's transcript; None if it has no transcript."""
    path = transcript_path(runtime, session, entry)
    if path is None:
        return None
    return await runtime.spending.compute(lambda found: what(found.get(path, FileSpend())), [path])


def transcript_path(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> Path | None:
    found = runtime.transcripts.locate(transcript_ref(session.agent_id, entry)) if entry else None
    return Path(found) if found else None
