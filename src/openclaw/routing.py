"""Decides which agent and which session a message belongs to, from the configuration and the message alone."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from openclaw.config.agents import agent_ids, default_agent_id, main_key
from openclaw.config.channels import DEFAULT_ACCOUNT, normalize_account_id
from openclaw.config.schema import Config
from openclaw.config.schema.agents import BindingMatch
from openclaw.inbound.message import Inbound, Peer, Route
from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import main_session_key, thread_suffix


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
    """Finds the binding that matches most specifically. Among equals, the first in the file counts."""
    if config.session.scope == "global":
        return _resolved(config, inbound, default_agent_id(config))
    candidates = [binding for binding in config.bindings if _applies(binding.match, inbound)]
    for fits in _TIERS:
        for binding in candidates:
            if fits(binding.match, inbound):
                agent = normalize_agent_id(binding.agent_id) if binding.agent_id.strip() else ""
                known = agent and (not config.agents.list or agent in agent_ids(config))
                return _resolved(config, inbound, agent if known else default_agent_id(config))
    return _resolved(config, inbound, default_agent_id(config))


def broadcast_routes(config: Config, inbound: Inbound) -> list[Resolved]:
    """One result per agent if the chat is listed under ``broadcast``, which overrides bindings. Otherwise empty."""
    listed = config.broadcast.peers.get(inbound.peer.id.strip(), [])
    known = set(agent_ids(config)) if config.agents.list else None
    wanted = dict.fromkeys(normalize_agent_id(agent) for agent in listed if agent.strip())
    return [_resolved(config, inbound, agent) for agent in wanted if known is None or agent in known]


def in_new_thread(inbound: Inbound, resolved: Resolved) -> Resolved:
    """The conversation in a thread that begins with this message, for the same agent."""
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
        reply_to_id=inbound.message_id or None,
    )


# Bindings


def _applies(match: BindingMatch, inbound: Inbound) -> bool:
    """Whether the message comes from the channel, account, server and workspace that the binding names."""
    if match.channel.strip().lower() != inbound.channel.strip().lower():
        return False
    wanted, actual = (match.account_id or "").strip(), inbound.account_id.strip() or DEFAULT_ACCOUNT
    if wanted != "*" and (wanted or DEFAULT_ACCOUNT) != actual:
        return False
    return match.guild_id in (None, "", inbound.guild_id) and match.team_id in (None, "", inbound.team_id)


def _same_chat(match: BindingMatch, peer: Peer | None) -> bool:
    if match.peer is None or peer is None:
        return False
    kind = "direct" if match.peer.kind == "dm" else match.peer.kind
    # A room is a channel under another name. Bindings know only channels.
    return kind == ("channel" if peer.kind == "room" else peer.kind) and match.peer.id.strip() == peer.id.strip()


def _is_general(match: BindingMatch) -> bool:
    return match.peer is None and not match.guild_id and not match.team_id


_TIERS: tuple[Callable[[BindingMatch, Inbound], bool], ...] = (
    lambda match, inbound: _same_chat(match, inbound.peer),
    lambda match, inbound: _same_chat(match, inbound.parent_peer),
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
