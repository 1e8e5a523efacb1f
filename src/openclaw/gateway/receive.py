"""A message from a channel, step by step: access, pause, routing, gating, commands, and at last its session."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.command_services import GatewayCommands
from openclaw.gateway.inbound_files import within_reach
from openclaw.gateway.spoken import Said, say
from openclaw.gateway.targets import Target
from openclaw.inbound.access import Drop, Pair, Standing, decide_access, group_rules, sender_ids, sender_standing
from openclaw.inbound.bodies import NOTHING_TO_ANSWER, PromptParts, assemble_prompt, is_empty, make_bodies
from openclaw.inbound.channel_settings import ChannelSettings, channel_settings
from openclaw.inbound.command_text import Listening, is_control_message
from openclaw.inbound.commands.context import Continue, Facts, Handled, SessionRef
from openclaw.inbound.commands.handle import handle_commands
from openclaw.inbound.debounce import Debouncer, debounce_ms, merged
from openclaw.inbound.dedupe import Dedupe, dedupe_key_of
from openclaw.inbound.envelope import envelope_options
from openclaw.inbound.group_intro import group_intro
from openclaw.inbound.history import PendingHistory, history_entry, history_key, history_limit
from openclaw.inbound.intake import Incoming, take_in
from openclaw.inbound.labels import from_label
from openclaw.inbound.mentions import gate, mention_patterns, needs_mention
from openclaw.inbound.message import Inbound
from openclaw.inbound.pairing import pairing_reply
from openclaw.inbound.stamp import ABORT_NOTE
from openclaw.routing import Resolved, broadcast_routes, reply_route, resolve_route
from openclaw.sessions.entry import SessionEntry, group_display_name
from openclaw.sessions.reset import MessageFacts, Rotation, ensure_fresh
from openclaw.sessions.send_policy import send_decision
from openclaw.storage.base import StoredImage

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

log = logging.getLogger("openclaw.inbound")


DENIED = "the session's send policy does not allow replies"
UNANSWERED_COMMAND = "a command that has no answer, or that its sender may not give"


class Reception:
    """Where every channel hands its messages in."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._dedupe = Dedupe(gateway.runtime.ledger)
        self._history = PendingHistory()
        self._commands = GatewayCommands(gateway)
        self._debouncer = Debouncer(
            self._deliver,
            clock=gateway.runtime.clock,
            window_ms=self._window,
            is_control=is_control_message,
            on_error=self._report,
        )

    async def receive(self, inbound: Inbound) -> bool:
        """True once the message is taken; False when it was turned away. Raises when it could not be kept."""
        settings = self._settings(inbound)
        allowed = await self._gateway.pairing.allowed(inbound.channel)
        match decide_access(inbound, settings, allowed):
            case Drop(reason):
                log.info("%s message of %s dropped: %s", inbound.channel, inbound.sender.id, reason)
                return False
            case Pair(sender_id):
                await self._offer_pairing(inbound, sender_id)
                return False
            case _:
                pass
        if self._window(inbound) > 0:
            # It may wait for more words, so it is written down first; a restart hands on what still waited.
            await self._gateway.runtime.ledger.hold(_held_key(inbound), msgspec.json.encode(inbound))
            self._debouncer.add(inbound)
            return True
        handed_on = self._debouncer.add(inbound)
        if not await handed_on:
            raise OSError("the message could not be kept; see the log")
        return True

    async def notice(self, inbound: Inbound) -> None:
        """Something to know at the next turn, e.g. a reaction."""
        config = self._gateway.runtime.config.current
        settings = self._settings(inbound)
        allowed = await self._gateway.pairing.allowed(inbound.channel)
        if not isinstance(decide_access(inbound, settings, allowed), Drop | Pair):
            self._gateway.runtime.notes.add(resolve_route(config, inbound).session_key, inbound.text)

    async def recover(self) -> int:
        """Hands on what was waiting for more words when the last Gateway ended; what it had handed on is skipped."""
        held = await self._gateway.runtime.ledger.held()
        for key, message in held:
            try:
                await self._deliver([msgspec.json.decode(message, type=Inbound)])
            except msgspec.MsgspecError as error:
                log.error("a message that was kept aside cannot be read and is given up: %s", error)
            await self._gateway.runtime.ledger.let_go([key])
        return len(held)

    async def close(self) -> None:
        """What still waits for more words is handed on, into the ledger."""
        await self._debouncer.close()

    def _settings(self, inbound: Inbound) -> ChannelSettings:
        config, channel, account = self._gateway.runtime.config.current, inbound.channel, inbound.account_id
        key = ("channel settings", channel, account)
        return self._gateway.runtime.derived.of(config, key, lambda: channel_settings(config, channel, account))

    def _window(self, inbound: Inbound) -> int:
        return debounce_ms(self._gateway.runtime.config.current.messages.inbound, inbound.channel)

    def _report(self, error: Exception, items: list[Inbound]) -> None:
        ids = ", ".join(item.message_id for item in items)
        log.error("%s message %s could not be taken in: %s", items[0].channel, ids, error, exc_info=error)

    async def _offer_pairing(self, inbound: Inbound, sender_id: str) -> None:
        asked = await self._gateway.pairing.ask(inbound.channel, sender_id, {"name": inbound.sender.name})
        if asked is None or not asked.new:
            return
        resolved = resolve_route(self._gateway.runtime.config.current, inbound)
        text = pairing_reply(inbound.channel, sender_id, asked.code)
        await self._say(inbound, resolved, text, (), "a stranger asked to be let in")

    # After the pause

    async def _deliver(self, items: list[Inbound]) -> None:
        new = [(item, key) for item in items if await self._dedupe.take(key := dedupe_key_of(item))]
        if not new:
            if self._window(items[0]) > 0:
                await self._gateway.runtime.ledger.let_go([_held_key(item) for item in items])
            return
        keys = tuple(key for _, key in new if key is not None)
        try:
            inbound = merged([item for item, _ in new])
            config = self._gateway.runtime.config.current
            written = False
            for resolved in broadcast_routes(config, inbound) or [resolve_route(config, inbound)]:
                written |= await self._take(inbound, resolved, keys)
            for key in () if written else keys:
                await self._dedupe.keep(key)
            if self._window(inbound) > 0:
                await self._gateway.runtime.ledger.let_go([_held_key(item) for item in items])
        finally:
            for key in keys:
                self._dedupe.release(key)

    async def _take(self, inbound: Inbound, resolved: Resolved, keys: tuple[str, ...]) -> bool:
        """Whether the keys are on disk now, together with what became of the message."""
        gateway, config = self._gateway, self._gateway.runtime.config.current
        settings = self._settings(inbound)
        standing = sender_standing(inbound, settings, await gateway.pairing.allowed(inbound.channel), config.commands)
        patterns = mention_patterns(config, resolved.agent_id)
        group = inbound.peer.kind != "direct"
        listening = Listening(group=group, channel=inbound.channel, mentions=patterns)
        before = await gateway.runtime.sessions.get(resolved.agent_id, resolved.session_key)
        addressed = gate(
            inbound,
            patterns,
            require_mention=needs_mention(before, group_rules(settings, inbound).require_mention),
            authorised_command=standing.authorised and is_control_message(inbound.text, listening),
        )
        if not addressed.process:
            limit = history_limit(config, settings)
            self._history.record(history_key(inbound), history_entry(inbound), limit)
            return False
        facts = _facts(inbound, resolved, standing, addressed.mentioned, listening)
        outcome = await handle_commands(facts, inbound.text, self._commands)
        if isinstance(outcome, Handled):
            if outcome.later is not None:
                gateway.spawn(self._say_later(inbound, resolved, outcome.later, keys))
                return False
            await self._answer(inbound, resolved, outcome.reply, keys)
            return True
        if self._denied(inbound, resolved, before):
            log.info("no run for %s: the session may not be sent to", resolved.session_key)
            await self._say(inbound, resolved, None, keys, DENIED)
            return True
        for reply in outcome.side_replies:
            await self._say(inbound, resolved, reply, (), "a command inside the message")
        await self._run(inbound, resolved, settings, outcome, keys)
        return True

    def _denied(self, inbound: Inbound, resolved: Resolved, entry: SessionEntry | None) -> bool:
        policy = self._gateway.runtime.config.current.session.send_policy
        rules, default = (policy.rules, policy.default) if policy else ((), None)
        kind = inbound.peer.kind
        return (
            send_decision(resolved.session_key, entry, rules, default, channel=inbound.channel, chat_type=kind)
            == "deny"
        )

    async def _run(
        self,
        inbound: Inbound,
        resolved: Resolved,
        settings: ChannelSettings,
        outcome: Continue,
        keys: tuple[str, ...],
    ) -> None:
        gateway, config = self._gateway, self._gateway.runtime.config.current
        entry, rotation = await self._session(inbound, resolved)
        if rotation is not None:
            await self._say(inbound, resolved, rotation.marker_text, (), "a new session began")
        if is_empty(inbound, outcome.text):
            await self._say(inbound, resolved, NOTHING_TO_ANSWER, keys, "nothing was written")
            return
        limit, key = history_limit(config, settings), history_key(inbound)
        pending = self._history.pending(key, limit)
        inbound = await within_reach(gateway, inbound, resolved.agent_id)
        prompt = self._prompt(inbound, outcome, entry, rotation, pending)
        incoming = Incoming(
            run_id=_run_id(keys, resolved),
            agent_id=resolved.agent_id,
            session_key=resolved.session_key,
            source=resolved.channel,
            route=msgspec.to_builtins(reply_route(inbound, resolved)),
            prompt=prompt,
            stored_images=[
                StoredImage(media.blob, media.mime_type)
                for media in inbound.media
                if media.blob and media.mime_type.startswith("image/")
            ],
            hints=outcome.hints,
            extra_system_prompt=group_intro(
                inbound, always_on=not needs_mention(entry, group_rules(settings, inbound).require_mention)
            ),
            entry_fields=_entry_fields(inbound, resolved),
            dedupe_keys=keys,
            message_ids=inbound.message_ids or ((inbound.message_id,) if inbound.message_id else ()),
        )
        await take_in(incoming, gateway.runtime, gateway.dispatcher)
        self._history.clear(key, limit, pending)

    async def _session(self, inbound: Inbound, resolved: Resolved) -> tuple[SessionEntry, Rotation | None]:
        gateway = self._gateway
        facts = MessageFacts(
            channel=resolved.channel,
            chat_type=inbound.peer.kind,
            thread=inbound.thread_id is not None,
            thread_label=inbound.thread_label,
            parent_key=inbound.parent_session_key,
        )
        return await ensure_fresh(
            gateway.runtime,
            resolved.agent_id,
            resolved.session_key,
            facts,
            gateway.runtime.clock.now_ms(),
            busy=lambda: gateway.dispatcher.occupied(resolved.session_key),
        )

    def _prompt(
        self, inbound: Inbound, outcome: Continue, entry: SessionEntry, rotation: Rotation | None, pending: Any
    ) -> str:
        base = outcome.text
        if not outcome.greeting:
            said = msgspec.structs.replace(inbound, text=outcome.text)
            options = envelope_options(self._gateway.runtime.config.current)
            base = make_bodies(said, options, previous_ms=entry.get("updatedAt"), history=pending).body
        new = rotation is not None or not entry.get("systemSent")
        return assemble_prompt(
            PromptParts(
                base=base,
                message_id=inbound.message_id,
                abort_note=ABORT_NOTE if entry.get("abortedLastRun") else "",
                untrusted=inbound.untrusted,
                thread_starter=(inbound.thread_starter or "") if new else "",
                media=inbound.media,
            )
        )

    async def _say_later(
        self, inbound: Inbound, resolved: Resolved, later: Coroutine[Any, Any, str | None], keys: tuple[str, ...]
    ) -> None:
        """A run or a model is waited for; the channel hears other people meanwhile, and a /stop."""
        await self._answer(inbound, resolved, await later, keys)

    async def _answer(self, inbound: Inbound, resolved: Resolved, reply: str | None, keys: tuple[str, ...]) -> None:
        await self._say(inbound, resolved, reply, keys, "a command" if reply else UNANSWERED_COMMAND)

    async def _say(
        self, inbound: Inbound, resolved: Resolved, text: str | None, keys: tuple[str, ...], reason: str
    ) -> None:
        said = Said(
            run_id=_run_id((*keys, reason), resolved) if keys else str(uuid.uuid4()),
            target=Target(resolved.agent_id, resolved.session_key),
            source=resolved.channel,
            route=msgspec.to_builtins(reply_route(inbound, resolved)),
            asked=inbound.text,
            text=text,
            reason=reason,
            dedupe_keys=keys,
        )
        await say(self._gateway, said)


