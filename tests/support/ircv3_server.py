"""A strict IRC server for one client, with what ngIRCd lacks: SASL, tags, echoes, labels and services.

It refuses what real servers refuse: lines over 512 bytes, capabilities that were not offered, tags without their
capability, and commands before the log-in.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib

from openclaw.channels.irc.connection import MAX_LINE, Line, parse_line

PATIENCE_S = 60
OFFERED = "message-tags server-time account-tag echo-message batch labeled-response sasl=PLAIN,EXTERNAL"
MASK = "~claw@cloak.example"


class Ircv3Server:
    """``async with Ircv3Server() as server``. ``accounts`` are the passwords of the service by name."""

    def __init__(self, *, offered: str = OFFERED, accounts: dict[str, str] | None = None) -> None:
        self.offered = offered
        self.accounts = accounts or {}
        self.port = 0
        self.lines: list[Line] = []
        """What the client has sent, except pings."""
        self.problems: list[str] = []
        self.capabilities: set[str] = set()
        self.logged_in_as = ""
        self.refuse: dict[str, str] = {}
        """Target → number of the refusal that messages to it get."""
        self.drop_next = False
        """Take the next message to a person, and break the connection."""
        self._registered = False
        self._writer: asyncio.StreamWriter | None = None
        self._sent = 0
        self._changed = asyncio.Event()
        self._sasl = ""

    async def __aenter__(self) -> Ircv3Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        if self._writer is not None:
            self._writer.transport.abort()

    def tell(self, line: str) -> None:
        """Sends a line to the client."""
        assert self._writer is not None
        self._writer.write(f"{line}\r\n".encode())

    def disconnect(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()

    async def got(self, command: str, count: int = 1) -> list[Line]:
        """The lines with the command, once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := [line for line in self.lines if line.command == command]) < count:
                self._changed.clear()
                await self._changed.wait()
        return found

    async def joined(self) -> None:
        """Until a client is logged in."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._registered:
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, self._registered, self._sasl, self.capabilities = writer, False, "", set()
        with contextlib.suppress(OSError):
            while data := await reader.readline():
                _, _, rest = data.partition(b" ") if data.startswith(b"@") else (b"", b"", data)
                if len(rest) > MAX_LINE:
                    self.problems.append(f"a line of {len(rest)} bytes")
                    self.tell("ERROR :Request too long")
                    break
                self._obey(parse_line(data))
        if self._writer is writer:
            self._registered = False
        writer.close()

    def _obey(self, line: Line) -> None:
        if line.command == "PING":
            self.tell(f":irc.test PONG irc.test :{line.param(0)}")
            return
        self.lines.append(line)
        self._changed.set()
        if line.tags and "message-tags" not in self.capabilities:
            self.problems.append(f"tags without message-tags: {line}")
        match line.command:
            case "CAP":
                self._cap(line)
            case "AUTHENTICATE":
                self._authenticate(line.param(0))
            case "NICK" | "USER" | "PASS" | "QUIT":
                pass
            case _ if not self._registered:
                self.problems.append(f"{line.command} before the log-in")
            case "JOIN":
                self.tell(f":claw!{MASK} JOIN {line.param(0)}")
            case "USERHOST":
                self.tell(f":irc.test 302 claw :{line.param(0)}=+u@h")
            case "PRIVMSG":
                self._message(line)
            case _:
                pass

    def _cap(self, line: Line) -> None:
        match line.param(0):
            case "LS":
                first, _, rest = self.offered.partition(" ")
                self.tell(f":irc.test CAP * LS * :{first}")
                self.tell(f":irc.test CAP * LS :{rest}")
            case "REQ":
                wanted = set(line.param(1).split())
                known = {one.partition("=")[0] for one in self.offered.split()}
                if not wanted <= known:
                    self.problems.append(f"capabilities that were not offered: {wanted - known}")
                self.capabilities |= wanted
                self.tell(f":irc.test CAP * ACK :{line.param(1)}")
            case "END":
                self._registered = True
                self.tell(f":irc.test 001 claw :Welcome claw!{MASK}")
                self.tell(":irc.test 005 claw CASEMAPPING=ascii CHANTYPES=# NETWORK=TestNet :are supported")
                self.tell(":irc.test 422 claw :no message of the day")
            case _:
                pass

    def _authenticate(self, text: str) -> None:
        if text in ("PLAIN", "EXTERNAL"):
            self.tell("AUTHENTICATE +")
            return
        self._sasl += "" if text == "+" else text
        if len(text) == 400:
            return
        _, name, password = base64.b64decode(self._sasl).decode().split("\0")
        self._sasl = ""
        if self.accounts.get(name) == password:
            self.logged_in_as = name
            self.tell(":irc.test 903 claw :SASL authentication successful")
        else:
            self.tell(":irc.test 904 claw :SASL authentication failed")

    def _message(self, line: Line) -> None:
        target, text = line.params
        if self.drop_next and target[0] != "#":
            self.drop_next = False
            self.disconnect()
            return
        label = f"label={line.tags['label']}" if "label" in line.tags else ""
        if target in self.refuse:
            self.tell(f"{'@' + label + ' ' if label else ''}:irc.test {self.refuse[target]} claw {target} :refused")
            return
        if target == "NickServ":
            self.tell(f":NickServ!s@services NOTICE claw :{'ok' if text.endswith('right-password') else 'wrong'}")
        self._sent += 1
        if "echo-message" in self.capabilities:
            tags = ";".join(tag for tag in (label, f"msgid=own-{self._sent}") if tag)
            self.tell(f"@{tags} :claw!{MASK} PRIVMSG {target} :{text}")
