"""A message on its way in: its facts, what a command is given to work with, and what comes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.schema import Config
from openclaw.inbound.access import ChannelSettings
from openclaw.inbound.attachments import Image
from openclaw.inbound.directives import Listening
from openclaw.inbound.message import Inbound
from openclaw.messages import Route
from openclaw.models.catalogue import Catalogue
from openclaw.rights import NO_RIGHTS, Right
from openclaw.runs.queue_settings import QueueOverrides
from openclaw.runs.runs import Runs
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import MessageFacts, Rotation, ensure_fresh
from openclaw.storage.message_ledger import Accept, LedgerRow, MessageBody

if TYPE_CHECKING:
    from openclaw.inbound.notices import Notices


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote, from where, and to which session. The steps before the commands have decided all of it."""

    session: SessionRef
    channel: str = "webchat"
    chat_type: str = "direct"
    """``direct``, ``group``, ``channel`` or ``room``."""
    rights: frozenset[Right] = NO_RIGHTS
    """What the sender may do besides talking. Commands and settings in the text need the right of their effect."""
    client: bool = False
    """Whether a client of the Gateway sent it. Only a client learns which scope it lacks."""
    sender_ids: tuple[str, ...] = ()
    """The sender's stable ids. The best one comes first."""
    sender_name: str | None = None
    sender_username: str | None = None
    chat: str | None = None
    """The address of the conversation on its channel."""
    account_id: str | None = None
    thread_id: str | int | None = None
    parent_key: str | None = None
    """The session that a new session of a thread begins with."""
    mentioned: bool = False
    """Whether the message mentions the agent."""
    mention_needed: bool = True
    """Whether a message of this group is answered only if it mentions the agent."""
    has_media: bool = False
    native: bool = False
    """Whether the command was chosen from the platform's own menu."""
    listening: Listening = Listening()

    @property
    def group(self) -> bool:
        return self.chat_type != "direct"


def client_facts(session: SessionRef, rights: frozenset[Right], **more: Any) -> Facts:
    """Return the facts of a message from a client of the Gateway, which may do what its scopes allow."""
    return Facts(session=session, rights=rights, client=True, mentioned=True, **more)


Process: TypeAlias = "Callable[[Incoming], Awaitable[object]]"
"""Submits a message to the pipeline (``Pipeline.process``)."""


class SubagentCommands(Protocol):
    """The sub-agents of sessions, for chat commands."""

    async def answer(self, session: SessionRef, args: str, message_id: str, *, guest: bool, process: Process) -> str:
        """Answer ``/subagents``. ``guest`` tells whether a guest wrote it. A message to a sub-agent is processed."""
        ...

    async def stop_all(self, session_key: str) -> int:
        """Stop the sub-agents of a session. Returns how many were at work."""
        ...


class CommandContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the Gateway that commands work with. There is one for all messages."""

    runtime: Runtime
    runs: Runs
    notices: Notices
    restart: Callable[[str], object]
    """Schedules a restart of the Gateway. It takes the reason."""
    environ: Mapping[str, str]
    subagents: SubagentCommands
    process: Process

    @property
    def config(self) -> Config:
        return self.runtime.config.current

    @property
    def catalogue(self) -> Catalogue:
        return self.runtime.models.catalogue()

    async def entry(self, session: SessionRef) -> SessionEntry | None:
        return await self.runtime.stores.sessions.get(session.agent_id, session.key)


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """The message was a command. No model is asked."""

    reply: str | None = None
    """None means that the message is not answered."""
    later: Coroutine[Any, Any, str | None] | None = None
    """Makes the reply of a slow command. The next message does not wait for it."""
    row: LedgerRow | None = None
    """The command in the ledger, where it stands before it is acknowledged. A word that stops runs is not there."""
    stopped: list[str] | None = None
    """The ids of the runs that the message stopped; None: it was no stop."""


class Continue(msgspec.Struct, frozen=True, kw_only=True):
    """The message goes on to the agent."""

    text: str
    wishes: MessageBody = MessageBody()
    """The settings that the text asks for. They count for this run only."""
    queue: QueueOverrides | None = None
    side_replies: list[str] = []
    """These are sent at once, before the agent answers."""
    greeting: bool = False
    """``text`` was written by the Gateway and not by the sender."""


Outcome: TypeAlias = Handled | Continue
Handler: TypeAlias = Callable[[CommandContext, Facts, str], Awaitable["str | Outcome | None"]]
"""Carries out a command. The text is what stands after the command, in the case it was written.

