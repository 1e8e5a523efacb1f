"""All configured MCP servers: which session may use which, the tools of those that are there, and how each one is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.config.schema.tools import McpServer
from openclaw.mcp.connection import SEPARATOR, ForeignTool, ServerConnection, tool_result
from openclaw.messages import ToolSpec
from openclaw.questions.desk import QuestionDesk
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec.approvals import ApprovalRequest, ask_approval, fingerprint_of, refusal_reason, refused_result

log = logging.getLogger("openclaw.mcp")

WAIT_S = 10.0
"""How long a run waits for servers that are started for it. Later ones are there for the next run."""
MOST_SERVERS = 32
CLOSING_S = 15.0
OUTCOME_CHARS = 4000


class McpTool:
    """One tool of a server, for the agents."""

    def __init__(self, connection: ServerConnection, tool: ForeignTool, questions: QuestionDesk | None) -> None:
        self._connection = connection
        self._tool = tool
        self._questions = questions

    @property
    def spec(self) -> ToolSpec:
        return self._tool.spec

    @property
    def summary(self) -> str:
        return self._tool.summary

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if self._connection.settings.ask == "always":
            return await self._ask(arguments, context)
        return await self._call(arguments, context)

    async def _call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        def progress(text: str) -> None:
            if context.update is not None:
                context.update(text_result(text, {"status": "running"}))

        connection, own_name = self._connection, self._tool.own_name
        answer = await connection.call(own_name, arguments, progress)
        return await tool_result(answer, connection.name, own_name, sees_images=context.model_sees_images)

    async def _ask(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Ask a person, and call the tool if they allow it."""
        questions, server = self._questions, self._connection.name
        if questions is None:
            raise ToolError(f"mcp.servers.{server}.ask is always, but nobody can be asked here")
        request = ApprovalRequest(
            command=f"{self.spec.name} {msgspec.json.encode(arguments).decode()}",
            host=f"MCP server {server}",
            ask="always",
            agent_id=context.agent_id,
            session_key=context.session_key,
            once_only=f"mcp.servers.{server}.ask is always",
        )
        fingerprint = fingerprint_of(server, self.spec.name, arguments)
        question = await ask_approval(questions, self.spec.name, request, context, kind="tool", fingerprint=fingerprint)
        if reason := refusal_reason(question):
            return refused_result(question, reason, self.spec.name)
        if not await questions.begin_once(question):
            raise ToolError(f"the call of question {question.id} has begun before and is not repeated")
        return await self._call(arguments, context)


