"""One IRC account: stays connected to its server and channels, receives messages and sends lines.

A message goes ``_listen`` → ``_handle`` → the queue → ``_submit_queued``. The queue decouples them so that the server's
pings are answered while the disk is slow. IRC has no acknowledgement, so messages in the queue or on the wire are lost
when the process is killed. ``told_once`` keeps that window short: such a message waits for the disk and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import secrets
import ssl
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from openclaw.channels.base import ChannelContext, NotConfigured, Reconnect, require_running, secret_of
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.irc import IrcAddress, parse_address
from openclaw.channels.irc.connection import (
    BadLine,
    ConnectionLost,
    IrcConnection,
    Line,
    Login,
    Self,
    is_channel,
    is_nick,
    lines_of,
    text_room,
    without_formats,
)
from openclaw.channels.submit import cancel_all, submit
from openclaw.clock import Backoff, iso_ms, wait_within
from openclaw.config.schema.base import SecretRef
from openclaw.config.schema.channels import IrcAccount
from openclaw.inbound.message import Inbound, Peer, Quoted, Sender
from openclaw.messages import Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.text import shortened

MAX_TEXT = 16 * 1024
_NAME_SIGNS = "_-[]\\`^{|}"
"""Characters of nicknames besides letters and digits. Our nickname inside a longer one does not count as a mention."""
RECONNECT = Backoff(initial_s=2.0, max_s=300.0)
JOIN_AGAIN = Backoff(initial_s=5.0, max_s=300.0)
STABLE_S = 60.0
"""This long on the server or in a channel resets its backoff."""
MAX_QUEUED = 1000
"""Messages waiting for the Gateway. When the queue is full, reading stops, and the server buffers or disconnects."""
SETTLE_S = 3.0
SERVICE_ANSWERS_S = 5.0
FAREWELL = "Goodbye"
_NO_SUCH_NICK = "401"
_NOT_IN_CHANNEL = frozenset({"403", "404", "442"})
_JOIN_REFUSED = frozenset({"403", "405", "471", "473", "474", "475", "476", "477", "489", "520"})


class Sending(msgspec.Struct):
    """The message being sent, and the server's replies to it."""

    target: str
    labels: set[str] = msgspec.field(default_factory=set[str])
    code: str = ""
    """The numeric of the server's error reply."""
    reason: str = ""
    message_id: str = ""
    people: dict[str, str] | None = None
    """Nickname → ``user@host``, from the server's reply to ``USERHOST``. None if it did not reply."""


class IrcChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: IrcAccount = context.account.settings
        self._channels = {name.strip().lower(): name.strip() for name in self._settings.channels}
        self._connection: IrcConnection | None = None
        self._service_password = ""
        self._service_answered = asyncio.Event()
        self._waiting: asyncio.Queue[Inbound] = asyncio.Queue(MAX_QUEUED)
        self._unstored = 0
        """Messages that were read and are not on disk yet."""
        self._joined: dict[str, float] = {}
        """Joined channel → when it was joined."""
        self._join_tries: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._sending: Sending | None = None
        self._own_ids: RecentDict[str, None] = RecentDict()
        self._last_id, self._repeats, self._counted = "", 0, 0

    # The connection

    async def run(self) -> None:
        login = await self._make_login()
        submitting = asyncio.create_task(self._submit_queued())
        try:
            await self._stay_connected(login)
        finally:
            # IRC never repeats a message, so the queue gets a moment to drain to disk.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._waiting.join()
            await cancel_all([submitting])
            if self._unstored:
                self._context.log.error("%d IRC messages could not be stored and are lost", self._unstored)

    async def _stay_connected(self, login: Login) -> None:
        reconnect = Reconnect(self._context, RECONNECT, STABLE_S)
        while True:
            try:
                await self._session(login, reconnect)
            except ConnectionLost as lost:
                await reconnect.failed(str(lost))

    async def _session(self, login: Login, reconnect: Reconnect) -> None:
        """Run one connection until it ends, which raises ``ConnectionLost``."""
        connection = await IrcConnection.open(login, self._context.clock)
        try:
            await connection.login()
            self._connection, self._last_id, self._repeats = connection, "", 0
            reconnect.connected()
            listening = asyncio.create_task(self._listen(connection))
            alive = asyncio.create_task(connection.stay_alive())
            self._tasks |= {listening, alive}
            self._spawn(self._enter(connection, login))
            done, _ = await asyncio.wait({listening, alive}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._connection = None
            self._joined.clear()
            tasks = list(self._tasks)
            self._tasks.clear()
            await cancel_all(tasks)
            await connection.close(FAREWELL)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that is cancelled when the connection ends."""

        async def guarded() -> None:
            try:
                await work
            except ConnectionLost:
                pass  # The listening task reports it.
            except BadLine as error:
                self._context.log.warning("a line for the server is invalid: %s", error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _enter(self, connection: IrcConnection, login: Login) -> None:
        """Identify to the network's services and join the channels."""
        service = self._settings.nickserv
        if service and service.enabled and self._service_password:
            self._service_answered.clear()
            if not connection.me.is_me(login.nick):
                await connection.send("PRIVMSG", service.service, f"GHOST {login.nick} {self._service_password}")
            await connection.send("PRIVMSG", service.service, f"IDENTIFY {self._service_password}")
            # Some channels admit only identified users.
            await wait_within(self._service_answered, SERVICE_ANSWERS_S, self._context.clock)
            if not connection.me.is_me(login.nick):
                await connection.send("NICK", login.nick)
        for name in self._channels.values():
            await connection.send("JOIN", name)

    # Receiving

    async def _listen(self, connection: IrcConnection) -> None:
        async for line in connection.received():
            await self._handle(connection, line)
        raise ConnectionLost("the server closed the connection")

    async def _handle(self, connection: IrcConnection, line: Line) -> None:
        me, mine = connection.me, connection.me.is_me(line.nick)
        match line.command:
            case "PRIVMSG" if mine:
                self._note_echo(connection, line)
            case "PRIVMSG":
                await self._receive(connection, line)
            case "JOIN" if mine:
                self._joined[line.param(0).lower()] = self._context.clock.monotonic()
            case "PART" if mine:
                self._join_again(connection, line.param(0), "somebody made us leave")
            case "KICK" if me.is_me(line.param(1)):
                who, why = line.nick, shortened(line.param(2), 100)
                self._join_again(connection, line.param(0), f"{who} removed us ({why})")
            case "NOTICE" | "900" if self._is_service(line):
                self._service_answered.set()
            case "302":
                self._note_people(line)
            case "ERROR":
                raise ConnectionLost(f"the server ended the connection: {shortened(line.param(-1), 200)}")
            case command if command in _JOIN_REFUSED and self._is_to_join(line.param(1)):
                self._join_again(connection, line.param(1), shortened(line.param(-1), 100))
            case _:
                pass
        if len(line.command) == 3 and line.command[0] in "45":
            self._note_refusal(connection, line)

    async def _receive(self, connection: IrcConnection, line: Line) -> None:
        inbound = interpret(
            line,
            connection.me,
            self._context.account.id,
            now_ms=self._context.clock.now_ms(),
            match_nicks=self._settings.dangerously_allow_name_matching,
        )
        if inbound is None:
            return
        inbound.message_id = inbound.message_id or self._generate_id(line)
        inbound.told_once = True
        if inbound.quoted is not None and inbound.quoted.id in self._own_ids:
            inbound.quoted = msgspec.structs.replace(inbound.quoted, from_us=True)
        self._unstored += 1
        await self._waiting.put(inbound)

    def _generate_id(self, line: Line) -> str:
        """Return an id for a message without one. Equal messages with the same timestamp get different ids."""
        message_id = fallback_id(line)
        if not message_id:
            self._counted += 1
            return f"{self._context.clock.now_ms()}-{self._counted}"
        self._repeats = self._repeats + 1 if message_id == self._last_id else 0
        self._last_id = message_id
        return f"{message_id}-{self._repeats}" if self._repeats else message_id

    async def _submit_queued(self) -> None:
        while True:
            inbound = await self._waiting.get()
            try:
                await submit(self._context, inbound)
                self._unstored -= 1
            finally:
                self._waiting.task_done()

    def _is_service(self, line: Line) -> bool:
        service = self._settings.nickserv
        return line.command == "900" or (service is not None and line.nick.lower() == service.service.lower())

    # Channels

    def _is_to_join(self, name: str) -> bool:
        return name.lower() in self._channels

    def _join_again(self, connection: IrcConnection, name: str, why: str) -> None:
        key = name.lower()
        since = self._joined.pop(key, None)
        if key not in self._channels:
            return
        settled = since is not None and self._context.clock.monotonic() - since >= STABLE_S
        tries = self._join_tries[key] = 1 if settled else self._join_tries.get(key, 0) + 1
        delay_s = JOIN_AGAIN.delay_s(tries, random.random)
        self._context.log.warning("not in %s: %s; joining again in %.0f s", name, why, delay_s)

        async def join() -> None:
            await self._context.clock.sleep(delay_s)
            if key not in self._joined:
                await connection.send("JOIN", self._channels[key])

        self._spawn(join())

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        if message.act != "send":
            raise SendFailed("on IRC a message cannot be changed or reacted to", permanent=True)
        address = parse_address(route.to)
        rendered = render(message.text, "irc", tables=self._settings.markdown.tables).text
        files = [
            media.url or f"(file {media.file_name or media.mime_type} is not sent: IRC carries text only)"
            for media in message.media
        ]
        text = "\n".join(part for part in (rendered, *files) if part)
        # One message at a time: lines must not interleave, and an error reply must belong to one message.
        async with self._one_at_a_time:
            connection = require_running(self._connection, "IRC")
            sending = self._sending = Sending(address.target)
            try:
                if address.mask:
                    await self._check_person(connection, address, sending)
                await self._say_lines(connection, sending, text, message.reply_to_id)
            finally:
                self._sending = None
        if sending.code:
            raise self._refused(sending)
        return SendReceipt(message_id=sending.message_id)

    async def _say_lines(self, connection: IrcConnection, sending: Sending, text: str, reply_to: str | None) -> None:
        me, capabilities = connection.me, connection.capabilities
        lines = lines_of(text, text_room(me.nick, me.user, me.host, sending.target))
        written = False
        try:
            for number, line in enumerate(lines):
                tags: dict[str, str] = {}
                if "labeled-response" in capabilities:
                    tags["label"] = secrets.token_hex(6)
                    sending.labels.add(tags["label"])
                if number == 0 and reply_to and "message-tags" in capabilities:
                    tags["+draft/reply"] = reply_to
                await connection.send("PRIVMSG", sending.target, line, tags=tags)
                written = True
            await connection.processed()
        except ConnectionLost as lost:
            raise SendFailed(str(lost), reached=False, maybe_sent=written or lost.sent) from None
        except BadLine as error:
            raise SendFailed(f"the message cannot be sent as IRC lines: {error}", permanent=True) from None

    async def _check_person(self, connection: IrcConnection, address: IrcAddress, sending: Sending) -> None:
        """Verify who has the nickname now. A reply must not reach another person who has taken the name."""
        try:
            await connection.send("USERHOST", address.nick)
            await connection.processed()
        except ConnectionLost as lost:
            raise SendFailed(str(lost), reached=False) from None
        if sending.people is None:
            return  # The server does not support USERHOST.
        now = next((mask for nick, mask in sending.people.items() if connection.me.same(nick, address.nick)), None)
        if now is None:
            raise SendFailed(f"{address.nick} is not on the server now")
        if now.lower() != address.mask.partition("!")[2].lower():
            raise SendFailed(f"another person now has the nickname {address.nick}", permanent=True)

    def _note_people(self, line: Line) -> None:
        if self._sending is not None:
            self._sending.people = {}
            for entry in line.param(-1).split():
                nick, _, mask = entry.partition("=")
                self._sending.people[nick.rstrip("*")] = mask[1:]

    def _note_echo(self, connection: IrcConnection, line: Line) -> None:
        sending, message_id = self._sending, line.tags.get("msgid", "")
        if sending is None or not message_id or not connection.me.same(line.param(0), sending.target):
            return
        label = line.tags.get("label")
        if label is None or label in sending.labels:
            sending.message_id = message_id
            self._own_ids[message_id] = None

    def _note_refusal(self, connection: IrcConnection, line: Line) -> None:
        sending = self._sending
        if sending is None or sending.code:
            return
        if line.tags.get("label") in sending.labels or connection.me.same(line.param(1), sending.target):
            sending.code, sending.reason = line.command, shortened(line.param(-1), 200)

    def _refused(self, sending: Sending) -> SendFailed:
        rejoining = sending.code in _NOT_IN_CHANNEL and self._is_to_join(sending.target)
        offline = sending.code == _NO_SUCH_NICK and is_nick(sending.target)
        return SendFailed(f"{sending.target}: {sending.reason}", permanent=not (rejoining or offline))

    async def typing(self, route: Route, on: bool) -> None:
        connection = require_running(self._connection, "IRC")
        if "message-tags" not in connection.capabilities:
            return
        try:
            await connection.write(
                "TAGMSG", parse_address(route.to).target, tags={"+typing": "active" if on else "done"}
            )
        except (ConnectionLost, BadLine) as error:
            raise SendFailed(str(error), reached=False) from None

    async def probe(self) -> Mapping[str, object]:
        connection = require_running(self._connection, "IRC")
        try:
            await connection.processed()
        except ConnectionLost as lost:
            raise SendFailed(str(lost), reached=False) from None
        return {
            "ok": True,
            "nick": connection.me.nick,
            "network": connection.network,
            "channels": sorted(self._joined),
        }

    # Settings

    async def _make_login(self) -> Login:
        """Resolve the secrets and load the certificates."""
        settings, sasl, service = self._settings, self._settings.sasl, self._settings.nickserv
        nick = (settings.nick or "").strip()
        password = await self._secret("password", settings.password, settings.password_file, "IRC_PASSWORD")
        if service and service.enabled:
            self._service_password = await self._secret(
                "nickserv.password", service.password, service.password_file, "IRC_NICKSERV_PASSWORD"
            )
        return Login(
            host=(settings.host or "").strip(),
            port=settings.port or (6697 if settings.tls else 6667),
            tls=await asyncio.to_thread(self._tls_context) if settings.tls else None,
            nick=nick,
            username=(settings.username or nick).replace(" ", "_"),
            realname=settings.realname or nick,
            password=password,
            sasl=sasl.mechanism if sasl else "",
            sasl_name=(sasl.username if sasl else None) or nick,
            sasl_password=await self._secret("sasl.password", sasl.password, None, "") if sasl else "",
            key=self._context.key,
        )

    async def _secret(self, key: str, value: str | SecretRef | None, file: str | None, variable: str) -> str:
        secret = value or (SecretRef(file=file) if file else None)
        return await secret_of(self._context, secret, key, variable, needed=False)

    def _tls_context(self) -> ssl.SSLContext:
        context, key = ssl.create_default_context(), "tlsCa"
        try:
            if self._settings.tls_ca:
                context.load_verify_locations(self._settings.tls_ca)
            key = "tlsCert"
            if self._settings.tls_cert:
                context.load_cert_chain(self._settings.tls_cert)
        except (OSError, ssl.SSLError) as error:
            raise NotConfigured(f"{self._context.key(key)} cannot be used: {error.strerror or error}") from None
        return context


# Incoming lines


def interpret(line: Line, me: Self, account_id: str, *, now_ms: int, match_nicks: bool = False) -> Inbound | None:
    """Return the message in a line, without a ``message_id`` if the server provides none.

    Returns None for our own messages, notices, server messages, marked bots, and CTCP requests other than ACTION.
    ``match_nicks`` lets a bare nickname identify its user.
    """
    if line.command != "PRIVMSG" or "!" not in line.prefix or me.is_me(line.nick) or "bot" in line.tags:
        return None
    target = line.param(0)
    channel = target.lstrip(me.status_signs) if me.status_signs else target
    group = is_channel(channel, me.channel_signs)
    if not group and not me.is_me(target):
        return None
    text = _text_of(line)
    if text is None:
        return None
    mentioned, text = _strip_mention(text, me.nick)
    identity = line.prefix.lower()
    account = line.tags.get("account", "")
    others = [f"account:{account.lower()}"] if account else []
    if match_nicks:
        others.append(line.nick.lower())
    name = channel.lower()
    return Inbound(
        channel="irc",
        account_id=account_id,
        message_id=line.tags.get("msgid", ""),
        peer=Peer(kind="group", id=name) if group else Peer(kind="direct", id=identity),
        sender=Sender(id=identity, name=line.nick, username=line.nick, other_ids=tuple(others)),
        to=f"irc:{name}" if group else f"irc:{line.prefix}",
        text=text[:MAX_TEXT],
        timestamp_ms=iso_ms(line.tags.get("time")) or now_ms,
        mentioned=mentioned,
        quoted=_quoted(line),
        group_subject=channel if group else None,
    )


def fallback_id(line: Line) -> str:
    """Derive a stable id for a message without one, so that a repetition gets the same id.

    Empty if the message has no server time, because repetitions cannot be recognised then.
    """
    time = line.tags.get("time", "")
    if not time:
        return ""
    text = "\n".join((time, line.prefix, *line.params))
    return f"{time}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _text_of(line: Line) -> str | None:
    text = line.param(1)
    if text.startswith("\x01"):
        kind, _, rest = text.strip("\x01").partition(" ")
        if kind.upper() != "ACTION" or not rest.strip():
            return None
        return f"* {line.nick} {without_formats(rest).strip()}"
    text = without_formats(text)
    return text if text.strip() else None


def _strip_mention(text: str, nick: str) -> tuple[bool, str]:
    """Return whether the text mentions us, and the text without a leading ``nick:`` or ``nick,``."""
    if not nick:
        return False, text
    lowered_nick, head = nick.lower(), text.lstrip().removeprefix("@")
    if head[: len(nick)].lower() == lowered_nick:
        rest = head[len(nick) :].lstrip()
        if rest.startswith((":", ",")):
            return True, rest[1:].lstrip() or text.strip()
    lowered, start = text.lower(), -1
    while (start := lowered.find(lowered_nick, start + 1)) >= 0:
        end = start + len(lowered_nick)
        before, after = lowered[max(start - 1, 0) : start], lowered[end : end + 1]
        if not _is_in_names(before) and not _is_in_names(after):
            return True, text
    return False, text


def _is_in_names(char: str) -> bool:
    return char.isalnum() or (char != "" and char in _NAME_SIGNS)


def _quoted(line: Line) -> Quoted | None:
    quoted = line.tags.get("+reply") or line.tags.get("+draft/reply")
    return Quoted(id=quoted) if quoted else None
