"""The tabs of a browser, and the connection to it in the Chrome DevTools protocol: calls with answers, and events.

A tab knows its page, what the page said and asked, and the refs of the last snapshot. The browser that the Gateway
starts speaks over a pipe, not over a port: nobody else on the machine can take it over, and it ends by itself when the
Gateway is gone, even after a kill. A browser that already runs is reached by WebSocket.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw.net import read_bounded
from openclaw.tools.base import ToolError
from openclaw.tools.browser.guard import BLANK, GuardProxy
from openclaw.tools.browser.snapshot import AccessibilityTree, Element, RefNode

MOST_MESSAGE_BYTES = 128 * 1024 * 1024
"""A picture or a tree of a large page comes as one message."""
CALL_S = 30.0

log = logging.getLogger("openclaw.gateway.browser")


class CdpError(Exception):
    """A call to the browser failed."""


class CdpClosed(CdpError):
    """The connection is gone: the browser has ended or crashed, or the tab is closed."""


class CdpRefused(CdpError):
    """The browser refused a call. The text is the browser's."""


class CdpTimeout(CdpRefused):
    """The browser did not answer in time."""


class Transport(Protocol):
    async def send(self, text: bytes) -> None: ...

    async def receive(self) -> bytes | None:
        """The next message, or None at the end."""
        ...

    async def close(self) -> None: ...


