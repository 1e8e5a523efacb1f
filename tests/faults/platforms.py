"""Every platform behind one face: somebody writes, reads what comes back, and the platform fails in a chosen way.

The servers are the stand-ins of ``tests/support``, and for Matrix a real Synapse behind a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from typing import Any

import aiohttp
from aiohttp import web

from openclaw.outbound.reply import REPEAT_MARK
from tests.support import bluebubbles_server, discord_server, telegram_server, whatsapp_server
from tests.support.bluebubbles_server import BlueBubblesServer
from tests.support.discord_server import DiscordServer
from tests.support.gateway import GatewayUnderTest
from tests.support.ircv3_server import Ircv3Server
from tests.support.signal_daemon import SignalDaemon
from tests.support.slack_server import SlackServer
from tests.support.synapse import Human, shared_synapse
from tests.support.telegram_server import TelegramServer
from tests.support.vendor_server import VendorServer
from tests.support.whatsapp_server import WhatsAppServer

CHUNK = 40
"""The longest part, so that every reply has several."""
NUMBER = "+15550000001"
SIGNAL_ANN = "+15550000042"


class Platform:
    """One chat platform and one person who may write to the agent there."""

    name = ""
    idempotent = False
    """Whether the platform tells a second try from a new message."""
    redelivers = True
    """Whether a message that was not confirmed comes again."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    async def __aenter__(self) -> Platform:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def section(self) -> dict[str, Any]:
        raise NotImplementedError

    def reaches(self, gateway: GatewayUnderTest) -> None:
        """Where the platform finds the Gateway, if it calls."""

    async def say(self, text: str) -> None:
        raise NotImplementedError

    async def repeat(self) -> None:
        """Everything that was said comes once more."""
        raise NotImplementedError

    async def cut(self) -> None:
        """The connections break, and the platform is there again a moment later."""
        raise NotImplementedError

    def fail_next(self) -> None:
        """The next part is refused with a fault of the server."""
        raise NotImplementedError

    def drop_next(self) -> None:
        """The next part is taken, and nobody learns of it."""
        raise NotImplementedError

    def texts(self) -> list[str]:
        """What the person has got, in order."""
        raise NotImplementedError


class _Served(Platform):
    """A platform that is a stand-in with HTTP."""

    server: VendorServer

    async def open(self) -> None:
        await self.server.start()

    async def close(self) -> None:
        await self.server.stop()

    async def cut(self) -> None:
        await self.server.stop()
        await self.server.start()


class Telegram(_Served):
    name = "telegram"

    def __init__(self) -> None:
        super().__init__()
        self.server = self.telegram = TelegramServer()

    def section(self) -> dict[str, Any]:
        token, allowed = telegram_server.TOKEN, [telegram_server.ANN]
        return {"botToken": token, "apiRoot": self.telegram.url, "allowFrom": allowed}

    async def say(self, text: str) -> None:
        await self.telegram.say(text)

    async def repeat(self) -> None:
        await self.telegram.repeat_all()

    def fail_next(self) -> None:
        self.telegram.fail_next("sendMessage", 502)

    def drop_next(self) -> None:
        self.telegram.drop_next("sendMessage")

    def texts(self) -> list[str]:
        return self.telegram.texts()


class Discord(_Served):
    name, idempotent = "discord", True

    def __init__(self) -> None:
        super().__init__()
        self.server = self.discord = DiscordServer()

    def section(self) -> dict[str, Any]:
        allowed = {"allowFrom": [discord_server.ANN]}
        return {"token": discord_server.TOKEN, "apiRoot": self.discord.url, "dm": allowed}

    async def say(self, text: str) -> None:
        await self.discord.say(text)

    async def repeat(self) -> None:
        await self.discord.connected()
        await self.discord.repeat_all()

    def fail_next(self) -> None:
        self.discord.fail_next(f"POST /channels/{discord_server.DM}/messages", 502)

    def drop_next(self) -> None:
        self.discord.drop_next(f"POST /channels/{discord_server.DM}/messages")

    def texts(self) -> list[str]:
        return self.discord.texts()


