"""The sentences about the delivery of a reply: what reached its channel, what waits, and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw.runs.history import is_withheld, reply_of
from openclaw.runs.reasons import LONGEST_REASON, REASONS, sentence
from openclaw.storage.message_ledger import DeliveryCode, LedgerRow, OutboxRow, ReasonCode
from openclaw.text import duration, shortened


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


def delivery_sentences(row: LedgerRow, outbox: Sequence[OutboxRow], now: int) -> list[str]:
    if is_withheld(row):
        rest = "The rest" if outbox else "The notice" if row.state in ("failed", "expired") else "The reply"
        withheld = f"{rest} was not sent: {REASONS[ReasonCode.SEND_POLICY]}."
        return [*_on_channels(row, outbox, now), withheld]
    return _on_channels(row, outbox, now)


def _on_channels(row: LedgerRow, outbox: Sequence[OutboxRow], now: int) -> list[str]:
    if not outbox:
        if row.route.is_delivered:
            return []
        if row.state == "answered" and reply_of(row):
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
    sentences: list[str] = []
    if sent := [part for part in parts if part.state == "sent"]:
        sentences.append(_sent(reply, channel, sent, len(parts)))
    if sending := [part for part in parts if part.state == "sending"]:
        sentences.append(f"{_parts(reply, len(sending), of_all)} being sent to {channel} now.")
    if waiting := [part for part in parts if part.state == "pending"]:
        sentences.append(
            f"{_parts(reply, len(waiting), of_all)} waiting to be delivered to {channel}{_tries(waiting, now)}."
        )
    dead = [part for part in parts if part.state == "dead"]
    if uncertain := [part for part in dead if part.doubts]:
        what = f"{len(uncertain)}{of_all} parts" if of_all else reply.lower()
        sentences.append(sentence(f"Whether {what} reached {channel} is not known: {_problem(uncertain)}"))
    if dead := [part for part in dead if part not in uncertain]:
        what = f"{len(dead)}{of_all} parts {'was' if len(dead) == 1 else 'were'}" if of_all else f"{reply} was"
        sentences.append(sentence(f"{what} not delivered to {channel}: {_problem(dead) or 'no reason was recorded'}"))
    return sentences


def _sent(reply: str, channel: str, sent: Sequence[OutboxRow], total: int) -> str:
    count = "" if total == 1 else f" in {total} parts" if len(sent) == total else f": {len(sent)} of {total} parts"
    tries = max(part.attempts for part in sent)
    after = f" after {tries} tries" if tries > 1 else ""
    note = _problem(sent)
    delivered = "Delivered" if reply == "The reply" else f"{reply} was delivered"
    return sentence(f"{delivered} to {channel}{count}{after}{f' ({note})' if note else ''}")


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
