"""``openclaw backup``: make, list, check and restore backups of the state folder."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, Group, UserError, answer
from openclaw.cli.terminal import show_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.storage.files.backup import Backup, BackupFolder, Progress

PASSPHRASE = "OPENCLAW_BACKUP_PASSPHRASE"


def create(args: argparse.Namespace) -> int:
    from openclaw import __version__

    state = paths.state_dir()
    if not os.path.isdir(state):
        raise UserError(f"There is nothing to back up: {state} does not exist.")
    folder = _folder(args, create=True)
    if args.encrypt and not folder.encrypted:
        raise UserError(f"{folder.folder} holds backups that are not encrypted; choose another folder with --to.")
    backup, added = folder.create(_path(state), __version__, _progress("Storing"))
    report = {**_facts(backup), "folder": str(folder.folder), "addedBytes": added, "skipped": backup.skipped}
    lines = [
        f"Backup {backup.id}: {len(backup.files)} files, {_size(backup.size)}; {_size(added)} were new.",
        f"It is in {folder.folder}{' and encrypted' if folder.encrypted else ' and holds your keys: keep it private'}.",
        *(f"Not stored: {line}" for line in backup.skipped),
    ]
    if _in_database():
        lines.append("The sessions are in PostgreSQL and not part of it: back the database up with pg_dump.")
    answer(args, report, "\n".join(lines))
    return EXIT_FAILURE if backup.skipped else 0


def _in_database() -> bool:
    from openclaw.config.load import read_config
    from openclaw.storage.inspection import storage_url

    return storage_url(read_config(paths.config_path(), os.environ).config, os.environ) is not None


def list_(args: argparse.Namespace) -> int:
    place = _place(args)
    if not os.path.exists(place):
        report = {"folder": place, "encrypted": False, "backups": []}
        return answer(args, report, f"There are no backups in {place}. `openclaw backup create` makes one.")
    folder = _folder(args)
    backups = _read(folder)
    lines = [f"{one.id}  {one.created_at}  {len(one.files)} files, {_size(one.size)}" for one in backups]
    report = {"folder": str(folder.folder), "encrypted": folder.encrypted, "backups": [_facts(one) for one in backups]}
    return answer(args, report, "\n".join(lines or ["There is no backup yet."]))


def verify(args: argparse.Namespace) -> int:
    folder = _folder(args)
    backup = _chosen(folder, args.id)
    problems = folder.verify(backup, _progress("Checking"))
    lines = [f"Backup {backup.id}: {len(backup.files)} files, all as they were stored."]
    if problems:
        lines = [f"Backup {backup.id} is damaged:", *(f"  {problem}" for problem in problems)]
    answer(args, {**_facts(backup), "ok": not problems, "problems": problems}, "\n".join(lines))
    return EXIT_FAILURE if problems else 0


def restore(args: argparse.Namespace) -> int:
    import asyncio

    from openclaw.cli.target import running_gateway
    from openclaw.storage.files.backup import BackupError, settle_restored

    folder, state = _folder(args), paths.state_dir()
    backup = _chosen(folder, args.id)
    if running_gateway() is not None:
        raise UserError("A Gateway is running on this state folder. Stop it first: openclaw gateway stop")
    occupied = os.path.isdir(state) and bool(os.listdir(state))
    if occupied and not args.force:
        raise UserError(f"{state} is not empty. --force moves it aside and restores {backup.id} in its place.")
    try:
        aside = folder.restore(backup, _path(state), _progress("Restoring"))
    except BackupError as error:
        raise UserError(str(error)) from None
    messages, parts = (0, 0)
    if os.path.exists(os.path.join(state, "ledger.db")):
        messages, parts = asyncio.run(settle_restored(state))
    report = {**_facts(backup), "state": state, "movedAside": str(aside) if aside else None}
    report |= {"openMessages": messages, "openReplies": parts}
    lines = [f"Restored {len(backup.files)} files of {backup.created_at} to {state}."]
    if aside:
        lines.append(f"What was there is in {aside}.")
    if messages or parts:
        lines.append(f"Under way at that time, and not taken up: {messages} messages, {parts} parts of replies.")
    return answer(args, report, "\n".join(lines))


def _place(args: argparse.Namespace) -> str:
    place = os.path.expanduser(args.to) if args.to else f"{paths.state_dir()}-backups"
    if "\0" in place:
        raise UserError("A path cannot hold a zero byte.")
    return place


def _folder(args: argparse.Namespace, *, create: bool = False) -> BackupFolder:
    from openclaw.storage.files.backup import BackupError, BackupFolder

    place = _place(args)
    if os.path.realpath(place).startswith(os.path.realpath(paths.state_dir()) + os.sep):
        raise UserError("Backups cannot be inside of the folder that they back up; choose another with --to.")
    passphrase = os.environ.get(PASSPHRASE, "")
    if create and args.encrypt and not passphrase:
        passphrase = _new_passphrase()
    try:
        return BackupFolder(_path(place), passphrase, create=create)
    except BackupError as error:
        raise UserError(str(error)) from None


def _new_passphrase() -> str:
    if not sys.stdin.isatty():
        raise UserError(f"Give a passphrase in {PASSPHRASE}, or run this in a terminal.")
    import getpass

    first = getpass.getpass("Passphrase (without it the backup cannot be read): ")
    if not first or first != getpass.getpass("Once more: "):
        raise UserError("The two are not the same, so nothing was stored.")
    return first


def _chosen(folder: BackupFolder, name: str | None) -> Backup:
    from openclaw.storage.files.backup import BackupError

    if name:
        try:
            return folder.read(os.path.basename(name))
        except BackupError as error:
            raise UserError(str(error)) from None
    backups = _read(folder)
    if not backups:
        raise UserError(f"There is no backup in {folder.folder} yet.")
    return backups[-1]


def _read(folder: BackupFolder) -> list[Backup]:
    from openclaw.storage.files.backup import BackupError

    try:
        return folder.list()
    except BackupError as error:
        raise UserError(str(error)) from None


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text)


def _progress(label: str) -> Progress:
    shown = sys.stderr.isatty()

    def tell(done: int, total: int, name: str) -> None:
        if shown:
            show_progress(f"{label} {done} of {total}: {name[-60:]}" if done < total else "")

    return tell


def _facts(backup: Backup) -> dict[str, Any]:
    facts = {"id": backup.id, "createdAt": backup.created_at, "version": backup.version}
    return {**facts, "files": len(backup.files), "bytes": backup.size}


def _size(number: int) -> str:
    return f"{number / 1_000_000:.1f} MB" if number >= 100_000 else f"{number / 1000:.1f} KB"


_TO = Flag("--to DIR", "the folder of the backups (default: beside the state folder, with -backups behind its name)")
_ID = Flag("id", "which one (default: the newest)", nargs="?")
_ACTIONS = {
    "create": Action(
        "Store everything that is new since the last backup; the Gateway may run meanwhile",
        create,
        (_TO, Flag("--encrypt", f"with a passphrase, asked for or in {PASSPHRASE}"), JSON),
        about=(
            "The Gateway may run meanwhile. What an earlier backup in that folder holds is not stored again. A "
            "backup holds your keys and conversations: keep it private, or say --encrypt. Logs and fetched models "
            "are left out."
        ),
        example="openclaw backup create --to /mnt/disk/openclaw",
    ),
    "list": Action("List the backups", list_, (_TO, JSON), example="openclaw backup list"),
    "verify": Action(
        "Read a backup and compare it with what was stored", verify, (_ID, _TO, JSON), example="openclaw backup verify"
    ),
    "restore": Action(
        "Make the state folder what it was",
        restore,
        (_ID, _TO, Flag("--force", "move what is there aside first"), JSON),
        about=(
            "Everything is written and compared beside the state folder before it takes its place, so a damaged "
            "backup changes nothing. The Gateway must be stopped. Messages and replies that were under way in the "
            "backup are not sent again."
        ),
        example="openclaw backup restore --to /mnt/disk/openclaw",
    ),
}
COMMANDS = {"backup": Group(_ACTIONS)}
