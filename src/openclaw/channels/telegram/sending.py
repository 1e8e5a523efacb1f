"""Sends to Telegram: messages with files and buttons, changes to earlier ones, and drafts.

All calls go through ``BotApi``, which uses python-telegram-bot. The library is imported in a thread when an account
starts, because that is slow. Its decoding methods are not used: one update that it cannot decode would block all
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from openclaw.channels.base import ChannelContext, is_number, require_action
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.http import converted
from openclaw.channels.media import NotFetched, check_size, files_to_send, safe_file_name
from openclaw.channels.telegram import TelegramTarget, parse_target
from openclaw.channels.telegram.incoming import GENERAL_TOPIC, OwnBot
from openclaw.config.schema.channels import TelegramAccount
from openclaw.messages import Route
from openclaw.outbound.channel_formats import Rendered, render, utf16_length
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, SendFailed, SendReceipt

if TYPE_CHECKING:
    import httpx
    from telegram import InputFile


TIMEOUT_S = 60.0
CONNECT_S = 10.0
POLL_S = 30
POLL_SLACK_S = 10.0
"""The server's time to answer after a long poll has ended."""
UPDATE_KINDS = ("message", "edited_message", "callback_query", "message_reaction")

TelegramFailureKind: TypeAlias = Literal[
    "token", "conflict", "moved", "rate", "forbidden", "refused", "server", "unclear", "unreachable", "unanswered"
]
REFUSED_TOKEN = "Telegram does not accept the bot token: get the current one from @BotFather"
MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_PHOTO_BYTES = 10 * 1024 * 1024
"""A larger image is sent as a document."""
MAX_ALBUM = 10
MAX_BUTTON_DATA = 64
"""In bytes."""
DRAFT_PAUSE_S = 0.3

VOICE_TYPES = frozenset({"audio/ogg", "audio/opus", "audio/mpeg", "audio/mp3", "audio/mp4", "audio/m4a", "audio/x-m4a"})
"""Formats that Telegram plays as a voice message."""

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


class SendStep(msgspec.Struct, frozen=True, kw_only=True):
    """One API call. A message with files may need several."""

    text: Rendered | None = None
    """The text of the message, or the caption of the files."""
    source: str = ""
    """The text before rendering."""
    files: tuple[File, ...] = ()
    """Several files form an album."""


class Draft(msgspec.Struct, kw_only=True):
    """An unfinished reply on display."""

    shown_at: float = 0.0
    stopped: bool = False


