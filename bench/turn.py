"""One turn with a reply of one token: everything that is not the model, with every message on disk."""

from __future__ import annotations

import os
import tempfile
import time
from statistics import median

from bench.harness import GatewayProcess, running
from bench.process import cpu_s
from bench.row import Row, summary
from bench.wire import Wire

WARM_UP = 30
TURNS = 100
BATCHES = 5
LONG = 1_000
"""Messages in a long conversation, none of them compacted."""


async def measure() -> list[Row]:
    async with running() as gateway, gateway.client() as wire:
        for number in range(WARM_UP):
            await wire.chat("hello", _session(number))
        cpu, wall, acks = await turns(gateway, wire)
        deltas = [await _first_delta_ms(wire, number) for number in range(TURNS)]
        for _ in range(LONG // 2):
            await wire.chat("hello", LONG_KEY)
        pairs = [
            (
                await _cpu_ms(gateway, wire, [_session(number, BATCHES + batch) for number in range(TURNS)]),
                await _cpu_ms(gateway, wire, [LONG_KEY] * TURNS),
            )
            for batch in range(BATCHES)
        ]
    floor = fdatasync_ms()
    short = median([pair[0] for pair in pairs])
    return [
        Row(figure="turn", what="turn, 1-token reply, CPU", unit="ms", bar=5, **summary(cpu)),
        Row(
            figure="turn",
            what=f"turn after {LONG:,} messages, CPU",
            unit="ms",
            bar=1.2 * short,
            reference="after a few",
            reference_value=short,
            kind="size",
            **summary([pair[1] for pair in pairs]),
        ),
        Row(
            figure="turn",
            what="turn, 1-token reply, wall",
            kind="wall",
            unit="ms",
            bar=8,
            reference="one fdatasync",
            reference_value=floor,
            **summary(wall),
        ),
        Row(
            figure="turn",
            what="chat.send acknowledged, on disk, wall",
            kind="wall",
            unit="ms",
            bar=2,
            reference="one fdatasync",
            reference_value=floor,
            **summary(acks),
        ),
        Row(
            figure="turn", what="model's first delta to client, wall", kind="wall", unit="ms", bar=2, **summary(deltas)
        ),
    ]


async def turns(gateway: GatewayProcess, wire: Wire) -> tuple[list[float], list[float], list[float]]:
    """CPU per turn of each batch; wall of each turn; time to each acknowledgement; all in milliseconds."""
    cpu: list[float] = []
    wall: list[float] = []
    acks: list[float] = []
    for batch in range(BATCHES):
        before = cpu_s(gateway.pid)
        for number in range(TURNS):
            began = time.monotonic()
            run_id = await wire.send("hello", _session(number, batch))
            acks.append((time.monotonic() - began) * 1000)
            await wire.end(run_id)
            wall.append((time.monotonic() - began) * 1000)
        cpu.append((cpu_s(gateway.pid) - before) / TURNS * 1000)
    return cpu, wall, acks


LONG_KEY = "agent:main:bench-long"


async def _cpu_ms(gateway: GatewayProcess, wire: Wire, keys: list[str]) -> float:
    """CPU of a turn. The kernel counts in steps of 10 ms, so that a few turns alone would say little."""
    before = cpu_s(gateway.pid)
    for key in keys:
        await wire.chat("hello", key)
    return (cpu_s(gateway.pid) - before) / len(keys) * 1000


def _session(number: int, batch: int = -1) -> str:
    """Ten sessions a batch, so that a turn has the history of a fresh conversation, not of all turns before."""
    return f"agent:main:bench-{batch}-{number % 10}"


async def _first_delta_ms(wire: Wire, number: int) -> float:
    """From the moment the model wrote its first delta, which that delta names, to its arrival here."""
    wire.first_delta = None
    await wire.chat("[[bench stamp]]", _session(number))
    assert wire.first_delta is not None
    text = wire.first_delta.partition(b'"delta":"')[2].partition(b'"')[0]
    return (wire.first_delta_ns - int(text)) / 1e6


def fdatasync_ms(times: int = 50) -> float:
    with tempfile.TemporaryFile() as file:
        taken: list[float] = []
        for _ in range(times):
            file.write(b"x" * 200)
            file.flush()
            began = time.monotonic()
            os.fdatasync(file.fileno())
            taken.append((time.monotonic() - began) * 1000)
    return median(taken)
