"""Signal over real HTTP, against a daemon that refuses what the real one refuses."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from openclaw.channels.base import ChannelKinds
from openclaw.channels.http import new_session
from openclaw.channels.manager import ChannelManager
from openclaw.channels.signal import SignalKind
from openclaw.channels.signal.channel import SignalChannel, SignalClient, StreamLost
from openclaw.channels.submit import MAX_ATTEMPTS
from openclaw.clock import SystemClock
from openclaw.inbound.message import Inbound
from openclaw.messages import Route
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from tests.support.channel_account import QuickClock, Receiver, channel_config
from tests.support.loopback_channel import everybody
from tests.support.signal_daemon import SignalDaemon

ME, ANN = "+15550000001", "+15550000042"
TO_ANN = Route(channel="signal", to=f"signal:{ANN}", account_id="default")
GOLDEN = {"message": "Hi from signal", "account": ME, "recipient": [ANN]}


class Setup:
    def __init__(
        self, daemon: SignalDaemon, channels: ChannelManager, receiver: Receiver, blobs: FileBlobStore
    ) -> None:
        self.daemon = daemon
        self.channels = channels
        self.receiver = receiver
        self.blobs = blobs

    async def send(self, part: OutgoingMessage | str, route: Route | None = None) -> str:
        part = OutgoingMessage(text=part) if isinstance(part, str) else part
        return (await self.channels.send("signal", route or TO_ANN, part, "key")).message_id


def manager(state: Path, wanted: Any, receiver: Receiver, clock: Any = None, **more: Any) -> ChannelManager:
    return ChannelManager(
        kinds=ChannelKinds({}),
        config=lambda: wanted,
        clock=clock or QuickClock(),
        state_dir=str(state),
        documents=FileDocuments(state),
        blobs=FileBlobStore(str(state)),
        receive=receiver.receive,
        admits=everybody,
        **more,
    )


@asynccontextmanager
async def running(
    state: Path, daemon: SignalDaemon | None = None, receiver: Receiver | None = None, **settings: Any
) -> AsyncGenerator[Setup]:
    receiver = receiver or Receiver()
    blobs = FileBlobStore(str(state))
    own = daemon is None
    daemon = daemon or await SignalDaemon(ME).start()
    wanted = channel_config("signal", {"account": ME, "httpUrl": daemon.url, **settings})
    channels = manager(state, wanted, receiver, notice=receiver.notice)
    await channels.start()
    try:
        await daemon.connected()
        yield Setup(daemon, channels, receiver, blobs)
    finally:
        await channels.stop()
        if own:
            await daemon.stop()


async def test_a_direct_message_comes_in_and_its_answer_goes_out(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        await setup.daemon.say("hello")
        assert await setup.receiver.got_texts(1) == ["hello"]
        await setup.channels.typing("signal", TO_ANN, True)
        assert (await setup.send("Hi from signal")).isdigit()
        assert setup.daemon.calls == [("sendTyping", {"recipient": [ANN], "account": ME}), ("send", GOLDEN)]
        assert setup.daemon.refused == []


async def test_a_group_is_answered_in_the_group(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        setup.daemon.groups = {"grp1=="}
        await setup.daemon.say("no mention here", group="grp1==")
        await setup.receiver.got_texts(1)
        route = Route(channel="signal", to=setup.receiver.messages[0].to)
        await setup.channels.typing("signal", route, True)
        await setup.send("group reply", route)
        await setup.channels.typing("signal", route, False)
        group = {"groupId": "grp1==", "account": ME}
        assert setup.daemon.of("sendTyping") == [group, {**group, "stop": True}]
        assert setup.daemon.of("send") == [{"message": "group reply", **group}]


async def test_after_a_lost_connection_what_was_missed_comes_in(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        await setup.daemon.say("one")
        await setup.receiver.got_texts(1)
        setup.daemon.disconnect()
        await setup.daemon.deserted()
        await setup.daemon.say("two")
        assert await setup.receiver.got_texts(2) == ["one", "two"]
        assert setup.daemon.last_event_ids == [None, "1700-1"]
        (account,) = setup.channels.accounts()
        assert account.status.connected and account.status.last_disconnect is not None


async def test_after_a_restart_of_the_gateway_what_was_missed_comes_in(tmp_path: Path) -> None:
    async with SignalDaemon(ME) as daemon:
        async with running(tmp_path, daemon) as setup:
            await daemon.say("one")
            await setup.receiver.got_texts(1)
            await daemon.say("two")
            await setup.receiver.got_texts(2)
        await daemon.say("while it was away")
        async with running(tmp_path, daemon) as setup:
            await setup.receiver.heard("while it was away")
    bookmark = tmp_path / "channels" / "signal" / "default" / "last-event"
    assert stat.S_IMODE(bookmark.stat().st_mode) == 0o600


async def test_a_bookmark_full_of_zeros_does_not_keep_the_channel_from_what_was_missed(tmp_path: Path) -> None:
    bookmark = tmp_path / "channels" / "signal" / "default" / "last-event"
    async with SignalDaemon(ME) as daemon:
        async with running(tmp_path, daemon) as setup:
            await daemon.say("one")
            await setup.receiver.got_texts(1)
        await daemon.say("while it was away")
        bookmark.write_bytes(bytes(bookmark.stat().st_size))
        async with running(tmp_path, daemon) as setup:
            await setup.receiver.heard("while it was away")


async def test_a_daemon_that_goes_away_and_returns_is_found_again(tmp_path: Path) -> None:
    daemon = await SignalDaemon(ME, event_ids=False).start()
    async with running(tmp_path, daemon) as setup:
        await daemon.stop()
        await daemon.start()
        await daemon.connected()
        await daemon.say("back")
        assert await setup.receiver.got_texts(1) == ["back"]
        await setup.send("hello again")
    await daemon.stop()


async def test_attachments_are_fetched_and_large_or_missing_ones_are_named(tmp_path: Path) -> None:
    async with running(tmp_path, mediaMaxMb=1) as setup:
        setup.daemon.attachments["a1"] = b"\x89PNG\r\n\x1a\n picture"
        listed = [
            {"id": "a1", "contentType": "image/png", "filename": "cat.png", "size": 12},
            {"id": "gone", "contentType": "image/png", "filename": "dog.png", "size": 12},
            {"id": "a2", "contentType": "video/mp4", "filename": "film.mp4", "size": 5_000_000},
        ]
        await setup.daemon.say("look", attachments=listed)
        await setup.receiver.got_texts(1)
        (message,) = setup.receiver.messages
        (media,) = message.media
        assert (media.mime_type, media.file_name) == ("image/png", "cat.png")
        assert await setup.blobs.get(media.blob or "") == b"\x89PNG\r\n\x1a\n picture"
        assert ["dog.png" in message.untrusted[0], "film.mp4" in message.untrusted[1]] == [True, True]
        assert "channels.signal.mediaMaxMb" in message.untrusted[1]
        assert setup.daemon.of("getAttachment") == [{"id": "a1", "recipient": ANN, "account": ME}]


async def test_a_picture_without_words_is_a_message_too(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        setup.daemon.attachments["a1"] = b"picture"
        listed = [{"id": "a1", "contentType": "image/png", "filename": None, "size": 7}]
        await setup.daemon.say("", attachments=listed, group="grp1==")
        await setup.receiver.got_texts(1)
        assert setup.daemon.of("getAttachment")[0]["groupId"] == "grp1=="
        assert len(setup.receiver.messages[0].media) == 1


@pytest.mark.parametrize(
    ("failures", "kept"), [([OSError(28, "No space left on device")] * 3, 1), ([KeyError("a bug")], 0)]
)
async def test_a_file_that_cannot_be_kept_costs_neither_its_message_nor_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: list[Exception], kept: int
) -> None:
    put = FileBlobStore.put

    async def failing(store: FileBlobStore, data: bytes) -> str:
        if failures:
            raise failures.pop()
        return await put(store, data)

    monkeypatch.setattr(FileBlobStore, "put", failing)
    async with running(tmp_path) as setup:
        setup.daemon.attachments["a1"] = b"words"
        await setup.daemon.say("see", attachments=[{"id": "a1", "contentType": "text/plain", "size": 5}])
        await setup.receiver.heard("see")
        (inbound,) = setup.receiver.messages
        assert len(inbound.media) == kept and len(inbound.untrusted) == 1 - kept
        (account,) = setup.channels.accounts()
        assert account.status.restarts == 0


async def test_attachments_are_left_alone_when_told_so(tmp_path: Path) -> None:
    async with running(tmp_path, ignoreAttachments=True) as setup:
        await setup.daemon.say("words", attachments=[{"id": "a1", "contentType": "image/png", "size": 1}])
        await setup.receiver.got_texts(1)
        assert setup.receiver.messages[0].media == () and setup.daemon.calls == []


async def test_markdown_goes_out_as_text_with_styles(tmp_path: Path) -> None:
    table = "| Name | Age |\n| - | - |\n| Ann | 30 |"
    async with running(tmp_path, markdown={"tables": "code"}) as setup:
        await setup.send("😀 **hi** [docs](https://e.org)")
        await setup.send(table)
        first, second = setup.daemon.of("send")
        assert (first["message"], first["text-style"]) == ("😀 hi docs (https://e.org)", ["3:2:BOLD"])
        assert second["message"] == "| Name | Age |\n| ---- | --- |\n| Ann  | 30  |"
        assert second["text-style"] == ["0:44:MONOSPACE"]


async def test_files_go_out_inside_the_request(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        blob = await setup.blobs.put(b"chart")
        media = (MediaRef(blob=blob, mime_type="image/png", file_name="my; chart.png"),)
        await setup.send(OutgoingMessage(text="here", media=media))
        await setup.send(OutgoingMessage(media=media))
        encoded = base64.b64encode(b"chart").decode()
        uri = f"data:image/png;filename=my_chart.png;base64,{encoded}"
        assert [call["attachments"] for call in setup.daemon.of("send")] == [[uri], [uri]]
        with pytest.raises(SendFailed, match="gone"):
            await setup.send(OutgoingMessage(media=(MediaRef(blob="0" * 64, mime_type="image/png"),)))
        await setup.send(OutgoingMessage(media=(MediaRef(blob=blob, mime_type="audio/ogg", voice=True),)))
        assert [call.get("voiceNote") for call in setup.daemon.of("send")] == [None, None, True]


@pytest.mark.parametrize(
    ("settings", "target", "heard"),
    [
        ({}, ME, True),
        ({}, ANN, False),
        ({"reactionNotifications": "all"}, ANN, True),
        ({"reactionNotifications": "off"}, ME, False),
        ({"reactionNotifications": "allowlist", "reactionAllowlist": [ANN]}, "+15550000043", True),
        ({"reactionNotifications": "allowlist"}, ME, False),
    ],
)
async def test_reactions_are_heard_as_configured(tmp_path: Path, settings: Any, target: str, heard: bool) -> None:
    async with running(tmp_path, **settings) as setup:
        reaction = {"emoji": "👍", "targetAuthorNumber": target, "targetSentTimestamp": 5, "isRemove": False}
        await setup.daemon.deliver(setup.daemon.message(None, reaction=reaction))
        await setup.daemon.say("after")
        assert await setup.receiver.got_texts(1) == ["after"]
        assert len(setup.receiver.notices) == heard


async def test_a_reaction_that_nobody_can_take_in_does_not_keep_back_what_follows(tmp_path: Path) -> None:
    class Odd(Receiver):
        async def notice(self, inbound: Inbound) -> None:
            self.notices.append(inbound)
            raise ValueError("a defect")

    async with running(tmp_path, receiver=Odd()) as setup:
        reaction = {"emoji": "👍", "targetAuthorNumber": ME, "targetSentTimestamp": 5, "isRemove": False}
        await setup.daemon.deliver(setup.daemon.message(None, reaction=reaction))
        await setup.daemon.say("after")
        assert await setup.receiver.got_texts(1) == ["after"]
        assert len(setup.receiver.notices) == MAX_ATTEMPTS
        assert setup.channels.accounts()[0].status.restarts == 0


@pytest.mark.parametrize(("answer", "receipts"), [(None, 1), (True, 1), (False, 0)])
async def test_reading_is_confirmed_only_to_those_who_may_write(
    tmp_path: Path, answer: bool | None, receipts: int
) -> None:
    async with running(tmp_path, sendReadReceipts=True) as setup:
        setup.receiver.answer = answer
        envelope = await setup.daemon.say("hello")
        await setup.daemon.say("in a group", group="grp1==")
        await setup.receiver.got_texts(2)
        expected = {"recipient": ANN, "targetTimestamp": envelope["timestamp"], "type": "read", "account": ME}
        assert setup.daemon.of("sendReceipt") == [expected] * receipts


async def test_while_the_disk_fails_a_message_is_offered_again_for_as_long_as_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    receiver.failures = [OSError("disk full") for _ in range(4 * MAX_ATTEMPTS)]
    async with running(tmp_path, receiver=receiver) as setup:
        await setup.daemon.say("keep me")
        assert await receiver.got_texts(1) == ["keep me"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("problem", [ValueError, TypeError, KeyError])
async def test_a_message_nobody_can_handle_is_given_up_and_confirmed(
    tmp_path: Path, problem: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    receiver.failures = [problem("poison") for _ in range(MAX_ATTEMPTS)]
    async with running(tmp_path, receiver=receiver) as setup:
        await setup.daemon.say("poison")
        await setup.daemon.say("fine")
        assert await receiver.got_texts(1) == ["fine"]
        setup.daemon.disconnect()
        await setup.daemon.deserted()
        await setup.daemon.connected()
        assert setup.daemon.last_event_ids[-1] == "1700-2", "the daemon does not send the poison again"
    (given_up,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "dropped" in given_up


async def test_next_to_a_daemon_that_runs_elsewhere_no_own_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listen(*_: Any) -> None:
        return

    monkeypatch.setattr(SignalChannel, "_listen", listen)
    monkeypatch.setattr("openclaw.channels.signal.channel.Daemon", None)
    channels = manager(tmp_path, channel_config("signal", {"account": ME, "httpUrl": "http://127.0.0.1:1"}), Receiver())
    await channels.start()
    (account,) = channels.accounts()
    async with asyncio.timeout(60):
        while not account.status.restarts:
            await asyncio.sleep(0.01)
    await channels.stop()
    assert account.status.last_error == "it stopped unexpectedly"


async def test_odd_events_are_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        await setup.daemon.write_raw(b'event:receive\ndata:{"envelope": 7}\n\nevent:receive\ndata:not json\n\n')
        await setup.daemon.write_raw(b": keep-alive\n\nretry: 5\r\nunknown: x\r\n\r\n")
        halves = json.dumps({"envelope": setup.daemon.message("in two lines")}).encode()
        await setup.daemon.write_raw(b"data:" + halves[:20])
        await setup.daemon.write_raw(halves[20:] + b"\r\n\r\n")
        assert await setup.receiver.got_texts(1) == ["in two lines"]


@pytest.mark.parametrize(
    ("code", "permanent"),
    [(-1, True), (-4, True), (-32602, True), (-3, False), (-5, False), (-32603, False), (-2, False)],
)
async def test_refusals_are_for_good_or_for_now(tmp_path: Path, code: int, permanent: bool) -> None:
    async with running(tmp_path) as setup:
        data = {"response": {"results": [{"type": "RATE_LIMIT_FAILURE", "retryAfterSeconds": 40}]}}
        setup.daemon.refuse_next("send", code, "no", data)
        with pytest.raises(SendFailed) as failed:
            await setup.send("x")
        assert (failed.value.permanent, failed.value.maybe_sent) == (permanent, False)
        assert failed.value.retry_after_s == (40 if code == -5 else None)


@pytest.mark.parametrize(
    ("results", "fails", "permanent"),
    [
        (["SUCCESS"], False, False),
        ([], False, False),
        (["NETWORK_FAILURE", "SUCCESS"], False, False),
        (["NETWORK_FAILURE"], True, False),
        (["UNREGISTERED_FAILURE"], True, True),
        (["IDENTITY_FAILURE", "NETWORK_FAILURE"], True, False),
    ],
)
async def test_an_answer_counts_as_sent_when_somebody_got_it(
    tmp_path: Path, results: list[str], fails: bool, permanent: bool
) -> None:
    async with running(tmp_path) as setup:
        setup.daemon.result_next("send", {"timestamp": 77, "results": [{"type": kind} for kind in results]})
        if not fails:
            assert await setup.send("x") == "77"
            return
        with pytest.raises(SendFailed) as failed:
            await setup.send("x")
        assert failed.value.permanent is permanent


async def test_an_answer_that_never_comes_leaves_the_message_in_doubt(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        setup.daemon.drop_next("send")
        with pytest.raises(SendFailed) as failed:
            await setup.send("x")
        assert failed.value.maybe_sent and not failed.value.permanent


@pytest.mark.parametrize(("status", "in_doubt"), [(200, True), (502, True), (404, False), (401, False)])
async def test_an_answer_of_something_else_than_a_daemon_leaves_the_message_in_doubt_unless_it_is_a_refusal(
    status: int, in_doubt: bool
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text="<html>", headers={"Retry-After": "9"})

    app = web.Application()
    app.router.add_post("/api/v1/rpc", answer)
    async with TestServer(app) as server, new_session() as http:
        with pytest.raises(SendFailed, match="really a signal-cli daemon") as failed:
            await SignalClient(http, str(server.make_url("")).rstrip("/")).call("send", {})
    assert failed.value.maybe_sent is in_doubt and not failed.value.permanent
    assert failed.value.reached and failed.value.retry_after_s == 9


@contextmanager
def taking_no_connections() -> Iterator[str]:
    """The address of a server whose queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as busy, ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(busy.getsockname())
        yield f"http://127.0.0.1:{busy.getsockname()[1]}"


