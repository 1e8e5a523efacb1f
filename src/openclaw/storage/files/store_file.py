"""One ``sessions.json`` with its journal of changes, which is folded into the file from time to time.

``StoreFile`` holds the entries in memory. ``Journal`` writes each change as a line, and recovers the entries after a
crash or when the file is damaged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from openclaw import json_text
from openclaw.clock import Clock
from openclaw.sessions.entry import damaged_fields, is_plain, normalize_entry, repair_entry
from openclaw.sessions.keys import session_file_name
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.files.disk import AppendFile, Batch, Disk, put_in_place, write_temporary

log = logging.getLogger(__name__)
FOLD_RECORDS = 500
_FOLD_ATTEMPTS = 3
_PATIENCE_S = 1.5
"""How long ``sessions.json`` may be missing or unreadable before the store writes it again."""
Signature: TypeAlias = tuple[int, int, int] | None
Observer: TypeAlias = Callable[[str, Any], None]
"""Called with the key and the new value (None: removed) for every change."""
_Record: TypeAlias = tuple[int, str | None, Any]
"""A line of the journal: the number of the change, the key, and the entry. A line without a key is a mark."""
_decode_line = msgspec.json.Decoder(tuple[int, str | None, Any]).decode


class StoreFile:
    """A ``sessions.json`` with its journal. ``values`` holds the entries, which are replaced and never changed."""

    def __init__(
        self, path: Path, disk: Disk, clock: Clock, observer: Observer, repairs: Repairs | None = None
    ) -> None:
        # If the store is a symlink, the file it leads to is replaced and the symlink stays.
        self.path = path.resolve() if path.is_symlink() else path
        self._clock = clock
        self._observer = observer
        self._repairs = repairs or Repairs()
        self._journal = Journal(self.path, disk)
        self.values: dict[str, Any] = {}
        self._changed: dict[str, int] = {}
        self._before: dict[str, Any] = {}
        """The values that the snapshot has for the keys in ``_changed``."""
        self._seq = 0
        self._unwritten: Batch[_Unwritten] = Batch(self._write)
        self._seen: Signature = None
        self._unsettled: tuple[Signature, float] | None = None
        """The signature of a missing or unreadable file, and since when it is so."""
        self._rewrite = False
        self._pretty: dict[str, tuple[Any, bytes]] = {}
        self._folding = asyncio.Lock()
        self.fold_seconds = 0.0
        """The processor time that the last fold took, without the wait for the disk."""
        self.folded_at = 0.0
        """When the last fold ended, on the monotonic clock."""

    async def open(self) -> dict[str, Any]:
        """Reads the files and returns the entries. The observer is called for later changes only."""
        recovered, self._seen = await asyncio.to_thread(self._recover)
        self._changed, self._seq = recovered.changed, recovered.seq
        self._rewrite = bool(recovered.damaged)
        self.values = {key: self._normalized(key, value) for key, value in recovered.values.items()}
        for warning in recovered.warnings:
            log.warning("session store %s: %s", self.path, warning)
        if recovered.damaged:
            self._repairs.note(f"{recovered.damaged}: {len(self.values)} sessions.")
        return self.values

    def _recover(self) -> tuple[Recovered, Signature]:
        before = _signature(self.path)
        recovered = self._journal.recover(self._clock)
        return recovered, before if _signature(self.path) == before else None

    @property
    def dirty(self) -> bool:
        return bool(self._changed) or self._rewrite

    @property
    def changes(self) -> int:
        """A number that grows with every change."""
        return self._seq

    @property
    def wants_fold(self) -> bool:
        return len(self._changed) >= FOLD_RECORDS

    async def put(
        self, key: str, value: dict[str, Any] | None, *, at_once: bool
    ) -> tuple[dict[str, Any] | None, AppendFile]:
        """Sets or removes one entry. Returns the stored copy of ``value``, and the file to sync to make it last.

        The change is in memory before the first await, and in the journal when this returns. With ``at_once`` the
        journal is written at once, and not together with later changes of this step of the event loop.
        """
        previous = self.values.get(key)
        entry = None if value is None else self._in_order(key, value, previous)
        # A value that is not an entry is not removed, because a person put it there.
        changed = entry is not previous and (entry is not None or isinstance(previous, dict))
        if not changed and not self._unwritten:
            return entry, self._journal.append(b"")
        line = journal_line(self._seq + 1, key, entry) if changed else b""
        written: asyncio.Future[AppendFile] = asyncio.get_running_loop().create_future()
        # A caller that changed nothing waits too, so that messages keep their order.
        self._unwritten.add(_Unwritten(key, previous, line, written))
        if changed:
            self._note_change(key, previous)
            self._set(key, entry)
        if at_once:
            self._unwritten.now()
        return entry, await written

    def _in_order(self, key: str, wanted: dict[str, Any], previous: Any) -> dict[str, Any]:
        """Returns the entry to store, or ``previous`` itself when nothing has changed."""
        if not isinstance(previous, dict):
            return self._normalized(key, private_copy(wanted))
        news = {name: value for name, value in wanted.items() if name not in previous or previous[name] != value}
        if is_plain(news) and previous.keys() <= wanted.keys():
            # Most changes only set numbers and times, which need no normalization.
            return {**previous, **private_copy(news)} if news else previous
        entry = self._with_topic_file(key, normalize_entry(private_copy(wanted), previous))
        return previous if entry == previous else entry

    def _note_change(self, key: str, previous: Any) -> None:
        self._seq += 1
        if key not in self._changed:
            self._before[key] = previous
        self._changed[key] = self._seq

    def _write(self, changes: list[_Unwritten]) -> None:
        """Writes the changes of one step of the event loop. If the write fails, all of them are undone."""
        try:
            file = self._journal.append(b"".join([change.line for change in changes]))
        except OSError as error:
            for change in reversed(changes):
                self._set(change.key, change.previous)
            for change in changes:
                if not change.written.done():
                    change.written.set_exception(error)
            return
        for change in changes:
            if not change.written.done():
                change.written.set_result(file)

    def _normalized(self, key: str, value: Any, normalized: Any = None) -> Any:
        """Returns an entry that somebody wrote, repaired. ``normalized`` is the entry that it was before."""
        if not isinstance(value, dict):
            return value
        if damaged := damaged_fields(value):
            log.warning("session %s in %s: repaired %s", key, self.path, ", ".join(damaged))
            normalized = normalized if isinstance(normalized, dict) else None
            value = repair_entry(key, value, now_ms=self._clock.now_ms(), known=normalized)
        return self._with_topic_file(key, normalize_entry(value))

    def _with_topic_file(self, key: str, entry: dict[str, Any]) -> dict[str, Any]:
        """Sets ``sessionFile`` for a forum topic, whose transcript has the topic's number in its name."""
        _, mark, topic = key.rpartition(":topic:")
        session_id = entry.get("sessionId")
        if mark and topic and isinstance(session_id, str) and session_id and not entry.get("sessionFile"):
            entry["sessionFile"] = str(self.path.parent / session_file_name(session_id, topic))
        return entry

    def _set(self, key: str, value: Any) -> None:
        if value is None:
            self.values.pop(key, None)
            self._pretty.pop(key, None)
        else:
            self.values[key] = value
        self._observer(key, value)

    # Folding

    async def fold(self) -> None:
        """Merges outside edits and writes ``sessions.json``."""
        async with self._folding:
            for _ in range(_FOLD_ATTEMPTS):
                if not await self._take_in_outside_edits() or not self.dirty:
                    return
                if await self._write_snapshot():
                    self.folded_at = self._clock.monotonic()
                    return

    @property
    def edited(self) -> bool:
        """True when someone else wrote ``sessions.json`` after it was last read or written here."""
        return _signature(self.path) != self._seen

    async def look(self) -> None:
        """Merges what someone else wrote into ``sessions.json``."""
        if self.edited:
            async with self._folding:
                await self._take_in_outside_edits()

    async def close(self) -> None:
        self._unwritten.now()
        try:
            await self.fold()
        finally:
            await self._journal.close()

    async def _write_snapshot(self) -> bool:
        """Writes the snapshot. False when someone wrote the file meanwhile and the edit has to be merged first."""
        await asyncio.to_thread(self._journal.rotate)
        # The values are taken after the rotation, so that the snapshot holds all changes of the older journal.
        self._unwritten.now()
        seq, values = self._seq, self.values.copy()
        prepared = await asyncio.to_thread(self._prepare, values)
        if _signature(self.path) != self._seen:
            prepared.unlink(missing_ok=True)
            return False
        try:
            await self._journal.note_fold(seq, prepared)
            self._seen = await asyncio.to_thread(self._commit, prepared)
        except OSError:
            # The note is taken back before the file goes, as a fold without a prepared file counts as done.
            with contextlib.suppress(OSError):
                if prepared.exists():
                    await self._journal.note_unfold(prepared)
                    prepared.unlink(missing_ok=True)
            raise
        await asyncio.to_thread(self._journal.forget_folded)
        self._changed = {key: changed for key, changed in self._changed.items() if changed > seq}
        self._before = {key: values.get(key) for key in self._changed}
        self._rewrite, self._unsettled = False, None
        return True

    def _prepare(self, values: dict[str, Any]) -> Path:
        began = time.thread_time()
        prepared = write_temporary(self.path, [self._encode(values)])
        self.fold_seconds = time.thread_time() - began
        return prepared

    def _commit(self, prepared: Path) -> Signature:
        began = time.thread_time()
        self._journal.keep_backup()
        put_in_place(prepared, self.path)
        self.fold_seconds += time.thread_time() - began
        return _signature(self.path)

    def _encode(self, values: dict[str, Any]) -> bytes:
        """Encodes the whole file. Only entries that changed since the last time are formatted again."""
        parts: list[bytes] = []
        for key, value in values.items():
            cached = self._pretty.get(key)
            if cached is None or cached[0] is not value:
                text = json_text.encode(key) + b": " + json_text.encode_indented(value).replace(b"\n", b"\n  ")
                cached = self._pretty[key] = (value, text)
            parts.append(cached[1])
        if not parts:
            return b"{}"
        return b"{\n  " + b",\n  ".join(parts) + b"\n}"

    # Outside edits

    async def _take_in_outside_edits(self) -> bool:
        """Merges by key, and by field where both sides changed a key. False when the file is being saved right now."""
        now, theirs = _signature(self.path), None
        if now == self._seen:
            return True
        if now is not None:
            try:
                raw = await asyncio.to_thread(self.path.read_bytes)
            except FileNotFoundError:
                return False
            if _signature(self.path) != now:
                return False
            theirs = parse_store(raw)
        if theirs is None:
            return self._settled_without_edits(now)
        self._merge(theirs)
        self._seen, self._unsettled = now, None
        return True

    def _settled_without_edits(self, now: Signature) -> bool:
        """Waits for editors that are saving. A file that stays missing or unreadable is written again."""
        at = self._clock.monotonic()
        if self._unsettled is None or self._unsettled[0] != now:
            self._unsettled = now, at
        if at - self._unsettled[1] < _PATIENCE_S:
            return False
        if now is not None:
            aside = set_aside(self.path, self._clock)
            log.warning("%s was edited into something that is not a JSON object; kept as %s", self.path, aside.name)
            self._unsettled = None
        elif self._seen is not None:
            log.error("%s was moved away or deleted while the Gateway runs; it is written again from memory", self.path)
        self._seen, self._rewrite = None, True
        return True

    def _merge(self, theirs: dict[str, Any]) -> None:
        self._unwritten.now()
        for key in [key for key in self.values if key not in theirs and key not in self._changed]:
            log.info("session %s was removed from %s by hand", key, self.path)
            self._set(key, None)
        for key, value in theirs.items():
            normal = self._normalized(key, value, self.values.get(key))
            if key in self._changed:
                self._merge_fields(key, normal)
            elif normal != self.values.get(key):
                log.info("session %s was edited in %s by hand", key, self.path)
                self._set(key, normal)

    def _merge_fields(self, key: str, theirs: Any) -> None:
        """Takes the fields that only the editor changed. For fields that both changed, the Gateway's value stays."""
        before, ours = self._before.get(key), self.values.get(key)
        if not (isinstance(before, dict) and isinstance(ours, dict) and isinstance(theirs, dict)):
            return
        edited = [name for name in {**before, **theirs} if theirs.get(name) != before.get(name)]
        taken = [name for name in edited if ours.get(name) == before.get(name)]
        if not taken:
            return
        log.info("%s of session %s was edited in %s by hand", ", ".join(taken), key, self.path)
        merged = {name: value for name, value in ours.items() if name not in taken}
        merged = normalize_entry(merged | {name: theirs[name] for name in taken if name in theirs})
        self._journal.append(journal_line(self._seq + 1, key, merged))
        self._note_change(key, before)
        self._set(key, merged)


