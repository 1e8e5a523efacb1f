"""Keys and single values that the schema accepts and nothing acts on. Setting one is reported by name.

They are accepted so that a file written for another version opens. ``tests/config/test_unsupported.py`` compares this
table with the code: a key that nothing reads must stand here, and a key that is read must not be in ``UNSUPPORTED``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from openclaw.config.keypath import KeyPath

_LOOPS = {
    "historySize": "a run remembers all of its calls",
    "globalCircuitBreakerThreshold": "criticalThreshold is the limit",
    "detectors": "there is one detector, for identical calls with identical results",
}
_PER_AGENT = {
    "sandbox.docker.setupCommand": "a container lives for one command; do this when you build the image",
    "sandbox.browser": "the browser does not run in a sandbox; sandboxed sessions have none",
    "heartbeat.includeReasoning": "alerts are delivered without reasoning",
    "heartbeat.suppressToolErrorWarnings": "tool errors are reported to the model only",
    "memorySearch.remote.batch": "embeddings are not made in batch jobs",
    "memorySearch.local.modelCacheDir": "embedding models are not downloaded",
    "memorySearch.store": "the index of the notes is always in the state folder",
    "memorySearch.sync": "the notes are indexed when they are searched",
    "memorySearch.experimental": "there are no experiments",
    "memorySearch.query.hybrid.mmr": "results are ordered by their score only",
    "memorySearch.query.hybrid.temporalDecay": "results are ordered by their score only",
}
_CHANNELS = ("telegram", "discord", "irc", "matrix", "signal", "slack", "whatsapp", "bluebubbles", "imessage")
"""The channels that exist."""
_NO_IMSG = "iMessage is used through a BlueBubbles server (serverUrl, password)"
T = TypeVar("T")


def _of(channel: str, keys: dict[str, T]) -> dict[str, T]:
    """The keys of a channel's section, and of each of its accounts."""
    accounts = (f"channels.{channel}", f"channels.{channel}.accounts.*")
    return {f"{account}.{key}": value for account in accounts for key, value in keys.items()}


