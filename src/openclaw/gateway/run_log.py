"""Writes what happens to a message into the log, one line for each step that a person would ask about.

The lines name the message by the number that ``openclaw why`` takes. What was said stays out of the log.
"""

from __future__ import annotations

import logging
from typing import Any

from openclaw.events import CompactionEnded, Event, ModelSwitched, RetryScheduled, ToolEnded, ToolStarted
from openclaw.runs.endings import ending_of
from openclaw.runs.queue import RunRecord
from openclaw.runs.why_text import stopped_by
from openclaw.sessions.keys import shown_key
from openclaw.text import counted, duration, failure_text, shortened

log = logging.getLogger("openclaw.messages")

LONG_WAIT_MS = 1_000
"""A shorter wait for the turn of a message is not mentioned."""
LONGEST_ERROR = 200
OWN = (None, "", "internal")
"""Channels of messages that came from a client or from the Gateway itself. Their source says more."""
_TOLD = frozenset({ToolStarted, ToolEnded, RetryScheduled, ModelSwitched, CompactionEnded})
_WORDS = {"answered": "answered", "silent": "ended in silence", "failed": "failed", "expired": "expired"}


class RunLog:
    """Observes a run and tells the log of its message, its failures and its end."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._tools = 0
        row = record.row
        key = shown_key(row.session_key)
        self._fields: dict[str, Any] = {"messageId": row.id, "runId": row.run_id, "sessionKey": key}
        taken_up = " is taken up again" if record.recovered else ""
        channel = row.route.get("channel")
        self._say(logging.INFO, "%s for %s from %s", taken_up, key, row.source if channel in OWN else channel)

    def started(self) -> None:
        record = self._record
        waited = (record.started_at or 0) - record.row.accepted_at
        if waited >= LONG_WAIT_MS:
            self._say(logging.INFO, " begins after waiting for %s", duration(waited))

    def event(self, event: Event) -> None:
        if type(event) not in _TOLD:
            return  # Most events are words of the reply.
        match event:
            case ToolStarted():
                self._tools += 1
            case ToolEnded(failed=True):
                failed = event.message
                self._say(
                    logging.WARNING, ": the tool %s failed: %s", failed.tool_name, _short(failure_text(failed.text))
                )
            case RetryScheduled():
                again = duration(event.delay_ms)
                self._say(logging.WARNING, ": the model is asked again in %s: %s", again, _short(event.error))
            case ModelSwitched():
                self._say(logging.WARNING, ": %s answers in the place of %s", event.active, event.chosen)
            case CompactionEnded() if event.entry_id is not None:
                sizes = event.tokens_before, event.tokens_after
                self._say(logging.INFO, ": its conversation was condensed from %d to %d tokens", *sizes)
            case CompactionEnded() if event.error:
                self._say(logging.WARNING, ": its conversation could not be condensed: %s", _short(event.error))
            case _:
                pass

    def aborted(self, reason: str) -> None:
        pass

    def absorbed(self, by: str) -> None:
        self._say(logging.INFO, " is answered together with another, in run %s", by)

    def finished(self) -> None:
        record, result = self._record, self._record.result
        if result is None:
            return
        state = self._fields["state"] = ending_of(result).state
        took = (record.ended_at or 0) - (record.started_at or record.ended_at or 0)
        if state in ("failed", "expired"):
            self._say(logging.ERROR, " %s after %s: %s", _WORDS[state], duration(took), _short(record.error or ""))
        elif state in _WORDS:
            used = result.spent or result.usage
            tokens = f", {used.input + used.cache_read + used.cache_write} tokens in, {used.output} out" if used else ""
            tools = f", {counted(self._tools, 'tool call', 'tool calls')}" if self._tools else ""
            model = f" by {record.model}" if record.model else ""
            self._say(logging.INFO, " %s in %s%s%s%s", _WORDS[state], duration(took), model, tokens, tools)
        else:
            self._say(
                logging.INFO,
                " was stopped after %s: %s",
                duration(took),
                _short(stopped_by(record.error or "") or record.error or state),
            )

    def _say(self, level: int, text: str, *values: Any) -> None:
        log.log(level, f"message %d{text}", self._record.row.id, *values, extra={"fields": self._fields})


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), LONGEST_ERROR)
