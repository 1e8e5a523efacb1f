"""The catalogue of models with their windows, limits and prices, and the choice of a default model.

``find_models`` asks the servers that run on this machine for theirs. Only loopback addresses are asked, with a short
timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw import paths
from openclaw.config.agents import default_agent_id, fallback_models, model_aliases, named_models, primary_model
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.models.base import CLI_API, Model, ModelError, Price
from openclaw.models.catalogue_data import LOCAL_PROVIDER, MODEL_ALIASES, MODELS, PROVIDERS, local_model
from openclaw.models.cli_backend import KNOWN_BACKENDS, cli_model
from openclaw.models.keys import canonical_provider, find_source, is_local_url, provider_config, read_profiles
from openclaw.models.local.install import (
    INSTALL_COMMAND,
    context_length,
    find_download,
    installed_models,
    is_installed,
    weights_path,
)
from openclaw.models.local.tool_text import TOOL_FORMAT

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.config.schema.models import ModelConfig, ProviderConfig
    from openclaw.config.store import ConfigStore


log = logging.getLogger(__name__)

AGENTS_KEPT = 256
DEFAULT_WINDOW = 200_000
DEFAULT_MAX_TOKENS = 8192
LOCAL_WINDOW = 8192
"""The embedded model keeps its whole window in memory, so a larger window must be configured."""


class UnknownModel(ModelError):
    """No model has this name. The text gives near names and how to configure another model."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, kind="unknown")
        self.name = name


class Choice(msgspec.Struct, frozen=True):
    """A default model and one sentence on why it was chosen."""

    model: Model
    why: str


