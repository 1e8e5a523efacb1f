"""Which agent and which session a message belongs to. Pure functions of the configuration and the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from openclaw.config.agents import agent_ids, default_agent_id, main_key
from openclaw.config.schema import Config
from openclaw.config.schema.agents import Binding, BindingMatch
from openclaw.config.validate import KNOWN_CHANNELS
from openclaw.inbound.message import Inbound, Peer, Route
from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import DEFAULT_ACCOUNT, main_session_key, normalize_account_id

MatchedBy: TypeAlias = Literal[
    "binding.peer",
    "binding.peer.parent",
    "binding.guild",
    "binding.team",
    "binding.account",
    "binding.channel",
    "broadcast",
    "default",
]
_GROUP_KINDS = ("group", "channel", "room")


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    channel: str
    account_id: str
    session_key: str
    main_session_key: str
    """The agent's main session, where the last route of a direct chat is noted."""
    matched_by: MatchedBy


def resolve_route(config: Config, inbound: Inbound) -> Resolved:
    """The first binding that fits, most specific kind first, in the order of the file within a kind."""
    if config.session.scope == "global":
        return _resolved(config, inbound, default_agent_id(config), "default")
    candidates = [binding for binding in config.bindings if _same_door(binding.match, inbound)]
    for matched_by, fits in _TIERS:
        for binding in candidates:
            if fits(binding.match, inbound):
                return _resolved(config, inbound, _known_agent(config, binding), matched_by)
    return _resolved(config, inbound, default_agent_id(config), "default")


def broadcast_routes(config: Config, inbound: Inbound) -> list[Resolved]:
    """One per agent when the chat is listed under ``broadcast``, which then overrides bindings; else none."""
    listed = config.broadcast.peers.get(inbound.peer.id.strip(), [])
    known = set(agent_ids(config)) if config.agents.list else None
    wanted = dict.fromkeys(normalize_agent_id(agent) for agent in listed if agent.strip())
    return [_resolved(config, inbound, agent, "broadcast") for agent in wanted if known is None or agent in known]


def reply_route(inbound: Inbound, resolved: Resolved) -> Route:
    """Where answers to this message go, whatever happens on the session afterwards."""
    return Route(
        channel=resolved.channel,
        to=inbound.to or inbound.peer.id,
        account_id=resolved.account_id,
        thread_id=inbound.thread_id,
        session_key=resolved.session_key,
        reply_to_id=inbound.message_id or None,
    )


def session_key_without_route(
    config: Config, *, sender: str = "", chat_type: str = "", provider: str = "", session_key: str = ""
) -> str:
    """The key for a context that names only where it came from (``telegram:group:-100``, ``123@g.us``, ``+1555``)."""
    if explicit := session_key.strip().lower():
        return explicit
    agent = default_agent_id(config)
    if config.session.scope == "global":
        return "global"
    group = _group_of(sender.strip(), chat_type.strip().lower(), provider.strip().lower())
    return f"agent:{agent}:{group}" if group else main_session_key(agent, main_key=main_key(config))


# Bindings


def _same_door(match: BindingMatch, inbound: Inbound) -> bool:
    if match.channel.strip().lower() != inbound.channel.strip().lower():
        return False
    wanted, actual = (match.account_id or "").strip(), inbound.account_id.strip() or DEFAULT_ACCOUNT
    return wanted == "*" or (wanted or DEFAULT_ACCOUNT) == actual


def _same_chat(match: BindingMatch, peer: Peer | None) -> bool:
    if match.peer is None or peer is None:
        return False
    kind = "direct" if match.peer.kind == "dm" else match.peer.kind
    # A room is a channel under another name; bindings know only the one.
    return kind == ("channel" if peer.kind == "room" else peer.kind) and match.peer.id.strip() == peer.id.strip()


def _in_space(match: BindingMatch, inbound: Inbound) -> bool:
    """A server or workspace that the binding names must be the message's, however else the binding matched."""
    return match.guild_id in (None, "", inbound.guild_id) and match.team_id in (None, "", inbound.team_id)


def _by_peer(match: BindingMatch, inbound: Inbound) -> bool:
    return _same_chat(match, inbound.peer) and _in_space(match, inbound)


def _by_parent(match: BindingMatch, inbound: Inbound) -> bool:
    return _same_chat(match, inbound.parent_peer) and _in_space(match, inbound)


