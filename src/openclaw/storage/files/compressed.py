"""Compression of old transcripts: ``<name>.jsonl`` becomes ``<name>.jsonl.zst`` in the same folder.

At every moment at least one of the two files is whole. If a crash leaves both, the plain file is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import zstandard

from openclaw.storage.files.disk import put_in_place, sync_dir, write_beside

SUFFIX = ".zst"
LEVEL = 10
_BLOCK = 1 << 20
_PACKABLE = re.compile(r".+\.jsonl(?:\.(?:deleted|reset|bak)\..+(?<!\.zst)(?<!\.tmp))?\Z")


class ChangedMeanwhile(Exception):
    """The file was written to during its compression, so it stays as it is."""


def packed_name(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def plain_name(packed: Path) -> Path:
    return packed.with_name(packed.name.removesuffix(SUFFIX))


def pack(path: Path) -> tuple[int, int]:
    """Compresses a file and returns its sizes before and after. The original goes when the copy is proven equal."""
    before = path.stat()
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with path.open("rb") as source:
        prepared = write_beside(path, compressor.read_to_iter(source, size=before.st_size))
    try:
        copied = hashlib.blake2b()
        for block in unpacked_blocks(prepared):
            copied.update(block)
        with path.open("rb") as source:
            same = hashlib.file_digest(source, hashlib.blake2b).digest() == copied.digest()
        now = path.stat()
        if not same or (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise ChangedMeanwhile(str(path))
        os.utime(prepared, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = prepared.stat().st_size
        put_in_place(prepared, packed_name(path))
    finally:
        prepared.unlink(missing_ok=True)
    path.unlink()
    sync_dir(path.parent)
    return before.st_size, after


def unpack(packed: Path) -> Path:
    """Restores the plain file with its modification time. A damaged file raises ``OSError`` and stays."""
    path = plain_name(packed)
    before = packed.stat()
    prepared = write_beside(path, unpacked_blocks(packed))
    try:
        os.utime(prepared, ns=(before.st_atime_ns, before.st_mtime_ns))
        put_in_place(prepared, path)
    finally:
        prepared.unlink(missing_ok=True)
    packed.unlink(missing_ok=True)
    sync_dir(path.parent)
    return path


def unpacked_blocks(packed: Path) -> Iterator[bytes]:
    size, wanted = 0, unpacked_size(packed)
    try:
        with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
            while block := reader.read(_BLOCK):
                size += len(block)
                yield block
    except zstandard.ZstdError as error:
        raise OSError(f"{packed} is damaged and cannot be decompressed: {error}") from None
    if size != wanted:  # The library reports no error for a file that was cut short.
        raise OSError(f"{packed} is damaged: {size} bytes of {wanted} could be decompressed")


def unpacked(data: bytes, most: int) -> bytes:
    """What was compressed, up to ``most`` bytes. Raises ``zstandard.ZstdError``, also for more than that.

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


def unpacked_size(packed: Path) -> int | None:
    """Returns the size that the header gives. None when it gives none."""
    with packed.open("rb") as file:
        head = file.read(18)
    try:
        size = zstandard.frame_content_size(head)
    except zstandard.ZstdError:
        return None
    return size if size >= 0 else None


def old_files(folder: Path, before_ms: int) -> list[Path]:
    """Finds plain transcripts in ``folder`` that were last written before that time, the oldest first."""
    found: list[tuple[float, Path]] = []
    try:
        with os.scandir(folder) as listed:
            for item in listed:
                if _PACKABLE.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                    status = item.stat(follow_symlinks=False)
                    if status.st_mtime * 1000 < before_ms and status.st_size > 0:
                        found.append((status.st_mtime, Path(item.path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for _, path in sorted(found)]


def whole_lines(file: Path, start: int = 0) -> Iterator[bytes]:
    """Whole lines with their newlines, from byte ``start`` of the plain text. An unfinished last line is left out."""
    rest = b""
    for block in _blocks_from(file, start):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _blocks_from(file: Path, start: int) -> Iterator[bytes]:
    if not file.name.endswith(SUFFIX):
        with file.open("rb") as opened:
            opened.seek(start)
            while block := opened.read(_BLOCK):
                yield block
        return
    passed = 0
    for block in unpacked_blocks(file):
        if passed + len(block) > start:
            yield block[max(0, start - passed) :]
        passed += len(block)
