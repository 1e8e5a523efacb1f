"""``plugins.list``: the extensions that are installed or named, whether each is loaded, and what it added."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from openclaw.extensions.loader import find_extensions
from openclaw.gateway.server.params import NoParams
from openclaw.gateway.server.registry import MethodCall, MethodTable

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