It returns the reply, or an outcome. None: the message is not for this handler, and is looked at further.
"""


Door: TypeAlias = Literal["channel", "chat", "program"]
"""Where a message came in.

- ``channel``: a messaging platform. The prompt carries an envelope, and what the Gateway says is delivered there.
- ``chat``: ``chat.send`` or ``agent``, by a client of the Gateway. The prompt carries a time stamp.
- ``program``: an HTTP client or the Gateway itself. The text is the prompt as it stands.
"""


class SessionGone(LookupError):
    """The session of a message that must exist does not exist (any more)."""


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
    route: Route
    """Where the reply goes."""
    inbound: Inbound | None = None
    """The message as its channel handed it in. It is None at the other doors."""
    settings: ChannelSettings = ChannelSettings(channel="")
    """The settings of the account that received ``inbound``."""
    reads_commands: bool = True
    """Whether commands and settings in the text are meant as such."""
    policy_channel: str | None = None
    """The channel that the rules of the send policy see. None stands for the session's own."""
    message_id: str = ""
    """The id that the model is shown."""
    body: MessageBody = MessageBody()
    """What the caller wants for this run. The steps add the prompt and the settings that the text asks for."""
    images: list[Image] = []
    queue: QueueOverrides | None = None
    """How the message waits behind a run. It overrides the session's queue settings."""
    entry_fields: dict[str, Any] = {}
    """What the message says about its session: channel, label, who spawned it."""
    dedupe_keys: tuple[str, ...] = ()
    """The keys of the channel messages that it was made of."""
    watcher: str | None = None
    """The connection that follows the run."""
    existing: bool = False
    """The session must exist. Otherwise a message to a new session makes it."""

    @property
    def by_guest(self) -> bool:
        """Whether somebody other than the owner wrote it or reads the answer: on a channel, or through a node.

        The session of a group says by itself that others take part. The one session of the global scope does not.
        """
        facts = self.facts
        of_owner = "admin" in facts.rights and not (facts.group and facts.session.key == "global")
        return self.body.guest or (self.door == "channel" and not of_owner)

    @property
    def as_written(self) -> bool:
        """Whether the owner wrote it in a direct chat. Such text reaches the model as it was written."""
        return self.door != "program" and not self.facts.group and not self.by_guest

    def for_ledger(self, session_id: str, body: MessageBody, run_id: str, pending: tuple[int, ...] = ()) -> Accept:
        """Return what the ledger keeps of the message. ``pending`` is ``Accept.pending``.

        If ``run_id`` is not the message's own, the row is for an extra line of the Gateway, such as that a new session
        began. Such a row does not get the channel's ids, because they belong to the message's own row.
        """
        session = self.facts.session
        if self.inbound is not None and run_id == self.run_id and not body.message_ids:
            body = msgspec.structs.replace(body, message_ids=self.inbound.own_ids)
        return Accept(
            run_id=run_id,
            dedupe_key=f"{self.source}|{run_id}",
            agent_id=session.agent_id,
            session_key=session.key,
            session_id=session_id,
            source=self.source,
            route=self.route,
            body=body,
            dedupe_keys=self.dedupe_keys if run_id == self.run_id else (),
            pending=pending,
        )


async def current_session(
    facts: Facts, runtime: Runtime, runs: Runs, inbound: Inbound | None = None
) -> tuple[SessionEntry, Rotation | None]:
    """Return the session that a new message belongs to. A new session replaces one that has expired."""
    session = facts.session
    details = MessageFacts(
        channel=facts.channel,
        chat_type=facts.chat_type,
        thread=facts.thread_id is not None,
        thread_label=inbound.thread_label if inbound else None,
        parent_key=facts.parent_key,
    )
    now = runtime.clock.now_ms()
    busy = partial(runs.occupied, session.key)
    return await ensure_fresh(runtime, session.agent_id, session.key, details, now, busy=busy)
