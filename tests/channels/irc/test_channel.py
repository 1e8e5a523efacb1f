"""IRC against a real ngIRCd: who is heard, how lines go out, and what happens when connections break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from tests.support.channel_account import ChannelUnderTest, QuickClock, Receiver, running_channel, until
from tests.support.ngircd import Ngircd, Person, make_certificate
from tests.support.tcp_proxy import TcpProxy

ROOM = "#room"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Ngircd]:
    async with Ngircd(tmp_path) as ngircd:
        yield ngircd


def running(tmp_path: Path, port: int, **more: Any) -> Any:
    harness = {name: more.pop(name) for name in ("receiver", "clock", "environ") if name in more}
    settings = {"host": "127.0.0.1", "port": port, "tls": False, "nick": "claw", "channels": [ROOM], **more}
    return running_channel(tmp_path / "state", "irc", settings, **harness)


async def joined(irc: ChannelUnderTest, *channels: str) -> None:
    """Until the account is on the server and in its channels."""
    await irc.connected()
    async with asyncio.timeout(60):
        while (await irc.manager.probe(irc.account, 60)).get("channels") != sorted(channels or (ROOM,)):
            await asyncio.sleep(0.01)


async def test_a_direct_message_comes_in_with_the_full_name_and_its_answer_goes_to_that_person(
    tmp_path: Path, server: Ngircd
) -> None:
    async with running(tmp_path, server.port) as irc, Person(server.port, "Ann", "#other") as ann:
        await joined(irc)
        ann.say("claw", "hello \x02there\x02")
        (message,) = await irc.receiver.got()
        assert (message.text, message.peer.kind) == ("hello there", "direct")
        assert message.sender.id == message.peer.id == ann.mask.lower() == "ann!~ann@127.0.0.1"
        assert message.sender.other_ids == () and message.message_id
        await irc.send("**Hi** Ann", message.to)
        assert await ann.heard(1) == ["\x02Hi\x02 Ann"]


async def test_in_a_channel_the_nickname_is_the_mention_and_the_answer_goes_to_the_channel(
    tmp_path: Path, server: Ngircd
) -> None:
    async with running(tmp_path, server.port) as irc, Person(server.port, "ann", ROOM) as ann:
        await joined(irc)
        ann.say(ROOM, "nothing for you")
        ann.say(ROOM, "Claw: what time is it?")
        ann.say("#ROOM", "\x01ACTION waves at claw\x01")
        ann.say(ROOM, "\x01VERSION\x01")
        ann.write("NOTICE", ROOM, "claw: a notice is no message")
        ann.say(ROOM, "last")
        await irc.receiver.got(4)
        heard = [(one.text, one.mentioned, one.peer.id) for one in irc.receiver.messages]
        assert heard == [
            ("nothing for you", False, ROOM),
            ("what time is it?", True, ROOM),
            ("* ann waves at claw", True, ROOM),
            ("last", False, ROOM),
        ]
        await irc.send("noon", irc.receiver.messages[1].to)
        assert await ann.heard(1) == ["noon"]


async def test_a_long_text_arrives_whole_in_lines_that_the_server_takes(tmp_path: Path, server: Ngircd) -> None:
    words = " ".join(f"wörter-{number}-日本語" for number in range(60))
    async with running(tmp_path, server.port) as irc, Person(server.port, "ann", ROOM) as ann:
        await joined(irc)
        await irc.send(f"**{words}**\n\nsecond paragraph", f"irc:{ROOM}")
        await until(lambda: any(line.param(-1) == "second paragraph" for line in ann.lines))
        lines = await ann.heard(4)
        assert " ".join(line.strip("\x02") for line in lines) == f"{words} second paragraph"
        assert all(line.startswith("\x02") for line in lines[:-1]) and lines[-1] == "second paragraph"
        raw = [line for line in ann.lines if line.command == "PRIVMSG"]
        sizes = [len(f":{one.prefix} PRIVMSG {one.param(0)} :{one.param(1)}\r\n".encode()) for one in raw]
        assert max(sizes) <= 512 and min(sizes[:-2]) > 400


@pytest.mark.parametrize(
    "text", ["one\r\nQUIT :bye", "a\x00b\rPRIVMSG #room :forged", "\x01ACTION is forged\x01", "x\nJOIN 0"]
)
async def test_no_text_becomes_a_command(tmp_path: Path, server: Ngircd, text: str) -> None:
    async with running(tmp_path, server.port) as irc, Person(server.port, "ann", ROOM) as ann:
        await joined(irc)
        await irc.send(text, ROOM)
        await irc.send("still here", ROOM)
        await ann.got("PRIVMSG", text="still here")
        assert not [line for line in ann.lines if line.command in ("QUIT", "PART")]
        assert not [line for line in ann.lines if "\x01" in line.param(-1)]


@pytest.mark.parametrize("to", ["#a,#b", "#a b", "", "ann\r\nQUIT", "$*", "a!b", "*"])
async def test_only_one_channel_or_person_can_be_a_recipient(tmp_path: Path, server: Ngircd, to: str) -> None:
    async with running(tmp_path, server.port) as irc:
        await irc.connected()
        with pytest.raises(SendFailed) as failed:
            await irc.send("x", to)
        assert failed.value.permanent


async def test_a_reply_does_not_go_to_somebody_who_took_the_nickname(tmp_path: Path, server: Ngircd) -> None:
    async with running(tmp_path, server.port) as irc, Person(server.port, "ann") as ann:
        await joined(irc)
        ann.say("claw", "my secret?")
        (message,) = await irc.receiver.got()
        with pytest.raises(SendFailed, match="another person") as failed:
            await irc.send("the secret", message.to.replace("~ann@", "~somebody@"))
        assert failed.value.permanent
        await irc.send("end", "ann")
        assert await ann.heard(1) == ["end"]
        ann.write("QUIT", "gone")
        with pytest.raises(SendFailed, match=r"not on the server|No such nick") as failed:
            async with asyncio.timeout(60):
                while True:  # Until the server has seen the person go.
                    await irc.send("late", message.to)
        assert not failed.value.permanent and failed.value.reached and not failed.value.maybe_sent


@pytest.mark.parametrize(("to", "permanent"), [("#closed", True), ("nobody", False)])
async def test_what_the_server_refuses_is_told(tmp_path: Path, server: Ngircd, to: str, permanent: bool) -> None:
    async with running(tmp_path, server.port) as irc, Person(server.port, "ann", "#closed") as ann:
        await joined(irc)
        ann.write("MODE", "#closed", "+n")
        await ann.got("MODE")
        with pytest.raises(SendFailed, match=to) as failed:
            await irc.send("x", to)
        assert (failed.value.permanent, failed.value.reached, failed.value.maybe_sent) == (permanent, True, False)


async def test_a_nickname_in_use_gives_way_to_another_one_and_is_taken_when_it_is_free(
    tmp_path: Path, server: Ngircd
) -> None:
    async with Person(server.port, "claw", ROOM) as first, running(tmp_path, server.port) as irc:
        await joined(irc)
        assert (await irc.manager.probe(irc.account, 60))["nick"] == "claw_"
        first.say(ROOM, "claw_: are you there?")
        (message,) = await irc.receiver.got()
        assert (message.text, message.mentioned) == ("are you there?", True)


async def test_after_being_kicked_it_comes_back(tmp_path: Path, server: Ngircd) -> None:
    async with Person(server.port, "ann", ROOM) as ann, running(tmp_path, server.port) as irc:
        await joined(irc)
        await ann.got("JOIN", nick="claw")
        ann.write("KICK", ROOM, "claw", "out")
        await ann.got("KICK")
        ann.lines = [line for line in ann.lines if line.command != "JOIN"]
        await ann.got("JOIN", nick="claw")
        ann.say(ROOM, "claw: back?")
        await irc.receiver.heard("back?")


async def test_after_a_lost_connection_it_connects_and_joins_again(tmp_path: Path, server: Ngircd) -> None:
    async with (
        TcpProxy(server.port) as proxy,
        running(tmp_path, proxy.port) as irc,
        Person(server.port, "ann", ROOM) as ann,
    ):
        await joined(irc)
        proxy.cut()
        await until(lambda: proxy.connections >= 2)
        await joined(irc)
        ann.say(ROOM, "claw: hello again")
        await irc.receiver.heard("hello again")
        assert irc.account.status.last_disconnect is not None and irc.account.status.restarts == 0


async def test_a_server_that_goes_away_and_returns_is_found_again(tmp_path: Path, server: Ngircd) -> None:
    async with running(tmp_path, server.port) as irc:
        await joined(irc)
        await server.stop()
        await until(lambda: not irc.account.status.connected)
        with pytest.raises(SendFailed) as failed:
            await irc.send("x", ROOM)
        assert not failed.value.reached and not failed.value.maybe_sent
        await server.start()
        await joined(irc)
        async with Person(server.port, "ann", ROOM) as ann:
            await irc.send("back", ROOM)
            assert await ann.heard(1) == ["back"]


async def test_a_message_whose_answer_is_lost_may_have_been_sent(tmp_path: Path, server: Ngircd) -> None:
    async with (
        TcpProxy(server.port) as proxy,
        running(tmp_path, proxy.port) as irc,
        Person(server.port, "ann", ROOM) as ann,
    ):
        await joined(irc)
        proxy.answers = False
        sending = asyncio.create_task(irc.send("did you get it?", ROOM))
        assert await ann.heard(1) == ["did you get it?"]
        proxy.cut()
        with pytest.raises(SendFailed) as failed:
            await sending
        assert failed.value.maybe_sent and not failed.value.permanent


async def test_while_the_disk_fails_nothing_is_lost_and_pings_are_answered(tmp_path: Path, server: Ngircd) -> None:
    receiver = Receiver()
    receiver.failures = [OSError("disk full") for _ in range(20)]
    async with running(tmp_path, server.port, receiver=receiver) as irc, Person(server.port, "ann", ROOM) as ann:
        await joined(irc)
        for number in range(5):
            ann.say(ROOM, f"message {number}")
        assert (await irc.manager.probe(irc.account, 60))["ok"]
        heard = await receiver.got(5)
        assert [one.text for one in heard] == [f"message {number}" for number in range(5)]
        assert len({one.message_id for one in heard}) == 5


async def test_tls_needs_a_certificate_that_somebody_vouches_for(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "127.0.0.1")
    async with Ngircd(tmp_path, certificate=certificate) as server:
        async with running(tmp_path, server.tls_port, tls=True) as irc:
            assert "channels.irc.tlsCa" in await irc.failing()
            assert irc.account.status.connected is False
        async with running(tmp_path, server.tls_port, tls=True, tlsCa=str(certificate[0])) as irc:
            await joined(irc)
            async with Person(server.port, "ann", ROOM) as ann:
                await irc.send("encrypted", ROOM)
                assert await ann.heard(1) == ["encrypted"]


async def test_a_certificate_for_another_name_is_not_accepted(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "other.test")
    async with (
        Ngircd(tmp_path, certificate=certificate) as server,
        running(tmp_path, server.tls_port, tls=True, tlsCa=str(certificate[0])) as irc,
    ):
        assert "certificate of 127.0.0.1 is not accepted" in await irc.failing()


async def test_a_wrong_server_password_is_one_line_without_the_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Ngircd(tmp_path, password="right-password") as server:
        async with running(tmp_path, server.port, password="canary-wrong-password") as irc:
            problem = await irc.stopped()
            assert "channels.irc.password" in problem and irc.account.status.restarts == 0
            assert "canary" not in str(irc.account.status.view())
        async with running(tmp_path, server.port, environ={"IRC_PASSWORD": "right-password"}) as irc:
            await joined(irc)
    assert "canary" not in caplog.text and "right-password" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"host": None}, "channels.irc.host"),
        ({"nick": None}, "channels.irc.nick"),
        ({"nick": "two words"}, "channels.irc.nick"),
        ({"channels": ["room"]}, "channels.irc.channels"),
        ({"sasl": {"username": "claw"}}, "channels.irc.sasl.password"),
        ({"sasl": {"mechanism": "EXTERNAL"}}, "channels.irc.tlsCert"),
        ({"tls": True, "tlsCa": "/nonexistent/ca.pem"}, "channels.irc.tlsCa"),
        ({"password": {"file": "/nonexistent/secret"}}, "channels.irc.password"),
    ],
)
async def test_a_missing_or_wrong_setting_is_named(tmp_path: Path, settings: dict[str, Any], key: str) -> None:
    async with running(tmp_path, 9, **settings) as irc:
        assert key in await irc.stopped()


async def test_files_are_named_and_changes_refused(tmp_path: Path, server: Ngircd) -> None:
    async with running(tmp_path, server.port) as irc, Person(server.port, "ann", ROOM) as ann:
        await joined(irc)
        media = (MediaRef(blob="0" * 64, mime_type="image/png", file_name="chart.png"),)
        await irc.send(OutgoingMessage(text="see", media=media), ROOM)
        assert await ann.heard(2) == ["see", "(file chart.png is not sent: IRC carries text only)"]
        far = (MediaRef(blob="0" * 64, mime_type="image/png", url="https://example.org/chart.png"),)
        await irc.send(OutgoingMessage(text="see", media=far), ROOM)
        assert (await ann.heard(4))[3] == "https://example.org/chart.png"
        with pytest.raises(SendFailed) as failed:
            await irc.send(OutgoingMessage(act="react", target_id="1", emoji="x"), ROOM)
        assert failed.value.permanent


async def test_a_burst_is_slowed_down_so_that_the_server_does_not_throw_us_out(tmp_path: Path, server: Ngircd) -> None:
    waits: list[float] = []

    class NotingClock(QuickClock):
        async def sleep(self, seconds: float) -> None:
            waits.append(seconds)
            await super().sleep(seconds)

    async with running(tmp_path, server.port, clock=NotingClock()) as irc, Person(server.port, "ann", ROOM) as ann:
        await joined(irc)
        waits.clear()
        await irc.send("\n".join(f"line {number}" for number in range(8)), ROOM)
        assert await ann.heard(8) == [f"line {number}" for number in range(8)]
        paced = [wait for wait in waits if wait < 20]
        assert len(paced) >= 3 and paced == sorted(paced)
