"""What every run shares: the living parts of the Gateway that an agent may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from openclaw.agent.briefing import Briefings
from openclaw.agent.deadlines import Deadlines
from openclaw.agent.ground import Grounds
from openclaw.agent.hooks import Hooks
from openclaw.agent.hygiene import Hygiene
from openclaw.agent.kept_reports import Reports
from openclaw.agent.spend import Spending
from openclaw.agent.tokens import Scales
from openclaw.clock import Clock
from openclaw.config.store import Derived
from openclaw.memory.search import AgentMemories
from openclaw.messages import AssistantMessage, ImageBlock, ToolResultMessage, ToolSpec
from openclaw.models.base import Heard, ModelRequest
from openclaw.storage.base import BlobStore, Ledger, SessionStore, TranscriptStore

if TYPE_CHECKING:
    from openclaw.config.store import ConfigStore
    from openclaw.models.catalogue import Catalogue
    from openclaw.tools.exec.approvals import ApprovalRules, Approvals
    from openclaw.tools.process_registry import ProcessRegistry


class Notes(Protocol):
    """Lines waiting for a session's next turn (a background process ended, a node reported something)."""

    def add(self, session_key: str, text: str) -> None: ...

    def drain(self, session_key: str) -> list[str]: ...


class Runtime(msgspec.Struct, kw_only=True):
    state_dir: Path
    clock: Clock
    config: ConfigStore
    sessions: SessionStore
    transcripts: TranscriptStore
    ledger: Ledger
    blobs: BlobStore
    catalogue: Callable[[], Catalogue]
    processes: ProcessRegistry
    notes: Notes
    call_model: Callable[[ModelRequest, str, Heard], Awaitable[AssistantMessage]]
    """Finds the provider and the agent's key, then hears the answer out."""
    grounds: Grounds
    """What workspaces and skill folders hold."""
    memories: AgentMemories
    """Where agents look up what they wrote down."""
    approvals: Approvals | None = None
    """Commands that wait for a person's yes; None: nobody can be asked."""
    approval_rules: ApprovalRules | None = None
    wake: Callable[[str, str], None] | None = None
    """Given a run id and a text: begins a turn in that run's session, answered where that run was."""
    hooks: Hooks = msgspec.field(default_factory=Hooks)
    scales: Scales = msgspec.field(default_factory=Scales)
    """What providers reported of the sizes we had estimated."""
    hygiene: Hygiene = msgspec.field(default_factory=Hygiene)
    spending: Spending = msgspec.field(default_factory=Spending)
    """What transcripts say of tokens and money."""
    reports: Reports = msgspec.field(default_factory=Reports)
    deadlines: Deadlines = msgspec.field(default_factory=Deadlines)
    derived: Derived = msgspec.field(default_factory=Derived)
    """Tools and folders, as the current configuration has them."""
    briefings: Briefings = msgspec.field(default_factory=Briefings)


class Turn(msgspec.Struct, kw_only=True):
    """One accepted message, ready to run."""

    ledger_id: int
    run_id: str
    agent_id: str
    session_key: str
    session_id: str
    source: str = ""
    """Who asked: ``webchat``, ``agent``, ``cron``, ``heartbeat``, a channel id."""
    prompt: str
    images: list[ImageBlock] = []
    thinking: str | None = None
    model: str | None = None
    """``provider/model`` for this run only."""
    reasoning: str | None = None
    auth_profile: str | None = None
    """The stored credential to use, for this run or for the session."""
    exec: dict[str, Any] = {}
    """What the message itself says about commands: ``exec``, ``elevated`` and ``elevatedAllowed``."""
    timeout_s: float | None = None
    extra_system_prompt: str = ""
    client_tools: list[ToolSpec] = []
    """Tools the caller runs itself."""
    tool_outputs: list[ToolResultMessage] = []
    """Results of earlier calls to such tools; they come before the prompt, which may then be empty."""
    tool_choice: Any = None
    """``"required"`` or ``{"name": ...}``: the model must call one of the caller's tools, and is offered no other."""
    max_tokens: int | None = None
    """Length of each answer at most; the model's own limit otherwise."""
    resumed: bool = False
    """True after a restart: what the transcript already holds of this run is not done again."""
    came: float | None = None
    """When the Gateway had the message, on the event loop's clock, if the run begins because of that alone."""
