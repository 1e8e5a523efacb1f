"""The Gateway process: one for each state directory. It starts, stops and restarts in place."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import logging
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from openclaw.clock import Clock, SystemClock
from openclaw.config.load import read_config
from openclaw.config.schema import Config
from openclaw.config.store import ConfigInvalid, ConfigStore
from openclaw.gateway.assemble import StartOptions, close_gateway, open_gateway, start_scheduler
from openclaw.gateway.auth.authorise import SharedSecret, shared_secret
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.logs import Logs
from openclaw.gateway.server.server import (
    LOOPBACK,
    Server,
    StartRefused,
    bind_host,
    own_address,
    own_addresses,
    reachable_host,
    serve,
)
from openclaw.gateway.services import Services
from openclaw.gateway.tls import ServerTls, TlsProblem
from openclaw.paths import config_path, make_private_dir, state_dir
from openclaw.storage.disk_errors import describe_failure, is_storage_failure, refusal_text
from openclaw.storage.errors import Fenced, StorageRefused
from openclaw.storage.files.backup import BackupError
from openclaw.storage.files.check import Narrowed, narrow
from openclaw.storage.files.newer_state import Unreadable, check_generation
from openclaw.storage.files.restore import finish_restore
from openclaw.storage.files.session_store import sessions_folders
from openclaw.text import counted
from openclaw.tools import shell_process
from openclaw.worker_thread import SWITCH_S

log = logging.getLogger("openclaw.gateway")
START_AGAIN_S = 1.0
LOCK_NAME = "gateway.lock"
LOCK_BYTES = 4096
PR_SET_DUMPABLE = 4


class Options(msgspec.Struct, kw_only=True):
    """What the command line sets. It wins over the configuration file."""

    port: int | None = None
    bind: str | None = None
    token: str | None = None
    password: str | None = None
    auth: str | None = None
    allow_unconfigured: bool = False
    """Start whatever ``gateway.mode`` says."""
    verbose: bool = False


class CannotStart(Exception):
    """The Gateway cannot start. The text says what is wrong and what to do, for the person at the terminal."""


def run(options: Options) -> int:
    """Serve until it is asked to stop. Returns 0 after a clean stop and 1 if it could not start."""
    # Every file that the Gateway makes is its owner's alone, whatever the service manager's mask says. Commands of
    # agents make files for others too.
    shell_process.command_umask = os.umask(0o077) | 0o022
    _hide_from_commands()
    state = make_private_dir(state_dir())
    # Agents may run `openclaw`, and the PATH of a service may lack its folder.
    folder, search_path = Path(sys.executable).parent, os.environ.get("PATH", os.defpath)
    if (folder / "openclaw").is_file() and shutil.which("openclaw", path=search_path) is None:
        os.environ["PATH"] = os.pathsep.join([search_path, str(folder)])
    try:
        lock = GatewayLock.acquire(state, os.environ)
    except AlreadyRunning as running:
        print(f"openclaw: {running}", file=sys.stderr)
        return 1
    except OSError as error:
        return _disk_refuses(error)
    try:
        finish_restore(Path(state))  # One that was killed.
    except (BackupError, OSError) as error:
        lock.release()
        if isinstance(error, OSError):
            return _disk_refuses(error)
        print(f"openclaw: {error}", file=sys.stderr)
        return 1
    try:
        import uvloop

        new_loop = uvloop.new_event_loop
    except ImportError:  # Without uvloop (on Windows) the standard loop is used; it is slower.
        new_loop = None
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            stop, first = asyncio.Event(), True
            while runner.run(_serve_patiently(state, options, lock, stop, first=first)):
                log.info("restarting in place")
                first = False
        return 0
    except CannotStart as problem:
        print(f"openclaw: {problem}", file=sys.stderr)
        return 1
    except OSError as error:
        return _disk_refuses(error)
    finally:
        lock.release()


def _hide_from_commands() -> None:
    """Keep the memory and the environment of this process, keys included, from other programs of the same user."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _tell_narrowed(narrowed: Narrowed, state: str) -> None:
    if narrowed.count:
        log.warning(
            "other users of this machine could open files of %s, and secrets may have been read. Made private: %s",
            state,
            narrowed,
        )
    for problem in narrowed.failed[:5]:
        log.warning("others may read a file that cannot be made private: %s", problem)


def _disk_refuses(error: OSError) -> int:
    if refusal_text(error) is None:
        raise error
    print(f"openclaw: {describe_failure(error)}, then start again", file=sys.stderr)
    return 1


async def _serve_patiently(
    state: str, options: Options, lock: GatewayLock, stop: asyncio.Event, *, first: bool
) -> bool:
    """Run the Gateway once. Returns True when it is to start again.

    A Gateway that had started once waits for a database that cannot be reached. One that the cluster gave up while it
    started joins again.
    """
    try:
        return await _serve(state, options, lock, stop)
    except Fenced:
        problem = "the cluster gave this node up while it started"
    except OSError as error:
        if first or not is_storage_failure(error):
            raise
        problem = describe_failure(error)
    print(f"openclaw: {problem}; starting again", file=sys.stderr)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), START_AGAIN_S)
    return not stop.is_set()


