"""How a message ends: its last state in the ledger, what its channel delivers, and who is notified."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from functools import partial

import msgspec

from openclaw.agent.run_result import RunResult, without_answer
from openclaw.agent.runtime import Runtime
from openclaw.clock import Chance
from openclaw.messages import Route
from openclaw.outbound.answer_filter import closed_up, reasoning_message
from openclaw.outbound.blocks import Rest, rest_of
from openclaw.outbound.reply import (
    MediaRef,
    ReplyShape,
    Speaker,
    failure_notice,
    is_repeated,
    parts_for,
    reply_shape,
    with_footer,
)
from openclaw.outbound.reply_files import Files
from openclaw.outbound.stream import stored_refs
from openclaw.redact import redact
from openclaw.runs.bookkeeping import Bookkeeping
from openclaw.runs.lane import Lane
from openclaw.runs.reasons import abort_text, reason_text
from openclaw.runs.run import Run, RunIndex, RunStopping, StoreFiles
from openclaw.storage import faults
from openclaw.storage.disk_errors import FOREVER, UNKNOWN_TRIES, describe_failure, refusal_text
from openclaw.storage.errors import Fenced, UnknownMessage
from openclaw.storage.message_ledger import (
    NO_REASON,
    AbortReason,
    MessageState,
    OutboxPart,
    OutboxRow,
    Reason,
    ReasonCode,
)
from openclaw.storage.transcripts import Transcript

log = logging.getLogger("openclaw.runs")
LONG_REPLY = 20_000
"""Replies with more characters are cut into parts on another thread."""


class Ending(msgspec.Struct, frozen=True):
    """The last state of a message in the ledger, and the reason for it."""

    state: MessageState
    reason: Reason = NO_REASON


WITHHELD = Ending("silent", Reason(ReasonCode.SEND_POLICY))
"""The end of a message whose reply the send policy does not let out."""
ANNOUNCED_SOURCES = frozenset({"cron", "heartbeat", "hook"})
"""Runs whose answer somebody else delivers, with the files that are stored with its end."""


def ending_of(result: RunResult) -> Ending:
    match result.outcome:
        case "ok" if result.taken_in:
            return Ending("superseded", Reason(ReasonCode.ANSWERED_BEFORE))
        case "ok" if result.silent:
            return Ending("silent", Reason(ReasonCode.NO_REPLY))
        case "ok" if result.notice:
            return Ending("answered", Reason(ReasonCode.NO_WORDS))
        case "ok":
            return Ending("answered")
        case "error":
            return Ending("failed", Reason(ReasonCode.OTHER, result.error or "unknown error"))
        case "aborted" if result.error == AbortReason.TIMEOUT:
            return Ending("failed", Reason(ReasonCode.TIME_LIMIT, str(result.account.time_limit_s or "")))
        case "aborted":
            return Ending("superseded", abort_reason(result.error or ""))


def abort_reason(stopped_by: str) -> Reason:
    """Returns the ledger's reason for a message that was stopped by an ``AbortReason``, or by something in words."""
    match stopped_by:
        case AbortReason.TIMEOUT:
            return Reason(ReasonCode.TIME_LIMIT)
        case AbortReason.REMOVED:
            return Reason(ReasonCode.REMOVED_FROM_QUEUE)
        case AbortReason.WITHDRAWN:
            return Reason(ReasonCode.WITHDRAWN)
        case _ if stopped_by in frozenset(AbortReason):
            return Reason(ReasonCode.STOPPED, stopped_by)
        case _:
            return Reason(ReasonCode.OTHER, stopped_by)


def unsent(result: RunResult, stored: Sequence[OutboxRow]) -> list[Rest]:
    """For each answer what its channel has not got yet. ``stored`` is what the outbox holds of the reply."""
    refs = stored_refs(stored)
    return [rest_of(answer.text, list(dict.fromkeys(answer.media)), refs) for answer in result.said]


