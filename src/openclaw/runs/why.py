"""The words for codes in the ledger: why a message is in its state, how its delivery went, and its whole story."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import user_zone
from openclaw.models.calls import ModelFailure
from openclaw.models.errors import failure_text
from openclaw.runs.delivery_report import delivery_sentences
from openclaw.runs.history import MessageHistory, answered_by, is_withheld, reply_of
from openclaw.runs.reasons import LONGEST_REASON, REASONS, reason_text, sentence, stopped_by
from openclaw.runs.runs import Runs
from openclaw.sessions.keys import shown_key
from openclaw.storage.disk_errors import DiskWait
from openclaw.storage.message_ledger import (
    END_STATES,
    JobRow,
    LedgerRow,
    Reason,
    ReasonCode,
    RejectedMessage,
    StateChange,
    ToolCallRow,
    step_id,
)
from openclaw.text import duration, shortened
from openclaw.untrusted_text import MOST_CHANGES

LONGEST_QUOTE = 120
LONGEST_NAME = 100
NOTICEABLE_MS = 1_000
"""A shorter wait before a run is not mentioned."""
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def explain_message(runtime: Runtime, runs: Runs, history: MessageHistory) -> list[str]:
    """Describe what happened to the message, in the time zone of the user."""
    now, zone = runtime.clock.now_ms(), user_zone(runtime.config.current)
    run = runs.index.get(history.row.run_id)
    disk = run.disk if run is not None and history.row.ended_at is None else None
    sentences = explain(history, now, zone, disk)
    return [*_origin(history.row), *sentences, *(_job_text(job) for job in history.jobs)]


def _origin(row: LedgerRow) -> list[str]:
    """Says which session wrote the message, if another one did."""
    source = row.body.provenance.get("sourceSessionKey")
    tool = row.body.provenance.get("sourceTool")
    return [f"It came from the session {shown_key(str(source))} by {tool}."] if source else []


def _job_text(job: JobRow) -> str:
    """What a message led to in another session. ``why`` of its run tells more."""
    state, run_id = job.state, step_id(job.id, "work" if job.kind == "spawn" else "ask")
    if job.kind == "spawn":
        result = "its result was posted" if state.get("delivered") else "its result was not posted"
        if state.get("withheld"):
            result = f"its result was not posted on the channel, because {REASONS[ReasonCode.SEND_POLICY]}"
        ended = f"{state.get('status')}; {result}" if job.ended_at is not None else "at work"
        name = shortened(str(state.get("label") or state.get("task")), 60)
        return f"It started the sub-agent “{name}” ({state.get('child')}, run {run_id}): {ended}."
    way = "has ended" if job.ended_at is not None else "goes on"
    return f"It wrote to the session {shown_key(str(state.get('target')))} (run {run_id}); that conversation {way}."


def explain(history: MessageHistory, now: int, zone: tzinfo | None = UTC, disk: DiskWait | None = None) -> list[str]:
    """Tells what became of a message and why, in the order it happened. ``zone`` None is the machine's own zone.

    ``disk`` says whether a message that has not ended waits for the disk now.
    """
    row = history.row
    changes = [change for change in history.changes if change.reason.code is not ReasonCode.SHUTDOWN]
    return [
        f"Accepted {_on(row.accepted_at, zone)} from {row.source}, for session {row.session_key}.",
        *_put_together(row),
        *_disarmed("the message", [(change.before, change.after) for change in row.body.disarmed]),
        *_came_again(history.rejected, zone),
        *_waiting(row, changes, now),
        *_working(row, changes, now, zone),
        *_tools(row, changes, history.tool_calls),
        *_disarmed_results(row),
        *_continued(row),
        *_messaged(row),
        *_disk(row, disk),
        *_ending(row, changes, zone),
        *delivery_sentences(row, history.outbox, now),
    ]


def summary(row: LedgerRow, text: str, now: int, zone: tzinfo | None = UTC) -> str:
    """Makes one line for a list: when, what was said, what came of it. ``text`` is the message as it was sent."""
    quote = f" {quoted(text, 60)}" if text.strip() else ""
    head = f"{_stamp(row.accepted_at, zone)}{quote}"
    if row.state not in END_STATES:
        since = row.started_at if row.state == "running" and row.started_at is not None else row.accepted_at
        return f"{head}: {row.state} for {duration(now - since)}"
    if row.state == "answered":
        reply = quoted(reply_of(row), 60) if reply_of(row) else "answered"
        return f"{head}: {reply} after {duration((row.ended_at or row.accepted_at) - row.accepted_at)}"
    if answering := shortened(answered_by(row) or "", LONGEST_NAME):
        return f"{head}: answered in run {answering}"
    why = _stopped_by(row) or _cause(row)
    word = "stopped" if _stopped_by(row) else row.state
    return f"{head}: {word}{f' ({why})' if why else ''}"


# Before the run


def _put_together(row: LedgerRow) -> list[str]:
    if len(row.body.message_ids) < 2:
        return []
    return [f"It was put together from {len(row.body.message_ids)} messages that came one right after the other."]


def _disarmed(where: str, changes: Sequence[tuple[str, str]]) -> list[str]:
    """Say what was changed in text that could have passed for the Gateway's own."""
    if not changes:
        return []
    listed = "; ".join(f"“{before}” became “{after}”" for before, after in changes)
    more = "; and possibly more" if len(changes) >= MOST_CHANGES else ""
    return [f"In {where}, text like the Gateway's own marks was changed before the model read it: {listed}{more}."]


