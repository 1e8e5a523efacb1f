"""The one way in: the steps that every message takes from the door it came through to its session's lane.

Channels call ``receive``: access → debounce → dedupe → route → gate, then ``process``. The other doors (``chat.send``,
``agent``, the HTTP endpoints) know their session and their caller. They call ``process``: commands → send policy →
reset → accept. The fields of ``Incoming`` decide what a step does for a message. ``Pipeline`` has the steps in this
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.cluster.claims import session_name
from openclaw.config.agents import main_session_key, user_zone
from openclaw.config.channels import message_prefix
from openclaw.config.schema import Config
from openclaw.extensions.api import MessageReceived
from openclaw.inbound.access import (
    ChannelSettings,
    Drop,
    Pair,
    channel_settings,
    decide_access,
    group_rules,
    names_of_people,
    sender_ids,
    sender_rights,
)
from openclaw.inbound.attachments import within_reach
from openclaw.inbound.commands.handle import handle_commands
from openclaw.inbound.commands.settings import elevated_allowed
from openclaw.inbound.debounce import Debouncer, debounce_ms, merged
from openclaw.inbound.dedupe import Dedupe, accepted_rows, dedupe_key, run_id_of
from openclaw.inbound.directives import Listening, is_abort, is_control_message, may_be_command
from openclaw.inbound.gate import (
    QUICKLY_SEARCHED,
    PendingHistory,
    gate,
    history_entry,
    history_key,
    history_limit,
    mention_patterns,
    needs_mention,
    pending_history,
    record_pending,
)
from openclaw.inbound.held import Held
from openclaw.inbound.incoming import (
    CommandContext,
    Continue,
    Facts,
    Handled,
    Incoming,
    SessionGone,
    SubagentCommands,
    current_session,
)
from openclaw.inbound.message import Inbound
from openclaw.inbound.names import ResolvedNames
from openclaw.inbound.notices import Notices
from openclaw.inbound.pairing import PairingStore, pairing_reply
from openclaw.inbound.prompt_text import (
    NOTHING_TO_ANSWER,
    HistoryEntry,
    assemble_prompt,
    channel_body,
    clean_text,
    display_name,
    envelope_options,
    from_label,
    group_facts,
    group_intro,
    is_empty,
    stamped,
)
from openclaw.inbound.transcription import Transcriber
from openclaw.pictures import SEEN_PICTURES
from openclaw.redact import redact
from openclaw.routing import Resolved, broadcast_routes, in_new_thread, reply_route, resolve_route
from openclaw.runs.accept import Submission
from openclaw.runs.queue_settings import queue_settings
from openclaw.runs.run import RunWatched
from openclaw.runs.runs import Runs
from openclaw.runs.session_change import undo_turn
from openclaw.sessions.entry import SessionEntry, group_display_name, is_blocked
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.prompt_prefix import system_line, without_wrappers
from openclaw.sessions.reset import Rotation, touched
from openclaw.storage import faults
from openclaw.storage.disk_errors import FOREVER, refusal_text, until_written
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import LedgerRow, MessageBody, ReasonCode, RejectedMessage, StoredImage
from openclaw.untrusted_text import disarmed, disarmed_message, short_id, text_changes

log = logging.getLogger("openclaw.inbound")
RECOVERY_S = 5.0
"""A start waits this long for messages that an earlier process held."""


class Blocked(msgspec.Struct, frozen=True, tag=True):
    """The session's send policy does not let the message through to the agent."""


class Empty(msgspec.Struct, frozen=True):
    """Nothing is left to answer."""


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The message is on disk, since now or since an earlier delivery."""

    submission: Submission
    side_replies: list[str] = []
    """The answers that commands inside the text got at once."""


class TakenElsewhere(msgspec.Struct, frozen=True, tag=True):
    """Another node has taken the message in, and answer its sender."""

    stopped: list[str] | None = None
    """The ids of the runs that the message stopped; None: it was no stop."""


Result: TypeAlias = Handled | Blocked | Empty | Accepted | TakenElsewhere
HandedOn: TypeAlias = Blocked | Accepted | TakenElsewhere
"""What the owner of a session tells the node that handed a message on. The owner itself has answered the sender."""


class OtherNodes(Protocol):
    """Hands messages on to the node that owns their session."""

    async def process(self, owner: str, message: Incoming) -> Result | None:
        """Let the owner process the message. Returns None if the owner is gone and this node owns the session now."""
        ...

    async def wake(self, owner: str, run_id: str, text: str, own_id: str) -> bool:
        """Let the owner begin the turn. Returns False if the owner cannot be reached."""
        ...

    async def note(self, owner: str, session_key: str, text: str) -> bool:
        """Let the owner note the text for the session's next turn. Returns False if the owner cannot be reached."""
        ...


