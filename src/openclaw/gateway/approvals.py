"""Questions about commands, told to the clients that may answer them and to the chat they arose in."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.tools.exec.approvals import Approval, Approvals, PendingApproval

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

log = logging.getLogger("openclaw.gateway")

SHOWN_COMMAND = 1000
_LOST = uuid.UUID("6f0a3a52-5c3c-4d0e-9a55-2b8a1e0b7c11")


def watch_approvals(gateway: Gateway, approvals: Approvals) -> None:
    def requested(approval: Approval) -> None:
        gateway.broadcaster.publish("exec.approval.requested", asked_view(approval), drop_if_slow=True)
        _tell_chat(gateway, approval, "asked", question_text(approval))

    def decided(approval: Approval, by: str | None) -> None:
        payload = {
            "id": approval.id,
            "decision": approval.decision,
            "resolvedBy": by,
            "ts": gateway.runtime.clock.now_ms(),
        }
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
    record = gateway.dispatcher.find(approval.run_id) if approval.run_id else None
    shown = gateway.runtime.config.current.approvals.get("exec", {})
    if record is not None and not (isinstance(shown, dict) and shown.get("enabled") is False):
        gateway.spawn(gateway.notices.beside_run(record, f"approval-{approval.id}-{what}", text))


async def tell_lost(gateway: Gateway) -> None:
    """Questions that were open when the Gateway stopped: each session learns once that nothing more comes of them."""
    approvals = gateway.runtime.approvals
    if approvals is None or approvals.journal is None:
        return
    journal = approvals.journal
    try:
        while journal.left_over:
            lost = journal.left_over[0]
            if lost.run_id:
                # Named after the question: told once, also when the Gateway stops in the middle of this.
                await gateway.pipeline.wake(lost.run_id, lost_text(lost), str(uuid.uuid5(_LOST, lost.id)))
            await journal.note(msgspec.structs.replace(lost, state="lost"))
            journal.left_over.pop(0)
    except OSError as error:
        log.error("sessions cannot be told yet of questions that a restart closed: %s", error)


def lost_text(lost: PendingApproval) -> str:
    command = " ".join(lost.command.split())[:SHOWN_COMMAND]
    if lost.state == "running":
        return (
            f"Exec interrupted (gateway id={lost.id}, gateway-restarted): {command}\n"
            "It had been approved and was running when the Gateway stopped. It was not repeated; it may or may not "
            "have taken effect. Check before you do it again."
        )
    return (
        f"Exec denied (gateway id={lost.id}, gateway-restarted): {command}\n"
        "The Gateway was restarted before anybody answered, so the command was not run and the question is closed. "
        "Say so; if the command is still wanted, it has to be asked for again."
    )
