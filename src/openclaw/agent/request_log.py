"""The request log: what each model call of a run was sent, in a form short enough to keep for every run.

A message that is sent as it stands in the transcript is recorded by its entry. A message that was changed before
(shortened, repaired, summarised) is stored by its content, once. So are the prompt and the tools. From this the module
rebuilds the exact request, compares requests, and finds out when a phrase was in the prompt.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.agent.prompt.report import ReportStore, model_facts
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
from openclaw.models.convert import facts_place
from openclaw.models.thinking import binds_thinking
from openclaw.protocol.context import Sighting
from openclaw.sessions.tree import is_notice, message_of
from openclaw.storage.blobs import BlobStore
from openclaw.storage.transcripts import Context, Transcript
from openclaw.text import clipped
from openclaw.worker_thread import with_many

MOST_CALLS = 64
"""The calls of a run are stored in segments of this many calls. The last segment is in the record itself."""
MOST_SEGMENTS = 256
"""A run with more calls than these segments hold keeps its first and its last ones."""
LARGEST_INLINE = 4096
"""The most bytes of a record that the ledger holds. A larger one is stored as a blob."""
SHOWN = 20
"""The most lines of one difference that are shown."""
PREVIEW = 80
_HOLD_MESSAGES = ("message", "custom_message", "branch_summary")
"""The types of entries that become messages of a prompt."""
TURN_FACTS = "turn facts"
"""The part of a request that ``ModelRequest.turn_facts`` is."""


Parents: TypeAlias = dict[str, tuple[str | None, str]]
"""The parent and the type of each entry of a transcript, by id."""


class EntrySpan(msgspec.Struct, array_like=True, frozen=True):
    """Successive messages of one branch, from the entry ``first`` to the entry ``last``."""

    first: str
    last: str
    count: int


class CallSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a model call was sent besides its messages."""

    model: str
    thinking: ThinkingLevel
    system: str
    """The digest of the system prompt; empty if it could not be stored."""
    suffix: str = ""
    """The session's own lines at the end of the system prompt. Older records have the facts of the turn here."""
    facts: str = ""
    """The turn facts, which stand behind the newest message if that is a user's."""
    tools: str = ""
    """The digest of the tools; empty if they could not be stored."""
    model_facts: str = ""
    """The digest of the catalogue's entry for the model."""
    max_tokens: int | None = None
    temperature: float | None = None
    tool_choice: Any = None
    session_id: str = ""
    compaction: str = ""
    """The compaction entry with which the conversation began; empty without one."""


class NotedCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One model call of a run."""

    at: int
    parts: list[EntrySpan | str]
    """The messages in order: entries of the transcript, or the digest of a message that was changed for this call.

    The first ``same`` ones are left out in the stored form, because the call before it has them too.
    """
    same: int = 0
    settings: int | None = None
    """The place of the call's settings in ``RequestRecord.other_settings``. None: they are those of the last call."""
    shortened: int = 0
    """The number of messages that were shortened or left out to fit the window."""
    pruned: int = 0
    """The number of old tool results that were removed or shortened."""
    output_room: int | None = None
    """What the window and the budget left for the answer, if that was less than the model can say."""
    thinking: ThinkingLevel | None = None
    """The thinking level, if it differs from that of the last call. Only records of older versions have it."""


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """Successive calls of a run that are stored as a blob. Without a digest they were not stored."""

    digest: str
    count: int


class RequestRecord(CallSettings, kw_only=True, omit_defaults=True):
    """The model calls of one run. The settings are those of the last call."""

    other_settings: list[CallSettings] = []
    earlier: list[Segment] = []
    """The calls before those in ``calls``."""
    calls: list[NotedCall] = []
    left_out: int = 0
    """The number of calls after the first of ``calls`` that were not recorded. Only older records have it."""

    @property
    def count(self) -> int:
        """The number of calls of the run."""
        return sum(segment.count for segment in self.earlier) + len(self.calls) + self.left_out

    def settings_of(self, call: NotedCall) -> CallSettings:
        settings = self if call.settings is None else self.other_settings[call.settings]
        return settings if call.thinking is None else msgspec.structs.replace(settings, thinking=call.thinking)


