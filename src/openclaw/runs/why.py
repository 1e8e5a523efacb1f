"""The words for codes in the ledger: why a message is in its state, how its delivery went, and its whole story."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import user_zone
from openclaw.models.calls import ModelFailure
from openclaw.models.errors import failure_text
from openclaw.outbound.reply import is_delivered
from openclaw.sessions.keys import shown_key
from openclaw.storage.disk_errors import DiskWait
from openclaw.storage.message_ledger import (
    END_STATES,
    AbortReason,
    DeliveryCode,
    JobRow,
    Ledger,
    LedgerRow,
    OutboxRow,
    Reason,
    ReasonCode,
    RejectedMessage,
    StateChange,
    ToolCallRow,
    step_id,
)
from openclaw.text import duration, shortened
from openclaw.untrusted_text import MOST_CHANGES

if TYPE_CHECKING:
    from openclaw.runs.runs import Runs

LONGEST_QUOTE = 120
LONGEST_REASON = 400
LONGEST_NAME = 100
NOTICEABLE_MS = 1_000
"""A shorter wait before a run is not mentioned."""
LONGEST_NUMBER = 18
"""The most digits of the number of a message, which has 64 bits."""
_PUBLIC_ID = re.compile(r"^(chatcmpl|resp|msg)_")
"""The prefixes of the ids under which OpenAI's clients know a run."""

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_REASONS = {
    ReasonCode.NONE: "",
    ReasonCode.SESSION_BUSY: "another message of this session is running",
    ReasonCode.COLLECTING: "another message of this session is running; what comes meanwhile is collected",
    ReasonCode.STEERING: "to be taken into run {detail}",
    ReasonCode.RESTARTED: "the Gateway stopped before it began",
    ReasonCode.SHUTDOWN: "the Gateway was told to stop",
    ReasonCode.COLLECTED: "collected into run {detail}",
    ReasonCode.STEERED: "taken into run {detail}",
    ReasonCode.ANSWERED_BEFORE: "its words were taken into the run before it",
    ReasonCode.NO_REPLY: "its reply was NO_REPLY",
    ReasonCode.NO_WORDS: "the model ended its turn without a word",
    ReasonCode.TIME_LIMIT: "the run took longer than its time limit{detail}",
    ReasonCode.STOPPED: "stopped ({detail})",
    ReasonCode.QUEUE_OVERFLOW: "Dropped: more messages were waiting than the queue holds ({detail}).",
    ReasonCode.QUEUE_OVERFLOW_SUMMARIZED: (
        "Dropped: more messages were waiting than the queue holds ({detail}); "
        "its beginning was put before the next one."
    ),
    ReasonCode.QUEUE_FULL: (
        "Not taken: {detail} messages of this session are waiting already. Wait for an answer, or use /stop."
    ),
    ReasonCode.REMOVED_FROM_QUEUE: "dropped from the queue by hand",
    ReasonCode.RESTORED: "under way when the backup was made that was restored; it is not run again",
    ReasonCode.WITHDRAWN: "changed or taken back by its sender",
    ReasonCode.EXPIRED: (
        "The Gateway was not running for too long: this message had waited {detail} hours, so it was not answered. "
        "Send it again if it still matters."
    ),
    ReasonCode.CRASHED: (
        "The Gateway stopped {detail} times while working on this message, so it was given up. Send it again to retry."
    ),
    ReasonCode.COMMAND: "a command",
    ReasonCode.COMMAND_INSIDE: "a command inside the message",
    ReasonCode.COMMAND_INTERRUPTED: "the Gateway stopped while it carried this command out, and did not repeat it",
    ReasonCode.COMMAND_FAILED: "the command failed, and its answer names the reason",
    ReasonCode.COMMAND_UNANSWERED: "a command that has no answer, or that its sender may not give",
    ReasonCode.SEND_POLICY: "the session's send policy does not allow replies",
    ReasonCode.NOTHING_WRITTEN: "nothing was written",
    ReasonCode.PAIRING: "a stranger asked to be let in",
    ReasonCode.NOT_TAKEN: "This message was received but could not be taken in ({detail}). Send it again.",
    ReasonCode.NEW_SESSION: "a new session began",
    ReasonCode.ACCESS_DENIED: "its sender may not write to the agent here ({detail})",
    ReasonCode.NOT_ADDRESSED: (
        "it was not meant for the agent, which answers in this chat only when it is mentioned; the agent reads it as "
        "context of the next message that is"
    ),
    ReasonCode.REDELIVERED: "the same message was delivered again",
    ReasonCode.OTHER: "{detail}",
}
_STOPPED_BY: dict[str, str] = {
    AbortReason.RPC: "a client asked for it",
    AbortReason.STOP: "someone said stop",
    AbortReason.RESET: "the session was begun anew",
    AbortReason.DELETE: "the session was deleted",
    AbortReason.INTERRUPT: "a newer message interrupted it",
}


