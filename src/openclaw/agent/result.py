"""How a run ended, and what people are told of it."""

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
    outcome: Literal["ok", "error", "aborted"]
    error: str | None = None
    texts: list[str] = []
    """What people hear of each answer of the run, in order; answers that say nothing are left out."""
    speech: Speech = Unsaid()
    """What they hear of the last one."""
    reply_to: str = ""
    """The message that it answers, where the model named one: ``current`` or an id."""
    reasoning: str = ""
    """The model's reasoning about the last answer, empty unless the session wants to see it."""
    final: AssistantMessage | None = None
    session_id: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    """What the last model call used."""
    spent: Usage | None = None
    """What all model calls of the run used together."""
    footer: str = ""
    """Shown under the last words when the session wants to see its usage."""
    report: PromptReport | None = None
    request: Any = None
    """What the model was sent, as ``request_log`` notes it."""
    duration_ms: int = 0
    taken_in: bool = False
    """The words were answered in another run, which had taken them in before a restart."""

    def summary(self) -> dict[str, Any]:
        """What the ledger keeps of it."""
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
        """``texts``, the last one with the line about its usage where the session wants it."""
        return [*self.texts[:-1], with_footer(self.texts[-1], self.footer)] if self.texts else []

    @property
    def silent(self) -> bool:
        """The model decided that there is nothing to say, and had said nothing before."""
        return self.outcome == "ok" and not self.texts and isinstance(self.speech, Silent)

    @property
    def notice(self) -> str:
        """Said in place of an answer when the model gave none, without having decided to be silent."""
        if self.outcome != "ok" or self.texts or self.taken_in or isinstance(self.speech, Silent):
            return ""
        if self.final is None or self.final.tool_calls:
            return ""
        return RAN_OUT if self.final.stop_reason == "length" else NO_WORDS


def note_speech(result: RunResult, speech: Speech, reasoning: str) -> None:
    result.speech = speech
    if isinstance(speech, Spoken):
        result.texts.append(speech.text)
        result.reply_to = speech.reply_to or result.reply_to
        result.reasoning = reasoning


def result_of(final: AssistantMessage, parts: Sequence[AssistantMessage] = ()) -> RunResult:
    """Of an answer that stood in the transcript already, in one part or several."""
    result = RunResult(outcome="ok", final=final, usage=final.usage)
    note_speech(result, speech_of(joined(parts) if parts else final.text), "")
    return result
