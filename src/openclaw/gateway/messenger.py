"""Sends to people on channels without a run, for the method ``send`` and for the agent's ``message`` tool.

A ``MessageToSend`` is written to the ledger with its parts, so it goes out even after a crash. One run id never sends
twice. ``ChannelMessenger`` carries out what the ``message`` tool wants, as a job: the text goes to the outbox at once.
The job writes it to the transcript of its conversation when no run is under way there, which may be after the run that
sent it.
"""

from __future__ import annotations

import mimetypes
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from openclaw.agent.recorder import entry_id
from openclaw.channels.base import Capabilities
from openclaw.channels.manager import RunningAccount
from openclaw.events import Spoken
from openclaw.inbound.message import Inbound, Sender
from openclaw.inbound.notices import injected_message
from openclaw.messages import Route
from openclaw.outbound.answer_filter import CURRENT, speech_of, visible_text
from openclaw.outbound.reply import Act, Button, MediaRef, OutgoingMessage, SendFailed
from openclaw.outbound.reply_files import Files, SizeLimit, Unsendable, reply_files, size_limit, within
from openclaw.pictures import content_type
from openclaw.public_fetch import FetchLimits, FetchRefused, fetch
from openclaw.routing import resolve_route
from openclaw.runs.delivery_report import delivery_text
from openclaw.sessions.entry import BLOCKED, SessionEntry, is_blocked, normalize_channel
from openclaw.sessions.keys import SessionRef, chat_type_of, is_subagent, parse_agent_key, rest_of, shown_key
from openclaw.storage.message_ledger import Accept, JobRow, LedgerRow, MessageBody, ReasonCode, step_id
from openclaw.teamwork.send import Jobs, announce_route
from openclaw.tools.base import ToolContext
from openclaw.tools.message import Action, Attachment, ChannelConversation, MessageRefused, Order, marks_for

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.gateway.channels import ChannelServices
    from openclaw.inbound.notices import Notices


WAIT_S = 30.0
MAX_MEDIA = 10
MAX_MEDIA_BYTES = 16 * 1024 * 1024


class SendRefused(Exception):
    """Nothing was sent. The text says why."""


