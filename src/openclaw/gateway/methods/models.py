"""``models.*``: which models there are, which one answers and with which keys, and whether those keys work."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import default_agent_id
from openclaw.config.schema import Config
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.models.base import Model
from openclaw.models.calls import TRIAL_S, Trial, try_key
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.catalogue_data import PROVIDERS
from openclaw.models.errors import ErrorKind, error_text
from openclaw.models.keys import Key, MissingKey, canonical_provider, env_names
from openclaw.protocol.result import Result

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


class KeyView(Result):
    id: str
    source: str
    where: str = ""
    rests_until: int = 0
    """The end of its cooldown, if it has one."""


class UsedKey(msgspec.Struct, frozen=True):
    """One key that the Gateway has, and the model that it is tried with."""

    model: Model
    key: Key

    def view(self, runtime: Runtime) -> KeyView:
        """Describe the key for clients, without the key itself."""
        cooldown_end = runtime.models.calls.keys.cooldown_end(self.key, self.model)
        source = self.key.source
        return KeyView(self.key.credential.id, source.kind, source.where or "", cooldown_end or 0)


class ListedModel(Result):
    id: str
    name: str
    provider: str
    context_window: int
    reasoning: bool
    input: list[str]
    available: bool
    """Whether it could be called now."""

    @classmethod
    def of(cls, model: Model, available: bool) -> ListedModel:
        return cls(
            id=model.id,
            name=model.name or model.id,
            provider=model.provider,
            context_window=model.context_window,
            reasoning=model.reasoning,
            input=list(model.input),
            available=available,
        )


class ModelList(Result):
    models: list[ListedModel]


@methods.add("models.list", NoParams)
async def list_models(call: MethodCall) -> ModelList:
    """All models, and which of them could be called now."""
    catalogue = call.gateway.runtime.models.catalogue()
    usable = {model.ref for model in catalogue.available()}
    return ModelList([ListedModel.of(model, model.ref in usable) for model in catalogue.all()])


class UsedProvider(Result):
    provider: str
    label: str
    model: str
    """The model with which its keys are tried."""
    keys: list[KeyView]


class ModelsState(Result):
    default_model: str | None
    why: str
    """Why this model answers, or why none does."""
    agent_id: str
    providers: list[UsedProvider]
    variables: list[str]
    """The variables of providers that are set in the Gateway's environment."""


@methods.add("models.status", ModelsStatus)
async def status(call: MethodCall, params: ModelsStatus) -> ModelsState:
    """The model that answers, why, and where the Gateway has keys from."""
    gateway, runtime = call.gateway, call.gateway.runtime
    if params.refresh:
        await runtime.models.rescan()
    config = runtime.config.current
    agent_id = params.agent_id or default_agent_id(config)
    used = await used_keys(runtime, agent_id)
    providers: dict[str, UsedProvider] = {}
    for key in used:
        name = key.model.provider
        facts = PROVIDERS.get(name)
        row = providers.setdefault(name, UsedProvider(name, facts.label if facts else name, key.model.ref, []))
        row.keys.append(key.view(runtime))
    try:
        choice = runtime.models.catalogue().choose(config, agent_id)
        model, why = choice.model.ref, choice.why
    except UnknownModel as unknown:
        model, why = None, str(unknown)
    variables = {name for provider in PROVIDERS for name in env_names(provider)}
    return ModelsState(
        default_model=model,
        why=why,
        agent_id=agent_id,
        providers=list(providers.values()),
        variables=sorted(name for name in variables if gateway.environ.get(name, "").strip()),
    )


class ProbedKey(Result):
    """One key and how its trial went."""

    provider: str
    model: str
    key: KeyView
    ok: bool
    said: str = ""
    """The reply of the model."""
    error: str = ""
    kind: ErrorKind = "other"
    duration_ms: int = 0


class ProbedKeys(Result):
    results: list[ProbedKey]


@methods.add("models.probe", ModelsProbe)
async def probe(call: MethodCall, params: ModelsProbe) -> ProbedKeys:
    """Tries every key with one real message. It costs a few tokens each."""
    runtime = call.gateway.runtime
    agent_id = params.agent_id or default_agent_id(runtime.config.current)
    provider = canonical_provider(params.provider) if params.provider else None
    used = [key for key in await used_keys(runtime, agent_id) if provider in (None, key.model.provider)]
    if provider is not None and not used:
        raise MethodError(f"the Gateway has no key for {provider[:80]}")
    turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def try_one(key: UsedKey) -> ProbedKey:
        async with turns:
            view = key.view(runtime)
            trial = await _trial(runtime, key, params.timeout_ms / 1000)
            return ProbedKey(key.model.provider, key.model.ref, view, **msgspec.structs.asdict(trial))

    return ProbedKeys(await asyncio.gather(*map(try_one, used)))


async def _trial(runtime: Runtime, one: UsedKey, timeout_s: float) -> Trial:
    calls, config, clock = runtime.models.calls, runtime.config.current, runtime.clock
    began = clock.now_ms()
    try:
        secret = await calls.keys.read(one.key, one.model, config)
    except MissingKey as missing:
        return Trial(ok=False, error=error_text(missing), kind=missing.kind)
    trial = await try_key(calls.provider_for(one.model), one.model, secret, clock, timeout_s=timeout_s)
    if trial.ok:
        calls.keys.cooldowns.succeeded(one.key.credential, one.model.provider, began)
    return trial


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
