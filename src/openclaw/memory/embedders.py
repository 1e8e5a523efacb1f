"""Which embedder serves an agent: the one the configuration names, or the first that can be had."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from openclaw.config.schema import Config, MemorySearch
from openclaw.config.schema.base import SecretRef
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.memory import word_vectors
from openclaw.memory.embedder import Embedder
from openclaw.memory.embedding_gguf import GgufEmbedder
from openclaw.memory.embedding_http import GeminiEmbedder, OpenAIEmbedder
from openclaw.models.base import Model, ModelError
from openclaw.models.keys import Keys, find_source, provider_config

OFF = frozenset({"none", "off"})


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor of embeddings."""

    section: str
    """Its name under ``models.providers``, where its key may stand."""
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
"""Looked for, in this order, when nothing is named and nothing local is there: the first with a key of its own."""


class NoEmbedder(Exception):
    """What is named cannot be used; the text says what to do."""


class Embedders:
    """Makes embedders as the current configuration wants them. Making one is cheap; those in memory are kept."""

    def __init__(self, keys: Keys, environ: Mapping[str, str] = os.environ) -> None:
        self._keys = keys
        self._environ = environ
        self._gguf: dict[str, GgufEmbedder] = {}

    def candidates(self, settings: MemorySearch, config: Config, agent_id: str) -> list[Embedder]:
        """The one to use and the one to fall back on. Empty: words only. Raises ``NoEmbedder``."""
        wanted = (settings.provider or "auto").strip().lower()
        if wanted in OFF:
            return []
        if wanted == "auto":
            chosen = self._automatic(settings, config, agent_id)
            found = [chosen] if chosen is not None else []
        else:
            found = [self._named(wanted, settings, config, agent_id)]
        other = (settings.fallback or "none").strip().lower()
        if other not in OFF and other not in ("auto", wanted):
            plain = msgspec.structs.replace(settings, model=None, remote=type(settings.remote)())
            found.append(self._named(other, plain, config, agent_id))
        return found

    async def close(self) -> None:
        for embedder in self._gguf.values():
            await embedder.close()

    def _automatic(self, settings: MemorySearch, config: Config, agent_id: str) -> Embedder | None:
        path = _model_path(settings)
        if path is not None and path.is_file():
            return self._from_file(path)
        if settings.remote.base_url or settings.remote.api_key:
            return self._named("openai", settings, config, agent_id)
        if (place := word_vectors.folder()) is not None:
            return word_vectors.WordVectors(place)
        for name in AUTOMATIC:
            model = _model(name, settings, config)
            section = provider_config(config, model.provider)
            if find_source(model, section, self._environ).kind not in ("missing", "unneeded"):
                return self._named(name, settings, config, agent_id)
        return None

    def _named(self, name: str, settings: MemorySearch, config: Config, agent_id: str) -> Embedder:
        if name == "local":
            return self._local(settings)
        if name not in SERVICES and provider_config(config, name) is None:
            known = ", ".join(("auto", "local", *SERVICES, "none"))
            raise NoEmbedder(
                f"agents.defaults.memorySearch.provider {name!r} is not known: use {known}, or a name under "
                "models.providers whose server has /embeddings"
            )
        model = _model(name, settings, config)
        key = partial(self._key, model, settings, config, agent_id)
        kind = GeminiEmbedder if name == "gemini" else OpenAIEmbedder
        headers = {**model.headers, **settings.remote.headers}
        return kind(name, model.id, model.base_url, key, headers)

    def _local(self, settings: MemorySearch) -> Embedder:
        path = _model_path(settings)
        if path is not None:
            return self._from_file(path)
        place = word_vectors.folder()
        if place is None:
            raise NoEmbedder(
                "local embeddings need the memory extra (pip install 'openclaw[memory]'), or an embedding model in "
                "GGUF format named by agents.defaults.memorySearch.local.modelPath"
            )
        return word_vectors.WordVectors(place)

    def _from_file(self, path: Path) -> GgufEmbedder:
        return self._gguf.setdefault(str(path), GgufEmbedder(path))

    async def _key(self, model: Model, settings: MemorySearch, config: Config, agent_id: str) -> str:
        own = settings.remote.api_key
        if own is None:
            return await self._keys.resolve_key(model, config, agent_id=agent_id)
        return await _secret(own, self._environ)


async def _secret(own: str | SecretRef, environ: Mapping[str, str]) -> str:
    what = "agents.defaults.memorySearch.remote.apiKey"
    try:
        return await asyncio.to_thread(resolve_secret, own, environ, what) or ""
    except SecretUnavailable as error:
        raise ModelError(str(error), kind="auth") from None


def _model_path(settings: MemorySearch) -> Path | None:
    text = (settings.local.model_path or "").strip()
    return Path(text).expanduser() if text and "://" not in text and not text.startswith("hf:") else None


def _model(name: str, settings: MemorySearch, config: Config) -> Model:
    """The embedding model as the key finder knows models: whose it is and where."""
    service = SERVICES.get(name) or Service(section=name, base_url="", model="")
    section = provider_config(config, service.section)
    configured = section.base_url if section is not None and name != "gemini" else None
    wanted = (settings.model or service.model).strip()
    return Model(
        provider=service.section,
        id=wanted.removeprefix(f"{name}/").removeprefix(f"{service.section}/"),
        base_url=settings.remote.base_url or configured or service.base_url,
    )
