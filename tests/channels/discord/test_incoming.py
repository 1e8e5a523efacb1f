"""What an event of Discord's gateway means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openclaw.channels.discord.incoming import (
    CommandEvent,
    DiscordEvent,
    OwnUser,
    Room,
    Rooms,
    interpret,
)
from openclaw.channels.submit import Edited, Posted, Reacted
from openclaw.inbound.message import Inbound
from tests.support.discord_server import ANN, BOB, BOT, CHANNEL, DM, GUILD, THREAD, DiscordServer

OWN = OwnUser(BOT, "claw")


def known() -> Rooms:
    rooms = Rooms()
    rooms.guilds[GUILD] = "Friends"
    rooms.rooms[CHANNEL] = Room(id=CHANNEL, name="general", topic="All and nothing")
    rooms.rooms[THREAD] = Room(id=THREAD, type=11, name="plans", parent_id=CHANNEL)
    return rooms


def event(name: str, data: Any, **more: Any) -> DiscordEvent | None:
    return interpret(name, data, OWN, "default", known(), **more)


def inbound(content: str, **more: Any) -> Inbound:
    found = event("MESSAGE_CREATE", DiscordServer().message(content, **more))
    assert isinstance(found, Posted)
    return found.inbound


def test_a_direct_message_names_its_sender_and_where_the_answer_goes() -> None:
    message = inbound("hello", future_field={"x": [1]})
    assert (message.peer.kind, message.peer.id, message.to, message.text) == ("direct", ANN, f"user:{ANN}", "hello")
    assert (message.sender.id, message.sender.name, message.sender.username) == (ANN, "Ann", "ann")
    assert message.timestamp_ms == 1_794_906_000_000


def test_a_channel_and_its_thread() -> None:
    channel, thread = inbound("hi", channel=CHANNEL), inbound("hi", channel=THREAD)
    assert (channel.peer.kind, channel.peer.id, channel.to) == ("channel", CHANNEL, f"channel:{CHANNEL}")
    assert (channel.group_channel, channel.group_space, channel.guild_id) == ("#general", "Friends", GUILD)
    assert channel.untrusted == ("Topic of the channel: All and nothing",)
    assert thread.peer.id == THREAD and thread.parent_peer is not None and thread.parent_peer.id == CHANNEL
    assert (thread.thread_label, thread.group_channel) == ("plans", "#general")


@pytest.mark.parametrize(
    ("content", "read", "mentioned", "others"),
    [
        (f"<@{BOT}> what now", "what now", True, False),
        (f"<@!{BOT}>, what now", "what now", True, False),
        (f"what now <@{BOT}>", "what now", True, False),
        (f"<@{BOT}>", "", True, False),
        (f"ask <@{BOT}> about <#{CHANNEL}>", "ask @claw about #general", True, False),
        (f"hey <@{BOB}> <:party:123>", "hey @Bob :party:", False, True),
        ("a < b", "a < b", False, False),
    ],
)
def test_mentions(content: str, read: str, mentioned: bool, others: bool) -> None:
    message = inbound(content, channel=CHANNEL)
    assert (message.text, message.mentioned, message.mentions_others) == (read, mentioned, others)


def test_quotes_forwards_and_stickers() -> None:
    server = DiscordServer()
    ours = server.message("my words", author=BOT)
    quoted = inbound("yes", type=19, referenced_message=ours).quoted
    assert quoted and (quoted.id, quoted.text, quoted.from_us) == (ours["id"], "my words", True)
    snapshot = {"message": {"content": "far away", "timestamp": "2026-01-01T00:00:00+00:00"}}
    forwarded = inbound("", message_reference={"type": 1}, message_snapshots=[snapshot])
    assert (forwarded.text, forwarded.forwarded_from) == ("far away", "another channel")
    assert inbound("", sticker_items=[{"id": "1", "name": "wave", "format_type": 1}]).text == "(sticker wave)"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("MESSAGE_CREATE", DiscordServer().message("mine", author=BOT)),
        ("MESSAGE_CREATE", {**DiscordServer().message("x"), "author": {"id": "5", "username": "b", "bot": True}}),
        ("MESSAGE_CREATE", DiscordServer().message("joined", type=7)),
        ("MESSAGE_CREATE", DiscordServer().message("")),
        ("MESSAGE_UPDATE", DiscordServer().message("with a preview now")),
        ("MESSAGE_UPDATE", {"id": "1", "channel_id": DM, "embeds": []}),
        ("TYPING_START", {}),
    ],
)
def test_what_concerns_nobody_is_passed_over(name: str, data: Any) -> None:
    assert event(name, data) is None


def test_other_bots_are_heard_where_that_is_wanted() -> None:
    data = {**DiscordServer().message("beep"), "author": {"id": "5", "username": "b", "bot": True}}
    assert isinstance(event("MESSAGE_CREATE", data, bots=True), Posted)


def test_an_event_of_a_wrong_form_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        event("MESSAGE_CREATE", {"id": 5})


def test_edits_reactions_commands_and_presses() -> None:
    server = DiscordServer()
    edit = event("MESSAGE_UPDATE", {**server.message("new"), "edited_timestamp": "2026-11-17T09:01:00+00:00"})
    assert isinstance(edit, Edited) and edit.inbound.text == "new"
    change = {"user_id": ANN, "channel_id": CHANNEL, "guild_id": GUILD, "message_id": "7", "message_author_id": BOT}
    whole = {**change, "member": {"user": server.user(ANN)}, "emoji": {"id": None, "name": "👍"}}
    reacted = event("MESSAGE_REACTION_ADD", whole)
    assert isinstance(reacted, Reacted) and reacted.to_us
    assert reacted.inbound.text == "Discord: Ann reacted with 👍 to your message (id 7)"
    base = {"id": "5", "token": "t", "channel_id": CHANNEL, "guild_id": GUILD, "member": {"user": server.user()}}
    options = [{"name": "input", "type": 3, "value": "high"}]
    command = event("INTERACTION_CREATE", {**base, "type": 2, "data": {"id": "1", "name": "think", "options": options}})
    assert isinstance(command, CommandEvent)
    assert (command.inbound.text, command.inbound.native_command, command.press) == ("/think high", True, False)
    shown = server.message("Sure?", author=BOT)
    press = event("INTERACTION_CREATE", {**base, "type": 3, "message": shown, "data": {"custom_id": "yes"}})
    assert isinstance(press, CommandEvent) and press.press and press.inbound.text == "yes"
    assert event("INTERACTION_CREATE", {**base, "type": 1}) is None
