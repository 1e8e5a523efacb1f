"""A group that gets a new id on its platform, as a Telegram group that becomes a supergroup, keeps its session and its
settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, cast

from openclaw.agent.runtime import Runtime
from openclaw.config.channels import account_settings
from openclaw.config.keypath import format_path
from openclaw.config.store import ConfigError, ConfigStore
from openclaw.inbound.message import MovedChat
from openclaw.sessions.entry import SessionEntry

log = logging.getLogger("openclaw.inbound")


async def carry_over(runtime: Runtime, chat: MovedChat) -> bool:
    """Gives the group's sessions and settings to its new id. Returns whether the configuration was changed.

    Doing it twice changes nothing. A session that the new id has already is left alone.
    """
    for agent_id in runtime.sessions.agent_ids:
        await _carry_session(runtime, agent_id, chat)
    account = account_settings(runtime.config.current, chat.channel, chat.account_id)
    if account is not None and not account.config_writes:
        log.warning("%s group %s is now %s; change its id in the configuration", chat.channel, chat.old, chat.new)
        return False
    try:
        return await asyncio.to_thread(_carry_settings, runtime.config, chat)
    except (ConfigError, OSError, KeyError) as problem:
        log.warning(
            "%s group %s is now %s; its settings were not carried over: %s", chat.channel, chat.old, chat.new, problem
        )
        return False


async def _carry_session(runtime: Runtime, agent_id: str, chat: MovedChat) -> None:
    key = f"agent:{agent_id}:{chat.channel}:group:"
    entry = await runtime.sessions.get(agent_id, key + chat.old)
    if entry is None or await runtime.sessions.get(agent_id, key + chat.new) is not None:
        return
    moved = cast("SessionEntry", _renamed(entry, chat))
    await runtime.sessions.update(agent_id, key + chat.new, lambda present: present or moved)
    await runtime.sessions.update(agent_id, key + chat.old, lambda _: None)
    log.info("the session of %s group %s goes on as %s", chat.channel, chat.old, chat.new)


def _renamed(value: Any, chat: MovedChat) -> Any:
    """The same value with the new id wherever a text is the id, or the id behind the name of its kind."""
    if isinstance(value, dict):
        return {name: _renamed(one, chat) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, str) and (value == chat.old or value.endswith(f":{chat.old}")):
        return value.removesuffix(chat.old) + chat.new
    return value


def _carry_settings(config: ConfigStore, chat: MovedChat) -> bool:
    changed = False
    written = config.snapshot.parsed
    for path, settings in _groups(written, chat):
        config.set_path(format_path((*path, chat.new)), settings)
        config.unset_path(format_path((*path, chat.old)))
        changed = True
    bindings = written.get("bindings")
    for place, binding in enumerate(cast("list[Any]", bindings) if isinstance(bindings, list) else []):
        match binding:
            case {"match": {"channel": str(channel), "peer": {"id": (str() | int()) as peer}}}:
                if channel.strip().lower() == chat.channel and str(peer) == chat.old:
                    config.set_path(format_path(("bindings", place, "match", "peer", "id")), chat.new)
                    changed = True
            case _:
                pass
    return changed


def _groups(written: dict[str, Any], chat: MovedChat) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Where the file names the group, and what it says there."""
    channels = written.get("channels")
    section = cast("dict[str, Any]", channels).get(chat.channel) if isinstance(channels, dict) else None
    if not isinstance(section, dict):
        return
    section = cast("dict[str, Any]", section)
    accounts = section.get("accounts")
    places: list[tuple[tuple[str, ...], Any]] = [(("channels", chat.channel), section)]
    if isinstance(accounts, dict):
        places += [
            (("channels", chat.channel, "accounts", name), account)
            for name, account in cast("dict[str, Any]", accounts).items()
        ]
    for path, place in places:
        match place:
            case {"groups": {**groups}} if chat.old in groups and chat.new not in groups:
                yield (*path, "groups"), groups[chat.old]
            case _:
                pass
