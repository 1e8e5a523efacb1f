"""``mcp.*``: how the MCP servers are, and a try of one of them."""

from __future__ import annotations

from typing import Any

from openclaw.gateway.server.params import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable

methods = MethodTable()


class McpTest(Params):
    name: NonEmpty


@methods.add("mcp.status", NoParams)
async def status(call: MethodCall) -> Any:
    """The MCP servers and how each is."""
    return {"servers": call.gateway.mcp.status()}


@methods.add("mcp.test", McpTest)
async def test(call: MethodCall) -> Any:
    """Starts a server, if it is not running, and says how it is."""
    params: McpTest = call.params
    try:
        return await call.gateway.mcp.test(params.name)
    except LookupError:
        names = ", ".join(row["name"] for row in call.gateway.mcp.status() if row["enabled"]) or "none"
        raise MethodError(f"there is no MCP server {params.name[:80]!r} to use; there are: {names}") from None