class NoOtherNodes:
    """The other nodes where there is one node, which owns every session."""

    async def process(self, owner: str, message: Incoming) -> Result | None:
        return None

    async def wake(self, owner: str, run_id: str, text: str, own_id: str) -> bool:
        return False

    async def note(self, owner: str, session_key: str, text: str) -> bool:
        return False


class Pipeline:
    def __init__(
        self,
        runtime: Runtime,
        runs: Runs,
        pairing: PairingStore,
        names: ResolvedNames,
        notices: Notices,
        subagents: SubagentCommands,
        restart: Callable[[str], object],
        environ: Mapping[str, str],
        spawn: Callable[[Coroutine[Any, Any, Any]], Any],
        transcriber: Transcriber,
        others: OtherNodes,
    ) -> None:
        """``restart`` schedules a restart of the Gateway for a reason."""
        self._runtime = runtime
        self._runs = runs
        self._pairing = pairing
        self._names = names
        self._notices = notices
        self.commands = CommandContext(
            runtime=runtime,
            runs=runs,
            notices=notices,
            restart=restart,
            environ=environ,
            subagents=subagents,
            process=self.process,
        )
        self._spawn = spawn
        self._others = others
        self._dedupe = Dedupe(runtime.stores.ledger, runtime.clock)
        self._transcriber = transcriber
        self.held = Held(runtime, notices, self._accept_turn)
        self._recoveries: set[asyncio.Task[None]] = set()
        self._debouncer = Debouncer(
            self._accept_turn,
            self.held.retry_until_accepted,
            clock=runtime.clock,
            window_ms=self._window,
            is_control=is_control_message,
        )

    # From a channel: access → debounce → dedupe → route → gate

    async def receive(self, inbound: Inbound) -> bool:
        """Return True once the message is taken, False when access denies it. Raises when it could not be kept."""
        inbound = await self._with_known_names(inbound)
        allowed = await self._pairing.allowed(inbound.channel)
        match decide_access(inbound, self._settings(inbound), allowed):
            case Drop(reason):
                log.info("%s message of %s dropped: %s", inbound.channel, inbound.sender.id, reason)
                await self._reject(inbound, ReasonCode.ACCESS_DENIED, reason)
                return False
            case Pair(sender_id):
                await self._reject(inbound, ReasonCode.PAIRING)
                await self._offer_pairing(inbound, sender_id)
                return False
            case _:
                pass
        in_background = (
            self._transcriber.wants(inbound)
            or (inbound.told_once and not self._debouncer.may_wait(inbound))
            or self._debouncer.is_behind(inbound)
        )
        if in_background or self._window(inbound) > 0:
            # It is not accepted yet when this returns, so it is written down first. After a restart, ``recover``
            # takes it in.
            await self.held.persist(inbound)
        if in_background:
            turn = self._debouncer.release_now(inbound)
            if self._debouncer.is_full:
                await asyncio.wait([turn])
            return True
        turn = self._debouncer.add(inbound)
        if turn is not None:
            # A channel that is stopped now does not cut off a message that is half accepted.
            await asyncio.shield(turn)
            if self._window(inbound) > 0:
                await self.held.release([inbound])
        return True

    async def _accept_turn(self, items: list[Inbound]) -> None:
        """Accept the messages that the debouncer made a turn of: dedupe → route → gate → process.

        Dedupe comes this late, so that a message that could not be kept counts as new when it is delivered again.
        """
        new: list[Inbound] = []
        try:
            for item in items:
                if await self._dedupe.claim_if_new(item, may_be_joined=self._window(item) > 0):
                    new.append(item)
                else:
                    await self._reject(item, ReasonCode.REDELIVERED)
            if new:
                await self._accept_new(new)
        finally:
            for key in filter(None, map(dedupe_key, new)):
                self._dedupe.release(key)

    async def _accept_new(self, items: list[Inbound]) -> None:
        keys, config = tuple(filter(None, map(dedupe_key, items))), self._runtime.config.current
        inbound = merged(items)
        inbound = await self._transcriber.transcribed(inbound, resolve_route(config, inbound).agent_id)
        routes = broadcast_routes(config, inbound) or [resolve_route(config, inbound)]
        addressed = [await self._addressed(inbound, resolved, keys) for resolved in routes]
        messages = [message for message in addressed if message is not None]
        for message in messages:
            # The row of the last agent has the keys. If the disk fails before it, the message counts as new, and the
            # agents that have it know it by its run id.
            message.dedupe_keys = keys if message is messages[-1] else ()
            await self._notify_channel(message, await self.process(message))
        for key in () if messages else keys:
            await self._dedupe.remember(key)

    async def _addressed(self, inbound: Inbound, resolved: Resolved, keys: tuple[str, ...]) -> Incoming | None:
        """Apply the gate. Returns None for a message that is not meant for the agent; it is kept as context."""
        config, settings = self._runtime.config.current, self._settings(inbound)
        rights = sender_rights(inbound, settings, await self._pairing.allowed(inbound.channel), config.commands)
        patterns = mention_patterns(config, resolved.agent_id)
        listening = Listening(group=inbound.peer.kind != "direct", channel=inbound.channel, mentions=patterns)
        entry = await self._runtime.stores.sessions.get(resolved.agent_id, resolved.session_key)
        rules = group_rules(settings, inbound)
        mention_needed = needs_mention(entry, rules, inbound.channel, patterns)
        deciding = partial(
            gate,
            inbound,
            patterns,
            require_mention=mention_needed,
            authorised_command=bool(rights) and not inbound.spoken and is_control_message(inbound.text, listening),
        )
        quick = not patterns or len(inbound.text) <= QUICKLY_SEARCHED
        addressed = deciding() if quick else await asyncio.to_thread(deciding)
        if not addressed.process:
            history = history_key(inbound, settings, resolved.agent_id)
            limit = history_limit(config, settings)
            await record_pending(self._runtime.stores.ledger, history, history_entry(inbound), limit)
            position = f"{inbound.peer.kind} {inbound.peer.id}"
            log.info("%s message of %s in %s not answered: no mention", inbound.channel, inbound.sender.id, position)
            await self._reject(inbound, ReasonCode.NOT_ADDRESSED)
            return None
        if not rules.thread_starter:
            inbound = msgspec.structs.replace(inbound, thread_starter=None)
        if rules.auto_thread and inbound.can_start_thread and not is_control_message(inbound.text, listening):
            resolved = in_new_thread(inbound, resolved)
        facts = Facts(
            session=SessionRef(resolved.agent_id, resolved.session_key),
            channel=resolved.channel,
            chat_type=inbound.peer.kind,
            rights=rights,
            sender_ids=tuple(sender_ids(inbound)),
            sender_name=inbound.sender.name,
            sender_username=inbound.sender.username,
            chat=inbound.to,
            account_id=resolved.account_id,
            thread_id=resolved.new_thread or inbound.thread_id,
            parent_key=resolved.parent_key,
            mentioned=addressed.mentioned,
            mention_needed=mention_needed,
            has_media=bool(inbound.media),
            native=inbound.native_command,
            listening=listening,
        )
        apart = inbound.peer.kind == "direct" and resolved.session_key != main_session_key(config, resolved.agent_id)
        owned = {"ownerChat": "admin" in rights} if apart else {}
        return Incoming(
            facts=facts,
            text=inbound.text,
            door="channel",
            run_id=run_id_of(keys, resolved.session_key) if keys else str(uuid.uuid4()),
            source=resolved.channel,
            route=reply_route(inbound, resolved),
            inbound=inbound,
            settings=settings,
            policy_channel=inbound.channel,
            entry_fields=_entry_fields(inbound, resolved) | owned,
            reads_commands=not inbound.spoken,
        )

    async def _notify_channel(self, message: Incoming, result: Result) -> None:
        """Notify the channel what became of a message that starts no run."""
        match result:
            case Handled(later=later) if later is not None:
                # The command waits for a run or a model. Meanwhile the channel must hear other people, and a /stop.
                self._spawn(self.answer(message, result))
            case Handled():
                await self.answer(message, result)
            case Blocked():
                log.info("no run for %s: the session may not be sent to", message.facts.session.key)
                await self._notices.reply(message, None, ReasonCode.SEND_POLICY)
            case Empty():
                await self._notices.reply(message, NOTHING_TO_ANSWER, ReasonCode.NOTHING_WRITTEN)
            case Accepted() | TakenElsewhere():
                pass

    # From every door: commands → send policy → reset → accept

    async def process(self, message: Incoming) -> Result:
        """Commands → send policy → reset → accept. The messages of a session pass in the order in which they came."""
        admission, session = self._runs.admission, message.facts.session
        key = session.key
        owner = await self._runtime.stores.claims.claim(session_name(session.agent_id, key))
        if not owner.mine and (result := await self._others.process(owner.node, message)) is not None:
            return result
        if message.reads_commands and is_abort(message.text, message.facts.listening):
            await admission.wait_for_earlier(key)
            return await self._process(message)
        async with admission.admit(key):
            return await self._process(message)

    async def _process(self, message: Incoming) -> Result:
        if (existing := await self._existing_run(message)) is not None:
            return await self._came_again(message, existing)
        inbound, session, config = message.inbound, message.facts.session, self._runtime.config.current
        extensions = self._runtime.extensions
        if extensions.hooks["message_received"] and message.door != "program":
            extensions.message_received(_received(message))
        outcome = Continue(text=message.text)
        if message.reads_commands:
            # Words without a command come back unchanged.
            outcome = await handle_commands(message.facts, message.text, self.commands)
        if isinstance(outcome, Handled):
            return await self._write_down(message, outcome)
        # Commands come before the send policy, so that a command can lift the block.
        entry = await self._runtime.stores.sessions.get(session.agent_id, session.key)
        kind = inbound.peer.kind if inbound else None
        if is_blocked(config.session.send_policy, session.key, entry, channel=message.policy_channel, chat_type=kind):
            if inbound is None:
                # On a channel the ledger gets a row that says so.
                await self._reject_client(message, ReasonCode.SEND_POLICY)
            return Blocked()
        if extensions.hooks["before_accept"] and message.door != "program":
            said = await extensions.before_accept(_received(message))
            if said is not None:
                return await self._write_down(message, Handled(reply=said))
        for number, reply in enumerate(outcome.side_replies):
            if inbound is None:
                self._notices.show(session, f"{message.run_id}:{number}", reply)
            else:
                await self._notices.reply(message, reply, ReasonCode.COMMAND_INSIDE, ends=False)
        entry, rotation = await self._session(message)
        pending = PendingHistory()
        if inbound is None:
            body = self._client_body(message, outcome, entry)
        else:
            if inbound.peer.kind != "direct":
                position = history_key(inbound, message.settings, session.agent_id)
                limit = history_limit(config, message.settings)
                pending = await pending_history(self._runtime.stores.ledger, position, limit)
            # Who only mentions the agent asks about what was said before.
            if is_empty(inbound, outcome.text) and not (pending.entries and message.facts.mentioned):
                return Empty()
            body = await self._channel_body(message, inbound, outcome, entry, rotation, pending.entries)
        message.queue = outcome.queue or message.queue
        submission = await self._accept(message, body, pending.steps)
        if not submission.new:
            return await self._came_again(message, submission)
        return Accepted(submission, outcome.side_replies)

    async def _existing_run(self, message: Incoming) -> Submission | None:
        """Return what became of a message with the same run id, or None for a message that seems new.

        Only a possible command is looked up in the ledger, because commands are carried out before they are written
        down. For everything else ``accept`` finds the earlier message without a look-up of its own.
        """
        run = self._runs.index.get(message.run_id)
        row = run.row if run else None
        if row is None and message.reads_commands and may_be_command(message.text):
            row = await self._runtime.stores.ledger.by_run(message.run_id)
        if row is None:
            return None
        if run is not None and message.watcher is not None:
            run.emit(RunWatched(message.watcher))
        return Submission(row, False, False, run)

    async def _write_down(self, message: Incoming, handled: Handled) -> Handled | Accepted:
        """Write a command to the ledger, so that it is acknowledged only when it outlives a crash.

        A stop needs no row, because the ledger knows the runs that it stopped.
        """
        if handled.stopped is not None:
            return handled
        try:
            row, new = await self._notices.begin(message)
        except Exception:
            if handled.later is not None:
                handled.later.close()
            raise
        return msgspec.structs.replace(handled, row=row) if new else Accepted(Submission(row, False, False, None))

    async def _session(self, message: Incoming) -> tuple[SessionEntry, Rotation | None]:
        facts = message.facts
        if message.door == "program":
            entry = await self._runtime.stores.sessions.get(facts.session.agent_id, facts.session.key)
            return entry or SessionEntry(sessionId=""), None
        entry, rotation = await current_session(facts, self._runtime, self._runs, message.inbound)
        if rotation is not None and message.inbound is None:
            self._notices.announce(facts.session, rotation)
        elif rotation is not None:
            await self._notices.reply(message, rotation.marker_text, ReasonCode.NEW_SESSION, ends=False)
        return entry, rotation

    def _client_body(self, message: Incoming, outcome: Continue, entry: SessionEntry) -> MessageBody:
        """Make the body of the run: the prompt, the settings that the text asks for and what the caller wants."""
        text, now = outcome.text, self._runtime.clock.now_ms()
        # Views take the marks of the Gateway off a prompt, and would take those that the person wrote off with them.
        has_marks = message.door == "chat" and disarmed(text, of_owner=True) != text
        return msgspec.structs.replace(
            message.body,
            prompt=client_prompt(message, outcome, entry, self._runtime.config.current, now),
            internal=message.body.internal or outcome.greeting,
            written=text if has_marks else "",
            disarmed=text_changes([text]) if message.door == "chat" and not message.as_written else [],
            **self._wished(message, outcome.wishes),
        )

    async def _channel_body(
        self,
        message: Incoming,
        inbound: Inbound,
        outcome: Continue,
        entry: SessionEntry,
        rotation: Rotation | None,
        pending: tuple[HistoryEntry, ...],
    ) -> MessageBody:
        """Make the body of the run: the prompt, the settings that the text asks for and what came with the message."""
        config, agent_id = self._runtime.config.current, message.facts.session.agent_id
        inbound = await within_reach(self._runtime, inbound, message.facts.session, entry)
        rules, patterns = group_rules(message.settings, inbound), message.facts.listening.mentions
        intro = group_intro(inbound, always_on=not needs_mention(entry, rules, inbound.channel, patterns))
        begins = rotation is not None or not entry.get("systemSent")
        texts = [
            *([] if message.as_written or outcome.greeting else [outcome.text]),
            *([inbound.quoted.text] if inbound.quoted else []),
            *([inbound.thread_starter] if begins and inbound.thread_starter else []),
            *(reply.body for reply in pending),
        ]
        return msgspec.structs.replace(
            message.body,
            prompt=channel_prompt(
                inbound, outcome, entry, pending, config, agent_id, begins=begins, as_written=message.as_written
            ),
            disarmed=text_changes(map(clean_text, texts)),
            internal=outcome.greeting,
            images=[
                StoredImage(media.blob, media.mime_type)
                for media in inbound.media
                if media.blob and media.mime_type in SEEN_PICTURES
            ],
            message_ids=inbound.own_ids,
            sender=inbound.sender.id,
            mentioned=message.facts.mentioned,
            extra_system_prompt="\n\n".join(filter(None, (intro, rules.system_prompt))),
            skills=None if rules.skills is None else list(rules.skills),
            **self._wished(message, outcome.wishes),
        )

    def _wished(self, message: Incoming, wishes: MessageBody) -> dict[str, Any]:
        """Return the fields of the body that come from the text or follow from who wrote it."""
        matches = {name: value for name, value in msgspec.structs.asdict(wishes).items() if value}
        config, by_program = self._runtime.config.current, message.door == "program"
        return {
            **matches,
            "thinking": message.body.thinking or wishes.thinking,
            "elevated_allowed": not by_program and elevated_allowed(config, message.facts),
            "guest": message.by_guest,
        }

    async def _accept(self, message: Incoming, body: MessageBody, pending: tuple[int, ...] = ()) -> Submission:
        """Return once the message is on disk. A second message with the same run id starts nothing.

        ``pending`` is ``Accept.pending``.
        """
        runtime, session, now = self._runtime, message.facts.session, self._runtime.clock.now_ms()

        def touch(entry: SessionEntry | None) -> SessionEntry | None:
            if entry is None and message.existing:
                return None
            updated: dict[str, Any] = dict(entry or {})
            if "sessionId" not in updated:
                updated["sessionId"] = str(uuid.uuid4())
            updated["updatedAt"] = touched(updated, now, message.source)
            updated.update(message.entry_fields)
            return SessionEntry(**updated)  # type: ignore[typeddict-item]

        sessions = runtime.stores.sessions
        stored, written = await sessions.get(session.agent_id, session.key), None
        if stored is None or not (stored.get("lastChannel") or stored.get("chatType") or stored.get("systemSent")):
            # The message waits for this write. Otherwise a power cut could keep it and lose the id of its new session.
            entry, written = await sessions.write(session.agent_id, session.key, touch)
        else:
            entry = await sessions.update(session.agent_id, session.key, touch, durable=False)
        if entry is None:
            raise SessionGone(session.key)
        images = [StoredImage(await runtime.stores.blobs.put(image.data), image.mime_type) for image in message.images]
        body = msgspec.structs.replace(body, images=[*body.images, *images])
        channel = message.route.channel or message.source
        settings = queue_settings(runtime.config.current.messages.queue, entry, channel, message.queue)
        accepted = message.for_ledger(entry["sessionId"], body, message.run_id, pending)
        submission = await self._runs.submit(accepted, settings, message.watcher, written)
        faults.point("ack")
        return submission

    async def answer(self, message: Incoming, handled: Handled) -> str | None:
        """Wait for the answer of a command, say it and return it. A command that fails ends with a notice."""
        try:
            reply = handled.reply if handled.later is None else await handled.later
        except Fenced:
            raise
        except Exception as error:
            if handled.row is not None:
                why = refusal_text(error) or str(error) or type(error).__name__
                notice = f"⚠️ The command failed: {redact(why)}"
                await self._notices.end(handled.row, notice, ReasonCode.COMMAND_FAILED, state="failed")
            raise
        reason = ReasonCode.COMMAND if reply else ReasonCode.COMMAND_UNANSWERED
        if handled.row is None:
            await self._notices.reply(message, reply, reason)
        else:
            await self._notices.end(handled.row, reply, reason)
        return reply

    async def wake(self, run_id: str, text: str, own_id: str) -> None:
        """Begin a turn about something that the run ``run_id`` began and that has ended now.

        The turn belongs to the session of that run and is answered where that run was. Only the last step applies,
        because the message of that run has passed the others.
        """
        row = await self._runtime.stores.ledger.by_run(run_id)
        if row is None:
            return
        claims, name = self._runtime.stores.claims, session_name(row.agent_id, row.session_key)
        while not (owner := await claims.claim(name)).mine:
            if await self._others.wake(owner.node, run_id, text, own_id):
                return
            claims.forget_owner(name)
        zone = user_zone(self._runtime.config.current)
        message = Incoming(
            facts=Facts(session=SessionRef(row.agent_id, row.session_key)),
            text=system_line(disarmed(text), self._runtime.clock.now_ms(), zone),
            door="program",
            run_id=own_id,
            source=row.source,
            route=row.route,
            reads_commands=False,
        )
        body = msgspec.structs.replace(
            row.body.overrides(),
            prompt=message.text,
            internal=True,
            # The prompt of the session keeps its bytes, and the agent knows that it speaks to a group.
            extra_system_prompt=row.body.extra_system_prompt,
            skills=row.body.skills,
        )
        async with self._runs.admission.admit(row.session_key):
            await self._accept(message, body)

    async def accept_forwarded(self, message: Incoming) -> Result:
        """Accept a message that another node forwarded. Replies to channel messages leave from here."""
        if message.inbound is not None:
            patterns = mention_patterns(self._runtime.config.current, message.facts.session.agent_id)
            listening = msgspec.structs.replace(message.facts.listening, mentions=patterns)
            message.facts = msgspec.structs.replace(message.facts, listening=listening)
        result = await self.process(message)
        if message.inbound is not None:
            await self._notify_channel(message, result)
        return result

    # What else a channel tells

    async def admits(self, inbound: Inbound) -> bool:
        """Return whether the sender of a message may write. Channels ask before they fetch its files."""
        inbound = await self._with_known_names(inbound)
        allowed = await self._pairing.allowed(inbound.channel)
        return not isinstance(decide_access(inbound, self._settings(inbound), allowed), Drop | Pair)

    async def notice(self, inbound: Inbound) -> None:
        """Store a note that the agent gets at its next turn, such as a reaction."""
        inbound = await self._with_known_names(inbound)
        if await self.admits(inbound):
            resolved = resolve_route(self._runtime.config.current, inbound)
            claims, key = self._runtime.stores.claims, resolved.session_key
            owner = await claims.owner(session_name(resolved.agent_id, key))
            if owner in (None, claims.node) or not await self._others.note(owner, key, inbound.text):
                self._runtime.notes.add(key, inbound.text)

    async def edited(self, inbound: Inbound) -> None:
        """Process a person's edit of an earlier message.

        If nobody has spoken since, its turn is withdrawn and runs again with the new text. Else the agent learns it
        at its next turn. A message that was not meant for the agent is checked again. Not every platform asks who
        changes a message, so nobody changes those of others here.
        """
        inbound = await self._with_known_names(inbound)
        if (waiting := self._debouncer.change(inbound)) is not None:
            await self.held.change(waiting)
            return
        row = await self._turn_of(inbound)
        if row is not None and row.body.sender not in ("", inbound.sender.id):
            log.warning(
                "%s: %s cannot change message %s, which another person wrote",
                inbound.channel,
                inbound.sender.id,
                inbound.message_id,
            )
        elif row is None:
            notes = await self._runtime.stores.ledger.rejected([inbound.message_id])
            here = [note for note in notes if note.channel == inbound.channel and note.chat == inbound.to]
            if any(note.code is ReasonCode.NOT_ADDRESSED for note in here):
                await self.receive(inbound)
        elif (row.body.written or without_wrappers(row.body.prompt or "")).strip() == inbound.text.strip():
            pass  # The platform reports changes that are none of the text too.
        elif await self._withdraw(inbound, row):
            await self.receive(inbound)
        else:
            words = f"message {short_id(inbound.message_id)} was changed to (untrusted): {inbound.text}"
            await self.notice(msgspec.structs.replace(inbound, text=words))

    async def deleted(self, inbound: Inbound) -> None:
        """Process the deletion of a message. If nobody has spoken since, its turn goes too."""
        if (waiting := self._debouncer.find(inbound)) is not None:
            # The disk comes first. If it fails, the next attempt still finds the message here.
            await self.held.release([waiting])
            if self._debouncer.withdraw(inbound):
                return
        row = await self._turn_of(inbound)
        if row is not None and not await self._withdraw(inbound, row):
            words = f"message {short_id(inbound.message_id)} was taken back by its sender"
            await self.notice(msgspec.structs.replace(inbound, text=words))

    async def _turn_of(self, inbound: Inbound) -> LedgerRow | None:
        """Return the message that a platform speaks of, if a run was made of it and its sender may still write."""
        if not await self.admits(inbound):
            return None
        rows = await accepted_rows(self._runtime.stores.ledger, inbound)
        return rows[0] if rows and not rows[0].body.command and rows[0].body.prompt is not None else None

    async def _withdraw(self, inbound: Inbound, row: LedgerRow) -> bool:
        """Withdraw the turn of one message. Messages that share a turn with others stay."""
        if row.body.message_ids != [inbound.message_id]:
            return False
        return await undo_turn(self._runtime, self._runs, row)

    # Rejected messages

    async def _offer_pairing(self, inbound: Inbound, sender_id: str) -> None:
        request = await self._pairing.ask(inbound.channel, sender_id, {"name": inbound.sender.name})
        if request is None or not request.new:
            return
        resolved = resolve_route(self._runtime.config.current, inbound)
        facts = Facts(session=SessionRef(resolved.agent_id, resolved.session_key), channel=resolved.channel)
        # The words of a stranger are not kept.
        message = Incoming(
            facts=facts,
            text="",
            door="channel",
            run_id=str(uuid.uuid4()),
            source=resolved.channel,
            route=reply_route(inbound, resolved),
        )
        text = pairing_reply(inbound.channel, sender_id, request.code)
        await self._notices.reply(message, text, ReasonCode.PAIRING)

    async def _reject(self, inbound: Inbound, code: ReasonCode, detail: str = "") -> None:
        """Record the rejection of a channel message for ``openclaw why``, without its text."""
        for message_id in inbound.own_ids:
            await self._remember(
                RejectedMessage(
                    message_id=message_id,
                    channel=inbound.channel,
                    chat=inbound.to or inbound.peer.id,
                    sender=inbound.sender.id,
                    code=code,
                    detail=detail,
                )
            )

    async def _reject_client(self, message: Incoming, code: ReasonCode) -> None:
        await self._remember(RejectedMessage(message_id=message.run_id, channel=message.source, code=code))

    async def _came_again(self, message: Incoming, known: Submission) -> Accepted:
        """Return the ledger knows the message already. It is remembered that it came again."""
        if message.inbound is not None:
            await self._reject(message.inbound, ReasonCode.REDELIVERED)
        elif message.door != "program":
            await self._reject_client(message, ReasonCode.REDELIVERED)
        return Accepted(known)

    async def _remember(self, note: RejectedMessage) -> None:
        try:
            await self._runtime.stores.ledger.note_rejected(note)
        except Exception as error:
            log.warning("the rejection of %s message %s is not recorded: %s", note.channel, note.message_id, error)

    # Start and end

    async def recover(self, account: tuple[str, str] | None = None) -> None:
        """End the commands that the last Gateway left, and resumes the messages that waited for more text there.

        ``account`` is a channel and its account that this node has just gained: only its waiting messages are resumed.

        It returns after ``RECOVERY_S`` at the latest. If the ledger cannot be read or written, whatever the error, it
        is tried again in the background. Later messages of the same sender wait behind those that were found.
        """
        recovery = asyncio.create_task(self._recover(account), name="recover messages")
        self._recoveries.add(recovery)
        recovery.add_done_callback(self._recoveries.discard)
        await asyncio.wait([recovery], timeout=RECOVERY_S)

    async def _recover(self, account: tuple[str, str] | None) -> None:
        pause, take_up = self._runtime.clock.sleep, partial(self.held.resume, self._debouncer.release_now, account)
        with contextlib.suppress(Fenced):  # Another node goes on with them.
            if account is None:
                await until_written(self._notices.end_interrupted, pause, unknown_tries=FOREVER)
            if tasks := await until_written(take_up, pause, unknown_tries=FOREVER):
                await asyncio.wait(tasks)

    async def close(self) -> None:
        """Take in what still waits for more words, so that it reaches the ledger."""
        for recovery in self._recoveries:
            recovery.cancel()
        self.held.close()
        self._transcriber.close()
        await self._debouncer.close()

    async def _with_known_names(self, inbound: Inbound) -> Inbound:
        config, channel, settings = self._runtime.config.current, inbound.channel, self._settings(inbound)
        people = self._runtime.prompting.derived.of(
            config, ("names", channel), lambda: names_of_people(config, channel)
        )
        return await self._names.recognise(inbound, settings, people)

    def _settings(self, inbound: Inbound) -> ChannelSettings:
        config, channel, account = self._runtime.config.current, inbound.channel, inbound.account_id
        key = ("channel settings", channel, account)
        return self._runtime.prompting.derived.of(config, key, lambda: channel_settings(config, channel, account))

    def _window(self, inbound: Inbound) -> int:
        return debounce_ms(self._runtime.config.current.messages.inbound, inbound.channel)


