"""The file of a transcript, as bytes: its index, its lines from either end, and its compressed form.

The index holds the envelope and the position of every entry. A compressed transcript is ``<name>.jsonl.zst`` in the
place of ``<name>.jsonl``: at every moment at least one of the two is whole, and if a crash leaves both, the plain one
is used. Everything here blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from openclaw import json_text
from openclaw.sessions.tree import fields_of, is_displayed
from openclaw.storage.files.disk import put_in_place, sync_dir, write_temporary
from openclaw.storage.transcripts import Entry

SUFFIX = ".zst"
LEVEL = 10
_BLOCK = 1 << 20
_TAIL_BLOCK = 256 << 10
_WARNINGS = 50
_LARGEST_READ = 4 << 20
_READ_THROUGH = 64 << 10
HEAD_BYTES, HEAD_LINES = 16 * 1024, 20
_PACKABLE = re.compile(r".+\.jsonl(?:\.(?:deleted|reset|bak)\..+(?<!\.zst)(?<!\.tmp))?\Z")
_LOST_NEWLINE = re.compile(rb'\}.\{"type":', re.DOTALL)
"""Where two lines run into each other because the byte between them was damaged."""
SHOWN_TYPES = frozenset({"message", "compaction", "custom_message", "custom"})
MAYBE_SHOWN_TYPES = frozenset({"custom_message", "custom"})
"""Entries of these types are shown to people only when the entry says so."""
DAMAGE_TYPE = "damage"
"""The ``customType`` of the marker that histories show where a file is damaged. It is not in the file."""


class TranscriptIndex:
    """The entries in the order of the file. A place is a position in that order. A parent comes before its child.

    Lines of the first format have no id. They get one from their place, and the line before is their parent. The same
    line stands in for a parent that damage has made unknown, so that a damaged line costs only itself.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.types: list[str] = []
        self.parents: array[int] = array("q")
        self.offsets: array[int] = array("Q")
        self.lengths: array[int] = array("Q")
        self.by_id: dict[str, int] = {}
        self.missing_parents: dict[int, str] = {}
        self.damaged: set[int] = set()
        """The places before which something is damaged. The last may be the place of the next entry."""
        self.labels: dict[str, str] = {}
        self.header: dict[str, Any] | None = None
        self.warnings: list[str] = []

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, envelope: Envelope, offset: int, length: int) -> int:
        position, parent = len(self.ids), -1
        if not envelope.type:
            self.damaged.add(position)
        own, above = envelope.id or f"{position:08x}", envelope.above
        if above is not None and above != own:
            # The latest earlier line with that id is the parent. So repeated ids cannot make a circle.
            parent = self.by_id.get(above, -1)
            if parent < 0:
                parent = self._bridged(position, above)
        elif envelope.id is None:
            parent = position - 1
        elif envelope.parentId is msgspec.UNSET and position:
            parent = self._bridged(position, None)
        return self.put(own, envelope.type, parent, offset, length)

    def _bridged(self, position: int, above: str | None) -> int:
        """Returns the place that stands in for the unknown parent of this one: the place before, or -1 for none."""
        if position and (self.header is None or above != self.header.get("id")):
            self.damaged.add(position)
            return position - 1
        if above is not None:
            self.missing_parents[position] = above
        return -1

    def put(self, own: str, kind: str, parent: int, offset: int, length: int) -> int:
        """Adds an entry and returns its place. ``parent`` is a place, or -1 for none."""
        position = len(self.ids)
        self.ids.append(own)
        self.types.append(sys.intern(kind))
        self.parents.append(parent)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.by_id[own] = position
        return position

    def take_line(self, number: int, raw: bytes, offset: int) -> None:
        line, shift = trim(raw)
        if not line:
            if raw.strip():
                self.warn(f"line {number} holds only NUL bytes")
            return
        envelope = read_envelope(line)
        if envelope is None and (both := list(halves(line))):
            self.warn(f"the newline after line {number} is damaged")
            for half, at in both:
                self.take_line(number, half, offset + shift + at)
        elif envelope is None:
            self.warn(f"line {number} is damaged and was passed over")
            if line.endswith(b"}") and number > 1:
                # Line 1 is the header. A line without its end was never written, and whoever wrote it knows.
                self.damaged.add(len(self))
        elif envelope.type == "session":
            self.header = self.header or fields_of(line)
        else:
            self.add(envelope, offset + shift, len(line))
            if envelope.type == "label":
                self.note_label(fields_of(line))

    def note_label(self, fields: dict[str, Any]) -> None:
        target, text = fields.get("targetId"), fields.get("label")
        if isinstance(target, str) and isinstance(text, str) and text.strip():
            self.labels[target] = text
        elif isinstance(target, str):
            self.labels.pop(target, None)

    def warn(self, text: str) -> None:
        if len(self.warnings) < _WARNINGS:
            self.warnings.append(text)

    def parent_id(self, position: int) -> str | None:
        parent = self.parents[position]
        return self.ids[parent] if parent >= 0 else self.missing_parents.get(position)

    def path(self, leaf: int, limit: int | None = None) -> list[int]:
        """Returns the places from the root to ``leaf``, with ``limit`` only the last ones."""
        walked: list[int] = []
        parents = self.parents
        while leaf >= 0 and (limit is None or len(walked) < limit):
            walked.append(leaf)
            leaf = parents[leaf]
        walked.reverse()
        return walked

    def walk(self, leaf: int) -> Iterator[tuple[int, str, str]]:
        """Yields (place, type, id) from ``leaf`` towards the root."""
        parents, types, ids = self.parents, self.types, self.ids
        while leaf >= 0:
            yield leaf, types[leaf], ids[leaf]
            leaf = parents[leaf]

    def spans(self, places: Sequence[int]) -> list[tuple[int, int]]:
        return [(self.offsets[position], self.lengths[position]) for position in places]


