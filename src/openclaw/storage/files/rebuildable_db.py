"""A SQLite file that can be made again from others: opened for each piece of work, thrown away when damaged."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from openclaw.paths import make_private_dir

log = logging.getLogger("openclaw.storage.disposable")

BUSY_S = 30.0
T = TypeVar("T")


class RebuildableDatabase:
    """Blocking: use it from a worker thread. Pieces of work wait for each other."""

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self.path = path
        self._schema = schema
        self._version = version
        self._guard = threading.Lock()

    def use(self, work: Callable[[sqlite3.Connection], T], *, anew: bool = False) -> T:
        """Does the work; on a damaged file, or one of another version, once more on an empty one."""
        with self._guard:
            if anew:
                self._throw_away()
            try:
                return self._once(work)
            except sqlite3.DatabaseError as error:
                if is_busy(error):
                    raise
                log.warning("%s is damaged and is made anew: %s", self.path, error)
                self._throw_away()
                return self._once(work)

    def _once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with contextlib.closing(self._open()) as db:
            return work(db)

    def _open(self) -> sqlite3.Connection:
        make_private_dir(str(self.path.parent))
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            # It can be made again at any time: not worth a sync.
            db.execute("PRAGMA synchronous = OFF")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, self._version):
                raise sqlite3.DatabaseError(f"version {found}")
            db.executescript(self._schema)
            db.execute(f"PRAGMA user_version = {self._version}")
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _throw_away(self) -> None:
        for ending in ("", "-journal", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)


def is_busy(error: sqlite3.Error) -> bool:
    """Someone else writes to it; that is no damage."""
    return "locked" in str(error) or "busy" in str(error)
