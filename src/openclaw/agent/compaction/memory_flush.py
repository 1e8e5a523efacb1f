"""The memory flush: a silent turn before a compaction, in which the agent writes notes to its memory files.

The turn is stored as a side branch of the transcript. It is not part of the conversation, takes no room in the prompt,
and nothing of it is delivered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from datetime import datetime
from pathlib import Path

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.agent.compaction.compaction import LONGEST_FLUSH_S, Leaving
from openclaw.agent.loop import LoopOptions, run_loop
from openclaw.agent.prepare import Prepared, prepare
from openclaw.agent.recorder import stored_result
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.budget import BilledCalls, RunBill
from openclaw.clock import named_zone
from openclaw.config.schema.agents import MemoryFlush
from openclaw.events import AssistantEnded, Event, ToolEnded
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolResultMessage, UserMessage
from openclaw.models.base import ModelError, ModelRequest, OnEvent
from openclaw.models.calls import NextStep, TryAgain
from openclaw.models.errors import next_retry_ms
from openclaw.outbound.silence import NO_REPLY
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.transcripts import Transcript
from openclaw.tools.arguments import RecordTool
from openclaw.tools.base import Tool, ToolContext, ToolResult
from openclaw.tools.files import WriteArguments, WriteTool
from openclaw.tools.sandbox.boundary import Boundary

log = logging.getLogger("openclaw.agent.memory")

MOST_ANSWERS = 12
"""The most model calls of one flush. A flush that wants more is stopped."""
LONGEST_SHARE = 0.5
"""The part of a run's time that a flush may take. The rest is for the answer."""
USABLE = frozenset({"read", "search", "memory_search", "memory_get"})
"""The tools of a flush, besides an appending ``write``. None of them has an effect that others could notice."""
PROMPT = (
    "The older part of this conversation is about to be condensed. Before that, write down what must last: decisions, "
    "facts about people and projects, preferences, open tasks, where things are. Put it into `memory/{date}.md` in "
    "your workspace with the write tool, as short notes. In this turn write adds to the end of a file that exists, so "
    "give only what is new and repeat nothing that stands there already.\n"
    "Current time: {time}.\n"
    f"Nobody reads your answer. Answer {NO_REPLY} when the notes are written, or when there is nothing to keep."
)
SYSTEM = (
    "This session is close to the size at which older messages are condensed automatically. This turn serves only to "
    f"save lasting notes to disk. You may answer, but {NO_REPLY} is usually right."
)
SILENT_HINT = f"If no visible reply is needed, start your answer with {NO_REPLY}."


# Decisions


def due(entry: SessionEntry | None, window: int, floor: int, soft: int) -> bool:
    """Whether the next compaction is near and no flush was made since the last one.

    It is near when the session's size is within ``soft`` tokens of ``window - floor``.
    """
    if entry is None:
        return False
    total, threshold = entry.get("totalTokens", 0), window - floor - soft
    return total >= threshold > 0 and not flushed_this_cycle(entry)


def flushed_this_cycle(entry: SessionEntry) -> bool:
    """Whether a flush was made since the last compaction."""
    return entry.get("memoryFlushCompactionCount") == entry.get("compactionCount", 0)


def workspace_closed(sandbox: Boundary | None, workspace: Path) -> bool:
    """Whether notes cannot be written: the sandbox may not write to the workspace, or the folder is not writable."""
    if sandbox is not None and sandbox.plan.access != "rw":
        return True
    return not (workspace.is_dir() and os.access(workspace, os.W_OK | os.X_OK))


def texts(settings: MemoryFlush, now_ms: int, zone_name: str | None) -> tuple[str, str]:
    """The turn's message and its addition to the system prompt, with today's date in the person's zone."""
    now = datetime.fromtimestamp(now_ms / 1000, named_zone(zone_name))
    prompt = settings.prompt.strip() or PROMPT
    date = f"{now:%Y-%m-%d}"
    prompt = prompt.replace("{date}", date).replace("YYYY-MM-DD", date)
    prompt = prompt.replace("{time}", f"{now:%A %Y-%m-%d %H:%M} ({zone_name or now.tzname() or 'local time'})")
    system = settings.system_prompt.strip() or SYSTEM
    prompt, system = (text if NO_REPLY in text else f"{text}\n\n{SILENT_HINT}" for text in (prompt, system))
    return prompt, system


# The two callers


