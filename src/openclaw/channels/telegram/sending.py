"""What the Gateway sends to Telegram: messages with files and buttons, changes to earlier ones, and drafts."""

from __future__ import annotations

import contextlib
import mimetypes
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.channels.base import ChannelContext
from openclaw.channels.telegram.api import BotApi, BotApiFailed
from openclaw.channels.telegram.incoming import GENERAL_TOPIC, OwnBot
from openclaw.channels.telegram.kind import TelegramTarget, parse_target
from openclaw.config.schema.channels import TelegramAccount
from openclaw.inbound.message import Route
from openclaw.outbound.rendering import Rendered, render, utf16_length
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, SendFailed, SendReceipt

if TYPE_CHECKING:
    from telegram import InputFile

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_PHOTO_BYTES = 10 * 1024 * 1024
"""A larger picture is sent as a document."""
MAX_ALBUM = 10
MAX_BUTTON_DATA = 64
"""Bytes that a button can carry."""
REMEMBERED = 2000
DRAFT_PAUSE_S = 0.3

VOICE_TYPES = frozenset({"audio/ogg", "audio/opus", "audio/mpeg", "audio/mp3", "audio/mp4", "audio/m4a", "audio/x-m4a"})
"""What the platform plays as a voice message."""

_METHODS = {
    "photo": "sendPhoto",
    "animation": "sendAnimation",
    "video": "sendVideo",
    "voice": "sendVoice",
    "audio": "sendAudio",
    "document": "sendDocument",
}


