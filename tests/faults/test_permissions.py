"""Files that belong to somebody else or may not be written to: waited for like a full disk, and named."""

from __future__ import annotations

import asyncio
import ctypes
import sys
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, WireClient, model_config, text_of
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="takes a privilege of root away as Linux does it")
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def obeying() -> None:
    """In the new process: permissions count for root as well."""
    libc = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.fixture
def gateway(tmp_path: Path, models: ModelServer) -> GatewayProcess:
    made = GatewayProcess(tmp_path / "state", model_config(models.base_url, models.api_key))
    made.before_exec = obeying
    return made


async def why(client: WireClient, run_id: str) -> str:
    return "\n".join((await client.call("messages.why", {"ref": run_id}))["story"])


async def test_a_folder_that_may_not_be_written_to_is_waited_for_and_nothing_is_lost(gateway: GatewayProcess) -> None:
    async with gateway, gateway.client() as client:
        await client.chat("a [[reply:done a]]")
        gateway.sessions_dir().chmod(0o500)
        params = {"sessionKey": "other", "message": "b [[reply:done b]]", "idempotencyKey": "b"}
        await client.call("chat.send", params)
        async with asyncio.timeout(60):
            while "It waits for the disk now: Permission denied" not in await why(client, "b"):
                await asyncio.sleep(0.05)
        gateway.sessions_dir().chmod(0o700)
        assert text_of(await client.ending("b")) == "done b"
        assert "It had to wait" in await why(client, "b")


async def test_a_state_directory_that_may_not_be_written_to_is_named_at_the_start(gateway: GatewayProcess) -> None:
    gateway.state_dir.chmod(0o500)
    try:
        with pytest.raises(AssertionError, match=r"cannot write to its disk: Permission denied \(.*make the state"):
            await gateway.start()
        assert await gateway.stop() == 1
        assert "Traceback" not in gateway.errors()
    finally:
        gateway.state_dir.chmod(0o700)
