"""Lines of IRC, read and written; texts cut to fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.channels.irc import parse_address
from openclaw.channels.irc.connection import (
    MAX_LINE,
    BadLine,
    Line,
    folded,
    format_line,
    is_channel,
    is_nick,
    lines_of,
    parse_line,
    text_room,
    without_formats,
)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"PING :abc\r\n", Line("PING", ("abc",))),
        (b":irc.test 001 claw :Welcome here\r\n", Line("001", ("claw", "Welcome here"), "irc.test")),
        (b":a!b@c privmsg #x ::)\r\n", Line("PRIVMSG", ("#x", ":)"), "a!b@c")),
        (b":a!b@c PRIVMSG #x :\r\n", Line("PRIVMSG", ("#x", ""), "a!b@c")),
        (
            b"@time=x;msgid=a\\sb\\:;+k :a TAGMSG #x",
            Line("TAGMSG", ("#x",), "a", {"time": "x", "msgid": "a b;", "+k": ""}),
        ),
        (b"  JOIN   #x  ", Line("JOIN", ("#x",))),
        (b":a!b@c PRIVMSG x :caf\xe9", Line("PRIVMSG", ("x", "café"), "a!b@c")),
        (b":a!b@c PRIVMSG x :a\x00b", Line("PRIVMSG", ("x", "ab"), "a!b@c")),
    ],
)
def test_a_line_is_read(data: bytes, line: Line) -> None:
    assert parse_line(data) == line


@pytest.mark.parametrize("data", [b"", b"\r\n", b":only.a.prefix\r\n", b"@tag=1\r\n", b"   \r\n"])
def test_a_line_without_a_command_is_refused(data: bytes) -> None:
    with pytest.raises(BadLine):
        parse_line(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        assert parse_line(data).command
    except BadLine:
        pass


@pytest.mark.parametrize(
    "params",
    [
        ("#x", "a\r\nQUIT"),
        ("#x", "a\nb"),
        ("#x", "a\x00b"),
        ("#x y", "text"),
        (":x", "text"),
        ("", "text"),
        ("#x\r", "text"),
        ("#x", "y" * 600),
    ],
)
def test_no_parameter_can_become_a_second_one_or_a_line(params: tuple[str, ...]) -> None:
    with pytest.raises(BadLine):
        format_line("PRIVMSG", *params)


@given(st.text(max_size=60), st.text(max_size=100))
def test_what_is_written_is_read_back_as_one_line(target: str, text: str) -> None:
    try:
        data = format_line("PRIVMSG", target, text, tags={"label": "a b;\\"})
    except BadLine:
        return
    assert data.count(b"\r\n") == 1 and data.count(b"\n") == 1 and b"\x00" not in data
    line = parse_line(data)
    assert (line.command, len(line.params), line.tags["label"]) == ("PRIVMSG", 2, "a b;\\")


@given(st.text(alphabet="ab \n\x02\x1d日é😀\u0301\u200d\r\x00", max_size=400), st.integers(40, 120))
def test_cut_lines_fit_and_lose_only_white_space(text: str, room: int) -> None:
    lines = lines_of(text, room)
    assert all(len(line.encode()) <= room and not set(line) & set("\r\n\x00") for line in lines)
    assert all(line.strip("\x02\x1d ") for line in lines)

    def visible(shown: str) -> str:
        return "".join(char for char in shown if char not in "\x02\x1d \n\r\x00")

    assert visible("".join(lines)) == visible(text)


def test_what_is_open_at_a_cut_is_opened_again() -> None:
    assert lines_of("\x02one two\x02 three\n\x1dfour\nfive\x1d", 7) == [
        "\x02one",
        "\x02two\x02",
        "three",
        "\x1dfour",
        "\x1dfive\x1d",
    ]


def test_the_room_leaves_space_for_what_the_server_puts_before_the_line() -> None:
    text = "x" * text_room("claw", "~claw", "host.example", "#room")
    assert len(f":claw!~claw@host.example PRIVMSG #room :{text}\r\n".encode()) == MAX_LINE
    assert text_room("claw", "", "", "#room") < text_room("claw", "~claw", "host.example", "#room")


@pytest.mark.parametrize(
    ("one", "other", "mapping", "same"),
    [
        ("Ann", "ann", "ascii", True),
        ("a[b]", "A{B}", "rfc1459", True),
        ("a~", "a^", "rfc1459", True),
        ("a~", "a^", "rfc1459-strict", False),
        ("a[b]", "A{B}", "ascii", False),
    ],
)
def test_names_compare_as_the_server_says(one: str, other: str, mapping: str, same: bool) -> None:
    assert (folded(one, mapping) == folded(other, mapping)) is same


@pytest.mark.parametrize(
    ("name", "channel", "nick"),
    [
        ("#room", True, False),
        ("&local", True, False),
        ("#", False, False),
        ("#a,#b", False, False),
        ("ann", False, True),
        ("[ann]", False, True),
        ("1ann", False, False),
        ("a n", False, False),
        ("a!b", False, False),
        ("", False, False),
    ],
)
def test_names_are_channels_or_nicknames(name: str, channel: bool, nick: bool) -> None:
    assert (is_channel(name), is_nick(name)) == (channel, nick)


@pytest.mark.parametrize(
    ("to", "target", "mask"),
    [
        ("#room", "#room", ""),
        ("irc:#Room", "#Room", ""),
        ("channel:#room", "#room", ""),
        ("irc:user:ann", "ann", ""),
        ("irc:Ann!~u@host.example", "Ann", "Ann!~u@host.example"),
        ("ann!u@2001:db8::1", "ann", "ann!u@2001:db8::1"),
    ],
)
def test_addresses_are_read(to: str, target: str, mask: str) -> None:
    address = parse_address(to)
    assert (address.target, address.mask) == (target, mask)


def test_colours_and_other_codes_are_left_out() -> None:
    assert (
        without_formats("\x0304,12red\x03 \x02bold\x0f \x04ff0000hex \x1funder \x01ctcp\x01")
        == "red bold hex under ctcp"
    )
