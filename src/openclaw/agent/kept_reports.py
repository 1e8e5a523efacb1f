"""Reports of what runs gave the model, kept once by their content."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from openclaw.sessions.entry import SessionEntry
from openclaw.storage.base import BlobStore

log = logging.getLogger("openclaw.agents.context")

_OF_THE_RUN = ("source", "generatedAt", "sessionId", "sessionKey")
"""What differs from run to run; the rest is the same for many and is kept once."""


class Reports:
    """Keeps reports once by their content. A session's entry holds only what is its own, and the digest."""

    MOST_KNOWN = 4096
    MOST_AT_HAND = 64

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._at_hand: OrderedDict[int, tuple[object, str]] = OrderedDict()

    async def keep(self, report: Mapping[str, Any], shared: dict[str, Any], blobs: BlobStore) -> dict[str, Any]:
        """The small form for the entry. Without a digest if the disk would not take it: a report is worth no run."""
        own = {name: report[name] for name in _OF_THE_RUN if name in report}
        digest = await self.same(shared, lambda: msgspec.json.encode(shared, order="sorted"), blobs)
        return {**own, "blob": digest} if digest else own

    async def same(self, thing: object, encode: Callable[[], bytes], blobs: BlobStore) -> str | None:
        """As ``once``, for things that come again and again as the very same, unchanged object (prompts, tools)."""
        known = self._at_hand.get(id(thing))
        if known is not None and known[0] is thing:
            return known[1]
        digest = await self.once(encode(), blobs)
        if digest is not None:
            self._at_hand[id(thing)] = (thing, digest)
            if len(self._at_hand) > self.MOST_AT_HAND:
                self._at_hand.popitem(last=False)
        return digest

    async def once(self, data: bytes, blobs: BlobStore) -> str | None:
        """The digest of what is kept; None if the disk would not take it."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known:
            try:
                await blobs.put(data)
            except OSError as error:
                log.warning("what a run was given could not be kept: %s", error)
                return None
            self._known[digest] = None
            if len(self._known) > self.MOST_KNOWN:
                self._known.popitem(last=False)
        return digest


async def stored_report(entry: SessionEntry | None, blobs: BlobStore) -> dict[str, Any] | None:
    """The report of the session's last run, or None. Entries of older versions hold it whole."""
    kept = (entry or {}).get("systemPromptReport")
    if not isinstance(kept, dict) or kept.get("source") != "run":
        return None
    if "systemPrompt" in kept:
        return kept
    data = await blobs.get(str(kept.get("blob")))
    if data is None:
        return None
    own = {name: kept[name] for name in _OF_THE_RUN if name in kept}
    return {**own, **msgspec.json.decode(data, type=dict[str, Any])}
