"""Whether a group message is meant for the agent."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from openclaw.inbound.mentions import Gate, gate, is_mentioned, mention_patterns, needs_mention, was_mentioned
from openclaw.inbound.message import Inbound, Quoted
from tests.inbound.support import configured, message


def group(text: str = "hello", **more: Any) -> Inbound:
    return message(text, kind="group", peer="g", **more)


def agent(**fields: Any) -> dict[str, Any]:
    return {"agents": {"list": [{"id": "main", **fields}]}}


GENERAL = {"messages": {"groupChat": {"mentionPatterns": ["computer"]}}}
NAMED = {"identity": {"name": "Molty Bot", "emoji": "🦞"}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        (GENERAL, ["computer"]),
        ({**GENERAL, **agent(**NAMED)}, ["computer"]),
        ({**GENERAL, **agent(groupChat={"mentionPatterns": ["jarvis"]})}, ["jarvis"]),
        ({**GENERAL, **agent(groupChat={"mentionPatterns": []})}, []),
        (agent(**NAMED), [r"\b@?Molty\s+Bot\b", "🦞"]),
        (agent(groupChat={"mentionPatterns": ["\x08hey\x08", " "]}), [r"\bhey\b"]),
    ],
)
def test_the_agents_own_patterns_win_over_general_ones_over_its_name(values: Any, expected: list[str]) -> None:
    assert [pattern.pattern for pattern in mention_patterns(configured(values), "main")] == expected


def test_a_broken_pattern_is_reported_and_the_others_count(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        patterns = mention_patterns(configured(agent(groupChat={"mentionPatterns": ["(broken", "fine"]})), "main")
    assert [pattern.pattern for pattern in patterns] == ["fine"] and "(broken" in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("molty bot, help", True),
        ("@Molty  Bot?", True),
        ("MOL\u200bTY\u202e BOT", True),
        ("look 🦞", True),
        ("moltybot", False),
        ("smolty bots", False),
        ("", False),
    ],
)
def test_the_name_is_found_as_people_write_it(text: str, expected: bool) -> None:
    assert is_mentioned(text, mention_patterns(configured(agent(**NAMED)), "main")) is expected


def test_a_name_ending_in_a_sign_is_still_found() -> None:
    assert is_mentioned("hey c++ now", mention_patterns(configured(agent(identity={"name": "C++"})), "main"))


@pytest.mark.parametrize(
    ("channel", "mentioned", "others", "expected"),
    [
        ("telegram", True, False, True),
        ("telegram", False, True, True),
        ("whatsapp", False, True, False),
        ("whatsapp", True, True, True),
        ("whatsapp", False, False, True),
    ],
)
def test_native_mentions_and_patterns_both_count(channel: str, mentioned: bool, others: bool, expected: bool) -> None:
    patterns = mention_patterns(configured(GENERAL), "main")
    inbound = group("computer?", channel=channel, mentioned=mentioned, mentions_others=others)
    assert was_mentioned(inbound, patterns) is expected


@pytest.mark.parametrize(
    ("require", "can_detect", "mentioned", "command", "others", "expected"),
    [
        (False, True, False, False, False, (True, False)),
        (False, True, True, False, False, (True, True)),
        (False, False, False, True, False, (True, False)),
        (True, False, False, False, False, (True, False)),
        (True, True, True, False, False, (True, True)),
        (True, True, False, True, False, (True, True)),
        (True, True, False, True, True, (False, False)),
        (True, True, False, False, False, (False, False)),
    ],
)
def test_the_gate(
    require: bool, can_detect: bool, mentioned: bool, command: bool, others: bool, expected: tuple[bool, bool]
) -> None:
    inbound = group(can_detect_mention=can_detect, mentioned=mentioned, mentions_others=others)
    passed = gate(inbound, (), require_mention=require, authorised_command=command)
    assert (passed.process, passed.mentioned) == expected


def test_an_answer_to_the_agent_is_a_mention() -> None:
    inbound = group(quoted=Quoted(id="1", from_us=True))
    assert gate(inbound, (), require_mention=True) == Gate(process=True, mentioned=True)


def test_patterns_make_mentions_detectable_where_the_platform_cannot() -> None:
    patterns = mention_patterns(configured(GENERAL), "main")
    assert not gate(group(can_detect_mention=False), patterns, require_mention=True).process


def test_a_direct_message_is_always_meant_for_the_agent() -> None:
    assert gate(message(), (), require_mention=True) == Gate(process=True, mentioned=True)


@pytest.mark.parametrize(
    ("activation", "configured_", "expected"),
    [("always", True, False), ("mention", False, True), (None, True, True), (None, False, False), ("odd", True, True)],
)
def test_activation_of_the_session_wins_over_the_configuration(
    activation: Any, configured_: bool, expected: bool
) -> None:
    entry: Any = {"sessionId": "s", "updatedAt": 0, "groupActivation": activation} if activation else None
    assert needs_mention(entry, configured_) is expected
