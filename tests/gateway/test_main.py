"""One Gateway per state directory."""

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw.gateway.main import AlreadyRunning, GatewayLock

HOLDER = """
import sys
from openclaw.gateway.main import GatewayLock
lock = GatewayLock.acquire(sys.argv[1], {})
lock.describe(started_at=1794766939494, host="127.0.0.1", port=18789, config_path="/c.json")
print("held", flush=True)
sys.stdin.read()
"""


def holder(state: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_a_second_start_says_who_holds_it_and_since_when(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(AlreadyRunning) as caught:
            GatewayLock.acquire(str(tmp_path), {})
        text = str(caught.value)
        assert f"pid {process.pid}" in text
        assert "since 2026-11-15 18:22:19 UTC" in text
        assert "port 18789" in text
    finally:
        process.kill()
        process.communicate()


def test_a_killed_gateway_leaves_no_stale_lock(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    lock = GatewayLock.acquire(str(tmp_path), {})
    lock.describe(started_at=1, host="h", port=2, config_path="c")
    assert json.loads(lock.path.read_text())["port"] == 2
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600
    lock.release()
    GatewayLock.acquire(str(tmp_path), {}).release()


def test_several_gateways_may_be_allowed_on_purpose(tmp_path: Path) -> None:
    first = GatewayLock.acquire(str(tmp_path), {})
    first.describe(started_at=1, host="h", port=1, config_path="c")
    second = GatewayLock.acquire(str(tmp_path), {"OPENCLAW_ALLOW_MULTI_GATEWAY": "1"})
    second.describe(started_at=1, host="h", port=2, config_path="c")
    assert json.loads(first.path.read_text())["port"] == 1, "commands find the Gateway that holds the lock"
    second.release()
    with pytest.raises(AlreadyRunning, match="port 1"):
        GatewayLock.acquire(str(tmp_path), {})
    first.release()
    GatewayLock.acquire(str(tmp_path), {}).release()
