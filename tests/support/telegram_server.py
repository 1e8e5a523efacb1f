"""A stand-in for the Bot API of Telegram that refuses what the real one refuses, over real HTTP.

It is stricter in one point: parameters that the real API would silently ignore are refused, because a name written
wrongly would otherwise look as if it worked.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections import deque
from html.parser import HTMLParser
from typing import Any

from aiohttp import web

from tests.support.vendor_server import VendorServer

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT = {"id": 110201543, "is_bot": True, "first_name": "Claw", "username": "claw_bot", "can_join_groups": True}
ANN, BOB, GROUP, FORUM = 4242, 4343, -1001234567890, -1009876543210
KINDS = {"message", "edited_message", "callback_query", "message_reaction"}
REACTIONS = {"👍", "👎", "❤", "🔥", "👀", "🎉", "🤔", "👌"}
_TAGS = {"b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "tg-spoiler", "a", "code", "pre", "blockquote"}
_COMMON = {"chat_id", "message_thread_id", "disable_notification", "reply_parameters", "reply_markup"}
_WORDS = {"caption", "parse_mode"}
_FILES = {"Photo": "photo", "Animation": "animation", "Video": "video", "Voice": "voice", "Audio": "audio"}
PARAMS: dict[str, set[str]] = {
    "getMe": set(),
    "getUpdates": {"offset", "limit", "timeout", "allowed_updates"},
    "deleteWebhook": {"drop_pending_updates"},
    "setWebhook": {"url", "secret_token", "allowed_updates", "max_connections"},
    "getWebhookInfo": set(),
    "setMyCommands": {"commands", "scope", "language_code"},
    "deleteMyCommands": {"scope", "language_code"},
    "sendMessage": {*_COMMON, "text", "parse_mode", "link_preview_options"},
    "sendMediaGroup": {*_COMMON, "media"} - {"reply_markup"},
    "sendDocument": {*_COMMON, *_WORDS, "document"},
    **{f"send{name}": {*_COMMON, *_WORDS, field} for name, field in _FILES.items()},
    "sendChatAction": {"chat_id", "action", "message_thread_id"},
    "sendMessageDraft": {"chat_id", "message_thread_id", "draft_id", "text", "parse_mode"},
    "editMessageText": {"chat_id", "message_id", "text", "parse_mode", "link_preview_options"},
    "editMessageCaption": {"chat_id", "message_id", "caption", "parse_mode"},
    "deleteMessage": {"chat_id", "message_id"},
    "pinChatMessage": {"chat_id", "message_id", "disable_notification"},
    "unpinChatMessage": {"chat_id", "message_id"},
    "setMessageReaction": {"chat_id", "message_id", "reaction", "is_big"},
    "answerCallbackQuery": {"callback_query_id", "text"},
    "getFile": {"file_id"},
}


class Refusal(Exception):
    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        self.parameters = parameters


class Markup(HTMLParser):
    """Reads the API's HTML, which must be balanced and has few tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.text = ""
        self._open: list[str] = []

    def read(self, source: str) -> str:
        self.feed(source)
        self.close()
        if self._open:
            raise Refusal(
                400, f"Bad Request: can't parse entities: Can't find end tag corresponding to {self._open[-1]}"
            )
        return self.text.strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        allowed = {"a": {"href"}, "code": {"class"}, "blockquote": {"expandable"}}.get(tag, set())
        if tag not in _TAGS or names - allowed:
            raise Refusal(400, f'Bad Request: can\'t parse entities: Unsupported start tag "{tag}"')
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise Refusal(400, f'Bad Request: can\'t parse entities: Unmatched end tag "{tag}"')

    def handle_data(self, data: str) -> None:
        if "<" in data:
            raise Refusal(400, "Bad Request: can't parse entities: Unclosed start tag")
        self.text += data

    def handle_entityref(self, name: str) -> None:
        self.text += html.unescape(f"&{name};") if name in ("lt", "gt", "amp", "quot") else f"&{name};"

    def handle_charref(self, name: str) -> None:
        self.text += html.unescape(f"&#{name};")


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


