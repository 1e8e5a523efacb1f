"""The result of a run: how it ended, its replies and what it used."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.agent.prompt.report import PromptReport
from openclaw.events import Silent, Speech, Spoken, Unsaid
from openclaw.messages import AssistantMessage, Usage
from openclaw.models.base import ModelError
from openclaw.models.calls import ModelFailure
from openclaw.outbound.reply import with_footer
from openclaw.untrusted_text import TextChange

NO_WORDS = "🤷 The model ended its turn without a word. Ask again, or choose another model with /model."
RAN_OUT = (
    "🤷 The model used up its output limit before it said anything. Ask for less at once, lower /think, or choose "
    "another model with /model."
)

RunOutcome: TypeAlias = Literal["ok", "error", "aborted"]


class RunEnd(msgspec.Struct, frozen=True):
    """Why the work of a run is over."""

    outcome: RunOutcome
    error: str | None = None
    failure: ModelError | None = None
    """The model call that failed for good. None if it ended otherwise, or if ``error`` has its own text."""
    taken_in: bool = False
    """Another run had accepted the message before a restart, and answered it."""


class LengthCut(msgspec.Struct, frozen=True):
    """How often the output limit cut the answers of a run."""

    asked: int = 0
    """How often the model was asked for the rest."""
    most: int = 0
    """How often it may be asked."""
    cut: bool = False
    """The answer was still cut at the end."""


class RunAccount(msgspec.Struct, kw_only=True):
    """What a run used."""

    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    """What the last model call used."""
    spent: Usage | None = None
    """What all model calls of the run used together."""
    report: PromptReport | None = None
    request: msgspec.Raw | dict[str, Any] | None = None
    """The record of what the model was sent, as ``request_log`` makes it."""
    failures: list[ModelFailure] = []
    """The failures of models and keys after which the run continued, oldest first."""
    time_limit_s: int = 0
    """The run's time limit, or 0 if it has none."""
    length_cut: LengthCut = LengthCut()
    footer: str = ""
    """The line about usage under the last answer. It is empty unless the session shows usage."""


class RunResult(msgspec.Struct, kw_only=True):
    """How a run ended, its replies and what it used."""

    outcome: RunOutcome
    error: str | None = None
    said: list[Spoken] = []
    """What people get of each answer of the run, in order. Answers that say nothing are left out."""
    speech: Speech = Unsaid()
    """What people see of the last answer."""
    messaged: list[str] = []
    """What the agent wrote to this conversation with the message tool, in place of an answer or before it."""
    disarmed: list[TextChange] = []
    """The changes made to the results of the run's tools before the model read them."""
    reply_to: str = ""
    """The message that the answer quotes, if the model named one: ``current`` or an id."""
    reasoning: str = ""
    """The model's reasoning about the last answer. It is empty unless the session shows reasoning."""
    final: AssistantMessage | None = None
    session_id: str = ""
    duration_ms: int = 0
    taken_in: bool = False
    """Another run had accepted the message before a restart, and answered it."""
    account: RunAccount = msgspec.field(default_factory=RunAccount)

    def summary(self) -> dict[str, Any]:
        """The part of the result that the ledger stores."""
        stored: dict[str, Any] = {"outcome": self.outcome, "sessionId": self.session_id}
        if texts := self.texts:
            stored["text"] = texts[-1]
        if self.said and self.said[-1].media:
            stored["media"] = list(self.said[-1].media)
        if self.messaged:
            stored["messaged"] = len(self.messaged)
        if self.disarmed:
            stored["disarmed"] = [(change.before, change.after) for change in self.disarmed]
        if self.account.model:
            stored["model"] = f"{self.account.provider}/{self.account.model}"
        if self.account.failures:
            stored["failures"] = self.account.failures
        if self.account.request:
            stored["request"] = self.account.request
        if self.account.length_cut.asked or self.account.length_cut.cut:
            stored["lengthCut"] = msgspec.structs.asdict(self.account.length_cut)
        return stored

    @property
    def texts(self) -> list[str]:
        """The words of the answers. An answer may consist of files alone."""
        return [speech.text for speech in self.said if speech.text]

    @property
    def shown(self) -> list[Spoken]:
        """``said`` with the footer under the last one."""
        if not self.said or not self.account.footer:
            return self.said
        last = self.said[-1]
        text = with_footer(last.text, self.account.footer) if last.text else self.account.footer
        return [*self.said[:-1], msgspec.structs.replace(last, text=text)]

    @property
    def silent(self) -> bool:
        """Whether the model decided to say nothing, and had said nothing before."""
        return self.outcome == "ok" and not self.said and isinstance(self.speech, Silent)

    @property
    def notice(self) -> str:
        """The text in place of an answer, if the model gave none and did not decide to be silent."""
        if self.outcome != "ok" or self.said or self.messaged or self.taken_in or isinstance(self.speech, Silent):
            return ""
        if self.final is None or self.final.tool_calls:
            return ""
        return RAN_OUT if self.final.stop_reason == "length" else NO_WORDS


def without_answer(outcome: RunOutcome, error: str | None = None) -> RunResult:
    """Return the result of a message that ends without an answer of the agent."""
    return RunResult(outcome=outcome, error=error)
