"""Reads the keys of OpenClaw 2026.8 and newer as the keys that the schema has.

``translate`` runs before the values are checked, so every rule, also every refusal, holds for both spellings. The file
stays as it is. A finding names the key that the file has: ``Translation.written`` finds it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec

from openclaw.config.keypath import KeyPath, format_path, get_path

_FIRST_NEWER = (2026, 8)
_EXEC_MODES = {
    "deny": {"security": "deny"},
    "allowlist": {"security": "allowlist", "ask": "off"},
    "ask": {"security": "allowlist", "ask": "on-miss"},
    "auto": {"security": "allowlist", "ask": "on-miss"},
    "full": {"security": "full", "ask": "off"},
}
"""``tools.exec.mode`` → our two keys. With ``auto`` a person decides what a model decides there."""
_MANAGED_SIGNAL = ("httpHost", "httpPort", "cliPath", "startupTimeoutMs", "receiveMode", "ignoreStories")
_STREAM_MODES = {"progress": "partial"}


class Translation(msgspec.Struct):
    """Values in the keys of the schema, and where each of them stands in the file."""

    values: dict[str, Any]
    notes: list[tuple[KeyPath, str]] = []
    """Key path in the file → how it is read. Only what a person may want to know."""
    moved: dict[KeyPath, KeyPath] = {}
    """Key path of the schema → key path in the file."""

    def written(self, path: KeyPath) -> KeyPath:
        """Return the path in the file for a path of the schema."""
        for length in range(len(path), 0, -1):
            if (origin := self.moved.get(path[:length])) is not None:
                return (*origin, *path[length:])
        return path


def translate(values: dict[str, Any]) -> Translation:
    """Return the values as they are if no key is of a newer version."""
    translation = Translation(values)
    if not (_is_newer(values) or any(_newer_keys(values))):
        return translation
    translation.values = copy.deepcopy(values)
    _agents(translation)
    _memory(translation, ("agents", "defaults"), ("memory",))
    _exec(translation, ("tools", "exec"))
    _channels(translation)
    _rename(translation, ("gateway", "nodes", "commands", "allow"), ("gateway", "nodes", "allowCommands"))
    _rename(translation, ("gateway", "nodes", "commands", "deny"), ("gateway", "nodes", "denyCommands"))
    _drop_empty(translation.values, ("gateway", "nodes", "commands"))
    _other_defaults(translation)
    return translation


def _newer_keys(values: dict[str, Any]) -> Iterator[KeyPath]:
    """Yield the keys of newer versions that the values have."""
    for path in (
        ("agents", "entries"),
        ("agents", "ownership"),
        ("memory", "search"),
        ("gateway", "nodes", "commands"),
    ):
        if get_path(values, path) is not None:
            yield path
    for owner in [("tools",), *(("agents", "list", index, "tools") for index in range(len(_agent_list(values))))]:
        for key in ("mode", "timeoutSeconds"):
            if get_path(values, (*owner, "exec", key)) is not None:
                yield (*owner, "exec", key)
    for account in _accounts(values):
        for key in ("streaming", "transport", "heartbeatVisibility"):
            if get_path(values, (*account, key)) is not None:
                yield (*account, key)


def _is_newer(values: dict[str, Any]) -> bool:
    """Whether the file says that a newer version wrote it last."""
    version = get_path(values, ("meta", "lastTouchedVersion"))
    numbers = version.split("-")[0].split(".")[:2] if isinstance(version, str) else []
    return len(numbers) == 2 and all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= _FIRST_NEWER


def _agent_list(values: dict[str, Any]) -> list[Any]:
    listed = get_path(values, ("agents", "list"))
    return listed if isinstance(listed, list) else []


def _agents(translation: Translation) -> None:
    agents = translation.values.get("agents")
    if not isinstance(agents, dict):
        return
    if agents.pop("ownership", None) is not None:
        note = "accepted; here the default agent answers what no binding gives to another one"
        translation.notes.append((("agents", "ownership"), note))
    entries = agents.get("entries")
    if isinstance(entries, dict):
        del agents["entries"]
        listed = [*_agent_list(translation.values)]
        for name, entry in entries.items():
            translation.moved["agents", "list", len(listed)] = ("agents", "entries", name)
            listed.append({**entry, "id": name} if isinstance(entry, dict) else entry)
        if isinstance(agents.get("list", []), list):
            agents["list"] = listed
        names = ", ".join(map(str, entries)) or "none"
        translation.notes.append((("agents", "entries"), f"read as agents.list, the key as the id: {names}"))
    elif entries is not None:  # Wrong in either form, and no reason to start without the agents.
        agents["list"] = agents.pop("entries")
        translation.moved["agents", "list"] = ("agents", "entries")
    for index, agent in enumerate(_agent_list(translation.values)):
        if isinstance(agent, dict):
            owner = ("agents", "list", index)
            _memory(translation, owner, (*owner, "memory"))
            _exec(translation, (*owner, "tools", "exec"))


def _memory(translation: Translation, owner: KeyPath, section: KeyPath) -> None:
    """Read ``memory.search`` as ``memorySearch`` of the agent, or of all agents."""
    search = get_path(translation.values, (*section, "search"))
    if not isinstance(search, dict):
        return
    paths = search.get("extraPaths")
    if isinstance(paths, list):
        search["extraPaths"] = [path.get("path") if isinstance(path, dict) else path for path in paths]
    _rename(translation, (*section, "search"), (*owner, "memorySearch"))
    _drop_empty(translation.values, section)


def _exec(translation: Translation, section: KeyPath) -> None:
    settings = get_path(translation.values, section)
    if not isinstance(settings, dict):
        return
    _rename(translation, (*section, "timeoutSeconds"), (*section, "timeoutSec"))
    mode = settings.get("mode")
    if isinstance(mode, str) and mode in _EXEC_MODES:
        del settings["mode"]
        for key, value in _EXEC_MODES[mode].items():
            if settings.get(key) is None:
                settings[key] = value
                translation.moved[*section, key] = translation.written((*section, "mode"))
        words = ", ".join(f"{key} {value}" for key, value in _EXEC_MODES[mode].items())
        who = "; you are asked where a model decides there" if mode == "auto" else ""
        translation.notes.append((translation.written((*section, "mode")), f'"{mode}" is read as {words}{who}'))


def _accounts(values: dict[str, Any]) -> Iterator[KeyPath]:
    """Yield the paths of all sections of channels and of their accounts."""
    channels = values.get("channels")
    for name, section in channels.items() if isinstance(channels, dict) else ():
        if isinstance(section, dict):
            yield ("channels", name)
            accounts = section.get("accounts")
            for account, own in accounts.items() if isinstance(accounts, dict) else ():
                if isinstance(own, dict):
                    yield ("channels", name, "accounts", account)


def _channels(translation: Translation) -> None:
    for account in list(_accounts(translation.values)):
        if account[1] == "signal":
            _signal_transport(translation, account)
        _streaming(translation, account)
        if account[1] != "defaults":
            _rename(translation, (*account, "heartbeatVisibility"), (*account, "heartbeat"))


def _signal_transport(translation: Translation, account: KeyPath) -> None:
    section: dict[str, Any] = get_path(translation.values, account)
    transport = section.get("transport")
    if not isinstance(transport, dict):
        return
    path = (*account, "transport")
    match transport.get("kind"):
        case "managed-native":
            for key in _MANAGED_SIGNAL:
                _rename(translation, (*path, key), (*account, key))
            section.setdefault("autoStart", True)
            note = "the daemon is started here"
        case "external-native":
            _rename(translation, (*path, "url"), (*account, "httpUrl"))
            section.setdefault("autoStart", False)
            note = f"read as httpUrl {section.get('httpUrl')}"
        case "container":
            section["enabled"] = False
            note = "the REST container is not spoken to, so this account is off; run `signal-cli daemon --http`"
        case _:
            return
    transport.pop("kind")
    transport.pop("url", None)
    _drop_empty(translation.values, path)
    translation.notes.append((path, note))


def _streaming(translation: Translation, account: KeyPath) -> None:
    section: dict[str, Any] = get_path(translation.values, account)
    streaming, path = section.get("streaming"), (*account, "streaming")
    if not isinstance(streaming, dict):
        return
    mode = streaming.pop("mode", None)
    if mode is not None and account[1] == "telegram":
        section["streamMode"] = _STREAM_MODES.get(mode, mode) if isinstance(mode, str) else mode
        translation.moved[*account, "streamMode"] = (*path, "mode")
        translation.notes.append(((*path, "mode"), f"read as streamMode {section['streamMode']}"))
    elif mode not in (None, "off"):
        translation.notes.append(((*path, "mode"), "drafts are shown on Telegram only"))
    _rename(translation, (*path, "chunkMode"), (*account, "chunkMode"))
    _rename(translation, (*path, "preview", "chunk"), (*account, "draftChunk"))
    _rename(translation, (*path, "block", "enabled"), (*account, "blockStreaming"))
    _rename(translation, (*path, "block", "coalesce"), (*account, "blockStreamingCoalesce"))
    for unused in ("preview", "progress"):
        if streaming.pop(unused, None):
            translation.notes.append(((*path, unused), "the progress of tools is shown with /verbose here"))
    _drop_empty(translation.values, (*path, "block"))
    _drop_empty(translation.values, path)


def _other_defaults(translation: Translation) -> None:
    """Name the defaults that differ between the versions."""
    values = translation.values
    session = values.get("session")
    rules = ("reset", "resetByType", "idleMinutes")
    if not (isinstance(session, dict) and any(session.get(rule) for rule in rules)):
        note = 'unset here means a new session daily at 4; 2026.9 keeps one: set session.reset.mode to "none" for that'
        translation.notes.append((("session", "reset", "mode"), note))
    if get_path(values, ("messages", "queue", "mode")) is None:
        note = 'unset here means collect; 2026.9 steers: set messages.queue.mode to "steer" for that'
        translation.notes.append((("messages", "queue", "mode"), note))


def _rename(translation: Translation, written: KeyPath, path: KeyPath) -> None:
    """Move a value unless there is one already; then the old key stays, and is reported as unknown."""
    parent = get_path(translation.values, written[:-1])
    if not isinstance(parent, dict) or written[-1] not in parent:
        return
    target: Any = translation.values
    for segment in path[:-1]:
        if isinstance(target, list) and isinstance(segment, int):
            target = target[segment]
        elif isinstance(target, dict):
            target = target.setdefault(segment, {})
        else:
            return
    if not isinstance(target, dict) or target.get(path[-1]) is not None:
        return
    origin = translation.written(written)
    target[path[-1]] = parent.pop(written[-1])
    translation.moved[path] = origin
    translation.notes.append((origin, f"read as {format_path(path)}"))


def _drop_empty(values: dict[str, Any], path: KeyPath) -> None:
    parent = get_path(values, path[:-1])
    if isinstance(parent, dict) and parent.get(path[-1]) == {}:
        del parent[path[-1]]
