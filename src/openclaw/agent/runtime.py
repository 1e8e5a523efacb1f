"""What every run shares: the living parts of the Gateway that an agent may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from openclaw.agent.abort import Deadlines
    from openclaw.agent.hooks import CompactionHooks
    from openclaw.agent.prompt.report import ReportStore
    from openclaw.agent.prompt.system_prompt import PromptCache
    from openclaw.agent.prompt.workspace_snapshot import WorkspaceSnapshots
    from openclaw.agent.spend.spend import Spending
    from openclaw.agent.window.hygiene import Hygiene
    from openclaw.agent.window.tokens import Scales
    from openclaw.clock import Clock
    from openclaw.config.store import ConfigStore, Derived
    from openclaw.memory.search import AgentMemories
    from openclaw.messages import AssistantMessage
    from openclaw.models.base import Heard, ModelRequest
    from openclaw.models.catalogue import Catalogue
    from openclaw.sessions.notes import SessionNotes
    from openclaw.storage.base import BlobStore, Ledger, SessionStore, TranscriptStore
    from openclaw.tools.exec.approvals import ApprovalRules, Approvals
    from openclaw.tools.process_registry import ProcessRegistry


class Runtime(msgspec.Struct, kw_only=True):
    """Built once, in ``gateway/assemble.py``; everything an agent run or a compaction needs comes from here."""

    state_dir: Path
    clock: Clock
    config: ConfigStore
    sessions: SessionStore
    transcripts: TranscriptStore
    ledger: Ledger
    blobs: BlobStore
    catalogue: Callable[[], Catalogue]
    """The models that can be used now; asked each time, because a local server can appear or go."""
    call_model: Callable[[ModelRequest, str, Heard], Awaitable[AssistantMessage]]
    """Calls the model with the key of the agent named by the second argument, and returns the whole answer."""
    processes: ProcessRegistry
    """Commands that the agents' ``exec`` tool started and that still run."""
    approvals: Approvals | None
    """Commands that wait for a person's yes; None: nobody can be asked."""
    approval_rules: ApprovalRules | None
    notes: SessionNotes
    wake: Callable[[str, str], None] | None
    """Given a run id and a text: begins a turn in that run's session, answered where that run was."""
    memories: AgentMemories
    """The agents' memory files and their search indexes."""
    hooks: CompactionHooks
    derived: Derived
    """Settings and tools worked out from the current configuration."""
    snapshots: WorkspaceSnapshots
    """The workspace files and skills of each agent."""
    prompts: PromptCache
    reports: ReportStore
    """Prompts, tools and reports of runs, stored once by content."""
    scales: Scales
    """How far the token estimate is off, for each model."""
    hygiene: Hygiene
    """Images that were made to fit, and conversations that a provider refused."""
    spending: Spending
    """Tokens and money, as the transcripts tell them."""
    deadlines: Deadlines
