"""Embedders turn texts into vectors: over HTTP, from a model file, or from word vectors. Also the choice of one."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from openclaw.config.schema import Config
from openclaw.config.schema.agents import MemorySearch
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.models.base import Model, ModelError
from openclaw.models.http import ModelHttp, WireRequest
from openclaw.models.keys import Keys, find_source, provider_config
from openclaw.models.local.install import has_pooling
from openclaw.models.local.provider import Worker

Purpose: TypeAlias = Literal["document", "query"]
"""Some models treat a question differently from a document."""


class EmbeddingFailed(Exception):
    """There are no vectors. The text says why and holds no secret."""


class EmbeddingRefused(EmbeddingFailed):
    """The server was not asked, because the call could exceed a budget. The embedder itself works."""


class Embedder(Protocol):
    """Turns texts into vectors."""

    provider: str
    model: str
    batch_texts: int
    """The most texts of one call."""
    tokens_used: int
    """What its calls so far used. It stays 0 for an embedder that nobody charges for."""

    @property
    def identity(self) -> str:
        """Vectors with the same identity can be compared with each other."""
        ...

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        """One vector for each text, in the same order. Raises ``EmbeddingFailed``."""
        ...


Pay: TypeAlias = Callable[
    [Embedder, Sequence[str], Callable[[], Awaitable[list[list[float]]]]], Awaitable[list[list[float]]]
]
"""Makes one call of an embedder, given the embedder, its texts and the call. It charges what the call used.

Raises ``EmbeddingRefused`` if the call could exceed a budget.
"""


async def unpaid(
    embedder: Embedder, texts: Sequence[str], call: Callable[[], Awaitable[list[list[float]]]]
) -> list[list[float]]:
    """Makes the call and charges nobody."""
    return await call()


EMBEDDING_PRICES = {
    "text-embedding-3-small": 0.02,
    "text-embedding-3-large": 0.13,
    "text-embedding-ada-002": 0.10,
    "gemini-embedding-001": 0.15,
    "voyage-3-large": 0.18,
    "voyage-3.5": 0.06,
    "voyage-3.5-lite": 0.02,
    "mistral-embed": 0.10,
}
"""US dollars per million tokens."""
OFF = frozenset({"none", "off"})


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor of embeddings."""

    section: str
    """Its name under ``models.providers``, where its key may be configured."""
    base_url: str
    model: str


SERVICES = {
    "openai": Service(section="openai", base_url="https://api.openai.com/v1", model="text-embedding-3-small"),
    "gemini": Service(
        section="google",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        model="gemini-embedding-001",
    ),
    "voyage": Service(section="voyage", base_url="https://api.voyageai.com/v1", model="voyage-3-large"),
    "mistral": Service(section="mistral", base_url="https://api.mistral.ai/v1", model="mistral-embed"),
    "ollama": Service(section="ollama", base_url="http://127.0.0.1:11434/v1", model="nomic-embed-text"),
}
AUTOMATIC = ("openai", "gemini", "voyage", "mistral")
"""The order in which services are tried when none is configured and none is local. The first with a key is used."""


class NoEmbedder(Exception):
    """The configured embedder cannot be used. The text says what to do."""


class Embedders:
    """Makes the embedders that the configuration asks for. Those with a process are kept for later calls."""

    def __init__(self, http: ModelHttp, keys: Keys, environ: Mapping[str, str] = os.environ) -> None:
        self._http = http
        self._keys = keys
        self._environ = environ
        self._gguf: dict[str, GgufEmbedder] = {}

    def candidates(self, settings: MemorySearch, config: Config, agent_id: str) -> list[Embedder]:
        """The embedder to use and the fallback. Empty means a search by words only. Raises ``NoEmbedder``."""
        name = (settings.provider or "auto").strip().lower()
        if name in OFF:
            return []
        if name == "auto":
            chosen = self._automatic(settings, config, agent_id)
            embedders = [chosen] if chosen is not None else []
        else:
            embedders = [self._named(name, settings, config, agent_id)]
        other = (settings.fallback or "none").strip().lower()
        if other not in OFF and other not in ("auto", name):
            plain = msgspec.structs.replace(settings, model=None, remote=type(settings.remote)())
            embedders.append(self._named(other, plain, config, agent_id))
        return embedders

    async def close(self) -> None:
        for embedder in self._gguf.values():
            await embedder.close()

    def _automatic(self, settings: MemorySearch, config: Config, agent_id: str) -> Embedder | None:
        path = _model_path(settings)
        if path is not None and path.is_file():
            return self._from_file(path)
        if settings.remote.base_url or settings.remote.api_key:
            return self._named("openai", settings, config, agent_id)
        if (folder := word_vectors_folder()) is not None:
            return WordVectors(folder)
        for name in AUTOMATIC:
            model = _model(name, settings, config)
            section = provider_config(config, model.provider)
            if find_source(model, section, self._environ).kind not in ("missing", "unneeded"):
                return self._named(name, settings, config, agent_id)
        return None

    def _named(self, name: str, settings: MemorySearch, config: Config, agent_id: str) -> Embedder:
        if name == "local":
            if (path := _model_path(settings)) is not None:
                return self._from_file(path)
            if (folder := word_vectors_folder()) is not None:
                return WordVectors(folder)
            raise NoEmbedder(
                "local embeddings need the memory extra (openclaw extras add memory), or an embedding model in "
                "GGUF format named by agents.defaults.memorySearch.local.modelPath"
            )
        if name not in SERVICES and provider_config(config, name) is None:
            names = ", ".join(("auto", "local", *SERVICES, "none"))
            raise NoEmbedder(
                f"agents.defaults.memorySearch.provider {name!r} is not known: use {names}, or a name under "
                "models.providers whose server has /embeddings"
            )
        model = _model(name, settings, config)
        key = partial(self._key, model, settings, config, agent_id)
        kind = GeminiEmbedder if name == "gemini" else OpenAIEmbedder
        headers = {**model.headers, **settings.remote.headers}
        return kind(self._http, name, model.id, model.base_url, key, headers)

    def _from_file(self, path: Path) -> GgufEmbedder:
        return self._gguf.setdefault(str(path), GgufEmbedder(path))

    async def _key(self, model: Model, settings: MemorySearch, config: Config, agent_id: str) -> str:
        own = settings.remote.api_key
        if own is None:
            return await self._keys.resolve_key(model, config, agent_id=agent_id)
        try:
            what = "agents.defaults.memorySearch.remote.apiKey"
            return await asyncio.to_thread(resolve_secret, own, self._environ, what) or ""
        except SecretUnavailable as error:
            raise ModelError(str(error), kind="auth") from None


