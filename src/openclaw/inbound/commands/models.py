"""``/models``, the answers of ``/model``, and how a model is found by a name that a person wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from openclaw.config.agents import fallback_models, primary_model
from openclaw.config.schema import Config
from openclaw.inbound.incoming import CommandContext, Facts
from openclaw.models.base import Model
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.keys import canonical_provider, find_source, provider_config
from openclaw.sessions.entry import SessionEntry
from openclaw.url_text import redact_urls

PAGE = 20


async def models(context: CommandContext, facts: Facts, args: str) -> str:
    offered = offered_models(context.config, context.catalogue, facts.session.agent_id)
    words = args.split()
    if not words:
        return providers_text(offered)
    provider = canonical_provider(words[0])
    own = [model for model in offered if model.provider == provider]
    if not own:
        return f'No models of "{words[0]}" are on offer.\n{providers_text(offered)}'
    return _page(provider, own, words[1].lower() if len(words) > 1 else "1")


def providers_text(offered: list[Model]) -> str:
    if not offered:
        return "No model can be used yet: set a provider's key or run openclaw models install local."
    counts = Counter(model.provider for model in offered)
    lines = [f"- {provider} ({count})" for provider, count in counts.items()]
    return "\n".join(["Providers:", *lines, "", "/models <provider> shows its models, /model <name> chooses one."])


def _page(provider: str, own: list[Model], wanted: str) -> str:
    pages = -(-len(own) // PAGE)
    if wanted == "all":
        shown, head = own, f"Models of {provider} ({len(own)}):"
    elif wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= pages:
        page = int(wanted)
        shown, head = own[(page - 1) * PAGE : page * PAGE], f"Models of {provider} (page {page} of {pages}):"
    else:
        return f'There is no page "{wanted}"; write a number from 1 to {pages}, or all.'
    lines = [head, *(f"- {model.ref}" for model in shown)]
    if len(shown) < len(own):
        lines += ["", f"More: /models {provider} <page|all>"]
    return "\n".join(lines)


def model_info(what: str, facts: Facts, context: CommandContext, entry: SessionEntry | None) -> str:
    """The answer to ``/model list``, to ``/model status``, and to ``/model`` alone (``what`` is empty then)."""
    config, catalogue, agent_id = context.config, context.catalogue, facts.session.agent_id
    if what == "list":
        return providers_text(offered_models(config, catalogue, agent_id))
    default = catalogue.default_for(config, agent_id)
    try:
        model = current_model(entry, config, catalogue, agent_id)
    except UnknownModel as unknown:
        return f"{unknown} /model default goes back to {default.ref}."
    if not what:
        return "\n".join(
            [f"Current: {model.ref}", "", "Switch: /model <name>", "Browse: /models", "Details: /model status"]
        )
    lines = [f"Current: {model.ref}", f"Default: {default.ref}", f"Agent: {agent_id}"]
    lines.append(f"Credential: {(entry or {}).get('authProfileOverride') or key_label(model, context)}")
    if fallbacks := fallback_models(config, agent_id):
        lines.append(f"Fallbacks: {', '.join(fallbacks)}")
    lines.append(f"Endpoint: {redact_urls(model.base_url) or 'built in'} ({model.api})")
    lines.append(f"Context window: {model.context_window:,} tokens")
    return "\n".join(lines)


def key_label(model: Model, context: CommandContext) -> str:
    """Says where the model's key comes from. The key itself is never shown."""
    source = find_source(model, provider_config(context.config, model.provider), context.environ)
    return {"unneeded": "no key needed", "missing": "no key"}.get(source.kind, f"{source.kind} {source.where}".strip())


def no_numbers(number: str) -> str:
    return f'Models have no numbers, so "{number}" names none. /models shows the names; then write /model <name>.'


QUESTIONS = frozenset({"", "list", "status"})
"""The words after ``/model`` that are a question and not a model."""
SHORTEST_FRAGMENT = 6
"""A part of a model's name in running text must have at least this length."""
SHORTEST_PART = 3
"""A part of a model's name after ``/model`` must have at least this length."""


