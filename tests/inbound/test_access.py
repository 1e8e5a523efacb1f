"""Who gets in, who may command, who is owner."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.load import build, parse_config
from openclaw.config.schema.system import Commands
from openclaw.inbound.access import (
    Allow,
    ChannelSettings,
    Drop,
    Pair,
    channel_settings,
    decide_access,
    group_rules,
    normal_id,
    sender_ids,
    sender_rights,
)
from openclaw.inbound.message import ClaimedName, Inbound, Peer, Sender
from openclaw.rights import GUEST, NO_RIGHTS, OWNER, Right
from tests.inbound.support import configured, message

OPS = (ClaimedName(kind="room", name="#ops", id="C1"),)


def settings(channel: str = "signal", account: str = "default", **section: Any) -> ChannelSettings:
    return channel_settings(configured({"channels": {channel: section}}), channel, account)


def verdict(access: object) -> str:
    return type(access).__name__.lower()


def group(sender: str = "+1", peer: str = "g1", channel: str = "signal", **more: Any) -> Inbound:
    return message(channel=channel, kind="group", peer=peer, sender=sender, **more)


@pytest.mark.parametrize(
    ("policy", "allow_from", "store", "expected"),
    [
        ("disabled", ["*", "+1"], ["+1"], "drop"),
        ("open", ["*"], [], "allow"),
        ("allowlist", ["+1"], [], "allow"),
        ("allowlist", [], ["+1"], "allow"),
        ("allowlist", ["*"], [], "allow"),
        ("allowlist", ["+2"], [], "drop"),
        ("allowlist", [], [], "drop"),
        ("pairing", ["+1"], [], "allow"),
        ("pairing", [], ["+1"], "allow"),
        ("pairing", [], [], "pair"),
        ("pairing", [], ["*"], "allow"),
    ],
)
def test_direct_messages_obey_the_dm_policy(
    policy: str, allow_from: list[str], store: list[str], expected: str
) -> None:
    rules = settings(dmPolicy=policy, allowFrom=allow_from)
    assert verdict(decide_access(message(peer="+1", sender="+1"), rules, store)) == expected


def test_open_without_the_star_lets_no_stranger_in() -> None:
    rules = ChannelSettings(channel="signal", dm_policy="open", allow_from=("+2",))
    assert isinstance(decide_access(message(peer="+1", sender="+1"), rules, ()), Drop)


@pytest.mark.parametrize("channel", ["signal", "zalo"])
@pytest.mark.parametrize("written", ["work", "Work", "WORK"])
def test_an_accounts_own_rules_hold_however_its_name_is_spelt(channel: str, written: str) -> None:
    own = {"dmPolicy": "allowlist", "allowFrom": ["+1"]}
    rules = settings(channel, "work", dmPolicy="open", allowFrom=["*"], accounts={written: own})
    assert isinstance(decide_access(message(channel=channel, sender="+2"), rules, ()), Drop)


def test_a_channel_without_a_section_asks_strangers_to_pair() -> None:
    assert decide_access(message(), channel_settings(configured(), "signal"), ()) == Pair("+1555")


@pytest.mark.parametrize(
    "section",
    [
        {"dmPolicy": "opne", "allowFrom": ["*"]},
        {"dmPolicy": "allowlist", "allowFrom": "*"},
        {"dm": {"enabled": False}, "allowFrom": ["*"]},
    ],
)
def test_what_cannot_be_understood_closes_the_door(section: dict[str, Any]) -> None:
    rules = channel_settings(build({"channels": {"others": {"zalo": section}}}), "zalo")
    assert isinstance(decide_access(message(channel="zalo"), rules, ()), Drop)


def test_a_policy_nobody_knows_is_reported_with_the_known_ones() -> None:
    snapshot = parse_config("/x", '{channels: {zalo: {dmPolicy: "opne", groupPolicy: "all"}}}', {})
    assert [(issue.path, issue.message) for issue in snapshot.issues] == [
        ("channels.zalo.dmPolicy", '"opne" is not a policy; use one of pairing, allowlist, open, disabled'),
        ("channels.zalo.groupPolicy", '"all" is not a policy; use one of open, disabled, allowlist'),
    ]


def test_a_sender_is_known_by_id_never_by_a_name() -> None:
    imposter = Sender(id="9", name="+1555", username="owner", tag="alice")
    rules = settings("telegram", allowFrom=["owner", "alice", "+1555"], dmPolicy="allowlist")
    assert isinstance(decide_access(message(channel="telegram", peer="9", sender=imposter), rules, ()), Drop)


def test_any_stable_id_of_a_person_admits_them() -> None:
    person = Sender(id="+1555", other_ids=("uuid:AB-1",))
    rules = settings(dmPolicy="allowlist", allowFrom=["uuid:ab-1"])
    assert decide_access(message(sender=person), rules, ()) == Allow()


def test_a_group_id_on_the_allow_list_does_not_admit_its_members() -> None:
    rules = settings(groupAllowFrom=["g1"], allowFrom=["g1"])
    assert isinstance(decide_access(group("+9"), rules, ()), Drop)
    assert "g1" not in sender_ids(group("+9"))


@pytest.mark.parametrize(
    ("section", "sender", "expected"),
    [
        ({}, "+1", "drop"),
        ({"groupPolicy": "disabled", "groupAllowFrom": ["*"]}, "+1", "drop"),
        ({"groupPolicy": "open"}, "+1", "allow"),
        ({"groupAllowFrom": ["+1"]}, "+1", "allow"),
        ({"groupAllowFrom": ["*"]}, "+1", "allow"),
        ({"groupAllowFrom": ["+2"], "allowFrom": ["+1"]}, "+1", "drop"),
        ({"groupAllowFrom": [], "allowFrom": ["+1"]}, "+1", "drop"),
        ({"allowFrom": ["+1"]}, "+1", "allow"),
        ({"groupPolicy": "open", "groups": {"g2": {}}}, "+1", "drop"),
        ({"groupPolicy": "open", "groups": {"g2": {}, "*": {}}}, "+1", "allow"),
        ({"groupPolicy": "open", "groups": {"g1": {}}}, "+1", "allow"),
        ({"groupPolicy": "open", "groups": {}}, "", "allow"),
        ({"groupAllowFrom": ["+1"]}, "", "drop"),
    ],
)
def test_group_messages_obey_policy_then_senders_then_the_list_of_groups(
    section: dict[str, Any], sender: str, expected: str
) -> None:
    assert verdict(decide_access(group(sender), settings(**section), ())) == expected


@pytest.mark.parametrize(("channel", "expected"), [("signal", "allow"), ("telegram", "allow"), ("matrix", "drop")])
def test_a_paired_person_speaks_in_groups_where_the_channel_says_so(channel: str, expected: str) -> None:
    assert verdict(decide_access(group(channel=channel), settings(channel), {"+1"})) == expected


def test_the_default_group_policy_applies_where_a_channel_sets_none() -> None:
    for channel in ("signal", "telegram"):
        config = configured({"channels": {"defaults": {"groupPolicy": "open"}, channel: {"enabled": True}}})
        assert decide_access(group(channel=channel), channel_settings(config, channel), ()) == Allow()
    own = configured({"channels": {"defaults": {"groupPolicy": "open"}, "telegram": {"groupPolicy": "disabled"}}})
    assert isinstance(decide_access(group(channel="telegram"), channel_settings(own, "telegram"), ()), Drop)


def test_a_group_or_topic_may_have_its_own_members_and_policy() -> None:
    groups = {"-1": {"allowFrom": ["7"], "topics": {"5": {"allowFrom": ["8"]}, "6": {"enabled": False}}}}
    rules = settings("telegram", groupPolicy="open", groups=groups)

    def ask(sender: str, topic: int | None) -> str:
        peer = "-1" if topic is None else f"-1:topic:{topic}"
        return verdict(decide_access(group(sender, peer, "telegram", thread_id=topic), rules, ()))

    assert [ask("7", None), ask("8", None), ask("8", 5), ask("7", 5), ask("7", 6)] == [
        "allow",
        "drop",
        "allow",
        "drop",
        "drop",
    ]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, (True, True)),
        ({"*": {"requireMention": False}}, (True, False)),
        ({"2@g.us": {}}, (False, True)),
        ({"*": {"requireMention": False}, "1@g.us": {}}, (True, False)),
        ({"*": {"requireMention": False}, "1@g.us": {"requireMention": True}}, (True, True)),
    ],
)
@pytest.mark.parametrize("channel", ["whatsapp", "signal"])
def test_the_list_of_groups_says_who_is_heard_and_whether_a_mention_is_needed(
    channel: str, groups: Any, expected: tuple[bool, bool]
) -> None:
    rules = group_rules(settings(channel, **({"groups": groups} if groups else {})), group(peer="1@g.us"))
    assert (rules.allowed, rules.require_mention) == expected


@pytest.mark.parametrize(
    ("channel", "written", "same"),
    [
        ("signal", "+1 (555) 123-4567", "+15551234567"),
        ("signal", "signal:+1555", "+1555"),
        ("signal", "UUID:Ab-1", "uuid:ab-1"),
        ("telegram", "tg:42", "42"),
        ("telegram", "telegram:42", "42"),
        ("discord", "<@!77>", "77"),
        ("discord", "user:77", "77"),
        ("matrix", "@Ana:Example.org", "@ana:example.org"),
        ("whatsapp", "15551234567", "+15551234567"),
        ("whatsapp", "whatsapp:15551234567@s.whatsapp.net", "+15551234567"),
        ("bluebubbles", "imessage:Ana@Example.org", "ana@example.org"),
    ],
)
def test_an_id_has_one_spelling(channel: str, written: str, same: str) -> None:
    assert normal_id(channel, written) == same == normal_id(channel, same)


def whatsapp(sender: Sender, peer: str = "") -> Inbound:
    return Inbound(channel="whatsapp", peer=Peer(kind="direct", id=peer), sender=sender, to="x", text="/status")


@pytest.mark.parametrize(
    ("allow_from", "inbound", "sender_id", "authorised"),
    [
        (["+123456"], whatsapp(Sender(id="", e164="+123456")), "+123456", True),
        (["+999999"], whatsapp(Sender(id=""), "whatsapp:+999999"), "+999999", True),
        (["+4179000"], whatsapp(Sender(id="123@lid", e164="+4179000")), "+4179000", True),
        (["+1999000"], whatsapp(Sender(id="+1003000"), "+1003000"), "+1003000", False),
        ([], whatsapp(Sender(id="+1003000"), "+1003000"), "+1003000", False),
    ],
)
def test_commands_are_for_people_on_a_list(
    allow_from: list[str], inbound: Inbound, sender_id: str, authorised: bool
) -> None:
    standing = sender_rights(inbound, settings("whatsapp", allowFrom=allow_from), (), Commands())
    assert (sender_ids(inbound)[0], bool(standing)) == (sender_id, authorised)


@pytest.mark.parametrize(
    ("section", "commands", "store", "rights"),
    [
        ({}, Commands(), [], NO_RIGHTS),
        ({}, Commands(use_access_groups=False), [], GUEST),
        ({"allowFrom": ["+1"]}, Commands(), [], OWNER),
        ({}, Commands(), ["+1"], GUEST),
        ({}, Commands(owner_allow_from=["+1"]), ["+1"], OWNER),
        ({"allowFrom": ["*"], "dmPolicy": "open"}, Commands(), [], GUEST),
        ({"allowFrom": ["*"], "dmPolicy": "open"}, Commands(), ["+1"], GUEST),
        ({"allowFrom": ["*", "+1"], "dmPolicy": "open"}, Commands(), [], OWNER),
        ({"allowFrom": ["+1", "+2"]}, Commands(owner_allow_from=["+2"]), [], NO_RIGHTS),
        ({"allowFrom": ["+1"]}, Commands(owner_allow_from=["signal:+1"]), [], OWNER),
        # Somebody else is named as the owner, on a channel where this person is not.
        ({"allowFrom": ["+1"]}, Commands(owner_allow_from=["telegram:+1"]), [], GUEST),
        # A star lets everyone command, and makes nobody an owner.
        ({"allowFrom": ["+1"]}, Commands(owner_allow_from=["*"]), [], OWNER),
        ({"allowFrom": ["*"], "dmPolicy": "open"}, Commands(owner_allow_from=["*"]), [], GUEST),
        ({"allowFrom": ["*"], "dmPolicy": "open"}, Commands(owner_allow_from=["*", "+2"]), [], GUEST),
        ({"allowFrom": ["+1"]}, Commands(allow_from={"signal": ["+2"]}), [], NO_RIGHTS),
        ({}, Commands(allow_from={"*": ["+1"]}), [], GUEST),
    ],
)
def test_standing_of_a_sender(
    section: dict[str, Any], commands: Commands, store: list[str], rights: frozenset[Right]
) -> None:
    assert sender_rights(message(peer="+1", sender="+1"), settings(**section), store, commands) == rights


def test_in_a_group_the_list_of_its_members_also_authorises() -> None:
    rules = settings(groupAllowFrom=["+1"], allowFrom=["+2"])
    standings = [sender_rights(group(sender), rules, (), Commands()) for sender in ("+1", "+2", "+3")]
    assert standings == [GUEST, OWNER, NO_RIGHTS]


def test_a_channel_that_calls_itself_webchat_has_no_rights_of_its_own() -> None:
    rules = ChannelSettings(channel="webchat")
    assert sender_rights(message(channel="webchat", sender="+1"), rules, (), Commands()) == NO_RIGHTS


IDS = st.sampled_from(["+1", "+2", "+3", "*", "g1", "signal:+1", "uuid:a"])


@given(
    allow_from=st.lists(IDS, max_size=3),
    group_allow=st.lists(IDS, max_size=3),
    store=st.lists(IDS, max_size=3),
    owners=st.lists(st.sampled_from(["+1", "+2", "*", "telegram:+3"]), max_size=2),
    sender=st.sampled_from(["+1", "+2", "+3", ""]),
    kind=st.sampled_from(["direct", "group"]),
)
def test_only_a_list_in_the_configuration_makes_an_owner(
    allow_from: list[str], group_allow: list[str], store: list[str], owners: list[str], sender: str, kind: Any
) -> None:
    rules = ChannelSettings(channel="signal", allow_from=tuple(allow_from), group_allow_from=tuple(group_allow))
    inbound = message(kind=kind, peer=sender or "?" if kind == "direct" else "g1", sender=sender)
    rights = sender_rights(inbound, rules, store, Commands(owner_allow_from=[*owners]))
    named = [owner for owner in owners if owner != "*"]
    listed = named or [entry.removeprefix("signal:") for entry in allow_from if entry != "*"]
    if "admin" in rights:
        assert sender and sender in listed
    else:
        assert rights in (GUEST, NO_RIGHTS)


NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


@given(NAMES, NAMES, NAMES, st.sampled_from(["direct", "group"]))
def test_no_name_ever_opens_a_door(name: str, username: str, tag: str, kind: Any) -> None:
    stranger = Sender(id="+9999999", name=name, username=username, tag=tag)
    rules = ChannelSettings(
        channel="signal", dm_policy="allowlist", allow_from=("+1", name, username, tag), group_policy="allowlist"
    )
    inbound = message(kind=kind, peer="+9999999" if kind == "direct" else "g", sender=stranger)
    if "*" not in {value.strip() for value in (name, username, tag)} and normal_id("signal", "+9999999") not in {
        normal_id("signal", value) for value in (name, username, tag)
    }:
        assert isinstance(decide_access(inbound, rules, ()), Drop)
        assert not sender_rights(inbound, rules, (), Commands())


@pytest.mark.parametrize(
    ("channel", "section", "place", "expected"),
    [
        ("telegram", {"groups": {"-1": {"systemPrompt": " A. ", "skills": ["a"]}}}, {"peer": "-1"}, ("A.", ("a",))),
        ("telegram", {"groups": {"*": {"systemPrompt": "A.", "skills": []}}}, {"peer": "-1"}, ("A.", ())),
        ("telegram", {"groups": {"-1": {}, "*": {"systemPrompt": "A."}}}, {"peer": "-1"}, ("", None)),
        (
            "telegram",
            {"groups": {"-1": {"systemPrompt": "A.", "skills": ["a"], "topics": {"5": {"systemPrompt": "B."}}}}},
            {"peer": "-1:topic:5", "thread_id": 5},
            ("A.\n\nB.", ("a",)),
        ),
        (
            "telegram",
            {"groups": {"-1": {"skills": ["a"], "topics": {"5": {"skills": ["b"]}}}}},
            {"peer": "-1:topic:5", "thread_id": 5},
            ("", ("b",)),
        ),
        ("slack", {"channels": {"C1": {"systemPrompt": "A.", "skills": ["a"]}}}, {"peer": "C1"}, ("A.", ("a",))),
        ("slack", {"channels": {"#ops": {"systemPrompt": "A."}}}, {"peer": "C1", "known_as": OPS}, ("A.", None)),
        ("slack", {"channels": {"#ops": {"systemPrompt": "A."}}}, {"peer": "C1", "names": OPS}, ("", None)),
        (
            "discord",
            {"guilds": {"G": {"channels": {"C1": {"systemPrompt": "A.", "skills": ["a"]}}}}},
            {"peer": "T9", "parent_peer": Peer(kind="channel", id="C1"), "guild_id": "G"},
            ("A.", ("a",)),
        ),
        ("matrix", {"groups": {"!r:x": {"systemPrompt": "A."}}}, {"peer": "!r:x"}, ("A.", None)),
        ("irc", {"groups": {"#Ops": {"systemPrompt": "A."}}}, {"peer": "#ops"}, ("A.", None)),
        ("whatsapp", {"groups": {"1@g.us": {"systemPrompt": "A."}}}, {"peer": "1@g.us"}, ("A.", None)),
    ],
)
def test_a_group_may_have_a_prompt_and_skills_of_its_own(
    channel: str, section: dict[str, Any], place: dict[str, Any], expected: tuple[str, Any]
) -> None:
    rules = group_rules(settings(channel, **section), message(channel=channel, kind="channel", **place))
    assert (rules.system_prompt, rules.skills) == expected


@pytest.mark.parametrize(("key", "heard"), [("C1", "allow"), ("c1", "allow"), ("#ops", "drop"), ("other", "drop")])
def test_a_channel_of_slack_is_listed_by_its_id_in_either_case(key: str, heard: str) -> None:
    said = message(channel="slack", kind="channel", peer="C1", group_channel="ops", names=OPS)
    assert verdict(decide_access(said, settings("slack", channels={key: {}}), ())) == heard
