"""A disk that is full, read-only or failing: refused clearly, others go on, nothing is lost when it takes writes again.

With the fault switch, so that each kind of write fails alone; and on a small disk that is really full.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.clock import until
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config, named, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"

PIXEL = base64.b64encode(
    base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
).decode()
WORDS = {"ENOSPC": "No space left on device", "EIO": "Input/output error", "EROFS": "Read-only file system"}


class Trouble:
    """Raised and ended by the test while the Gateway runs."""

    def __init__(self, root: Path) -> None:
        self.file = root / "trouble"

    def begin(self) -> None:
        self.file.touch()

    def end(self) -> None:
        self.file.unlink()

    def env(self, path: str, error: str, at: str = "write") -> dict[str, str]:
        plan = [{"at": at, "path": path, "do": error, "while": str(self.file)}]
        return {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(plan)}


@pytest.fixture
def trouble(tmp_path: Path) -> Trouble:
    return Trouble(tmp_path)


@asynccontextmanager
async def serving(
    root: Path, models: ModelServer, env: dict[str, str]
) -> AsyncIterator[tuple[InProcessGateway, WireClient]]:
    gateway = InProcessGateway(root / "state", model_config(models.base_url, models.api_key), env)
    async with gateway, gateway.client() as client:
        yield gateway, client


@asynccontextmanager
async def serving_process(
    root: Path, models: ModelServer, env: dict[str, str]
) -> AsyncIterator[tuple[ForkedGateway, WireClient]]:
    """For tests that kill the Gateway or read what it prints."""
    gateway = ForkedGateway(root / "state", model_config(models.base_url, models.api_key), env)
    async with gateway, gateway.client() as client:
        yield gateway, client


def message(key: str, session: str = "main", **more: Any) -> dict[str, Any]:
    return {**named(session), "message": f"{key} [[reply:done {key}]]", "idempotencyKey": key, **more}


async def history(client: WireClient, session: str = "main") -> list[str]:
    messages = (await client.call("chat.history", {"sessionKey": session}))["messages"]
    return [block["text"].split(" [[")[0] for one in messages for block in one["content"] if block["type"] == "text"]


@pytest.mark.parametrize(
    ("path", "error"), [(path, error) for path in ("*/ledger.db", "*/sessions.journal") for error in WORDS]
)
async def test_a_message_that_cannot_be_written_down_is_not_acknowledged(
    tmp_path: Path, models: ModelServer, trouble: Trouble, path: str, error: str
) -> None:
    async with serving(tmp_path, models, trouble.env(path, error)) as (_, client):
        assert text_of(await client.chat("a [[reply:done a]]", run_id="a")) == "done a"
        trouble.begin()
        with pytest.raises(RequestFailed) as refused:
            await client.call("chat.send", message("b"))
        assert refused.value.code == "UNAVAILABLE"
        assert WORDS[error] in str(refused.value)
        assert await history(client) == ["a", "done a"]
        assert (await client.call("sessions.list"))["count"] == 1
        trouble.end()
        assert (await client.call("chat.send", message("b")))["status"] == "started"
        await client.ending("b")
        assert await history(client) == ["a", "done a", "b", "done b"]


@pytest.mark.parametrize("path", ["*/main/sessions/*.jsonl", "*/sessions.journal"])
async def test_what_a_failed_sync_lost_is_written_again(
    tmp_path: Path, models: ModelServer, trouble: Trouble, path: str
) -> None:
    """The kernel drops the pages that it could not write, and the next sync succeeds without them."""
    async with serving_process(tmp_path, models, trouble.env(path, "lost pages", "sync")) as (gateway, client):
        await client.chat("a [[reply:done a]]", run_id="a")
        trouble.begin()
        sent = asyncio.create_task(client.call("chat.send", message("b", "agent:main:new")))
        name = path.rpartition("/")[2]
        await until(lambda: any(bytes(8) in file.read_bytes() for file in gateway.state_dir.rglob(name)))
        trouble.end()
        try:
            await sent
        except RequestFailed as refused:
            assert refused.code == "UNAVAILABLE"
            await client.call("chat.send", message("b", "agent:main:new"))
        await client.ending("b")
        gateway.kill()
    async with serving_process(tmp_path, models, {}) as (gateway, client):
        assert await history(client) == ["a", "done a"]
        assert await history(client, "agent:main:new") == ["b", "done b"]
        assert not any(bytes(8) in file.read_bytes() for file in gateway.state_dir.rglob(name))


@pytest.mark.parametrize("error", WORDS)
async def test_a_new_session_that_cannot_be_made_durable_is_refused_and_works_later(
    tmp_path: Path, models: ModelServer, trouble: Trouble, error: str
) -> None:
    async with serving_process(tmp_path, models, trouble.env("*/sessions.journal", error, "sync")) as (gateway, client):
        trouble.begin()
        with pytest.raises(RequestFailed, match=WORDS[error]):
            await client.call("chat.send", message("a", "agent:main:new"))
        trouble.end()
        assert (await client.call("chat.send", message("a", "agent:main:new")))["status"] == "started"
        await client.ending("a")
        gateway.kill()
        await gateway.start()
        async with gateway.client() as again:
            assert await history(again, "agent:main:new") == ["a", "done a"]


@pytest.mark.parametrize("error", WORDS)
async def test_a_picture_that_cannot_be_stored_is_refused_with_its_message(
    tmp_path: Path, models: ModelServer, trouble: Trouble, error: str
) -> None:
    async with serving(tmp_path, models, trouble.env("*/blobs/*", error)) as (_, client):
        trouble.begin()
        picture = [{"type": "image", "mimeType": "image/png", "content": PIXEL}]
        with pytest.raises(RequestFailed, match=WORDS[error]):
            await client.call("chat.send", message("a", attachments=picture))
        assert text_of(await client.chat("b [[reply:done b]]")) == "done b"
        trouble.end()
        await client.call("chat.send", message("a", attachments=picture))
        assert text_of(await client.ending("a")) == "done a"


@pytest.mark.parametrize("at", ["write", "sync"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
async def test_a_run_whose_transcript_cannot_be_written_waits_and_goes_on(
    tmp_path: Path, models: ModelServer, trouble: Trouble, error: str, at: str
) -> None:
    held = asyncio.Event()
    models.queue(Reply("the answer", hold=held, hold_after=1))
    async with serving(tmp_path, models, trouble.env("*.jsonl", error, at)) as (_, client):
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(1)
        trouble.begin()
        held.set()
        waiting = await client.call("agent.wait", {"runId": "a", "timeoutMs": 300})
        assert waiting["status"] == "timeout"
        trouble.end()
        assert text_of(await client.ending("a")) == "the answer"
        assert await history(client) == ["a", "the answer"]
    assert len(models.requests) == 1


@pytest.mark.parametrize(("kill", "error"), [(True, "ENOSPC"), (True, "EIO"), (False, "EROFS"), (False, "ENOSPC")])
async def test_a_message_whose_end_cannot_be_written_ends_after_the_next_start(
    tmp_path: Path, models: ModelServer, trouble: Trouble, kill: bool, error: str
) -> None:
    held = asyncio.Event()
    models.queue(Reply("the answer", hold=held, hold_after=1))
    async with serving_process(tmp_path, models, trouble.env("*/ledger.db", error)) as (gateway, client):
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(1)
        trouble.begin()
        held.set()
        waiting = await client.call("agent.wait", {"runId": "a", "timeoutMs": 300})
        assert waiting["status"] == "timeout"
        if kill:
            gateway.kill()
        else:
            assert await gateway.stop() == 0
        trouble.end()
        await gateway.start()
        async with gateway.client() as again:
            assert (await again.call("agent.wait", {"runId": "a", "timeoutMs": 50_000}))["status"] == "ok"
            assert await history(again) == ["a", "the answer"]
    assert len(models.requests) == 1


async def test_the_end_of_a_tool_call_is_noted_when_the_disk_takes_it(
    tmp_path: Path, models: ModelServer, trouble: Trouble
) -> None:
    models.queue(Reply("", calls=[Call("exec", {"command": f"touch {trouble.file}"})]), Reply("done"))
    async with serving(tmp_path, models, trouble.env("*/ledger.db", "ENOSPC")) as (_, client):
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(2)  # The second is not held up: only the ledger is in trouble.
        trouble.end()
        assert text_of(await client.ending("a")) == "done"
        async with asyncio.timeout(60):
            while (await client.call("messages.get", {"runId": "a"}))["toolCalls"][0]["finishedAt"] is None:
                await asyncio.sleep(0.05)


async def test_stop_ends_a_run_that_waits_for_the_disk(tmp_path: Path, models: ModelServer, trouble: Trouble) -> None:
    held = asyncio.Event()
    models.queue(Reply("never seen", hold=held, hold_after=1))
    async with serving(tmp_path, models, trouble.env("*.jsonl", "ENOSPC")) as (_, client):
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(1)
        trouble.begin()
        held.set()
        await client.call("agent.wait", {"runId": "a", "timeoutMs": 300})
        await client.call("chat.abort", {"sessionKey": "main", "runId": "a"})
        assert (await client.ending("a"))["state"] == "aborted"
        trouble.end()
        # The model sees both questions; the first was never answered.
        assert text_of(await client.chat("b [[reply:done b]]")).endswith("done b")


async def test_other_sessions_are_served_while_one_waits(tmp_path: Path, models: ModelServer, trouble: Trouble) -> None:
    store = tmp_path / "state" / "agents" / "main" / "sessions" / "sessions.json"
    store.parent.mkdir(parents=True)
    store.write_text(json.dumps({"agent:main:one": {"sessionId": "one", "updatedAt": int(time.time() * 1000)}}))
    async with serving(tmp_path, models, trouble.env("*/one.jsonl", "EIO")) as (_, client):
        trouble.begin()
        await client.call("chat.send", message("a", "agent:main:one"))
        for number in range(3):
            assert text_of(await client.chat("x [[reply:done]]", f"agent:main:other{number}")) == "done"
        assert (await client.call("agent.wait", {"runId": "a", "timeoutMs": 1}))["status"] == "timeout"
        trouble.end()
        assert text_of(await client.ending("a")) == "done a"
        assert await history(client, "agent:main:one") == ["a", "done a"]


@pytest.mark.parametrize("error", WORDS)
async def test_sessions_json_catches_up_when_space_returns(
    tmp_path: Path, models: ModelServer, trouble: Trouble, error: str
) -> None:
    async with serving_process(tmp_path, models, trouble.env("*/sessions.json", error)) as (gateway, client):
        trouble.begin()
        await client.chat("a [[reply:done a]]", "agent:main:new")
        store = gateway.sessions_dir() / "sessions.json"
        assert "agent:main:new" not in (store.read_text() if store.exists() else "")
        gateway.kill()
        await gateway.start()
        async with gateway.client() as again:
            assert [row["key"] for row in (await again.call("sessions.list"))["sessions"]] == ["agent:main:new"]
            trouble.end()
            for _ in range(1200):  # It is folded once a second.
                if store.exists() and "agent:main:new" in store.read_text():
                    break
                await asyncio.sleep(0.05)
            assert "agent:main:new" in store.read_text()
            assert await history(again, "agent:main:new") == ["a", "done a"]


@pytest.mark.parametrize("error", WORDS)
@pytest.mark.parametrize("path", ["*/last-event", "*/ledger.db"])
async def test_a_channel_goes_on_when_the_disk_does(
    tmp_path: Path, models: ModelServer, trouble: Trouble, path: str, error: str
) -> None:
    """What people write while the disk takes nothing is offered again until it does; a bookmark is not worth a stop."""
    async with SignalDaemon(US) as signal:
        section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
        config = model_config(models.base_url, models.api_key, channels={"signal": section})
        async with InProcessGateway(tmp_path / "state", config, trouble.env(path, error)):
            await signal.connected()
            trouble.begin()
            await signal.say("a [[reply:done a]]", sender=ANN)
            if path == "*/last-event":
                await signal.called("send")
            trouble.end()
            await signal.say("b [[reply:done b]]", sender=ANN)
            await signal.called("send", 2)
        assert [call["message"] for call in signal.of("send")] == ["done a", "done b"]
        assert signal.last_event_ids == [None], "the stream was not lost over it"


# A disk that is really full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill(place: Path) -> Path:
    """Takes every last byte."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return ballast


