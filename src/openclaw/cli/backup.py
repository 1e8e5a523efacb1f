"""``openclaw backup``: make, list, check and restore backups of the state folder."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from openclaw import __version__, paths
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, Group, UserError, answer, report
from openclaw.cli.config import current_config
from openclaw.cli.gateway_target import running_gateway
from openclaw.cli.service import locked_state
from openclaw.cli.terminal import show_progress
from openclaw.config.agents import agent_ids
from openclaw.storage.files.backup import Backup, BackupError, BackupFolder, Progress
from openclaw.storage.files.restore import finish_restore
from openclaw.storage.files.restore import restore as restore_backup
from openclaw.storage.files.session_store import store_path
from openclaw.storage.inspection import storage_url

if TYPE_CHECKING:
    import argparse

    from openclaw.cli.answers import BackupFacts, BackupList, VerifiedBackup

PASSPHRASE = "OPENCLAW_BACKUP_PASSPHRASE"
T = TypeVar("T")


def _told(work: Callable[[argparse.Namespace], T]) -> Callable[[argparse.Namespace], T]:
    """Return ``work`` with its errors as messages for people, without a traceback."""

    def run(args: argparse.Namespace) -> T:
        try:
            return work(args)
        except (BackupError, OSError) as error:
            raise UserError(str(error)) from None

    return run


def create(args: argparse.Namespace) -> int:
    state = paths.state_dir()
    if not os.path.isdir(state):
        raise UserError(f"There is nothing to back up: {state} does not exist.")
    folder = _folder(args, create=True)
    if args.encrypt and not folder.encrypted:
        raise UserError(f"{folder.folder} holds backups that are not encrypted; choose another folder with --to.")
    finish_restore(Path(state))
    backup, added = folder.create(Path(state), __version__, _progress("Storing"))
    skipped = [*backup.skipped, *_stores_elsewhere(state)]
    found = {**_facts(backup), "folder": str(folder.folder), "addedBytes": added, "skipped": skipped}
    lines = [
        f"Backup {backup.id}: {len(backup.files)} files, {_size(backup.size)}; {_size(added)} were new.",
        f"It is in {folder.folder}{' and encrypted' if folder.encrypted else ' and holds your keys: keep it private'}.",
        *(f"Not stored: {line}" for line in skipped),
    ]
    if storage_url(current_config(), os.environ) is not None:
        lines.append("The sessions are in PostgreSQL and not part of it: back the database up with pg_dump.")
    answer(args, found, "\n".join(lines))
    return EXIT_FAILURE if skipped else 0


def _stores_elsewhere(state: str) -> list[str]:
    """Name the session stores that ``session.store`` puts outside of the state folder."""
    config = current_config()
    if storage_url(config, os.environ) is not None:
        return []
    stores = {store_path(state, agent, config.session.store) for agent in agent_ids(config)}
    outside = sorted(str(store) for store in stores if not store.is_relative_to(state) and store.exists())
    return [f"{store}: `session.store` puts it outside of the state folder, so copy it yourself" for store in outside]


def _list(args: argparse.Namespace) -> BackupList:
    place = _place(args)
    if not os.path.exists(place):
        return {"folder": place, "encrypted": False, "backups": []}
    folder = _folder(args)
    backups = [_facts(one) for one in folder.list()]
    return {"folder": str(folder.folder), "encrypted": folder.encrypted, "backups": backups}


def _show_list(found: BackupList, args: argparse.Namespace) -> Iterator[str]:
    for one in found["backups"]:
        yield f"{one['id']}  {one['createdAt']}  {one['files']} files, {_size(one['bytes'])}"
    if not os.path.exists(found["folder"]):
        yield f"There are no backups in {found['folder']}. `openclaw backup create` makes one."
    elif not found["backups"]:
        yield "No backup exists yet."


def _verify(args: argparse.Namespace) -> VerifiedBackup:
    folder = _folder(args)
    backup = _chosen(folder, args.id)
    problems = folder.verify(backup, _progress("Checking"))
    return {**_facts(backup), "ok": not problems, "problems": problems}


def _show_verified(found: VerifiedBackup, args: argparse.Namespace) -> Iterator[str]:
    if found["ok"]:
        yield f"Backup {found['id']}: {found['files']} files, all as they were stored."
    else:
        yield f"Backup {found['id']} is damaged or not complete:"
        yield from (f"  {problem}" for problem in found["problems"])


def restore(args: argparse.Namespace) -> int:
    folder, state = _folder(args), paths.state_dir()
    backup = _chosen(folder, args.id)
    if running_gateway() is not None:
        raise UserError("A Gateway is running on this state folder. Stop it first: openclaw gateway stop")
    finish_restore(Path(state))
    occupied = os.path.isdir(state) and bool(os.listdir(state))
    if occupied and not args.force:
        raise UserError(f"{state} is not empty. --force moves it aside and restores {backup.id} in its place.")
    with locked_state() if occupied else contextlib.nullcontext():
        aside, settled = restore_backup(folder, backup, Path(state), _progress("Restoring"))
    found = {**_facts(backup), "state": state, "movedAside": str(aside) if aside else None}
    found |= {"openMessages": settled.messages, "openReplies": settled.parts, "openJobs": settled.jobs}
    found |= {"skipped": backup.skipped}
    lines = [f"Restored {len(backup.files)} files of {backup.created_at} to {state}."]
    if aside:
        lines.append(f"The older state is in {aside}.")
    if any(settled):
        lines.append(
            f"Under way at that time, and not resumed: {settled.messages} messages, {settled.parts} parts of replies, "
            f"{settled.jobs} jobs."
        )
    lines += [f"Not in the backup: {line}" for line in backup.skipped]
    return answer(args, found, "\n".join(lines))


def _place(args: argparse.Namespace) -> str:
    place = os.path.expanduser(args.to) if args.to else f"{paths.state_dir()}-backups"
    if "\0" in place:
        raise UserError("A path cannot hold a zero byte.")
    return place


def _folder(args: argparse.Namespace, *, create: bool = False) -> BackupFolder:
    place = _place(args)
    if os.path.realpath(place).startswith(os.path.realpath(paths.state_dir()) + os.sep):
        raise UserError("Backups cannot be inside of the folder that they back up; choose another with --to.")
    passphrase = os.environ.get(PASSPHRASE, "")
    if create and args.encrypt and not passphrase:
        passphrase = _new_passphrase()
    return BackupFolder(Path(place), passphrase, create=create)


def _new_passphrase() -> str:
    if not sys.stdin.isatty():
        raise UserError(f"Give a passphrase in {PASSPHRASE}, or run this in a terminal.")
    import getpass

    first = getpass.getpass("Passphrase (without it the backup cannot be read): ")
    if not first or first != getpass.getpass("Once more: "):
        raise UserError("The two are not the same, so nothing was stored.")
    return first


def _chosen(folder: BackupFolder, name: str | None) -> Backup:
    if name:
        return folder.read(os.path.basename(name))
    backups = folder.list()
    if not backups:
        raise UserError(f"There is no backup in {folder.folder} yet.")
    return backups[-1]


def _progress(label: str) -> Progress:
    shown = sys.stderr.isatty()

    def tell(done: int, total: int, name: str) -> None:
        if shown:
            show_progress(f"{label} {done} of {total}: {name[-60:]}" if done < total else "")

    return tell


def _facts(backup: Backup) -> BackupFacts:
    return {
        "id": backup.id,
        "createdAt": backup.created_at,
        "version": backup.version,
        "files": len(backup.files),
        "bytes": backup.size,
    }


def _size(number: int) -> str:
    return f"{number / 1_000_000:.1f} MB" if number >= 100_000 else f"{number / 1000:.1f} KB"


_TO = Flag("--to DIR", "the folder of the backups (default: beside the state folder, with -backups behind its name)")
_ID = Flag("id", "which one (default: the newest)", nargs="?")
_ACTIONS = {
    "create": Action(
        "Store everything that is new since the last backup; the Gateway may run meanwhile",
        _told(create),
        (_TO, Flag("--encrypt", f"with a passphrase, asked for or in {PASSPHRASE}"), JSON),
        about=(
            "The Gateway may run meanwhile. What an earlier backup in that folder holds is not stored again. A "
            "backup holds your keys and conversations: keep it private, or say --encrypt. Logs and fetched models "
            "are left out. The exit code is 1 if something could not be stored."
        ),
        example="openclaw backup create --to /mnt/disk/openclaw",
    ),
    "list": report("List the backups", _told(_list), (_TO, JSON), show=_show_list, example="openclaw backup list"),
    "verify": report(
        "Read a backup, compare it with what was stored, and look for sessions without a transcript",
        _told(_verify),
        (_ID, _TO, JSON),
        show=_show_verified,
        failed=lambda found, args: not found["ok"],
        example="openclaw backup verify",
    ),
    "restore": Action(
        "Make the state folder what it was",
        _told(restore),
        (_ID, _TO, Flag("--force", "move what is there aside first"), JSON),
        about=(
            "Everything is written and compared next to the state folder before it takes its place in one step, so "
            "a damaged backup or a crash changes nothing. The Gateway must be stopped. Messages, replies and jobs "
            "that were under way in the backup are not resumed."
        ),
        example="openclaw backup restore --to /mnt/disk/openclaw",
    ),
}
COMMANDS = {"backup": Group(_ACTIONS)}
