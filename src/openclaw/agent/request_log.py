"""What each model call of a run was sent, noted so briefly that it can be kept for every run, yet exactly.

Messages that go out as they stand in the transcript are named by their entries; what was changed on the way
(shortened, mended, summarised) is kept by its content, once. Prompt and tools likewise.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from openclaw.agent.prompt.report import ReportStore
from openclaw.json_text import encode
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ThinkingLevel,
    ToolCall,
    ToolSpec,
    UserMessage,
    decode_message,
)
from openclaw.models.base import Model, ModelRequest
from openclaw.sessions.tree import message_of
from openclaw.storage.base import BlobStore, Context, Transcript
from openclaw.text import clipped

MOST_CALLS = 64
"""A longer run notes its first and its latest calls."""
LARGEST_INLINE = 4096
"""Bytes; a larger record is kept beside the ledger, so that its rows stay small."""


class EntrySpan(msgspec.Struct, array_like=True, frozen=True):
    """Entries of one branch from the first to the last, as they stand in the transcript."""

    first: str
    last: str
    count: int


class NotedCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    at: int
    parts: list[EntrySpan | str]
    """In order: entries of the transcript, or the digest of a message that was changed for this call."""
    shortened: int = 0
    """Messages shortened or left out because the window would not hold them."""
    pruned: int = 0
    """Old tool results taken out or shortened."""
    thinking: ThinkingLevel | None = None
    """Set only where it differs from the last call's."""


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
    calls: list[NotedCall] = []
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
        self._calls: list[tuple[NotedCall, list[EntrySpan | Message]]] = []
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
            if place == before + 1 and isinstance(last, EntrySpan):
                parts[-1] = EntrySpan(last.first, entry_id, last.count + 1)
            else:
                parts.append(EntrySpan(entry_id, entry_id, 1))
            before = place
        self._last = request
        call = NotedCall(at=at, parts=[], shortened=shortened, pruned=pruned, thinking=request.thinking)
        self._calls.append((call, parts))

    def _beginning(self, messages: list[Message]) -> tuple[list[EntrySpan | Message], int]:
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
        return [*said[:summary], *([EntrySpan(ids[summary], ids[-1], rest)] if rest else [])], len(said) - 1

    def _name_all(self, context: Context) -> None:
        if self._all_named:
            return
        self._all_named = True
        for place, (message, entry_id) in enumerate(zip(context.messages, context.entry_ids, strict=True)):
            if entry_id != self._compaction:
                self._names[id(message)] = (place, entry_id, message)

    async def record(self, kept: ReportStore, blobs: BlobStore) -> msgspec.Raw | dict[str, Any] | None:
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
                if isinstance(part, EntrySpan):
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


class SentMessage(msgspec.Struct, kw_only=True):
    """One message of a request. ``entry_id`` is empty for what was changed for the call."""

    message: Message
    entry_id: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return self.entry_id or self.digest


class RebuiltRequest(msgspec.Struct, kw_only=True):
    """A request as it was. ``missing`` says what of it is no longer there; empty: it is exact."""

    record: RequestRecord
    model: Model | None
    """None in records of older versions."""
    call: NotedCall
    system: str
    tools: list[ToolSpec]
    messages: list[SentMessage]
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


