"""Matrix against a real Synapse: rooms, threads, edits, files, log-ins, and servers that fail."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw.channels.matrix import MatrixKind
from openclaw.channels.matrix.client import MatrixClient
from openclaw.inbound.message import Inbound
from openclaw.messages import Route
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from tests.support.channel_account import ChannelUnderTest, Receiver, running_channel, until
from tests.support.synapse import Human, Synapse, shared_synapse
from tests.support.tcp_proxy import TcpProxy

PICTURE = b"\x89PNG\r\n\x1a\n" + b"picture"


@pytest.fixture
def server() -> Synapse:
    return shared_synapse()


class Stage:
    """Ann, the agent's account, and a room of both."""

    def __init__(self, matrix: ChannelUnderTest, ann: Human, bot: Human, room: str) -> None:
        self.matrix, self.ann, self.bot, self.room = matrix, ann, bot, room

    async def send(self, part: OutgoingMessage | str, key: str = "run:0", **route: Any) -> str:
        return await self.matrix.send(part, f"room:{self.room}", key, **route)


def settings_of(bot: Human, url: str, **more: Any) -> dict[str, Any]:
    return {"homeserver": url, "userId": bot.user_id, "accessToken": bot.token, **more}


@asynccontextmanager
async def staged(
    tmp_path: Path,
    server: Synapse,
    *,
    url: str = "",
    direct: bool = False,
    receiver: Receiver | None = None,
    **more: Any,
) -> AsyncIterator[Stage]:
    """The account runs and has joined a room of three, or with ``direct`` a room of two."""
    async with Human(server, "ann") as ann, Human(server, "bot") as bot, Human(server, "cat") as cat:
        settings = settings_of(bot, url or server.url, **more)
        async with running_channel(tmp_path, "matrix", settings, receiver=receiver) as matrix:
            await matrix.connected()
            people = [bot.user_id] if direct else [bot.user_id, cat.user_id]
            room = await ann.create_room(*people, is_direct=direct, name="Kitchen")
            if not direct:
                await cat.call("POST", f"/join/{room}", {})
            await ann.joined(room, bot.user_id)
            yield Stage(matrix, ann, bot, room)


async def test_a_message_in_a_room_comes_in_and_its_answer_goes_out(tmp_path: Path, server: Synapse) -> None:
    async with staged(tmp_path, server) as stage:
        mention = {"msgtype": "m.text", "body": "hello", "m.mentions": {"user_ids": [stage.bot.user_id]}}
        event_id = await stage.ann.send(stage.room, mention)
        (message,) = await stage.matrix.receiver.got()
        assert (message.text, message.mentioned, message.message_id) == ("hello", True, event_id)
        assert (message.peer.kind, message.peer.id, message.to) == ("channel", stage.room, f"room:{stage.room}")
        assert (message.sender.id, message.group_subject) == (stage.ann.user_id, "Kitchen")
        sent = await stage.send("**Hi** _Ann_")
        (event,) = await stage.ann.saw(stage.room, stage.bot.user_id)
        assert event["event_id"] == sent
        assert event["content"]["body"] == "Hi Ann"
        assert event["content"]["formatted_body"] == "<p><strong>Hi</strong> <em>Ann</em></p>"
        assert (await stage.matrix.manager.probe(stage.matrix.account, 60))["userId"] == stage.bot.user_id


async def test_a_room_of_two_is_a_direct_chat_also_for_words_written_before_we_came(
    tmp_path: Path, server: Synapse
) -> None:
    async with (
        Human(server, "ann") as ann,
        Human(server, "bot") as bot,
        running_channel(tmp_path, "matrix", settings_of(bot, server.url)) as matrix,
    ):
        await matrix.connected()
        room = await ann.create_room(bot.user_id, is_direct=True)
        await ann.send(room, "are you there?")
        message = await matrix.receiver.heard("are you there?")
        assert (message.peer.kind, message.peer.id) == ("direct", ann.user_id)
        await matrix.send("yes", f"matrix:{ann.user_id}")
        (event,) = await ann.saw(room, bot.user_id)
        assert event["content"]["body"] == "yes"


