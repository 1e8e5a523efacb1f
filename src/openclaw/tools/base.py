"""What a tool is: the ``Tool`` protocol, the context of a call, its result and its error.

Built-in tools derive from ``RecordTool`` (``tools/arguments.py``), which reads the arguments into a record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from openclaw.memory.embedders import Pay, unpaid
from openclaw.messages import TextBlock, ToolSpec, UserBlock
from openclaw.path_opener import PathGuard, PathOpener
from openclaw.rights import GUEST_CALLER, Caller

if TYPE_CHECKING:
    from openclaw.questions.desk import QuestionDesk
    from openclaw.storage.questions import Question
    from openclaw.tools.exec.settings import ExecOverrides
    from openclaw.tools.sandbox.boundary import Boundary


LONGEST_RESULT = 100_000
"""The text of a longer result is stored as a blob, and the message has only its beginning and its end."""
REFUSED_STATUSES = ("denied", "expired", "withdrawn")
"""The states of a call that a person denied, or that nobody allowed."""
FAILED_STATUSES = ("error", "failed", "timeout", "forbidden", *REFUSED_STATUSES)


class ToolResult(msgspec.Struct, kw_only=True):
    content: list[UserBlock]
    details: Any = msgspec.UNSET
    """Facts for UIs and logs, as JSON values. A ``details["status"]`` of ``FAILED_STATUSES`` marks a failure."""

    @property
    def failed(self) -> bool:
        return reports_failure(self.details)


def reports_failure(details: Any) -> bool:
    """Whether the details of a tool's result say that the tool failed."""
    return isinstance(details, dict) and details.get("status") in FAILED_STATUSES


class ToolError(Exception):
    """A failure that the model should read, as plain sentences. It becomes a tool result and does not end the run.

    A tool may let ``PathRefused`` of the opener through. It counts as the same.
    """

    def __init__(self, text: str, details: Mapping[str, Any] | None = None) -> None:
        """``details`` are facts for clients, such as an exit code."""
        super().__init__(text)
        self.details: Mapping[str, Any] = details or {}


class ToolContext(msgspec.Struct, kw_only=True):
    """The run that a tool call belongs to, and the means it may use."""

    agent_id: str
    session_key: str
    workspace: Path
    run_id: str = ""
    call_id: str = ""
    model_sees_images: bool = True
    result_chars: int = LONGEST_RESULT
    """A result of at most this many characters reaches the model whole."""
    resumed: bool = False
    """The call began before a restart and waited for a person. It may only wait for the answer, or act on it."""
    sender: str = ""
    """The person on a channel whose message the run answers, by the platform's id."""
    parked: Callable[[Question], AbstractAsyncContextManager[None]] | None = None
    """Within it, the run waits for the answer to a question and holds no slot."""
    caller: Caller = GUEST_CALLER
    """Whose run the call belongs to. It decides what the tool may reach."""
    owner_files: PathGuard | None = None
    """Refuses the files that are the owner's. None in the runs of those who may open them."""
    env: Mapping[str, str] = {}
    """Extra variables for commands. The Gateway's own environment takes precedence."""
    update: Callable[[ToolResult], None] | None = None
    """Reports progress of a long call to clients. It is not stored."""
    notify: Callable[[str], None] | None = None
    """Queues a line for the session's next turn, for example when a background process exits."""
    wake: Callable[[str], None] | None = None
    """Like ``notify``, but starts the next turn at once, so that the person is notified."""
    pay: Pay = unpaid
    """Makes the calls of an embedder and charges them to the session."""
    exec_overrides: Callable[[], Awaitable[ExecOverrides | None]] | None = None
    """Returns the current ``/exec`` and ``/elevated`` settings. A change also applies to a run in progress."""

    sandbox: Boundary | None = None
    """The session's sandbox. A tool that opens a file which the call names opens it with the sandbox's opener."""
    why_missing: Callable[[str], str | None] | None = None
    """Returns the reason why a tool that the model called is missing, or None for the default text."""

    @property
    def process_scope(self) -> str:
        """Names whose background commands the call sees: those of its own session, also after a reset.

        Others must not see what runs for the owner, nor write to it, even where they share a session.
        """
        others = "" if self.caller.trusted else "|others"
        return f"{self.agent_id}|{self.session_key}{others}"

    @property
    def opener(self) -> PathOpener:
        """Opens files that a call names: those that the agent's file tools can open, or fewer."""
        return self.guarded(self.sandbox.opener if self.sandbox else PathOpener(self.workspace, confine=True))

    def guarded(self, opener: PathOpener) -> PathOpener:
        """Returns the opener for this call: in the runs of others it does not open what is the owner's."""
        return opener if self.owner_files is None else opener.guarded(self.owner_files)

    async def wait_for_person(self, desk: QuestionDesk, question: Question) -> Question:
        """Return the question once it has ended."""
        if self.parked is None:
            return await desk.wait(question)
        async with self.parked(question):
            return await desk.wait(question)

    def note(self, text: str) -> None:
        """Notify the session at its next turn, if there is a session."""
        if self.notify is not None:
            self.notify(text)

    def announce(self, text: str) -> None:
        """Notify the session at once if possible, otherwise at its next turn."""
        (self.wake or self.note)(text)


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def summary(self) -> str:
        """One line for the tool list of the system prompt."""
        ...

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run the call. Cancellation must stop everything that the call started in the foreground.

        The arguments are JSON values that were validated against the schema of ``spec``.
        """
        ...


def text_result(text: str, details: Any = msgspec.UNSET) -> ToolResult:
    return ToolResult(content=[TextBlock(text=text)], details=details)


def json_result(details: Any) -> ToolResult:
    """A result that says the same to the model, as JSON text, and to clients. A model reads a failure as a sentence."""
    return text_result(failure_sentence(details) or indented(details), details)


def failure_sentence(details: Any) -> str | None:
    """Return what a failed tool says in its details, or None if it did not fail or gives no reason."""
    reason = details.get("error") if reports_failure(details) else None
    return reason if isinstance(reason, str) and reason.strip() else None


def runs_parallel(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Whether the call may run at the same time as others, because it changes nothing. A tool says so itself."""
    declared: Any = getattr(tool, "parallel", False)
    return bool(declared(arguments) if callable(declared) else declared)


def indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