class Life(msgspec.Struct, frozen=True):
    """Everything the ledger knows about one message."""

    row: LedgerRow
    changes: list[StateChange]
    tool_calls: list[ToolCallRow]
    outbox: list[OutboxRow]
    rejected: list[RejectedMessage] = []
    """Deliveries of the same message that were not taken in."""
    jobs: list[JobRow] = []
    """What the message led to in other sessions."""


async def named_message(ledger: Ledger, name: str, session_key: str | None = None) -> LedgerRow | None:
    """The message that goes by this run id, number, or id on its channel: the same in a chat and on the command line.

    With ``session_key``, only messages of that session are found.
    """

    def is_meant(row: LedgerRow | None) -> bool:
        return row is not None and session_key in (None, row.session_key)

    if not name:
        return None
    if is_meant(row := await ledger.by_run(_PUBLIC_ID.sub("", name))):
        return row
    number = name.removeprefix("#")
    is_number = number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER
    if is_number and is_meant(row := await ledger.get(int(number))):
        return row
    return next(filter(is_meant, await ledger.by_message_id(name)), None)


async def life_of(runtime: Runtime, row: LedgerRow) -> Life:
    ledger = runtime.stores.ledger
    # Queries that are asked together share one trip to the ledger's thread.
    story, calls, outbox, rejected, jobs = await asyncio.gather(
        ledger.history(row.id),
        ledger.tool_calls(row.id),
        ledger.outbox_of(row.id),
        ledger.rejected([row.run_id, *row.body.message_ids]),
        ledger.jobs(run_id=row.run_id),
    )
    # Two channels, and two chats, may use the same ids.
    own = [
        note
        for note in rejected
        if note.channel in (row.source, row.route.get("channel")) and note.chat in ("", row.route.get("to"))
    ]
    return Life(row, story, calls, outbox, own, jobs)


def story_of(runtime: Runtime, runs: Runs, life: Life) -> list[str]:
    """Tells in sentences what became of the message, in the time zone of the user."""
    now, zone = runtime.clock.now_ms(), user_zone(runtime.config.current)
    record = runs.index.get(life.row.run_id)
    disk = record.disk if record is not None and life.row.ended_at is None else None
    told = tell(life, now, zone, disk)
    return [*_origin(life.row), *told, *(_job_text(job) for job in life.jobs)]


def _origin(row: LedgerRow) -> list[str]:
    """Says which session wrote the message, if another one did."""
    source = row.body.provenance.get("sourceSessionKey")
    tool = row.body.provenance.get("sourceTool")
    return [f"It came from the session {shown_key(str(source))} by {tool}."] if source else []


def _job_text(job: JobRow) -> str:
    """What a message led to in another session. ``why`` of its run tells more."""
    state, run_id = job.state, step_id(job.id, "work" if job.kind == "spawn" else "ask")
    if job.kind == "spawn":
        told = "its result was posted" if state.get("delivered") else "its result was not posted"
        if state.get("withheld"):
            told = f"its result was not posted on the channel, because {_REASONS[ReasonCode.SEND_POLICY]}"
        ended = f"{state.get('status')}; {told}" if job.ended_at is not None else "at work"
        name = shortened(str(state.get("label") or state.get("task")), 60)
        return f"It started the sub-agent “{name}” ({state.get('child')}, run {run_id}): {ended}."
    way = "has ended" if job.ended_at is not None else "goes on"
    return f"It wrote to the session {shown_key(str(state.get('target')))} (run {run_id}); that conversation {way}."


