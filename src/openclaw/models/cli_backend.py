"""Programs on this machine that answer in place of a model API, such as the command-line agents of vendors.

A program is started for each answer. It gets the system prompt and the new message, prints its answer and ends. It has
tools of its own and none of ours. A program that keeps conversations goes on with its own as long as it holds what ours
holds. Otherwise it starts a new session and gets our whole conversation as text.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import shutil
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from openclaw import json_text
from openclaw.clock import Clock
from openclaw.config.schema.agents import CliBackend
from openclaw.messages import AssistantMessage, ImageBlock, Message, TextBlock, ToolResultMessage, UserMessage
from openclaw.models.base import CLI_API, ErrorKind, Model, ModelError, ModelRequest, StreamEvent
from openclaw.models.errors import classify, redact
from openclaw.models.http import MessageBuilder
from openclaw.program import LONGEST_COMPLAINT, ProgramFailed, run_program
from openclaw.text import clipped, printable

if TYPE_CHECKING:
    from openclaw.config.schema import Config

LONGEST_ARGUMENT = 100_000
"""Bytes. A longer text goes to the program's standard input, because Linux takes no argument of 128 KiB."""
LONGEST_READ = 4 * LONGEST_COMPLAINT
"""How much of a program's complaint is searched for what went wrong. A long one would hold everything up."""
LONGEST_OUTPUT = 16 * 1024 * 1024
LONGEST_RESULT = 2000
"""Characters of a tool result in the text of a conversation."""
CONVERSATIONS_KEPT = 1024
NO_TOOLS = "Tools of OpenClaw are not available in this session; answer with words."
SESSION_PLACE = "{sessionId}"
_NOT_FOR_PROGRAMS = re.compile(
    r"OPENCLAW_.*|(TELEGRAM|DISCORD|SLACK|MATRIX|IRC|WHATSAPP)_.*|(BRAVE|PERPLEXITY)_API_KEY"
)
"""Variables that only the Gateway uses. A program can be talked into showing them."""
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_VENDORS = ("claude", "codex")
_COMMAND_WORD = re.compile(r"\s*[a-z][a-z-]*\s*")
"""A prompt that these programs would take for one of their own commands, such as ``update``."""
_SUFFIXES = {"image/png": ".png", "image/gif": ".gif", "image/webp": ".webp"}
_SESSION_FIELDS = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id")
_CLAUDE_NAMES = {
    f"{prefix}{family}{version}": family
    for prefix in ("", "claude-")
    for family, versions in (("opus", ("-4.6", "-4-6", "-4.5", "-4-5", "-4")), ("sonnet", ("-4.5", "-4-5", "-4")),
                             ("haiku", ("-4.5", "-4-5", "-3.5", "-3-5")))
    for version in versions
}  # fmt: skip
_CODEX_ARGS = ["--color", "never", "--sandbox", "read-only", "--skip-git-repo-check"]
KNOWN_BACKENDS: dict[str, CliBackend] = {
    "claude-cli": CliBackend(
        command="claude",
        args=["-p", "--output-format", "json"],
        resume_args=["-p", "--output-format", "json", "--resume", SESSION_PLACE],
        model_arg="--model",
        model_aliases=_CLAUDE_NAMES,
        system_prompt_arg="--append-system-prompt",
        session_arg="--session-id",
        session_mode="always",
        clear_env=["ANTHROPIC_API_KEY"],
    ),
    "codex-cli": CliBackend(
        command="codex",
        args=["exec", "--json", *_CODEX_ARGS],
        resume_args=["exec", "resume", SESSION_PLACE, *_CODEX_ARGS],
        output="jsonl",
        resume_output="text",
        model_arg="--model",
        image_arg="--image",
        session_mode="existing",
        session_id_fields=["thread_id"],
    ),
}
"""The settings of two programs. A setting in the configuration replaces the one here."""


def backend_of(config: Config, provider: str) -> CliBackend | None:
    """The program that answers for a provider's models. None: the provider is not a program."""
    builtin = KNOWN_BACKENDS.get(provider)
    override = next(
        (candidate for name, candidate in config.agents.defaults.cli_backends.items() if name.lower() == provider), None
    )
    if override is None or builtin is None:
        return override or builtin
    usual = CliBackend()
    own = {name: getattr(override, name) for name in CliBackend.__struct_fields__}
    return msgspec.structs.replace(
        builtin, **{name: value for name, value in own.items() if value != getattr(usual, name)}
    )


