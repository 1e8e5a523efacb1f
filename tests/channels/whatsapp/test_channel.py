"""WhatsApp through the Cloud API, against a server that refuses what the real one refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.channels.whatsapp import recipient
from openclaw.messages import Route
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from tests.support.channel_account import ChannelUnderTest, running_channel
from tests.support.whatsapp_server import ANN, NUMBER_ID, OUR_NUMBER, TOKEN, VERIFY, WhatsAppServer

PATH = "/whatsapp/webhook"


@asynccontextmanager
async def running(
    tmp_path: Path, server: WhatsAppServer | None = None, **section: Any
) -> AsyncGenerator[tuple[WhatsAppServer, ChannelUnderTest]]:
    async with (
        server or WhatsAppServer() as server,
        running_channel(tmp_path, "whatsapp", {**server.settings, **section}) as channel,
    ):
        await channel.connected()
        yield server, channel


async def told(channel: ChannelUnderTest, server: WhatsAppServer, *values: dict[str, Any]) -> int:
    body = server.body(*values)
    return (await channel.post(PATH, body, headers=server.signed(body))).status


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"hub.mode": "subscribe", "hub.verify_token": VERIFY, "hub.challenge": "1158201444"}, 200, "1158201444"),
        ({"hub.mode": "subscribe", "hub.verify_token": "wrong", "hub.challenge": "1"}, 403, None),
        ({"hub.mode": "unsubscribe", "hub.verify_token": VERIFY, "hub.challenge": "1"}, 403, None),
        ({}, 403, None),
    ],
)
async def test_the_address_is_proved_with_the_verify_token(
    tmp_path: Path, query: dict[str, str], status: int, text: str | None
) -> None:
    async with running(tmp_path) as (_, channel):
        answer = await channel.post(PATH, b"", "GET", query=query)
    assert answer.status == status
    assert text is None or answer.text == text


@pytest.mark.parametrize("headers", [{}, {"x-hub-signature-256": "sha256=00"}, {"x-hub-signature-256": "é"}, "other"])
async def test_what_is_not_signed_is_not_even_parsed(tmp_path: Path, headers: Any) -> None:
    async with running(tmp_path) as (server, channel):
        body = server.body(server.message("let me in"))
        given = server.signed(body, "another-secret") if headers == "other" else headers
        assert (await channel.post(PATH, body, headers=given)).status == 401
        assert (await channel.post(PATH, body + b" ", headers=server.signed(body))).status == 401
    assert channel.receiver.messages == []


async def test_messages_of_all_kinds_come_in(tmp_path: Path) -> None:
    async with running(tmp_path, mediaMaxMb=1) as (server, channel):
        server.media["photo"] = (b"\x89PNG\r\n\x1a\n picture", "image/png")
        server.media["stolen"] = (b"x", "text/plain")
        server.media["huge"] = (b"x" * 2_000_000, "video/mp4")
        reply = {"id": "wamid.out1", "from": OUR_NUMBER}
        place = {"latitude": 52.5, "longitude": 13.4, "name": "Office"}
        values = [
            server.message("hello"),
            server.message("answering", context=reply),
            server.message("passed on", context={"forwarded": True}),
            server.message(type="image", image={"id": "photo", "mime_type": "image/png", "caption": "look"}),
            server.message(type="document", document={"id": "stolen", "filename": "x.txt"}),
            server.message(type="video", video={"id": "huge"}),
            server.message(
                type="interactive", interactive={"type": "button_reply", "button_reply": {"id": "1", "title": "Yes"}}
            ),
            server.message(type="button", button={"text": "Pressed", "payload": "p"}),
            server.message(type="location", location=place),
            server.message(type="order", order={"catalog_id": "1"}),
            server.message(type="unsupported", errors=[{"code": 131051}]),
            server.message("in a group", group_id="group-0123456789"),
        ]
        for value in values:
            assert await told(channel, server, value) == 200
    heard = channel.receiver.messages
    assert [inbound.text for inbound in heard] == [
        *("hello", "answering", "passed on", "look", "", "", "Yes", "Pressed"),
        *("📍 52.500000, 13.400000 Office", "[order]", "in a group"),
    ]
    first = heard[0]
    assert (first.sender.id, first.sender.name, first.to, first.peer.kind) == (f"+{ANN}", "Ann", f"+{ANN}", "direct")
    assert heard[1].quoted is not None and heard[1].quoted.from_us
    assert heard[2].forwarded_from
    assert [media.mime_type for media in heard[3].media] == ["image/png"]
    assert server.media_tokens == [f"Bearer {TOKEN}"], "the token went nowhere else"
    assert "not on a WhatsApp server" in heard[4].untrusted[0]
    assert "larger than 1 MB" in heard[5].untrusted[0]
    assert (heard[10].peer.kind, heard[10].to) == ("group", "group:group-0123456789")


async def test_a_redelivered_message_is_handed_in_once_and_other_numbers_are_ignored(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        value = server.message("once")
        assert [await told(channel, server, value, value) for _ in range(3)] == [200, 200, 200]
        other = {**server.message("not ours"), "metadata": {"phone_number_id": "999"}}
        assert await told(channel, server, other) == 200
        for body in (b"{", b"[]", b'{"entry": 5}', b'{"entry": [{"changes": [{"field": "messages", "value": []}]}]}'):
            assert (await channel.post(PATH, body, headers=server.signed(body))).status == 200
    assert [inbound.text for inbound in channel.receiver.messages] == ["once"]


async def test_the_platform_is_told_only_when_the_message_is_on_disk(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        channel.receiver.failures = [OSError("disk full") for _ in range(20)]
        assert await told(channel, server, server.message("in the end")) == 200
    assert [inbound.text for inbound in channel.receiver.messages] == ["in the end"]
    assert not channel.receiver.failures


async def test_reading_and_typing_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        value = server.message("hello")
        await told(channel, server, value)
        await server.until(lambda: len(server.read) == 1)
        await channel.manager.typing("whatsapp", Route(channel="whatsapp", to=f"+{ANN}"), True)
    message_id = value["messages"][0]["id"]
    assert [body["message_id"] for body in server.read] == [message_id, message_id]
    assert "typing_indicator" not in server.read[0] and server.read[1]["typing_indicator"] == {"type": "text"}


async def test_the_typing_sign_belongs_to_the_message_that_is_answered(tmp_path: Path) -> None:
    """Its run begins before the channel knows that the message was accepted, and after a restart."""
    async with running(tmp_path) as (server, channel):
        route = Route(channel="whatsapp", to=f"+{ANN}", reply_to_id="wamid.1")
        await channel.manager.typing("whatsapp", route, True)
        await channel.manager.typing("whatsapp", route, False)
    assert [(body["message_id"], "typing_indicator" in body) for body in server.read] == [("wamid.1", True)]


async def test_reactions_and_failed_deliveries_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        sent = await channel.send("hello", f"+{ANN}")
        await told(channel, server, server.message(type="reaction", reaction={"message_id": sent, "emoji": "👍"}))
        await told(channel, server, server.message(type="reaction", reaction={"message_id": sent}))
        late = [{"code": 131047, "title": "Re-engagement message"}]
        await told(channel, server, server.status(sent, "failed", errors=late), server.status(sent, "delivered"))
    assert channel.receiver.notice_texts[0] == f"WhatsApp: Ann reacted with 👍 to your message (id {sent})"
    assert "took back the reaction" in channel.receiver.notice_texts[1]
    assert (
        "more than 24 hours" in channel.receiver.notice_texts[2]
        and "they must write first" in channel.receiver.notice_texts[2]
    )


async def test_texts_quotes_reactions_and_files_go_out(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        text = MediaRef(blob=await channel.blobs.put(b"notes"), mime_type="text/plain", file_name="a/b notes.txt")
        photo = MediaRef(blob=await channel.blobs.put(b"png"), mime_type="image/png")
        await channel.send(OutgoingMessage(text="**bold**", reply_to_id="wamid.in1"), f"whatsapp:+{ANN}")
        await channel.send(OutgoingMessage(text="both", media=(photo, text)), f"+{ANN}", key="run:1")
        await channel.send(OutgoingMessage(text="long " * 300, media=(photo,)), f"+{ANN}", key="run:2")
        await channel.send(OutgoingMessage(act="react", target_id="wamid.in1", emoji="👍"), f"+{ANN}")
        with pytest.raises(SendFailed) as failed:
            await channel.send(OutgoingMessage(act="edit", target_id="wamid.out1", text="x"), f"+{ANN}")
    assert failed.value.permanent
    kinds = [message["type"] for message in server.delivered]
    assert kinds == ["text", "image", "document", "text", "image", "reaction"]
    first, second, third = server.delivered[:3]
    assert (first["text"]["body"], first["context"]) == ("*bold*", {"message_id": "wamid.in1"})
    assert second["image"]["caption"] == "both"
    assert third["document"]["filename"] == "b notes.txt"
    assert [name for name, _ in server.uploads.values()][1] == "b notes.txt"


async def test_a_voice_message_is_one_in_the_format_that_the_platform_has_for_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        for number, (mime, voice) in enumerate([("audio/ogg", True), ("audio/ogg", False), ("audio/mpeg", True)]):
            media = MediaRef(blob=await channel.blobs.put(b"sound"), mime_type=mime, voice=voice)
            await channel.send(OutgoingMessage(media=(media,)), f"+{ANN}", key=f"run:{number}")
    assert [message["audio"].get("voice") for message in server.delivered] == [True, None, None]


async def test_what_arrived_is_not_sent_again_with_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        one, two = [
            MediaRef(blob=await channel.blobs.put(data), mime_type="image/png", file_name="x.png")
            for data in (b"1", b"2")
        ]
        server.drop_next()
        message = OutgoingMessage(text="two", media=(one, two))
        with pytest.raises(SendFailed) as failed:
            await channel.send(message, f"+{ANN}", key="run:5")
        assert failed.value.maybe_sent
        # The platform tells of the message whose answer was lost.
        told_key = server.delivered[0]["biz_opaque_callback_data"]
        await told(channel, server, server.status("wamid.out2", "sent", biz_opaque_callback_data=told_key))
        await channel.send(message, f"+{ANN}", key="run:5")
    assert [message["image"].get("caption") for message in server.delivered] == ["two", None]


@pytest.mark.parametrize(
    ("code", "status", "permanent", "reached", "maybe_sent", "wait"),
    [
        (131047, 400, True, True, False, None),
        (131026, 400, True, True, False, None),
        (100, 400, True, True, False, None),
        (190, 401, False, False, False, None),
        (130429, 400, False, True, False, 5.0),
        (131056, 400, False, True, False, 6.0),
        (131000, 500, False, True, True, None),
        (131000, 503, False, True, True, 8.0),
    ],
)
async def test_failures_mean_what_the_platform_says(
    tmp_path: Path, code: int, status: int, permanent: bool, reached: bool, maybe_sent: bool, wait: float | None
) -> None:
    async with running(tmp_path) as (server, channel):
        server.refuse_next(code, "(#x) no", status, {"Retry-After": "8"} if status == 503 else None)
        with pytest.raises(SendFailed) as failed:
            await channel.send("hello", f"+{ANN}")
    failure = failed.value
    assert (failure.permanent, failure.reached, failure.maybe_sent) == (permanent, reached, maybe_sent)
    assert failure.retry_after_s == wait
    assert ("24 hours" in str(failure)) == (code == 131047)


async def test_a_refused_token_is_one_line_without_the_token(tmp_path: Path) -> None:
    async with WhatsAppServer() as server:
        section = {**server.settings, "accessToken": "EAAwrong-canary"}
        async with running_channel(tmp_path, "whatsapp", section) as channel:
            error = await channel.ended()
    assert error.startswith("channels.whatsapp.accessToken: WhatsApp rejected it")
    assert "EAA" not in error


@pytest.mark.parametrize("missing", ["phoneNumberId", "accessToken", "appSecret", "verifyToken"])
async def test_a_missing_key_is_named(tmp_path: Path, missing: str) -> None:
    async with WhatsAppServer() as server:
        section = {key: value for key, value in server.settings.items() if key != missing}
        async with running_channel(tmp_path, "whatsapp", section) as channel:
            assert f"channels.whatsapp.{missing}" in await channel.ended()


@pytest.mark.parametrize(
    ("to", "found"),
    [
        ("+15550000042", ("individual", "15550000042")),
        ("whatsapp:+1 (555) 000-0042", ("individual", "15550000042")),
        ("0015550000042", ("individual", "15550000042")),
        ("group:abcdef012345", ("group", "abcdef012345")),
    ],
)
def test_addresses(to: str, found: tuple[str, str]) -> None:
    assert recipient(to) == found


@pytest.mark.parametrize("to", ["", "ann", "group:", "+1", "user:U1"])
def test_what_is_no_address_is_refused_for_good(to: str) -> None:
    with pytest.raises(SendFailed) as refused:
        recipient(to)
    assert refused.value.permanent


class SparseServer(WhatsAppServer):
    """A server that only takes messages, and gives its answers in small pieces."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post(f"/v23.0/{NUMBER_ID}/messages", self._in_pieces)
        return app

    async def _in_pieces(self, request: web.Request) -> web.StreamResponse:
        whole = await self._messages(request)
        assert isinstance(whole, web.Response) and isinstance(whole.body, bytes)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        for begin in range(0, len(whole.body), 20):
            await answer.write(whole.body[begin : begin + 20])
            await asyncio.sleep(0)
        await answer.write_eof()
        return answer


async def test_a_server_that_only_takes_messages_and_answers_in_pieces_is_enough(tmp_path: Path) -> None:
    async with running(tmp_path, SparseServer()) as (server, channel):
        sent = await channel.send("hello", f"+{ANN}")
    assert [message["id"] for message in server.delivered] == [sent]


async def test_a_message_that_cannot_be_read_does_not_cost_the_others(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, channel):
        value = server.message("one")
        odd = {"from": ANN, "id": "wamid.odd", "type": "location", "location": {"latitude": "north"}}
        value["messages"] = [odd, *value["messages"], server.message("two")["messages"][0]]
        assert await told(channel, server, {"messages": 5}, value) == 200
    assert [message.text for message in channel.receiver.messages] == ["one", "two"]
