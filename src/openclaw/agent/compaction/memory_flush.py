"""The silent turn before a compaction, in which the agent writes down what must outlast the conversation.

It is a side branch of the transcript: kept in the file for whoever wants to know, but no part of the conversation.
Nothing of it is shown or delivered, and it does not fill the window it is there to empty.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.abort import AbortSignal
from openclaw.agent.hooks import LONGEST_FLUSH_S, Leaving
from openclaw.agent.loop import LoopOptions, run_loop
from openclaw.agent.prepare import Prepared, prepare
from openclaw.agent.prompt.system_prompt import SystemPrompt
from openclaw.agent.recorder import stored_result
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.billed_calls import NO_BILL, BilledCalls, RunBill
from openclaw.clock import named_zone
from openclaw.config.agents import sandbox_config, wants_sandbox
from openclaw.config.schema import Config, MemoryFlush
from openclaw.events import AssistantEnded, Event, RunEnded, ToolEnded
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolCall, ToolResultMessage, UserMessage
from openclaw.models.base import ModelError
from openclaw.models.retry import next_retry_ms
from openclaw.outbound.silence import NO_REPLY
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.base import Transcript, TranscriptRef
from openclaw.tools.base import Tool, ToolContext, ToolResult
from openclaw.tools.files import WriteTool

log = logging.getLogger("openclaw.agents.memory")

MOST_ANSWERS = 12
"""Model calls of one flush; notes that take more are cut off there."""
USABLE = frozenset({"read", "memory_search", "memory_get"})
"""Besides ``write``, which only adds. Anything else could be noticed outside, and this turn is to be silent."""
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
    """Whether the window has filled up so far that the next compaction is near, and this cycle was not flushed yet."""
    if entry is None:
        return False
    total, threshold = entry.get("totalTokens", 0), window - floor - soft
    return total >= threshold > 0 and not flushed_this_cycle(entry)


def flushed_this_cycle(entry: SessionEntry) -> bool:
    return entry.get("memoryFlushCompactionCount") == entry.get("compactionCount", 0)


def workspace_closed(config: Config, agent_id: str, session_key: str, workspace: Path) -> bool:
    """True where notes could not be kept: a sandbox that may not write to the workspace, or no writable folder."""
    if wants_sandbox(config, agent_id, session_key):
        return sandbox_config(config, agent_id).workspace_access != "rw"
    return not (workspace.is_dir() and os.access(workspace, os.W_OK | os.X_OK))


def texts(settings: MemoryFlush, now_ms: int, zone_name: str | None) -> tuple[str, str]:
    """The turn's words and its addition to the system prompt, with today's date where the person is."""
    now = datetime.fromtimestamp(now_ms / 1000, named_zone(zone_name))
    prompt = settings.prompt.strip() or PROMPT
    date = f"{now:%Y-%m-%d}"
    prompt = prompt.replace("{date}", date).replace("YYYY-MM-DD", date)
    prompt = prompt.replace("{time}", f"{now:%A %Y-%m-%d %H:%M} ({zone_name or now.tzname() or 'local time'})")
    return _may_be_silent(prompt), _may_be_silent(settings.system_prompt.strip() or SYSTEM)


def _may_be_silent(text: str) -> str:
    return text if NO_REPLY in text else f"{text}\n\n{SILENT_HINT}"


# The two occasions


def is_due(runtime: Runtime, prepared: Prepared) -> bool:
    """Asked before each new message of a user. True once per compaction cycle."""
    config = runtime.config.current
    if prepared.source == "heartbeat" or not config.compaction.enabled:
        return False
    compaction = config.agents.defaults.compaction
    soft = compaction.memory_flush.soft_threshold_tokens
    return due(prepared.entry, prepared.model.context_window, compaction.reserve_tokens_floor, soft)


async def flush(
    runtime: Runtime,
    transcript: Transcript,
    prepared: Prepared,
    abort: AbortSignal,
    bill: RunBill = NO_BILL,
) -> bool:
    """True when notes were asked for and the turn is recorded.

    The caller owns the session. A failure is logged, and tried again at the next message.
    """
    try:
        with abort.waiting():
            return await _flush(runtime, transcript, prepared, bill)
    except OSError as error:
        log.warning("memory flush of %s could not be kept: %s", prepared.session_key, error)
        return False


async def flush_before_leaving(runtime: Runtime, leaving: Leaving) -> bool:
    """Called by a compaction, whatever its reason: what was not flushed yet in this cycle is flushed now."""
    entry = await runtime.sessions.get(leaving.agent_id, leaving.session_key)
    if entry is None or entry["sessionId"] != leaving.session_id or flushed_this_cycle(entry):
        return False
    ref = TranscriptRef(agent_id=leaving.agent_id, session_id=leaving.session_id, file=entry.get("sessionFile"))
    transcript = await runtime.transcripts.open(ref, create=False)
    if transcript is None or not runtime.config.current.agents.defaults.compaction.memory_flush.enabled:
        return False
    prepared = await prepare(runtime, leaving.agent_id, leaving.session_key, leaving.session_id)
    return await _flush(runtime, transcript, prepared)


def watch_compactions(runtime: Runtime) -> None:
    async def hook(leaving: Leaving) -> bool:
        return await flush_before_leaving(runtime, leaving)

    runtime.hooks.before_content_leaves.append(hook)


# The turn itself


async def _flush(
    runtime: Runtime,
    transcript: Transcript,
    prepared: Prepared,
    bill: RunBill = NO_BILL,
) -> bool:
    settings = runtime.config.current.agents.defaults.compaction.memory_flush
    tools = usable_tools(prepared.prompt.tools)
    if not settings.enabled or "write" not in tools:
        return False
    config, workspace = runtime.config.current, prepared.workspace
    if await asyncio.to_thread(workspace_closed, config, prepared.agent_id, prepared.session_key, workspace):
        return False
    said = settled(transcript.context().messages)
    if not said:
        return False
    now = runtime.clock.now_ms()
    words, system = texts(settings, now, config.agents.defaults.user_timezone)
    prompt = UserMessage(content=[TextBlock(text=words)], timestamp=now)
    calls = BilledCalls(
        runtime, prepared.agent_id, prepared.session_key, transcript, "memory flush", keep=False, bill=bill
    )
    kept = False
    try:
        messages = [*said, prompt]
        ended = await _ask(messages, _options(runtime, prepared, tools, system, calls), prepared)
        if ended.outcome == "error" or (ended.outcome == "aborted" and not _wrote(ended.messages)):
            log.warning("memory flush of %s failed: %s", prepared.session_key, ended.error)
            return False
        await _keep(runtime, transcript, words, ended.messages)
        kept = True
    except TimeoutError:
        log.warning("memory flush of %s took too long; it is tried again at the next message", prepared.session_key)
        return False
    finally:
        if not kept:
            await calls.write_down()
    await _record(runtime, prepared)
    return True


async def _ask(messages: list[Message], options: LoopOptions, prepared: Prepared) -> RunEnded:
    async with asyncio.timeout(min(prepared.timeout_s or LONGEST_FLUSH_S, LONGEST_FLUSH_S)):
        await prepared.cleaner.prepare(messages)
        return await run_loop(messages, options)


def usable_tools(tools: dict[str, Tool]) -> dict[str, Tool]:
    usable = {name: tool for name, tool in tools.items() if name in USABLE}
    if isinstance(write := tools.get("write"), WriteTool):
        usable["write"] = AddingWrite(write)
    return usable


class AddingWrite:
    """``write`` as it works during a flush: notes of earlier days and turns cannot be overwritten."""

    def __init__(self, write: WriteTool) -> None:
        self._write = write
        self.spec = write.spec
        self.summary = write.summary

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return await self._write.add(arguments)


def settled(messages: list[Message]) -> list[Message]:
    """What was said, without words that still wait for their answer: this turn is not about them."""
    end = len(messages)
    while end and isinstance(messages[end - 1], UserMessage):
        end -= 1
    return messages[:end]


def _options(
    runtime: Runtime, prepared: Prepared, tools: dict[str, Tool], system: str, calls: BilledCalls
) -> LoopOptions:
    # The addition goes to the end, and every tool stays listed: what the provider has cached serves this turn too.
    suffix = f"{prepared.prompt.suffix}\n\n{system}".strip()
    prompt: SystemPrompt = msgspec.structs.replace(prepared.prompt, suffix=suffix)
    prepared = msgspec.structs.replace(prepared, prompt=prompt, tool_choice=None, max_tokens=None)

    def delay(attempt: int, error: ModelError) -> int | None:
        return next_retry_ms(error, attempt, prepared.retry)

    abort, answers, run_id = AbortSignal(), 0, f"flush:{uuid.uuid4()}"

    async def count(event: Event) -> None:
        nonlocal answers
        if isinstance(event, AssistantEnded) and not event.continues:
            answers += 1
        elif isinstance(event, ToolEnded) and answers >= MOST_ANSWERS:
            abort.abort(f"more than {MOST_ANSWERS} answers")

    def tool_context(call: ToolCall, update: Callable[[ToolResult], None]) -> ToolContext:
        return ToolContext(
            agent_id=prepared.agent_id,
            session_key=prepared.session_key,
            workspace=prepared.workspace,
            run_id=run_id,
            call_id=call.id,
            model_sees_images=False,
        )

    return LoopOptions(
        model=prepared.model,
        ask=calls.ask,
        request=prepared.request,
        tools=tools,
        tool_context=tool_context,
        clock=runtime.clock,
        abort=abort,
        keep=count,
        retry_delay_ms=delay,
        max_retries=prepared.retry.max_retries if prepared.retry.enabled else 0,
    )


def _wrote(messages: list[Message]) -> bool:
    return any(isinstance(m, ToolResultMessage) and m.tool_name == "write" and not m.is_error for m in messages)


async def _keep(runtime: Runtime, transcript: Transcript, words: str, messages: list[Message]) -> None:
    """On a side branch, all at once at the end: a crash before that leaves the conversation where it was."""
    leaf = transcript.leaf_id
    stored = [
        await stored_result(message, runtime.blobs, runtime.state_dir)
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
        transcript.branch(leaf)
        # Appended to the conversation, so that it goes on from there after a restart too.
        data = {"timestamp": runtime.clock.now_ms(), "firstEntryId": first, "lastEntryId": last}
        answer = next((m for m in reversed(messages) if isinstance(m, AssistantMessage)), None)
        if answer is not None:
            data |= {"provider": answer.provider, "modelId": answer.model}
        await transcript.append({"type": "custom", "customType": "memory-flush", "data": data})


async def _record(runtime: Runtime, prepared: Prepared) -> None:
    now = runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry | None:
        if entry is None or entry["sessionId"] != prepared.session_id:
            return entry
        entry["memoryFlushAt"] = now
        entry["memoryFlushCompactionCount"] = entry.get("compactionCount", 0)
        return entry

    await runtime.sessions.update(prepared.agent_id, prepared.session_key, change)
