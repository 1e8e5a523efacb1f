"""Reads what sessions and agents have spent: by session and by day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.spend import AGENT_BILL, Days, FileSpend, PriceOf, Totals, total_of
from openclaw.config.agents import user_zone
from openclaw.models.base import Price
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.outbound.usage_text import money
from openclaw.paths import sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import transcript_ref

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
    bills = [agent_bill(folder) for folder in found]
    return list(dict.fromkeys([*found, *(Path(runtime.transcripts.folder(agent)) for agent in agents), *bills]))


def agent_bill(folder: Path) -> Path:
    """The file that says what an agent used outside its sessions. It lies beside the folder of its transcripts."""
    return folder.parent / AGENT_BILL


async def transcript_path(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> Path | None:
    """None: the session has no transcript yet."""
    found = await runtime.transcripts.locate(transcript_ref(session.agent_id, entry)) if entry else None
    return Path(found) if found else None


async def session_totals(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> Totals:
    """What the session has spent so far."""
    path, price_of = await transcript_path(runtime, session, entry), prices(runtime.catalogue())
    if path is None:
        return Totals()
    return await runtime.spending.compute(lambda found: total_of(found.values(), price_of), [path])


async def spent_by_session_and_agent(
    runtime: Runtime, session: SessionRef, entry: SessionEntry | None
) -> dict[str, Totals]:
    """What the session has spent, and what its agent has spent in days of the user's zone. The keys are labels."""
    price_of, now, zone = prices(runtime.catalogue()), runtime.clock.now_ms(), user_zone(runtime.config.current)
    today, month = last_days(now, 1, zone), last_days(now, 30, zone)
    path = await transcript_path(runtime, session, entry)

    def add_up(found: dict[Path, FileSpend]) -> dict[str, Totals]:
        everything = found.values()
        return {
            "Session": total_of([found[path]] if path in found else [], price_of),
            "Today": total_of(everything, price_of, today),
            "Last 30d": total_of(everything, price_of, month),
        }

    places = [*([path] if path else []), *folders(runtime, [session.agent_id])]
    return await runtime.spending.compute(add_up, places, begins_ms(month))


def cost_text(totals: Totals) -> str:
    if not totals.known:
        return "n/a"
    return money(totals.total_cost) + (" (partial)" if totals.missing_cost_entries > 0 else "")
