"""The body a request is sent with, built again from the request: the same bytes as went out."""

from __future__ import annotations

import importlib
from typing import Any

from openclaw.models.base import ModelRequest
from openclaw.models.message_builder import encode_body

_BUILDERS = {
    "anthropic-messages": "openclaw.models.anthropic",
    "openai-completions": "openclaw.models.openai_chat",
    "openai-responses": "openclaw.models.openai_responses",
}


def wire_body(request: ModelRequest) -> bytes | None:
    """None for a model that is not called over the network."""
    module = _BUILDERS.get(request.model.api)
    if module is None:
        return None
    build: Any = importlib.import_module(module).build_body
    return encode_body(build(request))
