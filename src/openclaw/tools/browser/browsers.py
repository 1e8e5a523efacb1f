"""The browsers of the Gateway, one for each profile: started when they are needed, ended when nobody uses them.

``Browsers`` keeps them, ``RunningBrowser`` is one with its tabs, and ``BrowserProcess`` is its program, of which
nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema.system import Browser, BrowserProfile
from openclaw.paths import make_private_dir
from openclaw.text import redact_urls
from openclaw.tools.base import ToolError
from openclaw.tools.browser.guard import (
    BLANK,
    AddressRefused,
    GuardProxy,
    NetworkRules,
    Resolver,
    checked_address,
    checked_resolver,
)
from openclaw.tools.browser.tab import (
    MOST_MESSAGE_BYTES,
    CdpClosed,
    CdpConnection,
    CdpError,
    FrameSession,
    PipeTransport,
    Tab,
    Transport,
    WebSocketTransport,
)
from openclaw.tools.shell_process import signal_tree, survivors

log = logging.getLogger("openclaw.gateway.browser")
DEFAULT_PROFILE = "openclaw"
MOST_TABS = 20
MOST_REMEMBERED = 256
START_S = 60.0
IDLE_CHECK_S = 30.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "brave-browser", "microsoft-edge")
END_S = 5.0
_LAST_LINES = 20
_PAGES = [{"type": "page", "exclude": False}, {"exclude": True}]
_KEPT = (
    *("PATH", "LANG", "LANGUAGE", "LC_ALL", "TZ", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR"),
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


# The program


class ListedTab(msgspec.Struct, rename="camel"):
    """A tab in a list."""

    target_id: str
    title: str
    url: str
    type: str


class ListedProfile(msgspec.Struct, rename="camel"):
    """A profile of the configuration in a list."""

    name: str
    running: bool
    is_default: bool
    tab_count: int
    is_remote: bool


class ProfileStatus(msgspec.Struct, rename="camel"):
    """The state of a profile's browser. A field that does not apply to it is unset."""

    enabled: bool
    profile: str
    running: bool = False
    cdp_ready: bool = False
    tabs: int | msgspec.UnsetType = msgspec.UNSET
    product: str | msgspec.UnsetType = msgspec.UNSET
    pid: int | msgspec.UnsetType | None = msgspec.UNSET
    """Null if OpenClaw attached to a browser that somebody else started."""
    cdp_url: str | msgspec.UnsetType = msgspec.UNSET
    chosen_browser: str | msgspec.UnsetType = msgspec.UNSET
    detected_executable_path: str | msgspec.UnsetType = msgspec.UNSET
    detect_error: str | msgspec.UnsetType = msgspec.UNSET
    """Why no browser can be started for the profile."""
    user_data_dir: str | msgspec.UnsetType = msgspec.UNSET
    headless: bool | msgspec.UnsetType = msgspec.UNSET
    no_sandbox: bool | msgspec.UnsetType = msgspec.UNSET
    attach_only: bool | msgspec.UnsetType = msgspec.UNSET


class BrowserUnavailable(Exception):
    """No browser can be used. The text says what to do about it."""


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a browser is started with. Other settings require a restart."""

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
            raise BrowserUnavailable(f"browser.executablePath: {path} is not an executable program")
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
        self._last_lines: deque[bytes] = deque(maxlen=_LAST_LINES)
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

    def last_errors(self) -> str:
        """What the program wrote last, for the person who must find out why it does not start."""
        return b"\n".join(self._last_lines).decode("utf-8", "replace")[-1500:]

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
                self._last_lines.extend(line[:500] for line in chunk.splitlines())


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


# A browser and its tabs


class ProfileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A profile with everything that decides which browser serves it."""

    name: str
    cdp_url: str = ""
    """The browser that already runs. Empty: the Gateway starts one."""
    launch: LaunchSettings | None = None


