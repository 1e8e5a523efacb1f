"""What commands may do, done by the living parts of the Gateway."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from openclaw.agent.prepare import session_report
from openclaw.agent.spend.budget import Limit, budget_of, family_of, is_limited, limits, spent_so_far
from openclaw.agent.spend.spend import FileSpend, Totals, total_of
from openclaw.clock import Clock
from openclaw.config.keypath import MISSING, KeyPathError, get_path, parse_path
from openclaw.config.schema import Config
from openclaw.config.secrets import redacted
from openclaw.config.validate import ConfigError
from openclaw.gateway import explain, spend_view
from openclaw.gateway.rotation import announce, earlier_sessions, start_over, take_up
from openclaw.gateway.session_rows import model_defaults, row_view
from openclaw.gateway.targets import Target
from openclaw.inbound.commands.context import (
    Cost,
    Decision,
    EarlierSession,
    Facts,
    QueueView,
    SessionRef,
    Stopped,
    Waiting,
)
from openclaw.inbound.stamp import without_wrappers
from openclaw.models.base import Model
from openclaw.models.catalogue import Catalogue
from openclaw.models.keys import find_source, provider_config, stored_profiles
from openclaw.paths import sessions_dir
from openclaw.runs.compactions import Compactions
from openclaw.runs.run_index import RunRecord
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import MessageFacts, ensure_fresh
from openclaw.storage.base import AbortReason, SessionRow
from openclaw.tools.exec.approvals import UnknownApproval

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


class GatewayCommands:
    """Implements ``inbound.commands.context.CommandServices``."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def clock(self) -> Clock:
        return self._gateway.runtime.clock

    @property
    def config(self) -> Config:
        return self._gateway.runtime.config.current

    @property
    def catalogue(self) -> Catalogue:
        return self._gateway.runtime.catalogue()

    @property
    def compactions(self) -> Compactions:
        return self._gateway.dispatcher.compactions

    # The session

    async def entry(self, session: SessionRef) -> SessionEntry | None:
        return await self._gateway.runtime.sessions.get(session.agent_id, session.key)

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

        await self._gateway.runtime.sessions.update(session.agent_id, session.key, change)

    async def use_session(self, facts: Facts) -> str | None:
        gateway, session = self._gateway, facts.session
        _, rotation = await ensure_fresh(
            gateway.runtime,
            session.agent_id,
            session.key,
            MessageFacts(channel=facts.channel, chat_type=facts.chat_type, thread=facts.thread_id is not None),
            self.clock.now_ms(),
            busy=lambda: gateway.dispatcher.occupied(session.key),
        )
        if rotation is None:
            return None
        announce(gateway, _target(session), rotation)
        return rotation.marker_text if facts.channel != "webchat" else None

    async def rotate_session(self, session: SessionRef, reason: Literal["new", "reset"]) -> None:
        await start_over(self._gateway, _target(session), reason)

    async def earlier_sessions(self, session: SessionRef) -> Sequence[EarlierSession]:
        return [
            EarlierSession(
                session_id=view["sessionId"], ended_at=view["endedAt"], reason=view["reason"], title=view["title"]
            )
            for view in await earlier_sessions(self._gateway, _target(session))
        ]

    async def resume_session(self, session: SessionRef, wanted: str | None) -> str:
        return (await take_up(self._gateway, _target(session), wanted)).marker_text

    def note(self, session: SessionRef, text: str) -> None:
        self._gateway.runtime.notes.add(session.key, text)

    # Runs

    async def stop(self, session: SessionRef) -> Stopped:
        stopped = self._gateway.dispatcher.abort(session.key, reason=AbortReason.STOP)
        if stopped and await self.entry(session) is not None:
            await self.patch_session(session, {"abortedLastRun": True})
        return Stopped(stopped)

    def queue(self, session: SessionRef) -> QueueView:
        records = self._gateway.dispatcher.active(session.key)
        running = next((record for record in records if record.state == "running"), None)
        waiting = [_waiting(record) for record in records if record is not running]
        return QueueView(_waiting(running) if running else None, waiting)

    async def drop_waiting(self, session: SessionRef, run_id: str) -> bool:
        if run_id not in {record.run_id for record in self._gateway.dispatcher.waiting(session.key)}:
            return False
        return bool(self._gateway.dispatcher.abort(session.key, run_id, AbortReason.REMOVED))

    async def run_next(self, session: SessionRef, run_id: str) -> bool:
        return self._gateway.dispatcher.promote(session.key, run_id)

    async def why(self, session: SessionRef, ref: str | None) -> list[str]:
        rows = await self._gateway.runtime.ledger.recent(session_key=session.key, limit=1 if ref is None else 200)
        wanted = [row for row in rows if ref is None or row.run_id.startswith(ref) or str(row.id) == ref]
        if not wanted:
            return []
        return explain.story_of(self._gateway, await explain.life_of(self._gateway, wanted[0]))

    # Facts

    def auth_label(self, model: Model, agent_id: str) -> str:
        source = find_source(model, provider_config(self.config, model.provider), self._gateway.environ)
        return {"unneeded": "no key needed", "missing": "no key"}.get(
            source.kind, f"{source.kind} {source.where}".strip()
        )

    async def auth_profiles(self, model: Model, agent_id: str) -> Sequence[str]:
        stored = await stored_profiles(
            model, self.config, str(self._gateway.runtime.state_dir), agent_id, self.clock.now_ms()
        )
        return [profile.id for profile in stored]

    def decide(self, ref: str, decision: Decision, by: str) -> str:
        approvals = self._gateway.runtime.approvals
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
        target, entry = _target(session), await self.entry(session)
        path = spend_view.transcript_path(self._gateway, target, entry)
        home = Path(sessions_dir(self._gateway.runtime.state_dir, session.agent_id))
        runtime = self._gateway.runtime
        spent = await spent_so_far(runtime, path or home / "none.jsonl", await family_of(runtime, session.key))
        return limits(budget, spent)

    async def prompt_report(self, session: SessionRef) -> dict[str, Any]:
        return await session_report(session.agent_id, session.key, self._gateway.runtime)

    async def context_window(self, session: SessionRef) -> int | None:
        entry = await self.entry(session) or SessionEntry(sessionId="")
        row = SessionRow(session.agent_id, session.key, entry)
        return row_view(row, model_defaults(self._gateway, session.agent_id))["contextTokens"]

    async def session_cost(self, session: SessionRef) -> Cost:
        price_of, entry = spend_view.prices(self._gateway), await self.entry(session)
        totals = await spend_view.of_session(
            self._gateway, _target(session), entry, lambda spend: total_of([spend], price_of)
        )
        return _cost(totals or Totals())

    async def costs(self, session: SessionRef) -> dict[str, Cost]:
        """The session, and everything its agent spent in days of the user's zone."""
        gateway, price_of = self._gateway, spend_view.prices(self._gateway)
        now, zone = self.clock.now_ms(), gateway.user_zone()
        today, month = spend_view.last_days(now, 1, zone), spend_view.last_days(now, 30, zone)
        path = spend_view.transcript_path(gateway, _target(session), await self.entry(session))

        def add_up(found: dict[Path, FileSpend]) -> dict[str, Totals]:
            everything = found.values()
            return {
                "Session": total_of([found[path]] if path in found else [], price_of),
                "Today": total_of(everything, price_of, today),
                "Last 30d": total_of(everything, price_of, month),
            }

        places = [*([path] if path else []), *spend_view.folders(gateway, session.agent_id)]
        sums = await gateway.runtime.spending.reckon(add_up, places, spend_view.begins_ms(month))
        return {label: _cost(totals) for label, totals in sums.items()}

    # The Gateway

    async def read_config(self, path: str | None) -> Any:
        shown = redacted(self._gateway.runtime.config.snapshot.parsed)
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
        await self._change_config(lambda: self._gateway.runtime.config.set_path(path, value))

    async def remove_config(self, path: str) -> None:
        await self._change_config(lambda: self._gateway.runtime.config.unset_path(path))

    async def _change_config(self, change: Any) -> None:
        try:
            await asyncio.to_thread(change)
        except (ConfigError, KeyPathError) as error:
            raise ValueError(str(error)) from None
        except KeyError as error:
            raise ValueError(f"Config path not found: {error.args[0]}") from None
        await self._gateway.runtime.config.reload()

    async def restart(self, reason: str) -> None:
        self._gateway.restart.schedule(reason)


def _cost(totals: Totals) -> Cost:
    return Cost(totals.total_cost if totals.known else None, partial=totals.known and totals.missing_cost_entries > 0)


def _target(session: SessionRef) -> Target:
    return Target(session.agent_id, session.key)


def _waiting(record: RunRecord) -> Waiting:
    return Waiting(record.run_id, without_wrappers(record.row.body.prompt or ""), record.row.accepted_at)
