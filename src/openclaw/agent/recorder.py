"""What one run puts on record: its messages in the transcript, and its tool calls in the ledger.

Every entry has an id that follows from the run and the step, so that a run that is taken up again after a crash finds
what it had written and writes nothing twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from openclaw.agent.abort import AbortSignal
from openclaw.agent.continuation import parts_at_end, unfinished
from openclaw.agent.loop import not_run
from openclaw.agent.prepare import Prepared
from openclaw.agent.request_log import RequestLog
from openclaw.agent.result import RunResult, note_speech, result_of
from openclaw.agent.run_settings import agent_settings
from openclaw.agent.runtime import Runtime
from openclaw.agent.window.images import with_pictures
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    ContinuationAsked,
    Event,
    SteeringInjected,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserBlock,
    UserMessage,
    user_text,
)
from openclaw.storage import faults
from openclaw.storage.base import BlobStore, Context, LedgerRow, Transcript, TranscriptRef
from openclaw.storage.disk_errors import FIRST_PAUSE_S, DiskWait, until_written

INTERRUPTED = (
    "Interrupted: the Gateway stopped while this call was running. It was not repeated; it may or may not have taken "
    "effect. Check before you do it again."
)
NOT_STARTED = "Not run: the Gateway stopped before this call began. Call it again if it is still needed."
LARGEST_GAP = 64
"""Damaged lines of one run that are stepped over when looking for its last one."""


@lru_cache(maxsize=64)
def entry_id(run_id: str, step: int | str) -> str:
    """Ids that a repeated run makes again, so that nothing is appended twice.

    64 bits: the format's usual 32 would meet by chance within a few ten thousand entries, and a meeting here would
    silently drop a message.
    """
    return hashlib.sha256(f"{run_id}/{step}".encode()).hexdigest()[:16]


def next_step(run_id: str, entries: Container[str], *, began: bool) -> int:
    """The first step whose entry, and every later one, is not in the transcript.

    A line that was damaged leaves a gap. Taking its number again would be harmless, but the numbers after it are taken,
    and an entry under a taken number is not written. ``began``: the run is known to have been started before.
    """
    step = 0
    if not began and entry_id(run_id, 0) not in entries:
        return 0
    for probe in range(1 << 20):
        if entry_id(run_id, probe) in entries:
            step = probe + 1
        elif probe - step >= LARGEST_GAP:
            break
    return step


class FoundEnd(msgspec.Struct, frozen=True):
    """An answer that stood in the transcript already."""

    answer: AssistantMessage
    own: bool
    """False: another run gave it, having taken this one's words in."""


def found_end(run_id: str, step: int, context: Context) -> FoundEnd | None:
    """The complete answer at the end of the branch, if there is one and this run's words are before it."""
    last = context.messages[-1] if context.messages else None
    if not isinstance(last, AssistantMessage) or last.stop_reason not in ("stop", "length") or last.tool_calls:
        return None
    return FoundEnd(last, context.entry_ids[-1] == entry_id(run_id, step - 1))


INLINE_LIMIT = 100_000
HEAD = 20_000
TAIL = 60_000


async def stored_result(message: ToolResultMessage, blobs: BlobStore, state_dir: Path) -> ToolResultMessage:
    if all(len(block.text) <= INLINE_LIMIT for block in message.content if isinstance(block, TextBlock)):
        return message
    content: list[UserBlock] = []
    digests: list[str] = []
    for block in message.content:
        if isinstance(block, TextBlock) and len(block.text) > INLINE_LIMIT:
            digest = await blobs.put(block.text.encode("utf-8", "surrogatepass"))
            digests.append(digest)
            content.append(TextBlock(text=_preview(block.text, state_dir / "blobs" / digest)))
        else:
            content.append(block)
    details = message.details if isinstance(message.details, dict) else {}
    return msgspec.structs.replace(message, content=content, details={**details, "blobs": digests})


def _preview(text: str, where: Path) -> str:
    left_out = len(text) - HEAD - TAIL
    note = f"[… {left_out} characters left out here; the whole output ({len(text)} characters) is in {where} …]"
    return f"{text[:HEAD]}\n{note}\n{text[-TAIL:]}"


log = logging.getLogger("openclaw.agents.run")

T = TypeVar("T")