async def test_what_a_room_said_before_we_were_invited_is_not_heard(tmp_path: Path, server: Synapse) -> None:
    async with (
        Human(server, "ann") as ann,
        Human(server, "bot") as bot,
        running_channel(tmp_path, "matrix", settings_of(bot, server.url)) as matrix,
    ):
        await matrix.connected()
        room = await ann.create_room()
        await ann.send(room, "an old secret")
        await ann.call("POST", f"/rooms/{room}/invite", {"user_id": bot.user_id})
        await ann.send(room, "right after the invitation")
        await ann.joined(room, bot.user_id)
        await ann.send(room, "last")
        await matrix.receiver.heard("last")
        heard = [one.text for one in matrix.receiver.messages]
        assert heard == ["right after the invitation", "last"]


async def test_threads_replies_edits_reactions_and_deletions_are_understood(tmp_path: Path, server: Synapse) -> None:
    async with staged(tmp_path, server) as stage:
        ann, room, receiver = stage.ann, stage.room, stage.matrix.receiver
        ours = await stage.send("what we said")
        root = await ann.send(room, "a topic")
        thread = {
            "rel_type": "m.thread",
            "event_id": root,
            "is_falling_back": True,
            "m.in_reply_to": {"event_id": root},
        }
        await ann.send(room, {"msgtype": "m.text", "body": "in the thread", "m.relates_to": thread})
        answer = {"m.in_reply_to": {"event_id": ours}}
        await ann.send(room, {"msgtype": "m.text", "body": "> <@x:test> quote\n\nan answer", "m.relates_to": answer})
        new = {"msgtype": "m.text", "body": "a better topic"}
        replace = {"rel_type": "m.replace", "event_id": root}
        await ann.send(room, {"msgtype": "m.text", "body": "* a", "m.new_content": new, "m.relates_to": replace})
        forged = {"rel_type": "m.replace", "event_id": ours}
        await ann.send(room, {"msgtype": "m.text", "body": "* a", "m.new_content": new, "m.relates_to": forged})
        thumb = {"rel_type": "m.annotation", "event_id": ours, "key": "👍"}
        await ann.send(room, {"m.relates_to": thumb}, "m.reaction")
        await ann.send(room, {"m.relates_to": {**thumb, "event_id": root}}, "m.reaction")
        await ann.redact(room, root)
        (gone,) = await receiver.got(1, "deletions")
        topic, inside, reply = await receiver.got(3)
        assert (topic.thread_id, inside.thread_id, inside.thread_has_session) == (None, root, True)
        assert inside.quoted is None
        assert reply.text == "an answer" and reply.quoted is not None
        assert (reply.quoted.id, reply.quoted.text, reply.quoted.from_us) == (ours, "what we said", True)
        (edit,) = receiver.edits
        assert (edit.message_id, edit.text) == (root, "a better topic")
        (reaction,) = receiver.notices
        assert "reacted with 👍 to your message" in reaction.text
        assert gone.message_id == root


async def test_an_event_that_nobody_can_handle_does_not_keep_back_later_ones(
    tmp_path: Path, server: Synapse, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Receiver):
        async def notice(self, inbound: Inbound) -> None:
            raise KeyError("poison")

    async with staged(tmp_path, server, receiver=Failing()) as stage:
        ours = await stage.send("what we said")
        thumb = {"rel_type": "m.annotation", "event_id": ours, "key": "👍"}
        await stage.ann.send(stage.room, {"m.relates_to": thumb}, "m.reaction")
        await stage.ann.send(stage.room, "after")
        await stage.matrix.receiver.heard("after")
        assert stage.matrix.account.status.restarts == 0
    assert "dropped" in caplog.text