def is_due(runtime: Runtime, prepared: Prepared) -> bool:
    """Whether a run must flush before it answers a new message. True once per compaction cycle."""
    config = runtime.config.current
    turn = prepared.turn
    if turn.source == "heartbeat" or not config.compaction.enabled or not turn.caller.may("owner files"):
        return False
    compaction = config.agents.defaults.compaction
    soft = compaction.memory_flush.soft_threshold_tokens
    return due(prepared.turn.entry, prepared.model.context_window, compaction.reserve_tokens_floor, soft)


async def flush(
    runtime: Runtime,
    transcript: Transcript,
    prepared: Prepared,
    abort: AbortSignal,
    bill: RunBill,
) -> bool:
    """Makes a flush within a run. Returns whether the agent was asked and the turn is stored.

    The caller holds the session's lock. A failure is logged; the next message tries again. If the run is stopped
    meanwhile, the flush ends, and the caller goes on to the next place where a stop takes effect.
    """
    try:
        with abort.waiting():
            return await _flush(runtime, transcript, prepared, bill)
    except Aborted:
        return False
    except OSError as error:
        log.warning("memory flush of %s could not be kept: %s", prepared.turn.session_key, error)
        return False


def watch_compactions(runtime: Runtime) -> None:
    """Registers the hook that makes a flush before every compaction, unless one was made in this cycle."""

    async def hook(leaving: Leaving) -> bool:
        entry = await runtime.stores.sessions.get(leaving.agent_id, leaving.session_key)
        if entry is None or entry["sessionId"] != leaving.session_id or flushed_this_cycle(entry):
            return False
        transcript = await runtime.stores.transcripts.open(transcript_ref(leaving.agent_id, entry), create=False)
        if transcript is None or not runtime.config.current.agents.defaults.compaction.memory_flush.enabled:
            return False
        prepared = await prepare(runtime, leaving.agent_id, leaving.session_key, leaving.session_id)
        return await _flush(runtime, transcript, prepared)

    runtime.prompting.hooks.before_content_leaves.append(hook)


# The turn itself


async def _flush(runtime: Runtime, transcript: Transcript, prepared: Prepared, bill: RunBill | None = None) -> bool:
    settings = runtime.config.current.agents.defaults.compaction.memory_flush
    tools = usable_tools(prepared.prompt.tools)
    if not settings.enabled or "write" not in tools or not prepared.turn.caller.may("owner files"):
        return False  # Others must not write what the agent remembers of the owner.
    config = runtime.config.current
    if await asyncio.to_thread(workspace_closed, prepared.workplace.sandbox, prepared.workplace.folder):
        return False
    conversation = settled(transcript.context().messages)
    if not conversation:
        return False
    now = runtime.clock.now_ms()
    words, system = texts(settings, now, config.agents.defaults.user_timezone)
    # What is said to the agent besides stands here and not in the system prompt, so that the provider's prompt cache
    # still matches. Every tool stays listed for the same reason.
    prompt = UserMessage(content=[TextBlock(text=words), TextBlock(text=system)], timestamp=now)
    calls = BilledCalls(
        runtime, prepared.turn.agent_id, prepared.turn.session_key, transcript, "memory flush", keep=False, bill=bill
    )
    is_stored = False
    try:
        messages = [*conversation, prompt]
        limit = prepared.timeout_s
        async with asyncio.timeout(LONGEST_FLUSH_S if limit is None else min(limit * LONGEST_SHARE, LONGEST_FLUSH_S)):
            await prepared.window.count(messages)
            await prepared.requests.cleaner.prepare(prepared.window.recent(messages))
            ended = await run_loop(messages, _options(runtime, prepared, tools, calls))
        wrote = any(
            isinstance(m, ToolResultMessage) and m.tool_name == "write" and not m.is_error for m in ended.messages
        )
        if ended.outcome == "error" or (ended.outcome == "aborted" and not wrote):
            log.warning("memory flush of %s failed: %s", prepared.turn.session_key, ended.error)
            return False
        await _store(runtime, transcript, words, ended.messages)
        await calls.stored()
        is_stored = True
    except TimeoutError:
        log.warning("memory flush of %s took too long; the next message retries it", prepared.turn.session_key)
        return False
    finally:
        if not is_stored:
            await calls.persist()
    await _record(runtime, prepared)
    return True


def usable_tools(tools: dict[str, Tool]) -> dict[str, Tool]:
    """The tools of a flush."""
    usable = {name: tool for name, tool in tools.items() if name in USABLE}
    if isinstance(write := tools.get("write"), WriteTool):
        usable["write"] = AppendingWrite(write)
    return usable


