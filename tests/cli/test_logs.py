"""``openclaw logs`` tells a person what happens to each message."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from openclaw.cli.logs import Wanted
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

WAIT_S = 60


async def test_each_message_failure_and_outcome_is_one_line_live_and_over_a_restart(tmp_path: Path) -> None:
    async with ModelServer() as server:
        gateway = InProcessGateway(tmp_path / "state", model_config(server.base_url, server.api_key))
        async with gateway:
            await _say(gateway, "hello [[reply:secret words]]")
            await _say(gateway, 'x [[tool:exec {"command": "exit 3"}]] [[next]] [[reply:done]]')
            command = [sys.executable, "-m", "openclaw", "logs", "-f", "--messages", "--interval", "50"]
            follower = subprocess.Popen(
                command, env=gateway.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                assert re.search(r"message 1 for agent:main:main from \w+", await _line(follower, "message 1 for"))
                answered = await _line(follower, "message 1 answered in")
                assert "mock/mock-1" in answered and "tokens in" in answered and "secret words" not in answered
                failed = await _line(follower, "message 2: the tool exec failed")
                assert "exited with code 3" in failed and "{" not in failed
                assert "1 tool call" in await _line(follower, "message 2 answered")
                await gateway.stop()
                await gateway.start()
                await _say(gateway, "x [[error:400 bad thing]]")
                assert " error " in await _line(follower, "message 3 failed after")
            finally:
                follower.kill()
                follower.communicate()
            shown = await gateway.command("logs", "--level", "error", "--json", "--session", "main")
            lines = [json.loads(line) for line in shown.stdout.splitlines()]
            assert [(one["type"], one.get("fields", {}).get("messageId")) for one in lines] == [
                ("meta", None),
                ("log", 3),
            ]
            assert lines[1]["fields"]["state"] == "failed"


async def _say(gateway: InProcessGateway, text: str) -> None:
    async with gateway.client() as client:
        run = f"run-{len(text)}"
        await client.call("agent", {"message": text, "sessionKey": "main", "idempotencyKey": run, "deliver": False})
        await client.call("agent.wait", {"runId": run, "timeoutMs": WAIT_S * 1000})


async def _line(process: subprocess.Popen[str], text: str) -> str:
    """The next line of the process that has this text."""
    assert process.stdout is not None
    for _ in range(200):
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), WAIT_S)
        if text in line:
            return line
        assert line, f"ended before {text!r}"
    raise AssertionError(f"never shown: {text}")


RECORD = {
    "level": "warn",
    "subsystem": "channels/telegram",
    "message": "Slow answer",
    "fields": {"sessionKey": "agent:main:work", "messageId": 4},
}


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ({}, True),
        ({"level": "warn"}, True),
        ({"level": "error"}, False),
        ({"subsystem": "channels"}, True),
        ({"subsystem": "channels/tele"}, False),
        ({"session": "work"}, True),
        ({"session": "agent:main:work"}, True),
        ({"session": "ork"}, False),
        ({"grep": "SLOW"}, True),
        ({"grep": "quick"}, False),
        ({"messages": True}, True),
    ],
)
def test_filters_choose_lines(flags: dict[str, Any], shown: bool) -> None:
    given = {"level": "trace", "messages": False, "subsystem": None, "session": None, "grep": None, **flags}
    assert (RECORD in Wanted(Namespace(**given))) is shown


def test_lines_about_no_message_are_left_out_of_the_messages() -> None:
    wanted = Wanted(Namespace(level="trace", messages=True, subsystem=None, session=None, grep=None))
    assert {**RECORD, "fields": {}} not in wanted