# Words for codes


def reason_text(reason: Reason) -> str:
    """Puts the reason for a state into the words that clients see."""
    detail = reason.detail
    if reason.code is ReasonCode.TIME_LIMIT:
        detail = f" of {duration(int(detail) * 1000)} and was stopped" if detail.isdigit() else ""
    return _REASONS[reason.code].format(detail=detail)


def stopped_by(reason: str) -> str | None:
    """Puts an ``AbortReason`` into words. None for any other text."""
    return _STOPPED_BY.get(reason)


def abort_text(reason: Reason) -> str:
    """Puts the reason for a failed or stopped run into the words that clients see, or the code that they know."""
    return reason.detail if reason.code is ReasonCode.STOPPED else reason_text(reason)


def delivery_text(part: OutboxRow) -> str:
    """Tells what is wrong with the delivery of a part, in the words that clients see. Empty when nothing is."""
    if part.code is DeliveryCode.REPEATED:
        return "possibly delivered twice: it was in doubt whether the first try arrived"
    if part.code is DeliveryCode.DROPPED:
        return "dropped by hand"
    if part.code is DeliveryCode.GIVEN_UP:
        problem = part.error or "the Gateway stopped while sending it"
        return f"in doubt {part.doubts} times, so not sent again: {problem}"
    if not part.doubts:
        return part.error
    if part.code is DeliveryCode.ANSWERED_ERROR:
        return f"the platform reported an error, so it is uncertain whether it arrived: {part.error}"
    word = "unanswered" if part.code is DeliveryCode.UNANSWERED else "interrupted"
    head = word if part.doubts == 1 else f"{word} {part.doubts} times"
    return f"{head}: {part.error}" if part.error else head


def tell(life: Life, now: int, zone: tzinfo | None = UTC, disk: DiskWait | None = None) -> list[str]:
    """Tells what became of a message and why, in the order it happened. ``zone`` None is the machine's own zone.

    ``disk`` says whether a message that has not ended waits for the disk now.
    """
    row = life.row
    changes = [change for change in life.changes if change.reason.code is not ReasonCode.SHUTDOWN]
    return [
        f"Accepted {_on(row.accepted_at, zone)} from {row.source}, for session {row.session_key}.",
        *_put_together(row),
        *_disarmed("the message", [(change.before, change.after) for change in row.body.disarmed]),
        *_came_again(life.rejected, zone),
        *_waiting(row, changes, now),
        *_working(row, changes, now, zone),
        *_tools(row, changes, life.tool_calls),
        *_disarmed_results(row),
        *_continued(row),
        *_messaged(row),
        *_disk(row, disk),
        *_ending(row, changes, zone),
        *_delivering(row, life.outbox, now),
    ]


def summary(row: LedgerRow, text: str, now: int, zone: tzinfo | None = UTC) -> str:
    """Makes one line for a list: when, what was said, what came of it. ``text`` is the message as it was sent."""
    said = f" {quoted(text, 60)}" if text.strip() else ""
    head = f"{_stamp(row.accepted_at, zone)}{said}"
    if row.state not in END_STATES:
        since = row.started_at if row.state == "running" and row.started_at is not None else row.accepted_at
        return f"{head}: {row.state} for {duration(now - since)}"
    if row.state == "answered":
        reply = quoted(_reply(row), 60) if _reply(row) else "answered"
        return f"{head}: {reply} after {duration((row.ended_at or row.accepted_at) - row.accepted_at)}"
    if answering := shortened(answered_by(row) or "", LONGEST_NAME):
        return f"{head}: answered in run {answering}"
    why = _stopped_by(row) or _cause(row)
    word = "stopped" if _stopped_by(row) else row.state
    return f"{head}: {word}{f' ({why})' if why else ''}"