async def test_a_really_full_disk_refuses_new_messages_and_loses_none_when_space_returns(
    small_disk: Path, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("words " * 50, hold=held, hold_after=1))
    async with serving_process(small_disk, models, {}) as (gateway, client):
        await client.call("chat.send", message("a"))
        await models.wait_for_requests(1)
        ballast = fill(small_disk)
        held.set()
        refused = 0
        for number in range(20):
            try:
                await client.call("chat.send", message(f"b{number}", "agent:main:other"))
            except RequestFailed as failure:
                assert "No space left" in str(failure)
                refused += 1
        assert refused
        assert (await client.call("health"))["ok"]
        os.unlink(ballast)
        assert text_of(await client.ending("a")).startswith("words words")
        for number in range(20):
            await client.call("chat.send", message(f"b{number}", "agent:main:other"))
        for number in range(20):
            assert (await client.call("agent.wait", {"runId": f"b{number}", "timeoutMs": 50_000}))["status"] == "ok"
        texts = "\n".join(await history(client, "agent:main:other"))
        assert all(f"[message_id: b{number}]" in texts or f"b{number}" in texts for number in range(20))
        gateway.kill()
        await gateway.start()
        async with gateway.client() as again:
            assert "\n".join(await history(again, "agent:main:other")) == texts


