"""``agents.defaults.models["provider/model"].params``: what a person wants of every request to a model."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.config.schema import Config
from openclaw.models.base import Model

_RETENTION = ("none", "short", "long")
_OLD_RETENTION = {"5m": "short", "1h": "long"}


class ModelParams(msgspec.Struct, frozen=True):
    temperature: float | None = None
    max_tokens: int | None = None
    cache_retention: str | None = None
    """``none``, ``short`` or ``long``; also told as ``cacheControlTtl`` of ``5m`` or ``1h``."""


NONE = ModelParams()


def params_of(config: Config, model: Model) -> ModelParams:
    """Values of the wrong kind count as not given."""
    use = config.agents.defaults.models.get(model.ref)
    if use is None or not use.params:
        return NONE
    given = use.params
    temperature: Any = given.get("temperature")
    max_tokens: Any = given.get("maxTokens")
    retention: Any = given.get("cacheRetention") or _OLD_RETENTION.get(str(given.get("cacheControlTtl")))
    return ModelParams(
        temperature=float(temperature) if type(temperature) in (int, float) else None,
        max_tokens=max_tokens if type(max_tokens) is int and max_tokens > 0 else None,
        cache_retention=retention if retention in _RETENTION else None,
    )


def with_retention(model: Model, params: ModelParams) -> Model:
    if params.cache_retention is None:
        return model
    return msgspec.structs.replace(model, compat={**model.compat, "cacheRetention": params.cache_retention})
