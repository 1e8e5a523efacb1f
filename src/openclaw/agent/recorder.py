"""What one run stores: its messages in the transcript, and its tool calls in the ledger.

Every entry has an id that is made from the run's id and the step. A run that resumes after a crash makes the
same ids, finds what it had written, and writes nothing twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from openclaw.agent.abort import AbortSignal
from openclaw.agent.continuation import is_cut, is_failed, joined, parts_at_end, replies, unfinished
from openclaw.agent.loop import SteeringInbox, not_run
from openclaw.agent.prepare import Prepared
from openclaw.agent.request_log import RequestLog
from openclaw.agent.run_result import RunAccount, RunEnd, RunResult
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.budget import BilledEmbeddings, PaidCalls, Payer, RunBill
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    ContinuationAsked,
    Event,
    Speech,
    Spoken,
    SteeringInjected,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
    Unsaid,
)
from openclaw.messages import (
    INTERNAL,
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
from openclaw.outbound.answer_filter import speech_of
from openclaw.outbound.reply import MOST_REMEMBERED, messaged_here
from openclaw.path_opener import PathOpener
from openclaw.pictures import with_named_pictures
from openclaw.sessions.reset import home_of
from openclaw.sessions.tree import message_of
from openclaw.storage import faults
from openclaw.storage.blobs import BlobStore
from openclaw.storage.disk_errors import FIRST_PAUSE_S, UNKNOWN_TRIES, DiskWait, until_written
from openclaw.storage.message_ledger import LedgerRow
from openclaw.storage.transcripts import Context, Transcript, TranscriptRef
from openclaw.tools.base import LONGEST_RESULT, reports_failure
from openclaw.tools.files import ReadTool
from openclaw.untrusted_text import MOST_CHANGES, TextChange, disarmed, text_changes
from openclaw.worker_thread import with_many

CHECKED_CHARS = 30_000
"""How much of a tool's output is checked for changes that ``why`` shows."""
log = logging.getLogger("openclaw.agent.run")

T = TypeVar("T")

INTERRUPTED = (
    "Interrupted: the Gateway stopped while this call was running. It was not repeated; it may or may not have taken "
    "effect. Check before you do it again."
)
NOT_STARTED = "Not run: the Gateway stopped before this call began. Call it again if it is still needed."
LARGEST_GAP = 64
"""``next_step`` skips at most this many missing entries in a row."""
OPERATORS = ("webchat", "agent")
"""Sources whose messages come from the person who runs the Gateway. They may name any picture on this machine."""
HEAD = 20_000
TAIL = 60_000
"""How many characters of a result stay in the message if the result is longer than ``LONGEST_RESULT``."""


class ActiveRun(Protocol):
    """What the agent needs of the run that it works for."""

    @property
    def row(self) -> LedgerRow: ...

    @property
    def abort(self) -> AbortSignal: ...

    @property
    def inbox(self) -> SteeringInbox: ...

    @property
    def disk(self) -> DiskWait: ...

    def emit(self, event: Event) -> None: ...

    def parked(self) -> AbstractAsyncContextManager[None]:
        """Within it, the run waits for a person and holds no slot."""
        ...

    def note_model_call(self) -> None:
        """Called before each model call."""


