"""What a node tells by itself (``node.event``): commands that ended there, words for the agent, spoken words.

A node is a device of the owner and still not the owner. Its words are a message like any other and carry no commands.
It begins turns in its own session ``node-<nodeId>``, in the main session, or in one that exists. Their answers go
nowhere, or to where the agent's main session was last written from. What it tells of a command goes to the session that
the command came from, whatever session the event names.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.server.registry import MethodError, entry_of, require_configured, target_of
from openclaw.inbound.incoming import Incoming, client_facts
from openclaw.inbound.pipeline import Blocked
from openclaw.models.thinking import parse_level
from openclaw.rights import NO_RIGHTS
from openclaw.scheduler.turns import INTERNAL_ROUTE
from openclaw.sessions.keys import SessionRef
from openclaw.storage.base import MessageBody
from openclaw.text import clipped

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

LONGEST_WORDS = 20_000
LONGEST_OUTPUT = 2000
LONGEST_COMMAND = 300
_WORDS = uuid.UUID("0f9f0f1c-6f57-4c0e-8d0b-2f6a3a8e5b1d")
"""The namespace of the run ids of words that a node sent with a key."""
IGNORED = {"ok": True, "ignored": True}


class ExecEvent(msgspec.Struct, kw_only=True, rename="camel"):
    run_id: str = ""
    command: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    output: str | None = None
    reason: str | None = None


class Words(msgspec.Struct, kw_only=True, rename="camel"):
    """The payload of ``agent.request`` (``message``) and of ``voice.transcript`` (``text``)."""

    message: str = ""
    text: str = ""
    session_key: str | None = None
    thinking: str | None = None
    deliver: bool = False
    channel: str | None = None
    to: str | None = None
    timeout_seconds: float | None = None
    key: str | None = None
    """The same words with the same key are taken once."""


async def take_event(gateway: Gateway, node_id: str, event: str, payload: Any) -> dict[str, Any]:
    """Does what the event is for and returns the answer. Events that mean nothing here are answered as ignored."""
    try:
        if event in ("exec.started", "exec.finished", "exec.denied"):
            return await _exec_event(gateway, node_id, event, msgspec.convert(payload or {}, ExecEvent))
        if event in ("agent.request", "voice.transcript"):
            return await _words(gateway, node_id, event, msgspec.convert(payload or {}, Words))
    except msgspec.ValidationError as error:
        raise MethodError(f"invalid {event} payload: {clipped(str(error), 200)}") from None
    # chat.subscribe and the like: nodes get no events of conversations.
    return IGNORED


async def _exec_event(gateway: Gateway, node_id: str, event: str, told: ExecEvent) -> dict[str, Any]:
    runs, notes = gateway.nodes.runs, gateway.runtime.notes
    run = await runs.find(told.run_id, node_id)
    if run is not None and runs.is_awaited(told.run_id):
        return {"ok": True}
    text = exec_text(event, gateway.nodes.name(node_id), told)
    if run is None:
        notes.put(node_session(gateway, node_id).key, text)
        await notes.synced()
        return {"ok": True}
    if event == "exec.started":
        return {"ok": True}
    own_id = str(uuid.uuid5(_WORDS, f"{node_id}:{told.run_id}"))
    await gateway.pipeline.wake(run.agent_run_id, text, own_id)
    await runs.end(told.run_id)
    return {"ok": True}


def exec_text(event: str, node: str, told: ExecEvent) -> str:
    command = clipped(" ".join(told.command.split()), LONGEST_COMMAND)
    named = f"node={node}, id={clipped(told.run_id, 80)}"
    if event == "exec.started":
        return f"Exec started ({named}): {command}"
    if event == "exec.denied":
        return f"Exec denied ({named}, {clipped(told.reason or 'denied', 200)}): {command}"
    how = "timeout" if told.timed_out else f"code {'?' if told.exit_code is None else told.exit_code}"
    output = (told.output or "").strip()[-LONGEST_OUTPUT:]
    return f"Exec finished ({named}, {how})" + (f"\n{output}" if output else f": {command}")


def node_session(gateway: Gateway, node_id: str) -> SessionRef:
    return target_of(gateway, f"node-{node_id}")


async def _words(gateway: Gateway, node_id: str, event: str, words: Words) -> dict[str, Any]:
    """Begins a turn with what the node sent."""
    spoken = event == "voice.transcript"
    text = (words.text if spoken else words.message).strip()
    if not text:
        return IGNORED
    if len(text) > LONGEST_WORDS:
        raise MethodError(f"{event}: the text may have {LONGEST_WORDS} characters")
    session = await _session_for(gateway, node_id, words, spoken)
    route: dict[str, Any] = INTERNAL_ROUTE
    if words.deliver and not spoken:
        target = await gateway.turns.target(session.agent_id, words.channel, words.to)
        if target.problem:
            raise MethodError(f"{event}: {target.problem}")
        # Whoever took the node over could have the agent tell anybody what is in a conversation.
        if target.route != (await gateway.turns.target(session.agent_id, None, None)).route:
            raise MethodError(f"{event}: a node cannot choose who gets the answer; it goes where you last wrote from")
        route = target.route
    run_id = str(uuid.uuid5(_WORDS, f"{node_id}:{words.key}") if words.key else uuid.uuid4())
    message = Incoming(
        facts=client_facts(session, NO_RIGHTS, sender_ids=(node_id,), sender_username=gateway.nodes.name(node_id)),
        text=text,
        door="chat",
        run_id=run_id,
        source="node",
        route=route,
        reads_commands=False,
        message_id=run_id,
        body=MessageBody(
            guest=True,
            thinking=parse_level(words.thinking or "") if words.thinking else None,
            timeout_seconds=words.timeout_seconds,
        ),
    )
    if isinstance(await gateway.pipeline.process(message), Blocked):
        raise MethodError("send blocked by session policy")
    return {"ok": True, "runId": run_id}


async def _session_for(gateway: Gateway, node_id: str, words: Words, spoken: bool) -> SessionRef:
    main = target_of(gateway, gateway.main_session_key())
    own = node_session(gateway, node_id)
    if not (words.session_key or "").strip():
        return main if spoken else own
    session = target_of(gateway, (words.session_key or "").strip())
    require_configured(gateway, session)
    if session not in (main, own) and await entry_of(gateway, session) is None:
        raise MethodError("unknown session key")
    return session