def _disarmed_results(row: LedgerRow) -> list[str]:
    stored: object = (row.result or {}).get("disarmed", [])
    try:
        return _disarmed("the output of its tools", msgspec.convert(stored, list[tuple[str, str]]))
    except msgspec.ValidationError:
        return []


def _came_again(rejected: Sequence[RejectedMessage], zone: tzinfo | None) -> list[str]:
    sentences: list[str] = []
    for note in rejected:
        last = f" {_on(note.last_at, zone)}" if note.count == 1 else f", the last time {_on(note.last_at, zone)}"
        if note.code is ReasonCode.REDELIVERED:
            sentences.append(f"The same message came again {_times(note.count)}{last}; it was recognised and ignored.")
        else:
            why = reason_text(Reason(note.code, shortened(note.detail, LONGEST_REASON)))
            sentences.append(f"Before that it was rejected {_times(note.count)}{last}: {why}.")
    return sentences


def explain_rejected(notes: Sequence[RejectedMessage], zone: tzinfo | None = UTC) -> list[str]:
    """Describe a message that was rejected."""
    sentences: list[str] = []
    for note in notes:
        sender = f" from {shortened(note.sender, LONGEST_NAME)}" if note.sender else ""
        chat = f" in {shortened(note.chat, LONGEST_NAME)}" if note.chat and note.chat != note.sender else ""
        more = f", and {_times(note.count - 1)} more until {_on(note.last_at, zone)[3:]}" if note.count > 1 else ""
        sentences.append(f"It came {_on(note.first_at, zone)} on {note.channel}{sender}{chat}{more}.")
        why = reason_text(Reason(note.code, shortened(note.detail, LONGEST_REASON)))
        if note.code is ReasonCode.REDELIVERED:
            sentences.append(
                f"It started nothing: {why}, and what became of the first delivery is no longer on record."
            )
        elif note.code is ReasonCode.NOT_ADDRESSED:
            sentences.append(f"It was not accepted: {why}.")
        else:
            sentences.append(f"It was not accepted: {why}. Its text was not stored.")
    return sentences


def _waiting(row: LedgerRow, changes: Sequence[StateChange], now: int) -> list[str]:
    # A stop is noted before the run has ended, so that it outlives a crash. It does not count as a wait.
    waits = [
        index
        for index, change in enumerate(changes)
        if change.state == "queued" and change.reason.code is not ReasonCode.STOPPED
    ]
    restarted = any(changes[index].reason.code is ReasonCode.RESTARTED for index in waits)
    sentences = ["The Gateway stopped before it began and took it up again."] if restarted else []
    queued = next((index for index in waits if changes[index].reason.code is not ReasonCode.RESTARTED), None)
    if queued is None:
        return [*sentences, *_pause_before_run(row, changes, now)]
    return [*_in_line(changes, queued, now), *sentences]


