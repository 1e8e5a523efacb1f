"""One bot against a stand-in for the Bot API, through the real library."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.channels.base import WebhookRequest
from openclaw.channels.telegram import TelegramKind, parse_target
from openclaw.inbound.message import Inbound, MovedChat, Peer
from openclaw.messages import Route
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, SendFailed
from tests.support.channel_account import ChannelUnderTest, Receiver, running_channel
from tests.support.telegram_server import ANN, BOB, FORUM, GROUP, TOKEN, TelegramServer

TO_ANN = f"telegram:{ANN}"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@asynccontextmanager
async def bot(
    state: Path, telegram: TelegramServer, receiver: Receiver | None = None, **settings: Any
) -> AsyncGenerator[ChannelUnderTest]:
    wanted = {"botToken": TOKEN, "apiRoot": telegram.url, **settings}
    async with running_channel(state, "telegram", wanted, receiver=receiver) as account:
        await account.connected()
        yield account


async def refused(account: ChannelUnderTest, message: OutgoingMessage | str, to: str = TO_ANN) -> SendFailed:
    with pytest.raises(SendFailed) as caught:
        await account.send(message, to)
    return caught.value


@pytest.mark.parametrize(
    ("to", "peer"),
    [
        ("telegram:4242", Peer(kind="direct", id="4242")),
        ("tg:4242", Peer(kind="direct", id="4242")),
        ("-1001", Peer(kind="group", id="-1001")),
        ("telegram:group:-1001:topic:7", Peer(kind="group", id="-1001:topic:7")),
        ("-1001:7", Peer(kind="group", id="-1001:topic:7")),
        ("@news_channel", Peer(kind="group", id="@news_channel")),
        ("https://t.me/news_channel", Peer(kind="group", id="@news_channel")),
    ],
)
def test_addresses(to: str, peer: Peer) -> None:
    assert TelegramKind({}).peer(to) == peer


@pytest.mark.parametrize("to", ["", "Ann", "telegram:", "+15551234", "12.5", "@a"])
def test_what_is_no_address_is_refused(to: str) -> None:
    with pytest.raises(SendFailed) as caught:
        parse_target(to)
    assert caught.value.permanent


async def test_the_offset_moves_only_when_a_message_is_kept_and_survives_a_restart(
    tmp_path: Path, telegram: TelegramServer
) -> None:
    receiver = Receiver()
    receiver.failures = [OSError("disk full")] * 3 + [ValueError("odd")]
    async with bot(tmp_path, telegram, receiver):
        await telegram.say("first")
        await receiver.heard("first")
        await telegram.taken()
    before = len(telegram.offsets)
    async with bot(tmp_path, telegram, receiver):
        await telegram.say("second")
        await receiver.heard("second")
    assert telegram.offsets[before] == 870_000_002
    assert [one.text for one in receiver.messages] == ["first", "second"]


async def test_an_odd_update_holds_back_no_other(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        await telegram.deliver(message={"message_id": "odd", "chat": 5})
        await telegram.deliver(message=5)
        await telegram.say("fine")
        await account.receiver.heard("fine")
        await telegram.taken()


async def test_a_second_reader_of_the_bot_is_told_clearly(tmp_path: Path, telegram: TelegramServer) -> None:
    telegram.fail_next("getUpdates", 409, "Conflict: terminated by other getUpdates request")
    async with running_channel(tmp_path, "telegram", {"botToken": TOKEN, "apiRoot": telegram.url}) as account:
        await account.connected()
        disconnect = account.account.status.last_disconnect
        assert disconnect is not None and "another program reads the updates" in disconnect.error


@pytest.mark.parametrize("token", ["110201543:AAwrongwrongwrongwrongwrongwrongwrong", "nonsense"])
async def test_a_refused_token_is_one_clear_line_without_the_token(
    tmp_path: Path, telegram: TelegramServer, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_channel(tmp_path, "telegram", {"botToken": token, "apiRoot": telegram.url}) as account:
        problem = await account.stopped()
    assert problem.startswith("Telegram does not accept the bot token") and "\n" not in problem
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("openclaw", "httpx"))]
    assert not [line for line in ours if token in line]


async def test_no_token_or_no_secret_is_a_problem_that_names_the_key(tmp_path: Path) -> None:
    kind = TelegramKind({})
    async with running_channel(tmp_path, "telegram", {"enabled": True}) as account:
        assert account.account.status.last_error == (
            "set channels.telegram.botToken to the token that @BotFather gave you"
        )
    settings = {"botToken": TOKEN, "webhookUrl": "https://e.org/x"}
    async with running_channel(tmp_path, "telegram", settings) as account:
        assert "webhookSecret" in (account.account.status.last_error or "")
    assert kind.id == "telegram"


async def test_the_token_may_come_from_a_file_or_a_variable(tmp_path: Path, telegram: TelegramServer) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with running_channel(
        tmp_path / "a", "telegram", {"tokenFile": str(tmp_path / "token"), "apiRoot": telegram.url}
    ) as account:
        await account.connected()
        assert await account.send("from a file", TO_ANN)
    environ = {"TELEGRAM_BOT_TOKEN": TOKEN}
    async with running_channel(tmp_path / "b", "telegram", {"apiRoot": telegram.url}, environ=environ) as account:
        await account.connected()
        assert await account.send("from a variable", TO_ANN)
    assert [sent["text"] for sent in telegram.of("sendMessage")] == ["from a file", "from a variable"]


async def test_markup_that_is_refused_is_sent_as_plain_text_once(tmp_path: Path, telegram: TelegramServer) -> None:
    telegram.fail_next("sendMessage", 400, "Bad Request: can't parse entities: Unmatched end tag")
    async with bot(tmp_path, telegram) as account:
        await account.send("**bold** words", TO_ANN)
    (sent,) = telegram.of("sendMessage")
    assert sent["text"] == "bold words" and "parse_mode" not in sent
    assert len(telegram.refused) == 1


async def test_topics_replies_and_link_previews(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram, linkPreview=False) as account:
        await account.send(OutgoingMessage(text="in a topic", reply_to_id="5"), f"telegram:{FORUM}", thread_id=7)
        await account.send("general", f"telegram:{FORUM}", thread_id=1)
        await account.send("gone topic", f"telegram:{FORUM}:topic:99")
        route = Route(channel="telegram", to=f"telegram:{FORUM}", thread_id=1)
        await account.manager.typing("telegram", route, True)
    topic, general, gone = telegram.of("sendMessage")
    assert topic["message_thread_id"] == 7 and topic["link_preview_options"] == {"is_disabled": True}
    assert topic["reply_parameters"] == {"message_id": 5, "allow_sending_without_reply": True}
    assert "message_thread_id" not in general and "message_thread_id" not in gone
    assert telegram.of("sendChatAction")[0]["message_thread_id"] == 1


@pytest.mark.parametrize(
    ("status", "description", "parameters", "expected"),
    [
        (429, "Too Many Requests: retry after 7", {"retry_after": 7}, (False, True, False, 7.0)),
        (500, "Internal Server Error", {}, (False, True, True, None)),
        (400, "Bad Request: chat not found", {}, (True, True, False, None)),
        (403, "Forbidden: bot was blocked by the user", {}, (True, True, False, None)),
        (413, "Request Entity Too Large", {}, (True, True, False, None)),
    ],
)
async def test_failures_are_told_apart(
    tmp_path: Path, telegram: TelegramServer, status: int, description: str, parameters: Any, expected: Any
) -> None:
    async with bot(tmp_path, telegram) as account:
        telegram.fail_next("sendMessage", status, description, **parameters)
        failure = await refused(account, "hi")
        await account.send("again", TO_ANN)
    assert (failure.permanent, failure.reached, failure.maybe_sent, failure.retry_after_s) == expected


async def test_no_answer_leaves_a_doubt_and_no_server_leaves_none(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        telegram.drop_next("sendMessage")
        silence = await refused(account, "hi")
        assert silence.maybe_sent and not silence.reached
        telegram.garble_next("sendMessage")
        proxy = await refused(account, "hi")
        assert proxy.maybe_sent and proxy.reached, "something answered, so there is no silence"
        await telegram.stop()
        failure = await refused(account, "hi")
        assert not failure.reached and not failure.maybe_sent and TOKEN not in str(failure)


async def test_a_group_that_became_a_supergroup_is_written_to_under_its_new_id(
    tmp_path: Path, telegram: TelegramServer
) -> None:
    telegram.moved = {-5: GROUP}
    async with bot(tmp_path, telegram) as account:
        await account.send("one", "telegram:-5")
        await account.send("two", "telegram:-5")
    assert telegram.texts(GROUP) == ["one", "two"]
    assert len(telegram.refused) == 1


async def test_files_go_out_by_their_kind_and_a_long_text_follows_them(
    tmp_path: Path, telegram: TelegramServer
) -> None:
    async with bot(tmp_path, telegram) as account:
        blob = await account.blobs.put(PNG)
        picture = MediaRef(blob=blob, mime_type="image/png", file_name="../a b.png")
        await account.send(OutgoingMessage(text="*look*", media=(picture,)), TO_ANN)
        await account.send(OutgoingMessage(text="w" * 1025, media=(picture,), reply_to_id="7"), TO_ANN, key="run:1")
        await account.send(OutgoingMessage(text="both", media=(picture, picture)), TO_ANN, key="run:2")
        sound = MediaRef(blob=blob, mime_type="audio/ogg")
        await account.send(OutgoingMessage(media=(sound,)), TO_ANN, key="run:3")
    first, second = telegram.of("sendPhoto")
    assert (first["photo"]["name"], first["photo"]["file"], first["caption"]) == ("a b.png", PNG, "<i>look</i>")
    assert "caption" not in second and second["reply_parameters"]["message_id"] == 7
    assert [one["text"] for one in telegram.of("sendMessage")] == ["w" * 1025]
    (album,) = telegram.of("sendMediaGroup")
    assert [one.get("caption") for one in album["media"]] == ["both", None]
    assert len(telegram.of("sendAudio")) == 1


async def test_a_voice_message_is_announced_and_sent_as_one_where_it_may_be(
    tmp_path: Path, telegram: TelegramServer
) -> None:
    async with bot(tmp_path, telegram) as account:
        blob = await account.blobs.put(b"OggS sound")

        async def say(mime: str, key: str) -> None:
            media = (MediaRef(blob=blob, mime_type=mime, voice=True),)
            await account.send(OutgoingMessage(media=media), TO_ANN, key=key)

        await say("audio/ogg", "run:1")
        await say("audio/mpeg", "run:2")
        await say("audio/flac", "run:3")
        telegram.fail_next("sendVoice", 400, "Bad Request: VOICE_MESSAGES_FORBIDDEN")
        await say("audio/ogg", "run:4")
    assert len(telegram.of("sendVoice")) == 2
    assert len(telegram.of("sendDocument")) == 2
    assert [one["action"] for one in telegram.of("sendChatAction")] == ["record_voice"] * 3


async def test_a_retry_goes_on_behind_what_arrived(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        picture = MediaRef(blob=await account.blobs.put(PNG), mime_type="image/png")
        message = OutgoingMessage(text="w" * 1025, media=(picture,))
        telegram.fail_next("sendMessage", 429, "Too Many Requests", retry_after=1)
        assert (await refused(account, message)).retry_after_s == 1
        await account.send(message, TO_ANN)
    assert (len(telegram.of("sendPhoto")), len(telegram.of("sendMessage"))) == (1, 1)


async def test_a_picture_that_is_refused_goes_as_a_document(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        picture = MediaRef(blob=await account.blobs.put(PNG), mime_type="image/png", file_name="wide.png")
        telegram.fail_next("sendPhoto", 400, "Bad Request: PHOTO_INVALID_DIMENSIONS")
        await account.send(OutgoingMessage(media=(picture,)), TO_ANN)
    assert telegram.of("sendDocument")[0]["document"]["name"] == "wide.png"


async def test_earlier_messages_are_changed_deleted_and_reacted_to(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        sent = await account.send("first", TO_ANN)
        for text in ("**second**", "**second**"):
            await account.send(OutgoingMessage(act="edit", target_id=sent, text=text), TO_ANN)
        assert telegram.texts() == ["second"]
        await account.send(OutgoingMessage(act="react", target_id=sent, emoji="👍"), TO_ANN)
        await account.send(OutgoingMessage(act="react", target_id=sent, emoji="👍", remove=True), TO_ANN)
        assert [one["reaction"] for one in telegram.of("setMessageReaction")] == [
            [{"type": "emoji", "emoji": "👍"}],
            [],
        ]
        odd = await refused(account, OutgoingMessage(act="react", target_id=sent, emoji="🦀"))
        assert odd.permanent and "does not support 🦀" in str(odd)
        await account.send(OutgoingMessage(act="pin", target_id=sent), TO_ANN)
        assert telegram.pinned == [(ANN, int(sent))] and telegram.of("pinChatMessage")[0]["disable_notification"]
        for _ in range(2):
            await account.send(OutgoingMessage(act="pin", target_id=sent, remove=True), TO_ANN)
        assert telegram.pinned == []
        for _ in range(2):
            await account.send(OutgoingMessage(act="delete", target_id=sent), TO_ANN)
        assert telegram.texts() == []
        blob = await account.blobs.put(PNG)
        picture = OutgoingMessage(text="old", media=(MediaRef(blob=blob, mime_type="image/png"),))
        captioned = await account.send(picture, TO_ANN, key="run:9")
        await account.send(OutgoingMessage(act="edit", target_id=captioned, text="new"), TO_ANN)
        assert telegram.texts() == ["new"]


async def test_buttons_and_their_presses(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        rows = ((Button(text="Yes", data="/approve 1"), Button(text="No")),)
        sent = await account.send(OutgoingMessage(text="Sure?", buttons=rows), TO_ANN)
        keyboard = telegram.of("sendMessage")[0]["reply_markup"]
        assert [one["callback_data"] for one in keyboard["inline_keyboard"][0]] == ["/approve 1", "No"]
        shown = telegram.message("Sure?", message_id=int(sent), reply_markup=keyboard)
        user = {"id": ANN, "is_bot": False, "first_name": "Ann"}
        await telegram.deliver(callback_query={"id": "q", "from": user, "message": shown, "data": "/approve 1"})
        press = await account.receiver.heard("/approve 1")
        assert press.mentioned and press.quoted and press.quoted.text == "Sure?"
        assert await telegram.called("answerCallbackQuery") == [{"callback_query_id": "q"}]
        long = OutgoingMessage(text="x", buttons=((Button(text="B", data="é" * 33),),))
        assert (await refused(account, long)).permanent


async def test_files_come_in_within_the_limit(tmp_path: Path, telegram: TelegramServer) -> None:
    telegram.files = {"small": PNG, "large": b"x" * 3000, "liar": b"x" * 3000, "fake": b"not a picture"}
    async with bot(tmp_path, telegram, mediaMaxMb=0.001) as account:
        pictures = [{"file_id": "small", "width": 1, "height": 1}]
        await telegram.deliver(message=telegram.message(photo=pictures, caption="one"))
        one = await account.receiver.heard("one")
        assert one.media[0].mime_type == "image/png" and await account.blobs.get(one.media[0].blob or "") == PNG
        for name, size in (("large", 3000), ("liar", None), ("gone", None)):
            document = {"file_id": name, "file_name": f"{name}.bin", "file_size": size}
            await telegram.deliver(message=telegram.message(document=document, caption=name))
            note = (await account.receiver.heard(name)).untrusted
            assert note and note[0].startswith(f"Attachment {name}.bin was not fetched")
        fake = {"file_id": "fake", "mime_type": "image/png", "file_name": "x.png"}
        await telegram.deliver(message=telegram.message(document=fake, caption="fake"))
        assert (await account.receiver.heard("fake")).media[0].mime_type == "application/octet-stream"


async def test_an_album_is_one_message(tmp_path: Path, telegram: TelegramServer) -> None:
    telegram.files = {"a": PNG, "b": PNG + b"2"}
    for name in ("a", "b"):
        size = {"file_id": name, "width": 1, "height": 1}
        await telegram.deliver(message=telegram.message(photo=[size], media_group_id="9", caption=f"pic {name}"))
    async with bot(tmp_path, telegram) as account:
        await telegram.say("after")
        await account.receiver.heard("after")
        first, after = account.receiver.messages
    assert (first.text, len(first.media), first.message_ids) == ("pic a\npic b", 2, ("101", "102"))
    assert after.media == ()


async def test_edits_and_reactions_are_reported(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        said = await telegram.say("teh")
        await account.receiver.heard("teh")
        await telegram.deliver(edited_message={**said, "text": "the", "edit_date": 1})
        (edit,) = await account.receiver.got(1, "edits")
        assert (edit.message_id, edit.text) == (str(said["message_id"]), "the")
        ours = await account.send("mine", f"telegram:{GROUP}")
        user = {"id": BOB, "is_bot": False, "first_name": "Bob"}
        reaction = {"chat": telegram.chats[GROUP], "user": user, "date": 1, "old_reaction": []}
        for target in (5, int(ours)):
            thumb = [{"type": "emoji", "emoji": "👍"}]
            await telegram.deliver(message_reaction={**reaction, "message_id": target, "new_reaction": thumb})
        await telegram.taken()
        (notice,) = account.receiver.notices
        assert notice.text == f"Telegram: Bob reacted with 👍 to your message (id {ours})"


@pytest.mark.parametrize(
    ("topics", "route"),
    [
        (False, Route(channel="telegram", to=TO_ANN)),
        (False, Route(channel="telegram", to=TO_ANN, thread_id=77)),
        (True, Route(channel="telegram", to=TO_ANN)),
    ],
)
async def test_where_the_platform_has_no_drafts_none_is_shown(tmp_path: Path, topics: bool, route: Route) -> None:
    async with TelegramServer(has_topics_enabled=topics) as telegram, bot(tmp_path, telegram) as account:
        assert not await account.manager.draft("telegram", route, 5, "Hel")
        assert telegram.texts() == [] and not telegram.of("sendMessageDraft")


async def test_in_a_topic_of_a_direct_chat_the_platform_shows_the_draft(tmp_path: Path) -> None:
    async with TelegramServer(has_topics_enabled=True) as telegram, bot(tmp_path, telegram) as account:
        route = Route(channel="telegram", to=TO_ANN, thread_id=77)
        assert await account.manager.draft("telegram", route, 0, "Hel")
        assert await account.manager.draft("telegram", route, 0, "Hello")  # Too soon to be shown.
        (shown,) = telegram.of("sendMessageDraft")
        assert shown == {"chat_id": ANN, "draft_id": 1, "message_thread_id": 77, "text": "Hel"}
        assert await account.manager.draft("telegram", route, 0, "")
        assert await account.manager.draft("telegram", route, 1, "x" * 5000)  # It is too long.
        assert telegram.texts() == [] and len(telegram.of("sendMessageDraft")) == 1


async def test_the_server_comes_back(tmp_path: Path, telegram: TelegramServer) -> None:
    async with bot(tmp_path, telegram) as account:
        await telegram.polling()
        await telegram.stop()
        assert "cannot be reached" in await account.failing() or "no answer" in await account.failing()
        await telegram.start()
        await telegram.say("back")
        await account.receiver.heard("back")
        probe = await account.manager.probe(account.account, 30)
        assert probe["ok"] and probe["bot"]["username"] == "claw_bot"


def test_a_channel_that_is_off_imports_no_library() -> None:
    code = (
        "import sys; from openclaw.channels.base import ChannelKinds; from openclaw.config.load import parse_config;"
        "config = parse_config('c', '{channels: {telegram: {enabled: false, botToken: \"1:a\"}}}', {}).config;"
        "kinds = ChannelKinds({}).configured(config); assert kinds[0].accounts(config);"
        "assert not {'telegram', 'httpx', 'openclaw.channels.telegram.channel'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_through_the_webhook_the_updates_of_a_chat_and_of_a_group_that_moves_are_taken_in_turn(
    tmp_path: Path, telegram: TelegramServer
) -> None:
    order: list[str] = []
    go_on = asyncio.Event()

    class SlowReceiver(Receiver):
        async def receive(self, inbound: Inbound) -> bool | None:
            if inbound.text == "one":
                await go_on.wait()
            order.append(inbound.text)
            return await super().receive(inbound)

        async def moved(self, move: MovedChat) -> None:
            order.append(f"{move.old} to {move.new}")

    old, receiver = -4001, SlowReceiver()
    telegram.chats[old] = {"id": old, "type": "group", "title": "Friends"}
    settings = {"webhookUrl": "https://claw.example.org/telegram-webhook", "webhookSecret": "word"}
    async with bot(tmp_path, telegram, receiver, **settings) as account:
        found = account.manager.webhook("/telegram-webhook")
        assert found is not None
        answer = found[0]
        messages = [
            telegram.message("one", chat=old),
            telegram.message(chat=old, migrate_to_chat_id=GROUP),
            telegram.message("two", chat=GROUP),
            telegram.message("three", chat=ANN),
        ]

        async def tell(number: int) -> int:
            body = json.dumps({"update_id": number, "message": messages[number]}).encode()
            headers = {"x-telegram-bot-api-secret-token": "word"}
            request = WebhookRequest(method="POST", path="", query={}, headers=headers, body=body)
            return (await answer(request)).status

        telling = [asyncio.create_task(tell(number)) for number in range(4)]
        await receiver.heard("three")
        go_on.set()
        assert await asyncio.gather(*telling) == [200] * 4
    assert order == ["three", "one", f"{old} to {GROUP}", "two"]


async def test_a_server_that_knows_no_webhooks_is_polled(tmp_path: Path, telegram: TelegramServer) -> None:
    telegram.fail_next("deleteWebhook", 404, "Not Found")
    async with bot(tmp_path, telegram) as account:
        await telegram.say("hello")
        await account.receiver.heard("hello")
