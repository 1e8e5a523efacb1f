"""Putting a backup in the place of the state folder: a kill at any point leaves the old state or the new one.

The new state is written, compared, settled and made durable in a folder of its own. Then it changes places with the old
one in one step. Where the state folder cannot be replaced, because it is a mount point or the file system has no such
step, its content is exchanged entry by entry, after a plan of all that is written. ``finish_restore`` completes or
removes what a killed restore left. Everything here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from openclaw.clock import SystemClock
from openclaw.messages import Route
from openclaw.storage import faults
from openclaw.storage.disk_errors import StorageError
from openclaw.storage.files.backup import Backup, BackupError, BackupFolder, Progress
from openclaw.storage.files.disk import atomic_replace, sync_dir
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.state_files import BEFORE_RESTORE, RESTORING
from openclaw.storage.message_ledger import Accept, HeldMessage, MessageBody, Reason, ReasonCode

NEW, OLD, NOTE, LOCK = "new", "old", "note.json", "lock"
STAYS = frozenset({RESTORING, "gateway.lock"})
"""Entries of the state folder that an exchange entry by entry leaves where they are."""
_RESTORED = uuid.UUID("5f1d6f0a-1f0d-4c86-9a53-9ed1f5b1f7f2")
_CANNOT_EXCHANGE = {
    *(errno.EBUSY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
}
"""Errors of a file system or of a mount point that another way may not meet."""
_AT_FDCWD, _RENAME_EXCHANGE, _RENAME_SWAP = -100, 2, 2
_MOST = 1_000_000


class Settled(NamedTuple):
    """Messages that were under way when the backup was made, and were ended."""

    messages: int = 0
    parts: int = 0
    jobs: int = 0


class Restored(NamedTuple):
    aside: Path | None
    """Where the older state is. None if there was none."""
    settled: Settled


def restore(folder: BackupFolder, backup: Backup, state: Path, progress: Progress = lambda *_: None) -> Restored:
    """Make ``state`` what it was. An older state is moved aside.

    Messages and replies that were under way in the backup are ended first, because the Gateway that continued may have
    answered and delivered them. The caller sees to it that no Gateway runs. Raises ``BackupError``.
    """
    state = state.resolve()
    finish_restore(state)
    state.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _restore_beside(folder, backup, state, progress)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE or not state.is_dir():
            raise
    return _restore_inside(folder, backup, state, progress)


def finish_restore(state: Path) -> Path | None:
    """Complete or remove what killed restores left. Return where the older state is, if it was moved aside now.

    Raises ``BackupError`` if a restore is under way.
    """
    state = state.resolve()
    aside: Path | None = None
    for work in _works_beside(state):
        with _locked(work):
            aside = _finish_beside(work, state) or aside
    if _is_work(inside := state / RESTORING):
        with _locked(inside):
            aside = _finish_inside(inside, state) or aside
    return aside


def _prepare(folder: BackupFolder, backup: Backup, work: Path, progress: Progress) -> Settled:
    """Write the new state to ``work/new``. It is complete, settled and durable when this returns."""
    new = work / NEW
    new.mkdir(mode=0o700)
    settled = Settled()
    folder.extract(backup, new, progress)
    faults.point("restore.extracted")
    if (new / "ledger.db").exists():
        try:
            settled = asyncio.run(settle(str(new)))
        except StorageError as error:
            raise BackupError(f"The ledger of the backup cannot be used: {error}. Nothing was changed.") from None
        sync_dir(new)
    sync_dir(work)
    faults.point("restore.prepared")
    return settled


# In one step, from a folder next to the state folder


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """Which folder is the new state, so that it is known later whether the two have changed places."""

    device: int
    inode: int


def _restore_beside(folder: BackupFolder, backup: Backup, state: Path, progress: Progress) -> Restored:
    work = Path(tempfile.mkdtemp(prefix=_prefix(state), dir=state.parent))
    with _locked(work):
        try:
            settled = _prepare(folder, backup, work, progress)
            status = (work / NEW).stat()
            atomic_replace(work / NOTE, msgspec.json.encode(_Note(device=status.st_dev, inode=status.st_ino)))
            faults.point("restore.noted")
            if state.exists() and any(state.iterdir()):
                exchange(work / NEW, state)
            else:
                (work / NEW).rename(state)  # This also replaces an empty folder.
        except OSError as error:
            shutil.rmtree(work, ignore_errors=True)
            if error.errno == errno.ENOTEMPTY:
                raise BackupError(f"Another program wrote to {state} meanwhile. Nothing was changed.") from None
            raise
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)  # It may hold keys.
            raise
        faults.point("restore.exchanged")
        sync_dir(state.parent)
        return Restored(_finish_beside(work, state), settled)


def _finish_beside(work: Path, state: Path) -> Path | None:
    """Move the older state out of ``work``, or remove a new one that was not put in place."""
    aside: Path | None = None
    try:
        note = msgspec.json.decode((work / NOTE).read_bytes(), type=_Note)
        status = (work / NEW).stat()
        if (status.st_dev, status.st_ino) != (note.device, note.inode):
            aside = _free_name(state.with_name(f"{state.name}.{BEFORE_RESTORE}{_stamp()}"))
            (work / NEW).rename(aside)
            sync_dir(state.parent)
            faults.point("restore.aside")
    except (FileNotFoundError, msgspec.MsgspecError):
        pass  # It was killed before the exchange, or there was no older state.
    shutil.rmtree(work, ignore_errors=True)
    sync_dir(state.parent)
    return aside


def _prefix(state: Path) -> str:
    return f".{state.name}-restore-"


def _works_beside(state: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(
            path for path in state.parent.iterdir() if path.name.startswith(_prefix(state)) and _is_work(path)
        )
    return []


def _is_work(folder: Path) -> bool:
    """Whether a restore made the folder. A person's folder may have the same name and is never removed."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    return all(path.name in (NEW, OLD, LOCK) or path.name.startswith(NOTE) for path in folder.iterdir())


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places in one step. Raises ``OSError``."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        call, arguments = "renamex_np", (first, second, ctypes.c_uint(_RENAME_SWAP))
    else:
        call = "renameat2"
        arguments = (_AT_FDCWD, first, _AT_FDCWD, second, ctypes.c_uint(_RENAME_EXCHANGE))
    try:
        function = getattr(library, call)
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