async def rebuild(
    record: RequestRecord, transcript: Transcript | None, blobs: BlobStore, number: int = -1
) -> RebuiltRequest:
    """Call ``number`` of the run, the last one unless told otherwise."""
    call = record.calls[number]
    missing: list[str] = []
    system = await _blob(record.system, blobs, "the system prompt", missing)
    tools = await _blob(record.tools, blobs, "the tools", missing)
    model = await blobs.get(record.model_facts) if record.model_facts else None
    rebuilt = RebuiltRequest(
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
                rebuilt.messages.append(SentMessage(message=message, digest=part))
        else:
            rebuilt.messages += await _entries(part, transcript, parents, missing)
    return rebuilt


async def _blob(digest: str, blobs: BlobStore, what: str, missing: list[str]) -> bytes | None:
    data = await blobs.get(digest) if digest else None
    if data is None:
        missing.append(what)
    return data


async def _entries(
    span: EntrySpan, transcript: Transcript | None, parents: dict[str, tuple[str | None, str]], missing: list[str]
) -> list[SentMessage]:
    found: list[SentMessage] = []
    for entry_id in reversed(span_ids(span, parents)):
        entry = await transcript.entry(entry_id) if transcript else None
        message = message_of(entry.type, entry.raw) if entry else None
        if message is not None:
            found.append(SentMessage(message=message, entry_id=entry_id))
    if len(found) != span.count:
        missing.append(f"{span.count - len(found)} messages" if len(found) < span.count else "the exact messages")
    return found


def span_ids(span: EntrySpan, parents: dict[str, tuple[str | None, str]]) -> list[str]:
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


SHOWN = 20
PREVIEW = 80


def words_of(message: Message) -> str:
    """Everything of a message the model can read."""
    if isinstance(message, UserMessage) and isinstance(message.content, str):
        return message.content
    words: list[str] = []
    for block in message.content:
        match block:
            case TextBlock(text=text):
                words.append(text)
            case ThinkingBlock(thinking=text):
                words.append(text)
            case ToolCall(name=name, arguments=arguments):
                words.append(f"{name} {msgspec.json.encode(arguments).decode()}")
            case ImageBlock():
                words.append("[image]")
            case _:
                pass
    return "\n".join(words)


def role_of(message: Message) -> str:
    return (
        "user" if isinstance(message, UserMessage) else "assistant" if isinstance(message, AssistantMessage) else "tool"
    )


def preview(message: Message) -> str:
    return clipped(" ".join(words_of(message).split()), PREVIEW)


# What changed


def differences(before: RebuiltRequest, after: RebuiltRequest) -> list[str]:
    """Sentences; empty when both were sent the same."""
    lines: list[str] = []
    for name in ("model", "thinking"):
        old, new = getattr(before.record, name), getattr(after.record, name)
        if old != new:
            lines.append(f"{name}: {old} → {new}")
    if before.system != after.system:
        lines += ["system prompt:", *_text_diff(before.system, after.system)]
    if before.record.suffix != after.record.suffix:
        lines += ["last lines of the prompt:", *_text_diff(before.record.suffix, after.record.suffix)]
    lines += _tool_diff(before, after)
    lines += _message_diff(before.messages, after.messages)
    if before.record.compaction != after.record.compaction and after.record.compaction:
        lines.append(f"the older part was condensed (entry {after.record.compaction})")
    for name, words in (("pruned", "old tool results pruned"), ("shortened", "messages shortened to fit the window")):
        old, new = getattr(before.call, name), getattr(after.call, name)
        if old != new:
            lines.append(f"{words}: {old} → {new}")
    return lines


def _text_diff(before: str, after: str) -> list[str]:
    changed = [
        line
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    more = [f"  … (+{len(changed) - SHOWN} more lines)"] if len(changed) > SHOWN else []
    return [*(f"  {line}" for line in changed[:SHOWN]), *more]


def _tool_diff(before: RebuiltRequest, after: RebuiltRequest) -> list[str]:
    old, new = ({tool.name: tool for tool in each.tools} for each in (before, after))
    changed = [name for name in new if name in old and new[name] != old[name]]
    found = (
        ("tools added", new.keys() - old.keys()),
        ("tools gone", old.keys() - new.keys()),
        ("tools changed", changed),
    )
    return [f"{words}: {', '.join(sorted(names))}" for words, names in found if names]


def _message_diff(before: Sequence[SentMessage], after: Sequence[SentMessage]) -> list[str]:
    old, new = {sent.name for sent in before}, {sent.name for sent in after}
    came = [sent for sent in after if sent.name not in old]
    went = [sent for sent in before if sent.name not in new]
    lines: list[str] = []
    for sign, words, changed in (("+", "messages added", came), ("-", "messages gone", went)):
        if changed:
            lines.append(f"{words}: {len(changed)}")
            lines += [f"  {sign} {role_of(sent.message)}: {preview(sent.message)}" for sent in changed[:SHOWN]]
            lines += [f"  … (+{len(changed) - SHOWN} more)"] if len(changed) > SHOWN else []
    return lines


# When a phrase was in view


class NotedRun(msgspec.Struct, kw_only=True):
    run_id: str
    session_key: str = ""
    at: int
    record: RequestRecord
    transcript: Transcript | None


class Sighting(msgspec.Struct, rename="camel", kw_only=True):
    run_id: str
    at: int
    change: Literal["entered", "left"]
    where: list[str] = []
    """The parts of the request that held it; for one that left, those that held it last."""
    why: str = ""


class PhraseSearch:
    """Looks through runs, oldest first. Each prompt and each message is read once, however many runs had it."""

    def __init__(self, phrase: str, blobs: BlobStore) -> None:
        self._phrase = phrase.casefold()
        self._blobs = blobs
        self._seen: dict[str, str | None] = {}
        self._parents: dict[int, dict[str, tuple[str | None, str]]] = {}

    async def sightings(self, runs: Sequence[NotedRun]) -> list[Sighting]:
        found: list[Sighting] = []
        held: list[str] = []
        before: NotedRun | None = None
        for run in runs:
            holds = await self.where(run)
            if holds and not held:
                found.append(Sighting(run_id=run.run_id, at=run.at, change="entered", where=holds))
            elif held and not holds and before is not None:
                why = why_gone(before.record, run.record)
                found.append(Sighting(run_id=run.run_id, at=run.at, change="left", where=held, why=why))
            held, before = holds, run
        return found

    async def where(self, run: NotedRun) -> list[str]:
        """The parts of the run's last call that hold the phrase."""
        record = run.record
        holds = [
            name
            for name, digest in (("system prompt", record.system), ("tools", record.tools))
            if await self._in_blob(digest, name)
        ]
        if self._phrase in record.suffix.casefold():
            holds.append("system prompt (last lines)")
        for part in record.calls[-1].parts if record.calls else ():
            if isinstance(part, str):
                if await self._in_blob(part, "summary or changed message"):
                    holds.append("summary or changed message")
            elif run.transcript is not None:
                for entry_id in reversed(span_ids(part, self._tree(run.transcript))):
                    if role := await self._in_entry(entry_id, run.transcript):
                        holds.append(f"{role} message {entry_id}")
        return list(dict.fromkeys(holds))

    def _tree(self, transcript: Transcript) -> dict[str, tuple[str | None, str]]:
        if id(transcript) not in self._parents:
            self._parents[id(transcript)] = {own: (parent, kind) for own, parent, kind in transcript.tree()}
        return self._parents[id(transcript)]

    async def _in_blob(self, digest: str, name: str) -> bool:
        if digest not in self._seen:
            data = await self._blobs.get(digest) if digest else None
            text = "" if data is None else _readable(data)
            self._seen[digest] = name if self._phrase in text.casefold() else None
        return self._seen[digest] is not None

    async def _in_entry(self, entry_id: str, transcript: Transcript) -> str | None:
        if entry_id not in self._seen:
            entry = await transcript.entry(entry_id)
            message = message_of(entry.type, entry.raw) if entry else None
            holds = message is not None and self._phrase in words_of(message).casefold()
            self._seen[entry_id] = role_of(message) if message is not None and holds else None
        return self._seen[entry_id]


def _readable(data: bytes) -> str:
    """A prompt is text; messages and tools are JSON, whose strings are searched as they were meant."""
    try:
        return "\n".join(_strings(msgspec.json.decode(data)))
    except msgspec.DecodeError:
        return data.decode(errors="replace")


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    children: list[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for child in children for text in _strings(child)]


def why_gone(before: RequestRecord, after: RequestRecord) -> str:
    if before.session_id != after.session_id:
        return "a new session had begun"
    if after.compaction and after.compaction != before.compaction:
        return "the older part of the conversation had been condensed"
    if after.calls and after.calls[-1].shortened:
        return "the conversation was larger than the window and was shortened"
    if after.calls and after.calls[-1].pruned:
        return "old tool results had been pruned"
    if before.system != after.system or before.suffix != after.suffix:
        return "the system prompt had changed"
    return "it is not on the branch the conversation went on from"
