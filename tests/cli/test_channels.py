"""``openclaw channels``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Cli
from .fake_gateway import FakeGateway

NOW = 1_000_000_000
WELL = {"accountId": "default", "enabled": True, "configured": True, "running": True, "connected": True}


def status(*accounts: dict[str, Any]) -> dict[str, Any]:
    return {"ts": NOW, "channelLabels": {"signal": "Signal"}, "channelAccounts": {"signal": list(accounts)}}


@pytest.mark.parametrize(
    ("account", "code", "line"),
    [
        (WELL, 0, "Signal default: connected"),
        (
            {**WELL, "name": "Home", "lastInboundAt": NOW - 120_000},
            0,
            "Signal default (Home): connected, last heard 2m ago",
        ),
        ({**WELL, "connected": False, "lastError": "refused"}, 1, "Signal default: connecting, refused"),
        ({**WELL, "connected": False, "running": False}, 1, "Signal default: not running"),
        (
            {**WELL, "connected": False, "configured": False, "lastError": "set x"},
            1,
            "Signal default: not configured, set x",
        ),
        ({**WELL, "enabled": False, "connected": False}, 0, "Signal default: disabled"),
        ({**WELL, "probe": {"ok": True, "version": "0.13"}}, 0, "Signal default: connected, answers (version 0.13)"),
        ({**WELL, "node": "12140f8c-c077"}, 0, "Signal default: connected, at node 12140f8c"),
        ({**WELL, "probe": {"ok": False, "error": "gone"}}, 1, "Signal default: connected, does not answer (gone)"),
    ],
)
def test_status_says_how_each_account_is_doing(
    cli: Cli, gateway: FakeGateway, account: dict[str, Any], code: int, line: str
) -> None:
    gateway.replies["channels.status"] = status(account)
    result = cli("channels", "status")
    assert (result.returncode, result.stdout.strip()) == (code, line)


def test_status_probes_only_when_asked(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["channels.status"] = status(WELL)
    cli("channels")
    cli("channels", "status", "--probe", "--json")
    assert gateway.params_of("channels.status") == [{}, {"probe": True}]


def test_without_a_channel_the_command_says_how_to_get_one(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["channels.status"] = {"ts": NOW, "channelAccounts": {}}
    result = cli("channels", "list")
    assert result.returncode == 0 and "openclaw channels add" in result.stdout


def test_list_names_the_accounts(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["channels.status"] = status({**WELL, "accountId": "work"}, WELL)
    assert cli("channels", "list").stdout.splitlines() == ["Signal: work", "Signal: default"]
    listed = json.loads(cli("channels", "list", "--json").stdout)
    assert [account["accountId"] for account in listed["channels"]["signal"]] == ["work", "default"]


def section(cli: Cli, channel: str) -> dict[str, Any]:
    return json.loads(cli("config", "get", f"channels.{channel}", "--json").stdout)


def test_a_channel_is_added_switched_off_and_removed(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["channels.status"] = {"channelAccounts": {"irc": [WELL]}}
    added = cli("channels", "add", "irc", "--set", "host=irc.example", "--set", "nick=claw")
    assert added.returncode == 0 and "IRC is connected" in added.stderr
    assert section(cli, "irc") == {"host": "irc.example", "nick": "claw", "enabled": True}
    assert cli("channels", "remove", "irc").returncode == 0
    assert section(cli, "irc")["enabled"] is False
    assert cli("channels", "remove", "irc", "--delete").returncode == 0
    assert cli("config", "get", "channels.irc", "--json").stdout == "null\n"


def test_an_account_that_is_refused_says_why(cli: Cli, gateway: FakeGateway) -> None:
    refused = {**WELL, "connected": False, "running": False, "configured": False, "lastError": "the token was refused"}
    gateway.replies["channels.status"] = {"channelAccounts": {"telegram": [{**refused, "accountId": "work"}]}}
    added = cli("channels", "add", "telegram", "--account", "work", "--set", "botToken=1:wrong-token-wrong-token")
    assert added.returncode == 1 and "the token was refused" in added.stderr
    assert "wrong-token" not in added.stdout + added.stderr
    assert list(section(cli, "telegram")["accounts"]) == ["work"]


def test_logging_out_forgets_the_secrets(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["channels.status"] = {"channelAccounts": {"telegram": [WELL]}}
    assert cli("channels", "add", "telegram", "--set", "botToken=1:token-token-token-token").returncode == 0
    assert cli("channels", "logout", "telegram").returncode == 0
    assert section(cli, "telegram") == {"enabled": False}


def test_what_is_missing_is_named(cli: Cli, gateway: FakeGateway) -> None:
    assert "channels.telegram.botToken is missing" in cli("channels", "add", "telegram").stderr
    assert "Name a channel: telegram" in cli("channels", "add", "telegraph").stderr
    assert "KEY=VALUE" in cli("channels", "add", "irc", "--set", "host").stderr
    from_environment = cli("channels", "add", "telegram", TELEGRAM_BOT_TOKEN="1:x")
    assert "taken from TELEGRAM_BOT_TOKEN" in from_environment.stderr


def test_a_token_makes_the_password_needless_and_a_login_can_be_given_its_secrets(
    cli: Cli, gateway: FakeGateway
) -> None:
    gateway.replies["channels.status"] = {"channelAccounts": {"matrix": [WELL], "slack": [WELL]}}
    added = cli("channels", "add", "matrix", "--set", "homeserver=https://m.example", "--set", "accessToken=tok")
    assert added.returncode == 0, added.stderr
    assert section(cli, "matrix")["homeserver"] == "https://m.example"
    done = cli("channels", "login", "slack", "--set", "botToken=xoxb-11111", "--set", "appToken=xapp-11111")
    assert done.returncode == 0, done.stderr
    assert "channels.slack.appToken is missing" in cli("channels", "login", "slack", "--set", "botToken=x").stderr


def test_what_a_platform_can_do_is_shown(cli: Cli, gateway: FakeGateway) -> None:
    can = {"chatTypes": ["direct", "group"], "media": True, "edit": False, "buttons": True}
    gateway.replies["channels.status"] = {"channelLabels": {"x": "X"}, "channelCapabilities": {"x": can}}
    assert cli("channels", "capabilities").stdout == "X: direct, group, media, buttons\n"
