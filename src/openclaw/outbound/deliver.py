"""The outbox worker: delivers the parts that runs left in the outbox to their channels, in order.

A part is marked ``sending`` on disk before it is handed to a channel. So after a crash it is known which parts may have
arrived. Such a part is sent again. A channel with idempotency keys drops the second copy. On other channels the part is
marked as a possible duplicate, because a reply that comes twice is better than none, and it is sent again only a few
times. A part whose try got no answer waits until its channel answers a question again, at most until it expires. A part
whose try was answered with an error is retried after a short pause.

Only the oldest pending part of a conversation is ever due (``Outbox.outbox_due``). So a part that waits for another
attempt holds back what follows it, however many parts wait and however often the Gateway restarts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from openclaw.clock import Backoff, Chance, Clock, wait_within
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.storage import faults
from openclaw.storage.disk_errors import FOREVER, until_written
from openclaw.storage.message_ledger import DeliveryCode, Ledger, OutboxRow, PartState
from openclaw.text import shortened
from openclaw.untrusted_text import disarmed_name

log = logging.getLogger("openclaw.outbound")

PART_EXPIRY_MS = 24 * 3600 * 1000
PART_MAX_ATTEMPTS = 10
"""Attempts that the platform may answer with an error. An unreachable one is waited for until the part expires."""
PARALLEL_PER_CHANNEL = 4
"""Conversations that one channel serves at the same time."""
BATCH = 500
MOST_LOOKED_AT = 8000
"""So many parts are looked through for those of this node."""
LOOK_AGAIN_S = 0.25
FOR_EVER = 1 << 62
IDLE_S = 30.0
SETTLE_S = 5.0
RETRY = Backoff(initial_s=1.0, max_s=300.0, jitter=0.1)
"""The pauses while the platform cannot be reached."""
ANSWERED_PAUSES_S = (1.0, 5.0, 20.0, 60.0, 120.0, 300.0, 900.0, 1800.0, 3600.0)
"""The pause after the first, second … attempt that the platform answered with an error."""
LONGEST_RETRY_AFTER_S = 3600.0
"""A platform that asks for a longer pause is tried after this one, so that the part does not expire meanwhile."""
MAX_DOUBTS = 3
"""The part is given up when the Gateway has died this often while it sent it.

