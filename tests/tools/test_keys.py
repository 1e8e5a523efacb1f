from __future__ import annotations

import pytest

from openclaw.tools.keys import UnknownKey, encode_hex, encode_key, encode_paste


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("Enter", b"\r"),
        ("C-c", b"\x03"),
        ("^d", b"\x04"),
        ("c-[", b"\x1b"),
        ("C-Space", b"\0"),
        ("M-x", b"\x1bx"),
        ("C-M-c", b"\x1b\x03"),
        ("S-Tab", b"\x1b[Z"),
        ("Up", b"\x1b[A"),
        ("C-Up", b"\x1b[1;5A"),
        ("S-Delete", b"\x1b[3;2~"),
        ("F1", b"\x1bOP"),
        ("F12", b"\x1b[24~"),
        ("hello", b"hello"),
        ("é", "é".encode()),
    ],
)
def test_keys_are_sent_as_a_terminal_sends_them(key: str, expected: bytes) -> None:
    assert encode_key(key) == expected


@pytest.mark.parametrize("key", ["C-Nothing", "C-é", "^1"])
def test_keys_nobody_has_are_refused(key: str) -> None:
    with pytest.raises(UnknownKey):
        encode_key(key)


def test_bytes_can_be_given_in_hexadecimal() -> None:
    assert encode_hex("0x1b") + encode_hex("0d0A") == b"\x1b\r\n"
    with pytest.raises(UnknownKey):
        encode_hex("zz")


def test_pasted_text_cannot_leave_its_brackets() -> None:
    assert encode_paste("a\x1b[201~rm", bracketed=True) == b"\x1b[200~arm\x1b[201~"
    assert encode_paste("a", bracketed=False) == b"a"
