"""Results of ``context.*``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from openclaw.protocol.result import Result


class PromptPart(msgspec.Struct, frozen=True):
    """One section of a prompt or one workspace file in it."""

    title: str
    chars: int


class CutFile(msgspec.Struct, frozen=True):
    """A workspace file of which the prompt has ``kept`` characters ``of`` all."""

    name: str
    kept: int
    of: int


class SystemPromptView(Result):
    """The sizes of a system prompt."""

    chars: int
    digest: str
    parts: list[PromptPart]
    truncated: list[CutFile]


class ToolsView(Result):
    """The tools of a request."""

    names: list[str]
    chars: int
    digest: str


class TurnFactsView(Result):
    """The facts of the turn, and the message that they follow."""

    chars: int
    after: str | None
    text: str


class RequestMessage(Result):
    """A message of a request in short."""

    entry_id: str | None
    changed: bool
    """It is a summary, or was changed for this call."""
    role: str
    chars: int
    preview: str


class ChangesSince(Result):
    """The changes since an earlier run."""

    run_id: str
    changes: list[str]


class WholeRequest(Result):
    """A request as it was sent."""

    system: str
    system_suffix: str
    turn_facts: str
    messages: list[Any]
    tools: list[Any]


class ContextReport(Result, kw_only=True):
    """What a model call was sent."""

    run_id: str
    call: int
    calls: int
    """The number of calls of the run."""
    at: int
    session_id: str
    model: str
    thinking: str
    exact: bool
    missing: list[str]
    """The parts that no longer exist."""
    system_prompt: SystemPromptView
    tools: ToolsView
    turn_facts: TurnFactsView
    compaction: str | None
    """The entry of the summary with which the conversation begins."""
    pruned: int
    shortened: int
    messages: list[RequestMessage]
    since: ChangesSince | None
    wire: str | msgspec.UnsetType | None = msgspec.UNSET
    """The exact JSON. Null if it cannot be rebuilt."""
    request: WholeRequest | None = None


class ComparedRun(Result):
    """One of two runs that are compared."""

    run_id: str
    at: int
    messages: int


class ContextDifference(Result):
    """The differences between two runs."""

    a: ComparedRun
    b: ComparedRun
    exact: bool
    changes: list[str]


class Sighting(msgspec.Struct, rename="camel", kw_only=True):
    """The model call with which a phrase entered or left the prompt."""

    run_id: str
    at: int
    call: int
    """The number of the call in its run, from 1."""
    calls: int
    """The number of calls of the run."""
    change: Literal["entered", "left"]
    where: list[str] = []
    """The parts of the request that hold the phrase. If it left, these are the parts that held it before."""
    why: str = ""
    """Why it left, in words for people."""


class PhraseSightings(Result):
    """When a phrase was in the model's view."""

    runs: int
    sightings: list[Sighting]
    in_view_now: bool
    where: list[str]
