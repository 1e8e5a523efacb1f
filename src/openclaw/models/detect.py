"""Finds the models of servers that run on this machine. Only loopback addresses are asked, with a short timeout."""

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
LOCAL_SERVERS = ("ollama", "lmstudio", "llamacpp", "vllm")
MAX_MODELS = 50
MAX_DETAILED = 16
MAX_BODY = 1 << 20
UNKNOWN_WINDOW = 32_768
"""The window of a local model when the server does not say how large it really is."""

_NUM_CTX = re.compile(r"^[ \t]*num_ctx[ \t]+(\d+)[ \t]*$", re.MULTILINE)


def candidates(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Provider and address of the servers to ask. ``OLLAMA_HOST`` counts when it is this machine."""
    known = {name: PROVIDERS[name].base_url for name in LOCAL_SERVERS}
    if host := environ.get("OLLAMA_HOST", "").strip():
        known["ollama"] = _ollama_address(host) or known["ollama"]
    return list(known.items())


async def find_models(
    environ: Mapping[str, str], *, addresses: Sequence[tuple[str, str]] | None = None, timeout_s: float = PROBE_S
) -> list[Model]:
    """The chat models of every server that answered in time, Ollama's first. They cost nothing.

    Never raises for a server that is absent or odd.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False, auto_decompress=False) as session:
        asks = [
            _ollama_models(session, url) if provider == "ollama" else _openai_models(session, provider, url)
            for provider, url in (candidates(environ) if addresses is None else addresses)
            if is_local_url(url)
        ]
        return [model for models in await asyncio.gather(*asks) for model in models]


def _model(
    provider: str, url: str, model_id: str, window: int | None, capabilities: Sequence[str] = ("tools",)
) -> Model:
    window = window or UNKNOWN_WINDOW
    return Model(
        provider=provider,
        id=model_id,
        name=model_id,
        base_url=f"{url.removesuffix('/v1')}/v1",
        reasoning="thinking" in capabilities,
        input=("text", "image") if "vision" in capabilities else ("text",),
        context_window=window,
        max_tokens=min(8192, window // 2),
        cost=Price(),
        compat=dict(PROVIDERS[provider].compat),
        tools="tools" in capabilities,
    )


async def _ollama_models(session: aiohttp.ClientSession, url: str) -> list[Model]:
    root = url.removesuffix("/v1")
    tags, running = await asyncio.gather(_ask(session, f"{root}/api/tags"), _ask(session, f"{root}/api/ps"))
    names = [str(row["name"]) for row in _rows(tags, "models") if row.get("name")][:MAX_MODELS]
    loaded = {str(row.get("name")): row.get("context_length") for row in _rows(running, "models")}
    details = await asyncio.gather(
        *(_ask(session, f"{root}/api/show", {"model": name}) for name in names[:MAX_DETAILED])
    )
    models: list[Model] = []
    for name, detail in zip_longest(names, details):
        window = _ollama_window(loaded.get(name), detail or {})
        capabilities = (detail or {}).get("capabilities")
        if not isinstance(capabilities, list):
            models.append(_model("ollama", url, name, window))
        elif "completion" in capabilities:  # Embedding models cannot complete.
            models.append(_model("ollama", url, name, window, capabilities))
    return models


def _ollama_window(loaded: Any, detail: dict[str, Any]) -> int | None:
    """The window of the loaded model, else the model file's ``num_ctx``, else the trained one with a cap."""
    if isinstance(loaded, int) and loaded > 0:
        return loaded
    if configured := _NUM_CTX.search(str(detail.get("parameters") or "")):
        return int(configured[1])
    info = detail.get("model_info")
    trained = [v for k, v in info.items() if k.endswith(".context_length")] if isinstance(info, dict) else []
    return min(trained[0], UNKNOWN_WINDOW) if trained and isinstance(trained[0], int) else None


async def _openai_models(session: aiohttp.ClientSession, provider: str, url: str) -> list[Model]:
    root = url.removesuffix("/v1")
    rows = _rows(await _ask(session, f"{root}/v1/models"), "data")
    windows: dict[str, Any] = {}
    if provider == "lmstudio" and rows:
        for row in _rows(await _ask(session, f"{root}/api/v0/models"), "data"):
            windows[str(row.get("id"))] = row.get("loaded_context_length") or row.get("max_context_length")
    models: list[Model] = []
    for row in rows[:MAX_MODELS]:
        model_id = row.get("id")
        if not isinstance(model_id, str) or not model_id or "embed" in model_id.lower():
            continue
        meta = row.get("meta")
        said = windows.get(model_id) or row.get("max_model_len")
        if said is None and isinstance(meta, dict):
            said = meta.get("n_ctx") or meta.get("n_ctx_train")
        models.append(_model(provider, url, model_id, said if isinstance(said, int) and said > 0 else None))
    return models


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
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.MsgspecError, RecursionError):
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