def reply_parts(
    route: Route,
    ending: Ending,
    result: RunResult,
    shape: ReplyShape,
    stored: Sequence[OutboxRow] = (),
    files: Sequence[Files] = (),
    chance: Chance = random.random,
) -> list[OutboxPart]:
    """Returns what the channel delivers: what was said, with its files, then one notice if the run failed.

    ``stored`` is what the outbox holds of the reply already: what its blocks have said is not said again. The rest is
    their last block and has a pause before it as well. Nothing is delivered for messages of the web client and for
    runs that somebody stopped.
    """
    if not route.is_delivered or ending.state not in ("answered", "failed", "expired"):
        return []
    notice = result.notice if ending.state == "answered" else failure_notice(reason_text(ending.reason))
    reasoning = reasoning_message(result.reasoning)
    texts: list[tuple[str, tuple[MediaRef, ...]]] = [(reasoning, ())] if reasoning else []
    for index, (answer, rest) in enumerate(zip(result.said, unsent(result, stored), strict=True)):
        text = rest.text
        if result.messaged and (is_repeated(text, result.messaged) or (rest == Rest(answer.text) and not answer.media)):
            text = ""  # The agent has said it by itself. An answer that was sent in part goes on to its end.
            if not answer.media:
                continue
        own = files[index] if index < len(files) else Files()
        text = closed_up(text) if answer.media else text
        text = own.under(text)
        if index == len(result.said) - 1 and result.account.footer:
            text = with_footer(text, result.account.footer) if text.strip() else result.account.footer
        texts.append((text, own.media))
    first = max((row.part for row in stored), default=-1) + 1
    in_blocks = bool(stored_refs(stored))
    parts: list[OutboxPart] = []
    for text, media in texts:
        block = parts_for(route, [text], shape, media, result.reply_to, first=first + len(parts))
        if in_blocks and block and (pause := shape.pause(chance)):
            block[0].payload["pauseMs"] = pause
        parts += block
    if notice:
        parts += parts_for(route, [notice], shape, (), result.reply_to, first=first + len(parts))
    return parts


def failure_text(error: Exception) -> str:
    """Return the text about an unexpected error for the sender of a message."""
    why = describe_failure(error) if isinstance(error, OSError) and refusal_text(error) is not None else str(error)
    return redact(f"Something went wrong inside the Gateway: {why or type(error).__name__}")