class _Unwritten(NamedTuple):
    """A change that is not in the journal yet."""

    key: str
    previous: Any
    line: bytes
    written: asyncio.Future[AppendFile]


def _signature(path: Path) -> Signature:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def private_copy(value: Any) -> Any:
    """Copies JSON values deeply. msgspec does it several times faster than a loop in Python."""
    return msgspec.to_builtins(value)


# The journal


class Recovered(msgspec.Struct):
    """The content of a store's files."""

    values: dict[str, Any]
    changed: dict[str, int]
    """The keys that changed after the snapshot, with the sequence number of their last change."""
    seq: int
    damaged: str
    """The defect of the snapshot, which must be written again, and its replacement. Empty if it is intact."""
    warnings: list[str]


class Journal:
    """The file of changes beside a ``sessions.json``, the snapshot."""

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
        """Writes changes, each a ``journal_line``. The changes last when the returned file is synced."""
        file = self._file
        if lines:
            file.append(lines)
        return file

    def rotate(self) -> None:
        """Begins a new journal file. The older one stays until a snapshot holds its changes.

        This blocks, so call it in a thread. ``append`` may be called meanwhile and writes to either file.
        """
        if self._folding.exists() or not self.path.exists():
            # An earlier fold did not finish. The marks of both folds go to the current file.
            return
        begun = AppendFile(self.path, self._disk)
        self.path.replace(self._folding)
        with contextlib.suppress(OSError):
            begun.look()
        self._file = begun

    async def note_fold(self, seq: int, prepared: Path) -> None:
        await self.append(journal_line(seq, None, {"fold": prepared.name})).sync()

    async def note_unfold(self, prepared: Path) -> None:
        """Takes a noted fold back. Only after that may its prepared file be removed."""
        await self.append(journal_line(0, None, {"unfold": prepared.name})).sync()

    def keep_backup(self) -> None:
        """Keeps the snapshot that is about to be replaced as a backup."""
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
        values, damaged = self._read_snapshot(clock)
        if damaged:
            older = [record for record in _read(self._previous, warnings) if record[1] is not None]
            records, folded_to = [*older, *records], -1
            values, instead = self._read_backup()
            damaged = f"{damaged}; {instead}"
        changed = _replay(values, records, folded_to)
        last = max((record[0] for record in records), default=0)
        return Recovered(values, changed, last, damaged, warnings)

    def _settle_folds(self, records: list[_Record]) -> int:
        """Returns the sequence number up to which the snapshot holds the journal. Undoes an interrupted fold."""
        folds = _folds_in(records)
        for name in [name for name in folds if self._snapshot.with_name(name).exists()]:
            del folds[name]
            self._file.append(journal_line(0, None, {"unfold": name}))
            if (error := self._file.sync_now()) is not None:
                raise error
        for leftover in self._snapshot.parent.glob(f"{self._snapshot.name}.*.tmp"):
            leftover.unlink(missing_ok=True)
        return max(folds.values(), default=-1)

    def _read_snapshot(self, clock: Clock) -> tuple[dict[str, Any], str]:
        """Reads the entries. The text says what is wrong: the file is damaged, and then it is renamed, or gone."""
        try:
            raw = self._snapshot.read_bytes()
        except FileNotFoundError:
            # The first snapshot leaves the journal before it, and every later one leaves a backup.
            gone = self._backup.exists() or self._previous.exists()
            return {}, f"{self._snapshot} was gone" if gone else ""
        values = parse_store(raw)
        if values is None:
            aside = set_aside(self._snapshot, clock)
            return {}, f"{self._snapshot} does not hold a JSON object and was kept as {aside.name}"
        return values, ""

    def _read_backup(self) -> tuple[dict[str, Any], str]:
        try:
            values = parse_store(self._backup.read_bytes())
        except FileNotFoundError:
            values = None
        if values is None:
            return {}, "sessions were rebuilt from the journal alone"
        return values, f"sessions were rebuilt from {self._backup.name} and the journal"