def client_prompt(message: Incoming, outcome: Continue, entry: SessionEntry, config: Config, now_ms: int) -> str:
    """Return the prompt of a message that came through no channel. That of a program is its text as it stands."""
    if message.door == "program" or outcome.greeting:
        return outcome.text
    text = outcome.text if message.as_written else disarmed_message(outcome.text)
    base = stamped(text, now_ms, config.agents.defaults.user_timezone)
    return assemble_prompt(base, message_id=message.message_id, aborted=entry.get("abortedLastRun", False))


def channel_prompt(
    inbound: Inbound,
    outcome: Continue,
    entry: SessionEntry,
    pending: Sequence[HistoryEntry],
    config: Config,
    agent_id: str,
    *,
    begins: bool,
    as_written: bool = False,
) -> str:
    """Return the prompt of a message from a channel. ``begins`` says that the session has said nothing yet.

    ``as_written`` says that the owner wrote it in a direct chat.
    """
    base = outcome.text
    if not outcome.greeting:
        prefix = message_prefix(config, inbound.channel, inbound.account_id, agent_id)
        reply = msgspec.structs.replace(inbound, text=f"{prefix} {base}".strip() if prefix else base)
        base = channel_body(
            reply,
            envelope_options(config),
            previous_ms=entry.get("updatedAt"),
            history=pending,
            as_written=as_written,
        )
    return assemble_prompt(
        base,
        message_id=inbound.message_id,
        aborted=entry.get("abortedLastRun", False),
        untrusted=(*(group_facts(inbound) if begins or _is_renamed(inbound, entry) else ()), *inbound.untrusted),
        thread_starter=(inbound.thread_starter or "") if begins else "",
        media=inbound.media,
    )


