"""iMessage through BlueBubbles, against a server that refuses what the real one refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from openclaw.channels.bluebubbles import BlueBubblesKind, chat_guid
from openclaw.inbound.message import Peer
from openclaw.messages import Route
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from tests.support.bluebubbles_server import ANN, BOB, DIRECT, GROUP, PASSWORD, BlueBubblesServer
from tests.support.channel_account import ChannelUnderTest, running_channel

PATH, TO = "/bluebubbles-webhook", f"chat_guid:{DIRECT}"


@asynccontextmanager
async def running(
    tmp_path: Path, server: BlueBubblesServer | None = None, channel: str = "bluebubbles", **section: Any
) -> AsyncGenerator[tuple[BlueBubblesServer, ChannelUnderTest]]:
    async with (
        server or BlueBubblesServer() as served,
        running_channel(tmp_path, channel, {**served.settings, **section}) as setup,
    ):
        await setup.connected()
        yield served, setup


async def told(setup: ChannelUnderTest, server: BlueBubblesServer, message: Any, kind: str = "new-message") -> int:
    return (await setup.post(PATH, server.event(message, kind), query={"password": PASSWORD})).status


@pytest.mark.parametrize(
    ("request_parts", "status"),
    [
        ({"query": {"password": PASSWORD}}, 200),
        ({"query": {"guid": PASSWORD}}, 200),
        ({"headers": {"x-password": PASSWORD}}, 200),
        ({"headers": {"authorization": f"Bearer {PASSWORD}"}}, 200),
        ({"query": {"password": "wrong"}}, 401),
        ({"query": {"password": ""}}, 401),
        ({}, 401),
    ],
)
async def test_only_who_knows_the_password_is_heard(tmp_path: Path, request_parts: Any, status: int) -> None:
    async with running(tmp_path) as (server, setup):
        body = server.event(server.message("hello"))
        assert (await setup.post(PATH, body, **request_parts)).status == status
    assert len(setup.receiver.messages) == (status == 200)


async def test_messages_of_all_kinds_come_in(tmp_path: Path) -> None:
    async with running(tmp_path, mediaMaxMb=1) as (server, setup):
        server.files["photo"] = b"picture"
        files = [
            {"guid": "photo", "mimeType": "image/png", "transferName": "p.png", "totalBytes": 7},
            {"guid": "huge", "transferName": "huge.mov", "totalBytes": 9_000_000},
            {"guid": "gone", "transferName": "gone.txt"},
            {"guid": "hidden", "hideAttachment": True},
        ]
        own = server.message("mine", isFromMe=True)
        for message in (
            server.message("hello", unknownField={"deep": [1]}),
            server.message("\ufffc", attachments=files),
            server.message("in the group", sender=BOB.upper(), chat=GROUP),
            server.message("a reply", threadOriginatorGuid="GUID-1"),
            own,
            server.message(None, itemType=1),
            server.message("", attachments=[]),
        ):
            assert await told(setup, server, message) == 200
            assert await told(setup, server, message) == 200, "the second time starts nothing"
        for body in (b"{", b"[]", b'{"type": "new-message", "data": 5}', b'{"type": "typing-indicator", "data": {}}'):
            assert (await setup.post(PATH, body, query={"password": PASSWORD})).status == 200
        await server.until(lambda: len(server.of("POST read")) >= 2)  # One for each conversation, in the background.
    heard = setup.receiver.messages
    assert [inbound.text for inbound in heard] == ["hello", "", "in the group", "a reply"]
    assert (heard[0].sender.id, heard[0].to, heard[0].peer) == (ANN, TO, Peer(kind="direct", id=ANN))
    assert [media.file_name for media in heard[1].media] == ["p.png"]
    assert len(heard[1].untrusted) == 2 and "larger than 1 MB" in heard[1].untrusted[0]
    assert (heard[2].sender.id, heard[2].peer) == (BOB, Peer(kind="group", id=GROUP))
    assert heard[2].group_subject == "Family"


async def test_changes_unsent_messages_and_tapbacks_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, setup):
        sent = await setup.send("ours", TO)
        first = server.message("helo")
        await told(setup, server, first)
        await told(setup, server, {**first, "text": "hello", "dateEdited": 17}, "updated-message")
        await told(setup, server, {**first, "dateRetracted": 18}, "updated-message")
        await told(setup, server, {**first, "dateRead": 19}, "updated-message")
        for kind in ("love", 2001, "-love", "3001", "sticker"):
            reaction = {"associatedMessageGuid": f"p:0/{sent}", "associatedMessageType": kind}
            await told(setup, server, server.message("Loved “ours”", **reaction))
        stranger = {"associatedMessageGuid": "bp:GUID-77", "associatedMessageType": "like"}
        await told(setup, server, server.message("Liked", chat=GROUP, **stranger))
    assert [(edit.message_id, edit.text, edit.revision) for edit in setup.receiver.edits] == [
        (first["guid"], "hello", "17")
    ]
    assert [gone.message_id for gone in setup.receiver.deletions] == [first["guid"]]
    assert setup.receiver.notice_texts == [
        f"BlueBubbles: {ANN} reacted with ❤️ to your message (id {sent})",
        f"BlueBubbles: {ANN} reacted with 👍 to your message (id {sent})",
        f"BlueBubbles: {ANN} took back the reaction ❤️ to your message (id {sent})",
        f"BlueBubbles: {ANN} took back the reaction 👍 to your message (id {sent})",
    ]
    assert [inbound.text for inbound in setup.receiver.messages] == ["helo"]


async def test_texts_replies_files_and_changes_go_out(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, setup):
        file = MediaRef(blob=await setup.blobs.put(b"notes"), mime_type="text/plain", file_name="../b notes.txt")
        sent = await setup.send(OutgoingMessage(text="**bold**", reply_to_id="GUID-9"), f"imessage:{ANN}", key="run:1")
        await setup.send(OutgoingMessage(text="with a file", media=(file,)), GROUP, key="run:2")
        voice = msgspec.structs.replace(file, mime_type="audio/mp4", file_name="v.m4a", voice=True)
        await setup.send(OutgoingMessage(media=(voice,)), GROUP, key="run:3")
        await setup.send(OutgoingMessage(act="react", target_id="GUID-9", emoji="❤️"), TO)
        await setup.send(OutgoingMessage(act="react", target_id="GUID-9", emoji="👍", remove=True), TO)
        await setup.send(OutgoingMessage(act="edit", target_id=sent, text="better"), TO)
        await setup.send(OutgoingMessage(act="delete", target_id=sent), TO)
        with pytest.raises(SendFailed, match="iMessage only supports"):
            await setup.send(OutgoingMessage(act="react", target_id="GUID-9", emoji="🦞"), TO)
        route = Route(channel="bluebubbles", to=TO)
        await setup.manager.typing("bluebubbles", route, True)
        await setup.manager.typing("bluebubbles", route, False)
    first = server.of("message/text")[0]
    assert first == {
        "chatGuid": DIRECT, "tempGuid": "run:1", "message": "bold", "method": "private-api",
        "selectedMessageGuid": "GUID-9", "partIndex": 0,
    }  # fmt: skip
    assert server.of("message/attachment") == [
        {"name": "b notes.txt", "data": b"notes"},
        {"name": "v.m4a", "data": b"notes", "voice": "true"},
    ]
    assert [body["reaction"] for body in server.of("message/react")] == ["love", "-like"]
    assert server.of("message/edit")[0]["editedMessage"] == "better"
    assert server.of("message/unsend")[0]["guid"] == sent
    assert len(server.of("POST typing")) == len(server.of("DELETE typing")) == 1


async def test_without_the_private_api_texts_go_out_and_the_rest_is_refused_clearly(tmp_path: Path) -> None:
    async with running(tmp_path, BlueBubblesServer(private_api=False)) as (server, setup):
        sent = await setup.send(OutgoingMessage(text="plain", reply_to_id="GUID-9"), TO)
        await setup.manager.typing("bluebubbles", Route(channel="bluebubbles", to=TO), True)
        with pytest.raises(SendFailed, match="needs the Private API") as failed:
            await setup.send(OutgoingMessage(act="edit", target_id=sent, text="x"), TO)
        await told(setup, server, server.message("hello"))
    assert failed.value.permanent
    assert server.of("message/text")[0]["method"] == "apple-script"
    assert not server.of("POST typing") and not server.of("POST read")


async def test_a_text_whose_answer_was_lost_is_found_and_not_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, setup):
        server._clock = setup.manager._clock.now_ms()  # pyright: ignore[reportPrivateUsage]
        server.faults.append("drop")
        with pytest.raises(SendFailed) as failed:
            await setup.send("only once", TO, key="run:3")
        assert failed.value.maybe_sent
        again = OutgoingMessage(text="only once", possibly_duplicate=True)
        assert await setup.send(again, TO, key="run:3") == server.ours[0]["guid"]
        server.faults.append(500)
        with pytest.raises(SendFailed):
            await setup.send("never arrived", TO, key="run:4")
        await setup.send(OutgoingMessage(text="never arrived", possibly_duplicate=True), TO, key="run:4")
    assert [message["text"] for message in server.ours] == ["only once", "never arrived"]


async def test_a_text_that_is_still_being_sent_is_in_doubt(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, setup):
        server.queued.add("run:5")
        with pytest.raises(SendFailed, match="already queued") as failed:
            await setup.send("slow", TO, key="run:5")
    assert failed.value.maybe_sent and not failed.value.permanent


async def test_what_came_while_nobody_listened_is_asked_for(tmp_path: Path) -> None:
    server = BlueBubblesServer()
    server.keep(server.message("long ago"))
    async with running(tmp_path, server) as (_, setup):
        await told(setup, server, server.keep(server.message("heard")))
        assert [inbound.text for inbound in setup.receiver.messages] == ["heard"]
    for number in range(230):
        server.keep(server.message(f"missed {number}"))
    async with running(tmp_path, server) as (_, setup):
        texts = [inbound.text for inbound in setup.receiver.messages]
    assert texts[-230:] == [f"missed {number}" for number in range(230)]
    assert set(texts[:-230]) <= {"heard", "long ago"}, "what lies shortly before the bookmark is dropped by dedupe"


class SlowServer(BlueBubblesServer):
    """Says who it is only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def _info(self, request: web.Request) -> web.Response:
        self.asked.set()
        await self.go_on.wait()
        return await super()._info(request)


