"""From what a run said to the messages of a channel."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw.config.load import parse_config
from openclaw.messages import Route
from openclaw.outbound.chunking import Limits
from openclaw.outbound.reply import MediaRef, ReplyShape, Speaker, failure_notice, parts_for, reply_shape

SIGNAL = Route(channel="signal", to="signal:+15550000042", account_id="default")


@pytest.mark.parametrize(
    "route",
    [
        Route(channel="webchat", session_key="agent:main:main"),
        Route(channel="internal", to="x"),
        Route(channel="signal"),
        Route(),
    ],
)
def test_a_reply_to_the_web_or_to_nowhere_leaves_through_no_channel(route: Route) -> None:
    assert parts_for(route, ["hello"], ReplyShape(limits=Limits())) == []


def test_texts_are_cut_and_numbered_in_order() -> None:
    parts = parts_for(SIGNAL, ["first thing", "second"], ReplyShape(limits=Limits(6)))
    assert [(part.part, part.channel, part.payload) for part in parts] == [
        (0, "signal", {"text": "first"}),
        (1, "signal", {"text": "thing"}),
        (2, "signal", {"text": "second"}),
    ]


def test_blank_text_yields_nothing_and_media_still_go() -> None:
    assert parts_for(SIGNAL, ["", "  \n"], ReplyShape(limits=Limits())) == []
    file = MediaRef(blob="ab", mime_type="image/png")
    (part,) = parts_for(SIGNAL, [""], ReplyShape(limits=Limits()), [file])
    assert [list(part.payload), *part.payload["media"]] == [["media"], {"blob": "ab", "mimeType": "image/png"}]
    with_text = parts_for(SIGNAL, ["look here", "and more"], ReplyShape(limits=Limits()), [file])
    assert ["media" in part.payload for part in with_text] == [True, False]


@pytest.mark.parametrize(
    ("channel", "text", "mime", "shapes"),
    [
        ("signal", "short", "image/png", [("short", 1), ("", 1)]),
        ("signal", "short", "audio/ogg", [("short", 0), ("", 1), ("", 1)]),
        ("matrix", "short", "image/png", [("short", 0), ("", 1), ("", 1)]),
        ("telegram", "x" * 1500, "image/png", [("", 1), ("", 1), ("x" * 1500, 0)]),
        ("telegram", "", "image/png", [("", 1), ("", 1)]),
    ],
)
def test_each_file_is_a_message_and_a_short_text_its_caption_where_there_are_captions(
    channel: str, text: str, mime: str, shapes: list[tuple[str, int]]
) -> None:
    files = [MediaRef(blob="ab", mime_type=mime), MediaRef(blob="cd", mime_type=mime)]
    parts = parts_for(Route(channel=channel, to="x"), [text], ReplyShape(limits=Limits()), files)
    assert [(part.payload.get("text", ""), len(part.payload.get("media", ()))) for part in parts] == shapes
    assert [part.part for part in parts] == list(range(len(parts)))


@pytest.mark.parametrize(
    ("channel", "mode", "tag", "quoting"),
    [
        ("telegram", "first", "current", [True, False, False]),
        ("telegram", "all", "current", [True, True, True]),
        ("telegram", "all", "", [False, False, False]),
        ("telegram", "off", "current", [False, False, False]),
        ("discord", "all", "", [True, False, False]),
        ("discord", "off", "current", [False, False, False]),
        ("slack", "all", "", [True, True, True]),
        ("slack", "off", "", [False, False, False]),
        ("slack", "off", "current", [True, True, True]),
    ],
)
def test_which_messages_of_a_long_reply_quote(channel: str, mode: str, tag: str, quoting: list[bool]) -> None:
    section = {"replyToMode": mode, "textChunkLimit": 6}
    config = parse_config("openclaw.json", json.dumps({"channels": {channel: section}}), {}).config
    route = Route(channel=channel, to="channel:C1", reply_to_id="42", session_key=f"agent:main:{channel}:channel:c1")
    assert config is not None
    shape = reply_shape(config, route, Speaker(agent_id="main", model="m", thinking="off"))
    file = MediaRef(blob="ab", mime_type="audio/ogg")
    parts = parts_for(route, ["first thing"], shape, [file], tag)
    assert [part.payload.get("replyToId") == "42" for part in parts] == quoting


def test_a_failed_run_gives_one_notice() -> None:
    assert failure_notice("the model is away") == "⚠️ the model is away"
    assert failure_notice(None).startswith("⚠️ ")


@pytest.mark.parametrize(
    ("slack", "key", "quotes"),
    [
        ({}, "agent:main:slack:channel:c1", "off"),
        ({"replyToMode": "all"}, "agent:main:slack:channel:c1", "all"),
        ({"replyToMode": "all", "replyToModeByChatType": {"channel": "first"}}, "agent:main:slack:channel:c1", "first"),
        ({"replyToMode": "all", "replyToModeByChatType": {"channel": "off"}}, "agent:main:slack:group:g1", "all"),
        ({"replyToModeByChatType": {"group": "first"}}, "agent:main:slack:group:g1", "first"),
        ({"replyToModeByChatType": {"direct": "all"}, "dm": {"replyToMode": "first"}}, "agent:main:main", "all"),
        ({"dm": {"replyToMode": "first"}}, "agent:main:main", "first"),
        ({"dm": {"replyToMode": "first"}}, "agent:main:slack:channel:c1", "off"),
    ],
)
def test_on_slack_the_kind_of_chat_decides_what_is_quoted(slack: dict[str, Any], key: str, quotes: str) -> None:
    config = parse_config("openclaw.json", json.dumps({"channels": {"slack": slack}}), {}).config
    route = Route(channel="slack", to="channel:C1", session_key=key)
    assert config is not None
    assert reply_shape(config, route, Speaker(agent_id="main", model="m", thinking="off")).quotes == quotes
