"""What tools know of nodes: other machines that are connected to the Gateway and carry out commands."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import msgspec

SYSTEM_RUN = "system.run"
DENIED = "SYSTEM_RUN_DENIED"
APPROVAL_REQUIRED = f"{DENIED}: approval required"
"""How a node's error begins when its rules want a person to be asked first."""

Failure: TypeAlias = Literal["NOT_CONNECTED", "NOT_ALLOWED", "TIMEOUT", "BUSY", "INVALID", "NODE"]


class NodeFailed(Exception):
    """A node did not carry out a command.

    ``failure`` is ``NODE`` when the node itself said so; ``node_error`` is what it said. If it was ``interrupted``,
    the command may still be running on the node.
    """

    def __init__(
        self, failure: Failure, text: str, *, node_error: dict[str, str] | None = None, interrupted: bool = False
    ) -> None:
        super().__init__(text)
        self.failure: Failure = failure
        self.node_error = node_error
        self.interrupted = interrupted

    @property
    def wants_approval(self) -> bool:
        return self.failure == "NODE" and str(self).startswith(APPROVAL_REQUIRED)


class UnknownNode(Exception):
    """No node is meant by a name, or several are. The message says which there are."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is known of a node. Of one that is not connected, its name and platform are."""

    node_id: str
    display_name: str | None = None
    platform: str | None = None
    version: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    remote_ip: str | None = None
    caps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """What it may be asked for."""
    path_env: str | None = None
    permissions: dict[str, bool] | None = None
    connected_at_ms: int = 0
    paired: bool = msgspec.field(default=False)
    connected: bool = msgspec.field(default=False)

    @property
    def name(self) -> str:
        return self.display_name or self.node_id[:12]


class NodeCalls(Protocol):
    """The nodes of a Gateway, as tools use them."""

    def all(self) -> list[NodeFacts]:
        """Every node that is paired or connected. Connected ones come first."""
        ...

    def choose(self, wanted: str | None, command: str | None = None) -> NodeFacts:
        """The node that is meant, by id, name or address. Without ``wanted`` it is the only one that has the command.

        Raises ``UnknownNode``.
        """
        ...

    async def ask(self, node_id: str, command: str, params: Any, *, timeout_ms: int, key: str) -> Any:
        """The payload of the node's answer. Raises ``NodeFailed``. Cancelled, it tells the node to stop."""
        ...

    async def begin(self, run_id: str, node_id: str, agent_run_id: str) -> None:
        """Notes a command, so that what the node tells of it later reaches the session of the agent's run."""
        ...

    async def end(self, run_id: str) -> None:
        """The outcome of the command is known."""
        ...

    def leave(self, run_id: str) -> None:
        """Nobody waits for the answer any more. What the node tells of it later counts."""
        ...