class TelegramSender:
    """Sends through one bot. All methods may raise ``SendFailed``."""

    def __init__(self, context: ChannelContext, api: BotApi, own: OwnBot) -> None:
        self._context = context
        self._settings: TelegramAccount = context.account.settings
        self._api = api
        self._own = own
        self._sent: RecentDict[tuple[int | str, int], None] = RecentDict()
        self._under_way: RecentDict[str, list[int]] = RecentDict()
        """Key of a message → ids of its delivered parts, so that a retry continues after them."""
        self._moved: RecentDict[int | str, int] = RecentDict()
        self._drafts: RecentDict[tuple[int | str, int], Draft] = RecentDict()

    def moved(self, chat: int | str, new_chat: int) -> None:
        """Redirect messages for a chat's old id to its new one."""
        self._moved[chat] = new_chat

    def sent(self, chat: int, message_id: int) -> bool:
        """Return whether the agent recently sent the message."""
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
            more = {**_thread(target), **(self._first_params(message) if number == 0 else {})}
            arrived.append(await self._perform(step, target.chat, more))
        self._under_way.pop(key, None)
        return SendReceipt(message_id=str(arrived[0]))

    def _target(self, route: Route) -> TelegramTarget:
        target = parse_target(route.to)
        thread = str(route.thread_id) if route.thread_id is not None else ""
        topic = int(thread) if is_number(thread) else target.topic
        return TelegramTarget(self._moved.get(target.chat, target.chat), topic)

    def _first_params(self, message: OutgoingMessage) -> Mapping[str, object]:
        """Return the parameters of a message's first call only."""
        params: dict[str, object] = {}
        quoted = message.reply_to_id or ""
        if is_number(quoted):
            params["reply_parameters"] = {"message_id": int(quoted), "allow_sending_without_reply": True}
        if message.buttons:
            params["reply_markup"] = {
                "inline_keyboard": [[_button(button) for button in row] for row in message.buttons]
            }
        return params

    async def _steps(self, message: OutgoingMessage) -> list[SendStep]:
        files = [
            File(kind=_kind(media, len(data)), name=safe_file_name(media), data=data)
            for media, data in await files_to_send(self._context, message)
        ]
        rendered = self._rendered(message.text) if message.text.strip() else None
        if not files:
            return [SendStep(text=rendered, source=message.text)]
        groups = _albums(files)
        fits = rendered is not None and rendered.size <= MAX_CAPTION
        first = SendStep(files=groups[0], text=rendered if fits else None, source=message.text if fits else "")
        steps = [first, *(SendStep(files=group) for group in groups[1:])]
        return steps if fits or rendered is None else [*steps, SendStep(text=rendered, source=message.text)]

    def _rendered(self, text: str) -> Rendered:
        return render(text, "telegram", tables=self._settings.markdown.tables)

    async def _perform(self, step: SendStep, chat: int | str, more: Mapping[str, object]) -> int:
        """Make the call, retrying in a simpler form when the API rejects the form."""
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
                    self._context.log.warning("Telegram rejected the markup of a message; sending it as plain text")
                    plain = True
                elif failure.says("thread not found") and "message_thread_id" in more:
                    more = _without(more, "message_thread_id")
                elif failure.says("photo_invalid", "image_process", "voice_messages_forbidden") and not as_document:
                    as_document = True
                elif failure.says("message to be replied not found", "reply message not found") and (
                    "reply_parameters" in more
                ):
                    more = _without(more, "reply_parameters")
                else:
                    raise
                continue
            return self._note_sent(chat, result)
        raise SendFailed("Telegram rejected every form of the message", permanent=True)

    async def _recording(self, chat: int | str, more: Mapping[str, object]) -> None:
        """Show the recording indicator, since a voice message takes longer than a text."""
        thread = {name: value for name, value in more.items() if name == "message_thread_id"}
        with contextlib.suppress(BotApiFailed):
            await self._api.call("sendChatAction", {"chat_id": chat, "action": "record_voice", **thread})

    def _call_for(self, step: SendStep, *, plain: bool, as_document: bool) -> tuple[str, Mapping[str, object]]:
        if not step.files:
            return "sendMessage", {**_text_params(step, "text", plain=plain), **self._preview_params()}
        caption = _text_params(step, "caption", plain=plain)
        kinds = ["document" if as_document else file.kind for file in step.files]
        if len(step.files) == 1:
            return _METHODS[kinds[0]], {kinds[0]: _upload(step.files[0]), **caption}
        media = [
            _album_entry(kind, file, caption if number == 0 else {})
            for number, (kind, file) in enumerate(zip(kinds, step.files, strict=True))
        ]
        return "sendMediaGroup", {"media": media}

    def _preview_params(self) -> Mapping[str, object]:
        return {} if self._settings.link_preview else {"link_preview_options": {"is_disabled": True}}

    def _note_sent(self, chat: int | str, result: Any) -> int:
        """Record a sent message and return its id. For an album, return the id of its first message."""
        messages: list[object] = result if isinstance(result, list) else [result]
        ids = [
            message_id
            for sent in messages
            if (message_id := converted(sent, SentTelegramMessage).message_id) is not None
        ]
        for message_id in ids:
            self._sent[chat, message_id] = None
        return ids[0] if ids else 0

    # Changes to earlier messages

    async def _change(self, route: Route, message: OutgoingMessage) -> SendReceipt:
        if not is_number(message.target_id):
            raise SendFailed(f"{message.target_id!r} is not a Telegram message id", permanent=True)
        target = {"chat_id": self._target(route).chat, "message_id": int(message.target_id)}
        allowed = self._settings.actions
        match message.act:
            case "edit":
                require_action(self._context, "editMessage", allowed.edit_message)
                await self._edit(target, message.text)
            case "delete":
                require_action(self._context, "deleteMessage", allowed.delete_message)
                await self._tolerant("deleteMessage", target, "message to delete not found")
            case "pin" if message.remove:
                await self._tolerant("unpinChatMessage", target, "message to unpin not found")
            case "pin":
                await self._tolerant("pinChatMessage", {**target, "disable_notification": True}, "already pinned")
            case _:
                require_action(self._context, "reactions", allowed.reactions or not message.emoji)
                reaction = [] if message.remove or not message.emoji else [{"type": "emoji", "emoji": message.emoji}]
                await self._react({**target, "reaction": reaction}, message.emoji)
        return SendReceipt(message_id=message.target_id)

    async def _edit(self, target: Mapping[str, object], text: str) -> None:
        step = SendStep(text=self._rendered(text), source=text)
        plain, method, field, preview = False, "editMessageText", "text", self._preview_params()
        for _ in range(4):
            content = _text_params(step, field, plain=plain)
            try:
                await self._tolerant(method, {**target, **content, **preview}, "message is not modified")
                return
            except BotApiFailed as failure:
                if failure.says("can't parse", "parse entities", "unsupported start tag") and not plain:
                    plain = True
                elif failure.says("no text in the message") and field == "text":
                    method, field, preview = "editMessageCaption", "caption", {}
                else:
                    raise
        raise SendFailed("Telegram rejected every form of the edit", permanent=True)

    async def _tolerant(self, method: str, params: Mapping[str, object], done: str) -> None:
        """Make a call. An error that contains ``done`` means that an earlier attempt succeeded."""
        try:
            await self._api.call(method, params)
        except BotApiFailed as failure:
            if not failure.says(done):
                raise

    async def _react(self, params: Mapping[str, object], emoji: str) -> None:
        try:
            await self._api.call("setMessageReaction", params)
        except BotApiFailed as failure:
            if failure.says("reaction_invalid"):
                raise SendFailed(f"Telegram does not support {emoji} as a reaction", permanent=True) from None
            raise

    # Typing and drafts

    async def typing(self, route: Route) -> None:
        target = self._target(route)
        # Unlike messages, the indicator names the general topic.
        thread = {"message_thread_id": target.topic} if target.topic is not None else {}
        await self._api.call("sendChatAction", {"chat_id": target.chat, "action": "typing", **thread})

    async def draft(self, route: Route, draft_id: int, text: str) -> None:
        """Show a draft, which Telegram supports in the topics of a direct chat only.

        Elsewhere a draft would be a message, so that people would receive the reply twice.
        """
        if self._settings.stream_mode == "off":
            raise SendFailed("channels.telegram.streamMode is off", permanent=True)
        target = self._target(route)
        if not self._own.has_topics_enabled or target.topic is None or _is_group(target):
            raise SendFailed("Telegram shows drafts in the topics of direct chats only", permanent=True)
        key = (target.chat, draft_id)
        if not text.strip():  # The finished reply replaces the draft.
            self._drafts.pop(key, None)
            return
        draft = self._drafts.get(key) or Draft()
        self._drafts[key] = draft
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
                # Show nothing until the rate limit ends.
                draft.shown_at = now + (failure.retry_after_s or 0)
                return
            draft.stopped = True
            raise


