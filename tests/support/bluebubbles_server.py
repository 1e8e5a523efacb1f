"""A stand-in for a BlueBubbles server that refuses what the real one refuses, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import Any

import aiohttp
from aiohttp import web

from tests.support.vendor_server import VendorServer

PASSWORD = "canary-password-0123456789"
ANN, BOB = "+15550000042", "bob@example.org"
DIRECT, GROUP = f"iMessage;-;{ANN}", "iMessage;+;chat831551"
REACTIONS = {"love", "like", "dislike", "laugh", "emphasize", "question"}
TEXT_FIELDS = {"chatGuid", "tempGuid", "message", "method", "subject", "effectId", "selectedMessageGuid", "partIndex"}


class BlueBubblesServer(VendorServer):
    """``async with BlueBubblesServer() as server``. A channel is configured with ``server.settings``."""

    def __init__(self, *, private_api: bool = True) -> None:
        self.private_api = private_api
        self.webhook = ""
        self.messages: list[dict[str, Any]] = []
        """Every message in the Mac's database, oldest first."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.queued: set[str] = set()
        """Keys of texts that are being sent. A second one with the same key is refused."""
        self.faults: deque[str | int] = deque()
        """For the next texts: ``drop`` (sent, no answer), or an HTTP status."""
        self._number = 0
        self._clock = int(time.time() * 1000)
        self._changed = asyncio.Event()

    @property
    def settings(self) -> dict[str, Any]:
        return {"serverUrl": f"http://127.0.0.1:{self.port}", "password": PASSWORD}

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024, middlewares=[self._guard])
        routes = app.router
        routes.add_get("/api/v1/server/info", self._info)
        routes.add_post("/api/v1/message/query", self._query)
        routes.add_post("/api/v1/message/text", self._text)
        routes.add_post("/api/v1/message/attachment", self._attachment)
        routes.add_post("/api/v1/message/react", self._react)
        routes.add_post("/api/v1/message/{guid}/{act:edit|unsend}", self._change)
        routes.add_route("*", "/api/v1/chat/{guid}/{act:typing|read}", self._sign)
        routes.add_get("/api/v1/attachment/{guid}/download", self._download)
        return app

    # What a test does with it

    def message(self, text: str | None, *, sender: str = ANN, chat: str = DIRECT, **more: Any) -> dict[str, Any]:
        self._clock = max(self._clock + 1000, int(time.time() * 1000))
        self._number += 1
        message = {
            "guid": f"GUID-{self._number}",
            "text": text,
            "handle": {"address": sender, "service": "iMessage"},
            "chats": [
                {"guid": chat, "displayName": "Family" if ";+;" in chat else "", "style": 43 if ";+;" in chat else 45}
            ],
            "attachments": [],
            "isFromMe": False,
            "dateCreated": self._clock,
            "itemType": 0,
            "associatedMessageGuid": None,
            "originalROWID": self._number,
        }
        return {**message, **more}

    def keep(self, message: dict[str, Any]) -> dict[str, Any]:
        """Puts a message into the Mac's database without telling anybody."""
        self.messages.append(message)
        self._changed.set()
        return message

    @staticmethod
    def event(message: Any, kind: str = "new-message") -> bytes:
        return json.dumps({"type": kind, "data": message}).encode()

    async def post(self, body: bytes, password: str = PASSWORD) -> int:
        query = {"password": password}
        async with aiohttp.ClientSession() as http, http.post(self.webhook, data=body, params=query) as answer:
            return answer.status

    async def say(self, text: str | None, **more: Any) -> dict[str, Any]:
        message = self.keep(self.message(text, **more))
        assert await self.post(self.event(message)) == 200
        return message

    @property
    def ours(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["isFromMe"]]

    def of(self, path: str) -> list[dict[str, Any]]:
        return [body for called, body in self.calls if called == path]

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def wrote(self, count: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.ours) >= count)
        return self.ours

    # The API

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if PASSWORD not in (request.query.get("password"), request.query.get("guid")):
            return _answer(401, "You are not authorized to access this resource")
        response: web.StreamResponse = await handler(request)
        self._changed.set()
        return response

    async def _info(self, request: web.Request) -> web.Response:
        about = {"server_version": "1.9.9", "private_api": self.private_api, "helper_connected": self.private_api}
        return _answer(200, data=about)

    async def _query(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        if not 1 <= wanted.get("limit", 100) <= 1000:
            return _answer(400, "limit must be between 1 and 1000")
        self.calls.append(("message/query", wanted))
        found = [message for message in self.messages if message["dateCreated"] >= wanted.get("after", 0)]
        if chat := wanted.get("chatGuid"):
            found = [message for message in found if message["chats"][0]["guid"] == chat]
        found.sort(key=lambda message: message["dateCreated"], reverse=wanted.get("sort") == "DESC")
        begin = wanted.get("offset", 0)
        return _answer(200, data=found[begin : begin + wanted.get("limit", 100)])

    async def _text(self, request: web.Request) -> web.Response:
        body = await request.json()
        if stray := set(body) - TEXT_FIELDS:
            return _answer(400, f"unknown fields {sorted(stray)}")
        if not body.get("chatGuid") or not str(body.get("message") or "").strip():
            return _answer(400, "chatGuid and message are required")
        if not body.get("tempGuid") and body.get("method") == "apple-script":
            return _answer(400, "A 'tempGuid' is required when sending via AppleScript")
        if body["method"] == "private-api" and not self.private_api:
            return _answer(500, "iMessage Private API is not enabled!")
        if "selectedMessageGuid" in body and not self.private_api:
            return _answer(400, "replies need the Private API")
        if body["tempGuid"] in self.queued:
            return _answer(400, "Message is already queued to be sent!")
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, int):
            return _answer(fault, "no")
        self.calls.append(("message/text", body))
        sent = self._send(body["chatGuid"], body["message"])
        self._changed.set()
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
        return _answer(200, data=sent)

    def _send(self, chat: str, text: str, **more: Any) -> dict[str, Any]:
        return self.keep(self.message(text, chat=chat, isFromMe=True, handle=None, **more))

    async def _attachment(self, request: web.Request) -> web.Response:
        form = await request.post()
        file = form["attachment"]
        assert isinstance(file, web.FileField)
        if not all(form.get(name) for name in ("chatGuid", "tempGuid", "name")):
            return _answer(400, "chatGuid, tempGuid and name are required")
        spoken = {"voice": form["isAudioMessage"]} if "isAudioMessage" in form else {}
        self.calls.append(("message/attachment", {"name": form["name"], "data": file.file.read(), **spoken}))
        return _answer(200, data=self._send(str(form["chatGuid"]), "\ufffc"))

    async def _react(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not self.private_api:
            return _answer(500, "iMessage Private API is not enabled!")
        if body.get("reaction", "").removeprefix("-") not in REACTIONS:
            return _answer(400, "The selected reaction is not valid")
        self.calls.append(("message/react", body))
        return _answer(200, data={})

    async def _change(self, request: web.Request) -> web.Response:
        guid, act = request.match_info["guid"], request.match_info["act"]
        if guid not in {message["guid"] for message in self.ours}:
            return _answer(404, "Selected message does not exist!")
        self.calls.append((f"message/{act}", {"guid": guid, **(await request.json())}))
        return _answer(200, data={})

    async def _sign(self, request: web.Request) -> web.Response:
        self.calls.append((f"{request.method} {request.match_info['act']}", {"chat": request.match_info["guid"]}))
        return _answer(200)

    async def _download(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["guid"])
        return web.Response(body=data) if data is not None else _answer(404, "Attachment does not exist!")


def _answer(status: int, error: str = "", data: Any = None) -> web.Response:
    body: dict[str, Any] = {"status": status, "message": "Success" if status == 200 else error}
    if status == 200:
        body["data"] = data
    else:
        body["error"] = {"type": "Error", "message": error}
    return web.json_response(body, status=status)
