"""One Slack account: receives through Socket Mode or the Events API, and sends through the Web API.

A received event goes ``run`` → ``_listen`` → ``_on_envelope`` → ``_handle`` and is acknowledged once it is on disk.
With ``mode: "http"`` it goes ``_serve`` → ``_on_webhook`` → ``_handle``, and the response waits for the disk.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Mapping
from functools import partial
from urllib.parse import urljoin

import aiohttp
import msgspec

from openclaw.channels.base import (
    ChannelContext,
    Reconnect,
    WebhookAnswer,
    WebhookRequest,
    require_action,
    require_running,
    secret_of,
)
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.http import FETCH_S, converted, is_trusted_url, new_session, read_file
from openclaw.channels.media import NotFetched, files_to_send, safe_file_name, store_file
from openclaw.channels.slack import SlackTarget, target_of
from openclaw.channels.slack.connection import (
    AuthTest,
    Challenge,
    ConversationInfo,
    Directory,
    EmptyResponse,
    SlackApi,
    SlackRefused,
    SlackSocket,
    SocketFrame,
    SocketLost,
    decode_payload,
    is_signed,
    parse_request,
    raise_if_refused,
)
from openclaw.channels.slack.incoming import (
    STAMP,
    Bot,
    SlackEvent,
    SlackFile,
    SlashCommand,
    interpret,
    interpret_command,
    is_for_us,
)
from openclaw.channels.submit import (
    ConversationOrder,
    ConversationTasks,
    Posted,
    cancel_all,
    confirm_webhook,
    submit,
    submit_event,
)
from openclaw.clock import Backoff
from openclaw.config.schema.channels import SlackAccount
from openclaw.inbound.message import Media
from openclaw.messages import Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import REPEAT_MARK, OutgoingMessage, SendFailed, SendReceipt

RECONNECT = Backoff(initial_s=1.0, max_s=30.0)
CHECK_S = 300.0
MAX_BUSY = 64
"""Concurrent envelopes. Beyond this the socket is not read."""
MAX_REDIRECTS = 3
SEARCHED = 100
"""How many messages are searched for one that may have arrived."""
METADATA = "openclaw_part"
"""The metadata type of the agent's messages. Its payload is the key of the part."""
PLACE_ERRORS = frozenset(
    {"channel_not_found", "invalid_thread_ts", "is_archived", "not_in_channel", "thread_not_found"}
)
"""Errors of a single conversation. Others mean that the app cannot set a status anywhere."""
FILE_HOSTS = (".slack.com", ".slack-edge.com", ".slack-files.com")


decode_command = msgspec.json.Decoder(SlashCommand).decode


class PostedMessage(msgspec.Struct, frozen=True, kw_only=True):
    ts: str | None = None


class PartKey(msgspec.Struct, frozen=True, kw_only=True):
    key: str | None = None


class PartMetadata(msgspec.Struct, frozen=True, kw_only=True):
    event_type: str = ""
    event_payload: PartKey = PartKey()


class HistoryMessage(msgspec.Struct, frozen=True, kw_only=True):
    ts: str = ""
    metadata: PartMetadata = PartMetadata()


