"""A state folder somebody else made or edits: what is in it is found, used and kept."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.services import Services
from openclaw.storage.files.newer_state import ARCHIVE
from tests.storage.files.newer_state import add_session, conversation, database
from tests.support import stored
from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply

TOPIC = "agent:main:telegram:group:-100:topic:42"


def transcript_lines(session_id: str, question: str, answer: str) -> str:
    stamp = "2026-01-01T00:00:00.000Z"
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": session_id, "timestamp": stamp, "cwd": "/x"},
        {"type": "message", "id": "a1", "parentId": None, "timestamp": stamp,
         "message": {"role": "user", "content": [{"type": "text", "text": question}], "timestamp": 1}},
        {"type": "message", "id": "a2", "parentId": "a1", "timestamp": stamp,
         "message": {"role": "assistant", "content": [{"type": "text", "text": answer}], "stopReason": "stop",
                     "timestamp": 2}},
    ]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def made_elsewhere(gateway: InProcessGateway, now: int) -> None:
    lines = transcript_lines("t", "asked in the topic", "said in the topic")
    stored.put_transcript(gateway, "t-topic-42.jsonl", lines.encode())
    entries: dict[str, Any] = {
        "agent:main:main": {"sessionId": "m", "updatedAt": now, "lastChannel": "telegram", "lastTo": "telegram:1"},
        TOPIC: {"sessionId": "t", "updatedAt": now - 1, "chatType": "group", "provider": "telegram", "room": "#r"},
        "agent:main:cron:job1": {"sessionId": "c", "updatedAt": now - 2},
        "hook:0f": {"sessionId": "h", "updatedAt": now - 3},
        "agent:main:bare": {"sessionId": "b", "updatedAt": now - 4},
        "global": {"sessionId": "g", "updatedAt": now},
        "unknown": {"sessionId": "u", "updatedAt": now},
    }
    stored.put_sessions(gateway, entries)


async def run_cli(gateway: InProcessGateway, *args: str) -> str:
    done = await gateway.command(*args)
    done.check_returncode()
    return done.stdout


async def test_sessions_made_elsewhere_are_listed_with_their_channel_and_reserved_keys_never(
    tmp_path: Path, models: ModelServer
) -> None:
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    made_elsewhere(gateway, int(time.time() * 1000))
    async with gateway, gateway.client() as client:
        rows = (await client.call("sessions.list", {}))["sessions"]
        channels = {row["key"]: row["channel"] for row in rows}
        assert channels == {
            "agent:main:main": "telegram",
            TOPIC: "telegram",
            "agent:main:cron:job1": "internal",
            "hook:0f": "internal",
            "agent:main:bare": "unknown",
        }
        assert [row["room"] for row in rows if row["key"] == TOPIC] == ["#r"]
        status, health = await client.call("status", {}), await client.call("health", {"probe": True})
        assert (status["sessions"]["count"], health["sessions"]["count"]) == (5, 5)
        printed = await run_cli(gateway, "sessions", "--json")
        for seen in (status["sessions"]["recent"], health["sessions"]["recent"], json.loads(printed)["sessions"]):
            assert {row["key"] for row in seen} == set(channels)


@pytest.mark.parametrize("form", [None, "messages"])
async def test_half_of_a_surrogate_pair_hides_no_message(form: str | None, tmp_path: Path, models: ModelServer) -> None:
    """JavaScript cuts text between the halves of an emoji, and writes the half down as an escape."""
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    lines = transcript_lines("m", "a cut \ud83d question", "a cut \ude00 answer")
    assert "\\ud83d" in lines
    stored.put_transcript(gateway, "m.jsonl", lines.encode())
    stored.put_sessions(gateway, {"agent:main:main": {"sessionId": "m", "updatedAt": int(time.time() * 1000)}})
    async with gateway, gateway.client() as client:
        asked = {"sessionKey": "main"} if form is None else {"sessionKey": "main", "format": form}
        said = (await client.call("chat.history", asked))["messages"]
        texts = [block if isinstance(block, str) else block["text"] for one in said for block in one["content"]]
        assert texts == ["a cut \ufffd question", "a cut \ufffd answer"]


@pytest.mark.parametrize("form", [None, "messages"])
async def test_a_message_of_megabytes_leaves_room_for_what_was_said_before_it(
    form: str | None, tmp_path: Path, models: ModelServer
) -> None:
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    lines = transcript_lines("m", "what is in the file?", "row|" * 2_000_000)
    stored.put_transcript(gateway, "m.jsonl", lines.encode())
    stored.put_sessions(gateway, {"agent:main:main": {"sessionId": "m", "updatedAt": int(time.time() * 1000)}})
    async with gateway, gateway.client() as client:
        asked = {"sessionKey": "main"} if form is None else {"sessionKey": "main", "format": form}
        question, answer = (await client.call("chat.history", asked))["messages"]
        assert "what is in the file?" in str(question["content"])
        (block,) = answer["content"]
        assert block["text"].startswith("row|row") and len(block["text"]) + block["omitted"] == 8_000_000


async def test_topic_goes_on_in_the_file_that_has_its_number(tmp_path: Path, models: ModelServer) -> None:
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    made_elsewhere(gateway, int(time.time() * 1000))
    async with gateway, gateway.client() as client:
        assert len((await client.call("chat.history", {"sessionKey": TOPIC}))["messages"]) == 2
        await client.chat("go on", TOPIC)
        assert "said in the topic" in json.dumps(models.requests[-1].body["messages"])
        assert len(stored.transcripts(gateway)["t-topic-42.jsonl"].splitlines()) > 3
        fresh = (await client.call("sessions.reset", {"key": TOPIC}))["entry"]
        await client.chat("anew", TOPIC)
        # In a database the topic is in the session's row alone.
        topic = "-topic-42" if gateway.storage is None else ""
        assert f"{fresh['sessionId']}{topic}.jsonl" in stored.transcripts(gateway)


async def test_message_from_the_web_leaves_the_route_of_the_last_channel_alone(
    tmp_path: Path, models: ModelServer
) -> None:
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    made_elsewhere(gateway, int(time.time() * 1000))
    async with gateway, gateway.client() as client:
        await client.chat("from the web")
        row = (await client.call("sessions.list", {}))["sessions"][0]
        assert row["deliveryContext"] == {"channel": "telegram", "to": "telegram:1"}


async def test_one_session_for_everything_goes_by_the_name_main(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key, session={"scope": "global"})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert client.hello["snapshot"]["sessionDefaults"]["mainSessionKey"] == "main"
        ended = await client.chat("hello")
        card = await client.chat("/status")
        assert (ended["sessionKey"], card["sessionKey"]) == ("main", "main")
        assert "Session: main" in text_of(card)
        for seen in (
            (await client.call("sessions.list", {"includeGlobal": True}))["sessions"],
            (await client.call("status", {}))["sessions"]["recent"],
            json.loads(await run_cli(gateway, "sessions", "--json"))["sessions"],
        ):
            assert [(row["key"], row["kind"]) for row in seen] == [("main", "direct")]
        assert (await client.call("sessions.resolve", {"key": "main"}))["key"] == "main"
        leaf = (await client.call("sessions.tree", {"key": "main"}))["leafId"]
        assert (await client.call("sessions.label", {"key": "main", "entryId": leaf, "label": "x"}))["key"] == "main"
        assert all(frame["payload"].get("sessionKey") != "global" for frame in client.events)


@pytest.mark.files_only("sessions.json is edited by hand")
async def test_store_has_a_turn_soon_after_its_end_and_an_edit_is_seen_at_once(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    store = gateway.sessions_dir() / "sessions.json"
    async with gateway.client() as client:
        await client.chat("hello")
        async with asyncio.timeout(30):
            while not store.exists():
                await asyncio.sleep(0.01)
        entries = json.loads(store.read_text())
        entries["agent:main:main"] |= {"label": "by hand", "ownField": {"x": 1}}
        store.write_text(json.dumps(entries))
        await client.chat("again")
        row = (await client.call("sessions.list", {}))["sessions"][0]
        assert row["label"] == "by hand"
        patched = await client.call("sessions.patch", {"key": "main", "verboseLevel": "on"})
        assert patched["entry"]["ownField"] == {"x": 1}


async def test_session_that_begins_with_a_command_says_where_it_is_about(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("/queue collect")
        await client.chat("hello")
        session_id = (await client.call("sessions.list", {}))["sessions"][0]["sessionId"]
    header = gateway.transcript(session_id)[0]
    assert Path(header["cwd"]).name == "workspace"


@pytest.mark.parametrize("command", ["", "/status"])
async def test_a_transcript_names_model_and_thinking_level_before_the_first_question_as_others_expect(
    command: str, gateway: InProcessGateway
) -> None:
    async with gateway.client() as client:
        if command:
            await client.chat(command)
        await client.chat("hello")
        sessions = (await client.call("sessions.list", {}))["sessions"]
        lines = gateway.transcript(sessions[0]["sessionId"])
    types = [line["type"] for line in lines if not line["id"].startswith("say-")]
    assert types == ["session", "model_change", "thinking_level_change", "custom", "message", "message"]


async def test_after_a_stop_the_model_knows_of_it_and_of_what_was_said(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        for number, method in enumerate(("chat.send", "chat.abort")):
            models.queue(Reply(text="half an answer " * 50, delay_ms=20))
            run_id = f"long-{number}"
            await client.call("chat.send", {"sessionKey": "main", "message": "tell", "idempotencyKey": run_id})
            await client.event(lambda e, p, run=run_id: e == "chat" and p["runId"] == run and p["state"] == "delta")
            stop = {"sessionKey": "main", "message": "/stop", "idempotencyKey": f"stop-{number}"}
            await client.call(method, stop if method == "chat.send" else {"sessionKey": "main"})
            await client.ending(run_id)
            models.reply("fine")
            await client.chat(f"go on {number}")
            before, said = models.requests[-1].body["messages"][-2:]
            assert before["role"] == "assistant"
            assert before["content"][0]["text"].startswith("half")
            assert said["content"][0]["text"].startswith("Note: the person stopped the previous run.")
            shown = (await client.call("chat.history", {"sessionKey": "main"}))["messages"][-2]
            assert shown["content"][0]["text"] == f"go on {number}"
        models.reply("and on")
        await client.chat("more")
        assert "stopped the previous run" not in models.requests[-1].body["messages"][-1]["content"][0]["text"]


async def test_answer_cut_by_the_limit_is_one_message_for_others(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        models.queue(Reply(text="part one and ", stop="length"), Reply(text="part two."))
        await client.chat("tell")
        answer = await client.call("chat.history", {"sessionKey": "main", "format": "messages"})
    assert [message["role"] for message in answer["messages"]] == ["user", "assistant"]
    assert answer["messages"][1]["content"] == [{"type": "text", "text": "part one and part two."}]


@pytest.mark.files_only("the import of a folder writes files, and is refused with PostgreSQL")
async def test_sessions_of_a_newer_folder_come_in_through_a_running_gateway_and_go_on(
    tmp_path: Path, gateway: InProcessGateway, models: ModelServer
) -> None:
    base, now = database(tmp_path / "newer"), int(time.time() * 1000)
    add_session(base, "agent:main:main", "s1", conversation("s1", "the shed is green", "noted"), updated=now)
    add_session(base, "agent:main:work", "s2", conversation("s2", "q", "a"), updated=now)
    words = ("sessions", "import", "--from", str(tmp_path / "newer"), "--json")
    report = json.loads(await run_cli(gateway, *words))
    assert (report["ok"], report["totals"]["imported"], report["totals"]["events"]) == (True, 2, 6)
    async with gateway.client() as client:
        keys = {row["key"] for row in (await client.call("sessions.list", {}))["sessions"]}
        assert keys == {"agent:main:main", "agent:main:work"}
        await client.chat("what colour?")
        assert "the shed is green" in json.dumps(models.requests[-1].body["messages"])
        assert len((await client.call("chat.history", {"sessionKey": "main"}))["messages"]) == 4
    assert json.loads(await run_cli(gateway, *words))["totals"]["present"] == 2
    refused = await gateway.command("sessions", "import", "--from", str(tmp_path))
    assert refused.returncode == 1 and "is not a state folder" in refused.stderr


@pytest.mark.files_only("the files of the sessions were moved away")
async def test_a_store_that_was_moved_away_makes_the_gateway_unwell(tmp_path: Path, gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hello")
        session_id = (await client.call("sessions.list", {}))["sessions"][0]["sessionId"]
        archive = gateway.sessions_dir().parent / ARCHIVE
        archive.mkdir()
        (gateway.sessions_dir() / f"{session_id}.jsonl").rename(
            archive / f"m.{session_id}.jsonl.imported-1790000000000"
        )
        await Services(gateway.gateway).check_state()
        health = await client.call("health", {"probe": True})
        assert not health["ok"] and ARCHIVE in health["problem"]
