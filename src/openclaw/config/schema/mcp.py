"""``mcp``: the MCP servers whose tools the agents may use."""

from typing import Literal

from openclaw.config.schema.base import Positive, Record, Secret


class McpToolNames(Record):
    allow: list[str] = []
    """The server's tools that are offered, by the server's own names; * stands for anything; empty means all."""
    deny: list[str] = []
    """The server's tools that are not offered; wins over allow."""


class McpServer(Record):
    enabled: bool = True
    """Use this server."""
    transport: Literal["stdio", "streamable-http"] | None = None
    """How it is spoken to; unset means stdio for a command and streamable-http for a url."""
    command: str | None = None
    """The program to start, for a server that speaks over its standard input and output."""
    args: list[str] = []
    """Its arguments."""
    env: dict[str, Secret] = {}
    """Environment variables of the program, besides the harmless ones of the Gateway."""
    cwd: str | None = None
    """The folder that the program starts in; unset means the home folder."""
    url: str | None = None
    """The address of a server that speaks streamable HTTP; private addresses are allowed."""
    headers: dict[str, Secret] = {}
    """Headers of every request to it."""
    tools: McpToolNames = McpToolNames()
    """Which of its tools are offered."""
    sessions: Literal["owner", "all"] = "owner"
    """Who may use it: the owner's own sessions, or all, groups, guests and webhooks included."""
    agents: list[str] = []
    """Agent ids that may use it; empty means all."""
    ask: Literal["off", "always"] = "off"
    """Whether a person is asked before each call, as before a command."""
    timeout_seconds: Positive = 60
    """A call that takes longer is given up."""
    connection_timeout_ms: Positive = 30_000
    """A server that has not answered after this is given up and tried again later."""


class Mcp(Record):
    servers: dict[str, McpServer] = {}
    """The servers by name."""
