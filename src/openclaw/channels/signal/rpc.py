"""JSON-RPC calls to a signal-cli daemon over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import aiohttp
import msgspec

TIMEOUT_S = 10.0
MAX_ANSWER = 192 * 1024 * 1024
"""An attachment comes as base64 in one answer; its own limit is checked before it is asked for."""


class RpcError(Exception):
    """The daemon answered that it cannot do it."""

    def __init__(self, method: str, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"signal-cli {method}: {message} (code {code})")
        self.code = code
        self.data = data


class RpcUnreachable(Exception):
    """No answer. ``sent``: the request had left, so it may have been carried out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class SignalRpc:
    def __init__(self, http: aiohttp.ClientSession, base_url: str) -> None:
        self._http = http
        self._base_url = base_url

    async def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
        """The result; None when the daemon has nothing to say. Raises ``RpcError`` or ``RpcUnreachable``."""
        request: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "id": str(uuid.uuid4())}
        if params is not None:
            request["params"] = params
        body = msgspec.json.encode(request)
        headers = {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.post(f"{self._base_url}/api/v1/rpc", data=body, headers=headers) as response:
                    if response.status == 201:
                        return None
                    if response.status != 200:
                        raise RpcError(
                            method, response.status, f"HTTP {response.status} {response.reason or ''}".strip()
                        )
                    return _result(method, request["id"], await _read(response, method))
        except TimeoutError:
            raise RpcUnreachable(f"signal-cli {method}: no answer within {timeout_s:g} s", sent=True) from None
        except aiohttp.ClientConnectorError as error:
            raise RpcUnreachable(f"signal-cli at {self._base_url} cannot be reached: {error}", sent=False) from None
        except aiohttp.ClientError as error:
            detail = str(error) or type(error).__name__
            raise RpcUnreachable(f"signal-cli {method}: the connection broke ({detail})", sent=True) from None

    async def check(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether the daemon is up."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.get(f"{self._base_url}/api/v1/check") as response:
                    return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False


async def _read(response: aiohttp.ClientResponse, method: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(256 * 1024):
        size += len(chunk)
        if size > MAX_ANSWER:
            raise RpcError(method, response.status, f"the answer is larger than {MAX_ANSWER} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _result(method: str, request_id: str, body: bytes) -> Any:
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise RpcError(method, 0, "the answer is not JSON; is this really a signal-cli daemon?") from None
    match answer:
        case {"error": {"code": int(code), "message": str(message), **more}}:
            raise RpcError(method, code, message, more.get("data"))
        case {"jsonrpc": "2.0", "id": answered, "result": result} if answered == request_id:
            return result
        case _:
            raise RpcError(method, 0, "the answer is no JSON-RPC response to this request")
