"""One IRC account: stays on its server and in its channels, takes in what people write, and sends lines.

A message goes ``_listen`` → ``_handle`` → the queue → ``_take_in``, which hands it to the Gateway. The queue is between
them so that the server's pings are answered while the disk is slow. IRC knows no acknowledgement, so what is in the
queue, or on its way to us, is lost when the process is killed. ``told_once`` keeps it short: a message waits for the
disk only, and for nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import secrets
import ssl
from collections.abc import Coroutine
from typing import Any

import msgspec

from openclaw.channels.base import ChannelContext, NotConfigured, Reconnect, running, secret_of
from openclaw.channels.bookmark import Remembered
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
from openclaw.channels.submit import submit
from openclaw.clock import Backoff, iso_ms, wait_within
from openclaw.config.schema.base import SecretRef
from openclaw.config.schema.channels import IrcAccount
from openclaw.inbound.message import Inbound, Peer, Quoted, Route, Sender
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.text import shortened

MAX_TEXT = 16 * 1024
_NAME_SIGNS = "_-[]\\`^{|}"
"""What stands in nicknames besides letters and digits. Our nickname inside a longer one is no mention."""
RECONNECT = Backoff(initial_s=2.0, max_s=300.0)
JOIN_AGAIN = Backoff(initial_s=5.0, max_s=300.0)
STABLE_S = 60.0
"""After this long on the server or in a channel, the next loss counts as the first one again."""
MOST_WAITING = 1000
"""Messages that wait for the Gateway. Beyond them nothing is read, and the server keeps the rest or disconnects us."""
SETTLE_S = 3.0
SERVICE_ANSWERS_S = 5.0
FAREWELL = "Goodbye"
_NO_SUCH_NICK = "401"
_NOT_IN_CHANNEL = frozenset({"403", "404", "442"})
_JOIN_REFUSED = frozenset({"403", "405", "471", "473", "474", "475", "476", "477", "489", "520"})


class Sending(msgspec.Struct):
    """The message that is being sent, and what the server said to it."""

    target: str
    labels: set[str] = msgspec.field(default_factory=set[str])
    code: str = ""
    """The number of the server's refusal."""
    words: str = ""
    message_id: str = ""
    people: dict[str, str] | None = None
    """Who has which nickname now, as the server was asked: nickname → ``user@host``. None if it did not say."""


class IrcChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: IrcAccount = context.account.settings
        self._channels = {name.strip().lower(): name.strip() for name in self._settings.channels}
        self._connection: IrcConnection | None = None
        self._service_password = ""
        self._service_answered = asyncio.Event()
        self._waiting: asyncio.Queue[Inbound] = asyncio.Queue(MOST_WAITING)
        self._unkept = 0
        """Messages that were read and are not on disk."""
        self._joined: dict[str, float] = {}
        """The channels that we are in, and since when."""
        self._join_tries: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._sending: Sending | None = None
        self._own_ids: Remembered[str, None] = Remembered()
        self._last_id, self._repeats, self._counted = "", 0, 0

    # The connection

    async def run(self) -> None:
        login = await self._make_login()
        taking = asyncio.create_task(self._take_in())
        try:
            await self._stay_connected(login)
        finally:
            # Nobody sends again what is in the queue, so it gets a moment to reach the disk.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._waiting.join()
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            if self._unkept:
                self._context.log.error("%d lines of IRC could not be written down and are lost", self._unkept)

    async def _stay_connected(self, login: Login) -> None:
        reconnect = Reconnect(self._context, RECONNECT, STABLE_S)
        while True:
            try:
                await self._session(login, reconnect)
            except ConnectionLost as lost:
                await reconnect.failed(str(lost))

    async def _session(self, login: Login, reconnect: Reconnect) -> None:
        """One connection from beginning to end. Raises ``ConnectionLost`` at its end."""
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
            for task in tasks:
                task.cancel()
            await connection.close(FAREWELL)
            await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside the listening. It ends with the connection at the latest."""

        async def quietly() -> None:
            try:
                await work
            except ConnectionLost:
                pass  # Who listens learns of it too.
            except BadLine as error:
                self._context.log.warning("a line for the server cannot be written: %s", error)

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _enter(self, connection: IrcConnection, login: Login) -> None:
        """Logs in to the services and joins the channels."""
        service = self._settings.nickserv
        if service and service.enabled and self._service_password:
            self._service_answered.clear()
            if not connection.me.is_me(login.nick):
                await connection.say("PRIVMSG", service.service, f"GHOST {login.nick} {self._service_password}")
            await connection.say("PRIVMSG", service.service, f"IDENTIFY {self._service_password}")
            # Some channels let in only those who are logged in.
            await wait_within(self._service_answered, SERVICE_ANSWERS_S, self._context.clock)
            if not connection.me.is_me(login.nick):
                await connection.say("NICK", login.nick)
        for name in self._channels.values():
            await connection.say("JOIN", name)

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
                await self._hear(connection, line)
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

    async def _hear(self, connection: IrcConnection, line: Line) -> None:
        inbound = interpret(
            line,
            connection.me,
            self._context.account.id,
            now_ms=self._context.clock.now_ms(),
            nicks_count=self._settings.dangerously_allow_name_matching,
        )
        if inbound is None:
            return
        inbound.message_id = inbound.message_id or self._made_id(line)
        inbound.told_once = True
        if inbound.quoted is not None and inbound.quoted.id in self._own_ids:
            inbound.quoted = msgspec.structs.replace(inbound.quoted, from_us=True)
        self._unkept += 1
        await self._waiting.put(inbound)

    def _made_id(self, line: Line) -> str:
        """An id for a message without one. Equal messages of one moment get different ones."""
        known = fallback_id(line)
        if not known:
            self._counted += 1
            return f"{self._context.clock.now_ms()}-{self._counted}"
        self._repeats = self._repeats + 1 if known == self._last_id else 0
        self._last_id = known
        return f"{known}-{self._repeats}" if self._repeats else known

    async def _take_in(self) -> None:
        while True:
            inbound = await self._waiting.get()
            try:
                await submit(self._context, inbound)
                self._unkept -= 1
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
                await connection.say("JOIN", self._channels[key])

        self._spawn(join())

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        if message.act != "send":
            raise SendFailed("on IRC a message cannot be changed or reacted to", permanent=True)
        address = parse_address(route.to or "")
        rendered = render(message.text, "irc", tables=self._settings.markdown.tables).text
        files = [
            one.url or f"(file {one.file_name or one.mime_type} is not sent: IRC carries text only)"
            for one in message.media
        ]
        text = "\n".join(part for part in (rendered, *files) if part)
        # One message at a time, so that the lines of two messages do not mix, and a refusal belongs to one of them.
        async with self._one_at_a_time:
            connection = running(self._connection, "IRC")
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
                await connection.say("PRIVMSG", sending.target, line, tags=tags)
                written = True
            await connection.processed()
        except ConnectionLost as lost:
            raise SendFailed(str(lost), reached=False, maybe_sent=written or lost.sent) from None
        except BadLine as error:
            raise SendFailed(f"the message cannot be written as lines of IRC: {error}", permanent=True) from None

    async def _check_person(self, connection: IrcConnection, address: IrcAddress, sending: Sending) -> None:
        """Asks who has the nickname now. A reply is for the person who wrote, not for whoever took their name."""
        try:
            await connection.say("USERHOST", address.nick)
            await connection.processed()
        except ConnectionLost as lost:
            raise SendFailed(str(lost), reached=False) from None
        if sending.people is None:
            return  # The server does not know the question.
        now = next((mask for nick, mask in sending.people.items() if connection.me.same(nick, address.nick)), None)
        if now is None:
            raise SendFailed(f"{address.nick} is not on the server now")
        if now.lower() != address.mask.partition("!")[2].lower():
            raise SendFailed(f"somebody else has the nickname {address.nick} now", permanent=True)

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
            sending.code, sending.words = line.command, shortened(line.param(-1), 200)

    def _refused(self, sending: Sending) -> SendFailed:
        soon = sending.code in _NOT_IN_CHANNEL and self._is_to_join(sending.target)
        known = sending.code == _NO_SUCH_NICK and is_nick(sending.target)
        return SendFailed(f"{sending.target}: {sending.words}", permanent=not (soon or known))

    async def typing(self, route: Route, on: bool) -> None:
        connection = running(self._connection, "IRC")
        if "message-tags" not in connection.capabilities:
            return
        try:
            await connection.write(
                "TAGMSG", parse_address(route.to or "").target, tags={"+typing": "active" if on else "done"}
            )
        except (ConnectionLost, BadLine) as error:
            raise SendFailed(str(error), reached=False) from None

    async def probe(self) -> dict[str, Any]:
        connection = running(self._connection, "IRC")
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
        """Fetches the secrets and certificates."""
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

    async def _secret(self, key: str, given: str | SecretRef | None, file: str | None, variable: str) -> str:
        secret = given or (SecretRef(file=file) if file else None)
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


# What a line means


def interpret(line: Line, me: Self, account_id: str, *, now_ms: int, nicks_count: bool = False) -> Inbound | None:
    """The message in a line, without a ``message_id`` if the server gives none.

    None for everything else: our own words, notices (which bots use among themselves), what servers and marked bots
    say, and requests of clients other than ACTION. ``nicks_count``: a bare nickname stands for its user.
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
    mentioned, text = _addressed(text, me.nick)
    identity = line.prefix.lower()
    account = line.tags.get("account", "")
    others = [f"account:{account.lower()}"] if account else []
    if nicks_count:
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
    """An id for a message that the server gave none: the same whenever the same message is sent again.

    Empty if the server does not tell the time of the message, since then nothing tells repeats from new messages.
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


def _addressed(text: str, nick: str) -> tuple[bool, str]:
    """Whether the text names us, and the text without our name at its beginning (``nick: …`` or ``nick, …``)."""
    if not nick:
        return False, text
    wanted, head = nick.lower(), text.lstrip().removeprefix("@")
    if head[: len(nick)].lower() == wanted:
        rest = head[len(nick) :].lstrip()
        if rest.startswith((":", ",")):
            return True, rest[1:].lstrip() or text.strip()
    lowered, place = text.lower(), -1
    while (place := lowered.find(wanted, place + 1)) >= 0:
        end = place + len(wanted)
        before, after = lowered[max(place - 1, 0) : place], lowered[end : end + 1]
        if not _is_in_names(before) and not _is_in_names(after):
            return True, text
    return False, text


def _is_in_names(sign: str) -> bool:
    return sign.isalnum() or (sign != "" and sign in _NAME_SIGNS)


def _quoted(line: Line) -> Quoted | None:
    quoted = line.tags.get("+reply") or line.tags.get("+draft/reply")
    return Quoted(id=quoted) if quoted else None
