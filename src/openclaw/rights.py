"""What somebody may do: one vocabulary for every door. Clients have scopes, people on channels are owners or guests.

A right names an effect. Whoever causes the effect needs the right, whether a method, a parameter of a method, a command
in a text or a setting inside it causes it. The rules are three tables: methods, their parameters and events in
``gateway/auth/authorise.py``, commands in ``inbound/commands/registry.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

Right: TypeAlias = Literal["read", "write", "session", "admin", "approvals", "pairing", "node"]
"""
- ``read``: to see sessions, messages and the state of the Gateway.
- ``write``: to send messages, and to stop what runs.
- ``session``: to change the settings of a conversation, or to begin it anew. A client needs ``operator.admin`` for it.
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
    """The rights of a connection. A node has no others than a node's, whatever scopes it names."""
    if role == "node":
        return _NODE
    if role != "operator":
        return NO_RIGHTS
    return NO_RIGHTS.union(*(_OF_SCOPE.get(scope, NO_RIGHTS) for scope in scopes))


def rights_of_person(*, authorised: bool, owner: bool) -> frozenset[Right]:
    """The rights of somebody who writes on a channel. Whoever may give no commands may only talk."""
    if not authorised:
        return NO_RIGHTS
    return OWNER if owner else GUEST


def scope_for(right: Right) -> str:
    """The scope that gives a client this right."""
    return ADMIN if right in ("session", "admin") else f"operator.{right}"
