"""The Gateway's own chat: whoever got in with its secret is the owner, and commands are answered in the chat itself."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from openclaw.gateway.auth.authorise import ADMIN, APPROVALS
from openclaw.gateway.command_services import GatewayCommands
from openclaw.gateway.rotation import announce
from openclaw.gateway.targets import Target
from openclaw.inbound.command_text import is_abort
from openclaw.inbound.commands import elevated
from openclaw.inbound.commands.context import Facts, Outcome, SessionRef
from openclaw.inbound.commands.handle import handle_commands
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import MessageFacts, ensure_fresh

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


def may_be_command(text: str) -> bool:
    """Errs on the side of yes."""
    return "/" in text or is_abort(text)


async def hear(
    gateway: Gateway, target: Target, text: str, *, has_media: bool, scopes: Set[str] = frozenset()
) -> Outcome:
    """Whether the text is a command, carries settings, or goes on to the agent."""
    facts = Facts(
        session=SessionRef(target.agent_id, target.key),
        channel="webchat",
        authorised=True,
        owner=True,
        approver=ADMIN in scopes or APPROVALS in scopes,
        mentioned=True,
        has_media=has_media,
    )
    return await handle_commands(facts, text, GatewayCommands(gateway))


def operator_may_elevate(gateway: Gateway, target: Target) -> bool:
    """Whoever calls with the Gateway's secret counts as a sender of its own chat."""
    facts = Facts(session=SessionRef(target.agent_id, target.key), channel="webchat")
    return elevated.allowed(gateway.runtime.config.current, facts)


async def fresh_session(gateway: Gateway, target: Target) -> SessionEntry:
    """The session a new message belongs to; one that has expired gives way to a new one, visibly."""
    entry, rotation = await ensure_fresh(
        gateway.runtime,
        target.agent_id,
        target.key,
        MessageFacts(channel="webchat"),
        gateway.runtime.clock.now_ms(),
        busy=lambda: gateway.dispatcher.occupied(target.key),
    )
    if rotation is not None:
        announce(gateway, target, rotation)
    return entry
