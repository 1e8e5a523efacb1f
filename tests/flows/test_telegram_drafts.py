"""A reply on Telegram while it is being written: the draft grows, gives way to the reply, and blocks win over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.telegram_server import ANN, TOKEN, TelegramServer


@asynccontextmanager
async def serving(
    tmp_path: Path, models: ModelServer, **channel: Any
) -> AsyncIterator[tuple[TelegramServer, InProcessGateway]]:
    async with TelegramServer(has_topics_enabled=True) as telegram:
        section = {"botToken": TOKEN, "apiRoot": telegram.url, "allowFrom": [ANN], **channel}
        config = model_config(models.base_url, models.api_key, channels={"telegram": section})
        async with InProcessGateway(tmp_path / "state", config) as running:
            await telegram.polling()
            yield telegram, running


@asynccontextmanager
async def gateway(tmp_path: Path, models: ModelServer, **channel: Any) -> AsyncIterator[TelegramServer]:
    async with serving(tmp_path, models, **channel) as (telegram, _):
        yield telegram


def drafts(telegram: TelegramServer) -> list[str]:
    return [shown["text"] for shown in telegram.of("sendMessageDraft")]


async def test_a_draft_shows_what_is_written_so_far_and_gives_way_to_the_reply(
    tmp_path: Path, models: ModelServer
) -> None:
    async with gateway(tmp_path, models) as telegram:
        rest = asyncio.Event()
        models.queue(Reply("one two three four", hold=rest, hold_after=2))
        await telegram.say("hello", message_thread_id=77)
        await telegram.until(lambda: drafts(telegram)[-1:] == ["one two"])
        rest.set()
        await telegram.called("sendMessage")
    assert telegram.texts() == ["one two three four"] and not telegram.of("deleteMessage")


async def test_where_there_are_no_drafts_a_slow_reply_is_one_message(tmp_path: Path, models: ModelServer) -> None:
    async with gateway(tmp_path, models) as telegram:
        rest = asyncio.Event()
        models.queue(Reply("one two three four", hold=rest, hold_after=2))
        await telegram.say("hello")
        await models.wait_for_requests(1)
        rest.set()
        await telegram.called("sendMessage")
    assert [sent["text"] for sent in telegram.of("sendMessage")] == ["one two three four"] and not drafts(telegram)


async def test_a_draft_shows_the_reasoning_until_the_answer_begins(tmp_path: Path, models: ModelServer) -> None:
    async with gateway(tmp_path, models) as telegram:
        await telegram.say("/reasoning stream", message_thread_id=77)
        await telegram.called("sendMessage")
        rest = asyncio.Event()
        models.queue(Reply("the answer", thinking="let me see", hold=rest))
        await telegram.say("hello", message_thread_id=77)
        await telegram.until(lambda: "let me see" in "".join(drafts(telegram)))
        rest.set()
        await telegram.called("sendMessage", 2)
    assert telegram.texts()[-1] == "the answer"


async def test_blocks_are_sent_instead_of_a_draft_where_they_are_asked_for(tmp_path: Path, models: ModelServer) -> None:
    chunks = {"blockStreaming": True, "blockStreamingChunk": {"minChars": 1, "maxChars": 20}}
    async with gateway(tmp_path, models, **chunks) as telegram:
        rest = asyncio.Event()
        first, second = "First paragraph here.", "The second one."
        models.queue(Reply(f"{first}\n\n{second}", hold=rest, hold_after=4))
        await telegram.say("hello")
        rest.set()
        await telegram.until(lambda: "".join(telegram.texts()).endswith(second))
    assert " ".join(telegram.texts()).split() == f"{first} {second}".split()
    assert not telegram.of("deleteMessage") and not telegram.of("editMessageText")
    assert not telegram.of("sendMessageDraft")


async def test_a_draft_is_not_shown_where_the_send_policy_forbids_the_reply(
    tmp_path: Path, models: ModelServer
) -> None:
    async with serving(tmp_path, models) as (telegram, running), running.client() as client:
        rest = asyncio.Event()
        models.queue(Reply("one two three four", hold=rest, hold_after=0))
        await telegram.say("hello", message_thread_id=77)
        await models.wait_for_requests(1)
        (row,) = (await client.call("sessions.list", {}))["sessions"]
        await client.call("sessions.patch", {"key": row["key"], "sendPolicy": "deny"})
        rest.set()
        async with asyncio.timeout(60):
            while (await client.call("messages.list", {}))["messages"][0]["state"] != "silent":
                await asyncio.sleep(0.01)
        await telegram.say("/status", message_thread_id=77)
        await telegram.called("sendMessage")
    assert not drafts(telegram) and len(telegram.of("sendMessage")) == 1