def _in_line(changes: Sequence[StateChange], queued: int, now: int) -> list[str]:
    reason = changes[queued].reason
    if reason.code is ReasonCode.STEERING:
        return [f"It was handed to run {shortened(reason.detail, LONGEST_REASON)}, which was under way."]
    later = next((change for change in changes[queued + 1 :] if change.state != "queued"), None)
    if reason.code in (ReasonCode.SESSION_BUSY, ReasonCode.COLLECTING):
        behind = "behind another message of its session"
    else:
        behind = f"({shortened(reason_text(reason), LONGEST_REASON) or 'queued'})"
    also = ", to be collected with what else came" if reason.code is ReasonCode.COLLECTING else ""
    if later is None:
        return [f"It has been waiting for {duration(now - changes[queued].at)} {behind}{also}."]
    return [f"It waited {duration(later.at - changes[queued].at)} {behind}{also}."]


def _pause_before_run(row: LedgerRow, changes: Sequence[StateChange], now: int) -> list[str]:
    began = next((change.at for change in changes if change.state == "running"), None)
    if began is not None:
        pause = began - row.accepted_at
        return [f"It began {duration(pause)} later."] if pause >= NOTICEABLE_MS else []
    if row.state == "accepted":
        return [f"It has not begun yet, {duration(now - row.accepted_at)} after it was accepted."]
    return []


# The run


def _working(row: LedgerRow, changes: Sequence[StateChange], now: int, zone: tzinfo | None) -> list[str]:
    runs = [change.at for change in changes if change.state == "running"]
    sentences: list[str] = []
    if len(runs) > 1:
        stops = len(runs) - 1
        sentences.append(
            f"The Gateway stopped {_times(stops)} while it worked on it and took it up again"
            f"{', the last time' if stops > 1 else ''} {_on(runs[-1], zone)}."
        )
    if not runs:
        return sentences
    if row.body.command:
        took = duration((now if row.ended_at is None else row.ended_at) - runs[0])
        worked = "has been working" if row.ended_at is None else "worked"
        return [f"It is a command, and the Gateway {worked} on it for {took}."]
    model = (row.result or {}).get("model")
    on = f" on {shortened(model, LONGEST_NAME)}" if isinstance(model, str) and model.strip() else ""
    if row.ended_at is None:
        sentences.append(f"It has been running{on} for {duration(now - runs[0])}.")
    else:
        sentences.append(f"It ran{on} for {duration(row.ended_at - runs[0])}.")
    return [*_failures(row, zone), *sentences]


def _failures(row: LedgerRow, zone: tzinfo | None) -> list[str]:
    """Tells which models and keys failed before the run went on with another."""
    stored = (row.result or {}).get("failures")
    try:
        failures = msgspec.convert(stored, list[ModelFailure]) if stored else []
    except msgspec.ValidationError:
        return []
    sentences: list[str] = []
    for failure in failures:
        name, words = shortened(failure.model, LONGEST_NAME), failure_text(failure.kind)
        key = f" with the key {shortened(failure.credential, LONGEST_NAME)}" if failure.credential else ""
        if failure.cooldown_until:
            rest = _stamp(failure.cooldown_until, zone)
            sentences.append(f"{name} was not asked: {words}, so it rests{key} until {rest}.")
        else:
            quote = f" ({shortened(failure.said, LONGEST_REASON)})" if failure.said else ""
            sentences.append(f"{name} failed{key}: {words}{quote}.")
    return sentences


