"""An MCP server with a few tools that nobody calls, over its standard input and output."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

TOOLS = 5


def main() -> None:
    server = MCPServer("notes")
    for number in range(TOOLS):
        server.add_tool(lambda text: text, name=f"note{number}", description="Keeps a note")
    server.run("stdio")


if __name__ == "__main__":
    main()