async def test_settings_that_cannot_be_written_stay_as_they_were(small_disk: Path, models: ModelServer) -> None:
    async with serving(small_disk, models, {}) as (gateway, client):
        path = gateway.state_dir / "openclaw.json"
        ballast, before = fill(small_disk), path.read_bytes()
        change = {"raw": json.dumps({"agents": {"defaults": {"userTimezone": "Europe/Oslo"}}})}
        base = (await client.call("config.get"))["hash"]
        with pytest.raises(RequestFailed, match="No space left"):
            await client.call("config.patch", {**change, "baseHash": base})
        assert path.read_bytes() == before
        os.unlink(ballast)
        await client.call("config.patch", {**change, "baseHash": base})
        assert b"Europe/Oslo" in path.read_bytes()


async def test_a_gateway_starts_on_a_full_disk_and_still_shows_what_it_has(
    small_disk: Path, models: ModelServer
) -> None:
    async with serving_process(small_disk, models, {}) as (gateway, client):
        await client.chat("a [[reply:done a]]")
        gateway.kill()
        ballast = fill(small_disk)
        await gateway.start()
        async with gateway.client() as again:
            assert await history(again) == ["a", "done a"]
            os.unlink(ballast)
            assert text_of(await again.chat("b [[reply:done b]]")) == "done b"


