"""What a command is given: the facts of the message, and everything it may do, on one screen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.agent.spend.budget import Limit
from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.inbound.command_text import Listening
from openclaw.inbound.commands.registry import Command
from openclaw.inbound.directives import ExecField
from openclaw.models.base import Model
from openclaw.models.catalogue import Catalogue
from openclaw.outbound.usage_text import money
from openclaw.runs.compactions import Compactions
from openclaw.runs.queue import QueueWish
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef

Decision: TypeAlias = Literal["allow-once", "allow-always", "deny"]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote, from where, to which session. Decided before; nothing here is decided again."""

    session: SessionRef
    channel: str = "webchat"
    chat_type: str = "direct"
    """``direct``, ``group``, ``channel`` or ``room``."""
    authorised: bool = False
    """May use commands and directives."""
    owner: bool = False
    """May use what is reserved to owners."""
    approver: bool = False
    """May decide whether a command that waits for a yes is run."""
    sender_ids: tuple[str, ...] = ()
    """Stable ids, best first."""
    sender_name: str | None = None
    sender_username: str | None = None
    chat: str | None = None
    """How the conversation is addressed on its channel."""
    account_id: str | None = None
    thread_id: str | int | None = None
    mentioned: bool = False
    has_media: bool = False
    native: bool = False
    """A command from the platform's own menu."""
    listening: Listening = Listening()

    @property
    def group(self) -> bool:
        return self.chat_type != "direct"


def operator_facts(session: SessionRef, *, has_media: bool = False, approver: bool = False) -> Facts:
    """Whoever has the Gateway's own secret is its owner, and speaks as in its own chat."""
    return Facts(session=session, authorised=True, owner=True, approver=approver, mentioned=True, has_media=has_media)


class Stopped(msgspec.Struct, frozen=True):
    run_ids: list[str] = []
    children: int = 0
    """Sub-agents that were stopped with it."""


class Waiting(msgspec.Struct, frozen=True):
    run_id: str
    text: str
    """What the person wrote, without wrappers."""
    since_ms: int


class QueueView(msgspec.Struct, frozen=True):
    running: Waiting | None = None
    waiting: list[Waiting] = []


