"""Random frames and requests never stop the Gateway for others. ``RANDOM_FRAMES`` says how many."""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.random_frames import MEMORY_BAR_MB, Mutator, attacked

COUNT = int(os.environ.get("RANDOM_FRAMES", "2000"))
SEED = int(os.environ.get("RANDOM_FRAMES_SEED", "1"))


async def test_an_honest_client_is_served_while_others_send_random_frames(tmp_path: Path) -> None:
    """The run itself fails when a call of the honest client gets no answer or the Gateway ends."""
    report = await attacked(tmp_path, COUNT, SEED)
    assert report.figures["sent"] >= COUNT and len(report.round_trips) > 10
    assert report.figures["memory added MB"] < MEMORY_BAR_MB


def test_the_frames_follow_from_the_seed() -> None:
    first, second = Mutator(7), Mutator(7)
    assert [first.frame(n) for n in range(200)] == [second.frame(n) for n in range(200)]
    assert [first.request("t") for _ in range(200)] == [second.request("t") for _ in range(200)]
    assert Mutator(8).frame(1) != Mutator(9).frame(1)
