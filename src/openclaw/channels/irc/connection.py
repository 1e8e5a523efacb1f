"""A connection to an IRC server: login, capabilities, pings, rate limiting and our own identity.

``login`` returns once the server has accepted us. ``received`` then yields the server's lines. The second half of the
file parses and formats lines, compares names, and splits a text into lines.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import secrets
import ssl
import unicodedata
from collections.abc import AsyncGenerator, Callable, Mapping

import msgspec

from openclaw.channels.base import NotConfigured
from openclaw.clock import Clock
from openclaw.text import shortened

CAPABILITIES = (
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
"""A server that is silent this long is pinged. After twice as long it counts as gone."""
WELCOME, STILL_THERE = "welcome", "still-there"
"""The tokens of our own pings."""
UNANSWERED_S = 3.0
ANSWER_S = 60.0
LINE_COSTS_S = 2.0
AHEAD_S = 10.0
"""Flood control: a burst of five lines, then one line every two seconds. Servers disconnect faster clients."""
MAX_RECEIVED = 64 * 1024
MAX_WAITING_BYTES = 256 * 1024
NICK_TRIES = 8
_SASL_CHUNK = 400
_SASL_FAILED = frozenset({"902", "904", "905", "906", "907", "908"})
_NICK_TAKEN = frozenset({"433", "436", "437"})
MAX_LINE = 512
"""Bytes of a line including CRLF and the prefix that the server adds. Tags do not count."""
UNKNOWN_HOST = 63
UNKNOWN_USER = 11
"""Bytes reserved for our host and user name until the server reports them."""
MIN_TEXT = 32
"""The minimum number of text bytes in a line, however long the names around it are."""
CHANNEL_SIGNS = "#&"

_NOT_IN_NAMES = re.compile(r"[\x00-\x20\x7f,:!@*?$]")
_NOT_IN_CHANNELS = re.compile(r"[\x00-\x20\x7f,:]")
_FORMATS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6})?|[\x02\x0f\x11\x16\x1d\x1e\x1f]")
_TOGGLES = "\x02\x11\x1d\x1e\x1f"
_UNSAFE_IN_LINES = re.compile(r"[\x00\r\n]+")
_TAG_ESCAPES = {";": "\\:", " ": "\\s", "\\": "\\\\", "\r": "\\r", "\n": "\\n"}
_TAG_UNESCAPES = {":": ";", "s": " ", "\\": "\\", "r": "\r", "n": "\n"}
_RFC1459 = str.maketrans("[]\\~", "{}|^")
_STRICT_RFC1459 = str.maketrans("[]\\", "{}|")
_WITH_TEXT = frozenset({"PRIVMSG", "NOTICE", "USER", "QUIT"})


class ConnectionLost(Exception):
    """The connection ended or could not be opened. The message gives the reason."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the failed line may have reached the server."""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The login parameters, with resolved secrets."""

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
    key: Callable[[str], str]
    """Returns the configuration path of a key, for error messages."""


class Self(msgspec.Struct):
    """Our identity on the server, and the server's naming rules."""

    nick: str = ""
    user: str = ""
    host: str = ""
    case_mapping: str = "rfc1459"
    channel_signs: str = CHANNEL_SIGNS
    status_signs: str = ""

    def same(self, name: str, other: str) -> bool:
        return folded(name, self.case_mapping) == folded(other, self.case_mapping)

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
        """Connect. Raises ``ConnectionLost``."""
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
                f"the certificate of {login.host} is not accepted ({error.verify_message}); for a "
                f"self-signed certificate set {login.key('tlsCa')}"
            ) from None
        except ssl.SSLError as error:
            reason = error.reason or "TLS failed"
            raise ConnectionLost(
                f"{login.host}:{login.port} does not support a TLS version that we accept ({reason})"
            ) from None
        except OSError as error:
            raise ConnectionLost(f"{login.host}:{login.port} cannot be reached: {error.strerror or error}") from None
        return cls(reader, writer, clock, login)

    # Login

    async def login(self) -> None:
        """Log in. Raises ``ConnectionLost``, or ``NotConfigured`` if the server rejects our credentials."""
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
            raise ConnectionLost(f"{login.host} did not complete the login within {LOGIN_S:g} s") from None
        except BadLine as error:
            raise NotConfigured(f"the login to {login.host} is invalid: {error}") from None

    async def _until_welcome(self) -> None:
        offered: dict[str, str] = {}
        nick_conflicts, welcomed = 0, False
        async for line in self.received():
            if line.command == "001":
                welcomed = True
                self.me.nick = line.param(0) or self.me.nick
                # Some servers have no message of the day, whose end normally marks the end of the login.
                await self.write("PING", WELCOME)
            elif line.command == "CAP":
                await self._negotiate(line, offered)
            elif line.command in _NICK_TAKEN and not welcomed:
                nick_conflicts += 1
                await self._try_another_nick(nick_conflicts)
            elif welcomed and line.command in ("376", "422", "PONG"):
                return
            else:
                await self._login_step(line, welcomed)
        raise ConnectionLost("the server closed the connection during the login")

    async def _try_another_nick(self, attempt: int) -> None:
        if attempt > NICK_TRIES:
            raise ConnectionLost(f"the nickname {self._login.nick} and {NICK_TRIES} variants are in use")
        # Some servers truncate long nicknames, so from the third attempt the suffix replaces the end of the name.
        suffix = "_" * attempt if attempt < 3 else f"{secrets.randbelow(1000):03d}"
        self.me.nick = (self._login.nick if attempt < 3 else self._login.nick[:6]) + suffix
        await self.write("NICK", self.me.nick)

    async def _negotiate(self, line: Line, offered: dict[str, str]) -> None:
        match line.param(1).upper():
            case "LS" | "NEW":
                for entry in line.param(-1).split():
                    name, _, value = entry.partition("=")
                    offered[name] = value
                if line.param(2) == "*" and len(line.params) > 3:
                    return  # The list continues in the next line.
                requested = [name for name in CAPABILITIES if name in offered]
                if self._login.sasl and "sasl" in offered:
                    requested.append("sasl")
                await self.write(*(("CAP", "REQ", " ".join(requested)) if requested else ("CAP", "END")))
                if self._login.sasl and "sasl" not in offered:
                    raise ConnectionLost(
                        f"{self._login.host} does not offer SASL; if it never does, use {self._login.key('nickserv')}"
                    )
            case "ACK":
                self.capabilities |= {name.lstrip("-~=") for name in line.param(-1).split() if name[0] != "-"}
                if "sasl" in self.capabilities:
                    await self.write("AUTHENTICATE", self._login.sasl)
                else:
                    await self.write("CAP", "END")
            case "NAK":
                if self._login.sasl:
                    raise ConnectionLost(f"{self._login.host} rejected the capabilities that it offered")
                await self.write("CAP", "END")
            case _:
                pass

    async def _login_step(self, line: Line, welcomed: bool) -> None:
        login, reason = self._login, shortened(line.param(-1), 200)
        match line.command:
            case "AUTHENTICATE" if line.param(0) == "+":
                await self._authenticate()
            case "903":
                await self.write("CAP", "END")
            case command if command in _SASL_FAILED:
                raise NotConfigured(
                    f"{login.host} rejected the SASL login of {login.sasl_name}: check {login.key('sasl')} ({reason})"
                )
            case "464" | "ERROR" if line.command == "464" or (not welcomed and "password" in reason.lower()):
                # ngIRCd has no numeric for a wrong password.
                raise NotConfigured(f"{login.host} rejected the password: check {login.key('password')} ({reason})")
            case "465":
                raise NotConfigured(f"{login.host} has banned us: {reason}")
            case "432" if not welcomed:
                raise NotConfigured(
                    f"{login.host} rejected the nickname {login.nick}: set {login.key('nick')} ({reason})"
                )
            case "ERROR":
                raise ConnectionLost(f"{login.host} rejected the connection: {reason}")
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
        """Yield the server's lines until it closes the connection. Answers pings and tracks the server's settings.

        Raises ``ConnectionLost``.
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
                    token = next(iter(self._pongs), "")  # Some servers do not echo the token.
                waiting = self._pongs.pop(token, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)
            case "001":
                me.nick = line.param(0) or me.nick
                self._learn_mask(line.param(-1).rpartition(" ")[2])
            case "005":
                self._note_support(line.params[1:-1])
            case "396":  # The server masks our host with this one.
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
        """Ping a silent server, and reclaim our nickname when it is in use.

        Raises ``ConnectionLost`` when the server is gone.
        """
        nick_requested_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(PING_EVERY_S / 2)
            silent_s = self._clock.monotonic() - self._last_heard
            if silent_s > 2 * PING_EVERY_S:
                raise ConnectionLost(f"the server has sent nothing for {silent_s:.0f} s")
            if silent_s > PING_EVERY_S / 2:
                await self.write("PING", STILL_THERE)
            if not self.me.is_me(self._login.nick) and self._clock.monotonic() - nick_requested_at >= PING_EVERY_S:
                nick_requested_at = self._clock.monotonic()
                await self.write("NICK", self._login.nick)

    # Sending

    async def send(self, command: str, *params: str, tags: Mapping[str, str] | None = None) -> None:
        """Send a line within the flood limit. Raises ``ConnectionLost`` and ``BadLine``."""
        now = self._clock.monotonic()
        self._paid_until = max(self._paid_until, now) + LINE_COSTS_S
        if (wait_s := self._paid_until - now - AHEAD_S) > 0:
            await self._clock.sleep(wait_s)
        await self.write(command, *params, tags=tags)

    async def write(self, command: str, *params: str, tags: Mapping[str, str] | None = None) -> None:
        """Send a line immediately."""
        data = format_line(command, *params, tags=tags)
        if self._closed or self._writer.transport.is_closing():
            raise ConnectionLost("the connection is closed")
        if self._writer.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            raise ConnectionLost("the server has stopped reading")
        self._writer.write(data)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._writer.drain()
        except TimeoutError:
            raise ConnectionLost("the server has stopped reading", sent=True) from None
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or type(error).__name__}", sent=True) from None

    async def processed(self) -> None:
        """Wait until the server has processed all earlier lines, by a ping, which it answers in order.

        Raises ``ConnectionLost`` if the connection ends or the answer takes too long. Does not wait long for a server
        that has never answered a ping.
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
        """Close the connection. Pending ``processed`` calls raise ``ConnectionLost``."""
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


