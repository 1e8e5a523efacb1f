"""Tells a redelivered message of a channel from a new one, so that nothing is answered twice."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

from openclaw.clock import Clock
from openclaw.config.channels import normalize_account_id
from openclaw.inbound.message import Inbound
from openclaw.messages import Route
from openclaw.storage.message_ledger import Ledger, LedgerRow

TTL_MS = 20 * 60_000
"""How long a key is remembered after the message was last seen."""
KEEP = 5000


def dedupe_key(inbound: Inbound) -> str | None:
    """``channel|account|peer|thread|message id|revision`` without empty parts, or None if too little is known."""
    channel, message, peer = inbound.channel.strip().lower(), inbound.message_id.strip(), inbound.to or inbound.peer.id
    if not channel or not message or not peer.strip():
        return None
    thread = "" if inbound.thread_id is None else str(inbound.thread_id).strip()
    parts = (channel, inbound.account_id.strip(), peer.strip(), thread, message, inbound.revision)
    return "|".join(part for part in parts if part)


def run_id_of(keys: Sequence[str], session_key: str) -> str:
    """Return the same run id for every delivery of the same messages to a session."""
    text = "\n".join((*keys, session_key))
    return str(uuid.UUID(hashlib.sha256(text.encode()).hexdigest()[:32]))


async def accepted_rows(ledger: Ledger, inbound: Inbound) -> list[LedgerRow]:
    """Return what the ledger has of this message of a channel, in any of its revisions, newest first.

    Two chats may have messages with the same id, so the chat and the account count too.
    """
    here = (inbound.channel, inbound.to or inbound.peer.id, normalize_account_id(inbound.account_id))
    result = await ledger.by_message_id(inbound.message_id) if inbound.message_id else []
    return [row for row in result if _place(row.route) == here]


def _place(route: Route) -> tuple[str, str, str]:
    return route.channel, route.to, normalize_account_id(route.account_id)


class Dedupe:
    """Remembers the messages that were seen.

    The caller first calls ``claim_if_new``. When it has dealt with the message, it calls ``remember``. If it could not,
    it calls ``release``, so that a redelivery counts as new. Keys that were committed with a run's row
    (``Accept.dedupe_keys``) are only released.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._under_way: set[str] = set()

    async def claim_if_new(self, inbound: Inbound, *, may_be_joined: bool = False) -> bool:
        """Return True for a new message. It is then a duplicate until ``release`` or as ``remember`` says.

        A message without a key is always new.

        ``may_be_joined``: it may be one of several that became one turn (``inbound/debounce.py``).
        """
        key = dedupe_key(inbound)
        if key is None:
            return True
        if key in self._under_way:
            return False
        self._under_way.add(key)
        try:
            existing = await self._ledger.seen(key, TTL_MS, KEEP, remember=False)
            if not existing and may_be_joined:
                existing = await self._was_accepted(inbound)
        except BaseException:
            self._under_way.discard(key)
            raise
        if existing:
            self._under_way.discard(key)
        return not existing

    async def _was_accepted(self, inbound: Inbound) -> bool:
        """Return whether a platform repeats a message, as after a downtime, whose key is not remembered any more.

        The run id of a turn is made from the keys of its messages (``run_id_of``). If only some messages of a joined
        turn come again, they would make another run id, so the ledger is asked for each of them by its own id. It is
        asked about old messages only, because that takes a while.
        """
        old = 0 < inbound.timestamp_ms <= self._clock.now_ms() - TTL_MS
        return old and not inbound.revision and bool(await accepted_rows(self._ledger, inbound))

    async def remember(self, key: str) -> None:
        try:
            await self._ledger.seen(key, TTL_MS, KEEP)
        finally:
            self._under_way.discard(key)

    def release(self, key: str) -> None:
        self._under_way.discard(key)
