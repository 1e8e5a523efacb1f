"""The result of a run: how it ended, and what people see of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from openclaw.agent.continuation import joined
from openclaw.agent.prompt.report import PromptReport
from openclaw.events import Silent, Speech, Spoken, Unsaid
from openclaw.messages import AssistantMessage, Usage
from openclaw.outbound.usage_text import with_footer
from openclaw.outbound.visible import speech_of

NO_WORDS = "🤷 The model ended its turn without a word. Ask again, or choose another model with /model."
RAN_OUT = (
    "🤷 The model used up its output limit before it said anything. Ask for less at once, lower /think, or choose "
    "another model with /model."
)


class RunResult(msgspec.Struct, kw_only=True):
    """How a run ended, what it said and what it used."""

    outcome: Literal["ok", "error", "aborted"]
    error: str | None = None
    texts: list[str] = []
    """What people see of each answer of the run, in order. Answers that say nothing are left out."""
    speech: Speech = Unsaid()
    """What people see of the last answer."""
    reply_to: str = ""
    """The message that the answer quotes, if the model named one: ``current`` or an id."""
    reasoning: str = ""
    """The model's reasoning about the last answer. It is empty unless the session shows reasoning."""
    final: AssistantMessage | None = None
    session_id: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    """What the last model call used."""
    spent: Usage | None = None
    """What all model calls of the run used together."""
    footer: str = ""
    """The line about usage under the last answer. It is empty unless the session shows usage."""
    report: PromptReport | None = None
    request: Any = None
    """The record of what the model was sent, as ``request_log`` makes it."""
    duration_ms: int = 0
    taken_in: bool = False
    """Another run had taken the message in before a restart, and answered it."""

    def summary(self) -> dict[str, Any]:
        """The part of the result that the ledger stores."""
        kept: dict[str, Any] = {"outcome": self.outcome, "sessionId": self.session_id}
        if self.texts:
            kept["text"] = self.texts[-1]
        if self.model:
            kept["model"] = f"{self.provider}/{self.model}"
        if self.request:
            kept["request"] = self.request
        return kept

    @property
    def shown_texts(self) -> list[str]:
        """``texts`` with the footer under the last one."""
        return [*self.texts[:-1], with_footer(self.texts[-1], self.footer)] if self.texts else []

    @property
    def silent(self) -> bool:
        """Whether the model decided to say nothing, and had said nothing before."""
        return self.outcome == "ok" and not self.texts and isinstance(self.speech, Silent)

    @property
    def notice(self) -> str:
        """The text in place of an answer, if the model gave none and did not decide to be silent."""
        if self.outcome != "ok" or self.texts or self.taken_in or isinstance(self.speech, Silent):
            return ""
        if self.final is None or self.final.tool_calls:
            return ""
        return RAN_OUT if self.final.stop_reason == "length" else NO_WORDS


def note_speech(result: RunResult, speech: Speech, reasoning: str) -> None:
    """Adds a finished answer to the result."""
    result.speech = speech
    if isinstance(speech, Spoken):
        result.texts.append(speech.text)
        result.reply_to = speech.reply_to or result.reply_to
        result.reasoning = reasoning


def result_of(final: AssistantMessage, parts: Sequence[AssistantMessage] = ()) -> RunResult:
    """The result of a run whose answer was already in the transcript, in one part or several."""
    result = RunResult(outcome="ok", final=final, usage=final.usage)
    note_speech(result, speech_of(joined(parts) if parts else final.text), "")
    return result
