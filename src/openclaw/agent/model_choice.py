"""The model of a run, with its parameters and thinking level: what the message, the session and the config choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from openclaw.agent.caller import NO_MESSAGE
from openclaw.agent.runtime import Runtime
from openclaw.config.schema import Config
from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model
from openclaw.models.catalogue import Catalogue
from openclaw.models.thinking import clamp_to_model, level_unless_set, parse_level
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.message_ledger import MessageBody


def choose_model(runtime: Runtime, agent_id: str, entry: SessionEntry, body: MessageBody = NO_MESSAGE) -> Model:
    """The model that the message asks for, else the session's choice, else the agent's default.

    The credential is chosen in the same order.
    """
    catalogue = runtime.models.catalogue()
    if body.model:
        model = catalogue.resolve(body.model)
    else:
        model = current_model(entry, runtime.config.current, catalogue, agent_id)
    profile = body.auth_profile or entry.get("authProfileOverride")
    return msgspec.structs.replace(model, auth_profile=profile) if profile else model


def current_model(entry: Mapping[str, Any] | None, config: Config, catalogue: Catalogue, agent_id: str) -> Model:
    """The session's choice, else the agent's default. Raises ``UnknownModel``."""
    override = (entry or {}).get("modelOverride")
    if override:
        provider = (entry or {}).get("providerOverride")
        return catalogue.resolve(f"{provider}/{override}" if provider else str(override))
    return catalogue.default_for(config, agent_id)


class ModelParams(msgspec.Struct, frozen=True):
    """``agents.defaults.models["provider/model"].params`` of one model."""

    temperature: float | None = None
    max_tokens: int | None = None
    cache_retention: str | None = None
    """``none``, ``short`` or ``long``. The old key ``cacheControlTtl`` says ``5m`` or ``1h`` instead."""

    def applied_to(self, model: Model) -> Model:
        """The model with the retention, which its provider reads from ``compat``."""
        if self.cache_retention is None:
            return model
        return msgspec.structs.replace(model, compat={**model.compat, "cacheRetention": self.cache_retention})


def params_of(config: Config, model: Model) -> ModelParams:
    """The parameters of a model. Values of the wrong type count as not given."""
    use = config.agents.defaults.models.get(model.ref)
    params = use.params if use is not None else {}
    temperature: Any = params.get("temperature")
    max_tokens: Any = params.get("maxTokens")
    old = {"5m": "short", "1h": "long"}.get(str(params.get("cacheControlTtl")))
    retention: Any = params.get("cacheRetention") or old
    return ModelParams(
        temperature=float(temperature) if type(temperature) in (int, float) else None,
        max_tokens=max_tokens if type(max_tokens) is int and max_tokens > 0 else None,
        cache_retention=retention if retention in ("none", "short", "long") else None,
    )


def thinking_of(body: MessageBody, entry: SessionEntry, model: Model, config: Config) -> ThinkingLevel:
    """The level that the message asks for, else the session's, else the usual one; as far as the model has it."""
    level_name = body.thinking or entry.get("thinkingLevel")
    level = parse_level(level_name) if level_name else None
    return clamp_to_model(level, model) if level else level_unless_set(model, config.agents.defaults.thinking_default)
