"""A Gateway with every HTTP endpoint on, and the scripted model behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.gateway import TOKEN, GatewayProcess, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

ENDPOINTS: dict[str, Any] = {"chatCompletions": {"enabled": True}, "responses": {"enabled": True}}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Served:
    def __init__(
        self, gateway: InProcessGateway | GatewayProcess, model: ModelServer, http: aiohttp.ClientSession
    ) -> None:
        self.gateway = gateway
        self.model = model
        self.http = http

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        async with self.http.post(self.gateway.url + path, json=body, headers={**BEARER, **headers}) as response:
            return response.status, await response.json()

    async def stream(self, path: str, body: dict[str, Any], **headers: str) -> str:
        """The whole event stream as text."""
        request = {**body, "stream": True}
        async with self.http.post(self.gateway.url + path, json=request, headers={**BEARER, **headers}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            return await response.text()

    async def rpc(self, method: str, params: Any) -> Any:
        _, answer = await self.post("/__openclaw__/rpc", {"method": method, "params": params})
        assert answer["ok"], answer
        return answer["payload"]

    async def history(self, session_key: str) -> list[dict[str, Any]]:
        return (await self.rpc("chat.history", {"sessionKey": session_key, "format": "messages"}))["messages"]

    async def session_keys(self) -> list[str]:
        return [row["key"] for row in (await self.rpc("sessions.list", {}))["sessions"]]

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The messages of the last request the model got."""
        return self.model.requests[-1].body["messages"]


@asynccontextmanager
async def served(
    directory: Path,
    endpoints: dict[str, Any] = ENDPOINTS,
    *,
    kind: type[InProcessGateway] | type[GatewayProcess] = InProcessGateway,
    env: dict[str, str] | None = None,
) -> AsyncIterator[Served]:
    async with ModelServer() as model, aiohttp.ClientSession() as http:
        config = model_config(model.base_url, model.api_key)
        config["gateway"]["http"] = {"endpoints": endpoints}
        config["agents"]["list"] = [{"id": "main", "default": True}, {"id": "beta"}]
        async with kind(directory / "state", config, env) as gateway:
            yield Served(gateway, model, http)
