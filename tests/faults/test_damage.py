"""Files cut, flipped, padded and beheaded, seen through the running product: listed, read, and talked to again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply


def line(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def sound_transcript() -> bytes:
    """Two turns, one with a tool call, in few bytes so that every cut can be tried."""
    at = {"timestamp": "2026-01-05T10:00:00.000Z"}
    call = {"type": "toolCall", "id": "t1", "name": "read", "arguments": {"path": "x"}}
    usage = {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 2}
    model = {"api": "anthropic-messages", "provider": "mock", "model": "mock-1", "usage": usage, "timestamp": 1}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "first é"}], "timestamp": 1},
        {"role": "assistant", "content": [call], "stopReason": "toolUse", **model},
        {"role": "toolResult", "toolCallId": "t1", "toolName": "read", "content": [{"type": "text", "text": "file"}],
         "isError": False, "timestamp": 1},
        {"role": "assistant", "content": [{"type": "text", "text": "second"}], "stopReason": "stop", **model},
    ]  # fmt: skip
    whole = line(type="session", version=3, id="s", cwd="/", **at)
    parent = None
    for number, message in enumerate(messages):
        whole += line(type="message", id=f"e{number}", parentId=parent, **at, message=message)
        parent = f"e{number}"
    return whole


SOUND = sound_transcript()


def plant(gateway: InProcessGateway, files: dict[str, bytes]) -> None:
    """One session per damaged transcript, all in the same Gateway."""
    folder = gateway.sessions_dir()
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / f"{name}.jsonl").write_bytes(data)
    store = {f"agent:main:{name}": {"sessionId": name, "updatedAt": int(time.time() * 1000)} for name in files}
    (folder / "sessions.json").write_text(json.dumps(store))


async def texts(client: WireClient, name: str) -> list[str]:
    answer = await client.call("chat.history", {"sessionKey": f"agent:main:{name}"})
    return [
        block.get("text") or block.get("name", "")
        for message in answer["messages"]
        for block in message.get("content", [])  # A flipped bit may have renamed it.
    ]


async def check_next_turn(gateway: InProcessGateway, client: WireClient, name: str, before: bytes) -> None:
    seen = await texts(client, name)
    assert text_of(await client.chat("again [[reply:yes]]", f"agent:main:{name}")) == "yes"
    after = await texts(client, name)
    # A call whose result was lost is answered for the model only; people see what is there.
    assert after[: len(seen)] == seen
    assert after[-1] == "yes" and after[-2].startswith("again")
    kept = (gateway.sessions_dir() / f"{name}.jsonl").read_bytes()
    assert kept.startswith(before), "bytes that were there have changed"


@pytest.fixture
def gateway(tmp_path: Path, models: ModelServer) -> InProcessGateway:
    return InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))


@pytest.fixture
def process(tmp_path: Path, models: ModelServer) -> ForkedGateway:
    """For tests that kill the Gateway."""
    return ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key))


async def test_a_transcript_cut_at_any_byte_is_listed_read_and_continued(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    whole = ["first é", "read", "file", "second"]
    ends = [place for place, byte in enumerate(SOUND) if byte == 10][1:]
    # Every cut near the end of a line, and some of those within one: tests/storage tries them all without a Gateway.
    near = {end + off for end in [ends[0], *ends] for off in range(-4, 5) if 0 < end + off <= len(SOUND)}
    files = {f"cut{size}": SOUND[:size] for size in sorted({*range(1, len(SOUND) + 1, 5), *near})}
    plant(gateway, files)
    async with gateway, gateway.client() as client:
        assert (await client.call("sessions.list", {"limit": 5000}))["count"] == len(files)
        for name, data in files.items():
            # A line is whole with its last brace; the newline may be missing.
            complete = sum(1 for end in ends if len(data) >= end)
            assert await texts(client, name) == whole[:complete], name
        for name in list(files)[::9]:
            await check_next_turn(gateway, client, name, files[name])
    assert all(request.error is None for request in models.requests)


async def test_flipped_bytes_nul_tails_and_lost_headers_cost_at_most_their_line(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    chance = random.Random(5)
    files = {f"nul{size}": SOUND + b"\0" * size for size in (1, 7, 4096)}
    files |= {f"nulline{size}": SOUND + b"\0" * size + b"\n" for size in (1, 4096)}
    files["headless"] = SOUND.split(b"\n", 1)[1]
    files["badheader"] = b"{nonsense\n" + SOUND.split(b"\n", 1)[1]
    files["notjson"] = SOUND + b"just words\n"
    files["twice"] = SOUND + SOUND.splitlines(keepends=True)[-1]
    for number in range(60):
        damaged = bytearray(SOUND)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        files[f"flip{number}"] = bytes(damaged)
    plant(gateway, files)
    async with gateway, gateway.client() as client:
        assert (await client.call("sessions.list", {"limit": 5000}))["count"] == len(files)
        for name in files:
            assert len(await texts(client, name)) <= 5
        for name in [name for name in files if not name.startswith(("flip", "twice"))]:
            assert await texts(client, name) == ["first é", "read", "file", "second"], name
        for name in [*list(files)[:9], *list(files)[9::2]]:
            await check_next_turn(gateway, client, name, files[name])
    assert all(request.error is None for request in models.requests)


def cut_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def nul(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def nul_tail(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0" * 512)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 0x40
    path.write_bytes(bytes(data))


async def test_a_damaged_sessions_json_does_not_take_the_sessions_along(
    gateway: InProcessGateway, tmp_path: Path
) -> None:
    names = ["agent:main:one", "agent:main:two"]
    for key in names:
        async with gateway, gateway.client() as client:
            await client.chat(f"{key} [[reply:done]]", key)
    sound = tmp_path / "sound"
    gateway.state_dir.rename(sound)
    for damage in (cut_half, nul, flip, nul_tail, Path.unlink):
        shutil.copytree(sound, gateway.state_dir)
        damage(gateway.sessions_dir() / "sessions.json")
        async with gateway, gateway.client() as client:
            listed = {row["key"] for row in (await client.call("sessions.list"))["sessions"]}
            assert listed == set(names), damage
            for key in listed:
                assert (await client.call("chat.history", {"sessionKey": key}))["messages"]
            assert text_of(await client.chat("more [[reply:yes]]", "agent:main:one")) == "yes"
        shutil.rmtree(gateway.state_dir)


async def test_one_damaged_message_in_the_ledger_ends_alone(process: ForkedGateway, models: ModelServer) -> None:
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0), Reply("never", hold=asyncio.Event(), hold_after=0))
    async with process:
        async with process.client() as client:
            for key in ("a", "b"):
                params = {"sessionKey": key, "message": f"{key} [[reply:done]]", "idempotencyKey": key}
                await client.call("chat.send", params)
            await models.wait_for_requests(2)
        process.kill()
        with contextlib.closing(sqlite3.connect(process.state_dir / "ledger.db")) as database:
            database.execute("UPDATE messages SET body = X'FF00FF' WHERE run_id = 'a'")
            database.commit()
        await process.start()
        async with process.client() as client:
            ended = await client.call("agent.wait", {"runId": "a", "timeoutMs": 50_000})
            assert (ended["status"], "damaged" in ended["error"]) == ("error", True)
            assert (await client.call("agent.wait", {"runId": "b", "timeoutMs": 50_000}))["status"] == "ok"
            assert text_of(await client.chat("more [[reply:yes]]", "agent:main:a")).endswith("yes")


async def test_a_journal_cut_anywhere_loses_at_most_its_last_change(process: ForkedGateway, tmp_path: Path) -> None:
    journal = process.sessions_dir() / "sessions.journal"
    plan = [{"at": "write", "path": "*/sessions.json", "do": "ENOSPC"}]
    process.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(plan)}
    async with process:
        async with process.client() as client:
            for name in ("one", "two", "three"):
                await client.chat(f"{name} [[reply:done]]", f"agent:main:{name}")
        process.kill()
    parts = sorted(process.sessions_dir().glob("sessions.journal*"))
    kept = {part: part.read_bytes() for part in parts}
    total = b"".join(kept[part] for part in (journal.with_name("sessions.journal.folding"), journal) if part in kept)
    state = tmp_path / "state"
    for cut in (0, len(total) // 2, len(total) - 1):
        shutil.rmtree(state / "agents" / "main" / "sessions" / "archive", ignore_errors=True)
        for part in sorted(process.sessions_dir().glob("sessions.j*")):
            part.unlink()
        journal.write_bytes(total[:cut])
        whole = [json.loads(one)[1] for one in total[:cut].split(b"\n")[:-1]]
        process.env.pop("OPENCLAW_FAULT_PLAN", None)
        async with process, process.client() as client:
            listed = {row["key"] for row in (await client.call("sessions.list"))["sessions"]}
            assert {key for key in whole if key} == listed
            assert text_of(await client.chat("more [[reply:yes]]", "agent:main:one")) == "yes"
        with contextlib.suppress(FileNotFoundError):
            (process.sessions_dir() / "sessions.json").unlink()


async def shown(client: WireClient, key: str = "main") -> list[str]:
    messages = (await client.call("chat.history", {"sessionKey": key}))["messages"]
    return [block["text"] for message in messages for block in message["content"] if block["type"] == "text"]


async def test_what_was_deleted_comes_back_and_the_owner_is_told(process: ForkedGateway) -> None:
    """The ledger with its log still there, the session store and the settings, all deleted after a kill."""
    async with process:
        async with process.client() as client:
            await client.chat("one [[reply:first]]", run_id="a")
            await client.chat("two [[reply:other]]", "agent:main:other", run_id="b")
        process.kill()
        for path in (process.state_dir / "ledger.db", process.sessions_dir() / "sessions.json"):
            path.unlink(missing_ok=True)
        settings = process.state_dir / "openclaw.json"
        before = settings.read_bytes()
        settings.unlink()
        await process.start()
        async with process.client() as client:
            assert {row["key"] for row in (await client.call("sessions.list"))["sessions"]} == {
                "agent:main:main",
                "agent:main:other",
            }
            for run in ("a", "b"):
                assert (await client.call("messages.get", {"runId": run}))["state"] == "answered"
            async with asyncio.timeout(60):
                while len(texts := await shown(client)) < 3:
                    await asyncio.sleep(0.05)
            assert texts[:2] == ["one [[reply:first]]", "first"]
            assert "ledger.db was gone. It was restored" in texts[2] and "openclaw.json was gone" in texts[2]
        assert settings.read_bytes() == before
        (log,) = (process.state_dir / "logs").glob("openclaw-*.log")
        assert "was gone. It was restored" in log.read_text()


async def test_a_ledger_with_a_bad_page_is_replaced_at_the_start_and_what_was_read_goes_on(
    process: ForkedGateway, models: ModelServer
) -> None:
    async with process:
        async with process.client() as client:
            for number in range(30):
                await client.chat(f"{number} [[reply:done]]" + "x" * 900, run_id=f"run-{number}")
        await process.stop()
        with (process.state_dir / "ledger.db").open("r+b") as file:
            pages = file.seek(0, 2) // 4096
            file.seek(pages // 2 * 4096)
            file.write(b"\xa5" * 4096)
        await process.start()
        async with process.client() as client:
            assert text_of(await client.chat("more [[reply:yes]]")) == "yes"
            rows = (await client.call("messages.list", {"limit": 100}))["messages"]
            assert len(rows) >= 20
            assert any("ledger.db was damaged" in text and "taken over" in text for text in await shown(client))
        assert list(process.state_dir.glob("ledger.db.damaged-*"))


async def test_broken_text_in_a_transcript_cuts_no_client_off_and_why_tells_of_the_damage(
    gateway: InProcessGateway,
) -> None:
    broken = SOUND.replace(b'"text":"second"', b'"text":"sec\xff\xfeond"')
    lines = SOUND.splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"message"', b'"mess\x01ge"', 1)
    plant(gateway, {"broken": broken, "gap": b"".join(lines)})
    async with gateway, gateway.client() as client:
        assert (await texts(client, "broken"))[-1] == "sec\ufffd\ufffdond"
        assert await texts(client, "gap") == [
            "first é",
            "The file of this conversation is damaged here. The readable part is shown; a message may be missing.",
            "file",
            "second",
        ]
        told = (await client.call("messages.why", {"ref": "agent:main:gap"}))["story"]
        assert any("line 3 is damaged" in sentence for sentence in told), told
        assert text_of(await client.chat("again [[reply:yes]]", "agent:main:gap", run_id="a")) == "yes"
        told = (await client.call("messages.why", {"ref": "a"}))["story"]
        assert any("line 3 is damaged" in sentence for sentence in told), told
