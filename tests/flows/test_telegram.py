"""People write to the agent on Telegram: who is heard, what reaches the model, where the answer goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.telegram_server import ANN, BOB, FORUM, GROUP, TOKEN, TelegramServer

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"
Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, telegram: TelegramServer) -> Start:
    @asynccontextmanager
    async def gateway(more: dict[str, Any] | None = None, **channel: Any) -> AsyncIterator[InProcessGateway]:
        section = {"botToken": TOKEN, "apiRoot": telegram.url, **channel}
        config = model_config(models.base_url, models.api_key, channels={"telegram": section}, **(more or {}))
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            if "webhookUrl" not in section:
                await telegram.polling()
            yield gateway

    return gateway


def prompts(models: ModelServer, request: int = -1) -> str:
    return json.dumps(models.requests[request].body["messages"], ensure_ascii=False)


async def test_a_known_person_is_answered_where_they_wrote(
    start: Start, telegram: TelegramServer, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN]) as gateway:
        await telegram.say("hello [[reply:Hi **Ann**]]")
        await telegram.called("sendMessage")
        async with gateway.client() as client:
            row = (await client.call("sessions.list", {}))["sessions"][0]
    (sent,) = telegram.of("sendMessage")
    assert (sent["chat_id"], sent["text"], sent["parse_mode"]) == (ANN, "Hi <b>Ann</b>", "HTML")
    assert (row["key"], row["lastChannel"], row["lastTo"]) == ("agent:main:main", "telegram", f"telegram:{ANN}")
    assert "[Telegram Ann id:4242" in prompts(models)
    assert telegram.of("sendChatAction")[0] == {"chat_id": ANN, "action": "typing"}


async def delivered(client: WireClient) -> list[dict[str, Any]]:
    """The deliveries of the newest message, once every part has come to an end."""
    async with asyncio.timeout(60):
        while True:
            for row in (await client.call("messages.list", {}))["messages"]:
                facts = await client.call("messages.get", {"id": row["id"]})
                if facts["deliveries"] and all(part["state"] in ("sent", "dead") for part in facts["deliveries"]):
                    return facts["deliveries"]
            await asyncio.sleep(0.02)


async def test_a_stranger_gets_a_code_and_is_heard_after_approval(
    start: Start, telegram: TelegramServer, models: ModelServer
) -> None:
    async with start() as gateway, gateway.client() as client:
        await telegram.say("let me in", chat=BOB, sender=BOB)
        await telegram.called("sendMessage")
        (asked,) = (await client.call("pairing.list", {}))["requests"]
        assert asked["code"] in telegram.texts(BOB)[0] and not models.requests
        await client.call("pairing.approve", {"code": asked["code"]})
        await telegram.say("now? [[reply:welcome]]", chat=BOB, sender=BOB)
        await telegram.called("sendMessage", 2)
    assert telegram.texts(BOB)[1:] == ["welcome"]


async def test_a_name_on_the_list_counts(start: Start, telegram: TelegramServer) -> None:
    async with start(allowFrom=["@Ann"], dmPolicy="allowlist"):
        await telegram.say("who? [[reply:nobody]]", chat=BOB, sender=BOB)
        await telegram.say("me [[reply:you]]")
        await telegram.called("sendMessage")
    assert (telegram.texts(ANN), telegram.texts(BOB)) == (["you"], [])


async def test_a_group_is_answered_when_the_bot_is_mentioned(
    start: Start, telegram: TelegramServer, models: ModelServer
) -> None:
    async with start(groupPolicy="open", groups={str(GROUP): {"requireMention": True}}) as gateway:
        await telegram.say("lunch at noon", chat=GROUP, sender=BOB)
        await telegram.say("@claw_bot what is planned? [[reply:lunch]]", chat=GROUP)
        (sent,) = await telegram.called("sendMessage")
        async with gateway.client() as client:
            row = (await client.call("sessions.list", {}))["sessions"][0]
    assert (sent["chat_id"], sent["text"]) == (GROUP, "lunch")
    assert row["key"] == f"agent:main:telegram:group:{GROUP}"
    assert "lunch at noon" in prompts(models) and len(models.requests) == 1


async def test_a_group_has_a_prompt_and_skills_of_its_own(
    start: Start, telegram: TelegramServer, models: ModelServer, tmp_path: Path
) -> None:
    for name in ("baking", "sailing"):
        folder = tmp_path / "state" / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: about {name}\n---\nknow {name}\n")
    groups = {str(GROUP): {"requireMention": False, "systemPrompt": "Rhyme.", "skills": ["sailing"]}}
    keys = {"skills": {"entries": {name: {"env": {f"{name.upper()}_ID": "known"}} for name in ("baking", "sailing")}}}
    look = '[[tool:exec {"command":"echo ids=$BAKING_ID,$SAILING_ID"}]][[next]]'
    async with start(keys, allowFrom=[ANN], groupPolicy="open", groups=groups):
        await telegram.say(f"hello {look}[[reply:one]]", chat=GROUP)
        await telegram.called("sendMessage")
        await telegram.say(f"hello {look}[[reply:two]]")
        await telegram.called("sendMessage", 2)
    assert "ids=,known" in prompts(models, 1) and "ids=known,known" in prompts(models, 3)
    in_group, direct = (json.dumps(models.requests[number].body) for number in (0, 2))
    assert "Rhyme." in in_group and "about sailing" in in_group and "about baking" not in in_group
    assert "Rhyme." not in direct and "about sailing" in direct and "about baking" in direct


async def test_topics_are_conversations_of_their_own(start: Start, telegram: TelegramServer) -> None:
    groups = {str(FORUM): {"requireMention": True, "topics": {"7": {"requireMention": False}}}}
    async with start(groupPolicy="open", groups=groups) as gateway:
        topic = {"chat": FORUM, "message_thread_id": 7, "is_topic_message": True}
        await telegram.say("in seven [[reply:seven]]", **topic)
        await telegram.called("sendMessage")
        await telegram.say("no mention in nine", **{**topic, "message_thread_id": 9})
        await telegram.say("@claw_bot general [[reply:one]]", chat=FORUM)
        await telegram.called("sendMessage", 2)
        async with gateway.client() as client:
            rows = (await client.call("sessions.list", {}))["sessions"]
    seven, general = telegram.of("sendMessage")
    assert (seven["text"], seven["message_thread_id"]) == ("seven", 7)
    assert general["text"] == "one" and "message_thread_id" not in general
    base = f"agent:main:telegram:group:{FORUM}:topic:"
    assert {row["key"] for row in rows} == {f"{base}7", f"{base}1"}


async def test_a_redelivered_message_is_answered_once(
    start: Start, telegram: TelegramServer, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN]):
        await telegram.say("only once")
        await telegram.called("sendMessage")
        await telegram.taken()
    await telegram.repeat_all()
    async with start(allowFrom=[ANN]):
        await telegram.say("another [[reply:fresh]]")
        await telegram.called("sendMessage", 2)
    assert (telegram.texts(), len(models.requests)) == (["ok", "fresh"], 2)


async def test_a_long_reply_arrives_whole_although_telegram_is_busy(start: Start, telegram: TelegramServer) -> None:
    words = " ".join(f"word{number}" for number in range(1200))
    telegram.fail_next("sendMessage", 429, "Too Many Requests: retry after 1", retry_after=1)
    async with start(allowFrom=[ANN]) as gateway, gateway.client() as client:
        await telegram.say(f"[[reply:{words}]]")
        parts = await delivered(client)
    assert {part["state"] for part in parts} == {"sent"} and len(parts) == 3
    assert " ".join(telegram.texts()) == words


async def test_a_part_without_an_answer_may_come_twice_with_the_mark(start: Start, telegram: TelegramServer) -> None:
    async with start(allowFrom=[ANN]) as gateway, gateway.client() as client:
        telegram.drop_next("sendMessage")
        await telegram.say("hello [[reply:Hi Ann]]")
        await telegram.called("sendMessage", 2)
        await delivered(client)
    assert telegram.texts() == ["Hi Ann", "(possibly sent twice) Hi Ann"]


async def test_commands_are_in_the_menu_and_are_carried_out(start: Start, telegram: TelegramServer) -> None:
    async with start(allowFrom=[ANN], customCommands=[{"command": "Deploy", "description": "Ship it"}]):
        names = [one["command"] for one in telegram.commands]
        assert "status" in names and names[-1] == "deploy"
        await telegram.say("/status")
        await telegram.called("sendMessage")
    assert "Session" in telegram.texts()[0] or "session" in telegram.texts()[0]


async def test_a_press_of_a_button_is_a_message(start: Start, telegram: TelegramServer) -> None:
    async with start(allowFrom=[ANN]):
        user = {"id": ANN, "is_bot": False, "first_name": "Ann"}
        data = {"id": "q1", "from": user, "message": telegram.message("Choose"), "data": "go [[reply:gone]]"}
        await telegram.deliver(callback_query=data)
        await telegram.called("sendMessage")
        await telegram.called("answerCallbackQuery")
    assert telegram.texts() == ["gone"]


async def test_the_agent_asks_with_buttons_and_hears_the_press(
    start: Start, telegram: TelegramServer, models: ModelServer
) -> None:
    rows = [[{"text": "Yes", "callback_data": "yes, do it"}, {"text": "No"}]]
    asks = Call("message", {"action": "send", "message": "Shall I?", "buttons": rows})
    pins = Call("message", {"action": "pin"})
    models.queue(Reply(calls=[asks, pins]), Reply(text="NO_REPLY"), Reply(text="Done."))
    async with start(allowFrom=[ANN]):
        said = await telegram.say("tidy up")
        (question,) = await telegram.called("sendMessage")
        keyboard = question["reply_markup"]
        assert [one["text"] for one in keyboard["inline_keyboard"][0]] == ["Yes", "No"]
        await telegram.called("pinChatMessage")
        await models.wait_for_requests(2)
        user = {"id": ANN, "is_bot": False, "first_name": "Ann"}
        shown = telegram.message("Shall I?", reply_markup=keyboard)
        await telegram.deliver(callback_query={"id": "q2", "from": user, "message": shown, "data": "yes, do it"})
        await telegram.called("sendMessage", 2)
        await telegram.called("answerCallbackQuery")
    assert telegram.texts()[-1] == "Done."
    assert "yes, do it" in prompts(models)
    assert telegram.pinned == [(ANN, said["message_id"])]


async def test_a_reply_with_a_file_is_one_message_with_a_caption(
    start: Start, telegram: TelegramServer, models: ModelServer, tmp_path: Path
) -> None:
    models.queue(Reply(text="Here **it** is.\nMEDIA:./out/a.png\nMEDIA:./b.txt"))
    async with start(allowFrom=[ANN]) as gateway:
        workspace = gateway.state_dir / "workspace"
        (workspace / "out").mkdir(parents=True, exist_ok=True)
        (workspace / "out" / "a.png").write_bytes(PNG)
        (workspace / "b.txt").write_text("words")
        await telegram.say("send")
        (photo,) = await telegram.called("sendPhoto")
        (document,) = await telegram.called("sendDocument")
    assert (photo["caption"], photo["photo"]) == ("Here <b>it</b> is.", {"file": PNG, "name": "a.png"})
    assert document["document"] == {"file": b"words", "name": "b.txt"} and not telegram.of("sendMessage")


async def test_an_edited_message_is_answered_anew(start: Start, telegram: TelegramServer, models: ModelServer) -> None:
    async with start(allowFrom=[ANN]) as gateway, gateway.client() as client:
        said = await telegram.say("waht [[reply:pardon?]]")
        await telegram.called("sendMessage")
        await delivered(client)
        await telegram.deliver(edited_message={**said, "text": "what [[reply:this]]", "edit_date": 1})
        await telegram.called("sendMessage", 2)
    assert telegram.texts() == ["pardon?", "this"]


async def test_a_picture_reaches_the_model(start: Start, telegram: TelegramServer, models: ModelServer) -> None:
    telegram.files = {"pic": png()}
    async with start(allowFrom=[ANN]):
        sizes = [{"file_id": "pic", "width": 4, "height": 4}]
        await telegram.deliver(message=telegram.message(photo=sizes, caption="what is it? [[reply:a square]]"))
        await telegram.called("sendMessage")
    assert "image/png" in prompts(models)


def png() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(file, "PNG")
    return file.getvalue()


async def test_the_webhook_takes_updates_with_its_secret_only(start: Start, telegram: TelegramServer) -> None:
    url, secret = "https://claw.example.org/telegram-webhook", "s3cret_word"
    async with start(allowFrom=[ANN], webhookUrl=url, webhookSecret=secret) as gateway, aiohttp.ClientSession() as http:
        await telegram.until(lambda: telegram.webhook)
        assert telegram.webhook["secret_token"] == secret and telegram.webhook["url"] == url
        address = f"http://127.0.0.1:{gateway.port}/telegram-webhook"
        name = "X-Telegram-Bot-Api-Secret-Token"
        update = {"update_id": 1, "message": telegram.message("hello [[reply:by hook]]")}
        for headers, body, status in (
            ({}, update, 401),
            *[({name: "wrong"}, update, 401)] * 9,
            *[({name: "wrong"}, update, 429)] * 3,
            ({name: secret}, update, 200),
            ({name: secret}, update, 200),
            ({name: secret}, {"update_id": 2, "message": {"odd": True}}, 200),
        ):
            async with http.post(address, json=body, headers=headers) as answer:
                assert answer.status == status
        await telegram.called("sendMessage")
        album = [
            {"update_id": 3 + n, "message": telegram.message(f"[[reply:{n}]]", media_group_id="7")} for n in range(2)
        ]

        async def post(body: Any) -> int:
            async with http.post(address, json=body, headers={name: secret}) as answer:
                return answer.status

        assert await asyncio.gather(*(post(one) for one in album)) == [200, 200]
        await telegram.called("sendMessage", 2)
    assert telegram.texts()[0] == "by hook" and not telegram.offsets


async def test_the_token_is_nowhere_to_be_read(start: Start, telegram: TelegramServer, tmp_path: Path) -> None:
    async with start({"logging": {"level": "debug"}}, allowFrom=[ANN]) as gateway, gateway.client() as client:
        await telegram.say("hello")
        await telegram.called("sendMessage")
        await telegram.stop()
        await until_failing(client)
        status = json.dumps(await client.call("channels.status", {"probe": True}))
        config = json.dumps(await client.call("config.get", {}))
    written = "".join(path.read_text(errors="replace") for path in (tmp_path / "state").rglob("*.log*"))
    for text in (status, config, written, gateway.errors_path.read_text()):
        assert TOKEN not in text and TOKEN.partition(":")[2] not in text
    assert "telegram" in written.lower()


async def until_failing(client: WireClient) -> None:
    async with asyncio.timeout(60):
        while not (await client.call("channels.status", {}))["channelAccounts"]["telegram"][0].get("lastError"):
            await asyncio.sleep(0.02)


async def test_after_a_kill_the_reply_comes_once_and_the_message_is_not_answered_again(
    tmp_path: Path, telegram: TelegramServer, models: ModelServer
) -> None:
    section = {"botToken": TOKEN, "apiRoot": telegram.url, "allowFrom": [ANN]}
    config = model_config(models.base_url, models.api_key, channels={"telegram": section})
    async with ForkedGateway(tmp_path / "state", config) as gateway:
        await telegram.polling()
        await telegram.say("first [[reply:one]]")
        await telegram.called("sendMessage")
        async with gateway.client() as client:
            await delivered(client)
        gateway.kill()
        await telegram.say("while dead [[reply:two]]")
        await gateway.start()
        await telegram.called("sendMessage", 2)
    assert telegram.texts() == ["one", "two"] and len(models.requests) == 2


async def test_a_group_that_becomes_a_supergroup_keeps_its_session_and_its_settings(
    start: Start, telegram: TelegramServer, models: ModelServer
) -> None:
    old, key = -4001, "agent:main:telegram:group"
    telegram.chats[old] = {"id": old, "type": "group", "title": "Friends"}
    groups = {str(old): {"requireMention": False}}
    async with start(allowFrom=[ANN], groups=groups) as gateway, gateway.client() as client:
        await telegram.say("one [[reply:first]]", chat=old)
        await telegram.called("sendMessage")
        (before,) = [
            row for row in (await client.call("sessions.list", {}))["sessions"] if row["key"] == f"{key}:{old}"
        ]
        await telegram.deliver(message=telegram.message(chat=old, migrate_to_chat_id=GROUP))
        path = gateway.state_dir / "openclaw.json"
        async with asyncio.timeout(60):
            while gateway.gateway.runtime.config.current.channels.telegram.groups.keys() != {str(GROUP)}:
                await asyncio.sleep(0.01)
        await telegram.say("two [[reply:second]]", chat=GROUP)
        await telegram.called("sendMessage", 2)
        rows = {row["key"]: row for row in (await client.call("sessions.list", {}))["sessions"]}
    written = json.loads(path.read_text())["channels"]["telegram"]["groups"]
    assert written == {str(GROUP): {"requireMention": False}}
    assert f"{key}:{old}" not in rows and rows[f"{key}:{GROUP}"]["sessionId"] == before["sessionId"]
    assert telegram.texts(GROUP)[-1] == "second" and "one [[reply:first]]" in prompts(models)


async def test_a_group_that_becomes_a_supergroup_keeps_the_agent_it_is_bound_to(
    tmp_path: Path, telegram: TelegramServer, models: ModelServer
) -> None:
    old, other = -4001, {"channel": "discord", "peer": {"kind": "group", "id": "-4001"}}
    telegram.chats[old] = {"id": old, "type": "group", "title": "Friends"}
    bindings = [
        {"agentId": "main", "match": other},
        {"agentId": "work", "match": {"channel": "telegram", "peer": {"kind": "group", "id": str(old)}}},
    ]
    groups = {"*": {"requireMention": False}}
    section = {"botToken": TOKEN, "apiRoot": telegram.url, "allowFrom": [ANN], "groups": groups}
    config = model_config(models.base_url, models.api_key, channels={"telegram": section}, bindings=bindings)
    config["agents"]["list"] = [{"id": "main"}, {"id": "work"}]
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await telegram.polling()
        await telegram.say("one [[reply:first]]", chat=old)
        await telegram.called("sendMessage")
        await telegram.deliver(message=telegram.message(chat=old, migrate_to_chat_id=GROUP))
        async with asyncio.timeout(60):
            while gateway.gateway.runtime.config.current.bindings[1].match.peer.id != str(GROUP):
                await asyncio.sleep(0.01)
        await telegram.say("two [[reply:second]]", chat=GROUP)
        await telegram.called("sendMessage", 2)
        keys = [row["key"] for row in (await client.call("sessions.list", {}))["sessions"]]
    written = json.loads((gateway.state_dir / "openclaw.json").read_text())["bindings"]
    assert [one["match"]["peer"]["id"] for one in written] == ["-4001", str(GROUP)]
    assert keys == [f"agent:work:telegram:group:{GROUP}"] and "one [[reply:first]]" in prompts(models)


async def test_without_config_writes_a_new_id_changes_the_session_alone(start: Start, telegram: TelegramServer) -> None:
    old, key = -4001, "agent:main:telegram:group"
    telegram.chats[old] = {"id": old, "type": "group", "title": "Friends"}
    async with start(allowFrom=[ANN], groups={"*": {"requireMention": False}}, configWrites=False) as gateway:
        await telegram.say("one [[reply:first]]", chat=old)
        await telegram.called("sendMessage")
        raw = (gateway.state_dir / "openclaw.json").read_text()
        # Both may come with one answer of the server, and the new id must not begin a session before the old one moved.
        await asyncio.gather(
            telegram.deliver(message=telegram.message(chat=old, migrate_to_chat_id=GROUP)),
            telegram.say("two [[reply:second]]", chat=GROUP),
        )
        await telegram.called("sendMessage", 2)
        async with gateway.client() as client:
            keys = [row["key"] for row in (await client.call("sessions.list", {}))["sessions"]]
        assert (gateway.state_dir / "openclaw.json").read_text() == raw
    assert keys == [f"{key}:{GROUP}"]
