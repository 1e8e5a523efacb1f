"""Lines of the server and what they mean for the agent, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.channels.irc.channel import fallback_id, interpret
from openclaw.channels.irc.connection import Self, parse_line
from openclaw.inbound.message import Inbound

ME = Self(nick="Claw", user="~claw", host="h", status_signs="@+")


def read(line: str, **more: Any) -> Inbound | None:
    return interpret(parse_line(line.encode()), ME, "default", now_ms=5, **more)


def taken(line: str, **more: Any) -> Inbound:
    inbound = read(line, **more)
    assert inbound is not None
    return inbound


@pytest.mark.parametrize(
    "line",
    [
        ":claw!~claw@h PRIVMSG #x :my own words",
        ":irc.test PRIVMSG Claw :a server speaks",
        ":a!b@c NOTICE Claw :a notice",
        ":a!b@c PRIVMSG somebody :not for us",
        ":a!b@c PRIVMSG Claw :\x01VERSION\x01",
        ":a!b@c PRIVMSG Claw :\x01ACTION \x01",
        ":a!b@c PRIVMSG Claw :",
        ":a!b@c PRIVMSG Claw :   ",
        ":a!b@c PRIVMSG Claw",
        ":a!b@c PRIVMSG Claw :\x02\x0f",
        "@bot :a!b@c PRIVMSG Claw :I am a bot",
        ":a!b@c JOIN #x",
    ],
)
def test_what_is_no_message_of_a_person_is_passed_over(line: str) -> None:
    assert read(line) is None


@pytest.mark.parametrize(
    ("text", "mentioned", "left"),
    [
        ("Claw: hello", True, "hello"),
        ("claw, hello", True, "hello"),
        ("@claw: hello", True, "hello"),
        ("claw : hello", True, "hello"),
        ("CLAW:/status", True, "/status"),
        ("hello claw", True, "hello claw"),
        ("is claw?", True, "is claw?"),
        ("claw:", True, "claw:"),
        ("clawed: hello", False, "clawed: hello"),
        ("claw_: hello", False, "claw_: hello"),
        ("my-claw", False, "my-claw"),
        ("hello", False, "hello"),
    ],
)
def test_a_mention_is_our_nickname_as_a_word(text: str, mentioned: bool, left: str) -> None:
    inbound = taken(f":a!b@c PRIVMSG #x :{text}")
    assert (inbound.mentioned, inbound.text) == (mentioned, left)


def test_the_sender_is_known_by_the_full_name_only() -> None:
    inbound = taken(":Ann!~Ann@Host.Example PRIVMSG Claw :hi")
    assert inbound.sender.id == inbound.peer.id == "ann!~ann@host.example"
    assert inbound.sender.other_ids == () and inbound.to == "irc:Ann!~Ann@Host.Example"


def test_a_bare_nickname_stands_for_its_user_only_when_told_so() -> None:
    assert taken(":Ann!u@h PRIVMSG Claw :hi", match_nicks=True).sender.other_ids == ("ann",)


def test_the_account_that_the_server_vouches_for_is_an_identity_too() -> None:
    assert taken("@account=Ann1 :Ann!u@h PRIVMSG #x :hi").sender.other_ids == ("account:ann1",)


def test_a_message_to_some_of_a_channel_is_one_in_the_channel() -> None:
    inbound = taken(":a!b@c PRIVMSG @#Room :ops only")
    assert (inbound.peer.kind, inbound.peer.id, inbound.to) == ("group", "#room", "irc:#room")


def test_tags_give_the_id_the_time_and_the_quoted_message() -> None:
    line = "@msgid=m1;time=2026-01-18T08:19:00.500Z;+draft/reply=m0 :a!b@c PRIVMSG #x :hi"
    inbound = taken(line)
    assert (inbound.message_id, inbound.timestamp_ms) == ("m1", 1_768_724_340_500)
    assert inbound.quoted is not None and inbound.quoted.id == "m0"
    assert taken("@time=yesterday :a!b@c PRIVMSG #x :hi").timestamp_ms == 5


def test_the_same_message_sent_again_has_the_same_id() -> None:
    first, again, other = (
        fallback_id(parse_line(f"@time={time} :a!b@c PRIVMSG #x :hi".encode())) for time in ("T1", "T1", "T2")
    )
    assert first == again != other
    assert fallback_id(parse_line(b":a!b@c PRIVMSG #x :hi")) == ""
