"""The last step of the pipeline: writes a message down with its session and hands it to the session's lane."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.inbound.attachments import Image
from openclaw.inbound.commands.context import Facts
from openclaw.inbound.message import Inbound
from openclaw.runs.admission import Ticket
from openclaw.runs.dispatcher import Dispatcher, Submission
from openclaw.runs.queue import QueueWish, queue_settings
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import MessageFacts, Rotation, ensure_fresh, touched
from openclaw.storage import faults
from openclaw.storage.base import Accept, MessageBody, StoredImage, Writing

Door: TypeAlias = Literal["channel", "chat", "program"]
"""Where a message came in.

- ``channel``: a messaging platform. The prompt carries an envelope, and what the Gateway says is delivered there.
- ``chat``: ``chat.send`` or ``agent``, by the Gateway's owner. The prompt carries a time stamp.
- ``program``: an HTTP client or the Gateway itself. The text is the prompt as it stands.
"""


class Incoming(msgspec.Struct, kw_only=True):
    """One message on its way in. The door that it came through fills it in, and every step reads it."""

    facts: Facts
    """Who wrote, from where, to which session, and what the sender may do."""
    text: str
    """What the sender wrote."""
    door: Door
    run_id: str
    """The idempotency key. A second message with the same id starts nothing."""
    source: str
    """``webchat``, ``agent``, ``openai`` or the id of a channel."""
    route: dict[str, Any]
    """Where the reply goes."""
    inbound: Inbound | None = None
    """The message as its channel handed it in. It is None at the other doors."""
    reads_commands: bool = True
    """Whether commands and settings in the text are meant as such."""
    policy_channel: str | None = None
    """The channel that the rules of the send policy see. None stands for the session's own."""
    message_id: str = ""
    """The id that the model is shown."""
    body: MessageBody = MessageBody()
    """What the caller wants for this run. The steps add the prompt and the settings found in the text."""
    images: list[Image] = []
    queue: QueueWish | None = None
    """How the message waits behind a run. It overrides the session's queue settings."""
    entry_fields: dict[str, Any] = {}
    """What the message says about its session: channel, label, who spawned it."""
    dedupe_keys: tuple[str, ...] = ()
    """The keys of the channel messages that it was made of."""
    watcher: str | None = None
    """The connection that follows the run."""


async def current_session(
    facts: Facts, runtime: Runtime, dispatcher: Dispatcher, inbound: Inbound | None = None
) -> tuple[SessionEntry, Rotation | None]:
    """Returns the session that a new message belongs to. A new session replaces one that has expired."""
    session = facts.session
    told = MessageFacts(
        channel=facts.channel,
        chat_type=facts.chat_type,
        thread=facts.thread_id is not None,
        thread_label=inbound.thread_label if inbound else None,
        parent_key=inbound.parent_session_key if inbound else None,
    )
    now = runtime.clock.now_ms()
    busy = partial(dispatcher.occupied, session.key)
    return await ensure_fresh(runtime, session.agent_id, session.key, told, now, busy=busy)


async def accept(
    message: Incoming, body: MessageBody, runtime: Runtime, dispatcher: Dispatcher, ticket: Ticket | None = None
) -> Submission:
    """Returns once the message is on disk. A second message with the same run id starts nothing.

    ``ticket`` is the message's place in the admission order.
    """
    session = message.facts.session
    entry, written = await touch_session(message, runtime)
    images = [StoredImage(await runtime.blobs.put(image.data), image.mime_type) for image in message.images]
    row = Accept(
        run_id=message.run_id,
        dedupe_key=f"{message.source}|{message.run_id}",
        agent_id=session.agent_id,
        session_key=session.key,
        session_id=entry["sessionId"],
        source=message.source,
        route=message.route,
        body=msgspec.structs.replace(body, images=[*body.images, *images]),
        dedupe_keys=message.dedupe_keys,
    )
    channel = str(message.route.get("channel", message.source))
    settings = queue_settings(runtime.config.current.messages.queue, entry, channel, message.queue)
    submission = await dispatcher.submit(row, settings, message.watcher, ticket, written)
    faults.point("ack")
    return submission


async def touch_session(message: Incoming, runtime: Runtime) -> tuple[SessionEntry, Writing | None]:
    """Updates the session's entry with what the new message tells about it, and makes one if there is none.

    The ``Writing`` must be on disk before the message is. Otherwise a power cut could keep the message and lose the id
    of its new session.
    """
    session, now = message.facts.session, runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry:
        updated: dict[str, Any] = dict(entry or {})
        if "sessionId" not in updated:
            updated["sessionId"] = str(uuid.uuid4())
        updated["updatedAt"] = touched(updated, now, message.source)
        updated.update(message.entry_fields)
        return SessionEntry(**updated)  # type: ignore[typeddict-item]

    sessions = runtime.sessions
    known, written = await sessions.get(session.agent_id, session.key), None
    if known is None or not (known.get("lastChannel") or known.get("chatType") or known.get("systemSent")):
        entry, written = await sessions.write(session.agent_id, session.key, change)
    else:
        entry = await sessions.update(session.agent_id, session.key, change, durable=False)
    assert entry is not None
    return entry, written