async def test_a_daemon_that_takes_no_connection_is_not_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.channels.signal.channel.CONNECT_S", 0.05)
    with taking_no_connections() as address:
        async with new_session() as http:
            with pytest.raises(StreamLost, match="did not accept a connection"):
                await anext(SignalClient(http, address).events(None, ""))


async def test_a_message_is_not_in_doubt_when_there_was_no_connection() -> None:
    quick = aiohttp.ClientTimeout(sock_connect=0.05)
    with taking_no_connections() as address:
        async with aiohttp.ClientSession(timeout=quick) as http:
            with pytest.raises(SendFailed, match="does not accept connections") as failed:
                await SignalClient(http, address).call("send", {}, 60)
    assert not failed.value.maybe_sent and not failed.value.reached


async def test_a_daemon_that_is_not_there_was_not_reached(tmp_path: Path) -> None:
    daemon = await SignalDaemon(ME).start()
    async with running(tmp_path, daemon) as setup:
        await daemon.stop()
        with pytest.raises(SendFailed) as failed:
            await setup.send("x")
        assert not failed.value.maybe_sent and not failed.value.reached


async def test_an_account_the_daemon_does_not_know_is_told(tmp_path: Path) -> None:
    async with SignalDaemon("+15550000009") as daemon:
        channels = manager(tmp_path, channel_config("signal", {"account": ME, "httpUrl": daemon.url}), Receiver())
        await channels.start()
        (account,) = channels.accounts()
        async with asyncio.timeout(60):
            while account.status.last_error is None:
                await asyncio.sleep(0.01)
        assert "does not know the account" in account.status.last_error
        await channels.stop()


