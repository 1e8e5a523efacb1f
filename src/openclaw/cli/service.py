"""The Gateway in the background: starts and stops its process, and installs it as a service. A node has one as well.

The service is a systemd user unit, on macOS an agent of launchd. A private file keeps the variables of the environment
that the Gateway needs and a service would lack.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time

from openclaw import paths
from openclaw.cli import gateway_target
from openclaw.cli.client import GatewayClient, Unreachable, from_args
from openclaw.cli.command import UserError, answer
from openclaw.cli.config import read_file
from openclaw.cli.terminal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    import subprocess
    from collections.abc import Generator, Mapping, MutableMapping
    from subprocess import CompletedProcess

    from openclaw.cli.answers import InstalledService


START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
LEAST_FREE_BYTES = 1_000_000
LOG_TAIL_LINES = 15
MAX_CONSOLE_LOG_BYTES = 5_000_000
KEPT_VARIABLES = ("OPENCLAW_STATE_DIR", "OPENCLAW_CONFIG_PATH", "OPENCLAW_PROFILE", "OPENCLAW_GATEWAY_PORT")
"""What the file of a service holds itself, because it says which state folder is meant."""
PRIVATE_VARIABLES = (
    *("PATH", "LANG", "LC_ALL", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_GATEWAY_PASSWORD", "OLLAMA_HOST", "HF_ENDPOINT", "SSL_CERT_FILE"),
)
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]{0,100})\}")
_ENV_REFERENCE = re.compile(r"""["']?env["']?\s{0,5}:\s{0,5}["']([A-Z_][A-Z0-9_]{0,100})["']""")


def console_log_path() -> str:
    return os.path.join(paths.state_dir(), "logs", "gateway-console.log")


def connect(args: argparse.Namespace) -> GatewayClient:
    """Makes the client for a command that needs a Gateway, and starts a local Gateway if none answers."""
    client = from_args(args)
    if client.target.local:
        ensure_running(client)
    return client


def ensure_running(client: GatewayClient) -> None:
    """Starts the Gateway unless it answers."""
    if not client.alive():
        note(f"No Gateway is running at {client.target.url}; starting one.")
        start(client)


def start(client: GatewayClient, extra: list[str] | None = None) -> int:
    """Starts a detached Gateway, waits until it answers, and returns its process id."""
    process = _spawn(extra or [])
    deadline = time.monotonic() + START_TIMEOUT_S
    next_dot = time.monotonic() + 1.0
    dots = False
    try:
        while time.monotonic() < deadline:
            # The port may differ from the configured one (port 0, first start).
            lock = gateway_target.running_gateway()
            if lock is not None and (extra or not gateway_target.port_from_environment()):
                client.target.port = int(lock.get("port") or client.target.port)
            if lock is not None and (fingerprint := lock.get("tlsFingerprint")):
                # A first start with TLS has made its certificate only now.
                client.target.tls, client.target.fingerprint = True, fingerprint
            if client.alive():
                if not client.target.secret:
                    # A first start has written a secret into the configuration.
                    fresh = gateway_target.resolve()
                    client.target.secret, client.target.secret_source = fresh.secret, fresh.secret_source
                break
            # Another start may have been quicker. Its Gateway then holds the lock and is the one to wait for.
            if process.poll() is not None and not _lock_is_held():
                raise UserError(f"The Gateway stopped while starting (exit code {process.returncode}).\n{_log_tail()}")
            if time.monotonic() >= next_dot:
                sys.stderr.write(".")
                sys.stderr.flush()
                next_dot += 1.0
                dots = True
            time.sleep(POLL_S)
        else:
            raise Unreachable(f"The Gateway did not answer within {START_TIMEOUT_S:.0f} s.\n{_log_tail()}")
    finally:
        if dots:
            sys.stderr.write("\n")
    # The Gateway logs these, and its console is a file.
    for warning in read_file().warnings:
        note(f"Warning: {warning}")
    return running_pid() or process.pid