def _by_guild(match: BindingMatch, inbound: Inbound) -> bool:
    return match.peer is None and bool(match.guild_id) and _in_space(match, inbound)


def _by_team(match: BindingMatch, inbound: Inbound) -> bool:
    return match.peer is None and bool(match.team_id) and _in_space(match, inbound)


def _whole_door(match: BindingMatch) -> bool:
    return match.peer is None and not match.guild_id and not match.team_id


def _by_account(match: BindingMatch, inbound: Inbound) -> bool:
    return _whole_door(match) and (match.account_id or "").strip() != "*"


def _by_channel(match: BindingMatch, inbound: Inbound) -> bool:
    return _whole_door(match)


_TIERS: tuple[tuple[MatchedBy, Callable[[BindingMatch, Inbound], bool]], ...] = (
    ("binding.peer", _by_peer),
    ("binding.peer.parent", _by_parent),
    ("binding.guild", _by_guild),
    ("binding.team", _by_team),
    ("binding.account", _by_account),
    ("binding.channel", _by_channel),
)


def _known_agent(config: Config, binding: Binding) -> str:
    if not binding.agent_id.strip():
        return default_agent_id(config)
    agent = normalize_agent_id(binding.agent_id)
    return agent if not config.agents.list or agent in agent_ids(config) else default_agent_id(config)


# Keys


def _resolved(config: Config, inbound: Inbound, agent_id: str, matched_by: MatchedBy) -> Resolved:
    agent = normalize_agent_id(agent_id)
    main = main_session_key(agent, main_key=main_key(config), scope=config.session.scope)
    return Resolved(
        agent_id=agent,
        channel=inbound.channel.strip().lower(),
        account_id=inbound.account_id.strip() or DEFAULT_ACCOUNT,
        session_key=main if config.session.scope == "global" else _session_key(config, inbound, agent, main),
        main_session_key=main,
        matched_by=matched_by,
    )


def _session_key(config: Config, inbound: Inbound, agent: str, main: str) -> str:
    channel = inbound.channel.strip().lower() or "unknown"
    peer = inbound.peer.id.strip() or "unknown"
    if inbound.peer.kind == "direct":
        key = _direct_key(config, inbound, f"agent:{agent}", channel, peer) or main
    else:
        key = f"agent:{agent}:{channel}:{inbound.peer.kind}:{peer}"
    if inbound.thread_has_session and inbound.thread_id is not None:
        key = f"{key}:thread:{inbound.thread_id}"
    return key.lower()


def _direct_key(config: Config, inbound: Inbound, agent: str, channel: str, peer: str) -> str | None:
    scope = config.session.dm_scope
    if scope == "main":
        return None
    person = _linked_name(config.session.identity_links, channel, peer)
    if scope == "per-peer":
        return f"{agent}:direct:{person}"
    if scope == "per-channel-peer":
        return f"{agent}:{channel}:direct:{person}"
    return f"{agent}:{channel}:{normalize_account_id(inbound.account_id)}:direct:{person}"


def _linked_name(links: dict[str, list[str]], channel: str, peer: str) -> str:
    ids = (peer.lower(), f"{channel}:{peer}".lower())
    for name, linked in links.items():
        if name.strip() and any(identity.strip().lower() in ids for identity in linked):
            return name.strip()
    return peer


def _group_of(sender: str, chat_type: str, provider: str) -> str | None:
    """``<provider>:<kind>:<id>`` when the context is a group, else None."""
    lowered = sender.lower()
    whatsapp_group = lowered.endswith("@g.us")
    segments = lowered.split(":")
    legacy = len(segments) > 1 and segments[0] in _GROUP_KINDS
    marked = any(f":{kind}:" in lowered for kind in _GROUP_KINDS)
    if not (chat_type in _GROUP_KINDS or marked or whatsapp_group or legacy):
        return None
    if len(segments) > 1 and (segments[0] in KNOWN_CHANNELS or segments[0] == provider):
        provider, segments = segments[0], segments[1:]
    if len(segments) > 1 and segments[0] in _GROUP_KINDS:
        kind, segments = segments[0], segments[1:]
    else:
        kind = chat_type if chat_type in _GROUP_KINDS else "channel" if ":channel:" in lowered else "group"
    return f"{provider or ('whatsapp' if whatsapp_group else 'unknown')}:{kind}:{':'.join(segments) or 'unknown'}"
