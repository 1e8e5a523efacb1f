"""The model catalogue as clients of protocol 4 see it."""

from __future__ import annotations

from typing import Any

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import agent_ids, default_agent_id
from openclaw.models.catalogue import UnknownModel
from openclaw.models.thinking import level_unless_set, supported_levels
from openclaw.protocol.protocol4 import (
    AccountSelection,
    CatalogModel,
    ModelCatalog,
    ModelScope,
    ModelSnapshot,
    ThinkingLevel,
)

AUTOMATIC = AccountSelection("automatic", "Automatic")


def catalog_of(runtime: Runtime, agent_id: str) -> ModelCatalog:
    """Return the models that can be called now, with the default of this agent marked."""
    catalogue, config = runtime.models.catalogue(), runtime.config.current
    try:
        default = catalogue.default_for(config, agent_id).ref
    except UnknownModel:
        default = ""
    models = [
        CatalogModel(
            id=model.id,
            name=model.name or model.id,
            provider=model.provider,
            context_window=model.context_window,
            reasoning=model.reasoning,
            input=list(model.input),
            available=True,
            manual_selection_allowed=True,
            thinking_levels=[ThinkingLevel(level, level) for level in supported_levels(model)],
            thinking_default=level_unless_set(model, config.agents.defaults.thinking_default),
            tags=["default"] if model.ref == default else [],
        )
        for model in catalogue.available()
    ]
    return ModelCatalog(models, AUTOMATIC)


def snapshot_for(runtime: Runtime, target: dict[str, Any]) -> ModelSnapshot:
    """Return the catalogue for what a client named when it connected: an agent, and perhaps a session."""
    config = runtime.config.current
    named = target.get("agentId")
    agent_id = named if isinstance(named, str) and named in agent_ids(config) else default_agent_id(config)
    key = target.get("sessionKey")
    scope = ModelScope(agent_id, key if isinstance(key, str) else None)
    return ModelSnapshot(target=target, scope=scope, catalog=catalog_of(runtime, agent_id))