# Lines


class BadLine(ValueError):
    """A line cannot be sent or parsed. The message gives the reason."""


class Line(msgspec.Struct, frozen=True):
    """One line from or to the server."""

    command: str
    """In upper case."""
    params: tuple[str, ...] = ()
    prefix: str = ""
    """The source: ``nick!user@host`` or a server name."""
    tags: Mapping[str, str] = {}

    @property
    def nick(self) -> str:
        return self.prefix.partition("!")[0]

    def param(self, index: int) -> str:
        """Return a parameter, or an empty string if the line has too few."""
        return self.params[index] if -len(self.params) <= index < len(self.params) else ""


def parse_line(data: bytes) -> Line:
    """Parse a line. Raises ``BadLine``."""
    rest = _decoded(data).rstrip("\r\n").replace("\x00", "")
    tags: dict[str, str] = {}
    prefix = ""
    if rest.startswith("@"):
        encoded_tags, _, rest = rest[1:].partition(" ")
        tags = parse_tags(encoded_tags)
    rest = rest.lstrip(" ")
    if rest.startswith(":"):
        prefix, _, rest = rest[1:].partition(" ")
    head, colon, trailing = rest.partition(" :")
    words = [word for word in head.split(" ") if word]
    if not words:
        raise BadLine("a line without a command")
    return Line(words[0].upper(), (*words[1:], *((trailing,) if colon else ())), prefix, tags)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # Old clients send Latin-1, which decodes any bytes.
        return data.decode("latin-1")


