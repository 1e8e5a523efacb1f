"""Platforms × commands × settings: what a node may be asked for."""

from __future__ import annotations

import pytest

from openclaw.gateway.auth.authorise import NODE_PARAM_RIGHTS, invoke_refusal
from openclaw.gateway.nodes import USUAL, Platform, declared, permitted, platform_of, refusal
from openclaw.rights import rights_of_client
from tests.gateway.auth.test_authorise import SCOPE_SETS

RECORDING = [
    *("camera.snap", "camera.clip", "screen.record", "sms.send", "contacts.add", "calendar.add", "reminders.add"),
]


@pytest.mark.parametrize(
    ("platform", "family", "expected"),
    [
        ("linux", None, "linux"),
        ("Linux 6.18", None, "linux"),
        ("darwin", None, "macos"),
        ("macOS 15.1", None, "macos"),
        ("win32", None, "windows"),
        ("iOS 18", None, "ios"),
        ("android", None, "android"),
        ("", "iPhone", "ios"),
        ("?", "iPad Pro", "ios"),
        ("?", "Mac mini", "macos"),
        ("plan9", "Toaster", "unknown"),
        ("", None, "unknown"),
    ],
)
def test_the_platform_is_read_from_what_a_node_says(platform: str, family: str | None, expected: Platform) -> None:
    assert platform_of(platform, family) == expected


@pytest.mark.parametrize("platform", USUAL)
def test_what_records_its_surroundings_needs_a_setting_on_every_platform(platform: Platform) -> None:
    usual = permitted(platform, [], [])
    assert not usual & {*RECORDING}
    for command in RECORDING:
        assert command in permitted(platform, [f" {command} "], [])
        assert command not in permitted(platform, [command], [command]), "deny wins"
    for command in usual:
        assert command not in permitted(platform, [], [command])
    assert ("system.run" in usual) == (platform not in ("ios", "android"))


@pytest.mark.parametrize(
    ("command", "has", "may", "expected"),
    [
        ("a", ("a",), {"a"}, None),
        ("a", ("a",), set[str](), "command not allowlisted"),
        ("a", (), {"a"}, "node did not declare commands"),
        ("a", ("b",), {"a", "b"}, "command not declared by node"),
    ],
)
def test_why_a_node_is_not_asked(command: str, has: tuple[str, ...], may: set[str], expected: str | None) -> None:
    assert refusal(command, has, may) == expected


def test_a_node_that_declares_too_much_is_bounded() -> None:
    assert declared(["b", " a ", "a", "c", "x" * 300], {"a", "b", "x" * 300}) == ("a", "b")
    assert len(declared([f"c{n}" for n in range(10_000)], {f"c{n}" for n in range(10_000)})) == 256


@pytest.mark.parametrize("scopes", SCOPE_SETS, ids=lambda scopes: "+".join(sorted(scopes)) or "none")
def test_parameters_of_node_commands_that_do_more_than_the_command(scopes: frozenset[str]) -> None:
    rights = rights_of_client("operator", scopes)
    for command, params in NODE_PARAM_RIGHTS.items():
        assert invoke_refusal(command, {"command": ["id"]}, rights) is None
        for name, right in params.items():
            refused = invoke_refusal(command, {name: True}, rights)
            assert (refused is None) == (right in rights)
            assert invoke_refusal("system.which", {name: True}, rights) is None
