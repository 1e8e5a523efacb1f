"""Whichever model fails, how and when: one answer or one notice, no word twice, and every call on the bill."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openclaw.agent.spend.spend import session_totals
from openclaw.gateway.server.events import Client, ClientInfo
from openclaw.messages import AssistantMessage, TextBlock, ToolCall, Usage
from openclaw.models.base import Done, ErrorKind, ModelError, ModelRequest, StreamEvent, Text
from openclaw.models.calls import wire_body
from openclaw.models.errors import switch_text
from tests.support.clock import MovableClock
from tests.support.gateway_in_process import gateway_parts
from tests.support.model_rules import check_anthropic
from tests.support.model_rules_openai import check_chat, check_responses
from tests.support.scripted_model import ScriptedModel
from tests.support.submit import MAIN, submit

SCHEDULES = int(os.environ.get("OPENCLAW_TEST_SCHEDULES", "25"))
PROVIDERS = {"one": "anthropic-messages", "two": "openai-completions", "three": "openai-responses"}
CHECKS = {"one": check_anthropic, "two": check_chat, "three": check_responses}
STATUS: dict[ErrorKind, int | None] = {
    "auth": 401,
    "billing": 402,
    "rate_limit": 429,
    "overloaded": 529,
    "timeout": None,
    "network": None,
    "format": 400,
    "other": 500,
}
RETRYABLE = ("rate_limit", "overloaded", "timeout", "network", "other")
TOKENS = 10
WORD = re.compile(r"w\d+x\d")


class Fails(msgspec.Struct, frozen=True):
    kind: ErrorKind
    after: int
    """So many words are heard before."""
    gone: bool = False
    """The model does not exist."""

    def error(self) -> ModelError:
        status = 404 if self.gone else STATUS[self.kind]
        return ModelError(f"{self.kind} error", kind=self.kind, status=status, retryable=self.kind in RETRYABLE)


Step = Fails | str
"""What a model does when it is asked: it fails, ``says`` something, makes a ``call``, or is ``cut``."""
failures = st.builds(Fails, st.sampled_from(list(STATUS)), st.integers(0, 3), st.booleans())
steps = st.one_of(failures, failures, st.sampled_from(["says", "call", "cut"]))
messages = st.tuples(st.sampled_from([0, 0, 61, 7 * 3600]), st.lists(steps, max_size=10))
"""The seconds that pass before a message, and what happens to it."""
schedules = st.tuples(
    st.integers(1, 3),
    st.lists(st.sampled_from(["two/m", "three/m"]), unique=True),
    st.lists(messages, min_size=1, max_size=3),
)


class Models:
    """Plays the steps, whoever is asked. Every word is another one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.calls = 0
        self.paid: list[str] = []
        """The models that gave a whole message."""
        self.answer: list[str] = []
        """The words of the last answer, which may have come in parts."""

    async def stream(self, request: ModelRequest, key: str) -> AsyncGenerator[StreamEvent]:
        self.calls += 1
        model, number = request.model, self.calls
        body = wire_body(request)
        assert body is not None
        CHECKS[model.provider](json.loads(body))
        step = self.steps.pop(0) if self.steps else "says"
        words = [f"w{number}x{place} " for place in range(4)]
        if isinstance(step, Fails):
            for word in words[: step.after]:
                yield Text(word)
            raise step.error()
        for word in words:
            yield Text(word)
        self.paid.append(model.ref)
        self.answer = [] if step == "call" else [*self.answer, *words]
        calls = [ToolCall(id=f"call_{number}", name="read", arguments={"path": "none.txt"})] if step == "call" else []
        yield Done(
            AssistantMessage(
                content=[TextBlock(text="".join(words).strip()), *calls],
                api=model.api,
                provider=model.provider,
                model=model.id,
                stop_reason="toolUse" if calls else "length" if step == "cut" else "stop",
                usage=Usage(input=TOKENS, total_tokens=TOKENS),
            )
        )


class Sink:
    buffered = 0

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def pack(self, frame: bytes) -> bytes:
        return frame

    def write(self, packed: bytes) -> None:
        self.frames.append(json.loads(packed))

    async def room(self) -> None: ...

    def close(self, code: int, reason: str) -> None: ...

    async def closed(self, code: int, reason: str) -> None: ...

    def chats(self, run_id: str) -> list[dict[str, Any]]:
        chats = [frame["payload"] for frame in self.frames if frame.get("event") == "chat"]
        return [payload for payload in chats if payload["runId"].startswith(run_id)]


