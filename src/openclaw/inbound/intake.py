"""Taking a message in: the session it belongs to, its pictures put away, the ledger row, the lane."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.inbound.attachments import Image
from openclaw.inbound.commands.context import Hints
from openclaw.messages import ToolResultMessage, ToolSpec
from openclaw.runs.admission import Ticket
from openclaw.runs.dispatcher import Dispatcher, Submission
from openclaw.runs.queue import queue_settings
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import touched
from openclaw.storage import faults
from openclaw.storage.base import Accept, MessageBody, StoredImage, Writing


class Incoming(msgspec.Struct, kw_only=True):
    """A message that passed every check and only needs to be written down."""

    run_id: str
    agent_id: str
    session_key: str
    source: str
    route: dict[str, Any]
    prompt: str
    images: list[Image] = []
    thinking: str | None = None
    timeout_s: float | None = None
    extra_system_prompt: str = ""
    client_tools: list[ToolSpec] = []
    tool_outputs: list[ToolResultMessage] = []
    tool_choice: Any = None
    max_tokens: int | None = None
    entry_fields: dict[str, Any] = {}
    """What the message says about its session: channel, label, who spawned it."""
    stored_images: list[StoredImage] = []
    """Pictures that are in the blob store already."""
    hints: Hints = Hints()
    """Wishes for this run only."""
    carried: MessageBody = MessageBody()
    """The wishes of an earlier message that this one belongs to."""
    dedupe_keys: tuple[str, ...] = ()
    message_ids: tuple[str, ...] = ()
    """What the platform calls the messages this one was made of."""
    watcher: str | None = None


async def take_in(
    message: Incoming, runtime: Runtime, dispatcher: Dispatcher, ticket: Ticket | None = None
) -> Submission:
    """Returns once the message is on disk. The same run id again starts nothing.

    ``ticket``: its place in the admission, where the caller has entered for it and will say when it is done.
    """
    entered = ticket or await dispatcher.admission.admit(message.session_key)
    try:
        submission = await _take_in(message, runtime, dispatcher, entered)
    finally:
        if ticket is None:
            entered.done()
    faults.point("ack")
    return submission


async def _take_in(message: Incoming, runtime: Runtime, dispatcher: Dispatcher, ticket: Ticket) -> Submission:
    entry, written = await touch_session(message, runtime)
    images = [StoredImage(await runtime.blobs.put(image.data), image.mime_type) for image in message.images]
    hints, carried = message.hints, message.carried
    body = MessageBody(
        prompt=message.prompt,
        images=[*message.stored_images, *images],
        thinking=message.thinking or hints.thinking or carried.thinking,
        verbose=hints.verbose or carried.verbose,
        reasoning=hints.reasoning or carried.reasoning,
        model=hints.model or carried.model,
        auth_profile=hints.auth_profile or carried.auth_profile,
        exec={**hints.exec} or carried.exec,
        elevated=hints.elevated or carried.elevated,
        elevated_allowed=hints.elevated_allowed or carried.elevated_allowed,
        message_ids=list(message.message_ids),
        timeout_seconds=message.timeout_s,
        extra_system_prompt=message.extra_system_prompt,
        client_tools=message.client_tools,
        tool_outputs=message.tool_outputs,
        tool_choice=message.tool_choice,
        max_tokens=message.max_tokens,
    )
    accept = Accept(
        run_id=message.run_id,
        dedupe_key=f"{message.source}|{message.run_id}",
        agent_id=message.agent_id,
        session_key=message.session_key,
        session_id=entry["sessionId"],
        source=message.source,
        route=message.route,
        body=body,
        dedupe_keys=message.dedupe_keys,
    )
    settings = queue_settings(
        runtime.config.current.messages.queue, entry, str(message.route.get("channel", message.source)), hints.queue
    )
    return await dispatcher.submit(accept, settings, message.watcher, ticket, written)


async def touch_session(message: Incoming, runtime: Runtime) -> tuple[SessionEntry, Writing | None]:
    """The session's entry, made if there is none, with what the new message tells about it.

    A new session's id must not be forgotten in a power cut that spares the message: what was written of it must be on
    disk before the message is.
    """
    agent_id, session_key, now = message.agent_id, message.session_key, runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry:
        updated: dict[str, Any] = dict(entry or {})
        if "sessionId" not in updated:
            updated["sessionId"] = str(uuid.uuid4())
        updated["updatedAt"] = touched(updated, now, message.source)
        updated.update(message.entry_fields)
        return SessionEntry(**updated)  # type: ignore[typeddict-item]

    sessions = runtime.sessions
    known, written = await sessions.get(agent_id, session_key), None
    if known is None or not (known.get("lastChannel") or known.get("chatType") or known.get("systemSent")):
        entry, written = await sessions.write(agent_id, session_key, change)
    else:
        entry = await sessions.update(agent_id, session_key, change, durable=False)
    assert entry is not None
    return entry, written