class ChannelHistory(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[object, ...] | None = None
    """Each a ``HistoryMessage``."""


class UploadUrl(msgspec.Struct, frozen=True, kw_only=True):
    upload_url: str = ""
    file_id: str = ""


class SharedFile(msgspec.Struct, frozen=True, kw_only=True):
    shares: Mapping[str, Mapping[str, tuple[PostedMessage, ...]]] = {}
    """Visibility → channel → the messages that show the file."""


class CompletedUpload(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[SharedFile, ...] = ()


class SlackChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: SlackAccount = context.account.settings
        self._http: aiohttp.ClientSession | None = None
        self._token = ""
        self._api: SlackApi | None = None
        self._directory: Directory | None = None
        self._bot = Bot(user="")
        self._submitted: RecentDict[str, None] = RecentDict()
        """Messages that are on disk. Slack sends a mention both as ``message`` and as ``app_mention``."""
        self._direct: RecentDict[str, str] = RecentDict()
        """User → their direct conversation."""
        self._order = ConversationOrder()
        self._shows_status = True

    # Receiving

    async def run(self) -> None:
        context, settings = self._context, self._settings
        self._token = await secret_of(context, settings.bot_token, "botToken", "SLACK_BOT_TOKEN")
        if settings.mode == "socket":
            secret = await secret_of(context, settings.app_token, "appToken", "SLACK_APP_TOKEN")
        else:
            secret = await secret_of(context, settings.signing_secret, "signingSecret", "SLACK_SIGNING_SECRET")
        tasks = ConversationTasks(context.log, MAX_BUSY)
        async with new_session() as http:
            self._http = http
            self._api = SlackApi(http, self._token, f"{settings.api_root.strip().rstrip('/')}/")
            self._directory = Directory(self._api, context.log)
            try:
                if settings.mode == "socket":
                    await self._listen(http, self._api, secret, tasks)
                else:
                    await self._serve(self._api, secret)
            finally:
                await tasks.close()
                self._api = self._http = None

    async def _listen(
        self, http: aiohttp.ClientSession, api: SlackApi, app_token: str, tasks: ConversationTasks
    ) -> None:
        """Stay connected until cancelled. A connection that Slack replaces is read until it closes."""
        reading: set[asyncio.Task[None]] = set()
        reconnect = Reconnect(self._context, RECONNECT)
        try:
            while True:
                try:
                    if not self._bot.user:
                        self._bot = await self._who_am_i(api)
                    socket = await SlackSocket.open(http, api, app_token, self._context.key("appToken"))
                    reconnect.connected()
                    task = asyncio.create_task(socket.receive_all(partial(self._on_envelope, tasks)))
                    task.add_done_callback(_retrieve_exception)
                    reading = {other for other in reading if not other.done()} | {task}
                    replaced = asyncio.create_task(socket.replace.wait())
                    await asyncio.wait({task, replaced}, return_when=asyncio.FIRST_COMPLETED)
                    replaced.cancel()
                    if task.done() and not socket.replace.is_set():
                        task.result()
                except (SocketLost, SendFailed) as lost:
                    await reconnect.failed(str(lost))
        finally:
            await cancel_all(reading)

    async def _serve(self, api: SlackApi, secret: str) -> None:
        """Serve Slack's requests, and check the token periodically."""
        stop_serving = None

        async def check() -> None:
            nonlocal stop_serving
            self._bot = await self._who_am_i(api)
            # Served only once our own id is known, or our own messages would look like those of others.
            stop_serving = stop_serving or self._context.serve(
                self._settings.webhook_path, lambda request: self._on_webhook(request, secret)
            )

        try:
            await Reconnect(self._context, RECONNECT).poll(check, CHECK_S)
        finally:
            if stop_serving is not None:
                stop_serving()

    async def _on_webhook(self, request: WebhookRequest, secret: str) -> WebhookAnswer:
        if request.method != "POST":
            return WebhookAnswer(status=405)
        if not await is_signed(request, secret, self._context.clock.now_ms() / 1000):
            return WebhookAnswer(status=401, text="the signature is not that of signingSecret")
        try:
            received = parse_request(request)
        except ValueError as error:
            self._context.log.warning("skipped an invalid request from Slack: %s", error)
            return WebhookAnswer()
        if received is None or isinstance(received, Challenge):
            return WebhookAnswer(text="" if received is None else received.challenge[:200])
        answer = await confirm_webhook(self._handle_in_order(received), self._context.log)
        # Slack would show the text of the response to the person who sent a command.
        return WebhookAnswer(status=answer.status) if answer.status == 200 else answer

    async def _handle_in_order(self, received: SlackEvent | SlashCommand) -> None:
        async with self._order.of(received.channel_id if isinstance(received, SlashCommand) else received.room):
            await self._handle(received)

    async def _who_am_i(self, api: SlackApi) -> Bot:
        try:
            auth = await api.request(api.client.auth_test(), AuthTest)
        except SendFailed as failure:
            raise_if_refused(failure, self._context.key("botToken"))
            raise
        return Bot(
            user=auth.user_id or "",
            bot_id=auth.bot_id or "",
            team=auth.team_id or "",
            account_id=self._context.account.id,
            allow_bots=self._allows_bots,
        )

    def _allows_bots(self, room: str) -> bool:
        rooms = self._settings.channels
        entry = rooms.get(room) or rooms.get("*")
        override = entry.allow_bots if entry is not None else None
        return self._settings.allow_bots if override is None else override

    async def _on_envelope(self, tasks: ConversationTasks, socket: SlackSocket, envelope: SocketFrame) -> None:
        """Queue an envelope after the earlier ones of its conversation. Slack redelivers it if it fails."""
        await tasks.room()
        try:
            match envelope.type:
                case "events_api":
                    event = decode_payload(envelope.payload).event
                    tasks.start(event.room, partial(self._handle_envelope, socket, envelope, event))
                case "slash_commands":
                    command = decode_command(envelope.payload)
                    tasks.start(command.channel_id, partial(self._handle_envelope, socket, envelope, command))
                case _:
                    await socket.acknowledge(envelope)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._context.log.warning("skipped an invalid event from Slack: %s", error)
            await socket.acknowledge(envelope)

    async def _handle_envelope(
        self, socket: SlackSocket, envelope: SocketFrame, received: SlackEvent | SlashCommand
    ) -> None:
        await self._handle(received)
        await socket.acknowledge(envelope)

    async def _handle(self, received: SlackEvent | SlashCommand) -> None:
        if isinstance(received, SlashCommand):
            await self._submit_command(received)
        elif is_for_us(received, self._bot):
            await self._submit(received)

    async def _submit(self, event: SlackEvent) -> None:
        key = f"{event.room} {event.ts}"
        is_post = event.subtype not in ("message_changed", "message_deleted") and event.item is None
        if is_post and key in self._submitted:
            return
        assert self._directory is not None
        interpreted = interpret(event, self._bot, await self._directory.surroundings(event))
        if isinstance(interpreted, Posted):
            inbound = interpreted.inbound
            inbound.inherits_parent = inbound.thread_has_session and self._settings.thread.inherit_parent
            if inbound.peer.kind == "direct":
                self._direct[inbound.sender.id] = event.room
        if interpreted is not None:
            await submit_event(self._context, interpreted, self._fetch)
        if isinstance(interpreted, Posted):
            self._submitted[key] = None

    async def _submit_command(self, command: SlashCommand) -> None:
        slash = self._settings.slash_command
        if not slash.enabled or command.command.strip("/").lower() != slash.name.strip("/").lower():
            self._context.log.info("the slash command %s is not ours", command.command[:80])
            return
        assert self._directory is not None
        around = await self._directory.look_up([command.user_id], command.channel_id, None)
        inbound = interpret_command(command, self._bot, around, ephemeral=slash.ephemeral)
        inbound.text = self._as_command(inbound.text)
        inbound.timestamp_ms = self._context.clock.now_ms()
        await submit(self._context, inbound)

    def _as_command(self, text: str) -> str:
        """Translate ``/openclaw status`` to ``/status``. Any other text is for the agent."""
        name = text.strip().partition(" ")[0].lower()
        names = {command.name for command in self._context.commands()}
        return f"/{text.strip()}" if name in names else text or "/help"

    async def _fetch(self, file: SlackFile) -> Media:
        """Download a file from Slack's hosts."""
        url = file.url_private_download or file.url_private or ""
        if file.mode in ("tombstone", "hidden_by_limit", "external") or not url:
            raise NotFetched("Slack does not have it" if file.mode != "external" else "it is stored elsewhere")
        try:
            async with asyncio.timeout(FETCH_S):
                data = await self._download(url, file.mime_type or "")
        except TimeoutError:
            raise NotFetched(f"it took longer than {FETCH_S:g} s") from None
        except aiohttp.ClientError as error:
            raise NotFetched(f"the connection to Slack broke ({type(error).__name__})") from None
        return await store_file(self._context, data, file)

    async def _download(self, url: str, mime: str) -> bytes:
        # Only the first request carries the token; a redirect may lead to another host.
        headers = {"Authorization": f"Bearer {self._token}"}
        for _ in range(MAX_REDIRECTS + 1):
            if not is_trusted_url(url, self._settings.api_root, FILE_HOSTS):
                raise NotFetched("its URL is not on a Slack server")
            http = require_running(self._http, "Slack")
            async with http.get(url, headers=headers, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    url, headers = urljoin(url, response.headers.get("Location", "")), {}
                    continue
                if response.status != 200:
                    raise NotFetched(f"Slack answered {response.status}")
                if response.content_type == "text/html" and not mime.startswith("text/"):
                    raise NotFetched("Slack shows its login page; the app needs the scope files:read")
                return await read_file(self._context, response)
        raise NotFetched("Slack redirects too often")

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        target, thread = target_of(route.to), _thread_of(route, message.reply_to_id)
        if message.act != "send":
            return await self._change(await self._room(target), message)
        if target.kind == "ephemeral" and not message.media:
            return await self._send_ephemeral(target, message, thread)
        room = await self._room(target)
        if message.media:
            return await self._send_files(room, message, thread)
        if message.possibly_duplicate:
            arrived = await self._find(room, thread, key)
            if arrived:
                return SendReceipt(message_id=arrived)
            if arrived is not None:
                message = msgspec.structs.replace(message, text=message.text.removeprefix(f"{REPEAT_MARK} "))
        client = self._running_api().client
        posted = await self._running_api().request(
            client.chat_postMessage(
                channel=room,
                text=self._rendered(message),
                thread_ts=thread,
                metadata={"event_type": METADATA, "event_payload": {"key": key}},
            ),
            PostedMessage,
        )
        return SendReceipt(message_id=posted.ts or "")

    async def _find(self, room: str, thread: str | None, key: str) -> str | None:
        """Return the id of the message with this key, ``""`` if it has not arrived, or None if unknown."""
        client = self._running_api().client
        try:
            if thread:
                call = client.conversations_replies(channel=room, ts=thread, limit=SEARCHED, include_all_metadata=True)
            else:
                call = client.conversations_history(channel=room, limit=SEARCHED, include_all_metadata=True)
            history = await self._running_api().request(call, ChannelHistory)
        except SendFailed as failure:
            self._context.log.info("cannot check whether a message has arrived: %s", failure)
            return None
        for value in history.messages or ():
            posted = converted(value, HistoryMessage)
            if posted.metadata.event_type == METADATA and posted.metadata.event_payload.key == key:
                return posted.ts
        return ""

    async def _send_ephemeral(self, target: SlackTarget, message: OutgoingMessage, thread: str | None) -> SendReceipt:
        """Answer a slash command. If the bot is not a channel member, write to the person directly."""
        client, text = self._running_api().client, self._rendered(message)
        try:
            await self._running_api().request(
                client.chat_postEphemeral(channel=target.id, user=target.only_for, text=text, thread_ts=thread),
                EmptyResponse,
            )
        except SlackRefused as refused:
            if refused.code not in ("not_in_channel", "channel_not_found", "user_not_in_channel"):
                raise
            room = await self._room(SlackTarget("user", target.only_for))
            await self._running_api().request(client.chat_postMessage(channel=room, text=text), EmptyResponse)
        return SendReceipt()

    async def _send_files(self, room: str, message: OutgoingMessage, thread: str | None) -> SendReceipt:
        """Upload the files, then share them with the text. Nobody sees anything before the last step."""
        api, http, uploaded = self._running_api(), require_running(self._http, "Slack"), list[dict[str, str | None]]()
        for media, data in await files_to_send(self._context, message):
            name = safe_file_name(media)
            try:
                call = api.client.files_getUploadURLExternal(filename=name, length=len(data))
                upload = await api.request(call, UploadUrl)
                async with asyncio.timeout(FETCH_S), http.post(upload.upload_url, data=data) as response:
                    status = response.status
            except SendFailed as failure:
                failure.maybe_sent = False
                raise
            except (TimeoutError, aiohttp.ClientError, ValueError) as error:
                raise SendFailed(f"{name} could not be uploaded ({type(error).__name__})", reached=False) from None
            if status != 200:
                raise SendFailed(f"Slack did not accept {name} (HTTP {status})")
            uploaded.append({"id": upload.file_id, "title": name})
        completed = await api.request(
            api.client.files_completeUploadExternal(
                files=uploaded,
                channel_id=room,
                thread_ts=thread,
                initial_comment=self._rendered(message) or None,
            ),
            CompletedUpload,
        )
        return SendReceipt(message_id=_shared_as(completed, room))

    async def _change(self, room: str, message: OutgoingMessage) -> SendReceipt:
        """Edit or delete one of the agent's messages, or react to or pin any message."""
        if not STAMP.fullmatch(message.target_id):
            raise SendFailed(f"{message.target_id!r} is not a Slack message id", permanent=True)
        actions = self._settings.actions
        switches = {"react": ("reactions", actions.reactions), "pin": ("pins", actions.pins)}
        switch, enabled = switches.get(message.act, ("messages", actions.messages))
        require_action(self._context, switch, enabled)
        client, ts = self._running_api().client, message.target_id
        match message.act:
            case "edit":
                call = client.chat_update(channel=room, ts=ts, text=self._rendered(message))
            case "delete":
                call = client.chat_delete(channel=room, ts=ts)
            case "pin":
                call = (client.pins_remove if message.remove else client.pins_add)(channel=room, timestamp=ts)
            case _:
                name = emoji_name(message.emoji)
                if name is None:
                    raise SendFailed(f"Slack has no emoji {message.emoji!r}; give its name", permanent=True)
                react = client.reactions_remove if message.remove else client.reactions_add
                call = react(channel=room, timestamp=ts, name=name)
        try:
            await self._running_api().request(call, EmptyResponse)
        except SlackRefused as refused:
            # An earlier attempt succeeded, and its response was lost.
            if refused.code not in ("already_reacted", "no_reaction", "already_pinned", "no_pin", "not_pinned") and (
                message.act != "delete" or refused.code != "message_not_found"
            ):
                raise
        return SendReceipt(message_id=ts)

    async def typing(self, route: Route, on: bool) -> None:
        """Set the status of a thread, which Slack shows for assistant apps.

        Outside a thread, set the status of the message that is being answered.
        """
        thread = _thread_of(route, route.reply_to_id)
        target = target_of(route.to)
        if thread is None or not self._shows_status or target.kind == "ephemeral":
            return
        room = await self._room(target)
        call = self._running_api().client.assistant_threads_setStatus(
            channel_id=room, thread_ts=thread, status="is typing..." if on else ""
        )
        try:
            await self._running_api().request(call, EmptyResponse)
        except SlackRefused as refused:
            self._shows_status = not refused.permanent or refused.code in PLACE_ERRORS
            raise

    async def probe(self) -> Mapping[str, object]:
        api = self._running_api()
        auth = await api.request(api.client.auth_test(), AuthTest)
        return {"ok": True, "bot": auth.user, "team": auth.team}

    def _rendered(self, message: OutgoingMessage) -> str:
        return render(message.text, "slack", tables=self._settings.markdown.tables).text

    async def _room(self, target: SlackTarget) -> str:
        """Return the id of a conversation, opening the direct one with a person if needed."""
        if target.kind != "user":
            return target.id
        if (direct := self._direct.get(target.id)) is not None:
            return direct
        api = self._running_api()
        try:
            opened = await api.request(api.client.conversations_open(users=target.id), ConversationInfo)
        except SendFailed as failure:
            failure.maybe_sent = False
            raise
        room = self._direct[target.id] = opened.channel.id or target.id
        return room

    def _running_api(self) -> SlackApi:
        return require_running(self._api, "Slack")


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a replaced connection, or asyncio logs that it was never retrieved."""
    if not task.cancelled():
        task.exception()


def _thread_of(route: Route, quoted: str | None) -> str | None:
    """Return the thread that a message belongs to. Quoting a message means answering in its thread."""
    for candidate in (route.thread_id, quoted):
        if candidate is not None and STAMP.fullmatch(str(candidate)):
            return str(candidate)
    return None


def _shared_as(completed: CompletedUpload, room: str) -> str:
    """Return the id of the message that shows uploaded files, or an empty string if Slack does not know it yet."""
    for shares in completed.files[0].shares.values() if completed.files else ():
        for posted in shares.get(room, ()):
            return posted.ts or ""
    return ""


# fmt: off
NAMES = {
    "👍": "+1", "👎": "-1", "❤": "heart", "😂": "joy", "🎉": "tada", "👏": "clap", "🙏": "pray", "🔥": "fire",
    "👀": "eyes", "✅": "white_check_mark", "✔": "heavy_check_mark", "❌": "x", "🚀": "rocket", "💯": "100",
    "🤔": "thinking_face", "😀": "grinning", "😃": "smiley", "😄": "smile", "😁": "grin", "😅": "sweat_smile",
    "🙂": "slightly_smiling_face", "😉": "wink", "😊": "blush", "😍": "heart_eyes", "😎": "sunglasses", "😢": "cry",
    "😭": "sob", "😡": "rage", "😱": "scream", "😴": "sleeping", "🤷": "shrug", "🙌": "raised_hands", "👋": "wave",
    "👌": "ok_hand", "💪": "muscle", "🤝": "handshake", "✨": "sparkles", "⭐": "star", "⚠": "warning",
    "❓": "question", "❗": "exclamation", "⏳": "hourglass_flowing_sand", "⌛": "hourglass", "🦞": "lobster",
    "🐛": "bug", "💡": "bulb", "📌": "pushpin", "📎": "paperclip", "🔒": "lock", "☕": "coffee", "🍕": "pizza",
    "🎂": "birthday", "💀": "skull", "🤖": "robot_face", "🧠": "brain", "🛑": "octagonal_sign", "🆗": "ok",
    "➕": "heavy_plus_sign",
}
# fmt: on
_NAME = re.compile(r"[a-z0-9_+'-]{1,100}")
_MODIFIERS = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
"""Variation selectors and skin tones, which Slack's names do not have."""


def emoji_name(emoji: str) -> str | None:
    """Return Slack's name of ``👍``, ``:+1:`` or ``+1``, or None if Slack cannot have such an emoji."""
    text = emoji.strip()
    if _NAME.fullmatch(name := text.strip(":").lower()):
        return name
    plain = _MODIFIERS.sub("", text)
    if plain in NAMES:
        return NAMES[plain]
    if len(plain) != 1:
        return None
    name = unicodedata.name(plain, "").lower().replace(" ", "_")
    return name if _NAME.fullmatch(name) else None
