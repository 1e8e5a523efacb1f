"""The parts of the Gateway that every run shares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from openclaw.extensions.points import ExtensionPoints
from openclaw.messages import Route
from openclaw.sessions.entry import is_blocked

if TYPE_CHECKING:
    from openclaw.agent.compaction.compaction import CompactionHooks, CompactionsUnderWay
    from openclaw.agent.prompt.report import ReportStore
    from openclaw.agent.prompt.system_prompt import PromptCache
    from openclaw.agent.prompt.workspace_snapshot import WorkspaceSnapshots
    from openclaw.agent.spend.spend import Spending
    from openclaw.agent.window.history_cleaner import Hygiene
    from openclaw.agent.window.tokens import TokenMeasures
    from openclaw.clock import Clock
    from openclaw.cluster.claims import Claims
    from openclaw.config.store import ConfigStore, Derived
    from openclaw.memory.index import AgentMemories
    from openclaw.models.calls import Failover, ModelCalls
    from openclaw.models.catalogue import Catalogue
    from openclaw.questions.desk import QuestionDesk
    from openclaw.sessions.search import TranscriptSearch
    from openclaw.sessions.system_events import SessionNotes
    from openclaw.storage.blobs import BlobStore
    from openclaw.storage.documents import DocumentStore
    from openclaw.storage.indexed_transcript import TranscriptLines
    from openclaw.storage.message_ledger import Ledger
    from openclaw.storage.sessions import SessionStore
    from openclaw.storage.transcripts import TranscriptStore
    from openclaw.tools.base import Tool
    from openclaw.tools.exec.approvals import ApprovalRules
    from openclaw.tools.nodes import NodeCalls
    from openclaw.tools.process import ProcessRegistry


class McpTools(Protocol):
    """The tools of MCP servers."""

    def candidates(self, agent_id: str, *, owner: bool) -> Mapping[str, str]:
        """Return the servers that such a session may use, and the common prefix of the names of their tools."""
        ...

    async def tools(self, names: Sequence[str]) -> tuple[Tool, ...]:
        """Return the tools of these servers. Starts them if need be."""
        ...

    def lines(self) -> list[str]:
        """Describe each server in one line, for people."""
        ...

    def follow_config(self) -> None:
        """Close the servers that the configuration no longer has."""
        ...

    async def close(self) -> None: ...


class AddedTools:
    """Tools that other parts of the Gateway add, such as those that look at other sessions."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Sequence[Tool]]] = []

    def add(self, source: Callable[[], Sequence[Tool]]) -> None:
        """Ask ``source`` for its tools whenever an agent's tools are assembled."""
        self._sources.append(source)

    def make(self) -> list[Tool]:
        return [tool for source in self._sources for tool in source()]


class Wakeups:
    """Starts a turn in the session of an earlier run, with the result of a command that it left running."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[str, str], None]] = []

    def subscribe(self, subscriber: Callable[[str, str], None]) -> None:
        """Call ``subscriber`` with the run id and the text of each result."""
        self._subscribers.append(subscriber)

    def publish(self, run_id: str, text: str) -> None:
        for subscriber in self._subscribers:
            subscriber(run_id, text)


class PromptLines:
    """Lines about a session that other parts of the Gateway add to its next prompt."""

    def __init__(self) -> None:
        self._sources: list[Callable[[str], Sequence[str]]] = []

    def add(self, source: Callable[[str], Sequence[str]]) -> None:
        """Ask ``source`` with the session key for each prompt."""
        self._sources.append(source)

    def of(self, session_key: str) -> list[str]:
        return [line for source in self._sources for line in source(session_key)]


class Stores(msgspec.Struct, kw_only=True, frozen=True):
    """Where this Gateway persists its state."""

    sessions: SessionStore
    transcripts: TranscriptStore
    ledger: Ledger
    blobs: BlobStore
    documents: DocumentStore
    close: Callable[[], Awaitable[None]]
    claims: Claims
    """The sessions and jobs that this node owns among the nodes that share the stores."""
    lines: TranscriptLines | None = None
    """Reads the transcripts of a database. None if they are files of the state folder."""

    @property
    def on_files(self) -> bool:
        return self.lines is None


class ModelParts(msgspec.Struct, kw_only=True, frozen=True):
    """How runs reach a model, and what they learned about its limits and costs."""

    catalogue: Callable[[], Catalogue]
    """Returns the models that can be used now. Do not keep it, because a local server can appear or go."""
    rescan: Callable[[], Awaitable[None]]
    """Look again for stored keys, downloaded models and servers on this machine."""
    calls: ModelCalls
    """The calls to models, with their keys and HTTP connections."""
    failover: Failover
    """The keys and models to try next when a call fails."""
    measures: TokenMeasures
    """The correction of the token estimate for each session."""
    hygiene: Hygiene
    """Resized pictures, and the conversations that a provider refused."""
    spending: Spending
    """The tokens and costs recorded in the transcripts."""


class PromptParts(msgspec.Struct, kw_only=True, frozen=True):
    """What the prompt of a run is built from, and what keeps it small."""

    snapshots: WorkspaceSnapshots
    """The workspace files and skills of each agent."""
    cache: PromptCache
    reports: ReportStore
    """Prompts, tools and reports of runs, stored once by content."""
    derived: Derived
    """Settings and tools that are derived from the current configuration."""
    hooks: CompactionHooks
    compacting: CompactionsUnderWay
    lines: PromptLines


class ToolParts(msgspec.Struct, kw_only=True, frozen=True):
    """What the agents' tools work with."""

    processes: ProcessRegistry
    """The running commands of the ``exec`` tool."""
    questions: QuestionDesk
    """The open questions to people."""
    approval_rules: ApprovalRules
    nodes: NodeCalls
    """The paired and connected nodes."""
    mcp: McpTools
    memories: AgentMemories
    """The agents' memory files and their search indexes."""
    added: AddedTools
    wakeups: Wakeups


class Runtime(msgspec.Struct, kw_only=True, frozen=True):
    """The parts that runs and compactions use. ``gateway/assemble.py`` builds it once."""

    state_dir: Path
    clock: Clock
    config: ConfigStore
    stores: Stores
    models: ModelParts
    prompting: PromptParts
    tools: ToolParts
    notes: SessionNotes
    """Texts that wait for the next prompt of a session."""
    search: TranscriptSearch
    extensions: ExtensionPoints = msgspec.field(default_factory=ExtensionPoints)

    async def may_send(self, agent_id: str, session_key: str, route: Route) -> bool:
        """Return whether the send policy lets a session send on this route now.

        Ask this wherever outbox parts are made. Answers to commands are exempt, because a command can lift the block.
        """
        entry = await self.stores.sessions.get(agent_id, session_key)
        policy = self.config.current.session.send_policy
        return not is_blocked(policy, session_key, entry, channel=route.channel)
