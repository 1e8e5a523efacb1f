"""Decides which agent and which session a message belongs to, from the configuration and the message alone.

A group that gets a new id on its platform keeps its session and its settings (``carry_over``), as a Telegram group that
becomes a supergroup.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import agent_ids, default_agent_id, main_key
from openclaw.config.channels import DEFAULT_ACCOUNT, account_settings, normalize_account_id
from openclaw.config.keypath import format_path
from openclaw.config.schema import Config
from openclaw.config.schema.agents import BindingMatch
from openclaw.config.store import ConfigError, ConfigStore
from openclaw.inbound.message import Inbound, MovedChat, Peer
from openclaw.messages import Route
from openclaw.paths import normalize_agent_id
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import main_session_key, thread_suffix

log = logging.getLogger("openclaw.inbound")


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    channel: str
    account_id: str
    session_key: str
    parent_key: str | None = None
    """The session whose conversation a new session of this thread begins with."""
    new_thread: str | None = None
    """The thread that the answer begins. It is not there yet."""


def resolve_route(config: Config, inbound: Inbound) -> Resolved:
    """Find the binding that matches most specifically. Among equals, the first in the file counts."""
    if config.session.scope == "global":
        return _resolved(config, inbound, default_agent_id(config))
    candidates = [binding for binding in config.bindings if _applies(binding.match, inbound)]
    for fits in _TIERS:
        for binding in candidates:
            if fits(binding.match, inbound):
                agent = normalize_agent_id(binding.agent_id) if binding.agent_id.strip() else ""
                existing = agent and (not config.agents.list or agent in agent_ids(config))
                return _resolved(config, inbound, agent if existing else default_agent_id(config))
    return _resolved(config, inbound, default_agent_id(config))


def broadcast_routes(config: Config, inbound: Inbound) -> list[Resolved]:
    """One result per agent if the chat is listed under ``broadcast``, which overrides bindings. Otherwise empty."""
    listed = config.broadcast.peers.get(inbound.peer.id.strip(), [])
    existing = set(agent_ids(config)) if config.agents.list else None
    requested = dict.fromkeys(normalize_agent_id(agent) for agent in listed if agent.strip())
    return [_resolved(config, inbound, agent) for agent in requested if existing is None or agent in existing]


def in_new_thread(inbound: Inbound, resolved: Resolved) -> Resolved:
    """Return the conversation in a thread that begins with this message, for the same agent."""
    thread, key = inbound.message_id, resolved.session_key
    around = key.removesuffix(f":{inbound.peer.id.strip()}".lower())
    if around == key:  # All conversations share one session.
        return msgspec.structs.replace(resolved, new_thread=thread)
    session_key = f"{around}:{thread}".lower()
    return msgspec.structs.replace(resolved, session_key=session_key, parent_key=key, new_thread=thread)


def reply_route(inbound: Inbound, resolved: Resolved) -> Route:
    """Where answers to this message go. Later changes of the session do not change it."""
    return Route(
        channel=resolved.channel,
        to=inbound.to or inbound.peer.id,
        account_id=resolved.account_id,
        thread_id=resolved.new_thread or inbound.thread_id,
        session_key=resolved.session_key,
        reply_to_id=inbound.message_id,
    )


# Bindings


def _applies(match: BindingMatch, inbound: Inbound) -> bool:
    """Return whether the message comes from the channel, account, server and workspace that the binding names."""
    if match.channel.strip().lower() != inbound.channel.strip().lower():
        return False
    requested, actual = (match.account_id or "").strip(), inbound.account_id.strip() or DEFAULT_ACCOUNT
    if requested != "*" and (requested or DEFAULT_ACCOUNT) != actual:
        return False
    return match.guild_id in (None, "", inbound.guild_id) and match.team_id in (None, "", inbound.team_id)


def _same_chat(match: BindingMatch, peer: Peer | None) -> bool:
    if match.peer is None or peer is None:
        return False
    kind = "direct" if match.peer.kind == "dm" else match.peer.kind
    # A room is a channel under another name. Bindings know only channels.
    return kind == ("channel" if peer.kind == "room" else peer.kind) and match.peer.id.strip() == peer.id.strip()


def _known_as(match: BindingMatch, inbound: Inbound) -> bool:
    """Return whether the binding names the chat by a name that was resolved, such as an alias of Matrix."""
    names = [name.name for name in inbound.known_as if name.kind == "room"]
    return any(_same_chat(match, Peer(kind=inbound.peer.kind, id=name)) for name in names)


def _is_general(match: BindingMatch) -> bool:
    return match.peer is None and not match.guild_id and not match.team_id


_TIERS: tuple[Callable[[BindingMatch, Inbound], bool], ...] = (
    lambda match, inbound: _same_chat(match, inbound.peer),
    lambda match, inbound: _same_chat(match, inbound.parent_peer) or _known_as(match, inbound),
    lambda match, inbound: match.peer is None and bool(match.guild_id),
    lambda match, inbound: match.peer is None and bool(match.team_id),
    lambda match, inbound: _is_general(match) and (match.account_id or "").strip() != "*",
    lambda match, inbound: _is_general(match),
)
"""The ways in which a binding can match, most specific first: chat, parent chat, guild, team, account, channel."""


# Keys


def _resolved(config: Config, inbound: Inbound, agent_id: str) -> Resolved:
    agent = normalize_agent_id(agent_id)
    main = main_session_key(agent, main_key=main_key(config), scope=config.session.scope)
    shared = config.session.scope == "global"
    parent_key: str | None = None
    if inbound.inherits_parent and not shared:
        parent = inbound
        if not inbound.thread_has_session:
            parent = msgspec.structs.replace(inbound, peer=inbound.parent_peer or inbound.peer)
        parent_key = _session_key(config, parent, agent, main, in_thread=False)
    return Resolved(
        agent_id=agent,
        channel=inbound.channel.strip().lower(),
        account_id=inbound.account_id.strip() or DEFAULT_ACCOUNT,
        session_key=main if shared else _session_key(config, inbound, agent, main),
        parent_key=parent_key,
    )


def _session_key(config: Config, inbound: Inbound, agent: str, main: str, *, in_thread: bool = True) -> str:
    channel = inbound.channel.strip().lower() or "unknown"
    peer = inbound.peer.id.strip() or "unknown"
    if inbound.peer.kind == "direct":
        key = _direct_key(config, inbound, f"agent:{agent}", channel, peer) or main
    else:
        key = f"agent:{agent}:{channel}:{inbound.peer.kind}:{peer}"
    if in_thread and inbound.thread_has_session:
        key += thread_suffix(inbound.thread_id)
    return key.lower()


def _direct_key(config: Config, inbound: Inbound, agent: str, channel: str, peer: str) -> str | None:
    scope = config.session.dm_scope
    if scope == "main":
        return None
    ids, person = (peer.lower(), f"{channel}:{peer}".lower()), peer
    for name, linked in config.session.identity_links.items():
        if name.strip() and any(identity.strip().lower() in ids for identity in linked):
            person = name.strip()
            break
    if scope == "per-peer":
        return f"{agent}:direct:{person}"
    if scope == "per-channel-peer":
        return f"{agent}:{channel}:direct:{person}"
    return f"{agent}:{channel}:{normalize_account_id(inbound.account_id)}:direct:{person}"


# A group that gets a new id


async def carry_over(runtime: Runtime, chat: MovedChat) -> bool:
    """Give the group's sessions and settings to its new id. Returns whether the configuration was changed.

    Doing it twice changes nothing. A session that the new id has already is left alone.
    """
    for agent_id in runtime.stores.sessions.agent_ids:
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
    entry = await runtime.stores.sessions.get(agent_id, key + chat.old)
    if entry is None or await runtime.stores.sessions.get(agent_id, key + chat.new) is not None:
        return
    moved = cast("SessionEntry", _renamed(entry, chat))
    await runtime.stores.sessions.update(agent_id, key + chat.new, lambda present: present or moved)
    await runtime.stores.sessions.update(agent_id, key + chat.old, lambda _: None)
    log.info("the session of %s group %s goes on as %s", chat.channel, chat.old, chat.new)


def _renamed(value: Any, chat: MovedChat) -> Any:
    """The same value with the new id wherever a text is the id, or the id behind the name of its kind."""
    if isinstance(value, dict):
        return {name: _renamed(item, chat) for name, item in cast("dict[str, Any]", value).items()}
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
    for position, binding in enumerate(cast("list[Any]", bindings) if isinstance(bindings, list) else []):
        match binding:
            case {"match": {"channel": str(channel), "peer": {"id": (str() | int()) as peer}}}:
                if channel.strip().lower() == chat.channel and str(peer) == chat.old:
                    config.set_path(format_path(("bindings", position, "match", "peer", "id")), chat.new)
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
    for path, position in places:
        match position:
            case {"groups": {**groups}} if chat.old in groups and chat.new not in groups:
                yield (*path, "groups"), groups[chat.old]
            case _:
                pass