def parse_tags(encoded: str) -> dict[str, str]:
    tags: dict[str, str] = {}
    for tag in encoded.split(";"):
        name, _, value = tag.partition("=")
        if name:
            tags[name] = _unescape_tag(value)
    return tags


def _unescape_tag(value: str) -> str:
    return re.sub(r"\\(.?)", lambda match: _TAG_UNESCAPES.get(match[1], match[1]), value, flags=re.DOTALL)


def format_line(command: str, *params: str, tags: Mapping[str, str] | None = None) -> bytes:
    """Encode a line with its CRLF.

    Raises ``BadLine`` for a parameter that could inject another line or parameter.
    """
    for index, param in enumerate(params):
        if _UNSAFE_IN_LINES.search(param):
            raise BadLine(f"a parameter of {command} contains a line break")
        if index < len(params) - 1 and (not param or " " in param or param.startswith(":")):
            raise BadLine(f"{param!r} cannot be a parameter of {command}")
    words = [command, *params]
    if params and (not params[-1] or " " in params[-1] or params[-1].startswith(":") or command in _WITH_TEXT):
        words[-1] = f":{words[-1]}"
    body = " ".join(words).encode("utf-8", "replace") + b"\r\n"
    if len(body) > MAX_LINE:
        raise BadLine(f"a line of {len(body)} bytes is too long for IRC")
    return _tag_bytes(tags or {}) + body


