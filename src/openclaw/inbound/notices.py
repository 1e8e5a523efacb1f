"""What the Gateway itself says in a chat: answers to commands, lines beside a run, the line between two sessions."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.inbound.accept import Incoming
from openclaw.messages import AssistantMessage, TextBlock
from openclaw.outbound.limits import limits_for
from openclaw.outbound.reply import MediaRef, is_delivered, parts_for
from openclaw.runs.dispatcher import Dispatcher
from openclaw.runs.run_index import RunRecord
from openclaw.sessions.keys import SessionRef, shown_key
from openclaw.sessions.reset import MARKER_TYPE, MessageFacts, Rotation, ensure_fresh, home_of, transcript_ref
from openclaw.storage.base import Accept, LedgerRow, MessageBody, Reason, ReasonCode

log = logging.getLogger("openclaw.inbound.notices")


class Notices:
    """Writes such texts down, shows them in open chats and sends them to the channel.

    ``publish`` tells connected clients about an event. ``wake_delivery`` makes the outbox worker look at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        dispatcher: Dispatcher,
        *,
        publish: Callable[[str, dict[str, Any]], None],
        wake_delivery: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._publish = publish
        self._wake_delivery = wake_delivery
        self._spawn = spawn

    async def say(self, message: Incoming, text: str | None, reason: str = "a command", *, ends: bool = True) -> bool:
        """Writes the message and its answer down together, then tells everyone. False: it was answered before.

        ``text`` None is silence by decision. ``ends`` False: the text stands beside the message, which goes on.
        """
        session, runtime = message.facts.session, self._runtime
        entry = await runtime.sessions.get(session.agent_id, session.key)
        if entry is None and text:
            now = runtime.clock.now_ms()
            entry, _ = await ensure_fresh(runtime, session.agent_id, session.key, MessageFacts(), now)
        run_id = message.run_id if ends else str(uuid.uuid4())
        accept = Accept(
            run_id=run_id,
            dedupe_key=f"{message.source}|{run_id}",
            agent_id=session.agent_id,
            session_key=session.key,
            session_id=entry["sessionId"] if entry else "",
            source=message.source,
            route=message.route,
            body=MessageBody(prompt=message.text),
            dedupe_keys=message.dedupe_keys if ends else (),
        )
        said = (text or "").strip()
        # In one step: a command that was accepted but has no end would be taken for a prompt after a crash.
        _, new = await self.post(
            accept,
            [said],
            state="answered" if said else "silent",
            reason=Reason(ReasonCode.OTHER, reason),
            result={"text": said} if said else None,
        )
        if new:
            self.show(session, run_id, said)
        return new

    async def beside_run(self, record: RunRecord, run_id: str, text: str) -> None:
        """A line about a run that is not kept in the transcript: for open chats and the run's channel."""
        row = record.row
        if is_delivered(row.route):
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
            await self.post(accept, [text])
        message = injected_message(text, self._runtime.clock.now_ms())
        self._tell(row.session_key, run_id, msgspec.to_builtins(message))

    def announce(self, session: SessionRef, rotation: Rotation) -> None:
        """The line between two sessions for those who have the chat open. Histories read it from the transcript."""
        session_id, at = rotation.new["sessionId"], rotation.new.get("updatedAt")
        marker = {"kind": MARKER_TYPE, "id": session_id, "reason": rotation.reason}
        content = [{"type": "text", "text": rotation.marker_text}]
        message = {"role": "system", "content": content, "timestamp": at, "__openclaw": marker}
        self._tell(session.key, f"session-{session_id}-{at}", message, seq=0)

    async def post(
        self, accept: Accept, texts: Sequence[str], media: Sequence[MediaRef] = (), **end: Any
    ) -> tuple[LedgerRow, bool]:
        """Writes a message that needs no run to the ledger, with what its channel has to deliver."""
        route, parts = accept.route, []
        if is_delivered(route):
            limits = limits_for(self._runtime.config.current, route["channel"], route.get("accountId"))
            parts = parts_for(route, texts, limits, media)
        row, new = await self._runtime.ledger.post(accept, parts, **end)
        if parts:
            self._wake_delivery()
        return row, new

    def show(self, session: SessionRef, run_id: str, text: str) -> None:
        """In the open chats at once; in the transcript as soon as no run is writing there."""
        if not text:
            self._tell(session.key, run_id, None)
            return
        message = injected_message(text, self._runtime.clock.now_ms())
        self._tell(session.key, run_id, msgspec.to_builtins(message))
        self._spawn(self._keep(session, f"say-{run_id}"[:64], message))

    async def _keep(self, session: SessionRef, entry_id: str, message: AssistantMessage) -> None:
        try:
            await self.write(session, message, entry_id)
        except OSError:
            log.exception("an answer of the Gateway could not be kept in %s", session.key)

    async def write(self, session: SessionRef, message: AssistantMessage, entry_id: str | None = None) -> str | None:
        """Appends a message that no model wrote to the transcript, between runs. None: there is no such session."""
        runtime = self._runtime

        async def append() -> str | None:
            entry = await runtime.sessions.get(session.agent_id, session.key)
            if entry is None:
                return None
            ref, home = transcript_ref(session.agent_id, entry), home_of(runtime, session.agent_id)
            transcript = await runtime.transcripts.open(ref, cwd=home)
            assert transcript is not None
            return await transcript.append({"type": "message", "message": message}, entry_id=entry_id, durable=True)

        return await self._dispatcher.exclusively(session.key, append)

    def _tell(self, session_key: str, run_id: str, message: dict[str, Any] | None, *, seq: int = 1) -> None:
        payload: dict[str, Any] = {"runId": run_id, "sessionKey": shown_key(session_key), "seq": seq, "state": "final"}
        self._publish("chat", payload if message is None else {**payload, "message": message})


def injected_message(text: str, now_ms: int) -> AssistantMessage:
    """How messages that no model wrote are marked in transcripts."""
    return AssistantMessage(
        content=[TextBlock(text=text)],
        api="openai-responses",
        provider="openclaw",
        model="gateway-injected",
        timestamp=now_ms,
    )
