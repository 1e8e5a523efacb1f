"""One long reply, as fast as the model can send it and at a fast model's real pace."""

from __future__ import annotations

from bench.harness import running
from bench.process import cpu_s
from bench.row import Row, summary

TOKENS = 5_000
RUNS = 5
RATE = 1_000


async def measure() -> list[Row]:
    fast = await _streams(f"[[bench tokens={TOKENS}]]", RUNS)
    paced = await _streams(f"[[bench tokens={TOKENS} rate={RATE}]]", 1)
    return [*_rows("at full speed", fast), *_rows(f"at {RATE} tokens/s", paced)]


async def _streams(directive: str, runs: int) -> list[tuple[float, float]]:
    """CPU seconds and megabytes to the client, per run. The client is one that wants the whole text in each event."""
    found: list[tuple[float, float]] = []
    async with running() as gateway, gateway.client() as wire:
        await wire.chat("hello")
        for number in range(runs):
            cpu, received = cpu_s(gateway.pid), wire.bytes_received
            await wire.chat(directive, f"agent:main:bench-{number}")
            found.append((cpu_s(gateway.pid) - cpu, (wire.bytes_received - received) / 1e6))
    return found


def _rows(how: str, found: list[tuple[float, float]]) -> list[Row]:
    cpu, sent = [run[0] for run in found], [run[1] for run in found]
    what = f"{TOKENS:,}-token reply {how}"
    return [
        Row(
            figure="stream",
            what=f"{what}, CPU",
            unit="s",
            bar=0.3,
            reference="4 µs a token",
            reference_value=TOKENS * 4e-6,
            **summary(cpu),
        ),
        Row(figure="stream", what=f"{what}, per client", unit="MB", bar=3, kind="size", **summary(sent)),
    ]
