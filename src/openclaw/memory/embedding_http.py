"""Embeddings from a server: the OpenAI shape, which most servers speak, and Google's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from openclaw.memory.embedder import EmbeddingFailed, Purpose
from openclaw.models.base import ModelError
from openclaw.models.endpoint import Endpoint
from openclaw.models.http import WireRequest, post_json

BATCH_TEXTS = 64
TIMEOUT_S = 30.0
_GEMINI_TASK = {"document": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}
Key = Callable[[], Awaitable[str]]


class _Row(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _OpenAIAnswer(msgspec.Struct):
    data: list[_Row]


class _Values(msgspec.Struct):
    values: list[float]


class _GeminiAnswer(msgspec.Struct):
    embeddings: list[_Values]


class _HttpEmbedder:
    batch_texts = BATCH_TEXTS

    def __init__(self, provider: str, model: str, base_url: str, key: Key, headers: Mapping[str, str]) -> None:
        self.provider = provider
        self.model = model
        self._base = base_url.rstrip("/")
        self._key = key
        self._headers = dict(headers)

    @property
    def identity(self) -> str:
        return f"{self.provider}:{self.model}:{self._base}"

    async def _post(self, url: str, headers: dict[str, str], body: dict[str, Any], key: str) -> bytes:
        wire = WireRequest(endpoint=Endpoint(url, {**headers, **self._headers}, api_key=key), body=body)
        try:
            return await post_json(wire, provider=self.provider, timeout_s=TIMEOUT_S)
        except ModelError as error:
            raise EmbeddingFailed(str(error)) from None

    async def _key_or_failure(self) -> str:
        try:
            return await self._key()
        except ModelError as error:
            raise EmbeddingFailed(str(error)) from None


class OpenAIEmbedder(_HttpEmbedder):
    """``POST <base>/embeddings`` with ``{model, input: [...]}``."""

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        key = await self._key_or_failure()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body: dict[str, Any] = {"model": self.model, "input": list(texts)}
        if self.provider == "voyage":
            body["input_type"] = purpose
        raw = await self._post(f"{self._base}/embeddings", headers, body, key)
        rows = _decoded(raw, _OpenAIAnswer, self.provider).data
        places = {row.index if row.index is not None else number: row.embedding for number, row in enumerate(rows)}
        if sorted(places) != list(range(len(texts))):
            raise EmbeddingFailed(f"{self.provider} gave {len(rows)} embeddings for {len(texts)} texts")
        return [places[number] for number in range(len(texts))]


class GeminiEmbedder(_HttpEmbedder):
    """``POST <base>/models/<model>:batchEmbedContents``."""

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        key = await self._key_or_failure()
        name = f"models/{self.model.removeprefix('models/')}"
        requests = [
            {"model": name, "content": {"parts": [{"text": text}]}, "taskType": _GEMINI_TASK[purpose]} for text in texts
        ]
        headers = {"x-goog-api-key": key} if key else {}
        raw = await self._post(f"{self._base}/{name}:batchEmbedContents", headers, {"requests": requests}, key)
        found = [row.values for row in _decoded(raw, _GeminiAnswer, self.provider).embeddings]
        if len(found) != len(texts):
            raise EmbeddingFailed(f"{self.provider} gave {len(found)} embeddings for {len(texts)} texts")
        return found


def _decoded(raw: bytes, shape: Any, provider: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.MsgspecError as error:
        raise EmbeddingFailed(f"{provider} answered with something other than embeddings: {error}") from None
