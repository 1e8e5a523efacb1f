"""What is damaged or missing in a state folder, and its repair while no Gateway runs."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openclaw.clock import Clock
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.ledger_db import second_name
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.store_file import parse_store
from openclaw.storage.files.transcript_index import scan
from openclaw.storage.repairs import Repairs

MOST_NAMED = 20
"""Damaged transcripts that are named one by one. The others are counted."""
_BY_REPAIR = "`openclaw doctor --fix`, or the next start of the Gateway, brings it back"
_KEPT = ("*.damaged-*", "*.corrupt-*")


class Damage(NamedTuple):
    text: str
    fix: str
    lost: bool = True
    """False for something that was mended before and only left a file behind."""


def find_damage(state: Path, config: Path) -> Iterator[Damage]:
    """Looks at every store and changes nothing. It reads all transcripts, so it takes a while."""
    for path, copy in _copies(state, config):
        if copy.exists() and not path.exists():
            yield Damage(f"{path} is gone; {copy.name} is there", _BY_REPAIR)
    yield from _ledger(state / "ledger.db")
    for store in sorted(state.glob("agents/*/sessions/sessions.json")):
        if parse_store(store.read_bytes()) is None:
            yield Damage(f"{store} does not hold a JSON object", _BY_REPAIR)
    yield from _transcripts(state)
    for pattern in _KEPT:
        for kept in sorted([*state.glob(pattern), *state.glob(f"agents/*/sessions/{pattern}")]):
            if not kept.name.endswith(("-wal", "-shm")):
                fix = "delete it when you no longer want to look into it"
                yield Damage(f"{kept} is a damaged file that was replaced", fix, lost=False)


def _copies(state: Path, config: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the files that have a copy, each with its copy."""
    yield config, config.with_name(f"{config.name}.last-good")
    yield state / "ledger.db", second_name(state / "ledger.db")
    for folder in sorted(state.glob("agents/*/sessions")):
        store = folder / "sessions.json"
        backup = folder / "sessions.json.bak"
        yield store, backup if backup.exists() else folder / "sessions.journal.prev"
    for copy in sorted(state.glob("channels/*/*/last-event.bak")):
        yield copy.with_suffix(""), copy


def _ledger(path: Path) -> Iterator[Damage]:
    if not path.is_file():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        fix = "`openclaw doctor --fix`, or the next start of the Gateway, takes over what can be read"
        yield Damage(f"{path} is damaged: {verdict}", fix)


def _transcripts(state: Path) -> Iterator[Damage]:
    more = 0
    for number, (path, warnings) in enumerate(_damaged_transcripts(state)):
        if number < MOST_NAMED:
            fix = "nothing needs to be done: what can be read is used, and the file stays as it is"
            yield Damage(f"{path}: {'; '.join(warnings[:5])}", fix, lost=False)
        else:
            more += 1
    if more:
        yield Damage(f"{more} more transcripts are damaged in places", "", lost=False)


def _damaged_transcripts(state: Path) -> Iterator[tuple[Path, list[str]]]:
    for path in sorted(state.glob("agents/*/sessions/*.jsonl")):
        try:
            warnings = scan(path).warnings
        except OSError as error:
            warnings = [str(error)]
        if warnings:
            yield path, warnings


async def repair(state: Path, clock: Clock, *, store_template: str | None, agent_ids: Sequence[str]) -> list[str]:
    """Mends what a start of the Gateway would mend, and says what it did. No Gateway may run meanwhile."""
    repairs = Repairs()
    ledger = await FileLedger.open(str(state), clock=clock, repairs=repairs)
    await ledger.close()
    sessions = await FileSessionStore.open(
        str(state), clock=clock, store_template=store_template, agent_ids=agent_ids, repairs=repairs
    )
    await sessions.flush()
    await sessions.close()
    done = repairs.take()
    for copy in state.glob("channels/*/*/last-event.bak"):
        bookmark = copy.with_suffix("")
        if not bookmark.exists():
            bookmark.hardlink_to(copy)
            done.append(f"{bookmark} was gone. It was restored from {copy.name}.")
    return done