def answered_by(row: LedgerRow) -> str | None:
    """Returns the id of the run that took this message in, if one did."""
    by = (row.result or {}).get("answeredBy")
    return by if isinstance(by, str) else None


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
    told: list[str] = []
    for note in rejected:
        last = f" {_on(note.last_at, zone)}" if note.count == 1 else f", the last time {_on(note.last_at, zone)}"
        if note.code is ReasonCode.REDELIVERED:
            told.append(f"The same message came again {_times(note.count)}{last}; it was recognised and ignored.")
        else:
            why = reason_text(Reason(note.code, shortened(note.detail, LONGEST_REASON)))
            told.append(f"Before that it was turned away {_times(note.count)}{last}: {why}.")
    return told


def tell_turned_away(notes: Sequence[RejectedMessage], zone: tzinfo | None = UTC) -> list[str]:
    """Tells what is known of a message that was not taken in."""
    told: list[str] = []
    for note in notes:
        sender = f" from {shortened(note.sender, LONGEST_NAME)}" if note.sender else ""
        chat = f" in {shortened(note.chat, LONGEST_NAME)}" if note.chat and note.chat != note.sender else ""
        more = f", and {_times(note.count - 1)} more until {_on(note.last_at, zone)[3:]}" if note.count > 1 else ""
        told.append(f"It came {_on(note.first_at, zone)} on {note.channel}{sender}{chat}{more}.")
        why = reason_text(Reason(note.code, shortened(note.detail, LONGEST_REASON)))
        if note.code is ReasonCode.REDELIVERED:
            told.append(f"It started nothing: {why}, and what became of the first delivery is no longer on record.")
        elif note.code is ReasonCode.NOT_ADDRESSED:
            told.append(f"It was not taken in: {why}.")
        else:
            told.append(f"It was not taken in: {why}. Its words were not kept.")
    return told


def _waiting(row: LedgerRow, changes: Sequence[StateChange], now: int) -> list[str]:
    # A stop is noted before the run has ended, so that it outlives a crash. That is no wait.
    waits = [
        place
        for place, change in enumerate(changes)
        if change.state == "queued" and change.reason.code is not ReasonCode.STOPPED
    ]
    restarted = any(changes[place].reason.code is ReasonCode.RESTARTED for place in waits)
    told = ["The Gateway stopped before it began and took it up again."] if restarted else []
    queued = next((place for place in waits if changes[place].reason.code is not ReasonCode.RESTARTED), None)
    if queued is None:
        return [*told, *_pause_before_run(row, changes, now)]
    return [*_in_line(changes, queued, now), *told]


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
    told: list[str] = []
    if len(runs) > 1:
        stops = len(runs) - 1
        told.append(
            f"The Gateway stopped {_times(stops)} while it worked on it and took it up again"
            f"{', the last time' if stops > 1 else ''} {_on(runs[-1], zone)}."
        )
    if not runs:
        return told
    if row.body.command:
        took = duration((now if row.ended_at is None else row.ended_at) - runs[0])
        worked = "has been working" if row.ended_at is None else "worked"
        return [f"It is a command, and the Gateway {worked} on it for {took}."]
    model = (row.result or {}).get("model")
    on = f" on {shortened(model, LONGEST_NAME)}" if isinstance(model, str) and model.strip() else ""
    if row.ended_at is None:
        told.append(f"It has been running{on} for {duration(now - runs[0])}.")
    else:
        told.append(f"It ran{on} for {duration(row.ended_at - runs[0])}.")
    return [*_failures(row, zone), *told]


