"""A stand-in for Slack: its Web API, Socket Mode and files, over real HTTP and WebSockets on loopback.

It refuses what Slack refuses: wrong tokens, unknown methods, channels and messages, empty and too long texts. It is
stricter in one point: arguments that Slack would silently ignore are refused.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.vendor_server import VendorServer

BOT_TOKEN, APP_TOKEN = "xoxb-canary-0123456789-abcdef", "xapp-1-canary-0123456789-abcdef"
BOT, BOT_ID, TEAM = "U0BOT", "B0BOT", "T0TEAM"
STAMP = re.compile(r"\d{10}\.\d{6}")
LONGEST = 40_000
ARGUMENTS: dict[str, set[str]] = {
    "auth.test": set(),
    "apps.connections.open": set(),
    "users.info": {"user", "include_locale"},
    "conversations.info": {"channel", "include_locale", "include_num_members"},
    "conversations.open": {"users", "return_im"},
    "conversations.history": {"channel", "limit", "include_all_metadata", "inclusive", "latest", "oldest", "cursor"},
    "conversations.replies": {"channel", "ts", "limit", "include_all_metadata", "inclusive", "latest", "oldest"},
    "chat.postMessage": {"channel", "text", "thread_ts", "metadata", "reply_broadcast", "mrkdwn"},
    "chat.postEphemeral": {"channel", "text", "user", "thread_ts"},
    "chat.update": {"channel", "ts", "text"},
    "chat.delete": {"channel", "ts"},
    "reactions.add": {"channel", "timestamp", "name"},
    "pins.add": {"channel", "timestamp"},
    "pins.remove": {"channel", "timestamp"},
    "reactions.remove": {"channel", "timestamp", "name"},
    "files.getUploadURLExternal": {"filename", "length", "alt_txt"},
    "files.completeUploadExternal": {"files", "channel_id", "thread_ts", "initial_comment"},
    "assistant.threads.setStatus": {"channel_id", "thread_ts", "status"},
}
EMOJI = {"+1", "eyes", "tada", "rocket", "heart", "white_check_mark"}


class SlackRefusal(Exception):
    def __init__(self, error: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.headers = headers or {}


class SlackServer(VendorServer):
    """``async with SlackServer() as slack``. ``channels.slack`` is configured with ``slack.settings``."""

    def __init__(self) -> None:
        self.people = {"U0ANN": "Ann", "U0BOB": "Bob", BOT: "claw"}
        self.rooms: dict[str, dict[str, Any]] = {
            "C0GENERAL": {"name": "general"},
            "G0SECRET": {"name": "secret", "is_private": True},
            "C0MPIM": {"name": "mpdm-ann--bob", "is_mpim": True},
            "D0ANN": {"is_im": True, "user": "U0ANN"},
            "D0BOB": {"is_im": True, "user": "U0BOB"},
        }
        self.member_of = set(self.rooms)
        self.posted: list[dict[str, Any]] = []
        """The messages that people can see, in order, with ``channel`` and ``ts``."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refused: list[tuple[str, str]] = []
        self.files: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}
        self.reactions: set[tuple[str, str, str]] = set()
        self.pins: set[tuple[str, str]] = set()
        self.acknowledged: list[str] = []
        self.strange: list[str] = []
        """What a client did that Slack would not understand. A test asserts that it is empty."""
        self.file_tokens: list[str | None] = []
        self.unacknowledged: dict[str, dict[str, Any]] = {}
        self.sockets: list[web.WebSocketResponse] = []
        self.opened = 0
        self.hello = True
        self._tickets: set[str] = set()
        self._faults: dict[str, deque[SlackRefusal | str]] = {}
        self._clock = 1_794_766_939
        self._number = 0
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"botToken": BOT_TOKEN, "appToken": APP_TOKEN, "apiRoot": f"{self.url}/api/"}

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/api/{method}", self._api)
        app.router.add_get("/link", self._link)
        app.router.add_get("/files-pri/{name}", self._file)
        app.router.add_post("/upload/{name}", self._upload)
        return app

    # What a test does with it

    def stamp(self) -> str:
        self._clock += 1
        return f"{self._clock}.{self._clock % 1_000_000:06d}"

    def message(self, text: str | None, *, user: str = "U0ANN", channel: str = "D0ANN", **more: Any) -> dict[str, Any]:
        """A ``message`` event as Slack words it."""
        room = self.rooms[channel]
        kind = "im" if room.get("is_im") else "mpim" if room.get("is_mpim") else None
        kind = kind or ("group" if room.get("is_private") else "channel")
        ts = more.pop("ts", None) or self.stamp()
        said = {"type": "message", "user": user, "text": text, "ts": ts, "team": TEAM, "blocks": [], **more}
        return {**said, "channel": channel, "channel_type": kind, "event_ts": ts, "client_msg_id": f"m-{ts}"}

    async def say(self, text: str | None, **more: Any) -> dict[str, Any]:
        """Somebody writes. Slack tells of it, and keeps it in its history."""
        event = self.message(text, **more)
        self.posted.append({**event, "by": event["user"]})
        await self.deliver(event)
        return event

    async def deliver(self, event: dict[str, Any], kind: str = "events_api") -> str:
        """Tells one connection of it. It is told again on the next connection if nobody acknowledges it."""
        payload = event
        if kind == "events_api":
            payload = {"token": "x", "team_id": TEAM, "api_app_id": "A1", "type": "event_callback", "event": event}
        self._number += 1
        envelope = {
            "envelope_id": f"envelope-{self._number}",
            "type": kind,
            "payload": payload,
            "accepts_response_payload": kind == "slash_commands",
        }
        self.unacknowledged[envelope["envelope_id"]] = envelope
        if self.sockets:
            await self.sockets[-1].send_str(json.dumps(envelope))
        return str(envelope["envelope_id"])

    async def again(self, envelope_id: str, event: dict[str, Any]) -> None:
        """Delivers an event that was acknowledged once more, as after a lost acknowledgement."""
        payload = {"type": "event_callback", "team_id": TEAM, "event": event}
        envelope = {"envelope_id": envelope_id, "type": "events_api", "payload": payload, "retry_attempt": 1}
        self.unacknowledged[envelope_id] = envelope
        await self.sockets[-1].send_str(json.dumps(envelope))

    async def write_raw(self, text: str) -> None:
        await self.sockets[-1].send_str(text)

    async def refresh(self, reason: str = "refresh_requested") -> None:
        """Asks the newest connection to be replaced. It stays open, as on Slack, until ``drop_oldest``."""
        await self.sockets[-1].send_str(json.dumps({"type": "disconnect", "reason": reason}))

    async def drop_oldest(self) -> None:
        await self.sockets.pop(0).close(code=1000)

    async def disconnect(self) -> None:
        sockets, self.sockets = self.sockets, []
        for socket in sockets:
            await socket.close(code=1001)

    def refuse_next(self, method: str, error: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._faults.setdefault(method, deque()).append(SlackRefusal(error, status, headers))

    def drop_next(self, method: str) -> None:
        """Carries the call out, then closes the connection without an answer."""
        self._faults.setdefault(method, deque()).append("drop")

    def of(self, method: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments in self.calls if name == method]

    @property
    def ours(self) -> list[dict[str, Any]]:
        """What the bot has posted."""
        return [post for post in self.posted if post.get("by") == BOT]

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def connected(self, count: int = 1) -> None:
        await self.until(lambda: self.opened >= count)

    async def called(self, method: str, count: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.of(method)) >= count)
        return self.of(method)

    async def wrote(self, count: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.ours) >= count)
        return self.ours

    async def all_acknowledged(self) -> None:
        await self.until(lambda: not self.unacknowledged)

    # Socket Mode

    async def _link(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            return web.Response(status=404)
        self._tickets.discard(ticket)
        socket = web.WebSocketResponse(heartbeat=30)
        await socket.prepare(request)
        self.sockets.append(socket)
        if self.hello:
            await socket.send_str(
                json.dumps({"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A1"}})
            )
        self.opened += 1
        self._changed.set()
        for envelope in list(self.unacknowledged.values()):
            await socket.send_str(json.dumps({**envelope, "retry_attempt": 1, "retry_reason": "timeout"}))
        try:
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    self._acknowledge(frame.data)
        finally:
            if socket in self.sockets:
                self.sockets.remove(socket)
            self._changed.set()
        return socket

    def _acknowledge(self, text: str) -> None:
        answer = json.loads(text)
        envelope_id = answer.get("envelope_id")
        if envelope_id not in self.unacknowledged and envelope_id not in self.acknowledged:
            self.strange.append(f"acknowledged {envelope_id}, which was not sent")
        if set(answer) - {"envelope_id", "payload"}:
            self.strange.append(f"an acknowledgement with {sorted(answer)}")
        self.unacknowledged.pop(envelope_id, None)
        self.acknowledged.append(envelope_id)
        self._changed.set()

    # Files

    async def _file(self, request: web.Request) -> web.StreamResponse:
        self.file_tokens.append(request.headers.get("Authorization"))
        name = request.match_info["name"]
        if name.startswith("moved-"):
            raise web.HTTPFound(f"/files-pri/{name.removeprefix('moved-')}?signed=1")
        signed = "signed" in request.query
        if not signed and request.headers.get("Authorization") != f"Bearer {BOT_TOKEN}":
            return web.Response(text="<html>Sign in to Slack</html>", content_type="text/html")
        if name not in self.files:
            return web.Response(status=404)
        return web.Response(body=self.files[name])

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        self.uploads[request.match_info["name"]] = await request.read()
        return web.Response(text="OK")

    # The Web API

    async def _api(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        arguments: dict[str, Any] = dict(request.query)
        if request.content_type == "application/json":
            arguments |= await request.json()
        else:
            arguments |= dict(await request.post())
        token = str(arguments.pop("token", "")) or request.headers.get("Authorization", "").removeprefix("Bearer ")
        fault = self._faults[method].popleft() if self._faults.get(method) else None
        try:
            if isinstance(fault, SlackRefusal):
                raise fault
            answer = self._carry_out(method, arguments, token)
        except SlackRefusal as refusal:
            self.refused.append((method, str(refusal)))
            self._changed.set()
            body = {"ok": False, "error": str(refusal)}
            return web.json_response(body, status=refusal.status, headers=refusal.headers)
        self._changed.set()
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"ok": True, **answer})

    def _carry_out(self, method: str, arguments: dict[str, Any], token: str) -> dict[str, Any]:
        if method not in ARGUMENTS:
            raise SlackRefusal("unknown_method")
        wanted = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        if token != wanted:
            raise SlackRefusal("invalid_auth" if token else "not_authed")
        if stray := set(arguments) - ARGUMENTS[method]:
            self.strange.append(f"{method} with {sorted(stray)}")
            raise SlackRefusal("invalid_arguments")
        for name in ("channel", "channel_id"):
            if name in arguments and arguments[name] not in self.rooms:
                raise SlackRefusal("channel_not_found")
        if (thread := arguments.get("thread_ts")) is not None and not STAMP.fullmatch(str(thread)):
            raise SlackRefusal("invalid_thread_ts")
        answer: dict[str, Any] = getattr(self, f"_{method.replace('.', '_')}")(arguments)
        self.calls.append((method, arguments))
        return answer

    def _auth_test(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"user_id": BOT, "bot_id": BOT_ID, "team_id": TEAM, "user": "claw", "team": "Test"}

    def _apps_connections_open(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        ticket = f"canary-ticket-{self._number}"
        self._tickets.add(ticket)
        return {"url": f"ws://127.0.0.1:{self.port}/link?ticket={ticket}"}

    def _users_info(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["user"] not in self.people:
            raise SlackRefusal("user_not_found")
        name = self.people[arguments["user"]]
        return {"user": {"id": arguments["user"], "name": name.lower(), "profile": {"display_name": name}}}

    def _conversations_info(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"channel": {"id": arguments["channel"], **self.rooms[arguments["channel"]]}}

    def _conversations_open(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for room, about in self.rooms.items():
            if about.get("user") == arguments["users"]:
                return {"channel": {"id": room}}
        raise SlackRefusal("user_not_found")

    def _conversations_history(self, arguments: dict[str, Any]) -> dict[str, Any]:
        found = [post for post in self.posted if post["channel"] == arguments["channel"] and not post.get("thread_ts")]
        return {"messages": [self._shown(post, arguments) for post in reversed(found)][: int(arguments["limit"])]}

    def _conversations_replies(self, arguments: dict[str, Any]) -> dict[str, Any]:
        ts = arguments["ts"]
        found = [
            post
            for post in self.posted
            if post["channel"] == arguments["channel"] and ts in (post["ts"], post.get("thread_ts"))
        ]
        if not found:
            raise SlackRefusal("thread_not_found")
        return {"messages": [self._shown(post, arguments) for post in found][: int(arguments["limit"])]}

    def _shown(self, post: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        hidden = {"by", "channel"} | (
            set() if str(arguments.get("include_all_metadata")) in ("1", "True") else {"metadata"}
        )
        return {name: value for name, value in post.items() if name not in hidden}

    def _chat_postMessage(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._writable(arguments)
        metadata = arguments.get("metadata")
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        post = {**arguments, "ts": self.stamp(), "by": BOT, "user": BOT, "bot_id": BOT_ID, "metadata": metadata}
        self.posted.append(post)
        return {"ts": post["ts"], "channel": arguments["channel"]}

    def _chat_postEphemeral(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._writable(arguments)
        self.posted.append({**arguments, "ts": self.stamp(), "by": BOT, "only_for": arguments["user"]})
        return {"message_ts": self.stamp()}

    def _writable(self, arguments: dict[str, Any]) -> None:
        text = str(arguments.get("text") or "")
        if not text.strip():
            raise SlackRefusal("no_text")
        if len(text) > LONGEST:
            raise SlackRefusal("msg_too_long")
        if arguments["channel"] not in self.member_of:
            raise SlackRefusal("not_in_channel")

    def _own(self, arguments: dict[str, Any], ts: str) -> dict[str, Any]:
        for post in self.ours:
            if (post["channel"], post["ts"]) == (arguments["channel"], ts):
                return post
        raise SlackRefusal("message_not_found")

    def _chat_update(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._writable(arguments)
        self._own(arguments, arguments["ts"])["text"] = arguments["text"]
        return {"ts": arguments["ts"]}

    def _chat_delete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.posted.remove(self._own(arguments, arguments["ts"]))
        return {"ts": arguments["ts"]}

    def _reactions_add(self, arguments: dict[str, Any]) -> dict[str, Any]:
        reaction = (arguments["channel"], arguments["timestamp"], arguments["name"])
        if arguments["name"] not in EMOJI:
            raise SlackRefusal("invalid_name")
        if reaction in self.reactions:
            raise SlackRefusal("already_reacted")
        self.reactions.add(reaction)
        return {}

    def _pins_add(self, arguments: dict[str, Any]) -> dict[str, Any]:
        pin = (arguments["channel"], arguments["timestamp"])
        if pin in self.pins:
            raise SlackRefusal("already_pinned")
        self.pins.add(pin)
        return {}

    def _pins_remove(self, arguments: dict[str, Any]) -> dict[str, Any]:
        pin = (arguments["channel"], arguments["timestamp"])
        if pin not in self.pins:
            raise SlackRefusal("no_pin")
        self.pins.remove(pin)
        return {}

    def _reactions_remove(self, arguments: dict[str, Any]) -> dict[str, Any]:
        reaction = (arguments["channel"], arguments["timestamp"], arguments["name"])
        if reaction not in self.reactions:
            raise SlackRefusal("no_reaction")
        self.reactions.remove(reaction)
        return {}

    def _files_getUploadURLExternal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if int(arguments["length"]) < 1:
            raise SlackRefusal("invalid_arguments")
        self._number += 1
        return {"upload_url": f"{self.url}/upload/F{self._number}", "file_id": f"F{self._number}"}

    def _files_completeUploadExternal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        files = arguments["files"]
        files = json.loads(files) if isinstance(files, str) else files
        if any(file["id"] not in self.uploads for file in files):
            raise SlackRefusal("file_not_found")
        ts = self.stamp()
        self.posted.append(
            {
                "by": BOT,
                "ts": ts,
                "channel": arguments["channel_id"],
                "text": arguments.get("initial_comment", ""),
                "thread_ts": arguments.get("thread_ts"),
                "files": [(file["title"], self.uploads[file["id"]]) for file in files],
            }
        )
        return {"files": [{"id": file["id"], "title": file["title"]} for file in files]}

    def _assistant_threads_setStatus(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if not arguments.get("thread_ts"):
            raise SlackRefusal("invalid_thread_ts")
        return {}