class TelegramServer(VendorServer):
    """``async with TelegramServer() as telegram``; ``telegram.url`` is the ``apiRoot``."""

    def __init__(self, token: str = TOKEN, **bot: Any) -> None:
        self.token = token
        self.bot = {**BOT, **bot}
        self.chats: dict[int, dict[str, Any]] = {
            ANN: {"id": ANN, "type": "private", "first_name": "Ann"},
            BOB: {"id": BOB, "type": "private", "first_name": "Bob"},
            GROUP: {"id": GROUP, "type": "supergroup", "title": "Friends"},
            FORUM: {"id": FORUM, "type": "supergroup", "title": "Forum", "is_forum": True},
        }
        self.topics: dict[int, set[int]] = {FORUM: {7, 9}, ANN: {77}}
        self.moved: dict[int, int] = {}
        self.blocked: set[int] = set()
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """What was carried out, in order."""
        self.refused: list[tuple[str, str]] = []
        self.messages: dict[tuple[int, int], dict[str, Any]] = {}
        self.pinned: list[tuple[int, int]] = []
        """What the bot wrote and has not deleted."""
        self.commands: list[Any] = []
        self.webhook: dict[str, Any] = {}
        self.offsets: list[int | None] = []
        self._updates: list[dict[str, Any]] = []
        self.confirmed = 0
        self._update_id = 870_000_000
        self._message_id = 100
        self._faults: dict[str, deque[Any]] = {}
        self._changed = asyncio.Condition()
        self._polls = 0
        self._poll_number = 0
        self._stopping = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/file/bot{token}/{path:.*}", self._file)
        app.router.add_route("*", "/bot{token}/{method}", self._serve)
        self._stopping = False
        return app

    async def disconnect(self) -> None:
        self._stopping = True
        await self._tell()

    # What a test does with it

    def message(self, text: str | None = None, *, chat: int = ANN, sender: int = ANN, **more: Any) -> dict[str, Any]:
        """A message as the API words it. Mentions of the bot and commands get their entities."""
        self._message_id += 1
        name = {ANN: "Ann", BOB: "Bob"}.get(sender, "Somebody")
        author = {"id": sender, "is_bot": False, "first_name": name, "username": name.lower(), "language_code": "en"}
        message: dict[str, Any] = {"message_id": self._message_id, "from": author, "chat": self.chats[chat]}
        message["date"] = 1_794_766_939 + self._message_id
        if text is not None:
            message["text"] = text
            if entities := entities_of(text):
                message["entities"] = entities
        return {**message, **more}

    async def deliver(self, **update: Any) -> dict[str, Any]:
        """Queues an update, such as ``message=…``."""
        self._update_id += 1
        whole = {"update_id": self._update_id, **update}
        self._updates.append(whole)
        await self._tell()
        return whole

    async def say(self, text: str, **more: Any) -> dict[str, Any]:
        message = self.message(text, **more)
        await self.deliver(message=message)
        return message

    async def repeat_all(self) -> None:
        """Everything that was confirmed comes once more."""
        self.confirmed = 0
        await self._tell()

    def fail_next(self, method: str, status: int, description: str = "", **parameters: Any) -> None:
        self._faults.setdefault(method, deque()).append(Refusal(status, description or f"Error {status}", **parameters))

    def drop_next(self, method: str) -> None:
        """Carries the call out, then closes the connection without an answer."""
        self._faults.setdefault(method, deque()).append("drop")

    def garble_next(self, method: str) -> None:
        """Something between the bot and the API answers with a page."""
        self._faults.setdefault(method, deque()).append("garble")

    def hold_next(self, method: str) -> asyncio.Event:
        """The call is answered when the event is set."""
        event = asyncio.Event()
        self._faults.setdefault(method, deque()).append(event)
        return event

    def of(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    async def called(self, method: str, count: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.of(method)) >= count)
        return self.of(method)

    async def polling(self) -> None:
        """Until the bot waits for updates."""
        await self.until(lambda: self._polls > 0)

    async def taken(self) -> None:
        """Until the bot has confirmed every update."""
        await self.until(lambda: self.confirmed >= self._update_id)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    def texts(self, chat: int = ANN) -> list[str]:
        """What the bot wrote in a chat and is still there, as a person reads it."""
        return [one["plain"] for (where, _), one in self.messages.items() if where == chat]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # Serving

    async def _file(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["path"].removeprefix("files/"))
        if request.match_info["token"] != self.token or data is None:
            return web.Response(status=404)
        return web.Response(body=data)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method, token = request.match_info["method"], request.match_info["token"]
        try:
            if token != self.token:
                raise Refusal(401 if re.fullmatch(r"\d+:[\w-]{30,}", token) else 404, "Unauthorized")
            if method not in PARAMS:
                raise Refusal(404, "Not Found")
            params = await self._params(request)
            if strange := set(params) - PARAMS[method] - {name for name in params if name.startswith("attached")}:
                raise Refusal(400, f"Bad Request: unknown parameters {sorted(strange)}")
            faults = self._faults.get(method)
            fault = faults.popleft() if faults else None
            if isinstance(fault, Refusal):
                raise fault
            if fault == "garble":
                return web.Response(status=502, text="<html>Bad Gateway</html>", content_type="text/html")
            if isinstance(fault, asyncio.Event):
                await fault.wait()
            result = await getattr(self, f"_do_{method}", self._do_send)(params, method)
            self.calls.append((method, {k: v for k, v in params.items() if not k.startswith("attached")}))
            await self._tell()
            if fault == "drop":
                assert request.transport is not None
                request.transport.abort()
            return web.json_response({"ok": True, "result": result})
        except Refusal as refusal:
            self.refused.append((method, str(refusal)))
            await self._tell()
            answer: dict[str, Any] = {"ok": False, "error_code": refusal.status, "description": str(refusal)}
            if refusal.parameters:
                answer["parameters"] = refusal.parameters
            return web.json_response(answer, status=refusal.status)

    async def _params(self, request: web.Request) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                params[name] = {"file": value.file.read(), "name": value.filename}
                continue
            assert isinstance(value, str)
            try:
                known = name in ("text", "caption", "url", "secret_token", "parse_mode", "file_id", "callback_query_id")
                params[name] = value if known else json.loads(value)
            except ValueError:
                params[name] = value
        return params

    async def _do_getMe(self, params: dict[str, Any], method: str) -> Any:
        return self.bot

    async def _do_getUpdates(self, params: dict[str, Any], method: str) -> Any:
        if self.webhook.get("url"):
            raise Refusal(409, "Conflict: can't use getUpdates method while webhook is active")
        if set(params.get("allowed_updates", [])) - KINDS:
            raise Refusal(400, "Bad Request: unknown kind of update")
        offset = params.get("offset")
        self.offsets.append(offset)
        if offset is not None:
            self.confirmed = max(self.confirmed, offset - 1)
        self._poll_number += 1
        mine = self._poll_number
        self._polls += 1 if params.get("timeout") else 0
        await self._tell()
        wanted = params.get("allowed_updates", list(KINDS))

        def waiting() -> list[dict[str, Any]]:
            return [one for one in self._updates if one["update_id"] > self.confirmed and set(one) & set(wanted)][:100]

        try:
            async with asyncio.timeout(params.get("timeout", 0) or 0.001), self._changed:
                await self._changed.wait_for(lambda: waiting() or self._stopping or self._poll_number != mine)
        except TimeoutError:
            pass
        finally:
            self._polls -= 1 if params.get("timeout") else 0
        if self._poll_number != mine:
            raise Refusal(409, "Conflict: terminated by other getUpdates request; make sure that only one bot runs")
        return waiting()

    async def _do_deleteWebhook(self, params: dict[str, Any], method: str) -> Any:
        self.webhook = {}
        return True

    async def _do_setWebhook(self, params: dict[str, Any], method: str) -> Any:
        if not str(params.get("url", "")).startswith("https://"):
            raise Refusal(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        self.webhook = params
        return True

    async def _do_getWebhookInfo(self, params: dict[str, Any], method: str) -> Any:
        return {"url": self.webhook.get("url", ""), "has_custom_certificate": False, "pending_update_count": 0}

    async def _do_setMyCommands(self, params: dict[str, Any], method: str) -> Any:
        for one in params["commands"]:
            if not re.fullmatch(r"[a-z0-9_]{1,32}", one["command"]) or not 1 <= len(one["description"]) <= 256:
                raise Refusal(400, "Bad Request: BOT_COMMAND_INVALID")
        if len(params["commands"]) > 100:
            raise Refusal(400, "Bad Request: BOT_COMMANDS_TOO_MUCH")
        self.commands = params["commands"]
        return True

    async def _do_deleteMyCommands(self, params: dict[str, Any], method: str) -> Any:
        self.commands = []
        return True

    async def _do_sendChatAction(self, params: dict[str, Any], method: str) -> Any:
        self._chat(params, general=True)
        return True

    async def _do_sendMessageDraft(self, params: dict[str, Any], method: str) -> Any:
        chat = self._chat(params)
        if self.chats[chat]["type"] != "private" or not self.bot.get("has_topics_enabled"):
            raise Refusal(400, "Bad Request: TEXTDRAFT_PEER_INVALID")
        if not params.get("draft_id"):
            raise Refusal(400, "Bad Request: draft_id must be non-zero")
        self._words(params, "text", 4096)
        return True

    async def _do_send(self, params: dict[str, Any], method: str) -> Any:
        """Every method that sends messages."""
        chat = self._chat(params)
        quoted = params.get("reply_parameters", {})
        if (
            quoted
            and not quoted.get("allow_sending_without_reply")
            and (chat, quoted["message_id"]) not in self.messages
        ):
            raise Refusal(400, "Bad Request: message to be replied not found")
        for row in params.get("reply_markup", {}).get("inline_keyboard", []):
            if any(not one.get("text") or len(one.get("callback_data", "x").encode()) > 64 for one in row):
                raise Refusal(400, "Bad Request: BUTTON_DATA_INVALID")
        if method == "sendMediaGroup":
            return [self._keep(chat, one, "caption", 1024) for one in self._album(params)]
        if method == "sendMessage":
            return self._keep(chat, params, "text", 4096)
        field = _FILES.get(method.removeprefix("send"), "document")
        if not isinstance(params.get(field), dict) or not params[field]["file"]:
            raise Refusal(400, f"Bad Request: there is no {field} in the request")
        return self._keep(chat, params, "caption", 1024)

    def _album(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        media = params["media"]
        kinds = {one["type"] for one in media}
        if not 2 <= len(media) <= 10 or (len(kinds) > 1 and kinds != {"photo", "video"}):
            raise Refusal(400, "Bad Request: wrong media group")
        for one in media:
            if one["media"].removeprefix("attach://") not in params:
                raise Refusal(400, "Bad Request: file not found")
        return media

    def _keep(self, chat: int, params: dict[str, Any], field: str, limit: int) -> dict[str, Any]:
        plain = self._words(params, field, limit)
        self._message_id += 1
        number = self._message_id
        self.messages[(chat, number)] = {"plain": plain, "field": field, **params}
        return {"message_id": number, "date": 1_794_766_939, "chat": self.chats[chat], "from": self.bot, field: plain}

    def _words(self, params: dict[str, Any], field: str, limit: int) -> str:
        source = params.get(field, "")
        if params.get("parse_mode") not in (None, "HTML"):
            raise Refusal(400, "Bad Request: unsupported parse_mode")
        plain = Markup().read(source) if params.get("parse_mode") else source.strip()
        if field == "text" and not plain:
            raise Refusal(400, "Bad Request: message text is empty")
        if units(plain) > limit:
            raise Refusal(400, f"Bad Request: {'message' if field == 'text' else 'message caption'} is too long")
        return plain

    def _chat(self, params: dict[str, Any], *, general: bool = False) -> int:
        chat = params.get("chat_id")
        if chat in self.moved:
            raise Refusal(
                400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=self.moved[chat]
            )
        if chat not in self.chats:
            raise Refusal(400, "Bad Request: chat not found")
        if chat in self.blocked:
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        thread = params.get("message_thread_id")
        if thread is not None and thread not in self.topics.get(chat, set()) and not (general and thread == 1):
            raise Refusal(400, "Bad Request: message thread not found")
        return chat

    def _own(self, params: dict[str, Any], missing: str) -> dict[str, Any]:
        found = self.messages.get((self._chat(params), params["message_id"]))
        if found is None:
            raise Refusal(400, f"Bad Request: {missing}")
        return found

    async def _do_editMessageText(self, params: dict[str, Any], method: str) -> Any:
        found = self._own(params, "message to edit not found")
        if found["field"] != "text":
            raise Refusal(400, "Bad Request: there is no text in the message to edit")
        return self._edited(found, params, "text", 4096)

    async def _do_editMessageCaption(self, params: dict[str, Any], method: str) -> Any:
        return self._edited(self._own(params, "message to edit not found"), params, "caption", 1024)

    def _edited(self, found: dict[str, Any], params: dict[str, Any], field: str, limit: int) -> Any:
        plain = self._words(params, field, limit)
        if plain == found["plain"] and params.get("parse_mode") == found.get("parse_mode"):
            raise Refusal(400, "Bad Request: message is not modified: specified new message content is the same")
        found.update({"plain": plain, field: params[field], "parse_mode": params.get("parse_mode")})
        return {"message_id": params["message_id"], "date": 0, "chat": self.chats[params["chat_id"]], field: plain}

    async def _do_deleteMessage(self, params: dict[str, Any], method: str) -> Any:
        self._own(params, "message to delete not found")
        del self.messages[(params["chat_id"], params["message_id"])]
        return True

    async def _do_setMessageReaction(self, params: dict[str, Any], method: str) -> Any:
        self._chat(params)
        if any(one.get("type") != "emoji" or one.get("emoji") not in REACTIONS for one in params["reaction"]):
            raise Refusal(400, "Bad Request: REACTION_INVALID")
        return True

    async def _do_pinChatMessage(self, params: dict[str, Any], method: str) -> Any:
        self._chat(params)  # Messages of people can be pinned too, and are not remembered here.
        self.pinned.append((params["chat_id"], params["message_id"]))
        return True

    async def _do_unpinChatMessage(self, params: dict[str, Any], method: str) -> Any:
        place = (params["chat_id"], params["message_id"])
        if place not in self.pinned:
            raise Refusal(400, "Bad Request: message to unpin not found")
        self.pinned.remove(place)
        return True

    async def _do_answerCallbackQuery(self, params: dict[str, Any], method: str) -> Any:
        return True

    async def _do_getFile(self, params: dict[str, Any], method: str) -> Any:
        data = self.files.get(params["file_id"])
        if data is None:
            raise Refusal(400, "Bad Request: invalid file_id")
        return {"file_id": params["file_id"], "file_size": len(data), "file_path": f"files/{params['file_id']}"}


def entities_of(text: str) -> list[dict[str, Any]]:
    found = [("mention", one) for one in re.finditer(r"@\w{4,}", text) if text[: one.start()][-1:] in ("", " ", "\n")]
    found += [("bot_command", one) for one in re.finditer(r"(?<!\S)/[a-z0-9_]+(?:@\w+)?", text)]
    return [
        {"type": kind, "offset": units(text[: one.start()]), "length": units(one[0])}
        for kind, one in sorted(found, key=lambda item: item[1].start())
    ]