def _facts(inbound: Inbound, resolved: Resolved, standing: Standing, mentioned: bool, listening: Listening) -> Facts:
    return Facts(
        session=SessionRef(resolved.agent_id, resolved.session_key),
        channel=resolved.channel,
        chat_type=inbound.peer.kind,
        authorised=standing.authorised,
        owner=standing.owner,
        approver=standing.owner,
        sender_ids=tuple(sender_ids(inbound)),
        sender_name=inbound.sender.name,
        sender_username=inbound.sender.username,
        chat=inbound.to,
        account_id=resolved.account_id,
        thread_id=inbound.thread_id,
        mentioned=mentioned,
        has_media=bool(inbound.media),
        native=inbound.native_command,
        listening=listening,
    )


def _held_key(inbound: Inbound) -> str:
    return dedupe_key_of(inbound) or f"{inbound.channel}|{inbound.account_id}|{inbound.peer.id}|{inbound.timestamp_ms}"


def _run_id(keys: tuple[str, ...], resolved: Resolved) -> str:
    """The same for every delivery of the same messages; a message nobody can tell apart gets a new one."""
    if not keys:
        return str(uuid.uuid4())
    text = "\n".join((*keys, resolved.session_key))
    return str(uuid.UUID(hashlib.sha256(text.encode()).hexdigest()[:32]))