class Recorder:
    """Stores what one run says and does, and collects what its result holds.

    ``begin`` stores the user's message. ``start_pass`` begins one pass of the loop, for which the recorder is the
    ``EntryStore`` and the ``EventSink``.
    """

    def __init__(self, run: ActiveRun, runtime: Runtime, transcript: Transcript, images: Sequence[ImageBlock]) -> None:
        """The run gets the events: those of ``store`` once they are stored, those of ``emit`` at once."""
        self._run = run
        self._row = row = run.row
        self._images = images
        self._runtime = runtime
        self.transcript = transcript
        self.step = 0
        """The number of the run's next message."""
        self.log = RequestLog()
        self.bill = RunBill()
        payer = Payer(
            agent_id=row.agent_id, session_key=row.session_key, transcript=Path(transcript.path), bill=self.bill
        )
        self.paid = PaidCalls(runtime, payer)
        self.embeddings = BilledEmbeddings(runtime, payer, transcript.append)
        self.final: AssistantMessage | None = None
        """The last message of the model in this pass of the loop."""
        self.usage: Usage | None = None
        """What the last model call of this pass used."""
        self._said: list[Spoken] = []
        self._speech: Speech = Unsaid()
        self._reply_to = ""
        self._shown_reasoning = ""
        self._with_reasoning = False
        self._reasoning: list[str] = []
        """The reasoning of the answer that is arriving."""
        self._prepared: Prepared | None = None
        self._messages: list[Message] = []
        """The loop's own list."""
        self._messaged: list[str] = []
        """What the agent wrote to this conversation with the message tool."""
        self._disarmed: list[TextChange] = []
        """The changes made to tool results before the model read them."""
        self._said_before: list[Spoken] = []
        """The answers of the run that were complete when a restart interrupted it."""
        self._open_calls: list[ToolCall] = []
        self._waiting_calls: set[str] = set()
        """The ids of those of them that waited for a person when a restart interrupted the run."""
        self._background: set[asyncio.Future[None]] = set()

    # The beginning of the run

    async def begin(self, prepared: Prepared | None, continuations: int) -> RunEnd | None:
        """Append the user's message. After a restart, find out how far the run had come.

        Returns the end of the run if its answer is stored already. ``continuations`` is how often the model may be
        asked for the rest of an answer that was cut.
        """
        row, transcript = self._row, self.transcript
        entries = self._model_notes(prepared) if prepared is not None else {}
        for index, output in enumerate(row.body.tool_outputs):
            entries[entry_id(row.run_id, f"output {index}")] = {"type": "message", "message": output}
        self.step = next_step(row.run_id, transcript, began=row.attempts > 0)
        nothing_stored = self.step == 0
        if nothing_stored and (row.body.prompt or self._images):
            prompt = row.body.prompt or ""
            notes = await self.until_written(lambda: self._runtime.notes.take(row.session_key, row.run_id))
            text = "\n".join([*notes, "", prompt]) if notes else prompt
            blocks = [TextBlock(text=text), *self._images]
            source = INTERNAL if row.body.internal else row.body.provenance or None
            now, written = self._runtime.clock.now_ms(), row.body.written or None
            message = UserMessage(content=blocks, timestamp=now, provenance=source, written=written)
            message = await _with_pictures(message, prepared, row.source)
            faults.point("user.before")
            # It need not be on disk at once: the ledger has its words.
            await self.append(message, first=entries, soon=True)
            faults.point("user.after")
        elif entries:
            await self._add(entries)
        if row.attempts:
            await self._restore_lost_calls()
            # The Gateway has died with this message. Its words must not be lost if it does so again.
            await self.until_written(transcript.sync)
        if nothing_stored:
            return None
        context = transcript.context()
        await self._note_missed_ends(context.messages)
        answered_by = found_answer(row.run_id, self.step, context)
        if answered_by == "other":
            return RunEnd("ok", taken_in=True)
        if answered_by == "own":
            await self._recall()
            if unfinished(context.messages, continuations):
                return None
            answer = context.messages[-1]
            assert isinstance(answer, AssistantMessage)
            return self._adopt_answer(answer, joined(parts_at_end(context.messages)))
        open_answer = await self._close_open_calls(context.messages, may_resume=prepared is not None)
        await self._recall()
        return None if open_answer is None else self._adopt_answer(open_answer, open_answer.text)

    async def _recall(self) -> None:
        """Finds what the run said before a restart, by itself and with the message tool.

        The answer at the end of the branch is left out: it is the result, or the model is asked for the rest of it.
        """
        context, run_id = self.transcript.context(), self._row.run_id
        own = {entry_id(run_id, step) for step in range(self.step)}
        own_messages = {
            name: message for name, message in zip(context.entry_ids, context.messages, strict=True) if name in own
        }
        if len(own_messages) < len(own):  # A compaction may have taken the first ones out of the context.
            path = [entry for entry in await self.transcript.path_entries() if entry.id in own]
            read = ((entry.id, message_of(entry.type, entry.raw)) for entry in path)
            own_messages = {name: message for name, message in read if message is not None}
        messages = [*own_messages.values()]
        calls = {call.id: call for one in messages if isinstance(one, AssistantMessage) for call in one.tool_calls}
        for one in messages:
            if isinstance(one, ToolResultMessage) and (call := calls.get(one.tool_call_id)) is not None:
                self._note_result(ToolEnded(one, call.arguments, one.is_error))
        last = len(parts_at_end(context.messages))
        answers = [one for one in messages if isinstance(one, AssistantMessage) and not is_failed(one)]
        speeches = map(speech_of, replies(answers[: max(0, len(answers) - last)]))
        self._said_before = [speech for speech in speeches if isinstance(speech, Spoken)]

    def _adopt_answer(self, answer: AssistantMessage, text: str) -> RunEnd:
        """End the run with an answer that the transcript already has."""
        self.final, self.usage = answer, answer.usage
        self._add_speech(speech_of(text))
        return RunEnd("ok")

    def result(self, end: RunEnd, account: RunAccount, duration_ms: int) -> RunResult:
        """Make the result of the run, with what it said before a restart and with the message tool."""
        said = [*self._said_before, *self._said]
        quoted = next((speech.reply_to for speech in reversed(self._said_before) if speech.reply_to), "")
        return RunResult(
            outcome=end.outcome,
            error=end.error,
            said=said,
            speech=self._speech,
            messaged=self._messaged,
            disarmed=self._disarmed,
            reply_to=self._reply_to or quoted,
            reasoning=self._shown_reasoning,
            final=self.final,
            session_id=self.transcript.session_id,
            duration_ms=duration_ms,
            taken_in=end.taken_in,
            account=account,
        )

    async def note_model(self, prepared: Prepared) -> None:
        """Stores that another model goes on in the middle of the run."""
        if notes := self._model_notes(prepared, f" {self.step}"):
            await self._add(notes)

    def _model_notes(self, prepared: Prepared, number: str = "") -> dict[str, dict[str, Any]]:
        """The entries that name a new model or thinking level. Other readers of these files expect them.

        ``number`` tells the entries of several models in one run apart.
        """
        context, model, run_id = self.transcript.context(), prepared.model, self._row.run_id
        notes: dict[str, dict[str, Any]] = {}
        changed = context.model != (model.provider, model.id)
        if changed:
            change = {"type": "model_change", "provider": model.provider, "modelId": model.id}
            notes[entry_id(run_id, f"model{number}")] = change
        if context.model is None or context.thinking_level != prepared.thinking:
            level = {"type": "thinking_level_change", "thinkingLevel": prepared.thinking}
            notes[entry_id(run_id, f"thinking{number}")] = level
        if changed:
            data = {
                "timestamp": self._runtime.clock.now_ms(),
                "provider": model.provider,
                "modelApi": model.api,
                "modelId": model.id,
            }
            snapshot = {"type": "custom", "customType": "model-snapshot", "data": data}
            notes[entry_id(run_id, f"snapshot{number}")] = snapshot
        return notes

    async def _restore_lost_calls(self) -> None:
        """Puts calls back that the ledger has and the transcript has lost. The model learns that they may have run."""
        in_context = {
            call.id
            for message in self.transcript.context().messages
            if isinstance(message, AssistantMessage)
            for call in message.tool_calls
        }
        rows = [
            row for row in await self._runtime.stores.ledger.tool_calls(self._row.id) if row.call_id not in in_context
        ]
        if rows:  # A compaction may have taken them out of the context. The file still has them.
            path = await self.transcript.path_entries()
            lines = [entry.raw for entry in path if entry.type == "message"]
            noted = {row.call_id: row.call_id.encode() for row in rows}
            stored = await with_many(
                len(lines), lambda: {own for own, name in noted.items() if any(name in line for line in lines)}
            )
            rows = [row for row in rows if row.call_id not in stored]
        if not rows:
            return
        now = self._runtime.clock.now_ms()
        calls = [ToolCall(id=row.call_id, name=row.name, arguments=msgspec.json.decode(row.arguments)) for row in rows]
        await self.append(AssistantMessage(content=[*calls], stop_reason="toolUse", timestamp=now))
        for call in calls:
            await self.append(not_run(call, INTERRUPTED, now))

    async def _note_missed_ends(self, messages: list[Message]) -> None:
        """Notes the end of calls whose result is stored. The process may have died between the two writes."""
        rows = await self._runtime.stores.ledger.tool_calls(self._row.id)
        if not (open_calls := {row.call_id for row in rows if row.finished_at is None}):
            return
        for message in messages:
            if isinstance(message, ToolResultMessage) and message.tool_call_id in open_calls:
                texts = {block.text for block in message.content if isinstance(block, TextBlock)}
                if INTERRUPTED not in texts:
                    failed = message.is_error or reports_failure(message.details)
                    await self._note_end(message.tool_call_id, ok=not failed)

    def take_open_calls(self) -> tuple[list[ToolCall], frozenset[str]]:
        """Return the calls that a run resumes with after a restart, and the ids of those that waited for a person."""
        calls, self._open_calls = self._open_calls, []
        return calls, frozenset(self._waiting_calls)

    async def _waits_for_person(self, call: ToolCall) -> bool:
        """Return whether a call had asked a person and nothing that needs the answer had begun."""
        question = await self._runtime.tools.questions.of_call(self._row.run_id, call.id)
        return question is not None and not await self._runtime.stores.ledger.question_acted(question.id)

    async def _close_open_calls(self, messages: list[Message], *, may_resume: bool) -> AssistantMessage | None:
        """Gives each open call a result that says that it was interrupted. The call is not repeated.

        A call that waited for a person, and those behind it, stay open if the run ``may_resume``. Calls to the
        caller's tools stay open. A message with such a call had ended the run; it is returned.
        """
        answered: set[str] = set()
        open_calls: list[ToolCall] = []
        answer: AssistantMessage | None = None
        for message in reversed(messages):
            if isinstance(message, ToolResultMessage):
                answered.add(message.tool_call_id)
            elif isinstance(message, AssistantMessage):
                if message.stop_reason not in ("error", "aborted"):
                    answer = message
                    open_calls = [call for call in message.tool_calls if call.id not in answered]
                break
            else:
                break
        if not open_calls:
            return None
        client_tools = {spec.name for spec in self._row.body.client_tools}
        started = {row.call_id for row in await self._runtime.stores.ledger.tool_calls(self._row.id)}
        for call in open_calls:
            if call.name in client_tools:
                continue
            began = call.id in started
            if may_resume and began and await self._waits_for_person(call):
                self._waiting_calls.add(call.id)
                self._open_calls.append(call)
            elif self._waiting_calls and not began:
                self._open_calls.append(call)
            else:
                why = INTERRUPTED if began else NOT_STARTED
                await self.append(not_run(call, why, self._runtime.clock.now_ms()))
        return answer if any(call.name in client_tools for call in open_calls) else None

    async def reject(self, problem: str, outcome: Literal["error", "aborted"] = "error") -> RunEnd:
        """Append a notice that explains the missing answer, and return the end of the run."""
        now = self._runtime.clock.now_ms()
        notice = AssistantMessage(content=[], stop_reason=outcome, error_message=problem, timestamp=now)
        await self.append(notice)
        self._reset()
        self.final = notice
        return RunEnd(outcome, problem)

    # The events of the loop

    def start_pass(self, prepared: Prepared, messages: list[Message]) -> None:
        """Begin one pass of the loop. ``messages`` is the loop's own list."""
        self._reset()
        self._prepared, self._messages = prepared, messages
        self._with_reasoning = prepared.turn.with_reasoning

    def _reset(self) -> None:
        self.final = self.usage = None
        self._speech, self._reply_to, self._shown_reasoning = Unsaid(), "", ""
        self._reasoning.clear()

    def retract_answer(self) -> None:
        """Drop the last answer, which is worthless because the provider had cut its prompt."""
        if isinstance(self._speech, Spoken):
            self._said.pop()

    def discard_answers(self) -> None:
        """Drop every answer of this process, because the run was stopped before it could store its end."""
        self._said.clear()
        self._reset()

    def emit(self, event: Event) -> None:
        """Forward an event that is only displayed, and collect the reasoning if the session shows it."""
        if self._with_reasoning:
            if isinstance(event, ThinkingDelta):
                self._reasoning.append(event.delta)
            elif isinstance(event, AssistantStarted):
                self._reasoning.clear()
        self._run.emit(event)

    async def store(self, event: Event) -> None:
        """Stores the event and then passes it on.

        Two kinds are also synced before: ``ToolStarted``, with everything that was said until then, because after a
        crash a call that may have begun is not made again; and ``SteeringInjected``, because its message ends here.
        """
        assert self._prepared is not None
        cleaner = self._prepared.requests.cleaner
        match event:
            case AssistantEnded():
                await self._store_answer(event)
            case ContinuationAsked(message):
                await self._store_continuation(message)
                await cleaner.prepare([message])
            case ToolStarted(call_id, name, arguments):
                faults.point("tool.before")
                encoded = msgspec.json.encode(arguments).decode()
                note = partial(self._runtime.stores.ledger.tool_started, self._row.id, call_id, name, encoded)
                await self.until_written(partial(note, written=self.transcript))
                faults.point("tool.noted")
            case ToolEnded():
                self._note_result(event)
                event = await self._store_result(event)
                # The model reads what is stored, in this turn and in every later one.
                self._messages[-1] = event.message
                await cleaner.prepare([event.message])
            case SteeringInjected(message, token):
                message = self._messages[-1] = await _with_pictures(message, self._prepared)
                await self.append(message, own_id=token)
                await self.until_written(self.transcript.sync)
                await cleaner.prepare([message])
            case _:
                pass
        self._run.emit(event)

    def _note_result(self, event: ToolEnded) -> None:
        """Remember what the result of a tool says about the run: a message to its chat, and marks that it forged."""
        if (text := messaged_here(event)) is not None:
            self._messaged = [*self._messaged, text][-MOST_REMEMBERED:]
        if len(self._disarmed) < MOST_CHANGES:
            texts = [block.text[:CHECKED_CHARS] for block in event.message.content if isinstance(block, TextBlock)]
            self._disarmed = [*self._disarmed, *text_changes(texts, disarmed)][:MOST_CHANGES]

    async def _store_answer(self, event: AssistantEnded) -> None:
        assert self._prepared is not None
        message = self.final = event.message
        self.usage = message.usage
        self.bill.add(message.usage)
        self._prepared.window.learn(message)
        faults.point("answer.before")
        # ``soon`` is enough, because whatever is written next (a tool call, a request to go on, or the end of the
        # message) is not written before the answer is.
        await self.append(message, soon=True)
        faults.point("answer.after")
        if self.log.is_full:
            await self.log.persist(self._runtime.prompting.reports)
        if not event.continues:
            self._add_speech(event.speech, "".join(self._reasoning))
        self.paid.written()

    def _add_speech(self, speech: Speech, reasoning: str = "") -> None:
        """Add a finished answer to the result."""
        self._speech = speech
        if isinstance(speech, Spoken):
            self._said.append(speech)
            self._reply_to = speech.reply_to or self._reply_to
            self._shown_reasoning = reasoning

    async def _store_continuation(self, message: UserMessage) -> None:
        """Stores a request to go on. The model reads it in later turns too; nobody else sees it."""
        await self._add({entry_id(self._row.run_id, f"continue {self.step}"): _hidden("continuation", message)})
        self.log.skip()

    async def _store_result(self, event: ToolEnded) -> ToolEnded:
        faults.point("tool.ran")
        message = await self.until_written(
            lambda: stored_result(event.message, self._runtime.stores.blobs, self._runtime.state_dir)
        )
        await self.append(message)
        faults.point("tool.stored")
        task = asyncio.ensure_future(self._note_end(message.tool_call_id, ok=not event.failed))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return ToolEnded(message, event.arguments, event.failed)

    async def _note_end(self, call_id: str, *, ok: bool) -> None:
        """Notes in the ledger that a call has ended. The run does not wait for it."""
        ledger, ledger_id = self._runtime.stores.ledger, self._row.id
        try:
            note = partial(ledger.tool_finished, ledger_id, call_id, ok)
            await until_written(note, self._runtime.clock.sleep, unknown_tries=UNKNOWN_TRIES)
        except Exception as error:
            log.warning("the end of tool call %s was not noted: %s", call_id, error)

    @property
    def continuations(self) -> int:
        """How often the run asked its model to go on, also before a restart."""
        run_id, transcript = self._row.run_id, self.transcript
        return sum(entry_id(run_id, f"continue {step}") in transcript for step in range(self.step + 1))

    @property
    def is_cut(self) -> bool:
        """Whether the output limit cut the last answer for good."""
        texts = any(speech.text for speech in (*self._said_before, *self._said))
        return texts and self.final is not None and is_cut(self.final) and not self.final.tool_calls

    async def settle(self) -> None:
        """Waits a short time for the notes that are still being written."""
        if self._background:
            await asyncio.wait(self._background, timeout=FIRST_PAUSE_S)

    # Writing

    async def append(
        self,
        message: Message,
        own_id: str | None = None,
        *,
        first: Mapping[str, dict[str, Any]] | None = None,
        soon: bool = False,
    ) -> None:
        """Appends a message. The entries ``first`` are written before it, in the same write.

        ``soon``: the store may write it a moment later.
        ``own_id``: the run id under which a steered message was accepted. Its entry gets an id of that run.
        """
        name = entry_id(self._row.run_id, self.step) if own_id is None else entry_id(own_id, 0)
        entry: dict[str, Any] = {"type": "message", "message": message}
        if isinstance(message, UserMessage) and message.internal:
            entry = _hidden("internal", message)
        await self._add({**(first or {}), name: entry}, soon=soon)
        self.log.name(message, name)
        if own_id is None:
            self.step += 1
        else:
            faults.point("steer.after")

    async def _add(self, entries: Mapping[str, dict[str, Any]], *, soon: bool = False) -> None:
        await self.until_written(lambda: self.transcript.append_all(entries, soon=soon))

    async def until_written(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeats a write that the disk refuses. The run pauses until the write succeeds, or until it is stopped.

        After an unknown error it is tried again a few times.
        """
        return await until_written(write, self._pause, self._run.disk, unknown_tries=UNKNOWN_TRIES)

    async def _pause(self, seconds: float) -> None:
        with self._run.abort.waiting():
            await self._runtime.clock.sleep(seconds)


def _hidden(kind: str, message: UserMessage) -> dict[str, Any]:
    """The entry of a text that the model reads and no client shows."""
    return {"type": "custom_message", "customType": kind, "content": user_text(message), "display": False}


# Entries and their ids


def entry_id(run_id: str, step: int | str) -> str:
    """The id of a run's entry.

    It has 64 bits. With the format's usual 32 bits two entries would get the same id by chance within a few ten
    thousand entries, and the second one would silently not be written.
    """
    return hashlib.sha256(f"{run_id}/{step}".encode()).hexdigest()[:16]


def next_step(run_id: str, entries: Container[str], *, began: bool) -> int:
    """The number after the run's last entry in the transcript.

    Damaged lines can leave gaps in the numbers. A number in a gap is not used again, because the numbers after it are
    taken and an entry under a taken number is not written. ``began``: the run was started before.
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


def found_answer(run_id: str, step: int, context: Context) -> Literal["own", "other"] | None:
    """Whether the branch ends with a complete answer, and whose it is. ``other``: another run took the message in."""
    last = context.messages[-1] if context.messages else None
    if not isinstance(last, AssistantMessage) or last.stop_reason not in ("stop", "length") or last.tool_calls:
        return None
    return "own" if context.entry_ids[-1] == entry_id(run_id, step - 1) else "other"


async def _with_pictures(message: UserMessage, prepared: Prepared | None, source: str = "") -> UserMessage:
    """Adds the pictures that the message names, if the model sees pictures.

    They become part of the stored message, so the model sees the same in every later turn.
    """
    if prepared is None or "image" not in prepared.model.input:
        return message
    read = prepared.prompt.tools.get("read")
    if not isinstance(read, ReadTool):
        return message
    workplace = prepared.workplace
    own = source in OPERATORS and workplace.sandbox is None
    opener = PathOpener(workplace.folder, confine=False) if own else read.opener
    return await with_named_pictures(message, workplace.guarded(opener))


async def stored_result(message: ToolResultMessage, blobs: BlobStore, state_dir: Path) -> ToolResultMessage:
    """The result as the transcript holds it. Texts over ``LONGEST_RESULT`` become blobs with a preview."""
    if all(len(block.text) <= LONGEST_RESULT for block in message.content if isinstance(block, TextBlock)):
        return message
    content: list[UserBlock] = []
    digests: list[str] = []
    for block in message.content:
        if isinstance(block, TextBlock) and len(text := block.text) > LONGEST_RESULT:
            digest = await blobs.put(text.encode("utf-8", "surrogatepass"))
            digests.append(digest)
            where, left_out = state_dir / "blobs" / digest, len(text) - HEAD - TAIL
            note = f"[… {left_out} characters left out here; the whole output ({len(text)} characters) is in {where} …]"
            content.append(TextBlock(text=f"{text[:HEAD]}\n{note}\n{text[-TAIL:]}"))
        else:
            content.append(block)
    details = message.details if isinstance(message.details, dict) else {}
    return msgspec.structs.replace(message, content=content, details={**details, "blobs": digests})


async def open_transcript(runtime: Runtime, agent_id: str, session_key: str, session_id: str) -> Transcript:
    """Opens the transcript of a session. Creates it if there is none."""
    entry = await runtime.stores.sessions.get(agent_id, session_key)
    ref = TranscriptRef(
        agent_id=agent_id,
        session_id=session_id,
        file=entry.get("sessionFile") if entry and entry["sessionId"] == session_id else None,
    )
    transcript = await runtime.stores.transcripts.open(ref, cwd=home_of(runtime, agent_id))
    assert transcript is not None
    return transcript