async def test_answers_go_into_threads_and_messages_are_changed(tmp_path: Path, server: Synapse) -> None:
    async with staged(tmp_path, server) as stage:
        root = await stage.ann.send(stage.room, "a topic")
        first = await stage.send("in the thread", "k1", thread_id=root)
        await stage.send(OutgoingMessage(text="an answer", reply_to_id=root), "k2")
        await stage.send(OutgoingMessage(act="edit", target_id=first, text="**changed**"), "k3")
        await stage.send(OutgoingMessage(act="react", target_id=root, emoji="👀"), "k4")
        await stage.send(OutgoingMessage(act="react", target_id=root, emoji="👀"), "k5")
        inside, answer, edit = await stage.ann.saw(stage.room, stage.bot.user_id, 3)
        relation = inside["content"]["m.relates_to"]
        assert (relation["rel_type"], relation["event_id"], relation["is_falling_back"]) == ("m.thread", root, True)
        assert answer["content"]["m.relates_to"] == {"m.in_reply_to": {"event_id": root}}
        assert edit["content"]["m.relates_to"] == {"rel_type": "m.replace", "event_id": first}
        assert edit["content"]["m.new_content"]["formatted_body"] == "<p><strong>changed</strong></p>"
        (reaction,) = await stage.ann.saw(stage.room, stage.bot.user_id, 1, "m.reaction")
        assert reaction["content"]["m.relates_to"]["key"] == "👀"
        await stage.send(OutgoingMessage(act="react", target_id=root, emoji="👀", remove=True), "k6")
        with pytest.raises(SendFailed) as failed:
            await stage.send(OutgoingMessage(act="pin", target_id=first), "k8")
        assert failed.value.permanent, "the room does not let us pin"
        levels = await stage.ann.call("GET", f"/rooms/{stage.room}/state/m.room.power_levels")
        levels["users"][stage.bot.user_id] = 50
        await stage.ann.call("PUT", f"/rooms/{stage.room}/state/m.room.power_levels", levels)
        for remove in (False, False, True, True):
            await stage.send(OutgoingMessage(act="pin", target_id=first, remove=remove), f"k9-{remove}")
            pinned = await stage.ann.call("GET", f"/rooms/{stage.room}/state/m.room.pinned_events")
            assert pinned["pinned"] == ([] if remove else [first])
        await stage.send(OutgoingMessage(act="delete", target_id=first), "k7")
        redactions = await stage.ann.saw(stage.room, stage.bot.user_id, 2, "m.room.redaction")
        assert {event["redacts"] for event in redactions} == {reaction["event_id"], first}
        with pytest.raises(SendFailed) as failed:
            await stage.send(OutgoingMessage(act="edit", target_id="17", text="x"))
        assert failed.value.permanent


async def test_files_go_both_ways_within_the_limit_and_with_their_real_type(tmp_path: Path, server: Synapse) -> None:
    async with staged(tmp_path, server, mediaMaxMb=0.01) as stage:
        ann, room = stage.ann, stage.room
        small, large = await ann.upload(PICTURE, "text/plain"), await ann.upload(b"x" * 20_000, "video/mp4")
        named = {"msgtype": "m.file", "filename": "cat.png", "body": "look at this", "url": small}
        await ann.send(room, {**named, "info": {"mimetype": "text/plain"}})
        await ann.send(room, {"msgtype": "m.video", "body": "film.mp4", "url": large})
        await ann.send(room, {"msgtype": "m.image", "body": "gone.png", "url": "mxc://test/nothing"})
        await ann.send(room, {"msgtype": "m.image", "body": "bad.png", "url": "https://example.org/x"})
        first, second, third = await stage.matrix.receiver.got(3)
        (media,) = first.media
        assert (first.text, media.mime_type, media.file_name) == ("look at this", "image/png", "cat.png")
        assert await stage.matrix.blobs.get(media.blob or "") == PICTURE
        assert "film.mp4" in second.untrusted[0] and "channels.matrix.mediaMaxMb" in second.untrusted[0]
        assert "gone.png" in third.untrusted[0]
        blob = await stage.matrix.blobs.put(PICTURE)
        file = MediaRef(blob=blob, mime_type="image/png", file_name="chart.png")
        await stage.send(OutgoingMessage(text="here", media=(file,)))
        text, picture = await ann.saw(room, stage.bot.user_id, 2)
        assert text["content"]["body"] == "here"
        assert (picture["content"]["msgtype"], picture["content"]["body"]) == ("m.image", "chart.png")
        assert await ann.download(picture["content"]["url"]) == PICTURE
        voice = MediaRef(blob=blob, mime_type="audio/ogg", file_name="v.ogg", voice=True)
        await stage.send(OutgoingMessage(media=(voice,)), key="run:voice")
        spoken = (await ann.saw(room, stage.bot.user_id, 3))[2]["content"]
        assert (spoken["msgtype"], spoken["org.matrix.msc3245.voice"]) == ("m.audio", {})
        big = await stage.matrix.blobs.put(b"y" * 20_000)
        with pytest.raises(SendFailed, match="mediaMaxMb") as failed:
            await stage.send(OutgoingMessage(media=(MediaRef(blob=big, mime_type="text/plain"),)))
        assert failed.value.permanent


