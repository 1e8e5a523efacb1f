"""``/models`` and the answers of ``/model``: which model this is, and which there are."""

from __future__ import annotations

from collections import Counter

from openclaw.inbound.commands.context import CommandContext, CommandServices, Facts, handles
from openclaw.inbound.commands.model_choice import current_model, offered_models
from openclaw.models.base import Model
from openclaw.models.catalogue import UnknownModel
from openclaw.models.keys import canonical_provider
from openclaw.sessions.entry import SessionEntry

PAGE = 20


@handles("models")
async def models(context: CommandContext) -> str:
    offered = offered_models(context.services.config, context.services.catalogue, context.session.agent_id)
    words = context.args.split()
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


def model_info(what: str, facts: Facts, services: CommandServices, entry: SessionEntry | None) -> str:
    """The answer of ``/model`` (what is empty), ``/model list`` and ``/model status``."""
    config, catalogue, agent_id = services.config, services.catalogue, facts.session.agent_id
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
    lines.append(f"Credential: {(entry or {}).get('authProfileOverride') or services.auth_label(model, agent_id)}")
    lines.append(f"Endpoint: {model.base_url or 'built in'} ({model.api})")
    lines.append(f"Context window: {model.context_window:,} tokens")
    return "\n".join(lines)


def no_numbers(number: str) -> str:
    return f'Models have no numbers, so "{number}" names none. /models shows the names; then write /model <name>.'