def _is_renamed(inbound: Inbound, entry: SessionEntry) -> bool:
    """Return whether the group has another name than at its last message."""
    now = _place_names(inbound)
    return any(name in now and entry.get(name) != now[name] for name in ("subject", "groupChannel"))


def _place_names(inbound: Inbound) -> dict[str, str]:
    supplied = {"subject": inbound.group_subject, "groupChannel": inbound.group_channel, "space": inbound.group_space}
    return {field: name for field, value in supplied.items() if (name := display_name(value))}


def _received(message: Incoming) -> MessageReceived:
    """Return the message as extensions see it."""
    facts = message.facts
    return MessageReceived(
        agent_id=facts.session.agent_id,
        session_key=facts.session.key,
        channel=message.source,
        text=message.text,
        sender_id=facts.sender_ids[0] if facts.sender_ids else "",
        sender_name=facts.sender_name or "",
        group=facts.group,
        rights=facts.rights,
        run_id=message.run_id,
    )


def _entry_fields(inbound: Inbound, resolved: Resolved) -> dict[str, Any]:
    """Return what the message says about its session. The last route is for listings; replies do not use it.

    The one session of the global scope belongs to no group, even if the message comes from one.
    """
    kind = "direct" if resolved.session_key == "global" else inbound.peer.kind
    context: dict[str, Any] = {"channel": resolved.channel, "to": inbound.to, "accountId": resolved.account_id}
    if (thread := resolved.new_thread or inbound.thread_id) is not None:
        context["threadId"] = thread
    fields: dict[str, Any] = {
        "chatType": kind,
        "deliveryContext": context,
        "lastChannel": resolved.channel,
        "lastTo": inbound.to,
        "lastAccountId": resolved.account_id,
        "origin": {
            "label": from_label(inbound),
            "provider": resolved.channel,
            "surface": resolved.channel,
            "chatType": kind,
            "from": inbound.to,
            "to": inbound.to,
            "accountId": resolved.account_id,
        },
    }
    if thread is not None:
        fields["origin"]["threadId"] = thread
    if kind != "direct":
        fields |= {"channel": resolved.channel, "groupId": resolved.new_thread or inbound.peer.id}
        names = _place_names(inbound)
        fields |= names
        fields["displayName"] = group_display_name(
            resolved.channel,
            id=inbound.peer.id,
            subject=names.get("subject"),
            group_channel=names.get("groupChannel"),
            space=names.get("space"),
        )
    return fields
