"""``models.*``: which models there are, which one answers and with which keys, and whether those keys work."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import default_agent_id
from openclaw.config.schema import Config
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.models.base import Model
from openclaw.models.calls import TRIAL_S, try_key
from openclaw.models.catalogue import Catalogue, UnknownModel, public_row
from openclaw.models.catalogue_data import PROVIDERS
from openclaw.models.errors import error_text
from openclaw.models.keys import Key, MissingKey, canonical_provider, env_names

methods = MethodTable()

MOST_AT_ONCE = 4
LONGEST_TRIAL_MS = 300_000


class ModelsStatus(Params):
    agent_id: NonEmpty | None = None
    refresh: bool = False
    """Look again for stored keys, fetched models and servers on this machine."""


class ModelsProbe(Params):
    provider: NonEmpty | None = None
    agent_id: NonEmpty | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=100, le=LONGEST_TRIAL_MS)] = round(TRIAL_S * 1000)


class UsedKey(msgspec.Struct, frozen=True):
    """One key that the Gateway has, and the model that it is tried with."""

    model: Model
    key: Key

    def view(self, runtime: Runtime) -> dict[str, Any]:
        """What clients see of it. The key itself is never shown."""
        rests = runtime.models.calls.keys.cooldown_end(self.key, self.model)
        source = self.key.source
        return {
            "id": self.key.credential.id,
            "source": source.kind,
            **({"where": source.where} if source.where else {}),
            **({"restsUntil": rests} if rests else {}),
        }


@methods.add("models.list", NoParams)
async def list_models(call: MethodCall) -> Any:
    """All models; ``available`` says whether one could be called now."""
    catalogue = call.gateway.runtime.models.catalogue()
    usable = {model.ref for model in catalogue.available()}
    return {"models": [{**public_row(model), "available": model.ref in usable} for model in catalogue.all()]}


@methods.add("models.status", ModelsStatus)
async def status(call: MethodCall, params: ModelsStatus) -> Any:
    """The model that answers, why, and where the Gateway has keys from."""
    gateway, runtime = call.gateway, call.gateway.runtime
    if params.refresh:
        await runtime.models.rescan()
    config = runtime.config.current
    agent_id = params.agent_id or default_agent_id(config)
    used = await used_keys(runtime, agent_id)
    providers: dict[str, dict[str, Any]] = {}
    for one in used:
        name = one.model.provider
        facts = PROVIDERS.get(name)
        row = providers.setdefault(
            name, {"provider": name, "label": facts.label if facts else name, "model": one.model.ref, "keys": []}
        )
        row["keys"].append(one.view(runtime))
    try:
        choice = runtime.models.catalogue().choose(config, agent_id)
        chosen = {"defaultModel": choice.model.ref, "why": choice.why}
    except UnknownModel as unknown:
        chosen = {"defaultModel": None, "why": str(unknown)}
    variables = {name for provider in PROVIDERS for name in env_names(provider)}
    return {
        **chosen,
        "agentId": agent_id,
        "providers": list(providers.values()),
        "variables": sorted(name for name in variables if gateway.environ.get(name, "").strip()),
    }


@methods.add("models.probe", ModelsProbe)
async def probe(call: MethodCall, params: ModelsProbe) -> Any:
    """Tries every key with one real message. It costs a few tokens each."""
    runtime = call.gateway.runtime
    agent_id = params.agent_id or default_agent_id(runtime.config.current)
    wanted = canonical_provider(params.provider) if params.provider else None
    used = [one for one in await used_keys(runtime, agent_id) if wanted in (None, one.model.provider)]
    if wanted is not None and not used:
        raise MethodError(f"the Gateway has no key for {wanted[:80]}")
    turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def tried(one: UsedKey) -> dict[str, Any]:
        async with turns:
            row = {"provider": one.model.provider, "model": one.model.ref, "key": one.view(runtime)}
            return {**row, **await _trial(runtime, one, params.timeout_ms / 1000)}

    return {"results": await asyncio.gather(*map(tried, used))}


async def _trial(runtime: Runtime, one: UsedKey, timeout_s: float) -> dict[str, Any]:
    calls, config, clock = runtime.models.calls, runtime.config.current, runtime.clock
    began = clock.now_ms()
    try:
        secret = await calls.keys.read(one.key, one.model, config)
    except MissingKey as missing:
        return {"ok": False, "error": error_text(missing), "kind": missing.kind}
    trial = await try_key(calls.provider_for(one.model), one.model, secret, clock, timeout_s=timeout_s)
    if trial.ok:
        calls.keys.cooldowns.succeeded(one.key.credential, one.model.provider, began)
    return msgspec.to_builtins(trial)


async def used_keys(runtime: Runtime, agent_id: str) -> list[UsedKey]:
    """Every key that the Gateway has, with a model of its provider. The provider of the default model comes first."""
    config, catalogue = runtime.config.current, runtime.models.catalogue()
    used: list[UsedKey] = []
    for model in _models_to_try(catalogue, config, agent_id):
        try:
            keys = await runtime.models.calls.keys.all_for(model, config, agent_id)
        except MissingKey:
            continue
        used += [UsedKey(model, key) for key in keys]
    return used


def _models_to_try(catalogue: Catalogue, config: Config, agent_id: str) -> list[Model]:
    """One model of each provider that can be called: the default model, else the one that its provider stands for."""
    found: dict[str, Model] = {}
    try:
        default = catalogue.default_for(config, agent_id)
        found[default.provider] = default
    except UnknownModel:
        pass
    for model in catalogue.available():
        facts = PROVIDERS.get(model.provider)
        if model.api == "local" or model.provider in found:
            continue
        found[model.provider] = model
        if facts is not None and facts.default_model:
            try:
                found[model.provider] = catalogue.resolve(f"{model.provider}/{facts.default_model}")
            except UnknownModel:
                continue
    return list(found.values())
