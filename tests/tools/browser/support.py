"""A browser under test: a site on loopback, names that lead where a test wants, and the tool on top."""

from __future__ import annotations

import functools
import os
import shutil
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from openclaw.clock import Clock, SystemClock
from openclaw.config.schema.system import Browser, BrowserSsrfPolicy
from openclaw.messages import ImageBlock, TextBlock
from openclaw.rights import OWNER_CALLER
from openclaw.tools.arguments import validate_arguments
from openclaw.tools.base import ToolContext, ToolResult
from openclaw.tools.browser.browsers import PROGRAMS, Browsers
from openclaw.tools.browser.guard import checked_resolver
from openclaw.tools.browser.tool import BrowserTool

FORM = """<title>Order</title><h1>Your order</h1>
<form action="/done" method="get">
  <label>Name <input name="name"></label>
  <label>Note <textarea name="note"></textarea></label>
  <label>Day <input name="day" type="date"></label>
  <label><input type="checkbox" name="agree"> I agree</label>
  <select name="size" aria-label="Size"><option value="s">Small</option><option value="l">Large</option></select>
  <input type="file" name="file" aria-label="File">
  <button>Send</button>
</form>
<button onclick="document.querySelector('[name=file]').click()">Attach</button>
<button onclick="document.getElementById('out').textContent = 'said ' + prompt('Who?')">Ask</button>
<p id="out">Nothing yet</p><div id="over" onmouseover="this.textContent='touched'" role="button">Touch me</div>
<a href="/other">Other page</a><iframe src="/frame"></iframe>"""

FRAME = "<button onclick=\"document.body.dataset.clicked='yes'\">In frame</button>"


class Names(AbstractResolver):
    """A name server: what each name leads to, one answer after the other; the last one stays."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        known = self.answers.get(host)
        if not known:
            raise OSError(f"{host} is not known")
        address = known.pop(0) if len(known) > 1 else known[0]
        made = ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
        return [made]

    async def close(self) -> None:
        pass


class Website:
    """A web server on loopback. ``pages`` are HTML by path, or functions that answer."""

    def __init__(self) -> None:
        self.pages: dict[str, str | Callable[[web.Request], web.StreamResponse]] = {"/form": FORM, "/frame": FRAME}
        self.asked: list[str] = []
        """Host and path of every request."""
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        self.asked.append(f"{request.host.partition(':')[0]}{request.path}")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            opened = web.WebSocketResponse()
            await opened.prepare(request)
            await opened.close()
            return opened
        page = self.pages.get(request.path, f"<title>Page</title><p>this is {request.path_qs}</p>")
        if callable(page):
            return page(request)
        return web.Response(text=page, content_type="text/html")

    def url(self, path: str, host: str = "site.test") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def website() -> AsyncGenerator[Website]:
    made = Website()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


@functools.cache
def chromium() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def needs_chromium() -> None:
    """Skips the test where there is no browser. With ``OPENCLAW_TEST_REQUIRE_ALL`` it fails instead."""
    if chromium() is None:
        why = "no Chromium is installed (Debian: apt install chromium)"
        if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
            pytest.fail(why)
        pytest.skip(why)


def browser_config(**more: Any) -> Browser:
    policy = BrowserSsrfPolicy(allowed_hostnames=["site.test", "second.test"])
    given: dict[str, Any] = {"headless": True, "no_sandbox": os.geteuid() == 0, "ssrf_policy": policy, **more}
    return Browser(**given)


class Driver:
    """The tool as an agent has it, with what it works on."""

    def __init__(self, state: Path, config: Browser, names: Names, clock: Clock | None = None) -> None:
        self.state = state
        self.config = config
        self.names = names
        self.workspace = state / "workspace"
        self.workspace.mkdir(parents=True)
        self.browsers = Browsers(
            lambda: self.config, state, os.environ, clock or SystemClock(), checked_resolver(lambda: names)
        )
        self.tool = BrowserTool(self.browsers, clock or SystemClock())
        self.context = ToolContext(
            agent_id="main", session_key="agent:main:main", workspace=self.workspace, caller=OWNER_CALLER
        )

    async def run(self, action: str, **arguments: Any) -> ToolResult:
        return await self.tool.run(validate_arguments(self.tool.spec, {"action": action, **arguments}), self.context)

    async def do(self, action: str, **arguments: Any) -> dict[str, Any]:
        return (await self.run(action, **arguments)).details

    async def act(self, kind: str, **request: Any) -> dict[str, Any]:
        return await self.do("act", request={"kind": kind, **request})

    async def evaluate(self, function: str) -> Any:
        return (await self.act("evaluate", fn=function))["result"]

    async def refs(self) -> dict[str, str]:
        """Takes a snapshot. Returns the refs by ``role name``."""
        await self.do("snapshot")
        browser = self.browsers.running("openclaw")
        assert browser is not None
        return {f"{node.role} {node.name}": ref for tab in browser.tabs.values() for ref, node in tab.refs.items()}


def text_of(result: ToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))


def picture_of(result: ToolResult) -> ImageBlock:
    (picture,) = [block for block in result.content if isinstance(block, ImageBlock)]
    return picture


def processes_of(state: Path) -> list[int]:
    """The processes whose command line names the state folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"={state}/".encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
