"""Decides which right a method, a parameter or an event needs: four tables, and the functions that read them.

Every method that is registered and every event that is published must be in its table; a name that was forgotten fails
when the Gateway is imported. Until then it is closed, not open: a name that no table knows needs ``admin``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any, Literal, TypeAlias

from openclaw.rights import ADMIN, Right, rights_of_client, scope_for

_METHODS: dict[Right, str] = {
    "read": """
        health logs.tail channels.status status usage.status usage.cost tts.status tts.providers models.list
        agents.list agent.identity.get skills.status voicewake.get sessions.list sessions.preview cron.list cron.status
        cron.runs system-presence last-heartbeat node.list node.describe chat.history
        sessions.archived sessions.tree sessions.search sessions.export messages.list messages.get messages.why
        memory.status memory.search events.replay chat.view chat.commands chat.media sessions.entries
        mcp.status plugins.list
        models.status
        outbox.list
        cluster.status
    """,
    "write": """
        send agent agent.wait wake talk.mode tts.enable tts.disable tts.convert tts.setProvider voicewake.set
        node.invoke chat.send chat.abort browser.request
        memory.index chat.drop chat.reword
    """,
    "pairing": """
        node.pair.request node.pair.list node.pair.approve node.pair.reject node.pair.verify device.pair.list
        device.pair.approve device.pair.reject device.token.rotate device.token.revoke node.rename
        device.pair.remove pairing.list pairing.approve
    """,
    "approvals": "exec.approval.request exec.approval.resolve exec.approval.list",
    "node": "node.invoke.result node.event skills.bins",
    "admin": """
        connect channels.logout config.get config.set config.apply config.patch config.schema exec.approvals.get
        exec.approvals.set exec.approvals.node.get exec.approvals.node.set wizard.start wizard.next wizard.cancel
        wizard.status agents.create agents.update agents.delete agents.files.list agents.files.get agents.files.set
        skills.install skills.update update.run sessions.patch sessions.reset sessions.delete sessions.compact
        set-heartbeats cron.add cron.update cron.remove cron.run system-event sessions.resolve sessions.usage
        sessions.usage.timeseries sessions.usage.logs chat.inject poll
        sessions.resume sessions.branch sessions.label sessions.import sessions.importFolder sessions.archive
        agents.bind context.get context.diff context.find mcp.test models.probe
        outbox.retry outbox.drop
        sessions.compaction
        signIn.create
    """,
}
METHOD_RIGHTS: Mapping[str, Right] = {name: right for right, names in _METHODS.items() for name in names.split()}

PARAM_RIGHTS: Mapping[str, Mapping[str, Right]] = {
    # It writes into the transcript of that session, as chat.inject does.
    "send": {"session_key": "admin"},
    # With these a program speaks with the voice of the system, or changes what sessions.patch changes.
    "agent": dict.fromkeys(
        ("extra_system_prompt", "lane", "label", "spawned_by", "group_id", "group_channel", "group_space"), "admin"
    ),
}
"""Parameters that do more than their method does, by the name of their field."""

NODE_PARAM_RIGHTS: Mapping[str, Mapping[str, Right]] = {
    # Whoever says that a person approved a command answers in the place of that person.
    "system.run": {"approved": "approvals", "approvalDecision": "approvals"},
}
"""Parameters of commands for nodes that do more than ``node.invoke`` does."""

Everyone: TypeAlias = Literal["everyone"]
EVENT_RIGHTS: Mapping[str, Right | Everyone] = {
    "connect.challenge": "everyone",
    "tick": "everyone",
    "shutdown": "everyone",
    "agent": "read",
    "chat": "read",
    "presence": "read",
    "health": "read",
    "heartbeat": "read",
    "cron": "read",
    "talk.mode": "read",
    "voicewake.changed": "read",
    "exec.approval.requested": "approvals",
    "exec.approval.resolved": "approvals",
    "device.pair.requested": "pairing",
    "device.pair.resolved": "pairing",
    "node.pair.requested": "pairing",
    "node.pair.resolved": "pairing",
    "node.invoke.request": "node",
    "node.invoke.cancel": "node",
}
"""Who gets an event, live or replayed."""


def right_of(method: str) -> Right:
    return METHOD_RIGHTS.get(method, "admin")


def refusal(role: str, rights: Set[Right], right: Right) -> str | None:
    """Why a caller with these rights may not cause an effect that needs this one, or None."""
    if right in rights:
        return None
    if (role == "node") != (right == "node"):
        return f"unauthorized role: {role}"
    return f"missing scope: {scope_for(right)}"


def param_refusal(method: str, params: Any, rights: Set[Right]) -> str | None:
    """Why the caller of a method may not give one of its parameters, or None."""
    for field, right in PARAM_RIGHTS.get(method, {}).items():
        if getattr(params, field) and right not in rights:
            wire = params.__struct_encode_fields__[params.__struct_fields__.index(field)]
            return f"missing scope: {scope_for(right)} (for {wire})"
    return None


def invoke_refusal(command: str, params: Any, rights: Set[Right]) -> str | None:
    """Why the caller of ``node.invoke`` may not give one of the parameters of a node's command, or None."""
    for name, right in NODE_PARAM_RIGHTS.get(command, {}).items():
        if right not in rights and isinstance(params, dict) and params.get(name):
            return f"missing scope: {scope_for(right)} (for params.{name})"
    return None


def may_receive(rights: Set[Right], event: str) -> bool:
    """Whether a client with these rights gets an event. An event that no table knows is for the owner."""
    right = EVENT_RIGHTS.get(event, "admin")
    return right == "everyone" or right in rights


def beyond(scopes: Set[str], handed_out: Collection[str]) -> str | None:
    """Why a caller with these scopes may not give those to a device, or None: it has every one of them itself."""
    own = rights_of_client("operator", scopes)
    for scope in handed_out:
        given = rights_of_client("operator", (scope,))
        if scope not in scopes and ADMIN not in scopes and not (given and given <= own):
            return f"missing scope: {scope}"
    return None
