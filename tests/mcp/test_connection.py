"""The connection to a real server: its life, its death, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.clock import SystemClock
from openclaw.config.schema.base import SecretRef
from openclaw.config.schema.tools import McpServer
from openclaw.mcp import connection as connection_module
from openclaw.mcp.connection import ServerConnection
from openclaw.tools.base import ToolError
from openclaw.tools.shell_process import survivors
from tests.support.clock import HeldClock

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0


PLAIN = ["-S", str(ROOT / "tests/mcp/plain_server.py")]
"""The arguments of Python for a server that starts in a moment. It has the same tools as the one of the package."""


def official(**more: Any) -> McpServer:
    return McpServer(command=sys.executable, args=["-m", "tests.mcp.tool_server"], cwd=str(ROOT), **more)


def plain(*args: str, **more: Any) -> McpServer:
    return McpServer(command=sys.executable, args=[*PLAIN, *args], **more)


@asynccontextmanager
async def connected(settings: McpServer, *, clock: Any = None, name: str = "shelf") -> AsyncIterator[ServerConnection]:
    connection = ServerConnection(name, settings, clock or SystemClock(), {"SHELF": "a secret meaning"})
    try:
        yield connection
    finally:
        await connection.close()
        assert connection.state == "closed"


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.02)


def text(answer: Any) -> str:
    return answer.content[0]["text"]


async def test_a_program_is_started_called_and_ended_with_all_that_it_started() -> None:
    meaning = {"SHELF_MEANING": SecretRef(env="SHELF")}
    async with connected(official(env=meaning)) as shelf:
        assert shelf.state == "idle" and shelf.starts == 0
        assert await shelf.ready(LIMIT_S), shelf.problem
        assert "shelf__lookup" in [tool.spec.name for tool in shelf.tools]
        assert text(await shelf.call("lookUp", {"word": "book"})).startswith("book means a secret meaning")
        failed = await shelf.call("fail", {})
        assert failed.failed
        pid, child = shelf.pid, int(text(await shelf.call("fork", {})))
        assert {pid, child} <= {*survivors(pid)}
    assert not survivors(pid) and child not in survivors(child)


async def test_changes_of_the_tool_list_are_noticed() -> None:
    async with connected(official()) as shelf:
        assert await shelf.ready(LIMIT_S), shelf.problem
        assert text(await shelf.call("grow", {})) == "grown"
        await until(lambda: "shelf__grown" in [tool.spec.name for tool in shelf.tools])
        assert text(await shelf.call("grown", {})) == "new"


async def test_a_list_that_changes_all_the_time_is_not_read_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []
    clock = HeldClock()
    listed = ServerConnection._list

    async def noted(self: ServerConnection, client: Any) -> None:
        read.append(clock.monotonic())
        await listed(self, client)
        if len(read) > 1:
            self._tools_changed()

    monkeypatch.setattr(ServerConnection, "_list", noted)
    async with connected(plain(), clock=clock) as shelf:
        assert await shelf.ready(LIMIT_S), shelf.problem
        shelf._tools_changed()
        await until(lambda: len(read) == 2)
        await asyncio.sleep(0.2)  # Long enough for many more.
        assert len(read) == 2


async def test_a_server_that_dies_is_started_again_after_a_pause() -> None:
    async with connected(plain()) as shelf:
        assert await shelf.ready(LIMIT_S), shelf.problem
        with pytest.raises(ToolError, match=r"shelf collapsed.*Nobody knows whether") as died:
            await shelf.call("die", {})
        assert "tellnobody" not in str(died.value)
        await until(lambda: shelf.starts == 2 and shelf.state == "ready")
        assert text(await shelf.call("lookUp", {"word": "book"}))


async def test_a_slow_call_is_given_up_and_the_next_one_is_answered() -> None:
    async with connected(plain(timeout_seconds=1)) as shelf:
        assert await shelf.ready(LIMIT_S), shelf.problem
        with pytest.raises(ToolError, match="gave no answer within 1 s"):
            await shelf.call("wait", {"seconds": 3600})
        shelf.settings = plain(timeout_seconds=LIMIT_S)
        assert text(await shelf.call("lookUp", {"word": "book"}))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (plain("--broken"), "it ended: no shelf here"),
        (plain("--silent", connection_timeout_ms=1500), "it did not answer within 1.5 s"),
        (McpServer(command="no-such-program-here"), "program not found in PATH: 'no-such-program-here'"),
        (McpServer(command=sys.executable, cwd="/no/such/folder"), "its folder /no/such/folder does not exist"),
        (McpServer(), "mcp.servers.shelf needs a url"),
        (McpServer(url="http://127.0.0.1:9/mcp"), "no connection to http://127.0.0.1:9/mcp"),
        (plain(env={"A": SecretRef(env="NOT_THERE")}), "mcp.servers.shelf.env.A: the environment variable NOT_THERE"),
    ],
    ids=["broken", "silent", "no program", "no folder", "nothing", "no server", "no secret"],
)
async def test_what_is_wrong_is_said_in_one_line(settings: McpServer, problem: str) -> None:
    async with connected(settings, clock=HeldClock()) as shelf:
        assert not await shelf.ready(LIMIT_S)
        assert problem in shelf.problem and "\n" not in shelf.problem
        assert shelf.state == "waiting"
        with pytest.raises(ToolError, match="is not there"):
            await shelf.call("lookUp", {})


async def test_a_server_that_never_starts_rests_until_it_is_needed() -> None:
    clock = HeldClock()
    async with connected(McpServer(command="no-such-program-here"), clock=clock) as shelf:
        await shelf.ready(LIMIT_S)
        assert shelf.state == "waiting"

        def has_given_up() -> bool:
            clock.advance(connection_module.PAUSES.max_s * 2)
            return shelf.state == "failed"

        await until(has_given_up)
        shelf.want()
        assert shelf.starts == connection_module.MOST_ATTEMPTS
        clock.advance(connection_module.REST_S)
        shelf.want()
        await until(lambda: shelf.starts == connection_module.MOST_ATTEMPTS + 1)


async def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with connected(plain()) as shelf:
        assert not await shelf.ready(LIMIT_S)
        assert shelf.state == "failed" and "openclaw extras add mcp" in shelf.problem


@asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """The same tools over streamable HTTP, on a free port of this machine."""
    import socket

    import uvicorn

    from tests.mcp.tool_server import make_server

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(make_server().streamable_http_app(), log_level="critical", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await task
        listening.close()


async def test_streamable_http_is_called_and_its_changes_are_noticed() -> None:
    async with http_server() as url, connected(McpServer(url=url, headers={"X-Key": "abc"})) as shelf:
        assert await shelf.ready(LIMIT_S), shelf.problem
        assert text(await shelf.call("lookUp", {"word": "book"})).startswith("book means")
        await shelf.call("grow", {})
        await until(lambda: "shelf__grown" in [tool.spec.name for tool in shelf.tools])


async def test_a_redirect_to_another_place_is_not_followed() -> None:
    asked: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request)
        raise web.HTTPTemporaryRedirect(f"http://localhost:{port}/elsewhere")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        settings = McpServer(url=f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer tell-nobody-12345"})
        async with connected(settings, clock=HeldClock()) as shelf:
            assert not await shelf.ready(LIMIT_S)
            assert "not followed" in shelf.problem and "tell-nobody" not in shelf.problem
    finally:
        await runner.cleanup()
    assert asked and all(request.path == "/mcp" for request in asked)


HUGE = 500 * 1024 * 1024
BOMB = {
    "properties": {"a": {"$ref": "#/$defs/s"}},
    "$defs": {"s": {"properties": {name: {"$ref": "#/$defs/s"} for name in "abcdefghijklmnopqrstuvwxyz"}}},
}
"""A kilobyte that would never be read to the end if every reference were put in."""


class FloodingServer:
    """Speaks MCP over plain HTTP answers, and answers the call of its one tool with 500 MB, or says that it will."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.sent = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = await request.json() if request.method == "POST" else {}
        if asked.get("method") == "tools/call":
            return await self._flood(request)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "flood", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "pour", "inputSchema": {"type": "object", **BOMB}}]},
        }
        if "id" not in asked:
            return web.Response(status=202 if request.method == "POST" else 405)
        result = results.get(asked["method"])
        outcome = {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **outcome})

    async def _flood(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if self.how == "sized":
            response.content_length = HUGE
        if self.how == "packed":
            response.headers["Content-Encoding"] = "gzip"
        await response.prepare(request)
        part = (b"[" if self.how == "values" else b" ") * 1024 * 1024
        with contextlib.suppress(ConnectionError):
            while self.sent < HUGE:
                await response.write(part)
                self.sent += len(part)
        return response


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("endless", "longer than 16 MB"),
        ("sized", "longer than 16 MB"),
        ("packed", "is packed"),
        ("values", "has more than 200000 values"),
    ],
)
async def test_a_server_that_answers_with_half_a_gigabyte_is_not_read_to_the_end(how: str, problem: str) -> None:
    flood = FloodingServer(how)
    runner = web.ServerRunner(web.Server(flood.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        async with connected(McpServer(url=url)) as shelf:
            assert await shelf.ready(LIMIT_S), shelf.problem
            with pytest.raises(ToolError, match=problem):
                await shelf.call("pour", {})
    finally:
        await runner.cleanup()
    assert flood.sent < HUGE / 4
