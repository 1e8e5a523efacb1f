"""Commands in text: their normal form, and which messages are commands."""

from __future__ import annotations

import re

import pytest

from openclaw.inbound.commands.session import find_reset
from openclaw.inbound.directives import (
    DIRECT_CHAT,
    Listening,
    command_body,
    is_abort,
    is_control_message,
    stand_alone,
    strip_mentions,
    understands_text,
)
from openclaw.sessions.prompt_prefix import CURRENT_MARKER

GROUP = Listening(group=True, channel="discord", mentions=(re.compile(r"@?\bclawd\b", re.IGNORECASE),))


QUOTED = [
    f"Look what he wrote:\n{CURRENT_MARKER}\n{{}}",
    f"{CURRENT_MARKER}\n{{}}",
    f"{CURRENT_MARKER} {{}}",
    f"[Chat messages since your last reply - for context]\nPeter: hi\n\n{CURRENT_MARKER}\nJake: {{}}",
    "[Dec 5 10:00] {}",
    "[Signal Ann id:+1 Sun 2026-01-18 08:19 UTC] {}",
    "Jake: {}",
    "Jake (+1555): {}",
    "Note: {}",
    "> {}",
    "`{}`",
    "```\n{}\n```",
    "    {}",
    "hi\\n{}",
]


@pytest.mark.parametrize("listening", [DIRECT_CHAT, GROUP], ids=["direct", "group"])
@pytest.mark.parametrize("words", ["/new", "/send off", "stop", "/stop", "/status", "/think high"])
@pytest.mark.parametrize("quoted", QUOTED)
def test_text_that_only_quotes_a_command_is_not_one(quoted: str, words: str, listening: Listening) -> None:
    text = quoted.format(words)
    assert not is_abort(text, listening)
    assert not is_control_message(text, listening)
    assert stand_alone(command_body(text, listening)) is None
    assert find_reset(text, ["stop"], listening) is None


@pytest.mark.parametrize(
    ("text", "channel", "bare"),
    [
        ("<@!123> /status", "discord", "/status"),
        ("<@U1AB> hi", "slack", "hi"),
        ("@+491701234 /new", "whatsapp", "/new"),
        ("hey @Clawd\n  stop", "discord", "hey \n stop"),
        ("me@example.com", "", "me@example.com"),
    ],
)
def test_mentions_are_taken_out(text: str, channel: str, bare: str) -> None:
    assert strip_mentions(text, GROUP.mentions, channel) == bare


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("/send: on", "send", "on"),
        ("/send : on", "send", "on"),
        ("/id", "whoami", ""),
        ("/t high", "think", "high"),
        ("/NEW KeepCase", "new", "KeepCase"),
    ],
)
def test_the_spellings_of_a_command(text: str, name: str, args: str) -> None:
    called = stand_alone(text)
    assert called and (called.command.name, called.args) == (name, args)


@pytest.mark.parametrize(
    "text", ["/help@otherbot", "/status please", "hello /id", "/nosuch thing", "/", "/ help", "/new first\nsecond"]
)
def test_what_is_no_command(text: str) -> None:
    assert stand_alone(text) is None


@pytest.mark.parametrize(
    ("text", "control"),
    [
        ("/status", True),
        ("/status please", False),
        ("/stop now", False),
        ("/new hi", True),
        ("stop", True),
        ("please stop", False),
        ("/think:high", True),
        ("/nosuch", False),
        ("/status\nand more", False),
        ("/new hi\nand more", True),
        ("/think high", True),
        ("/think high\n/verbose on", True),
        ("/think high tell me a joke", False),
        ("/queue list", True),
        ("/queue drop 2", True),
    ],
)
def test_which_messages_are_commands(text: str, control: bool) -> None:
    assert is_control_message(text) == control


@pytest.mark.parametrize("text", ["stop", "STOP ", "esc", "wait", "interrupt", "exit", "abort", "/stop", "/STOP"])
def test_words_that_abort(text: str) -> None:
    assert is_abort(text)


@pytest.mark.parametrize("text", ["stop!", "please stop", "halt", "/stop now", "", "/stopped", "x" * 600])
def test_words_that_do_not_abort(text: str) -> None:
    assert not is_abort(text)


def test_in_a_group_a_mention_may_stand_beside_the_word() -> None:
    assert is_abort("@clawd stop", GROUP)
    assert is_abort("<@!42> /stop", GROUP)
    assert not is_abort("@clawd stop")
    assert not is_abort("@someone stop", GROUP)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("/config set a=[1, 2]", "/config set a=[1, 2]"),
        ("@Clawd, /new line\n  [two]", "/new line\n [two]"),
        ("@someone: /status", "@someone: /status"),
        ("/new a  b", "/new a b"),
    ],
)
def test_the_body_of_a_command_in_a_group(text: str, body: str) -> None:
    assert command_body(text, GROUP) == body


def test_the_body_of_a_command_in_a_direct_chat_is_what_was_typed() -> None:
    assert command_body(" /new a  b\n\n c ") == "/new a  b\n\n c"


def test_a_message_with_a_second_line_is_more_than_a_command() -> None:
    called = stand_alone("/send on")
    assert called and called.command.name == "send" and called.args == "on"
    assert stand_alone("/send on\nand hello") is None
    assert stand_alone("/usr/bin/python fails") is None


@pytest.mark.parametrize(
    ("text_commands", "channel", "native", "understood"),
    [
        (True, "discord", False, True),
        (False, "discord", False, False),
        (False, "Telegram", False, False),
        (False, "discord", True, True),
        (False, "signal", False, True),
    ],
)
def test_switching_text_commands_off_counts_only_where_there_are_menus(
    text_commands: bool, channel: str, native: bool, understood: bool
) -> None:
    assert understands_text(text_commands, channel, native=native) == understood
