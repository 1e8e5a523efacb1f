"""Slack through its own library, against a server that refuses what Slack refuses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.messages import Route
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed
from tests.support.channel_account import ChannelUnderTest, running_channel
from tests.support.slack_server import BOT, SlackServer

ANN, GENERAL = "user:U0ANN", "channel:C0GENERAL"


@asynccontextmanager
async def running(tmp_path: Path, **section: Any) -> AsyncGenerator[tuple[SlackServer, ChannelUnderTest]]:
    async with SlackServer() as slack, running_channel(tmp_path, "slack", {**slack.settings, **section}) as channel:
        await channel.connected()
        yield slack, channel
        assert slack.strange == []


async def test_a_message_can_be_changed_deleted_and_reacted_to(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        ts = await channel.send("**first**", GENERAL)
        thread = await channel.send("in a thread", GENERAL, thread_id=ts)
        await channel.send(OutgoingMessage(act="edit", target_id=ts, text="_second_"), GENERAL)
        for _ in range(2):  # The second time changes nothing and does not fail.
            await channel.send(OutgoingMessage(act="react", target_id=ts, emoji="👍"), GENERAL)
            await channel.send(OutgoingMessage(act="pin", target_id=ts), GENERAL)
        assert {stamp for _, stamp in slack.pins} == {ts}
        for _ in range(2):
            await channel.send(OutgoingMessage(act="delete", target_id=thread), GENERAL)
        await channel.send(OutgoingMessage(act="react", target_id=ts, emoji="👍", remove=True), GENERAL)
        for _ in range(2):
            await channel.send(OutgoingMessage(act="pin", target_id=ts, remove=True), GENERAL)
        assert not slack.pins
    assert [(post["text"], post["ts"]) for post in slack.ours] == [("_second_", ts)]
    assert slack.of("chat.postMessage")[1]["thread_ts"] == ts
    assert slack.of("reactions.add") and not slack.reactions


async def test_files_are_uploaded_and_shown_with_the_text(tmp_path: Path) -> None:
    async with running(tmp_path, mediaMaxMb=1) as (slack, channel):
        media = (
            MediaRef(blob=await channel.blobs.put(b"one"), mime_type="text/plain", file_name="../a b.txt"),
            MediaRef(blob=await channel.blobs.put(b"two"), mime_type="text/plain"),
        )
        await channel.send(OutgoingMessage(text="**two files**", media=media), ANN, thread_id="1700000000.000100")
        huge = MediaRef(blob=await channel.blobs.put(b"x" * 1_100_000), mime_type="text/plain", file_name="huge.txt")
        with pytest.raises(SendFailed, match=r"larger than channels.slack.mediaMaxMb"):
            await channel.send(OutgoingMessage(media=(huge,)), ANN)
        slack.refuse_next("files.getUploadURLExternal", "internal_error", 500)
        with pytest.raises(SendFailed) as failed:
            await channel.send(OutgoingMessage(media=media[:1]), ANN)
        assert not failed.value.maybe_sent, "nothing was shown yet"
    (post,) = slack.ours
    assert (post["channel"], post["text"], post["thread_ts"]) == ("D0ANN", "*two files*", "1700000000.000100")
    assert post["files"] == [("a b.txt", b"one"), ("file.txt", b"two")]


@pytest.mark.parametrize(
    ("error", "status", "permanent", "reached", "maybe_sent", "wait"),
    [
        ("channel_not_found", 200, True, True, False, None),
        ("missing_scope", 200, True, True, False, None),
        ("ratelimited", 429, False, True, False, 7.0),
        ("fatal_error", 200, False, True, True, None),
        ("unavailable", 503, False, True, True, 7.0),
        ("service_unavailable", 200, False, True, False, None),
        ("token_revoked", 200, False, False, False, None),
    ],
)
async def test_failures_mean_what_slack_says(
    tmp_path: Path, error: str, status: int, permanent: bool, reached: bool, maybe_sent: bool, wait: float | None
) -> None:
    async with running(tmp_path) as (slack, channel):
        slack.refuse_next("chat.postMessage", error, status, {"Retry-After": "7"} if status >= 400 else None)
        with pytest.raises(SendFailed) as failed:
            await channel.send("hello", GENERAL)
    failure = failed.value
    assert (failure.permanent, failure.reached, failure.maybe_sent) == (permanent, reached, maybe_sent)
    assert failure.retry_after_s == wait


async def test_a_lost_answer_leaves_it_open_whether_the_message_arrived(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        slack.drop_next("chat.postMessage")
        with pytest.raises(SendFailed) as failed:
            await channel.send("hello", GENERAL, key="run:7")
        assert failed.value.maybe_sent and not failed.value.permanent
        again = OutgoingMessage(text="hello", possibly_duplicate=True)
        assert await channel.send(again, GENERAL, key="run:7") == slack.ours[0]["ts"]
        await channel.send(again, GENERAL, key="run:8")
    assert [post["text"] for post in slack.ours] == ["hello", "hello"], "the second has another key, so it is new"


async def test_messages_of_one_conversation_keep_their_order_while_the_disk_fails(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        channel.receiver.failures = [OSError("disk full") for _ in range(12)]
        for number in range(10):
            await slack.say(f"message {number}")
        await channel.receiver.until(lambda: len(channel.receiver.messages) == 10)
        await slack.all_acknowledged()
    assert [inbound.text for inbound in channel.receiver.messages] == [f"message {number}" for number in range(10)]


async def test_frames_that_mean_nothing_are_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        for text in ("{", "[]", "null", '{"type":5}', '{"type":"new_kind"}'):
            await slack.write_raw(text)
        await slack.deliver({"type": "message", "channel": 7, "text": ["odd"]})
        await slack.deliver({"view": {}}, "interactive")
        await slack.say("still here")
        assert await channel.receiver.got_texts(1) == ["still here"]
        await slack.all_acknowledged()


async def test_reactions_are_told_as_the_settings_say(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        item = {"type": "message", "channel": "C0GENERAL", "ts": "1700000000.000100"}
        reaction = {"type": "reaction_added", "user": "U0ANN", "item": item, "event_ts": "1700000001.000100"}
        await slack.deliver({**reaction, "reaction": "eyes", "item_user": "U0BOB"})
        await slack.deliver({**reaction, "reaction": "tada", "item_user": BOT})
        await slack.all_acknowledged()
    assert channel.receiver.notice_texts == ["Slack: Ann reacted with :tada: to your message (id 1700000000.000100)"]


async def test_a_name_that_cannot_be_looked_up_is_left_out(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        slack.refuse_next("users.info", "missing_scope")
        await slack.say("hello")
        await channel.receiver.until(lambda: len(channel.receiver.messages) == 1)
    assert channel.receiver.messages[0].sender.name is None


async def test_socket_mode_that_is_switched_off_ends_the_account_with_a_clear_line(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        await slack.refresh("link_disabled")
        assert "Socket Mode is disabled" in await channel.ended()


async def test_the_typing_sign_is_a_status_of_the_thread(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        await channel.manager.typing("slack", Route(channel="slack", to=ANN), True)
        route = Route(channel="slack", to=ANN, thread_id="1700000000.000100")
        await channel.manager.typing("slack", route, True)
        slack.refuse_next("assistant.threads.setStatus", "missing_scope")
        await channel.manager.typing("slack", route, False)
        await channel.manager.typing("slack", route, True)
    assert [call["status"] for call in slack.of("assistant.threads.setStatus")] == ["is typing..."]


async def test_in_a_direct_chat_the_typing_sign_is_a_status_of_the_message(tmp_path: Path) -> None:
    async with running(tmp_path) as (slack, channel):
        route = Route(channel="slack", to=ANN, reply_to_id="1700000000.000100")
        slack.refuse_next("assistant.threads.setStatus", "invalid_thread_ts")
        await channel.manager.typing("slack", route, True)  # This one message has no thread. Others may have one.
        await channel.manager.typing("slack", route, True)
        await channel.manager.typing("slack", route, False)
    shown = [(call["thread_ts"], call["status"]) for call in slack.of("assistant.threads.setStatus")]
    assert shown == [("1700000000.000100", "is typing..."), ("1700000000.000100", "")]


async def test_a_probe_names_the_bot(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, channel):
        (account,) = channel.manager.accounts("slack")
        assert await channel.manager.probe(account, 30) == {"ok": True, "bot": "claw", "team": "Test"}
