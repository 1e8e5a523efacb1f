"""Transcripts searched, exported, imported and compressed through a real Gateway and the command line."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import RequestFailed, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply


async def talk(client: Any, gateway: InProcessGateway, models: ModelServer) -> None:
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "list.txt").write_text("turnips and marrows\n")
    models.queue(Reply(calls=[Call("read", {"path": "list.txt"})]), Reply(text="The garden is planted."))
    await client.chat("What is in the green shed?")


async def test_everything_said_is_found_with_where_and_who(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await talk(client, gateway, models)
        for query, role in (("green shed", "user"), ("planted", "assistant"), ("turnips", "toolResult")):
            (found,) = (await client.call("sessions.search", {"query": query, "role": role}))["results"]
            assert (found["sessionKey"], found["role"]) == ("agent:main:main", role)
            line = next(row for row in gateway.transcript(found["sessionId"]) if row.get("id") == found["entryId"])
            assert line["timestamp"] == found["timestamp"] and query.split()[0] in found["snippet"]
        answer = await client.call("sessions.search", {"query": '"shed green"'})
        assert answer["results"] == [] and answer["complete"] is True
        models.reply("marzipan")
        await client.chat("more")
        assert len((await client.call("sessions.search", {"query": "marzipan"}))["results"]) == 1
        shown = await gateway.command("sessions", "search", "turnips")
        assert "agent:main:main" in shown.stdout and "toolResult" in shown.stdout, shown


@pytest.mark.files_only("files are compressed; PostgreSQL compresses long values itself")
async def test_a_compressed_session_lists_searches_shows_and_goes_on(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await talk(client, gateway, models)
        (path,) = gateway.sessions_dir().glob("*.jsonl")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        content = path.read_bytes()
        done = await gateway.command("sessions", "archive", "--json")
        # One, unless the Gateway has just done it by itself.
        assert json.loads(done.stdout)["compressed"] in (0, 1), done
        assert not path.exists()
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "garden is planted" in json.dumps(history)
        assert len((await client.call("sessions.list", {}))["sessions"]) == 1
        assert len((await client.call("sessions.search", {"query": "turnips"}))["results"]) >= 1
        assert not path.exists()
        models.reply("and on")
        assert text_of(await client.chat("go on")) == "and on"
        assert path.read_bytes().startswith(content)
        assert "green shed" in json.dumps(models.requests[-1].body["messages"])


@pytest.mark.parametrize("raw", [True, False], ids=["as a transcript", "as messages"])
async def test_an_exported_conversation_can_be_brought_in_and_continued(
    gateway: InProcessGateway, models: ModelServer, tmp_path: Path, raw: bool
) -> None:
    file = tmp_path / "export.jsonl"
    async with gateway.client() as client:
        await talk(client, gateway, models)
        wrote = await gateway.command("sessions", "export", "--output", str(file), *(["--raw"] if raw else []))
        assert wrote.returncode == 0 and file.stat().st_mode & 0o777 == 0o600, wrote
        done = await gateway.command("sessions", "import", str(file), "--key", "copy", "--json")
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["key"] == "agent:main:copy"
        models.reply("as before")
        assert text_of(await client.chat("and now?", session_key="copy")) == "as before"
        seen = json.dumps(models.requests[-1].body["messages"])
        assert "green shed" in seen and "turnips" in seen
        again = await gateway.command("sessions", "import", str(file), "--key", "copy")
        assert again.returncode != 0 and "exists already" in again.stderr


async def test_what_is_no_export_is_refused(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for lines in ([], ["nonsense"], ['{"type":"message"}'], ['{"role":"system","content":"x"}'], ["[1]"]):
            with pytest.raises(RequestFailed, match="not imported"):
                await client.call("sessions.import", {"key": "bad", "lines": lines})
        assert (await client.call("sessions.list", {}))["sessions"] == []


async def test_notes_are_found_by_the_agent_and_from_the_command_line(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    notes = gateway.state_dir / "workspace" / "memory" / "2026-01-31.md"
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text("- the shed was painted green\n")
    async with gateway.client() as client:
        models.queue(Reply(calls=[Call("memory_search", {"query": "what colour is the shed"})]), Reply(text="Green."))
        assert text_of(await client.chat("Which colour?")) == "Green."
        assert "memory/2026-01-31.md#L1" in json.dumps(models.requests[-1].body["messages"])
        found = await gateway.command("memory", "search", "painted", "shed")
        assert "memory/2026-01-31.md#L1-L1" in found.stdout, found
        indexed = await gateway.command("memory", "index", "--force", "--json")
        assert json.loads(indexed.stdout)["files"] >= 1, indexed
        # By words alone, or by meaning as well where the memory extra is installed.
        told = (await gateway.command("memory")).stdout
        assert "Search: on, by keyword" in told or "Search: on, by hybrid" in told


@pytest.mark.files_only("files are compressed; PostgreSQL compresses long values itself")
async def test_old_transcripts_are_compressed_without_being_asked_for(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("an old story")
        [row] = (await client.call("sessions.list", {}))["sessions"]
    await gateway.stop()
    plain = gateway.sessions_dir() / f"{row['sessionId']}.jsonl"
    months_ago = plain.stat().st_mtime - 100 * 86_400
    os.utime(plain, (months_ago, months_ago))
    await gateway.start()
    async with asyncio.timeout(60):
        while plain.exists():
            await asyncio.sleep(0.05)
    async with gateway.client() as client:
        shown = await client.call("chat.history", {"sessionKey": "main"})
    assert "an old story" in json.dumps(shown)