async def test_a_new_message_does_not_hide_those_that_were_missed_before_it(tmp_path: Path) -> None:
    server = SlowServer()
    server.go_on.set()
    async with running(tmp_path, server) as (_, setup):
        await told(setup, server, server.keep(server.message("heard")))
    missed = server.keep(server.message("missed"))
    server.go_on.clear()
    server.asked.clear()
    async with server, running_channel(tmp_path, "bluebubbles", server.settings) as setup:
        await server.asked.wait()
        new = server.keep(server.message("new", dateCreated=missed["dateCreated"] + 600_000))
        assert await told(setup, server, new) == 200
        server.go_on.set()
        await setup.receiver.until(lambda: {"missed", "new"} <= {inbound.text for inbound in setup.receiver.messages})


async def test_a_wrong_password_is_one_line_without_the_password(tmp_path: Path) -> None:
    async with BlueBubblesServer() as server:
        section = {**server.settings, "password": "wrong-canary-password"}
        async with running_channel(tmp_path, "imessage", section) as setup:
            error = await setup.ended()
    assert error.startswith("channels.imessage.password: the BlueBubbles server rejected it")
    assert "canary" not in error


async def test_a_server_that_is_away_is_waited_for_without_its_password_in_any_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with BlueBubblesServer() as server:
        section = server.settings
    async with running_channel(tmp_path, "bluebubbles", section) as setup:
        (account,) = setup.manager.accounts("bluebubbles")
        async with asyncio.timeout(60):
            while account.status.last_error is None:
                await asyncio.sleep(0.01)
        assert "cannot be reached" in account.status.last_error
        assert PASSWORD not in account.status.last_error + caplog.text
        await server.start()
        try:
            await setup.connected()
        finally:
            await server.stop()