class Catalogue:
    """All known models. A new catalogue is made when the config or the local servers change.

    ``discovered`` are the models of local servers (``find_models``). ``state_dir`` shows which local model and
    credentials are there.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        discovered: Sequence[Model] = (),
        state_dir: str | None = None,
    ) -> None:
        self._config = config
        self._environ = environ
        self._state_dir = paths.state_dir() if state_dir is None else state_dir
        self._discovered = tuple(discovered)
        files = Path(self._state_dir, "agents").glob("*/agent/auth-profiles.json")
        stored = [profile for path in files for profile in read_profiles(str(path))]
        self._profile_providers = {canonical_provider(profile.provider) for profile in stored}
        self._cap = config.agents.defaults.context_tokens
        self._models = self._assemble()
        self._aliases = {**MODEL_ALIASES, **model_aliases(config)}
        self._defaults: dict[str, Model] = {}
        """The default models of the agents that were asked for."""

    def all(self) -> list[Model]:
        """All models: configured ones, those of servers on this machine, well-known ones, the embedded one."""
        return list(self._models.values())

    def available(self) -> list[Model]:
        """The models that can be called now, with a key or without needing one."""
        usable = {name: self.is_usable(name) for name in {model.provider for model in self._models.values()}}
        return [model for model in self._models.values() if usable[model.provider]]

    def aliases(self) -> dict[str, str]:
        return dict(self._aliases)

    def resolve(self, ref: str) -> Model:
        """The model a person means by ``provider/model``, an alias, or a bare id. Raises ``UnknownModel``."""
        text = ref.strip()
        text = self._aliases.get(text.lower(), text)
        provider, slash, model_id = text.partition("/")
        provider = canonical_provider(provider)
        if slash and model_id:
            model_id = _vendor_id(provider, model_id)
            if model := self._models.get(f"{provider}/{model_id}".lower()):
                return model
            if is_program(self._config, provider):
                return self._capped(cli_model(provider, model_id, DEFAULT_WINDOW))
            if provider in KNOWN_BACKENDS and provider_config(self._config, provider) is None:
                raise UnknownModel(
                    f"{provider} is a program on the Gateway's machine, which has tools of its own. To allow it, name "
                    f"{provider}/{model_id} under agents.defaults.models or as a model of an agent.",
                    text,
                )
            if provider != LOCAL_PROVIDER and self.is_usable(provider):
                accepted = unlisted_model(provider, model_id, self._config, self._environ)
                if accepted is not None:
                    return self._capped(accepted)
        return self._by_bare_id(text)

    def check_choice(self, model: Model, agent_id: str) -> None:
        """Raises ``UnknownModel`` if only the owner may choose the model for this agent, and the agent may not.

        Such a model is a program that is none of the agent's own models: no tool rule, approval or sandbox binds it.
        """
        if model.api != CLI_API:
            return
        for name in (primary_model(self._config, agent_id), *fallback_models(self._config, agent_id)):
            with contextlib.suppress(UnknownModel):
                if name and self.resolve(name).ref == model.ref:
                    return
        raise UnknownModel(f"{model.ref} is a program with tools of its own. Only the owner may choose it.", model.ref)

    def check_known(self, model: Model) -> None:
        """Raise ``UnknownModel`` if neither a list nor the configuration names the model.

        ``resolve`` also returns such a model if its provider can be called, because a person may know a newer model
        than we do. An agent only guesses its name.
        """
        if model.ref.lower() in self._models:
            return
        for name in named_models(self._config):
            with contextlib.suppress(UnknownModel):
                if self.resolve(name).ref == model.ref:
                    return
        raise self._unknown(model.ref)

    def is_usable(self, provider: str) -> bool:
        """Whether the provider is configured, has a key in the environment or a profile, or runs on this machine."""
        name = canonical_provider(provider)
        if name == LOCAL_PROVIDER or name in self._profile_providers:
            return True
        section = provider_config(self._config, name)
        if section is not None and (section.api_key or section.base_url or section.models):
            return True
        facts = PROVIDERS.get(name)
        if facts is None:
            return is_program(self._config, name)
        probe = Model(provider=name, id="", base_url=facts.base_url)
        return find_source(probe, section, self._environ).kind != "missing"

    def default_for(self, config: Config, agent_id: str) -> Model:
        """The agent's configured model, or the best one that can be called."""
        if config is not self._config:
            return self.choose(config, agent_id).model
        if agent_id not in self._defaults:
            if len(self._defaults) >= AGENTS_KEPT:
                self._defaults.clear()
            self._defaults[agent_id] = self.choose(config, agent_id).model
        return self._defaults[agent_id]

    def choose(self, config: Config, agent_id: str) -> Choice:
        if explicit := primary_model(config, agent_id):
            model = self.resolve(explicit)
            return Choice(model, f"using {model.ref} because the config names it for the agent {agent_id}")
        for name, section in self._config.models.providers.items():
            if section.models:
                model = self.resolve(f"{name}/{section.models[0].id}")
                why = f"using {model.ref} because it is the first model of models.providers in the config"
                return Choice(model, why)
        if choice := self._key_choice() or self._ollama_choice() or self._fetched_choice():
            return choice
        model = self._models[local_model().ref.lower()]
        why = f"using {model.ref}, the embedded model, because no key and no local server was found"
        if not is_installed(self._state_dir):
            why += f"; it is not installed yet: run {INSTALL_COMMAND}"
        return Choice(model, why)

    def _key_choice(self) -> Choice | None:
        for name, facts in PROVIDERS.items():
            if not facts.default_model:
                continue
            probe = Model(provider=name, id="", base_url=facts.base_url)
            source = find_source(probe, provider_config(self._config, name), self._environ)
            if source.kind == "env":
                why = f"{source.where} is set"
            elif source.kind in ("config", "file", "command"):
                why = f"models.providers.{name}.apiKey is set in the config"
            elif name in self._profile_providers:
                why = f"a stored credential for {facts.label} was found"
            else:
                continue
            model = self.resolve(f"{name}/{facts.default_model}")
            return Choice(model, f"using {model.ref} because {why}")
        return None

    def _ollama_choice(self) -> Choice | None:
        """The first model with tools of a local Ollama server.

        Other local servers are never chosen by themselves, because anything may listen on their common ports.
        """
        models = [model for model in self._models.values() if model.provider == "ollama"]
        found_here = any(model.provider == "ollama" for model in self._discovered)
        if not models or not found_here:
            return None
        model = next((candidate for candidate in models if candidate.tools), models[0])
        return Choice(model, f"using {model.ref} because an Ollama server with this model runs at {model.base_url}")

    def _fetched_choice(self) -> Choice | None:
        """The best model that was fetched to run on this computer."""
        for model in installed_models(self._state_dir):
            model = self._models[model.ref.lower()]
            return Choice(model, f"using {model.ref}, which is installed here, because no key and no server was found")
        return None

    def _assemble(self) -> dict[str, Model]:
        """The models by reference, in order of authority. The first source of a reference wins."""
        builtin = () if self._config.models.mode == "replace" else builtin_models(self._config, self._environ)
        configured = configured_models(self._config, self._environ)
        window = context_length(weights_path(self._state_dir))
        embedded = local_model(context_window=min(window or LOCAL_WINDOW, LOCAL_WINDOW))
        models: dict[str, Model] = {}
        programs = program_models(self._config)
        for model in (
            *configured,
            *programs,
            *self._discovered,
            *builtin,
            *installed_models(self._state_dir),
            embedded,
        ):
            models.setdefault(model.ref.lower(), self._capped(model))
        return models

    def _by_bare_id(self, text: str) -> Model:
        same = [model for model in self._models.values() if model.id.lower() == text.lower()]
        reachable = [model for model in same if self.is_usable(model.provider)]
        candidates = reachable or same
        own = [model for model in candidates if not getattr(PROVIDERS.get(model.provider), "resells", False)]
        if len(candidates) == 1 or len(own) == 1:
            return (own or candidates)[0]
        if candidates:
            names = ", ".join(model.ref for model in candidates)
            raise UnknownModel(f"Several providers offer {text!r}: write one of {names}.", text)
        raise self._unknown(text)

    def _unknown(self, text: str) -> UnknownModel:
        if (download := find_download(text)) is not None:
            command = f"openclaw models install {download.id}"
            return UnknownModel(f"{download.ref} is not installed on this computer yet: run `{command}`.", text)
        names = {ref: model.ref for ref, model in self._models.items()}
        bare = {model.id.lower(): model.ref for model in self._models.values()}
        near = [names[hit] for hit in difflib.get_close_matches(text.lower(), names, n=3, cutoff=0.6)]
        near += [bare[hit] for hit in difflib.get_close_matches(text.lower(), bare, n=3, cutoff=0.6)]
        nearest = list(dict.fromkeys(near))[:3] or [model.ref for model in self.available()[:3]]
        provider = canonical_provider(text.partition("/")[0]) if "/" in text else "<provider>"
        return UnknownModel(
            f"Unknown model {text!r}. Near it: {', '.join(nearest)}. To use another, set the key of its provider, "
            f"or add models.providers.{provider} with baseUrl, apiKey and models to the config.",
            text,
        )

    def _capped(self, model: Model) -> Model:
        if not self._cap:
            return model
        window = min(model.context_window, self._cap)
        return msgspec.structs.replace(model, context_window=window, max_tokens=min(model.max_tokens, window))


