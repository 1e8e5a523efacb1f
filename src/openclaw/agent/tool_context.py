"""What the tool calls of a run know about it, and how its commands are executed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from openclaw.agent.prepare import Prepared
from openclaw.agent.recorder import ActiveRun
from openclaw.agent.runtime import Runtime
from openclaw.agent.window.history_cleaner import max_result_chars
from openclaw.events import ToolContinues, ToolWaits
from openclaw.memory.embedders import Pay
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.message_ledger import MessageBody
from openclaw.storage.questions import Question
from openclaw.tools.base import LONGEST_RESULT, ToolContext
from openclaw.tools.exec.settings import ExecOverrides
from openclaw.tools.sandbox.launch import blocked_text


def exec_overrides(body: MessageBody, entry: SessionEntry | None, elevated_default: str) -> ExecOverrides | None:
    """How commands are executed: as the message says, else as the session says. None: neither says anything."""
    stored: Mapping[str, Any] = entry or {}
    elevated = body.elevated or stored.get("elevatedLevel")
    if elevated is None and elevated_default != "on":
        # "on" is the usual default. It changes nothing without a sandbox.
        elevated = elevated_default
    values: dict[str, Any] = {
        "host": body.exec.get("host") or stored.get("execHost"),
        "security": body.exec.get("security") or stored.get("execSecurity"),
        "ask": body.exec.get("ask") or stored.get("execAsk"),
        "node": body.exec.get("node") or stored.get("execNode"),
        "elevated": elevated,
    }
    if not body.elevated_allowed and not any(values.values()):
        return None
    return ExecOverrides(**values, elevated_allowed=body.elevated_allowed)


def tool_context(runtime: Runtime, prepared: Prepared, run: ActiveRun, pay: Pay) -> ToolContext:
    """Return the context of a run's tool calls. ``pay`` makes the calls of an embedder."""
    turn, workplace = prepared.turn, prepared.workplace
    key = turn.session_key

    def notify(text: str) -> None:
        runtime.notes.add(key, text)

    async def overrides() -> ExecOverrides | None:
        entry = await runtime.stores.sessions.get(turn.agent_id, key)
        return exec_overrides(turn.body, entry, runtime.config.current.agents.defaults.elevated_default)

    def why_missing(name: str) -> str | None:
        if workplace.sandbox is None:
            return None
        plan = workplace.sandbox.plan
        return blocked_text(name, plan.filters, agent_id=plan.agent_id, mode=plan.mode, access=plan.access)

    @contextlib.asynccontextmanager
    async def parked(question: Question) -> AsyncGenerator[None]:
        run.emit(ToolWaits(question.call_id, question.id, question.expires_at))
        async with run.parked():
            yield
        run.emit(ToolContinues(question.call_id, question.id))

    return ToolContext(
        agent_id=turn.agent_id,
        session_key=key,
        workspace=workplace.folder,
        run_id=run.row.run_id,
        sender=turn.body.sender,
        parked=parked,
        model_sees_images="image" in prepared.model.input,
        # A crowded window may cut results that are shorter than its limit.
        result_chars=min(max_result_chars(prepared.model.context_window) // 2, LONGEST_RESULT),
        caller=turn.caller,
        owner_files=workplace.owner_files,
        env=workplace.env,
        pay=pay,
        notify=notify,
        wake=partial(runtime.tools.wakeups.publish, run.row.run_id),
        exec_overrides=overrides,
        sandbox=workplace.sandbox,
        why_missing=why_missing,
    )
