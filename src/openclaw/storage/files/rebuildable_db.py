"""A SQLite file that can be rebuilt from other files. It is deleted when it is damaged."""

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
    """Opens the file for each piece of work. It blocks, so use it in a worker thread. Concurrent work waits."""

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self.path = path
        self._schema = schema
        self._version = version
        self._guard = threading.Lock()

    def use(self, work: Callable[[sqlite3.Connection], T], *, anew: bool = False) -> T:
        """Does the work. If the file is damaged or of another version, it does the work again on an empty file."""
        with self._guard:
            if anew:
                self._throw_away()
            try:
                with contextlib.closing(self._open()) as db:
                    return work(db)
            except sqlite3.DatabaseError as error:
                if "locked" in str(error) or "busy" in str(error):  # Another process writes to it.
                    raise
                log.warning("%s is damaged and is made anew: %s", self.path, error)
            self._throw_away()
            with contextlib.closing(self._open()) as db:
                return work(db)

    def _open(self) -> sqlite3.Connection:
        make_private_dir(str(self.path.parent))
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            # The file can be rebuilt at any time, so no sync is needed.
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
