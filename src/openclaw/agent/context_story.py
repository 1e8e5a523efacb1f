"""Comparing what runs were sent: what changed between two, and when a phrase came into view and went out of it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from openclaw.agent.request_log import Rebuilt, RequestRecord, Sent, span_ids
from openclaw.messages import AssistantMessage, ImageBlock, Message, TextBlock, ThinkingBlock, ToolCall, UserMessage
from openclaw.sessions.tree import message_of
from openclaw.storage.base import BlobStore, Transcript

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
    line = " ".join(words_of(message).split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


# What changed


def differences(before: Rebuilt, after: Rebuilt) -> list[str]:
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


def _tool_diff(before: Rebuilt, after: Rebuilt) -> list[str]:
    old, new = ({tool.name: tool for tool in each.tools} for each in (before, after))
    changed = [name for name in new if name in old and new[name] != old[name]]
    found = (
        ("tools added", new.keys() - old.keys()),
        ("tools gone", old.keys() - new.keys()),
        ("tools changed", changed),
    )
    return [f"{words}: {', '.join(sorted(names))}" for words, names in found if names]


def _message_diff(before: Sequence[Sent], after: Sequence[Sent]) -> list[str]:
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