class PipeTransport:
    """Messages on two pipes. Each ends with a zero byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, text: bytes) -> None:
        self._writer.write(text + b"\0")
        await self._writer.drain()

    async def receive(self) -> bytes | None:
        try:
            return (await self._reader.readuntil(b"\0"))[:-1]
        except asyncio.LimitOverrunError:
            log.warning("the browser sent a message of more than %d bytes; it is ended", MOST_MESSAGE_BYTES)
            return None
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        self._writer.close()


class WebSocketTransport:
    """Messages of a browser that already runs."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session = session
        self._socket = socket

    @classmethod
    async def open(cls, address: str, lookup_s: float, handshake_s: float) -> WebSocketTransport:
        """Connects to ``ws://…``, or to the socket that ``http://…`` names. Raises ``CdpError``."""
        session = aiohttp.ClientSession(trust_env=False)
        try:
            if address.startswith(("http://", "https://")):
                async with asyncio.timeout(lookup_s):
                    address = await _socket_of(session, address)
            async with asyncio.timeout(handshake_s):
                return cls(session, await session.ws_connect(address, max_msg_size=MOST_MESSAGE_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            await session.close()
            raise CdpClosed(f"it does not answer ({type(error).__name__})") from None
        except BaseException:
            await session.close()
            raise

    async def send(self, text: bytes) -> None:
        await self._socket.send_str(text.decode())

    async def receive(self) -> bytes | None:
        message = await self._socket.receive()
        if message.type == aiohttp.WSMsgType.TEXT:
            return message.data.encode()
        return message.data if message.type == aiohttp.WSMsgType.BINARY else None

    async def close(self) -> None:
        await self._socket.close()
        await self._session.close()


async def _socket_of(session: aiohttp.ClientSession, address: str) -> str:
    """The WebSocket of a browser. A browser behind a tunnel names a host of its own, so the known one is kept."""
    from yarl import URL

    base = URL(address)
    async with session.get(base / "json" / "version", allow_redirects=False) as response:
        version = msgspec.json.decode(await read_bounded(response, 64 * 1024))
    url = URL(str(version["webSocketDebuggerUrl"]) if isinstance(version, dict) else "")
    scheme = "wss" if base.scheme == "https" else "ws"
    return str(url.with_scheme(scheme).with_host(base.host or "").with_port(base.port))


class CdpConnection:
    """Calls and events of one browser. Tabs are sessions of it."""

    def __init__(self, transport: Transport, event: Callable[[str, dict[str, Any], str], None]) -> None:
        """``event`` is called with the name, the parameters and the session."""
        self._transport = transport
        self._event = event
        self._waiting: dict[int, tuple[asyncio.Future[Any], str]] = {}
        self._last_id = 0
        self.ended = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="browser connection")

    async def call(
        self, method: str, params: dict[str, Any] | None = None, session: str = "", timeout: float = CALL_S
    ) -> dict[str, Any]:
        """The result of a method. Raises ``CdpError``."""
        if self.ended.is_set():
            raise CdpClosed("the browser has ended")
        self._last_id += 1
        number, answer = self._last_id, asyncio.get_running_loop().create_future()
        request: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session:
            request["sessionId"] = session
        self._waiting[number] = answer, session
        try:
            async with asyncio.timeout(timeout):
                await self._transport.send(msgspec.json.encode(request))
                return await answer
        except TimeoutError:
            raise CdpTimeout(f"{method} was not answered within {timeout:g} s") from None
        except (OSError, RuntimeError) as error:
            raise CdpClosed(f"the browser cannot be reached ({type(error).__name__})") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with contextlib.suppress(OSError, RuntimeError, aiohttp.ClientError):
            await self._transport.close()

    def drop(self, session: str) -> None:
        """Ends the calls that wait for a tab which is gone."""
        for answer, owner in list(self._waiting.values()):
            if owner == session and not answer.done():
                answer.set_exception(CdpClosed("the tab is closed"))

    async def _read(self) -> None:
        try:
            while (raw := await self._transport.receive()) is not None:
                self._take(raw)
        finally:
            self.ended.set()
            for answer, _ in list(self._waiting.values()):
                if not answer.done():
                    answer.set_exception(CdpClosed("the browser has ended"))

    def _take(self, raw: bytes) -> None:
        try:
            message = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            log.warning("the browser sent invalid JSON")
            return
        if not isinstance(message, dict):
            return
        if (number := message.get("id")) is not None:
            answer, _ = self._waiting.get(number, (None, ""))
            if answer is None or answer.done():
                return
            if (error := message.get("error")) is not None:
                answer.set_exception(CdpRefused(str(error.get("message") if isinstance(error, dict) else error)[:500]))
            else:
                answer.set_result(message.get("result") or {})
            return
        try:
            self._event(str(message.get("method")), message.get("params") or {}, str(message.get("sessionId") or ""))
        except Exception:
            log.exception("an event of the browser could not be handled")


WORLD = "openclaw"
"""Scripts of ours run in a world of their own, where the page cannot replace what they call."""
MOST_CONSOLE = 500
LONGEST_CONSOLE = 1000
MOST_FRAMES = 50
MOST_GONE_REFS = 2000
SETTLE_S = 10.0
STILL_TRIES, STILL_S = 20, 0.05
"""How often and how long it is waited for an element that is being scrolled."""
MOST_PIXELS_HIGH = 16_000
MOST_PIXELS_WIDE = 4000
MOST_PDF_BYTES = 32 * 1024 * 1024
_FRAMES = {
    "autoAttach": True,
    "waitForDebuggerOnStart": False,  # It would stop workers, too, which nobody sets going again.
    "flatten": True,
    "filter": [{"type": "iframe", "exclude": False}, {"exclude": True}],
}
_READABLE = ("http://", "https://", "blob:http", "chrome-error://")

_FAILED = {
    "net::ERR_NAME_NOT_RESOLVED": "its name is not known",
    "net::ERR_CONNECTION_REFUSED": "nothing answers there",
    "net::ERR_SOCKS_CONNECTION_HOST_UNREACHABLE": "it could not be reached",
    "net::ERR_SOCKS_CONNECTION_FAILED": "it could not be reached",
    "net::ERR_ABORTED": "it is a download or was stopped; files are not downloaded",
}


class ConsoleEntry(msgspec.Struct, frozen=True):
    type: str
    text: str
    timestamp: int
    location: str = ""


class FrameSession(NamedTuple):
    """A frame of another site. It runs in a process of its own and is spoken to on a session of its own."""

    session: str
    frame_id: str
    parent: str
    """The session of the page or frame that it stands in."""


class Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float


class DialogAnswer(msgspec.Struct, frozen=True):
    """How the next dialog of the page is answered."""

    accept: bool
    text: str = ""


class Tab:
    def __init__(self, connection: CdpConnection, target_id: str, session: str, proxy: GuardProxy | None) -> None:
        self.target_id = target_id
        self.session = session
        self.lock = asyncio.Lock()
        """Held by an action, so that two sessions do not act on a page at the same time."""
        self.ready = asyncio.Event()
        self.fresh = True
        """Nobody has used it yet."""
        self.gone = False
        self.crashed = False
        self.refs: dict[str, RefNode] = {}
        self.console: deque[ConsoleEntry] = deque(maxlen=MOST_CONSOLE)
        self.next_dialog: DialogAnswer | None = None
        self.frames: dict[str, FrameSession] = {}
        """Frames of other sites, by their session."""
        self.next_files: list[str] | None = None
        self.files_taken = asyncio.Event()
        self._gone_refs: set[str] = set()
        self._connection = connection
        self._proxy = proxy
        self._main_frame = ""
        self.load_problem = ""
        """Why the page that ``address`` named last is not there. Empty: it is."""
        self._loading = False
        self._loaded: deque[str] = deque(maxlen=20)
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(
        self, method: str, params: dict[str, Any] | None = None, timeout: float = 30.0, *, session: str = ""
    ) -> dict[str, Any]:
        """Calls a method for the page, or for the frame that has a session of its own."""
        return await self._connection.call(method, params, session or self.session, timeout)

    async def prepare(self) -> None:
        """Asks the browser to tell what happens in the tab."""
        await self.call("Page.enable")
        await self.call("Page.setLifecycleEventsEnabled", {"enabled": True})
        frame = (await self.call("Page.getFrameTree"))["frameTree"]["frame"]
        self._main_frame = frame["id"]
        await self._watch("")
        self.ready.set()

    async def prepare_frame(self, frame: FrameSession) -> None:
        """The same for a frame of another site. It can be read and acted on from now on."""
        await self.call("Page.enable", session=frame.session)
        await self._watch(frame.session)
        self.frames[frame.session] = frame

    async def _watch(self, session: str) -> None:
        for method in ("Runtime.enable", "Log.enable", "DOM.enable"):
            await self.call(method, session=session)
        await self.call("Page.setInterceptFileChooserDialog", {"enabled": True}, session=session)
        await self.call("Target.setAutoAttach", _FRAMES, session=session)
        # A window that a page opened stands still until now, and the page with it.
        await self.call("Runtime.runIfWaitingForDebugger", session=session)

    # What the browser tells

    def event(self, name: str, params: dict[str, Any], session: str) -> None:
        of_page = session == self.session
        main = of_page and params.get("frameId") == self._main_frame
        match name:
            case "Page.frameNavigated" if of_page:
                frame = params["frame"]
                if not frame.get("parentId"):
                    self._main_frame = frame["id"]
                    self._forget_refs()
                    self.crashed = False
            case "Page.frameStartedLoading" if main:
                self._loading = True
            case "Page.frameStoppedLoading" if main:
                self._loading = False
            case "Page.lifecycleEvent" if main and params.get("name") == "load":
                self._loaded.append(str(params.get("loaderId")))
            case "Page.javascriptDialogOpening":
                self._answer_dialog(params)
            case "Page.fileChooserOpened":
                self._give_files(params, session)
            case "Inspector.targetCrashed" if of_page:
                self.crashed = True
                self._forget_refs()
            case "Runtime.consoleAPICalled":
                texts = [_argument(argument) for argument in params.get("args") or []]
                self._say(str(params.get("type")), " ".join(texts), params, _place(params.get("stackTrace")))
            case "Runtime.exceptionThrown":
                details = params.get("exceptionDetails") or {}
                thrown = (details.get("exception") or {}).get("description") or details.get("text")
                self._say("error", str(thrown), params, str(details.get("url") or ""))
            case "Log.entryAdded":
                entry = params.get("entry") or {}
                self._say(str(entry.get("level")), str(entry.get("text")), entry, str(entry.get("url") or ""))
            case _:
                return
        self._changed.set()

    def end(self) -> None:
        """The tab is closed."""
        self.gone = True
        self._forget_refs()
        self._connection.drop(self.session)
        self._changed.set()
        self.ready.set()

    def _say(self, kind: str, text: str, at: dict[str, Any], location: str) -> None:
        stamp = at.get("timestamp")
        moment = int(stamp) if isinstance(stamp, int | float) else 0
        self.console.append(ConsoleEntry(kind[:40], text[:LONGEST_CONSOLE], moment, location[:300]))

    def _forget_refs(self) -> None:
        self._gone_refs = set(list(self.refs)[:MOST_GONE_REFS]) or self._gone_refs
        self.refs = {}

    def _answer_dialog(self, params: dict[str, Any]) -> None:
        """A dialog stops the page until it is answered. One that nobody announced is dismissed, so nothing hangs."""
        leaving = params.get("type") == "beforeunload"
        answer = self.next_dialog or DialogAnswer(accept=leaving)
        if not leaving:
            self.next_dialog = None
        done = "accepted" if answer.accept else "dismissed"
        self._say("dialog", f"{params.get('type')} {done}: {params.get('message')}", {}, str(params.get("url") or ""))
        choice: dict[str, Any] = {"accept": answer.accept}
        if answer.text:
            choice["promptText"] = answer.text
        self._soon("Page.handleJavaScriptDialog", choice)

    def _give_files(self, params: dict[str, Any], session: str) -> None:
        backend_id = params.get("backendNodeId")
        if self.next_files is None or not backend_id:
            self._say("dialog", "the page asked for a file; the upload action gives it one", {}, "")
            return
        files, self.next_files = self.next_files, None
        given = {"files": files, "backendNodeId": backend_id}
        self._soon("DOM.setFileInputFiles", given, self.files_taken.set, session)

    def _soon(
        self, method: str, params: dict[str, Any], done: Callable[[], None] | None = None, session: str = ""
    ) -> None:
        async def call() -> None:
            try:
                await self.call(method, params, session=session)
            except CdpError as error:
                self._say("error", f"{method}: {error}", {}, "")
            else:
                if done is not None:
                    done()

        task = asyncio.create_task(call())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The page

    async def address(self) -> str:
        """The address of the page. Raises ``ToolError`` for a page that is not read."""
        if self.gone:
            raise ToolError("the tab is closed; list the tabs with the action tabs")
        if self.crashed:
            raise ToolError("the page crashed; navigate to load it again")
        frame = (await self.call("Page.getFrameTree"))["frameTree"]["frame"]
        lost = str(frame.get("unreachableUrl") or "")
        self.load_problem = self._why_lost(lost) if lost else ""
        url = lost or str(frame.get("url") or BLANK)
        if url not in (BLANK, ":") and not url.startswith(_READABLE):
            raise ToolError(f"pages of {url.partition(':')[0]}: are not read or acted on; navigate elsewhere")
        return BLANK if url == ":" else url

    async def navigate(self, url: str, timeout: float) -> bool:
        """Opens an address that was checked. Returns whether it was loaded whole in time. Raises ``ToolError``."""
        before = self._proxy.refusals if self._proxy else 0
        self.crashed = False
        try:
            answer = await self.call("Page.navigate", {"url": url}, timeout)
        except CdpTimeout:
            raise ToolError(f"{url} did not answer within {timeout:g} s") from None
        if problem := answer.get("errorText"):
            raise ToolError(f"{url} was not opened: {self._why_failed(url, str(problem), before)}")
        loader = answer.get("loaderId")
        if not loader:
            return True  # Only the part behind # has changed.
        return await self._until(lambda: loader in self._loaded, timeout)

    def _why_failed(self, url: str, problem: str, before: int) -> str:
        refused = self._proxy.refused_since(before) if self._proxy else []
        if refused and problem.startswith(("net::ERR_SOCKS", "net::ERR_PROXY", "net::ERR_TUNNEL")):
            # The browser also connects on its own account, e.g. to its vendor. A redirect leads to another host.
            host = urlsplit(url).hostname
            return next((refusal for refusal in reversed(refused) if refusal.host == host), refused[-1]).why
        return _FAILED.get(problem, problem)

    def _why_lost(self, url: str) -> str:
        host = urlsplit(url).hostname
        refused = [refusal.why for refusal in self._proxy.refused if refusal.host == host] if self._proxy else []
        return refused[-1] if refused else "it could not be loaded"

    async def settle(self, seconds: float) -> None:
        """Waits ``seconds`` for a navigation that an action may have begun, and then, up to a limit, for its page."""
        await self._until(lambda: self._loading, seconds)
        if self._loading:
            await self._until(lambda: not self._loading, SETTLE_S)

    async def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not holds() and not self.gone and not self.crashed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return holds()

    async def wait_loaded(self, seconds: float) -> bool:
        return await self._until(lambda: not self._loading, seconds)

    async def tree(self, frame_selector: str = "") -> AccessibilityTree:
        """The accessibility tree of the page and the frames in it."""
        tree = AccessibilityTree()
        frames = await self._frames("")
        waiting = [frame for frame in self.frames.values() if frame.parent == self.session]
        while waiting and len(frames) < MOST_FRAMES:
            frame = waiting.pop(0)
            owner = await self._owner(frame)
            if owner is None:
                continue
            frames += [
                (session, frame_id, where or owner) for session, frame_id, where in await self._frames(frame.session)
            ]
            waiting += [inner for inner in self.frames.values() if inner.parent == frame.session]
        if frame_selector:
            element = await self.find(frame_selector)
            matches = [
                position for position, frame in enumerate(frames) if frame[2] == (element.session, element.backend_id)
            ]
            if not matches:
                raise ToolError(f"{frame_selector[:100]} is not a frame")
            frames = [(*frames[position][:2], None) for position in matches]
        for session, frame_id, owner in frames[:MOST_FRAMES]:
            try:
                answer = await self.call("Accessibility.getFullAXTree", {"frameId": frame_id}, session=session)
            except CdpError:
                if self.gone:
                    raise
                continue  # The frame went away in between.
            tree.add_frame(frame_id, answer["nodes"], owner, session)
        return tree

    async def _frames(self, session: str) -> list[tuple[str, str, Element | None]]:
        """The frames that one process shows: session, id, and the element that each stands in."""
        try:
            top = (await self.call("Page.getFrameTree", session=session))["frameTree"]
        except CdpError:
            if self.gone or not session:
                raise
            return []
        frames: list[tuple[str, str, Element | None]] = [(session, str(top["frame"]["id"]), None)]
        waiting = list(top.get("childFrames") or [])
        while waiting and len(frames) < MOST_FRAMES:
            child = waiting.pop(0)
            frame = FrameSession("", str(child["frame"]["id"]), session)
            if (owner := await self._owner(frame)) is not None:
                frames.append((session, frame.frame_id, owner))
            waiting.extend(child.get("childFrames") or [])
        return frames

    async def _owner(self, frame: FrameSession) -> Element | None:
        """The element that a frame stands in. None if it went away."""
        parent = "" if frame.parent == self.session else frame.parent
        try:
            answer = await self.call("DOM.getFrameOwner", {"frameId": frame.frame_id}, session=parent)
        except CdpError:
            if self.gone:
                raise
            return None
        return parent, int(answer.get("backendNodeId") or 0)

    # Elements

    def node(self, ref: str) -> RefNode:
        """The element of a ref of the last snapshot. Raises ``ToolError`` if it is none, or of a page that is gone."""
        name = ref.strip().removeprefix("@").removeprefix("ref=")
        if (node := self.refs.get(name)) is not None:
            return node
        if name in self._gone_refs:
            raise ToolError(f"ref {name} is of a page that is gone; take a new snapshot and use its refs")
        raise ToolError(f"unknown ref {name[:40]!r}: not in the last snapshot of this tab; take a new snapshot")

    async def find(self, selector: str) -> RefNode:
        """The first element that a CSS selector names."""
        world = await self._world(self._main_frame)
        script = f"document.querySelector({msgspec.json.encode(selector).decode()})"
        answer = await self.call("Runtime.evaluate", {"expression": script, "contextId": world})
        if "exceptionDetails" in answer:
            raise ToolError(f"{selector[:100]!r} is not a CSS selector")
        object_id = answer.get("result", {}).get("objectId")
        if not object_id:
            raise ToolError(f"nothing on the page matches {selector[:100]!r}")
        described = await self.call("DOM.describeNode", {"objectId": object_id})
        return RefNode(int(described["node"]["backendNodeId"]), self._main_frame, "", selector)

    async def run_on(self, node: RefNode, function: str, *arguments: Any, own_world: bool = True) -> Any:
        """Calls a function with the element as ``this`` and returns its value."""
        params: dict[str, Any] = {"backendNodeId": node.backend_id}
        if own_world:
            params["executionContextId"] = await self._world(node.frame_id, node.session)
        try:
            object_id = (await self.call("DOM.resolveNode", params, session=node.session))["object"]["objectId"]
        except CdpRefused:
            raise _taken_off() from None
        values = [{"value": argument} for argument in arguments]
        # An element that was taken off the page still has its object.
        whole = f"function(...given) {{ return this.isConnected ? [({function}).apply(this, given)] : []; }}"
        if own_world:
            value = await self._called(whole, {"objectId": object_id, "arguments": values}, node.session)
            if not value:
                raise _taken_off()
            return value[0]
        if not await self._called("function() { return this.isConnected; }", {"objectId": object_id}, node.session):
            raise _taken_off()
        return await self._called(function, {"objectId": object_id, "arguments": values}, node.session)

    async def run(self, function: str, *arguments: Any, own_world: bool = True) -> Any:
        """Calls a function in the page and returns its value."""
        values = ", ".join(msgspec.json.encode(argument).decode() for argument in arguments)
        params: dict[str, Any] = {"expression": f"({function})({values})", "returnByValue": True, "awaitPromise": True}
        params["userGesture"] = True
        if own_world:
            params["contextId"] = await self._world(self._main_frame)
        return _returned(await self.call("Runtime.evaluate", params))

    async def _called(self, function: str, params: dict[str, Any], session: str) -> Any:
        options = {"functionDeclaration": function, "returnByValue": True, "awaitPromise": True, "userGesture": True}
        return _returned(await self.call("Runtime.callFunctionOn", {**options, **params}, session=session))

    async def _world(self, frame_id: str, session: str = "") -> int:
        params = {"frameId": frame_id, "worldName": WORLD}
        try:
            made = await self.call("Page.createIsolatedWorld", params, session=session)
        except CdpRefused:
            raise ToolError("the frame is no longer on the page; take a new snapshot") from None
        return int(made["executionContextId"])

    async def box(self, node: RefNode) -> Box:
        """Where the element is in the window, scrolled into view."""
        if not node.session:
            return await self._box_here(node)
        # Scrolling goes from process to process, so it is waited until the element stands still.
        before: Box | None = None
        for _ in range(STILL_TRIES):
            left, top = await self._corner(node.session)
            inner = await self._box_here(node)
            now = Box(inner.left + left, inner.top + top, inner.width, inner.height)
            if now == before:
                return now
            before = now
            await asyncio.sleep(STILL_S)
        raise ToolError("the element does not stand still; try again")

    async def _corner(self, session: str) -> tuple[float, float]:
        """The place of the upper left corner of a frame in the window."""
        left = top = 0.0
        while (frame := self.frames.get(session)) is not None:
            owner = await self._owner(frame)
            if owner is None:
                raise _taken_off()
            element = {"backendNodeId": owner[1]}
            try:
                await self.call("DOM.scrollIntoViewIfNeeded", element, session=owner[0])
                content = (await self.call("DOM.getBoxModel", element, session=owner[0]))["model"]["content"]
            except CdpRefused:
                raise ToolError("the frame cannot be seen, so nothing in it can be acted on") from None
            left, top, session = left + content[0], top + content[1], owner[0]
        return left, top

    async def _box_here(self, node: RefNode) -> Box:
        """Where the element is in the window of its own process."""
        element = {"backendNodeId": node.backend_id}
        try:
            await self.call("DOM.scrollIntoViewIfNeeded", element, session=node.session)
            quads = (await self.call("DOM.getContentQuads", element, session=node.session)).get("quads") or []
        except CdpRefused as error:
            if "does not have a layout object" in str(error) or "Could not compute" in str(error):
                raise ToolError("the element cannot be seen, so it cannot be acted on") from None
            raise _taken_off() from None
        for quad in quads:
            across, down = quad[0::2], quad[1::2]
            box = Box(min(across), min(down), max(across) - min(across), max(down) - min(down))
            if box.width * box.height > 0:
                return box
        raise ToolError("the element has no size, so it cannot be acted on")

    # Pictures

    async def screenshot(self, kind: str, *, whole: bool, node: RefNode | None) -> bytes:
        params: dict[str, Any] = {"format": kind, "captureBeyondViewport": whole or node is not None}
        if node is not None:
            left, top, width, height = await self.box(node)
            view = (await self.call("Page.getLayoutMetrics"))["cssVisualViewport"]
            params["clip"] = _clip(left + view["pageX"], top + view["pageY"], width, height)
        elif whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            params["clip"] = _clip(0, 0, size["width"], size["height"])
        return base64.b64decode((await self.call("Page.captureScreenshot", params, 60))["data"])

    async def pdf(self) -> bytes:
        data = (await self.call("Page.printToPDF", {"printBackground": True}, 60))["data"]
        if len(data) > MOST_PDF_BYTES * 4 // 3:
            raise ToolError(f"the PDF is larger than {MOST_PDF_BYTES} bytes")
        return base64.b64decode(data)


def _taken_off() -> ToolError:
    return ToolError("the element is no longer on the page; take a new snapshot")


def _clip(left: float, top: float, width: float, height: float) -> dict[str, Any]:
    size = {"width": max(1, min(width, MOST_PIXELS_WIDE)), "height": max(1, min(height, MOST_PIXELS_HIGH))}
    return {"x": left, "y": top, **size, "scale": 1}


def _returned(answer: dict[str, Any]) -> Any:
    if (problem := answer.get("exceptionDetails")) is not None:
        thrown = (problem.get("exception") or {}).get("description") or problem.get("text") or "it failed"
        raise ToolError(f"the script failed: {str(thrown)[:500]}")
    return answer.get("result", {}).get("value")


def _argument(argument: dict[str, Any]) -> str:
    value = argument.get("value", argument.get("unserializableValue"))
    if value is None:
        return str(argument.get("description") or argument.get("type") or "")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _place(trace: Any) -> str:
    frames: Sequence[Any] = trace.get("callFrames") or [] if isinstance(trace, dict) else []
    return f"{frames[0].get('url')}:{frames[0].get('lineNumber', 0) + 1}" if frames else ""
