"""What an update of the Bot API means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openclaw.channels.submit import Edited
from openclaw.channels.telegram.incoming import (
    MessageEvent,
    MovedEvent,
    OwnBot,
    PressEvent,
    ReactionEvent,
    TelegramEvent,
    Update,
    interpret,
    joined,
    may_continue,
)
from openclaw.inbound.message import ClaimedName, Inbound
from tests.support.telegram_server import ANN, BOB, FORUM, GROUP, TelegramServer

OWN = OwnBot(id=110201543, username="claw_bot")


def event(update: dict[str, Any]) -> TelegramEvent | None:
    return interpret(msgspec.convert({"update_id": 1, **update}, Update), OWN, "default", {"status"})


def heard(text: str | None = None, **more: Any) -> MessageEvent:
    found = event({"message": TelegramServer().message(text, **more)})
    assert isinstance(found, MessageEvent)
    return found


def inbound(text: str | None = None, **more: Any) -> Inbound:
    return heard(text, **more).inbound


def test_a_direct_message_names_its_sender_and_where_the_answer_goes() -> None:
    message = inbound("hello", future_field={"unknown": [1]})
    assert (message.text, message.peer.kind, message.peer.id, message.to) == (
        "hello",
        "direct",
        "4242",
        "telegram:4242",
    )
    assert (message.sender.id, message.sender.name, message.sender.other_ids) == ("4242", "Ann", ())
    assert message.names == (ClaimedName(kind="person", name="@ann", id="4242"),)
    assert message.message_id == "101" and message.timestamp_ms == (1_794_766_939 + 101) * 1000


@pytest.mark.parametrize(
    ("text", "read", "mentioned", "others"),
    [
        ("@claw_bot what is up", "what is up", True, False),
        ("what is up @Claw_Bot", "what is up", True, False),
        ("@claw_bot", "", True, False),
        ("ask @claw_bot about it", "ask @claw_bot about it", True, False),
        ("@someone else", "@someone else", False, True),
        ("/status@claw_bot now", "/status now", True, False),
        ("/status@other_bot now", "/status@other_bot now", False, True),
        ("😀😀 @claw_bot", "😀😀", True, False),
        ("plain", "plain", False, False),
    ],
)
def test_mentions(text: str, read: str, mentioned: bool, others: bool) -> None:
    message = inbound(text, chat=GROUP)
    assert (message.text, message.mentioned, message.mentions_others) == (read, mentioned, others)
    assert (message.peer.kind, message.peer.id, message.group_subject) == ("group", str(GROUP), "Friends")


def test_links_behind_words_are_shown_and_broken_entities_are_ignored() -> None:
    link = {"type": "text_link", "offset": 5, "length": 4, "url": "https://e.org/"}
    outside = {"type": "text_link", "offset": 900, "length": 4, "url": "https://e.org/"}
    assert inbound("😀 a here b", entities=[link, outside]).text == "😀 a [here](https://e.org/) b"


@pytest.mark.parametrize(
    ("more", "topic"),
    [
        ({"message_thread_id": 7, "is_topic_message": True}, 7),
        ({"message_thread_id": 9}, 9),
        ({}, 1),
        ({"message_thread_id": 55, "reply_to_message": {"message_id": 55, "chat": {"id": FORUM}}}, 1),
    ],
)
def test_a_topic_of_a_forum_is_a_conversation_of_its_own(more: dict[str, Any], topic: int) -> None:
    message = inbound("hi", chat=FORUM, **more)
    assert message.peer.id == f"{FORUM}:topic:{topic}" and message.thread_id == topic
    assert message.parent_peer is not None and message.parent_peer.id == str(FORUM)


def test_a_thread_of_a_direct_chat_has_a_session_and_one_of_a_plain_group_has_none() -> None:
    direct, group = inbound("hi", message_thread_id=77), inbound("hi", chat=GROUP, message_thread_id=77)
    assert (direct.thread_id, direct.thread_has_session, direct.peer.id) == (77, True, "4242")
    assert (group.thread_id, group.thread_has_session) == (None, False)


def test_quotes_and_forwards() -> None:
    bot = {"id": 110201543, "is_bot": True, "first_name": "Claw"}
    replied = {"message_id": 9, "chat": {"id": ANN}, "from": bot, "text": "all of it"}
    whole = inbound("yes", reply_to_message=replied).quoted
    part = inbound("yes", reply_to_message=replied, quote={"text": "of it", "position": 4}).quoted
    assert whole and (whole.id, whole.text, whole.from_us, whole.is_quote) == ("9", "all of it", True, False)
    assert part and (part.text, part.is_quote) == ("of it", True)
    opened = {"message_id": 7, "chat": {"id": FORUM}, "forum_topic_created": {"name": "Plans", "icon_color": 1}}
    in_topic = inbound("hi", chat=FORUM, message_thread_id=7, is_topic_message=True, reply_to_message=opened)
    assert (in_topic.quoted, in_topic.thread_label) == (None, "Plans")
    forwarded = inbound("news", forward_origin={"type": "hidden_user", "date": 5, "sender_user_name": "Zoe"})
    assert (forwarded.forwarded_from, forwarded.forwarded_at_ms) == ("Zoe", 5000)


@pytest.mark.parametrize(
    "update",
    [
        {"message": {**TelegramServer().message("hi"), "from": {"id": 7, "is_bot": True, "first_name": "Other"}}},
        {"message": TelegramServer().message(None, new_chat_title="x")},
        {"message": TelegramServer().message("", chat=GROUP)},
        {"message": TelegramServer().message("hi", is_automatic_forward=True)},
        {"channel_post": TelegramServer().message("hi")},
        {"my_chat_member": {"chat": {"id": 1}}},
        {},
    ],
)
def test_bots_service_messages_and_unknown_updates_are_passed_over(update: dict[str, Any]) -> None:
    assert event(update) is None


def test_an_update_of_a_wrong_form_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"update_id": 1, "message": {"message_id": "x", "chat": 5}}, Update)


def test_files() -> None:
    sizes = [{"file_id": "s", "width": 90, "height": 90}, {"file_id": "l", "width": 900, "height": 900, "file_size": 5}]
    (photo,) = heard(photo=sizes, caption="look").files
    assert (photo.file_id, photo.mime_type, photo.size) == ("l", "image/jpeg", 5)
    (voice,) = heard(voice={"file_id": "v", "duration": 3}).files
    assert voice.mime_type == "audio/ogg"
    document = {"file_id": "d", "mime_type": "application/pdf", "file_name": "a.pdf"}
    (file,) = heard(document=document).files
    assert (file.name, file.mime_type) == ("a.pdf", "application/pdf")
    (gif,) = heard(animation={"file_id": "a", "mime_type": "video/mp4"}, document=document).files
    assert gif.file_id == "a"
    sticker = heard(sticker={"file_id": "x", "is_animated": True, "emoji": "🎉"})
    assert sticker.files == () and sticker.inbound.text == "🎉" and sticker.inbound.untrusted


def test_places_contacts_and_polls_are_put_into_words() -> None:
    assert inbound(location={"latitude": 1.5, "longitude": 2.5}).text == "📍 1.5, 2.5"
    assert inbound(contact={"phone_number": "+1", "first_name": "Z"}).text == "👤 Z, +1"
    assert inbound(poll={"question": "Q?", "options": [{"text": "a"}, {"text": "b"}]}).text == "📊 Q?\n- a\n- b"


def test_a_command_of_the_menu_is_a_native_one() -> None:
    assert inbound("/status").native_command and not inbound("/unknown").native_command


def test_edits_presses_reactions_and_moves() -> None:
    server = TelegramServer()
    edit = event({"edited_message": {**server.message("new words"), "message_id": 7, "edit_date": 5}})
    assert isinstance(edit, Edited) and (edit.inbound.message_id, edit.inbound.text) == ("7", "new words")
    user = {"id": BOB, "is_bot": False, "first_name": "Bob"}
    shown = server.message("Choose", chat=GROUP)
    press = event({"callback_query": {"id": "q1", "from": user, "message": shown, "data": "yes", "chat_instance": "1"}})
    assert isinstance(press, PressEvent)
    assert (press.inbound.text, press.inbound.mentioned, press.inbound.sender.id) == ("yes", True, str(BOB))
    reaction = {"chat": server.chats[GROUP], "message_id": 5, "user": user, "date": 9, "old_reaction": []}
    change = event({"message_reaction": {**reaction, "new_reaction": [{"type": "emoji", "emoji": "👍"}]}})
    assert isinstance(change, ReactionEvent) and (change.emoji, change.removed) == (("👍",), False)
    moved = event({"message": {"message_id": 1, "chat": {"id": -5, "type": "group"}, "migrate_to_chat_id": GROUP}})
    assert moved == MovedEvent(chat=-5, new_chat=GROUP)


def test_albums_and_texts_that_telegram_cut_become_one_message() -> None:
    server = TelegramServer()

    def photo(name: str, album: str, **more: Any) -> TelegramEvent:
        size = {"file_id": name, "width": 1, "height": 1}
        found = event({"message": server.message(photo=[size], media_group_id=album, **more)})
        assert found is not None
        return found

    def said(text: str, **more: Any) -> TelegramEvent:
        found = event({"message": server.message(text, **more)})
        assert found is not None
        return found

    long = "x" * 4096
    events = [photo("a", "1", caption="two"), photo("b", "1"), photo("c", "2"), said(long), said("tail"), said("new")]
    events.append(said("of Bob", sender=BOB))
    found = joined(events)
    assert [one.inbound.text for one in found if isinstance(one, MessageEvent)] == [
        *("two", "", f"{long}tail", "new", "of Bob")
    ]
    first = found[0]
    assert isinstance(first, MessageEvent) and [file.file_id for file in first.files] == ["a", "b"]
    assert first.inbound.message_id == "101" and first.inbound.message_ids == ("101", "102")
    assert may_continue(events[0]) and may_continue(said(long)) and not may_continue(said("short"))
