"""Random conversations that overflow at random calls, with four vendors: no question, pin or tool call is lost.

``OPENCLAW_OVERFLOW_CASES`` is the number of conversations.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.agent.compaction.summary import SYSTEM
from openclaw.agent.loop import Steered
from openclaw.agent.run import AgentRun
from openclaw.agent.run_result import RunResult
from openclaw.agent.window.window import Pin, add_pin, pinned_block
from openclaw.gateway.gateway import Gateway
from openclaw.messages import (
    AssistantMessage,
    Message,
    Route,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from openclaw.models.base import ModelError, ModelRequest, OnEvent
from openclaw.models.calls import wire_body
from openclaw.models.convert import NO_RESULT
from openclaw.models.errors import classify
from openclaw.runs.perform import perform_run
from openclaw.runs.run import Run, RunInbox
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.message_ledger import Accept, MessageBody
from openclaw.storage.transcripts import Transcript, TranscriptRef
from tests.support.gateway_in_process import gateway_parts
from tests.support.model_rules import check_anthropic
from tests.support.model_rules_openai import check_chat, check_responses
from tests.support.scripted_model import ScriptedModel

CASES = int(os.environ.get("OPENCLAW_OVERFLOW_CASES", "120"))
SEED = int(os.environ.get("OPENCLAW_OVERFLOW_SEED", "11"))
VENDORS = {
    "anthropic": ("anthropic-messages", check_anthropic),
    "openai": ("openai-completions", check_chat),
    "openai-responses": ("openai-responses", check_responses),
    "ollama": ("openai-completions", check_chat),
}
FILES = (10, 400, 3000, 9000, 20_000)
WINDOW = 24_000


def vendor_words(vendor: str, prompt: int, output: int, window: int) -> str:
    """How the vendor refuses such a prompt."""
    match vendor:
        case "anthropic" if prompt <= window:
            return f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {window}, decrease"
        case "anthropic":
            return f"prompt is too long: {prompt} tokens > {window} maximum"
        case "openai":
            return (
                f"This model's maximum context length is {window} tokens. However, you requested {prompt + output} "
                f"tokens ({prompt} in the messages, {output} in the completion)."
            )
        case "openai-responses":
            return "Your input exceeds the context window of this model. Please adjust your input and try again."
        case _:
            return f"the request exceeds the available context size ({window} tokens), try increasing it"


class Vendor:
    """A model that counts tokens in its own way. It refuses what is too large, and a call or two for no such reason."""

    def __init__(self, name: str, chance: random.Random, question: str, steps: int) -> None:
        self.name = name
        self.chance = chance
        self.question = question
        self.steps = steps
        self.fails_at = {chance.randrange(steps + 1) for _ in range(chance.choice((1, 1, 2)))}
        self.pin = "PINNED " + "rule " * chance.choice((0, 10, 400))
        self.density = chance.choice((1.0, 1.0, 1.5, 2.5))
        self.summary = chance.choice(("good", "good", "word", "empty", "long", "error"))
        self.steered_after = chance.choice((-1, -1, 1, 2))
        """The call after which one more thing is said; -1: none."""
        self.steered = ""
        self.calls = 0
        self.made: list[str] = []
        """The ids of the calls of this turn."""
        self.summaries = 0
        self.most_summaries = 0
        self.refused = 0

    async def answer(self, request: ModelRequest, agent_id: str, on_event: OnEvent) -> AssistantMessage:
        raw = wire_body(request)
        assert raw is not None
        body = msgspec.json.decode(raw)
        VENDORS[request.model.provider][1](body)
        prompt = int(len(raw) / 4 * self.density)
        fields = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        output = next(body[name] for name in fields if name in body)
        if request.system == SYSTEM:
            self.summaries += 1
            self.most_summaries = max(self.most_summaries, self.summaries)
            return self._say(request, self._summary(), prompt)
        self._check(request, raw)
        if prompt + output > WINDOW or self.calls in self.fails_at:
            self.fails_at.discard(self.calls)
            self.refused += 1
            words = vendor_words(self.name, max(prompt, WINDOW - output + 1), output, WINDOW)
            kind = classify(400, words)
            assert kind.kind == "overflow"
            raise ModelError(f"400 {words}", kind="overflow", status=400)
        self.summaries = 0
        self.calls += 1
        if self.calls > self.steps:
            self.made.clear()  # The turn is over, and may be condensed. What is said now begins another one.
            return self._say(request, "all done", prompt)
        calls = [self._call() for _ in range(self.chance.choice((1, 1, 2, 3)))]
        return self._say(request, f"step {self.calls}", prompt, calls)

    def _check(self, request: ModelRequest, raw: bytes) -> None:
        text = raw.decode()
        assert self.question in text, "the question is lost"
        assert self.steered in text, "what was said in the middle is lost"
        assert self.pin.strip() in text, "a pin was cut"
        assert NO_RESULT not in text, "a call has lost its result"
        called: set[str] = set()
        for message in request.messages:
            if isinstance(message, AssistantMessage):
                called |= {call.id for call in message.tool_calls}
            elif isinstance(message, ToolResultMessage):
                assert message.tool_call_id in called, "a result has lost its call"
        if self.made:
            assert self.made[-1] in called, "the last step is lost"

    def _call(self) -> ToolCall:
        call = ToolCall(id=f"call_{len(self.made)}", name="read", arguments={"path": f"f{self.chance.choice(FILES)}"})
        self.made.append(call.id)
        return call

    def _summary(self) -> str:
        match self.summary:
            case "error":
                raise ModelError("500 boom", kind="other", status=500)
            case "word":
                return "ok"
            case "empty":
                return ""
            case "long":
                return "blah " * 60_000
            case _:
                return "## Goal\nBuild the shed.\n## Next Steps\n1. buy wood"

    def _say(
        self, request: ModelRequest, text: str, prompt: int, calls: list[ToolCall] | None = None
    ) -> AssistantMessage:
        content: list[Any] = [TextBlock(text=text)] if text else []
        model = request.model
        return AssistantMessage(
            content=[*content, *(calls or [])],
            api=model.api,
            provider=model.provider,
            model=model.id,
            stop_reason="toolUse" if calls else "stop",
            usage=Usage(input=prompt, output=10, total_tokens=prompt + 10),
        )


class Inbox(RunInbox):
    """A person says one more thing in the middle of some of the turns."""

    def __init__(self, vendor: Vendor) -> None:
        super().__init__()
        self._vendor = vendor

    def waiting(self) -> bool:
        return False

    def steering(self) -> list[Steered]:
        vendor = self._vendor
        if vendor.calls != vendor.steered_after or vendor.steered:
            return []
        vendor.steered = f"STEERED {vendor.question}"
        text = TextBlock(text=vendor.steered + " and more" * vendor.chance.choice((1, 500)))
        return [Steered(UserMessage(content=[text], timestamp=1_800_000_000_000), f"steer-{vendor.question}")]

    def follow_ups(self) -> list[Steered]:
        return []


async def write_history(transcript: Transcript, chance: random.Random, provider: str, pin: Pin) -> None:
    """Turns of all sizes, with tool loops, failed answers, an unanswered question, a pin, a condensed part."""

    async def add(message: Message) -> str:
        return await transcript.append({"type": "message", "message": message})

    at = 1_700_000_000_000
    last = ""
    for turn in range(chance.choice((0, 1, 3, 8, 20))):
        at += 1000
        size = chance.choice((5, 50, 400, 3000))
        last = await add(UserMessage(content=[TextBlock(text=f"turn {turn} " + "word " * size)], timestamp=at))
        for step in range(chance.choice((0, 0, 0, 1, 4))):
            call = ToolCall(id=f"old_{turn}_{step}", name="read", arguments={"path": "x"})
            await add(
                AssistantMessage(
                    content=[call], provider=provider, model="m", stop_reason="toolUse", usage=Usage(), timestamp=at
                )
            )
            result = [TextBlock(text="line " * chance.choice((1, 100, 2000)))]
            await add(ToolResultMessage(tool_call_id=call.id, tool_name="read", content=result, timestamp=at))
        kind = chance.choice(("stop", "stop", "stop", "stop", "error", "aborted", "none"))
        if kind != "none":
            said = [TextBlock(text=f"reply {turn} " + "text " * chance.choice((3, 60, 800)))] if kind != "error" else []
            await add(
                AssistantMessage(content=list(said), provider=provider, model="m", stop_reason=kind, timestamp=at)
            )
        if turn and chance.random() < 0.05:
            summary, details = f"It was about a shed.{pinned_block([pin.text])}", {"pins": [pin]}
            fields = {"type": "compaction", "summary": summary, "firstKeptEntryId": last, "details": details}
            await transcript.append({**fields, "tokensBefore": 9000})


def config() -> dict[str, Any]:
    def provider(name: str) -> dict[str, Any]:
        model = {"id": "m", "name": "M", "contextWindow": WINDOW, "maxTokens": 8000}
        return {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": "k", "api": VENDORS[name][0], "models": [model]}

    return {
        "models": {"providers": {name: provider(name) for name in VENDORS}},
        "tools": {"allow": ["read"], "loopDetection": {"enabled": False}},
        "compaction": {"keepRecentTokens": 2000, "reserveTokens": 5000},
        "agents": {
            "defaults": {
                "model": "anthropic/m",
                "skipBootstrap": True,
                "compaction": {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}},
            }
        },
    }


async def run_case(gateway: Gateway, number: int, vendor: Vendor) -> RunResult:
    runtime, chance = gateway.runtime, vendor.chance
    key, session_id = f"agent:main:case-{number}", f"{number:08d}-1111-4111-8111-111111111111"
    begun = SessionEntry(sessionId=session_id, updatedAt=runtime.clock.now_ms())
    await runtime.stores.sessions.update("main", key, lambda _: begun)
    transcript = await runtime.stores.transcripts.open(
        TranscriptRef(agent_id="main", session_id=session_id), cwd="/tmp"
    )
    assert transcript is not None
    pin = await add_pin(transcript, vendor.pin, WINDOW)
    await write_history(transcript, chance, vendor.name, pin)
    runtime.models.calls.call = vendor.answer
    body = MessageBody(
        prompt=f"{vendor.question} " + "please " * chance.choice((1, 30, 3000)), model=f"{vendor.name}/m"
    )
    row, _ = await runtime.stores.ledger.accept(
        Accept(
            run_id=f"r{number}",
            dedupe_key=f"webchat|r{number}",
            agent_id="main",
            session_key=key,
            session_id=session_id,
            source="webchat",
            route=Route(channel="webchat"),
            body=body,
        )
    )
    run = Run(row)
    run.inbox = Inbox(vendor)
    return await perform_run(await AgentRun.open(run, runtime, session_id))


@pytest.mark.parametrize("name", VENDORS)
async def test_whatever_overflows_keeps_the_question_and_pairs_every_call_with_its_result(
    name: str, tmp_path: Path
) -> None:
    async with gateway_parts(tmp_path / "state", ScriptedModel(), **config()) as gateway:
        workspace = tmp_path / "state" / "workspace"
        workspace.mkdir(exist_ok=True)
        for size in FILES:
            (workspace / f"f{size}").write_text("row " * (size // 4))
        for number in range(CASES // len(VENDORS)):
            seed = f"{SEED}/{name}/{number}"
            chance = random.Random(seed)
            vendor = Vendor(name, chance, f"QUESTION-{number}", chance.choice((0, 1, 2, 5, 9)))
            result = await run_case(gateway, number, vendor)
            assert result.outcome == "ok", (seed, result.error)
            assert result.texts[-1] == "all done", seed
            assert vendor.most_summaries <= 3, seed
            assert vendor.refused, seed