class AppendingWrite(RecordTool[WriteArguments]):
    """``write`` during a flush. It appends to a file that exists, so that earlier notes are not overwritten."""

    name = WriteTool.name
    summary = WriteTool.summary
    description = WriteTool.description

    def __init__(self, write: WriteTool) -> None:
        self._write = write

    async def execute(self, arguments: WriteArguments, context: ToolContext) -> ToolResult:
        return await self._write.append(arguments)


def settled(messages: list[Message]) -> list[Message]:
    """The messages without those at the end that have no answer yet. The flush is not about them."""
    end = len(messages)
    while end and isinstance(messages[end - 1], UserMessage):
        end -= 1
    return messages[:end]


class FlushModel:
    """The ``ModelPort`` of a flush."""

    def __init__(self, runtime: Runtime, prepared: Prepared, calls: BilledCalls) -> None:
        self._runtime = runtime
        self._requests = prepared.requests.without_choices()
        self._calls = calls
        self.model, self.thinking = prepared.model, ""

    async def request(self, messages: list[Message]) -> ModelRequest:
        return await self._requests.build(messages)

    async def ask(self, request: ModelRequest, on_event: OnEvent) -> AssistantMessage:
        return await self._calls.ask(request, on_event)

    async def after_failure(self, error: ModelError, attempt: int) -> NextStep:
        delay = next_retry_ms(error, attempt, self._runtime.config.current.retry)
        return None if delay is None else TryAgain(delay)

    def change_after_refusal(self, error: ModelError) -> bool:
        return False


class AnswerLimit:
    """The ``EntryStore`` of a flush: it persists nothing, and stops the loop after too many answers."""

    def __init__(self, abort: AbortSignal) -> None:
        self._abort = abort
        self._answers = 0

    async def store(self, event: Event) -> None:
        if isinstance(event, AssistantEnded) and not event.continues:
            self._answers += 1
        elif isinstance(event, ToolEnded) and self._answers >= MOST_ANSWERS:
            self._abort.abort(f"more than {MOST_ANSWERS} answers")


def _options(runtime: Runtime, prepared: Prepared, tools: dict[str, Tool], calls: BilledCalls) -> LoopOptions:
    turn, abort = prepared.turn, AbortSignal()
    context = ToolContext(
        agent_id=turn.agent_id,
        session_key=turn.session_key,
        workspace=prepared.workplace.folder,
        run_id=f"flush:{uuid.uuid4()}",
        caller=turn.caller,
        model_sees_images=False,
    )
    return LoopOptions(
        port=FlushModel(runtime, prepared, calls),
        tools=runtime.extensions.watched(tools),
        tool_context=context,
        clock=runtime.clock,
        abort=abort,
        entries=AnswerLimit(abort),
    )


async def _store(runtime: Runtime, transcript: Transcript, words: str, messages: list[Message]) -> None:
    """Stores the turn on a side branch. A crash before this leaves the conversation as it was."""
    leaf = transcript.leaf_id
    stored = [
        await stored_result(message, runtime.stores.blobs, runtime.state_dir)
        if isinstance(message, ToolResultMessage)
        else message
        for message in messages
    ]
    first = await transcript.append(
        {"type": "custom_message", "customType": "memory-flush", "content": words, "display": False}
    )
    last = first
    try:
        for message in stored:
            last = await transcript.append({"type": "message", "message": message})
    finally:
        await transcript.branch(leaf)
        # After a restart the conversation continues from the last entry of the file. This entry puts it on the branch.
        data = {"timestamp": runtime.clock.now_ms(), "firstEntryId": first, "lastEntryId": last}
        answer = next((m for m in reversed(messages) if isinstance(m, AssistantMessage)), None)
        if answer is not None:
            data |= {"provider": answer.provider, "modelId": answer.model}
        await transcript.append({"type": "custom", "customType": "memory-flush", "data": data})


async def _record(runtime: Runtime, prepared: Prepared) -> None:
    """Notes in the session's entry that this cycle was flushed."""
    now = runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry | None:
        if entry is None or entry["sessionId"] != prepared.turn.session_id:
            return entry
        entry["memoryFlushAt"] = now
        entry["memoryFlushCompactionCount"] = entry.get("compactionCount", 0)
        return entry

    await runtime.stores.sessions.update(prepared.turn.agent_id, prepared.turn.session_key, change)