async def test_a_start_on_a_disk_that_filled_up_after_an_orderly_stop_says_so_in_one_sentence(
    small_disk: Path, models: ModelServer
) -> None:
    """It serves what it has, or it ends with one sentence. When there is space again, all is there."""
    async with serving_process(small_disk, models, {}) as (gateway, client):
        await client.chat("a [[reply:done a]]")
        assert await gateway.stop() == 0
        ballast = fill(small_disk)
        try:
            await gateway.start()
            async with gateway.client() as again:
                assert await history(again) == ["a", "done a"]
            assert await gateway.stop() == 0
        except AssertionError:
            said = gateway.errors()
            assert "No space left on device" in said and "free some space" in said and "Traceback" not in said
        os.unlink(ballast)
        await gateway.start()
        async with gateway.client() as again:
            assert await history(again) == ["a", "done a"]
            assert text_of(await again.chat("b [[reply:done b]]")) == "done b"


async def test_a_read_only_disk_is_named_when_the_gateway_cannot_start(small_disk: Path, models: ModelServer) -> None:
    async with serving_process(small_disk, models, {}) as (gateway, client):
        await client.chat("a [[reply:done a]]")
        gateway.kill()
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        command = [sys.executable, "-m", "openclaw", "gateway", "run", "--port", "0"]
        refused = await asyncio.to_thread(
            subprocess.run, command, env=gateway.env, capture_output=True, text=True, timeout=30, check=False
        )
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        assert refused.returncode == 1
        assert "Read-only file system" in refused.stderr and "make the state directory writable" in refused.stderr
        assert "Traceback" not in refused.stderr
        await gateway.start()
        async with gateway.client() as again:
            assert await history(again) == ["a", "done a"]


async def probe(gateway: InProcessGateway) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/readyz") as response:
        return response.status, await response.json()


async def test_a_gateway_that_cannot_write_is_not_ready(small_disk: Path, models: ModelServer) -> None:
    async with serving(small_disk, models, {}) as (gateway, client):
        assert await probe(gateway) == (200, {"ok": True})
        ballast = fill(small_disk)
        async with asyncio.timeout(60):
            while (said := await probe(gateway))[0] == 200:
                await asyncio.sleep(0.05)
        problem = "the Gateway cannot write to its disk: No space left on device; free some space"
        assert said == (503, {"ok": False, "problem": problem})
        assert (await client.call("health", {"probe": True}))["problem"] == problem
        os.unlink(ballast)
        async with asyncio.timeout(60):
            while (await probe(gateway))[0] != 200:
                await asyncio.sleep(0.05)
        assert (await client.call("health", {"probe": True}))["ok"]
        assert not (gateway.state_dir / ".write-check").exists()


async def test_nothing_but_sentences_is_printed_while_the_log_cannot_be_written(
    small_disk: Path, tmp_path_factory: pytest.TempPathFactory, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = tmp_path_factory.mktemp("elsewhere") / "gateway.err"
    monkeypatch.setattr(ForkedGateway, "errors_path", printed)
    async with serving_process(small_disk, models, {}) as (gateway, client):
        await client.chat("a [[reply:done a]]")
        ballast = fill(small_disk)
        for _ in range(10):  # More lines than fit into the last page of the file.
            with pytest.raises(RequestFailed, match="No space left"):
                await client.call("chat.send", message("b"))
        # Lines are written a moment later, into the file first.
        await until(lambda: printed.read_text().count("res ✗ chat.send") == 10)
        os.unlink(ballast)
        await client.call("chat.send", message("b"))
        assert text_of(await client.ending("b")) == "done b"
        # Something to log, so that the file can tell of what it missed.
        with pytest.raises(RequestFailed):
            await client.call("chat.send", {})
        await gateway.stop()
        assert "Traceback" not in printed.read_text()
        (log,) = (gateway.state_dir / "logs").glob("openclaw-*.log")
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        assert any("could not be written to this file" in line["message"] for line in lines)
