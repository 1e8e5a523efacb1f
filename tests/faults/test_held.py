"""A message that was received and waits for more words, while the disk or its stored form fails: known, tried again
while the Gateway runs, and never in the way of a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config
from tests.support.ircv3_server import Ircv3Server
from tests.support.model_server import ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US) as daemon:
        yield daemon


@pytest.fixture
def gateway(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> ForkedGateway:
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
    config = model_config(
        models.base_url, models.api_key, channels={"signal": section}, messages={"inbound": {"debounceMs": 300}}
    )
    return ForkedGateway(tmp_path / "state", config)


def plan(gateway: ForkedGateway, *faults: dict[str, Any]) -> None:
    gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(faults)}


async def held(client: WireClient) -> list[dict[str, Any]]:
    return [row for row in (await client.call("messages.list", {}))["messages"] if row["state"] == "held"]


async def until_held(client: WireClient, reason: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            for row in await held(client):
                if reason in row["reason"]:
                    return row
            await asyncio.sleep(0.02)


async def test_what_cannot_be_handed_on_is_known_and_tried_again_while_the_gateway_runs(
    gateway: ForkedGateway, signal: SignalDaemon, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    plan(gateway, {"at": "write", "path": "*/sessions.journal", "do": "ENOSPC", "while": str(full)})
    async with gateway, gateway.client() as client:
        await signal.connected()
        full.touch()
        envelope = await signal.say("hello [[reply:Hi Ann]]", sender=ANN)
        row = await until_held(client, "No space left")
        assert row["text"] == "hello [[reply:Hi Ann]]" and row["channel"] == "signal"
        told = await client.call("messages.why", {"ref": str(envelope["timestamp"])})
        assert "could not be handed on yet and is tried again" in told["story"][0]
        full.unlink()
        await signal.called("send")
        assert [call["message"] for call in signal.of("send")] == ["Hi Ann"]
        assert await held(client) == []


async def test_a_full_disk_and_a_damaged_held_message_do_not_keep_the_gateway_from_starting(
    gateway: ForkedGateway, signal: SignalDaemon, tmp_path: Path, models: ModelServer
) -> None:
    full = tmp_path / "full"
    fault = {"at": "write", "path": "*/sessions.journal", "do": "ENOSPC", "while": str(full)}
    plan(gateway, fault)
    async with gateway:
        async with gateway.client() as client:
            await signal.connected()
            full.touch()
            await signal.say("one [[reply:first]]", sender=ANN)
            await until_held(client, "No space left")
            gateway.kill()
        database = gateway.state_dir / "ledger.db"
        with contextlib.closing(sqlite3.connect(database)) as ledger:
            lost = f"signal|default|signal:{ANN}|1700000000001"
            ledger.execute("INSERT INTO held (key, message) VALUES (?, ?)", (lost, b'{"channel": "sig\xff'))
            ledger.commit()
        signal.disconnect()
        await gateway.start()
        async with gateway.client() as client:
            await signal.connected()
            await until_held(client, "No space left")
            full.unlink()
            await signal.called("send", 2)
            told = await client.call("messages.why", {"ref": "1700000000001"})
            assert told["message"]["state"] == "failed"
        sent = [call["message"] for call in signal.of("send")]
        assert "first" in sent
        (notice,) = [text for text in sent if "could not be accepted" in text]
        assert "Send it again" in notice
    assert len(models.requests) == 1


async def test_a_held_message_that_kills_every_start_is_given_up_in_the_end(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    plan(gateway, {"at": "accept.before", "do": "kill"})
    await gateway.start()
    await signal.connected()
    await signal.say("one [[reply:first]]", sender=ANN)
    for _ in range(8):
        assert gateway._process is not None
        await asyncio.wait_for(asyncio.to_thread(gateway._process.wait), 60)
        signal.disconnect()
        signal.forget_events()
        try:
            await gateway.start()
        except AssertionError:
            continue
        with contextlib.suppress(TimeoutError):
            await signal.until(lambda: bool(signal.of("send")), 3)
            break
    assert "could not be accepted" in signal.of("send")[0]["message"]
    assert len(models.requests) == 0
    gateway.kill()


async def test_a_voice_message_is_transcribed_after_a_kill_and_answered_once(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    code = (
        f"import os, time\nopen({str(begun)!r}, 'w').close()\n"
        f"for _ in range(6000):\n    if os.path.exists({str(go)!r}): break\n    time.sleep(0.01)\nprint('what I said')"
    )
    way = {"type": "cli", "command": sys.executable, "args": ["-c", code]}
    path = gateway.state_dir / "openclaw.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tools": {"media": {"audio": {"models": [way]}}}}))
    signal.attachments["v1"] = b"OggS sound"
    models.queue(Reply("Heard."))
    async with gateway:
        await signal.connected()
        await signal.say("", sender=ANN, attachments=[{"id": "v1", "contentType": "audio/ogg", "size": 10}])
        async with asyncio.timeout(60):
            while not begun.exists():
                await asyncio.sleep(0.01)
        gateway.kill()
        signal.disconnect()
        signal.forget_events()
        go.touch()
        await gateway.start()
        calls = await signal.called("send")
    assert [call["message"] for call in calls] == ["Heard."]
    assert len(models.requests) == 1 and b"what I said" in models.requests[0].raw


async def test_lines_of_irc_are_on_disk_while_earlier_ones_cannot_be_worked_off(
    tmp_path: Path, models: ModelServer
) -> None:
    """IRC tells nothing twice, so a kill while ten lines wait must lose none of them."""
    full = tmp_path / "full"
    async with Ircv3Server() as irc:
        section = {"host": "127.0.0.1", "port": irc.port, "tls": False, "nick": "claw", "channels": ["#room"]}
        config = model_config(
            models.base_url, models.api_key, channels={"irc": {**section, "allowFrom": ["ann!u@h", "bob!u@h"]}}
        )
        gateway = ForkedGateway(tmp_path / "irc", config)
        plan(gateway, {"at": "write", "path": "*/sessions.journal", "do": "ENOSPC", "while": str(full)})
        async with gateway:
            await irc.joined()
            full.touch()
            for number in range(10):
                who = "ann" if number % 2 else "bob"
                irc.tell(f"@msgid=in-{number} :{who}!u@h PRIVMSG claw :line {number}")
            async with gateway.client() as client, asyncio.timeout(60):
                while len(await held(client)) < 10:
                    await asyncio.sleep(0.02)
            gateway.kill()
            irc.disconnect()
            full.unlink()
            await gateway.start()
            async with gateway.client() as client, asyncio.timeout(60):
                while len(rows := (await client.call("messages.list", {}))["messages"]) < 10 or await held(client):
                    await asyncio.sleep(0.02)
    assert sorted(row["text"].rpartition("line ")[2] for row in rows) == [str(number) for number in range(10)]