def _failures(row: LedgerRow, zone: tzinfo | None) -> list[str]:
    """Tells which models and keys failed before the run went on with another."""
    found = (row.result or {}).get("failures")
    try:
        failures = msgspec.convert(found, list[ModelFailure]) if found else []
    except msgspec.ValidationError:
        return []
    told: list[str] = []
    for failure in failures:
        name, words = shortened(failure.model, LONGEST_NAME), failure_text(failure.kind)
        key = f" with the key {shortened(failure.credential, LONGEST_NAME)}" if failure.credential else ""
        if failure.cooldown_until:
            rest = _stamp(failure.cooldown_until, zone)
            told.append(f"{name} was not asked: {words}, so it rests{key} until {rest}.")
        else:
            said = f" ({shortened(failure.said, LONGEST_REASON)})" if failure.said else ""
            told.append(f"{name} failed{key}: {words}{said}.")
    return told


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
    found = {result: results.count(result) for result in results if result}
    if not found:
        return ""
    alone = len(results) == 1
    return f" ({', '.join(how if alone else f'{_number(count)} {how}' for how, count in found.items())})"


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
    told: list[str] = []
    if asked:
        told.append(f"The output limit cut its answer, and the model was asked to go on {_times(asked)}.")
    if cut and most and asked >= most:
        told.append(
            f"The answer was still not whole then. {'Once' if most == 1 else f'{most} times'} is the most it is asked "
            "(agents.defaults.maxLengthContinuations), so it ends where it was cut."
        )
    elif cut:
        told.append("The output limit cut its answer, and the model was not asked to go on.")
    return told


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
            return [_sentence(f"Failed {at}: {_cause(row) or 'no reason was recorded'}")]
        case "expired":
            return [_sentence(f"Expired {at}: {_cause(row) or 'it had waited too long to be answered'}")]
        case _:
            return [_superseded(row, at)]


def _answer(row: LedgerRow, changes: Sequence[StateChange], at: str) -> str:
    if reply := _reply(row):
        return f"Answered {at}: {quoted(reply, LONGEST_QUOTE)}"
    if all(change.state != "running" for change in changes):
        return f"It needed no run of the agent and was done {at}."
    if row.reason.code is not ReasonCode.NONE:
        return _sentence(f"It ended {at} with a notice instead of an answer: {_cause(row)}")
    return f"Answered {at}."


def _silence(row: LedgerRow, changes: Sequence[StateChange], at: str) -> str:
    because = f": {_cause(row)}" if row.reason.code is not ReasonCode.NONE else ""
    if row.body.command:
        return f"It was done {at} without an answer{because}."
    if _is_withheld(row) and (reply := _reply(row)):
        return f"Answered {at}: {quoted(reply, LONGEST_QUOTE)}"
    if all(change.state != "running" for change in changes):
        return f"It got no answer and needed no run of the agent; done {at}{because}."
    return f"The agent decided {at} to say nothing{because}."


def _superseded(row: LedgerRow, at: str) -> str:
    answering = shortened(answered_by(row) or "", LONGEST_NAME)
    if answering and row.reason.code is ReasonCode.COLLECTED:
        return f"It was answered together with later ones: they became one prompt {at}, in run {answering}."
    if answering:
        return f"Its words were taken in by run {answering} {at}; the answer is there."
    if row.reason.code is ReasonCode.STOPPED:
        return f"Stopped {at}: {_stopped_by(row) or _cause(row)}."
    return _sentence(f"It ended {at} without an answer of its own: {_cause(row) or 'no reason was recorded'}")


def _reply(row: LedgerRow) -> str:
    text = (row.result or {}).get("text")
    return text if isinstance(text, str) and text.strip() else ""


def _cause(row: LedgerRow) -> str:
    return shortened(reason_text(row.reason), LONGEST_REASON)


def _stopped_by(row: LedgerRow) -> str | None:
    """Tells who stopped the message. None when that is not known."""
    return stopped_by(row.reason.detail) if row.reason.code is ReasonCode.STOPPED else None


# Delivery


def _delivering(row: LedgerRow, outbox: Sequence[OutboxRow], now: int) -> list[str]:
    if _is_withheld(row):
        rest = "The rest" if outbox else "The notice" if row.state in ("failed", "expired") else "The reply"
        withheld = f"{rest} was not sent: {_REASONS[ReasonCode.SEND_POLICY]}."
        return [*_on_channels(row, outbox, now), withheld]
    return _on_channels(row, outbox, now)


