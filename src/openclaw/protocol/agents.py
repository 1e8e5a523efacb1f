"""Results of ``agents.*`` and ``agent.identity.get``."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.protocol.result import Result, Success


class AgentView(Result):
    """A configured agent. The folders, the model and the bindings are present if the call asked for details."""

    id: str
    name: str | None = None
    identity: dict[str, str] = {}
    workspace: str | None = None
    agent_dir: str | None = None
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    bindings: int | msgspec.UnsetType = msgspec.UNSET
    """The number of bindings."""
    routes: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The bindings as short texts."""


class AgentList(Result):
    """The configured agents."""

    default_id: str
    main_key: str
    scope: str
    agents: list[AgentView]


class AgentChanged(Success):
    """The agent that was changed."""

    agent_id: str


class AgentCreated(AgentChanged):
    """The new agent."""

    name: str
    workspace: str


class AgentDeleted(AgentChanged):
    """The agent that was deleted."""

    removed_bindings: int


class AgentBound(AgentChanged):
    """The binding of an agent."""

    binding: dict[str, Any]
    """The binding as it stands in the configuration."""
    added: bool
    """False if the configuration had the binding already."""


class AgentIdentity(Result):
    """The name and the picture of an agent."""

    agent_id: str
    name: str
    avatar: str
    emoji: str | None = None


class AgentFileView(Result):
    """A file that defines an agent."""

    name: str
    path: str
    missing: bool
    size: int | None = None
    updated_at_ms: int | None = None
    content: str | None = None


class AgentFiles(Result):
    """The files that define an agent."""

    agent_id: str
    workspace: str
    files: list[AgentFileView]


class AgentFile(Result):
    """One of the files that define an agent, with its text."""

    agent_id: str
    workspace: str
    file: AgentFileView


class AgentFileWritten(AgentChanged):
    """The file that was written."""

    workspace: str
    file: AgentFileView