class CurrentCatalogue:
    """The models of the current configuration, built again after the configuration has changed.

    ``discovered`` are the models of servers on this machine. Keys that are stored and models that are fetched while the
    Gateway runs are noticed by ``look_again``.
    """

    def __init__(
        self, config: ConfigStore, environ: Mapping[str, str], discovered: list[Model], state_dir: str
    ) -> None:
        self._config = config
        self._environ = environ
        self._discovered = discovered
        self._state_dir = state_dir
        self._made_from: Config | None = None
        self._catalogue: Catalogue | None = None

    def __call__(self) -> Catalogue:
        config = self._config.current
        if self._catalogue is None or self._made_from is not config:
            self._made_from = config
            self._catalogue = Catalogue(config, self._environ, discovered=self._discovered, state_dir=self._state_dir)
        return self._catalogue

    async def look_again(self) -> None:
        """Asks the servers on this machine again, and reads again what is stored."""
        self._discovered = await find_models(self._environ)
        self._catalogue = None


def _vendor_id(provider: str, model_id: str) -> str:
    """The vendor's own spelling of a model id."""
    if provider == "anthropic":
        return re.sub(r"(?<=\d)\.(?=\d)", "-", model_id)
    if provider == "openrouter" and model_id == "auto":
        return "openrouter/auto"
    return model_id


def configured_models(config: Config, environ: Mapping[str, str]) -> Iterator[Model]:
    """The models listed under ``models.providers``, in the order of the file."""
    builtin = {model.ref.lower(): model for model in MODELS}
    for name, section in config.models.providers.items():
        provider = canonical_provider(name)
        for row in section.models:
            builtin_model = builtin.get(f"{provider}/{row.id}".lower())
            base = _provider_row(provider, section, environ, row.api or section.api, builtin_model)
            yield _with_overrides(base, row, inherits=builtin_model is not None)