class Recorder:
    """Writes what one run says and does into the transcript, and its tool calls into the ledger."""

    def __init__(
        self,
        row: LedgerRow,
        images: Sequence[ImageBlock],
        runtime: Runtime,
        transcript: Transcript,
        abort: AbortSignal,
        disk: DiskWait | None,
    ) -> None:
        self._row = row
        self._images = images
        self._runtime = runtime
        self.transcript = transcript
        self._abort = abort
        self._disk = disk
        self.step = 0
        """The number of the run's next message."""
        self.log = RequestLog()
        self._background: set[asyncio.Future[None]] = set()

    async def begin(self, prepared: Prepared | None, continuations: int) -> RunResult | None:
        """Appends the user's message, or, after a restart, finds how far this run had come.

        Returns the result when the answer was already complete and only its bookkeeping was lost.
        """
        entries = self._model_notes(prepared) if prepared is not None else {}
        for place, output in enumerate(self._row.body.tool_outputs):
            entries[self._id(f"output {place}")] = {"type": "message", "message": output}
        self.step = next_step(self._row.run_id, self.transcript, began=self._row.attempts > 0)
        if self.step == 0 and (self._row.body.prompt or self._images):
            prompt = self._row.body.prompt or ""
            notes = self._runtime.notes.drain(self._row.session_key)
            text = "\n".join([*notes, "", prompt]) if notes else prompt
            blocks = [TextBlock(text=text), *self._images]
            message = UserMessage(content=blocks, timestamp=self._runtime.clock.now_ms())
            message = await with_pictures(message, prepared, self._row.source)
            faults.point("user.before")
            await self.append(message, after=entries)
            faults.point("user.after")
            return None
        if entries:
            await self._add(entries)
        if self.step == 0:
            return None
        context = self.transcript.context()
        await self._note_missed_ends(context.messages)
        found = found_end(self._row.run_id, self.step, context)
        if found is not None:
            if not found.own:
                return RunResult(outcome="ok", taken_in=True)
            if unfinished(context.messages, continuations):
                return None
            return result_of(found.answer, parts_at_end(context.messages))
        asked = await self._close_open_calls(context.messages)
        return None if asked is None else result_of(asked)

    def _model_notes(self, prepared: Prepared) -> dict[str, dict[str, Any]]:
        """Entries that tell of a change of model or thinking level, as other readers of these files expect."""
        context, model = self.transcript.context(), prepared.model
        notes: dict[str, dict[str, Any]] = {}
        if context.model != (model.provider, model.id):
            data = {
                "timestamp": self._runtime.clock.now_ms(),
                "provider": model.provider,
                "modelApi": model.api,
                "modelId": model.id,
            }
            notes[self._id("model")] = {"type": "model_change", "provider": model.provider, "modelId": model.id}
            notes[self._id("snapshot")] = {"type": "custom", "customType": "model-snapshot", "data": data}
        if len(self.transcript) + len(notes) <= 2 or context.thinking_level != prepared.thinking:
            notes[self._id("thinking")] = {"type": "thinking_level_change", "thinkingLevel": prepared.thinking}
        return notes

    async def _close_open_calls(self, messages: list[Message]) -> AssistantMessage | None:
        """A call without a result is not repeated: the model is told that it was interrupted.

        Calls that the caller runs stay open; a message that made one had ended the run, and is returned.
        """
        answered: set[str] = set()
        open_calls: list[ToolCall] = []
        asked: AssistantMessage | None = None
        for message in reversed(messages):
            if isinstance(message, ToolResultMessage):
                answered.add(message.tool_call_id)
            elif isinstance(message, AssistantMessage):
                if message.stop_reason not in ("error", "aborted"):
                    asked = message
                    open_calls = [call for call in message.tool_calls if call.id not in answered]
                break
            else:
                break
        if not open_calls:
            return None
        theirs = {spec.name for spec in self._row.body.client_tools}
        started = {row.call_id for row in await self._runtime.ledger.tool_calls(self._row.id)}
        for call in open_calls:
            if call.name in theirs:
                continue
            why = INTERRUPTED if call.id in started else NOT_STARTED
            await self.append(not_run(call, why, self._runtime.clock.now_ms()))
        return asked if any(call.name in theirs for call in open_calls) else None

    async def note_continuation(self, message: UserMessage) -> None:
        """In the transcript, because the model reads it in later turns too; nobody else does."""
        fields = {
            "type": "custom_message",
            "customType": "continuation",
            "content": user_text(message),
            "display": False,
        }
        await self._add({self._id(f"continue {self.step}"): fields})
        self.log.skip()

    async def note_start(self, call_id: str, name: str, arguments: str) -> None:
        """On disk before the tool runs: after a crash the call is known to have begun, and is not made again."""
        faults.point("tool.before")
        ledger, ledger_id = self._runtime.ledger, self._row.id
        await self.kept(lambda: ledger.tool_started(ledger_id, call_id, name, arguments))
        faults.point("tool.noted")

    async def store_result(self, event: ToolEnded) -> ToolEnded:
        faults.point("tool.ran")
        message = await self.kept(lambda: stored_result(event.message, self._runtime.blobs, self._runtime.state_dir))
        await self.append(message)
        faults.point("tool.stored")
        task = asyncio.ensure_future(self._note_end(message.tool_call_id, ok=not event.failed))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return ToolEnded(message, event.arguments, event.failed)

    async def _note_end(self, call_id: str, *, ok: bool) -> None:
        """Beside the run, which does not wait for it; a full disk delays it like everything else."""
        ledger, ledger_id = self._runtime.ledger, self._row.id
        try:
            await until_written(lambda: ledger.tool_finished(ledger_id, call_id, ok), self._runtime.clock.sleep)
        except OSError as error:
            log.warning("the end of tool call %s was not noted: %s", call_id, error)

    async def _note_missed_ends(self, messages: list[Message]) -> None:
        """The process may have died between a call's result and the note of its end: the result counts."""
        rows = await self._runtime.ledger.tool_calls(self._row.id)
        if not (open_calls := {row.call_id for row in rows if row.finished_at is None}):
            return
        for message in messages:
            if isinstance(message, ToolResultMessage) and message.tool_call_id in open_calls:
                told = {block.text for block in message.content if isinstance(block, TextBlock)}
                if INTERRUPTED not in told:
                    await self._note_end(message.tool_call_id, ok=not message.is_error)

    async def append(
        self, message: Message, own_id: str | None = None, *, after: Mapping[str, dict[str, Any]] | None = None
    ) -> None:
        """``own_id``: the run id a steered message was accepted under; its entry belongs to that id, not to ours.

        ``after``: entries that are written before it, in the same write.
        """
        name = self._id(self.step) if own_id is None else entry_id(own_id, 0)
        await self._add({**(after or {}), name: {"type": "message", "message": message}})
        self.log.name(message, name)
        if own_id is None:
            self.step += 1
        else:
            faults.point("steer.after")

    async def _add(self, entries: Mapping[str, dict[str, Any]]) -> None:
        try:
            await self.transcript.append_all(entries)
        except OSError:
            await self.kept(lambda: self.transcript.append_all(entries))

    def _id(self, step: int | str) -> str:
        return entry_id(self._row.run_id, step)

    async def settle(self) -> None:
        if self._background:
            # Notes for a later reader; a run does not wait long for want of one.
            await asyncio.wait(self._background, timeout=FIRST_PAUSE_S)

    async def kept(self, write: Callable[[], Awaitable[T]]) -> T:
        """A disk that takes nothing pauses the run instead of ending it, until someone stops it or its time is up."""
        return await until_written(write, self._pause, self._disk)

    async def _pause(self, seconds: float) -> None:
        with self._abort.waiting():
            await self._runtime.clock.sleep(seconds)


