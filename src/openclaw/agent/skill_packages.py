"""Skills from elsewhere: fetched from a folder, zip file or git repository, inspected, pinned by hash, installed.

Nothing of a skill is run here. A package holds plain files only: no links, nothing outside of its folder, and no more
than fits the limits. What is installed is what was inspected: its hash is recorded, so a change on this machine or at
the source is noticed. All functions block.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

import msgspec

from openclaw.agent.skills import MAX_FILE_BYTES, SKILL_FILE, BadSkill, Skill, managed_dir, parse_skill
from openclaw.paths import make_private_dir
from openclaw.storage.files.disk import atomic_replace
from openclaw.text import redact_urls

MOST_FILES = 500
MOST_BYTES = 20_000_000
RECORDS = ".installed.json"
FETCH_TIMEOUT_S = 120
_PROGRAM_ENDINGS = (".sh", ".bash", ".py", ".js", ".mjs", ".ts", ".rb", ".pl", ".php", ".ps1", ".bat")
GIT = ("https://", "http://", "ssh://", "git@", "file://")
"""How the address of a repository begins."""
Kind: TypeAlias = Literal["folder", "zip", "git"]


class PackageError(Exception):
    """A skill cannot be fetched, inspected or installed. The text says why."""


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that was fetched and inspected, and is not installed yet."""

    skill: Skill
    folder: Path
    source: str
    kind: Kind
    revision: str
    """The commit of a repository. Empty for other sources."""
    files: Mapping[str, str]
    """The hash of each file, by its path."""
    programs: tuple[str, ...]
    """The files that a command could run."""

    @property
    def digest(self) -> str:
        return digest_of(self.files)


