"""Catalogue rows from the config: what it says of providers and models, laid over what is built in."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.models.base import Model, Price
from openclaw.models.catalogue_data import MODELS, PROVIDERS
from openclaw.models.gguf import context_length
from openclaw.models.keys import canonical_provider, provider_config

if TYPE_CHECKING:
    from openclaw.config.schema import Config, ModelConfig, ProviderConfig

log = logging.getLogger(__name__)

DEFAULT_WINDOW = 200_000
DEFAULT_MAX_TOKENS = 8192
LOCAL_WINDOW = 8192
"""The embedded library keeps its whole window in memory, so a larger one must be asked for."""


def configured_models(config: Config, environ: Mapping[str, str]) -> Iterator[Model]:
    """The models listed under ``models.providers``, in the order of the file."""
    builtin = {model.ref.lower(): model for model in MODELS}
    for name, section in config.models.providers.items():
        provider = canonical_provider(name)
        for row in section.models:
            known = builtin.get(f"{provider}/{row.id}".lower())
            base = _provider_row(provider, section, environ, row.api or section.api, known)
            yield _with_overrides(base, row, inherits=known is not None)


def builtin_models(config: Config, environ: Mapping[str, str]) -> Iterator[Model]:
    """The well-known models, with the address, protocol and headers the config gives their provider."""
    for model in MODELS:
        section = provider_config(config, model.provider)
        yield model if section is None else _provider_row(model.provider, section, environ, section.api, model)


def unlisted_model(provider: str, model_id: str, config: Config, environ: Mapping[str, str]) -> Model | None:
    """A model nobody listed, of a provider whose address is known: a new model needs no new release of ours."""
    section = provider_config(config, provider)
    base = _provider_row(provider, section, environ, section.api if section else None)
    if not base.base_url:
        return None
    first = section.models[0] if section is not None and section.models else None
    window = first.context_window if first is not None and first.context_window else DEFAULT_WINDOW
    max_tokens = (first.max_tokens if first is not None else None) or min(DEFAULT_MAX_TOKENS, window)
    return msgspec.structs.replace(base, id=model_id, name=model_id, context_window=window, max_tokens=max_tokens)


def _provider_row(
    provider: str,
    section: ProviderConfig | None,
    environ: Mapping[str, str],
    api: str | None,
    known: Model | None = None,
) -> Model:
    """A row with what holds for all models of the provider."""
    facts = PROVIDERS.get(provider)
    start = known or Model(
        provider=provider,
        id="",
        api=facts.api if facts else "openai-completions",
        base_url=facts.base_url if facts else "",
        compat=dict(facts.compat) if facts else {},
    )
    if section is None:
        return start
    wire, address = _endpoint(api or start.api, section.base_url or start.base_url)
    headers = {**start.headers, **_headers(provider, section, environ)}
    return msgspec.structs.replace(start, api=wire, base_url=address, headers=headers)


def _with_overrides(base: Model, row: ModelConfig, *, inherits: bool) -> Model:
    """What the config says of the model; what it leaves out is the built-in row's, where there is one."""
    given = _given_fields(row)
    window = row.context_window if "context_window" in given or not inherits else base.context_window
    if base.api == "local" and "context_window" not in given:
        window = min(context_length(base.base_url) or LOCAL_WINDOW, LOCAL_WINDOW)
    free = Price() if base.api == "local" else None
    return msgspec.structs.replace(
        base,
        id=row.id,
        name=row.name or base.name or row.id,
        reasoning=row.reasoning if "reasoning" in given or not inherits else base.reasoning,
        input=tuple(row.input) if "input" in given or not inherits else base.input,
        context_window=window,
        max_tokens=row.max_tokens or (base.max_tokens if inherits else min(DEFAULT_MAX_TOKENS, window)),
        cost=_price(row.cost) if row.cost is not None else base.cost or free,
        headers={**base.headers, **row.headers},
        compat={**base.compat, **row.compat},
        tools=row.tools and base.api != "local",
    )


def _headers(provider: str, section: ProviderConfig, environ: Mapping[str, str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in section.headers.items():
        path = f"models.providers.{provider}.headers.{name}"
        if not isinstance(value, str) and value.command:
            # Rows are made on the event loop, which a command would hold up.
            log.warning("%s is left out: a header cannot come from a command", path)
            continue
        try:
            headers[name] = resolve_secret(value, environ, path) or ""
        except SecretUnavailable as error:
            log.warning("A header is left out: %s", error)
    return headers


def _endpoint(api: str, base_url: str) -> tuple[str, str]:
    """Two protocols of existing configs are served through the compatible endpoint of the same server."""
    address = base_url.rstrip("/")
    if api == "ollama":
        return "openai-completions", address if address.endswith("/v1") else f"{address}/v1"
    if api == "google-generative-ai":
        return "openai-completions", address if address.endswith("/openai") else f"{address}/openai"
    return api, address


def _given_fields(row: ModelConfig) -> set[str]:
    """Fields the config really sets; a value equal to the record's default counts as left out."""
    blank = type(row)(id=row.id)
    return {name for name in row.__struct_fields__ if getattr(row, name) != getattr(blank, name)}


def _price(cost: Any) -> Price:
    return Price(input=cost.input, output=cost.output, cache_read=cost.cache_read, cache_write=cost.cache_write)