def can_resume(backend: CliBackend) -> bool:
    """Whether the program can be told to go on with a conversation of its own."""
    arguments = backend.resume_args or backend.session_args or backend.session_arg
    return bool(arguments) and backend.session_mode != "none"


def cli_model(provider: str, model_id: str, window: int) -> Model:
    return Model(
        provider=provider, id=model_id, name=model_id, api=CLI_API, context_window=window, input=("text", "image")
    )


class CliProvider:
    """Answers with the configured programs. ``config`` gives the current configuration."""

    def __init__(self, config: Callable[[], Config], environ: Mapping[str, str], clock: Clock) -> None:
        self._config = config
        self._environ = environ
        self._clock = clock
        self._turns: dict[str, asyncio.Lock] = {}
        self._conversations: OrderedDict[tuple[str, str], ProgramConversation] = OrderedDict()

    async def stream(self, request: ModelRequest, api_key: str = "") -> AsyncGenerator[StreamEvent]:
        provider = request.model.provider
        backend = backend_of(self._config(), provider)
        if backend is None or not backend.command:
            raise ModelError(f"agents.defaults.cliBackends.{provider}.command is not set; name the program there.")
        turn = self._turns.setdefault(provider, asyncio.Lock()) if backend.serialize else contextlib.nullcontext()
        async with turn:
            text = await self._answer(backend, request)
        builder = MessageBuilder(request.model, self._clock.now_ms())
        builder.extend_last("text", text)
        builder.done("stop")
        for event in builder.take():
            yield event

    async def _answer(self, backend: CliBackend, request: ModelRequest) -> str:
        key = (request.session_id, request.model.provider)
        conversation = self._conversations.pop(key, None) if request.session_id else None
        resumed = conversation if conversation is not None and conversation.holds(request.messages) else None
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="openclaw-cli-")
        try:
            call = program_call(backend, request, resumed)
            await asyncio.to_thread(call.put_pictures, Path(folder))
            printed = await run_program(
                call.argv(backend),
                request.workspace or folder,
                self._variables(backend),
                most_bytes=LONGEST_OUTPUT,
                given=call.standard_input,
            )
        except ProgramFailed as failed:
            problem = classify(None, str(failed))
            # The program may have forgotten its conversation. The next try begins a new one.
            again = problem.retryable or resumed is not None
            raise _failure(backend, f"it {failed}", kind=problem.kind, retryable=again) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        answer = read_output(printed, call.output, backend.session_id_fields or _SESSION_FIELDS)
        if answer.failed:
            problem = classify(None, answer.text[:LONGEST_READ])
            raise _failure(backend, answer.text, kind=problem.kind, retryable=problem.retryable)
        own_id = answer.session_id or call.session_id
        if request.session_id and own_id and can_resume(backend):
            reply = AssistantMessage(content=[TextBlock(text=answer.text)], api="", provider="", model="")
            self._conversations[key] = ProgramConversation.of(own_id, [*request.messages, reply])
            while len(self._conversations) > CONVERSATIONS_KEPT:
                self._conversations.popitem(last=False)
        return answer.text

    def _variables(self, backend: CliBackend) -> dict[str, str]:
        """The program's environment. ``env`` of the configuration may also give it what it does not get by itself."""
        variables = {name: value for name, value in self._environ.items() if not _NOT_FOR_PROGRAMS.fullmatch(name)}
        return {**{name: variables[name] for name in variables if name not in backend.clear_env}, **backend.env}


def _failure(backend: CliBackend, output: str, *, kind: ErrorKind, retryable: bool) -> ModelError:
    """The error for people. What a program says may be long, and may show its key."""
    secrets = [value for name, value in backend.env.items() if len(value) > 7 and _SECRET_NAME.search(name)]
    text = clipped(redact(output[:LONGEST_READ], secrets), LONGEST_COMPLAINT)
    return ModelError(f"{backend.command}: {printable(text)}", kind=kind, retryable=retryable)