class RequestLog:
    """Records the calls of one run. It keeps ids and counts; ``persist`` and ``record`` store the content."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._named_from = 0
        """The messages of ``_context`` from this place on are in ``_names``."""
        self._names: dict[int, tuple[int, str, Message]] = {}
        """Place, entry id and message by the message's address. Holding the message keeps the address unique."""
        self._place = 0
        """The place of the next stored message in the conversation."""
        self._compaction = ""
        self._sent: list[tuple[ModelRequest, str]] = []
        """The requests that differ, without their messages, and the compaction of each."""
        self._calls: list[tuple[NotedCall, list[EntrySpan | Message]]] = []
        """The calls that are not packed yet. ``NotedCall.settings`` is a place in ``_sent``."""
        self._earlier: list[Segment] = []

    def know(self, context: Context) -> None:
        """Sets the conversation with which the loop starts."""
        self._compaction = context.compaction_id or ""
        self._context, self._names, self._named_from = context, {}, len(context.messages)
        self._place = len(context.messages)

    def name(self, message: Message, entry_id: str) -> None:
        """Adds a message that was stored during the run, with the id of its entry."""
        self._names[id(message)] = (self._place, entry_id, message)
        self._place += 1

    def skip(self) -> None:
        """Counts a stored message that is sent in another form. A span must not continue across it."""
        self._place += 1

    def note(self, request: ModelRequest, at: int, *, shortened: int, pruned: int, first: int = 0) -> None:
        """Records a model call. Of the conversation, its messages come from the place ``first`` or later."""
        parts, before = self._beginning(request.messages, first)
        for message in request.messages[before + 1 if parts else 0 :]:
            name = self._names.get(id(message))
            if name is None:
                parts.append(message)
                before = -2
                continue
            position, entry_id, _ = name
            last = parts[-1] if parts else None
            if position == before + 1 and isinstance(last, EntrySpan):
                parts[-1] = EntrySpan(last.first, entry_id, last.count + 1)
            else:
                parts.append(EntrySpan(entry_id, entry_id, 1))
            before = position
        call = NotedCall(at=at, parts=[], shortened=shortened, pruned=pruned, settings=self._settings(request))
        call.output_room = request.output_room
        self._calls.append((call, parts))

    def limit_output(self, room: int) -> None:
        """The call that was noted last is made with less room for the answer."""
        self._calls[-1][0].output_room = room

    def _settings(self, request: ModelRequest) -> int:
        """The place of the request's settings in ``_sent``. Nearly always they are those of the call before."""
        bare = msgspec.structs.replace(request, messages=[], output_room=None, branch_cache=None, prompt_cache=None)
        sent = (bare, self._compaction)
        if not self._sent or self._sent[-1] != sent:
            self._sent.append(sent)
        return len(self._sent) - 1

    def _beginning(self, messages: list[Message], first: int) -> tuple[list[EntrySpan | Message], int]:
        """The first parts of a call and the place of the last message in them; ``-2`` if there are none.

        Most calls begin with the whole conversation with which the loop started. It becomes one span, and its messages
        need not be looked up one by one. A summary has no entry with the same content; it is recorded as a message.
        """
        context = self._context
        if context is None or not context.messages:
            return [], -2
        earlier, ids = context.messages, context.entry_ids
        if messages[: len(earlier)] == earlier:
            summary = 1 if ids[0] == self._compaction else 0
            rest = len(earlier) - summary
            return [*earlier[:summary], *([EntrySpan(ids[summary], ids[-1], rest)] if rest else [])], len(earlier) - 1
        for position in range(first, self._named_from):
            if ids[position] != self._compaction:
                self._names[id(earlier[position])] = (position, ids[position], earlier[position])
        self._named_from = min(first, self._named_from)
        return [], -2

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= MOST_CALLS

    async def persist(self, store: ReportStore) -> None:
        """Stores the calls so far as a segment, so that a long run does not hold them."""
        calls = await self._stored_calls(store)
        segment = Segment(await store.once(msgspec.json.encode(calls)), len(calls))
        self._calls.clear()
        self._earlier.append(segment)
        if len(self._earlier) > MOST_SEGMENTS:
            middle = MOST_SEGMENTS // 2
            count = self._earlier[middle].count + self._earlier[middle + 1].count
            self._earlier[middle : middle + 2] = [Segment("", count)]

    async def record(self, store: ReportStore) -> msgspec.Raw | dict[str, Any] | None:
        """Stores the content and returns the record for the ledger: None if no model was called.

        A large record is stored as a blob, and ``{"blob": digest}`` is returned.
        """
        if not self._sent:
            return None
        calls = await self._stored_calls(store)
        settings = [await _settings_of(request, compaction, store) for request, compaction in self._sent]
        last = calls[-1].settings if calls else len(settings) - 1
        for call in calls:
            call.settings = None if call.settings == last else call.settings
        record = RequestRecord(
            **msgspec.structs.asdict(settings[-1 if last is None else last]),
            other_settings=settings if len(settings) > 1 or self._earlier else [],
            earlier=self._earlier,
            calls=calls,
        )
        data = encode(record)
        if len(data) > LARGEST_INLINE and (digest := await store.once(data)):
            return {"blob": digest}
        return msgspec.Raw(data)

    async def _stored_calls(self, store: ReportStore) -> list[NotedCall]:
        """The calls that are not packed, as they are stored."""
        digests: dict[int, str] = {}  # The same message is often in several calls.
        calls: list[NotedCall] = []
        before: list[EntrySpan | str] = []
        for call, parts in self._calls:
            named: list[EntrySpan | str] = []
            for part in parts:
                if not isinstance(part, EntrySpan):
                    if id(part) not in digests:
                        digests[id(part)] = await store.once(msgspec.json.encode(part))
                    named.append(digests[id(part)])
                else:
                    named.append(part)
            same = 0
            while same < min(len(named), len(before)) and named[same] == before[same]:
                same += 1
            calls.append(msgspec.structs.replace(call, parts=named[same:], same=same))
            before = named
        return calls


