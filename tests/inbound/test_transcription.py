"""Voice messages: a program or a service writes them down, one way after the other, and nothing of them gets lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.config.load import parse_config
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound, Media, Peer, Sender
from openclaw.inbound.transcription import GatewayStops, Transcriber, ways, with_transcripts
from openclaw.models.keys import Keys

OGG = b"OggS" + b"sound" * 10
SAYS = "import sys; print(len(open(sys.argv[1], 'rb').read()), sys.argv[1].rpartition('.')[2])"


class Blobs:
    async def put(self, data: bytes) -> str:
        raise AssertionError("nothing is stored")

    async def get(self, digest: str) -> bytes | None:
        return {"voice": OGG}.get(digest)


def configured(**sections: Any) -> Config:
    import json

    found = parse_config("openclaw.json", json.dumps(sections), {}).config
    assert found is not None
    return found


def audio(*models: dict[str, Any], **more: Any) -> Config:
    return configured(tools={"media": {"audio": {"models": list(models), **more}}})


def program(code: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"type": "cli", "command": sys.executable, "args": ["-c", code, *args], **more}


def voice(text: str = "", *media: Media) -> Inbound:
    return Inbound(
        channel="signal",
        peer=Peer(kind="direct", id="ann"),
        sender=Sender(id="ann"),
        to="ann",
        text=text,
        media=media or (Media(mime_type="audio/ogg", blob="voice"),),
    )


def transcriber(config: Config, **environ: str) -> Transcriber:
    return Transcriber(lambda: config, Blobs(), Keys(environ), {"PATH": "/usr/bin:/bin", **environ})


async def heard(config: Config, inbound: Inbound | None = None, **environ: str) -> Inbound:
    return await transcriber(config, **environ).transcribed(inbound or voice(), "main")


@pytest.mark.parametrize(
    ("sections", "kinds"),
    [
        ({}, []),
        ({"audio": {"transcription": {"command": ["whisper", "{{MediaPath}}"]}}}, ["whisper"]),
        ({"tools": {"media": {"audio": {"enabled": True}}}}, ["openai"]),
        ({"tools": {"media": {"audio": {"models": [{"provider": "groq"}, program("x")]}}}}, ["groq", sys.executable]),
        ({"tools": {"media": {"audio": {"enabled": False, "models": [{"provider": "groq"}]}}}}, []),
        (
            {
                "tools": {"media": {"audio": {"models": [{"provider": "groq"}]}}},
                "audio": {"transcription": {"command": ["whisper"]}},
            },
            ["groq"],
        ),
    ],
)
def test_which_ways_there_are(sections: dict[str, Any], kinds: list[str]) -> None:
    assert [one.command or one.provider for one in ways(configured(**sections))] == kinds


async def test_a_program_reads_the_file_and_its_words_stand_in_the_message() -> None:
    assert (await heard(audio(program(SAYS, "{{MediaPath}}")))).text == f"[Audio]\nTranscript:\n{len(OGG)} ogg"


async def test_an_older_configuration_names_the_program_elsewhere() -> None:
    command = [sys.executable, "-c", SAYS, "{{MediaPath}}"]
    found = await heard(configured(audio={"transcription": {"command": command}}))
    assert found.text.endswith("54 ogg")


async def test_a_program_may_write_a_text_file_instead() -> None:
    code = "import sys; open(sys.argv[1] + '.txt', 'w').write('from the file'); print('progress 100 %')"
    found = await heard(audio(program(code, "{{OutputBase}}")))
    assert found.text == "[Audio]\nTranscript:\nfrom the file"


async def test_what_was_written_beside_it_stays() -> None:
    found = await heard(audio(program("print('hello there')")), voice("see"))
    assert found.text == "User text:\nsee\n[Audio]\nTranscript:\nhello there"
    assert with_transcripts("", ["a", "b"]) == "[Audio 1/2]\nTranscript:\na\n\n[Audio 2/2]\nTranscript:\nb"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (audio(program("import sys; sys.exit('no model file')")), "ended with status 1: no model file"),
        (audio({"type": "cli", "command": "/nowhere/whisper"}), "/nowhere/whisper cannot be started"),
        (audio(program("print('  ')")), "it holds no words"),
        (audio(program("import time; time.sleep(600)", timeoutSeconds=1)), "it took too long"),
        (audio(program("print('x')", maxBytes=10)), "it is larger than 10 bytes"),
        (audio({"provider": "nobody"}), "nobody needs baseUrl and model"),
        (audio({"provider": "openai"}), "OPENAI_API_KEY"),
    ],
)
async def test_what_fails_is_told_to_the_agent_and_the_message_goes_on(config: Config, why: str) -> None:
    found = await heard(config, voice("see this"))
    assert found.text == "see this" and len(found.media) == 1
    (line,) = found.untrusted
    assert line.startswith("The voice message was not transcribed: ") and why in line


async def test_the_next_way_is_tried_when_one_fails() -> None:
    found = await heard(audio(program("raise SystemExit(2)"), program("print('second')")))
    assert found.text.endswith("second") and not found.untrusted


async def test_pictures_and_files_that_are_gone_are_left_alone() -> None:
    config = audio(program("print('x')"))
    picture = voice("look", Media(mime_type="image/png", blob="voice"))
    assert not transcriber(config).wants(picture)
    assert await heard(config, picture) is picture
    gone = await heard(config, voice("", Media(mime_type="audio/ogg", blob="nothing", file_name="v.ogg")))
    assert gone.untrusted == ("v.ogg was not transcribed: the file is gone",)


async def test_a_stop_leaves_the_message_to_the_next_start(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"
    one = transcriber(audio(program(code, str(begun))))
    task = asyncio.create_task(one.transcribed(voice(), "main"))
    async with asyncio.timeout(60):
        while not begun.exists():
            await asyncio.sleep(0.01)
    one.close()
    with pytest.raises(GatewayStops):
        await asyncio.wait_for(task, 60)
    with pytest.raises(GatewayStops):
        await one.transcribed(voice(), "main")


@pytest.fixture
async def service() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []

    async def transcriptions(request: web.Request) -> web.Response:
        form = await request.post()
        if request.headers.get("Authorization") != "Bearer the-key" or not isinstance(form["file"], web.FileField):
            return web.json_response({"error": {"message": "the-key is wrong"}}, status=401)
        file = form["file"]
        fields = {name: value for name, value in form.items() if name != "file"}
        asked.append({**fields, "file": (file.filename, file.content_type, file.file.read())})
        return web.json_response({"text": "from the service", "unknown": 1})

    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", transcriptions)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", asked
    await runner.cleanup()


async def test_a_service_gets_the_file_and_the_hints(service: tuple[str, list[dict[str, Any]]]) -> None:
    url, asked = service
    config = audio({"provider": "openai", "baseUrl": url, "model": "whisper-1"}, language="en", prompt="names: Ann")
    found = await heard(config, OPENAI_API_KEY="the-key")
    assert found.text == "[Audio]\nTranscript:\nfrom the service"
    assert asked == [
        {
            "model": "whisper-1",
            "response_format": "json",
            "language": "en",
            "prompt": "names: Ann",
            "file": ("audio.ogg", "audio/ogg", OGG),
        }
    ]


async def test_a_service_that_refuses_is_named_without_its_words(service: tuple[str, list[dict[str, Any]]]) -> None:
    found = await heard(audio({"provider": "openai", "baseUrl": service[0]}), OPENAI_API_KEY="another-key")
    (line,) = found.untrusted
    assert line == "The voice message was not transcribed: openai answered 401"
