"""Carries out what the agent's ``message`` tool wants, as a job: also after a crash it is done once and written down.

The text goes to the outbox at once. The job writes it to the transcript of its conversation when no run is under way
there, which may be after the run that sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.channels.base import Capabilities
from openclaw.channels.manager import RunningAccount
from openclaw.events import Spoken
from openclaw.gateway import direct_send
from openclaw.gateway.direct_send import Letter, SendRefused
from openclaw.inbound.message import Route
from openclaw.outbound.reply import Act, Button, MediaRef, OutgoingMessage, SendFailed, is_delivered
from openclaw.outbound.reply_files import Files, Unsendable, reply_files, size_limit
from openclaw.outbound.visible import CURRENT, speech_of, visible_text
from openclaw.sessions.keys import SessionRef, is_subagent, parse_agent_key, rest_of, shown_key
from openclaw.sessions.send_policy import is_blocked
from openclaw.storage.base import JobRow, LedgerRow, step_id
from openclaw.teamwork.jobs import Jobs
from openclaw.teamwork.send import announce_route
from openclaw.tools.base import ToolContext
from openclaw.tools.message import Action, Attachment, MessageRefused, Order, Place, marks_for, opener_for

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

KIND = "message"
MOST_PARENTS = 8


class ChannelMessenger:
    def __init__(self, gateway: Gateway, jobs: Jobs) -> None:
        self._gateway = gateway
        self._jobs = jobs
        jobs.add_kind(KIND, self._carry_on)

    async def carry_out(self, order: Order, attachment: Attachment | None, context: ToolContext) -> dict[str, Any]:
        job_id = step_id(f"{context.run_id}/{context.call_id}", KIND)
        run_id = step_id(job_id, "post")
        if (known := await self._gateway.runtime.ledger.by_run(run_id)) is not None:
            return await self._told(known, context)
        try:
            letter = await self._letter(order, attachment, context, run_id)
        except SendRefused as refused:
            raise MessageRefused(str(refused)) from None
        if order.dry_run:
            return {"status": "ok", "dryRun": True, **_shown(letter.route), "sessionKey": shown_key(letter.session_key)}
        if letter.act is None:
            await direct_send.open_session(self._gateway, letter.session)
        job = JobRow(
            id=job_id,
            kind=KIND,
            owner_key=context.session_key,
            run_id=context.run_id,
            trace=run_id,
            state=msgspec.to_builtins(letter),
            created_at=self._gateway.runtime.clock.now_ms(),
        )
        await self._jobs.save(job)
        row, _ = await direct_send.post(self._gateway, letter)
        self._jobs.start(job)
        return await self._told(row, context)

    async def _carry_on(self, job: JobRow) -> None:
        letter = msgspec.convert(job.state, Letter)
        await direct_send.post(self._gateway, letter)  # It may have been cut off before that.
        if letter.act is None:
            await direct_send.mirror(self._gateway, letter)

    async def _told(self, row: LedgerRow, context: ToolContext) -> dict[str, Any]:
        outcome = await direct_send.outcome(self._gateway, row)
        told = {**outcome.answer, **_shown(row.route), "sessionKey": shown_key(row.session_key)}
        if await self._is_here(row, context):
            told["here"] = True
        if outcome.error:
            return {**told, "status": "error", "delivered": False, "error": outcome.error}
        queued = bool(outcome.answer.get("queued"))
        return {**told, "status": "accepted" if queued else "ok", "delivered": not queued}

    async def _is_here(self, row: LedgerRow, context: ToolContext) -> bool:
        """Whether the message went to the conversation that the run itself answers."""
        here, channel = await self._here(context), str(row.route["channel"])
        running = self._gateway.channel_services.channels.find(channel, row.route.get("accountId"))
        if here is None or running is None:
            return False
        there = Place(channel=channel, account_id=running.account.id, to=str(row.route["to"]))
        return _same(running, here, there)

    async def _letter(self, order: Order, attachment: Attachment | None, context: ToolContext, run_id: str) -> Letter:
        gateway, config = self._gateway, self._gateway.runtime.config.current
        here = await self._here(context)
        if not order.target and (here is None or is_subagent(context.session_key)):
            raise MessageRefused("target required: this run belongs to no conversation on a channel")
        channel = order.channel or (here.channel if here else "")
        account = order.account_id or (here.account_id if here and here.channel == channel else "")
        running = direct_send.account_for(gateway, channel or None, account or None)
        if (lack := _lack(order.action, running.kind.capabilities)) is not None:
            raise MessageRefused(f"{running.kind.label} cannot {lack}")
        if order.buttons and not running.kind.capabilities.buttons:
            raise MessageRefused(f"{running.kind.label} has no buttons; ask in words")
        there = Place(
            channel=running.kind.id, account_id=running.account.id, to=order.target or (here.to if here else "")
        )
        session = direct_send.session_for(gateway, running, there.to)
        same = here is not None and _same(running, here, there)
        before, behind = marks_for(config.tools.message, order.action, here, there, same=same)
        entry = await gateway.runtime.sessions.get(session.agent_id, session.key)
        kind = running.kind.peer(there.to).kind
        if is_blocked(config.session.send_policy, session.key, entry, channel=there.channel, chat_type=kind):
            raise MessageRefused("send blocked by session policy", "forbidden")
        route = msgspec.to_builtins(Route(channel=there.channel, to=there.to, account_id=there.account_id))
        letter = Letter(run_id=run_id, source=KIND, agent_id=session.agent_id, session_key=session.key, route=route)
        current = here.message_id if same and here else ""
        if order.action not in ("send", "reply"):
            return msgspec.structs.replace(letter, act=_act(order, current))
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
        return msgspec.structs.replace(letter, text=text, media=tuple(media), reply_to=quoted, buttons=rows)

    async def _media(
        self, named: Sequence[str], attachment: Attachment | None, there: Place, context: ToolContext
    ) -> list[MediaRef]:
        """The files that the call names or holds, stored. Raises ``MessageRefused`` if one of them cannot be sent."""
        runtime = self._gateway.runtime
        limit = size_limit(runtime.config.current, there.channel, there.account_id)
        files = await reply_files(named, runtime.blobs, opener_for(context), limit)
        if files.notes:
            raise MessageRefused(" ".join(files.notes))
        if attachment is None:
            return list(files.media)
        try:
            made = await direct_send.stored_media(
                self._gateway, attachment.data, attachment.name, limit, attachment.mime_type
            )
        except Unsendable as problem:
            raise MessageRefused(f"the file was not sent: {problem}") from None
        return [*files.media, made]

    async def _here(self, context: ToolContext) -> Place | None:
        """The conversation that the run belongs to: its own, or the one of whoever handed the work on to it."""
        runtime = self._gateway.runtime
        row = await runtime.ledger.by_run(context.run_id)
        if row is not None and is_delivered(row.route):
            return await self._place(row.route, SessionRef(context.agent_id, context.session_key))
        key, agent_id, handed_on = context.session_key, context.agent_id, False
        if row is not None and (source := row.body.provenance.get("sourceSessionKey")):
            key, handed_on = str(source), True
        for _ in range(MOST_PARENTS):
            agent_id = parsed.agent_id if (parsed := parse_agent_key(key)) else agent_id
            entry = await runtime.sessions.get(agent_id, key)
            if not (parent := (entry or {}).get("spawnedBy")):
                break
            key, handed_on = str(parent), True
        else:
            entry = None
        of_channel = rest_of(key).partition(":")[0] in {
            one.kind.id for one in self._gateway.channel_services.channels.accounts()
        }
        route = announce_route(key, entry)
        if (handed_on or of_channel) and is_delivered(route):
            return await self._place(route, SessionRef(agent_id, key))
        return None

    async def _place(self, route: dict[str, Any], session: SessionRef) -> Place:
        entry = await self._gateway.runtime.sessions.get(session.agent_id, session.key)
        group = ":group:" in session.key or ":channel:" in session.key
        return Place(
            channel=str(route["channel"]),
            account_id=str(route.get("accountId") or ""),
            to=str(route["to"]),
            name=str((entry or {}).get("displayName") or "") if group else "",
            message_id=str(route.get("replyToId") or ""),
        )


def _shown(route: dict[str, Any]) -> dict[str, Any]:
    return {"channel": route["channel"], "to": route["to"], "accountId": route.get("accountId")}


def _same(running: RunningAccount, here: Place, there: Place) -> bool:
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