async def _settings_of(request: ModelRequest, compaction: str, store: ReportStore) -> CallSettings:
    return CallSettings(
        model=request.model.ref,
        thinking=request.thinking,
        system=await store.same(request.system, request.system.encode),
        suffix=request.system_suffix,
        facts=request.turn_facts,
        tools=await store.same(request.tools, lambda: msgspec.json.encode(request.tools)),
        model_facts=await store.same(request.model, lambda: model_facts(request.model)),
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        tool_choice=request.tool_choice,
        session_id=request.session_id,
        compaction=compaction,
    )


# Rebuilding


class SentMessage(msgspec.Struct, kw_only=True):
    """One message of a request. It has an ``entry_id`` if it was sent unchanged, otherwise a ``digest``."""

    message: Message
    entry_id: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return self.entry_id or self.digest


class RebuiltRequest(msgspec.Struct, kw_only=True):
    """A request as it was sent."""

    settings: CallSettings
    model: Model | None
    """None if the record was written by an older version."""
    call: NotedCall
    system: str
    tools: list[ToolSpec]
    messages: list[SentMessage]
    missing: list[str]
    """The parts that no longer exist, in words. If it is empty, the request is exact."""

    @property
    def thinking(self) -> ThinkingLevel:
        return self.settings.thinking

    @property
    def facts_after(self) -> SentMessage | None:
        """The message behind which the turn facts stand. None: this call has none."""
        if not self.settings.facts or self.model is None:
            return None
        bound = self.model.api == "anthropic-messages" and binds_thinking(self.model, self.thinking)
        position = facts_place([sent.message for sent in self.messages], stay=bound)
        return None if position is None else self.messages[position]

    def request(self) -> ModelRequest | None:
        """The request as the provider got it; None if a part is missing."""
        if self.model is None or self.missing:
            return None
        settings = self.settings
        return ModelRequest(
            model=self.model,
            system=self.system,
            system_suffix=settings.suffix,
            turn_facts=settings.facts,
            messages=[sent.message for sent in self.messages],
            tools=self.tools,
            thinking=settings.thinking,
            max_tokens=settings.max_tokens,
            output_room=self.call.output_room,
            temperature=settings.temperature,
            session_id=settings.session_id,
            tool_choice=settings.tool_choice,
        )


