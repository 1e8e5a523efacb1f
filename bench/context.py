"""What a model is shown: the size of the first request by its parts, and the time that a long conversation takes.

The context of a hundred thousand entries is built again for every turn, from memory.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import msgspec

from bench.harness import config as configuration
from bench.row import Row, summary
from bench.seed import long_transcript, session_entry, write_store
from openclaw.agent.prepare import prepare
from openclaw.agent.prompt.system_prompt import prompt_parts
from openclaw.agent.window.tokens import CHARS_PER_TOKEN
from openclaw.agent.window.tool_share import SMALL_WINDOW, TOOL_SHARE
from openclaw.clock import SystemClock
from openclaw.config.store import ConfigStore
from openclaw.gateway.assemble import close_gateway, open_gateway
from openclaw.gateway.gateway import Gateway
from openclaw.messages import AssistantMessage, Message, TextBlock, Usage, UserMessage
from openclaw.storage.transcripts import Transcript, TranscriptRef

ENTRIES = 100_000
SIZE = 600
KEPT = (1000, 20_000)
"""As after any compaction, and as many as fit a large window if each is only a few words."""
WINDOW = 100_000_000
RUNS = 50
FIRST_WINDOWS = (200_000, 8192)
MOST_TOKENS = 7500
"""The bar of prompt and schemas together, in a window that is not small."""
SESSION_ID = "22222222-2222-4333-8444-555555555555"
KEY = "agent:main:long"


async def measure() -> list[Row]:
    sizes = [row for window in FIRST_WINDOWS for row in await _first_request(window)]
    return [*sizes, *[await _measure(kept) for kept in KEPT]]


async def _first_request(window: int) -> list[Row]:
    """The estimated tokens of a first request with every tool on: in all, and each part of it."""
    with tempfile.TemporaryDirectory(prefix="openclaw-bench-") as folder:
        state, config = Path(folder), configuration(1)
        config["models"]["providers"]["mock"]["models"][0]["contextWindow"] = window
        (state / "openclaw.json").write_text(json.dumps(config))
        store = ConfigStore(str(state / "openclaw.json"))
        store.load_or_create()
        gateway = await open_gateway(str(state), store, SystemClock())
        try:
            prepared = await prepare(gateway.runtime, "main", "agent:main:main", SESSION_ID, source="webchat")
        finally:
            await close_gateway(gateway)
    prompt = prepared.prompt
    schemas = {spec.name: -(-len(msgspec.json.encode(spec)) // CHARS_PER_TOKEN) for spec in prompt.specs}
    parts = {part.title: -(-part.chars // CHARS_PER_TOKEN) for part in prompt_parts(prompt.text, prompt.suffix)}
    of = f"first request, window of {window:,}"
    most = MOST_TOKENS if window > SMALL_WINDOW else window * 2 // 3
    small = window // TOOL_SHARE if window < SMALL_WINDOW else MOST_TOKENS
    return [
        _size(f"{of}: prompt and schemas", prompt.overhead, most, {}),
        _size(f"{of}: schemas of {len(schemas)} tools", sum(schemas.values()), small, schemas),
        _size(f"{of}: prompt", sum(parts.values()), most, parts),
    ]


def _size(what: str, tokens: int, bar: int, parts: dict[str, int]) -> Row:
    largest = sorted(parts.items(), key=lambda part: -part[1])
    note = ", ".join(f"{Path(name).name} {size}" for name, size in largest)
    return Row(figure="context", what=what, kind="size", unit="tokens", measured=tokens, bar=bar, note=note)


async def _measure(kept: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="openclaw-bench-") as folder:
        state = Path(folder)
        config = configuration(1)
        config["models"]["providers"]["mock"]["models"][0]["contextWindow"] = WINDOW
        (state / "openclaw.json").write_text(json.dumps(config))
        sessions = state / "agents" / "main" / "sessions"
        long_transcript(sessions / f"{SESSION_ID}.jsonl", SESSION_ID, ENTRIES, SIZE, keep=kept)
        write_store(sessions, {KEY: session_entry(0, SESSION_ID)})
        store = ConfigStore(str(state / "openclaw.json"))
        store.load_or_create()
        gateway = await open_gateway(str(state), store, SystemClock())
        try:
            opened = time.monotonic()
            transcript = await gateway.runtime.stores.transcripts.open(
                TranscriptRef(agent_id="main", session_id=SESSION_ID)
            )
            assert transcript is not None
            first = await _build_ms(gateway, transcript, kept)
            cold = (time.monotonic() - opened) * 1000
            warm: list[float] = []
            for number in range(RUNS):
                await _turn(transcript, number)
                warm.append(await _build_ms(gateway, transcript, kept))
        finally:
            await close_gateway(gateway)
    what = f"context of {ENTRIES:,} entries, {kept:,} of them kept, warm, wall"
    note = f"first {first:.0f} ms, with opening the file {cold:.0f} ms"
    return Row(figure="context", what=what, kind="wall", unit="ms", bar=10, **summary(warm), note=note)


async def _build_ms(gateway: Gateway, transcript: Transcript, kept: int) -> float:
    """From the transcript to the request, as a run does it before its first call."""
    began = time.monotonic()
    prepared = await prepare(gateway.runtime, "main", KEY, SESSION_ID)
    context = transcript.context()
    prepared.requests.use_cache(context.branch_cache)
    assert prepared.window.fits(context.messages)
    prepared.window.begin(context.messages)
    messages = list(context.messages)
    await prepared.requests.cleaner.prepare(prepared.window.recent(messages))
    request = await prepared.requests.build(messages)
    taken = (time.monotonic() - began) * 1000
    assert kept < len(request.messages) <= kept + 2 * RUNS + 1
    return taken


async def _turn(transcript: Transcript, number: int) -> None:
    now = 1_800_000_000_000 + number
    usage = Usage(input=100, output=20, total_tokens=120)
    asked = UserMessage(content=[TextBlock(text=f"question {number}")], timestamp=now)
    answer = AssistantMessage(
        content=[TextBlock(text=f"answer {number}")], provider="mock", model="mock-1", usage=usage, timestamp=now
    )
    messages: list[Message] = [asked, answer]
    for message in messages:
        await transcript.append({"type": "message", "message": message})