def _folds_in(records: Sequence[_Record]) -> dict[str, int]:
    """Returns the folds that were noted and not taken back: the name of the prepared file, and up to where it goes."""
    folds: dict[str, int] = {}
    for seq, key, mark in records:
        if key is None and isinstance(mark, dict) and "fold" in mark:
            folds[str(mark["fold"])] = seq
        elif key is None and isinstance(mark, dict):
            folds.pop(str(mark.get("unfold")), None)
    return folds


def _replay(values: dict[str, Any], records: Sequence[_Record], folded_to: int) -> dict[str, int]:
    """Makes the changes that the snapshot does not hold. Returns the changed keys, each with its last number."""
    changed: dict[str, int] = {}
    for seq, key, entry in records:
        if key is None or seq <= folded_to:
            continue
        changed[key] = seq
        if entry is None:
            values.pop(key, None)
        else:
            values[key] = entry
    return changed


def entries_in(files: Mapping[str, bytes], snapshot: str = "sessions.json") -> dict[str, Any]:
    """Read a store from copies of its files, by their names, as ``Journal.recover`` reads it from the disk."""
    journal = f"{snapshot.removesuffix('.json')}.journal"
    warnings: list[str] = []

    def records_in(name: str) -> list[_Record]:
        return list(_lines(name, files.get(name, b""), warnings))

    records = [*records_in(f"{journal}.folding"), *records_in(journal)]
    folds = {name: seq for name, seq in _folds_in(records).items() if name not in files}
    values, folded_to = parse_store(files.get(snapshot, b"")), max(folds.values(), default=-1)
    if values is None:
        older = [record for record in records_in(f"{journal}.prev") if record[1] is not None]
        values, folded_to = parse_store(files.get(f"{snapshot}.bak", b"")) or {}, -1
        records = [*older, *records]
    _replay(values, records, folded_to)
    return values


def journal_line(seq: int, key: str | None, entry: Any) -> bytes:
    return json_text.encode((seq, key, entry)) + b"\n"


def parse_store(raw: bytes) -> dict[str, Any] | None:
    """Parses a ``sessions.json``. None when it does not hold a JSON object."""
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


def _read(path: Path, warnings: list[str]) -> Iterator[_Record]:
    """Yields the readable lines of a journal. Damaged lines are skipped and stay in the file."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    yield from _lines(path.name, raw, warnings)


def _lines(name: str, raw: bytes, warnings: list[str]) -> Iterator[_Record]:
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not (stripped := line.strip(b"\0\r ")):
            continue
        try:
            yield _decode_line(stripped)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            warnings.append(f"{name}: line {number} is damaged and was passed over")