async def _serve(state: str, options: Options, lock: GatewayLock, stop: asyncio.Event) -> bool:
    """Run the Gateway once. Returns True when it is to start again."""
    clock = SystemClock()
    await asyncio.to_thread(_check_state, state)
    config = ConfigStore(config_path(), clock, os.environ)
    try:
        await asyncio.to_thread(config.load_or_create)
    except ConfigInvalid as invalid:
        lines = "\n".join(f"  - {issue}" for issue in invalid.issues[:10])
        raise CannotStart(
            f"{config.path} is not valid, and no earlier good version exists:\n{lines}\nCorrect it, then start again."
        ) from None
    if config.refusals:
        lines = "\n".join(f"  - {refusal}" for refusal in config.refusals)
        raise CannotStart(f"{config.path} asks for safety that this version does not give:\n{lines}")
    settings = config.current.gateway
    if settings.mode == "remote" and not options.allow_unconfigured:
        raise CannotStart("gateway.mode is `remote`: this machine uses another Gateway. Set gateway.mode to `local`.")
    try:
        host = await asyncio.to_thread(bind_host, options.bind or settings.bind, settings.custom_bind_host)
    except StartRefused as refused:
        raise CannotStart(str(refused)) from None
    port = settings.port if options.port is None else options.port
    lock.port_given = options.port is not None
    logs = Logs.start(state, config.current.logging, verbose=options.verbose)
    try:
        config.log_warnings()
        _tell_narrowed(await asyncio.to_thread(narrow, state), state)
        if (options.bind or settings.bind) == "tailnet" and host == LOOPBACK:
            log.warning("gateway.bind is tailnet, but this machine has no tailnet address; listening on %s only", host)
        secret = given_secret(config.current, options)
        async with serving(state, config, clock, os.environ, host, port, secret=secret, lock=lock) as (gateway, server):
            _collect_garbage_rarely()
            sys.setswitchinterval(SWITCH_S)
            print(f"OpenClaw Gateway: {server.url(host)}", flush=True)
            if gateway.tls is not None:
                print(f"TLS fingerprint (SHA-256): {gateway.tls.fingerprint}", flush=True)
            return await _until_stopped(gateway, stop)
    finally:
        logs.stop()


def _check_state(state: str) -> None:
    """Refuse a folder whose sessions this version cannot open, before anything is written to it."""
    template = read_config(config_path(), os.environ).config.session.store
    try:
        check_generation(Path(state), sessions_folders(state, template))
    except Unreadable as problem:
        raise CannotStart(str(problem)) from None


@asynccontextmanager
async def serving(
    state: str,
    config: ConfigStore,
    clock: Clock,
    environ: Mapping[str, str],
    host: str,
    port: int,
    *,
    secret: SharedSecret | None = None,
    lock: GatewayLock | None = None,
) -> AsyncGenerator[tuple[Gateway, Server]]:
    """Open a Gateway that listens and has resumed its unfinished messages. Leaving the context stops and close it."""
    tls = await asyncio.to_thread(_open_tls, config.current, state, clock)
    options = StartOptions(secret=secret, owner_key=lock.owner_key if lock is not None else "", tls=tls)
    try:
        gateway = await open_gateway(state, config, clock, environ, options)
    except StorageRefused as refused:
        raise CannotStart(str(refused)) from None
    services, server = Services(gateway), None
    try:
        unfinished = await gateway.cluster.find_unfinished(
            gateway.runs, after_orderly_stop=lock is not None and lock.after_orderly_stop
        )
        server = await _listen(gateway, host, port)
        if lock is not None:
            _describe(lock, gateway, host)
        await services.start()
        if unfinished:
            log.info("resuming %s", counted(unfinished, "unfinished message", "unfinished messages"))
        await gateway.runtime.tools.questions.load()
        gateway.runs.start_unfinished()
        await gateway.cluster.start(server.url(own_address(host)), tls.fingerprint if tls else "")
        await gateway.cluster.recover(gateway.pipeline)
        await gateway.team.start()
        await services.report_repairs()
        await gateway.channel_services.start()
        await start_scheduler(gateway)
        await gateway.runtime.extensions.tell_all("gateway_started")
        yield gateway, server
        restart = gateway.restart.requested.is_set()
        await gateway.cluster.drain(gateway)
        await server.stop("gateway restarting" if restart else "gateway stopping", 1500 if restart else None)
        server = None
    finally:
        if server is not None:  # The start, or what ran meanwhile, has failed. The next start listens at the same port.
            await server.stop()
        await services.stop()
        await close_gateway(gateway)
        if lock is not None:
            lock.after_orderly_stop = True  # A restart in place comes here, and the process goes on.


def _open_tls(config: Config, state: str, clock: Clock) -> ServerTls | None:
    settings = config.gateway.tls
    if not settings.enabled:
        return None
    try:
        return ServerTls(settings, state, clock, [*own_addresses(), config.gateway.custom_bind_host or ""])
    except TlsProblem as problem:
        raise CannotStart(str(problem)) from None


