"""One Telegram bot: receives updates by long polling or through a webhook, and sends through ``TelegramSender``.

An update goes ``_poll`` or ``_on_webhook`` → ``_handle`` → ``submit_event``. Only then is it confirmed, by the offset
of the next poll or by the response to the webhook.
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
    require_running,
    secret_of,
)
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.http import converted
from openclaw.channels.media import NotFetched, store_file
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
from openclaw.inbound.message import Media
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt

BOOKMARK = "last-update"
RETENTION_S = 24 * 3600.0
"""Telegram stores updates this long. An older offset is useless, and the ids may have been reset since."""
RECONNECT = Backoff(initial_s=2.0, max_s=30.0, factor=1.8, jitter=0.25)
MORE_PARTS_S = 0.5
"""The parts of an album arrive in separate updates within this time."""
MAX_PART_POLLS = 6
"""How often the server is polled for further parts of an album or a long text."""
CHATS_AT_ONCE = 8
WEBHOOK_S = 40.0
"""Telegram delivers an update again if it is not confirmed in time."""
CHECK_WEBHOOK_S = 300.0
MAX_COMMANDS = 100
MAX_DESCRIPTION = 256
CONFLICT = (
    "another program reads the updates of this bot (409 Conflict): stop it, or use a separate bot for this Gateway;"
    " retrying"
)
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_OFFSET = re.compile(r"\d+:\d+", re.ASCII)


class WebhookInfo(msgspec.Struct, frozen=True, kw_only=True):
    url: str | None = None
    last_error_message: str | None = None


class TelegramChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: TelegramAccount = context.account.settings
        self._bookmark = context.bookmark(BOOKMARK, is_id=lambda text: _OFFSET.fullmatch(text) is not None)
        self._api: BotApi | None = None
        self._sender: TelegramSender | None = None
        self._own = OwnBot(id=0)
        self._commands: frozenset[str] = frozenset()
        self._received: RecentDict[tuple[str, str], None] = RecentDict()
        """The conversations and ids of received messages."""
        self._reconnect = Reconnect(context, RECONNECT)
        self._order = ConversationOrder()
        self._waiting: list[tuple[Any, asyncio.Future[None]]] = []

    async def run(self) -> None:
        token = await self._token()
        self._api = api = await asyncio.to_thread(open_api, token, self._settings)
        try:
            await self._bookmark.load()
            self._own = await self._get_me(api)
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
        secret = SecretRef(file=settings.token_file) if settings.token_file else settings.bot_token
        return await secret_of(self._context, secret, "botToken", "TELEGRAM_BOT_TOKEN")

    # Connecting

    async def _get_me(self, api: BotApi) -> OwnBot:
        """Request our own user until the server answers."""
        while True:
            try:
                return msgspec.convert(await api.call("getMe"), OwnBot)
            except msgspec.ValidationError:
                raise NotConfigured(f"{self._settings.api_root} is not a Bot API: its getMe returns no bot") from None
            except BotApiFailed as failure:
                await self._pause(failure)

    async def _pause(self, failure: BotApiFailed) -> None:
        """Report the failure and wait before the next attempt. Raises ``NotConfigured`` for a rejected token."""
        if failure.kind == "token":
            raise NotConfigured(str(failure)) from None
        reason = CONFLICT if failure.kind == "conflict" else str(failure)
        await self._reconnect.failed(reason, failure.retry_after_s or 0.0)

    async def _register_commands(self, api: BotApi) -> None:
        """Set the bot's command menu. A failure is only logged."""
        menu = {
            name: command.description
            for command in self._context.commands()
            if _COMMAND.fullmatch(name := command.name.lower().replace("-", "_"))
        }
        self._commands = frozenset(menu)
        for own in self._settings.custom_commands:
            menu.setdefault(own.command.lower().lstrip("/"), own.description)
        commands = [
            {"command": name, "description": text.strip()[:MAX_DESCRIPTION] or name}
            for name, text in list(menu.items())[:MAX_COMMANDS]
        ]
        try:
            if commands:
                await api.call("setMyCommands", {"commands": commands})
            else:
                await api.call("deleteMyCommands")
        except BotApiFailed as failure:
            self._context.log.warning("the command menu was not set: %s", failure)

    # Long polling

    async def _poll(self, api: BotApi) -> None:
        connected = False
        offset, moved_at = self._first_offset(), self._context.clock.monotonic()
        while True:
            if self._context.clock.monotonic() - moved_at > RETENTION_S:
                offset = None
            try:
                if not connected:
                    await self._end_webhook(api)
                # The first poll is short, to learn quickly whether the server answers.
                updates = await api.updates(offset, POLL_S if connected else 0)
                updates = await self._with_all_parts(api, offset, updates)
            except BotApiFailed as failure:
                connected = False
                await self._pause(failure)
                continue
            if not connected:
                self._reconnect.connected()
                connected = True
            await self._handle_all(updates)
            if ids := _update_ids(updates):
                offset, moved_at = max(ids) + 1, self._context.clock.monotonic()
                self._bookmark.move_to(f"{self._own.id}:{max(ids)}")

    async def _end_webhook(self, api: BotApi) -> None:
        """Remove the bot's webhook, which prevents polling. A server without webhooks needs no removal."""
        try:
            await api.call("deleteWebhook", {"drop_pending_updates": False})
        except BotApiFailed as failure:
            if failure.kind != "refused":
                raise
            self._context.log.info("the bot's webhook was not removed: %s", failure)

    def _first_offset(self) -> int | None:
        """Return the offset after a restart, or None if the bookmark is another bot's or too old."""
        bot, _, last = self._bookmark.last_id.partition(":")
        now = self._context.clock.now_ms()
        age_s = (now - (self._bookmark.moved_at_ms or now)) / 1000
        return int(last) + 1 if bot == str(self._own.id) and last.isdigit() and age_s < RETENTION_S else None

    async def _with_all_parts(self, api: BotApi, offset: int | None, updates: list[Any]) -> list[Any]:
        """Return the updates, extended by the missing parts if the last one belongs to an album or a long text.

        They stay unconfirmed meanwhile, so nothing is lost if the Gateway stops.
        """
        for _ in range(MAX_PART_POLLS):
            if not updates or not may_continue(self._event(updates[-1])):
                return updates
            await self._context.clock.sleep(MORE_PARTS_S)
            received = set(_update_ids(updates))
            polled = await api.updates(offset, 0)
            new = [update for update in polled if _has_id(update) and update["update_id"] not in received]
            if not new:
                return updates
            updates = [*updates, *new]
        return updates

    async def _handle_all(self, updates: Sequence[Any]) -> None:
        """Handle the updates of each chat in order, and of several chats concurrently.

        The migration of a group to a new id is a barrier, because both ids are the same conversation.
        """
        chats: dict[str, list[TelegramEvent]] = {}
        for update in updates:
            match self._event(update):
                case None:
                    pass
                case MovedEvent() as moved:
                    await self._handle_chats(chats)
                    chats = {}
                    await self._handle(moved)
                case event:
                    chats.setdefault(event.inbound.to, []).append(event)
        await self._handle_chats(chats)

    async def _handle_chats(self, chats: Mapping[str, list[TelegramEvent]]) -> None:
        limit = asyncio.Semaphore(CHATS_AT_ONCE)

        async def handle_chat(events: list[TelegramEvent]) -> None:
            async with limit:
                for event in joined(events):
                    await self._handle(event)

        async with asyncio.TaskGroup() as group:
            for events in chats.values():
                group.create_task(handle_chat(events))

    def _event(self, update: Any) -> TelegramEvent | None:
        try:
            return interpret(msgspec.convert(update, Update), self._own, self._context.account.id, self._commands)
        except (msgspec.ValidationError, RecursionError) as error:
            self._context.log.warning("skipped an invalid update from Telegram: %s", error)
            return None

    # The webhook

    async def _serve_webhook(self, api: BotApi, url: str) -> None:
        secret = await secret_of(self._context, self._settings.webhook_secret, "webhookSecret")
        if not _SECRET.fullmatch(secret):
            raise NotConfigured("webhookSecret must be 1 to 256 letters, digits, _ or -")

        async def answer(request: WebhookRequest) -> WebhookAnswer:
            return await self._on_webhook(request, secret)

        stop_serving = self._context.serve(self._settings.webhook_path, answer)
        try:
            await self._maintain_webhook(api, url, secret)
        finally:
            stop_serving()

    async def _maintain_webhook(self, api: BotApi, url: str, secret: str) -> None:
        """Register the webhook, and check periodically that it is still registered."""
        registration = {"url": url, "secret_token": secret, "allowed_updates": list(UPDATE_KINDS)}
        connected = False
        while True:
            try:
                info = await self._webhook_info(api, url) if connected else WebhookInfo()
                if info.url != url:
                    await api.call("setWebhook", registration)
                elif info.last_error_message:
                    problem = info.last_error_message
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

    async def _webhook_info(self, api: BotApi, url: str) -> WebhookInfo:
        """Return the registered webhook. A server without ``getWebhookInfo`` is assumed to have ours."""
        try:
            return converted(await api.call("getWebhookInfo"), WebhookInfo)
        except BotApiFailed as failure:
            if failure.kind != "refused":
                raise
            return WebhookInfo(url=url)

    async def _on_webhook(self, request: WebhookRequest, secret: str) -> WebhookAnswer:
        if not secrets_equal(request.headers.get("x-telegram-bot-api-secret-token", ""), secret):
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
                    await self._handle_with_parts(update)
                elif event is not None:
                    await self._handle_in_order(event)
        except TimeoutError:
            return WebhookAnswer(status=503, text="try again")
        return WebhookAnswer(text="ok")

    async def _handle_in_order(self, event: TelegramEvent) -> None:
        """Handle an update after the earlier ones of its chat. A migration also blocks the group's new id."""
        if not isinstance(event, MovedEvent):
            async with self._order.of(event.inbound.to):
                await self._handle(event)
            return
        async with self._order.of(f"telegram:{event.new_chat}"), self._order.of(f"telegram:{event.chat}"):
            await self._handle(event)

    async def _handle_with_parts(self, update: Any) -> None:
        """Wait briefly for further parts. The first caller handles all updates, and the others wait for it."""
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((update, handled))
        if len(self._waiting) > 1:
            await handled
            return
        waiting: list[tuple[Any, asyncio.Future[None]]] = []
        try:
            await self._context.clock.sleep(MORE_PARTS_S)
            waiting, self._waiting = self._waiting, []
            waiting.sort(key=lambda pair: pair[0]["update_id"] if _has_id(pair[0]) else 0)
            await self._handle_all([update for update, _ in waiting])
        except BaseException:
            for _, future in waiting or self._waiting:
                if future is not handled and not future.done():
                    future.set_exception(TimeoutError())
            self._waiting = [] if not waiting else self._waiting
            raise
        for _, future in waiting:
            if not future.done():
                future.set_result(None)

    # One update

    async def _handle(self, event: TelegramEvent) -> None:
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
                await self._submit_reaction(event)
            case MovedEvent(chat=chat, new_chat=new_chat):
                self._context.log.info("group %d became supergroup %d", chat, new_chat)
                if self._sender is not None:
                    self._sender.moved(chat, new_chat)
                await self._context.moved(str(chat), str(new_chat))

    async def _fetch(self, file: FileToFetch) -> Media:
        try:
            data, path = await require_running(self._api, "Telegram").fetch_file(self._context, file.file_id)
        except SendFailed as failure:
            raise NotFetched(str(failure)) from None
        named = msgspec.structs.replace(file, name=file.name or PurePosixPath(path).name)
        return await store_file(self._context, data, named)

    async def _acknowledge(self, query_id: str) -> None:
        """Stop the button's progress indicator."""
        try:
            if self._api is not None:
                await self._api.call("answerCallbackQuery", {"callback_query_id": query_id})
        except BotApiFailed as failure:
            self._context.log.info("the press of a button was not acknowledged: %s", failure)

    async def _submit_reaction(self, event: ReactionEvent) -> None:
        """Submit a reaction. Telegram does not report whose message it is on."""
        inbound, target = event.inbound, str(event.target)
        sent = self._sender is not None and self._sender.sent(int(inbound.to.removeprefix("telegram:")), event.target)
        to_us = sent or (inbound.peer.kind == "direct" and (inbound.to, target) not in self._received)
        whose = "your message" if to_us else "a message"
        inbound.text = reaction_text(inbound, event.emoji, whose, target, removed=event.removed)
        await submit_event(self._context, Reacted(inbound=inbound, to_us=to_us))

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        return await require_running(self._sender, "Telegram").send(route, message, key)

    async def typing(self, route: Route, on: bool) -> None:
        if on:  # The indicator expires by itself.
            await require_running(self._sender, "Telegram").typing(route)

    async def draft(self, route: Route, draft_id: int, text: str) -> None:
        await require_running(self._sender, "Telegram").draft(route, draft_id, text)

    async def probe(self) -> Mapping[str, object]:
        user = await require_running(self._api, "Telegram").call("getMe")
        bot = {name: user.get(name) for name in ("id", "username")} if isinstance(user, dict) else {}
        return {"ok": True, "bot": bot, "mode": "webhook" if self._settings.webhook_url else "polling"}


def _has_id(update: Any) -> bool:
    return isinstance(update, dict) and isinstance(update.get("update_id"), int)


def _update_ids(updates: Sequence[Any]) -> list[int]:
    return [update["update_id"] for update in updates if _has_id(update)]
