"""What follows when somebody was asked about a command: it runs or it does not, and the session is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from openclaw.clock import Clock
from openclaw.tools.approvals import Approval
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.exec_gate import Gate, Order, Question, refusal_after
from openclaw.tools.exec_settings import ExecSettings
from openclaw.tools.process_registry import ProcessSession

SHOWN_CHARS = 2000
"""Of the output, from its end; ``process log`` has the rest."""
SHOWN_COMMAND = 300


async def carry_out(
    approval: Approval,
    question: Question,
    gate: Gate,
    context: ToolContext,
    start: Callable[[Order], Awaitable[ProcessSession]],
    settings: ExecSettings,
    clock: Clock,
) -> None:
    """Waits for the answer; a no is noted for the session's next turn, the end of the command begins one."""
    decision = await approval.wait()
    if approval.withdrawn:
        return
    command = " ".join(question.order.command.split())[:SHOWN_COMMAND]
    note = context.notify or _unheard
    if reason := refusal_after(decision, question):
        note(f"Exec denied (gateway id={approval.id}, {reason}): {command}")
        return
    if decision == "allow-always":
        await gate.remember(question, context.agent_id)
    await gate.started(approval)
    try:
        session = await start(question.order)
    except ToolError as failure:
        note(f"Exec denied (gateway id={approval.id}, spawn-failed: {failure}): {command}")
        return
    if settings.approval_running_notice_ms and not await _ends_within(
        session, settings.approval_running_notice_ms / 1000, clock
    ):
        seconds = settings.approval_running_notice_ms / 1000
        note(f"Exec running (gateway id={approval.id}, session={session.id}, >{seconds:g}s): {command}")
    await session.ended.wait()
    how = "timeout" if session.timed_out else session.how_it_ended()
    text = f"Exec finished (gateway id={approval.id}, session={session.id}, {how})"
    output = (await asyncio.to_thread(session.output.tail, SHOWN_CHARS)).strip()
    (context.wake or note)(f"{text}\n{output}" if output else text)


async def _ends_within(session: ProcessSession, seconds: float, clock: Clock) -> bool:
    timer = asyncio.ensure_future(clock.sleep(seconds))
    ended = asyncio.ensure_future(session.ended.wait())
    try:
        await asyncio.wait({timer, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        ended.cancel()
    return session.ended.is_set()


def _unheard(text: str) -> None: ...
