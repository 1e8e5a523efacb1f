"""What the Gateway itself says in a chat: answers to commands and notices, kept and shown like any reply."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.targets import Target, transcript_ref
from openclaw.gateway.views.history import injected_message
from openclaw.outbound.limits import limits_for
from openclaw.outbound.reply import is_delivered, parts_for
from openclaw.sessions.keys import shown_key
from openclaw.sessions.reset import MessageFacts, ensure_fresh, home_of
from openclaw.storage.base import Accept, MessageBody, Reason, ReasonCode

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.runs.run_index import RunRecord

log = logging.getLogger("openclaw.gateway")


class Said(msgspec.Struct, kw_only=True):
    """One thing to say, and the message it answers."""

    run_id: str
    target: Target
    source: str
    route: dict[str, Any]
    asked: str
    """What the person wrote."""
    text: str | None
    """None: silence by decision; the message still gets its end."""
    reason: str = "a command"
    dedupe_keys: tuple[str, ...] = ()


async def say(gateway: Gateway, said: Said) -> bool:
    """Writes message and answer down together, then tells everyone. False: this message was answered before."""
    target = said.target
    entry = await gateway.runtime.sessions.get(target.agent_id, target.key)
    if entry is None and said.text:
        now = gateway.runtime.clock.now_ms()
        entry, _ = await ensure_fresh(gateway.runtime, target.agent_id, target.key, MessageFacts(), now)
    accept = Accept(
        run_id=said.run_id,
        dedupe_key=f"{said.source}|{said.run_id}",
        agent_id=target.agent_id,
        session_key=target.key,
        session_id=entry["sessionId"] if entry else "",
        source=said.source,
        route=said.route,
        body=MessageBody(prompt=said.asked),
        dedupe_keys=said.dedupe_keys,
    )
    text = (said.text or "").strip()
    parts = []
    if text and is_delivered(said.route):
        limits = limits_for(gateway.runtime.config.current, said.route["channel"], said.route.get("accountId"))
        parts = parts_for(said.route, [text], limits)
    # In one step: a command that was accepted but has no end would be taken for a prompt after a crash.
    _, new = await gateway.runtime.ledger.post(
        accept,
        parts,
        state="answered" if text else "silent",
        reason=Reason(ReasonCode.OTHER, said.reason),
        result={"text": text} if text else None,
    )
    if not new:
        return False
    if parts and gateway.channel_services is not None:
        gateway.channel_services.delivery.wake()
    await show(gateway, target, said.run_id, text)
    return True


async def notice(gateway: Gateway, record: RunRecord, run_id: str, text: str) -> None:
    """A line beside a run, not kept in the transcript: told to open chats and to the run's channel."""
    row = record.row
    if is_delivered(row.route):
        limits = limits_for(gateway.runtime.config.current, row.route["channel"], row.route.get("accountId"))
        accept = Accept(
            run_id=run_id,
            dedupe_key=f"notice|{run_id}",
            agent_id=row.agent_id,
            session_key=row.session_key,
            session_id=row.session_id,
            source=row.source,
            route=row.route,
            body=MessageBody(prompt=text),
        )
        await gateway.runtime.ledger.post(accept, parts_for(row.route, [text], limits))
        if gateway.channel_services is not None:
            gateway.channel_services.delivery.wake()
    message = msgspec.to_builtins(injected_message(text, gateway.runtime.clock.now_ms()))
    head = {"runId": run_id, "sessionKey": shown_key(row.session_key), "seq": 1, "state": "final"}
    gateway.broadcaster.publish("chat", {**head, "message": message})


async def show(gateway: Gateway, target: Target, run_id: str, text: str) -> None:
    """In the open chats at once; in the transcript as soon as no run is writing there."""
    payload: dict[str, Any] = {"runId": run_id, "sessionKey": shown_key(target.key), "seq": 1, "state": "final"}
    if not text:
        gateway.broadcaster.publish("chat", payload)
        return
    message = injected_message(text, gateway.runtime.clock.now_ms())
    gateway.broadcaster.publish("chat", {**payload, "message": msgspec.to_builtins(message)})
    gateway.spawn(_keep(gateway, target, run_id, message))


async def _keep(gateway: Gateway, target: Target, run_id: str, message: Any) -> None:
    async def append() -> None:
        entry = await gateway.runtime.sessions.get(target.agent_id, target.key)
        if entry is None:
            return
        transcript = await gateway.runtime.transcripts.open(
            transcript_ref(target, entry), cwd=home_of(gateway.runtime, target.agent_id)
        )
        assert transcript is not None
        await transcript.append({"type": "message", "message": message}, entry_id=f"say-{run_id}"[:64], durable=True)

    try:
        await gateway.dispatcher.exclusively(target.key, append)
    except OSError:
        log.exception("an answer of the Gateway could not be kept in %s", target.key)
