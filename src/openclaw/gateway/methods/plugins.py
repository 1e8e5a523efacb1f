"""``plugins.list`` and ``mcp.*``: what extensions and MCP servers added, and how they are."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from openclaw.extensions.loader import find_extensions
from openclaw.gateway.server.params import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable

methods = MethodTable()


@methods.add("plugins.list", NoParams)
async def list_plugins(call: MethodCall) -> Any:
    """The extensions, whether each is loaded, and what it adds."""
    runtime = call.gateway.runtime
    loaded = {one.id: one for one in runtime.extensions.extensions}
    # What was installed after the start is listed too. It is not loaded before a restart.
    found = await asyncio.to_thread(find_extensions, runtime.config.current, str(runtime.state_dir))
    for one in found:
        loaded.setdefault(one.loaded.id, one.loaded)
    rows = [msgspec.to_builtins(one) for one in loaded.values()]
    return {"plugins": [{**row, "lastFailure": row.pop("last_failure")} for row in rows]}


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
