"""``openclaw migrate`` moves a whole state folder of another OpenClaw in; ``openclaw export`` is the way back."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, UserError, yes
from openclaw.cli.terminal import note, print_json, show_progress
from openclaw.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from openclaw.migration.continuity import Difference
    from openclaw.migration.move_in import Moved

_VERBS = {
    "moved": "moved",
    "present": "here already",
    "kept": "ours differs and stays",
    "left": "not moved",
    "failed": "FAILED",
}


def migrate(args: argparse.Namespace) -> int:
    """Show what would be done, ask, do it, and compare what came of it."""
    from openclaw.cli import service
    from openclaw.cli.gateway_target import running_gateway
    from openclaw.storage.files.newer_state import Unreadable

    if running_gateway() is not None and not args.dry_run:
        raise UserError("A Gateway is running on this state folder. Stop it first: openclaw gateway stop")
    folder = os.path.abspath(os.path.expanduser(args.from_))
    if os.path.realpath(folder) == os.path.realpath(paths.state_dir()):
        raise UserError(
            f"{folder} is the state folder in use. Name another one for the result: "
            f"OPENCLAW_STATE_DIR={folder}-moved openclaw migrate --from {folder}"
        )
    try:
        if args.dry_run:
            return _finish(args, folder, _run(folder, credentials=True, dry_run=True), [], done=False)
        if not args.yes:
            if args.json or not sys.stdin.isatty():
                moved = _run(folder, credentials=True, dry_run=True)
                return _finish(args, folder, moved, [], done=False)
            _print(_run(folder, credentials=True, dry_run=True))
            note("Stop the other OpenClaw first: two Gateways must not answer on the same chat accounts.")
            if not yes(f"Move this to {paths.state_dir()}? {folder} is only read.", usual=True):
                return 0
            if not args.credentials:
                args.credentials = yes("Also copy keys, tokens and passwords?", usual=False)
        paths.make_private_dir(paths.state_dir())
        with service.locked_state():
            moved = _run(folder, credentials=args.credentials, dry_run=False)
            return _finish(args, folder, moved, _compare(folder), done=True)
    except Unreadable as problem:
        raise UserError(f"Not moved: {problem}") from None


def _run(folder: str, *, credentials: bool, dry_run: bool) -> list[Moved]:
    import asyncio
    import tempfile
    from pathlib import Path

    from openclaw.clock import SystemClock
    from openclaw.config.agents import agent_ids
    from openclaw.migration.move_in import Source, Target, migrate
    from openclaw.storage.files.session_store import FileSessionStore
    from openclaw.storage.inspection import storage_url

    source = Source(Path(folder), os.environ)
    state, config_path = Path(paths.state_dir()), Path(paths.config_path())
    target = Target(state, config_path, os.environ, dry_run=dry_run)
    if storage_url(target.config(), os.environ):
        raise UserError("The sessions are kept in a database, and folders are moved into files only.")

    async def move(home: str) -> list[Moved]:
        agents = list(dict.fromkeys([*agent_ids(target.config()), *source.agents()]))
        template = target.config().session.store
        store = await FileSessionStore.open(home, clock=SystemClock(), store_template=template, agent_ids=agents)
        try:
            results: list[Moved] = []
            async for moved in migrate(source, target, store, credentials=credentials):
                results.append(moved)
                if sys.stderr.isatty():
                    show_progress(f"{len(results)}: {moved.kind} {moved.name}")
            return results
        finally:
            await store.close()
            if sys.stderr.isatty():
                show_progress("")

    if not dry_run or state.is_dir():
        return asyncio.run(move(str(state)))
    with tempfile.TemporaryDirectory() as empty:  # A dry run makes no folder.
        return asyncio.run(move(empty))


def _compare(folder: str) -> list[Difference]:
    import asyncio
    from pathlib import Path

    from openclaw.clock import SystemClock
    from openclaw.migration.continuity import check_continuity

    async def compare() -> list[Difference]:
        checks = check_continuity(Path(folder), Path(paths.state_dir()), SystemClock())
        return [difference async for difference in checks if difference is not None]

    return asyncio.run(compare())


def _finish(
    args: argparse.Namespace, folder: str, moved: Sequence[Moved], differences: Sequence[Difference], *, done: bool
) -> int:
    import msgspec

    ok = not differences and not any(one.outcome == "failed" for one in moved)
    if args.json:
        print_json(
            {
                "ok": ok,
                "from": folder,
                "to": paths.state_dir(),
                "dryRun": not done,
                "moved": msgspec.to_builtins(list(moved)),
                "differences": msgspec.to_builtins(list(differences)),
            }
        )
        return 0 if ok else EXIT_FAILURE
    _print(moved)
    for difference in differences:
        sys.stdout.write(f"differs   {difference.key}: {difference.detail}\n")
    if not done:
        note(f"Nothing was moved. To do it: openclaw migrate --from {folder} --yes (with --credentials also keys)")
    elif differences:
        many = counted(len(differences), "session", "sessions")
        note(f"{many} would not continue as there; the others would send the same messages in the same order.")
    else:
        sessions = sum(one.kind == "session" for one in moved)
        note(f"Continuity: all {sessions} sessions would send the same messages in the same order as there.")
        note("Next: openclaw doctor, then openclaw gateway start")
    return 0 if ok else EXIT_FAILURE


def _print(moved: Sequence[Moved]) -> None:
    for one in moved:
        facts = [one.name]
        if one.count:
            facts.append(
                f"{one.count} {'events' if one.kind == 'session' else 'files' if one.kind == 'workspace' else ''}"
            )
        facts += [one.sha256[:12]] if one.sha256 else []
        facts += [one.detail] if one.detail else []
        sys.stdout.write(f"{one.kind:<13} {_VERBS[one.outcome]:<12} {'  '.join(fact.strip() for fact in facts)}\n")
    totals = {outcome: sum(one.outcome == outcome for one in moved) for outcome in _VERBS}
    shown = ", ".join(f"{count} {_VERBS[outcome]}" for outcome, count in totals.items() if count)
    sys.stdout.write(f"{shown}.\n")


def export(args: argparse.Namespace) -> int:
    """Write a folder that OpenClaw 2026.9 opens."""
    import asyncio
    from pathlib import Path

    from openclaw.cli import service
    from openclaw.cli.gateway_target import running_gateway
    from openclaw.clock import SystemClock
    from openclaw.config.agents import agent_ids
    from openclaw.config.load import read_config
    from openclaw.migration.export import export_for_2026_9
    from openclaw.storage.files.newer_state import Unreadable
    from openclaw.storage.files.session_store import FileSessionStore
    from openclaw.storage.inspection import storage_url

    folder, state = Path(os.path.abspath(os.path.expanduser(args.to))), Path(paths.state_dir())
    if running_gateway() is not None:
        raise UserError("A Gateway is running on this state folder. Stop it first: openclaw gateway stop")
    if folder.is_relative_to(state) or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UserError(f"{folder} is not an empty folder outside {state}. Name another one with --to.")
    snapshot = read_config(paths.config_path(), os.environ)
    config = snapshot.config
    if storage_url(config, os.environ):
        raise UserError("The sessions are kept in a database. First: openclaw storage migrate --to files")

    async def write() -> list[Moved]:
        store = await FileSessionStore.open(
            str(state), clock=SystemClock(), store_template=config.session.store, agent_ids=agent_ids(config)
        )
        try:
            source = export_for_2026_9(state, snapshot, store, folder, credentials=args.credentials)
            return [moved async for moved in source]
        finally:
            await store.close()

    with service.locked_state():
        try:
            moved = asyncio.run(write())
        except Unreadable as problem:
            raise UserError(f"Not exported: {problem}") from None
    if args.json:
        import msgspec

        print_json({"ok": True, "to": str(folder), "moved": msgspec.to_builtins(moved)})
        return 0
    _print(moved)
    note(f"Next, with OpenClaw 2026.9: OPENCLAW_STATE_DIR={folder} openclaw doctor --fix")
    return 0


COMMANDS = {
    "migrate": Action(
        "Move a whole state folder in, of another OpenClaw or of ours",
        migrate,
        (
            Flag(
                "--from FOLDER",
                "the other state folder, such as ~/.openclaw; it is only read",
                required=True,
                dest="from_",
            ),
            Flag("--dry-run", "only say what would be moved"),
            Flag("--yes", "do it without a question"),
            Flag("--credentials", "also move keys, tokens and passwords, of the devices too"),
            JSON,
        ),
        example="openclaw migrate --from ~/.openclaw --dry-run",
        about=(
            "It moves the configuration, workspaces, sessions with their branches and compactions, scheduled jobs, "
            "people you let in, devices and exec rules. What is here already stays as it is, so you can repeat it, "
            "also after an interruption. At the end it compares, for each session, what the model would be sent "
            "with what it would have been sent there. 1 means that something failed or differs."
        ),
    ),
    "export": Action(
        "Write a folder that OpenClaw 2026.9 opens",
        export,
        (
            Flag("--for VERSION", "the version that opens the folder", required=True, choices=("2026.9",)),
            Flag("--to FOLDER", "an empty folder", required=True),
            Flag("--credentials", "also write keys, tokens and passwords, of the devices too"),
            JSON,
        ),
        example="openclaw export --for 2026.9 --to ~/openclaw-back",
        about=(
            "It writes the configuration in the keys that both versions know, workspaces, sessions, scheduled jobs and "
            "people you let in, and names what it leaves out. Then `openclaw doctor --fix` of 2026.9 imports them."
        ),
    ),
}
