"""Cleans the history of a run: every provider accepts what is sent, and nobody can speak as someone else.

``HistoryCleaner`` does it for the requests of one run. A conversation that a provider refused as malformed is sent in
its plain form for a while. The transcript is never changed.

Pictures are fitted to what providers accept. Decoding and scaling are slow, and building a request must not wait. So a
picture is fitted in a thread when it enters the context of a run (``HistoryCleaner.prepare``). Building the request
only looks it up.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from openclaw.agent.window.window import cut_text
from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.messages import (
    FAILED_STOPS,
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from openclaw.models.base import Model
from openclaw.models.convert import is_blank, json_text, pair, without_failed
from openclaw.models.http import strip_lone_surrogates
from openclaw.pictures import MAX_SIDE, ImageProblem, fit_image, off_loop, sniff_image
from openclaw.untrusted_text import disarmed
from openclaw.worker_thread import with_many

if TYPE_CHECKING:
    pass

INTER_SESSION = "[Inter-session message]"
LONGEST_SOURCE = 200
LONGEST_RESULT = 400_000
RESULT_SHARE = 0.3
"""One tool result takes at most this part of the window, with four characters for a token."""
REFUSALS_KEPT = 1000
PLAIN_FOR_MS = 3_600_000
"""For this long a refused conversation is sent in its plain form. Then the usual form is tried again."""
_FORGED = re.compile(r"\[(\s*inter-session\s+message[^\]\n]{0,400})\]?", re.IGNORECASE)
LONGEST_OUTPUT = 20_000
LONGEST_ARGUMENTS = 1000
IMAGE = "(an image was here)"
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Hygiene:
    """What the Gateway keeps between runs: fitted pictures, and which conversations a provider refused."""

    def __init__(self) -> None:
        self.images = ImageCache()
        self._refused: OrderedDict[tuple[str, str], int] = OrderedDict()

    def plain_until(self, session_id: str, model: Model, now_ms: int) -> int:
        """Messages up to this time are sent in their plain form. -1: none."""
        moment = self._refused.get((session_id, model.ref), -1) if self._refused else -1
        return moment if now_ms - moment < PLAIN_FOR_MS else -1

    def note_refusal(self, session_id: str, model: Model, now_ms: int) -> None:
        self._refused[session_id, model.ref] = now_ms
        while len(self._refused) > REFUSALS_KEPT:
            self._refused.popitem(last=False)

    def forget_refusal(self, session_id: str, model: Model) -> None:
        self._refused.pop((session_id, model.ref), None)


class HistoryCleaner:
    """Cleans the messages of one run. ``prepare`` must see each message before it is in a request."""

    def __init__(
        self,
        hygiene: Hygiene,
        model: Model,
        session_id: str,
        now_ms: int,
        *,
        history_limit: int = 0,
        max_image_side: int | None = None,
    ) -> None:
        self._hygiene = hygiene
        self._model = model
        self._session_id = session_id
        self._history_limit = history_limit
        self._max_side = min(max_image_side or MAX_SIDE, MAX_SIDE)
        self._plain_until = hygiene.plain_until(session_id, model, now_ms)
        self._shown: list[Message] = []
        """The messages of the last request."""
        self._cleaned = CleanedMessages()

    def use_cache(self, branch_cache: dict[Any, Any]) -> None:
        """Uses what an earlier run of the same branch cleaned for the same model."""
        model = self._model
        key = ("cleaned", model.ref, model.context_window, "image" in model.input, self._max_side)
        self._cleaned = branch_cache.setdefault(key, self._cleaned)

    async def prepare(self, messages: list[Message]) -> None:
        """Fits the pictures in messages that have not been cleaned yet."""
        if "image" in self._model.input:
            await self._hygiene.images.prepare(self._cleaned.new(messages), self._max_side)

    def clean(self, messages: list[Message]) -> list[Message]:
        """The messages as they may be sent."""
        messages = limit_turns(messages, self._history_limit)
        cleaned = self._cleaned
        if self._plain_until >= 0:
            messages, cleaned = plain_upto(without_failed(messages), self._plain_until), CleanedMessages()
        self._shown = cleaned.clean(messages, self._model, self._hygiene.images, self._max_side)
        return self._shown

    def refused(self, now_ms: int) -> bool:
        """Note that the provider rejected the last request. Returns True if the next one will be in the plain form.

        Returns False if the request was in the plain form already, so the conversation is not the cause. From then on
        it is sent in its usual form again.
        """
        if is_plain(self._shown):
            self._plain_until = -1
            self._hygiene.forget_refusal(self._session_id, self._model)
            return False
        self._plain_until = now_ms
        self._hygiene.note_refusal(self._session_id, self._model, now_ms)
        return True


class CleanedMessages:
    """The cleaned messages of a branch. Each is cleaned once, and stays the same object if it needs no change."""

    def __init__(self) -> None:
        self._source: list[Message] = []
        self._out: list[Message] = []
        self._pictures: list[int] = []
        """The places of messages with pictures. Pictures are put in for each request, so no second copy is kept."""

    def new(self, messages: list[Message]) -> list[Message]:
        """The messages that are not cleaned yet: all of them if the list begins differently."""
        count = len(self._source)
        return messages[count:] if self._source == messages[:count] else messages

    def clean(
        self, messages: list[Message], model: Model, images: ImageCache, max_side: int = MAX_SIDE
    ) -> list[Message]:
        """The messages as they may be sent."""
        count = len(self._source)
        if self._source != messages[:count]:
            count, self._source, self._out, self._pictures = 0, [], [], []
        for message in messages[count:]:
            self._source.append(message)
            if isinstance(message, AssistantMessage):
                self._out += without_failed([message]) if message.stop_reason in FAILED_STOPS else (message,)
                continue
            message = _mended(message, model)
            if has_images(message):
                self._pictures.append(len(self._out))
            self._out.append(message)
        sent = self._out.copy()
        if not self._pictures or "image" not in model.input:
            return sent
        shown = [replace_images(sent[index], lambda block: images.shown(block, max_side)) for index in self._pictures]
        for index, message in zip(self._pictures, newest_images(shown), strict=True):
            sent[index] = message
        return sent


def _mended(message: Message, model: Model) -> Message:
    """The message after the changes that need no other message. Pictures are not changed here."""
    if isinstance(message, UserMessage):
        return attributed(message)
    if isinstance(message, ToolResultMessage):
        return disarmed_result(capped(message, max_result_chars(model.context_window)))
    return message


def disarmed_result(message: ToolResultMessage) -> ToolResultMessage:
    """The result without forged marks. A file, a web page or a command's output may hold anything."""
    content = [_disarmed_block(block) for block in message.content]
    changed = any(block is not before for block, before in zip(content, message.content, strict=True))
    return msgspec.structs.replace(message, content=content) if changed else message


