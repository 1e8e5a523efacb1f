"""What a tool is: a name, a schema, and one async call that returns blocks for the model and details for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from openclaw.messages import TextBlock, ToolSpec, UserBlock

if TYPE_CHECKING:
    from openclaw.tools.exec_terms import ExecWish


class ToolResult(msgspec.Struct, kw_only=True):
    content: list[UserBlock]
    details: Any = msgspec.UNSET
    """JSON-able facts for UIs and logs; ``details["status"]`` of ``error`` or ``timeout`` marks a failure."""

    @property
    def failed(self) -> bool:
        return isinstance(self.details, dict) and self.details.get("status") in ("error", "failed", "timeout")


class ToolError(Exception):
    """A failure the model should read; becomes a result, never an exception in the run."""


class ToolContext(msgspec.Struct, kw_only=True):
    """What a call may know of the run it belongs to."""

    agent_id: str
    session_key: str
    workspace: Path
    run_id: str = ""
    call_id: str = ""
    model_sees_images: bool = True
    env: Mapping[str, str] = {}
    """Variables for commands, where the Gateway's own environment does not have them."""
    update: Callable[[ToolResult], None] | None = None
    """Progress of a long call, shown to clients and not stored."""
    notify: Callable[[str], None] | None = None
    """Queues a line for the session's next turn, e.g. when a background process exits."""
    wake: Callable[[str], None] | None = None
    """Like ``notify``, but the next turn begins at once, to tell the person what came of it."""
    exec: Callable[[], Awaitable[ExecWish | None]] | None = None
    """What the message and its session say about commands now; a no counts for a run that is under way, too."""


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def summary(self) -> str:
        """One line for the tool list of the system prompt."""
        ...

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Runs the call. Cancellation must stop everything the call started in the foreground."""
        ...


Run = Callable[[dict[str, Any], ToolContext], Awaitable[ToolResult]]


def text_result(text: str, details: Any = msgspec.UNSET) -> ToolResult:
    return ToolResult(content=[TextBlock(text=text)], details=details)