class Envelope(msgspec.Struct):
    type: str = ""
    id: str | None = None
    parentId: str | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def above(self) -> str | None:
        """The id of the parent, if the line names one."""
        return self.parentId if isinstance(self.parentId, str) else None


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_any_json = msgspec.json.Decoder(msgspec.Raw)
"""Looks whether a line is JSON, and makes nothing of it."""


def read_envelope(line: bytes) -> Envelope | None:
    """Returns the envelope of a line, or None when the line is not a JSON object."""
    try:
        return _decode_envelope(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        data = json_text.decode_loosely(line)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    kind, own, parent = data.get("type"), data.get("id"), data.get("parentId", msgspec.UNSET)
    return Envelope(
        type=kind if isinstance(kind, str) else "",
        id=own if isinstance(own, str) else None,
        parentId=parent if isinstance(parent, str | msgspec.UnsetType) else None,
    )


def readable(raw: bytes) -> bytes:
    """Returns the line as JSON that every reader takes. A client would close its connection over broken UTF-8.

    Other programs write half surrogate pairs, which strict readers refuse. They become U+FFFD.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        raw = raw.decode(errors="replace").encode()
    try:
        _any_json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        fields = fields_of(raw)
        return json_text.encode(fields) if fields else raw
    return raw


def halves(line: bytes) -> Iterator[tuple[bytes, int]]:
    """Yields the lines, with their offsets, of a damaged one in which only a newline is wrong."""
    if line[-2:-1] == b"}" and read_envelope(line[:-1]) is not None:
        yield line[:-1], 0
        return
    for between in _LOST_NEWLINE.finditer(line):
        end = between.start() + 1
        if read_envelope(line[:end]) is not None and read_envelope(line[end + 1 :]) is not None:
            yield from ((line[:end], 0), (line[end + 1 :], end + 1))
            return


def trim(line: bytes) -> tuple[bytes, int]:
    """Strips what a crash or an editor left around a line. Returns the line and how many bytes went at the front."""
    if line[:1] == b"{" and line[-1:] == b"}":
        return line, 0
    trimmed = line.lstrip(b"\0 \t\r\xef\xbb\xbf")
    return trimmed.rstrip(b"\0 \t\r"), len(line) - len(trimmed)


# Reading


def scan(path: Path) -> TranscriptIndex:
    """Reads the whole file once. Damage becomes a warning and raises nothing."""
    index = TranscriptIndex()
    number = start = 0
    for start, block in _blocks(path):
        number = _take_block(index, block, start, number)
        start += len(block)
    if start and index.header is None:
        index.warn("the header line is missing or damaged; the entries are used as they are")
    return index


def _take_block(index: TranscriptIndex, block: memoryview, start: int, number: int) -> int:
    """Indexes whole lines and returns the number of the last one. Undamaged lines are not copied."""
    data = block.obj
    assert isinstance(data, bytearray)
    begin, size = 0, len(block)
    while begin < size:
        end = data.find(b"\n", begin, size)
        finished, end = end >= 0, end if end >= 0 else size
        number += 1
        try:
            envelope = _decode_envelope(block[begin:end])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            envelope = None
        if envelope is None or envelope.type in ("session", "label"):
            warned = len(index.warnings)
            index.take_line(number, bytes(block[begin:end]), start + begin)
            if not finished and len(index.warnings) > warned:
                index.warnings[-1] = f"line {number} was cut short; the next entry starts on a new line"
                index.damaged.discard(len(index))
        else:
            index.add(envelope, start + begin, end - begin)
        begin = end + 1
    return number


def _blocks(path: Path) -> Iterator[tuple[int, memoryview]]:
    """Yields (offset, bytes) of blocks that end with a line or the file. A block is valid until the next one."""
    filled = offset = 0
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(min(_BLOCK, os.fstat(file.fileno()).st_size + 1))
        while True:
            with memoryview(buffer) as view:
                got = file.readinto(view[filled:])
                filled += got
                whole = buffer.rfind(b"\n", filled - got, filled) + 1 if got else filled
                if whole:
                    yield offset, view[:whole]
            if not got:
                return
            offset += whole
            buffer[: filled - whole] = buffer[whole:filled]
            filled -= whole
            if filled == len(buffer):
                # The line is longer than the buffer. The old buffer may still be in use, so a new one is made.
                buffer = buffer + bytes(len(buffer))


def read_spans(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yields the bytes at each (offset, length), in order. Neighbours are fetched with one read."""
    if not spans:
        return
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        start, block = 0, b""
        for number, (offset, length) in enumerate(spans):
            if not (start <= offset and offset + length <= start + len(block)):
                start, block = offset, os.pread(fd, _stretch(spans, number), offset)
            yield block[offset - start : offset - start + length]


def _stretch(spans: Sequence[tuple[int, int]], first: int) -> int:
    """Returns how much to read at once from here: across small gaps, up to a limit."""
    start, length = spans[first]
    end = start + length
    for offset, more in islice(spans, first + 1, None):
        if not (end <= offset <= end + _READ_THROUGH) or offset + more - start > _LARGEST_READ:
            break
        end = offset + more
    return end - start


def read_tail(path: Path, limit: int) -> list[Entry] | None:
    """Returns the last entries of the active branch that people see, oldest first.

    None when the file seems to be damaged. Only its whole index can tell then what belongs together.
    """
    return tail_of(_lines_backwards(path), limit)


def read_compressed_tail(compressed: Path, limit: int) -> list[Entry] | None:
    """Does the same for a compressed file, which has to be read from its beginning."""
    return tail_of(reversed(b"".join(decompressed_blocks(compressed)).split(b"\n")), limit)


def tail_of(lines: Iterator[bytes], limit: int) -> list[Entry] | None:
    """Does the same for lines that come from the last to the first."""
    entries: list[Entry] = []
    next_id: str | None = None
    anything, first, reached, header = True, "", "", ""
    for raw in lines:
        line, _ = trim(raw)
        envelope = read_envelope(line) if line else None
        if not line:
            continue
        if envelope is None or not envelope.type or (envelope.id is None and envelope.parentId is not msgspec.UNSET):
            return None
        if envelope.type == "session":
            header = envelope.id or ""
            continue
        first = envelope.id or ""
        if not anything and envelope.id is not None and envelope.id != next_id:
            continue
        if envelope.type in SHOWN_TYPES and (envelope.type not in MAYBE_SHOWN_TYPES or is_displayed(line)):
            entries.append(Entry(envelope.id or "", envelope.above, envelope.type, readable(line)))
        # The parent of a line of the first format is the line before it.
        anything = envelope.id is None and envelope.above is None
        next_id, reached = envelope.above, first
        if len(entries) >= limit or (next_id is None and not anything) or (next_id == envelope.id and not anything):
            if envelope.id is not None and envelope.parentId is msgspec.UNSET:
                return None
            break
    else:
        # The beginning was reached without the parent. That is sound only for the first entry of the file.
        if not anything and next_id != header and reached != first:
            return None
    entries.reverse()
    return entries


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yields the lines from the last to the first."""
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        end = os.fstat(fd).st_size
        # The pieces of a line that begins in an earlier block, the last piece first.
        pieces: list[bytes] = []
        while end > 0:
            start = max(0, end - _TAIL_BLOCK)
            block = os.pread(fd, end - start, start)
            end = start
            lines = block.split(b"\n")
            if len(lines) > 1:
                pieces.append(lines[-1])
                yield b"".join(reversed(pieces))
                yield from reversed(lines[1:-1])
                pieces = [lines[0]]
            else:
                pieces.append(block)
        if pieces:
            yield b"".join(reversed(pieces))


def read_head(path: Path) -> list[bytes]:
    """Returns the first whole lines. None when the file begins with something very long."""
    try:
        with path.open("rb") as file:
            lines = file.read(HEAD_BYTES).split(b"\n")
    except OSError:
        return []
    return lines[:HEAD_LINES] if len(lines) > HEAD_LINES else lines[:-1]


def read_page(path: Path, start: int, most_bytes: int) -> tuple[list[bytes], int | None]:
    """Returns lines from byte ``start`` on, and the byte where the next page begins."""
    lines: list[bytes] = []
    size = 0
    for line in whole_lines(path, start):
        if lines and size + len(line) > most_bytes:
            return lines, start + size
        lines.append(line.removesuffix(b"\n"))
        size += len(line)
    return lines, None


def whole_lines(file: Path, start: int = 0) -> Iterator[bytes]:
    """Whole lines with their newlines, from byte ``start`` of the plain text. An unfinished last line is left out."""
    rest = b""
    for block in plain_blocks(file, start):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"


def plain_blocks(file: Path, start: int = 0) -> Iterator[bytes]:
    """Yields the plain text of a transcript from byte ``start`` on, whether the file is compressed or not."""
    if not file.name.endswith(SUFFIX):
        with file.open("rb") as opened:
            opened.seek(start)
            while block := opened.read(_BLOCK):
                yield block
        return
    passed = 0
    for block in decompressed_blocks(file):
        if passed + len(block) > start:
            yield block[max(0, start - passed) :]
        passed += len(block)


# Compression


class ChangedMeanwhile(Exception):
    """The file was written to during its compression, so it stays as it is."""


def compressed_name(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def plain_name(compressed: Path) -> Path:
    return compressed.with_name(compressed.name.removesuffix(SUFFIX))


def compress_file(path: Path) -> tuple[int, int]:
    """Compresses a file and returns its sizes before and after. The original goes when the copy is proven equal."""
    before = path.stat()
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with path.open("rb") as source:
        prepared = write_temporary(path, compressor.read_to_iter(source, size=before.st_size))
    try:
        copied = hashlib.blake2b()
        for block in decompressed_blocks(prepared):
            copied.update(block)
        with path.open("rb") as source:
            same = hashlib.file_digest(source, hashlib.blake2b).digest() == copied.digest()
        now = path.stat()
        if not same or (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise ChangedMeanwhile(str(path))
        os.utime(prepared, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = prepared.stat().st_size
        put_in_place(prepared, compressed_name(path))
    finally:
        prepared.unlink(missing_ok=True)
    path.unlink()
    sync_dir(path.parent)
    return before.st_size, after


def decompress_file(compressed: Path) -> Path:
    """Restores the plain file with its modification time. A damaged file raises ``OSError`` and stays."""
    path = plain_name(compressed)
    before = compressed.stat()
    prepared = write_temporary(path, decompressed_blocks(compressed))
    try:
        os.utime(prepared, ns=(before.st_atime_ns, before.st_mtime_ns))
        put_in_place(prepared, path)
    finally:
        prepared.unlink(missing_ok=True)
    compressed.unlink(missing_ok=True)
    sync_dir(path.parent)
    return path


def decompressed_blocks(compressed: Path) -> Iterator[bytes]:
    size, expected = 0, decompressed_size(compressed)
    try:
        with compressed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
            while block := reader.read(_BLOCK):
                size += len(block)
                yield block
    except zstandard.ZstdError as error:
        raise OSError(f"{compressed} is damaged and cannot be decompressed: {error}") from None
    if size != expected:  # The library reports no error for a file that was cut short.
        raise OSError(f"{compressed} is damaged: {size} bytes of {expected} could be decompressed")


def decompress(data: bytes, most: int) -> bytes:
    """Decompress up to ``most`` bytes. Raise ``zstandard.ZstdError`` for damaged data and for more bytes.

    The library's own limit does not hold for data whose header gives a size.
    """
    size = zstandard.frame_content_size(data)
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        plain = reader.read(most + 1)
    if len(plain) > most:
        raise zstandard.ZstdError(f"it is larger than {most} bytes")
    if size not in (-1, len(plain)):
        raise zstandard.ZstdError("it was cut short")
    return plain


def decompressed_size(compressed: Path) -> int | None:
    """Returns the size that the header gives. None when it gives none."""
    with compressed.open("rb") as file:
        head = file.read(18)
    try:
        size = zstandard.frame_content_size(head)
    except zstandard.ZstdError:
        return None
    return size if size >= 0 else None


def old_files(folder: Path, before_ms: int) -> list[Path]:
    """Finds plain transcripts in ``folder`` that were last written before that time, the oldest first."""
    files: list[tuple[float, Path]] = []
    try:
        with os.scandir(folder) as listed:
            for item in listed:
                if _PACKABLE.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                    status = item.stat(follow_symlinks=False)
                    if status.st_mtime * 1000 < before_ms and status.st_size > 0:
                        files.append((status.st_mtime, Path(item.path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for _, path in sorted(files)]