def _disarmed_block(block: UserBlock) -> UserBlock:
    if isinstance(block, ImageBlock) or (text := disarmed(block.text)) is block.text:
        return block
    return TextBlock(text=text)


def limit_turns(messages: list[Message], limit: int) -> list[Message]:
    """The messages from the ``limit``-th last one of the user on. 0 or less means all messages."""
    if limit <= 0:
        return messages
    questions = [index for index, message in enumerate(messages) if isinstance(message, UserMessage)]
    return messages[questions[-limit] :] if limit <= len(questions) else messages


def max_result_chars(window: int) -> int:
    return min(int(window * 4 * RESULT_SHARE), LONGEST_RESULT)


def capped(message: ToolResultMessage, most: int) -> ToolResultMessage:
    """Cuts each text of an outsized result in proportion to its length."""
    total = sum(len(block.text) for block in message.content if isinstance(block, TextBlock))
    if total <= most:
        return message
    content = [
        TextBlock(text=cut_text(block.text, len(block.text) * most // total)) if isinstance(block, TextBlock) else block
        for block in message.content
    ]
    return msgspec.structs.replace(message, content=content)


# Who is speaking


def attributed(message: UserMessage) -> UserMessage:
    """Marks a message that another session sent. Such a marker in an older text is forged and loses its brackets."""
    source, content = message.provenance, message.content
    blocks: list[UserBlock] = [TextBlock(text=content)] if isinstance(content, str) else content
    if source is not None and source.get("kind") == "inter_session":
        return msgspec.structs.replace(
            message, content=[TextBlock(text=_marker(source)), *map(_disarmed_block, blocks)]
        )
    for block in blocks:
        if _unforged(block) is not block:
            return msgspec.structs.replace(message, content=[*map(_unforged, blocks)])
    return message


def _unforged(block: UserBlock) -> UserBlock:
    if isinstance(block, ImageBlock) or "[" not in block.text or _FORGED.search(block.text) is None:
        return block
    return TextBlock(text=_FORGED.sub(r"(\1)", block.text))


def _marker(source: dict[str, Any]) -> str:
    named = {"sourceSession": "sourceSessionKey", "sourceChannel": "sourceChannel", "sourceTool": "sourceTool"}
    facts = [f"{name}={_word(source[key])}" for name, key in named.items() if source.get(key)]
    return " ".join([INTER_SESSION, *facts, "isUser=false"])


def _word(value: Any) -> str:
    return re.sub(r"[\s\[\]]+", "_", str(value))[:LONGEST_SOURCE]


# How far back direct chats go


def dm_history_limit(config: Config, session_key: str) -> int:
    """Return ``channels.<id>.dms.<person>.historyLimit``, else ``dmHistoryLimit``. 0 means unlimited, as elsewhere."""
    lowered = session_key.lower()
    if ":direct:" not in lowered and ":dm:" not in lowered:
        return 0
    segments = lowered.split(":")
    if segments[0] == "agent":
        segments = segments[2:]
    # <channel>:direct:<person> or <channel>:<account>:direct:<person>
    index = next((index for index in (1, 2) if segments[index : index + 1] in (["direct"], ["dm"])), None)
    if index is None or index + 1 >= len(segments):
        return 0
    channel = segments[0]
    account = account_settings(config, channel, segments[1] if index == 2 else None)
    if account is None:
        return 0
    person = re.split(r":(?:thread|topic):", ":".join(segments[index + 1 :]))[0]
    own = next((value.history_limit for name, value in account.dms.items() if name.lower() == person), None)
    return (account.dm_history_limit if own is None else own) or 0


# The plain form


def plain(messages: list[Message]) -> list[Message]:
    """The conversation as text only. Tool calls and their results become sentences."""
    out: list[Message] = []
    calls: list[ToolCall] = []
    for message in pair(without_failed(messages)):
        match message:
            case AssistantMessage():
                calls = message.tool_calls
                _say(out, message, _cleaned(message.text))
            case ToolResultMessage():
                note = _note(calls.pop(0), message)
                _say(out, UserMessage(content=[], timestamp=message.timestamp), note)
            case UserMessage():
                _say(out, message, _text_of(message))
    return out


def is_plain(messages: list[Message]) -> bool:
    """Whether the messages are in their plain form already."""
    return [_words(message) for message in messages] == [_words(message) for message in plain(messages)]


def _words(message: Message) -> tuple[type[Message], object]:
    content = message.content
    return type(message), [TextBlock(text=content)] if isinstance(content, str) else content


def plain_upto(messages: list[Message], moment_ms: int) -> list[Message]:
    """The messages until that time in their plain form, and the rest as they are."""
    count = max((index + 1 for index, message in enumerate(messages) if message.timestamp <= moment_ms), default=0)
    while count < len(messages) and isinstance(messages[count], ToolResultMessage):
        count += 1
    return [*plain(messages[:count]), *messages[count:]]


def _say(out: list[Message], message: UserMessage | AssistantMessage, text: str) -> None:
    """Adds the text as a message, or to the last message if that has the same role."""
    if is_blank(text):
        return
    if out and type(out[-1]) is type(message) and isinstance(before := out[-1].content[0], TextBlock):
        out.pop()
        text = f"{before.text}\n\n{text}"
    out.append(msgspec.structs.replace(message, content=[TextBlock(text=text)]))


def _note(call: ToolCall, result: ToolResultMessage) -> str:
    arguments = cut_text(json_text(call.arguments), LONGEST_ARGUMENTS)
    text = cut_text(_text_of(disarmed_result(result)), LONGEST_OUTPUT)
    outcome = "failed" if result.is_error else "returned"
    return f"(The tool {_cleaned(call.name)} was called with {arguments} and {outcome}: {text or 'nothing'})"


def _text_of(message: UserMessage | ToolResultMessage) -> str:
    if isinstance(message.content, str):
        return _cleaned(message.content)
    parts = [_cleaned(block.text) if isinstance(block, TextBlock) else IMAGE for block in message.content]
    return "\n".join(part for part in parts if not is_blank(part))


def _cleaned(text: str) -> str:
    return _CONTROLS.sub("", strip_lone_surrogates(text))


# Pictures

MOST_KEPT = 4096
MOST_KEPT_BYTES = 64 * 1024 * 1024
MOST_IMAGES = 50
MOST_IMAGE_BYTES = 16 * 1024 * 1024
"""The limit of all pictures in one request, as base64. The vendors' limits for a request begin at 32 MB."""
IMAGES_STEP = 10
BYTES_STEP = 4 * 1024 * 1024
"""Old pictures are left out in steps. Between two steps the beginning of the prompt stays the same."""
OLDER_IMAGE = "(an older image, left out to keep the request small)"


class ImageCache:
    """The fitted form of each picture, by its content. It is bounded and may be used from several threads."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._known: OrderedDict[tuple[int, int, str, int], UserBlock | None] = OrderedDict()
        """None if the picture is sent unchanged."""
        self._lock = threading.Lock()
        self._most_bytes = most_bytes
        self.kept_bytes = 0

    async def prepare(self, messages: Sequence[Message], max_side: int = MAX_SIDE) -> None:
        """Fits the pictures of these messages in a thread."""
        blocks = await with_many(len(messages), lambda: [block for message in messages for block in images_of(message)])
        if blocks:
            await off_loop(lambda: [self.shown(block, max_side) for block in blocks])

    def shown(self, block: ImageBlock, max_side: int = MAX_SIDE) -> UserBlock:
        """Return the picture, a smaller one, or a sentence in its place. Slow if it was not prepared."""
        # Python stores the hash of a string with the string, so it is computed only once.
        key = hash(block.data), len(block.data), block.mime_type, max_side
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key] or block
        fitted = fitted_image(block, max_side)
        cached = None if fitted is block else fitted
        with self._lock:
            if key not in self._known:
                self._known[key] = cached
                self.kept_bytes += _size(cached)
            while len(self._known) > MOST_KEPT or (self.kept_bytes > self._most_bytes and len(self._known) > 1):
                _, oldest = self._known.popitem(last=False)
                self.kept_bytes -= _size(oldest)
        return fitted


def fitted_image(block: ImageBlock, max_side: int = MAX_SIDE) -> UserBlock:
    """The picture as providers accept it. The same block if it needs no change. Blocking."""
    try:
        data = base64.b64decode("".join(block.data.split()), validate=True)
    except (binascii.Error, ValueError):
        return _left_out("its data is damaged")
    if not data:
        return _left_out("it is empty")
    # The type is read from the content, because labels are often wrong and providers refuse wrong labels.
    mime_type = sniff_image(data)
    if mime_type is None:
        return _left_out(f"{block.mime_type or 'its type'} is not supported")
    try:
        fitted = fit_image(data, mime_type, max_side).block
    except ImageProblem as problem:
        return _left_out(str(problem))
    return block if fitted == block else fitted


def _left_out(why: str) -> TextBlock:
    return TextBlock(text=f"(image left out: {why})")


def _size(block: UserBlock | None) -> int:
    return len(block.data) if isinstance(block, ImageBlock) else 0


def has_images(message: Message) -> bool:
    return not isinstance(message.content, str) and ImageBlock in map(type, message.content)


def images_of(message: Message) -> list[ImageBlock]:
    return [block for block in message.content if isinstance(block, ImageBlock)] if has_images(message) else []


def replace_images(message: Message, change: Callable[[ImageBlock], UserBlock]) -> Message:
    """The message with its pictures changed. The same object if no picture changed."""
    if not has_images(message):
        return message
    content = cast("list[UserBlock]", message.content)
    changed = [change(block) if isinstance(block, ImageBlock) else block for block in content]
    if all(new is old for new, old in zip(changed, content, strict=True)):
        return message
    return msgspec.structs.replace(message, content=changed)


def newest_images(messages: list[Message]) -> list[Message]:
    """Replaces the oldest pictures by a sentence if there are more than ``MOST_IMAGES`` or ``MOST_IMAGE_BYTES``."""
    sizes = [len(block.data) for message in messages for block in images_of(message)]
    surplus = _steps(len(sizes) - MOST_IMAGES, IMAGES_STEP)
    excess = _steps(sum(sizes) - MOST_IMAGE_BYTES, BYTES_STEP)
    dropped = 0
    while dropped < len(sizes) and (dropped < surplus or sum(sizes[:dropped]) < excess):
        dropped += 1
    if not dropped:
        return messages
    left = iter(range(len(sizes)))
    return [
        replace_images(message, lambda block: TextBlock(text=OLDER_IMAGE) if next(left) < dropped else block)
        for message in messages
    ]


def _steps(amount: int, step: int) -> int:
    return max(0, -(-amount // step) * step)