async def read_record(stored: Any, blobs: BlobStore) -> RequestRecord | None:
    """Decodes what ``RequestLog.record`` returned; None for runs without a record."""
    try:
        if isinstance(stored, dict) and "blob" in stored:
            data = await blobs.get(str(stored["blob"]))  # pyright: ignore[reportUnknownArgumentType]
            return msgspec.json.decode(data, type=RequestRecord) if data else None
        return msgspec.convert(stored, RequestRecord)
    except msgspec.MsgspecError:
        return None


async def calls_of(record: RequestRecord, blobs: BlobStore) -> AsyncIterator[tuple[int, NotedCall]]:
    """All calls that were stored, each with its number (from 1) and with all its parts."""
    number = 0
    for segment in record.earlier:
        data = await blobs.get(segment.digest) if segment.digest else None
        for index, call in enumerate(_whole(msgspec.json.decode(data, type=list[NotedCall])) if data else ()):
            yield number + index + 1, call
        number += segment.count
    for index, call in enumerate(_whole(record.calls)):
        yield number + index + 1 + (record.left_out if index else 0), call


def _whole(calls: Sequence[NotedCall]) -> Iterator[NotedCall]:
    """The calls with the parts that their stored form leaves out."""
    before: list[EntrySpan | str] = []
    for call in calls:
        before = [*before[: call.same], *call.parts]
        yield msgspec.structs.replace(call, parts=before, same=0)


class NotStored(Exception):
    """The record does not have this call. The text says why."""


async def rebuild(
    record: RequestRecord, transcript: Transcript | None, blobs: BlobStore, number: int | None = None
) -> RebuiltRequest:
    """Rebuilds call ``number`` (from 1) of the run; by default the last one. Raises ``NotStored``."""
    wanted_number = record.count if number is None else number
    if not 1 <= wanted_number <= record.count:
        raise NotStored(f"it made {record.count} model calls, not {wanted_number}")
    call: NotedCall | None = None
    async for index, noted in calls_of(record, blobs):
        if index == wanted_number:
            call = noted
            break
    if call is None:
        raise NotStored(f"what call {wanted_number} of {record.count} was sent is not stored")
    settings = record.settings_of(call)
    missing: list[str] = []
    system = await _blob(settings.system, blobs, "the system prompt", missing)
    tools = await _blob(settings.tools, blobs, "the tools", missing)
    model = await blobs.get(settings.model_facts) if settings.model_facts else None
    rebuilt = RebuiltRequest(
        settings=settings,
        model=msgspec.json.decode(model, type=Model) if model else None,
        call=call,
        system=system.decode() if system else "",
        tools=msgspec.json.decode(tools, type=list[ToolSpec]) if tools else [],
        messages=[],
        missing=missing,
    )
    parents = await parents_of(transcript) if transcript else {}
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
    """The blob. If there is none, ``what`` is added to ``missing``."""
    data = await blobs.get(digest) if digest else None
    if data is None:
        missing.append(what)
    return data


async def _entries(
    span: EntrySpan, transcript: Transcript | None, parents: Parents, missing: list[str]
) -> list[SentMessage]:
    held: list[SentMessage] = []
    for entry_id in reversed(span_ids(span, parents)):
        entry = await transcript.entry(entry_id) if transcript else None
        message = message_of(entry.type, entry.raw) if entry else None
        if message is not None:
            held.append(SentMessage(message=message, entry_id=entry_id))
    # Earlier versions sent the Gateway's own notices too.
    earlier = [sent for sent in held if not is_notice(sent.entry_id, sent.message)]
    entries = held if len(held) == span.count else earlier
    if len(entries) != span.count:
        missing.append(f"{span.count - len(entries)} messages" if len(entries) < span.count else "the exact messages")
    return entries


async def parents_of(transcript: Transcript) -> Parents:
    return await with_many(len(transcript), lambda: {own: (parent, kind) for own, parent, kind in transcript.tree()})