class ProgramConversation(msgspec.Struct, frozen=True):
    """A conversation that a program keeps, and what it holds of ours."""

    session_id: str
    length: int
    digest: bytes

    @staticmethod
    def of(session_id: str, messages: Sequence[Message]) -> ProgramConversation:
        return ProgramConversation(session_id, len(messages), _digest(messages))

    def holds(self, messages: Sequence[Message]) -> bool:
        """Whether it is the beginning of these messages, and something follows."""
        return len(messages) > self.length and _digest(messages[: self.length]) == self.digest


def _digest(messages: Sequence[Message]) -> bytes:
    hashed = hashlib.sha256()
    for message in messages:
        hashed.update(f"{_speaker(message)}\0{_words(message)}\0".encode("utf-8", "surrogatepass"))
    return hashed.digest()


# The command


class ProgramCall(msgspec.Struct, kw_only=True):
    """How a program is started for one answer."""

    arguments: list[str]
    prompt: str
    pictures: list[ImageBlock]
    picture_paths: list[str] = []
    session_id: str
    """The conversation that the program begins or goes on with. Empty: it has none, or names it itself."""
    output: str
    on_standard_input: bool

    @property
    def standard_input(self) -> bytes:
        return self.prompt.encode("utf-8", "replace") if self.on_standard_input else b""

    def put_pictures(self, folder: Path) -> None:
        """Write the pictures to files, whose names the program gets. Blocking."""
        for number, picture in enumerate(self.pictures, 1):
            path = folder / f"picture-{number}{_SUFFIXES.get(picture.mime_type, '.jpg')}"
            path.write_bytes(base64.b64decode(picture.data))
            self.picture_paths.append(str(path))

    def argv(self, backend: CliBackend) -> list[str]:
        shown: list[str] = []
        if self.picture_paths and backend.image_arg and backend.image_mode == "list":
            shown = [backend.image_arg, ",".join(self.picture_paths)]
        elif self.picture_paths and backend.image_arg:
            shown = [word for path in self.picture_paths for word in (backend.image_arg, path)]
        # A NUL cannot be part of an argument.
        words = [*self.arguments, *shown, *([] if self.on_standard_input else [self.prompt])]
        # Half of a surrogate pair cannot, either.
        plain = (word.replace("\0", "").encode("utf-8", "replace").decode() for word in words)
        return [str(Path(backend.command).expanduser()), *plain]


def program_call(backend: CliBackend, request: ModelRequest, resumed: ProgramConversation | None) -> ProgramCall:
    """The command for one answer. ``resumed`` is the program's own conversation, if it goes on with one."""
    by_arguments = resumed is not None and bool(backend.resume_args)
    session_id = resumed.session_id if resumed is not None else ""
    if not session_id and backend.session_mode == "always":
        session_id = str(uuid.uuid4())
    if by_arguments:
        arguments = [word.replace(SESSION_PLACE, session_id) for word in backend.resume_args]
    else:
        arguments = [*backend.args, *_model(backend, request.model), *_system(backend, request, resumed)]
        if session_id and backend.session_args:
            arguments += [word.replace(SESSION_PLACE, session_id) for word in backend.session_args]
        elif session_id and backend.session_arg:
            arguments += [backend.session_arg, session_id]
    new = request.messages[resumed.length :] if resumed is not None else request.messages
    prompt = prompt_of(new)
    most = min(backend.max_prompt_arg_chars or LONGEST_ARGUMENT, LONGEST_ARGUMENT)
    return ProgramCall(
        arguments=arguments,
        prompt=prompt,
        pictures=_pictures(new) if backend.image_arg else [],
        session_id=session_id,
        output=(backend.resume_output if by_arguments else None) or backend.output,
        # A prompt that begins with a dash would be read as an option, and one word as a command.
        on_standard_input=backend.input == "stdin"
        or prompt.startswith("-")
        or (Path(backend.command).name in _VENDORS and _COMMAND_WORD.fullmatch(prompt) is not None)
        or len(prompt.encode("utf-8", "replace")) > most,
    )


def _model(backend: CliBackend, model: Model) -> list[str]:
    name = backend.model_aliases.get(model.id, model.id)
    return [backend.model_arg, name] if backend.model_arg and name != "default" else []


