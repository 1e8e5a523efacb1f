"""Files in replies: named by ``MEDIA:`` lines, sent with the words, on a channel and to the web client."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from tests.flows.test_replies import SMALL, STREAM, streamed
from tests.support.gateway import RequestFailed, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"
PNG = b"\x89PNG\r\n\x1a\n" + b"picture"
Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US) as daemon:
        yield daemon


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> Start:
    @asynccontextmanager
    async def gateway(
        channel: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None, **more: Any
    ) -> AsyncIterator[InProcessGateway]:
        section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
        config = model_config(
            models.base_url, models.api_key, channels={"signal": {**section, **(channel or {})}}, **more
        )
        config["agents"]["defaults"] |= defaults or {}
        workspace = tmp_path / "state" / "workspace"
        (workspace / "out").mkdir(parents=True)
        (workspace / "out" / "a.png").write_bytes(PNG)
        (workspace / "b.txt").write_text("words")
        async with InProcessGateway(tmp_path / "state", config) as running:
            await signal.connected()
            yield running

    return gateway


def file_of(call: dict[str, Any]) -> tuple[str, bytes] | None:
    if not call.get("attachments"):
        return None
    (one,) = call["attachments"]
    head, _, data = str(one).partition("base64,")
    return head.removeprefix("data:").rstrip(";"), base64.b64decode(data)


async def sent(signal: SignalDaemon, count: int) -> list[tuple[str, tuple[str, bytes] | None]]:
    return [(call["message"], file_of(call)) for call in await signal.called("send", count)]


PICTURE = ("image/png;filename=a.png", PNG)
WORDS = ("text/plain;filename=b.txt", b"words")


async def test_each_file_is_an_attachment_and_the_words_are_the_caption_of_the_first(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(Reply(text="Here they are.\n\nMEDIA:./out/a.png\nMEDIA: ./b.txt\nEnjoy."))
    async with start():
        await signal.say("go", sender=ANN)
        assert await sent(signal, 2) == [("Here they are.\nEnjoy.", PICTURE), ("", WORDS)]


async def test_a_picture_that_is_too_large_arrives_smaller(
    start: Start, signal: SignalDaemon, models: ModelServer, tmp_path: Path
) -> None:
    models.queue(Reply(text="The photograph.\nMEDIA:./photo.png"))
    async with start({"mediaMaxMb": 0.1}):
        picture = Image.frombytes("RGB", (500, 400), random.Random(1).randbytes(500 * 400 * 3))
        picture.save(tmp_path / "state" / "workspace" / "photo.png")
        await signal.say("go", sender=ANN)
        ((words, file),) = await sent(signal, 1)
    assert words == "The photograph." and file is not None and file[0] == "image/jpeg;filename=photo.jpg"
    assert len(file[1]) <= 0.1 * 1024 * 1024
    with Image.open(io.BytesIO(file[1])) as made:
        made.load()
        assert made.format == "JPEG"


async def test_a_file_alone_and_a_file_beside_silence_are_sent(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(Reply(text="MEDIA:./out/a.png"), Reply(text="NO_REPLY\nMEDIA:./b.txt"))
    async with start():
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == [("", PICTURE)]
        await signal.say("more", sender=ANN)
        assert (await sent(signal, 2))[1] == ("", WORDS)


async def test_a_file_that_cannot_be_read_is_explained_and_the_words_arrive(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(Reply(text="See this.\nMEDIA:./gone.png\nMEDIA:./out/a.png"))
    async with start():
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == [
            ("See this.\n\n⚠️ The file gone.png was not sent: there is no such file.", PICTURE)
        ]


async def test_a_file_that_the_platform_refuses_does_not_take_the_words_with_it(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(Reply(text="See this.\nMEDIA:./out/a.png"))
    async with start({"mediaMaxMb": 8}) as gateway:
        signal.refuse_next("send", -1, "Attachment cannot be processed")
        await signal.say("go", sender=ANN)
        ((words, file),) = await sent(signal, 1)
        assert words.startswith("See this.\n\n⚠️ The file a.png was not sent: ") and file is None
        assert "Attachment cannot be processed" in words
        async with gateway.client() as client:
            rows = (await client.call("messages.list", {}))["messages"]
            facts = await client.call("messages.get", {"id": rows[0]["id"]})
    assert [part["state"] for part in facts["deliveries"]] == ["sent"]


async def test_with_blocks_a_file_comes_where_it_stood_and_no_block_shows_the_line(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    hold = asyncio.Event()
    first = "The first paragraph, which is long enough to stand alone."
    pieces = [f"{first}\n\n", "Second ", "one.\n", "MED", "IA:./out", "/a.png\n", "Third.\n", "MEDIA:./b.txt"]
    models.queue(streamed(*pieces, hold=hold, hold_after=7))
    async with start(STREAM, SMALL):
        await signal.say("go", sender=ANN)
        assert await sent(signal, 2) == [(first, None), ("Second one.", PICTURE)]
        hold.set()
        got = await sent(signal, 3)
    assert got[2:] == [("Third.", WORDS)]


@pytest.mark.parametrize("ends", ["text_end", "message_end"])
async def test_a_reply_that_failed_half_way_sends_its_files_once_and_in_place(
    start: Start, signal: SignalDaemon, models: ModelServer, ends: str
) -> None:
    pieces = ["MEDIA:./b.txt\n", "First one.\n", "MEDIA:./out/a.png\n", "Second paragraph.\n\n", "Third one."]
    models.queue(streamed(*pieces[:4], "Thi", cut=True, delay_ms=5), streamed(*pieces))
    async with start(STREAM, {**SMALL, "blockStreamingBreak": ends}) as gateway:
        await signal.say("go", sender=ANN)
        async with asyncio.timeout(60):
            while "Third one." not in str(signal.of("send")):
                await asyncio.sleep(0.01)
        got = [(call["message"], file_of(call)) for call in signal.of("send")]
        async with gateway.client() as client:
            facts = await client.call("messages.get", {"id": 1})
    assert got[:2] == [("", WORDS), ("First one.", PICTURE)]
    assert [file for _, file in got[2:]] == [None] * (len(got) - 2)
    assert "".join("".join(text for text, _ in got[2:]).split()) == "Secondparagraph.Thirdone."
    assert {part["state"] for part in facts["deliveries"]} == {"sent"}


async def test_a_file_that_cannot_be_sent_is_explained_where_it_stood(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(streamed("First paragraph.\n", "MEDIA:./gone.png\n", "Second."))
    async with start(STREAM, SMALL):
        await signal.say("go", sender=ANN)
        assert [text for text, _ in await sent(signal, 2)] == [
            "First paragraph.\n\n⚠️ The file gone.png was not sent: there is no such file.",
            "Second.",
        ]


async def test_files_of_an_answer_before_a_tool_stay_with_it(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(
        Reply(text="First.\nMEDIA:./out/a.png", calls=[Call("read", {"path": "b.txt"})]), Reply(text="MEDIA:./b.txt")
    )
    async with start():
        await signal.say("go", sender=ANN)
        assert await sent(signal, 2) == [("First.", PICTURE), ("", WORDS)]


async def test_without_the_right_to_read_files_none_of_them_leaves(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    models.queue(Reply(text="MEDIA:./b.txt"))
    async with start(tools={"deny": ["read"]}):
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == [("⚠️ The file b.txt was not sent: this conversation may not read files.", None)]


async def test_a_web_client_is_told_of_files_and_can_load_those_of_the_workspace(
    start: Start, models: ModelServer, tmp_path: Path
) -> None:
    text = "See.\nMEDIA: ./out/a.png https://example.org/c.png\nEnd."
    models.queue(streamed(*(text[place : place + 5] for place in range(0, len(text), 5))))
    async with start() as gateway, gateway.client() as client:
        final = await client.chat("go", run_id="one")
        named = ["./out/a.png", "https://example.org/c.png"]
        assert (final["message"]["content"][0]["text"], final["message"]["mediaUrls"]) == ("See.\nEnd.", named)
        view = await client.call("chat.view", {"sessionKey": "main"})
        message = view["messages"][-1]
        assert (message["content"][0]["text"], message["mediaUrls"]) == ("See.\nEnd.", named)
        where = {"sessionKey": "main", "entryId": message["__openclaw"]["id"]}
        got = await client.call("chat.media", {**where, "index": 0})
        assert (got["fileName"], got["mimeType"], base64.b64decode(got["content"])) == ("a.png", "image/png", PNG)
        for index, why in ((1, "on the web"), (2, "names no such file")):
            with pytest.raises(RequestFailed, match=why):
                await client.call("chat.media", {**where, "index": index})
        (tmp_path / "state" / "workspace" / "out" / "a.png").unlink()
        with pytest.raises(RequestFailed, match="there is no such file"):
            await client.call("chat.media", {**where, "index": 0})
        told = [one["payload"]["data"] for one in client.of_run("one") if one["payload"].get("stream") == "assistant"]
        assert [url for data in told for url in data.get("mediaUrls", [])] == named
        assert not any("MED" in data["text"] for data in told)


async def test_the_agent_method_tells_of_files_beside_the_text(start: Start, models: ModelServer) -> None:
    models.queue(Reply(text="See.\nMEDIA: ./out/a.png https://example.org/c.png"))
    async with start() as gateway, gateway.client() as client:
        request = await client.send("agent", {"message": "go", "agentId": "main", "idempotencyKey": "two"})
        _, answer = await client.answer(request), await client.answer(request)
    media = ["./out/a.png", "https://example.org/c.png"]
    assert answer["result"]["payloads"] == [{"text": "See.", "mediaUrl": "./out/a.png", "mediaUrls": media}]


async def test_a_job_sends_the_files_of_its_answer(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    models.queue(Reply(text="The chart.\nMEDIA: ./out/a.png ./gone.png"))
    job = {
        "name": "Chart",
        "schedule": {"kind": "cron", "expr": "0 7 * * *"},
        "sessionTarget": "isolated",
        "wakeMode": "next-heartbeat",
        "payload": {"kind": "agentTurn", "message": "Draw"},
        "delivery": {"mode": "announce", "channel": "signal", "to": ANN},
    }
    async with start() as gateway, gateway.client() as client:
        made = await client.call("cron.add", job)
        await client.call("cron.run", {"jobId": made["id"]})
        assert await sent(signal, 1) == [
            ("The chart.\n\n⚠️ The file gone.png was not sent: there is no such file.", PICTURE)
        ]


# Voice messages

OGG = b"OggS" + b"sound"
VOICE = [{"id": "v1", "contentType": "audio/ogg; codecs=opus", "filename": "voice.ogg", "size": len(OGG)}]


def listening(code: str) -> dict[str, Any]:
    return {"media": {"audio": {"models": [{"type": "cli", "command": sys.executable, "args": ["-c", code]}]}}}


async def test_a_voice_message_is_read_by_the_model_and_keeps_its_place_before_later_words(
    start: Start, signal: SignalDaemon, models: ModelServer, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('buy some milk')"
    signal.attachments["v1"] = OGG
    models.queue(Reply(text="Milk, yes."), Reply(text="Bread too."))
    async with start(tools=listening(code)) as gateway, gateway.client() as client:
        await signal.say("", sender=ANN, attachments=VOICE)
        await signal.say("and bread", sender=ANN)
        async with asyncio.timeout(60):
            while [row["state"] for row in (await client.call("messages.list", {}))["messages"]] != ["held", "held"]:
                await asyncio.sleep(0.01)
        go.touch()
        assert await sent(signal, 2) == [("Milk, yes.", None), ("Bread too.", None)]
        view = await client.call("chat.view", {"sessionKey": "main"})
    first = models.requests[0].body["messages"][-1]
    assert "Transcript:" in json.dumps(first) and "buy some milk" in json.dumps(first)
    assert "media/inbound/" in json.dumps(first)
    assert view["messages"][0]["content"][0]["text"].endswith("Transcript:\nbuy some milk")


async def test_a_voice_message_that_nobody_can_write_down_is_answered_all_the_same(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    signal.attachments["v1"] = OGG
    models.queue(Reply(text="I could not hear that."))
    async with start(tools=listening("raise SystemExit('no model')")):
        await signal.say("", sender=ANN, attachments=VOICE)
        assert await sent(signal, 1) == [("I could not hear that.", None)]
    prompt = json.dumps(models.requests[0].body["messages"][-1])
    assert "voice.ogg was not transcribed" in prompt and "<media:audio>" in prompt


async def test_spoken_words_are_no_command(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    signal.attachments["v1"] = OGG
    models.queue(Reply(text="You said something."))
    async with start(tools=listening("print('/reset')")):
        await signal.say("", sender=ANN, attachments=VOICE)
        assert await sent(signal, 1) == [("You said something.", None)]


@pytest.mark.parametrize("claimed", ["image/heic", "image/jpeg", "application/octet-stream"])
async def test_a_picture_that_no_model_can_read_is_kept_as_a_file_and_the_agent_is_told(
    start: Start, signal: SignalDaemon, models: ModelServer, tmp_path: Path, claimed: str
) -> None:
    signal.attachments["p1"] = heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40
    async with start():
        file = {"id": "p1", "contentType": claimed, "filename": "IMG_1.HEIC", "size": len(heic)}
        await signal.say("look [[reply:I cannot]]", sender=ANN, attachments=[file])
        assert await sent(signal, 1) == [("I cannot", None)]
    prompt = json.dumps(models.requests[0].body["messages"][-1])
    assert "IMG_1.HEIC is image/heic, which you cannot see" in prompt and '"image"' not in prompt
    (kept,) = (tmp_path / "state" / "workspace" / "media" / "inbound").iterdir()
    assert kept.read_bytes() == heic and f"media/inbound/{kept.name} (image/heic)" in prompt


# Sound in replies


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    "text", ["[[audio_as_voice]]\nMEDIA:./say.ogg\nHere.", "MEDIA:./say.ogg\nHere. [[audio_as_voice]]"]
)
async def test_a_reply_that_asks_for_it_is_a_voice_message(
    start: Start, signal: SignalDaemon, models: ModelServer, tmp_path: Path, text: str, streams: bool
) -> None:
    models.queue(
        streamed(*(text[place : place + 6] for place in range(0, len(text), 6))), Reply(text="MEDIA:./say.ogg")
    )
    async with start({**STREAM, "blockStreaming": streams}, SMALL):
        (tmp_path / "state" / "workspace" / "say.ogg").write_bytes(OGG)
        await signal.say("go", sender=ANN)
        calls = await signal.called("send", 2)
        await signal.say("again", sender=ANN)
        plain = (await signal.called("send", 3))[2]
    assert sorted(call["message"] for call in calls) == ["", "Here."]
    (spoken,) = (call for call in calls if call.get("attachments"))
    assert (spoken["voiceNote"], spoken["message"]) == (True, "")
    assert "voiceNote" not in plain and plain["attachments"]


# What voice messages cost


@asynccontextmanager
async def speech_service(usage: dict[str, Any]) -> AsyncIterator[tuple[str, list[str]]]:
    asked: list[str] = []

    async def transcriptions(request: web.Request) -> web.Response:
        asked.append(str((await request.post())["model"]))
        return web.json_response({"text": "buy some milk", "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", transcriptions)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("model", "usage", "dollars"),
    [
        ("whisper-1", {"type": "duration", "seconds": 90}, 0.009),
        ("gpt-4o-mini-transcribe", {"type": "tokens", "input_tokens": 1000, "output_tokens": 100}, 0.0035),
        ("voxtral-mini-latest", {"prompt_audio_seconds": 60, "prompt_tokens": 4, "completion_tokens": 9}, 0.002),
    ],
)
async def test_what_a_transcription_costs_is_in_the_usage_of_the_agent(
    start: Start, signal: SignalDaemon, models: ModelServer, model: str, usage: dict[str, Any], dollars: float
) -> None:
    signal.attachments["v1"] = OGG
    models.queue(Reply(text="Milk, yes."))
    async with speech_service(usage) as (url, asked):
        way = {"provider": "mock", "baseUrl": url, "model": model}
        async with start(tools={"media": {"audio": {"models": [way]}}}) as gateway, gateway.client() as client:
            await signal.say("", sender=ANN, attachments=VOICE)
            assert await sent(signal, 1) == [("Milk, yes.", None)]
            totals = (await client.call("usage.cost", {}))["totals"]
    assert asked == [model]
    assert totals["totalCost"] == pytest.approx(dollars)


async def test_a_transcription_that_the_budget_does_not_allow_is_not_made(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    signal.attachments["v1"] = OGG
    models.queue(Reply(text="I could not hear that."))
    async with speech_service({}) as (url, asked):
        way = {"provider": "mock", "baseUrl": url, "model": "whisper-1"}
        audio = {"media": {"audio": {"models": [way]}}}
        async with start(None, {"budget": {"dayTokens": 999}}, tools=audio) as gateway, gateway.client() as client:
            await signal.say("", sender=ANN, attachments=VOICE)
            await signal.called("send", 1)
            (row,) = (await client.call("messages.list", {}))["messages"]
    assert not asked and row["state"] == "failed"
