"""``openclaw pairing``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Cli
from .fake_gateway import FakeGateway, Refusal

REQUEST = {
    "channel": "signal",
    "id": "+1555",
    "code": "ABCD2345",
    "createdAt": "2026-11-15T18:22:05.123Z",
    "lastSeenAt": "2026-11-15T18:22:05.123Z",
    "meta": {"name": "Ana\x1b[31m"},
}


def test_the_list_shows_code_channel_and_person(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["pairing.list"] = {"requests": [REQUEST]}
    shown = cli("pairing", "list", "signal")
    assert shown.stdout == "ABCD2345  signal  +1555 (Ana[31m)  since 2026-11-15T18:22:05.123Z\n"
    assert json.loads(cli("pairing", "--json").stdout) == {"requests": [REQUEST]}
    assert gateway.params_of("pairing.list") == [{"channel": "signal"}, {}]


def test_an_empty_list_says_so(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["pairing.list"] = {"requests": []}
    assert cli("pairing", "list", "--channel", "signal").stdout == "Nobody waits on signal.\n"


@pytest.mark.parametrize(
    ("words", "params"),
    [
        (["ABCD2345"], {"code": "ABCD2345", "notify": False}),
        (["signal", "ABCD2345"], {"code": "ABCD2345", "notify": False, "channel": "signal"}),
        (["--channel", "signal", "ABCD2345", "--notify"], {"code": "ABCD2345", "notify": True, "channel": "signal"}),
    ],
)
def test_a_code_is_approved_with_or_without_its_channel(
    cli: Cli, gateway: FakeGateway, words: list[str], params: dict[str, Any]
) -> None:
    gateway.replies["pairing.approve"] = {"channel": "signal", "id": "+1555"}
    done = cli("pairing", "approve", *words)
    assert (done.returncode, done.stdout) == (0, "+1555 may now write on signal.\n")
    assert gateway.params_of("pairing.approve") == [params]


def test_a_notice_that_failed_is_told_without_undoing_the_approval(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["pairing.approve"] = {
        "channel": "x",
        "id": "1",
        "notified": False,
        "notifyError": "no such channel",
    }
    done = cli("pairing", "approve", "x", "ABCD2345", "--notify")
    assert done.returncode == 0 and "no such channel" in done.stderr


def test_an_unknown_code_is_an_error(cli: Cli, gateway: FakeGateway) -> None:
    def refuse(params: dict[str, Any]) -> None:
        raise Refusal(f"no pairing request with the code {params['code']}")

    gateway.replies["pairing.approve"] = refuse
    done = cli("pairing", "approve", "NOPE")
    assert done.returncode == 1 and "no pairing request with the code NOPE" in done.stderr


def test_too_many_words_are_refused(cli: Cli, gateway: FakeGateway) -> None:
    done = cli("pairing", "approve", "a", "b", "c")
    assert done.returncode == 2 and "takes a code" in done.stderr