def _tools(row: LedgerRow, changes: Sequence[StateChange], calls: Sequence[ToolCallRow]) -> list[str]:
    if not calls:
        return []
    last_start = max((change.at for change in changes if change.state == "running"), default=0)
    by_name: dict[str, list[str]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(_how_it_went(call, last_start, ended=row.ended_at is not None))
    phrases = [f"{name} {_times(len(results))}{_exceptions(results)}" for name, results in by_name.items()]
    return [f"It called {_listed(phrases)}."]


def _how_it_went(call: ToolCallRow, last_start: int, *, ended: bool) -> str:
    if call.finished_at is not None:
        return "" if call.ok else "failed"
    if call.started_at < last_start:
        return "interrupted by a restart, not repeated"
    return "without a recorded end" if ended else "still running"


def _exceptions(results: Sequence[str]) -> str:
    """Lists in brackets the calls that did not succeed."""
    counts = {result: results.count(result) for result in results if result}
    if not counts:
        return ""
    alone = len(results) == 1
    return f" ({', '.join(how if alone else f'{_number(count)} {how}' for how, count in counts.items())})"


def _messaged(row: LedgerRow) -> list[str]:
    """Tells that the agent wrote to the conversation by itself, so that its last words were not sent as well."""
    if not (row.result or {}).get("messaged"):
        return []
    return ["The agent wrote to this chat with the message tool, so what it said at the end was not sent as well."]


def _continued(row: LedgerRow) -> list[str]:
    """Tells how often the model was asked for the rest of an answer that its output limit cut, and what ended that."""
    match (row.result or {}).get("lengthCut"):
        case {"asked": int(asked), "most": int(most), "cut": bool(cut)}:
            pass
        case _:
            return []
    sentences: list[str] = []
    if asked:
        sentences.append(f"The output limit cut its answer, and the model was asked to go on {_times(asked)}.")
    if cut and most and asked >= most:
        sentences.append(
            f"The answer was still not whole then. {'Once' if most == 1 else f'{most} times'} is the most it is asked "
            "(agents.defaults.maxLengthContinuations), so it ends where it was cut."
        )
    elif cut:
        sentences.append("The output limit cut its answer, and the model was not asked to go on.")
    return sentences


def _disk(row: LedgerRow, disk: DiskWait | None) -> list[str]:
    if disk is not None and disk.waiting:
        return [f"It waits for the disk now: {disk.problem}. It goes on by itself when the disk takes it."]
    match (row.result or {}).get("diskWait"):
        case {"ms": int(ms), "problem": str(problem)}:
            return [f"It had to wait {duration(ms)} for the disk: {shortened(problem, LONGEST_REASON)}."]
        case _:
            return []


# The end


def _ending(row: LedgerRow, changes: Sequence[StateChange], zone: tzinfo | None) -> list[str]:
    if row.ended_at is None:
        return []
    at = _on(row.ended_at, zone)
    match row.state:
        case "answered":
            return [_answer(row, changes, at)]
        case "silent":
            return [_silence(row, changes, at)]
        case "failed":
            return [sentence(f"Failed {at}: {_cause(row) or 'no reason was recorded'}")]
        case "expired":
            return [sentence(f"Expired {at}: {_cause(row) or 'it had waited too long to be answered'}")]
        case _:
            return [_superseded(row, at)]


def _answer(row: LedgerRow, changes: Sequence[StateChange], at: str) -> str:
    if reply := reply_of(row):
        return f"Answered {at}: {quoted(reply, LONGEST_QUOTE)}"
    if all(change.state != "running" for change in changes):
        return f"It needed no run of the agent and was done {at}."
    if row.reason.code is not ReasonCode.NONE:
        return sentence(f"It ended {at} with a notice instead of an answer: {_cause(row)}")
    return f"Answered {at}."


def _silence(row: LedgerRow, changes: Sequence[StateChange], at: str) -> str:
    because = f": {_cause(row)}" if row.reason.code is not ReasonCode.NONE else ""
    if row.body.command:
        return f"It was done {at} without an answer{because}."
    if is_withheld(row) and (reply := reply_of(row)):
        return f"Answered {at}: {quoted(reply, LONGEST_QUOTE)}"
    if all(change.state != "running" for change in changes):
        return f"It got no answer and needed no run of the agent; done {at}{because}."
    return f"The agent decided {at} to say nothing{because}."


def _superseded(row: LedgerRow, at: str) -> str:
    answering = shortened(answered_by(row) or "", LONGEST_NAME)
    if answering and row.reason.code is ReasonCode.COLLECTED:
        return f"It was answered together with later ones: they became one prompt {at}, in run {answering}."
    if answering:
        return f"Run {answering} received its text {at} and gave the answer."
    if row.reason.code is ReasonCode.STOPPED:
        return f"Stopped {at}: {_stopped_by(row) or _cause(row)}."
    return sentence(f"It ended {at} without an answer of its own: {_cause(row) or 'no reason was recorded'}")


def _cause(row: LedgerRow) -> str:
    return shortened(reason_text(row.reason), LONGEST_REASON)


def _stopped_by(row: LedgerRow) -> str | None:
    """Tells who stopped the message. None when that is not known."""
    return stopped_by(row.reason.detail) if row.reason.code is ReasonCode.STOPPED else None


# Words


def quoted(text: str, limit: int) -> str:
    return f"“{shortened(text, limit)}”"


def _stamp(ms: int, zone: tzinfo | None) -> str:
    return f"{datetime.fromtimestamp(ms // 1000, UTC).astimezone(zone):%Y-%m-%d %H:%M:%S}"


def _on(ms: int, zone: tzinfo | None) -> str:
    return f"on {_stamp(ms, zone).replace(' ', ' at ')}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def _listed(phrases: Sequence[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
