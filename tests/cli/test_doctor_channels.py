"""``openclaw doctor`` has one line for each account of a channel: what is wrong, and what to do."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from openclaw.cli.doctor import _account_told

from .conftest import Cli

TOKEN = "110201543:canary0123456789abcdefghijk"


def lines(cli: Cli, *options: str) -> dict[str, dict[str, Any]]:
    """The finding of each account, by its name."""
    found = json.loads(cli("doctor", "--json", *options).stdout)["findings"]
    return {one["text"].split(")")[0] + ")": one for one in found if one["check"] == "channels"}


def test_each_account_has_one_line_with_what_to_do(cli: Cli, state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
        closed.close()
        channels = {
            "telegram": {"botToken": TOKEN, "apiRoot": f"http://127.0.0.1:{alive.getsockname()[1]}"},
            "slack": {"botToken": "xoxb-canary0123"},
            "discord": {"token": "canary-no-token"},
            "whatsapp": {"enabled": False},
            "irc": {"host": "127.0.0.1", "port": dead, "nick": "claw", "tls": False},
        }
        path = state / "openclaw.json"
        path.write_text(json.dumps({"channels": channels}))
        path.chmod(0o600)
        found, tried = lines(cli), lines(cli, "--deep")
    assert {name: one["level"] for name, one in found.items()} == {
        "Telegram (default)": "ok",
        "Slack (default)": "error",
        "Discord (default)": "warning",
        "WhatsApp (default)": "ok",
        "IRC (default)": "ok",
    }
    assert found["Slack (default)"]["fix"].startswith("set channels.slack.appToken to the app's token")
    assert "token that does not look like one of Discord" in found["Discord (default)"]["text"]
    assert found["WhatsApp (default)"]["text"].endswith("is switched off")
    assert tried["Telegram (default)"]["text"].endswith("can be reached")
    assert (tried["IRC (default)"]["level"], f"127.0.0.1:{dead} cannot be" in tried["IRC (default)"]["text"]) == (
        "error",
        True,
    )
    assert "canary" not in json.dumps([found, tried])


@pytest.mark.parametrize(
    ("account", "severity", "text"),
    [
        (
            {"accountId": "default", "connected": True, "probe": {"ok": True}},
            "ok",
            "is connected, and its server answers",
        ),
        (
            {"accountId": "default", "connected": True, "probe": {"ok": False, "error": "no answer within 10 s"}},
            "critical",
            "is not connected: no answer within 10 s",
        ),
        (
            {"accountId": "default", "configured": False, "lastError": "the token is wrong\nmore"},
            "critical",
            "is not connected: the token is wrong",
        ),
        ({"accountId": "other"}, "warn", "is not known to the running Gateway"),
    ],
)
def test_a_running_gateway_tells_whether_the_server_answers(account: dict[str, Any], severity: str, text: str) -> None:
    answer = _account_told([account], "default")
    assert answer[:2] == (severity, text)
    assert bool(answer[2]) == (severity != "ok")