UNSUPPORTED: dict[str, str] = {
    "env.shellEnv": "variables are not taken from a login shell",
    "diagnostics": "traces and diagnostic flags are not written; /metrics has the figures",
    "update": "there is no check for new releases",
    "browser.color": "the browser's frame has no colour",
    "browser.profiles.*.color": "the browser's frame has no colour",
    "browser.profiles.*.driver": "a profile is a browser of its own, or one that cdpUrl names; no extension is used",
    "ui.seamColor": "the web page has colours of its own",
    "auth.profiles": "credentials are read from auth-profiles.json",
    "models.providers.*.auth": "the kind of credential is found by the credential",
    "models.providers.*.authHeader": "set compat.authHeader of the model instead",
    "models.bedrockDiscovery": "models of Bedrock are not looked up",
    "models.proxy": "there is no proxy for model calls",
    "nodeHost": "a node of ours has no browser to offer",
    "agents.defaults.models.*.streaming": "replies are always streamed",
    "agents.defaults.subagents.maxSpawnDepth": "sub-agents never start sub-agents",
    "agents.defaults.subagents.announceTimeoutMs": "the announce step has two minutes",
    "agents.defaults.cliBackends.*.systemPromptMode": "the argument of the program decides",
    "agents.defaults.mediaMaxMb": "set mediaMaxMb of the channel instead",
    **{f"agents.defaults.{key}": reason for key, reason in _PER_AGENT.items()},
    **{f"agents.list[].{key}": reason for key, reason in _PER_AGENT.items()},
    "agents.list[].tools.exec.notifyOnExitEmptySuccess": "a command that ends well without output is always reported",
    **{
        f"{place}tools.loopDetection.{key}": reason
        for place in ("", "agents.list[].")
        for key, reason in _LOOPS.items()
    },
    "tools.exec.notifyOnExitEmptySuccess": "a command that ends well without output is always reported",
    "tools.message.broadcast": "the message tool writes to one target per call",
    "tools.web.fetch.firecrawl": "pages are fetched by the Gateway itself",
    "tools.media.image": "models see pictures themselves",
    "tools.media.video": "films are files for the agent's tools",
    "tools.media.models": "set tools.media.audio.models",
    "tools.media.concurrency": "two voice messages are transcribed at a time",
    "tools.media.audio.attachments": "every voice message is transcribed",
    "tools.media.audio.models[].capabilities": "the entries are for voice messages only",
    "tools.media.audio.models[].profile": "the provider's first credential is used",
    "tools.media.audio.models[].preferredProfile": "the provider's first credential is used",
    "tools.links": "links are not read before the model sees them",
    "broadcast.strategy": "the agents of a broadcast answer side by side",
    "media": "media are stored by their content",
    "messages.suppressToolErrors": "tool errors are reported to the model only",
    "messages.statusReactions": "the state of a run is not shown with reactions yet",
    "messages.tts": "replies are not spoken yet",
    "commands.nativeSkills": "commands are not registered in the menus of channels yet",
    "commands.bash": "there is no /bash command",
    "commands.bashForegroundMs": "there is no /bash command",
    "commands.debug": "there is no /debug command",
    "session.maintenance.rotateBytes": "sessions.json holds only what is current; there is nothing to rotate",
    "cron.webhook": "finished jobs are reported to clients and channels only",
    "cron.webhookToken": "finished jobs are reported to clients and channels only",
    "hooks.gmail": "mail is not fetched; let a program call /hooks/gmail with the preset gmail",
    "hooks.internal": "there are no hooks inside the Gateway yet",
    "web": "WhatsApp is used through the Cloud API, not through WhatsApp Web",
    **_of(
        "telegram",
        {
            "network": "the library chooses between IPv4 and IPv6",
            "retry": "the outbox repeats what was not delivered, in its own time",
            "actions.sticker": "stickers are not sent",
        },
    ),
    **_of("discord", {"retry": "the outbox repeats what was not delivered, in its own time"}),
    **_of("matrix", {"initialSyncLimit": "messages from before the first start are not read"}),
    **_of(
        "irc",
        {
            "mentionPatterns": "set messages.groupChat.mentionPatterns instead",
            "nickserv.register": "register the nickname yourself",
            "nickserv.registerEmail": "register the nickname yourself",
        },
    ),
    **{
        path: reason
        for channel in _CHANNELS
        for path, reason in _of(
            channel,
            {
                "reactionLevel": "the agent reacts with emoji as often as its instructions say",
                "defaultTo": "messages are only sent to a recipient that is named",
            },
        ).items()
    },
    **_of("bluebubbles", dict.fromkeys(("cliPath", "dbPath"), _NO_IMSG)),
    **_of("imessage", dict.fromkeys(("cliPath", "dbPath"), _NO_IMSG)),
    **_of(
        "whatsapp",
        {
            "authDir": "WhatsApp is used through the Cloud API, not through WhatsApp Web",
            "selfChatMode": "a number of the Cloud API belongs to the agent alone",
            "debounceMs": "set messages.inbound.byChannel.whatsapp instead",
            "actions.polls": "the Cloud API has no polls",
        },
    ),
    **_of(
        "slack",
        {
            "userToken": "everything is done with the bot's token",
            "userTokenReadOnly": "everything is done with the bot's token",
            "slashCommand.sessionPrefix": "a slash command speaks to the session of the conversation it was given in",
            "actions.memberInfo": "the agent cannot look people up yet",
            "actions.emojiList": "the agent cannot list emoji yet",
        },
    ),
    "discovery": "the Gateway does not announce itself on the network",
    "canvasHost": "there is no canvas yet",
    "talk": "there is no talk mode yet",
    "gateway.auth.allowTailscale": "logins of Tailscale are not accepted",
    "gateway.auth.trustedProxy": "logins of a proxy are not accepted",
    "gateway.remote.transport": "open an SSH tunnel yourself and set gateway.remote.url to it",
    "gateway.remote.sshTarget": "open an SSH tunnel yourself and set gateway.remote.url to it",
    "gateway.remote.sshIdentity": "open an SSH tunnel yourself and set gateway.remote.url to it",
    "gateway.http.endpoints.responses.files.pdf": "PDF files are not read yet",
    "gateway.tailscale": "the Gateway does not publish itself through Tailscale",
    "gateway.nodes.browser": "browsers on nodes are not used",
    "gateway.channelHealthCheckMinutes": "channels report their state themselves",
    "memory.backend": "notes are searched with the built-in index",
    "memory.qmd": "notes are searched with the built-in index",
    "skills.load.watch": "skills are read when a turn needs them",
    "skills.load.watchDebounceMs": "skills are read when a turn needs them",
    "skills.install": "OpenClaw does not install what skills need",
    "skills.limits": "skills have fixed limits",
    "skills.entries.*.config": "skills are given their env and apiKey only",
    "plugins.slots": "plugins have no slots yet",
    "plugins.installs": "OpenClaw does not install plugins",
    "secrets": "secrets are named where they are used: env, file or command",
    "acp": "the agent client protocol is not served",
    "cli": "the command line has no settings",
}
"""Key path → why it has no effect. ``[]`` is any item of a list, ``*`` any key, and a path covers all below it."""

_FALSE_MATTERS = {"agents.defaults.models.*.streaming", "skills.load.watch"}
"""Keys of the table that ask for something even when they are false."""


class KeyRule(NamedTuple):
    reason: str
    applies: Callable[[Any], bool]
    """Whether the value asks for something that there is not."""
    refused: bool = False
    """The value promises safety: the Gateway does not start with it, because nothing keeps the promise."""


def _asks(value: Any) -> bool:
    """False for values that switch a thing off which there is not: nothing is missing then."""
    if isinstance(value, dict):
        switch = [value[name] for name in ("enabled", "mode", "every") if name in value]
        return bool(value) and all(_asks(setting) for setting in switch)
    return value is not False and value not in ("off", "0m", "0s", "0h", "0", 0, "")


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


def _restricts(policy: Any) -> bool:
    """Whether a tool policy, or one of several by name, keeps a tool away."""
    if not isinstance(policy, dict):
        return False
    return bool(policy.get("allow") or policy.get("deny")) or any(map(_restricts, policy.values()))


