"""A request that was refused as malformed is built anew once, more plainly; other failures are not touched by that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from openclaw.agent.abort import AbortSignal
from openclaw.agent.loop import LoopOptions, run_loop
from openclaw.events import RunEnded
from openclaw.messages import AssistantMessage, Message, UserMessage
from openclaw.models.base import Heard, ModelError, ModelRequest, Text
from openclaw.tools.base import ToolContext
from tests.agent.scripted import MODEL, HeldClock, Script, says

REFUSAL = ModelError("400 malformed", kind="format", status=400)


class Simplifier:
    """Plain after the first refusal, and no plainer after that."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, error: ModelError) -> bool:
        self.asked += 1
        return self.asked == 1

    def request(self, messages: list[Message]) -> ModelRequest:
        return ModelRequest(model=MODEL, system="plain" if self.asked else "usual", messages=messages)


async def run(script: Script, simplify: Simplifier, workspace: Any) -> tuple[list[str], RunEnded, list[str]]:
    systems: list[str] = []

    async def ask(request: ModelRequest, heard: Heard) -> AssistantMessage:
        systems.append(request.system)
        return await script.ask(request, heard)

    options = LoopOptions(
        model=MODEL,
        ask=ask,
        request=simplify.request,
        tools={},
        tool_context=lambda call, update: ToolContext(agent_id="main", session_key="k", workspace=workspace),
        clock=HeldClock(),
        abort=AbortSignal(),
        simplify=simplify,
    )
    ended = await run_loop([UserMessage(content="hello")], options)
    reasons = [message.stop_reason for message in ended.messages if isinstance(message, AssistantMessage)]
    return systems, ended, [str(reason) for reason in reasons]


async def test_a_refused_request_is_built_more_plainly_once(tmp_path: Any) -> None:
    systems, end, reasons = await run(Script(REFUSAL, says("fine")), Simplifier(), tmp_path)
    assert (systems, end.outcome, reasons) == (["usual", "plain"], "ok", ["error", "stop"])


async def test_refused_again_the_run_ends_with_the_providers_words(tmp_path: Any) -> None:
    systems, end, reasons = await run(Script(REFUSAL, REFUSAL), Simplifier(), tmp_path)
    assert (systems, end.outcome, reasons) == (["usual", "plain"], "error", ["error", "error"])
    assert "400 malformed" in str(end.error)
    assert "simplest form" in str(end.error)


async def test_a_refusal_after_some_words_were_streamed_starts_the_answer_over(tmp_path: Any) -> None:
    async def breaks() -> AsyncIterator[Any]:
        yield Text("half")
        raise REFUSAL

    _, end, _ = await run(Script(breaks, says("whole")), Simplifier(), tmp_path)
    assert [message.text for message in end.messages if not isinstance(message, UserMessage)] == ["half", "whole"]


@pytest.mark.parametrize(
    "failure",
    [
        ModelError("404 no such model", kind="format", status=404),
        ModelError("401 bad key", kind="auth", status=401),
        ModelError("prompt is too long", kind="overflow", status=400),
    ],
)
async def test_other_failures_do_not_make_a_request_plainer(failure: ModelError, tmp_path: Any) -> None:
    simplify = Simplifier()
    systems, end, _ = await run(Script(failure), simplify, tmp_path)
    assert (systems, simplify.asked, end.error) == (["usual"], 0, str(failure))
