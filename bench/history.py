"""A conversation of years: its last messages, and one more turn, must not cost its length."""

from __future__ import annotations

import time

from bench.harness import GatewayProcess, prepared
from bench.process import rss_mb
from bench.row import Row, summary
from bench.seed import long_transcript, session_entry, write_store
from bench.wire import Wire

MESSAGES = 10_000
SIZE = 5_200
LIMIT = 200
KEPT = 20
COLD_RUNS = 3
WARM_RUNS = 30
SESSION_ID = "11111111-2222-4333-8444-555555555555"
KEY = "agent:main:long"


async def measure() -> list[Row]:
    cold: list[float] = []
    first_turn: list[float] = []
    async with prepared() as gateway:
        _seed(gateway)
        for _ in range(COLD_RUNS):
            await gateway.start()
            async with gateway.client() as wire:
                cold.append(await _history_ms(wire))
                first_turn.append(await _turn_ms(wire))
                warm = [await _history_ms(wire) for _ in range(WARM_RUNS)]
                turns = [await _turn_ms(wire) for _ in range(WARM_RUNS)]
                memory = rss_mb(gateway.pid)
            await gateway.stop()
    what = f"chat.history, {LIMIT} of {MESSAGES:,} ({MESSAGES * SIZE / 1e6:.0f} MB)"
    return [
        Row(figure="history", what=f"{what}, cold, wall", kind="wall", unit="ms", bar=100, **summary(cold)),
        Row(figure="history", what=f"{what}, warm, wall", kind="wall", unit="ms", bar=10, **summary(warm)),
        Row(
            figure="history",
            what="one turn on it, compacted, warm, wall",
            kind="wall",
            unit="ms",
            bar=10,
            **summary(turns),
            note=f"first {min(first_turn):.0f} ms, RSS {memory:.0f} MB",
        ),
    ]


def _seed(gateway: GatewayProcess) -> None:
    long_transcript(gateway.sessions_dir / f"{SESSION_ID}.jsonl", SESSION_ID, MESSAGES, SIZE, keep=KEPT)
    write_store(gateway.sessions_dir, {KEY: session_entry(0, SESSION_ID)})


async def _history_ms(wire: Wire) -> float:
    began = time.monotonic()
    found = await wire.call("chat.history", {"sessionKey": KEY, "limit": LIMIT})
    taken = (time.monotonic() - began) * 1000
    assert len(found["messages"]) == LIMIT
    return taken


async def _turn_ms(wire: Wire) -> float:
    began = time.monotonic()
    await wire.chat("hello", KEY)
    return (time.monotonic() - began) * 1000