def _tag_bytes(tags: Mapping[str, str]) -> bytes:
    if not tags:
        return b""
    encoded = [f"{name}={''.join(_TAG_ESCAPES.get(char, char) for char in value)}" for name, value in tags.items()]
    if any(_UNSAFE_IN_LINES.search(tag) or " " in tag for tag in encoded):
        raise BadLine("a tag name is invalid")
    return f"@{';'.join(encoded)} ".encode("utf-8", "replace")


# Names


def is_channel(name: str, signs: str = CHANNEL_SIGNS) -> bool:
    return len(name) > 1 and name[0] in signs and _NOT_IN_CHANNELS.search(name) is None


def is_nick(name: str) -> bool:
    return bool(name) and name[0] not in "#&+-0123456789" and _NOT_IN_NAMES.search(name) is None


def folded(name: str, mapping: str = "rfc1459") -> str:
    """Case-fold a name by the server's CASEMAPPING, for comparison."""
    lowered = name.lower()
    if mapping == "ascii":
        return lowered
    return lowered.translate(_STRICT_RFC1459 if mapping == "rfc1459-strict" else _RFC1459)


# Texts


def without_formats(text: str) -> str:
    """Strip colours and other control codes."""
    return _FORMATS.sub("", text).replace("\x01", "")


def text_room(nick: str, user: str, host: str, target: str) -> int:
    """Return how many text bytes fit into a line after the prefix that the server adds."""
    user_bytes = len(user.encode()) if user else UNKNOWN_USER
    host_bytes = len(host.encode()) if host else UNKNOWN_HOST
    around = len(f":{nick}!@ PRIVMSG {target} :\r\n".encode()) + user_bytes + host_bytes
    return max(MAX_LINE - around, MIN_TEXT)


def lines_of(text: str, room: int) -> list[str]:
    """Split a text into lines of at most ``room`` bytes, at line breaks and, where needed, between words.

    IRC formatting ends with each line, so codes that are open at a split are repeated on the next line.
    """
    lines: list[str] = []
    open_codes = ""
    for paragraph in _UNSAFE_IN_LINES.sub("\n", text).split("\n"):
        rest = open_codes + paragraph
        while rest.strip(_TOGGLES + " "):
            piece, rest = _cut(rest, room)
            open_codes = _open_codes(piece)
            lines.append(piece.rstrip(" "))
            rest = rest.lstrip(" ")
            if rest:
                rest = open_codes + rest
        open_codes = _open_codes(rest) if rest else open_codes
    return lines


def _cut(text: str, room: int) -> tuple[str, str]:
    if len(text.encode("utf-8", "replace")) <= room:
        return text, ""
    end = _fitting(text, room)
    space = text.rfind(" ", 0, end + 1)
    # Split between words, unless that wastes most of the line.
    if space > end // 2 and text[:space].strip(_TOGGLES + " "):
        return text[:space], text[space:]
    return text[:end], text[end:]


def _fitting(text: str, room: int) -> int:
    """Return how many characters fit, without separating a character from its combining marks."""
    used = end = 0
    while end < len(text) and (used := used + len(text[end].encode("utf-8", "replace"))) <= room:
        end += 1
    if end == len(text):
        return end
    whole = end
    while whole > 1 and (_joins(text[whole]) or text[whole - 1] == "\u200d"):
        whole -= 1
    return whole if whole > 1 and text[:whole].strip(_TOGGLES) else max(end, 1)


def _joins(char: str) -> bool:
    return char == "\u200d" or "\ufe00" <= char <= "\ufe0f" or unicodedata.combining(char) != 0


def _open_codes(text: str) -> str:
    return "".join(code for code in _TOGGLES if text.count(code) % 2)