def _system(backend: CliBackend, request: ModelRequest, resumed: ProgramConversation | None) -> list[str]:
    needed = backend.system_prompt_when == "always" or (backend.system_prompt_when == "first" and resumed is None)
    if not backend.system_prompt_arg or not needed:
        return []
    parts = (request.system, request.system_suffix, NO_TOOLS if request.turn_facts else "", request.turn_facts)
    text = "\n".join(part for part in parts if part)
    raw = text.encode("utf-8", "replace")
    return [backend.system_prompt_arg, raw[:LONGEST_ARGUMENT].decode("utf-8", "ignore")]


def prompt_of(messages: Sequence[Message]) -> str:
    """What the program is asked: the newest messages of the person, after the conversation before them if there is."""
    last = len(messages)
    while last > 0 and isinstance(messages[last - 1], UserMessage):
        last -= 1
    newest = "\n\n".join(_words(message) for message in messages[last:])
    if last == 0:
        return newest
    before = "\n\n".join(f"[{_speaker(message)}]: {_words(message)}" for message in messages[:last])
    return f"<conversation>\n{before}\n</conversation>\n\nGo on with this conversation. " + (
        f"The newest message is:\n\n{newest}" if newest else "Say what comes next."
    )


def _speaker(message: Message) -> str:
    match message:
        case UserMessage():
            return "User"
        case AssistantMessage():
            return "Assistant"
        case _:
            return "Tool result"


def _words(message: Message) -> str:
    if isinstance(message, AssistantMessage):
        return message.text
    if isinstance(message.content, str):
        return message.content
    text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    return text[:LONGEST_RESULT] if isinstance(message, ToolResultMessage) else text


def _pictures(messages: Sequence[Message]) -> list[ImageBlock]:
    newest = messages[-1] if messages else None
    if not isinstance(newest, UserMessage) or isinstance(newest.content, str):
        return []
    return [block for block in newest.content if isinstance(block, ImageBlock)]


# Its output


class ProgramAnswer(msgspec.Struct, frozen=True):
    text: str
    session_id: str = ""
    failed: bool = False


def read_output(printed: str, form: str, id_fields: Sequence[str]) -> ProgramAnswer:
    """The answer in what a program printed. Text that is not in the announced form is the answer itself."""
    if form == "jsonl":
        return _from_lines(printed, id_fields)
    data = _object(printed) if form == "json" else None
    if data is None:
        return ProgramAnswer(printed.strip())
    texts = (_collected(data.get(name)) for name in ("message", "content", "result"))
    text = next((candidate for candidate in texts if candidate), "") or _collected(data)
    return ProgramAnswer(text.strip(), _session_id(data, id_fields), data.get("is_error") is True)


def _from_lines(printed: str, id_fields: Sequence[str]) -> ProgramAnswer:
    texts: list[str] = []
    session_id, plain = "", True
    for line in printed.splitlines():
        data = _object(line)
        if data is None:
            continue
        plain = False
        session_id = session_id or _session_id(data, id_fields)
        item = data.get("item")
        match cast("dict[str, Any]", item) if isinstance(item, dict) else data:
            case {"type": str(kind), "text": str(text)} if "message" in kind:
                texts.append(text)
            case _:
                pass
    return ProgramAnswer(printed.strip() if plain else "\n".join(texts).strip(), session_id)


def _object(text: str) -> dict[str, Any] | None:
    try:
        data = json_text.decode_loosely(text.strip().encode("utf-8", "replace"))
    except ValueError:
        return None
    return cast("dict[str, Any]", data) if isinstance(data, dict) else None


def _session_id(data: Mapping[str, Any], fields: Sequence[str]) -> str:
    return next((value for name in fields if isinstance(value := data.get(name), str) and value.strip()), "")


def _collected(value: Any, depth: int = 8) -> str:
    """The text in a value: a string, a list of texts, or an object with ``text``, ``content`` or ``message``."""
    if isinstance(value, str):
        return value
    if depth and isinstance(value, list):
        return "".join(_collected(item, depth - 1) for item in cast("list[Any]", value))
    if depth and isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return next(
            (text for name in ("text", "content", "message") if (text := _collected(fields.get(name), depth - 1))), ""
        )
    return ""
