"""``openclaw cron`` and ``openclaw system``: what the flags ask of the Gateway, and what is printed."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from .conftest import Cli
from .fake_gateway import FakeGateway

JOB = {
    "id": "d597ad21-0c43-4c0e-9a51-6a1c8a2f6f10",
    "name": "Brief\x1b[31m",
    "enabled": True,
    "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Madrid"},
    "sessionTarget": "isolated",
    "state": {"nextRunAtMs": 1_794_808_800_000, "lastStatus": "ok"},
}


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (
            ("--every", "10m", "--message", "look"),
            {
                "schedule": {"kind": "every", "everyMs": 600_000},
                "payload": {"kind": "agentTurn", "message": "look"},
                "sessionTarget": "isolated",
                "wakeMode": "now",
                "delivery": {"mode": "announce"},
                "enabled": True,
            },
        ),
        (
            ("--cron", "0 7 * * *", "--tz", "UTC", "--message", "x", "--no-deliver", "--disabled", "--model", "m/x"),
            {
                "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "UTC"},
                "payload": {"kind": "agentTurn", "message": "x", "model": "m/x"},
                "sessionTarget": "isolated",
                "wakeMode": "now",
                "delivery": {"mode": "none"},
                "enabled": False,
            },
        ),
        (
            ("--at", "2026-12-01T08:00:00Z", "--system-event", "hi", "--wake", "next-heartbeat", "--keep-after-run"),
            {
                "schedule": {"kind": "at", "at": "2026-12-01T08:00:00Z"},
                "payload": {"kind": "systemEvent", "text": "hi"},
                "sessionTarget": "main",
                "wakeMode": "next-heartbeat",
                "deleteAfterRun": False,
                "enabled": True,
            },
        ),
    ],
)
def test_add_asks_what_its_flags_say(
    cli: Cli, gateway: FakeGateway, flags: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    gateway.replies |= {"cron.add": JOB, "cron.status": {"timezone": None}}
    assert cli("cron", "add", *flags).returncode == 0
    assert gateway.params_of("cron.add") == [wanted]


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--every", "10m"),
        ("--message", "x"),
        ("--every", "10m", "--at", "20m", "--message", "x"),
        ("--every", "10m", "--message", "x", "--system-event", "y"),
        ("--every", "soon", "--message", "x"),
        ("--every", "10m", "--tz", "UTC", "--message", "x"),
        ("--every", "10m", "--system-event", "x", "--to", "bob"),
    ],
)
def test_flags_that_do_not_go_together_ask_nothing(cli: Cli, gateway: FakeGateway, flags: tuple[str, ...]) -> None:
    assert cli("cron", "add", *flags).returncode == 2
    assert gateway.params_of("cron.add") == []


def test_the_list_shows_when_jobs_are_due_without_control_codes(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["cron.list"] = {"jobs": [JOB]}
    lines = cli("cron", "list").stdout.splitlines()
    assert lines[0].split() == ["ID", "Name", "Schedule", "Next", "Last", "Status", "Target", "Agent"]
    assert str(JOB["id"]) in lines[1] and "cron 0 7 * * * @ Europe/Madrid" in lines[1] and "\x1b" not in lines[1]
    assert json.loads(cli("cron", "list", "--json").stdout) == {"jobs": [JOB]}


def test_times_are_those_of_the_person_not_of_this_computer(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["cron.list"] = {"jobs": [JOB], "timezone": "Asia/Tokyo"}
    gateway.replies |= {
        "cron.update": JOB,
        "cron.status": {"timezone": "Asia/Tokyo", "nextWakeAtMs": 1_794_808_800_000},
    }
    gateway.replies["cron.runs"] = {"entries": [{"runAtMs": 1_794_808_800_000}], "timezone": "Asia/Tokyo"}
    for words in (["list"], ["enable", "x"], ["status"], ["runs", "--id", "x"]):
        assert "2026-11-16 15:00" in cli("cron", *words, TZ="America/Lima").stdout, words


@pytest.mark.parametrize(("words", "enabled"), [(("enable",), True), (("disable",), False)])
def test_a_job_is_switched(cli: Cli, gateway: FakeGateway, words: tuple[str, ...], enabled: bool) -> None:
    gateway.replies |= {"cron.update": JOB, "cron.status": {"timezone": "Asia/Tokyo"}}
    assert cli("cron", *words, "x").returncode == 0
    assert gateway.params_of("cron.update") == [{"id": "x", "patch": {"enabled": enabled}}]


def test_the_last_heartbeat_is_told(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["last-heartbeat"] = {"ts": 0, "status": "sent", "channel": "signal", "preview": "Disk\nfull"}
    shown = cli("system", "heartbeat").stdout
    assert "sent, signal" in shown and "Disk full" in shown


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"status": "skipped", "reason": "no-target", "preview": "Tea"},
            "kept in the conversation; no chat channel to send it to",
        ),
        ({"status": "skipped", "reason": "empty-heartbeat-file"}, "HEARTBEAT.md asks for nothing"),
        ({"status": "ok-token", "reason": "interval"}, "nothing needed you"),
        ({"status": "failed", "reason": "529 Overloaded"}, "failed, 529 Overloaded"),
    ],
)
def test_a_heartbeat_that_sent_nothing_says_why(
    cli: Cli, gateway: FakeGateway, event: dict[str, str], words: str
) -> None:
    gateway.replies["last-heartbeat"] = {"ts": 0, **event}
    assert words in cli("system", "heartbeat").stdout


def test_a_person_says_how_long_to_wait(cli: Cli, gateway: FakeGateway) -> None:
    held = threading.Event()
    gateway.replies["cron.run"] = lambda params: held.wait(30)
    done = cli("cron", "run", "d597ad21", "--timeout", "200")
    held.set()
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "gateway timeout after 200ms")
