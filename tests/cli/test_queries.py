"""Commands that only ask the Gateway something."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from openclaw.cli.logs import parse_line
from openclaw.cli.sessions import flags, table, token_text

from .conftest import Cli
from .fake_gateway import SECRET, FakeGateway, Refusal

ROW = {
    "key": "agent:main:main",
    "kind": "direct",
    "updatedAt": 1_000_000,
    "sessionId": "4ea14bd6",
    "systemSent": True,
    "abortedLastRun": False,
    "thinkingLevel": "high",
    "inputTokens": 120,
    "outputTokens": 12,
    "totalTokens": 120,
    "model": "mock-1",
    "contextTokens": 200_000,
}
LISTED = {
    "ts": 1_000_000 + 16 * 60_000,
    "path": "(multiple)",
    "paths": ["/s/sessions.json", "/t/sessions.json"],
    "count": 1,
    "defaults": {"modelProvider": "mock", "model": "mock-1", "contextTokens": 200_000},
    "sessions": [{**ROW, "origin": {"label": "x"}}],
}


def test_sessions_json_has_the_documented_shape(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.list"] = LISTED
    report = json.loads(cli("sessions", "--json").stdout)
    assert list(report) == ["path", "paths", "count", "activeMinutes", "sessions"]
    assert (report["path"], report["count"], report["activeMinutes"]) == ("/s/sessions.json", 1, None)
    [row] = report["sessions"]
    assert row == {**ROW, "ageMs": 960_000}


def test_sessions_text_shows_age_tokens_model_and_key(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.list"] = LISTED
    lines = cli("sessions").stdout.splitlines()
    assert lines[0] == "Session store: /s/sessions.json"
    assert lines[1] == "Sessions listed: 1"
    shown = " ".join(lines[-1].split())
    assert shown == "16m ago 0.1k/200k (0%) mock-1 agent:main:main"


def test_active_minutes_are_asked_of_the_gateway(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.list"] = {**LISTED, "sessions": []}
    assert json.loads(cli("sessions", "--active", "90", "--json").stdout)["activeMinutes"] == 90
    assert gateway.params_of("sessions.list")[0]["activeMinutes"] == 90


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", ""])
def test_active_must_be_a_positive_integer(cli: Cli, gateway: FakeGateway, value: str) -> None:
    done = cli("sessions", f"--active={value}")
    assert (done.returncode, done.stderr) == (1, "--active must be a positive integer (minutes)\n")


@pytest.mark.parametrize("words", [("health",), ("system", "presence")])
def test_a_query_starts_no_gateway_and_says_how_to(cli: Cli, state: Path, words: tuple[str, ...]) -> None:
    done = cli(*words, OPENCLAW_GATEWAY_PORT="1")
    assert done.returncode == 1
    assert "No Gateway is running" in done.stderr
    assert "openclaw gateway start" in done.stderr
    for name in ("Gateway target: ws://127.0.0.1:1", "Source: ", "Config: ", "Bind: "):
        assert f"\n{name}" in done.stderr
    assert os.listdir(state) == []


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"totalTokens": 120, "contextTokens": 200_000}, "0.1k/200k (0%)"),
        ({"totalTokens": 164_000, "contextTokens": 200_000}, "164k/200k (82%)"),
        ({"totalTokens": None, "contextTokens": 200_000}, "?/200k (?%)"),
        ({"totalTokens": 5000}, "5.0k/?"),
        ({}, "?/?"),
    ],
)
def test_unknown_tokens_are_shown_as_unknown(row: dict[str, Any], text: str) -> None:
    assert token_text(row) == text


def test_flags_stand_in_their_order() -> None:
    row = {
        "sessionId": "i",
        "abortedLastRun": True,
        "systemSent": True,
        "groupActivation": "always",
        "responseUsage": "full",
        "elevatedLevel": "on",
        "reasoningLevel": "on",
        "verboseLevel": "on",
        "thinkingLevel": "low",
    }
    shown = "think:low verbose:on reasoning:on elev:on usage:full activation:always system aborted id:i"
    assert " ".join(flags(row)) == shown


def test_keys_are_whole_and_an_ordinary_table_fits_80_columns() -> None:
    key = "agent:main:signal:direct:+15550001"
    rows = [
        {"key": key, "model": "claude-sonnet-4-5-20250929", "totalTokens": 164_000, "contextTokens": 200_000, "age": 1},
        {"key": f"{key}:thread:{'9' * 40}", "model": "mock"},
    ]
    lines = table(rows).splitlines()
    assert lines[1].endswith(f" {key}") and lines[2].endswith(f"{'9' * 40}")
    assert max(map(len, lines[:2])) <= 80


def test_control_codes_in_a_key_never_reach_the_terminal(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.list"] = {**LISTED, "sessions": [{**ROW, "key": "agent:\x1b]0;evil\x07x"}]}
    assert "\x1b" not in cli("sessions").stdout


HEALTH = {
    "ok": True,
    "ts": 1,
    "channels": {"signal": {"configured": True, "running": True, "connected": False, "lastError": "gone"}},
    "channelOrder": ["signal"],
    "channelLabels": {"signal": "Signal"},
    "defaultAgentId": "main",
    "agents": [
        {
            "agentId": "main",
            "isDefault": True,
            "sessions": {"path": "/s", "count": 1, "recent": [{"key": "k", "updatedAt": 5, "age": 7}]},
        }
    ],
    "sessions": {"path": "/s", "count": 1, "recent": [{"key": "k", "updatedAt": 5, "age": 7}]},
}
STATUS = {
    "runtimeVersion": "9.9",
    "heartbeat": {"defaultAgentId": "main", "agents": [{"agentId": "main", "enabled": False, "every": "0m"}]},
    "channelSummary": [],
    "queuedSystemEvents": [],
    "sessions": {
        "paths": ["/s/sessions.json"],
        "count": 1,
        "defaults": {"model": "mock-1", "contextTokens": 200_000},
        "recent": [{**ROW, "age": 960_000}],
        "byAgent": [],
    },
}


def test_status_says_what_the_agent_is_told_next(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies |= {"status": {**STATUS, "queuedSystemEvents": ["the kettle boils"]}, "health": HEALTH}
    assert "Events        1 for the next turn" in cli("status").stdout


def test_status_json_is_the_gateways_status_and_its_surroundings(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies |= {"status": STATUS, "health": HEALTH}
    report = json.loads(cli("status", "--json").stdout)
    assert report["sessions"] == STATUS["sessions"]
    assert report["gateway"]["reachable"] is True
    assert report["gateway"]["self"]["version"] == "9.9"
    assert report["gateway"]["url"] == f"ws://127.0.0.1:{gateway.port}"
    assert report["agents"]["totalSessions"] == 1
    assert report["agents"]["agents"][0]["lastActiveAgeMs"] == 7
    assert "health" not in report
    assert json.loads(cli("status", "--json", "--deep").stdout)["health"] == HEALTH


def test_status_text_names_the_session_store_and_the_same_tokens_as_sessions(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies |= {"status": STATUS, "health": HEALTH, "sessions.list": LISTED}
    page = cli("status").stdout
    assert "/s/sessions.json" in page
    assert "Signal: not connected (gone)" in page
    assert cli("sessions").stdout.splitlines()[-1] in page


def test_health_fails_when_the_gateway_is_not_well(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["health"] = HEALTH
    done = cli("health")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Gateway: ok")
    gateway.replies["health"] = {**HEALTH, "ok": False}
    assert cli("health", "--json").returncode == 1


def test_a_wrong_token_is_explained(cli: Cli, gateway: FakeGateway) -> None:
    done = cli("health", OPENCLAW_GATEWAY_TOKEN="stale")
    assert done.returncode == 1
    assert "OPENCLAW_GATEWAY_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_explicit_address_needs_explicit_credentials(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["health"] = HEALTH
    url = f"ws://127.0.0.1:{gateway.port}"
    done = cli("health", "--url", url)
    assert done.returncode == 1
    assert done.stderr.startswith("gateway url override requires explicit credentials\n")
    assert cli("health", "--url", url, "--token", SECRET).returncode == 0


def test_agents_list_marks_the_default(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["agents.list"] = {"defaultId": "a", "agents": [{"id": "a", "name": "Ann"}, {"id": "b"}]}
    assert cli("agents", "list").stdout == "a (Ann)  default\nb\n"
    assert [row["isDefault"] for row in json.loads(cli("agents", "--json").stdout)] == [True, False]
    gateway.replies["agents.list"]["agents"][1] |= {"bindings": 1, "routes": ["signal:work group:g1"]}
    assert cli("agents", "list", "--bindings").stdout == "a (Ann)  default\nb\n  gets signal:work group:g1\n"


def test_models_list_marks_the_default(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.list"] = LISTED
    gateway.replies["models.list"] = {
        "models": [
            {"id": "mock-1", "name": "Mock", "provider": "mock", "contextWindow": 200_000, "input": ["text"]},
            {"id": "big/one", "name": "Big", "provider": "other", "reasoning": True},
        ]
    }
    report = json.loads(cli("models", "list", "--json").stdout)
    assert [(row["key"], row["tags"]) for row in report["models"]] == [
        ("mock/mock-1", ["default"]),
        ("other/big/one", ["reasoning"]),
    ]
    assert cli("models", "list", "--plain", "--provider", "other").stdout == "other/big/one\n"


def test_gateway_call_prints_the_payload(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.list"] = LISTED
    done = cli("gateway", "call", "sessions.list", "--params", '{"limit": 5}')
    head, _, body = done.stdout.partition("\n")
    assert head == "Gateway call: sessions.list"
    assert json.loads(body) == LISTED
    assert json.loads(cli("gateway", "call", "sessions.list", "--json").stdout) == LISTED


@pytest.mark.parametrize("params", ["{", "[]", "1"])
def test_gateway_call_wants_an_object(cli: Cli, gateway: FakeGateway, params: str) -> None:
    done = cli("gateway", "call", "status", "--params", params)
    assert done.returncode == 2
    assert "--params" in done.stderr


def test_devices_are_listed_approved_and_rotated(cli: Cli, gateway: FakeGateway) -> None:
    pending = {"requestId": "r1", "deviceId": "d1", "platform": "linux", "role": "operator", "ts": 1}
    gateway.replies |= {
        "device.pair.list": {"pending": [pending], "paired": []},
        "device.pair.approve": {"requestId": "r1", "device": {"deviceId": "d1"}},
        "device.token.rotate": {"deviceId": "d1", "role": "operator", "token": "new"},
        "device.token.revoke": {"deviceId": "d1", "role": "operator", "revokedAtMs": 1},
        "device.pair.reject": {"requestId": "r1"},
    }
    assert "r1" in cli("devices").stdout
    assert cli("devices", "approve", "r").stdout == "Approved d1.\n"
    assert gateway.params_of("device.pair.approve") == [{"requestId": "r1"}], "the beginning of an id will do"
    assert "new" in cli("devices", "rotate", "--device", "d1", "--role", "operator").stdout
    assert cli("devices", "revoke", "--device", "d1", "--role", "operator").returncode == 0
    assert cli("devices", "reject", "r1", "--json").returncode == 0


def test_a_request_that_is_not_there_says_where_to_look(cli: Cli, gateway: FakeGateway) -> None:
    def refuse(_: object) -> None:
        raise Refusal("unknown requestId")

    gateway.replies |= {"device.pair.list": {"pending": [], "paired": []}, "device.pair.approve": refuse}
    done = cli("devices", "approve", "nope")
    assert done.returncode == 1 and "unknown requestId. `openclaw devices list` shows" in done.stderr
    assert json.loads(cli("devices", "approve", "nope", "--json").stdout)["error"]["code"] == "INVALID_REQUEST"


def test_dashboard_opens_an_address_that_signs_in_once_and_holds_no_secret(
    cli: Cli, gateway: FakeGateway, tmp_path: Path
) -> None:
    gateway.replies["signIn.create"] = {"ticket": "t1", "expiresInMs": 120_000}
    report = json.loads(cli("dashboard", "--json").stdout)
    clean = f"http://127.0.0.1:{gateway.port}/"
    assert (report["url"], report["signInUrl"]) == (clean, f"{clean}#ticket=t1")
    assert gateway.params_of("signIn.create") == [{"secret": SECRET}]
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {tmp_path}/opened\n')
    browser.chmod(0o700)
    done = cli("dashboard", BROWSER=str(browser))
    assert done.stdout == f"Opened in your browser: {clean}\n"
    assert (tmp_path / "opened").read_text() == f"{clean}#ticket=t1"
    printed = cli("dashboard", "--no-open", BROWSER=str(browser))
    assert f"{clean}#ticket=t1" in printed.stdout and SECRET not in printed.stdout + printed.stderr + done.stdout


LINE = json.dumps({"time": "T", "level": "warn", "subsystem": "gateway/ws", "message": "slow \x1b[31m"})


def test_logs_are_readable_lines_or_json(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["logs.tail"] = {"file": "/l", "cursor": 9, "size": 9, "lines": [LINE, "not json"]}
    assert cli("logs").stdout == "Log file: /l\nT warn  [gateway/ws] slow [31m\nnot json\n"
    rows = [json.loads(line) for line in cli("logs", "--json").stdout.splitlines()]
    assert [row["type"] for row in rows] == ["meta", "log", "raw"]
    assert rows[1]["subsystem"] == "gateway/ws"


def test_following_logs_goes_on_from_the_cursor_until_interrupted(cli: Cli, gateway: FakeGateway) -> None:
    import signal

    pages = [
        {"file": "/l", "cursor": 1, "size": 1, "lines": ["one"]},
        {"file": "/l", "cursor": 2, "size": 2, "lines": ["two"]},
    ]
    gateway.replies["logs.tail"] = lambda _: pages.pop(0) if pages else {"cursor": 2, "lines": []}
    process = cli.start("logs", "-f", "--interval", "50")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["Log file: /l\n", "one\n", "two\n"]
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert [params.get("cursor") for params in gateway.params_of("logs.tail")][:2] == [None, 1]


def test_logs_of_a_gateway_that_broke_are_read_from_the_file(cli: Cli, state: Path) -> None:
    (state / "logs").mkdir()
    (state / "logs" / "openclaw-2026-01-01.log").write_text("old\n")
    (state / "logs" / "openclaw-2026-01-02.log").write_text(f"{LINE}\n")
    done = cli("logs", OPENCLAW_GATEWAY_PORT="1")
    assert done.returncode == 0
    assert "slow" in done.stdout
    assert "No Gateway is running" in done.stderr


def test_log_lines_of_the_original_are_understood() -> None:
    raw = json.dumps({"0": '{"subsystem":"gateway/ws"}', "1": "hello", "_meta": {"logLevelName": "INFO", "date": "D"}})
    assert parse_line(raw) == {"time": "D", "level": "info", "message": "hello", "subsystem": "gateway/ws"}
    assert parse_line("[1]") is None
