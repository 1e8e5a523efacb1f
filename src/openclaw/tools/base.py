"""The ``Tool`` protocol: a spec and one async call, with its context, result and error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from openclaw.memory.embedders import Pay, unpaid
from openclaw.messages import TextBlock, ToolSpec, UserBlock

if TYPE_CHECKING:
    from openclaw.tools.exec.settings import ExecOverrides
    from openclaw.tools.sandbox.boundary import Boundary


FAILED = ("error", "failed", "timeout", "forbidden")


class ToolResult(msgspec.Struct, kw_only=True):
    content: list[UserBlock]
    details: Any = msgspec.UNSET
    """Facts for UIs and logs, as JSON values. A ``details["status"]`` of ``FAILED`` marks a failure."""

    @property
    def failed(self) -> bool:
        return isinstance(self.details, dict) and self.details.get("status") in FAILED


class ToolError(Exception):
    """A failure that the model should read. It becomes a tool result and does not end the run.

    A tool may let ``PathRefused`` of the opener through. It counts as the same.
    """


class ToolContext(msgspec.Struct, kw_only=True):
    """What a tool call knows about its run."""

    agent_id: str
    session_key: str
    workspace: Path
    run_id: str = ""
    call_id: str = ""
    model_sees_images: bool = True
    env: Mapping[str, str] = {}
    """Extra variables for commands. The Gateway's own environment takes precedence."""
    update: Callable[[ToolResult], None] | None = None
    """Reports progress of a long call to clients. It is not stored."""
    notify: Callable[[str], None] | None = None
    """Queues a line for the session's next turn, for example when a background process exits."""
    wake: Callable[[str], None] | None = None
    """Like ``notify``, but starts the next turn at once, so that the person is told."""
    pay: Pay = unpaid
    """Makes the calls of an embedder and charges them to the session."""
    exec_overrides: Callable[[], Awaitable[ExecOverrides | None]] | None = None
    """Returns the present ``/exec`` and ``/elevated`` settings. A change counts for a run that is under way, too."""

    sandbox: Boundary | None = None
    """The session's sandbox. A tool that opens a file which the call names opens it with the sandbox's opener."""
    why_missing: Callable[[str], str | None] | None = None
    """Says why a tool that the model called is not there, if there is more to say than that."""

    @property
    def process_scope(self) -> str:
        """Names whose background commands the call sees: those of its own session, also after a reset.

        A group must not see what runs for the owner, nor write to it.
        """
        return f"{self.agent_id}|{self.session_key}"


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
