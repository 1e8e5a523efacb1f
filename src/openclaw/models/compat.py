"""How OpenAI-compatible servers differ: known by host and provider, overridden by the model's ``compat``."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from openclaw.models.base import Model

OPENAI_BASE_URL = "https://api.openai.com/v1"
_MISTRAL_MODELS = ("mistral", "mixtral", "codestral", "pixtral", "devstral", "ministral", "magistral")
_LOCAL_PROVIDERS = ("ollama", "vllm", "llamacpp", "llama.cpp", "lmstudio", "local", "sglang")

_TAG_PROVIDERS = ("ollama", "google-gemini-cli", "google-generative-ai")


class Quirks(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Each field can be set in a model's ``compat`` under its camelCase name."""

    supports_developer_role: bool = True
    supports_reasoning_effort: bool = True
    supports_usage_in_streaming: bool = True
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    requires_tool_result_name: bool = False
    requires_thinking_as_text: bool = False
    requires_mistral_tool_ids: bool = False
    requires_assistant_after_tool_result: bool = False
    """Roles strictly take turns, and an assistant message stands between results and the user."""
    thinking_format: Literal["openai", "zai", "qwen"] = "openai"
    is_openai: bool = False
    """The vendor itself: call ids of at most 40 characters, no empty list of tools, a prompt cache key."""
    is_openrouter: bool = False


def quirks_of(model: Model) -> Quirks:
    guessed = msgspec.to_builtins(_guess(model))
    known = {name: value for name, value in model.compat.items() if name in guessed}
    try:
        return msgspec.convert({**guessed, **known}, Quirks)
    except msgspec.ValidationError as error:
        raise ValueError(f"The compat settings of {model.ref} are wrong: {error}.") from None


def url_of(model: Model, path: str) -> str:
    """The address of an OpenAI-style call. A bare host (``http://localhost:11434``) means its ``/v1``."""
    base = (model.base_url or OPENAI_BASE_URL).rstrip("/")
    if urlsplit(base).path == "":
        base = f"{base}/v1"
    return f"{base}{path}"


def openai_headers(model: Model, api_key: str) -> dict[str, str]:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    if quirks_of(model).is_openrouter:
        headers |= {"http-referer": "https://openclaw.ai", "x-title": "OpenClaw"}
    return {**headers, **{name.lower(): value for name, value in model.headers.items()}}


def tool_choice(choice: Any, *, nested: bool) -> Any:
    """OpenAI's form of the neutral choice; chat nests a named tool, Responses does not. None: say nothing."""
    match choice:
        case None | "auto":
            return None
        case "none" | "required":
            return choice
        case "any":
            return "required"
        case {"name": str(name)}:
            return {"type": "function", "function": {"name": name}} if nested else {"type": "function", "name": name}
        case _:
            raise ValueError(f'Unknown tool choice {choice!r}; use "auto", "none", "required" or {{"name": ...}}.')


def is_loopback(model: Model) -> bool:
    host = urlsplit(model.base_url).hostname or ""
    return host in ("localhost", "::1", "0.0.0.0") or host.startswith("127.")


def reasons_in_tags(model: Model) -> bool | Literal["if_begun"]:
    """Whether reasoning comes as ``<think>`` and the answer as ``<final>``, which the model is then asked to write.

    ``compat.finalTag`` decides where it is given. Small models without tools are not told, and so not held to it. Many
    of Ollama's models do not care: those that begin without a tag are shown as they write (``if_begun``).
    """
    declared = model.compat.get("finalTag")
    if isinstance(declared, bool):
        return declared
    provider = model.provider.lower()
    known = provider in _TAG_PROVIDERS or "google-antigravity" in provider or "minimax" in provider
    if not known or not model.tools:
        return False
    return "if_begun" if provider == "ollama" else True


def _guess(model: Model) -> Quirks:
    provider = model.provider.lower()
    host = urlsplit(model.base_url or OPENAI_BASE_URL).hostname or ""
    model_id = model.id.lower()

    def served_by(name: str, domain: str) -> bool:
        return provider == name or host == domain or host.endswith(f".{domain}")

    mistral = served_by("mistral", "mistral.ai")
    mistral_model = any(name in model_id for name in _MISTRAL_MODELS)
    zai = served_by("zai", "z.ai")
    xai = served_by("xai", "x.ai")
    local = provider in _LOCAL_PROVIDERS or is_loopback(model)
    picky = (
        local or mistral or zai or xai or served_by("cerebras", "cerebras.ai") or served_by("deepseek", "deepseek.com")
        or served_by("chutes", "chutes.ai") or provider == "opencode"
    )  # fmt: skip
    old_limit = local or mistral or served_by("chutes", "chutes.ai")
    return Quirks(
        supports_developer_role=not picky,
        supports_reasoning_effort=not (xai or zai or mistral),
        max_tokens_field="max_tokens" if old_limit else "max_completion_tokens",
        requires_tool_result_name=mistral,
        requires_thinking_as_text=mistral,
        requires_mistral_tool_ids=mistral or (not local and mistral_model),
        requires_assistant_after_tool_result=mistral or mistral_model,
        thinking_format="zai" if zai else "openai",
        is_openai=provider == "openai" or host == "api.openai.com",
        is_openrouter=served_by("openrouter", "openrouter.ai"),
    )
