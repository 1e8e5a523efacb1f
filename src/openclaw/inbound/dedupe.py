"""Tells a redelivered message of a channel from a new one, so that nothing is answered twice."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

from openclaw.inbound.message import Inbound
from openclaw.storage.base import Ledger

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
    """Returns the same run id for every delivery of the same messages to a session."""
    text = "\n".join((*keys, session_key))
    return str(uuid.UUID(hashlib.sha256(text.encode()).hexdigest()[:32]))


class Dedupe:
    """Remembers the messages that were seen.

    The caller first calls ``take``. When it has dealt with the message, it calls ``keep``. When it could not, it calls
    ``release``, so that a redelivery counts as new. Keys that were committed with a run's row (``Accept.dedupe_keys``)
    are only released.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._under_way: set[str] = set()

    async def take(self, key: str | None) -> bool:
        """Whether this message is new. A message without a key counts as new."""
        if key is None:
            return True
        if key in self._under_way:
            return False
        self._under_way.add(key)
        try:
            known = await self._ledger.seen(key, TTL_MS, KEEP, remember=False)
        except BaseException:
            self._under_way.discard(key)
            raise
        if known:
            self._under_way.discard(key)
        return not known

    async def keep(self, key: str) -> None:
        try:
            await self._ledger.seen(key, TTL_MS, KEEP)
        finally:
            self._under_way.discard(key)

    def release(self, key: str) -> None:
        self._under_way.discard(key)
