"""A backup of a Gateway at work: conversations are renamed meanwhile, and people write on a channel."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openclaw.storage.files.store_file import entries_in
from openclaw.storage.files.transcript_index import plain_blocks
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"
LONG_AGO = 1_000_000_000
CONVERSATIONS = [f"s{number}" for number in range(12)]
ENDS = {"answered", "expired", "superseded"}


def config(models: ModelServer, signal: SignalDaemon) -> dict[str, Any]:
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
    return model_config(
        models.base_url,
        models.api_key,
        channels={"signal": section},
        messages={"queue": {"mode": "followup", "debounceMs": 0, "cap": 1000}},
    )


class Life:
    """What happens to a Gateway while it is backed up."""

    def __init__(self, gateway: ForkedGateway, client: WireClient, signal: SignalDaemon) -> None:
        self.gateway, self.client, self.signal = gateway, client, signal
        self.said = 0
        self.over = asyncio.Event()

    async def say(self) -> None:
        self.said += 1
        await self.signal.say(f"m{self.said} [[reply:done m{self.said}]]", sender=ANN)

    async def write_on_the_channel(self) -> None:
        while not self.over.is_set() and self.said < 300:
            await self.say()
            await self.signal.called("send", self.said)

    async def rename_conversations(self) -> None:
        """Compress them all, resume some, delete one, again and again."""
        round_number = 0
        while not self.over.is_set():
            for path in self.gateway.sessions_dir().glob("*.jsonl"):
                os.utime(path, (LONG_AGO, LONG_AGO))
            await self.client.call("sessions.archive", {"afterDays": 1})
            for key in CONVERSATIONS[round_number % 3 : 9 : 3]:
                await self.client.chat(f"again {round_number}", session_key=key)
            if round_number < 3:
                await self.client.call("sessions.delete", {"key": CONVERSATIONS[9 + round_number]})
            round_number += 1

    async def until_backed_up(self, folder: Path, times: int) -> None:
        tasks = [asyncio.create_task(self.write_on_the_channel()), asyncio.create_task(self.rename_conversations())]
        try:
            for _ in range(times):
                made = await self.gateway.command("backup", "create", "--to", str(folder), "--json")
                assert made.returncode == 0, made.stdout + made.stderr
                checked = await self.gateway.command("backup", "verify", "--to", str(folder), "--json")
                assert checked.returncode == 0, checked.stdout + checked.stderr
        finally:
            self.over.set()
            await asyncio.gather(*tasks)


def check_conversations(sessions: Path) -> None:
    """Every session of the store has its transcript, with what was said first."""
    entries = entries_in({path.name: path.read_bytes() for path in sessions.glob("sessions.*")})
    for key in [f"agent:main:{name}" for name in CONVERSATIONS]:
        if key not in entries:
            continue  # It was deleted.
        session_id = entries[key]["sessionId"]
        files = [path for path in sessions.glob(f"{session_id}.jsonl*") if path.suffix in (".jsonl", ".zst")]
        assert files, f"{key} has no transcript"
        assert f"hello from {key.rpartition(':')[2]}" in b"".join(plain_blocks(files[0])).decode()
    assert {f"agent:main:{name}" for name in CONVERSATIONS[:9]} <= entries.keys()


def messages_in(state: Path) -> set[int]:
    """The numbers of the messages that the ledger knows."""
    with closing(sqlite3.connect(state / "ledger.db")) as ledger:
        bodies = [
            bytes(body).decode() for (body,) in ledger.execute("SELECT body FROM messages WHERE source = 'signal'")
        ]
    return {int(found[1]) for body in bodies if (found := re.search(r"m(\d+) \[\[reply", body))}


@pytest.mark.files_only("PostgreSQL has its own backups")
async def test_a_backup_of_a_gateway_at_work_has_every_conversation_and_asks_again_for_what_came_meanwhile(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "backups"
    async with ModelServer() as models, SignalDaemon(US) as signal:
        async with ForkedGateway(tmp_path / "state", config(models, signal)) as gateway, gateway.client() as client:
            await signal.connected()
            for key in CONVERSATIONS:
                await client.chat(f"hello from {key}", session_key=key)
            life = Life(gateway, client, signal)
            await life.say()
            await signal.called("send", 1)
            await life.until_backed_up(folder, times=3)
        await signal.deserted()
        other = ForkedGateway(tmp_path / "other", None)
        listed = json.loads((await other.command("backup", "list", "--to", str(folder), "--json")).stdout)["backups"]
        assert len(listed) == 3
        for backup in listed:
            done = await other.command("backup", "restore", backup["id"], "--force", "--to", str(folder), "--json")
            assert done.returncode == 0, done.stderr
            check_conversations(other.sessions_dir())
            known = messages_in(other.state_dir)
            bookmark = (other.state_dir / "channels" / "signal" / "default" / "last-event").read_text()
            assert set(range(1, int(bookmark.rpartition("-")[2]) + 1)) <= known, "a message would never be asked for"
        before = len(signal.of("send"))
        async with other, other.client() as client:
            await signal.connected()
            ours: list[dict[str, Any]] = []
            async with asyncio.timeout(60):
                while len(ours) < life.said or any(row["state"] not in ENDS for row in ours):
                    await asyncio.sleep(0.05)
                    rows = (await client.call("messages.list", {"limit": 500, "sessionKey": "main"}))["messages"]
                    ours = [row for row in rows if row["source"] == "signal"]
            late = {f"done m{number}" for number in range(1, life.said + 1) if number not in known}
            # The transcripts are newer than the ledger: what they answer already is not run again.
            in_transcripts = {f"done {row['text'].split()[0]}" for row in ours if row["state"] == "superseded"}
            await signal.until(
                lambda: late - in_transcripts <= {call["message"] for call in signal.of("send")[before:]}
            )
        tags = Counter(row["text"].split()[0] for row in ours)
        assert tags == Counter(f"m{number}" for number in range(1, life.said + 1)), "one was lost or run twice"
        again = Counter(call["message"] for call in signal.of("send")[before:])
        assert again.keys() <= late and set(again.values()) <= {1}, "none is answered twice"