class File(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """A key of ``_METHODS``."""
    name: str
    data: bytes


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One call. A message with files may take several."""

    text: Rendered | None = None
    """Text of the message, or caption of the files."""
    source: str = ""
    """The same text before it was rendered."""
    files: tuple[File, ...] = ()
    """Several files are an album."""


class Draft(msgspec.Struct, kw_only=True):
    """A reply that is shown while it is being written."""

    shown_at: float = 0.0
    stopped: bool = False


class TelegramSender:
    """Sends through one bot. All methods may raise ``SendFailed``."""

    def __init__(self, context: ChannelContext, api: BotApi, own: OwnBot) -> None:
        self._context = context
        self._settings: TelegramAccount = context.account.settings
        self._api = api
        self._own = own
        self._sent: OrderedDict[tuple[int | str, int], None] = OrderedDict()
        self._under_way: OrderedDict[str, list[int]] = OrderedDict()
        """Key of a message → ids of its parts that arrived, so that a retry goes on behind them."""
        self._moved: OrderedDict[int | str, int] = OrderedDict()
        self._drafts: OrderedDict[tuple[int | str, int], Draft] = OrderedDict()

    def moved(self, chat: int | str, new_chat: int) -> None:
        """A group has a new id. What is sent to the old one goes to the new one."""
        _remember(self._moved, chat, new_chat)

    def sent(self, chat: int, message_id: int) -> bool:
        """Whether the message is one of ours. Only the latest are known."""
        return (chat, message_id) in self._sent

    # Messages

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        if message.act != "send":
            return await self._change(route, message)
        target = self._target(route)
        steps = await self._steps(message)
        arrived = self._under_way.setdefault(key, [])
        for number, step in enumerate(steps):
            if number < len(arrived):
                continue
            more = {**_thread(target), **(self._first(message) if number == 0 else {})}
            arrived.append(await self._perform(step, target.chat, more))
            _trim(self._under_way)
        self._under_way.pop(key, None)
        return SendReceipt(message_id=str(arrived[0]))

    def _target(self, route: Route) -> TelegramTarget:
        target = parse_target(route.to or "")
        thread = str(route.thread_id) if route.thread_id is not None else ""
        topic = int(thread) if thread.isascii() and thread.isdigit() else target.topic
        return TelegramTarget(self._moved.get(target.chat, target.chat), topic)

    def _first(self, message: OutgoingMessage) -> dict[str, Any]:
        """The parameters that only the first call of a message has."""
        params: dict[str, Any] = {}
        quoted = message.reply_to_id or ""
        if quoted.isascii() and quoted.isdigit():
            params["reply_parameters"] = {"message_id": int(quoted), "allow_sending_without_reply": True}
        if message.buttons:
            params["reply_markup"] = {"inline_keyboard": [[_button(one) for one in row] for row in message.buttons]}
        return params

    async def _steps(self, message: OutgoingMessage) -> list[Step]:
        files = [await self._file(media) for media in message.media]
        rendered = self._rendered(message.text) if message.text.strip() else None
        if not files:
            if rendered is None:
                raise SendFailed("there is nothing to send", permanent=True)
            return [Step(text=rendered, source=message.text)]
        groups = _albums(files)
        fits = rendered is not None and rendered.size <= MAX_CAPTION
        first = Step(files=groups[0], text=rendered if fits else None, source=message.text if fits else "")
        steps = [first, *(Step(files=group) for group in groups[1:])]
        return steps if fits or rendered is None else [*steps, Step(text=rendered, source=message.text)]

    async def _file(self, media: MediaRef) -> File:
        name = _safe_name(media)
        data = await self._context.blobs.get(media.blob)
        if data is None:
            raise SendFailed(f"the file {name} is gone", permanent=True)
        limit = self._settings.media_max_mb
        if len(data) > limit * 1024 * 1024:
            too_large = f"the file {name} is larger than {limit:g} MB (channels.telegram.mediaMaxMb)"
            raise SendFailed(too_large, permanent=True)
        kind = "voice" if media.voice and media.mime_type in VOICE_TYPES else _kind(media.mime_type, len(data))
        return File(kind=kind, name=name, data=data)

    def _rendered(self, text: str) -> Rendered:
        return render(text, "telegram", tables=self._settings.markdown.tables)

    async def _perform(self, step: Step, chat: int | str, more: dict[str, Any]) -> int:
        """Makes the call, and makes it again in another form where the API says that it dislikes the form."""
        plain = as_document = False
        for _ in range(6):
            method, params = self._call_for(step, plain=plain, as_document=as_document)
            if method == "sendVoice":
                await self._recording(chat, more)
            try:
                result = await self._api.call(method, {"chat_id": chat, **params, **more})
            except BotApiFailed as failure:
                if failure.kind == "moved" and failure.new_chat is not None:
                    self.moved(chat, failure.new_chat)
                    chat = failure.new_chat
                elif failure.says("can't parse", "parse entities", "unsupported start tag") and not plain:
                    self._context.log.warning("Telegram refused the markup of a message; it is sent as plain text")
                    plain = True
                elif failure.says("thread not found") and "message_thread_id" in more:
                    more = {name: value for name, value in more.items() if name != "message_thread_id"}
                elif failure.says("photo_invalid", "image_process", "voice_messages_forbidden") and not as_document:
                    as_document = True
                elif failure.says("message to be replied not found", "reply message not found") and (
                    "reply_parameters" in more
                ):
                    more = {name: value for name, value in more.items() if name != "reply_parameters"}
                else:
                    raise failure.as_send_failure() from None
                continue
            return self._note_sent(chat, result)
        raise SendFailed("Telegram refused every form of the message", permanent=True)

    async def _recording(self, chat: int | str, more: dict[str, Any]) -> None:
        """Shows that a voice message is on its way, which takes longer than words."""
        thread = {name: value for name, value in more.items() if name == "message_thread_id"}
        with contextlib.suppress(BotApiFailed):
            await self._api.call("sendChatAction", {"chat_id": chat, "action": "record_voice", **thread})

    def _call_for(self, step: Step, *, plain: bool, as_document: bool) -> tuple[str, dict[str, Any]]:
        words = {} if step.text is None else _words(step, plain=plain)
        if not step.files:
            preview = {} if self._settings.link_preview else {"link_preview_options": {"is_disabled": True}}
            return "sendMessage", {**_renamed(words, "text"), **preview}
        kinds = ["document" if as_document else file.kind for file in step.files]
        if len(step.files) == 1:
            return _METHODS[kinds[0]], {kinds[0]: _upload(step.files[0]), **_renamed(words, "caption")}
        media: list[Any] = []
        for number, (kind, file) in enumerate(zip(kinds, step.files, strict=True)):
            media.append(_album_entry(kind, file, words if number == 0 else {}))
        return "sendMediaGroup", {"media": media}

    def _note_sent(self, chat: int | str, result: Any) -> int:
        """The id of the message, which is remembered as ours. Of an album it is the first one's."""
        messages: list[Any] = result if isinstance(result, list) else [result]
        found = [one.get("message_id") for one in messages if isinstance(one, dict)]
        ids = [one for one in found if isinstance(one, int)]
        for one in ids:
            _remember(self._sent, (chat, one), None)
        return ids[0] if ids else 0

    # Changes to earlier messages

    async def _change(self, route: Route, message: OutgoingMessage) -> SendReceipt:
        if not (message.target_id.isascii() and message.target_id.isdigit()):
            raise SendFailed(f"{message.target_id!r} is no id of a Telegram message", permanent=True)
        where = {"chat_id": self._target(route).chat, "message_id": int(message.target_id)}
        allowed = self._settings.actions
        match message.act:
            case "edit" if not allowed.edit_message:
                raise SendFailed("channels.telegram.actions.editMessage is off", permanent=True)
            case "delete" if not allowed.delete_message:
                raise SendFailed("channels.telegram.actions.deleteMessage is off", permanent=True)
            case "react" if message.emoji and not allowed.reactions:
                raise SendFailed("channels.telegram.actions.reactions is off", permanent=True)
            case "edit":
                await self._edit(where, message.text)
            case "delete":
                await self._tolerant("deleteMessage", where, "message to delete not found")
            case "pin" if message.remove:
                await self._tolerant("unpinChatMessage", where, "message to unpin not found")
            case "pin":
                await self._tolerant("pinChatMessage", {**where, "disable_notification": True}, "already pinned")
            case _:
                shown = [] if message.remove or not message.emoji else [{"type": "emoji", "emoji": message.emoji}]
                await self._react({**where, "reaction": shown}, message.emoji)
        return SendReceipt(message_id=message.target_id)

    async def _edit(self, where: dict[str, Any], text: str) -> None:
        step = Step(text=self._rendered(text), source=text)
        preview = {} if self._settings.link_preview else {"link_preview_options": {"is_disabled": True}}
        plain, method, field = False, "editMessageText", "text"
        for _ in range(4):
            words = _renamed(_words(step, plain=plain), field)
            try:
                await self._tolerant(method, {**where, **words, **preview}, "message is not modified")
                return
            except BotApiFailed as failure:
                if failure.says("can't parse", "parse entities", "unsupported start tag") and not plain:
                    plain = True
                elif failure.says("no text in the message") and field == "text":
                    method, field, preview = "editMessageCaption", "caption", {}
                else:
                    raise failure.as_send_failure() from None
        raise SendFailed("Telegram refused every form of the change", permanent=True)

    async def _tolerant(self, method: str, params: dict[str, Any], fine: str) -> None:
        """Makes a call. A refusal with the words ``fine`` means that it was done before."""
        try:
            await self._api.call(method, params)
        except BotApiFailed as failure:
            if failure.says(fine):
                return
            if method.startswith("edit"):
                raise
            raise failure.as_send_failure() from None

    async def _react(self, params: dict[str, Any], emoji: str) -> None:
        try:
            await self._api.call("setMessageReaction", params)
        except BotApiFailed as failure:
            if failure.says("reaction_invalid"):
                raise SendFailed(f"Telegram does not have {emoji} as a reaction", permanent=True) from None
            raise failure.as_send_failure() from None

    # Signs and drafts

    async def typing(self, route: Route) -> None:
        target = self._target(route)
        # The general topic has a number here, while messages to it have none.
        thread = {"message_thread_id": target.topic} if target.topic is not None else {}
        try:
            await self._api.call("sendChatAction", {"chat_id": target.chat, "action": "typing", **thread})
        except BotApiFailed as failure:
            raise failure.as_send_failure() from None

    async def draft(self, route: Route, draft_id: int, text: str) -> None:
        """Shows a draft where the platform has them: in the topics of a direct chat.

        Elsewhere a draft would be a message, which people would get twice.
        """
        if self._settings.stream_mode == "off":
            raise SendFailed("channels.telegram.streamMode is off", permanent=True)
        target = self._target(route)
        if not self._own.has_topics_enabled or target.topic is None or _is_group(target):
            raise SendFailed("Telegram shows drafts in the topics of direct chats only", permanent=True)
        key = (target.chat, draft_id)
        if not text.strip():  # The finished reply takes the place of the draft.
            self._drafts.pop(key, None)
            return
        draft = self._drafts.get(key) or Draft()
        _remember(self._drafts, key, draft)
        now = self._context.clock.monotonic()
        if draft.stopped or (draft.shown_at and now - draft.shown_at < DRAFT_PAUSE_S):
            return
        if utf16_length(text) > min(self._settings.text_chunk_limit, MAX_TEXT):
            draft.stopped = True
            return
        draft.shown_at = now
        params = {"chat_id": target.chat, "draft_id": abs(draft_id) or 1, "text": text, **_thread(target)}
        try:
            await self._api.call("sendMessageDraft", params)
        except BotApiFailed as failure:
            if failure.kind == "rate":
                # The pause is kept by not showing anything until it is over.
                draft.shown_at = now + (failure.retry_after_s or 0)
                return
            draft.stopped = True
            raise failure.as_send_failure() from None


def _thread(target: TelegramTarget) -> dict[str, Any]:
    """Messages to the general topic of a forum name no topic."""
    return {} if target.topic in (None, GENERAL_TOPIC) else {"message_thread_id": target.topic}


def _is_group(target: TelegramTarget) -> bool:
    return not isinstance(target.chat, int) or target.chat < 0


def _words(step: Step, *, plain: bool) -> dict[str, Any]:
    if step.text is None:
        return {}
    if plain:
        return {"text": render(step.source, "plain").text}
    return {"text": step.text.text, "parse_mode": "HTML"}


def _renamed(words: dict[str, Any], name: str) -> dict[str, Any]:
    return {name if key == "text" else key: value for key, value in words.items()}


def _button(button: Button) -> dict[str, str]:
    data = button.data or button.text
    if len(data.encode()) > MAX_BUTTON_DATA:
        raise SendFailed(f"the button {button.text!r} carries more than {MAX_BUTTON_DATA} bytes", permanent=True)
    return {"text": button.text, "callback_data": data}


def _kind(mime_type: str, size: int) -> str:
    match mime_type.partition(";")[0].strip().lower():
        case "image/gif":
            return "animation"
        case "image/jpeg" | "image/png" | "image/webp" if size <= MAX_PHOTO_BYTES:
            return "photo"
        case "video/mp4" | "video/quicktime":
            return "video"
        case "audio/ogg" | "audio/opus" | "audio/mpeg" | "audio/mp4" | "audio/x-m4a" | "audio/m4a" | "audio/mp3":
            return "audio"
        case _:
            return "document"


def _albums(files: list[File]) -> list[tuple[File, ...]]:
    """Neighbouring files that the platform shows together: pictures and videos, or documents, or audio."""
    together = {"photo": "pictures", "video": "pictures", "document": "document", "audio": "audio"}
    groups: list[list[File]] = []
    for file in files:
        kind = together.get(file.kind)
        if groups and kind and together.get(groups[-1][0].kind) == kind and len(groups[-1]) < MAX_ALBUM:
            groups[-1].append(file)
        else:
            groups.append([file])
    return [tuple(group) for group in groups]


def _upload(file: File) -> InputFile:
    from telegram import InputFile

    return InputFile(file.data, filename=file.name)


def _album_entry(kind: str, file: File, words: dict[str, Any]) -> Any:
    from telegram import InputFile, InputMediaAudio, InputMediaDocument, InputMediaPhoto, InputMediaVideo

    kinds: dict[str, Any] = {
        "photo": InputMediaPhoto,
        "video": InputMediaVideo,
        "document": InputMediaDocument,
        "audio": InputMediaAudio,
    }
    upload = InputFile(file.data, filename=file.name, attach=True)
    return kinds[kind](media=upload, **_renamed(words, "caption"))


def _safe_name(media: MediaRef) -> str:
    name = re.sub(r"[^\w.+-]+", "_", media.file_name or "").strip("._")[-80:]
    return name or f"file{mimetypes.guess_extension(media.mime_type) or ''}"


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    _trim(memory)


def _trim(memory: OrderedDict[Any, Any]) -> None:
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)