def _model_path(settings: MemorySearch) -> Path | None:
    text = (settings.local.model_path or "").strip()
    return Path(text).expanduser() if text and "://" not in text and not text.startswith("hf:") else None


def _model(name: str, settings: MemorySearch, config: Config) -> Model:
    """The embedding model as a ``Model`` record, which ``Keys`` needs to find its key."""
    service = SERVICES.get(name) or Service(section=name, base_url="", model="")
    section = provider_config(config, service.section)
    configured = section.base_url if section is not None and name != "gemini" else None
    wanted = (settings.model or service.model).strip()
    return Model(
        provider=service.section,
        id=wanted.removeprefix(f"{name}/").removeprefix(f"{service.section}/"),
        base_url=settings.remote.base_url or configured or service.base_url,
    )


BATCH_TEXTS = 64
TIMEOUT_S = 30.0
_GEMINI_TASK = {"document": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}
Key = Callable[[], Awaitable[str]]


class _OpenAIRow(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _OpenAIAnswer(msgspec.Struct):
    data: list[_OpenAIRow]
    usage: _Usage | None = None


class _Values(msgspec.Struct):
    values: list[float]


class _GeminiUsage(msgspec.Struct, rename="camel"):
    prompt_token_count: int = 0


class _GeminiAnswer(msgspec.Struct):
    embeddings: list[_Values]
    usage_metadata: _GeminiUsage | None = msgspec.field(default=None, name="usageMetadata")


_Answer = TypeVar("_Answer", _OpenAIAnswer, _GeminiAnswer)


class _HttpEmbedder:
    """Calls an embedding server. The key is looked up at every call."""

    batch_texts = BATCH_TEXTS

    def __init__(
        self, http: ModelHttp, provider: str, model: str, base_url: str, key: Key, headers: Mapping[str, str]
    ) -> None:
        self._http = http
        self.provider = provider
        self.model = model
        self._base = base_url.rstrip("/")
        self._key = key
        self._headers = dict(headers)
        self.tokens_used = 0

    def _count(self, reported: int, texts: Sequence[str]) -> None:
        """Adds what a call used. If the server does not say it, it is estimated: four bytes for a token."""
        self.tokens_used += reported or embedding_tokens(texts)

    @property
    def identity(self) -> str:
        return f"{self.provider}:{self.model}:{self._base}"

    async def _post(self, path: str, body: dict[str, Any], answer: type[_Answer], *, key_header: str) -> _Answer:
        try:
            key = await self._key()
            shown = f"Bearer {key}" if key_header == "authorization" else key
            headers = {**({key_header: shown} if key else {}), **self._headers}
            wire = WireRequest(url=f"{self._base}{path}", headers=headers, body=body, api_key=key)
            raw = await self._http.post_json(wire, provider=self.provider, timeout_s=TIMEOUT_S)
            return msgspec.json.decode(raw, type=answer)
        except ModelError as error:
            raise EmbeddingFailed(str(error)) from None
        except (msgspec.MsgspecError, RecursionError) as error:
            raise EmbeddingFailed(f"{self.provider} answered with something other than embeddings: {error}") from None


def embedding_tokens(texts: Sequence[str]) -> int:
    """The tokens of the texts, estimated a little too high."""
    return sum(len(text.encode("utf-8", "replace")) // 4 + 1 for text in texts)


class OpenAIEmbedder(_HttpEmbedder):
    """``POST <base>/embeddings`` with ``{model, input: [...]}``."""

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        body: dict[str, Any] = {"model": self.model, "input": list(texts)}
        if self.provider == "voyage":
            body["input_type"] = purpose
        answer = await self._post("/embeddings", body, _OpenAIAnswer, key_header="authorization")
        rows, usage = answer.data, answer.usage or _Usage()
        self._count(usage.prompt_tokens or usage.total_tokens, texts)
        places = {row.index if row.index is not None else number: row.embedding for number, row in enumerate(rows)}
        if sorted(places) != list(range(len(texts))):
            raise EmbeddingFailed(f"{self.provider} gave {len(rows)} embeddings for {len(texts)} texts")
        return [places[number] for number in range(len(texts))]


class GeminiEmbedder(_HttpEmbedder):
    """``POST <base>/models/<model>:batchEmbedContents``."""

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        name = f"models/{self.model.removeprefix('models/')}"
        requests = [
            {"model": name, "content": {"parts": [{"text": text}]}, "taskType": _GEMINI_TASK[purpose]} for text in texts
        ]
        path, body = f"/{name}:batchEmbedContents", {"requests": requests}
        answer = await self._post(path, body, _GeminiAnswer, key_header="x-goog-api-key")
        self._count(answer.usage_metadata.prompt_token_count if answer.usage_metadata else 0, texts)
        vectors = [row.values for row in answer.embeddings]
        if len(vectors) != len(texts):
            raise EmbeddingFailed(f"{self.provider} gave {len(vectors)} embeddings for {len(texts)} texts")
        return vectors


CONTEXT = 2048
LONGEST_TEXT = 4000
"""In characters. Chunks of notes are shorter, and the model refuses texts that do not fit its window."""
IDLE_S = 120.0


class GgufEmbedder:
    """Embeddings from a model file, in a process of its own that ends when it is idle."""

    provider = "local"
    batch_texts = 16
    tokens_used = 0

    def __init__(self, path: Path, *, idle_s: float = IDLE_S) -> None:
        self.model = path.name
        self._path = path
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def identity(self) -> str:
        return f"local:{self._path}"

    @property
    def running(self) -> bool:
        return self._worker is not None and self._worker.alive

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            worker: Worker | None = None
            try:
                worker = await self._ready()
                return await worker.vectors([text[:LONGEST_TEXT] or " " for text in texts])
            except ModelError as error:
                raise EmbeddingFailed(str(error)) from None
            finally:
                if worker is not None and worker.busy_with is not None:
                    # The call was stopped. Its remaining lines would be taken for those of the next call.
                    worker.kill()
                    worker.busy_with = None
                self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._rest)

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        if self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)

    async def _ready(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            if not await asyncio.to_thread(self._path.is_file):
                raise ModelError(f"model file not found: {self._path} (agents.defaults.memorySearch.local.modelPath)")
            purpose = "embeddings" if await asyncio.to_thread(has_pooling, str(self._path)) else "mean-embeddings"
            self._worker = await Worker.start(str(self._path), CONTEXT, purpose)
        return self._worker

    def _rest(self) -> None:
        if not self._turn.locked():
            task = asyncio.ensure_future(self.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


PACKAGE = "wordllama"
WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
TABLE = "embedding.weight"


def word_vectors_folder() -> Path | None:
    """The folder of the word vectors, or None when the ``memory`` extra is not installed completely."""
    if any(importlib.util.find_spec(name) is None for name in ("numpy", "tokenizers")):
        return None
    package = importlib.util.find_spec(PACKAGE)
    for location in (package.submodule_search_locations or ()) if package is not None else ():
        if (Path(location) / WEIGHTS).is_file() and (Path(location) / TOKENIZER).is_file():
            return Path(location)
    return None


class WordVectors:
    """Embeddings without a server: the mean of the vectors of a text's tokens.

    The table of vectors and the tokenizer are data files of the package ``wordllama`` (the ``memory`` extra). The code
    of the package is not imported.
    """

    provider = "local"
    model = "wordllama-256"
    batch_texts = 256
    tokens_used = 0
    identity = "local:wordllama-256"

    def __init__(self, folder: Path) -> None:
        self._place = folder

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> list[list[float]]:
        try:
            table, tokenizer = _load(self._place)
            rows = [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise EmbeddingFailed(f"the word vectors in {self._place} cannot be used: {error}") from None
        last = len(table) - 1
        # A text without any token gets the vector of the unknown token.
        return [table[[min(piece, last) for piece in row] or [0]].astype("f4").mean(axis=0).tolist() for row in rows]


@lru_cache(maxsize=1)
def _load(folder: Path) -> tuple[Any, Any]:
    """Loads table and tokenizer. It blocks for a tenth of a second. The table is mapped, not copied."""
    numpy, tokenizers = importlib.import_module("numpy"), importlib.import_module("tokenizers")
    weights = folder / WEIGHTS
    with weights.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        about = json.loads(file.read(size))[TABLE]
    begin, end = about["data_offsets"]
    if about["dtype"] != "F16" or (end - begin) != 2 * about["shape"][0] * about["shape"][1]:
        raise ValueError(f"{weights.name} holds another kind of table")
    table = numpy.memmap(weights, dtype="<f2", mode="r", offset=8 + size + begin, shape=tuple(about["shape"]))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    return table, tokenizer