def configured(fallbacks: list[str]) -> dict[str, Any]:
    model = {"id": "m", "contextWindow": 200_000, "maxTokens": 8192}
    provider = {"baseUrl": "https://model.test", "models": [model]}
    return {
        "agents": {"defaults": {"model": {"primary": "one/m", "fallbacks": fallbacks}, "userTimezone": "UTC"}},
        "models": {"providers": {name: {**provider, "api": api} for name, api in PROVIDERS.items()}},
        "retry": {"baseDelayMs": 1, "maxRetries": 1},
    }


def store_keys(state: Path, of_one: int) -> None:
    names = [("one", number) for number in range(of_one)] + [("two", 0), ("three", 0)]
    profiles = {
        f"{name}:{number}": {"type": "api_key", "provider": name, "key": f"k{number}"} for name, number in names
    }
    path = state / "agents" / "main" / "agent" / "auth-profiles.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"version": 1, "profiles": profiles}))


def words_of(payload: dict[str, Any]) -> list[str]:
    """All words of the models in a message. Those of two parts may stand without a space between them."""
    return [word for block in payload["message"]["content"] for word in WORD.findall(block.get("text", ""))]


async def live(of_one: int, fallbacks: list[str], plan: list[tuple[int, list[Step]]]) -> None:
    clock, models, sink = MovableClock(), Models(), Sink()
    with tempfile.TemporaryDirectory() as folder:
        store_keys(Path(folder), of_one)
        async with gateway_parts(Path(folder), ScriptedModel(), clock=clock, **configured(fallbacks)) as gateway:
            del gateway.runtime.models.calls.call  # The real calls, to providers of the test.
            gateway.runtime.models.calls._providers = dict.fromkeys(PROVIDERS.values(), models)  # pyright: ignore
            info = ClientInfo(id="test", version="1", platform="linux", mode="test")
            scopes = frozenset({"operator.admin"})
            client = Client(
                sink, conn_id="c", role="operator", scopes=scopes, caps=frozenset(), client_info=info, is_local=True
            )
            gateway.broadcaster.add(client)
            told: tuple[str, str] | None = None
            for number, (wait_s, steps) in enumerate(plan):
                clock.advance(wait_s)
                models.steps, models.answer = list(steps), []
                submission = await submit(gateway, f"question {number}", f"run-{number}")
                assert submission.run is not None
                await submission.run.wait()
                ends = [one for one in sink.chats(f"run-{number}") if one["state"] != "delta"]
                assert len(ends) == 1, ends
                entry = await gateway.runtime.stores.sessions.get(MAIN.agent_id, MAIN.key)
                assert entry is not None
                await asyncio.sleep(0)
                said = [one["message"]["content"][0]["text"] for one in sink.chats(f"notice-run-{number}-model")]
                now = (entry.get("fallbackNoticeSelectedModel"), entry.get("fallbackNoticeActiveModel"))
                if ends[0]["state"] == "final":
                    assert words_of(ends[0]) == [word.strip() for word in models.answer]
                    active = f"{entry.get('modelProvider')}/{entry.get('model')}"
                    assert active == models.paid[-1]
                    assert now == (("one/m", active) if active != "one/m" else (None, None))
                    if (told[1] if told else "one/m") == active:
                        assert len(said) != 1, "nobody is told of what did not change"
                    else:
                        assert said and said[-1].startswith(switch_text("one/m", active, "").split(" cannot")[0])
                else:
                    assert ends[0]["state"] == "error" and ends[0]["errorMessage"]
                told = (str(now[0]), str(now[1])) if now[0] else None
            totals = await session_totals(gateway.runtime, MAIN, entry)
            assert totals.total_tokens == TOKENS * len(models.paid)


@settings(max_examples=SCHEDULES, deadline=None, suppress_health_check=list(HealthCheck))
@given(schedules)
@example((2, ["two/m"], [(0, ["cut", Fails("auth", 0), "cut", Fails("auth", 0)])]))
@example((1, ["two/m"], [(0, ["call", "cut", Fails("billing", 2), "says"]), (0, []), (7 * 3600, [])]))
def test_every_schedule_of_failures_ends_well(schedule: tuple[int, list[str], list[tuple[int, list[Step]]]]) -> None:
    asyncio.run(live(*schedule))