class Installed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The record of an installed skill."""

    source: str
    kind: Kind
    digest: str
    installed_at: int
    revision: str = ""
    files: dict[str, str] = {}


class Changes(msgspec.Struct, frozen=True):
    """How the files of two versions differ."""

    added: list[str]
    changed: list[str]
    removed: list[str]


# Fetching


@contextmanager
def fetched(source: str) -> Generator[Package]:
    """Fetch a skill into a temporary folder and inspect it. Raises ``PackageError``."""
    with tempfile.TemporaryDirectory(prefix="openclaw-skill-") as temporary:
        work = Path(temporary) / "skill"
        kind, revision = kind_of(source), ""
        match kind:
            case "git":
                revision = _clone(source, work)
            case "zip":
                _unzip(Path(source).expanduser(), work)
            case "folder":
                _copy(Path(source).expanduser(), work)
        yield inspect(_skill_folder(work), source, kind, revision)


def kind_of(source: str) -> Kind:
    if source.startswith(GIT):
        return "git"
    path = Path(source).expanduser()
    if path.is_dir():
        return "folder"
    if path.is_file() and zipfile.is_zipfile(path):
        return "zip"
    raise PackageError(
        f"{redact_urls(source)} is neither a folder, nor a zip file, nor the address of a git repository"
    )


def _clone(source: str, work: Path) -> str:
    """Clone a repository without its history and return its commit. ``#name`` behind the address is a branch or tag."""
    address, _, branch = source.partition("#")
    if branch.startswith("-"):
        raise PackageError(f"{branch} is not the name of a branch or tag")
    chosen = ["--branch", branch] if branch else []
    safe = ["-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "core.symlinks=false"]
    _git([*safe, "clone", "--quiet", "--depth", "1", "--no-recurse-submodules", *chosen, "--", address, str(work)])
    revision = _git(["-C", str(work), "rev-parse", "HEAD"]).strip()
    shutil.rmtree(work / ".git")
    return revision


def _git(arguments: list[str]) -> str:
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
    try:
        done = subprocess.run(
            ["git", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise PackageError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise PackageError(f"the repository was not fetched within {FETCH_TIMEOUT_S} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["git failed"]
        raise PackageError(redact_urls(lines[-1])[:300])
    return done.stdout


def _unzip(archive: Path, work: Path) -> None:
    work.mkdir()
    try:
        with zipfile.ZipFile(archive) as zipped:
            entries = [entry for entry in zipped.infolist() if not entry.is_dir()]
            _check_size(len(entries), sum(entry.file_size for entry in entries))
            for entry in entries:
                path = PurePosixPath(entry.filename)
                if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or "\0" in entry.filename:
                    raise PackageError(f"{archive} names a file outside of its folder: {entry.filename[:80]!r}")
                mode = entry.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                    raise PackageError(f"{archive} holds something that is not a file: {entry.filename[:80]!r}")
                target = work / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with zipped.open(entry) as packed:
                    data = packed.read(MOST_BYTES + 1)
                _check_size(1, len(data))
                target.write_bytes(data)
                target.chmod(0o700 if mode & 0o100 else 0o600)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise PackageError(f"{archive} cannot be read: {error}") from None


def _copy(folder: Path, work: Path) -> None:
    size = 0
    names = [*_files(folder)]
    for name in names:
        path = folder / name
        size += path.stat().st_size
        _check_size(len(names), size)
        target = work / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o700 if path.stat().st_mode & 0o100 else 0o600)


def _files(folder: Path) -> Iterator[str]:
    """The files below a folder, in sorted order, without those of a repository. Raises ``PackageError`` for a link."""
    count = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in (".git", "__pycache__", "node_modules"))
        for name in sorted([*files, *(one for one in folders if Path(place, one).is_symlink())]):
            path = Path(place, name)
            count += 1
            _check_size(count, 0)
            if path.is_symlink() or not path.is_file():
                raise PackageError(f"{path.relative_to(folder)} is not a plain file; a skill may not hold links")
            yield str(path.relative_to(folder))


def _check_size(files: int, size: int) -> None:
    if files > MOST_FILES or size > MOST_BYTES:
        raise PackageError(f"the skill is too large: at most {MOST_FILES} files with {MOST_BYTES // 1_000_000} MB")


def _skill_folder(work: Path) -> Path:
    """The folder with the SKILL.md: the top one, or the only one below it that has one."""
    if (work / SKILL_FILE).is_file():
        return work
    found = sorted(path.parent for path in work.glob(f"*/{SKILL_FILE}")) or sorted(
        path.parent for path in work.glob(f"*/*/{SKILL_FILE}")
    )
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found[:20])
        raise PackageError(f"it holds several skills ({names}); name the folder of one")
    raise PackageError(f"it has no {SKILL_FILE}")


# Inspecting


def inspect(folder: Path, source: str, kind: Kind, revision: str = "") -> Package:
    """Read a skill and hash its files. Raises ``PackageError``."""
    text = (folder / SKILL_FILE).read_bytes()
    if len(text) > MAX_FILE_BYTES:
        raise PackageError(f"{SKILL_FILE} is larger than {MAX_FILE_BYTES} bytes")
    try:
        skill = parse_skill(
            text.decode("utf-8", "replace"), path=str(folder / SKILL_FILE), folder=folder.name, source=source
        )
    except BadSkill as problem:
        raise PackageError(f"{SKILL_FILE}: {problem}") from None
    names = [*_files(folder)]
    return Package(
        skill=skill,
        folder=folder,
        source=source,
        kind=kind,
        revision=revision,
        files={name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names},
        programs=tuple(name for name in names if _is_program(folder / name)),
    )


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        beginning = file.read(4)
    executable = bool(path.stat().st_mode & 0o111)
    return executable or beginning.startswith((b"#!", b"\x7fELF")) or path.suffix.lower() in _PROGRAM_ENDINGS


def digest_of(files: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Changes:
    return Changes(
        [name for name in after if name not in before],
        [name for name in after if name in before and before[name] != after[name]],
        [name for name in before if name not in after],
    )


# Installing


def installed(state_dir: str) -> dict[str, Installed]:
    """The records of the skills that were added, by name. Raises ``PackageError`` if they cannot be read."""
    path = managed_dir(state_dir) / RECORDS
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Installed])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise PackageError(f"{path} is damaged ({error}); move it away, and add the skills again") from None


def is_edited(state_dir: str, name: str, record: Installed) -> bool:
    """Whether the files of an installed skill are others than those that were installed."""
    folder = managed_dir(state_dir) / name
    try:
        return inspect(folder, record.source, record.kind).digest != record.digest
    except (PackageError, OSError):
        return True


def install(package: Package, state_dir: str, now_ms: int) -> None:
    """Put the package in place of what is there, in one step, and record it."""
    home = Path(make_private_dir(str(managed_dir(state_dir))))
    name = package.skill.name
    prepared = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home))
    old = prepared / "old"
    try:
        shutil.copytree(package.folder, prepared / "new")
        records = installed(state_dir)
        if (home / name).exists():
            (home / name).rename(old)
        (prepared / "new").rename(home / name)
        records[name] = Installed(
            source=package.source,
            kind=package.kind,
            digest=package.digest,
            installed_at=now_ms,
            revision=package.revision,
            files=dict(package.files),
        )
        _persist(records, state_dir)
    finally:
        shutil.rmtree(prepared, ignore_errors=True)


def remove(name: str, state_dir: str) -> None:
    """Remove a skill that was added, and its record."""
    records = installed(state_dir)
    folder = managed_dir(state_dir) / name
    if folder.exists():
        gone = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        folder.rename(gone / "old")
        shutil.rmtree(gone, ignore_errors=True)
    records.pop(name, None)
    _persist(records, state_dir)


def _persist(records: Mapping[str, Installed], state_dir: str) -> None:
    atomic_replace(managed_dir(state_dir) / RECORDS, msgspec.json.format(msgspec.json.encode(records), indent=2))
