"""``openclaw doctor``: looks at the configuration and the state folder without a Gateway, and says what is wrong.

Each check is a function of ``CHECKS`` that yields findings. A check only reads.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from openclaw import __version__, paths
from openclaw.cli import service
from openclaw.cli import target as targets
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, UserError
from openclaw.cli.terminal import paint, print_json
from openclaw.config.load import read_config
from openclaw.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

Level: TypeAlias = Literal["ok", "warning", "error"]
_COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "error": "red"}


class Finding(NamedTuple):
    check: str
    level: Level
    text: str
    fix: str = ""
    """What a person can do about it; empty when nothing is wrong."""


Check: TypeAlias = Callable[[Path], Iterator[Finding]]
"""Looks at the state folder."""


def _configuration(state: Path) -> Iterator[Finding]:
    snapshot = read_config(paths.config_path(), os.environ)
    if not snapshot.exists:
        yield Finding("config", "ok", f"{snapshot.path} does not exist yet; the first start writes it")
        return
    for issue in snapshot.issues:
        yield Finding("config", "error", str(issue), f"mend it in {snapshot.path}")
    for issue in snapshot.warnings:
        level = "error" if issue in snapshot.refusals else "warning"
        yield Finding("config", level, str(issue), f"openclaw config unset '{issue.path}'" if issue.path else "")
    if not snapshot.issues and not snapshot.warnings:
        yield Finding("config", "ok", f"{snapshot.path} is valid")


def _state_folder(state: Path) -> Iterator[Finding]:
    if not state.is_dir():
        yield Finding("state", "ok", f"{state} does not exist yet; the first start makes it")
        return
    open_to_others = state.stat().st_mode & 0o077
    if open_to_others:
        yield Finding("state", "error", f"{state} can be read by other users", f"chmod 700 {state}")
    elif not os.access(state, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("state", "error", f"{state} cannot be written", "give it back to the user the Gateway runs as")
    else:
        yield Finding("state", "ok", f"{state} is yours only")


def _sessions(state: Path) -> Iterator[Finding]:
    from openclaw.storage.files.store_file import parse_store

    if os.environ.get("OPENCLAW_STORAGE_URL") or read_config(paths.config_path(), os.environ).config.storage.url:
        yield Finding("sessions", "ok", "the sessions are in PostgreSQL (storage.url), and are not checked here")
        return
    count = 0
    for store in sorted(state.glob("agents/*/sessions/sessions.json")):
        try:
            values = parse_store(store.read_bytes())
        except OSError as error:
            yield Finding("sessions", "error", f"{store} cannot be read: {error.strerror}", "check its permissions")
            continue
        if values is None:
            fix = "the next start rebuilds it from its backup and journal"
            yield Finding("sessions", "error", f"{store} does not hold a JSON object", fix)
        else:
            count += len(values)
    yield Finding("sessions", "ok", f"{count} sessions are listed")


def _generation(state: Path) -> Iterator[Finding]:
    from openclaw.storage.files.generation import check_generation, missing_stores
    from openclaw.storage.files.newer_state import Unreadable
    from openclaw.storage.files.session_store import sessions_folders

    folders = sessions_folders(str(state), read_config(paths.config_path(), os.environ).config.session.store)
    try:
        check_generation(state, folders)
    except Unreadable as problem:
        fix = f"OPENCLAW_STATE_DIR={state}-imported openclaw sessions import --from {state}"
        yield Finding("generation", "error", str(problem), fix)
        return
    lost = list(missing_stores(state, folders))
    yield from (Finding("generation", "error", text, "put the store back from a backup") for text in lost)
    if not lost:
        yield Finding("generation", "ok", "the sessions are in a form that this version opens")


def _ledger(state: Path) -> Iterator[Finding]:
    ledger = state / "ledger.db"
    if not ledger.is_file():
        yield Finding("ledger", "ok", "there is no ledger yet")
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as database:
            (messages,) = database.execute("SELECT count(*) FROM messages").fetchone()
    except sqlite3.Error as error:
        yield Finding("ledger", "error", f"{ledger} cannot be read: {error}", "openclaw gateway stop, then start again")
        return
    yield Finding("ledger", "ok", f"{messages} messages are in the ledger")


def _port(state: Path) -> Iterator[Finding]:
    import socket

    target = targets.resolve()
    if (pid := service.running_pid()) is not None:
        yield Finding("port", "ok", f"the Gateway runs as process {pid} on port {target.port}")
        return
    try:
        socket.create_connection((target.host, target.port), timeout=1).close()
    except OSError:
        yield Finding("port", "ok", f"port {target.port} is free; no Gateway runs")
        return
    fix = "stop it, or choose another port: openclaw config set gateway.port NUMBER"
    yield Finding("port", "error", f"port {target.port} is taken by a program that is not this Gateway", fix)


def _damage(state: Path) -> Iterator[Finding]:
    from openclaw.storage.files.check import find_damage

    found = list(find_damage(state, Path(paths.config_path())))
    for damage in found:
        yield Finding("damage", "error" if damage.lost else "warning", damage.text, damage.fix)
    if not found:
        yield Finding("damage", "ok", "nothing is damaged or missing")


def _security(state: Path) -> Iterator[Finding]:
    from openclaw.cli.security import summary_line
    from openclaw.security.audit import audit, subject_of

    report = audit(subject_of(paths.config_path(), str(state), os.environ), 0)
    text = f"security audit: {summary_line(report)}"
    if report.summary()["critical"]:
        yield Finding("security", "error", text, "openclaw security audit")
    else:
        yield Finding("security", "ok", text)


def _extensions(state: Path) -> Iterator[Finding]:
    from openclaw.extensions.loader import failed_at_start, find_extensions

    config = read_config(paths.config_path(), os.environ).config
    if not config.plugins.entries and not config.plugins.allow and not config.plugins.load.get("paths"):
        return
    found = {one.loaded.id: one for one in find_extensions(config, str(state))}
    problems = {id: one.loaded.problem for id, one in found.items() if one.loaded.state == "failed"}
    problems |= {id: why for id, why in failed_at_start(state).items() if id in found and found[id].load is not None}
    for id, problem in problems.items():
        yield Finding(
            "plugins", "error", f"the extension {id} cannot be used: {problem}", f"openclaw plugins info {id}"
        )
    if not problems:
        used = [id for id, one in found.items() if one.load is not None]
        yield Finding("plugins", "ok", f"extensions: {', '.join(used) or 'none'}")


CHECKS: tuple[Check, ...] = (
    _configuration,
    _state_folder,
    _generation,
    _sessions,
    _ledger,
    _damage,
    _port,
    _extensions,
    _security,
)


def _repair(state: Path) -> list[str]:
    """Mends what a start of the Gateway would mend. Returns what was done."""
    import asyncio

    from openclaw.clock import SystemClock
    from openclaw.config.agents import agent_ids
    from openclaw.config.store import ConfigStore
    from openclaw.storage.files.check import repair

    if (pid := service.running_pid()) is not None:
        raise UserError(f"The Gateway runs as process {pid} and mends its files itself. Stop it to repair them here.")
    if not state.is_dir():
        return []
    store = ConfigStore(paths.config_path())
    store.restore_if_gone()
    config = read_config(paths.config_path(), os.environ).config
    done = asyncio.run(repair(state, SystemClock(), store_template=config.session.store, agent_ids=agent_ids(config)))
    return [*([store.restored] if store.restored else []), *done]


def doctor(args: argparse.Namespace) -> int:
    state = Path(paths.state_dir())
    repaired = _repair(state) if args.repair else []
    findings = [finding for check in CHECKS for finding in check(state)]
    broken = any(finding.level == "error" for finding in findings)
    if args.json:
        shown: list[dict[str, Any]] = [
            {name: value for name, value in finding._asdict().items() if value} for finding in findings
        ]
        about = {"version": __version__, "stateDir": str(state), "configPath": paths.config_path()}
        print_json({"ok": not broken, **about, "findings": shown, **({"repaired": repaired} if args.repair else {})})
        return EXIT_FAILURE if broken else 0
    for sentence in repaired:
        sys.stdout.write(f"{paint('repaired', 'green')} {printable(sentence)}\n")
    for finding in findings:
        sys.stdout.write(f"{paint(f'{finding.level:<8}', _COLOURS[finding.level])}{printable(finding.text)}\n")
        if finding.fix:
            sys.stdout.write(f"        → {printable(finding.fix)}\n")
    return EXIT_FAILURE if broken else 0


COMMANDS = {
    "doctor": Action(
        "Check the configuration and the state folder, and say what is wrong",
        doctor,
        (Flag("--repair", "bring back what is damaged or gone, while no Gateway runs"), JSON),
        example="openclaw doctor",
    )
}
