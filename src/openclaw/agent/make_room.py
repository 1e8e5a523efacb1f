"""Making room inside a run: when the next prompt cannot fit, or the provider has just said that it did not."""

from __future__ import annotations

import logging

from openclaw.agent.compaction import Job, Outcome, compact
from openclaw.agent.compaction_cut import CompactionSettings, compaction_settings
from openclaw.agent.preparation import Preparation
from openclaw.agent.runtime import Runtime
from openclaw.messages import AssistantMessage
from openclaw.models.base import Model, ModelError
from openclaw.models.errors import is_overflow, is_silent_overflow
from openclaw.storage.base import Transcript

log = logging.getLogger("openclaw.agents.compaction")

STILL_TOO_LARGE = (
    "The conversation does not fit the model's window, and condensing it once did not help. Start over with /new, or "
    "choose a model with a larger window with /model. ({error})"
)


def settings_for(prepared: Preparation, runtime: Runtime) -> CompactionSettings:
    budget = prepared.view.budget
    overhead = round(budget.overhead * budget.scale)
    return compaction_settings(runtime.config.current, prepared.context_window, overhead)


def summary_model(runtime: Runtime, otherwise: Model) -> Model:
    """The model that writes summaries; the session's own unless another is configured and known."""
    name = runtime.config.current.agents.defaults.compaction.model
    if not name:
        return otherwise
    try:
        return runtime.catalogue().resolve(name)
    except ModelError as unknown:
        log.warning("agents.defaults.compaction.model: %s", unknown)
        return otherwise


def overflowed(error: str | None, failure: ModelError | None) -> bool:
    return error is not None and ((failure is not None and failure.kind == "overflow") or is_overflow(error))


def silently_overflowed(final: AssistantMessage | None, prepared: Preparation) -> bool:
    return final is not None and is_silent_overflow(final, prepared.context_window)


async def after_overflow(job: Job, prepared: Preparation) -> Outcome | None:
    """The estimate was wrong: it is corrected, and the conversation condensed."""
    prepared.view.was_too_large()
    job.budget = prepared.view.budget
    return await compact(job) if job.settings.enabled else None


async def without_answer(transcript: Transcript, answer_id: str) -> None:
    """Takes an answer off the branch that the model gave to a prompt it had cut without a word."""
    entry = await transcript.entry(answer_id)
    if entry is not None:
        transcript.branch(entry.parent_id)
