"""What the Gateway itself says in a chat: answers to commands, lines about a run, the line between two sessions."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.inbound.incoming import Incoming
from openclaw.messages import AssistantMessage, Route, TextBlock
from openclaw.outbound.chunking import limits_for
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, ReplyShape, parts_for
from openclaw.outbound.silence import is_silent
from openclaw.runs.run import Run
from openclaw.runs.runs import Runs
from openclaw.sessions.entry import last_route
from openclaw.sessions.keys import SessionRef, shown_key
from openclaw.sessions.reset import MARKER_TYPE, MessageFacts, Rotation, ensure_fresh, home_of, transcript_ref
from openclaw.storage.disk_errors import FOREVER, until_written
from openclaw.storage.message_ledger import (
    NO_REASON,
    Accept,
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxPart,
    Reason,
    ReasonCode,
    SessionName,
)
from openclaw.text import shortened

log = logging.getLogger("openclaw.inbound.notices")
INTERRUPTED = (
    "⚠️ The Gateway stopped while it worked on {command}. It may or may not have taken effect; check before you send it "
    "again."
)
LONGEST_COMMAND = 80
_BESIDE = uuid.UUID("0f1d3c8e-5b0a-4a53-9a52-6a5f0c6f7d11")


class Notices:
    """Writes such texts to the ledger, shows them in open chats and sends them to the channel.

    ``publish`` sends an event to the connected clients. ``wake_delivery`` makes the outbox worker look at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        runs: Runs,
        *,
        publish: Callable[[str, dict[str, Any]], None],
        wake_delivery: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._runtime = runtime
        self._runs = runs
        self._publish = publish
        self._wake_delivery = wake_delivery
        self._spawn = spawn
        self._open_commands: dict[int, str] = {}
        """The ids of the commands that this process has begun and not ended, with the keys of their sessions."""

    async def reply(self, message: Incoming, text: str | None, reason: ReasonCode, *, ends: bool = True) -> bool:
        """Write the message and its answer to the ledger and notify everyone. Returns False if it was answered before.

        When ``text`` is None, nothing is said and the ledger says why. When ``ends`` is False, the text is an extra
        line and the message goes on. It is said once, also if the message is offered again.
        """
        session, run_id = message.facts.session, message.run_id
        if not ends:
            run_id = str(uuid.uuid5(_BESIDE, f"{run_id}|{text}"))
        session_id = await self._session_id(session, make=bool(text))
        accept = message.for_ledger(session_id, MessageBody(prompt=message.text), run_id)
        said = (text or "").strip()
        # One write does both. After a crash, a command that is accepted but not ended would be taken for a prompt.
        _, new = await self.post(
            accept,
            [said],
            is_command_answer=True,
            state="answered" if said else "silent",
            reason=Reason(reason),
            result={"text": said} if said else None,
        )
        if new:
            self.show(session, run_id, said)
        return new

    async def begin(self, message: Incoming) -> tuple[LedgerRow, bool]:
        """Write a command to the ledger, where it stays open until ``end``. Returns False if it was there before."""
        body = MessageBody(prompt=message.text, command=True)
        accept = message.for_ledger(await self._session_id(message.facts.session), body, message.run_id)
        row, new = await self._runtime.stores.ledger.accept(accept, step="running")
        if new:
            self._open_commands[row.id] = row.session_key
        return row, new

    def in_use(self, session_key: str) -> bool:
        """Return whether a command of the session is under way."""
        return session_key in self._open_commands.values()

    async def end_interrupted(self, session: SessionName | None = None) -> None:
        """End the commands that an earlier process began, in one session or in all, and say so in their chats."""
        for row in await self._runtime.stores.ledger.unfinished(session):
            if row.body.command and row.id not in self._open_commands:
                text = INTERRUPTED.format(command=shortened(row.body.prompt or "", LONGEST_COMMAND))
                await self.end(row, text, ReasonCode.COMMAND_INTERRUPTED, state="failed")

    async def end(
        self, row: LedgerRow, text: str | None, reason: ReasonCode, *, state: MessageState | None = None
    ) -> None:
        """End a command with its answer and notify everyone. When ``text`` is None, nothing is said.

        The end is tried until it is written, whatever the error.
        """
        session, runtime, reply = SessionRef(row.agent_id, row.session_key), self._runtime, (text or "").strip()
        try:
            await self._session_id(session, make=bool(reply))
        except Exception:  # The answer is then shown in no transcript, but it is sent.
            log.exception("no session could be made for the answer to %s", row.run_id)
        parts, ended = self._parts(row.route, [reply]), state or ("answered" if reply else "silent")
        result = {"text": reply} if reply else None
        try:
            new = await until_written(
                lambda: runtime.stores.ledger.finish(row.id, ended, reason=Reason(reason), result=result, outbox=parts),
                runtime.clock.sleep,
                unknown_tries=FOREVER,
            )
        finally:
            self._open_commands.pop(row.id, None)
        if parts:
            self._wake_delivery()
        if new:
            self._runs.index.wake_waiters(row.run_id)
            self.show(session, row.run_id, reply)

    async def notify_run(self, run: Run, run_id: str, text: str, buttons: Sequence[Sequence[Button]] = ()) -> None:
        """Post a line about a run in open chats and to the run's channel. The transcript does not keep it."""
        row = run.row
        if row.route.is_delivered:
            notice = row.derive(run_id, dedupe_key=f"notice|{run_id}", body=MessageBody(prompt=text))
            await self.post(notice, [text], buttons=buttons)
        message = injected_message(text, self._runtime.clock.now_ms())
        self._publish_final(row.session_key, run_id, msgspec.to_builtins(message))

    async def notify_owner(self, session: SessionRef, text: str) -> None:
        """Post a notice that concerns no message in the session and where its last message came from."""
        entry, run_id = await self._runtime.stores.sessions.get(session.agent_id, session.key), str(uuid.uuid4())
        if entry is None:
            return
        accept = Accept(
            run_id=run_id,
            dedupe_key="",
            agent_id=session.agent_id,
            session_key=session.key,
            session_id=entry["sessionId"],
            source="gateway",
            route=last_route(entry),
            body=MessageBody(),
        )
        await self.post(accept, [text], result={"text": text})
        self.show(session, run_id, text)

    async def send_as_agent(self, session: SessionRef, run_id: str, text: str, route: Route) -> bool:
        """Post a text in the agent's name: in the transcript, in open chats and on the route. It is said once.

        It waits until no run of the session is under way. It skips a session that is gone. Returns False if the
        send policy kept the text from the route.
        """
        message = injected_message(text, self._runtime.clock.now_ms())
        if await self.write(session, message, f"said-{run_id}") is None:
            return True
        accept = Accept(
            run_id=run_id,
            dedupe_key="",
            agent_id=session.agent_id,
            session_key=session.key,
            session_id=await self._session_id(session),
            source="agent",
            route=route,
            body=MessageBody(text=text),
        )
        row, new = await self.post(accept, [text], result={"text": text})
        if new:
            self._publish_final(session.key, run_id, msgspec.to_builtins(message))
        return row.reason.code is not ReasonCode.SEND_POLICY

    async def _session_id(self, session: SessionRef, *, make: bool = False) -> str:
        """Return the id of the session. Without a session it is empty, unless ``make`` asks for a new one."""
        runtime = self._runtime
        entry = await runtime.stores.sessions.get(session.agent_id, session.key)
        if entry is None and make:
            now = runtime.clock.now_ms()
            entry, _ = await ensure_fresh(runtime, session.agent_id, session.key, MessageFacts(), now)
        return entry["sessionId"] if entry else ""

    def announce(self, session: SessionRef, rotation: Rotation) -> None:
        """Show the line between two sessions in open chats. Histories read it from the transcript."""
        session_id, at = rotation.new["sessionId"], rotation.new.get("updatedAt")
        marker = {"kind": MARKER_TYPE, "id": session_id, "reason": rotation.reason}
        content = [{"type": "text", "text": rotation.marker_text}]
        message = {"role": "system", "content": content, "timestamp": at, "__openclaw": marker}
        self._publish_final(session.key, f"session-{session_id}-{at}", message, seq=0)

    async def post(
        self,
        accept: Accept,
        texts: Sequence[str],
        media: Sequence[MediaRef] = (),
        *,
        reply_to: str = "",
        buttons: Sequence[Sequence[Button]] = (),
        act: OutgoingMessage | None = None,
        is_command_answer: bool = False,
        state: MessageState = "answered",
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
    ) -> tuple[LedgerRow, bool]:
        """Write a message that needs no run to the ledger, with the parts that its channel delivers.

        ``buttons`` stand below its first part. ``act`` is done in place of sending something. If the send policy
        forbids it, nothing is delivered, and the ledger says why. Only the answer to a command is always delivered.
        """
        parts = self._parts(accept.route, texts, media, reply_to)
        if parts and buttons:
            parts[0].payload["buttons"] = msgspec.to_builtins(buttons)
        if act is not None:
            parts = [OutboxPart(part=0, channel=accept.route.channel, payload=msgspec.to_builtins(act))]
        may_send = partial(self._runtime.may_send, accept.agent_id, accept.session_key, accept.route)
        if parts and not is_command_answer and not await may_send():
            parts, result = [], {**(result or {}), "withheld": True}
            if state == "answered":
                state, reason = "silent", Reason(ReasonCode.SEND_POLICY)
        row, new = await self._runtime.stores.ledger.post(accept, parts, state=state, reason=reason, result=result)
        if parts:
            self._wake_delivery()
        return row, new

    def _parts(
        self, route: Route, texts: Sequence[str], media: Sequence[MediaRef] = (), reply_to: str = ""
    ) -> list[OutboxPart]:
        """Return what the channel delivers. It is nothing for the web client."""
        if not route.is_delivered:
            return []
        limits = limits_for(self._runtime.config.current, route.channel, route.account_id)
        spoken = [text for text in texts if not is_silent(text)]
        return parts_for(route, spoken, ReplyShape(limits=limits), media, reply_to)

    def show(self, session: SessionRef, run_id: str, text: str) -> None:
        """Show a text in open chats at once and write it to the transcript as soon as no run writes there."""
        if not text:
            self._publish_final(session.key, run_id, None)
            return
        message = injected_message(text, self._runtime.clock.now_ms())
        self._publish_final(session.key, run_id, msgspec.to_builtins(message))
        message.notice = True
        self._spawn(self._persist(session, f"say-{run_id}"[:64], message))

    async def _persist(self, session: SessionRef, entry_id: str, message: AssistantMessage) -> None:
        try:
            await self.write(session, message, entry_id)
        except Exception:
            log.exception("an answer of the Gateway could not be kept in %s", session.key)

    async def write(self, session: SessionRef, message: AssistantMessage, entry_id: str | None = None) -> str | None:
        """Append a message that no model wrote to the transcript, between runs.

        Returns the id of the entry, or None if the session does not exist.
        """
        runtime = self._runtime

        async def append() -> str | None:
            entry = await runtime.stores.sessions.get(session.agent_id, session.key)
            if entry is None:
                return None
            ref, home = transcript_ref(session.agent_id, entry), home_of(runtime, session.agent_id)
            transcript = await runtime.stores.transcripts.open(ref, cwd=home)
            assert transcript is not None
            return await transcript.append({"type": "message", "message": message}, entry_id=entry_id, durable=True)

        return await self._runs.exclusively(session.key, append)

    def _publish_final(self, session_key: str, run_id: str, message: dict[str, Any] | None, *, seq: int = 1) -> None:
        payload: dict[str, Any] = {"runId": run_id, "sessionKey": shown_key(session_key), "seq": seq, "state": "final"}
        self._publish("chat", payload if message is None else {**payload, "message": message})


def injected_message(text: str, now_ms: int, *, sent: bool = False) -> AssistantMessage:
    """Make a message that transcripts mark as written by no model. ``sent``: it went out on a channel by itself."""
    return AssistantMessage(
        content=[TextBlock(text=text)],
        api="openai-responses",
        provider="openclaw",
        model="delivery-mirror" if sent else "gateway-injected",
        timestamp=now_ms,
    )