class Slack(_Served):
    name = "slack"

    def __init__(self) -> None:
        super().__init__()
        self.server = self.slack = SlackServer()

    def section(self) -> dict[str, Any]:
        return {**self.slack.settings, "dm": {"allowFrom": ["U0ANN"]}}

    async def say(self, text: str) -> None:
        self.said.append(await self.slack.say(text))

    async def repeat(self) -> None:
        await self.slack.connected()
        for event in self.said:
            await self.slack.deliver(event)

    def fail_next(self) -> None:
        self.slack.refuse_next("chat.postMessage", "internal_error", 500)

    def drop_next(self) -> None:
        self.slack.drop_next("chat.postMessage")

    def texts(self) -> list[str]:
        return [post["text"] for post in self.slack.ours]


class _Calling(_Served):
    """A platform that calls the Gateway, and again until it is answered."""

    async def post(self, body: Any) -> int:
        raise NotImplementedError

    async def hand_over(self, body: Any) -> None:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    if await self.post(body) == 200:
                        return
                await asyncio.sleep(0.05)

    async def repeat(self) -> None:
        for body in self.said:
            await self.hand_over(body)


class WhatsApp(_Calling):
    name = "whatsapp"

    def __init__(self) -> None:
        super().__init__()
        self.server = self.whatsapp = WhatsAppServer()

    def section(self) -> dict[str, Any]:
        return {**self.whatsapp.settings, "allowFrom": [f"+{whatsapp_server.ANN}"]}

    def reaches(self, gateway: GatewayUnderTest) -> None:
        self.whatsapp.webhook = f"{gateway.url}/whatsapp/webhook"

    async def post(self, body: Any) -> int:
        return await self.whatsapp.post(body)

    async def say(self, text: str) -> None:
        body = self.whatsapp.body(self.whatsapp.message(text))
        self.said.append(body)
        await self.hand_over(body)

    def fail_next(self) -> None:
        self.whatsapp.refuse_next(131000, "Something went wrong", 500)

    def drop_next(self) -> None:
        self.whatsapp.drop_next()

    def texts(self) -> list[str]:
        return [one["text"]["body"] for one in self.whatsapp.delivered if one.get("type") == "text"]


class BlueBubbles(_Calling):
    name = "bluebubbles"

    def __init__(self) -> None:
        super().__init__()
        self.server = self.bluebubbles = BlueBubblesServer()

    def section(self) -> dict[str, Any]:
        return {**self.bluebubbles.settings, "allowFrom": [bluebubbles_server.ANN]}

    def reaches(self, gateway: GatewayUnderTest) -> None:
        self.bluebubbles.webhook = f"{gateway.url}/bluebubbles-webhook"

    async def post(self, body: Any) -> int:
        return await self.bluebubbles.post(body)

    async def say(self, text: str) -> None:
        body = self.bluebubbles.event(self.bluebubbles.keep(self.bluebubbles.message(text)))
        self.said.append(body)
        await self.hand_over(body)

    def fail_next(self) -> None:
        self.bluebubbles.faults.append(502)

    def drop_next(self) -> None:
        self.bluebubbles.faults.append("drop")

    def texts(self) -> list[str]:
        return [one["text"] for one in self.bluebubbles.ours]


class Signal(Platform):
    name = "signal"

    def __init__(self) -> None:
        super().__init__()
        self.daemon = SignalDaemon(NUMBER)

    async def open(self) -> None:
        await self.daemon.start()

    async def close(self) -> None:
        await self.daemon.stop()

    async def cut(self) -> None:
        await self.daemon.stop()
        await self.daemon.start()

    def section(self) -> dict[str, Any]:
        return {"account": NUMBER, "httpUrl": self.daemon.url, "autoStart": False, "allowFrom": [SIGNAL_ANN]}

    async def say(self, text: str) -> None:
        await self.daemon.say(text, sender=SIGNAL_ANN)

    async def repeat(self) -> None:
        await self.daemon.repeat_all()

    def fail_next(self) -> None:
        self.daemon.refuse_next("send", -3, "IOException: 502 from the server")

    def drop_next(self) -> None:
        self.daemon.drop_next("send")

    def texts(self) -> list[str]:
        return [call["message"] for call in self.daemon.of("send")]


