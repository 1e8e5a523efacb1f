"""The adapter for a model, by its ``api``. Nothing is imported before it is needed."""

from __future__ import annotations

import importlib

from openclaw.models.base import Model, ModelError, Provider

_ADAPTERS = {
    "anthropic-messages": ("openclaw.models.anthropic", "AnthropicProvider"),
    "openai-completions": ("openclaw.models.openai_chat", "OpenAIChatProvider"),
    "openai-responses": ("openclaw.models.openai_responses", "OpenAIResponsesProvider"),
    "local": ("openclaw.models.local.provider", "LocalProvider"),
}


def provider_for(model: Model) -> Provider:
    """The provider that can call the model; one instance per api for the whole process."""
    if model.api not in _ADAPTERS:
        known = ", ".join(_ADAPTERS)
        raise ModelError(
            f"Model {model.ref} has the unknown api {model.api!r}; set `api` of its provider to one of: {known}.",
            kind="other",
        )
    return _adapter(model.api)


_made: dict[str, Provider] = {}


def _adapter(api: str) -> Provider:
    if api not in _made:
        module, name = _ADAPTERS[api]
        _made[api] = getattr(importlib.import_module(module), name)()
    return _made[api]


async def close_providers() -> None:
    """Lets go of what adapters hold, e.g. the process of the local model."""
    for provider in _made.values():
        close = getattr(provider, "close", None)
        if close is not None:
            await close()
    _made.clear()
