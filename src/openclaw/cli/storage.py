"""``openclaw storage``: copy everything from files to PostgreSQL, or back. ``openclaw cluster``: its Gateways."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, Group, UserError, answer, query
from openclaw.cli.terminal import show_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from openclaw.cli.answers import ClusterStatus
    from openclaw.storage.postgres.move import Copied

MOST_CONFLICTS = 20


def migrate(args: argparse.Namespace) -> int:
    import asyncio

    import msgspec

    from openclaw.cli import service
    from openclaw.cli.gateway_target import running_gateway
    from openclaw.storage.disk_errors import describe_failure
    from openclaw.storage.errors import StorageRefused

    if running_gateway() is not None:
        raise UserError("A Gateway is running on this state folder. Stop it first: openclaw gateway stop")
    paths.make_private_dir(paths.state_dir())
    with service.locked_state():
        try:
            done, place = asyncio.run(_copy(args))
        except StorageRefused as refused:
            raise UserError(str(refused)) from None
        except OSError as error:
            raise UserError(describe_failure(error)) from None
        finally:
            if sys.stderr.isatty():
                show_progress("")
    lines = [
        f"Copied to {place}: {done.transcripts} transcripts with {done.lines} lines, {done.sessions} sessions, "
        f"{done.messages} messages, {done.blobs} blobs, {done.documents} documents. {done.present} were there already.",
        *(f"Left alone: {conflict}." for conflict in done.conflicts[:MOST_CONFLICTS]),
    ]
    if args.to == "files" and not done.conflicts:
        lines.append("To use the files, remove storage.url from the configuration, and OPENCLAW_STORAGE_URL.")
    elif not done.conflicts:
        lines.append(
            "To use the database, set storage.url in the configuration, or OPENCLAW_STORAGE_URL. The files stay."
        )
    answer(args, {"ok": not done.conflicts, "to": place, **msgspec.to_builtins(done)}, "\n".join(lines))
    return EXIT_FAILURE if done.conflicts else 0


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
        await database.lock_out_gateways()
        if args.to == "files":
            return await copy_to_files(database, state, *settings), str(state)
        return await copy_to_postgres(state, database, *settings), database.shown
    finally:
        await database.close()


def _show_cluster(payload: ClusterStatus, _: argparse.Namespace) -> Iterator[str]:
    from openclaw.text import counted, duration

    if not payload["clustered"]:
        yield "This Gateway keeps its sessions in files and is the only node. See docs/scaling.md to have several."
        return
    living = sum(node["state"] in ("alive", "draining") for node in payload["nodes"])
    yield f"{counted(living, 'node', 'nodes')} on {payload['storage']}"
    if problem := payload.get("problem"):
        yield f"The database cannot be reached ({problem}). This is what this node saw last."
    for node in payload["nodes"]:
        here = " (this one)" if node["id"] == payload["node"] else ""
        link = "" if here or node["connected"] or node["state"] not in ("alive", "draining") else ", not connected"
        yield f"{node['id']}  {node['state']:<8} {node['url'] or node['host']}{here}{link}"
        if node["state"] in ("alive", "draining"):
            yield (
                f"    {counted(node['sessions'], 'session', 'sessions')}, {counted(node['runs'], 'run', 'runs')}, "
                f"{node['queued']} waiting, {counted(node['clients'], 'client', 'clients')}; "
                f"lease {node['leaseMs'] / 1000:.1f} s, relay {node['relayLagMs']:.1f} ms, "
                f"database {node['databaseMs']:.1f} ms"
            )
        age = duration(max(0, payload["ts"] - node["startedAt"]))
        ended = ""
        if (ended_at := node.get("endedAt")) is not None:
            how = "left" if node["state"] == "left" else "was given up"
            ended = f", {how} {duration(max(0, payload['ts'] - ended_at))} ago"
        holds = ", ".join(name for name, holder in payload["holds"].items() if holder == node["id"])
        yield f"    version {node['version']}, pid {node['pid']} on {node['host']}, started {age} ago{ended}"
        if holds:
            yield f"    holds {holds}"
    if payload["unowned"]:
        yield f"{payload['unowned']} sessions have unfinished messages and no owner yet."


_STORAGE = {
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
_CLUSTER = {
    "status": query(
        "Show the nodes of the cluster, their sessions, leases and lag",
        "cluster.status",
        show=_show_cluster,
        example="openclaw cluster status --json",
    ),
}
COMMANDS = {"storage": Group(_STORAGE), "cluster": Group(_CLUSTER, default="status")}