def offered_models(config: Config, catalogue: Catalogue, agent_id: str) -> list[Model]:
    """The models of ``agents.defaults.models`` and the agent's own. Without such a list it is every usable model."""
    listed = config.agents.defaults.models
    if not listed:
        return catalogue.available()
    names = [*listed, primary_model(config, agent_id), *fallback_models(config, agent_id)]
    found: dict[str, Model] = {}
    for name in names:
        try:
            model = catalogue.resolve(name) if name else catalogue.default_for(config, agent_id)
        except UnknownModel:
            continue
        found.setdefault(model.ref, model)
    return list(found.values())


def choose_model(name: str, config: Config, catalogue: Catalogue, agent_id: str) -> Model:
    """The model that a reference, an alias or an unambiguous part of a name means.

    Raises ``UnknownModel``, whose text says what is on offer.
    """
    if name.lower() == "default":
        return catalogue.default_for(config, agent_id)
    offered = offered_models(config, catalogue, agent_id)
    try:
        model = catalogue.resolve(name)
    except UnknownModel:
        model = fuzzy_model(name, offered, only=True) if len(name) >= SHORTEST_PART else None
        if model is None:
            raise
    if config.agents.defaults.models and model.ref not in {each.ref for each in offered}:
        names = ", ".join(each.ref for each in offered[:10])
        raise UnknownModel(
            f"Model {model.ref} is not on the list agents.defaults.models. On offer: {names}. "
            "Add it there, or choose one of these.",
            model.ref,
        )
    return model


def check_program(model: Model, facts: Facts, catalogue: Catalogue) -> None:
    """Raises ``UnknownModel`` if the model is a program that the sender may not choose."""
    if "admin" not in facts.rights:
        catalogue.check_choice(model, facts.session.agent_id)


def current_model(entry: SessionEntry | None, config: Config, catalogue: Catalogue, agent_id: str) -> Model:
    override = (entry or {}).get("modelOverride")
    if override:
        provider = (entry or {}).get("providerOverride")
        return catalogue.resolve(f"{provider}/{override}" if provider else str(override))
    return catalogue.default_for(config, agent_id)


def fuzzy_model(fragment: str, models: Sequence[Model], *, provider: str = "", only: bool = False) -> Model | None:
    """The model whose id fits the fragment best. With ``only`` the result is None when several fit equally well."""
    wanted = fragment.lower()
    candidates = [model for model in models if not provider or model.provider == provider]
    for fits in (str.__eq__, str.startswith, str.__contains__):
        found = [model for model in candidates if fits(model.id.lower(), wanted)]
        if found:
            return found[0] if len(found) == 1 or not only else None
    return None


def leading_model(text: str, config: Config, catalogue: Catalogue, agent_id: str) -> tuple[Model | None, str]:
    """The model that the first one or two words name, and the text after them. Only models on offer count."""
    words = text.split(None, 2)
    if not words:
        return None, text
    offered = offered_models(config, catalogue, agent_id)
    providers = {model.provider for model in offered}
    first = words[0]
    provider = canonical_provider(first)
    if provider in providers and len(words) > 1:
        model = fuzzy_model(words[1], offered, provider=provider)
        if model is not None:
            return model, _after(text, 2)
    model = _exact(first, offered, catalogue)
    if model is None and provider in providers:
        model = next(each for each in offered if each.provider == provider)
    if model is None and len(first) >= SHORTEST_FRAGMENT:
        # A word such as "thinking" is part of many names and means none of them.
        model = fuzzy_model(first, offered, only=True)
    return (model, _after(text, 1)) if model is not None else (None, text)


def _exact(name: str, offered: Sequence[Model], catalogue: Catalogue) -> Model | None:
    if "/" not in name and name.lower() not in catalogue.aliases():
        return next((model for model in offered if model.id.lower() == name.lower()), None)
    try:
        ref = catalogue.resolve(name).ref
    except UnknownModel:
        return None
    return next((model for model in offered if model.ref == ref), None)


def _after(text: str, words: int) -> str:
    """The text after its first words, with its line breaks."""
    parts = text.split(None, words)
    return parts[words] if len(parts) > words else ""
