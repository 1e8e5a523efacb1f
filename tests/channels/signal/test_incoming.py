"""What of a daemon's event is meant for the agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.channels.signal import normalize_number, recipient_params
from openclaw.channels.signal.channel import (
    Mention,
    OwnIdentity,
    decode_event,
    interpret,
    with_learned_uuid,
    with_mentions,
)
from openclaw.channels.submit import Deleted, Edited, Posted, Reacted
from openclaw.inbound.access import Allow, ChannelSettings, decide_access
from openclaw.inbound.message import Inbound
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed
from tests.channels.signal.test_channel import running
from tests.support.signal_daemon import SignalDaemon

ME = OwnIdentity("+15550000001", "11111111-2222-4333-8444-555555555555")
HER_UUID = "99999999-2222-4333-8444-555555555555"
DAEMON = SignalDaemon()


def event(envelope: Any) -> Any:
    return decode_event(json.dumps({"account": "+15550000001", "envelope": envelope}).encode())


def arrived(envelope: Any, own: OwnIdentity = ME) -> Inbound:
    what = interpret(event(envelope), own, "default")
    assert isinstance(what, Posted)
    return what.inbound


def test_a_direct_message_is_answered_to_its_sender() -> None:
    inbound = arrived(DAEMON.message("hello", timestamp=1700000000123))
    assert (inbound.peer.kind, inbound.peer.id, inbound.to) == ("direct", "+15550000042", "signal:+15550000042")
    assert (inbound.sender.id, inbound.sender.name, inbound.sender.e164) == ("+15550000042", "Tester", "+15550000042")
    assert (inbound.message_id, inbound.timestamp_ms, inbound.text) == ("1700000000123", 1700000000123, "hello")


def test_a_sender_who_hides_the_number_is_known_by_uuid() -> None:
    inbound = arrived(DAEMON.message("hi", sender=HER_UUID, uuid=HER_UUID))
    assert (inbound.sender.id, inbound.sender.e164) == (f"uuid:{HER_UUID}", None)
    assert (inbound.peer.id, inbound.to) == (f"uuid:{HER_UUID}", f"signal:{HER_UUID}")
    assert recipient_params(inbound.to) == {"recipient": [HER_UUID]}


def test_a_group_message_is_answered_to_the_group_and_named_by_time_and_sender() -> None:
    one = arrived(DAEMON.message("hi", group="grp1==", timestamp=5))
    two = arrived(DAEMON.message("hi", group="grp1==", timestamp=5, sender="+15550000043"))
    assert (one.peer.kind, one.peer.id, one.to, one.group_subject) == ("group", "grp1==", "group:grp1==", "Test Group")
    assert one.message_id != two.message_id


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        {"sourceNumber": "+15550000042", "timestamp": 1, "receiptMessage": {"when": 1, "isRead": True}},
        {"sourceNumber": "+15550000042", "timestamp": 1, "typingMessage": {"action": "STARTED"}},
        {"sourceNumber": "+15550000001", "timestamp": 1, "syncMessage": {"sentMessage": {"message": "from my phone"}}},
        {**DAEMON.message("copy"), "syncMessage": {}},
        DAEMON.message("mine", sender="+15550000001"),
        DAEMON.message("mine", sender=ME.uuid or "", uuid=ME.uuid),
        DAEMON.message(None),
        DAEMON.message("   "),
        DAEMON.message("nobody", sender="nobody"),
        {"sourceNumber": "+15550000042", "timestamp": 1, "storyMessage": {"allowsReplies": True}},
    ],
)
def test_what_asks_nothing_of_the_agent_is_passed_over(envelope: Any) -> None:
    assert interpret(event(envelope), ME, "default") is None


@pytest.mark.parametrize(("group", "message_id"), [(None, "5"), ({"groupId": "g"}, "5:+15550000042")])
def test_a_changed_message_keeps_its_id_and_a_deleted_one_is_named_by_it(group: Any, message_id: str) -> None:
    envelope = DAEMON.message("first", groupInfo=group)
    data = {**envelope.pop("dataMessage"), "message": "second", "timestamp": 77}
    changed = interpret(
        event({**envelope, "editMessage": {"targetSentTimestamp": 5, "dataMessage": data}}), ME, "default"
    )
    assert isinstance(changed, Edited)
    assert (changed.inbound.text, changed.inbound.message_id, changed.inbound.revision) == ("second", message_id, "77")
    taken_back = interpret(event(DAEMON.message(None, groupInfo=group, remoteDelete={"timestamp": 5})), ME, "default")
    assert isinstance(taken_back, Deleted) and taken_back.inbound.message_id == message_id


def test_a_message_that_is_changed_to_a_bare_mention_is_still_a_change() -> None:
    envelope = DAEMON.message("first", group="grp1==")
    mention = {"start": 0, "length": 1, "number": ME.number}
    data = {**envelope.pop("dataMessage"), "message": "\ufffc", "timestamp": 77, "mentions": [mention]}
    changed = interpret(
        event({**envelope, "editMessage": {"targetSentTimestamp": 5, "dataMessage": data}}), ME, "default"
    )
    assert isinstance(changed, Edited) and changed.inbound.message_id == "5:+15550000042"


def test_a_person_is_known_by_the_number_and_the_uuid() -> None:
    inbound = arrived(DAEMON.message("hi", uuid=HER_UUID))
    for listed in ("+15550000042", f"uuid:{HER_UUID}", HER_UUID.upper()):
        rules = ChannelSettings(channel="signal", dm_policy="allowlist", allow_from=(listed,))
        assert isinstance(decide_access(inbound, rules, ()), Allow)


def test_a_quote_tells_whom_and_whether_it_was_ours() -> None:
    quote = {"id": 12, "author": "+15550000001", "authorNumber": "+15550000001", "text": "earlier", "attachments": []}
    quoted = arrived(DAEMON.message("and?", quote=quote)).quoted
    assert quoted is not None
    assert (quoted.id, quoted.sender, quoted.text, quoted.from_us) == ("12", "+15550000001", "earlier", True)


@pytest.mark.parametrize(
    ("author", "named"),
    [
        ({"author": "+15550000043", "authorNumber": "+15550000043", "authorUuid": HER_UUID}, "+15550000043"),
        ({"author": HER_UUID, "authorUuid": HER_UUID}, f"uuid:{HER_UUID}"),
    ],
)
def test_in_a_group_a_quoted_message_has_the_id_that_it_came_with(author: dict[str, Any], named: str) -> None:
    quoted = arrived(DAEMON.message("and?", group="grp1==", quote={"id": 12, "text": "earlier", **author})).quoted
    assert quoted is not None and quoted.id == f"12:{named}"
    sender = named.removeprefix("uuid:")
    first = arrived(DAEMON.message("earlier", group="grp1==", timestamp=12, sender=sender, uuid=HER_UUID))
    assert first.message_id == quoted.id


async def test_the_agent_can_react_to_a_message_of_a_group_by_the_id_that_a_reaction_named(tmp_path: Path) -> None:
    reaction = {"emoji": "👍", "targetAuthor": "+15550000043", "targetAuthorNumber": "+15550000043"}
    envelope = DAEMON.message(None, group="grp1==", reaction={**reaction, "targetSentTimestamp": 5})
    what = interpret(event(envelope), ME, "default")
    assert isinstance(what, Reacted)
    target = what.inbound.text.rpartition("(id ")[2].removesuffix(")")
    async with SignalDaemon(groups=("grp1==",)) as daemon, running(tmp_path, daemon) as setup:
        route = Route(channel="signal", to=what.inbound.to, account_id="default")
        await setup.send(OutgoingMessage(act="react", target_id=target, emoji="🎉"), route)
        (call,) = daemon.of("sendReaction")
        assert (call["targetAuthor"], call["targetTimestamp"]) == ("+15550000043", 5)


@pytest.mark.parametrize(
    ("text", "mentions", "shown", "mentioned", "others"),
    [
        ("\ufffc what now?", [(0, "+15550000001")], "what now?", True, False),
        ("\ufffc", [(0, "+15550000001")], "", True, False),
        ("thanks \ufffc", [(0 + 7, "+15550000001")], "thanks", True, False),
        ("ask \ufffc about it", [(4, "+15550000001")], "ask @+15550000001 about it", True, False),
        (
            "😀 \ufffc and \ufffc!",
            [(3, "+15550000042"), (9, "+15550000001")],
            "😀 @+15550000042 and @+15550000001!",
            True,
            True,
        ),
        ("tell \ufffc", [(5, "+15550000042")], "tell @+15550000042", False, True),
        ("broken \ufffc", [(70, "+15550000042")], "broken \ufffc", False, True),
    ],
)
def test_mentions_are_shown_by_name_and_ours_is_noticed(
    text: str, mentions: list[tuple[int, str]], shown: str, mentioned: bool, others: bool
) -> None:
    listed = [
        {"start": start, "length": 1, "name": number, "number": number, "uuid": None} for start, number in mentions
    ]
    inbound = arrived(DAEMON.message(text, group="grp1==", mentions=listed))
    assert (inbound.text, inbound.mentioned, inbound.mentions_others) == (shown, mentioned, others)


def test_a_mention_by_uuid_alone_is_ours_once_the_uuid_is_known() -> None:
    mention = {"start": 0, "length": 1, "name": None, "number": None, "uuid": ME.uuid}
    envelope = DAEMON.message("\ufffc hi", mentions=[mention])
    unknown = OwnIdentity("+15550000001")
    assert not arrived(envelope, unknown).mentioned
    own_copy = {"sourceNumber": "+15550000001", "sourceUuid": ME.uuid, "timestamp": 1, "syncMessage": {}}
    known = with_learned_uuid(unknown, event(own_copy))
    assert known == ME
    assert arrived(envelope, known).mentioned


@given(
    st.text(st.sampled_from("ab😀\ufffc \n"), max_size=12),
    st.lists(st.tuples(st.integers(-2, 14), st.integers(-1, 3)), max_size=4),
)
def test_mentions_at_any_place_never_break_the_text(text: str, places: list[tuple[int, int]]) -> None:
    mentions = tuple(Mention(start=max(0, start), length=length, number="+15550000042") for start, length in places)
    kept = with_mentions(text, mentions, ME).replace("@+15550000042", "")
    assert not set(kept) - set(text) - {"\ufffd"}


@pytest.mark.parametrize(
    ("target", "removed", "to_us", "words"),
    [
        ("+15550000001", False, True, "reacted with 👍 to your message (id 5)"),
        ("+15550000001", True, True, "took back the reaction 👍 to your message (id 5)"),
        ("+15550000043", False, False, "reacted with 👍 to the message of +15550000043 (id 5)"),
    ],
)
def test_a_reaction_is_told_in_words(target: str, removed: bool, to_us: bool, words: str) -> None:
    reaction = {"emoji": "👍", "targetAuthor": target, "targetAuthorNumber": target, "targetSentTimestamp": 5}
    reaction["isRemove"] = removed
    what = interpret(event(DAEMON.message(None, reaction=reaction)), ME, "default")
    assert isinstance(what, Reacted)
    assert (what.to_us, what.inbound.text) == (to_us, f"Signal: Tester {words}")


@pytest.mark.parametrize(
    ("to", "params"),
    [
        ("+15550000042", {"recipient": ["+15550000042"]}),
        ("signal:+1 (555) 000-0042", {"recipient": ["+15550000042"]}),
        ("0015550000042", {"recipient": ["+15550000042"]}),
        (f"uuid:{HER_UUID.upper()}", {"recipient": [HER_UUID]}),
        (HER_UUID, {"recipient": [HER_UUID]}),
        ("group:AbC/d+e=", {"groupId": "AbC/d+e="}),
        ("signal:group:AbC=", {"groupId": "AbC="}),
        ("username:ann.01", {"username": ["ann.01"]}),
        ("u:ann.01", {"username": ["ann.01"]}),
    ],
)
def test_recipients_are_addressed_as_the_daemon_wants_them(to: str, params: dict[str, Any]) -> None:
    assert recipient_params(to) == params


@pytest.mark.parametrize("to", ["", "ann", "5550000042", "group:", "uuid:zz", "+12", "signal:"])
def test_what_is_no_recipient_is_refused_for_good_and_by_name(to: str) -> None:
    with pytest.raises(SendFailed) as refused:
        recipient_params(to)
    assert refused.value.permanent and repr(to) in str(refused.value)


def test_a_number_without_country_is_no_number() -> None:
    assert normalize_number("015112345678") is None