@pytest.mark.parametrize(
    ("to", "guid"),
    [
        ("+1 (555) 000-0042", "iMessage;-;+15550000042"),
        ("imessage:Bob@Example.org", "iMessage;-;bob@example.org"),
        ("chat_guid:SMS;-;+15550000042", "SMS;-;+15550000042"),
        (GROUP, GROUP),
        (f"bluebubbles:chat_guid:{GROUP}", GROUP),
    ],
)
def test_addresses(to: str, guid: str) -> None:
    assert chat_guid(to) == guid


@pytest.mark.parametrize("to", ["", "ann", "chat_guid:", "iMessage;-;", "a@b;c"])
def test_what_is_no_address_is_refused_for_good(to: str) -> None:
    with pytest.raises(SendFailed) as refused:
        chat_guid(to)
    assert refused.value.permanent


def test_an_address_names_its_conversation() -> None:
    kind = BlueBubblesKind({})
    assert kind.peer(GROUP) == Peer(kind="group", id=GROUP)
    assert kind.peer("+15550000042") == Peer(kind="direct", id="+15550000042")


class SparseServer(BlueBubblesServer):
    """A server that answers a ping and sends texts, and has nothing else."""

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/api/v1/ping", self._ping)
        app.router.add_post("/api/v1/message/text", self._text)
        return app

    async def _ping(self, request: web.Request) -> web.Response:
        return web.json_response({"status": 200, "message": "Ping received!", "data": "pong"})


async def test_a_server_that_has_only_the_necessary_calls_is_enough(tmp_path: Path) -> None:
    async with running(tmp_path, SparseServer()) as (server, setup):
        bare = {"guid": "m1", "text": "hello", "handle": {"address": ANN}, "isFromMe": False}
        assert await told(setup, server, bare) == 200
        assert await setup.send("hi", setup.receiver.messages[0].to)
    assert setup.receiver.messages[0].peer == Peer(kind="direct", id=ANN)
    assert [sent["message"] for sent in server.of("message/text")] == ["hi"]