def span_ids(span: EntrySpan, parents: Parents) -> list[str]:
    """The entries of the span that hold messages, newest first."""
    ids: list[str] = []
    here: str | None = span.last
    while here is not None and here in parents:
        parent, kind = parents[here]
        if kind in _HOLD_MESSAGES:
            ids.append(here)
        if here == span.first:
            break
        here = parent
    return ids


def words_of(message: Message) -> str:
    """The text of a message, including thinking and tool calls."""
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
    if isinstance(message, UserMessage):
        return "user"
    return "assistant" if isinstance(message, AssistantMessage) else "tool"


def preview(message: Message) -> str:
    return clipped(" ".join(words_of(message).split()), PREVIEW)


# Comparing

Moved: TypeAlias = Literal["", "undo", "back"]
_MOVED = {
    "undo": "undo: a compaction was taken back (/compact undo), so the messages it had condensed are sent again",
    "back": "the conversation went back to an earlier point and continued from there",
}


async def how_it_moved(
    before: CallSettings, after: CallSettings, left: str, now: str, transcript: Transcript | None
) -> Moved:
    """How the conversation came from one branch to another between two calls.

    ``left`` and ``now`` are the last entries that the calls were sent. ``undo``: a compaction was taken back.
    ``back``: it went back to an earlier point. Empty: it went straight on.
    """
    if transcript is None or before.session_id != after.session_id:
        return ""
    parents = await parents_of(transcript)
    undone = before.compaction
    if undone and undone != after.compaction:
        beside = parents[undone][0] if undone in parents else None
        notes = [own for own, (parent, kind) in parents.items() if kind == "custom" and parent == beside]
        for entry_id in (after.compaction, *notes):
            entry = await transcript.entry(entry_id) if entry_id else None
            if entry is not None and undone.encode() in entry.raw and b'"undoOf"' in entry.raw:
                return "undo"
    here: str | None = now
    while left and here is not None and here in parents:
        if here == left:
            return ""
        here = parents[here][0]
    return "back" if left in parents and now in parents else ""


def last_entry(call: NotedCall) -> str:
    """The last entry of the transcript that the call was sent; empty if there is none."""
    return next((part.last for part in reversed(call.parts) if isinstance(part, EntrySpan)), "")


def differences(before: RebuiltRequest, after: RebuiltRequest, moved: Moved = "") -> list[str]:
    """The differences as lines of text; empty if both requests are the same. ``moved`` comes from ``how_it_moved``."""
    lines: list[str] = []
    for name in ("model", "thinking"):
        old, new = getattr(before.settings, name), getattr(after.settings, name)
        if old != new:
            lines.append(f"{name}: {old} → {new}")
    if before.system != after.system:
        lines += ["system prompt:", *_text_diff(before.system, after.system)]
    if before.settings.suffix != after.settings.suffix:
        lines += ["last lines of the system prompt:", *_text_diff(before.settings.suffix, after.settings.suffix)]
    if before.settings.facts != after.settings.facts:
        lines += [f"{TURN_FACTS}:", *_text_diff(before.settings.facts, after.settings.facts)]
    old_tools, new_tools = ({tool.name: tool for tool in each.tools} for each in (before, after))
    for words, names in (
        ("tools added", new_tools.keys() - old_tools.keys()),
        ("tools gone", old_tools.keys() - new_tools.keys()),
        ("tools changed", [name for name, tool in new_tools.items() if tool != old_tools.get(name, tool)]),
    ):
        if names:
            lines.append(f"{words}: {', '.join(sorted(names))}")
    lines += _message_diff(before.messages, after.messages)
    if moved:
        lines.append(_MOVED[moved])
    elif before.settings.compaction != after.settings.compaction and after.settings.compaction:
        lines.append(f"the older part was condensed (entry {after.settings.compaction})")
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


# Searching for a phrase


class NotedRun(msgspec.Struct, kw_only=True):
    """A run with its record, for ``PhraseSearch``."""

    run_id: str
    session_key: str = ""
    at: int
    record: RequestRecord
    transcript: Transcript | None


