"""What each model call of a run was sent, noted so briefly that it can be kept for every run, yet exactly.

Messages that go out as they stand in the transcript are named by their entries; what was changed on the way
(shortened, mended, summarised) is kept by its content, once. Prompt and tools likewise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.agent.kept_reports import Reports
from openclaw.json_text import encode
from openclaw.messages import Message, ThinkingLevel, ToolSpec, decode_message
from openclaw.models.base import Model, ModelRequest
from openclaw.sessions.tree import message_of
from openclaw.storage.base import BlobStore, Context, Transcript

MOST_CALLS = 64
"""Of a longer run the first and the latest calls are noted."""
LARGEST_INLINE = 4096
"""Bytes; a larger record is kept beside the ledger, so that its rows stay small."""


class Span(msgspec.Struct, array_like=True, frozen=True):
    """Entries of one branch from the first to the last, as they stand in the transcript."""

    first: str
    last: str
    count: int


class Call(msgspec.Struct, kw_only=True, omit_defaults=True):
    at: int
    parts: list[Span | str]
    """In order: entries of the transcript, or the digest of a message that was changed for this call."""
    shortened: int = 0
    """Messages shortened or left out because the window would not hold them."""
    pruned: int = 0
    """Old tool results taken out or shortened."""
    thinking: ThinkingLevel | None = None
    """Where it was another than the last call's."""


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    model: str
    thinking: ThinkingLevel
    system: str
    """Digest of the prompt; empty when it could not be kept. So with ``tools``."""
    suffix: str = ""
    tools: str = ""
    model_facts: str = ""
    """Digest of the model as the catalogue had it."""
    max_tokens: int | None = None
    temperature: float | None = None
    tool_choice: Any = None
    session_id: str = ""
    compaction: str = ""
    """The entry of the summary the conversation began with."""
    calls: list[Call] = []
    left_out: int = 0
    """Calls in the middle that were not noted."""


class RequestLog:
    """Follows one run. Notes names and counts while it goes on, keeps content when it is over."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._all_named = False
        self._names: dict[int, tuple[int, str, Message]] = {}
        self._place = 0
        self._last: ModelRequest | None = None
        self._compaction = ""
        self._calls: list[tuple[Call, list[Span | Message]]] = []
        self._left_out = 0

    def know(self, context: Context) -> None:
        """The conversation the loop starts with. A summary has no entry that says the same, so it has no name."""
        self._compaction = context.compaction_id or ""
        self._context, self._names, self._all_named = context, {}, False
        self._place = len(context.messages)

    def name(self, message: Message, entry_id: str) -> None:
        """Said during the run, and stored under this id. The message is held, so that its address stays its own."""
        self._names[id(message)] = (self._place, entry_id, message)
        self._place += 1

    def skip(self) -> None:
        """Something was stored that is not sent word for word: what follows is not its neighbour's neighbour."""
        self._place += 1

    def note(self, request: ModelRequest, at: int, *, shortened: int, pruned: int) -> None:
        if len(self._calls) >= MOST_CALLS:
            del self._calls[1]
            self._left_out += 1
        parts, before = self._beginning(request.messages)
        for message in request.messages[before + 1 if parts else 0 :]:
            known = self._names.get(id(message))
            if known is None:
                parts.append(message)
                before = -2
                continue
            place, entry_id, _ = known
            last = parts[-1] if parts else None
            if place == before + 1 and isinstance(last, Span):
                parts[-1] = Span(last.first, entry_id, last.count + 1)
            else:
                parts.append(Span(entry_id, entry_id, 1))
            before = place
        self._last = request
        call = Call(at=at, parts=[], shortened=shortened, pruned=pruned, thinking=request.thinking)
        self._calls.append((call, parts))

    def _beginning(self, messages: list[Message]) -> tuple[list[Span | Message], int]:
        """What the loop started with, when it is sent as a whole, as most often: without a look at each message."""
        context = self._context
        if context is None or not context.messages:
            return [], -2
        said, ids = context.messages, context.entry_ids
        if messages[: len(said)] != said:
            self._name_all(context)
            return [], -2
        summary = 1 if ids[0] == self._compaction else 0
        rest = len(said) - summary
        return [*said[:summary], *([Span(ids[summary], ids[-1], rest)] if rest else [])], len(said) - 1

    def _name_all(self, context: Context) -> None:
        if self._all_named:
            return
        self._all_named = True
        for place, (message, entry_id) in enumerate(zip(context.messages, context.entry_ids, strict=True)):
            if entry_id != self._compaction:
                self._names[id(message)] = (place, entry_id, message)

    async def record(self, kept: Reports, blobs: BlobStore) -> msgspec.Raw | dict[str, Any] | None:
        """Encoded, for the ledger. None when no model was called; where it is kept, when it is large."""
        request = self._last
        if request is None:
            return None
        prompt = await kept.prompt_of(request, blobs)
        record = RequestRecord(
            model=request.model.ref,
            thinking=request.thinking,
            system=prompt.system_digest,
            suffix=request.system_suffix,
            tools=prompt.tools_digest,
            model_facts=prompt.model_digest,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            tool_choice=request.tool_choice,
            session_id=request.session_id,
            compaction=self._compaction,
            left_out=self._left_out,
        )
        digests: dict[int, str] = {}  # A message is often in several calls.
        for call, parts in self._calls:
            call.thinking = call.thinking if call.thinking != request.thinking else None
            for part in parts:
                if isinstance(part, Span):
                    call.parts.append(part)
                    continue
                if id(part) not in digests:
                    digests[id(part)] = await kept.once(msgspec.json.encode(part), blobs) or ""
                call.parts.append(digests[id(part)])
            record.calls.append(call)
        data = encode(record)
        if len(data) > LARGEST_INLINE and (digest := await kept.once(data, blobs)):
            return {"blob": digest}
        return msgspec.Raw(data)