def program_models(config: Config) -> Iterator[Model]:
    """The models that the configuration names of programs that answer. Programs have no list of their models."""
    agents = [agent.id for agent in config.agents.list] or [default_agent_id(config)]
    named = [ref for agent in agents for ref in (primary_model(config, agent), *fallback_models(config, agent)) if ref]
    for ref in dict.fromkeys([*named, *config.agents.defaults.models]):
        provider, _, model_id = ref.partition("/")
        provider = canonical_provider(provider)
        if model_id and is_program(config, provider):
            yield cli_model(provider, model_id, DEFAULT_WINDOW)


def is_program(config: Config, provider: str) -> bool:
    """Whether a program answers for the provider's models. A server of the same name goes first.

    A program has tools that no rule of ours binds. So one that we know counts only if the configuration names it: it
    must not be chosen in a chat, or by an agent, only because it is installed.
    """
    if provider_config(config, provider) is not None:
        return False
    if any(name.lower() == provider for name in config.agents.defaults.cli_backends):
        return True
    return provider in KNOWN_BACKENDS and f'"{provider}/'.encode() in msgspec.json.encode(config).lower()


def builtin_models(config: Config, environ: Mapping[str, str]) -> Iterator[Model]:
    """The well-known models, with the address, protocol and headers that the config gives their provider."""
    for model in MODELS:
        section = provider_config(config, model.provider)
        yield model if section is None else _provider_row(model.provider, section, environ, section.api, model)


def unlisted_model(provider: str, model_id: str, config: Config, environ: Mapping[str, str]) -> Model | None:
    """A model that is in no list, of a provider whose address is known. New models work without a new release."""
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
    builtin_model: Model | None = None,
) -> Model:
    """A row with the values that are common to all models of the provider."""
    facts = PROVIDERS.get(provider)
    start = builtin_model or Model(
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
    """The base row with the values that the config gives the model."""
    # A value equal to the default counts as not given.
    blank = type(row)(id=row.id)
    overridden = {name for name in row.__struct_fields__ if getattr(row, name) != getattr(blank, name)}
    window = row.context_window if "context_window" in overridden or not inherits else base.context_window
    if base.api == "local" and "context_window" not in overridden:
        window = min(context_length(base.base_url) or LOCAL_WINDOW, LOCAL_WINDOW)
    free = Price() if base.api == "local" else None
    return msgspec.structs.replace(
        base,
        id=row.id,
        name=row.name or base.name or row.id,
        reasoning=row.reasoning if "reasoning" in overridden or not inherits else base.reasoning,
        input=tuple(row.input) if "input" in overridden or not inherits else base.input,
        context_window=window,
        max_tokens=row.max_tokens or (base.max_tokens if inherits else min(DEFAULT_MAX_TOKENS, window)),
        cost=msgspec.convert(row.cost, Price, from_attributes=True) if row.cost is not None else base.cost or free,
        headers={**base.headers, **row.headers},
        compat={**base.compat, **row.compat},
        tools=row.tools and (base.api != "local" or row.compat.get("toolFormat") == TOOL_FORMAT),
    )


def _headers(provider: str, section: ProviderConfig, environ: Mapping[str, str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in section.headers.items():
        path = f"models.providers.{provider}.headers.{name}"
        if not isinstance(value, str) and value.command:
            # Rows are made on the event loop, and a command would block it.
            log.warning("%s is left out: a header cannot come from a command", path)
            continue
        try:
            headers[name] = resolve_secret(value, environ, path) or ""
        except SecretUnavailable as error:
            log.warning("A header is left out: %s", error)
    return headers


def _endpoint(api: str, base_url: str) -> tuple[str, str]:
    """The protocol and address to use. Ollama's own protocol is replaced by its server's OpenAI-compatible one."""
    address = base_url.rstrip("/")
    if api == "ollama":
        return "openai-completions", address if address.endswith("/v1") else f"{address}/v1"
    if api == "google-generative-ai" and address.endswith("/openai"):
        return "openai-completions", address
    return api, address


# Servers on this machine

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
    base_urls = {name: PROVIDERS[name].base_url for name in LOCAL_SERVERS}
    if host := environ.get("OLLAMA_HOST", "").strip():
        base_urls["ollama"] = _ollama_address(host) or base_urls["ollama"]
    return list(base_urls.items())


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
        window = windows.get(model_id) or row.get("max_model_len")
        if window is None and isinstance(meta, dict):
            window = meta.get("n_ctx") or meta.get("n_ctx_train")
        models.append(_model(provider, url, model_id, window if isinstance(window, int) and window > 0 else None))
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
