"""The one way in which files of a workspace are opened: for tools, prompts, skills, memory and clients.

When confined, it walks a path one component at a time with ``openat``-style calls that never follow links. It reads a
link itself and walks its target from the root again. So a link that is swapped in between check and use only leads to
another try. A hard link can be another name of a file elsewhere, so a workspace file with several names is not read.
A mount inside the workspace is followed: only the administrator of the machine can make one.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import os
import re
import secrets
import stat as stat_modes
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from openclaw.text import normalised

T = TypeVar("T")
Kind: TypeAlias = Literal["file", "folder", "link"]

MAX_LINKS = 40
MAX_TRIES = 16
_ODD_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Two agents may edit one file at the same time. A fixed set of locks does not grow with the number of files.
_EDIT_LOCKS = tuple(threading.Lock() for _ in range(64))


class PathRefused(Exception):
    """A file is not opened. The text says why, for the model or the person who named it."""


class FileMissing(PathRefused):
    """No file exists at that path."""


class IsFolder(PathRefused):
    """The path is that of a folder, and a file was asked for."""


class _Changed(Exception):
    """A component became a link between check and opening, so the path must be walked again."""


class PathGuard(Protocol):
    """Knows files that an opener must not open."""

    def refusal(self, path: str, *, writing: bool) -> str | None:
        """Return why the file must not be opened, or None. ``path`` is absolute, without links, and may not exist."""
        ...

    def hidden_names(self, folder: str, names: Sequence[str]) -> set[str]:
        """Return which of the names in a folder are files that must not be read."""
        ...


class Root(NamedTuple):
    """A folder whose files a confined opener opens."""

    folder: str
    names: tuple[str, ...]
    """The paths that mean the folder. In a sandbox the first is its path in there."""
    writable: bool
    foreign: bool = False
    """The folder is the owner's. A hard link there was made by the owner too, and is read."""