def _without(params: Mapping[str, object], name: str) -> Mapping[str, object]:
    return {key: value for key, value in params.items() if key != name}


def _thread(target: TelegramTarget) -> Mapping[str, object]:
    """Return the topic parameter. Messages to a forum's general topic must not have one."""
    return {} if target.topic in (None, GENERAL_TOPIC) else {"message_thread_id": target.topic}


def _is_group(target: TelegramTarget) -> bool:
    return not isinstance(target.chat, int) or target.chat < 0


def _text_params(step: SendStep, name: str, *, plain: bool) -> Mapping[str, str]:
    """Return the text of a step as the parameter ``name``, with its parse mode."""
    if step.text is None:
        return {}
    if plain:
        return {name: render(step.source, "plain").text}
    return {name: step.text.text, "parse_mode": "HTML"}


def _button(button: Button) -> dict[str, str]:
    data = button.data or button.text
    if len(data.encode()) > MAX_BUTTON_DATA:
        raise SendFailed(f"the button {button.text!r} carries more than {MAX_BUTTON_DATA} bytes", permanent=True)
    return {"text": button.text, "callback_data": data}


def _kind(media: MediaRef, size: int) -> str:
    if media.voice and media.mime_type in VOICE_TYPES:
        return "voice"
    match media.mime_type.partition(";")[0].strip().lower():
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
    """Group adjacent files into albums: images and videos, documents, or audio."""
    together = {"photo": "visual", "video": "visual", "document": "document", "audio": "audio"}
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


