"""The request log: what each model call of a run was sent, in a form short enough to keep for every run.

A message that is sent as it stands in the transcript is recorded by its entry. A message that was changed before
(shortened, repaired, summarised) is stored by its content, once. So are the prompt and the tools. From this the module
rebuilds the exact request, compares requests, and finds out when a phrase was in the prompt.
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
from openclaw.models.convert import facts_place
from openclaw.models.thinking import binds_thinking
from openclaw.sessions.tree import is_notice, message_of
from openclaw.storage.base import BlobStore, Context, Transcript
from openclaw.text import clipped

MOST_CALLS = 64
"""The most calls of a run that are recorded: the first one and the latest ones."""
LARGEST_INLINE = 4096
"""The most bytes of a record that the ledger holds. A larger one is stored as a blob."""
SHOWN = 20
"""The most lines of one difference that are shown."""
PREVIEW = 80
TURN_FACTS = "turn facts"
"""The part of a request that ``ModelRequest.turn_facts`` is."""


class EntrySpan(msgspec.Struct, array_like=True, frozen=True):
    """Successive messages of one branch, from the entry ``first`` to the entry ``last``."""

    first: str
    last: str
    count: int


class NotedCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One model call of a run."""

    at: int
    parts: list[EntrySpan | str]
    """The messages in order: entries of the transcript, or the digest of a message that was changed for this call."""
    shortened: int = 0
    """The number of messages that were shortened or left out to fit the window."""
    pruned: int = 0
    """The number of old tool results that were removed or shortened."""
    thinking: ThinkingLevel | None = None
    """The thinking level, if it differs from that of the run's last call."""
    output_room: int | None = None
    """What the window left for the answer, if that was less than the model can say."""


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The model calls of one run. The fields outside ``calls`` describe the last call."""

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
    calls: list[NotedCall] = []
    left_out: int = 0
    """The number of calls in the middle that were not recorded."""


class RequestLog:
    """Records the calls of one run. During the run it keeps only ids and counts; ``record`` stores the content."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._all_named = False
        """Whether ``_names`` has the messages of ``_context`` too."""
        self._names: dict[int, tuple[int, str, Message]] = {}
        """Place, entry id and message by the message's address. Holding the message keeps the address unique."""
        self._place = 0
        """The place of the next stored message in the conversation."""
        self._last: ModelRequest | None = None
        self._compaction = ""
        self._calls: list[tuple[NotedCall, list[EntrySpan | Message]]] = []
        self._left_out = 0

    def know(self, context: Context) -> None:
        """Sets the conversation with which the loop starts."""
        self._compaction = context.compaction_id or ""
        self._context, self._names, self._all_named = context, {}, False
        self._place = len(context.messages)

    def name(self, message: Message, entry_id: str) -> None:
        """Adds a message that was stored during the run, with the id of its entry."""
        self._names[id(message)] = (self._place, entry_id, message)
        self._place += 1

    def skip(self) -> None:
        """Counts a stored message that is sent in another form. A span must not continue across it."""
        self._place += 1

    def note(self, request: ModelRequest, at: int, *, shortened: int, pruned: int) -> None:
        """Records a model call."""
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
        call = NotedCall(
            at=at,
            parts=[],
            shortened=shortened,
            pruned=pruned,
            thinking=request.thinking,
            output_room=request.output_room,
        )
        self._calls.append((call, parts))

    def _beginning(self, messages: list[Message]) -> tuple[list[EntrySpan | Message], int]:
        """The first parts of a call and the place of the last message in them; ``-2`` if there are none.

        Most calls begin with the whole conversation with which the loop started. It becomes one span, and its messages
        need not be looked up one by one. A summary has no entry with the same content; it is recorded as a message.
        """
        context = self._context
        if context is None or not context.messages:
            return [], -2
        said, ids = context.messages, context.entry_ids
        if messages[: len(said)] == said:
            summary = 1 if ids[0] == self._compaction else 0
            rest = len(said) - summary
            return [*said[:summary], *([EntrySpan(ids[summary], ids[-1], rest)] if rest else [])], len(said) - 1
        if not self._all_named:
            self._all_named = True
            for place, (message, entry_id) in enumerate(zip(said, ids, strict=True)):
                if entry_id != self._compaction:
                    self._names[id(message)] = (place, entry_id, message)
        return [], -2

    async def record(self, kept: ReportStore, blobs: BlobStore) -> msgspec.Raw | dict[str, Any] | None:
        """Stores the content and returns the record for the ledger: None if no model was called.

        A large record is stored as a blob, and ``{"blob": digest}`` is returned.
        """
        request = self._last
        if request is None:
            return None
        prompt = await kept.prompt_of(request, blobs)
        record = RequestRecord(
            model=request.model.ref,
            thinking=request.thinking,
            system=prompt.system_digest,
            suffix=request.system_suffix,
            facts=request.turn_facts,
            tools=prompt.tools_digest,
            model_facts=prompt.model_digest,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            tool_choice=request.tool_choice,
            session_id=request.session_id,
            compaction=self._compaction,
            left_out=self._left_out,
        )
        digests: dict[int, str] = {}  # The same message is often in several calls.
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
    """One message of a request. It has an ``entry_id`` if it was sent unchanged, otherwise a ``digest``."""

    message: Message
    entry_id: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return self.entry_id or self.digest