class PathOpener:
    """Opens files below the workspace, or anywhere if not confined. Its methods block: call them from a thread."""

    def __init__(self, workspace: Path, *, confine: bool, extra_roots: Sequence[Path] = (), links: bool = True) -> None:
        """``extra_roots`` (such as skills) may be read, but not written, when confined.

        A root may itself be a link, since the owner of the machine names it. A root inside the workspace may not: the
        agent can replace it, so it counts as any other folder there. Without ``links`` a confined opener follows none.
        """
        self.workspace = Path(os.path.normpath(workspace.absolute()))
        self.confine = confine
        self._links = links
        self._guard: PathGuard | None = None
        self._base, self._home = str(self.workspace), str(Path.home())
        outside = (root for root in map(Path.absolute, extra_roots) if not root.is_relative_to(self.workspace))
        extra = map(os.path.normpath, outside)
        self._roots = [
            Root(self._base, (self._base,), writable=True),
            *(Root(root, (root,), writable=False, foreign=True) for root in extra),
        ]

    @classmethod
    def in_sandbox(cls, roots: Sequence[Root]) -> PathOpener:
        """Open what a sandbox sees, under the paths of the sandbox. It follows no link.

        The first root is the workspace. Of nested roots the inner one must come first, after the workspace.
        """
        opener = cls(Path(roots[0].folder), confine=True, links=False)
        opener._base = opener._home = roots[0].names[0]
        opener._roots = [*roots[1:], roots[0]]
        return opener

    def guarded(self, guard: PathGuard) -> PathOpener:
        """Return an opener that opens the same files except those that the guard refuses."""
        opener = copy.copy(self)
        opener._guard = guard
        return opener

    def resolve(self, path: str) -> str:
        """Return the absolute path for what the model wrote. Links are not resolved."""
        requested = _ODD_SPACES.sub(" ", path.strip("\n"))
        requested = requested.removeprefix("@")
        if not requested.strip():
            raise PathRefused("The path is empty; give a file path, relative to the workspace or absolute")
        if "\0" in requested:
            raise PathRefused("The path holds a NUL character")
        if requested == "~" or requested.startswith("~/"):
            requested = f"{self._home}{requested[1:]}"
        return os.path.normpath(Path(self._base) / requested)

    def open_read(self, path: str) -> BinaryIO:
        """Open a regular file for reading. Tries the path, then the spellings that macOS gives to names."""

        def open_at(parent: int, name: str, shown: str, in_workspace: bool) -> BinaryIO:
            _refuse_special(os.stat(name, dir_fd=parent, follow_symlinks=False), shown)
            fd = _open_final(name, _READ, parent)
            try:
                result = os.fstat(fd)
                _refuse_special(result, shown)
                if in_workspace and result.st_nlink > 1:
                    raise PathRefused(
                        f"{shown} is a hard link: it may be a file from outside the workspace. Make a copy to read it"
                    )
                return os.fdopen(fd, "rb")
            except BaseException:
                os.close(fd)
                raise

        resolved = self.resolve(path)
        with _explained(resolved):
            for spelling in _spellings(resolved):
                with contextlib.suppress(FileNotFoundError):
                    return self._at(spelling, open_at, writing=False, shown=resolved)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), resolved)

    def scan(self, path: str) -> list[tuple[str, Kind]]:
        """Return the names in a folder, in sorted order, and what each is. Links are named and not followed.

        The names of files that the guard refuses are left out.
        """

        def scan_at(parent: int, name: str, _shown: str, _in_workspace: bool) -> list[tuple[str, Kind]]:
            fd = _open_final(name, _LIST, parent)
            try:
                with os.scandir(fd) as entries:
                    found: list[tuple[str, Kind]] = sorted((entry.name, _kind(entry)) for entry in entries)
                if self._guard is None:
                    return found
                hidden = self._guard.hidden_names(_path_of(fd), [entry for entry, _ in found])
                return [(entry, kind) for entry, kind in found if entry not in hidden]
            finally:
                os.close(fd)

        resolved = self.resolve(path)
        with _explained(resolved):
            return self._at(resolved, scan_at, writing=False)

    def location(self, path: str) -> str:
        """Return where a folder is on this machine, whatever its path in a sandbox is."""

        def locate_at(parent: int, name: str, _shown: str, _in_workspace: bool) -> str:
            fd = _open_final(name, _LIST, parent)
            try:
                return _path_of(fd)
            finally:
                os.close(fd)

        resolved = self.resolve(path)
        with _explained(resolved):
            return self._at(resolved, locate_at, writing=False)

    @contextlib.contextmanager
    def open_write_atomic(self, path: str, *, mode: int | None = None) -> Generator[BinaryIO]:
        """Yields a new file that replaces ``path`` if the block ends without an error. Missing parents are made.

        A file that exists retains its mode bits; a new one is private unless ``mode`` is given.
        """
        resolved = self.resolve(path)
        temporary = f".openclaw-{secrets.token_hex(8)}.tmp"
        with _explained(resolved):
            parent, name, existing = self._at(resolved, _replaceable, writing=True)
            try:
                with os.fdopen(os.open(temporary, _CREATE, 0o600, dir_fd=parent), "wb") as file:
                    yield file
                    file.flush()
                    if existing is not None:
                        os.fchmod(file.fileno(), stat_modes.S_IMODE(existing.st_mode))
                        if (existing.st_uid, existing.st_gid) != (os.geteuid(), os.getegid()):
                            with contextlib.suppress(PermissionError):
                                os.fchown(file.fileno(), existing.st_uid, existing.st_gid)
                    elif mode is not None:
                        os.fchmod(file.fileno(), stat_modes.S_IMODE(mode) & 0o777)
                    os.fsync(file.fileno())
                # A rename replaces whatever has that name now and does not follow a link.
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            finally:
                os.close(parent)

    def remove(self, path: str) -> None:
        """Remove a regular file that could also be replaced."""

        def remove_at(parent: int, name: str, shown: str, in_workspace: bool) -> None:
            folder, found, existing = _replaceable(parent, name, shown, in_workspace)
            os.close(folder)
            if existing is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown)
            os.unlink(found, dir_fd=parent)

        resolved = self.resolve(path)
        with self.open_read(path):
            pass  # Fails if there is no such file, before missing parents would be made.
        with _explained(resolved):
            self._at(resolved, remove_at, writing=True)

    @contextlib.contextmanager
    def editing(self, *paths: str) -> Generator[None]:
        """Lets one caller of this process at a time read, change and write the files."""
        locks: set[int] = set()
        for path in paths:
            named = self.resolve(path)
            try:
                real = os.path.realpath(named)
            except OSError:  # A link on the way was swapped meanwhile. Opening the file will tell.
                real = str(named)
            locks.add(hash(real) % len(_EDIT_LOCKS))
        with contextlib.ExitStack() as held:
            for index in sorted(locks):  # Everybody takes them in this order, so that nobody waits forever.
                held.enter_context(_EDIT_LOCKS[index])
            yield

    def _at(self, path: str, action: Callable[[int, str, str, bool], T], *, writing: bool, shown: str = "") -> T:
        """Runs ``action(parent, name, path, in_workspace)`` on the open parent. Tries again if a link was swapped in.

        ``in_workspace`` is false if the opener is not confined.
        """
        for _ in range(MAX_TRIES):
            with contextlib.suppress(_Changed):
                if not self.confine and self._guard is not None:
                    self._check(os.path.realpath(path), writing, shown or path)
                walk = self._walk(path, writing) if self.confine else _unconfined(path, make_parents=writing)
                parent, name, in_workspace = walk
                try:
                    if self._guard is not None:
                        self._check(os.path.normpath(f"{_path_of(parent)}/{name}"), writing, shown or path)
                    return action(parent, name, shown or path, in_workspace)
                finally:
                    os.close(parent)
        raise PathRefused(f"The path keeps changing while it is opened: {shown or path}")

    def _check(self, path: str, writing: bool, shown: str) -> None:
        """Raise ``PathRefused`` if the guard refuses the file."""
        why = self._guard.refusal(path, writing=writing) if self._guard is not None else None
        if why is not None:
            raise PathRefused(f"{shown} {why}")

    def _walk(self, resolved: str, writing: bool) -> tuple[int, str, bool]:
        """Open the parent directory one component at a time, and follow links only inside the allowed roots.

        Returns its descriptor, the last component, and whether they are in the workspace.
        """
        root, parts = self._split(resolved, writing, resolved)
        if writing:
            if self._guard is not None:
                # This is before missing parents are made. A path behind links is checked when its parent is open.
                self._check(os.path.normpath("/".join([os.path.realpath(root.folder), *parts])), writing, resolved)
            _make_directories(self.workspace)
        trail = [os.open(root.folder, _DIRECTORY)]
        pending, links = parts[::-1], 0
        try:
            while pending:
                part = pending.pop()
                if part in ("", "."):
                    continue
                if part == "..":
                    if len(trail) == 1:
                        raise _leaves(resolved)
                    os.close(trail.pop())
                elif (target := _link_target(part, trail[-1])) is not None:
                    links += 1
                    if not self._links:
                        raise PathRefused(f"{resolved} is a link or behind one, and links are not followed here")
                    if links > MAX_LINKS:
                        raise PathRefused(f"Too many symbolic links on the way to {resolved}")
                    if target.startswith("/"):
                        root, parts = self._split(target, writing, resolved)
                        trail.append(os.open(root.folder, _DIRECTORY))
                        while len(trail) > 1:
                            os.close(trail.pop(0))
                    else:
                        parts = target.split("/")
                    pending.extend(parts[::-1])
                elif not pending:
                    return trail.pop(), part, not root.foreign
                else:
                    if writing:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o700, dir_fd=trail[-1])
                    trail.append(_open_final(part, _DIRECTORY | os.O_NOFOLLOW, trail[-1]))
            return trail.pop(), ".", not root.foreign
        finally:
            for fd in trail:
                os.close(fd)

    def _split(self, path: str, writing: bool, shown: str) -> tuple[Root, list[str]]:
        """Return the root that a path is in, and the components below it."""
        for root in self._roots:
            for spelling in (*root.names, os.path.realpath(root.folder)):
                if path == spelling or path.startswith(spelling.rstrip("/") + "/"):
                    if writing and not root.writable:
                        raise _leaves(shown) if root.foreign else PathRefused(f"{shown} can only be read")
                    return root, path[len(spelling.rstrip("/")) + 1 :].split("/") if path != spelling else []
        raise _leaves(shown)


