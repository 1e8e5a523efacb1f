"""A stand-in for WhatsApp's Cloud API that refuses what the real one refuses, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections import deque
from typing import Any

import aiohttp
from aiohttp import web

from tests.support.vendor_server import VendorServer

TOKEN, APP_SECRET, VERIFY = "EAAcanary0123456789abcdef", "canary-app-secret-0123456789", "canary-verify-word"
NUMBER_ID, OUR_NUMBER = "106540352242922", "15550000001"
ANN = "15550000042"
LONGEST, LONGEST_CAPTION = 4096, 1024
FIELDS = {
    *("messaging_product", "recipient_type", "to", "type", "context", "biz_opaque_callback_data"),
    *("text", "image", "video", "audio", "document", "sticker", "reaction"),
}


class GraphError(Exception):
    def __init__(self, code: int, message: str, status: int = 400, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.headers = headers or {}


class WhatsAppServer(VendorServer):
    """``async with WhatsAppServer() as whatsapp``. ``channels.whatsapp`` is configured with ``whatsapp.settings``."""

    def __init__(self) -> None:
        self.webhook = ""
        """The address that the platform posts to. A test sets it."""
        self.delivered: list[dict[str, Any]] = []
        """The messages that people can see, in order, with their ``id``."""
        self.read: list[dict[str, Any]] = []
        self.media: dict[str, tuple[bytes, str]] = {}
        self.uploads: dict[str, tuple[str, bytes]] = {}
        self.refused: list[str] = []
        self.media_tokens: list[str | None] = []
        self._faults: deque[GraphError | str] = deque()
        self._number = 0
        self._clock = 1_794_766_939
        self._changed = asyncio.Event()

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "phoneNumberId": NUMBER_ID,
            "accessToken": TOKEN,
            "appSecret": APP_SECRET,
            "verifyToken": VERIFY,
            "apiRoot": f"http://127.0.0.1:{self.port}/v23.0",
        }

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get(f"/v23.0/{NUMBER_ID}", self._about)
        app.router.add_post(f"/v23.0/{NUMBER_ID}/messages", self._messages)
        app.router.add_post(f"/v23.0/{NUMBER_ID}/media", self._upload)
        app.router.add_get("/v23.0/{media}", self._where)
        app.router.add_get("/lookaside/{media}", self._file)
        return app

    # What a test does with it

    def message(self, text: str | None = None, *, sender: str = ANN, name: str = "Ann", **more: Any) -> dict[str, Any]:
        """The value of a change that tells of one message."""
        self._clock += 1
        message: dict[str, Any] = {"from": sender, "id": f"wamid.in{self._clock}", "timestamp": str(self._clock)}
        message |= {"type": "text", "text": {"body": text}} if text is not None else {}
        return {
            "messaging_product": "whatsapp",
            "metadata": {"display_phone_number": OUR_NUMBER, "phone_number_id": NUMBER_ID},
            "contacts": [{"profile": {"name": name}, "wa_id": sender}],
            "messages": [{**message, **more}],
        }

    @staticmethod
    def body(*values: dict[str, Any], field: str = "messages") -> bytes:
        changes = [{"field": field, "value": value} for value in values]
        return json.dumps({"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": changes}]}).encode()

    @staticmethod
    def signed(body: bytes, secret: str = APP_SECRET) -> dict[str, str]:
        return {"x-hub-signature-256": f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"}

    async def post(self, body: bytes, headers: dict[str, str] | None = None) -> int:
        """Posts to the webhook, as the platform does."""
        async with (
            aiohttp.ClientSession() as http,
            http.post(self.webhook, data=body, headers=self.signed(body) if headers is None else headers) as answer,
        ):
            return answer.status

    async def say(self, text: str | None = None, **more: Any) -> dict[str, Any]:
        value = self.message(text, **more)
        assert await self.post(self.body(value)) == 200
        return value

    def status(self, message_id: str, status: str, **more: Any) -> dict[str, Any]:
        metadata = {"display_phone_number": OUR_NUMBER, "phone_number_id": NUMBER_ID}
        told = {"id": message_id, "status": status, "timestamp": "1", "recipient_id": ANN, **more}
        return {"messaging_product": "whatsapp", "metadata": metadata, "statuses": [told]}

    def refuse_next(self, code: int, message: str, status: int = 400, headers: dict[str, str] | None = None) -> None:
        self._faults.append(GraphError(code, message, status, headers))

    def drop_next(self) -> None:
        """Takes the next message, then closes the connection without an answer."""
        self._faults.append("drop")

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def wrote(self, count: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.delivered) >= count)
        return self.delivered

    # The API

    def _check(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise GraphError(190, "Invalid OAuth access token - Cannot parse access token", 401)

    def _refusal(self, error: GraphError) -> web.Response:
        self.refused.append(str(error))
        self._changed.set()
        body = {"error": {"message": str(error), "type": "OAuthException", "code": error.code, "fbtrace_id": "x"}}
        return web.json_response(body, status=error.status, headers=error.headers)

    async def _about(self, request: web.Request) -> web.Response:
        try:
            self._check(request)
        except GraphError as error:
            return self._refusal(error)
        return web.json_response({"display_phone_number": "+1 555-000-0001", "verified_name": "Claw", "id": NUMBER_ID})

    async def _messages(self, request: web.Request) -> web.Response:
        try:
            self._check(request)
            body = await request.json()
            if body.get("messaging_product") != "whatsapp":
                raise GraphError(100, "(#100) The parameter messaging_product is required.")
            if body.get("status") == "read":
                self.read.append(body)
                self._changed.set()
                return web.json_response({"success": True})
            fault = self._faults.popleft() if self._faults else None
            if isinstance(fault, GraphError):
                raise fault
            answer = self._deliver(body)
        except GraphError as error:
            return self._refusal(error)
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer)

    def _deliver(self, body: dict[str, Any]) -> dict[str, Any]:
        kind = body.get("type")
        if stray := set(body) - FIELDS:
            raise GraphError(100, f"(#100) Unexpected key {sorted(stray)}")
        if not re.fullmatch(r"\d{6,17}", str(body.get("to"))) and body.get("recipient_type") != "group":
            raise GraphError(131009, "(#131009) Parameter value is not valid")
        if len(body.get("biz_opaque_callback_data", "")) > 512:
            raise GraphError(100, "(#100) biz_opaque_callback_data is too long")
        content = body.get(str(kind)) or {}
        if kind == "text" and not 0 < len(content.get("body", "").strip()) <= LONGEST:
            raise GraphError(100, "(#100) Param text['body'] must be at most 4096 characters long.")
        if kind in ("image", "video", "audio", "document"):
            if content.get("id") not in self.uploads:
                raise GraphError(100, "(#100) Invalid media id")
            if len(content.get("caption", "")) > LONGEST_CAPTION or (kind == "audio" and "caption" in content):
                raise GraphError(100, "(#100) Invalid caption")
        elif kind == "reaction":
            if set(content) != {"message_id", "emoji"}:
                raise GraphError(100, "(#100) Invalid reaction")
        elif kind != "text":
            raise GraphError(131051, "(#131051) Unsupported message type")
        self._number += 1
        sent = {**body, "id": f"wamid.out{self._number}"}
        self.delivered.append(sent)
        self._changed.set()
        return {
            "messaging_product": "whatsapp",
            "contacts": [{"input": body["to"], "wa_id": body["to"]}],
            "messages": [{"id": sent["id"]}],
        }

    async def _upload(self, request: web.Request) -> web.Response:
        try:
            self._check(request)
        except GraphError as error:
            return self._refusal(error)
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        if form.get("messaging_product") != "whatsapp" or not form.get("type"):
            return self._refusal(GraphError(100, "(#100) messaging_product and type are required"))
        self._number += 1
        self.uploads[f"m{self._number}"] = (file.filename, file.file.read())
        return web.json_response({"id": f"m{self._number}"})

    async def _where(self, request: web.Request) -> web.Response:
        media = request.match_info["media"]
        try:
            self._check(request)
            if media not in self.media:
                raise GraphError(100, "Unsupported get request. Object does not exist", 400)
        except GraphError as error:
            return self._refusal(error)
        data, mime = self.media[media]
        host = "http://127.0.0.1:9" if media == "stolen" else f"http://127.0.0.1:{self.port}"
        url = f"{host}/lookaside/{media}"
        return web.json_response({"url": url, "mime_type": mime, "file_size": len(data), "id": media})

    async def _file(self, request: web.Request) -> web.Response:
        self.media_tokens.append(request.headers.get("Authorization"))
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        return web.Response(body=self.media[request.match_info["media"]][0])
