"""The well-known providers and models, read from two tables beside this file. Others work too.

Windows, limits and prices are the vendors' public list figures. For vendors that charge more for very long prompts the
base tier is given. A price that is not certain is left out and never zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

from openclaw.models.base import Model, Price

OPENAI_API = "openai-completions"
_PRICES = ("input", "output", "cache_read", "cache_write")


class ProviderFacts(msgspec.Struct, frozen=True):
    """The built-in settings of a provider, before anything is configured."""

    name: str
    label: str
    base_url: str
    key_env: tuple[str, ...] = ()
    """Environment variables that may hold the key, in the order they are tried."""
    default_model: str = ""
    """The default model when a key of this provider is found and no model is configured."""
    compat: dict[str, Any] = {}
    api: str = OPENAI_API
    resells: bool = False
    """Whether it offers other vendors' models. A bare model id means the vendor's own."""


def _rows(name: str) -> Iterator[list[str]]:
    """The rows of a table beside this file. Each has eight columns; the last ones may be left out."""
    for line in files("openclaw.models").joinpath(name).read_text("utf-8").splitlines():
        if not line.startswith("#"):
            yield (line.split("\t") + [""] * 8)[:8]


def _providers() -> Iterator[ProviderFacts]:
    for name, label, base_url, key_env, default_model, quirks, api, resells in _rows("catalogue_providers.tsv"):
        compat: dict[str, Any] = {"maxTokensField": "max_tokens"} if "max_tokens" in quirks else {}
        if "no_developer_role" in quirks:
            compat["supportsDeveloperRole"] = False
        yield ProviderFacts(
            name, label, base_url, tuple(key_env.split()), default_model, compat, api or OPENAI_API, bool(resells)
        )


PROVIDERS = {facts.name: facts for facts in _providers()}

PROVIDER_ALIASES = {"gemini": "google", "z.ai": "zai", "z-ai": "zai", "grok": "xai", "claude": "anthropic"}

MODEL_ALIASES = {
    "opus": "anthropic/claude-opus-5-5",
    "sonnet": "anthropic/claude-sonnet-5-5",
    "haiku": "anthropic/claude-haiku-5-5",
    "gpt": "openai/gpt-5.4",
    "gpt-mini": "openai/gpt-5-mini",
    "gemini": "google/gemini-3.1-pro-preview",
    "gemini-flash": "google/gemini-3.5-flash",
}
"""Short names of models. An alias of the config with the same name wins."""

LOCAL_PROVIDER = "local"
DEMO_MODEL = "smollm2-135m-instruct"
"""The embedded model. It is good for a first try and not for work."""


def _models() -> Iterator[Model]:
    for provider, model_id, name, window, max_tokens, abilities, prices, api in _rows("catalogue_table.tsv"):
        facts = PROVIDERS[provider]
        yield Model(
            provider=provider,
            id=model_id,
            name=name,
            api=api or facts.api,
            # Clients of the Anthropic protocol add the version to the address themselves.
            base_url=facts.base_url.removesuffix("/v1") if api == "anthropic-messages" else facts.base_url,
            reasoning="reasons" in abilities,
            input=("text", "image") if "sees" in abilities else ("text",),
            context_window=int(window),
            max_tokens=int(max_tokens),
            cost=Price(**dict(zip(_PRICES, map(float, prices.split()), strict=False))) if prices else None,
            compat=dict(facts.compat),
        )


MODELS: tuple[Model, ...] = tuple(_models())
"""The models a person most likely wants come first."""


def is_demo(model: Model) -> bool:
    return model.provider == LOCAL_PROVIDER and model.id == DEMO_MODEL


def local_model(context_window: int = 8192) -> Model:
    """The embedded model."""
    return Model(
        provider=LOCAL_PROVIDER,
        id=DEMO_MODEL,
        name="SmolLM2 135M (embedded)",
        api="local",
        context_window=context_window,
        max_tokens=1024,
        cost=Price(),
        tools=False,
    )