async def test_a_list_of_pins_that_cannot_be_read_is_not_replaced(
    tmp_path: Path, server: Synapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nio import AsyncClient, RoomGetStateEventError

    kind, real = "m.room.pinned_events", AsyncClient.room_get_state_event

    async def refused(self: AsyncClient, room_id: str, event_type: str, state_key: str = "") -> Any:
        if event_type != kind:
            return await real(self, room_id, event_type, state_key)
        error = RoomGetStateEventError("you may not see this", "M_FORBIDDEN")
        error.transport_response = SimpleNamespace(status=403, headers={})
        return error

    async with staged(tmp_path, server) as stage:
        theirs = await stage.ann.send(stage.room, "theirs")
        ours = await stage.send("ours", "k1")
        levels = await stage.ann.call("GET", f"/rooms/{stage.room}/state/m.room.power_levels")
        levels["users"][stage.bot.user_id] = 50
        await stage.ann.call("PUT", f"/rooms/{stage.room}/state/m.room.power_levels", levels)
        await stage.ann.call("PUT", f"/rooms/{stage.room}/state/{kind}", {"pinned": [theirs]})
        with monkeypatch.context() as patched:
            patched.setattr(AsyncClient, "room_get_state_event", refused)
            with pytest.raises(SendFailed, match="M_FORBIDDEN") as failed:
                await stage.send(OutgoingMessage(act="pin", target_id=ours), "k2")
        assert failed.value.permanent
        assert (await stage.ann.call("GET", f"/rooms/{stage.room}/state/{kind}"))["pinned"] == [theirs]
        await stage.send(OutgoingMessage(act="pin", target_id=ours), "k3")
        assert (await stage.ann.call("GET", f"/rooms/{stage.room}/state/{kind}"))["pinned"] == [theirs, ours]


async def test_typing_and_read_receipts_reach_the_server(tmp_path: Path, server: Synapse) -> None:
    async with staged(tmp_path, server) as stage:
        await stage.matrix.manager.typing("matrix", Route(channel="matrix", to=stage.room), True)
        event_id = await stage.ann.send(stage.room, "read me")
        await stage.matrix.receiver.got()
        async with asyncio.timeout(60):
            while True:
                seen = (await stage.ann.call("GET", "/sync"))["rooms"]["join"][stage.room]["ephemeral"]["events"]
                receipts = [one["content"] for one in seen if one["type"] == "m.receipt"]
                if any(event_id in one and stage.bot.user_id in str(one[event_id]) for one in receipts):
                    break
                await asyncio.sleep(0.05)
        typing = [one["content"]["user_ids"] for one in seen if one["type"] == "m.typing"]
        assert typing == [[stage.bot.user_id]]


async def test_what_was_written_while_away_comes_in_after_a_restart_and_nothing_older(
    tmp_path: Path, server: Synapse
) -> None:
    async with Human(server, "ann") as ann, Human(server, "bot") as bot:
        room = await ann.create_room(bot.user_id)
        await bot.call("POST", f"/join/{room}", {})
        await ann.send(room, "before the first start")
        settings = settings_of(bot, server.url)
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            await matrix.connected()
            await ann.send(room, "one")
            await matrix.receiver.heard("one")
        for number in range(70):  # More than one answer to a sync holds.
            await ann.send(room, f"missed {number}")
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            heard = [one.text for one in await matrix.receiver.got(70)]
        assert heard[-70:] == [f"missed {number}" for number in range(70)]
        assert "before the first start" not in heard
    token = tmp_path / "channels" / "matrix" / "default" / "sync-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


async def test_the_token_stays_while_the_disk_fails(tmp_path: Path, server: Synapse) -> None:
    receiver = Receiver()
    async with staged(tmp_path, server, receiver=receiver) as stage:
        receiver.failures = [OSError("disk full") for _ in range(20)]
        await stage.ann.send(stage.room, "keep me")
        (message,) = await receiver.got()
        assert message.text == "keep me"


async def test_a_password_log_in_is_kept_and_used_again(
    tmp_path: Path, server: Synapse, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Human(server, "bot") as bot:
        settings = {"homeserver": server.url, "userId": bot.user_id, "password": bot.password}
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            await matrix.connected()
        kept = tmp_path / "channels" / "matrix" / "default" / "login.json"
        first = json.loads(kept.read_text())
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and first["user_id"] == bot.user_id
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            await matrix.connected()
        assert json.loads(kept.read_text()) == first, "the same log-in is used again"
        kept.write_bytes(bytes(kept.stat().st_size))
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            await matrix.connected()
        assert json.loads(kept.read_text()) == first, "a power cut does not make another device of it"
        url = f"{server.url}/_matrix/client/v3/logout"
        import aiohttp

        headers = {"Authorization": f"Bearer {first['access_token']}"}
        async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json={}):
            pass
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            await matrix.connected()
        assert json.loads(kept.read_text())["access_token"] != first["access_token"]
        assert bot.password not in caplog.text and first["access_token"] not in caplog.text


async def test_a_token_that_ends_while_running_is_one_line_without_the_token(
    tmp_path: Path, server: Synapse, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with staged(tmp_path, server) as stage:
        await stage.bot.call("POST", "/logout", {})
        assert "channels.matrix.accessToken" in await stage.matrix.stopped()
        assert stage.matrix.account.status.restarts == 0
        assert stage.bot.token not in caplog.text and stage.bot.token not in str(stage.matrix.account.status.view())


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"homeserver": None}, "channels.matrix.homeserver"),
        ({"homeserver": "matrix.example.org"}, "channels.matrix.homeserver"),
        ({"accessToken": None}, "channels.matrix.accessToken"),
        ({"accessToken": None, "password": "x", "userId": "bot"}, "channels.matrix.userId"),
        ({"accessToken": "canary-token"}, "channels.matrix.accessToken"),
        ({"accessToken": None, "password": "canary-password"}, "channels.matrix.password"),
        ({"accessToken": {"env": "NOT_SET"}}, "NOT_SET"),
        ({"encryption": True}, "channels.matrix.encryption"),
    ],
)
async def test_a_missing_or_refused_setting_is_one_line_that_names_it(
    tmp_path: Path, server: Synapse, change: dict[str, Any], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if change == {"encryption": True} and MatrixClient.can_encrypt():
        pytest.skip("the library for encryption is installed")
    settings = {"homeserver": server.url, "userId": "@bot:test", "accessToken": "none", **change}
    async with running_channel(tmp_path, "matrix", settings) as matrix:
        problem = await matrix.stopped()
        assert key in problem and "canary" not in str(matrix.account.status.view())
        assert matrix.account.status.restarts == 0
    assert "canary" not in caplog.text


def test_a_missing_library_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw.channels.base import NotConfigured

    monkeypatch.setitem(sys.modules, "nio", None)
    monkeypatch.delitem(sys.modules, "openclaw.channels.matrix.channel", raising=False)
    monkeypatch.delitem(sys.modules, "openclaw.channels.matrix.client", raising=False)
    with pytest.raises(NotConfigured, match="openclaw extras add matrix"):
        MatrixKind({}).open(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "joins"), [("off", False), ("allowlist", False), ("always", True)])
