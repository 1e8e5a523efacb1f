"""Bindings, direct-chat scopes and identity links: the agent and the session of a message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.inbound.message import Inbound, Peer, PeerKind, Sender
from openclaw.routing import broadcast_routes, reply_route, resolve_route
from tests.inbound.support import configured


def message(
    channel: str = "telegram", kind: PeerKind = "direct", peer: str = "ABC123", account: str = "default", **more: Any
) -> Inbound:
    return Inbound(
        channel=channel,
        account_id=account,
        peer=Peer(kind=kind, id=peer),
        sender=Sender(id=peer),
        to=peer,
        message_id="m1",
        **more,
    )


def bound(agent: str, channel: str = "telegram", **match: Any) -> dict[str, Any]:
    return {"agentId": agent, "match": {"channel": channel, **match}}


def test_without_configuration_everyone_reaches_the_main_session() -> None:
    resolved = resolve_route(configured({}), message("whatsapp", peer="+1555"))
    assert (resolved.session_key, resolved.account_id) == ("agent:main:main", "default")


@pytest.mark.parametrize(
    ("scope", "key"),
    [
        ("main", "agent:main:main"),
        ("per-peer", "agent:main:direct:abc123"),
        ("per-channel-peer", "agent:main:telegram:direct:abc123"),
        ("per-account-channel-peer", "agent:main:telegram:tasks:direct:abc123"),
    ],
)
def test_direct_chats_are_as_separate_as_dm_scope_says(scope: str, key: str) -> None:
    config = configured({"session": {"dmScope": scope}})
    resolved = resolve_route(config, message(account="Tasks"))
    assert (resolved.session_key, resolved.account_id) == (key, "Tasks")


@pytest.mark.parametrize(
    ("channel", "peer", "key"),
    [
        ("telegram", "111", "agent:main:direct:alice"),
        ("signal", "333", "agent:main:direct:alice"),
        ("discord", "111", "agent:main:direct:111"),
    ],
)
def test_identity_links_join_one_person_across_channels(channel: str, peer: str, key: str) -> None:
    links = {"Alice": ["telegram:111", "333"]}
    config = configured({"session": {"dmScope": "per-peer", "identityLinks": links}})
    assert resolve_route(config, message(channel, peer=peer)).session_key == key


def test_identity_links_are_not_consulted_when_all_direct_chats_share_one_session() -> None:
    config = configured({"session": {"identityLinks": {"alice": ["111"]}}})
    assert resolve_route(config, message(peer="111")).session_key == "agent:main:main"


@pytest.mark.parametrize("kind", ["group", "channel", "room"])
def test_groups_channels_and_rooms_have_sessions_of_their_own(kind: PeerKind) -> None:
    assert resolve_route(configured({}), message("discord", kind, "C1")).session_key == f"agent:main:discord:{kind}:c1"


@pytest.mark.parametrize(
    ("kind", "key"), [("direct", "agent:main:direct:unknown"), ("group", "agent:main:x:group:unknown")]
)
def test_a_blank_peer_is_unknown(kind: PeerKind, key: str) -> None:
    config = configured({"session": {"dmScope": "per-peer"}})
    assert resolve_route(config, message("x", kind, " ")).session_key == key


def test_a_forum_topic_follows_the_binding_of_its_group() -> None:
    config = configured({"bindings": [bound("sup", peer={"kind": "group", "id": "-100"})]})
    topic = message(kind="group", peer="-100:topic:42", parent_peer=Peer(kind="group", id="-100"))
    resolved = resolve_route(config, topic)
    assert resolved.session_key == "agent:sup:telegram:group:-100:topic:42"


def test_a_thread_with_its_own_session_extends_the_key_of_its_conversation() -> None:
    thread = message("slack", "channel", "C1", thread_id="1700.5", thread_has_session=True)
    assert resolve_route(configured({}), thread).session_key == "agent:main:slack:channel:c1:thread:1700.5"
    direct = message(thread_id=7, thread_has_session=True)
    assert resolve_route(configured({}), direct).session_key == "agent:main:main:thread:7"
    plain = message("discord", "channel", "T9", thread_id="T9")
    assert resolve_route(configured({}), plain).session_key == "agent:main:discord:channel:t9"


PEER = bound("a", peer={"kind": "dm", "id": "P"})
GUILD = bound("b", guildId="g")
TEAM = bound("c", teamId="t")
ACCOUNT = bound("d")
CHANNEL = bound("e", accountId="*")


@pytest.mark.parametrize(
    ("bindings", "agent"),
    [
        ([CHANNEL, ACCOUNT, TEAM, GUILD, PEER], "a"),
        ([CHANNEL, ACCOUNT, TEAM, GUILD], "b"),
        ([CHANNEL, ACCOUNT, TEAM], "c"),
        ([CHANNEL, ACCOUNT], "d"),
        ([CHANNEL], "e"),
        ([], "main"),
        ([bound("x", peer={"kind": "direct", "id": "p"})], "main"),
        ([bound("x", peer={"kind": "group", "id": "P"})], "main"),
        ([bound("x", "whatsapp")], "main"),
        ([bound("x", peer={"kind": "direct", "id": "other"}, guildId="g")], "main"),
        ([bound("x", accountId="biz", peer={"kind": "direct", "id": "P"})], "main"),
        ([bound("x"), bound("y")], "x"),
    ],
)
def test_the_most_specific_binding_wins(bindings: list[Any], agent: str) -> None:
    resolved = resolve_route(configured({"bindings": bindings}), message(peer="P", guild_id="g", team_id="t"))
    assert resolved.agent_id == agent


@pytest.mark.parametrize(
    ("binding_account", "inbound_account", "matches"),
    [(None, "default", True), (None, "biz", False), ("Biz", "biz", False), ("biz", "biz", True), ("*", "biz", True)],
)
def test_a_binding_without_an_account_means_the_default_account(
    binding_account: str | None, inbound_account: str, matches: bool
) -> None:
    config = configured(
        {"bindings": [bound("home", "whatsapp", **({"accountId": binding_account} if binding_account else {}))]}
    )
    resolved = resolve_route(config, message("WhatsApp ", account=inbound_account))
    assert (resolved.agent_id == "home") is matches


def test_a_binding_to_an_unknown_agent_falls_to_the_default_agent() -> None:
    agents = {"list": [{"id": "home"}, {"id": "Work", "default": True}]}
    resolved = resolve_route(configured({"agents": agents, "bindings": [bound("ghost")]}), message())
    assert resolved.agent_id == "work"


def test_a_room_is_bound_like_a_channel() -> None:
    config = configured({"bindings": [bound("ops", "matrix", peer={"kind": "channel", "id": "!r"})]})
    assert resolve_route(config, message("matrix", "room", "!r")).session_key == "agent:ops:matrix:room:!r"


def test_main_key_names_the_main_session_of_routed_messages() -> None:
    config = configured({"session": {"mainKey": "Primary"}})
    assert resolve_route(config, message()).session_key == "agent:main:primary"


def test_with_global_scope_everything_is_one_session_of_the_default_agent() -> None:
    config = configured({"session": {"scope": "global"}, "bindings": [bound("other")]})
    for inbound in (message(), message(kind="group", peer="-1")):
        resolved = resolve_route(config, inbound)
        assert (resolved.agent_id, resolved.session_key) == ("main", "global")


def test_broadcast_gives_a_chat_to_several_known_agents() -> None:
    config = configured(
        {
            "agents": {"list": [{"id": "a"}, {"id": "b"}]},
            "broadcast": {"g@g.us": ["A", "ghost", "b", "a"]},
        }
    )
    routes = broadcast_routes(config, message("whatsapp", "group", "g@g.us"))
    assert [route.session_key for route in routes] == ["agent:a:whatsapp:group:g@g.us", "agent:b:whatsapp:group:g@g.us"]
    assert broadcast_routes(config, message("whatsapp", "group", "other")) == []


def test_the_reply_route_is_taken_from_the_message_alone() -> None:
    inbound = message(account="biz", thread_id=5)
    route = reply_route(inbound, resolve_route(configured({}), inbound))
    assert msgspec.to_builtins(route) == {
        "channel": "telegram",
        "to": "ABC123",
        "accountId": "biz",
        "threadId": 5,
        "sessionKey": "agent:main:main",
        "replyToId": "m1",
    }


IDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8).filter(str.strip)


@given(IDS, IDS)
def test_two_people_never_share_a_session_that_dm_scope_separates(one: str, other: str) -> None:
    config = configured({"session": {"dmScope": "per-channel-peer"}})
    keys = {resolve_route(config, message(peer=peer)).session_key for peer in (one, other)}
    assert (len(keys) == 1) is (one.strip().lower() == other.strip().lower())
