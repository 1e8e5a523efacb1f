"""A stand-in for Discord's REST API and gateway that refuses what the real ones refuse, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections import deque
from typing import Any

from aiohttp import WSMsgType, web
from zstandard import COMPRESSOBJ_FLUSH_BLOCK, ZstdCompressor

from tests.support.vendor_server import VendorServer

TOKEN = "MTEwMjAxNTQz.Gabcde.dummy-token-of-a-test-bot-0123456789"
BOT, ANN, BOB = "900000000000000001", "900000000000000042", "900000000000000043"
GUILD, CHANNEL, THREAD, DM = "800000000000000001", "700000000000000001", "700000000000000002", "700000000000000042"
INTENTS = (1 << 0) | (1 << 9) | (1 << 12) | (1 << 15)


class Refusal(Exception):
    def __init__(self, status: int, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.more = status, code, more


class DiscordServer(VendorServer):
    """``async with DiscordServer() as discord``; ``discord.url`` is the ``apiRoot``."""

    def __init__(self, token: str = TOKEN, heartbeat_ms: int = 20_000) -> None:
        self.token = token
        self.heartbeat_ms = heartbeat_ms
        self.calls: list[tuple[str, Any]] = []
        """What was carried out, in order: ``POST /channels/…/messages`` and its body."""
        self.refused: list[tuple[str, str]] = []
        self.messages: dict[str, dict[str, Any]] = {}
        """What the bot wrote and has not deleted."""
        self.files: dict[str, bytes] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.identified: list[dict[str, Any]] = []
        self.resumed: list[dict[str, Any]] = []
        self.heartbeats = 0
        self.content_type = "application/json"
        self.more_headers = {"Via": "1.1 google"}
        self.close_next: int | None = None
        """The next connection is closed with this code after it identified itself."""
        self.threads: dict[str, dict[str, Any]] = {}
        """Threads that the bot began."""
        self._id = 1_000_000_000_000_000_000
        self._nonces: dict[tuple[str, str], str] = {}
        self._interactions: dict[str, str] = {}
        self._faults: deque[tuple[str, Any]] = deque()
        self._session = ""
        self._sequence = 0
        self._events: list[dict[str, Any]] = []
        self._socket: web.WebSocketResponse | None = None
        self._deflate: Any = None
        self._flush = 0
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v10"

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/gateway", self._gateway)
        app.router.add_get("/files/{name}", self._file)
        app.router.add_route("*", "/api/v10/{path:.*}", self._serve)
        return app

    # What a test does with it

    def new_id(self) -> str:
        self._id += 1
        return str(self._id)

    def user(self, user_id: str = ANN) -> dict[str, Any]:
        name = {ANN: "Ann", BOB: "Bob", BOT: "Claw"}.get(user_id, "Somebody")
        bot = {"bot": True} if user_id == BOT else {}
        return {
            "id": user_id,
            "username": name.lower(),
            "global_name": name,
            "discriminator": "0",
            "avatar": None,
            **bot,
        }

    def message(self, content: str, *, channel: str = DM, author: str = ANN, **more: Any) -> dict[str, Any]:
        mentioned = [self.user(one) for one in dict.fromkeys(re.findall(r"<@!?(\d+)>", content))]
        guild = {} if channel == DM else {"guild_id": GUILD, "member": {"nick": None, "roles": []}}
        return {
            "id": self.new_id(),
            "channel_id": channel,
            "author": self.user(author),
            "content": content,
            "type": 0,
            "timestamp": "2026-11-17T09:00:00.000000+00:00",
            "edited_timestamp": None,
            "mentions": mentioned,
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            **guild,
            **more,
        }

    async def say(self, content: str, **more: Any) -> dict[str, Any]:
        message = self.message(content, **more)
        await self.dispatch("MESSAGE_CREATE", message)
        return message

    async def command(self, name: str, words: str = "", *, channel: str = DM, user: str = ANN) -> str:
        """Somebody uses a slash command. Returns the id of the interaction."""
        number, token = self.new_id(), f"interaction-token-{self._id}"
        self._interactions[token] = "new"
        options = [{"name": "input", "type": 3, "value": words}] if words else []
        who = {"user": self.user(user)} if channel == DM else {"member": {"user": self.user(user)}, "guild_id": GUILD}
        data = {"id": self.new_id(), "name": name, "type": 1, "options": options}
        event = {"id": number, "application_id": BOT, "type": 2, "token": token, "channel_id": channel, "data": data}
        await self.dispatch("INTERACTION_CREATE", {**event, **who, "version": 1})
        return number

    async def dispatch(self, event: str, data: Any) -> None:
        self._sequence += 1
        whole = {"op": 0, "t": event, "s": self._sequence, "d": data}
        self._events.append(whole)
        if event == "MESSAGE_CREATE":
            self.history.setdefault(data["channel_id"], []).append(data)
        if self._socket is not None and not self._socket.closed:
            await self._write(self._socket, whole)

    async def repeat_all(self) -> None:
        """The events of messages once more, newest first, under new numbers."""
        for one in [one for one in reversed(self._events) if one["t"] == "MESSAGE_CREATE"]:
            self._sequence += 1
            assert self._socket is not None
            await self._write(self._socket, {**one, "s": self._sequence})

    async def disconnect(self, code: int = 4000) -> None:
        if self._socket is not None:
            await self._socket.close(code=code)
            self._socket = None

    def forget_session(self) -> None:
        """The session cannot be resumed any more, and its events are not repeated."""
        self._session, self._events = "", []

    def fail_next(self, call: str, status: int, code: int = 0, message: str = "", **more: Any) -> None:
        """``call`` is the beginning of ``POST /channels/…``."""
        self._faults.append((call, Refusal(status, code, message or f"Error {status}", **more)))

    def drop_next(self, call: str) -> None:
        """Carries the call out, then closes the connection without an answer."""
        self._faults.append((call, "drop"))

    def of(self, call: str) -> list[Any]:
        return [body for name, body in self.calls if name.startswith(call)]

    async def called(self, call: str, count: int = 1) -> list[Any]:
        await self.until(lambda: len(self.of(call)) >= count)
        return self.of(call)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    async def connected(self) -> None:
        await self.until(lambda: self._socket is not None)

    def texts(self, channel: str = DM) -> list[str]:
        return [one["content"] for one in self.messages.values() if one["channel_id"] == channel]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # The gateway

    async def _write(self, socket: web.WebSocketResponse, payload: Any) -> None:
        data = json.dumps(payload).encode()
        await socket.send_bytes(self._deflate.compress(data) + self._deflate.flush(self._flush))

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.query["v"] == "10" and request.query["encoding"] == "json"
        kind = request.query["compress"]
        self._deflate = {"zlib-stream": zlib.compressobj, "zstd-stream": ZstdCompressor().compressobj}[kind]()
        self._flush = zlib.Z_SYNC_FLUSH if kind == "zlib-stream" else COMPRESSOBJ_FLUSH_BLOCK
        await self._write(socket, {"op": 10, "d": {"heartbeat_interval": self.heartbeat_ms}, "t": None, "s": None})
        beats = 0
        while True:
            try:
                # Discord closes a connection that is silent for too long.
                async with asyncio.timeout(self.heartbeat_ms / 1000 * 3):
                    received = await socket.receive()
            except TimeoutError:
                await socket.close(code=4009)
                break
            if received.type is not WSMsgType.TEXT:
                break
            frame = json.loads(received.data)
            match frame["op"]:
                case 1:
                    beats += 1
                    self.heartbeats += 1
                    await self._write(socket, {"op": 11, "d": None, "t": None, "s": None})
                    await self._tell()
                case 2:
                    await self._identify(socket, frame["d"])
                case 6:
                    await self._resume(socket, frame["d"])
                case other:
                    await socket.close(code=4001, message=f"unknown opcode {other}".encode())
        if self._socket is socket:
            self._socket = None
        return socket

    async def _identify(self, socket: web.WebSocketResponse, data: dict[str, Any]) -> None:
        if data["token"] != self.token:
            await socket.close(code=4004)
            return
        if self.close_next is not None:
            code, self.close_next = self.close_next, None
            await socket.close(code=code)
            return
        assert data["intents"] & INTENTS == INTENTS, "an intent is missing"
        self.identified.append(data)
        self._session, self._sequence = f"session-{self.new_id()}", 0
        self._events = []
        resume = f"ws://127.0.0.1:{self.port}/gateway"
        ready = {"v": 10, "user": self.user(BOT), "guilds": [{"id": GUILD, "unavailable": True}]}
        self._sequence += 1
        about = {"session_id": self._session, "resume_gateway_url": resume, "application": {"id": BOT, "flags": 0}}
        await self._write(socket, {"op": 0, "t": "READY", "s": self._sequence, "d": {**ready, **about}})
        channels = [
            {"id": CHANNEL, "type": 0, "name": "general", "topic": "All and nothing"},
            {"id": "700000000000000009", "type": 2, "name": "voice"},
        ]
        threads = [{"id": THREAD, "type": 11, "name": "plans", "parent_id": CHANNEL, "guild_id": GUILD}]
        self._socket = socket
        await self.dispatch("GUILD_CREATE", {"id": GUILD, "name": "Friends", "channels": channels, "threads": threads})
        await self._tell()

    async def _resume(self, socket: web.WebSocketResponse, data: dict[str, Any]) -> None:
        self.resumed.append(data)
        if data["token"] != self.token:
            await socket.close(code=4004)
        elif data["session_id"] != self._session or data["seq"] > self._sequence:
            await self._write(socket, {"op": 9, "d": False, "t": None, "s": None})
        else:
            for event in [one for one in self._events if one["s"] > data["seq"]]:
                await self._write(socket, event)
            self._sequence += 1
            await self._write(socket, {"op": 0, "t": "RESUMED", "s": self._sequence, "d": {}})
            self._socket = socket
            await self._tell()

    # The API

    async def _file(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["name"])
        return web.Response(status=404) if data is None else web.Response(body=data)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call = f"{request.method} /{request.match_info['path']}"
        try:
            if request.headers.get("Authorization") != f"Bot {self.token}":
                raise Refusal(401, 0, "401: Unauthorized")
            fault = None
            if self._faults and call.startswith(self._faults[0][0]):
                _, fault = self._faults.popleft()
            if isinstance(fault, Refusal):
                raise fault
            body = await self._body(request)
            result = self._do(request.method, request.match_info["path"].split("/"), body, request)
            self.calls.append((call, body))
            await self._tell()
            if fault == "drop":
                assert request.transport is not None
                request.transport.abort()
            if result is None:
                return web.Response(status=204)
            # The real API sends no charset, and the library reads nothing else as JSON.
            return web.Response(body=json.dumps(result).encode(), headers={"Content-Type": self.content_type})
        except Refusal as refusal:
            self.refused.append((call, str(refusal)))
            await self._tell()
            answer = {"message": str(refusal), "code": refusal.code, **refusal.more}
            headers = {"Content-Type": self.content_type, **self.more_headers}
            if "retry_after" in refusal.more and self.more_headers:
                headers["Retry-After"] = str(refusal.more["retry_after"])
            return web.Response(status=refusal.status, body=json.dumps(answer).encode(), headers=headers)

    async def _body(self, request: web.Request) -> Any:
        if request.content_type == "multipart/form-data":
            form = await request.post()
            body = json.loads(str(form["payload_json"]))
            for name, value in form.items():
                if isinstance(value, web.FileField):
                    body.setdefault("files", []).append((value.filename, value.file.read()))
                assert name == "payload_json" or re.fullmatch(r"files\[\d\]", name)
            return body
        return await request.json() if request.can_read_body else None

    def _do(self, method: str, path: list[str], body: Any, request: web.Request) -> Any:
        match (method, *path):
            case ("GET", "users", "@me"):
                return self.user(BOT)
            case ("GET", "gateway", "bot"):
                limit = {"total": 1000, "remaining": 999, "reset_after": 1, "max_concurrency": 1}
                return {"url": f"ws://127.0.0.1:{self.port}/gateway", "shards": 1, "session_start_limit": limit}
            case ("PUT", "applications", _, "commands"):
                if any(not re.fullmatch(r"[-_\w]{1,32}", one["name"]) or not one["description"] for one in body):
                    raise Refusal(400, 50035, "Invalid Form Body")
                return body
            case ("GET", "channels", channel) if channel in self.threads:
                return self.threads[channel]
            case ("POST", "users", "@me", "channels"):
                return {"id": DM if body["recipient_id"] == ANN else f"7{body['recipient_id'][1:]}", "type": 1}
            case ("POST", "channels", channel, "typing"):
                return self._known(channel)
            case ("GET", "channels", channel, "messages"):
                later = [one for one in self.history.get(channel, []) if int(one["id"]) > int(request.query["after"])]
                return list(reversed(later[: int(request.query["limit"])]))
            case ("POST", "channels", channel, "messages"):
                self._known(channel)
                if body.get("flags", 0) & 8192 and (body.get("content") or len(body.get("files", [])) != 1):
                    raise Refusal(400, 50160, "Voice messages cannot contain other content")
                return self._keep(channel, body)
            case ("GET", "channels", channel, "messages", message):
                return self._written(channel, message)
            case ("POST", "channels", channel, "messages", message, "threads"):
                if not 1 <= len(body["name"]) <= 100 or body["auto_archive_duration"] not in (60, 1440, 4320, 10080):
                    raise Refusal(400, 50035, "Invalid Form Body")
                self._written(channel, message)
                if message in self.threads:
                    raise Refusal(400, 160004, "A thread has already been created for this message")
                thread = {"id": message, "type": 11, "parent_id": channel, "owner_id": BOT, "guild_id": GUILD}
                self.threads[message] = {**thread, "name": body["name"], "thread_metadata": {"archived": False}}
                return self.threads[message]
            case ("PATCH", "channels", _, "messages", message):
                self._message(message).update(self._checked(body))
                return self._message(message)
            case ("DELETE", "channels", _, "messages", message):
                self._message(message)
                del self.messages[message]
                return None
            case ("PUT" | "DELETE", "channels", channel, "messages", "pins", message):
                self._known(channel)
                self._message(message)
                return None
            case ("PUT" | "DELETE", "channels", _, "messages", message, "reactions", emoji, "@me"):
                if emoji.isascii() and ":" not in emoji:
                    raise Refusal(400, 10014, "Unknown Emoji")
                if message not in self.messages:
                    self._written(path[1], message)
                return None
            case ("POST", "interactions", _, token, "callback") if self._interactions.get(token) == "new":
                self._interactions[token] = "deferred" if body["type"] == 5 else "answered"
                return None
            case ("PATCH" | "POST", "webhooks", application, *_) if application != BOT:
                raise Refusal(404, 10002, "Unknown Application")
            case ("PATCH", "webhooks", _, token, "messages", "@original") if token in self._interactions:
                if self._interactions[token] != "deferred":
                    raise Refusal(404, 10015, "Unknown Webhook")
                self._interactions[token] = "answered"
                return self._keep(DM, {**body, "answer": token})
            case ("POST", "webhooks", _, token) if self._interactions.get(token) == "answered":
                return self._keep(DM, {**body, "answer": token})
            case _:
                raise Refusal(404, 0, "404: Not Found")

    def _known(self, channel: str) -> None:
        if channel not in (CHANNEL, THREAD, DM, *self.threads):
            raise Refusal(404, 10003, "Unknown Channel")

    def _written(self, channel: str, message: str) -> dict[str, Any]:
        """A message that somebody wrote into this channel."""
        for one in self.history.get(channel, []):
            if one["id"] == message:
                return one
        raise Refusal(404, 10008, "Unknown Message")

    def _message(self, message: str) -> dict[str, Any]:
        if message not in self.messages:
            raise Refusal(404, 10008, "Unknown Message")
        return self.messages[message]

    def _checked(self, body: dict[str, Any]) -> dict[str, Any]:
        if len(body.get("content", "")) > 2000:
            raise Refusal(400, 50035, "Invalid Form Body: Must be 2000 or fewer in length.")
        if not body.get("content") and not body.get("files"):
            raise Refusal(400, 50006, "Cannot send an empty message")
        if len(str(body.get("nonce", ""))) > 25:
            raise Refusal(400, 50035, "Invalid Form Body: nonce")
        return body

    def _keep(self, channel: str, body: dict[str, Any]) -> dict[str, Any]:
        self._checked(body)
        key = (channel, str(body.get("nonce")))
        if body.get("enforce_nonce") and key in self._nonces:
            return self.messages[self._nonces[key]]
        message = {"id": self.new_id(), "channel_id": channel, "author": self.user(BOT), "content": "", **body}
        message.pop("files", None)
        self.messages[message["id"]] = message
        self._nonces[key] = message["id"]
        return message