def _describe(lock: GatewayLock, gateway: Gateway, host: str) -> None:
    """Write into the lock file how programs of this user reach the Gateway, also when its certificate changes."""
    tls = gateway.tls

    def describe() -> None:
        lock.describe(
            started_at=gateway.started_at,
            host=reachable_host(host),
            port=gateway.port,
            config_path=gateway.runtime.config.path,
            tls_fingerprint=tls.fingerprint if tls else None,
        )

    describe()
    if tls is not None:
        tls.changed = describe


def _collect_garbage_rarely() -> None:
    """Exclude the objects of the start from garbage collection, and make it look at the others less often.

    With Python's defaults the collector takes 7 % of every turn, and with 10,000 sessions it stops everything for 30 ms
    at a time. The first threshold is so high because a hundred runs under way hold 10,000 short-lived objects. The
    second is low, because a collection of the middle generation stops everything for as long as that has grown.
    """
    gc.freeze()
    gc.set_threshold(30_000, 5, 200)
    gc.enable()


def given_secret(config: Config, options: Options) -> SharedSecret | None:
    """The secret from the command line, which wins over the file. None when the command line has none."""
    if not (options.token or options.password or options.auth):
        return None
    stored = shared_secret(config, os.environ)
    mode = options.auth or ("password" if options.password and not options.token else "token")
    return SharedSecret(
        mode="password" if mode == "password" else "token",
        token=options.token or stored.token,
        password=options.password or stored.password,
    )


async def _listen(gateway: Gateway, host: str, port: int) -> Server:
    try:
        return await serve(gateway, host, port)
    except StartRefused as refused:
        raise CannotStart(str(refused)) from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise CannotStart(f"cannot listen on {host}:{port}: {error.strerror}") from None
        raise CannotStart(
            f"another gateway instance is already listening on ws://{host}:{port}. "
            "Stop it, or choose another port with --port or gateway.port."
        ) from None


async def _until_stopped(gateway: Gateway, stop: asyncio.Event) -> bool:
    """Wait for a signal or for a requested restart. Returns True when the Gateway is to start again.

    ``stop`` is the process's own, because a signal to stop may come while the Gateway starts again.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, gateway.restart.requested.set)
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(gateway.restart.requested.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return not stop.is_set()


class AlreadyRunning(Exception):
    """Another process uses the state directory. The text names it."""


class GatewayLock:
    """The lock on a state directory, held until ``release`` or the end of the process. The file itself may stay.

    The file says who holds the lock, and after an orderly stop that nobody does. It is always written in place, so
    that a full disk takes it too.
    """

    def __init__(self, state_dir: str, descriptor: int | None) -> None:
        self.path = Path(state_dir) / LOCK_NAME
        self._descriptor = descriptor
        self.owner_key = secrets.token_hex(16)
        """Only this user can read it in the file. A caller that sends it is not slowed down by strangers."""
        self.after_orderly_stop = descriptor is not None and not isinstance(_read(descriptor).get("pid"), int)
        """The last Gateway stopped because it was told to. False when it died, or when nobody knows."""
        self.port_given = False
        """The port is that of the command line, which a restart by a command keeps."""

    @classmethod
    def acquire(cls, state_dir: str, environ: Mapping[str, str]) -> GatewayLock:
        if environ.get("OPENCLAW_ALLOW_MULTI_GATEWAY") == "1":
            return cls(state_dir, None)
        make_private_dir(state_dir)
        descriptor = os.open(Path(state_dir) / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read(descriptor)
            os.close(descriptor)
            raise AlreadyRunning(_who(holder, state_dir)) from None
        return cls(state_dir, descriptor)

    def describe(
        self, *, started_at: int, host: str, port: int, config_path: str, tls_fingerprint: str | None = None
    ) -> None:
        """Write who holds the lock into the file, for other processes and for the command line."""
        facts: dict[str, Any] = {
            "pid": os.getpid(),
            "startedAt": started_at,
            "host": host,
            "port": port,
            "configPath": config_path,
        }
        facts |= {"ownerKey": self.owner_key, "tlsFingerprint": tls_fingerprint, "portGiven": self.port_given}
        self._put(facts)

    def release(self) -> None:
        if self._descriptor is not None:
            self._put({})
            os.close(self._descriptor)
            self._descriptor = None

    def _put(self, facts: dict[str, Any]) -> None:
        if self._descriptor is None:
            return
        try:
            os.pwrite(self._descriptor, json.dumps(facts).encode().ljust(LOCK_BYTES), 0)
            os.ftruncate(self._descriptor, LOCK_BYTES)
            os.fsync(self._descriptor)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.path, error)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        facts = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _who(holder: dict[str, Any], state_dir: str) -> str:
    pid, since, port = holder.get("pid"), holder.get("startedAt"), holder.get("port")
    if not isinstance(pid, int):
        return f"another Gateway is starting with {state_dir}; wait for it or stop it first"
    text = f"a Gateway already runs with {state_dir}: pid {pid}"
    if isinstance(since, int):
        text += f", since {datetime.fromtimestamp(since / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(port, int):
        text += f", on port {port}"
    return f"{text}. Stop it with `openclaw gateway stop`, or use another OPENCLAW_STATE_DIR"
