"""``openclaw storage``: copy everything from files to PostgreSQL, or back."""

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

    from openclaw.storage.postgres.move import Copied

MOST_CONFLICTS = 20


def migrate(args: argparse.Namespace) -> int:
    import asyncio

    import msgspec

    from openclaw.cli import service
    from openclaw.cli.target import running_gateway
    from openclaw.storage.base import StorageRefused
    from openclaw.storage.disk_errors import in_words

    if running_gateway() is not None:
        raise UserError("A Gateway is running on this state folder. Stop it first: openclaw gateway stop")
    paths.make_private_dir(paths.state_dir())
    with service.locked_state():
        try:
            done, place = asyncio.run(_copy(args))
        except StorageRefused as refused:
            raise UserError(str(refused)) from None
        except OSError as error:
            raise UserError(in_words(error)) from None
        finally:
            if sys.stderr.isatty():
                show_progress("")
    lines = [
        f"Copied to {place}: {done.transcripts} transcripts with {done.lines} lines, {done.sessions} sessions, "
        f"{done.messages} messages, {done.blobs} blobs, {done.documents} documents. {done.present} were there already.",
        *(f"Left alone: {conflict}." for conflict in done.conflicts[:MOST_CONFLICTS]),
    ]
    if not done.conflicts:
        lines.append(_next_step(args.to))
    answer(args, {"ok": not done.conflicts, "to": place, **msgspec.to_builtins(done)}, "\n".join(lines))
    return EXIT_FAILURE if done.conflicts else 0


def _next_step(to: str) -> str:
    if to == "files":
        return "To use the files, remove storage.url from the configuration, and OPENCLAW_STORAGE_URL."
    return "To use the database, set storage.url in the configuration, or OPENCLAW_STORAGE_URL. The files stay."


async def _copy(args: argparse.Namespace) -> tuple[Copied, str]:
    from pathlib import Path

    from openclaw.clock import SystemClock
    from openclaw.config.agents import agent_ids
    from openclaw.config.load import read_config
    from openclaw.storage.inspection import storage_url

    config, state = read_config(paths.config_path(), os.environ).config, Path(paths.state_dir())
    given = storage_url(config, os.environ)
    url = given if args.to == "files" else args.to
    if not url or not url.startswith(("postgresql://", "postgres://")):
        raise UserError("--to is `files` (with storage.url in the configuration) or postgresql://user@host/database")
    try:
        from openclaw.storage.postgres.database import PostgresDatabase
        from openclaw.storage.postgres.move import copy_to_files, copy_to_postgres
    except ImportError:
        raise UserError("The package for PostgreSQL is missing: openclaw extras add postgres") from None
    shown = sys.stderr.isatty()

    def tell(what: str, count: int) -> None:
        if shown:
            show_progress(f"Copying {what}: {count}")

    database = await PostgresDatabase.open(url, schema=args.schema or config.storage.schema)
    settings: tuple[Any, ...] = (agent_ids(config), config.session.store, SystemClock(), tell, config.cron.store)
    try:
        await database.keep_gateways_away()
        if args.to == "files":
            return await copy_to_files(database, state, *settings), str(state)
        return await copy_to_postgres(state, database, *settings), database.shown
    finally:
        await database.close()


_ACTIONS = {
    "migrate": Action(
        "Copy sessions, messages, blobs, pairings and jobs to a PostgreSQL database, or back; the source stays",
        migrate,
        (
            Flag("--to WHERE", "postgresql://user@host/database, or files", required=True),
            Flag("--schema NAME", "the schema of the database (default: storage.schema)"),
            JSON,
        ),
        example="openclaw storage migrate --to postgresql://openclaw@db.example/openclaw",
    ),
}
COMMANDS = {"storage": Group(_ACTIONS)}
