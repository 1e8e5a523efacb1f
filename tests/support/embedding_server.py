"""A strict stand-in for two vendors' embedding APIs. Its vectors count the words of a few topics."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

TOPICS = (
    ("database", "sqlite", "postgresql", "storage", "persist", "rows"),
    ("colour", "green", "red", "paint", "shed"),
    ("drink", "tea", "coffee", "beverage", "cup"),
    ("person", "muller", "called", "phone", "ring"),
)
KEY = "emb-key-0123456789"


def vector_of(text: str) -> list[float]:
    words = re.findall(r"\w+", text.lower())
    return [1.0 * sum(word in topic for word in words) for topic in TOPICS] + [0.01]


class EmbeddingServer:
    """``requests`` holds the texts of every call that was accepted; ``fail`` is a status to answer with instead."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.refused: list[str] = []
        self.fail: int | None = None
        self.tokens = 1
        """What each call is said to have used."""
        self.drop = 0
        """Vectors left out of each answer."""

    async def __aenter__(self) -> EmbeddingServer:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/embeddings", self._openai)
        app.router.add_post("/v1beta/models/{model}:batchEmbedContents", self._gemini)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def texts(self) -> list[str]:
        return [text for texts in self.requests for text in texts]

    def _refuse(self, why: str, status: int = 400) -> web.Response:
        self.refused.append(why)
        return web.json_response({"error": {"message": why, "type": "invalid_request_error"}}, status=status)

    async def _openai(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return self._refuse("Incorrect API key provided", 401)
        body: dict[str, Any] = await request.json()
        texts = body.get("input")
        if set(body) - {"model", "input", "encoding_format", "dimensions", "user"} or not body.get("model"):
            return self._refuse(f"unexpected fields: {sorted(body)}")
        if (
            not isinstance(texts, list)
            or not 0 < len(texts) <= 2048
            or not all(isinstance(t, str) and t for t in texts)
        ):
            return self._refuse("'$.input' is invalid")
        if any(len(text) > 8192 * 4 for text in texts):
            return self._refuse("This model's maximum context length is 8192 tokens")
        if self.fail is not None:
            return self._refuse("the server is unwell", self.fail)
        self.requests.append(texts)
        rows = [{"object": "embedding", "index": n, "embedding": vector_of(text)} for n, text in enumerate(texts)]
        rows = rows[::-1][self.drop :]  # The index says which is which, not the order.
        usage = {"prompt_tokens": self.tokens, "total_tokens": self.tokens}
        return web.json_response({"object": "list", "data": rows, "model": body["model"], "usage": usage})

    async def _gemini(self, request: web.Request) -> web.Response:
        if request.headers.get("x-goog-api-key") != KEY:
            return self._refuse("API key not valid", 400)
        body: dict[str, Any] = await request.json()
        requests = body.get("requests")
        name = f"models/{request.match_info['model']}"
        if set(body) != {"requests"} or not isinstance(requests, list) or not 0 < len(requests) <= 100:
            return self._refuse("requests is invalid")
        for one in requests:
            if one.get("model") != name or one.get("taskType") not in ("RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"):
                return self._refuse(f"model or taskType is invalid: {one}")
        texts = [one["content"]["parts"][0]["text"] for one in requests]
        if self.fail is not None:
            return self._refuse("the server is unwell", self.fail)
        self.requests.append(texts)
        return web.json_response({"embeddings": [{"values": vector_of(text)} for text in texts]})
