"""What somebody may do: one vocabulary for every door. Clients have scopes, people on channels are owners or guests.

``Right`` is about a message: what its sender may command. ``Caller`` is about a run: whose run it is, and so what its
prompt shows and its tools reach.

A right names an effect. Whoever causes the effect needs the right, whether a method, a parameter of a method, a command
in a text or a setting inside it causes it. The rules are three tables: methods, their parameters and events in
``gateway/auth/authorise.py``, commands in ``inbound/commands/registry.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

Right: TypeAlias = Literal["read", "write", "session", "admin", "approvals", "pairing", "node"]
"""
- ``read``: to see sessions, messages and the state of the Gateway.
- ``write``: to send messages, and to stop what runs.
- ``session``: to change the settings of a conversation, or to reset it. A client needs ``operator.admin`` for it.
  A person on a channel who may give commands has it in the own conversation.
- ``admin``: what only the owner may: the configuration, and the rules under which commands run.
- ``approvals``: to answer when the agent asks whether it may run a command.
- ``pairing``: to let devices and people in.
- ``node``: what only a node does.
"""

ADMIN = "operator.admin"
READ = "operator.read"
WRITE = "operator.write"
PAIRING = "operator.pairing"
APPROVALS = "operator.approvals"

NO_RIGHTS: frozenset[Right] = frozenset()
OWNER: frozenset[Right] = frozenset({"read", "write", "session", "admin", "approvals", "pairing"})
GUEST: frozenset[Right] = frozenset({"read", "write", "session"})
"""A person on a channel who may give commands and is not the owner."""
_NODE: frozenset[Right] = frozenset({"node"})
_OF_SCOPE: dict[str, frozenset[Right]] = {
    ADMIN: OWNER,
    READ: frozenset({"read"}),
    WRITE: frozenset({"read", "write"}),
    PAIRING: frozenset({"pairing"}),
    APPROVALS: frozenset({"approvals"}),
}


def rights_of_client(role: str, scopes: Iterable[str]) -> frozenset[Right]:
    """Return the rights of a connection. A node has no others than a node's, whatever scopes it names."""
    if role == "node":
        return _NODE
    if role != "operator":
        return NO_RIGHTS
    return NO_RIGHTS.union(*(_OF_SCOPE.get(scope, NO_RIGHTS) for scope in scopes))


def rights_of_person(*, authorised: bool, owner: bool) -> frozenset[Right]:
    """Return the rights of a channel sender. Without the right to commands they may only talk."""
    if not authorised:
        return NO_RIGHTS
    return OWNER if owner else GUEST


def scope_for(right: Right) -> str:
    """Return the scope that gives a client this right."""
    return ADMIN if right in ("session", "admin") else f"operator.{right}"


# Whose run it is

CallerKind: TypeAlias = Literal["owner", "job", "guest", "group", "hook", "node"]
"""
- ``owner``: only the owner can have caused the run.
- ``job``: a scheduled job of the owner.
- ``guest``: somebody else on a channel wrote the message, or the session is a direct chat with somebody else.
- ``group``: several people write in the session.
- ``hook``: a webhook wrote the message.
- ``node``: a device that is connected as a node wrote the message.
"""

Privilege: TypeAlias = Literal[
    "memory in prompt", "curated memory", "notes", "all sessions", "owner files", "owner tools", "devices"
]
"""
- ``memory in prompt``: the system prompt shows ``MEMORY.md`` and the owner's numbers.
- ``curated memory``: the memory tools show ``MEMORY.md``.
- ``notes``: the memory tools show ``memory/`` and ``memorySearch.extraPaths``.
- ``all sessions``: unless ``tools.sessions.visibility`` is set, the session tools reach sessions of other people.
- ``owner files``: the file tools read the owner's notes, and write what prompts are made of.
- ``owner tools``: the tools of MCP servers and extensions that are for the owner, and the owner's scheduled jobs.
- ``devices``: the browser with its logins; camera, screen and location of nodes.
"""

_ALL: frozenset[Privilege] = frozenset(
    {"memory in prompt", "curated memory", "notes", "all sessions", "owner files", "owner tools", "devices"}
)
PRIVILEGES: dict[CallerKind, frozenset[Privilege]] = {
    "owner": _ALL,
    "job": _ALL - {"memory in prompt"},
    "guest": frozenset(),
    "group": frozenset(),
    "hook": frozenset(),
    "node": frozenset(),
}
TRUSTED: frozenset[CallerKind] = frozenset({"owner", "job"})
"""The callers that only the owner, or what the owner set up, can have caused."""
_NOT_OF_SUBAGENTS: frozenset[Privilege] = frozenset({"memory in prompt", "curated memory"})
"""A sub-agent knows its task only, and it reads pages of others."""


_NAMES: dict[CallerKind, str] = {
    "owner": "the owner",
    "job": "a scheduled job",
    "guest": "a guest",
    "group": "a group",
    "hook": "a webhook",
    "node": "a node",
}


class Caller(msgspec.Struct, frozen=True):
    """Whose run it is. ``agent/caller.py`` decides it, and no other place does."""

    kind: CallerKind
    subagent: bool = False

    def may(self, privilege: Privilege) -> bool:
        withheld = _NOT_OF_SUBAGENTS if self.subagent else frozenset[Privilege]()
        return privilege in PRIVILEGES[self.kind] - withheld

    @property
    def described(self) -> str:
        """Name it in a sentence for a model or a person, such as "a run of a guest"."""
        return f"a sub-agent's run for {_NAMES[self.kind]}" if self.subagent else f"a run of {_NAMES[self.kind]}"

    @property
    def trusted(self) -> bool:
        """Whether only the owner, or what the owner set up, can have caused the run."""
        return self.kind in TRUSTED


OWNER_CALLER = Caller("owner")
GUEST_CALLER = Caller("guest")
