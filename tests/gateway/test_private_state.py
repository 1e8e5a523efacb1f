"""A Gateway in its own process keeps its files, its environment and its modules to itself."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, model_config
from tests.support.model_script import Call, Reply
from tests.support.model_server import ModelServer

PR_CAPBSET_DROP, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 24, 19, 21, 38


@pytest.fixture
async def models() -> object:
    async with ModelServer() as server:
        yield server


def wide(state: Path) -> list[str]:
    """Everything outside the agent's own files that others could open."""
    return [
        f"{path} {path.lstat().st_mode & 0o777:o}"
        for path in (state, *state.rglob("*"))
        if not path.is_symlink() and path.lstat().st_mode & 0o077 and state / "workspace" not in path.parents
    ]


async def test_whatever_the_mask_and_the_modes_were_everything_is_private_and_that_is_said(
    tmp_path: Path, models: ModelServer
) -> None:
    state = tmp_path / "state"
    process = GatewayProcess(state, model_config(models.base_url, models.api_key), {"SOME_API_KEY": "canary-env"})
    (state / "agents" / "main" / "sessions").mkdir(parents=True)
    (state / "agents" / "main" / "sessions" / "sessions.json").write_text("{}")
    for path in (state, *state.rglob("*")):
        path.chmod(0o777)
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("uvloop", "aiohttp", "msgspec", "sitecustomize", "usercustomize"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (planted / ".env").write_text("OPENCLAW_GATEWAY_TOKEN=planted\n")

    def before() -> None:
        os.umask(0)
        # Root may look into every process, so it goes without those rights here.
        for capability in (CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        os.chdir(planted)

    process.before_exec = before
    async with process as gateway, gateway.client() as client:
        look = "umask; cat /proc/$PPID/comm /proc/$PPID/environ"
        models.queue(Reply(calls=[Call("exec", {"command": look})]), Reply(text="done"))
        await client.chat("hello")
        assert wide(state) == []
        assert "others" in gateway.errors() or "other users" in gateway.errors()
        assert str(state / "openclaw.json") in gateway.errors()
        seen = str(models.requests[-1].body["messages"][-1])
        assert "0022" in seen
        assert "environ: Permission denied" in seen
        assert "canary-env" not in seen
    assert not (tmp_path / "ran").exists()
    assert (state / "openclaw.json").stat().st_mode & 0o777 == 0o600
    assert wide(state) == []
