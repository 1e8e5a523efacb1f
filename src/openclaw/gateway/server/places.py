"""Where a method is answered when several nodes share the sessions: a table, and how a call names its session.

Every method that is registered must be in the table. With files there is one node, and nobody looks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from openclaw.config.agents import main_session_key
from openclaw.gateway.server.registry import MethodCall, MethodError, target_of
from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import SessionRef

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

Place: TypeAlias = Literal["here", "session", "owner", "scheduler", "holder", "all"]
"""
- ``here``: the node that was asked. What it needs is in the database, or belongs to this machine.
- ``session``: the owner of the session that the parameters name. If it has none, the node that was asked becomes it.
- ``owner``: the same, except that a session without an owner gets none by it. It shows what an owner has in memory.
- ``scheduler``: the owner of the scheduled jobs and heartbeats.
- ``holder``: the node that has what an id names. The node that was asked looks first, then it asks the others.
- ``all``: every node, and the lists in their answers are joined.
"""

_METHODS: dict[Place, str] = {
    "session": """
        agent chat.send chat.abort chat.drop chat.reword chat.inject sessions.patch sessions.reset sessions.delete
        sessions.compact sessions.compaction sessions.resume sessions.branch sessions.label sessions.import send
        system-event
    """,
    "owner": "chat.view chat.media context.get context.diff context.find",
    "scheduler": """
        cron.list cron.status cron.add cron.update cron.remove cron.run cron.runs last-heartbeat set-heartbeats wake
    """,
    "holder": "exec.approval.resolve node.invoke exec.approvals.node.get exec.approvals.node.set channels.logout",
    "all": "exec.approval.list",
    "here": """
        agent.wait agents.list agent.identity.get agents.create agents.update agents.delete agents.bind
        agents.files.list agents.files.get agents.files.set browser.request chat.history chat.commands config.get
        config.schema config.set config.patch config.apply device.pair.list device.pair.approve device.pair.reject
        device.token.rotate device.token.revoke device.pair.remove signIn.create health status system-presence
        logs.tail events.replay exec.approval.request exec.approvals.get exec.approvals.set mcp.status mcp.test
        memory.status memory.index memory.search messages.list messages.get messages.why models.list models.status
        models.probe outbox.list outbox.retry outbox.drop plugins.list channels.status pairing.list pairing.approve
        node.pair.request node.pair.list node.pair.approve node.pair.reject node.pair.verify node.list node.describe
        node.rename node.invoke.result node.event skills.status skills.update skills.bins sessions.search
        sessions.export sessions.importFolder sessions.archive sessions.list sessions.preview sessions.resolve
        sessions.archived sessions.tree sessions.entries sessions.usage sessions.usage.timeseries
        sessions.usage.logs usage.cost usage.status cluster.status
    """,
}
PLACES: Mapping[str, Place] = {name: place for place, names in _METHODS.items() for name in names.split()}


def place_of(method: str) -> Place:
    """Where the method is answered. Those of extensions are answered by the node that was asked."""
    return PLACES.get(method, "here")


async def session_of(call: MethodCall) -> SessionRef | None:
    """Returns the session that a call is about, as its method finds it. None when it names none or a wrong one."""
    gateway, params = call.gateway, call.params
    try:
        if call.method == "agent":
            return await _session_of_agent(gateway, params)
        key = getattr(params, "session_key", None) or getattr(params, "key", None)
        if call.method == "system-event" and key is None:
            key = gateway.main_session_key()
        return target_of(gateway, key) if key else None
    except MethodError:
        return None  # The method says what is wrong.


async def _session_of_agent(gateway: Gateway, params: object) -> SessionRef | None:
    agent_id = getattr(params, "agent_id", None)
    agent_id = normalize_agent_id(agent_id) if agent_id else None
    if key := getattr(params, "session_key", None):
        return target_of(gateway, key, agent_id)
    if session_id := getattr(params, "session_id", None):
        found = await gateway.runtime.sessions.find_session_id(session_id)
        return None if found is None else SessionRef(found.agent_id, found.key)
    if agent_id is not None:
        return target_of(gateway, main_session_key(gateway.runtime.config.current, agent_id), agent_id)
    return target_of(gateway, "main")
