"""Reports of what runs gave the model, kept once by their content."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from openclaw.agent.prompt_report import PromptReport
from openclaw.messages import ToolSpec
from openclaw.models.base import Model, ModelRequest
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.base import BlobStore

log = logging.getLogger("openclaw.agents.context")

_OF_THE_RUN = ("source", "generatedAt", "sessionId", "sessionKey")
"""What differs from run to run; the rest is the same for many and is kept once."""


class PromptDigests(msgspec.Struct, frozen=True):
    """Empty where the disk would not take it. The things themselves are held, so that their addresses stay theirs."""

    system: str
    tools: list[ToolSpec]
    model: Model
    system_digest: str
    tools_digest: str
    model_digest: str

    def is_of(self, request: ModelRequest) -> bool:
        return self.system is request.system and self.tools is request.tools and self.model is request.model


def model_facts(model: Model) -> bytes:
    """Without its headers: they may hold keys, which are kept nowhere."""
    return msgspec.json.encode(msgspec.structs.replace(model, headers={}) if model.headers else model)


class Reports:
    """Keeps reports once by their content. A session's entry holds only what is its own, and the digest."""

    MOST_KNOWN = 4096
    MOST_AT_HAND = 64

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._at_hand: OrderedDict[int, tuple[object, str]] = OrderedDict()
        self._prompts: OrderedDict[int, PromptDigests] = OrderedDict()

    async def keep(self, report: PromptReport, blobs: BlobStore) -> dict[str, Any]:
        """The small form for the entry. Without a digest if the disk would not take it: a report is worth no run."""
        digest = await self.same(report.shared, lambda: msgspec.json.encode(report.shared, order="sorted"), blobs)
        return {**report.own, "blob": digest} if digest else report.own

    async def prompt_of(self, request: ModelRequest, blobs: BlobStore) -> PromptDigests:
        """Of what comes again and again as the very same objects, whatever the conversation is."""
        known = self._prompts.get(id(request.system))
        if known is not None and known.is_of(request):
            return known
        found = PromptDigests(
            request.system,
            request.tools,
            request.model,
            await self.once(request.system.encode(), blobs) or "",
            await self.once(msgspec.json.encode(request.tools), blobs) or "",
            await self.once(model_facts(request.model), blobs) or "",
        )
        if found.system_digest and found.tools_digest and found.model_digest:
            self._prompts[id(request.system)] = found
            if len(self._prompts) > self.MOST_AT_HAND:
                self._prompts.popitem(last=False)
        return found

    async def same(self, thing: object, encode: Callable[[], bytes], blobs: BlobStore) -> str | None:
        """As ``once``, for what comes again and again as the very same, unchanged object."""
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