def _is_withheld(row: LedgerRow) -> bool:
    """Whether the send policy kept a reply, or the rest of it, from its channel."""
    return bool((row.result or {}).get("withheld"))


def _on_channels(row: LedgerRow, outbox: Sequence[OutboxRow], now: int) -> list[str]:
    if not outbox:
        if is_delivered(row.route):
            return []
        if row.state == "answered" and _reply(row):
            return ["The answer went to the clients that were connected and is kept in the session."]
        if row.state in ("failed", "expired"):
            return ["The clients that were connected were told so."]
        return []
    what = "The notice" if row.state in ("failed", "expired") else "The reply"
    sentences: list[str] = []
    for channel in dict.fromkeys(part.channel for part in outbox):
        sentences += _on_channel(what, channel, [part for part in outbox if part.channel == channel], now)
    return sentences


def _on_channel(reply: str, channel: str, parts: Sequence[OutboxRow], now: int) -> list[str]:
    of_all = f" of {len(parts)}" if len(parts) > 1 else ""
    told: list[str] = []
    if sent := [part for part in parts if part.state == "sent"]:
        told.append(_sent(reply, channel, sent, len(parts)))
    if sending := [part for part in parts if part.state == "sending"]:
        told.append(f"{_parts(reply, len(sending), of_all)} being sent to {channel} now.")
    if waiting := [part for part in parts if part.state == "pending"]:
        told.append(
            f"{_parts(reply, len(waiting), of_all)} waiting to be delivered to {channel}{_tries(waiting, now)}."
        )
    dead = [part for part in parts if part.state == "dead"]
    if uncertain := [part for part in dead if part.doubts]:
        what = f"{len(uncertain)}{of_all} parts" if of_all else reply.lower()
        told.append(_sentence(f"Whether {what} reached {channel} is not known: {_problem(uncertain)}"))
    if dead := [part for part in dead if part not in uncertain]:
        what = f"{len(dead)}{of_all} parts {'was' if len(dead) == 1 else 'were'}" if of_all else f"{reply} was"
        told.append(_sentence(f"{what} not delivered to {channel}: {_problem(dead) or 'no reason was recorded'}"))
    return told


def _sent(reply: str, channel: str, sent: Sequence[OutboxRow], total: int) -> str:
    count = "" if total == 1 else f" in {total} parts" if len(sent) == total else f": {len(sent)} of {total} parts"
    tries = max(part.attempts for part in sent)
    after = f" after {tries} tries" if tries > 1 else ""
    note = _problem(sent)
    delivered = "Delivered" if reply == "The reply" else f"{reply} was delivered"
    return _sentence(f"{delivered} to {channel}{count}{after}{f' ({note})' if note else ''}")


def _tries(waiting: Sequence[OutboxRow], now: int) -> str:
    tries, due = max(part.attempts for part in waiting), min(part.next_at for part in waiting)
    notes = [f"{tries} {'try' if tries == 1 else 'tries'} so far"] if tries else []
    notes += [f"next in {duration(due - now)}"] if due > now else []
    if any(part.doubts for part in waiting):
        notes.append("it may have arrived already: nobody learned what became of the last try")
    notes += [f"last problem: {problem}"] if (problem := _problem(waiting)) else []
    return f" ({'; '.join(notes)})" if notes else ""


def _parts(reply: str, count: int, of_all: str) -> str:
    if not of_all:
        return f"{reply} is"
    return f"{count}{of_all} parts {'is' if count == 1 else 'are'}"


def _problem(parts: Sequence[OutboxRow]) -> str:
    """Returns the first problem of the parts. It leaves out how often a part may have arrived."""
    problems = (part.error if part.code is DeliveryCode.NONE else delivery_text(part) for part in parts)
    return shortened(next((problem for problem in problems if problem), ""), LONGEST_REASON)


# Words


def quoted(text: str, limit: int) -> str:
    return f"“{shortened(text, limit)}”"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


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