class McpServers:
    """The servers of the current configuration. Nothing is started before a run may use it."""

    def __init__(
        self, config: Callable[[], Config], clock: Clock, environ: Mapping[str, str], questions: QuestionDesk | None
    ) -> None:
        self._config = config
        self._clock = clock
        self._environ = environ
        self._questions = questions
        self._made_from: Mapping[str, McpServer] = {}
        self._connections: dict[str, ServerConnection] = {}
        self._tools: dict[str, tuple[list[ForeignTool], tuple[Tool, ...]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def configured(self) -> bool:
        """Whether there is any server to use. It costs next to nothing where there is none."""
        return bool(self._config().mcp.servers)

    def candidates(self, agent_id: str, *, owner: bool) -> dict[str, str]:
        """The servers that such a session may use, and the beginning of the names of their tools."""
        self.follow_config()
        return {
            name: connection.part + SEPARATOR
            for name, connection in self._connections.items()
            if (owner or connection.settings.sessions == "all")
            and (not connection.settings.agents or agent_id in connection.settings.agents)
        }

    async def tools(self, names: Sequence[str]) -> tuple[Tool, ...]:
        """The tools of these servers. They are started if need be. A dead or slow one has none for now."""
        connections = [self._connections[name] for name in names if name in self._connections]
        await asyncio.gather(*(connection.ready(WAIT_S) for connection in connections))
        return tuple(tool for connection in connections for tool in self._tools_of(connection))

    def _tools_of(self, connection: ServerConnection) -> tuple[Tool, ...]:
        """The same objects as long as the server's list is the same, so that prompts stay the same too."""
        cached = self._tools.get(connection.name)
        if cached is None or cached[0] is not connection.tools:
            made = tuple(McpTool(connection, tool, self._questions) for tool in connection.tools)
            cached = self._tools[connection.name] = (connection.tools, made)
        return cached[1]

    def follow_config(self) -> None:
        """Takes over what the configuration says now. Servers that changed or are gone are closed."""
        servers = self._config().mcp.servers
        if servers is self._made_from or self._closed:
            return
        self._made_from = servers
        usable = {name: server for name, server in list(servers.items())[:MOST_SERVERS] if server.enabled}
        for name, connection in list(self._connections.items()):
            if usable.get(name) != connection.settings:
                del self._connections[name]
                self._tools.pop(name, None)
                task = asyncio.create_task(connection.close(), name=f"close mcp server {name}")
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        parts = {connection.part for connection in self._connections.values()}
        for name, server in usable.items():
            if name in self._connections:
                continue
            connection = ServerConnection(name, server, self._clock, self._environ)
            if connection.part in parts:
                log.error("mcp.servers.%s is not used: another server has the same name in small letters", name)
                continue
            parts.add(connection.part)
            self._connections[name] = connection

    async def test(self, name: str) -> dict[str, Any]:
        """Starts a server, if it is not running, and says how it is. Raises ``LookupError`` for one unknown."""
        self.follow_config()
        connection = self._connections.get(name)
        if connection is None:
            raise LookupError(name)
        if connection.state in ("waiting", "failed"):
            await self.restart(name)
            connection = self._connections[name]
        await connection.ready(connection.settings.connection_timeout_ms / 1000 + 5)
        return self._row(name, connection.settings, connection)

    async def restart(self, name: str) -> None:
        """Closes the connection to a server. The next use reconnects."""
        old = self._connections[name]
        self._connections[name] = ServerConnection(name, old.settings, self._clock, self._environ)
        self._tools.pop(name, None)
        await old.close()

    def status(self) -> list[dict[str, Any]]:
        """How each configured server is, for people and clients. It starts nothing."""
        self.follow_config()
        return [
            self._row(name, server, self._connections.get(name)) for name, server in self._config().mcp.servers.items()
        ]

    def _row(self, name: str, server: McpServer, connection: ServerConnection | None) -> dict[str, Any]:
        row: dict[str, Any] = {"name": name, "enabled": server.enabled, "sessions": server.sessions, "ask": server.ask}
        row["transport"] = server.transport or ("stdio" if server.command else "streamable-http")
        if connection is None:
            problem = "" if not server.enabled else "another server has the same name"
            return {**row, "state": "disabled" if not server.enabled else "failed", "problem": problem, "tools": []}
        return {
            **row,
            "state": connection.state,
            "problem": connection.problem,
            "version": connection.version,
            "starts": connection.starts,
            **({"pid": connection.pid} if connection.pid and connection.state == "ready" else {}),
            "leftOut": connection.left_out,
            "tools": [{"name": tool.spec.name, "ownName": tool.own_name} for tool in connection.tools],
        }

    def lines(self) -> list[str]:
        """One line for each server that is not well or has been started, for ``/status``. Empty without servers."""
        return [line_of(row) for row in self.status() if row["state"] != "disabled"] if self.configured else []

    async def close(self) -> None:
        """Ends every server."""
        self._closed = True
        connections, self._connections = list(self._connections.values()), {}
        work = [*self._closing, *(asyncio.ensure_future(connection.close()) for connection in connections)]
        if work:
            await asyncio.wait(work, timeout=CLOSING_S)


def line_of(row: Mapping[str, Any]) -> str:
    """``docs: ready, 3 tools`` or ``docs: not there (it ended: …)``."""
    match row["state"]:
        case "ready":
            return f"{row['name']}: ready, {len(row['tools'])} tools"
        case "idle":
            return f"{row['name']}: starts with the first run that may use it"
        case "starting":
            return f"{row['name']}: starting"
        case "disabled":
            return f"{row['name']}: switched off"
        case _:
            return f"{row['name']}: not there ({row['problem'] or 'closed'})"