class Irc(Platform):
    """IRC has neither confirmations nor errors of the server for a message: it fails by losing the connection."""

    name, redelivers = "irc", False

    def __init__(self) -> None:
        super().__init__()
        self.irc = Ircv3Server()

    async def open(self) -> None:
        await self.irc.__aenter__()

    async def close(self) -> None:
        await self.irc.__aexit__()

    async def cut(self) -> None:
        self.irc.disconnect()

    def section(self) -> dict[str, Any]:
        server = {"host": "127.0.0.1", "port": self.irc.port, "tls": False, "nick": "claw", "channels": ["#room"]}
        return {**server, "allowFrom": ["ann!u@h"]}

    async def say(self, text: str) -> None:
        await self.irc.joined()
        line = f"@msgid=in-{len(self.said)} :ann!u@h PRIVMSG claw :{text}"
        self.said.append(line)
        self.irc.tell(line)

    async def repeat(self) -> None:
        await self.irc.joined()
        for line in self.said:
            self.irc.tell(line)

    def fail_next(self) -> None:
        self.irc.disconnect()

    def drop_next(self) -> None:
        self.irc.drop_next = True

    def texts(self) -> list[str]:
        said = [line.params for line in self.irc.lines if line.command == "PRIVMSG"]
        return [text for target, text in said if target == "ann"]


class Matrix(Platform):
    name, idempotent = "matrix", True

    async def open(self) -> None:
        self._synapse = shared_synapse()
        self.proxy = MatrixProxy(self._synapse.url)
        await self.proxy.start()
        self.ann = await Human(self._synapse, "ann").__aenter__()
        self.bot = await Human(self._synapse, "bot").__aenter__()
        self.room = ""
        self._seen: list[str] = []

    async def close(self) -> None:
        await self.ann.__aexit__(None, None, None)
        await self.bot.__aexit__(None, None, None)
        await self.proxy.stop()

    def section(self) -> dict[str, Any]:
        account = {"userId": self.bot.user_id, "accessToken": self.bot.token, "deviceId": self.bot.device_id}
        allowed = {"policy": "allowlist", "allowFrom": [self.ann.user_id]}
        return {"homeserver": self.proxy.url, **account, "dm": allowed}

    async def say(self, text: str) -> None:
        if not self.room:
            self.room = await self.ann.create_room(self.bot.user_id, is_direct=True)
            await self.ann.joined(self.room, self.bot.user_id)
        await self.ann.send(self.room, text)

    async def repeat(self) -> None:
        self.proxy.forget_next = True

    async def cut(self) -> None:
        await self.proxy.stop()
        await self.proxy.start()

    def fail_next(self) -> None:
        self.proxy.faults.append("fail")

    def drop_next(self) -> None:
        self.proxy.faults.append("drop")

    async def look(self) -> None:
        if self.room:
            self._seen = [one["content"]["body"] for one in await self.ann.events(self.room, self.bot.user_id)]

    def texts(self) -> list[str]:
        return self._seen


class MatrixProxy(VendorServer):
    """Passes everything on to a Matrix server, and fails where a message is sent."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.faults: deque[str] = deque()
        self.forget_next = False
        """The next sync begins anew, as if the client had not told where it was."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        return app

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        sends = request.method == "PUT" and "/send/m.room.message/" in request.path
        fault = self.faults.popleft() if sends and self.faults else ""
        if fault == "fail":
            return web.json_response({"errcode": "M_UNKNOWN", "error": "Bad Gateway"}, status=502)
        query = dict(request.query)
        if request.path.endswith("/sync") and self.forget_next and query.pop("since", None):
            self.forget_next = False
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        async with (
            aiohttp.ClientSession() as http,
            http.request(
                request.method,
                f"{self._upstream}{request.rel_url.raw_path}",
                params=query,
                headers=headers,
                data=await request.read(),
            ) as answer,
        ):
            body = await answer.read()
        if fault == "drop" and request.transport is not None:
            request.transport.abort()
        return web.Response(status=answer.status, body=body, content_type=answer.content_type)


PLATFORMS = (Telegram, Discord, Slack, WhatsApp, BlueBubbles, Signal, Irc, Matrix)


def words_of(tag: str, count: int) -> list[str]:
    return [f"{tag}w{number:02d}" for number in range(count)]


class Reading:
    """What a person has read of one reply: whether it is whole, and how often a part came twice."""

    def __init__(self, texts: list[str], tag: str, count: int) -> None:
        self.missing = count
        self.repeats = 0
        self.unmarked: list[str] = []
        """Repeats that were not marked as such."""
        for text in texts:
            numbers = [int(number) for number in re.findall(rf"\b{tag}w(\d+)\b", text)]
            if not numbers:
                continue
            done = count - self.missing
            if numbers[0] == done:
                self.missing -= len(numbers)
                continue
            assert numbers[-1] < done, f"a part of {tag} is missing or out of order: {texts}"
            self.repeats += 1
            if REPEAT_MARK not in text:
                self.unmarked.append(text)
