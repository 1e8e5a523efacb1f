"""``TranscriptStore`` on files: one JSONL file for each transcript, which gets one line per entry.

An open transcript has its index and its active branch in memory. Old ones are compressed, and plain again when they
are opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from openclaw.clock import Clock
from openclaw.paths import normalize_agent_id, sessions_dir
from openclaw.sessions.keys import session_file_name
from openclaw.sessions.tree import BranchContext, fields_of
from openclaw.storage.files.disk import AppendFile, Disk, atomic_replace, sync_dir
from openclaw.storage.files.transcript_index import (
    SUFFIX,
    ChangedMeanwhile,
    TranscriptIndex,
    compress_file,
    decompress_file,
    decompressed_size,
    old_files,
    plain_name,
    read_compressed_tail,
    read_head,
    read_page,
    read_spans,
    read_tail,
    scan,
)
from openclaw.storage.indexed_transcript import (
    LONGEST_TAIL,
    IndexedTranscript,
    archive_stamp,
    check_types,
    copy_labels,
    shortened_lines,
    with_own_id,
)
from openclaw.storage.transcripts import Compressed, Context, Entry, Shortened, Transcript, TranscriptRef
from openclaw.worker_thread import finish_in_thread

log = logging.getLogger(__name__)
T = TypeVar("T")
MOST_AGENTS = 256
"""The number of agents whose folders are cached."""
MOST_PLACES = 4096
WEIGHED_EVERY = 32
"""The memory of all open transcripts is added up each time this many were opened, because they grow."""
LARGEST_IN_MEMORY = 64 << 20
"""A larger compressed transcript is decompressed to a file when its tail is read."""


class FileTranscriptStore:
    """Keeps at most ``most_live`` unused transcripts in memory. One that is still in use stays the same object."""

    def __init__(
        self,
        state_dir: str,
        *,
        clock: Clock,
        store_path: Callable[[str], str] | None = None,
        most_live: int = 128,
        most_bytes: int = 256 << 20,
    ) -> None:
        self._locations = Locations(state_dir, store_path)
        self._clock = clock
        self._disk = Disk()
        self._most_live = most_live
        self._most_bytes = most_bytes
        # By their real paths: two spellings of one file must not become two writers.
        self._live: WeakValueDictionary[str, FileTranscript] = WeakValueDictionary()
        self._recent: OrderedDict[str, FileTranscript] = OrderedDict()
        self._opening: dict[str, asyncio.Task[FileTranscript]] = {}
        self._changing: dict[str, asyncio.Task[Any]] = {}
        """Files being compressed or made plain again."""
        self._places: dict[TranscriptRef, str] = {}
        """Where each transcript was found. To look again would follow links from every root: a quarter of a turn."""
        self._kept = 0

    async def open(self, ref: TranscriptRef, *, cwd: str = "", create: bool = True) -> FileTranscript | None:
        if (loaded := self._known(ref)) is not None:
            return loaded
        plain = await self._plain(ref)
        path, real_path = (plain, os.path.realpath(plain)) if plain else self._locations.default(ref)
        live = self._live.get(real_path)
        if live is None and plain is None and not create:
            return None
        self._note_place(ref, real_path)
        if live is not None:
            self._use(real_path, live)
            return live
        if plain is None:
            return self._keep(real_path, self._make(path, ref.session_id, cwd))
        task = self._opening.get(real_path)
        if task is None:
            task = self._opening[real_path] = asyncio.create_task(self._load(real_path, path, ref.session_id, cwd))
            task.add_done_callback(lambda _: self._opening.pop(real_path, None))
        # The task is shielded, because other callers may wait for it too.
        return await asyncio.shield(task)

    def begin(self, ref: TranscriptRef, *, cwd: str = "") -> None:
        path, real_path = self._locations.default(ref)
        if ref.file is None and real_path not in self._live:
            self._note_place(ref, real_path)
            self._disk.make(self._keep(real_path, self._make(path, ref.session_id, cwd)).file)

    def _known(self, ref: TranscriptRef) -> FileTranscript | None:
        real_path = self._places.get(ref)
        live = self._live.get(real_path) if real_path is not None else None
        if real_path is None or live is None:
            return None
        self._use(real_path, live)
        return live

    def _note_place(self, ref: TranscriptRef, real_path: str) -> None:
        if len(self._places) >= MOST_PLACES:
            self._places.clear()
        self._places[ref] = real_path

    async def fork(self, source: Transcript, ref: TranscriptRef, *, cwd: str = "") -> FileTranscript:
        path, real_path = self._locations.default(ref)
        if path.exists():
            raise FileExistsError(f"{path} exists already; a fork needs a new session id")
        entries = await source.path_entries()
        forked = self._make(path, ref.session_id, cwd, parent=source.path)
        forked.begin_with(entries)
        self._keep(real_path, forked)
        await copy_labels(source, forked)
        return forked

    async def tail(self, ref: TranscriptRef, limit: int, before: str | None = None) -> list[Entry]:
        limit = min(limit, LONGEST_TAIL)
        if limit <= 0:
            return []
        if before is not None:
            whole = await self.open(ref, create=False)
            return await whole.shown_entries(limit, before) if whole is not None else []
        path = next(self._locations.plain(ref), None)
        if path is None and (compressed := next(self._locations.compressed(ref), None)) is not None:
            size = await asyncio.to_thread(decompressed_size, compressed)
            if size is not None and size <= LARGEST_IN_MEMORY:
                entries = await asyncio.to_thread(read_compressed_tail, compressed, limit)
                if entries is not None:
                    return entries
            path = await self._plain(ref)
        elif path is None and (in_use := self._known(ref)) is not None and in_use.put_back():
            path = Path(in_use.path)
        if path is None:
            return []
        live = self._live.get(os.path.realpath(path))
        if live is None:
            try:
                entries = await asyncio.to_thread(read_tail, path, limit)
            except FileNotFoundError:
                return []
            if entries is not None:
                return entries
            live = await self.open(ref, create=False)
        return await live.shown_entries(limit) if live is not None else []

    async def locate(self, ref: TranscriptRef) -> str | None:
        plain, compressed = self._locations.find_either(ref)
        path = plain or compressed
        return str(path) if path is not None else None

    def default_path(self, ref: TranscriptRef) -> str:
        return str(self._locations.default(ref)[0])

    async def head(self, ref: TranscriptRef) -> list[bytes]:
        path = next(self._locations.plain(ref), None)
        return await asyncio.to_thread(read_head, path) if path is not None else []

    async def page(self, ref: TranscriptRef, cursor: int, most_bytes: int) -> tuple[list[bytes], int | None]:
        plain, compressed = self._locations.find_either(ref)
        path = plain or compressed
        return ([], None) if path is None else await asyncio.to_thread(read_page, path, cursor, most_bytes)

    async def create(self, ref: TranscriptRef, data: bytes) -> None:
        await asyncio.to_thread(atomic_replace, self._locations.default(ref)[0], data)

    async def archive(self, ref: TranscriptRef, reason: str) -> list[str]:
        stamp = archive_stamp(reason, self._clock.now_ms())
        archived: list[str] = []
        for path in _distinct(self._locations.plain(ref)):
            real_path = os.path.realpath(path)
            target = await asyncio.to_thread(_rename_free, path, stamp)
            live = self._live.pop(real_path, None)
            self._recent.pop(real_path, None)
            if live is not None:
                live.moved_to(target)
            archived.append(str(target))
        for compressed in _distinct(self._locations.compressed(ref)):
            archived.append(str(await asyncio.to_thread(_rename_free, compressed, stamp)))
        return archived

    async def shorten(self, ref: TranscriptRef, max_lines: int) -> Shortened:
        path = await self._plain(ref)
        if path is None:
            return Shortened(archived=None, kept=0)
        live = self._live.get(os.path.realpath(path))
        if live is not None:
            await live.sync()
        archive = path.with_name(f"{path.name}.{archive_stamp('bak', self._clock.now_ms())}")
        shortened = await asyncio.to_thread(shorten_file, path, max_lines, archive)
        if shortened.archived is not None:
            # The old object would write to the old file, so the next caller gets a new one.
            await self.forget(ref.session_id)
            if live is not None:
                live.rest()
        return shortened

    async def compress(self, agent_ids: Iterable[str], before_ms: int, *, most: int = 200) -> Compressed:
        done = Compressed()
        for folder in [folder for agent_id in agent_ids for folder in self._locations.folders(agent_id)]:
            for path in await asyncio.to_thread(old_files, folder, before_ms):
                if done.files < most:
                    await self._compress_file(path, done)
                else:
                    done.left += 1
        if done.files:
            log.info("%d old transcripts compressed: %d bytes, now %d", done.files, done.bytes_before, done.bytes_after)
        for problem in done.problems:
            log.warning("an old transcript was left as it is: %s", problem)
        return done

    async def _compress_file(self, path: Path, done: Compressed) -> None:
        real_path = os.path.realpath(path)
        if real_path in self._opening or real_path in self._changing or not self._let_go(real_path):
            return
        try:
            before, after = await self._change(real_path, partial(compress_file, path))
        except (ChangedMeanwhile, FileNotFoundError):
            return
        except OSError as error:
            done.problems.append(f"{path}: {error}")
            return
        done.files += 1
        done.bytes_before += before
        done.bytes_after += after

    def _let_go(self, real_path: str) -> bool:
        """Drops the transcript from memory. False when somebody else uses it."""
        recent = self._recent.pop(real_path, None)
        if recent is None:
            return real_path not in self._live
        if recent.busy:
            self._recent[real_path] = recent
            return False
        recent.rest()
        del recent
        if (held := self._live.get(real_path)) is None:
            return True
        self._recent[real_path] = held
        return False

    async def _plain(self, ref: TranscriptRef) -> Path | None:
        """Returns the plain file, which it decompresses if necessary. Nothing changes the file when this returns."""
        while True:
            path, compressed = self._locations.find_either(ref)
            target = path or (plain_name(compressed) if compressed is not None else None)
            if target is None:
                return None
            if (busy := self._changing.get(os.path.realpath(target))) is not None:
                await asyncio.wait([busy])
            elif compressed is None:
                return target
            else:
                await self._change(os.path.realpath(target), partial(decompress_file, compressed))

    async def _change(self, real_path: str, work: Callable[[], T]) -> T:
        """Compresses or decompresses a file. The work goes on to its end even if the caller is cancelled."""
        task = asyncio.create_task(asyncio.to_thread(work))
        self._changing[real_path] = task
        task.add_done_callback(lambda _: self._changing.pop(real_path, None))
        return await asyncio.shield(task)

    async def forget(self, session_id: str) -> None:
        for path, transcript in list(self._live.items()):
            if transcript.session_id == session_id:
                del self._live[path]
                self._recent.pop(path, None)

    def folder(self, agent_id: str) -> str:
        return self._locations.home(agent_id)

    async def close(self) -> None:
        for task in (*self._opening.values(), *self._changing.values()):
            await asyncio.wait([task])
        for transcript in list(self._live.values()):
            try:
                await transcript.sync()
            except OSError as error:
                log.error("transcript %s may not be wholly on disk: %s", transcript.path, error)
        await self._disk.close()
        for transcript in list(self._live.values()):
            transcript.rest()
        self._recent.clear()

    def _make(self, path: Path, session_id: str, cwd: str, parent: str | None = None) -> FileTranscript:
        return FileTranscript(path, session_id, cwd=cwd, parent=parent, disk=self._disk, clock=self._clock)

    async def _load(self, real_path: str, path: Path, session_id: str, cwd: str) -> FileTranscript:
        transcript = self._make(path, session_id, cwd)
        await asyncio.to_thread(transcript.load)
        for warning in transcript.warnings:
            log.warning("transcript %s: %s", path, warning)
        return self._keep(real_path, transcript)

    def _use(self, real_path: str, transcript: FileTranscript) -> None:
        """Marks the transcript as the most recently used one."""
        if real_path in self._recent:
            self._recent.move_to_end(real_path)
        else:
            self._keep(real_path, transcript)

    def _keep(self, real_path: str, transcript: FileTranscript) -> FileTranscript:
        self._live[real_path] = self._recent[real_path] = transcript
        self._recent.move_to_end(real_path)
        self._kept += 1
        if len(self._recent) > self._most_live:
            self._rest_oldest()
        if transcript.weight > self._most_bytes // self._most_live or self._kept % WEIGHED_EVERY == 0:
            weight = sum(held.weight for held in self._recent.values())
            while weight > self._most_bytes and len(self._recent) > 1:
                weight -= self._rest_oldest()
        return transcript

    def _rest_oldest(self) -> int:
        _, oldest = self._recent.popitem(last=False)
        oldest.rest()
        return oldest.weight


def shorten_file(path: Path, max_lines: int, archive: Path) -> Shortened:
    """Keeps the header and the last lines. ``archive`` gets the whole file.

    The archive is made first, and the new file replaces the old one in one step. So a crash loses nothing.
    """
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    lines_left, count = shortened_lines(lines, max_lines)
    if count <= max_lines:
        return Shortened(archived=None, kept=count)
    os.link(path, archive)
    atomic_replace(path, b"\n".join(lines_left) + b"\n")
    return Shortened(archived=str(archive), kept=max_lines)


def _rename_free(path: Path, stamp: str) -> Path:
    """Renames a file to a free name. The stamp comes before the ending of a compressed file."""
    ending = SUFFIX if path.name.endswith(SUFFIX) else ""
    name = path.name.removesuffix(ending)
    target, count = path.with_name(f"{name}.{stamp}{ending}"), 1
    while target.exists():
        target, count = path.with_name(f"{name}.{stamp}-{count}{ending}"), count + 1
    path.rename(target)
    sync_dir(path.parent)
    return target


class FileTranscript(IndexedTranscript):
    """``Transcript`` on a JSONL file. It never changes existing bytes, even damaged ones."""

    def __init__(self, path: Path, session_id: str, *, cwd: str, parent: str | None, disk: Disk, clock: Clock) -> None:
        super().__init__(session_id, cwd=cwd, parent=parent, clock=clock)
        self._file = AppendFile(path, disk)

    def load(self) -> None:
        """Reads the file, if there is one. Call it in a thread, before anyone else uses this object."""
        if self._file.path.exists():
            self._index = scan(self._file.path)
            self._leaf = len(self._index) - 1
            self._branch = self._rebuild()

    @property
    def path(self) -> str:
        return str(self._file.path)

    # Writing

    async def append(self, fields: dict[str, Any], *, entry_id: str | None = None, durable: bool = False) -> str:
        own = entry_id or self._new_id()
        await self._add({own: fields})
        if durable:
            await self._file.sync()
        return own

    async def append_all(self, entries: Mapping[str, dict[str, Any]], *, soon: bool = False) -> None:
        """Writes one line per entry, at once also with ``soon``, because that costs next to nothing.

        The lines are safe from a power cut after ``sync`` (``AppendFile`` in ``disk.py``).
        """
        await self._add(entries)

    async def sync(self) -> None:
        await self._file.sync()

    @property
    def file(self) -> AppendFile:
        return self._file

    async def branch(self, entry_id: str | None) -> None:
        leaf = -1 if entry_id is None else self._index.by_id[entry_id]
        if leaf != self._leaf:
            self._leaf, self._branch = leaf, None
            await self._make_branch()

    async def _add(self, entries: Mapping[str, dict[str, Any]]) -> None:
        """Appends the entries and makes the context of the branch if a compaction has changed it."""
        self._append_lines(entries)
        if self._before is not None:
            await self._make_branch()

    async def _make_branch(self) -> None:
        """Makes the context at the leaf in a thread, again if the leaf moves meanwhile."""
        while self._branch is None:
            leaf = self._leaf
            made = await finish_in_thread(self._rebuild)
            if self._branch is None and self._leaf == leaf:
                self._branch = made
        self._before = None

    def _append_lines(self, entries: Mapping[str, dict[str, Any]]) -> None:
        """Appends the entries whose ids are new, each as the child of the one before, in one write.

        Then the index and the branch in memory have them too (``_note_written``).
        """
        check_types(entries)
        self.put_back()
        if self._file.look() == 0 and (self._index.header is not None or self._index.ids):
            self._index = TranscriptIndex()
            self._warn("the file was removed while it was in use; a new one was started")
            self._leaf, self._branch, self._decoded_bytes = -1, BranchContext(), 0
        index = self._index
        new = self._new_entries(entries)
        if not new:
            return
        lines = self._encoded_lines(new)
        header = self._header_line() if index.header is None and not index.ids else b""
        offset = self._file.append(header + b"\n".join(lines) + b"\n", looked=True) + len(header)
        if header:
            index.header = fields_of(header)
        for (own, fields), line in zip(new.items(), lines, strict=True):
            self._note_written(own, fields, line, offset)
            offset += len(line) + 1

    def begin_with(self, entries: Sequence[Entry]) -> None:
        """Fills a new transcript with a branch of another one. The lines are copied in one write."""
        header = self._header_line()
        lines = [with_own_id(entry) for entry in entries]
        offset = self._file.append(b"".join([header, *(line + b"\n" for line in lines)]))
        self._index.take_line(1, header.rstrip(), offset)
        offset += len(header)
        for number, line in enumerate(lines, start=2):
            self._index.take_line(number, line, offset)
            offset += len(line) + 1
        self._leaf, self._branch = len(self._index) - 1, None

    # Reading

    def context(self) -> Context:
        if self._branch is None:  # Somebody else is making it in a thread, and this caller cannot wait for it.
            self._branch = self._rebuild()
        return self._branch.context()

    def _rebuild(self) -> BranchContext:
        """Blocking."""
        rebuilding = self._rebuilding(self._before)
        try:
            needed = next(rebuilding)
            while True:
                needed = rebuilding.send(list(read_spans(self._file.path, self._index.spans(needed))))
        except StopIteration as built:
            return built.value

    async def _read(self, places: Sequence[int]) -> list[bytes]:
        self.put_back()
        path, index = self._file.path, self._index
        return await asyncio.to_thread(lambda: list(read_spans(path, index.spans(places))))

    # Life

    def put_back(self) -> bool:
        """Writes the file again if somebody removed it while the session was in use. Returns whether it did."""
        if not self._file.put_back():
            return False
        self._warn("the file was removed while it was in use; it was written again")
        return True

    def _warn(self, text: str) -> None:
        """Record and log a defect found while the file was in use. ``_load`` has logged earlier ones."""
        self._index.warn(text)
        log.warning("transcript %s: %s", self.path, text)

    @property
    def busy(self) -> bool:
        return self._file.busy

    def moved_to(self, path: Path) -> None:
        """Tells that the file was renamed (archived). Later entries go to the renamed file."""
        self._file.path = path

    def rest(self) -> None:
        """Closes the file unless it is being synced. The next append opens it again."""
        if not self._file.busy:
            self._file.close()


class Locations:
    """The paths of transcripts. ``store_path`` returns where an agent's ``sessions.json`` is, if that is configured."""

    def __init__(self, state_dir: str, store_path: Callable[[str], str] | None = None) -> None:
        self._state = state_dir
        self._store_path = store_path
        self._places = lru_cache(maxsize=MOST_AGENTS)(self._places_of)
        self._real = lru_cache(maxsize=MOST_AGENTS)(os.path.realpath)
        self._warned: set[str] = set()

    def default(self, ref: TranscriptRef) -> tuple[Path, str]:
        """Returns the path of a new transcript, and the same path with links followed.

        It is the entry's ``sessionFile`` if that is allowed, and otherwise in the agent's folder.
        """
        if (pointed := self._pointed_at(ref)) is not None:
            return pointed, os.path.realpath(pointed)
        home, name = self._home(ref), session_file_name(ref.session_id, ref.thread_id)
        return Path(home, name), f"{self._real(home)}{os.sep}{name}"  # A new file is not a link itself.

    def find_either(self, ref: TranscriptRef) -> tuple[Path | None, Path | None]:
        """Returns the plain file, or else the compressed one."""
        plain = next(self.plain(ref), None)
        compressed = next(self.compressed(ref), None) if plain is None else None
        if plain is None and compressed is None:
            # The file may have been decompressed between the two searches.
            plain = next(self.plain(ref), None)
        return plain, compressed

    def home(self, agent_id: str) -> str:
        """Returns the folder beside the agent's session store."""
        return self._places(agent_id)[0]

    def folders(self, agent_id: str) -> list[Path]:
        """Returns the folders of this agent's transcripts, also those of older versions."""
        *own, _ = self._places(agent_id)
        return _distinct(Path(folder) for folder in own)

    def plain(self, ref: TranscriptRef) -> Iterator[Path]:
        """Yields the plain files that may hold the transcript, the right one first."""
        return (Path(path) for path in self._candidates(ref) if os.path.isfile(path) and self._is_inside(path, ref))

    def compressed(self, ref: TranscriptRef) -> Iterator[Path]:
        """Yields the compressed files that may hold the transcript, the right one first."""
        for path in self._candidates(ref):
            compressed = path + SUFFIX
            if os.path.isfile(compressed) and not os.path.islink(compressed) and self._is_inside(path, ref):
                yield Path(compressed)

    def _candidates(self, ref: TranscriptRef) -> list[str]:
        names = [session_file_name(ref.session_id, ref.thread_id)]
        if ref.thread_id is not None:
            names.append(session_file_name(ref.session_id))
        if ref.file:
            # If the state directory was moved, the entry's absolute path is wrong but the file name is right.
            names.insert(0, os.path.basename(ref.file.strip().rstrip("/")))
        named = [name for name in names if name not in ("", ".", "..")]
        pointed = self._pointed_at(ref)
        *places, oldest, older = self._places(ref.agent_id)
        if os.path.isdir(older):
            places += [oldest, older]
        paths = [f"{folder}{os.sep}{name}" for folder in places for name in named]
        return paths if pointed is None else [str(pointed), *paths]

    def _places_of(self, agent_id: str) -> tuple[str, ...]:
        """Returns the folders to search. The last two are of older versions, and all agents share the last one."""
        beside = [os.path.dirname(self._store_path(agent_id))] if self._store_path else []
        older = os.path.join(self._state, "sessions")
        home, oldest = sessions_dir(self._state, agent_id), os.path.join(older, normalize_agent_id(agent_id))
        return (*dict.fromkeys([*beside, home, oldest]), older)

    def _home(self, ref: TranscriptRef) -> str:
        return sessions_dir(self._state, ref.agent_id)

    def _pointed_at(self, ref: TranscriptRef) -> Path | None:
        """Returns the path in ``sessionFile``, if it is inside the state directory or beside the store."""
        text = (ref.file or "").strip()
        if not text:
            return None
        path = os.path.join(self._home(ref), os.path.expanduser(text))
        free = _is_named_so(path) and not os.path.exists(path)
        if not (free or os.path.isfile(path)) or not self._is_inside(path, ref):
            self._warn_once(text)
            return None
        return Path(path)

    def _is_inside(self, path: str, ref: TranscriptRef) -> bool:
        """Follows links, because a name inside may lead outside."""
        real = os.path.realpath(path)
        beside, *_ = self._places(ref.agent_id)
        roots = [os.path.join(os.path.realpath(root), "") for root in (self._state, beside)]
        return _is_named_so(real) and real.startswith(tuple(roots))

    def _warn_once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 1000:
            self._warned.add(text)
            log.warning("sessionFile %s is not a transcript inside %s; the default place is used", text, self._state)


def _is_named_so(path: str) -> bool:
    return os.path.splitext(path)[1] == ".jsonl"


def _distinct(paths: Iterable[Path]) -> list[Path]:
    """Removes paths that lead to the same file as another."""
    return list({os.path.realpath(path): path for path in paths}.values())
