"""Matrix events and what they mean for the agent, as a table."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.channels.matrix import MatrixKind, parse_address
from openclaw.channels.matrix.channel import relates_to, transaction
from openclaw.channels.matrix.incoming import (
    MatrixEvent,
    OwnAccount,
    RoomFacts,
    RoomMessage,
    RoomReaction,
    ThreadReplies,
    UnreadableEvent,
    interpret,
    is_direct,
    parse_event,
    without_quote,
)
from openclaw.channels.submit import Deleted, Edited
from openclaw.outbound.reply import SendFailed

ME = OwnAccount("@claw:test", "Claw Bot")
ROOM = RoomFacts(id="!Room:test", name="Kitchen", members={"@ann:test": "Ann", "@claw:test": "Claw Bot"})


def event(content: Any, kind: str = "m.room.message", **more: Any) -> dict[str, Any]:
    base = {"type": kind, "event_id": "$e", "sender": "@ann:test", "origin_server_ts": 7, "content": content}
    return {**base, **more}


def text(body: str, **more: Any) -> dict[str, Any]:
    return {"msgtype": "m.text", "body": body, **more}


def meaning(source: Any, room: RoomFacts = ROOM, threads: ThreadReplies = "inbound") -> Any:
    read = parse_event(source)
    return interpret(read, room, ME, "default", threads) if read is not None else None


@pytest.mark.parametrize(
    ("marked", "members", "direct"),
    [(False, 2, True), (True, 2, True), (True, 1, True), (False, 1, False), (False, 3, False), (True, 3, False)],
)
def test_a_room_of_three_is_no_direct_chat_whatever_its_inviter_says(marked: bool, members: int, direct: bool) -> None:
    assert is_direct(marked, members) is direct


@pytest.mark.parametrize(
    "source",
    [
        event(text("mine"), sender="@claw:test"),
        event({"msgtype": "m.notice", "body": "a bot speaks"}),
        event(text("")),
        event(text("  ")),
        event({}),
        event({"body": "no kind"}),
        event({"msgtype": "m.text", "body": 7}),
        event({"name": "x"}, "m.room.name", state_key=""),
        event(text("state"), state_key=""),
        event({"m.relates_to": {"event_id": "$x"}}, "m.reaction"),
        event({"m.relates_to": {"key": "x"}}, "m.reaction"),
        event({"m.relates_to": 7}, "m.reaction"),
        event({}, "m.room.redaction"),
        event({"msgtype": "m.image", "body": "x", "url": "https://example.org/x"}),
        event(text("* x", **{"m.relates_to": {"rel_type": "m.replace", "event_id": "$x"}})),
        event(text("x"), "org.example.unknown"),
        {"type": "m.room.message"},
        {},
        event("text"),
    ],
)
def test_what_is_no_message_of_a_person_is_passed_over(source: Any) -> None:
    assert meaning(source) is None


@pytest.mark.parametrize(
    ("content", "mentioned", "others", "left"),
    [
        (text("hi", **{"m.mentions": {"user_ids": ["@claw:test"]}}), True, False, "hi"),
        (text("Claw Bot: hi", **{"m.mentions": {"user_ids": ["@claw:test", "@x:y"]}}), True, True, "hi"),
        (text("claw: hi", **{"m.mentions": {}}), True, False, "hi"),
        (text("Claw Bot: hi", **{"m.mentions": {"user_ids": []}}), False, False, "Claw Bot: hi"),
        (text("hi", **{"m.mentions": {"user_ids": ["@x:y", 7]}}), False, True, "hi"),
        (text("@claw:test /status"), True, False, "/status"),
        (text("claw, hi"), True, False, "hi"),
        (text("hi", formatted_body='<a href="https://matrix.to/#/@claw:test">Claw</a>'), True, False, "hi"),
        (text("clawed: hi"), False, False, "clawed: hi"),
        (text("hi"), False, False, "hi"),
        (text("claw:"), True, False, "claw:"),
    ],
)
def test_mentions_are_those_the_client_names(content: Any, mentioned: bool, others: bool, left: str) -> None:
    inbound = meaning(event(content)).inbound
    assert (inbound.mentioned, inbound.mentions_others, inbound.text) == (mentioned, others, left)


def test_a_message_has_the_facts_of_its_room() -> None:
    room = RoomFacts(id="!Room:test", name="Kitchen", alias="#kitchen:test", members={"@ann:test": "Ann"})
    inbound = meaning(event(text("hi")), room).inbound
    assert (inbound.peer.kind, inbound.peer.id, inbound.to) == ("channel", "!Room:test", "room:!Room:test")
    assert (inbound.names[0].name, inbound.group_subject, inbound.sender.name) == ("#kitchen:test", "Kitchen", "Ann")
    assert (inbound.message_id, inbound.timestamp_ms) == ("$e", 7)
    direct = meaning(event(text("hi")), RoomFacts(id="!d:test", direct=True)).inbound
    assert (direct.peer.kind, direct.peer.id, direct.to) == ("direct", "@ann:test", "room:!d:test")


@pytest.mark.parametrize(
    ("threads", "direct", "in_thread", "thread"),
    [
        ("inbound", False, True, "$root"),
        ("inbound", False, False, None),
        ("off", False, True, None),
        ("always", False, False, "$e"),
        ("always", False, True, "$root"),
        ("always", True, False, None),
    ],
)
def test_threads_follow_their_setting(
    threads: ThreadReplies, direct: bool, in_thread: bool, thread: str | None
) -> None:
    relation = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}} if in_thread else {}
    inbound = meaning(event(text("hi", **relation)), RoomFacts(id="!r:test", direct=direct), threads).inbound
    assert (inbound.thread_id, inbound.thread_has_session) == (thread, thread is not None)


def test_other_events_are_told_apart() -> None:
    relation = {"rel_type": "m.replace", "event_id": "$old"}
    edit = meaning(event(text("* new", **{"m.new_content": text("new"), "m.relates_to": relation})))
    assert isinstance(edit, Edited) and (edit.inbound.message_id, edit.inbound.text) == ("$old", "new")
    reaction = meaning(event({"m.relates_to": {"event_id": "$x", "key": "👍"}}, "m.reaction"))
    assert isinstance(reaction, RoomReaction) and (reaction.target_id, reaction.emoji) == ("$x", "👍")
    for redaction in (event({}, "m.room.redaction", redacts="$x"), event({"redacts": "$x"}, "m.room.redaction")):
        gone = meaning(redaction)
        assert isinstance(gone, Deleted) and gone.inbound.message_id == "$x"
    assert meaning(event({"ciphertext": "x"}, "m.room.encrypted")) == UnreadableEvent()
    emote = meaning(event({"msgtype": "m.emote", "body": "waves"}))
    assert isinstance(emote, RoomMessage) and emote.inbound.text == "* Ann waves"


@pytest.mark.parametrize(
    ("content", "words", "name"),
    [
        ({"msgtype": "m.image", "body": "cat.png", "url": "mxc://t/1"}, "", "cat.png"),
        ({"msgtype": "m.image", "body": "my cat", "filename": "cat.png", "url": "mxc://t/1"}, "my cat", "cat.png"),
        ({"msgtype": "m.file", "body": "a", "file": {"url": "mxc://t/1", "iv": "x"}}, "", "a"),
    ],
)
def test_a_file_has_its_name_and_its_words(content: Any, words: str, name: str) -> None:
    message = meaning(event(content))
    (file,) = message.files
    assert (message.inbound.text, file.name, file.url) == (words, name, "mxc://t/1")


@pytest.mark.parametrize(
    ("body", "left"),
    [("> <@a:b> x\n> y\n\nanswer", "answer"), ("no quote", "no quote"), ("> all quoted", "> all quoted"), ("", "")],
)
def test_the_quote_of_older_clients_is_left_out(body: str, left: str) -> None:
    assert without_quote(body) == left


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
keys = st.sampled_from(
    [
        "msgtype",
        "body",
        "m.relates_to",
        "m.new_content",
        "url",
        "file",
        "info",
        "m.mentions",
        "formatted_body",
        "filename",
    ]
)


@given(
    st.sampled_from(["m.room.message", "m.reaction", "m.room.redaction", "m.sticker"]),
    st.dictionaries(keys, json_values | st.just("m.text") | st.just("m.image"), max_size=6),
)
def test_no_event_breaks_anything(kind: str, content: dict[str, Any]) -> None:
    assert isinstance(meaning(event(content, kind)), (*get_args(MatrixEvent), type(None)))


@pytest.mark.parametrize(
    ("to", "kind", "identity"),
    [
        ("!Room:test", "channel", "!Room:test"),
        ("room:!Room:test", "channel", "!Room:test"),
        ("matrix:channel:!Room:test", "channel", "!Room:test"),
        ("#kitchen:test", "channel", "#kitchen:test"),
        ("matrix:@ann:test", "direct", "@ann:test"),
        ("user:@ann:test", "direct", "@ann:test"),
        ("!newest-version", "channel", "!newest-version"),
    ],
)
def test_addresses_are_read(to: str, kind: str, identity: str) -> None:
    peer = MatrixKind({}).peer(to)
    assert (peer.kind, peer.id) == (kind, identity)


@pytest.mark.parametrize("to", ["", "ann", "@ann", "#room", "!a b:c", "!" + "x" * 300])
def test_what_is_no_address_is_refused(to: str) -> None:
    with pytest.raises(SendFailed) as failed:
        parse_address(to)
    assert failed.value.permanent


def test_relations_and_transactions() -> None:
    assert relates_to(None, None) == {} == relates_to("17", None)
    assert relates_to("$a", None) == {"m.relates_to": {"m.in_reply_to": {"event_id": "$a"}}}
    inside = relates_to("$a", "$root")["m.relates_to"]
    assert (inside["rel_type"], inside["event_id"], inside["is_falling_back"]) == ("m.thread", "$root", False)
    assert transaction("r:0", "text") == transaction("r:0", "text") != transaction("r:1", "text")
