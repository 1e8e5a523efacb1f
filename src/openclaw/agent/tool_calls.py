"""One tool call: find the tool, check the arguments, run it, turn whatever happens into a result."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from openclaw.agent.abort import Aborted, AbortSignal
from openclaw.clock import Clock
from openclaw.events import ToolEnded
from openclaw.messages import TextBlock, ToolCall, ToolResultMessage
from openclaw.tools.arguments import InvalidArguments, validate_arguments
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult

log = logging.getLogger("openclaw.agents.tools")


async def call_tool(
    call: ToolCall,
    tools: Mapping[str, Tool],
    context: ToolContext,
    abort: AbortSignal,
    clock: Clock,
) -> ToolEnded:
    """Never raises: an unknown tool, bad arguments, a failure and an abort are all results the model can read."""
    tool = tools.get(call.name)
    if tool is None:
        return _ended(call, not_run(call, f"Tool {call.name} not found", clock.now_ms()), True)
    try:
        arguments = validate_arguments(tool.spec, call.arguments)
    except InvalidArguments as invalid:
        return _ended(call, not_run(call, str(invalid), clock.now_ms()), True)
    try:
        with abort.waiting():
            result = await tool.run(arguments, context)
    except Aborted as stopped:
        message = not_run(call, f"Stopped while running ({stopped}).", clock.now_ms())
        return _ended(call, message, True)
    except ToolError as failure:
        result = error_result(call.name, str(failure))
    except Exception as failure:
        log.exception("tool %s failed in run %s of %s", call.name, context.run_id, context.session_key)
        result = error_result(call.name, f"{type(failure).__name__}: {failure}")
    message = ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=result.content,
        details=result.details,
        timestamp=clock.now_ms(),
    )
    return _ended(call, message, result.failed)


def error_result(tool: str, error: str) -> ToolResult:
    """The shape existing clients know a failed tool by: the same JSON as text and as details."""
    details: dict[str, Any] = {"status": "error", "tool": tool, "error": error}
    text = msgspec.json.format(msgspec.json.encode(details), indent=2).decode()
    return ToolResult(content=[TextBlock(text=text)], details=details)


def not_run(call: ToolCall, why: str, now_ms: int) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=[TextBlock(text=why)],
        is_error=True,
        timestamp=now_ms,
    )


def _ended(call: ToolCall, message: ToolResultMessage, failed: bool) -> ToolEnded:
    return ToolEnded(message, call.arguments, failed)