def _album_entry(kind: str, file: File, caption: Mapping[str, str]) -> object:
    from telegram import InputFile, InputMediaAudio, InputMediaDocument, InputMediaPhoto, InputMediaVideo

    kinds = {
        "photo": InputMediaPhoto,
        "video": InputMediaVideo,
        "document": InputMediaDocument,
        "audio": InputMediaAudio,
    }
    upload = InputFile(file.data, filename=file.name, attach=True)
    return kinds[kind](media=upload, caption=caption.get("caption"), parse_mode=caption.get("parse_mode"))


# The Bot API


class BotApiFailed(SendFailed):
    """A call failed. The message never contains the token.

    ``server`` means an internal error of the API, ``unclear`` a response that is not the API's, such as a proxy's, and
    ``unanswered`` no response: in all three cases the call may have succeeded. ``unreachable`` means that nothing was
    sent.
    """

    def __init__(
        self,
        kind: TelegramFailureKind,
        message: str,
        *,
        retry_after_s: float | None = None,
        new_chat: int | None = None,
    ) -> None:
        super().__init__(
            message,
            permanent=kind in ("refused", "forbidden"),
            reached=kind not in ("unreachable", "unanswered", "token"),
            maybe_sent=kind in ("server", "unclear", "unanswered"),
            retry_after_s=retry_after_s,
        )
        self.kind: TelegramFailureKind = kind
        self.new_chat = new_chat

    def says(self, *words: str) -> bool:
        """Return whether the API rejected the call with one of these texts. It has no error codes."""
        message = str(self).lower()
        return self.kind == "refused" and any(word.lower() in message for word in words)


class SentTelegramMessage(msgspec.Struct, frozen=True, kw_only=True):
    message_id: int | None = None


class FileLocation(msgspec.Struct, frozen=True, kw_only=True):
    file_path: str | None = None


