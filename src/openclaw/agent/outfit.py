"""What all runs of an agent with one model have in common, worked out once and kept until the configuration changes."""

from __future__ import annotations

import msgspec

from openclaw.agent.model_params import ModelParams, params_of, with_retention
from openclaw.agent.runtime import Runtime
from openclaw.agent.terms import Terms, terms_of
from openclaw.agent.tokens import Scale
from openclaw.agent.toolset import tools_for
from openclaw.config.schema import Config
from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model
from openclaw.models.thinking import level_unless_set
from openclaw.tools.base import Tool


class Outfit(msgspec.Struct, frozen=True, kw_only=True):
    chosen: Model
    """As the catalogue has it."""
    model: Model
    """With what the configuration wants of it."""
    params: ModelParams
    terms: Terms
    tools: list[Tool]
    """Never mutate it."""
    thinking: ThinkingLevel
    """Of sessions without a level of their own."""
    scale: Scale


def outfit_of(agent_id: str, chosen: Model, config: Config, runtime: Runtime) -> Outfit:
    def make() -> Outfit:
        return _outfit(agent_id, chosen, config, runtime)

    key = ("outfit", agent_id, chosen.provider, chosen.id, chosen.auth_profile)
    known = runtime.derived.of(config, key, make)
    # A catalogue can change without the configuration, when another server is found.
    return known if known.chosen is chosen or known.chosen == chosen else make()


def _outfit(agent_id: str, chosen: Model, config: Config, runtime: Runtime) -> Outfit:
    params, terms = params_of(config, chosen), terms_of(agent_id, runtime)
    model = with_retention(chosen, params)
    return Outfit(
        chosen=chosen,
        model=model,
        params=params,
        terms=terms,
        tools=tools_for(agent_id, model, terms.workspace, config, runtime),
        thinking=level_unless_set(model, config.agents.defaults.thinking_default),
        scale=runtime.scales.of(model),
    )