async def test_invitations_are_accepted_as_configured(tmp_path: Path, server: Synapse, mode: str, joins: bool) -> None:
    async with Human(server, "ann") as ann, Human(server, "bot") as bot, Human(server, "bob") as bob:
        settings = settings_of(bot, server.url, autoJoin=mode, autoJoinAllowlist=[bob.user_id])
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            await matrix.connected()
            asked = await ann.create_room(bot.user_id)
            if mode != "off":
                await bob.joined(await bob.create_room(bot.user_id), bot.user_id)
            else:
                await until_invited(bot, asked)
            if joins:
                await ann.joined(asked, bot.user_id)
            members = (await ann.call("GET", f"/rooms/{asked}/joined_members"))["joined"]
            assert (bot.user_id in members) is joins


async def until_invited(bot: Human, room: str) -> None:
    async with asyncio.timeout(60):
        while room not in (await bot.call("GET", "/sync"))["rooms"].get("invite", {}):
            await asyncio.sleep(0.05)


async def test_a_room_that_the_configuration_names_by_its_alias_is_known(tmp_path: Path, server: Synapse) -> None:
    async with Human(server, "ann") as ann, Human(server, "bot") as bot:
        room = await ann.create_room(bot.user_id, room_alias_name=f"kitchen-{ann.name}")
        alias = f"#kitchen-{ann.name}:test"
        settings = settings_of(bot, server.url, groups={alias: {"requireMention": False}})
        async with running_channel(tmp_path, "matrix", settings) as matrix:
            await matrix.connected()
            await ann.joined(room, bot.user_id)
            await ann.send(room, "hello")
            (message,) = await matrix.receiver.got()
            assert (message.peer.kind, message.peer.id) == ("channel", room)
            assert [(name.name, name.id) for name in message.names] == [(alias, room)]
            await matrix.send("found", alias)
            await ann.saw(room, bot.user_id)


