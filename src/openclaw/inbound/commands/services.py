"""What commands may do, done by the stores, the dispatcher and the configuration."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from openclaw.agent.prepare import session_report
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend import report as spend_report
from openclaw.agent.spend.budget import Limit, budget_of, family_of, is_limited, limits, spent_so_far
from openclaw.agent.spend.spend import FileSpend, Totals, total_of
from openclaw.clock import Clock
from openclaw.config.agents import user_zone
from openclaw.config.keypath import MISSING, KeyPathError, get_path, parse_path
from openclaw.config.schema import Config
from openclaw.config.secrets import redacted
from openclaw.config.validate import ConfigError
from openclaw.inbound.accept import current_session
from openclaw.inbound.commands.context import (
    Cost,
    Decision,
    EarlierSession,
    Facts,
    QueueView,
    Stopped,
    Waiting,
)
from openclaw.models.base import Model
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.keys import find_source, provider_config, stored_profiles
from openclaw.paths import sessions_dir
from openclaw.runs.compactions import Compactions
from openclaw.runs.dispatcher import Dispatcher
from openclaw.runs.run_index import RunRecord
from openclaw.runs.session_change import earlier_sessions, start_over, take_up
from openclaw.runs.why import life_of, story_of
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.typed_text import without_wrappers
from openclaw.storage.base import AbortReason
from openclaw.tools.exec.approvals import UnknownApproval

if TYPE_CHECKING:
    from openclaw.inbound.notices import Notices


class Services:
    """Implements ``inbound.commands.context.CommandServices``."""

    def __init__(
        self,
        runtime: Runtime,
        dispatcher: Dispatcher,
        notices: Notices,
        *,
        restart: Callable[[str], object],
        environ: Mapping[str, str],
    ) -> None:
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._notices = notices
        self._restart = restart
        self._environ = environ

    @property
    def clock(self) -> Clock:
        return self._runtime.clock

    @property
    def config(self) -> Config:
        return self._runtime.config.current

    @property
    def catalogue(self) -> Catalogue:
        return self._runtime.catalogue()

    @property
    def compactions(self) -> Compactions:
        return self._dispatcher.compactions

    # The session

    async def entry(self, session: SessionRef) -> SessionEntry | None:
        return await self._runtime.sessions.get(session.agent_id, session.key)

    async def patch_session(self, session: SessionRef, changes: dict[str, Any]) -> None:
        now = self.clock.now_ms()

        def change(entry: SessionEntry | None) -> SessionEntry:
            fields: dict[str, Any] = dict(entry or {"sessionId": str(uuid.uuid4()), "updatedAt": now})
            for name, value in changes.items():
                if value is None:
                    fields.pop(name, None)
                else:
                    fields[name] = value
            return SessionEntry(**fields)  # type: ignore[typeddict-item]

        await self._runtime.sessions.update(session.agent_id, session.key, change)

    async def use_session(self, facts: Facts) -> str | None:
        _, rotation = await current_session(facts, self._runtime, self._dispatcher)
        if rotation is None:
            return None
        self._notices.announce(facts.session, rotation)
        return rotation.marker_text if facts.channel != "webchat" else None

    async def rotate_session(self, session: SessionRef, reason: Literal["new", "reset"]) -> None:
        self._notices.announce(session, await start_over(self._runtime, self._dispatcher, session, reason))

    async def earlier_sessions(self, session: SessionRef) -> Sequence[EarlierSession]:
        return [
            EarlierSession(
                session_id=view["sessionId"], ended_at=view["endedAt"], reason=view["reason"], title=view["title"]
            )
            for view in await earlier_sessions(self._runtime, session)
        ]

    async def resume_session(self, session: SessionRef, wanted: str | None) -> str:
        rotation = await take_up(self._runtime, self._dispatcher, session, wanted)
        self._notices.announce(session, rotation)
        return rotation.marker_text

    def note(self, session: SessionRef, text: str) -> None:
        self._runtime.notes.add(session.key, text)

    # Runs

    async def stop(self, session: SessionRef) -> Stopped:
        stopped = self._dispatcher.abort(session.key, reason=AbortReason.STOP)
        if stopped and await self.entry(session) is not None:
            await self.patch_session(session, {"abortedLastRun": True})
        return Stopped(stopped)

    def queue(self, session: SessionRef) -> QueueView:
        records = self._dispatcher.active(session.key)
        running = next((record for record in records if record.state == "running"), None)
        waiting = [_waiting(record) for record in records if record is not running]
        return QueueView(_waiting(running) if running else None, waiting)

    async def drop_waiting(self, session: SessionRef, run_id: str) -> bool:
        if run_id not in {record.run_id for record in self._dispatcher.waiting(session.key)}:
            return False
        return bool(self._dispatcher.abort(session.key, run_id, AbortReason.REMOVED))

    async def run_next(self, session: SessionRef, run_id: str) -> bool:
        return self._dispatcher.promote(session.key, run_id)

    async def why(self, session: SessionRef, ref: str | None) -> list[str]:
        rows = await self._runtime.ledger.recent(session_key=session.key, limit=1 if ref is None else 200)
        wanted = [row for row in rows if ref is None or row.run_id.startswith(ref) or str(row.id) == ref]
        if not wanted:
            return []
        return story_of(self._runtime, self._dispatcher, await life_of(self._runtime, wanted[0]))

    # Facts

    def auth_label(self, model: Model, agent_id: str) -> str:
        source = find_source(model, provider_config(self.config, model.provider), self._environ)
        return {"unneeded": "no key needed", "missing": "no key"}.get(
            source.kind, f"{source.kind} {source.where}".strip()
        )

    async def auth_profiles(self, model: Model, agent_id: str) -> Sequence[str]:
        stored = await stored_profiles(model, self.config, str(self._runtime.state_dir), agent_id, self.clock.now_ms())
        return [profile.id for profile in stored]

    def decide(self, ref: str, decision: Decision, by: str) -> str:
        approvals = self._runtime.approvals
        try:
            if approvals is None:
                raise UnknownApproval("nothing is asked here")
            return approvals.resolve(ref, decision, by).request.command
        except UnknownApproval as unknown:
            raise LookupError(f"{unknown}.{unknown.perhaps}") from None

    def runtime(self, session: SessionRef) -> str:
        return "direct"

    async def limits(self, session: SessionRef) -> list[Limit]:
        budget = budget_of(self.config, session.agent_id)
        if not is_limited(budget):
            return []
        path = spend_report.transcript_path(self._runtime, session, await self.entry(session))
        home = Path(sessions_dir(str(self._runtime.state_dir), session.agent_id))
        family = await family_of(self._runtime, session.key)
        spent = await spent_so_far(self._runtime, path or home / "none.jsonl", family)
        return limits(budget, spent)

    async def prompt_report(self, session: SessionRef) -> dict[str, Any]:
        return await session_report(session.agent_id, session.key, self._runtime)

    async def context_window(self, session: SessionRef) -> int | None:
        own = (await self.entry(session) or {}).get("contextTokens")
        try:
            return own or self.catalogue.default_for(self.config, session.agent_id).context_window
        except UnknownModel:
            return None

    async def session_cost(self, session: SessionRef) -> Cost:
        price_of, entry = spend_report.prices(self.catalogue), await self.entry(session)
        totals = await spend_report.of_session(self._runtime, session, entry, lambda spend: total_of([spend], price_of))
        return _cost(totals or Totals())

    async def costs(self, session: SessionRef) -> dict[str, Cost]:
        """The session, and everything its agent spent in days of the user's zone."""
        price_of = spend_report.prices(self.catalogue)
        now, zone = self.clock.now_ms(), user_zone(self.config)
        today, month = spend_report.last_days(now, 1, zone), spend_report.last_days(now, 30, zone)
        path = spend_report.transcript_path(self._runtime, session, await self.entry(session))

        def add_up(found: dict[Path, FileSpend]) -> dict[str, Totals]:
            everything = found.values()
            return {
                "Session": total_of([found[path]] if path in found else [], price_of),
                "Today": total_of(everything, price_of, today),
                "Last 30d": total_of(everything, price_of, month),
            }

        places = [*([path] if path else []), *spend_report.folders(self._runtime, [session.agent_id])]
        sums = await self._runtime.spending.compute(add_up, places, spend_report.begins_ms(month))
        return {label: _cost(totals) for label, totals in sums.items()}

    # The Gateway

    async def read_config(self, path: str | None) -> Any:
        shown = redacted(self._runtime.config.snapshot.parsed)
        if path is None:
            return shown
        try:
            found = get_path(shown, parse_path(path), MISSING)
        except KeyPathError as error:
            raise ValueError(str(error)) from None
        if found is MISSING:
            raise ValueError(f"Config path not found: {path}")
        return found

    async def write_config(self, path: str, value: Any) -> None:
        await self._change_config(lambda: self._runtime.config.set_path(path, value))

    async def remove_config(self, path: str) -> None:
        await self._change_config(lambda: self._runtime.config.unset_path(path))

    async def _change_config(self, change: Any) -> None:
        try:
            await asyncio.to_thread(change)
        except (ConfigError, KeyPathError) as error:
            raise ValueError(str(error)) from None
        except KeyError as error:
            raise ValueError(f"Config path not found: {error.args[0]}") from None
        await self._runtime.config.reload()

    async def restart(self, reason: str) -> None:
        self._restart(reason)


def _cost(totals: Totals) -> Cost:
    return Cost(totals.total_cost if totals.known else None, partial=totals.known and totals.missing_cost_entries > 0)


def _waiting(record: RunRecord) -> Waiting:
    return Waiting(record.run_id, without_wrappers(record.row.body.prompt or ""), record.row.accepted_at)