# Rebuilding


class Sent(msgspec.Struct, kw_only=True):
    """One message of a request. ``entry_id`` is empty for what was changed for the call."""

    message: Message
    entry_id: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return self.entry_id or self.digest


class Rebuilt(msgspec.Struct, kw_only=True):
    """A request as it was. ``missing`` says what of it is no longer there; empty: it is exact."""

    record: RequestRecord
    model: Model | None
    """None in records of older versions."""
    call: Call
    system: str
    tools: list[ToolSpec]
    messages: list[Sent]
    missing: list[str]

    def request(self) -> ModelRequest | None:
        """What was handed to the model's adapter."""
        if self.model is None or self.missing:
            return None
        record = self.record
        return ModelRequest(
            model=self.model,
            system=self.system,
            system_suffix=record.suffix,
            messages=[sent.message for sent in self.messages],
            tools=self.tools,
            thinking=self.call.thinking or record.thinking,
            max_tokens=record.max_tokens,
            temperature=record.temperature,
            session_id=record.session_id,
            tool_choice=record.tool_choice,
        )


async def read_record(stored: Any, blobs: BlobStore) -> RequestRecord | None:
    """From the ledger's result; None for runs that were not noted."""
    try:
        if isinstance(stored, dict) and "blob" in stored:
            data = await blobs.get(str(stored["blob"]))  # pyright: ignore[reportUnknownArgumentType]
            return msgspec.json.decode(data, type=RequestRecord) if data else None
        return msgspec.convert(stored, RequestRecord)
    except msgspec.MsgspecError:
        return None


async def rebuild(record: RequestRecord, transcript: Transcript | None, blobs: BlobStore, number: int = -1) -> Rebuilt:
    """Call ``number`` of the run, the last one unless told otherwise."""
    call = record.calls[number]
    missing: list[str] = []
    system = await _blob(record.system, blobs, "the system prompt", missing)
    tools = await _blob(record.tools, blobs, "the tools", missing)
    model = await blobs.get(record.model_facts) if record.model_facts else None
    rebuilt = Rebuilt(
        record=record,
        model=msgspec.json.decode(model, type=Model) if model else None,
        call=call,
        system=system.decode() if system else "",
        tools=msgspec.json.decode(tools, type=list[ToolSpec]) if tools else [],
        messages=[],
        missing=missing,
    )
    parents = {own: (parent, kind) for own, parent, kind in transcript.tree()} if transcript else {}
    for part in call.parts:
        if isinstance(part, str):
            data = await _blob(part, blobs, "a message", missing)
            message = decode_message(data) if data is not None else None
            if message is not None:
                rebuilt.messages.append(Sent(message=message, digest=part))
        else:
            rebuilt.messages += await _entries(part, transcript, parents, missing)
    return rebuilt


async def _blob(digest: str, blobs: BlobStore, what: str, missing: list[str]) -> bytes | None:
    data = await blobs.get(digest) if digest else None
    if data is None:
        missing.append(what)
    return data


async def _entries(
    span: Span, transcript: Transcript | None, parents: dict[str, tuple[str | None, str]], missing: list[str]
) -> list[Sent]:
    found: list[Sent] = []
    for entry_id in reversed(span_ids(span, parents)):
        entry = await transcript.entry(entry_id) if transcript else None
        message = message_of(entry.type, entry.raw) if entry else None
        if message is not None:
            found.append(Sent(message=message, entry_id=entry_id))
    if len(found) != span.count:
        missing.append(f"{span.count - len(found)} messages" if len(found) < span.count else "the exact messages")
    return found


def span_ids(span: Span, parents: dict[str, tuple[str | None, str]]) -> list[str]:
    """Entries that bring messages, newest first."""
    ids: list[str] = []
    here: str | None = span.last
    while here is not None and here in parents:
        parent, kind = parents[here]
        if kind in ("message", "custom_message", "branch_summary"):
            ids.append(here)
        if here == span.first:
            break
        here = parent
    return ids