async def test_a_message_whose_answer_is_lost_arrives_once(tmp_path: Path, server: Synapse) -> None:
    async with (
        TcpProxy(server.port) as proxy,
        staged(tmp_path, server, url=f"http://127.0.0.1:{proxy.port}") as stage,
    ):
        proxy.deaf_after = b"only once"
        sending = asyncio.create_task(stage.send("only once, please", "run:7"))
        (event,) = await stage.ann.saw(stage.room, stage.bot.user_id)
        proxy.deaf_after = b""
        proxy.cut()
        try:
            assert await sending == event["event_id"], "the client has asked again by itself"
        except SendFailed as failed:
            assert not failed.permanent and not failed.reached
        await stage.matrix.connected()
        assert await stage.send("only once, please", "run:7") == event["event_id"]
        await stage.send("the end", "run:8")
        sent = await stage.ann.saw(stage.room, stage.bot.user_id, 2)
        assert [one["content"]["body"] for one in sent] == ["only once, please", "the end"]


async def test_a_connection_that_breaks_loses_no_message(tmp_path: Path, server: Synapse) -> None:
    async with (
        TcpProxy(server.port) as proxy,
        staged(tmp_path, server, url=f"http://127.0.0.1:{proxy.port}") as stage,
    ):
        proxy.accepts = False
        proxy.cut()
        await until(lambda: not stage.matrix.account.status.connected)
        await stage.ann.send(stage.room, "while you were away")
        with pytest.raises(SendFailed) as failed:
            await stage.send("x")
        assert not failed.value.permanent and not failed.value.reached
        proxy.accepts = True
        await stage.matrix.receiver.heard("while you were away")
        assert stage.matrix.account.status.restarts == 0


async def test_a_server_that_asks_to_wait_says_for_how_long(tmp_path: Path, server: Synapse) -> None:
    async with staged(tmp_path, server) as stage:
        await server.slow_down(stage.bot.user_id, 1, 1)
        with pytest.raises(SendFailed) as failed:
            for number in range(20):
                await stage.send("quick", f"run:{number}")
        assert failed.value.retry_after_s and not failed.value.permanent and not failed.value.maybe_sent


@pytest.mark.parametrize("to", ["!nowhere:test", "#nowhere:test"])
async def test_a_room_that_is_not_ours_is_refused_for_good(tmp_path: Path, server: Synapse, to: str) -> None:
    async with staged(tmp_path, server) as stage:
        with pytest.raises(SendFailed) as failed:
            await stage.matrix.send("x", to)
        assert failed.value.permanent


async def test_messages_that_cannot_be_decrypted_are_told_in_the_log(
    tmp_path: Path, server: Synapse, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path, server) as stage:
        secret = {
            "algorithm": "m.megolm.v1.aes-sha2",
            "ciphertext": "x",
            "session_id": "s",
            "sender_key": "k",
            "device_id": "d",
        }
        for _ in range(2):
            await stage.ann.send(stage.room, secret, "m.room.encrypted")
        await stage.ann.send(stage.room, "in clear")
        await stage.matrix.receiver.heard("in clear")
    (told,) = [record.getMessage() for record in caplog.records if "encrypted" in record.getMessage()]
    assert "channels.matrix.encryption" in told
