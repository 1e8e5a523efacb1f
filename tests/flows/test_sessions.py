"""Listing, finding, changing and ending sessions through a real Gateway."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support import stored
from tests.support.gateway import TOKEN, RequestFailed, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply

KEY = "agent:main:work"
OLD = {"agent:main:main": {"sessionId": "old", "updatedAt": 1_700_000_000_000, "chatType": "direct"}}


async def listed(client: WireClient, **params: Any) -> list[str]:
    return [row["key"] for row in (await client.call("sessions.list", params))["sessions"]]


async def test_a_client_that_asks_for_pages_gets_them_and_one_that_does_not_gets_everything(
    tmp_path: Path, models: ModelServer
) -> None:
    entries = {
        f"agent:main:s{number}": {"sessionId": f"i{number}", "updatedAt": 9_000 - number} for number in range(230)
    }
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    stored.put_sessions(gateway, {**entries, "unknown": {"sessionId": "u", "updatedAt": 1}})
    async with gateway, gateway.client() as client:
        everything = await client.call("sessions.list", {})
        assert everything["count"] == 230 and "nextOffset" not in everything
        offset, keys, told = 0, [], []
        while offset is not None:
            page = await client.call("sessions.list", {"offset": offset})
            keys += [row["key"] for row in page["sessions"]]
            told.append([page[name] for name in ("count", "totalCount", "hasMore", "limitApplied", "offset")])
            offset = page["nextOffset"]
        assert keys == [row["key"] for row in everything["sessions"]]
        assert told == [[100, 230, True, 100, 0], [100, 230, True, 100, 100], [30, 230, False, 100, 200]]
        few = await client.call("sessions.list", {"offset": 5, "limit": 2, "search": "s1"})
        assert (few["totalCount"], few["nextOffset"], len(few["sessions"])) == (111, 7, 2)
        beyond = await client.call("sessions.list", {"offset": 500})
        assert (beyond["count"], beyond["totalCount"], beyond["hasMore"]) == (0, 230, False)


async def test_the_list_is_newest_first_and_filters(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for name in ("one", "two", "three"):
            await client.chat("hi [[reply:hello back]]", f"agent:main:{name}")
        assert await listed(client) == ["agent:main:three", "agent:main:two", "agent:main:one"]
        assert await listed(client, limit=2) == ["agent:main:three", "agent:main:two"]
        assert await listed(client, search="TW") == ["agent:main:two"]
        answer = await client.call(
            "sessions.list", {"limit": 1, "includeDerivedTitles": True, "includeLastMessage": True}
        )
    row = answer["sessions"][0]
    assert answer["defaults"] == {"modelProvider": "mock", "model": "mock-1", "contextTokens": 200_000}
    assert (row["derivedTitle"], row["lastMessagePreview"]) == ("hi [[reply:hello back]]", "hello back")
    assert row["deliveryContext"] == {"channel": "webchat"}


@pytest.mark.parametrize(
    ("key", "channel", "chat_type"),
    [
        ("agent:main:signal:group:abc", "signal", "group"),
        ("agent:main:slack:room:r1", "slack", "room"),
        ("agent:main:discord:channel:5", "discord", "channel"),
    ],
)
async def test_writing_to_a_group_from_the_webchat_does_not_make_it_a_direct_chat(
    gateway: InProcessGateway, key: str, channel: str, chat_type: str
) -> None:
    async with gateway.client() as client:
        await client.chat("hi", key)
        [row] = (await client.call("sessions.list", {}))["sessions"]
    assert (row["kind"], row["channel"], row["chatType"]) == ("group", channel, chat_type)


async def test_main_means_the_main_session_however_it_is_spelt(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for key in ("main", "agent:main:main", " MAIN "):
            await client.chat("hi", key)
        assert await listed(client) == ["agent:main:main"]
        answer = await client.call("chat.history", {"sessionKey": "main"})
        assert len(answer["messages"]) == 6


async def test_a_session_is_found_by_key_id_or_label(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hi", KEY)
        entry = (await client.call("sessions.patch", {"key": KEY, "label": "lab1"}))["entry"]
        for wanted in ({"key": KEY}, {"sessionId": entry["sessionId"]}, {"label": "lab1"}):
            assert await client.call("sessions.resolve", wanted) == {"ok": True, "key": KEY}
        for params, words in (
            ({}, "Either key, sessionId, or label is required"),
            ({"key": "a", "label": "b"}, "Provide either key, sessionId, or label (not multiple)"),
            ({"key": "zzz"}, "No session found: zzz"),
            ({"label": "zzz"}, "No session found with label: zzz"),
        ):
            with pytest.raises(RequestFailed) as failed:
                await client.call("sessions.resolve", params)
            assert str(failed.value) == words
            code = (failed.value.error.get("details") or {}).get("code")
            assert (code == "SESSION_NOT_FOUND") == words.startswith("No session found")


@pytest.mark.parametrize(
    ("patch", "stored"),
    [
        ({"thinkingLevel": "low"}, {"thinkingLevel": "low"}),
        ({"thinkingLevel": "off"}, {}),
        ({"verboseLevel": "off"}, {"verboseLevel": "off"}),
        ({"reasoningLevel": "off"}, {}),
        ({"responseUsage": "on"}, {"responseUsage": "tokens"}),
        ({"sendPolicy": "deny"}, {"sendPolicy": "deny"}),
        ({"label": "  x "}, {"label": "x"}),
        ({"label": None}, {}),
        ({"model": "mock/mock-1"}, {}),
    ],
)
async def test_settings_are_stored_as_others_read_them(
    gateway: InProcessGateway, patch: dict[str, Any], stored: dict[str, Any]
) -> None:
    async with gateway.client() as client:
        entry = (await client.call("sessions.patch", {"key": KEY, **patch}))["entry"]
    assert {name: value for name, value in entry.items() if name not in ("sessionId", "updatedAt")} == stored


async def test_values_a_setting_cannot_take_are_refused_by_name(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for patch, words in (
            ({"thinkingLevel": "bogus"}, "invalid thinkingLevel (use off|minimal|low|medium|high)"),
            ({"sendPolicy": "maybe"}, "invalid sendPolicy (use allow|deny)"),
            ({"spawnedBy": "main"}, "spawnedBy is only supported for subagent:* sessions"),
            ({"label": "x" * 65}, "invalid label: too long (max 64)"),
        ):
            with pytest.raises(RequestFailed) as failed:
                await client.call("sessions.patch", {"key": KEY, **patch})
            assert str(failed.value) == words
        await client.call("sessions.patch", {"key": KEY, "label": "mine"})
        with pytest.raises(RequestFailed, match="label already in use: mine"):
            await client.call("sessions.patch", {"key": "agent:main:other", "label": "mine"})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("agent:main", 'invalid session key: "agent:main" names no session; write agent:<agentId>:<session>'),
        ("agent::", 'invalid session key: "agent::" names no session'),
        ("agent:main:" + "x" * 600, "a session key has at most 512"),
        ("agent:main:a\nb", "holds control characters"),
    ],
)
async def test_what_cannot_be_a_key_is_refused_by_name(gateway: InProcessGateway, key: str, words: str) -> None:
    async with gateway.client() as client:
        for method, params in (
            ("chat.send", {"sessionKey": key, "message": "hi", "idempotencyKey": "1"}),
            ("sessions.patch", {"key": key, "thinkingLevel": "high"}),
            ("chat.history", {"sessionKey": key}),
        ):
            with pytest.raises(RequestFailed, match=re.escape(words)):
                await client.call(method, params)


async def test_a_session_that_may_not_be_sent_to_takes_nothing(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.call("sessions.patch", {"key": KEY, "sendPolicy": "deny"})
        for method in ("chat.send", "agent"):
            with pytest.raises(RequestFailed, match="send blocked by session policy"):
                await client.call(method, {"sessionKey": KEY, "message": "hi", "idempotencyKey": method})
        await client.call("sessions.patch", {"key": KEY, "sendPolicy": None})
        assert text_of(await client.chat("hi", KEY)) == "ok"
    assert len(models.requests) == 1


async def test_a_reset_starts_a_new_session_and_keeps_what_belongs_to_the_chat(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("remember me", KEY)
        settings = {"thinkingLevel": "low", "label": "lab1", "sendPolicy": "allow"}
        old = (await client.call("sessions.patch", {"key": KEY, **settings}))["entry"]
        new = (await client.call("sessions.reset", {"key": KEY}))["entry"]
        assert new["sessionId"] != old["sessionId"]
        assert (new["label"], new["sendPolicy"], new["totalTokens"]) == ("lab1", "allow", 0)
        assert new["thinkingLevel"] == "low"
        await client.chat("who am I?", KEY)
    assert "remember me" not in json.dumps(models.requests[-1].body["messages"])
    assert len(gateway.transcript(old["sessionId"])) > 1


async def test_a_reset_stops_what_is_running(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0))
    async with gateway.client() as client:
        await client.call("chat.send", {"sessionKey": "work", "message": "hi", "idempotencyKey": "r"})
        await models.wait_for_requests(1)
        await client.call("sessions.reset", {"key": KEY})
        assert (await client.ending("r"))["state"] == "aborted"


async def test_deleting_archives_the_transcript_and_never_the_main_session(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hi", KEY)
        answer = await client.call("sessions.delete", {"key": KEY})
        assert (answer["ok"], answer["deleted"]) == (True, True)
        assert ".jsonl.deleted." in answer["archived"][0]
        assert await listed(client) == []
        again = await client.call("sessions.delete", {"key": "zzz"})
        assert again == {"ok": True, "key": "agent:main:zzz", "deleted": False, "archived": []}
        with pytest.raises(RequestFailed, match=r"Cannot delete the main session \(agent:main:main\)\."):
            await client.call("sessions.delete", {"key": "main"})


async def test_keeping_the_last_lines_damages_nothing(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for number in range(4):
            await client.chat(f"{number} [[reply:answer {number}]]", KEY)
        before = await client.call("chat.history", {"sessionKey": KEY})
        whole = gateway.transcript(before["sessionId"])
        answer = await client.call("sessions.compact", {"key": KEY, "maxLines": 3})
        assert (answer["compacted"], answer["kept"]) == (True, 3)
        header, first, *_ = short = gateway.transcript(before["sessionId"])
        assert (header, first["parentId"], len(short)) == (whole[0], None, 4)
        assert text_of(await client.chat("and now? [[reply:still here]]", KEY)) == "still here"
        after = await client.call("chat.history", {"sessionKey": KEY})
    assert after["sessionId"] == before["sessionId"]
    assert [message["content"][0]["text"] for message in after["messages"]][:3] == [
        "answer 2",
        "3 [[reply:answer 3]]",
        "answer 3",
    ]
    archived = stored.transcripts(gateway)[Path(answer["archived"]).name]
    assert [json.loads(line) for line in archived.splitlines()] == whole


async def test_previews_are_short_and_say_what_is_missing(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hi [[reply:one]]", KEY)
        answer = await client.call("sessions.preview", {"keys": [KEY, "zzz"]})
    items = [{"role": "user", "text": "hi [[reply:one]]"}, {"role": "assistant", "text": "one"}]
    assert answer["previews"] == [
        {"key": KEY, "status": "ok", "items": items},
        {"key": "zzz", "status": "missing", "items": []},
    ]


@pytest.mark.files_only("sessions.json is edited by hand")
async def test_an_edit_of_sessions_json_by_hand_is_taken_over(gateway: InProcessGateway) -> None:
    path = gateway.sessions_dir() / "sessions.json"
    async with gateway.client() as client:
        await client.chat("hi", KEY)
        await client.chat("hi", "agent:main:other")
        await gateway.stop()
    store = json.loads(path.read_text())
    store[KEY]["label"] = "by hand"
    store[KEY]["somethingNew"] = {"kept": True}
    del store["agent:main:other"]
    path.write_text(json.dumps(store))
    await gateway.start()
    async with gateway.client() as client:
        rows = (await client.call("sessions.list", {}))["sessions"]
        assert [(row["key"], row["label"]) for row in rows] == [(KEY, "by hand")]
        await client.chat("again", KEY)
        await gateway.stop()
    assert json.loads(path.read_text())[KEY]["somethingNew"] == {"kept": True}


@pytest.mark.files_only("sessions.json is edited by hand")
async def test_fields_that_a_person_wrote_wrongly_do_not_stop_the_session(gateway: InProcessGateway) -> None:
    path = gateway.sessions_dir() / "sessions.json"
    await gateway.stop()
    wrong: list[dict[str, Any]] = [
        {"sessionId": 5}, {"thinkingLevel": 7}, {"queueDrop": ["old"]}, {"updatedAt": "today"}, {"label": {}},
        {"compactionCount": "many"}, {"systemPromptReport": []}, {"modelOverride": 4}, {"deliveryContext": []},
    ]  # fmt: skip
    rows = {f"agent:main:{number}": {"sessionId": f"s{number}", **fields} for number, fields in enumerate(wrong)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows))
    await gateway.start()
    async with gateway.client() as client:
        for key in rows:
            assert text_of(await client.chat("hi [[reply:there]]", key)) == "there", rows[key]
            assert "Session: " in text_of(await client.chat("/status", key)), rows[key]


async def test_the_agent_method_answers_twice(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        request = await client.send(
            "agent", {"sessionKey": "work", "message": "[[reply:agent says hi]]", "idempotencyKey": "ag-1"}
        )
        accepted, final = await client.answer(request), await client.answer(request)
        assert accepted["status"] == "accepted"
        assert final["result"]["payloads"] == [{"text": "agent says hi", "mediaUrl": None}]
        assert (final["status"], final["summary"]) == ("ok", "completed")
        assert final["result"]["meta"]["agentMeta"]["model"] == "mock-1"
        waited = await client.call("agent.wait", {"runId": "ag-1", "timeoutMs": 50_000})
        assert (waited["status"], waited["endedAt"] >= waited["startedAt"]) == ("ok", True)
        assert await client.call("agent.wait", {"runId": "nope", "timeoutMs": 50}) == {
            "runId": "nope",
            "status": "timeout",
        }


async def test_a_failed_agent_run_says_so_in_its_second_answer(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        request = await client.send("agent", {"message": "[[error:400 bad thing]]", "idempotencyKey": "ag-2"})
        await client.answer(request)
        with pytest.raises(RequestFailed, match="bad thing") as failed:
            await client.answer(request)
        assert (failed.value.code, failed.value.payload["status"]) == ("UNAVAILABLE", "error")
        assert (await client.call("agent.wait", {"runId": "ag-2"}))["status"] == "error"


async def test_a_run_can_be_waited_for_from_another_connection(gateway: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("done", hold=held, hold_after=0))
    async with gateway.client() as client:
        await client.call("chat.send", {"sessionKey": "work", "message": "hi", "idempotencyKey": "r"})
    async with gateway.client() as another:
        request = await another.send("agent.wait", {"runId": "r", "timeoutMs": 50_000})
        held.set()
        assert (await another.answer(request))["status"] == "ok"


@pytest.mark.parametrize("channel", ["bluebubbles", "Matrix", "webchat", "last"])
async def test_a_run_may_name_any_channel_that_there_is(gateway: InProcessGateway, channel: str) -> None:
    async with gateway.client() as client:
        params = {"message": "x", "idempotencyKey": "1", "channel": channel, "replyChannel": channel}
        assert (await client.call("agent", params))["status"] == "accepted"


async def test_agents_keep_separate_histories(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["list"] = [{"id": "main"}, {"id": "beta"}]
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        with pytest.raises(RequestFailed, match="unknown channel: foo"):
            await client.call("agent", {"message": "x", "idempotencyKey": "1", "channel": "foo"})
        with pytest.raises(RequestFailed, match='agent "main" does not match session key agent "beta"'):
            params = {"message": "x", "idempotencyKey": "2", "agentId": "main", "sessionKey": "agent:beta:main"}
            await client.call("agent", params)
        await client.chat("secret of main", "agent:main:main")
        await client.chat("hello beta", "agent:beta:main")
    assert "secret of main" not in json.dumps(models.requests[-1].body["messages"])
    assert stored.live_transcripts(gateway, "beta")


async def test_a_message_by_any_door_begins_a_new_session_after_the_daily_reset(
    tmp_path: Path, models: ModelServer
) -> None:
    endpoints = {"http": {"endpoints": {"chatCompletions": {"enabled": True}}}}
    config = model_config(models.base_url, models.api_key)
    config["gateway"] |= endpoints
    for door in ("agent", "openai"):
        gateway = InProcessGateway(tmp_path / door / "state", config)
        stored.put_sessions(gateway, OLD)
        async with gateway, gateway.client() as client:
            if door == "agent":
                sent = await client.send("agent", {"message": "hi", "sessionKey": "main", "idempotencyKey": "1"})
                await client.answer(sent)
                await client.answer(sent)
            else:
                headers = {"authorization": f"Bearer {TOKEN}", "x-openclaw-session-key": "main"}
                body = {"model": "openclaw", "messages": [{"role": "user", "content": "hi"}]}
                url = f"{gateway.url}/v1/chat/completions"
                async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
                    assert response.status == 200
            row = (await client.call("sessions.list", {}))["sessions"][0]
            assert row["sessionId"] != "old"


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [("/think high", "thinkingLevel", "high"), ("/usage tokens", "responseUsage", "tokens")],
)
async def test_a_setting_after_the_daily_reset_is_for_the_session_that_begins(
    tmp_path: Path, models: ModelServer, setting: str, field: str, value: str
) -> None:
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    stored.put_sessions(gateway, OLD)
    async with gateway, gateway.client() as client:
        await client.call("sessions.patch", {"key": "main", "label": "A name is no use"})
        await client.chat(setting)
        [row] = (await client.call("sessions.list", {}))["sessions"]
        assert row["sessionId"] != "old"
        await client.chat("hi")
        [after] = (await client.call("sessions.list", {}))["sessions"]
    assert (after["sessionId"], after[field], after["label"]) == (row["sessionId"], value, "A name is no use")


async def test_a_session_keeps_the_name_of_what_it_began_with(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for number in range(15):
            await client.chat(f"question {number}", KEY)
        row = (await client.call("sessions.list", {"includeDerivedTitles": True}))["sessions"][0]
        assert row["derivedTitle"] == "question 0"


async def test_a_session_that_began_with_a_greeting_is_named_by_what_the_person_says(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("/new", KEY)
        [row] = (await client.call("sessions.list", {"includeDerivedTitles": True}))["sessions"]
        assert row["derivedTitle"].startswith(row["sessionId"][:8])
        await client.chat("plan my day", KEY)
        [row] = (await client.call("sessions.list", {"includeDerivedTitles": True}))["sessions"]
    assert row["derivedTitle"] == "plan my day"