class PhraseSearch:
    """Searches runs for a phrase. It reads each prompt and each message only once, even if many runs have it."""

    def __init__(self, phrase: str, blobs: BlobStore) -> None:
        self._phrase = phrase.casefold()
        self._blobs = blobs
        self._seen: dict[str, str | None] = {}
        """By digest or entry id: the role or name of the part that holds the phrase, or None if it does not."""
        self._parents: dict[int, Parents] = {}
        self.where: list[str] = []
        """The parts of the last call searched that hold the phrase."""

    async def sightings(self, runs: Sequence[NotedRun]) -> list[Sighting]:
        """Where the phrase entered and left, in all calls of the runs. The runs must be in order, oldest first."""
        sightings: list[Sighting] = []
        before: tuple[CallSettings, NotedCall] | None = None
        for run in runs:
            async for number, call in calls_of(run.record, self._blobs):
                settings, held = run.record.settings_of(call), self.where
                self.where = await self._holding(settings, call, run.transcript)
                seen = Sighting(run_id=run.run_id, at=call.at, call=number, calls=run.record.count, change="entered")
                if self.where and not held:
                    sightings.append(msgspec.structs.replace(seen, where=self.where))
                elif held and not self.where and before is not None:
                    why = "the facts of the turn had changed"
                    if held != [TURN_FACTS]:
                        why = await self._why_gone(*before, settings, call, run.transcript)
                    sightings.append(msgspec.structs.replace(seen, change="left", where=held, why=why))
                before = settings, call
        return sightings

    async def _holding(self, settings: CallSettings, call: NotedCall, transcript: Transcript | None) -> list[str]:
        """The parts of the call that hold the phrase."""
        holds = [
            name
            for name, digest in (("system prompt", settings.system), ("tools", settings.tools))
            if await self._in_blob(digest, name)
        ]
        if self._phrase in settings.suffix.casefold():
            holds.append("system prompt (last lines)")
        if self._phrase in settings.facts.casefold():
            holds.append(TURN_FACTS)
        for part in call.parts:
            if isinstance(part, str):
                if await self._in_blob(part, "summary or changed message"):
                    holds.append("summary or changed message")
            elif transcript is not None:
                holds += await self._in_span(part, transcript)
        return list(dict.fromkeys(holds))

    async def _in_span(self, span: EntrySpan, transcript: Transcript) -> list[str]:
        """What of the span holds the phrase."""
        if id(transcript) not in self._parents:
            self._parents[id(transcript)] = await parents_of(transcript)
        holds: list[str] = []
        for entry_id in reversed(span_ids(span, self._parents[id(transcript)])):
            if role := await self._in_entry(entry_id, transcript):
                holds.append(f"{role} message {entry_id}")
        return holds

    async def _why_gone(
        self, before: CallSettings, last: NotedCall, after: CallSettings, call: NotedCall, transcript: Transcript | None
    ) -> str:
        """Why a phrase that the call before had is no longer in the request."""
        if before.session_id != after.session_id:
            return "a new session had begun"
        moved = await how_it_moved(before, after, last_entry(last), last_entry(call), transcript)
        if moved:
            return _MOVED[moved]
        if after.compaction and after.compaction != before.compaction:
            return "the older part of the conversation had been condensed"
        if call.shortened:
            return "the conversation was larger than the window and was shortened"
        if call.pruned:
            return "old tool results had been pruned"
        if before.system != after.system or before.suffix != after.suffix:
            return "the system prompt had changed"
        return "it is not on the branch the conversation went on from"

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
            message = None if message is not None and is_notice(entry_id, message) else message
            holds = message is not None and self._phrase in words_of(message).casefold()
            self._seen[entry_id] = role_of(message) if message is not None and holds else None
        return self._seen[entry_id]


def _readable(data: bytes) -> str:
    """The text of a blob. Of JSON (messages and tools) these are its strings, without escapes."""
    try:
        return "\n".join(_strings(msgspec.json.decode(data)))
    except msgspec.DecodeError:
        return data.decode(errors="replace")


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    children: list[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for child in children for text in _strings(child)]
