"""The session store's journal: every change as one appended line, until a snapshot holds it.

Beside ``sessions.json`` live ``sessions.journal`` (changes since the snapshot), ``sessions.journal.folding`` (older
changes of a fold that is under way), and, as a second chance when a person breaks the snapshot, ``sessions.json.bak``
with ``sessions.journal.prev``: the snapshot before and the changes between the two.

A line is ``[seq, key, entry | null]``. A fold notes ``[seq, null, {"fold": <prepared file>}]`` after the prepared file
is on disk and before it is renamed over the snapshot. When that prepared file is gone, the rename has happened and
lines up to ``seq`` are in the snapshot: so recovery knows, without any mark inside the file that people edit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from openclaw import json_text
from openclaw.clock import Clock
from openclaw.storage.files.disk import AppendFile, Disk

_decode_line = msgspec.json.Decoder(tuple[int, str | None, Any]).decode


class Recovered(msgspec.Struct):
    """What the files say the store held."""

    values: dict[str, Any]
    changed: dict[str, int]
    """Keys that are not in the snapshot as they should be, with the sequence number of their last change."""
    seq: int
    damaged: bool
    """The snapshot could not be read and has to be written anew."""
    warnings: list[str]


class Journal:
    def __init__(self, snapshot: Path, disk: Disk) -> None:
        self._snapshot = snapshot
        self._disk = disk
        stem = snapshot.with_suffix("") if snapshot.suffix == ".json" else snapshot
        self.path = stem.with_name(f"{stem.name}.journal")
        self._folding = self.path.with_name(f"{self.path.name}.folding")
        self._previous = self.path.with_name(f"{self.path.name}.prev")
        self._backup = snapshot.with_name(f"{snapshot.name}.bak")
        self._file = AppendFile(self.path, disk)

    def append(self, lines: bytes) -> AppendFile:
        """Writes changes, each a ``journal_line``; the returned file is the one to sync for them to last."""
        file = self._file
        if lines:
            file.append(lines)
        return file

    def rotate(self) -> None:
        """From here on changes go to a new file; the older ones wait for the snapshot that will hold them.

        Blocking, and safe beside ``append``: what is written meanwhile is in either file.
        """
        if self._folding.exists() or not self.path.exists():
            # An earlier fold did not finish: its marks and ours stay together in the current file.
            return
        begun = AppendFile(self.path, self._disk)
        self.path.replace(self._folding)
        with contextlib.suppress(OSError):
            begun.look()
        self._file = begun

    async def note_fold(self, seq: int, prepared: Path) -> None:
        file = self._file
        file.append(journal_line(seq, None, {"fold": prepared.name}))
        await file.sync()

    async def note_unfold(self, prepared: Path) -> None:
        """Takes a noted fold back; only then may its prepared file be removed."""
        file = self._file
        file.append(journal_line(0, None, {"unfold": prepared.name}))
        await file.sync()

    def keep_backup(self) -> None:
        """The snapshot about to be replaced stays reachable under another name."""
        with contextlib.suppress(OSError):
            self._backup.unlink(missing_ok=True)
            os.link(self._snapshot, self._backup)

    def forget_folded(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._folding.replace(self._previous)

    async def close(self) -> None:
        await self._file.sync()
        self._file.close()

    # Recovery (in a thread: nothing else uses the files yet)

    def recover(self, clock: Clock) -> Recovered:
        warnings: list[str] = []
        records = [*_read(self._folding, warnings), *_read(self.path, warnings)]
        folded_to = self._settle_folds(records)
        values = self._read_snapshot(clock, warnings)
        if damaged := values is None:
            older = [record for record in _read(self._previous, warnings) if record[1] is not None]
            values, records, folded_to = self._read_backup(warnings), [*older, *records], -1
        changed: dict[str, int] = {}
        for seq, key, entry in records:
            if key is None or seq <= folded_to:
                continue
            changed[key] = seq
            if entry is None:
                values.pop(key, None)
            else:
                values[key] = entry
        last = max((record[0] for record in records), default=0)
        return Recovered(values, changed, last, damaged, warnings)

    def _settle_folds(self, records: list[tuple[int, str | None, Any]]) -> int:
        """The sequence number up to which the snapshot holds the journal. Undoes a fold that was cut short."""
        folds: dict[str, int] = {}
        for seq, key, mark in records:
            if key is None and isinstance(mark, dict) and "fold" in mark:
                folds[str(mark["fold"])] = seq
            elif key is None and isinstance(mark, dict):
                folds.pop(str(mark.get("unfold")), None)
        for name in [name for name in folds if self._snapshot.with_name(name).exists()]:
            del folds[name]
            self._file.append(journal_line(0, None, {"unfold": name}))
            if (error := self._file.sync_now()) is not None:
                raise error
        for leftover in self._snapshot.parent.glob(f"{self._snapshot.name}.*.tmp"):
            leftover.unlink(missing_ok=True)
        return max(folds.values(), default=-1)

    def _read_snapshot(self, clock: Clock, warnings: list[str]) -> dict[str, Any] | None:
        """The store's map; empty when there is no file; None when the file could not be read and was kept aside."""
        try:
            raw = self._snapshot.read_bytes()
        except FileNotFoundError:
            return {}
        values = parse_store(raw)
        if values is None:
            aside = set_aside(self._snapshot, clock)
            warnings.append(f"{self._snapshot} does not hold a JSON object; it was kept as {aside.name}")
        return values

    def _read_backup(self, warnings: list[str]) -> dict[str, Any]:
        try:
            values = parse_store(self._backup.read_bytes())
        except FileNotFoundError:
            values = None
        if values is None:
            warnings.append("sessions were rebuilt from the journal alone")
            return {}
        warnings.append(f"sessions were rebuilt from {self._backup.name} and the journal")
        return values


def journal_line(seq: int, key: str | None, entry: Any) -> bytes:
    return json_text.encode((seq, key, entry)) + b"\n"


def parse_store(raw: bytes) -> dict[str, Any] | None:
    """The map in a sessions.json, or None when it holds anything else."""
    try:
        data = json_text.decode_json5(raw)
    except ValueError:
        return None
    return {str(key): value for key, value in data.items()} if isinstance(data, dict) else None


def set_aside(path: Path, clock: Clock) -> Path:
    stamp = clock.now_ms()
    while (aside := path.with_name(f"{path.name}.corrupt-{stamp}")).exists():
        stamp += 1
    return path.rename(aside)


def _read(path: Path, warnings: list[str]) -> Iterator[tuple[int, str | None, Any]]:
    """The readable lines of a journal. A torn or damaged line is passed over; it stays in the file."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not (stripped := line.strip(b"\0\r ")):
            continue
        try:
            yield _decode_line(stripped)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            warnings.append(f"{path.name}: line {number} is damaged and was passed over")