# Entry by entry, inside the state folder


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of the state folder that leave it and those that come. Once it is written, it is carried out."""

    aside: str
    old: list[str]
    new: list[str]


def _restore_inside(folder: BackupFolder, backup: Backup, state: Path, progress: Progress) -> Restored:
    work = state / RESTORING
    work.mkdir(mode=0o700)
    with _locked(work):
        try:
            settled = _prepare(folder, backup, work, progress)
            plan = _Plan(
                aside=_free_name(state / f"{BEFORE_RESTORE}{_stamp()}").name,
                old=sorted(path.name for path in state.iterdir() if not _stays(path.name)),
                new=sorted(path.name for path in (work / NEW).iterdir()),
            )
            (work / OLD).mkdir(mode=0o700)
            atomic_replace(work / NOTE, msgspec.json.encode(plan))
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        faults.point("restore.planned")
        return Restored(_finish_inside(work, state), settled)


def _finish_inside(work: Path, state: Path) -> Path | None:
    """Carry a plan out from wherever it was left. Without a plan nothing was changed, and the new state is removed."""
    try:
        plan = msgspec.json.decode((work / NOTE).read_bytes(), type=_Plan)
    except (FileNotFoundError, msgspec.MsgspecError):
        shutil.rmtree(work, ignore_errors=True)
        return None
    aside = state / plan.aside
    if (old := work / OLD).is_dir():
        come = [name for name in plan.new if os.path.lexists(work / NEW / name)]
        # Once the first new entry has come, all old ones have left. Then others of their names came from elsewhere.
        _move(plan.old if come == plan.new else come, state, old)
        faults.point("restore.emptied")
        _move(come, work / NEW, state)
        if any(old.iterdir()):
            old.rename(aside)
        sync_dir(state)
        faults.point("restore.filled")
    # The note goes last: without it, a kill would leave nobody who knows what is in the folder.
    for name in (NEW, OLD):
        shutil.rmtree(work / name, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
    sync_dir(state)
    return aside if aside.is_dir() else None


def _move(names: list[str], source: Path, target: Path) -> None:
    for name in names:
        if os.path.lexists(source / name):
            (source / name).rename(_free_name(target / name))
            faults.point("restore.moved")
    sync_dir(target)
    sync_dir(source)


def _stays(name: str) -> bool:
    return name in STAYS or name.startswith(BEFORE_RESTORE)


def _stamp() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _free_name(path: Path) -> Path:
    names: Iterator[Path] = (path if not n else path.with_name(f"{path.name}-{n}") for n in range(_MOST))
    return next(name for name in names if not os.path.lexists(name))


@contextlib.contextmanager
def _locked(work: Path) -> Generator[None]:
    """Lock the folder of a restore. Raises ``BackupError`` if another process has locked it."""
    descriptor = os.open(work / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"A restore is under way ({work}). Try again when it is done.") from None
        yield
    finally:
        os.close(descriptor)


# What was under way


class _HeldText(msgspec.Struct):
    text: str = ""


async def settle(state: str) -> Settled:
    """End the messages, replies and jobs that were under way when the backup was made, and count them.

    The Gateway that continued may have completed them. ``openclaw outbox retry`` sends a reply again.
    """
    clock = SystemClock()
    ledger = await FileLedger.open(state, clock=clock)
    try:
        held = await ledger.held()
        for message in held:
            # It gets an end like the others, and its key is known when the channel delivers it again.
            await ledger.accept(_accept_held(message))
        rows = await ledger.unfinished()
        for row in rows:
            await ledger.finish(row.id, "expired", reason=Reason(ReasonCode.RESTORED))
        if held:
            await ledger.release_held([message.key for message in held])
        parts = await ledger.outbox_parts(("pending", "sending"), limit=_MOST)
        for part in parts:
            await ledger.outbox_mark(part.id, "dead", error="it was not sent when the backup was made", doubts=1)
        jobs = await ledger.jobs(ended=False, limit=_MOST)
        for job in jobs:
            job.ended_at = clock.now_ms()
            job.state["problem"] = "it was under way when the backup was made that was restored"
            await ledger.job_put(job)
        for question in await ledger.questions(is_open=True, limit=_MOST):
            now = clock.now_ms()
            await ledger.question_end(msgspec.structs.replace(question, state="withdrawn", ended_at=now))
        return Settled(len(rows), len(parts), len(jobs))
    finally:
        await ledger.close()


def _accept_held(held: HeldMessage) -> Accept:
    channel, account, to, *_ = (*held.key.split("|"), "", "", "")
    try:
        text = msgspec.json.decode(held.message, type=_HeldText).text
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        text = ""
    return Accept(
        run_id=str(uuid.uuid5(_RESTORED, held.key)),
        dedupe_key="",
        agent_id="main",
        session_key="agent:main:main",
        session_id="",
        source=channel,
        route=Route(channel=channel, to=to, account_id=account),
        body=MessageBody(prompt=text or None, message_ids=[held.key.rpartition("|")[2]]),
        dedupe_keys=(held.key,),
    )