class EarlierSession(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    ended_at: int
    reason: str = ""
    title: str = ""
    """From what was said in it."""


class Cost(msgspec.Struct, frozen=True):
    """US dollars; None: unknown. ``partial``: some answers had no price."""

    dollars: float | None
    partial: bool = False

    @property
    def text(self) -> str:
        return "n/a" if self.dollars is None else money(self.dollars) + (" (partial)" if self.partial else "")


class CommandServices(Protocol):
    """All that commands may do. The Gateway implements it; a test's stand-in fits on a page."""

    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> Config: ...
    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def compactions(self) -> Compactions:
        """Condensing the conversation, taking that back, and pinned texts."""
        ...

    # The session
    async def entry(self, session: SessionRef) -> SessionEntry | None: ...
    async def patch_session(self, session: SessionRef, changes: dict[str, Any]) -> None:
        """Sets fields of the entry, made if there is none; a value of None removes the field."""
        ...

    async def use_session(self, facts: Facts) -> str | None:
        """Before a setting is stored: a session that has expired gives way to the new one the setting is meant for.

        Returns the line that tells of it, where the chat does not show it by itself.
        """
        ...

    async def rotate_session(self, session: SessionRef, reason: Literal["new", "reset"]) -> None:
        """Stops what runs, drops what waits, and gives the key a new session id."""
        ...

    async def earlier_sessions(self, session: SessionRef) -> Sequence[EarlierSession]:
        """Newest first, as ``resume_session`` counts them."""
        ...

    async def resume_session(self, session: SessionRef, wanted: str | None) -> str:
        """Back to an earlier session of this key: the newest, or by number or id. Returns the line for the chat.

        ``NotResumable`` says why not.
        """
        ...

    def note(self, session: SessionRef, text: str) -> None:
        """A line the agent sees at its next turn."""
        ...

    # Runs
    async def stop(self, session: SessionRef) -> Stopped:
        """Stops the running one, drops the waiting ones, stops the children; remembers that it was aborted."""
        ...

    def queue(self, session: SessionRef) -> QueueView: ...
    async def drop_waiting(self, session: SessionRef, run_id: str) -> bool: ...
    async def run_next(self, session: SessionRef, run_id: str) -> bool:
        """Moves a waiting message to the front."""
        ...

    async def why(self, session: SessionRef, ref: str | None) -> list[str]:
        """The story of a message of this session, in sentences; the last one without ``ref``. Empty: none found.

        Messages of other sessions do not exist here: a chat must not tell what was said in another.
        """
        ...

    # Facts
    def auth_label(self, model: Model, agent_id: str) -> str:
        """Where the model's key comes from, never the key."""
        ...

    async def auth_profiles(self, model: Model, agent_id: str) -> Sequence[str]:
        """Ids of stored credentials that fit the model."""
        ...

    def runtime(self, session: SessionRef) -> str:
        """``direct``, or the sandbox commands run in."""
        ...

    async def limits(self, session: SessionRef) -> list[Limit]:
        """The agent's limits on spending and how far they are used up; empty: none are set."""
        ...

    async def prompt_report(self, session: SessionRef) -> dict[str, Any]:
        """Sizes of what the last run gave the model, or of what a run would give it now."""
        ...

    async def context_window(self, session: SessionRef) -> int | None:
        """Of the model the session uses, as session lists show it."""
        ...

    async def session_cost(self, session: SessionRef) -> Cost:
        """Of the session alone."""
        ...

    async def costs(self, session: SessionRef) -> dict[str, Cost]:
        """By the label to show: ``Session``, ``Today``, ``Last 30d``."""
        ...

    # Approvals
    def decide(self, ref: str, decision: Decision, by: str) -> str:
        """Answers an open question about a command, and returns the command. ``LookupError`` says why not."""
        ...

    # The Gateway
    async def read_config(self, path: str | None) -> Any:
        """A value of the configuration with secrets hidden; all of it without a path. ValueError: no such path."""
        ...

    async def write_config(self, path: str, value: Any) -> None:
        """ValueError says what was wrong with the path or the value."""
        ...

    async def remove_config(self, path: str) -> None: ...
    async def restart(self, reason: str) -> None: ...


class CommandContext(msgspec.Struct, frozen=True, kw_only=True):
    command: Command
    args: str
    """The words after the command, in the case they were written."""
    facts: Facts
    entry: SessionEntry | None
    services: CommandServices

    @property
    def session(self) -> SessionRef:
        return self.facts.session

    def setting(self, name: str) -> Any:
        return (self.entry or {}).get(name)


# What comes of a message


class Hints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Wishes for one run. Nothing of it is stored with the session."""

    thinking: str | None = None
    verbose: str | None = None
    reasoning: str | None = None
    elevated: str | None = None
    elevated_allowed: bool = False
    """Whether the writer may have elevated commands at all."""
    exec: dict[ExecField, str] = {}
    model: str | None = None
    """``provider/model``."""
    auth_profile: str | None = None
    queue: QueueWish | None = None


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """The message was a command; no model is asked."""

    reply: str | None = None
    """None: silence, by decision."""
    later: Coroutine[Any, Any, str | None] | None = None
    """The reply, when it takes longer than anyone should wait for."""
    stopped: Stopped | None = None
    """Set when the message stopped the session's runs."""


class Continue(msgspec.Struct, frozen=True, kw_only=True):
    """The message goes on to the agent."""

    text: str
    hints: Hints = Hints()
    side_replies: list[str] = []
    """Sent at once, before the agent answers."""
    new_session: bool = False
    """The session was replaced on the way: the text stands alone, without history or envelope."""
    greeting: bool = False
    """``text`` is ours, not the person's."""


Outcome: TypeAlias = Handled | Continue
Handler: TypeAlias = Callable[[CommandContext], Awaitable["str | Outcome | None"]]
"""A text is the reply. None: not for this handler after all; the message is looked at further."""
