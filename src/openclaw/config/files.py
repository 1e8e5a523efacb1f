"""Writing configuration files: all or nothing, private, with backups, one process at a time."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator
from pathlib import Path

from openclaw.paths import make_private_dir

BACKUPS = 4


def write_private(path: str, text: str) -> None:
    """Replaces the file atomically; on disk when this returns; readable by its owner only."""
    target = Path(path)
    # A link (dotfiles kept elsewhere) stays a link: what it points to is replaced.
    target = target.resolve() if target.is_symlink() else target
    make_private_dir(str(target.parent))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def keep_backups(path: str) -> None:
    """``.bak`` is what the file is now; older ones move to ``.bak.1`` … ``.bak.4``."""
    current = Path(path)
    try:
        data = current.read_bytes()
    except FileNotFoundError:
        return
    names = [f"{path}.bak", *(f"{path}.bak.{number}" for number in range(1, BACKUPS + 1))]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        with contextlib.suppress(FileNotFoundError):
            Path(newer).replace(older)
    _write_bytes(names[0], data)


@contextlib.contextmanager
def exclusive(path: str) -> Generator[None]:
    """Keeps other processes that write this configuration out, without a lock file of its own."""
    folder = make_private_dir(str(Path(path).parent))
    try:
        import fcntl
    except ImportError:  # Windows: a last writer wins there
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_bytes(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
