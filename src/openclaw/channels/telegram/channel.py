"""One Telegram bot: receives updates by long polling or through a webhook, and sends through ``TelegramSender``.

An update goes ``_poll`` or ``_on_webhook`` → ``_take`` → ``submit``, which hands it to the Gateway. Only then is it
confirmed: by the offset of the next poll, or by the answer to the webhook.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec

from openclaw.channels.base import (
    ChannelContext,
    NotConfigured,
    Reconnect,
    WebhookAnswer,
    WebhookRequest,
    running,
    secret_of,
)
from openclaw.channels.bookmark import Remembered
from openclaw.channels.media import NotFetched, kept_file
from openclaw.channels.submit import (
    ConversationOrder,
    Edited,
    Reacted,
    reaction_text,
    secrets_equal,
    submit,
    submit_event,
)
from openclaw.channels.telegram.incoming import (
    FileToFetch,
    MessageEvent,
    MovedEvent,
    OwnBot,
    PressEvent,
    ReactionEvent,
    TelegramEvent,
    Update,
    interpret,
    joined,
    may_continue,
)
from openclaw.channels.telegram.sending import (
    POLL_S,
    UPDATE_KINDS,
    BotApi,
    BotApiFailed,
    TelegramSender,
    open_api,
)
from openclaw.clock import Backoff
from openclaw.config.schema.base import SecretRef
from openclaw.config.schema.channels import TelegramAccount
from openclaw.inbound.message import Media, Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt

BOOKMARK = "last-update"
KEPT_S = 24 * 3600.0
"""The platform keeps updates for so long. Later an offset is of no use, and the ids may have begun anew elsewhere."""
RECONNECT = Backoff(initial_s=2.0, max_s=30.0, factor=1.8, jitter=0.25)
MORE_PARTS_S = 0.5
"""The parts of an album arrive one after the other, within this time."""
MOST_LOOKS = 6
"""How often the server is asked for further parts of an album or a long text."""
CHATS_AT_ONCE = 8
WEBHOOK_S = 40.0
"""The platform delivers an update again that is not confirmed in time."""
CHECK_WEBHOOK_S = 300.0
MOST_COMMANDS = 100
LONGEST_DESCRIPTION = 256
CONFLICT = (
    "another program reads the updates of this bot (409 Conflict): stop it, or give this Gateway a bot of its own;"
    " trying again"
)
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_OFFSET = re.compile(r"\d+:\d+", re.ASCII)


class TelegramChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: TelegramAccount = context.account.settings
        self._bookmark = context.bookmark(BOOKMARK, is_id=lambda text: _OFFSET.fullmatch(text) is not None)
        self._api: BotApi | None = None
        self._sender: TelegramSender | None = None
        self._own = OwnBot(id=0)
        self._commands: frozenset[str] = frozenset()
        self._received: Remembered[tuple[str, str], None] = Remembered()
        """The conversations and ids of messages that came in."""
        self._reconnect = Reconnect(context, RECONNECT)
        self._turns = ConversationOrder()
        self._waiting: list[tuple[Any, asyncio.Future[None]]] = []

    async def run(self) -> None:
        token = await self._token()
        self._api = api = await asyncio.to_thread(open_api, token, self._settings)
        try:
            await self._bookmark.load()
            self._own = await self._introduce(api)
            self._sender = TelegramSender(self._context, api, self._own)
            await self._register_commands(api)
            if self._settings.webhook_url:
                await self._serve_webhook(api, self._settings.webhook_url)
            else:
                await self._poll(api)
        finally:
            self._api = self._sender = None
            await self._bookmark.close()
            await api.close()

    async def _token(self) -> str:
        settings = self._settings
        given = SecretRef(file=settings.token_file) if settings.token_file else settings.bot_token
        return await secret_of(self._context, given, "botToken", "TELEGRAM_BOT_TOKEN")

    # Connecting

    async def _introduce(self, api: BotApi) -> OwnBot:
        """Asks who we are until the server answers."""
        while True:
            try:
                return msgspec.convert(await api.call("getMe"), OwnBot)
            except msgspec.ValidationError:
                raise NotConfigured(f"{self._settings.api_root} is not a Bot API: its getMe names no bot") from None
            except BotApiFailed as failure:
                await self._pause(failure)

    async def _pause(self, failure: BotApiFailed) -> None:
        """Reports the failure and waits before the next attempt. Raises ``NotConfigured`` for a refused token."""
        if failure.kind == "token":
            raise NotConfigured(str(failure)) from None
        reason = CONFLICT if failure.kind == "conflict" else str(failure)
        await self._reconnect.failed(reason, failure.retry_after_s or 0.0)

    async def _register_commands(self, api: BotApi) -> None:
        """Puts the commands into the bot's menu. A failure costs the menu only."""
        menu = {
            name: command.description
            for command in self._context.commands()
            if _COMMAND.fullmatch(name := command.name.lower().replace("-", "_"))
        }
        self._commands = frozenset(menu)
        for own in self._settings.custom_commands:
            menu.setdefault(own.command.lower().lstrip("/"), own.description)
        listed = [
            {"command": name, "description": text.strip()[:LONGEST_DESCRIPTION] or name}
            for name, text in list(menu.items())[:MOST_COMMANDS]
        ]
        try:
            if listed:
                await api.call("setMyCommands", {"commands": listed})
            else:
                await api.call("deleteMyCommands")
        except BotApiFailed as failure:
            self._context.log.warning("the menu of commands was not set: %s", failure)

    # Long polling

    async def _poll(self, api: BotApi) -> None:
        connected = False
        offset, moved_at = self._first_offset(), self._context.clock.monotonic()
        while True:
            if self._context.clock.monotonic() - moved_at > KEPT_S:
                offset = None
            try:
                if not connected:
                    await self._end_webhook(api)
                # The first question is not a long one, so that it is soon known whether the server answers.
                updates = await api.updates(offset, POLL_S if connected else 0)
                updates = await self._with_all_parts(api, offset, updates)
            except BotApiFailed as failure:
                connected = False
                await self._pause(failure)
                continue
            if not connected:
                self._reconnect.connected()
                connected = True
            await self._take_all(updates)
            if ids := [one["update_id"] for one in updates if _has_id(one)]:
                offset, moved_at = max(ids) + 1, self._context.clock.monotonic()
                self._bookmark.move_to(f"{self._own.id}:{max(ids)}")

    async def _end_webhook(self, api: BotApi) -> None:
        """While a bot has a webhook it cannot be polled. A server that knows no webhooks is polled at once."""
        try:
            await api.call("deleteWebhook", {"drop_pending_updates": False})
        except BotApiFailed as failure:
            if failure.kind != "refused":
                raise
            self._context.log.info("the webhook of the bot was not removed: %s", failure)

    def _first_offset(self) -> int | None:
        """Where to go on after a restart. None: an offset of another bot, or one that is too old."""
        bot, _, last = self._bookmark.last_id.partition(":")
        now = self._context.clock.now_ms()
        age_s = (now - (self._bookmark.moved_at_ms or now)) / 1000
        return int(last) + 1 if bot == str(self._own.id) and last.isdigit() and age_s < KEPT_S else None

    async def _with_all_parts(self, api: BotApi, offset: int | None, updates: list[Any]) -> list[Any]:
        """The updates, asked for again if the last one is part of an album or a long text that may go on.

        They are not confirmed meanwhile, so nothing is lost if the Gateway ends.
        """
        for _ in range(MOST_LOOKS):
            if not updates or not may_continue(self._event(updates[-1])):
                return updates
            await self._context.clock.sleep(MORE_PARTS_S)
            known = {one["update_id"] for one in updates if _has_id(one)}
            new = [one for one in await api.updates(offset, 0) if _has_id(one) and one["update_id"] not in known]
            if not new:
                return updates
            updates = [*updates, *new]
        return updates

    async def _take_all(self, updates: Sequence[Any]) -> None:
        """Takes the updates of each chat in order, and of several chats side by side.

        A group that gets a new id is taken between what came before and after, which belong to the same conversation.
        """
        chats: dict[str, list[TelegramEvent]] = {}
        for update in updates:
            match self._event(update):
                case None:
                    pass
                case MovedEvent() as moved:
                    await self._take_chats(chats)
                    chats = {}
                    await self._take(moved)
                case event:
                    chats.setdefault(event.inbound.to, []).append(event)
        await self._take_chats(chats)

    async def _take_chats(self, chats: Mapping[str, list[TelegramEvent]]) -> None:
        limit = asyncio.Semaphore(CHATS_AT_ONCE)

        async def take_chat(events: list[TelegramEvent]) -> None:
            async with limit:
                for event in joined(events):
                    await self._take(event)

        async with asyncio.TaskGroup() as group:
            for events in chats.values():
                group.create_task(take_chat(events))

    def _event(self, update: Any) -> TelegramEvent | None:
        try:
            return interpret(msgspec.convert(update, Update), self._own, self._context.account.id, self._commands)
        except (msgspec.ValidationError, RecursionError) as error:
            self._context.log.warning("an update of Telegram was not understood and is passed over: %s", error)
            return None

    # The webhook

    async def _serve_webhook(self, api: BotApi, url: str) -> None:
        secret = await secret_of(self._context, self._settings.webhook_secret, "webhookSecret")
        if not _SECRET.fullmatch(secret):
            raise NotConfigured("webhookSecret must be 1 to 256 letters, digits, _ or -")

        async def answer(request: WebhookRequest) -> WebhookAnswer:
            return await self._on_webhook(request, secret)

        end = self._context.serve(self._settings.webhook_path, answer)
        try:
            await self._keep_webhook(api, url, secret)
        finally:
            end()

    async def _keep_webhook(self, api: BotApi, url: str, secret: str) -> None:
        """Registers the webhook, and looks from time to time whether it is still there."""
        wanted = {"url": url, "secret_token": secret, "allowed_updates": list(UPDATE_KINDS)}
        connected = False
        while True:
            try:
                info = await self._webhook_info(api, url) if connected else {}
                if not isinstance(info, dict) or info.get("url") != url:
                    await api.call("setWebhook", wanted)
                elif problem := info.get("last_error_message"):
                    self._context.log.warning("Telegram could not deliver updates to the webhook: %s", problem)
            except BotApiFailed as failure:
                if failure.kind == "refused":
                    raise NotConfigured(f"the webhook was not accepted; check webhookUrl: {failure}") from None
                connected = False
                await self._pause(failure)
                continue
            if not connected:
                self._reconnect.connected()
                connected = True
            await self._context.clock.sleep(CHECK_WEBHOOK_S)

    async def _webhook_info(self, api: BotApi, url: str) -> Any:
        """What the server says about the webhook. One that does not know the question is believed to have it."""
        try:
            return await api.call("getWebhookInfo")
        except BotApiFailed as failure:
            if failure.kind != "refused":
                raise
            return {"url": url}

    async def _on_webhook(self, request: WebhookRequest, secret: str) -> WebhookAnswer:
        given = request.headers.get("x-telegram-bot-api-secret-token", "")
        if not secrets_equal(given, secret):
            return WebhookAnswer(status=401, text="wrong secret")
        if request.method != "POST":
            return WebhookAnswer(status=405, text="only POST")
        try:
            update = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, RecursionError):
            return WebhookAnswer(status=400, text="not JSON")
        try:
            async with asyncio.timeout(WEBHOOK_S):
                event = self._event(update)
                if may_continue(event) or self._waiting:
                    await self._take_with_parts(update)
                elif event is not None:
                    await self._take_in_turn(event)
        except TimeoutError:
            return WebhookAnswer(status=503, text="try again")
        return WebhookAnswer(text="ok")

    async def _take_in_turn(self, event: TelegramEvent) -> None:
        """Takes an update when those before it of its chat are taken. A group that moves keeps back its new id, too."""
        if not isinstance(event, MovedEvent):
            async with self._turns.of(event.inbound.to):
                await self._take(event)
            return
        async with self._turns.of(f"telegram:{event.new_chat}"), self._turns.of(f"telegram:{event.chat}"):
            await self._take(event)

    async def _take_with_parts(self, update: Any) -> None:
        """Waits a moment for further parts. The first caller takes all, and the others wait for it."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((update, taken))
        if len(self._waiting) > 1:
            await taken
            return
        waiting: list[tuple[Any, asyncio.Future[None]]] = []
        try:
            await self._context.clock.sleep(MORE_PARTS_S)
            waiting, self._waiting = self._waiting, []
            waiting.sort(key=lambda one: one[0]["update_id"] if _has_id(one[0]) else 0)
            await self._take_all([update for update, _ in waiting])
        except BaseException:
            for _, future in waiting or self._waiting:
                if future is not taken and not future.done():
                    future.set_exception(TimeoutError())
            self._waiting = [] if not waiting else self._waiting
            raise
        for _, future in waiting:
            if not future.done():
                future.set_result(None)

    # One update

    async def _take(self, event: TelegramEvent) -> None:
        match event:
            case MessageEvent(inbound=inbound):
                for message_id in inbound.own_ids:
                    self._received[inbound.to, message_id] = None
                await submit_event(self._context, event, self._fetch)
            case Edited():
                await submit_event(self._context, event)
            case PressEvent(inbound=inbound, query_id=query_id):
                if inbound.text:
                    await submit(self._context, inbound)
                await self._acknowledge(query_id)
            case ReactionEvent():
                await self._take_reaction(event)
            case MovedEvent(chat=chat, new_chat=new_chat):
                self._context.log.info("group %d became supergroup %d", chat, new_chat)
                if self._sender is not None:
                    self._sender.moved(chat, new_chat)
                await self._context.moved(str(chat), str(new_chat))

    async def _fetch(self, file: FileToFetch) -> Media:
        try:
            data, path = await running(self._api, "Telegram").fetch_file(self._context, file.file_id)
        except SendFailed as failure:
            raise NotFetched(str(failure)) from None
        named = msgspec.structs.replace(file, name=file.name or PurePosixPath(path).name)
        return await kept_file(self._context, data, named)

    async def _acknowledge(self, query_id: str) -> None:
        """Ends the sign of waiting on the button."""
        try:
            if self._api is not None:
                await self._api.call("answerCallbackQuery", {"callback_query_id": query_id})
        except BotApiFailed as failure:
            self._context.log.info("the press of a button was not acknowledged: %s", failure)

    async def _take_reaction(self, event: ReactionEvent) -> None:
        """Takes a reaction in. The platform does not say whose message it is on."""
        inbound, target = event.inbound, str(event.target)
        sent = self._sender is not None and self._sender.sent(int(inbound.to.removeprefix("telegram:")), event.target)
        to_us = sent or (inbound.peer.kind == "direct" and (inbound.to, target) not in self._received)
        whose = "your message" if to_us else "a message"
        inbound.text = reaction_text(inbound, event.emoji, whose, target, removed=event.removed)
        await submit_event(self._context, Reacted(inbound=inbound, to_us=to_us))

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        return await running(self._sender, "Telegram").send(route, message, key)

    async def typing(self, route: Route, on: bool) -> None:
        if on:  # The sign ends by itself.
            await running(self._sender, "Telegram").typing(route)

    async def draft(self, route: Route, draft_id: int, text: str) -> None:
        await running(self._sender, "Telegram").draft(route, draft_id, text)

    async def probe(self) -> dict[str, Any]:
        found = await running(self._api, "Telegram").call("getMe")
        bot = {name: found.get(name) for name in ("id", "username")} if isinstance(found, dict) else {}
        return {"ok": True, "bot": bot, "mode": "webhook" if self._settings.webhook_url else "polling"}


def _has_id(update: Any) -> bool:
    return isinstance(update, dict) and isinstance(update.get("update_id"), int)