def _denies(value: Any) -> bool:
    """Whether a rule, or one of several, denies something."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value == "deny" or any(map(_denies, below))


_UNSPOKEN = KeyRule(
    "this protocol is not spoken, and calls of such models fail; use openai-completions, openai-responses or "
    "anthropic-messages",
    _one_of("openai-codex-responses", "github-copilot", "bedrock-converse-stream"),
)
FILTERS = ("cut", "grep", "head", "sort", "tail", "tr", "uniq", "wc")
"""The programs that ``tools.exec.safeBins`` can name."""
_EXEC = {
    "safeBins": KeyRule(
        f"only {', '.join(FILTERS)} are filters; others can read files, variables or the network, so they are asked "
        "about like every program",
        lambda names: isinstance(names, list) and any(name not in FILTERS for name in names),
    ),
}
UNSUPPORTED_VALUES: dict[str, KeyRule] = {
    "models.providers.*.api": _UNSPOKEN,
    "models.providers.*.models[].api": _UNSPOKEN,
    **{f"tools.exec.{key}": rule for key, rule in _EXEC.items()},
    **{f"agents.list[].tools.exec.{key}": rule for key, rule in _EXEC.items()},
    "tools.web.search.provider": KeyRule(
        "this service is not asked; use brave, perplexity or searxng", _one_of("grok", "gemini", "kimi")
    ),
    "logging.consoleStyle": KeyRule("lines on the console have one form beside json", _one_of("compact")),
    **_of(
        "irc",
        {
            "mediaMaxMb": KeyRule("IRC carries text only", _asks),
            "reactionNotifications": KeyRule("IRC has no reactions", _asks),
            "reactionAllowlist": KeyRule("IRC has no reactions", _asks),
        },
    ),
    "channels.*": KeyRule("no channel of OpenClaw has this name; a package that is installed must bring it", _asks),
}
"""Key path → values that have no effect. Something reads these keys, for other values or only to show them."""

_GROUP_TOOLS = KeyRule(
    "tools are not kept away from single groups or senders; remove it, and deny the tools to the whole agent with "
    "tools.deny",
    _restricts,
    refused=True,
)
_SEND_ACTION = KeyRule(
    "the agent can send messages wherever it has the message tool; remove it, and deny that tool with tools.deny",
    lambda value: value is False,
    refused=True,
)
SAFETY: dict[str, KeyRule] = {
    "gateway.tools.allow": KeyRule(
        "every tool that is not denied can be invoked; remove it, and name tools in gateway.tools.deny",
        bool,
        refused=True,
    ),
    "tools.media.audio.scope": KeyRule(
        "every voice message that is answered is transcribed; remove it, or set tools.media.audio.enabled to false",
        _denies,
        refused=True,
    ),
    **_of("telegram", {"actions.sendMessage": _SEND_ACTION}),
    **_of("whatsapp", {"actions.sendMessage": _SEND_ACTION}),
    "gateway.auth.mode": KeyRule(
        "only clients with a token or a password are let in; set it to token or password",
        _one_of("none", "trusted-proxy"),
        refused=True,
    ),
    **{
        path: _GROUP_TOOLS
        for channel, group in (
            *((channel, "groups.*") for channel in _CHANNELS),
            ("slack", "channels.*"),
            ("telegram", "groups.*.topics.*"),
            ("discord", "guilds.*"),
            ("discord", "guilds.*.channels.*"),
        )
        for path in _of(channel, {f"{group}.tools": None, f"{group}.toolsBySender": None})
    },
}
"""Key path → values that promise safety which nothing gives. The Gateway refuses to start with them."""

_Tree = dict[str, Any]
_RULE = ""


def unsupported_values(values: dict[str, Any]) -> Iterator[tuple[KeyPath, KeyRule]]:
    """Yield the settings without an effect, with the reason."""
    return _found(values, _tree(), ())


@functools.cache
def _tree() -> _Tree:
    keys = {
        path: KeyRule(reason, (lambda value: True) if path in _FALSE_MATTERS else _asks)
        for path, reason in UNSUPPORTED.items()
    }
    root: _Tree = {}
    for path, rule in {**keys, **UNSUPPORTED_VALUES, **SAFETY}.items():
        node = root
        for segment in path.replace("[]", ".[]").split("."):
            node = node.setdefault(segment, {})
        node[_RULE] = rule
    return root


def _found(value: Any, node: _Tree, path: KeyPath) -> Iterator[tuple[KeyPath, KeyRule]]:
    """Return the most precise rule: a rule of a key goes before that of its section."""
    if value is None:
        return
    rule: KeyRule | None = node.get(_RULE)
    if rule is not None and not rule.applies(value):
        return
    below: list[tuple[KeyPath, KeyRule]] = []
    if isinstance(value, dict):
        for key, item in value.items():
            if under := node.get(key) or node.get("*"):
                below += _found(item, under, (*path, key))
    elif isinstance(value, list) and "[]" in node:
        for index, item in enumerate(value):
            below += _found(item, node["[]"], (*path, index))
    if below or rule is None:
        yield from below
    else:
        yield path, rule
