"""One bot against a stand-in for Discord, through the real library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.channels.discord import DiscordKind
from openclaw.inbound.message import Inbound, Peer
from openclaw.messages import Route
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, SendFailed
from tests.support.channel_account import ChannelUnderTest, Receiver, running_channel, until
from tests.support.discord_server import ANN, BOT, CHANNEL, DM, GUILD, TOKEN, DiscordServer

TO_ANN, THERE = f"user:{ANN}", f"channel:{CHANNEL}"
POST = f"POST /channels/{CHANNEL}/messages"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.fixture
async def discord() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as server:
        yield server


@asynccontextmanager
async def bot(
    state: Path, discord: DiscordServer, receiver: Receiver | None = None, **settings: Any
) -> AsyncGenerator[ChannelUnderTest]:
    wanted = {"token": TOKEN, "apiRoot": discord.url, **settings}
    async with running_channel(state, "discord", wanted, receiver=receiver) as account:
        await account.connected()
        yield account


async def refused(account: ChannelUnderTest, message: OutgoingMessage | str, to: str = THERE) -> SendFailed:
    with pytest.raises(SendFailed) as caught:
        await account.send(message, to)
    return caught.value


@pytest.mark.parametrize(
    ("to", "peer"),
    [
        ("user:5", Peer(kind="direct", id="5")),
        ("discord:user:5", Peer(kind="direct", id="5")),
        ("<@!5>", Peer(kind="direct", id="5")),
        ("channel:5", Peer(kind="channel", id="5")),
        ("<#5>", Peer(kind="channel", id="5")),
        ("5", Peer(kind="channel", id="5")),
    ],
)
def test_addresses(to: str, peer: Peer) -> None:
    assert DiscordKind({}).peer(to) == peer


@pytest.mark.parametrize("to", ["", "general", "#general", "user:", "user:ann"])
def test_what_is_no_address_is_refused(to: str) -> None:
    with pytest.raises(SendFailed) as caught:
        DiscordKind({}).peer(to)
    assert caught.value.permanent


async def test_a_lost_connection_is_resumed_and_nothing_is_missed(tmp_path: Path, discord: DiscordServer) -> None:
    async with bot(tmp_path, discord) as account:
        await discord.say("one")
        await account.receiver.heard("one")
        await discord.disconnect()
        await discord.say("two")
        await account.receiver.heard("two")
        assert [one.text for one in account.receiver.messages] == ["one", "two"]
    assert len(discord.identified) == 1 and len(discord.resumed) == 1 and discord.heartbeats >= 2


async def test_a_restart_resumes_the_session_where_everything_was_on_disk(
    tmp_path: Path, discord: DiscordServer
) -> None:
    receiver = Receiver()
    async with bot(tmp_path, discord, receiver):
        said = await discord.say("one")
        await receiver.heard("one")
    away = await discord.say("while away")
    async with bot(tmp_path, discord, receiver):
        await receiver.heard("while away")
    assert len(discord.identified) == 1
    # A bot that ends before it has noted a message down is told of it once more. The Gateway knows it again by its id.
    assert list(dict.fromkeys(one.message_id for one in receiver.messages)) == [said["id"], away["id"]]


async def test_what_was_missed_is_fetched_when_the_session_is_gone(tmp_path: Path, discord: DiscordServer) -> None:
    receiver = Receiver()
    async with bot(tmp_path, discord, receiver):
        await discord.say("one", channel=CHANNEL)
        await receiver.heard("one")
    await discord.say("while away", channel=CHANNEL)
    discord.forget_session()
    async with bot(tmp_path, discord, receiver):
        missed = await receiver.heard("while away")
    assert missed.peer.id == CHANNEL and len(discord.identified) == 2
    assert [one.text for one in receiver.messages] == ["one", "while away"]


async def test_all_that_was_missed_is_fetched_although_it_is_much_and_a_request_fails(
    tmp_path: Path, discord: DiscordServer
) -> None:
    receiver = Receiver()
    async with bot(tmp_path, discord, receiver):
        await discord.say("one", channel=CHANNEL)
        await receiver.heard("one")
    for number in range(230):
        await discord.say(f"missed {number}", channel=CHANNEL)
    discord.forget_session()
    discord.drop_next(f"GET /channels/{CHANNEL}/messages")
    async with bot(tmp_path, discord, receiver):
        await receiver.heard("missed 229")
    assert [one.text for one in receiver.messages] == ["one", *(f"missed {number}" for number in range(230))]


async def test_while_the_disk_fails_a_message_is_offered_again(tmp_path: Path, discord: DiscordServer) -> None:
    receiver = Receiver()
    receiver.failures = [OSError("disk full")] * 4
    async with bot(tmp_path, discord, receiver):
        await discord.dispatch("MESSAGE_CREATE", {"odd": True, "channel_id": DM})
        await discord.say("kept")
        await receiver.heard("kept")
    assert not receiver.failures, "each failed attempt is followed by another"


async def test_a_message_that_was_not_on_disk_at_the_stop_comes_again(tmp_path: Path, discord: DiscordServer) -> None:
    class Stuck(Receiver):
        """The disk takes nothing."""

        async def receive(self, inbound: Inbound) -> bool | None:
            self.notices.append(inbound)
            raise OSError("disk full")

    stuck, receiver = Stuck(), Receiver()
    async with bot(tmp_path, discord, stuck):
        await discord.say("kept?")
        await until(lambda: bool(stuck.notices))
    async with bot(tmp_path, discord, receiver):
        await receiver.heard("kept?")
    assert len(discord.identified) == 1


@pytest.mark.parametrize(("code", "words"), [(4014, "Message Content Intent"), (4004, "does not accept the bot token")])
async def test_what_cannot_work_is_one_clear_line(
    tmp_path: Path, discord: DiscordServer, code: int, words: str
) -> None:
    discord.close_next = code
    async with running_channel(tmp_path, "discord", {"token": TOKEN, "apiRoot": discord.url}) as account:
        assert words in await account.stopped()


async def test_a_refused_token_is_one_clear_line_without_the_token(tmp_path: Path, discord: DiscordServer) -> None:
    token = "wrong-token-canary-0123456789"
    async with running_channel(tmp_path, "discord", {"token": token, "apiRoot": discord.url}) as account:
        problem = await account.stopped()
    assert "does not accept the bot token" in problem and token not in problem


async def test_a_dead_server_is_waited_for(tmp_path: Path, discord: DiscordServer) -> None:
    await discord.stop()
    async with running_channel(tmp_path, "discord", {"token": TOKEN, "apiRoot": discord.url}) as account:
        assert "cannot be reached" in await account.failing()
        await discord.start()
        await account.connected()
        assert (await account.manager.probe(account.account, 30))["bot"]["id"] == BOT


async def test_a_repeated_send_arrives_once(tmp_path: Path, discord: DiscordServer) -> None:
    async with bot(tmp_path, discord) as account:
        discord.drop_next(POST)
        failure = await refused(account, "once")
        assert failure.maybe_sent
        await account.send("once", THERE)
        await account.send("other", THERE, key="run:1")
    assert discord.texts(CHANNEL) == ["once", "other"]
    assert len(discord.of(POST)) == 3


@pytest.mark.parametrize(
    ("status", "code", "more", "expected"),
    [
        (400, 50035, {}, (True, False, None)),
        (403, 50013, {}, (True, False, None)),
        (404, 10003, {}, (True, False, None)),
        (429, 0, {"retry_after": 77.0, "global": False}, (False, False, 77.0)),
        (503, 0, {}, (False, True, None)),
    ],
)
async def test_failures_are_told_apart(
    tmp_path: Path, discord: DiscordServer, status: int, code: int, more: Any, expected: Any
) -> None:
    async with bot(tmp_path, discord) as account:
        discord.fail_next(POST, status, code, **more)
        failure = await refused(account, "hi")
    assert (failure.permanent, failure.maybe_sent, failure.retry_after_s) == expected
    assert failure.reached
    assert code != 50013 or "lacks a permission" in str(failure)


async def test_a_short_rate_limit_is_waited_for(tmp_path: Path, discord: DiscordServer) -> None:
    async with bot(tmp_path, discord) as account:
        discord.fail_next(POST, 429, 0, retry_after=0.01, **{"global": False})
        await account.send("hi", THERE)
    assert discord.texts(CHANNEL) == ["hi"]


async def test_replies_files_buttons_and_mentions(tmp_path: Path, discord: DiscordServer) -> None:
    async with bot(tmp_path, discord) as account:
        picture = MediaRef(blob=await account.blobs.put(PNG), mime_type="image/png", file_name="../a b.png")
        rows = ((Button(text="Yes", data="/approve 1"),),)
        message = OutgoingMessage(text="@everyone look", media=(picture,), reply_to_id="77", buttons=rows)
        await account.send(message, THERE)
        await account.manager.typing("discord", Route(channel="discord", to=THERE), True)
        await account.send("to a person", TO_ANN)
    (sent,) = discord.of(POST)
    assert sent["files"] == [("a b.png", PNG)]
    assert sent["message_reference"] == {"message_id": "77", "fail_if_not_exists": False}
    assert sent["allowed_mentions"] == {"parse": ["users"], "replied_user": False}
    assert sent["components"][0]["components"][0]["custom_id"] == "/approve 1"
    assert discord.of("POST /users/@me/channels") == [{"recipient_id": ANN}]
    assert discord.texts(DM) == ["to a person"]


async def test_a_voice_message_has_its_length_and_other_sound_is_a_file(tmp_path: Path, discord: DiscordServer) -> None:
    head = b"OggS" + bytes(24) + b"OpusHead\x01\x01" + (312).to_bytes(2, "little") + bytes(20)
    opus = head + b"OggS\x00\x04" + (48_000 * 3 + 312).to_bytes(8, "little") + bytes(40)
    async with bot(tmp_path, discord) as account:
        spoken = MediaRef(blob=await account.blobs.put(opus), mime_type="audio/ogg", file_name="v.ogg", voice=True)
        other = MediaRef(blob=await account.blobs.put(b"ID3"), mime_type="audio/mpeg", file_name="s.mp3", voice=True)
        await account.send(OutgoingMessage(media=(spoken,)), THERE, key="run:1")
        await account.send(OutgoingMessage(media=(other,)), THERE, key="run:2")
    first, second = discord.of(POST)
    assert first["flags"] == 8192 and "flags" not in second
    (facts,) = first["attachments"]
    assert (facts["filename"], facts["duration_secs"]) == ("v.ogg", 3.0) and facts["waveform"]


async def test_earlier_messages_are_changed_deleted_and_reacted_to(tmp_path: Path, discord: DiscordServer) -> None:
    async with bot(tmp_path, discord) as account:
        sent = await account.send("first", THERE)
        await account.send(OutgoingMessage(act="edit", target_id=sent, text="second"), THERE)
        assert discord.texts(CHANNEL) == ["second"]
        await account.send(OutgoingMessage(act="react", target_id=sent, emoji="👍"), THERE)
        await account.send(OutgoingMessage(act="react", target_id=sent, emoji="👍", remove=True), THERE)
        await account.send(OutgoingMessage(act="pin", target_id=sent), THERE)
        await account.send(OutgoingMessage(act="pin", target_id=sent, remove=True), THERE)
        for _ in range(2):
            await account.send(OutgoingMessage(act="delete", target_id=sent), THERE)
        assert discord.texts(CHANNEL) == []
        assert (await refused(account, OutgoingMessage(act="edit", target_id="odd", text="x"))).permanent
    assert [call for call, _ in discord.calls if "pins" in call] == [
        f"PUT /channels/{CHANNEL}/messages/pins/{sent}",
        f"DELETE /channels/{CHANNEL}/messages/pins/{sent}",
    ]
    assert [call for call, _ in discord.calls if "reactions" in call] == [
        f"PUT /channels/{CHANNEL}/messages/{sent}/reactions/👍/@me",
        f"DELETE /channels/{CHANNEL}/messages/{sent}/reactions/👍/@me",
    ]


async def test_a_command_is_acknowledged_and_then_answered_in_its_place(tmp_path: Path, discord: DiscordServer) -> None:
    async with bot(tmp_path, discord) as account:
        number = await discord.command("status", "all")
        heard = await account.receiver.heard("/status all")
        assert heard.native_command and heard.message_id == f"interaction:{number}"
        assert await discord.called(f"POST /interactions/{number}") == [{"type": 5}]
        for part in ("fine", "really"):
            await account.send(part, TO_ANN, key=part, reply_to_id=heard.message_id)
        assert [one["content"] for one in discord.messages.values() if one.get("answer")] == ["fine", "really"]
        account.receiver.answer = False
        other = await discord.command("status")
        (answer,) = await discord.called(f"POST /interactions/{other}")
        assert answer["type"] == 4 and answer["data"]["flags"] == 64


async def test_a_command_is_answered_in_its_place_after_a_restart_that_resumed_the_session(
    tmp_path: Path, discord: DiscordServer
) -> None:
    """READY, which names the application, does not come then."""
    async with bot(tmp_path, discord) as account:
        await discord.say("one")
        await account.receiver.heard("one")
    async with bot(tmp_path, discord) as account:
        number = await discord.command("status")
        heard = await account.receiver.heard("/status")
        await discord.called(f"POST /interactions/{number}")
        await account.send("fine", TO_ANN, reply_to_id=heard.message_id)
    assert len(discord.identified) == 1 and len(discord.resumed) == 1
    assert [one["content"] for one in discord.messages.values() if one.get("answer")] == ["fine"]
    assert discord.of(f"PATCH /webhooks/{BOT}/")


async def test_edits_deletions_and_reactions_are_reported(tmp_path: Path, discord: DiscordServer) -> None:
    async with bot(tmp_path, discord) as account:
        said = await discord.say("teh", channel=CHANNEL)
        await account.receiver.heard("teh")
        await discord.dispatch("MESSAGE_UPDATE", {**said, "content": "the", "edited_timestamp": said["timestamp"]})
        (edit,) = await account.receiver.got(1, "edits")
        assert (edit.message_id, edit.text) == (said["id"], "the")
        change = {"user_id": ANN, "channel_id": CHANNEL, "guild_id": GUILD, "emoji": {"name": "👍"}}
        for author in (ANN, BOT):
            whole = {**change, "message_id": said["id"], "message_author_id": author}
            await discord.dispatch("MESSAGE_REACTION_ADD", whole)
        await discord.dispatch("MESSAGE_DELETE", {"id": said["id"], "channel_id": CHANNEL, "guild_id": GUILD})
        (gone,) = await account.receiver.got(1, "deletions")
        assert (gone.message_id, gone.sender.id) == (said["id"], ANN)
        (notice,) = account.receiver.notices
        assert "to your message" in notice.text


async def test_files_come_in_within_the_limit_and_only_from_discord(tmp_path: Path, discord: DiscordServer) -> None:
    discord.files = {"a.png": PNG, "liar.bin": b"x" * 3000}
    here = discord.url.removesuffix("/api/v10")
    async with bot(tmp_path, discord, mediaMaxMb=0.001) as account:
        for name, url, size in (
            ("a.png", f"{here}/files/a.png", len(PNG)),
            ("large.bin", f"{here}/files/large.bin", 5000),
            ("liar.bin", f"{here}/files/liar.bin", 5),
            ("evil.bin", "http://169.254.169.254/latest", 5),
        ):
            file = {"id": "1", "filename": name, "url": url, "size": size, "content_type": "image/png"}
            await discord.say(f"file {name}", attachments=[file])
            heard = await account.receiver.heard(f"file {name}")
            if name == "a.png":
                assert await account.blobs.get(heard.media[0].blob or "") == PNG
            else:
                assert not heard.media and heard.untrusted[0].startswith(f"Attachment {name} was not fetched")


def test_a_channel_that_is_off_imports_no_library() -> None:
    code = (
        "import sys; from openclaw.channels.base import ChannelKinds; from openclaw.config.load import parse_config;"
        "config = parse_config('c', '{channels: {discord: {enabled: false, token: \"1:a\"}}}', {}).config;"
        "kinds = ChannelKinds({}).configured(config); assert kinds[0].accounts(config);"
        "assert not {'discord', 'openclaw.channels.discord.channel'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_behind_a_proxy_that_names_a_character_set_and_drops_headers_the_answers_are_read(
    tmp_path: Path, discord: DiscordServer
) -> None:
    discord.content_type, discord.more_headers = "application/json; charset=utf-8", {}
    async with bot(tmp_path, discord) as account:
        discord.fail_next(POST, 429, 0, "You are being rate limited.", retry_after=7.5)
        failure = await refused(account, "hello")
        assert (failure.retry_after_s, failure.permanent) == (7.5, False)
        discord.fail_next(POST, 403, 50013, "Missing Permissions")
        assert "lacks a permission" in str(await refused(account, "hello"))
        assert await account.send("hello", THERE) in discord.messages
