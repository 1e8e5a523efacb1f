"""``cluster.*``: the nodes that share the sessions of this Gateway."""

from __future__ import annotations

from typing import Any

from openclaw.gateway.server.params import NoParams
from openclaw.gateway.server.registry import MethodCall, MethodTable

methods = MethodTable()


@methods.add("cluster.status", NoParams)
async def status(call: MethodCall) -> Any:
    """The nodes of the cluster: how they do, what they own, and how far behind they are."""
    cluster = call.gateway.cluster
    if cluster is None:
        return {"clustered": False, "nodes": []}
    return {"clustered": True, **await cluster.status()}
