"""What servers offer beyond the old protocol: SASL, tags, echoes, labels; and services."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from openclaw.channels.irc import connection
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed
from tests.support.channel_account import running_channel
from tests.support.ircv3_server import Ircv3Server

SECRET = "canary-" + "s" * 400
"""Longer than one line of AUTHENTICATE."""


def running(tmp_path: Path, server: Ircv3Server, **more: Any) -> Any:
    settings = {"host": "127.0.0.1", "port": server.port, "tls": False, "nick": "claw", "channels": ["#room"], **more}
    return running_channel(tmp_path, "irc", settings)


async def test_sasl_comes_before_the_log_in_and_channels_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        Ircv3Server(accounts={"bot": SECRET}) as server,
        running(tmp_path, server, sasl={"username": "bot", "password": SECRET}) as irc,
    ):
        await irc.connected()
        await server.got("JOIN")
        assert server.logged_in_as == "bot" and server.problems == []
        assert (await irc.manager.probe(irc.account, 60))["network"] == "TestNet"
    assert "canary" not in caplog.text


async def test_a_refused_sasl_log_in_is_one_line_without_the_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        Ircv3Server(accounts={"claw": "other"}) as server,
        running(tmp_path, server, sasl={"password": SECRET}) as irc,
    ):
        assert "channels.irc.sasl" in await irc.stopped()
        assert irc.account.status.restarts == 0 and "canary" not in str(irc.account.status.view())
    assert "canary" not in caplog.text


async def test_a_server_without_sasl_is_told_and_tried_again(tmp_path: Path) -> None:
    async with Ircv3Server(offered="message-tags") as server, running(tmp_path, server, sasl={"password": "x"}) as irc:
        assert "channels.irc.nickserv" in await irc.failing()
        await server.got("USER", 2)


async def test_the_service_is_told_the_password_before_channels_are_joined(tmp_path: Path) -> None:
    async with (
        Ircv3Server(offered="") as server,
        running(tmp_path, server, nickserv={"password": "right-password"}) as irc,
    ):
        await irc.connected()
        await server.got("JOIN")
        said = [line for line in server.lines if line.command in ("PRIVMSG", "JOIN")]
        assert [said[0].params, said[1].command] == [("NickServ", "IDENTIFY right-password"), "JOIN"]


async def test_messages_have_the_servers_ids_and_times_and_ours_are_known_as_ours(tmp_path: Path) -> None:
    async with Ircv3Server() as server, running(tmp_path, server) as irc:
        await irc.connected()
        await server.got("JOIN")
        sent = await irc.send(OutgoingMessage(text="hello", reply_to_id="m 1;"), "#room")
        (line,) = await server.got("PRIVMSG")
        assert (sent, line.tags["+draft/reply"], line.param(1)) == ("own-1", "m 1;", "hello")
        server.tell(f"@msgid=m2;time=2026-01-18T08:19:00Z;+draft/reply={sent};account=ann :Ann!u@h PRIVMSG #room :yes")
        (message,) = await irc.receiver.got()
        assert (message.message_id, message.timestamp_ms) == ("m2", 1_768_724_340_000)
        assert message.quoted is not None and message.quoted.from_us
        assert message.sender.other_ids == ("account:ann",)
        assert server.problems == []


async def test_a_refusal_is_matched_by_its_label(tmp_path: Path) -> None:
    async with Ircv3Server() as server, running(tmp_path, server) as irc:
        await irc.connected()
        server.refuse["#shut"] = "404"
        with pytest.raises(SendFailed, match="refused") as failed:
            await irc.send("x", "#shut")
        assert failed.value.permanent
        assert await irc.send("y", "#room") == "own-1"


async def test_a_channel_that_we_should_be_in_is_waited_for(tmp_path: Path) -> None:
    async with Ircv3Server() as server, running(tmp_path, server) as irc:
        await irc.connected()
        server.refuse["#room"] = "404"
        with pytest.raises(SendFailed) as failed:
            await irc.send("x", "#room")
        assert not failed.value.permanent


async def test_typing_is_shown_where_the_server_passes_tags_on(tmp_path: Path) -> None:
    route = Route(channel="irc", to="#room")
    async with Ircv3Server() as server, running(tmp_path, server) as irc:
        await irc.connected()
        await irc.manager.typing("irc", route, True)
        await irc.manager.typing("irc", route, False)
        assert [line.tags["+typing"] for line in await server.got("TAGMSG", 2)] == ["active", "done"]
    async with Ircv3Server(offered="server-time") as server, running(tmp_path, server) as irc:
        await irc.connected()
        await irc.manager.typing("irc", route, True)
        await irc.send("after", "#room")
        assert not [line for line in server.lines if line.command == "TAGMSG"] and server.problems == []


async def test_played_back_messages_keep_their_ids(tmp_path: Path) -> None:
    old = "@time=2026-01-18T08:19:00Z :Ann!u@h PRIVMSG #room :again"
    async with Ircv3Server() as server, running(tmp_path, server) as irc:
        await irc.connected()
        for _ in range(2):
            server.tell(old)
        await irc.receiver.got(2)
        server.disconnect()
        await server.got("USER", 2)
        await irc.connected()
        await server.got("JOIN", 2)
        server.tell(":Ann!u@h PRIVMSG #room :between")
        for _ in range(2):
            server.tell(old)
        heard = await irc.receiver.got(5)
        ids = [one.message_id for one in heard if one.text == "again"]
        assert ids[0] != ids[1] and ids[:2] == ids[2:]


async def test_odd_lines_are_passed_over(tmp_path: Path) -> None:
    async with Ircv3Server() as server, running(tmp_path, server) as irc:
        await irc.connected()
        odd = [
            "",
            ":",
            "@x",
            "PRIVMSG",
            ":a!b@c PRIVMSG",
            "005",
            "KICK",
            ":claw KICK #room",
            "302 claw",
            "CAP",
            "001",
            "NICK",
        ]
        for line in odd:
            server.tell(line)
        server.tell(":Ann!u@h PRIVMSG #room :" + "long " * 2000)
        server.tell(":Ann!u@h PRIVMSG #room :fine")
        heard = await irc.receiver.got(2)
        assert heard[1].text == "fine" and irc.account.status.restarts == 0


@pytest.mark.parametrize("pong", ["PONG", ":tiny PONG tiny", None])
async def test_a_server_without_a_message_of_the_day_is_enough(
    tmp_path: Path, pong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNANSWERED_S", 0.05)
    said: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            if line.startswith("USER"):
                writer.write(b":tiny 001 claw :Welcome\r\n" + (b"" if pong else b":tiny 422 claw :No MOTD\r\n"))
            elif line.startswith("PING") and pong:
                writer.write(f"{pong}\r\n".encode())
            elif line.startswith("JOIN"):
                writer.write(b":claw!c@h JOIN #room\r\n:Ann!ann@home PRIVMSG #room :claw: hello\r\n")
            elif line.startswith("PRIVMSG"):
                said.append(line)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    settings = {"host": "127.0.0.1", "port": server.sockets[0].getsockname()[1], "tls": False, "nick": "claw"}
    async with server, running_channel(tmp_path, "irc", {**settings, "channels": ["#room"]}) as irc:
        await irc.connected()
        heard = await irc.receiver.heard("hello")
        await irc.send("hi", heard.to)
    assert said == ["PRIVMSG #room :hi"] or said == ["PRIVMSG #room hi"]