def _spawn(extra: list[str]) -> subprocess.Popen[bytes]:
    import subprocess

    log = console_log_path()
    paths.make_private_dir(paths.state_dir())
    paths.make_private_dir(os.path.dirname(log))
    fresh = os.path.exists(log) and os.path.getsize(log) > MAX_CONSOLE_LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if fresh else os.O_APPEND)
    descriptor = os.open(log, flags, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "openclaw", "gateway", "run", *extra],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd=paths.state_dir(),
        )
    finally:
        os.close(descriptor)


def _log_tail() -> str:
    path = console_log_path()
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        lines = []
    if not lines:
        import shutil

        full = shutil.disk_usage(paths.make_private_dir(paths.state_dir())).free < LEAST_FREE_BYTES
        return f"It left no log at {path}." + (" The disk is full: make room, then try again." if full else "")
    return "\n".join([f"Last lines of {path}:", *(f"  {line}" for line in lines)])


def running_pid() -> int | None:
    """Returns the process that holds the Gateway's lock. It checks the lock, because a process id may be used again."""
    lock = gateway_target.running_gateway()
    return int(lock["pid"]) if lock is not None and _lock_is_held() else None


def _lock_is_held() -> bool:
    import fcntl

    try:
        descriptor = os.open(gateway_target.lock_path(), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_state(wait_s: float = 0) -> Generator[None]:
    """Holds the lock of the state directory, so that no Gateway starts while a command works there."""
    import fcntl

    descriptor = os.open(gateway_target.lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(
                        "The Gateway is starting, or another command works on its files; try again."
                    ) from None
                time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def stop() -> int | None:
    """Asks the Gateway to end and waits for it. Returns its process id, or ``None`` if none ran."""
    import signal

    pid = running_pid()
    if manages_gateway():
        must("stop", unit_name())
    elif pid is not None:
        os.kill(pid, signal.SIGTERM)
    if pid is None:
        return None
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        if not _lock_is_held():
            return pid
        time.sleep(POLL_S)
    raise UserError(
        f"The Gateway (process {pid}) did not stop within {STOP_TIMEOUT_S:.0f} s. "
        f"`kill -9 {pid}` ends it; nothing accepted is lost."
    )


def unit_name(what: str = "gateway") -> str:
    """``what`` is the Gateway or a node."""
    return f"openclaw-{'-'.join([what, *_profile()])}.service"


def _profile() -> list[str]:
    """The profile that stands in the names of services. Empty: the usual one."""
    profile = os.environ.get("OPENCLAW_PROFILE", "").strip()
    return [profile] if profile and profile != "default" else []


def unit_path(what: str = "gateway") -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "systemd", "user", unit_name(what))


def unit_text(what: str, extra: list[str]) -> str:
    command = [sys.executable, "-m", "openclaw", what, "run", *extra]
    return "\n".join(
        [
            "[Unit]",
            f"Description=OpenClaw {'Gateway' if what == 'gateway' else what}",
            "After=network-online.target",
            "Wants=network-online.target",
            "",
            "[Service]",
            # A dollar sign begins a variable here, and only here.
            f"ExecStart={' '.join(_quote(word) for word in command).replace('$', '$$')}",
            *(f"Environment={_quote(f'{name}={value}')}" for name, value in _kept_variables().items()),
            # systemd starts it again after a crash, and not after a clean stop.
            "Restart=on-failure",
            "RestartSec=2",
            "UMask=0077",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _kept_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in KEPT_VARIABLES if os.environ.get(name)}


def _quote(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if escaped != word or " " in word else word


def install(args: argparse.Namespace, what: str, extra: list[str]) -> int:
    """Writes the service's file and starts it where this login can. Otherwise says what to run elsewhere."""
    report = put_in_place(what, extra, force=args.force)
    if report["enabled"]:
        return answer(args, report, f"Installed and started: {report['path']}")
    todo = "\n".join(f"  {command}" for command in report.get("run", ()))
    return answer(
        args, report, f"Wrote {report['path']}.\nThis login cannot start services; where one can, run:\n{todo}"
    )


def put_in_place(what: str, extra: list[str], *, force: bool) -> InstalledService:
    """Installs the service: a systemd user unit, on macOS an agent of launchd. Returns what was done.

    A Gateway gets a private file with the variables that it needs to find its keys. ``enabled`` is False where this
    login has nobody who starts services; ``run`` then has the commands for one that has.
    """
    from openclaw.config.store import write_private

    path, name, env = service_file(what), unit_name(what), list[str]()
    if os.path.exists(path) and not force:
        raise UserError(f"The service is already installed: {path}. --force writes it again.")
    if what == "gateway":
        env, extra = write_env(os.environ), [*extra, "--env-file", env_path()]
    if sys.platform == "darwin":
        return {**_load_agent(what, extra), "variables": env}
    write_private(path, unit_text(what, extra))
    commands = ["systemctl --user daemon-reload", f"systemctl --user enable {name}", f"systemctl --user restart {name}"]
    report: InstalledService = {"ok": True, "path": path, "enabled": usable(), "variables": env}
    if not report["enabled"]:
        return {**report, "run": commands}
    for command in commands:
        must(*command.split()[2:])
    return report


def can_install() -> bool:
    """Whether this login has somebody who starts services: systemd for users, or launchd."""
    return sys.platform == "darwin" or usable()


def service_file(what: str = "gateway") -> str:
    """The file that systemd or launchd starts the service from, whether it is there or not."""
    return plist_path(what) if sys.platform == "darwin" else unit_path(what)


def is_installed(what: str = "gateway") -> bool:
    return os.path.exists(service_file(what))


def uninstall(args: argparse.Namespace, what: str) -> int:
    path = remove(what)
    if path is None:
        return answer(args, {"ok": True, "removed": False}, "The service is not installed.")
    return answer(args, {"ok": True, "removed": True, "path": path}, f"Removed {path}.")


def remove(what: str = "gateway") -> str | None:
    """Stops the service and removes its files. Returns the path of its file; None if it was not installed."""
    path, managed = service_file(what), sys.platform != "darwin" and usable()
    if not os.path.exists(path):
        return None
    if what == "gateway" and os.path.exists(env_path()):
        os.unlink(env_path())
    if sys.platform == "darwin":
        launchctl("bootout", f"gui/{os.getuid()}/{label(what)}")
    elif managed:
        must("disable", "--now", unit_name(what))
    os.unlink(path)
    if managed:
        must("daemon-reload")
    return path


def unit_issues() -> list[str]:
    """Returns what in the installed unit does not fit this installation."""
    try:
        with open(unit_path(), encoding="utf-8") as file:
            commands = [line for line in file if line.startswith("ExecStart=")]
    except OSError:
        return []
    if commands and _quote(sys.executable).replace("$", "$$") in commands[0]:
        return []
    return [f"it does not run {sys.executable}; `openclaw gateway install --force` writes it again"]


def other_units() -> list[str]:
    """Returns the units of other profiles' Gateways."""
    try:
        names = os.listdir(os.path.dirname(unit_path()))
    except OSError:
        return []
    return sorted(n for n in names if n.startswith("openclaw-gateway") and n.endswith(".service") and n != unit_name())


def usable() -> bool:
    """Whether this login has a systemd user manager to talk to."""
    result = systemctl("show-environment")
    return result is not None and result.returncode == 0


def systemctl(*words: str) -> CompletedProcess[str] | None:
    return _done("systemctl", "--user", *words)


def launchctl(*words: str) -> CompletedProcess[str] | None:
    return _done("launchctl", *words)


def _done(*words: str) -> CompletedProcess[str] | None:
    """A command that was run. None: it is not there, or did not end."""
    import subprocess

    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def manages_gateway() -> bool:
    """Whether the unit is installed and systemd answers, so that start and stop go through it."""
    return sys.platform != "darwin" and os.path.exists(unit_path()) and usable()


def must(*words: str) -> None:
    result = systemctl(*words)
    if result is None or result.returncode != 0:
        detail = result.stderr.strip() if result is not None else "systemctl does not answer"
        raise UserError(f"systemctl --user {' '.join(words)} failed: {detail}")


def label(what: str) -> str:
    """The name of the agent of launchd."""
    return ".".join(["ai", "openclaw", what, *_profile()])


def plist_path(what: str) -> str:
    return os.path.join(os.path.expanduser("~"), "Library", "LaunchAgents", f"{label(what)}.plist")


def plist_text(what: str, extra: list[str]) -> bytes:
    """The file for launchd. It holds no keys: the Gateway reads those from its own private file."""
    import plistlib

    log = os.path.join(paths.state_dir(), "logs", f"{what}-console.log")
    return plistlib.dumps(
        {
            "Label": label(what),
            "ProgramArguments": [sys.executable, "-m", "openclaw", what, "run", *extra],
            "EnvironmentVariables": _kept_variables(),
            "RunAtLoad": True,
            # launchd starts it again after a crash, and not after a clean stop.
            "KeepAlive": {"SuccessfulExit": False},
            "Umask": 0o077,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
    )


def _load_agent(what: str, extra: list[str]) -> InstalledService:
    """Write the file and load the agent. A loaded agent is restarted."""
    from openclaw.config.store import write_private

    path, domain = plist_path(what), f"gui/{os.getuid()}"
    paths.make_private_dir(os.path.join(paths.state_dir(), "logs"))
    write_private(path, plist_text(what, extra).decode())
    launchctl("bootout", f"{domain}/{label(what)}")
    loaded = launchctl("bootstrap", domain, path)
    if loaded is not None and loaded.returncode == 0:
        return {"ok": True, "path": path, "enabled": True}
    return {"ok": True, "path": path, "enabled": False, "run": [f"launchctl bootstrap {domain} {path}"]}


# The variables of the environment


def env_path() -> str:
    return os.path.join(paths.state_dir(), "service.env")


def wanted_names(config_text: str) -> set[str]:
    """The variables that a Gateway reads: keys of providers and channels, and those that the configuration names."""
    from openclaw.channels.base import BUILT_IN, built_in_kind
    from openclaw.models.catalogue_data import PROVIDERS

    keys = {name for facts in PROVIDERS.values() for name in facts.key_env}
    tokens = {field.variable for name in BUILT_IN for field in built_in_kind(name).credentials if field.variable}
    named = {*_REFERENCE.findall(config_text), *_ENV_REFERENCE.findall(config_text)}
    return {*PRIVATE_VARIABLES, *keys, *tokens, *named}


def write_env(environ: Mapping[str, str]) -> list[str]:
    """Writes the variables of now into the file, for its owner only, and returns their names."""
    from openclaw.config.store import write_private

    wanted = wanted_names(gateway_target.config_text(paths.config_path()) or "")
    kept = {name: environ[name] for name in sorted(wanted) if environ.get(name) and "\n" not in environ[name]}
    head = "# Variables of the OpenClaw service. Rewritten by `openclaw gateway install --force`.\n"
    write_private(env_path(), head + "".join(f"{name}={value}\n" for name, value in kept.items()))
    return list(kept)


def read_env(path: str) -> dict[str, str]:
    """The variables of a file: a ``NAME=value`` per line, taken as it stands."""
    found: dict[str, str] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, equals, value = line.rstrip("\n").partition("=")
            if equals and not name.startswith("#"):
                found[name.strip()] = value
    return found


def use_env(path: str, environ: MutableMapping[str, str]) -> None:
    """Puts the variables of a file into the environment where it has none of that name. ``PATH`` is taken over."""
    for name, value in read_env(path).items():
        if name == "PATH" or not environ.get(name):
            environ[name] = value
