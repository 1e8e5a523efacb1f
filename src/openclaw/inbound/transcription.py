"""Voice messages as text: a configured program or a speech service writes down what was said.

Transcription takes a while and may fail. It happens after the message was kept, and a message whose sound cannot be
read goes on without its words: the prompt gives the reason and the file.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from openclaw.config.schema import Config
from openclaw.config.schema.tools import TranscriptionModel
from openclaw.inbound.message import Inbound, Media
from openclaw.models.base import Model, ModelError, SpokenText
from openclaw.models.keys import Keys, provider_config
from openclaw.net import read_bounded
from openclaw.program import ProgramFailed, run_program
from openclaw.storage.blobs import BlobStore
from openclaw.text import clipped, shortened
from openclaw.tools.exec.settings import command_environment
from openclaw.untrusted_text import short_file_name

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("openclaw.inbound")

SERVICES = {
    "openai": ("https://api.openai.com/v1", "gpt-4o-mini-transcribe"),
    "groq": ("https://api.groq.com/openai/v1", "whisper-large-v3-turbo"),
    "mistral": ("https://api.mistral.ai/v1", "voxtral-mini-latest"),
}
"""Address and usual model of the services that are known. Others need ``baseUrl`` and ``model``."""
LONGEST_TRANSCRIPT = 100_000
LONGEST_OUTPUT = 1024 * 1024
AT_ONCE = 2


Billed: TypeAlias = Callable[[str, str, str, int, Callable[[], Awaitable[SpokenText]]], Awaitable[SpokenText]]
"""Makes a call and charges it: agent, provider, model, size of the recording, the call. It may refuse it."""


class NotTranscribed(Exception):
    """The sound could not be read. The message says why, without secrets."""


class GatewayStops(Exception):
    """The message waits for the next start."""


class Transcriber:
    def __init__(
        self,
        config: Callable[[], Config],
        blobs: BlobStore,
        keys: Keys,
        environ: Mapping[str, str] = os.environ,
        billed: Billed | None = None,
    ) -> None:
        """``billed`` makes calls of services that cost money. None: they are made without a bill."""
        self._config = config
        self._billed = billed
        self._blobs = blobs
        self._keys = keys
        self._environ = environ
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._under_way: set[asyncio.Task[str]] = set()
        self._closed = False

    def close(self) -> None:
        """End what is under way. Its messages are kept, and the next start takes them up."""
        self._closed = True
        for task in self._under_way:
            task.cancel()

    def wants(self, inbound: Inbound) -> bool:
        """Return whether a message has sound that is to be written down."""
        return any(_is_sound(media) for media in inbound.media) and bool(ways(self._config()))

    async def transcribed(self, inbound: Inbound, agent_id: str) -> Inbound:
        """Return the message with the words of its sound in its text. What failed is a line for the agent.

        The agent pays for it. Raises ``GatewayStops`` after ``close``, and nothing else.
        """
        if not self.wants(inbound):
            return inbound
        reply: list[str] = []
        problems: list[str] = []
        for media in inbound.media:
            if not _is_sound(media):
                continue
            try:
                reply.append(await self._unless_closed(media, agent_id))
            except NotTranscribed as problem:
                name = short_file_name(media.file_name or "") or "The voice message"
                log.warning("%s of %s was not transcribed: %s", name, inbound.channel, problem)
                problems.append(f"{name} was not transcribed: {problem}")
        return msgspec.structs.replace(
            inbound,
            text=with_transcripts(inbound.text, reply),
            spoken=bool(reply),
            untrusted=(*inbound.untrusted, *problems),
        )

    async def _unless_closed(self, media: Media, agent_id: str) -> str:
        if self._closed:
            raise GatewayStops("the Gateway stops; the voice message is transcribed after the next start")
        task = asyncio.create_task(self._written(media, agent_id))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        await asyncio.wait([task])
        if task.cancelled():
            raise GatewayStops("the Gateway stops; the voice message is transcribed after the next start")
        return task.result()

    async def _written(self, media: Media, agent_id: str) -> str:
        """Ask one way after the other. Raises ``NotTranscribed`` with the last reason."""
        settings = self._config().tools.media.audio
        data = await self._blobs.get(media.blob or "")
        if data is None:
            raise NotTranscribed("the file is gone")
        problem = "it holds no words"
        async with self._turns:
            for way in ways(self._config()):
                limit = way.max_bytes or settings.max_bytes
                if len(data) > limit:
                    problem = f"it is larger than {limit} bytes (tools.media.audio.maxBytes)"
                    continue
                try:
                    async with asyncio.timeout(way.timeout_seconds or settings.timeout_seconds):
                        if way.command:
                            words = await self._by_program(way, media, data)
                        else:
                            words = await self._by_service(way, media, data, agent_id)
                except TimeoutError:
                    problem = "it took too long (tools.media.audio.timeoutSeconds)"
                except NotTranscribed as failed:
                    problem = str(failed)
                except Exception as error:
                    log.exception("a voice message could not be transcribed")
                    problem = type(error).__name__
                else:
                    if words.strip():
                        return clipped(words.strip(), way.max_chars or settings.max_chars or LONGEST_TRANSCRIPT)
        raise NotTranscribed(problem)

    # A program of this machine

    async def _by_program(self, way: TranscriptionModel, media: Media, data: bytes) -> str:
        folder = Path(await asyncio.to_thread(_put_file, data, media))
        try:
            sound = next(folder.iterdir())
            made = folder / "out"
            await asyncio.to_thread(made.mkdir)
            values = {
                "MediaPath": str(sound),
                "MediaDir": str(folder),
                "OutputDir": str(made),
                "OutputBase": str(made / sound.stem),
                "Prompt": way.prompt or self._config().tools.media.audio.prompt or "",
                "MaxChars": str(way.max_chars or self._config().tools.media.audio.max_chars or LONGEST_TRANSCRIPT),
            }
            argv = [_filled(item, values) for item in (way.command or "", *way.args)]
            environment = command_environment(self._environ, {}, {}, ())
            printed = await run_program(argv, folder, environment, most_bytes=LONGEST_OUTPUT)
            return await asyncio.to_thread(_file_text, made) or printed
        except ProgramFailed as failed:
            last = failed.complaint.rpartition("\n")[2]
            raise NotTranscribed(f"{way.command} {failed.problem}: {shortened(last, 120)}".rstrip(": ")) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    # A service that speaks OpenAI's protocol

    async def _by_service(self, way: TranscriptionModel, media: Media, data: bytes, agent_id: str) -> str:
        import aiohttp

        config, provider = self._config(), way.provider or "openai"
        section = provider_config(config, provider)
        address, usual = SERVICES.get(provider, ("", ""))
        base = way.base_url or (section.base_url if section is not None else None) or address
        name = way.model or usual
        if not base or not name:
            raise NotTranscribed(f"tools.media.audio.models: {provider} needs baseUrl and model")
        try:
            model = Model(id=name, provider=provider, api="openai-completions", base_url=base)
            key = await self._keys.resolve_key(model, config)
        except ModelError as error:
            raise NotTranscribed(str(error)) from None
        form = aiohttp.FormData()
        form.add_field("file", data, filename=f"audio{_extension(media)}", content_type=media.mime_type)
        form.add_field("model", name)
        form.add_field("response_format", "json")
        settings = config.tools.media.audio
        hints = {"language": way.language or settings.language, "prompt": way.prompt or settings.prompt}
        for field, value in hints.items():
            if value:
                form.add_field(field, value)
        headers = {"Authorization": f"Bearer {key}"} if key else {}

        async def ask() -> SpokenText:
            async with aiohttp.ClientSession(headers=headers) as session:
                url = f"{base.rstrip('/')}/audio/transcriptions"
                async with session.post(url, data=form, allow_redirects=False) as response:
                    return await _answer(response, provider)

        try:
            spoken = ask() if self._billed is None else self._billed(agent_id, provider, name, len(data), ask)
            return (await spoken).text
        except aiohttp.ClientError as error:
            raise NotTranscribed(f"{provider} could not be reached ({type(error).__name__})") from None
        except ModelError as refused:
            raise NotTranscribed(str(refused)) from None


class _Counted(msgspec.Struct):
    """What services report. Each has words of its own for the length of the sound."""

    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    prompt_audio_seconds: float = 0.0


class _Transcript(msgspec.Struct):
    text: str = ""
    usage: _Counted | None = None
    duration: float | None = None

    def spoken(self) -> SpokenText:
        usage = self.usage or _Counted()
        seconds = usage.seconds or usage.prompt_audio_seconds or self.duration or 0.0
        by_time = bool(usage.seconds or usage.prompt_audio_seconds)
        return SpokenText(
            text=self.text,
            input_tokens=0 if by_time else usage.input_tokens or usage.prompt_tokens,
            output_tokens=0 if by_time else usage.output_tokens or usage.completion_tokens,
            seconds=seconds,
        )


async def _answer(response: aiohttp.ClientResponse, provider: str) -> SpokenText:
    if response.status != 200:
        raise NotTranscribed(f"{provider} answered {response.status}")
    body = await read_bounded(response, LONGEST_OUTPUT)
    try:
        return msgspec.json.decode(body, type=_Transcript).spoken()
    except (msgspec.MsgspecError, RecursionError):
        raise NotTranscribed(f"{provider} sent an invalid transcript") from None


def ways(config: Config) -> list[TranscriptionModel]:
    """How sound is written down, in the order in which it is tried. Empty if it is not.

    ``audio.transcription`` is an older place for the same.
    """
    audio, older = config.tools.media.audio, config.audio.transcription
    if audio.enabled is False:
        return []
    if audio.models:
        return [item for item in audio.models if item.command or item.type == "provider"]
    if older is not None and older.command:
        program, *args = older.command
        return [TranscriptionModel(type="cli", command=program, args=args, timeout_seconds=older.timeout_seconds)]
    return [TranscriptionModel(provider="openai")] if audio.enabled else []


def with_transcripts(text: str, said: Sequence[str]) -> str:
    """What a person wrote and said, as one text."""
    if not said:
        return text
    written = f"User text:\n{text.strip()}\n" if text.strip() else ""
    marks = ["[Audio]"] if len(said) == 1 else [f"[Audio {number}/{len(said)}]" for number in range(1, len(said) + 1)]
    blocks = [f"{mark}\nTranscript:\n{words}" for mark, words in zip(marks, said, strict=True)]
    return written + "\n\n".join(blocks)


def _is_sound(media: Media) -> bool:
    return bool(media.blob) and media.mime_type.startswith("audio/")


def _extension(media: Media) -> str:
    existing = {"audio/ogg": ".ogg", "audio/mpeg": ".mp3", "audio/mp4": ".m4a", "audio/wav": ".wav"}
    return existing.get(media.mime_type) or mimetypes.guess_extension(media.mime_type) or ".bin"


def _put_file(data: bytes, media: Media) -> str:
    folder = tempfile.mkdtemp(prefix="openclaw-audio-")
    (Path(folder) / f"audio{_extension(media)}").write_bytes(data)
    return folder


def _file_text(folder: Path) -> str:
    """What a program wrote into a text file, as whisper does."""
    for path in sorted(folder.glob("*.txt")):
        with path.open("rb") as file:
            return file.read(LONGEST_OUTPUT).decode("utf-8", "replace")
    return ""


def _filled(argument: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(f"{{{{{name}}}}}", value)
    return argument
