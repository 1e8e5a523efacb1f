"""The adapter for a model, by its ``api``. Nothing is imported before it is needed."""

from __future__ import annotations

import functools
import importlib

from openclaw.models.base import Model, ModelError, Provider

_ADAPTERS = {
    "anthropic-messages": ("openclaw.models.anthropic", "AnthropicProvider"),
    "openai-completions": ("openclaw.models.openai_chat", "OpenAIChatProvider"),
    "openai-responses": ("openclaw.models.openai_responses", "OpenAIResponsesProvider"),
    "local": ("openclaw.models.local", "LocalProvider"),
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


@functools.cache
def _adapter(api: str) -> Provider:
    module, name = _ADAPTERS[api]
    return getattr(importlib.import_module(module), name)()