async def test_probing_asks_the_daemon_for_its_version(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        (account,) = setup.channels.accounts()
        assert await setup.channels.probe(account, 5) == {"ok": True, "version": "0.13.24"}


async def test_two_accounts_answer_through_the_one_that_heard(tmp_path: Path) -> None:
    second = "+15550000002"
    async with SignalDaemon(ME, second) as daemon:
        receiver = Receiver()
        wanted = channel_config(
            "signal", {"httpUrl": daemon.url, "accounts": {"home": {"account": ME}, "work": {"account": second}}}
        )
        channels = manager(tmp_path, wanted, receiver)
        await channels.start()
        await daemon.connected(2)
        await daemon.deliver(daemon.message("to work"), account=second)
        await receiver.got_texts(1)
        (message,) = receiver.messages
        assert message.account_id == "work"
        route = Route(channel="signal", to=message.to, account_id=message.account_id)
        await channels.send("signal", route, OutgoingMessage(text="from work"), "k")
        assert daemon.of("send") == [{"message": "from work", "account": second, "recipient": [ANN]}]
        await channels.stop()


def fake_cli(folder: Path) -> Path:
    script = folder / "signal-cli"
    root = Path(__file__).parent.parent.parent.parent
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from tests.support.signal_daemon import main\nmain(sys.argv[1:])\n"
    )
    script.chmod(0o700)
    return script


