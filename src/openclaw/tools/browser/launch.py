"""Starts and ends the browser program: which one, with which arguments, and nothing of it left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from openclaw.config.schema.system import Browser
from openclaw.paths import make_private_dir
from openclaw.tools.browser.cdp import MOST_MESSAGE_BYTES, PipeTransport
from openclaw.tools.shell_process import signal_tree, survivors

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "brave-browser", "microsoft-edge")
END_S = 5.0
_LAST_LINES = 20
_KEPT = (
    "PATH",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "TZ",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
)
"""What the browser gets of the Gateway's environment. Keys of the Gateway are not among it."""
_ARGUMENTS = (
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-service-autorun",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-client-side-phishing-detection",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-features=AutofillServerCommunication,InterestFeedV2,MediaRouter,OptimizationHints,Translate,HttpsUpgrades",
    "--disable-search-engine-choice-screen",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-pings",
    "--password-store=basic",
    "--use-mock-keychain",
    # Everything goes through the proxy of guard.py. These three close the ways around it: loopback, names that the
    # browser would resolve itself, and datagrams of calls between browsers.
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--disk-cache-size=104857600",
)


_PREFERENCES = (
    '{"signin":{"allowed":false,"allowed_on_next_startup":false},"credentials_enable_service":false,'
    '"profile":{"password_manager_enabled":false},"search":{"suggest_enabled":false}}'
)
"""What a new profile begins with: nobody is signed in, and it offers to keep no passwords."""


class BrowserUnavailable(Exception):
    """There is no browser. The text says what to do about it."""


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser is started with. A browser with other settings must be started anew."""

    executable: str
    headless: bool
    no_sandbox: bool

    @classmethod
    def of(cls, config: Browser, environ: Mapping[str, str]) -> LaunchSettings:
        """Raises ``BrowserUnavailable``."""
        display = environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
        return cls(
            executable=find_program(config, environ),
            headless=config.headless or not display,
            no_sandbox=config.no_sandbox,
        )


def find_program(config: Browser, environ: Mapping[str, str]) -> str:
    """The path of the browser program. Raises ``BrowserUnavailable``."""
    if config.executable_path:
        path = str(Path(config.executable_path).expanduser())
        if not os.access(path, os.X_OK) or Path(path).is_dir():
            raise BrowserUnavailable(f"browser.executablePath: {path} is no program that can be started")
        return path
    for name in PROGRAMS:
        if found := shutil.which(name, path=environ.get("PATH", os.defpath)):
            return found
    raise BrowserUnavailable(
        "no browser is installed; install Chromium (Debian: apt install chromium), or set browser.executablePath"
    )


class BrowserProcess:
    """A browser that the Gateway started, with a folder of its own."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        assert process.stdout is not None and process.stdin is not None and process.stderr is not None
        self._process = process
        self._folder = folder
        self.pid = process.pid
        self.transport = PipeTransport(process.stdout, process.stdin)
        self._last_words: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._listening = asyncio.create_task(self._listen(process.stderr), name="browser errors")
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, settings: LaunchSettings, folder: Path, proxy_port: int, environ: Mapping[str, str]
    ) -> BrowserProcess:
        """Starts the program with ``folder`` for its data. Raises ``BrowserUnavailable``."""
        if os.geteuid() == 0 and not settings.no_sandbox:
            raise BrowserUnavailable(
                "the Gateway runs as root, and Chromium keeps no sandbox then; run the Gateway as another user, or set "
                "browser.noSandbox to true if the machine is a container of its own"
            )
        await asyncio.to_thread(_prepare, folder)
        environment = {name: environ[name] for name in _KEPT if name in environ}
        environment["HOME"] = str(folder)
        arguments = [
            *_ARGUMENTS,
            f"--user-data-dir={folder / 'data'}",
            f"--proxy-server=socks5://127.0.0.1:{proxy_port}",
        ]
        arguments += ["--headless=new", "--hide-scrollbars", "--mute-audio"] if settings.headless else []
        arguments += ["--no-sandbox"] if settings.no_sandbox else []
        # The protocol is spoken on descriptors 3 and 4. A small sh moves our two pipes there.
        move = 'exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>/dev/null'
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", move, settings.executable, *arguments, "about:blank"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                cwd=str(folder),
                start_new_session=True,
                limit=MOST_MESSAGE_BYTES,
            )
        except OSError as error:
            raise BrowserUnavailable(f"{settings.executable} cannot be started: {error.strerror or error}") from None
        return cls(process, folder)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def last_words(self) -> str:
        """What the program wrote last, for the person who must find out why it does not start."""
        return b"\n".join(self._last_words).decode("utf-8", "replace")[-1500:]

    async def end(self) -> None:
        """Ends the program and all processes that it started. It goes on even if the caller is cancelled."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        # Asked first by closing the pipe: then the browser writes cookies and settings to its folder.
        with contextlib.suppress(OSError, RuntimeError):
            await self.transport.close()
        members = await asyncio.to_thread(survivors, self.pid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._process.wait()
        # Once the leader is reaped, its number may be somebody else's. The others are known by their start times.
        left = await asyncio.to_thread(survivors, self.pid if self.running else -1, members)
        if left or self.running:
            await asyncio.to_thread(_kill, self.pid, left, running=self.running)
        await self._process.wait()
        await asyncio.to_thread(_sweep, str(self._folder))
        # Nobody holds the pipe any more, so its end comes at once.
        await asyncio.wait({self._listening}, timeout=END_S)
        self._listening.cancel()

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := await errors.read(4096):
                self._last_words.extend(line[:500] for line in chunk.splitlines())


def _prepare(folder: Path) -> None:
    for part in (folder, folder / "data"):
        make_private_dir(str(part))
    preferences = folder / "data" / "Default" / "Preferences"
    if not preferences.exists():
        make_private_dir(str(preferences.parent))
        preferences.write_text(_PREFERENCES)
    # A lock that a killed browser left would keep the next one from its folder. Only one Gateway uses the folder.
    for name in ("SingletonLock", "SingletonSocket", "SingletonCookie"):
        (folder / "data" / name).unlink(missing_ok=True)


def _kill(leader: int, left: dict[int, int], *, running: bool) -> None:
    if running:
        signal_tree(leader, signal.SIGKILL, left)
        return
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _sweep(folder: str) -> None:
    """Ends helpers that left the tree, such as the one that waits for crashes. Their command lines name the folder."""
    mark = f"={folder}/".encode()
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in Path(entry.path, "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