def _leaves(path: str) -> PathRefused:
    return PathRefused(f"path leaves the workspace: {path}")


def _unconfined(resolved: str, *, make_parents: bool) -> tuple[int, str, bool]:
    parent, name = os.path.split(os.path.realpath(resolved))
    if make_parents:
        _make_directories(Path(parent))
    return os.open(parent, _DIRECTORY), name or ".", False


def _path_of(folder: int) -> str:
    """Return the path of an open folder, whatever links or renames led to it."""
    get_path: int | None = getattr(fcntl, "F_GETPATH", None)
    if get_path is not None:  # macOS
        return fcntl.fcntl(folder, get_path, bytes(1024)).rstrip(b"\0").decode()
    return os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - no Path is needed


def _kind(entry: os.DirEntry[str]) -> Kind:
    return "link" if entry.is_symlink() else "folder" if entry.is_dir(follow_symlinks=False) else "file"


def _make_directories(path: Path) -> None:
    """Make all missing directories private. ``mkdir(parents=True)`` would apply the umask to the ones between."""
    if not path.is_dir():
        _make_directories(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def _link_target(name: str, parent: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _open_final(name: str, flags: int, parent: int) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _link_target(name, parent) is not None:
            raise _Changed from None
        raise


def _refuse_special(found: os.stat_result, path: str) -> None:
    """Raise unless this is a regular file. Opening a FIFO or a device may hang or have side effects."""
    if stat_modes.S_ISLNK(found.st_mode):
        raise _Changed
    if stat_modes.S_ISDIR(found.st_mode):
        raise IsFolder(f"{path} is a directory, not a file")
    if not stat_modes.S_ISREG(found.st_mode):
        raise PathRefused(f"{path} is not a regular file")


def _replaceable(parent: int, name: str, path: str, _in_workspace: bool) -> tuple[int, str, os.stat_result | None]:
    """Return a new descriptor of the parent, the name, and the present file. Raises if it may not be replaced."""
    try:
        result = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return os.dup(parent), name, None
    _refuse_special(result, path)
    # The rename would succeed even for a file that is marked read-only.
    if not os.access(name, os.W_OK, dir_fd=parent):
        raise PathRefused(f"Permission denied: {path} is read-only")
    return os.dup(parent), name, result


def _spellings(path: str) -> list[str]:
    """The spellings to try. macOS stores decomposed names, curly apostrophes, and a narrow space before AM/PM."""
    narrow = re.sub(r" (AM|PM)\b", "\u202f\\1", path)
    curly = path.replace("'", "\u2019")
    forms = [path, narrow, curly]
    forms += [normalised(form, text) for text in (path, curly) for form in ("NFD", "NFC")]
    return list(dict.fromkeys(forms))


@contextlib.contextmanager
def _explained(path: str) -> Generator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileMissing(f"ENOENT: no such file or directory, access '{path}'") from None
    except PermissionError:
        raise PathRefused(f"Permission denied: {path}") from None
    except OSError as error:
        raise PathRefused(f"{error.strerror or error}: {path}") from None
