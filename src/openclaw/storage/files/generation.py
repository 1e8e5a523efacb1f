"""Whether a state folder is one that this version can serve: no sessions in a newer form, no store moved away."""

from __future__ import annotations

import contextlib
import glob
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import DEFAULT_AGENT
from openclaw.storage.files.compressed import SUFFIX, unpacked_blocks
from openclaw.storage.files.newer_state import ARCHIVE, DATABASES, Unreadable, archived_transcripts, open_databases

_STORE_FILES = ("sessions.json", "sessions.json.bak", "sessions.journal", "sessions.journal.folding")
FolderOf: TypeAlias = Callable[[str], Path]
"""Returns the folder of an agent's sessions."""


def check_generation(state: Path, folder_of: FolderOf) -> None:
    """Raises ``Unreadable`` when the folder holds sessions that only a newer OpenClaw shows."""
    hidden = list(hidden_sessions(state, folder_of))
    if hidden:
        raise Unreadable(
            f"{'; '.join(hidden)}. This version does not open them and would begin again as if nothing had been said: "
            f"use the version that wrote them, or read them into a folder of their own with "
            f"`OPENCLAW_STATE_DIR={state}-imported openclaw sessions import --from {state}` and start with that folder."
        )


def hidden_sessions(state: Path, folder_of: FolderOf) -> Iterator[str]:
    """Sentences about sessions of the folder that this version does not show. Raises ``Unreadable``."""
    stored: set[tuple[str, str]] = set()
    with open_databases(state) as databases:
        for database in databases:
            counts = database.event_counts()
            stored |= {(database.agent_id, session_id) for session_id in counts}
            folder = folder_of(database.agent_id)
            unseen = [session_id for session_id, count in counts.items() if _lines(folder, session_id) < count]
            if unseen:
                yield f"{database.path} holds {_sessions(len(unseen))} of {database.name}"
    for home in sorted((state / "agents").glob(f"*/{ARCHIVE}")):
        agent = normalize_agent_id(home.parent.name)
        folder = folder_of(agent)
        moved = [
            session_id
            for session_id in archived_transcripts(home.parent)
            if (agent, session_id) not in stored and not any(_files(folder, session_id))
        ]
        if moved:
            yield f"{home} holds {_sessions(len(moved))} that OpenClaw 2026.8 or newer moved out of this store"


def missing_stores(state: Path, folder_of: FolderOf) -> Iterator[str]:
    """Sentences about stores that are gone while transcripts or the ledger still know their sessions."""
    agents = {DEFAULT_AGENT, *(normalize_agent_id(home.name) for home in (state / "agents").glob("*") if home.is_dir())}
    folders = sorted({folder_of(agent) for agent in agents})
    lost = [folder for folder in folders if not any((folder / name).exists() for name in _STORE_FILES)]
    if lost == folders and (conversations := _in_ledger(state)):
        yield (
            f"there is no session store in {state}, but its ledger knows {conversations} conversations: was the folder "
            "`agents` moved away? Put it back, or bring it in with `openclaw sessions import --from FOLDER`"
        )
    for folder in lost:
        if folder.is_dir():
            transcripts = sum(1 for _ in folder.glob("*.jsonl")) + sum(1 for _ in folder.glob(f"*.jsonl{SUFFIX}"))
            if transcripts:
                yield (
                    f"{folder / 'sessions.json'} is gone, and with it the names of {_sessions(transcripts)} whose "
                    "transcripts are still there; put it back from a backup, or bring single ones back with "
                    "`openclaw sessions import FILE --key KEY`"
                )


def _in_ledger(state: Path) -> int:
    """The number of conversations that the ledger knows."""
    ledger = state / "ledger.db"
    if not ledger.is_file():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(DISTINCT session_key) FROM messages").fetchone()[0])
    except sqlite3.Error:
        return 0  # Damage to the ledger is told elsewhere.


class StateWatch:
    """Looks at the state folder from time to time, and says what happened to it from outside."""

    def __init__(self, state: Path, folder_of: FolderOf) -> None:
        self._state = state
        self._folder_of = folder_of
        self._seen: object = None
        self._hidden: list[str] = []
        self.problems: list[str] = []

    def look(self) -> list[str]:
        """Returns the problems that are new. Blocks."""
        newer = [*(self._state / "agents").glob(f"*/{DATABASES}"), *(self._state / "agents").glob(f"*/{ARCHIVE}")]
        seen = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(newer)]
        if seen != self._seen:
            self._seen = seen
            self._hidden = self._look_for_hidden() if seen else []
        before, self.problems = self.problems, [*self._hidden, *missing_stores(self._state, self._folder_of)]
        return [problem for problem in self.problems if problem not in before]

    def _look_for_hidden(self) -> list[str]:
        try:
            return list(hidden_sessions(self._state, self._folder_of))
        except Unreadable as problem:
            return [str(problem)]


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


def _files(folder: Path, session_id: str) -> Iterator[Path]:
    name = glob.escape(session_id)
    for ending in (".jsonl", f".jsonl{SUFFIX}"):
        yield from folder.glob(f"{name}{ending}")
        yield from folder.glob(f"{name}-topic-*{ending}")


def _lines(folder: Path, session_id: str) -> int:
    """The number of lines of a session's longest transcript; 0 when there is none."""
    return max(map(_line_count, _files(folder, session_id)), default=0)


def _line_count(file: Path) -> int:
    if file.name.endswith(SUFFIX):
        return sum(block.count(b"\n") for block in unpacked_blocks(file))
    with file.open("rb") as plain:
        return sum(block.count(b"\n") for block in iter(lambda: plain.read(1 << 20), b""))