class RebuiltRequest(msgspec.Struct, kw_only=True):
    """A request as it was sent."""

    record: RequestRecord
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
        return self.call.thinking or self.record.thinking

    @property
    def facts_after(self) -> SentMessage | None:
        """The message behind which the turn facts stand. None: this call has none."""
        if not self.record.facts or self.model is None:
            return None
        bound = self.model.api == "anthropic-messages" and binds_thinking(self.model, self.thinking)
        place = facts_place([sent.message for sent in self.messages], stay=bound)
        return None if place is None else self.messages[place]

    def request(self) -> ModelRequest | None:
        """The request as the provider got it; None if a part is missing."""
        if self.model is None or self.missing:
            return None
        record = self.record
        return ModelRequest(
            model=self.model,
            system=self.system,
            system_suffix=record.suffix,
            turn_facts=record.facts,
            messages=[sent.message for sent in self.messages],
            tools=self.tools,
            thinking=self.thinking,
            max_tokens=record.max_tokens,
            output_room=self.call.output_room,
            temperature=record.temperature,
            session_id=record.session_id,
            tool_choice=record.tool_choice,
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


async def rebuild(
    record: RequestRecord, transcript: Transcript | None, blobs: BlobStore, number: int = -1
) -> RebuiltRequest:
    """Rebuilds call ``number`` of the run; by default the last one."""
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
    """The blob. If there is none, ``what`` is added to ``missing``."""
    data = await blobs.get(digest) if digest else None
    if data is None:
        missing.append(what)
    return data


async def _entries(
    span: EntrySpan, transcript: Transcript | None, parents: dict[str, tuple[str | None, str]], missing: list[str]
) -> list[SentMessage]:
    held: list[SentMessage] = []
    for entry_id in reversed(span_ids(span, parents)):
        entry = await transcript.entry(entry_id) if transcript else None
        message = message_of(entry.type, entry.raw) if entry else None
        if message is not None:
            held.append(SentMessage(message=message, entry_id=entry_id))
    # Earlier versions sent the Gateway's own notices too.
    said = [sent for sent in held if not is_notice(sent.entry_id, sent.message)]
    found = held if len(held) == span.count else said
    if len(found) != span.count:
        missing.append(f"{span.count - len(found)} messages" if len(found) < span.count else "the exact messages")
    return found


def span_ids(span: EntrySpan, parents: dict[str, tuple[str | None, str]]) -> list[str]:
    """The entries of the span that hold messages, newest first."""
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


def differences(before: RebuiltRequest, after: RebuiltRequest) -> list[str]:
    """The differences as lines of text; empty if both requests are the same."""
    lines: list[str] = []
    for name in ("model", "thinking"):
        old, new = getattr(before.record, name), getattr(after.record, name)
        if old != new:
            lines.append(f"{name}: {old} → {new}")
    if before.system != after.system:
        lines += ["system prompt:", *_text_diff(before.system, after.system)]
    if before.record.suffix != after.record.suffix:
        lines += ["last lines of the system prompt:", *_text_diff(before.record.suffix, after.record.suffix)]
    if before.record.facts != after.record.facts:
        lines += [f"{TURN_FACTS}:", *_text_diff(before.record.facts, after.record.facts)]
    old_tools, new_tools = ({tool.name: tool for tool in each.tools} for each in (before, after))
    for words, names in (
        ("tools added", new_tools.keys() - old_tools.keys()),
        ("tools gone", old_tools.keys() - new_tools.keys()),
        ("tools changed", [name for name, tool in new_tools.items() if tool != old_tools.get(name, tool)]),
    ):
        if names:
            lines.append(f"{words}: {', '.join(sorted(names))}")
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


class Sighting(msgspec.Struct, rename="camel", kw_only=True):
    """The run with which a phrase entered or left the prompt."""

    run_id: str
    at: int
    change: Literal["entered", "left"]
    where: list[str] = []
    """The parts of the request that hold the phrase. If it left, these are the parts that held it before."""
    why: str = ""
    """Why it left, in words for people."""


class PhraseSearch:
    """Searches runs for a phrase. It reads each prompt and each message only once, even if many runs have it."""

    def __init__(self, phrase: str, blobs: BlobStore) -> None:
        self._phrase = phrase.casefold()
        self._blobs = blobs
        self._seen: dict[str, str | None] = {}
        """By digest or entry id: the role or name of the part that holds the phrase, or None if it does not."""
        self._parents: dict[int, dict[str, tuple[str | None, str]]] = {}

    async def sightings(self, runs: Sequence[NotedRun]) -> list[Sighting]:
        """Where the phrase entered and left. The runs must be in order, oldest first."""
        found: list[Sighting] = []
        held: list[str] = []
        before: NotedRun | None = None
        for run in runs:
            holds = await self.where(run)
            if holds and not held:
                found.append(Sighting(run_id=run.run_id, at=run.at, change="entered", where=holds))
            elif held and not holds and before is not None:
                why = _why_gone(before.record, run.record, held)
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
        if self._phrase in record.facts.casefold():
            holds.append(TURN_FACTS)
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


def _why_gone(before: RequestRecord, after: RequestRecord, held: list[str]) -> str:
    """Why a phrase that the run before had in the parts ``held`` is no longer in the request."""
    if held == [TURN_FACTS]:
        return "the facts of the turn had changed"
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
