"""One Slack account: receives through Socket Mode or the Events API, and sends through the Web API.

A received event goes ``run`` → ``_listen`` → ``_take`` → ``_handle``, which acknowledges it once it is on disk. With
``mode: "http"`` it is ``_serve`` → ``_answer`` → ``_told``, and the answer to Slack's request waits for the disk.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from functools import partial
from typing import Any
from urllib.parse import urljoin

import aiohttp
import msgspec

from openclaw.channels.base import (
    ChannelContext,
    Reconnect,
    WebhookAnswer,
    WebhookRequest,
    need_action,
    running,
    secret_of,
)
from openclaw.channels.bookmark import Remembered
from openclaw.channels.http import FETCH_S, is_on, new_session, read_file
from openclaw.channels.media import NotFetched, files_to_send, kept_file, safe_file_name
from openclaw.channels.slack import SlackTarget, target_of
from openclaw.channels.slack.connection import (
    Challenge,
    Directory,
    SlackApi,
    SlackRefused,
    SlackSocket,
    SocketFrame,
    SocketLost,
    decode_payload,
    is_signed,
    raise_if_refused,
    read_request,
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
from openclaw.inbound.message import Media, Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import REPEAT_MARK, OutgoingMessage, SendFailed, SendReceipt

RECONNECT = Backoff(initial_s=1.0, max_s=30.0)
CHECK_S = 300.0
MAX_BUSY = 64
"""Envelopes that are handled at the same time. When there are more, the socket is not read on."""
MAX_REDIRECTS = 3
SEARCHED = 100
"""Messages of a conversation that are searched for one that may have arrived."""
METADATA = "openclaw_part"
"""The type of the metadata that every message of ours has. Its payload is the key of the part."""
PLACE_ERRORS = frozenset(
    {"channel_not_found", "invalid_thread_ts", "is_archived", "not_in_channel", "thread_not_found"}
)
"""Errors that concern one conversation. Others mean that the app cannot set a status anywhere."""
FILE_HOSTS = (".slack.com", ".slack-edge.com", ".slack-files.com")


_command_of = msgspec.json.Decoder(SlashCommand).decode


class SlackChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: SlackAccount = context.account.settings
        self._http: aiohttp.ClientSession | None = None
        self._token = ""
        self._api: SlackApi | None = None
        self._directory: Directory | None = None
        self._bot = Bot(user="")
        self._taken: Remembered[str, bool] = Remembered()
        """Messages that are on disk. Slack tells of the same post as ``message`` and as ``app_mention``."""
        self._direct: Remembered[str, str] = Remembered()
        """User → the direct conversation with them."""
        self._turns = ConversationOrder()
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
        """Keeps a connection until cancelled. While Slack replaces one, the old one is read to its end."""
        reading: set[asyncio.Task[None]] = set()
        reconnect = Reconnect(self._context, RECONNECT)
        try:
            while True:
                try:
                    if not self._bot.user:
                        self._bot = await self._who_am_i(api)
                    socket = await SlackSocket.open(http, api, app_token, self._context.key("appToken"))
                    reconnect.connected()
                    task = asyncio.create_task(socket.envelopes(partial(self._take, tasks)))
                    task.add_done_callback(_forget_end)
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
        """Takes Slack's requests, and tries the token from time to time."""
        end = None

        async def check() -> None:
            nonlocal end
            self._bot = await self._who_am_i(api)
            # Before we know who we are, our own messages could not be told from those of others.
            end = end or self._context.serve(self._settings.webhook_path, lambda request: self._answer(request, secret))

        try:
            await Reconnect(self._context, RECONNECT).while_checked(check, CHECK_S)
        finally:
            if end is not None:
                end()

    async def _answer(self, request: WebhookRequest, secret: str) -> WebhookAnswer:
        if request.method != "POST":
            return WebhookAnswer(status=405)
        if not await is_signed(request, secret, self._context.clock.now_ms() / 1000):
            return WebhookAnswer(status=401, text="the signature is not that of signingSecret")
        try:
            told = read_request(request)
        except ValueError as error:
            self._context.log.warning("a request of Slack was not understood and is passed over: %s", error)
            return WebhookAnswer()
        if told is None or isinstance(told, Challenge):
            return WebhookAnswer(text="" if told is None else told.challenge[:200])
        answer = await confirm_webhook(self._told(told), self._context.log)
        # Slack shows the person who gave a command what the answer says.
        return WebhookAnswer(status=answer.status) if answer.status == 200 else answer

    async def _told(self, what: SlackEvent | SlashCommand) -> None:
        async with self._turns.of(what.channel_id if isinstance(what, SlashCommand) else what.room):
            await self._take_in(what)

    async def _who_am_i(self, api: SlackApi) -> Bot:
        try:
            answer = await api.ask(api.client.auth_test())
        except SendFailed as failure:
            raise_if_refused(failure, self._context.key("botToken"))
            raise
        return Bot(
            user=str(answer.get("user_id") or ""),
            bot_id=str(answer.get("bot_id") or ""),
            team=str(answer.get("team_id") or ""),
            account_id=self._context.account.id,
            allow_bots=self._hears_bots,
        )

    def _hears_bots(self, room: str) -> bool:
        rooms = self._settings.channels
        entry = rooms.get(room) or rooms.get("*")
        own = entry.allow_bots if entry is not None else None
        return self._settings.allow_bots if own is None else own

    async def _take(self, tasks: ConversationTasks, socket: SlackSocket, envelope: SocketFrame) -> None:
        """Gives an envelope its place behind the earlier ones of its conversation. What fails is delivered again."""
        await tasks.room()
        try:
            match envelope.type:
                case "events_api":
                    event = decode_payload(envelope.payload).event
                    tasks.start(event.room, partial(self._handle, socket, envelope, event))
                case "slash_commands":
                    command = _command_of(envelope.payload)
                    tasks.start(command.channel_id, partial(self._handle, socket, envelope, command))
                case _:
                    await socket.acknowledge(envelope)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._context.log.warning("an event of Slack was not understood and is passed over: %s", error)
            await socket.acknowledge(envelope)

    async def _handle(self, socket: SlackSocket, envelope: SocketFrame, what: SlackEvent | SlashCommand) -> None:
        await self._take_in(what)
        await socket.acknowledge(envelope)

    async def _take_in(self, what: SlackEvent | SlashCommand) -> None:
        if isinstance(what, SlashCommand):
            await self._hear_command(what)
        elif is_for_us(what, self._bot):
            await self._hear(what)

    async def _hear(self, event: SlackEvent) -> None:
        key = f"{event.room} {event.ts}"
        posted = event.subtype not in ("message_changed", "message_deleted") and event.item is None
        if posted and self._taken.get(key):
            return
        assert self._directory is not None
        found = interpret(event, self._bot, await self._directory.around(event))
        if isinstance(found, Posted):
            inbound = found.inbound
            inbound.inherits_parent = inbound.thread_has_session and self._settings.thread.inherit_parent
            if inbound.peer.kind == "direct":
                self._direct[inbound.sender.id] = event.room
        if found is not None:
            await submit_event(self._context, found, self._fetch)
        if isinstance(found, Posted):
            self._taken[key] = True

    async def _hear_command(self, command: SlashCommand) -> None:
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
        """``/openclaw status`` is our ``/status``. Other words are for the agent."""
        word = text.strip().partition(" ")[0].lower()
        names = {command.name for command in self._context.commands()}
        return f"/{text.strip()}" if word in names else text or "/help"

    async def _fetch(self, file: SlackFile) -> Media:
        """Reads a file. Only Slack's own hosts are asked, and only the first request has the token."""
        address = file.url_private_download or file.url_private or ""
        if file.mode in ("tombstone", "hidden_by_limit", "external") or not address:
            raise NotFetched("Slack does not have it" if file.mode != "external" else "it is kept elsewhere")
        try:
            async with asyncio.timeout(FETCH_S):
                data = await self._download(address, file.mime_type or "")
        except TimeoutError:
            raise NotFetched(f"it took longer than {FETCH_S:g} s") from None
        except aiohttp.ClientError as error:
            raise NotFetched(f"the connection to Slack broke ({type(error).__name__})") from None
        return await kept_file(self._context, data, file)

    async def _download(self, address: str, mime: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}"}
        for _ in range(MAX_REDIRECTS + 1):
            if not is_on(address, self._settings.api_root, FILE_HOSTS):
                raise NotFetched("its address is not one of Slack's")
            http = running(self._http, "Slack")
            async with http.get(address, headers=headers, allow_redirects=False) as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    address, headers = urljoin(address, answer.headers.get("Location", "")), {}
                    continue
                if answer.status != 200:
                    raise NotFetched(f"Slack answered {answer.status}")
                if answer.content_type == "text/html" and not mime.startswith("text/"):
                    raise NotFetched("Slack shows its login page; the app needs the scope files:read")
                return await read_file(self._context, answer)
        raise NotFetched("Slack redirects too often")

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        target, thread = target_of(route.to or ""), _thread_of(route, message.reply_to_id)
        if message.act != "send":
            return await self._change(await self._room(target), message)
        if target.kind == "ephemeral" and not message.media:
            return await self._whisper(target, message, thread)
        room = await self._room(target)
        if message.media:
            return await self._send_files(room, message, thread)
        if message.possibly_duplicate:
            found = await self._find(room, thread, key)
            if found:
                return SendReceipt(message_id=found)
            if found is not None:
                message = msgspec.structs.replace(message, text=message.text.removeprefix(f"{REPEAT_MARK} "))
        client = self._running_api().client
        answer = await self._running_api().ask(
            client.chat_postMessage(
                channel=room,
                text=self._rendered(message),
                thread_ts=thread,
                metadata={"event_type": METADATA, "event_payload": {"key": key}},
            )
        )
        return SendReceipt(message_id=str(answer.get("ts") or ""))

    async def _find(self, room: str, thread: str | None, key: str) -> str | None:
        """Whether a message with this key has arrived: its id, ``""`` if not, None if Slack does not tell."""
        client = self._running_api().client
        try:
            if thread:
                call = client.conversations_replies(channel=room, ts=thread, limit=SEARCHED, include_all_metadata=True)
            else:
                call = client.conversations_history(channel=room, limit=SEARCHED, include_all_metadata=True)
            answer = await self._running_api().ask(call)
        except SendFailed as failure:
            self._context.log.info("whether a message has arrived cannot be looked up: %s", failure)
            return None
        for posted in answer.get("messages") or ():
            match posted:
                case {"ts": str(ts), "metadata": {"event_type": kind, "event_payload": {"key": found}}}:
                    if kind == METADATA and found == key:
                        return ts
                case _:
                    pass
        return ""

    async def _whisper(self, target: SlackTarget, message: OutgoingMessage, thread: str | None) -> SendReceipt:
        """Answers a slash command. Where the bot is no member it cannot, so it writes to the person directly."""
        client, text = self._running_api().client, self._rendered(message)
        try:
            await self._running_api().ask(
                client.chat_postEphemeral(channel=target.id, user=target.only_for, text=text, thread_ts=thread)
            )
        except SlackRefused as refused:
            if refused.code not in ("not_in_channel", "channel_not_found", "user_not_in_channel"):
                raise
            room = await self._room(SlackTarget("user", target.only_for))
            await self._running_api().ask(client.chat_postMessage(channel=room, text=text))
        return SendReceipt()

    async def _send_files(self, room: str, message: OutgoingMessage, thread: str | None) -> SendReceipt:
        """Uploads the files, then shows them with the text. Until the last step nobody sees anything."""
        api, http, uploaded = self._running_api(), running(self._http, "Slack"), list[dict[str, str | None]]()
        for media, data in await files_to_send(self._context, message):
            name = safe_file_name(media)
            try:
                place = await api.ask(api.client.files_getUploadURLExternal(filename=name, length=len(data)))
                async with asyncio.timeout(FETCH_S), http.post(str(place.get("upload_url")), data=data) as answer:
                    status = answer.status
            except SendFailed as failure:
                failure.maybe_sent = False
                raise
            except (TimeoutError, aiohttp.ClientError, ValueError) as error:
                raise SendFailed(f"{name} could not be uploaded ({type(error).__name__})", reached=False) from None
            if status != 200:
                raise SendFailed(f"Slack did not take {name} (HTTP {status})")
            uploaded.append({"id": str(place.get("file_id")), "title": name})
        answer = await api.ask(
            api.client.files_completeUploadExternal(
                files=uploaded,
                channel_id=room,
                thread_ts=thread,
                initial_comment=self._rendered(message) or None,
            )
        )
        return SendReceipt(message_id=_shared_as(answer, room))

    async def _change(self, room: str, message: OutgoingMessage) -> SendReceipt:
        """Edits or deletes an earlier message of ours, or reacts to one of anybody, or pins it."""
        if not STAMP.fullmatch(message.target_id):
            raise SendFailed(f"{message.target_id!r} is no id of a Slack message", permanent=True)
        actions = self._settings.actions
        switches = {"react": ("reactions", actions.reactions), "pin": ("pins", actions.pins)}
        switch, on = switches.get(message.act, ("messages", actions.messages))
        need_action(self._context, switch, on)
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
            await self._running_api().ask(call)
        except SlackRefused as refused:
            # It was done before, by an earlier try whose answer did not arrive.
            if refused.code not in ("already_reacted", "no_reaction", "already_pinned", "no_pin", "not_pinned") and (
                message.act != "delete" or refused.code != "message_not_found"
            ):
                raise
        return SendReceipt(message_id=ts)

    async def typing(self, route: Route, on: bool) -> None:
        """Sets the status of a thread, which Slack shows for apps that are assistants.

        Outside of a thread it is the status of the message that is answered.
        """
        thread = _thread_of(route, route.reply_to_id)
        target = target_of(route.to or "")
        if thread is None or not self._shows_status or target.kind == "ephemeral":
            return
        room = await self._room(target)
        call = self._running_api().client.assistant_threads_setStatus(
            channel_id=room, thread_ts=thread, status="is typing..." if on else ""
        )
        try:
            await self._running_api().ask(call)
        except SlackRefused as refused:
            self._shows_status = not refused.permanent or refused.code in PLACE_ERRORS
            raise

    async def probe(self) -> dict[str, Any]:
        api = self._running_api()
        answer = await api.ask(api.client.auth_test())
        return {"ok": True, "bot": answer.get("user"), "team": answer.get("team")}

    def _rendered(self, message: OutgoingMessage) -> str:
        return render(message.text, "slack", tables=self._settings.markdown.tables).text

    async def _room(self, target: SlackTarget) -> str:
        """The id of the conversation. That with a person is opened."""
        if target.kind != "user":
            return target.id
        if (known := self._direct.get(target.id)) is not None:
            return known
        try:
            answer = await self._running_api().ask(self._running_api().client.conversations_open(users=target.id))
        except SendFailed as failure:
            failure.maybe_sent = False
            raise
        room = str((answer.get("channel") or {}).get("id") or target.id)
        self._direct[target.id] = room
        return room

    def _running_api(self) -> SlackApi:
        return running(self._api, "Slack")


