"""Finds model servers that run on this machine. Only loopback addresses are asked, with a short timeout."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw.models.base import Model, Price
from openclaw.models.catalogue_data import PROVIDERS
from openclaw.models.keys import is_local_url

PROBE_S = 0.3
MAX_MODELS = 50
MAX_DETAILED = 16
MAX_BODY = 1 << 20
UNKNOWN_WINDOW = 32_768
"""The window of a local model when the server does not say how large it really is."""

_NUM_CTX = re.compile(r"^[ \t]*num_ctx[ \t]+(\d+)[ \t]*$", re.MULTILINE)


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    context_window: int | None = None
    tools: bool | None = None
    """None means that the server did not say."""
    sees: bool = False
    reasoning: bool = False
    chats: bool = True
    """False for embedding models."""


class FoundServer(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    base_url: str
    models: tuple[FoundModel, ...]


def candidates(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Provider and address of the servers to ask. ``OLLAMA_HOST`` counts when it is this machine."""
    known = {name: PROVIDERS[name].base_url for name in ("ollama", "lmstudio", "llamacpp", "vllm")}
    if host := environ.get("OLLAMA_HOST", "").strip():
        known["ollama"] = _ollama_address(host) or known["ollama"]
    return list(known.items())


async def find_servers(
    environ: Mapping[str, str], *, addresses: Sequence[tuple[str, str]] | None = None, timeout_s: float = PROBE_S
) -> list[FoundServer]:
    """Every server that answered in time, Ollama first. Never raises for a server that is absent or odd."""
    asked = [
        (provider, url.removesuffix("/v1"))
        for provider, url in (candidates(environ) if addresses is None else addresses)
        if is_local_url(url)
    ]
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False, auto_decompress=False) as session:
        asks = [
            _ollama_models(session, root) if provider == "ollama" else _openai_models(session, provider, root)
            for provider, root in asked
        ]
        found = await asyncio.gather(*asks)
    return [
        FoundServer(provider=provider, base_url=f"{root}/v1", models=models)
        for (provider, root), models in zip(asked, found, strict=True)
        if models
    ]


def catalogue_models(server: FoundServer) -> list[Model]:
    """The server's chat models as catalogue rows with a price of zero."""
    facts = PROVIDERS[server.provider]
    return [
        Model(
            provider=server.provider,
            id=found.id,
            name=found.id,
            api="openai-completions",
            base_url=server.base_url,
            reasoning=found.reasoning,
            input=("text", "image") if found.sees else ("text",),
            context_window=found.context_window or UNKNOWN_WINDOW,
            max_tokens=min(8192, (found.context_window or UNKNOWN_WINDOW) // 2),
            cost=Price(),
            compat=dict(facts.compat),
            tools=found.tools is not False,
        )
        for found in server.models
        if found.chats
    ]


async def _ollama_models(session: aiohttp.ClientSession, root: str) -> tuple[FoundModel, ...]:
    tags, running = await asyncio.gather(_ask(session, f"{root}/api/tags"), _ask(session, f"{root}/api/ps"))
    names = [str(row["name"]) for row in _rows(tags, "models") if row.get("name")][:MAX_MODELS]
    loaded = {str(row.get("name")): row.get("context_length") for row in _rows(running, "models")}
    details = await asyncio.gather(
        *(_ask(session, f"{root}/api/show", {"model": name}) for name in names[:MAX_DETAILED])
    )
    return tuple(_ollama_model(name, loaded.get(name), detail or {}) for name, detail in zip_longest(names, details))


def _ollama_model(name: str, loaded_window: Any, detail: dict[str, Any]) -> FoundModel:
    """The window is that of the loaded model, else the model file's ``num_ctx``, else the trained one with a cap."""
    window = loaded_window if isinstance(loaded_window, int) and loaded_window > 0 else None
    if window is None and (set_window := _NUM_CTX.search(str(detail.get("parameters") or ""))):
        window = int(set_window[1])
    if window is None:
        info = detail.get("model_info")
        trained = [v for k, v in info.items() if k.endswith(".context_length")] if isinstance(info, dict) else []
        window = min(trained[0], UNKNOWN_WINDOW) if trained and isinstance(trained[0], int) else None
    capabilities = detail.get("capabilities")
    if not isinstance(capabilities, list):
        return FoundModel(id=name, context_window=window)
    return FoundModel(
        id=name,
        context_window=window,
        tools="tools" in capabilities,
        sees="vision" in capabilities,
        reasoning="thinking" in capabilities,
        chats="completion" in capabilities,
    )


async def _openai_models(session: aiohttp.ClientSession, provider: str, root: str) -> tuple[FoundModel, ...]:
    rows = _rows(await _ask(session, f"{root}/v1/models"), "data")
    windows: dict[str, Any] = {}
    if provider == "lmstudio" and rows:
        extended = await _ask(session, f"{root}/api/v0/models")
        for row in _rows(extended, "data"):
            windows[str(row.get("id"))] = row.get("loaded_context_length") or row.get("max_context_length")
    models: list[FoundModel] = []
    for row in rows[:MAX_MODELS]:
        model_id = row.get("id")
        if not isinstance(model_id, str) or not model_id:
            continue
        meta = row.get("meta")
        said = windows.get(model_id) or row.get("max_model_len")
        if said is None and isinstance(meta, dict):
            said = meta.get("n_ctx") or meta.get("n_ctx_train")
        window = said if isinstance(said, int) and said > 0 else None
        models.append(FoundModel(id=model_id, context_window=window, chats="embed" not in model_id.lower()))
    return tuple(models)


def _rows(body: dict[str, Any] | None, field: str) -> list[dict[str, Any]]:
    rows = body.get(field) if body else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """A small JSON object, or None for anything else."""
    try:
        method = "GET" if body is None else "POST"
        async with session.request(method, url, json=body, allow_redirects=False) as response:
            if response.status != 200:
                return None
            raw = await response.content.read(MAX_BODY)
            while chunk := await response.content.read(MAX_BODY):
                raw += chunk
                if len(raw) > MAX_BODY:
                    return None
            data = msgspec.json.decode(raw)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.MsgspecError):
        return None
    return data if isinstance(data, dict) else None


def _ollama_address(host: str) -> str | None:
    """The URL for ``OLLAMA_HOST`` (``0.0.0.0``, ``localhost:11500``, ``http://…``), or None for another machine."""
    try:
        parts = urlsplit(host if "//" in host else f"http://{host}")
        port = parts.port or 11434
    except ValueError:
        return None
    name = parts.hostname or "127.0.0.1"
    if name in ("0.0.0.0", "::"):  # an address to listen on, not one to call
        name = "127.0.0.1"
    url = f"{parts.scheme}://{f'[{name}]' if ':' in name else name}:{port}/v1"
    return url if is_local_url(url) else None
