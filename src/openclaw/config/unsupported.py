"""The keys that the schema accepts and nothing acts on yet. Setting one gives a warning.

They are accepted so that a file written for another version opens. ``tests/config/test_unsupported.py`` compares this
table with the code: a key that nothing reads must stand here, and a key that is read must not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from openclaw.config.keypath import KeyPath

_NO_SUBAGENTS = "agents cannot start sub-agents yet"
_NO_SANDBOX = "tools do not run in containers yet"
_NO_BLOCKS = "replies are not sent in blocks yet"
_NO_HEARTBEAT = "agents have no heartbeat yet"

_PER_AGENT = {
    "sandbox.scope": _NO_SANDBOX,
    "sandbox.perSession": _NO_SANDBOX,
    "sandbox.workspaceRoot": _NO_SANDBOX,
    "sandbox.sessionToolsVisibility": _NO_SANDBOX,
    "sandbox.docker": _NO_SANDBOX,
    "sandbox.browser": _NO_SANDBOX,
    "sandbox.prune": _NO_SANDBOX,
    "heartbeat.activeHours": _NO_HEARTBEAT,
    "heartbeat.session": _NO_HEARTBEAT,
    "heartbeat.to": _NO_HEARTBEAT,
    "heartbeat.accountId": _NO_HEARTBEAT,
    "heartbeat.includeReasoning": _NO_HEARTBEAT,
    "heartbeat.suppressToolErrorWarnings": _NO_HEARTBEAT,
    "heartbeat.directPolicy": _NO_HEARTBEAT,
    "humanDelay": _NO_BLOCKS,
    "memorySearch.remote.batch": "embeddings are not made in batch jobs",
    "memorySearch.local.modelCacheDir": "embedding models are not downloaded",
    "memorySearch.store": "the index of the notes is always in the state folder",
    "memorySearch.sync": "the notes are indexed when they are searched",
    "memorySearch.experimental": "there are no experiments",
    "memorySearch.query.hybrid.mmr": "results are ordered by their score only",
    "memorySearch.query.hybrid.temporalDecay": "results are ordered by their score only",
}
_PER_SIGNAL_ACCOUNT = {
    "groups.*.tools": "tools are not restricted by group yet",
    "groups.*.toolsBySender": "tools are not restricted by sender yet",
    "dmHistoryLimit": "direct chats keep their whole history",
    "dms": "direct chats keep their whole history",
    "blockStreaming": _NO_BLOCKS,
    "blockStreamingCoalesce": _NO_BLOCKS,
    "reactionLevel": "the agent does not react with emoji yet",
    "actions": "the agent has no actions on channels yet",
    "markdown": "tables are always written as text",
    "responsePrefix": "replies get no prefix yet",
    "defaultTo": "messages are only sent to a recipient that is named",
    "heartbeat": _NO_HEARTBEAT,
}

UNSUPPORTED: dict[str, str] = {
    "env.shellEnv": "variables are not taken from a login shell",
    "diagnostics": "traces and diagnostic flags are not written; /metrics has the figures",
    "update": "there is no check for new releases",
    "browser": "there is no browser tool yet",
    "ui.seamColor": "the Gateway serves no Control UI yet",
    "auth.profiles": "credentials are read from auth-profiles.json",
    "models.providers.*.auth": "the kind of credential is found by the credential",
    "models.providers.*.authHeader": "set compat.authHeader of the model instead",
    "models.bedrockDiscovery": "models of Bedrock are not looked up",
    "models.proxy": "there is no proxy for model calls",
    "nodeHost": "there are no nodes yet",
    "agents.defaults.models.*.streaming": "replies are always streamed",
    "agents.defaults.subagents.model": _NO_SUBAGENTS,
    "agents.defaults.subagents.thinking": _NO_SUBAGENTS,
    "agents.defaults.subagents.maxSpawnDepth": _NO_SUBAGENTS,
    "agents.defaults.subagents.maxChildrenPerAgent": _NO_SUBAGENTS,
    "agents.defaults.subagents.archiveAfterMinutes": _NO_SUBAGENTS,
    "agents.defaults.subagents.runTimeoutSeconds": _NO_SUBAGENTS,
    "agents.defaults.subagents.announceMode": _NO_SUBAGENTS,
    "agents.defaults.subagents.announceTimeoutMs": _NO_SUBAGENTS,
    "agents.defaults.blockStreamingDefault": _NO_BLOCKS,
    "agents.defaults.blockStreamingBreak": _NO_BLOCKS,
    "agents.defaults.blockStreamingChunk": _NO_BLOCKS,
    "agents.defaults.blockStreamingCoalesce": _NO_BLOCKS,
    "agents.defaults.mediaMaxMb": "set mediaMaxMb of the channel instead",
    "agents.defaults.cliBackends": "other agent programs are not used as models",
    **{f"agents.defaults.{key}": reason for key, reason in _PER_AGENT.items()},
    **{f"agents.list[].{key}": reason for key, reason in _PER_AGENT.items()},
    "agents.list[].subagents": _NO_SUBAGENTS,
    "agents.list[].tools.exec.applyPatch": "there is no apply_patch tool",
    "agents.list[].tools.exec.notifyOnExitEmptySuccess": "a command that ends well without output is always reported",
    "agents.list[].tools.sandbox": _NO_SANDBOX,
    "agents.list[].tools.loopDetection": "repeated tool calls are not looked for yet",
    "tools.exec.applyPatch": "there is no apply_patch tool",
    "tools.exec.notifyOnExitEmptySuccess": "a command that ends well without output is always reported",
    "tools.agentToAgent": "agents cannot write to each other yet",
    "tools.subagents": _NO_SUBAGENTS,
    "tools.sandbox": _NO_SANDBOX,
    "tools.message": "there is no message tool yet",
    "tools.sessions": "there are no session tools yet",
    "tools.web": "there are no web tools yet",
    "tools.media": "media are not described before the model sees them",
    "tools.links": "links are not read before the model sees them",
    "tools.loopDetection": "repeated tool calls are not looked for yet",
    "broadcast.strategy": "the agents of a broadcast answer side by side",
    "audio": "voice messages are not transcribed yet",
    "media": "media are stored by their content",
    "messages.responsePrefix": "replies get no prefix yet",
    "messages.messagePrefix": "messages get no prefix yet",
    "messages.ackReaction": "messages are not acknowledged with a reaction yet",
    "messages.ackReactionScope": "messages are not acknowledged with a reaction yet",
    "messages.removeAckAfterReply": "messages are not acknowledged with a reaction yet",
    "messages.suppressToolErrors": "tool errors are told to the model only",
    "messages.statusReactions": "the state of a run is not shown with reactions yet",
    "messages.tts": "replies are not spoken yet",
    "commands.native": "commands are not registered in the menus of channels yet",
    "commands.nativeSkills": "commands are not registered in the menus of channels yet",
    "commands.bash": "there is no /bash command",
    "commands.bashForegroundMs": "there is no /bash command",
    "commands.debug": "there is no /debug command",
    "session.agentToAgent": "agents cannot write to each other yet",
    "session.maintenance": "sessions are kept; `openclaw sessions archive` makes them small",
    "cron.enabled": "there are no scheduled jobs yet",
    "cron.store": "there are no scheduled jobs yet",
    "cron.webhook": "there are no scheduled jobs yet",
    "cron.webhookToken": "there are no scheduled jobs yet",
    "cron.sessionRetention": "there are no scheduled jobs yet",
    "hooks": "webhooks and internal hooks are not served yet",
    "web": "there is no WhatsApp channel yet",
    "channels.defaults.heartbeat": _NO_HEARTBEAT,
    **{f"channels.signal.{key}": reason for key, reason in _PER_SIGNAL_ACCOUNT.items()},
    **{f"channels.signal.accounts.*.{key}": reason for key, reason in _PER_SIGNAL_ACCOUNT.items()},
    "discovery": "the Gateway does not announce itself on the network",
    "canvasHost": "there is no canvas yet",
    "talk": "there is no talk mode yet",
    "gateway.auth.allowTailscale": "logins of Tailscale are not accepted",
    "gateway.auth.rateLimit": "failed logins are limited in a fixed way",
    "gateway.auth.trustedProxy": "logins of a proxy are not accepted",
    "gateway.controlUi.enabled": "the Gateway serves no Control UI yet",
    "gateway.controlUi.basePath": "the Gateway serves no Control UI yet",
    "gateway.controlUi.root": "the Gateway serves no Control UI yet",
    "gateway.remote.transport": "open an SSH tunnel yourself and set gateway.remote.url to it",
    "gateway.remote.sshTarget": "open an SSH tunnel yourself and set gateway.remote.url to it",
    "gateway.remote.sshIdentity": "open an SSH tunnel yourself and set gateway.remote.url to it",
    "gateway.http.endpoints.responses.files.pdf": "PDF files are not read yet",
    "gateway.tailscale": "the Gateway does not publish itself through Tailscale",
    "gateway.tls": "the Gateway does not serve TLS; put a proxy before it",
    "gateway.nodes": "there are no nodes yet",
    "gateway.tools.allow": "every tool that is not denied can be invoked",
    "gateway.channelHealthCheckMinutes": "channels report their state themselves",
    "memory.backend": "notes are searched with the built-in index",
    "memory.qmd": "notes are searched with the built-in index",
    "skills.load.watch": "skills are read when a turn needs them",
    "skills.load.watchDebounceMs": "skills are read when a turn needs them",
    "skills.install": "OpenClaw does not install what skills need",
    "skills.limits": "skills have fixed limits",
    "skills.entries.*.config": "skills are given their env and apiKey only",
    "plugins.slots": "plugins have no slots yet",
    "plugins.entries": "plugins are named in plugins.load.paths and get no settings yet",
    "plugins.installs": "OpenClaw does not install plugins",
    "secrets": "secrets are named where they are used: env, file or command",
    "acp": "the agent client protocol is not served",
    "cli": "the command line has no settings",
    "mcp": "MCP servers are not used yet",
}
"""Key path → why it has no effect. ``[]`` is any item of a list, ``*`` any key, and a path covers all below it."""

_Tree = dict[str, Any]
_REASON = ""


def unsupported_keys(values: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """The keys of the table that are set, with the reason why they have no effect."""
    return _found(values, _tree(), ())


@functools.cache
def _tree() -> _Tree:
    root: _Tree = {}
    for path, reason in UNSUPPORTED.items():
        node = root
        for segment in path.replace("[]", ".[]").split("."):
            node = node.setdefault(segment, {})
        node[_REASON] = reason
    return root


def _found(value: Any, node: _Tree, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if value is None:
        return
    if _REASON in node:
        yield path, node[_REASON]
    elif isinstance(value, dict):
        for key, item in value.items():
            if below := node.get(key) or node.get("*"):
                yield from _found(item, below, (*path, key))
    elif isinstance(value, list) and "[]" in node:
        for index, item in enumerate(value):
            yield from _found(item, node["[]"], (*path, index))