class Endings:
    """Ends runs: first on disk, then for everyone who follows them. Every message gets exactly one end."""

    def __init__(self, runtime: Runtime, index: RunIndex, books: Bookkeeping) -> None:
        self._runtime = runtime
        self._index = index
        self._books = books

    async def end(
        self,
        run: Run,
        result: RunResult,
        written: Transcript | None = None,
        ending: Ending | None = None,
        files: Sequence[Files] = (),
    ) -> None:
        """End the message. The result decides how, unless ``ending`` is given. ``files`` are those of each answer.

        Every message gets an end, whatever goes wrong. If the end that it should have cannot be written for about a
        minute, it fails with a notice. If that cannot be written either, it gets an end without one. Both are tried in
        turn until one of them is written.
        """
        ending = ending or ending_of(result)
        faults.point("finish.before")
        if written is not None:
            faults.point("sync.before")
        try:
            await self._write(run, ending, result, written, files)
        except Fenced:
            raise
        except UnknownMessage:
            log.error("the ledger has lost message %s, whose run has ended", run.run_id)
        except Exception as error:
            log.exception("the end of %s cannot be written", run.run_id)
            result, ending = await self._end_without_reply(run, ending, result, error)
        faults.point("finish.after")
        self.report(run, result, ending.reason)

    async def stop(self, lane: Lane, run_id: str | None, reason: AbortReason) -> list[str]:
        """Stop one run of the lane, or all of them, the waiting ones included. Returns the ids of the stopped runs.

        The runs are stopped at once. When this returns, the ledger holds the stop, so that it also outlives a crash.
        """
        stopped = [run for run in lane.runs if (run_id is None or run.run_id == run_id) and run.abort.abort(reason)]
        for run in stopped:
            run.emit(RunStopping(reason))
        noted = self._books.note_stopped(stopped, abort_reason(reason))
        for run in stopped:
            if lane.withdraw(run):
                self._books.in_background(self.end(run, without_answer("aborted", reason)))
        await noted
        return [run.run_id for run in stopped]

    def end_steered(self, run: Run, run_id: str) -> None:
        """End a steered message, because the run has put its text before the model."""
        steered = self._index.get(run_id)
        if steered is not None:
            run.absorb(steered)
            reason, by = Reason(ReasonCode.STEERED, run.run_id), {"answeredBy": run.run_id}
            end = partial(self._runtime.stores.ledger.finish, steered.row.id, "superseded", reason=reason, result=by)
            self._books.in_background(self._books.until_written(end, tries=FOREVER))

    def report(self, run: Run, result: RunResult, reason: Reason) -> None:
        """Notify everyone who follows the run, or waits for one of its messages, of its end."""
        # A run that took too long failed: everyone learns why, and not only that it was stopped.
        outcome = "error" if reason.code is ReasonCode.TIME_LIMIT else result.outcome
        error = None if outcome == "ok" else abort_text(reason)
        for ended in (run, *run.absorbed):
            ended.started_at = ended.started_at or run.started_at
            ended.end(outcome, self._runtime.clock.now_ms(), error, result)
            self._index.ended(ended.run_id)
        run.finish()

    async def may_not_send(self, run: Run, tries: float = UNKNOWN_TRIES) -> bool:
        """Return whether the send policy forbids a reply on the channel of the message."""
        row = run.row
        if not row.route.is_delivered:
            return False
        ask = partial(self._runtime.may_send, row.agent_id, row.session_key, row.route)
        return not await self._books.until_written(ask, run.disk, tries)

    async def files(self, run: Run, store: StoreFiles, result: RunResult) -> list[Files]:
        """Store the files of each answer for the channel. The message does not end before they are stored."""
        announced = run.row.source in ANNOUNCED_SOURCES
        if not (run.row.route.is_delivered or announced) or ending_of(result).state == "superseded":
            return []
        if not any(answer.media for answer in result.said):
            return []
        sent = [rest.files for rest in unsent(result, await self._sent_before(run))]

        async def store_all() -> list[Files]:
            answers = zip(result.said, sent, strict=True)
            return [await store(answer.media, answer.voice, skip=skip) for answer, skip in answers]

        return await self._books.until_written(store_all, run.disk)

    async def _write(
        self,
        run: Run,
        ending: Ending,
        result: RunResult,
        written: Transcript | None = None,
        files: Sequence[Files] = (),
        tries: float = UNKNOWN_TRIES,
    ) -> None:
        summary = result.summary()
        if files and run.row.source in ANNOUNCED_SOURCES:
            summary["files"] = msgspec.to_builtins(files[-1])
        row_id, disk = run.row.id, run.disk
        parts = await self._parts(run, ending, result, files, tries)
        if parts and await self.may_not_send(run, tries):
            summary["withheld"] = True
            if ending.state == "answered" and parts[0].part == 0:  # Otherwise its first blocks were sent.
                ending = WITHHELD
            parts = []
        await self._books.until_written(
            lambda: self._runtime.stores.ledger.finish(
                row_id, ending.state, reason=ending.reason, result=summary | disk.noted(), outbox=parts, written=written
            ),
            disk,
            tries,
        )

    async def _end_without_reply(
        self, run: Run, ending: Ending, result: RunResult, error: Exception
    ) -> tuple[RunResult, Ending]:
        """End a message whose end could not be written as it should be. Returns how it has ended."""
        result = msgspec.structs.replace(
            without_answer(result.outcome, result.error), speech=result.speech, taken_in=result.taken_in
        )
        if ending.state == "answered":
            result = without_answer("error", failure_text(error))
            ending = ending_of(result)

        async def end() -> None:
            try:
                await self._write(run, ending, result, tries=0)
            except (Fenced, UnknownMessage):
                raise
            except Exception:
                log.exception("nor can a notice be sent for %s", run.run_id)
                await self._runtime.stores.ledger.finish(run.row.id, ending.state, reason=ending.reason)

        with contextlib.suppress(UnknownMessage):
            await self._books.until_written(end, run.disk, FOREVER)
        return result, ending

    async def _sent_before(self, run: Run, tries: float = UNKNOWN_TRIES) -> list[OutboxRow]:
        """Return what the channel got while the reply was being written. After this it gets no more of it."""
        sending = await run.finish_sending()
        if not sending and not run.row.attempts:
            return []
        ledger, row_id = self._runtime.stores.ledger, run.row.id
        return await self._books.until_written(lambda: ledger.outbox_of(row_id), run.disk, tries)

    async def _parts(
        self, run: Run, ending: Ending, result: RunResult, files: Sequence[Files], tries: float
    ) -> list[OutboxPart]:
        """Return what the channel delivers now, besides what it got while the reply was being written."""
        row = run.row
        if not row.route.is_delivered:
            return []
        stored = await self._sent_before(run, tries)
        speaker = Speaker(agent_id=row.agent_id, model=run.model, thinking=run.thinking)
        shape = reply_shape(self._runtime.config.current, row.route, speaker)
        make = partial(reply_parts, row.route, ending, result, shape, stored, files)
        # Cutting a very long reply takes a while, and other conversations continue meanwhile.
        return await asyncio.to_thread(make) if sum(len(answer.text) for answer in result.said) > LONG_REPLY else make()