class MessageToSend(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    run_id: str
    source: str
    agent_id: str
    session_key: str
    """The session that the conversation belongs to."""
    route: Route
    text: str = ""
    media: tuple[MediaRef, ...] = ()
    reply_to: str = ""
    buttons: tuple[tuple[Button, ...], ...] = ()
    act: OutgoingMessage | None = None
    """An action on an earlier message, instead of a new message."""

    @property
    def session(self) -> SessionRef:
        return SessionRef(self.agent_id, self.session_key)


class SendOutcome(msgspec.Struct, frozen=True):
    answer: dict[str, Any]
    """It says ``queued`` while the channel is not connected."""
    error: str = ""
    """Why the message will never arrive."""


class MessageSender:
    """Sends without a run: finds the account, stores the message with its parts, and waits for the delivery."""

    def __init__(self, runtime: Runtime, notices: Notices, services: ChannelServices) -> None:
        self._runtime = runtime
        self._notices = notices
        self._delivery = services.delivery
        self.channels = services.channels

    def account_for(self, channel: str | None, account_id: str | None) -> RunningAccount:
        """The account that sends. Without a channel it is the only one that is configured. Raises ``SendRefused``."""
        channels = self.channels
        configured = list(dict.fromkeys(one.kind.id for one in channels.accounts()))
        named = normalize_channel(channel) or (configured[0] if len(configured) == 1 else "whatsapp")
        if named not in configured:
            raise SendRefused(f"unsupported channel: {named}")
        running = channels.find(named, account_id)
        if running is None:
            accounts = ", ".join(one.account.id for one in channels.accounts(named))
            raise SendRefused(f'unknown account "{account_id}" of channel {named}; known: {accounts}')
        return running

    def session_for(self, running: RunningAccount, to: str) -> SessionRef:
        """The session that a conversation belongs to. Raises ``SendRefused`` if ``to`` is nobody on the channel."""
        try:
            peer = running.kind.peer(to)
        except SendFailed as problem:
            raise SendRefused(str(problem)) from None
        heard = Inbound(
            channel=running.kind.id, account_id=running.account.id, peer=peer, sender=Sender(id=peer.id), to=to
        )
        resolved = resolve_route(self._runtime.config.current, heard)
        return SessionRef(resolved.agent_id, resolved.session_key)

    async def fetched_media(self, addresses: Sequence[str], running: RunningAccount) -> list[MediaRef]:
        """The files at these addresses, stored for an account that sends them. Raises ``SendRefused``."""
        limit = size_limit(self._runtime.config.current, running.kind.id, running.account.id)
        addresses = list(dict.fromkeys(addresses))
        if len(addresses) > MAX_MEDIA:
            raise SendRefused(f"too many files: {len(addresses)}; at most {MAX_MEDIA}")
        media: list[MediaRef] = []
        for address in addresses:
            try:
                data = await fetch(address, FetchLimits(max_bytes=MAX_MEDIA_BYTES, timeout_s=30))
            except FetchRefused as refused:
                raise SendRefused(f"mediaUrl {address[:200]} was not fetched: {refused}") from None
            name = urlsplit(address).path.rpartition("/")[2] or None
            try:
                media.append(await self.stored_media(data, name, limit))
            except Unsendable as problem:
                raise SendRefused(f"mediaUrl {address[:200]} was not sent: {problem}") from None
        return media

    async def stored_media(self, data: bytes, name: str | None, limit: SizeLimit, mime: str = "") -> MediaRef:
        """A file to send, stored. Raises ``Unsendable`` if it is too large for the channel."""
        mime = content_type(data, mime or mimetypes.guess_type(name or "")[0] or "")
        data, mime, name = await within(data, mime, name or "", limit)
        return MediaRef(blob=await self._runtime.stores.blobs.put(data), mime_type=mime, file_name=name or None)

    async def post(self, message: MessageToSend) -> tuple[LedgerRow, bool]:
        """Write the message down. Returns False if that was done before."""
        accept = Accept(
            run_id=message.run_id,
            dedupe_key=f"send|{message.run_id}",
            agent_id=message.agent_id,
            session_key=message.session_key,
            session_id="",
            source=message.source,
            route=message.route,
            body=MessageBody(text=message.text),
        )
        return await self._notices.post(
            accept, [message.text], message.media, reply_to=message.reply_to, buttons=message.buttons, act=message.act
        )

    async def delivery_outcome(self, row: LedgerRow) -> SendOutcome:
        """Wait for the delivery and reports it."""
        parts = await self._delivery.wait(row.id, WAIT_S)
        message_id = next((part.message_id for part in reversed(parts) if part.message_id), row.run_id)
        answer = {"runId": row.run_id, "channel": row.route.channel, "messageId": message_id}
        if row.reason.code is ReasonCode.SEND_POLICY:
            return SendOutcome(answer, BLOCKED)
        if dead := next((part for part in parts if part.state == "dead"), None):
            return SendOutcome(answer, delivery_text(dead))
        if waiting := next((part for part in parts if part.state != "sent"), None):
            return SendOutcome(
                {**answer, "queued": True, "reason": delivery_text(waiting) or "the channel is not connected"}
            )
        if bare := next((part for part in parts if part.error), None):
            answer["warning"] = f"a file was not sent: {bare.error}"
        return SendOutcome(answer)

    async def open_session(self, session: SessionRef) -> None:
        """Make the session's entry if there is none."""
        now = self._runtime.clock.now_ms()

        def change(entry: SessionEntry | None) -> SessionEntry:
            return entry or SessionEntry(sessionId=str(uuid.uuid4()), updatedAt=now)

        await self._runtime.stores.sessions.update(session.agent_id, session.key, change)

    async def write_to_transcript(self, message: MessageToSend) -> None:
        """Write the text to the transcript, so that the agent knows what went out in its name. It is written once.

        It waits until no run of the session is under way. A session that is gone gets nothing.
        """
        text = message.text or ", ".join(file.file_name or "media" for file in message.media)
        entry = injected_message(text, self._runtime.clock.now_ms(), sent=True)
        await self._notices.write(message.session, entry, entry_id(message.run_id, "sent"))


KIND = "message"
MOST_PARENTS = 8


class ChannelMessenger:
    def __init__(self, runtime: Runtime, messenger: MessageSender, jobs: Jobs) -> None:
        self._runtime = runtime
        self._messenger = messenger
        self._jobs = jobs
        jobs.add_kind(KIND, self._carry_on)

    async def carry_out(self, order: Order, attachment: Attachment | None, context: ToolContext) -> dict[str, Any]:
        job_id = step_id(f"{context.run_id}/{context.call_id}", KIND)
        run_id = step_id(job_id, "post")
        if (earlier := await self._runtime.stores.ledger.by_run(run_id)) is not None:
            return await self._told(earlier, context)
        try:
            message = await self._message(order, attachment, context, run_id)
        except SendRefused as refused:
            raise MessageRefused(str(refused)) from None
        if order.dry_run:
            return {
                "status": "ok",
                "dryRun": True,
                **_shown(message.route),
                "sessionKey": shown_key(message.session_key),
            }
        if message.act is None:
            await self._messenger.open_session(message.session)
        job = JobRow(
            id=job_id,
            kind=KIND,
            owner_key=context.session_key,
            run_id=context.run_id,
            trace=run_id,
            state=msgspec.to_builtins(message),
            created_at=self._runtime.clock.now_ms(),
        )
        await self._jobs.save(job)
        row, _ = await self._messenger.post(message)
        self._jobs.start(job)
        return await self._told(row, context)

    async def _carry_on(self, job: JobRow) -> None:
        message = msgspec.convert(job.state, MessageToSend)
        await self._messenger.post(message)  # It may have been cut off before that.
        if message.act is None:
            await self._messenger.write_to_transcript(message)

    async def _told(self, row: LedgerRow, context: ToolContext) -> dict[str, Any]:
        outcome = await self._messenger.delivery_outcome(row)
        answer = {**outcome.answer, **_shown(row.route), "sessionKey": shown_key(row.session_key)}
        if await self._is_here(row, context):
            answer["here"] = True
        if outcome.error:
            return {**answer, "status": "error", "delivered": False, "error": outcome.error}
        queued = bool(outcome.answer.get("queued"))
        return {**answer, "status": "accepted" if queued else "ok", "delivered": not queued}

    async def _is_here(self, row: LedgerRow, context: ToolContext) -> bool:
        """Whether the message went to the conversation that the run itself answers."""
        here, channel = await self._here(context), row.route.channel
        running = self._messenger.channels.find(channel, row.route.account_id)
        if here is None or running is None:
            return False
        there = ChannelConversation(channel=channel, account_id=running.account.id, to=row.route.to)
        return _same(running, here, there)

    async def _message(
        self, order: Order, attachment: Attachment | None, context: ToolContext, run_id: str
    ) -> MessageToSend:
        config = self._runtime.config.current
        here = await self._here(context)
        if not order.target and (here is None or is_subagent(context.session_key)):
            raise MessageRefused("target required: this run belongs to no conversation on a channel")
        channel = order.channel or (here.channel if here else "")
        account = order.account_id or (here.account_id if here and here.channel == channel else "")
        running = self._messenger.account_for(channel or None, account or None)
        if (lack := _lack(order.action, running.kind.capabilities)) is not None:
            raise MessageRefused(f"{running.kind.label} cannot {lack}")
        if order.buttons and not running.kind.capabilities.buttons:
            raise MessageRefused(f"{running.kind.label} has no buttons; ask in words")
        there = ChannelConversation(
            channel=running.kind.id, account_id=running.account.id, to=order.target or (here.to if here else "")
        )
        session = self._messenger.session_for(running, there.to)
        same = here is not None and _same(running, here, there)
        before, behind = marks_for(config.tools.message, order.action, here, there, same=same)
        entry = await self._runtime.stores.sessions.get(session.agent_id, session.key)
        kind = running.kind.peer(there.to).kind
        if is_blocked(config.session.send_policy, session.key, entry, channel=there.channel, chat_type=kind):
            raise MessageRefused(BLOCKED, "forbidden")
        route = Route(channel=there.channel, to=there.to, account_id=there.account_id)
        message = MessageToSend(
            run_id=run_id, source=KIND, agent_id=session.agent_id, session_key=session.key, route=route
        )
        current = here.message_id if same and here else ""
        if order.action not in ("send", "reply"):
            return msgspec.structs.replace(message, act=_act(order, current))
        speech = speech_of(order.text)
        text, tag = (speech.text.strip(), speech.reply_to) if isinstance(speech, Spoken) else ("", "")
        named = [*order.media, *(speech.media if isinstance(speech, Spoken) else ())]
        media = await self._media(named, attachment, there, context)
        if order.voice or (isinstance(speech, Spoken) and speech.voice):
            media = list(Files(tuple(media)).spoken().media)
        if not text and not media:
            raise MessageRefused("message or media required")
        quoted = order.message_id or (current if order.action == "reply" or tag == CURRENT else tag)
        if order.action == "reply" and not quoted:
            raise MessageRefused("messageId required: which message to reply to")
        text = f"{before}{text}{behind}" if text else text
        rows = tuple(tuple(Button(text=one.text, data=one.callback_data) for one in row) for row in order.buttons)
        return msgspec.structs.replace(message, text=text, media=tuple(media), reply_to=quoted, buttons=rows)

    async def _media(
        self, named: Sequence[str], attachment: Attachment | None, there: ChannelConversation, context: ToolContext
    ) -> list[MediaRef]:
        """The files that the call names or holds, stored. Raises ``MessageRefused`` if one of them cannot be sent."""
        runtime = self._runtime
        limit = size_limit(runtime.config.current, there.channel, there.account_id)
        files = await reply_files(named, runtime.stores.blobs, context.opener, limit)
        if files.notes:
            raise MessageRefused(" ".join(files.notes))
        if attachment is None:
            return list(files.media)
        try:
            made = await self._messenger.stored_media(attachment.data, attachment.name, limit, attachment.mime_type)
        except Unsendable as problem:
            raise MessageRefused(f"the file was not sent: {problem}") from None
        return [*files.media, made]

    async def _here(self, context: ToolContext) -> ChannelConversation | None:
        """The conversation that the run belongs to: its own, or the one of whoever handed the work on to it."""
        runtime = self._runtime
        row = await runtime.stores.ledger.by_run(context.run_id)
        if row is not None and row.route.is_delivered:
            return await self._place(row.route, SessionRef(context.agent_id, context.session_key))
        key, agent_id, handed_on = context.session_key, context.agent_id, False
        if row is not None and (source := row.body.provenance.get("sourceSessionKey")):
            key, handed_on = str(source), True
        for _ in range(MOST_PARENTS):
            agent_id = parsed.agent_id if (parsed := parse_agent_key(key)) else agent_id
            entry = await runtime.stores.sessions.get(agent_id, key)
            if not (parent := (entry or {}).get("spawnedBy")):
                break
            key, handed_on = str(parent), True
        else:
            entry = None
        of_channel = rest_of(key).partition(":")[0] in {one.kind.id for one in self._messenger.channels.accounts()}
        route = announce_route(key, entry)
        if (handed_on or of_channel) and route.is_delivered:
            return await self._place(route, SessionRef(agent_id, key))
        return None

    async def _place(self, route: Route, session: SessionRef) -> ChannelConversation:
        entry = await self._runtime.stores.sessions.get(session.agent_id, session.key)
        group = chat_type_of(session.key) != "direct"
        return ChannelConversation(
            channel=route.channel,
            account_id=route.account_id or "",
            to=route.to,
            name=str((entry or {}).get("displayName") or "") if group else "",
            message_id=route.reply_to_id,
        )


def _shown(route: Route) -> dict[str, Any]:
    return {"channel": route.channel, "to": route.to, "accountId": route.account_id}


def _same(running: RunningAccount, here: ChannelConversation, there: ChannelConversation) -> bool:
    if here.channel != there.channel or (here.account_id and here.account_id != there.account_id):
        return False
    try:
        return running.kind.peer(here.to) == running.kind.peer(there.to)
    except SendFailed:
        return False


def _lack(action: Action, can: Capabilities) -> str | None:
    """What the channel cannot do of it."""
    needs = {
        "reply": (can.reply, "quote messages"),
        "react": (can.reactions, "react to messages"),
        "edit": (can.edit, "edit messages"),
        "delete": (can.unsend, "delete messages"),
        "pin": (can.pin, "pin messages"),
        "unpin": (can.pin, "pin messages"),
    }
    able, what = needs.get(action, (True, ""))
    return None if able else what


_ACTS: dict[Action, Act] = {"react": "react", "edit": "edit", "delete": "delete", "pin": "pin", "unpin": "pin"}


def _act(order: Order, current: str) -> OutgoingMessage:
    target = order.message_id or current
    if not target:
        raise MessageRefused("messageId required: which message to react to")
    return OutgoingMessage(
        act=_ACTS[order.action],
        text=visible_text(order.text).strip() if order.action == "edit" else "",
        target_id=target,
        target_author=order.author,
        emoji=order.emoji,
        remove=order.remove or order.action == "unpin",
    )
