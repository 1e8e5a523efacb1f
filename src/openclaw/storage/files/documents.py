"""``DocumentStore`` on files: each document is the file of its name, which people and other programs may edit."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from openclaw.config.store import exclusive
from openclaw.paths import make_private_dir
from openclaw.storage.documents import DocumentChanged, StoredDocument, Version
from openclaw.storage.files.disk import atomic_replace


class FileDocuments:
    """The documents below one folder. Every write is atomic and private, and on disk when it returns."""

    shared = False

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._changing = Lock()
        """Held while a file is compared and replaced. The lock of the folder keeps other processes out, not threads."""

    async def get(self, name: str) -> StoredDocument | None:
        return await asyncio.to_thread(self._get, name)

    async def version(self, name: str) -> Version | None:
        # It takes microseconds, and a thread would take longer.
        return _version(self._folder / name)

    async def put(self, name: str, data: bytes, version: Version | None, *, backup: bool = False) -> Version:
        return await asyncio.to_thread(self._put, self._folder / name, data, version, backup)

    async def append(self, name: str, line: bytes, *, most_bytes: int, most_lines: int) -> None:
        await asyncio.to_thread(self._append, self._folder / name, line + b"\n", most_bytes, most_lines)

    async def remove(self, name: str) -> None:
        await asyncio.to_thread((self._folder / name).unlink, missing_ok=True)

    async def set_aside(self, name: str) -> str:
        path = self._folder / name
        aside = path.with_name(f"{path.name}.corrupt")
        await asyncio.to_thread(path.replace, aside)
        return aside.name

    async def list(self, prefix: str) -> list[str]:
        return await asyncio.to_thread(self._list, prefix)

    async def tell(self, name: str) -> None:
        pass

    def watch(self, changed: Callable[[str], None]) -> Callable[[], None]:
        return lambda: None

    def place(self, name: str) -> str:
        return str(self._folder / name)

    # These methods run in a thread

    def _get(self, name: str) -> StoredDocument | None:
        path = self._folder / name
        # A change between the two makes the version older than the data. Then a write with it is refused.
        version = _version(path)
        try:
            # A pipe in the place of the file is an error, and nothing to wait for.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
                return StoredDocument(file.read(), version or (), version[0] // 1_000_000 if version else 0)
        except FileNotFoundError:
            return None

    def _put(self, path: Path, data: bytes, version: Version | None, backup: bool) -> Version:
        # A link stays a link, and the file it points to is replaced: dotfiles may be kept elsewhere.
        path = path.resolve() if path.is_symlink() else path
        with self._changing, exclusive(str(path)):
            if _version(path) != version:
                raise DocumentChanged(str(path))
            if backup:
                _keep_backup(path)
            atomic_replace(path, data)
            return _version(path) or ()

    def _append(self, path: Path, line: bytes, most_bytes: int, most_lines: int) -> None:
        make_private_dir(str(path.parent))
        with self._changing:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    if file.read(1) != b"\n":  # A crash cut the last line.
                        line = b"\n" + line
                file.write(line)
                os.fsync(file.fileno())
            if size + len(line) > most_bytes:
                atomic_replace(path, last_lines(path.read_bytes(), most_lines))

    def _list(self, prefix: str) -> list[str]:
        folder = self._folder / prefix.rpartition("/")[0]
        found = (path for path in folder.rglob("*") if path.is_file())
        names = (path.relative_to(self._folder).as_posix() for path in found)
        return sorted(name for name in names if name.startswith(prefix))


def last_lines(data: bytes, most: int) -> bytes:
    return b"\n".join([*data.splitlines()[-most:], b""])


def _version(path: Path) -> Version | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _keep_backup(path: Path) -> None:
    """Gives the present file a second name, ``.bak``, under which it stays when it is replaced."""
    backup = path.with_name(f"{path.name}.bak")
    temporary = backup.with_name(f".{backup.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        temporary.replace(backup)
    except OSError:
        pass  # There is no file yet, or the file system has no hard links. The new file is what counts.
