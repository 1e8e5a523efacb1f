"""``send``: sends a message to somebody on a channel, without the agent."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.gateway import messenger
from openclaw.gateway.messenger import Letter, SendOutcome, SendRefused
from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import (
    MethodCall,
    MethodError,
    MethodTable,
    check_send_policy,
    entry_of,
    target_of,
)
from openclaw.inbound.message import Route

methods = MethodTable()


class SendParams(Params):
    to: NonEmpty
    message: str
    idempotency_key: NonEmpty
    media_url: str | None = None
    media_urls: list[str] | None = None
    gif_playback: bool | None = None
    channel: str | None = None
    account_id: str | None = None
    session_key: str | None = None


@methods.add("send", SendParams)
async def send(call: MethodCall) -> Any:
    """Writes the message down, then sends it. It goes out even after a crash, and one key never sends twice."""
    gateway = call.gateway
    known = await gateway.runtime.ledger.by_run(call.params.idempotency_key)
    if known is not None and known.source == "send":
        return _answer(await messenger.delivery_outcome(gateway, known))
    try:
        letter = await _letter(call)
    except SendRefused as refused:
        raise MethodError(str(refused)) from None
    row, new = await messenger.post(gateway, letter)
    outcome = await messenger.delivery_outcome(gateway, row)
    if new and not outcome.error:
        await messenger.open_session(gateway, letter.session)
        await messenger.mirror(gateway, letter)
    return _answer(outcome)


async def _letter(call: MethodCall) -> Letter:
    params: SendParams = call.params
    gateway = call.gateway
    running = messenger.account_for(gateway, params.channel, params.account_id)
    route = Route(channel=running.kind.id, to=params.to.strip(), account_id=running.account.id)
    target = messenger.session_for(gateway, running, params.to)
    if params.session_key:
        target = target_of(gateway, params.session_key)
    check_send_policy(gateway, target, await entry_of(gateway, target), channel=running.kind.id)
    addresses = [*([params.media_url] if params.media_url else []), *(params.media_urls or [])]
    media = await messenger.fetched_media(gateway, addresses, running)
    if not params.message.strip() and not media:
        raise MethodError("message or mediaUrl required")
    return Letter(
        run_id=params.idempotency_key,
        source="send",
        agent_id=target.agent_id,
        session_key=target.key,
        route=msgspec.to_builtins(route),
        text=params.message,
        media=tuple(media),
    )


def _answer(outcome: SendOutcome) -> dict[str, Any]:
    if outcome.error:
        payload = {**outcome.answer, "status": "error", "summary": outcome.error}
        raise MethodError(outcome.error, code="UNAVAILABLE", payload=payload)
    return outcome.answer