class RunningBrowser:
    """A browser and its tabs."""

    def __init__(self, settings: ProfileSettings, folder: Path, proxy: GuardProxy | None, now: float) -> None:
        self.settings = settings
        self.folder = folder
        self.proxy = proxy
        self.process: BrowserProcess | None = None
        self.tabs: dict[str, Tab] = {}
        self.used_at = now
        self.in_use = 0
        self.product = ""
        self.connection: CdpConnection
        self.begun = False
        """Whether there is a connection."""
        self._current: OrderedDict[str, str] = OrderedDict()
        self._sessions: dict[str, Tab] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._came = asyncio.Event()
        self._rules: Callable[[], NetworkRules] = NetworkRules
        self._resolve: Resolver | None = None

    @property
    def alive(self) -> bool:
        return not self.connection.ended.is_set() and (self.process is None or self.process.running)

    async def begin(self, transport: Transport) -> None:
        """Learns of the tabs that there are. Raises ``CdpError``."""
        self.connection, self.begun = CdpConnection(transport, self._event), True
        self.product = str((await self.connection.call("Browser.getVersion", timeout=START_S)).get("product") or "")
        attach = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True, "filter": _PAGES}
        await self.connection.call("Target.setAutoAttach", attach)
        if self._resolve is not None:
            # Asked of the browser and not of its tabs, it sees the requests of workers and frames as well.
            await self.connection.call("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})
        if self.process is not None:
            await self.connection.call("Browser.setDownloadBehavior", {"behavior": "deny"})

    def guard_requests(self, rules: Callable[[], NetworkRules], resolve: Resolver) -> None:
        """For a browser that already runs and does not use our proxy: each request is looked at before it is made."""
        self._rules, self._resolve = rules, resolve

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self.process is not None:
            with contextlib.suppress(CdpError):
                await self.connection.call("Browser.close", timeout=2)
            await self.process.end()
        await self.connection.close()
        for tab in self.tabs.values():
            tab.end()
        self.tabs, self._sessions = {}, {}
        await asyncio.to_thread(shutil.rmtree, self.uploads, True)

    @property
    def uploads(self) -> Path:
        """Copies of the files that pages were given."""
        return self.folder / "uploads"

    # Tabs

    async def list_tabs(self) -> list[ListedTab]:
        targets = (await self.connection.call("Target.getTargets"))["targetInfos"]
        return [
            ListedTab(target["targetId"], target["title"], target["url"], "page")
            for target in targets
            if target["type"] == "page" and target["targetId"] in self.tabs
        ]

    async def open_tab(self, session_key: str) -> Tab:
        """A new tab, or the empty one that the browser begins with."""
        for tab in self.tabs.values():
            if tab.fresh and self.process is not None and len(self.tabs) == 1:
                return await self.use(tab, session_key)
        if len(self.tabs) >= MOST_TABS:
            raise ToolError(f"{MOST_TABS} tabs are open; close one first")
        target_id = str((await self.connection.call("Target.createTarget", {"url": BLANK}))["targetId"])
        async with asyncio.timeout(START_S):
            while target_id not in self.tabs:
                self._came.clear()
                await self._came.wait()
        return await self.use(self.tabs[target_id], session_key)

    async def tab(self, target_id: str, session_key: str) -> Tab:
        """The tab that is named, by its id or the beginning of it, else the one that the session used last."""
        if target_id:
            named = [tab for key, tab in self.tabs.items() if key == target_id or key.startswith(target_id)]
            if len(named) != 1:
                problem = "is not a tab" if not named else "is the beginning of several tabs"
                raise ToolError(f"{target_id[:60]!r} {problem}; list them with the action tabs")
            return await self.use(named[0], session_key)
        current = self.tabs.get(self._current.get(session_key, ""))
        if current is None and self.tabs:
            current = list(self.tabs.values())[-1]
        return await self.use(current, session_key) if current is not None else await self.open_tab(session_key)

    async def use(self, tab: Tab, session_key: str) -> Tab:
        async with asyncio.timeout(START_S):
            await tab.ready.wait()
        tab.fresh = False
        self._current.pop(session_key, None)
        self._current[session_key] = tab.target_id
        while len(self._current) > MOST_REMEMBERED:
            self._current.popitem(last=False)
        return tab

    async def close_tab(self, tab: Tab) -> None:
        if len(self.tabs) == 1 and self.process is not None:
            # Without a tab the browser would end.
            await self.connection.call("Target.createTarget", {"url": BLANK})
        await self.connection.call("Target.closeTarget", {"targetId": tab.target_id})
        self._remove(tab)

    def _event(self, name: str, params: dict[str, Any], session: str) -> None:
        if name == "Target.attachedToTarget":
            target_id, own = str(params["targetInfo"]["targetId"]), str(params["sessionId"])
            if not session:
                self._add(target_id, own)
            elif (tab := self._sessions.get(session)) is not None:
                self._sessions[own] = tab
                self._spawn(self._prepare_frame(tab, FrameSession(own, target_id, session)))
        elif name == "Target.detachedFromTarget":
            tab = self._sessions.pop(str(params.get("sessionId")), None)
            if tab is not None and session:
                tab.frames.pop(str(params.get("sessionId")), None)
                self.connection.drop(str(params.get("sessionId")))
            elif tab is not None:
                self._remove(tab)
        elif name == "Fetch.requestPaused":
            self._spawn(self._let_through(params))
        elif (tab := self._sessions.get(session)) is not None:
            tab.event(name, params, session)

    def _add(self, target_id: str, session: str) -> None:
        tab = Tab(self.connection, target_id, session, self.proxy)
        if len(self.tabs) >= MOST_TABS + 1:
            # Pages open windows without end.
            self._spawn(self._close(target_id))
            return
        self.tabs[target_id] = self._sessions[session] = tab
        self._came.set()
        self._spawn(self._prepare(tab))

    def _remove(self, tab: Tab) -> None:
        self.tabs.pop(tab.target_id, None)
        for session in (tab.session, *tab.frames):
            self._sessions.pop(session, None)
        tab.end()

    async def _prepare(self, tab: Tab) -> None:
        try:
            await tab.prepare()
        except CdpError as error:
            log.info("a tab was gone before it could be used: %s", error)
            self._remove(tab)

    async def _prepare_frame(self, tab: Tab, frame: FrameSession) -> None:
        # The frame may have gone away in the meantime.
        with contextlib.suppress(CdpError):
            await tab.prepare_frame(frame)

    async def _close(self, target_id: str) -> None:
        with contextlib.suppress(CdpError):
            await self.connection.call("Target.closeTarget", {"targetId": target_id})

    async def _let_through(self, params: dict[str, Any]) -> None:
        from yarl import URL

        request, url = {"requestId": params["requestId"]}, str(params["request"]["url"])
        with contextlib.suppress(CdpError):
            try:
                if not url.startswith(("data:", "blob:", "about:")):
                    address = URL(checked_address(url, self._rules()))
                    assert self._resolve is not None
                    await self._resolve(address.raw_host or "", address.port or 0, self._rules())
            except (AddressRefused, OSError):
                await self.connection.call("Fetch.failRequest", {**request, "errorReason": "AccessDenied"})
            else:
                await self.connection.call("Fetch.continueRequest", request)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


# All browsers


class Browsers:
    """Keeps the browsers. It costs nothing until the first is started."""

    def __init__(
        self,
        config: Callable[[], Browser],
        state_dir: Path,
        environ: Mapping[str, str],
        clock: Clock,
        resolve: Resolver | None = None,
    ) -> None:
        self._config = config
        self._folder = state_dir / "browser"
        self._environ = environ
        self._clock = clock
        self._resolve = resolve or checked_resolver()
        self._running: dict[str, RunningBrowser] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._proxy: GuardProxy | None = None
        self._idle: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def config(self) -> Browser:
        return self._config()

    def rules(self) -> NetworkRules:
        return NetworkRules.of(self.config.ssrf_policy)

    def offered(self) -> bool:
        """Whether the agent gets the tool: it is switched on, and there is a browser."""
        config = self.config
        if not config.enabled:
            return False
        if config.cdp_url or any(profile.cdp_url for profile in config.profiles.values()):
            return True
        try:
            find_program(config, self._environ)
        except BrowserUnavailable:
            return False
        return not config.attach_only

    # Profiles

    def names(self) -> list[str]:
        return list(dict.fromkeys([self.default_name(), DEFAULT_PROFILE, *self.config.profiles]))

    def default_name(self) -> str:
        return self.config.default_profile or DEFAULT_PROFILE

    def settings(self, name: str) -> ProfileSettings:
        """Return the settings of a profile. Raises ``ToolError`` if the profile is unknown or has no browser."""
        config, name = self.config, name or self.default_name()
        profile = config.profiles.get(name)
        if profile is None:
            if name not in (DEFAULT_PROFILE, config.default_profile):
                raise ToolError(f"unknown browser profile {name[:60]!r}; profiles: {', '.join(self.names())}")
            profile = BrowserProfile()
        address = profile.cdp_url or ("" if name != self.default_name() else config.cdp_url) or ""
        if not address and config.attach_only and profile.cdp_port:
            address = f"http://127.0.0.1:{profile.cdp_port}"
        if address:
            return ProfileSettings(name=name, cdp_url=address)
        if config.attach_only:
            raise ToolError("browser.attachOnly is set, and this profile names no cdpUrl")
        try:
            return ProfileSettings(name=name, launch=LaunchSettings.of(config, self._environ))
        except BrowserUnavailable as problem:
            raise ToolError(str(problem)) from None

    def _profile_folder(self, name: str) -> Path:
        return self._folder / quote(name, safe="").replace(".", "%2E")

    def running(self, name: str) -> RunningBrowser | None:
        browser = self._running.get(name)
        return browser if browser is not None and browser.alive else None

    # Their life

    @contextlib.asynccontextmanager
    async def using(self, name: str) -> AsyncGenerator[RunningBrowser]:
        """The browser of a profile, started if need be. It is not ended while it is used."""
        browser = await self.start(name)
        browser.in_use += 1
        try:
            yield browser
        except CdpClosed as closed:
            if browser.alive:
                raise ToolError(f"the tab is gone ({closed}); list the tabs") from None
            raise ToolError("the browser ended unexpectedly; the next call starts it again, with new tabs") from None
        except CdpError as error:
            raise ToolError(f"the browser could not do it: {error}") from None
        finally:
            browser.in_use -= 1
            browser.used_at = self._clock.monotonic()

    async def start(self, name: str) -> RunningBrowser:
        """Return the browser of a profile. A browser that crashed, or whose settings changed, is restarted."""
        if not self.config.enabled:
            raise ToolError("the browser is switched off (browser.enabled)")
        if self._closed:
            raise ToolError("the Gateway stops")
        settings = self.settings(name)
        async with self._locks.setdefault(settings.name, asyncio.Lock()):
            running = self._running.get(settings.name)
            if running is not None and running.alive and running.settings == settings:
                running.used_at = self._clock.monotonic()
                return running
            if running is not None:
                await self._end(running)
            browser = await self._begin(settings)
            self._running[settings.name] = browser
            if self._idle is None:
                self._idle = asyncio.create_task(self._end_idle(), name="idle browsers")
            return browser

    async def _begin(self, settings: ProfileSettings) -> RunningBrowser:
        folder = self._profile_folder(settings.name)
        if settings.launch is None:
            return await self._attach(settings, folder)
        if self._proxy is None:
            proxy = GuardProxy(self.rules, self._resolve)
            await proxy.start()
            self._proxy = proxy
        browser = RunningBrowser(settings, folder, self._proxy, self._clock.monotonic())
        try:
            browser.process = await BrowserProcess.start(settings.launch, folder, self._proxy.port, self._environ)
        except BrowserUnavailable as problem:
            raise ToolError(str(problem)) from None
        try:
            await browser.begin(browser.process.transport)
        except CdpError as error:
            await browser.end()
            words = browser.process.last_errors().splitlines()
            log.warning("the browser did not start (%s): %s", error, " | ".join(words[-5:]))
            worst = next((line for line in words if "FATAL" in line), words[-1] if words else "")
            output = f"; it said: {worst[-300:]}" if worst else ""
            raise ToolError(f"{settings.launch.executable} did not start{output}") from None
        except BaseException:
            await browser.end()
            raise
        log.info("browser %s started: %s, pid %d", settings.name, browser.product, browser.process.pid)
        return browser

    async def _attach(self, settings: ProfileSettings, folder: Path) -> RunningBrowser:
        config = self.config
        limits = config.remote_cdp_timeout_ms / 1000, config.remote_cdp_handshake_timeout_ms / 1000
        browser = RunningBrowser(settings, folder, None, self._clock.monotonic())
        browser.guard_requests(self.rules, self._resolve)
        shown = redact_urls(settings.cdp_url)
        try:
            transport = await WebSocketTransport.open(settings.cdp_url, *limits)
            await browser.begin(transport)
        except CdpError as error:
            if browser.begun:
                await browser.end()
            raise ToolError(f"the browser at {shown} cannot be used: {error}") from None
        log.info("browser %s connected: %s", settings.name, shown)
        return browser

    async def stop(self, name: str) -> bool:
        """Ends the browser of a profile, and says whether one ran. A browser of others is only let go."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            browser = self._running.get(name)
            if browser is None:
                return False
            alive = browser.alive
            await self._end(browser)
            return alive

    async def close(self) -> None:
        """Ends everything. Nothing can be started afterwards."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
            await asyncio.gather(self._idle, return_exceptions=True)
        await asyncio.gather(*(self.stop(name) for name in list(self._running)))
        if self._proxy is not None:
            await self._proxy.stop()
            self._proxy = None

    async def settings_changed(self) -> None:
        """Stop the browsers whose settings changed. They start again when needed."""
        for name, browser in list(self._running.items()):
            try:
                same = self.config.enabled and self.settings(name) == browser.settings
            except ToolError:
                same = False
            if not same:
                await self.stop(name)
        if self._proxy is not None:
            self._proxy.recheck()

    async def _end(self, browser: RunningBrowser) -> None:
        self._running.pop(browser.settings.name, None)
        await browser.end()

    async def _end_idle(self) -> None:
        while True:
            await self._clock.sleep(IDLE_CHECK_S)
            minutes = self.config.idle_minutes
            before = self._clock.monotonic() - minutes * 60
            for name, browser in list(self._running.items()):
                if minutes and not browser.in_use and browser.used_at < before:
                    log.info("browser %s was not used for %d minutes and is ended", name, minutes)
                    await self.stop(name)

    # Status

    def status(self, name: str) -> ProfileStatus:
        config, name = self.config, name or self.default_name()
        status = ProfileStatus(config.enabled, name)
        try:
            settings = self.settings(name)
        except ToolError as problem:
            if name not in self.names():
                raise
            status.detect_error, status.headless, status.no_sandbox = str(problem), config.headless, config.no_sandbox
            return status
        if (browser := self.running(settings.name)) is not None:
            status.running = status.cdp_ready = True
            status.tabs, status.product = len(browser.tabs), browser.product
            status.pid = browser.process.pid if browser.process else None
        if settings.launch is None:
            status.cdp_url, status.attach_only = redact_urls(settings.cdp_url), config.attach_only
            return status
        launch = settings.launch
        status.chosen_browser, status.detected_executable_path = Path(launch.executable).name, launch.executable
        status.user_data_dir = str(self._profile_folder(name) / "data")
        status.headless, status.no_sandbox, status.attach_only = launch.headless, launch.no_sandbox, False
        return status

    def profiles(self) -> list[ListedProfile]:
        rows: list[ListedProfile] = []
        for name in self.names():
            browser, profile = self.running(name), self.config.profiles.get(name)
            address = (profile.cdp_url if profile else None) or (
                self.config.cdp_url if name == self.default_name() else None
            )
            tabs = len(browser.tabs) if browser else 0
            rows.append(ListedProfile(name, browser is not None, name == self.default_name(), tabs, bool(address)))
        return rows
