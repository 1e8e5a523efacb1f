"""``session.maintenance``: what is put away, what is kept, and how much room is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.schema.messages import SessionMaintenance
from openclaw.gateway.session_maintenance import limits_of, size_bytes
from openclaw.storage.session_query import SessionQuery
from tests.support.clock import HeldClock
from tests.support.gateway_in_process import gateway_parts
from tests.support.scripted_model import ScriptedModel

DAY_MS = 86_400_000
NOW = 1_794_900_000_000
LINE = {"type": "session", "version": 3, "id": "x", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/x"}


def put_sessions(state: Path, ages: dict[str, float], size: int = 0) -> Path:
    """Sessions of these ages in days, each with a transcript of about this size."""
    folder = state / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    entries: dict[str, Any] = {}
    for name, days in ages.items():
        entries[f"agent:main:{name}"] = {"sessionId": name, "updatedAt": NOW - int(days * DAY_MS)}
        (folder / f"{name}.jsonl").write_text(json.dumps(LINE) + "\n" + " " * size + "\n")
    (folder / "sessions.json").write_text(json.dumps(entries))
    return folder


async def after_a_pass(state: Path, **maintenance: Any) -> list[str]:
    """The names of the sessions that are left."""
    config = {"session": {"maintenance": {"mode": "enforce", **maintenance}}}
    async with gateway_parts(state, ScriptedModel(), clock=HeldClock(NOW), **config) as gateway:
        await gateway.cluster.maintain(gateway.maintenance)
        await gateway.cluster.maintain(gateway.maintenance)
        page = await gateway.runtime.stores.sessions.select(SessionQuery())
        return sorted(row.key.rpartition(":")[2] for row in page.rows)


def test_nothing_is_put_away_unless_it_is_asked_for() -> None:
    assert limits_of(SessionMaintenance()) is None
    for nothing in (SessionMaintenance(prune_after="0d"), SessionMaintenance(max_disk_bytes=0)):
        with pytest.raises(ValueError, match="leave it out"):
            limits_of(nothing)
    with pytest.raises(ValueError, match="is not a size"):
        size_bytes("9" * 400)
    asked = limits_of(SessionMaintenance(mode="enforce"))
    assert asked is not None and (asked.age_ms, asked.entries, asked.disk_bytes) == (30 * DAY_MS, 500, None)


@pytest.mark.parametrize(
    ("written", "size"), [("500mb", 500 * 1024**2), ("2 GB", 2 * 1024**3), (1000, 1000), ("1.5k", 1536)]
)
def test_sizes_are_read(written: str | int, size: int) -> None:
    assert size_bytes(written) == size
    with pytest.raises(ValueError, match="not a size"):
        size_bytes("much")


async def test_old_sessions_are_put_away_and_their_transcripts_stay_as_archives(tmp_path: Path) -> None:
    folder = put_sessions(tmp_path / "state", {"main": 90, "old": 40, "new": 1})
    assert await after_a_pass(tmp_path / "state") == ["main", "new"]
    names = sorted(path.name for path in folder.glob("*.jsonl*"))
    assert names[:2] == ["main.jsonl", "new.jsonl"] and names[2].startswith("old.jsonl.deleted.")


async def test_a_session_whose_age_is_unknown_is_not_old(tmp_path: Path) -> None:
    store = put_sessions(tmp_path / "state", {"main": 90, "wrong": 1, "lost": 1}) / "sessions.json"
    entries = json.loads(store.read_text())
    entries["agent:main:wrong"]["updatedAt"] = "yesterday"
    del entries["agent:main:lost"]["updatedAt"]
    store.write_text(json.dumps(entries))
    assert await after_a_pass(tmp_path / "state") == ["lost", "main", "wrong"]


async def test_of_too_many_sessions_the_newest_are_kept(tmp_path: Path) -> None:
    put_sessions(tmp_path / "state", {"main": 9, **{f"s{day}": day for day in range(1, 8)}})
    assert await after_a_pass(tmp_path / "state", maxEntries=3) == ["main", "s1", "s2"]


async def test_a_warning_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put_sessions(tmp_path / "state", {"main": 90, "old": 40})
    assert await after_a_pass(tmp_path / "state", mode="warn", pruneAfter="30d") == ["main", "old"]
    assert caplog.text.count("would put 1 sessions of main away") == 1


async def test_archives_go_when_they_are_old_enough(tmp_path: Path) -> None:
    folder = put_sessions(tmp_path / "state", {"main": 1})
    for name in ("a.jsonl.deleted.2026-09-01T10-00-00.000Z", "b.jsonl.deleted.2026-11-16T10-00-00.000Z"):
        (folder / name).write_text("x")
        os.utime(folder / name, (1, 1))
    await after_a_pass(tmp_path / "state", resetArchiveRetention=False)
    assert len([*folder.glob("*.deleted.*")]) == 2
    (tmp_path / "state" / "openclaw.json").unlink()
    await after_a_pass(tmp_path / "state")
    assert [path.name[0] for path in folder.glob("*.deleted.*")] == ["b"]


async def test_the_room_is_bounded_archives_first_then_the_oldest_sessions(tmp_path: Path) -> None:
    folder = put_sessions(tmp_path / "state", {"main": 9, "s3": 3, "s2": 2, "s1": 1}, size=100_000)
    (folder / "a.jsonl.deleted.2026-11-16T10-00-00.000Z").write_text("x" * 100_000)
    left = await after_a_pass(tmp_path / "state", maxDiskBytes=450_000, highWaterBytes=320_000)
    assert left == ["main", "s1", "s2"]
    assert not [*folder.glob("*.deleted.*")] and (folder / "main.jsonl").exists()
