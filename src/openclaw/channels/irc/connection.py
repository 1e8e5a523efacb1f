"""A connection to an IRC server: log-in, capabilities, pings, the pace of our lines, what the server calls us.

``login`` returns when the server has let us in. ``received`` then yields what the channel has to act upon.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import ssl
from collections.abc import AsyncGenerator, Mapping

import msgspec

from openclaw.channels.base import NotConfigured
from openclaw.channels.irc.protocol import CHANNEL_SIGNS, BadLine, Line, folded, format_line, parse_line
from openclaw.clock import Clock
from openclaw.text import shortened

WANTED_CAPABILITIES = (
    "message-tags",
    "server-time",
    "account-tag",
    "echo-message",
    "batch",
    "labeled-response",
    "chghost",
)
CONNECT_S = 30.0
LOGIN_S = 60.0
PING_EVERY_S = 60.0
"""After this long without a line we ask the server whether it is there. After twice as long it counts as gone."""
WELCOME, STILL_THERE = "welcome", "still-there"
"""What our own pings are called."""
UNANSWERED_S = 3.0
ANSWER_S = 60.0
LINE_COSTS_S = 2.0
AHEAD_S = 10.0
"""Each line costs two seconds, and we may be ten ahead: five lines at once, then one every two seconds. Servers
disconnect those who write faster."""
MAX_RECEIVED = 64 * 1024
MAX_WAITING_BYTES = 256 * 1024
NICK_TRIES = 8
_SASL_CHUNK = 400
_SASL_FAILED = frozenset({"902", "904", "905", "906", "907", "908"})
_NICK_TAKEN = frozenset({"433", "436", "437"})


class ConnectionLost(Exception):
    """The connection ended or was never made. The message says why."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the line that could not be sent may have reached the server."""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to log in. The secrets are values, no references any more."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    nick: str
    username: str
    realname: str
    password: str = ""
    sasl: str = ""
    """``PLAIN``, ``EXTERNAL``, or empty."""
    sasl_name: str = ""
    sasl_password: str = ""
    where: str = "channels.irc"
    """The key path of the account, for messages to its owner."""


class Self(msgspec.Struct):
    """What the server calls us, and what it says about its names."""

    nick: str = ""
    user: str = ""
    host: str = ""
    case_mapping: str = "rfc1459"
    channel_signs: str = CHANNEL_SIGNS
    status_signs: str = ""

    def same(self, one: str, other: str) -> bool:
        return folded(one, self.case_mapping) == folded(other, self.case_mapping)

    def is_me(self, nick: str) -> bool:
        return self.same(nick, self.nick)


class IrcConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, clock: Clock, login: Login) -> None:
        self._reader, self._writer, self._clock, self._login = reader, writer, clock, login
        self.me = Self(nick=login.nick)
        self.capabilities: set[str] = set()
        self.network = ""
        self._pongs: dict[str, asyncio.Future[None]] = {}
        self._paid_until = clock.monotonic()
        self._last_heard = clock.monotonic()
        self._closed = False
        self._answers_pings = False

    @classmethod
    async def open(cls, login: Login, clock: Clock) -> IrcConnection:
        """Connects. Raises ``ConnectionLost``."""
        name = login.host if login.tls else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    login.host, login.port, ssl=login.tls, server_hostname=name, limit=MAX_RECEIVED
                )
        except TimeoutError:
            raise ConnectionLost(f"{login.host}:{login.port} does not answer") from None
        except ssl.SSLCertVerificationError as error:
            raise ConnectionLost(
                f"the certificate of {login.host} is not accepted ({error.verify_message}); a server with a "
                f"certificate of its own needs {login.where}.tlsCa"
            ) from None
        except ssl.SSLError as error:
            reason = error.reason or "TLS failed"
            raise ConnectionLost(f"{login.host}:{login.port} speaks no TLS that we accept ({reason})") from None
        except OSError as error:
            raise ConnectionLost(f"{login.host}:{login.port} cannot be reached: {error.strerror or error}") from None
        return cls(reader, writer, clock, login)

    # Log-in

    async def login(self) -> None:
        """Logs in. Raises ``ConnectionLost``, or ``NotConfigured`` if the server refuses who we say we are."""
        login = self._login
        try:
            async with asyncio.timeout(LOGIN_S):
                await self.write("CAP", "LS", "302")
                if login.password:
                    await self.write("PASS", login.password)
                await self.write("NICK", login.nick)
                await self.write("USER", login.username, "0", "*", login.realname)
                await self._until_welcome()
        except TimeoutError:
            raise ConnectionLost(f"{login.host} did not finish the log-in within {LOGIN_S:g} s") from None
        except BadLine as error:
            raise NotConfigured(f"the log-in to {login.host} cannot be written: {error}") from None

    async def _until_welcome(self) -> None:
        offered: dict[str, str] = {}
        taken, welcomed = 0, False
        async for line in self.received():
            if line.command == "001":
                welcomed = True
                self.me.nick = line.param(0) or self.me.nick
                # Not every server has a message of the day, whose end would be the end of the log-in.
                await self.write("PING", WELCOME)
            elif line.command == "CAP":
                await self._negotiate(line, offered)
            elif line.command in _NICK_TAKEN and not welcomed:
                taken += 1
                await self._take_another_nick(taken)
            elif welcomed and line.command in ("376", "422", "PONG"):
                return
            else:
                await self._log_in_step(line, welcomed)
        raise ConnectionLost("the server closed the connection during the log-in")

    async def _take_another_nick(self, taken: int) -> None:
        if taken > NICK_TRIES:
            raise ConnectionLost(f"the nickname {self._login.nick} and {NICK_TRIES} like it are in use")
        # Some servers cut long nicknames, so from the third try on the ending replaces the end of the name.
        ending = "_" * taken if taken < 3 else f"{secrets.randbelow(1000):03d}"
        self.me.nick = (self._login.nick if taken < 3 else self._login.nick[:6]) + ending
        await self.write("NICK", self.me.nick)

    async def _negotiate(self, line: Line, offered: dict[str, str]) -> None:
        match line.param(1).upper():
            case "LS" | "NEW":
                for entry in line.param(-1).split():
                    name, _, value = entry.partition("=")
                    offered[name] = value
                if line.param(2) == "*" and len(line.params) > 3:
                    return  # More lines of the list follow.
                wanted = [name for name in WANTED_CAPABILITIES if name in offered]
                if self._login.sasl and "sasl" in offered:
                    wanted.append("sasl")
                await self.write(*(("CAP", "REQ", " ".join(wanted)) if wanted else ("CAP", "END")))
                if self._login.sasl and "sasl" not in offered:
                    raise ConnectionLost(
                        f"{self._login.host} offers no SASL now; if it never does, use {self._login.where}.nickserv"
                    )
            case "ACK":
                self.capabilities |= {name.lstrip("-~=") for name in line.param(-1).split() if name[0] != "-"}
                if "sasl" in self.capabilities:
                    await self.write("AUTHENTICATE", self._login.sasl)
                else:
                    await self.write("CAP", "END")
            case "NAK":
                if self._login.sasl:
                    raise ConnectionLost(f"{self._login.host} refused the capabilities that it offered")
                await self.write("CAP", "END")
            case _:
                pass

    async def _log_in_step(self, line: Line, welcomed: bool) -> None:
        login, words = self._login, shortened(line.param(-1), 200)
        match line.command:
            case "AUTHENTICATE" if line.param(0) == "+":
                await self._authenticate()
            case "903":
                await self.write("CAP", "END")
            case command if command in _SASL_FAILED:
                raise NotConfigured(
                    f"{login.host} refused the SASL log-in of {login.sasl_name}: check {login.where}.sasl ({words})"
                )
            case "464" | "ERROR" if line.command == "464" or (not welcomed and "password" in words.lower()):
                # ngIRCd has no number for a wrong password.
                raise NotConfigured(f"{login.host} refused the password: check {login.where}.password ({words})")
            case "465":
                raise NotConfigured(f"{login.host} does not let us in: {words}")
            case "432" if not welcomed:
                raise NotConfigured(f"{login.host} refuses the nickname {login.nick}: set {login.where}.nick ({words})")
            case "ERROR":
                raise ConnectionLost(f"{login.host} refused the connection: {words}")
            case _:
                pass

    async def _authenticate(self) -> None:
        login = self._login
        if login.sasl == "EXTERNAL":
            await self.write("AUTHENTICATE", "+")
            return
        proof = f"\0{login.sasl_name}\0{login.sasl_password}".encode()
        encoded = base64.b64encode(proof).decode()
        for start in range(0, len(encoded), _SASL_CHUNK):
            await self.write("AUTHENTICATE", encoded[start : start + _SASL_CHUNK])
        if len(encoded) % _SASL_CHUNK == 0:
            await self.write("AUTHENTICATE", "+")

    # Receiving

    async def received(self) -> AsyncGenerator[Line]:
        """Yields the lines of the server. Its pings are answered, and what it says of itself is noted.

        It ends when the server ends the connection. Raises ``ConnectionLost``.
        """
        while True:
            try:
                data = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                raise ConnectionLost("the server sent a line without an end") from None
            except OSError as error:
                raise ConnectionLost(f"the connection broke: {error.strerror or type(error).__name__}") from None
            self._last_heard = self._clock.monotonic()
            try:
                line = parse_line(data)
            except BadLine:
                continue
            if line.command == "PING":
                with contextlib.suppress(BadLine):
                    await self.write("PONG", line.param(-1))
                continue
            self._note(line)
            yield line

    def _note(self, line: Line) -> None:
        me = self.me
        match line.command:
            case "PONG":
                self._answers_pings = True
                token = line.param(-1)
                if token not in self._pongs and token not in (WELCOME, STILL_THERE):
                    token = next(iter(self._pongs), "")  # Not every server repeats what it was asked with.
                waiting = self._pongs.pop(token, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)
            case "001":
                me.nick = line.param(0) or me.nick
                self._learn_mask(line.param(-1).rpartition(" ")[2])
            case "005":
                self._note_support(line.params[1:-1])
            case "396":  # The server hides our host behind this one.
                me.host = line.param(1).rpartition("@")[2]
            case "CHGHOST" if me.is_me(line.nick):
                me.user, me.host = line.param(0), line.param(1)
            case "NICK" if me.is_me(line.nick):
                me.nick = line.param(0)
            case "CAP" if line.param(1).upper() == "DEL":
                self.capabilities -= set(line.param(-1).split())
            case _:
                if me.is_me(line.nick):
                    self._learn_mask(line.prefix)

    def _learn_mask(self, mask: str) -> None:
        nick, mark, rest = mask.partition("!")
        user, at, host = rest.partition("@")
        if mark and at and self.me.is_me(nick) and host:
            self.me.user, self.me.host = user, host

    def _note_support(self, entries: tuple[str, ...]) -> None:
        for entry in entries:
            name, _, value = entry.partition("=")
            match name:
                case "CASEMAPPING":
                    self.me.case_mapping = value
                case "CHANTYPES":
                    self.me.channel_signs = value or CHANNEL_SIGNS
                case "STATUSMSG":
                    self.me.status_signs = value
                case "NETWORK":
                    self.network = shortened(value, 60)
                case _:
                    pass

    async def stay_alive(self) -> None:
        """Asks the server now and then whether it is there, and for our own nickname if another one has it.

        Raises ``ConnectionLost`` when the server is gone.
        """
        asked_nick = self._clock.monotonic()
        while True:
            await self._clock.sleep(PING_EVERY_S / 2)
            silent_s = self._clock.monotonic() - self._last_heard
            if silent_s > 2 * PING_EVERY_S:
                raise ConnectionLost(f"the server has said nothing for {silent_s:.0f} s")
            if silent_s > PING_EVERY_S / 2:
                await self.write("PING", STILL_THERE)
            if not self.me.is_me(self._login.nick) and self._clock.monotonic() - asked_nick >= PING_EVERY_S:
                asked_nick = self._clock.monotonic()
                await self.write("NICK", self._login.nick)

    # Sending

    async def say(self, command: str, *params: str, tags: Mapping[str, str] | None = None) -> None:
        """Sends a line at the pace that servers allow. Raises ``ConnectionLost`` and ``BadLine``."""
        now = self._clock.monotonic()
        self._paid_until = max(self._paid_until, now) + LINE_COSTS_S
        if (wait_s := self._paid_until - now - AHEAD_S) > 0:
            await self._clock.sleep(wait_s)
        await self.write(command, *params, tags=tags)

    async def write(self, command: str, *params: str, tags: Mapping[str, str] | None = None) -> None:
        """Sends a line at once."""
        data = format_line(command, *params, tags=tags)
        if self._closed or self._writer.transport.is_closing():
            raise ConnectionLost("the connection is closed")
        if self._writer.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            raise ConnectionLost("the server reads nothing")
        self._writer.write(data)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._writer.drain()
        except TimeoutError:
            raise ConnectionLost("the server reads nothing", sent=True) from None
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or type(error).__name__}", sent=True) from None

    async def processed(self) -> None:
        """Returns when the server has worked off all lines before: it answers a ping in their order.

        Raises ``ConnectionLost``, also when the answer takes too long. A server that has never answered a ping is not
        waited for.
        """
        token = f"oc-{secrets.token_hex(6)}"
        answer = self._pongs[token] = asyncio.get_running_loop().create_future()
        try:
            await self.write("PING", token)
            async with asyncio.timeout(ANSWER_S if self._answers_pings else UNANSWERED_S):
                await answer
        except TimeoutError:
            if self._answers_pings:
                raise ConnectionLost(f"no answer within {ANSWER_S:g} s") from None
        finally:
            self._pongs.pop(token, None)

    async def close(self, farewell: str = "") -> None:
        """Ends the connection. All who wait for an answer get ``ConnectionLost``."""
        if farewell and not self._closed:
            with contextlib.suppress(ConnectionLost, BadLine):
                await self.write("QUIT", farewell)
        self._closed = True
        for waiting in self._pongs.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("the connection was lost before the server had answered"))
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                await self._writer.wait_closed()