def _forget_end(task: asyncio.Task[None]) -> None:
    """How a replaced connection ends does not matter. Without this asyncio complains that nobody looked."""
    if not task.cancelled():
        task.exception()


def _thread_of(route: Route, quoted: str | None) -> str | None:
    """Return the thread that a message belongs to. Quoting a message means answering in its thread."""
    for given in (route.thread_id, quoted):
        if given is not None and STAMP.fullmatch(str(given)):
            return str(given)
    return None


def _shared_as(answer: dict[str, Any], room: str) -> str:
    """The id of the message that shows uploaded files. Slack does not always know it yet."""
    match answer:
        case {"files": [{"shares": {**shares}}, *_]}:
            for places in shares.values():
                match places.get(room) if isinstance(places, dict) else None:
                    case [{"ts": str(ts)}, *_]:
                        return ts
                    case _:
                        pass
        case _:
            pass
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
_SIGNS_APART = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
"""Variation selectors and skin tones. Slack's names have none."""


def emoji_name(emoji: str) -> str | None:
    """The name of ``👍``, ``:+1:`` or ``+1``. None if Slack can have no such emoji."""
    text = emoji.strip()
    if _NAME.fullmatch(name := text.strip(":").lower()):
        return name
    sign = _SIGNS_APART.sub("", text)
    if sign in NAMES:
        return NAMES[sign]
    if len(sign) != 1:
        return None
    name = unicodedata.name(sign, "").lower().replace(" ", "_")
    return name if _NAME.fullmatch(name) else None