def _entry_fields(inbound: Inbound, resolved: Resolved) -> dict[str, Any]:
    """What the message says about its session. The last route is noted for listings; replies never depend on it."""
    context: dict[str, Any] = {"channel": resolved.channel, "to": inbound.to, "accountId": resolved.account_id}
    if inbound.thread_id is not None:
        context["threadId"] = inbound.thread_id
    fields: dict[str, Any] = {
        "chatType": inbound.peer.kind,
        "deliveryContext": context,
        "lastChannel": resolved.channel,
        "lastTo": inbound.to,
        "lastAccountId": resolved.account_id,
        "origin": {
            "label": from_label(inbound),
            "provider": resolved.channel,
            "surface": resolved.channel,
            "chatType": inbound.peer.kind,
            "from": inbound.to,
            "to": inbound.to,
            "accountId": resolved.account_id,
        },
    }
    if inbound.peer.kind != "direct":
        fields |= {"channel": resolved.channel, "groupId": inbound.peer.id}
        for name, value in (
            ("subject", inbound.group_subject),
            ("groupChannel", inbound.group_channel),
            ("space", inbound.group_space),
        ):
            if value:
                fields[name] = value
        fields["displayName"] = group_display_name(
            resolved.channel,
            id=inbound.peer.id,
            subject=inbound.group_subject,
            group_channel=inbound.group_channel,
            space=inbound.group_space,
        )
    return fields
