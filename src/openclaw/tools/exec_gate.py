"""Whether a command may run as it is, must be refused, or has to be put before a person."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from openclaw.tools.approval_rules import ApprovalRules
from openclaw.tools.approvals import Approval, ApprovalRequest, Approvals, Decision
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.exec_security import Refused, evaluate, parse, resolve_program
from openclaw.tools.exec_settings import ExecSettings
from openclaw.tools.exec_terms import ExecWish, Fallback, HostRules, Terms, agent_settings


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One command, ready to be started."""

    command: str
    cwd: str
    env: Mapping[str, str]
    use_pty: bool
    timeout: float | None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has to decide."""

    order: Order
    terms: Terms
    programs: tuple[str, ...]
    """What ``allow-always`` would put on the list; empty: this command cannot be listed."""
    refused: str | None
    """Why the allowlist does not let it through; None: it would."""
    fallback: Fallback


class Gate:
    """Without ``approvals`` nobody can be asked, and what needs a yes is refused."""

    def __init__(self, settings: ExecSettings, rules: ApprovalRules | None, approvals: Approvals | None) -> None:
        self._settings = settings
        self._rules = rules
        self._approvals = approvals

    async def check(self, order: Order, arguments: Mapping[str, Any], context: ToolContext) -> Order | Question:
        """The order to carry out, perhaps in a quoted form; raises ``ToolError`` when it may not run here."""
        rules = await self._rules.rules_for(context.agent_id) if self._rules else HostRules()
        wish = await context.exec() if context.exec else None
        terms = agent_settings(self._settings, wish or ExecWish(), rules, arguments)
        if terms.security == "full" and terms.ask != "always":
            return order
        verdict = evaluate(
            order.command,
            allowlist=[*self._settings.allowlist, *rules.allowlist],
            safe_bins=self._settings.safe_bins,
            search_path=order.env.get("PATH", os.defpath),
            cwd=order.cwd,
        )
        refused = verdict.reason if isinstance(verdict, Refused) else None
        if terms.asks_first(listed=refused is None):
            return Question(
                order=order, terms=terms, programs=_programs(order), refused=refused, fallback=rules.ask_fallback
            )
        if isinstance(verdict, Refused):
            raise ToolError(f"exec is denied (security=allowlist): {verdict.reason}")
        return msgspec.structs.replace(order, command=verdict.command)

    async def ask(self, question: Question, context: ToolContext) -> Approval:
        if self._approvals is None:
            why = f": {question.refused}" if question.refused else ""
            raise ToolError(f"exec needs an approval (ask={question.terms.ask}), but nobody can be asked here{why}")
        request = ApprovalRequest(
            command=question.order.command,
            cwd=question.order.cwd,
            host=question.terms.host,
            security=question.terms.security,
            ask=question.terms.ask,
            agent_id=context.agent_id,
            resolved_path=question.programs[0] if question.programs else None,
            session_key=context.session_key,
        )
        try:
            approval = self._approvals.ask(request, run_id=context.run_id)
        except ValueError as full:
            raise ToolError(f"exec needs an approval, which cannot be asked for now: {full}") from None
        await self._approvals.keep(approval)
        return approval

    async def started(self, approval: Approval) -> None:
        """To be called before the command begins: after a restart it is told as interrupted, not as never run."""
        assert self._approvals is not None
        await self._approvals.keep(approval, "running")

    def follow(self, approval: Approval, work: Awaitable[None]) -> None:
        """What the answer leads to, in the background. Cut short by a stop, it stays noted for the next start."""
        approvals = self._approvals
        assert approvals is not None

        async def to_the_end() -> None:
            await work
            await approvals.settled(approval)

        approvals.spawn(to_the_end())

    async def remember(self, question: Question, agent_id: str) -> None:
        if self._rules is not None and question.programs:
            await self._rules.allow_always(agent_id, list(question.programs), question.order.command)


def refusal_after(decision: Decision | None, question: Question) -> str | None:
    """Why the command does not run after all, in the words listeners know; None: it does."""
    if decision == "deny":
        return "user-denied"
    if decision is not None or question.fallback == "full":
        return None
    if question.fallback == "allowlist":
        return None if question.refused is None else "approval-timeout (allowlist-miss)"
    return "approval-timeout"


def _programs(order: Order) -> tuple[str, ...]:
    """The files behind every program of a plain command; none when it takes a shell to understand it."""
    segments = parse(order.command)
    if isinstance(segments, Refused):
        return ()
    path = order.env.get("PATH", os.defpath)
    found = [resolve_program(segment.argv[0], path, order.cwd) for segment in segments]
    return tuple(program.real for program in found if program) if all(found) else ()
