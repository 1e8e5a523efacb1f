"""How much a conversation of 200,000 entries delays another session: no turn there may wait for it.

Somebody writes in a small session all the time. Meanwhile the long one is opened, read, written to and compacted.
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from bench.bystander import Bystander, turn_ms
from bench.harness import GatewayProcess, prepared
from bench.row import Row
from bench.seed import long_transcript, session_entry, write_store
from bench.wire import Wire

ENTRIES = 200_000


class Case(NamedTuple):
    """A long conversation."""

    name: str
    kept: int = 0
    """The entries that the last compaction kept; 0: there was none."""
    size: int = 600
    more: dict[str, Any] | None = None
    """Sections of the configuration."""


CASES = (
    Case("compacted", kept=20),
    Case("never compacted"),
    Case("a few words each, no compaction", size=480, more={"compaction": {"enabled": False}}),
)
TURNS = 8
PROBES = 200
"""The least turns of the other session that a percentile is taken of."""
SESSION_ID = "33333333-2222-4333-8444-555555555555"
KEY = "agent:main:long"


async def measure() -> list[Row]:
    return [await _measure(case) for case in CASES]


async def _measure(case: Case) -> Row:
    async with prepared(case.more) as gateway:
        _seed(gateway, case)
        await gateway.start()
        async with gateway.client() as wire, gateway.client() as other:
            bystander, turns = Bystander(other), list[float]()
            await bystander.write_alone()
            async with bystander.writing():
                await _use(wire, turns, bystander.waits)
    note = f"; its own turns: first {turns[0]:.0f}, then {median(turns[1:]):.0f} ms"
    return bystander.row("long", f"{ENTRIES:,} entries, {case.name}", note)


async def _use(wire: Wire, turns: list[float], waits: list[float]) -> None:
    """What people do with a session: they read it, write to it, ask how full it is and compact it."""
    await wire.call("chat.history", {"sessionKey": KEY, "limit": 200})
    while len(turns) < TURNS or len(waits) < PROBES:
        turns.append(await turn_ms(wire, KEY))
    await wire.call("chat.history", {"sessionKey": KEY, "limit": 200})
    for command in ("/status", "/context list", "/compact"):
        await wire.chat(command, KEY)
    turns.append(await turn_ms(wire, KEY))


def _seed(gateway: GatewayProcess, case: Case) -> None:
    path = gateway.sessions_dir / f"{SESSION_ID}.jsonl"
    long_transcript(path, SESSION_ID, ENTRIES, case.size, keep=case.kept)
    write_store(gateway.sessions_dir, {KEY: session_entry(0, SESSION_ID)})
