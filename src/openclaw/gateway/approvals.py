"""Questions about commands, told to the clients that may answer them and to the chat they arose in."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.spoken import notice
from openclaw.inbound.intake import Incoming, take_in
from openclaw.tools.approvals import Approval, Approvals

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

SHOWN_COMMAND = 1000
CARRIED = ("thinking", "verbose", "reasoning", "elevated", "elevatedAllowed", "model", "exec", "authProfile")
"""Wishes of a message that hold for everything it set going."""


def watch_approvals(gateway: Gateway, approvals: Approvals) -> None:
    def requested(approval: Approval) -> None:
        gateway.broadcaster.publish("exec.approval.requested", asked_view(approval), drop_if_slow=True)
        _tell_chat(gateway, approval, "asked", question_text(approval))

    def decided(approval: Approval, by: str | None) -> None:
        payload = {"id": approval.id, "decision": approval.decision, "resolvedBy": by, "ts": gateway.clock.now_ms()}
        gateway.broadcaster.publish("exec.approval.resolved", payload, drop_if_slow=True)

    def expired(approval: Approval) -> None:
        if not approval.withdrawn:
            _tell_chat(gateway, approval, "expired", f"⏱️ Nobody answered approval {approval.slug} in time.")

    approvals.on_requested, approvals.on_decided, approvals.on_expired = requested, decided, expired


def asked_view(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "request": msgspec.to_builtins(approval.request),
        "createdAtMs": approval.created_at_ms,
        "expiresAtMs": approval.expires_at_ms,
    }


def question_text(approval: Approval) -> str:
    request = approval.request
    command = request.command[:SHOWN_COMMAND] + ("…" if len(request.command) > SHOWN_COMMAND else "")
    seconds = round((approval.expires_at_ms - approval.created_at_ms) / 1000)
    lines = [f"🔒 May I run this command? (id {approval.slug})", "", command, ""]
    if request.cwd:
        lines.append(f"In: {request.cwd}")
    lines.append(f"Answer within {seconds} s: /approve {approval.slug} allow-once, allow-always or deny")
    return "\n".join(lines)


def _tell_chat(gateway: Gateway, approval: Approval, what: str, text: str) -> None:
    """Where the run that asks was started from, unless the configuration keeps it to the clients."""
    record = gateway.hub.find(approval.run_id) if approval.run_id else None
    shown = gateway.config.current.approvals.get("exec", {})
    if record is not None and not (isinstance(shown, dict) and shown.get("enabled") is False):
        gateway.spawn(notice(gateway, record, f"approval-{approval.id}-{what}", text))


def wake(gateway: Gateway, run_id: str, text: str) -> None:
    gateway.spawn(_wake(gateway, run_id, text))


async def _wake(gateway: Gateway, run_id: str, text: str) -> None:
    """A turn about something that ended: in the session of the run that began it, answered where that run was."""
    row = await gateway.ledger.by_run(run_id)
    if row is None:
        return
    zone = gateway.user_zone()
    moment = datetime.fromtimestamp(gateway.clock.now_ms() / 1000, zone).astimezone(zone)
    incoming = Incoming(
        run_id=str(uuid.uuid4()),
        agent_id=row.agent_id,
        session_key=row.session_key,
        source=row.source,
        route=row.route,
        prompt=f"System: [{moment:%Y-%m-%d %H:%M:%S %Z}] {text}",
        carried={name: row.body[name] for name in CARRIED if name in row.body},
    )
    await take_in(incoming, gateway.runtime, gateway.hub)