async def test_the_daemon_is_started_and_ended_with_the_channel(tmp_path: Path, unused_tcp_port: int) -> None:
    settings = {
        "account": ME,
        "cliPath": str(fake_cli(tmp_path)),
        "httpPort": unused_tcp_port,
        "receiveMode": "on-start",
    }
    wanted = channel_config("signal", settings)
    up = asyncio.Event()
    channels = manager(tmp_path, wanted, Receiver(), SystemClock())
    channels.on_connected = up.set
    await channels.start()
    async with asyncio.timeout(60):
        await up.wait()
    sent = await channels.send("signal", TO_ANN, OutgoingMessage(text="hello"), "k")
    assert sent.message_id.isdigit()
    await channels.stop()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", unused_tcp_port)


async def test_a_program_that_is_not_installed_is_said_once_and_not_tried_again(tmp_path: Path) -> None:
    wanted = channel_config("signal", {"account": ME, "cliPath": str(tmp_path / "no-such-cli")})
    channels = manager(tmp_path, wanted, Receiver(), SystemClock())
    await channels.start()
    (account,) = channels.accounts()
    assert account.task is not None
    await account.task
    assert not account.status.configured and "signal.cliPath" in (account.status.last_error or "")
    await channels.stop()


def test_the_configuration_says_what_is_missing() -> None:
    problems = [
        SignalKind({}).accounts(channel_config("signal", settings))[0].problem
        for settings in ({}, {"account": "12345"}, {"account": ME})
    ]
    assert ["channels.signal.account" in problem for problem in problems] == [True, True, False]
    assert os.sep not in problems[0]
