"""What the Gateway sends to Telegram: messages with files and buttons, changes to earlier ones, and drafts.

All calls go through ``BotApi``, which uses python-telegram-bot. The library is imported when an account starts, in a
thread, because that takes a while. Its methods that decode answers are not used: one update that it cannot decode would
hold back all others.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from openclaw.channels.base import ChannelContext, is_number, need_action
from openclaw.channels.bookmark import Remembered
from openclaw.channels.media import NotFetched, check_size, files_to_send, safe_file_name
from openclaw.channels.telegram import TelegramTarget, parse_target
from openclaw.channels.telegram.incoming import GENERAL_TOPIC, OwnBot
from openclaw.config.schema.channels import TelegramAccount
from openclaw.inbound.message import Route
from openclaw.outbound.channel_formats import Rendered, render, utf16_length
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, SendFailed, SendReceipt

if TYPE_CHECKING:
    import httpx
    from telegram import InputFile


TIMEOUT_S = 60.0
CONNECT_S = 10.0
POLL_S = 30
POLL_SLACK_S = 10.0
"""The server has this long beyond the end of a long poll to answer it."""
UPDATE_KINDS = ("message", "edited_message", "callback_query", "message_reaction")

FailureKind: TypeAlias = Literal[
    "token", "conflict", "moved", "rate", "forbidden", "refused", "server", "unclear", "unreachable", "unanswered"
]
REFUSED_TOKEN = "Telegram does not accept the bot token: take the present one from @BotFather"
MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_PHOTO_BYTES = 10 * 1024 * 1024
"""A larger picture is sent as a document."""
MAX_ALBUM = 10
MAX_BUTTON_DATA = 64
"""Bytes that a button can carry."""
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
        self._sent: Remembered[tuple[int | str, int], None] = Remembered()
        self._under_way: Remembered[str, list[int]] = Remembered()
        """Key of a message → ids of its parts that arrived, so that a retry goes on behind them."""
        self._moved: Remembered[int | str, int] = Remembered()
        self._drafts: Remembered[tuple[int | str, int], Draft] = Remembered()

    def moved(self, chat: int | str, new_chat: int) -> None:
        """A group has a new id. What is sent to the old one goes to the new one."""
        self._moved[chat] = new_chat

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
        self._under_way.pop(key, None)
        return SendReceipt(message_id=str(arrived[0]))

    def _target(self, route: Route) -> TelegramTarget:
        target = parse_target(route.to or "")
        thread = str(route.thread_id) if route.thread_id is not None else ""
        topic = int(thread) if is_number(thread) else target.topic
        return TelegramTarget(self._moved.get(target.chat, target.chat), topic)

    def _first(self, message: OutgoingMessage) -> dict[str, Any]:
        """The parameters that only the first call of a message has."""
        params: dict[str, Any] = {}
        quoted = message.reply_to_id or ""
        if is_number(quoted):
            params["reply_parameters"] = {"message_id": int(quoted), "allow_sending_without_reply": True}
        if message.buttons:
            params["reply_markup"] = {"inline_keyboard": [[_button(one) for one in row] for row in message.buttons]}
        return params

    async def _steps(self, message: OutgoingMessage) -> list[Step]:
        files = [
            File(kind=_kind(media, len(data)), name=safe_file_name(media), data=data)
            for media, data in await files_to_send(self._context, message)
        ]
        rendered = self._rendered(message.text) if message.text.strip() else None
        if not files:
            return [Step(text=rendered, source=message.text)]
        groups = _albums(files)
        fits = rendered is not None and rendered.size <= MAX_CAPTION
        first = Step(files=groups[0], text=rendered if fits else None, source=message.text if fits else "")
        steps = [first, *(Step(files=group) for group in groups[1:])]
        return steps if fits or rendered is None else [*steps, Step(text=rendered, source=message.text)]

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
                    raise
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
            self._sent[chat, one] = None
        return ids[0] if ids else 0

    # Changes to earlier messages

    async def _change(self, route: Route, message: OutgoingMessage) -> SendReceipt:
        if not is_number(message.target_id):
            raise SendFailed(f"{message.target_id!r} is no id of a Telegram message", permanent=True)
        where = {"chat_id": self._target(route).chat, "message_id": int(message.target_id)}
        allowed = self._settings.actions
        match message.act:
            case "edit":
                need_action(self._context, "editMessage", allowed.edit_message)
                await self._edit(where, message.text)
            case "delete":
                need_action(self._context, "deleteMessage", allowed.delete_message)
                await self._tolerant("deleteMessage", where, "message to delete not found")
            case "pin" if message.remove:
                await self._tolerant("unpinChatMessage", where, "message to unpin not found")
            case "pin":
                await self._tolerant("pinChatMessage", {**where, "disable_notification": True}, "already pinned")
            case _:
                need_action(self._context, "reactions", allowed.reactions or not message.emoji)
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
                    raise
        raise SendFailed("Telegram refused every form of the change", permanent=True)

    async def _tolerant(self, method: str, params: dict[str, Any], fine: str) -> None:
        """Makes a call. A refusal with the words ``fine`` means that it was done before."""
        try:
            await self._api.call(method, params)
        except BotApiFailed as failure:
            if not failure.says(fine):
                raise

    async def _react(self, params: dict[str, Any], emoji: str) -> None:
        try:
            await self._api.call("setMessageReaction", params)
        except BotApiFailed as failure:
            if failure.says("reaction_invalid"):
                raise SendFailed(f"Telegram does not have {emoji} as a reaction", permanent=True) from None
            raise

    # Signs and drafts

    async def typing(self, route: Route) -> None:
        target = self._target(route)
        # The general topic has a number here, while messages to it have none.
        thread = {"message_thread_id": target.topic} if target.topic is not None else {}
        await self._api.call("sendChatAction", {"chat_id": target.chat, "action": "typing", **thread})

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
                # The pause is kept by not showing anything until it is over.
                draft.shown_at = now + (failure.retry_after_s or 0)
                return
            draft.stopped = True
            raise


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


# The Bot API


class BotApiFailed(SendFailed):
    """A call did not succeed. The message never holds the token.

    ``server`` means that the API answered with an error of its own, ``unclear`` that something else answered, such as a
    proxy, and ``unanswered`` that nobody did: in all three cases it may have been done. ``unreachable`` means that
    nothing was sent.
    """

    def __init__(
        self, kind: FailureKind, message: str, *, retry_after_s: float | None = None, new_chat: int | None = None
    ) -> None:
        super().__init__(
            message,
            permanent=kind in ("refused", "forbidden"),
            reached=kind not in ("unreachable", "unanswered", "token"),
            maybe_sent=kind in ("server", "unclear", "unanswered"),
            retry_after_s=retry_after_s,
        )
        self.kind: FailureKind = kind
        self.new_chat = new_chat

    def says(self, *words: str) -> bool:
        """Whether the API refused the call with one of these words. It has no codes for its reasons."""
        said = str(self).lower()
        return self.kind == "refused" and any(word.lower() in said for word in words)


class BotApi:
    """``open_api`` makes it. Every method but ``close`` may raise ``BotApiFailed``."""

    def __init__(self, bot: Any, requests: tuple[Any, Any], files: httpx.AsyncClient, token: str, root: str) -> None:
        self._bot = bot
        self._requests = requests
        self._files = files
        self._token = token
        self._root = root

    async def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float | None = None) -> Any:
        """Returns the result. Values may be ``telegram.InputFile`` or ``telegram.InputMedia``."""
        from telegram.error import TelegramError

        try:
            return await self._bot.call(method, dict(params or {}), timeout_s)
        except TelegramError as error:
            raise self._failure(method, error) from None

    async def updates(self, offset: int | None, timeout: int) -> list[Any]:
        """Returns the updates from ``offset`` on, and confirms those before it. Waits ``timeout`` s for the first."""
        params: dict[str, Any] = {"timeout": timeout, "allowed_updates": list(UPDATE_KINDS)}
        if offset is not None:
            params["offset"] = offset
        found = await self.call("getUpdates", params, timeout + POLL_SLACK_S)
        return found if isinstance(found, list) else []

    async def fetch_file(self, context: ChannelContext, file_id: str) -> tuple[bytes, str]:
        """Returns the content of a file and its path on the server. Raises ``NotFetched`` as well."""
        import httpx

        found = await self.call("getFile", {"file_id": file_id})
        path = found.get("file_path") if isinstance(found, dict) else None
        if not isinstance(path, str) or not path:
            raise NotFetched("the server gives no path for it")
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

        said = f"Telegram {method}: {str(error).replace(self._token, '***')}"
        cause = error.__cause__
        match error:
            case InvalidToken():
                # The API answers 404 to a token of a wrong form, and to a method that it does not know.
                unknown = method != "getMe" and "not found" in said.lower()
                return BotApiFailed("refused", said) if unknown else BotApiFailed("token", REFUSED_TOKEN)
            case Conflict():
                return BotApiFailed("conflict", said)
            case ChatMigrated(new_chat_id=new_chat):
                return BotApiFailed("moved", said, new_chat=new_chat)
            case RetryAfter(retry_after=wait):
                seconds = float(wait) if isinstance(wait, int | float) else wait.total_seconds()
                return BotApiFailed("rate", said, retry_after_s=seconds)
            case Forbidden():
                return BotApiFailed("forbidden", said)
            case BadRequest():
                return BotApiFailed("refused", said)
            case NetworkError() if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
                place = f"Telegram at {self._root} cannot be reached ({type(cause).__name__})"
                return BotApiFailed("unreachable", place)
            case NetworkError() if isinstance(cause, httpx.HTTPError):
                return BotApiFailed("unanswered", f"Telegram {method}: no answer ({type(cause).__name__})")
            case NetworkError() if cause is None and "request entity too large" in said.lower():
                return BotApiFailed("refused", said)
            case NetworkError() if cause is None:
                return BotApiFailed("server", said)
            case TelegramError() if isinstance(cause, ValueError | TelegramError):
                return BotApiFailed("unclear", f"Telegram {method}: the answer is not one of the Bot API")
            case _:
                return BotApiFailed("unanswered", said)


def open_api(token: str, settings: TelegramAccount) -> BotApi:
    """Makes the client. It blocks: call it in a thread."""
    import logging

    import httpx
    from telegram import Bot
    from telegram.request import HTTPXRequest

    class PlainBot(Bot):
        async def call(self, method: str, params: dict[str, Any], timeout_s: float | None) -> Any:
            if timeout_s is None:
                return await self._post(method, params)
            return await self._post(method, params, read_timeout=timeout_s)

    for name in ("httpx", "httpcore"):
        # They would write a line with the token for each request.
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
    # Braces in the address would be taken for places where the library puts the token.
    bot = PlainBot(
        token,
        base_url=lambda given: f"{root}/bot{given}",
        base_file_url=lambda given: f"{root}/file/bot{given}",
        request=requests[0],
        get_updates_request=requests[1],
    )
    files = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=CONNECT_S), proxy=settings.proxy or None)
    return BotApi(bot, requests, files, token, root)