async def open_transcript(runtime: Runtime, agent_id: str, session_key: str, session_id: str) -> Transcript:
    entry = await runtime.sessions.get(agent_id, session_key)
    ref = TranscriptRef(
        agent_id=agent_id,
        session_id=session_id,
        file=entry.get("sessionFile") if entry and entry["sessionId"] == session_id else None,
    )
    transcript = await runtime.transcripts.open(ref, cwd=agent_settings(agent_id, runtime).cwd)
    assert transcript is not None
    for warning in transcript.warnings:
        log.warning("transcript %s: %s", transcript.path, warning)
    return transcript


class LoopRecorder:
    """Takes the events of one pass through the loop: keeps what must last, notes the result, passes all of them on."""

    def __init__(
        self,
        prepared: Prepared,
        recorder: Recorder,
        messages: list[Message],
        *,
        emit: Callable[[Event], None],
        spent: Callable[[Usage], None],
        with_reasoning: bool,
    ) -> None:
        """``messages`` is the loop's own list. ``spent`` is called with what each answer used."""
        self.result = RunResult(outcome="ok")
        self.show = self._show_and_note if with_reasoning else emit
        self._prepared = prepared
        self._recorder = recorder
        self._messages = messages
        self._emit = emit
        self._spent = spent
        self._thoughts: list[str] = []

    def _show_and_note(self, event: Event) -> None:
        if isinstance(event, ThinkingDelta):
            self._thoughts.append(event.delta)
        elif isinstance(event, AssistantStarted):
            self._thoughts.clear()
        self._emit(event)

    async def keep(self, event: Event) -> None:
        """The event is on disk when this returns."""
        match event:
            case AssistantEnded():
                await self._answered(event)
            case ContinuationAsked(message):
                await self._recorder.note_continuation(message)
                await self._prepared.cleaner.prepare([message])
            case ToolStarted(call_id, name, arguments):
                await self._recorder.note_start(call_id, name, msgspec.json.encode(arguments).decode())
            case ToolEnded():
                event = await self._recorder.store_result(event)
                # The model reads what was kept, now as in every later turn.
                self._messages[-1] = event.message
                await self._prepared.cleaner.prepare([event.message])
            case SteeringInjected(message, token):
                message = self._messages[-1] = await with_pictures(message, self._prepared)
                await self._recorder.append(message, own_id=token)
                await self._prepared.cleaner.prepare([message])
            case _:
                pass
        self._emit(event)

    async def _answered(self, event: AssistantEnded) -> None:
        message = self.result.final = event.message
        self._spent(message.usage)
        self._prepared.window.learn(message)
        faults.point("answer.before")
        await self._recorder.append(message)
        faults.point("answer.after")
        if not event.continues:
            note_speech(self.result, event.speech, "".join(self._thoughts))
