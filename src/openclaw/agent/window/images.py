"""Fits pictures to what providers accept, and loads the pictures that a message names.

Decoding and scaling are slow, and building a request must not wait. So a picture is fitted in a thread when it enters
the context of a run (``ImageCache.prepare``). Building the request only looks it up.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import msgspec

from openclaw.file_types import sniff_image
from openclaw.messages import ImageBlock, Message, TextBlock, UserBlock, UserMessage, user_text
from openclaw.opener import PathOpener, PathRefused
from openclaw.pictures import MAX_SIDE, MAX_SOURCE_BYTES, ImageProblem, fit_image, off_loop
from openclaw.tools.files import ReadTool

if TYPE_CHECKING:
    from openclaw.agent.prepare import Prepared

MOST_KEPT = 4096
MOST_KEPT_BYTES = 64 * 1024 * 1024
MOST_IMAGES = 50
MOST_IMAGE_BYTES = 16 * 1024 * 1024
"""The limit of all pictures in one request, as base64. The vendors' limits for a request begin at 32 MB."""
IMAGES_STEP = 10
BYTES_STEP = 4 * 1024 * 1024
"""Old pictures are left out in steps. Between two steps the beginning of the prompt stays the same."""
OLDER_IMAGE = "(an older image, left out to keep the request small)"

_Key: TypeAlias = tuple[int, int, str, int]


class ImageCache:
    """The fitted form of each picture, by its content. It is bounded and may be used from several threads."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._known: OrderedDict[_Key, UserBlock | None] = OrderedDict()
        """None: the picture is sent as it is."""
        self._lock = threading.Lock()
        self._most_bytes = most_bytes
        self.kept_bytes = 0

    async def prepare(self, messages: Iterable[Message], max_side: int = MAX_SIDE) -> None:
        """Fits the pictures of these messages in a thread."""
        blocks = [block for message in messages for block in images_of(message)]
        if blocks:
            await off_loop(lambda: [self.shown(block, max_side) for block in blocks])

    def shown(self, block: ImageBlock, max_side: int = MAX_SIDE) -> UserBlock:
        """What is sent: the picture, a smaller one, or a sentence instead. It is slow if it was not prepared."""
        key = _key(block, max_side)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key] or block
        return self._fit(block, key, max_side) or block

    def _fit(self, block: ImageBlock, key: _Key, max_side: int) -> UserBlock | None:
        fitted = fitted_image(block, max_side)
        kept = None if fitted is block else fitted
        with self._lock:
            if key not in self._known:
                self._known[key] = kept
                self.kept_bytes += _size(kept)
            while len(self._known) > MOST_KEPT or (self.kept_bytes > self._most_bytes and len(self._known) > 1):
                _, oldest = self._known.popitem(last=False)
                self.kept_bytes -= _size(oldest)
        return kept


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


def _key(block: ImageBlock, max_side: int) -> _Key:
    # Python stores the hash of a string with the string, so it is computed only once.
    return hash(block.data), len(block.data), block.mime_type, max_side


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


MOST_PICTURES = 10
"""The most pictures that are loaded for one message. The agent can read the others with its tool."""
LONGEST_TEXT = 200_000
OPERATORS = ("webchat", "agent")
"""Sources whose messages come from the person who runs the Gateway. They may name any file."""
_ENDING = r"\.(?:png|jpe?g|gif|webp)"
_ANY = re.compile(_ENDING, re.IGNORECASE)
_START = r"(?:file://|(?:~|\.{1,2})?/(?!/))"
_PATH = re.compile(
    # A note of an attachment, whose path may hold blanks.
    rf"\[media attached(?: \d+/\d+)?: (?P<note>{_START}[^\n\]|]{{1,1000}}?{_ENDING})(?=[\s\]|(])"
    # In quotes.
    rf"|(?P<quote>[\"'`])(?P<quoted>{_START}[^\n\"'`]{{1,1000}}?{_ENDING})(?P=quote)"
    # As a word of its own.
    rf"|(?<![\w/.:~@-])(?P<word>{_START}[^\s\"'`()\[\]<>|]{{1,1000}}?{_ENDING})(?![\w/-]|\.\w)",
    re.IGNORECASE,
)


def named_pictures(text: str) -> list[str]:
    """The paths of pictures on this machine that the text names, in its order, each once."""
    if len(text) > LONGEST_TEXT or _ANY.search(text) is None:
        return []
    found = [_as_path(match["note"] or match["quoted"] or match["word"]) for match in _PATH.finditer(text)]
    return list(dict.fromkeys(path for path in found if path))[:MOST_PICTURES]


def _as_path(written: str) -> str:
    if not written.lower().startswith("file:"):
        return "" if "://" in written else written
    parts = urlsplit(written)
    return unquote(parts.path) if parts.netloc in ("", "localhost") else ""


async def with_pictures(message: UserMessage, prepared: Prepared | None, source: str = "") -> UserMessage:
    """Adds the pictures that the message names, if the model sees pictures.

    They become part of the stored message, so the model sees the same in every later turn.
    """
    if prepared is None or "image" not in prepared.model.input:
        return message
    read = prepared.prompt.tools.get("read")
    if not isinstance(read, ReadTool):
        return message
    own = source in OPERATORS and prepared.sandbox is None
    return await with_named_pictures(message, PathOpener(prepared.workspace, confine=False) if own else read.opener)


async def with_named_pictures(message: UserMessage, opener: PathOpener) -> UserMessage:
    """The message with the pictures that it names. The same object if it names none."""
    paths = named_pictures(user_text(message))
    if not paths:
        return message
    blocks: list[UserBlock] = (
        [TextBlock(text=message.content)] if isinstance(message.content, str) else list(message.content)
    )
    attached = {block.data for block in blocks if isinstance(block, ImageBlock)}
    loaded = await off_loop(lambda: _load(paths, opener, attached))
    return msgspec.structs.replace(message, content=[*blocks, *loaded]) if loaded else message


def _load(paths: Sequence[str], opener: PathOpener, known: set[str]) -> list[ImageBlock]:
    """Loads the pictures, except those whose data is in ``known``. Adds the data of the loaded ones to it."""
    loaded: list[ImageBlock] = []
    for path in paths:
        try:
            with opener.open_read(path) as file:
                data = file.read(MAX_SOURCE_BYTES + 1)
            mime_type = sniff_image(data)
            if mime_type is None or base64.b64encode(data).decode() in known:
                continue
            block = fit_image(data, mime_type).block
        except (PathRefused, ImageProblem, OSError):
            continue
        if block.data not in known:
            known.add(block.data)
            loaded.append(block)
    return loaded