This excludes a part that its platform left unanswered: it is retried until the platform answers or the part expires.
"""
ASK_AGAIN_S = 20.0
"""A channel that left a part unanswered is asked this often whether it answers again."""
DOUBT_PAUSES_S = (0.0, 300.0, 1800.0, 7200.0)
"""The least pause after the first, second … try that got no answer although the channel answers other questions."""

LONGEST_REASON = 200
LONGEST_PAUSE_MS = 60_000
"""The longest pause before a block of a reply, whatever is configured."""

DestinationKey: TypeAlias = tuple[str, str, str, str]
Outcome: TypeAlias = Literal["sent", "dead", "later"]


class Outlet(Protocol):
    """What the worker needs from the channels."""

    def ready(self, channel: str, route: Route) -> bool:
        """Return whether the channel can send now. If not, the part waits and no attempt is counted."""
        ...

    def idempotent(self, channel: str) -> bool:
        """Return whether the channel drops a second send with the same key."""
        ...

    async def answers(self, channel: str, route: Route) -> bool:
        """Ask the channel's platform something harmless. False when no answer comes."""
        ...

    async def send(self, channel: str, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        """Send one part. Raises ``SendFailed``."""
        ...


def destination_key(row: OutboxRow) -> DestinationKey:
    """Return the conversation of a part. Parts of one conversation are delivered one after the other."""
    route = row.route
    return row.channel, route.account_id or "", route.to, str(route.thread_id or "")


def pause_s(doubts: int) -> float:
    """The least pause before a part is sent again that may have arrived this often."""
    return DOUBT_PAUSES_S[min(doubts, len(DOUBT_PAUSES_S)) - 1] if doubts else 0.0


def without_files(message: OutgoingMessage, why: str) -> str:
    """Return the text of a message whose files are not sent."""
    names = ", ".join(disarmed_name(item.file_name or "") or item.mime_type for item in message.media)
    note = f"⚠️ The file {names} was not sent: {shortened(why, LONGEST_REASON).rstrip('.')}."
    return f"{message.text}\n\n{note}" if message.text.strip() else note


class Delivery:
    """The worker. ``run`` delivers until it is cancelled."""

    def __init__(
        self,
        ledger: Ledger,
        outlet: Outlet,
        clock: Clock,
        *,
        expiry_ms: int = PART_EXPIRY_MS,
        max_attempts: int = PART_MAX_ATTEMPTS,
        chance: Chance = random.random,
        is_ours: Callable[[str, Route], bool] = lambda _channel, _route: True,
        tell_others: Callable[[], None] = lambda: None,
        woken: asyncio.Event | None = None,
    ) -> None:
        """``is_ours`` tells which parts this node sends, where there are several: those of the accounts that it has.

        ``tell_others`` is called when there are new parts for other nodes. Setting ``woken`` does the same as ``wake``.
        """
        self._ledger = ledger
        self._is_ours = is_ours
        self._tell_others = tell_others
        self._told_up_to = 0
        """The newest part of another node that the others were told of."""
        self._outlet = outlet
        self._clock = clock
        self._expiry_ms = expiry_ms
        self._max_attempts = max_attempts
        self._chance = chance
        self._woken = woken or asyncio.Event()
        self._busy: dict[DestinationKey, asyncio.Task[None]] = {}
        self._waiters: dict[int, set[asyncio.Event]] = {}
        self._wall_ahead_ms = clock.now_ms() - clock.monotonic() * 1000

    def _now(self) -> int:
        """Return the time of the wall clock at the start plus the time since.

        Setting the wall clock later has no effect on it.
        """
        return int(self._clock.monotonic() * 1000 + self._wall_ahead_ms)

    def _is_too_old(self, row: OutboxRow) -> bool:
        # The row has the time of the wall clock. If that was set back meanwhile, the wall clock counts.
        return min(self._now(), self._clock.now_ms()) - row.created_at >= self._expiry_ms

    def wake(self) -> None:
        """Make the worker look at the outbox now, after a new part or when a channel has connected."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        await until_written(self._correct_times, self._clock.sleep, unknown_tries=FOREVER)
        while True:
            self._woken.clear()
            try:
                looked_at = await self.deliver_due()
                wait_s = await self._until_next(looked_at)
            except Exception:
                log.exception("the outbox could not be read; trying again")
                wait_s = RETRY.initial_s
            await wait_within(self._woken, wait_s, self._clock)

    async def stop(self, timeout_s: float = SETTLE_S) -> None:
        """Wait for sends under way and cancels those that take too long. They are in doubt after the next start."""
        tasks = list(self._busy.values())
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=timeout_s)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def deliver_due(self) -> int:
        """Start the delivery of every conversation that has a due part and is not being served.

        It returns the time up to which it looked.
        """
        now = self._now()
        rows, is_full = await self._due(now)
        put_off: list[OutboxRow] = []
        for row in sorted(rows, key=lambda row: row.id):
            key = destination_key(row)
            if key in self._busy:
                continue
            if not self._outlet.ready(key[0], row.route):
                put_off.append(row)
            elif sum(busy[0] == key[0] for busy in self._busy) < PARALLEL_PER_CHANNEL:
                self._serve(key, row)
        # These waits come last. If the loop above waited, a part could be sent meanwhile, and ``rows`` would still
        # call it due.
        for row in put_off:
            await self._wait_for_channel(row, full=is_full)
        return now

    async def _due(self, until: int) -> tuple[list[OutboxRow], bool]:
        """Return our parts that are due until then, and whether there may be more.

        When it finds new parts of other nodes, it tells them to look.
        """
        limit = BATCH
        while True:
            result = await self._ledger.outbox_due(until, limit)
            ours = [row for row in result if self._is_ours(row.channel, row.route)]
            if ours or len(result) < limit or limit >= MOST_LOOKED_AT:
                break
            limit *= 4
        newest = max((row.id for row in result), default=0)
        if len(ours) < len(result) and newest > self._told_up_to:
            self._told_up_to = newest
            self._tell_others()
        return ours, len(result) == limit

    async def leave(self, serves: Callable[[str, str], bool]) -> None:
        """Wait for what is being sent through accounts, given by channel and account id, that go to another node."""
        tasks = [task for key, task in self._busy.items() if serves(key[0], key[1])]
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_S)

    async def wait(self, ledger_id: int, timeout_s: float) -> list[OutboxRow]:
        """Wait until all parts of a message have ended or the time is over, and return the parts."""
        changed = asyncio.Event()
        waiters = self._waiters.setdefault(ledger_id, set())
        waiters.add(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while any(row.state not in ("sent", "dead") for row in await self._ledger.outbox_of(ledger_id)):
                    await wait_within(changed, LOOK_AGAIN_S, self._clock)  # Another node may send it.
                    changed.clear()
        except TimeoutError:
            pass
        finally:
            waiters.discard(changed)
            if not waiters:
                self._waiters.pop(ledger_id, None)
        return await self._ledger.outbox_of(ledger_id)

    async def again(self, rows: Sequence[OutboxRow]) -> int:
        """Retry parts that were given up. Returns their number."""
        number = await self._ledger.outbox_retry([row.id for row in rows if row.state == "dead"])
        self.wake()
        return number

    async def drop(self, rows: Sequence[OutboxRow]) -> int:
        """Give up parts that wait. Returns their number, without those that are being sent this moment."""
        waiting = [row for row in rows if row.state == "pending"]
        for row in waiting:
            await self._end(row, "dead", error=row.error, doubts=row.doubts, code=DeliveryCode.DROPPED)
        return len(waiting)

    async def drain(self) -> None:
        """Wait for the deliveries under way."""
        while self._busy:
            await asyncio.gather(*self._busy.values())

    # One conversation

    def _serve(self, key: DestinationKey, first: OutboxRow) -> None:
        task = asyncio.create_task(self._deliver_to(first), name=f"deliver {key[0]}")
        self._busy[key] = task

        def done(_: asyncio.Task[None]) -> None:
            self._busy.pop(key, None)
            self._woken.set()

        task.add_done_callback(done)

    async def _deliver_to(self, first: OutboxRow) -> None:
        """Send what waits for the conversation of the part, in order, until one has to wait for another attempt."""
        dead_messages: set[int] = set()
        while True:
            try:
                # The part was read before this task began. It may have been sent or put off since.
                rows = await self._ledger.outbox_waiting(first.id, BATCH)
            except Exception:
                log.exception("the outbox could not be read; trying again")
                await self._clock.sleep(RETRY.initial_s)
                return
            for row in rows:
                if row.next_at > self._now():
                    return
                try:
                    if row.ledger_id in dead_messages:
                        await self._end(row, "dead", error="an earlier part of this message could not be delivered")
                        continue
                    outcome = await self._deliver(row)
                except Exception:
                    # This is our own failure, since channels raise SendFailed. The conversation is tried again later.
                    log.exception("part %s of %s could not be handled", row.part, row.run_id)
                    await self._put_back(row)
                    return
                if outcome == "dead":
                    dead_messages.add(row.ledger_id)
                elif outcome == "later":
                    return
            if len(rows) < BATCH:
                return

    async def _deliver(self, row: OutboxRow) -> Outcome:
        if self._is_too_old(row):
            return await self._expire(row)
        doubts = 0 if self._outlet.idempotent(row.channel) else row.doubts
        unanswered = doubts > 0 and row.code is DeliveryCode.UNANSWERED
        if doubts >= MAX_DOUBTS and not unanswered:
            return await self._end(row, "dead", error=row.error, doubts=doubts, code=DeliveryCode.GIVEN_UP)
        if unanswered and not await self._outlet.answers(row.channel, row.route):
            return await self._hold(row, ASK_AGAIN_S, error=row.error)
        if pause_ms := row.payload.get("pauseMs"):
            await self._clock.sleep(min(int(pause_ms), LONGEST_PAUSE_MS) / 1000)
        if not await self._mark(row, "sending", error=row.error):
            return "sent"  # It has ended since it was read: another node sent it, or somebody gave it up.
        try:
            message = msgspec.convert(row.payload, OutgoingMessage)
        except msgspec.ValidationError as error:
            return await self._end(row, "dead", error=f"the stored part cannot be read: {error}", doubts=doubts)
        if doubts:
            message = msgspec.structs.replace(message, possibly_duplicate=True)
        try:
            sent = await self._outlet.send(row.channel, row.route, message, f"{row.run_id}:{row.part}")
        except SendFailed as failure:
            return await self._failed(row, message, failure, doubts)
        faults.point("outbox.arrived")
        code = DeliveryCode.REPEATED if doubts else DeliveryCode.NONE
        return await self._end(row, "sent", message_id=sent.message_id, doubts=doubts, code=code)

    async def _failed(self, row: OutboxRow, message: OutgoingMessage, failure: SendFailed, doubts: int) -> Outcome:
        answered, error = row.answered_errors + int(failure.reached), str(failure)
        if failure.permanent or (failure.reached and answered >= self._max_attempts):
            if message.media:
                return await self._without_files(row, message, failure, doubts)
            error = error if failure.permanent else f"given up after {answered} tries: {error}"
            return await self._end(row, "dead", error=error, doubts=doubts)
        maybe_sent = failure.maybe_sent and not self._outlet.idempotent(row.channel)
        code = row.code
        if failure.reached:
            delay_s = ANSWERED_PAUSES_S[min(answered, len(ANSWERED_PAUSES_S)) - 1]
            if maybe_sent or code is DeliveryCode.UNANSWERED:
                # The silence is over. That the part may have arrived is still true, but nobody counts how often.
                doubts, code = 1, DeliveryCode.ANSWERED_ERROR
        else:
            delay_s = RETRY.delay_s(row.attempts + 1, self._chance)
            if maybe_sent:
                doubts, code = doubts + 1, DeliveryCode.UNANSWERED
                delay_s = max(delay_s, pause_s(doubts))
        delay_s = max(delay_s, min(failure.retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))
        return await self._hold(row, delay_s, error=error, doubts=doubts, answered_errors=answered, code=code)

    async def _without_files(
        self, row: OutboxRow, message: OutgoingMessage, failure: SendFailed, doubts: int
    ) -> Outcome:
        """Send the words of a message whose file the platform does not take, and say so.

        Otherwise the file would take the words, and the rest of the reply, with it.
        """
        bare = msgspec.structs.replace(message, media=(), text=without_files(message, str(failure)))
        try:
            sent = await self._outlet.send(row.channel, row.route, bare, f"{row.run_id}:{row.part}")
        except SendFailed as problem:
            return await self._failed(row, bare, problem, doubts)
        log.warning("part %d of %s was sent without its file: %s", row.part, row.run_id, failure)
        return await self._end(row, "sent", message_id=sent.message_id, doubts=doubts, error=str(failure))

    async def _hold(
        self,
        row: OutboxRow,
        delay_s: float,
        *,
        error: str,
        doubts: int | None = None,
        answered_errors: int | None = None,
        code: DeliveryCode | None = None,
    ) -> Literal["later"]:
        """Let the part, and what follows it in its conversation, wait for another try."""
        until = self._now() + int(delay_s * 1000)
        await self._mark(
            row, "pending", next_at=until, error=error, doubts=doubts, answered_errors=answered_errors, code=code
        )
        log.info("part %d of %s waits %.1f s for another try: %s", row.part, row.run_id, delay_s, error)
        return "later"

    async def _expire(self, row: OutboxRow) -> Literal["dead"]:
        problem = row.error or "the channel was not there in time"
        code = DeliveryCode.GIVEN_UP if row.doubts and row.code is DeliveryCode.UNANSWERED else DeliveryCode.NONE
        await self._end(row, "dead", error=f"expired: {problem}", doubts=row.doubts, code=code)
        return "dead"

    async def _put_back(self, row: OutboxRow) -> None:
        until = self._now() + int(RETRY.max_s * 1000)
        try:
            await self._mark(row, "pending", next_at=until, error="see the log", doubts=row.doubts + 1)
        except Exception:
            log.exception("part %s of %s stays as it is until the next start", row.part, row.run_id)

    async def _end(
        self,
        row: OutboxRow,
        state: Literal["sent", "dead"],
        *,
        message_id: str = "",
        error: str = "",
        doubts: int = 0,
        code: DeliveryCode = DeliveryCode.NONE,
    ) -> Literal["sent", "dead"]:
        await self._mark(row, state, error=error, doubts=doubts, code=code, message_id=message_id)
        if state == "dead":
            problem = f"{error} (in doubt {doubts} times)" if doubts else error
            log.error("part %d of %s to %s was not delivered: %s", row.part, row.run_id, row.channel, problem)
        else:
            fields = {"messageId": row.ledger_id, "runId": row.run_id}
            details = "message %d: part %d of its reply was delivered to %s"
            log.info(details, row.ledger_id, row.part, row.channel, extra={"fields": fields})
        for waiter in self._waiters.get(row.ledger_id, ()):
            waiter.set()
        return state

    async def _mark(
        self,
        row: OutboxRow,
        state: PartState,
        *,
        next_at: int = 0,
        error: str = "",
        doubts: int | None = None,
        answered_errors: int | None = None,
        code: DeliveryCode | None = None,
        message_id: str = "",
    ) -> bool:
        """Write the state of a part and tries again until it is written, so that no sent part is sent again.

        Counts and a code that are not given stay as they are.
        """
        return await until_written(
            lambda: self._ledger.outbox_mark(
                row.id,
                state,
                next_at=next_at,
                error=error,
                doubts=row.doubts if doubts is None else doubts,
                answered_errors=row.answered_errors if answered_errors is None else answered_errors,
                code=row.code if code is None else code,
                message_id=message_id,
            ),
            self._clock.sleep,
            unknown_tries=FOREVER,
        )

    # Waiting

    async def _wait_for_channel(self, row: OutboxRow, *, full: bool) -> None:
        """Leave the parts of a conversation pending until their channel can send. Parts that are too old expire."""
        if self._is_too_old(row):
            while expired := [
                item for item in await self._ledger.outbox_waiting(row.id, BATCH) if self._is_too_old(item)
            ]:
                for item in expired:
                    await self._expire(item)
        elif full:
            # The batch is full. This part waits a while, so that the next batch has parts for other channels.
            await self._mark(row, "pending", next_at=self._now() + int(SETTLE_S * 1000), error=row.error)

    async def _correct_times(self) -> None:
        """Shorten the waits of parts that were written when the clock was ahead."""
        for row in (await self._due(FOR_EVER))[0]:
            longest = self._now() + int(max(LONGEST_RETRY_AFTER_S, pause_s(row.doubts)) * 1000)
            if row.next_at > longest:
                await self._mark(row, "pending", next_at=longest, error=row.error)

    async def _until_next(self, looked_at: int) -> float:
        """The seconds until the next part is due. Parts that became due since ``looked_at`` are due now."""
        rows, _ = await self._due(looked_at + int(IDLE_S * 1000))
        later = [row.next_at for row in rows if row.next_at > looked_at]
        return max(min(later) - self._now(), 0) / 1000 if later else IDLE_S