class BotApi:
    """Created by ``open_api``. Every method but ``close`` may raise ``BotApiFailed``."""

    def __init__(self, bot: Any, requests: tuple[Any, Any], files: httpx.AsyncClient, token: str, root: str) -> None:
        self._bot = bot
        self._requests = requests
        self._files = files
        self._token = token
        self._root = root

    async def call(
        self, method: str, params: Mapping[str, object] | None = None, timeout_s: float | None = None
    ) -> Any:
        """Return the result. Values may be ``telegram.InputFile`` or ``telegram.InputMedia``."""
        from telegram.error import TelegramError

        try:
            return await self._bot.call(method, params or {}, timeout_s)
        except TelegramError as error:
            raise self._failure(method, error) from None

    async def updates(self, offset: int | None, timeout: int) -> list[Any]:
        """Return the updates from ``offset`` on, waiting up to ``timeout`` s, and confirm the earlier ones."""
        params: dict[str, object] = {"timeout": timeout, "allowed_updates": list(UPDATE_KINDS)}
        if offset is not None:
            params["offset"] = offset
        updates = await self.call("getUpdates", params, timeout + POLL_SLACK_S)
        return updates if isinstance(updates, list) else []

    async def fetch_file(self, context: ChannelContext, file_id: str) -> tuple[bytes, str]:
        """Return the content of a file and its path on the server. May also raise ``NotFetched``."""
        import httpx

        path = converted(await self.call("getFile", {"file_id": file_id}), FileLocation).file_path
        if not path:
            raise NotFetched("the server returned no path for it")
        data = bytearray()
        address = f"{self._root}/file/bot{self._token}/{quote(path.lstrip('/'))}"
        try:
            async with self._files.stream("GET", address) as answer:
                if answer.status_code != 200:
                    raise NotFetched(f"the server answered {answer.status_code}")
                async for chunk in answer.aiter_bytes():
                    data += chunk
                    check_size(context, len(data))
        except httpx.HTTPError as error:
            raise NotFetched(f"the connection broke ({type(error).__name__})") from None
        return bytes(data), path

    async def close(self) -> None:
        for request in self._requests:
            await request.shutdown()
        await self._files.aclose()

    def _failure(self, method: str, error: Exception) -> BotApiFailed:
        import httpx
        from telegram.error import (
            BadRequest,
            ChatMigrated,
            Conflict,
            Forbidden,
            InvalidToken,
            NetworkError,
            RetryAfter,
            TelegramError,
        )

        message = f"Telegram {method}: {str(error).replace(self._token, '***')}"
        cause = error.__cause__
        match error:
            case InvalidToken():
                # The API answers 404 both to a malformed token and to an unknown method.
                unknown = method != "getMe" and "not found" in message.lower()
                return BotApiFailed("refused", message) if unknown else BotApiFailed("token", REFUSED_TOKEN)
            case Conflict():
                return BotApiFailed("conflict", message)
            case ChatMigrated(new_chat_id=new_chat):
                return BotApiFailed("moved", message, new_chat=new_chat)
            case RetryAfter(retry_after=wait):
                seconds = float(wait) if isinstance(wait, int | float) else wait.total_seconds()
                return BotApiFailed("rate", message, retry_after_s=seconds)
            case Forbidden():
                return BotApiFailed("forbidden", message)
            case BadRequest():
                return BotApiFailed("refused", message)
            case NetworkError() if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
                problem = f"Telegram at {self._root} cannot be reached ({type(cause).__name__})"
                return BotApiFailed("unreachable", problem)
            case NetworkError() if isinstance(cause, httpx.HTTPError):
                return BotApiFailed("unanswered", f"Telegram {method}: no answer ({type(cause).__name__})")
            case NetworkError() if cause is None and "request entity too large" in message.lower():
                return BotApiFailed("refused", message)
            case NetworkError() if cause is None:
                return BotApiFailed("server", message)
            case TelegramError() if isinstance(cause, ValueError | TelegramError):
                return BotApiFailed("unclear", f"Telegram {method}: the response is not one of the Bot API")
            case _:
                return BotApiFailed("unanswered", message)


def open_api(token: str, settings: TelegramAccount) -> BotApi:
    """Create the client. Blocks on imports: call it in a thread."""
    import logging

    import httpx
    from telegram import Bot
    from telegram.request import HTTPXRequest

    class PlainBot(Bot):
        async def call(self, method: str, params: Mapping[str, object], timeout_s: float | None) -> Any:
            if timeout_s is None:
                return await self._post(method, dict(params))
            return await self._post(method, dict(params), read_timeout=timeout_s)

    for name in ("httpx", "httpcore"):
        # At INFO they log each request's URL, which contains the token.
        logging.getLogger(name).setLevel(logging.WARNING)
    root, timeout = settings.api_root.strip().rstrip("/"), float(settings.timeout_seconds or TIMEOUT_S)

    def request(connections: int) -> HTTPXRequest:
        return HTTPXRequest(
            connection_pool_size=connections,
            read_timeout=timeout,
            write_timeout=timeout,
            media_write_timeout=max(timeout, TIMEOUT_S),
            connect_timeout=min(timeout, CONNECT_S),
            pool_timeout=timeout,
            proxy=settings.proxy or None,
        )

    requests = (request(16), request(2))
    # Functions, because the library would format a string, and the URL may contain braces.
    bot = PlainBot(
        token,
        base_url=lambda bot_token: f"{root}/bot{bot_token}",
        base_file_url=lambda bot_token: f"{root}/file/bot{bot_token}",
        request=requests[0],
        get_updates_request=requests[1],
    )
    files = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=CONNECT_S), proxy=settings.proxy or None)
    return BotApi(bot, requests, files, token, root)
