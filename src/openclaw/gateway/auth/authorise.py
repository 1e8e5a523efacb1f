"""Decides who may call which method: one table and one function, asked before a method is looked up.

A name that is not in the table needs ``operator.admin``, so a method that was forgotten here is closed, not open.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal, TypeAlias

Access: TypeAlias = Literal["read", "write", "admin", "pairing", "approvals", "node"]
ADMIN = "operator.admin"
READ = "operator.read"
WRITE = "operator.write"
PAIRING = "operator.pairing"
APPROVALS = "operator.approvals"

_READ = """
health logs.tail channels.status status usage.status usage.cost tts.status tts.providers models.list agents.list
agent.identity.get skills.status voicewake.get sessions.list sessions.preview cron.list cron.status cron.runs
system-presence last-heartbeat node.list node.describe chat.history
"""
_WRITE = """
send agent agent.wait wake talk.mode tts.enable tts.disable tts.convert tts.setProvider voicewake.set node.invoke
chat.send chat.abort browser.request
"""
_PAIRING = """
node.pair.request node.pair.list node.pair.approve node.pair.reject node.pair.verify device.pair.list
device.pair.approve device.pair.reject device.token.rotate device.token.revoke node.rename
"""
_APPROVALS = "exec.approval.request exec.approval.resolve"
_NODE = "node.invoke.result node.event skills.bins"

ACCESS: dict[str, Access] = {
    **dict.fromkeys(_READ.split(), "read"),
    **dict.fromkeys(_WRITE.split(), "write"),
    **dict.fromkeys(_PAIRING.split(), "pairing"),
    **dict.fromkeys(_APPROVALS.split(), "approvals"),
    **dict.fromkeys(_NODE.split(), "node"),
}

EVENT_SCOPES: dict[str, str] = {
    "exec.approval.requested": APPROVALS,
    "exec.approval.resolved": APPROVALS,
    "device.pair.requested": PAIRING,
    "device.pair.resolved": PAIRING,
    "node.pair.requested": PAIRING,
    "node.pair.resolved": PAIRING,
}
"""Events that only some operators may see, and nodes never."""


def access_of(method: str) -> Access:
    return ACCESS.get(method, "admin")


def refusal(role: str, scopes: Set[str], access: Access) -> str | None:
    """Why this caller may not use a method with this access, or None."""
    if (role == "node") != (access == "node"):
        return f"unauthorized role: {role}"
    if role == "node" or ADMIN in scopes:
        return None
    needed = f"operator.{access}"
    if needed in scopes or (needed == READ and WRITE in scopes):
        return None
    return f"missing scope: {needed}"


def may_receive(role: str, scopes: Set[str], scope: str | None) -> bool:
    """Whether an event that needs ``scope`` goes to this client."""
    if scope is None:
        return True
    return role == "operator" and (ADMIN in scopes or scope in scopes)
