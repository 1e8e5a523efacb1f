"""From what a run said to the messages of a channel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openclaw.config.load import parse_config
from openclaw.outbound.backoff import Backoff, retry_delay_s
from openclaw.outbound.limits import Limits, limits_for
from openclaw.outbound.reply import MediaRef, failure_notice, parts_for

SIGNAL = {"channel": "signal", "to": "signal:+15550000042", "accountId": "default"}


@pytest.mark.parametrize(
    "route",
    [
        {"channel": "webchat", "sessionKey": "agent:main:main"},
        {"channel": "internal", "to": "x"},
        {"channel": "signal"},
        {},
    ],
)
def test_a_reply_to_the_web_or_to_nowhere_leaves_through_no_channel(route: dict[str, Any]) -> None:
    assert parts_for(route, ["hello"], Limits()) == []


def test_texts_are_cut_and_numbered_in_order() -> None:
    parts = parts_for(SIGNAL, ["first thing", "second"], Limits(6))
    assert [(part.part, part.channel, part.payload) for part in parts] == [
        (0, "signal", {"text": "first"}),
        (1, "signal", {"text": "thing"}),
        (2, "signal", {"text": "second"}),
    ]


def test_silence_and_blank_text_yield_nothing_and_media_still_go() -> None:
    assert parts_for(SIGNAL, ["NO_REPLY", "  \n"], Limits()) == []
    file = MediaRef(blob="ab", mime_type="image/png")
    (part,) = parts_for(SIGNAL, ["NO_REPLY"], Limits(), [file])
    assert [list(part.payload), *part.payload["media"]] == [["media"], {"blob": "ab", "mimeType": "image/png"}]
    with_text = parts_for(SIGNAL, ["look here", "and more"], Limits(), [file])
    assert ["media" in part.payload for part in with_text] == [True, False]


def config(channels: dict[str, Any]) -> Any:
    loaded = parse_config("openclaw.json", msgspec.json.encode({"channels": channels}).decode(), {})
    assert loaded.valid, loaded.issues
    return loaded.config


@pytest.mark.parametrize(
    ("channels", "channel", "account", "limits"),
    [
        ({}, "signal", None, Limits(4000)),
        ({"signal": {"account": "+15550000001", "textChunkLimit": 100}}, "signal", None, Limits(100)),
        (
            {"signal": {"textChunkLimit": 100, "accounts": {"Work": {"textChunkLimit": 50, "chunkMode": "newline"}}}},
            "signal",
            "work",
            Limits(50, "newline"),
        ),
        ({"signal": {"textChunkLimit": 100, "accounts": {"work": {}}}}, "signal", "work", Limits(100)),
        ({"discord": {"textChunkLimit": 9000}}, "discord", None, Limits(2000)),
        ({"telegram": {"textChunkLimit": -1}}, "telegram", None, Limits(4000)),
        ({"irc": {"accounts": {"a": {"textChunkLimit": 300}}}}, "irc", "A", Limits(300)),
        ({}, "unheard-of", None, Limits(4000)),
    ],
)
def test_a_limit_is_the_accounts_then_the_channels_then_the_built_in_one(
    channels: dict[str, Any], channel: str, account: str | None, limits: Limits
) -> None:
    assert limits_for(config(channels), channel, account) == limits


def test_a_failed_run_gives_one_notice() -> None:
    assert failure_notice("the model is away") == "⚠️ the model is away"
    assert failure_notice(None).startswith("⚠️ ")


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (2000, 10)])
def test_reconnect_delays_double_up_to_their_limit(attempt: int, seconds: float) -> None:
    assert Backoff(initial_s=1, max_s=10).delay_s(attempt, lambda: 0.0) == seconds


def test_reconnect_jitter_only_adds() -> None:
    assert Backoff(initial_s=1, max_s=10, jitter=0.2).delay_s(1, lambda: 0.5) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("attempt", "asked", "seconds"),
    [(1, None, 0.4), (2, None, 0.8), (1, 60, 30), (1, 2, 2), (9, None, 30), (1, 0.1, 0.4)],
)
def test_a_retry_waits_for_what_the_server_asked_within_bounds(
    attempt: int, asked: float | None, seconds: float
) -> None:
    policy = Backoff(initial_s=0.4, max_s=30, jitter=0)
    assert retry_delay_s(policy, attempt, asked, lambda: 0.9) == pytest.approx(seconds)
