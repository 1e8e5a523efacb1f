"""``openclaw doctor``: check the configuration and the state folder, report problems, and repair them.

``CHECKS`` lists the checks and ``REPAIRS`` what ``--fix`` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from openclaw import __version__, paths
from openclaw.channels.base import Account, ChannelKind, ChannelKinds, ConfiguredKind
from openclaw.cli import gateway_target, service
from openclaw.cli.client import GatewayClient
from openclaw.cli.command import JSON, Flag, UserError, report, yes
from openclaw.cli.config import current_config, read_file
from openclaw.cli.findings import finding_lines
from openclaw.cli.offline import shared_findings
from openclaw.cli.terminal import paint
from openclaw.clock import SystemClock
from openclaw.config.agents import agent_ids, default_agent_id
from openclaw.config.load import Snapshot, read_config
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.extensions.points import failed_at_start, find_extensions
from openclaw.findings import Check, Finding, JsonShape, Severity, count_severities, run_checks
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.keys import canonical_provider, find_source, profiles_path, provider_config, read_profile_file
from openclaw.models.local.install import is_installed
from openclaw.security.audit import audit, subject_of
from openclaw.storage.errors import StorageRefused
from openclaw.storage.files.check import find_damage, narrow, repair, wide_files
from openclaw.storage.files.newer_state import Unreadable, check_generation, missing_stores
from openclaw.storage.files.session_store import sessions_folders
from openclaw.storage.files.store_file import parse_store
from openclaw.storage.inspection import storage_url
from openclaw.text import counted

if TYPE_CHECKING:
    import argparse

    from openclaw.cli.answers import ChannelAccountAnswer, ProbeAnswer


SHAPE = JsonShape(
    {"code": "check", "severity": "level", "text": "text", "fix": "fix", "repairable": "repairable"},
    {"critical": "error", "warn": "warning", "info": "ok", "ok": "ok"},
)
FULL_BYTES, PLENTY_BYTES = 100_000_000, 1_000_000_000
"""Below the first the disk counts as full, from the second on there is room."""
LEFTOVER_S = 24 * 3600
"""How old an unfinished file must be before nobody can be writing it any more."""
_UNFINISHED = (".tmp", ".part")


class Installation(NamedTuple):
    """What the checks look at."""

    state: Path
    snapshot: Snapshot
    deep: bool
    """Whether to try if the servers of channels can be reached."""

    @property
    def config(self) -> Config:
        return self.snapshot.config

    @property
    def database_url(self) -> str | None:
        """The database that holds the sessions. None: they are in files."""
        return storage_url(self.config, os.environ)


def _configuration(installation: Installation) -> Iterator[Finding]:
    snapshot = installation.snapshot
    if not snapshot.exists:
        yield Finding("config", "ok", f"{snapshot.path} does not exist yet; the first start writes it")
        return
    copy = f"{snapshot.path}.last-good"
    kept = bool(snapshot.issues) and os.path.isfile(copy) and read_config(copy, os.environ).valid
    for issue in snapshot.issues:
        fix = f"mend it in {snapshot.path}"
        fix += f", or take the last good version back: openclaw doctor --fix (from {copy})" if kept else ""
        yield Finding("config", "critical", str(issue), fix, repairable=kept)
    for issue in snapshot.warnings:
        level = "critical" if issue in snapshot.refusals else "warn"
        fix = f"openclaw config unset '{issue.path}'" if issue.path else f"look at {snapshot.path}"
        yield Finding("config", level, str(issue), fix)
    for issue in snapshot.notes:
        yield Finding("config", "info", str(issue), "")
    if not snapshot.issues and not snapshot.warnings:
        yield Finding("config", "ok", f"{snapshot.path} is valid")


def _state_folder(installation: Installation) -> Iterator[Finding]:
    state = installation.state
    if not state.is_dir():
        above = next(folder for folder in state.parents if folder.is_dir())
        if os.access(above, os.W_OK | os.X_OK):
            yield Finding("state", "ok", f"{state} does not exist yet; the first start makes it")
        else:
            fix = f"make {above} writable, or name another folder with OPENCLAW_STATE_DIR"
            yield Finding("state", "critical", f"{state} cannot be made: {above} cannot be written by you", fix)
        return
    if not os.access(state, os.R_OK | os.W_OK | os.X_OK):
        mine = state.stat().st_uid == os.getuid()
        text = f"{state} cannot be read and written by you"
        yield Finding("state", "critical", text, _reopen(state), repairable=mine)
        return
    wide = wide_files(str(state))
    if state.stat().st_mode & 0o077:
        yield Finding("state", "critical", f"{state} can be read by other users", f"chmod 700 {state}", repairable=True)
    elif wide.count:
        text = f"{counted(wide.count, 'file', 'files')} can be read by other users of this computer: {wide}"
        yield Finding("state", "warn", text, "openclaw doctor --fix", repairable=True)
    else:
        yield Finding("state", "ok", f"{state} is yours only")


def _reopen(state: Path) -> str:
    """What makes a folder usable again: its rights if it is ours, otherwise its owner."""
    mine = state.stat().st_uid == os.getuid()
    return f"chmod 700 {state}" if mine else f"give it back to yourself: sudo chown -R {os.getuid()} {state}"


def _disk(installation: Installation) -> Iterator[Finding]:
    place = next((folder for folder in (installation.state, *installation.state.parents) if folder.is_dir()), Path("/"))
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.1f} GB are free for {installation.state}"
    if free >= PLENTY_BYTES:
        yield Finding("disk", "ok", text)
        return
    fix = "make room; `openclaw sessions archive --after-days 7` compresses old transcripts"
    yield Finding("disk", "critical" if free < FULL_BYTES else "warn", text, fix)


def _leftovers(installation: Installation) -> Iterator[Finding]:
    found = list(_old_temporary(installation.state))
    if found:
        named = ", ".join(str(path.relative_to(installation.state)) for path in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        what = counted(len(found), "unfinished file was", "unfinished files were")
        text = f"{what} left behind by writes that were cut off: {named}{more}"
        yield Finding("leftovers", "warn", text, "openclaw doctor --fix", repairable=True)
    else:
        yield Finding("leftovers", "ok", "no unfinished files were left behind")


def _old_temporary(state: Path) -> Iterator[Path]:
    """Files of writes that never ended. One that is young may belong to a write that is under way."""
    before = time.time() - LEFTOVER_S
    for place, folders, files in os.walk(state):
        if Path(place) == state:
            folders[:] = [name for name in folders if not name.startswith(("workspace", "sandboxes", "browser"))]
        for name in files:
            path = Path(place, name)
            with contextlib.suppress(OSError):
                if name.endswith(_UNFINISHED) and path.lstat().st_mtime < before:
                    yield path


def _model(installation: Installation) -> Iterator[Finding]:
    config, state = installation.config, str(installation.state)
    agent = default_agent_id(config)
    try:
        model = Catalogue(config, os.environ, state_dir=state).choose(config, agent).model
    except UnknownModel as error:
        yield Finding("model", "critical", str(error), "openclaw models list, then openclaw models set PROVIDER/MODEL")
        return
    source = find_source(model, provider_config(config, model.provider), os.environ)
    files = {profiles_path(config, state, name) for name in (agent, "main")}
    now, provider = int(time.time() * 1000), canonical_provider(model.provider)
    stored = [
        one
        for path in files
        for one in read_profile_file(path).profiles
        if canonical_provider(one.provider) == provider
    ]
    if model.api == "local" and not is_installed(state):
        fix = "put a key such as ANTHROPIC_API_KEY into the environment, or run: openclaw models install local"
        yield Finding("model", "warn", "no model can answer yet: there is no key and no local model", fix)
    elif source.kind != "missing" or any(not one.expired(now) for one in stored):
        yield Finding("model", "ok", f"{model.ref} answers")
    elif stored:
        fix = f"log in again, or put a key of {model.provider} into the environment; openclaw models status tells more"
        yield Finding("model", "critical", f"every stored credential of {model.provider} has expired", fix)
    else:
        fix = "openclaw models status tells which variable is looked for; openclaw models set chooses another model"
        yield Finding("model", "critical", f"{model.ref} would answer, and there is no key for {model.provider}", fix)


def _shared(installation: Installation) -> Iterator[Finding]:
    """Check what all Gateways of an installation share: people, devices, rules, jobs, and the database if any."""
    # An unreadable document is a finding, so it need not be logged to the terminal as well.
    logging.getLogger("openclaw").addHandler(logging.NullHandler())
    try:
        yield from shared_findings()
    except StorageRefused as refused:
        yield Finding(
            "storage", "critical", f"the database (storage.url) cannot be used: {refused}", "mend storage.url"
        )
    except OSError as error:
        if installation.database_url is None:
            raise
        text = "the database (storage.url) cannot be reached, so sessions, messages, people, devices, rules and "
        text += f"jobs were not checked: {error.strerror or error}"
        yield Finding("storage", "critical", text, "start the database server, or mend storage.url")


def _sessions(installation: Installation) -> Iterator[Finding]:
    if installation.database_url is not None:
        return  # They are in the database.
    count = 0
    for store in sorted(installation.state.glob("agents/*/sessions/sessions.json")):
        try:
            values = parse_store(store.read_bytes())
        except OSError as error:
            yield Finding("sessions", "critical", f"{store} cannot be read: {error.strerror}", "check its permissions")
            continue
        if values is None:
            fix = "the next start, or openclaw doctor --fix, rebuilds it from its backup and journal"
            yield Finding("sessions", "critical", f"{store} does not hold a JSON object", fix, repairable=True)
        else:
            count += len(values)
    yield Finding("sessions", "ok", f"{counted(count, 'session is', 'sessions are')} listed")


def _generation(installation: Installation) -> Iterator[Finding]:
    folders = sessions_folders(str(installation.state), installation.config.session.store)
    try:
        check_generation(installation.state, folders)
    except Unreadable as problem:
        fix = f"OPENCLAW_STATE_DIR={installation.state}-imported openclaw sessions import --from {installation.state}"
        yield Finding("generation", "critical", str(problem), fix)
        return
    lost = list(missing_stores(installation.state, folders))
    yield from lost
    if not lost:
        yield Finding("generation", "ok", "the sessions are in a form that this version opens")


def _ledger(installation: Installation) -> Iterator[Finding]:
    ledger = installation.state / "ledger.db"
    if installation.database_url is not None:
        return
    if not ledger.is_file():
        yield Finding("ledger", "ok", "there is no ledger yet")
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as database:
            (messages,) = database.execute("SELECT count(*) FROM messages").fetchone()
    except sqlite3.Error as error:
        fix = "openclaw gateway stop, then openclaw doctor --fix"
        yield Finding("ledger", "critical", f"{ledger} cannot be read: {error}", fix, repairable=True)
        return
    yield Finding("ledger", "ok", f"{counted(messages, 'message is', 'messages are')} in the ledger")


def _port(installation: Installation) -> Iterator[Finding]:
    target = gateway_target.resolve()
    if (pid := service.running_pid()) is not None:
        yield Finding("port", "ok", f"the Gateway runs as process {pid} on port {target.port}")
        yield _version(installation, target)
        return
    lock = _last_holder()
    if lock is not None:
        text = (
            f"the last Gateway (process {lock}) ended without saying goodbye; the next start goes on where it stopped"
        )
        yield Finding("port", "ok", text)
    try:
        socket.create_connection((target.host, target.port), timeout=1).close()
    except OSError:
        yield Finding("port", "ok", f"port {target.port} is free; no Gateway runs")
        return
    fix = "stop it, or choose another port: openclaw config set gateway.port NUMBER"
    yield Finding("port", "critical", f"port {target.port} is taken by a program that is not this Gateway", fix)


def _last_holder() -> int | None:
    """The process that a lock file names and that does not hold it any more."""
    try:
        pid = json.loads(Path(gateway_target.lock_path()).read_text())["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if isinstance(pid, int) else None


def _version(installation: Installation, target: gateway_target.GatewayTarget) -> Finding:
    try:
        running = GatewayClient(target).call("status").get("runtimeVersion")
    except UserError as error:
        fix = "openclaw gateway restart"
        if installation.database_url is not None:
            fix = f"make sure that the database answers (see above); if it does: {fix}"
        return Finding("gateway", "critical", f"the Gateway does not answer: {str(error).splitlines()[0]}", fix)
    if running != __version__:
        text = f"the Gateway that runs is version {running}, and this is {__version__}"
        return Finding("gateway", "warn", text, "openclaw gateway restart")
    return Finding("gateway", "ok", f"the Gateway answers; version {__version__}")


def _service(installation: Installation) -> Iterator[Finding]:
    if not os.path.exists(service.unit_path()):
        return
    issues = service.unit_issues()
    for issue in issues:
        yield Finding("service", "warn", f"the installed service: {issue}", "openclaw gateway install --force")
    if not issues:
        yield Finding("service", "ok", "the installed service starts this installation")


def _damage(installation: Installation) -> Iterator[Finding]:
    damage = list(find_damage(installation.state, Path(paths.config_path())))
    yield from damage
    if not damage:
        yield Finding("damage", "ok", "nothing is damaged or missing")


def _security(installation: Installation) -> Iterator[Finding]:
    summary = audit(subject_of(paths.config_path(), str(installation.state), os.environ), 0).summary()
    text = f"security audit: {' · '.join(f'{count} {severity}' for severity, count in summary.items())}"
    if summary["critical"]:
        yield Finding("security", "critical", text, "openclaw security audit")
    else:
        more = "; `openclaw security audit` lists them" if summary["warn"] else ""
        yield Finding("security", "ok", f"{text}{more}")


def _extensions(installation: Installation) -> Iterator[Finding]:
    config = installation.config
    if not config.plugins.entries and not config.plugins.allow and not config.plugins.load.get("paths"):
        return
    found = {one.loaded.id: one for one in find_extensions(config, str(installation.state))}
    problems = {id: one.loaded.problem for id, one in found.items() if one.loaded.state == "failed"}
    problems |= {
        id: why for id, why in failed_at_start(installation.state).items() if id in found and found[id].load is not None
    }
    for id, problem in problems.items():
        yield Finding(
            "plugins", "critical", f"the extension {id} cannot be used: {problem}", f"openclaw plugins info {id}"
        )
    if not problems:
        used = [id for id, one in found.items() if one.load is not None]
        yield Finding("plugins", "ok", f"extensions: {', '.join(used) or 'none'}")


def _channels(installation: Installation) -> Iterator[Finding]:
    """One line for each account. A running Gateway tells whether the platform answers; else ``--deep`` tries it."""
    config = installation.config
    environ = {**config.env.vars, **os.environ}
    kinds = [(kind, kind.accounts(config)) for kind in ChannelKinds(environ).configured(config)]
    running = _channel_accounts() if kinds and service.running_pid() is not None else None
    for kind, accounts in kinds:
        for account in accounts:
            name = f"{kind.label} ({account.id})"
            level, text, fix = _account_state(kind, account)
            if not text and running is not None:
                level, text, fix = _account_told(running.get(kind.id, []), account.id)
            elif not text:
                level, text, fix = _account_server(kind, account) if installation.deep else ("ok", "is configured", "")
            yield Finding("channels", level, f"{name} {text}", fix)


def _account_state(kind: ChannelKind, account: Account) -> tuple[Severity, str, str]:
    """Check the configuration of an account alone. The text is empty if nothing is wrong so far."""
    if not account.enabled:
        return "ok", "is switched off", ""
    if account.problem:
        return "critical", "cannot start", account.problem
    if isinstance(kind, ConfiguredKind):
        if missing := kind.missing_library():
            return "critical", "cannot start: its library is not installed", missing
        if odd := kind.malformed_credentials(account):
            return "warn", f"has a {' and a '.join(odd)} that does not look like one of {kind.label}", kind.hint
    return "ok", "", ""


def _channel_accounts() -> dict[str, list[ChannelAccountAnswer]] | None:
    try:
        return GatewayClient(gateway_target.resolve()).call("channels.status", {"probe": True})["channelAccounts"]
    except UserError:
        return None  # Another check says so.


def _account_told(accounts: list[ChannelAccountAnswer], account_id: str) -> tuple[Severity, str, str]:
    told = next((one for one in accounts if one.get("accountId") == account_id), None)
    if told is None:
        return "warn", "is not known to the running Gateway", "openclaw gateway restart"
    probe: ProbeAnswer = told.get("probe") or {}
    if told.get("connected") and probe.get("ok", True):
        return "ok", "is connected, and its server answers", ""
    why = str(probe.get("error") or told.get("lastError") or "no answer yet").splitlines()[0]
    fix = "openclaw channels login" if not told.get("configured", True) else "openclaw channels status --probe"
    return "critical", f"is not connected: {why}", fix


def _account_server(kind: ChannelKind, account: Account) -> tuple[Severity, str, str]:
    server = kind.server(account) if isinstance(kind, ConfiguredKind) else None
    if server is None:
        return "ok", "is configured", ""
    host, port = server
    try:
        socket.create_connection(server, timeout=5).close()
    except OSError as error:
        why = error.strerror or str(error) or "no answer"
        return (
            "critical",
            f"is configured, and {host}:{port} cannot be reached: {why}",
            "check the address and the network",
        )
    return "ok", f"is configured, and {host}:{port} can be reached", ""


CHECKS: tuple[Check[Installation], ...] = (
    _configuration,
    _state_folder,
    _disk,
    _generation,
    _sessions,
    _ledger,
    _shared,
    _damage,
    _leftovers,
    _model,
    _port,
    _service,
    _extensions,
    _security,
    _channels,
)
"""In the order in which they are printed."""


# Repairs


def _open_to_owner(state: Path) -> Iterator[str]:
    if not os.access(state, os.R_OK | os.W_OK | os.X_OK):
        with contextlib.suppress(OSError):
            state.chmod(0o700)
            yield f"{state} can be read and written by you again."


def _restore_configuration(state: Path) -> Iterator[str]:
    store = ConfigStore(paths.config_path())
    store.restore_if_gone()
    store.restore_if_broken()
    if store.restored:
        yield store.restored


def _close_to_others(state: Path) -> Iterator[str]:
    narrowed = narrow(str(state))
    if narrowed.count:
        what = counted(narrowed.count, "file or folder was", "files and folders were")
        yield f"{what} closed to other users: {narrowed}."
    yield from (f"Not closed to other users: {problem}." for problem in narrowed.failed)


def _remove_leftovers(state: Path) -> Iterator[str]:
    removed = 0
    for path in _old_temporary(state):
        with contextlib.suppress(OSError):
            path.unlink()
            removed += 1
    if removed:
        yield f"{counted(removed, 'unfinished file was', 'unfinished files were')} removed."


def _repair_stores(state: Path) -> Iterator[str]:
    """Mends what a start of the Gateway would mend."""
    if (pid := service.running_pid()) is not None:
        yield f"Files of conversations were left to the Gateway (process {pid}), which mends them when it starts."
        return
    config = current_config()
    yield from asyncio.run(
        repair(
            state,
            Path(paths.config_path()),
            SystemClock(),
            store_template=config.session.store,
            agent_ids=agent_ids(config),
        )
    )


REPAIRS: tuple[Callable[[Path], Iterator[str]], ...] = (
    _open_to_owner,
    _restore_configuration,
    _close_to_others,
    _repair_stores,
    _remove_leftovers,
)
"""What ``--fix`` does, in this order. Each says in sentences what it changed; nothing is lost by any of them."""


def _agreed(findings: list[Finding], args: argparse.Namespace) -> bool:
    """Whether to repair: what would be done is shown first to a person who can be asked."""
    if args.yes or args.json or not sys.stdin.isatty():
        return True
    wrong = [finding for finding in findings if finding.repairable]
    if not wrong:
        return False
    for finding in wrong:
        sys.stdout.write(f"{paint('repair', 'yellow')}  {finding.text}\n")
    sys.stdout.flush()
    return yes(f"Repair these {len(wrong)}?", usual=True)


class Diagnosis(NamedTuple):
    state: Path
    findings: list[Finding]
    repaired: list[str] | None
    """What ``--fix`` did, in sentences. None without it."""

    @property
    def ok(self) -> bool:
        return all(finding.severity != "critical" for finding in self.findings)

    def view(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "version": __version__,
            "stateDir": str(self.state),
            "configPath": paths.config_path(),
            "findings": SHAPE.encode(self.findings),
            **({"repaired": self.repaired} if self.repaired is not None else {}),
        }


def doctor(args: argparse.Namespace) -> Diagnosis:
    state = Path(paths.state_dir())
    findings = _examine(state, args.deep)
    repaired: list[str] = []
    if args.fix and state.is_dir() and _agreed(findings, args):
        # The report lists the repairs, so they need not be logged to the terminal as well.
        logging.getLogger("openclaw").addHandler(logging.NullHandler())
        repaired = [sentence for repair in REPAIRS for sentence in repair(state)]
        findings = _examine(state, args.deep)
    return Diagnosis(state, findings, repaired if args.fix else None)


def _show(diagnosis: Diagnosis, args: argparse.Namespace) -> Iterator[str]:
    for sentence in diagnosis.repaired or ():
        yield f"{paint('repaired', 'green')} {sentence}"
    yield from finding_lines(diagnosis.findings, SHAPE.severities)
    counts = count_severities(diagnosis.findings)
    errors, warnings = counts["critical"], counts["warn"]
    yield ""
    if not errors and not warnings:
        yield "All is well."
        return
    repairable = sum(finding.repairable for finding in diagnosis.findings)
    hint = f" `openclaw doctor --fix` repairs {repairable} of them." if repairable else ""
    yield f"{counted(errors, 'error', 'errors')}, {counted(warnings, 'warning', 'warnings')}.{hint}"


def _examine(state: Path, deep: bool) -> list[Finding]:
    return run_checks(CHECKS, Installation(state, read_file(), deep), partial(_unchecked, state))


def _unchecked(state: Path, check: Check[Installation], error: Exception) -> Finding | None:
    """Report a broken or unreadable file as a finding. Other errors are defects and pass."""
    name = getattr(check, "__name__", "check").strip("_")
    if isinstance(error, UserError):
        first = str(error).splitlines()[0]
        return Finding(name, "warn", f"{name} was not checked: {first}", "mend what is named above first")
    if isinstance(error, OSError):
        text = f"{name} was not checked: {error.filename or state}: {error.strerror}"
        fix = _reopen(state) if state.is_dir() else "look at its owner and its rights"
        return Finding(name, "critical", text, fix)
    return None


COMMANDS = {
    "doctor": report(
        "Check the configuration, keys, files and port, say what is wrong and what to do, and repair it",
        doctor,
        (
            Flag(
                "--fix --repair", "repair what can be repaired without losing anything", dest="fix", action="store_true"
            ),
            Flag("--yes --non-interactive", "repair without a question", dest="yes", action="store_true"),
            Flag("--deep", "also try whether the servers of channels can be reached", action="store_true"),
            JSON,
        ),
        about=(
            "It needs no Gateway. A running one tells whether the platforms of channels answer; without one "
            "--deep tries whether their servers can be reached. It exits with 1 when something must be mended. "
            "--fix shows a person what it would repair and asks first; what it replaces is kept beside the new "
            "file."
        ),
        show=_show,
        view=Diagnosis.view,
        failed=lambda diagnosis, args: not diagnosis.ok,
        example="openclaw doctor --fix",
    )
}
